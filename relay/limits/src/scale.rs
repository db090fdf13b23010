//! Every limit that depends on the memory size, as values at a few sizes.
//!
//! A row names its value at each of the sizes of [`SCALE`]; [`sheet::Row`] defines the values
//! between them.
//!
//! How the sizes are used: at 64 MiB nearly half goes to the process, the kernel and the page
//! cache, and the pools hold what one busy relay needs of each thing at least. Up to 1 GiB pools
//! grow with the size. Beyond, they grow slower: what is left over is page cache, which is where
//! messages live.

use sheet::{Row, Scale};

/// Memory sizes in MiB at which every row names its values.
const SCALE: Scale<7> = Scale::new([64, 96, 128, 256, 512, 1024, 4096]);

type Sized = Row<7>;

// Process.                                         64  96 128 256 512 1024 4096
pub(crate) const BASE: Sized = SCALE.mib([12, 14, 16, 24, 40, 64, 192]);
pub(crate) const KERNEL: Sized = SCALE.mib([8, 10, 12, 24, 40, 80, 256]);
pub(crate) const PAGE_CACHE_FLOOR: Sized = SCALE.mib([9, 16, 20, 36, 72, 144, 1024]);

// Connections.
pub(crate) const CONNECTIONS: Sized = SCALE.values([96, 160, 256, 512, 1024, 2048, 6144]);
pub(crate) const HANDSHAKES: Sized = SCALE.values([16, 24, 32, 64, 64, 128, 256]);
pub(crate) const STREAMS: Sized = SCALE.values([512, 768, 1024, 2048, 4096, 8192, 32_768]);
pub(crate) const STREAMS_PER_CONNECTION: Sized = SCALE.values([128, 128, 128, 128, 256, 256, 256]);
pub(crate) const UNREAD_PER_CONNECTION: Sized = SCALE.granules([4, 5, 6, 8, 16, 16, 16]);
pub(crate) const UNREAD: Sized = SCALE.mib([3, 4, 6, 16, 32, 64, 192]);
pub(crate) const SOCKET_BUFFER: Sized = SCALE.granules([1, 1, 1, 2, 4, 4, 8]);

// Messages.
pub(crate) const RECEIVING: Sized = SCALE.mib([3, 5, 8, 16, 32, 64, 256]);
pub(crate) const APPENDING: Sized = SCALE.mib([3, 5, 8, 16, 32, 64, 128]);
pub(crate) const SENDING: Sized = SCALE.mib([2, 3, 4, 8, 16, 32, 128]);

// Gossip.
pub(crate) const GOSSIP_PEERS: Sized = SCALE.values([24, 32, 48, 80, 128, 192, 256]);
pub(crate) const TOPICS: Sized = SCALE.values([16, 24, 32, 64, 128, 256, 1024]);
pub(crate) const TOPICS_PER_PEER: Sized = SCALE.values([32, 48, 64, 128, 128, 256, 1024]);
pub(crate) const HISTORY_MESSAGES: Sized =
    SCALE.values([8192, 12_288, 16_384, 32_768, 65_536, 131_072, 262_144]);
pub(crate) const SEEN_ENTRIES: Sized =
    SCALE.values([24_576, 40_960, 65_536, 131_072, 262_144, 524_288, 1_048_576]);
pub(crate) const QUEUE_PER_PEER: Sized =
    SCALE.values([1024, 2048, 4096, 8192, 8192, 16_384, 16_384]);
pub(crate) const GOSSIP_QUEUES: Sized = SCALE.mib([1, 2, 3, 6, 12, 24, 64]);
pub(crate) const IHAVE_IDS: Sized = SCALE.values([400, 500, 750, 1200, 2500, 5000, 5000]);
pub(crate) const IWANT_IDS: Sized = SCALE.values([400, 500, 750, 1200, 2500, 5000, 5000]);
pub(crate) const IDONTWANT_IDS: Sized = SCALE.values([256, 384, 512, 768, 1024, 2048, 4096]);

// Filter.
pub(crate) const RECEIVERS: Sized = SCALE.values([48, 80, 128, 256, 512, 1024, 3072]);
pub(crate) const SUBSCRIPTIONS: Sized =
    SCALE.values([4096, 6144, 8192, 16_384, 32_768, 65_536, 262_144]);
pub(crate) const QUEUE_PER_RECEIVER: Sized =
    SCALE.values([4096, 6144, 8192, 16_384, 32_768, 65_536, 65_536]);
pub(crate) const PUSH_QUEUES: Sized = SCALE.mib([2, 3, 4, 8, 16, 32, 128]);
pub(crate) const PUSHES_IN_FLIGHT: Sized = SCALE.values([4, 4, 4, 8, 8, 16, 16]);

// Light push.
pub(crate) const PUSH_REQUESTS: Sized = SCALE.values([128, 192, 256, 512, 1024, 2048, 4096]);

// Store. Connections to databases are steps: each brings its cache, which is at hand at an anchor.
pub(crate) const RETENTION: Sized = SCALE.mib([1024, 2048, 4096, 8192, 16_384, 32_768, 131_072]);
pub(crate) const SEGMENT: Sized = SCALE.mib([16, 16, 32, 64, 64, 64, 128]);
pub(crate) const INDEX_CONNECTIONS: Sized = SCALE.values([3, 3, 4, 6, 8, 16, 16]);
pub(crate) const INDEX_CACHE: Sized = SCALE.granules([8, 12, 16, 32, 64, 64, 128]);
pub(crate) const INDEX_QUEUE: Sized =
    SCALE.values([4096, 6144, 8192, 16_384, 32_768, 65_536, 131_072]);
pub(crate) const QUERY_THREADS: Sized = SCALE.values([1, 1, 2, 2, 4, 4, 8]);
pub(crate) const QUERIES_WAITING: Sized = SCALE.values([8, 12, 16, 32, 64, 128, 512]);

// Peers.
pub(crate) const KNOWN_PEERS: Sized = SCALE.values([256, 384, 512, 1024, 2048, 4096, 8192]);
pub(crate) const DISCOVERY_TABLE: Sized = SCALE.values([128, 192, 256, 512, 1024, 1024, 2048]);
pub(crate) const OUTBOUND: Sized = SCALE.values([8, 10, 12, 20, 32, 48, 64]);

// The REST interface.
pub(crate) const HTTP_CONNECTIONS: Sized = SCALE.values([16, 24, 32, 64, 128, 256, 512]);
pub(crate) const BODIES: Sized = SCALE.granules([16, 24, 32, 64, 128, 256, 512]);
pub(crate) const RESPONSES: Sized = SCALE.granules([16, 24, 32, 64, 128, 256, 512]);
pub(crate) const HTTP_SUBSCRIPTIONS: Sized = SCALE.values([32, 48, 64, 128, 256, 512, 1024]);
pub(crate) const CACHE_MESSAGES: Sized = SCALE.values([64, 64, 64, 128, 128, 256, 256]);

// Relations between rows.
const _: () = {
    assert!(CONNECTIONS.covers(&HANDSHAKES) && CONNECTIONS.covers(&GOSSIP_PEERS));
    assert!(CONNECTIONS.covers(&RECEIVERS) && GOSSIP_PEERS.covers(&OUTBOUND));
    assert!(
        STREAMS.covers(&STREAMS_PER_CONNECTION) && STREAMS_PER_CONNECTION.covers(&PUSHES_IN_FLIGHT)
    );
    assert!(UNREAD.covers(&UNREAD_PER_CONNECTION));
    assert!(TOPICS_PER_PEER.covers(&TOPICS) && SCALE.flat(1024).covers(&TOPICS_PER_PEER));
    assert!(INDEX_CONNECTIONS.covers(&QUERY_THREADS));
    assert!(RETENTION.covers(&SEGMENT) && SEEN_ENTRIES.covers(&HISTORY_MESSAGES));
};
