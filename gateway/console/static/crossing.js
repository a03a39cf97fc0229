// Calls as dots: at prefill while it reads, on the way while KV crosses, at decode while it answers.
//
// A picture comes once a second, and most calls take less. So what ended in between is shown as if it
// went just now, at a speed that can be seen; the numbers beside it are the exact ones.

import { byId, svg, text } from "./dom.js";
import { cardOf } from "./engines.js";
import { calls } from "./format.js";

const CROSS_MS = 1100;
const FADE_MS = 450;
const MOST_DOTS = 160;
const EDGE_MEMORY_S = 60;

const dots = new Map();
const edges = new Map();
const shownBefore = new Set();
const still = matchMedia("(prefers-reduced-motion: reduce)");
let first = true;
let last = null;

export function showCalls(picture) {
  const { running, ended } = picture.calls;
  last = picture;
  const now = performance.now();
  const alive = new Set(running.map((call) => call.id));
  for (const call of running.slice(0, MOST_DOTS)) {
    const dot = dots.get(call.id) ?? add(call, now);
    if (dot && dot.phase !== call.phase) {
      dot.phase = call.phase;
      dot.since = now;
    }
    if (dot) Object.assign(dot, { from: call.prefill, to: call.decode });
  }
  for (const call of ended) {
    const dot = dots.get(call.id);
    if (dot && !alive.has(call.id) && dot.phase !== "over") finish(dot, call, now);
    else if (!dot && !first && !shownBefore.has(call.id)) replay(call, now);
    shownBefore.add(call.id);
  }
  for (const [id, dot] of dots) {
    // Neither runs nor is among the last that ended: there were too many to be told of.
    if (!alive.has(id) && dot.phase !== "over" && !dot.replayed) drop(id);
  }
  if (shownBefore.size > 4000) shownBefore.clear();
  first = false;
  drawEdges(picture);
  tell(running, picture.in_flight);
}

function add(call, now) {
  if (dots.size >= MOST_DOTS) return null;
  const circle = svg("circle", { r: 4.5, "data-call": call.id, "data-phase": call.phase });
  byId("crossing").append(circle);
  const dot = { id: call.id, circle, phase: call.phase, since: now, from: call.prefill, to: call.decode, spin: Math.random() };
  dots.set(call.id, dot);
  return dot;
}

function finish(dot, call, now) {
  Object.assign(dot, { phase: "over", since: now, end: endOf(call), to: call.decode || dot.to });
}

function replay(call, now) {
  const dot = add({ ...call, phase: "crossing" }, now + Math.random() * 900);
  if (dot) Object.assign(dot, { replayed: true, end: endOf(call) });
}

// Whom the client left has not failed.
function endOf({ outcome }) {
  return { ok: "answering", client_gone: "gone" }[outcome] ?? "failed";
}

function drop(id) {
  dots.get(id)?.circle.remove();
  dots.delete(id);
}

// The middle of the edge of a card that looks at the other side, on the map.
function anchor(id, frame) {
  const card = cardOf(id);
  if (!card || card.closest("#plain-side")) return null;
  const box = card.getBoundingClientRect();
  const isLeft = box.left + box.width / 2 < frame.left + frame.width / 2;
  const x = (isLeft ? box.right : box.left) - frame.left;
  return { x, y: box.top + box.height / 2 - frame.top, out: isLeft ? 1 : -1, height: box.height };
}

function bend(a, b, frame) {
  const reach = Math.max(18, Math.abs(b.x - a.x) / 2, frame.width * 0.04);
  return [a.x + a.out * reach, b.x + b.out * reach];
}

function at(a, b, t, frame) {
  const [c, d] = bend(a, b, frame);
  const u = 1 - t;
  return {
    x: u * u * u * a.x + 3 * u * u * t * c + 3 * u * t * t * d + t * t * t * b.x,
    y: u * u * (u + 3 * t) * a.y + t * t * (3 * u + t) * b.y,
  };
}

const ease = (t) => (t < 0.5 ? 2 * t * t : 1 - (2 - 2 * t) ** 2 / 2);

// Where many wait at one edge they form a block, row by row.
function docked(anchor, place) {
  const column = Math.floor(place / 9);
  const row = place % 9;
  const y = anchor.y + (row % 2 ? 1 : -1) * Math.ceil(row / 2) * Math.min(11, anchor.height / 10);
  return { x: anchor.x + anchor.out * (9 + column * 11), y };
}

function frameOf() {
  return byId("engines").getBoundingClientRect();
}

function step(now) {
  requestAnimationFrame(step);
  if (!last || document.hidden) return;
  const frame = frameOf();
  const anchors = new Map();
  const find = (id) => {
    if (!anchors.has(id)) anchors.set(id, id ? anchor(id, frame) : null);
    return anchors.get(id);
  };
  const taken = new Map();
  const place = (key) => {
    const number = taken.get(key) ?? 0;
    taken.set(key, number + 1);
    return number;
  };
  let waiting = 0;
  for (const [id, dot] of dots) {
    const age = now - dot.since;
    const a = find(dot.from);
    const b = find(dot.to);
    if (age < 0 || !(a || b || dot.phase === "waiting")) {
      dot.circle.style.display = "none";
      if (!a && !b && (dot.replayed || dot.phase === "over")) drop(id);
      continue;
    }
    dot.circle.style.display = "";
    const { spot, colour, fade, radius } = position(dot, a, b, age, frame, place, () => waiting++);
    if (!spot) {
      drop(id);
      continue;
    }
    const { circle } = dot;
    circle.setAttribute("cx", spot.x.toFixed(1));
    circle.setAttribute("cy", spot.y.toFixed(1));
    circle.setAttribute("r", radius ?? 4.5);
    circle.style.opacity = fade ?? 1;
    if (circle.dataset.phase !== colour) circle.dataset.phase = colour;
  }
}

function position(dot, a, b, age, frame, place, next) {
  const start = a ?? { x: frame.width / 2, y: b?.y ?? 0, out: 0, height: 80 };
  const end = b ?? a;
  if (dot.replayed) {
    const t = age / CROSS_MS;
    if (t > 1) Object.assign(dot, { replayed: false, phase: "over", since: dot.since + CROSS_MS });
    const colour = t < 0.12 && a ? "prefill" : a && b && t < 0.8 ? "crossing" : dot.end;
    return { spot: end && at(start, end, ease(Math.min(1, t)), frame), colour };
  }
  switch (dot.phase) {
    case "waiting":
      return { spot: { x: frame.width / 2 - 60 + (next() % 12) * 11, y: 12 }, colour: "waiting" };
    case "prefill": {
      const key = a ? dot.from : dot.to;
      const pulse = still.matches ? 4.5 : 4.2 + Math.sin((age + dot.spin * 900) / 180);
      return { spot: docked(a ?? end, place(`p ${key}`)), colour: "prefill", radius: pulse };
    }
    case "crossing": {
      if (!b) return { spot: docked(start, place(`p ${dot.from}`)), colour: "crossing" };
      // It goes and comes again for as long as nobody knows how far it is.
      const t = still.matches ? 0.5 : ((age / CROSS_MS) % 1.15) / 1.15;
      return { spot: at(start, end, ease(t), frame), colour: "crossing" };
    }
    case "answering": {
      const pulse = still.matches ? 4.5 : 4.4 + 0.8 * Math.sin((age + dot.spin * 900) / 260);
      return { spot: end && docked(end, place(`d ${dot.to}`)), colour: "answering", radius: pulse };
    }
    default: {
      const t = age / FADE_MS;
      if (t > 1 || !end) return { spot: null };
      const spot = docked(end, 0);
      const sink = dot.end === "answering" ? 0 : 26 * t;
      return { spot: { x: spot.x - end.out * 9 * t, y: spot.y + sink }, colour: dot.end, fade: 1 - t };
    }
  }
}

// The pairs that were together in the last minute, the more often the thicker.
function drawEdges(picture) {
  const frame = frameOf();
  const board = byId("edges");
  const times = new Map();
  for (const call of [...picture.calls.running, ...picture.calls.ended]) {
    if (!call.prefill || !call.decode || (call.ended && picture.at - call.ended > EDGE_MEMORY_S)) continue;
    const key = JSON.stringify([call.prefill, call.decode]);
    times.set(key, (times.get(key) ?? 0) + 1);
  }
  for (const [key, path] of edges) {
    if (!times.has(key)) {
      path.remove();
      edges.delete(key);
    }
  }
  for (const [key, number] of times) {
    const [from, to] = JSON.parse(key);
    const a = anchor(from, frame);
    const b = anchor(to, frame);
    if (!a || !b) continue;
    if (!edges.has(key)) {
      const path = svg("path");
      edges.set(key, path);
      board.prepend(path);
    }
    const [c, d] = bend(a, b, frame);
    const path = edges.get(key);
    path.setAttribute("d", `M${a.x} ${a.y} C${c} ${a.y} ${d} ${b.y} ${b.x} ${b.y}`);
    path.setAttribute("stroke-width", (1 + Math.log2(1 + number)).toFixed(1));
  }
}

function tell(running, inFlight) {
  const by = (phase) => running.filter((call) => call.phase === phase).length;
  const words = [
    [by("waiting"), "waiting"], [by("prefill"), "reading"], [by("crossing"), "crossing"], [by("answering"), "answering"],
  ].filter(([number]) => number).map(([number, what]) => `${number} ${what}`);
  const more = inFlight > running.length ? ` of ${calls(inFlight)}` : "";
  text(byId("flow"), words.length ? words.join(", ") + more : "no calls in flight");
}

export function beginDrawing() {
  new ResizeObserver(() => last && drawEdges(last)).observe(byId("engines"));
  requestAnimationFrame(step);
}
