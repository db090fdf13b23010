//! State sync: when no peer retains the blocks this node needs, it fetches a state that the subnet
//! certified from peers. `docs/internals/state-sync.md` has the steps, and why they are trusted.
//!
//! All parts of an offer are verified before anything is fetched, because the engine trusts its new
//! beginning. `f + 1` peers must report that blocks are gone, one of which is honest.
//!
//! # Bounds
//!
//! One round of questions at a time, one answer per member; an answer is a block and two
//! certificates. A peer's question is answered twice a second at most. Chunks: see [`serve`] and
//! [`fetch`].

mod actor;
mod config;
mod fetch;
mod floor;
mod ingress;
mod serve;

#[cfg(test)]
pub(super) use self::ingress::samples;
pub(super) use self::{
    actor::StateSync,
    config::{Config, FLOOR_DEPTH},
    floor::{Floor, path as floor_path},
    ingress::{Command, SyncTarget, decodes},
};
