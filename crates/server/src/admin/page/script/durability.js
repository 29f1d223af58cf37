// The view "Durability": which crash an acknowledged write survives, and how far the devices are behind.

import { Chart } from "./chart.js";
import { example, group, h, say, setFigure, showEither } from "./elements.js";
import { bytes, bytesPerSecond, count, micros, millis, times, whole } from "./format.js";
import { KEPT } from "./model.js";
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
/** Time over which it counts write amplification: cleaning comes in bursts. */
const LONG_SPAN = 60;

export class DurabilityView {
  name = "durability";
  title = "Durability";
  #mode = h("p", { class: "mode" });
  #promise = h("p");
  #charts = ["unsynced", "commit", "written"]
    .map((name) => new Chart({ ...SPECS[name], optional: false }, { sync: "durability" }));

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
        group("Commits", [["per second", "commits"], ["p50", "commit_us_p50"], ["p99", "commit_us_p99"]]),
        group("Written", [["by requests", "written"], ["to devices", "device_written"],
          ["amplification, 1 min", "amplification_now"], ["amplification, in all", "amplification"]]),
        group("Last recovery", [["items", "recovered_items"], ["time", "recovery_ms"]])),
      h("p", { class: "soft" }, "Amplification: the bytes written to devices, divided by the bytes of records that "
        + "requests wrote, over the last minute and since the start or `stats reset`."),
      h("div", { class: "charts three" }, this.#charts.map((chart) => chart.element)));
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
  }
}

const ratio = (part, all) => (part === null || !all ? null : part / all);
