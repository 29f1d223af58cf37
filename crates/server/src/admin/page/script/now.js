// The view "Now": the figures of the last second, and charts of the last minutes.

import { Chart } from "./chart.js";
import { choice } from "./choice.js";
import { figure, group, h, setFigure } from "./elements.js";
import { bytes, bytesPerSecond, count, micros, millis, percent, perSecond, whole } from "./format.js";
import { KEPT } from "./model.js";
import { SPECS } from "./series.js";

/** The parts of memory in the bar. */
const PARTS = [["data", "larder_frame_bytes"], ["index", "larder_index_bytes"], ["buffers", "larder_buffer_bytes"]];

const card = (title, [name, label], figures) =>
  group(title, figures, h("p", { class: "main" }, h("b", { "data-figure": name }, "–"), " ", h("span", {}, label)));

export class NowView {
  name = "now";
  title = "Now";
  #seconds = 120;
  #charts = ["requests", "latency", "hits", "cpu", "network", "evictions"]
    .map((name) => new Chart(SPECS[name], { sync: "now" }));
  #latency = card("Latency of all commands", ["p99", "p99"], [["p50", "p50"], ["p99.9", "p999"]]);
  #log = card("Commits", ["unsynced_bytes", "un-synced"],
    [["their age", "unsynced_ms"], ["commits", "commits"], ["commit p99", "commit_us_p99"]]);

  /** @param {import("./model.js").Model} model */
  constructor(model) {
    this.model = model;
    this.element = h("div", {},
      h("div", { class: "cards" },
        card("Requests", ["total", "per second"], [["keys read", "reads"], ["writes", "writes"], ["deletes", "deletes"],
          ["increments", "counts"], ["touches", "touches"]]),
        card("Items", ["hit_ratio", "hit ratio"], [["items", "items"], ["evicted", "evictions"],
          ["expired", "expired"]]),
        this.#latency,
        card("Processors", ["cpu", "busy cores"], [["user", "cpu_user"], ["system", "cpu_system"]]),
        card("Network", ["connections", "connections"], [["limit", "max_connections"], ["received", "received"],
          ["sent", "sent"]]),
        this.#log),
      h("section", { class: "memory" }, h("h3", {}, "Memory"),
        h("div", { class: "bar", role: "img", id: "bar" }, PARTS.map(([name]) => h("i", { class: name }))),
        h("dl", { class: "figures wide parts" }, PARTS.map(([name]) => figure(name, name)), figure("limit", "limit"),
          figure("resident", "resident"))),
      h("section", {}, h("h3", {}, "The last minutes"),
        choice("Time shown", [["2 min", 120], ["5 min", 300], ["10 min", KEPT]], this.#seconds, (seconds) => {
          this.#seconds = seconds;
          this.update();
        }),
        h("div", { class: "charts" }, this.#charts.map((chart) => chart.element))));
    this.element.querySelector('[data-chart="requests"]').classList.add("wide");
    this.#log.id = "log";
    this.#log.hidden = this.#latency.hidden = true;
  }

  update() {
    const { model } = this;
    if (model.latest === null) return;
    const set = (name, value, format) => setFigure(this.element, name, value, format);
    const verbs = ["reads", "writes", "deletes", "counts", "touches"];
    for (const verb of verbs) set(verb, model.value(verb), perSecond);
    set("total", verbs.reduce((sum, verb) => sum + (model.value(verb) ?? 0), 0), count);
    set("hit_ratio", model.value("hit_ratio"), percent);
    set("items", model.number("curr_items"), count);
    set("evictions", model.value("evictions"), perSecond);
    set("expired", model.value("expired"), perSecond);
    const [user, system] = [model.value("cpu_user"), model.value("cpu_system")];
    set("cpu", user === null || system === null ? null : user + system, count);
    set("cpu_user", user, count);
    set("cpu_system", system, count);
    set("connections", model.number("curr_connections"), whole);
    set("max_connections", model.number("max_connections"), whole);
    set("received", model.value("received"), bytesPerSecond);
    set("sent", model.value("sent"), bytesPerSecond);
    this.#showLog(set);
    this.#showLatencies(set);
    this.#showMemory(set);
    const to = model.latest.time;
    for (const chart of this.#charts) chart.show({ past: model.past, from: to - this.#seconds, to });
  }

  #showLog(set) {
    const { model } = this;
    this.#log.hidden = !model.hasStore;
    set("unsynced_bytes", model.number("larder_unsynced_bytes"), bytes);
    set("unsynced_ms", model.number("larder_unsynced_ms"), millis);
    set("commits", model.rate("larder_commits"), perSecond);
    set("commit_us_p99", model.number("larder_commit_us_p99"), micros);
  }

  /**
   * Shows the latencies, which are absent if the last second had no commands. The card is hidden
   * until one was measured.
   */
  #showLatencies(set) {
    const { model } = this;
    const figures = ["p50", "p99", "p999"].map((name) => [name, model.value(`${name}_us`)]);
    if (figures.some(([, value]) => value !== null)) this.#latency.hidden = false;
    for (const [name, value] of figures) set(name, value, micros);
  }

  #showMemory(set) {
    const { model } = this;
    const limit = model.number("limit_maxbytes");
    let used = 0;
    for (const [name, row] of PARTS) {
      const value = model.number(row);
      used += value ?? 0;
      set(name, value, bytes);
      const share = (value ?? 0) / Math.max(1, limit);
      this.element.querySelector(`.bar .${name}`).style.width = `${100 * Math.min(1, share)}%`;
    }
    set("limit", limit, bytes);
    set("resident", model.number("larder_resident_bytes"), bytes);
    const text = `${bytes(used)} of ${bytes(limit)} used`;
    const bar = this.element.querySelector("#bar");
    if (bar.getAttribute("aria-label") !== text) bar.setAttribute("aria-label", text);
  }
}
