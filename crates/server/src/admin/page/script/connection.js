// The connection to the server: its messages, one per second, and other requests of the page. After
// the server was away, the page connects again by itself. A hidden page does not listen.

/** Time without a message after which the server counts as silent, in milliseconds. */
const SILENCE = 5000;
/** Interval between two attempts to reach the server, in milliseconds. */
const RETRY = 1000;
/** Interval between two attempts while too many pages are open, in milliseconds. */
const LONG_RETRY = 15000;
/**
 * Time after which a request counts as not answered, in milliseconds. The time for health checks is
 * shorter.
 */
const PATIENCE = 10000;
const SHORT_PATIENCE = 3000;
const NO_ANSWER = "No answer, waiting.";
const TOO_MANY = "Too many pages are open, waiting.";

/**
 * @typedef {{level: "good"|"notice"|"alarm", text: string}} Condition
 * @typedef {{time: number, condition: Condition, series: string[], values: Array<?number>,
 *   rows: Array<[string, string]>}} Message  As the server sends it; the time in milliseconds.
 */

/** Asks the server for JSON. Fails if there is no answer, or if its status is an error. */
export async function ask(path, headers = {}) {
  const reply = await fetch(path, { headers, cache: "no-store", signal: AbortSignal.timeout(PATIENCE) });
  if (!reply.ok) throw new Error(await reasonOf(reply));
  return reply.json();
}

/**
 * Returns the reason in a refusal, without a full stop. Some refusals have no text.
 * @param {Response} reply
 */
async function reasonOf(reply) {
  return (await reply.text()).trim() || reply.statusText || `status ${reply.status}`;
}

/**
 * Asks whether the server sends messages. Returns null if it does, and otherwise the reason as a
 * sentence.
 */
async function absence() {
  try {
    const reply = await fetch("readyz", { cache: "no-store", signal: AbortSignal.timeout(SHORT_PATIENCE) });
    if (!reply.ok) return `The server is not ready: ${await reasonOf(reply)}. Waiting.`;
    const messages = await fetch("v1/live", { method: "HEAD", signal: AbortSignal.timeout(SHORT_PATIENCE) });
    return messages.ok ? null : TOO_MANY;
  } catch {
    return NO_ANSWER;
  }
}

/**
 * Listens to the server, for ever.
 * @param {(message: Message) => void} heard
 * @param {(reason: string) => void} lost Called when messages stop, and again while none come.
 */
export function listen(heard, lost) {
  /** @type {?EventSource} */
  let source = null;
  let timer = 0;
  /** The last known reason why no messages come. @type {?string} */
  let known = null;

  const close = () => {
    source?.close();
    source = null;
    clearTimeout(timer);
  };
  const lose = (delay) => {
    close();
    if (document.hidden) return;
    lost(known ?? NO_ANSWER);
    timer = setTimeout(reach, delay);
  };
  // A server that still reads its store is ready for `open`, but sends no messages yet. After
  // `SILENCE`, `watch` leads to another call of `reach`.
  const reach = async () => {
    const reason = await absence();
    if (source !== null || document.hidden) return;
    known = reason;
    if (reason !== null) lost(reason);
    if (reason === TOO_MANY) lose(LONG_RETRY);
    else if (reason === NO_ANSWER) lose(RETRY);
    else open();
  };
  const watch = () => {
    clearTimeout(timer);
    timer = setTimeout(() => lose(0), SILENCE);
  };
  const open = () => {
    close();
    source = new EventSource("v1/live");
    source.onerror = () => lose(RETRY);
    source.onmessage = (event) => {
      known = null;
      watch();
      heard(JSON.parse(event.data));
    };
    watch();
  };

  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  if (!document.hidden) open();
}
