// The story of one call: what was decided, for whom, and how long each part of it took.

import { byId, h } from "./dom.js";
import { milliseconds } from "./format.js";

const STAGES = {
  queue: "waited for room", encode: "media encoded", choose: "engines chosen", choose_prefill: "P chosen", prefill: "prefill", choose_decode: "D chosen",
  kv_wait: "waited for KV", decode_first_byte: "decode's first byte", decode: "rest of the answer",
  first_byte: "first byte to the client", total: "in all",
};

export function openWhy(id, record) {
  byId("why-title").textContent = `Call ${id}`;
  const dialog = byId("why");
  byId("story").replaceChildren(...(record instanceof Error ? [h("p", { class: "bad" }, record.message)] : story(record)));
  if (!dialog.open) dialog.showModal();
}

function story(record) {
  return [h("p", { class: "lead" }, lead(record)), timeline(record), stages(record), ...why(record)].filter(Boolean);
}

function lead(record) {
  const legs = record.attempts.at(-1)?.legs ?? [];
  const prefill = legs.findLast((leg) => leg.role === "prefill")?.instance;
  const answer = legs.findLast((leg) => !["prefill", "encode"].includes(leg.role))?.instance;
  const encoders = [...new Set(legs.filter((leg) => leg.role === "encode").map((leg) => leg.instance))];
  const parts = [];
  if (encoders.length) parts.push(`${encoders.join(", ")} encoded its media.`);
  if (prefill && answer) parts.push(`${prefill} read the prompt, ${answer} answered.`);
  else if (answer) parts.push(`${answer} did all of it${record.why_local ? ` (${record.why_local})` : ""}.`);
  else if (prefill) parts.push(`Only ${prefill} was asked.`);
  else parts.push("No engine has been asked.");
  if (prefill && answer) parts.push(record.kv === "handed_over" ? "Its KV was handed over." : "No KV was handed over.");
  if (record.attempts.length > 1) parts.push(`It took ${record.attempts.length} attempts.`);
  if (record.resumed) parts.push(`Another engine went on with it ${record.resumed} times.`);
  parts.push(record.outcome === "ok" ? "It went well." : record.outcome === "running" ? "It still runs." : `It ended with ${record.outcome} (${record.status}).`);
  return parts.join(" ");
}

function timeline(record) {
  const legs = record.attempts.flatMap((attempt, index) => attempt.legs.map((leg) => ({ ...leg, attempt: index + 1 })));
  if (!legs.length) return null;
  const known = legs.map((leg) => leg.ended_ms ?? leg.started_ms + 1);
  const end = Math.max(record.stages_ms.total ?? 0, ...known, 1);
  const rows = legs.flatMap((leg) => {
    const stop = leg.ended_ms ?? end;
    const kind = !["ok", "running"].includes(leg.outcome) ? "failed" : leg.role === "prefill" ? "prefill" : "";
    const bar = h("i", { class: kind });
    bar.style.left = `${(100 * leg.started_ms) / end}%`;
    bar.style.width = `${(100 * (stop - leg.started_ms)) / end}%`;
    const again = record.attempts.length > 1 ? `${leg.attempt}. ` : "";
    return [
      h("span", { class: "mono", title: leg.instance }, `${again}${leg.instance}`),
      h("div", { class: "track", title: `${leg.role}, from ${milliseconds(leg.started_ms)}` }, bar),
      h("span", {}, `${leg.role} ${milliseconds(stop - leg.started_ms)}, ${leg.outcome.replaceAll("_", " ")}`),
    ];
  });
  return h("div", {}, h("h3", {}, "Legs"), h("div", { class: "times" }, rows));
}

function stages(record) {
  // Where decode is asked when prefill has answered, both are the same time: from there to its first byte.
  const { kv_wait: waited, decode_first_byte: first } = record.stages_ms;
  const same = waited !== undefined && first !== undefined && Math.abs(waited - first) < 0.1;
  const found = Object.entries(record.stages_ms).filter(([stage]) => !(same && stage === "decode_first_byte"));
  if (!found.length) return null;
  const tags = found.map(([stage, took]) => h("span", {}, `${STAGES[stage] ?? stage.replaceAll("_", " ")} `, h("b", {}, milliseconds(took))));
  return h("div", {}, h("h3", {}, `Stages (${record.protocol}, ${record.mode || "one leg"})`), h("div", { class: "stages" }, tags));
}

function why(record) {
  const boxes = record.attempts.map((attempt, index) => decision(attempt.decision, record.attempts.length > 1 ? index + 1 : 0));
  const choices = (record.choices ?? []).map((choice) => choiceBox(choice, record.attempts.length > 1));
  const none = choices.length ? [] : [h("p", { class: "quiet" }, "Why these were chosen was not kept: that is done while somebody watches, or with --debug-routes.")];
  return [h("div", {}, h("h3", {}, "Why these engines"), boxes, choices, none)];
}

function decision(found, number) {
  if (!found) return null;
  const expected = Object.entries(found.expected_ms).map(([way, took]) => `${way.replaceAll("_", " ")} ${milliseconds(took)}`);
  const words = `${number ? `Attempt ${number}: ` : ""}${found.taken.replaceAll("_", " ")}, because: ${found.reason}`;
  return h("div", { class: "choice" }, h("span", {}, words), expected.length ? h("span", { class: "quiet" }, ` (expected: ${expected.join(", ")})`) : null);
}

function choiceBox(choice, several) {
  const considered = choice.considered ?? [];
  const left = choice.left_out ?? [];
  const rule = choice.rule ?? [];
  const valueOf = (one, by) => (by === "score" ? one.score : one.values?.[by]);
  // A column for each value that a step of the rule compares, so that the choice can be computed again.
  const columns = [...new Set(["score", ...rule.map((step) => step.by)])]
    .filter((by) => considered.some((one) => typeof valueOf(one, by) === "number"));
  const number = (value) => (
    typeof value !== "number" ? "" : String(Number.isInteger(value) ? value : Number(value.toPrecision(6)))
  );
  const row = (one, kind) => h(
    "tr", { class: one.instance === choice.chosen ? "chosen" : "" },
    h("td", { class: "mono" }, `${one.instance === choice.chosen ? "✓ " : ""}${one.instance}`),
    columns.map((by) => h("td", { class: "number" }, number(valueOf(one, by)))),
    h("td", { class: kind }, one.why ?? ""),
  );
  const head = columns.length
    ? h("thead", {}, h("tr", {}, h("th", {}, "Engine"), columns.map((by) => h("th", { class: "number" }, by.replaceAll("_", " "))), h("th", {}, "")))
    : null;
  const title = [
    several && choice.attempt ? `Attempt ${choice.attempt}, ` : "", choice.role, ": ",
    choice.chosen ?? "nobody", choice.policy ? `, by ${choice.policy}` : "",
  ].join("");
  return h(
    "div", { class: "choice" }, h("p", {}, h("b", {}, title)),
    choice.decided_by ? h("p", {}, `Decided by: ${choice.decided_by}`) : null,
    rule.length > 1 ? h("p", { class: "quiet" }, `Rule: ${rule.map((step) => step.words).join(", then ")}`) : null,
    h("table", {}, head, h("tbody", {}, considered.map((one) => row(one, "")), left.map((one) => row(one, "quiet")))),
    choice.more ? h("p", { class: "quiet" }, `and ${choice.more} more`) : null,
  );
}
