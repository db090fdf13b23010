//! Limits of requests of canisters to servers outside.
//!
//! Below 512 MiB there is no memory for them in addition to the HTTP gateway: an operator who
//! enables them there takes their memory from something else.

use memory_budget::{Rules, SheetLine, limit, lines, whole};

use crate::{Limits, SCALE, pool, subnet::MESSAGE_PAYLOAD_BYTES};

/// Most bytes of a canister's request to a server outside, and of the response (interface
/// specification, `http_request`).
pub const OUTCALL_REQUEST_BYTES: u64 = 2_000_000;
/// See [`OUTCALL_REQUEST_BYTES`].
pub const OUTCALL_RESPONSE_BYTES: u64 = 2_000_000;
/// Most bytes of the context of a transform in addition to the largest response. A smaller response
/// leaves more for it: both are passed to the transform together.
pub const OUTCALL_CONTEXT_BYTES: u64 = 8 << 10;
/// Memory of an outcall in addition to its response: buffers of its connection and of TLS, headers.
pub const OUTCALL_BESIDE_BYTES: u64 = 256 << 10;

const _: () = {
    assert!(OUTCALL_REQUEST_BYTES <= MESSAGE_PAYLOAD_BYTES, "a request fits a message");
    assert!(OUTCALL_RESPONSE_BYTES <= MESSAGE_PAYLOAD_BYTES, "a response fits a message");
    assert!(OUTCALL_CONTEXT_BYTES < OUTCALL_REQUEST_BYTES);
};

memory_budget::limits! {
    SCALE;
    /// Limits of HTTPS outcalls. Without bytes there are none.
    #[serde(deny_unknown_fields)]
    pub struct OutcallLimits as outcalls of Limits, if OutcallLimits::is_possible, rules check {
        /// Requests of all canisters that are not answered.
        open: u64 = fixed(500), agreed,
            bounds [
                at_least(1, "no request could be made"),
                at_most(5_000, "each round looks at all of them"),
            ],
            reason "each is looked at in every round; further ones are rejected";
        /// Bytes of such requests in the state.
        open_bytes: u64 = mib_steps([0, 0, 4, 4, 8, 8, 8, 16, 16]), agreed,
            pays line("heap_tables", "guaranteed_messages", "state_heap", "checkpoint_records"),
            bounds [at_least(OUTCALL_REQUEST_BYTES + 1_000, "the largest request")],
            reason "written with every checkpoint; two of the largest requests at least";
        /// From the block that has a request to the last that may answer it.
        timeout_seconds: u64 = fixed(60), agreed,
            bounds [
                at_least(1, "no request could be made"),
                at_most(300, "an answer is a call in a block, and calls expire"),
            ],
            reason "as the public network: then a request is rejected";
        /// Requests that this node makes at once.
        in_flight: u64 = steps([0, 0, 0, 0, 48, 96, 192, 384, 512]), local,
            bounds [at_least(1, "no request could be made")],
            reason "further ones wait until others are over, or their time is";
        /// Memory of the requests that this node makes and of answers that are not agreed on yet,
        /// together. 0 where the node has no memory for outcalls.
        bytes: u64 = mib_steps([0, 0, 0, 0, 16, 32, 64, 128, 256]), local, pays line("outcalls"),
            reason "a request waits until there is room for all that it may hold; 0 below 512 \
                    MiB, where there is no memory for outcalls";
        /// Time for this node to have one response.
        request_millis: u64 = fixed(30_000), local,
            bounds [at_least(1, "no request could be made")],
            reason "as the public network: a server has half of a request's time";
    }
}

impl OutcallLimits {
    /// Whether there is memory for outcalls.
    pub fn is_possible(&self) -> bool {
        self.bytes > 0
    }

    /// Memory of a request while it is made: its body in addition to the response that is read,
    /// whose memory may be twice as much while it grows; then the response twice while it is
    /// encoded; and with a transform that has `transform_context` bytes of context, the argument in
    /// three places, as a query has it. Then buffers.
    pub fn request_bytes(body: u64, response_max: u64, transform_context: Option<u64>) -> u64 {
        let read = body.saturating_add(response_max.saturating_mul(2));
        let handed = transform_context
            .map_or(0, |context| response_max.saturating_add(context).saturating_mul(3));
        read.max(handed).saturating_add(OUTCALL_BESIDE_BYTES)
    }
}

fn check(limits: &Limits, rules: &mut Rules) {
    rules.at_least(
        limit!(limits.outcalls.bytes),
        OutcallLimits::request_bytes(
            OUTCALL_REQUEST_BYTES,
            OUTCALL_RESPONSE_BYTES,
            Some(OUTCALL_CONTEXT_BYTES),
        ),
        "one request with the largest response (set it to 0 to have no outcalls)",
    );
    rules.at_least(
        limit!(limits.gateway.body_bytes),
        OUTCALL_RESPONSE_BYTES + (2 << 10),
        "an answer to an outcall is a call in a block",
    );
}

impl Limits {
    /// Requests under way.
    pub(crate) fn outcall_lines(&self) -> Vec<SheetLine> {
        lines![
            Pool(pool::OUTCALLS, "outcalls") = whole(self.outcalls.bytes),
                "requests of canisters to servers outside, and answers that no block has yet";
        ]
    }
}
