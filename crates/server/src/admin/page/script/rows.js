// The rows of all groups that the server shows as JSON, and their meanings.

import { ask } from "./connection.js";

/** Age up to which an answer is reused, in milliseconds. */
const FRESH = 800;

/** @typedef {{group: string, row: string, kind: string, unit: string, help: string}} Metric */

/**
 * @typedef {{at: number, rows: Map<string, string|number>}} Answer  `at` is the time of the
 *   request, in milliseconds.
 */

let askedAt = -Infinity;
/** @type {?Promise<Answer>} */
let answer = null;

/** Returns all rows by name, those of rate limits included. @returns {Promise<Answer>} */
export function readStatistics() {
  const at = performance.now();
  if (at - askedAt > FRESH) {
    askedAt = at;
    answer = ask("v1/stats").then((rows) => ({ at, rows: new Map(Object.entries(rows)) }));
  }
  return answer;
}

/**
 * Parts of row names that differ between servers, and their placeholders in the table of metrics.
 */
const PATTERNS = [
  [/^larder_lane_\d+_/, "larder_lane_N_"],
  [/^limit:.*:/, "limit:NAME:"],
  [/^latency:[^:]*:/, "latency:CLASS:"],
  [/^commit:\d+:/, "commit:N:"],
  [/^device:\d+:(lower:)?/, "device:N:"],
];

/**
 * Returns a function from the name of a row to its metric, or null if the server has no table of
 * metrics.
 * @returns {Promise<?(row: string) => (Metric|undefined)>}
 */
export async function readMeanings() {
  const metrics = await ask("v1/metrics").catch(() => null);
  if (metrics === null) return null;
  const byRow = new Map(metrics.map((metric) => [metric.row, metric]));
  return (row) => byRow.get(PATTERNS.reduce((name, [pattern, word]) => name.replace(pattern, word), row));
}
