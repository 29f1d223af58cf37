"""What every client suite shares: a server to talk to, and one printed line per case.

The server under test is a real process. `larder` is started as a user starts it (`larder serve`), a
binary whose name begins with `memcached` with memcached's own flags, so that one suite tells whether
the test is right (memcached) and whether Larder is (larder).
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
# An instrumented build (sanitizers) needs memory of its own: what is promised is then not looked at.
INSTRUMENTED = "--instrumented" in sys.argv
START_SECONDS = 20
STOP_SECONDS = 15


class Failed(Exception):
    """A check did not hold; the text says what was seen."""


def check(condition, seen):
    """Fails the running case with what was seen instead. Unlike `assert`, it survives `python -O`."""
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
        """Runs one case; whatever it raises makes the case fail and the suite goes on."""
        try:
            yield
        except Exception as error:  # pylint: disable=broad-except
            self.fail(name, f"{type(error).__name__}: {error}")
        else:
            self.ok(name)


def free_port():
    """A TCP port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def speaks_memcached_flags(binary):
    return os.path.basename(str(binary)).startswith("memcached")


def promises_memory(binary):
    """Whether resident memory is held against Larder's promises."""
    return not INSTRUMENTED and not speaks_memcached_flags(binary)


def serve_command(binary, *flags):
    """The command line that serves with `flags`, which Larder and memcached share."""
    if not speaks_memcached_flags(binary):
        return [str(binary), "serve", "--admin", "off", *flags]
    real = os.path.basename(os.path.realpath(binary)).startswith("memcached")
    run_as = ["-u", "nobody"] if real and os.geteuid() == 0 else []
    return [str(binary), "-U", "0", *run_as, *flags]


def wait_until(ready, gone, seconds, what):
    """Waits until `ready()` holds. `gone(pause)` waits that long for the process to end: the wait
    between two tries is itself a wait for the one event that makes further tries useless."""
    end = time.monotonic() + seconds
    while not ready():
        if gone(0.01):
            raise Failed(f"{what}: the server ended instead")
        check(time.monotonic() < end, f"{what}: not within {seconds} s")


class Server:
    """A running server; a context manager that asserts a clean end."""

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
        """True when the process has ended, at the latest after `seconds`."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def answers(self):
        """True when a new connection gets an answer."""
        try:
            with self.connect(timeout=5) as connection:
                return connection.ask(b"version\r\n").startswith(b"VERSION ")
        except (OSError, EOFError):
            return False

    def connect(self, timeout=10):
        return Connection(str(self.unix) if self.unix else (HOST, self.port), timeout)

    def resident_kib(self):
        """Resident memory of the process in KiB."""
        status = pathlib.Path(f"/proc/{self.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status).group(1))

    def stop(self):
        """Asks for a clean end and returns the exit status."""
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
    """A blocking text connection that keeps what it has read too much."""

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
        """The next line without its CRLF."""
        while b"\r\n" not in self.buffer:
            self._fill()
        line, _, rest = bytes(self.buffer).partition(b"\r\n")
        self.buffer = bytearray(rest)
        return line

    def exactly(self, count):
        """The next `count` bytes."""
        while len(self.buffer) < count:
            self._fill()
        data = bytes(self.buffer[:count])
        del self.buffer[:count]
        return data

    def ask(self, command):
        """Sends a command with a one-line reply."""
        self.send(command)
        return self.line()

    def store(self, key, value, flags=0, expiry=0):
        return self.ask(b"set %s %d %d %d\r\n%s\r\n" % (key, flags, expiry, len(value), value))

    def fetch(self, key):
        """The value of one key, or None."""
        header = self.ask(b"get %s\r\n" % key)
        if header == b"END":
            return None
        check(header.startswith(b"VALUE "), f"get: {header!r}")
        value = self.exactly(int(header.split()[3]) + 2)[:-2]
        equal(self.line(), b"END")
        return value

    def closed(self):
        """True when the server closes the connection without sending anything more."""
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
    """Runs a client program that prints `ok NAME` or `FAIL NAME: WHY` per case, and passes them on.

    A program that says nothing, ends early or takes too long fails the suite.
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
    """A directory in which `memcached` is a link to `binary`."""
    with tempfile.TemporaryDirectory(prefix="larder-test-") as directory:
        os.chmod(directory, 0o777)  # memcached, started by root, makes its socket as another user.
        link = pathlib.Path(directory) / "memcached"
        link.symlink_to(pathlib.Path(binary).resolve())
        yield link


def run(command, **options):
    """Runs a set-up command; its output is shown only when it fails."""
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
