"""The suites of Python clients. Each runs the client's own tests, from its source package."""

import os
import re
import shutil
import subprocess
import tarfile

from harness import HOST, ROOT, SCRATCH, Server, check, run

HERE = ROOT / "tests" / "clients" / "python"

# Packages whose tests are run. Wheels contain no tests, so the source packages of the same versions
# are fetched.
SOURCES = ("pymemcache", "pylibmc", "Django")


def environment(requirements=HERE / "requirements.txt", home=SCRATCH / "python", sources=SOURCES):
    """Returns the directory of a virtual environment with the pinned packages.

    Creates the environment again if the pins have changed.
    """
    pins = requirements.read_text()
    made_from = home / "made-from.txt"
    if not made_from.exists() or made_from.read_text() != pins:
        shutil.rmtree(home, ignore_errors=True)
        run(["python3", "-m", "venv", home])
        run([home / "bin" / "pip", "install", "--quiet", "-r", requirements])
        for name in sources:
            version = re.search(rf"^{name}==(\S+)", pins, re.MULTILINE).group(1)
            source = ["--no-deps", "--no-binary", ":all:", "-d", home, f"{name}=={version}"]
            run([home / "bin" / "pip", "download", "--quiet", *source])
            with tarfile.open(next(home.glob(f"{name.lower()}-*.tar.gz"))) as archive:
                archive.extractall(home)
        made_from.write_text(pins)
    return home


def output_of(command, where, name, settings):
    """Runs a package's tests. Returns their output, and also keeps it in a file."""
    path = SCRATCH / f"{name}.txt"
    with open(path, "w", encoding="utf-8") as out:
        subprocess.run(
            [str(part) for part in command],
            cwd=where,
            env={**os.environ, **settings},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            timeout=300,
            check=False,
        )
    return path.read_text(encoding="utf-8", errors="replace")


def tell(report, outcomes, good, wanted, text):
    """Reports each `(name, outcome)` pair, and fails if there are fewer than `wanted` pairs."""
    for name, outcome in outcomes:
        if outcome == good:
            report.ok(name)
        else:
            report.fail(name, outcome)
    with report.case("the whole suite ran"):
        check(len(outcomes) >= wanted, f"{len(outcomes)} tests: {text[-400:]}")


def pytest(report, home, where, arguments, name, wanted, settings=None):
    """Runs a pytest suite and reports its outcomes."""
    # Some packages require plug-ins for coverage in `addopts`, so it is emptied.
    command = [home / "bin" / "python", "-m", "pytest", "-o", "addopts=", "-p", "no:cacheprovider", "-rA", "-q"]
    text = output_of([*command, *arguments], where, name, settings or {})
    outcomes = re.findall(r"^(PASSED|FAILED|ERROR) \S*?::(.*)$", text, re.MULTILINE)
    tell(report, [(case, outcome) for outcome, case in outcomes], "PASSED", wanted, text)


def pymemcache(report, binary):
    """Runs pymemcache's integration tests."""
    home = environment()
    where = next(home.glob("pymemcache-*/pymemcache/test"))
    with Server(binary, name="pymemcache") as server:
        arguments = ["-m", "integration", "--server", HOST, "--port", server.port, "test_integration.py"]
        pytest(report, home, where, arguments, "pymemcache", 90)
    report.note("skipped by the package itself: test_tls")


def pylibmc(report, binary):
    """Runs pylibmc's own tests, which use libmemcached in text mode."""
    home = environment()
    where = next(home.glob("pylibmc-*/tests")).parent
    with Server(binary, name="pylibmc") as server:
        settings = {"MEMCACHED_HOST": HOST, "MEMCACHED_PORT": str(server.port)}
        # The tests of Amazon's server discovery are left out, because they need a server at a fixed
        # port.
        arguments = ["tests", "--ignore", "tests/test_autoconf.py"]
        pytest(report, home, where, arguments, "pylibmc", 38, settings)


def django(report, binary):
    """Runs Django's tests of its two memcached backends, which use pymemcache and libmemcached."""
    home = environment()
    where = next(home.glob("django-*/tests"))
    with Server(binary, name="django") as server:
        settings = {"PYTHONPATH": str(HERE), "CACHE_SERVER": f"{HOST}:{server.port}"}
        tests = ["cache.tests.PyMemcacheCacheTests", "cache.tests.PyLibMCCacheTests"]
        command = [home / "bin" / "python", "runtests.py", "--settings", "django_settings", "--parallel", "1"]
        text = output_of([*command, "-v", "2", *tests], where, "django", settings)
    # A test with a description has its outcome on the next line.
    found = re.findall(r"^(test_\w+) \(cache\.tests\.(\w+)\.\w+\)(?:\n.*)? \.\.\. (\w+)", text, re.MULTILINE)
    outcomes = [(f"{suite} {case}", outcome) for case, suite, outcome in found]
    left = [case for case, outcome in outcomes if outcome == "skipped"]
    report.note(f"skipped by the package itself: {', '.join(left)}")
    tell(report, [case for case in outcomes if case[1] != "skipped"], "ok", 116, text)
