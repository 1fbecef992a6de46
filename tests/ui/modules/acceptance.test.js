// The acceptance view in a document without a browser.

import { afterEach, describe, expect, it } from "vitest";

import view, { drawn, hintsOf, nextHint } from "../../../widgets/acceptance.js";

const BAR = { kind: "bar", x: 1, y: 2, width: 3, height: -4, role: "accepted", hint: "depth 1" };
const CHART = {
  name: "by_depth",
  aria: "Drafts right, by depth.",
  marks: [
    BAR,
    { ...BAR, role: "drafted" },
    { kind: "line", points: [[0, 1], [2, 3]], role: "rate", dashed: true },
    { kind: "dot", x: 5, y: 6, radius: 2, role: "focus", hint: "chosen" },
    { kind: "words", x: 7, y: 8, text: "<b>", anchor: "end", role: "text" },
  ],
};

class Model {
  constructor(state) {
    this.state = state;
    this.heard = new Map();
  }
  get(name) {
    return name === "state" ? this.state : undefined;
  }
  set() {}
  save_changes() {}
  on(name, act) {
    this.heard.set(name, act);
  }
  off(name) {
    this.heard.delete(name);
  }
}

const frame = () => new Promise((next) => requestAnimationFrame(() => setTimeout(next)));

afterEach(() => document.body.replaceChildren());

describe("marks", () => {
  it("become elements", () => {
    const [bar, , line, dot, words] = CHART.marks.map((mark) => drawn(document, mark));
    expect([bar.tagName, bar.getAttribute("height")]).toEqual(["rect", "0"]);
    expect(line.getAttribute("points")).toBe("0,1 2,3");
    expect(dot.getAttribute("r")).toBe("2");
    expect([words.textContent, words.children.length]).toEqual(["<b>", 0]);
  });

  it("are told once each, whatever shares their place", () => {
    expect(hintsOf(CHART)).toEqual(["depth 1", "chosen"]);
    expect([nextHint(-1, 1, 2), nextHint(1, 1, 2), nextHint(-1, -1, 2), nextHint(0, 1, 0)]).toEqual(
      [0, 0, 1, -1],
    );
  });
});

describe("the view", () => {
  const open = (state) => {
    const model = new Model(JSON.stringify(state));
    const end = view.render({ model, el: document.body });
    return { model, end };
  };

  it("draws each chart with its description, and follows", async () => {
    const { model, end } = open({ summary: "2 of 3", charts: [CHART] });
    const svg = document.querySelector("svg");
    expect(svg.getAttribute("aria-label")).toBe(CHART.aria);
    expect(svg.children.length).toBe(5);
    model.state = JSON.stringify({ summary: "3 of 3", charts: [{ ...CHART, marks: [BAR] }] });
    model.heard.get("change:state")();
    await frame();
    expect(document.querySelectorAll("svg").length).toBe(1);
    expect(document.querySelector("svg").children.length).toBe(1);
    expect(document.body.textContent).toContain("3 of 3");
    end();
    expect(model.heard.size).toBe(0);
  });

  it("tells what a mark stands for, by pointer and by key", () => {
    open({ summary: "", charts: [CHART] });
    const svg = document.querySelector("svg");
    const said = () => document.querySelector("[role=status]").textContent;
    svg.querySelector("rect").dispatchEvent(new Event("pointerover", { bubbles: true }));
    expect(said()).toBe("depth 1");
    svg.dispatchEvent(new Event("pointerleave"));
    expect(said()).toBe("");
    const press = (key) => svg.dispatchEvent(new KeyboardEvent("keydown", { key }));
    press("ArrowRight");
    press("ArrowRight");
    expect(said()).toBe("chosen");
    press("Escape");
    expect(said()).toBe("");
  });
});
