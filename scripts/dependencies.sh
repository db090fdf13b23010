#!/usr/bin/env bash
# Checks the dependencies: licences, sources, banned crates and rows of the workspace's table
# (deny.toml); dependencies that no code uses; and known vulnerabilities, where their database can be
# fetched. Installs cargo-deny and cargo-machete first, at pinned versions, once per user and
# machine; `setup.sh lint` installs the packages for that.
set -euo pipefail
cd "$(dirname "$0")/.."

deny=$(sed -n 's/^.*cargo-deny==\([0-9.]*\) .*/\1/p' scripts/lint-tools.txt)
machete=0.9.2
tools=${XDG_CACHE_HOME:-$HOME/.cache}/thimble/lint-deny-$deny-machete-$machete

prebuilt() { # requirements
    python3 -m venv "$tools" >/dev/null 2>&1 &&
        "$tools/bin/pip" install --quiet --disable-pip-version-check --no-deps \
            --only-binary :all: --require-hashes --requirement "$1"
}
# Not into the build directory of the workspace.
compile() { # crate version
    env -u CARGO_TARGET_DIR cargo install --quiet --locked --root "$tools" "$1@$2"
}
# Checks are skipped, with a notice, only where their program cannot be fetched.
if ! [ -x "$tools/bin/cargo-deny" ]; then
    echo "dependencies: installing cargo-deny $deny"
    prebuilt scripts/lint-tools.txt || compile cargo-deny "$deny" || true
fi
if ! [ -x "$tools/bin/cargo-machete" ]; then
    echo "dependencies: compiling cargo-machete $machete, about a minute"
    compile cargo-machete "$machete" || true
fi

if [ -x "$tools/bin/cargo-machete" ]; then
    "$tools/bin/cargo-machete" --skip-target-dir
else
    echo "NOT RUN: unused dependencies: cargo-machete $machete cannot be installed here"
fi
if ! [ -x "$tools/bin/cargo-deny" ]; then
    echo "NOT RUN: licences, bans, sources, advisories: cargo-deny $deny cannot be installed here"
    exit
fi
"$tools/bin/cargo-deny" --locked check --hide-inclusion-graph bans licenses sources

# The database is a git repository, and not every machine may fetch one.
if GIT_TERMINAL_PROMPT=0 timeout 60 "$tools/bin/cargo-deny" fetch db >/dev/null 2>&1; then
    "$tools/bin/cargo-deny" --locked check --hide-inclusion-graph advisories
else
    echo "NOT RUN: advisories: their database cannot be fetched here"
fi
