// The inspector: one request's text with each token marked by how it came, and cycle by cycle.

const TAGS = { accepted: "u", correction: "i", bonus: "b" };
const DEEPEST = 5;

/** The name of a token's ground among the palette's tints. */
export function ground(kind, depth) {
  return kind === "accepted" ? `accepted-${Math.min(Math.max(depth, 1), DEEPEST)}` : kind;
}

/** A cycle in words. */
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

/** The bars of all cycles in a strip: how high each is, and how much of it was accepted, 0 to 1. */
export function bars(cycles) {
  const most = Math.max(1, ...cycles.map((cycle) => Math.max(cycle[2] + 1, cycle[4])));
  return cycles.map((cycle) => ({
    drafted: cycle[2] / most,
    tokens: cycle[4] / most,
    accepted: cycle[3] / most,
    last: cycle[5],
  }));
}

/** Which of `count` cycles a key leads to from the one at `at`; -1 for a key that leads nowhere. */
export function moved(key, at, count) {
  const steps = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 10, PageDown: -10 };
  if (key === "Home") return 0;
  if (key === "End") return count - 1;
  if (!(key in steps) || !count) return -1;
  return Math.min(Math.max(at + steps[key], 0), count - 1);
}

function span(document, piece) {
  const [text, kind, depth, cycle] = piece;
  const made = document.createElement(TAGS[kind] ?? "span");
  made.textContent = text;
  made.dataset.cycle = cycle;
  made.dataset.kind = kind;
  made.style.setProperty("--ground", `var(--mtplx-tint-${ground(kind, depth)})`);
  return made;
}

function add(document, parent, name, className, text = "") {
  const made = document.createElement(name);
  made.className = className;
  made.textContent = text;
  parent.append(made);
  return made;
}

function drawStrip(canvas, cycles, chosen) {
  const style = getComputedStyle(canvas);
  const colour = (role) => style.getPropertyValue(`--mtplx-${role}`);
  const scale = window.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  canvas.width = width * scale;
  canvas.height = height * scale;
  const pen = canvas.getContext("2d");
  if (!pen) return;
  pen.scale(scale, scale);
  const step = width / Math.max(cycles.length, 1);
  const broad = Math.max(Math.min(step * 0.8, 14), 0.5);
  bars(cycles).forEach((bar, n) => {
    const x = n * step;
    if (n === chosen) {
      pen.fillStyle = colour("grid");
      pen.fillRect(x - 1, 0, broad + 2, height);
    }
    pen.fillStyle = colour(bar.last);
    pen.fillRect(x, height * (1 - bar.tokens), broad, height * (bar.tokens - bar.accepted));
    pen.fillStyle = colour("accepted");
    pen.fillRect(x, height * (1 - bar.accepted), broad, height * bar.accepted);
    if (bar.drafted > 0) {
      pen.fillStyle = colour("text");
      pen.fillRect(x, height * (1 - bar.drafted), broad, 1);
    }
  });
}

export function render({ model, el }) {
  const document = el.ownerDocument;
  const root = add(document, el, "section", "mtplx mtplx-inspector");
  root.setAttribute("aria-label", "How the tokens of a request came");
  const summary = add(document, root, "p", "summary");
  const legend = add(document, root, "p", "legend");
  const text = add(document, root, "pre", "text");
  text.tabIndex = 0;
  text.setAttribute("aria-label", "The text of the request");
  const strip = add(document, root, "canvas", "strip");
  strip.tabIndex = 0;
  strip.setAttribute("role", "slider");
  strip.setAttribute("aria-label", "Cycles");
  const detail = add(document, root, "p", "hint");
  detail.setAttribute("role", "status");
  const copy = add(document, root, "button", "copy", "Copy the text");
  copy.type = "button";

  let state = { pieces: [], cycles: [], counts: {}, meaning: {}, summary: "", request: "" };
  let shown = "";
  let chosen = -1;
  let frame = 0;

  const choose = (number) => {
    chosen = number;
    const cycle = state.cycles[number];
    detail.textContent = cycle ? told(cycle, state.pieces) : "";
    for (const old of text.querySelectorAll(".chosen")) old.classList.remove("chosen");
    if (cycle) {
      for (const part of text.querySelectorAll(`[data-cycle="${cycle[0]}"]`)) {
        part.classList.add("chosen");
      }
      strip.setAttribute("aria-valuenow", cycle[0]);
      strip.setAttribute("aria-valuetext", detail.textContent);
    }
    drawStrip(strip, state.cycles, chosen);
  };

  const pick = (number) => {
    choose(number);
    model.set("held", chosen >= 0);
    model.save_changes();
  };

  const draw = () => {
    frame = 0;
    const before = state.cycles[chosen]?.[0];
    state = { ...state, ...JSON.parse(model.get("state")) };
    summary.textContent = state.summary;
    const known = shown === state.request ? text.childElementCount : 0;
    const fresh = state.pieces.slice(known).map((piece) => span(document, piece));
    if (known && known <= state.pieces.length) text.append(...fresh);
    else text.replaceChildren(...state.pieces.map((piece) => span(document, piece)));
    if (shown !== state.request) chosen = -1;
    shown = state.request;
    legend.replaceChildren(
      ...Object.entries(state.counts).map(([kind, count]) => {
        const key = span(document, [`${state.meaning[kind]}: ${count}`, kind, 1, 0]);
        key.classList.add("key");
        return key;
      }),
    );
    strip.setAttribute("aria-valuemin", state.cycles[0]?.[0] ?? 0);
    strip.setAttribute("aria-valuemax", state.cycles.at(-1)?.[0] ?? 0);
    choose(state.cycles.findIndex((cycle) => cycle[0] === before));
  };
  const changed = () => {
    frame ||= requestAnimationFrame(draw);
  };

  text.addEventListener("click", (event) => {
    const number = Number(event.target.dataset?.cycle ?? 0);
    pick(state.cycles.findIndex((cycle) => cycle[0] === number));
  });
  strip.addEventListener("click", (event) => {
    const part = event.offsetX / Math.max(strip.clientWidth, 1);
    pick(Math.min(Math.floor(part * state.cycles.length), state.cycles.length - 1));
  });
  strip.addEventListener("keydown", (event) => {
    const next = moved(event.key, chosen, state.cycles.length);
    if (next < 0) return;
    event.preventDefault();
    event.stopPropagation();
    pick(next);
  });
  copy.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text.textContent);
      detail.textContent = "Copied.";
    } catch {
      // No access to the clipboard: the text is selected, for the keys that copy.
      getSelection()?.selectAllChildren(text);
      detail.textContent = "Selected; copy it with your keys.";
    }
  });
  const resized = new ResizeObserver(() => drawStrip(strip, state.cycles, chosen));
  resized.observe(strip);
  const themed = new MutationObserver(changed);
  themed.observe(document.body, { attributes: true });
  model.on("change:state", changed);
  draw();
  return () => {
    model.off("change:state", changed);
    resized.disconnect();
    themed.disconnect();
    cancelAnimationFrame(frame);
  };
}

export default { render };
