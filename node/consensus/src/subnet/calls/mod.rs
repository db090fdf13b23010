//! Calls between nodes: offered to all peers when a client submits one, requested when a block
//! names one that did not arrive.
//!
//! A call offered by a peer is verified like a client's, and is put into the ingress pool, of which
//! each peer gets at most its share. A requested call is kept in a separate store for requested
//! calls only: so a full pool never keeps a node from voting, and a peer cannot fill the store with
//! calls that were not requested. Calls are hashed on arrival and verified once, off the threads
//! that vote; those of a block that is voted for are on disk first (see [`super::journal`]).
//!
//! # Bounds
//!
//! The pool by its limits; the store by [`config::STORE_BLOCKS`] blocks in bytes and calls; what is
//! wanted by the blocks being gathered, and by as many calls as the store has room for; a message
//! by [`config::OFFER_BYTES`] or one call, by [`config::OFFER_CALLS_MAX`] calls and
//! [`config::WANT_MAX`] names, checked while it is decoded. Per peer and second ([`super::peers`]):
//! calls and bytes offered, by [`config::OFFER_BLOCKS`] blocks, which this node keeps to as well;
//! bytes given that were not asked for; names asked for and bytes answered. Offers are decoded,
//! counted and compared with the room their sender has in the pool before a signature is verified.
//! Old blocks are read for peers on a dedicated thread, from a queue of [`config::OLD_WAITING`]
//! requests, [`config::OLD_WAITING_PER_PEER`] of each peer.

mod actor;
mod config;
mod ingress;
mod old_blocks;
mod store;

#[cfg(test)]
pub(super) use self::ingress::samples;
pub(super) use self::{
    actor::{Calls, PeerNumbers, start},
    config::Config,
    ingress::Message,
    store::GatheredCall,
};
