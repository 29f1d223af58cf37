// Part of the report's script: the first screen.

function summaryPage() {
  const headlines = allComparisons.filter((comparison) => comparison.question.headline);
  const others = allComparisons.filter((comparison) => !comparison.question.headline);
  return [
    h("h2", { class: "unseen" }, "Summary"),
    results.interrupted && h("p", { class: "banner", role: "status" },
      "This run was interrupted. The figures are those of the runs that had ended; the rest is missing, not zero."),
    h("p", { class: "soft intro" }, "Larder is a cache server that speaks memcached\u2019s protocols. Its peers ran "
      + "on the same machine under the same load."),
    verdict(),
    scoreboard(),
    h("p", { class: "soft" }, "The ratio says how many times better Larder is than the best peer; below 1 the peer is "
      + `better. A comparison is level if the ratio is within ${percent(LEVEL)} of 1 (${percent(LEVEL_ONCE)} after a `
      + "single round), or if the ranges of the rounds overlap. Figures are medians of rounds in which the systems took turns. The spread sets Larder\u2019s worst "
      + "round against the peer\u2019s best, and its best against the peer\u2019s worst."),
    comparisonTable(headlines, "Results by experiment and durability", true),
    standInNote(headlines),
    results.command && h("p", { class: "soft" }, "Repeat all of it: ", commandLine(wholeCommand())),
    lossSection(),
    othersNote(others),
    voidSection(),
    missingSection(),
  ];
}

function verdict() {
  const number = (state) => allComparisons.filter((comparison) => comparison.state === state).length;
  const [ahead, behind, level] = ["ahead", "behind", "level"].map(number);
  const total = ahead + behind + level;
  if (total === 0) {
    const nothing = "No experiment has figures of both Larder and a peer, so there is nothing to compare.";
    return h("p", { class: "verdict" }, nothing);
  }
  const both = allComparisons.filter((comparison) => comparison.interval);
  const single = both.filter(isFromOneRound).length;
  const rounds = single === both.length ? "Every comparison rests" : single === 1 ? "One of them rests"
    : `${single} of them rest`;
  return h("p", { class: "verdict", id: "verdict", "data-ahead": ahead, "data-behind": behind, "data-level": level },
    `In ${total} comparisons at equal durability, Larder is `,
    h("span", { class: "ahead" }, `ahead of every peer in ${ahead}`), `, level in ${level} and `,
    h("span", { class: behind > 0 && "behind" }, `behind in ${behind}`), ".",
    single > 0 && ` ${rounds} on one round, so a small difference may be chance.`);
}

/** A note that names the stand-ins and explains the marks in the comparisons. */
function standInNote(comparisons) {
  const standIns = [...systems.values()].filter((system) => system.stand_in)
    .map((system) => `${system.name} ${system.stand_in}.`);
  const cells = comparisons.flatMap(({ larder, peer }) => [larder?.cell, peer?.cell]).filter(Boolean);
  const notes = [...marksNotes(cells), ...standIns];
  return notes.length > 0 && h("p", { class: "soft" }, notes.join(" "));
}

/** Wins and losses by durability class. */
function scoreboard() {
  const box = (durability) => {
    const same = allComparisons.filter((comparison) => comparison.durability === durability);
    const number = (state) => same.filter((comparison) => comparison.state === state).length;
    const big = (state) => h("b", { class: number(state) > 0 && state }, number(state));
    return h("div", {}, h("h3", {}, className(durability)),
      h("p", {}, big("ahead"), " ahead, ", big("level"), " level, ", big("behind"), " behind"),
      h("p", {}, CLASS_MEANINGS[durability]));
  };
  return h("div", { class: "score" }, CLASSES.map(box));
}

function lossSection() {
  const losses = allComparisons.filter((comparison) => comparison.state === "behind");
  const title = h("h3", {}, "Where Larder is behind");
  if (losses.length === 0) return [title, h("p", {}, "In no comparison of this report.")];
  losses.sort((a, b) => a.advantage - b.advantage);
  const questions = unique(losses.map(({ question }) => `${question.experiment}/${question.ask}`));
  const about = `All comparisons in which a peer of the same durability is better: ${losses.length}, on `
    + `${questions.length === 1 ? "one question" : `${questions.length} questions`}, the worst first.`;
  return [title, h("p", {}, about), lossTable(losses, questions)];
}

/** A line per question, with the losses of each durability class. */
function lossTable(losses, questions) {
  const classes = CLASSES.filter((durability) => losses.some((loss) => loss.durability === durability));
  const row = (key) => {
    const mine = losses.filter(({ question }) => `${question.experiment}/${question.ask}` === key);
    const [{ question }] = mine;
    const cell = (durability) => h("td", { "data-label": className(durability) },
      mine.filter((loss) => loss.durability === durability).map(lossEntry));
    return h("tr", { "data-question": key },
      rowHead(h("a", { href: `#${question.experiment}` }, pageName(question.experiment)), " ", question.ask),
      classes.map(cell));
  };
  return h("table", { class: "losses", "aria-label": "Comparisons in which Larder is behind" },
    h("thead", {}, headRow(["Question", ...classes.map(className)])), h("tbody", {}, questions.map(row)));
}

/** The ratio, and the two figures that it compares. */
function lossEntry(loss) {
  const { question, group, x, larder, peer, advantage } = loss;
  const { format } = metricOf(question.metric);
  const where = [xText(question.experiment, question.case, x), group].filter(Boolean).join(", ");
  const figures = [larder, peer].map(({ system, stat }) => `${systemLabel(system)} ${format(stat.median)}`);
  return h("div", { "data-loss": true, ...comparisonData(loss) },
    h("span", { class: "ratio behind" }, times(advantage, true)),
    h("small", {}, [where && `${where}: `, figures.join(", "), isFromOneRound(loss) && " (one round)"]));
}

function othersNote(others) {
  if (others.length === 0) return null;
  const pages = unique(others.map((comparison) => comparison.question.experiment));
  const links = pages.map((id) => [" ", h("a", { href: `#${id}` }, pageName(id))]);
  const text = `The other ${others.length} comparisons stand on the pages of their experiments:`;
  return h("p", { class: "soft" }, text, links, ".");
}

/** All void runs: those with wrong answers, and those that failed. */
function voidSection() {
  const all = (results.experiments ?? []).flatMap(({ id }) => cellsOf(id));
  const cells = all.filter((cell) => cell.voids.length > 0);
  if (cells.length === 0) return null;
  const row = (cell) => (point) => {
    const where = [pageName(cell.experiment), caseName(cell.case), xText(cell.experiment, cell.case, cell.x)];
    return h("tr", { "data-void-run": `${cell.experiment}/${cell.case}/${cell.system.id}` }, systemHead(cell.system),
      h("td", {}, className(cell.system.durability)),
      h("td", {}, [...where, `round ${point.round}`].filter(Boolean).join(", ")),
      h("td", { class: "void" }, point.void));
  };
  const rows = cells.flatMap((cell) => cell.voids.map(row(cell)));
  const names = systemsIn(cells).map(systemLabel).join(", ");
  return [h("h3", {}, "Void runs"),
    h("p", {}, `${rows.length} runs gave wrong answers or failed: of `, h("b", {}, names),
      ". Their figures count nowhere; charts show them as crosses."),
    tableOf("void runs", headRow(["System", "Durability", "Run", "What was wrong"]), rows, rows.length <= 12)];
}

/** Systems that are not installed, with the commands that install them, and those left out. */
function missingSection() {
  const missing = results.missing ?? [];
  const leftOut = (results.experiments ?? []).flatMap(({ id, not_run }) =>
    (not_run ?? []).map(({ system, why }) => [systemLabel(systemOf(system)), pageName(id), why]));
  if (missing.length + leftOut.length === 0) return null;
  const row = ({ id, name, why, install }) => h("tr", { "data-missing": id }, rowHead(name ?? id), h("td", {}, why),
    h("td", {}, install ? commandLine(install) : "–"));
  const leftOutRow = ([system, ...cells]) => h("tr", {}, rowHead(system), cells.map((text) => h("td", {}, text)));
  return [h("h3", {}, "Not run here"),
    missing.length > 0 && framed("Not run here", h("thead", {}, headRow(["System", "Why", "Install"])),
      h("tbody", {}, missing.map(row))),
    leftOut.length > 0 && tableOf("systems left out of single experiments",
      headRow(["System", "Experiment", "Why"]), leftOut.map(leftOutRow))];
}
