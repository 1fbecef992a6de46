// The acceptance view: draws the charts that Python laid out, and says what the marks stand for.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 320;
const HEIGHT = 190;

function element(document, name, attributes, role) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (role) made.style.setProperty("--mark", `var(--mtplx-${role})`);
  return made;
}

const DRAWN = {
  bar: (document, mark) =>
    element(
      document,
      "rect",
      {
        x: mark.x,
        y: mark.y,
        width: Math.max(mark.width, 0),
        height: Math.max(mark.height, 0),
        class: mark.hollow ? "hollow" : "filled",
      },
      mark.role,
    ),
  line: (document, mark) =>
    element(
      document,
      "polyline",
      {
        points: mark.points.map((point) => point.join(",")).join(" "),
        class: mark.dashed ? "line dashed" : "line",
      },
      mark.role,
    ),
  dot: (document, mark) =>
    element(document, "circle", { cx: mark.x, cy: mark.y, r: mark.radius, class: "filled" }, mark.role),
  words: (document, mark) => {
    const made = element(
      document,
      "text",
      { x: mark.x, y: mark.y, "text-anchor": mark.anchor, class: "filled" },
      mark.role,
    );
    made.textContent = mark.text;
    return made;
  },
};

/** The element of one mark; its hint goes along as `data-hint`. */
export function drawn(document, mark) {
  const made = DRAWN[mark.kind](document, mark);
  if (mark.hint) made.dataset.hint = mark.hint;
  return made;
}

/** Which hint comes `step` places after the one with number `at` (-1: none yet), round and round. */
export function nextHint(at, step, count) {
  if (!count) return -1;
  if (at < 0) return step > 0 ? 0 : count - 1;
  return (at + step + count) % count;
}

/** The different hints of a chart, in the order in which they are read. */
export function hintsOf(chart) {
  return [...new Set(chart.marks.map((mark) => mark.hint).filter(Boolean))];
}

function chartPanel(document, say, hold) {
  const svg = element(document, "svg", {
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
    role: "img",
    tabindex: "0",
  });
  let hints = [];
  let at = -1;
  let pinned = false;
  const show = (number) => {
    at = number;
    const hint = hints[number] ?? "";
    for (const mark of svg.querySelectorAll("[data-hint]")) {
      mark.classList.toggle("told", mark.dataset.hint === hint);
    }
    say(hint);
  };
  const under = (event) => hints.indexOf(event.target?.dataset?.hint ?? "");
  svg.addEventListener("pointerover", (event) => {
    if (!pinned) show(under(event));
  });
  svg.addEventListener("pointerleave", () => {
    if (!pinned) show(-1);
  });
  svg.addEventListener("click", (event) => {
    pinned = under(event) >= 0;
    hold(pinned);
    show(under(event));
  });
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (step === undefined && event.key !== "Escape") return;
    event.preventDefault();
    event.stopPropagation();
    pinned = step !== undefined;
    hold(pinned);
    show(pinned ? nextHint(at, step, hints.length) : -1);
  });
  const update = (chart) => {
    svg.setAttribute("aria-label", chart.aria);
    svg.dataset.chart = chart.name;
    svg.replaceChildren(...chart.marks.map((mark) => drawn(document, mark)));
    hints = hintsOf(chart);
    if (pinned) show(Math.min(at, hints.length - 1));
  };
  return { svg, update };
}

export function render({ model, el }) {
  const document = el.ownerDocument;
  const root = document.createElement("section");
  root.className = "mtplx mtplx-acceptance";
  root.setAttribute("aria-label", "Acceptance of drafts");
  const summary = document.createElement("p");
  summary.className = "summary";
  const hint = document.createElement("p");
  hint.className = "hint";
  hint.setAttribute("role", "status");
  const grid = document.createElement("div");
  grid.className = "grid";
  root.append(summary, grid, hint);
  el.append(root);

  const hold = (pinned) => {
    model.set("held", pinned);
    model.save_changes();
  };
  const panels = new Map();
  let frame = 0;
  const draw = () => {
    frame = 0;
    const state = JSON.parse(model.get("state"));
    summary.textContent = state.summary ?? "";
    for (const chart of state.charts ?? []) {
      if (!panels.has(chart.name)) {
        const panel = chartPanel(
          document,
          (text) => {
            hint.textContent = text;
          },
          hold,
        );
        panels.set(chart.name, panel);
        grid.append(panel.svg);
      }
      panels.get(chart.name).update(chart);
    }
  };
  const changed = () => {
    frame ||= requestAnimationFrame(draw);
  };
  model.on("change:state", changed);
  draw();
  return () => {
    model.off("change:state", changed);
    cancelAnimationFrame(frame);
  };
}

export default { render };
