// Part of the report's script: plots of lines.

/* global uPlot */

/**
 * @typedef {{x: number, y: ?number, lo?: number, hi?: number, bound?: boolean, fromMemory?: boolean, marks?: string,
 *   note?: ?string, void?: ?string, at?: ?number}} LinePoint  `at` is the y of a void run.
 * @typedef {{label: string, colour: string, dash: number[], width: number, hollow?: boolean, points: LinePoint[]}} Line
 * @typedef {{x?: number, value: number, label: string}} Mark  A published figure or a limit.
 */

/**
 * Lines over a common x, with bands from minimum to maximum.
 * @param {{lines: Line[], format: Function, log?: boolean, tight?: boolean, range?: number[], xLog?: boolean,
 *   everyX?: boolean, xRange?: number[], x: {label: ?string, format: Function, incrs?: number[]},
 *   shades?: Array<{from: number, to: number}>, strips?: Array<{from: number, to: number}>, marks?: Mark[],
 *   sync?: string}} spec
 *   `tight` axes need not begin at 0; `everyX` labels every x; `strips` lie along the upper edge.
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
  const marks = spec.marks ?? [];
  const few = xs.length <= 24;
  const range = spec.range ?? lineRange(spec, marks);
  const options = {
    width, height,
    legend: { show: false },
    padding: [10, 12, 0, 0],
    scales: {
      x: { time: false, distr: spec.xLog ? 3 : 1, ...xRange(spec, few) },
      y: { distr: spec.log ? 3 : 1, range: () => range },
    },
    axes: [
      axis({ label: spec.x.label, size: 26, space: 56, incrs: spec.x.incrs, ...xTicks(spec, xs) }),
      axis({ size: 62, space: 36, ...(spec.log ? logTicks(spec.format) : { values: labels(spec.format) }) }),
    ],
    series: [{}, ...lines.map((line) => seriesOf(line, few))],
    cursor: { y: false, drag: { x: true, y: false }, points: { size: 8 } },
    hooks: {
      drawAxes: [(u) => clipped(u, (ctx, ratio) => {
        drawShades(u, ctx, spec.shades ?? []);
        drawStrips(u, ctx, ratio, spec.strips ?? []);
        lines.forEach((line) => drawBand(u, ctx, line));
        drawMarks(u, ctx, ratio, marks);
      })],
      draw: [(u) => clipped(u, (ctx, ratio) => lines.forEach((line) => drawFlags(u, ctx, ratio, line)))],
    },
  };
  if (spec.sync) options.cursor.sync = { key: spec.sync };
  const tip = (u) => lineTip(u, spec, xs, byIndex);
  // uPlot continues a line over an x that only other lines have (undefined). It breaks the line at
  // a void run (null).
  return { options, data: [xs, ...byIndex.map((points) => points.map((point) => point?.y))], tip, xs };
}

function seriesOf(line, withPoints) {
  const stroke = resolved(line.colour);
  const points = { show: withPoints, size: line.width > 2 ? 7 : 5, width: 1,
    fill: line.hollow ? resolved("var(--paper)") : stroke };
  return { label: line.label, stroke, width: line.width, dash: line.dash, spanGaps: false, points };
}

function lineRange(spec, marks) {
  const values = spec.lines.flatMap((line) => line.points.flatMap(({ y, lo, hi, at }) => [y, lo, hi, at]));
  const levels = marks.filter((mark) => mark.x === undefined).map((mark) => mark.value);
  return rangeOf([...values, ...levels], spec.log, spec.tight);
}

function xRange(spec, few) {
  if (spec.xRange) return { range: () => spec.xRange };
  return few ? { range: padded(spec.xLog) } : {};
}

function xTicks(spec, xs) {
  const values = labels(spec.x.format);
  if (spec.everyX) return { splits: () => xs, filter: (u, splits) => splits, values };
  return spec.xLog ? logTicks(spec.x.format) : { values };
}

/** Returns a function for the range of an x axis with room beside the first and the last x. */
const padded = (log) => (u, min, max) => {
  if (log) return [min / 1.15, max * 1.15];
  const room = (max - min || 1) * 0.035;
  return [min - room, max + room];
};

function drawShades(u, ctx, shades) {
  for (const shade of shades) {
    const [from, to] = [u.valToPos(shade.from, "x", true), u.valToPos(shade.to, "x", true)];
    ctx.globalAlpha = 0.09;
    ctx.fillStyle = resolved("var(--behind)");
    ctx.fillRect(from, u.bbox.top, Math.max(2, to - from), u.bbox.height);
    ctx.globalAlpha = 1;
  }
}

function drawStrips(u, ctx, ratio, strips) {
  ctx.fillStyle = resolved("var(--soft)");
  for (const strip of strips) {
    const [from, to] = [u.valToPos(strip.from, "x", true), u.valToPos(strip.to, "x", true)];
    ctx.fillRect(from, u.bbox.top, Math.max(2 * ratio, to - from), 5 * ratio);
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

/** Draws marks as dashed levels. An arrow follows the label if x is beyond the plot. */
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

/**
 * Returns the place of a value on the y axis, in pixels. A void run without a figure, and a 0 on a
 * logarithmic axis, have their place at the bottom.
 */
function placeOf(u, value, onCanvas) {
  const place = Number.isFinite(value) ? u.valToPos(value, "y", onCanvas) : NaN;
  if (Number.isFinite(place)) return place;
  return onCanvas ? u.bbox.top + u.bbox.height : u.bbox.height / uPlot.pxRatio;
}

/**
 * Draws a ring around points where the generator was the limit, a diamond around those served from memory, and a cross
 * where a run was void.
 */
function drawFlags(u, ctx, ratio, line) {
  ctx.lineWidth = 1.5 * ratio;
  for (const point of line.points) {
    if (!(point.bound || point.fromMemory || point.void)) continue;
    const at = point.void ? (point.at ?? point.y) : point.y;
    const x = u.valToPos(point.x, "x", true);
    // Room below a cross, so that the edge of the plot does not cut it off.
    const room = point.void ? 4.5 * ratio : 0;
    const y = Math.min(placeOf(u, at, true), u.bbox.top + u.bbox.height - room);
    ctx.beginPath();
    if (point.bound) {
      ctx.strokeStyle = resolved("var(--soft)");
      ctx.arc(x, y, 6 * ratio, 0, 2 * Math.PI);
    }
    if (point.fromMemory) diamond(ctx, x, y, 7 * ratio);
    if (point.void) cross(ctx, x, y, 4.5 * ratio);
    ctx.stroke();
  }
}

function diamond(ctx, x, y, size) {
  ctx.strokeStyle = resolved("var(--soft)");
  ctx.moveTo(x - size, y);
  for (const [dx, dy] of [[0, -size], [size, 0], [0, size], [-size, 0]]) ctx.lineTo(x + dx, y + dy);
}

function cross(ctx, x, y, size) {
  ctx.strokeStyle = resolved("var(--behind)");
  ctx.moveTo(x - size, y - size);
  ctx.lineTo(x + size, y + size);
  ctx.moveTo(x + size, y - size);
  ctx.lineTo(x - size, y + size);
}

/** The values of all lines at the x under the pointer, highest first. */
function lineTip(u, spec, xs, byIndex) {
  const at = u.cursor.idx;
  if (at === null || at === undefined) return null;
  const rows = spec.lines
    .map((line, index) => ({ line, point: byIndex[index][at] }))
    .filter(({ point }) => point && (point.y !== null || point.void));
  if (rows.length === 0) return null;
  const distance = ({ point }) => Math.abs(placeOf(u, point.y ?? point.at, false) - u.cursor.top);
  const near = rows.reduce((best, row) => (distance(row) < distance(best) ? row : best));
  rows.sort((a, b) => (b.point.y ?? -1) - (a.point.y ?? -1));
  const row = ({ line, point: { y, lo, hi, marks, note } }) => h("tr", { class: line === near.line && "near" },
    h("td", {}, lineSwatch(line.colour, line.dash, line.width)),
    h("td", {}, line.label, note && h("small", { class: "note" }, note)),
    h("td", { class: "n" }, y === null ? h("span", { class: "void" }, "void") : spec.format(y), marks,
      lo !== undefined && lo !== hi && h("small", {}, rangeText(lo, hi, spec.format))));
  const reason = near.point.void && h("p", { class: "void" }, near.point.void);
  return [h("b", {}, `${spec.x.format(xs[at])} ${spec.x.label}`), h("table", {}, rows.map(row)), reason];
}
