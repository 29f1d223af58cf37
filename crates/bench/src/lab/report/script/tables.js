// Part of the report's script: tables. Every figure that `figureCell` makes has `data-*` attributes
// that name its source in the JSON. A test recomputes the figure from this source.

/** A cell of a table with a figure: the median, and below it the minimum and the maximum. */
function figureCell(cell, metric) {
  const stat = cell?.stat(metric) ?? null;
  const voids = cell?.voids.length ?? 0;
  if (!stat && voids === 0) return noNumber();
  const address = { "data-experiment": cell.experiment, "data-case": cell.case, "data-system": cell.system.id,
    "data-x": cell.x ?? "", "data-metric": metric };
  if (!stat) return h("td", { class: "n void", ...address, "data-void": voids }, "void");
  const { format } = metricOf(metric);
  const data = { "data-value": stat.median, "data-min": stat.min, "data-max": stat.max, "data-n": stat.n };
  const title = `${stat.median} (${stat.min} – ${stat.max}), rounds: ${stat.n}`;
  return h("td", { class: "n", title, ...address, ...data },
    format(stat.median), cell.marks,
    metric === "extra.device_bytes_per_get" && cell.fromMemory && h("small", {}, "served from memory"),
    stat.max > stat.min && h("small", {}, bandText(stat, format)),
    voids > 0 && h("small", { class: "void" }, `${voids} void`));
}

/**
 * A row, and if some of its cells have void runs, a second row with the reasons. `where` returns
 * words that identify a cell.
 */
function withReasons(row, cells, columns, where = () => "") {
  const wrong = cells.filter((cell) => cell.voids.length > 0);
  if (wrong.length === 0) return [row];
  const reason = (cell) => h("div", {}, [where(cell), voidText(cell)].filter(Boolean).join(", "));
  return [row, reasonRow(columns, wrong.map(reason))];
}

const reasonRow = (columns, text) => h("tr", { class: "reason" }, h("td", { colspan: columns }, text));

/** Rows of systems under the heads of their durability classes. */
function classRows(list, columns, rowOf) {
  const head = (durability) => [className(durability), CLASS_MEANINGS[durability]].filter(Boolean).join(" · ");
  return byClass(list).flatMap(([durability, members]) => [
    h("tr", { class: "class" }, h("th", { colspan: columns, scope: "rowgroup" }, head(durability))),
    members.flatMap(rowOf),
  ]);
}

const systemHead = (system) => rowHead(systemLabel(system));
const rowClass = (system) => (isLarder(system) ? "mine" : null);

/** Returns a comparison function that sorts figures, the best first. */
const better = (metric) => (a, b) => (metricOf(metric).better === "higher" ? b - a : a - b);

/** Returns the best median of a durability class and a group. */
function bestOf(cells, metric, durability, group = "") {
  const same = cells.filter((cell) => cell.system.durability === durability && cell.group === group);
  const medians = same.map((cell) => cell.stat(metric)?.median).filter((value) => value !== undefined);
  return medians.sort(better(metric))[0] ?? null;
}

/** The ratio of a cell to the best of its durability class and group. */
function ratioCell(cell, metric, cells) {
  const mine = cell?.stat(metric)?.median;
  const best = cell && cell.group !== null && bestOf(cells, metric, cell.system.durability, cell.group);
  if (mine === undefined || !best) return noNumber();
  return numberCell(mine === best ? "best" : times(mine / best), { "data-ratio": mine / best });
}

/**
 * A table of one figure: a row per system, a column per x. The last column compares the systems at
 * the largest x.
 */
function seriesTable(id, name, metric) {
  const cells = cellsIn(id, name);
  const xs = xsIn(cells);
  const largest = xs.at(-1) ?? null;
  const [label, format] = axisOf(id, name);
  const last = cells.filter((cell) => cell.x === largest);
  const columns = xs.length + 2;
  const rowOf = (system) => {
    const mine = ofSystem(cells, system);
    const at = (x) => mine.find((cell) => cell.x === x);
    const figures = xs.map((x) => figureCell(at(x), metric));
    const row = h("tr", { class: rowClass(system) }, systemHead(system), figures, ratioCell(at(largest), metric, last));
    return withReasons(row, mine, columns, (cell) => xText(id, name, cell.x));
  };
  const head = headRow(["System"], [...xs.map(format), `÷ best at ${format(largest)}`]);
  const title = `${metricOf(metric).label} by ${label}: ${caseName(name)}`;
  return tableOf(title, head, classRows(systemsIn(cells), columns, rowOf));
}

/** The largest number of columns of figures in a table of `metricsTables`. More go into further tables. */
const COLUMNS = 8;

/**
 * Tables with a row per cell and a column per figure. The first table also compares the cells of a
 * durability class by the first figure.
 * @param {Array<{label: string, cell: (cell: Cell) => Node}>} [more]  Columns after the first.
 */
function metricsTables(title, cells, metrics, more = []) {
  const known = unique(metrics).filter((metric) => cells.some((cell) => cell.stat(metric)));
  // If all runs are void, no figure is known. The void runs still have rows.
  const used = known.length > 0 ? known : metrics.slice(0, 1);
  const first = [ratioColumn(used[0] ?? "rate", cells), ...more];
  const tables = [metricsTable(title, cells, used.slice(0, COLUMNS), first)];
  for (let at = COLUMNS; at < used.length; at += COLUMNS) {
    tables.push(metricsTable(`${title}, more figures (${at / COLUMNS})`, cells, used.slice(at, at + COLUMNS)));
  }
  return tables;
}

/** The ratio to the best of the same durability at the same x. */
const ratioColumn = (metric, cells) => ({
  label: "÷ best",
  cell: (cell) => ratioCell(cell, metric, cells.filter((other) => other.x === cell.x)),
});

function metricsTable(title, cells, used, more = []) {
  const withX = cells.some((cell) => cell.x !== null);
  const [label, format] = cells.length ? axisOf(cells[0].experiment, cells[0].case) : ["", count];
  const [first, rest] = [used.slice(0, 1), used.slice(1)];
  const columns = used.length + more.length + (withX ? 2 : 1);
  const rowOf = (system) => ofSystem(cells, system).flatMap((cell) => {
    const figures = (metrics) => metrics.map((metric) => figureCell(cell, metric));
    const row = h("tr", { class: rowClass(system) }, systemHead(system), withX && numberCell(format(cell.x)),
      figures(first), more.map((column) => column.cell(cell)), figures(rest));
    return withReasons(row, [cell], columns);
  });
  const named = (metrics) => metrics.map((metric) => metricOf(metric).label);
  const heads = [...named(first), ...more.map((column) => column.label), ...named(rest)];
  const head = headRow(["System"], withX ? [label, ...heads] : heads);
  return tableOf(title, head, classRows(systemsIn(cells), columns, rowOf));
}

/** A table that can be folded. */
function tableOf(title, head, rows, open = false) {
  const table = framed(title, h("caption", {}, title), h("thead", {}, head), h("tbody", {}, rows));
  return h("details", { open }, h("summary", {}, `Table: ${title}`), table);
}

const LATENCIES = ["mean_us", "p50_us", "p90_us", "p95_us", "p99_us", "p999_us", "p99999_us", "max_us"];
const COSTS = ["cpu_us", "server_busy", "generator_busy", "rss", "written_per_second", "read_per_second"];

/** The names of the extra figures of some cells. Two extras are marks instead of figures. */
function extrasIn(cells) {
  const points = cells.flatMap((cell) => cell.points);
  const names = unique(points.flatMap((point) => Object.keys(point.extra ?? {})));
  return names.filter((name) => name !== "from_memory" && name !== "equal_memory").map((name) => `extra.${name}`);
}

/** The names of all figures that cells may have. Those in `first` come first. */
const allFigures = (first, cells) =>
  [...first, "extra.device_bytes_per_get", "rate", ...LATENCIES, ...extrasIn(cells), ...COSTS];
