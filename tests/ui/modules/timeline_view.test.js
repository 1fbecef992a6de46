// The timeline in a document without a browser: what is drawn, pinned, said and left.

import { afterEach, beforeEach, expect, test, vi } from "vitest";

import view from "../../../widgets/timeline.js";

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
const LINES = [
  { id: "a", label: "a · slot 0", tells: ["queued 0.50 s", "ended: stop"], marks: [["queued", 0, 0.69, 0.5, 0.12]] },
  { id: "b<x>", label: "b<x>", tells: ["still open"], marks: [["decode", 1, 0.6, 2, 0.3]] },
];
const WIDTH = 600;

let painted;
let drawing;

function model() {
  const listeners = {};
  return {
    values: {
      settled: JSON.stringify(LINES.slice(0, 1)),
      live: JSON.stringify({ head: HEAD, lines: LINES.slice(1) }),
      held: false,
    },
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
    send(head, lines = LINES.slice(1)) {
      this.values.live = JSON.stringify({ head: { ...HEAD, ...head }, lines });
      listeners["change:live"]();
      flush();
    },
    listeners,
  };
}

function flush() {
  const next = drawing;
  drawing = null;
  next?.();
}

function shown(made = model()) {
  const el = document.createElement("div");
  document.body.appendChild(el);
  const end = view.render({ model: made, el });
  flush();
  const canvas = el.querySelector("canvas");
  const press = (key) => {
    canvas.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
    flush();
  };
  return { el, end, canvas, press, made, tells: () => el.querySelector(".tells").textContent };
}

beforeEach(() => {
  painted = [];
  const style = {};
  const paint = new Proxy(style, {
    get: (known, name) => {
      if (name in known) return known[name];
      if (name === "measureText") return () => ({ width: 30 });
      return (...given) => painted.push([name, known.fillStyle, ...given]);
    },
    set: (known, name, value) => {
      known[name] = value;
      return true;
    },
  });
  vi.spyOn(HTMLCanvasElement.prototype, "getContext").mockReturnValue(paint);
  vi.spyOn(Element.prototype, "clientWidth", "get").mockReturnValue(WIDTH);
  vi.stubGlobal("getComputedStyle", () => ({ getPropertyValue: (name) => ` ${name}` }));
  vi.stubGlobal("requestAnimationFrame", (call) => {
    drawing = call;
    return 1;
  });
  vi.stubGlobal("cancelAnimationFrame", () => (drawing = null));
  vi.stubGlobal("ResizeObserver", class { observe() {} disconnect() {} });
});

afterEach(() => {
  vi.restoreAllMocks();
  vi.unstubAllGlobals();
  document.body.replaceChildren();
});

test("each mark is painted in the colour of its role, and in its place", () => {
  shown();
  const boxes = painted.filter(([name]) => name === "fillRect");
  const [, , x, y, width, height] = boxes.find(([, colour]) => colour === "--mtplx-decode");
  const second = (WIDTH - 132 - 8) / 8;
  expect(x).toBeCloseTo(132 + second);
  expect(width).toBeCloseTo(2 * second);
  expect(y).toBeCloseTo(64 + 1.6 * 22);
  expect(height).toBeCloseTo(0.3 * 22);
  expect(boxes.some(([, colour]) => colour === "--mtplx-queued")).toBe(true);
  expect(boxes.some(([, colour]) => colour === "--mtplx-cohort")).toBe(true);
  expect(painted.flat().every((n) => typeof n !== "number" || Number.isFinite(n))).toBe(true);
});

test("names and numbers are text, never markup", () => {
  const { el, press } = shown();
  press("ArrowDown");
  press("ArrowDown");
  expect(el.querySelector("x")).toBe(null);
  expect(el.querySelector(".tells").textContent).toBe("Pinned: b<x>: still open");
});

test("keys pin a request, which is said aloud once, and hold the view", () => {
  const { el, press, made, tells } = shown();
  expect(tells()).toBe(HEAD.summary);
  press("ArrowDown");
  expect(tells()).toBe("Pinned: a · slot 0: queued 0.50 s; ended: stop");
  expect(el.querySelector(".said").textContent).toBe("a · slot 0: queued 0.50 s; ended: stop");
  expect(made.values.held).toBe(true);
  press("Escape");
  expect([tells(), made.values.held]).toEqual([HEAD.summary, false]);
});

test("keys move in time and come back to what happens now", () => {
  const { el, press, made } = shown();
  const follow = el.querySelector("button");
  expect(follow.getAttribute("aria-pressed")).toBe("true");
  press("ArrowLeft");
  expect([follow.getAttribute("aria-pressed"), made.values.held]).toEqual(["false", true]);
  press("End");
  expect([follow.getAttribute("aria-pressed"), made.values.held]).toEqual(["true", false]);
});

test("the wheel is the page's until the chart was clicked", () => {
  const { canvas } = shown();
  const turn = () => {
    const event = new WheelEvent("wheel", { deltaY: -1, cancelable: true });
    canvas.dispatchEvent(event);
    return event.defaultPrevented;
  };
  expect(turn()).toBe(false);
  canvas.focus();
  expect(turn()).toBe(true);
});

test("what has changed is drawn, and a request that is forgotten is let go", () => {
  const { press, made, tells } = shown();
  press("ArrowDown");
  made.send({ order: ["b<x>"], bands: [], summary: "1 request." });
  expect([tells(), made.values.held]).toEqual(["1 request.", false]);
});

test("many requests scroll, with the last of them in sight", () => {
  const made = model();
  const { canvas } = shown(made);
  const order = Array.from({ length: 300 }, (_, n) => `r${n}`);
  painted.length = 0;
  made.send({ order, bands: [] }, []);
  const texts = painted.filter(([name]) => name === "fillText").map(([, , text]) => text);
  expect(texts).toContain("r299");
  expect(texts).not.toContain("r0");
  expect(Number.parseFloat(canvas.style.height)).toBeLessThan(420);
});

test("it leaves nothing behind", () => {
  const { end, made } = shown();
  end();
  expect(made.listeners).toEqual({});
});

test("before the first message there is nothing to draw", () => {
  const made = model();
  made.values.live = "{}";
  shown(made);
  expect(painted).toEqual([]);
});
