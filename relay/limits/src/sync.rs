//! Limits of store synchronisation: comparing stores with peers, and fetching what is missing.

use accounting::{KIB, MIB};
use memory_budget::{Rules, SheetLine, limit, lines, times};

use crate::{Limits, SCALE};

/// A session, beside the answer that it writes: ids of a page, of a set, tasks and streams.
pub const SYNC_SESSION_BYTES: u64 = 64 * KIB;

const _: () = {
    assert!(rows::range_seconds.covers(&rows::jitter_seconds));
    assert!(rows::session_ids.covers(&rows::ids_per_second));
};

memory_budget::limits! {
    SCALE;
    /// Limits of store synchronisation.
    #[serde(deny_unknown_fields)]
    pub struct SyncLimits as sync of Limits, rules check {
        /// Sessions that peers began, at once, in addition to the one that this node begins. Beyond
        /// it a peer's stream ends without an answer; it asks again.
        sessions: u64 = steps([1, 1, 2, 2, 4, 4, 8]), local, pays line("sync_sessions"),
            bounds [
                at_least(1, "the service could not be used"),
                at_most(64, "each reads the index"),
            ],
            reason "128 KiB each; a session an hour's messages long takes seconds";
        /// Bytes of one answer. Ranges for which it has no room are left for the next session.
        answer_bytes: u64 = fixed(64 * KIB), local, pays line("sync_sessions"),
            bounds [
                at_least(8 * KIB, "a range of a hundred ids would not fit"),
                at_most(MIB, "other nodes keep the whole of it in memory"),
            ],
            reason "1,500 ids; more differ only after an hour away, which resume is for";
        /// Interval of sessions that this node begins, each with one peer.
        interval_seconds: u64 = fixed(300), local,
            bounds [at_least(10, "stores would do nothing but compare")],
            reason "as the reference has it";
        /// How far back messages are compared.
        range_seconds: u64 = fixed(3_600), local,
            bounds [at_least(60, "hardly anything would be compared")],
            reason "as the reference has it";
        /// Messages of the last moments are not compared: they are on their way.
        jitter_seconds: u64 = fixed(20), local, reason "as the reference has it";
        /// Ids read from the index per second, over all sessions.
        ids_per_second: u64 = fixed(50_000), local,
            bounds [at_least(1_000, "a session would not end")],
            reason "a tenth of what a query thread reads; queries come first";
        /// Ids read for one session. Beyond it what is left of the range is not compared in it.
        session_ids: u64 = fixed(500_000), local,
            bounds [at_least(1_000, "hardly anything would be compared")],
            reason "an hour of 139 messages a second; bounds what a hostile peer has us read";
        /// Bytes of messages taken from, and sent to, a peer in one session. Beyond it the rest
        /// is left for the next session.
        session_bytes: u64 = mib([32, 48, 64, 128, 256, 256, 1024]) follows(bytes_that_are_kept),
            local,
            pays none("on their way to the disk, where retention_bytes counts them"),
            reason "more is missing after an hour away only; bounds what a peer may store here";
        /// Sessions of one peer per second, on average. Beyond it a stream ends without an answer.
        requests_per_second: u64 = fixed(1), local,
            bounds [at_least(1, "the service could not be used")],
            reason "a peer compares every few minutes";
        /// Sessions of one peer at once after a pause.
        requests_burst: u64 = fixed(5), local,
            bounds [at_least(1, "the service could not be used")],
            reason "peers that repeat a session that left something out";
    }
}

/// No more than the store keeps.
fn bytes_that_are_kept(limits: &Limits, most: u64) -> u64 {
    most.min(limits.store.retention_bytes)
}

fn check(limits: &Limits, rules: &mut Rules) {
    rules.within(
        limit!(limits.sync.jitter_seconds),
        limit!(limits.sync.range_seconds),
        "nothing would be left to compare",
    );
    rules.within(
        limit!(limits.sync.answer_bytes),
        limit!(limits.messages.receiving_bytes),
        "an answer as long must find room here",
    );
    rules.within(
        limit!(limits.sync.session_bytes),
        limit!(limits.store.retention_bytes),
        "more is not kept",
    );
}

impl Limits {
    /// Sessions.
    pub(crate) fn sync_lines(&self) -> Vec<SheetLine> {
        let session = self.sync.answer_bytes.saturating_add(SYNC_SESSION_BYTES);
        lines![
            Fixed("sync_sessions", "store") = times(self.sync.sessions.saturating_add(1), session),
                "comparing stores with peers: ids, and the answer being written";
        ]
    }
}
