//! Real connections between members: TCP, authenticated by node keys and encrypted, on the engine's
//! own runtime.

use std::{
    collections::BTreeMap,
    future::Future,
    net::{SocketAddr, TcpListener},
    num::{NonZeroU32, NonZeroUsize},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use commonware_codec::{Copying, DecodeExt as _};
use commonware_consensus::marshal::{self, standard::Standard};
use commonware_cryptography::{
    ChaCha20Poly1305,
    ed25519::{PrivateKey, PublicKey},
    handshake::sake::Error as HandshakeError,
    transcript::Transcript,
};
use commonware_macros::select;
use commonware_p2p::{Address, AddressableManager as _, Ingress, authenticated::lookup};
use commonware_runtime::{
    Clock, Quota, Runner as _, Sink, Spawner as _, Stream, Supervisor as _, tokio as runtime,
};
use commonware_stream::{
    Handshake,
    cups::{self, Cups},
    sake::{self, Sake},
};
use commonware_utils::{Hostname, NZU32, NZUsize, ordered::Map, sync::Mutex};
use futures::channel::mpsc;
use genesis::{NodeRecord, Summary};
use rand_core::CryptoRng;
use state::Height;

use super::{
    ConsensusEngine, Input, StartError, Subnet, SubnetConfig,
    block::{Block, BlockBounds},
    engine::{ChannelName, Channels, IdentityLayer, SenderLayer, Transport},
    key::{self, Scheme},
    peers::BLOCKED,
    runtime::{Layer, LayeredRuntime, MachineLayer, MonotonicClock},
};
use crate::ConsensusDeps;

/// Largest message other than a call: names, shares, headers.
const OVERHEAD_BYTES: usize = 4 << 10;
/// Messages of the engine itself are never larger.
const MESSAGE_BYTES_MIN: usize = 512 << 10;

/// Clocks of two members may differ by so much when they connect: the peer's may be ahead, or it
/// may be behind.
const SYNCHRONY: Duration = Duration::from_secs(30);
const HANDSHAKE_AGE: Duration = SYNCHRONY;
/// Interval of reports on a differing clock. Other nodes try to connect every few seconds.
const CLOCK_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Messages that wait for a peer which takes none: they are held for each such peer, whatever their
/// size.
const OUTBOUND_MAX: NonZeroUsize = NZUsize!(8);
/// Room for peers at least.
const PEERS_MIN: usize = 8;
/// A peer that takes or sends nothing for this time is cut off.
const SILENCE: Duration = Duration::from_secs(15);

/// Sends the time to the other side of a handshake: the current wall-clock time is required. If the
/// other side's time differs by too much, no connection is made, and this is logged: a node whose
/// clock stands still, as after its machine was paused, would otherwise only seem to have no peers.
#[derive(Clone)]
struct WallClockHandshake {
    handshake: Sake<PrivateKey>,
    last_logged: Arc<Mutex<Option<Instant>>>,
}

impl WallClockHandshake {
    fn new(key: PrivateKey) -> Self {
        let handshake = Sake {
            signer: key,
            synchrony_bound: SYNCHRONY,
            max_handshake_age: HANDSHAKE_AGE,
            version: sake::Version::V1,
        };
        Self { handshake, last_logged: Arc::default() }
    }

    fn log_clock_difference(last_logged: &Mutex<Option<Instant>>, error: &sake::Error) {
        let Some(text) = clock_error_text(error) else { return };
        let mut last_logged = last_logged.lock();
        if last_logged.is_none_or(|at| at.elapsed() >= CLOCK_LOG_INTERVAL) {
            *last_logged = Some(Instant::now());
            tracing::warn!("{text}");
        }
    }
}

/// Log text of a handshake that failed because of clocks. The time is the other side's claim: it
/// was not verified.
fn clock_error_text(error: &sake::Error) -> Option<String> {
    let sake::Error::HandshakeError(HandshakeError::InvalidTimestamp(theirs, within)) = error
    else {
        return None;
    };
    let here = within.start.saturating_add(HANDSHAKE_AGE.as_millis() as u64);
    let seconds = Duration::from_millis(here.abs_diff(*theirs)).as_secs_f64();
    let which = if *theirs > here { "behind" } else { "ahead of" };
    Some(format!(
        "no connection with another member: this machine's clock is {seconds:.1} s {which} the \
         other's, and {} s is the most; see that both clocks are set, by NTP for example",
        SYNCHRONY.as_secs()
    ))
}

#[derive(Clone)]
struct WallClockLayer;

impl Layer for WallClockLayer {
    fn current(&self, _: SystemTime) -> SystemTime {
        SystemTime::now()
    }
}

impl Handshake for WallClockHandshake {
    type PublicKey = PublicKey;
    type Error = sake::Error;

    fn public_key(&self) -> PublicKey {
        self.handshake.public_key()
    }

    async fn dial<E: Clock + CryptoRng, I: Stream, O: Sink>(
        self,
        context: E,
        namespace: &[u8],
        peer: PublicKey,
        stream: &mut I,
        sink: &mut O,
    ) -> Result<Transcript, sake::Error> {
        let context = LayeredRuntime::new(context, WallClockLayer);
        let done = self.handshake.dial(context, namespace, peer, stream, sink).await;
        done.inspect_err(|error| Self::log_clock_difference(&self.last_logged, error))
    }

    async fn listen<E: Clock + CryptoRng, I: Stream, O: Sink, B, F>(
        self,
        context: E,
        namespace: &[u8],
        bouncer: B,
        stream: &mut I,
        sink: &mut O,
    ) -> Result<(PublicKey, Transcript), sake::Error>
    where
        B: FnOnce(PublicKey) -> F + Send,
        F: Future<Output = bool> + Send,
    {
        let context = LayeredRuntime::new(context, WallClockLayer);
        let done = self.handshake.listen(context, namespace, bouncer, stream, sink).await;
        done.inspect_err(|error| Self::log_clock_difference(&self.last_logged, error))
    }
}

pub(super) struct Network {
    pub(super) key: PrivateKey,
    pub(super) namespace: Vec<u8>,
    pub(super) listen: SocketAddr,
    /// Addresses that take the place of those members stated.
    pub(super) addresses: BTreeMap<String, Address>,
    /// Most bytes of a message of any channel.
    pub(super) message_bytes: usize,
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
    // Peers that connect from there authenticate by their key; the source address is not checked.
    let egress = SocketAddr::from(([0, 0, 0, 0], port));
    Ok(Address::Asymmetric { ingress: Ingress::Dns { host, port }, egress })
}

/// Peers to connect to: the members, and the members of the next epoch, which may have to fetch the
/// state.
///
/// At most `peers_max`, the number of queues made at the start of the node.
fn peers(
    summary: &Summary,
    addresses: &BTreeMap<String, Address>,
    peers_max: usize,
) -> Map<PublicKey, Address> {
    let known = |member: &NodeRecord| {
        let key = member.node_key().to_bytes();
        let stated = || address(member.address()).ok();
        let address = addresses.get(&member.node_id().to_text()).cloned().or_else(stated)?;
        Some((PublicKey::decode(Copying(&key)).ok()?, address))
    };
    let all = distinct(summary);
    if all.len() > peers_max {
        tracing::error!(
            members = all.len(),
            connected = peers_max,
            "the subnet grew beyond what this node made room for when it started: start it again, \
             so that it connects to all"
        );
    }
    Map::from_iter_dedup(all.into_iter().take(peers_max).filter_map(known))
}

/// Members, then those who are to be members next and are not.
fn distinct(summary: &Summary) -> Vec<&NodeRecord> {
    let members = summary.members();
    let is_member =
        |node: &&NodeRecord| members.iter().any(|member| member.node_key() == node.node_key());
    members.iter().chain(summary.next_members().iter().filter(|node| !is_member(node))).collect()
}

/// Notifies the driver on drop that the engine ended: others hold on to its channel, so that the
/// end would not show otherwise.
struct EndNotifier(mpsc::Sender<Input>);

impl Drop for EndNotifier {
    fn drop(&mut self) {
        // Each sender has a reserved slot in the channel. A driver that is gone needs no notice.
        let _ = self.0.try_send(Input::Ended);
    }
}

fn block_message_bytes(members: usize, bounds: &BlockBounds) -> usize {
    marshal::max_payload_size::<Standard<Block>, Scheme>(members as u32, bounds)
}

impl Subnet {
    /// Connects to the other members and takes part. `resume_from` is the height execution
    /// restarted from.
    ///
    /// # Errors
    /// When its address cannot be listened at, and those of [`Self::assemble`].
    pub fn start(
        deps: ConsensusDeps,
        config: SubnetConfig,
        resume_from: Height,
    ) -> Result<Self, StartError> {
        Self::start_through(deps, config, resume_from, IdentityLayer)
    }

    /// The same, with everything the node sends passing through `layer`.
    pub fn start_through<L: SenderLayer>(
        deps: ConsensusDeps,
        config: SubnetConfig,
        resume_from: Height,
        layer: L,
    ) -> Result<Self, StartError> {
        let addresses = config
            .addresses
            .iter()
            .map(|(member, address)| Ok((member.clone(), self::address(address)?)))
            .collect::<Result<_, StartError>>()?;
        let (key, listen, directory) =
            (key::node_key(&config.node_secret)?, config.listen, config.directory.clone());
        // The engine opens its own listener: this one reports an error immediately.
        drop(TcpListener::bind(listen).map_err(|error| StartError::Listen { listen, error })?);
        let call_bytes =
            usize::try_from(config.call_bytes).unwrap_or(usize::MAX / 2) + OVERHEAD_BYTES;
        let namespace = key::namespace(&config.genesis);
        let (mut subnet, prepared) = Self::assemble(deps, config, resume_from)?;
        let block_bytes = block_message_bytes(genesis::NODES_MAX, &prepared.deps.block_bounds());
        let network = Network {
            key,
            namespace,
            listen,
            addresses,
            message_bytes: block_bytes.max(call_bytes).max(MESSAGE_BYTES_MIN),
            directory,
        };
        let ended = EndNotifier(prepared.input_tx.clone());
        subnet.engine =
            Some(std::thread::Builder::new().name("consensus".into()).spawn(move || {
                // However the thread ends, by a panic too.
                let _ended = ended;
                run(network, prepared, layer);
            })?);
        Ok(subnet)
    }
}

/// Threads of the engine's tasks, on a machine of this number of cores. A message between two tasks
/// wakes an idle thread, and the tasks of a round wait for each other: on few cores a second thread
/// costs more in wake-ups than it gains.
fn worker_threads(cores: usize) -> usize {
    if cores > 2 { 2 } else { 1 }
}

/// Runs the engine until it ends. Blocks the calling thread.
fn run<L: SenderLayer>(network: Network, prepared: ConsensusEngine, layer: L) {
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let config = runtime::Config::new()
        .with_worker_threads(worker_threads(cores))
        .with_max_blocking_threads(4)
        .with_tcp_nodelay(Some(true))
        .with_read_write_timeout(SILENCE)
        .with_storage_directory(network.directory.clone());
    runtime::Runner::new(config).start(|context| async move {
        let clock = MonotonicClock::starting_at(context.current());
        let machine = MachineLayer { clock, blobs: prepared.blobs() };
        let context = LayeredRuntime::new(context, machine);
        // Memory is taken for each: twice as many as there are leaves room to grow until the next
        // start.
        let peers_max = (2 * distinct(&prepared.deps.resharing.summary()).len()).max(PEERS_MIN);
        let members = NonZeroUsize::new(peers_max).unwrap_or(NonZeroUsize::MIN);
        let handshake = Cups::<_, ChaCha20Poly1305>::new(
            WallClockHandshake::new(network.key.clone()),
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
        config.block_duration = BLOCKED;
        let (mut connections, oracle) = lookup::Network::new(context.child("network"), config);
        let peering = Box::new({
            let (mut oracle, addresses) = (oracle.clone(), network.addresses);
            move |summary: &Summary| {
                // The network's task may be gone, and with it the node.
                let _ = oracle.track(summary.epoch(), peers(summary, &addresses, peers_max));
            }
        });

        // Messages that arrive and are not taken yet are bounded per channel by burst times peers:
        // small where messages are large.
        let small = Quota::per_second(NZU32!(512)).allow_burst(NZU32!(64));
        let large = |per_second: u32, burst: u32| {
            let nonzero = |n| NonZeroU32::new(n).unwrap_or(NonZeroU32::MIN);
            Quota::per_second(nonzero(per_second)).allow_burst(nonzero(burst))
        };
        let mut register =
            |channel: ChannelName, quota| connections.register(channel as u64, quota);
        let channels = Channels {
            votes: register(ChannelName::Votes, small),
            certificates: register(ChannelName::Certificates, small),
            resolver: register(ChannelName::Resolver, small),
            broadcast: register(ChannelName::Broadcast, large(64, 16)),
            backfill: register(ChannelName::Backfill, large(512, 32)),
            calls: register(ChannelName::Calls, large(512, 16)),
            roots: register(ChannelName::Roots, small),
            // Chunks of a quarter of a megabyte, a few of each peer at once.
            sync: register(ChannelName::Sync, large(256, 8)),
            outcalls: register(ChannelName::Outcalls, large(256, 4)),
        }
        .layered(&layer);
        let network = connections.start();
        let node = context.child("node").spawn(move |context| {
            let transport = Transport { channels, peers: oracle.clone(), blocker: oracle, peering };
            prepared.run(context, String::new(), transport)
        });
        // An actor that panics, as it does when the disk fails it, ends the node's task; without
        // connections a node would only seem to take part.
        select! {
            _ = node => {},
            _ = network => tracing::error!("this node's connections to the other members ended"),
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_error_text_states_the_difference_in_seconds() {
        let now = 1_000_000;
        let window = now - HANDSHAKE_AGE.as_millis() as u64..now + SYNCHRONY.as_millis() as u64;
        let text = |theirs| {
            let error = HandshakeError::InvalidTimestamp(theirs, window.clone());
            clock_error_text(&sake::Error::HandshakeError(error)).unwrap_or_default()
        };
        assert!(text(now + 42_500).contains("42.5 s behind the other's"));
        assert!(text(now - 31_000).contains("31.0 s ahead of the other's, and 30 s is the most"));
        assert_eq!(clock_error_text(&HandshakeError::InvalidSignature.into()), None);
    }
}
