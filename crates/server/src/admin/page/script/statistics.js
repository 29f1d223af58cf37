// The view "Statistics": every row with its unit and meaning.

import { framed, h, say } from "./elements.js";
import { readMeanings, readStatistics } from "./rows.js";

export class StatisticsView {
  name = "statistics";
  title = "Statistics";
  #meaningOf = () => undefined;
  #asked = false;
  #body = h("tbody");
  /** @type {Map<string, {row: HTMLElement, value: HTMLElement, words: string}>} */
  #entries = new Map();
  #shown = h("p", { class: "soft", role: "status" });
  #filter = h("input", { type: "search", id: "filter", autocomplete: "off", spellcheck: "false",
    placeholder: "name or meaning", input: () => this.#sift() });

  /** @param {import("./model.js").Model} model */
  constructor(model) {
    this.model = model;
    this.element = h("div", {},
      h("div", { class: "controls" }, h("label", { for: "filter" }, "Show rows with"), this.#filter, this.#shown),
      framed("All statistics", h("thead", {}, h("tr", {}, ["Row", "Value", "Unit", "Meaning"].map((text) =>
        h("th", { scope: "col", class: text === "Value" && "n" }, text)))), this.#body));
    this.element.querySelector("table").classList.add("all");
  }

  async open() {
    if (this.#asked) return;
    this.#asked = true;
    const meaningOf = await readMeanings();
    this.element.querySelector("table").classList.toggle("unexplained", meaningOf === null);
    this.#meaningOf = meaningOf ?? this.#meaningOf;
    this.#entries.clear();
    this.#body.replaceChildren();
  }

  /** Shows the rows of the message, and those of other groups from the statistics. */
  async update() {
    if (this.model.latest === null) return;
    const answer = await readStatistics().catch(() => null);
    const rows = new Map([...(answer?.rows ?? []), ...this.model.latest.rows]);
    const names = [...rows.keys()];
    const isSame = names.length === this.#entries.size && names.every((name) => this.#entries.has(name));
    if (!isSame) this.#build(names.sort());
    for (const [name, value] of rows) say(this.#entries.get(name).value, String(value));
  }

  #build(names) {
    this.#entries.clear();
    for (const name of names) {
      const { unit = "", help = "" } = this.#meaningOf(name) ?? {};
      const value = h("td", { class: "n", "data-row": name });
      const row = h("tr", {}, h("th", { scope: "row" }, name), value, h("td", {}, unit),
        h("td", { class: "help" }, help));
      this.#entries.set(name, { row, value, words: `${name} ${help}`.toLowerCase() });
    }
    this.#body.replaceChildren(...[...this.#entries.values()].map(({ row }) => row));
    this.#sift();
  }

  #sift() {
    const wanted = this.#filter.value.trim().toLowerCase();
    let shown = 0;
    for (const { row, words } of this.#entries.values()) {
      row.hidden = !words.includes(wanted);
      if (!row.hidden) shown += 1;
    }
    say(this.#shown, `${shown} of ${this.#entries.size} rows`);
  }
}
