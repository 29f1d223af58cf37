// Part of the report's script: the results, and the cells, medians and derived figures that are read from them.
//
// All parts share one scope; mod.rs has their order. Text from the results reaches the page only as text nodes and
// attributes, never as HTML.

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
 * @typedef {{median: number, min: number, max: number, n: number}} Stat  Over the rounds that are not void; that of
 *   `wrongStat` is over the void ones.
 */

const readBlock = (id) => JSON.parse(document.getElementById(id).textContent);
const results = readBlock("results");
const published = readBlock("published");

/** Durability classes, in the order of the report. */
const CLASSES = ["none", "async", "sync"];
const CLASS_NAMES = { none: "Volatile", async: "Async", sync: "Sync" };
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

/** Systems without a server, measured for comparison. They do not count as peers of Larder. */
const CONTROLS = ["no-throttle", "memory-store"];
const isControl = (system) => CONTROLS.includes(system.id);

/** True for a cache that keeps values on a device because they do not fit into memory. */
const usesFlash = (system) => /flash|tiers|extstore/.test(system.id);
const usesTwoDevices = (system) => usesFlash(system) && /-2$|tiers/.test(system.id);
const isDatabase = (system) => /postgres|mariadb|cassandra|scylla/i.test(system.family);

/** The cases of `converge` whose values do not fit into memory. */
const DISK_CASES = ["read-disk-1k", "read-disk-8k", "mixed-read", "overwrite"];

/**
 * Returns the group in which a system is compared in a case. Systems of different groups are not
 * compared. The group is null if the system is compared with no other.
 */
function groupOf(id, name, system) {
  if (isControl(system)) return null;
  if (id === "cliff") {
    if (!usesFlash(system)) return "values in RAM";
    return `values on flash, ${usesTwoDevices(system) ? "two devices" : "one device"}`;
  }
  // The few items of this experiment lie in memory, so systems that use flash are not compared.
  if (id === "cost") return usesFlash(system) ? null : "";
  const fromDisk = id === "converge" && DISK_CASES.includes(name);
  return fromDisk && !usesFlash(system) && !isDatabase(system) ? null : "";
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

/** Figures that are computed from those in the JSON. */
const DERIVED = {
  /** The worst second's rate as a share of the median second's. */
  steadiness: (point) => {
    const rates = point.seconds?.map((second) => second.rate);
    return rates?.length ? Math.min(...rates) / medianOf(rates) : null;
  },
  per_core_second: (point) => (point.cpu_us > 0 ? 1e6 / point.cpu_us : null),
  miss_ratio: (point) => 1 - (point.hit_ratio ?? NaN),
  over_admitted: (point) => point.extra?.admitted - point.extra?.budget,
  lost: (point) => point.extra?.acknowledged - point.extra?.survived,
};

const SERVER_FIGURES = ["cpu_us", "server_busy", "rss", "written_per_second", "read_per_second"];

/** Figures that are above 0 whenever they are measured. A 0 means that they were not measured. */
const NEVER_ZERO = /^(server_busy|generator_busy|rss|[^.]*_us)$/;

function isMeasured(point, metric) {
  if (SERVER_FIGURES.includes(metric) && CONTROLS.includes(point.system)) return false;
  return point[metric] !== 0 || !NEVER_ZERO.test(metric);
}

/**
 * Returns a figure of a point, or null if it was not measured. `metric` is the name of a field, the
 * name of an extra figure after `extra.`, or a key of `DERIVED`.
 */
function valueOf(point, metric) {
  if (!isMeasured(point, metric)) return null;
  let value = point[metric];
  if (metric in DERIVED) value = DERIVED[metric](point);
  if (metric.startsWith("extra.")) value = point.extra?.[metric.slice("extra.".length)];
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}

const figuresOf = (points, metric) => points.map((point) => valueOf(point, metric)).filter((value) => value !== null);

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

  /** The group in which the cell is compared; null if it is compared with no other. */
  get group() {
    return groupOf(this.experiment, this.case, this.system);
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

  /** True if values lie on a device, but a get read less than `FROM_DEVICE` of a value from it. */
  get fromMemory() {
    const [device, value] = [this.stat("extra.device_bytes_per_get"), valueBytes(this)];
    const told = this.stat("extra.from_memory")?.median > 0;
    return told || (device !== null && value !== null && device.median < FROM_DEVICE * value);
  }

  /** True if the resident memory could not be made equal to that of Larder. */
  get hasOtherMemory() {
    return this.stat("extra.equal_memory")?.min === 0;
  }

  /** The marks that follow the figures of this cell; `marksNotes` explains them. */
  get marks() {
    return marksOf([this]);
  }

  /** @returns {?Stat} */
  stat(metric) {
    return statOf(figuresOf(this.good, metric));
  }

  /** The figures of the void rounds. They only decide where a cross is drawn. @returns {?Stat} */
  wrongStat(metric) {
    return statOf(figuresOf(this.voids, metric));
  }
}

/** The marks of a figure that comes from several cells. `bound` adds the mark of a generator at its limit. */
function marksOf(cells, bound = false) {
  const has = (property) => cells.some((cell) => cell[property]);
  return `${bound || has("bound") ? " ○" : ""}${has("fromMemory") ? " ◇" : ""}${has("hasOtherMemory") ? " ≠" : ""}`;
}

/** If a get reads less than this share of a value from the device, memory has served it. */
const FROM_DEVICE = 0.1;

/** Returns the bytes of a value: the cell's extra figure, or the number in the conditions. */
function valueBytes(cell) {
  const given = cell.stat("extra.value_bytes");
  if (given) return given.median;
  const text = (experimentOf(cell.experiment)?.conditions ?? []).join("; ");
  const found = text.match(cell.case === "read-disk-8k" ? /large ones of (\d+)/ : /values of (\d+)/);
  return found ? Number(found[1]) : null;
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
