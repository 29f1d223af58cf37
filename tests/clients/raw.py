"""Input that no well-behaved client sends, over plain sockets."""

import errno
import random
import socket
import struct
import threading
import time

from harness import Server, check, equal, promises_memory

MEMORY_MIB = 128
# The resident memory that Larder promises not to exceed for any input of clients: --memory plus
# 10 % plus 32 MiB.
BUDGET_KIB = int(MEMORY_MIB * 1.1 + 32) * 1024
SEED = 20261121
HALF = b"set half 0 0 1000\r\nabc"
CLOSED = (errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN)


def offer(connection, data):
    """Sends data, closes the sending side and reads to the end.

    The server may close the connection at any point.
    """
    try:
        connection.send(data)
        connection.socket.shutdown(socket.SHUT_WR)
        while connection.socket.recv(1 << 18):
            pass
    except OSError as error:
        if error.errno not in CLOSED:
            raise


def half_sent(server):
    """A value of which a client sent only a part is not stored."""
    for rude in (False, True):
        with server.connect() as connection:
            if rude:  # A reset instead of an orderly end.
                connection.send(HALF)
                linger = struct.pack("ii", 1, 0)
                connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            else:
                offer(connection, HALF)
    with server.connect() as connection:
        equal(connection.fetch(b"half"), None, "the half-sent value")


def byte_by_byte(server):
    """Commands that arrive one byte at a time are executed."""
    with server.connect() as connection:
        connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in b"set slow 7 0 5\r\nabcde\r\nget slow\r\nmg slow v\r\n":
            connection.send(bytes([byte]))
        wanted = (b"STORED", b"VALUE slow 7 5", b"abcde", b"END", b"VA 5", b"abcde")
        for line in wanted:
            equal(connection.line(), line)


def random_bytes(first):
    """Sends noise after `first`.

    The server must close each connection after the client has closed its sending side.
    """

    def body(server):
        noise = random.Random(SEED)
        for _ in range(300):
            with server.connect() as connection:
                offer(connection, first + noise.randbytes(noise.randrange(1, 8192)))

    return body


def mangled_commands(server):
    """Sends real commands with bytes changed, dropped and doubled."""
    noise = random.Random(SEED)
    seeds = [
        b"set k 0 0 5\r\nhello\r\n", b"get k k k\r\n", b"gets k\r\n", b"cas k 0 0 1 5\r\nx\r\n",
        b"incr n 1\r\n", b"delete k noreply\r\n", b"touch k 0\r\n", b"gat 5 k\r\n", b"mn\r\n",
        b"ms k 5 T0 F1\r\nhello\r\n", b"mg k v f t c s k O9\r\n", b"ma n N0 J5 v\r\n", b"md k q\r\n",
        b"me k\r\n", b"stats\r\n", b"flush_all 100\r\n", b"verbosity 0\r\n", b"version\r\n",
    ]  # fmt: skip
    for _ in range(400):
        data = bytearray(b"".join(noise.choice(seeds) for _ in range(20)))
        for _ in range(noise.randrange(1, 12)):
            at = noise.randrange(len(data))
            change = noise.randrange(3)
            if change == 0:
                data[at] = noise.randrange(256)
            elif change == 1:
                del data[at : at + noise.randrange(1, 8)]
            else:
                data[at:at] = data[at : at + noise.randrange(1, 64)]
        with server.connect() as connection:
            offer(connection, data)


def http(server):
    """HTTP requests get no answer, and their bodies are not executed.

    A web page can make a browser send such requests.
    """
    for line in (b"GET / HTTP/1.1", b"POST /x HTTP/1.1"):
        with server.connect() as connection:
            connection.send(line + b"\r\nHost: localhost\r\n\r\nset lured 0 0 1\r\nx\r\n")
            check(connection.closed(), f"{line!r} was answered")
    with server.connect() as connection:
        equal(connection.fetch(b"lured"), None, "the value from a web page")


def slow_reader(server):
    """A client requests 200 MB and does not read. Others are served, and memory stays bounded."""
    value = random.Random(SEED).randbytes(500_000)
    with server.connect(timeout=60) as slow, server.connect() as quick:
        for number in range(20):
            equal(quick.store(b"large%d" % number, value), b"STORED")
        every = b"get " + b" ".join(b"large%d" % number for number in range(20)) + b"\r\n"
        slow.send(every * 20)
        started = time.monotonic()
        for number in range(2000):
            equal(quick.store(b"quick", b"%d" % number), b"STORED")
            equal(quick.fetch(b"quick"), b"%d" % number)
        check(time.monotonic() - started < 20, "others waited for the slow reader")
        if promises_memory(server.binary):
            resident = server.resident_kib()
            check(resident <= BUDGET_KIB, f"{resident} KiB resident, promised {BUDGET_KIB}")
        for _ in range(20):
            for number in range(20):
                equal(slow.line(), b"VALUE large%d 0 500000" % number)
                check(slow.exactly(500_000) == value, f"large{number} came back changed")
                equal(slow.exactly(2), b"\r\n")
            equal(slow.line(), b"END")


def many_long_keys(server):
    """Sends one get of 8,000 keys of 250 bytes (a command of 2 MB), then a flood of sets."""
    keys = [b"%0250d" % number for number in range(8000)]
    with server.connect(timeout=60) as connection:
        for key in keys[::1000]:
            equal(connection.store(key, key), b"STORED")
        sender = threading.Thread(target=connection.send, args=(b"get " + b" ".join(keys) + b"\r\n",))
        sender.start()
        for key in keys[::1000]:
            equal(connection.line(), b"VALUE %s 0 250" % key)
            equal(connection.line(), key)
        equal(connection.line(), b"END")
        sender.join()
        flood = b"".join(b"set %s 0 0 2 noreply\r\nok\r\n" % key for key in keys)
        for _ in range(5):
            connection.send(flood)
        equal(connection.ask(b"version\r\n")[:8], b"VERSION ")
        equal(connection.fetch(keys[-1]), b"ok")


def too_long(server):
    """Lines, keys and values over the limits are refused.

    After that, the connection still works or is closed.
    """
    with server.connect() as connection:
        header = connection.ask(b"get " + b"k" * 251 + b"\r\n")
        check(header.startswith(b"CLIENT_ERROR"), f"251-byte key: {header!r}")
    with server.connect() as connection:
        offer(connection, b"gat 0 " + b"a" * 200_000)
    with server.connect() as connection:
        reply = connection.store(b"large", b"x" * (2 << 20))
        equal(reply, b"SERVER_ERROR object too large for cache")
        equal(connection.store(b"small", b"y"), b"STORED")
        equal(connection.fetch(b"large"), None)
        equal(connection.fetch(b"small"), b"y")


def bad_value_end(server):
    """A value that is longer than announced is answered with an error, and the old value stays."""
    with server.connect() as connection:
        equal(connection.store(b"kept", b"old"), b"STORED")
        equal(connection.ask(b"set kept 0 0 3\r\nabcdef\r\n"), b"CLIENT_ERROR bad data chunk")
    with server.connect() as connection:
        equal(connection.fetch(b"kept"), b"old")


def pipeline(server):
    """20,000 mixed commands in one write are answered in order."""
    commands, wanted = bytearray(), []
    for number in range(5000):
        commands += b"set p%d 0 0 4\r\n%04d\r\nget p%d\r\nincr p%d 1\r\nmn\r\n" % (number, number, number, number)
        wanted += [b"STORED", b"VALUE p%d 0 4" % number, b"%04d" % number, b"END", b"%d" % (number + 1), b"MN"]
    with server.connect(timeout=60) as connection:
        sender = threading.Thread(target=connection.send, args=(commands,))
        sender.start()
        for line in wanted:
            equal(connection.line(), line)
        sender.join()


def silent_writes(server):
    """100,000 sets without replies are all executed before the next answer."""
    with server.connect(timeout=60) as connection:
        for start in range(0, 100_000, 10_000):
            batch = range(start, start + 10_000)
            connection.send(b"".join(b"set n%d 0 0 5 noreply\r\n%05d\r\n" % (n, n) for n in batch))
        for number in range(0, 100_000, 9_999):
            equal(connection.fetch(b"n%d" % number), b"%05d" % number)


def binary_beside_text(server):
    """The first byte of a connection chooses its protocol."""
    noop = struct.pack(">BBHBBHIIQ", 0x80, 0x0A, 0, 0, 0, 0, 0, 0xCAFE, 0)
    with server.connect() as text, server.connect() as binary:
        for _ in range(100):
            binary.send(noop)
            equal(text.ask(b"mn\r\n"), b"MN")
            reply = struct.unpack(">BBHBBHIIQ", binary.exactly(24))
            equal((reply[0], reply[1], reply[5], reply[7]), (0x81, 0x0A, 0, 0xCAFE))


def idle_connections(server):
    """800 idle connections that each sent one command stay cheap and usable."""
    before = server.resident_kib()
    crowd = [server.connect() for _ in range(800)]
    try:
        for connection in crowd:
            equal(connection.ask(b"mn\r\n"), b"MN")
        each = (server.resident_kib() - before) / len(crowd)
        if promises_memory(server.binary):
            check(each <= 8, f"{each:.1f} KiB per idle connection")
        for connection in crowd:
            equal(connection.ask(b"mn\r\n"), b"MN")
    finally:
        for connection in crowd:
            connection.close()


CASES = {
    "half-sent command": half_sent,
    "commands byte by byte": byte_by_byte,
    "random bytes": random_bytes(b""),
    "random bytes behind a binary magic": random_bytes(b"\x80"),
    "mangled commands": mangled_commands,
    "an HTTP first line": http,
    "a value with a wrong end": bad_value_end,
    "keys, lines and values that are too long": too_long,
    "20,000 pipelined commands": pipeline,
    "100,000 silent sets": silent_writes,
    "binary beside text": binary_beside_text,
    "idle connections": idle_connections,
    "a flood of 250-byte keys": many_long_keys,
    "a slow reader": slow_reader,
}


def terminated_under_load(binary):
    """SIGTERM ends the server cleanly in any state of its connections."""
    with Server(binary, "-m", "64", name="raw-term") as server:
        idle, half, busy = server.connect(), server.connect(), server.connect()
        half.send(HALF)
        value = b"x" * 100_000
        equal(busy.store(b"v", value), b"STORED")
        busy.send(b"get v\r\n" * 200)
        status = server.stop()
        equal(status, 0, "exit status")
        with socket.socket() as probe:
            check(probe.connect_ex(("127.0.0.1", server.port)) != 0, "something still listens")
        for connection in (idle, half, busy):
            connection.close()


def raw(report, binary):
    """Runs all cases against one server. After each case, the server must serve a new client."""
    with Server(binary, "-m", str(MEMORY_MIB), "-c", "2000", name="raw") as server:
        for name, body in CASES.items():
            with report.case(name):
                body(server)
                check(server.answers(), "no answer to others afterwards")
    if promises_memory(binary):
        report.note(f"memory promised: {BUDGET_KIB} KiB")
    with report.case("SIGTERM with idle, half-sent and busy connections"):
        terminated_under_load(binary)
