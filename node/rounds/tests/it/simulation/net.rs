//! Four nodes and those that may join them, the contents of their disks, and the links between
//! them.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroUsize,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use commonware_codec::{Copying, DecodeExt as _};
use commonware_cryptography::{
    Signer as _,
    ed25519::{PrivateKey, PublicKey},
};
use commonware_p2p::{
    Recipients,
    simulated::{self, Link, Network as Links, Oracle},
};
use commonware_runtime::{Clock as _, Handle, IoBuf, Quota, Spawner as _, Supervisor as _};
use commonware_utils::{NZU32, NZUsize, Probability, sync::Mutex};
use futures::{
    FutureExt as _,
    future::{Either, select},
};
use genesis::{MembershipChange, NodeRecord, Summary};
use limits::ConsensusLimits;
use nidkg::{EncryptionSecretKey, EngineConfig, SecretShare};
use rand::{Rng, rngs::StdRng, seq::SliceRandom};
use sha2::{Digest as _, Sha256};
use state::{CertifiedReader, CertifiedState, SubnetKey, Time};
use zeroize::Zeroizing;

use consensus::{
    Arithmetic, BlockLog, Channels, ConsensusDeps, ConsensusError, IngressPool, KeyStore,
    LayeredRuntime, StateServer, Subnet, SubnetConfig, Transport,
};
use disk::SimulatedDisk;
use rounds::{Driver, RoundError, Settings};

use crate::simulation::{
    Context, EPOCH, NODES, RETENTION, SPARES,
    clients::Calls,
    falsifying_sender::{Falsifier, falsify},
    faulty_machine::{FaultyDiskProbe, FaultyReplica, Files, MachineFaults},
    machine::{Disk, DiskLayer, SimulatedWallClock},
    probe::{AuditedReplica, Probe, SimulatedClock, SlowConsensus},
    real::{self, ScriptSandbox},
    reports::{FalseReports, Reports},
    toy::{Toy, ToyReplica},
};

/// How long the round loop has to learn that the engine ended.
const END_NOTICE: Duration = Duration::from_millis(100);

/// Agreed time of a moment.
pub(crate) fn time_of(moment: SystemTime) -> Time {
    let since = moment.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Time(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

fn key_of(secret: &[u8; 32]) -> PublicKey {
    PrivateKey::decode(Copying(secret)).unwrap().public_key()
}

/// Data of a node that survive a restart.
pub(crate) struct Durable {
    pub(crate) folder: tempfile::TempDir,
    /// Disk of the block log, the journal, votes, floor and the real state: the folder.
    pub(crate) disk: SimulatedDisk,
    /// Of a toy; the real state has its own on the disk.
    pub(crate) checkpoint: Toy,
    /// As of the last step, for checks from outside; a life begins at the checkpoint.
    pub(crate) height: u64,
    pub(crate) executed: BTreeMap<String, u32>,
}

impl Durable {
    pub(crate) fn empty(seed: u64) -> Arc<Mutex<Self>> {
        let folder = tempfile::tempdir().unwrap();
        let disk = SimulatedDisk::new(folder.path(), seed).unwrap();
        Arc::new(Mutex::new(Self {
            folder,
            disk,
            checkpoint: Toy::default(),
            height: 0,
            executed: BTreeMap::new(),
        }))
    }
}

/// Findings of the run, over all nodes and lives.
#[derive(Default)]
pub(crate) struct Findings {
    pub(crate) roots: BTreeMap<u64, [u8; 32]>,
    pub(crate) certified: BTreeMap<u64, [u8; 32]>,
    /// Executed at a height that was certified somewhere: acknowledged.
    pub(crate) acknowledged: BTreeSet<String>,
    /// Calls by height, as answered.
    pub(crate) calls: BTreeMap<u64, Vec<String>>,
    /// Canisters with code, where there are any.
    pub(crate) deployed: usize,
    /// Queries of all canisters, by height.
    pub(crate) queries: BTreeMap<u64, u128>,
    pub(crate) sent: u64,
    pub(crate) lives: u64,
    /// States taken over from peers.
    pub(crate) syncs: u64,
    pub(crate) failures: Vec<String>,
    pub(crate) equivocations: u64,
    /// Epochs whose shares were made in the run.
    pub(crate) key_epochs: BTreeSet<u32>,
    /// How the key is held, where a block changed that.
    pub(crate) keys: BTreeMap<u64, [u8; 32]>,
    /// Of the highest of those blocks.
    pub(crate) newest_key: Option<SubnetKey>,
    /// Changes of the members that took effect.
    pub(crate) changes: u64,
    /// Node keys of the members of each epoch.
    pub(crate) members: BTreeMap<u64, BTreeSet<[u8; 32]>>,
}

impl Findings {
    /// How many became members, and how many no longer are.
    pub(crate) fn joined_and_left(&self) -> (u64, u64) {
        let epochs = self.members.values().zip(self.members.values().skip(1));
        epochs.fold((0, 0), |(joined, left), (before, after)| {
            (
                joined + after.difference(before).count() as u64,
                left + before.difference(after).count() as u64,
            )
        })
    }

    /// From this height on the key is held like this.
    pub(crate) fn record_key(&mut self, height: u64, key: &SubnetKey) {
        let summary = Summary::from_bytes(&key.summary).unwrap();
        let epoch = summary.key_epoch().0;
        self.key_epochs.extend((epoch > 0).then_some(epoch));
        self.changes = self.changes.max(summary.changes());
        let members = summary.members().iter().map(|member| member.node_key().to_bytes()).collect();
        self.members.insert(summary.epoch(), members);
        let held: [u8; 32] = Sha256::digest(postcard::to_stdvec(key).unwrap()).into();
        if *self.keys.entry(height).or_insert(held) != held {
            self.failures.push(format!("the key is held in two ways at height {height}"));
        }
        if self.keys.last_key_value().is_some_and(|(newest, _)| *newest == height) {
            self.newest_key = Some(key.clone());
        }
    }
}

pub(crate) type SharedFindings = Arc<Mutex<Findings>>;

/// Shares of one node, as stored on its disk.
pub(crate) struct Vault {
    pub(crate) node_key: [u8; 32],
    pub(crate) encryption: EncryptionSecretKey,
    pub(crate) shares: Mutex<BTreeMap<u32, [u8; 32]>>,
    /// The change that its operator handed to it.
    pub(crate) change: Mutex<Option<MembershipChange>>,
}

/// A [`Vault`], as its node opens it.
struct OpenVault(Arc<Vault>);

impl KeyStore for OpenVault {
    fn share(&self, summary: &Summary) -> Result<Option<SecretShare>, String> {
        let Some(place) = summary.place_of(&self.0.node_key) else { return Ok(None) };
        let epoch = summary.key_epoch().0;
        if let Some(bytes) = self.0.shares.lock().get(&epoch) {
            return Ok(Some(SecretShare::from_bytes(place, bytes).unwrap()));
        }
        let engine = nidkg::Engine::new(arithmetic()).unwrap();
        let share = summary
            .open_share(&engine, place, &self.0.encryption)
            .map_err(|error| error.to_string())?;
        self.0.shares.lock().insert(epoch, share.to_bytes());
        Ok(Some(share))
    }

    fn voted(&self) -> Result<Option<u64>, String> {
        // Its simulated disk is never lost as a whole.
        Ok(None)
    }

    fn membership_change(&self, summary: &Summary) -> Option<Vec<u8>> {
        let change = self.0.change.lock();
        let change = change.as_ref().filter(|change| summary.members_after(change).is_ok())?;
        // Who signed may have left meanwhile.
        let (signed, needed) = summary.signatures_of(change).ok()?;
        (signed >= needed as usize).then(|| Summary::change(change))
    }
}

pub(crate) fn arithmetic() -> EngineConfig {
    EngineConfig { threads: NonZeroUsize::MIN, ..EngineConfig::for_this_machine() }
}

pub(crate) struct Member {
    pub(crate) secret: [u8; 32],
    /// As its operator states it.
    pub(crate) record: NodeRecord,
    /// Its operator runs it: it is a member, or is to be one.
    pub(crate) is_wanted: Arc<AtomicBool>,
    /// How often its operator asked the others to admit it.
    pub(crate) admissions: Arc<AtomicU64>,
    pub(crate) vault: Arc<Vault>,
    pub(crate) durable: Arc<Mutex<Durable>>,
    pub(crate) slow: Arc<AtomicU64>,
    pub(crate) disk: Arc<Disk>,
    /// The operation of its disk at which each of its lives ends.
    pub(crate) ends_with: Option<u64>,
    /// Shows others a state that is not the certified one.
    pub(crate) lies: Arc<AtomicBool>,
    /// Sends others what it should not.
    pub(crate) falsifier: Arc<Falsifier>,
    /// Reports queries in another's name.
    pub(crate) false_reports: Arc<FalseReports>,
    pub(crate) faults: Arc<MachineFaults>,
    /// Its workers, where code is executed.
    pub(crate) sandbox: Option<Arc<ScriptSandbox>>,
    /// Its states, where there are any.
    pub(crate) states: Option<CertifiedReader>,
    /// States that queries still read.
    pub(crate) queried: Vec<Arc<CertifiedState>>,
}

pub(crate) struct Net {
    pub(crate) context: Context,
    /// The replicated state itself is executed.
    pub(crate) real: bool,
    /// Delta logs are full after a few rounds.
    pub(crate) tight: bool,
    pub(crate) oracle: Oracle<PublicKey, Context>,
    pub(crate) keys: Vec<PublicKey>,
    pub(crate) genesis: Summary,
    /// The four of the beginning, then those that may join.
    pub(crate) members: Vec<Member>,
    /// The one of the beginning that operators may remove.
    pub(crate) may_leave: usize,
    pub(crate) running: BTreeMap<usize, (Handle<()>, Arc<IngressPool>)>,
    pub(crate) found: SharedFindings,
    /// Blocks that one set of shares signs.
    pub(crate) blocks_per_epoch: u64,
}

pub(crate) fn limits(blocks_per_epoch: u64) -> ConsensusLimits {
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
        blocks_per_epoch,
        checkpoint_block_bytes: 1 << 20,
        retention_rounds: RETENTION,
        retention_block_bytes: 2 << 20,
        sync_bytes_per_second: 8 << 20,
        nidkg_tables_bytes: 0,
    }
}

pub(crate) fn probability(value: f64) -> Probability {
    Probability::try_from(value).unwrap()
}

fn quality(rng: &mut StdRng, success: f64) -> Link {
    Link {
        latency: Duration::from_millis(rng.gen_range(1..60)),
        jitter: Duration::from_millis(rng.gen_range(0..20)),
        success_rate: probability(success),
    }
}

pub(crate) type Ends = (simulated::Sender<PublicKey, Context>, simulated::Receiver<PublicKey>);

impl Net {
    pub(crate) async fn new(context: &Context, rng: &mut StdRng, real: bool) -> Self {
        let (committee, shares) = nidkg::deal(NODES as u32, 3, rng).unwrap();
        let mut secrets: Vec<[u8; 32]> = (0..NODES + SPARES).map(|_| rng.r#gen()).collect();
        // Places of members of the beginning go by their keys.
        secrets[..NODES].sort_by_key(key_of);
        let keys: Vec<_> = secrets.iter().map(key_of).collect();
        let (network, oracle) = Links::new_with_peers(
            context.child("network"),
            simulated::Config {
                max_size: 1 << 20,
                max_peers_per_set: NZUsize!(NODES + SPARES),
                disconnect_on_block: true,
                tracked_peer_sets: NZUsize!(2),
            },
            keys.clone(),
        )
        .await;
        network.start();
        let members: Vec<_> = secrets
            .into_iter()
            .enumerate()
            .map(|(place, secret)| {
                let node = ed25519_dalek::SigningKey::from_bytes(&secret);
                let owner = genesis::node_id(&node.verifying_key());
                let (public, encryption) = nidkg::generate_key_pair(owner.as_slice(), rng);
                let address = format!("127.0.0.1:{}", 1_000 + place);
                let dealt = shares.get(place).map(|share| (0, share.to_bytes()));
                let vault = Vault {
                    node_key: node.verifying_key().to_bytes(),
                    encryption,
                    shares: Mutex::new(dealt.into_iter().collect()),
                    change: Mutex::default(),
                };
                Member {
                    secret,
                    record: NodeRecord::new(&node, public, &address).unwrap(),
                    is_wanted: Arc::new(AtomicBool::new(place < NODES)),
                    admissions: Arc::default(),
                    vault: Arc::new(vault),
                    durable: Durable::empty(u64::from_le_bytes(secret[..8].try_into().unwrap())),
                    slow: Arc::default(),
                    disk: Arc::default(),
                    ends_with: None,
                    lies: Arc::default(),
                    falsifier: Arc::default(),
                    false_reports: Arc::default(),
                    faults: Arc::default(),
                    sandbox: None,
                    states: None,
                    queried: Vec::new(),
                }
            })
            .collect();
        let records = members[..NODES].iter().map(|member| member.record.clone()).collect();
        Self {
            context: context.child("net"),
            real,
            tight: false,
            oracle,
            keys,
            genesis: Summary::from_parts(records, committee).unwrap(),
            members,
            may_leave: rng.gen_range(0..NODES),
            running: BTreeMap::new(),
            found: Arc::default(),
            blocks_per_epoch: EPOCH,
        }
    }

    /// Four nodes that run, with links that lose nothing.
    pub(crate) async fn started(context: &Context, rng: &mut StdRng, real: bool) -> Self {
        Self::started_with_epochs_of(EPOCH, context, rng, real).await
    }

    /// Starts a network with epochs of `blocks` blocks.
    pub(crate) async fn started_with_epochs_of(
        blocks: u64,
        context: &Context,
        rng: &mut StdRng,
        real: bool,
    ) -> Self {
        let mut net = Self::new(context, rng, real).await;
        net.blocks_per_epoch = blocks;
        net.connect(rng, 1.0).await;
        for place in 0..NODES {
            net.start(place).await;
        }
        net
    }

    pub(crate) async fn connect(&self, rng: &mut StdRng, success: f64) {
        for from in 0..self.members.len() {
            for to in (0..self.members.len()).filter(|to| *to != from) {
                self.link(rng, from, to, success).await;
            }
        }
    }

    pub(crate) async fn link(&self, rng: &mut StdRng, from: usize, to: usize, success: f64) {
        let (from, to) = (self.keys[from].clone(), self.keys[to].clone());
        let _ = self.oracle.remove_link(from.clone(), to.clone()).await;
        self.oracle.add_link(from, to, quality(rng, success)).await.unwrap();
    }

    pub(crate) async fn cut(&self, from: usize, to: usize) {
        let _ = self.oracle.remove_link(self.keys[from].clone(), self.keys[to].clone()).await;
    }

    pub(crate) async fn channels(
        &self,
        place: usize,
    ) -> Channels<simulated::Sender<PublicKey, Context>, simulated::Receiver<PublicKey>> {
        let control = self.oracle.control(self.keys[place].clone());
        let quota = Quota::per_second(NZU32!(512));
        Channels {
            votes: control.register(0, quota).await.unwrap(),
            certificates: control.register(1, quota).await.unwrap(),
            resolver: control.register(2, quota).await.unwrap(),
            broadcast: control.register(3, quota).await.unwrap(),
            backfill: control.register(4, quota).await.unwrap(),
            calls: control.register(5, quota).await.unwrap(),
            roots: control.register(6, quota).await.unwrap(),
            sync: control.register(7, quota).await.unwrap(),
            outcalls: control.register(8, quota).await.unwrap(),
        }
    }

    /// Starts no threads while the node's machine is in trouble.
    fn arithmetic(&self, place: usize) -> Arithmetic {
        let (faults, start) =
            (self.members[place].faults.clone(), consensus::arithmetic(arithmetic()));
        Arc::new(move || match faults.is_disk_full() {
            true => Err("no thread can be started".into()),
            false => start(),
        })
    }

    pub(crate) fn config(&self, place: usize, key: Option<SubnetKey>) -> SubnetConfig {
        SubnetConfig {
            node_secret: Zeroizing::new(self.members[place].secret),
            genesis: self.genesis.clone(),
            key,
            keys: Box::new(OpenVault(self.members[place].vault.clone())),
            arithmetic: self.arithmetic(place),
            agreed: vec![("epoch".into(), self.blocks_per_epoch)],
            genesis_time: Time(0),
            listen: ([127, 0, 0, 1], 0).into(),
            addresses: BTreeMap::new(),
            directory: PathBuf::new(),
            call_bytes: 64 << 10,
        }
    }

    /// Nodes that their operators run, whether they are up or not: those that they asked for, and
    /// members. A node that left ends again when it is started before it is admitted again; its
    /// operator starts it once it is a member.
    pub(crate) fn places(&self) -> Vec<usize> {
        let committee = self.committee();
        let runs = |place: &usize| {
            self.members[*place].is_wanted.load(Ordering::Relaxed) || committee.contains(place)
        };
        (0..self.members.len()).filter(runs).collect()
    }

    /// The holders of the key, according to the newest block.
    pub(crate) fn summary(&self) -> Summary {
        let found = self.found.lock();
        let newest =
            found.newest_key.as_ref().map(|key| Summary::from_bytes(&key.summary).unwrap());
        newest.unwrap_or_else(|| self.genesis.clone())
    }

    /// Places of the nodes that are members by the newest key summary.
    pub(crate) fn committee(&self) -> Vec<usize> {
        let summary = self.summary();
        let is_member =
            |place: &usize| summary.place_of(&self.members[*place].vault.node_key).is_some();
        (0..self.members.len()).filter(is_member).collect()
    }

    /// Starts a node, if its operator runs it.
    pub(crate) async fn start(&mut self, place: usize) {
        if !self.places().contains(&place) {
            return;
        }
        let channels = self.channels(place).await;
        let durable = self.members[place].durable.clone();
        self.launch(place, format!("{place}-"), durable, channels).await;
    }

    /// Starts a life of a node: engine and round loop. Neither outlives the other.
    pub(crate) async fn launch<S, R>(
        &mut self,
        place: usize,
        storage: String,
        durable: Arc<Mutex<Durable>>,
        channels: Channels<S, R>,
    ) where
        S: commonware_p2p::Sender<PublicKey = PublicKey>,
        R: commonware_p2p::Receiver<PublicKey = PublicKey>,
    {
        let lies = self.members[place].lies.clone();
        let member = &mut self.members[place];
        (member.states, member.queried) = (None, Vec::new());
        // However the life before ended: the power was gone.
        let (folder, disk) = {
            let durable = durable.lock();
            durable.disk.cut_power().unwrap();
            (durable.folder.path().join("replica"), durable.disk.clone())
        };
        if self.real {
            let sandbox = Arc::<ScriptSandbox>::default();
            self.members[place].sandbox = Some(sandbox.clone());
            let executor = real::open(&disk, &folder, &self.genesis, self.tight, sandbox);
            self.members[place].states = Some(executor.reader());
            let states: Arc<dyn StateServer> =
                Arc::new(real::FalsifyingStates { states: rounds::States::new(&executor), lies });
            let key = executor.subnet_key().cloned();
            self.live((executor, key, states), place, storage, durable, channels);
        } else {
            let toy = ToyReplica::new(durable.clone(), lies);
            let (key, states): (_, Arc<dyn StateServer>) = (toy.key(), toy.states.clone());
            self.live((toy, key, states), place, storage, durable, channels);
        }
    }

    #[expect(clippy::too_many_lines, reason = "one sequence of steps")]
    fn live<T, S, R>(
        &mut self,
        (replica, key, states): (T, Option<SubnetKey>, Arc<dyn StateServer>),
        place: usize,
        storage: String,
        durable: Arc<Mutex<Durable>>,
        channels: Channels<S, R>,
    ) where
        T: AuditedReplica + 'static,
        S: commonware_p2p::Sender<PublicKey = PublicKey>,
        R: commonware_p2p::Receiver<PublicKey = PublicKey>,
    {
        let (folder, disk) = {
            let mut durable = durable.lock();
            durable.height = replica.height().0;
            durable.executed = replica.executed();
            (durable.folder.path().to_owned(), durable.disk.clone())
        };
        let faults = self.members[place].faults.clone();
        disk.limit_growth_in(&folder.join("log"), faults.is_disk_full().then_some(0));
        let pool = Arc::new(IngressPool::new(&limits(self.blocks_per_epoch)));
        let log =
            match BlockLog::open_on(Arc::new(disk.clone()), &folder.join("log/blocks"), 16 << 10) {
                Ok(log) => log,
                // It is started again later.
                Err(_) if faults.is_disk_full() => return,
                Err(error) => panic!("node {place} cannot start: {error}"),
            };
        let recovered_at = log.last().unwrap_or(replica.height()).max(replica.height());
        let deps = ConsensusDeps {
            pool: pool.clone(),
            log,
            clock: Arc::new(SimulatedWallClock(
                self.context.child("wall"),
                self.members[place].disk.clone(),
            )),
            envelopes: Arc::new(Calls),
            limits: limits(self.blocks_per_epoch),
            states: Some(states),
            outcalls: None,
            queries: Some(Arc::new(Reports {
                node: self.members[place].record.node_id(),
                other: self.members[(place + 1) % NODES].record.node_id(),
                lies: self.members[place].false_reports.clone(),
            })),
        };
        let config =
            SubnetConfig { directory: folder.join("log/consensus"), ..self.config(place, key) };
        let (subnet, engine) = match Subnet::assemble(deps, config, replica.height()) {
            Ok(assembled) => assembled,
            Err(_) if faults.is_disk_full() => return,
            Err(error) => panic!("node {place} cannot start: {error}"),
        };
        let control = self.oracle.control(self.keys[place].clone());
        let life = {
            let mut found = self.found.lock();
            found.lives += 1;
            found.lives
        };
        let context =
            self.context.child("node").with_attribute("node", place).with_attribute("life", life);
        let member = &self.members[place];
        if let Some(operation) = member.ends_with {
            member.disk.end_with(operation, life.is_multiple_of(2));
        }
        let settings = Settings {
            folder: folder.join("replica"),
            recovered_at,
            disk_reserve_bytes: 1,
            checkpoint_block_bytes: limits(self.blocks_per_epoch).checkpoint_block_bytes,
            certificates_kept: limits(self.blocks_per_epoch).certificates_kept,
        };
        let probe = Probe { durable, found: self.found.clone(), status: subnet.status() };
        let clock = context.child("clock");
        let consensus =
            SlowConsensus { subnet, clock: clock.child("slow"), slow: member.slow.clone() };
        let files = self.real.then(|| Files { disk: disk.clone(), folder: folder.join("replica") });
        let replica = FaultyReplica { inner: replica, faults: faults.clone(), files };
        let (clock, disk_probe) = (SimulatedClock(clock), FaultyDiskProbe(faults.clone()));
        let (consensus, pool_of_blocks) = (Box::new(consensus), pool.clone());
        let driver =
            Driver::new(consensus, replica, clock, disk_probe, probe, pool_of_blocks, settings);
        let channels = falsify(channels, &member.falsifier);
        let (found, manager) = (self.found.clone(), self.oracle.manager());
        let (disk, faults, is_wanted) =
            (member.disk.clone(), faults.clone(), member.is_wanted.clone());
        let admissions = member.admissions.clone();
        let asked = admissions.load(Ordering::Relaxed);
        let task = context.spawn(move |context| async move {
            let (clock, blobs) = (Arc::new(context.child("disk")), engine.blobs());
            let disk_layer = DiskLayer { clock, disk, faults, blobs };
            let disk_layer = LayeredRuntime::new(context.child("engine"), disk_layer);
            let engine = disk_layer.spawn(move |context| {
                let transport = Transport {
                    channels,
                    peers: manager,
                    blocker: control,
                    peering: Box::new(|_| ()),
                };
                engine.run(context, storage, transport)
            });
            let clock = context.child("end");
            let rounds = async move {
                match driver.run().await {
                    Ok(_) | Err(RoundError::Consensus(ConsensusError::EngineEnded)) => {}
                    // It is not started again unless it is to be a member again, which its operator
                    // may have asked for before it ended.
                    Err(RoundError::Consensus(ConsensusError::Left { .. })) => {
                        if admissions.load(Ordering::Relaxed) == asked {
                            is_wanted.store(false, Ordering::Relaxed);
                        }
                    }
                    Err(error) => found
                        .lock()
                        .failures
                        .push(format!("node {place}: {}", error.with_sources())),
                }
            };
            futures::pin_mut!(rounds);
            if let Either::Left((_, rounds)) = select(engine, rounds).await {
                // The node may have received the reason.
                select(rounds, clock.sleep(END_NOTICE).boxed()).await;
            }
        });
        self.running.insert(place, (task, pool));
    }

    /// A crash: every task of the node goes, and with it what storage had not synced.
    pub(crate) async fn kill(&mut self, place: usize) {
        if let Some((task, _)) = self.running.remove(&place) {
            // First, so that nothing is written by tasks that end in good order.
            self.members[place].durable.lock().disk.switch_off();
            task.abort();
            let _ = task.await;
        }
    }

    /// Nodes whose tasks ended by themselves, as they do when the disk fails them.
    pub(crate) fn dead(&mut self) -> Vec<usize> {
        let ended = |task: &mut Handle<()>| task.now_or_never().is_some();
        let places: Vec<_> = self
            .running
            .iter_mut()
            .filter_map(|(place, (task, _))| ended(task).then_some(*place))
            .collect();
        places.iter().for_each(|place| drop(self.running.remove(place)));
        places
    }

    /// Fills the disk of a node, or empties it.
    pub(crate) fn fill_disk(&self, place: usize, full: bool) {
        let member = &self.members[place];
        member.faults.fill_disk(full);
        let durable = member.durable.lock();
        durable.disk.limit_growth_in(&durable.folder.path().join("log"), full.then_some(0));
    }

    pub(crate) fn heights(&self) -> Vec<u64> {
        self.members.iter().map(|member| member.durable.lock().height).collect()
    }
}

/// One twin's messages reach `a`, the other's reach `b`; both twins receive from all.
pub(crate) fn divide(
    a: Vec<PublicKey>,
    b: Vec<PublicKey>,
) -> impl simulated::SplitForwarder<PublicKey> {
    move |origin: simulated::SplitOrigin, to: &Recipients<PublicKey>, _: &IoBuf| {
        let mine = if origin == simulated::SplitOrigin::Primary { &a } else { &b };
        match to {
            Recipients::All => Some(Recipients::Some(mine.clone())),
            Recipients::Some(some) => Some(Recipients::Some(
                some.iter().filter(|peer| mine.contains(peer)).cloned().collect(),
            )),
            Recipients::One(one) => mine.contains(one).then(|| Recipients::One(one.clone())),
        }
    }
}

/// Puts a node in two places, each with a disk of its own: an equivocating leader made of
/// unmodified code.
pub(crate) async fn twins(net: &mut Net, rng: &mut StdRng, place: usize) {
    let mut others: Vec<usize> = (0..NODES).filter(|other| *other != place).collect();
    others.shuffle(rng);
    // One of those that join hears the first, the others the second.
    let pick = |who: &[usize], joining: std::ops::Range<usize>| {
        who.iter().copied().chain(joining).map(|other| net.keys[other].clone()).collect::<Vec<_>>()
    };
    let overlap = rng.gen_bool(0.5);
    let (first, second) = (&others[..2], if overlap { &others[1..] } else { &others[2..] });
    let forward = divide(pick(first, NODES..NODES + 1), pick(second, NODES + 1..NODES + SPARES));
    let context = net.context.child("twins");
    let halves = |name: &'static str, (sender, receiver): Ends| {
        let (first, second) = sender.split_with(forward.clone());
        let (hears, too) =
            receiver.split_with(context.child(name), |_| simulated::SplitTarget::Both);
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
    let (o1, o2) = halves("outcalls", all.outcalls);
    let one = Channels {
        votes: v1,
        certificates: c1,
        resolver: r1,
        broadcast: b1,
        backfill: f1,
        calls: k1,
        roots: s1,
        sync: y1,
        outcalls: o1,
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
        outcalls: o2,
    };
    let durable = net.members[place].durable.clone();
    net.launch(place, format!("{place}-"), durable, one).await;
    let first = net.running.remove(&place);
    net.launch(place, "twin-".into(), Durable::empty(rng.r#gen()), two).await;
    // The second twin has no owner: it ends with the run.
    if let Some((task, _)) = net.running.remove(&place) {
        std::mem::forget(task);
    }
    if let Some(first) = first {
        net.running.insert(place, first);
    }
}
