// A chart over time: lines in a canvas, a legend with the values under the cursor, and marks for
// events.
//
// The view decides which times a chart shows. Colours are variables of the style sheet, read when a
// chart is drawn.

/* global uPlot */

import { h, say, svg } from "./elements.js";
import { clock } from "./format.js";

const FONT = '11px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif';
/** Steps of an axis of bytes. */
const POWERS = Array.from({ length: 50 }, (_, power) => 2 ** power);
/** The chart names an event if the cursor is at most this far from it, in pixels. */
const NEAR = 8;

/**
 * @typedef {{name: string, label: string, colour: string, dash?: number[],
 *   factor?: number}} Line
 *   `name` is the series of the server, and `colour` a variable of the style sheet. Values are
 *   multiplied by `factor`.
 * @typedef {{id: string, title: string, format: (value: ?number) => string, lines: Line[],
 *   top?: number, optional?: boolean, binary?: boolean, height?: number}} Spec
 *   `top` is the upper end of the axis of values. With `binary`, the steps of this axis are powers
 *   of two. An optional chart is hidden if it has only zeros and absent values.
 * @typedef {{past: import("./model.js").Past, from: number, to: number}} Window  In seconds.
 */

/** @type {Set<{redraw: () => void}>} */
const charts = new Set();
const colours = new Map();

/** Makes the page redraw a chart when the colours change. @param {{redraw: () => void}} chart */
export const redrawn = (chart) => charts.add(chart);

/** Returns a variable of the style sheet. */
export function colour(name) {
  if (!colours.has(name)) {
    colours.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  }
  return colours.get(name);
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  colours.clear();
  charts.forEach((chart) => chart.redraw());
});

export class Chart {
  #plot;
  #swatches;
  #values;
  #at = h("span", { class: "at" });
  #told = h("p", { class: "told", hidden: true });
  #spoken = h("p", { class: "unseen", "aria-live": "polite" });
  #uplot = null;
  /** @type {?Window} */
  #window = null;
  #data = [[]];

  /**
   * @param {Spec} spec
   * @param {{sync: string, zoom?: (from: number, to: number) => void}} options
   *   Charts with the same `sync` share the cursor. `zoom` is called after a part was marked by
   *   dragging.
   */
  constructor(spec, { sync, zoom }) {
    this.spec = spec;
    this.sync = sync;
    this.zoom = zoom;
    this.#values = spec.lines.map(() => h("b", {}, "–"));
    this.#swatches = spec.lines.map(swatch);
    const entries = spec.lines.map((line, at) =>
      h("li", {}, this.#swatches[at], h("span", {}, line.label), this.#values[at]));
    this.#plot = h("div", { class: "plot", role: "img", tabindex: 0, "aria-label": spec.title,
      keydown: (event) => this.#key(event), blur: () => this.#uplot?.setCursor({ left: -10, top: -10 }) });
    this.element = h("figure", { class: "chart", "data-chart": spec.id },
      h("figcaption", {}, h("h3", {}, spec.title), this.#at, h("ul", { class: "legend" }, entries)),
      h("div", { class: "frame" }, this.#plot, this.#told), this.#spoken);
    new ResizeObserver(() => this.#resize()).observe(this.#plot);
    redrawn(this);
  }

  /** Draws a part of the past. @param {Window} window */
  show(window) {
    this.#window = window;
    const { past } = window;
    const columns = this.spec.lines.map((line) => {
      const column = past.columns[line.name] ?? Array(past.times.length).fill(null);
      const { factor } = line;
      return factor === undefined ? column : column.map((value) => (value === null ? null : value * factor));
    });
    if (this.spec.optional) this.element.hidden = !columns.some((column) => column.some((value) => value));
    this.#data = [past.times, ...columns];
    if (this.element.hidden) return;
    if (this.#uplot === null) this.#resize();
    else this.#uplot.setData(this.#data);
    this.#tell();
  }

  redraw() {
    this.#uplot?.redraw(false, true);
  }

  #resize() {
    const width = Math.floor(this.#plot.clientWidth);
    if (width === 0 || this.#window === null) return;
    const height = this.spec.height ?? 150;
    if (this.#uplot !== null) {
      if (this.#uplot.width !== width) this.#uplot.setSize({ width, height });
      return;
    }
    this.#uplot = new uPlot(this.#options(width, height), this.#data, this.#plot);
    // The plot has the label. If the canvas had one too, screen readers would read it twice.
    this.#plot.querySelector("canvas").setAttribute("aria-hidden", "true");
    this.#tell();
  }

  #options(width, height) {
    const { spec, sync } = this;
    const axis = { stroke: () => colour("--soft"), font: FONT, gap: 6, ticks: { show: false },
      grid: { stroke: () => colour("--grid"), width: 1 } };
    return {
      width, height,
      legend: { show: false },
      padding: [8, 26, 0, 0],
      cursor: {
        y: false,
        points: { size: 7 },
        drag: { x: this.zoom !== undefined, y: false, setScale: false, dist: 4 },
        sync: { key: sync, scales: ["x", null], filters: { pub: isMove } },
      },
      select: { show: this.zoom !== undefined },
      scales: {
        x: { range: () => [this.#window.from, this.#window.to] },
        y: { range: (u, low, high) => [0, spec.top ?? roomAbove(high)] },
      },
      axes: [
        { ...axis, size: 24, space: 70, values: timeLabels },
        { ...axis, size: 64, space: 32, incrs: spec.binary ? POWERS : undefined,
          values: (u, splits) => splits.map((value) => spec.format(value)) },
      ],
      series: [{}, ...spec.lines.map((line) => ({
        stroke: () => colour(line.colour), width: 1.5, dash: line.dash, points: { show: false }, spanGaps: false,
      }))],
      hooks: {
        drawClear: [(u) => this.#shadeBefore(u)],
        draw: [(u) => this.#markEvents(u)],
        setCursor: [() => this.#tell()],
        setSelect: [(u) => this.#select(u)],
      },
    };
  }

  #select(u) {
    const { left, width } = u.select;
    if (width < 4) return;
    u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    this.zoom?.(u.posToVal(left, "x"), u.posToVal(left + width, "x"));
  }

  /** Shades the time before the oldest step of the history. */
  #shadeBefore(u) {
    const { past, from } = this.#window;
    if (past.begins === null || past.begins <= from) return;
    const end = Math.min(u.valToPos(past.begins, "x", true), u.bbox.left + u.bbox.width);
    u.ctx.fillStyle = colour("--shade");
    u.ctx.fillRect(u.bbox.left, u.bbox.top, end - u.bbox.left, u.bbox.height);
  }

  #markEvents(u) {
    const { ctx, bbox } = u;
    const ratio = uPlot.pxRatio;
    const { past, from, to } = this.#window;
    ctx.save();
    ctx.strokeStyle = ctx.fillStyle = colour("--mark");
    ctx.lineWidth = ratio;
    for (const event of past.events) {
      if (event.time < from || event.time > to) continue;
      const x = Math.round(u.valToPos(event.time, "x", true));
      ctx.setLineDash([3 * ratio, 3 * ratio]);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      ctx.beginPath();
      ctx.moveTo(x - 4 * ratio, bbox.top - 6 * ratio);
      ctx.lineTo(x + 4 * ratio, bbox.top - 6 * ratio);
      ctx.lineTo(x, bbox.top);
      ctx.fill();
    }
    ctx.restore();
  }

  /** Writes the values under the cursor into the legend; without a cursor the latest. */
  #tell() {
    const [times, ...columns] = this.#data;
    const under = this.#uplot?.cursor.idx ?? null;
    const at = under ?? times.length - 1;
    say(this.#at, under === null || times[at] === undefined ? "" : clock(times[at]));
    const texts = columns.map((column) => this.spec.format(column[at] ?? null));
    texts.forEach((text, line) => say(this.#values[line], text));
    const near = this.#near();
    this.#told.hidden = near.length === 0;
    say(this.#told, near.map((event) => `${clock(event.time)} ${event.text}`).join(" "));
    if (under === null) {
      const now = this.spec.lines.map((line, index) => `${line.label} ${texts[index]}`).join(", ");
      this.#plot.setAttribute("aria-label", `${this.spec.title}. Now: ${now}. Arrow keys move through time.`);
    }
  }

  /** Returns the events near the cursor. */
  #near() {
    const u = this.#uplot;
    const left = u?.cursor.left ?? -1;
    if (u === null || left < 0) return [];
    return this.#window.past.events.filter((event) => Math.abs(u.valToPos(event.time, "x") - left) <= NEAR);
  }

  /** Arrow keys move the cursor, and its values are spoken. */
  #key(event) {
    const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity };
    const u = this.#uplot;
    const [times] = this.#data;
    if (u === null || !(event.key in steps) || times.length === 0) return;
    event.preventDefault();
    const { from, to } = this.#window;
    const first = times.findIndex((time) => time >= from);
    const last = times.findLastIndex((time) => time <= to);
    if (first === -1 || last === -1) return;
    const here = u.cursor.idx ?? last + 1;
    const at = Math.min(last, Math.max(first, here + steps[event.key]));
    u.setCursor({ left: u.valToPos(times[at], "x"), top: 1 });
    const values = this.spec.lines.map((line, index) => `${line.label} ${this.#values[index].textContent}`);
    const told = this.#told.hidden ? "" : ` ${this.#told.textContent}`;
    say(this.#spoken, `${clock(times[at])}: ${values.join(", ")}.${told}`);
  }
}

/** Returns the upper end of the axis: the largest value, with some room above it. */
function roomAbove(high) {
  return high === null || high === undefined || high <= 0 ? 1 : high * 1.1;
}

/** Labels of the axis: seconds only between close ticks, days only if there are several. */
function timeLabels(u, splits, axis, space, step) {
  let day = null;
  return splits.map((time) => {
    const date = new Date(time * 1000);
    const isNewDay = day !== null && date.toDateString() !== day;
    day = date.toDateString();
    return isNewDay ? `${date.getMonth() + 1}-${date.getDate()} ${clock(time, false)}` : clock(time, step < 60);
  });
}

/** Charts share the movements of the pointer, not what is marked by dragging. */
const isMove = (type) => type === "mousemove" || type === "mouseleave";

/** The mark of a line in the legend. */
function swatch(line) {
  const stroke = svg("line", { x1: 0, y1: 5, x2: 18, y2: 5, "stroke-width": 2.5,
    "stroke-dasharray": (line.dash ?? []).join(" "), class: line.colour.slice(2) });
  return svg("svg", { class: "swatch", viewBox: "0 0 18 10", "aria-hidden": "true" }, stroke);
}
