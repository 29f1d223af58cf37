// Part of the report's script: what the pages of all experiments share.

/** The page of an experiment: the question, the article's answer, today's answer, and charts. */
function experimentPage(id) {
  const experiment = experimentOf(id);
  const article = published[id];
  const title = h("h2", {}, pageName(id), article && h("small", {}, ` after \u201c${article.title}\u201d`));
  if (!experiment?.points?.length) {
    return [title, thenAndNow(id, experiment, article, ["Not run."]), id === "counter" && counterThenAndNow()];
  }
  const build = BUILDERS[id] ?? otherCases;
  const comparisons = comparisonsOf(id);
  return [
    title,
    thenAndNow(id, experiment, article, article ? todaysAnswers(id) : factsOf(id)),
    comparisons.length > 0 && h("h3", {}, "Larder and the best peer"),
    comparisons.length > 0 && comparisonTable(comparisons, "Comparisons of this experiment"),
    h("p", { class: "conditions" }, "Repeat it: ", commandLine(repeatOf(experiment))),
    notRunNote(experiment),
    flagsNote(id),
    build(id),
    settingsTable(experiment),
  ];
}

/** The settings of the systems in an experiment, or those of the run if the experiment has none. */
function settingsTable(experiment) {
  const list = systemsIn(cellsOf(experiment.id)).filter((system) => systems.has(system.id));
  const lines = (system) => experiment.settings?.[system.id] ?? system.settings ?? [];
  const row = (system) => h("tr", { class: rowClass(system), "data-settings": `${experiment.id}/${system.id}` },
    systemHead(system), h("td", {}, lines(system).map((line) => h("code", {}, line))));
  return tableOf("settings of the systems in this experiment", headRow(["System", "Settings"]),
    classRows(list, 2, row));
}

function thenAndNow(id, experiment, article, answers) {
  const fine = (text) => h("p", { class: "conditions" }, text);
  const method = experiment?.conditions ?? [];
  const today = h("div", {}, h("h3", {}, `Today: ${dayOfResults()}`), listOf(answers),
    fine(`Our machine: ${machineLine()}.`),
    method.length > 0 && h("div", { class: "conditions" }, "Our method:", listOf(method)));
  const question = h("p", { class: "question" }, article?.question ?? experiment?.question);
  if (!article) return h("div", { class: "then-now alone" }, question, today);
  const when = [article.author, article.date ?? "undated in our copy"].filter(Boolean).join(", ");
  const then = h("div", {}, h("h3", {}, `Then: ${when}`), listOf(article.answer),
    fine(`Their machine: ${article.machine}. Their method: ${article.method}.`), article.notes.map(fine));
  return h("div", { class: "then-now" }, question, then, today);
}

const dayOfResults = () => String(results.date ?? "").slice(0, 10);

function machineLine() {
  const { cpu, cpus, memory, kernel } = results.machine ?? {};
  return [cpu, cpus && `${cpus} processors`, memory && bytes(memory), kernel].filter(Boolean).join(", ");
}

/** The headline comparisons as sentences, and the facts of the experiment. */
function todaysAnswers(id) {
  const sentence = (comparison) => {
    const { question, x, larder, peer, advantage, state, gap, unfinished } = comparison;
    const { format } = metricOf(question.metric);
    const figure = ({ system, stat }) => `${systemLabel(system)} ${format(stat.median)}`;
    const asked = [question.ask, xText(question.experiment, question.case, x)].filter(Boolean).join(", ");
    const what = `${classAndGroup(comparison)}: ${asked}: `;
    if (state === "void") {
      const shown = [larder, peer].filter(Boolean).map((entry) => `${figure(entry)}, `);
      return h("span", {}, what, shown, h("b", { class: "void" }, gap.words), ` (${gap.why}).`);
    }
    if (state === "absent") {
      return `${what}${figure(peer)}; ${unfinished ? "Larder did not finish" : "no Larder of this class takes part"}.`;
    }
    if (state === "alone") return `${what}${figure(larder)}; no peer ${unfinished ? "finished" : "ran"}.`;
    const ratio = `, ${Number.isFinite(advantage) ? "ratio " : ""}${ratioWords(comparison)}`;
    const verdict = h("b", { class: state }, state, ratio);
    return h("span", {}, `${what}${figure(larder)}, ${figure(peer)}, `, verdict, ".");
  };
  const headlines = comparisonsOf(id).filter((comparison) => comparison.question.headline);
  return [...headlines.map(sentence), ...factsOf(id)];
}

/** Sentences about correctness, by experiment. */
const FACTS = {
  counter: () => [
    ...totals("counter", "extra.missing_updates", "systems missed an update"),
    ...totals("counter", "extra.duplicates", "systems gave a number to two clients"),
  ],
  "rack-attack": rackAttackFacts,
  persistence: () => overwriteFacts("persistence"),
  converge: () => overwriteFacts("converge"),
  restart: () => totals("restart", "lost", "systems that acknowledge after fsync lost an acknowledged item",
    (system) => system.durability === "sync"),
  limits: () => totals("limits", overAdmission("limits"), "systems admitted more than their budget"),
};
/** The figure that says how many requests were admitted beyond a limit. */
const overAdmission = (id) => {
  const name = "extra.over_admission";
  return cellsOf(id).some((cell) => cell.stat(name)) ? name : "over_admitted";
};
const factsOf = (id) => FACTS[id]?.() ?? [];

/** A sentence on lost acknowledged overwrites, if the run has checked overwrites. */
function overwriteFacts(id) {
  const cells = cellsOf(id);
  const kept = systemsIn(cells.filter((cell) => cell.stat("extra.overwrites_kept")));
  const lost = systemsIn(cells.filter((cell) => cell.voids.some((point) => /overwrit/.test(point.void))));
  const checked = unique([...kept, ...lost]);
  if (checked.length === 0) return [];
  const names = lost.length > 0 && [": ", h("b", {}, lost.map(systemLabel).join(", "))];
  return [h("span", { "data-overwrites": id, "data-checked": checked.length, "data-lost": lost.length },
    `${lost.length} of ${checked.length} systems lost an acknowledged overwrite`, names, ".")];
}

/** A sentence on the systems whose figure is above 0 although it should be 0. Void runs count. */
function totals(id, metric, words, wanted = () => true) {
  const cells = cellsOf(id).filter((cell) => wanted(cell.system));
  const figures = (system) => figuresOf(ofSystem(cells, system).flatMap((cell) => cell.points), metric);
  const known = systemsIn(cells).filter((system) => figures(system).length > 0);
  const bad = known.filter((system) => Math.max(...figures(system)) > 0);
  if (known.length === 0) return [];
  if (bad.length === 0) return [`0 of ${known.length} ${words}.`];
  const names = bad.map((system) => `${systemLabel(system)} (up to ${whole(Math.max(...figures(system)))})`);
  return [h("span", {}, `${bad.length} of ${known.length} ${words}: `, h("b", {}, names.join(", ")), ".")];
}

function notRunNote(experiment) {
  const list = (experiment.not_run ?? []).map(({ system, why }) => `${systemLabel(systemOf(system))} (${why})`);
  return list.length > 0 && h("p", { class: "soft" }, `Not measured, or only in part: ${list.join("; ")}.`);
}

const FROM_MEMORY_NOTE = "◇ marks figures of values that were served from memory, not from the device: it gave less "
  + `than ${percent(FROM_DEVICE)} of a value per get.`;

/** Explains the marks that follow the figures of some cells or entries. */
function marksNotes(marked) {
  const has = (mark) => marked.some(({ marks }) => marks.includes(mark));
  const bound = "○ marks figures where the load generator was the limit: the server may be able to do more.";
  const unequal = "≠ marks systems whose resident memory could not be made equal to Larder\u2019s.";
  return [has("○") && bound, has("◇") && FROM_MEMORY_NOTE, has("≠") && unequal].filter(Boolean);
}

/** A note that explains the marks on charts and in tables, if there are any. */
function flagsNote(id) {
  const cells = cellsOf(id);
  const notes = systemsIn(cells).filter((system) => system.stand_in)
    .map((system) => `${system.name} ${system.stand_in}.`);
  notes.unshift(...marksNotes(cells));
  if (cells.some((cell) => cell.voids.length > 0)) {
    notes.unshift("Crosses mark void runs, which gave wrong answers or failed.");
  }
  return notes.length > 0 && h("p", { class: "soft" }, notes.join(" "));
}

const BAR_NOTE = "Filled bars are volatile, hatched bars async, hollow bars sync. Whiskers reach from the minimum to "
  + "the maximum of the rounds.";

const AXIS_LINEAR = { name: "axis", label: "Axis", options: [["linear", "linear"], ["log", "logarithmic"]] };
const AXIS_LOG = { ...AXIS_LINEAR, options: AXIS_LINEAR.options.toReversed() };

/** The lines of the systems in `list` that the legend does not hide and that have points. */
function linesOf(list, hidden, lineOfSystem) {
  return list.filter((system) => !hidden.has(system.id)).map(lineOfSystem).filter((line) => line.points.length > 0);
}

/**
 * Lines of a case against x, a panel per durability class.
 * @param {{title?: string, notes?: string[], tables?: Node[], log?: boolean, tight?: boolean, xLog?: boolean,
 *   everyX?: boolean}} [more]
 */
function seriesFigure(id, name, metric, more = {}) {
  const cells = cellsIn(id, name);
  const [label, format] = axisOf(id, name);
  const classes = byClass(systemsIn(cells));
  const plots = ({ state, hidden }) => classes.map(([durability, members]) => {
    const title = className(durability);
    const lines = linesOf(members, hidden, (system) => lineOf(system, ofSystem(cells, system), metric));
    if (lines.length === 0) return { title, text: "Nothing is selected." };
    return { kind: "line", title, unit: metricOf(metric).label, lines, format: metricOf(metric).format, height: 280,
      log: state.axis === "log", tight: more.tight, x: { label, format }, xLog: more.xLog, everyX: more.everyX };
  });
  return new Figure({
    id: `${id}-${name}-${metric}`, title: more.title ?? capital(caseName(name)), notes: more.notes,
    controls: [more.log ? AXIS_LOG : AXIS_LINEAR], legend: systemLegend(systemsIn(cells)), plots,
    columns: ["", "", "two", "three"][Math.min(3, classes.length)],
    tables: more.tables ?? [seriesTable(id, name, metric)],
  }).node;
}

/**
 * Bars of some cases, a panel each, grouped by family; a control chooses the figure.
 * @param {{id: string, title: string, notes?: string[], groups?: typeof familyGroups, swatches?: string,
 *   columns?: string, tables?: Node[], marks?: (metric: string) => Mark[]}} more
 */
function barsFigure(id, names, metrics, more) {
  const present = names.filter((name) => cellsIn(id, name).length > 0);
  if (present.length === 0) return null;
  const all = present.flatMap((name) => cellsIn(id, name));
  const known = metrics.filter((metric) => all.some((cell) => cell.stat(metric)));
  // If all runs are void, no figure is known. The chart still shows them.
  const used = known.length > 0 ? known : metrics.slice(0, 1);
  const plots = ({ state: { metric }, hidden }) => present.map((name) => {
    const title = capital(caseName(name));
    const groups = (more.groups ?? familyGroups)(cellsIn(id, name), metric, hidden);
    if (groups.length === 0) return { title, text: "No figures." };
    const there = (published[id]?.marks ?? []).filter((mark) => mark.case === name && mark.metric === metric);
    const marks = [...there, ...(more.marks?.(metric) ?? [])];
    return { kind: "bars", title, unit: metricOf(metric).label, groups, format: metricOf(metric).format, marks };
  });
  const tables = () => present.map((name) =>
    metricsTables(capital(caseName(name)), cellsIn(id, name), allFigures(used, cellsIn(id, name))));
  return new Figure({
    id: more.id, title: more.title, notes: more.notes, plots,
    controls: [{ name: "metric", label: "Show", options: used.map((metric) => [metric, metricOf(metric).label]) }],
    legend: systemLegend(systemsIn(all), more.swatches ?? "bar"),
    columns: present.length > 1 ? more.columns ?? "two" : "",
    tables: more.tables ?? tables(),
  }).node;
}

/** Charts of the cases that are not in `known`: lines for cases with several x, bars for others. */
function otherCases(id, known = []) {
  return casesOf(id).filter((name) => !known.includes(name)).map((name) => {
    const cells = cellsIn(id, name);
    const title = capital(caseName(name));
    const metric = ["rate", "cpu_us", ...extrasIn(cells)].find((metric) => cells.some((cell) => cell.stat(metric)));
    if (!metric) return metricsTables(title, cells, ["rate"]);
    const tables = metricsTables(title, cells, allFigures([metric], cells));
    const series = { tables: [seriesTable(id, name, metric), tables] };
    if (xsIn(cells).length > 1) return seriesFigure(id, name, metric, series);
    const metrics = unique([metric, "p50_us", "p99_us", "p999_us", "cpu_us", ...extrasIn(cells)]);
    return barsFigure(id, [name], metrics, { id: `${id}-${name}`, title, notes: [BAR_NOTE], tables });
  });
}
