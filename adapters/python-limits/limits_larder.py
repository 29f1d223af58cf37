"""Larder's rate limits for `limits` and Flask-Limiter: the storage `larder://HOST:PORT`, and strategies.

The server decides and counts in one step, so every hit is one request. A connection serves one request at
a time. It is closed after any error, so that a late reply never answers another request.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import os
import socket
import sys
import threading
import time
from typing import NamedTuple

from limits._storage_scheme import parse_storage_uri
from limits.errors import ConfigurationError, StorageError
from limits.storage import Storage
from limits.strategies import STRATEGIES, RateLimiter
from limits.util import WindowStats

KEY_BYTES = 250
# The longest relative TTL, in seconds. As in memcached, the server reads a larger number as Unix time.
LONGEST_TTL = 30 * 86_400
# How long `get_window_stats` may reuse the answer to a hit, in seconds.
FRESH = 1.0
# The largest number of answers that a thread keeps for `get_window_stats`.
MOST_TOLD = 64
NO_LIMITS = ("ERROR", "CLIENT_ERROR invalid or duplicate flag")
# The first words of the replies to meta commands. Anything else is an error, for example "ERROR Too many
# open connections".
REPLIES = ("HD", "VA", "NS", "NF", "EN", "EX")

log = logging.getLogger(__name__)


class LarderError(Exception):
    """The server refused a request, for example because the key holds text."""


class ServerAway(LarderError):
    """The server did not answer, or not in time."""


class NotLarder(LarderError):
    """The server has no rate limits."""


class Answer(NamedTuple):
    """The server's answer to a request for units of a limit."""

    allowed: bool
    remaining: int
    wait_ms: int = 0
    """Time until the same request could pass: 0 if it passed, -1 if it never can."""
    reset_s: int = 0
    """Seconds until the limiter is as new."""


def wire_key(key: str) -> str:
    """Returns the key in a form that the protocol can carry, with the flag of that form."""
    raw = key.encode(errors="surrogatepass")
    if raw and len(raw) <= KEY_BYTES and all(byte > 0x20 and byte != 0x7F for byte in raw):
        return key
    encoded = base64.b64encode(raw).decode()
    if raw and len(encoded) <= KEY_BYTES:
        return f"{encoded} b"
    return f"sha256:{hashlib.sha256(raw).hexdigest()}"


class Client:
    """Connections to one server. Each is used by one thread at a time, and only by the process that made it."""

    def __init__(self, address, connect_timeout, timeout, backoff, pool_size):
        self._address = address
        self._connect_timeout = connect_timeout
        self._timeout = timeout
        self._backoff = backoff
        self._pool_size = pool_size
        self._retry_at = 0.0
        self._pid = os.getpid()
        self._idle: list[socket.socket] = []

    def call(self, command: str, key: str, flags: str = "") -> tuple[list[str], str]:
        """Returns the words of the reply's first line, and its value."""
        if os.getpid() != self._pid:
            self._idle, self._pid = [], os.getpid()
        if time.monotonic() < self._retry_at:
            raise ServerAway("waiting before the next attempt")
        # Encoded outside of the try, because a faulty key must not count as a server that is away.
        request = f"{command} {wire_key(key)} {flags}\r\n".encode(errors="surrogatepass")
        try:
            line, _, value = self._exchange(request).partition("\r\n")
        except (OSError, ValueError) as error:
            self._retry_at = time.monotonic() + self._backoff
            raise ServerAway(f"{type(error).__name__}: {error}") from error
        if line in NO_LIMITS:
            raise NotLarder("this server has no rate limits; it is not Larder, or too old")
        if line.startswith("CLIENT_ERROR"):
            raise LarderError(line)
        words = line.split()
        if not words or words[0] not in REPLIES:
            raise ServerAway(f"it answered {line!r}")
        return words, value.removesuffix("\r\n")

    def _exchange(self, request: bytes) -> str:
        connection = self._connection()
        try:
            deadline = time.monotonic() + self._timeout
            connection.settimeout(self._timeout)
            connection.sendall(request)
            reply = b""
            while not self._complete(reply):
                connection.settimeout(max(deadline - time.monotonic(), 0.000_1))
                more = connection.recv(4096)
                if not more:
                    raise ConnectionError("the server closed the connection")
                reply += more
        except BaseException:
            connection.close()
            raise
        if len(self._idle) < self._pool_size:
            self._idle.append(connection)
        return reply.decode(errors="replace")

    @staticmethod
    def _complete(reply: bytes) -> bool:
        line, end, rest = reply.partition(b"\r\n")
        return bool(end) and (not line.startswith(b"VA ") or len(rest) >= int(line.split()[1]) + 2)

    def _connection(self) -> socket.socket:
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                break
            try:
                # No reply is due on an idle connection. So a readable one was closed by the server.
                connection.setblocking(False)
                connection.recv(1, socket.MSG_PEEK)
            except BlockingIOError:
                return connection
            except OSError:
                pass
            connection.close()
        if isinstance(self._address, tuple):
            connection = socket.create_connection(self._address, self._connect_timeout)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(self._connect_timeout)
        connection.connect(self._address)
        return connection


class LarderStorage(Storage):
    """The storage `larder://HOST:PORT` or `larder:///PATH/OF/SOCKET`. Times are in seconds.

    `fail` says what happens while the server is away: "open" lets requests pass, "closed" refuses them,
    "raise" raises ServerAway, for the fallback of Flask-Limiter.
    """

    STORAGE_SCHEME = ["larder"]

    def __init__(
        self,
        uri: str,
        wrap_exceptions: bool = False,
        *,
        fail: str = "open",
        connect_timeout: float = 0.1,
        timeout: float = 0.1,
        backoff: float = 0.5,
        pool_size: int = 32,
        burst: int | None = None,
    ):
        super().__init__(uri, wrap_exceptions)
        where = parse_storage_uri(uri)
        addresses = where.locations or ([where.path] if where.path else [])
        if len(addresses) != 1:
            raise ConfigurationError(f"{uri} does not name one server, as in larder://127.0.0.1:11211")
        if fail not in ("open", "closed", "raise"):
            raise ConfigurationError(f'fail is "open", "closed" or "raise", not {fail!r}')
        self.fail = fail
        self.burst = burst
        self._client = Client(addresses[0], connect_timeout, timeout, backoff, pool_size)
        self._warn_at = 0.0

    @property
    def base_exceptions(self) -> type[Exception]:
        return LarderError

    def take(self, key: str, algorithm: str, budget: int, window: int, cost: int = 1) -> Answer:
        """Takes `cost` units of a limit, all or none, in one request. A cost of 0 only reads the state.

        `algorithm` is I (fixed window), W (sliding window) or G (GCRA).
        """
        burst = f" G{max(1, min(self.burst, budget))}" if algorithm == "G" and self.burst else ""
        try:
            return self._take(key, f"M{algorithm} B{budget} N{window}{burst} D{cost} r t w", budget)
        except LarderError as error:
            # The library wraps the errors of its own methods only.
            if self.wrap_exceptions:
                raise StorageError(error) from error
            raise

    def _take(self, key: str, flags: str, budget: int) -> Answer:
        try:
            words, _ = self._client.call("ma", key, flags)
        except ServerAway as error:
            return Answer(True, budget) if self._passes(error) else Answer(False, 0)
        told = {word[0]: int(word[1:]) for word in words[1:]}
        return Answer(words[0] == "HD", told["r"], told["w"], told["t"])

    def _passes(self, error: ServerAway) -> bool:
        """Returns whether requests pass while the server is away. Warns at most once a second."""
        if self.fail == "raise":
            raise error
        if time.monotonic() >= self._warn_at:
            self._warn_at = time.monotonic() + 1
            log.warning("Larder is away, requests %s: %s", "pass" if self.fail == "open" else "are refused", error)
        return self.fail == "open"

    def _count(self, command: str, key: str, flags: str) -> tuple[int, float]:
        """Returns a counter and the seconds until it expires."""
        try:
            words, value = self._client.call(command, key, flags)
        except ServerAway as error:
            return (0 if self._passes(error) else sys.maxsize), 0.0
        return int(value or 0), sum(float(word[1:]) for word in words if word.startswith("t"))

    # The library's own strategy "fixed-window" calls these methods. That strategy counts refused
    # requests too.

    def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        ttl = expiry if expiry <= LONGEST_TTL else int(time.time()) + expiry
        return self._count("ma", key, f"N{ttl} J{amount} D{amount} v")[0]

    def get(self, key: str) -> int:
        return self._count("mg", key, "v")[0]

    def get_expiry(self, key: str) -> float:
        return time.time() + self._count("mg", key, "v t")[1]

    def clear(self, key: str) -> None:
        try:
            self._client.call("md", key)
        except ServerAway as error:
            self._passes(error)

    def check(self) -> bool:
        try:
            self._client.call("ma", "limits:check", "B1 N1 D0")
        except LarderError:
            return False
        return True

    def reset(self) -> int | None:
        raise NotImplementedError("Larder cannot delete all limits without deleting everything else it holds")

    def __getattr__(self, name: str):
        # The library's other strategies look for these methods. A mere AttributeError would hide the reason.
        if name in ("acquire_entry", "get_moving_window"):
            raise NotImplementedError(
                "Larder does not support moving-window, which keeps the time of every hit: "
                "use larder-sliding-window or larder-gcra"
            )
        if name in ("acquire_sliding_window_entry", "get_sliding_window"):
            raise NotImplementedError(
                "Larder does not support sliding-window-counter, whose windows follow the clock: "
                "use larder-sliding-window, which starts with the first hit"
            )
        raise AttributeError(name)


class LarderRateLimiter(RateLimiter):
    """Base of the three strategies. A hit is one request, and the stats after a hit need none."""

    algorithm = "I"

    def __init__(self, storage: Storage):
        if not isinstance(storage, LarderStorage):
            raise ConfigurationError(f"{type(self).__name__} needs a storage of the form larder://HOST:PORT")
        super().__init__(storage)
        # The answers to this thread's hits, by key, until `get_window_stats` has used them.
        self._told = threading.local()

    def _ask(self, item, identifiers, cost: int) -> Answer:
        key = item.key_for(*identifiers)
        return self.storage.take(key, self.algorithm, item.amount, item.get_expiry(), cost)

    def hit(self, item, *identifiers: str, cost: int = 1) -> bool:
        answer = self._ask(item, identifiers, cost)
        told = vars(self._told)
        if len(told) >= MOST_TOLD:
            told.clear()
        told[item.key_for(*identifiers)] = (time.monotonic() + FRESH, answer)
        return answer.allowed

    def test(self, item, *identifiers: str, cost: int = 1) -> bool:
        answer = self._ask(item, identifiers, 0)
        return answer.allowed and answer.remaining >= cost

    def get_window_stats(self, item, *identifiers: str) -> WindowStats:
        """Returns the reset time and the units left.

        After a refusal, the reset time is when the request could pass. Otherwise it is when the limiter is
        as new. The first call after a hit reuses the hit's answer and sends no request.
        """
        until, answer = vars(self._told).pop(item.key_for(*identifiers), (0.0, None))
        if answer is None or time.monotonic() > until:
            answer = self._ask(item, identifiers, 0)
        seconds = answer.wait_ms / 1000 if answer.wait_ms > 0 else max(0, answer.reset_s)
        return WindowStats(time.time() + seconds, answer.remaining)

    def clear(self, item, *identifiers: str) -> None:
        vars(self._told).pop(item.key_for(*identifiers), None)
        super().clear(item, *identifiers)


class LarderFixedWindowRateLimiter(LarderRateLimiter):
    """A fixed window that starts with its first hit. Refused hits do not count."""


class LarderSlidingWindowRateLimiter(LarderRateLimiter):
    """Weighs the previous window. Any time as long as a window admits less than twice the limit."""

    algorithm = "W"


class LarderGcraRateLimiter(LarderRateLimiter):
    """A token bucket that holds `burst` (an option of the storage) and fills at the limit's rate."""

    algorithm = "G"


STRATEGIES["larder-fixed-window"] = LarderFixedWindowRateLimiter
STRATEGIES["larder-sliding-window"] = LarderSlidingWindowRateLimiter
STRATEGIES["larder-gcra"] = LarderGcraRateLimiter
