#!/usr/bin/env bash
# Runs every fuzz target of fuzz/Cargo.toml for the given number of seconds, from its seeds and the
# corpus that earlier runs left; lab/fuzzing has their code. `fuzz.sh SECONDS TARGET...` runs these
# targets only. Installs cargo-fuzz and a nightly toolchain if they are missing; without a nightly it
# uses the pinned toolchain. FUZZ_COVERAGE=1 prints libFuzzer's statistics after each target.
set -euo pipefail
seconds=${1:-60}
shift || true
cd "$(dirname "$0")/.."
# The fuzzer's build has flags of its own and a separate folder.
unset CARGO_TARGET_DIR CARGO_INCREMENTAL

command -v cargo-fuzz >/dev/null 2>&1 || cargo install cargo-fuzz --locked
if rustup toolchain list 2>/dev/null | grep -q '^nightly' ||
    rustup toolchain install nightly --profile minimal >/dev/null 2>&1; then
    toolchain=+nightly
else
    # Sanitizers and coverage are flags that a stable compiler has, and takes with RUSTC_BOOTSTRAP.
    echo "fuzz: no nightly toolchain can be installed; using $(rustc --version) with RUSTC_BOOTSTRAP=1"
    toolchain=+$(rustup show active-toolchain | cut -d' ' -f1)
    export RUSTC_BOOTSTRAP=1
fi

statistics=()
if [ -n "${FUZZ_COVERAGE:-}" ]; then statistics=(-print_final_stats=1); fi
if [ "$#" -gt 0 ]; then targets=("$@"); else mapfile -t targets < <(cargo "$toolchain" fuzz list); fi
for target in "${targets[@]}"; do
    echo "fuzz: $target for $seconds s"
    mkdir -p "fuzz/corpus/$target"
    folders=("fuzz/corpus/$target")
    if [ -d "fuzz/seeds/$target" ]; then folders+=("fuzz/seeds/$target"); fi
    cargo "$toolchain" fuzz run "$target" "${folders[@]}" -- \
        -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=30 "${statistics[@]}"
done
echo "fuzz: ${#targets[@]} targets, nothing found"
