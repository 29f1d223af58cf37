"""The adapter with the real libraries against a real server: $SERVER, or target/release/larder."""

import contextlib
import importlib.util
import logging
import multiprocessing
import os
import pathlib
import shutil
import socket
import socketserver
import subprocess
import threading
import time

import flask
import limits
import pytest
from flask_limiter import Limiter
from limits.errors import ConfigurationError, StorageError
from limits.storage import storage_from_string
from limits.strategies import STRATEGIES

import limits_larder

HERE = pathlib.Path(__file__).parent
SERVER = os.environ.get("SERVER", str(HERE / "../../target/release/larder"))
OWN = ("larder-fixed-window", "larder-sliding-window", "larder-gcra")
ALL = ("fixed-window", *OWN)
# A busy machine must not fail tests that are not about time limits, so their time limits are long.
PATIENT = {"timeout": 20.0, "connect_timeout": 20.0, "fail": "raise"}
PROCESSES, THREADS = 4, 4
SLACK = 1.0


@contextlib.contextmanager
def started(command, port):
    """Runs a server, and continues once it accepts connections."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < until, f"{command} does not serve"
                time.sleep(0.01)
        yield process
    finally:
        process.terminate()
        process.wait(20)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def larder(port):
    return started([SERVER, "serve", "--admin", "off", "-p", str(port)], port)


@pytest.fixture(scope="session")
def address():
    port = free_port()
    with larder(port):
        yield f"larder://127.0.0.1:{port}"


@pytest.fixture
def user(request):
    """Returns identifiers that no other test uses."""
    return request.node.name, str(time.time_ns())


class Played(socketserver.ThreadingTCPServer):
    """A server that answers each line with `play(line)`, or never if that is None. Keeps the lines."""

    daemon_threads = True

    def __init__(self, play):
        self.lines = []
        server = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self):
                with contextlib.suppress(OSError):
                    for line in self.rfile:
                        server.lines.append(line)
                        reply = play(line)
                        if reply is not None:
                            self.wfile.write(reply)

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        self.uri = f"larder://127.0.0.1:{self.server_address[1]}"

    def __exit__(self, *error):
        self.shutdown()
        super().__exit__(*error)


def between(address):
    """Returns a server that passes single-line requests on to the one at `address`, and keeps the lines."""
    host, port = address.removeprefix("larder://").split(":")
    behind = threading.local()

    def play(line):
        if not hasattr(behind, "file"):
            behind.file = socket.create_connection((host, int(port))).makefile("rwb")
        behind.file.write(line)
        behind.file.flush()
        reply = behind.file.readline()
        return reply + behind.file.readline() if reply.startswith(b"VA ") else reply

    return Played(play)


def strategy(name, uri, **options):
    return STRATEGIES[name](storage_from_string(uri, **{**PATIENT, **options}))


# Exact counts


def storm(limiter, item, user, more):
    """Hits from all threads of all processes at once. Returns the times at which each hit that passed was
    sent and answered."""
    fork = multiprocessing.get_context("fork")
    results, start = fork.SimpleQueue(), fork.Event()

    def process():
        passed = []

        def thread():
            start.wait()
            count = 0
            while more(count):
                count += 1
                sent = time.monotonic()
                if limiter.hit(item, *user):
                    passed.append((sent, time.monotonic()))

        threads = [threading.Thread(target=thread) for _ in range(THREADS)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        results.put(passed)

    processes = [fork.Process(target=process) for _ in range(PROCESSES)]
    for each in processes:
        each.start()
    start.set()
    passed = sorted(pair for _ in processes for pair in results.get())
    for each in processes:
        each.join()
        assert each.exitcode == 0
    return passed


@pytest.mark.parametrize("name", ALL)
def test_exactly_the_budget_passes(name, address, user):
    limiter, item = strategy(name, address), limits.parse("100/day")
    # The parent now has an open connection, which its children must not use.
    assert limiter.test(item, *user)
    passed = storm(limiter, item, user, lambda count: count < 25)
    assert len(passed) == 100
    assert limiter.get_window_stats(item, *user).remaining == 0


def most_within(passed, seconds):
    """Returns the largest number of hits that certainly passed within `seconds`.

    Such a hit was sent after the begin of that time and answered before its end.
    """
    return max(sum(1 for sent, told in passed if sent >= start and told <= start + seconds) for start, _ in passed)


@pytest.mark.parametrize("name", OWN)
def test_bounds_hold_while_windows_pass(name, address, user):
    limiter, item = strategy(name, address, burst=5), limits.parse("40/second")
    end = time.monotonic() + 2.5
    passed = storm(limiter, item, user, lambda count: time.monotonic() < end)
    assert len(passed) > 40, "later windows admit"
    if name == "larder-gcra":
        for length in (0.1, 0.5, 1.0, 2.0):
            assert most_within(passed, length) <= 5 + int(length * 40)
    else:
        assert most_within(passed, 1.0) < 80
    windows = int(passed[-1][1] - passed[0][0]) + 1
    assert len(passed) <= 40 * windows + (40 if name == "larder-sliding-window" else 0)


# One decision


@pytest.mark.parametrize("name", ALL)
def test_windows_begin_anew(name, address, user):
    limiter, item = strategy(name, address), limits.parse("3/second")
    assert [limiter.hit(item, *user) for _ in range(4)][:3] == [True] * 3
    until = time.monotonic() + 10
    while not limiter.test(item, *user):
        assert time.monotonic() < until
        time.sleep(0.01)
    assert limiter.hit(item, *user)


@pytest.mark.parametrize("name", OWN)
def test_refusals_take_nothing_and_tell_when_to_come_back(name, address, user):
    limiter, item = strategy(name, address), limits.parse("2/4 second")
    assert limiter.hit(item, *user, cost=2)
    assert not limiter.hit(item, *user)
    reset = limiter.get_window_stats(item, *user).reset_time
    assert 0 < reset - time.time() <= 8
    time.sleep(max(0, reset - time.time() + 0.01))
    assert limiter.hit(item, *user), "the refusals in between did not count"


@pytest.mark.parametrize("name", ALL)
def test_looking_takes_nothing(name, address, user):
    limiter, item = strategy(name, address), limits.parse("5/minute")
    for _ in range(10):
        assert limiter.test(item, *user, cost=5)
        assert not limiter.test(item, *user, cost=6)
        assert limiter.get_window_stats(item, *user).remaining == 5
    limiter.hit(item, *user, cost=3)
    assert limiter.get_window_stats(item, *user).remaining == 2
    assert limiter.get_window_stats(item, *user).remaining == 2, "asked, not remembered"
    assert limiter.test(item, *user, cost=2) and not limiter.test(item, *user, cost=3)


@pytest.mark.parametrize("name", OWN)
def test_a_cost_is_taken_whole_or_not_at_all(name, address, user):
    limiter, item = strategy(name, address), limits.parse("10/hour")
    assert [limiter.hit(item, *user, cost=cost) for cost in (7, 4, 3, 1)] == [True, False, True, False]
    assert not limiter.hit(item, *user, cost=11)


@pytest.mark.parametrize("name", ALL)
def test_clear_forgets(name, address, user):
    limiter, item = strategy(name, address), limits.parse("1/day")
    assert [limiter.hit(item, *user) for _ in range(2)] == [True, False]
    limiter.clear(item, *user)
    assert limiter.get_window_stats(item, *user).remaining == 1
    assert limiter.hit(item, *user)


@pytest.mark.parametrize("name", ALL)
def test_the_longest_windows(name, address, user):
    limiter, item = strategy(name, address), limits.parse("2/2 years")
    assert [limiter.hit(item, *user) for _ in range(3)] == [True, True, False]
    reset = limiter.get_window_stats(item, *user).reset_time - time.time()
    assert reset > 300 * 86_400


def test_the_burst_of_gcra(address, user):
    limiter, item = strategy("larder-gcra", address, burst=3), limits.parse("100/day")
    assert [limiter.hit(item, *user) for _ in range(5)] == [True] * 3 + [False] * 2
    assert 0 < limiter.get_window_stats(item, *user).reset_time - time.time() <= 864


@pytest.mark.parametrize("name", ALL)
def test_one_round_trip_per_hit(name, address, user):
    with between(address) as proxy:
        limiter, item = strategy(name, proxy.uri), limits.parse("3/hour")
        assert [limiter.hit(item, *user) for _ in range(5)] == [True] * 3 + [False] * 2
        assert len(proxy.lines) == 5
        if name in OWN:
            limiter.get_window_stats(item, *user)
            assert len(proxy.lines) == 5, "the answer told it"


KEYS = {
    "space": "a b",
    "line end": "a\r\nflush_all\r\n",
    "zero": "a\0b",
    "delete": "a\x7fb",
    "letters": "ключ☃",
    "lone surrogate": "a\ud800",
    "lone surrogate and a space": "a \ud800",
    "empty": "",
    "250 bytes": "k" * (250 - len("LIMITER//2/1/hour")),
    "251 bytes": "k" * (251 - len("LIMITER//2/1/hour")),
    "180 bytes with spaces": "k " * 80,
    "very long": "k" * 100_000,
    "very long letters": "☃" * 100_000,
}


@pytest.mark.parametrize("name", ("fixed-window", "larder-gcra"))
@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_any_key(key, name, address):
    limiter, item = strategy(name, address), limits.parse("2/hour")
    for identifier in (key, key + "x"):
        limiter.clear(item, identifier)
        assert [limiter.hit(item, identifier) for _ in range(3)] == [True, True, False]
    limiter.clear(item, key)
    assert limiter.test(item, key) and not limiter.test(item, key + "x")


# The server is away


@contextlib.contextmanager
def absent():
    yield f"larder://127.0.0.1:{free_port()}"


@contextlib.contextmanager
def silent():
    """Runs a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"larder://127.0.0.1:{listener.getsockname()[1]}"


@contextlib.contextmanager
def broken():
    with Played(lambda line: b"SERVER_ERROR out of memory\r\n") as server:
        yield server.uri


@pytest.mark.parametrize("away", (absent, silent, broken))
@pytest.mark.parametrize("fail", ("open", "closed", "raise"))
@pytest.mark.parametrize("name", ALL)
def test_away(name, fail, away, user, caplog):
    caplog.set_level(logging.WARNING)
    item = limits.parse("5/minute")
    with away() as uri:
        limiter = STRATEGIES[name](storage_from_string(uri, fail=fail, backoff=30.0))
        for limit in (0.2 + SLACK, SLACK, SLACK):
            began = time.monotonic()
            if fail == "raise":
                with pytest.raises(limits_larder.ServerAway):
                    limiter.hit(item, *user)
            else:
                assert limiter.hit(item, *user) == (fail == "open")
                assert limiter.test(item, *user) == (fail == "open")
                assert limiter.get_window_stats(item, *user).remaining == (5 if fail == "open" else 0)
                limiter.clear(item, *user)
            assert time.monotonic() - began < limit
        assert not limiter.storage.check()
    warnings = [record for record in caplog.records if record.name == "limits_larder"]
    # There is at most one warning a second. The loop takes less than a second, or little more on a
    # busy machine.
    assert len(warnings) <= 3 and bool(warnings) == (fail != "raise")


@pytest.mark.parametrize("name", ALL)
def test_a_refused_connection_is_no_success(name, user):
    with Played(lambda line: b"ERROR Too many open connections\r\n") as server:
        for fail, passes in (("open", True), ("closed", False)):
            limiter = STRATEGIES[name](storage_from_string(server.uri, fail=fail))
            assert limiter.hit(limits.parse("5/minute"), *user) == passes
        with pytest.raises(limits_larder.ServerAway, match="Too many open connections"):
            strategy(name, server.uri).hit(limits.parse("5/minute"), *user)


@pytest.mark.parametrize("reply", (b"\r\n", b"END\r\n", b"HTTP/1.1 400 Bad Request\r\n"))
def test_a_reply_of_another_protocol_is_no_success(reply, user):
    with Played(lambda line: reply) as server, pytest.raises(limits_larder.ServerAway):
        strategy("fixed-window", server.uri).hit(limits.parse("5/minute"), *user)


@pytest.mark.parametrize("name", ALL)
def test_a_key_never_makes_the_server_away(name, address, user):
    limiter, item = strategy(name, address, backoff=30.0), limits.parse("1/hour")
    for identifiers in ((*user, "\ud800"), user):
        assert [limiter.hit(item, *identifiers) for _ in range(2)] == [True, False]


def test_waiting_is_short_and_then_none():
    with silent() as uri:
        storage = storage_from_string(uri, timeout=0.3, backoff=30.0)
        began = time.monotonic()
        assert storage.take("k", "I", 1, 60).allowed
        assert 0.3 <= time.monotonic() - began < 0.3 + SLACK
        began = time.monotonic()
        for _ in range(1000):
            assert storage.take("k", "I", 1, 60).allowed
        assert time.monotonic() - began < 0.3 * 10, "no attempt during the back-off"


def test_the_server_returns(user):
    port = free_port()
    limiter = strategy("larder-fixed-window", f"larder://127.0.0.1:{port}", fail="closed", backoff=0.05)
    item = limits.parse("5/minute")
    assert not limiter.hit(item, *user)
    with larder(port):
        until = time.monotonic() + 10
        while not limiter.hit(item, *user):
            assert time.monotonic() < until
            time.sleep(0.01)
    # The server has closed the limiter's idle connection. The next request must not fail because of that.
    with larder(port):
        assert limiter.hit(item, *user)


def test_a_late_reply_answers_no_other_request():
    asked, go = [], threading.Event()

    def play(line):
        asked.append(line)
        if len(asked) == 1:
            go.wait()
            return b"NS r0 t1 w1\r\n"
        return b"HD r7 t1 w0\r\n"

    with Played(play) as server:
        storage = storage_from_string(server.uri, timeout=0.1, connect_timeout=10.0, backoff=0.0)
        failed = (True, 9, 0, 0)
        assert storage.take("k", "I", 9, 60) == failed, "fails open"
        # The first connection still waits for its reply, so another one must serve this request.
        until = time.monotonic() + 10
        while (answer := storage.take("k", "I", 9, 60)) == failed:
            assert time.monotonic() < until
        assert answer == (True, 7, 0, 1)
        go.set()
        assert storage.take("k", "I", 9, 60) in (answer, failed)


# Servers without limits, and refused requests


def test_a_server_without_limits(user):
    item = limits.parse("5/minute")
    with Played(lambda line: b"CLIENT_ERROR invalid or duplicate flag\r\n") as server:
        for name in OWN:
            with pytest.raises(limits_larder.NotLarder, match="it is not Larder, or too old"):
                STRATEGIES[name](storage_from_string(server.uri, **PATIENT)).hit(item, *user)
        assert not storage_from_string(server.uri, **PATIENT).check()
        with pytest.raises(StorageError):
            storage_from_string(server.uri, wrap_exceptions=True, **PATIENT).incr("k", 60)


@pytest.mark.parametrize("name", ALL)
def test_wrapped_exceptions(name, user):
    limiter = strategy(name, f"larder://127.0.0.1:{free_port()}", wrap_exceptions=True)
    item = limits.parse("5/minute")
    for method in (limiter.hit, limiter.test, limiter.get_window_stats, limiter.clear):
        with pytest.raises(StorageError) as wrapped:
            method(item, *user)
        assert isinstance(wrapped.value.storage_error, limits_larder.ServerAway)


@pytest.mark.skipif(not shutil.which("memcached"), reason="memcached is not installed")
def test_memcached(user):
    port = free_port()
    command = [shutil.which("memcached"), "-l", "127.0.0.1", "-p", str(port), "-U", "0"]
    with started([*command, "-u", "nobody"] if os.geteuid() == 0 else command, port):
        for name in OWN:
            with pytest.raises(limits_larder.NotLarder, match="it is not Larder, or too old"):
                strategy(name, f"larder://127.0.0.1:{port}").hit(limits.parse("5/minute"), *user)


@pytest.mark.parametrize("name", ("moving-window", "sliding-window-counter"))
def test_strategies_that_do_not_map_are_refused_by_name(name, address):
    with pytest.raises(NotImplementedError, match=f"does not support {name}.*larder-sliding-window"):
        strategy(name, address)


def test_other_refusals(address):
    for uri in ("larder://", "larder://a:1,b:2"):
        with pytest.raises(ConfigurationError, match="does not name one server"):
            storage_from_string(uri)
    with pytest.raises(ConfigurationError, match="fail is"):
        storage_from_string(address, fail="ajar")
    with pytest.raises(ConfigurationError, match="needs a storage"):
        STRATEGIES["larder-gcra"](storage_from_string("memory://"))
    with pytest.raises(NotImplementedError, match="everything else"):
        storage_from_string(address).reset()


def test_a_unix_socket(tmp_path, user):
    path = tmp_path / "larder.sock"
    process = subprocess.Popen([SERVER, "serve", "--admin", "off", "-s", path], stderr=subprocess.DEVNULL)
    try:
        limiter, item = strategy("larder-gcra", f"larder://{path}", fail="closed", backoff=0.0), limits.parse("2/hour")
        until = time.monotonic() + 20
        while not limiter.storage.check():
            assert time.monotonic() < until
            time.sleep(0.01)
        assert [limiter.hit(item, *user) for _ in range(3)] == [True, True, False]
    finally:
        process.terminate()
        process.wait(20)


def test_a_unix_socket_with_a_full_queue(tmp_path):
    path, waiting = str(tmp_path / "full.sock"), []
    with socket.socket(socket.AF_UNIX) as server, contextlib.ExitStack() as stack:
        server.bind(path)
        server.listen(0)
        with pytest.raises(BlockingIOError):
            while True:
                waiting.append(stack.enter_context(socket.socket(socket.AF_UNIX)))
                waiting[-1].setblocking(False)
                waiting[-1].connect(path)
        began = time.monotonic()
        assert storage_from_string(f"larder://{path}").take("k", "I", 1, 60).allowed
        assert time.monotonic() - began < 0.2 + SLACK


# Flask-Limiter


def test_flask_limiter_asks_once_per_request(address, user):
    with between(address) as proxy:
        app = flask.Flask("app")
        Limiter(
            lambda: "/".join(user),
            app=app,
            storage_uri=proxy.uri,
            storage_options=PATIENT,
            strategy="larder-sliding-window",
            default_limits=["2 per minute"],
            headers_enabled=True,
        )
        app.add_url_rule("/", view_func=lambda: "ok")
        began = time.monotonic()
        answers = [app.test_client().get("/") for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert [answer.headers["X-RateLimit-Remaining"] for answer in answers] == ["1", "0", "0"]
        # Until half of the next window has passed, a sliding window still counts more than one of
        # the two units. So the next unit is free after 1.5 windows, which are 90 s.
        assert 90 - (time.monotonic() - began) - 1 <= int(answers[2].headers["Retry-After"]) <= 91
        assert len(proxy.lines) == 3


def test_the_fallback_of_flask_limiter():
    app = flask.Flask("app")
    Limiter(
        lambda: "somebody",
        app=app,
        storage_uri=f"larder://127.0.0.1:{free_port()}",
        storage_options={"fail": "raise"},
        strategy="fixed-window",
        default_limits=["5 per hour"],
        in_memory_fallback=["1 per hour"],
    )
    app.add_url_rule("/", view_func=lambda: "ok")
    assert [app.test_client().get("/").status_code for _ in range(2)] == [200, 429]


def test_the_example(address, monkeypatch):
    monkeypatch.setenv("LARDER", address)
    spec = importlib.util.spec_from_file_location("app", HERE / "example" / "app.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    client = example.app.test_client()
    assert [client.get("/login").status_code for _ in range(6)] == [200] * 5 + [429]
    assert client.get("/").status_code == 200
