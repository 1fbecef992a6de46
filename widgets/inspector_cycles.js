// The cycles of a request: in words, and as a strip of bars.

import { cleared, coloursOf } from "./page.js";

const BROADEST = 16; // a bar with the space beside it, in pixels
const NARROWEST = 3; // where there are more cycles, neighbours share a bar
const LAST = ["correction", "bonus", "plain"]; // how what follows the accepted drafts came
const KEYS = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 10, PageDown: -10 };

// A cycle in words.
export function told(cycle, pieces) {
  const [number, ms, drafted, accepted, tokens, , by, rows] = cycle;
  const parts = [`cycle ${number}`];
  if (ms !== null) parts.push(`${ms.toFixed(1)} ms after the one before`);
  parts.push(
    drafted ? `${accepted} of ${drafted} drafts right, drafted by ${by}` : "nothing drafted",
  );
  parts.push(tokens === 1 ? "1 token" : `${tokens} tokens`);
  if (rows > 1) parts.push(`${rows} rows in its forward`);
  const text = pieces.filter((piece) => piece[3] === number).map((piece) => piece[0]);
  return `${parts.join(", ")}: ${JSON.stringify(text.join(""))}`;
}

// How the bars stand: how many cycles share one, and how broad one is with the space beside it.
export function spread(count, width) {
  const each = Math.max(1, Math.ceil(count / Math.max(1, Math.floor(width / NARROWEST))));
  return { each, step: Math.min(BROADEST, width / Math.max(1, Math.ceil(count / each))) };
}

// The bars, each a mean of `each` cycles, in tokens: drafted, and what came of it by kind.
export function bars(cycles, each) {
  const found = [];
  for (let start = 0; start < cycles.length; start += each) {
    const part = cycles.slice(start, start + each);
    const mean = (of) => part.reduce((sum, cycle) => sum + of(cycle), 0) / part.length;
    const bar = { drafted: mean((cycle) => cycle[2]), accepted: mean((cycle) => cycle[3]) };
    for (const kind of LAST) {
      bar[kind] = mean((cycle) => (cycle[5] === kind ? cycle[4] - cycle[3] : 0));
    }
    found.push(bar);
  }
  return found;
}

// Which of `count` cycles a key leads to from the one at `at`; -1 for a key that leads nowhere.
export function moved(key, at, count) {
  if (!count) return -1;
  if (key === "Home") return 0;
  if (key === "End") return count - 1;
  if (!(key in KEYS)) return -1;
  return Math.min(Math.max(at + KEYS[key], 0), count - 1);
}

// Which cycle stands at a place in the strip; -1 where none does.
export function cycleAt(px, count, width) {
  const { each, step } = spread(count, width);
  const at = Math.floor(px / step) * each;
  return at >= 0 && at < count ? at : -1;
}

export function drawStrip(canvas, cycles, chosen) {
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  const paint = cleared(canvas, width, height);
  if (!paint) return;
  const colour = coloursOf(canvas);
  const { each, step } = spread(cycles.length, width);
  const found = bars(cycles, each);
  const most = found.reduce((top, bar) => Math.max(top, bar.drafted + 1), 1);
  const tall = (tokens) => ((height - 2) * tokens) / most;
  const broad = Math.max(1, step - (step > 2 * NARROWEST ? 2 : 1));
  const told = chosen < 0 ? -1 : Math.floor(chosen / each);
  found.forEach((bar, n) => {
    const x = n * step;
    if (n === told) {
      paint.fillStyle = colour("grid");
      paint.fillRect(x - 2, 0, broad + 4, height);
    }
    let y = height;
    for (const kind of ["accepted", ...LAST]) {
      if (!bar[kind]) continue;
      y -= tall(bar[kind]);
      paint.fillStyle = colour(kind);
      paint.fillRect(x, y, broad, tall(bar[kind]));
    }
    if (bar.drafted) {
      paint.fillStyle = colour("text");
      paint.fillRect(x, Math.round(height - tall(bar.drafted)) - 1, broad, 1);
    }
  });
}
