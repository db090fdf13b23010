//! Limits of the HTTP interface.

use accounting::MIB;
use memory_budget::{LimitValue, Rules, SheetLine, limit, lines, times, whole};

use crate::{Limits, SCALE, pool, subnet::MESSAGE_PAYLOAD_BYTES};

/// Buffers of one open connection: read and write buffer, HTTP state.
pub const CONNECTION_BYTES: u64 = 16 << 10;
const BODY_BYTES: u64 = 4 * MIB;
/// A signed answer that is kept for the same request, at most: body, request id, place.
pub const SIGNED_ANSWER_BYTES: u64 = 2 << 10;
/// The results that verification keeps are in the memory of the node itself.
const REMEMBERED_MAX: u64 = 8_192;

const _: () = {
    assert!(CONNECTION_BYTES >= 8 << 10, "HTTP parsers start with a buffer of 8 KiB");
    assert!(
        MESSAGE_PAYLOAD_BYTES * 3 / 2 <= BODY_BYTES,
        "an envelope with all its delegations fits in addition to the largest argument"
    );
    assert!(rows::bodies_bytes.covers(&crate::consensus::rows::block_ingress_bytes));
    assert!(rows::bodies_bytes.covers(&rows::body_bytes), "one body finds room");
    assert!(rows::body_bytes.covers(&crate::subnet::rows::chunk_bytes), "a chunk fits a request");
    assert!(rows::connections.covers(&rows::requests_in_flight));
    assert!(rows::requests_in_flight.covers(&rows::queries_in_flight));
    assert!(rows::requests_in_flight.covers(&rows::sync_calls_waiting));
};

memory_budget::limits! {
    SCALE;
    /// Limits of the HTTP interface.
    #[serde(deny_unknown_fields)]
    pub struct GatewayLimits as gateway of Limits, rules check {
        /// Connections open at once; each reserves [`crate::CONNECTION_BYTES`] for buffers.
        connections: u64 = values([48, 48, 128, 256, 512, 1024, 2048, 4096, 8192]), local,
            pays line("connections"), bounds [at_least(1, "clients could not be served")],
            reason "each has buffers of 16 KiB";
        /// Requests being served.
        requests_in_flight: u64 = values([32, 32, 64, 128, 256, 512, 1024, 2048, 4096]), local,
            bounds [at_least(1, "clients could not be served")],
            reason "more are answered 503 with Retry-After";
        /// Queries waiting for or in a query worker.
        queries_in_flight: u64 = values([8, 8, 16, 32, 64, 128, 256, 512, 1024]), local,
            bounds [at_least(1, "clients could not be served")],
            reason "waiting for or in a query worker; more are answered 429 with Retry-After";
        /// Synchronous calls waiting for their certificate.
        sync_calls_waiting: u64 = values([24, 24, 48, 96, 192, 384, 768, 1536, 3072]), local,
            bounds [at_least(1, "clients could not be served")],
            reason "each holds a request; more are answered 202 at once";
        /// Body of one request.
        body_bytes: u64 = fixed(BODY_BYTES), agreed, pays within("request_bodies"),
            reason "the largest argument, and an envelope with all its delegations";
        /// Bodies of all requests in flight together.
        bodies_bytes: u64 = mib([4, 4, 4, 5, 8, 16, 40, 64, 128]), local,
            pays line("request_bodies"), reason "held in memory until decoded and verified";
        /// Responses being written, together.
        responses_bytes: u64 = mib([3, 3, 4, 5, 8, 16, 40, 64, 128]), local, pays line("responses"),
            reason "held in memory until written";
        /// Time to send headers and body.
        read_timeout_millis: u64 = fixed(10_000), local,
            bounds [
                at_least(100, "honest clients on slow links would be cut off"),
                at_most(600_000, "slow clients would hold their connection for ever"),
            ],
            reason "a client that sends slower loses its connection";
        /// Time a synchronous call waits before 202.
        sync_call_wait_millis: u64 = fixed(10_000), local, reason "then 202, and the client polls";
        /// Paths of one read_state.
        read_state_paths: u64 = fixed(1_000), agreed,
            bounds [at_least(1, "clients could not be served")],
            reason "interface specification: 1000";
        /// Labels of one path.
        read_state_path_labels: u64 = fixed(127), agreed,
            bounds [at_least(1, "clients could not be served")],
            reason "interface specification: 127";
        /// Delegations of one envelope.
        delegations: u64 = fixed(20), agreed, reason "interface specification: 20";
        /// Targets of one delegation.
        delegation_targets: u64 = fixed(1_000), agreed, reason "interface specification: 1000";
        /// Nonce of one request.
        nonce_bytes: u64 = fixed(32), agreed, pays within("request_bodies"),
            bounds [at_least(1, "clients could not be served")],
            reason "interface specification: 32";
        /// Decoded Ed25519 keys that made a valid signature, at the gateway and in agreement each.
        /// The oldest goes first.
        remembered_keys: u64 =
            values([64, 64, 128, 256, 512, 1024, 2048, 4096, 4096]), local,
            pays within("node_process"),
            bounds [at_most(REMEMBERED_MAX, "they are in the memory of the node itself")],
            reason "512 bytes each; beyond it keys are decoded again";
        /// Valid signatures of certificates, and of delegations, at the gateway and in agreement
        /// each. The oldest goes first.
        remembered_signatures: u64 =
            values([256, 256, 512, 1024, 2048, 4096, 4096, 4096, 4096]), local,
            pays within("node_process"),
            bounds [at_most(REMEMBERED_MAX, "they are in the memory of the node itself")],
            reason "128 bytes each; beyond it signatures are verified again";
        /// Signed answers to queries that are kept for the same request, each of at most
        /// [`crate::SIGNED_ANSWER_BYTES`].
        signed_answers: u64 = values([16, 16, 32, 64, 128, 256, 512, 1024, 1024]), local,
            pays within("node_process"),
            bounds [at_most(REMEMBERED_MAX, "they are in the memory of the node itself")],
            reason "2 KiB each; beyond it answers are signed again";
    }
}

fn check(limits: &Limits, rules: &mut Rules) {
    let payload = limit!(limits.subnet.message_payload_bytes);
    let requests = limit!(limits.gateway.requests_in_flight);
    let body = limit!(limits.gateway.body_bytes);
    rules.within(limit!(limits.gateway.queries_in_flight), requests, "a query is a request");
    let waiting = limit!(limits.gateway.sync_calls_waiting);
    rules.within(waiting, requests, "a waiting call is a request in flight");
    rules.within(body, limit!(limits.gateway.bodies_bytes), "the largest body must fit");
    rules.within(payload, body, "the largest argument must fit into a body");
    let responses = limit!(limits.gateway.responses_bytes);
    rules.within(payload, responses, "the largest reply must fit into a response");
    rules.within(
        limit!(limits.gateway.sync_call_wait_millis),
        LimitValue::number(
            "consensus.ingress_expiry_seconds x 1000",
            limits.consensus.ingress_expiry_seconds.saturating_mul(1000),
        ),
        "a call that has expired is not worth waiting for",
    );
}

impl Limits {
    /// Bodies, responses and connections.
    pub(crate) fn gateway_lines(&self) -> Vec<SheetLine> {
        lines![
            Pool(pool::REQUEST_BODIES, "gateway") = whole(self.gateway.bodies_bytes),
                "request bodies being read and verified";
            Pool(pool::RESPONSES, "gateway") = whole(self.gateway.responses_bytes),
                "responses being encoded and written";
            Pool(pool::CONNECTIONS, "gateway") = times(self.gateway.connections, CONNECTION_BYTES),
                "buffers of open connections";
        ]
    }
}
