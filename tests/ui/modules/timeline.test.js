// What the timeline's module computes before it draws.

import { describe, expect, it } from "vitest";

import { nice, panned, read, rows, seconds, ticks, zoomed } from "../../../widgets/timeline.js";

const HEAD = { start: 0, end: 100 };
const FOLLOWING = { all: false, follow: true, x0: 0, span: 20 };

describe("numbers on the axes", () => {
  it("are 1, 2 or 5 times a power of ten, and no less than asked", () => {
    expect([0.03, 0.9, 1, 3, 7, 120].map(nice)).toEqual([0.05, 1, 1, 5, 10, 200]);
  });

  it("are some ninety pixels apart", () => {
    expect(ticks(0, 10, 450).map(([x]) => x + 0)).toEqual([0, 2, 4, 6, 8, 10]);
    expect(ticks(0, 10, 450)[1][1]).toBe("2 s");
    expect(ticks(1.1, 1.5, 180).map(([, text]) => text)).toEqual(["1.2 s", "1.4 s"]);
  });
});

describe("the seconds that are seen", () => {
  it("follow the end", () => {
    expect(seconds(FOLLOWING, HEAD)).toEqual([80, 100]);
    expect(seconds(FOLLOWING, { start: 0, end: 110 })).toEqual([90, 110]);
    expect(seconds(FOLLOWING, { start: 0, end: 5 })).toEqual([0, 5]);
  });

  it("are all where all were asked for", () => {
    expect(seconds({ ...FOLLOWING, all: true }, HEAD)).toEqual([0, 100]);
  });

  it("stay where the reader went", () => {
    const gone = panned(FOLLOWING, HEAD, -30);
    expect(seconds(gone, HEAD)).toEqual([50, 70]);
    expect(seconds(gone, { start: 0, end: 500 })).toEqual([50, 70]);
  });

  it("are half as many when zoomed in, around the place that was pointed at", () => {
    const near = zoomed(FOLLOWING, HEAD, 0.5, 90);
    expect(seconds(near, HEAD)).toEqual([85, 95]);
    expect(near.follow).toBe(false);
  });

  it("still follow when zoomed by a key", () => {
    const near = zoomed(FOLLOWING, HEAD, 0.5, null);
    expect(seconds(near, HEAD)).toEqual([90, 100]);
    expect(seconds(near, { start: 0, end: 103 })).toEqual([93, 103]);
  });
});

describe("lines", () => {
  it("are lower where there are many, and scroll where they do not fit", () => {
    expect(rows(1).fit).toBe(1);
    expect(rows(1).high).toBeGreaterThan(rows(20).high);
    const many = rows(400);
    expect(many.fit).toBeLessThan(400);
    expect(many.fit * many.high).toBeLessThanOrEqual(330);
  });
});

describe("what is read from the two messages", () => {
  const line = (id, label) => ({ id, label });

  it("is nothing before the first", () => {
    expect(read("[]", "{}")).toBe(null);
  });

  it("is the newest of each line", () => {
    const live = { head: { order: ["a", "b"] }, lines: [line("b", "new"), line("a", "open")] };
    const state = read(JSON.stringify([line("b", "old")]), JSON.stringify(live));
    expect(state.order).toEqual(["a", "b"]);
    expect(state.lines.get("a").label).toBe("open");
    expect(state.lines.get("b").label).toBe("new");
  });
});
