//! Four nodes, what lies on their disks, and the links between them.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroUsize,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64},
    },
    time::Duration,
};

use commonware_cryptography::{Signer as _, ed25519::PublicKey};
use commonware_p2p::{
    Recipients,
    simulated::{self, Link, Network as Links, Oracle},
};
use commonware_runtime::{Handle, IoBuf, Quota, Spawner as _, Supervisor as _};
use commonware_utils::{NZU32, NZUsize, Probability, sync::Mutex};
use futures::FutureExt as _;
use genesis::{MembershipChange, Summary};
use limits::ConsensusLimits;
use nidkg::{EncryptionSecretKey, EngineConfig, SecretShare};
use rand::{Rng, rngs::StdRng, seq::SliceRandom};
use sha2::{Digest as _, Sha256};
use state::{SubnetKey, Time};
use zeroize::Zeroizing;

use super::{
    Channels, Context, EPOCH, KeyStore, NODES, RETENTION, Subnet, SubnetConfig, Wiring,
    clients::Calls,
    disk::{Disk, WithDisk},
    drive::drive,
    key,
    real::Real,
    replica::Replica,
    toy::{Toy, ToyReplica},
};
use crate::{BlockLog, IngressPool, WallClock, subnet::engine};

pub(super) struct NoClock;
impl WallClock for NoClock {
    fn now(&self) -> Time {
        Time(0)
    }
}

/// What a node has when it starts again.
pub(super) struct Durable {
    pub(super) folder: tempfile::TempDir,
    /// Of a toy; the real state has its own in the folder.
    pub(super) checkpoint: Toy,
    /// As of the last step, for whoever looks from outside; a life begins where the checkpoint is.
    pub(super) height: u64,
    pub(super) executed: BTreeMap<String, u32>,
}

impl Durable {
    pub(super) fn empty() -> Arc<Mutex<Self>> {
        Arc::new(Mutex::new(Self {
            folder: tempfile::tempdir().unwrap(),
            checkpoint: Toy::default(),
            height: 0,
            executed: BTreeMap::new(),
        }))
    }
}

/// What the run found out, over all nodes and lives.
#[derive(Default)]
pub(super) struct Findings {
    pub(super) roots: BTreeMap<u64, [u8; 32]>,
    pub(super) certified: BTreeMap<u64, [u8; 32]>,
    /// Executed at a height that was certified somewhere: acknowledged.
    pub(super) acknowledged: BTreeSet<String>,
    /// Calls by height, as answered.
    pub(super) calls: BTreeMap<u64, Vec<String>>,
    /// Canisters with code, where there are any.
    pub(super) deployed: usize,
    pub(super) sent: u64,
    pub(super) lives: u64,
    /// States taken over from peers.
    pub(super) syncs: u64,
    pub(super) failures: Vec<String>,
    pub(super) equivocations: u64,
    /// Epochs whose shares were made in the run.
    pub(super) key_epochs: BTreeSet<u32>,
    /// How the key is held, where a block changed that.
    pub(super) keys: BTreeMap<u64, [u8; 32]>,
    /// Of the highest of those blocks.
    pub(super) newest_key: Option<SubnetKey>,
    /// Changes of the members that took effect.
    pub(super) changes: u64,
}

impl Findings {
    /// From this height on the key is held like this.
    pub(super) fn held(&mut self, height: u64, key: &SubnetKey) {
        let summary = Summary::from_bytes(&key.summary).unwrap();
        let epoch = summary.key_epoch().0;
        self.key_epochs.extend((epoch > 0).then_some(epoch));
        self.changes = self.changes.max(summary.changes());
        let held: [u8; 32] = Sha256::digest(postcard::to_stdvec(key).unwrap()).into();
        if *self.keys.entry(height).or_insert(held) != held {
            self.failures.push(format!("the key is held in two ways at height {height}"));
        }
        if self.keys.last_key_value().is_some_and(|(newest, _)| *newest == height) {
            self.newest_key = Some(key.clone());
        }
    }
}

pub(super) type Found = Arc<Mutex<Findings>>;

/// Shares of one node, as they would lie on its disk.
pub(super) struct Vault {
    pub(super) node_key: [u8; 32],
    pub(super) encryption: EncryptionSecretKey,
    pub(super) shares: Mutex<BTreeMap<u32, [u8; 32]>>,
    /// What its operator handed to it.
    pub(super) change: Mutex<Option<MembershipChange>>,
}

impl KeyStore for Arc<Vault> {
    fn share(&self, summary: &Summary) -> Result<Option<SecretShare>, String> {
        let Some(place) = summary.place_of(&self.node_key) else { return Ok(None) };
        let epoch = summary.key_epoch().0;
        if let Some(bytes) = self.shares.lock().get(&epoch) {
            return Ok(Some(SecretShare::from_bytes(place, bytes).unwrap()));
        }
        let engine = nidkg::Engine::new(arithmetic()).unwrap();
        let share =
            summary.open_share(&engine, place, &self.encryption).map_err(|error| error.to_string())?;
        self.shares.lock().insert(epoch, share.to_bytes());
        Ok(Some(share))
    }

    fn voted(&self) -> Result<Option<u64>, String> {
        // Its simulated disk is never lost as a whole.
        Ok(None)
    }

    fn membership_change(&self, summary: &Summary) -> Option<Vec<u8>> {
        let change = self.change.lock();
        let change = change.as_ref().filter(|change| summary.members_after(change).is_ok())?;
        Some(Summary::change(change))
    }
}

pub(super) fn arithmetic() -> EngineConfig {
    EngineConfig { threads: NonZeroUsize::MIN, ..EngineConfig::for_this_machine() }
}

pub(super) struct Member {
    pub(super) secret: [u8; 32],
    pub(super) vault: Arc<Vault>,
    pub(super) durable: Arc<Mutex<Durable>>,
    pub(super) slow: Arc<AtomicU64>,
    pub(super) disk: Arc<Disk>,
    /// The operation of its disk at which each of its lives ends.
    pub(super) ends_with: Option<u64>,
    /// Shows others a state that is not the certified one.
    pub(super) lies: Arc<AtomicBool>,
}

pub(super) struct Net {
    pub(super) context: Context,
    /// The replicated state itself is executed.
    pub(super) real: bool,
    pub(super) oracle: Oracle<PublicKey, Context>,
    pub(super) keys: Vec<PublicKey>,
    pub(super) genesis: Summary,
    pub(super) members: Vec<Member>,
    pub(super) running: BTreeMap<usize, (Handle<()>, Arc<IngressPool>)>,
    pub(super) found: Found,
}

pub(super) fn limits() -> ConsensusLimits {
    ConsensusLimits {
        ingress_pool_bytes: 1 << 20,
        ingress_pool_messages: 1_000,
        block_ingress_bytes: 64 << 10,
        block_ingress_messages: 50,
        ingress_expiry_seconds: 300,
        ingress_drift_seconds: 60,
        idle_round_millis: 1_000,
        execution_lag_blocks: 1,
        certificates_kept: 64,
        blocks_per_epoch: EPOCH,
        checkpoint_block_bytes: 1 << 20,
        retention_rounds: RETENTION,
        retention_block_bytes: 2 << 20,
        sync_bytes_per_second: 8 << 20,
        nidkg_tables_bytes: 0,
    }
}

pub(super) fn probability(value: f64) -> Probability {
    Probability::try_from(value).unwrap()
}

pub(super) fn link(rng: &mut StdRng, success: f64) -> Link {
    Link {
        latency: Duration::from_millis(rng.gen_range(1..60)),
        jitter: Duration::from_millis(rng.gen_range(0..20)),
        success_rate: probability(success),
    }
}

pub(super) type Ends = (simulated::Sender<PublicKey, Context>, simulated::Receiver<PublicKey>);

impl Net {
    pub(super) async fn new(context: &Context, rng: &mut StdRng, real: bool) -> Self {
        let (committee, shares) = nidkg::deal(NODES as u32, 3, rng).unwrap();
        let mut records = Vec::new();
        let mut secrets: Vec<[u8; 32]> = (0..NODES).map(|_| rng.r#gen()).collect();
        secrets.sort_by_key(|secret| key::node_key(secret).unwrap().public_key());
        let keys: Vec<_> = secrets.iter().map(|secret| key::node_key(secret).unwrap().public_key()).collect();
        let (network, oracle) = Links::new_with_peers(
            context.child("network"),
            simulated::Config {
                max_size: 1 << 20,
                max_peers_per_set: NZUsize!(NODES),
                disconnect_on_block: true,
                tracked_peer_sets: NZUsize!(2),
            },
            keys.clone(),
        )
        .await;
        network.start();
        let members: Vec<_> = secrets
            .into_iter()
            .zip(&shares)
            .map(|(secret, share)| {
                let node = ed25519_dalek::SigningKey::from_bytes(&secret);
                let node_key = node.verifying_key();
                let owner = genesis::node_id(&node_key);
                let (public, encryption) = nidkg::generate_key_pair(owner.as_slice(), rng);
                let address = format!("127.0.0.1:{}", 1_000 + records.len());
                records.push(genesis::NodeRecord::new(&node, public, &address).unwrap());
                let shares = Mutex::new(BTreeMap::from([(0, share.to_bytes())]));
                let node_key = node_key.to_bytes();
                (secret, Arc::new(Vault { node_key, encryption, shares, change: Mutex::default() }))
            })
            .map(|(secret, vault)| Member {
                secret,
                vault,
                durable: Durable::empty(),
                slow: Arc::default(),
                disk: Arc::default(),
                ends_with: None,
                lies: Arc::default(),
            })
            .collect();
        Self {
            context: context.child("net"),
            real,
            oracle,
            keys,
            genesis: Summary::from_parts(records, committee).unwrap(),
            members,
            running: BTreeMap::new(),
            found: Arc::default(),
        }
    }

    /// Four nodes that run, with links that lose nothing.
    pub(super) async fn started(context: &Context, rng: &mut StdRng, real: bool) -> Self {
        let mut net = Self::new(context, rng, real).await;
        net.connect(rng, 1.0).await;
        for place in 0..NODES {
            net.start(place).await;
        }
        net
    }

    pub(super) async fn connect(&self, rng: &mut StdRng, success: f64) {
        for from in 0..NODES {
            for to in (0..NODES).filter(|to| *to != from) {
                self.join(rng, from, to, success).await;
            }
        }
    }

    pub(super) async fn join(&self, rng: &mut StdRng, from: usize, to: usize, success: f64) {
        let (from, to) = (self.keys[from].clone(), self.keys[to].clone());
        let _ = self.oracle.remove_link(from.clone(), to.clone()).await;
        self.oracle.add_link(from, to, link(rng, success)).await.unwrap();
    }

    pub(super) async fn cut(&self, from: usize, to: usize) {
        let _ = self.oracle.remove_link(self.keys[from].clone(), self.keys[to].clone()).await;
    }

    pub(super) async fn channels(
        &self,
        place: usize,
    ) -> Channels<simulated::Sender<PublicKey, Context>, simulated::Receiver<PublicKey>> {
        let control = self.oracle.control(self.keys[place].clone());
        let quota = Quota::per_second(NZU32!(512));
        Channels {
            votes: control.register(engine::VOTES, quota).await.unwrap(),
            certificates: control.register(engine::CERTIFICATES, quota).await.unwrap(),
            resolver: control.register(engine::RESOLVER, quota).await.unwrap(),
            broadcast: control.register(engine::BROADCAST, quota).await.unwrap(),
            backfill: control.register(engine::BACKFILL, quota).await.unwrap(),
            calls: control.register(engine::CALLS, quota).await.unwrap(),
            roots: control.register(engine::ROOTS, quota).await.unwrap(),
            sync: control.register(engine::SYNC, quota).await.unwrap(),
        }
    }

    pub(super) fn config(&self, place: usize, key: Option<SubnetKey>) -> SubnetConfig {
        SubnetConfig {
            node_secret: Zeroizing::new(self.members[place].secret),
            genesis: self.genesis.clone(),
            key,
            keys: Box::new(self.members[place].vault.clone()),
            arithmetic: arithmetic(),
            agreed: vec![("epoch".into(), EPOCH)],
            genesis_time: Time(0),
            listen: ([127, 0, 0, 1], 0).into(),
            addresses: BTreeMap::new(),
            directory: PathBuf::new(),
            call_bytes: 64 << 10,
        }
    }

    pub(super) async fn start(&mut self, place: usize) {
        let channels = self.channels(place).await;
        let durable = self.members[place].durable.clone();
        self.launch(place, format!("{place}-"), durable, channels).await;
    }

    /// Starts a life of a node: engine and driver. Neither outlives the other.
    pub(super) async fn launch<S, R>(
        &mut self,
        place: usize,
        storage: String,
        durable: Arc<Mutex<Durable>>,
        channels: Channels<S, R>,
    ) where
        S: commonware_p2p::Sender<PublicKey = PublicKey>,
        R: commonware_p2p::Receiver<PublicKey = PublicKey>,
    {
        let (folder, toy) = {
            let durable = durable.lock();
            (durable.folder.path().to_owned(), durable.checkpoint.clone())
        };
        let lies = self.members[place].lies.clone();
        let replica = if self.real {
            Replica::Real(Box::new(Real::open(&folder, &self.genesis, lies).unwrap()))
        } else {
            Replica::Toy(Box::new(ToyReplica::new(toy, lies)))
        };
        {
            let mut durable = durable.lock();
            durable.height = replica.height().0;
            durable.executed = replica.executed();
        }
        let pool = Arc::new(IngressPool::new(&limits()));
        let wiring = Wiring {
            pool: pool.clone(),
            log: BlockLog::open(&folder, 16 << 10).unwrap(),
            clock: Box::new(NoClock),
            envelopes: Arc::new(Calls),
            limits: limits(),
            states: Some(replica.states()),
        };
        let config =
            SubnetConfig { directory: folder.join("consensus"), ..self.config(place, replica.key()) };
        let (subnet, prepared) = Subnet::prepare(wiring, config, replica.height()).unwrap();
        let control = self.oracle.control(self.keys[place].clone());
        let setup = prepared.setup(storage, channels, (self.oracle.manager(), control), Box::new(|_| ()));
        let life = {
            let mut found = self.found.lock();
            found.lives += 1;
            found.lives
        };
        let context = self.context.child("node").with_attribute("node", place).with_attribute("life", life);
        let member = &self.members[place];
        if let Some(operation) = member.ends_with {
            member.disk.end_with(operation, life.is_multiple_of(2));
        }
        let (found, slow, disk) = (self.found.clone(), member.slow.clone(), member.disk.clone());
        let task = context.spawn(move |context| async move {
            let on_disk = WithDisk::new(context.child("engine"), disk);
            let engine = on_disk.spawn(move |context| engine::run(context, setup));
            let driver = drive(context, subnet, replica, durable, found, slow);
            futures::pin_mut!(driver);
            futures::future::select(engine, driver).await;
        });
        self.running.insert(place, (task, pool));
    }

    /// A crash: every task of the node goes, and with it what storage had not synced.
    pub(super) async fn kill(&mut self, place: usize) {
        if let Some((task, _)) = self.running.remove(&place) {
            task.abort();
            let _ = task.await;
        }
    }

    /// Nodes whose tasks ended by themselves, as they do when the disk fails them.
    pub(super) fn dead(&mut self) -> Vec<usize> {
        let ended = |task: &mut Handle<()>| task.now_or_never().is_some();
        let places: Vec<_> =
            self.running.iter_mut().filter_map(|(place, (task, _))| ended(task).then_some(*place)).collect();
        places.iter().for_each(|place| drop(self.running.remove(place)));
        places
    }

    pub(super) fn heights(&self) -> Vec<u64> {
        self.members.iter().map(|member| member.durable.lock().height).collect()
    }
}

/// Sends of one twin reach `a`, of the other `b`; both hear everybody.
pub(super) fn divide(a: Vec<PublicKey>, b: Vec<PublicKey>) -> impl simulated::SplitForwarder<PublicKey> {
    move |origin: simulated::SplitOrigin, to: &Recipients<PublicKey>, _: &IoBuf| {
        let mine = if origin == simulated::SplitOrigin::Primary { &a } else { &b };
        match to {
            Recipients::All => Some(Recipients::Some(mine.clone())),
            Recipients::Some(some) => {
                Some(Recipients::Some(some.iter().filter(|peer| mine.contains(peer)).cloned().collect()))
            }
            Recipients::One(one) => mine.contains(one).then(|| Recipients::One(one.clone())),
        }
    }
}

/// Puts a node in two places, each with a disk of its own: an equivocating leader made of unmodified code.
pub(super) async fn twins(net: &mut Net, rng: &mut StdRng, place: usize) {
    let mut others: Vec<usize> = (0..NODES).filter(|other| *other != place).collect();
    others.shuffle(rng);
    let pick = |who: &[usize]| who.iter().map(|other| net.keys[*other].clone()).collect::<Vec<_>>();
    let overlap = rng.gen_bool(0.5);
    let forward = divide(pick(&others[..2]), pick(if overlap { &others[1..] } else { &others[2..] }));
    let context = net.context.child("twins");
    let halves = |name: &'static str, (sender, receiver): Ends| {
        let (first, second) = sender.split_with(forward.clone());
        let (hears, too) = receiver.split_with(context.child(name), |_| simulated::SplitTarget::Both);
        ((first, hears), (second, too))
    };
    let all = net.channels(place).await;
    let (v1, v2) = halves("votes", all.votes);
    let (c1, c2) = halves("certificates", all.certificates);
    let (r1, r2) = halves("resolver", all.resolver);
    let (b1, b2) = halves("broadcast", all.broadcast);
    let (f1, f2) = halves("backfill", all.backfill);
    let (k1, k2) = halves("calls", all.calls);
    let (s1, s2) = halves("roots", all.roots);
    let (y1, y2) = halves("sync", all.sync);
    let one = Channels {
        votes: v1,
        certificates: c1,
        resolver: r1,
        broadcast: b1,
        backfill: f1,
        calls: k1,
        roots: s1,
        sync: y1,
    };
    let two = Channels {
        votes: v2,
        certificates: c2,
        resolver: r2,
        broadcast: b2,
        backfill: f2,
        calls: k2,
        roots: s2,
        sync: y2,
    };
    let durable = net.members[place].durable.clone();
    net.launch(place, format!("{place}-"), durable, one).await;
    let first = net.running.remove(&place);
    net.launch(place, "twin-".into(), Durable::empty(), two).await;
    // The second twin is nobody's: it ends with the run.
    if let Some((task, _)) = net.running.remove(&place) {
        std::mem::forget(task);
    }
    if let Some(first) = first {
        net.running.insert(place, first);
    }
}
