//! The relay's messages on disk: a segment log and its index.
//!
//! An accepted message is written once, to a segment file. All later senders (gossip, pushes, store
//! answers, HTTP) read it from there through a [`Message`], a reference of fixed size, so that the
//! bytes are in the page cache, which the kernel may reclaim, and not in the heap.
//!
//! # Layout
//!
//! ```text
//! <folder>/partitions/<start, ns since 1970>/<number>.segment   kept messages, `disk::records`
//!                                            index.sqlite       derivable from the segments
//! <folder>/transit/<number>.segment                            messages that are not kept
//! <folder>/spare/<number>.spare                                the same, while the disk is full
//! ```
//!
//! A partition holds the messages that arrived in one period (an hour, less when it grows large).
//! Retention removes whole partitions, never rows. A message's timestamp is its sender's, so
//! timestamps of neighbouring partitions overlap; queries merge them.
//!
//! # Threads and what they hold
//!
//! - **writer**: takes the messages waiting in the append queue ([`Config::queue_bytes`], counted
//!   by the callers' reservations) and writes them as one batch; a buffer of at most 4 MiB and the
//!   recent set.
//! - **index**: follows the writer through a queue of [`Config::index_queue_messages`]; one SQLite
//!   connection for the current partition, and one more while a partition changes.
//! - **keeper**: syncs at an interval, retires partitions and transit segments, makes spare
//!   segments.
//! - **queries** ([`Config::query_threads`]): four SQLite connections each.
//!
//! All page caches together hold at most [`Config::index_cache_bytes`]. SQLite's memory map is off:
//! truncating a mapped file kills the process, while a failed read returns an error.
//!
//! # Durability
//!
//! A message that [`Store::append`] accepted was written to the file: it survives the process. It
//! survives a power cut from the next sync on ([`Config::sync_interval`]). At start, segments that
//! were not sealed and synced are read through; a torn end is cut off; rows missing in the index
//! are added; an index that is missing, damaged or ahead of its segments is rebuilt. A message is
//! served when its checksum held at that reading, or holds at the query.
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
    CONTENT_TOPICS_MAX, HASHES_MAX, PAGE_MESSAGES_DEFAULT, PAGE_MESSAGES_MAX, Page, Query,
    StoredMessage,
};
pub use segment::{MESSAGE_BYTES_MAX, TOPIC_BYTES_MAX};
pub use store::{AppendOutcome, Arrival, Clock, Status, Store, Waiting};
