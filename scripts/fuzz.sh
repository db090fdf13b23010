#!/usr/bin/env bash
# Runs each fuzz target for the given number of seconds. Installs cargo-fuzz if it is missing.
set -euo pipefail
seconds=${1:-60}
cd "$(dirname "$0")/../fuzz"
if ! rustup toolchain list | grep -q nightly; then
    echo "fuzz: a nightly toolchain is needed: rustup toolchain install nightly --profile minimal" >&2
    exit 1
fi
command -v cargo-fuzz >/dev/null 2>&1 || cargo install cargo-fuzz --locked
for target in envelope_decoder module_validator dkg_decoders dkg_dealing manifest_decoder key_summary; do
    echo "fuzz: $target for $seconds s"
    cargo +nightly fuzz run "$target" -- -max_total_time="$seconds" -rss_limit_mb=2048
done
