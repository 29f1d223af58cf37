// Part of the report's script: the page of a Sinatra application behind Rack::Attack.

function rackAttackPage(id) {
  const shared = "The application runs in two processes, which share the store. \u201cBy its gem\u201d is "
    + "Larder\u2019s own client; \u201cby Dalli\u201d is the client that memcached has too.";
  const controls = "Controls have no server: \u201cNo throttle\u201d is the application without a limit, and "
    + "MemoryStore counts in each process alone. No system is compared with them.";
  return [
    rackAttackBars(id, "throughput", ["rate", "mean_us", "p50_us", "p99_us", "p999_us"],
      { id: "rack-attack-rate", title: "Requests per second, whole application", notes: [BAR_NOTE, shared, controls],
        tables: rackAttackTables(id, "throughput", ["rate", "extra.added_us"]) }),
    rackAttackBars(id, "throughput", ["extra.added_us", "extra.application_cpu_us", "cpu_us"],
      { id: "rack-attack-added", title: "What the limit adds to a request",
        notes: ["Mean latency of a request minus that of \u201cNo throttle\u201d in the same round."], tables: [] }),
    rackAttackBars(id, "admission", ["extra.admitted", "rate", "p99_us"],
      { id: "rack-attack-admission", title: "Does the limit hold? Admitted requests",
        notes: ["A store that holds the limit ends at the dashed line."], marks: limitMarks(id),
        tables: rackAttackTables(id, "admission",
          ["rate", "extra.admitted", "extra.budget", "extra.over_admission"]) }),
    otherCases(id, ["throughput", "throughput-gem", "admission", "admission-gem"]),
  ];
}

/** Bars of a case and of the case with Larder's gem. Larder comes first, the controls last. */
function rackAttackBars(id, name, metrics, more) {
  const groups = (cells, metric, hidden) => {
    const named = (list, label) => familyGroups(list, metric, hidden).map(({ bars }) =>
      ({ label, bars: bars.map((bar) => ({ ...bar, label: `${bar.label}: ${label}` })) }));
    const servers = cells.filter(({ system }) => !isControl(system) && !isLarder(system));
    const controls = cells.filter(({ system }) => isControl(system) && !hidden.has(system.id));
    return [
      ...named(cells.filter(({ system }) => isLarder(system)), "Larder by Dalli"),
      ...named(cellsIn(id, `${name}-gem`), "Larder by its gem"),
      ...familyGroups(servers, metric, hidden),
      ...controls.map((cell) => ({ label: systemLabel(cell.system), bars: [barOf(cell, metric)] })),
    ];
  };
  return barsFigure(id, [name], metrics, { ...more, groups });
}

const rackAttackTables = (id, name, first) => [name, `${name}-gem`].flatMap((series) => {
  const cells = cellsIn(id, series);
  return cells.length > 0 ? metricsTables(capital(caseName(series)), cells, allFigures(first, cells)) : [];
});

/** The limit as a mark on the bars of admitted requests. */
const limitMarks = (id) => (metric) => {
  const limit = cellsIn(id, "admission").map((cell) => cell.stat("extra.budget")).find((stat) => stat)?.median;
  return metric === "extra.admitted" && limit ? [{ value: limit, label: `the limit: ${whole(limit)}` }] : [];
};

/** Sentences: did the limit hold, with and without a shared store, and what did it add? */
function rackAttackFacts() {
  const id = "rack-attack";
  const alone = cellsIn(id, "admission").filter((cell) => isControl(cell.system) && cell.stat("extra.admitted"));
  const figure = (cell, name) => whole(cell.stat(name)?.median ?? null);
  const control = (cell) => `${systemLabel(cell.system)} admitted ${figure(cell, "extra.admitted")} requests where the `
    + `limit was ${figure(cell, "extra.budget")}.`;
  return [
    ...totals(id, "over_admitted", "stores that the processes share admitted more than the limit",
      (system) => !isControl(system)),
    ...alone.map(control),
    ...CLASSES.map(addedSentence).filter(Boolean),
  ];
}

/** What a limit added to a request with each system of a durability class, the least first. */
function addedSentence(durability) {
  const of = (name, words) => cellsIn("rack-attack", name)
    .filter(({ system }) => system.durability === durability && !isControl(system))
    .map((cell) => ({ name: systemLabel(cell.system) + (isLarder(cell.system) ? words : ""),
      added: cell.stat("extra.added_us")?.median ?? null }));
  const known = [...of("throughput", " by Dalli"), ...of("throughput-gem", " by its gem")]
    .filter(({ added }) => added !== null).sort((a, b) => a.added - b.added);
  const list = known.map(({ name, added }) => `${name} ${micros(added)}`).join("; ");
  return known.length > 0 && `${className(durability)}: a limit added to a request: ${list}.`;
}
