//! Limits of the log, its index, and queries.

use accounting::{KIB, MIB};
use memory_budget::{LimitValue, Rules, SheetLine, limit, lines, times, whole};

use crate::{Limits, PeerLimits, SCALE, messages::MESSAGE_BYTES_MAX, pool};

/// A connection to an index database, without its cache: lookaside memory, schema, statements.
pub const INDEX_CONNECTION_BYTES: u64 = 192 * KIB;
/// A spare segment of the store, on disk.
const SPARE_BYTES: u64 = 4 * MIB;
/// A row waiting for the index's writer.
pub const INDEX_ROW_BYTES: u64 = 256;
/// A store query, waiting or running: the request and the references of a page.
pub const QUERY_BYTES: u64 = 32 * KIB;
/// Messages of a page, by the store protocol.
const PAGE_MESSAGES: u64 = 100;
/// Stock clients take frames of up to 4 MiB; a page is a frame.
const PAGE_BYTES: u64 = 3 * MIB;
/// Segments of a log: each is a file.
const SEGMENTS_MAX: u64 = 65_536;
/// Free disk kept at least, however small the segments.
const DISK_RESERVE_BYTES_MIN: u64 = 256 * MIB;
/// Segments whose room is kept free.
const DISK_RESERVE_SEGMENTS: u64 = 4;

const _: () = {
    assert!(PAGE_BYTES >= 2 * MESSAGE_BYTES_MAX && PAGE_BYTES <= 4 * MIB - 64 * KIB);
    assert!(rows::index_connections.covers(&rows::query_threads));
    assert!(rows::retention_bytes.covers(&rows::segment_bytes));
    assert!(rows::queries_waiting.covers(&rows::query_threads), "each thread can have a query");
    assert!(SCALE.fixed(PAGE_MESSAGES).covers(&rows::page_messages_max));
    assert!(rows::requests_burst.covers(&rows::requests_per_second));
};

// Connections to databases are steps: each brings its cache, which is at hand at an anchor.
memory_budget::limits! {
    SCALE;
    /// Limits of the store.
    #[serde(deny_unknown_fields)]
    pub struct StoreLimits as store of Limits, rules check {
        /// Messages are kept for so long; the hour they came in is dropped whole.
        retention_hours: u64 = fixed(48), local,
            bounds [
                at_least(1, "a partition is an hour"),
                at_most(24 * 366, "each hour has an index of its own"),
            ],
            reason "two days: a client that was away finds what it missed";
        /// Disk that messages and their index take. Beyond it the oldest partition is dropped,
        /// sooner than by its age.
        retention_bytes: u64 = mib([1024, 2048, 4096, 8192, 16_384, 32_768, 131_072]), local,
            pays line("store"), reason "disk; at 128 MiB 48 hours of 24 messages of 1 kB a second";
        /// Size at which a segment of the log ends.
        segment_bytes: u64 = mib_steps([16, 16, 32, 64, 64, 64, 128]), local,
            pays line("log_pages", "segments_in_transit"),
            bounds [
                at_least(MIB, "the log would be all small files"),
                at_most(1024 * MIB, "a segment is removed as a whole, and its index has 32 bits"),
            ],
            reason "the unit in which room is given back";
        /// Time after which what was appended is written through to the disk. A killed process
        /// loses nothing; a machine without power loses so much.
        sync_millis: u64 = fixed(1_000), local,
            bounds [
                at_least(10, "there would be nothing but syncs"),
                at_most(60_000, "a loss of power would cost too much"),
            ],
            reason "a loss of power costs a second; a killed process nothing";
        /// Connections to index databases that are open at once, the writer's among them.
        index_connections: u64 = steps([3, 3, 4, 6, 8, 16, 16]), local, pays line("store_index"),
            reason "each partition in use has its own; the writer's among them";
        /// Page cache of one of them.
        index_cache_bytes: u64 = granules([8, 12, 16, 32, 64, 64, 128]), local,
            pays line("store_index"), bounds [at_least(64 * KIB, "every row would be read twice")],
            reason "upper levels of an hour's index; the leaves are in the page cache";
        /// Rows waiting for the index's writer. Beyond it the log's writer waits.
        index_queue_messages: u64 =
            values([4096, 6144, 8192, 16_384, 32_768, 65_536, 131_072]), local,
            pays line("index_queue"), bounds [at_least(1, "the service could not be used")],
            reason "256 B each; a second of a flood of small messages at 128 MiB";
        /// Queries that run at once.
        query_threads: u64 = steps([1, 1, 2, 2, 4, 4, 8]), local, pays line("store_queries"),
            bounds [
                at_least(1, "the service could not be used"),
                at_most(64, "queries are bound by the disk"),
            ],
            reason "queries are bound by the disk, and must leave it to the writer";
        /// Queries that wait for one of them. Beyond it 429.
        queries_waiting: u64 = values([8, 12, 16, 32, 64, 128, 512]), local,
            pays line("store_queries"),
            reason "32 KiB each; behind more than that an answer would come too late";
        /// Messages of one page.
        page_messages_max: u64 = fixed(100), local,
            bounds [
                at_least(1, "the service could not be used"),
                at_most(PAGE_MESSAGES, "the protocol has no larger pages"),
            ],
            reason "of the store protocol";
        /// Bytes of one page. A page ends before the message that would pass them, with a cursor.
        page_bytes: u64 = fixed(PAGE_BYTES), local, pays within("sending"),
            reason "stock clients take frames of up to 4 MiB";
        /// Queries of one peer per second, on average. Beyond it 429.
        requests_per_second: u64 = fixed(200), local,
            bounds [at_least(1, "the service could not be used")],
            reason "a client that reads a day of history page by page";
        /// Queries of one peer at once after a pause.
        requests_burst: u64 = fixed(400), local,
            bounds [at_least(1, "the service could not be used")], reason "two seconds of the rate";
        /// Free disk below which messages are refused with the reason; relaying continues.
        disk_reserve_bytes: u64 = follows(reserve_bytes), local, pays line("disk_reserve"),
            reason "follows segment_bytes, four of them, and at least 256 MiB";
        /// Files of 4 MiB made while there is room: what relay peers bring is passed on in them
        /// while the disk has no byte left.
        spare_segments: u64 = fixed(4), local, pays line("spare_segments"),
            bounds [at_most(64, "a few seconds of messages are enough")],
            reason "gossip refers to messages of the last seconds; 16 MiB of them";
    }
}

/// Segments whose room is kept free.
fn reserve_bytes(limits: &Limits) -> u64 {
    let segments = limits.store.segment_bytes.saturating_mul(DISK_RESERVE_SEGMENTS);
    segments.max(DISK_RESERVE_BYTES_MIN)
}

fn check(limits: &Limits, rules: &mut Rules) {
    rules.group::<Limits, PeerLimits>(limits);
    let store = &limits.store;
    let segment = limit!(limits.store.segment_bytes);
    rules.bounds(limits, &["store.retention_hours", "store.segment_bytes"]);
    rules.within(
        LimitValue::size("store.segment_bytes x 4", segment.value().saturating_mul(4)),
        limit!(limits.store.retention_bytes),
        "the oldest leaves while the newest is written",
    );
    rules.at_most(
        LimitValue::number(
            "store.retention_bytes / store.segment_bytes",
            store.retention_bytes / segment.value().max(1),
        ),
        SEGMENTS_MAX,
        "each is a file",
    );
    let reserve = limit!(limits.store.disk_reserve_bytes);
    rules.within(segment, reserve, "a segment that began must be finished");
    rules.within(
        LimitValue::number("store.query_threads + 1", store.query_threads.saturating_add(1)),
        limit!(limits.store.index_connections),
        "each query reads by a connection, and the writer has one",
    );
    rules.within(
        limit!(limits.messages.frame_bytes),
        limit!(limits.store.page_bytes),
        "the largest message must fit a page",
    );
}

impl Limits {
    /// The index and queries.
    pub(crate) fn store_lines(&self) -> Vec<SheetLine> {
        let store = &self.store;
        let index_connection = store.index_cache_bytes.saturating_add(INDEX_CONNECTION_BYTES);
        lines![
            Fixed("store_index", "store") = times(store.index_connections, index_connection),
                "page caches and statements of the index databases that are open";
            Pool(pool::INDEX_QUEUE, "store") = times(store.index_queue_messages, INDEX_ROW_BYTES),
                "rows waiting for the index's writer";
            Pool(pool::STORE_QUERIES, "store") =
                times(store.query_threads.saturating_add(store.queries_waiting), QUERY_BYTES),
                "store queries, running and waiting";
        ]
    }

    /// Files, and pages of them.
    pub(crate) fn file_lines(&self) -> Vec<SheetLine> {
        let store = &self.store;
        lines![
            File("log_pages", "store") = times(2, store.segment_bytes),
                "the newest segments, which most readers read; the kernel takes them when it \
                 needs them";
            Disk("store", "store") = whole(store.retention_bytes),
                "messages and their index, in partitions by the hour";
            Disk("segments_in_transit", "store") = times(3, store.segment_bytes),
                "the segment being written, one being begun, one dropped that is still being sent";
            Disk("spare_segments", "store") = times(store.spare_segments, SPARE_BYTES),
                "passed on in these while the disk has no byte left";
            Disk("disk_reserve", "store") = whole(store.disk_reserve_bytes),
                "kept free; with less, messages are refused";
        ]
    }
}
