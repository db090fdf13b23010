//! Limits of the REST interface.

use accounting::KIB;
use memory_budget::{LimitValue, Rules, SheetLine, limit, lines, times, whole};

use crate::{Limits, REFERENCE_BYTES, SCALE, messages::MESSAGE_BYTES, pool};

/// Buffers of one HTTP connection.
pub const HTTP_CONNECTION_BYTES: u64 = 16 * KIB;
/// Base64 of the largest message, in JSON.
const BODY_BYTES: u64 = 256 * KIB;

const _: () = {
    assert!(HTTP_CONNECTION_BYTES >= 8 << 10, "HTTP parsers start with a buffer of 8 KiB");
    assert!(MESSAGE_BYTES.div_ceil(3) * 4 + 4 * KIB <= BODY_BYTES);
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
        body_bytes: u64 = fixed(BODY_BYTES), local, pays within("request_bodies"),
            reason "the largest message in base64 and its JSON";
        /// Bodies of all requests in flight: the pool `request_bodies`.
        bodies_bytes: u64 = granules([16, 24, 32, 64, 128, 256, 512]), local,
            pays line("request_bodies"), reason "four of the largest at 64 MiB";
        /// Responses being written: the pool `responses`.
        responses_bytes: u64 = granules([16, 24, 32, 64, 128, 256, 512]), local,
            pays line("responses"),
            reason "answers are written as they are read; four messages at 64 MiB";
        /// Topics that REST clients subscribe to. Beyond it 503.
        subscriptions: u64 = values([32, 48, 64, 128, 256, 512, 1024]), local,
            pays line("http_cache"), bounds [at_least(1, "clients could not be served")],
            reason "content topics that local applications read";
        /// Messages kept for one of them, as references. Beyond it the oldest leaves.
        cache_messages: u64 = values([64, 64, 64, 128, 128, 256, 256]), local,
            pays line("http_cache"), bounds [at_least(1, "clients could not be served")],
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

fn check(limits: &Limits, rules: &mut Rules) {
    let encoded =
        limits.messages.message_bytes.div_ceil(3).saturating_mul(4).saturating_add(4 * KIB);
    let encoded = LimitValue::size("messages.message_bytes in base64 + 4 KiB", encoded);
    let body = limit!(limits.http.body_bytes);
    rules.within(encoded, body, "the largest message must fit a body");
    rules.within(body, limit!(limits.http.bodies_bytes), "the largest body must fit");
    let responses = limit!(limits.http.responses_bytes);
    rules.within(encoded, responses, "the largest message must fit a response");
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
            Pool(pool::HTTP_CACHE, "relay") =
                times(http.subscriptions.saturating_mul(http.cache_messages), REFERENCE_BYTES),
                "references of messages that REST clients will fetch";
        ]
    }
}
