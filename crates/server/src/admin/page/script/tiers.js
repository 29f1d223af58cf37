// The view "Tiers": the lanes of the store with their devices.

import { Chart } from "./chart.js";
import { CLEANER_ROWS, CleanerPanel } from "./cleaner.js";
import { DrainPanel } from "./drain.js";
import { example, framed, group, h, say, setFigure, showEither } from "./elements.js";
import { bytes, bytesPerSecond, count, percent, perSecond, times, whole } from "./format.js";
import { HeatPanel } from "./heat.js";
import { KEPT, ratio } from "./model.js";
import { SPECS } from "./series.js";

/**
 * Rows of a lane with a known column: row, heading, and a function that shows the value. Other rows
 * follow under their own names.
 */
const COLUMNS = [
  ["state", "State", String],
  ["partitions", "Partitions", (text) => whole(Number(text))],
  ["items", "Items", (text) => count(Number(text))],
  ["bytes", "Bytes of items", (text) => bytes(Number(text))],
  ["capacity", "Capacity", (text) => bytes(Number(text))],
  ["lower_device", "Big device", String],
];
/** Pairs of rows that a meter shows: used, capacity, and heading. */
const METERS = [
  ["bytes", "room", "Fill"],
  ["fast_used", "fast_capacity", "Fill of the fast device"],
  ["lower_used", "lower_capacity", "Fill of the big device"],
  ["index_used", "index_limit", "Fill of the index"],
];
/** Time over which write amplification is counted, in seconds: cleaning comes in bursts. */
const LONG_SPAN = 60;
/**
 * Figures of a lane that change with the load: heading, and a function that returns the text for
 * the rates of the lane's rows.
 */
const RATES = [
  ["Records read", (rate) => perSecond(rate("flash_reads"))],
  ["Written", (rate) => bytesPerSecond(rate("device_written_bytes"))],
  ["Write amplification, 1 min",
    (rate) => times(ratio(rate("device_written_bytes", LONG_SPAN), rate("written_bytes", LONG_SPAN)))],
];
const RATE_ROWS = ["flash_reads", "written_bytes", "device_written_bytes"];
const KNOWN = new Set(["device", ...CLEANER_ROWS, ...RATE_ROWS, ...COLUMNS.map(([what]) => what),
  ...METERS.flatMap(([used, capacity]) => [used, capacity])]);

export class TiersView {
  name = "tiers";
  title = "Tiers";
  #rows = h("tbody");
  #head = h("tr");
  #headings = "";
  #drain = new DrainPanel();
  #heat = new HeatPanel();
  #cleaner;
  #charts = ["flash", "written", "onDevices"]
    .map((name) => new Chart({ ...SPECS[name], optional: false }, { sync: "tiers" }));

  /** @param {import("./model.js").Model} model */
  constructor(model) {
    this.model = model;
    this.#cleaner = new CleanerPanel(model);
    this.without = h("div", { class: "off", hidden: true },
      h("p", {}, "This server has no store: all items are in memory. A store takes the items that memory has no room "
        + "for, and keeps all of them through restarts:"),
      example("larder serve --store /var/lib/larder/store:100GB --durability sync"),
      h("p", {}, "Several devices share the keys if ", h("code", {}, "--store"),
        " is given for each. docs/settings.md has more about devices and tiers."));
    this.with = h("div", {},
      framed("Devices", h("thead", {}, this.#head), this.#rows),
      h("div", { class: "cards" },
        group("Reads and writes", [["records read", "flash_reads"], ["bytes written", "device_written"],
          ["read in whole segments", "segment_read"], ["freed", "freed"]]),
        group("Items", [["bytes in memory", "resident_items"], ["bytes only on devices", "flash_items"],
          ["items copied in memory", "copies"]]),
        group("Damage", [["unreadable items", "unreadable"], ["bad places", "bad_places"]])),
      h("div", { class: "charts three" }, this.#charts.map((chart) => chart.element)),
      this.#heat.element, this.#cleaner.element, this.#drain.element);
    this.element = h("div", {}, this.without, this.with);
  }

  update() {
    const { model } = this;
    if (model.latest === null) return;
    showEither(this, model.hasStore);
    if (!model.hasStore) return;
    const lanes = lanesOf(model.latest.rows);
    this.#showLanes(lanes);
    this.#heat.update();
    this.#cleaner.update(lanes);
    const set = (name, value, format) => setFigure(this.element, name, value, format);
    set("flash_reads", model.rate("larder_flash_reads"), perSecond);
    set("device_written", model.rate("larder_device_written_bytes"), bytesPerSecond);
    set("segment_read", model.rate("larder_segment_read_bytes"), bytesPerSecond);
    set("freed", model.rate("larder_freed_bytes"), bytesPerSecond);
    set("resident_items", model.number("larder_bytes_resident"), bytes);
    set("flash_items", model.number("larder_bytes_flash"), bytes);
    set("copies", model.number("larder_copies"), count);
    set("unreadable", model.number("larder_unreadable"), whole);
    set("bad_places", model.number("larder_bad_places"), whole);
    const to = model.latest.time;
    for (const chart of this.#charts) chart.show({ past: model.past, from: to - KEPT, to });
  }

  restarted() {
    this.#heat.restarted();
  }

  #showLanes(lanes) {
    this.#drain.offer(lanes.map((lane) => lane.rows.get("device")).filter((name) => name !== undefined));
    const has = (what) => lanes.some((lane) => lane.rows.has(what));
    const columns = COLUMNS.filter(([what]) => has(what));
    const meters = METERS.filter(([used, capacity]) => has(used) && has(capacity));
    const all = new Set(lanes.flatMap((lane) => [...lane.rows.keys()]));
    const others = [...all].filter((what) => !KNOWN.has(what)).sort();
    const headings = ["Device", ...columns.map(([, heading]) => heading), ...meters.map(([, , heading]) => heading),
      ...RATES.map(([heading]) => heading), ...others.map((what) => what.replaceAll("_", " "))];
    const shape = JSON.stringify([headings, lanes.map((lane) => lane.number)]);
    if (shape !== this.#headings) {
      this.#headings = shape;
      this.#head.replaceChildren(...headings.map((heading) => h("th", { scope: "col" }, heading)));
      this.#rows.replaceChildren(...lanes.map((lane) => rowOf(lane, headings)));
    }
    lanes.forEach((lane, at) => {
      const [device, ...cells] = this.#rows.children[at].children;
      say(device, `${lane.rows.get("device") ?? "?"} (lane ${lane.number})`);
      this.#rows.children[at].classList.toggle("bad", (lane.rows.get("state") ?? "").startsWith("failing"));
      const rest = cells.splice(columns.length);
      columns.forEach(([what, , format], index) =>
        say(cells[index], lane.rows.has(what) ? format(lane.rows.get(what)) : "–"));
      meters.forEach(([used, capacity], index) => showMeter(rest[index], lane.rows, used, capacity));
      const rate = (what, span) => this.model.rate(`larder_lane_${lane.number}_${what}`, span);
      RATES.forEach(([, text], index) => say(rest[meters.length + index], text(rate)));
      const last = rest.slice(meters.length + RATES.length);
      others.forEach((what, index) => say(last[index], lane.rows.get(what) ?? "–"));
    });
  }
}

/** Returns the lanes with their rows. The names of the rows lack the part that names the lane. */
function lanesOf(rows) {
  const lanes = new Map();
  for (const [name, text] of rows) {
    const match = /^larder_lane_(\d+)_(.*)$/.exec(name);
    if (match === null) continue;
    const number = Number(match[1]);
    if (!lanes.has(number)) lanes.set(number, { number, rows: new Map() });
    lanes.get(number).rows.set(match[2], text);
  }
  return [...lanes.values()].sort((a, b) => a.number - b.number);
}

function rowOf(lane, headings) {
  const [first, ...others] = headings;
  return h("tr", { "data-lane": lane.number }, h("th", { scope: "row", "data-label": first }),
    others.map((heading) => h("td", { "data-label": heading })));
}

function showMeter(cell, rows, used, capacity) {
  const share = Number(rows.get(used)) / Math.max(1, Number(rows.get(capacity)));
  if (!Number.isFinite(share)) return say(cell, "–");
  if (cell.firstElementChild === null) {
    cell.replaceChildren(h("meter", { min: 0, max: 1, high: 0.9 }), " ", h("span"));
  }
  cell.firstElementChild.value = share;
  cell.firstElementChild.setAttribute("aria-label", cell.dataset.label);
  return say(cell.lastElementChild, percent(share));
}
