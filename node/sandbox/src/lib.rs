//! The worker process.
mod api;
mod budgeted;
mod cache;
mod compile;
pub mod engine;
mod ipc;
pub mod module;
mod pool;
mod prepare;
mod system_api;
mod worker;
pub use api::*;
pub use budgeted::Budgeted;
pub use cache::{ArtefactCache, CacheError, TemporaryFile};
pub use compile::{Caps, CompileError, Compiled, Compiler, compile_main};
pub use pool::{Pool, PoolError, SandboxConfig, Statistics};
pub use prepare::{ModuleSource, PrepareError, Preparer, PreparerConfig};
pub use worker::{protocol::Probe, worker_main};
