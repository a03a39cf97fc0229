// Who may see, the connection, and what goes where.

import { showCalls, beginDrawing } from "./crossing.js";
import { makeCharts, showCharts } from "./charts.js";
import { showTable } from "./calls.js";
import { byId, h, pill, text } from "./dom.js";
import { showEngines } from "./engines.js";
import { Refused, ask, watch } from "./feed.js";
import { count, milliseconds, rate } from "./format.js";
import { openWhy } from "./why.js";

const KEY = "pdgate-admin-token";

let token = sessionStorage.getItem(KEY) ?? "";
let stop = () => {};

function enter() {
  byId("door").hidden = true;
  byId("forget").hidden = false;
  stop = watch(token, { shown, line, refused: leave });
}

function leave(why = "") {
  stop();
  token = "";
  sessionStorage.removeItem(KEY);
  for (const id of ["board", "forget", "serving"]) byId(id).hidden = true;
  text(byId("workers"), "");
  byId("why").close();
  byId("door").hidden = false;
  text(byId("refused"), why);
  pill(byId("line"), "not connected", "");
  byId("token").value = "";
  byId("token").focus();
}

function line(words) {
  pill(byId("line"), words, words === "live" ? "good" : "bad");
  byId("board").classList.toggle("stale", words !== "live");
}

function shown(picture) {
  if (!token) return;
  byId("board").hidden = false;
  serving(picture);
  figures(picture);
  showEngines(picture.instances, change);
  showCalls(picture);
  showCharts(picture.chart, picture.at);
  showTable(picture.calls, picture.at, tellWhy);
  scope(picture);
}

function serving(picture) {
  const lacks = picture.missing.map((one) => `${one.role}: ${one.why}`).join("; ");
  if (picture.draining) pill(byId("serving"), "draining: no new calls", "warn");
  else if (picture.ready && picture.failed_jobs.length)
    pill(byId("serving"), `serving, without ${picture.failed_jobs.join(", ")}`, "warn");
  else if (picture.ready) pill(byId("serving"), "serving", "good");
  else pill(byId("serving"), lacks ? `not ready, ${lacks}` : "not ready", "bad");
}

const boxes = new Map();

function figures(picture) {
  const recent = picture.chart.points.filter((point) => picture.at - point.at <= 12);
  const latest = (key, index) => recent.filter((point) => point[key].length).at(-1)?.[key][index];
  const perSecond = recent.length ? recent.reduce((sum, point) => sum + point.ok + point.failed + point.gone, 0) / 5 : 0;
  const stranded = Object.values(picture.kv.stranded).reduce((sum, number) => sum + number, 0);
  const ever = Object.values(picture.kv.strandings).reduce((sum, number) => sum + number, 0);
  figure("Calls in flight", count(picture.in_flight));
  figure("Calls per second", rate(Math.round(perSecond * 10) / 10));
  figure("TTFT p95", milliseconds(latest("ttft_ms", 1)));
  figure("ITL p95", milliseconds(latest("itl_ms", 1)));
  figure("KV held for decode", count(picture.kv.held), picture.kv.held === 1 ? "prompt" : "prompts");
  figure("KV stranded", count(stranded), ever ? `now, ${count(ever)} ever` : "", stranded ? "warn" : "");
}

function figure(name, words, unit = "", kind = "") {
  if (!boxes.has(name)) {
    const value = h("span");
    const small = h("small");
    const root = h("div", {}, h("dt", {}, name), h("dd", {}, value, small));
    byId("figures").append(root);
    boxes.set(name, { root, value, small });
  }
  const box = boxes.get(name);
  text(box.value, words);
  text(box.small, unit);
  box.root.className = kind;
}

function scope(picture) {
  const { told, silent } = picture.workers;
  const missing = silent ? `, ${silent} silent` : "";
  text(byId("workers"), told + silent > 1 ? `${told} workers${missing}` : "");
  const many = told + silent > 1
    ? "Calls, KV and charts are of all workers of this gateway; what engines say of their load is as one of them read it. "
    : "";
  text(byId("scope"), `${many}TTFT is of streams, or of first bytes where nothing streams. Charts are in slots of `
    + `${picture.chart.slot_seconds} s. pdgate ${picture.version}.`);
}

async function change(id, drains, button) {
  button.disabled = true;
  const verb = drains ? "drain" : "undrain";
  try {
    await ask(`../admin/instances/${encodeURIComponent(id)}/${verb}`, token, { method: "POST" });
    text(byId("said"), drains ? `${id} gets no more calls; those that run there go on.` : `${id} gets calls again.`);
  } catch (error) {
    if (error instanceof Refused) return leave(error.message);
    text(byId("said"), `${id} could not be ${verb}ed: ${error.message}`);
  } finally {
    button.disabled = false;
  }
}

async function tellWhy(id) {
  try {
    openWhy(id, await (await ask(`../admin/calls/${encodeURIComponent(id)}`, token)).json());
  } catch (error) {
    if (error instanceof Refused) return leave(error.message);
    openWhy(id, error);
  }
}

byId("ask").addEventListener("submit", async (event) => {
  event.preventDefault();
  const given = byId("token").value.trim();
  try {
    // A header holds Latin-1 only; what is not is surely no token of ours.
    if (!/^[\x21-\x7e]+$/.test(given)) throw new Refused("That is not this gateway's admin token.");
    await ask("../admin/instances", given);
  } catch (error) {
    return text(byId("refused"), error instanceof Refused ? error.message : `The gateway is away: ${error.message}`);
  }
  token = given;
  sessionStorage.setItem(KEY, token);
  text(byId("refused"), "");
  enter();
});
byId("forget").addEventListener("click", () => leave());
byId("close").addEventListener("click", () => byId("why").close());

// A page that the browser only keeps for "back" holds no connection.
addEventListener("pagehide", () => stop());
addEventListener("pageshow", (event) => {
  if (event.persisted && token) enter();
});

makeCharts();
beginDrawing();
if (token) enter();
else leave();
