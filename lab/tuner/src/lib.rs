//! `thimble-lab tune` and `thimble-lab watch`: the settings of a program's runtime with which it needs
//! the least memory and keeps its own deadline, and what a running program does with its memory.
//!
//! * [`gc`]: what garbage collectors say of themselves while they run.
//! * [`recognise`]: which runtime and which allocator a program has.
//! * [`watch`]: a running program's memory and collections, and what is wrong with them.
//!
//! What bounds it: every run, every list of settings and every log by the limits in the modules.
//! What it must never know: what the program is for.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod gc;
pub mod recognise;
pub mod watch;
