// Part of the report's script: plots of every sample.

/** With more samples than this, the cells of a cloud are smaller. */
const ONE_BY_ONE = 100_000;

/**
 * Every sample of a run: time against latency. None is left out.
 * @param {{samples: {t: Uint32Array, latency: Float32Array}, colour: string, range: number[], seconds: number,
 *   marks?: Mark[]}} spec
 */
function cloudPlot(spec, width, height) {
  const options = {
    width, height,
    legend: { show: false },
    padding: [10, 12, 0, 0],
    scales: {
      x: { time: false, range: (u, min, max) => [Math.max(0, min), max] },
      y: { distr: 3, range: () => spec.range },
    },
    axes: [
      axis({ values: labels((value) => count(value)), label: "seconds", size: 26, space: 60 }),
      axis({ size: 62, ...logTicks(micros) }),
    ],
    series: [{}, { paths: () => null, points: { show: false } }],
    cursor: { y: false, drag: { x: true, y: false }, points: { show: false } },
    hooks: {
      drawAxes: [(u) => clipped(u, (ctx, ratio) => drawMarks(u, ctx, ratio, spec.marks ?? []))],
      draw: [(u) => clipped(u, (ctx, ratio) => drawCloud(u, ctx, ratio, spec))],
    },
  };
  const seconds = Math.max(1, Math.ceil(spec.seconds));
  const xs = Array.from({ length: seconds + 1 }, (_, second) => second);
  return { options, data: [xs, xs.map(() => null)], tip: (u) => cloudTip(u, spec), xs };
}

function drawCloud(u, ctx, ratio, spec) {
  const { t, latency } = spec.samples;
  const size = Math.max(1, Math.round((t.length > ONE_BY_ONE ? 1.5 : 2) * ratio));
  const { left, top, width, height } = u.bbox;
  const columns = Math.ceil(width / size);
  const rows = Math.ceil(height / size);
  const cells = new Uint32Array(columns * rows);
  const { min, max } = u.scales.x;
  const [low, high] = spec.range.map(Math.log);
  for (let index = 0; index < t.length; index++) {
    const column = Math.floor(((t[index] / 1e6 - min) / (max - min)) * columns);
    const share = (Math.log(latency[index]) - low) / (high - low);
    const row = Math.min(rows - 1, Math.max(0, Math.floor((1 - share) * rows)));
    if (column >= 0 && column < columns) cells[row * columns + column]++;
  }
  const most = cells.reduce((most, value) => Math.max(most, value), 1);
  ctx.fillStyle = resolved(spec.colour);
  cells.forEach((value, index) => {
    if (value === 0) return;
    // A single sample stays visible, however dense the rest is.
    ctx.globalAlpha = 0.4 + 0.6 * (most > 1 ? Math.log(value) / Math.log(most) : 0);
    ctx.fillRect(left + (index % columns) * size, top + Math.floor(index / columns) * size, size, size);
  });
  ctx.globalAlpha = 1;
}

/** The second under the pointer: how many samples it has, and how they are spread. */
function cloudTip(u, spec) {
  const second = Math.floor(u.posToVal(u.cursor.left, "x"));
  const { t, latency } = spec.samples;
  const inside = [];
  for (let index = 0; index < t.length; index++) {
    if (Math.floor(t[index] / 1e6) === second) inside.push(latency[index]);
  }
  if (inside.length === 0) return null;
  inside.sort(ascending);
  const at = (share) => inside[Math.min(inside.length - 1, Math.floor(share * inside.length))];
  const rows = [["p50", at(0.5)], ["p99", at(0.99)], ["maximum", inside[inside.length - 1]]];
  const row = ([label, value]) => h("tr", {}, h("td", {}, label), h("td", { class: "n" }, micros(value)));
  return [h("b", {}, `second ${second}: ${whole(inside.length)} samples`), h("table", {}, rows.map(row))];
}
