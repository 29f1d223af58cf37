// Part of the report's script: the page that repeats the article of 2015 on counters.

const COUNTER_NOTES = {
  blocking: "As in the article: each thread has one connection and waits for each answer.",
  event: "The generator drives all connections from one event loop.",
  pipeline: "16 increments are in flight on each connection.",
};

function counterPage(id) {
  const known = Object.keys(COUNTER_NOTES).filter((name) => casesOf(id).includes(name));
  const bands = "Bands reach from the minimum to the maximum of the rounds. Each panel has its own axis.";
  const page = (name) => seriesFigure(id, name, "rate",
    { everyX: true, notes: [COUNTER_NOTES[name], bands], tables: counterTables(id, name) });
  return [counterThenAndNow(), known.map(page), otherCases(id, known)];
}

function counterTables(id, name) {
  const cells = cellsIn(id, name);
  const checks = allFigures(["rate", "extra.missing_updates", "extra.duplicates"], cells);
  return [seriesTable(id, name, "rate"), seriesTable(id, name, "p99_us"),
    metricsTables(`correctness and cost: ${caseName(name)}`, cells, checks)];
}

/** A chart of the article's table and of today's figures of the same stores. */
function counterThenAndNow() {
  const { columns } = published.counter.table;
  const name = ["blocking", "event"].find((name) => cellsIn("counter", name).length > 0);
  const cells = name ? cellsIn("counter", name) : [];
  const wanted = new Set(columns.flatMap((column) => column.today));
  const today = systemsIn(cells).filter((system) => isLarder(system) || wanted.has(system.id));
  const plots = ({ state, hidden }) => {
    const relative = state.unit === "relative";
    const lines = [...publishedLines(relative, hidden), ...todaysLines(cells, today, relative, hidden)];
    if (lines.length === 0) return [{ title: "", text: "Nothing is selected." }];
    return [{ kind: "line", title: relative ? "Rate ÷ memcached of the same machine" : "Increments per second", lines,
      log: state.axis === "log", format: relative ? times : perSecond, x: { label: "threads", format: whole },
      everyX: true, height: 420 }];
  };
  const notes = [
    "Thin lines with dashes and dots are the article\u2019s table of 2015; the other lines are today\u2019s figures of "
      + "the same stores and of Larder.",
    "The machines differ. So the chart divides each figure by that of memcached with as many threads on the same "
      + "machine; \u201crequests per second\u201d shows the figures themselves.",
  ];
  const unit = { name: "unit", label: "Show",
    options: [["relative", "÷ memcached"], ["absolute", "requests per second"]] };
  return new Figure({
    id: "counter-article", title: "Then and today: the article\u2019s seven stores", notes, controls: [unit, AXIS_LOG],
    legend: [...publishedLegend(), ...systemLegend(today).map((entry) => ({ ...entry, group: "Today" }))], plots,
    tables: [publishedTable(), name && thenNowTable(cells)].filter(Boolean),
  }).node;
}

const publishedKey = (column) => `2015 ${column.name}`;

function publishedLegend() {
  return published.counter.table.columns.map((column) => ({ key: publishedKey(column), label: column.label,
    group: "2015", swatch: () => lineSwatch(familyColour(column.family), DASHES.published, 1.25) }));
}

function publishedLines(relative, hidden) {
  const { x, columns } = published.counter.table;
  const [memcached] = columns;
  const shown = columns.filter((column) => !hidden.has(publishedKey(column)));
  return shown.map((column) => ({
    label: `${column.label}, 2015`, colour: familyColour(column.family), dash: DASHES.published, width: 1.25,
    hollow: true, points: column.rate.map((rate, at) => ({ x: x[at], y: relative ? rate / memcached.rate[at] : rate })),
  }));
}

function todaysLines(cells, list, relative, hidden) {
  const ratio = (value, x) => {
    const base = rateOf(cells, "memcached", x);
    return base ? value / base : null;
  };
  const scale = relative ? ratio : (value) => value;
  const lines = linesOf(list, hidden, (system) => lineOf(system, ofSystem(cells, system), "rate", scale));
  return lines.filter((line) => line.points.some((point) => point.y !== null));
}

/** The median rate of a system at one x. */
function rateOf(cells, id, x) {
  return cells.find((cell) => cell.system.id === id && cell.x === x)?.stat("rate")?.median ?? null;
}

function publishedTable() {
  const { x, columns } = published.counter.table;
  const cell = (column) => (rate, at) => numberCell(perSecond(rate),
    { "data-published": column.name, "data-x": x[at], "data-value": rate, title: rate });
  const row = (column) => h("tr", {}, rowHead(column.label), column.rate.map(cell(column)));
  return tableOf("published in 2015, requests per second by threads", headRow(["Store"], x), columns.map(row));
}

/** The rate of each store relative to memcached, in 2015 and today. */
function thenNowTable(cells) {
  const { x, columns } = published.counter.table;
  const ends = [x[0], x.at(-1)];
  const now = (id) => (threads) => {
    const [mine, base] = [rateOf(cells, id, threads), rateOf(cells, "memcached", threads)];
    return mine !== null && base ? mine / base : null;
  };
  const past = (column) => (threads) => column.rate[x.indexOf(threads)] / columns[0].rate[x.indexOf(threads)];
  const row = (label, then, today) => h("tr", {}, rowHead(label),
    [...ends.map(then), ...ends.map(today)].map((ratio) => numberCell(times(ratio))));
  const stores = columns.flatMap((column) => column.today.filter((id) => systems.has(id))
    .map((id) => row(`${column.label}: ${systemOf(id).name}`, past(column), now(id))));
  const larders = [...systems.values()].filter(isLarder).map(({ id, name }) => row(name, () => null, now(id)));
  const heads = ["2015", "today"].flatMap((when) => ends.map((threads) => `${when}, ${threads}`));
  const title = `rate ÷ memcached, 2015 and today, with ${ends.join(" and ")} threads`;
  return tableOf(title, headRow(["Store"], heads), [...stores, ...larders]);
}
