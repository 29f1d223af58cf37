"""Compares the strategies of limits on several servers: requests and time per hit, and hits beyond the limit.

usage: measure.py STORAGE=STRATEGY ..., for example
    measure.py memcached://127.0.0.1:11212=fixed-window larder://127.0.0.1:11211=larder-fixed-window
"""

import multiprocessing
import socket
import statistics
import sys
import threading
import time

import limits
from limits.storage import storage_from_string
from limits.strategies import STRATEGIES

import limits_larder  # noqa: F401

ROUNDS, HITS = 7, 1000
BUDGET, WINDOW = 200, 4
PROCESSES, THREADS = 6, 4


class Counter:
    """Passes bytes on to a server, and counts the pieces that arrive from the client: its requests."""

    def __init__(self, port):
        self.requests = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(port,), daemon=True).start()

    def _accept(self, port):
        while True:
            client, server = self._listener.accept()[0], socket.create_connection(("127.0.0.1", port))
            threading.Thread(target=self._pass_on, args=(client, server, 1), daemon=True).start()
            threading.Thread(target=self._pass_on, args=(server, client, 0), daemon=True).start()

    def _pass_on(self, source, target, count):
        while data := source.recv(1 << 16):
            self.requests += count
            target.sendall(data)


def limiter(uri, strategy):
    options = {"timeout": 20.0} if uri.startswith("larder") else {}
    return STRATEGIES[strategy](storage_from_string(uri, **options))


def with_headers(one, item, user):
    one.hit(item, user)
    one.get_window_stats(item, user)


def requests(uri, strategy, action):
    """Returns the requests of one action on a counter that exists, and of the first action of a window."""
    scheme, port = uri.split("://")[0], int(uri.rsplit(":", 1)[1])
    counter = Counter(port)
    one, item = limiter(f"{scheme}://127.0.0.1:{counter.port}", strategy), limits.parse("1000000/hour")
    seen = []
    one.hit(item, f"warm-{time.time_ns()}")
    user = f"user-{time.time_ns()}"
    for _ in range(2):
        before = counter.requests
        action(one, item, user)
        seen.append(counter.requests - before)
    return f"{seen[1]} ({seen[0]})"


def microseconds(one, action):
    item, user = limits.parse("1000000/hour"), f"user-{time.time_ns()}"
    action(one, item, user)
    began = time.perf_counter()
    for _ in range(HITS):
        action(one, item, user)
    return (time.perf_counter() - began) / HITS * 1e6


def hammer(uri, strategy, user, at, passed):
    one, item = limiter(uri, strategy), limits.parse(f"{BUDGET}/{WINDOW} seconds")
    one.test(item, user)

    def work():
        time.sleep(max(0, at - time.time()))
        count = sum(one.hit(item, user) for _ in range(30))
        passed.put((count, time.time()))

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def admitted(uri, strategy):
    """Uses up one window, then hits from many threads and processes early in the next one.

    Returns the number of hits that passed, and the largest number that a sliding window allows by then.
    """
    item, user = limits.parse(f"{BUDGET}/{WINDOW} seconds"), f"user-{time.time_ns()}"
    # The windows of the library limits follow the clock. Those of Larder begin with the first hit.
    # This function starts at the begin of a clock window, so both kinds begin at the same moment.
    start = (time.time() // WINDOW + 1) * WINDOW
    time.sleep(start - time.time() + 0.002)
    one = limiter(uri, strategy)
    first = sum(one.hit(item, user) for _ in range(BUDGET + 10))
    passed = multiprocessing.SimpleQueue()
    arguments = (uri, strategy, user, start + WINDOW * 1.3, passed)
    processes = [multiprocessing.Process(target=hammer, args=arguments) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    counts, ends = zip(*[passed.get() for _ in range(PROCESSES * THREADS)], strict=True)
    for process in processes:
        process.join()
    return sum(counts), int(BUDGET - first * (2 - (max(ends) - start) / WINDOW))


def main():
    cases = [argument.split("=") for argument in sys.argv[1:]]
    actions = {"hit": lambda one, item, user: one.hit(item, user), "hit and headers": with_headers}
    times = {}
    # The cases are interleaved, so that other work on the machine slows all of them alike.
    for _ in range(ROUNDS):
        for uri, strategy in cases:
            one = limiter(uri, strategy)
            for name, action in actions.items():
                times.setdefault((uri, strategy, name), []).append(microseconds(one, action))
    print(f"sliding windows: hits of {PROCESSES * THREADS} threads that passed / most that may, in each round")
    for uri, strategy in cases:
        if "sliding" in strategy:
            results = [admitted(uri, strategy) for _ in range(ROUNDS)]
            print(f"{uri.split(':')[0]:10} {strategy:23}", *(f"{count}/{most}" for count, most in results))
    print("requests per action (the first of a window in brackets), microseconds: median, fastest")
    for (uri, strategy, name), taken in times.items():
        count = requests(uri, strategy, actions[name])
        print(
            f"{uri.split(':')[0]:10} {strategy:23} {name:16} {count} {statistics.median(taken):6.0f} {min(taken):6.0f}"
        )


if __name__ == "__main__":
    main()
