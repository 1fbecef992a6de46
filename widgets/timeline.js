// The live timeline: draws what layout.py placed. Across are seconds, down are rows.

import {
  buttonOf,
  cleared,
  coloursOf,
  eachFrame,
  element,
  focusable,
  holds,
  rootOf,
  turned,
  voice,
  watch,
} from "./page.js";
import { RIGHT, TOP, gutterOf, heightOf, paintTimeline } from "./timeline_paint.js";
import { SPAN, panned, rateAt, read, rows, scale, seconds, zoomed } from "./timeline_places.js";

const SAY_MS = 15000; // between two summaries that are said aloud
const ZOOM = 1.25;
const WHEEL = 0.002; // how much a pixel of the wheel zooms
const STILL_PX = 4; // a pointer that moves less was meant to stay
const KEYS = [
  ["queued", "queued"],
  ["prefill", "prefill"],
  ["decode", "decode"],
  ["accepted", "drafts accepted a cycle"],
  ["error", "failed or cancelled"],
];
const HELP =
  "Timeline of requests. Up and down choose a request, left and right move in time, " +
  "plus and minus zoom, End follows what happens now, Home shows all, Escape lets go.";
const FOLLOWING = { all: false, follow: true, x0: 0, span: SPAN };

function draw({ model, el }, hold) {
  const root = rootOf("section", "timeline", el);
  root.setAttribute("aria-label", "Timeline");
  const bar = element("div", "bar", root);
  const canvas = focusable(element("canvas", "", root));
  canvas.setAttribute("role", "application");
  canvas.setAttribute("aria-roledescription", "chart");
  canvas.setAttribute("aria-label", HELP);
  const tells = element("p", "tells", root);
  const say = voice(root);

  let state = null;
  let settled = { text: "", lines: [] };
  let camera = FOLLOWING;
  let gutter = 0;
  let first = 0; // the topmost row
  let below = true; // whether the last rows are kept in sight
  let pointer = null;
  let pinned = null;
  let drag = null;
  let taken = false; // whether the wheel is the chart's
  let said = -SAY_MS;
  let tallest = { width: 0, px: 0 };

  const button = (text, label, act) => {
    const made = buttonOf(text, bar, act);
    made.title = label;
    made.setAttribute("aria-label", label);
    return made;
  };
  const following = button("Follow", "follow what happens now", () => {
    below = true;
    look(FOLLOWING);
  });
  const whole = button("All", "show all that is remembered", () => {
    look({ ...camera, all: true, follow: false });
  });
  button("\u2212", "zoom out", () => zoom(ZOOM * ZOOM, null));
  button("+", "zoom in", () => zoom(1 / (ZOOM * ZOOM), null));
  const legend = element("span", "legend", bar);
  for (const [role, words] of KEYS) {
    const key = element("span", "key", legend);
    element("i", role, key).style.background = `var(--mtplx-${role})`;
    key.append(words);
  }

  const frame = eachFrame(paint);
  const wide = () => Math.max(10, canvas.clientWidth - gutter - RIGHT);
  const fitting = () => rows(state.rows.length, camera.all);
  const shownFirst = () => {
    const most = Math.max(0, state.rows.length - fitting().fit);
    return below ? most : Math.min(most, Math.max(0, first));
  };
  const told = (id) => state?.lines.get(id);

  function changed() {
    hold(pinned !== null || (!camera.follow && !camera.all));
    frame.ask();
  }

  function look(there) {
    camera = there;
    following.setAttribute("aria-pressed", String(camera.follow));
    whole.setAttribute("aria-pressed", String(camera.all));
    changed();
  }

  function pin(id) {
    pinned = id;
    const line = told(id);
    if (line) say(`${line.label}: ${line.tells.join("; ")}`);
    changed();
  }

  function zoom(by, at) {
    if (state) look(zoomed(camera, state, by, at));
  }

  function pan(px) {
    const [x0, x1] = seconds(camera, state);
    look(panned(camera, state, (px / wide()) * (x1 - x0)));
  }

  function scroll(by) {
    const most = Math.max(0, state.rows.length - fitting().fit);
    first = Math.min(most, Math.max(0, shownFirst() + by));
    below = first === most;
    frame.ask();
  }

  function update() {
    const text = model.get("settled");
    if (text !== settled.text) settled = { text, lines: JSON.parse(text) };
    state = read(settled.lines, model.get("live"));
    if (!state) return;
    gutter = 0;
    if (pinned !== null && !state.order.includes(pinned)) pin(null);
    const now = performance.now();
    if (pinned === null && (now - said >= SAY_MS || !state.running)) {
      say(state.summary);
      said = now;
    }
    frame.ask();
  }

  function rowAt(y) {
    const { high, fit } = fitting();
    const row = Math.floor((y - TOP) / high);
    return y < TOP || row >= fit ? null : (state.rows[Math.floor(shownFirst() + row)] ?? null);
  }

  // What is told below the chart: of a request, a cohort, a time, or of all.
  function words() {
    const row = pointer && !drag?.moved ? rowAt(pointer.y) : null;
    const about = told(pinned ?? row?.id);
    const mark = pinned === null ? "" : "Pinned: ";
    if (about) return [mark + about.label, about.tells.join(" · ")];
    if (row?.band) return ["", row.band[0]];
    if (!pointer || pointer.y >= TOP || pointer.x < gutter) return ["", state.summary];
    const at = scale(seconds(camera, state), gutter, wide()).toSeconds(pointer.x);
    const rate = rateAt(state.rates, at).toFixed(1);
    return [`${rate} tokens/s`, `of all requests, at ${at.toFixed(2)} s`];
  }

  function tell() {
    const [name, facts] = words();
    const about = name ? `${name}: ${facts}` : facts;
    if (tells.textContent === about) return;
    tells.replaceChildren();
    if (name) element("b", "", tells, `${name}: `);
    tells.append(facts);
    // The place never shrinks under the pointer: the page below would jump.
    const width = root.clientWidth;
    tallest = { width, px: Math.max(width === tallest.width ? tallest.px : 0, tells.scrollHeight) };
    tells.style.minHeight = `${tallest.px}px`;
  }

  function paint() {
    const width = canvas.clientWidth;
    if (!state || !width) return;
    const { high, fit } = fitting();
    first = shownFirst();
    const height = heightOf(fit, high);
    canvas.style.height = `${height}px`;
    const pen = cleared(canvas, width, height);
    if (!pen) return;
    gutter ||= gutterOf(pen, width, state.lines.values());
    const hovered = pointer && !drag?.moved ? (rowAt(pointer.y)?.id ?? null) : null;
    const range = seconds(camera, state);
    const scene = { state, range, width, gutter, first, high, fit, pinned, hovered, pointer };
    paintTimeline(pen, coloursOf(root), scene);
    tell();
  }

  // Brings a request into sight: its row, whatever the time.
  function choose(way) {
    const { fit } = fitting();
    const from = Math.ceil(shownFirst());
    const ids = state.rows.map(({ id }) => id);
    const ends = way > 0 ? from - 1 : Math.min(ids.length, from + fit);
    let at = pinned === null ? ends : ids.indexOf(pinned);
    do at += way;
    while (at >= 0 && at < ids.length && ids[at] === null);
    if (at < 0 || at >= ids.length) return;
    pin(ids[at]);
    if (at < from) scroll(at - from);
    else if (at >= from + fit) scroll(at - from - fit + 1);
  }

  const doneBy = {
    "+": () => zoom(1 / ZOOM, null),
    "=": () => zoom(1 / ZOOM, null),
    "-": () => zoom(ZOOM, null),
    ArrowLeft: () => pan(-wide() / 10),
    ArrowRight: () => pan(wide() / 10),
    ArrowUp: () => choose(-1),
    ArrowDown: () => choose(1),
    PageUp: () => scroll(-fitting().fit),
    PageDown: () => scroll(fitting().fit),
    Home: () => whole.click(),
    End: () => following.click(),
    Escape: () => {
      if (pinned === null) taken = false;
      pin(null);
    },
  };
  const heard = {
    pointerdown(event) {
      if (event.button !== 0) return;
      taken = true;
      canvas.setPointerCapture?.(event.pointerId);
      drag = { x: event.offsetX, y: event.offsetY, moved: false };
    },
    pointermove(event) {
      pointer = { x: event.offsetX, y: event.offsetY };
      frame.ask();
      if (!drag || !state) return;
      const dx = pointer.x - drag.x;
      const lines = Math.trunc((drag.y - pointer.y) / Math.max(STILL_PX, fitting().high));
      if (Math.abs(dx) < STILL_PX && lines === 0 && !drag.moved) return;
      if (dx) pan(-dx);
      if (lines) scroll(lines);
      drag = { x: pointer.x, y: lines ? pointer.y : drag.y, moved: true };
    },
    pointerup(event) {
      const still = drag && !drag.moved && state;
      drag = null;
      if (!still) return;
      const id = rowAt(event.offsetY)?.id ?? null;
      pin(id === pinned ? null : id);
    },
    pointercancel() {
      drag = null;
    },
    pointerleave() {
      pointer = null;
      frame.ask();
    },
    blur() {
      taken = false;
    },
    wheel(event) {
      // The page scrolls unless the chart was clicked: nobody is trapped in it.
      if (!state || !taken) return;
      event.preventDefault();
      const { x, y } = turned(event);
      if (event.shiftKey) scroll(Math.sign(y || x) * 3);
      else if (Math.abs(x) > Math.abs(y)) pan(x);
      else {
        const at = scale(seconds(camera, state), gutter, wide()).toSeconds(event.offsetX);
        zoom(Math.exp(y * WHEEL), at);
      }
    },
    keydown(event) {
      const act = doneBy[event.key];
      if (!act || !state || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      event.stopPropagation();
      act();
    },
  };
  for (const [name, act] of Object.entries(heard)) {
    canvas.addEventListener(name, act, { passive: false });
  }

  model.on("change:live", update);
  model.on("change:settled", update);
  const unwatch = watch(canvas, frame.ask);
  look(camera);
  update();
  return () => {
    model.off("change:live", update);
    model.off("change:settled", update);
    unwatch();
    frame.end();
    hold(false);
  };
}

export default () => {
  const holder = holds();
  return { render: (shown) => draw(shown, holder(shown.model)) };
};
