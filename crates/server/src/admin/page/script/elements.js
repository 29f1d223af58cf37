// Makes the page's elements. Text reaches the page only as text nodes and attributes, never as
// markup.

/**
 * Makes an element. Attributes that are null or false are left out; functions become listeners.
 * @param {string} tag
 * @param {Object<string, unknown>} attributes
 * @param {...unknown} children Nodes, texts, or lists of them; null and false are left out.
 * @returns {HTMLElement}
 */
export function h(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(name, value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** Makes an SVG element. */
export function svg(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/** Sets a text if it differs, so that nothing is laid out again and no screen reader repeats it. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/**
 * A figure with its name, for `dl.figures`.
 * @param {string} label
 * @param {string} name The name of the figure, for `setFigure` and for tests.
 */
export function figure(label, name) {
  return h("div", {}, h("dt", {}, label), h("dd", { "data-figure": name }, "–"));
}

/** A card with a heading and figures. `figures` has the label and the name of each. */
export const group = (title, figures, ...head) => h("section", { class: "card" }, h("h3", {}, title), head,
  h("dl", { class: "figures" }, figures.map(([label, name]) => figure(label, name))));

/**
 * Shows a value in the figure `name`. The element keeps the exact value as an attribute.
 * @param {ParentNode} view
 * @param {string} name
 * @param {?number} value
 * @param {(value: ?number) => string} format
 */
export function setFigure(view, name, value, format) {
  const node = view.querySelector(`[data-figure="${name}"]`);
  say(node, format(value));
  node.dataset.value = value ?? "";
}

/** A table in a frame that scrolls by itself if the table is wide. */
export function framed(label, ...parts) {
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, h("table", {}, ...parts));
}

/**
 * Gives an element `length` children: removes the last ones, or appends new ones.
 * @param {Element} parent
 * @param {number} length
 * @param {() => Element} make
 */
export function resize(parent, length, make) {
  while (parent.children.length > length) parent.lastElementChild.remove();
  while (parent.children.length < length) parent.append(make());
}

/** A block with a command or with lines of a file. */
export const example = (text) => h("pre", { tabindex: 0 }, h("code", {}, text));

/**
 * Shows one part of a view: `with` if its feature is on, and otherwise `without`, which says how to
 * turn it on.
 */
export function showEither(view, isOn) {
  view.with.hidden = !isOn;
  view.without.hidden = isOn;
}
