// Part of the report's script: plots of horizontal bars.

/* global uPlot */

const ruler = document.createElement("canvas").getContext("2d");

/** Width of a text on an axis, in pixels. */
function textWidth(text) {
  ruler.font = FONT;
  return ruler.measureText(text).width;
}

/** Breaks a long label near its middle. */
function inTwoLines(text) {
  if (text.length <= 18) return text;
  const spaces = [...text.matchAll(/ /g)].map((match) => match.index);
  const distance = (at) => Math.abs(at - text.length / 2);
  if (spaces.length === 0) return text;
  const at = spaces.reduce((best, space) => (distance(space) < distance(best) ? space : best));
  return `${text.slice(0, at)}\n${text.slice(at + 1)}`;
}

/** Height of one bar with its gap, in pixels. */
const BAR = 17;

/**
 * @typedef {{label: string, colour: string, fill: string, value: ?number, lo?: number, hi?: number, marks?: string,
 *   void?: ?string, text?: string, cell?: ?Cell}} Bar
 */

/** A linear axis becomes logarithmic if the longest bar is more than this many times the median. */
const LOPSIDED = 20;

/**
 * Returns the specification of a plot. If it has bars of which one would flatten all others, the
 * axis becomes logarithmic, and the unit says so.
 */
function withAxis(spec) {
  if (spec.kind !== "bars") return spec;
  const values = spec.groups.flatMap((group) => group.bars.map((bar) => bar.value)).filter((value) => value !== null);
  const positive = values.filter((value) => value > 0);
  const log = positive.length > 2 && Math.min(...values) >= 0 && Math.max(...values) > LOPSIDED * medianOf(positive);
  return log ? { ...spec, log, unit: [spec.unit, "logarithmic axis"].filter(Boolean).join(", ") } : spec;
}

/**
 * Horizontal bars in groups, with whiskers from minimum to maximum and the value at the end.
 * @param {{groups: Array<{label: string, bars: Bar[]}>, format: Function, marks?: Mark[], log?: boolean}} spec
 */
function barPlot(spec, width) {
  const names = spec.groups.map((group) => inTwoLines(group.label));
  const { bars, centres, length } = placesOf(spec.groups, names);
  const marks = spec.marks ?? [];
  const [low, drawn] = rangeOf(bars.flatMap((bar) => [bar.value, bar.lo ?? null, bar.hi ?? null]), spec.log);
  const near = marks.map((mark) => mark.value).filter((value) => value < drawn * 1.6);
  const top = Math.max(drawn, ...near.map((value) => value * 1.08));
  const room = Math.max(...bars.map((bar) => textWidth(barText(bar, spec.format)))) + 24;
  const labelWidth = Math.max(...names.flatMap((name) => name.split("\n").map(textWidth))) + 12;
  const markRoom = marks.length ? 18 : 4;
  const bottom = spec.log ? low / 2 : 0;
  const ticks = () => powersOfTen(bottom, top, Math.floor((width - labelWidth - room) / 56));
  const options = {
    width, height: Math.ceil(length * BAR + 30 + markRoom),
    legend: { show: false },
    padding: [markRoom, room, 0, 0],
    scales: {
      x: { time: false, ori: 1, dir: -1, range: () => [-0.7, length - 0.9] },
      y: { ori: 0, distr: spec.log ? 3 : 1, range: () => [bottom, top] },
    },
    axes: [
      axis({ side: 3, size: labelWidth, stroke: resolved("var(--ink)"), grid: { show: false },
        splits: () => centres, values: () => names }),
      axis({ side: 2, size: 24, space: 64, values: labels(spec.format),
        ...(spec.log && { splits: ticks, filter: (u, splits) => splits }) }),
    ],
    series: [{}, { paths: () => null, points: { show: false } }],
    cursor: { x: false, y: false, drag: { x: false, y: false }, points: { show: false } },
    hooks: { draw: [(u) => drawBars(u, bars, marks, [bottom, top], spec.format)] },
  };
  const tip = (u) => barTip(bars[u.cursor.idx], spec.format);
  const xs = bars.map((bar) => bar.at);
  return { options, data: [xs, bars.map((bar) => bar.value)], tip, xs, upright: true };
}

/** The powers of ten between two values, at most `most` of them. */
function powersOfTen(low, high, most) {
  const powers = [];
  for (let power = Math.ceil(Math.log10(low)); power <= Math.log10(high); power++) powers.push(power);
  const step = Math.ceil(powers.length / Math.max(1, most));
  return powers.filter((power, at) => at % step === 0).map((power) => Number(`1e${power}`));
}

/** Gives each bar a position on the axis of bars, and each group the position of its label. */
function placesOf(groups, names) {
  const [bars, centres] = [[], []];
  let place = 0;
  groups.forEach((group, index) => {
    const twoLines = names[index].includes("\n");
    // uPlot centres the first line of a label, so a label of two lines moves up.
    centres.push(place + (group.bars.length - 1) / 2 - (twoLines ? 0.4 : 0));
    for (const bar of group.bars) bars.push({ ...bar, at: place++ });
    place += twoLines && group.bars.length === 1 ? 1.1 : 0.7;
  });
  return { bars, centres, length: place };
}

function drawBars(u, bars, marks, [bottom, top], format) {
  const { ctx } = u;
  const ratio = uPlot.pxRatio;
  const place = (value) => u.valToPos(Math.max(value, bottom), "y", true);
  ctx.save();
  ctx.font = `${11 * ratio}px system-ui, sans-serif`;
  ctx.textBaseline = "middle";
  for (const bar of bars) drawBar(u, ctx, ratio, place, bar, format);
  ctx.textBaseline = "alphabetic";
  for (const mark of marks) drawBarMark(u, ctx, ratio, mark, top);
  ctx.restore();
}

/** The text at the end of a bar: its value, its marks, and whether rounds are void. */
function barText(bar, format) {
  const flags = `${bar.marks ?? ""}${bar.void && bar.value !== null ? " (void rounds)" : ""}`;
  const text = bar.value === null ? (bar.void ? "void" : "–") : (bar.text ?? format(bar.value));
  return text + flags;
}

function drawBar(u, ctx, ratio, place, bar, format) {
  const thick = (BAR - 6) * ratio;
  const middle = u.valToPos(bar.at, "x", true);
  const [zero, end] = [place(0), place(bar.value ?? 0)];
  const colour = resolved(bar.colour);
  const high = bar.hi === undefined ? end : place(bar.hi);
  fillBar(ctx, ratio, colour, bar.fill, zero, middle - thick / 2, Math.max(end - zero, ratio), thick);
  if (bar.lo !== undefined && bar.hi > bar.lo) whisker(ctx, ratio, place(bar.lo), high, middle);
  ctx.textAlign = "left";
  ctx.fillStyle = resolved(bar.void && bar.value === null ? "var(--behind)" : "var(--soft)");
  ctx.fillText(barText(bar, format), Math.max(end, high) + 6 * ratio, middle);
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

/**
 * Draws a mark as a dashed line across the bars. If its value is outside, only its label is drawn,
 * at the edge.
 */
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
  ctx.fillText(text, outside ? right : Math.min(right, Math.max(x + wide / 2, u.bbox.left + wide)),
    u.bbox.top - 6 * ratio);
}

/** The tip of a bar: its known figures and its flags. */
function barTip(bar, format) {
  if (!bar) return null;
  const known = ["rate", "p50_us", "p90_us", "p95_us", "p99_us", "p999_us", "p99999_us", "cpu_us",
    "extra.device_bytes_per_get"];
  const rows = [];
  for (const metric of bar.cell ? known : []) {
    const { label, format } = metricOf(metric);
    const stat = bar.cell.stat(metric);
    if (stat) rows.push([label, format(stat.median), bandText(stat, format)]);
  }
  if (rows.length === 0 && bar.value !== null) rows.push(["", bar.text ?? format(bar.value), ""]);
  const row = ([label, value, band]) =>
    h("tr", {}, h("td", {}, label), h("td", { class: "n" }, value), h("td", { class: "n" }, h("small", {}, band)));
  return [h("b", {}, bar.label), h("table", {}, rows.map(row)), bar.void && h("p", { class: "void" }, bar.void),
    bar.cell?.bound && h("p", { class: "soft" }, "○ The generator was the limit."),
    bar.cell?.fromMemory && h("p", { class: "soft" }, "◇ Served from memory.")];
}
