// A console: executes one command of the text protocol, and shows its reply.

import { h, say } from "./elements.js";
import { clock, whole } from "./format.js";
import { act, TokenField } from "./token.js";

/** The largest number of commands that the console remembers. */
const REMEMBERED = 50;
/** Commands that a value follows. */
const WITH_VALUE = /^(set|add|replace|append|prepend|cas|ms) /;

let consoles = 0;

export class ConsolePanel {
  #id = `console-${++consoles}`;
  #command = h("input", { type: "text", id: `${this.#id}-command`, class: "command", autocomplete: "off",
    autocapitalize: "off", spellcheck: "false", required: true, placeholder: "stats", maxlength: 8192,
    "aria-describedby": `${this.#id}-help`, input: () => this.#showValue(), keydown: (event) => this.#recall(event) });
  #value = h("textarea", { id: `${this.#id}-value`, rows: 3, spellcheck: "false", input: () => this.#showLength() });
  #length = h("span", { class: "soft" });
  #valueRow = h("div", { class: "controls", hidden: true }, h("label", { for: `${this.#id}-value` }, "Value"),
    this.#value, this.#length);
  #run = h("button", {}, "Execute");
  #problem = h("p", { role: "status", class: "said" });
  #replies = h("ol", { class: "replies", role: "log", "aria-label": "Replies, the latest first" });
  /** Commands, the latest last. @type {string[]} */
  #past = [];
  #at = 0;

  /** @param {import("./model.js").Model} model */
  constructor(model) {
    this.model = model;
    this.element = h("section", { class: "panel console", "aria-labelledby": `${this.#id}-title` },
      h("h3", { id: `${this.#id}-title` }, "Console"),
      new TokenField().element,
      h("form", { submit: (event) => { event.preventDefault(); this.#execute(); } },
        h("div", { class: "controls" }, h("label", { for: `${this.#id}-command` }, "Command"), this.#command, this.#run),
        this.#valueRow),
      h("p", { class: "soft", id: `${this.#id}-help` }, "One command of the text protocol. The arrow keys up and down "
        + "recall earlier ones. ", h("code", {}, "\\\\"), " is a backslash and ", h("code", {}, "\\xHH"),
        " is any other byte. The server logs each command."),
      this.#problem, this.#replies);
  }

  #showValue() {
    this.#valueRow.hidden = !WITH_VALUE.test(this.#command.value);
    if (!this.#valueRow.hidden) this.#showLength();
  }

  /** Shows the length of the value, which the command has to announce. */
  #showLength() {
    const plain = this.#value.value.replace(/\\\\|\\x[0-9a-fA-F]{2}/g, "x");
    say(this.#length, `${whole(new TextEncoder().encode(plain).length)} bytes`);
  }

  #recall(event) {
    const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (step === undefined || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    this.#at = Math.min(this.#past.length, Math.max(0, this.#at + step));
    this.#command.value = this.#past[this.#at] ?? "";
    this.#showValue();
  }

  async #execute() {
    const command = this.#command.value;
    const body = this.#valueRow.hidden ? { command } : { command, value: this.#value.value };
    this.#run.disabled = true;
    say(this.#problem, "Executing …");
    try {
      const { reply, truncated } = await act("v1/command", body);
      this.#keep(command, reply, truncated);
      say(this.#problem, "");
      this.#command.value = "";
      this.#value.value = "";
      this.#showValue();
    } catch (error) {
      say(this.#problem, error.message);
    }
    this.#run.disabled = false;
  }

  #keep(command, reply, truncated) {
    if (this.#past.at(-1) !== command) this.#past.push(command);
    if (this.#past.length > REMEMBERED) this.#past.shift();
    this.#at = this.#past.length;
    const text = reply.replace(/\n$/, "");
    this.#replies.prepend(h("li", {},
      h("p", {}, h("code", {}, command), " ", h("small", {}, clock(Date.now() / 1000))),
      h("pre", { tabindex: 0, "aria-label": `Reply to ${command}` }, text === "" ? "(no reply)" : text),
      truncated && h("p", { class: "soft" }, "The reply goes on; the rest is left out.")));
    while (this.#replies.children.length > REMEMBERED) this.#replies.lastElementChild.remove();
  }
}
