// The view "Lab": opens the report that `larder bench all` wrote. The report is a separate
// document.

import { ask } from "./connection.js";
import { example, figure, h, say, setFigure, showEither } from "./elements.js";
import { bytes, dayAndTime, whole } from "./format.js";

/** Age after which the description is asked for again while the view is shown, in milliseconds. */
const FRESH = 10_000;

/**
 * @typedef {{date: string, larder: {version: string, revision: ?string, profile: ?string},
 *   scale: string, interrupted: boolean, machine: {cpu: string, cpus: number}, systems: number,
 *   experiments: Array<{id: string}>}} Results
 * @typedef {{file: ?string, problem: ?string, bytes: number, changed: number,
 *   results: ?Results}} Description
 */

export class LabView {
  name = "lab";
  title = "Lab";
  #askedAt = -Infinity;
  #why = h("p");
  #about = h("p");
  #file = h("p", { class: "soft" });

  /** @param {import("./model.js").Model} model */
  constructor(model) {
    this.model = model;
    this.without = h("div", { class: "off", hidden: true }, this.#why,
      h("p", {}, "The lab measures Larder beside other servers on this machine. It writes one report, which this view "
        + "then opens:"),
      example("larder bench all --out /var/lib/larder-lab\nlarder serve --lab-report /var/lib/larder-lab"),
      h("p", {}, "SIGHUP reads a changed setting. Measure on a machine that has nothing else to do. docs/lab.md has "
        + "more about the experiments."));
    this.with = h("div", { hidden: true },
      h("p", {}, h("a", { href: "lab/report.html", target: "_blank", rel: "noopener" }, "Open the report"),
        " in a new tab."),
      this.#about, this.#file,
      h("dl", { class: "figures wide" }, figure("systems", "lab_systems"), figure("experiments", "lab_experiments"),
        figure("size of the report", "lab_bytes")));
    this.element = h("div", {}, this.without, this.with);
  }

  open() {
    this.#askedAt = -Infinity;
  }

  restarted() {
    this.#askedAt = -Infinity;
  }

  async update() {
    const now = performance.now();
    if (now - this.#askedAt < FRESH) return;
    this.#askedAt = now;
    /** @type {?Description} */
    const lab = await ask("v1/lab").catch(() => null);
    if (lab !== null) this.#show(lab);
  }

  #show(lab) {
    showEither(this, lab.file !== null && lab.problem === null);
    say(this.#why, lab.file === null ? "This server has no report of the lab to show."
      : `The report cannot be opened: ${lab.problem}.`);
    const { results } = lab;
    say(this.#about, results === null ? "" : aboutText(results));
    say(this.#file, `${lab.file}, written ${dayAndTime(lab.changed / 1000)}`);
    const set = (name, value, format) => setFigure(this.with, name, value, format);
    set("lab_systems", results?.systems ?? null, whole);
    set("lab_experiments", results?.experiments.length ?? null, whole);
    set("lab_bytes", lab.bytes, bytes);
  }
}

function aboutText({ date, larder, scale, interrupted, machine, experiments }) {
  const build = [larder.revision, larder.profile && `${larder.profile} build`].filter(Boolean).join(", ");
  const end = interrupted ? " The run was interrupted, so some figures are missing." : "";
  return `A run that ended at ${dayAndTime(Date.parse(date) / 1000)} with Larder ${larder.version}${build && ` (${build})`} at scale `
    + `${scale}, on ${machine.cpus} processors (${machine.cpu}): ${experiments.map(({ id }) => id).join(", ")}.${end}`;
}
