//! Runs nodes, and anything else, under a stated amount of memory, and tells what the memory did.
//!
//! * [`cap`]: a command in a memory-capped process group, sampled while it runs, with a series file and a picture.
//! * [`net`]: several nodes, each in such a group, as a subnet whose links can be cut and slowed.
//! * [`storm`]: a node in such a group, worked on by the load driver, with a verdict.
//!
//! What it must never know: the insides of a node or of the load driver. Both are programs that it starts, and everything it learns of them comes from their
//! public interfaces and from the kernel.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod cap;
mod machine;
pub mod net;
pub mod storm;
