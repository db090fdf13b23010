//! A canister module between upload and compilation: unpacking, validation, instrumentation.
//!
//! Everything here is a pure function of the bytes and of [`limits::ModuleLimits`]: no clock, no
//! file, no engine. The same module is accepted or refused, with the same text, on every node. It
//! runs inside the compile child, because the bytes come from outside.
//!
//! 1. [`unpack()`] — gunzip under a cap, magic and version.
//! 2. [`validate()`] — WebAssembly validation with the one feature set of [`features`], the
//!    canister rules of the interface specification ("WebAssembly module requirements"), and every
//!    limit. The result is [`ModuleInfo`](crate::ModuleInfo).
//! 3. [`instrument()`] — rewrites the module so that a worker can run every message in a fresh
//!    instance over kept memory and globals.
//!
//! # Instrumented modules
//!
//! An instrumented module imports functions of `ic0` and, when it has a memory,
//! [`RUNTIME_MODULE`]`.`[`WILL_WRITE`]. It exports only
//!
//! - the entry points (`canister_init`, `canister_update <name>` ...) under their own names,
//! - [`MEMORY`] and [`TABLE`], when there are any, whatever the module called them,
//! - [`START`], the function of its `(start)` section, which is gone,
//! - [`INIT_MEMORY`], which applies the data segments that were active, in their order, trapping
//!   where instantiation would have,
//! - its mutable globals, in index order, as [`global_export`]`(0)`, `global_export(1)` ...
//!
//! Other exports of the canister are dropped, so no name of a canister can clash with these. Its
//! functions have the names that its section `name` gives them (`names`); those that were added
//! have an empty name, so that a backtrace can leave them out. Element segments stay active: every
//! instance begins with the table the module describes.

mod bulk;
mod charge;
mod entry;
mod error;
mod instrument;
mod names;
#[cfg(test)]
pub(crate) mod testing;
mod unpack;
mod validate;
mod weight;

use limits::ModuleLimits;

pub(crate) use charge::NOP;
pub use error::ModuleError;
pub use instrument::instrument;
pub(crate) use names::NAME_BYTES_MAX;
pub(crate) use unpack::check_uploaded_bytes;
pub use unpack::{HEAD_BYTES, unpack, unpacked_bytes_max};
pub use validate::{ValidatedModule, validate};

pub use crate::system_api::{IC0_FUNCTIONS, Ic0Function};

/// Counts changes to what modules weigh (`weight.rs`) and to any other rule by which one is
/// refused: nodes that judge modules differently must not be in one subnet.
///
/// Raise it when a module is accepted that was refused before, or the other way round: a new
/// function of the System API, another type or context of one, another weight or bound. Where the
/// same batch may have another state, reply, reject, cost or certified tree also without such a
/// module, raise `execution::RULES_VERSION` too: a field of the state for the function does that.
pub const MODULE_RULES_VERSION: u32 = 3;

/// The whole path: what was uploaded in; what to compile, what was found out, and the size of the
/// unpacked module out.
pub fn process(
    uploaded: &[u8],
    limits: &ModuleLimits,
) -> Result<(Vec<u8>, crate::ModuleInfo, u64), ModuleError> {
    let wasm = unpack(uploaded, limits)?;
    let validated = validate(&wasm, limits)?;
    let instrumented = instrument(&wasm, &validated, limits)?;
    Ok((instrumented, validated.info, wasm.len() as u64))
}

/// Module of the import that instrumentation adds.
pub const RUNTIME_MODULE: &str = "thimble";

/// `thimble.will_write : (dst : I, len : I) -> ()`: called before a bulk memory operation writes
/// `memory[dst..dst+len]`. The callee counts the pages, traps past the cap, and lets an
/// out-of-bounds range pass (the operation itself traps then). `I` is the address type of the
/// memory. Short copies and fills are made of ordinary stores and are not reported.
pub const WILL_WRITE: &str = "will_write";

/// Export: the memory.
pub const MEMORY: &str = "__thimble_memory";

/// Export: table 0.
pub const TABLE: &str = "__thimble_table";

/// Export: `() -> ()`, applies the data segments. Present when the module has active data segments.
pub const INIT_MEMORY: &str = "__thimble_init_memory";

/// Export: `() -> ()`, the module's start function. Present when it has one.
pub const START: &str = "__thimble_start";

/// Export: the `n`th mutable global, counted over mutable globals in index order.
pub fn global_export(n: usize) -> String {
    format!("__thimble_g{n}")
}

/// The WebAssembly a canister may use: the features that are deterministic and that toolchains
/// emit. Threads, exceptions, garbage collection, several memories and relaxed SIMD are not among
/// them, nor are extended constant expressions, because initialisers run unmetered.
pub fn features() -> wasmparser::WasmFeatures {
    use wasmparser::WasmFeatures as F;
    F::MUTABLE_GLOBAL
        | F::SATURATING_FLOAT_TO_INT
        | F::SIGN_EXTENSION
        | F::REFERENCE_TYPES
        | F::MULTI_VALUE
        | F::BULK_MEMORY
        | F::SIMD
        | F::TAIL_CALL
        | F::FLOATS
        | F::MEMORY64
}
