# shellcheck shell=bash
# Set-up that the scripts share. The scripts source this file; it is not run. The functions here
# install only what is missing.

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
export PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH:/usr/local/go/bin"
export DEBIAN_FRONTEND=noninteractive

say() { printf '\n== %s\n' "$*"; }

die() {
    printf '%s\n' "$*" >&2
    exit 1
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo --preserve-env=DEBIAN_FRONTEND "$@"
    else
        die "this needs root, and sudo is missing: $*"
    fi
}

# Installs packages. The package lists of a fresh machine may be empty or old, so they are refreshed if the first try
# fails.
apt_install() {
    command -v apt-get >/dev/null || die "please install: $* (this is not Debian or Ubuntu)"
    say "installing $*"
    as_root apt-get install -y -qq --no-install-recommends "$@" </dev/null >/dev/null 2>&1 ||
        { as_root apt-get update -qq </dev/null &&
            as_root apt-get install -y -qq --no-install-recommends "$@" </dev/null >/dev/null; } ||
        die "apt-get could not install: $*"
}

# Installs a C compiler, which links the programs, and Rust. rust-toolchain.toml names the version.
need_rust() {
    local packages=()
    command -v cc >/dev/null || packages+=(gcc libc6-dev)
    if ! command -v cargo >/dev/null; then
        command -v curl >/dev/null || packages+=(curl ca-certificates)
    fi
    [ ${#packages[@]} -eq 0 ] || apt_install "${packages[@]}"
    if ! command -v cargo >/dev/null; then
        say "installing Rust with rustup, for this user"
        curl --proto '=https' --tlsv1.2 -sSf https://static.rust-lang.org/rustup/rustup-init.sh |
            sh -s -- -y -q --profile minimal --default-toolchain none --no-modify-path
    fi
    # With rustup, the first call of cargo installs the pinned toolchain and its components.
    cargo --version >/dev/null || die "cargo does not run here"
}

# Tests for a library of Ruby by loading it. A library has no command whose presence could be
# tested.
ruby_has() { command -v ruby >/dev/null && ruby -e "$1" >/dev/null 2>&1; }

# Installs the clients that the tests run. The suites themselves fetch libraries from PyPI, npm, Maven Central and the
# Go proxy, in the versions that their lock files name.
need_clients() {
    local packages=()
    command -v memccapable >/dev/null || packages+=(libmemcached-tools)
    command -v puma >/dev/null || packages+=(puma)
    ruby_has 'require "dalli"' || packages+=(ruby ruby-dalli)
    ruby_has 'require "rack/attack"' || packages+=(ruby-rack ruby-rack-attack)
    ruby_has 'require "connection_pool"' || packages+=(ruby-connection-pool)
    ruby_has 'require "minitest"' || packages+=(ruby-minitest)
    command -v go >/dev/null || packages+=(golang-go)
    command -v node >/dev/null || packages+=(nodejs)
    command -v npm >/dev/null || packages+=(npm)
    command -v javac >/dev/null || packages+=(default-jdk-headless)
    command -v mvn >/dev/null || packages+=(maven)
    python3 -c 'import ensurepip' 2>/dev/null || packages+=(python3-venv)
    [ ${#packages[@]} -eq 0 ] || apt_install "${packages[@]}"
    [ -x /usr/sbin/nginx ] || command -v nginx >/dev/null || need_nginx
}

# Installs nginx, and stops the server that Debian starts after the installation. The suite starts its own.
need_nginx() {
    apt_install nginx-light
    if [ -d /run/systemd/system ]; then as_root systemctl disable --quiet --now nginx; fi
}

# Installs Prometheus and promtool, and stops the services that Debian starts after the installation.
need_prometheus() {
    command -v promtool >/dev/null && return
    apt_install prometheus
    if [ -d /run/systemd/system ]; then
        as_root systemctl disable --quiet --now prometheus prometheus-node-exporter || true
    fi
}

# Installs a C++ compiler, because libFuzzer is written in C++.
need_cxx() { command -v c++ >/dev/null || apt_install g++; }

# Allows the flags of sanitizers, which only nightly compilers accept. Without a nightly compiler, RUSTC_BOOTSTRAP makes
# the pinned one accept them.
allow_unstable() {
    if command -v rustup >/dev/null && rustup toolchain list | grep -q '^nightly'; then
        export RUSTUP_TOOLCHAIN=nightly
    else
        export RUSTC_BOOTSTRAP=1
    fi
}

host_target() { rustc -vV | sed -n 's/^host: //p'; }

# Installs Chromium and the library that drives it, and sets `browser_python` to a Python that has this library.
need_browser_tests() {
    local home=${CARGO_TARGET_DIR:-$PWD/target}/report-test pins=tests/lab/requirements.txt
    command -v chromium >/dev/null || apt_install chromium
    python3 -c 'import ensurepip' 2>/dev/null || apt_install python3-venv
    mkdir -p "$home"
    browser_python=$home/python/bin/python
    if ! cmp -s "$pins" "$home/made-from.txt"; then
        rm -rf "$home/python"
        python3 -m venv "$home/python"
        "$browser_python" -m pip install --quiet -r "$pins"
        cp "$pins" "$home/made-from.txt"
    fi
}
