//! Limits of reading the roots of the membership tree from an Ethereum RPC server (RLN).

use accounting::{KIB, MIB};
use memory_budget::{Rules, SheetLine, limit, lines, whole};

use crate::{Limits, SCALE};

/// One call in addition to its response: TLS session and records, the head of the response, the
/// request. Calls are made one after the other.
const CALL_BYTES: u64 = 112 * KIB;

memory_budget::limits! {
    SCALE;
    /// Limits of reading valid roots from a contract, in a relay of a network with RLN.
    #[serde(deny_unknown_fields)]
    pub struct RootsLimits as roots of Limits, rules check {
        /// Time between two refreshes while all messages name known roots.
        refresh_seconds: u64 = fixed(10), local,
            bounds [
                at_least(1, "public servers limit the rate of calls"),
                at_most(3_600, "roots of new members would be missed"),
            ],
            reason "the contract keeps the 5 newest roots; one call each time";
        /// Least time between two refreshes, also when messages name unknown roots.
        refresh_interval_millis: u64 = fixed(2_000), local,
            bounds [at_least(100, "any sender could cause calls without limit")],
            reason "a block of the chain takes about 2 s";
        /// Time for one call, connecting included. Beyond it the next server is asked.
        request_millis: u64 = fixed(5_000), local,
            bounds [
                at_least(100, "honest servers would be given up"),
                at_most(60_000, "a silent server would delay all others"),
            ],
            reason "a call takes a tenth of a second; all servers are asked within half a minute";
        /// Largest response to one call. A longer one is a failure of that server.
        response_bytes: u64 = fixed(16 * KIB), local, pays line("eth_rpc"),
            bounds [
                at_least(KIB, "the roots of the contract must fit"),
                at_most(MIB, "a server could fill the memory of the relay"),
            ],
            reason "five roots take 400 bytes as text";
        /// Time without an answer of any server after which the roots count as stale; and for which
        /// one of several has answered alone before its new roots are used.
        stale_seconds: u64 = fixed(60), local,
            bounds [at_least(1, "one lost packet would be reported")],
            reason "six refreshes that failed at every server";
        /// Time for which servers may report different roots before it counts as disagreement.
        disagree_seconds: u64 = fixed(30), local,
            reason "servers see a new block within seconds of each other";
    }
}

fn check(limits: &Limits, rules: &mut Rules) {
    let refresh = limit!(limits.roots.refresh_seconds);
    rules.within(refresh, limit!(limits.roots.stale_seconds), "one refresh must be due before");
}

impl Limits {
    /// The call that is made.
    pub(crate) fn roots_lines(&self) -> Vec<SheetLine> {
        lines![
            Fixed("eth_rpc", "relay") = whole(self.roots.response_bytes.saturating_add(CALL_BYTES)),
                "one call to an Ethereum RPC server: TLS, request and response";
        ]
    }
}
