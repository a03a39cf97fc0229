// Lines over the last five minutes. The last slots come with each picture, so a page that was
// opened just now shows what was before.

import { byId, h, svg } from "./dom.js";
import { milliseconds, rate } from "./format.js";

const SPAN_S = 300;
const HEIGHT = 168;
const LEFT = 52;
const BOTTOM = 20;
const TOP = 8;

const charts = [];

class Chart {
  // `lines`: [{name, colour, of: (point) -> number or undefined}], `shape`: a number as words.
  constructor(box, lines, shape, band) {
    Object.assign(this, { box, lines, shape, band, points: [], now: 0, hover: null });
    this.legend = h("div", { class: "legend" });
    this.picture = svg("svg", { role: "img" });
    box.classList.add("chart");
    box.append(this.legend, this.picture);
    this.picture.addEventListener("pointermove", (event) => {
      const frame = this.picture.getBoundingClientRect();
      this.hover = event.clientX - frame.left;
      this.draw();
    });
    this.picture.addEventListener("pointerleave", () => {
      this.hover = null;
      this.draw();
    });
    new ResizeObserver(() => this.draw()).observe(box);
  }

  show(points, slotSeconds, now) {
    Object.assign(this, { points, slotSeconds, now });
    this.draw();
  }

  draw() {
    const width = Math.max(160, this.box.clientWidth);
    const x = (at) => LEFT + (width - LEFT - 6) * (1 - (this.now - at) / SPAN_S);
    const values = this.points.flatMap((point) => this.lines.map((line) => line.of(point) ?? 0));
    const { top, ticks } = scale(Math.max(0, ...values));
    const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / top);
    const parts = [];
    for (const tick of ticks) {
      parts.push(svg("line", { class: "grid", x1: LEFT, x2: width - 6, y1: y(tick), y2: y(tick) }));
      parts.push(svg("text", { x: LEFT - 7, y: y(tick) + 4, "text-anchor": "end" }, tick ? this.shape(tick) : "0"));
    }
    for (const minute of [5, 4, 3, 2, 1, 0]) {
      if (width < 420 && minute % 2) continue;
      const words = minute ? `−${minute} min` : "now";
      const anchor = minute ? "middle" : "end";
      parts.push(svg("text", { x: x(this.now - minute * 60), y: HEIGHT - 4, "text-anchor": anchor }, words));
    }
    const shown = this.points.filter((point) => this.now - point.at <= SPAN_S);
    const runs = apart(shown, this.slotSeconds);
    if (this.band) {
      const [low, high] = this.band.map((index) => this.lines[index]);
      for (const run of runs) {
        const good = run.filter((point) => low.of(point) !== undefined);
        if (good.length < 2) continue;
        const there = good.map((point) => `${x(point.at).toFixed(1)} ${y(high.of(point)).toFixed(1)}`);
        const back = good.reverse().map((point) => `${x(point.at).toFixed(1)} ${y(low.of(point)).toFixed(1)}`);
        parts.push(svg("path", { class: `band ${high.colour}`, d: `M${there.join("L")}L${back.join("L")}Z` }));
      }
    }
    for (const line of this.lines) {
      if (line.rare && shown.every((point) => !line.of(point))) continue;
      for (const run of runs) {
        const good = run.filter((point) => line.of(point) !== undefined);
        if (!good.length) continue;
        const spots = good.map((point) => `${x(point.at).toFixed(1)} ${y(line.of(point)).toFixed(1)}`);
        // One alone is a dot: a line with no length and a round end.
        const d = spots.length > 1 ? `M${spots.join("L")}` : `M${spots[0]}h0.01`;
        parts.push(svg("path", { class: `line ${line.colour}`, d, "stroke-width": spots.length > 1 ? 1.8 : 4 }));
      }
    }
    const chosen = this.hover === null ? shown.at(-1) : nearest(shown, (point) => Math.abs(x(point.at) - this.hover));
    if (this.hover !== null && chosen) {
      parts.push(svg("line", { class: "hair", x1: x(chosen.at), x2: x(chosen.at), y1: TOP, y2: HEIGHT - BOTTOM }));
    }
    if (!shown.length) {
      parts.push(svg("text", { x: (width + LEFT) / 2, y: HEIGHT / 2, "text-anchor": "middle" }, "no calls in the last five minutes"));
    }
    this.picture.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.picture.replaceChildren(...parts);
    this.tell(chosen);
  }

  tell(point) {
    const words = this.lines.map((line) => {
      const value = point && line.of(point);
      return [line, value === undefined ? "–" : this.shape(value)];
    });
    const age = point ? Math.max(0, Math.round(this.now - point.at)) : 0;
    const when = this.hover !== null && point ? `${age} s ago` : "";
    this.legend.replaceChildren(
      ...words.map(([line, value]) => h("span", {}, h("i", { class: line.colour }), `${line.name} `, h("b", {}, value))),
      h("span", {}, when),
    );
    this.picture.setAttribute("aria-label", words.map(([line, value]) => `${line.name} ${value}`).join(", "));
  }
}

// Where nothing happened for a while the line is broken.
function apart(points, slotSeconds) {
  const runs = [];
  for (const point of points) {
    const run = runs.at(-1);
    if (run && point.at - run.at(-1).at <= 3 * slotSeconds) run.push(point);
    else runs.push([point]);
  }
  return runs;
}

function nearest(points, distance) {
  return points.reduce((best, point) => (best === undefined || distance(point) < distance(best) ? point : best), undefined);
}

function scale(most) {
  const rough = (most || 1) / 3;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((times) => times * power).find((candidate) => candidate >= rough);
  const top = Math.max(step, Math.ceil(most / step) * step);
  const ticks = [];
  for (let tick = 0; tick <= top + step / 2; tick += step) ticks.push(tick);
  return { top, ticks };
}

export function makeCharts() {
  const quantiles = (key, colours) => ["p50", "p95", "p99"].map((name, index) => ({
    name, colour: colours[index], of: (point) => point[key][index],
  }));
  charts.push(
    new Chart(byId("ttft"), quantiles("ttft_ms", ["c-prefill", "c-crossing", "c-quiet"]), milliseconds, [0, 1]),
    new Chart(byId("itl"), quantiles("itl_ms", ["c-decode", "c-crossing", "c-quiet"]), milliseconds, [0, 1]),
    new Chart(byId("rate"), [
      { name: "good", colour: "c-good", of: (point) => point.ok },
      { name: "failed", colour: "c-bad", of: (point) => point.failed, rare: true },
      { name: "client left", colour: "c-quiet", of: (point) => point.gone, rare: true },
    ], rate),
  );
}

export function showCharts({ points, slot_seconds: slotSeconds }, now) {
  const measured = (key) => points.filter((point) => point[key].length);
  const steady = filled(points, slotSeconds, now);
  charts[0].show(measured("ttft_ms"), slotSeconds, now);
  charts[1].show(measured("itl_ms"), slotSeconds, now);
  charts[2].show(steady, slotSeconds, now);
}

// Of rates, no calls is a number too.
function filled(points, slotSeconds, now) {
  if (!points.length) return [];
  const known = new Map(points.map((point) => [point.at, point]));
  const all = [];
  for (let at = points[0].at; at <= now - slotSeconds - 1; at += slotSeconds) {
    all.push(known.get(at) ?? { at, ok: 0, failed: 0, gone: 0, ttft_ms: [], itl_ms: [] });
  }
  return all;
}
