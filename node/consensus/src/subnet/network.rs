//! Real connections between members: TCP, authenticated by node keys and encrypted, on the engine's own runtime.

use std::{
    net::SocketAddr,
    num::{NonZeroU32, NonZeroUsize},
    path::PathBuf,
    time::Duration,
};

use commonware_cryptography::{
    ChaCha20Poly1305,
    ed25519::{PrivateKey, PublicKey},
};
use commonware_p2p::{Address, AddressableManager as _, Ingress, authenticated::lookup};
use commonware_runtime::{Quota, Runner as _, Spawner as _, Supervisor as _, tokio as runtime};
use commonware_stream::{
    cups::{self, Cups},
    sake::{self, Sake},
};
use commonware_utils::{Hostname, NZU32, NZUsize, ordered::Map};

use super::{
    Prepared, StartError,
    engine::{self, Channels},
};

/// Clocks of two members may differ by so much when they connect.
const SYNCHRONY: Duration = Duration::from_secs(30);
const HANDSHAKE_AGE: Duration = Duration::from_secs(10);

/// Messages that wait for a peer which takes none: they are held for each such peer, whatever their size.
const OUTBOUND_MAX: NonZeroUsize = NZUsize!(8);
/// A peer that takes or sends nothing for so long is cut off.
const SILENCE: Duration = Duration::from_secs(15);

/// Who to connect to and how.
pub(super) struct Network {
    pub(super) key: PrivateKey,
    pub(super) namespace: Vec<u8>,
    pub(super) listen: SocketAddr,
    pub(super) peers: Vec<(PublicKey, Address)>,
    /// Largest message.
    pub(super) message_bytes: usize,
    /// The engine's storage.
    pub(super) directory: PathBuf,
}

/// `host:port`, where the host is an address or a name.
pub(super) fn address(text: &str) -> Result<Address, StartError> {
    let bad = || StartError::Address(text.to_owned());
    if let Ok(socket) = text.parse::<SocketAddr>() {
        return Ok(socket.into());
    }
    let (host, port) = text.rsplit_once(':').ok_or_else(bad)?;
    let port = port.parse().map_err(|_| bad())?;
    let host = Hostname::new(host).map_err(|_| bad())?;
    // Whoever connects from there shows who it is by its key; where from is not checked.
    let egress = SocketAddr::from(([0, 0, 0, 0], port));
    Ok(Address::Asymmetric { ingress: Ingress::Dns { host, port }, egress })
}

/// Runs the engine until it ends. Blocks the calling thread.
pub(super) fn run(network: Network, prepared: Prepared) {
    let config = runtime::Config::new()
        .with_worker_threads(2)
        .with_max_blocking_threads(4)
        .with_tcp_nodelay(Some(true))
        .with_read_write_timeout(SILENCE)
        .with_storage_directory(network.directory.clone());
    runtime::Runner::new(config).start(|context| async move {
        let members = NonZeroUsize::new(network.peers.len()).unwrap_or(NonZeroUsize::MIN);
        let handshake = Cups::<_, ChaCha20Poly1305>::new(
            Sake {
                signer: network.key.clone(),
                synchrony_bound: SYNCHRONY,
                max_handshake_age: HANDSHAKE_AGE,
                version: sake::Version::V1,
            },
            cups::Version::V1,
        );
        let message_bytes = commonware_p2p::max_message_size(&[network.message_bytes]);
        let mut config = lookup::Config::local(
            handshake,
            &network.namespace,
            network.listen,
            members,
            message_bytes,
            OUTBOUND_MAX,
        );
        config.allow_dns = true;
        // Members are known by their keys; addresses change and hide behind others.
        config.bypass_ip_check = true;
        config.tracked_peer_sets = NZUsize!(2);
        let (mut connections, mut oracle) = lookup::Network::new(context.child("network"), config);
        oracle.track(0, Map::from_iter_dedup(network.peers));

        // What arrives and is not taken yet is bounded per channel by burst times peers: small where messages are large.
        let small = Quota::per_second(NZU32!(512)).allow_burst(NZU32!(128));
        let large = |per_second: u32, burst: u32| {
            let nonzero = |n| NonZeroU32::new(n).unwrap_or(NonZeroU32::MIN);
            Quota::per_second(nonzero(per_second)).allow_burst(nonzero(burst))
        };
        let channels = Channels {
            votes: connections.register(engine::VOTES, small),
            certificates: connections.register(engine::CERTIFICATES, small),
            resolver: connections.register(engine::RESOLVER, small),
            broadcast: connections.register(engine::BROADCAST, large(64, 16)),
            backfill: connections.register(engine::BACKFILL, large(64, 16)),
            calls: connections.register(engine::CALLS, large(256, 8)),
            roots: connections.register(engine::ROOTS, small),
            // Chunks of a quarter of a megabyte, a few of each peer at once.
            sync: connections.register(engine::SYNC, large(256, 8)),
        };
        connections.start();
        let setup = prepared.setup(String::new(), channels, oracle.clone(), oracle);
        let node = context.child("node").spawn(move |context| engine::run(context, setup));
        // An actor that panics, as it does when the disk fails it, ends the node's task.
        let _ = node.await;
    });
}
