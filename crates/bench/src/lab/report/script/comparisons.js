// Part of the report's script: compares Larder with the best peer of the same durability.

/**
 * @typedef {object} Question
 * @property {string} experiment
 * @property {string} case
 * @property {string} metric
 * @property {"largest"|"middle"|"each"} [at]  Which x is compared. Cases without x and the capacity do not have it.
 * @property {string} ask
 * @property {boolean} [headline]  True if the first screen shows it.
 * @property {string[]} [classes]  The durability classes that are compared; all by default.
 * @property {string} [peers]  The case of the peers, if it differs from Larder's.
 *
 * @typedef {{system: System, stat: Stat, marks: string, cell: ?Cell}} Entry  `cell` is null for the capacity, which
 *   comes from several cells.
 * @typedef {{question: Question, durability: string, group: string, x: ?number, larder: ?Entry, peer: ?Entry,
 *   advantage: ?number, interval: ?number[], overlap: boolean, gap: ?Gap, unfinished: boolean,
 *   unequal: boolean, state: "ahead"|"behind"|"level"|"neither"|"void"|"alone"|"absent"}} Comparison
 *
 * @typedef {{side: "larder"|"peers", words: string, why: string}} Gap  Why Larder, or every peer, has runs but no
 *   figure.
 */

/** The questions of known experiments, those of the first screen first. */
const QUESTIONS = {
  counter: [
    { case: "event", metric: "rate", at: "largest", ask: "Increments of one counter per second", headline: true },
    { case: "blocking", metric: "rate", at: "largest", ask: "Increments per second, blocking client" },
    { case: "pipeline", metric: "rate", at: "largest", ask: "Increments per second, 16 in flight per connection" },
  ],
  "rack-attack": [
    { case: "throughput", metric: "rate", headline: true,
      ask: "Requests per second of a Sinatra application with a limit; Larder through memcached\u2019s client" },
    { case: "throughput-gem", peers: "throughput", metric: "rate", headline: true,
      ask: "Requests per second of a Sinatra application with a limit; Larder through its own gem" },
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
    { case: "ladder", metric: "capacity", ask: "Offered rate up to which p99 stays below 1 ms", headline: true },
    { case: "ladder", metric: "p99_us", at: "middle", ask: "p99 latency" },
    { case: "ladder", metric: "p99_us", at: "largest", ask: "p99 latency" },
  ],
  converge: [
    { case: "read-ram", metric: "rate", at: "largest", ask: "Reads per second from RAM", headline: true },
    { case: "fit", metric: "extra.items", at: "largest", ask: "Items of 1000 bytes that fit into memory",
      headline: true },
    { case: "read-disk-1k", metric: "rate", at: "each", ask: "Reads per second from disk, 1 KB values" },
    { case: "read-disk-8k", metric: "rate", at: "each", ask: "Reads per second from disk, 8 KB values" },
    { case: "mixed-read", metric: "rate", at: "largest", ask: "Requests per second, mostly reads" },
    { case: "overwrite", metric: "rate", at: "largest", ask: "Overwrites per second" },
  ],
  hitratio: [{ case: "*", metric: "miss_ratio", at: "middle", ask: "Share of gets that miss", headline: true }],
  // A volatile server starts empty, so its times after a restart are not compared.
  restart: [
    { case: "*", metric: "extra.ready_ms", at: "largest", ask: "Time until ready after kill -9", headline: true,
      classes: ["async", "sync"] },
    { case: "*", metric: "extra.first_minute_p99_us", at: "largest", ask: "p99 of the first gets after a restart",
      classes: ["async", "sync"] },
  ],
  limits: [
    { case: "many", metric: "rate", ask: "Rate-limit decisions per second, many keys", headline: true },
    { case: "fixed", metric: "rate", ask: "Rate-limit decisions per second, one key with a fixed window" },
    { case: "token-bucket", metric: "rate", ask: "Rate-limit decisions per second, one key with a token bucket" },
  ],
  cost: [
    { case: "items", metric: "extra.ram_bytes_per_item", ask: "Memory of an item", headline: true },
    { case: "get", metric: "cpu_us", ask: "Server CPU of a get", headline: true },
    { case: "set", metric: "cpu_us", ask: "Server CPU of a set", headline: true },
    { case: "get-pipelined", metric: "cpu_us", ask: "Server CPU of a get, 16 in flight per connection" },
    { case: "set-pipelined", metric: "cpu_us", ask: "Server CPU of a set, 16 in flight per connection" },
  ],
};

/**
 * Cases that are not compared by their rate. The load sets the rate, or the rate says nothing, or
 * the case repeats the question of another one.
 */
const NOT_COMPARED = ["cliff/cloud", "cliff/ladder", "converge/fit", "persistence/timeline", "rack-attack/admission",
  "rack-attack/admission-gem"];
const isCompared = (id, name) => !NOT_COMPARED.includes(`${id}/${name}`) && !isMemtier(name);

/**
 * Returns the questions of an experiment for the cases that have points. A case without a known
 * question is compared by its rate.
 */
function questionsOf(id) {
  const known = (QUESTIONS[id] ?? []).map((question) => ({ ...question, experiment: id }));
  const present = casesOf(id);
  const wild = known.filter((question) => question.case === "*");
  const expanded = known.filter((question) => question.case !== "*" && present.includes(question.case));
  for (const question of wild) {
    const ask = (name) => (present.length > 1 ? `${question.ask}, ${caseName(name)}` : question.ask);
    expanded.push(...present.map((name) => ({ ...question, case: name, ask: ask(name) })));
  }
  const asked = new Set(expanded.map((question) => question.case));
  const others = present.filter((name) => !asked.has(name) && isCompared(id, name));
  const plain = others.map((name) => ({ experiment: id, case: name, metric: "rate", at: "largest",
    ask: `Requests per second, ${caseName(name)}`, headline: known.length === 0 }));
  return [...expanded, ...plain];
}

/**
 * The highest offered rate up to which p99 stays below a millisecond, by round. A round counts only
 * if it shows where the capacity ends: at a slow point, or at `top`, the highest rate of the ladder.
 * `rungs` are the cells of the last fast points. `bound` is true if the generator was the limit at
 * the first slow point of a round, because then the generator may have set the capacity.
 * @returns {{stat: ?Stat, rungs: Cell[], bound: boolean}}
 */
function capacityOf(cells, top) {
  const rounds = unique(cells.flatMap((cell) => cell.points.map((point) => point.round)));
  const end = (round) => {
    const points = cells.flatMap((cell) => cell.points.filter((point) => point.round === round))
      .sort((a, b) => a.x - b.x);
    const first = points.findIndex((point) => point.void || !(point.p99_us < 1000));
    if (points[first]?.void || (first < 0 && points.at(-1).x < top)) return null;
    return { rate: (first < 0 ? points : points.slice(0, first)).at(-1)?.x ?? 0, slow: points[first] };
  };
  const ends = rounds.map(end).filter(Boolean);
  const rates = ends.map(({ rate }) => rate);
  return { stat: statOf(rates), rungs: cells.filter((cell) => rates.includes(cell.x)),
    bound: ends.some(({ slow }) => slow?.generator_bound) };
}

/** The cells that answer a question. */
function cellsFor({ experiment, case: name, peers = name }) {
  return cellsOf(experiment).filter((cell) => cell.case === (isLarder(cell.system) ? name : peers));
}

/**
 * Returns the systems that answer a question, best first. Of the systems whose memory differs from
 * Larder's, only peers that have less memory than Larder and are not worse take part.
 * @returns {Entry[]}
 */
function entriesOf(question, cells, x) {
  const top = Math.max(...xsIn(cellsFor(question)));
  const entry = (system) => {
    const mine = ofSystem(cells, system);
    if (question.metric === "capacity") {
      const { stat, rungs, bound } = capacityOf(mine, top);
      return { system, stat, marks: marksOf(rungs, bound), cell: null };
    }
    const cell = mine.find((cell) => cell.x === x);
    return { system, stat: cell?.stat(question.metric) ?? null, marks: cell?.marks ?? "", cell: cell ?? null };
  };
  const order = better(question.metric);
  const entries = systemsIn(cells).map(entry).filter(({ stat }) => stat)
    .sort((a, b) => order(a.stat.median, b.stat.median));
  const larder = entries.find(({ system, cell }) => isLarder(system) && !cell?.hasOtherMemory);
  const memory = ({ cell }) => cell.stat("rss")?.median;
  const takesPart = (entry) => !entry.cell?.hasOtherMemory || (larder && !isLarder(entry.system)
    && memory(entry) < memory(larder) && order(entry.stat.median, larder.stat.median) <= 0);
  return entries.filter(takesPart);
}

/**
 * Returns the values of x at which a question is compared. `at` chooses among those that Larder and
 * a peer have in common, or among all if there are none in common. Void runs count, so that they do
 * not move the comparison to another x.
 */
function comparedXs(question, cells) {
  if (question.metric === "capacity") return [null];
  const answered = cells.filter((cell) => cell.stat(question.metric));
  const tried = cells.filter((cell) => cell.stat(question.metric) || cell.voids.length > 0);
  const xs = xsIn(tried);
  if (xs.length === 0) return [null];
  const has = (x, mine) => tried.some((cell) => cell.x === x && isLarder(cell.system) === mine);
  const common = xs.filter((x) => has(x, true) && has(x, false));
  const usable = [common, xsIn(answered), xs].find((list) => list.length > 0);
  if (question.at === "each") return usable;
  return [question.at === "middle" ? usable[(usable.length - 1) >> 1] : usable[usable.length - 1]];
}

/**
 * Figures are level if neither is better than the other by more than this share. After a single
 * round the larger share applies, because one round is less certain than several.
 */
const LEVEL = 0.03;
const LEVEL_ONCE = 0.15;

/** The words of a gap, for Larder and for its peers: of void runs, and of systems that failed without a point. */
const GAP_WORDS = {
  larder: { void: "Larder\u2019s runs are void", failed: "Larder did not finish" },
  peers: { void: "the peers\u2019 runs are void", failed: "no peer finished" },
};

/** @returns {?Gap} Why a side has no figure; null if it has no runs. */
function gapOf({ experiment, case: name, peers = name }, durability, group, cells, x, side) {
  const isOurs = (system) => isLarder(system) === (side === "larder");
  const mine = cells.filter((cell) => isOurs(cell.system) && (x === null || cell.x === x));
  const voids = mine.flatMap((cell) => cell.voids.map((point) => point.void));
  const isMissing = (system) => isOurs(system) && system.durability === durability
    && groupOf(experiment, side === "larder" ? name : peers, system) === group;
  const failed = (experimentOf(experiment).not_run ?? []).filter(({ system }) => isMissing(systemOf(system)));
  if (voids.length + failed.length === 0) return null;
  const reasons = failed.map(({ system, why }) => `${systemLabel(systemOf(system))}: ${why}`);
  return { side, words: GAP_WORDS[side][voids.length > 0 ? "void" : "failed"],
    why: unique([...voids, ...reasons]).join("; ") };
}

/** @returns {?Comparison} */
function compare(question, durability, group, cells, x) {
  if (cells.length === 0) return null;
  const entries = entriesOf(question, cells, x);
  const larder = entries.find((entry) => isLarder(entry.system)) ?? null;
  const peer = entries.find((entry) => !isLarder(entry.system)) ?? null;
  const base = { question, durability, group, x, larder, peer, advantage: null, interval: null, overlap: false,
    gap: null, unfinished: false, unequal: false };
  if (!larder || !peer) {
    const gap = gapOf(question, durability, group, cells, x, larder ? "peers" : "larder");
    if (gap) return { ...base, gap, state: "void" };
    if (entries.length === 0) return null;
    // Only the capacity needs more than one point, so only the capacity can be missing although there are points.
    const unfinished = question.metric === "capacity" && cells.some((cell) => isLarder(cell.system) === !larder);
    const unequal = cells.some((cell) => isLarder(cell.system) === !larder && cell.x === x && cell.hasOtherMemory);
    return { ...base, unfinished, unequal, state: larder ? "alone" : "absent" };
  }
  const higher = metricOf(question.metric).better === "higher";
  const ratio = (mine, theirs) => (higher ? mine / theirs : theirs / mine);
  const advantage = ratio(larder.stat.median, peer.stat.median);
  const worst = higher ? ratio(larder.stat.min, peer.stat.max) : ratio(larder.stat.max, peer.stat.min);
  const best = higher ? ratio(larder.stat.max, peer.stat.min) : ratio(larder.stat.min, peer.stat.max);
  const several = Math.min(larder.stat.n, peer.stat.n) > 1;
  const overlap = several && larder.stat.min <= peer.stat.max && peer.stat.min <= larder.stat.max;
  // The larger of both quotients makes the rule symmetric: Larder and the peer may change places.
  const close = overlap || Math.max(advantage, 1 / advantage) - 1 <= (several ? LEVEL : LEVEL_ONCE);
  const state = Number.isNaN(advantage) ? "neither" : close ? "level" : advantage > 1 ? "ahead" : "behind";
  return { ...base, advantage, interval: [worst, best], overlap, state };
}

/** @returns {Comparison[]} */
function comparisonsOf(id) {
  return questionsOf(id).flatMap((question) => {
    const all = cellsFor(question).filter((cell) => cell.group !== null);
    const groups = unique(all.map((cell) => cell.group));
    return (question.classes ?? CLASSES).flatMap((durability) => groups.flatMap((group) => {
      const cells = all.filter((cell) => cell.system.durability === durability && cell.group === group);
      return comparedXs(question, cells).map((x) => compare(question, durability, group, cells, x)).filter(Boolean);
    }));
  });
}

/** Returns the durability and the group of a comparison as text. */
const classAndGroup = ({ durability, group }) => [className(durability), group].filter(Boolean).join(", ");

const allComparisons = (results.experiments ?? []).flatMap((experiment) => comparisonsOf(experiment.id));

/** A table of comparisons, grouped by their questions. `named` puts the experiment before the question. */
function comparisonTable(list, label, named = false) {
  const key = ({ question, x }) => JSON.stringify([question.experiment, question.case, question.metric, x]);
  const repeated = new Set();
  const rows = unique(list.map(key)).flatMap((group) => {
    const members = list.filter((comparison) => key(comparison) === group);
    const { experiment } = members[0].question;
    const repeats = named && !repeated.has(experiment);
    repeated.add(experiment);
    return [questionRow(members[0], named, repeats), members.map(comparisonRow)];
  });
  const heads = ["Durability", "Winner", "Larder", "Best peer", "Larder against best peer", "Spread of the ratio"];
  return h("table", { class: "comparisons", "aria-label": label },
    h("thead", {}, headRow(heads)), h("tbody", {}, rows));
}

/** The head of a question: the experiment with a link, what is compared, and the command once per experiment. */
function questionRow({ question, x }, named, repeats) {
  const experiment = experimentOf(question.experiment);
  const where = xText(question.experiment, question.case, x);
  const lower = metricOf(question.metric).better === "lower";
  return h("tr", { class: "question" }, h("th", { colspan: 6, scope: "rowgroup" }, h("div", {},
    h("div", {}, named && [h("a", { href: `#${experiment.id}` }, pageName(experiment.id)), " "],
      h("span", { class: "ask" }, [question.ask, where].filter(Boolean).join(", ")),
      lower && h("small", {}, " lower is better: the ratio is peer ÷ Larder")),
    repeats && experiment.command && h("div", { class: "repeat" }, commandLine(experiment.command)))));
}

/** The attributes with which a test recomputes a comparison. */
function comparisonData({ question, durability, group, x, larder, peer, advantage, state, gap }) {
  return {
    "data-comparison": `${question.experiment}/${question.case}`, "data-metric": question.metric, "data-x": x ?? "",
    "data-durability": durability, "data-group": group, "data-state": state, "data-advantage": advantage,
    "data-gap": gap?.side,
    "data-larder": larder?.stat.median, "data-larder-system": larder?.system.id,
    "data-peer": peer?.stat.median, "data-peer-system": peer?.system.id,
  };
}

function comparisonRow(comparison) {
  const { question, durability, larder, peer, state } = comparison;
  const { format } = metricOf(question.metric);
  const winner = { ahead: larder, behind: peer, absent: peer, void: peer }[state];
  // Two figures of 0 have no ratio. Their state is "neither".
  const nobody = state === "level" || state === "neither" ? state : "–";
  const figure = (entry) => (entry ? [format(entry.stat.median), entry.marks] : "–");
  const named = (entry) => [figure(entry), entry && h("small", {}, ` ${systemLabel(entry.system)}`)];
  const cell = (label, ...content) => h("td", { "data-label": label }, h("div", {}, ...content));
  return h("tr", comparisonData(comparison),
    h("th", { scope: "row", "data-label": "Durability" },
      h("div", {}, className(durability), comparison.group && h("small", {}, comparison.group))),
    cell("Winner", winner ? [h("b", {}, systemLabel(winner.system)), " ", figure(winner)] : nobody),
    cell("Larder", larder?.system.variant > 0 ? named(larder) : figure(larder)),
    cell("Best peer", named(peer)),
    cell("Ratio", ratioText(comparison)),
    cell("Spread", spreadText(comparison)));
}

/** The ratio in words: a number, or which of the two figures is 0 so that there is no number. */
function ratioWords({ question, advantage }) {
  if (Number.isFinite(advantage)) return times(advantage, true);
  if (Number.isNaN(advantage)) return "both 0";
  return metricOf(question.metric).better === "higher" ? "peer 0" : "Larder 0";
}

/** Why a comparison has only one side, or none. */
function gapText({ state, gap, unfinished, unequal }) {
  if (state === "void") return h("span", { class: "void", title: gap.why }, gap.words);
  const words = state === "alone" ? ["no peer here", "no peer finished", "no peer with equal memory"]
    : ["no Larder of this class takes part", "Larder did not finish", "no Larder with equal memory"];
  return h("span", { class: "soft" }, words[unfinished ? 1 : unequal ? 2 : 0]);
}

/** The ratio as a number and as a bar on a logarithmic scale from 1/8 to 8. */
function ratioText(comparison) {
  const { advantage, state } = comparison;
  if (advantage === null) return gapText(comparison);
  const bar = h("i");
  const share = Math.max(-50, Math.min(50, (Math.log2(advantage) / 3) * 50)) || 0;
  bar.style.left = `${50 + Math.min(0, share)}%`;
  bar.style.width = `${Math.abs(share)}%`;
  const meter = h("span", { class: "meter", "aria-hidden": "true" }, bar);
  return [h("span", { class: `ratio ${state}` }, ratioWords(comparison), meter),
    h("span", { class: "unseen" }, ` ${state}`)];
}

const isFromOneRound = ({ larder, peer }) => Math.min(larder.stat.n, peer.stat.n) < 2;

function spreadText(comparison) {
  const { interval, overlap } = comparison;
  if (!interval) return "–";
  if (isFromOneRound(comparison)) return h("span", { class: "soft" }, "one round");
  const [low, high] = interval;
  if (!Number.isFinite(low)) return "–";
  const band = Number.isFinite(high) ? `${times(low)} – ${times(high)}` : `at least ${times(low)}`;
  return [band, overlap && h("small", {}, " ranges overlap")];
}
