// What the views have in common.

import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

import {
  buttonOf,
  cleared,
  eachFrame,
  focusable,
  holds,
  rootOf,
  turned,
  voice,
  watch,
} from "../../../widgets/page.js";
import { Model, frames, nextFrame, page, painter, tidy } from "./stand_in.js";

let observed;

beforeEach(() => (observed = page()));
afterEach(tidy);

describe("a frame", () => {
  it("draws once, however often it was asked for, and not after the end", () => {
    const act = vi.fn();
    const frame = eachFrame(act);
    frame.ask();
    frame.ask();
    expect(act).not.toHaveBeenCalled();
    nextFrame();
    expect(act).toHaveBeenCalledTimes(1);
    frame.ask();
    frame.end();
    expect(frames()).toBe(0);
  });
});

describe("what is followed of the page", () => {
  it("is size, theme and sharpness, until the end", () => {
    const changed = vi.fn();
    const end = watch(document.body, changed);
    expect(observed.length).toBe(3);
    for (const one of [...observed]) one.changed();
    expect(changed).toHaveBeenCalledTimes(3);
    end();
    expect(observed).toEqual([]);
  });
});

describe("a canvas", () => {
  it("has the screen's pixels, and keeps its size where it has not changed", () => {
    const painted = painter();
    vi.stubGlobal("devicePixelRatio", 2);
    const canvas = document.createElement("canvas");
    cleared(canvas, 300.2, 100);
    expect([canvas.width, canvas.height]).toEqual([600, 200]);
    expect(painted.map(([name, , ...given]) => [name, ...given])).toEqual([
      ["setTransform", 2, 0, 0, 2, 0, 0],
      ["clearRect", 0, 0, 300.2, 100],
    ]);
    const resized = vi.spyOn(canvas, "width", "set");
    cleared(canvas, 300.2, 100);
    expect(resized).not.toHaveBeenCalled();
  });

  it("is not drawn where it cannot be seen", () => {
    expect(cleared(document.createElement("canvas"), 0, 100)).toBe(null);
  });
});

describe("a wheel", () => {
  it("is read in pixels, whatever it counts in", () => {
    const event = { deltaX: 0, deltaY: 3, deltaMode: 1 };
    expect(turned(event)).toEqual({ x: 0, y: 48 });
    expect(turned({ ...event, deltaMode: 0 })).toEqual({ x: 0, y: 3 });
    expect(turned({ ...event, deltaY: -9999, deltaMode: 0 }).y).toBe(-240);
  });
});

describe("what is said aloud", () => {
  it("is said once, as text", () => {
    const say = voice(document.body);
    const loud = document.querySelector("[aria-live=polite]");
    say("<b>8</b> running");
    expect([loud.textContent, loud.children.length]).toEqual(["<b>8</b> running", 0]);
    const node = loud.firstChild;
    say("<b>8</b> running");
    expect(loud.firstChild).toBe(node);
  });
});

describe("a root", () => {
  it("keeps its keys from the notebook, and so does each part that can have the focus", () => {
    const root = rootOf("section", "timeline", document.body);
    expect(root.className).toBe("mtplx mtplx-timeline");
    const parts = [root, focusable(document.createElement("canvas")), buttonOf("All", root)];
    for (const part of parts) {
      expect(part.getAttribute("data-lm-suppress-shortcuts")).toBe("true");
    }
    expect(parts[1].tabIndex).toBe(0);
  });
});

describe("a model", () => {
  it("is held while any of its views holds it", () => {
    const model = new Model({});
    const holder = holds();
    const [one, other] = [holder(model), holder(model)];
    one(true);
    other(true);
    other(false);
    expect([model.values.held, model.saved]).toEqual([true, 1]);
    one(false);
    expect([model.values.held, model.saved]).toEqual([false, 2]);
    one(false);
    expect(model.saved).toBe(2);
  });
});
