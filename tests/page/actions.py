"""Tests what the token allows on the page, and that foreign pages can do nothing."""

import http.server
import json
import re
import socket
import threading
import urllib.error
import urllib.parse
import urllib.request

from report import FAINT, PHONE, WIDE

# The view with the look-up of one item, and the view with the console.
ITEM_VIEW = "keys"
CONSOLE_VIEW = "clients"

# A key and a value that would become elements if they were not escaped.
KEY = "page:<img/src=x/onerror=alert(1)>"
VALUE = "<script>alert(1)</script>\\xff\\x00\\\\"
VALUE_BYTES = b"<script>alert(1)</script>\xff\x00\\"
LONG_KEY = "look:" + "k" * 245
GUARDED = "page:guarded"
NOT_FOUND = "Failed to load resource"


def token_of(server):
    """Returns the token that the latest start has printed."""
    log = (server.directory / "larder.log").read_text(encoding="utf-8", errors="replace")
    return re.findall(r"^token for changes on the admin page, until the stop: ([0-9a-f]{40})$", log, re.MULTILINE)[-1]


def ask(server, *lines):
    """Sends lines to the data port. Returns the first line of the reply."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as client:
        client.sendall(b"".join(line + b"\r\n" for line in lines))
        return client.makefile("rb").readline().rstrip(b"\r\n")


def actions_of(server):
    text = urllib.request.urlopen(f"{server.url}metrics", timeout=20).read().decode()
    return float(re.search(r"^larder_admin_actions_total (\S+)$", text, re.MULTILINE).group(1))


def open_view(page, name):
    page.click(f'nav a[href="#{name}"]')
    page.wait_for_selector(f"#view-{name}:not([hidden])", state="attached")


def test_actions(check, browser, server, pictures):
    """Tests all actions of the page. They must work only with the right token."""
    page = browser.new_page(viewport=WIDE)
    trouble, posts = [], []
    page.on("console", lambda message: message.type in ("error", "warning") and trouble.append(message.text))
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("dialog", lambda dialog: (trouble.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda request: posts.append(request) if request.method == "POST" else None)
    try:
        page.goto(server.url)
        page.wait_for_selector("#condition.good, #condition.notice")
        test_token(check, page, server, posts)
        test_hidden(check, page, server)
        test_console(check, page, server)
        test_item(check, page, server)
        test_trial(check, page, server)
        test_drain(check, page, server)
        test_look(check, page, server, pictures)
        foreign = page.eval_on_selector_all("img, iframe, object, main script, [onerror]", "list => list.map(node => node.outerHTML)")
        check.that("actions: no key or value became an element", not foreign, foreign)
        kept = page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]")
        check.that("actions: the browser stores nothing", kept == [0, 0, ""], kept)
        token = token_of(server)
        where = [request.url for request in posts if token in request.url or token in (request.post_data or "")]
        check.that("actions: the token is in no address and no body", not where, where)
        page.reload()
        open_view(page, ITEM_VIEW)
        check.that("actions: a reload forgets the token", page.is_visible(f"#view-{ITEM_VIEW} .item input[type=password]"))
        trouble = [text for text in trouble if NOT_FOUND not in text]
        check.that("actions: nothing was complained about", not trouble, trouble[:5])
    finally:
        page.close()
    log = (server.directory / "larder.log").read_text(encoding="utf-8", errors="replace")
    lines = [line for line in log.splitlines() if "admin_action" in line]
    deletes = [line for line in lines if "action=delete" in line and "127.0.0.1:" in line and "page:" in line]
    begun = [line for line in deletes if re.search(r"\badmin_action\b", line)]
    ended = [line for line in deletes if re.search(r"\badmin_action_ended\b", line) and "outcome=done" in line]
    dated = all(re.match(r"\S*\d{4}-\d\d-\d\dT", line) for line in deletes)
    check.that("actions: the log names the client, the key and the outcome of a delete", len(begun) == len(ended) == 1 and len(deletes) == 2 and dated, lines[-3:])


def enter_token(page, view, panel, token):
    field = f"#view-{view} .{panel} .token input"
    page.fill(field, token)
    page.press(field, "Enter")


def test_forgotten(check, page):
    """If the server is away, the page forgets the token: another program may answer next."""
    fields = page.eval_on_selector_all(".token form", "list => list.map(form => form.hidden)")
    check.that("lost: the page has forgotten the token", fields and not any(fields), fields)
    told = page.eval_on_selector_all(".token [role=alert]", "list => list.map(node => node.textContent)")
    check.that("lost: it says so", all("has forgotten the token" in text for text in told), told)


def said(page, view, panel):
    return page.inner_text(f"#view-{view} .{panel} .said")


def wait_said(page, view, panel, pattern):
    page.wait_for_function(
        "([selector, pattern]) => new RegExp(pattern).test(document.querySelector(selector).textContent)",
        arg=[f"#view-{view} .{panel} .said", pattern],
        timeout=20000,
    )


def test_token(check, page, server, posts):
    open_view(page, ITEM_VIEW)
    page.fill(f"#view-{ITEM_VIEW} .item input[type=text]", "none")
    page.press(f"#view-{ITEM_VIEW} .item input[type=text]", "Enter")
    wait_said(page, ITEM_VIEW, "item", "Enter the token first")
    check.that("token: without it the page asks nothing", not posts, [request.url for request in posts])
    enter_token(page, ITEM_VIEW, "item", "0" * 40)
    check.that("token: the field hides its text", page.is_hidden(f"#view-{ITEM_VIEW} .item .token input"))
    page.press(f"#view-{ITEM_VIEW} .item input[type=text]", "Enter")
    wait_said(page, ITEM_VIEW, "item", "token is wrong")
    alert = page.inner_text(f"#view-{ITEM_VIEW} .item [role=alert]")
    check.that("token: the page says that it is wrong", alert.startswith("The token is wrong."), alert)
    enter_token(page, ITEM_VIEW, "item", "not a token")
    alert = page.inner_text(f"#view-{ITEM_VIEW} .item [role=alert]")
    check.that("token: odd characters are refused", "ASCII" in alert, alert)
    enter_token(page, ITEM_VIEW, "item", token_of(server))
    open_view(page, CONSOLE_VIEW)
    check.that("token: all fields share it", page.is_hidden(f"#view-{CONSOLE_VIEW} .console .token input"))


# Moves the page's clock by some milliseconds, and then hides or shows the page. If
# `window.hiddenFor` is set, a timer of 5 minutes that is set meanwhile ends after that time.
HIDE = """([isHidden, later]) => {
    const [now, set] = [Date.now, window.setTimeout];
    Date.now = () => now() + later;
    Object.defineProperty(document, "hidden", { configurable: true, get: () => isHidden });
    window.setTimeout = (ends, delay, ...rest) => set(ends, delay >= 300000 ? window.hiddenFor ?? delay : delay, ...rest);
    document.dispatchEvent(new Event("visibilitychange"));
    [Date.now, window.setTimeout] = [now, set];
}"""


def test_hidden(check, page, server):
    """A page that is hidden for 5 minutes forgets the token, whether its timers run or not."""
    form = f"#view-{CONSOLE_VIEW} .console .token form"
    page.evaluate(HIDE, [True, 0])
    page.evaluate(HIDE, [False, 290000])
    check.that("hidden: the page keeps the token for less than 5 minutes", page.is_hidden(form))
    page.evaluate(HIDE, [True, 0])
    page.evaluate(HIDE, [False, 301000])
    check.that("hidden: after a sleep of 5 minutes the page has forgotten the token", page.is_visible(form))
    told = page.inner_text(f"#view-{CONSOLE_VIEW} .console [role=alert]")
    check.that("hidden: it says so", told.startswith("The page was hidden"), told)
    enter_token(page, CONSOLE_VIEW, "console", token_of(server))
    page.evaluate("window.hiddenFor = 50")
    page.evaluate(HIDE, [True, 0])
    page.wait_for_function("selector => !document.querySelector(selector).hidden", arg=form)
    check.that("hidden: the timer forgets the token too", True)
    page.evaluate("delete window.hiddenFor")
    page.evaluate(HIDE, [False, 0])
    page.evaluate("delete document.hidden")
    enter_token(page, CONSOLE_VIEW, "console", token_of(server))


def test_console(check, page, server):
    view = f"#view-{CONSOLE_VIEW} .console"
    open_view(page, CONSOLE_VIEW)
    replies = lambda: page.eval_on_selector_all(f"{view} .replies pre", "list => list.map(node => node.textContent)")
    command = f"{view} input.command"

    def execute(text, value=None):
        before = page.locator(f"{view} .replies li").count()
        page.fill(command, text)
        if value is not None:
            page.fill(f"{view} textarea", value)
            page.click(f"{view} form:not(.token form) button:text-is('Execute')")
        else:
            page.press(command, "Enter")
        page.wait_for_function("([list, before]) => document.querySelectorAll(list).length > before", arg=[f"{view} .replies li", before], timeout=20000)
        return replies()[0]

    check.that("console: executes a command", execute("mn") == "MN")
    check.that("console: hides the value of a command without one", page.is_hidden(f"{view} textarea"))
    told = execute(f"set {KEY} 5 0 {len(VALUE_BYTES)}", VALUE)
    check.that("console: stores a value", told == "STORED", told)
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as client:
        client.sendall(f"get {KEY}\r\n".encode())
        stream = client.makefile("rb")
        line, stored = stream.readline(), stream.read(len(VALUE_BYTES))
    check.that("console: the value has exactly these bytes", stored == VALUE_BYTES, (line, stored))
    told = execute(f"get {KEY}")
    check.that("console: shows a value with markup as text", told == f"VALUE {KEY} 5 {len(VALUE_BYTES)}\n{VALUE}\nEND", told)
    page.fill(command, "set a 0 0 3")
    page.fill(f"{view} textarea", "four")
    page.press(command, "Enter")
    wait_said(page, CONSOLE_VIEW, "console", "announces 3 bytes, but the value has 4")
    page.focus(command)
    page.press(command, "ArrowUp")
    page.press(command, "ArrowUp")
    recalled = page.input_value(command)
    check.that("console: arrow keys recall commands", recalled.startswith(f"set {KEY} "), recalled)
    page.press(command, "ArrowDown")
    check.that("console: and go forward again", page.input_value(command) == f"get {KEY}", page.input_value(command))
    page.fill(command, "")


def test_item(check, page, server):
    view = f"#view-{ITEM_VIEW} .item"
    open_view(page, ITEM_VIEW)
    key = f"{view} input[type=text]"
    reads = float(server.stats()["larder_admin_actions"])
    page.fill(key, KEY)
    page.press(key, "Enter")
    wait_said(page, ITEM_VIEW, "item", "has an item")
    fields = dict(page.eval_on_selector_all(f"{view} [data-item]", "list => list.map(node => [node.dataset.item, node.textContent])"))
    good = fields["flags"] == "5" and fields["time to live"] == "never expires" and fields["cas id"].isdigit()
    check.that("item: shows its fields", good, fields)
    shown = page.inner_text(f"{view} pre.value")
    check.that("item: a value with markup is text", shown == VALUE, shown)
    page.click(f"{view} button:text-is('Hex')")
    shown = page.inner_text(f"{view} pre.value")
    check.that("item: the bytes are shown", shown.startswith("000000  3c 73 63 72 69 70 74 3e") and "ff 00 5c" in shown, shown)
    check.that("item: the look-up was counted", float(server.stats()["larder_admin_actions"]) == reads + 1)
    page.click(f"{view} button.danger:has-text('Delete …')")
    check.that("item: a delete asks first", KEY in page.inner_text("dialog[open]"))
    check.that("item: the safe answer has the focus", page.evaluate("document.activeElement.textContent") == "Keep it")
    page.keyboard.press("Escape")
    check.that("item: Escape keeps the item", page.locator("dialog[open]").count() == 0 and ask(server, f"mg {KEY}".encode()) == b"HD")
    page.click(f"{view} button.danger:has-text('Delete …')")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    wait_said(page, ITEM_VIEW, "item", "is deleted")
    check.that("item: the delete is done", ask(server, f"mg {KEY}".encode()) == b"EN")
    page.press(key, "Enter")
    wait_said(page, ITEM_VIEW, "item", "has no item")
    check.that("item: nothing is shown of an item that is gone", page.is_hidden(f"{view} pre.value"))


def test_trial(check, page, server):
    """The trial of a limit takes units. A request for 0 units takes none; too many are refused."""
    open_view(page, "limits")
    page.wait_for_function("() => document.querySelector('#trial-policy').options.length === 2", timeout=20000)
    page.select_option("#trial-policy", "logins")
    said = "#view-limits .trial .said"

    def take(key, units, pattern):
        page.fill("#trial-key", key)
        page.fill("#trial-units", str(units))
        page.click("#view-limits .trial button:text-is('Take')")
        wait_said(page, "limits", "trial", pattern)
        return page.inner_text(said)

    told = take("trial", 3, "^Allowed")
    check.that("trial: units are taken", told.startswith("Allowed: 47 of 50 units are left. All units are free in "), told)
    told = take("trial", 0, "^Not asked")
    check.that("trial: a look takes none", told.startswith("Not asked for units: 47 of 50 units are left."), told)
    told = take("trial", 51, "^Refused")
    check.that("trial: too many are refused", told.endswith("The same request never passes."), told)
    left = ask(server, b"ma trial Qlogins D0 r").split()[:2]
    check.that("trial: the limiter is that of clients", left == [b"HD", b"r47"], left)
    told = take("two words", 1, "^The server answers")
    check.that("trial: an error of the server is shown", "CLIENT_ERROR" in told, told)


def test_drain(check, page, server):
    """The page asks before a drain, and shows the answer. The only device cannot be drained."""
    open_view(page, "tiers")
    device = server.stats()["larder_lane_0_device"]
    page.wait_for_function("() => document.querySelector('#drain-device').value !== ''", timeout=20000)
    check.that("drain: offers the device", page.input_value("#drain-device") == device, page.input_value("#drain-device"))
    before = actions_of(server)
    page.click("#view-tiers .drain button:text-is('Drain …')")
    check.that("drain: asks first", device in page.inner_text("dialog[open]") and actions_of(server) == before)
    page.keyboard.press("Escape")
    page.click("#view-tiers .drain button:text-is('Drain …')")
    page.click("dialog[open] button:text-is('Drain it')")
    wait_said(page, "tiers", "drain", r"^(?!Asking)..")
    told = page.inner_text("#view-tiers .drain .said")
    check.that("drain: the server's answer is shown", actions_of(server) == before + 1 and told == f"{device}: it is the only device that is left.", told)


def test_look(check, page, server, pictures):
    """An item and its dialog fit on a phone and a screen, with enough contrast in both themes."""
    view = f"#view-{ITEM_VIEW} .item"
    check.that("look: an item is there", ask(server, f"set {LONG_KEY} 0 600 2000".encode(), b"v" * 2000) == b"STORED")
    open_view(page, ITEM_VIEW)
    page.fill(f"{view} input[type=text]", LONG_KEY)
    page.press(f"{view} input[type=text]", "Enter")
    wait_said(page, ITEM_VIEW, "item", "has an item")
    if pictures:
        page.locator(view).screenshot(path=pictures / "item.png")
    for theme in ("dark", "light"):
        page.emulate_media(color_scheme=theme)
        for size in (PHONE, WIDE):
            page.set_viewport_size(size)
            width = page.evaluate("document.documentElement.scrollWidth")
            check.that(f"look: an item fits {size['width']} px, {theme}", width <= size["width"], width)
            faint = page.evaluate(FAINT)
            page.click(f"{view} button.danger:has-text('Delete …')")
            faint += page.evaluate(FAINT)
            box = page.locator("dialog[open]").bounding_box()
            check.that(f"look: the dialog fits {size['width']} px, {theme}", box["x"] >= 0 and box["x"] + box["width"] <= size["width"], box)
            page.keyboard.press("Escape")
            check.that(f"look: text has contrast AA at {size['width']} px, {theme}", not faint, faint[:5])


# The page of the attacker. It tries everything that a page can try, and reports the results.
# `TOKEN` is the right token, so that only the other protections can refuse the requests.
ATTACK = """<!doctype html><title>attack</title><body><script>
const target = "TARGET", body = JSON.stringify({ key: "GUARDED" });
const results = {};
const tried = async (name, attempt) => {
  try { const reply = await attempt(); results[name] = `${reply.type} ${reply.status} ${(await reply.text()).slice(0, 200)}`; }
  catch (error) { results[name] = `error ${error.name}`; }
};
const post = (path, options) => fetch(target + path, { method: "POST", body, ...options });
const form = (path, type, name, value) => new Promise((done) => {
  const frame = document.createElement("iframe");
  frame.name = `frame${Math.random()}`;
  const node = Object.assign(document.createElement("form"), { method: "post", action: target + path, enctype: type, target: frame.name });
  node.append(Object.assign(document.createElement("input"), { name, value, type: "hidden" }));
  document.body.append(frame, node);
  node.submit();
  setTimeout(done, 500);
});
addEventListener("load", async () => {
  const json = { "Content-Type": "application/json" };
  const all = { ...json, Authorization: "Bearer TOKEN" };
  await tried("simple", () => post("v1/delete", { mode: "no-cors" }));
  await tried("text", () => post("v1/delete", { mode: "no-cors", headers: { "Content-Type": "text/plain" } }));
  await tried("json", () => post("v1/delete", { headers: json }));
  await tried("token", () => post("v1/delete", { headers: all }));
  await tried("command", () => post("v1/command", { headers: all, body: JSON.stringify({ command: "delete GUARDED" }) }));
  await tried("credentials", () => post("v1/delete", { headers: all, credentials: "include" }));
  await tried("blob", () => post("v1/delete", { mode: "no-cors", body: new Blob([body], { type: "application/json" }) }));
  await tried("read", () => fetch(target + "v1/stats"));
  await tried("opaque", () => fetch(target + "v1/stats", { mode: "no-cors" }));
  results.beacon = String(navigator.sendBeacon(target + "v1/delete", new Blob([body], { type: "text/plain" })));
  await form("v1/delete", "text/plain", '{"key":"GUARDED","x":"', '"}');
  await form("v1/delete", "application/x-www-form-urlencoded", "key", "GUARDED");
  await form("v1/delete", "multipart/form-data", "key", "GUARDED");
  results.script = await new Promise((done) => {
    const node = Object.assign(document.createElement("script"), { src: target + "v1/stats" });
    node.onload = () => done("loaded"); node.onerror = () => done("error");
    document.body.append(node);
  });
  results.events = await new Promise((done) => {
    const source = new EventSource(target + "v1/live");
    source.onmessage = () => done("message"); source.onerror = () => { source.close(); done("error"); };
  });
  results.framed = await new Promise((done) => {
    const frame = Object.assign(document.createElement("iframe"), { src: target });
    frame.onload = () => { try { done(frame.contentDocument === null ? "closed" : "open"); } catch { done("closed"); } };
    document.body.append(frame);
  });
  window.results = results;
});
</script>"""


def test_foreign_pages(check, browser, server):
    """Foreign pages change and see nothing.

    One has another origin. The name of another leads to the admin port (DNS rebinding).
    """
    token = token_of(server)
    attack = ATTACK.replace("TARGET", server.url).replace("GUARDED", GUARDED).replace("TOKEN", token).encode()

    class Attacker(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(attack)

        def log_message(self, *_):
            pass

    listener = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Attacker)
    threading.Thread(target=listener.serve_forever, daemon=True).start()
    check.that("attack: the item is there", ask(server, f"set {GUARDED} 0 0 1".encode(), b"x") == b"STORED")
    before = actions_of(server)
    try:
        # The same site with another port, another site, and a name that an attacker owns.
        for host in ("127.0.0.1", "localhost", "evil.example"):
            page = browser.new_page()
            page.goto(f"http://{host}:{listener.server_port}/")
            page.wait_for_function("window.results !== undefined", timeout=60000)
            results = page.evaluate("window.results")
            page.close()
            seen = [name for name, result in results.items() if "200" in result or result in ("message", "open") or "curr_items" in result]
            check.that(f"attack from {host}: nothing is seen", not seen and len(results) >= 13, results)
            check.that(f"attack from {host}: nothing is changed", ask(server, f"mg {GUARDED}".encode()) == b"HD" and actions_of(server) == before, results)
    finally:
        listener.shutdown()
    # DNS rebinding: the attacker's name leads to the admin port itself, so its page would have the
    # origin of the admin port.
    page = browser.new_page()
    rebound = f"http://evil.example:{server.admin}/"
    reply = page.goto(rebound)
    check.that("rebinding: the page is refused", reply.status == 403 and "curr_items" not in page.content(), reply.status)
    page.close()
    # The same with a script that runs already, as if the attacker's name got its new address only
    # now.
    for path, options in (("v1/stats", {}), ("v1/item", {"data": json.dumps({"key": GUARDED}).encode(), "method": "POST"})):
        headers = {"Host": f"evil.example:{server.admin}", "Content-Type": "application/json", "Authorization": f"Bearer {token}", "Sec-Fetch-Site": "same-origin"}
        request = urllib.request.Request(urllib.parse.urljoin(server.url, path), headers=headers, **options)
        try:
            status = urllib.request.urlopen(request, timeout=20).status
        except urllib.error.HTTPError as error:
            status = error.code
        check.that(f"rebinding: {path} is refused", status == 403, status)
    check.that("rebinding: nothing is changed", actions_of(server) == before)
