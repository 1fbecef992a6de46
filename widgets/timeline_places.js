// Where the timeline's things stand: which seconds are seen, and which row is how high.

const ROOM = 330; // for the rows; where they need more, they scroll
const LINE = 26;
const NARROW = 15;
export const SPAN = 60; // seconds that are followed
const LEAST_SPAN = 0.05;
const IN_SIGHT = 0.1; // of what is seen, so much at least is not empty

// The first of 1, 2 and 5 times a power of ten that is no less than `least`.
export function nice(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((m) => m * power).find((m) => m >= least * (1 - 1e-9));
}

export function ticks(x0, x1, px) {
  const step = nice((x1 - x0) / Math.max(1, px / 90));
  const digits = Math.max(0, -Math.floor(Math.log10(step)));
  const found = [];
  for (let i = Math.ceil(x0 / step - 1e-9); i * step <= x1 + step * 1e-9; i++) {
    found.push([i * step, `${(i * step).toFixed(digits)} s`]);
  }
  return found;
}

// Which seconds are seen: all, those that follow the end, or those that the reader chose.
export function seconds(camera, head) {
  const end = Math.max(head.end, head.start + LEAST_SPAN);
  if (camera.all) return [head.start, end];
  if (!camera.follow) return [camera.x0, camera.x0 + camera.span];
  const first = Math.max(head.start, end - camera.span);
  return [first, first + Math.min(camera.span, Math.max(end - first, LEAST_SPAN))];
}

function placed(camera, head, x0, span) {
  const least = head.start - (1 - IN_SIGHT) * span;
  const most = Math.max(head.end, head.start + LEAST_SPAN) - IN_SIGHT * span;
  return { ...camera, all: false, span, x0: Math.min(Math.max(x0, least), most) };
}

export function zoomed(camera, head, by, at) {
  const [x0, x1] = seconds(camera, head);
  const most = Math.max(SPAN, head.end - head.start);
  const span = Math.min(Math.max(LEAST_SPAN, (x1 - x0) * by), most);
  const x = at === null ? (x0 + x1) / 2 : at;
  const follow = camera.follow && !camera.all && at === null;
  return placed({ ...camera, follow }, head, x - (x - x0) * (span / (x1 - x0)), span);
}

export function panned(camera, head, by) {
  const [x0, x1] = seconds(camera, head);
  return placed({ ...camera, follow: false }, head, x0 + by, x1 - x0);
}

// How high each of `count` rows is, and how many fit; `whole`: all of them must.
export function rows(count, whole) {
  const least = whole ? 0 : NARROW;
  const high = Math.max(least, Math.min(LINE, ROOM / Math.max(1, count)));
  return { high, fit: Math.max(1, Math.min(count, Math.floor(ROOM / high + 1e-6))) };
}

// What stands in each row: a heading before the first line of a cohort, and each line.
export function arranged(order, bands) {
  const headings = new Map(bands.map((band) => [band[1], band]));
  const found = [];
  order.forEach((id, n) => {
    if (headings.has(n)) found.push({ band: headings.get(n), id: null });
    found.push({ band: null, id });
  });
  return found;
}

// What the settled lines and a message say together: the head, and each line by its request.
export function read(settled, live) {
  const { head, lines } = JSON.parse(live);
  if (!head) return null;
  const byId = new Map();
  for (const line of [...settled, ...lines]) byId.set(line.id, line);
  return { ...head, lines: byId, rows: arranged(head.order, head.bands) };
}

// The total rate at a time; 0 where nothing was decoded.
export function rateAt(rates, x) {
  const part = rates.find(([start, long]) => start <= x && x < start + long);
  return part ? part[2] : 0;
}

// A text with its middle left out, where it is broader than `room`.
export function shortened(text, room, broad) {
  if (broad(text) <= room) return text;
  let keep = text.length - 1;
  const cut = () => {
    const head = Math.ceil(keep / 2);
    return `${text.slice(0, head)}\u2026${text.slice(text.length - (keep - head))}`;
  };
  while (keep > 1 && broad(cut()) > room) keep -= 1;
  return cut();
}

// Between seconds and pixels.
export function scale([x0, x1], left, wide) {
  return {
    toX: (x) => left + ((x - x0) / (x1 - x0)) * wide,
    toSeconds: (px) => x0 + ((px - left) / wide) * (x1 - x0),
  };
}
