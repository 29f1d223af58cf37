"""Rack::Attack throttles a real Rack application that runs in two processes and shares one server."""

import http.client
import os
import subprocess
import threading
import time

from harness import HOST, ROOT, SCRATCH, Server, check, equal, free_port, wait_until

LIMIT = 50
CLIENTS = 24
REQUESTS_EACH = 10
ROUNDS = 8
DAY = 86_400


class Application:
    """One Puma process that serves tests/clients/ruby/config.ru."""

    def __init__(self, cache, number):
        self.port = free_port()
        environment = {
            **os.environ,
            "LIMIT": str(LIMIT),
            "MEMCACHE_SERVERS": f"{HOST}:{cache.port}",
            "RACK_ENV": "production",
        }
        with open(SCRATCH / "logs" / f"puma-{number}.log", "wb") as log:
            self.process = subprocess.Popen(
                ["puma", "-C", "-", "-t", "12:12", "-b", f"tcp://{HOST}:{self.port}", "config.ru"],
                cwd=ROOT / "tests" / "clients" / "ruby",
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        wait_until(lambda: self.visit("nobody") == 200, self.gone, 60, "puma")

    def gone(self, seconds):
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def visit(self, user):
        """Sends one request, and returns its status or None if nothing listens yet."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=30)
        try:
            connection.request("GET", f"/?user={user}")
            return connection.getresponse().status
        except ConnectionRefusedError:
            return None
        finally:
            connection.close()

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def storm(applications, user):
    """Runs all clients at once, half of them on each process. Returns the statuses of all replies."""
    start = threading.Barrier(CLIENTS)
    statuses = []

    def client(number):
        start.wait()
        for _ in range(REQUESTS_EACH):
            statuses.append(applications[number % len(applications)].visit(user))

    threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statuses


def within_a_day(body):
    """Calls `body`, and calls it again if midnight (UTC) passed meanwhile.

    Rack::Attack counts per day. Returns the result and the number of the day.
    """
    while True:
        day = time.time() // DAY
        result = body()
        if time.time() // DAY == day:
            return result, int(day)


def rack_attack(report, binary):
    """Checks that exactly LIMIT requests of each user pass, over both processes together."""
    with Server(binary, name="rack-attack") as cache:
        applications = []
        try:
            for number in (1, 2):
                applications.append(Application(cache, number))
            for number in range(ROUNDS):
                with report.case(f"user {number}: {LIMIT} of {CLIENTS * REQUESTS_EACH} requests pass"):
                    user = f"user{number}-{os.getpid()}"
                    statuses, day = within_a_day(lambda user=user: storm(applications, user))
                    passed, refused = statuses.count(200), statuses.count(429)
                    equal(passed + refused, CLIENTS * REQUESTS_EACH, "answers with 200 or 429")
                    equal(passed, LIMIT, "requests that passed")
                    with cache.connect() as connection:
                        counted = connection.fetch(b"rack::attack:%d:user:%s" % (day, user.encode()))
                    check(counted is not None, "the counter is not under its key")
                    equal(int(counted), CLIENTS * REQUESTS_EACH, "the counter")
        finally:
            for application in applications:
                application.stop()
