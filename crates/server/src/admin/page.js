// Asks for the statistics once a second and shows what changed in between.
"use strict";
const get = (id) => document.getElementById(id);
const show = (id, text) => { get(id).textContent = text; };
const history = { gets: [], sets: [] };
const LENGTH = 120;
let last = null;

function count(n) {
  if (n >= 1e9) return (n / 1e9).toFixed(2) + " G";
  if (n >= 1e6) return (n / 1e6).toFixed(2) + " M";
  if (n >= 1e4) return (n / 1e3).toFixed(1) + " k";
  return Math.round(n).toLocaleString("en");
}

function size(n) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let at = 0;
  while (n >= 1024 && at < units.length - 1) { n /= 1024; at++; }
  return (at === 0 ? n : n.toFixed(1)) + " " + units[at];
}

function duration(seconds) {
  const days = Math.floor(seconds / 86400), hours = Math.floor(seconds / 3600) % 24;
  const minutes = Math.floor(seconds / 60) % 60;
  if (days > 0) return days + " d " + hours + " h";
  if (hours > 0) return hours + " h " + minutes + " min";
  return minutes > 0 ? minutes + " min" : seconds + " s";
}

function memory(now) {
  const limit = Math.max(now.limit_maxbytes, 1);
  const parts = { data: now.larder_frame_bytes, index: now.larder_index_bytes, buffers: now.larder_buffer_bytes };
  for (const [name, bytes] of Object.entries(parts)) {
    show(name, size(bytes));
    document.querySelector("i." + name).style.width = Math.min(100, 100 * bytes / limit) + "%";
  }
  show("limit", size(now.limit_maxbytes));
  show("resident", size(now.larder_resident_bytes));
  const used = Object.values(parts).reduce((a, b) => a + b, 0);
  get("bar").setAttribute("aria-label", size(used) + " of " + size(now.limit_maxbytes) + " used");
}

function chart(gets, sets) {
  for (const [name, value] of [["gets", gets], ["sets", sets]]) {
    history[name].push(value);
    if (history[name].length > LENGTH) history[name].shift();
  }
  const top = Math.max(1, ...history.gets, ...history.sets);
  show("peak", "(top: " + count(top) + ")");
  for (const name of ["gets", "sets"]) {
    const from = LENGTH - history[name].length;
    const points = history[name].map((value, i) => (from + i) + "," + (29 - 28 * value / top).toFixed(2));
    document.querySelector("polyline." + name).setAttribute("points", points.join(" "));
  }
}

function rates(now, at) {
  if (last === null || at <= last.at) return;
  const seconds = (at - last.at) / 1000;
  // A reset of the statistics makes counters fall: that is no rate.
  const rate = (name) => Math.max(0, (now[name] - (last.rows[name] ?? 0)) / seconds);
  const gets = rate("cmd_get"), sets = rate("cmd_set");
  show("gets", count(gets));
  show("sets", count(sets));
  show("evictions", count(rate("evictions")));
  show("received", size(Math.round(rate("bytes_read"))));
  show("sent", size(Math.round(rate("bytes_written"))));
  show("cpu", Math.round(100 * (rate("rusage_user") + rate("rusage_system"))) + " %");
  const found = rate("get_hits"), asked = found + rate("get_misses");
  show("hits", asked > 0 ? (100 * found / asked).toFixed(1) + " %" : "–");
  chart(gets, sets);
  limits(now, rate);
}

function table(id, rows) {
  get(id).replaceChildren(...rows.map((texts) => {
    const row = document.createElement("tr");
    for (const text of texts) {
      const cell = document.createElement("td");
      cell.textContent = text;
      row.append(cell);
    }
    return row;
  }));
}

function limits(now, rate) {
  const names = Object.keys(now).filter((name) => /^limit:.*:within$/.test(name));
  get("limited").hidden = names.length === 0;
  table("limits", names.map((name) => {
    const policy = name.slice("limit:".length, -":within".length);
    const results = ["within", "near", "over", "shadow"];
    return [policy, ...results.map((result) => count(rate(["limit", policy, result].join(":"))))];
  }));
}

// The meanings of the rows, fetched when the table of all statistics is first opened.
let meanings = null;

async function meaning() {
  const reply = await fetch("v1/metrics");
  meanings = {};
  if (reply.ok) for (const metric of await reply.json()) meanings[metric.row] = metric;
}

function described([name, value]) {
  const row = name.replace(/^larder_lane_\d+_/, "larder_lane_N_").replace(/^limit:.*:/, "limit:NAME:").replace(/^latency:\w+:/, "latency:CLASS:");
  const { unit = "", help = "" } = meanings[row] ?? {};
  return [name, value, unit, help];
}

async function ask() {
  try {
    const reply = await fetch("v1/stats", { cache: "no-store" });
    if (!reply.ok) throw new Error(await reply.text());
    const now = await reply.json(), at = performance.now();
    const good = now.larder_health === "ok";
    get("state").className = good ? "" : "bad";
    show("state", (good ? "serving" : now.larder_health) + " for " + duration(now.uptime) + " · version " + now.larder_version + " · " + now.threads + " threads · " + now.larder_io);
    show("items", count(now.curr_items));
    show("connections", count(now.curr_connections) + " of " + count(now.max_connections));
    memory(now);
    rates(now, at);
    if (document.querySelector("details").open) {
      if (meanings === null) await meaning();
      table("all", Object.entries(now).map(described));
    }
    last = { rows: now, at };
  } catch (error) {
    get("state").className = "bad";
    show("state", "not serving: " + error.message);
  }
  setTimeout(ask, 1000);
}

ask();
