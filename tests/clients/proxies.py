"""Rate limits over HTTP, with a real nginx that has the configuration of docs/limits-http.md.

Other programs use the limit port directly, memcached clients use the same limits, and some clients
never finish a request.
"""

import contextlib
import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import threading

from harness import HOST, ROOT, SCRATCH, Server, check, equal, free_port, speaks_memcached_flags, wait_until

LIMIT = 100
CLIENTS = 24
REQUESTS_EACH = 10
ROUNDS = 4
# More connections than the limit port keeps open at the same time.
UNFINISHED = 1100

POLICY = f"""
[[limit]]
name = "api"
prefix = "api/"
budget = {LIMIT}
window = "1h"
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


def configuration(documented, folder, port, limit_port, backend):
    """Returns a configuration of nginx: the documented parts, with the addresses of this test."""
    for address, other in (("11213", limit_port), ("8080", backend)):
        check(f"127.0.0.1:{address}" in documented, f"port {address} is not in the documented configuration")
        documented = documented.replace(f"127.0.0.1:{address}", f"{HOST}:{other}")
    documented = documented.replace("listen 80;", f"listen {HOST}:{port};")
    places = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    return "\n".join(
        (
            "daemon off;",
            "worker_processes 2;",
            f"pid {folder}/pid;",
            f"error_log {folder}/error.log;",
            "events { worker_connections 512; }",
            "http {",
            "access_log off;",
            *(f"{place}_temp_path {folder}/{place};" for place in places),
            f"server {{ listen {HOST}:{backend}; return 200 served; }}",
            documented,
            "}",
        )
    )


@contextlib.contextmanager
def nginx(limit_port):
    """Runs an nginx, and yields its port."""
    document = (ROOT / "docs" / "limits-http.md").read_text(encoding="utf-8")
    documented = re.search(r"^    upstream larder \{.*?^    server \{.*?^    \}$", document, re.MULTILINE | re.DOTALL)
    check(documented is not None, "docs/limits-http.md has no configuration of nginx")
    folder = SCRATCH / "nginx"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.chmod(folder, 0o777)  # If root starts nginx, its workers run as another user.
    port = free_port()
    file = folder / "nginx.conf"
    file.write_text(configuration(documented.group(), folder, port, limit_port, free_port()), encoding="utf-8")
    path = f"{os.environ['PATH']}{os.pathsep}/usr/sbin"
    program = shutil.which("nginx", path=path)
    check(program is not None, "nginx is missing: install nginx-light")
    with open(folder / "output.log", "wb") as log:
        process = subprocess.Popen([program, "-c", str(file)], stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def gone(seconds):
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def accepts():
        with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=5):
            return True
        return False

    try:
        wait_until(accepts, gone, 30, "nginx")
        yield port
    finally:
        process.terminate()
        if not gone(15):
            process.kill()
            process.wait()


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


def exact(report, server, limit_port, port):
    """Checks that nginx, other programs and memcached clients together get exactly one limit."""

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
        with report.case(f"{address}: {LIMIT} of {CLIENTS * REQUESTS_EACH} requests pass"):
            statuses = storm(visits)
            passed, refused = statuses.count(200), statuses.count(429)
            equal(passed + refused, CLIENTS * REQUESTS_EACH, "answers with 200 or 429")
            equal(passed, LIMIT, "requests that passed")


def headers(report, limit_port, port):
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


def unfinished(report, limit_port):
    """Checks that clients that begin requests and never end them do not block other clients."""
    with report.case(f"{UNFINISHED} unfinished requests keep nobody out"):
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


def proxies(report, binary):
    """Runs all cases with one server and one nginx."""
    if speaks_memcached_flags(binary):
        report.note("memcached has no rate limits")
        return
    SCRATCH.mkdir(parents=True, exist_ok=True)
    file = SCRATCH / "limits.toml"
    file.write_text(POLICY, encoding="utf-8")
    limit_port = free_port()
    flags = ("--limit-port", str(limit_port), "--config", str(file))
    with Server(binary, *flags, name="proxies") as server, nginx(limit_port) as port:
        exact(report, server, limit_port, port)
        headers(report, limit_port, port)
        unfinished(report, limit_port)
        equal(server.stop(), 0, "exit status")
        with report.case("requests pass while Larder is down"):
            equal(ask(port, "GET", "/", "127.0.0.20")[0], 200, "status")
