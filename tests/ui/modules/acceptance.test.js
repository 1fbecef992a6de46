// The acceptance view in a document without a browser: what is drawn, told, pinned and left.

import { afterEach, beforeEach, describe, expect, it } from "vitest";

import acceptance, { drawn, hintsOf, nextHint } from "../../../widgets/acceptance.js";
import { Model, frames, page, point, press, tidy, view } from "./stand_in.js";

const CHART = {
  name: "by_depth",
  title: "Drafts right, by depth",
  aria: "Drafts right, by depth. depth 1: 3 of 4 right (75%).",
  marks: [
    { kind: "words", x: 4, y: 13, text: "<b>Title</b>", anchor: "start", role: "text" },
    { kind: "line", points: [[38, 160], [312, 160]], role: "grid", dashed: true },
    { kind: "bar", x: 40, y: 60, width: 20, height: 100, role: "muted", hollow: true, hint: "one" },
    { kind: "bar", x: 40, y: 85, width: 20, height: 75, role: "accepted", hint: "one" },
    { kind: "dot", x: 50, y: 85, radius: 3, role: "decode", hint: "two" },
  ],
};
const OTHER = { ...CHART, name: "costs", marks: [{ ...CHART.marks[4], hint: "three" }] };

const text = (...charts) => ({
  state: JSON.stringify({ summary: `${charts.length} charts`, charts }),
});

function shown(made = new Model(text(CHART, OTHER)), widget = acceptance()) {
  const there = view(widget, made);
  return {
    ...there,
    made,
    svgs: [...there.el.querySelectorAll("svg")],
    hint: () => there.one(".hint").textContent,
    said: () => there.one(".said").textContent,
    told: () => there.el.querySelectorAll(".told").length,
  };
}

beforeEach(page);
afterEach(tidy);

describe("a mark", () => {
  it("becomes one element with its place and colour, and text is text", () => {
    const [words, line, hollow, filled, dot] = CHART.marks.map(drawn);
    expect([words.textContent, words.children.length]).toEqual(["<b>Title</b>", 0]);
    expect(line.getAttribute("points")).toBe("38,160 312,160");
    expect(line.getAttribute("class")).toBe("line dashed");
    expect([hollow, filled].map((bar) => bar.getAttribute("class"))).toEqual(["hollow", "filled"]);
    expect(filled.getAttribute("height")).toBe("75");
    expect(filled.style.getPropertyValue("--mark")).toBe("var(--mtplx-accepted)");
    expect([dot.getAttribute("r"), dot.dataset.hint]).toEqual(["3", "two"]);
  });

  it("is told once, whatever shares its place", () => {
    expect(hintsOf(CHART)).toEqual(["one", "two"]);
    expect([nextHint(-1, 1, 2), nextHint(1, 1, 2), nextHint(-1, -1, 2), nextHint(0, 1, 0)]).toEqual(
      [0, 0, 1, -1],
    );
  });
});

describe("a message", () => {
  it("keeps the elements that have the focus, and what has not changed", () => {
    const { made, one, svgs } = shown();
    const kept = svgs[1].firstChild;
    made.send(text({ ...CHART, marks: CHART.marks.slice(0, 2) }, OTHER));
    expect([...document.querySelectorAll("svg")]).toEqual(svgs);
    expect(svgs[0].children.length).toBe(2);
    expect(svgs[1].firstChild).toBe(kept);
    expect(one(".summary").textContent).toBe("2 charts");
  });

  it("keeps what is pointed at, and says nothing aloud", () => {
    const { made, svgs, hint, said, told } = shown();
    point(svgs[0].querySelector("circle"), "pointerover");
    const marks = [...CHART.marks.slice(0, 4), { ...CHART.marks[4], hint: "two more" }];
    made.send(text({ ...CHART, marks }, OTHER));
    expect([hint(), told(), said()]).toEqual(["two more", 1, ""]);
  });

  it("lets go of a pin whose mark is gone", () => {
    const { made, svgs, hint } = shown();
    press(svgs[0], "ArrowLeft");
    made.send(text({ ...CHART, marks: CHART.marks.slice(0, 4) }, OTHER));
    expect([hint(), made.values.held]).toEqual(["", false]);
  });

  it("may have nothing in it yet", () => {
    expect(shown(new Model({ state: "{}" })).svgs).toEqual([]);
  });
});

describe("what a mark stands for", () => {
  it("is told while it is pointed at", () => {
    const { svgs, hint } = shown();
    point(svgs[0].querySelector("rect"), "pointerover");
    expect(hint()).toBe("one");
    point(svgs[0], "pointerleave");
    expect(hint()).toBe("");
  });

  it("is pinned by a click, whatever else is pointed at, and let go by another", () => {
    const { made, svgs, hint } = shown();
    const dot = svgs[0].querySelector("circle");
    point(dot, "click");
    point(svgs[1].querySelector("circle"), "pointerover");
    expect([hint(), made.values.held]).toEqual(["Pinned: two", true]);
    point(svgs[1], "pointerleave");
    expect(hint()).toBe("Pinned: two");
    point(dot, "click");
    expect([hint(), made.values.held]).toEqual(["", false]);
  });

  it("is pinned in one chart at a time", () => {
    const { made, svgs, hint, told } = shown();
    press(svgs[0], "ArrowRight");
    press(svgs[1], "ArrowRight");
    expect([hint(), told()]).toEqual(["Pinned: three", 1]);
    press(svgs[0], "Escape");
    expect([hint(), made.values.held]).toEqual(["", false]);
  });

  it("is walked through by keys, and said aloud", () => {
    const { svgs, hint, said, told } = shown();
    press(svgs[0], "ArrowRight");
    expect([hint(), told()]).toEqual(["Pinned: one", 2]);
    press(svgs[0], "ArrowRight");
    expect([hint(), said()]).toEqual(["Pinned: two", "two"]);
    expect(press(svgs[0], "Tab").defaultPrevented).toBe(false);
  });
});

describe("views", () => {
  it("hold their model together, and leave nothing behind", () => {
    const made = new Model(text(CHART));
    const widget = acceptance();
    const [one, other] = [shown(made, widget), shown(made, widget)];
    press(one.svgs[0], "ArrowRight");
    press(other.svgs[0], "Escape");
    expect(made.values.held).toBe(true);
    one.end();
    other.end();
    expect([made.values.held, made.heard, frames()]).toEqual([false, [], 0]);
  });
});
