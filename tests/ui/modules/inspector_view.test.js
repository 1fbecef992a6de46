// The inspector in a document without a browser.

import { afterEach, beforeEach, expect, test, vi } from "vitest";

import { render } from "../../../widgets/inspector.js";

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
    [" ", "correction", 0, 2],
  ],
  cycles: [
    [1, null, 0, 0, 1, "plain", null, 1],
    [2, 31.25, 3, 2, 3, "correction", "head", 4],
  ],
};

function model(state) {
  const listeners = {};
  return {
    values: { state: JSON.stringify(state), held: false },
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
    send(state) {
      this.values.state = JSON.stringify(state);
      listeners["change:state"]?.();
    },
    listeners,
  };
}

beforeEach(() => {
  vi.stubGlobal("requestAnimationFrame", (call) => {
    call();
    return 0;
  });
  vi.stubGlobal("cancelAnimationFrame", () => {});
  vi.stubGlobal(
    "ResizeObserver",
    class {
      observe() {}
      disconnect() {}
    },
  );
  HTMLCanvasElement.prototype.getContext = () => null;
});
afterEach(() => vi.unstubAllGlobals());

function shown(state = STATE) {
  const el = document.createElement("div");
  document.body.replaceChildren(el);
  const held = model(state);
  const leave = render({ model: held, el });
  const one = (name) => el.querySelector(name);
  return { el, held, leave, text: one(".text"), strip: one(".strip"), hint: one(".hint") };
}

const press = (target, key) =>
  target.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));

test("the text is whole, marked by elements, and taken as text", () => {
  const { text } = shown();
  expect(text.textContent).toBe("Th<e> ");
  expect([...text.children].map((part) => part.localName)).toEqual(["span", "u", "u", "i"]);
  expect(text.children[2].style.getPropertyValue("--ground")).toBe("var(--mtplx-tint-accepted-2)");
});

test("new tokens are added to those that stand there", () => {
  const { held, text } = shown();
  const first = text.children[0];
  held.send({ ...STATE, pieces: [...STATE.pieces, ["s", "bonus", 0, 3]] });
  expect(text.textContent).toBe("Th<e> s");
  expect(text.children[0]).toBe(first);
  expect(text.lastElementChild.localName).toBe("b");
});

test("another request replaces the text", () => {
  const { held, text } = shown();
  held.send({ ...STATE, request: "req-2", pieces: [["x", "plain", 0, 1]] });
  expect(text.textContent).toBe("x");
});

test("a click on a token tells its cycle and holds the view", () => {
  const { held, text, hint } = shown();
  text.children[1].dispatchEvent(new Event("click", { bubbles: true }));
  expect(hint.textContent).toMatch(/^cycle 2, /);
  expect([...text.querySelectorAll(".chosen")].map((part) => part.textContent).join("")).toBe(
    "h<e> ",
  );
  expect(held.values.held).toBe(true);
});

test("keys choose cycles, and an update keeps the choice", () => {
  const { held, strip, hint } = shown();
  press(strip, "End");
  expect(strip.getAttribute("aria-valuenow")).toBe("2");
  held.send({ ...STATE, cycles: [...STATE.cycles, [3, 30, 1, 1, 2, "bonus", "head", 4]] });
  expect(hint.textContent).toMatch(/^cycle 2, /);
  expect(strip.getAttribute("aria-valuemax")).toBe("3");
});

test("the text can be copied, or is selected where the clipboard is closed", async () => {
  const { el, hint } = shown();
  const copied = [];
  vi.stubGlobal("navigator", {
    clipboard: { writeText: async (words) => copied.push(words) },
  });
  el.querySelector("button").click();
  await vi.waitFor(() => expect(hint.textContent).toBe("Copied."));
  expect(copied).toEqual(["Th<e> "]);
  vi.stubGlobal("navigator", {});
  el.querySelector("button").click();
  await vi.waitFor(() => expect(hint.textContent).toMatch(/^Selected/));
});

test("leaving stops listening", () => {
  const { held, leave } = shown();
  leave();
  expect(held.listeners).toEqual({});
});
