// The view "Actions": one item.

import { h } from "./elements.js";
import { ItemPanel } from "./item.js";

export class ActionsView {
  name = "actions";
  title = "Actions";

  /** @param {import("./model.js").Model} model */
  constructor(model) {
    this.element = h("div", {}, new ItemPanel(model).element);
  }

  update() {}
}
