//! Runs nodes in memory-capped process groups (`memory_cap`), and judges what they did.
//!
//! * [`bench_net`]: cost and speed of such a subnet.
//! * [`net`]: several nodes, each in such a group, as a subnet whose links can be cut and slowed.
//! * [`chaos`]: such a subnet with random faults under client load, and a consistency check of the
//!   client-visible history.
//! * [`storm`]: a node in such a group under the load driver, with a verdict.
//!
//! Must never know: the insides of a node or of the load driver. Both are programs that it starts,
//! and all data about them comes from their public interfaces and from the kernel.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod bench_net;
pub mod chaos;
pub mod net;
pub mod storm;
