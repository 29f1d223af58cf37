// Takes units of one limit by hand, to see how a policy decides.

import { h, say } from "./elements.js";
import { duration, millis, whole } from "./format.js";
import { act, TokenField } from "./token.js";

/** A reply with a decision: the flags in the order of the request, and the budget of the policy. */
const DECISION = /^(HD|NS) r(\d+) t(-?\d+) w(-?\d+) B(\d+)( x1)?\n?$/;

export class TrialPanel {
  #policy = h("select", { id: "trial-policy" });
  #key = h("input", { type: "text", id: "trial-key", autocomplete: "off", autocapitalize: "off", spellcheck: "false",
    required: true });
  #units = h("input", { type: "number", id: "trial-units", min: 0, value: 1, required: true });
  #status = h("p", { role: "status", class: "said" });

  constructor() {
    this.element = h("section", { class: "panel trial", "aria-labelledby": "trial-title" },
      h("h3", { id: "trial-title" }, "Try a limit"),
      h("p", { class: "soft" }, "This takes the units for real, as a client would. 0 units only look. The key is whole, "
        + "with the prefix of the policy."),
      new TokenField().element,
      h("form", { class: "controls", submit: (event) => { event.preventDefault(); this.#take(); } },
        h("label", { for: "trial-policy" }, "Policy"), this.#policy,
        h("label", { for: "trial-key" }, "Key"), this.#key,
        h("label", { for: "trial-units" }, "Units"), this.#units,
        h("button", {}, "Take")),
      this.#status);
  }

  /** Offers these policies. @param {string[]} names */
  offer(names) {
    const chosen = this.#policy.value;
    this.#policy.replaceChildren(...names.map((name) => h("option", { value: name, selected: name === chosen }, name)));
  }

  async #take() {
    const [key, units] = [this.#key.value, this.#units.value];
    say(this.#status, "Asking …");
    try {
      const { reply } = await act("v1/command", { command: `ma ${key} Q${this.#policy.value} D${units} r t w` });
      say(this.#status, told(reply, Number(units)));
    } catch (error) {
      say(this.#status, error.message);
    }
  }
}

/** Returns a reply in words. */
function told(reply, units) {
  const match = DECISION.exec(reply);
  if (match === null) return `The server answers: ${reply.trim()}`;
  const [, status, left, reset, wait, budget, shadow] = match;
  const decision = status === "NS" ? "Refused" : shadow ? "Allowed, because the policy is a shadow" : units > 0 ? "Allowed"
    : "Not asked for units";
  const again = wait === "0" ? "" : wait === "-1" ? " The same request never passes."
    : ` The same request passes in ${millis(Number(wait))}.`;
  const free = reset === "-1" ? "Used units never become free by themselves." : reset === "0" ? "No unit is used."
    : `All units are free in ${duration(Number(reset))}.`;
  return `${decision}: ${whole(Number(left))} of ${whole(Number(budget))} units are left. ${free}${again}`;
}
