//! The wall clock, compared with `CLOCK_BOOTTIME`.
//!
//! The wall clock may be set; `CLOCK_BOOTTIME` cannot, and continues during suspension. A wall
//! clock that moves away by more than [`JUMP_BOUND`] has **jumped**: [`SteadyClock`] does not
//! follow it until it is back or has been steady for [`STEADY_FOR`], and continues by
//! `CLOCK_BOOTTIME` from the last good reading. [`ReadingFile`] keeps that reading for the next
//! start of the process, which detects a jump that happened before it. A start of the machine has
//! no earlier reading to compare with.
//!
//! This crate must never know what the time is used for.

mod kept;
mod reading;
mod steady;

pub use kept::ReadingFile;
pub use reading::{ClockReading, Clocks, MachineClocks, wall_ns};
pub use steady::{JUMP_BOUND, Jump, STEADY_FOR, SteadyClock, SteadyTime};
