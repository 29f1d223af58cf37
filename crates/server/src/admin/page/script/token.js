// The token. Requests that change the server or show values need it.
//
// The token is only in the memory of this page, so a reload forgets it. If the browser stored it,
// the next program that serves a page at this address could read it. The page also forgets the
// token when the server is away or was restarted. Otherwise, another program that answers at this
// address by then would get the token. A hidden page does not watch the server, and its user does
// not see that the page has the token. So a hidden page forgets the token after a while.

import { h, say } from "./elements.js";

/**
 * Time after which an action counts as not answered, in milliseconds. The server gives up earlier.
 */
const PATIENCE = 30000;

/** Time after which a hidden page forgets the token, in milliseconds. */
const HIDDEN = 300000;

/** @type {?string} */
let token = null;
/** What is wrong with the last token. */
let problem = "";
/** @type {Set<TokenField>} */
const fields = new Set();

function use(text, reason = "") {
  token = text;
  problem = reason;
  for (const field of fields) field.show();
}

/**
 * Returns the headers of a request that needs the token unless the page is on the server's machine.
 */
export const authorization = () => (token === null ? {} : { Authorization: `Bearer ${token}` });

/** Forgets the token of a server that is away or was restarted. */
export function forgetToken() {
  if (token !== null) use(null, "The server was away, so the page has forgotten the token. Enter it again.");
}

/** When the page was hidden. */
let hiddenAt = 0;
let timer = 0;

function forgetHidden() {
  if (token !== null) use(null, "The page was hidden for 5 minutes, so it has forgotten the token. Enter it again.");
}

document.addEventListener("visibilitychange", () => {
  clearTimeout(timer);
  if (document.hidden) {
    hiddenAt = Date.now();
    timer = setTimeout(forgetHidden, HIDDEN);
  } else if (Date.now() - hiddenAt >= HIDDEN) {
    // A browser or machine that slept has run no timers.
    forgetHidden();
  }
});

/**
 * Asks the server for something that needs the token. Fails with a sentence if it was not done.
 * @param {string} path
 * @param {Object<string, unknown>} body
 */
export async function act(path, body) {
  if (token === null) throw new Error("Enter the token first.");
  let reply;
  try {
    reply = await fetch(path, {
      method: "POST",
      headers: { "Content-Type": "application/json", ...authorization() },
      body: JSON.stringify(body),
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
      signal: AbortSignal.timeout(PATIENCE),
    });
  } catch {
    throw new Error("No answer: it may or may not be done.");
  }
  if (reply.ok) return reply.json();
  const reason = (await reply.text()).trim();
  // Status 429 means that this token is wrong, after too many other wrong ones.
  if (reply.status === 401 || reply.status === 429) use(null, "The token is wrong. A server without --admin-token-file has a new one after each start.");
  throw new Error(`${reason.replace(/^[a-z](?=[a-z]* )/, (letter) => letter.toUpperCase())}.`);
}

/** The field for the token. All fields of the page share one token. */
export class TokenField {
  #input = h("input", { type: "password", autocomplete: "off", spellcheck: "false", maxlength: 256, required: true });
  #problem = h("p", { class: "wrong", role: "alert" });
  #form = h("form", { class: "controls", submit: (event) => this.#enter(event) },
    h("label", {}, "Token ", this.#input), h("button", {}, "Use"));
  #known = h("div", { class: "controls", hidden: true },
    h("p", { class: "soft" }, "This page has the token until you reload it, hide it for 5 minutes, or until the server is away."),
    h("button", { type: "button", click: () => this.#forget() }, "Forget the token"));
  #hint = h("p", { class: "soft" }, "This needs the token. The server prints it when it starts, or a file holds it (",
    h("code", {}, "--admin-token-file"), ").");

  constructor() {
    this.element = h("div", { class: "token" }, this.#hint, this.#form, this.#problem, this.#known);
    fields.add(this);
    this.show();
  }

  show() {
    const isKnown = token !== null;
    this.#form.hidden = isKnown;
    this.#hint.hidden = isKnown;
    this.#known.hidden = !isKnown;
    say(this.#problem, problem);
  }

  #enter(event) {
    event.preventDefault();
    const text = this.#input.value.trim();
    this.#input.value = "";
    if (/^[!-~]+$/.test(text)) use(text);
    else use(null, "A token has only visible ASCII characters.");
  }

  #forget() {
    use(null);
    this.#input.focus();
  }
}
