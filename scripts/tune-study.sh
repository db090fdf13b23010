#!/usr/bin/env bash
# The tuner's study: programs whose runtimes hold more than they need, each with its default
# settings, with flags that operators use, and with the settings that the tuner finds within BUDGET.
#
# Usage: tune-study.sh LAB DIR BUDGET [ghc|slot|java|node|go|geth]...
set -euo pipefail
lab=${1:?usage: tune-study.sh LAB DIR BUDGET [PROGRAM]...}
dir=$2 budget=$3
shift 3
here=$(cd "$(dirname "$0")/.." && pwd)
programs=$here/tools/tuner/programs
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
PATH="$PATH:/usr/local/go/bin"
lab=$(realpath "$lab")
failed=0

# A new search in a folder of its own; the report goes to standard output and to NAME.json.
search() { # name options... -- command...
    local name=$1
    shift
    echo
    echo "== $name: search"
    "$lab" tune --state "$dir/state-$name" --fresh --budget "$budget" --json "$dir/$name.json" "$@" || failed=1
}

# A command as it is, three times.
measure() { # name what options... -- command...
    local name=$1 what=$2
    shift 2
    echo
    echo "== $name: $what"
    "$lab" tune --state "$dir/state-$name-$what" --fresh --measure 3 --json "$dir/$name-$what.json" "$@" || failed=1
}

build_leader() {
    [ "$dir/leader" -nt "$programs/leader.hs" ] ||
        ghc -v0 -O1 -threaded -rtsopts -outputdir "$dir/obj" -o "$dir/leader" "$programs/leader.hs"
}

ghc_part() {
    build_leader
    local asked=(--beat 'late ([0-9.]+) ms' --ready 'line:^ready' --seconds 8)
    # The flags of an operator's published cure, scaled to this program's live data.
    measure ghc operator "${asked[@]}" -- "$dir/leader" +RTS -A16m -I0.3 -Iw600 -F1.5 -H325m --disable-delayed-os-memory-return -RTS
    measure ghc compacting "${asked[@]}" -- "$dir/leader" +RTS -c -RTS
    search ghc "${asked[@]}" -- "$dir/leader"
}

# The same with the deadline of a slot: a beat is done within a second.
slot_part() {
    build_leader
    search slot --beat 'late ([0-9.]+) ms' --ready 'line:^ready' --seconds 8 --lateness 'max<1s' -- "$dir/leader"
}

java_part() {
    javac -d "$dir/classes" "$programs/Server.java"
    search java --http 'http://127.0.0.1:{port}/' --rate 200 --seconds 6 --runtime jvm -- java -cp "$dir/classes" Server '{port}' 60
}

node_part() {
    search node --http 'http://127.0.0.1:{port}/' --rate 100 --seconds 6 --runtime node -- node "$programs/server.js" '{port}' 60
}

go_part() {
    (cd "$programs/goserver" && go build -o "$dir/goserver" .)
    search go --http 'http://127.0.0.1:{port}/' --rate 200 --seconds 5 -- "$dir/goserver" '{port}' 60
}

geth_part() {
    "$programs/field.sh" "$dir" geth || {
        status=$?
        [ "$status" = 3 ] && echo "geth: left out" && return
        exit "$status"
    }
    search geth --memory 100MiB --runtime go --knobs "$programs/geth.toml" --skip GOMAXPROCS \
        --http 'http://127.0.0.1:{port}/' --rate 20 --seconds 30 --load "node $programs/geth-load.js http://127.0.0.1:{port} 200 12" -- \
        "$dir/bin/geth" --dev --dev.period 1 --datadir '{folder}' --ipcdisable --http --http.port '{port}' --authrpc.port '{port2}' --port '{port3}'
}

# In one piece, so that a change of this file does not change a study under way.
main() {
    for part in "$@"; do
        case $part in
        ghc | slot | java | node | go | geth) "${part}_part" ;;
        *)
            echo "tune-study.sh: there is no $part" >&2
            exit 2
            ;;
        esac
    done
    local reports=("$dir"/*.json)
    echo
    echo "== the study: medians; machine and parameters stand in the reports above"
    "$lab" tune --table "${reports[@]}"
    exit "$failed"
}

main "$@"
