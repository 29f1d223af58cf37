#!/bin/sh
# Installs the packages that package-lock.json names, and runs the tests.
set -eu
cd "$(dirname "$0")"
npm ci --no-audit --no-fund --loglevel=error
npm test
