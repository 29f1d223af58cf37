// The view "Keys": the hottest keys, the tree of prefixes, and the largest items, which are
// estimates from samples. One item can be looked up or deleted.

import { ask } from "./connection.js";
import { example, framed, h, say, showEither } from "./elements.js";
import { bytes, bytesPerSecond, count, duration, percent, perSecond, whole } from "./format.js";
import { ItemPanel } from "./item.js";
import { authorization } from "./token.js";

/** Interval between two requests while the view is open, in milliseconds. */
const INTERVAL = 3000;
/** Column headings. The first column has names; the others have numbers. */
const HOT = ["Key", "Reads", "Writes", "Bytes/s", "Error"];
const TREE = ["Prefix", "Items", "Bytes", "Of all bytes", "Reads", "Writes", "Hit ratio", "Time to live"];
const LARGE = ["Key", "Bytes", "Seen"];

/**
 * @typedef {{items: ?number, items_error: ?number, bytes: ?number, bytes_error: ?number,
 *   expiring: ?number, ttl_seconds: ?number, reads_per_second: number, writes_per_second: number,
 *   requests_error: number, hit_ratio: ?number}} Estimate
 * @typedef {Estimate & {prefix: string, rest: ?Estimate, children: Prefix[]}} Prefix
 */

export class KeysView {
  name = "keys";
  title = "Keys";
  #askedAt = -Infinity;
  /** Prefixes whose children are shown. @type {Set<string>} */
  #expanded = new Set();
  /** @type {?Prefix} */
  #root = null;
  #trouble = h("p", { role: "status", hidden: true });
  #requests = h("p", { class: "soft" });
  #items = h("p", { class: "soft" });
  #hot = new Rows(HOT, (key) => this.#item.show(key));
  #tree = new Rows(TREE, (prefix) => this.#toggle(prefix), true);
  #large = new Rows(LARGE, (key) => this.#item.show(key));
  /** @type {ItemPanel} */
  #item;

  /** @param {import("./model.js").Model} model */
  constructor(model) {
    this.model = model;
    this.#item = new ItemPanel(model);
    this.without = h("div", { class: "off", hidden: true },
      h("p", {}, "This server does not sample its keys, because ", h("code", {}, "--disable-key-sampling"),
        " is set. Start it without this flag, or change the file of ", h("code", {}, "--config"),
        " and send SIGHUP:"),
      example("disable-key-sampling = false"));
    this.with = h("div", { hidden: true },
      h("h3", {}, "Hot keys"), this.#requests, this.#hot.frame("Hot keys"),
      h("h3", {}, "Prefixes"), this.#items, this.#tree.frame("Prefixes"),
      h("h3", {}, "Large items"),
      h("p", { class: "soft" }, "The largest of the sampled items. An item that is not sampled again for 10 minutes "
        + "leaves the list."),
      this.#large.frame("Large items"));
    this.element = h("div", { class: "keys" }, this.#trouble, this.without, this.with, this.#item.element);
  }

  open() {
    this.#askedAt = -Infinity;
  }

  async update() {
    const now = performance.now();
    if (this.model.latest === null || now - this.#askedAt < INTERVAL - 500) return;
    this.#askedAt = now;
    try {
      const report = await ask("v1/keys", authorization());
      this.#trouble.hidden = true;
      showEither(this, report.on);
      if (report.on) this.#show(report);
    } catch (error) {
      // The page may no longer be allowed to show names of keys, so it hides them.
      this.with.hidden = true;
      say(this.#trouble, `No report of the keys: ${error.message}.`);
      this.#trouble.hidden = false;
    }
  }

  #show(report) {
    const { requests, items } = report;
    say(this.#requests, `Estimates of the present rates: a request counts half after ${report.half_life_seconds} s. `
      + `About one request in ${whole(requests.interval)} is sampled; each key of a retrieval counts. The error is that of `
      + "reads and writes together, two standard deviations. A key may have had requests before it was noticed: \"up to +N\" "
      + "is the most that can be missing."
      + (report.hot.length === 0 ? " No key has been sampled often enough yet." : ""));
    this.#hot.show(report.hot.map((key) => [key.key, [
      [perSecond(key.reads_per_second), key.reads_per_second],
      [perSecond(key.writes_per_second), key.writes_per_second],
      [bytesPerSecond(key.bytes_per_second), key.bytes_per_second],
      [errorOf(key), key.error],
    ]]));
    say(this.#items, items.samples === 0
      ? `Samples of the ${whole(items.total)} items are being taken.`
      : `Estimates from ${whole(items.samples)} random draws (an item may be drawn again) among ${whole(items.total)} items, and from `
        + `${whole(requests.samples)} sampled requests of the last ${duration(requests.seconds)}. A prefix ends at `
        + `"${report.delimiter}".`
        + (items.expired > 0 ? ` ${percent(items.expired / items.samples)} of the draws led to expired items that were not `
          + "removed yet; no prefix has these." : "")
        + (items.unreadable > 0 ? ` ${whole(items.unreadable)} drawn items could not be read.` : ""));
    this.#root = report.prefixes;
    this.#showTree();
    this.#large.show(report.large.map((item) => [item.key, [
      [bytes(item.bytes), item.bytes],
      [item.seconds_ago === 0 ? "now" : `${duration(item.seconds_ago)} ago`, item.seconds_ago],
    ]]));
  }

  #showTree() {
    const root = this.#root;
    const rows = [];
    const add = (prefix, depth) => {
      const isOpen = depth === 0 || this.#expanded.has(prefix.prefix);
      const hasChildren = prefix.children.length > 0;
      rows.push([prefix.prefix, cellsOf(prefix, root), { depth, isOpen,
        label: depth === 0 ? "all keys" : prefix.prefix, canOpen: depth > 0 && hasChildren }]);
      if (!isOpen || !hasChildren) return;
      for (const child of prefix.children) add(child, depth + 1);
      if (prefix.rest.items > 0 || prefix.rest.reads_per_second > 0 || prefix.rest.writes_per_second > 0) {
        // In the page's notation, no key contains `\rest`, so no other row has this name.
        rows.push([`${prefix.prefix}\\rest`, cellsOf(prefix.rest, root),
          { depth: depth + 1, isOpen: false, label: "other keys", canOpen: false }]);
      }
    };
    add(root, 0);
    this.#tree.show(rows);
  }

  #toggle(prefix) {
    if (!this.#expanded.delete(prefix)) this.#expanded.add(prefix);
    this.#showTree();
  }
}

/**
 * The rows of a table. A row keeps its element, and the focus, while its name is in the table. If
 * the row leaves, the focus goes to a neighbour.
 */
class Rows {
  #body = h("tbody");
  /** @type {Map<string, HTMLElement>} */
  #rows = new Map();
  #headings;
  #isTree;

  /**
   * @param {string[]} headings
   * @param {(name: string) => void} onButton Called with the name of the row whose button was
   *   pressed.
   * @param {boolean} isTree True if only rows with children have buttons.
   */
  constructor(headings, onButton, isTree = false) {
    this.#headings = headings;
    this.#isTree = isTree;
    this.#body.addEventListener("click", (event) => {
      if (event.target.closest("button")) onButton(event.target.closest("tr").dataset.name);
    });
  }

  frame(label) {
    const head = this.#headings.map((heading, at) => h("th", { scope: "col", class: at > 0 && "n" }, heading));
    return framed(label, h("thead", {}, h("tr", {}, head)), this.#body);
  }

  /**
   * Shows rows: the name, the text and the value of each other cell, and in a tree how to show
   * the prefix.
   * @param {Array<[string, Array<[string, ?number]>, {depth: number, isOpen: boolean,
   *   label: string, canOpen: boolean}=]>} rows
   */
  show(rows) {
    const before = this.#rows;
    this.#rows = new Map(rows.map(([name]) => [name, before.get(name) ?? this.#make(name)]));
    const focused = this.#body.querySelector("tr:focus-within");
    const all = [...this.#body.children];
    const place = all.indexOf(focused);
    const heirs = [...all.slice(place), ...all.slice(0, Math.max(place, 0)).reverse()];
    arrange(this.#body, [...this.#rows.values()]);
    for (const [name, cells, branch] of rows) {
      const [head, ...others] = this.#rows.get(name).children;
      if (branch) showBranch(head, branch);
      cells.forEach(([text, value], at) => {
        say(others[at], text);
        others[at].dataset.value = value ?? "";
      });
    }
    if (focused !== null && !this.#body.contains(document.activeElement)) {
      const heir = heirs.find((row) => row.isConnected && row.querySelector("button") !== null);
      (heir?.querySelector("button") ?? this.#body.closest(".scroll")).focus({ preventScroll: true });
    }
  }

  #make(name) {
    const head = this.#isTree ? name : h("button", { type: "button", title: "Look up" }, name);
    return h("tr", { "data-name": name }, h("th", { scope: "row" }, head),
      this.#headings.slice(1).map((heading) => h("td", { class: "n", "data-label": heading })));
  }
}

/**
 * Makes `rows` the children of `body`. Moves as few rows as possible, and never the one that the
 * user presses or has focused: a row that moves loses focus, selection, and a click that has begun.
 * @param {HTMLElement} body
 * @param {HTMLElement[]} rows
 */
function arrange(body, rows) {
  const wanted = new Set(rows);
  for (const row of [...body.children]) if (!wanted.has(row)) row.remove();
  const places = new Map([...body.children].map((row, place) => [row, place]));
  const fixed = body.querySelector("tr:active") ?? body.querySelector("tr:focus-within");
  const fixedAt = rows.indexOf(fixed);
  const staying = rising(rows.map((row, at) => {
    const place = places.get(row) ?? null;
    const fits = fixed === null || place === null || Math.sign(at - fixedAt) === Math.sign(place - places.get(fixed));
    return fits ? place : null;
  }));
  for (let at = rows.length - 1; at >= 0; at -= 1) {
    if (!staying.has(at)) body.insertBefore(rows[at], rows[at + 1] ?? null);
  }
}

/**
 * Returns the indexes of a longest rising subsequence of these numbers.
 * @param {Array<?number>} numbers
 */
function rising(numbers) {
  /** The index of the least number that ends a subsequence, by the subsequence's length. */
  const ends = [];
  const before = [];
  numbers.forEach((number, at) => {
    if (number === null) return;
    let [low, high] = [0, ends.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (numbers[ends[middle]] < number) low = middle + 1;
      else high = middle;
    }
    before[at] = ends[low - 1];
    ends[low] = at;
  });
  const found = new Set();
  for (let at = ends.at(-1); at !== undefined; at = before[at]) found.add(at);
  return found;
}

/** Shows a prefix by its depth, as a button if it has children. */
function showBranch(head, { depth, isOpen, label, canOpen }) {
  head.className = `depth-${depth}`;
  const button = head.querySelector("button");
  if (!canOpen) {
    if (button !== null || head.textContent !== label) head.replaceChildren(label);
    return;
  }
  if (button === null) head.replaceChildren(h("button", { type: "button" }, label));
  head.firstElementChild.setAttribute("aria-expanded", String(isOpen));
}

function cellsOf(part, root) {
  return [
    [withError(count, part.items, part.items_error), part.items],
    [withError(bytes, part.bytes, part.bytes_error, bytes), part.bytes],
    [percent(root.bytes > 0 ? part.bytes / root.bytes : null), part.bytes],
    [withError(perSecond, part.reads_per_second, part.requests_error), part.reads_per_second],
    [perSecond(part.writes_per_second), part.writes_per_second],
    [percent(part.hit_ratio), part.hit_ratio],
    [lifeOf(part), part.ttl_seconds],
  ];
}

function withError(format, value, error, errorFormat = count) {
  return value === null || !(error > 0) ? format(value) : `${format(value)} ± ${errorFormat(error)}`;
}

function errorOf(key) {
  const missing = key.missing > 0.01 * key.error ? `, up to +${count(key.missing)}` : "";
  return `± ${count(key.error)}${missing}`;
}

function lifeOf(part) {
  if (part.expiring === null) return "–";
  if (part.expiring === 0) return "never expires";
  const life = duration(part.ttl_seconds);
  return part.expiring > 0.995 ? life : `${life} (${percent(part.expiring)} expire)`;
}
