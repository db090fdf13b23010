//! Limits of one canister module, and of compiling it.

use accounting::MIB;
use memory_budget::{GRANULE_BYTES, LimitValue, Rules, limit};

use crate::{Limits, SCALE};

// Compilation. Measured peaks: 30 MB for a module of 0.4 MB, 93 MB for 3.4 MB, 184 MB for 6.3 MB.
// The line above all of them is 20 MiB + 28 x module.

const COMPILE_BASE_BYTES: u64 = 20 * MIB;
const COMPILE_BYTES_PER_BYTE: u64 = 28;
/// Memory of the compile child: its size when idle, and the number of copies of the module's bytes.
const COMPILE_REST_BYTES: u64 = 4 * MIB;
const COMPILE_COPIES: u64 = 3;
/// The unit of `module.function_weight` and `module.weight`.
const WEIGHT_UNIT_BYTES: u64 = 256;
/// Instructions charged for compiling a byte of a module, for a unit of its weight, and for judging
/// a byte of one that is refused. By weight it is about what a slow core needs at two instructions
/// a nanosecond.
const COMPILE_INSTRUCTIONS_PER_BYTE: u64 = 6_000;
const COMPILE_INSTRUCTIONS_PER_WEIGHT: u64 = 200_000;
const VALIDATE_INSTRUCTIONS_PER_BYTE: u64 = 500;

/// No module is larger than on the Internet Computer, however much memory there is.
const WASM_UNCOMPRESSED_BYTES_MAX: u64 = 100 * MIB;
const CODE_SECTION_BYTES_MAX: u64 = 11 * MIB;

const _: () = {
    assert!(CODE_SECTION_BYTES_MAX < WASM_UNCOMPRESSED_BYTES_MAX);
    assert!(VALIDATE_INSTRUCTIONS_PER_BYTE < COMPILE_INSTRUCTIONS_PER_BYTE);
    assert!(rows::heap64_bytes.covers(&rows::heap32_bytes));
    assert!(rows::stable_bytes.covers(&rows::heap64_bytes), "a heap can be saved for an upgrade");
    assert!(rows::functions.covers(&rows::exported_functions));
};

memory_budget::limits! {
    SCALE;
    /// Limits on canister modules.
    #[serde(deny_unknown_fields)]
    pub struct ModuleLimits as module of Limits, rules check {
        /// Module as uploaded.
        wasm_bytes: u64 = follows(|limits| limits.module.wasm_uncompressed_bytes), agreed,
            pays within("compile_heaps"),
            reason "follows: a module as uploaded is held while it is compiled";
        /// Module after gunzip.
        wasm_uncompressed_bytes: u64 = follows(largest_module_bytes), agreed,
            pays within("compile_heaps"),
            bounds [
                at_least(GRANULE_BYTES, "no module could be installed; give compilation a \
                                         larger heap (sandbox.compile_memory_bytes)"),
            ],
            reason "follows compile_memory_bytes; never above the Internet Computer's 100 MiB";
        /// Code section of one module.
        code_section_bytes: u64 = follows(largest_code_bytes), agreed,
            pays within("compile_heaps"),
            reason "as on the Internet Computer, where the module may be that large";
        /// Functions, imported and defined.
        functions: u64 = fixed(50_000), agreed,
            bounds [at_least(1, "no module could be installed")],
            reason "interface specification: 50,000";
        /// Size of one function body.
        function_bytes: u64 = fixed(MIB), agreed, pays within("compile_heaps"),
            bounds [at_least(1, "no module could be installed")],
            reason "interface specification: a part of the code section; see function_weight";
        /// Compile weight of one function, in units of 256 bytes of the compile child's memory.
        function_weight: u64 = follows(function_weight), agreed,
            bounds [at_least(1, "no module could be installed")],
            reason "follows compile_memory_bytes; working memory of code generation for one \
                    function, in units of 256 bytes";
        /// Compile weight of the module, in the same units: what stays of every function, its types
        /// and its tables.
        weight: u64 = follows(module_weight), agreed,
            bounds [at_least(1, "no module could be installed")],
            reason "follows compile_memory_bytes; what stays of all functions, types and tables \
                    until the artefact is written, in units of 256 bytes";
        /// Globals that one module defines.
        globals: u64 = fixed(1_000), agreed, bounds [at_least(1, "no module could be installed")],
            reason "interface specification: 1,000; mutable ones are saved after every message";
        /// Table elements, summed over tables.
        table_elements: u64 =
            steps([65_536, 65_536, 65_536, 65_536, 65_536, 262_144, 262_144, 1_000_000, 1_000_000]),
            agreed,
            pays line("worker_buffers", "paused_workers"),
            reason "8 bytes each in every worker; more than all functions of a module";
        /// Tables that one module defines.
        tables: u64 = fixed(4), agreed, bounds [at_least(1, "no module could be installed")],
            reason "languages use one";
        /// Data segments of one module; also the limit for its element segments.
        data_segments: u64 = fixed(10_000), agreed,
            reason "each is applied at the first instantiation";
        /// Custom sections that carry metadata.
        custom_sections: u64 = fixed(16), agreed, reason "interface specification: 16";
        /// Bytes of custom sections of one module.
        custom_sections_bytes: u64 = fixed(MIB), agreed, pays within("custom_sections"),
            reason "interface specification: 1 MiB";
        /// Exported query, update and composite query methods.
        exported_functions: u64 = fixed(1_000), agreed,
            bounds [at_least(1, "no module could be installed")],
            reason "interface specification: 1,000";
        /// Sum of exported method name lengths.
        exported_names_bytes: u64 = fixed(20_000), agreed, pays within("canister_metadata"),
            bounds [at_least(1, "no module could be installed")],
            reason "interface specification: 20,000";
        /// Heap of a 32-bit memory.
        heap32_bytes: u64 = fixed(4 << 30), agreed, pays within("canister_state"),
            bounds [at_most(4 << 30, "32 bits address no more"), pages(64 << 10)],
            reason "what 32 bits address; address space, not memory";
        /// Heap of a 64-bit memory.
        heap64_bytes: u64 = fixed(6 << 30), agreed, pays within("canister_state"),
            bounds [at_most(1 << 44, "a worker's address space holds no more"), pages(64 << 10)],
            reason "as on the Internet Computer; address space, not memory";
        /// Stable memory of one canister.
        stable_bytes: u64 = fixed(500 << 30), agreed, pays within("canister_state"),
            bounds [
                at_most(1 << 43, "a sparse file and a worker's address space hold no more"),
                pages(64 << 10),
            ],
            reason "as on the Internet Computer; a sparse file, not memory";
    }
}

/// The largest module that can be compiled.
fn largest_module_bytes(limits: &Limits) -> u64 {
    let heap = limits.sandbox.compile_memory_bytes;
    let compiled = heap.saturating_sub(COMPILE_BASE_BYTES) / COMPILE_BYTES_PER_BYTE;
    (compiled - compiled % GRANULE_BYTES).min(WASM_UNCOMPRESSED_BYTES_MAX)
}

/// The largest code section of a module of that size.
fn largest_code_bytes(limits: &Limits) -> u64 {
    limits.module.wasm_uncompressed_bytes.min(CODE_SECTION_BYTES_MAX)
}

/// Half of the compile child's memory. The heaviest function alone, and all that stays of functions
/// alone, take that at most; both together, with the largest module, still fit. Weights are those
/// of the worst code there is: real modules take half of theirs or less.
fn half_of_compile_bytes(limits: &Limits) -> u64 {
    (limits.sandbox.compile_memory_bytes / 2).saturating_sub(COMPILE_REST_BYTES)
}

fn function_weight(limits: &Limits) -> u64 {
    half_of_compile_bytes(limits) / 5 * 4 / WEIGHT_UNIT_BYTES
}

fn module_weight(limits: &Limits) -> u64 {
    half_of_compile_bytes(limits) / 20 * 19 / WEIGHT_UNIT_BYTES
}

/// Memory to compile a module, above every measured peak.
fn compile_need_bytes(wasm_uncompressed_bytes: u64) -> u64 {
    wasm_uncompressed_bytes
        .saturating_mul(COMPILE_BYTES_PER_BYTE)
        .saturating_add(COMPILE_BASE_BYTES)
}

/// The most memory that compiling a module of these limits takes.
fn compile_peak_bytes(module: &ModuleLimits) -> u64 {
    let weights =
        module.function_weight.saturating_add(module.weight).saturating_mul(WEIGHT_UNIT_BYTES);
    let copies = module.wasm_uncompressed_bytes.saturating_mul(COMPILE_COPIES);
    COMPILE_REST_BYTES.saturating_add(copies).saturating_add(weights)
}

/// Instructions charged for compiling a module of `wasm_bytes` bytes, unpacked, and of that weight.
pub fn compile_instructions(wasm_bytes: u64, weight: u64) -> u64 {
    let by_size = wasm_bytes.saturating_mul(COMPILE_INSTRUCTIONS_PER_BYTE);
    by_size.saturating_add(weight.saturating_mul(COMPILE_INSTRUCTIONS_PER_WEIGHT))
}

/// Instructions charged for validating a module of at most `wasm_bytes` bytes, unpacked, that is
/// then refused.
pub fn validate_instructions(wasm_bytes: u64) -> u64 {
    wasm_bytes.saturating_mul(VALIDATE_INSTRUCTIONS_PER_BYTE)
}

impl ModuleLimits {
    /// The most that may be charged for a module of at most `wasm_bytes` bytes, unpacked. An
    /// installer must be able to pay it before the module is examined.
    pub fn compile_instructions_max(&self, wasm_bytes: u64) -> u64 {
        compile_instructions(wasm_bytes, self.weight).max(validate_instructions(wasm_bytes))
    }
}

fn check(limits: &Limits, rules: &mut Rules) {
    let uncompressed = limit!(limits.module.wasm_uncompressed_bytes);
    let heap = limit!(limits.sandbox.compile_memory_bytes);
    rules.bounds(limits, &["module.wasm_uncompressed_bytes"]);
    let needed = compile_need_bytes(uncompressed.value());
    rules.within(
        LimitValue::size("20 MiB + 28 x module.wasm_uncompressed_bytes", needed),
        heap,
        "a module that is accepted must compile",
    );
    let peak = compile_peak_bytes(&limits.module);
    rules.within(
        LimitValue::size(
            "4 MiB + 3 x module.wasm_uncompressed_bytes + 256 x (module.function_weight + \
             module.weight)",
            peak,
        ),
        heap,
        "whether a module is accepted must never depend on how much memory compiling it happens \
         to take",
    );
    let wasm = limit!(limits.module.wasm_bytes);
    rules.within(wasm, uncompressed, "gzip never makes a module larger");
    let code = limit!(limits.module.code_section_bytes);
    rules.within(code, uncompressed, "a section is a part of the module");
    rules.within(
        limit!(limits.module.function_bytes),
        LimitValue::size(
            "module.wasm_uncompressed_bytes (or 1 MiB)",
            uncompressed.value().max(MIB),
        ),
        "a function is a part of the module",
    );
    rules.within(
        limit!(limits.module.custom_sections_bytes),
        limit!(limits.subnet.wasm_custom_sections_bytes),
        "one module's sections must fit into what all modules may have",
    );
    rules.within(
        limit!(limits.module.exported_functions),
        limit!(limits.module.functions),
        "every exported method is a function",
    );
}
