//! Isolated execution of canister code: in worker processes that hold only what a message needs.
//!
//! - [`Sandbox`] and the types around it ([`Request`], [`Outcome`]) are what execution sees.
//! - [`Preparer`] turns an uploaded module into an artefact: validated and instrumented
//!   ([`module`]), compiled in a short-lived child, kept on disk. [`engine`] is the one
//!   configuration that both sides of it share.
//! - [`Pool`] keeps the workers and implements [`Sandbox`]; [`worker_main`] describes a worker and
//!   its permissions.
//!
//! The crate knows nothing of consensus, queues or the state tree; all data that a canister may
//! read comes in with its message.

mod api;
mod budgeted;
mod cache;
mod compile;
pub mod engine;
pub mod fuzz;
mod ipc;
mod mapped_file;
pub mod module;
mod pool;
mod prepare;
mod slices;
mod system_api;
mod system_calls;
mod worker;
pub use api::*;
pub use budgeted::BudgetedSandbox;
pub use cache::{ArtefactCache, CacheError, TemporaryFile};
pub use compile::{
    Caps, Children, CompileError, CompiledModule, Compiler, Priority, compile_main,
    compile_probe_main,
};
pub use pool::{Pool, PoolError, SandboxConfig, Statistics, WorkerFigures};
pub use prepare::{ModuleSource, PrepareError, Preparer, PreparerConfig};
pub use slices::{Grant, MESSAGE_OVERHEAD_INSTRUCTIONS, Progress, Slice, SlicedName};
pub use worker::{HeapFigures, protocol::Probe, worker_main, worker_main_with};

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks what a panic of its holder leaves consistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
