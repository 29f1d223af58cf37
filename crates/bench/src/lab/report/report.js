// The report of `larder bench all`: draws the results that stand in the page as JSON.
//
// Text from the results reaches the page only as text nodes and attributes, never as HTML. Every figure in a table
// carries `data-*` attributes that say where in the JSON it comes from, so that a test can compute it again.
// Colours are CSS expressions everywhere; a chart asks the style sheet for their values when it is drawn.

/* global uPlot */

// ---------------------------------------------------------------------------------------------------------------
// Results

/**
 * @typedef {object} Point  One round of one system in one case, as in the JSON.
 * @property {string} system
 * @property {string} case
 * @property {?number} x
 * @property {number} round
 * @property {number} rate
 * @property {?string} void
 * @property {boolean} generator_bound
 * @property {Object<string, number>} [extra]
 * @property {Array<Object<string, number>>} [seconds]
 *
 * @typedef {{id: string, name: string, family: string, durability: string, version: string, stand_in: ?string,
 *   settings: string[], order: number, variant: number}} System
 * @typedef {{median: number, min: number, max: number, n: number}} Stat  Over the rounds that are not void.
 */

const readBlock = (id) => JSON.parse(document.getElementById(id).textContent);
const results = readBlock("results");
const published = readBlock("published");

/** Durability classes, in the order of the report. */
const CLASSES = ["none", "async", "sync"];
const CLASS_NAMES = { none: "RAM only", async: "Async", sync: "Sync" };
const CLASS_MEANINGS = {
  none: "a restart loses the data",
  async: "acknowledged before the device has it",
  sync: "acknowledged after fsync",
};

/** @type {Map<string, System>} */
const systems = new Map();
for (const system of results.systems ?? []) {
  const twins = [...systems.values()].filter(
    (other) => other.family === system.family && other.durability === system.durability,
  );
  systems.set(system.id, { ...system, order: systems.size, variant: twins.length });
}

/** Returns the system with this id. Results may name systems that they do not describe. */
function systemOf(id) {
  const missing = results.missing?.find((other) => other.id === id);
  const unknown = { id, name: missing?.name ?? id, family: id, durability: "unknown", order: 999, variant: 0 };
  return systems.get(id) ?? unknown;
}

const isLarder = (system) => system.family.toLowerCase() === "larder";
const className = (durability) => CLASS_NAMES[durability] ?? durability;
const experimentOf = (id) => results.experiments?.find((experiment) => experiment.id === id);

const ascending = (a, b) => a - b;
const unique = (list) => [...new Set(list)];
const sum = (list) => list.reduce((total, value) => total + value, 0);

function medianOf(values) {
  const sorted = [...values].sort(ascending);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

/** @returns {?Stat} */
function statOf(values) {
  if (values.length === 0) return null;
  return { median: medianOf(values), min: Math.min(...values), max: Math.max(...values), n: values.length };
}

/** Figures that follow from those in the JSON. */
const DERIVED = {
  /** The worst second's rate as a share of the median second's. */
  steadiness: (point) => {
    const rates = point.seconds?.map((second) => second.rate);
    return rates?.length ? Math.min(...rates) / medianOf(rates) : null;
  },
  per_core_second: (point) => (point.cpu_us > 0 ? 1e6 / point.cpu_us : null),
  over_admitted: (point) => point.extra?.admitted - point.extra?.budget,
  lost: (point) => point.extra?.acknowledged - point.extra?.survived,
};

/** Returns a figure of a point: a field, `extra.` and a name, or a name of `DERIVED`. */
function valueOf(point, metric) {
  let value = point[metric];
  if (metric in DERIVED) value = DERIVED[metric](point);
  if (metric.startsWith("extra.")) value = point.extra?.[metric.slice("extra.".length)];
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}

/** All rounds of one system in one case at one x. */
class Cell {
  constructor(experiment, point) {
    this.experiment = experiment;
    this.case = point.case;
    this.system = systemOf(point.system);
    this.x = point.x ?? null;
    /** @type {Point[]} */
    this.points = [];
  }

  get good() {
    return this.points.filter((point) => !point.void);
  }

  get voids() {
    return this.points.filter((point) => point.void);
  }

  /** True if the generator was the limit in one of the rounds. */
  get bound() {
    return this.good.some((point) => point.generator_bound);
  }

  /** @returns {?Stat} */
  stat(metric) {
    return statOf(this.good.map((point) => valueOf(point, metric)).filter((value) => value !== null));
  }
}

const cellsByExperiment = new Map();

/** Returns the cells of an experiment, in the order of the systems and then of x. */
function cellsOf(id) {
  if (!cellsByExperiment.has(id)) {
    const cells = new Map();
    for (const point of experimentOf(id)?.points ?? []) {
      const key = JSON.stringify([point.case, point.system, point.x ?? null]);
      if (!cells.has(key)) cells.set(key, new Cell(id, point));
      cells.get(key).points.push(point);
    }
    const sorted = [...cells.values()].sort((a, b) => a.system.order - b.system.order || a.x - b.x);
    cellsByExperiment.set(id, sorted);
  }
  return cellsByExperiment.get(id);
}

const cellsIn = (id, name) => cellsOf(id).filter((cell) => cell.case === name);
const casesOf = (id) => unique((experimentOf(id)?.points ?? []).map((point) => point.case));
const systemsIn = (cells) => unique(cells.map((cell) => cell.system));
const xsIn = (cells) => unique(cells.map((cell) => cell.x).filter((x) => x !== null)).sort(ascending);
const ofSystem = (cells, system) => cells.filter((cell) => cell.system.id === system.id);

// ---------------------------------------------------------------------------------------------------------------
// Numbers as text

/** Shows at most three significant digits, with a unit out of `steps`. */
function scaled(value, steps) {
  if (value === null || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  const [step, unit] = steps.find(([step]) => size >= step * 0.9995) ?? steps[steps.length - 1];
  const number = value / step;
  const digits = Math.abs(number) >= 99.95 ? 0 : Math.abs(number) >= 9.995 ? 1 : 2;
  const text = Math.abs(number) < 0.01 && number !== 0 ? number.toPrecision(2) : number.toFixed(digits);
  const short = text.includes(".") && !text.includes("e") ? text.replace(/\.?0+$/, "") : text;
  return unit ? `${short}\u202f${unit}` : short;
}

const count = (value) => scaled(value, [[1e9, "G"], [1e6, "M"], [1e3, "K"], [1, ""]]);
const perSecond = (value) => (value === null ? "–" : `${count(value)}/s`);
const micros = (value) => scaled(value, [[1e6, "s"], [1e3, "ms"], [1, "µs"]]);
const millis = (value) => micros(value === null ? null : value * 1000);
const bytes = (value) => scaled(value, [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]]);
const plainBytes = (value) => (value === null ? "–" : `${Math.round(value).toLocaleString("en")}\u202fB`);
const bytesPerSecond = (value) => (value === null ? "–" : `${scaled(value, [[1e9, "GB"], [1e6, "MB"], [1e3, "KB"], [1, "B"]])}/s`);
const mebibytes = (value) => bytes(value === null ? null : value * 2 ** 20);
const percent = (value) => (value === null ? "–" : `${scaled(value * 100, [[1, ""]])}\u202f%`);
const whole = (value) => (value === null ? "–" : Math.round(value).toLocaleString("en"));

/** Shows a ratio; `exact` tells one that is nearly 1 from 1. */
function times(value, exact = false) {
  if (value === null || !Number.isFinite(value)) return "–";
  if (value > 0 && value < 0.0095) return `${Number(value.toPrecision(2))}×`;
  const near = exact && value !== 1 && Math.abs(value - 1) < 0.005;
  const digits = near ? 3 : value >= 99.5 ? 0 : value >= 9.95 ? 1 : 2;
  return `${value.toFixed(digits)}×`;
}

/** What is known of a figure: its name, its format, and which direction is better. */
const METRICS = {
  rate: { label: "rate", format: perSecond, better: "higher" },
  mean_us: { label: "mean", format: micros, better: "lower" },
  p50_us: { label: "p50", format: micros, better: "lower" },
  p90_us: { label: "p90", format: micros, better: "lower" },
  p95_us: { label: "p95", format: micros, better: "lower" },
  p99_us: { label: "p99", format: micros, better: "lower" },
  p999_us: { label: "p99.9", format: micros, better: "lower" },
  p99999_us: { label: "p99.999", format: micros, better: "lower" },
  max_us: { label: "maximum", format: micros, better: "lower" },
  cpu_us: { label: "server CPU per request", format: micros, better: "lower" },
  server_busy: { label: "server CPUs busy", format: count, better: "lower" },
  generator_busy: { label: "generator CPUs busy", format: count, better: "lower" },
  rss: { label: "resident memory", format: bytes, better: "lower" },
  written_per_second: { label: "written", format: bytesPerSecond, better: "lower" },
  read_per_second: { label: "read", format: bytesPerSecond, better: "lower" },
  hit_ratio: { label: "hit ratio", format: percent, better: "higher" },
  capacity: { label: "rate with p99 below 1 ms", format: perSecond, better: "higher" },
  steadiness: { label: "worst second ÷ median second", format: percent, better: "higher" },
  per_core_second: { label: "requests per core-second", format: count, better: "higher" },
  over_admitted: { label: "over-admitted", format: whole, better: "lower" },
  lost: { label: "acknowledged and lost", format: whole, better: "lower" },
  "extra.items": { label: "items", format: count, better: "higher" },
  "extra.bytes_per_item": { label: "bytes per item", format: plainBytes, better: "lower" },
  "extra.ready_ms": { label: "ready after", format: millis, better: "lower" },
  "extra.survived": { label: "survived", format: whole, better: "higher" },
  "extra.acknowledged": { label: "acknowledged", format: whole, better: "higher" },
  "extra.first_minute_p99_us": { label: "p99 of the first minute", format: micros, better: "lower" },
  "extra.admitted": { label: "admitted", format: whole, better: "lower" },
  "extra.budget": { label: "budget", format: whole, better: "higher" },
  "extra.ram_bytes_per_item": { label: "RAM per item", format: plainBytes, better: "lower" },
  "extra.written_per_byte": { label: "written per byte stored", format: count, better: "lower" },
  "extra.missing_updates": { label: "missing updates", format: whole, better: "lower" },
  "extra.duplicates": { label: "duplicates", format: whole, better: "lower" },
};

/** Returns what is known of a figure. For others the end of the name tells the unit. */
function metricOf(name) {
  if (name in METRICS) return METRICS[name];
  const units = [[/_us$/, micros], [/_ms$/, millis], [/bytes/, plainBytes], [/ratio$/, percent]];
  const format = units.find(([end]) => end.test(name))?.[1] ?? count;
  const label = name.replace(/^extra\./, "").replace(/_(us|ms)$/, "").replaceAll("_", " ");
  return { label, format, better: "higher" };
}

const CASE_NAMES = {
  event: "one event loop",
  blocking: "blocking client, a thread per connection",
  pipeline: "16 requests in flight per connection",
  insert: "insert",
  retrieve: "retrieve",
  "mixed-1-9": "1:9 writes to reads",
  "mixed-3-7": "3:7 writes to reads",
  "mixed-5-5": "5:5 writes to reads",
  timeline: "time line, 1:9 writes to reads",
  ladder: "latency against offered rate",
  cloud: "every sample",
  fit: "items before the first eviction",
  "read-ram": "reads from RAM",
  "read-disk-1k": "reads from disk, 1 KB values",
  "read-disk-8k": "reads from disk, 8 KB values",
  "mixed-read": "mostly reads",
  overwrite: "overwrites",
};
const caseName = (name) => CASE_NAMES[name] ?? name.replaceAll("-", " ");

/** What the x of a case counts, its format, and the words behind a value. */
const AXES = {
  "counter/event": ["connections", whole],
  "counter/blocking": ["threads", whole],
  "counter/pipeline": ["connections", whole],
  "cliff/ladder": ["offered requests per second", perSecond, "offered"],
  "cliff/cloud": ["offered requests per second", perSecond, "offered"],
  "converge/fit": ["memory", mebibytes, "of memory"],
  converge: ["requests in flight", whole, "in flight"],
  hitratio: ["memory", mebibytes, "of memory"],
  restart: ["items", count],
};
const axisOf = (id, name) => AXES[`${id}/${name}`] ?? AXES[id] ?? ["x", count];

/** Says an x with its unit: "10 threads", "64 MiB of memory". */
function xText(id, name, x) {
  if (x === null) return "";
  const [label, format, words = label] = axisOf(id, name);
  return `${format(x)} ${words}`;
}

// ---------------------------------------------------------------------------------------------------------------
// Elements

/** Makes an element. Attributes that are null or false are left out; functions become listeners. */
function h(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(name, value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

function svg(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

const paragraphs = (texts) => (texts ?? []).map((text) => h("p", {}, text));

/** A list; of one text a paragraph. */
function listOf(texts) {
  return texts.length > 1 ? h("ul", {}, texts.map((text) => h("li", {}, text))) : paragraphs(texts);
}

/** A command with a button that copies it. */
function commandLine(command) {
  const text = Array.isArray(command) ? command.map(quoted).join(" ") : String(command);
  const copy = async (event) => {
    try {
      await navigator.clipboard.writeText(text);
      event.target.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(event.target.previousSibling);
    }
  };
  return h("span", { class: "command" }, h("code", {}, text),
    h("button", { type: "button", click: copy, "aria-label": `Copy: ${text}` }, "Copy"));
}

/** Quotes a word for a shell if it needs that. */
const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${String(word).replaceAll("'", `'\\''`)}'`);

const repeatOf = (experiment) => experiment?.command ?? results.command ?? [];

// ---------------------------------------------------------------------------------------------------------------
// Colours and lines

const FAMILIES = ["larder", "memcached", "arcus", "redis", "valkey", "postgres", "mariadb", "cassandra", "scylladb", "mongo",
  "ferretdb", "pogocache"];
const FAMILY_NAMES = { larder: "Larder", memcached: "memcached", arcus: "ARCUS", redis: "Redis", valkey: "Valkey",
  postgres: "PostgreSQL", mariadb: "MariaDB", cassandra: "Cassandra", mongo: "MongoDB", ferretdb: "FerretDB",
  pogocache: "pogocache" };

/** Returns the key of a family's colour; families may be spelled as names. */
function familyKey(family) {
  const key = family.toLowerCase().replace("postgresql", "postgres").replace("mongodb", "mongo");
  return FAMILIES.includes(key) ? key : "other";
}
const familyName = (family) => FAMILY_NAMES[family] ?? family;
const familyColour = (family) => `var(--f-${familyKey(family)})`;

/** The colour of a system: its family's, darker for the second system of the same durability. */
function colourOf(system) {
  const base = familyColour(system.family);
  const mixed = Math.min(75, 45 * system.variant);
  return mixed ? `color-mix(in srgb, ${base}, var(--ink) ${mixed}%)` : base;
}

const DASHES = { none: [], async: [7, 4], sync: [2, 3], published: [11, 3, 2, 3] };
const FILLS = { none: "solid", async: "hatch", sync: "hollow" };
const lineWidth = (system) => (isLarder(system) ? 2.5 : 1.5);

const probe = document.body.appendChild(h("span", { hidden: true }));
const resolvedColours = new Map();

/** Returns a colour that a canvas understands for a CSS expression, in the theme of the moment. */
function resolved(expression) {
  if (!resolvedColours.has(expression)) {
    probe.style.color = expression;
    resolvedColours.set(expression, getComputedStyle(probe).color);
  }
  return resolvedColours.get(expression);
}

/** The mark of a line in the legend. */
function lineSwatch(colour, dash, width) {
  const line = svg("line", { x1: 0, y1: 5, x2: 26, y2: 5, class: "stroke", "stroke-width": width,
    "stroke-dasharray": dash.join(" ") });
  return coloured(svg("svg", { class: "swatch", viewBox: "0 0 26 10", "aria-hidden": "true" }, line), colour);
}

/** The mark of a bar in the legend. */
function barSwatch(colour, fill) {
  const box = { x: 3.5, y: 0.5, width: 19, height: 9 };
  const shapes = [svg("rect", { ...box, class: fill === "solid" ? "fill" : "stroke" })];
  const hatch = () => [6, 11, 16, 21].map((x) => svg("path", { d: `M${x - 2} 9.5l5-9`, class: "stroke" }));
  if (fill === "hatch") shapes.push(...hatch());
  return coloured(svg("svg", { class: "swatch", viewBox: "0 0 26 10", "aria-hidden": "true" }, ...shapes), colour);
}

function coloured(node, colour) {
  node.style.color = colour;
  return node;
}

// ---------------------------------------------------------------------------------------------------------------
// Plots: specifications of one canvas each, drawn by uPlot
//
// A plot is made by `linePlot`, `barPlot` or `cloudPlot` from its specification and the width at hand. It returns
// uPlot's options and data, and `tip(u)`, which makes the text for the place under the pointer.

const FONT = '11px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif';

function axis(more) {
  return { stroke: resolved("var(--soft)"), font: FONT, labelFont: FONT, labelSize: 16, labelGap: 0, gap: 6,
    grid: { stroke: resolved("var(--grid)"), width: 1 }, ticks: { show: false }, ...more };
}

/** Runs `draw` with the canvas clipped to the plotting area. */
function clipped(u, draw) {
  const { ctx, bbox } = u;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  draw(ctx, uPlot.pxRatio);
  ctx.restore();
}

/** Returns a range that holds the values: from 0, or of a logarithmic axis. */
function rangeOf(values, log) {
  let [low, high] = [Infinity, 0];
  for (const value of values) {
    if (!Number.isFinite(value) || (log && value <= 0)) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (high <= 0) return log ? [1, 10] : [0, 1];
  return log ? [low / 1.35, high * 1.35] : [0, high * 1.08];
}

/** The labels of an axis; uPlot passes null for those that have no space. */
const labels = (format) => (u, splits) => splits.map((value) => (value === null ? "" : format(value)));

/** Grid and labels of a logarithmic axis: powers of ten, and 2 and 5 between them if these are few. */
function logTicks(format) {
  const splits = (u, axis, min, max) => {
    const decades = Math.log10(max / min);
    const digits = decades > 6 ? [1] : [1, 2, 5];
    const ticks = [];
    for (let power = Math.floor(Math.log10(min)); power <= Math.log10(max); power++) {
      ticks.push(...digits.map((digit) => Number(`${digit}e${power}`)).filter((tick) => tick >= min && tick <= max));
    }
    return ticks;
  };
  const isPower = (value) => Math.abs(Math.log10(value) - Math.round(Math.log10(value))) < 1e-9;
  const filter = (u, ticks) => {
    const all = ticks.length <= 8 || ticks.filter(isPower).length < 2;
    return ticks.map((tick) => (all || isPower(tick) ? tick : null));
  };
  return { splits, filter, values: labels(format) };
}

/**
 * Lines over a common x, with bands from minimum to maximum.
 * @param {{lines: Array<{label: string, colour: string, dash: number[], width: number,
 *   points: Array<{x: number, y: ?number, lo?: number, hi?: number, bound?: boolean, void?: string, at?: number}>}>,
 *   format: Function, log?: boolean, xLog?: boolean, x: {label: string, format: Function}, xs?: number[],
 *   shades?: Array<{from: number, to: number}>, marks?: Array<{x?: number, value: number, label: string}>,
 *   sync?: string, range?: number[], xRange?: number[]}} spec
 */
function linePlot(spec, width, height) {
  const { lines } = spec;
  const xs = unique(lines.flatMap((line) => line.points.map((point) => point.x))).sort(ascending);
  const index = new Map(xs.map((x, at) => [x, at]));
  const byIndex = lines.map((line) => {
    const points = Array(xs.length).fill(null);
    for (const point of line.points) points[index.get(point.x)] = point;
    return points;
  });
  const values = lines.flatMap((line) => line.points.flatMap((point) => [point.y, point.lo ?? null, point.hi ?? null, point.at ?? null]));
  const marks = spec.marks ?? [];
  const shown = marks.filter((mark) => mark.x === undefined).map((mark) => mark.value);
  const range = spec.range ?? rangeOf([...values, ...shown], spec.log);
  const few = xs.length <= 24;
  const series = lines.map((line) => ({
    label: line.label, stroke: resolved(line.colour), width: line.width, dash: line.dash, spanGaps: false,
    points: { show: few, size: line.width > 2 ? 7 : 5, width: 1, fill: resolved(line.hollow ? "var(--paper)" : line.colour) },
  }));
  const options = {
    width, height,
    legend: { show: false },
    padding: [10, 12, 0, 0],
    scales: {
      x: { time: false, distr: spec.xLog ? 3 : 1, range: spec.xRange ? () => spec.xRange : few ? padded(spec.xLog) : undefined },
      y: { distr: spec.log ? 3 : 1, range: () => range },
    },
    axes: [
      axis({ values: labels(spec.x.format), label: spec.x.label, size: 26, space: 56, incrs: spec.x.incrs, ...(spec.everyX ? { splits: () => xs, filter: (u, splits) => splits } : {}) }),
      axis({ size: 62, space: 36, ...(spec.log ? logTicks(spec.format) : { values: labels(spec.format) }) }),
    ],
    series: [{}, ...series],
    cursor: { y: false, drag: { x: true, y: false }, points: { size: 8 }, ...(spec.sync ? { sync: { key: spec.sync } } : {}) },
    hooks: {
      drawAxes: [(u) => clipped(u, (ctx, ratio) => {
        drawShades(u, ctx, spec.shades ?? []);
        lines.forEach((line) => drawBand(u, ctx, line));
        drawMarks(u, ctx, ratio, marks);
      })],
      draw: [(u) => clipped(u, (ctx, ratio) => lines.forEach((line) => drawFlags(u, ctx, ratio, line)))],
    },
  };
  const tip = (u) => lineTip(u, spec, xs, byIndex);
  return { options, data: [xs, ...byIndex.map((points) => points.map((point) => point?.y ?? null))], tip, xs };
}

/** A range with room beside the first and the last x. */
const padded = (log) => (u, min, max) => {
  if (log) return [min / 1.15, max * 1.15];
  const room = (max - min || 1) * 0.035;
  return [min - room, max + room];
};

function drawShades(u, ctx, shades) {
  for (const shade of shades) {
    const [from, to] = [u.valToPos(shade.from, "x", true), u.valToPos(shade.to, "x", true)];
    ctx.globalAlpha = 0.12;
    ctx.fillStyle = resolved("var(--behind)");
    ctx.fillRect(from, u.bbox.top, Math.max(2, to - from), u.bbox.height);
    ctx.globalAlpha = 1;
  }
}

/** Fills the space between the minimum and the maximum of a line's rounds. */
function drawBand(u, ctx, line) {
  const points = line.points.filter((point) => point.y !== null && point.lo !== undefined);
  if (points.length < 2) return;
  const place = (x, y) => [u.valToPos(x, "x", true), u.valToPos(Math.max(y, Number.MIN_VALUE), "y", true)];
  ctx.beginPath();
  points.forEach((point) => ctx.lineTo(...place(point.x, point.hi)));
  points.toReversed().forEach((point) => ctx.lineTo(...place(point.x, point.lo)));
  ctx.globalAlpha = 0.14;
  ctx.fillStyle = resolved(line.colour);
  ctx.fill();
  ctx.globalAlpha = 1;
}

/** Draws published figures as dashed levels, or as a point; at the edge if the point is outside. */
function drawMarks(u, ctx, ratio, marks) {
  ctx.strokeStyle = ctx.fillStyle = resolved("var(--soft)");
  ctx.font = `${11 * ratio}px system-ui, sans-serif`;
  for (const mark of marks) {
    const y = u.valToPos(mark.value, "y", true);
    ctx.setLineDash([6 * ratio, 4 * ratio]);
    ctx.lineWidth = ratio;
    ctx.beginPath();
    ctx.moveTo(u.bbox.left, y);
    ctx.lineTo(u.bbox.left + u.bbox.width, y);
    ctx.stroke();
    ctx.setLineDash([]);
    const outside = mark.x !== undefined && mark.x > u.scales.x.max;
    ctx.textAlign = "left";
    ctx.fillText(outside ? `${mark.label} →` : mark.label, u.bbox.left + 4 * ratio, y - 5 * ratio);
  }
}

/** Draws a ring around points where the generator was the limit, and a cross where a run was void. */
function drawFlags(u, ctx, ratio, line) {
  ctx.lineWidth = 1.5 * ratio;
  for (const point of line.points) {
    const at = point.void ? (point.at ?? point.y) : point.y;
    if (at === null || at === undefined || !(point.bound || point.void)) continue;
    const [x, y] = [u.valToPos(point.x, "x", true), u.valToPos(at, "y", true)];
    ctx.beginPath();
    if (point.bound) {
      ctx.strokeStyle = resolved("var(--soft)");
      ctx.arc(x, y, 6 * ratio, 0, 2 * Math.PI);
    }
    if (point.void) cross(ctx, x, y, 4.5 * ratio);
    ctx.stroke();
  }
}

function cross(ctx, x, y, size) {
  ctx.strokeStyle = resolved("var(--behind)");
  ctx.moveTo(x - size, y - size);
  ctx.lineTo(x + size, y + size);
  ctx.moveTo(x + size, y - size);
  ctx.lineTo(x - size, y + size);
}

const bandText = (stat, format) => (stat.n > 1 ? `${format(stat.min)} – ${format(stat.max)}` : "");

/** The values of all lines at the x under the pointer, best first. */
function lineTip(u, spec, xs, byIndex) {
  const at = u.cursor.idx;
  if (at === null || at === undefined) return null;
  const rows = spec.lines
    .map((line, index) => ({ line, point: byIndex[index][at] }))
    .filter(({ point }) => point && (point.y !== null || point.void));
  if (rows.length === 0) return null;
  const distance = ({ point }) => Math.abs(u.valToPos(point.y ?? point.at, "y") - u.cursor.top);
  const near = rows.reduce((best, row) => (distance(row) < distance(best) ? row : best));
  rows.sort((a, b) => (b.point.y ?? -1) - (a.point.y ?? -1));
  const row = ({ line, point }) => h("tr", { class: line === near.line && "near" },
    h("td", {}, lineSwatch(line.colour, line.dash, line.width)), h("td", {}, line.label),
    h("td", { class: "n" }, point.y === null ? h("span", { class: "void" }, "void") : spec.format(point.y), point.bound && " ○",
      point.lo !== undefined && point.lo !== point.hi && h("small", {}, `${spec.format(point.lo)} – ${spec.format(point.hi)}`)));
  const reason = near.point.void && h("p", { class: "void" }, near.point.void);
  return [h("b", {}, `${spec.x.format(xs[at])} ${spec.x.label}`), h("table", {}, rows.map(row)), reason];
}

/** Breaks a long label near its middle. */
function inTwoLines(text) {
  if (text.length <= 18) return text;
  const spaces = [...text.matchAll(/ /g)].map((match) => match.index);
  const distance = (at) => Math.abs(at - text.length / 2);
  const at = spaces.reduce((best, space) => (distance(space) < distance(best) ? space : best), spaces[0] ?? text.length);
  return `${text.slice(0, at)}\n${text.slice(at + 1)}`;
}

/** Height of one bar with its gap, in pixels. */
const BAR = 17;

/**
 * Horizontal bars in groups, with whiskers from minimum to maximum and the value at the end.
 * @param {{groups: Array<{label: string, bars: Array<{label: string, colour: string, fill: string, value: ?number, lo?: number,
 *   hi?: number, bound?: boolean, void?: string, text?: string, cell?: Cell}>}>, format: Function,
 *   marks?: Array<{value: number, label: string}>}} spec
 */
function barPlot(spec, width) {
  const bars = [];
  const centres = [];
  let place = 0;
  const names = spec.groups.map((group) => inTwoLines(group.label));
  spec.groups.forEach((group, index) => {
    const twoLines = names[index].includes("\n");
    // uPlot centres the first line of a label.
    centres.push(place + (group.bars.length - 1) / 2 - (twoLines ? 0.4 : 0));
    for (const bar of group.bars) bars.push({ ...bar, at: place++ });
    place += twoLines && group.bars.length === 1 ? 1.1 : 0.7;
  });
  const marks = spec.marks ?? [];
  const drawn = rangeOf(bars.flatMap((bar) => [bar.value, bar.hi ?? null]), false)[1];
  const near = marks.map((mark) => mark.value).filter((value) => value < drawn * 1.6);
  const top = Math.max(drawn, ...near.map((value) => value * 1.08));
  const room = Math.max(...bars.map((bar) => (bar.text ?? spec.format(bar.value)).length), 4) * 6.2 + 16;
  const labelWidth = Math.min(width * 0.36, Math.max(...names.flatMap((name) => name.split("\n").map((line) => line.length))) * 6.4 + 14);
  const markRoom = marks.length ? 18 : 4;
  const options = {
    width, height: Math.ceil(place * BAR + 30 + markRoom),
    legend: { show: false },
    padding: [markRoom, room, 0, 0],
    scales: { x: { time: false, ori: 1, dir: -1, range: () => [-0.7, place - 0.9] }, y: { ori: 0, range: () => [0, top] } },
    axes: [
      axis({ side: 3, size: labelWidth, stroke: resolved("var(--ink)"), grid: { show: false }, splits: () => centres,
        values: () => names }),
      axis({ side: 2, size: 24, space: 64, values: labels(spec.format) }),
    ],
    series: [{}, { paths: () => null, points: { show: false } }],
    cursor: { x: false, y: false, drag: { x: false, y: false }, points: { show: false } },
    hooks: { draw: [(u) => drawBars(u, bars, marks, top, spec.format)] },
  };
  const tip = (u) => barTip(bars[u.cursor.idx], spec.format);
  return { options, data: [bars.map((bar) => bar.at), bars.map((bar) => bar.value)], tip, xs: bars.map((bar) => bar.at), upright: true };
}

function drawBars(u, bars, marks, top, format) {
  const { ctx } = u;
  const ratio = uPlot.pxRatio;
  const zero = u.valToPos(0, "y", true);
  ctx.save();
  ctx.font = `${11 * ratio}px system-ui, sans-serif`;
  ctx.textBaseline = "middle";
  for (const bar of bars) drawBar(u, ctx, ratio, zero, bar, format);
  ctx.textBaseline = "alphabetic";
  for (const mark of marks) drawBarMark(u, ctx, ratio, mark, top);
  ctx.restore();
}

function drawBar(u, ctx, ratio, zero, bar, format) {
  const thick = (BAR - 6) * ratio;
  const middle = u.valToPos(bar.at, "x", true);
  const value = bar.value ?? 0;
  const end = u.valToPos(value, "y", true);
  const colour = resolved(bar.colour);
  const high = bar.hi === undefined ? end : u.valToPos(bar.hi, "y", true);
  fillBar(ctx, ratio, colour, bar.fill, zero, middle - thick / 2, Math.max(end - zero, ratio), thick);
  if (bar.lo !== undefined && bar.hi > bar.lo) whisker(ctx, ratio, u.valToPos(bar.lo, "y", true), high, middle);
  ctx.textAlign = "left";
  ctx.fillStyle = resolved(bar.void && bar.value === null ? "var(--behind)" : "var(--soft)");
  const flags = `${bar.bound ? " ○" : ""}${bar.void && bar.value !== null ? " (void rounds)" : ""}`;
  const text = bar.value === null ? (bar.void ? "void" : "–") : (bar.text ?? format(bar.value));
  ctx.fillText(text + flags, Math.max(end, high) + 6 * ratio, middle);
}

function fillBar(ctx, ratio, colour, fill, x, y, width, height) {
  ctx.fillStyle = ctx.strokeStyle = colour;
  ctx.lineWidth = 1.25 * ratio;
  if (fill === "solid") return ctx.fillRect(x, y, width, height);
  ctx.strokeRect(x, y + ratio / 2, width, height - ratio);
  if (fill !== "hatch") return undefined;
  ctx.save();
  ctx.beginPath();
  ctx.rect(x, y, width, height);
  ctx.clip();
  ctx.beginPath();
  for (let at = x - height; at < x + width; at += 5 * ratio) {
    ctx.moveTo(at, y + height);
    ctx.lineTo(at + height, y);
  }
  ctx.stroke();
  return ctx.restore();
}

function whisker(ctx, ratio, low, high, y) {
  ctx.strokeStyle = resolved("var(--ink)");
  ctx.lineWidth = ratio;
  ctx.beginPath();
  ctx.moveTo(low, y);
  ctx.lineTo(high, y);
  for (const end of [low, high]) {
    ctx.moveTo(end, y - 2.5 * ratio);
    ctx.lineTo(end, y + 2.5 * ratio);
  }
  ctx.stroke();
}

/** Draws a published figure as a dashed line across the bars; at the edge if it is outside. */
function drawBarMark(u, ctx, ratio, mark, top) {
  const outside = mark.value > top;
  const x = u.valToPos(Math.min(mark.value, top), "y", true);
  ctx.strokeStyle = ctx.fillStyle = resolved("var(--soft)");
  ctx.lineWidth = ratio;
  ctx.setLineDash([6 * ratio, 4 * ratio]);
  ctx.beginPath();
  ctx.moveTo(x, u.bbox.top);
  ctx.lineTo(x, u.bbox.top + u.bbox.height);
  if (!outside) ctx.stroke();
  ctx.setLineDash([]);
  ctx.textAlign = "right";
  const right = u.ctx.canvas.width - 2 * ratio;
  const text = outside ? `${mark.label} →` : mark.label;
  const wide = ctx.measureText(text).width;
  ctx.fillText(text, outside ? right : Math.min(right, Math.max(x + wide / 2, u.bbox.left + wide)), u.bbox.top - 6 * ratio);
}

/** Everything that is known of a bar. */
function barTip(bar, format) {
  if (!bar) return null;
  const rows = [];
  const stat = bar.cell && ["rate", "p50_us", "p90_us", "p95_us", "p99_us", "p999_us", "p99999_us", "cpu_us"];
  for (const metric of stat ?? []) {
    const figure = bar.cell.stat(metric);
    if (figure) rows.push([metricOf(metric).label, metricOf(metric).format(figure.median), bandText(figure, metricOf(metric).format)]);
  }
  if (rows.length === 0 && bar.value !== null) rows.push(["", format(bar.value), ""]);
  const table = rows.map(([label, value, band]) => h("tr", {}, h("td", {}, label), h("td", { class: "n" }, value),
    h("td", { class: "n" }, h("small", {}, band))));
  return [h("b", {}, bar.label), h("table", {}, table), bar.void && h("p", { class: "void" }, bar.void),
    bar.bound && h("p", { class: "soft" }, "○ The generator was the limit.")];
}

/** The largest number of samples that are drawn one by one; more are drawn as density. */
const ONE_BY_ONE = 100_000;

/**
 * Every sample of a run: time against latency. None is left out.
 * @param {{samples: {t: Uint32Array, latency: Float32Array}, colour: string, range: number[], seconds: number,
 *   marks?: Array<{value: number, label: string}>}} spec
 */
function cloudPlot(spec, width, height) {
  const { t } = spec.samples;
  const options = {
    width, height,
    legend: { show: false },
    padding: [10, 12, 0, 0],
    scales: { x: { time: false, range: (u, min, max) => [Math.max(0, min), max] }, y: { distr: 3, range: () => spec.range } },
    axes: [
      axis({ values: labels((value) => count(value)), label: "seconds", size: 26, space: 60 }),
      axis({ size: 62, ...logTicks(micros) }),
    ],
    series: [{}, { paths: () => null, points: { show: false } }],
    cursor: { y: false, drag: { x: true, y: false }, points: { show: false } },
    hooks: {
      drawAxes: [(u) => clipped(u, (ctx, ratio) => drawMarks(u, ctx, ratio, spec.marks ?? []))],
      draw: [(u) => clipped(u, (ctx, ratio) => drawCloud(u, ctx, ratio, spec))],
    },
  };
  const seconds = Math.max(1, Math.ceil(spec.seconds));
  const xs = Array.from({ length: seconds + 1 }, (_, second) => second);
  return { options, data: [xs, xs.map(() => null)], tip: (u) => cloudTip(u, spec), xs, dense: t.length > ONE_BY_ONE };
}

function drawCloud(u, ctx, ratio, spec) {
  const { t, latency } = spec.samples;
  const size = Math.max(1, Math.round((t.length > ONE_BY_ONE ? 1.5 : 2) * ratio));
  const { left, top, width, height } = u.bbox;
  const columns = Math.ceil(width / size);
  const rows = Math.ceil(height / size);
  const cells = new Uint32Array(columns * rows);
  const { min, max } = u.scales.x;
  const [low, high] = spec.range.map(Math.log);
  for (let index = 0; index < t.length; index++) {
    const column = Math.floor(((t[index] / 1e6 - min) / (max - min)) * columns);
    const share = (Math.log(latency[index]) - low) / (high - low);
    const row = Math.min(rows - 1, Math.max(0, Math.floor((1 - share) * rows)));
    if (column >= 0 && column < columns) cells[row * columns + column]++;
  }
  const most = cells.reduce((most, value) => Math.max(most, value), 1);
  ctx.fillStyle = resolved(spec.colour);
  cells.forEach((value, index) => {
    if (value === 0) return;
    // A single sample stays visible, however dense the rest is.
    ctx.globalAlpha = 0.4 + 0.6 * (most > 1 ? Math.log(value) / Math.log(most) : 0);
    ctx.fillRect(left + (index % columns) * size, top + Math.floor(index / columns) * size, size, size);
  });
  ctx.globalAlpha = 1;
}

/** The second under the pointer: how many samples it has, and how they are spread. */
function cloudTip(u, spec) {
  const second = Math.floor(u.posToVal(u.cursor.left, "x"));
  const { t, latency } = spec.samples;
  const inside = [];
  for (let index = 0; index < t.length; index++) {
    if (Math.floor(t[index] / 1e6) === second) inside.push(latency[index]);
  }
  if (inside.length === 0) return null;
  inside.sort(ascending);
  const at = (share) => inside[Math.min(inside.length - 1, Math.floor(share * inside.length))];
  const rows = [["p50", at(0.5)], ["p99", at(0.99)], ["maximum", inside[inside.length - 1]]];
  return [h("b", {}, `second ${second}: ${whole(inside.length)} samples`),
    h("table", {}, rows.map(([label, value]) => h("tr", {}, h("td", {}, label), h("td", { class: "n" }, micros(value)))))];
}

const PLOTS = { line: linePlot, bars: barPlot, cloud: cloudPlot };

// ---------------------------------------------------------------------------------------------------------------
// Figures: a caption, controls, a legend, plots, and the table that says the same in text

/** All figures of the report. @type {Figure[]} */
const figures = [];

/**
 * @typedef {{key: string, label: string, group: string, swatch: () => SVGElement}} LegendEntry
 * @typedef {{name: string, label: string, options: Array<[string, string]>, select?: boolean}} Control
 */
class Figure {
  /**
   * @param {{id: string, title: string, notes?: string[], controls?: Control[], legend?: LegendEntry[],
   *   plots: (view: {state: Object<string, string>, hidden: Set<string>, figure: Figure}) => object[], columns?: string,
   *   tables?: Node[], hiddenAtFirst?: string[]}} spec
   */
  constructor(spec) {
    this.spec = spec;
    this.state = Object.fromEntries((spec.controls ?? []).map((control) => [control.name, control.options[0][0]]));
    this.hidden = new Set(spec.hiddenAtFirst ?? []);
    this.charts = [];
    this.width = 0;
    this.grid = h("div", { class: `plots ${spec.columns ?? ""}` });
    const caption = h("figcaption", {}, h("h3", { id: `title-${spec.id}` }, spec.title), paragraphs(spec.notes));
    this.node = h("figure", { id: `figure-${spec.id}`, "data-figure": spec.id, "aria-labelledby": `title-${spec.id}` },
      caption, this.controls(), this.legend(), this.grid, spec.tables ?? []);
    new ResizeObserver(() => this.fit()).observe(this.grid);
    figures.push(this);
  }

  controls() {
    const controls = this.spec.controls ?? [];
    const shown = controls.filter((control) => control.options.length > 1);
    return shown.length > 0 && h("div", { class: "controls" }, shown.map((control) => this.control(control)));
  }

  control({ name, label, options, select }) {
    const choose = (value) => {
      this.state[name] = value;
      this.draw();
    };
    if (select) {
      const choices = options.map(([value, text]) => h("option", { value }, text));
      const box = h("select", { "data-control": name, change: () => choose(box.value) }, choices);
      return h("label", {}, label, box);
    }
    const buttons = options.map(([value, text]) => h("button", { type: "button", "data-control": name, "data-value": value,
      "aria-pressed": String(this.state[name] === value),
      click: (event) => {
        buttons.forEach((button) => button.setAttribute("aria-pressed", button === event.currentTarget));
        choose(value);
      } }, text));
    return h("div", { class: "segments", role: "group", "aria-label": label }, h("span", {}, label), h("div", {}, buttons));
  }

  /** Buttons that hide and show systems; the name of a group hides or shows all of it. */
  legend() {
    const entries = this.spec.legend ?? [];
    const groups = unique(entries.map((entry) => entry.group));
    const buttons = new Map();
    const set = (keys, visible) => {
      for (const key of keys) {
        if (visible) this.hidden.delete(key);
        else this.hidden.add(key);
        buttons.get(key).setAttribute("aria-pressed", visible);
      }
      this.draw();
    };
    const button = (entry) => {
      const toggle = () => set([entry.key], this.hidden.has(entry.key));
      buttons.set(entry.key, h("button", { type: "button", "data-key": entry.key, "aria-pressed": String(!this.hidden.has(entry.key)),
        click: toggle }, entry.swatch(), entry.label));
      return buttons.get(entry.key);
    };
    const group = (name) => {
      const members = entries.filter((entry) => entry.group === name);
      const keys = members.map((entry) => entry.key);
      const all = () => set(keys, keys.every((key) => this.hidden.has(key)));
      const title = name && h("button", { type: "button", class: "group", click: all, "aria-label": `Hide or show: ${name}` }, name);
      return h("div", {}, title, h("div", {}, members.map(button)));
    };
    return entries.length > 1 && h("div", { class: "legend", role: "group", "aria-label": "Systems shown" }, groups.map(group));
  }

  /** Draws again if the width has changed since the last drawing. */
  fit() {
    if (!root.classList.contains("printing") && Math.abs(this.grid.clientWidth - this.width) > 1) this.draw();
  }

  draw() {
    this.width = this.grid.clientWidth;
    this.charts.forEach((chart) => chart?.destroy());
    this.charts = [];
    if (this.width === 0) return;
    const specs = this.spec.plots({ state: this.state, hidden: this.hidden, figure: this });
    const cells = specs.map((spec) => plotCell(spec));
    this.grid.replaceChildren(...cells.map((cell) => cell.node));
    this.charts = cells.map((cell) => (cell.spec.kind ? mount(cell) : null));
  }

  /** Draws one plot again with another specification; the others stay as they are. */
  replace(index, spec) {
    const cell = plotCell(spec);
    this.charts[index]?.destroy();
    this.grid.children[index].replaceWith(cell.node);
    this.charts[index] = spec.kind ? mount(cell) : null;
  }
}

function plotCell(spec) {
  const readout = h("span", { class: "readout", "aria-live": "off" });
  const holder = h("div", { class: "plot", tabindex: 0, role: "img", "data-plot": spec.kind,
    "aria-label": `Chart: ${spec.title}. Arrow keys read its values. The table below has all of them.` });
  const head = h("div", { class: "plot-head" }, spec.title && h("h4", {}, spec.title), spec.unit && h("span", {}, spec.unit), readout);
  const body = spec.kind ? holder : h("p", { class: "empty" }, spec.text);
  return { node: h("div", { class: "plot-cell" }, head, body), holder, readout, spec };
}

/** Draws a plot into its place and lets pointer and keyboard read its values. */
function mount({ holder, readout, spec }) {
  const plot = PLOTS[spec.kind](spec, holder.clientWidth, spec.height ?? 260);
  const tip = h("div", { class: "tip", hidden: true });
  const hover = (u) => {
    const inside = u.cursor.left >= 0;
    if (spec.readout) readout.textContent = inside ? spec.readout(u.cursor.idx) : "";
    if (inside) spec.onHover?.(plot.xs[u.cursor.idx]);
    const content = inside && !spec.readout ? plot.tip(u) : null;
    tip.hidden = !content;
    if (!content) return;
    tip.replaceChildren(...content.filter(Boolean));
    placeTip(u, holder, tip);
  };
  plot.options.hooks.setCursor = [hover];
  const chart = new uPlot(plot.options, plot.data, holder);
  holder.append(tip);
  holder.addEventListener("keydown", (event) => moveCursor(event, chart, plot));
  holder.addEventListener("blur", () => chart.setCursor({ left: -10, top: -10 }));
  return chart;
}

/** Places the tip beside the pointer, inside the chart where possible. */
function placeTip(u, holder, tip) {
  const [left, top] = [u.over.offsetLeft + u.cursor.left, u.over.offsetTop + u.cursor.top];
  const right = left + 16 + tip.offsetWidth <= holder.clientWidth;
  const x = right ? left + 16 : Math.max(0, left - 16 - tip.offsetWidth);
  const y = Math.max(-30, Math.min(top - 20, holder.clientHeight - tip.offsetHeight));
  tip.style.transform = `translate(${Math.round(x)}px, ${Math.round(y)}px)`;
}

/** Moves the cursor to the next or the previous value by arrow keys. */
function moveCursor(event, chart, plot) {
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  const inside = chart.cursor.left >= 0;
  const from = inside ? chart.cursor.idx : step > 0 ? -1 : plot.xs.length;
  const to = Math.min(plot.xs.length - 1, Math.max(0, from + step));
  const place = chart.valToPos(plot.xs[to], "x");
  const middle = { left: chart.over.clientWidth / 2, top: chart.over.clientHeight / 3 };
  chart.setCursor(plot.upright ? { ...middle, top: place } : { ...middle, left: place });
}

/**
 * The legend of systems, in groups of durability.
 * @param {"line"|"bar"|"plain"} kind  Plain bars show no durability.
 */
function systemLegend(list, kind = "line") {
  const swatch = (system) => () => (kind === "line"
    ? lineSwatch(colourOf(system), DASHES[system.durability] ?? [], lineWidth(system))
    : barSwatch(colourOf(system), kind === "plain" ? "solid" : FILLS[system.durability] ?? "solid"));
  const entry = (system) => ({ key: system.id, label: system.name, group: className(system.durability), swatch: swatch(system) });
  return byClass(list).flatMap(([, members]) => members.map(entry));
}

/** Returns the systems in groups of durability, without empty groups. */
function byClass(list) {
  const names = unique([...CLASSES, ...list.map((system) => system.durability)]);
  const groups = names.map((durability) => [durability, list.filter((system) => system.durability === durability)]);
  return groups.filter(([, members]) => members.length > 0);
}

/** Turns cells of one system into a line. `scale` changes every value; null leaves the point out. */
function lineOf(system, cells, metric, scale = (value) => value) {
  const points = cells.filter((cell) => cell.x !== null).map((cell) => {
    const stat = cell.stat(metric);
    const reason = cell.voids.length ? voidText(cell) : null;
    const measured = reason ? statOf(cell.voids.map((point) => valueOf(point, metric)).filter((value) => value !== null)) : null;
    const at = measured ? scale(measured.median, cell.x) : null;
    if (!stat) return { x: cell.x, y: null, void: reason, at, cell };
    const [y, lo, hi] = [stat.median, stat.min, stat.max].map((value) => scale(value, cell.x));
    return { x: cell.x, y, lo, hi, bound: cell.bound, void: reason, at, cell };
  });
  const known = points.filter((point) => point.y !== null || point.void);
  return { label: systemLabel(system), colour: colourOf(system), dash: DASHES[system.durability] ?? [], width: lineWidth(system),
    hollow: system.variant > 0, points: known };
}

const systemLabel = (system) => system.name + (system.stand_in ? " (stand-in)" : "");
const roundsText = (points) => `round${points.length > 1 ? "s" : ""} ${points.map((point) => point.round).join(", ")}`;
const voidText = (cell) => unique(cell.voids.map((point) => point.void)).map((reason) =>
  `void, ${roundsText(cell.voids.filter((point) => point.void === reason))}: ${reason}`).join("; ");

/** Turns a cell into a bar. */
function barOf(cell, metric, label = systemLabel(cell.system)) {
  const stat = cell.stat(metric);
  return { label, colour: colourOf(cell.system), fill: FILLS[cell.system.durability] ?? "solid", value: stat?.median ?? null,
    lo: stat?.min, hi: stat?.max, bound: cell.bound, void: cell.voids.length ? voidText(cell) : null, cell };
}

/** Groups bars by family, each from no durability to the most. */
function familyGroups(cells, metric, hidden) {
  const shown = cells.filter((cell) => !hidden.has(cell.system.id) && (cell.stat(metric) || cell.voids.length));
  const rank = (cell) => CLASSES.indexOf(cell.system.durability);
  return unique(shown.map((cell) => cell.system.family)).map((family) => ({
    label: familyName(family),
    bars: shown.filter((cell) => cell.system.family === family).sort((a, b) => rank(a) - rank(b))
      .map((cell) => barOf(cell, metric)),
  }));
}

// ---------------------------------------------------------------------------------------------------------------
// Tables

/** A cell of a table with a figure: the median, and below it the minimum and the maximum. */
function figureCell(cell, metric) {
  const stat = cell?.stat(metric) ?? null;
  if (!cell || (!stat && cell.voids.length === 0)) return h("td", { class: "n soft" }, "–");
  const address = { "data-experiment": cell.experiment, "data-case": cell.case, "data-system": cell.system.id, "data-x": cell.x ?? "" };
  const lost = cell.voids.length > 0 && h("small", { class: "void" }, `${cell.voids.length} void`);
  if (!stat) return h("td", { class: "n void", ...address, "data-metric": metric, "data-void": cell.voids.length }, "void");
  const { format } = metricOf(metric);
  return h("td", { class: "n", ...address, "data-metric": metric, "data-value": stat.median, "data-min": stat.min,
    "data-max": stat.max, "data-n": stat.n, title: `${stat.median} (${stat.min} – ${stat.max}), ${stat.n} rounds` },
  format(stat.median), cell.bound && " ○", stat.max > stat.min && h("small", {}, bandText(stat, format)), lost);
}

/** The rows of one system, and below it why its void runs are void. */
function withReasons(row, cells, columns, where = () => "") {
  const void_ = cells.filter((cell) => cell.voids.length > 0);
  const text = (cell) => [where(cell), voidText(cell)].filter(Boolean).join(", ");
  return void_.length === 0 ? [row] : [row, h("tr", { class: "reason" }, h("td", { colspan: columns }, void_.map((cell) => h("div", {}, text(cell)))))];
}

/** Rows of systems under the heads of their durability classes. */
function classRows(list, columns, rowOf) {
  return byClass(list).flatMap(([durability, members]) => [
    h("tr", { class: "class" }, h("th", { colspan: columns, scope: "rowgroup" }, className(durability),
      CLASS_MEANINGS[durability] && ` · ${CLASS_MEANINGS[durability]}`)),
    members.flatMap(rowOf),
  ]);
}

const systemHead = (system) => h("th", { scope: "row" }, systemLabel(system));
const rowClass = (system) => (isLarder(system) ? "mine" : null);
const better = (metric) => (a, b) => (metricOf(metric).better === "higher" ? b - a : a - b);

/** Returns the best median of a durability class. */
function bestOf(cells, metric, durability) {
  const medians = cells.filter((cell) => cell.system.durability === durability).map((cell) => cell.stat(metric)?.median);
  return medians.filter((value) => value !== undefined).sort(better(metric))[0] ?? null;
}

/** The ratio of a cell to the best of its durability class. */
function ratioCell(cell, metric, cells) {
  const [mine, best] = [cell?.stat(metric)?.median, cell && bestOf(cells, metric, cell.system.durability)];
  if (mine === undefined || !best) return h("td", { class: "n soft" }, "–");
  return h("td", { class: "n", "data-ratio": mine / best }, mine === best ? "best" : times(mine / best));
}

/** A table of systems against x, for one figure. The last column compares at the largest x. */
function seriesTable(id, name, metric) {
  const cells = cellsIn(id, name);
  const xs = xsIn(cells);
  const [label, format] = axisOf(id, name);
  const last = cells.filter((cell) => cell.x === xs[xs.length - 1]);
  const columns = xs.length + 2;
  const rowOf = (system) => {
    const mine = ofSystem(cells, system);
    const at = (x) => mine.find((cell) => cell.x === x);
    const row = h("tr", { class: rowClass(system) }, systemHead(system), xs.map((x) => figureCell(at(x), metric)),
      ratioCell(at(xs[xs.length - 1]), metric, last));
    return withReasons(row, mine, columns, (cell) => xText(id, name, cell.x));
  };
  const head = h("tr", {}, h("th", { scope: "col" }, "System"), xs.map((x) => h("th", { class: "n", scope: "col" }, format(x))),
    h("th", { class: "n", scope: "col" }, `÷ best at ${format(xs[xs.length - 1] ?? null)}`));
  return tableOf(`${metricOf(metric).label} by ${label}: ${caseName(name)}`, head, classRows(systemsIn(cells), columns, rowOf));
}

/** A table of cells against figures. The second column compares the first figure within its durability class. */
function metricsTable(title, cells, metrics, more = []) {
  const used = metrics.filter((metric) => cells.some((cell) => cell.stat(metric)));
  const withX = cells.some((cell) => cell.x !== null);
  const columns = used.length + more.length + (withX ? 3 : 2);
  const [label, format] = cells.length ? axisOf(cells[0].experiment, cells[0].case) : ["", count];
  const rowOf = (system) => ofSystem(cells, system).flatMap((cell) => {
    const peers = cells.filter((other) => other.x === cell.x);
    const row = h("tr", { class: rowClass(system) }, systemHead(system), withX && h("td", { class: "n" }, format(cell.x)),
      used.length > 0 && figureCell(cell, used[0]), ratioCell(cell, used[0] ?? "rate", peers),
      used.slice(1).map((metric) => figureCell(cell, metric)), more.map((column) => column.cell(cell)));
    return withReasons(row, [cell], columns);
  });
  const column = (text) => h("th", { class: "n", scope: "col" }, text);
  const head = h("tr", {}, h("th", { scope: "col" }, "System"), withX && column(label), used.slice(0, 1).map((metric) => column(metricOf(metric).label)),
    column("÷ best"), used.slice(1).map((metric) => column(metricOf(metric).label)), more.map((one) => column(one.label)));
  return tableOf(title, head, classRows(systemsIn(cells), columns, rowOf));
}

/** A table that can be folded and that scrolls by itself if it is wide. */
function tableOf(title, head, rows, open = false) {
  const table = h("table", {}, h("caption", {}, title), h("thead", {}, head), h("tbody", {}, rows));
  return h("details", { open }, h("summary", {}, `Table: ${title}`),
    h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": title }, table));
}

const LATENCIES = ["mean_us", "p50_us", "p90_us", "p95_us", "p99_us", "p999_us", "p99999_us", "max_us"];
const COSTS = ["cpu_us", "server_busy", "generator_busy", "rss", "written_per_second", "read_per_second"];

/** The names of the extra figures of some cells. */
const extrasIn = (cells) => unique(cells.flatMap((cell) => cell.points.flatMap((point) => Object.keys(point.extra ?? {})))).map((name) => `extra.${name}`);

// ---------------------------------------------------------------------------------------------------------------
// Comparisons: Larder against the best peer of the same durability

/**
 * @typedef {object} Question
 * @property {string} experiment
 * @property {string} case
 * @property {string} metric
 * @property {"largest"|"middle"|"each"} [at]  Which x is compared; without it the case has no x.
 * @property {string} ask
 * @property {boolean} [headline]  True if the first screen shows it.
 *
 * @typedef {{system: System, stat: Stat, cell: ?Cell}} Entry
 * @typedef {{question: Question, durability: string, x: ?number, larder: ?Entry, peer: ?Entry, advantage: ?number,
 *   interval: ?number[], overlap: boolean, state: "ahead"|"behind"|"level"|"alone"|"absent"}} Comparison
 */

/** The questions of known experiments, those of the first screen first. */
const QUESTIONS = {
  counter: [
    { case: "event", metric: "rate", at: "largest", ask: "Increments of one counter per second", headline: true },
    { case: "blocking", metric: "rate", at: "largest", ask: "Increments per second, blocking client" },
    { case: "pipeline", metric: "rate", at: "largest", ask: "Increments per second, 16 in flight per connection" },
  ],
  persistence: [
    { case: "mixed-1-9", metric: "rate", ask: "Requests per second at 1:9 writes to reads", headline: true },
    { case: "insert", metric: "rate", ask: "Inserts per second" },
    { case: "retrieve", metric: "rate", ask: "Reads per second" },
    { case: "mixed-3-7", metric: "rate", ask: "Requests per second at 3:7 writes to reads" },
    { case: "mixed-5-5", metric: "rate", ask: "Requests per second at 5:5 writes to reads" },
    { case: "timeline", metric: "steadiness", ask: "Worst second as a share of the median second" },
  ],
  cliff: [
    { case: "ladder", metric: "capacity", ask: "Highest offered rate with p99 below 1 ms", headline: true },
    { case: "ladder", metric: "p99_us", at: "middle", ask: "p99 latency" },
    { case: "ladder", metric: "p99_us", at: "largest", ask: "p99 latency" },
  ],
  converge: [
    { case: "read-ram", metric: "rate", at: "largest", ask: "Reads per second from RAM", headline: true },
    { case: "fit", metric: "extra.items", at: "largest", ask: "Items of 1000 bytes before the first eviction", headline: true },
    { case: "read-disk-1k", metric: "rate", at: "each", ask: "Reads per second from disk, 1 KB values" },
    { case: "read-disk-8k", metric: "rate", at: "each", ask: "Reads per second from disk, 8 KB values" },
    { case: "mixed-read", metric: "rate", at: "largest", ask: "Requests per second, mostly reads" },
    { case: "overwrite", metric: "rate", at: "largest", ask: "Overwrites per second" },
  ],
  hitratio: [{ case: "*", metric: "hit_ratio", at: "middle", ask: "Hit ratio", headline: true }],
  restart: [
    { case: "*", metric: "extra.ready_ms", at: "largest", ask: "Time until ready after kill -9", headline: true },
    { case: "*", metric: "extra.first_minute_p99_us", at: "largest", ask: "p99 of the first minute after a restart" },
  ],
  limits: [{ case: "*", metric: "rate", at: "largest", ask: "Decisions per second", headline: true }],
  cost: [{ case: "*", metric: "cpu_us", at: "largest", ask: "Server CPU per request", headline: true }],
};

/** Cases whose rate is given, or is no answer. */
const NOT_COMPARED = ["cliff/cloud", "cliff/ladder", "converge/fit", "persistence/timeline"];

/** Returns the questions of an experiment, one per case. Unknown cases are compared by their rate. */
function questionsOf(id) {
  const known = (QUESTIONS[id] ?? []).map((question) => ({ ...question, experiment: id }));
  const present = casesOf(id);
  const wild = known.filter((question) => question.case === "*");
  const expanded = known.filter((question) => question.case !== "*" && present.includes(question.case));
  for (const question of wild) {
    const many = present.length > 1;
    expanded.push(...present.map((name) => ({ ...question, case: name, ask: many ? `${question.ask}, ${caseName(name)}` : question.ask })));
  }
  const asked = new Set(expanded.map((question) => question.case));
  const others = present.filter((name) => !asked.has(name) && !NOT_COMPARED.includes(`${id}/${name}`));
  const plain = others.map((name) => ({ experiment: id, case: name, metric: "rate", at: "largest", ask: `Requests per second, ${caseName(name)}`, headline: known.length === 0 }));
  return [...expanded, ...plain];
}

/** The highest offered rate up to which p99 stays below a millisecond, by round. */
function capacityOf(cells) {
  const rounds = unique(cells.flatMap((cell) => cell.points.map((point) => point.round)));
  const capacity = (round) => {
    const points = cells.flatMap((cell) => cell.points.filter((point) => point.round === round)).sort((a, b) => a.x - b.x);
    const first = points.findIndex((point) => point.void || !(point.p99_us < 1000));
    return (first < 0 ? points : points.slice(0, first)).at(-1)?.x ?? 0;
  };
  return statOf(rounds.map(capacity));
}

/** @returns {Entry[]} The systems of one durability class that answer a question, best first. */
function entriesOf(question, durability, x) {
  const cells = cellsIn(question.experiment, question.case).filter((cell) => cell.system.durability === durability);
  const entry = (system) => {
    const mine = ofSystem(cells, system);
    if (question.metric === "capacity") return { system, stat: capacityOf(mine), cell: null };
    const cell = mine.find((cell) => cell.x === x);
    return { system, stat: cell?.stat(question.metric) ?? null, cell: cell ?? null };
  };
  const order = better(question.metric);
  return systemsIn(cells).map(entry).filter(({ stat }) => stat).sort((a, b) => order(a.stat.median, b.stat.median));
}

/** Returns the x at which a question is compared: those that Larder and a peer have in common. */
function comparedXs(question, durability) {
  const cells = cellsIn(question.experiment, question.case)
    .filter((cell) => cell.system.durability === durability && cell.stat(question.metric));
  if (question.metric === "capacity") return [null];
  const xs = xsIn(cells);
  if (xs.length === 0) return [null];
  const common = xs.filter((x) => [true, false].every((mine) => cells.some((cell) => cell.x === x && isLarder(cell.system) === mine)));
  const usable = common.length ? common : xs;
  if (question.at === "each") return usable;
  return [question.at === "middle" ? usable[(usable.length - 1) >> 1] : usable[usable.length - 1]];
}

/** @returns {?Comparison} */
function compare(question, durability, x) {
  const entries = entriesOf(question, durability, x);
  if (entries.length === 0) return null;
  const larder = entries.find((entry) => isLarder(entry.system)) ?? null;
  const peer = entries.find((entry) => !isLarder(entry.system)) ?? null;
  const base = { question, durability, x, larder, peer, advantage: null, interval: null, overlap: false };
  if (!larder || !peer) return { ...base, state: larder ? "alone" : "absent" };
  const higher = metricOf(question.metric).better === "higher";
  const ratio = (mine, theirs) => (higher ? mine / theirs : theirs / mine);
  const advantage = ratio(larder.stat.median, peer.stat.median);
  const worst = higher ? ratio(larder.stat.min, peer.stat.max) : ratio(larder.stat.max, peer.stat.min);
  const best = higher ? ratio(larder.stat.max, peer.stat.min) : ratio(larder.stat.min, peer.stat.max);
  const overlap = larder.stat.min <= peer.stat.max && peer.stat.min <= larder.stat.max;
  const state = advantage > 1 ? "ahead" : advantage < 1 ? "behind" : "level";
  return { ...base, advantage, interval: [worst, best], overlap, state };
}

/** @returns {Comparison[]} */
function comparisonsOf(id) {
  return questionsOf(id).flatMap((question) => CLASSES.flatMap((durability) =>
    comparedXs(question, durability).map((x) => compare(question, durability, x)).filter(Boolean)));
}

const allComparisons = (results.experiments ?? []).flatMap((experiment) => comparisonsOf(experiment.id));

/** A table of comparisons, grouped by their questions. `named` puts the experiment before the question. */
function comparisonTable(list, label, named = false) {
  const key = ({ question, x }) => JSON.stringify([question.experiment, question.case, question.metric, x]);
  const rows = unique(list.map(key)).flatMap((group) => {
    const members = list.filter((comparison) => key(comparison) === group);
    return [questionRow(members[0], named), members.map(comparisonRow)];
  });
  const heads = ["Durability", "Winner", "Larder", "Best peer", "Larder ÷ best peer", "Spread of the ratio"];
  return h("table", { class: "comparisons", "aria-label": label },
    h("thead", {}, h("tr", {}, heads.map((text) => h("th", { scope: "col" }, text)))), h("tbody", {}, rows));
}

/** The head of a question: the experiment with a link, what is compared, and the command if it is one of its own. */
function questionRow({ question, x }, named) {
  const experiment = experimentOf(question.experiment);
  const where = xText(question.experiment, question.case, x);
  const lower = metricOf(question.metric).better === "lower";
  return h("tr", { class: "question" }, h("th", { colspan: 6, scope: "rowgroup" },
    named && experiment.command && h("span", { class: "repeat" }, commandLine(experiment.command)),
    named && [h("a", { href: `#${experiment.id}` }, PAGE_NAMES[experiment.id] ?? experiment.title ?? experiment.id), " "],
    h("span", { class: "ask" }, [question.ask, where].filter(Boolean).join(", ")),
    lower && h("small", {}, " lower is better: the ratio is peer ÷ Larder")));
}

function comparisonRow(comparison) {
  const { question, durability, x, larder, peer, advantage, state } = comparison;
  const { format } = metricOf(question.metric);
  const winner = { ahead: larder, level: larder, behind: peer, absent: peer }[state];
  const figure = (entry) => (entry ? [format(entry.stat.median), entry.cell?.bound && " ○"] : "–");
  const named = (entry) => [figure(entry), entry && h("small", {}, ` ${systemLabel(entry.system)}`)];
  const cell = (label, ...content) => h("td", { "data-label": label }, h("div", {}, ...content));
  const figures = (side, entry) => (entry ? { [`data-${side}-system`]: entry.system.id, [`data-${side}`]: entry.stat.median } : {});
  return h("tr", { "data-comparison": `${question.experiment}/${question.case}`, "data-metric": question.metric, "data-x": x ?? "",
    "data-durability": durability, "data-state": state, "data-advantage": advantage, ...figures("larder", larder), ...figures("peer", peer) },
  h("th", { scope: "row", "data-label": "Durability" }, h("div", {}, className(durability))),
  cell("Winner", winner ? [h("b", {}, systemLabel(winner.system)), " ", figure(winner)] : "–"),
  cell("Larder", larder?.system.variant > 0 ? named(larder) : figure(larder)), cell("Best peer", named(peer)),
  cell("Ratio", ratioText(comparison)), cell("Spread", spreadText(comparison)));
}

/** The ratio as a number and as a mark on a logarithmic scale from 1/8 to 8. */
function ratioText({ advantage, state }) {
  if (state === "alone") return h("span", { class: "soft" }, "no peer here");
  if (state === "absent") return h("span", { class: "soft" }, "Larder did not run");
  const text = Number.isFinite(advantage) ? times(advantage, true) : "–";
  const bar = h("i");
  const share = Math.max(-50, Math.min(50, (Math.log2(advantage) / 3) * 50)) || 0;
  bar.style.left = `${50 + Math.min(0, share)}%`;
  bar.style.width = `${Math.abs(share)}%`;
  return [h("span", { class: `ratio ${state}` }, text, h("span", { class: "meter", "aria-hidden": "true" }, bar)),
    h("span", { class: "unseen" }, ` ${state}`)];
}

function spreadText({ interval, overlap, larder, peer }) {
  if (!interval) return "–";
  const rounds = Math.min(larder.stat.n, peer.stat.n);
  if (rounds < 2) return h("span", { class: "soft" }, "one round");
  const band = Number.isFinite(interval[1]) ? `${times(interval[0])} – ${times(interval[1])}` : `at least ${times(interval[0])}`;
  return [band, overlap && h("small", {}, " bands overlap")];
}

// ---------------------------------------------------------------------------------------------------------------
// The first screen

const ARTICLES = ["counter", "persistence", "cliff", "converge"];
const PAGE_NAMES = { counter: "Counter", persistence: "Persistence", cliff: "Cliff", converge: "Converge", hitratio: "Hit ratio",
  restart: "Restart", limits: "Limits", cost: "Cost" };

function summaryPage() {
  const headlines = allComparisons.filter((comparison) => comparison.question.headline);
  const losses = allComparisons.filter((comparison) => comparison.state === "behind");
  const seen = new Set(headlines);
  return [
    h("h2", { class: "unseen" }, "Summary"),
    results.interrupted && h("p", { class: "banner", role: "status" },
      "This run was interrupted. The figures are those of the runs that had ended; the rest is missing, not zero."),
    verdict(), scoreboard(),
    h("p", { class: "soft" }, "A ratio above 1 means that Larder is better. Figures are medians of interleaved rounds; the spread is the ratio at the worst and at the best of both. ",
      results.command && ["Repeat all of it: ", commandLine(results.command)]),
    comparisonTable(headlines, "Results by experiment and durability", true),
    h("h3", {}, "Where Larder is behind"),
    losses.length === 0 ? h("p", {}, "In no comparison of this report.")
      : [h("p", {}, `All ${losses.length} comparisons in which a peer of the same durability is better:`), comparisonTable([...losses].sort((a, b) => a.advantage - b.advantage), "Comparisons in which Larder is behind", true)],
    othersNote(allComparisons.filter((comparison) => !seen.has(comparison))),
    voidSection(), missingSection(),
  ];
}

function verdict() {
  const count = (state) => allComparisons.filter((comparison) => comparison.state === state).length;
  const [ahead, behind, level] = ["ahead", "behind", "level"].map(count);
  const total = ahead + behind + level;
  if (total === 0) return h("p", { class: "verdict" }, "No experiment has figures of both Larder and a peer, so there is nothing to compare.");
  const close = allComparisons.filter((comparison) => comparison.overlap).length;
  return h("p", { class: "verdict", id: "verdict", "data-ahead": ahead, "data-behind": behind, "data-level": level },
    `In ${total} comparisons at equal durability, Larder is `, h("span", { class: "ahead" }, `ahead of every peer in ${ahead}`),
    " and ", h("span", { class: "behind" }, `behind in ${behind}`), level > 0 && `, level in ${level}`, ".",
    close > 0 && ` In ${close} the bands of the rounds overlap.`);
}

/** Wins and losses by durability class. */
function scoreboard() {
  const box = (durability) => {
    const of = allComparisons.filter((comparison) => comparison.durability === durability);
    const [ahead, behind] = ["ahead", "behind"].map((state) => of.filter((comparison) => comparison.state === state).length);
    return h("div", {}, h("h3", {}, className(durability)), h("p", {}, h("b", { class: ahead > 0 && "ahead" }, ahead), " ahead, ",
      h("b", { class: behind > 0 && "behind" }, behind), " behind"), h("p", {}, CLASS_MEANINGS[durability]));
  };
  return h("div", { class: "score" }, CLASSES.map(box));
}

function othersNote(others) {
  if (others.length === 0) return null;
  const pages = unique(others.map((comparison) => comparison.question.experiment));
  const links = pages.map((id) => [" ", h("a", { href: `#${id}` }, PAGE_NAMES[id] ?? id)]);
  return h("p", { class: "soft" }, `The other ${others.length} comparisons stand on the pages of their experiments:`, links, ".");
}

/** All runs whose answers were wrong. */
function voidSection() {
  const rows = (results.experiments ?? []).flatMap((experiment) => cellsOf(experiment.id).flatMap((cell) => cell.voids.map((point) =>
    h("tr", { "data-void-run": `${experiment.id}/${cell.case}/${cell.system.id}` }, h("th", { scope: "row" }, systemLabel(cell.system)),
      h("td", {}, className(cell.system.durability)),
      h("td", {}, [PAGE_NAMES[experiment.id] ?? experiment.id, caseName(cell.case), xText(experiment.id, cell.case, cell.x), `round ${point.round}`].filter(Boolean).join(", ")),
      h("td", { class: "void" }, point.void)))));
  if (rows.length === 0) return null;
  const heads = ["System", "Durability", "Run", "What was wrong"].map((text) => h("th", { scope: "col" }, text));
  return [h("h3", {}, "Void runs"), h("p", {}, "These runs gave wrong answers. Their figures count nowhere; charts show them as crosses."),
    tableOf(`${rows.length} void runs`, h("tr", {}, heads), rows, rows.length <= 12)];
}

/** The systems that did not run, with the commands that install them. */
function missingSection() {
  const missing = results.missing ?? [];
  const notRun = (results.experiments ?? []).flatMap((experiment) => (experiment.not_run ?? []).map((entry) => ({ experiment, ...entry })));
  if (missing.length + notRun.length === 0) return null;
  const row = (entry) => h("tr", { "data-missing": entry.id }, h("th", { scope: "row" }, entry.name ?? entry.id), h("td", {}, entry.why),
    h("td", {}, entry.install ? commandLine(entry.install) : "–"));
  const head = h("tr", {}, ["System", "Why", "Install"].map((text) => h("th", { scope: "col" }, text)));
  return [h("h3", {}, "Not run here"),
    missing.length > 0 && h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Not run here" },
      h("table", {}, h("thead", {}, head), h("tbody", {}, missing.map(row)))),
    notRun.length > 0 && tableOf("Systems left out of single experiments", h("tr", {}, ["System", "Experiment", "Why"].map((text) => h("th", { scope: "col" }, text))),
      notRun.map((entry) => h("tr", {}, h("th", { scope: "row" }, systemLabel(systemOf(entry.system))),
        h("td", {}, PAGE_NAMES[entry.experiment.id] ?? entry.experiment.id), h("td", {}, entry.why))))];
}

// ---------------------------------------------------------------------------------------------------------------
// Pages of the experiments

/** The page of an experiment: its question, its answer then, ours today, and its charts. */
function experimentPage(id) {
  const experiment = experimentOf(id);
  const article = published[id];
  const build = BUILDERS[id] ?? otherCases;
  const title = PAGE_NAMES[id] ?? experiment?.title ?? id;
  const empty = !experiment || (experiment.points ?? []).length === 0;
  return [
    h("h2", {}, title, article && h("small", {}, ` after \u201c${article.title}\u201d`)),
    thenAndNow(id, experiment, article, empty),
    empty ? id === "counter" && counterThenAndNow() : [compared(id), notRunNote(experiment), flagsNote(id), build(id)],
  ];
}

function thenAndNow(id, experiment, article, empty) {
  const when = article && [article.author, article.date ?? "undated in our copy"].filter(Boolean).join(", ");
  const then = article && h("div", {}, h("h3", {}, `Then: ${when}`), listOf(article.answer ?? []),
    h("p", { class: "conditions" }, `Their machine: ${article.machine}. Their method: ${article.method}.`),
    (article.notes ?? []).map((note) => h("p", { class: "conditions" }, note)));
  const now = h("div", {}, h("h3", {}, `Today: ${String(results.date ?? "").slice(0, 10)}`), empty ? h("p", {}, "Not run.") : listOf(todaysAnswers(id)),
    h("p", { class: "conditions" }, `Our machine: ${machineLine()}.`),
    experiment?.conditions?.length > 0 && h("p", { class: "conditions" }, `Our method: ${experiment.conditions.join(", ")}.`),
    !empty && h("p", { class: "conditions" }, "Repeat it: ", commandLine(repeatOf(experiment))));
  return h("div", { class: "then-now" }, h("p", { class: "question" }, article?.question ?? experiment?.question), then, now);
}

function machineLine() {
  const { cpu, cpus, memory, kernel } = results.machine ?? {};
  return [cpu, cpus && `${cpus} processors`, memory && bytes(memory), kernel].filter(Boolean).join(", ");
}

/** The headline comparisons as sentences. */
function todaysAnswers(id) {
  const sentence = ({ question, durability, x, larder, peer, advantage, state }) => {
    const { format } = metricOf(question.metric);
    const where = xText(question.experiment, question.case, x);
    const what = `${className(durability)}: ${question.ask}${where && `, ${where}`}`;
    if (state === "absent") return `${what}: ${systemLabel(peer.system)} ${format(peer.stat.median)}; Larder did not run.`;
    if (state === "alone") return `${what}: ${systemLabel(larder.system)} ${format(larder.stat.median)}; no peer ran.`;
    return h("span", {}, `${what}: ${systemLabel(larder.system)} ${format(larder.stat.median)}, ${systemLabel(peer.system)} ${format(peer.stat.median)}, `,
      h("b", { class: state }, `${times(advantage)} ${state === "level" ? "" : state}`), ".");
  };
  const list = comparisonsOf(id).filter((comparison) => comparison.question.headline).map(sentence);
  return [...list, ...(FACTS[id]?.() ?? [])];
}

/** Sentences about correctness, by experiment. */
const FACTS = {
  counter: () => totals("counter", "extra.missing_updates", "missed an update"),
  restart: () => totals("restart", "lost", "that acknowledge after fsync lost an acknowledged item", (system) => system.durability === "sync"),
  limits: () => totals("limits", "over_admitted", "admitted more than its budget"),
};

/** Says which systems have a figure above 0 that should be 0; void runs count. */
function totals(id, metric, words, wanted = () => true) {
  const cells = cellsOf(id).filter((cell) => wanted(cell.system));
  const worst = (system) => Math.max(...ofSystem(cells, system).flatMap((cell) => cell.points.map((point) => valueOf(point, metric) ?? 0)));
  const known = systemsIn(cells).filter((system) => ofSystem(cells, system).some((cell) => cell.points.some((point) => valueOf(point, metric) !== null)));
  if (known.length === 0) return [];
  const bad = known.filter((system) => worst(system) > 0);
  if (bad.length === 0) return [`None of ${known.length} systems ${words}.`];
  return [h("span", {}, `${bad.length} of ${known.length} systems ${words}: `, h("b", {}, bad.map((system) => `${systemLabel(system)} (up to ${whole(worst(system))})`).join(", ")), ".")];
}

function compared(id) {
  const list = comparisonsOf(id);
  return list.length > 0 && [h("h3", {}, "Larder and the best peer"), comparisonTable(list, "Comparisons of this experiment")];
}

function notRunNote(experiment) {
  const list = experiment.not_run ?? [];
  return list.length > 0 && h("p", { class: "soft" }, "Not part of this experiment: ",
    list.map((entry) => `${systemLabel(systemOf(entry.system))} (${entry.why})`).join("; "), ".");
}

/** Says what the marks on charts and in tables mean, if there are any. */
function flagsNote(id) {
  const cells = cellsOf(id);
  const marks = [
    cells.some((cell) => cell.bound) && "○ marks figures where the load generator was the limit: the server may be able to do more.",
    cells.some((cell) => cell.voids.length) && "Crosses mark void runs, whose answers were wrong.",
    cells.some((cell) => cell.system.stand_in) && standInText(cells),
  ];
  return marks.some(Boolean) && h("p", { class: "soft" }, marks.filter(Boolean).join(" "));
}

const standInText = (cells) => systemsIn(cells).filter((system) => system.stand_in)
  .map((system) => `${system.name} ${system.stand_in}.`).join(" ");

const axisControl = { name: "axis", label: "Axis", options: [["linear", "linear"], ["log", "logarithmic"]] };

/** Lines of a case against x, a panel per durability class. */
function seriesFigure(id, name, metric, more = {}) {
  const cells = cellsIn(id, name);
  const [label, format] = axisOf(id, name);
  const list = systemsIn(cells);
  const plots = ({ state, hidden }) => byClass(list).map(([durability, members]) => {
    const lines = members.filter((system) => !hidden.has(system.id)).map((system) => lineOf(system, ofSystem(cells, system), metric)).filter((line) => line.points.length > 0);
    const title = className(durability);
    if (lines.length === 0) return { title, text: "Nothing is selected." };
    return { kind: "line", title, unit: metricOf(metric).label, lines, format: metricOf(metric).format, log: state.axis === "log",
      x: { label, format }, xLog: more.xLog, everyX: more.everyX, height: 280 };
  });
  return new Figure({ id: `${id}-${name}`, title: more.title ?? capital(caseName(name)), notes: more.notes ?? [], controls: [more.log ? { ...axisControl, options: axisControl.options.toReversed() } : axisControl],
    legend: systemLegend(list), plots, columns: ["", "", "two", "three"][Math.min(3, byClass(list).length)], tables: more.tables ?? [seriesTable(id, name, metric)] }).node;
}

const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/** Bars of some cases, a panel each, grouped by family; a control chooses the figure. */
function barsFigure(id, names, metrics, more = {}) {
  const cells = (name) => cellsIn(id, name).filter((cell) => more.x === undefined || cell.x === more.x);
  const present = names.filter((name) => cells(name).length > 0);
  if (present.length === 0) return null;
  const all = present.flatMap(cells);
  const used = metrics.filter((metric) => all.some((cell) => cell.stat(metric)));
  const list = systemsIn(all);
  const options = used.map((metric) => [metric, metricOf(metric).label]);
  const plots = ({ state, hidden }) => present.map((name) => {
    const groups = more.groups ? more.groups(cells(name), state.metric, hidden) : familyGroups(cells(name), state.metric, hidden);
    const title = capital(caseName(name));
    if (groups.length === 0) return { title, text: "No figures." };
    const marks = (published[id]?.marks ?? []).filter((mark) => mark.case === name && mark.metric === state.metric);
    return { kind: "bars", title, unit: metricOf(state.metric).label, groups, format: metricOf(state.metric).format, marks };
  });
  return new Figure({ id: more.id ?? `${id}-bars`, title: more.title, notes: more.notes, controls: [{ name: "metric", label: "Show", options }],
    legend: systemLegend(list, more.swatches ?? "bar"), plots, columns: present.length > 2 && more.columns ? more.columns : present.length > 1 ? "two" : "", tables: more.tables ?? present.map((name) =>
      metricsTable(capital(caseName(name)), cells(name), [...used, ...LATENCIES.filter((metric) => !used.includes(metric)), ...COSTS, ...extrasIn(cells(name))])) }).node;
}

const BAR_NOTE = "Filled bars are RAM only, hatched bars async, hollow bars sync. Whiskers reach from the minimum to the maximum of the rounds.";

/** Charts of cases that no page knows: lines if they have several x, else bars. */
function otherCases(id, known = []) {
  return casesOf(id).filter((name) => !known.includes(name)).map((name) => {
    const cells = cellsIn(id, name);
    const metric = ["rate", "cpu_us", ...extrasIn(cells)].find((metric) => cells.some((cell) => cell.stat(metric)));
    if (!metric) return metricsTable(capital(caseName(name)), cells, ["rate"]);
    if (xsIn(cells).length > 1) return seriesFigure(id, name, metric);
    return barsFigure(id, [name], unique([metric, "p50_us", "p99_us", "p999_us", "cpu_us", ...extrasIn(cells)]), { id: `${id}-${name}`, title: capital(caseName(name)), notes: [BAR_NOTE] });
  });
}

// Counter

function counterPage(id) {
  const notes = { event: "The generator drives all connections from one event loop.", blocking: "As in the article: each thread has one connection and waits for each answer.", pipeline: "16 increments are in flight on each connection." };
  const known = ["blocking", "event", "pipeline"].filter((name) => casesOf(id).includes(name));
  const tables = (name) => [seriesTable(id, name, "rate"), seriesTable(id, name, "p99_us"), checksTable(id, name)];
  return [
    counterThenAndNow(),
    known.map((name) => seriesFigure(id, name, "rate", { everyX: true, notes: [notes[name], "Bands reach from the minimum to the maximum of the rounds. Each panel has an axis of its own."], tables: tables(name) })),
    otherCases(id, known),
  ];
}

/** Whether every increment was counted once. */
function checksTable(id, name) {
  const cells = cellsIn(id, name);
  return metricsTable(`Correctness and cost: ${caseName(name)}`, cells, ["rate", "extra.missing_updates", "extra.duplicates", ...LATENCIES, ...COSTS]);
}

/** The article's table over today's figures of the same stores. */
function counterThenAndNow() {
  const { x, columns } = published.counter.table;
  const name = ["blocking", "event"].find((name) => cellsIn("counter", name).length > 0);
  const cells = name ? cellsIn("counter", name) : [];
  const wanted = new Set(columns.flatMap((column) => column.today));
  const today = systemsIn(cells).filter((system) => isLarder(system) || wanted.has(system.id));
  const memcached = new Map(ofSystem(cells, { id: "memcached" }).map((cell) => [cell.x, cell.stat("rate")?.median]));
  const legend = [
    ...columns.map((column) => ({ key: `2015 ${column.name}`, label: column.label, group: "2015", swatch: () => lineSwatch(familyColour(column.family), DASHES.published, 1.25) })),
    ...today.map((system) => ({ key: system.id, label: system.name, group: "Today", swatch: () => lineSwatch(colourOf(system), DASHES[system.durability] ?? [], lineWidth(system)) })),
  ];
  const plots = ({ state, hidden }) => {
    const relative = state.unit === "relative";
    const past = columns.filter((column) => !hidden.has(`2015 ${column.name}`)).map((column) => ({
      label: `${column.label}, 2015`, colour: familyColour(column.family), dash: DASHES.published, width: 1.25, hollow: true,
      points: column.rate.map((rate, index) => ({ x: x[index], y: relative ? rate / columns[0].rate[index] : rate })),
    }));
    const scale = relative ? (value, at) => (memcached.get(at) ? value / memcached.get(at) : null) : undefined;
    const now = today.filter((system) => !hidden.has(system.id)).map((system) => lineOf(system, ofSystem(cells, system), "rate", scale));
    const lines = [...past, ...now].filter((line) => line.points.some((point) => point.y !== null));
    if (lines.length === 0) return [{ title: "", text: "Nothing is selected." }];
    return [{ kind: "line", title: relative ? "Rate ÷ memcached of the same machine" : "Increments per second", lines, log: state.axis === "log", format: relative ? times : perSecond,
      x: { label: "threads", format: whole }, everyX: true, height: 420 }];
  };
  const notes = ["Thin lines with dashes and dots are the article\u2019s table of 2015; the other lines are today\u2019s figures of the same stores and of Larder.",
    "The machines differ. So the chart divides each figure by that of memcached with as many threads on the same machine; \u201crequests per second\u201d shows the figures themselves."];
  return new Figure({ id: "counter-article", title: "Then and today: the article\u2019s seven stores", notes,
    controls: [{ name: "unit", label: "Show", options: [["relative", "÷ memcached"], ["absolute", "requests per second"]] }, { ...axisControl, options: axisControl.options.toReversed() }],
    legend, plots, tables: [publishedTable(), name && thenNowTable(cells)].filter(Boolean) }).node;
}

/** The article's table, as it was printed. */
function publishedTable() {
  const { x, columns } = published.counter.table;
  const head = h("tr", {}, h("th", { scope: "col" }, "Store"), x.map((threads) => h("th", { class: "n", scope: "col" }, threads)));
  const rows = columns.map((column) => h("tr", {}, h("th", { scope: "row" }, column.label), column.rate.map((rate, index) =>
    h("td", { class: "n", "data-published": column.name, "data-x": x[index], "data-value": rate, title: rate }, perSecond(rate)))));
  return tableOf("published in 2015, requests per second by threads", head, rows);
}

/** Each store relative to memcached, then and today. */
function thenNowTable(cells) {
  const { x, columns } = published.counter.table;
  const at = [x[0], x[x.length - 1]];
  const relative = (id, threads) => {
    const rate = (id) => ofSystem(cells, { id }).find((cell) => cell.x === threads)?.stat("rate")?.median ?? null;
    return rate(id) !== null && rate("memcached") ? rate(id) / rate("memcached") : null;
  };
  const past = (column, threads) => column.rate[x.indexOf(threads)] / columns[0].rate[x.indexOf(threads)];
  const row = (label, then, now) => h("tr", {}, h("th", { scope: "row" }, label), at.map((threads) => h("td", { class: "n" }, times(then(threads)))), at.map((threads) => h("td", { class: "n" }, times(now(threads)))));
  const known = columns.flatMap((column) => column.today.filter((id) => systems.has(id)).map((id) => row(`${column.label}: ${systemOf(id).name}`, (threads) => past(column, threads), (threads) => relative(id, threads))));
  const mine = [...systems.values()].filter(isLarder).map((system) => row(system.name, () => null, (threads) => relative(system.id, threads)));
  const heads = ["2015", "today"].flatMap((when) => at.map((threads) => h("th", { class: "n", scope: "col" }, `${when}, ${threads}`)));
  return tableOf(`rate ÷ memcached, 2015 and today, with ${at.join(" and ")} threads`, h("tr", {}, h("th", { scope: "col" }, "Store"), heads), [...known, ...mine]);
}

// Persistence

const MIXES = ["insert", "retrieve", "mixed-1-9", "mixed-3-7", "mixed-5-5"];

function persistencePage(id) {
  const metrics = ["rate", "p50_us", "p90_us", "p95_us", "p99_us"];
  const present = MIXES.filter((name) => casesOf(id).includes(name));
  const kept = { label: "÷ same system, RAM only", cell: (cell) => keptCell(cell) };
  const tables = present.map((name) => metricsTable(capital(caseName(name)), cellsIn(id, name), [...metrics, "p999_us", "max_us", ...COSTS, ...extrasIn(cellsIn(id, name))], [kept]));
  return [
    barsFigure(id, MIXES, metrics, { id: "persistence-mixes", title: "What durability costs, by mix", notes: [BAR_NOTE, "The dashed line is the article\u2019s figure from another machine: 8 vCPUs and a second machine for the load."], tables }),
    timelines(id), otherCases(id, [...MIXES, "timeline"]),
  ];
}

/** The rate as a share of the rate that the best system of the same family has without durability. */
function keptCell(cell) {
  const family = cellsIn(cell.experiment, cell.case).filter((other) => other.system.family === cell.system.family && other.system.durability === "none" && other.x === cell.x);
  const [mine, base] = [cell.stat("rate")?.median, bestOf(family, "rate", "none")];
  if (mine === undefined || !base || cell.system.durability === "none") return h("td", { class: "n soft" }, "–");
  return h("td", { class: "n", "data-kept": mine / base }, times(mine / base));
}

/** A second is part of a dip if its rate is below this share of the median. */
const DIP = 0.7;

/** Returns the dips of a time line, those that cost most requests first. */
function dipsOf(seconds) {
  const median = medianOf(seconds.map((second) => second.rate));
  const dips = [];
  seconds.forEach(({ rate }, index) => {
    if (rate >= DIP * median) return;
    const last = dips.at(-1);
    const dip = last && index - last.to <= 2 ? last : { from: index, to: index, lost: 0, lowest: rate };
    if (dip !== last) dips.push(dip);
    Object.assign(dip, { to: index + 1, lost: dip.lost + median - rate, lowest: Math.min(dip.lowest, rate) });
  });
  return dips.map((dip) => ({ ...dip, share: dip.lowest / median })).sort((a, b) => b.lost - a.lost);
}

const marksOf = (point) => (point.marks ?? []).map((mark) => ({ from: mark.from, to: mark.to, name: mark.name }));

function timelines(id) {
  const runs = cellsIn(id, "timeline").flatMap((cell) => cell.points.filter((point) => point.seconds?.length).map((point) => ({ cell, point, key: `${cell.system.id} ${point.round}` })));
  if (runs.length === 0) return null;
  const first = runs.filter((run) => run.point.round === runs[0].point.round);
  const label = ({ cell, point }) => `${systemLabel(cell.system)}${first.length < runs.length ? `, round ${point.round}` : ""}`;
  return [timelineOverview(first), timelineDetail(runs, label), dipTable(runs, label)];
}

/** The rates of all systems, one above the other. */
function timelineOverview(runs) {
  const plots = ({ state, hidden }) => byClass(runs.map((run) => run.cell.system)).map(([durability, members]) => {
    const lines = runs.filter((run) => members.includes(run.cell.system) && !hidden.has(run.cell.system.id)).map(({ cell, point }) => ({
      label: systemLabel(cell.system), colour: colourOf(cell.system), dash: [], width: isLarder(cell.system) ? 2 : 1.25,
      points: point.seconds.map((second, index) => ({ x: index + 1, y: second.rate })) }));
    if (lines.length === 0) return { title: className(durability), text: "Nothing is selected." };
    return { kind: "line", title: className(durability), unit: "requests per second", lines, log: state.axis === "log", format: perSecond, x: { label: "seconds", format: whole }, height: 220 };
  });
  return new Figure({ id: "persistence-timeline", title: "Through minutes of writing", notes: ["1:9 writes to reads, second by second, first round. Drag to zoom, double-click to return."],
    controls: [axisControl], legend: systemLegend(runs.map((run) => run.cell.system)), plots }).node;
}

/** One system in detail: rate, p99, processor and disk over the same seconds. */
function timelineDetail(runs, label) {
  const mine = runs.find((run) => isLarder(run.cell.system) && run.cell.system.durability === "async") ?? runs[0];
  const options = [mine, ...runs.filter((run) => run !== mine)].map((run) => [run.key, label(run)]);
  const plots = ({ state }) => {
    const { cell, point } = runs.find((run) => run.key === state.run);
    const shades = [...dipsOf(point.seconds).slice(0, 3), ...marksOf(point)];
    const panel = (title, format, parts, more = {}) => {
      const used = parts.filter(([, field]) => point.seconds.some((second) => Number.isFinite(second[field])));
      const lines = used.map(([name, field], index) => ({ label: name, colour: index ? "var(--soft)" : colourOf(cell.system), dash: index ? [4, 3] : [], width: 1.5,
        points: point.seconds.map((second, at) => ({ x: at + 1, y: more.log && !(second[field] > 0) ? null : second[field] ?? null })) }));
      if (lines.length === 0) return null;
      const readout = (at) => `second ${at + 1}: ${lines.map((line) => `${used.length > 1 ? `${line.label} ` : ""}${format(line.points[at]?.y ?? null)}`).join(", ")}`;
      return { kind: "line", title, unit: used.length > 1 ? used.map(([name], index) => name + (index ? " (dashed)" : "")).join(", ") : "", lines, format, shades, readout,
        sync: "timeline", x: { label: null, format: whole }, height: 130, ...more };
    };
    return [
      panel("Requests per second", perSecond, [["rate", "rate"]]),
      panel("p99 latency", micros, [["p99", "p99_us"], ["maximum", "max_us"]], { log: true }),
      panel("Processors busy", count, [["user", "cpu_user"], ["system", "cpu_system"]]),
      panel("Disk", bytesPerSecond, [["written", "written"], ["read", "read"]]),
    ].filter(Boolean).map((plot, index, all) => (index < all.length - 1 ? plot : { ...plot, x: { label: "seconds", format: whole }, height: 146 }));
  };
  return new Figure({ id: "persistence-detail", title: "One system, second by second",
    notes: [`The three dips that cost most requests are shaded, and checkpoints where the run has recorded them. A dip is a time below ${percent(DIP)} of the median rate.`],
    controls: [{ name: "run", label: "System", options, select: true }], plots }).node;
}

function dipTable(runs, label) {
  const metrics = ["Median", "Worst second", "Worst ÷ median", "Seconds in dips", "Longest dip", "Worst p99", "Written"];
  const row = (run) => {
    const { seconds } = run.point;
    const rates = seconds.map((second) => second.rate);
    const dips = dipsOf(seconds);
    const longest = Math.max(0, ...dips.map((dip) => dip.to - dip.from));
    const figures = [perSecond(medianOf(rates)), perSecond(Math.min(...rates)), percent(valueOf(run.point, "steadiness")), whole(sum(dips.map((dip) => dip.to - dip.from))),
      `${longest} s`, micros(Math.max(...seconds.map((second) => second.p99_us ?? 0))), bytes(sum(seconds.map((second) => second.written ?? 0)))];
    const row = h("tr", { class: rowClass(run.cell.system), "data-steadiness": valueOf(run.point, "steadiness"), "data-run": run.key }, h("th", { scope: "row" }, label(run)),
      figures.map((text) => h("td", { class: "n" }, text)));
    return run.point.void ? [row, h("tr", { class: "reason" }, h("td", { colspan: metrics.length + 1 }, `void: ${run.point.void}`))] : [row];
  };
  const rows = classRows(unique(runs.map((run) => run.cell.system)), metrics.length + 1, (system) => runs.filter((run) => run.cell.system === system).flatMap(row));
  const cells = cellsIn("persistence", "timeline");
  return [tableOf("dips by system", h("tr", {}, h("th", { scope: "col" }, "System"), metrics.map((text) => h("th", { class: "n", scope: "col" }, text))), rows),
    metricsTable("averages of the time line", cells, ["rate", ...LATENCIES, ...COSTS, ...extrasIn(cells)])];
}

// Cliff

const LADDER = [["p50_us", 0.5], ["p90_us", 0.9], ["p95_us", 0.95], ["p99_us", 0.99], ["p999_us", 0.999]];

function cliffPage(id) {
  return [ladder(id), everyLadder(id), clouds(id), otherCases(id, ["ladder", "cloud"])];
}

/** Systems against each other; the plot beside it shows the whole distribution at the rate under the pointer. */
function ladder(id) {
  const cells = cellsIn(id, "ladder");
  if (cells.length === 0) return null;
  const list = systemsIn(cells);
  const xs = xsIn(cells);
  const [label, format] = axisOf(id, "ladder");
  const metrics = [...LADDER.map(([metric]) => metric), "mean_us", "max_us"].filter((metric) => cells.some((cell) => cell.stat(metric)));
  const first = metrics.includes("p99_us") ? "p99_us" : metrics[0];
  let rate = xs[(xs.length - 1) >> 1];
  const selected = h("select", { "data-control": "rate", change: () => choose(Number(selected.value)) }, xs.map((x) => h("option", { value: x }, perSecond(x))));
  selected.value = String(rate);
  const below = h("div", {});
  const plots = ({ state, hidden }) => {
    const lines = list.filter((system) => !hidden.has(system.id)).map((system) => lineOf(system, ofSystem(cells, system), state.metric)).filter((line) => line.points.length > 0);
    if (lines.length === 0) return [{ title: "", text: "Nothing is selected." }];
    const article = published.cliff.marks.filter((mark) => mark.metric === state.metric);
    const marks = article.length > 0 ? article : [{ value: 1000, label: "1 ms" }];
    return [{ kind: "line", title: `${metricOf(state.metric).label} latency`, unit: "hover a rate to see its distribution", lines, log: true, format: micros, x: { label, format }, marks, height: 360,
      onHover: (x) => x !== undefined && x !== rate && choose(x) }, distributionPlot(cells, rate, hidden)];
  };
  const figure = new Figure({ id: "cliff-ladder", title: "Latency against offered rate", notes: ["Open loop: latency counts from the moment at which a request was due. Levels of 1 ms are dashed: the article\u2019s limit, for the average."],
    controls: [{ name: "metric", label: "Percentile", options: [first, ...metrics.filter((metric) => metric !== first)].map((metric) => [metric, metricOf(metric).label]) }],
    legend: systemLegend(list), plots, columns: "wide-left", tables: [h("div", { class: "controls" }, h("label", {}, "Rate of the distribution", selected)), below,
      metricsTable("latency at every offered rate", cells, ["p99_us", "rate", ...LATENCIES.filter((metric) => metric !== "p99_us"), ...COSTS, ...extrasIn(cells)])] });
  function choose(x) {
    rate = x;
    selected.value = String(x);
    below.replaceChildren(distributionTable(cells, rate));
    if (figure.charts.length > 1) figure.replace(1, distributionPlot(cells, rate, figure.hidden));
  }
  below.replaceChildren(distributionTable(cells, rate));
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
const ninesText = (value) => ["0", "90", "99"][value] ?? `99.${"9".repeat(Math.round(value) - 2)}`;

/** Returns the distribution as a line: latency against the number of nines, up to the last sample. */
function distributionLine(cell) {
  const histogram = histogramOf(cell);
  const total = sum(histogram.map(([, number]) => number));
  let below = 0;
  const points = histogram.map(([latency, number]) => {
    const point = { x: Math.round(nines(below / total) * 1000) / 1000, y: latency };
    below += number;
    return point;
  });
  if (points.length) points.push({ x: Math.round(Math.log10(total) * 1000) / 1000, y: points.at(-1).y });
  return { label: systemLabel(cell.system), colour: colourOf(cell.system), dash: DASHES[cell.system.durability] ?? [], width: lineWidth(cell.system), points };
}

function distributionPlot(cells, rate, hidden) {
  const at = cells.filter((cell) => cell.x === rate && !hidden.has(cell.system.id));
  const lines = at.map(distributionLine).filter((line) => line.points.length > 0);
  const title = `Distribution at ${perSecond(rate)}`;
  if (lines.length === 0) return { title, text: "No histogram was recorded." };
  const most = Math.max(...lines.flatMap((line) => line.points.map((point) => point.x)));
  const atNines = (line, value) => line.points.findLast((point) => point.x <= value)?.y ?? null;
  const grid = Array.from({ length: Math.ceil(most * 8) + 1 }, (_, index) => index / 8);
  const stepped = lines.map((line) => ({ ...line, points: grid.filter((x) => x <= line.points.at(-1).x + 0.125).map((x) => ({ x, y: atNines(line, x) })) }));
  const shareText = (value) => (Number.isInteger(value) ? ninesText(value) : ((1 - 10 ** -value) * 100).toPrecision(Math.max(3, Math.ceil(value) + 2)));
  return { kind: "line", title, unit: "latency", lines: stepped, log: true, format: micros, x: { label: "percentile", format: shareText, incrs: [1] }, height: 360, xRange: [0, Math.ceil(most * 4) / 4] };
}

/** The distribution at one rate as text. */
function distributionTable(cells, rate) {
  const at = cells.filter((cell) => cell.x === rate);
  const table = metricsTable(`distribution at ${perSecond(rate)} offered`, at, ["p99_us", "rate", ...LATENCIES.filter((metric) => metric !== "p99_us")]);
  table.id = "distribution";
  table.dataset.rate = rate;
  return table;
}

/** A panel per system with all its percentiles, all with the same axes, as in the article. */
function everyLadder(id) {
  const cells = cellsIn(id, "ladder");
  if (cells.length === 0) return null;
  const all = cells.flatMap((cell) => LADDER.map(([metric]) => cell.stat(metric)?.median ?? null));
  const range = rangeOf(all, true);
  const [label, format] = axisOf(id, "ladder");
  const xs = xsIn(cells);
  const dashes = [[], [10, 3], [6, 3], [4, 3], [1.5, 2.5]];
  const plots = ({ hidden }) => systemsIn(cells).filter((system) => !hidden.has(system.id)).map((system) => {
    const lines = LADDER.map(([metric], index) => ({ ...lineOf(system, ofSystem(cells, system), metric), label: metricOf(metric).label, dash: dashes[index], width: 1.5 })).filter((line) => line.points.length > 0);
    const title = systemLabel(system);
    if (lines.length === 0) return { title, text: "No figures." };
    return { kind: "line", title, unit: className(system.durability), lines, log: true, range, format: micros, x: { label, format }, xRange: padded(false)(null, xs[0], xs.at(-1)), height: 200 };
  });
  return new Figure({ id: "cliff-systems", title: "Each system\u2019s ladder", notes: ["p50 (solid), p90, p95, p99 and p99.9 (dotted). All panels have the same axes."],
    legend: systemLegend(systemsIn(cells)), plots, columns: "three" }).node;
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
    decodedSamples.set(point, { t: numbersOf(point.samples.t_us, Uint32Array), latency: numbersOf(point.samples.latency_us, Float32Array) });
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
  const runs = cellsIn(id, "cloud").flatMap((cell) => cell.points.filter((point) => point.samples).map((point) => ({ cell, point, facts: cloudFacts(point) })));
  if (runs.length === 0) return null;
  const range = rangeOf([...runs.flatMap(({ facts }) => [facts.min, facts.max]), 1000], true);
  const plots = ({ hidden }) => runs.filter((run) => !hidden.has(run.cell.system.id)).map(({ cell, point, facts }) => ({
    kind: "cloud", title: systemLabel(cell.system), unit: [className(cell.system.durability), cell.x !== null && perSecond(cell.x), `${whole(facts.samples)} samples`, point.void && `VOID: ${point.void}`].filter(Boolean).join(" · "),
    samples: samplesOf(point), colour: colourOf(cell.system), range, seconds: facts.seconds, marks: [{ value: 1000, label: "1 ms" }], height: 260 }));
  const row = ({ cell, point, facts }) => h("tr", { class: rowClass(cell.system), "data-cloud": cell.system.id, "data-x": cell.x ?? "", "data-round": point.round, "data-samples": facts.samples, "data-max": facts.max },
    systemHead(cell.system), h("td", {}, className(cell.system.durability)), [perSecond(cell.x), whole(facts.samples), whole(facts.slow), micros(facts.min), micros(facts.max)].map((text) => h("td", { class: "n" }, text)),
    h("td", { class: "void" }, point.void));
  const heads = ["Offered", "Samples", "Above 1 ms", "Minimum", "Maximum"].map((text) => h("th", { class: "n", scope: "col" }, text));
  const cells = cellsIn(id, "cloud");
  return new Figure({ id: "cliff-cloud", title: "Every sample", notes: [`No sample is left out. Above ${whole(ONE_BY_ONE)} samples, the shade shows how many fall on the same place; a single one stays visible. All panels have the same latency axis.`],
    legend: systemLegend(systemsIn(runs.map((run) => run.cell))), plots, columns: "two", tables: [
      tableOf("samples", h("tr", {}, h("th", { scope: "col" }, "System"), h("th", { scope: "col" }, "Durability"), heads, h("th", { scope: "col" }, "Void")), runs.map(row), true),
      metricsTable("averages of the clouds", cells, ["p99_us", "rate", ...LATENCIES.filter((metric) => metric !== "p99_us"), ...COSTS, ...extrasIn(cells)])] }).node;
}

// Converge

function convergePage(id) {
  const reads = ["read-ram", "read-disk-1k", "read-disk-8k"];
  const mixes = ["mixed-read", "overwrite"];
  const notes = ["Pale bars have one request in flight, full bars 16 (pipelined). Whiskers reach from the minimum to the maximum of the rounds.", "Dashed lines are the article\u2019s figures, from a machine with a network of 25 Gbit/s."];
  const metrics = ["rate", "p50_us", "p99_us", "p999_us", "p99999_us", "max_us"];
  return [fit(id),
    barsFigure(id, reads, metrics, { id: "converge-reads", title: "Reads, single and pipelined", notes, groups: flightGroups, swatches: "plain", columns: "two tall-left" }),
    barsFigure(id, mixes, metrics, { id: "converge-mixes", title: "Reads with writes, and overwrites", notes: notes.slice(0, 1), groups: flightGroups, swatches: "plain" }),
    otherCases(id, ["fit", ...reads, ...mixes])];
}

/** A group per system, a bar per number of requests in flight. */
function flightGroups(cells, metric, hidden) {
  const shown = cells.filter((cell) => !hidden.has(cell.system.id) && (cell.stat(metric) || cell.voids.length));
  return systemsIn(shown).map((system) => ({ label: system.name, bars: ofSystem(shown, system).map((cell) => ({
    ...barOf(cell, metric, `${systemLabel(system)}, ${className(system.durability)}${cell.x === null ? "" : `, ${cell.x} in flight`}`), colour: cell.x > 1 ? colourOf(system) : paler(colourOf(system)), fill: "solid" })) }));
}

const paler = (colour) => `color-mix(in srgb, ${colour}, var(--paper) 55%)`;

/** Items before the first eviction, as they are or against memcached; and bytes per item. */
function fit(id) {
  const cells = cellsIn(id, "fit");
  if (cells.length === 0) return null;
  const last = xsIn(cells).at(-1) ?? null;
  const at = cells.filter((cell) => cell.x === last);
  const base = ofSystem(at, { id: "memcached" })[0]?.stat("extra.items")?.median ?? null;
  const group = (cell, bar) => ({ label: cell.system.name, bars: [bar] });
  const solid = (cell, metric, scale) => {
    const bar = barOf(cell, metric);
    return { ...bar, value: bar.value === null ? null : bar.value * scale, lo: bar.lo === undefined ? undefined : bar.lo * scale, hi: bar.hi === undefined ? undefined : bar.hi * scale, cell: null };
  };
  const article = published.converge.fit;
  const past = () => article.map((entry) => {
    const [low, high] = entry.items.map((items) => items / article[0].items[0]);
    return { label: `${entry.label} (article)`, bars: [{ label: `${entry.label}, published: ${entry.items.map((items) => `${items / 1e6} M`).filter((text, index, all) => all.indexOf(text) === index).join(" to ")} items in 114 GB`,
      colour: familyColour(entry.family), fill: "hollow", value: (low + high) / 2, lo: low, hi: high, text: low === high ? times(low) : `${times(low)} – ${times(high)}` }] };
  });
  const plots = ({ state, hidden }) => {
    const shown = at.filter((cell) => !hidden.has(cell.system.id));
    const relative = state.unit === "relative" && base;
    const items = [...shown.map((cell) => group(cell, solid(cell, "extra.items", relative ? 1 / base : 1))), ...(relative ? past() : [])];
    const sizes = shown.filter((cell) => cell.stat("extra.bytes_per_item")).map((cell) => group(cell, solid(cell, "extra.bytes_per_item", 1)));
    if (shown.length === 0) return [{ title: "", text: "Nothing is selected." }];
    return [{ kind: "bars", title: relative ? "Items ÷ memcached" : "Items", unit: `before the first eviction, ${xText(id, "fit", last)}`, groups: items, format: relative ? times : count },
      sizes.length > 0 && { kind: "bars", title: "Bytes of memory per item", groups: sizes, format: plainBytes }].filter(Boolean);
  };
  const notes = ["Keys of 12 bytes, values of 1000 bytes.", "The article\u2019s memory was 114 GB; ours is smaller. So its figures are shown against its own memcached: 101 million items there, 60 to 61 million in ScyllaDB. Its bars are hollow."];
  const options = [["relative", "÷ memcached"], ["absolute", "items"]];
  const several = xsIn(cells).length > 1 && seriesFigure(id, "fit", "extra.items", { title: "Items by memory", tables: [seriesTable(id, "fit", "extra.items")] });
  return [new Figure({ id: "converge-fit", title: "Items that fit before the first eviction", notes, controls: [{ name: "unit", label: "Show", options: base ? options : options.slice(1) }], legend: systemLegend(systemsIn(at), "bar"), plots, columns: "two",
    tables: [metricsTable("items before the first eviction", cells, ["extra.items", ...extrasIn(cells).filter((metric) => metric !== "extra.items"), "rate", ...LATENCIES, ...COSTS])] }).node, several];
}

// Hit ratio, restart, limits, cost

function hitratioPage(id) {
  return casesOf(id).map((name) => {
    const cells = cellsIn(id, name);
    return xsIn(cells).length > 0
      ? seriesFigure(id, name, "hit_ratio", { title: `Hit ratio: ${caseName(name)}`, xLog: true, everyX: true, tables: [seriesTable(id, name, "hit_ratio"),
        metricsTable(`memory and rate: ${caseName(name)}`, cells, ["hit_ratio", "rss", "rate", ...LATENCIES, ...COSTS, ...extrasIn(cells)])] })
      : barsFigure(id, [name], ["hit_ratio"], { id: `${id}-${name}`, title: `Hit ratio: ${caseName(name)}` });
  });
}

function restartPage(id) {
  return casesOf(id).map((name) => {
    const cells = cellsIn(id, name);
    const metrics = ["extra.ready_ms", "extra.acknowledged", "extra.survived", "lost", "extra.first_minute_p99_us"];
    const more = extrasIn(cells).filter((metric) => !metrics.includes(metric));
    const title = casesOf(id).length > 1 ? capital(caseName(name)) : "Time until ready after kill -9";
    const tables = [metricsTable("what survived, and how soon", cells, [...metrics, ...more, "rate", ...LATENCIES, ...COSTS])];
    const drawn = xsIn(cells).length > 1 ? seriesFigure(id, name, "extra.ready_ms", { title, xLog: true, log: true, tables }) : barsFigure(id, [name], ["extra.ready_ms", "extra.first_minute_p99_us"], { id: `${id}-${name}`, title, tables });
    const first = xsIn(cells).length > 1 && cells.some((cell) => cell.stat("extra.first_minute_p99_us"));
    return [drawn, first && seriesFigure(id, name, "extra.first_minute_p99_us", { title: "p99 of the first minute", xLog: true, log: true, tables: [seriesTable(id, name, "extra.first_minute_p99_us")] })];
  });
}

function limitsPage(id) {
  const tables = casesOf(id).map((name) => metricsTable(capital(caseName(name)), cellsIn(id, name), ["rate", "extra.admitted", "extra.budget", "over_admitted", ...LATENCIES, ...COSTS,
    ...extrasIn(cellsIn(id, name)).filter((metric) => !["extra.admitted", "extra.budget"].includes(metric))]));
  return barsFigure(id, casesOf(id), ["rate", "p50_us", "p99_us", "p999_us", "over_admitted"], { id: "limits-bars", title: "Decisions per second, by algorithm", notes: [BAR_NOTE, "A limiter must never admit more than its budget: over-admitted must be 0."], tables });
}

function costPage(id) {
  return barsFigure(id, casesOf(id), ["cpu_us", "per_core_second", "extra.ram_bytes_per_item", "extra.written_per_byte"], { id: "cost-bars", title: "What a request and an item cost", notes: [BAR_NOTE] });
}

const BUILDERS = { counter: counterPage, persistence: persistencePage, cliff: cliffPage, converge: convergePage, hitratio: hitratioPage, restart: restartPage,
  limits: limitsPage, cost: costPage };

// ---------------------------------------------------------------------------------------------------------------
// Environment

function environmentPage() {
  const { machine = {}, disk = {}, larder = {} } = results;
  const facts = [
    ["Date", results.date], ["Larder", [larder.version, larder.revision].filter(Boolean).join(", revision ")], ["Scale", results.scale],
    ["Processor", machine.cpu], ["Processors", machine.cpus], ["Memory", machine.memory && bytes(machine.memory)], ["Kernel", machine.kernel],
    ["Disk", [disk.directory, disk.filesystem].filter(Boolean).join(", ")], ["fsync of this disk", disk.fsync_us_p50 !== undefined && `p50 ${micros(disk.fsync_us_p50)}, p99 ${micros(disk.fsync_us_p99 ?? null)}`],
    ["Command", commandLine(results.command ?? [])],
  ];
  const list = facts.filter(([, value]) => value).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]);
  return [h("h2", {}, "Environment"), h("dl", {}, list), h("p", {}, "The servers and the load generator share the processors of this machine, unless a page says otherwise."),
    h("h3", {}, "Systems, versions and settings"), systemsTable(), missingSection(), h("h3", {}, "Conditions"), conditionsTable(),
    h("h3", {}, "Charts"), h("p", {}, "Drawn by uPlot, © Leon Sorokin, MIT licence. Its text stands in this file\u2019s source.")];
}

function systemsTable() {
  const row = (system) => h("tr", { class: rowClass(system), "data-system-row": system.id }, h("th", { scope: "row" }, system.name, system.stand_in && h("small", {}, ` ${system.stand_in}`)),
    h("td", {}, system.version), h("td", {}, (system.settings ?? []).map((line) => h("code", {}, line))));
  const head = h("tr", {}, ["System", "Version", "Settings"].map((text) => h("th", { scope: "col" }, text)));
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Systems" }, h("table", {}, h("thead", {}, head), h("tbody", {}, classRows([...systems.values()], 3, row))));
}

function conditionsTable() {
  const rows = (results.experiments ?? []).map((experiment) => h("tr", {}, h("th", { scope: "row" }, PAGE_NAMES[experiment.id] ?? experiment.title), h("td", {}, (experiment.conditions ?? []).join(", "))));
  return h("table", {}, h("tbody", {}, rows));
}

// ---------------------------------------------------------------------------------------------------------------
// The page: navigation, themes, paper

const root = document.documentElement;

/** The pages in order: id and name. */
function pageList() {
  const ids = (results.experiments ?? []).map((experiment) => experiment.id);
  const known = Object.keys(PAGE_NAMES).filter((id) => ids.includes(id) || ARTICLES.includes(id));
  const others = ids.filter((id) => !known.includes(id));
  const experiments = [...known, ...others].map((id) => [id, PAGE_NAMES[id] ?? experimentOf(id).title ?? id]);
  return [["summary", "Summary"], ...experiments, ["environment", "Environment"]];
}

/** Builds a page. An error in one page leaves the others readable. */
function section(id) {
  const build = { summary: summaryPage, environment: environmentPage }[id] ?? (() => experimentPage(id));
  const node = h("section", { id: `page-${id}`, "data-page": id, hidden: true });
  try {
    node.append(h("div", {}, build()));
  } catch (error) {
    console.error(error);
    node.append(h("p", { class: "banner" }, `This page could not be drawn: ${error.message}. The JSON has its figures.`));
  }
  return node;
}

/** Shows the page that the address names. */
function route() {
  const wanted = location.hash.slice(1);
  const pages = [...document.querySelectorAll("main > section")];
  const page = pages.find((page) => page.dataset.page === wanted) ?? pages[0];
  const moved = page.hidden;
  for (const other of pages) other.hidden = other !== page;
  for (const link of document.querySelectorAll("nav.pages a")) {
    if (link.hash === `#${page.dataset.page}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  drawVisible();
  if (moved && wanted) scrollTo(0, 0);
}

/** Draws the figures of the page that is shown. Those of hidden pages have no width. */
function drawVisible() {
  for (const figure of figures) figure.fit();
}

function redrawInTheme() {
  resolvedColours.clear();
  for (const figure of figures) figure.draw();
}

/** Width of the charts on paper, in pixels. */
const PAPER = 680;

/** Draws every page for paper: light, at a fixed width, with open tables. */
function beforePrint() {
  root.classList.add("printing");
  resolvedColours.clear();
  for (const page of document.querySelectorAll("main > section")) page.hidden = false;
  for (const details of document.querySelectorAll("details:not([open])")) {
    details.open = true;
    details.dataset.closed = "";
  }
  for (const figure of figures) {
    const several = figure.spec.columns === "two";
    figure.grid.style.width = `${PAPER}px`;
    figure.grid.style.gridTemplateColumns = several ? "1fr 1fr" : "1fr";
    figure.draw();
  }
}

function afterPrint() {
  root.classList.remove("printing");
  resolvedColours.clear();
  for (const details of document.querySelectorAll("details[data-closed]")) {
    details.open = false;
    delete details.dataset.closed;
  }
  for (const figure of figures) {
    figure.grid.style.width = "";
    figure.grid.style.gridTemplateColumns = "";
  }
  route();
}

function facts() {
  const { larder = {} } = results;
  const texts = [String(results.date ?? "").slice(0, 10), results.scale && `scale ${results.scale}`, [larder.version && `Larder ${larder.version}`, larder.revision].filter(Boolean).join(" "), machineLine(),
    results.disk?.fsync_us_p50 !== undefined && `fsync p50 ${micros(results.disk.fsync_us_p50)}`];
  return h("p", { class: "facts" }, texts.filter(Boolean).map((text) => h("span", {}, text)), download());
}

/** A link that saves the JSON of this page. */
function download() {
  const text = document.getElementById("results").textContent;
  const name = `larder-lab-${String(results.date ?? "results").slice(0, 10)}.json`;
  const link = h("a", { id: "download", href: "#", download: name }, "Download the JSON");
  link.addEventListener("click", () => {
    if (!link.href.startsWith("blob:")) link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  });
  return link;
}

function start() {
  const pages = pageList();
  const links = pages.map(([id, name]) => h("li", {}, h("a", { href: `#${id}` }, name)));
  document.body.append(
    h("a", { class: "skip", href: "#", click: (event) => { event.preventDefault(); document.querySelector("main").focus(); } }, "Skip to the results"),
    h("header", {}, h("h1", {}, "Larder and its peers, measured"), facts()),
    h("nav", { class: "pages", "aria-label": "Pages" }, h("ul", {}, links)),
    h("main", { tabindex: -1 }, pages.map(([id]) => section(id))),
    h("footer", {}, "Made by ", h("code", {}, "larder bench"), ". This file needs no network. Figures are medians of rounds, with the minimum and the maximum below."),
  );
  addEventListener("hashchange", route);
  addEventListener("beforeprint", beforePrint);
  addEventListener("afterprint", afterPrint);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawInTheme);
  route();
}

start();
