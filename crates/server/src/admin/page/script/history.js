// The view "History": charts of up to a day, which the server keeps. Dragging across a chart zooms
// into it.

import { Chart } from "./chart.js";
import { choice } from "./choice.js";
import { h, say } from "./elements.js";
import { duration, moment } from "./format.js";
import { pastOf } from "./model.js";
import { SPECS } from "./series.js";

const HOUR = 3600;
const RANGES = [["10 min", 600], ["1 h", HOUR], ["6 h", 6 * HOUR], ["24 h", 24 * HOUR]];
/** The shortest time that a zoom shows, in seconds. */
const SHORTEST = 5;
/** Least interval between two requests for the past, in seconds. */
const INTERVAL = 5;
const CHARTS = ["requests", "latency", "hits", "cpu", "memory", "network", "evictions", "limits", "unsynced", "commit",
  "written"];

export class HistoryView {
  name = "history";
  title = "History";
  #range = 600;
  /**
   * The part that is shown, in seconds; null follows the present.
   * @type {?{from: number, to: number}}
   */
  #zoomed = null;
  /** @type {?import("./model.js").Past} */
  #past = null;
  #readAt = -Infinity;
  #asked = 0;
  #begins = h("p", { class: "soft" });
  #shown = h("p", { class: "shown", role: "status" });
  #events = h("ol", { class: "events" });
  #charts;

  /** @param {import("./model.js").Model} model */
  constructor(model) {
    this.model = model;
    const zoom = (from, to) => this.#zoom(from, to);
    this.#charts = CHARTS.map((name) => new Chart(SPECS[name], { sync: "history", zoom }));
    const button = (text, label, click) =>
      h("button", { type: "button", "aria-label": label, title: label, click }, text);
    this.element = h("div", {},
      this.#begins,
      h("div", { class: "controls" },
        choice("Time shown", RANGES, this.#range, (range) => this.#choose(range)),
        h("div", { class: "choice", role: "group", "aria-label": "Zoom" },
          button("◀", "Earlier", () => this.#move(-0.5)), button("▶", "Later", () => this.#move(0.5)),
          button("+", "Zoom in", () => this.#scale(0.5)), button("−", "Zoom out", () => this.#scale(2)),
          button("Reset", "Reset the zoom", () => this.#zoom(null, null))),
        this.#shown),
      h("p", { class: "soft hint" }, "Drag across a chart to zoom in. A dashed line marks an event."),
      h("div", { class: "charts" }, this.#charts.map((chart) => chart.element)),
      h("section", {}, h("h3", {}, "Events"), this.#events));
    this.element.querySelector('[data-chart="requests"]').classList.add("wide");
  }

  open() {
    this.#readAt = -Infinity;
  }

  /** Starts anew after a restart of the server. */
  restarted() {
    this.#past = null;
    this.#zoomed = null;
    this.#readAt = -Infinity;
  }

  update() {
    const now = performance.now() / 1000;
    const interval = Math.max(INTERVAL, this.#range / 600);
    if (now - this.#readAt < interval) return;
    this.#readAt = now;
    this.#read();
  }

  async #read() {
    const asked = ++this.#asked;
    const past = await pastOf(this.#range).catch(() => null);
    // If a later request was sent meanwhile, only its answer counts.
    if (past === null || asked !== this.#asked) return;
    this.#past = past;
    this.#show();
  }

  #choose(range) {
    this.#range = range;
    this.#zoomed = null;
    this.#read();
  }

  #zoom(from, to) {
    if (this.#past === null) return;
    this.#zoomed = from === null ? null : { from, to: Math.max(to, from + SHORTEST) };
    this.#show();
  }

  /** Moves the part that is shown by a share of its length. */
  #move(share) {
    const { from, to } = this.#window();
    const whole = this.#wholeWindow();
    const length = to - from;
    const start = Math.min(Math.max(from + share * length, whole.from), whole.to - length);
    if (length < whole.to - whole.from) this.#zoom(start, start + length);
  }

  #scale(factor) {
    const { from, to } = this.#window();
    const whole = this.#wholeWindow();
    const [middle, half] = [(from + to) / 2, Math.max(SHORTEST, (to - from) * factor) / 2];
    if (half * 2 >= whole.to - whole.from) this.#zoom(null, null);
    else {
      const start = Math.min(Math.max(middle - half, whole.from), whole.to - 2 * half);
      this.#zoom(start, start + 2 * half);
    }
  }

  #wholeWindow() {
    const to = this.model.latest?.time ?? this.#past?.times.at(-1) ?? Date.now() / 1000;
    return { from: to - this.#range, to };
  }

  #window() {
    return this.#zoomed ?? this.#wholeWindow();
  }

  #show() {
    const past = this.#past;
    const { from, to } = this.#window();
    const begins = past.begins === null ? "It is empty."
      : `It begins at ${moment(past.begins)}, ${duration(this.#wholeWindow().to - past.begins)} ago.`;
    say(this.#begins, `The server keeps 24 hours in memory. The history starts empty at each start of the server. ${begins}`);
    const step = past.step === 1 ? "one second" : `${past.step} seconds`;
    const none = past.times.length === 0 ? ` The first step of ${step} has not ended yet.` : "";
    say(this.#shown, `${moment(from)} to ${moment(to)}, in steps of ${step}.${none}`);
    this.element.classList.toggle("zoomed", this.#zoomed !== null);
    for (const chart of this.#charts) chart.show({ past, from, to });
    this.#listEvents(past.events);
  }

  #listEvents(events) {
    const entry = (event) => h("li", {},
      h("time", { datetime: new Date(event.time * 1000).toISOString() }, moment(event.time)), " ", event.text);
    this.#events.replaceChildren(...(events.length === 0 ? [h("li", { class: "soft" }, "None in this time.")]
      : events.toReversed().map(entry)));
  }
}
