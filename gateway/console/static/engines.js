// A card for each engine, made once and then brought up to date.

import { byId, h, text } from "./dom.js";
import { count, milliseconds, percent } from "./format.js";

const GOOD = new Set(["up"]);
const ON_ITS_WAY = new Set(["slow_start", "trial"]);
const MEANT = new Set(["drained", "asleep"]);
const STATES = {
  up: "up", slow_start: "slow start", trial: "on trial", silent: "silent", down: "down",
  drained: "drained", asleep: "asleep", ejected: "ejected",
};

// From so many on a side has two columns.
const MANY = 8;

const cards = new Map();

// Where it is on the map: an engine that may do both is where it serves just now.
export function sideOf(engine) {
  if (engine.role !== "both") return engine.role;
  return engine.sides?.length === 1 ? engine.sides[0] : "prefill";
}

export const cardOf = (id) => cards.get(id)?.root;

export function showEngines(engines, change) {
  const seen = new Set(engines.map((engine) => engine.id));
  for (const [id, card] of cards) {
    if (!seen.has(id)) {
      card.root.remove();
      cards.delete(id);
    }
  }
  for (const engine of engines) {
    if (!cards.has(engine.id)) cards.set(engine.id, make(engine.id));
    const card = cards.get(engine.id);
    card.change = change;
    card.last = isLast(engine, engines);
    const box = byId(sideOf(engine));
    if (card.root.parentNode !== box) box.append(card.root);
    update(card, engine);
  }
  for (const side of ["encode", "plain"]) byId(`${side}-side`).hidden = !engines.some((engine) => sideOf(engine) === side);
  for (const side of ["prefill", "decode"]) {
    const box = byId(side);
    box.classList.toggle("many", box.childElementCount > MANY);
    const none = box.querySelector("p.none");
    if (!box.querySelector(".card")) {
      if (!none) box.append(h("p", { class: "none quiet" }, "none"));
    } else none?.remove();
  }
}

function isLast(engine, engines) {
  const side = sideOf(engine);
  return !engines.some((other) => other.id !== engine.id && sideOf(other) === side && GOOD.has(other.state));
}

function make(id) {
  const card = { armed: 0 };
  const number = (words) => {
    const value = h("dd");
    const row = h("div", {}, h("dt", {}, words), value);
    return { row, value };
  };
  card.state = h("span", { class: "pill" });
  card.where = h("p", { class: "where" });
  card.calls = number("calls");
  card.queued = number("tokens to read");
  card.waiting = number("waiting");
  card.step = number("a step");
  card.fill = h("i");
  card.bar = h("div", { class: "bar", role: "img" }, card.fill);
  card.share = h("span");
  card.notes = h("p", { class: "notes" });
  card.button = h("button", { type: "button", class: "small", onclick: () => press(card) });
  card.root = h(
    "article",
    { class: "card", "data-id": id, "aria-label": `engine ${id}` },
    h("div", { class: "name" }, h("span", { class: "id", title: id }, id), card.state),
    card.where,
    h("dl", { class: "numbers" }, card.calls.row, card.queued.row, card.waiting.row, card.step.row),
    h("div", { class: "kv" }, card.bar, card.share, card.button),
    card.notes,
  );
  return card;
}

function update(card, engine) {
  card.engine = engine;
  const side = sideOf(engine);
  const load = engine.load ?? {};
  card.root.className = `card on-${side}${GOOD.has(engine.state) || ON_ITS_WAY.has(engine.state) ? "" : " out"}`;
  text(card.state, STATES[engine.state] ?? engine.state);
  const kind = GOOD.has(engine.state) ? "good" : MEANT.has(engine.state) || ON_ITS_WAY.has(engine.state) ? "warn" : "bad";
  card.state.className = `pill ${kind}`;
  const role = engine.role === "both" ? "both sides, " : "";
  text(card.where, `${role}${engine.protocol} · ${engine.models.join(", ") || "no model yet"}`);
  card.where.title = engine.url;
  text(card.calls.value, count(engine.calls));
  text(card.queued.value, count(engine.queued_tokens));
  card.queued.row.hidden = side === "decode" && !engine.queued_tokens;
  text(card.waiting.value, count(load.waiting ?? 0));
  card.waiting.row.hidden = load.waiting === null || load.waiting === undefined;
  text(card.step.value, milliseconds(1000 * (load.step_seconds ?? 0)));
  card.step.row.hidden = !load.step_seconds;
  const free = load.kv_free;
  const known = free !== null && free !== undefined;
  const used = known ? Math.min(1, Math.max(0, 1 - free)) : 0;
  card.fill.style.width = `${100 * used}%`;
  card.bar.classList.toggle("full", used > 0.9);
  card.bar.setAttribute("aria-label", known ? `KV cache ${percent(used)} used` : "KV use unknown");
  text(card.share, known ? `KV ${percent(used)}` : "KV ?");
  card.share.title = known ? `as it said ${Math.round(engine.told_seconds_ago ?? 0)} s ago` : "it does not say";
  text(card.notes, notes(engine));
  card.notes.hidden = !card.notes.textContent;
  if (Date.now() > card.armed) text(card.button, engine.state === "drained" ? "Undrain" : "Drain");
  const what = engine.state === "drained" ? "Undrain" : "Drain";
  card.button.setAttribute("aria-label", `${what} ${engine.id}`);
}

function notes(engine) {
  const found = [];
  if (engine.stranded) found.push(`KV of ${engine.stranded} ${engine.stranded === 1 ? "prompt" : "prompts"} stranded`);
  if (engine.hint) found.push(engine.hint);
  return found.join("; ");
}

// The last one of its side takes a second press: without it calls wait or fail.
function press(card) {
  const drains = card.engine.state !== "drained";
  if (drains && card.last && Date.now() > card.armed) {
    card.armed = Date.now() + 5000;
    text(card.button, `It is the last: sure?`);
    return;
  }
  card.armed = 0;
  card.change(card.engine.id, drains, card.button);
}
