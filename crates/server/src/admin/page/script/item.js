// Looks up or deletes the item of one key.

import { choice } from "./choice.js";
import { h, say } from "./elements.js";
import { bytes, duration, whole } from "./format.js";
import { Question } from "./question.js";
import { act, TokenField } from "./token.js";

/** Bytes per line of the view in hexadecimal. */
const LINE = 16;
/** The largest number of lines of the view in hexadecimal. */
const LINES = 512;

/**
 * @typedef {{found: boolean, flags: number, ttl: ?number, size: number, cas: string, idle: number,
 *   fetched: boolean, stale: boolean, value: string, truncated: boolean}} Item
 */

let panels = 0;

export class ItemPanel {
  #id = `item-${++panels}`;
  #key = h("input", { type: "text", id: `${this.#id}-key`, autocomplete: "off", autocapitalize: "off", spellcheck: "false",
    required: true, "aria-describedby": `${this.#id}-notation` });
  #status = h("p", { role: "status", class: "said" });
  #fields = h("dl", { class: "figures wide" });
  #value = h("pre", { tabindex: 0, "aria-label": "Value", class: "value" });
  #cut = h("p", { class: "soft" });
  #view = choice("View of the value", [["Text", false], ["Hex", true]], false, (hex) => this.#showValue(hex));
  #found = h("div", { hidden: true }, this.#fields, this.#view, this.#value, this.#cut);
  #question = new Question();
  #hex = false;
  /** @type {?Item} */
  #item = null;

  /** @param {import("./model.js").Model} model */
  constructor(model) {
    this.model = model;
    this.element = h("section", { class: "panel item", "aria-labelledby": `${this.#id}-title` },
      h("h3", { id: `${this.#id}-title` }, "One item"),
      new TokenField().element,
      h("form", { class: "controls", submit: (event) => { event.preventDefault(); this.#look(); } },
        h("label", { for: `${this.#id}-key` }, "Key"), this.#key,
        h("button", {}, "Look up"),
        h("button", { type: "button", class: "danger", click: () => this.#ask() }, "Delete …")),
      h("p", { class: "soft", id: `${this.#id}-notation` }, "In keys and values, ", h("code", {}, "\\\\"),
        " is a backslash and ", h("code", {}, "\\xHH"), " is any other byte. A look-up does not count as a read."),
      this.#status, this.#found, this.#question.element);
  }

  /** Looks up a key, in the notation of the page. */
  show(key) {
    this.#key.value = key;
    this.#key.focus();
    this.#look();
  }

  async #look() {
    const key = this.#key.value;
    this.#found.hidden = true;
    say(this.#status, "Asking …");
    try {
      const item = await act("v1/item", { key });
      // Another key may have been asked for meanwhile.
      if (this.#key.value === key) this.#show(key, item);
    } catch (error) {
      say(this.#status, error.message);
    }
  }

  /** @param {Item} item */
  #show(key, item) {
    this.#item = item.found ? item : null;
    say(this.#status, item.found ? `${key} has an item.` : `${key} has no item.`);
    this.#found.hidden = !item.found;
    if (!item.found) return;
    const fields = [
      ["flags", String(item.flags)],
      ["time to live", item.ttl === null ? "never expires" : duration(item.ttl)],
      ["size", bytes(item.size)],
      ["cas id", item.cas],
      ["last use", `about ${duration(item.idle)} ago`],
      ["read since it was stored", item.fetched ? "yes" : "no"],
      ["stale", item.stale ? "yes" : "no"],
    ];
    this.#fields.replaceChildren(...fields.map(([name, text]) =>
      h("div", {}, h("dt", {}, name), h("dd", { "data-item": name }, text))));
    this.#showValue(this.#hex);
  }

  #showValue(hex) {
    this.#hex = hex;
    if (this.#item === null) return;
    const { value, size, truncated } = this.#item;
    const shown = hex ? dump(bytesOf(value)) : { text: value, length: truncated ? null : size };
    say(this.#value, shown.text);
    say(this.#cut, shown.length === size ? "" : `Truncated; the whole value has ${whole(size)} bytes.`);
  }

  #ask() {
    const key = this.#key.value;
    if (!this.#key.reportValidity()) return;
    this.#question.ask(`Delete the item of the key ${key}?`, "Delete it", "Keep it", () => this.#delete(key));
  }

  async #delete(key) {
    this.#found.hidden = true;
    this.#item = null;
    say(this.#status, "Deleting …");
    try {
      const { deleted } = await act("v1/delete", { key });
      say(this.#status, deleted ? `The item of ${key} is deleted.` : `${key} has no item.`);
    } catch (error) {
      say(this.#status, error.message);
    }
  }
}

/** Returns the bytes of a text in the notation of the server. */
function bytesOf(text) {
  const plain = new TextEncoder();
  const parts = [];
  for (const [part] of text.matchAll(/\\\\|\\x[0-9a-f]{2}|[^\\]+/g)) {
    if (part === "\\\\") parts.push(0x5c);
    else if (part.startsWith("\\x")) parts.push(Number.parseInt(part.slice(2), 16));
    else for (const byte of plain.encode(part)) parts.push(byte);
  }
  return parts;
}

/** Returns the lines of a hexadecimal view, and how many bytes they have. */
function dump(all) {
  const shown = all.slice(0, LINE * LINES);
  const lines = [];
  for (let at = 0; at < shown.length; at += LINE) {
    const line = shown.slice(at, at + LINE);
    const hex = line.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const letters = line.map((byte) => (byte > 0x20 && byte < 0x7f ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${hex.padEnd(3 * LINE)} ${letters}`);
  }
  return { text: lines.join("\n"), length: shown.length };
}
