"""The adapters of `adapters/`: each runs its own tests, which start servers of their own."""

import re

import pythons
from harness import ROOT, SCRATCH, speaks_memcached_flags

ADAPTERS = ROOT / "adapters"


def python_limits(report, settings):
    """limits and Flask-Limiter: pytest."""
    where = ADAPTERS / "python-limits"
    home = pythons.environment(where / "requirements.txt", SCRATCH / "python-limits", ())
    settings = {**settings, "PYTHONPATH": str(where), "PYTHONDONTWRITEBYTECODE": "1"}
    pythons.pytest(report, home, where, ["test_limits_larder.py"], "python-limits", 100, settings)


def ruby_rack_attack(report, settings):
    """Rack::Attack: minitest."""
    where = ADAPTERS / "ruby-rack-attack"
    command = ["ruby", "-Ilib", "test/larder_test.rb", "--verbose"]
    text = pythons.output_of(command, where, "ruby-rack-attack", settings)
    found = re.findall(r"LarderTest#test_(\w+) = [\d.]+ s = ([.FES])$", text, re.MULTILINE)
    # Where memcached is not installed, its case is skipped.
    outcomes = [(f"Rack::Attack {case}", outcome) for case, outcome in found if outcome != "S"]
    pythons.tell(report, outcomes, ".", 60, text)


def adapters(report, binary):
    """Every adapter with the real library of its ecosystem."""
    if speaks_memcached_flags(binary):
        report.note("memcached has no rate limits")
        return
    settings = {"SERVER": str(binary)}
    for adapter in (python_limits, ruby_rack_attack):
        adapter(report, settings)
