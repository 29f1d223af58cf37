// The heat maps of the view Tiers: for each device, how many calls took how long, over time.

import { colour, redrawn } from "./chart.js";
import { choice } from "./choice.js";
import { ask } from "./connection.js";
import { h, say } from "./elements.js";
import { clock, count, duration, nanos, whole } from "./format.js";

/**
 * Age of an answer at which the page asks again, in ms. The server adds a step every three seconds.
 */
const FRESH = 1900;
/** The least number of calls for each colour. */
const LEVELS = [1, 10, 100, 1000, 10000, 100000];
const KINDS = [["Reads", "read"], ["Writes", "write"], ["Syncs", "sync"]];
const FONT = '11px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif';
/** Sizes in pixels. */
const ROW = 8;
const LEFT = 56;
const RIGHT = 12;
const TOP = 6;
const BOTTOM = 22;
/** Least distance between labels of the time axis in pixels, and possible distances in seconds. */
const LABEL = 64;
const TICKS = [15, 30, 60, 120];

/** Returns the colour of a cell as a variable of the style sheet. */
const levelOf = (calls) => `--h${LEVELS.findLastIndex((least) => calls >= least) + 1}`;

/**
 * @typedef {{bounds: number[], span: number, times: number[], kind: string}} Scale
 *   `bounds` are those of the rows, in nanoseconds. `times` are the beginning of the first step and
 *   the ends of all steps, in seconds.
 */

class HeatMap {
  #canvas = h("canvas", { "aria-hidden": "true" });
  #plot;
  #title = h("h3");
  #said = h("p", { class: "soft" });
  #spoken = h("p", { class: "unseen", "aria-live": "polite" });
  /** @type {?Scale} */
  #scale = null;
  /** @type {Map<number, number>[]} Calls by row, of each step. */
  #steps = [];
  /** The time and the row of the cell under the cursor. @type {?{time: number, row: number}} */
  #cursor = null;

  constructor() {
    this.#plot = h("div", { class: "heat", role: "img", tabindex: 0, keydown: (event) => this.#key(event),
      blur: () => this.#point(null), pointermove: (event) => this.#hover(event),
      pointerdown: (event) => this.#hover(event), pointerleave: (event) => this.#leave(event) }, this.#canvas);
    this.element = h("figure", { class: "heat-map" }, h("figcaption", {}, this.#title), this.#plot, this.#said,
      this.#spoken);
    new ResizeObserver(() => this.redraw()).observe(this.#plot);
    redrawn(this);
  }

  /**
   * @param {string} name The name of the device.
   * @param {Array<[number, number, number]>} cells Step, row, calls.
   * @param {Scale} scale
   */
  show(name, cells, scale) {
    this.#scale = scale;
    this.#steps = scale.times.slice(1).map(() => new Map());
    for (const [step, row, calls] of cells) this.#steps[step]?.set(row, calls);
    say(this.#title, name);
    this.element.dataset.calls = cells.reduce((sum, [, , calls]) => sum + calls, 0);
    this.redraw();
    this.#tell();
  }

  redraw() {
    const width = Math.floor(this.#plot.clientWidth);
    if (width === 0 || this.#scale === null) return;
    const height = TOP + this.#rows * ROW + BOTTOM;
    const ratio = window.devicePixelRatio;
    const [across, down] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (this.#canvas.width !== across || this.#canvas.height !== down) {
      [this.#canvas.width, this.#canvas.height] = [across, down];
      this.#canvas.style.height = `${height}px`;
    }
    const context = this.#canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    this.#drawAxes(context, width);
    this.#steps.forEach((rows, step) => {
      const [from, to] = this.#edges(step, width);
      // If later steps took long, this step may lie before the beginning of the axis.
      if (to === from) return;
      for (const [row, calls] of rows) {
        context.fillStyle = colour(levelOf(calls));
        context.fillRect(from, this.#top(row), to - from, ROW);
      }
    });
    this.#drawCursor(context, width);
  }

  get #rows() {
    return this.#scale.bounds.length + 1;
  }

  /** The end of the axis of time, in seconds. */
  get #end() {
    return this.#scale.times.at(-1) ?? 0;
  }

  #x(time, width) {
    const share = 1 - (this.#end - time) / this.#scale.span;
    return Math.round(LEFT + Math.max(0, share) * (width - LEFT - RIGHT));
  }

  #edges(step, width) {
    const { times } = this.#scale;
    return [this.#x(times[step], width), this.#x(times[step + 1], width)];
  }

  #top(row) {
    return TOP + (this.#rows - 1 - row) * ROW;
  }

  #drawAxes(context, width) {
    const { bounds, span, times } = this.#scale;
    const [right, bottom] = [width - RIGHT, TOP + this.#rows * ROW];
    context.font = FONT;
    context.fillStyle = colour("--shade");
    context.fillRect(LEFT, TOP, right - LEFT, bottom - TOP);
    if (times.length > 0) {
      const begin = this.#x(times[0], width);
      context.fillStyle = colour("--paper");
      context.fillRect(begin, TOP, right - begin, bottom - TOP);
    }
    context.strokeStyle = colour("--grid");
    context.lineWidth = 1;
    context.strokeRect(LEFT + 0.5, TOP + 0.5, right - LEFT - 1, bottom - TOP - 1);
    context.textAlign = "right";
    context.textBaseline = "middle";
    bounds.forEach((bound, row) => {
      if (!/^10*$/.test(String(bound))) return;
      const y = this.#top(row);
      context.fillStyle = colour("--grid");
      context.fillRect(LEFT, y, right - LEFT, 1);
      context.fillStyle = colour("--soft");
      context.fillText(nanos(bound), LEFT - 6, y);
    });
    if (times.length === 0) return;
    const most = Math.max(1, Math.floor((right - LEFT) / LABEL));
    const tick = TICKS.find((seconds) => span / seconds <= most) ?? TICKS.at(-1);
    context.textAlign = "center";
    context.textBaseline = "top";
    for (let time = Math.ceil((this.#end - span) / tick) * tick; time <= this.#end; time += tick) {
      const x = this.#x(time, width);
      if (x < LEFT + LABEL / 3 || x > right - LABEL / 4) continue;
      context.fillText(clock(time), x, bottom + 6);
    }
  }

  #drawCursor(context, width) {
    const step = this.#stepAt(this.#cursor?.time);
    if (step === null) return;
    const [from, to] = this.#edges(step, width);
    context.strokeStyle = colour("--ink");
    context.lineWidth = 1.5;
    context.strokeRect(from - 0.75, this.#top(this.#cursor.row) - 0.75, to - from + 1.5, ROW + 1.5);
  }

  /** Returns the step that a time is in, or null. */
  #stepAt(time) {
    const { times } = this.#scale ?? { times: [] };
    if (time === undefined) return null;
    const step = times.findLastIndex((begin) => begin <= time);
    return step < 0 || step >= this.#steps.length ? null : step;
  }

  #point(cursor) {
    this.#cursor = cursor;
    this.redraw();
    this.#tell();
  }

  #hover(event) {
    if (this.#scale === null) return;
    const box = this.#canvas.getBoundingClientRect();
    const share = (event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT);
    const row = this.#rows - 1 - Math.floor((event.clientY - box.top - TOP) / ROW);
    const isInside = share >= 0 && share < 1 && row >= 0 && row < this.#rows;
    this.#point(isInside ? { time: this.#end - (1 - share) * this.#scale.span, row } : null);
  }

  /** Hides the figures of a cell, except after a touch. */
  #leave(event) {
    if (event.pointerType !== "touch") this.#point(null);
  }

  /** Arrow keys move from cell to cell, and the figures of the new cell are spoken. */
  #key(event) {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1], PageUp: [-10, 0],
      PageDown: [10, 0], Home: [-Infinity, 0], End: [Infinity, 0] };
    if (!(event.key in moves) || this.#steps.length === 0) return;
    event.preventDefault();
    const [across, up] = moves[event.key];
    const here = this.#stepAt(this.#cursor?.time);
    const last = this.#steps.length - 1;
    // Without a cursor, the first key leads to the slowest calls of the last step that has any.
    const busy = this.#steps.findLastIndex((rows) => rows.size > 0);
    const step = here === null ? (busy === -1 ? last : busy) : clamp(here + across, last);
    const row = here === null ? Math.max(0, ...this.#steps[step].keys()) : clamp(this.#cursor.row + up, this.#rows - 1);
    const { times } = this.#scale;
    this.#point({ time: (times[step] + times[step + 1]) / 2, row });
    say(this.#spoken, this.#said.textContent);
  }

  /** Writes the figures of the cell under the cursor; without a cursor those of all steps. */
  #tell() {
    const step = this.#stepAt(this.#cursor?.time);
    say(this.#said, step === null ? this.#summary() : this.#cell(step, this.#cursor.row));
    if (step === null) {
      this.#plot.setAttribute("aria-label", `${this.#title.textContent}: ${this.#summary()}. `
        + "Arrow keys move through time and duration.");
    }
  }

  #cell(step, row) {
    const { times, kind } = this.#scale;
    const calls = this.#steps[step].get(row) ?? 0;
    return `${clock(times[step])} to ${clock(times[step + 1])}: ${whole(calls)} ${plural(kind, calls)} ${this.#range(row)}`;
  }

  #summary() {
    if (this.#steps.length === 0) return "The server has measured for a few seconds only.";
    const { times, kind } = this.#scale;
    const all = this.#steps.flatMap((rows) => [...rows]);
    const calls = all.reduce((sum, [, number]) => sum + number, 0);
    const time = `in ${duration(Math.round(times.at(-1) - times[0]))}`;
    if (calls === 0) return `No ${plural(kind, 0)} ${time}`;
    const slowest = Math.max(...all.map(([row]) => row));
    return `${count(calls)} ${plural(kind, calls)} ${time}, the slowest ${this.#range(slowest)}`;
  }

  #range(row) {
    const { bounds } = this.#scale;
    if (row === 0) return `up to ${nanos(bounds[0])}`;
    return row < bounds.length ? `of ${nanos(bounds[row - 1])} to ${nanos(bounds[row])}` : `above ${nanos(bounds.at(-1))}`;
  }
}

/** Returns the range of calls that a colour stands for. */
const legend = (least, at) => (at + 1 < LEVELS.length ? `${count(least)}–${count(LEVELS[at + 1] - 1)}` : `${count(least)} or more`);
const clamp = (value, most) => Math.min(most, Math.max(0, value));
const plural = (kind, number) => (number === 1 ? kind : `${kind}s`);

/** The heat maps of all devices. */
export class HeatPanel {
  #kind = KINDS[0][1];
  #askedAt = -Infinity;
  #maps = h("div", { class: "heat-maps" });
  /** @type {HeatMap[]} */
  #shown = [];
  element;

  constructor() {
    const levels = LEVELS.map((least, at) => h("li", {}, h("i", { class: `h${at + 1}` }), legend(least, at)));
    this.element = h("section", { class: "panel", "data-panel": "heat" }, h("h3", {}, "Latency of the devices"),
      h("p", { class: "soft" }, "Each column is three seconds, and each row is a range of durations. The colour of a cell "
        + "tells how many calls took so long."),
      h("div", { class: "controls" }, choice("Calls", KINDS, this.#kind, (kind) => this.#choose(kind)),
        h("ul", { class: "heat-legend", "aria-label": "Calls in a cell" }, levels)),
      this.#maps);
  }

  update() {
    if (performance.now() - this.#askedAt >= FRESH) this.#ask();
  }

  restarted() {
    this.#askedAt = -Infinity;
  }

  #choose(kind) {
    this.#kind = kind;
    this.#ask();
  }

  async #ask() {
    this.#askedAt = performance.now();
    const kind = this.#kind;
    const answer = await ask(`v1/tiers?kind=${kind}`).catch(() => null);
    // Another kind may have been chosen meanwhile.
    if (answer === null || kind !== this.#kind) return;
    const { devices } = answer;
    while (this.#shown.length < devices.length) {
      this.#shown.push(new HeatMap());
      this.#maps.append(this.#shown.at(-1).element);
    }
    const scale = { bounds: answer.bounds, span: answer.span, times: answer.times.map((time) => time / 1000), kind };
    this.#shown.forEach((map, at) => {
      map.element.hidden = at >= devices.length;
      if (at < devices.length) map.show(nameOf(devices[at]), devices[at].cells, scale);
    });
    this.element.dataset.kind = kind;
  }
}

const nameOf = ({ device, lane, lower }) => `${device} (${lower ? "big device of " : ""}lane ${lane})`;
