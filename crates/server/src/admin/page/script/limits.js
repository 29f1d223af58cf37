// The view "Limits": the policies of rate limits and their decisions. One limit can be tried.

import { Chart } from "./chart.js";
import { example, framed, h, say, showEither } from "./elements.js";
import { count, perSecond, whole } from "./format.js";
import { KEPT } from "./model.js";
import { SPECS } from "./series.js";
import { RefusedPanel } from "./refused.js";
import { readStatistics } from "./rows.js";
import { TrialPanel } from "./trial.js";

const RESULTS = ["within", "near", "over", "shadow"];
const POLICY = `[[limit]]
name = "logins"
prefix = "login/"
budget = 5
window = "60s"`;

/** @typedef {{name: string, settings: Map<string, string>, totals: Map<string, number>}} Policy */

export class LimitsView {
  name = "limits";
  title = "Limits";
  /** @type {?{at: number, policies: Policy[]}} */
  #last = null;
  #shape = "";
  #rows = h("tbody");
  #refused = new RefusedPanel();
  #trial = new TrialPanel();
  #chart = new Chart({ ...SPECS.limits, optional: false }, { sync: "limits" });

  /** @param {import("./model.js").Model} model */
  constructor(model) {
    this.model = model;
    const head = (text, attributes = {}) => h("th", { scope: "col", ...attributes }, text);
    this.without = h("div", { class: "off", hidden: true },
      h("p", {}, "This server has no policies of rate limits. Define policies in the file of ",
        h("code", {}, "--config"), ":"),
      example(POLICY),
      h("p", {}, "SIGHUP loads a changed file. docs/settings.md lists the keys of a policy."));
    this.with = h("div", {},
      h("p", { class: "soft" }, "A decision is within a limit if it leaves at least 20 % of the budget, near it if it "
        + "leaves less, and over it if the budget does not suffice. Requests over a limit are refused, except plain "
        + "increments. A shadow policy refuses nothing and counts what it would refuse."),
      framed("Policies", h("thead", {},
        h("tr", {}, head("Policy", { rowspan: 2 }), head("Limit", { rowspan: 2 }),
          head("Per second", { colspan: 4, scope: "colgroup" }), head("Since start or reset", { colspan: 4, scope: "colgroup" })),
        h("tr", {}, [...RESULTS, ...RESULTS].map((result) => head(result, { class: "n" })))), this.#rows),
      h("div", { class: "charts" }, this.#chart.element),
      this.#trial.element);
    this.element = h("div", {}, this.without, this.with, this.#refused.element);
    this.element.querySelector(".chart").classList.add("wide");
    this.element.querySelector("table").classList.add("policies");
  }

  open() {
    this.#last = null;
    this.#refused.open();
  }

  async update() {
    const { model } = this;
    if (model.latest === null) return;
    this.#refused.update();
    const to = model.latest.time;
    this.#chart.show({ past: model.past, from: to - KEPT, to });
    const answer = await readStatistics().catch(() => null);
    // An answer that was already shown gives no new rates.
    if (answer === null || answer.at === this.#last?.at) return;
    const now = { at: answer.at, policies: policiesOf(answer.rows) };
    showEither(this, now.policies.length > 0);
    this.#show(now);
    this.#last = now;
  }

  #show(now) {
    const shape = JSON.stringify(now.policies.map((policy) => policy.name));
    if (shape !== this.#shape) {
      this.#shape = shape;
      this.#rows.replaceChildren(...now.policies.map(rowOf));
      this.#trial.offer(now.policies.map((policy) => policy.name));
    }
    const before = new Map((this.#last?.policies ?? []).map((policy) => [policy.name, policy]));
    const seconds = this.#last === null ? 0 : (now.at - this.#last.at) / 1000;
    now.policies.forEach((policy, at) => {
      const [name, limit, ...cells] = this.#rows.children[at].children;
      say(name.firstElementChild, policy.name);
      say(name.lastElementChild, appliesTo(policy.settings));
      say(limit, limitText(policy.settings));
      RESULTS.forEach((result, index) => {
        const total = policy.totals.get(result) ?? 0;
        const earlier = before.get(policy.name)?.totals.get(result);
        const rate = earlier === undefined ? null : Math.max(0, total - earlier) / seconds;
        say(cells[index], perSecond(rate));
        say(cells[RESULTS.length + index], total >= 1e6 ? count(total) : whole(total));
        cells[RESULTS.length + index].dataset.value = total;
        cells[index].dataset.value = rate ?? "";
      });
    });
  }
}

/** Collects the rows `limit:NAME:…`; a name may have colons, the last part has none. */
function policiesOf(rows) {
  const policies = new Map();
  for (const [row, value] of rows) {
    const match = /^limit:(.*):([^:]*)$/.exec(row);
    if (match === null) continue;
    const [, name, what] = match;
    if (!policies.has(name)) policies.set(name, { name, settings: new Map(), totals: new Map() });
    const policy = policies.get(name);
    if (RESULTS.includes(what)) policy.totals.set(what, Number(value));
    else policy.settings.set(what, String(value));
  }
  return [...policies.values()];
}

/** The keys and descriptors that a policy applies to by itself. */
function appliesTo(settings) {
  const [prefix, domain, descriptor] = ["prefix", "domain", "descriptor"].map((what) => settings.get(what));
  const keys = prefix === undefined ? "" : `keys ${prefix}…`;
  return descriptor === undefined ? keys : `${keys}, descriptor ${domain}: ${descriptor}`;
}

function limitText(settings) {
  const window = settings.get("window");
  const per = window === "0s" ? "for ever" : `per ${window}`;
  const burst = settings.has("burst") ? `, burst ${settings.get("burst")}` : "";
  const shadow = settings.get("enforced") === "no" ? ", shadow" : "";
  return `${settings.get("budget")} ${per}, ${settings.get("algorithm")}${burst}${shadow}`;
}

function rowOf(policy) {
  const cells = ["now", "in all"].flatMap((when) =>
    RESULTS.map((result) => h("td", { class: `n ${result}`, "data-label": `${result}, ${when}` })));
  return h("tr", { "data-policy": policy.name }, h("th", { scope: "row" }, h("span"), h("small")),
    h("td", { "data-label": "Limit" }), cells);
}
