// Part of the report's script: hit ratio, restart, limits, cost, and the environment.

function hitratioPage(id) {
  const hasAxis = (name) => xsIn(cellsIn(id, name)).length > 1;
  const series = (name) => seriesFigure(id, name, "hit_ratio", { title: `Hit ratio: ${capital(caseName(name))}`,
    xLog: true, everyX: true, tight: true, notes: ["The axis does not begin at 0."],
    tables: [seriesTable(id, name, "hit_ratio"), hitratioTables(id, name)] });
  return [traceBars(id, casesOf(id).filter((name) => !hasAxis(name))), casesOf(id).filter(hasAxis).map(series)];
}

/** A group of bars per trace. */
function traceBars(id, names) {
  if (names.length === 0) return null;
  const cells = names.flatMap((name) => cellsIn(id, name));
  const plots = ({ state: { metric }, hidden }) => {
    const bars = (name) => cellsIn(id, name).filter((cell) => isShown(cell, metric, hidden))
      .map((cell) => barOf(cell, metric));
    const groups = names.map((name) => ({ label: capital(caseName(name)), bars: bars(name) }));
    const shown = groups.filter((group) => group.bars.length > 0);
    if (shown.length === 0) return [{ title: "", text: "Nothing is selected." }];
    const { label, format } = metricOf(metric);
    return [{ kind: "bars", title: capital(label), unit: "by trace", groups: shown, format }];
  };
  return new Figure({
    id: "hitratio-traces", title: "Hits by trace", plots, legend: systemLegend(systemsIn(cells), "bar"),
    notes: ["All systems have the same memory, except those marked ≠: see the method above. A system marked ≠ is "
      + "compared only if it has less memory than Larder and does not miss more often. The table sets the misses of "
      + "each against Larder\u2019s: above 1 a system misses more often."],
    controls: [{ name: "metric", label: "Show", options: [["hit_ratio", "hit ratio"], ["miss_ratio", "miss ratio"]] }],
    tables: names.map((name) => hitratioTables(id, name)),
  }).node;
}

function hitratioTables(id, name) {
  const cells = cellsIn(id, name);
  const figures = ["hit_ratio", "miss_ratio", "extra.limit_mib", "extra.rss_mib", "extra.rss", "rss"];
  const misses = { label: "misses ÷ Larder\u2019s", cell: (cell) => missCell(cell, cells) };
  return metricsTables(`hits and memory: ${caseName(name)}`, cells, allFigures(figures, cells), [misses]);
}

/** The misses as a multiple of those of Larder's first system at the same x. */
function missCell(cell, cells) {
  const larder = cells.find((other) => isLarder(other.system) && other.x === cell.x);
  const [mine, base] = [cell, larder].map((cell) => cell?.stat("miss_ratio")?.median);
  if (mine === undefined || !base) return noNumber();
  return numberCell(cell === larder ? "Larder" : times(mine / base), { "data-misses": mine / base });
}

function restartPage(id) {
  return casesOf(id).map((name) => {
    const cells = cellsIn(id, name);
    const ready = casesOf(id).length > 1 ? capital(caseName(name)) : "Time until ready after kill -9";
    const [first, second] = ["extra.ready_ms", "extra.first_minute_p99_us"];
    const figures = allFigures([first, "extra.acknowledged", "extra.survived", "lost", second], cells);
    const tables = metricsTables("what survived, and how soon", cells, figures);
    const notes = ["A volatile server starts empty: its times are shown, but not compared."];
    const one = { id: `${id}-${name}`, title: ready, notes, tables };
    if (xsIn(cells).length < 2) return barsFigure(id, [name], [first, second], one);
    const axes = { xLog: true, everyX: true, log: true };
    const latency = { ...axes, title: "p99 of the first gets" };
    return [
      seriesFigure(id, name, first, { ...axes, title: ready, notes, tables }),
      cells.some((cell) => cell.stat(second)) && seriesFigure(id, name, second, latency),
    ];
  });
}

function limitsPage(id) {
  const over = overAdmission(id);
  const metrics = ["rate", "p50_us", "p99_us", "p999_us", over];
  const tablesOf = (name) => {
    const cells = cellsIn(id, name);
    const figures = allFigures(["rate", "extra.admitted", "extra.budget", over], cells);
    return metricsTables(capital(caseName(name)), cells, figures);
  };
  const rule = "A limiter must never admit more than its budget: over-admitted must be 0.";
  const clients = "Systems that cannot decide by themselves count up, and the client compares: see the method above.";
  return barsFigure(id, casesOf(id), metrics, { id: "limits-bars", title: "Decisions per second, by algorithm",
    notes: [BAR_NOTE, rule, clients], tables: casesOf(id).map(tablesOf) });
}

function costPage(id) {
  const ofItems = ["extra.ram_bytes_per_item", "extra.flash_bytes_per_item"];
  const hasItems = (name) => cellsIn(id, name).some((cell) => ofItems.some((metric) => cell.stat(metric)));
  const [requests, items] = [casesOf(id).filter((name) => name !== "items"), casesOf(id).filter(hasItems)];
  return [
    barsFigure(id, items, ofItems, { id: "cost-items", title: "What an item costs", notes: [BAR_NOTE] }),
    barsFigure(id, requests, ["cpu_us", "per_core_second", "extra.written_per_byte"],
      { id: "cost-bars", title: "What a request costs", notes: [BAR_NOTE] }),
  ];
}

function environmentPage() {
  return [
    h("h2", {}, "Environment"),
    h("dl", {}, environmentFacts().map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
    h("p", {}, "The servers and the load generator ran on this one machine."),
    h("h3", {}, "Systems, versions and settings"),
    h("p", { class: "soft" }, "The page of each experiment lists the settings of its systems."),
    systemsTable(),
    missingSection(),
    h("h3", {}, "Conditions of the experiments"), conditionsTable(),
    h("h3", {}, "Charts"),
    h("p", {}, "Drawn by uPlot, © Leon Sorokin, MIT licence. Its text stands in this file\u2019s source."),
  ];
}

function environmentFacts() {
  const { machine = {}, disk = {}, larder = {} } = results;
  const sync = disk.fsync_us_p50 !== undefined
    && `p50 ${micros(disk.fsync_us_p50)}, p99 ${micros(disk.fsync_us_p99 ?? null)}`;
  const facts = [
    ["Date", results.date],
    ["Larder", [larder.version, larder.revision].filter(Boolean).join(", revision ")],
    ["Build of Larder", larder.profile],
    ["Scale", results.scale],
    ["Processor", machine.cpu],
    ["Processors", machine.cpus],
    ["Memory", machine.memory && bytes(machine.memory)],
    ["Kernel", machine.kernel],
    ["Disk", [disk.directory, disk.filesystem].filter(Boolean).join(", ")],
    ["fsync of this disk", sync],
    ["Command", commandLine(results.command ?? [])],
  ];
  return facts.filter(([, value]) => value);
}

function systemsTable() {
  const row = (system) => h("tr", { class: rowClass(system), "data-system-row": system.id },
    rowHead(system.name, system.stand_in && h("small", {}, ` ${system.stand_in}`)),
    h("td", {}, system.version),
    h("td", {}, (system.settings ?? []).map((line) => h("code", {}, line))));
  return framed("Systems", h("thead", {}, headRow(["System", "Version", "Settings"])),
    h("tbody", {}, classRows([...systems.values()], 3, row)));
}

function conditionsTable() {
  const row = ({ id, conditions }) => h("tr", {}, rowHead(pageName(id)), h("td", {}, listOf(conditions ?? [])));
  return h("table", {}, h("tbody", {}, (results.experiments ?? []).map(row)));
}
