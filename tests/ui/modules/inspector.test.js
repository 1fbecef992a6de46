// The inspector in a document without a browser: its text, what is chosen, copied and left.

import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

import inspector, { ground, unchanged } from "../../../widgets/inspector.js";
import { Model, frames, page, painter, point, press, tidy, view } from "./stand_in.js";

const STATE = {
  request: "req-1",
  running: true,
  summary: "req-1: 4 tokens",
  counts: { accepted: 2, correction: 1, plain: 1 },
  meaning: { accepted: "accepted draft", correction: "correction", plain: "plain" },
  pieces: [
    ["T", "plain", 0, 1],
    ["h", "accepted", 1, 2],
    ["<e>", "accepted", 2, 2],
    ["\u00a0\n", "correction", 0, 2],
  ],
  cycles: [
    [1, null, 0, 0, 1, "plain", null, 1],
    [2, 31.25, 3, 2, 3, "correction", "head", 4],
  ],
};
const TEXT = "Th<e>\u00a0\n";
const state = (changed = {}) => ({ state: JSON.stringify({ ...STATE, ...changed }) });

let observed;

function shown(made = new Model(state()), widget = inspector()) {
  const there = view(widget, made);
  const chosen = () => [...there.el.querySelectorAll(".chosen")].map((part) => part.textContent);
  return {
    ...there,
    made,
    text: there.one(".text"),
    strip: there.one(".strip"),
    hint: () => there.one(".hint").textContent,
    note: () => there.one(".note").textContent,
    chosen: () => chosen().join(""),
  };
}

beforeEach(() => {
  observed = page();
  painter();
  vi.spyOn(Element.prototype, "clientWidth", "get").mockReturnValue(600);
  getSelection().removeAllRanges();
});
afterEach(tidy);

describe("the text", () => {
  it("is whole, marked by elements, and never markup", () => {
    const { text } = shown();
    expect(text.textContent).toBe(TEXT);
    expect([...text.children].map((part) => part.localName)).toEqual(["span", "u", "u", "i"]);
    expect(text.children[2].style.getPropertyValue("--ground")).toBe(
      "var(--mtplx-tint-accepted-2)",
    );
  });

  it("tells drafts by their depth, up to the deepest that has a colour", () => {
    expect(ground("accepted", 1)).toBe("accepted-1");
    expect(ground("accepted", 9)).toBe(ground("accepted", 5));
    expect(ground("bonus", 0)).toBe("bonus");
  });

  it("grows by new tokens", () => {
    const { made, text } = shown();
    const first = text.children[0];
    made.send(state({ pieces: [...STATE.pieces, ["s", "bonus", 0, 3]] }));
    expect(text.textContent).toBe(`${TEXT}s`);
    expect(text.children[0]).toBe(first);
    expect(text.lastElementChild.localName).toBe("b");
  });

  it("is drawn again from the first token that is another one, also where as many remain", () => {
    const { made, text } = shown();
    const first = text.children[0];
    const pieces = [STATE.pieces[0], ["ough", "unknown", 0, 0], ...STATE.pieces.slice(2)];
    expect(unchanged(STATE.pieces, pieces)).toBe(1);
    made.send(state({ pieces }));
    expect(text.textContent).toBe("Tough<e>\u00a0\n");
    expect(text.children[0]).toBe(first);
    made.send(state({ pieces: pieces.slice(0, 2) }));
    expect(text.textContent).toBe("Tough");
    made.send(state({ request: "req-2", pieces: [["x", "plain", 0, 1]] }));
    expect(text.textContent).toBe("x");
  });

  it("follows what comes where its end is in sight, and stays where it is not", () => {
    const { made, text } = shown();
    vi.spyOn(text, "scrollHeight", "get").mockReturnValue(900);
    vi.spyOn(text, "clientHeight", "get").mockReturnValue(300);
    text.scrollTop = 600;
    made.send(state({ pieces: [...STATE.pieces, ["s", "bonus", 0, 3]] }));
    expect(text.scrollTop).toBe(900);
    text.scrollTop = 100;
    made.send(state());
    expect(text.scrollTop).toBe(100);
  });

  it("has a legend, with the depths of drafts where there are any", () => {
    const { made, one } = shown();
    expect(one(".legend").textContent).toBe("accepted draft 2depth 12345+correction 1plain 1");
    const key = one(".legend").firstChild;
    made.send(state({ running: false }));
    expect(one(".legend").firstChild).toBe(key);
    made.send(state({ counts: { plain: 4 } }));
    expect(one(".legend").textContent).toBe("plain 4");
  });
});

describe("a cycle", () => {
  it("is told of while its text or its bar is pointed at", () => {
    const { made, text, strip, hint, chosen } = shown();
    point(text.children[1], "pointerover");
    expect([hint().slice(0, 8), chosen()]).toEqual(["cycle 2,", "h<e>\u00a0\n"]);
    point(text, "pointerleave");
    expect([hint(), chosen()]).toEqual(["", ""]);
    point(strip, "pointermove", 3, 5);
    expect(chosen()).toBe("T");
    expect(made.values.held).toBe(false);
  });

  it("is pinned by a click, said aloud, and let go by another", () => {
    const { made, text, hint, one } = shown();
    point(text.children[1], "click");
    point(text.children[0], "pointerover");
    expect(hint()).toMatch(/^cycle 2, /);
    expect(one(".said").textContent).toBe(hint());
    expect(made.values.held).toBe(true);
    point(text.children[1], "click");
    expect([hint().slice(0, 8), made.values.held]).toEqual(["cycle 1,", false]);
  });

  it("is not pinned by the end of a selection", () => {
    const { made, text } = shown();
    getSelection().selectAllChildren(text);
    point(text.children[1], "click");
    expect(made.values.held).toBe(false);
  });

  it("is chosen by keys, and kept by a message", () => {
    const { made, strip, hint } = shown();
    expect(strip.getAttribute("aria-valuenow")).toBe("1");
    expect(strip.getAttribute("aria-valuetext")).toBe("none chosen");
    press(strip, "End");
    expect(strip.getAttribute("aria-valuenow")).toBe("2");
    expect(strip.getAttribute("aria-valuetext")).toBe(hint());
    made.send(state({ cycles: [...STATE.cycles, [3, 30, 1, 1, 2, "bonus", "head", 4]] }));
    expect(hint()).toMatch(/^cycle 2, /);
    expect(strip.getAttribute("aria-valuemax")).toBe("3");
    made.send(state({ cycles: [STATE.cycles[1]] }));
    expect([hint().slice(0, 8), made.values.held]).toEqual(["cycle 2,", true]);
    press(strip, "Escape");
    expect([hint(), made.values.held]).toEqual(["", false]);
  });

  it("is let go where another request takes its place", () => {
    const { made, strip, hint } = shown();
    press(strip, "End");
    made.send(state({ request: "req-2" }));
    expect([hint(), made.values.held]).toEqual(["", false]);
  });

  it("is brought into sight by scrolling the text alone", () => {
    const { text, strip } = shown();
    vi.spyOn(text, "getBoundingClientRect").mockReturnValue({ top: 0, bottom: 300, height: 300 });
    vi.spyOn(text.children[1], "getBoundingClientRect").mockReturnValue({ top: 500, bottom: 520 });
    press(strip, "End");
    expect(text.scrollTop).toBe(220 + 150);
  });
});

describe("copying", () => {
  const copied = (target) => {
    const data = new Map();
    const event = new Event("copy", { bubbles: true, cancelable: true });
    event.clipboardData = { setData: (type, words) => data.set(type, words) };
    target.dispatchEvent(event);
    return [event.defaultPrevented, Object.fromEntries(data)];
  };

  it("gives exactly what is selected of the text, as text alone", () => {
    const { text } = shown();
    expect(press(text, "a", { ctrlKey: true }).defaultPrevented).toBe(true);
    expect(copied(text)).toEqual([true, { "text/plain": TEXT }]);
    getSelection().setBaseAndExtent(text.children[1].firstChild, 0, text.children[2].firstChild, 2);
    expect(copied(text)).toEqual([true, { "text/plain": "h<e" }]);
  });

  it("ends with the text where the selection reaches into what is below", () => {
    const { text, one } = shown();
    getSelection().setBaseAndExtent(text.children[2].firstChild, 0, one(".caption").firstChild, 3);
    expect(copied(text)).toEqual([true, { "text/plain": "<e>\u00a0\n" }]);
  });

  it("is the page's where more than the view is selected", () => {
    const { text } = shown();
    getSelection().selectAllChildren(document.body);
    expect(copied(text)).toEqual([false, {}]);
  });

  it("is done by a button, or prepared where the clipboard is closed", async () => {
    vi.useFakeTimers();
    const { one, note, end } = shown();
    const words = [];
    vi.stubGlobal("navigator", { clipboard: { writeText: async (given) => words.push(given) } });
    one("button").click();
    await vi.advanceTimersByTimeAsync(100);
    expect([words, note()]).toEqual([[TEXT], "Copied."]);
    await vi.advanceTimersByTimeAsync(4000);
    expect(note()).toBe("");
    vi.stubGlobal("navigator", {});
    one("button").click();
    await vi.advanceTimersByTimeAsync(100);
    expect(note()).toBe("Selected; copy it with your keys.");
    expect(getSelection().toString()).toBe(TEXT);
    end();
    expect(vi.getTimerCount()).toBe(0);
  });
});

describe("views", () => {
  it("keep their keys from the notebook, but for the browser's", () => {
    const { strip, text, el } = shown();
    expect(el.firstChild.getAttribute("data-lm-suppress-shortcuts")).toBe("true");
    expect(press(strip, "End", { ctrlKey: true }).defaultPrevented).toBe(false);
    expect(press(text, "ArrowDown").defaultPrevented).toBe(false);
    expect(press(text, "Escape").defaultPrevented).toBe(false);
  });

  it("hold their model together, and leave nothing behind", () => {
    const made = new Model(state());
    const widget = inspector();
    const [one, other] = [shown(made, widget), shown(made, widget)];
    press(one.strip, "End");
    press(other.strip, "End");
    press(other.strip, "Escape");
    expect([made.values.held, one.hint().slice(0, 7), other.hint()]).toEqual([true, "cycle 2", ""]);
    one.end();
    other.end();
    expect([made.values.held, made.heard, observed, frames()]).toEqual([false, [], [], 0]);
  });

  it("may have nothing to show yet", () => {
    const { text, hint, strip } = shown(new Model({ state: "{}" }));
    press(strip, "End");
    expect([text.textContent, hint()]).toEqual(["", ""]);
  });
});
