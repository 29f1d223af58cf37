// A histogram as a table: a row for each bucket, with bars for the recent time and since the start.

import { h, resize, say } from "./elements.js";
import { count, duration } from "./format.js";

/**
 * @typedef {{count: number, sum: number, p50: ?number, p99: ?number, counts: number[]}} Shape
 */

/** The two columns of a histogram. */
const COLUMNS = ["recent", "ever"];

export class Bars {
  #summaries = { recent: h("p", { class: "soft" }), ever: h("p", { class: "soft" }) };
  #body = h("tbody");
  #table;
  #format;

  /**
   * @param {string} name Tests find the histogram by this name.
   * @param {string} title
   * @param {string} about What is counted.
   * @param {(value: ?number) => string} format Returns a value as text.
   */
  constructor(name, title, about, format) {
    this.#format = format;
    const head = ["Up to", "Recently", "Since the start"].map((text) => h("th", { scope: "col" }, text));
    this.#table = h("table", { "aria-labelledby": `bars-${name}` }, h("thead", {}, h("tr", {}, head)), this.#body);
    this.element = h("section", { class: "bars", "data-bars": name },
      h("h3", { id: `bars-${name}` }, title), h("p", { class: "soft" }, about),
      this.#summaries.recent, this.#summaries.ever, this.#table);
  }

  /**
   * @param {{recent: Shape, ever: Shape}} shapes
   * @param {number[]} bounds The upper bounds of the buckets; the last bucket has none.
   * @param {number} seconds The length of the recent time.
   */
  show(shapes, bounds, seconds) {
    say(this.#summaries.recent, `Last ${duration(seconds)}: ${this.#summary(shapes.recent)}`);
    say(this.#summaries.ever, `Since the start: ${this.#summary(shapes.ever)}`);
    const { counts } = shapes.ever;
    const first = Math.max(0, counts.findIndex((number) => number > 0));
    const last = counts.findLastIndex((number) => number > 0);
    const [body, rows] = [this.#body, Math.max(0, last - first + 1)];
    resize(body, rows, row);
    this.#table.hidden = rows === 0;
    const most = Object.fromEntries(COLUMNS.map((column) => [column, Math.max(1, ...shapes[column].counts)]));
    for (let at = first; at <= last; at += 1) {
      const [head, ...cells] = body.children[at - first].children;
      say(head, at < bounds.length ? this.#format(bounds[at]) : `above ${this.#format(bounds.at(-1))}`);
      COLUMNS.forEach((column, place) => {
        const number = shapes[column].counts[at];
        const [track, text] = cells[place].firstChild.children;
        track.firstChild.style.width = `${100 * number / most[column]}%`;
        say(text, count(number));
        cells[place].dataset.value = number;
      });
    }
  }

  #summary({ count: number, p50, p99 }) {
    if (number === 0) return "none";
    return `${count(number)}, p50 ${this.#format(p50)}, p99 ${this.#format(p99)}`;
  }
}

const row = () => h("tr", {}, h("th", { scope: "row" }), COLUMNS.map((column) => h("td", { class: column },
  h("div", {}, h("span", { class: "track" }, h("i")), h("span")))));
