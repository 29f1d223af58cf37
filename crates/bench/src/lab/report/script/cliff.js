// Part of the report's script: the page that repeats the article of 2019 on latency beyond RAM.

const LADDER = ["p50_us", "p90_us", "p95_us", "p99_us", "p999_us"];

function cliffPage(id) {
  return [ladder(id), everyLadder(id), clouds(id), otherCases(id, ["ladder", "cloud"])];
}

/**
 * The latency of all systems by offered rate. A second plot shows the whole distribution at the
 * rate under the pointer.
 */
function ladder(id) {
  const cells = cellsIn(id, "ladder");
  const xs = xsIn(cells);
  const latencies = cells.length > 0
    && metricsTables("latency at every offered rate", cells, allFigures(["p99_us"], cells));
  if (xs.length === 0) return latencies;
  const list = systemsIn(cells);
  const [label, format] = axisOf(id, "ladder");
  const metrics = unique(["p99_us", ...LADDER, "mean_us", "max_us"]);
  const known = metrics.filter((metric) => metric === "p99_us" || cells.some((cell) => cell.stat(metric)));
  let rate = xs[(xs.length - 1) >> 1];
  const table = h("div", {}, distributionTable(cells, rate));
  const select = h("select", { "data-control": "rate", change: () => choose(Number(select.value)) },
    xs.map((x) => h("option", { value: x, selected: x === rate }, perSecond(x))));
  const plots = ({ state: { metric }, hidden }) => {
    const lines = linesOf(list, hidden, (system) => lineOf(system, ofSystem(cells, system), metric));
    if (lines.length === 0) return [{ title: "", text: "Nothing is selected." }];
    const article = published.cliff.marks.filter((mark) => mark.metric === metric);
    const marks = article.length > 0 ? article : [{ value: 1000, label: "1 ms" }];
    return [{ kind: "line", title: `${metricOf(metric).label} latency`, unit: "hover a rate to see its distribution",
      lines, log: true, format: micros, x: { label, format }, marks, height: 360, onHover: choose },
    distributionPlot(cells, rate, hidden)];
  };
  const figure = new Figure({
    id: "cliff-ladder", title: "Latency against offered rate", plots, columns: "wide-left", legend: systemLegend(list),
    notes: ["Open loop: latency counts from the moment at which a request was due. The article\u2019s limit of 1 ms, "
      + "which was for the average, is dashed."],
    controls: [{ name: "metric", label: "Show", options: known.map((metric) => [metric, metricOf(metric).label]) }],
    tables: [h("div", { class: "controls" }, h("label", {}, "Rate of the distribution", select)), table, latencies],
  });
  function choose(x) {
    if (x === undefined || x === rate) return;
    rate = x;
    select.value = String(x);
    table.replaceChildren(distributionTable(cells, rate));
    if (figure.charts.length > 1) figure.replace(1, distributionPlot(cells, rate, figure.hidden));
  }
  return figure.node;
}

/** Adds the histograms of all rounds that are not void. */
function histogramOf(cell) {
  const counts = new Map();
  for (const point of cell.good) {
    for (const [latency, number] of point.histogram ?? []) counts.set(latency, (counts.get(latency) ?? 0) + number);
  }
  return [...counts].sort((a, b) => a[0] - b[0]);
}

/** The number of nines of a share: 0.9 is 1, 0.99 is 2. */
const nines = (share) => -Math.log10(1 - share);

/** The percentile of a number of nines, with as many digits as it needs. */
function percentile(value) {
  if (Number.isInteger(value)) return ["0", "90", "99"][value] ?? `99.${"9".repeat(value - 2)}`;
  return ((1 - 10 ** -value) * 100).toPrecision(Math.max(3, Math.ceil(value) + 2));
}

/** Number of points per nine of a distribution. */
const STEPS = 8;

/** Returns the distribution as a line: latency against the number of nines, up to the last sample. */
function distributionLine(cell) {
  const histogram = histogramOf(cell);
  const total = sum(histogram.map(([, number]) => number));
  const points = [];
  let below = 0;
  for (const [latency, number] of histogram) {
    below += number;
    const end = below < total ? nines(below / total) : Math.log10(total);
    while (points.length / STEPS <= end) points.push({ x: points.length / STEPS, y: latency });
  }
  const { system } = cell;
  const look = { colour: colourOf(system), dash: dashOf(system), width: lineWidth(system) };
  return { label: systemLabel(system), ...look, points };
}

function distributionPlot(cells, rate, hidden) {
  const at = cells.filter((cell) => cell.x === rate && !hidden.has(cell.system.id));
  const lines = at.map(distributionLine).filter((line) => line.points.length > 0);
  const title = `Distribution at ${perSecond(rate)}`;
  if (lines.length === 0) return { title, text: "No histogram was recorded." };
  const most = Math.max(...lines.map((line) => line.points.at(-1).x));
  return { kind: "line", title, unit: "latency", lines, log: true, format: micros, height: 360,
    x: { label: "percentile", format: percentile, incrs: [1] }, xRange: [0, most + 0.25] };
}

/** The distribution at one rate as text. */
function distributionTable(cells, rate) {
  const at = cells.filter((cell) => cell.x === rate);
  const [table] = metricsTables(`distribution at ${perSecond(rate)} offered`, at, ["p99_us", ...LATENCIES]);
  table.id = "distribution";
  table.dataset.rate = rate;
  return table;
}

/** The dashes of a ladder's percentiles, from p50 to p99.9. */
const LADDER_DASHES = [[], [10, 3], [6, 3], [4, 3], [1.5, 2.5]];

/** A panel per system with all its percentiles, all with the same axes, as in the article. */
function everyLadder(id) {
  const cells = cellsIn(id, "ladder");
  const xs = xsIn(cells);
  if (xs.length === 0) return null;
  const range = rangeOf(cells.flatMap((cell) => LADDER.map((metric) => cell.stat(metric)?.median)), true);
  const [label, format] = axisOf(id, "ladder");
  const line = (system) => (metric, index) => ({ ...lineOf(system, ofSystem(cells, system), metric),
    label: metricOf(metric).label, dash: LADDER_DASHES[index], width: 1.5 });
  const panel = (system) => {
    const lines = LADDER.map(line(system)).filter((line) => line.points.length > 0);
    if (lines.length === 0) return { title: systemLabel(system), text: "No figures." };
    return { kind: "line", title: systemLabel(system), unit: className(system.durability), lines, log: true, range,
      format: micros, x: { label, format }, xRange: padded(false)(null, xs[0], xs.at(-1)), height: 200 };
  };
  const plots = ({ hidden }) => systemsIn(cells).filter((system) => !hidden.has(system.id)).map(panel);
  return new Figure({
    id: "cliff-systems", title: "Each system\u2019s ladder", plots, columns: "three",
    notes: ["p50 (solid), p90, p95, p99 and p99.9 (dotted). All panels have the same axes. The tables above have the "
      + "figures."],
    legend: systemLegend(systemsIn(cells)),
  }).node;
}

/** Decodes base64 of little-endian numbers of 4 bytes. */
function numbersOf(text, Type) {
  const binary = atob(text);
  const buffer = new Uint8Array(binary.length & ~3);
  for (let index = 0; index < buffer.length; index++) buffer[index] = binary.charCodeAt(index);
  return new Type(buffer.buffer);
}

const decodedSamples = new WeakMap();

/** Returns the samples of a point, decoded once. */
function samplesOf(point) {
  if (!decodedSamples.has(point)) {
    decodedSamples.set(point, { t: numbersOf(point.samples.t_us, Uint32Array),
      latency: numbersOf(point.samples.latency_us, Float32Array) });
  }
  return decodedSamples.get(point);
}

/** What a cloud contains: how many samples, how many above a millisecond, and the extremes. */
function cloudFacts(point) {
  const { t, latency } = samplesOf(point);
  const facts = { samples: latency.length, slow: 0, min: Infinity, max: 0, seconds: 1 };
  for (let index = 0; index < latency.length; index++) {
    const value = latency[index];
    if (value > 1000) facts.slow++;
    if (value > facts.max) facts.max = value;
    if (value < facts.min) facts.min = value;
    if (t[index] / 1e6 > facts.seconds) facts.seconds = t[index] / 1e6;
  }
  return facts;
}

function clouds(id) {
  const cells = cellsIn(id, "cloud");
  const points = cells.flatMap((cell) => cell.points.map((point) => ({ cell, point })));
  const runs = points.filter(({ point }) => point.samples).map((run) => ({ ...run, facts: cloudFacts(run.point) }));
  const averages = cells.length > 0 && metricsTables("averages of the clouds", cells, allFigures(["p99_us"], cells));
  if (runs.length === 0) return averages;
  const range = rangeOf([1000, ...runs.flatMap(({ facts }) => [facts.min, facts.max])], true);
  const panel = ({ cell: { system, x, fromMemory }, point, facts }) => {
    const about = [className(system.durability), x !== null && perSecond(x), `${whole(facts.samples)} samples`,
      fromMemory && "◇ served from memory", point.void && `VOID: ${point.void}`];
    return { kind: "cloud", title: systemLabel(system), unit: about.filter(Boolean).join(" · "), range, height: 260,
      samples: samplesOf(point), colour: colourOf(system), seconds: facts.seconds,
      marks: [{ value: 1000, label: "1 ms" }] };
  };
  const plots = ({ hidden }) => runs.filter((run) => !hidden.has(run.cell.system.id)).map(panel);
  const dense = "The shade shows how many fall on the same place; a single one stays visible.";
  return new Figure({
    id: "cliff-cloud", title: "Every sample", plots, columns: "two",
    notes: [`No sample is left out. ${dense} All panels have the same latency axis.`],
    legend: systemLegend(systemsIn(runs.map((run) => run.cell)), "plain"),
    tables: [cloudTable(runs), averages],
  }).node;
}

function cloudTable(runs) {
  const row = ({ cell: { system, x }, point, facts }) => {
    const data = { "data-cloud": system.id, "data-x": x ?? "", "data-round": point.round,
      "data-samples": facts.samples, "data-max": facts.max };
    const figures = [perSecond(x), whole(facts.samples), whole(facts.slow), micros(facts.min), micros(facts.max)];
    const row = h("tr", { class: rowClass(system), ...data }, systemHead(system),
      figures.map((text) => numberCell(text)));
    return point.void ? [row, reasonRow(figures.length + 1, `void: ${point.void}`)] : [row];
  };
  const list = unique(runs.map((run) => run.cell.system));
  const rowsOf = (system) => runs.filter((run) => run.cell.system === system).flatMap(row);
  const heads = ["Offered", "Samples", "Above 1 ms", "Minimum", "Maximum"];
  return tableOf("samples", headRow(["System"], heads), classRows(list, heads.length + 1, rowsOf), true);
}
