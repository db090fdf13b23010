//! The one wasmtime configuration of a subnet, for the compile child and every worker.
//!
//! - **The code does not depend on the machine.** The target is a baseline instruction set instead
//!   of the host's, so that every node of one architecture compiles a module to the same bytes.
//!   Stack frames then have the same sizes everywhere, and a canister that recurses too deep
//!   overflows at the same depth.
//! - **Whatever changes code, fuel or the meaning of an artefact is in [`version`].** Artefacts
//!   carry it in their name; another version is never loaded. A worker may add to the configuration
//!   what does not change code: its memory creator, its signal handler.
//!
//! This module must not know about limits, files or processes.

use std::fs::File;
use std::hash::{Hash, Hasher};
use std::num::NonZeroUsize;
use std::sync::OnceLock;

use sha2::{Digest, Sha256};
use wasmtime::{
    Config, Engine, Inlining, Module, ModuleVersionStrategy, OperatorCost, OptLevel, WasmFeatures,
};

use crate::module;

/// Stack a canister may use. A worker runs canisters on a thread with at least this much and
/// [`HOST_STACK_BYTES`] below it; the kernel commits only what is touched.
pub const WASM_STACK_BYTES: usize = 4 << 20;

/// Stack left for host functions under a canister that used all of its own.
pub const HOST_STACK_BYTES: usize = 1 << 20;

/// Address space of a heap: the memory creator of a worker reserves this much, inaccessible beyond
/// the heap's size, and [`HEAP_GUARD_BYTES`] behind it. A 32-bit heap then needs no bounds checks
/// at all; a 64-bit one is checked against this constant and can never be larger, whatever
/// `module.heap64_bytes` says.
pub const HEAP_RESERVATION_BYTES: u64 = 8 << 30;

/// Inaccessible bytes behind the reservation of a heap, of either width: accesses with a constant
/// offset below this are checked once or not at all.
pub const HEAP_GUARD_BYTES: u64 = 32 << 20;

/// Frames of a backtrace, innermost first; as many as on the public network.
pub(crate) const BACKTRACE_FRAMES_MAX: usize = 20;

/// Counts changes to [`module::instrument`](crate::module) and to the table of instruction costs
/// that the other inputs of [`version`] do not show, and to the names in backtraces.
const INSTRUMENTATION_VERSION: u32 = 5;

/// The configuration. Identical for compiling and for running.
pub fn config() -> wasmtime::Result<Config> {
    let mut config = Config::new();
    config.target(TARGET)?;
    for flag in TARGET_FLAGS {
        // SAFETY: the flags only name instruction set extensions of the target; the engine refuses
        // to load code whose extensions the host lacks.
        unsafe {
            config.cranelift_flag_enable(flag);
        }
    }
    let features = module::features();
    config.wasm_features(features, true);
    config.wasm_features(WasmFeatures::all().difference(features), false);

    // Results must be the same on every machine.
    config.cranelift_nan_canonicalization(true);
    config.cranelift_opt_level(OptLevel::Speed);
    config.consume_fuel(true);
    config.operator_cost(costs());
    config.max_wasm_stack(WASM_STACK_BYTES);
    config.async_stack_size(WASM_STACK_BYTES + HOST_STACK_BYTES);

    // Memories never move: a worker reserves address space for all a heap may become and maps files
    // into it.
    config.memory_may_move(false);
    config.memory_reservation(HEAP_RESERVATION_BYTES);
    config.memory_guard_size(HEAP_GUARD_BYTES);
    config.memory_reservation_for_growth(0);
    // Data segments are applied by instrumented code, so there is no image to map.
    config.memory_init_cow(false);

    // Artefacts carry code, trap sites and names of functions, nothing for debuggers. A backtrace
    // has one frame for each function that was called and has not returned: none is inlined, and
    // the frame pointers by which it is read are always kept.
    config.generate_address_map(false);
    config.debug_symbols(false);
    config.native_unwind_info(false);
    config.compiler_inlining(Inlining::No);
    config.wasm_backtrace_max_frames(NonZeroUsize::new(BACKTRACE_FRAMES_MAX));
    config.module_version(ModuleVersionStrategy::Custom(format!(
        "thimble-{INSTRUMENTATION_VERSION}-wasmtime-{WASMTIME_VERSION}"
    )))?;
    Ok(config)
}

/// An engine with [`config`].
pub fn engine() -> wasmtime::Result<Engine> {
    Engine::new(&config()?)
}

/// Names everything that an artefact depends on in addition to its module and the limits: 16
/// hexadecimal digits.
pub fn version() -> wasmtime::Result<&'static str> {
    static VERSION: OnceLock<String> = OnceLock::new();
    if let Some(version) = VERSION.get() {
        return Ok(version);
    }
    let mut hasher = Sha256Hasher(Sha256::new());
    INSTRUMENTATION_VERSION.hash(&mut hasher);
    WASMTIME_VERSION.hash(&mut hasher);
    module::MODULE_RULES_VERSION.hash(&mut hasher);
    engine()?.precompile_compatibility_hash().hash(&mut hasher);
    let digest = hasher.0.finalize();
    let version = hex::encode(&digest[..8]);
    Ok(VERSION.get_or_init(|| version))
}

/// The engine settings that a result depends on, for nodes to compare: descriptive names with a
/// number each. Two nodes with the same list run a canister to the same result, down to the
/// instruction counted and the depth at which a stack overflows.
///
/// Nothing of the processor is among them: code is generated for one baseline of an architecture
/// (see [`config`]), never for what the host has beyond it, and an engine refuses to start on a
/// host that lacks it. The architecture is in the name of the target: frames have other sizes on
/// another.
pub fn agreed() -> Result<Vec<(String, u64)>, crate::PrepareError> {
    let version = version().map_err(|error| crate::PrepareError::Engine(format!("{error:#}")))?;
    let version = u64::from_str_radix(version, 16).unwrap_or_default();
    Ok(vec![
        (format!("engine.wasmtime {WASMTIME_VERSION} for {TARGET}"), version),
        ("engine.instrumentation".to_owned(), u64::from(INSTRUMENTATION_VERSION)),
        ("engine.module_rules".to_owned(), u64::from(module::MODULE_RULES_VERSION)),
        ("engine.stack_bytes".to_owned(), WASM_STACK_BYTES as u64),
    ])
}

/// Maps the artefact in `file` and returns its module. Nothing is copied: code pages belong to the
/// file and the kernel may take them back.
///
/// Needs no path and opens nothing, so it works inside a worker's filter; the descriptor may be
/// closed afterwards.
///
/// # Errors
///
/// When the file is not an artefact of this very engine.
///
/// # Safety
///
/// The file holds, unchanged, the artefact that `crate::compile` wrote, and is not written to
/// while the module lives. An artefact is machine code: the cache verifies its checksum before it
/// hands out a descriptor.
pub unsafe fn load(engine: &Engine, file: &File) -> wasmtime::Result<Module> {
    let file = file.try_clone()?;
    // SAFETY: forwarded to the caller.
    unsafe { Module::deserialize_open_file(engine, file) }
}

const WASMTIME_VERSION: &str = "48.0.8";

#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
const TARGET: &str = "x86_64-unknown-linux-gnu";
#[cfg(all(target_arch = "x86_64", target_env = "musl"))]
const TARGET: &str = "x86_64-unknown-linux-musl";
#[cfg(all(target_arch = "aarch64", target_env = "gnu"))]
const TARGET: &str = "aarch64-unknown-linux-gnu";
#[cfg(all(target_arch = "aarch64", target_env = "musl"))]
const TARGET: &str = "aarch64-unknown-linux-musl";

/// x86-64-v2, which every server processor of the last fifteen years has, and which the SIMD
/// instructions of WebAssembly need.
#[cfg(target_arch = "x86_64")]
const TARGET_FLAGS: &[&str] =
    &["has_sse3", "has_ssse3", "has_sse41", "has_sse42", "has_popcnt", "has_cmpxchg16b"];
#[cfg(not(target_arch = "x86_64"))]
const TARGET_FLAGS: &[&str] = &[];

/// Costs of instructions. One unit is about the time of an integer addition; the rest is in
/// proportion, so that a limit in instructions bounds time. Operations over a range cost in
/// proportion to it.
fn costs() -> OperatorCost {
    let mut cost = OperatorCost::new();
    macro_rules! set {
        ($value:literal: $($operator:ident)*) => { $(cost.$operator = $value;)* };
    }
    // Generates no code: what instrumentation charges by, see `module::charge`.
    cost.Nop = module::NOP as u8;
    set!(2: MemorySize TableSize GlobalSet V128Load V128Store V128Const);
    set!(2: V128Load8x8S V128Load8x8U V128Load16x4S V128Load16x4U V128Load32x2S V128Load32x2U);
    set!(2: V128Load8Lane V128Load16Lane V128Load32Lane V128Load64Lane V128Store8Lane V128Store16Lane V128Store32Lane V128Store64Lane);
    set!(3: BrTable);
    // A call also saves and restores registers, checks the stack and the fuel. Processors predict
    // where the innermost few return to, and no others.
    set!(14: Call);
    set!(5: ReturnCall);
    // The first access to an element of a table is a call into the runtime.
    set!(40: CallIndirect ReturnCallIndirect);
    // Integer division is not pipelined.
    set!(10: I32DivS I32DivU I32RemS I32RemU I64DivS I64DivU I64RemS I64RemU);
    // Floating point results are made canonical.
    set!(4: F32Add F32Sub F32Min F32Max F64Add F64Sub F64Min F64Max);
    set!(4: F32Ceil F32Floor F32Trunc F32Nearest F64Ceil F64Floor F64Trunc F64Nearest);
    set!(3: F32ConvertI32S F32ConvertI32U F32ConvertI64S F32ConvertI64U);
    set!(3: F64ConvertI32S F64ConvertI32U F64ConvertI64S F64ConvertI64U);
    // Many processors take a hundred cycles for subnormal numbers.
    set!(20: F32Mul F64Mul F32DemoteF64 F64PromoteF32);
    set!(12: I32TruncF32S I32TruncF32U I32TruncF64S I32TruncF64U I64TruncF32S I64TruncF32U I64TruncF64S I64TruncF64U);
    set!(8: I32TruncSatF32S I32TruncSatF32U I32TruncSatF64S I32TruncSatF64U I64TruncSatF32S I64TruncSatF32U I64TruncSatF64S I64TruncSatF64U);
    set!(24: F32Div F32Sqrt F64Div F64Sqrt);
    set!(4: F32x4Add F32x4Sub F32x4PMin F32x4PMax F64x2Add F64x2Sub F64x2PMin F64x2PMax);
    set!(8: F32x4Min F32x4Max F64x2Min F64x2Max);
    set!(20: F32x4Mul F64x2Mul F32x4DemoteF64x2Zero F64x2PromoteLowF32x4);
    set!(4: F32x4Ceil F32x4Floor F32x4Trunc F32x4Nearest F64x2Ceil F64x2Floor F64x2Trunc F64x2Nearest);
    set!(8: I32x4TruncSatF32x4S I32x4TruncSatF32x4U I32x4TruncSatF64x2SZero I32x4TruncSatF64x2UZero);
    set!(6: F32x4ConvertI32x4S F32x4ConvertI32x4U F64x2ConvertLowI32x4S F64x2ConvertLowI32x4U);
    set!(28: F32x4Div F32x4Sqrt F64x2Div F64x2Sqrt);
    // Without wider extensions these are several instructions each.
    set!(6: I64x2Mul I64x2ShrS I8x16Shl I8x16ShrS I8x16ShrU I8x16Popcnt I8x16Shuffle I8x16Swizzle);
    set!(2: I16x8Q15MulrSatS I8x16LtU I8x16LeU I8x16GtU I8x16GeU I16x8LtU I16x8LeU I16x8GtU I16x8GeU I32x4LtU I32x4LeU I32x4GtU I32x4GeU);
    set!(2: I16x8ExtAddPairwiseI8x16S I16x8ExtAddPairwiseI8x16U I32x4ExtAddPairwiseI16x8S I32x4ExtAddPairwiseI16x8U);
    set!(2: I16x8ExtMulLowI8x16S I16x8ExtMulHighI8x16S I16x8ExtMulLowI8x16U I16x8ExtMulHighI8x16U I32x4ExtMulLowI16x8S I32x4ExtMulHighI16x8S I32x4ExtMulLowI16x8U I32x4ExtMulHighI16x8U I64x2ExtMulLowI32x4S I64x2ExtMulHighI32x4S I64x2ExtMulLowI32x4U I64x2ExtMulHighI32x4U);
    // The first access to an element is a call into the runtime.
    set!(50: TableGet);
    set!(5: TableSet);
    // A call into the runtime each time, which looks the function up.
    set!(200: RefFunc);
    // Calls into the runtime; what they work on costs per byte or element, see below.
    set!(20: MemoryCopy MemoryFill MemoryInit TableCopy TableFill TableInit DataDrop ElemDrop);
    set!(200: MemoryGrow TableGrow);
    cost.variable.memory_grow_per_page = 4;
    cost.variable.table_grow_per_element = 2;
    cost.variable.table_copy_per_element = 4;
    cost.variable.table_init_per_element = 4;
    cost
}

/// Feeds a `Hash` into SHA-256, because the standard hashers promise nothing across builds.
struct Sha256Hasher(Sha256);

impl Hasher for Sha256Hasher {
    fn finish(&self) -> u64 {
        // Only the digest is ever used.
        0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_configuration_makes_an_engine_and_has_one_version() {
        engine().unwrap();
        assert_eq!(version().unwrap(), version().unwrap());
        assert_eq!(version().unwrap().len(), 16);
    }

    #[test]
    fn nodes_compare_what_results_depend_on() {
        let agreed = agreed().unwrap();
        let names: Vec<_> =
            agreed.iter().map(|(name, _)| name.split(' ').next().unwrap()).collect();
        assert_eq!(
            names,
            [
                "engine.wasmtime",
                "engine.instrumentation",
                "engine.module_rules",
                "engine.stack_bytes"
            ]
        );
        assert_eq!(format!("{:016x}", agreed[0].1), version().unwrap());
    }

    /// Units that a function takes.
    fn counted(module: &str) -> u64 {
        let engine = engine().unwrap();
        let module = Module::new(&engine, wat::parse_str(module).unwrap()).unwrap();
        let mut store = wasmtime::Store::new(&engine, ());
        store.set_fuel(1_000_000).unwrap();
        let instance = wasmtime::Instance::new(&mut store, &module, &[]).unwrap();
        let f = instance.get_typed_func::<(), ()>(&mut store, "f").unwrap();
        f.call(&mut store, ()).unwrap();
        1_000_000 - store.get_fuel().unwrap()
    }

    #[test]
    fn what_calls_into_the_runtime_counts_as_much_and_elements_count_each() {
        let module = |body: &str| {
            format!(
                "(module (table $t 2000 funcref) (elem declare func $f) (func $f (export \"f\") \
                 {body}))"
            )
        };
        let nothing = counted(&module(""));
        let cost = |body: &str| counted(&module(body)) - nothing;
        assert!(cost("(drop (ref.func $f))") >= 200);
        let copied = |elements: u32| {
            cost(&format!("(table.copy (i32.const 0) (i32.const 1000) (i32.const {elements}))"))
        };
        assert_eq!(copied(1_000) - copied(0), 4_000);
    }

    #[test]
    fn an_endless_loop_of_anything_runs_out_of_fuel() {
        let engine = engine().unwrap();
        for body in ["(loop br 0)", "(loop (br_if 0 (i32.const 1)))", "(return_call 0)", "(call 0)"]
        {
            let wasm = wat::parse_str(format!("(module (func (export \"f\") {body}))")).unwrap();
            let module = Module::new(&engine, wasm).unwrap();
            let mut store = wasmtime::Store::new(&engine, ());
            store.set_fuel(10_000).unwrap();
            let instance = wasmtime::Instance::new(&mut store, &module, &[]).unwrap();
            let f = instance.get_typed_func::<(), ()>(&mut store, "f").unwrap();
            let trap = f.call(&mut store, ()).unwrap_err().downcast::<wasmtime::Trap>().unwrap();
            assert_eq!(trap, wasmtime::Trap::OutOfFuel, "{body}");
        }
    }
}
