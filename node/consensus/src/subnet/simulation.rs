//! A subnet of four under a simulated clock, network and disk: everything of this crate but the sockets.
//!
//! What it agrees on is executed by the replicated state itself in every other history ([`real`]: executor, stores and state sync, with scripted code in
//! its canisters), and by a hash with a memory in the others ([`toy`]), so that hundreds of them stay quick.
//!
//! An epoch is short here, so every history hands the subnet's key on several times.
//!
//! Each seed draws a history: lossy and slow links, nodes cut off, the subnet split in halves, nodes that crash (alone, or all at once) and lose what
//! their disk had not synced, disks that fail at any operation, a node whose every life ends in the middle of one, a disk that is slow, a node that executes slowly, a node that is in two places and says different things
//! in each. Clients call throughout. Then everything is mended, and the checks are:
//!
//! * one state root per height, whichever node and whichever run of it computed it, and no certificate for another;
//! * every call that a certificate covered is executed, once, on every node: the state itself says so, from the canisters' memory if it is the real one;
//! * the chain goes on after mending, with every node in it: those that were away for longer than blocks are kept take over a state.
//!
//! `SIMULATE_SEEDS=200` runs that many, `SIMULATE_FIRST=17` begins there, `SIMULATE_REAL=1` executes all of them for real; a failure names its seed, and the
//! same seed gives the same run.
//!
//! The files of the real state and of the block log are real and outlast a crash whole, as after the end of a process: only what agreement keeps is lost
//! or torn as by a loss of power.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroUsize,
    path::PathBuf,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use commonware_p2p::{
    Recipients,
    simulated::{self, Link, Network as Links, Oracle},
};
use commonware_runtime::{
    Clock as _, Handle, IoBuf, Quota, Runner as _, Spawner as _, Supervisor as _, deterministic,
};
use commonware_utils::{NZU32, NZUsize, Probability};
use futures::FutureExt as _;
use ic_principal::Principal;
use nidkg::{EncryptionSecretKey, SecretShare};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::SliceRandom};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use state::{Ingress, IngressId, RequestId, SignedIngress};

use self::{
    disk::{Disk, WithDisk},
    real::Real,
    replica::{Replica, TookOver},
    toy::{CHECKPOINT_EVERY, Toy, ToyReplica},
};
use super::*;
use crate::{BlockLog, WallClock, subnet::engine};

mod disk;
mod real;
mod replica;
mod toy;

const NODES: usize = 4;
/// Blocks that one set of shares signs.
const EPOCH: u64 = 16;
/// Blocks kept for peers: more than what two checkpoints keep.
const RETENTION: u64 = 50;
/// How long faults go on.
const STORM: Duration = Duration::from_secs(60);
/// How long the mended subnet has to show that it goes on.
const MENDED: Duration = Duration::from_secs(120);

type Context = deterministic::Context;

/// A call of the simulated clients.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Call {
    number: u64,
    expiry: u64,
    signed: bool,
    padding: Vec<u8>,
    /// None where there are no canisters.
    target: Option<Target>,
}

/// What a call is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Target {
    canister: Principal,
    effective: Principal,
    method: String,
    arg: Vec<u8>,
}

/// Numbers from here on are of calls that bring the canisters into being.
const DEPLOYMENT: u64 = 1 << 40;

fn number_of(id: &RequestId) -> u64 {
    let [.., a, b, c, d, e, f, g, h] = id.0;
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

/// Name of a call among those that are checked.
fn workload(id: &RequestId) -> Option<String> {
    let number = number_of(id);
    (number < DEPLOYMENT).then(|| number.to_string())
}

fn name_of(call: &Ingress) -> String {
    number_of(&call.request_id).to_string()
}

impl Call {
    fn effective(&self) -> Principal {
        self.target.as_ref().map_or_else(Principal::management_canister, |target| target.effective)
    }

    fn signed_ingress(&self) -> SignedIngress {
        SignedIngress {
            effective_canister_id: self.effective(),
            envelope: postcard::to_stdvec(self).unwrap().into(),
        }
    }

    /// A hash that ends with the number.
    fn request_id(&self) -> RequestId {
        let mut id: [u8; 32] = Sha256::digest(postcard::to_stdvec(self).unwrap()).into();
        id[24..].copy_from_slice(&self.number.to_be_bytes());
        RequestId(id)
    }

    fn id(&self) -> IngressId {
        IngressId::new(&self.request_id(), &self.effective())
    }
}

struct Calls;

impl Envelopes for Calls {
    fn read(&self, signed: &SignedIngress) -> Result<Ingress, String> {
        let call: Call = postcard::from_bytes(&signed.envelope).map_err(|error| error.to_string())?;
        let request_id = call.request_id();
        let target = call.target.unwrap_or_else(|| Target {
            canister: Principal::management_canister(),
            effective: Principal::management_canister(),
            method: call.number.to_string(),
            arg: vec![],
        });
        Ok(Ingress {
            request_id,
            sender: real::user(),
            canister_id: target.canister,
            effective_canister_id: signed.effective_canister_id,
            method_name: target.method,
            arg: target.arg,
            ingress_expiry: Time(call.expiry),
            sender_info: None,
        })
    }

    fn verify(&self, signed: &SignedIngress, now: Time) -> Result<Ingress, String> {
        let call: Call = postcard::from_bytes(&signed.envelope).map_err(|error| error.to_string())?;
        if !call.signed {
            return Err("nobody signed it".into());
        }
        let ingress = self.read(signed)?;
        if ingress.ingress_expiry < now { Err("it expired".into()) } else { Ok(ingress) }
    }
}

struct NoClock;
impl WallClock for NoClock {
    fn now(&self) -> Time {
        Time(0)
    }
}

/// What a node has when it starts again.
struct Durable {
    folder: tempfile::TempDir,
    /// Of a toy; the real state has its own in the folder.
    checkpoint: Toy,
    /// As of the last step, for whoever looks from outside; a life begins where the checkpoint is.
    height: u64,
    executed: BTreeMap<String, u32>,
}

impl Durable {
    fn empty() -> Arc<Mutex<Self>> {
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
struct Findings {
    roots: BTreeMap<u64, [u8; 32]>,
    certified: BTreeMap<u64, [u8; 32]>,
    /// Executed at a height that was certified somewhere: acknowledged.
    acknowledged: BTreeSet<String>,
    /// Calls by height, as answered.
    calls: BTreeMap<u64, Vec<String>>,
    /// Canisters with code, where there are any.
    deployed: usize,
    sent: u64,
    lives: u64,
    /// States taken over from peers.
    syncs: u64,
    failures: Vec<String>,
    equivocations: u64,
    /// Epochs whose shares were made in the run.
    key_epochs: BTreeSet<u32>,
}

type Found = Arc<Mutex<Findings>>;

/// Shares of one node, as they would lie on its disk.
struct Vault {
    node_key: [u8; 32],
    encryption: EncryptionSecretKey,
    shares: Mutex<BTreeMap<u32, [u8; 32]>>,
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

    fn membership_change(&self, _: &Summary) -> Option<Vec<u8>> {
        None
    }
}

fn arithmetic() -> EngineConfig {
    EngineConfig { threads: NonZeroUsize::MIN, ..EngineConfig::for_this_machine() }
}

struct Member {
    secret: [u8; 32],
    vault: Arc<Vault>,
    durable: Arc<Mutex<Durable>>,
    slow: Arc<AtomicU64>,
    disk: Arc<Disk>,
    /// The operation of its disk at which each of its lives ends.
    ends_with: Option<u64>,
    /// Shows others a state that is not the certified one.
    lies: Arc<AtomicBool>,
}

struct Net {
    context: Context,
    /// The replicated state itself is executed.
    real: bool,
    oracle: Oracle<PublicKey, Context>,
    keys: Vec<PublicKey>,
    genesis: Summary,
    members: Vec<Member>,
    running: BTreeMap<usize, (Handle<()>, Arc<IngressPool>)>,
    found: Found,
}

fn limits() -> ConsensusLimits {
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

fn probability(value: f64) -> Probability {
    Probability::try_from(value).unwrap()
}

fn link(rng: &mut StdRng, success: f64) -> Link {
    Link {
        latency: Duration::from_millis(rng.gen_range(1..60)),
        jitter: Duration::from_millis(rng.gen_range(0..20)),
        success_rate: probability(success),
    }
}

type Ends = (simulated::Sender<PublicKey, Context>, simulated::Receiver<PublicKey>);

impl Net {
    async fn new(context: &Context, rng: &mut StdRng, real: bool) -> Self {
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
                (secret, Arc::new(Vault { node_key: node_key.to_bytes(), encryption, shares }))
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

    async fn connect(&self, rng: &mut StdRng, success: f64) {
        for from in 0..NODES {
            for to in (0..NODES).filter(|to| *to != from) {
                self.join(rng, from, to, success).await;
            }
        }
    }

    async fn join(&self, rng: &mut StdRng, from: usize, to: usize, success: f64) {
        let (from, to) = (self.keys[from].clone(), self.keys[to].clone());
        let _ = self.oracle.remove_link(from.clone(), to.clone()).await;
        self.oracle.add_link(from, to, link(rng, success)).await.unwrap();
    }

    async fn cut(&self, from: usize, to: usize) {
        let _ = self.oracle.remove_link(self.keys[from].clone(), self.keys[to].clone()).await;
    }

    async fn channels(
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

    fn config(&self, place: usize, key: Option<SubnetKey>) -> SubnetConfig {
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

    async fn start(&mut self, place: usize) {
        let channels = self.channels(place).await;
        let durable = self.members[place].durable.clone();
        self.launch(place, format!("{place}-"), durable, channels).await;
    }

    /// Starts a life of a node: engine and driver. Neither outlives the other.
    async fn launch<S, R>(
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
    async fn kill(&mut self, place: usize) {
        if let Some((task, _)) = self.running.remove(&place) {
            task.abort();
            let _ = task.await;
        }
    }

    /// Nodes whose tasks ended by themselves, as they do when the disk fails them.
    fn dead(&mut self) -> Vec<usize> {
        let ended = |task: &mut Handle<()>| task.now_or_never().is_some();
        let places: Vec<_> =
            self.running.iter_mut().filter_map(|(place, (task, _))| ended(task).then_some(*place)).collect();
        places.iter().for_each(|place| drop(self.running.remove(place)));
        places
    }

    fn heights(&self) -> Vec<u64> {
        self.members.iter().map(|member| member.durable.lock().height).collect()
    }
}

/// What the round loop of a node does.
async fn drive(
    clock: Context,
    mut subnet: Subnet,
    mut replica: Replica,
    durable: Arc<Mutex<Durable>>,
    found: Found,
    slow: Arc<AtomicU64>,
) {
    // Checkpoints are known again after a restart: the newest one is where this life began.
    let began = replica.height();
    if began.0 > 0 {
        subnet.checkpointed(began).unwrap();
    }
    let fail = |reason: String| found.lock().failures.push(reason);
    let mut demand = Demand::default();
    loop {
        match subnet.step(demand).await {
            Ok(Step::Execute(finalised)) => {
                let cost = slow.load(Ordering::Relaxed);
                if cost > 0 {
                    clock.sleep(Duration::from_millis(cost)).await;
                }
                let batch = finalised.batch;
                let known = finalised.recorded.is_some();
                let faults = finalised.recorded.map(|recorded| recorded.faults).unwrap_or_default();
                let done = match replica.execute(&batch, &faults) {
                    Ok(done) => done,
                    Err(reason) => return fail(format!("executing height {}: {reason}", batch.height.0)),
                };
                let height = batch.height.0;
                {
                    let mut found = found.lock();
                    let before = *found.roots.entry(height).or_insert(done.root);
                    if before != done.root {
                        found.failures.push(format!("two roots at height {height}"));
                    }
                    found.failures.extend(done.wrong);
                    found.calls.entry(height).or_insert(done.answered);
                    found.deployed = found.deployed.max(done.deployed);
                }
                if let Some(key) = &batch.key {
                    let epoch = Summary::from_bytes(&key.summary).unwrap().key_epoch().0;
                    found.lock().key_epochs.extend((epoch > 0).then_some(epoch));
                }
                if let Err(error) = subnet.note(batch.height, done.root, done.faults).await {
                    if !matches!(error, ConsensusError::EngineEnded) {
                        fail(format!("after height {height} (known: {known}): {error}"));
                    }
                    return;
                }
                demand = done.demand;
                {
                    let executed = replica.executed();
                    let mut durable = durable.lock();
                    durable.height = height;
                    durable.executed = executed;
                }
                if replica.checkpoint_due() {
                    if let Err(reason) = replica.checkpoint(&durable) {
                        return fail(format!("the checkpoint of height {height}: {reason}"));
                    }
                    subnet.checkpointed(batch.height).unwrap();
                }
            }
            Ok(Step::Behind(offer)) => match replica.take_over(&mut subnet, offer, &durable).await {
                TookOver::Ready => {
                    found.lock().syncs += 1;
                    // The node starts again on top of it.
                    return;
                }
                TookOver::Over => {}
                TookOver::Ended => return,
                TookOver::Failed(reason) => {
                    return fail(format!("taking over the state of height {}: {reason}", offer.height.0));
                }
            },
            Ok(Step::Certified(certificate)) => {
                if let Err(reason) = replica.certified(&certificate) {
                    return fail(format!("the certificate of height {}: {reason}", certificate.height.0));
                }
                let mut found = found.lock();
                let height = certificate.height.0;
                if found.roots.get(&height) != Some(&certificate.root) {
                    found.failures.push(format!("a certificate of another root at height {height}"));
                }
                found.certified.insert(height, certificate.root);
                let covered: Vec<_> =
                    found.calls.range(..=height).flat_map(|(_, calls)| calls.clone()).collect();
                found.acknowledged.extend(covered);
                found.equivocations = found.equivocations.max(subnet.shared.progress().equivocations);
            }
            Ok(Step::Closing) | Err(ConsensusError::EngineEnded) => return,
            Err(error) => return fail(format!("at height {}: {error}", replica.height().0)),
        }
    }
}

/// Sends of one twin reach `a`, of the other `b`; both hear everybody.
fn divide(a: Vec<PublicKey>, b: Vec<PublicKey>) -> impl simulated::SplitForwarder<PublicKey> {
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
async fn twins(net: &mut Net, rng: &mut StdRng, place: usize) {
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

/// What a run came to.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    heights: u64,
    acknowledged: usize,
    sent: u64,
    lives: u64,
    syncs: u64,
    equivocations: u64,
    /// Times the key was handed on.
    handed_on: u64,
    /// Over every root and its height.
    roots: [u8; 32],
    audit: String,
}

/// Whether the history of this seed is executed by the replicated state itself.
fn is_real(seed: u64) -> bool {
    seed.is_multiple_of(2) || number("SIMULATE_REAL", 0) != 0
}

/// One history.
fn simulate(seed: u64) -> Outcome {
    // With RUST_LOG a run tells what its nodes say; one seed at a time is readable.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .try_init();
    let config = deterministic::Config::new()
        .with_seed(seed)
        .with_timeout(Some(Duration::from_secs(3_600)))
        .with_catch_panics(true);
    deterministic::Runner::new(config).start(|context| async move {
        let auditor = context.auditor();
        let rng = &mut StdRng::seed_from_u64(seed);
        let mut net = Net::new(&context, rng, is_real(seed)).await;
        let loss = *[0.0, 0.0, 0.02, 0.1].choose(rng).unwrap();
        net.connect(rng, 1.0 - loss).await;
        // At most one node is worse than crashed.
        let twin = rng.gen_bool(0.25).then(|| rng.gen_range(0..NODES));
        for place in 0..NODES {
            match twin {
                Some(twin) if twin == place => twins(&mut net, rng, place).await,
                _ => net.start(place).await,
            }
        }
        let faulty_disk = twin.is_none() && rng.gen_bool(0.25);
        if faulty_disk {
            *context.storage_fault_config().write() = deterministic::FaultConfig::default()
                .sync(probability(0.001))
                .write(deterministic::WriteConfig {
                    failure_rate: probability(0.001),
                    retention_rate: probability(0.5),
                    mode: deterministic::PartialWriteMode::Subset,
                });
        }
        if rng.gen_bool(0.3) {
            let place = rng.gen_range(0..NODES);
            net.members[place].slow.store(rng.gen_range(50..1_500), Ordering::Relaxed);
        }
        if rng.gen_bool(0.3) {
            let place = rng.gen_range(0..NODES);
            net.members[place].disk.slow(rng.gen_range(5..500));
        }
        if twin.is_none() && rng.gen_bool(0.3) {
            let place = rng.gen_range(0..NODES);
            net.members[place].ends_with = Some(rng.gen_range(20..2_000));
        }

        if net.real {
            deploy(&context, &mut net).await;
        }
        storm(&context, &mut net, rng, twin, 1.0 - loss).await;
        if twin.is_none() && !faulty_disk && rng.gen_bool(0.3) {
            absence(&context, &mut net, rng).await;
        }

        *context.storage_fault_config().write() = deterministic::FaultConfig::default();
        net.connect(rng, 1.0).await;
        for member in &mut net.members {
            member.slow.store(0, Ordering::Relaxed);
            member.disk.slow(0);
            member.disk.endless();
            member.ends_with = None;
        }
        let honest: Vec<_> = (0..NODES).filter(|place| Some(*place) != twin).collect();
        let goal = net.heights().into_iter().max().unwrap() + 10;
        let until = context.current() + MENDED;
        loop {
            for place in net.dead() {
                net.start(place).await;
            }
            for place in &honest {
                if !net.running.contains_key(place) {
                    net.start(*place).await;
                }
            }
            let heights = net.heights();
            if honest.iter().all(|place| heights[*place] >= goal) {
                break;
            }
            assert!(
                context.current() < until,
                "seed {seed}: heights {heights:?} do not reach {goal} within {MENDED:?} after everything was mended (twin {twin:?})"
            );
            context.sleep(Duration::from_millis(500)).await;
            // In some histories every call of the storm went with the pool of a node that crashed.
            call(&context, &net, rng);
        }
        check(seed, &net, &honest);
        let found = net.found.lock();
        Outcome {
            heights: *found.roots.last_key_value().unwrap().0,
            acknowledged: found.acknowledged.len(),
            sent: found.sent,
            lives: found.lives,
            syncs: found.syncs,
            equivocations: found.equivocations,
            handed_on: found.key_epochs.len() as u64,
            roots: Sha256::digest(postcard::to_stdvec(&found.roots).unwrap()).into(),
            audit: auditor.state(),
        }
    })
}

/// Brings the canisters of the workload into being. What goes with the pool of a node that ends is sent again: a canister more than needed stays empty, and
/// none takes code twice.
async fn deploy(context: &Context, net: &mut Net) {
    let until = context.current() + MENDED;
    let mut number = DEPLOYMENT;
    let mut again = context.current();
    while net.found.lock().deployed < real::CANISTERS {
        assert!(context.current() < until, "the canisters are not there: {:?}", net.heights());
        for place in net.dead() {
            net.start(place).await;
        }
        if context.current() >= again {
            again = context.current() + Duration::from_secs(10);
            let targets = (0..real::CANISTERS).map(|_| real::create());
            for target in targets.chain((0..real::CANISTERS).map(real::install)) {
                let call = Call {
                    number,
                    expiry: application::time_of(context.current()).0 + 60_000_000_000,
                    signed: true,
                    padding: vec![],
                    target: Some(target),
                };
                number += 1;
                for (_, pool) in net.running.values() {
                    let _ = pool.submit(call.id(), Time(call.expiry), call.signed_ingress());
                }
            }
        }
        context.sleep(Duration::from_millis(200)).await;
    }
}

async fn storm(context: &Context, net: &mut Net, rng: &mut StdRng, twin: Option<usize>, success: f64) {
    let until = context.current() + STORM;
    let mut quiet_until = context.current() + Duration::from_secs(5);
    while context.current() < until {
        let pause = Duration::from_millis(rng.gen_range(20..400));
        context.sleep(pause).await;
        call(context, net, rng);
        for place in net.dead() {
            net.start(place).await;
        }
        if context.current() < quiet_until {
            continue;
        }
        let calm = Duration::from_millis(rng.gen_range(500..8_000));
        quiet_until = context.current() + calm;
        let place = rng.gen_range(0..NODES);
        match rng.gen_range(0..7) {
            // With a node in two places the others must be whole for the chain to go on; safety must hold whatever happens.
            0 | 1 if Some(place) != twin => {
                net.kill(place).await;
            }
            2 => {
                for other in (0..NODES).filter(|other| Some(*other) != twin) {
                    net.kill(other).await;
                }
            }
            3 => {
                for other in (0..NODES).filter(|other| *other != place) {
                    net.cut(place, other).await;
                    net.cut(other, place).await;
                }
            }
            4 => {
                for from in 0..NODES {
                    for to in (0..NODES).filter(|to| from / 2 != to / 2) {
                        net.cut(from, to).await;
                    }
                }
            }
            5 => {
                for other in (0..NODES).filter(|other| *other != place) {
                    net.cut(place, other).await;
                }
            }
            _ => {
                for other in (0..NODES).filter(|other| Some(*other) != twin) {
                    if !net.running.contains_key(&other) {
                        net.start(other).await;
                    }
                }
                net.connect(rng, success).await;
            }
        }
    }
}

/// One node is down for longer than the others keep what it would need.
async fn absence(context: &Context, net: &mut Net, rng: &mut StdRng) {
    net.connect(rng, 1.0).await;
    let away = rng.gen_range(0..NODES);
    net.kill(away).await;
    let until = context.current() + 2 * MENDED;
    let goal = net.heights().into_iter().max().unwrap() + 5 * CHECKPOINT_EVERY;
    while net.heights().into_iter().max().unwrap() < goal && context.current() < until {
        let ended = net.dead();
        for place in (0..NODES).filter(|place| *place != away) {
            if ended.contains(&place) || !net.running.contains_key(&place) {
                net.start(place).await;
            }
        }
        call(context, net, rng);
        context.sleep(Duration::from_millis(200)).await;
    }
}

/// A client calls some node that runs, if there is one.
fn call(context: &Context, net: &Net, rng: &mut StdRng) {
    let number = {
        let mut found = net.found.lock();
        found.sent += 1;
        found.sent
    };
    let padding = if rng.gen_bool(0.1) { 20_000 } else { rng.gen_range(0..200) };
    let now = application::time_of(context.current());
    let expiry = now.0 + rng.gen_range(1..300) * 1_000_000_000;
    let target = net.real.then(|| real::work(rng, number));
    let call = Call { number, expiry, signed: true, padding: vec![0; padding], target };
    let pools: Vec<_> = net.running.values().map(|(_, pool)| pool).collect();
    if let Some(pool) = pools.choose(rng) {
        // A full pool says so to the client, who gives up here.
        let _ = pool.submit(call.id(), Time(call.expiry), call.signed_ingress());
    }
}

fn check(seed: u64, net: &Net, honest: &[usize]) {
    let found = net.found.lock();
    assert!(found.failures.is_empty(), "seed {seed}: {:?}", found.failures);
    for (height, root) in &found.certified {
        assert_eq!(found.roots.get(height), Some(root), "seed {seed}: certificate of height {height}");
    }
    assert!(!found.acknowledged.is_empty(), "seed {seed}: nothing was acknowledged in the whole run");
    // The slowest is at this height; what was acknowledged above is on its way there.
    let reached = honest.iter().map(|place| net.members[*place].durable.lock().height).min().unwrap();
    let under_way: BTreeSet<_> = found.calls.range(reached + 1..).flat_map(|(_, calls)| calls).collect();
    for place in honest {
        let durable = net.members[*place].durable.lock();
        for call in found.acknowledged.iter().filter(|call| !under_way.contains(call)) {
            assert_eq!(
                durable.executed.get(call),
                Some(&1),
                "seed {seed}: acknowledged call {call} on node {place} at height {}",
                durable.height
            );
        }
        let twice = durable.executed.iter().find(|(_, times)| **times != 1);
        assert_eq!(twice, None, "seed {seed}: node {place}");
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}

#[test]
fn every_history_ends_in_agreement_and_loses_nothing_acknowledged() {
    let (first, seeds) = (number("SIMULATE_FIRST", 1), number("SIMULATE_SEEDS", 200));
    let next = AtomicU64::new(first);
    let outcomes = std::sync::Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + seeds {
                        return;
                    }
                    let outcome = simulate(seed);
                    println!(
                        "seed {seed}: {} rounds, {} of {} calls acknowledged, {} lives of nodes, {} states taken over, {} proofs of equivocation, the key handed on {} times",
                        outcome.heights, outcome.acknowledged, outcome.sent, outcome.lives, outcome.syncs, outcome.equivocations, outcome.handed_on
                    );
                    outcomes.lock().unwrap().push(outcome);
                }
            });
        }
    });
    let outcomes = outcomes.into_inner().unwrap();
    assert_eq!(outcomes.len() as u64, seeds);
    let total = |of: fn(&Outcome) -> u64| outcomes.iter().map(of).sum::<u64>();
    println!(
        "{seeds} seeds from {first}: all agree; {} rounds, {} of {} calls acknowledged and found on every node, {} lives of nodes, {} states taken over, the key handed on {} times",
        total(|outcome| outcome.heights),
        total(|outcome| outcome.acknowledged as u64),
        total(|outcome| outcome.sent),
        total(|outcome| outcome.lives),
        total(|outcome| outcome.syncs),
        total(|outcome| outcome.handed_on)
    );
}

#[test]
fn a_seed_gives_the_same_history_again() {
    // A toy, and the replicated state.
    for seed in [3, 4] {
        assert_eq!(simulate(seed), simulate(seed));
    }
}

/// Runs until this node is at `height`, starting again every node whose life ended.
async fn reach(context: &Context, net: &mut Net, place: usize, height: u64) {
    let until = context.current() + 4 * MENDED;
    while net.heights()[place] < height {
        let ended = net.dead();
        for place in ended {
            net.start(place).await;
        }
        assert!(context.current() < until, "node {place} does not reach {height}: {:?}", net.heights());
        context.sleep(Duration::from_millis(500)).await;
    }
}

/// One node is away for longer than the others keep blocks, with its disk or without it, and one of those it asks lies.
fn heals(seed: u64, loses_disk: bool, real: bool) -> (u64, String) {
    let _ = tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .try_init();
    let config = deterministic::Config::new().with_seed(seed).with_timeout(Some(Duration::from_secs(3_600)));
    deterministic::Runner::new(config).start(|context| async move {
        let auditor = context.auditor();
        let rng = &mut StdRng::seed_from_u64(seed);
        let mut net = Net::new(&context, rng, real).await;
        net.connect(rng, 1.0).await;
        for place in 0..NODES {
            net.start(place).await;
        }
        if real {
            deploy(&context, &mut net).await;
            for _ in 0..40 {
                call(&context, &net, rng);
            }
        }
        net.members[1].lies.store(true, Ordering::Relaxed);
        reach(&context, &mut net, 3, 10).await;
        net.kill(3).await;
        reach(&context, &mut net, 0, 6 * CHECKPOINT_EVERY).await;
        if loses_disk {
            net.members[3].durable = Durable::empty();
            let (channels, durable) = (net.channels(3).await, net.members[3].durable.clone());
            net.launch(3, "another-3-".into(), durable, channels).await;
        } else {
            net.start(3).await;
        }
        for _ in 0..20 {
            call(&context, &net, rng);
        }
        // The others wait for nobody, so they are ahead; the fourth is among them again.
        let ended = async {
            let until = context.current() + MENDED;
            while net.found.lock().syncs == 0 {
                assert!(context.current() < until, "no state was taken over: {:?}", net.heights());
                context.sleep(Duration::from_millis(500)).await;
            }
            // As it was: under the same name.
            while net.running.get_mut(&3).is_some_and(|(task, _)| task.now_or_never().is_none()) {
                context.sleep(Duration::from_millis(100)).await;
            }
        };
        ended.await;
        net.running.remove(&3);
        let (channels, durable) = (net.channels(3).await, net.members[3].durable.clone());
        let storage = if loses_disk { "another-3-" } else { "3-" };
        net.launch(3, storage.into(), durable, channels).await;
        let goal = net.heights().into_iter().max().unwrap() + CHECKPOINT_EVERY;
        reach(&context, &mut net, 3, goal).await;
        check(seed, &net, &[0, 1, 2, 3]);
        let syncs = net.found.lock().syncs;
        (syncs, auditor.state())
    })
}

#[test]
fn a_node_that_is_behind_what_its_peers_keep_takes_over_a_state() {
    for (seed, real) in [(1, false), (2, false), (3, true)] {
        let (syncs, _) = heals(seed, false, real);
        assert_eq!(syncs, 1, "seed {seed}");
    }
}

#[test]
fn a_node_that_is_behind_the_checkpoints_of_its_peers_but_not_what_they_keep_executes_blocks() {
    let config = deterministic::Config::new().with_seed(5).with_timeout(Some(Duration::from_secs(3_600)));
    deterministic::Runner::new(config).start(|context| async move {
        let rng = &mut StdRng::seed_from_u64(5);
        let mut net = Net::new(&context, rng, false).await;
        net.connect(rng, 1.0).await;
        for place in 0..NODES {
            net.start(place).await;
        }
        // So that checkpoints lie as far above where it stops as they can.
        reach(&context, &mut net, 3, 3 * CHECKPOINT_EVERY - RETENTION).await;
        net.kill(3).await;
        reach(&context, &mut net, 0, 3 * CHECKPOINT_EVERY).await;
        net.start(3).await;
        for _ in 0..20 {
            call(&context, &net, rng);
        }
        reach(&context, &mut net, 3, 4 * CHECKPOINT_EVERY).await;
        assert_eq!(net.found.lock().syncs, 0);
        check(5, &net, &[0, 1, 2, 3]);
    });
}

/// Every operation from the first of a start on, done and not done; later ones here and there.
#[test]
fn a_node_may_end_at_any_operation_of_its_disk() {
    let config = deterministic::Config::new()
        .with_seed(11)
        .with_timeout(Some(Duration::from_secs(3_600)))
        .with_catch_panics(true);
    deterministic::Runner::new(config).start(|context| async move {
        let rng = &mut StdRng::seed_from_u64(11);
        let mut net = Net::new(&context, rng, false).await;
        net.connect(rng, 1.0).await;
        for place in 0..NODES {
            net.start(place).await;
        }
        reach(&context, &mut net, 2, 5).await;
        net.kill(2).await;
        let operations = (1..60).flat_map(|operation| [operation; 2]).chain((60..250).step_by(7));
        for (life, operation) in operations.enumerate() {
            net.start(2).await;
            net.members[2].disk.end_with(operation, life.is_multiple_of(2));
            let until = context.current() + MENDED;
            while net.dead().is_empty() {
                assert!(context.current() < until, "operation {operation} does not come");
                call(&context, &net, rng);
                context.sleep(Duration::from_millis(100)).await;
            }
        }
        net.members[2].disk.endless();
        net.start(2).await;
        let goal = net.heights().into_iter().max().unwrap() + CHECKPOINT_EVERY;
        reach(&context, &mut net, 2, goal).await;
        check(11, &net, &[0, 1, 2, 3]);
    });
}

#[test]
fn a_node_that_lost_its_disk_takes_over_a_state() {
    for real in [false, true] {
        let first = heals(7, true, real);
        assert_eq!(first.0, 1);
        assert_eq!(first, heals(7, true, real), "the same seed gives the same history");
    }
}

#[test]
fn a_call_does_not_wait_for_the_idle_block_whoever_leads() {
    let config = deterministic::Config::new().with_seed(1).with_timeout(Some(Duration::from_secs(600)));
    deterministic::Runner::new(config).start(|context| async move {
        let rng = &mut StdRng::seed_from_u64(1);
        let mut net = Net::new(&context, rng, false).await;
        net.connect(rng, 1.0).await;
        for place in 0..NODES {
            net.start(place).await;
        }
        context.sleep(Duration::from_secs(10)).await;
        // Between two idle blocks, again and again through the same node, while the lead goes round.
        for number in 0..12 {
            context.sleep(Duration::from_millis(1_150)).await;
            let before = net.found.lock().acknowledged.len();
            let called = context.current();
            let expiry = application::time_of(called).0 + 60_000_000_000;
            let call = Call { number, expiry, signed: true, padding: vec![], target: None };
            net.running[&0].1.submit(call.id(), Time(call.expiry), call.signed_ingress()).unwrap();
            while net.found.lock().acknowledged.len() == before {
                context.sleep(Duration::from_millis(10)).await;
            }
            let waited = context.current().duration_since(called).unwrap();
            assert!(waited < Duration::from_millis(700), "{waited:?}");
        }
    });
}
