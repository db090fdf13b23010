//! Every limit of the relay in one typed table, derived from one number: how much memory it may
//! take.
//!
//! Every limit is one row ([`memory_budget::limits!`]) in the file of its group. [`Limits::derive`]
//! turns a memory size into a whole table. [`Limits::apply_overrides`] applies the operator's own
//! values. [`Limits::sheet`] lists the memory that the table takes, line by line, and
//! [`Limits::check`] refuses a table that does not add up or contradicts itself. [`Limits::ledger`]
//! makes the memory pools; their names are in [`pool`]. The common parts of the tables of all
//! programs are in the crate `memory-budget`.
//!
//! # Where 128 MiB go
//!
//! Given: an idle process takes less than 8 MiB of anonymous memory; an idle connection (noise and
//! yamux) takes at most 40 KiB; a message at most 150 KiB, a gossip frame at most 214 KiB. Where a
//! network has larger messages, up to 1 MiB, the pools that are too small for four of them grow. A
//! payload is stored once, in a file, so queues hold references of [`REFERENCE_BYTES`]: a reference
//! and the SHA-256 of its message.
//!
//! * **A connection** is 40 KiB, so 256 of them are 10 MiB. Streams are expensive: each may hold
//!   [`STREAM_BYTES`] while protocols are negotiated and a request is served, so open streams are
//!   bounded over all connections, 1,024 in 4 MiB. Received bytes that were not read yet are
//!   bounded for one connection by a little more than the largest frame, as no frame could be
//!   received otherwise, and for all by the pool `unread`, 6 MiB.
//! * **Flow of payloads.** 1,000 messages of 150 KiB a second are 150 MB/s. A frame of that size
//!   arrives over a local link within a few milliseconds, so 8 MiB of `receiving` are some fifty at
//!   once; the writer that appends them to the log needs a batch of some milliseconds, so 8 MiB of
//!   `appending` are fifty milliseconds of the largest flow: a writer that is slower than that is a
//!   slow disk, and pushes are refused. Sending holds a chunk of 16 KiB per stream that takes
//!   bytes, not a message: 4 MiB are 256 streams that are written at once.
//! * **References.** 8,000 small messages a second leave 64 KiB of references in a queue after an
//!   eighth of a second. Pools of 3 MiB for gossip and 4 MiB for filter pushes are 48 Ki and 64 Ki
//!   references: eight receivers that all lag behind by a whole second of that flow, or 128 by 64
//!   ms. A queue may be longer than its receiver's share of the pool, as most receivers lag little.
//! * **Seen messages.** 250 a second for 120 s, and half as long again until a generation of ids
//!   leaves, are 45,000 ids. A hash set of 32-byte ids takes 38 to 75 bytes for each, as it doubles
//!   when it is full, and 113 while it does; of three generations one grows: [`SEEN_BYTES`]. 64 Ki
//!   entries are 6 MiB. In a flood the oldest leave early, and a message that returns after that is
//!   accepted again.
//! * **The kernel** charges sockets to the control group. A peer that does not read lets its socket
//!   fill, so sockets get explicit buffer sizes: at 64 KiB, doubled by the kernel for its own
//!   structures, 64 of 256 peers that do not read are 8 MiB; page tables, threads and idle sockets
//!   take the rest of 12 MiB.
//! * **Page cache.** Some 6 MiB of code run hot; the rest of 20 MiB are pages of the log that are
//!   written and sent a moment later, a tenth of a second of the largest flow. With less the kernel
//!   writes back sooner and senders wait for the disk; nothing fails.
//!
//! All lines but the kernel's two sum to less than 96 MiB: that is the most that a flood that fills
//! every pool can take. A larger budget is shared between more peers and receivers, which may be
//! later.
//!
//! Bounds: the table has a fixed number of fields, the sheet a fixed number of lines.
//!
//! It must never know how any limit is enforced. It is arithmetic over numbers and names; it reads
//! no file, no clock and no machine.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod client;
mod connections;
mod filter;
mod gossip;
mod governor;
mod http;
mod large_messages;
mod light_push;
mod messages;
mod peers;
pub mod pool;
mod process;
mod rln;
mod roots;
mod store;
mod sync;
mod table;

pub use client::{CLIENT_REQUEST_BYTES, ClientLimits};
pub use connections::{ConnectionLimits, STREAM_BYTES};
pub use filter::{CRITERION_BYTES, FilterLimits};
pub use gossip::{
    GOSSIP_ID_BYTES, GOSSIP_PEER_BYTES, GOSSIP_TOPIC_BYTES, GossipLimits, HISTORY_BYTES,
    REFERENCE_BYTES, SEEN_BYTES,
};
pub use governor::GovernorLimits;
pub use http::{
    HTTP_CONNECTION_BYTES, HTTP_TOPIC_BYTES, HTTP_TOPIC_MESSAGES, HTTP_TOPIC_NAMES, HttpLimits,
};
pub use light_push::{LightPushLimits, REQUEST_BYTES};
pub use memory_budget::{LimitsError, LineKind, Preset, Sheet, SheetLine, Violation, Violations};
pub use messages::MessageLimits;
pub use peers::{PEER_BYTES, PeerLimits};
pub use process::ProcessLimits;
pub use rln::{RLN_NULLIFIER_BYTES, RLN_PENDING_BYTES, RLN_PROOF_BYTES, RlnLimits};
pub use roots::RootsLimits;
pub use store::{INDEX_CONNECTION_BYTES, INDEX_ROW_BYTES, QUERY_BYTES, StoreLimits};
pub use sync::{SYNC_SESSION_BYTES, SyncLimits};
pub(crate) use table::SCALE;
pub use table::{Limits, PRESETS};

#[cfg(test)]
mod tests;
