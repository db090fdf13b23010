//! What stands in for the replicated state: a hash over everything executed, how often each call was, and manifests of itself at the heights of checkpoints.

use std::{
    any::Any,
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use commonware_utils::sync::Mutex;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use state::{Batch, Height, ManifestClaim, SubnetKey, Time};

use super::{
    Subnet,
    clients::name_of,
    net::Durable,
    replica::{Executed, TookOver},
};
use crate::{Certificate, Consensus as _, ConsensusError, Demand, StateOffer, StateServer, Want};

/// Rounds between two checkpoints.
pub(super) const CHECKPOINT_EVERY: u64 = 20;
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
pub(super) struct Toy {
    pub(super) height: u64,
    pub(super) time: Time,
    chain: Hash,
    /// How often each call was executed: more than once would be a defect.
    pub(super) executed: BTreeMap<String, u32>,
    /// Who holds the subnet's key.
    pub(super) key: Option<SubnetKey>,
    /// The manifest that the tree shows, and the one to come.
    shown: Option<(u64, Hash)>,
    pending: Option<(u64, Hash)>,
}

impl Toy {
    pub(super) fn execute(&mut self, batch: &Batch) -> Hash {
        assert_eq!(batch.height.0, self.height + 1, "batches come in order");
        assert!(batch.time > self.time, "time moves");
        self.height += 1;
        self.time = batch.time;
        let mut hash = Sha256::new();
        hash.update(self.chain);
        hash.update(batch.time.0.to_be_bytes());
        hash.update(batch.randomness);
        for call in &batch.ingress {
            assert!(call.ingress_expiry >= batch.time, "a void call in a block");
            hash.update(call.request_id.0);
            *self.executed.entry(name_of(call)).or_default() += 1;
        }
        if let Some(key) = &batch.key {
            hash.update(postcard::to_stdvec(key).unwrap());
            self.key = Some(key.clone());
        }
        self.chain = hash.finalize().into();
        if self.pending.is_some_and(|(height, _)| height + MANIFEST_LAG == self.height) {
            self.shown = self.pending.take();
        }
        self.tree().root()
    }

    fn tree(&self) -> Tree {
        Tree { chain: self.chain, shown: self.shown }
    }

    /// At the height of a checkpoint.
    pub(super) fn begin_manifest(&mut self) {
        self.pending = Some((self.height, Snapshot::of(self).root()));
    }
}

/// A [`Toy`] in a node: its disk is the checkpoint kept in [`Durable`].
pub(super) struct ToyReplica {
    pub(super) toy: Toy,
    pub(super) states: Arc<ToyStates>,
}

impl ToyReplica {
    pub(super) fn new(toy: Toy, lies: Arc<AtomicBool>) -> Self {
        let states = Arc::new(ToyStates::new(&toy, lies));
        Self { toy, states }
    }

    pub(super) fn execute(&mut self, batch: &Batch) -> Executed {
        let root = self.toy.execute(batch);
        self.states.executed(&self.toy);
        Executed {
            root,
            faults: vec![],
            answered: batch.ingress.iter().map(name_of).collect(),
            wrong: vec![],
            deployed: 0,
            demand: Demand::default(),
        }
    }

    pub(super) fn checkpoint(&mut self, durable: &Mutex<Durable>) {
        self.toy.begin_manifest();
        self.states.computed(&self.toy);
        durable.lock().checkpoint = self.toy.clone();
    }

    pub(super) async fn take_over(
        &mut self,
        subnet: &mut Subnet,
        offer: StateOffer,
        durable: &Mutex<Durable>,
    ) -> TookOver {
        match fetch(subnet, offer).await {
            Ok(Some(state)) => {
                subnet.adopt().unwrap();
                durable.lock().checkpoint = state;
                TookOver::Ready
            }
            Ok(None) => TookOver::Over,
            Err(_) => TookOver::Ended,
        }
    }
}

/// The part of the state that is signed.
#[derive(Clone, Serialize, Deserialize)]
struct Tree {
    chain: Hash,
    shown: Option<(u64, Hash)>,
}

impl Tree {
    fn root(&self) -> Hash {
        hash(&[&postcard::to_stdvec(self).unwrap()])
    }
}

#[derive(Serialize, Deserialize)]
struct Signed {
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
    fn of(toy: &Toy) -> Self {
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
struct Shelf {
    /// Trees not certified yet.
    trees: BTreeMap<u64, Tree>,
    computed: Option<Snapshot>,
    /// The newest two.
    shown: Vec<Snapshot>,
    certificate: Option<(u64, Vec<u8>)>,
}

/// What a node shows others.
pub(super) struct ToyStates {
    shelf: Mutex<Shelf>,
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
        self.shelf.lock().computed = Some(Snapshot::of(toy));
    }

    fn executed(&self, toy: &Toy) {
        let trees = &mut self.shelf.lock().trees;
        trees.insert(toy.height, toy.tree());
        while trees.len() > 100 {
            trees.pop_first();
        }
    }

    pub(super) fn certified(&self, certificate: &Certificate) {
        let shelf = &mut *self.shelf.lock();
        let Some(tree) = shelf.trees.remove(&certificate.height.0) else { return };
        shelf.trees = shelf.trees.split_off(&certificate.height.0);
        let Some((height, root)) = tree.shown else { return };
        let is_shown = |snapshot: &mut Snapshot| snapshot.height == height && snapshot.root() == root;
        if let Some(ready) = shelf.computed.take_if(is_shown) {
            shelf.shown.insert(0, ready);
            shelf.shown.truncate(2);
        }
        let signed = Signed { tree, signature: certificate.signature.0.to_vec() };
        shelf.certificate = Some((height, postcard::to_stdvec(&signed).unwrap()));
    }
}

impl StateServer for ToyStates {
    fn offer(&self) -> Option<(Height, Vec<u8>)> {
        let shelf = self.shelf.lock();
        let (height, certificate) = shelf.certificate.clone()?;
        let newest = shelf.shown.first()?;
        (newest.height == height).then_some((Height(height), certificate))
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
        let Signed { tree, signature } = postcard::from_bytes(certificate).ok()?;
        let (height, root) = tree.shown?;
        let signature = signature.try_into().ok()?;
        Some(ManifestClaim { tree: tree.root(), signature, height: Height(height), root })
    }
}

/// Fetches a state. None if nobody shows it any more.
async fn fetch(subnet: &mut Subnet, offer: StateOffer) -> Result<Option<Toy>, ConsensusError> {
    let name = |index: usize| (index as u32).to_be_bytes().to_vec();
    let mut hashes: Vec<Hash> = Vec::new();
    let mut leaves: BTreeMap<usize, Vec<u8>> = BTreeMap::new();
    let mut want = Want::default();
    loop {
        want.chunks = if hashes.is_empty() {
            vec![name(0)]
        } else {
            (1..=hashes.len()).filter(|index| !leaves.contains_key(index)).map(name).take(12).collect()
        };
        if want.chunks.is_empty() {
            break;
        }
        let fetched = subnet.fetch_chunks(std::mem::take(&mut want)).await?;
        if fetched.over {
            return Ok(None);
        }
        for (source, name, bytes) in fetched.chunks {
            let index = u32::from_be_bytes(name.try_into().unwrap()) as usize;
            let expected = if index == 0 { offer.root } else { hashes[index - 1] };
            if hash(&[&bytes]) != expected {
                want.liars.push(source);
            } else if index == 0 {
                hashes = bytes.chunks(32).map(|hash| hash.try_into().unwrap()).collect();
            } else {
                leaves.insert(index, bytes);
            }
        }
    }
    let bytes: Vec<u8> = leaves.into_values().flatten().collect();
    let mut toy: Toy = postcard::from_bytes(&bytes).unwrap();
    assert_eq!(toy.height, offer.height.0);
    toy.begin_manifest();
    Ok(Some(toy))
}
