//! Limits of requests to other nodes: of REST clients, of a node that is a client, of store resume.

use accounting::KIB;
use memory_budget::{Rules, SheetLine, limit, lines, times};

use crate::{Limits, SCALE};

/// A request to another node, beside its frames, which are in `receiving`: its stream and its task.
pub const CLIENT_REQUEST_BYTES: u64 = 8 * KIB;

const _: () = assert!(crate::connections::rows::streams.covers(&rows::requests));

memory_budget::limits! {
    SCALE;
    /// Limits of requests to other nodes.
    #[serde(deny_unknown_fields)]
    pub struct ClientLimits as client of Limits, rules check {
        /// Requests to other nodes at once. Beyond it one waits.
        requests: u64 = values([8, 12, 16, 32, 64, 64, 128]), local, pays line("client_requests"),
            bounds [at_least(1, "no other node could be asked")],
            reason "8 KiB each; few clients ask through this node";
        /// Time for another node to be reached and to answer. Beyond it the client gets 504.
        answer_seconds: u64 = fixed(10), local,
            bounds [
                at_least(1, "nodes on slow links could not be asked"),
                at_most(120, "a node that says nothing would hold requests for ever"),
            ],
            reason "a dial, and a page of the largest messages";
        /// Interval of pings to the filter node, by which it keeps the subscriptions.
        filter_ping_seconds: u64 = fixed(60), local,
            bounds [
                at_least(5, "the filter node would be all pings"),
                at_most(300, "filter nodes forget a receiver that is silent for five minutes"),
            ],
            reason "a fifth of the time after which filter nodes forget a receiver";
        /// With store resume, how far back a node fetches what it missed, at most.
        resume_hours: u64 = fixed(6) follows(hours_that_are_kept), local,
            bounds [at_least(1, "nothing would be fetched")],
            reason "as the reference has it; less than is kept";
        /// Bytes of messages that one resume fetches, the newest first. Beyond it the older ones
        /// are left out.
        resume_bytes: u64 = follows(eighth_of_retention), local,
            pays none("of the disk that retention_bytes has"),
            reason "follows store.retention_bytes: nothing newer leaves for it";
        /// Messages taken from other stores per second, by resume and by synchronisation.
        fetched_per_second: u64 = fixed(500), local,
            bounds [at_least(1, "nothing would be fetched")],
            reason "an hour of 24 a second in three minutes, a twentieth of what the log takes";
    }
}

/// No more than the hours of the store.
fn hours_that_are_kept(limits: &Limits, most: u64) -> u64 {
    most.min(limits.store.retention_hours)
}

/// What a node fetches is older than what it relays, and counts by its arrival.
fn eighth_of_retention(limits: &Limits) -> u64 {
    limits.store.retention_bytes / 8
}

fn check(limits: &Limits, rules: &mut Rules) {
    rules.within(
        limit!(limits.client.requests),
        limit!(limits.connections.streams),
        "each is a stream",
    );
    rules.within(
        limit!(limits.client.resume_hours),
        limit!(limits.store.retention_hours),
        "older messages are not kept",
    );
    rules.within(
        limit!(limits.client.resume_bytes),
        limit!(limits.store.retention_bytes),
        "more is not kept",
    );
}

impl Limits {
    /// Requests to other nodes.
    pub(crate) fn client_lines(&self) -> Vec<SheetLine> {
        lines![
            Fixed("client_requests", "relay") = times(self.client.requests, CLIENT_REQUEST_BYTES),
                "requests to other nodes, of REST clients and for the store";
        ]
    }
}
