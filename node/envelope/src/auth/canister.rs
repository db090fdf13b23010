//! Canister signatures (interface specification, "Canister signatures") and the certificates they
//! rest on ("Certification").
//!
//! A canister signs by certifying a hash tree that holds `sig/<hash of seed>/<hash of payload>`.
//! The signature is that tree and a certificate showing that the tree's root hash is the canister's
//! certified data. A certificate is signed by the root key, or by a subnet key that a certificate
//! of the root key delegates to; then the delegation must cover the canister, and the subnet must
//! have a type other than `cloud_engine`.
//!
//! Trees come from outside: they are decoded by the bounded reader, and depth and item count bound
//! every recursion below. A pairing takes about a millisecond, so pairs of key and root hash that
//! verified before are remembered in [`CertificateVerifier`], a bounded set.

use ic_certification::hash_tree::{
    self, HashTree, HashTreeNode, LookupResult, SubtreeLookupResult,
};
use ic_principal::Principal;
use sha2::{Digest, Sha256};

use super::{bounded_map::BoundedMap, keys::CanisterKey};
use crate::{
    cbor::{self, Bounds, Value},
    hash::{self, Hash},
};

/// A hash tree has one level of CBOR per level of the tree; certificates of large states stay under
/// 100.
const CERTIFICATE_BOUNDS: Bounds = Bounds { depth: 128, items: 16_384 };
/// Of a certificate that a canister hands out, of its own tree, and of a delegation, which shows a
/// subnet's type, key and ranges: a few hundred items are much. Decoded they take half a MiB at
/// most.
pub(crate) const SMALL_BOUNDS: Bounds =
    Bounds { depth: crate::tree::DEPTH_MAX, items: crate::tree::ITEMS_MAX };
/// Ranges of one shard are pairs of principals.
const RANGES_BOUNDS: Bounds = Bounds { depth: 4, items: 65_536 };

pub(crate) type Tree<'a> = HashTree<&'a [u8]>;

/// Verifies certificates against the root key.
#[derive(Debug)]
pub(crate) struct CertificateVerifier {
    root_key: nidkg::PublicKey,
    /// Digests of (key, message, signature) that verified.
    verified: BoundedMap<()>,
}

struct Certificate<'a> {
    tree: Tree<'a>,
    signature: &'a [u8],
    delegation: Option<(&'a [u8], &'a [u8])>,
}

/// Verified content of a certificate about a canister.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertifiedData {
    /// The canister's certified data, at most 32 bytes.
    pub data: Vec<u8>,
    /// When the state was that, nanoseconds since 1970-01-01.
    pub time: u64,
}

/// An unsigned LEB128 number that is the whole of `bytes`.
fn read_leb128(mut bytes: &[u8]) -> Option<u64> {
    let number = leb128::read::unsigned(&mut bytes).ok()?;
    bytes.is_empty().then_some(number)
}

/// Builds the tree from `[0]`, `[1, left, right]`, `[2, label, tree]`, `[3, value]` and `[4,
/// hash]`. Recursion is bounded by the reader's depth.
pub(crate) fn tree<'a>(value: &'a Value<'a>) -> Option<Tree<'a>> {
    let elements = value.as_array()?;
    match elements {
        [Value::Nat(0)] => Some(hash_tree::empty()),
        [Value::Nat(1), left, right] => Some(hash_tree::fork(tree(left)?, tree(right)?)),
        [Value::Nat(2), label, below] => Some(hash_tree::label(label.as_bytes()?, tree(below)?)),
        [Value::Nat(3), value] => Some(hash_tree::leaf(value.as_bytes()?)),
        [Value::Nat(4), digest] => {
            Some(hash_tree::pruned(Hash::try_from(digest.as_bytes()?).ok()?))
        }
        _ => None,
    }
}

/// Whether labels rise strictly on each level and each leaf is the only node of its level
/// (specification, `well_formed`).
fn well_formed(node: &HashTreeNode<&[u8]>) -> bool {
    fn forest<'t>(node: &'t HashTreeNode<&[u8]>, last: &mut Option<&'t [u8]>) -> bool {
        match node {
            HashTreeNode::Empty() | HashTreeNode::Pruned(_) => true,
            HashTreeNode::Leaf(_) => false,
            HashTreeNode::Fork(nodes) => forest(&nodes.0, last) && forest(&nodes.1, last),
            HashTreeNode::Labeled(label, below) => {
                let label = label.as_bytes();
                let rises = last.is_none_or(|last| last < label);
                *last = Some(label);
                rises && well_formed(below)
            }
        }
    }
    matches!(node, HashTreeNode::Leaf(_)) || forest(node, &mut None)
}

fn certificate<'a>(value: &'a Value<'a>) -> Option<Certificate<'a>> {
    let tree = tree(value.field("tree")?)?;
    if !well_formed(tree.as_ref()) {
        return None;
    }
    let delegation = match value.field("delegation") {
        None => None,
        Some(delegation) => Some((
            delegation.field("subnet_id")?.as_bytes()?,
            delegation.field("certificate")?.as_bytes()?,
        )),
    };
    Some(Certificate { tree, signature: value.field("signature")?.as_bytes()?, delegation })
}

fn lookup_path<'t>(tree: &'t Tree<'_>, path: &[&[u8]]) -> Option<&'t [u8]> {
    match tree.lookup_path(path) {
        LookupResult::Found(value) => Some(value),
        _ => None,
    }
}

/// Whether `canister` is in one of the ranges of a CBOR-encoded list of closed intervals.
fn in_ranges(encoded: &[u8], canister: &[u8]) -> bool {
    let Ok(ranges) = cbor::decode(encoded, RANGES_BOUNDS) else { return false };
    ranges.as_array().is_some_and(|ranges| {
        ranges.iter().any(|range| match range.as_array() {
            Some([first, last]) => match (first.as_bytes(), last.as_bytes()) {
                (Some(first), Some(last)) => first <= canister && canister <= last,
                _ => false,
            },
            _ => false,
        })
    })
}

/// Whether a delegation's tree gives the subnet the canister: in the sharded form, or in the older
/// form of one list.
fn covers(tree: &Tree<'_>, subnet_id: &[u8], canister: &[u8]) -> bool {
    let shards = match tree.lookup_subtree([&b"canister_ranges"[..], subnet_id]) {
        SubtreeLookupResult::Found(shards) => {
            shards.list_paths().iter().any(|path| match path.as_slice() {
                [shard] => lookup_path(&shards, &[shard.as_bytes()])
                    .is_some_and(|ranges| in_ranges(ranges, canister)),
                _ => false,
            })
        }
        _ => false,
    };
    shards
        || lookup_path(tree, &[b"subnet", subnet_id, b"canister_ranges"])
            .is_some_and(|ranges| in_ranges(ranges, canister))
}

impl CertificateVerifier {
    /// Trusts this root key, and remembers at most `remembered` signatures.
    pub(crate) fn new(root_key: nidkg::PublicKey, remembered: u64) -> Self {
        Self { root_key, verified: BoundedMap::new(remembered) }
    }

    pub(crate) fn root_key(&self) -> nidkg::PublicKey {
        self.root_key
    }

    /// Whether `signature` is a signature of the canister key over `payload`.
    pub(crate) fn verify(&self, key: &CanisterKey<'_>, payload: &[u8], signature: &[u8]) -> bool {
        self.check(key, payload, signature).is_some()
    }

    fn check(&self, key: &CanisterKey<'_>, payload: &[u8], signature: &[u8]) -> Option<()> {
        let signature = cbor::decode(signature, CERTIFICATE_BOUNDS).ok()?;
        let signed = tree(signature.field("tree")?)?;
        let (seed, message) = (hash::of_bytes(key.seed), hash::of_bytes(payload));
        if !well_formed(signed.as_ref())
            || lookup_path(&signed, &[b"sig", &seed, &message]) != Some(&[])
        {
            return None;
        }
        let decoded =
            cbor::decode(signature.field("certificate")?.as_bytes()?, CERTIFICATE_BOUNDS).ok()?;
        let certificate = certificate(&decoded)?;
        let canister = key.canister_id.as_slice();
        if lookup_path(&certificate.tree, &[b"canister", canister, b"certified_data"])
            != Some(&signed.digest())
        {
            return None;
        }
        self.check_certificate(&certificate, &key.canister_id)
    }

    /// Data about the canister in `encoded`, a certificate in CBOR; `None` unless it is signed for
    /// it.
    pub(crate) fn certified_data(
        &self,
        encoded: &[u8],
        canister: &Principal,
    ) -> Option<CertifiedData> {
        let decoded = cbor::decode(encoded, SMALL_BOUNDS).ok()?;
        let certificate = certificate(&decoded)?;
        let path = [&b"canister"[..], canister.as_slice(), b"certified_data"];
        let data = lookup_path(&certificate.tree, &path)?.to_vec();
        let time = read_leb128(lookup_path(&certificate.tree, &[b"time"])?)?;
        self.check_certificate(&certificate, canister)?;
        Some(CertifiedData { data, time })
    }

    fn check_certificate(&self, certificate: &Certificate<'_>, canister: &Principal) -> Option<()> {
        let Some((subnet_id, delegation)) = certificate.delegation else {
            return self.check_signature(&self.root_key, certificate);
        };
        let decoded = cbor::decode(delegation, SMALL_BOUNDS).ok()?;
        let delegation = self::certificate(&decoded)?;
        let subnet_type = lookup_path(&delegation.tree, &[b"subnet", subnet_id, b"type"])?;
        if delegation.delegation.is_some() || subnet_type == b"cloud_engine" {
            return None;
        }
        // Ranges may be many: they are decoded once the root key has verified them.
        self.check_signature(&self.root_key, &delegation)?;
        if !covers(&delegation.tree, subnet_id, canister.as_slice()) {
            return None;
        }
        let subnet_key = lookup_path(&delegation.tree, &[b"subnet", subnet_id, b"public_key"])?;
        let subnet_key = nidkg::public_key_from_der(subnet_key).ok()?;
        self.check_signature(&subnet_key, certificate)
    }

    fn check_signature(&self, key: &nidkg::PublicKey, certificate: &Certificate<'_>) -> Option<()> {
        let message = nidkg::state_root_message(&certificate.tree.digest());
        let signature: &[u8; 48] = certificate.signature.try_into().ok()?;
        let digest: Hash = Sha256::new()
            .chain_update(key.as_bytes())
            .chain_update(signature)
            .chain_update(&message)
            .finalize()
            .into();
        if self.verified.get(&digest).is_some() {
            return Some(());
        }
        if !nidkg::verify(key, &message, signature) {
            return None;
        }
        self.verified.insert(digest, ());
        Some(())
    }
}
