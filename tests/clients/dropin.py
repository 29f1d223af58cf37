"""Larder started through a link named `memcached`, as unit files, container images and test harnesses do it."""

import os
import pathlib
import re
import select
import signal
import stat
import subprocess
import tempfile
import time

from harness import HOST, Connection, Server, check, equal, free_port, link_named_memcached, serve_command, wait_until


def output(link, *flags):
    """Runs the program with flags that make it end. Returns its exit status and output."""
    done = subprocess.run(
        [str(link), *flags],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=20,
        check=False,
    )
    return done.returncode, done.stdout


def listening_ports(pid):
    """Returns the TCP ports on which a process listens."""
    mine = set()
    for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            mine.add(os.readlink(entry))
        except FileNotFoundError:
            continue
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in mine:
                ports.add(int(fields[1].rsplit(":", 1)[1], 16))
    return ports


def prints_a_version(link):
    """-h and -V print a version of memcached. Test harnesses look there for 1.6.27 or later."""
    for flag in ("-h", "-V"):
        status, text = output(link, flag)
        equal(status, 0, f"exit status of {flag}")
        version = re.search(r"memcached (\d+)\.(\d+)\.(\d+)", text)
        check(version and version.group(1, 2) == ("1", "6"), f"{flag} says {text[:80]!r}")


def usual_flags(link):
    """Larder accepts the flags that unit files and Compose files pass, even if it ignores them."""
    tuning = ["-R", "20", "-b", "1024", "-n", "48", "-f", "1.25", "-B", "auto", "-o", "modern,hash_algorithm=murmur3"]
    with Server(link, "-m", "64", "-c", "256", "-t", "2", "-v", *tuning, name="dropin-flags") as server:
        with server.connect() as connection:
            equal(connection.store(b"a", b"1"), b"STORED")
            equal(connection.fetch(b"a"), b"1")
        equal(listening_ports(server.pid), {server.port}, "listening ports")


def long_flags(link):
    """Larder accepts memcached's long options."""
    port = free_port()
    command = serve_command(link, f"--port={port}", f"--listen={HOST}", "--memory-limit=64", "--threads=1")
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: answers((HOST, port)), lambda pause: ended(process, pause), 20, "long flags")
        finally:
            process.terminate()


def answers(address):
    try:
        with Connection(address, 5) as connection:
            return connection.ask(b"version\r\n").startswith(b"VERSION 1.6.")
    except (OSError, EOFError):
        return False


def ended(process, pause):
    try:
        process.wait(pause)
    except subprocess.TimeoutExpired:
        return False
    return True


def unix_socket(link):
    """With -s the server listens only on a Unix socket, whose mode is that of -a."""
    path = link.parent / "larder.sock"
    for _ in range(2):  # The second start may find the socket of the first one.
        with Server(link, "-a", "0770", name="dropin-unix", unix=path) as server:
            mode = stat.S_IMODE(path.stat().st_mode)
            equal(oct(mode), "0o770", "mode of the socket")
            equal(listening_ports(server.pid), set(), "listening ports")
            with server.connect() as connection:
                equal(connection.store(b"a", b"1"), b"STORED")


def daemon(link):
    """-d leaves a daemon whose process id is in the -P file; SIGTERM ends it and removes the file."""
    with tempfile.TemporaryDirectory(prefix="larder-test-") as directory:
        os.chmod(directory, 0o777)
        pid_file = pathlib.Path(directory) / "server.pid"
        port = free_port()
        command = serve_command(link, "-d", "-P", str(pid_file), "-p", str(port), "-l", HOST, "-m", "64")
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=20, check=False)
        equal(done.returncode, 0, f"exit status of the starting process ({done.stderr!r:.200})")
        end = time.monotonic() + 20
        while not (pid_file.exists() and pid_file.read_text().strip()) or not answers((HOST, port)):
            check(time.monotonic() < end, "no process id and answer within 20 s")
            time.sleep(0.01)
        pid = int(pid_file.read_text())
        watch = os.pidfd_open(pid)
        try:
            check(os.getsid(pid) != os.getsid(0), "the daemon is still in this session")
            os.kill(pid, signal.SIGTERM)
            wait_for_end(watch, 15)
        finally:
            os.close(watch)
        check(not pid_file.exists(), "the pid file is still there")


def wait_for_end(pidfd, seconds):
    """Waits for the end of a process that is not a child."""
    ready, _, _ = select.select([pidfd], [], [], seconds)
    check(ready, f"still running after {seconds} s")


def refuses_when_full(link):
    """With -M a full server answers sets with an error and evicts nothing."""
    with Server(link, "-m", "64", "-M", name="dropin-full") as server, server.connect() as connection:
        value = b"x" * 100_000
        stored = 0
        while (reply := connection.store(b"full%d" % stored, value)) == b"STORED":
            stored += 1
            check(stored < 2000, "200 MB fitted into 64")
        equal(reply, b"SERVER_ERROR out of memory storing object")
        check(stored > 300, f"only {stored} values of 100 KB fitted into 64 MB")
        for number in range(0, stored, 7):
            check(connection.fetch(b"full%d" % number) == value, f"value {number} is gone")


def item_size(link):
    """-I sets the size of the largest item."""
    with Server(link, "-m", "128", "-I", "2m", name="dropin-size") as server, server.connect() as connection:
        equal(connection.store(b"a", b"x" * 1_900_000), b"STORED")
        equal(len(connection.fetch(b"a")), 1_900_000)
        equal(connection.store(b"b", b"x" * 2_200_000), b"SERVER_ERROR object too large for cache")


def connection_limit(link):
    """-c limits the connections. Further ones are refused until some are closed."""
    with Server(link, "-c", "64", name="dropin-limit") as server:
        crowd = [server.connect() for _ in range(120)]
        served = refused = 0
        for connection in crowd:
            try:
                reply = connection.ask(b"version\r\n")
            except (EOFError, OSError):
                reply = b"ERROR Too many open connections"
            served += reply.startswith(b"VERSION")
            refused += reply == b"ERROR Too many open connections"
        for connection in crowd:
            connection.close()
        equal(served + refused, 120, "connections served or refused")
        check(0 < served <= 64, f"{served} served with -c 64")
        wait_until(server.answers, server.gone, 10, "after the crowd left")


def evicts_by_default(link):
    """Without -M a full server keeps the newest items and counts evictions."""
    with Server(link, "-m", "64", name="dropin-evict") as server, server.connect() as connection:
        for number in range(1500):
            equal(connection.store(b"evict%d" % number, b"x" * 100_000), b"STORED")
        check(connection.fetch(b"evict1499") is not None, "the newest item is gone")
        connection.send(b"stats\r\n")
        stats = {}
        while (line := connection.line()) != b"END":
            _, name, value = line.split(b" ", 2)
            stats[name] = value
        check(int(stats[b"evictions"]) > 0, "150 MB went into 64 without an eviction")
        check(int(stats[b"curr_items"]) < 1500, "curr_items counts evicted items")


def never_ignored(link):
    """A flag that restricts access or keeps data is never ignored: the start fails instead."""
    for flags in (["-Z"], ["-Y", "/dev/null/users"], ["-o", "ext_path=/dev/null/store:64m"]):
        port = str(free_port())
        command = serve_command(link, "-p", port, "-l", HOST, *flags)
        status, text = output(command[0], *command[1:])
        check(status != 0 and text.strip(), f"{flags}: exit status {status}, {text[:100]!r}")


CASES = {
    "-h and -V": prints_a_version,
    "the flags of unit files": usual_flags,
    "long flags": long_flags,
    "-s and -a": unix_socket,
    "-d and -P": daemon,
    "-M": refuses_when_full,
    "eviction": evicts_by_default,
    "-I": item_size,
    "-c": connection_limit,
    "protecting flags are not ignored": never_ignored,
}


def dropin(report, binary):
    """Runs all cases through a link named `memcached`."""
    with link_named_memcached(binary) as link:
        for name, body in CASES.items():
            with report.case(name):
                body(link)
