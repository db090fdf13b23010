//! Stand-in for the replicated state: a hash over everything executed, the number of executions of
//! each call, and manifests of itself at the heights of checkpoints.

use std::{
    any::Any,
    collections::{BTreeMap, btree_map::Entry},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use commonware_utils::sync::Mutex;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use consensus::{OfferedState, StateOffer, StateServer};
use execution::{FatalError, RoundResult};
use rounds::{HistoryCapacity, Installation, OfferOutcome, Replica, RoundError};
use state::{
    AwaitedRoot, AwaitedRoots, Batch, Fault, Height, KeyProof, ManifestClaim, Randomness,
    SubnetKey, Time,
};
use statesync::{InstallError, Progress};

use crate::simulation::{
    clients::name_of,
    net::Durable,
    probe::{Audit, AuditedReplica},
};

/// Rounds between two checkpoints.
pub(crate) const CHECKPOINT_EVERY: u64 = 20;
/// Rounds after one until the tree shows its manifest.
const MANIFEST_LAG: u64 = 3;
/// Bytes of a chunk: small, so that there are several.
const CHUNK_BYTES: usize = 300;

type Hash = [u8; 32];

fn hash(parts: &[&[u8]]) -> Hash {
    parts.iter().fold(Sha256::new(), |hash, part| hash.chain_update(part)).finalize().into()
}

/// See the module.
#[derive(Clone, Default, Serialize, Deserialize)]
pub(crate) struct Toy {
    pub(crate) height: u64,
    pub(crate) time: Time,
    chain: Hash,
    /// How often each call was executed.
    pub(crate) executed: BTreeMap<String, u32>,
    /// Who holds the subnet's key.
    pub(crate) key: Option<SubnetKey>,
    /// Roots of states in which calls were executed: they wait for the signature, as calls of
    /// `raw_rand` do.
    awaited: BTreeMap<u64, Hash>,
    /// Whether calls were executed in the last round, and the root after it.
    asked: bool,
    last_root: Hash,
    /// States whose signature was used.
    pub(crate) answered: u64,
    /// The manifest that the tree shows, and the one to come.
    shown: Option<(u64, Hash)>,
    pending: Option<(u64, Hash)>,
}

impl Toy {
    pub(crate) fn execute(&mut self, batch: &Batch) -> Hash {
        assert_eq!(batch.height.0, self.height + 1, "batches come in order");
        assert!(batch.time > self.time, "time moves");
        if std::mem::take(&mut self.asked) {
            self.awaited.insert(self.height, self.last_root);
        }
        self.height += 1;
        self.time = batch.time;
        let mut hash = Sha256::new();
        hash.update(self.chain);
        hash.update(batch.time.0.to_be_bytes());
        let Randomness::Signed(signed) = &batch.randomness else {
            panic!("a member's block has randomness that no signature gave")
        };
        for signed in signed {
            let is_it = |(_, root): &(&u64, &Hash)| **root == signed.root;
            let found = self.awaited.iter().find(is_it).map(|(height, _)| *height);
            if let Some(height) = found {
                self.awaited.remove(&height);
                self.answered += 1;
                hash.update(signed.value);
            }
        }
        for call in &batch.ingress {
            assert!(call.ingress_expiry >= batch.time, "a void call in a block");
            // A repeated call is skipped, as by the ingress history of the real state.
            if let Entry::Vacant(first) = self.executed.entry(name_of(call)) {
                hash.update(call.request_id.0);
                first.insert(1);
                self.asked = true;
            }
        }
        if let Some(key) = &batch.key {
            hash.update(postcard::to_stdvec(key).unwrap());
            self.key = Some(key.clone());
        }
        self.chain = hash.finalize().into();
        if self.pending.is_some_and(|(height, _)| height + MANIFEST_LAG == self.height) {
            self.shown = self.pending.take();
        }
        self.last_root = self.tree().root();
        self.last_root
    }

    /// Number of states whose signatures are awaited, the last included.
    pub(crate) fn unanswered(&self) -> usize {
        self.awaited.len() + usize::from(self.asked)
    }

    /// States whose signatures are awaited, the last included.
    fn awaited(&self) -> AwaitedRoots {
        let last = self.asked.then_some((&self.height, &self.last_root));
        let awaited = self.awaited.iter().chain(last);
        awaited.map(|(height, root)| AwaitedRoot { height: Height(*height), root: *root }).collect()
    }

    fn tree(&self) -> Tree {
        let key = self.key.as_ref().map(SubnetKey::digest);
        Tree { chain: self.chain, shown: self.shown, key }
    }

    /// At the height of a checkpoint.
    pub(crate) fn begin_manifest(&mut self) {
        self.pending = Some((self.height, Snapshot::from_toy(self).root()));
    }
}

/// A [`Toy`] in a node: its disk is the checkpoint kept in [`Durable`].
pub(crate) struct ToyReplica {
    toy: Toy,
    pub(crate) states: Arc<ToyStates>,
    durable: Arc<Mutex<Durable>>,
    /// The state waits for the checkpoint that its manifest is made of.
    manifest_owed: bool,
}

impl ToyReplica {
    pub(crate) fn new(durable: Arc<Mutex<Durable>>, lies: Arc<AtomicBool>) -> Self {
        let toy = durable.lock().checkpoint.clone();
        let states = Arc::new(ToyStates::new(&toy, lies));
        Self { toy, states, durable, manifest_owed: false }
    }

    pub(crate) fn key(&self) -> Option<SubnetKey> {
        self.toy.key.clone()
    }
}

impl AuditedReplica for ToyReplica {
    fn audit(&self, finalised: &consensus::FinalisedBatch, _: &RoundResult) -> Audit {
        let answered = finalised.batch.ingress.iter().map(name_of).collect();
        Audit { answered, wrong: vec![], deployed: 0, queries: 0 }
    }

    fn executed(&self) -> BTreeMap<String, u32> {
        self.toy.executed.clone()
    }
}

impl Replica for ToyReplica {
    type Installation = ToyInstallation;

    fn height(&self) -> Height {
        Height(self.toy.height)
    }

    fn execute(&mut self, batch: &Batch, _: &[Fault]) -> Result<RoundResult, FatalError> {
        let root = self.toy.execute(batch);
        if self.toy.height.is_multiple_of(CHECKPOINT_EVERY) {
            self.toy.begin_manifest();
            self.manifest_owed = true;
        }
        self.states.executed(&self.toy);
        Ok(RoundResult {
            root,
            finished: vec![],
            verdicts: vec![],
            instructions: 0,
            messages: 0,
            more: false,
            next_timer: None,
            awaited: self.toy.awaited(),
            every_round: false,
            manifest: self.manifest_owed,
        })
    }

    fn certify(&mut self, height: Height, signature: Vec<u8>) -> Result<(), FatalError> {
        self.states.certified(height, signature);
        Ok(())
    }

    fn room(&self) -> HistoryCapacity {
        HistoryCapacity { calls: u64::MAX, free: u64::MAX, capacity: u64::MAX }
    }

    fn checkpoint_due(&self) -> bool {
        self.manifest_owed
    }

    fn checkpoint_pressing(&self) -> bool {
        self.manifest_owed
    }

    fn checkpoint(&mut self) -> Result<(), FatalError> {
        if std::mem::take(&mut self.manifest_owed) {
            self.states.computed(&self.toy);
        }
        self.durable.lock().checkpoint = self.toy.clone();
        Ok(())
    }

    fn install(&self, _: &Path, offer: &StateOffer) -> Result<ToyInstallation, RoundError> {
        let durable = self.durable.clone();
        Ok(ToyInstallation { offer: *offer, hashes: Vec::new(), leaves: BTreeMap::new(), durable })
    }
}

/// A toy's state on its way here.
pub(crate) struct ToyInstallation {
    offer: StateOffer,
    hashes: Vec<Hash>,
    leaves: BTreeMap<usize, Vec<u8>>,
    durable: Arc<Mutex<Durable>>,
}

impl Installation for ToyInstallation {
    fn is_complete(&self) -> bool {
        !self.hashes.is_empty() && self.leaves.len() == self.hashes.len()
    }

    fn missing(&mut self, max: usize) -> Result<Vec<Vec<u8>>, InstallError> {
        let name = |index: usize| (index as u32).to_be_bytes().to_vec();
        if self.hashes.is_empty() {
            return Ok(vec![name(0)]);
        }
        let missing = (1..=self.hashes.len()).filter(|index| !self.leaves.contains_key(index));
        Ok(missing.map(name).take(max).collect())
    }

    fn offer(&mut self, name: &[u8], bytes: &[u8]) -> Result<OfferOutcome, InstallError> {
        let index = u32::from_be_bytes(name.try_into().unwrap()) as usize;
        let expected = if index == 0 { self.offer.root } else { self.hashes[index - 1] };
        if hash(&[bytes]) != expected {
            return Ok(OfferOutcome::False(format!("chunk {index} has another hash")));
        }
        if index == 0 {
            self.hashes = bytes.chunks(32).map(|hash| hash.try_into().unwrap()).collect();
        } else {
            self.leaves.insert(index, bytes.to_vec());
        }
        Ok(OfferOutcome::Taken)
    }

    fn progress(&self) -> Progress {
        Progress::default()
    }

    fn prepare(self) -> Result<(), InstallError> {
        let bytes: Vec<u8> = self.leaves.into_values().flatten().collect();
        let mut toy: Toy = postcard::from_bytes(&bytes).unwrap();
        assert_eq!(toy.height, self.offer.height.0);
        toy.begin_manifest();
        self.durable.lock().checkpoint = toy;
        Ok(())
    }
}

/// The part of the state that is signed.
#[derive(Clone, Serialize, Deserialize)]
struct Tree {
    chain: Hash,
    shown: Option<(u64, Hash)>,
    key: Option<Hash>,
}

impl Tree {
    fn root(&self) -> Hash {
        hash(&[&postcard::to_stdvec(self).unwrap()])
    }
}

#[derive(Serialize, Deserialize)]
struct SignedTree {
    tree: Tree,
    signature: Vec<u8>,
}

/// A state in chunks: the first is the hashes of the others.
#[derive(Clone)]
struct Snapshot {
    height: u64,
    chunks: Vec<Vec<u8>>,
}

impl Snapshot {
    fn from_toy(toy: &Toy) -> Self {
        let state = Toy { pending: None, ..toy.clone() };
        let bytes = postcard::to_stdvec(&state).unwrap();
        let leaves: Vec<_> = bytes.chunks(CHUNK_BYTES).map(<[u8]>::to_vec).collect();
        let hashes: Vec<_> = leaves.iter().flat_map(|leaf| hash(&[leaf])).collect();
        Self { height: toy.height, chunks: [vec![hashes], leaves].concat() }
    }

    fn root(&self) -> Hash {
        hash(&[&self.chunks[0]])
    }
}

#[derive(Default)]
struct ServedStates {
    /// Trees not certified yet, with the proofs of their voters.
    trees: BTreeMap<u64, (Tree, Option<KeyProof>)>,
    computed: Option<Snapshot>,
    /// The newest two.
    shown: Vec<Snapshot>,
    offered: Option<OfferedState>,
}

/// Data that a node serves to others.
pub(crate) struct ToyStates {
    shelf: Mutex<ServedStates>,
    lies: Arc<AtomicBool>,
}

impl ToyStates {
    fn new(toy: &Toy, lies: Arc<AtomicBool>) -> Self {
        let states = Self { shelf: Mutex::default(), lies };
        if toy.pending.is_some_and(|(height, _)| height == toy.height) {
            states.computed(toy);
        }
        states
    }

    fn computed(&self, toy: &Toy) {
        self.shelf.lock().computed = Some(Snapshot::from_toy(toy));
    }

    fn executed(&self, toy: &Toy) {
        let trees = &mut self.shelf.lock().trees;
        let proof = toy
            .key
            .as_ref()
            .map(|key| KeyProof { voters: key.voters.clone(), rest: key.rest_digest() });
        trees.insert(toy.height, (toy.tree(), proof));
        while trees.len() > 100 {
            trees.pop_first();
        }
    }

    fn certified(&self, height: Height, signature: Vec<u8>) {
        let shelf = &mut *self.shelf.lock();
        let Some((tree, key)) = shelf.trees.remove(&height.0) else { return };
        shelf.trees = shelf.trees.split_off(&height.0);
        let Some((height, root)) = tree.shown else { return };
        let is_shown =
            |snapshot: &mut Snapshot| snapshot.height == height && snapshot.root() == root;
        if let Some(ready) = shelf.computed.take_if(is_shown) {
            shelf.shown.insert(0, ready);
            shelf.shown.truncate(2);
        }
        let signed = SignedTree { tree, signature };
        let certificate = postcard::to_stdvec(&signed).unwrap();
        shelf.offered = Some(OfferedState { height: Height(height), certificate, key });
    }
}

impl StateServer for ToyStates {
    fn offer(&self) -> Option<OfferedState> {
        let shelf = self.shelf.lock();
        let newest = shelf.shown.first()?;
        shelf.offered.clone().filter(|offered| offered.height.0 == newest.height)
    }

    fn oldest(&self) -> Option<Height> {
        self.shelf.lock().shown.last().map(|snapshot| Height(snapshot.height))
    }

    fn chunk(&self, height: Height, name: &[u8]) -> Result<Vec<u8>, String> {
        let shelf = self.shelf.lock();
        let snapshot = shelf.shown.iter().find(|snapshot| snapshot.height == height.0);
        let index = u32::from_be_bytes(name.try_into().map_err(|_| "no name of a chunk")?);
        let chunk = snapshot.and_then(|snapshot| snapshot.chunks.get(index as usize)).cloned();
        let mut chunk = chunk.ok_or("it is not kept")?;
        if self.lies.load(Ordering::Relaxed) {
            chunk[0] ^= 1;
        }
        Ok(chunk)
    }

    fn lease(&self, _: Height) -> Option<Box<dyn Any + Send>> {
        None
    }

    fn read_offer(&self, certificate: &[u8]) -> Option<ManifestClaim> {
        let SignedTree { tree, signature } = postcard::from_bytes(certificate).ok()?;
        let (height, root) = tree.shown?;
        let signature = signature.try_into().ok()?;
        let (tree, key) = (tree.root(), tree.key);
        Some(ManifestClaim { tree, signature, height: Height(height), root, key })
    }
}
