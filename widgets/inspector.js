// The inspector: one request's text with each token marked by how it came, and cycle by cycle.

import { cycleAt, drawStrip, moved, told } from "./inspector_cycles.js";
import { buttonOf, eachFrame, element, focusable, holds, rootOf, voice, watch } from "./page.js";

const TAGS = { accepted: "u", correction: "i", bonus: "b" };
const DEEPEST = 5;
const NOTE_MS = 4000;
const NEAR_PX = 8; // so near its end a text follows what comes

// The name of a token's ground among the palette's tints.
export function ground(kind, depth) {
  return kind === "accepted" ? `accepted-${Math.min(Math.max(depth, 1), DEEPEST)}` : kind;
}

// How many of the first pieces are the same.
export function unchanged(before, after) {
  const most = Math.min(before.length, after.length);
  let n = 0;
  while (n < most && before[n].every((part, i) => part === after[n][i])) n += 1;
  return n;
}

function marked(text, kind, depth) {
  const made = element(TAGS[kind] ?? "span", "", null, text);
  made.dataset.kind = kind;
  made.style.setProperty("--ground", `var(--mtplx-tint-${ground(kind, depth)})`);
  return made;
}

function pieceOf([text, kind, depth, cycle]) {
  const made = marked(text, kind, depth);
  made.dataset.cycle = cycle;
  return made;
}

// What is selected of a part, letter by letter; null where the selection reaches out of `root`.
function selectedOf(part, root) {
  const selection = getSelection();
  if (!selection.rangeCount || selection.isCollapsed) return null;
  const range = selection.getRangeAt(0).cloneRange();
  if (!root.contains(range.commonAncestorContainer)) return null;
  if (!part.contains(range.startContainer)) return null;
  if (!part.contains(range.endContainer)) range.setEnd(part, part.childNodes.length);
  return range.toString();
}

function draw({ model, el }, hold) {
  const root = rootOf("section", "inspector", el);
  root.setAttribute("aria-label", "How the tokens of a request came");
  const head = element("div", "head", root);
  const summary = element("p", "summary", head);
  const note = element("span", "note", head);
  note.setAttribute("role", "status");
  buttonOf("Copy the text", head, copy);
  const legend = element("p", "legend", root);
  const text = focusable(element("pre", "text", root));
  text.setAttribute("role", "group");
  text.setAttribute("aria-label", "The text of the request");
  element("p", "caption", root, "Tokens of each cycle; a line is at what was drafted");
  const strip = focusable(element("canvas", "strip", root));
  strip.setAttribute("role", "slider");
  strip.setAttribute("aria-label", "Cycles");
  const detail = element("p", "hint", root);
  const say = voice(root);

  let state = { pieces: [], cycles: [], counts: {}, meaning: {}, summary: "", request: "" };
  let pointed = -1;
  let pinned = -1;
  let clearing = 0;

  function tell() {
    const at = pinned >= 0 ? pinned : pointed;
    const cycle = state.cycles[at];
    detail.textContent = cycle ? told(cycle, state.pieces) : "";
    for (const old of text.querySelectorAll(".chosen")) old.classList.remove("chosen");
    const parts = cycle ? text.querySelectorAll(`[data-cycle="${cycle[0]}"]`) : [];
    for (const part of parts) part.classList.add("chosen");
    drawStrip(strip, state.cycles, at);
    return parts;
  }

  // Where the strip stands, for screen readers.
  function slide() {
    const { cycles } = state;
    const first = cycles[0]?.[0] ?? 0;
    strip.setAttribute("aria-valuemin", first);
    strip.setAttribute("aria-valuemax", cycles.at(-1)?.[0] ?? 0);
    strip.setAttribute("aria-valuenow", cycles[pinned]?.[0] ?? first);
    strip.setAttribute("aria-valuetext", pinned < 0 ? "none chosen" : detail.textContent);
  }

  function pin(number) {
    pinned = number;
    hold(pinned >= 0);
    const [part] = tell();
    slide();
    if (!part) return;
    const place = part.getBoundingClientRect();
    const room = text.getBoundingClientRect();
    const half = room.height / 2;
    if (place.top < room.top) text.scrollTop -= room.top - place.top + half;
    else if (place.bottom > room.bottom) text.scrollTop += place.bottom - room.bottom + half;
  }

  function point(number) {
    if (number === pointed) return;
    pointed = number;
    if (pinned < 0) tell();
  }

  function showText(before, after) {
    const atEnd = text.scrollHeight - text.scrollTop - text.clientHeight < NEAR_PX;
    const same = unchanged(before, after);
    while (text.childNodes.length > same) text.lastChild.remove();
    text.append(...after.slice(same).map(pieceOf));
    if (atEnd && before.length) text.scrollTop = text.scrollHeight;
  }

  function showLegend() {
    const keys = Object.entries(state.counts).map(([kind, count]) => {
      const key = element("span", "key");
      key.append(marked(state.meaning[kind], kind, 1), ` ${count}`);
      return key;
    });
    if (state.counts.accepted) {
      const depths = element("span", "key", null, "depth ");
      for (let depth = 1; depth <= DEEPEST; depth++) {
        depths.append(marked(`${depth}${depth === DEEPEST ? "+" : ""}`, "accepted", depth));
      }
      keys.splice(1, 0, depths);
    }
    legend.replaceChildren(...keys);
  }

  function show() {
    const before = state;
    state = { ...before, ...JSON.parse(model.get("state")) };
    summary.textContent = state.summary;
    showText(before.pieces, state.pieces);
    if (JSON.stringify(before.counts) !== JSON.stringify(state.counts)) showLegend();
    const number = before.cycles[pinned]?.[0];
    const other = before.request !== state.request;
    const found = other ? -1 : state.cycles.findIndex((cycle) => cycle[0] === number);
    if (found < 0 && pinned >= 0) pin(-1);
    pinned = found;
    tell();
    slide();
  }

  function noted(words) {
    note.textContent = words;
    clearTimeout(clearing);
    clearing = setTimeout(() => (note.textContent = ""), NOTE_MS);
  }

  async function copy() {
    try {
      await navigator.clipboard.writeText(text.textContent);
      noted("Copied.");
    } catch {
      // No access to the clipboard: the text is selected, for the keys that copy.
      text.focus();
      getSelection().selectAllChildren(text);
      noted("Selected; copy it with your keys.");
    }
  }

  function keyed(event) {
    if (event.key === "Escape" && pinned >= 0) pin(-1);
    else if ((event.ctrlKey || event.metaKey) && event.key === "a" && event.target === text) {
      getSelection().selectAllChildren(text);
    } else if (event.target === strip && !event.ctrlKey && !event.metaKey && !event.altKey) {
      const next = moved(event.key, pinned, state.cycles.length);
      if (next < 0) return;
      pin(next);
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }

  const cycleOf = (event) => {
    const number = Number(event.target.dataset?.cycle);
    return state.cycles.findIndex((cycle) => cycle[0] === number);
  };
  const cycleUnder = (event) => cycleAt(event.offsetX, state.cycles.length, strip.clientWidth);
  const picked = (number) => pin(number === pinned ? -1 : number);

  root.addEventListener("keydown", keyed);
  text.addEventListener("pointerover", (event) => point(cycleOf(event)));
  text.addEventListener("pointerleave", () => point(-1));
  text.addEventListener("click", (event) => {
    if (!getSelection().isCollapsed) return; // the click only ended a selection
    picked(cycleOf(event));
    say(detail.textContent);
  });
  text.addEventListener("copy", (event) => {
    // Browsers would alter some spaces and ends of lines.
    const words = selectedOf(text, root);
    if (words === null) return;
    event.clipboardData.setData("text/plain", words);
    event.preventDefault();
  });
  strip.addEventListener("pointermove", (event) => point(cycleUnder(event)));
  strip.addEventListener("pointerleave", () => point(-1));
  strip.addEventListener("click", (event) => picked(cycleUnder(event)));

  const frame = eachFrame(show);
  const unwatch = watch(strip, tell);
  model.on("change:state", frame.ask);
  show();
  return () => {
    model.off("change:state", frame.ask);
    unwatch();
    frame.end();
    clearTimeout(clearing);
    hold(false);
  };
}

export default () => {
  const holder = holds();
  return { render: (shown) => draw(shown, holder(shown.model)) };
};
