// Part of the report's script: the page that repeats the article on caches and databases.

function convergePage(id) {
  const reads = ["read-ram", "read-disk-1k", "read-disk-8k"];
  const mixes = ["mixed-read", "overwrite"];
  const pale = "Pale bars have one request in flight, full bars 16 (pipelined). Whiskers reach from the minimum to the "
    + "maximum of the rounds.";
  const dashed = "Dashed lines are the article\u2019s figures, from a machine with a network of 25 Gbit/s.";
  const isUncompared = (name) => cellsIn(id, name).some((cell) => cell.group === null);
  const inRam = (names) => names.some(isUncompared)
    && "Only systems that read a device are compared; the others hold all values in memory.";
  const metrics = ["rate", "p50_us", "p99_us", "p999_us", "p99999_us", "max_us"];
  const shared = { groups: flightGroups, swatches: "plain" };
  return [
    fit(id),
    barsFigure(id, reads, metrics, { ...shared, id: "converge-reads", title: "Reads, single and pipelined",
      notes: [pale, dashed, inRam(reads)].filter(Boolean), columns: "two tall-left" }),
    barsFigure(id, mixes, metrics, { ...shared, id: "converge-mixes", title: "Reads with writes, and overwrites",
      notes: [pale, inRam(mixes)].filter(Boolean) }),
    otherCases(id, ["fit", ...reads, ...mixes]),
  ];
}

/** A group per system, a bar per number of requests in flight. */
function flightGroups(cells, metric, hidden) {
  const shown = cells.filter((cell) => isShown(cell, metric, hidden));
  const bar = (cell) => {
    const { system } = cell;
    const flight = cell.x !== null && `${cell.x} in flight`;
    const label = [systemLabel(system), className(system.durability), flight].filter(Boolean).join(", ");
    const colour = cell.x > 1 ? colourOf(system) : `color-mix(in srgb, ${colourOf(system)}, var(--paper) 55%)`;
    return { ...barOf(cell, metric, label), colour, fill: "solid" };
  };
  return systemsIn(shown).map((system) => ({ label: system.name, bars: ofSystem(shown, system).map(bar) }));
}

/** The items that fit into memory, as numbers or relative to memcached, and the bytes per item. */
function fit(id) {
  const cells = cellsIn(id, "fit");
  if (cells.length === 0) return null;
  const largest = xsIn(cells).at(-1) ?? null;
  const at = cells.filter((cell) => cell.x === largest);
  const base = ofSystem(at, { id: "memcached" })[0]?.stat("extra.items")?.median ?? null;
  const group = (metric, scale) => (cell) =>
    ({ label: cell.system.name, bars: [scaledBar(barOf(cell, metric), scale)] });
  const plots = ({ state, hidden }) => {
    const relative = state.unit === "relative" && base !== null;
    const shown = at.filter((cell) => isShown(cell, "extra.items", hidden));
    if (shown.length === 0) return [{ title: "", text: "Nothing is selected." }];
    const items = shown.map(group("extra.items", relative ? 1 / base : 1));
    const sized = shown.filter((cell) => cell.stat("extra.bytes_per_item")).map(group("extra.bytes_per_item", 1));
    const unit = `held by a full server, ${xText(id, "fit", largest)}`;
    const bars = relative ? { title: "Items ÷ memcached", groups: [...items, ...publishedFit()], format: times }
      : { title: "Items", groups: items, format: count };
    const sizes = { kind: "bars", title: "Bytes of memory per item", groups: sized, format: plainBytes };
    return [{ kind: "bars", unit, ...bars }, ...(sized.length > 0 ? [sizes] : [])];
  };
  const notes = ["Keys of 12 bytes, values of 1000 bytes. The lab stores half as much again as the memory limit, and "
      + "counts the items that the server then holds.",
    "The article\u2019s memory was 114 GB. So its figures are shown against its own memcached, as hollow bars: 101 "
      + "million items there, 60 to 61 million in ScyllaDB."];
  const units = [["relative", "÷ memcached"], ["absolute", "items"]];
  const figure = new Figure({
    id: "converge-fit", title: "Items that fit into memory", notes, plots, columns: "two",
    controls: [{ name: "unit", label: "Show", options: base === null ? units.slice(1) : units }],
    legend: systemLegend(systemsIn(at), "bar"),
    tables: metricsTables("items held by a full server", cells, allFigures(["extra.items"], cells)),
  });
  const several = xsIn(cells).length > 1;
  return [figure.node, several && seriesFigure(id, "fit", "extra.items", { title: "Items by memory", everyX: true })];
}

function scaledBar(bar, scale) {
  const by = (value) => (value === null || value === undefined ? value : value * scale);
  // Without its cell, the tip of a bar shows only the scaled value.
  return { ...bar, value: by(bar.value), lo: by(bar.lo), hi: by(bar.hi), cell: null };
}

/** The article's numbers of items, each relative to the article's memcached. */
function publishedFit() {
  const [memcached] = published.converge.fit;
  return published.converge.fit.map(({ label, family, items }) => {
    const [low, high] = items.map((number) => number / memcached.items[0]);
    const millions = unique(items).map((number) => `${number / 1e6} M`).join(" to ");
    const bar = { label: `${label}, published: ${millions} items in 114 GB`, colour: familyColour(family),
      fill: "hollow", value: high, lo: low, hi: high, text: unique([times(low), times(high)]).join(" – ") };
    return { label: `${label} (article)`, bars: [bar] };
  });
}
