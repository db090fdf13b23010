#!/usr/bin/env bash
# Builds programs of the field from the Go module proxy into DIR/bin: geth, and nats-server.
# Quick and silent when they are there; ends with 3 when the proxy cannot be reached.
#
# Usage: field.sh DIR [geth|nats-server]...
set -euo pipefail
dir=${1:?usage: field.sh DIR [geth|nats-server]...}
shift
mkdir -p "$dir/bin"
export GOBIN="$(cd "$dir/bin" && pwd)" GOFLAGS=-trimpath CGO_ENABLED=0

build() { # name module@version
    [ -x "$GOBIN/$1" ] && return
    echo "building $1 ($2)" >&2
    if ! go install "$2" 2>"$dir/$1.log"; then
        tail -5 "$dir/$1.log" >&2
        if grep -qiE 'proxy|dial tcp|no such host|timeout|connection refused' "$dir/$1.log"; then
            echo "field.sh: $1 cannot be had: the Go module proxy is not reachable" >&2
            exit 3
        fi
        exit 1
    fi
}

command -v go >/dev/null || { echo "field.sh: go is not installed" >&2; exit 3; }
for name in "${@:-geth}"; do
    case $name in
    geth) build geth github.com/ethereum/go-ethereum/cmd/geth@v1.16.7 ;;
    nats-server) build nats-server github.com/nats-io/nats-server/v2@v2.12.1 ;;
    *) echo "field.sh: there is no $name" >&2; exit 2 ;;
    esac
done
