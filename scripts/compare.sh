#!/usr/bin/env bash
# Measures the effect of a commit: builds BASE and HEAD, runs a bench of both in alternating turns,
# and compares its output files. `make compare BASE=HEAD~10` runs it.
#
#   compare.sh LAB BASE [WHAT]     WHAT: bench (default), bench-net, bench-relay
#
# The bench itself is LAB, this checkout's thimble-lab, for both: only the node or the relay
# differs. Settings from the environment: CANDIDATE (HEAD), PROFILE (dist), TURNS (3), DURATION
# (seconds of each rate, 5), MEMORY (512MiB), PHASE (seconds, bench-relay, 10), MINUTES (bench-net,
# 1), COMPARE_DIR (target/compare), COMPARE_TARGET (its folder for builds). Programs are kept by
# profile and commit, so that a second comparison builds nothing. A commit from before the profile
# `dist` is built with that of this checkout. The work tree it makes is removed on every end. Exit status:
# that of `thimble-lab compare`, 130 after Ctrl-C.
set -euo pipefail
cd "$(dirname "$0")/.."

lab=$(realpath "$1")
base=$2
what=${3:-bench}
candidate=${CANDIDATE:-HEAD}
profile=${PROFILE:-dist}
turns=${TURNS:-3}
seconds=${DURATION:-5}
memory=${MEMORY:-512MiB}
root=$(pwd)
dir=${COMPARE_DIR:-$root/target/compare}
mkdir -p "$dir"
dir=$(realpath "$dir")
target=${COMPARE_TARGET:-$dir/build}

case $what in
bench | bench-net) program=thimble ;;
bench-relay) program=thimble-relay ;;
*) echo "compare: WHAT=$what; there are bench, bench-net and bench-relay" >&2 && exit 2 ;;
esac
if ! [[ $profile =~ ^[a-z][a-z0-9_-]*$ ]]; then
    echo "compare: PROFILE=$profile is not a profile of cargo" >&2
    exit 2
fi
# The folder of the profile `dev` has another name.
built=$profile
if [ "$profile" = dev ]; then built=debug; fi
if ! [[ $turns =~ ^[1-9][0-9]?$ ]]; then
    echo "compare: TURNS=$turns; 1 to 99 turns" >&2
    exit 2
fi
commit_of() {
    git rev-parse --verify --quiet --end-of-options "$1^{commit}" ||
        { echo "compare: there is no commit $1" >&2 && exit 2; }
}
base=$(commit_of "$base")
candidate=$(commit_of "$candidate")
if [ "$base" = "$candidate" ]; then
    echo "compare: both are $base; name another BASE" >&2
    exit 2
fi
if [ -n "$(git status --porcelain --untracked-files=no)" ]; then
    echo "compare: what is not committed is not measured" >&2
fi

# One at a time: builds and turns of two would disturb each other's figures.
exec 9>"$dir/lock"
flock --nonblock 9 || { echo "compare: another comparison runs in $dir" >&2 && exit 2; }

tree=$dir/tree
clean() {
    if [ -e "$tree" ]; then git worktree remove --force "$tree" >/dev/null 2>&1 || rm -rf "$tree"; fi
    git worktree prune
}
trap clean EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
# The reader of the output is gone.
trap 'exit 141' PIPE
# Leftovers of a run that was killed.
clean

build() { # commit
    local bin=$dir/bin/$profile/$1 config=()
    if [ -x "$bin/$program" ]; then return; fi
    echo "compare: building $program of $(git log -1 --format='%h %s' "$1")" >&2
    clean
    git worktree add --quiet --detach "$tree" "$1"
    if [ "$profile" = dist ] && ! grep -q '^\[profile\.dist\]' "$tree/Cargo.toml"; then
        sed -n '/^\[profile\.dist\]/,/^$/p' Cargo.toml >"$dir/dist.toml"
        config=(--config "$dir/dist.toml")
    fi
    (cd "$tree" && CARGO_TARGET_DIR=$target cargo build "${config[@]}" --profile "$profile" --locked -p "$program" 9>&-)
    mkdir -p "$bin"
    # A copy that was cut short is never taken for a program.
    cp "$target/$built/$program" "$bin/$program.part"
    mv "$bin/$program.part" "$bin/$program"
    clean
}
build "$base"
build "$candidate"

runs=$dir/runs/$(date -u +%Y%m%d-%H%M%S)-$what
mkdir -p "$runs"
measure() { # side commit turn
    local binary=$dir/bin/$profile/$2/$program out=$runs/$1-$3 status=0
    echo "compare: turn $3 of $turns: $1" >&2
    case $what in
    bench)
        "$lab" bench --node "$binary" --memory "$memory" --seconds "$seconds" --json "$out.json" \
            >"$out.log" 2>&1 9>&- || status=$?
        ;;
    bench-net)
        "$lab" bench-net --node "$binary" --memory "$memory" --seconds "$seconds" --minutes "${MINUTES:-1}" \
            --out "$out" >"$out.log" 2>&1 9>&- || status=$?
        if table=$(find "$out" -name table.json -print -quit) && [ -n "$table" ]; then cp "$table" "$out.json"; fi
        ;;
    bench-relay)
        "$lab" bench-relay --relay "$binary" --phase "${PHASE:-10}" --part steady --part flood --after 5 \
            --json "$out.json" >"$out.log" 2>&1 9>&- || status=$?
        ;;
    esac
    # A missed goal is not an error of the comparison; a run without figures is.
    if [ "$status" -gt 1 ] || [ ! -s "$out.json" ]; then
        tail -n 20 "$out.log" >&2
        echo "compare: $what of $1 ended with $status; its log is $out.log" >&2
        exit 2
    fi
}
for ((turn = 1; turn <= turns; turn++)); do
    # The order alternates, so that a machine that gets slower favours neither side.
    if ((turn % 2)); then order="base candidate"; else order="candidate base"; fi
    for side in $order; do
        if [ "$side" = base ]; then commit=$base; else commit=$candidate; fi
        measure "$side" "$commit" "$turn"
    done
done

status=0
"$lab" compare "$runs"/base-*.json -- "$runs"/candidate-*.json \
    --html "$runs/compare.html" --markdown "$runs/compare.md" || status=$?
echo "compare: $(git log -1 --format='%h %s' "$base") against $(git log -1 --format='%h %s' "$candidate")"
echo "compare: page, Markdown and runs: $runs"
exit "$status"
