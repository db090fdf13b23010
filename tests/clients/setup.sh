#!/bin/bash
# Installs the published clients that the tests in this directory run against a node, at their
# locked versions.
#
#   tests/clients/setup.sh            all
#   tests/clients/setup.sh node       the JavaScript ones, into tests/clients/node/node_modules
#   tests/clients/setup.sh local      the project tool and the clients of well-known canisters, into
#                                     tests/clients/local/node_modules
#   tests/clients/setup.sh python     the Python one, into ${CARGO_TARGET_DIR:-target}/clients-venv
#   tests/clients/setup.sh pocket     those of PocketIC: into tests/clients/pocket/node/node_modules,
#                                     and into pocket-venv and pocket-clients (a Rust one, built)
#                                     below ${CARGO_TARGET_DIR:-target}
#
# Needs a network the first time, and sudo unless root where node, npm or python3-venv are missing
# (Debian, Ubuntu). Afterwards it only compares the locked versions with what is installed. Prints
# the interpreters to run at the end.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
target=${CARGO_TARGET_DIR:-$here/../../target}
mkdir -p "$target"
target=$(cd "$target" && pwd)

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

install_packages() {
    echo "installing $*" >&2
    as_root apt-get update -q >/dev/null
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "$@" >/dev/null
}

# fresh <stamp> <file>...: whether the stamp was written for these files as they are now.
hash_of() { cat "$@" | sha256sum | cut -d' ' -f1; }
fresh() {
    local stamp=$1
    shift
    [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$(hash_of "$@")" ]
}

# node_packages <folder>: the locked packages of a folder.
node_packages() {
    local locked=("$1/package.json" "$1/package-lock.json")
    local stamp=$1/node_modules/.stamp
    if ! fresh "$stamp" "${locked[@]}"; then
        command -v node >/dev/null || install_packages nodejs npm
        command -v npm >/dev/null || install_packages npm
        local major
        major=$(node -p 'process.versions.node.split(".")[0]')
        [ "$major" -ge 18 ] || { echo "node $major is too old, 18 is the least" >&2; exit 1; }
        (cd "$1" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error >&2)
        hash_of "${locked[@]}" >"$stamp"
    fi
}

# python_packages <venv> <requirements>: the locked packages in a virtual environment.
python_packages() {
    if ! fresh "$1/.stamp" "$2"; then
        command -v python3 >/dev/null || install_packages python3 python3-venv
        rm -rf "$1"
        if ! python3 -m venv "$1" >/dev/null 2>&1; then
            install_packages python3-venv
            rm -rf "$1"
            python3 -m venv "$1"
        fi
        "$1/bin/pip" install --quiet --disable-pip-version-check -r "$2" >&2
        hash_of "$2" >"$1/.stamp"
    fi
}

# setup_node <folder>
setup_node() {
    node_packages "$here/$1"
    echo "node $(command -v node)"
}

setup_python() {
    python_packages "$target/clients-venv" "$here/python/requirements.txt"
    echo "python $target/clients-venv/bin/python"
}

setup_pocket() {
    node_packages "$here/pocket/node"
    python_packages "$target/pocket-venv" "$here/pocket/python/requirements.txt"
    # Apart from the workspace: cargo must not take one build directory for two lock files.
    CARGO_TARGET_DIR=$target/pocket-clients cargo test --quiet --locked --no-run \
        --manifest-path "$here/pocket/rust/Cargo.toml" >&2
    echo "pocket $target/pocket-venv/bin/python"
}

[ $# -gt 0 ] || set -- node local python pocket
for part in "$@"; do
    case $part in
        node | local) setup_node "$part" ;;
        python) setup_python ;;
        pocket) setup_pocket ;;
        *) echo "unknown part $part; there are: node local python pocket" >&2; exit 2 ;;
    esac
done
