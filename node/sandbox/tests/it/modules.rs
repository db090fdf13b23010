//! A module's way from upload to running code: compiled in a child, loaded from the artefact, run
//! with the least host there can be.

use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use limits::{ModuleLimits, SandboxLimits};
use sandbox::module::{
    IC0_FUNCTIONS, INIT_MEMORY, MEMORY, RUNTIME_MODULE, START, TABLE, WILL_WRITE, global_export,
};
use sandbox::{
    Caps, CompileError, CompiledModule, Compiler, ModuleSource, NotPrepared, Preparer,
    PreparerConfig, Priority, UploadedModule, engine,
};
use sha2::{Digest, Sha256};
use state::{ModuleHash, ModuleInfo, RejectCode};
use testing::{SmallDisk, until};
use wasm_encoder::{
    CodeSection, Function, FunctionSection, Instruction as I, MemArg, MemorySection, MemoryType,
    TypeSection, ValType,
};
use wasmtime::{Caller, Engine, Instance, Linker, Module, Store, Val};

fn module_limits() -> ModuleLimits {
    ModuleLimits {
        wasm_bytes: 30 << 20,
        wasm_uncompressed_bytes: 40 << 20,
        code_section_bytes: 12 << 20,
        functions: 50_000,
        function_bytes: 1 << 20,
        function_weight: 4_000_000,
        weight: 4_000_000,
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

fn sandbox_limits() -> SandboxLimits {
    SandboxLimits {
        paused_workers: 0,
        canisters_max: 32,
        idle_seconds: 120,
        resident_floor_bytes: 128 << 20,
        eviction_batch_bytes: 64 << 20,
        worker_anonymous_bytes: 256 << 20,
        ring_bytes: 128 << 10,
        compile_threads: 2,
        compile_memory_bytes: 256 << 20,
        compile_anonymous_bytes: 16 << 20,
        compile_seconds: 60,
        compilation_cache_bytes: 64 << 20,
    }
}

fn host() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_sandbox-test-host"))
}

fn preparer(dir: &Path) -> Preparer {
    preparer_with(dir, |_| {})
}

fn preparer_with(dir: &Path, change: impl FnOnce(&mut PreparerConfig)) -> Preparer {
    let mut config = PreparerConfig {
        exe: host(),
        arguments: vec!["sandbox-compile".into()],
        cache_dir: dir.join("artefacts"),
        module: module_limits(),
        sandbox: sandbox_limits(),
        source: None,
    };
    change(&mut config);
    Preparer::open(config).unwrap()
}

fn hash(wasm: &[u8]) -> ModuleHash {
    ModuleHash(Sha256::digest(wasm).into())
}

/// What the minimal host saw.
#[derive(Default)]
struct HostState {
    writes: Vec<(u64, u64)>,
}

/// A canister under test: compiled by a child, loaded, instantiated once.
struct TestCanister {
    store: Store<HostState>,
    instance: Instance,
}

impl TestCanister {
    fn new(wat: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let wasm = wat::parse_str(wat).unwrap();
        let preparer = preparer(dir.path());
        prepare(&preparer, &wasm).unwrap_or_else(|error| panic!("{error}: {wat}"));
        let engine = engine::engine().unwrap();
        // SAFETY: the preparer's own artefact, which is not modified.
        let module =
            unsafe { engine::load(&engine, &preparer.open_artefact(&hash(&wasm)).unwrap()) }
                .unwrap();
        let mut store = Store::new(&engine, HostState::default());
        store.set_fuel(1_000_000_000).unwrap();
        let instance = linker(&engine, &module).instantiate(&mut store, &module).unwrap();
        Self { store, instance }
    }

    fn call(&mut self, name: &str) -> wasmtime::Result<()> {
        let function = self
            .instance
            .get_func(&mut self.store, name)
            .unwrap_or_else(|| panic!("no export {name}"));
        function.call(&mut self.store, &[], &mut [])
    }

    fn memory(&mut self, offset: usize, len: usize) -> Vec<u8> {
        let memory = self.instance.get_memory(&mut self.store, MEMORY).unwrap();
        memory.data(&self.store)[offset..offset + len].to_vec()
    }

    fn global(&mut self, n: usize) -> Option<Val> {
        let global = self.instance.get_global(&mut self.store, &global_export(n))?;
        Some(global.get(&mut self.store))
    }

    fn has(&mut self, name: &str) -> bool {
        self.instance.get_export(&mut self.store, name).is_some()
    }

    fn writes(&mut self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.store.data_mut().writes)
    }
}

/// Links `thimble.will_write` so that it notes its arguments, and every function of `ic0` so that
/// it does nothing.
fn linker(engine: &Engine, module: &Module) -> Linker<HostState> {
    let mut linker = Linker::new(engine);
    let word = |val: &Val| match val {
        Val::I32(value) => u64::from(*value as u32),
        Val::I64(value) => *value as u64,
        other => panic!("{other:?}"),
    };
    for import in module.imports() {
        let ty = import.ty().unwrap_func().clone();
        let will_write = (import.module(), import.name()) == (RUNTIME_MODULE, WILL_WRITE);
        assert!(will_write || IC0_FUNCTIONS.iter().any(|function| function.name == import.name()));
        linker
            .func_new(
                import.module(),
                import.name(),
                ty,
                move |mut caller: Caller<'_, HostState>, arguments, _| {
                    if will_write {
                        caller.data_mut().writes.push((word(&arguments[0]), word(&arguments[1])));
                    }
                    Ok(())
                },
            )
            .unwrap();
    }
    linker
}

#[test]
fn data_is_applied_on_request_and_in_order() {
    for (memory, offset) in [("(memory 1 2)", "i32"), ("(memory i64 1 2)", "i64")] {
        let mut canister = TestCanister::new(&format!(
            r#"(module {memory} (data ({offset}.const 10) "first") (data "passive") (data ({offset}.const 12) "XY") (data ({offset}.const 65536) ""))"#
        ));
        assert_eq!(canister.memory(10, 5), [0; 5], "a fresh instance has an empty memory");
        canister.call(INIT_MEMORY).unwrap();
        assert_eq!(canister.memory(10, 5), b"fiXYt");
        assert_eq!(canister.writes(), [(10, 5), (12, 2), (65_536, 0)]);
        assert_eq!(canister.memory(0, 1), [0]);
    }
}

#[test]
fn data_out_of_bounds_traps_as_instantiation_would() {
    let mut canister = TestCanister::new(
        r#"(module (memory 1) (data (i32.const 0) "kept") (data (i32.const 65535) "ab"))"#,
    );
    let trap = canister.call(INIT_MEMORY).unwrap_err().downcast::<wasmtime::Trap>().unwrap();
    assert_eq!(trap, wasmtime::Trap::MemoryOutOfBounds);
    let mut canister = TestCanister::new(r#"(module (memory 0) (data (i32.const 1) ""))"#);
    assert!(canister.call(INIT_MEMORY).is_err(), "even an empty segment must begin inside");
}

#[test]
fn many_segments_are_all_applied() {
    let data: String = (0..1_000)
        .map(|n| format!("(data (i32.const {}) \"{}\")", n * 4, char::from(b'a' + (n % 26) as u8)))
        .collect();
    let mut canister = TestCanister::new(&format!("(module (memory 1) {data})"));
    canister.call(INIT_MEMORY).unwrap();
    assert!((0..1_000).all(|n| canister.memory(n * 4, 1)[0] == b'a' + (n % 26) as u8));
}

#[test]
fn start_runs_when_called_and_not_before() {
    let mut canister = TestCanister::new(
        r#"(module (memory 1) (global $g (mut i32) (i32.const 1)) (func $s (global.set $g (i32.const 2)) (i32.store8 (i32.const 5) (i32.const 9))) (start $s))"#,
    );
    assert!(matches!(canister.global(0), Some(Val::I32(1))));
    canister.call(START).unwrap();
    assert!(matches!(canister.global(0), Some(Val::I32(2))));
    assert_eq!(canister.memory(5, 1), [9]);
    assert!(!canister.has(INIT_MEMORY), "nothing to apply");
}

#[test]
fn mutable_globals_are_exported_in_order_and_nothing_else() {
    let mut canister = TestCanister::new(
        r#"(module (global i32 (i32.const 1)) (global $a (mut i64) (i64.const 2)) (global f32 (f32.const 3)) (global (mut f32) (f32.const 4))
            (global $v (export "mine") (mut v128) (v128.const i64x2 5 6)) (table (export "t") 2 funcref) (memory (export "m") 1)
            (func (export "f")) (func (export "canister_query q")))"#,
    );
    assert!(matches!(canister.global(0), Some(Val::I64(2))));
    assert!(matches!(canister.global(1), Some(Val::F32(bits)) if f32::from_bits(bits) == 4.0));
    assert!(matches!(canister.global(2), Some(Val::V128(value)) if value.as_u128() == 6 << 64 | 5));
    assert!(canister.global(3).is_none());
    assert!(canister.has(TABLE) && canister.has(MEMORY) && canister.has("canister_query q"));
    assert!(
        !canister.has("mine") && !canister.has("t") && !canister.has("m") && !canister.has("f")
    );
}

#[test]
fn names_of_the_node_in_a_module_mean_nothing() {
    let mut canister = TestCanister::new(
        r#"(module (func $f (unreachable)) (export "__thimble_start" (func $f)) (export "__thimble_init_memory" (func $f))
            (global (export "__thimble_g0") i32 (i32.const 1)) (memory (export "__thimble_table") 1))"#,
    );
    assert!(
        !canister.has(START)
            && !canister.has(INIT_MEMORY)
            && !canister.has(TABLE)
            && canister.global(0).is_none()
    );
}

#[test]
fn bulk_writes_are_reported_before_they_happen() {
    for (ty, memory) in [("i32", "(memory 1)"), ("i64", "(memory i64 1)")] {
        let mut canister = TestCanister::new(&format!(
            r#"(module {memory} (data $p "0123456789")
                (func (export "canister_query a")
                    (memory.fill ({ty}.const 100) (i32.const 97) ({ty}.const 40))
                    (memory.copy ({ty}.const 120) ({ty}.const 80) ({ty}.const 32))
                    (memory.init $p ({ty}.const 200) (i32.const 3) (i32.const 4))
                    (data.drop $p)
                    (memory.init $p ({ty}.const 300) (i32.const 0) (i32.const 0)))
                (func (export "canister_query outside") (memory.fill ({ty}.const 65500) (i32.const 1) ({ty}.const 37)))
                (func (export "canister_query dropped") (data.drop $p) (memory.init $p ({ty}.const 0) (i32.const 0) (i32.const 1))))"#
        ));
        canister.call("canister_query a").unwrap();
        assert_eq!(canister.writes(), [(100, 40), (120, 32), (200, 4), (300, 0)]);
        assert_eq!(canister.memory(118, 4), *b"aa\0\0");
        assert_eq!(canister.memory(138, 4), *b"\0\0aa");
        assert_eq!(canister.memory(199, 6), b"\x003456\0");
        assert!(canister.call("canister_query outside").is_err());
        assert_eq!(canister.writes(), [(65_500, 37)]);
        assert_eq!(canister.memory(65_500, 36), [0; 36], "a trapping operation wrote nothing");
        assert!(canister.call("canister_query dropped").is_err());
    }
}

/// A canister whose methods `copy` and `fill` are the operations with operands out of globals;
/// entry points have no parameters.
fn operator(memory64: bool) -> TestCanister {
    let (ty, memory) = if memory64 { ("i64", "i64 1") } else { ("i32", "1") };
    TestCanister::new(&format!(
        r#"(module (memory {memory}) (global $a (mut {ty}) ({ty}.const 0)) (global $b (mut {ty}) ({ty}.const 0)) (global $n (mut {ty}) ({ty}.const 0))
            (global $v (mut i32) (i32.const 0))
            (func (export "canister_query copy") (memory.copy (global.get $a) (global.get $b) (global.get $n)))
            (func (export "canister_query fill") (memory.fill (global.get $a) (global.get $v) (global.get $n))))"#
    ))
}

impl TestCanister {
    /// Runs `copy` or `fill` of [`operator`].
    fn operate(&mut self, copy: bool, memory64: bool, dst: u64, second: u64, len: u64) -> bool {
        let address = |value: u64| {
            if memory64 { Val::I64(value as i64) } else { Val::I32(value as u32 as i32) }
        };
        for (n, value) in [address(dst), address(second), address(len), Val::I32(second as i32)]
            .into_iter()
            .enumerate()
        {
            let global = self.instance.get_global(&mut self.store, &global_export(n)).unwrap();
            global.set(&mut self.store, value).unwrap();
        }
        self.call(if copy { "canister_query copy" } else { "canister_query fill" }).is_ok()
    }
}

#[test]
fn bulk_operations_of_every_length_do_what_they_did() {
    const SIZE: u64 = 65_536;
    for memory64 in [false, true] {
        let mut canister = operator(memory64);
        let memory = canister.instance.get_memory(&mut canister.store, MEMORY).unwrap();
        let mut expected: Vec<u8> = (0..SIZE as usize).map(|n| (n * 7 + n / 256) as u8).collect();
        memory.data_mut(&mut canister.store).copy_from_slice(&expected);
        for len in 0..70_usize {
            // Apart, overlapping either way, and touching the end of memory.
            for (dst, src) in [
                (1_000, 3_000),
                (1_000, 1_003),
                (1_003, 1_000),
                (1_000, 1_000),
                (1_040, 1_009),
                (SIZE as usize - len, 5),
                (9, SIZE as usize - len),
            ] {
                assert!(
                    canister.operate(true, memory64, dst as u64, src as u64, len as u64),
                    "copy {len}"
                );
                expected.copy_within(src..src + len, dst);
                assert!(
                    memory.data(&canister.store) == expected,
                    "copy {len} bytes from {src} to {dst}"
                );
            }
            for (dst, value) in [(2_000, 0x1ff), (SIZE as usize - len, 3)] {
                assert!(
                    canister.operate(false, memory64, dst as u64, value, len as u64),
                    "fill {len}"
                );
                expected[dst..dst + len].fill(value as u8);
                assert!(memory.data(&canister.store) == expected, "fill {len} bytes at {dst}");
            }
        }
    }
}

#[test]
fn bulk_operations_of_every_length_trap_where_they_did() {
    const SIZE: u64 = 65_536;
    for memory64 in [false, true] {
        let top = if memory64 { u64::MAX } else { u64::from(u32::MAX) };
        let mut canister = operator(memory64);
        for len in 0..70 {
            for at in [SIZE - len + 1, SIZE, SIZE + 1, top - len, top - len / 2, top] {
                let inside = at.checked_add(len).is_some_and(|end| end <= SIZE);
                assert_eq!(
                    canister.operate(true, memory64, at, 0, len),
                    inside,
                    "copy {len} bytes to {at}"
                );
                assert_eq!(
                    canister.operate(true, memory64, 0, at, len),
                    inside,
                    "copy {len} bytes from {at}"
                );
                assert_eq!(
                    canister.operate(false, memory64, at, 1, len),
                    inside,
                    "fill {len} bytes at {at}"
                );
            }
        }
        for len in [SIZE + 1, top, top - 3, top / 2] {
            assert!(
                !canister.operate(true, memory64, 0, 0, len)
                    && !canister.operate(false, memory64, 0, 0, len)
            );
        }
    }
}

#[test]
fn an_active_segment_is_gone_for_the_code() {
    let mut canister = TestCanister::new(
        r#"(module (memory 1) (data $a (i32.const 8) "abc")
            (func (export "canister_query some") (memory.init $a (i32.const 0) (i32.const 0) (i32.const 1)))
            (func (export "canister_query none") (memory.init $a (i32.const 0) (i32.const 0) (i32.const 0)) (data.drop $a)))"#,
    );
    canister.call("canister_query none").unwrap();
    assert!(canister.call("canister_query some").is_err(), "instantiation would have dropped it");
    canister.call(INIT_MEMORY).unwrap();
    assert_eq!(canister.memory(8, 3), b"abc");
}

#[test]
fn functions_keep_their_identity_when_indices_move() {
    let mut canister = TestCanister::new(
        r#"(module
            (import "ic0" "msg_reply" (func $reply))
            (memory 1) (table 8 funcref) (type $t (func (result i32)))
            (elem (i32.const 2) $one $two) (elem $e funcref (ref.func $three) (ref.null func))
            (global $g funcref (ref.func $two))
            (func $one (type $t) (i32.const 1)) (func $two (type $t) (i32.const 2)) (func $three (type $t) (i32.const 3))
            (func $exported_only (export "x") (type $t) (i32.const 4))
            (func $store (param i32 i32) (i32.store8 (local.get 0) (local.get 1)))
            (func (export "canister_query all")
                (call $reply)
                (call $store (i32.const 0) (call $one))
                (call $store (i32.const 1) (call_indirect (type $t) (i32.const 3)))
                (table.init $e (i32.const 0) (i32.const 0) (i32.const 2))
                (call $store (i32.const 2) (call_indirect (type $t) (i32.const 0)))
                (table.set (i32.const 5) (ref.func $exported_only))
                (call $store (i32.const 3) (call_indirect (type $t) (i32.const 5)))
                (table.set (i32.const 6) (global.get $g))
                (call $store (i32.const 4) (call_indirect (type $t) (i32.const 6)))
                (memory.fill (i32.const 8) (i32.const 1) (i32.const 1))))"#,
    );
    canister.call("canister_query all").unwrap();
    assert_eq!(canister.memory(0, 5), [1, 2, 3, 4, 2]);
}

#[test]
fn tables_and_memories_stop_growing_at_their_limits() {
    let mut canister = TestCanister::new(
        r#"(module (memory 1) (table 1 funcref)
            (func (export "canister_query grow")
                (i32.store (i32.const 0) (table.grow (ref.null func) (i32.const 0x100000)))
                (i32.store (i32.const 4) (table.grow (ref.null func) (i32.const 0x0fffff)))
                (i32.store (i32.const 8) (memory.grow (i32.const 65536)))))"#,
    );
    canister.call("canister_query grow").unwrap();
    assert_eq!(canister.memory(0, 12), [255, 255, 255, 255, 1, 0, 0, 0, 255, 255, 255, 255]);
}

#[test]
fn too_deep_recursion_traps() {
    let run = || {
        let mut canister = TestCanister::new(
            r#"(module (func $f (export "canister_query f") (call $f) (call $f)))"#,
        );
        let trap =
            canister.call("canister_query f").unwrap_err().downcast::<wasmtime::Trap>().unwrap();
        assert_eq!(trap, wasmtime::Trap::StackOverflow);
        canister.store.get_fuel().unwrap()
    };
    let fuel = std::thread::Builder::new()
        .stack_size(engine::WASM_STACK_BYTES + engine::HOST_STACK_BYTES)
        .spawn(run)
        .unwrap()
        .join()
        .unwrap();
    assert!(fuel > 0);
}

#[test]
fn a_module_is_compiled_once_and_found_again() {
    let dir = tempfile::tempdir().unwrap();
    let wasm = wat::parse_str(r#"(module (func (export "canister_update u")))"#).unwrap();
    let info = prepare(&preparer(dir.path()), &wasm).unwrap();
    assert_eq!(info.updates, ["u"]);
    // With a binary that does nothing, only the cache can answer.
    let cached = preparer_with(dir.path(), |config| config.exe = PathBuf::from("/bin/false"));
    assert_eq!(prepare(&cached, &wasm), Ok(info.clone()));
    assert_eq!(cached.info(&hash(&wasm)), Some(info));
    assert!(cached.open_artefact(&hash(&wasm)).is_ok());
    // Other limits may judge the module differently, so they find nothing.
    let stricter = preparer_with(dir.path(), |config| {
        config.exe = PathBuf::from("/bin/false");
        config.module.globals = 1;
    });
    assert!(prepare(&stricter, &wasm).is_err());
}

// Promise: P14 - A module is accepted by its content, compressed or plain.
#[test]
fn gzip_and_plain_are_two_modules_of_one_content() {
    let dir = tempfile::tempdir().unwrap();
    let wasm =
        wat::parse_str(r#"(module (memory 1) (func (export "canister_update u")))"#).unwrap();
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(&wasm).unwrap();
    let packed = encoder.finish().unwrap();
    let preparer = preparer(dir.path());
    assert_eq!(prepare(&preparer, &packed), prepare(&preparer, &wasm));
    assert_eq!(preparer.cache_usage().1, 2);
}

#[test]
fn callers_of_one_module_share_its_compilation() {
    let dir = tempfile::tempdir().unwrap();
    let preparer = preparer(dir.path());
    let wasms: Vec<Vec<u8>> = (0..3)
        .map(|n| {
            wat::parse_str(format!("(module (func (export \"canister_update u{n}\")))")).unwrap()
        })
        .collect();
    std::thread::scope(|scope| {
        for n in 0..12 {
            let (preparer, wasm) = (&preparer, &wasms[n % 3]);
            scope.spawn(move || {
                assert_eq!(prepare(preparer, wasm).unwrap().updates, [format!("u{}", n % 3)])
            });
        }
    });
    assert_eq!(preparer.cache_usage().1, 3);
}

fn prepare(preparer: &Preparer, wasm: &[u8]) -> Result<ModuleInfo, NotPrepared> {
    preparer.prepare(&hash(wasm), &wasm, Priority::Round)
}

#[test]
fn a_round_waits_for_no_compilation_that_is_ahead_of_another() {
    let dir = tempfile::tempdir().unwrap();
    let preparer = preparer_with(dir.path(), |config| config.sandbox.compile_threads = 1);
    let (large, small) = (heavy(1_900, 400), heavy(1, 1));
    let ahead = |wasm: &[u8]| preparer.prepare(&hash(wasm), &wasm, Priority::Ahead);
    let runs = || until("a compilation runs", || !preparer.children().is_empty());
    std::thread::scope(|scope| {
        // Another module: the round takes the place.
        let waiting = scope.spawn(|| ahead(&large));
        runs();
        prepare(&preparer, &small).unwrap();
        let ended = waiting.join().unwrap();
        assert!(matches!(ended, Err(NotPrepared::Trouble(_))), "{ended:?}");

        // The same module: the round shares the compilation, and if that is ended does its own.
        let waiting = scope.spawn(|| ahead(&large));
        runs();
        let round = scope.spawn(|| prepare(&preparer, &large));
        preparer.end_ahead();
        assert!(matches!(waiting.join().unwrap(), Err(NotPrepared::Trouble(_))));
        round.join().unwrap().unwrap();
    });
    assert_eq!(ahead(&large), prepare(&preparer, &large), "it is at hand now");
    assert_eq!(preparer.cache_usage().1, 2);
}

struct SingleModuleSource(Vec<u8>);

impl ModuleSource for SingleModuleSource {
    fn module(&self, wanted: &ModuleHash) -> Option<Box<dyn UploadedModule + '_>> {
        (*wanted == hash(&self.0)).then(|| Box::new(self.0.as_slice()) as _)
    }
}

#[test]
fn a_lost_or_damaged_artefact_is_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let wasm = wat::parse_str(r#"(module (func (export "canister_update u")))"#).unwrap();
    prepare(&preparer(dir.path()), &wasm).unwrap();
    let artefact = std::fs::read_dir(dir.path().join("artefacts"))
        .unwrap()
        .map(|file| file.unwrap().path())
        .find(|path| path.extension().unwrap() == "cwasm")
        .unwrap();
    let good = std::fs::read(&artefact).unwrap();
    let mut bad = good.clone();
    bad[good.len() / 2] ^= 1;
    std::fs::write(&artefact, bad).unwrap();

    assert!(
        preparer(dir.path()).open_artefact(&hash(&wasm)).is_err(),
        "without the module there is nothing to make it from"
    );
    let preparer = preparer_with(dir.path(), |config| {
        config.source = Some(Arc::new(SingleModuleSource(wasm.clone())))
    });
    let mut again = Vec::new();
    preparer.open_artefact(&hash(&wasm)).unwrap().read_to_end(&mut again).unwrap();
    assert!(again == good, "compilation is deterministic to the byte");
    assert!(preparer.open_artefact(&ModuleHash([1; 32])).is_err());
}

#[test]
fn an_invalid_module_is_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let preparer = preparer(dir.path());
    let wasm = wat::parse_str(r#"(module (import "env" "abort" (func)))"#).unwrap();
    let Err(NotPrepared::Refused(reject)) = prepare(&preparer, &wasm) else {
        panic!("not refused")
    };
    assert_eq!(
        reject.message,
        "Canister's Wasm module is not valid: import `env.abort`: only functions of module `ic0` \
         can be imported"
    );
    assert_eq!(
        (reject.code, reject.error_code.to_string().as_str()),
        (RejectCode::CanisterError, "IC0505")
    );
    assert!(prepare(&preparer, b"").unwrap_err().to_string().contains("not a WebAssembly binary"));
    assert!(
        prepare(&preparer, &vec![0; 31 << 20])
            .unwrap_err()
            .to_string()
            .contains("`module.wasm_bytes` is 31457280")
    );
    assert_eq!(preparer.cache_usage(), (0, 0));
    assert_eq!(
        std::fs::read_dir(dir.path().join("artefacts")).unwrap().count(),
        0,
        "nothing is left behind"
    );
}

/// Compiles without a cache, with the given caps.
fn compile(wasm: &[u8], caps: Caps) -> Result<CompiledModule, CompileError> {
    compile_under(module_limits(), wasm, caps)
}

fn compile_under(
    module: ModuleLimits,
    wasm: &[u8],
    caps: Caps,
) -> Result<CompiledModule, CompileError> {
    let mut uploaded = tempfile::tempfile().unwrap();
    uploaded.write_all(wasm).unwrap();
    uploaded.rewind().unwrap();
    compiler(module, caps).compile(uploaded, tempfile::tempfile().unwrap(), Priority::Round)
}

fn compiler(module: ModuleLimits, caps: Caps) -> Compiler {
    Compiler {
        exe: host(),
        arguments: vec!["sandbox-compile".into()],
        module,
        caps,
        children: sandbox::Children::default(),
    }
}

fn caps() -> Caps {
    Caps::new(&sandbox_limits())
}

/// Functions that give the optimiser something to do. As text, the larger ones would be 60 MB.
fn heavy(functions: usize, statements: usize) -> Vec<u8> {
    let mut function = Function::new([]);
    for _ in 0..statements {
        for instruction in [
            I::LocalGet(0),
            I::LocalGet(1),
            I::I64Mul,
            I::LocalGet(0),
            I::I32WrapI64,
            I::I64Load(MemArg { offset: 0, align: 3, memory_index: 0 }),
            I::I64Xor,
            I::LocalSet(0),
        ] {
            function.instruction(&instruction);
        }
    }
    function.instruction(&I::LocalGet(0)).instruction(&I::End);
    let mut types = TypeSection::new();
    types.ty().function([ValType::I64, ValType::I64], [ValType::I64]);
    let mut memories = MemorySection::new();
    memories.memory(MemoryType {
        minimum: 1,
        maximum: None,
        memory64: false,
        shared: false,
        page_size_log2: None,
    });
    let (mut declared, mut code) = (FunctionSection::new(), CodeSection::new());
    for _ in 0..functions {
        declared.function(0);
        code.function(&function);
    }
    let mut module = wasm_encoder::Module::new();
    module.section(&types).section(&declared).section(&memories).section(&code);
    module.finish()
}

#[test]
fn each_cap_of_the_compiler_is_held_and_named() {
    let wasm = heavy(400, 400);
    let compiled = compile(&wasm, caps()).unwrap();
    assert!(compiled.artefact_bytes > 100_000 && compiled.wasm_bytes == wasm.len() as u64);
    let memory = compile(&wasm, Caps { room_bytes: 12 << 20, ..caps() }).unwrap_err();
    assert!(matches!(memory, CompileError::OutOfMemory(_)), "{memory}");
    let size = compile(&wasm, Caps { artefact_bytes: 100_000, ..caps() }).unwrap_err();
    assert!(matches!(size, CompileError::TooLarge(100_000)), "{size}");
    let time = compile(&heavy(1_900, 400), Caps { seconds: 1, ..caps() }).unwrap_err();
    assert!(matches!(time, CompileError::OutOfTime(1)), "{time}");
}

// Promise: P1 - The heap of a compilation is file-backed and does not change the artefact.
#[test]
fn the_heap_of_a_compilation_lies_in_a_file_and_changes_no_byte() {
    let wasm = heavy(400, 400);
    let anonymous_bytes = 6 << 20;
    let artefact = |room_bytes| {
        let artefact = tempfile::tempfile().unwrap();
        let caps = Caps { room_bytes, anonymous_bytes, ..caps() };
        let mut uploaded = tempfile::tempfile().unwrap();
        uploaded.write_all(&wasm).unwrap();
        uploaded.rewind().unwrap();
        let compiled = compiler(module_limits(), caps).compile(
            uploaded,
            artefact.try_clone().unwrap(),
            Priority::Ahead,
        );
        let compiled = compiled.unwrap();
        assert!(compiled.resident_bytes_max > 5 * anonymous_bytes, "{compiled:?}");
        assert!(compiled.anonymous_bytes < anonymous_bytes, "{compiled:?}");
        let mut code = Vec::new();
        let mut artefact = artefact;
        artefact.rewind().unwrap();
        artefact.read_to_end(&mut code).unwrap();
        code
    };
    assert_eq!(artefact(256 << 20), artefact(1 << 30));
}

// Promise: P7 - A full disk under a compilation is retried and does not refuse the module.
#[test]
fn a_full_disk_under_the_heap_of_a_compilation_is_trouble_and_no_verdict() {
    let folder = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(folder.path(), "16m") else { return };
    let compile = || {
        let mut uploaded = tempfile::tempfile_in(disk.path()).unwrap();
        uploaded.write_all(&heavy(400, 400)).unwrap();
        uploaded.rewind().unwrap();
        let artefact = tempfile::tempfile().unwrap();
        compiler(module_limits(), caps()).compile(uploaded, artefact, Priority::Round)
    };
    for _ in 0..2 {
        let error = compile().unwrap_err();
        assert!(matches!(error, CompileError::NoDisk(_)), "{error}");
        assert!(error.to_string().contains("free some disk"), "{error}");
        assert!(matches!(NotPrepared::from(error), NotPrepared::Trouble(_)));
    }
    // The written file was deleted with the child, and with enough room the same module compiles.
    assert!(disk.free_bytes() > 15 << 20, "{} bytes", disk.free_bytes());
    disk.resize("512m");
    compile().unwrap();
}

#[test]
fn the_projects_canisters_compile_within_half_of_a_node_s_caps() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../canisters/wasm");
    let mut files: Vec<PathBuf> = std::fs::read_dir(dir)
        .map(|files| files.map(|file| file.unwrap().path()).collect())
        .unwrap_or_default();
    files.retain(|path| {
        path.to_string_lossy().ends_with(".wasm") || path.to_string_lossy().ends_with(".wasm.gz")
    });
    files.sort();
    for path in files {
        let wasm = std::fs::read(&path).unwrap();
        let start = Instant::now();
        let limits = limits::Limits::derive(limits::Limits::smallest_bytes()).unwrap();
        let caps = Caps::new(&limits.sandbox);
        let half = Caps { room_bytes: caps.room_bytes / 2, seconds: caps.seconds / 4, ..caps };
        let compiled = compile_under(limits.module.clone(), &wasm, half)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        println!(
            "{}: {} bytes uploaded, {} unpacked, artefact {}, {} ms of CPU, {:.1} s, {} MiB \
             resident at most, memory64 {}, {} updates, {} queries",
            path.file_name().unwrap().to_string_lossy(),
            wasm.len(),
            compiled.wasm_bytes,
            compiled.artefact_bytes,
            compiled.cpu_millis,
            start.elapsed().as_secs_f32(),
            compiled.resident_bytes_max >> 20,
            compiled.info.memory64,
            compiled.info.updates.len(),
            compiled.info.queries.len(),
        );
    }
}
