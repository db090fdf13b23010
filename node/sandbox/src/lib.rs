//! The worker process.
mod api;
mod cache;
mod compile;
pub mod engine;
pub mod module;
mod prepare;
pub use api::*;
pub use cache::{ArtefactCache, CacheError, TemporaryFile};
pub use compile::{Caps, CompileError, Compiled, Compiler, compile_main};
pub use prepare::{ModuleSource, PrepareError, Preparer, PreparerConfig};
