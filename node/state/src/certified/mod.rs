//! The state at one height that can be proved to clients, and the certificates that prove it.
//!
//! After a round, [`UncertifiedState::new`] takes a snapshot of the maps (a few pointers), computes
//! the missing hashes and so the root. Once the subnet has signed the root,
//! [`UncertifiedState::certify`] makes the [`CertifiedState`] that the gateway and queries read,
//! and [`CertifiedReader::publish`] publishes it to them. Readers hold it as long as they need it
//! and block no other thread; it costs as much memory as changed since.
//!
//! The tree ("The system state tree" of the interface specification):
//!
//! ```text
//! /time
//! /subnet/<subnet>/public_key, type, canister_ranges, metrics, node/<node>/public_key
//! /canister_ranges/<subnet>/<first canister of the shard>
//! /canister/<canister>/certified_data, controllers, module_hash, metadata/<name>,
//!     canister_creation_timestamp, last_install_timestamp
//! /request_status/<request>/status, reply, reject_code, reject_message, error_code
//! /state_manifest/height, root    not in the specification: see docs/internals/state-sync.md
//! /subnet_key                     nor this: the hash of the committee that holds the subnet's key
//! ```
//!
//! `/subnet_key` ([`crate::SubnetKey`]) is there once a block changed the committee. No client
//! needs it. It makes a node whose view of the key differs from the others' notice at the next
//! certificate, not when its shares do not fit epochs later.
//!
//! Everything else, `/api_boundary_nodes` among it, is provably absent. The gateway decides which
//! caller may read which path; this module only refuses to reveal the whole of `/canister` or
//! `/request_status`, which no rule allows and whose size is not bounded.

mod canister;
mod claim;
mod subnet;
#[cfg(test)]
mod tests;

pub use canister::metadata_digest;
pub use claim::{MANIFEST_CERTIFICATE_BYTES_MAX, ManifestClaim};
pub use subnet::{KeyProof, NodeInfo, SubnetInfo, SubnetMetrics, SubnetTree, SubnetType};

use subnet::SubnetAtHeight;

use std::{
    borrow::Cow,
    io,
    sync::{Arc, PoisonError, RwLock},
};

use ic_certification::certificate::Certificate;
use ic_principal::Principal;
use serde::Serialize;
use serde_cbor_2::ser::{IoWrite, Write};

use crate::{
    CanisterId, CanisterMap, CustomSection, Height, HistoryEntry, IngressHistory, RequestId,
    SharedCanister, Time,
    history::HistoryMap,
    state_heap,
    tree::{CertifiedValue, Digest, Selection, Subtree, Witness, witness},
};

/// With debug assertions, hashes and sums of these states are computed again: of each that has at
/// most this number of canisters and calls, and of every 64th height. A check takes as long as the
/// state is large.
const CHECKED_ALWAYS: usize = 256;
const CHECKED_EACH: u64 = 64;

/// A state whose root is known and not yet signed.
#[derive(Clone, Debug)]
pub struct UncertifiedState {
    height: Height,
    time: Time,
    root: Digest,
    subnet: SubnetAtHeight,
    canisters: CanisterMap,
    history: HistoryMap,
    manifest: Option<(Height, Digest)>,
}

/// A state with the subnet's signature on its root.
#[derive(Clone, Debug)]
pub struct CertifiedState {
    state: UncertifiedState,
    signature: Vec<u8>,
}

impl UncertifiedState {
    /// Snapshot of the state after the round of this height.
    pub fn new(
        height: Height,
        time: Time,
        subnet: Arc<SubnetTree>,
        metrics: SubnetMetrics,
        canisters: &mut CanisterMap,
        history: &mut IngressHistory,
        manifest: Option<(Height, Digest)>,
    ) -> Self {
        // Sealed before they are shared: the snapshot and the next round then have the same hashes
        // in common.
        let here = state_heap::enter();
        canisters.seal();
        history.seal();
        drop(here);
        if cfg!(debug_assertions)
            && (height.0.is_multiple_of(CHECKED_EACH)
                || canisters.len() + history.len() <= CHECKED_ALWAYS)
        {
            canisters.check();
            history.check();
        }
        let mut state = UncertifiedState {
            height,
            time,
            root: Digest::default(),
            subnet: SubnetAtHeight::new(subnet, metrics),
            canisters: canisters.clone(),
            history: history.snapshot(),
            manifest,
        };
        state.root = state.subtree().digest();
        state
    }

    /// The root that the subnet signs, after the domain separator `ic-state-root`.
    pub fn root(&self) -> Digest {
        self.root
    }

    /// Of the block.
    pub fn height(&self) -> Height {
        self.height
    }

    /// Agreed time of the block.
    pub fn time(&self) -> Time {
        self.time
    }

    /// The same state, signed: 48 bytes, BLS over the root.
    pub fn certify(self, signature: Vec<u8>) -> CertifiedState {
        CertifiedState { state: self, signature }
    }

    fn witness(&self, paths: &[Vec<Vec<u8>>]) -> Witness<'_> {
        let time = [b"time".to_vec()];
        let mut selection = Selection::new();
        selection.add(&time);
        for path in paths {
            match path.as_slice() {
                [] => {}
                [label] if label == b"canister" || label == b"request_status" => {}
                path => selection.add(path),
            }
        }
        witness(self.subtree(), &selection)
    }
}

impl CertifiedValue for UncertifiedState {
    fn subtree(&self) -> Subtree<'_> {
        let label = |name: &'static str| Cow::Borrowed(name.as_bytes());
        let mut children = vec![
            (label("canister"), self.canisters.subtree()),
            (label("canister_ranges"), self.subnet.tree().shards()),
            (label("request_status"), self.history.subtree()),
            (label("subnet"), Subtree::Shared(&self.subnet)),
            (label("time"), Subtree::nat(self.time.0)),
        ];
        if let Some((height, root)) = &self.manifest {
            let parts = vec![
                (label("height"), Subtree::nat(height.0)),
                (label("root"), Subtree::leaf(root)),
            ];
            children.push((label("state_manifest"), Subtree::node(parts)));
        }
        if let Some(digest) = self.subnet.tree().key_digest() {
            children.push((label("subnet_key"), Subtree::leaf(digest)));
        }
        Subtree::node(children)
    }

    fn digest(&self) -> Digest {
        self.root
    }
}

impl CertifiedState {
    /// Of the block.
    pub fn height(&self) -> Height {
        self.state.height
    }

    /// Agreed time of the block.
    pub fn time(&self) -> Time {
        self.state.time
    }

    /// Root of the tree.
    pub fn root(&self) -> Digest {
        self.state.root
    }

    /// The subnet's signature on the root.
    pub fn signature(&self) -> &[u8] {
        &self.signature
    }

    /// A certificate (self-described CBOR) that proves the values at these paths and below, or
    /// their absence, and the time. Its size is the values shown plus about one hash per doubling
    /// of the state for each path.
    ///
    /// A path that asks for all canisters, all requests or everything shows nothing: see the
    /// module.
    pub fn certificate(&self, paths: &[Vec<Vec<u8>>]) -> Vec<u8> {
        self.certificate_behind(paths, &Vec::<u8>::with_capacity)
    }

    /// The same behind what `head` returns, which is given the bytes of the certificate and leaves
    /// room for them. Values shown are copied once: from the state to their place behind the head.
    pub fn certificate_behind(
        &self,
        paths: &[Vec<Vec<u8>>],
        head: &dyn Fn(usize) -> Vec<u8>,
    ) -> Vec<u8> {
        let certificate = Certificate {
            tree: self.state.witness(paths),
            signature: Cow::Borrowed(self.signature.as_slice()),
            delegation: None,
        };
        let mut count = ByteCount(0);
        write_cbor(&certificate, true, IoWrite::new(&mut count));
        let mut bytes = head(count.0);
        let end = bytes.len() + count.0;
        write_cbor(&certificate, true, &mut bytes);
        debug_assert_eq!(bytes.len(), end, "bytes of a certificate behind its head");
        bytes
    }

    /// Status of a call, if the subnet knows it.
    pub fn request(&self, id: &RequestId) -> Option<Arc<HistoryEntry>> {
        self.state.history.get(&id.0).cloned()
    }

    /// A canister, if it exists.
    pub fn canister(&self, id: &CanisterId) -> Option<SharedCanister> {
        self.state.canisters.get(id.as_slice()).cloned()
    }

    /// All canisters, by id.
    pub fn canisters(&self) -> &CanisterMap {
        &self.state.canisters
    }

    /// All calls, by id.
    pub fn history(&self) -> &HistoryMap {
        &self.state.history
    }

    /// A metadata section of a canister; its `public` flag states who may read it.
    pub fn metadata(&self, id: &CanisterId, name: &str) -> Option<&CustomSection> {
        self.state.canisters.get(id.as_slice())?.metadata_section(name)
    }

    /// The subnet as the tree describes it.
    pub fn subnet(&self) -> &SubnetInfo {
        self.state.subnet.tree().info()
    }

    /// The subnet's id.
    pub fn subnet_id(&self) -> Principal {
        self.subnet().subnet_id
    }

    /// The nodes' ids, in order.
    pub fn node_ids(&self) -> impl Iterator<Item = Principal> + '_ {
        self.subnet().nodes.iter().map(|node| node.node_id)
    }

    /// The newest manifest that the tree shows: a height before this one, and its root.
    pub fn manifest(&self) -> Option<(Height, Digest)> {
        self.state.manifest
    }

    /// A certificate of the newest manifest and of the subnet's key, for [`ManifestClaim::read`];
    /// `None` while there is no manifest.
    pub fn manifest_certificate(&self) -> Option<(Height, Vec<u8>)> {
        let (height, _) = self.state.manifest?;
        let paths = [claim::MANIFEST_LABEL, claim::KEY_LABEL].map(|label| vec![label.to_vec()]);
        Some((height, self.certificate(&paths)))
    }

    /// Proof of the voters, which belongs to that certificate. `None` while the key is held as the
    /// ceremony left it.
    pub fn key_proof(&self) -> Option<&KeyProof> {
        self.state.subnet.tree().key_proof()
    }

    /// The metrics in the tree.
    pub fn metrics(&self) -> SubnetMetrics {
        self.state.subnet.metrics()
    }
}

/// Publishes the newest certified state to all holders of a clone.
#[derive(Clone, Debug, Default)]
pub struct CertifiedReader {
    latest: Arc<RwLock<Option<Arc<CertifiedState>>>>,
}

impl CertifiedReader {
    /// Nothing published yet.
    pub fn new() -> Self {
        CertifiedReader::default()
    }

    /// The newest certified state; `None` until the first is published.
    pub fn latest(&self) -> Option<Arc<CertifiedState>> {
        // The lock guards one pointer, which a panic cannot leave half written.
        self.latest.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Shows `state` unless a newer one is shown already.
    pub fn publish(&self, state: Arc<CertifiedState>) {
        let mut latest = self.latest.write().unwrap_or_else(PoisonError::into_inner);
        if latest.as_ref().is_none_or(|shown| shown.height() <= state.height()) {
            let before = latest.replace(state);
            drop(latest);
            // Whatever only the older state held is freed outside the lock.
            drop(before);
        }
    }
}

/// CBOR of a value of ours, self-described if asked for.
fn cbor<T: Serialize>(value: &T, self_described: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_cbor(value, self_described, &mut bytes);
    bytes
}

fn write_cbor<T: Serialize>(value: &T, self_described: bool, to: impl Write) {
    let mut serializer = serde_cbor_2::Serializer::new(to);
    let described = if self_described { serializer.self_describe() } else { Ok(()) };
    // Writing to memory does not fail, and every type given here can be written.
    debug_assert!(described.is_ok());
    let written = value.serialize(&mut serializer);
    debug_assert!(written.is_ok());
}

/// Counts what is written to it.
struct ByteCount(usize);

impl io::Write for ByteCount {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
