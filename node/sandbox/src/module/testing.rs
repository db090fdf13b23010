//! Limits and modules that the tests of this folder share.
#![allow(clippy::unwrap_used)]

use limits::ModuleLimits;

/// Limits as a node of 512 MiB might have them.
pub(crate) fn limits() -> ModuleLimits {
    ModuleLimits {
        wasm_bytes: 30 << 20,
        wasm_uncompressed_bytes: 40 << 20,
        code_section_bytes: 12 << 20,
        functions: 50_000,
        function_bytes: 1 << 20,
        globals: 1_000,
        table_elements: 1 << 20,
        tables: 4,
        data_segments: 10_000,
        custom_sections: 16,
        custom_sections_bytes: 1 << 20,
        exported_functions: 1_000,
        exported_names_bytes: 20_000,
        heap32_bytes: 4 << 30,
        heap64_bytes: 6 << 30,
        stable_bytes: 8 << 30,
    }
}

/// Modules that are valid canisters and between them have everything instrumentation treats specially.
pub(crate) const VALID: &[&str] = &[
    "(module)",
    r#"(module (func (export "canister_init")) (func (export "canister_update a b")))"#,
    // Data, bulk operations, start, globals, table, calls by every route.
    r#"(module
        (import "ic0" "msg_reply" (func $reply))
        (import "ic0" "msg_reply_data_append" (func $append (param i32 i32)))
        (type $callback (func (param i32)))
        (memory (export "memory") 2)
        (table (export "__indirect_function_table") 4 funcref)
        (global $a (mut i32) (i32.const 7))
        (global $b i64 (i64.const 9))
        (global $c (export "__thimble_g0") (mut f64) (f64.const 1.5))
        (global $f funcref (ref.func $callback))
        (elem (i32.const 1) $callback $reply)
        (elem declare func $copy)
        (data (i32.const 16) "hello")
        (data $passive "world")
        (data (i32.const 65530) "end")
        (func $callback (param i32) (global.set $a (local.get 0)))
        (func $copy (memory.copy (i32.const 100) (i32.const 16) (i32.const 5)))
        (func $start
            (memory.fill (i32.const 200) (i32.const 1) (i32.const 8))
            (memory.init $passive (i32.const 300) (i32.const 0) (i32.const 5))
            (data.drop $passive)
            (drop (ref.func $copy)))
        (start $start)
        (func (export "canister_query get")
            (call $copy)
            (call_indirect (type $callback) (i32.const 3) (i32.const 1))
            (call $append (i32.const 100) (i32.const 5))
            (call $reply))
        (func $other (export "other") (drop (memory.grow (i32.const 1))) (drop (ref.func $other))))"#,
    // The same over 64 bits.
    r#"(module
        (import "ic0" "msg_arg_data_copy" (func $arg (param i64 i64 i64)))
        (memory i64 1)
        (table i64 2 10 funcref)
        (global (mut i64) (i64.const 1))
        (global (mut v128) (v128.const i64x2 1 2))
        (elem (table 0) (i64.const 0) func $copy)
        (data $d (i64.const 8) "abcd")
        (data "xyz")
        (func $copy (param i64 i64 i64) (memory.copy (local.get 0) (local.get 1) (local.get 2)))
        (func $fill (export "__thimble_start") (memory.fill (i64.const 0) (i32.const 5) (i64.const 3)))
        (func (export "canister_post_upgrade")
            (memory.init 1 (i64.const 0) (i32.const 0) (i32.const 3))
            (memory.init $d (i64.const 0) (i32.const 0) (i32.const 0))
            (data.drop $d)
            (v128.store (i64.const 64) (v128.const i64x2 3 4))
            (call_indirect (param i64 i64 i64) (i64.const 1) (i64.const 2) (i64.const 3) (i64.const 0)))
        (@custom "icp:public candid:service" "service : {}")
        (@custom "icp:private enhanced-orthogonal-persistence" "")
        (@custom "name" ""))"#,
    // Tables only, tail calls, blocks with types.
    r#"(module
        (type $t (func (param i32) (result i32)))
        (table $x 1 funcref) (table $y 2 8 funcref)
        (elem $passive funcref (ref.func $f) (ref.null func))
        (func $f (type $t) (return_call_indirect $y (type $t) (local.get 0) (i32.const 0)))
        (func (export "canister_heartbeat")
            (table.init $x $passive (i32.const 0) (i32.const 0) (i32.const 1))
            (table.copy $y $x (i32.const 0) (i32.const 0) (i32.const 1))
            (drop (table.grow $y (ref.null func) (i32.const 3)))
            (i32.const 1) (block (param i32) (result i32) (call $f)) (drop)
            (loop (br_table 0 1 0 (i32.const 1)))))"#,
];
