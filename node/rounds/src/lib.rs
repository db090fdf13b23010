//! The round loop: batches from consensus through execution back to certificates, checkpoints in
//! between.
//!
//! One loop for the node and for the simulation (`tests/it/simulation`), over any consensus: it is
//! generic in the [`Replica`] that executes, in the [`Clock`], in the [`DiskProbe`] that reports
//! free space and in the [`Observer`]. A node runs it on a dedicated thread that blocks while it
//! waits.
//!
//! Transient faults of this machine (a full disk, too many open files, no permission) are retried,
//! with waits that double up to ten seconds; meanwhile new updates are refused with the reason.
//! Permanent faults (a damaged store, a device that reports errors, a record that cannot be
//! encoded, a state root other than the recorded one) end the loop with the reason.
//!
//! This crate must not know what a message means, how blocks are agreed on, or what a metric is.

mod backoff;
mod clock;
mod disk;
mod driver;
mod error;
mod observer;
mod pace;
mod replica;
mod state_sync;
mod states;

pub use clock::{Clock, MachineClock};
pub use disk::{DiskProbe, Volume};
pub use driver::{Driver, DriverExit, Settings};
pub use error::RoundError;
pub use observer::{Observer, Round};
pub use replica::{HistoryCapacity, Installation, Installer, OfferOutcome, Replica};
pub use states::{ExecutorQueries, States};
