//! One member: network, block storage and votes as the node has them, and an application that
//! proposes blocks without content and accepts every block.

use std::{
    net::{Ipv4Addr, SocketAddr},
    num::NonZeroUsize,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use accounting::{
    cpu::{self, CpuTime},
    process::Pid,
};
use bytes::BufMut;
use commonware_actor::Feedback;
use commonware_broadcast::buffered;
use commonware_codec::{Buf, EncodeSize, Error, FixedSize, Read, ReadExt as _, Write};
use commonware_consensus::{
    Heightable, Reporter,
    marshal::{
        self, Start, Update,
        ancestry::Ancestry,
        core::{Actor as Marshal, Mailbox as MarshalMailbox},
        resolver::p2p as backfill,
        standard::{Inline, Standard},
    },
    simplex::{
        self, Engine, Floor, ForwardPolicy, SkipBudget, SkipPolicy,
        elector::RoundRobin,
        scheme::ed25519::Scheme,
        types::{Context, Finalization},
    },
    types::{Epoch, FixedEpocher, Height, ViewDelta},
};
use commonware_cryptography::{
    ChaCha20Poly1305, Digested, Digestible, Hasher as _, Sha256, Signer as _,
    certificate::{ConstantProvider, Verifier as _},
    ed25519::{PrivateKey, PublicKey},
    sha256,
};
use commonware_p2p::{Address, AddressableManager as _, authenticated::lookup};
use commonware_parallel::Sequential;
use commonware_runtime::{
    Clock, Quota, Runner as _, Spawner, Supervisor as _, buffer::paged::CacheRef, tokio as runtime,
};
use commonware_storage::{archive::prunable, translator::EightCap};
use commonware_stream::{
    cups::{self, Cups},
    sake::{self, Sake},
};
use commonware_utils::{
    Acknowledgement as _, NZDuration, NZU16, NZU32, NZU64, NZUsize,
    ordered::{Map, Set},
    sync::Mutex,
};
use futures::StreamExt as _;
use rand_core::CryptoRng;

type Digest = sha256::Digest;
type Mailbox = MarshalMailbox<Scheme, Standard<Block>>;
type Certificates =
    prunable::Archive<EightCap, runtime::Context, Digest, Finalization<Scheme, Digest>>;
type Blocks = prunable::Archive<EightCap, runtime::Context, Digest, Arc<Block>>;

const NAMESPACE: &[u8] = b"thimble-engine-alone";
/// Bytes of a block in addition to parent, height and time: 200 in all.
const FILLER_BYTES: usize = 152;
/// As the node has it.
const MAILBOX: usize = 64;
const OUTBOUND_MAX: NonZeroUsize = NZUsize!(8);
const MESSAGE_BYTES: usize = 512 << 10;
const SILENCE: Duration = Duration::from_secs(15);
const HANDSHAKE_AGE: Duration = Duration::from_secs(30);
const PENDING_MAX: NonZeroUsize = NZUsize!(4);
/// A member continues for the others, which do not end at the same moment.
const LINGER: Duration = Duration::from_secs(2);

/// The work of a member, and its duration.
pub(crate) struct Config {
    pub(crate) place: usize,
    pub(crate) ports: Vec<u16>,
    pub(crate) folder: PathBuf,
    /// From a block to the next one.
    pub(crate) pause: Duration,
    pub(crate) warm_up: Duration,
    pub(crate) measured: Duration,
}

/// A block without meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Block {
    parent: Digest,
    height: u64,
    /// When it was proposed, in microseconds since 1970.
    proposed: u64,
    filler: [u8; FILLER_BYTES],
}

impl Write for Block {
    fn write(&self, out: &mut impl BufMut) {
        self.parent.write(out);
        self.height.write(out);
        self.proposed.write(out);
        self.filler.write(out);
    }
}

impl EncodeSize for Block {
    fn encode_size(&self) -> usize {
        Digest::SIZE + u64::SIZE + u64::SIZE + FILLER_BYTES
    }
}

impl Read for Block {
    type Cfg = ();

    fn read_cfg(buf: &mut impl Buf, (): &()) -> Result<Self, Error> {
        Ok(Self {
            parent: Digest::read(buf)?,
            height: u64::read(buf)?,
            proposed: u64::read(buf)?,
            filler: <[u8; FILLER_BYTES]>::read(buf)?,
        })
    }
}

impl Digestible for Block {
    type Digest = Digest;

    fn digest(&self) -> Digest {
        Sha256::hash(&[&commonware_codec::Encode::encode(self)])
    }
}

impl Heightable for Block {
    fn height(&self) -> Height {
        Height::new(self.height)
    }
}

impl commonware_consensus::Block for Block {
    fn parent(&self) -> Digest {
        self.parent
    }
}

fn now_micros() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_micros() as u64
}

/// Blocks that are final and stored here.
#[derive(Default)]
struct BlockProgress {
    height: u64,
    /// From proposal to delivery, in microseconds.
    latencies: Vec<u64>,
}

#[derive(Clone)]
struct Application {
    pause: Duration,
    delivered: Arc<Mutex<BlockProgress>>,
}

impl<E: Clock + Spawner + CryptoRng> commonware_consensus::Application<E> for Application {
    type SigningScheme = Scheme;
    type Context = Context<Digest, PublicKey>;
    type Block = Block;
    type Input = ();

    async fn propose(
        &mut self,
        (clock, _): (E, Self::Context),
        mut ancestry: impl Ancestry<Block>,
        (): (),
    ) -> Option<Digested<Block>> {
        let parent = ancestry.next().await?;
        let due = parent.inner().proposed.saturating_add(self.pause.as_micros() as u64);
        let wait = Duration::from_micros(due.saturating_sub(now_micros())).min(self.pause);
        if !wait.is_zero() {
            clock.sleep(wait).await;
        }
        let block = Block {
            parent: parent.digest(),
            height: parent.inner().height + 1,
            proposed: now_micros(),
            filler: [0; FILLER_BYTES],
        };
        Some(Digested::compute(block, &Sequential).await)
    }

    async fn verify(&mut self, _: (E, Self::Context), mut ancestry: impl Ancestry<Block>) -> bool {
        let (Some(block), Some(parent)) = (ancestry.next().await, ancestry.next().await) else {
            return false;
        };
        block.inner().height == parent.inner().height + 1
    }
}

impl Reporter for Application {
    type Activity = Update<Block>;

    fn report(&mut self, update: Update<Block>) -> Feedback {
        if let Update::Block(block, ack) = update {
            let block = block.inner();
            let mut delivered = self.delivered.lock();
            delivered.height = block.height;
            delivered.latencies.push(now_micros().saturating_sub(block.proposed));
            drop(delivered);
            ack.acknowledge();
        }
        Feedback::Ok
    }
}

/// A reading of this member.
struct Reading {
    at: Instant,
    cpu: CpuTime,
    height: u64,
}

impl Reading {
    fn now(delivered: &Mutex<BlockProgress>) -> Result<Self, String> {
        let cpu = cpu::tree(Pid::own()).map_err(|error| error.to_string())?;
        Ok(Self { at: Instant::now(), cpu, height: delivered.lock().height })
    }
}

/// Takes part until the measurement is over; returns it as a line of JSON.
pub(crate) fn run(config: Config) -> Result<String, String> {
    let members = config.ports.len();
    if config.place >= members {
        return Err(format!("place {} of {members} members", config.place));
    }
    // As the node configures its own runtime.
    let machine = runtime::Config::new()
        .with_worker_threads(2)
        .with_max_blocking_threads(4)
        .with_tcp_nodelay(Some(true))
        .with_read_write_timeout(SILENCE)
        .with_storage_directory(config.folder.clone());
    runtime::Runner::new(machine).start(|context| take_part(context, config))
}

#[expect(
    clippy::too_many_lines,
    reason = "wiring: every part is made once, in the order in which they need each other"
)]
async fn take_part(context: runtime::Context, config: Config) -> Result<String, String> {
    let keys: Vec<PrivateKey> = (0..config.ports.len() as u64).map(PrivateKey::from_seed).collect();
    let address = |port: &u16| SocketAddr::from((Ipv4Addr::LOCALHOST, *port));
    let participants = Set::from_iter_dedup(keys.iter().map(|key| key.public_key()));
    let (key, port) = (keys[config.place].clone(), &config.ports[config.place]);
    let me = key.public_key();
    let scheme = Scheme::signer(NAMESPACE, participants, key.clone()).ok_or("no member")?;

    let handshake = Sake {
        signer: key,
        synchrony_bound: HANDSHAKE_AGE,
        max_handshake_age: HANDSHAKE_AGE,
        version: sake::Version::V1,
    };
    let mut network = lookup::Config::local(
        Cups::<_, ChaCha20Poly1305>::new(handshake, cups::Version::V1),
        NAMESPACE,
        address(port),
        NZUsize!(8),
        commonware_p2p::max_message_size(&[MESSAGE_BYTES]),
        OUTBOUND_MAX,
    );
    network.bypass_ip_check = true;
    let (mut connections, mut oracle) = lookup::Network::new(context.child("network"), network);
    let peers = keys.iter().zip(&config.ports);
    let peers: Map<PublicKey, Address> = Map::from_iter_dedup(
        peers.map(|(key, port)| (key.public_key(), Address::from(address(port)))),
    );
    let _ = oracle.track(0, peers);
    let small = Quota::per_second(NZU32!(512)).allow_burst(NZU32!(64));
    let votes = connections.register(0, small);
    let certificates = connections.register(1, small);
    let resolver = connections.register(2, small);
    let spread = connections.register(3, small);
    let backfilled = connections.register(4, small);
    connections.start();

    let cache = CacheRef::new(NZU16!(4084), NZUsize!(128));
    let stored_certificates: Certificates = prunable::Archive::init(
        context.child("certificates"),
        archive("certificates", &cache, Scheme::certificate_codec_config_unbounded()),
    )
    .await
    .map_err(|error| error.to_string())?;
    let stored_blocks: Blocks =
        prunable::Archive::init(context.child("blocks"), archive("blocks", &cache, ()))
            .await
            .map_err(|error| error.to_string())?;
    let fetches = backfill::init(
        context.child("backfill"),
        backfill::Config {
            public_key: me.clone(),
            peer_provider: oracle.clone(),
            blocker: oracle.clone(),
            mailbox_size: NZUsize!(MAILBOX),
            fetch_timeout: NZDuration!(Duration::from_secs(2)),
            fetch_retry_delay: Duration::from_millis(100),
            priority_requests: false,
            priority_responses: false,
        },
        backfilled,
    );
    let (broadcast, buffer) = buffered::Engine::new(
        context.child("broadcast"),
        buffered::Config {
            public_key: me,
            mailbox_size: NZUsize!(MAILBOX),
            deque_size: 4,
            priority: false,
            codec_config: (),
            peer_provider: oracle.clone(),
            strategy: Sequential,
        },
    );
    broadcast.start(spread);
    let genesis = Block {
        parent: Sha256::hash(&[NAMESPACE]),
        height: 0,
        proposed: 0,
        filler: [0; FILLER_BYTES],
    };
    let root = genesis.digest();
    let epocher = FixedEpocher::new(NZU64!(1 << 32));
    let (marshal, mailbox, _): (_, Mailbox, _) = Marshal::init(
        context.child("marshal"),
        stored_certificates,
        stored_blocks,
        marshal::Config {
            provider: ConstantProvider::<Scheme, Epoch>::new(scheme.clone()),
            epocher: epocher.clone(),
            start: Start::Genesis(Digested::precomputed(genesis, root)),
            partition_prefix: "marshal".to_owned(),
            mailbox_size: NZUsize!(MAILBOX),
            view_retention: ViewDelta::new(64),
            prunable_items_per_section: NZU64!(16),
            page_cache: cache.clone(),
            replay_buffer: NZUsize!(64 << 10),
            key_write_buffer: NZUsize!(16 << 10),
            value_write_buffer: NZUsize!(64 << 10),
            block_codec_config: (),
            max_repair: NZUsize!(16),
            max_pending_acks: PENDING_MAX,
            strategy: Sequential,
        },
    )
    .await;
    let delivered = Arc::<Mutex<BlockProgress>>::default();
    let application = Application { pause: config.pause, delivered: delivered.clone() };
    marshal.start(application.clone(), buffer, fetches);

    // As the node has them, whose idle interval is a second.
    let leader_timeout = Duration::from_millis(2_500);
    let application = Inline::new(context.child("application"), application, mailbox, epocher);
    let engine = Engine::new(
        context.child("engine"),
        simplex::Config {
            scheme,
            elector: RoundRobin::<Sha256>::default(),
            blocker: oracle,
            automaton: application.clone(),
            relay: application.clone(),
            reporter: application,
            track_historical_votes: false,
            strategy: Sequential,
            partition: "simplex".to_owned(),
            mailbox_size: NZUsize!(MAILBOX),
            epoch: Epoch::zero(),
            floor: Floor::Genesis(root),
            replay_buffer: NZUsize!(64 << 10),
            write_buffer: NZUsize!(16 << 10),
            page_cache: cache,
            leader_timeout,
            certification_timeout: leader_timeout + Duration::from_secs(3),
            timeout_retry: Duration::from_secs(2),
            view_retention: ViewDelta::new(32),
            skip: SkipPolicy::Enabled {
                timeout: 5 * leader_timeout,
                budget: SkipBudget::Participants,
            },
            fetch_timeout: NZDuration!(Duration::from_secs(1)),
            fetch_retry_delay: Duration::from_millis(100),
            forward: ForwardPolicy::SilentVoters,
        },
    );
    engine.start(votes, certificates, resolver);

    context.sleep(config.warm_up).await;
    let before = Reading::now(&delivered)?;
    delivered.lock().latencies.clear();
    context.sleep(config.measured).await;
    let after = Reading::now(&delivered)?;
    let line = line(&before, &after, std::mem::take(&mut delivered.lock().latencies))?;
    context.sleep(LINGER).await;
    Ok(line)
}

fn archive<C>(name: &str, cache: &CacheRef, codec: C) -> prunable::Config<EightCap, C> {
    prunable::Config {
        translator: EightCap,
        metadata_partition: format!("{name}-metadata"),
        key_partition: format!("{name}-key"),
        key_page_cache: cache.clone(),
        value_partition: format!("{name}-value"),
        compression: None,
        codec_config: codec,
        items_per_section: NZU64!(16),
        key_write_buffer: NZUsize!(16 << 10),
        value_write_buffer: NZUsize!(64 << 10),
        replay_buffer: NZUsize!(64 << 10),
    }
}

fn line(before: &Reading, after: &Reading, mut latencies: Vec<u64>) -> Result<String, String> {
    let blocks = after.height.saturating_sub(before.height);
    latencies.sort_unstable();
    let median = latencies.get(latencies.len() / 2).ok_or("no block was final in time")?;
    let spent = after.cpu.since(before.cpu);
    let (user, system) = spent.split_seconds();
    Ok(format!(
        "{{\"blocks\": {blocks}, \"seconds\": {:.3}, \"cpu_seconds\": {:.6}, \
         \"user_seconds\": {user:.6}, \"system_seconds\": {system:.6}, \
         \"latency_p50_millis\": {:.3}}}",
        after.at.duration_since(before.at).as_secs_f64(),
        spent.total.as_secs_f64(),
        *median as f64 / 1e3
    ))
}
