//! State sync: when no peer retains the blocks this node needs, it fetches a state that the subnet
//! certified from peers.
//!
//! ```text
//! behind, nothing delivered for STALL  -> Ask(next height) to all
//!                                      <- Answer(is that block kept?, offer of a state)
//! f+1 do not keep it, an offer holds   -> the driver learns it (Step::Behind)
//! the driver wants chunks              -> Get(height, name) to several peers at once
//!                                      <- Chunk(height, name, bytes), or Not kept
//! the state is whole                   -> the floor is written down, the node starts again on top of it
//! ```
//!
//! # Trust
//!
//! An offer consists of three parts: a certificate, by the subnet's key, of a state tree that shows
//! a manifest's height `C` and root; a block at or just below `C + 1`; and the finalization of that
//! block, by the same key. All are verified before anything is fetched: the engine trusts its new
//! beginning. Chunks are checked by the driver against the root, so a peer that sends an invalid
//! one is detected at once. `f + 1` peers must report that blocks are gone, one of which is honest.
//! An old certified state is valid: the highest valid offer is taken, and if even that is behind
//! the blocks that peers keep, state sync begins again from there.
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
