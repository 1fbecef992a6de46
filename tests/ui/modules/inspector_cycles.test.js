// The cycles of a request, in words and as bars.

import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

import {
  bars,
  cycleAt,
  drawStrip,
  moved,
  spread,
  told,
} from "../../../widgets/inspector_cycles.js";
import { page, painter, tidy } from "./stand_in.js";

// number, milliseconds, drafted, accepted, tokens, how the last came, drafter, rows
const CYCLES = [
  [1, null, 0, 0, 1, "plain", null, 1],
  [2, 41.26, 3, 2, 3, "correction", "head", 8],
];
// text, kind, depth, cycle
const PIECES = [
  ["The", "plain", 0, 1],
  [" sky", "accepted", 1, 2],
  [" is", "accepted", 2, 2],
  ["\n", "correction", 0, 2],
];

beforeEach(page);
afterEach(tidy);

describe("a cycle in words", () => {
  it("says what was drafted, by whom, and how much of it was right", () => {
    expect(told(CYCLES[1], PIECES)).toBe(
      "cycle 2, 41.3 ms after the one before, 2 of 3 drafts right, drafted by head, 3 tokens, " +
        '8 rows in its forward: " sky is\\n"',
    );
  });

  it("says so where nothing was drafted", () => {
    expect(told(CYCLES[0], PIECES)).toBe('cycle 1, nothing drafted, 1 token: "The"');
  });
});

describe("the strip", () => {
  it("has a bar for each cycle, in tokens by how they came", () => {
    expect(bars(CYCLES, 1)).toEqual([
      { drafted: 0, accepted: 0, correction: 0, bonus: 0, plain: 1 },
      { drafted: 3, accepted: 2, correction: 1, bonus: 0, plain: 0 },
    ]);
  });

  it("has the mean of neighbours where there are too many cycles", () => {
    expect(spread(2, 600)).toEqual({ each: 1, step: 16 });
    expect(spread(4096, 600)).toEqual({ each: 21, step: 600 / 196 });
    expect(bars(CYCLES, 2)).toEqual([
      { drafted: 1.5, accepted: 1, correction: 0.5, bonus: 0, plain: 0.5 },
    ]);
  });

  it("knows the cycle at a place", () => {
    expect([0, 17, 31, 32].map((px) => cycleAt(px, 2, 600))).toEqual([0, 1, 1, -1]);
    expect(cycleAt(599, 4096, 600)).toBe(195 * 21);
    expect(cycleAt(5, 0, 600)).toBe(-1);
  });

  it("is drawn in its height, with the highest at the top", () => {
    const painted = painter();
    const canvas = document.createElement("canvas");
    vi.spyOn(canvas, "clientWidth", "get").mockReturnValue(600);
    vi.spyOn(canvas, "clientHeight", "get").mockReturnValue(42);
    drawStrip(canvas, CYCLES, 1);
    const boxes = painted.filter(([name]) => name === "fillRect");
    expect(boxes.map(([, fill, ...box]) => [fill, ...box])).toEqual([
      ["--mtplx-plain", 0, 32, 14, 10],
      ["--mtplx-grid", 14, 0, 18, 42],
      ["--mtplx-accepted", 16, 22, 14, 20],
      ["--mtplx-correction", 16, 12, 14, 10],
      ["--mtplx-text", 16, 11, 14, 1],
    ]);
  });

  it("is walked through by keys, and ends at both ends", () => {
    expect(moved("ArrowRight", 3, 10)).toBe(4);
    expect(moved("ArrowRight", 9, 10)).toBe(9);
    expect(moved("ArrowLeft", 0, 10)).toBe(0);
    expect(moved("PageUp", 3, 10)).toBe(9);
    expect(moved("Home", 3, 10)).toBe(0);
    expect(moved("End", 3, 10)).toBe(9);
    expect(moved("x", 3, 10)).toBe(-1);
    expect(moved("Home", -1, 0)).toBe(-1);
  });
});
