//! Calls between nodes: offered to all peers when a client submits one, requested when a block
//! names one that did not arrive.
//!
//! A call normally crosses each wire once. A call offered by a peer is verified like a client's,
//! and is put into the ingress pool, of which each peer gets at most its share. A call that a block
//! names and no peer offered is requested, and kept in a separate store for requested calls only:
//! so a full pool never keeps a node from voting, and a peer cannot fill the store with calls that
//! were not requested.
//!
//! A block names the digest of one envelope ([`super::block::CallName`]). A node with another
//! envelope of the same request, because a client sent several, lacks the call and requests it.
//! Calls are hashed on arrival and verified once, off the threads that vote: a peer that states one
//! digest and sends other bytes is cut off, and the call is requested from the others. Whether a
//! call may be in a block depends on its bytes and the block's time alone, so all voters reach the
//! same verdict.
//!
//! Calls of a block that is voted for are on disk first (see [`super::journal`]).
//!
//! # Bounds
//!
//! The pool by its limits; the store by [`config::STORE_BLOCKS`] blocks in bytes and calls; what is
//! wanted by the blocks being gathered, and by as many calls as the store has room for; a message
//! by [`config::OFFER_BYTES`] or one call, by [`config::OFFER_CALLS_MAX`] calls and
//! [`config::WANT_MAX`] names, checked while it is decoded. Per peer and second ([`super::peers`]):
//! calls and bytes offered, by [`config::OFFER_BLOCKS`] blocks, which this node keeps to as well;
//! bytes given that were not asked for; names asked for and bytes answered. Messages beyond these
//! rates are ignored, and a peer that keeps exceeding them is cut off. Offers are decoded, counted
//! and compared with the room their sender has in the pool before a signature is verified; a call
//! with an invalid signature is its sender's fault, as nodes must verify calls before they forward
//! them. Old blocks are read for peers on a dedicated thread, from a queue of
//! [`config::OLD_WAITING`] requests, [`config::OLD_WAITING_PER_PEER`] of each peer.

mod actor;
mod config;
mod ingress;
mod old_blocks;
mod store;

#[cfg(test)]
pub(super) use self::ingress::samples;
pub(super) use self::{
    actor::{Calls, JournalError, PeerNumbers, start},
    config::Config,
    ingress::Message,
    store::GatheredCall,
};
