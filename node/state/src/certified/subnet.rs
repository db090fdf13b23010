//! The part of the tree that describes the subnet itself: keys, type, nodes, canister ranges,
//! metrics.
//!
//! All but the metrics rarely changes, so it is built once and keeps its hashes; a round hashes its
//! metrics and the few forks above them.

use std::{borrow::Cow, sync::Arc};

use ic_principal::Principal;
use serde::{Deserialize, Serialize, ser::SerializeMap};

use crate::{
    CanisterId, Cycles, SubnetKey,
    tree::{CertifiedValue, Digest, Frozen, Subtree},
};

/// Ranges in one shard of `/canister_ranges/<subnet>`; clients look for the shard that starts at or
/// before a canister.
const RANGES_PER_SHARD: usize = 5;

/// Kind of subnet, as `/subnet/<id>/type` spells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SubnetType {
    /// `application`
    Application,
    /// `system`
    System,
    /// `verified_application`
    VerifiedApplication,
    /// `cloud_engine`
    CloudEngine,
}

impl SubnetType {
    /// Text of the specification.
    pub fn name(self) -> &'static str {
        match self {
            SubnetType::Application => "application",
            SubnetType::System => "system",
            SubnetType::VerifiedApplication => "verified_application",
            SubnetType::CloudEngine => "cloud_engine",
        }
    }
}

/// A node of the subnet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeInfo {
    /// Self-authenticating from the node's key.
    pub node_id: Principal,
    /// Its Ed25519 key, DER (44 bytes), with which it signs query responses.
    #[serde(with = "serde_bytes")]
    pub public_key_der: Vec<u8>,
}

/// Description of the subnet in the tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubnetInfo {
    /// Self-authenticating from the public key.
    pub subnet_id: Principal,
    /// BLS key that signs its state, DER (133 bytes).
    #[serde(with = "serde_bytes")]
    pub public_key_der: Vec<u8>,
    /// Value of `/subnet/<id>/type`.
    pub subnet_type: SubnetType,
    /// Canister ids assigned to it: closed intervals, in any order, not overlapping.
    pub canister_ranges: Vec<(CanisterId, CanisterId)>,
    /// Members of the subnet, in any order.
    pub nodes: Vec<NodeInfo>,
}

/// Value of `/subnet/<id>/metrics`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubnetMetrics {
    /// Canisters that exist.
    pub num_canisters: u64,
    /// Size of their state.
    pub canister_state_bytes: u64,
    /// Cycles consumed by all canisters there ever were.
    pub consumed_cycles_total: Cycles,
    /// Messages executed in replicated mode.
    pub update_transactions_total: u64,
}

impl SubnetMetrics {
    /// The CBOR map of the specification. The cycles are a map of their low and, if needed, high 64
    /// bits.
    pub fn to_cbor(&self) -> Vec<u8> {
        struct Halves(u128);
        impl Serialize for Halves {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let high = u64::try_from(self.0 >> 64).unwrap_or(u64::MAX);
                let mut map = serializer.serialize_map(Some(2))?;
                map.serialize_entry(&0u8, &(self.0 as u64))?;
                map.serialize_entry(&1u8, &(high != 0).then_some(high))?;
                map.end()
            }
        }
        #[derive(Serialize)]
        struct Map {
            num_canisters: u64,
            canister_state_bytes: u64,
            consumed_cycles_total: Halves,
            update_transactions_total: u64,
        }
        super::cbor(
            &Map {
                num_canisters: self.num_canisters,
                canister_state_bytes: self.canister_state_bytes,
                consumed_cycles_total: Halves(self.consumed_cycles_total),
                update_transactions_total: self.update_transactions_total,
            },
            false,
        )
    }
}

/// [`SubnetInfo`] as the tree holds it, with its hashes.
#[derive(Clone, Debug)]
pub struct SubnetTree {
    info: SubnetInfo,
    canister_ranges: Frozen,
    nodes: Frozen,
    public_key: Frozen,
    subnet_type: Frozen,
    /// Everything under `/canister_ranges`.
    shards: Frozen,
    /// Of what agreement keeps of the subnet's key, once a block changed it.
    key_digest: Option<Digest>,
    key_proof: Option<KeyProof>,
}

/// The part of a [`SubnetKey`] from which the keys of votes can be proved by its digest in the
/// tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyProof {
    /// [`SubnetKey::voters`].
    pub voters: Vec<u8>,
    /// [`SubnetKey::rest_digest`].
    pub rest: Digest,
}

impl SubnetTree {
    /// Builds and hashes it.
    pub fn new(mut info: SubnetInfo) -> Self {
        info.canister_ranges.sort();
        info.nodes.sort_by_key(|node| node.node_id);
        let shards = info.canister_ranges.chunks(RANGES_PER_SHARD).filter_map(|shard| {
            shard
                .first()
                .map(|(start, _)| (start.as_slice().to_vec(), Frozen::leaf(ranges_cbor(shard))))
        });
        let nodes = info.nodes.iter().map(|node| {
            let key = Frozen::leaf(node.public_key_der.as_slice());
            (node.node_id.as_slice().to_vec(), Frozen::node([(b"public_key".as_slice(), key)]))
        });
        SubnetTree {
            canister_ranges: Frozen::leaf(ranges_cbor(&info.canister_ranges)),
            nodes: Frozen::node(nodes),
            public_key: Frozen::leaf(info.public_key_der.as_slice()),
            subnet_type: Frozen::leaf(info.subnet_type.name().as_bytes()),
            shards: Frozen::node([(info.subnet_id.as_slice().to_vec(), Frozen::node(shards))]),
            info,
            key_digest: None,
            key_proof: None,
        }
    }

    /// The same with the key held like this, by the nodes that it names.
    pub fn holding(info: SubnetInfo, key: &SubnetKey) -> Self {
        let tree = Self::new(SubnetInfo { nodes: key.nodes.clone(), ..info });
        let proof = KeyProof { voters: key.voters.clone(), rest: key.rest_digest() };
        SubnetTree { key_digest: Some(key.digest()), key_proof: Some(proof), ..tree }
    }

    /// Proof of the voters of the key it shows.
    pub fn key_proof(&self) -> Option<&KeyProof> {
        self.key_proof.as_ref()
    }

    /// [`SubnetKey::digest`] of the key it shows.
    pub fn key_digest(&self) -> Option<&Digest> {
        self.key_digest.as_ref()
    }

    /// The data it was built from, with ranges and nodes in order.
    pub fn info(&self) -> &SubnetInfo {
        &self.info
    }

    /// The subtree `/canister_ranges`, in shards.
    pub(super) fn shards(&self) -> Subtree<'_> {
        Subtree::Shared(&self.shards)
    }
}

/// The subtree `/subnet` at one height, with this subnet alone in it. It keeps its digest, so that
/// a certificate hashes none of it.
#[derive(Clone, Debug)]
pub(super) struct SubnetAtHeight {
    tree: Arc<SubnetTree>,
    metrics: SubnetMetrics,
    metrics_cbor: Vec<u8>,
    digest: Digest,
}

impl SubnetAtHeight {
    /// Hashes it: the metrics, and the labels and forks above them.
    pub(super) fn new(tree: Arc<SubnetTree>, metrics: SubnetMetrics) -> Self {
        let metrics_cbor = metrics.to_cbor();
        let mut subnet = Self { tree, metrics, metrics_cbor, digest: Digest::default() };
        subnet.digest = subnet.subtree().digest();
        subnet
    }

    pub(super) fn tree(&self) -> &SubnetTree {
        &self.tree
    }

    pub(super) fn metrics(&self) -> SubnetMetrics {
        self.metrics
    }
}

impl CertifiedValue for SubnetAtHeight {
    fn subtree(&self) -> Subtree<'_> {
        let label = |name: &'static str| Cow::Borrowed(name.as_bytes());
        let tree = &self.tree;
        let subnet = Subtree::node(vec![
            (label("canister_ranges"), Subtree::Shared(&tree.canister_ranges)),
            (label("metrics"), Subtree::leaf(&self.metrics_cbor)),
            (label("node"), Subtree::Shared(&tree.nodes)),
            (label("public_key"), Subtree::Shared(&tree.public_key)),
            (label("type"), Subtree::Shared(&tree.subnet_type)),
        ]);
        Subtree::Node(vec![(Cow::Borrowed(tree.info.subnet_id.as_slice()), subnet)])
    }

    fn digest(&self) -> Digest {
        self.digest
    }
}

/// Ranges as the specification's tagged list of pairs.
pub(super) fn ranges_cbor(ranges: &[(CanisterId, CanisterId)]) -> Vec<u8> {
    let pairs: Vec<_> = ranges
        .iter()
        .map(|(first, last)| {
            (serde_bytes::Bytes::new(first.as_slice()), serde_bytes::Bytes::new(last.as_slice()))
        })
        .collect();
    super::cbor(&pairs, true)
}
