// What the page knows about the server: the latest message, the messages of the last minute, and
// the past for charts.

import { ask } from "./connection.js";

/** The past that the page keeps, in seconds. */
export const KEPT = 600;
/** The number of messages that are kept for rates. */
const RECENT = 61;
/** If two messages are further apart than this, the past has a gap. In seconds. */
const GAP = 2.5;
/** Number of messages after which the page asks for new events. */
const EVENTS_EVERY = 30;
/** Start times that differ by more than this are those of different runs, in seconds. */
const SAME_START = 2;

/**
 * @typedef {{time: number, condition: import("./connection.js").Condition,
 *   values: Object<string, ?number>, rows: Map<string, string>}} Beat  A message; the time in
 *   seconds since the Unix epoch.
 * @typedef {{time: number, name: string, text: string}} Event
 * @typedef {{begins: ?number, step: number, times: number[],
 *   columns: Object<string, Array<?number>>, events: Event[]}} Past  All times in seconds.
 */

/** Returns the answer of `/v1/history` with times in seconds and columns by name. */
export async function pastOf(seconds) {
  const answer = await ask(`v1/history?seconds=${seconds}`);
  const inSeconds = (time) => (time === null ? null : time / 1000);
  return {
    begins: inSeconds(answer.begins),
    step: answer.step,
    times: answer.times.map(inSeconds),
    columns: Object.fromEntries(answer.series.map((name, at) => [name, answer.values[at]])),
    events: answer.events.map((event) => ({ ...event, time: inSeconds(event.time) })),
  };
}

/** @returns {Past} */
const empty = () => ({ begins: null, step: 1, times: [], columns: {}, events: [] });

export class Model {
  /** @type {?Beat} */
  latest = null;
  /** @type {Past} */
  past = empty();
  /** @type {Beat[]} The messages of the last minute, the newest last. */
  #recent = [];
  #asking = false;
  /** True once the past of this run of the server was read. */
  #hasPast = false;
  #messages = 0;

  /**
   * Takes a message. Returns true if the server was restarted since the message before it.
   * @param {import("./connection.js").Message} message
   */
  take(message) {
    const beat = {
      time: message.time / 1000,
      condition: message.condition,
      values: Object.fromEntries(message.series.map((name, at) => [name, message.values[at]])),
      rows: new Map(message.rows),
    };
    const before = this.latest;
    this.latest = beat;
    const restarted = before !== null && isOtherRun(before, beat);
    if (restarted) {
      this.#recent = [];
      this.past = empty();
      this.#hasPast = false;
    }
    this.#recent.push(beat);
    if (this.#recent.length > RECENT) this.#recent.shift();
    const isGap = before !== null && beat.time - before.time > GAP;
    if (!this.#hasPast || isGap) this.#fetchPast();
    if (this.#hasPast && !isGap) append(this.past, beat);
    this.#messages += 1;
    if (this.#messages % EVENTS_EVERY === 0) this.#fetchEvents();
    return restarted;
  }

  /** Returns the text of a row of `stats`, or null. */
  text(row) {
    return this.latest?.rows.get(row) ?? null;
  }

  get hasStore() {
    return this.text("larder_store") !== "none";
  }

  /** Returns the number in a row of `stats`, or null. */
  number(row) {
    return numberIn(this.latest, row);
  }

  /** Returns by how much a counter grew per second over the last `seconds`, or null. */
  rate(row, seconds = 10) {
    const { latest } = this;
    if (latest === null) return null;
    const first = this.#recent.find((beat) => beat.time >= latest.time - seconds - 0.5);
    const [from, to] = [numberIn(first, row), numberIn(latest, row)];
    if (from === null || to === null || first === latest) return null;
    // A counter that fell was set back by `stats reset`.
    return to < from ? null : (to - from) / (latest.time - first.time);
  }

  /** Returns the value of a series at the latest message, or null. */
  value(series) {
    return this.latest?.values[series] ?? null;
  }

  async #fetchPast() {
    if (this.#asking) return;
    this.#asking = true;
    try {
      const past = await pastOf(KEPT);
      const end = past.times.at(-1) ?? 0;
      this.#recent.filter((beat) => beat.time > end).forEach((beat) => append(past, beat));
      this.past = past;
      this.#hasPast = true;
    } catch {
      // The page keeps the past that it has. `listen` in `connection.js` reports a server that is
      // away.
    } finally {
      this.#asking = false;
    }
  }

  /** Asks for new events. Messages contain no events, so the page asks from time to time. */
  async #fetchEvents() {
    try {
      const { events } = await pastOf(2 * EVENTS_EVERY);
      // The past may have been replaced while this function waited.
      const { past } = this;
      const isNew = (event) => !past.events.some((known) => known.time === event.time && known.text === event.text);
      past.events.push(...events.filter(isNew));
    } catch {
      // The next call fetches the missing events.
    }
  }
}

/** Returns the ratio of two numbers of a model, or null. */
export const ratio = (part, all) => (part === null || !all ? null : part / all);

function numberIn(beat, row) {
  const text = beat?.rows.get(row);
  const number = Number(text);
  return text === undefined || text === "" || !Number.isFinite(number) ? null : number;
}

function isOtherRun(before, after) {
  const start = (beat) => beat.time - (numberIn(beat, "uptime") ?? 0);
  return before.rows.get("pid") !== after.rows.get("pid") || Math.abs(start(after) - start(before)) > SAME_START;
}

function append(past, beat) {
  past.times.push(beat.time);
  for (const [name, value] of Object.entries(beat.values)) {
    // A series that is new to the past has no values for the earlier times.
    past.columns[name] ??= Array(past.times.length - 1).fill(null);
    past.columns[name].push(value);
  }
  while (past.times[0] < beat.time - KEPT) {
    past.times.shift();
    Object.values(past.columns).forEach((column) => column.shift());
  }
  past.events = past.events.filter((event) => event.time >= beat.time - KEPT);
}
