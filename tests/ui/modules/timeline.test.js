// The timeline in a document without a browser: what is drawn, pinned, said and left.

import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";

import timeline from "../../../widgets/timeline.js";
import { Model, frames, nextFrame, page, painter, point, press, tidy, view } from "./stand_in.js";

const HEAD = {
  start: 0,
  end: 8,
  order: ["a", "b<x>"],
  bands: [["cohort-1: up to 2 rows in 2 slots", 1, 1, 3, 8]],
  rates: [[2, 0.25, 32]],
  summary: "2 requests, 9 tokens.",
  running: false,
  tok_s: 18.7,
};
const QUEUED = ["queued", 0, 0.69, 0.5, 0.12];
const LINES = [
  { id: "a", label: "a · slot 0", tells: ["queued 0.50 s", "ended: stop"], marks: [QUEUED] },
  { id: "b<x>", label: "b<x>", tells: ["still open"], marks: [["decode", 1, 0.6, 2, 0.3]] },
];
const WIDTH = 600;
const GUTTER = 104;
const HIGH = 26;
const TOP = 64;
const A = TOP + HIGH / 2; // rows: a, the heading of cohort-1, b<x>
const HEADING = A + HIGH;
const B = HEADING + HIGH;

let painted;
let observed;
let now;

const live = (head = {}, lines = LINES.slice(1)) => ({
  live: JSON.stringify({ head: { ...HEAD, ...head }, lines }),
});
const model = () => new Model({ settled: JSON.stringify(LINES.slice(0, 1)), ...live() });

function shown(made = model(), widget = timeline()) {
  const there = view(widget, made);
  const canvas = there.one("canvas");
  return {
    ...there,
    canvas,
    made,
    follow: there.one("button"),
    keyed: (key, more) => press(canvas, key, more),
    click: (x, y, more) => {
      point(canvas, "pointerdown", x, y, more);
      point(canvas, "pointerup", x, y, more);
    },
    tells: () => there.one(".tells").textContent,
    said: () => there.one(".said").textContent,
  };
}

const many = (made, count = 300) => {
  const order = Array.from({ length: count }, (_, n) => `r${n}`);
  painted.length = 0;
  made.send(live({ order, bands: [] }, []));
  return painted.filter(([name]) => name === "fillText").map(([, , text]) => text);
};

beforeEach(() => {
  observed = page();
  painted = painter();
  now = 0;
  vi.spyOn(performance, "now").mockImplementation(() => now);
  vi.spyOn(Element.prototype, "clientWidth", "get").mockReturnValue(WIDTH);
});
afterEach(tidy);

describe("what is drawn", () => {
  test("each mark, in the colour of its role and in its place", () => {
    shown();
    const boxes = painted.filter(([name]) => name === "fillRect");
    const [, , x, y, width, height] = boxes.find(([, colour]) => colour === "--mtplx-decode");
    const second = (WIDTH - GUTTER - 8) / 8;
    expect(x).toBeCloseTo(GUTTER + second);
    expect(width).toBeCloseTo(2 * second);
    expect(y).toBeCloseTo(TOP + 2.6 * HIGH);
    expect(height).toBeCloseTo(0.3 * HIGH);
    const roles = new Set(boxes.map(([, colour]) => colour));
    expect([...roles]).toEqual(expect.arrayContaining(["--mtplx-queued", "--mtplx-cohort"]));
    expect(painted.flat().every((n) => typeof n !== "number" || Number.isFinite(n))).toBe(true);
  });

  test("a cohort's heading has a row of its own", () => {
    shown();
    const at = painted.find(([name, , text]) => name === "fillText" && text === HEAD.bands[0][0]);
    expect(at[4]).toBeCloseTo(TOP + 1.55 * HIGH);
  });

  test("nothing that is out of sight", () => {
    const { made } = shown();
    painted.length = 0;
    const marks = Array.from({ length: 100 }, (_, n) => ["decode", n, 0.6, 0.5, 0.3]);
    made.send(live({ end: 100 }, [{ ...LINES[1], marks }]));
    const decoded = painted.filter(([, fill]) => fill === "--mtplx-decode");
    // The last sixty seconds are followed.
    expect(decoded.filter(([name]) => name === "fillRect").length).toBe(60);
  });

  test("nothing before the first message", () => {
    const made = model();
    made.values.live = "{}";
    const { keyed, click, tells } = shown(made);
    keyed("ArrowDown");
    click(200, A);
    expect([painted, tells()]).toEqual([[], ""]);
  });

  test("many requests scroll, with the last of them in sight", () => {
    const { made, canvas } = shown();
    const texts = many(made);
    expect(texts).toContain("r299");
    expect(texts).not.toContain("r0");
    expect(Number.parseFloat(canvas.style.height)).toBeLessThan(420);
  });

  test("a bar beside rows that scroll, and where they are", () => {
    const { made, keyed } = shown();
    const bars = () => painted.filter(([name, , x, , wide]) => name === "fillRect" && wide === 4);
    many(made, 44);
    expect(bars().map(([, , , y, , tall]) => [y, tall])).toEqual([
      [TOP, 330],
      [TOP + 165, 165],
    ]);
    painted.length = 0;
    keyed("PageUp");
    expect(bars()[1][3]).toBe(TOP);
    many(made, 3);
    expect(bars()).toEqual([]);
  });

  test("the time that is pointed at, on the axis", () => {
    const { canvas } = shown();
    point(canvas, "pointermove", GUTTER + (WIDTH - GUTTER - 8) / 2, A);
    expect(painted.some(([name, , text]) => name === "fillText" && text === "4.00 s")).toBe(true);
  });

  test("all of many requests, in less height, when all were asked for", () => {
    const { made, canvas, keyed } = shown();
    keyed("Home");
    const texts = many(made).filter((text) => text.startsWith("r"));
    expect(texts[0]).toBe("r0");
    expect(texts.length).toBeGreaterThan(15);
    expect(texts.length).toBeLessThan(27);
    expect(Number.parseFloat(canvas.style.height)).toBeLessThan(420);
  });

  test("again when the page's theme, the place or the screen changes", () => {
    shown();
    for (const one of [...observed]) {
      painted.length = 0;
      one.changed();
      nextFrame();
      expect(painted.length).toBeGreaterThan(0);
    }
  });
});

describe("what is told", () => {
  test("names and numbers, which are never markup", () => {
    const { el, keyed, tells } = shown();
    keyed("ArrowDown");
    keyed("ArrowDown");
    expect(el.querySelector("x")).toBe(null);
    expect(tells()).toBe("Pinned: b<x>: still open");
  });

  test("what the pointer is on", () => {
    const { canvas, tells } = shown();
    point(canvas, "pointermove", 200, A);
    expect(tells()).toBe("a · slot 0: queued 0.50 s · ended: stop");
    point(canvas, "pointermove", 200, HEADING);
    expect(tells()).toBe(HEAD.bands[0][0]);
    point(canvas, "pointermove", GUTTER + (2.1 * (WIDTH - GUTTER - 8)) / 8, 20);
    expect(tells()).toBe("32.0 tokens/s: of all requests, at 2.10 s");
    point(canvas, "pointerleave");
    expect(tells()).toBe(HEAD.summary);
  });

  test("aloud, once when something is pinned, and seldom otherwise", () => {
    const { made, keyed, said } = shown();
    expect(said()).toBe(HEAD.summary);
    made.send(live({ running: true, summary: "one" }));
    expect(said()).toBe(HEAD.summary);
    now = 15000;
    made.send(live({ running: true, summary: "two" }));
    made.send(live({ running: true, summary: "three" }));
    expect(said()).toBe("two");
    made.send(live({ running: false, summary: "the end" }));
    expect(said()).toBe("the end");
    keyed("ArrowDown");
    expect(said()).toBe("a · slot 0: queued 0.50 s; ended: stop");
  });

  test("the place of the words never shrinks below the pointer", () => {
    const { canvas, one } = shown();
    const high = vi.spyOn(Element.prototype, "scrollHeight", "get");
    high.mockReturnValue(51);
    point(canvas, "pointermove", 200, A);
    high.mockReturnValue(17);
    point(canvas, "pointerleave");
    expect(one(".tells").style.minHeight).toBe("51px");
  });
});

describe("pinning", () => {
  test("by a click, and off by another", () => {
    const { click, made, tells } = shown();
    click(200, B);
    expect([tells(), made.values.held]).toEqual(["Pinned: b<x>: still open", true]);
    click(200, B);
    expect([tells(), made.values.held]).toEqual([HEAD.summary, false]);
    click(200, B, { button: 2 });
    expect(made.values.held).toBe(false);
  });

  test("by keys, which skip headings and hold the view until Escape", () => {
    const { keyed, made, tells } = shown();
    keyed("ArrowUp");
    expect(tells()).toBe("Pinned: b<x>: still open");
    keyed("ArrowUp");
    expect(tells()).toBe("Pinned: a · slot 0: queued 0.50 s · ended: stop");
    keyed("ArrowUp");
    expect(tells()).toMatch(/^Pinned: a/);
    expect(made.values.held).toBe(true);
    keyed("Escape");
    expect([tells(), made.values.held]).toEqual([HEAD.summary, false]);
  });

  test("scrolls to what is pinned", () => {
    const { made, keyed, tells } = shown();
    many(made);
    keyed("PageUp");
    keyed("ArrowDown");
    keyed("ArrowUp");
    painted.length = 0;
    keyed("ArrowUp");
    expect(painted.some(([name, , text]) => name === "fillText" && text === "r254")).toBe(true);
    expect(tells()).toBe(HEAD.summary); // nothing but its name is known of it
  });

  test("ends when the request is forgotten", () => {
    const { keyed, made, tells } = shown();
    keyed("ArrowDown");
    made.send(live({ order: ["b<x>"], bands: [], summary: "1 request." }));
    expect([tells(), made.values.held]).toEqual(["1 request.", false]);
  });
});

describe("moving", () => {
  test("by keys in time, and back to what happens now", () => {
    const { follow, keyed, made } = shown();
    expect(follow.getAttribute("aria-pressed")).toBe("true");
    keyed("ArrowLeft");
    expect([follow.getAttribute("aria-pressed"), made.values.held]).toEqual(["false", true]);
    keyed("End");
    expect([follow.getAttribute("aria-pressed"), made.values.held]).toEqual(["true", false]);
  });

  test("by dragging, which pins nothing", () => {
    const { canvas, follow, tells } = shown();
    point(canvas, "pointerdown", 300, A);
    point(canvas, "pointermove", 302, A);
    expect(follow.getAttribute("aria-pressed")).toBe("true");
    point(canvas, "pointermove", 340, A);
    point(canvas, "pointerup", 340, A);
    expect(follow.getAttribute("aria-pressed")).toBe("false");
    expect(tells()).not.toMatch(/^Pinned/);
  });

  test("keys of the browser and of the page stay theirs", () => {
    const { keyed } = shown();
    expect(keyed("+", { ctrlKey: true }).defaultPrevented).toBe(false);
    expect(keyed("Tab").defaultPrevented).toBe(false);
    expect(keyed("+").defaultPrevented).toBe(true);
  });
});

describe("the wheel", () => {
  const turn = (canvas, more = {}) => {
    const event = new WheelEvent("wheel", { deltaY: -100, cancelable: true, ...more });
    canvas.dispatchEvent(event);
    nextFrame();
    return event.defaultPrevented;
  };

  test("is the page's until the chart was clicked, and after it was left", () => {
    const { canvas, click, keyed } = shown();
    expect([turn(canvas), turn(canvas, { ctrlKey: true })]).toEqual([false, false]);
    canvas.focus();
    expect(turn(canvas)).toBe(false);
    click(200, HEADING);
    expect(turn(canvas)).toBe(true);
    canvas.blur();
    expect(turn(canvas)).toBe(false);
    click(200, HEADING);
    keyed("Escape");
    expect(turn(canvas)).toBe(false);
  });

  test("moves in time when it is turned sideways", () => {
    const { canvas, click, follow } = shown();
    click(200, HEADING);
    turn(canvas, { deltaX: 60, deltaY: 2 });
    expect(follow.getAttribute("aria-pressed")).toBe("false");
  });
});

describe("several views of one model", () => {
  test("have a place each, and hold it together", () => {
    const made = model();
    const widget = timeline();
    const [one, other] = [shown(made, widget), shown(made, widget)];
    one.keyed("ArrowDown");
    other.keyed("ArrowDown");
    other.keyed("Escape");
    expect([one.tells().startsWith("Pinned"), other.tells()]).toEqual([true, HEAD.summary]);
    expect(made.values.held).toBe(true);
    one.end();
    expect(made.values.held).toBe(false);
    made.send(live({ summary: "3 requests." }));
    expect([one.tells().startsWith("Pinned"), other.tells()]).toEqual([true, "3 requests."]);
  });

  test("leave nothing behind", () => {
    const { end, made } = shown();
    made.send({});
    observed[0].changed();
    expect(frames()).toBe(1);
    end();
    expect([made.heard, observed, frames()]).toEqual([[], [], 0]);
  });
});
