//! Whether the node is to stop, why it takes no updates, and which errors of the operating system
//! can heal.
//!
//! - [`Stop`]: requested once, by a signal or by an end of the round loop, and never withdrawn. All
//!   waits end when it is requested.
//! - [`Health`]: reasons to refuse updates, one per [`Cause`]. The part that reports a reason
//!   withdraws it, so that a disk that has room again does not hide a round that still waits.
//! - [`StopSignals`]: the signals by which an operator or a service manager requests the stop.
//! - [`can_heal`]: whether the same call may succeed later in the same process.
//!
//! This crate must not know the waiting parts, nor the purpose of their waits.

mod heal;
mod health;
mod signals;
mod stop;

pub use heal::can_heal;
pub use health::{Cause, Health, Reason};
pub use signals::StopSignals;
pub use stop::{Stop, StopFuture};
