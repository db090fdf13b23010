//! Virtual machines that run one node each: their image, their start, their network.
//!
//! * [`image`]: the built images by role, and their paths.
//! * [`build`]: makes an image from the distribution's kernel package and our binaries.
//! * [`qemu`]: finds QEMU and its features on this host, and makes the command that starts a
//!   machine.
//! * [`qmp`]: its monitor protocol.
//! * [`switch`]: the network between machines.
//! * [`console`], [`lines`]: reads what a machine prints, which may be anything.
//!
//! Must never know: nets, or the use of a machine once it runs.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod build;
pub mod console;
pub mod image;
pub mod lines;
pub mod qemu;
pub mod qmp;
pub mod switch;
