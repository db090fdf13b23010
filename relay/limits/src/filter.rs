//! Limits of filter subscriptions and pushes.

use memory_budget::{LimitValue, Rules, SheetLine, limit, lines, times, whole};

use crate::{Limits, REFERENCE_BYTES, SCALE, pool};

/// A criterion of a filter subscription, without its content topic.
pub const CRITERION_BYTES: u64 = 128;

/// Content topics of a request, by the filter protocol; bytes of the longest.
const TOPICS_PER_REQUEST: u64 = 100;
const CONTENT_TOPIC_BYTES: u64 = 256;

const _: () = {
    assert!(crate::connections::rows::connections.covers(&rows::receivers));
    assert!(rows::subscriptions.covers(&rows::criteria_per_peer), "one receiver finds room");
    assert!(rows::criteria_per_peer.covers(&rows::topics_per_request));
    assert!(rows::requests_burst.covers(&rows::requests_per_second));
    let streams = crate::connections::rows::streams_per_connection;
    assert!(streams.covers(&rows::pushes_in_flight_per_receiver));
};

memory_budget::limits! {
    SCALE;
    /// Limits of filter.
    #[serde(deny_unknown_fields)]
    pub struct FilterLimits as filter of Limits, rules check {
        /// Peers that subscribe. Beyond it a subscription is refused with 503.
        receivers: u64 = values([48, 80, 128, 256, 512, 1024, 3072]), local,
            bounds [at_least(1, "the service could not be used")], reason "half of all connections";
        /// Content topics of one request. Beyond it the request is refused with 400.
        topics_per_request: u64 = fixed(100), local,
            bounds [
                at_least(1, "the service could not be used"),
                at_most(TOPICS_PER_REQUEST, "the protocol has no larger requests"),
            ],
            reason "of the filter protocol";
        /// Criteria of one peer. Beyond it the request is refused with 503.
        criteria_per_peer: u64 = fixed(1_000), local, reason "of the filter protocol";
        /// Criteria of all peers. Beyond it the request is refused with 503.
        subscriptions: u64 = values([4096, 6144, 8192, 16_384, 32_768, 65_536, 262_144]), local,
            pays line("subscriptions"),
            reason "at the longest content topic; no peer takes a quarter of them";
        /// Longest content topic of a criterion. A longer one is refused with 400.
        content_topic_bytes: u64 = fixed(256), local, pays line("subscriptions"),
            bounds [
                at_least(16, "hardly any content topic would fit"),
                at_most(CONTENT_TOPIC_BYTES, "no message has a longer one"),
            ],
            reason "application, version, name and encoding at 64 bytes each";
        /// References waiting for one receiver. Beyond it the oldest leaves, and is counted.
        queue_messages_per_receiver: u64 =
            values([4096, 6144, 8192, 16_384, 32_768, 65_536, 65_536]), local,
            bounds [at_least(1, "the service could not be used")],
            reason "64 B each; a receiver one second behind a flood keeps all";
        /// References waiting for all receivers, in bytes: the pool `push_queues`.
        queues_bytes: u64 = mib([2, 3, 4, 8, 16, 32, 128]), local, pays line("push_queues"),
            reason "shared, as few receivers lag at once";
        /// Pushes to one receiver that are being written at once, each on a stream of its own.
        pushes_in_flight_per_receiver: u64 = steps([4, 4, 4, 8, 8, 16, 16]), local,
            bounds [at_least(1, "the service could not be used")],
            reason "stock Go clients take one push per stream";
        /// Subscriptions of a peer that sent no request for so long end.
        ping_seconds: u64 = fixed(300), local,
            bounds [at_least(10, "receivers would be all pings")], reason "of the filter protocol";
        /// Requests of one peer per second, on average. Beyond it 429.
        requests_per_second: u64 = fixed(100), local,
            bounds [at_least(1, "the service could not be used")],
            reason "a client that subscribes topic by topic";
        /// Requests of one peer at once after a pause.
        requests_burst: u64 = fixed(1_000), local,
            bounds [at_least(1, "the service could not be used")],
            reason "all criteria of a peer, one by one";
    }
}

impl FilterLimits {
    /// Charge of one criterion in the pool `subscriptions`, with the longest content topic.
    pub fn criterion_bytes(&self) -> u64 {
        self.content_topic_bytes.saturating_add(CRITERION_BYTES)
    }
}

fn check(limits: &Limits, rules: &mut Rules) {
    let receivers = limit!(limits.filter.receivers);
    rules.within(receivers, limit!(limits.connections.connections), "each has a connection");
    let criteria = limit!(limits.filter.criteria_per_peer);
    rules.within(limit!(limits.filter.topics_per_request), criteria, "one request must fit");
    let subscriptions = limit!(limits.filter.subscriptions);
    rules.within(criteria, subscriptions, "it is a part of all subscriptions");
    let queue = limits.filter.queue_messages_per_receiver.saturating_mul(REFERENCE_BYTES);
    rules.within(
        LimitValue::size("filter.queue_messages_per_receiver x 64 B", queue),
        limit!(limits.filter.queues_bytes),
        "the longest queue must fit",
    );
    rules.within(
        limit!(limits.filter.pushes_in_flight_per_receiver),
        limit!(limits.connections.streams_per_connection),
        "each push is a stream",
    );
}

impl Limits {
    /// Criteria and queues.
    pub(crate) fn filter_lines(&self) -> Vec<SheetLine> {
        let filter = &self.filter;
        lines![
            Pool(pool::SUBSCRIPTIONS, "relay") =
                times(filter.subscriptions, filter.criterion_bytes()),
                "criteria of filter subscriptions, with the longest content topic";
            Pool(pool::PUSH_QUEUES, "relay") = whole(filter.queues_bytes),
                "references of messages waiting for filter receivers";
        ]
    }
}
