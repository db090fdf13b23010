//! Settings for the operator, with units and consequences. This module does not read files.

use std::{path::PathBuf, time::Duration};

use thiserror::Error;

use crate::{catalog::Partition, segment::MESSAGE_BYTES_MAX};

const MIB: u64 = 1 << 20;
/// Longest time a partition takes messages: an hour.
pub(crate) const PARTITION_NS_MAX: i64 = 3600 * 1_000_000_000;

/// Settings of a store.
#[derive(Clone, Debug)]
pub struct Config {
    /// Folder of the store; made if absent, locked while the store is open.
    pub folder: PathBuf,
    /// Bytes of a segment file, 4 MiB to 1 GiB. Smaller: more files and more syncs of folders;
    /// larger: a restart reads more, as the segment that was being written is read through.
    pub segment_bytes: u64,
    /// Messages older than this are removed, a partition (at most an hour, at most an eighth of
    /// this) at a time; the partition that was written to before a restart, up to an hour later.
    /// At least 1 s.
    pub retention: Duration,
    /// Most bytes of segments and indexes together; the oldest partitions go first, each about an
    /// eighth of it. It is passed for a moment by what arrives until they are removed. At least 8
    /// MiB.
    pub retention_bytes: u64,
    /// Interval of syncs: a power cut loses at most the messages of this interval and of the
    /// duration of a sync.
    pub sync_interval: Duration,
    /// How long messages that are not kept stay on disk for those that ask for a reference late. A
    /// reference that was handed out works for as long as it lives.
    pub keep_transit: Duration,
    /// Most bytes of messages that are not kept, in addition to `retention_bytes`; the oldest are
    /// unlinked first, and their space is freed when they have no references. In a flood this
    /// shortens `keep_transit`. At least two segments.
    pub transit_bytes: u64,
    /// Bytes of all SQLite page caches together: half for writing, half for queries. Below 1 MiB a
    /// partition with many messages is indexed slowly.
    pub index_cache_bytes: u64,
    /// Free bytes the file system must keep: appends are refused below. Messages that are not kept
    /// may use three quarters of it. It has to cover what the index writes for the messages in
    /// its queue; 16 MiB or more.
    pub disk_reserve_bytes: u64,
    /// Files of 4 MiB that are made while there is room for them in addition to the reserve.
    /// Messages that are not kept overwrite them while the disk has no room; 0 to 64.
    pub spare_segments: usize,
    /// Threads that answer queries, 1 to 64. More answer more queries at once and share the page
    /// cache.
    pub query_threads: usize,
    /// Queries waiting or being answered; further ones are refused ([`crate::QueryError::Busy`]).
    pub query_queue: usize,
    /// Longest wait of a query for the index to hold what was appended before it.
    pub query_wait: Duration,
    /// Messages waiting to be written; further ones are refused ([`crate::Full`]).
    pub queue_messages: usize,
    /// Their bytes; the callers' reservations are held for as long.
    pub queue_bytes: u64,
    /// Messages written and not yet indexed, about 200 bytes each, after which the writer waits.
    pub index_queue_messages: usize,
    /// Hashes remembered of the last two minutes, about 150 bytes each, so that a message that
    /// arrives twice is written once. Beyond, it may be written twice, and is found once.
    pub recent_messages: usize,
    /// Segments kept open for reading. References to unlinked segments hold further files open.
    pub open_segments: usize,
}

impl Config {
    /// Defaults for a store in `folder`: 30 days, 16 GiB.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
            segment_bytes: 16 * MIB,
            retention: Duration::from_secs(30 * 24 * 3600),
            retention_bytes: 16 << 30,
            sync_interval: Duration::from_secs(1),
            keep_transit: Duration::from_secs(120),
            transit_bytes: 1 << 30,
            index_cache_bytes: 8 * MIB,
            disk_reserve_bytes: 256 * MIB,
            spare_segments: 4,
            query_threads: 2,
            query_queue: 64,
            query_wait: Duration::from_secs(5),
            queue_messages: 4096,
            queue_bytes: 8 * MIB,
            index_queue_messages: 8192,
            recent_messages: 8192,
            open_segments: 32,
        }
    }

    /// # Errors
    /// The first setting that is out of its bounds.
    pub fn check(&self) -> Result<(), ConfigError> {
        let bounds: [(&str, u64, u64, u64); 14] = [
            ("segment_bytes", self.segment_bytes, 2 * MESSAGE_BYTES_MAX as u64, 1 << 30),
            ("retention (ms)", millis(self.retention), 1000, 100 * 365 * 24 * 3_600_000),
            ("retention_bytes", self.retention_bytes, 8 * MIB, 1 << 50),
            ("sync_interval (ms)", millis(self.sync_interval), 1, 3_600_000),
            ("keep_transit (ms)", millis(self.keep_transit), 1, 24 * 3_600_000),
            ("transit_bytes", self.transit_bytes, self.segment_bytes.saturating_mul(2), 1 << 50),
            ("index_cache_bytes", self.index_cache_bytes, MIB / 4, 1 << 40),
            ("spare_segments", self.spare_segments as u64, 0, 64),
            ("query_threads", self.query_threads as u64, 1, 64),
            ("query_queue", self.query_queue as u64, 1, 1 << 16),
            ("queue_messages", self.queue_messages as u64, 1, 1 << 20),
            ("queue_bytes", self.queue_bytes, MESSAGE_BYTES_MAX as u64, 1 << 40),
            ("index_queue_messages", self.index_queue_messages as u64, 1, 1 << 20),
            ("open_segments", self.open_segments as u64, 1, 1 << 16),
        ];
        for (name, value, min, max) in bounds {
            if value < min || value > max {
                return Err(ConfigError { name, value, min, max });
            }
        }
        Ok(())
    }

    pub(crate) fn partition_ns(&self) -> i64 {
        let eighth = nanos(self.retention) / 8;
        eighth.clamp(1, PARTITION_NS_MAX)
    }

    pub(crate) fn is_over(&self, partition: &Partition, now_ns: i64) -> bool {
        now_ns.saturating_sub(partition.start_ns) >= self.partition_ns()
            || partition.bytes() >= self.retention_bytes / 8
    }

    /// Bytes of the page cache of one connection that queries.
    pub(crate) fn query_cache_bytes(&self) -> u64 {
        self.index_cache_bytes / 2 / (self.query_threads * crate::query::CONNECTIONS_MAX) as u64
    }

    /// Bytes of the page cache of one connection that writes; there may be two.
    pub(crate) fn write_cache_bytes(&self) -> u64 {
        self.index_cache_bytes / 4
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

pub(crate) fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

/// A setting out of its bounds.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("store: {name} is {value}; set it to {min} or more, and at most {max}")]
pub struct ConfigError {
    /// Which, with its unit.
    pub name: &'static str,
    /// The value that was set.
    pub value: u64,
    /// The smallest allowed.
    pub min: u64,
    /// The largest allowed.
    pub max: u64,
}
