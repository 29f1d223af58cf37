// Starts the page. It shows one view at a time, which the fragment of the address names.

import { ClientsView } from "./clients.js";
import { listen } from "./connection.js";
import { DurabilityView } from "./durability.js";
import { h } from "./elements.js";
import { showFound, showHeader, showLost, showRestart } from "./header.js";
import { HistoryView } from "./history.js";
import { KeysView } from "./keys.js";
import { LabView } from "./lab.js";
import { LimitsView } from "./limits.js";
import { Model } from "./model.js";
import { NowView } from "./now.js";
import { StatisticsView } from "./statistics.js";
import { TiersView } from "./tiers.js";
import { forgetToken } from "./token.js";

const model = new Model();
const views = [NowView, HistoryView, KeysView, DurabilityView, TiersView, LimitsView, ClientsView, LabView,
  StatisticsView]
  .map((View) => new View(model));
const main = document.getElementById("content");
const sections = views.map(({ name, title, element }) =>
  h("section", { id: `view-${name}`, "aria-labelledby": `title-${name}`, hidden: true },
    h("h2", { id: `title-${name}`, tabindex: -1 }, title), element));
const links = views.map((view) => h("a", { href: `#${view.name}` }, view.title));
let shown = -1;

/** Shows the view that the address names. At the start, shows the first view if it names none. */
function route() {
  const wanted = views.findIndex((view) => `#${view.name}` === location.hash);
  // Some fragments, such as that of the link to the content, name no view.
  if (wanted === -1 && shown !== -1) return;
  const isFirst = shown === -1;
  shown = Math.max(0, wanted);
  sections.forEach((section, at) => { section.hidden = at !== shown; });
  links.forEach((link, at) => {
    if (at === shown) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  });
  const view = views[shown];
  document.title = `${view.title} – Larder`;
  if (!isFirst) {
    sections[shown].querySelector("h2").focus({ preventScroll: true });
    scrollTo(0, 0);
  }
  view.open?.();
  view.update();
}

listen((message) => {
  const restarted = model.take(message);
  showFound();
  showHeader(model);
  if (restarted) {
    forgetToken();
    showRestart(model.latest.time - (model.number("uptime") ?? 0));
    views.forEach((view) => view.restarted?.());
  }
  views[shown].update();
}, (reason) => {
  forgetToken();
  showLost(reason);
});

main.append(...sections);
document.getElementById("views").append(h("ul", {}, links.map((link) => h("li", {}, link))));
addEventListener("hashchange", route);
route();
