#!/usr/bin/env python3
"""Tests the live page of the admin port in Chromium, on a real server under load.

usage: tests/page/page.py [--chromium PROGRAM] [--pictures DIRECTORY] LARDER
"""

import argparse
import json
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

from playwright.sync_api import sync_playwright

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "lab"))
from actions import enter_token, test_actions, test_foreign_pages, test_forgotten, token_of  # noqa: E402
from report import FAINT, PHONE, WIDE, Check, tab_through  # noqa: E402

VIEWS = ["now", "history", "keys", "durability", "tiers", "limits", "clients", "lab", "statistics"]
# Names that would become elements if they were not escaped. Keys have no spaces, so the prefix has
# none either.
PREFIX = "login/<img/src=x/onerror=alert(1)>"
STORE = "st<b>ore"
POLICIES = f"""
[[limit]]
name = "logins"
prefix = "{PREFIX}"
budget = 50
window = "10s"

[[limit]]
name = "api:v1/read"
budget = 60
window = "1s"
algorithm = "gcra"
burst = 5
shadow = true
"""
MIX = "get=70,set=20,delete=2,incr=5,touch=3"
RATE = 2000
HOT_KEY = "hot<b>:key"
# Requests per second of the hottest key, sent by `ask_hot`.
HOT_RATE = 400
# The largest relative error of rates. The page, `stats` and the load generator count slightly
# different seconds.
SAMPLING_ERROR = 0.15
# The largest relative distance of a gauge from the range of its values before and after.
GAUGE_ERROR = 0.01
# The largest number of comparisons of gauges, which may rise and fall between two readings.
LOOKS = 10
# Seconds of load before the pictures are taken, so that the charts show something.
BEFORE_PICTURES = 60
# A word of the browser's warning about reading canvases. Only this test reads them.
READ_BACK = "willReadFrequently"


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Larder:
    """A server and its load. Its log is in `directory`, which the caller removes."""

    def __init__(self, program, directory, options=()):
        self.program, self.directory, self.options = program, directory, options
        self.port, self.admin = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.admin}/"
        self.process = self.load = None
        self.asking = threading.Event()

    def start(self):
        command = [self.program, "serve", "--listen", f"127.0.0.1:{self.port}", "--admin", f"127.0.0.1:{self.admin}", *self.options]
        with open(self.directory / "larder.log", "ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + 60
        while not self.is_ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"the server did not start:\n{(self.directory / 'larder.log').read_text()}")
            time.sleep(0.05)

    def is_ready(self):
        try:
            return urllib.request.urlopen(f"{self.url}readyz", timeout=5).status == 200
        except OSError:
            return False

    def start_load(self):
        """Starts a load of `MIX` at a steady rate, gets of one key, and requests for units of both limits."""
        traffic = ["-c", "4", "--mix", MIX, "--rate", str(RATE), "--keys", "6000", "--value-size", "1000-6000"]
        command = [self.program, "bench", "load", "--server", f"127.0.0.1:{self.port}", *traffic, "--time", "3600", "--quiet"]
        self.load = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.asking.set()
        threading.Thread(target=self.ask_limits, daemon=True).start()
        threading.Thread(target=self.ask_hot, daemon=True).start()

    def ask_hot(self):
        """Gets one key at a steady rate."""
        try:
            with socket.create_connection(("127.0.0.1", self.port)) as client:
                replies = client.makefile("rb")
                while self.asking.is_set():
                    client.sendall(f"get {HOT_KEY}\r\nmn\r\n".encode() * (HOT_RATE // 100))
                    for _ in range(HOT_RATE // 100):
                        while replies.readline() not in (b"MN\r\n", b""):
                            pass
                    time.sleep(0.01)
        except OSError:
            pass  # The server was killed.

    def ask_limits(self):
        try:
            with socket.create_connection(("127.0.0.1", self.port)) as client:
                replies = client.makefile("rb")
                while self.asking.is_set():
                    client.sendall(b"ma someone Qlogins\r\nma someone Qapi:v1/read\r\n")
                    replies.readline(), replies.readline()
                    time.sleep(0.01)
        except OSError:
            pass  # The server was killed.

    def stats(self, group=""):
        """Returns the rows of `stats`, requested over memcached's protocol."""
        with socket.create_connection(("127.0.0.1", self.port)) as client:
            client.sendall(f"stats {group}".strip().encode() + b"\r\n")
            lines = []
            for line in client.makefile("rb"):
                if line == b"END\r\n":
                    break
                lines.append(line.decode().rstrip("\r\n").split(" ", 2)[1:])
        return {row[0]: row[1] if len(row) > 1 else "" for row in lines}

    def reset_stats(self):
        with socket.create_connection(("127.0.0.1", self.port)) as client:
            client.sendall(b"stats reset\r\n")
            client.makefile("rb").readline()

    def end_load(self):
        self.asking.clear()
        if self.load:
            self.load.kill()
            self.load.wait()

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self):
        self.end_load()
        if self.process and self.process.poll() is None:
            self.process.terminate()
            self.process.wait()


def show(page, name):
    """Opens a view by its link, and waits until it is shown."""
    page.click(f'nav a[href="#{name}"]')
    page.wait_for_selector(f"#view-{name}:not([hidden])", state="attached")


def values_of(page, view):
    """Returns the exact values of the figures of a view, by name."""
    nodes = page.eval_on_selector_all(f"#view-{view} [data-figure]", "list => list.map(node => [node.dataset.figure, node.dataset.value])")
    return {name: float(value) for name, value in nodes if value}


def next_beat(page, name="total"):
    """Waits until a figure of the view Now changes, because a message has arrived."""
    figure = f'#view-now [data-figure="{name}"]'
    before = page.get_attribute(figure, "data-value")
    page.wait_for_function("([figure, before]) => document.querySelector(figure).dataset.value !== before", arg=[figure, before])


# Returns the number of colours and the share of ink of each canvas in the view that is shown.
INK = """() => [...document.querySelectorAll("main > section:not([hidden]) .chart:not([hidden])")].map(chart => {
  const canvas = chart.querySelector("canvas");
  const colours = new Set();
  let inked = 0;
  if (canvas === null) return { name: chart.dataset.chart, colours: 0, share: 0 };
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  for (let at = 0; at < data.length; at += 4) {
    if (data[at + 3] === 0) continue;
    inked++;
    colours.add((data[at] << 16) | (data[at + 1] << 8) | data[at + 2]);
  }
  return { name: chart.dataset.chart, colours: colours.size, share: inked / (data.length / 4) };
})"""

DRAWN = f"""() => {{ const charts = ({INK})(); return charts.every(chart => chart.colours >= 4 && chart.share > 0.005); }}"""

EXPECTED_CHARTS = {
    "now": {"requests", "latency", "hits", "cpu", "network", "evictions"},
    "history": {"requests", "latency", "hits", "cpu", "memory", "network", "evictions", "limits", "unsynced", "commit", "written"},
    "keys": set(),
    "durability": {"unsynced", "commit", "written"},
    "tiers": {"flash", "written", "on-devices"},
    "limits": {"limits"},
    "clients": set(),
    "lab": set(),
    "statistics": set(),
}


def test_views(check, page):
    """Every view opens by its link, has the right title, and draws its charts."""
    for name in VIEWS:
        show(page, name)
        title, current = page.title(), page.inner_text("nav a[aria-current=page]")
        focus = page.evaluate("document.activeElement.id")
        check.that(f"{name}: is named", title == f"{current} – Larder" and focus in (f"title-{name}", ""), (title, current, focus))
        try:
            page.wait_for_function(DRAWN, timeout=10000)
        except Exception:
            pass
        ink = page.evaluate(INK)
        blank = [chart for chart in ink if chart["colours"] < 4 or chart["share"] < 0.005]
        check.that(f"{name}: {len(ink)} charts draw", not blank and {chart["name"] for chart in ink} == EXPECTED_CHARTS[name], blank or ink)


def test_rates(check, page, server):
    """The rates on the page, over several seconds, are the growth of `stats` in that time."""
    show(page, "now")
    next_beat(page)
    before, from_time = server.stats(), time.monotonic()
    seen = []
    for _ in range(5):
        next_beat(page)
        seen.append(values_of(page, "now"))
    after, seconds = server.stats(), time.monotonic() - from_time
    growth = lambda *rows: sum(float(after[row]) - float(before[row]) for row in rows) / seconds
    wanted = {
        "reads": growth("cmd_get"),
        "writes": growth("cmd_set"),
        "counts": growth("incr_hits", "incr_misses", "decr_hits", "decr_misses"),
        "received": growth("bytes_read"),
        "sent": growth("bytes_written"),
    }
    for name, value in wanted.items():
        mean = sum(values[name] for values in seen) / len(seen)
        check.that(f"now: {name} are those of stats", value > 0 and abs(mean - value) <= SAMPLING_ERROR * value, (mean, value))
    last = seen[-1]
    total = sum(last[name] for name in ("reads", "writes", "deletes", "counts", "touches"))
    check.that("now: the total is the sum of the verbs", abs(last["total"] - total) < 1, (last["total"], total))
    hits, misses = (float(after[row]) - float(before[row]) for row in ("get_hits", "get_misses"))
    ratio = hits / (hits + misses)
    mean = sum(values["hit_ratio"] for values in seen) / len(seen)
    check.that("now: the hit ratio is that of stats", abs(mean - ratio) < 0.05, (mean, ratio))
    wrong = wrong_gauges(page, server)
    check.that("now: gauges are those of stats", not wrong, wrong)
    busy = growth("rusage_user", "rusage_system")
    mean = sum(values["cpu"] for values in seen) / len(seen)
    check.that("now: processor time is that of stats", abs(mean - busy) < max(0.3 * busy, 0.05), (mean, busy))
    check.that("now: the condition is told", page.inner_text("#condition").endswith(".") and page.get_attribute("#condition", "role") == "status")


def wrong_gauges(page, server):
    """Returns the gauges of the view Now that show a wrong value.

    A right value is between the values of `stats` before and after it. A gauge may rise and fall
    between two readings, so it may be right in any of several comparisons. A figure that shows
    another row would be wrong in all of them.
    """
    gauges = {"items": "curr_items", "limit": "limit_maxbytes", "max_connections": "max_connections", "resident": "larder_resident_bytes"}
    wrong = {}
    for _ in range(LOOKS):
        before = server.stats()
        # The message that is arriving now may be older than `before`, so the test waits for two
        # messages.
        next_beat(page)
        next_beat(page)
        shown, after = values_of(page, "now"), server.stats()
        for name, row in list(gauges.items()):
            low, high = sorted((float(before[row]), float(after[row])))
            if low * (1 - GAUGE_ERROR) <= shown[name] <= high * (1 + GAUGE_ERROR):
                del gauges[name]
                wrong.pop(name, None)
            else:
                wrong[name] = (shown[name], low, high)
        if not gauges:
            break
    return wrong


def number(text):
    try:
        return float(text)
    except ValueError:
        return None


def test_statistics(check, page, server):
    """The view has all rows, with values between those before and after. The filter works."""
    show(page, "statistics")
    page.wait_for_selector("#view-statistics tbody tr:nth-child(100)")
    described = json.load(urllib.request.urlopen(f"{server.url}v1/metrics"))
    counters = {metric["row"] for metric in described if metric["kind"] == "counter"}
    wrong, right, values = {}, set(), {}
    for look in range(LOOKS):
        before, shown, after = look_at_statistics(page, server)
        for name, value in [*before.items(), *after.items()]:
            values.setdefault(name, set()).add(value)
        if look == 0:
            check.that(f"statistics: all {len(after)} rows are there", set(after) <= set(shown), set(after) - set(shown))
        # A request for statistics takes a connection, so rows about connections may differ.
        rows = [name for name in set(before) & set(shown) if "connection" not in name]
        for name in set(rows) - right:
            told = agrees(before[name], shown[name], after[name], name in counters or name.startswith("limit:"))
            if told:
                right.add(name)
                wrong.pop(name, None)
            elif told is False:
                wrong[name] = (before[name], shown[name], after[name])
        # Gauges may rise and fall between two readings, even if both readings are equal. The test
        # cannot judge gauges that change all the time.
        wrong = {name: seen for name, seen in wrong.items() if name in counters or len(values[name]) == 1}
        if not wrong and look >= 2:
            break
    check.that(f"statistics: values of {len(right)} rows are those of stats", not wrong and len(right) > 0.9 * len(rows), (list(wrong.items())[:5], sorted(set(before) - right)))
    page.fill("#filter", "LANE_0")
    visible = page.eval_on_selector_all("#view-statistics tbody tr:not([hidden]) [data-row]", "list => list.map(cell => cell.dataset.row)")
    check.that("statistics: the filter works", visible and all("lane_0" in name for name in visible), visible)
    check.that("statistics: the filter says how many", page.inner_text("#view-statistics .controls [role=status]").startswith(f"{len(visible)} of "))
    page.fill("#filter", "")


def look_at_statistics(page, server):
    """Returns the rows of `stats`, then those that the view shows, then those of `stats` again."""
    before = {**server.stats(), **server.stats("limits")}
    # The rows shown at first may be of the second before, and so may the message that is arriving.
    # So the test waits for two changes.
    for _ in range(2):
        old = page.inner_text('[data-row="cmd_get"]')
        page.wait_for_function("old => document.querySelector('[data-row=\"cmd_get\"]').textContent !== old", arg=old)
    shown = dict(page.eval_on_selector_all("[data-row]", "list => list.map(cell => [cell.dataset.row, cell.textContent])"))
    return before, shown, {**server.stats(), **server.stats("limits")}


def agrees(before, shown, after, grows):
    """Returns true if the value shown is that of the row, and None if that cannot be decided.

    `grows` is true for a counter.
    """
    first, last = number(before), number(after)
    if before == after:
        # JSON has no trailing zeros.
        return shown == after or first is not None and first == number(shown)
    if first is None or last is None or number(shown) is None:
        return None if first is None else False
    if grows:
        return first <= number(shown) <= last
    return True if min(first, last) <= number(shown) <= max(first, last) else None


def test_limits(check, page, server):
    """Policies have the counts of `stats limits`, and their rates."""
    before = server.stats("limits")
    show(page, "limits")
    page.wait_for_function("() => document.querySelector('#view-limits tr[data-policy=\"logins\"] td.over').dataset.value > 0")
    cells = page.eval_on_selector_all(
        "#view-limits tr[data-policy]",
        """list => list.map(row => [row.dataset.policy, ["within", "near", "over", "shadow"].map(result =>
            [result, [...row.querySelectorAll("td." + result)].map(cell => Number(cell.dataset.value))])])""",
    )
    after = server.stats("limits")
    wrong, rates = [], {}
    for policy, results in cells:
        for result, (rate, total) in results:
            rates[policy] = rates.get(policy, 0) + rate
            row = f"limit:{policy}:{result}"
            if not float(before[row]) <= total <= float(after[row]):
                wrong.append((row, before[row], total, after[row]))
    check.that(f"limits: {len(cells)} policies have the counts of stats", len(cells) == 2 and not wrong, wrong)
    check.that("limits: rates are shown", all(10 < rate <= 220 for rate in rates.values()), rates)
    # Each of the two limits gets at most 100 requests a second. The first rates shown are those
    # since the start.
    page.wait_for_selector("#view-limits .refused tbody tr[data-by='api:v1/read']")
    rows = page.eval_on_selector_all(
        "#view-limits .refused tbody tr",
        "list => list.map(row => [row.dataset.by, row.dataset.name, ...[2, 3].map(at => Number(row.children[at].dataset.value))])",
    )
    by = {policy: (key, refused, shadow) for policy, key, refused, shadow in rows}
    check.that("limits: refused keys are told apart by policy", len(rows) == len(by) == 2 and all(key == "someone" for key, *_ in by.values()), rows)
    check.that(
        "limits: refused keys have their rates",
        0 < by["logins"][1] <= 220 and by["logins"][2] == 0 and by["api:v1/read"][1] == 0 and 0 < by["api:v1/read"][2] <= 220,
        rows,
    )


# Returns the texts of a column in the table of connections.
COLUMN = """name => [...document.querySelectorAll(`#view-clients [data-column="${name}"]`)].filter(cell => cell.closest("[aria-label=Connections]")).map(cell => cell.textContent)"""


def test_clients(check, page, server):
    """Connections and traffic are those of `stats conns` and `stats`. Sorting and filter work."""
    show(page, "clients")
    received = '#view-clients [data-figure="received_per_second"]'
    next_answer = lambda: page.wait_for_function(
        "([figure, before]) => !['', before].includes(document.querySelector(figure).dataset.value)",
        arg=[received, page.get_attribute(received, "data-value")],
    )
    next_answer()
    before, from_time = server.stats(), time.monotonic()
    rates = []
    for _ in range(3):
        next_answer()
        rates.append(values_of(page, "clients"))
    after, seconds = server.stats(), time.monotonic() - from_time
    for figure, row in (("received_per_second", "bytes_read"), ("sent_per_second", "bytes_written")):
        wanted = (float(after[row]) - float(before[row])) / seconds
        mean = sum(values[figure] for values in rates) / len(rates)
        check.that(f"clients: {figure} is that of stats", wanted > 0 and abs(mean - wanted) <= SAMPLING_ERROR * wanted, (mean, wanted))
    # The request for `stats` takes a connection that the page does not count.
    open_now = float(after["curr_connections"]) - 1
    check.that("clients: all connections are counted", rates[-1]["open"] == open_now == rates[-1]["text"], (rates[-1], open_now))
    addresses = page.evaluate(COLUMN, "address")
    conns = {value.removeprefix("tcp:") for row, value in server.stats("conns").items() if row.endswith(":addr")}
    check.that(f"clients: all {len(addresses)} connections are listed", len(addresses) == open_now and set(addresses) <= conns, (addresses, conns))
    talkers = page.inner_text('#view-clients [aria-label="Addresses"] tbody')
    check.that("clients: the address that moves most is listed", talkers.startswith("127.0.0.1"), talkers)
    page.focus("#view-clients th button:text-is('Client')")
    page.keyboard.press("Enter")
    check.that("clients: a column is sorted by keyboard", page.evaluate(COLUMN, "address") == sorted(addresses))
    page.keyboard.press("Enter")
    order = page.get_attribute('#view-clients th[aria-sort]', "aria-sort")
    check.that("clients: and in reverse", page.evaluate(COLUMN, "address") == sorted(addresses, reverse=True) and order == "descending", order)
    page.select_option("#client-order", "sent")
    sent = page.eval_on_selector_all('#view-clients td[data-column="sent"]', "list => list.filter(cell => cell.closest('[aria-label=Connections]')).map(cell => Number(cell.dataset.value))")
    check.that("clients: the choice sorts", sent == sorted(sent, reverse=True) and sent[0] > 0, sent)
    page.fill("#client-filter", addresses[0])
    check.that("clients: the filter works", page.evaluate(COLUMN, "address") == [addresses[0]])
    announced = "#view-clients .controls:has(#client-filter) [role=status]"
    check.that("clients: the filter says how many", page.inner_text(announced).startswith("1 of "))
    page.fill("#client-filter", "")
    page.select_option("#client-order", "bytes_per_second")
    page.evaluate("selector => { window.said = 0; new MutationObserver(() => { window.said += 1; }).observe(document.querySelector(selector), { childList: true, characterData: true, subtree: true }); }", announced)
    pause = page.locator("#view-clients button:text-is('Pause')")
    pause.focus()
    page.keyboard.press("Enter")
    content = "document.querySelector('#view-clients').innerText"
    paused = page.evaluate(content)
    page.wait_for_timeout(4500)
    check.that("clients: a pause keeps everything as it is", page.evaluate(content) == paused and "As of" in paused and pause.get_attribute("aria-pressed") == "true")
    page.keyboard.press("Enter")
    next_answer()
    check.that("clients: then it goes on", page.evaluate(content) != paused and pause.get_attribute("aria-pressed") == "false")
    # One more connection changes the number of connections shown.
    before = values_of(page, "clients")["open"]
    with socket.create_connection(("127.0.0.1", server.port)):
        page.wait_for_function("count => Number(document.querySelector('#view-clients [data-figure=open]').dataset.value) > count", arg=before)
        check.that("clients: new answers are not announced", page.evaluate("window.said") == 0)


def test_slow_commands(check, browser, program, directory):
    """If the server is paused during commits, the page shows slow commands and their waits."""
    # With a threshold of 10 ms, a busy machine has so many slow commands that they would replace
    # those of the pauses.
    settings = ["--memory", "16MB", "--store", f"{directory / 'sync'}:64MB", "--durability", "sync", "--slow-command", "200ms"]
    server = Larder(program, directory, settings)
    server.start()
    page = browser.new_page(viewport=WIDE)
    errors = []
    page.on("pageerror", lambda error: errors.append(error))
    try:
        # The page gets no answer to this request.
        page.route("**/v1/clients", lambda route: None)
        page.goto(f"{server.url}#clients")
        page.wait_for_selector("#view-clients h2")
        buttons = page.locator("#view-clients button:visible").all_inner_texts()
        page.eval_on_selector_all("#view-clients button", "buttons => buttons.filter((button) => button.textContent === '').forEach((button) => button.click())")
        check.that("clients: before an answer there is no button without a text", "Pause" in buttons and all(buttons) and not errors, (buttons, errors))
        page.unroute("**/v1/clients")
        page.wait_for_selector("#view-clients [data-figure=open][data-value]")
        server.start_load()
        for _ in range(100):
            server.process.send_signal(signal.SIGSTOP)
            time.sleep(0.3)
            server.process.send_signal(signal.SIGCONT)
            slow = server.stats("slow")
            late = [name.removesuffix(":took_us") for name, value in slow.items() if name.endswith(":took_us") and int(value) >= 200_000]
            if any("commit" in slow[f"{number}:waits"] for number in late):
                break
            time.sleep(0.1)
        waited = "() => [...document.querySelectorAll('#view-clients [aria-label=\"Slow commands\"] tbody tr')].map(row => [...row.children].map(cell => cell.textContent)).find(([, took, , , waited]) => waited.includes('the commit') && (parseInt(took) >= 200 && took.endsWith('ms') || took.endsWith(' s')))"
        server.end_load()
        # The command that requests the slow commands may be slow itself.
        count = int(server.stats()["larder_slow_commands"])
        page.wait_for_function("count => Number(document.querySelector('#view-clients [data-figure=slow_count]').dataset.value) >= count", arg=count)
        shown = values_of(page, "clients")["slow_count"]
        more = page.locator("#view-clients button:text-matches('^Show all')")
        if more.is_visible():
            more.click()
        row = page.wait_for_function(waited, timeout=20000).json_value()
        check.that("clients: a slow command is told", re.fullmatch("[0-9a-f]{16}", row[5]) and row[3].startswith("127.0.0.1:"), row)
        slow = server.stats("slow")
        check.that("clients: slow commands are those of stats", count <= shown <= int(slow["count"]) <= count + 5 and slow["threshold_us"] == "200000", (count, shown, slow["count"]))
        keys = {value for name, value in slow.items() if name.endswith(":key_hash")}
        check.that("clients: the key is that of stats", row[5] in keys, (row, keys))
    finally:
        page.close()
        server.end()


def test_escaping(check, page, server):
    """The page shows names with markup as text."""
    show(page, "limits")
    check.that("a prefix with markup is text", PREFIX in page.inner_text("#view-limits"))
    show(page, "tiers")
    device = server.stats()["larder_lane_0_device"]
    cell = page.inner_text("#view-tiers tbody tr:first-child th")
    check.that("a device with markup is text", STORE in device and device in cell, (device, cell))
    show(page, "statistics")
    page.wait_for_selector("#view-statistics tbody tr:nth-child(100)")
    foreign = page.eval_on_selector_all("img, iframe, object, main .off b, tbody b, main script, [onerror]", "list => list.map(node => node.outerHTML)")
    check.that("no name became an element", not foreign, foreign)


def cells_of(page, label):
    """Returns the cells of a table in the view Keys, by row and heading."""
    rows = page.eval_on_selector_all(
        f'#view-keys [aria-label="{label}"] tbody tr',
        """list => list.map(row => [row.dataset.name,
            Object.fromEntries([...row.querySelectorAll("td")].map(cell => [cell.dataset.label, [Number(cell.dataset.value), cell.textContent]]))])""",
    )
    return dict(rows)


def test_keys(check, page, server):
    """Hot keys and prefixes have the figures of the load, within the error that the view states."""
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        replies = client.makefile("rb")
        # Sets 1500 items of 2000 bytes. Their prefixes `page:old:` and `page:new:` lie within
        # `page:`.
        for number in range(1500):
            key = f"page:{'old' if number % 3 else 'new'}:{number}"
            client.sendall(f"set {key} 0 {600 if number % 3 else 0} 2000\r\n{'v' * 2000}\r\n".encode())
            replies.readline()
        client.sendall(f"set {HOT_KEY} 0 0 5\r\nvalue\r\n".encode())
        replies.readline()
    show(page, "keys")
    page.wait_for_selector(f"#view-keys tr[data-name='{HOT_KEY}']", timeout=60000)
    report = page.evaluate("fetch('v1/keys').then(reply => reply.json())")
    hot = next(key for key in report["hot"] if key["key"] == HOT_KEY)
    rank = [key["key"] for key in report["hot"]].index(HOT_KEY)
    check.that("keys: the hottest key is first", rank == 0 and hot["reads_per_second"] > 0, report["hot"][:3])
    shown = cells_of(page, "Hot keys")[HOT_KEY]
    check.that("keys: its row has rates and error", shown["Reads"][0] > 0 and "±" in shown["Error"][1], shown)
    total, samples = float(server.stats()["curr_items"]), report["items"]["samples"]
    check.that("keys: all items are counted", abs(report["items"]["total"] - total) <= 0.05 * total, (report["items"], total))
    page.click('#view-keys tr[data-name="page:"] button')
    page.wait_for_selector('#view-keys tr[data-name="page:new:"]')
    # For a minute, the view still counts samples from before these items were set.
    deadline = time.monotonic() + 90
    while True:
        tree, wrong = cells_of(page, "Prefixes"), []
        for prefix, items in (("page:", 1500), ("page:old:", 1000), ("page:new:", 500)):
            share = items / total
            error = 2 * (share * (1 - share) / samples) ** 0.5 * total
            if abs(tree[prefix]["Items"][0] - items) > 2 * error:
                wrong.append((prefix, tree[prefix]["Items"], items, error))
        if not wrong or time.monotonic() > deadline:
            break
        page.wait_for_timeout(1000)
    check.that(f"keys: prefixes have their items, from {samples} samples", not wrong, wrong)
    check.that("keys: times to live are shown", "min" in tree["page:old:"]["Time to live"][1] and tree["page:new:"]["Time to live"][1] == "never expires", tree)
    page.focus('#view-keys tr[data-name="page:"] button')
    page.keyboard.press("Enter")
    page.wait_for_selector('#view-keys tr[data-name="page:new:"]', state="detached")
    closed = page.get_attribute('#view-keys tr[data-name="page:"] button', "aria-expanded")
    focus = page.evaluate("document.activeElement.closest('tr')?.dataset.name")
    check.that("keys: a prefix is closed by keyboard, and keeps the focus", (closed, focus) == ("false", "page:"), (closed, focus))
    page.click(f"#view-keys tr[data-name='{HOT_KEY}'] button")
    asked = page.evaluate("[document.activeElement.value, document.querySelector('#view-keys .item .said').textContent]")
    check.that("keys: a key can be looked up, which needs the token", asked == [HOT_KEY, "Enter the token first."], asked)
    check.that("keys: large items are shown", any(values["Bytes"][0] > 5000 for values in cells_of(page, "Large items").values()))
    check.that("keys: a key with markup is text", page.query_selector("#view-keys tbody b") is None and HOT_KEY in page.inner_text("#view-keys"))


def test_rows(check, page):
    """A new order of the view Keys moves as few rows as possible, and the focus stays near."""
    names = []

    def answer(route):
        report = route.fetch().json()
        numbers = {"reads_per_second": 9, "writes_per_second": 1, "bytes_per_second": 5, "error": 2, "missing": 0}
        report["hot"] = [{"key": name, **numbers} for name in names]
        route.fulfill(json=report)

    def await_order(order):
        names[:] = order
        page.wait_for_function(
            """names => [...document.querySelectorAll('#view-keys [aria-label="Hot keys"] tbody tr')]
                .map(row => row.dataset.name).join() === names.join()""", arg=order)

    def events():
        focus = page.evaluate("document.activeElement.closest('tr')?.dataset.name")
        return focus, page.evaluate("rowEvents.splice(0).sort()")

    show(page, "keys")
    page.route("**/v1/keys", answer)
    await_order(["a", "b", "c", "d", "e"])
    page.focus('#view-keys tr[data-name="c"] button')
    page.evaluate("""() => {
        const body = document.querySelector('#view-keys [aria-label="Hot keys"] tbody');
        globalThis.rowEvents = [];
        new MutationObserver(changes => changes.forEach(change => rowEvents.push(
            ...[...change.addedNodes].map(row => "+" + row.dataset.name),
            ...[...change.removedNodes].map(row => "-" + row.dataset.name)))).observe(body, { childList: true });
        body.addEventListener("focusout", () => rowEvents.push("blur"));
    }""")
    await_order(["e", "a", "b", "c", "d"])
    check.that("keys: one row that rises moves alone", events() == ("c", ["+e", "-e"]))
    await_order(["c", "d", "e", "a", "b"])
    seen = events()
    check.that("keys: the focused row never moves", seen[0] == "c" and not {"blur", "+c", "-c"} & set(seen[1]), seen)
    await_order(["d", "e", "a", "b"])
    check.that("keys: the focus of a row that leaves goes to the next one", events()[0] == "d")
    await_order(["new"])
    label = page.evaluate("document.activeElement.ariaLabel")
    check.that("keys: the focus stays in the table if all rows leave", label == "Hot keys", label)
    page.unroute("**/v1/keys")


def test_durability(check, page, server):
    show(page, "durability")
    page.wait_for_function("() => document.querySelector('#view-durability [data-figure=\"device_written\"]').dataset.value > 0")
    shown, stats = values_of(page, "durability"), server.stats()
    check.that("durability: the mode is told", page.inner_text("#view-durability .mode") == "Mode async")
    amplification = float(stats["larder_device_written_bytes"]) / float(stats["larder_written_bytes"])
    close = abs(shown["amplification"] - amplification) < 0.1 * amplification
    check.that("durability: write amplification is that of stats", close, (shown, amplification))
    check.that("durability: commits are counted", shown["commits"] > 0 and shown["commit_us_p99"] >= shown["commit_us_p50"] > 0, shown)


HISTOGRAMS = """() => [...document.querySelectorAll("#view-durability .bars:not([hidden])")].map(bars => ({
  name: bars.dataset.bars,
  text: bars.innerText,
  rows: [...bars.querySelectorAll("tbody tr")].map(row => [row.firstChild.textContent,
    ...[...row.querySelectorAll("td")].map(cell => ({ value: Number(cell.dataset.value), text: cell.textContent,
      width: cell.querySelector("i").getBoundingClientRect().width,
      of: cell.querySelector(".track").getBoundingClientRect().width }))]),
}))"""


def test_histograms(check, browser, program, directory):
    """With `sync` and two devices, the histograms have the waits, commits and syncs of `stats`."""
    stores = [part for name in ("one", "two") for part in ("--store", f"{directory / name}:64MB")]
    server = Larder(program, directory, ["--memory", "32MB", *stores, "--durability", "sync"])
    server.start()
    page = browser.new_page(viewport=WIDE)
    trouble = []
    page.on("console", lambda message: message.type in ("error", "warning") and trouble.append(message.text))
    page.on("pageerror", lambda error: trouble.append(str(error)))
    try:
        page.goto(f"{server.url}#durability")
        page.wait_for_selector("#view-durability [data-bars=waits] p:text('Since the start: none')")
        check.that("durability: without a write there is no table of waits", not page.is_visible("#view-durability [data-bars=waits] table"))
        server.start_load()
        time.sleep(4)
        server.end_load()
        before = settled(server)
        page.wait_for_function("count => [...document.querySelectorAll('#view-durability [data-bars=waits] td.ever')].reduce((sum, cell) => sum + Number(cell.dataset.value), 0) >= count", arg=before["commit_wait:count"])
        shown = {bars["name"]: bars for bars in page.evaluate(HISTOGRAMS)}
        check.that("durability: there are three histograms", list(shown) == ["waits", "commits", "syncs"], list(shown))
        both = lambda name: before[f"{name.format(0)}:count"] + before[f"{name.format(1)}:count"]
        wanted = {"waits": before["commit_wait:count"], "commits": both("commit:{}"), "syncs": both("device:{}:sync")}
        sums = {name: sum(ever["value"] for _, _, ever in bars["rows"]) for name, bars in shown.items()}
        # At any time a lane may make a further commit, so the page may show a few more than
        # `stats`.
        check.that("durability: the histograms are those of stats", all(0 <= sums[name] - wanted[name] <= 4 for name in wanted), (sums, wanted))
        recent = {name: sum(recent["value"] for _, recent, _ in bars["rows"]) for name, bars in shown.items()}
        check.that("durability: the load was recent", all(0.9 * wanted[name] - 10 < recent[name] <= sums[name] for name in wanted), (recent, sums))
        for name, bars in shown.items():
            cells = [cell for row in bars["rows"] for cell in row[1:]]
            most = [max(row[column]["value"] for row in bars["rows"]) for column in (1, 2)]
            wide = all(abs(row[column]["width"] - row[column]["of"] * row[column]["value"] / most[column - 1]) < 1.5 for row in bars["rows"] for column in (1, 2))
            check.that(f"durability: the bars of {name} are as long as their counts", wide and any(cell["width"] > 50 for cell in cells), cells)
            check.that(f"durability: {name} have their percentiles", re.search(r"Since the start: [0-9.]+(.K)?, p50 [0-9.]+.(ns|µs|ms|s|B|kB|MB), p99 ", bars["text"]) is not None, bars["text"])
        page.goto(f"{server.url}#statistics")
        page.wait_for_selector('#view-statistics [data-row="device:1:sync:p99_ns"]')
        meant = page.eval_on_selector_all('#view-statistics [data-row^="device:"], #view-statistics [data-row^="commit:"]', "cells => cells.map(cell => [cell.dataset.row, cell.parentElement.lastChild.textContent])")
        check.that("statistics: rows of devices and commits are explained", len(meant) > 30 and all(len(help) > 5 for _, help in meant), meant)
        page.goto(f"{server.url}#durability")
        page.select_option("#durability-lane", label=f"{directory / 'two'}")
        one = next(bars for bars in page.evaluate(HISTOGRAMS) if bars["name"] == "syncs")
        of_two = sum(ever["value"] for _, _, ever in one["rows"])
        check.that("durability: a device is chosen", 0 <= of_two - before["device:1:sync:count"] <= 2 and of_two < wanted["syncs"], (of_two, before["device:1:sync:count"], wanted))
        page.set_viewport_size(PHONE)
        width = page.evaluate("document.documentElement.scrollWidth")
        check.that("durability: histograms fit on a phone", width <= PHONE["width"] and all(cell["of"] > 40 for bars in page.evaluate(HISTOGRAMS) for row in bars["rows"] for cell in row[1:]), width)
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme=theme)
            faint = page.evaluate(FAINT)
            check.that(f"durability: {theme} histograms have contrast AA", not faint, faint[:5])
        check.that("durability: nothing was complained about", not trouble, trouble[:5])
    finally:
        page.close()
        server.end()


def settled(server):
    """Waits until the rows of `stats durability` no longer change, and returns them."""
    last = None
    while True:
        rows = {name: int(value) for name, value in server.stats("durability").items()}
        if rows == last:
            return rows
        last = rows
        time.sleep(0.5)


# Returns the heat maps that are shown: name, number of calls, text, and the number of painted
# pixels of each colour.
HEAT_MAPS = """() => [...document.querySelectorAll("#view-tiers .heat-map:not([hidden])")].map(map => {
  const canvas = map.querySelector("canvas");
  const style = getComputedStyle(document.documentElement);
  const level = name => style.getPropertyValue(name).trim().slice(1).match(/../g).map(part => parseInt(part, 16)).join();
  const levels = new Map([1, 2, 3, 4, 5, 6].map(at => [level(`--h${at}`), at]));
  const painted = {};
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  for (let at = 0; at < data.length; at += 4) {
    const found = levels.get([...data.slice(at, at + 3)].join());
    if (found !== undefined) painted[found] = (painted[found] ?? 0) + 1;
  }
  return { name: map.querySelector("h3").textContent, calls: Number(map.dataset.calls),
    text: map.querySelector("p.soft").textContent, label: map.querySelector(".heat").ariaLabel, painted };
})"""


# Moves the pointer over the first heat map. Returns the number of cells with calls that it met, and
# the places where the text and the colour in the canvas differ. Leaves out places at the edges of
# columns.
POINTED = """() => {
  const canvas = document.querySelector("#view-tiers .heat canvas");
  const said = document.querySelector("#view-tiers .heat-map p.soft");
  const style = getComputedStyle(document.documentElement);
  const level = name => style.getPropertyValue(name).trim().slice(1).match(/../g).map(part => parseInt(part, 16)).join();
  const levels = new Set([1, 2, 3, 4, 5, 6].map(at => level(`--h${at}`)));
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const isPainted = (x, y) => levels.has([...data.slice(4 * (y * canvas.width + x), 4 * (y * canvas.width + x) + 3)].join());
  const box = canvas.getBoundingClientRect();
  let met = 0;
  const wrong = [];
  for (let y = 10; y < canvas.height - 24; y += 8) {
    for (let x = 60; x < canvas.width - 16; x += 3) {
      const painted = isPainted(x, y);
      if (isPainted(x - 2, y) !== painted || isPainted(x + 2, y) !== painted) continue;
      canvas.dispatchEvent(new PointerEvent("pointermove", { bubbles: true, clientX: box.left + x, clientY: box.top + y }));
      const calls = /: ([0-9,]+) /.exec(said.textContent.replace(/[0-9]+:[0-9]+:[0-9]+/g, ""))?.[1].replace(",", "") ?? "0";
      met += Number(calls) > 0;
      if (painted !== Number(calls) > 0) wrong.push([x, y, said.textContent]);
    }
  }
  return { met, wrong: wrong.slice(0, 5) };
}"""


def test_heat_maps(check, browser, program, directory):
    """With two lanes of two devices, each call is in one cell, and the cleaner has its figures."""
    devices = [("fast<b>", "32MB@fast"), ("big", "64MB@big"), ("fast-2", "32MB@fast"), ("big-2", "64MB@big")]
    stores = [f"{directory / name}:{size}" for name, size in devices]
    server = Larder(program, directory, ["--memory", "32MB", *(part for store in stores for part in ("--store", store))])
    server.start()
    page = browser.new_page(viewport=WIDE)
    trouble = []
    page.on("console", lambda message: message.type in ("error", "warning") and READ_BACK not in message.text and trouble.append(message.text))
    page.on("pageerror", lambda error: trouble.append(str(error)))
    try:
        page.goto(f"{server.url}#tiers")
        page.wait_for_selector('#view-tiers .heat-map p.soft:text("reads")', timeout=20000)
        page.click("#view-tiers .choice button:text('Writes')")
        page.wait_for_selector('#view-tiers [data-panel=heat][data-kind=write]')
        server.start_load()
        page.wait_for_function("() => Number(document.querySelector('[data-panel=cleaner] [data-figure=moved_bytes]').dataset.value) > 0", timeout=60000)
        page.wait_for_function("() => Number(document.querySelector('[data-panel=cleaner] [data-figure=live_share]').dataset.value) > 0", timeout=20000)
        figures, does = values_of(page, "tiers"), page.inner_text("#view-tiers [data-panel=cleaner] > p")
        check.that("cleaner: the live share is a share", 0 < figures["live_share"] <= 1 and figures["cleaned_segments"] > 0, figures)
        check.that("cleaner: a sentence describes its work", re.match(r"In the last 10 s, the cleaner [a-z]", does) is not None, does)
        cleaner = page.eval_on_selector_all('#view-tiers [aria-label="Cleaner by device"] tbody tr', "rows => rows.map(row => [...row.children].map(cell => cell.textContent))")
        rates = page.eval_on_selector_all("#view-tiers tbody tr[data-lane]", "rows => rows.map(row => ['Records read', 'Written', 'Write amplification, 1 min'].map(label => row.querySelector(`[data-label='${label}']`).textContent))")
        check.that("tiers: each lane has its writes", len(rates) == 2 and all(written != "–" and amplification.endswith("×") for _, written, amplification in rates), rates)
        parts = server.stats()
        for what in ("flash_reads", "written_bytes", "device_written_bytes"):
            lanes = sum(int(parts[f"larder_lane_{lane}_{what}"]) for lane in (0, 1))
            check.that(f"tiers: {what} of the lanes are those of the server", lanes == int(parts[f"larder_{what}"]), (lanes, parts[f"larder_{what}"]))
        check.that("cleaner: each lane has its figures", len(cleaner) == 2 and all("–" != cell for row in cleaner for cell in row[:4]), cleaner)
        time.sleep(4)
        server.end_load()
        stats = settled(server)
        # A column of a heat map ends every three seconds, and the page requests new ones every two
        # seconds.
        time.sleep(6)
        maps = page.evaluate(HEAT_MAPS)
        lanes = ["lane 0", "big device of lane 0", "lane 1", "big device of lane 1"]
        names = [f"{directory / name} ({lane})" for (name, _), lane in zip(devices, lanes)]
        check.that("heat maps: every device has one", [shown["name"] for shown in maps] == names, maps)
        # Writes before the first column are in no cell.
        of = lambda kind: [stats[f"device:{place}:{kind}:count"] for place in ("0", "0:lower", "1", "1:lower")]
        wanted = of("write")
        check.that("heat maps: they have the writes of stats", all(0 <= count - shown["calls"] <= 40 for shown, count in zip(maps, wanted)) and min(maps[0]["calls"], maps[2]["calls"]) > 100, (maps, wanted))
        check.that("heat maps: their cells are painted", all((sum(shown["painted"].values()) > 100) == (shown["calls"] > 0) for shown in maps), maps)
        told = r"No writes in .*|[0-9.]+(.K)? writes? in .*, the slowest (of .* to .*|up to .*|above .*)"
        check.that("heat maps: they are told", all(re.fullmatch(told, shown["text"]) and shown["label"].startswith(f"{shown['name']}: {shown['text']}") for shown in maps), maps)
        cells = page.evaluate("fetch('v1/tiers?kind=write').then(reply => reply.json())")
        step, row, calls = max(cells["devices"][0]["cells"])
        plot = page.locator("#view-tiers .heat").first
        plot.focus()
        page.keyboard.press("ArrowUp")
        said = page.inner_text("#view-tiers .heat-map p.soft >> nth=0")
        check.that("heat maps: a key leads to the slowest calls of the last step", re.search(rf": {calls} writes? (of|up to|above) ", said) is not None, (said, step, row, calls))
        page.keyboard.press("ArrowUp")
        above = page.inner_text("#view-tiers .heat-map p.soft >> nth=0")
        check.that("heat maps: the cell above is empty", ": 0 writes of " in above, above)
        for key in ("Home", "ArrowDown", "End", *["PageDown"] * 4, *["ArrowDown"] * 30):
            page.keyboard.press(key)
        check.that("heat maps: the cursor stays inside", ": 0 writes up to 1\u202fµs" in page.inner_text("#view-tiers .heat-map p.soft >> nth=0"))
        size = plot.bounding_box()
        plot.hover(position={"x": size["width"] - 16, "y": 10})
        said = page.inner_text("#view-tiers .heat-map p.soft >> nth=0")
        check.that("heat maps: the pointer has a cell", re.search(r"^[0-9:]+ to [0-9:]+: 0 writes above 10.s$", said) is not None, said)
        pointed = page.evaluate(POINTED)
        check.that("heat maps: painted cells, and no others, show calls at the pointer", pointed["met"] > 30 and not pointed["wrong"], pointed)
        page.mouse.move(0, 0)
        page.click("#view-tiers .choice button:text('Syncs')")
        page.wait_for_selector('#view-tiers [data-panel=heat][data-kind=sync]')
        syncs = page.evaluate(HEAT_MAPS)
        check.that("heat maps: another kind has other calls", all(shown["calls"] <= count and "sync" in shown["text"] for shown, count in zip(syncs, of("sync"))), (syncs, of("sync")))
        page.set_viewport_size(PHONE)
        width = page.evaluate("document.documentElement.scrollWidth")
        check.that("heat maps: they fit on a phone", width <= PHONE["width"], width)
        for theme in ("dark", "light"):
            page.emulate_media(color_scheme=theme)
            try:
                page.wait_for_function(f"() => ({HEAT_MAPS})().every(map => Object.keys(map.painted).length > 0 || map.calls === 0)", timeout=10000)
            except Exception:
                pass
            painted = page.evaluate(HEAT_MAPS)
            check.that(f"heat maps: {theme} cells have the colours of the theme", all((sum(shown["painted"].values()) > 20) == (shown["calls"] > 0) for shown in painted), painted)
            faint = page.evaluate(FAINT)
            check.that(f"heat maps: {theme} text has contrast AA", not faint, faint[:5])
        check.that("heat maps: nothing was complained about", not trouble, trouble[:5])
    finally:
        page.close()
        server.end()


def test_amplification_after_reset(check, page, server):
    """After `stats reset`, both numbers of the write amplification begin at 0."""
    before = float(server.stats()["larder_device_written_bytes"])
    server.reset_stats()
    show(page, "durability")
    figure = '#view-durability [data-figure="amplification"]'
    # The load writes bytes within a second.
    page.wait_for_function("figure => document.querySelector(figure).dataset.value !== ''", arg=figure)
    time.sleep(3)
    shown, stats = values_of(page, "durability")["amplification"], server.stats()
    written, records = float(stats["larder_device_written_bytes"]), float(stats["larder_written_bytes"])
    check.that("durability: the amplification begins anew with a reset", 0 < written < before and abs(shown - written / records) < 1, (shown, written, records, before))


def test_lab(check, page, directory):
    """The view opens the report. The report works, and cannot reach the admin port."""
    show(page, "lab")
    page.wait_for_selector('#view-lab a[href="lab/report.html"]')
    text = page.inner_text("#view-lab")
    results = json.loads((directory / "lab" / "report.json").read_text())
    told = [results["larder"]["version"], results["machine"]["cpu"], *(experiment["id"] for experiment in results["experiments"])]
    check.that("lab: the run is told", all(word in text for word in told), (told, text))
    check.that("lab: systems are counted", values_of(page, "lab")["lab_systems"] == len(results["systems"]), text)
    with page.context.expect_page() as opened:
        page.click('#view-lab a[href="lab/report.html"]')
    report = opened.value
    trouble = []
    report.on("pageerror", lambda error: trouble.append(str(error)))
    try:
        report.wait_for_selector("h2", timeout=20000, state="attached")
        verdict = report.evaluate("() => document.querySelector('#verdict')?.textContent ?? document.querySelector('main').textContent")
        check.that("lab: the report draws itself", "Larder" in verdict and not trouble, (verdict[:200], trouble))
        check.that("lab: the report has no origin", report.evaluate("self.origin") == "null" and report.evaluate("window.opener === null"))
        asked = report.evaluate("fetch('/v1/stats').then(() => 'answered', error => String(error))")
        check.that("lab: the report cannot ask the admin port", "TypeError" in asked, asked)
    finally:
        report.close()


def test_history(check, page):
    """Ranges, zooming by dragging, moving and resetting work."""
    show(page, "history")
    page.wait_for_function("() => document.querySelector('#view-history .shown').textContent !== ''")
    text = page.inner_text("#view-history")
    check.that("history: says that it begins anew", "starts empty at each start" in text and re.search(r"begins at .*\d\d:\d\d:\d\d", text), text[:300])
    check.that("history: marks the start", "The server started" in page.inner_text("#view-history .events"))
    shown = lambda: page.inner_text("#view-history .shown")
    # Until the user zooms, the charts show the time up to now.
    over = page.locator('#view-history [data-chart="requests"] .u-over')
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 60, steps=4)
    page.mouse.up()
    zoomed = shown()
    is_zoomed = page.get_attribute("#view-history > div", "class") == "zoomed"
    check.that("history: dragging zooms", is_zoomed and 140 <= span(zoomed) <= 160, zoomed)
    page.click('#view-history button[aria-label="Earlier"]')
    check.that("history: moves", shown() != zoomed and abs(span(shown()) - span(zoomed)) <= 1, (zoomed, shown()))
    page.click('#view-history button[aria-label="Zoom in"]')
    check.that("history: a button zooms in", span(shown()) < span(zoomed), shown())
    page.click('#view-history button[aria-label="Reset the zoom"]')
    check.that("history: resets", 599 <= span(shown()) <= 601, shown())
    page.click("#view-history button:text-is('24 h')")
    page.wait_for_function("() => document.querySelector('#view-history .shown').textContent.includes('10 seconds')")
    check.that("history: shows a day", page.get_attribute("#view-history button:text-is('24 h')", "aria-pressed") == "true")
    page.click("#view-history button:text-is('10 min')")
    page.wait_for_function("() => document.querySelector('#view-history .shown').textContent.includes('one second')")


def span(text):
    """Returns the seconds between the first two times of day in a text."""
    from_time, to_time = [int(h) * 3600 + int(m) * 60 + int(s) for h, m, s in re.findall(r"(\d\d):(\d\d):(\d\d)", text)[:2]]
    return (to_time - from_time) % 86400


def test_keyboard(check, page, server):
    """Links and charts work by keyboard, with a visible focus."""
    page.goto(server.url)
    page.wait_for_selector("#condition.good, #condition.notice")
    reached, unseen = tab_through(page, len(VIEWS) + 1)
    check.that("keyboard: every view is reached", reached == ["#content", *(f"#{name}" for name in VIEWS)], reached)
    check.that("keyboard: the focus is visible", not unseen, unseen)
    page.focus('nav a[href="#now"]')
    page.keyboard.press("Enter")
    # The view takes the focus. The test waits for that, so that the focus does not move later.
    page.wait_for_function("() => document.activeElement.id === 'title-now'")
    page.wait_for_function(DRAWN)
    page.focus('#view-now [data-chart="requests"] .plot')
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    spoken = page.inner_text('#view-now [data-chart="requests"] [aria-live]')
    check.that("keyboard: arrow keys read values", re.search(r"\d\d:\d\d:\d\d: reads .*\d/s", spoken.replace("\u202f", "")), spoken)
    page.keyboard.press("Home")
    told = page.inner_text('#view-now [data-chart="requests"] [aria-live]')
    check.that("keyboard: Home goes to the oldest value", told != spoken, told)
    page.evaluate("document.activeElement.blur()")


def test_widths(check, page):
    for size in (PHONE, {"width": 768, "height": 1024}, WIDE):
        page.set_viewport_size(size)
        wide = []
        for name in VIEWS:
            show(page, name)
            page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")
            width = page.evaluate("document.documentElement.scrollWidth")
            if width > size["width"]:
                wide.append((name, width))
        check.that(f"{size['width']} px without sideways scrolling", not wide, wide)
    page.set_viewport_size(WIDE)


def test_themes(check, page):
    grounds = set()
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        grounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        faint = []
        for name in VIEWS:
            show(page, name)
            faint += [(name, *text) for text in page.evaluate(FAINT)]
        check.that(f"{theme} text has contrast AA", not faint, faint[:5])
    check.that("dark and light differ", len(grounds) == 2, grounds)
    page.emulate_media(color_scheme="light", reduced_motion="reduce")
    moving = page.evaluate("[...document.querySelectorAll('*')].filter(node => getComputedStyle(node).transitionDuration !== '0s').length")
    check.that("nothing moves with reduced motion", moving == 0, moving)
    page.emulate_media(color_scheme="light", reduced_motion="no-preference")


def test_silence(check, page, server):
    """The page does not report a restart if the server only paused."""
    show(page, "now")
    server.process.send_signal(signal.SIGSTOP)
    page.wait_for_selector("#condition.lost", timeout=30000)
    server.process.send_signal(signal.SIGCONT)
    page.wait_for_selector("#condition:not(.lost)", timeout=30000)
    next_beat(page)
    check.that("a silent server is waited for", page.is_hidden("#notice"))


def test_restart(check, page, server):
    """After kill -9 the page says that it waits, and continues by itself after the restart."""
    page.evaluate("window.loadedOnce = true")
    show(page, "keys")
    enter_token(page, "keys", "item", token_of(server))
    check.that("the page has the token", page.is_hidden("#view-keys .item .token form"))
    pid = server.process.pid
    server.end_load()
    server.kill()
    page.wait_for_selector("#condition.lost", timeout=30000)
    test_forgotten(check, page)
    told = page.inner_text("#condition")
    check.that("kill -9: the page says that it waits", told == "No answer, waiting.", told)
    server.start()
    server.start_load()
    page.wait_for_selector("#condition:not(.lost)", timeout=30000)
    page.wait_for_selector("#notice", timeout=30000)
    notice = page.inner_text("#notice")
    check.that("kill -9: the page says that the server was restarted", "The server was restarted at" in notice, notice)
    show(page, "now")
    next_beat(page)
    next_beat(page)
    check.that("kill -9: the page goes on by itself", page.evaluate("window.loadedOnce === true") and not page.evaluate("document.documentElement.classList.contains('old')"))
    show(page, "statistics")
    page.wait_for_function("pid => document.querySelector('[data-row=pid]').textContent !== String(pid)", arg=pid)
    show(page, "history")
    page.wait_for_function("() => document.querySelector('#view-history .events').textContent.includes('recovered in')")
    check.that("kill -9: the history begins anew", span(page.inner_text("#view-history .shown")) > 0)
    show(page, "durability")
    recovered = values_of(page, "durability")["recovered_items"]
    check.that("kill -9: the recovery is told", recovered > 0 and recovered == float(server.stats()["larder_recovered_items"]), recovered)
    page.click("#notice button")
    check.that("the notice can be closed", page.is_hidden("#notice"))


def test_features_off(check, browser, program, directory):
    """Views whose feature is off say how to turn it on."""
    bare = Larder(program, directory, ["--memory", "16MB", "--slow-command", "0", "--disable-key-sampling"])
    bare.start()
    page = browser.new_page(viewport=WIDE)
    try:
        page.goto(bare.url)
        page.wait_for_selector("#condition.good")
        for name, word in (("keys", "disable-key-sampling"), ("durability", "--durability sync"), ("tiers", "--store"), ("limits", "[[limit]]"), ("clients", "--slow-command"), ("lab", "--lab-report")):
            show(page, name)
            page.wait_for_selector(f"#view-{name} .off:not([hidden])")
            check.that(f"{name}: says how to turn it on", word in page.inner_text(f"#view-{name} .off"))
        show(page, "now")
        check.that("now: no log without a store", page.is_hidden("#log"))
    finally:
        page.close()
        bare.end()


def take_pictures(page, server, directory):
    """Saves pictures of all views in wide format, and of the first view also on a phone."""
    directory.mkdir(parents=True, exist_ok=True)
    while float(server.stats()["uptime"]) < BEFORE_PICTURES:
        time.sleep(1)
    for name in VIEWS:
        show(page, name)
        page.wait_for_function(DRAWN)
        next_rows = page.inner_text("#facts")
        page.wait_for_function("facts => document.getElementById('facts').textContent !== facts", arg=next_rows, timeout=90000)
        if name == "clients":  # The first answer has no rates.
            page.wait_for_selector('[data-figure="sent_per_second"][data-value]:not([data-value=""])')
        if name == "tiers":  # All items fit into memory, so there are no reads to show.
            page.click("#view-tiers .choice button:text('Writes')")
            page.wait_for_selector("#view-tiers [data-panel=heat][data-kind=write]")
        page.screenshot(path=directory / f"{name}.png", full_page=name != "statistics")
    show(page, "now")
    page.set_viewport_size(PHONE)
    page.wait_for_function(DRAWN)
    page.screenshot(path=directory / "now-phone.png")
    page.set_viewport_size(WIDE)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--chromium", default="/usr/bin/chromium", help="the browser (default: /usr/bin/chromium)")
    parser.add_argument("--pictures", type=pathlib.Path, help="save pictures of all views there")
    parser.add_argument("larder", type=pathlib.Path, help="the program")
    arguments = parser.parse_args()
    program = arguments.larder.absolute()
    check = Check()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        directory = pathlib.Path(folder)
        (directory / STORE).mkdir()
        (directory / "limits.toml").write_text(POLICIES, encoding="utf-8")
        (directory / "lab").mkdir()
        results = pathlib.Path(__file__).resolve().parent.parent.parent / "crates/bench/src/lab/report/made-up.json"
        shutil.copy(results, directory / "lab" / "report.json")
        subprocess.run([program, "bench", "report", results, "--html", directory / "lab" / "report.html"], check=True, stdout=subprocess.DEVNULL)
        options = ["--lab-report", directory / "lab", "--config", directory / "limits.toml", "--memory", "64MB", "--store", f"{directory / STORE}:128MB"]
        server = Larder(program, directory, options)
        browser = playwright.chromium.launch(executable_path=arguments.chromium, args=["--no-sandbox", "--host-resolver-rules=MAP evil.example 127.0.0.1"])
        try:
            server.start()
            server.start_load()
            run(check, browser, server, directory, arguments.pictures)
            test_features_off(check, browser, program, directory)
            test_slow_commands(check, browser, program, directory)
            test_histograms(check, browser, program, directory)
            test_heat_maps(check, browser, program, directory)
        finally:
            browser.close()
            server.end()
    print(f"page: {check.passed} passed, {check.failed} failed")
    return 1 if check.failed else 0


def run(check, browser, server, directory, pictures):
    page = browser.new_page(viewport=WIDE)
    trouble, requests = [], []
    page.on("console", lambda message: message.type in ("error", "warning") and trouble.append(message.text))
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("dialog", lambda dialog: (trouble.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(server.url)
    page.wait_for_selector("#condition.good, #condition.notice")
    page.wait_for_function("() => document.querySelector('[data-figure=hit_ratio]').dataset.value > 0")
    test_views(check, page)
    test_rates(check, page, server)
    test_statistics(check, page, server)
    test_limits(check, page, server)
    test_clients(check, page, server)
    test_escaping(check, page, server)
    test_keys(check, page, server)
    test_rows(check, page)
    test_durability(check, page, server)
    test_lab(check, page, directory)
    test_history(check, page)
    test_widths(check, page)
    test_themes(check, page)
    if pictures:
        take_pictures(page, server, pictures)
    test_keyboard(check, page, server)
    test_amplification_after_reset(check, page, server)
    trouble = [text for text in trouble if READ_BACK not in text]
    check.that("nothing was complained about", not trouble, trouble[:5])
    test_actions(check, browser, server, pictures)
    test_foreign_pages(check, browser, server)
    # From here on the browser's console is not checked, because it reports that the server cannot
    # be reached.
    test_silence(check, page, server)
    test_restart(check, page, server)
    outside = [url for url in requests if not url.startswith(server.url)]
    check.that(f"{len(requests)} requests went to the server only", not outside, outside[:5])
    page.close()


if __name__ == "__main__":
    sys.exit(main())
