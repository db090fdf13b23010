# Everything a newcomer needs is `make run` and `make test`. Both install what is missing first.
#
#   make run [MEMORY=512MiB] [PORT=8080] [DATA=thimble-data] [ONCE=1]
#   make test [ARGS='name_of_a_test'] | make test-long
#   make bench [SECONDS=10] [CONCURRENCY=32]
#   make storm [MEMORY=512MiB] [MODE=hybrid] [DURATION=120]
#   make bench-state [STATE=4GiB] [CANISTERS=1000] [MODULES=50] [DURATION=120] [PARTS=state,calls]
#   make chaos [DURATION=300] [SEED=7] | make bench-net [MINUTES=5]
#   make hostile [SECONDS=600] [SEED=7]
#   make simulate [SEEDS=200] [FIRST=1]
#   make bench-dkg [DKG_NODES=4,13,40] | make bench-dkg-starvation [DURATION=10]
#   make bench-sync [SYNC_MIB=300]
#   make stress [CASE=baseline] [PHASE=10] [MEMORY=256MiB]
#   make bench-metering [RUNS=5] [ONLY='System API']
#   make bench-relay [PHASE=10] [LONG=60] [TURNS=1] | make bench-heap [PHASE=10]
#   make compare BASE=HEAD~10 [WHAT=bench|bench-net|bench-relay] [TURNS=3] [DURATION=5]
#   make bench-images [MACHINES=8] [TURNS=1] | make bench-pocket [INSTANCES=20]
#   make lint | make doc | make fmt | make reference | make canisters | make fuzz [FUZZ_SECONDS=60]
#   make timings
#
# What is installed, packaged and measured is built with the profile `dist` (Cargo.toml), which takes
# several times as long as the profile `release` of all other targets. PROFILE=release measures what
# was built for development: quicker for a comparison, and other figures.
#
# CARGO_TARGET_DIR moves the build directory (default: target). Each checkout needs one of its own:
# cargo takes the crates of another checkout for its own when its files are older.

MEMORY ?= 512MiB
PORT ?= 8080
DATA ?= thimble-data
ONCE ?=
ARGS ?=
DURATION ?=
MODE ?= hybrid
CONCURRENCY ?= 32
FUZZ_SECONDS ?= 60
SEED ?=
SECONDS ?= 600
MINUTES ?= 5
SEEDS ?= 200
FIRST ?= 1
DKG_NODES ?= 4,13,40
SYNC_MIB ?= 300
CASE ?= baseline
PHASE ?= 10
LONG ?= 60
TURNS ?= 1
BASE ?= HEAD~1
WHAT ?= bench
RUNS ?= 5
MACHINES ?= 8
BUDGET ?= 10m
PREFIX ?= /usr/local
DESTDIR ?=
PROGRAMS ?= thimble thimble-relay thimble-lab thimble-pocket
PROFILE ?= dist
STUDY ?= ghc java node go geth
export CARGO_TARGET_DIR ?= $(CURDIR)/target
BIN := $(CARGO_TARGET_DIR)/release
# The folder of the profile `dev` has another name.
DIST := $(CARGO_TARGET_DIR)/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))
BUILD_DIST := cargo build --profile "$(PROFILE)" --locked --workspace
# Every target names the whole workspace and then what it builds of it: so dependencies have the
# same features everywhere, and are built once. Tests and the simulation run with the debug
# assertions of this workspace, and compile it with less optimisation: most of their time would go
# into that. Arithmetic stays as it is; what executes messages, and the simulation, are optimised a
# little. What is measured is compiled by the other targets. Its dependencies stay as they are, so
# that they are built once.
ARITHMETIC := nidkg compare
# A member that violates the protocol, for tests.
BYZANTINE := $(if $(wildcard node/thimble/byzantine/main.rs),--bin thimble-byzantine)
EXECUTES := accounting disk execution limits memory pages rounds sandbox state
names = $(shell awk -F'"' 'FNR == 1 { named = 0 } /^name/ && !named { print $$2; named = 1 }' $(wildcard ground/*/Cargo.toml node/*/Cargo.toml relay/*/Cargo.toml tools/*/Cargo.toml lab/*/Cargo.toml))
CHECKED := --config 'profile.release.debug-assertions=true' --config 'profile.release.package."*".debug-assertions=false' \
	$(foreach crate,$(filter-out $(ARITHMETIC),$(names)),--config 'profile.release.package.$(crate).opt-level=$(if $(filter $(crate),$(EXECUTES)),1,0)')

.PHONY: run test test-long hostile install package simulate bench bench-pocket bench-net bench-state bench-sync chaos bench-dkg bench-dkg-starvation storm stress bench-relay bench-heap bench-metering bench-images tune-study compare lint doc fmt reference timings build setup setup-clients setup-images setup-tune canisters fuzz help

help: ## Show the targets.
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup:
	@scripts/setup.sh build

setup-clients: setup
	@scripts/setup.sh clients
	@tests/clients/setup.sh
	@tests/waku/setup.sh

setup-images:
	@scripts/setup.sh images

setup-tune:
	@scripts/setup.sh tune

build: setup ## Build the node, the relay and the lab.
	@cargo build --release --locked --workspace --bins

install: setup ## Put the programs, their manual pages and shell completions below PREFIX (DESTDIR= in front of it); PROGRAMS= which.
	@$(BUILD_DIST) $(PROGRAMS:%=--bin %)
	@scripts/install.sh "$(DIST)" "$(DESTDIR)" "$(PREFIX)" $(PROGRAMS)

package: setup ## Make a Debian package of each program in target/package.
	@$(BUILD_DIST) --bin thimble --bin thimble-relay --bin thimble-lab
	@scripts/package.sh "$(DIST)" target/package

run: setup ## Start a node in MEMORY, deploy a sample canister, call it, verify; runs until Ctrl-C (ONCE=1: exits).
	@cargo build --release --locked --workspace --bin thimble --bin thimble-demo
	@scripts/run.sh "$(BIN)" "$(MEMORY)" "$(PORT)" "$(DATA)" "$(ONCE)"

test: setup-clients ## Run every test, the published clients in Rust, Node and Python included (ARGS: as cargo test does, with these arguments).
	@$(if $(ARGS),cargo test,scripts/test.py) $(CHECKED) --release --locked --workspace $(ARGS)

test-long: build setup-clients doc ## What takes longer than a test may: the documentation of the crates, nets of machines, more runtimes to tune, the price of every kind of work, hundreds of histories, a storm of every mode, five minutes of chaos.
	@cargo test $(CHECKED) --release --locked --workspace --test it --test tune -- --ignored --skip conformance::
	@$(MAKE) --no-print-directory bench-metering PROFILE=release
	@$(MAKE) --no-print-directory simulate
	@$(MAKE) --no-print-directory storm MODE=all MEMORY=256MiB
	@$(MAKE) --no-print-directory chaos

# Promise: P6 [SEEDS=200] - Every simulated node survives power cuts over its log, votes and state.
# Promise: P17 [SEEDS=200] - 200 histories of faults end with one root per height and each call
#   executed once.
# Promise: P19 [SEEDS=200] - Members that lost their disk fetch a state in simulated histories.
# Promise: P21 [SEEDS=200] - Clock jumps of up to 15 min delay only votes and proposals of their
#   node.
simulate: setup ## Run SEEDS histories of a subnet of four to six under a simulated clock, network and disk, each with other faults, from FIRST on.
	@SIMULATE_SEEDS="$(SEEDS)" SIMULATE_FIRST="$(FIRST)" RUST_LOG=off cargo test $(CHECKED) --release --locked --workspace --test rounds -- --nocapture every_history

# Promise: P3 - Idle anonymous memory of all processes is under 32 MiB at 512 MiB.
# Promise: P22 - A node starts in 0.3 s, and executes 1,000 signed updates/s with a median below 20
#   ms.
# Promise: P22 - A node answers 5,000 queries/s and delivers 2,000 messages/s between canisters.
bench: setup ## Measure start, idle, latency, rates, memory and the node's CPU per operation, and print the table with the machine.
	@$(BUILD_DIST) --bin thimble --bin thimble-lab
	@"$(DIST)/thimble-lab" bench --node "$(DIST)/thimble" --memory "$(MEMORY)" --seconds "$(or $(DURATION),10)" --concurrency "$(CONCURRENCY)" \
		--json target/bench/bench.json

# Promise: P3 [PARTS=open-calls] - 10,000 calls with guaranteed responses are open at once.
# Promise: P3 [DURATION=1800] - 764,000 call statuses are stored: 1,270 calls/s, signed 5 min ahead,
#   are not slowed.
bench-state: setup ## Measure a node with more than fits its memory: STATE of state, CANISTERS, calls signed far ahead for DURATION seconds, MODULES; a table with goals.
	@$(BUILD_DIST) --bin thimble --bin thimble-lab
	@"$(DIST)/thimble-lab" bench-state --node "$(DIST)/thimble" --memory "$(MEMORY)" $(if $(STATE),--state "$(STATE)") $(if $(CANISTERS),--canisters "$(CANISTERS)") \
		$(if $(DISK),--disk "$(DISK)") $(if $(MODULES),--modules "$(MODULES)") $(if $(DURATION),--seconds "$(DURATION)") $(if $(PARTS),--parts "$(PARTS)") --json target/bench/bench-state.json

# Promise: P22 [INSTANCES=20] - An instance starts in 50 ms and uses less than 12 MiB of memory when
#   idle.
bench-pocket: setup ## Measure the server for tests with INSTANCES instances: start, memory at rest, calls; a table with goals.
	@$(BUILD_DIST) --bin thimble-pocket --bin thimble-lab
	@"$(DIST)/thimble-lab" bench-pocket --server "$(DIST)/thimble-pocket" $(if $(INSTANCES),--instances "$(INSTANCES)") --json target/bench/bench-pocket.json

# Promise: P1 [MEMORY=256MiB MODE=all] - A capped node survives every load mode: no kill, restart or
#   wrong byte.
# Promise: P1 [MODE=hybrid DURATION=120] - Peak anonymous memory is under 170 MiB at 512 MiB, and
#   near idle after 60 s.
storm: build ## Storm a node that is capped at MEMORY with the hammer's MODE for DURATION seconds, and judge what its memory did.
	@"$(BIN)/thimble-lab" storm --node "$(BIN)/thimble" --memory "$(MEMORY)" --mode "$(MODE)" $(if $(DURATION),--seconds "$(DURATION)") --out target/storm

# Promise: P17 [DURATION=300] - Four nodes under random faults give linearizable histories and
#   recover unaided.
chaos: build ## Hurt a subnet of four at random for DURATION seconds while clients work on it, and check that nothing acknowledged is lost.
	@"$(BIN)/thimble-lab" chaos --node "$(BIN)/thimble" --memory "$(MEMORY)" --duration "$(or $(DURATION),300)" $(if $(SEED),--seed "$(SEED)")

# Promise: P15 [SECONDS=3600] - Hostile input, faults and one Byzantine member delay no round beyond
#   10 s.
# The release build and the build of the tests are copied, because cargo writes both to one place.
# For each five minutes, one history of a simulated subnet, whose clocks jump, runs first.
hostile: SEED := $(or $(SEED),$(shell od -An -N2 -tu2 /dev/urandom | tr -d ' '))
hostile: HISTORIES := $(shell expr $(SECONDS) / 300)
hostile: setup ## Attack one node and subnets of different builds for SECONDS seconds with hostile input and faults, and verify the results.
	@mkdir -p target/hostile/builds
	@cargo build $(CHECKED) --release --locked --workspace --bin thimble $(BYZANTINE)
	@cp "$(BIN)/thimble" target/hostile/builds/thimble-checked
	@$(if $(BYZANTINE),cp "$(BIN)/thimble-byzantine" target/hostile/builds/)
	@cargo build --release --locked --workspace --bin thimble --bin thimble-lab
	@cp "$(BIN)/thimble" target/hostile/builds/thimble
	@$(if $(filter 0,$(HISTORIES)),,$(MAKE) --no-print-directory simulate FIRST="$(SEED)" SEEDS="$(HISTORIES)")
	@"$(BIN)/thimble-lab" hostile --node target/hostile/builds/thimble --node target/hostile/builds/thimble-checked \
		$(if $(BYZANTINE),--byzantine target/hostile/builds/thimble-byzantine) --seconds "$(SECONDS)" --seed "$(SEED)" --memory "$(MEMORY)" \
		--json target/hostile/report.json

# Promise: P14 - No work takes more than 10 times as long per counted instruction as `i64.add`.
bench-metering: setup ## Measure ns per counted instruction of every instruction, shape of code, first touch of pages and system function, relative to i64.add; fails above 10.
	@mkdir -p target/bench
	@$(BUILD_DIST) --example metering
	@"$(DIST)/examples/metering" --json target/bench/metering.json --runs "$(RUNS)" $(if $(ONLY),--only "$(ONLY)")

# Promise: P19 - A member fetches a state of 300 MiB in under 30 s, with at most 64 MiB of extra
#   memory.
# Promise: P22 - A subnet of four finalises an update in a median below 150 ms, at 1,000 messages/s.
bench-net: setup ## Measure a subnet of four: idle memory and CPU, CPU per block beside the engine alone, latency, messages, a storm of MINUTES, state sync; with one picture.
	@$(BUILD_DIST) --bin thimble --bin thimble-lab
	@$(BUILD_DIST) --example engine
	@"$(DIST)/thimble-lab" bench-net --node "$(DIST)/thimble" --engine "$(DIST)/examples/engine" --memory "$(MEMORY)" --minutes "$(MINUTES)"

# Promise: P22 - A dealing among 40 nodes is created in 60 ms and verified in 50 ms of processor
#   time.
bench-dkg: setup ## Measure key generation, one thread and two, and print the table beside its targets and the reference.
	@DKG_BENCH_NODES="$(DKG_NODES)" cargo bench --profile "$(PROFILE)" --locked --workspace --bench dkg

# Promise: P22 - Key generation at most doubles the p99 latency of other signers.
bench-dkg-starvation: setup ## Print how late others sign while key generation runs flat out, beside an idle machine.
	@mkdir -p target/bench && rm -f target/bench/dkg-starvation.csv
	@DKG_BENCH_CSV="$(CURDIR)/target/bench/dkg-starvation.csv" DKG_BENCH_SECONDS="$(DURATION)" cargo bench --profile "$(PROFILE)" --locked --workspace --bench starvation

bench-sync: setup ## Measure manifests, showing and installing a state of SYNC_MIB MiB, and print the table.
	@mkdir -p target/bench && rm -f target/bench/sync.csv
	@SYNC_BENCH_CSV="$(CURDIR)/target/bench/sync.csv" SYNC_BENCH_MIB="$(SYNC_MIB)" cargo bench --profile "$(PROFILE)" --locked --workspace --bench sync

# Promise: P24 [CASE=flood MEMORY=64MiB] - A flooded relay in a capped group delivers every accepted
#   message.
stress: build ## Work on a relay in MEMORY with CASE of the stress study (baseline, overallocation, long, flood, flood-mib), each phase for PHASE seconds.
	@mkdir -p target/stress
	@"$(BIN)/thimble-lab" stress --case "$(CASE)" --phase "$(PHASE)" --memory "$(MEMORY)" --json "target/stress/$(CASE).json" --picture "target/stress/$(CASE).svg" \
		--command '"$(BIN)/thimble-relay" run --memory {memory} --data-dir {folder} --listen /ip4/127.0.0.1/tcp/{port} --http 127.0.0.1:0 --log warn $(if $(filter flood-mib,$(CASE)),--message-size 1MiB)'

# Promise: P22 - The relay meets its goals of rate, latency and memory, compared with go-waku.
bench-relay: setup ## Hold the relay against its goals, beside go-waku in TURNS alternating turns on this machine; phases of PHASE seconds, 250/s for LONG.
	@tests/waku/setup.sh go >/dev/null
	@mkdir -p target/stress
	@$(BUILD_DIST) --bin thimble-relay --bin thimble-lab
	@"$(DIST)/thimble-lab" bench-relay --phase "$(PHASE)" --long "$(LONG)" --turns "$(TURNS)" --json target/stress/bench-relay.json --pictures target/stress \
		--reference 'go-waku="$(CARGO_TARGET_DIR)/waku/peer" service -cluster 0 -shards 0 -tcp-port {port} -store {folder}'

bench-heap: setup ## Measure what sampling of allocations costs the relay under a flood: with it and without, in turns.
	@mkdir -p target/bench
	@$(BUILD_DIST) --bin thimble-relay --bin thimble-lab
	@"$(DIST)/thimble-lab" stress --case flood --phase "$(PHASE)" --turns 3 --after 1 --json target/bench/heap.json \
		--compare 'off="$(DIST)/thimble-relay" run --memory 128MiB --data-dir {folder} --listen /ip4/127.0.0.1/tcp/{port} --http 127.0.0.1:0 --log warn' \
		--compare 'on="$(DIST)/thimble-relay" run --memory 128MiB --data-dir {folder} --listen /ip4/127.0.0.1/tcp/{port} --http 127.0.0.1:0 --log warn --heap-profile'

# Promise: P25 [BASE=HEAD~1] - A comparison of two commits reports the changed figures.
compare: setup ## Say what HEAD changed against the commit BASE: builds both, runs WHAT (bench, bench-net, bench-relay) of both in TURNS turns, and compares.
	@$(BUILD_DIST) --bin thimble-lab
	@PROFILE="$(PROFILE)" TURNS="$(if $(filter file,$(origin TURNS)),3,$(TURNS))" DURATION="$(DURATION)" MEMORY="$(MEMORY)" PHASE="$(PHASE)" MINUTES="$(if $(filter file,$(origin MINUTES)),1,$(MINUTES))" \
		scripts/compare.sh "$(DIST)/thimble-lab" "$(BASE)" "$(WHAT)"

# Promise: P25 - Eight disks from a cached base take at most 0.05 s, and nothing is unpacked twice.
bench-images: setup setup-images ## Make the disks of MACHINES machines from one image of 1.6 GB in every way, in turns: wall, CPU, bytes on disk, goals.
	@mkdir -p target/bench-images
	@$(BUILD_DIST) --bin thimble-lab
	@"$(DIST)/thimble-lab" image bench --machines "$(MACHINES)" --turns "$(TURNS)" --folder target/bench-images --json target/bench-images/figures.json

# Promise: P25 - The search saves 25 % to 30 % of memory of four runtimes at the same latency.
tune-study: build setup-tune ## Tune programs in Haskell, Java, JavaScript and Go, and geth, for BUDGET each: default, operators' flags, what was found (STUDY="ghc java ...").
	@scripts/tune-study.sh "$(BIN)/thimble-lab" target/tune "$(BUDGET)" $(STUDY)

lint: setup ## Formatting, lints and dependencies (deny.toml), as the gate runs them.
	@scripts/setup.sh lint
	@scripts/promises.py --check
	@scripts/words.py --check
	@scripts/documents.py
	@scripts/dependencies.sh
	@scripts/assertions.py --check
	@cargo fmt --all --check
	@cargo clippy --release --locked --workspace --all-targets -- -D warnings

doc: setup ## Build the documentation of the crates, with warnings as errors.
	@RUSTDOCFLAGS="-D warnings" cargo doc --release --locked --workspace --no-deps

fmt: ## Format.
	@cargo fmt --all

reference: setup ## Renew docs/reference from the programs: commands, limits, metrics, error codes, routes; make test compares them.
	@THIMBLE_WRITE_REFERENCE=1 cargo test $(CHECKED) --release --locked --workspace --lib --bins --test it --test pocket reference_page

timings: setup ## Print crates, wall and CPU time of the first build (the programs of make run), and the ratio to building wasmtime alone.
	@scripts/timings.py

canisters: ## Rebuild the sample canisters in canisters/wasm from their sources.
	@canisters/build.sh

# Promise: P15 - Fuzzing of messages, files and arguments from outside the process finds no crash.
fuzz: ## Fuzz what outsiders, peers, workers and compile children send, each target for FUZZ_SECONDS (installs what it needs; FUZZ_COVERAGE=1 prints statistics).
	@scripts/fuzz.sh "$(FUZZ_SECONDS)"
