// Paints the timeline: the curve of the total rate, the rows, and the axis, in one frame.

import { nice, scale, shortened, ticks } from "./timeline_places.js";

export const TOP = 64; // the curve of the total rate
export const AXIS = 22;
export const RIGHT = 8; // room for the bar that tells which rows are seen
const READABLE = 13; // lower rows than this have no words of their own
const SOLID = 4; // in lower rows than this a mark is as high as its row
const FAINT = 0.3; // of those: who waits is no more than a ground
const LEAST_GUTTER = 104;
const FONT = "12px system-ui, sans-serif";
const BOLD = "600 12px system-ui, sans-serif";

// How broad the column of labels has to be.
export function gutterOf(paint, width, lines) {
  paint.font = FONT;
  let broad = 0;
  for (const line of lines) broad = Math.max(broad, paint.measureText(line.label).width);
  const most = Math.max(LEAST_GUTTER, width / 4);
  return Math.round(Math.min(Math.max(broad + 16, LEAST_GUTTER), most));
}

// All of it. A scene: state, range of seconds, width, gutter, first row, high, fit, the pinned and
// the hovered request, and the pointer's place or null.
export function paintTimeline(paint, colour, scene) {
  const wide = Math.max(10, scene.width - scene.gutter - RIGHT);
  const { toX, toSeconds } = scale(scene.range, scene.gutter, wide);
  const floor = TOP + scene.fit * scene.high;
  const all = { ...scene, paint, colour, wide, toX, toSeconds, floor };
  paint.textBaseline = "middle";
  paint.font = FONT;
  paintGround(all);
  paintMarks(all);
  paintLabels(all);
  paintRate(all);
  paintAxis(all);
  paintChosen(all);
}

function clipped(paint, x, y, width, height, act) {
  paint.save();
  paint.beginPath();
  paint.rect(x, y, width, height);
  paint.clip();
  act();
  paint.restore();
}

function seen({ state, first, fit }) {
  return state.rows.slice(first, Math.ceil(first + fit));
}

function paintGround(scene) {
  const { paint, colour, state, first, fit, high, gutter, wide, toX, floor } = scene;
  const y = (row) => TOP + (row - first) * high;
  clipped(paint, gutter, TOP, wide, fit * high, () => {
    paint.fillStyle = colour("cohort");
    state.rows.forEach(({ band }, row) => {
      if (!band) return;
      const [, , count, start, end] = band;
      if (row + count + 1 < first || row > first + fit) return;
      const x = toX(start);
      const tall = (count + 1) * high - Math.min(2, high / 4);
      paint.fillRect(x, y(row), Math.max(1, toX(end) - x), tall);
    });
    paint.fillStyle = colour("grid");
    for (const [x] of ticks(...scene.range, wide)) {
      paint.fillRect(Math.round(toX(x)), TOP, 1, floor);
    }
  });
  const at = state.rows.findIndex(({ id }) => id !== null && id === scene.hovered);
  if (at < first || at >= first + fit) return;
  paint.globalAlpha = 0.4;
  paint.fillStyle = colour("grid");
  paint.fillRect(0, y(at), scene.width, high);
  paint.globalAlpha = 1;
}

function paintMarks(scene) {
  const { paint, colour, state, high, gutter, wide, toX, range } = scene;
  clipped(paint, gutter, TOP, wide, scene.fit * high, () => {
    seen(scene).forEach(({ id }, n) => {
      const y = TOP + n * high;
      for (const [role, x, top, long, tall] of state.lines.get(id)?.marks ?? []) {
        if (x + long < range[0] || x > range[1]) continue;
        if (high < SOLID && role === "accepted") continue;
        const left = toX(x);
        const right = Math.max(left + (role === "error" ? 2 : 1), toX(x + long));
        paint.fillStyle = colour(role);
        if (high >= SOLID) {
          paint.fillRect(left, y + top * high, right - left, tall * high);
          continue;
        }
        paint.globalAlpha = role === "queued" ? FAINT : 1;
        paint.fillRect(left, y, right - left, Math.max(1, high));
        paint.globalAlpha = 1;
      }
    });
  });
}

function paintLabels(scene) {
  const { paint, colour, state, high, gutter, wide, toX } = scene;
  const broad = (text) => paint.measureText(text).width;
  let free = 0; // where the next label has room
  const chosen = scene.pinned ?? scene.hovered;
  seen(scene).forEach(({ band, id }, n) => {
    const y = TOP + (n + 0.55) * high;
    if (id !== null) {
      if (y < free) return;
      free = y + READABLE - 1e-6;
      paint.fillStyle = colour(id === chosen ? "focus" : "text");
      paint.fillText(shortened(state.lines.get(id)?.label ?? id, gutter - 12, broad), 4, y);
    } else if (high >= READABLE) {
      const heading = shortened(band[0], wide - 8, broad);
      const most = gutter + wide - broad(heading) - 4;
      const x = Math.max(gutter + 4, Math.min(toX(band[3]) + 4, most));
      clipped(paint, gutter, TOP, wide, scene.floor, () => {
        paint.fillStyle = colour("muted");
        paint.fillText(heading, x, y);
      });
    }
  });
}

function paintRate(scene) {
  const { paint, colour, state, range, gutter, wide, toX } = scene;
  const parts = state.rates.filter(([x, long]) => x + long >= range[0] && x <= range[1]);
  const top = nice(Math.max(1, ...parts.map(([, , rate]) => rate)));
  const floor = TOP - 8;
  const y = (rate) => floor - (rate / top) * (floor - 12);
  paint.fillStyle = colour("grid");
  for (const edge of [floor, y(top)]) paint.fillRect(gutter, Math.round(edge), wide, 1);
  clipped(paint, gutter, 0, wide, TOP, () => {
    const curve = [];
    for (const [x, long, rate] of parts) {
      const before = curve.at(-1);
      if (!before || x > before[0] + 1e-6) curve.push([before ? before[0] : x, 0], [x, 0]);
      curve.push([x, rate], [x + long, rate]);
    }
    if (!curve.length) return;
    paint.beginPath();
    for (const [x, rate] of [...curve, [curve.at(-1)[0], 0]]) paint.lineTo(toX(x), y(rate));
    paint.fillStyle = paint.strokeStyle = colour("rate");
    paint.globalAlpha = 0.15;
    paint.fill();
    paint.globalAlpha = 1;
    paint.stroke();
  });
  paint.fillStyle = colour("text");
  paint.font = BOLD;
  paint.fillText(`${state.tok_s.toFixed(1)} tokens/s`, 4, (floor + y(top)) / 2);
  paint.font = FONT;
  paint.fillStyle = colour("muted");
  paint.textAlign = "right";
  paint.fillText(String(top), gutter - 6, y(top));
  paint.fillText("0", gutter - 6, floor - 1);
  paint.textAlign = "left";
}

function paintAxis(scene) {
  const { paint, colour, range, width, wide, toX, floor } = scene;
  paint.textAlign = "center";
  paint.fillStyle = colour("muted");
  for (const [x, text] of ticks(...range, wide)) {
    const half = paint.measureText(text).width / 2;
    paint.fillText(text, Math.min(toX(x), width - half - 2), floor + AXIS / 2);
  }
  paint.textAlign = "left";
}

function paintChosen(scene) {
  const { paint, colour, state, first, fit, high, gutter, wide, width, floor, pointer } = scene;
  const at = state.rows.findIndex(({ id }) => id !== null && id === scene.pinned);
  if (at >= first && at < first + fit) {
    paint.strokeStyle = colour("focus");
    paint.strokeRect(0.5, TOP + (at - first) * high + 0.5, width - 1, Math.max(2, high - 1));
  }
  if (fit < state.rows.length) {
    const long = (fit * fit * high) / state.rows.length;
    paint.fillStyle = colour("grid");
    paint.fillRect(width - 5, TOP, 4, fit * high);
    paint.fillStyle = colour("muted");
    paint.fillRect(width - 5, TOP + (first / state.rows.length) * fit * high, 4, Math.max(8, long));
  }
  if (!pointer || pointer.x < gutter || pointer.x > gutter + wide) return;
  const pixel = (scene.range[1] - scene.range[0]) / wide;
  const digits = Math.min(3, Math.max(0, -Math.floor(Math.log10(pixel))));
  const text = `${scene.toSeconds(pointer.x).toFixed(digits)} s`;
  const broad = paint.measureText(text).width + 8;
  const left = Math.min(Math.max(0, pointer.x - broad / 2), width - broad);
  paint.fillStyle = colour("focus");
  paint.fillRect(Math.round(pointer.x), 8, 1, floor - 8);
  paint.fillRect(left, floor + 2, broad, AXIS - 4);
  paint.fillStyle = colour("ground");
  paint.fillText(text, left + 4, floor + AXIS / 2);
}

// How high the whole is.
export function heightOf(fit, high) {
  return TOP + fit * high + AXIS;
}

