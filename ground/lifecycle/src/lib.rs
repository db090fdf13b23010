//! Whether the node is to stop, why it takes no updates, and which errors of the operating system
//! can heal.
//!
//! - [`Stop`]: asked for once, by a signal or by an end of the round loop, and never taken back.
//!   Whoever waits for anything ends that wait when it comes.
//! - [`Health`]: reasons to refuse updates, one per [`Cause`]. Whoever reports one withdraws it, so
//!   that a disk that has room again does not hide a round that still waits.
//! - [`StopSignals`]: the signals by which an operator or a service manager requests the stop.
//! - [`can_heal`]: whether the same call may succeed later in the same process.
//!
//! This crate must not know who waits, or for what.

mod heal;
mod health;
mod signals;
mod stop;

pub use heal::can_heal;
pub use health::{Cause, Health, Reason};
pub use signals::StopSignals;
pub use stop::{Closed, Stop};
