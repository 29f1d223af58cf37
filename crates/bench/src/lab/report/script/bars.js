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
 * @typedef {{label: string, colour: string, fill: string, value: ?number, lo?: number, hi?: number, bound?: boolean,
 *   void?: ?string, text?: string, cell?: ?Cell}} Bar
 */

/**
 * Horizontal bars in groups, with whiskers from minimum to maximum and the value at the end.
 * @param {{groups: Array<{label: string, bars: Bar[]}>, format: Function, marks?: Mark[]}} spec
 */
function barPlot(spec, width) {
  const names = spec.groups.map((group) => inTwoLines(group.label));
  const { bars, centres, length } = placesOf(spec.groups, names);
  const marks = spec.marks ?? [];
  const drawn = rangeOf(bars.flatMap((bar) => [bar.value, bar.hi ?? null]), false)[1];
  const near = marks.map((mark) => mark.value).filter((value) => value < drawn * 1.6);
  const top = Math.max(drawn, ...near.map((value) => value * 1.08));
  const room = Math.max(...bars.map((bar) => textWidth(bar.text ?? spec.format(bar.value)))) + 24;
  const labelWidth = Math.max(...names.flatMap((name) => name.split("\n").map(textWidth))) + 12;
  const markRoom = marks.length ? 18 : 4;
  const options = {
    width, height: Math.ceil(length * BAR + 30 + markRoom),
    legend: { show: false },
    padding: [markRoom, room, 0, 0],
    scales: {
      x: { time: false, ori: 1, dir: -1, range: () => [-0.7, length - 0.9] },
      y: { ori: 0, range: () => [0, top] },
    },
    axes: [
      axis({ side: 3, size: labelWidth, stroke: resolved("var(--ink)"), grid: { show: false },
        splits: () => centres, values: () => names }),
      axis({ side: 2, size: 24, space: 64, values: labels(spec.format) }),
    ],
    series: [{}, { paths: () => null, points: { show: false } }],
    cursor: { x: false, y: false, drag: { x: false, y: false }, points: { show: false } },
    hooks: { draw: [(u) => drawBars(u, bars, marks, top, spec.format)] },
  };
  const tip = (u) => barTip(bars[u.cursor.idx], spec.format);
  const xs = bars.map((bar) => bar.at);
  return { options, data: [xs, bars.map((bar) => bar.value)], tip, xs, upright: true };
}

/** Gives each bar its place, and each group the place of its label. */
function placesOf(groups, names) {
  const [bars, centres] = [[], []];
  let place = 0;
  groups.forEach((group, index) => {
    const twoLines = names[index].includes("\n");
    // uPlot centres the first line of a label.
    centres.push(place + (group.bars.length - 1) / 2 - (twoLines ? 0.4 : 0));
    for (const bar of group.bars) bars.push({ ...bar, at: place++ });
    place += twoLines && group.bars.length === 1 ? 1.1 : 0.7;
  });
  return { bars, centres, length: place };
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
  ctx.fillText(text, outside ? right : Math.min(right, Math.max(x + wide / 2, u.bbox.left + wide)),
    u.bbox.top - 6 * ratio);
}

/** Everything that is known of a bar. */
function barTip(bar, format) {
  if (!bar) return null;
  const known = ["rate", "p50_us", "p90_us", "p95_us", "p99_us", "p999_us", "p99999_us", "cpu_us"];
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
    bar.bound && h("p", { class: "soft" }, "○ The generator was the limit.")];
}
