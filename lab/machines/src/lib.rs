//! Virtual machines that run one node each: their image, their start, their network.
//!
//! * [`image`]: what was built for which role, and where it is.
//! * [`build`]: makes it, of the distribution's kernel package and our binaries.
//! * [`qemu`]: where QEMU is, what it can do here, and the command that starts a machine.
//! * [`qmp`]: its monitor protocol.
//! * [`switch`]: the network between machines.
//! * [`console`], [`lines`]: reads what a machine prints, which may be anything.
//!
//! What it must never know: nets, and what is done with a machine once it runs.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod build;
pub mod console;
pub mod image;
pub mod lines;
pub mod qemu;
pub mod qmp;
pub mod switch;
