// What the views have in common: elements, frames, what they follow of the page, and their voice.

const THEMES = ["data-jp-theme-light", "class", "theme"];
const LINE_PX = 16; // of wheels that turn by lines
const MOST_PX = 240; // of one turn

export function element(tag, className, parent, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  parent?.append(made);
  return made;
}

// The root of a view; keys that are typed in it are not the notebook's.
export function rootOf(tag, name, parent) {
  return ownKeys(element(tag, `mtplx mtplx-${name}`, parent));
}

// Keys that are typed in a part are not the notebook's. JupyterLab asks what has the focus first,
// and only then what is around it: each part that can have the focus says so itself.
export function ownKeys(part) {
  part.setAttribute("data-lm-suppress-shortcuts", "true");
  return part;
}

// A part that can have the focus.
export function focusable(part) {
  part.setAttribute("tabindex", "0");
  return ownKeys(part);
}

export function buttonOf(text, parent, act) {
  const made = ownKeys(element("button", "", parent, text));
  made.type = "button";
  made.addEventListener("click", act);
  return made;
}

// Something to be done in the next frame, once however often it was asked for.
export function eachFrame(act) {
  let frame = 0;
  const ask = () => {
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      act();
    });
  };
  return { ask, end: () => cancelAnimationFrame(frame) };
}

// Tells when a part has another size, the page another theme, or the screen other pixels.
export function watch(part, changed) {
  const sizes = new ResizeObserver(changed);
  sizes.observe(part);
  const themes = new MutationObserver(changed);
  for (const page of [document.documentElement, document.body]) {
    themes.observe(page, { attributes: true, attributeFilter: THEMES });
  }
  let pixels = null;
  const sharper = () => {
    pixels?.removeEventListener("change", sharper);
    if (pixels) changed();
    pixels = matchMedia(`(resolution: ${window.devicePixelRatio}dppx)`);
    pixels.addEventListener("change", sharper);
  };
  sharper();
  return () => {
    sizes.disconnect();
    themes.disconnect();
    pixels.removeEventListener("change", sharper);
  };
}

// How far a wheel was turned, in pixels, whatever it counts in.
export function turned(event) {
  const unit = [1, LINE_PX, MOST_PX][event.deltaMode];
  const limited = (by) => Math.min(Math.max(by * unit, -MOST_PX), MOST_PX);
  return { x: limited(event.deltaX), y: limited(event.deltaY) };
}

// The colours of a part by their role, as its theme has them now.
export function coloursOf(part) {
  const style = getComputedStyle(part);
  const known = {};
  return (role) => (known[role] ??= style.getPropertyValue(`--mtplx-${role}`).trim());
}

// A canvas that is as sharp as the screen, empty; null where nothing can be seen of it.
export function cleared(canvas, width, height) {
  const paint = width > 0 ? canvas.getContext("2d") : null;
  if (!paint) return null;
  const ratio = window.devicePixelRatio || 1;
  const size = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== size[0] || canvas.height !== size[1]) [canvas.width, canvas.height] = size;
  paint.setTransform(ratio, 0, 0, ratio, 0, 0);
  paint.clearRect(0, 0, width, height);
  return paint;
}

// What a screen reader reads aloud, unseen by others: the same words are said once.
export function voice(parent) {
  const said = element("p", "said", parent);
  said.setAttribute("aria-live", "polite");
  return (words) => {
    if (said.textContent !== words) said.textContent = words;
  };
}

// A model is held while any of its views holds it: each view has a hold of its own.
export function holds() {
  const holding = new Set();
  return (model) => {
    const mine = {};
    return (wanted) => {
      if (wanted) holding.add(mine);
      else holding.delete(mine);
      const held = holding.size > 0;
      if (model.get("held") === held) return;
      model.set("held", held);
      model.save_changes();
    };
  };
}
