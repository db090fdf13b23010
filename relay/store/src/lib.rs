//! The relay's messages on disk: a segment log and its index. `docs/internals/relay.md` describes
//! files, threads and recovery.
//!
//! An accepted message is written once, to a segment file. All later senders (gossip, pushes, store
//! answers, HTTP) read it from there through a [`Message`], a reference of fixed size, so that the
//! bytes are in the page cache, which the kernel may reclaim, and not in the heap.
//!
//! A partition holds the messages that arrived in one period (an hour, less when it grows large).
//!
//! Bounds: the append queue has [`Config::queue_bytes`], counted by the callers' reservations, a
//! batch 4 MiB, the index queue [`Config::index_queue_messages`]; the indexes have at most two
//! SQLite connections that write, and four for each of [`Config::query_threads`], whose page caches
//! together have at most [`Config::index_cache_bytes`].
//!
//! Retention goes by age, and the wall clock may be set: [`Clock`] states by which clock it judges.
//!
//! A message that [`Store::append`] accepted survives the process, and a power cut from the next
//! sync on ([`Config::sync_interval`]). It is served when its checksum held when the segment was
//! read at a start, or holds at the query.
//!
//! This crate must never know the meaning of a message: it receives hash, timestamp and topics.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod catalog;
mod config;
mod error;
mod index;
mod indexer;
mod keeper;
mod message;
mod query;
mod query_index;
mod queue;
mod recover;
mod segment;
mod spare;
mod store;
mod writer;

pub use config::{Config, ConfigError};
pub use error::{AppendError, Full, OpenError, QueryError};
pub use message::Message;
pub use query::{
    CONTENT_TOPICS_MAX, HASHES_MAX, IDS_MAX, IdQuery, MessageKey, PAGE_MESSAGES_DEFAULT,
    PAGE_MESSAGES_MAX, Page, Query, StoredMessage,
};
pub use segment::{MESSAGE_BYTES_MAX, TOPIC_BYTES_MAX};
pub use store::{AppendOutcome, Arrival, Clock, Status, Store, Waiting};
