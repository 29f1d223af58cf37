// Part of the report's script: colours by family, dashes and fills by durability.
//
// Colours are CSS expressions everywhere. A chart asks the style sheet for their values when it is drawn.

/** The families that have a colour, with their names. */
const FAMILIES = {
  larder: "Larder", memcached: "memcached", arcus: "ARCUS", redis: "Redis", valkey: "Valkey", postgres: "PostgreSQL",
  mariadb: "MariaDB", cassandra: "Cassandra", scylladb: "ScyllaDB", mongo: "MongoDB", ferretdb: "FerretDB",
  pogocache: "pogocache",
};

/** Returns the key of a family in `FAMILIES`, or "other". `family` is a key or a name. */
function familyKey(family) {
  const key = family.toLowerCase().replace("postgresql", "postgres").replace("mongodb", "mongo");
  return key in FAMILIES ? key : "other";
}
const familyName = (family) => FAMILIES[familyKey(family)] ?? family;
const familyColour = (family) => `var(--f-${familyKey(family)})`;

/** Shades that distinguish systems of the same family and the same durability. */
const SHADES = [null, "var(--ink) 50%", "var(--paper) 40%", "var(--ink) 78%"];

function colourOf(system) {
  const base = familyColour(system.family);
  const shade = SHADES[Math.min(system.variant, SHADES.length - 1)];
  return shade ? `color-mix(in srgb, ${base}, ${shade})` : base;
}

const DASHES = { none: [], async: [7, 4], sync: [2, 3], published: [11, 3, 2, 3] };
const FILLS = { none: "solid", async: "hatch", sync: "hollow" };
const dashOf = (system) => DASHES[system.durability] ?? [];
const fillOf = (system) => FILLS[system.durability] ?? "solid";
const lineWidth = (system) => (isLarder(system) ? 2.5 : 1.5);

const probe = document.body.appendChild(h("span", { hidden: true }));
const resolvedColours = new Map();

/** Returns the value of a CSS colour expression in the current theme, as a canvas needs it. */
function resolved(expression) {
  if (!resolvedColours.has(expression)) {
    probe.style.color = expression;
    resolvedColours.set(expression, getComputedStyle(probe).color);
  }
  return resolvedColours.get(expression);
}

/** The mark of a line in the legend. */
function lineSwatch(colour, dash, width) {
  const line = svg("line", { x1: 0, y1: 5, x2: 26, y2: 5, class: "stroke", "stroke-width": width,
    "stroke-dasharray": dash.join(" ") });
  return coloured(svg("svg", { class: "swatch", viewBox: "0 0 26 10", "aria-hidden": "true" }, line), colour);
}

/** The mark of a bar in the legend. */
function barSwatch(colour, fill) {
  const box = { x: 3.5, y: 0.5, width: 19, height: 9 };
  const shapes = [svg("rect", { ...box, class: fill === "solid" ? "fill" : "stroke" })];
  const hatch = () => [6, 11, 16, 21].map((x) => svg("path", { d: `M${x - 2} 9.5l5-9`, class: "stroke" }));
  if (fill === "hatch") shapes.push(...hatch());
  return coloured(svg("svg", { class: "swatch", viewBox: "0 0 26 10", "aria-hidden": "true" }, ...shapes), colour);
}

function coloured(node, colour) {
  node.style.color = colour;
  return node;
}
