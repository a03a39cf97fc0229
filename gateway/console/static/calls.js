// The table of calls: those that run on top, then those that ended last.

import { byId, h, text } from "./dom.js";
import { milliseconds, seconds } from "./format.js";

const ROWS = 40;
const PHASES = { waiting: "waits", prefill: "reading", crossing: "KV crosses", answering: "answers" };
const WAYS = {
  disaggregated: "split", local: "whole, at decode", decode_only: "recomputed", prefill_only: "prefill alone", plain: "plain",
};

const rows = new Map();

export function showTable({ running, ended }, now, choose) {
  const body = byId("calls").tBodies[0];
  const shown = [...running.slice(0, ROWS / 2), ...ended].slice(0, ROWS);
  const seen = new Set(shown.map((call) => call.id));
  for (const [id, row] of rows) {
    if (!seen.has(id)) {
      row.root.remove();
      rows.delete(id);
    }
  }
  // Whoever has the focus keeps it, because a row that stays is not made anew.
  shown.forEach((call, index) => {
    if (!rows.has(call.id)) rows.set(call.id, make(call.id, choose));
    const row = rows.get(call.id);
    update(row, call, now);
    if (body.children[index] !== row.root) body.insertBefore(row.root, body.children[index] ?? null);
  });
  const none = body.querySelector(".none");
  if (!shown.length && !none) body.append(h("tr", {}, h("td", { class: "none", colspan: 8 }, "No calls yet.")));
  else if (shown.length) none?.parentNode.remove();
}

function make(id, choose) {
  const cell = (kind = "") => h("td", { class: kind });
  const row = {
    age: cell(), model: cell("spare"), way: cell("way"), how: cell("spare"), first: cell("number"), total: cell("number"), result: cell(),
  };
  const link = h("button", { type: "button", class: "link", title: `${id}: why this pair?` }, id);
  row.root = h(
    "tr", { "data-call": id, onclick: () => choose(id) },
    h("td", {}, link), row.age, row.model, row.way, row.how, row.first, row.total, row.result,
  );
  return row;
}

function update(row, call, now) {
  text(row.age, seconds(Math.max(0, now - (call.ended ?? call.started))));
  text(row.model, call.model);
  const way = [call.prefill, call.decode].join("\n");
  if (row.shownWay !== way) {
    row.shownWay = way;
    const parts = [];
    if (call.prefill) parts.push(h("span", { class: "p" }, call.prefill));
    if (call.prefill && call.decode) parts.push(h("span", { class: "x" }, "→"));
    if (call.decode) parts.push(h("span", { class: "d" }, call.decode));
    row.way.replaceChildren(...parts);
  }
  const again = call.attempts > 1 ? `, ${call.attempts} attempts` : "";
  text(row.how, (WAYS[call.path] ?? call.path) + again);
  text(row.first, milliseconds(call.first_byte_ms));
  text(row.total, call.ended ? milliseconds(1000 * (call.ended - call.started)) : "");
  const runs = call.phase !== "over";
  text(row.result, runs ? PHASES[call.phase] : call.outcome.replaceAll("_", " "));
  row.result.className = runs ? call.phase : call.outcome === "ok" ? "ok" : call.outcome === "client_gone" ? "quiet" : "failed";
}
