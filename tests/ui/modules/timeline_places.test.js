// Where the timeline's things stand.

import { describe, expect, it } from "vitest";

import {
  arranged,
  nice,
  panned,
  rateAt,
  read,
  rows,
  scale,
  seconds,
  shortened,
  ticks,
  zoomed,
} from "../../../widgets/timeline_places.js";

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

  it("never leave what there is out of sight", () => {
    expect(seconds(panned(FOLLOWING, HEAD, 1000), HEAD)).toEqual([98, 118]);
    expect(seconds(panned(FOLLOWING, HEAD, -1000), HEAD)).toEqual([-18, 2]);
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

  it("are no more than there are, and no fewer than can be told apart", () => {
    const [x0, x1] = seconds(zoomed(FOLLOWING, HEAD, 1000, 50), HEAD);
    expect(x1 - x0).toBe(100);
    const [y0, y1] = seconds(zoomed(FOLLOWING, HEAD, 1e-9, 90), HEAD);
    expect(y1 - y0).toBeCloseTo(0.05);
  });

  it("are found again from their pixels", () => {
    const { toX, toSeconds } = scale([10, 20], 100, 500);
    expect([toX(12), toSeconds(200)]).toEqual([200, 12]);
  });
});

describe("rows", () => {
  it("are lower where there are many, and scroll where they do not fit", () => {
    expect(rows(1).fit).toBe(1);
    expect(rows(1).high).toBeGreaterThan(rows(20).high);
    const many = rows(400);
    expect(many.fit).toBe(22);
    expect(many.fit * many.high).toBeLessThanOrEqual(330);
  });

  it("all fit where all were asked for", () => {
    const { high, fit } = rows(512, true);
    expect([fit, high * fit]).toEqual([512, 330]);
  });

  it("are the lines, and a heading before those of each cohort", () => {
    const band = ["cohort-1", 1, 2, 0, 5];
    expect(arranged(["a", "b", "c", "d"], [band])).toEqual([
      { band: null, id: "a" },
      { band, id: null },
      { band: null, id: "b" },
      { band: null, id: "c" },
      { band: null, id: "d" },
    ]);
  });
});

describe("what is read from the two messages", () => {
  const line = (id, label) => ({ id, label });

  it("is nothing before the first", () => {
    expect(read([], "{}")).toBe(null);
  });

  it("is the newest of each line", () => {
    const head = { order: ["a", "b"], bands: [] };
    const live = { head, lines: [line("b", "new"), line("a", "open")] };
    const state = read([line("b", "old")], JSON.stringify(live));
    expect(state.rows.map(({ id }) => id)).toEqual(["a", "b"]);
    expect(state.lines.get("a").label).toBe("open");
    expect(state.lines.get("b").label).toBe("new");
  });
});

describe("the total rate", () => {
  it("is told of any time", () => {
    const rates = [[2, 0.5, 32], [4, 0.5, 8]];
    expect([2, 2.4, 2.5, 4.1].map((x) => rateAt(rates, x))).toEqual([32, 32, 0, 8]);
  });
});

describe("a label", () => {
  const broad = (text) => 10 * text.length;

  it("keeps both its ends where it is too long", () => {
    expect(shortened("req-1 · slot 0", 140, broad)).toBe("req-1 · slot 0");
    expect(shortened("chatcmpl-0123456789 · slot 12", 130, broad)).toBe("chatcm\u2026lot 12");
    expect(shortened("abc", 5, broad)).toBe("a\u2026");
  });
});
