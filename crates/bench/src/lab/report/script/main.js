// Part of the report's script: navigation, themes and printing. This is the last part: it starts
// the page.

/** The functions that build the pages of known experiments. Others are built by `otherCases`. */
const BUILDERS = {
  counter: counterPage, "rack-attack": rackAttackPage, persistence: persistencePage, cliff: cliffPage,
  converge: convergePage, hitratio: hitratioPage, restart: restartPage, limits: limitsPage, cost: costPage,
};

/** The experiments of the four articles, which have a page in every report. */
const ARTICLES = ["counter", "persistence", "cliff", "converge"];

const root = document.documentElement;

/** The pages in order: id and name. */
function pageList() {
  const ids = (results.experiments ?? []).map((experiment) => experiment.id);
  const known = Object.keys(PAGE_NAMES).filter((id) => ids.includes(id) || ARTICLES.includes(id));
  const others = ids.filter((id) => !known.includes(id));
  const experiments = [...known, ...others].map((id) => [id, pageName(id)]);
  return [["summary", "Summary"], ...experiments, ["environment", "Environment"]];
}

/** Builds a page. An error in one page leaves the others readable. */
function section(id) {
  const build = { summary: summaryPage, environment: environmentPage }[id] ?? (() => experimentPage(id));
  const node = h("section", { id: `page-${id}`, "data-page": id, hidden: true });
  try {
    node.append(h("div", {}, build()));
  } catch (error) {
    console.error(error);
    node.append(h("p", { class: "banner" },
      `This page could not be drawn: ${error.message}. The JSON has its figures.`));
  }
  return node;
}

/** Shows the page that the address names. */
function route() {
  const wanted = location.hash.slice(1);
  const pages = [...document.querySelectorAll("main > section")];
  const page = pages.find((page) => page.dataset.page === wanted) ?? pages[0];
  const moved = page.hidden;
  for (const other of pages) other.hidden = other !== page;
  for (const link of document.querySelectorAll("nav.pages a")) {
    if (link.hash === `#${page.dataset.page}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  drawVisible();
  if (moved && wanted) scrollTo(0, 0);
}

/** Draws the figures of the visible page. Figures of hidden pages have no width, so they wait. */
function drawVisible() {
  for (const figure of figures) figure.fit();
}

function redrawInTheme() {
  resolvedColours.clear();
  for (const figure of figures) figure.draw();
}

/** Width of printed charts, in pixels. */
const PAPER = 680;

/** The largest number of rows of a table that is opened for printing. */
const PAPER_ROWS = 40;

/** Draws every page for printing: light, at a fixed width, and with all but long tables open. */
function beforePrint() {
  root.classList.add("printing");
  resolvedColours.clear();
  for (const page of document.querySelectorAll("main > section")) page.hidden = false;
  for (const details of document.querySelectorAll("details:not([open])")) {
    if (details.querySelectorAll("tbody tr").length > PAPER_ROWS) continue;
    details.open = true;
    details.dataset.closed = "";
  }
  for (const figure of figures) {
    const several = figure.spec.columns === "two";
    figure.grid.style.width = `${PAPER}px`;
    figure.grid.style.gridTemplateColumns = several ? "1fr 1fr" : "1fr";
    figure.draw();
  }
}

function afterPrint() {
  root.classList.remove("printing");
  resolvedColours.clear();
  for (const details of document.querySelectorAll("details[data-closed]")) {
    details.open = false;
    delete details.dataset.closed;
  }
  for (const figure of figures) {
    figure.grid.style.width = "";
    figure.grid.style.gridTemplateColumns = "";
  }
  route();
}

function facts() {
  const { larder = {} } = results;
  const texts = [dayOfResults(), results.scale && `scale ${results.scale}`,
    [larder.version && `Larder ${larder.version}`, larder.revision].filter(Boolean).join(" "), machineLine(),
    results.disk?.fsync_us_p50 !== undefined && `fsync p50 ${micros(results.disk.fsync_us_p50)}`];
  return h("p", { class: "facts" }, texts.filter(Boolean).map((text) => h("span", {}, text)), download());
}

/** A warning if Larder was not a release build. */
function buildWarning() {
  const { profile } = results.larder ?? {};
  return profile && profile !== "release" && h("p", { class: "banner", role: "status", id: "build-warning" },
    `⚠ This Larder was a ${profile} build, which is many times slower than a release build. Its peers were not. `
      + "No figure here says how fast Larder is.");
}

/** A link that saves the JSON of this page. */
function download() {
  const text = document.getElementById("results").textContent;
  const name = `larder-lab-${dayOfResults() || "results"}.json`;
  const link = h("a", { id: "download", href: "#", download: name }, "Download the JSON");
  link.addEventListener("click", () => {
    const file = new Blob([text], { type: "application/json" });
    if (!link.href.startsWith("blob:")) link.href = URL.createObjectURL(file);
  });
  return link;
}

function start() {
  const pages = pageList();
  const links = pages.map(([id, name]) => h("li", {}, h("a", { href: `#${id}` }, name)));
  const skip = (event) => {
    event.preventDefault();
    document.querySelector("main").focus();
  };
  document.body.append(
    h("a", { class: "skip", href: "#", click: skip }, "Skip to the results"),
    h("header", {}, h("h1", {}, "Larder and its peers, measured"), facts(), buildWarning()),
    h("nav", { class: "pages", "aria-label": "Pages" }, h("ul", {}, links)),
    h("main", { tabindex: -1 }, pages.map(([id]) => section(id))),
    h("footer", {}, "Made by ", h("code", {}, "larder bench"),
      ". This file needs no network. Figures are medians of rounds, with the minimum and the maximum below."),
  );
  addEventListener("hashchange", route);
  addEventListener("beforeprint", beforePrint);
  addEventListener("afterprint", afterPrint);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawInTheme);
  route();
}

start();
