//! Virtual machines that run one node each: their image, their start, their network.
//!
//! * [`image`]: what was built for which role, and where it is.
//! * [`build`]: makes it, of the distribution's kernel package and our binaries.
//!
//! What it must never know: nets, and what is done with a machine once it runs.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod build;
pub mod image;
