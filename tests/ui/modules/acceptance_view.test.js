// The acceptance view in a document without a browser: what is pinned, kept and left.

import { afterEach, beforeEach, expect, test, vi } from "vitest";

import { drawn, render } from "../../../widgets/acceptance.js";

const CHART = {
  name: "by_depth",
  title: "Drafts right, by depth",
  aria: "Drafts right, by depth. depth 1: 3 of 4 right (75%).",
  marks: [
    { kind: "words", x: 4, y: 13, text: "<b>Title</b>", anchor: "start", role: "text" },
    { kind: "line", points: [[38, 160], [312, 160]], role: "grid", dashed: true },
    { kind: "bar", x: 40, y: 60, width: 20, height: 100, role: "muted", hollow: true, hint: "one" },
    { kind: "bar", x: 40, y: 85, width: 20, height: 75, role: "accepted", hollow: false, hint: "one" },
    { kind: "dot", x: 50, y: 85, radius: 3, role: "decode", hint: "two" },
  ],
};

function model(state) {
  const listeners = {};
  return {
    values: { state: JSON.stringify(state), held: false },
    get(name) {
      return this.values[name];
    },
    set(name, value) {
      this.values[name] = value;
    },
    save_changes: vi.fn(),
    on(name, call) {
      listeners[name] = call;
    },
    off(name) {
      delete listeners[name];
    },
    send(state) {
      this.values.state = JSON.stringify(state);
      listeners["change:state"]?.();
    },
    listeners,
  };
}

beforeEach(() => {
  vi.stubGlobal("requestAnimationFrame", (call) => {
    call();
    return 0;
  });
  vi.stubGlobal("cancelAnimationFrame", () => {});
});
afterEach(() => vi.unstubAllGlobals());

function shown(state = { summary: "4 drafts", charts: [CHART] }) {
  const el = document.createElement("div");
  const held = model(state);
  const leave = render({ model: held, el });
  return { el, held, leave, svg: el.querySelector("svg"), hint: el.querySelector(".hint") };
}

const press = (target, key) =>
  target.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));

test("each mark becomes one element with its place and colour", () => {
  const [words, line, hollow, filled, dot] = CHART.marks.map((mark) => drawn(document, mark));
  expect(words.textContent).toBe("<b>Title</b>");
  expect(words.children.length).toBe(0);
  expect(line.getAttribute("points")).toBe("38,160 312,160");
  expect(line.getAttribute("class")).toBe("line dashed");
  expect([hollow, filled].map((bar) => bar.getAttribute("class"))).toEqual(["hollow", "filled"]);
  expect(filled.getAttribute("height")).toBe("75");
  expect(filled.style.getPropertyValue("--mark")).toBe("var(--mtplx-accepted)");
  expect([dot.getAttribute("r"), dot.dataset.hint]).toEqual(["3", "two"]);
});

test("an update keeps the elements that have the focus", () => {
  const { el, held, svg } = shown();
  held.send({ summary: "5 drafts", charts: [{ ...CHART, marks: CHART.marks.slice(0, 2) }] });
  expect(el.querySelector(".summary").textContent).toBe("5 drafts");
  expect(el.querySelectorAll("svg").length).toBe(1);
  expect(el.querySelector("svg")).toBe(svg);
  expect(svg.children.length).toBe(2);
});

test("a click pins what a mark stands for, and holds the view", () => {
  const { held, svg, hint } = shown();
  svg.querySelector("circle").dispatchEvent(new Event("click", { bubbles: true }));
  expect(hint.textContent).toBe("two");
  expect(held.values.held).toBe(true);
  svg.dispatchEvent(new Event("pointerleave"));
  expect(hint.textContent).toBe("two");
  svg.dispatchEvent(new Event("click", { bubbles: true }));
  expect([hint.textContent, held.values.held]).toEqual(["", false]);
});

test("keys lead through the hints, and Escape leaves them", () => {
  const { held, svg, hint } = shown();
  press(svg, "ArrowRight");
  expect(hint.textContent).toBe("one");
  press(svg, "ArrowRight");
  expect(hint.textContent).toBe("two");
  expect(svg.querySelectorAll(".told").length).toBe(1);
  press(svg, "Escape");
  expect([hint.textContent, held.values.held]).toEqual(["", false]);
});

test("leaving stops listening", () => {
  const { held, leave } = shown();
  leave();
  expect(held.listeners).toEqual({});
});

test("nothing yet is no error", () => {
  expect(shown({}).el.querySelectorAll("svg").length).toBe(0);
});
