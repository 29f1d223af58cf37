// Part of the report's script: the page that repeats the article of 2021 on persistence.

const MIXES = ["insert", "retrieve", "mixed-1-9", "mixed-3-7", "mixed-5-5"];

function persistencePage(id) {
  const metrics = ["rate", "p50_us", "p90_us", "p95_us", "p99_us"];
  const kept = { label: "÷ same system, volatile", cell: keptCell };
  const agreed = { label: "÷ our generator", cell: agreedCell };
  const tablesOf = (name) => {
    const cells = cellsIn(id, name);
    const more = isMemtier(name) ? [kept, agreed] : [kept];
    return metricsTables(capital(caseName(name)), cells, allFigures(metrics, cells), more);
  };
  // Each mix is followed by the same mix from the article's generator.
  const has = (name) => casesOf(id).includes(name);
  const paired = MIXES.filter((name) => has(name) && has(MEMTIER + name)).flatMap((name) => [name, MEMTIER + name]);
  const mixes = unique([...paired, ...MIXES, ...MIXES.map((name) => MEMTIER + name)]).filter(has);
  const again = mixes.some(isMemtier) && "memtier_benchmark, the article\u2019s generator, has sent the same mixes. "
    + "Comparisons count only ours.";
  const there = "The dashed line is the article\u2019s figure from another machine, with 8 vCPUs and a second machine "
    + "for the load.";
  return [
    barsFigure(id, mixes, metrics, { id: "persistence-mixes", title: "What durability costs, by mix",
      notes: [BAR_NOTE, there, again].filter(Boolean), tables: mixes.map(tablesOf) }),
    timelines(id),
    otherCases(id, [...mixes, "timeline"]),
  ];
}

/** The rate under memtier_benchmark as a share of the rate under the lab's generator. */
function agreedCell(cell) {
  const ours = cellsIn(cell.experiment, cell.case.slice(MEMTIER.length));
  const [mine, base] = [cell.stat("rate")?.median, ofSystem(ours, cell.system)[0]?.stat("rate")?.median];
  return mine === undefined || !base ? noNumber() : numberCell(times(mine / base), { "data-agreed": mine / base });
}

/** The rate as a share of the best rate in the same family without durability. */
function keptCell(cell) {
  const { system } = cell;
  const same = cellsIn(cell.experiment, cell.case).filter((other) => other.x === cell.x);
  const family = same.filter((other) => other.system.family === system.family);
  const [mine, base] = [cell.stat("rate")?.median, bestOf(family, "rate", "none")];
  if (mine === undefined || !base || system.durability === "none") return noNumber();
  return numberCell(times(mine / base), { "data-kept": mine / base });
}

/** A second is part of a dip if its rate is below this share of the median. */
const DIP = 0.7;

/** Returns the dips of a time line, those that cost most requests first. A dip may contain up to two faster seconds. */
function dipsOf(seconds) {
  const median = medianOf(seconds.map((second) => second.rate));
  const dips = [];
  seconds.forEach(({ rate }, index) => {
    if (rate >= DIP * median) return;
    const last = dips.at(-1);
    const dip = last && index - last.to <= 2 ? last : { from: index, to: index, lost: 0 };
    if (dip !== last) dips.push(dip);
    Object.assign(dip, { to: index + 1, lost: dip.lost + median - rate });
  });
  return dips.sort((a, b) => b.lost - a.lost);
}

/** @typedef {{cell: Cell, point: Point, key: string, label: string}} Run  One time line. */

function timelines(id) {
  const cells = cellsIn(id, "timeline");
  const averages = cells.length > 0 && metricsTables("averages of the time line", cells, allFigures(["rate"], cells));
  const [mixed, inserts] = [runsOf(cells, ""), runsOf(cellsIn(id, "insert"), " insert")];
  const runs = [...mixed, ...inserts];
  if (runs.length === 0) return averages;
  const firstOf = (list) => list.filter((run) => run.point.round === list[0].point.round);
  const drag = "second by second, first round. Drag to zoom, double-click to return.";
  return [
    mixed.length > 0 && timelineOverview(firstOf(mixed), { id: "persistence-timeline",
      title: "Through minutes of writing", notes: [`1:9 writes to reads, ${drag}`] }),
    inserts.length > 0 && timelineOverview(firstOf(inserts), { id: "persistence-inserts",
      title: "Through the insert of all keys", notes: [`Only writes, ${drag}`] }),
    timelineDetail(runs), dipTable(runs), averages];
}

/**
 * The time lines of some cells.
 * @returns {Run[]}
 */
function runsOf(cells, suffix) {
  const points = cells.flatMap((cell) => cell.points.map((point) => ({ cell, point })));
  const recorded = points.filter(({ point }) => point.seconds?.length > 0);
  const several = unique(recorded.map(({ point }) => point.round)).length > 1;
  const label = ({ cell: { system }, point }) => [systemLabel(system), suffix && `,${suffix}`,
    several && `, round ${point.round}`, point.void && " (void)"].filter(Boolean).join("");
  const key = ({ cell: { system }, point }) => `${system.id} ${point.round}${suffix}`;
  return recorded.map((run) => ({ ...run, label: label(run), key: key(run) }));
}

/** The rates of all systems, a panel per durability class. */
function timelineOverview(runs, figure) {
  const list = unique(runs.map((run) => run.cell.system));
  const line = (system) => {
    const { label, point } = runs.find((run) => run.cell.system === system);
    return { label, colour: colourOf(system), dash: [], width: isLarder(system) ? 2 : 1.25,
      points: point.seconds.map((second, at) => ({ x: at + 1, y: second.rate })) };
  };
  const plots = ({ state, hidden }) => byClass(list).map(([durability, members]) => {
    const title = className(durability);
    const lines = linesOf(members, hidden, line);
    if (lines.length === 0) return { title, text: "Nothing is selected." };
    return { kind: "line", title, unit: "requests per second", lines, log: state.axis === "log", format: perSecond,
      x: { label: "seconds", format: whole }, height: 220 };
  });
  return new Figure({ ...figure, controls: [AXIS_LINEAR], legend: systemLegend(list), plots }).node;
}

/** The panels of one system: title, format, and the lines as pairs of a name and a field. */
const TIMELINE_PANELS = [
  { title: "Requests per second", format: perSecond, fields: [["rate", "rate"]] },
  { title: "p99 latency", format: micros, fields: [["p99", "p99_us"], ["maximum", "max_us"]], log: true },
  { title: "Processors busy", format: count, fields: [["user", "cpu_user"], ["system", "cpu_system"]] },
  { title: "Disk", format: bytesPerSecond, fields: [["written", "written"], ["read", "read"]] },
];

/** One system in detail: rate, p99, processors and disk over the same seconds. */
function timelineDetail(runs) {
  const first = runs.find(({ cell: { system } }) => isLarder(system) && system.durability === "async") ?? runs[0];
  const options = [first, ...runs.filter((run) => run !== first)].map((run) => [run.key, run.label]);
  const plots = ({ state }) => {
    const run = runs.find((run) => run.key === state.run);
    const panels = TIMELINE_PANELS.map((panel) => timelinePanel(run, panel)).filter(Boolean);
    const last = { ...panels.at(-1), x: { label: "seconds", format: whole }, height: 146 };
    return [...panels.slice(0, -1), last];
  };
  const note = `A dip is a time below ${percent(DIP)} of the median rate. The three dips that cost most requests are `
    + "shaded. A strip along the upper edge is a checkpoint, as the server itself reported it; for Redis and Valkey, "
    + "it is a rewrite of the append-only file.";
  return new Figure({ id: "persistence-detail", title: "One system, second by second", notes: [note],
    controls: [{ name: "run", label: "System", options, select: true }], plots }).node;
}

function timelinePanel({ cell, point }, { title, format, fields, log }) {
  const used = fields.filter(([, field]) => point.seconds.some((second) => Number.isFinite(second[field])));
  if (used.length === 0) return null;
  const known = (value) => (Number.isFinite(value) && (!log || value > 0) ? value : null);
  const lines = used.map(([label, field], index) => ({ label, width: 1.5, dash: index ? [4, 3] : [],
    colour: index ? "var(--soft)" : colourOf(cell.system),
    points: point.seconds.map((second, at) => ({ x: at + 1, y: known(second[field]) })) }));
  const several = lines.length > 1;
  const value = (at) => (line) => `${several ? `${line.label} ` : ""}${format(line.points[at]?.y ?? null)}`;
  return { kind: "line", title, lines, format, log, sync: "timeline", x: { label: null, format: whole }, height: 130,
    unit: several ? used.map(([name], index) => name + (index ? " (dashed)" : "")).join(", ") : "",
    shades: dipsOf(point.seconds).slice(0, 3), strips: point.checkpoints ?? [],
    readout: (at) => [`second ${at + 1}: ${lines.map(value(at)).join(", ")}`, inCheckpoint(point, at) && "checkpoint"]
      .filter(Boolean).join(", ") };
}

/** Returns true if the server wrote a checkpoint in the second with this index. */
function inCheckpoint({ checkpoints }, index) {
  return (checkpoints ?? []).some(({ from, to }) => from < index + 1 && to > index);
}

/** The number of checkpoints and the time that they took together. */
function checkpointsText({ checkpoints }) {
  if (!checkpoints?.length) return "none";
  return `${checkpoints.length} in ${whole(sum(checkpoints.map(({ from, to }) => to - from)))} s`;
}

function dipTable(runs) {
  const heads = ["Median", "Worst second", "Worst ÷ median", "Seconds in dips", "Longest dip", "Worst p99", "Written",
    "Checkpoints"];
  const figures = ({ point, point: { seconds } }) => {
    const all = (field) => seconds.map((second) => second[field] ?? 0);
    const lengths = dipsOf(seconds).map((dip) => dip.to - dip.from);
    return [perSecond(medianOf(all("rate"))), perSecond(Math.min(...all("rate"))),
      percent(valueOf(point, "steadiness")), whole(sum(lengths)), `${Math.max(0, ...lengths)} s`,
      micros(Math.max(...all("p99_us"))), bytes(sum(all("written"))), checkpointsText(point)];
  };
  const row = (run) => {
    const { system } = run.cell;
    const data = { "data-run": run.key, "data-steadiness": valueOf(run.point, "steadiness") };
    const cells = figures(run).map((text) => numberCell(text));
    const row = h("tr", { class: rowClass(system), ...data }, rowHead(run.label), cells);
    return run.point.void ? [row, reasonRow(heads.length + 1, `void: ${run.point.void}`)] : [row];
  };
  const list = unique(runs.map((run) => run.cell.system));
  const rowsOf = (system) => runs.filter((run) => run.cell.system === system).flatMap(row);
  const rows = classRows(list, heads.length + 1, rowsOf);
  return tableOf("dips by system", headRow(["System"], heads), rows);
}
