// The view "Durability": which crash an acknowledged write survives, and how far the devices are
// behind.

import { Bars } from "./bars.js";
import { Chart } from "./chart.js";
import { ask } from "./connection.js";
import { example, group, h, say, setFigure, showEither } from "./elements.js";
import { bytes, bytesPerSecond, count, decimalBytes, micros, millis, nanos, times, whole } from "./format.js";
import { KEPT, ratio } from "./model.js";
import { SPECS } from "./series.js";

/** What the modes promise. */
const PROMISES = {
  none: "No write is promised to survive a crash: the store only adds space to memory. "
    + "After a clean stop the items are there again.",
  async: "A crash of the machine loses at most the writes of the last sync interval (--sync-interval). "
    + "A crash of the process loses about the last 10 ms.",
  sync: "A write is acknowledged when it is durable. No client reads a value that a crash could still lose.",
};
/** Time over which the view counts rates, in seconds. */
const SPAN = 10;
/**
 * Time over which the view counts write amplification, in seconds: long, because cleaning comes in
 * bursts.
 */
const LONG_SPAN = 60;
/** Age of an answer at which the page asks again, in milliseconds: with every second message. */
const FRESH = 1900;

export class DurabilityView {
  name = "durability";
  title = "Durability";
  #mode = h("p", { class: "mode" });
  #promise = h("p");
  #charts = ["unsynced", "commit", "written"]
    .map((name) => new Chart({ ...SPECS[name], optional: false }, { sync: "durability" }));
  #askedAt = -Infinity;
  /** @type {?Object} */
  #answer = null;
  #waits = new Bars("waits", "Waits of replies", "Time from the turn that executed the command until its commit was durable or had failed.",
    nanos);
  #commits = new Bars("commits", "Sizes of commits", "Bytes of records that a commit made durable.", decimalBytes);
  #syncs = new Bars("syncs", "Syncs", "How long a device took to make its writes durable.", nanos);
  #lowerSyncs = new Bars("lower-syncs", "Syncs of the big device", "The same for the lower tier.", nanos);
  #unmeasured = h("p", { class: "soft", hidden: true }, "Waits of replies are not measured, because latencies are off (",
    h("code", {}, "--disable-latency"), ").");
  #lane = h("select", { id: "durability-lane", change: () => this.#showHistograms() });
  #lanes = h("div", { class: "controls", hidden: true }, h("label", { for: "durability-lane" }, "Commits and syncs of"),
    this.#lane);

  /** @param {import("./model.js").Model} model */
  constructor(model) {
    this.model = model;
    this.without = h("div", { class: "off", hidden: true },
      h("p", {}, "This server has no store, so its items are lost when the process ends. To keep them, start it with a store:"),
      example("larder serve --store /var/lib/larder/store:100GB --durability sync"),
      h("p", {}, "With ", h("code", {}, "sync"), ", a write is acknowledged when it is durable. With ",
        h("code", {}, "async"),
        ", which is the default, a crash of the machine loses at most the writes of the last second."));
    this.with = h("div", {}, this.#mode, this.#promise,
      h("div", { class: "cards" },
        group("At risk", [["un-synced bytes", "unsynced_bytes"], ["their age", "unsynced_ms"]]),
        group("Commits", [["per second", "commits"], ["p50 duration", "commit_us_p50"], ["p99 duration", "commit_us_p99"]]),
        group("Written", [["by requests", "written"], ["to devices", "device_written"],
          ["amplification, 1 min", "amplification_now"], ["amplification, in all", "amplification"]]),
        group("Last recovery", [["items", "recovered_items"], ["time", "recovery_ms"]])),
      h("p", { class: "soft" }, "Amplification: the bytes written to devices, divided by the bytes of records that "
        + "requests wrote, over the last minute and since the start or `stats reset`."),
      h("div", { class: "charts three" }, this.#charts.map((chart) => chart.element)),
      this.#lanes, this.#unmeasured,
      h("div", { class: "histograms" },
        [this.#waits, this.#commits, this.#syncs, this.#lowerSyncs].map((bars) => bars.element)));
    this.element = h("div", {}, this.without, this.with);
  }

  update() {
    const { model } = this;
    if (model.latest === null) return;
    showEither(this, model.hasStore);
    if (!model.hasStore) return;
    const mode = model.text("larder_durability");
    say(this.#mode, `Mode ${mode}`);
    say(this.#promise, PROMISES[mode] ?? "");
    const set = (name, value, format) => setFigure(this.element, name, value, format);
    set("unsynced_bytes", model.number("larder_unsynced_bytes"), bytes);
    set("unsynced_ms", model.number("larder_unsynced_ms"), millis);
    set("commits", model.rate("larder_commits", SPAN), count);
    set("commit_us_p50", model.number("larder_commit_us_p50"), micros);
    set("commit_us_p99", model.number("larder_commit_us_p99"), micros);
    set("written", model.rate("larder_written_bytes", SPAN), bytesPerSecond);
    set("device_written", model.rate("larder_device_written_bytes", SPAN), bytesPerSecond);
    const recent = ratio(model.rate("larder_device_written_bytes", LONG_SPAN),
      model.rate("larder_written_bytes", LONG_SPAN));
    const ever = ratio(model.number("larder_device_written_bytes"), model.number("larder_written_bytes"));
    set("amplification_now", recent, times);
    set("amplification", ever, times);
    set("recovered_items", model.number("larder_recovered_items"), whole);
    set("recovery_ms", model.number("larder_recovery_ms"), millis);
    const to = model.latest.time;
    for (const chart of this.#charts) chart.show({ past: model.past, from: to - KEPT, to });
    this.#ask();
  }

  restarted() {
    this.#askedAt = -Infinity;
  }

  async #ask() {
    if (performance.now() - this.#askedAt < FRESH) return;
    this.#askedAt = performance.now();
    const answer = await ask("v1/durability").catch(() => null);
    if (answer === null) return;
    this.#answer = answer;
    this.#showHistograms();
  }

  #showHistograms() {
    const { bounds, lanes, seconds, waits } = this.#answer;
    const names = lanes.map(({ device }) => device ?? "all devices");
    if (this.#lane.options.length !== names.length || names.some((name, at) => this.#lane.options[at].textContent !== name)) {
      this.#lane.replaceChildren(...names.map((name, at) => h("option", { value: at }, name)));
    }
    this.#lanes.hidden = names.length < 2;
    const lane = lanes[Math.max(0, this.#lane.selectedIndex)];
    this.#unmeasured.hidden = waits !== null;
    const all = [[this.#waits, waits], [this.#commits, lane.commits], [this.#syncs, lane.syncs],
      [this.#lowerSyncs, lane.lower_syncs]];
    for (const [bars, shapes] of all) {
      bars.element.hidden = shapes === null;
      if (shapes !== null) bars.show(shapes, bounds, seconds);
    }
  }
}
