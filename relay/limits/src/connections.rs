//! Limits of connections, streams and multiplexers.

use accounting::{KIB, MIB};
use memory_budget::{Rules, SheetLine, limit, lines, times, whole};

use crate::{Limits, SCALE, pool};

/// A stream: its multiplexer's state, the negotiation of its protocol, the task that serves it.
pub const STREAM_BYTES: u64 = 4 * KIB;

const _: () = {
    assert!(rows::connections.covers(&rows::handshakes));
    assert!(rows::connections.covers(&crate::gossip::rows::peers));
    assert!(rows::connections.covers(&rows::connections_per_peer));
    assert!(rows::streams.covers(&rows::streams_per_connection));
    assert!(rows::idle_seconds.covers(&crate::filter::rows::ping_seconds), "receivers ping");
    assert!(rows::idle_seconds.covers(&rows::stalled_seconds));
    assert!(rows::unread_bytes.covers(&rows::unread_bytes_per_connection));
};

memory_budget::limits! {
    SCALE;
    /// Limits on connections.
    #[serde(deny_unknown_fields)]
    pub struct ConnectionLimits as connections of Limits, rules check {
        /// Open connections, in and out. Beyond it a new one is not accepted.
        connections: u64 = values([96, 160, 256, 512, 1024, 2048, 6144]), local,
            pays line("connections"), reason "40 KiB each; a sixteenth of memory, or a little more";
        /// Connections of one peer. Beyond it the new one is closed.
        connections_per_peer: u64 = fixed(3), local, bounds [at_least(1, "nobody could connect")],
            reason "one in use, one that a dead link left, one both sides dialled";
        /// Connections from one IP address (an IPv6 prefix of 64 bits counts as one). Beyond it a
        /// new one is closed before it is negotiated.
        connections_per_address: u64 = follows(half_of_connections), local,
            bounds [at_least(1, "nobody could connect")],
            reason "follows connections: one address never has more than half";
        /// Inbound connections being negotiated at once. Beyond it they wait in the listener's
        /// backlog.
        handshakes: u64 = values([16, 24, 32, 64, 64, 128, 256]), local,
            bounds [at_least(1, "nobody could connect")],
            reason "each is work for a core before the peer is known";
        /// Time to negotiate a connection; then it is closed.
        handshake_seconds: u64 = fixed(10), local,
            bounds [
                at_least(1, "nobody could connect"),
                at_most(120, "a peer that says nothing would hold a place for ever"),
            ],
            reason "five round trips over a slow link, each of two seconds";
        /// Charge of one open connection in the pool `connections`: noise, multiplexer, state.
        connection_bytes: u64 = fixed(40 * KIB), local, pays line("connections"),
            bounds [
                at_least(16 * KIB, "noise and a multiplexer take more, and the pool would \
                                    promise what is not there"),
            ],
            reason "measured: noise and yamux, idle";
        /// Open streams over all connections. Beyond it a new one is reset.
        streams: u64 = values([512, 768, 1024, 2048, 4096, 8192, 32_768]), local,
            pays line("streams"), reason "4 KiB each; two to ten per connection in work";
        /// Open streams of one connection, in each direction. Beyond it a new one is reset.
        streams_per_connection: u64 = values([128, 128, 128, 128, 256, 256, 256]), local,
            bounds [
                at_least(8, "a relay peer has two streams for gossip, identify, ping and \
                             metadata, and requests beside"),
            ],
            reason "stock clients open one stream per request, many at once";
        /// Bytes one connection's multiplexer may hold that no stream consumed. Beyond it the
        /// socket is not read.
        unread_bytes_per_connection: u64 = granules([4, 5, 6, 8, 16, 16, 16])
            follows(largest_frame_and_more), local, pays within("unread"),
            reason "the largest frame and the beginning of the next";
        /// The same over all connections: the pool `unread`.
        unread_bytes: u64 = mib([3, 4, 6, 16, 32, 64, 192]) follows(unread_at_once), local,
            pays line("unread"),
            reason "most connections hold nothing unread; full, sockets are not read";
        /// Send buffer and receive buffer of a socket, each, as set in the kernel. Bounds the
        /// kernel's memory for a peer that does not read.
        socket_buffer_bytes: u64 = granules([1, 1, 1, 2, 4, 4, 8]), local, pays within("kernel"),
            bounds [
                at_least(16 * KIB, "throughput would be one packet per round trip"),
                at_most(4 * MIB, "the kernel's memory for peers that do not read is the relay's"),
            ],
            reason "what the kernel holds for a peer that never reads; doubled by it";
        /// A stream with bytes to write that takes none for so long is reset, and its peer
        /// disconnected if it takes none at all.
        stalled_seconds: u64 = fixed(20), local,
            bounds [
                at_least(1, "honest peers on slow links would go"),
                at_most(600, "a peer that never reads would hold its streams for ever"),
            ],
            reason "longer than a wireless link pauses";
        /// When nearly all places are taken, a connection on which nothing was asked for so long,
        /// and whose peer neither gossips nor subscribes, is closed for a new one.
        idle_seconds: u64 = fixed(600), local, reason "twice the time in which a receiver pings";
        /// The same for a connection on which nothing was asked ever, since it was opened.
        unused_seconds: u64 = fixed(5), local,
            bounds [at_least(1, "a client could not ask for anything in less")],
            reason "clients ask for something as soon as they are connected";
    }
}

/// One address never has more than half.
fn half_of_connections(limits: &Limits) -> u64 {
    limits.connections.connections.div_ceil(2)
}

/// The largest frame and the beginning of the next, where the value by memory is smaller.
fn largest_frame_and_more(limits: &Limits, least: u64) -> u64 {
    let frame = limits.messages.frame_bytes;
    least.max(frame.saturating_add(frame / 16))
}

/// A few connections that hold all they may, where the pool by memory is smaller.
fn unread_at_once(limits: &Limits, least: u64) -> u64 {
    least.max(limits.connections.unread_bytes_per_connection.saturating_mul(4))
}

fn check(limits: &Limits, rules: &mut Rules) {
    let connections = limit!(limits.connections.connections);
    for limit in [
        limit!(limits.connections.connections_per_peer),
        limit!(limits.connections.connections_per_address),
        limit!(limits.connections.handshakes),
    ] {
        rules.bounds(limits, &[limit.name()]);
        rules.within(limit, connections, "it is a part of all connections");
    }
    let streams = limit!(limits.connections.streams_per_connection);
    rules.within(streams, limit!(limits.connections.streams), "it is a part of all streams");
    let unread = limit!(limits.connections.unread_bytes_per_connection);
    let frame = limit!(limits.messages.frame_bytes);
    rules.within(frame, unread, "the largest frame could never be received");
    let all = limit!(limits.connections.unread_bytes);
    rules.within(unread, all, "it is a part of all that is unread");
    let idle = limit!(limits.connections.idle_seconds);
    let unused = limit!(limits.connections.unused_seconds);
    rules.within(unused, idle, "who asked for something stays longer");
    let ping = limit!(limits.filter.ping_seconds);
    rules.within(ping, idle, "a receiver that pings in time must find its connection open");
}

impl Limits {
    /// Connections and their streams.
    pub(crate) fn connection_lines(&self) -> Vec<SheetLine> {
        let connections = &self.connections;
        lines![
            Pool(pool::CONNECTIONS, "relay") =
                times(connections.connections, connections.connection_bytes),
                "noise, multiplexer and state of open connections";
            Pool(pool::STREAMS, "relay") = times(connections.streams, STREAM_BYTES),
                "open streams: negotiation, and the task that serves them";
            Pool(pool::UNREAD, "relay") = whole(connections.unread_bytes),
                "bytes received by multiplexers that no stream consumed yet";
        ]
    }
}
