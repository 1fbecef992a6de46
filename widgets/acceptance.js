// The acceptance view: draws the charts that Python laid out, and says what the marks stand for.

import { eachFrame, element, focusable, holds, rootOf, voice } from "./page.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 320;
const HEIGHT = 190;
const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };

function shape(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

const DRAWN = {
  bar: (mark) =>
    shape("rect", {
      x: mark.x,
      y: mark.y,
      width: Math.max(mark.width, 0),
      height: Math.max(mark.height, 0),
      class: mark.hollow ? "hollow" : "filled",
    }),
  line: (mark) =>
    shape("polyline", {
      points: mark.points.map((point) => point.join(",")).join(" "),
      class: mark.dashed ? "line dashed" : "line",
    }),
  dot: (mark) => shape("circle", { cx: mark.x, cy: mark.y, r: mark.radius, class: "filled" }),
  words: (mark) => {
    const place = { x: mark.x, y: mark.y, "text-anchor": mark.anchor };
    const made = shape("text", { ...place, class: "filled" });
    made.textContent = mark.text;
    return made;
  },
};

// The element of one mark; its hint goes along as `data-hint`.
export function drawn(mark) {
  const made = DRAWN[mark.kind](mark);
  made.style.setProperty("--mark", `var(--mtplx-${mark.role})`);
  if (mark.hint) made.dataset.hint = mark.hint;
  return made;
}

// Which hint comes `step` places after the one with number `at` (-1: none yet), round and round.
export function nextHint(at, step, count) {
  if (!count) return -1;
  if (at < 0) return step > 0 ? 0 : count - 1;
  return (at + step + count) % count;
}

// The different hints of a chart, in the order in which they are read.
export function hintsOf(chart) {
  return [...new Set(chart.marks.map((mark) => mark.hint).filter(Boolean))];
}

// A chart in the page: `heard` is told of the number of the hint that is pointed at, or chosen.
function panelOf(grid, heard) {
  const svg = shape("svg", {
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
    role: "application",
    "aria-roledescription": "chart",
  });
  grid.append(focusable(svg));
  let shown = "";
  const panel = { svg, hints: [], update, mark };
  const under = (event) => panel.hints.indexOf(event.target?.dataset?.hint ?? "");
  svg.addEventListener("pointerover", (event) => heard.pointed(panel, under(event)));
  svg.addEventListener("pointerleave", () => heard.pointed(panel, -1));
  svg.addEventListener("click", (event) => heard.chosen(panel, under(event)));
  svg.addEventListener("keydown", (event) => {
    const step = STEPS[event.key] ?? 0;
    if (!step && event.key !== "Escape") return;
    event.preventDefault();
    event.stopPropagation();
    heard.stepped(panel, step);
  });

  function update(chart) {
    const text = JSON.stringify(chart);
    if (text === shown) return;
    shown = text;
    svg.setAttribute("aria-label", chart.aria);
    svg.dataset.chart = chart.name;
    svg.replaceChildren(...chart.marks.map(drawn));
    panel.hints = hintsOf(chart);
  }

  function mark(number) {
    const hint = panel.hints[number];
    for (const part of svg.querySelectorAll("[data-hint]")) {
      part.classList.toggle("told", part.dataset.hint === hint);
    }
    return hint ?? "";
  }

  return panel;
}

function draw({ model, el }, hold) {
  const root = rootOf("section", "acceptance", el);
  root.setAttribute("aria-label", "Acceptance of drafts");
  const summary = element("p", "summary", root);
  const grid = element("div", "grid", root);
  const hint = element("p", "hint", root);
  const say = voice(root);

  const panels = new Map();
  let pointed = null;
  let pinned = null;

  function tell() {
    const at = pinned ?? pointed;
    let words = "";
    for (const panel of panels.values()) {
      const told = panel.mark(at?.panel === panel ? at.number : -1);
      words ||= told;
    }
    hint.textContent = words && pinned ? `Pinned: ${words}` : words;
    return words;
  }

  function pin(panel, number) {
    pinned = number < 0 ? null : { panel, number };
    hold(pinned !== null);
    say(tell());
  }

  const heard = {
    pointed(panel, number) {
      pointed = number < 0 ? null : { panel, number };
      tell();
    },
    chosen(panel, number) {
      const same = pinned?.panel === panel && pinned.number === number;
      pin(panel, same ? -1 : number);
    },
    stepped(panel, step) {
      const at = pinned?.panel === panel ? pinned.number : -1;
      pin(panel, step ? nextHint(at, step, panel.hints.length) : -1);
    },
  };

  function show() {
    const state = JSON.parse(model.get("state"));
    summary.textContent = state.summary ?? "";
    for (const chart of state.charts ?? []) {
      if (!panels.has(chart.name)) panels.set(chart.name, panelOf(grid, heard));
      panels.get(chart.name).update(chart);
    }
    if (pinned && pinned.number >= pinned.panel.hints.length) pin(pinned.panel, -1);
    tell();
  }

  const frame = eachFrame(show);
  model.on("change:state", frame.ask);
  show();
  return () => {
    model.off("change:state", frame.ask);
    frame.end();
    hold(false);
  };
}

export default () => {
  const holder = holds();
  return { render: (shown) => draw(shown, holder(shown.model)) };
};
