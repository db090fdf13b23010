//! Errors of the store, and their texts.

use std::{io, path::PathBuf, sync::Arc};

use thiserror::Error;

use crate::config::ConfigError;

/// Why a store was not opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// A setting is out of its bounds.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Another process, or another store of this one, has the folder.
    #[error("{folder} is in use by another process; end it, or set another folder for the store")]
    InUse {
        /// The store's folder.
        folder: PathBuf,
    },
    /// An error of the operating system.
    #[error("{path}: {doing}: {source}")]
    Io {
        /// File or folder.
        path: PathBuf,
        /// The operation that failed.
        doing: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
}

/// The append queue has no room; nothing was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "the store's queue is full: {messages} of {messages_max} messages and {bytes} of {bytes_max} \
     bytes wait to be written; try again in a moment, or raise queue_messages and queue_bytes"
)]
pub struct Full {
    /// Messages that wait to be written.
    pub messages: usize,
    /// The most that may wait.
    pub messages_max: usize,
    /// Bytes that they take in the queue.
    pub bytes: u64,
    /// The most that may wait.
    pub bytes_max: u64,
}

/// Why a message was not written.
#[derive(Clone, Debug, Error)]
pub enum AppendError {
    /// No room, or less than the reserve. Later appends work again when there is room.
    #[error(
        "{path}: the disk is full: {free_bytes} bytes are free and {needed_bytes} are needed, \
         reserve included; free disk space, or lower retention_bytes"
    )]
    DiskFull {
        /// The store's folder.
        path: PathBuf,
        /// Free for the process.
        free_bytes: u64,
        /// Bytes for the write and the reserve.
        needed_bytes: u64,
    },
    /// An error of the operating system.
    #[error("{path}: writing: {source}")]
    Io {
        /// File or folder.
        path: PathBuf,
        /// The error of the operating system.
        source: Arc<io::Error>,
    },
    /// The message or a topic is too long.
    #[error("{what} of {bytes} bytes is over the store's limit of {bytes_max}")]
    TooLarge {
        /// The object that is too long: a message, a pubsub topic or a content topic.
        what: &'static str,
        /// Bytes that it has.
        bytes: usize,
        /// Most bytes that it may have.
        bytes_max: usize,
    },
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
}

/// Why a query was not answered.
#[derive(Clone, Debug, Error)]
pub enum QueryError {
    /// Too many queries at once.
    #[error(
        "{queue} queries wait already, the most allowed; try again in a moment, or raise \
         query_queue"
    )]
    Busy {
        /// The most that may wait.
        queue: usize,
    },
    /// No message has the cursor's hash: it was removed by retention, or never was here.
    #[error("no message has the cursor's hash {}; begin again without a cursor", hex::encode(.cursor))]
    UnknownCursor {
        /// The hash that the query gave as its cursor.
        cursor: [u8; 32],
    },
    /// A list is too long.
    #[error("{count} {what} in a query are over the limit of {max}; split the query")]
    TooMany {
        /// Entries of the list: hashes or content topics.
        what: &'static str,
        /// Entries that the query has.
        count: usize,
        /// Most entries that a query may have.
        max: usize,
    },
    /// The index did not reach in time what was appended before the query.
    #[error("the index is {messages} messages behind; try again in a moment")]
    Behind {
        /// Appended and not indexed.
        messages: u64,
    },
    /// A partition's index cannot be read at the moment.
    #[error("{path}: {what}; try again in a moment")]
    Index {
        /// The index, or the segment that does not check.
        path: PathBuf,
        /// Description of the damage.
        what: String,
    },
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
}
