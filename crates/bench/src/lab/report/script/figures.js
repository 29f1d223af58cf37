// Part of the report's script: figures. A figure has a caption, controls, a legend, plots, and
// tables with the same content.

/* global uPlot */

const PLOTS = { line: linePlot, bars: barPlot, cloud: cloudPlot };

/** All figures of the report. @type {Figure[]} */
const figures = [];

/**
 * @typedef {{key: string, label: string, group: string, swatch: () => SVGElement}} LegendEntry
 * @typedef {{name: string, label: string, options: string[][], select?: boolean}} Control
 */
class Figure {
  /**
   * @param {{id: string, title: string, notes?: string[], controls?: Control[], legend?: LegendEntry[],
   *   plots: (view: {state: Object<string, string>, hidden: Set<string>}) => object[], columns?: string,
   *   tables?: Node[]}} spec  `plots` returns specifications, with `text` instead of `kind` where nothing is drawn.
   */
  constructor(spec) {
    this.spec = spec;
    this.state = Object.fromEntries((spec.controls ?? []).map((control) => [control.name, control.options[0][0]]));
    /** The keys of the legend entries that are hidden. */
    this.hidden = new Set();
    this.charts = [];
    this.width = 0;
    this.grid = h("div", { class: `plots ${spec.columns ?? ""}` });
    const caption = h("figcaption", {}, h("h3", { id: `title-${spec.id}` }, spec.title), paragraphs(spec.notes));
    this.node = h("figure", { id: `figure-${spec.id}`, "data-figure": spec.id, "aria-labelledby": `title-${spec.id}` },
      caption, this.controls(), this.legend(), this.grid, spec.tables ?? []);
    new ResizeObserver(() => this.fit()).observe(this.grid);
    figures.push(this);
  }

  controls() {
    const controls = this.spec.controls ?? [];
    const shown = controls.filter((control) => control.options.length > 1);
    return shown.length > 0 && h("div", { class: "controls" }, shown.map((control) => this.control(control)));
  }

  control({ name, label, options, select }) {
    const choose = (value) => {
      this.state[name] = value;
      this.draw();
    };
    if (select) {
      const choices = options.map(([value, text]) => h("option", { value }, text));
      const box = h("select", { "data-control": name, change: () => choose(box.value) }, choices);
      return h("label", {}, label, box);
    }
    const press = (event, value) => {
      buttons.forEach((button) => button.setAttribute("aria-pressed", button === event.currentTarget));
      choose(value);
    };
    const buttons = options.map(([value, text]) => h("button", { type: "button", "data-control": name,
      "data-value": value, "aria-pressed": String(this.state[name] === value),
      click: (event) => press(event, value) }, text));
    return h("div", { class: "segments", role: "group", "aria-label": label },
      h("span", {}, label), h("div", {}, buttons));
  }

  /** Buttons that hide and show systems. The name of a group hides or shows the whole group. */
  legend() {
    const entries = this.spec.legend ?? [];
    const groups = unique(entries.map((entry) => entry.group));
    const buttons = new Map();
    const set = (keys, visible) => {
      for (const key of keys) {
        if (visible) this.hidden.delete(key);
        else this.hidden.add(key);
        buttons.get(key).setAttribute("aria-pressed", visible);
      }
      this.draw();
    };
    const button = (entry) => {
      const toggle = () => set([entry.key], this.hidden.has(entry.key));
      const node = h("button", { type: "button", "data-key": entry.key, "aria-pressed": "true", click: toggle },
        entry.swatch(), entry.label);
      buttons.set(entry.key, node);
      return node;
    };
    const group = (name) => {
      const members = entries.filter((entry) => entry.group === name);
      const keys = members.map((entry) => entry.key);
      const all = () => set(keys, keys.every((key) => this.hidden.has(key)));
      const about = `Hide or show: ${name}`;
      const title = h("button", { type: "button", class: "group", click: all, "aria-label": about }, name);
      return h("div", {}, title, h("div", {}, members.map(button)));
    };
    if (entries.length < 2) return null;
    return h("div", { class: "legend", role: "group", "aria-label": "Systems shown" }, groups.map(group));
  }

  /** Draws again if the width has changed since the last drawing. */
  fit() {
    if (!root.classList.contains("printing") && Math.abs(this.grid.clientWidth - this.width) > 1) this.draw();
  }

  draw() {
    this.width = this.grid.clientWidth;
    this.charts.forEach((chart) => chart?.destroy());
    this.charts = [];
    if (this.width === 0) return;
    const specs = this.spec.plots({ state: this.state, hidden: this.hidden });
    const cells = specs.map((spec) => plotCell(spec));
    this.grid.replaceChildren(...cells.map((cell) => cell.node));
    this.charts = cells.map((cell) => (cell.spec.kind ? mount(cell) : null));
  }

  /** Draws one plot again with another specification; the others stay as they are. */
  replace(index, spec) {
    const cell = plotCell(spec);
    this.charts[index]?.destroy();
    this.grid.children[index].replaceWith(cell.node);
    this.charts[index] = spec.kind ? mount(cell) : null;
  }
}

function plotCell(plot) {
  const spec = withAxis(plot);
  const readout = h("span", { class: "readout", "aria-live": "off" });
  const holder = h("div", { class: "plot", tabindex: 0, role: "img", "data-plot": spec.kind,
    "aria-label": `Chart: ${spec.title}. Arrow keys read its values. The table below has all of them.` });
  const head = h("div", { class: "plot-head" },
    spec.title && h("h4", {}, spec.title), spec.unit && h("span", {}, spec.unit), readout);
  const body = spec.kind ? holder : h("p", { class: "empty" }, spec.text);
  return { node: h("div", { class: "plot-cell" }, head, body), holder, readout, spec };
}

/** Draws a plot into its place and lets pointer and keyboard read its values. */
function mount({ holder, readout, spec }) {
  const plot = PLOTS[spec.kind](spec, holder.clientWidth, spec.height ?? 260);
  const tip = h("div", { class: "tip", hidden: true });
  const hover = (u) => {
    const inside = u.cursor.left >= 0;
    if (spec.readout) readout.textContent = inside ? spec.readout(u.cursor.idx) : "";
    if (inside) spec.onHover?.(plot.xs[u.cursor.idx]);
    const content = inside && !spec.readout ? plot.tip(u) : null;
    tip.hidden = !content;
    if (!content) return;
    tip.replaceChildren(...content.filter(Boolean));
    placeTip(u, holder, tip);
  };
  plot.options.hooks.setCursor = [hover];
  const chart = new uPlot(plot.options, plot.data, holder);
  holder.append(tip);
  holder.addEventListener("keydown", (event) => moveCursor(event, chart, plot));
  holder.addEventListener("blur", () => chart.setCursor({ left: -10, top: -10 }));
  return chart;
}

/** Places the tip beside the pointer, inside the chart where possible. */
function placeTip(u, holder, tip) {
  const [left, top] = [u.over.offsetLeft + u.cursor.left, u.over.offsetTop + u.cursor.top];
  const right = left + 16 + tip.offsetWidth <= holder.clientWidth;
  const x = right ? left + 16 : Math.max(0, left - 16 - tip.offsetWidth);
  const y = Math.max(-30, Math.min(top - 20, holder.clientHeight - tip.offsetHeight));
  tip.style.transform = `translate(${Math.round(x)}px, ${Math.round(y)}px)`;
}

/** Moves the cursor to the next or the previous value by arrow keys. */
function moveCursor(event, chart, plot) {
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  const inside = chart.cursor.left >= 0;
  const from = inside ? chart.cursor.idx : step > 0 ? -1 : plot.xs.length;
  const to = Math.min(plot.xs.length - 1, Math.max(0, from + step));
  const place = chart.valToPos(plot.xs[to], "x");
  const middle = { left: chart.over.clientWidth / 2, top: chart.over.clientHeight / 3 };
  chart.setCursor(plot.upright ? { ...middle, top: place } : { ...middle, left: place });
}

/**
 * The legend of systems, in groups of durability.
 * @param {"line"|"bar"|"plain"} kind  Plain bars show no durability.
 */
function systemLegend(list, kind = "line") {
  const swatch = {
    line: (system) => lineSwatch(colourOf(system), dashOf(system), lineWidth(system)),
    bar: (system) => barSwatch(colourOf(system), fillOf(system)),
    plain: (system) => barSwatch(colourOf(system), "solid"),
  }[kind];
  const entry = (system) => ({ key: system.id, label: system.name, group: className(system.durability),
    swatch: () => swatch(system) });
  return byClass(list).flatMap(([, members]) => members.map(entry));
}

/** Returns the systems in groups of durability, without empty groups. */
function byClass(list) {
  const names = unique([...CLASSES, ...list.map((system) => system.durability)]);
  const groups = names.map((durability) => [durability, list.filter((system) => system.durability === durability)]);
  return groups.filter(([, members]) => members.length > 0);
}

/**
 * Turns cells of one system into a line. `scale` changes every value. If it returns null, the point
 * is left out.
 */
function lineOf(system, cells, metric, scale = (value) => value) {
  const pointOf = (cell) => {
    const [stat, wrong] = [cell.stat(metric), cell.wrongStat(metric)];
    const point = { x: cell.x, y: null, void: voidText(cell), at: wrong ? scale(wrong.median, cell.x) : null };
    if (!stat) return point;
    const [y, lo, hi] = [stat.median, stat.min, stat.max].map((value) => scale(value, cell.x));
    const { bound, fromMemory, marks } = cell;
    return { ...point, y, lo, hi, bound, fromMemory, marks, note: deviceText(cell) };
  };
  const points = cells.filter((cell) => cell.x !== null).map(pointOf);
  return { label: systemLabel(system), colour: colourOf(system), dash: dashOf(system), width: lineWidth(system),
    hollow: system.variant > 0, points: points.filter((point) => point.y !== null || point.void) };
}

const systemLabel = (system) =>
  system.name + (system.stand_in ? " (stand-in)" : "") + (isControl(system) ? " (control)" : "");

/** Returns how many bytes a get read from the device, as text; null if that is not known. */
function deviceText(cell) {
  const stat = cell.stat("extra.device_bytes_per_get");
  return stat && `${plainBytes(stat.median)} per get from the device${cell.fromMemory ? ": served from memory" : ""}`;
}

/** Returns which rounds of a cell are void, and why, as text; null if none is. */
function voidText(cell) {
  const rounds = (reason) => cell.voids.filter((point) => point.void === reason).map((point) => point.round);
  const reasons = unique(cell.voids.map((point) => point.void));
  return reasons.map((reason) => `void, round ${rounds(reason).join(", ")}: ${reason}`).join("; ") || null;
}

/** Turns a cell into a bar. */
function barOf(cell, metric, label = systemLabel(cell.system)) {
  const stat = cell.stat(metric);
  return { label, colour: colourOf(cell.system), fill: fillOf(cell.system), value: stat?.median ?? null,
    lo: stat?.min, hi: stat?.max, marks: cell.marks, void: voidText(cell), cell };
}

/** True if a bar is drawn for a cell. */
const isShown = (cell, metric, hidden) => !hidden.has(cell.system.id) && (cell.stat(metric) || cell.voids.length > 0);

/** The name of a family. If all its systems only stand in for it, the name says so. */
function familyLabel(family) {
  const name = familyName(family);
  const members = [...systems.values()].filter((system) => system.family === family);
  return members.length > 0 && members.every((system) => system.stand_in?.includes(name)) ? `${name} stand-in` : name;
}

/** Groups bars by family. Within a family, durability increases. */
function familyGroups(cells, metric, hidden) {
  const shown = cells.filter((cell) => isShown(cell, metric, hidden));
  const rank = (cell) => CLASSES.indexOf(cell.system.durability);
  return unique(shown.map((cell) => cell.system.family)).map((family) => ({
    label: familyLabel(family),
    bars: shown.filter((cell) => cell.system.family === family).sort((a, b) => rank(a) - rank(b))
      .map((cell) => barOf(cell, metric)),
  }));
}
