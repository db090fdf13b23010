//! Runs nodes, and anything else, under a stated amount of memory, and tells what the memory did.
//!
//! * [`cap`]: a command in a memory-capped process group, sampled while it runs, with a series file
//!   and a picture.
//! * [`bench_net`]: what such a subnet costs and how fast it is.
//! * [`net`]: several nodes, each in such a group, as a subnet whose links can be cut and slowed.
//! * [`chaos`]: such a subnet, hurt at random while clients work on it, and whether what they were
//!   told can be true.
//! * [`machine`]: what a figure was measured on, for this and other crates of the lab.
//! * [`storm`]: a node in such a group, worked on by the load driver, with a verdict.
//!
//! Must never know: the insides of a node or of the load driver. Both are programs that it starts,
//! and everything it learns of them comes from their public interfaces and from the kernel.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod bench_net;
pub mod cap;
pub mod chaos;
pub mod machine;
pub mod net;
pub mod storm;
