// Part of the report's script: what all plots share: axes, ranges and ticks.
//
// uPlot draws each plot on a canvas. `linePlot`, `barPlot` and `cloudPlot` turn the specification
// of a plot and a width into uPlot's options and data. They also return `tip(u)`, which makes the
// text for the position under the pointer.

/* global uPlot */

const FONT = '11px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif';

function axis(more) {
  return { stroke: resolved("var(--soft)"), font: FONT, labelFont: FONT, labelSize: 16, labelGap: 0, gap: 6,
    grid: { stroke: resolved("var(--grid)"), width: 1 }, ticks: { show: false }, ...more };
}

/** Runs `draw` with the canvas clipped to the plotting area. */
function clipped(u, draw) {
  const { ctx, bbox } = u;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  draw(ctx, uPlot.pxRatio);
  ctx.restore();
}

/** Returns a range that holds the values. It begins at 0, unless `tight` or `log` is set. */
function rangeOf(values, log, tight = false) {
  let [low, high] = [Infinity, 0];
  for (const value of values) {
    if (!Number.isFinite(value) || (log && value <= 0)) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (high <= 0) return log ? [1, 10] : [0, 1];
  if (tight && !log) return [Math.max(0, low - (high - low || high) * 0.08), high + (high - low || high) * 0.08];
  return log ? [low / 1.35, high * 1.35] : [0, high * 1.08];
}

/** The labels of an axis. uPlot passes null for a label that has no space. */
const labels = (format) => (u, splits) => splits.map((value) => (value === null ? "" : format(value)));

/**
 * Grid lines and labels of a logarithmic axis. Grid lines are at 1, 2 and 5 times the powers of
 * ten, or at the powers alone over more than 6 decades. With many grid lines, only the powers have
 * labels.
 */
function logTicks(format) {
  const splits = (u, axis, min, max) => {
    const decades = Math.log10(max / min);
    const digits = decades > 6 ? [1] : [1, 2, 5];
    const ticks = [];
    for (let power = Math.floor(Math.log10(min)); power <= Math.log10(max); power++) {
      ticks.push(...digits.map((digit) => Number(`${digit}e${power}`)).filter((tick) => tick >= min && tick <= max));
    }
    return ticks;
  };
  const isPower = (value) => Math.abs(Math.log10(value) - Math.round(Math.log10(value))) < 1e-9;
  const filter = (u, ticks) => {
    const all = ticks.length <= 8 || ticks.filter(isPower).length < 2;
    return ticks.map((tick) => (all || isPower(tick) ? tick : null));
  };
  return { splits, filter, values: labels(format) };
}
