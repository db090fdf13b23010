//! The workbench: one canister with a method for everything that a replica must survive. Tests and
//! load drivers call it; it knows nothing of them.
//!
//! Every method does one thing and documents its result, so that a test can state the right answer
//! beforehand. State falls in three places on purpose: plain heap values that survive an upgrade
//! because [`state`] saves them in stable memory, stable memory that the caller addresses directly
//! ([`memory`]), and a bulk heap region that an upgrade loses ([`memory`]).
//!
//! - [`state`]: counter, text, certified value, upgrade hooks
//! - [`memory`]: fill, read and grow stable memory and heap
//! - [`compute`]: instructions, traps, rejects, the environment that the System API reports
//! - [`calls`]: calls to other canisters, chains, fan-out, cleanup, cycles
//! - [`timers`]: one-shot and repeating timers

mod calls;
mod compute;
mod memory;
mod state;
mod timers;

#[cfg(feature = "interface")]
mod interface {
    //! Exports the Candid text that build.sh embeds; left out of the canister itself, whose size it
    //! would double.

    // The types that the exported interface names.
    use crate::calls::{CallResult, CleanupReport, FanoutReport};
    use crate::compute::Environment;
    use candid::{Nat, Principal};
    use serde_bytes::ByteBuf;

    ic_cdk::export_candid!();
}
