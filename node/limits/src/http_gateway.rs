//! Limits of the HTTP gateway, which serves canisters to browsers.
//!
//! Below 192 MiB there is no memory for it: an operator who enables it there takes its memory from
//! something else.

use accounting::MIB;
use memory_budget::{Rules, SheetLine, limit, lines, times, whole};

use crate::{CONNECTION_BYTES, Limits, SCALE, pool};

/// Memory of a request to the HTTP gateway in addition to bodies while its canister is asked: its
/// headers, those of the response, hashes of pieces, and the certificate with its trees while they
/// are verified.
pub const HTTP_REQUEST_BYTES: u64 = 512 << 10;
/// Memory of a response of several replies in addition to the one that is written: the request with
/// its headers and a body of [`HTTP_STREAM_BODY_BYTES`], those of the response, and a token with
/// its copy.
pub const HTTP_STREAM_BYTES: u64 = 256 << 10;
/// The longest request body that a response of several replies may answer.
pub const HTTP_STREAM_BODY_BYTES: u64 = 64 << 10;
/// Memory for each piece of a response that was verified before it is sent.
pub const HTTP_PIECE_BYTES: u64 = 32;
/// Memory of a header line in addition to its name and value.
pub const HTTP_LINE_BYTES: u64 = 128;
/// Responses up to this are small: they have room of their own, which long ones cannot take.
pub const HTTP_SMALL_BYTES: u64 = 64 << 10;
/// The gateway's own part of a response's head, in addition to the canister's header lines.
pub(crate) const HTTP_HEAD_BESIDE_BYTES: u64 = 1 << 10;
/// Memory of a canister's reply in addition to its counted payload.
pub const HTTP_REPLY_BESIDE_BYTES: u64 = 64 << 10;
const HTTP_BODY_BYTES: u64 = 2 * MIB;
/// Pieces whose hashes fit into half of a request's memory.
const HTTP_CHUNKS_MAX: u64 = HTTP_REQUEST_BYTES / 2 / HTTP_PIECE_BYTES;

const _: () = assert!(rows::connections.covers(&rows::requests_in_flight));
const _: () = assert!(HTTP_STREAM_BODY_BYTES <= HTTP_STREAM_BYTES);
const _: () = assert!(HTTP_SMALL_BYTES <= HTTP_REQUEST_BYTES);

memory_budget::limits! {
    SCALE;
    /// Limits of the HTTP gateway. Without connections it is off.
    #[serde(deny_unknown_fields)]
    pub struct HttpGatewayLimits as http_gateway of Limits,
        if HttpGatewayLimits::is_possible, rules check
    {
        /// Connections of browsers open at once; each reserves [`Self::connection_bytes`]. 0 where
        /// the node has no memory for the gateway.
        connections: u64 = steps([0, 0, 64, 64, 128, 256, 512, 1024, 2048]), local,
            pays line("http_connections"),
            reason "each has buffers for twice a response's head; 0 below 192 MiB, where there \
                    is no memory for the gateway";
        /// Requests being served.
        requests_in_flight: u64 = steps([0, 0, 32, 32, 64, 128, 256, 512, 1024]), local,
            bounds [at_least(1, "browsers could not be served")],
            reason "more are answered 503 with Retry-After";
        /// Memory of these requests together: bodies, arguments, replies, data being verified.
        requests_bytes: u64 = mib_steps([0, 0, 10, 10, 16, 32, 64, 128, 256]), local,
            pays line("http_requests"),
            reason "a request waits in its turn until there is room to ask, then holds what it \
                    has; a quarter is for bodies, half at most for responses being written";
        /// Body of one request.
        body_bytes: u64 = fixed(HTTP_BODY_BYTES), local, pays within("http_requests"),
            reason "the largest argument";
        /// Header lines of one response of a canister.
        response_headers: u64 = fixed(96), local, pays line("http_connections"),
            bounds [
                at_least(1, "browsers could not be served"),
                at_most(1_024, "each is a line that a browser has to read"),
            ],
            reason "twice what asset canisters send";
        /// Names and values of these together.
        response_header_bytes: u64 = fixed(32 << 10), local, pays line("http_connections"),
            bounds [
                at_least(1, "browsers could not be served"),
                at_most(64 << 10, "what is verified of them fits into what a request holds \
                                   (512 KiB)"),
            ],
            reason "certificates and trees of large asset canisters have 8 KiB";
        /// Pieces of one response.
        response_chunks: u64 = fixed(1_000), local,
            bounds [
                at_least(1, "browsers could not be served"),
                at_most(HTTP_CHUNKS_MAX, "the hash of each, 32 bytes, is kept while the \
                                          response is verified: half of the 512 KiB that a \
                                          request holds"),
            ],
            reason "as the public network's gateway: some 2 GB";
        /// Time for one response to be verified before its first byte is sent, and for each further
        /// piece of it to be made.
        verify_millis: u64 = fixed(30_000), local,
            bounds [
                at_least(1, "browsers could not be served"),
                at_most(600_000, "requests that end never would hold their places"),
            ],
            reason "a streamed response is read once before it is sent; each further piece has \
                    as long";
        /// Time for the whole of a response of several replies.
        stream_millis: u64 = fixed(3_600_000), local,
            bounds [
                at_least(1, "browsers could not be served"),
                at_most(86_400_000, "a response that never ends would hold its place forever"),
            ],
            reason "who reads a long response slowly holds a place among few";
        /// Time for an update call that a request was upgraded to.
        update_wait_millis: u64 = fixed(60_000), local,
            bounds [
                at_least(1, "browsers could not be served"),
                at_most(600_000, "requests that end never would hold their places"),
            ],
            reason "then 504: the call may still be executed";
    }
}

impl HttpGatewayLimits {
    /// Whether there is memory for a gateway.
    pub fn is_possible(&self) -> bool {
        self.connections > 0
    }

    /// Buffers of one open connection. The one that heads of responses are written into grows by
    /// doubling, and stays.
    pub fn connection_bytes(&self) -> u64 {
        // `: ` and the end of each line.
        let lines = self.response_headers.saturating_mul(4);
        let head = self.response_header_bytes.saturating_add(lines);
        let head = head.saturating_add(HTTP_HEAD_BESIDE_BYTES);
        CONNECTION_BYTES.saturating_add(head.saturating_mul(2))
    }

    /// Memory of a request while its canister is asked, in addition to its body of `body_bytes`
    /// bytes: the body is in the argument of a query when the reply comes, and in the argument and
    /// the envelope of an update call. A reply has `reply_bytes` at most.
    pub fn asking_bytes(body_bytes: u64, reply_bytes: u64) -> u64 {
        let query = body_bytes.saturating_add(reply_most(reply_bytes));
        HTTP_REQUEST_BYTES.saturating_add(query.max(body_bytes.saturating_mul(2)))
    }

    /// The most that a response takes while it is written, one reply of a canister at a time: the
    /// reply and the response's head, twice.
    pub fn response_bytes(&self, reply_bytes: u64) -> u64 {
        let lines = self.response_headers.saturating_mul(HTTP_LINE_BYTES);
        let head = self.response_header_bytes.saturating_mul(2).saturating_add(lines);
        reply_most(reply_bytes).saturating_add(head)
    }

    /// Memory that a response of several replies takes in addition.
    pub fn stream_bytes(&self) -> u64 {
        let pieces = self.response_chunks.saturating_mul(HTTP_PIECE_BYTES);
        HTTP_STREAM_BYTES.saturating_add(pieces)
    }

    /// The least that [`Self::requests_bytes`] may be: one body, one canister asked, one response
    /// of several replies.
    pub fn least_bytes(&self, reply_bytes: u64) -> u64 {
        [
            self.body_bytes,
            Self::asking_bytes(self.body_bytes, reply_bytes),
            self.response_bytes(reply_bytes),
            self.stream_bytes(),
        ]
        .into_iter()
        .fold(0, u64::saturating_add)
    }

    /// How [`Self::requests_bytes`] are divided, where a reply has `reply_bytes` at most. Whatever
    /// bodies and responses hold, there is room to ask: so requests cannot deadlock on one another,
    /// and slow readers do not block other requests.
    pub fn parts(&self, reply_bytes: u64) -> HttpParts {
        let all = self.requests_bytes;
        let asking = Self::asking_bytes(self.body_bytes, reply_bytes);
        let response = self.response_bytes(reply_bytes);
        let needed = asking.saturating_add(response).saturating_add(self.stream_bytes());
        let bodies = (all / 4).max(self.body_bytes).min(all.saturating_sub(needed));
        let needed = asking.saturating_add(response).saturating_add(bodies);
        let streams = (all / 16).min(all.saturating_sub(needed)) / self.stream_bytes().max(1);
        let streams = streams.max(1);
        let rest = all.saturating_sub(bodies);
        let rest = rest.saturating_sub(streams.saturating_mul(self.stream_bytes()));
        let responses = (all / 2).min(rest.saturating_sub(asking)).max(response).min(rest);
        let small = (all / 8).min(responses - response.min(responses));
        HttpParts { bodies, streams, rest, small, large: responses - small }
    }
}

/// The parts of [`HttpGatewayLimits::requests_bytes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpParts {
    /// For request bodies.
    pub bodies: u64,
    /// Responses of several replies at once; each takes [`HttpGatewayLimits::stream_bytes`].
    pub streams: u64,
    /// For requests to canisters and for data being written.
    pub rest: u64,
    /// Of the rest, the most for responses that are small ([`crate::HTTP_SMALL_BYTES`]) ...
    pub small: u64,
    /// ... and for others.
    pub large: u64,
}

/// The most that a reply takes.
fn reply_most(reply_bytes: u64) -> u64 {
    reply_bytes.saturating_add(HTTP_REPLY_BESIDE_BYTES)
}

fn check(limits: &Limits, rules: &mut Rules) {
    rules.at_least(
        limit!(limits.http_gateway.requests_bytes),
        limits.http_gateway.least_bytes(limits.subnet.message_payload_bytes),
        "one request with the largest body, asked about with the largest reply, and one long \
         response being written (set connections = 0 to have no gateway)",
    );
    rules.within(
        limit!(limits.http_gateway.body_bytes),
        limit!(limits.gateway.body_bytes),
        "an update call with such a body must be a call that other clients could send",
    );
}

impl Limits {
    /// Connections and requests of browsers.
    pub(crate) fn http_gateway_lines(&self) -> Vec<SheetLine> {
        lines![
            Pool(pool::HTTP_CONNECTIONS, "gateway") =
                times(self.http_gateway.connections, self.http_gateway.connection_bytes()),
                "buffers of open connections to the HTTP gateway; a response's head is written \
                 into one that grows to twice its size";
            Pool(pool::HTTP_REQUESTS, "gateway") = whole(self.http_gateway.requests_bytes),
                "bodies of browsers' requests, canisters being asked, and responses being written";
        ]
    }
}
