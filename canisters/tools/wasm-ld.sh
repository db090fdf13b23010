#!/bin/sh
# rustc speaks to its own linker as `rust-lld -flavor wasm ...`; a plain wasm-ld does not know that flag.
[ "$1" = -flavor ] && shift 2
exec "${WASM_LD:-wasm-ld-14}" "$@"
