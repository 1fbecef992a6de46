// What the inspector's module computes before it draws.

import { describe, expect, it } from "vitest";

import { bars, ground, moved, told } from "../../../widgets/inspector.js";

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
  it("has a bar for each cycle, the highest of height 1", () => {
    const [plain, drafted] = bars(CYCLES);
    expect(drafted.accepted).toBeCloseTo(2 / 4);
    expect(drafted.tokens).toBeCloseTo(3 / 4);
    expect([plain.accepted, plain.last]).toEqual([0, "plain"]);
    expect(Math.max(...bars(CYCLES).map((bar) => bar.tokens))).toBeLessThanOrEqual(1);
  });

  it("is walked through by keys, and ends at both ends", () => {
    expect(moved("ArrowRight", 3, 10)).toBe(4);
    expect(moved("ArrowRight", 9, 10)).toBe(9);
    expect(moved("ArrowLeft", 0, 10)).toBe(0);
    expect(moved("PageUp", 3, 10)).toBe(9);
    expect(moved("Home", 3, 10)).toBe(0);
    expect(moved("End", 3, 10)).toBe(9);
    expect(moved("x", 3, 10)).toBe(-1);
  });
});

describe("the ground of a token", () => {
  it("tells accepted drafts by their depth, up to the deepest that has one", () => {
    expect(ground("accepted", 1)).toBe("accepted-1");
    expect(ground("accepted", 9)).toBe(ground("accepted", 5));
    expect(ground("bonus", 0)).toBe("bonus");
  });
});
