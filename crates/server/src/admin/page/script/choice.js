// A row of buttons, one of which is pressed.

import { h } from "./elements.js";

/**
 * @template T
 * @param {string} label For screen readers.
 * @param {Array<[string, T]>} options The texts and values of the buttons.
 * @param {T} first The value that is chosen at first.
 * @param {(value: T) => void} chosen
 */
export function choice(label, options, first, chosen) {
  const buttons = options.map(([text, value]) => h("button", { type: "button", "aria-pressed": String(value === first),
    click: (event) => {
      for (const button of buttons) button.setAttribute("aria-pressed", String(button === event.currentTarget));
      chosen(value);
    } }, text));
  return h("div", { class: "choice", role: "group", "aria-label": label }, buttons);
}
