//! Runs nodes and other programs under a memory cap, and reports their memory use.
//!
//! * [`cap`]: a command in a memory-capped process group, sampled while it runs, with a series file
//!   and a picture.
//! * [`bench_net`]: cost and speed of such a subnet.
//! * [`net`]: several nodes, each in such a group, as a subnet whose links can be cut and slowed.
//! * [`chaos`]: such a subnet with random faults under client load, and a consistency check of the
//!   client-visible history.
//! * [`machine`]: description of the machine of a measurement, for this and other crates of the
//!   lab.
//! * [`storm`]: a node in such a group under the load driver, with a verdict.
//!
//! Must never know: the insides of a node or of the load driver. Both are programs that it starts,
//! and all data about them comes from their public interfaces and from the kernel.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod bench_net;
pub mod cap;
pub mod chaos;
pub mod machine;
pub mod net;
pub mod storm;
