// The view "Clients": connections, the addresses that move the most bytes, and the last slow
// commands.

import { ConsolePanel } from "./console.js";
import { ask } from "./connection.js";
import { framed, group, h, resize, say, setFigure } from "./elements.js";
import { bytes, bytesPerSecond, count, duration, micros, moment, perSecond, whole } from "./format.js";

/** Age of an answer at which the page asks again, in milliseconds: with every second message. */
const FRESH = 1900;
/** The largest number of connections that are shown at once. */
const SHOWN = 100;
/** The largest number of slow commands that are shown, unless the user wants all. */
const SLOW_SHOWN = 10;

const seconds = (value) => (value === null ? "–" : duration(value));

const STATES = {
  idle: "waits for requests",
  input: "sends a request",
  output: "does not read replies",
  read: "waits for a read",
  space: "waits for memory",
  place: "waits for a place",
  commit: "waits for a commit",
};
const WAITS = {
  read: "a read of the store",
  space: "memory or space",
  place: "a place for a long value",
  commit: "the commit",
};

/**
 * Columns of the connections: what they show, and by what they are sorted.
 * @type {Array<{name: string, label: string, show: (value: unknown) => string, isText?: boolean}>}
 */
const COLUMNS = [
  { name: "address", label: "Client", show: String, isText: true },
  { name: "protocol", label: "Protocol", show: String, isText: true },
  { name: "bytes_per_second", label: "Bytes/s", show: bytesPerSecond },
  { name: "commands_per_second", label: "Commands/s", show: perSecond },
  { name: "received", label: "Received", show: bytes },
  { name: "sent", label: "Sent", show: bytes },
  { name: "commands", label: "Commands", show: count },
  { name: "kept", label: "Buffers", show: bytes },
  { name: "idle", label: "Silent for", show: seconds },
  { name: "age", label: "Open for", show: seconds },
  { name: "state", label: "State", show: (state) => STATES[state] ?? state, isText: true },
];

/** Columns of the addresses. */
const ADDRESS_COLUMNS = [
  { name: "address", label: "Address", show: String, isText: true },
  { name: "connections", label: "Connections", show: whole },
  { name: "bytes_per_second", label: "Bytes/s", show: bytesPerSecond },
  { name: "commands_per_second", label: "Commands/s", show: perSecond },
  { name: "received", label: "Received", show: bytes },
  { name: "sent", label: "Sent", show: bytes },
];

const waitText = (waits) => (waits.length === 0 ? "nothing, the worker was busy"
  : waits.map((wait) => WAITS[wait] ?? wait).join(", "));
const commandText = (row) => {
  const others = row.commands > 1 ? ` and ${whole(row.commands - 1)} more` : "";
  return `${row.command ?? row.class}${others}`;
};

/** Columns of the slow commands. `show` gets the whole row. */
const SLOW_COLUMNS = [
  { label: "Time", show: (row) => moment(row.time / 1000), isText: true },
  { label: "Took", show: (row) => micros(row.took_us) },
  { label: "Command", show: commandText, isText: true },
  { label: "Client", show: (row) => row.address ?? "limit port", isText: true },
  { label: "Waited for", show: (row) => waitText(row.waits), isText: true },
  { label: "Hash of the key", show: (row) => row.key_hash ?? "–", isText: true },
  { label: "Request", show: (row) => (row.connection === null ? "–" : bytes(row.request_bytes)) },
  { label: "Reply", show: (row) => (row.connection === null ? "–" : bytes(row.reply_bytes)) },
];

/** The body of a table. Its rows are reused. The first cell of a row is its head. */
class Body {
  element = h("tbody");
  #columns;

  constructor(columns) {
    this.#columns = columns;
  }

  /** Shows one row per entry; `valueOf` returns the value of a column. */
  show(entries, valueOf) {
    const { element } = this;
    resize(element, entries.length, () => this.#row());
    entries.forEach((entry, at) => {
      this.#columns.forEach((column, place) => {
        const value = valueOf(entry, column);
        const cell = element.children[at].children[place];
        say(cell, column.show(value));
        if (column.name !== undefined) cell.dataset.value = value ?? "";
      });
    });
  }

  #row() {
    return h("tr", {}, this.#columns.map(({ name, label, isText }, at) => (at === 0
      ? h("th", { scope: "row", "data-column": name })
      : h("td", { class: !isText && "n", "data-label": label, "data-column": name }))));
  }
}

const head = ({ label, isText }, ...inside) =>
  h("th", { scope: "col", class: !isText && "n" }, inside.length > 0 ? inside : label);

export class ClientsView {
  name = "clients";
  title = "Clients";
  /** The parent of the panel that sends commands. */
  tools = h("div");
  #askedAt = -Infinity;
  /** @type {?Object} */
  #answer = null;
  #sortedBy = "bytes_per_second";
  #descends = true;
  #addresses = new Body(ADDRESS_COLUMNS);
  #connections = new Body(COLUMNS);
  #slow = new Body(SLOW_COLUMNS);
  #heads = new Map();
  #shown = h("p", { class: "soft" });
  /** Says for screen readers what filter and order have done, but not what each answer changes. */
  #announced = h("p", { class: "unseen", role: "status" });
  #isPaused = false;
  #pause = h("button", { type: "button", "aria-pressed": "false", click: () => this.#togglePause() }, "Pause");
  #pausedAt = h("p", { class: "soft", role: "status" });
  #none = h("p", { class: "soft" });
  #wantsAllSlow = false;
  #allSlow = h("button", { type: "button", hidden: true, click: () => {
    this.#wantsAllSlow = !this.#wantsAllSlow;
    this.#showSlow();
  } });
  #off = h("div", { class: "off", hidden: true }, h("p"), h("p", {},
    "A command is slow if it takes at least ", h("code", {}, "--slow-command"), ", 10 ms unless set otherwise. ",
    "A reload with SIGHUP changes this setting."));
  #filter = h("input", { type: "search", id: "client-filter", autocomplete: "off", spellcheck: "false",
    placeholder: "address or state", input: () => this.#announce() });
  #order = h("select", { id: "client-order", change: (event) => this.#sortBy(event.currentTarget.value, true) },
    COLUMNS.map(({ name, label }) => h("option", { value: name, selected: name === this.#sortedBy }, label)));

  /** @param {import("./model.js").Model} model */
  constructor(model) {
    this.model = model;
    this.tools.append(new ConsolePanel(model).element);
    this.slow = h("div", {},
      framed("Slow commands", h("thead", {}, h("tr", {}, SLOW_COLUMNS.map((column) => head(column)))),
        this.#slow.element),
      this.#allSlow);
    this.element = h("div", {},
      h("div", { class: "cards" },
        group("Connections", [["Open", "open"], ["Addresses", "addresses"], ["Allowed", "allowed"]]),
        group("Protocols", [["Text", "text"], ["Binary", "binary"], ["None yet", "none yet"]]),
        group("Open connections", [["Received", "received_per_second"], ["Sent", "sent_per_second"]]),
        group("Slow commands", [["In all", "slow_count"], ["From", "threshold_us"]])),
      this.tools,
      h("div", { class: "controls" }, this.#pause, this.#pausedAt),
      h("h3", {}, "Slow commands"), this.#off, this.#none, this.slow,
      h("h3", {}, "Addresses"),
      framed("Addresses", h("thead", {}, h("tr", {}, ADDRESS_COLUMNS.map((column) => head(column)))),
        this.#addresses.element),
      h("h3", {}, "Connections"),
      h("div", { class: "controls" },
        h("label", { for: "client-filter" }, "Show those with"), this.#filter,
        h("label", { for: "client-order" }, "Sort by"), this.#order, this.#shown, this.#announced),
      framed("Connections", h("thead", {}, h("tr", {}, COLUMNS.map((column) => this.#sortable(column)))),
        this.#connections.element));
    this.#markOrder();
  }

  #sortable(column) {
    const button = h("button", { type: "button", click: () => this.#sortBy(column.name, false) }, column.label);
    const cell = head(column, button);
    this.#heads.set(column.name, cell);
    return cell;
  }

  /**
   * Sorts by a column: texts from A, numbers from the largest. If the table is sorted by it
   * already, a click on the heading reverses the order.
   */
  #sortBy(name, isChosen) {
    const isText = COLUMNS.find((column) => column.name === name).isText ?? false;
    this.#descends = name === this.#sortedBy && !isChosen ? !this.#descends : !isText;
    this.#sortedBy = name;
    this.#order.value = name;
    this.#markOrder();
    this.#announce();
  }

  #markOrder() {
    for (const [name, cell] of this.#heads) {
      if (name === this.#sortedBy) cell.setAttribute("aria-sort", this.#descends ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    }
  }

  restarted() {
    this.#askedAt = -Infinity;
  }

  /** Freezes what is shown, or lets it follow the server again. */
  #togglePause() {
    this.#isPaused = !this.#isPaused;
    this.#pause.setAttribute("aria-pressed", String(this.#isPaused));
    say(this.#pausedAt, this.#isPaused && this.#answer !== null ? `As of ${moment(this.#answer.time / 1000)}` : "");
    if (this.#isPaused) return;
    this.#askedAt = -Infinity;
    this.update();
  }

  async update() {
    if (this.#isPaused || performance.now() - this.#askedAt < FRESH) return;
    this.#askedAt = performance.now();
    const answer = await ask("v1/clients").catch(() => null);
    if (answer === null || this.#isPaused) return;
    this.#answer = answer;
    this.#showFigures();
    this.#showSlow();
    this.#addresses.show(answer.addresses, (row, column) => row[column.name]);
    this.#showConnections();
  }

  #showFigures() {
    const { element, model } = this;
    const answer = this.#answer;
    setFigure(element, "open", answer.total, whole);
    setFigure(element, "addresses", answer.address_count, whole);
    setFigure(element, "allowed", model.number("max_connections"), whole);
    for (const name of ["text", "binary", "none yet"]) {
      const row = answer.protocols.find((protocol) => protocol.name === name);
      setFigure(element, name, row?.connections ?? 0, whole);
    }
    setFigure(element, "received_per_second", answer.received_per_second, bytesPerSecond);
    setFigure(element, "sent_per_second", answer.sent_per_second, bytesPerSecond);
    setFigure(element, "slow_count", answer.slow.off === null ? answer.slow.count : null, whole);
    setFigure(element, "threshold_us", answer.slow.threshold_us, micros);
  }

  #showSlow() {
    if (this.#answer === null) return;
    const { slow } = this.#answer;
    this.#off.hidden = slow.off === null;
    say(this.#off.firstElementChild, `Slow commands are not recorded: ${slow.off ?? ""}.`);
    this.#none.hidden = slow.off !== null;
    say(this.#none, slow.commands.length === 0 ? `No command has taken ${micros(slow.threshold_us)} or more.`
      : `The last ${whole(slow.commands.length)} of ${whole(slow.count)}, the newest first. `
        + "A hash names a key without showing it.");
    this.slow.hidden = slow.commands.length === 0;
    const shown = this.#wantsAllSlow ? slow.commands : slow.commands.slice(0, SLOW_SHOWN);
    this.#slow.show(shown, (row) => row);
    this.#allSlow.hidden = slow.commands.length <= SLOW_SHOWN;
    say(this.#allSlow, this.#wantsAllSlow ? "Show fewer" : `Show all ${whole(slow.commands.length)}`);
  }

  #showConnections() {
    const answer = this.#answer;
    if (answer === null) return;
    const wanted = this.#filter.value.trim().toLowerCase();
    const matches = (row) => `${row.address} ${row.protocol} ${STATES[row.state] ?? row.state}`.toLowerCase().includes(wanted);
    const listed = answer.connections.filter(matches).sort((a, b) => this.#compare(a, b));
    const shown = listed.slice(0, SHOWN);
    this.#connections.show(shown, (row, column) => row[column.name]);
    const some = answer.total > answer.connections.length ? `, the busiest ${whole(answer.connections.length)} are listed` : "";
    say(this.#shown, `${whole(shown.length)} of ${whole(answer.total)} are shown${some}`);
  }

  /** Shows the connections with the chosen filter and order, and tells screen readers. */
  #announce() {
    this.#showConnections();
    const { label } = COLUMNS.find((column) => column.name === this.#sortedBy);
    say(this.#announced, `${this.#shown.textContent}, sorted by ${label}, ${this.#descends ? "descending" : "ascending"}`);
  }

  #compare(a, b) {
    const [left, right] = [a[this.#sortedBy], b[this.#sortedBy]];
    // Absent values count as the least.
    const order = left === right ? 0 : left === null ? -1 : right === null ? 1 : left < right ? -1 : 1;
    return (this.#descends ? -order : order) || a.id - b.id;
  }
}
