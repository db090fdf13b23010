#!/bin/bash
# Installs and builds the published programs that the tests in this directory run, at their locked
# versions.
#
#   tests/waku/setup.sh          all
#   tests/waku/setup.sh js       @waku/sdk, into tests/waku/js/node_modules, and a page with it for
#                                browsers, into ${CARGO_TARGET_DIR:-target}/waku/page.js
#   tests/waku/setup.sh go       the go-waku peer, into ${CARGO_TARGET_DIR:-target}/waku/peer
#   tests/waku/setup.sh geth     the Ethereum node go-ethereum, into
#                                ${CARGO_TARGET_DIR:-target}/waku/geth
#
# Needs a network the first time, and sudo unless root where node, npm, go or a C compiler are
# missing (Debian, Ubuntu). Afterwards it only compares the locked versions and sources with what is
# there. Prints what to run at the end: "node PATH", "peer PATH" and "geth PATH".
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
target=${CARGO_TARGET_DIR:-$here/../../target}
mkdir -p "$target/waku"
target=$(cd "$target" && pwd)

node_least=20 # the sdk asks for 22; js/node20.mjs adds what 20 lacks
go_least=1.22   # the go line of go/go.mod
geth_least=1.24 # that of geth/go.mod

# One at a time: tests that start together wait for the first instead of building twice.
exec 9>"$target/waku/.lock"
flock 9

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

install_packages() {
    echo "installing $*" >&2
    as_root apt-get update -q >/dev/null
    as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -qy --no-install-recommends "$@" >/dev/null
}

# fresh <stamp> <hash>: whether the stamp was written for what is there now.
hash_of() { cat "$@" | sha256sum | cut -d' ' -f1; }
fresh() { [ -f "$1" ] && [ "$(cat "$1")" = "$2" ]; }

# setup_page <hash of the packages>
setup_page() {
    local stamp=$target/waku/.page-stamp hash
    hash="$1 $(hash_of "$here/js/page.mjs")"
    fresh "$stamp" "$hash" && [ -f "$target/waku/page.js" ] && return
    (cd "$here/js" && node node_modules/esbuild/bin/esbuild page.mjs --bundle --platform=browser \
        --format=esm --target=es2022 --minify --log-level=warning \
        --outfile="$target/waku/page.js" >&2)
    echo "$hash" >"$stamp"
}

setup_js() {
    local stamp=$here/js/node_modules/.stamp hash
    hash=$(hash_of "$here/js/package.json" "$here/js/package-lock.json")
    if ! fresh "$stamp" "$hash"; then
        command -v node >/dev/null || install_packages nodejs npm
        command -v npm >/dev/null || install_packages npm
        local major
        major=$(node -p 'process.versions.node.split(".")[0]')
        [ "$major" -ge "$node_least" ] ||
            { echo "node $major is too old, $node_least is the least" >&2; exit 1; }
        (cd "$here/js" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error >&2)
        echo "$hash" >"$stamp"
    fi
    setup_page "$hash"
    echo "node $(command -v node)"
}

# enough <go> <version>: whether this go exists and is not older.
enough() {
    local found
    found=$("$1" env GOVERSION 2>/dev/null) || return 1
    [ "$(printf '%s\n' "$2" "${found#go}" | sort -V | head -n 1)" = "$2" ]
}

# find_go <version>: a go that is not older.
find_go() {
    local candidate
    for candidate in go /usr/local/go/bin/go /usr/lib/go-*/bin/go; do
        if enough "$candidate" "$1"; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

# need_go <version>: the same; installs the system's if there is none.
need_go() {
    find_go "$1" && return
    install_packages golang-go
    find_go "$1" || {
        echo "the system's package golang-go is too old, go $1 is the least:" \
            "install it into /usr/local/go (https://go.dev/dl)" >&2
        exit 1
    }
}

setup_go() {
    local stamp=$target/waku/.stamp hash
    hash=$(hash_of "$here/go/go.mod" "$here/go/go.sum" "$here"/go/*.go)
    if ! fresh "$stamp" "$hash" || [ ! -x "$target/waku/peer" ]; then
        local go
        go=$(need_go "$go_least")
        command -v cc >/dev/null || install_packages gcc libc6-dev # for sqlite
        # The tag leaves out RLN and with it the native library of zerokit.
        (cd "$here/go" && nice "$go" build -mod=readonly -trimpath -buildvcs=false \
            -tags gowaku_no_rln -o "$target/waku/peer" . >&2)
        echo "$hash" >"$stamp"
    fi
    echo "peer $target/waku/peer"
}

setup_geth() {
    local stamp=$target/waku/.geth-stamp hash
    hash=$(hash_of "$here/geth/go.mod" "$here/geth/go.sum")
    if ! fresh "$stamp" "$hash" || [ ! -x "$target/waku/geth" ]; then
        local go
        go=$(need_go "$geth_least")
        (cd "$here/geth" && CGO_ENABLED=0 nice "$go" build -mod=readonly -trimpath \
            -buildvcs=false -o "$target/waku/geth" github.com/ethereum/go-ethereum/cmd/geth >&2)
        echo "$hash" >"$stamp"
    fi
    echo "geth $target/waku/geth"
}

[ $# -gt 0 ] || set -- js go geth
for part in "$@"; do
    case $part in
        js) setup_js ;;
        go) setup_go ;;
        geth) setup_geth ;;
        *) echo "unknown part $part; there are: js go geth" >&2; exit 2 ;;
    esac
done
