//! Limits of the REST interface.

use accounting::KIB;
use memory_budget::{LimitValue, Rules, SheetLine, limit, lines, times, whole};

use crate::{Limits, REFERENCE_BYTES, SCALE, messages::MESSAGE_BYTES, pool};

/// Buffers of one HTTP connection.
pub const HTTP_CONNECTION_BYTES: u64 = 16 * KIB;
/// Base64 of the largest message of the Waku network, in JSON.
const BODY_BYTES: u64 = 256 * KIB;
/// JSON of a message in addition to the base64 of its bytes.
const JSON_BYTES: u64 = 4 * KIB;
/// Charge in the pool `http_cache` of a topic that REST clients subscribe to, without its name: its
/// places in the tables, a part of which is empty.
pub const HTTP_TOPIC_BYTES: u64 = 320;
/// A name of a topic is in this many tables.
pub const HTTP_TOPIC_NAMES: u64 = 3;
/// References for which each of these topics has room at least.
pub const HTTP_TOPIC_MESSAGES: u64 = 8;
/// The charge of a topic without a name, with its least references.
const PLAIN_TOPIC_BYTES: u64 = HTTP_TOPIC_BYTES + HTTP_TOPIC_MESSAGES * REFERENCE_BYTES;

const _: () = {
    assert!(HTTP_CONNECTION_BYTES >= 8 << 10, "HTTP parsers start with a buffer of 8 KiB");
    assert!(MESSAGE_BYTES.div_ceil(3) * 4 + JSON_BYTES <= BODY_BYTES);
    assert!(rows::bodies_bytes.covers(&rows::body_bytes), "one body finds room");
    assert!(rows::responses_bytes.covers(&rows::body_bytes), "a response has a message");
};

memory_budget::limits! {
    SCALE;
    /// Limits of the REST interface.
    #[serde(deny_unknown_fields)]
    pub struct HttpLimits as http of Limits, rules check {
        /// Open connections. Beyond it a new one waits in the listener's backlog.
        connections: u64 = values([16, 24, 32, 64, 128, 256, 512]), local,
            pays line("http_connections"), bounds [at_least(1, "clients could not be served")],
            reason "operators and their tools, 16 KiB each";
        /// Body of one request. Beyond it 413.
        body_bytes: u64 = fixed(BODY_BYTES) follows(largest_body), local,
            pays within("request_bodies"),
            reason "the largest message in base64 and its JSON";
        /// Bodies of all requests in flight: the pool `request_bodies`.
        bodies_bytes: u64 = granules([16, 24, 32, 64, 128, 256, 512]) follows(two_bodies), local,
            pays line("request_bodies"),
            reason "four of the largest at 64 MiB; one with escapes counts twice";
        /// Responses being written: the pool `responses`.
        responses_bytes: u64 = granules([16, 24, 32, 64, 128, 256, 512]) follows(one_answer), local,
            pays line("responses"),
            reason "answers are written as they are read; four messages at 64 MiB";
        /// Topics that REST clients subscribe to, and references of their messages: the pool
        /// `http_cache`. The more topics, the fewer references of each; beyond it 503.
        cache_bytes: u64 = granules([2, 3, 4, 16, 32, 128, 256]), local, pays line("http_cache"),
            reason "250 content topics of 60 bytes at 128 MiB; 64 with all their references";
        /// Messages kept for one topic, as references. Beyond it the oldest leaves.
        cache_messages: u64 = values([64, 64, 64, 128, 128, 256, 256]), local,
            bounds [at_least(1, "clients could not be served")],
            reason "64 B each; applications poll every second";
        /// Time to send headers and body.
        read_timeout_millis: u64 = fixed(10_000), local,
            bounds [
                at_least(100, "honest clients on slow links would be cut off"),
                at_most(600_000, "slow clients would hold their connection for ever"),
            ],
            reason "slow clients give their place to others";
    }
}

/// JSON of the largest message.
fn encoded(limits: &Limits) -> u64 {
    limits.messages.message_bytes.div_ceil(3).saturating_mul(4).saturating_add(JSON_BYTES)
}

/// The same with escapes in it, where the value by memory is smaller.
fn largest_body(limits: &Limits, least: u64) -> u64 {
    let encoded = encoded(limits);
    least.max(encoded.saturating_add(encoded / 32))
}

/// Two bodies, or one that has escapes, where the pool by memory is smaller.
fn two_bodies(limits: &Limits, least: u64) -> u64 {
    least.max(limits.http.body_bytes.saturating_mul(2))
}

/// A message as read from the log, and its JSON, where the pool by memory is smaller.
fn one_answer(limits: &Limits, least: u64) -> u64 {
    least.max(limits.messages.message_bytes.saturating_add(encoded(limits)))
}

fn check(limits: &Limits, rules: &mut Rules) {
    let encoded = encoded(limits);
    let encoded = LimitValue::size("messages.message_bytes in base64 + 4 KiB", encoded);
    let body = limit!(limits.http.body_bytes);
    rules.within(encoded, body, "the largest message must fit a body");
    rules.within(body, limit!(limits.http.bodies_bytes), "the largest body must fit");
    let responses = limit!(limits.http.responses_bytes);
    rules.within(encoded, responses, "the largest message must fit a response");
    let topics = limits.gossip.topics.saturating_mul(PLAIN_TOPIC_BYTES);
    rules.within(
        LimitValue::size("gossip.topics x (320 B + 8 x 64 B)", topics),
        limit!(limits.http.cache_bytes),
        "REST clients read every shard of this relay",
    );
}

impl Limits {
    /// Connections, bodies, responses and caches.
    pub(crate) fn http_lines(&self) -> Vec<SheetLine> {
        let http = &self.http;
        lines![
            Pool(pool::HTTP_CONNECTIONS, "relay") = times(http.connections, HTTP_CONNECTION_BYTES),
                "buffers of open HTTP connections";
            Pool(pool::REQUEST_BODIES, "relay") = whole(http.bodies_bytes),
                "HTTP request bodies being read and decoded";
            Pool(pool::RESPONSES, "relay") = whole(http.responses_bytes),
                "HTTP responses being encoded and written";
            Pool(pool::HTTP_CACHE, "relay") = whole(http.cache_bytes),
                "topics of REST clients, and references of messages that they will fetch";
        ]
    }
}
