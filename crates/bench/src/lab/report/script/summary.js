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
    repeatAll("on-phones"),
    scoreboard(),
    h("p", { class: "soft" }, "The ratio says how many times better Larder is than the best peer; below 1 the peer is "
      + `better. A comparison is level if neither is more than ${percent(LEVEL)} better (${percent(LEVEL_ONCE)} after `
      + "a single round), or if the ranges of the rounds overlap. Figures are medians of rounds in which the systems "
      + "took turns. The spread sets Larder\u2019s worst round against the peer\u2019s best, and its best against the "
      + "peer\u2019s worst."),
    comparisonTable(headlines, "Results by experiment and durability", true),
    standInNote(headlines),
    repeatAll("off-phones"),
    lossSection(),
    othersNote(others),
    voidSection(),
    missingSection(),
  ];
}

/** The command of the whole run. Phones show it below the verdict, because they do not show those of experiments. */
const repeatAll = (where) => results.command
  && h("p", { class: `soft ${where}` }, "Repeat all of it: ", commandLine(wholeCommand()));

/** Comparisons without a ratio, because all runs of Larder, or of its peers, are void or failed. */
const voidComparisons = (side) => allComparisons.filter(({ gap }) => gap?.side === side);

/** Sentences on the comparisons that void runs prevent. */
function voidSentences() {
  const of = (side, words) => {
    const number = voidComparisons(side).length;
    return number > 0 && ` In ${number} more, ${words}.`;
  };
  const ours = of("larder", "Larder\u2019s runs are void or did not end");
  return [ours && h("span", { class: "behind" }, ours), of("peers", "all runs of the peers are void or did not end")];
}

function verdict() {
  const number = (state) => allComparisons.filter((comparison) => comparison.state === state).length;
  const [ahead, behind, level] = ["ahead", "behind", "level"].map(number);
  const total = ahead + behind + level;
  const data = { "data-ahead": ahead, "data-behind": behind, "data-level": level, "data-void": number("void") };
  if (total === 0) {
    const nothing = "No experiment has figures of both Larder and a peer, so there is nothing to compare.";
    return h("p", { class: "verdict", id: "verdict", ...data }, nothing, voidSentences());
  }
  const both = allComparisons.filter((comparison) => comparison.interval);
  const single = both.filter(isFromOneRound).length;
  const rounds = single === both.length ? "Every comparison rests" : single === 1 ? "One of them rests"
    : `${single} of them rest`;
  return h("p", { class: "verdict", id: "verdict", ...data },
    `In ${total} comparisons at equal durability, Larder is `,
    h("span", { class: "ahead" }, `ahead of every peer in ${ahead}`), `, level in ${level} and `,
    h("span", { class: behind > 0 && "behind" }, `behind in ${behind}`), ".",
    single > 0 && ` ${rounds} on one round, so a small difference may be chance.`, voidSentences());
}

/** A note that names the stand-ins and explains the marks in the comparisons. */
function standInNote(comparisons) {
  const standIns = [...systems.values()].filter((system) => system.stand_in)
    .map((system) => `${system.name} ${system.stand_in}.`);
  const entries = comparisons.flatMap(({ larder, peer }) => [larder, peer]).filter(Boolean);
  const notes = [...marksNotes(entries), ...standIns];
  return notes.length > 0 && h("p", { class: "soft" }, notes.join(" "));
}

/** Wins and losses by durability class. */
function scoreboard() {
  const box = (durability) => {
    const same = allComparisons.filter((comparison) => comparison.durability === durability);
    const number = (state) => same.filter((comparison) => comparison.state === state).length;
    const big = (state) => h("b", { class: number(state) > 0 && state }, number(state));
    return h("div", {}, h("h3", {}, className(durability)),
      h("p", {}, big("ahead"), " ahead, ", big("level"), " level, ", big("behind"), " behind",
        number("void") > 0 && [", ", big("void"), " void"]),
      h("p", {}, CLASS_MEANINGS[durability]));
  };
  return h("div", { class: "score" }, CLASSES.map(box));
}

function lossSection() {
  const voids = voidComparisons("larder");
  const losses = [...voids, ...allComparisons.filter((comparison) => comparison.state === "behind")];
  const title = h("h3", {}, "Where Larder is behind");
  if (losses.length === 0) return [title, h("p", {}, failures() || "In no comparison of this report.")];
  losses.sort((a, b) => (a.advantage ?? -1) - (b.advantage ?? -1));
  const questions = unique(losses.map(({ question }) => `${question.experiment}/${question.ask}`));
  const or = voids.length > 0 ? ", or in which Larder\u2019s runs are void or did not end" : "";
  const about = `All comparisons in which a peer of the same durability is better${or}: ${losses.length}, on `
    + `${questions.length === 1 ? "one question" : `${questions.length} questions`}, the worst first.`;
  return [title, h("p", {}, about), h("p", {}, failures()), lossTable(losses, questions)];
}

/** Larder's void runs and failures as text, whether or not they are compared; empty if there are none. */
function failures() {
  const number = sum((results.experiments ?? []).flatMap(({ id }) => cellsOf(id))
    .filter((cell) => isLarder(cell.system)).map((cell) => cell.voids.length));
  const failed = (results.experiments ?? []).flatMap(({ id, not_run }) => (not_run ?? [])
    // The results do not describe a system that never started. Then its id says that it is Larder.
    .filter(({ system }) => isLarder(systemOf(system)) || /^larder\b/.test(system))
    .map(({ system, why }) => `${systemLabel(systemOf(system))} in ${pageName(id)} (${why})`));
  return [number > 0 && `Void runs of Larder: ${number}, see below.`,
    failed.length > 0 && `Not finished: ${failed.join("; ")}.`].filter(Boolean).join(" ");
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
  const { question, group, x, larder, peer, gap } = loss;
  const { format } = metricOf(question.metric);
  const where = [xText(question.experiment, question.case, x), group].filter(Boolean).join(", ");
  const figures = [larder, peer].filter(Boolean)
    .map(({ system, stat }) => `${systemLabel(system)} ${format(stat.median)}`);
  return h("div", { "data-loss": true, ...comparisonData(loss) },
    h("span", { class: "ratio behind" }, gap ? gap.words : ratioWords(loss)),
    h("small", {}, [where && `${where}: `, [gap?.why, ...figures].filter(Boolean).join(", "),
      !gap && isFromOneRound(loss) && " (one round)"]));
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
      ". Their figures count nowhere; charts show them as crosses, or say \"void\"."),
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
