"""Runs the tests of each adapter in `adapters/`. The tests start their servers themselves."""

import re
import shutil

import pythons
from harness import ROOT, SCRATCH, run, speaks_memcached_flags

ADAPTERS = ROOT / "adapters"


def python_limits(report, settings):
    """Runs the pytest tests of the adapter for limits and Flask-Limiter."""
    where = ADAPTERS / "python-limits"
    home = pythons.environment(where / "requirements.txt", SCRATCH / "python-limits", ())
    settings = {**settings, "PYTHONPATH": str(where), "PYTHONDONTWRITEBYTECODE": "1"}
    pythons.pytest(report, home, where, ["test_limits_larder.py"], "python-limits", 100, settings)


def ruby_rack_attack(report, settings):
    """Runs the minitest tests of the adapter for Rack::Attack."""
    where = ADAPTERS / "ruby-rack-attack"
    command = ["ruby", "-Ilib", "test/larder_test.rb", "--verbose"]
    text = pythons.output_of(command, where, "ruby-rack-attack", settings)
    found = re.findall(r"LarderTest#test_(\w+) = [\d.]+ s = ([.FES])$", text, re.MULTILINE)
    # Cases that need memcached are skipped where it is not installed.
    outcomes = [(f"Rack::Attack {case}", outcome) for case, outcome in found if outcome != "S"]
    pythons.tell(report, outcomes, ".", 60, text)


def node_express_rate_limit(report, settings):
    """Runs the node:test tests of the adapter for express-rate-limit."""
    where = ADAPTERS / "node-express-rate-limit"
    home = SCRATCH / "node-express-rate-limit"
    shutil.copytree(where, home, ignore=shutil.ignore_patterns("node_modules"), dirs_exist_ok=True)
    run(["npm", "ci", "--no-audit", "--no-fund", "--loglevel=error"], cwd=home)
    command = ["node", "--test", "--test-reporter=tap", "--test-timeout=60000", "test/store.test.js"]
    text = pythons.output_of(command, home, "node-express-rate-limit-out", settings)
    found = re.findall(r"^    (ok|not ok) \d+ - (.*)$", text, re.MULTILINE)
    outcomes = [(f"express-rate-limit {case}", outcome) for outcome, case in found if "# SKIP" not in case]
    pythons.tell(report, outcomes, "ok", 23, text)


def go_http(report, settings):
    """Runs the Go tests of the HTTP middleware for Go."""
    where = ADAPTERS / "go-http"
    run(["go", "vet", "."], cwd=where / "bench")
    text = pythons.output_of(["go", "test", "-count=1", "-v", "./..."], where, "go-http", settings)
    found = re.findall(r"^--- (\w+): Test(\w+) ", text, re.MULTILINE)
    outcomes = [(f"Go {case}", outcome) for outcome, case in found if outcome != "SKIP"]
    pythons.tell(report, outcomes, "PASS", 15, text)


def adapters(report, binary):
    """Tests every adapter with the real library that it serves."""
    if speaks_memcached_flags(binary):
        report.note("memcached has no rate limits")
        return
    settings = {"SERVER": str(binary)}
    for adapter in (python_limits, ruby_rack_attack, node_express_rate_limit, go_http):
        adapter(report, settings)
