#!/usr/bin/env bash
# Installs missing packages on a Debian or Ubuntu machine. `setup.sh build`: packages for compiling.
# `setup.sh lint`: for checking dependencies. `setup.sh clients`: further packages for the tests.
# `setup.sh images`: for `make bench-images`. `setup.sh tune`: for `make tune-study`. Quick and
# silent when nothing is missing; may be run any number of times.
set -euo pipefail

missing=()
lists=there
need() { # command package
    command -v "$1" >/dev/null 2>&1 || missing+=("$2")
}

case "${1:-build}" in
build)
    need cc build-essential
    need make build-essential
    if ! command -v cargo >/dev/null 2>&1; then
        if [ -x "$HOME/.cargo/bin/cargo" ]; then
            echo "setup: cargo is in $HOME/.cargo/bin but not on the PATH; run: . \"\$HOME/.cargo/env\"" >&2
        else
            echo "setup: a Rust toolchain is needed (rustup, see https://rustup.rs); rust-toolchain.toml names the version" >&2
        fi
        exit 1
    fi
    ;;
lint)
    need python3 python3
    python3 -c 'import venv, ensurepip' >/dev/null 2>&1 || missing+=(python3-venv)
    ;;
clients)
    need node nodejs
    need npm npm
    need python3 python3
    # Tests make terminals, network namespaces, loop devices and small file systems.
    PATH="$PATH:/usr/sbin:/sbin"
    need script bsdutils
    need nsenter util-linux
    need mount mount
    need ip iproute2
    need tc iproute2
    need mkfs.ext4 e2fsprogs
    # Images of disks are packed, converted and written as machines do; adding them is killed at
    # every system call.
    need qemu-img qemu-utils
    # Networks of virtual machines are started, disturbed and inspected.
    need qemu-system-x86_64 qemu-system-x86
    need strip binutils
    need ldd libc-bin
    # Their kernel is downloaded as a package, by the lists that apt-get has.
    if command -v apt-cache >/dev/null 2>&1; then
        apt-cache show linux-image-cloud-amd64 >/dev/null 2>&1 ||
            apt-cache show linux-image-virtual >/dev/null 2>&1 || lists=missing
    fi
    need zstd zstd
    need xz xz-utils
    need strace strace
    # The relay's secure WebSocket is tested with a certificate of its own.
    need openssl openssl
    python3 -c 'import venv, ensurepip' >/dev/null 2>&1 || missing+=(python3-venv)
    # The tuner is tested on programs in Go and Java.
    PATH="$PATH:/usr/local/go/bin"
    need go golang-go
    need javac default-jdk-headless
    # The dashboard, and a page that uses the relay, are tested in a real browser. Ubuntu's package
    # of this name is a snap, which works as well.
    command -v chromium-browser >/dev/null 2>&1 || command -v google-chrome >/dev/null 2>&1 || need chromium chromium
    ;;
images)
    PATH="$PATH:/usr/sbin:/sbin"
    need qemu-img qemu-utils
    need zstd zstd
    need mkfs.ext4 e2fsprogs
    ;;
tune)
    PATH="$PATH:/usr/local/go/bin"
    need ghc ghc
    need go golang-go
    need javac default-jdk-headless
    need node nodejs
    ;;
*)
    echo "usage: setup.sh [build|lint|clients|images|tune]" >&2
    exit 2
    ;;
esac

if [ "${#missing[@]}" -gt 0 ] || [ "$lists" = missing ]; then
    if ! command -v apt-get >/dev/null 2>&1; then
        echo "setup: please install: ${missing[*]} (this script installs them itself on Debian and Ubuntu only)" >&2
        exit 1
    fi
    sudo=()
    if [ "$(id -u)" -ne 0 ]; then sudo=(sudo); fi
    echo "setup: reading the lists of packages"
    "${sudo[@]}" apt-get update -qq
fi
if [ "${#missing[@]}" -gt 0 ]; then
    echo "setup: installing ${missing[*]}"
    DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi
