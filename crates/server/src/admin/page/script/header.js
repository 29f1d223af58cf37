// The head of the page: the condition of the server in one sentence, facts, and a notice after a
// restart.

import { h, say } from "./elements.js";
import { clock, duration } from "./format.js";

/**
 * Time for which a sentence stays if only its numbers change, in milliseconds. Screen readers speak
 * each change.
 */
const STEADY = 10_000;

const condition = document.getElementById("condition");
const facts = document.getElementById("facts");
const notice = document.getElementById("notice");
let saidAt = 0;

const withoutNumbers = (text) => text.replace(/[\d.,]+/g, "#");

function sayCondition(level, text) {
  const isNew = condition.className !== level || withoutNumbers(condition.textContent) !== withoutNumbers(text);
  if (!isNew && performance.now() - saidAt < STEADY) return;
  condition.className = level;
  say(condition, text);
  saidAt = performance.now();
}

/** Shows the condition and the facts. @param {import("./model.js").Model} model */
export function showHeader(model) {
  const { level, text } = model.latest.condition;
  sayCondition(level, text);
  const uptime = model.number("uptime");
  const parts = [model.text("larder_version"), uptime !== null && `up ${duration(uptime)}`,
    `${model.text("threads")} threads`, model.text("larder_io"),
    model.hasStore ? `durability ${model.text("larder_durability")}` : "no store"];
  say(facts, parts.filter(Boolean).join(" · "));
}

/** Shows why no messages come. Marks the figures on the page as old. */
export function showLost(reason) {
  sayCondition("lost", reason);
  document.documentElement.classList.add("old");
}

export function showFound() {
  document.documentElement.classList.remove("old");
}

/**
 * Says that the server was restarted, until the notice is closed.
 * @param {number} time The time of the start, in seconds.
 */
export function showRestart(time) {
  const close = h("button", { type: "button", click: () => { notice.hidden = true; } }, "Close");
  notice.replaceChildren(`The server was restarted at ${clock(time)}. Its history begins anew.`, close);
  notice.hidden = false;
}
