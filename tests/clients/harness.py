"""The parts that all client suites share: the server under test, a connection, and the report.

The server under test is a real process. If the name of the binary begins with `memcached`, it is
started with memcached's own flags. Otherwise it is started with `larder serve`. So the same suite
can run against Larder, and against memcached, which checks the suite itself.
"""

import contextlib
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRATCH = ROOT / "target" / "clients"
HOST = "127.0.0.1"
# True for a build with sanitizers. Sanitizers use memory themselves, so memory use is not checked.
INSTRUMENTED = "--instrumented" in sys.argv
START_SECONDS = 20
STOP_SECONDS = 15


class Failed(Exception):
    """A check failed. The text says what was seen instead."""


def check(condition, seen):
    """Fails the case if `condition` is false. Unlike `assert`, this also works with `python -O`."""
    if not condition:
        raise Failed(seen)


def equal(got, wanted, what="reply"):
    """Fails the running case when two values differ."""
    check(got == wanted, f"{what}: got {got!r:.200}, wanted {wanted!r:.200}")


class Report:
    """Prints one line per case and counts them."""

    def __init__(self):
        self.suite = ""
        self.passed = 0
        self.failed = []

    def ok(self, name):
        self.passed += 1
        print(f"ok   {self.suite}: {name}", flush=True)

    def fail(self, name, why):
        self.failed.append(f"{self.suite}: {name}")
        print(f"FAIL {self.suite}: {name}: {why}", flush=True)

    def note(self, text):
        print(f"     {self.suite}: {text}", flush=True)

    @contextlib.contextmanager
    def case(self, name):
        """Runs one case. Any exception makes the case fail, and the suite continues."""
        try:
            yield
        except Exception as error:  # pylint: disable=broad-except
            self.fail(name, f"{type(error).__name__}: {error}")
        else:
            self.ok(name)


def free_port():
    """Returns a TCP port on which no process listens at the moment."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def speaks_memcached_flags(binary):
    return os.path.basename(str(binary)).startswith("memcached")


def promises_memory(binary):
    """Returns true if the server must keep Larder's promise about resident memory."""
    return not INSTRUMENTED and not speaks_memcached_flags(binary)


def serve_command(binary, *flags):
    """Returns the command line of a server. Larder and memcached must both know `flags`."""
    if not speaks_memcached_flags(binary):
        return [str(binary), "serve", "--admin", "off", *flags]
    real = os.path.basename(os.path.realpath(binary)).startswith("memcached")
    run_as = ["-u", "nobody"] if real and os.geteuid() == 0 else []
    return [str(binary), "-U", "0", *run_as, *flags]


def wait_until(ready, gone, seconds, what):
    """Waits until `ready()` is true, and fails if the server ends before that.

    `gone(pause)` waits at most `pause` seconds for the end of the server, and returns true if the
    server has ended. This wait is also the pause between two calls of `ready`.
    """
    end = time.monotonic() + seconds
    while not ready():
        if gone(0.01):
            raise Failed(f"{what}: the server ended instead")
        check(time.monotonic() < end, f"{what}: not within {seconds} s")


class Server:
    """A running server. As a context manager, it stops the server and checks for a clean end."""

    def __init__(self, binary, *flags, name="server", unix=None, environment=None):
        self.binary = binary
        self.unix = unix
        self.stopped = False
        self.port = None if unix else free_port()
        where = ["-s", str(unix)] if unix else ["-l", HOST, "-p", str(self.port)]
        command = serve_command(binary, *where, *flags)
        logs = SCRATCH / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        self.log = logs / f"{name}.log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **(environment or {})},
            )
        try:
            wait_until(self.answers, self.gone, START_SECONDS, " ".join(command))
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise

    @property
    def pid(self):
        return self.process.pid

    def gone(self, seconds):
        """Waits at most `seconds` for the end of the process. Returns true if it has ended."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def answers(self):
        """Returns true if a new connection gets an answer."""
        try:
            with self.connect(timeout=5) as connection:
                return connection.ask(b"version\r\n").startswith(b"VERSION ")
        except (OSError, EOFError):
            return False

    def connect(self, timeout=10):
        return Connection(str(self.unix) if self.unix else (HOST, self.port), timeout)

    def resident_kib(self):
        """Returns the resident memory of the process in KiB."""
        status = pathlib.Path(f"/proc/{self.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status).group(1))

    def stop(self):
        """Sends SIGTERM, waits for the end and returns the exit status."""
        self.stopped = True
        self.process.send_signal(signal.SIGTERM)
        if not self.gone(STOP_SECONDS):
            self.process.kill()
            self.process.wait()
            raise Failed(f"still running {STOP_SECONDS} s after SIGTERM")
        return self.process.returncode

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if self.stopped:
            return
        if self.process.poll() is not None:
            raise Failed(f"the server ended by itself with {self.process.returncode}: {self.tail()}")
        status = self.stop()
        check(status == 0, f"exit status {status} after SIGTERM: {self.tail()}")
        check(b"panicked" not in self.log.read_bytes(), f"panic in the log: {self.tail()}")

    def tail(self):
        return self.log.read_text(errors="replace")[-600:]


class Connection:
    """A blocking connection for the text protocol. Keeps bytes that it has read beyond a reply."""

    def __init__(self, address, timeout):
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        self.socket.settimeout(timeout)
        try:
            self.socket.connect(address)
        except BaseException:
            self.socket.close()
            raise
        self.buffer = bytearray()

    def send(self, data):
        self.socket.sendall(data)

    def _fill(self):
        more = self.socket.recv(1 << 18)
        if not more:
            raise EOFError("connection closed")
        self.buffer += more

    def line(self):
        """Returns the next line without its CRLF."""
        while b"\r\n" not in self.buffer:
            self._fill()
        line, _, rest = bytes(self.buffer).partition(b"\r\n")
        self.buffer = bytearray(rest)
        return line

    def exactly(self, count):
        """Returns the next `count` bytes."""
        while len(self.buffer) < count:
            self._fill()
        data = bytes(self.buffer[:count])
        del self.buffer[:count]
        return data

    def ask(self, command):
        """Sends a command and returns its one-line reply."""
        self.send(command)
        return self.line()

    def store(self, key, value, flags=0, expiry=0):
        return self.ask(b"set %s %d %d %d\r\n%s\r\n" % (key, flags, expiry, len(value), value))

    def fetch(self, key):
        """Returns the value of one key, or None."""
        header = self.ask(b"get %s\r\n" % key)
        if header == b"END":
            return None
        check(header.startswith(b"VALUE "), f"get: {header!r}")
        value = self.exactly(int(header.split()[3]) + 2)[:-2]
        equal(self.line(), b"END")
        return value

    def closed(self):
        """Returns true if the server closes the connection without sending anything more."""
        try:
            return not self.buffer and self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()


def forward(report, command, seconds=300, **options):
    """Runs a client program that prints `ok NAME` or `FAIL NAME: WHY` per case. Reports the cases.

    The suite fails if the program prints no case, ends with an error or exceeds `seconds`.
    """
    program = subprocess.Popen(
        [str(part) for part in command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        **options,
    )
    limit = threading.Timer(seconds, program.kill)
    limit.start()
    before, failed = report.passed, len(report.failed)
    for line in program.stdout:
        line = line.rstrip()
        if line.startswith("ok "):
            report.ok(line[3:].strip())
        elif line.startswith("FAIL "):
            name, _, why = line[5:].partition(": ")
            report.fail(name, why)
        elif line:
            report.note(line)
    status = program.wait()
    limit.cancel()
    if report.passed == before:
        report.fail("cases", f"{command[0]} ran none")
    if status != 0 and len(report.failed) == failed:
        report.fail("end", f"{command[0]} ended with {status}")


@contextlib.contextmanager
def link_named_memcached(binary):
    """Creates a directory with a link `memcached` to `binary`, and deletes it at the end."""
    with tempfile.TemporaryDirectory(prefix="larder-test-") as directory:
        os.chmod(directory, 0o777)  # If root starts memcached, another user creates its socket here.
        link = pathlib.Path(directory) / "memcached"
        link.symlink_to(pathlib.Path(binary).resolve())
        yield link


def run(command, **options):
    """Runs a set-up command and returns its output. Prints the output only if the command fails."""
    done = subprocess.run(
        [str(part) for part in command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        **options,
    )
    if done.returncode != 0:
        sys.stdout.write(done.stdout)
        raise Failed(f"{' '.join(map(str, command))} ended with {done.returncode}")
    return done.stdout
