#!/usr/bin/env python3
"""Tests a report of `larder bench all` in Chromium.

usage: tests/lab/report.py [--chromium PROGRAM] [--pictures DIRECTORY] REPORT.html

The test works on any report: it reads the JSON in the page and computes the figures again.
"""

import argparse
import json
import math
import pathlib
import re
import statistics
import sys
import tempfile

from playwright.sync_api import sync_playwright

WIDE = {"width": 1280, "height": 900}
PHONE = {"width": 390, "height": 844}
CLASSES = ["none", "async", "sync"]
UNITS = {"G": 1e9, "M": 1e6, "K": 1e3, "s": 1e6, "ms": 1e3, "µs": 1, "GiB": 2**30, "MiB": 2**20, "KiB": 2**10, "B": 1, "GB": 1e9, "MB": 1e6, "KB": 1e3}


# Systems without a server. They are not compared with any other.
CONTROLS = {"no-throttle", "memory-store"}
SERVER_FIGURES = {"cpu_us", "server_busy", "rss", "written_per_second", "read_per_second"}
# The cases of the experiment `converge` that compare only systems that read a device.
DISK_CASES = {"read-disk-1k", "read-disk-8k", "mixed-read", "overwrite"}
# Comparisons in which the peers' case is not the case of Larder.
PEER_CASES = {"rack-attack/throughput-gem": "throughput"}


class Results:
    """The JSON of a report. Computes its figures without the page's script."""

    def __init__(self, page_text):
        block = re.search(r'<script type="application/json" id="results">(.*?)</script>', page_text, re.DOTALL)
        self.json = json.loads(block.group(1))
        self.systems = {system["id"]: system for system in self.json.get("systems", [])}
        self.cells = {}
        for experiment in self.json.get("experiments", []):
            for point in experiment.get("points", []):
                key = (experiment["id"], point["case"], point["system"], as_text(point.get("x")))
                self.cells.setdefault(key, []).append(point)

    def is_larder(self, system):
        return self.systems.get(system, {}).get("family", system).lower() == "larder"

    def values(self, key, metric):
        """Returns the figures of the rounds that are not void."""
        figures = [value_of(point, metric) for point in self.cells.get(key, []) if not point.get("void")]
        return [figure for figure in figures if figure is not None]

    def median(self, key, metric):
        values = self.values(key, metric)
        return statistics.median(values) if values else None

    def capacities(self, experiment, case, system):
        """Returns for each round the highest x up to which p99 stays below a millisecond, and the next x's point.

        That point is None after the highest x of all systems. Leaves out rounds that ended below
        the highest x without a slow point.
        """
        top = max(point["x"] for key, cell in self.cells.items() if key[:2] == (experiment, case) for point in cell)
        points = [point for key, cell in self.cells.items() if key[:3] == (experiment, case, system) for point in cell]
        highest = []
        for number in {point["round"] for point in points}:
            best, last, slow = 0, None, None
            for point in sorted((point for point in points if point["round"] == number), key=lambda point: point["x"]):
                if point.get("void"):
                    best = None
                    break
                if not point.get("p99_us") or point["p99_us"] >= 1000:
                    last, slow = top, point
                    break
                best = last = point["x"]
            highest.append((best if last == top else None, slow))
        return [(rate, slow) for rate, slow in highest if rate is not None]

    def is_bound(self, row, system):
        """Returns true if the generator may have limited the figure of a system in a row of a comparison."""
        experiment, case = row["comparison"].split("/", 1)
        case = case if self.is_larder(system) else PEER_CASES.get(row["comparison"], case)
        xs, bound = {row["x"]}, False
        if row["metric"] == "capacity":
            ends = self.capacities(experiment, case, system)
            xs, bound = {as_text(rate) for rate, _ in ends}, any(slow and slow["generator_bound"] for _, slow in ends)
        good = [point for x in xs for point in self.cells.get((experiment, case, system, x), []) if not point.get("void")]
        return bound or any(point["generator_bound"] for point in good)

    def group(self, experiment, case, system):
        """Returns the group in which a system is compared; None if it is not compared."""
        flash = any(word in system for word in ("flash", "tiers", "extstore"))
        if system in CONTROLS:
            return None
        if experiment == "cliff":
            devices = "two devices" if system.endswith("-2") or "tiers" in system else "one device"
            return f"values on flash, {devices}" if flash else "values in RAM"
        if experiment == "cost":
            return "values on flash" if flash else ""
        database = self.systems.get(system, {}).get("family", "").lower() in ("postgresql", "postgres", "mariadb", "cassandra")
        return None if (experiment, case in DISK_CASES) == ("converge", True) and not (flash or database) else ""

    def best(self, row, larder, higher):
        """Returns the values of the best system for a row of a comparison.

        If `larder` is true, only Larder's systems count, otherwise only its peers. A system whose
        memory differs from Larder's does not count, unless it is a peer with less memory that is
        not worse.
        """
        mine = [entry for entry in self.ranked(row, True, higher) if not self.has_other_memory(entry[0])]

        def counts(key, values):
            if larder or not mine or not self.has_other_memory(key):
                return not self.has_other_memory(key)
            better = statistics.median(values) - statistics.median(mine[0][1])
            less = (self.median(key, "rss") or math.inf) < (self.median(mine[0][0], "rss") or 0)
            return less and (better if higher else -better) >= 0

        return next((values for key, values in self.ranked(row, larder, higher) if counts(key, values)), None)

    def has_other_memory(self, key):
        return 0 in self.values(key, "extra.equal_memory")

    def ranked(self, row, larder, higher):
        """Returns the keys and values of Larder's systems, or of its peers, for a row, the best first."""
        experiment, case = row["comparison"].split("/", 1)
        case = case if larder else PEER_CASES.get(row["comparison"], case)
        metric, found = row["metric"], []
        for key in {key for key in self.cells if key[:2] == (experiment, case)}:
            if self.systems.get(key[2], {}).get("durability") != row["durability"] or self.is_larder(key[2]) != larder:
                continue
            if self.group(experiment, case, key[2]) != row["group"]:
                continue
            if metric == "capacity":
                found.append((key, [rate for rate, _ in self.capacities(experiment, case, key[2])]))
            elif key[3] == row["x"]:
                found.append((key, self.values(key, metric)))
        found = [(key, values) for key, values in found if values]
        return sorted(found, key=lambda entry: statistics.median(entry[1]), reverse=higher)

    def gap(self, row, larder, any_x=False):
        """Returns true if Larder, or its peers, have void runs or failures where a row compares them."""
        experiment, case = row["comparison"].split("/", 1)
        case = case if larder else PEER_CASES.get(row["comparison"], case)

        def counts(system):
            same = self.systems.get(system, {}).get("durability") == row["durability"] and self.is_larder(system) == larder
            return same and self.group(experiment, case, system) == row["group"]

        here = {key: cell for key, cell in self.cells.items() if key[:2] == (experiment, case) and counts(key[2])}
        void = [key for key, cell in here.items() if any(point.get("void") for point in cell)]
        failed = next(entry for entry in self.json["experiments"] if entry["id"] == experiment).get("not_run") or []
        return any(any_x or row["x"] in ("", key[3]) for key in void) or any(counts(entry["system"]) for entry in failed)


def as_text(x):
    """Returns x as the page writes it in an attribute."""
    if x is None:
        return ""
    return str(int(x)) if float(x).is_integer() else repr(float(x))


def value_of(point, metric):
    """Returns a figure of a point. `metric` is the page's name for the figure."""
    extra = point.get("extra") or {}
    # Controls have no server. A latency, and the use of a server or generator, is 0 only if it was
    # not measured.
    if metric in SERVER_FIGURES and point["system"] in CONTROLS:
        return None
    if re.fullmatch(r"server_busy|generator_busy|rss|[^.]*_us", metric) and not point.get(metric):
        return None
    if metric == "miss_ratio":
        return None if point.get("hit_ratio") is None else 1 - point["hit_ratio"]
    if metric.startswith("extra."):
        return extra.get(metric[len("extra.") :])
    if metric == "steadiness":
        rates = [second["rate"] for second in point.get("seconds") or []]
        return min(rates) / statistics.median(rates) if rates else None
    if metric == "per_core_second":
        return 1e6 / point["cpu_us"] if point.get("cpu_us") else None
    if metric == "over_admitted":
        return extra["admitted"] - extra["budget"] if "admitted" in extra and "budget" in extra else None
    if metric == "lost":
        return extra["acknowledged"] - extra["survived"] if "acknowledged" in extra and "survived" in extra else None
    return point.get(metric)


def state_of(larder, peer, higher):
    """Returns the ratio of the medians of two systems' rounds, and the state of the comparison."""
    mine, theirs = statistics.median(larder), statistics.median(peer)
    if not higher:
        mine, theirs = theirs, mine
    ratio = mine / theirs if theirs else math.inf if mine else math.nan
    overlap = min(len(larder), len(peer)) > 1 and min(larder) <= max(peer) and min(peer) <= max(larder)
    if math.isnan(ratio):
        return ratio, "neither"
    if overlap or (ratio and max(ratio, 1 / ratio) - 1 <= (0.03 if min(len(larder), len(peer)) > 1 else 0.15)):
        return ratio, "level"
    return ratio, "ahead" if ratio > 1 else "behind"


def close(got, wanted, share=1e-9):
    """Returns true if two figures are equal except for rounding."""
    return wanted is not None and abs(float(got) - float(wanted)) <= share * max(1e-12, abs(float(wanted)))


def shown_value(text):
    """Parses a figure as it is shown: `43.7 K/s`, `1.2 ms`, `78 %`."""
    match = re.match(r"^(-?[\d.,]+(?:e-?\d+)?)\s*([A-Za-zµ]*)(/s)?\s*(%?)", text.strip())
    if not match:
        return None
    number = float(match.group(1).replace(",", ""))
    return number * (0.01 if match.group(4) else UNITS.get(match.group(2), 1))


class Check:
    """Counts and prints the outcome of each case."""

    def __init__(self):
        self.passed = 0
        self.failed = 0

    def that(self, name, holds, seen=""):
        if holds:
            self.passed += 1
            print(f"ok   {name}", flush=True)
        else:
            self.failed += 1
            print(f"FAIL {name}: {seen}", flush=True)


def pages_of(page):
    return page.eval_on_selector_all("main > section", "list => list.map(section => section.dataset.page)")


def show(page, name):
    """Opens a page of the report by its link, and waits until it is drawn."""
    page.click(f'nav.pages a[href="#{name}"]')
    page.wait_for_selector(f"#page-{name}:not([hidden])", state="attached")
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


# Returns the number of colours on each canvas of the page that is shown.
COLOURS = """() => [...document.querySelectorAll("main > section:not([hidden]) .plot")].map(plot => {
  const canvas = plot.querySelector("canvas");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const colours = new Set();
  let inked = 0;
  for (let at = 0; at < data.length; at += 4) {
    if (data[at + 3] === 0) continue;
    inked++;
    colours.add((data[at] << 16) | (data[at + 1] << 8) | data[at + 2]);
  }
  // A text that is too long for its room ends at the right edge.
  const edge = Array.from({ length: canvas.height }, (_, y) => data[((y + 1) * canvas.width - 1) * 4 + 3]);
  const cut = plot.dataset.plot === "bars" && edge.some(alpha => alpha > 0);
  return { name: plot.getAttribute("aria-label"), colours: colours.size, share: inked / (data.length / 4), cut };
})"""


def test_charts(check, page):
    """Every chart draws in several colours, and shows values for the pointer and the keyboard."""
    for name in pages_of(page):
        show(page, name)
        error = page.query_selector(f"#page-{name} > .banner")
        check.that(f"{name}: the page is built", error is None, error and error.inner_text())
        plots = page.evaluate(COLOURS)
        blank = [plot for plot in plots if plot["colours"] < 4 or plot["share"] < 0.002]
        check.that(f"{name}: every chart draws", not blank, blank[:3])
        cut = [plot["name"] for plot in plots if plot["cut"]]
        check.that(f"{name}: the texts of bars are whole", not cut, cut[:3])
        silent, deaf = [], []
        # Hovering over one chart may draw another again, so the loop looks each chart up only when
        # it needs it.
        cells = page.locator(f"#page-{name} .plot-cell:has(.plot)")
        for at in range(cells.count()):
            cell = cells.nth(at)
            plot = cell.locator(".plot")
            title = plot.get_attribute("aria-label")
            plot.scroll_into_view_if_needed()
            if not hover(page, cell):
                silent.append(title)
            page.mouse.move(2, 2)
            plot.focus()
            page.keyboard.press("ArrowRight")
            if not re.search(r"\d", reading(cell)):
                deaf.append(title)
            page.evaluate("document.activeElement.blur()")
        check.that(f"{name}: hover shows values", not silent, silent[:3])
        check.that(f"{name}: arrow keys show values", not deaf, deaf[:3])


def reading(cell):
    """Returns the text of a chart's tip or readout."""
    return cell.evaluate("""cell => [...cell.querySelectorAll(".tip:not([hidden]), .readout")].map(node => node.textContent).join(" ")""")


def hover(page, cell):
    """Moves the pointer across a chart until it shows a value."""
    for share in (0.5, 0.25, 0.75, 0.1, 0.9):
        box = cell.locator(".u-over").bounding_box()
        page.mouse.move(box["x"] + box["width"] * share, box["y"] + box["height"] * share)
        if re.search(r"\d", reading(cell)):
            return True
    return False


def test_figures(check, page, results):
    """Every figure on the page equals that of the JSON."""
    cells = page.eval_on_selector_all(
        "td[data-metric]",
        """list => list.map(cell => ({ ...cell.dataset, text: cell.firstChild?.textContent ?? "" }))""",
    )
    wrong, seen = [], set()
    for cell in cells:
        key = (cell["experiment"], cell["case"], cell["system"], cell["x"])
        seen.add((key, cell["metric"]))
        values = results.values(key, cell["metric"])
        if "void" in cell:
            if values or int(cell["void"]) != sum(1 for point in results.cells[key] if point.get("void")):
                wrong.append((key, cell["metric"], "void"))
            continue
        if not values:
            wrong.append((key, cell["metric"], "not in the JSON"))
            continue
        wanted = {"value": statistics.median(values), "min": min(values), "max": max(values), "n": len(values)}
        wrong += [(key, cell["metric"], name, cell[name], figure) for name, figure in wanted.items() if not close(cell[name], figure)]
        shown = shown_value(cell["text"])
        # The page shows milliseconds of the JSON in the format of microseconds.
        scale = 1000 if cell["metric"].endswith("_ms") else 2**20 if cell["metric"].endswith("_mib") else 1
        # The page shows bytes without decimals.
        least = 0.5 if re.search(r"\dB$|\d\sB$", cell["text"]) else 0.0051
        if cell["text"].startswith("100\u202f%") and wanted["value"] < 1:
            wrong.append((key, cell["metric"], "not all", cell["text"], wanted["value"]))
        if shown is None or abs(shown - wanted["value"] * scale) > max(0.0051 * abs(wanted["value"] * scale), least):
            wrong.append((key, cell["metric"], "shown", cell["text"], wanted["value"]))
    check.that(f"{len(cells)} figures equal the JSON", not wrong, wrong[:5])
    measured = [key for key in results.cells if is_measured(results, key)]
    missing = [key for key in measured if not any((key, metric) in seen for metric in metrics_of(results, key))]
    check.that(f"all {len(measured)} measured cells are on the page", not missing, missing[:5])


def is_measured(results, key):
    """Returns true if a cell has a figure or a void run."""
    return any(point.get("void") for point in results.cells[key]) or any(
        results.values(key, metric) for metric in metrics_of(results, key)
    )


def metrics_of(results, key):
    """Returns the names of the figures under which a cell may appear on the page."""
    point = results.cells[key][0]
    return ["rate", "hit_ratio", "cpu_us", "p99_us", *(f"extra.{name}" for name in point.get("extra") or {})]


# Returns the comparisons of the page, with their texts and the texts of both figures.
COMPARISONS = """list => list.map(row => {
  const figure = label => row.querySelector(`[data-label="${label}"]`)?.innerText ?? "";
  return { ...row.dataset, text: row.innerText, figures: { larder: figure("Larder"), peer: figure("Best peer") } };
})"""


def test_comparisons(check, page, results):
    """Each comparison names the best of Larder and of its peers. The first page counts them."""
    swapped = [state_of([mine], [theirs], True)[1] for mine, theirs in ((116, 100), (100, 116), (114, 100), (100, 114))]
    check.that("Larder and a peer may change places", swapped == ["ahead", "behind", "level", "level"], swapped)
    rows = page.eval_on_selector_all("tr[data-comparison]", COMPARISONS)
    lower = re.compile(r"_us$|_ms$|bytes|over_admitted|lost|written|miss_ratio")
    wrong = []
    for row in rows:
        higher = not lower.search(row["metric"])
        best = {side: results.best(row, side == "larder", higher) for side in ("larder", "peer")}
        for side, values in best.items():
            if (values is None) != (side not in row) or (values and not close(row[side], statistics.median(values))):
                wrong.append((row["comparison"], row["metric"], row["durability"], row["group"], side, row.get(side), values))
            if values and side in row and ("○" in row["figures"][side]) != results.is_bound(row, row[f"{side}System"]):
                wrong.append((row["comparison"], row["metric"], row["durability"], row["group"], side, "○", row["figures"]))
        if None in best.values():
            gap = next((side for side in best if best[side] is None and results.gap(row, side == "larder")), None)
            state = "void" if gap else "absent" if best["larder"] is None else "alone"
            # Void runs at the largest x must not move a comparison to another x.
            lacking = "larder" if best["larder"] is None else "peer"
            moved = state != "void" and results.gap(row, lacking == "larder", any_x=True)
            if (row["state"], row.get("gap")) != (state, {"larder": "larder", "peer": "peers"}.get(gap)) or moved:
                wrong.append((row["comparison"], row["durability"], row["group"], row["state"], row.get("gap"), state, gap))
            continue
        ratio, state = state_of(best["larder"], best["peer"], higher)
        shown = float(row.get("advantage", "nan"))
        equal = close(shown, ratio) if math.isfinite(ratio) else not math.isfinite(shown)
        if not equal or row["state"] != state:
            wrong.append((row["comparison"], shown, ratio, row["state"], state))
        if not math.isfinite(ratio) and not re.search(r"(peer|Larder|both) 0", row["text"]):
            wrong.append((row["comparison"], ratio, row["text"]))
    check.that(f"{len(rows)} comparisons equal the JSON", not wrong, wrong[:5])

    on_pages = page.eval_on_selector_all(
        'main > section:not([data-page="summary"]) tr[data-comparison]', "list => list.map(row => row.dataset.state)"
    )
    verdict = page.query_selector("#verdict")
    counted = {state: int(verdict.get_attribute(f"data-{state}")) for state in ("ahead", "behind", "level", "void")}
    wanted = {state: on_pages.count(state) for state in counted}
    check.that("the verdict counts every comparison", counted == wanted, (counted, wanted))
    key = "list => list.map(row => ['comparison', 'metric', 'durability', 'group', 'x', 'advantage'].map(name => row.dataset[name]).join())"
    losses = page.eval_on_selector_all("#page-summary [data-loss]", key)
    lost = ':is([data-state="behind"], [data-gap="larder"])'
    behind = page.eval_on_selector_all(f'main > section:not([data-page="summary"]) tr[data-comparison]{lost}', key)
    check.that(f"all {len(behind)} losses are listed on the first page", sorted(losses) == sorted(behind), (losses, behind))
    questions = page.eval_on_selector_all("tr[data-question]", "list => list.map(row => row.dataset.question)")
    check.that("each question has one line of losses", len(questions) == len(set(questions)), questions)


def test_honesty(check, page, results, text):
    """Void runs, missing systems, interruptions and samples are shown."""
    summary = page.inner_text("#page-summary")
    void = sum(1 for cell in results.cells.values() for point in cell if point.get("void"))
    rows = page.eval_on_selector_all("#page-summary tr[data-void-run]", "list => list.length")
    check.that(f"all {void} void runs are listed", rows == void, rows)
    wanted = {entry["id"] for entry in results.json.get("missing", [])}
    listed = set(page.eval_on_selector_all("#page-summary tr[data-missing]", "list => list.map(row => row.dataset.missing)"))
    check.that(f"{len(wanted)} missing systems are listed", wanted == listed, wanted ^ listed)
    interrupted = bool(results.json.get("interrupted"))
    check.that("an interruption is told", ("was interrupted" in summary) == interrupted, interrupted)
    told = set(page.eval_on_selector_all("tr[data-system-row]", "list => list.map(row => row.dataset.systemRow)"))
    check.that("every system has its version and settings", told == set(results.systems), told ^ set(results.systems))

    clouds = page.eval_on_selector_all("tr[data-cloud]", "list => list.map(row => [row.dataset.cloud, row.dataset.x, row.dataset.round, row.dataset.samples])")
    samples = [
        [key[2], key[3], str(point["round"]), str(len(point["samples"]["latency_us"]) // 4 * 3 // 4)]
        for key, cell in results.cells.items()
        for point in cell
        if key[1] == "cloud" and point.get("samples")
    ]
    # Base64 pads to 3 bytes, so the number of samples computed from its length may be one too high.
    equal = len(clouds) == len(samples) and all(
        got[:3] == want[:3] and 0 <= int(want[3]) - int(got[3]) <= 1 for got, want in zip(sorted(clouds), sorted(samples))
    )
    check.that(f"{len(samples)} clouds have every sample", equal, (clouds[:2], samples[:2]))

    published = json.loads(re.search(r'id="published">(.*?)</script>', text, re.DOTALL).group(1))
    table = published["counter"]["table"]
    wanted = {(column["name"], str(x)): rate for column in table["columns"] for x, rate in zip(table["x"], column["rate"])}
    cells = page.eval_on_selector_all("td[data-published]", "list => list.map(cell => [cell.dataset.published, cell.dataset.x, cell.dataset.value])")
    equal = {(name, x): float(value) for name, x, value in cells} == wanted
    check.that("the first article's table is whole", equal and len(wanted) == 70, len(cells))


def test_marks(check, page, results):
    """The report warns of what makes figures doubtful: the build, settings, memory, and axes."""
    larder = results.json.get("larder", {})
    warned = page.query_selector("#build-warning") is not None
    check.that("a build that is not for release is warned of", warned == (larder.get("profile", "release") != "release"), larder)

    wrong = []
    for experiment in results.json.get("experiments", []):
        for system in {point["system"] for point in experiment["points"]} & set(results.systems):
            wanted = (experiment.get("settings") or {}).get(system, results.systems[system].get("settings", []))
            selector = f'tr[data-settings="{experiment["id"]}/{system}"] code'
            if page.eval_on_selector_all(selector, "list => list.map(code => code.textContent)") != wanted:
                wrong.append((experiment["id"], system, wanted))
    check.that("each experiment has the settings of its systems", not wrong, wrong[:3])

    rows = page.eval_on_selector_all(
        'td[data-metric="extra.device_bytes_per_get"]',
        "list => list.map(cell => ({ ...cell.dataset, told: cell.textContent.includes('served from memory') }))",
    )
    wrong = [row for row in rows if row["told"] != is_from_memory(results, row)]
    check.that(f"{len(rows)} figures tell whether the device gave the values", not wrong, wrong[:3])

    misses = "list => list.map(cell => ({ ratio: cell.dataset.misses, ...cell.parentElement.querySelector('[data-metric]').dataset }))"
    for cell in page.eval_on_selector_all("td[data-misses]", misses):
        case = [key for key in results.cells if key[0] == cell["experiment"] and key[1] == cell["case"] and key[3] == cell["x"]]
        larder = next(key for name in results.systems for key in case if key[2] == name and results.is_larder(name))
        mine = next(key for key in case if key[2] == cell["system"])
        ratio = results.median(mine, "miss_ratio") / results.median(larder, "miss_ratio")
        check.that(f"{cell['case']} {cell['system']}: misses against Larder's", close(cell["ratio"], ratio), cell)
    for shown in page.eval_on_selector_all("[data-overwrites]", "list => list.map(node => ({ ...node.dataset }))"):
        cells = [(key[2], point) for key, cell in results.cells.items() if key[0] == shown["overwrites"] for point in cell]
        lost = {system for system, point in cells if "overwrit" in (point.get("void") or "")}
        kept = {system for system, point in cells if not point.get("void") and "overwrites_kept" in point.get("extra", {})}
        told = (int(shown["lost"]), int(shown["checked"]))
        check.that(f"{shown['overwrites']}: lost overwrites are told", told == (len(lost), len(lost | kept)), (told, lost, kept))

    # A recorded trace has the name of its file, which may be a word of the page or of JavaScript.
    traces = {key[1] for key in results.cells if key[0] == "hitratio" and ":" not in key[1]}
    text = page.inner_text("#page-hitratio").lower() if traces else ""
    unnamed = [name for name in traces if name.replace("-", " ") not in text]
    check.that(f"{len(traces)} recorded traces have the names of their files", not unnamed, unnamed)

    for name in ("get", "set"):
        values = [results.median(key, "cpu_us") for key in results.cells if key[:2] == ("cost", name)]
        values = [value for value in values if value]
        if len(values) < 3 or max(values) <= 20 * statistics.median(values):
            continue
        show(page, "cost")
        heads = page.inner_text("#figure-cost-bars .plots")
        check.that(f"cost {name}: the longest bar does not flatten the others", "logarithmic axis" in heads, heads)


def is_from_memory(results, row):
    """Returns true if memory served the values.

    A point may say so. Otherwise, the device delivered less than 10 % of a value per get.
    """
    told = results.median((row["experiment"], row["case"], row["system"], row["x"]), "extra.from_memory")
    return bool(told) or ("value" in row and float(row["value"]) < 0.1 * value_bytes(results, row))


def value_bytes(results, row):
    """Returns the length of a value in a case, from the conditions of the experiment."""
    conditions = next(experiment["conditions"] for experiment in results.json["experiments"] if experiment["id"] == row["experiment"])
    large = row["case"] == "read-disk-8k"
    return int(re.search(r"large ones of (\d+)" if large else r"values of (\d+)", "; ".join(conditions)).group(1))


# Returns for each visible command of the whole run whether it is above the scoreboard.
REPEAT_PLACES = """() => [...document.querySelectorAll("#page-summary p")]
  .filter(node => node.textContent.startsWith("Repeat all of it") && node.checkVisibility())
  .map(node => node.getBoundingClientRect().top < document.querySelector(".score").getBoundingClientRect().top)"""


def test_widths(check, page, results):
    """No page scrolls sideways on a phone, a tablet or a screen."""
    for size in (PHONE, {"width": 768, "height": 1024}, WIDE):
        page.set_viewport_size(size)
        for name in pages_of(page):
            show(page, name)
            page.evaluate("document.querySelectorAll('details').forEach(details => { details.open = true; })")
            width = page.evaluate("document.documentElement.scrollWidth")
            if name == "summary" and results.json.get("command"):
                places = page.evaluate(REPEAT_PLACES)
                check.that(f"{size['width']} px: the command of the run is shown once", len(places) == 1, places)
                if size == PHONE:
                    check.that("on a phone the command is above the scoreboard", places == [True], places)
            check.that(f"{name}: {size['width']} px without sideways scrolling", width <= size["width"], width)
            page.evaluate("document.querySelectorAll('details').forEach(details => { details.open = false; })")
    page.set_viewport_size(WIDE)


# Returns the texts on the page that is shown whose contrast is below WCAG AA, and the colours of families whose
# contrast is below 3.
FAINT = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = colour => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
  const ground = node => {
    for (let at = node; at; at = at.parentElement) {
      const colour = rgb(getComputedStyle(at).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return [255, 255, 255, 255];
  };
  const faint = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const node = texts.currentNode.parentElement;
    if (!texts.currentNode.textContent.trim() || !node.checkVisibility() || ["SCRIPT", "STYLE", "NOSCRIPT"].includes(node.tagName)) continue;
    const [one, other] = [light(rgb(getComputedStyle(node).color)), light(ground(node))];
    const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (contrast < 4.5) faint.push([texts.currentNode.textContent.trim().slice(0, 40), contrast.toFixed(2)]);
  }
  const style = getComputedStyle(document.documentElement);
  const paper = light(rgb(style.getPropertyValue("--paper")));
  for (const rule of [...document.styleSheets].flatMap(sheet => [...sheet.cssRules])) {
    for (const name of rule.style ?? []) {
      if (!name.startsWith("--f-")) continue;
      const ink = light(rgb(style.getPropertyValue(name)));
      const contrast = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
      if (contrast < 3) faint.push([name, contrast.toFixed(2)]);
    }
  }
  return faint;
}"""


def test_themes(check, page):
    """Light and dark differ, and both have the contrast of WCAG AA."""
    grounds = {}
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        grounds[theme] = page.evaluate("getComputedStyle(document.body).backgroundColor")
        for name in pages_of(page):
            show(page, name)
            faint = page.evaluate(FAINT)
            check.that(f"{name}: {theme} text has contrast AA", not faint, faint[:5])
        blank = [plot for plot in page.evaluate(COLOURS) if plot["colours"] < 4]
        check.that(f"charts draw in {theme}", not blank, blank[:3])
    check.that("dark is dark and light is light", grounds == {"light": "rgb(255, 255, 255)", "dark": "rgb(19, 22, 27)"}, grounds)
    page.emulate_media(color_scheme="light")


def tab_through(page, count):
    """Presses Tab `count` times.

    Returns the links that had the focus, and those of them whose focus was not visible.
    """
    reached, unseen = [], []
    for _ in range(count):
        page.keyboard.press("Tab")
        focus = page.evaluate(
            """() => { const node = document.activeElement, style = getComputedStyle(node);
                return { href: node.getAttribute("href"), visible: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0 }; }"""
        )
        reached.append(focus["href"])
        if not focus["visible"]:
            unseen.append(focus["href"])
    return reached, unseen


def test_keyboard(check, page):
    """The Tab key reaches tabs and legends. Their focus is visible, and they work by keyboard."""
    # Reloads the page, so that the Tab key begins at its top.
    page.reload()
    page.wait_for_selector("nav.pages")
    reached, unseen = tab_through(page, len(pages_of(page)) + 3)
    links = [f"#{name}" for name in pages_of(page)]
    check.that("every tab is reached by the keyboard", set(links) <= set(reached), set(links) - set(reached))
    check.that("the focus is visible", not unseen, unseen)

    page.focus('nav.pages a[href="#counter"]')
    page.keyboard.press("Enter")
    page.wait_for_selector("#page-counter:not([hidden])", state="attached")
    # The chart of the article's table is in every report.
    button = page.query_selector("#figure-counter-article .legend button[data-key]")
    figure = button.evaluate_handle("button => button.closest('figure')").as_element()
    picture = "figure => figure.querySelector('canvas').toDataURL()"
    before = figure.evaluate(picture)
    button.focus()
    page.keyboard.press("Space")
    check.that("the legend hides a system", button.get_attribute("aria-pressed") == "false" and figure.evaluate(picture) != before)
    page.keyboard.press("Space")
    check.that("the legend shows it again", button.get_attribute("aria-pressed") == "true" and figure.evaluate(picture) == before)


def test_cliff(check, page, results):
    """Hovering over an offered rate opens the whole distribution of that rate."""
    rates = sorted({float(key[3]) for key in results.cells if key[:2] == ("cliff", "ladder")})
    if len(rates) < 2:
        return
    show(page, "cliff")
    over = page.query_selector("#figure-cliff-ladder .u-over")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    seen = set()
    for share in (0.05, 0.5, 0.95):
        page.mouse.move(box["x"] + box["width"] * share, box["y"] + box["height"] / 2)
        seen.add(page.get_attribute("#distribution", "data-rate"))
    # A void run without a latency has its place at the bottom of the chart.
    last = {key: cell for key, cell in results.cells.items() if key[:2] == ("cliff", "ladder") and key[3] == as_text(rates[-1])}
    if any(all(point.get("void") and not point.get("p99_us") for point in cell) for cell in last.values()):
        page.mouse.move(box["x"] + box["width"] * 0.95, box["y"] + box["height"] * 0.98)
        near = page.inner_text("#figure-cliff-ladder .tip tr.near")
        check.that("the pointer finds a void run without a figure", "void" in near, near)
    check.that("hovering a rate opens its distribution", len(seen) == min(3, len(rates)) and {float(rate) for rate in seen} <= set(rates), seen)


def test_checkpoints(check, page, results):
    """The table of time lines and the readout of a second tell of the checkpoints."""
    cases = {"timeline": "", "insert": " insert"}
    points = [(point, cases[key[1]]) for key, cell in results.cells.items()
              if key[0] == "persistence" and key[1] in cases for point in cell if point.get("seconds")]
    marked = [(point, suffix) for point, suffix in points if point.get("checkpoints")]
    if not marked:
        return
    show(page, "persistence")
    for point, suffix in points:
        spans = point.get("checkpoints", [])
        seconds = sum(span["to"] - span["from"] for span in spans)
        run = f"{point['system']} {point['round']}{suffix}"
        row = page.query_selector(f'tr[data-run="{run}"] td:last-child')
        text = row.text_content() if row else ""
        shown = re.fullmatch(r"(\d+) in ([\d.,]+) s", text)
        count, total = (int(shown[1]), float(shown[2].replace(",", ""))) if shown else (0, 0)
        right = count == len(spans) and abs(total - seconds) <= 0.5 and bool(shown) != (text == "none")
        check.that(f"checkpoints of {run}", right, text)
    point, suffix = marked[0]
    page.select_option("#figure-persistence-detail select", f"{point['system']} {point['round']}{suffix}")
    over = page.query_selector("#figure-persistence-detail .u-over")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    told = 0
    for index in range(len(point["seconds"])):
        # The first and the last second lie at the edges of the plot.
        share = index / max(1, len(point["seconds"]) - 1)
        page.mouse.move(box["x"] + 1 + (box["width"] - 2) * share, box["y"] + box["height"] / 2)
        told += "checkpoint" in page.inner_text("#figure-persistence-detail .readout >> nth=0")
    within = sum(any(span["from"] < index + 1 and span["to"] > index for span in point["checkpoints"])
                 for index in range(len(point["seconds"])))
    check.that("the readout names checkpoints", told == within, (told, within))


def test_paper(check, page):
    """The report prints all pages to PDF. Afterwards the screen shows one page again."""
    show(page, "summary")
    # Narrow paper has the tables of a screen, not those of a phone.
    page.set_viewport_size(PHONE)
    page.emulate_media(media="print")
    head = page.evaluate("getComputedStyle(document.querySelector('#page-summary .comparisons thead')).display")
    check.that("paper has tables with heads", head == "table-header-group", head)
    page.emulate_media(media="null")
    page.set_viewport_size(WIDE)
    page.evaluate("window.printed = []; addEventListener('beforeprint', () => printed.push([...document.querySelectorAll('main > section')].filter(s => s.hidden).length))")
    pdf = page.pdf(prefer_css_page_size=True, print_background=True)
    sheets = len(re.findall(rb"/Type\s*/Page[^s]", pdf))
    check.that("the report prints to PDF", pdf.startswith(b"%PDF") and sheets >= len(pages_of(page)), sheets)
    check.that("every page is drawn before printing", page.evaluate("printed") == [0], page.evaluate("printed"))
    shown = page.eval_on_selector_all("main > section", "list => list.filter(section => !section.hidden).length")
    check.that("the screen returns after printing", shown == 1, shown)
    return pdf


def test_download(check, page, results):
    """The link saves the JSON of the page."""
    with page.expect_download() as download:
        page.click("#download")
    saved = json.loads(pathlib.Path(download.value.path()).read_text(encoding="utf-8"))
    check.that("the link saves the JSON", saved == results.json, download.value.suggested_filename)


def take_pictures(page, directory, pdf):
    """Saves the PDF, and pictures of every page: light, dark and phone."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "report.pdf").write_bytes(pdf)
    for look, size, theme in (("light", WIDE, "light"), ("dark", WIDE, "dark"), ("phone", PHONE, "light")):
        page.emulate_media(color_scheme=theme)
        page.set_viewport_size(size)
        for name in pages_of(page):
            show(page, name)
            page.screenshot(path=directory / f"{name}-{look}.png", full_page=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--chromium", default="/usr/bin/chromium", help="the browser (default: /usr/bin/chromium)")
    parser.add_argument("--pictures", type=pathlib.Path, help="save pictures of all pages there")
    parser.add_argument("report", type=pathlib.Path)
    arguments = parser.parse_args()
    path = arguments.report.absolute()
    text = path.read_text(encoding="utf-8")
    results = Results(text)
    check = Check()
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as downloads:
        browser = playwright.chromium.launch(executable_path=arguments.chromium, args=["--no-sandbox"], downloads_path=downloads)
        page = browser.new_page(viewport=WIDE)
        trouble, requests = [], []
        page.on("console", lambda message: message.type in ("error", "warning") and trouble.append(message.text))
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_selector("nav.pages")
        test_honesty(check, page, results, text)
        test_figures(check, page, results)
        test_comparisons(check, page, results)
        test_marks(check, page, results)
        test_charts(check, page)
        test_cliff(check, page, results)
        test_checkpoints(check, page, results)
        test_keyboard(check, page)
        test_themes(check, page)
        test_widths(check, page, results)
        pdf = test_paper(check, page)
        test_download(check, page, results)
        if arguments.pictures:
            take_pictures(page, arguments.pictures, pdf)
        check.that("nothing was complained about", not trouble, trouble[:5])
        outside = [url for url in requests if url.split("#")[0] != path.as_uri() and not url.startswith(("data:", "blob:"))]
        check.that("nothing was loaded", not outside, outside[:5])
        browser.close()
    print(f"report: {check.passed} passed, {check.failed} failed")
    return 1 if check.failed else 0


if __name__ == "__main__":
    sys.exit(main())
