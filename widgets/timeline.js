// The live timeline: draws what layout.py placed. Across are seconds, down are lines.

const TOP = 64; // the curve of the total rate
const AXIS = 20;
const ROOM = 330; // for the lines; where they need more, they scroll
const LINE = 22;
const NARROW = 14;
const SPAN = 120; // seconds that are followed
const LEAST_SPAN = 0.05;
const SAY_MS = 5000;
const KEYS = [
  ["queued", "queued"],
  ["prefill", "prefill"],
  ["decode", "decode"],
  ["accepted", "drafts accepted a cycle"],
];

// The first of 1, 2 and 5 times a power of ten that is no less than `least`.
export function nice(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((m) => m * power).find((m) => m >= least * (1 - 1e-9));
}

export function ticks(x0, x1, px) {
  const step = nice((x1 - x0) / Math.max(1, px / 90));
  const digits = Math.max(0, -Math.floor(Math.log10(step)));
  const found = [];
  for (let i = Math.ceil(x0 / step - 1e-9); i * step <= x1 + step * 1e-9; i++) {
    found.push([i * step, `${(i * step).toFixed(digits)} s`]);
  }
  return found;
}

// What the settled lines and a message say together: the head, and each line by its request.
export function read(settled, live) {
  const { head, lines } = JSON.parse(live);
  if (!head) return null;
  const byId = new Map();
  for (const line of [...settled, ...lines]) byId.set(line.id, line);
  return { ...head, lines: byId };
}

// Which seconds are seen: all, those that follow the end, or those that the reader chose.
export function seconds(camera, head) {
  const end = Math.max(head.end, head.start + LEAST_SPAN);
  if (camera.all) return [head.start, end];
  if (!camera.follow) return [camera.x0, camera.x0 + camera.span];
  const first = Math.max(head.start, end - camera.span);
  return [first, first + Math.min(camera.span, Math.max(end - first, LEAST_SPAN))];
}

export function zoomed(camera, head, by, at) {
  const [x0, x1] = seconds(camera, head);
  const span = Math.max(LEAST_SPAN, (x1 - x0) * by);
  const x = at === null ? (x0 + x1) / 2 : at;
  const follow = camera.follow && !camera.all && at === null;
  return { ...camera, all: false, follow, span, x0: x - (x - x0) * (span / (x1 - x0)) };
}

export function panned(camera, head, by) {
  const [x0, x1] = seconds(camera, head);
  return { ...camera, all: false, follow: false, span: x1 - x0, x0: x0 + by };
}

// How high a line is, and how many fit.
export function rows(count) {
  const high = Math.max(NARROW, Math.min(LINE, ROOM / Math.max(1, count)));
  return { high, fit: Math.max(1, Math.min(count, Math.floor(ROOM / high))) };
}

function element(tag, className, parent, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  parent?.appendChild(made);
  return made;
}

function render({ model, el }) {
  const root = element("div", "mtplx mtplx-timeline", el);
  root.dataset.lmSuppressShortcuts = "true"; // its keys are not JupyterLab's
  const bar = element("div", "bar", root);
  const button = (text, label, act) => {
    const made = element("button", "", bar, text);
    made.type = "button";
    made.setAttribute("aria-label", label);
    made.addEventListener("click", act);
    return made;
  };
  let state = null;
  let settled = { text: "", lines: [] };
  let camera = { all: false, follow: true, x0: 0, span: SPAN };
  let first = 0; // the topmost line
  let below = true; // whether the last lines are kept in sight
  let hovered = null;
  let pinned = null;
  let drag = null;
  let frame = 0;
  let said = -SAY_MS;

  const following = button("Follow", "follow what happens now", () => {
    camera = { all: false, follow: true, x0: 0, span: SPAN };
    below = true;
    changed();
  });
  const whole = button("All", "show all that is remembered", () => {
    camera = { ...camera, all: true, follow: false };
    changed();
  });
  button("+", "zoom in", () => zoom(0.5, null));
  button("\u2212", "zoom out", () => zoom(2, null));
  for (const [role, words] of KEYS) {
    const key = element("span", "key", bar);
    element("i", "", key).style.background = `var(--mtplx-${role})`;
    key.append(words);
  }
  const canvas = element("canvas", "", root);
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "img");
  const tells = element("p", "tells", root);
  // What is said aloud: the summary now and then, and a request once when it is pinned.
  const loud = element("p", "said", root);
  loud.setAttribute("aria-live", "polite");

  const gutter = () => (canvas.clientWidth < 520 ? 84 : 132);
  const wide = () => Math.max(10, canvas.clientWidth - gutter() - 8);
  const toX = (x, [x0, x1]) => gutter() + ((x - x0) / (x1 - x0)) * wide();
  const toSeconds = (px) => {
    const [x0, x1] = seconds(camera, state);
    return x0 + ((px - gutter()) / wide()) * (x1 - x0);
  };

  function told(id) {
    const line = state?.lines.get(id);
    return line ? `${line.label}: ${line.tells.join("; ")}` : "";
  }

  function pin(id) {
    pinned = id;
    if (id !== null) loud.textContent = told(id);
  }

  function changed() {
    const held = pinned !== null || (!camera.follow && !camera.all);
    if (model.get("held") !== held) {
      model.set("held", held);
      model.save_changes();
    }
    schedule();
  }

  function schedule() {
    if (!frame) frame = requestAnimationFrame(draw);
  }

  function zoom(by, at) {
    if (!state) return;
    camera = zoomed(camera, state, by, at);
    changed();
  }

  function scroll(by) {
    if (!state) return;
    const most = Math.max(0, state.order.length - rows(state.order.length).fit);
    first = Math.min(most, Math.max(0, first + by));
    below = first === most;
    schedule();
  }

  function update() {
    const text = model.get("settled");
    if (text !== settled.text) settled = { text, lines: JSON.parse(text) };
    state = read(settled.lines, model.get("live"));
    if (!state) return;
    if (pinned !== null && !state.order.includes(pinned)) {
      pin(null);
      changed();
    }
    if (below) first = Infinity;
    scroll(0);
    const now = performance.now();
    if (pinned === null && (now - said >= SAY_MS || !state.running)) {
      if (loud.textContent !== state.summary) loud.textContent = state.summary;
      said = now;
    }
  }

  function colours() {
    const style = getComputedStyle(root);
    const known = {};
    return (role) => (known[role] ??= style.getPropertyValue(`--mtplx-${role}`).trim());
  }

  function draw() {
    frame = 0;
    if (!state || !canvas.clientWidth) return;
    const { high, fit } = rows(state.order.length);
    const height = TOP + fit * high + AXIS;
    const width = canvas.clientWidth;
    const ratio = window.devicePixelRatio || 1;
    canvas.style.height = `${height}px`;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const paint = canvas.getContext("2d");
    paint.setTransform(ratio, 0, 0, ratio, 0, 0);
    const colour = colours();
    paint.font = "11px system-ui, sans-serif";
    paint.textBaseline = "middle";
    const range = seconds(camera, state);
    drawLines(paint, colour, range, high, fit);
    drawRate(paint, colour, range);
    drawAxis(paint, colour, range, height);
    canvas.setAttribute("aria-label", `Timeline. ${state.summary}`);
    following.setAttribute("aria-pressed", String(camera.follow));
    whole.setAttribute("aria-pressed", String(camera.all));
    const about = told(pinned ?? hovered);
    const words = about ? `${pinned === null ? "" : "Pinned: "}${about}` : state.summary;
    if (tells.textContent !== words) tells.textContent = words;
  }

  function inside(paint, y, height) {
    paint.save();
    paint.beginPath();
    paint.rect(gutter(), y, wide(), height);
    paint.clip();
  }

  function drawLines(paint, colour, range, high, fit) {
    const y = (line) => TOP + (line - first) * high;
    inside(paint, TOP, fit * high);
    paint.fillStyle = colour("cohort");
    for (const [, top, count, start, end] of state.bands) {
      if (top + count < first || top > first + fit) continue;
      const x = toX(start, range);
      paint.fillRect(x, y(top) + 1, Math.max(1, toX(end, range) - x), count * high - 2);
    }
    paint.fillStyle = colour("grid");
    for (const [x] of ticks(range[0], range[1], wide())) {
      paint.fillRect(toX(x, range), TOP, 1, fit * high);
    }
    for (let i = first; i < Math.min(first + fit, state.order.length); i++) {
      for (const [role, x, top, long, tall] of state.lines.get(state.order[i])?.marks ?? []) {
        if (x + long < range[0] || x > range[1]) continue;
        const left = toX(x, range);
        paint.fillStyle = colour(role);
        const right = Math.max(left + (role === "error" ? 2 : 1), toX(x + long, range));
        paint.fillRect(left, y(i + top), right - left, tall * high);
      }
    }
    paint.fillStyle = colour("muted");
    if (high >= LINE) {
      for (const [label, top, , start] of state.bands) {
        const x = Math.max(gutter() + 2, toX(start, range) + 2);
        if (top >= first) paint.fillText(label, x, y(top) + 6);
      }
    }
    paint.restore();
    paint.save();
    paint.beginPath();
    paint.rect(0, TOP, gutter() - 6, fit * high);
    paint.clip();
    for (let i = first; i < Math.min(first + fit, state.order.length); i++) {
      const id = state.order[i];
      paint.fillStyle = colour(id === (pinned ?? hovered) ? "focus" : "text");
      paint.fillText(state.lines.get(id)?.label ?? id, 4, y(i + 0.6));
    }
    paint.restore();
    const chosen = state.order.indexOf(pinned);
    if (chosen >= first && chosen < first + fit) {
      paint.strokeStyle = colour("focus");
      paint.strokeRect(0.5, y(chosen) + 0.5, canvas.clientWidth - 1, high - 1);
    }
  }

  function drawRate(paint, colour, range) {
    const seen = state.rates.filter(([x, long]) => x + long >= range[0] && x <= range[1]);
    const top = nice(Math.max(1, ...seen.map(([, , rate]) => rate)));
    const floor = TOP - 8;
    const y = (rate) => floor - (rate / top) * (floor - 10);
    inside(paint, 0, TOP);
    paint.beginPath();
    let end = null;
    for (const [x, long, rate] of seen) {
      if (end === null || x > end + 1e-6) {
        if (end !== null) paint.lineTo(toX(end, range), floor);
        paint.moveTo(toX(x, range), floor);
      }
      end = x + long;
      paint.lineTo(toX(x, range), y(rate));
      paint.lineTo(toX(end, range), y(rate));
    }
    if (end !== null) paint.lineTo(toX(end, range), floor);
    paint.strokeStyle = colour("rate");
    paint.stroke();
    paint.restore();
    paint.fillStyle = colour("text");
    paint.fillText(`${state.tok_s} tokens/s`, 4, 12);
    paint.fillStyle = colour("muted");
    paint.textAlign = "right";
    paint.fillText(String(top), gutter() - 6, 26);
    paint.fillText("0", gutter() - 6, floor);
    paint.textAlign = "left";
  }

  function drawAxis(paint, colour, range, height) {
    paint.textAlign = "center";
    paint.fillStyle = colour("muted");
    for (const [x, text] of ticks(range[0], range[1], wide())) {
      const left = toX(x, range);
      const half = paint.measureText(text).width / 2;
      paint.fillText(text, Math.min(left, canvas.clientWidth - half), height - AXIS / 2);
    }
    paint.textAlign = "left";
  }

  function under(event) {
    if (!state) return null;
    const { high } = rows(state.order.length);
    if (event.offsetY < TOP) return null;
    return state.order[first + Math.floor((event.offsetY - TOP) / high)] ?? null;
  }

  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture?.(event.pointerId);
    drag = { x: event.offsetX, y: event.offsetY, moved: false };
  });
  canvas.addEventListener("pointermove", (event) => {
    if (drag && state) {
      const dx = event.offsetX - drag.x;
      const lines = Math.round((drag.y - event.offsetY) / rows(state.order.length).high);
      if (Math.abs(dx) < 4 && lines === 0 && !drag.moved) return;
      if (dx) {
        const [x0, x1] = seconds(camera, state);
        camera = panned(camera, state, (-dx / wide()) * (x1 - x0));
      }
      if (lines) scroll(lines);
      drag = { x: event.offsetX, y: lines ? event.offsetY : drag.y, moved: true };
      changed();
    } else {
      hovered = under(event);
      schedule();
    }
  });
  canvas.addEventListener("pointerup", (event) => {
    if (drag && !drag.moved) {
      const id = under(event);
      pin(id === pinned ? null : id);
      changed();
    }
    drag = null;
  });
  canvas.addEventListener("pointercancel", () => (drag = null));
  canvas.addEventListener("pointerleave", () => {
    hovered = null;
    schedule();
  });
  canvas.addEventListener(
    "wheel",
    (event) => {
      // The page scrolls unless the chart was clicked: nobody is trapped in it.
      if (!state || (document.activeElement !== canvas && !event.ctrlKey)) return;
      event.preventDefault();
      if (event.shiftKey) scroll(Math.sign(event.deltaY || event.deltaX) * 3);
      else zoom(event.deltaY > 0 ? 1.25 : 0.8, toSeconds(event.offsetX));
    },
    { passive: false },
  );
  canvas.addEventListener("keydown", (event) => {
    if (!state || event.ctrlKey || event.metaKey || event.altKey) return;
    const [x0, x1] = seconds(camera, state);
    const step = (way) => (camera = panned(camera, state, (way * (x1 - x0)) / 10));
    const pick = (way) => {
      const at = pinned === null ? (way > 0 ? first - 1 : first + 1) : state.order.indexOf(pinned);
      const next = Math.min(state.order.length - 1, Math.max(0, at + way));
      pin(state.order[next] ?? null);
      const { fit } = rows(state.order.length);
      if (next < first) scroll(next - first);
      else if (next >= first + fit) scroll(next - first - fit + 1);
    };
    const acts = {
      "+": () => zoom(0.8, null),
      "=": () => zoom(0.8, null),
      "-": () => zoom(1.25, null),
      ArrowLeft: () => step(-1),
      ArrowRight: () => step(1),
      ArrowUp: () => pick(-1),
      ArrowDown: () => pick(1),
      Home: () => whole.click(),
      End: () => following.click(),
      Escape: () => pin(null),
    };
    const act = acts[event.key];
    if (!act) return;
    event.preventDefault();
    event.stopPropagation();
    act();
    changed();
  });

  model.on("change:live", update);
  model.on("change:settled", update);
  const sizes = new ResizeObserver(schedule);
  sizes.observe(canvas);
  const themes = new MutationObserver(schedule);
  const attributes = ["data-jp-theme-light", "class", "theme"];
  for (const page of [document.documentElement, document.body]) {
    themes.observe(page, { attributes: true, attributeFilter: attributes });
  }
  update();
  return () => {
    model.off("change:live", update);
    model.off("change:settled", update);
    sizes.disconnect();
    themes.disconnect();
    cancelAnimationFrame(frame);
  };
}

export default { render };
