// What stands in for a widget's model and for what a document without a browser lacks.

import { vi } from "vitest";

// A model with its traits by name; `send` is a message from Python.
export class Model {
  constructor(values) {
    this.values = { held: false, ...values };
    this.heard = [];
    this.saved = 0;
  }
  get(name) {
    return this.values[name];
  }
  set(name, value) {
    this.values[name] = value;
  }
  save_changes() {
    this.saved += 1;
  }
  on(name, act) {
    this.heard.push([name, act]);
  }
  off(name, act) {
    this.heard = this.heard.filter(([other, heard]) => other !== name || heard !== act);
  }
  send(values) {
    Object.assign(this.values, values);
    for (const [name, act] of this.heard) if (name.slice("change:".length) in values) act();
    nextFrame();
  }
}

let waiting = new Map();

// Does what waits for the next frame.
export function nextFrame() {
  const acts = [...waiting.values()];
  waiting = new Map();
  for (const act of acts) act();
}

export const frames = () => waiting.size;

// A page whose frames come by `nextFrame`; what observes it is listed, and told of by `changed`.
export function page() {
  const observed = [];
  let frame = 0;
  waiting = new Map();
  class Observer {
    constructor(changed) {
      this.changed = changed;
      observed.push(this);
    }
    observe() {}
    disconnect() {
      observed.splice(observed.indexOf(this), 1);
    }
    addEventListener(_, changed) {
      this.changed = changed;
    }
    removeEventListener() {
      this.disconnect();
    }
  }
  vi.stubGlobal("ResizeObserver", Observer);
  vi.stubGlobal("MutationObserver", Observer);
  vi.stubGlobal("matchMedia", () => new Observer(null));
  vi.stubGlobal("getComputedStyle", () => ({ getPropertyValue: (name) => ` ${name}` }));
  vi.stubGlobal("requestAnimationFrame", (act) => {
    frame += 1;
    waiting.set(frame, act);
    return frame;
  });
  vi.stubGlobal("cancelAnimationFrame", (number) => waiting.delete(number));
  return observed;
}

// What is painted, each call as [name, fill colour, ...arguments].
export function painter() {
  const painted = [];
  const paint = new Proxy(
    {},
    {
      get: (known, name) => {
        if (name in known) return known[name];
        if (name === "measureText") return (text) => ({ width: 6 * text.length });
        return (...given) => painted.push([name, known.fillStyle, ...given]);
      },
      set: (known, name, value) => {
        known[name] = value;
        return true;
      },
    },
  );
  vi.spyOn(HTMLCanvasElement.prototype, "getContext").mockReturnValue(paint);
  return painted;
}

// One more view of a widget, in the document.
export function view(widget, model) {
  const el = document.createElement("div");
  document.body.append(el);
  const end = widget.render({ model, el });
  nextFrame();
  return { el, end, one: (name) => el.querySelector(name) };
}

export function press(target, key, more = {}) {
  const event = new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true, ...more });
  target.dispatchEvent(event);
  nextFrame();
  return event;
}

export function point(target, name, x = 0, y = 0, more = {}) {
  const event = new MouseEvent(name, { bubbles: true, cancelable: true, ...more });
  Object.defineProperties(event, { offsetX: { value: x }, offsetY: { value: y } });
  target.dispatchEvent(event);
  nextFrame();
  return event;
}

export function tidy() {
  vi.useRealTimers();
  vi.restoreAllMocks();
  vi.unstubAllGlobals();
  document.body.replaceChildren();
}
