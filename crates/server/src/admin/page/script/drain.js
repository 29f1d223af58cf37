// Drains a device of the store, or cancels its drain.

import { h, say } from "./elements.js";
import { Question } from "./question.js";
import { act, TokenField } from "./token.js";

export class DrainPanel {
  #devices = h("select", { id: "drain-device" });
  #status = h("p", { role: "status", class: "said" });
  #question = new Question();

  constructor() {
    this.element = h("section", { class: "panel drain", "aria-labelledby": "drain-title" },
      h("h3", { id: "drain-title" }, "Drain a device"),
      h("p", { class: "soft" }, "Draining moves all items of a device to the others, while clients go on. When "
        + "its state is drained, restart the server without the device, and then remove it."),
      new TokenField().element,
      h("form", { class: "controls", submit: (event) => { event.preventDefault(); this.#ask(); } },
        h("label", { for: "drain-device" }, "Device"), this.#devices,
        h("button", { class: "danger" }, "Drain …"),
        h("button", { type: "button", click: () => this.#send(this.#devices.value, false) }, "Cancel the drain")),
      this.#status, this.#question.element);
  }

  /** Offers these devices. @param {string[]} names */
  offer(names) {
    const options = [...this.#devices.options].map((option) => option.value);
    if (JSON.stringify(options) === JSON.stringify(names)) return;
    const chosen = this.#devices.value;
    this.#devices.replaceChildren(...names.map((name) => h("option", { value: name, selected: name === chosen }, name)));
  }

  #ask() {
    const device = this.#devices.value;
    this.#question.ask(`Move all items away from ${device}?`, "Drain it", "No", () => this.#send(device, true));
  }

  async #send(device, drain) {
    say(this.#status, "Asking …");
    try {
      const { draining } = await act("v1/drain", { device, drain });
      say(this.#status, draining ? `${device} is being drained.` : `${device} is kept.`);
    } catch (error) {
      say(this.#status, error.message);
    }
  }
}
