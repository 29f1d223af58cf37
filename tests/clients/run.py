#!/usr/bin/env python3
"""Runs the client suites against a server binary.

usage: tests/clients/run.py [--server BINARY] [--instrumented] [SUITE ...]

The default of BINARY is $SERVER, or target/release/larder. With --server /usr/bin/memcached the same
suites run against memcached: a case that fails there too is a wrong test.
"""

import argparse
import os
import pathlib
import resource
import sys
import time

from harness import ROOT, Report
from suites import SUITES


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    default = os.environ.get("SERVER", str(ROOT / "target" / "release" / "larder"))
    parser.add_argument("--server", default=default, help="the binary under test")
    parser.add_argument("--instrumented", action="store_true", help="do not hold memory use against it")
    parser.add_argument("suite", nargs="*", help=f"of: {', '.join(SUITES)} (default: all)")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.suite if name not in SUITES]
    if unknown:
        parser.error(f"no such suite: {', '.join(unknown)}")
    binary = pathlib.Path(arguments.server).absolute()
    if not os.access(binary, os.X_OK):
        parser.error(f"{binary} is not an executable file: build it first, or name another with --server")

    # Some suites open more than a thousand connections.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = 16_384 if most == resource.RLIM_INFINITY else min(most, 16_384)
    resource.setrlimit(resource.RLIMIT_NOFILE, (enough, most))

    report = Report()
    for name in arguments.suite or SUITES:
        report.suite = name
        started = time.monotonic()
        try:
            SUITES[name](report, binary)
        except Exception as error:  # pylint: disable=broad-except
            report.fail("suite", f"{type(error).__name__}: {error}")
        report.note(f"{time.monotonic() - started:.1f} s")
    for case in report.failed:
        print(f"failed: {case}")
    print(f"clients: {report.passed} passed, {len(report.failed)} failed")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
