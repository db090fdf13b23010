//! Limits of known peers, connected or not.

use accounting::KIB;
use memory_budget::{Rules, SheetLine, limit, lines, times};

use crate::{Limits, SCALE, pool};

/// A known peer: key, addresses, its signed record.
pub const PEER_BYTES: u64 = 2 * KIB;
/// Records in one answer of peer exchange.
const PEER_EXCHANGE_PEERS: u64 = 100;

const _: () = {
    assert!(rows::known_peers.covers(&rows::discovery_table));
    assert!(rows::known_peers.covers(&rows::outbound_relay_peers));
    assert!(SCALE.fixed(PEER_EXCHANGE_PEERS).covers(&rows::peer_exchange_peers));
    assert!(rows::retry_seconds_max.covers(&rows::retry_seconds));
    assert!(rows::requests_burst.covers(&rows::requests_per_second));
};

memory_budget::limits! {
    SCALE;
    /// Limits on known peers.
    #[serde(deny_unknown_fields)]
    pub struct PeerLimits as peers of Limits, rules check {
        /// Peers whose addresses are known. Beyond it those that failed longest leave.
        known_peers: u64 = values([256, 384, 512, 1024, 2048, 4096, 8192]), local,
            pays line("peer_store"), bounds [at_least(1, "the service could not be used")],
            reason "2 KiB each; twice as many as connections";
        /// Peers in one answer of peer exchange.
        peer_exchange_peers: u64 = fixed(60), local,
            bounds [
                at_least(1, "the service could not be used"),
                at_most(PEER_EXCHANGE_PEERS, "an answer is one frame, which other nodes read \
                                              up to 64 KiB"),
            ],
            reason "a record is 300 bytes at most, so an answer is 18 kB";
        /// Records in the table of the discovery protocol, and sessions with their nodes. Beyond it
        /// records leave, those first whose nodes do not answer.
        discovery_table: u64 = values([128, 192, 256, 512, 1024, 1024, 2048]), local,
            pays line("peer_store"), bounds [at_least(1, "the service could not be used")],
            reason "2 KiB each; at 128 MiB sixteen for each of sixteen distances";
        /// Discovery packets a second that this relay did not wait for. Beyond it they are dropped.
        discovery_packets_per_second: u64 = fixed(100), local,
            bounds [
                at_least(1, "the service could not be used"),
                at_most(10_000, "each may begin a handshake, which is kept for a second"),
            ],
            reason "bounds handshakes under way; a busy node sees a few a second";
        /// Names that are asked for at one reading of a node list in the DNS; the rest is left for
        /// the next.
        node_list_names: u64 = fixed(500), local,
            bounds [
                at_least(1, "the service could not be used"),
                at_most(100_000, "names asked for are kept until the end"),
            ],
            reason "lists of Waku fleets have tens of nodes; a name costs a DNS request";
        /// Relay peers that this relay dials, among those it found. With fewer it dials further
        /// ones.
        outbound_relay_peers: u64 = values([8, 10, 12, 20, 32, 48, 64]), local,
            reason "two meshes of d_low; a quarter of gossip peers, so that others can come";
        /// Dials under way at once.
        dials: u64 = fixed(4), local, bounds [at_least(1, "the service could not be used")],
            reason "each is a handshake; a lost network is dialled again within seconds";
        /// Time until a peer that could not be reached is dialled again; doubles with each failure.
        retry_seconds: u64 = fixed(5), local, bounds [at_least(1, "the service could not be used")],
            reason "a peer that restarts is back";
        /// The longest such time.
        retry_seconds_max: u64 = fixed(3_600), local,
            reason "a peer that is gone costs a dial an hour until it leaves";
        /// Peer exchange requests of one peer per second, on average. Beyond it 429.
        requests_per_second: u64 = fixed(1), local,
            bounds [at_least(1, "the service could not be used")],
            reason "a client asks once and then every few minutes";
        /// Peer exchange requests of one peer at once after a pause.
        requests_burst: u64 = fixed(10), local,
            bounds [at_least(1, "the service could not be used")],
            reason "clients that are started together behind one key";
    }
}

fn check(limits: &Limits, rules: &mut Rules) {
    rules.within(
        limit!(limits.peers.outbound_relay_peers),
        limit!(limits.gossip.peers),
        "they are gossiped with",
    );
    rules.within(
        limit!(limits.peers.dials),
        limit!(limits.connections.connections),
        "each becomes a connection",
    );
    rules.within(
        limit!(limits.peers.retry_seconds),
        limit!(limits.peers.retry_seconds_max),
        "the time doubles up to there",
    );
}

impl Limits {
    /// Known peers.
    pub(crate) fn peer_lines(&self) -> Vec<SheetLine> {
        let peers = &self.peers;
        lines![
            Pool(pool::PEER_STORE, "relay") =
                times(peers.known_peers.saturating_add(peers.discovery_table), PEER_BYTES),
                "known peers and the discovery table";
        ]
    }
}
