// A dialog that asks before an action that cannot be undone. The safe answer has the focus, and
// Escape gives it.

import { h, say } from "./elements.js";

let questions = 0;

export class Question {
  #text = h("p", { id: `question-${++questions}` });
  #yes = h("button", { type: "button", class: "danger", click: () => this.#answer() });
  #no = h("button", { type: "button", autofocus: true, click: () => this.element.close() });
  #act = () => {};

  constructor() {
    this.element = h("dialog", { "aria-labelledby": this.#text.id }, this.#text,
      h("div", { class: "controls" }, this.#no, this.#yes));
  }

  /**
   * @param {string} text
   * @param {string} yes
   * @param {string} no
   * @param {() => void} act Called after `yes`.
   */
  ask(text, yes, no, act) {
    say(this.#text, text);
    say(this.#yes, yes);
    say(this.#no, no);
    this.#act = act;
    this.element.showModal();
  }

  #answer() {
    this.element.close();
    this.#act();
  }
}
