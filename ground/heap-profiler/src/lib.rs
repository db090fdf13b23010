//! Memory of a running program, by the place that allocated it. It must never know the purpose of
//! the program: the program supplies its name and the list of its own crates.
//!
//! The allocator (jemalloc) draws a sample of allocations, one per number of bytes, and keeps for
//! each the addresses of the functions that led to it. Three parts turn them into a profile:
//!
//! - in the node, [`Sampler`]: starts sampling, bounds its cost, and writes the samples as a
//!   document of addresses, which is small and needs no symbols;
//! - the document ([`document`]): the format sent over HTTP and written to files;
//! - in the command (`thimble heap`), [`command`]: asks a node for its document, names the
//!   addresses by the symbol table of the program's file, and shows sites as a table, JSON, a
//!   profile for `go tool pprof`, or a picture. So a node never pays for symbols.
//!
//! Live bytes are those not freed yet; total bytes are all that were allocated since sampling
//! began, freed or not. Both are estimates: a site with n samples is known to about one part in the
//! square root of n.
//!
//! Two documents of one process are subtracted for what happened between them. jemalloc's own
//! `prof.reset` is not used: while totals are kept it frees nothing of what it had counted, so
//! every reset would cost the node memory that never comes back.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod command;
pub mod document;
mod flame;
mod names;
mod pprof;
mod profile;
mod program;
mod sampler;
mod table;
#[cfg(test)]
mod testing;

pub use command::{Options, Program, run};
pub use sampler::{ANSWER_TIME, ProfileError, Sampler, Settings, off};
