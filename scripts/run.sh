#!/usr/bin/env bash
# Starts a node in a stated memory budget, waits until it is healthy, lets a published client deploy
# and call a sample canister and verify its reply, and leaves the node running until Ctrl-C
# (or stops it when ONCE is set). Called by `make run`.
set -euo pipefail

bin=$1 memory=$2 port=$3 data=$4 once=$5

"$bin/thimble" run --memory "$memory" --listen "127.0.0.1:$port" --data-dir "$data" &
node=$!
# One Ctrl-C reaches the node too (same process group): it stops cleanly, and we wait for it.
trap 'kill -TERM "$node" 2>/dev/null || true; wait "$node" || true; exit 130' INT TERM
trap 'kill -TERM "$node" 2>/dev/null || true' EXIT

"$bin/thimble-demo" --url "http://127.0.0.1:$port" --wait-seconds 60 --node-pid "$node" --canister canisters/wasm/motoko-counter64.wasm --remember "$data/demo-canister"

if [ -n "$once" ]; then
    kill -TERM "$node"
    wait "$node"
    trap - EXIT
    echo "run: the node stopped cleanly; its state is in $data"
    exit 0
fi
echo "run: the node stays up on http://127.0.0.1:$port until Ctrl-C; its state is in $data"
trap 'true' INT
trap 'kill -TERM "$node" 2>/dev/null || true' TERM
status=0
while kill -0 "$node" 2>/dev/null; do
    if wait "$node"; then status=0; else status=$?; fi
done
trap - EXIT
exit "$status"
