// Part of the report's script: numbers as text, and the names of figures, cases and axes.

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
const plainBytes = (value) => (value === null || Math.abs(value) < 9.995 ? scaled(value, [[1, "B"]])
  : `${Math.round(value).toLocaleString("en")}\u202fB`);
const bytesPerSecond = (value) => (value === null ? "–"
  : `${scaled(value, [[1e9, "GB"], [1e6, "MB"], [1e3, "KB"], [1, "B"]])}/s`);
const mebibytes = (value) => bytes(value === null ? null : value * 2 ** 20);
const percent = (value) => (value === null ? "–"
  : `${isNearlyAll(value) ? nearlyAll(value) : scaled(value * 100, [[1, ""]])}\u202f%`);
/** True for a share that three digits would round to 100 %. */
const isNearlyAll = (value) => value >= 0.9995 && value < 1;
/** Shows such a share with the decimals up to its first digit that is not 9. */
const nearlyAll = (value) => (value * 100).toFixed(Math.ceil(-Math.log10(1 - value)) - 2);
const whole = (value) => (value === null ? "–" : value.toLocaleString("en", { maximumFractionDigits: 1 }));

/** Shows a ratio. With `exact`, a ratio near 1 gets a third decimal, so that it differs from 1. */
function times(value, exact = false) {
  if (value === null || !Number.isFinite(value)) return "–";
  if (value > 0 && value < 0.0095) return `${Number(value.toPrecision(2))}×`;
  const near = exact && value !== 1 && Math.abs(value - 1) < 0.005;
  const digits = near ? 3 : value >= 99.5 ? 0 : value >= 9.95 ? 1 : 2;
  return `${value.toFixed(digits)}×`;
}

/** Shows a range. If both ends have the same unit, it is shown once. */
function rangeText(low, high, format) {
  const [from, to] = [format(low), format(high)];
  const unit = /[^\d.,]*$/;
  return from.match(unit)[0] === to.match(unit)[0] ? `${from.replace(unit, "")} – ${to}` : `${from} – ${to}`;
}

/** Shows the minimum and the maximum of several rounds. */
const bandText = (stat, format) => (stat.n > 1 ? rangeText(stat.min, stat.max, format) : "");

/** The name and the format of each figure, and whether higher or lower is better. */
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
  miss_ratio: { label: "miss ratio", format: percent, better: "lower" },
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
  "extra.first_minute_p99_us": { label: "p99 of the first gets", format: micros, better: "lower" },
  "extra.admitted": { label: "admitted", format: whole, better: "lower" },
  "extra.budget": { label: "budget", format: whole, better: "higher" },
  "extra.ram_bytes_per_item": { label: "RAM per item", format: plainBytes, better: "lower" },
  "extra.flash_bytes_per_item": { label: "device bytes per item", format: plainBytes, better: "lower" },
  "extra.device_bytes_per_get": { label: "device bytes per get", format: plainBytes, better: "lower" },
  "extra.group_bytes": { label: "limit of the memory control group", format: bytes, better: "lower" },
  "extra.rss_mib": { label: "resident memory", format: mebibytes, better: "lower" },
  "extra.overwrites_kept": { label: "overwrites kept", format: whole, better: "higher" },
  "extra.rss": { label: "resident memory", format: bytes, better: "lower" },
  "extra.limit_mib": { label: "memory limit", format: mebibytes, better: "lower" },
  "extra.over_admission": { label: "over-admitted", format: whole, better: "lower" },
  "extra.refused": { label: "refused", format: whole, better: "higher" },
  "extra.added_us": { label: "added per request", format: micros, better: "lower" },
  "extra.application_cpu_us": { label: "application CPU per request", format: micros, better: "lower" },
  "extra.application_rss": { label: "memory of the application", format: bytes, better: "lower" },
  "extra.counted": { label: "counted", format: whole, better: "higher" },
  "extra.written_per_byte": { label: "written per byte stored", format: count, better: "lower" },
  "extra.missing_updates": { label: "missing updates", format: whole, better: "lower" },
  "extra.duplicates": { label: "duplicates", format: whole, better: "lower" },
};

/** Returns the entry of a figure in `METRICS`. For an unknown figure, its name decides the unit. */
function metricOf(name) {
  if (name in METRICS) return METRICS[name];
  const units = [[/_us$/, micros], [/_ms$/, millis], [/_mib$/, mebibytes], [/bytes/, plainBytes],
    [/ratio$/, percent]];
  const format = units.find(([end]) => end.test(name))?.[1] ?? count;
  const label = name.replace(/^extra\./, "").replace(/_(us|ms|mib)$/, "").replaceAll("_", " ");
  return { label, format, better: "higher" };
}

/** The names of cases, as a sentence uses them. */
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
  fit: "items that fit into memory",
  "read-ram": "reads from RAM",
  "read-disk-1k": "reads from disk, 1 KB values",
  "read-disk-8k": "reads from disk, 8 KB values",
  "mixed-read": "mostly reads",
  overwrite: "overwrites",
  throughput: "a limit that is never reached",
  "throughput-gem": "a limit that is never reached, by Larder\u2019s gem",
  admission: "a limit that is reached",
  "admission-gem": "a limit that is reached, by Larder\u2019s gem",
  kill: "kill -9",
  fixed: "one key, fixed window",
  many: "many keys, fixed windows",
  "token-bucket": "one key, token bucket",
  items: "every item stored once",
  "get-pipelined": "get, 16 in flight per connection",
  "set-pipelined": "set, 16 in flight per connection",
};
const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/** The prefix of cases that memtier_benchmark, the article's generator, has driven. */
const MEMTIER = "memtier-";
/** A recorded trace may have a name with this prefix, so the rest of the name must be a known case. */
const isMemtier = (name) => name.startsWith(MEMTIER) && Object.hasOwn(CASE_NAMES, name.slice(MEMTIER.length));

/** Kinds of synthetic traces, whose names end with the exponent of Zipf's law. */
const TRACES = { zipf: "", scan: "scans, ", ttl: "times to live, " };

function caseName(name) {
  if (isMemtier(name)) return `${caseName(name.slice(MEMTIER.length))}, by memtier_benchmark`;
  // A recorded trace has the name of its file, which may be any word.
  const [, kind, exponent] = name.match(/^(\w+):([\d.]+)$/) ?? [];
  if (exponent && Object.hasOwn(TRACES, kind)) return `${TRACES[kind]}Zipf ${exponent}`;
  return Object.hasOwn(CASE_NAMES, name) ? CASE_NAMES[name] : name.replaceAll("-", " ");
}

/** For each case: what its x counts, the format of x, and the words that follow a value of x. */
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

/** Returns an x with its unit as text: "10 threads", "64 MiB of memory". */
function xText(id, name, x) {
  if (x === null) return "";
  const [label, format, words = label] = axisOf(id, name);
  return `${format(x)} ${words}`;
}

/** The known experiments in the order of their pages. */
const PAGE_NAMES = {
  counter: "Counter", "rack-attack": "Rack::Attack", persistence: "Persistence", cliff: "Cliff", converge: "Converge",
  hitratio: "Hit ratio", restart: "Restart", limits: "Limits", cost: "Cost",
};
const pageName = (id) => PAGE_NAMES[id] ?? experimentOf(id)?.title ?? id;
