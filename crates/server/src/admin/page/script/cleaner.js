// The cleaner in the view Tiers: what it does, what that costs, and what emptied segments wait for.

import { framed, group, h, resize, say, setFigure } from "./elements.js";
import { bytes, bytesPerSecond, count, percent, whole } from "./format.js";
import { ratio } from "./model.js";

/** Time over which rates are counted, in seconds: cleaning comes in bursts. */
const SPAN = 60;
/** Time over which the panel tells what the cleaner does, in seconds. */
const NOW = 10;
/** The columns of the table: heading, and a function that returns the text for a lane. */
const COLUMNS = [
  ["Free places", (lane) => whole(lane.now("free_segments"))],
  ["Emptied, not free", (lane) => whole(lane.now("quarantined_segments"))],
  ["Cleaned", (lane) => perSecond(lane.growth("cleaned_segments"))],
  ["Live share", (lane) => percent(ratio(lane.growth("cleaned_live_bytes"), lane.growth("cleaned_bytes")))],
  ["Moved", (lane) => bytesPerSecond(lane.growth("moved_bytes"))],
  ["Without live items", (lane) => perSecond(lane.growth("dead_segments"))],
];
/** The rows of a lane that this panel shows. */
export const CLEANER_ROWS = ["free_segments", "quarantined_segments", "cleaned_segments", "cleaned_bytes",
  "cleaned_live_bytes", "moved_bytes", "dead_segments"];

export class CleanerPanel {
  #does = h("p");
  #head = h("thead", {}, h("tr", {}, ["Device", ...COLUMNS.map(([heading]) => heading)].map((heading) =>
    h("th", { scope: "col" }, heading))));
  #body = h("tbody");
  #table = framed("Cleaner by device", this.#head, this.#body);

  /** @param {import("./model.js").Model} model */
  constructor(model) {
    this.model = model;
    this.element = h("section", { class: "panel", "data-panel": "cleaner" }, h("h3", {}, "Cleaner"), this.#does,
      h("div", { class: "cards" },
        group("Segments emptied", [["cleaned", "cleaned_segments"], ["of these, by eviction or expiry", "evicted_segments"],
          ["without live items", "dead_segments"]]),
        group("Cost", [["live share of cleaned", "live_share"], ["moved", "moved_bytes"], ["dead maps written", "maps"]]),
        group("Places", [["free", "free_segments"], ["wait for a commit", "uncommitted_segments"],
          ["wait for marks or maps", "unmarked_segments"], ["size of a place", "segment_size"]])),
      h("p", { class: "soft" }, "Rates are those of the last minute. Only moved bytes are written again. The live share also "
        + "counts items that the cleaner evicted or that had expired. A segment without live items costs nothing."),
      this.#table);
  }

  /** @param {Array<{number: number, rows: Map<string, string>}>} lanes */
  update(lanes) {
    const { model } = this;
    const set = (name, value, format) => setFigure(this.element, name, value, format);
    set("cleaned_segments", model.rate("larder_cleaned_segments", SPAN), perSecond);
    set("evicted_segments", model.rate("larder_evicted_segments", SPAN), perSecond);
    set("dead_segments", model.rate("larder_dead_segments", SPAN), perSecond);
    const live = model.rate("larder_cleaned_live_bytes", SPAN);
    set("live_share", ratio(live, model.rate("larder_cleaned_bytes", SPAN)), percent);
    set("moved_bytes", model.rate("larder_moved_bytes", SPAN), bytesPerSecond);
    set("maps", model.rate("larder_map_written_bytes", SPAN), bytesPerSecond);
    set("free_segments", model.number("larder_free_segments"), whole);
    set("uncommitted_segments", model.number("larder_uncommitted_segments"), whole);
    set("unmarked_segments", model.number("larder_unmarked_segments"), whole);
    set("segment_size", model.number("larder_segment_size"), bytes);
    say(this.#does, this.#doing());
    this.#table.hidden = lanes.length < 2;
    if (!this.#table.hidden) this.#showLanes(lanes);
  }

  /** Says what the cleaner did in the last seconds. */
  #doing() {
    const { model } = this;
    const cleaned = model.rate("larder_cleaned_segments", NOW) ?? 0;
    const evicted = model.rate("larder_evicted_segments", NOW) ?? 0;
    const cooled = model.rate("larder_cooled_segments", NOW) ?? 0;
    const parts = [
      [model.rate("larder_dead_segments", NOW) ?? 0, "gave back segments without live items"],
      [cleaned - evicted - cooled, "compacted segments"],
      [cooled, "moved items to the big device"],
      [evicted, "evicted cold items or removed expired ones"],
    ].filter(([number]) => number > 0.01).map(([, text]) => text);
    if (model.rate("larder_cleaned_segments", NOW) === null) return "Not known yet.";
    if (parts.length === 0) return `The cleaner emptied no segment in the last ${NOW} s.`;
    const last = parts.pop();
    return `In the last ${NOW} s, the cleaner ${parts.length > 0 ? `${parts.join(", ")} and ` : ""}${last}.`;
  }

  #showLanes(lanes) {
    resize(this.#body, lanes.length, () => h("tr", {}, h("th", { scope: "row", "data-label": "Device" }),
      COLUMNS.map(([heading]) => h("td", { "data-label": heading }))));
    lanes.forEach((lane, at) => {
      const [device, ...cells] = this.#body.children[at].children;
      say(device, `${lane.rows.get("device") ?? "?"} (lane ${lane.number})`);
      const row = (name) => `larder_lane_${lane.number}_${name}`;
      const figures = { now: (name) => this.model.number(row(name)), growth: (name) => this.model.rate(row(name), SPAN) };
      COLUMNS.forEach(([, text], column) => say(cells[column], text(figures)));
    });
  }
}

/** Shows a rate per second, or per minute if it is far below one per second. */
const perSecond = (value) => (value === null || value === 0 || value >= 0.1 ? `${count(value)}${value === null ? "" : "/s"}`
  : `${count(value * 60)}/min`);
