#!/bin/sh
# Runs the tests, and compiles the benchmark, which is a separate Go module.
set -eu
cd "$(dirname "$0")"
go vet ./...
go test -count=1 ./...
cd bench
go vet .
