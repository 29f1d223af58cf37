// The keys whose requests are refused most often by rate limits.

import { ask } from "./connection.js";
import { framed, h, resize, say } from "./elements.js";
import { perSecond } from "./format.js";
import { authorization } from "./token.js";

/** Interval between two requests while the view is open, in milliseconds. */
const INTERVAL = 3000;

/**
 * @typedef {{policy: ?string, key: string, refused_per_second: number, shadow_per_second: number,
 *   missing: number, error: number}} Refused
 * @typedef {{on: boolean, half_life_seconds: number, lost_per_second: number,
 *   keys: Refused[]}} Report
 */

export class RefusedPanel {
  #askedAt = -Infinity;
  #said = h("p", { class: "soft" });
  #status = h("p", { role: "status", class: "soft" });
  #rows = h("tbody");
  #frame = framed("Refused keys",
    h("thead", {}, h("tr", {}, ["Key", "Policy", "Refused", "Shadow", "Error"].map((heading, at) =>
      h("th", { scope: "col", class: at > 1 && "n" }, heading)))), this.#rows);

  constructor() {
    this.element = h("section", { class: "refused", "aria-labelledby": "refused-title" },
      h("h3", { id: "refused-title" }, "Refused keys"), this.#said, this.#status, this.#frame);
    this.#frame.hidden = true;
  }

  /** Makes the next update ask at once. */
  open() {
    this.#askedAt = -Infinity;
  }

  async update() {
    const now = performance.now();
    if (now - this.#askedAt < INTERVAL - 500) return;
    this.#askedAt = now;
    try {
      this.#show(await ask("v1/refused", authorization()));
    } catch (error) {
      // The page may no longer be allowed to show names of keys, so it removes them.
      this.#said.hidden = true;
      this.#frame.hidden = true;
      this.#rows.replaceChildren();
      say(this.#status, `No list of the refused keys: ${error.message}.`);
    }
  }

  /** @param {Report} report */
  #show(report) {
    this.#said.hidden = !report.on;
    this.#frame.hidden = !report.on || report.keys.length === 0;
    if (!report.on) {
      say(this.#status, "This server does not list refused keys, because --disable-key-sampling is set.");
      return;
    }
    say(this.#said, "Requests per second over a limit: refused, or passed by a shadow policy. A request counts half "
      + `after ${report.half_life_seconds} s. The error is that of sampling, which begins at thousands of refusals per second. `
      + 'A key may have been refused before it was noticed: "up to +N" is the most that can be missing.');
    const lost = report.lost_per_second > 0.05 ? `Further refusals that are missing from this list: ${perSecond(report.lost_per_second)}.` : "";
    const none = report.keys.length > 0 ? "" : "No refusal was counted in the last two minutes, or since the start or stats reset.";
    say(this.#status, [none, lost].filter((text) => text !== "").join(" "));
    resize(this.#rows, report.keys.length, emptyRow);
    report.keys.forEach((entry, at) => {
      const row = this.#rows.children[at];
      row.dataset.name = entry.key;
      row.dataset.by = entry.policy ?? "";
      const [key, policy, refused, shadow, error] = row.children;
      say(key, entry.key);
      say(policy, entry.policy ?? "limit in the request (B)");
      for (const [cell, value] of [[refused, entry.refused_per_second], [shadow, entry.shadow_per_second]]) {
        say(cell, perSecond(value));
        cell.dataset.value = value;
      }
      const errors = [entry.error > 0 && `±${perSecond(entry.error)}`, entry.missing > 0 && `up to +${perSecond(entry.missing)}`];
      say(error, errors.filter((part) => part !== false).join(", ") || "none");
      error.dataset.value = entry.missing;
    });
  }
}

const emptyRow = () => h("tr", {}, h("th", { scope: "row" }), h("td", { "data-label": "Policy" }),
  ["Refused", "Shadow", "Error"].map((label) => h("td", { class: "n", "data-label": label })));
