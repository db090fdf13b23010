#!/bin/bash
# Rebuilds the canister modules in canisters/wasm from their sources.
#
#   canisters/build.sh                 all of them
#   canisters/build.sh workbench ...   those named
#
# Needs Debian 12 or a recent Ubuntu, cargo, and a network for what is missing: Debian
# packages (with sudo unless root) and npm packages. Everything that is not a system package goes to
# ${CARGO_TARGET_DIR:-target}/canisters and is kept there, so a second run downloads nothing.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
scratch=${CARGO_TARGET_DIR:-$here/../target}/canisters
mkdir -p "$scratch" "$here/wasm"
scratch=$(cd "$scratch" && pwd)
out=$here/wasm

all=(motoko-counter64 motoko-counter32 workbench frontend counter-c beater-c hammer-c universal-c
    universal-c-heartbeat azle-hello local-cycles-ledger local-icp-ledger local-cycles-minting)

say() { printf '== %s\n' "$*"; }

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

# need_command <command> <Debian package>...: installs the packages if the command is missing.
need_command() {
    local command=$1
    shift
    command -v "$command" >/dev/null && return
    say "installing $* (for $command)"
    as_root apt-get update -q >/dev/null
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "$@" >/dev/null
}

need_node() { need_command node nodejs npm && need_command npm npm; }

# The npm compilers, at the versions of tools/package-lock.json. Their install scripts fetch things;
# they are not run.
need_npm_tools() {
    need_node
    local stamp=$scratch/tools/.installed
    if ! cmp -s "$here/tools/package-lock.json" "$stamp"; then
        say "installing the npm compilers"
        mkdir -p "$scratch/tools"
        cp "$here/tools/package.json" "$here/tools/package-lock.json" "$scratch/tools/"
        (cd "$scratch/tools" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error)
        cp "$here/tools/package-lock.json" "$stamp"
    fi
    cp "$here/tools/motoko.cjs" "$scratch/tools/"
}

# embed <name>: puts <name>.did into the module as public Candid metadata.
embed() {
    node "$here/tools/wasm.mjs" add-section "$out/$1.wasm" "icp:public candid:service" "$out/$1.did"
}

# build_motoko <name> <npm package>
build_motoko() {
    need_npm_tools
    node "$scratch/tools/motoko.cjs" "$2" "$here/$1/main.mo" "$out/$1.wasm" "$out/$1.did"
}

# build_local <name> <source>: a canister of a local network, without the names of functions and
# packed, because `thimble-lab local` contains it and recognises it by the section with its name.
# The compiler recurses deeply in a source of this size.
build_local() {
    need_npm_tools
    (ulimit -s 65536 && node --stack-size=60000 "$scratch/tools/motoko.cjs" motoko "$here/local/$2" "$out/$1.wasm" "$out/$1.did")
    node "$here/tools/wasm.mjs" drop-section "$out/$1.wasm" name
    printf %s "$1" >"$scratch/local-name"
    node "$here/tools/wasm.mjs" add-section "$out/$1.wasm" "icp:public thimble:local" "$scratch/local-name"
    gzip -9nf "$out/$1.wasm"
}

# build_c <name> <directory>/<source> [compiler options]: the stack is cut to one page so that a
# small module needs a single page of memory. The interface is that of the directory.
build_c() {
    need_command clang-14 clang-14
    need_command wasm-ld-14 lld-14
    need_node
    clang-14 --target=wasm32 -O2 -Wall -Wextra -Werror -nostdlib -ffreestanding \
        -Wl,--no-entry -Wl,--strip-all -Wl,-z,stack-size=4096 "${@:3}" -o "$out/$1.wasm" "$here/$2"
    chmod 644 "$out/$1.wasm"
    cp "$here/${2%/*}/${2%/*}.did" "$out/$1.did"
    embed "$1"
}

# A program that runs programs needs a larger stack.
build_universal() {
    build_c "$1" universal-c/universal.c -Wl,--export-table -Wl,-z,stack-size=16384 "${@:2}"
}

# Debian ships a newer rustc with its library source in addition to the distribution's own, for
# building browsers. Unpacked (not installed) it compiles the standard library for wasm32 without a
# rustup target.
need_rustc() {
    local rust=$scratch/rustc-web
    if [ ! -e "$rust/.unpacked" ]; then
        say "unpacking rustc-web into $rust"
        rm -rf "$rust"
        mkdir -p "$rust/debs"
        as_root apt-get update -q >/dev/null
        local std llvm
        std=$(apt-cache depends rustc-web | sed -n 's/.*Depends: \(libstd-rust-web-dev\)$/\1/p' | head -1)
        [ -n "$std" ] || { echo "this distribution has no rustc-web; build it on Debian 12" >&2; exit 1; }
        std=$(apt-cache depends libstd-rust-web-dev | sed -n 's/.*Depends: \(libstd-rust-web-[0-9.]*\)$/\1/p' | head -1)
        llvm=$(apt-cache depends "$std" | sed -n 's/.*Depends: \(libllvm[0-9]*\)$/\1/p' | head -1)
        (cd "$rust/debs" && apt-get download -q rustc-web libstd-rust-web-dev "$std" rust-web-src "$llvm" >/dev/null)
        for deb in "$rust"/debs/*.deb; do dpkg -x "$deb" "$rust"; done
        rm -rf "$rust/debs"
        touch "$rust/.unpacked"
    fi
    printf '#!/bin/sh\nLD_LIBRARY_PATH=%s exec %s "$@"\n' \
        "$rust/usr/lib/$(uname -m)-linux-gnu" "$rust/usr/bin/rustc" >"$rust/rustc"
    chmod +x "$rust/rustc"
    rustc=$rust/rustc
}

# cargo_wasm <directory> [cargo options]: paths of this machine are kept out of the module.
cargo_wasm() {
    local directory=$1 source remap
    shift
    remap="--remap-path-prefix=$scratch/rustc-web/usr/lib/rustlib/src/rust=rust"
    remap+=" --remap-path-prefix=$scratch/rustc-web/usr/src/$(ls "$scratch/rustc-web/usr/src" | head -1)=rust"
    for source in "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/; do
        remap+=" --remap-path-prefix=${source%/}=crates"
    done
    (cd "$directory" && RUSTC=$rustc RUSTC_BOOTSTRAP=1 RUSTFLAGS=$remap CARGO_TARGET_DIR=$scratch/cargo \
        CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER=$here/tools/wasm-ld.sh \
        cargo build --quiet --locked --release --target wasm32-unknown-unknown \
        -Z build-std=std,panic_abort "$@")
}

# build_rust <name>, built twice: with the feature that exports the interface, to read it, and then
# without.
build_rust() {
    local built=$scratch/cargo/wasm32-unknown-unknown/release/$1.wasm rustc
    command -v cargo >/dev/null || { echo "cargo is needed: see https://rustup.rs" >&2; exit 1; }
    need_command wasm-ld-14 lld-14
    need_command cc gcc libc6-dev
    need_node
    need_rustc
    (cd "$here/$1" && cargo fetch --quiet --locked)
    cargo_wasm "$here/$1" --features interface
    node "$here/tools/wasm.mjs" candid "$built" >"$out/$1.did"
    # Types of libraries bring their documentation along.
    [ "$1" != frontend ] || sed -i '/^ *\/\//d' "$out/$1.did"
    cargo_wasm "$here/$1"
    cp "$built" "$out/$1.wasm"
    chmod 644 "$out/$1.wasm"
    embed "$1"
}

# Azle writes the directory it built in into the module; relative names keep this machine's path out
# of it.
build_azle() {
    need_npm_tools
    local project=$scratch/azle
    rm -rf "$project"
    mkdir -p "$project/src" "$project/work"
    cp "$here/azle-hello/index.ts" "$project/src/"
    echo '{"canisters":{"azle-hello":{"type":"azle","main":"src/index.ts"}}}' >"$project/dfx.json"
    ln -s "$scratch/tools/node_modules" "$project/node_modules"
    (cd "$project/work" && AZLE_DFX_ROOT=.. CANISTER_CANDID_PATH=../azle-hello.did \
        ../node_modules/.bin/tsx ../node_modules/azle/src/build.ts build azle-hello)
    cp "$project/azle-hello.did" "$out/azle-hello.did"
    cp "$project/.azle/azle-hello/azle-hello.wasm" "$out/azle-hello.wasm"
    embed azle-hello
    gzip -9nf "$out/azle-hello.wasm"
}

build() {
    say "building $1"
    case $1 in
        motoko-counter64) build_motoko "$1" motoko ;;
        motoko-counter32) build_motoko "$1" motoko32 ;;
        local-cycles-ledger) build_local "$1" CyclesLedger.mo ;;
        local-icp-ledger) build_local "$1" IcpLedger.mo ;;
        local-cycles-minting) build_local "$1" CyclesMinting.mo ;;
        workbench | frontend) build_rust "$1" ;;
        counter-c) build_c "$1" counter-c/counter.c ;;
        beater-c) build_c "$1" beater-c/beater.c ;;
        # Callbacks are entries of the table, and the linker keeps a table that nothing calls
        # through only when it is exported.
        hammer-c) build_c "$1" hammer-c/hammer.c -Wl,--export-table ;;
        universal-c) build_universal "$1" ;;
        universal-c-heartbeat) build_universal "$1" -DHEARTBEAT ;;
        azle-hello) build_azle ;;
        *) echo "no canister is called $1; there are: ${all[*]}" >&2; exit 2 ;;
    esac
}

[ $# -gt 0 ] || set -- "${all[@]}"
for name in "$@"; do build "$name"; done

say "describing the modules in README.md"
tables=$scratch/tables.md
(cd "$out" && node "$here/tools/wasm.mjs" describe *.wasm *.wasm.gz) >"$tables"
sed -i -e "/<!-- tables -->/,/<!-- end of tables -->/{/<!-- tables -->/r $tables" -e '/<!--/!d}' "$here/README.md"
sed -n '1,/^$/p' "$tables"
