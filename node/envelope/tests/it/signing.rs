//! Signed data of clients and subnets, for tests: keys, certificates, envelopes.

#![allow(dead_code, clippy::unwrap_used, missing_docs, unreachable_pub)]

use std::{
    collections::BTreeMap,
    time::{SystemTime, UNIX_EPOCH},
};

use ic_agent::Identity;
use ic_certification::{HashTree, empty, fork, labeled, leaf};
use ic_principal::Principal;
use ic_transport_types::{Envelope, EnvelopeContent};
use limits::GatewayLimits;
use rand::SeedableRng;
use state::Time;

/// A tree of labels, as the node's state would have it.
#[derive(Clone, Debug)]
pub enum Tree {
    Leaf(Vec<u8>),
    Fork(BTreeMap<Vec<u8>, Tree>),
}

impl Default for Tree {
    fn default() -> Self {
        Self::Fork(BTreeMap::new())
    }
}

impl Tree {
    pub fn set(&mut self, path: &[&[u8]], value: impl Into<Vec<u8>>) {
        match path {
            [] => *self = Self::Leaf(value.into()),
            [first, rest @ ..] => {
                let Self::Fork(children) = self else { panic!("a leaf is in the way") };
                children.entry(first.to_vec()).or_default().set(rest, value);
            }
        }
    }

    pub fn hash_tree(&self) -> HashTree {
        match self {
            Self::Leaf(value) => leaf(value.clone()),
            Self::Fork(children) => {
                let mut nodes: Vec<HashTree> = children
                    .iter()
                    .map(|(label, child)| labeled(label.clone(), child.hash_tree()))
                    .collect();
                while nodes.len() > 1 {
                    nodes = nodes
                        .chunks(2)
                        .map(|pair| match pair {
                            [left, right] => fork(left.clone(), right.clone()),
                            [alone] => alone.clone(),
                            _ => unreachable!(),
                        })
                        .collect();
                }
                nodes.pop().unwrap_or_else(empty)
            }
        }
    }
}

/// A subnet key of one share.
pub struct SubnetKey {
    committee: nidkg::Committee,
    share: nidkg::SecretShare,
}

impl SubnetKey {
    pub fn new(seed: u64) -> Self {
        let mut rng = rand::rngs::StdRng::seed_from_u64(seed);
        let (committee, mut shares) = nidkg::deal(1, 1, &mut rng).unwrap();
        Self { committee, share: shares.pop().unwrap() }
    }

    pub fn public(&self) -> nidkg::PublicKey {
        self.committee.public_key
    }

    pub fn der(&self) -> Vec<u8> {
        nidkg::public_key_to_der(&self.committee.public_key)
    }

    pub fn id(&self) -> Principal {
        Principal::self_authenticating(self.der())
    }

    /// A signed certificate over the whole tree, with a delegation if given.
    pub fn certificate(&self, tree: &Tree, delegation: Option<(Principal, Vec<u8>)>) -> Vec<u8> {
        let tree = tree.hash_tree();
        let share = self.share.sign(&nidkg::state_root_message(&tree.digest()));
        let signature =
            nidkg::combine(&self.committee, &BTreeMap::from([(self.share.index, share)])).unwrap();
        let delegation = delegation.map(|(subnet_id, certificate)| ic_certification::Delegation {
            subnet_id: subnet_id.as_slice().to_vec(),
            certificate,
        });
        encode(&ic_certification::Certificate { tree, signature: signature.0.to_vec(), delegation })
    }
}

/// CBOR of `value` after the self-describing tag.
pub fn encode(value: &impl serde::Serialize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut serializer = serde_cbor_2::Serializer::new(&mut bytes);
    serializer.self_describe().unwrap();
    value.serialize(&mut serializer).unwrap();
    bytes
}

pub fn leb128(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let byte = (number & 0x7f) as u8;
        number >>= 7;
        if number == 0 {
            bytes.push(byte);
            return bytes;
        }
        bytes.push(byte | 0x80);
    }
}

pub fn ranges(ranges: &[(Principal, Principal)]) -> Vec<u8> {
    let ranges: Vec<_> = ranges
        .iter()
        .map(|(first, last)| {
            [
                serde_bytes::ByteBuf::from(first.as_slice()),
                serde_bytes::ByteBuf::from(last.as_slice()),
            ]
        })
        .collect();
    encode(&ranges)
}

pub fn canister(number: u8) -> Principal {
    Principal::from_slice(&[0, 0, 0, 0, 0, 0, 0, number, 1, 1])
}

pub fn now() -> Time {
    Time(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64)
}

pub fn gateway_limits() -> GatewayLimits {
    GatewayLimits {
        connections: 32,
        requests_in_flight: 16,
        queries_in_flight: 4,
        sync_calls_waiting: 4,
        body_bytes: 256 << 10,
        bodies_bytes: 1 << 20,
        responses_bytes: 4 << 20,
        read_timeout_millis: 1_000,
        sync_call_wait_millis: 2_000,
        read_state_paths: 100,
        read_state_path_labels: 16,
        delegations: 20,
        delegation_targets: 1000,
        nonce_bytes: 32,
        remembered_keys: 8,
        remembered_signatures: 8,
        signed_answers: 8,
    }
}

/// Signs `content` as an agent would.
pub fn sign(identity: &dyn Identity, content: EnvelopeContent) -> Envelope<'static> {
    let signature = identity.sign(&content).unwrap();
    Envelope {
        content: std::borrow::Cow::Owned(content),
        sender_pubkey: signature.public_key,
        sender_sig: signature.signature,
        sender_delegation: signature.delegations,
    }
}

pub fn call(sender: Principal, method: &str) -> EnvelopeContent {
    EnvelopeContent::Call {
        nonce: Some(vec![1, 2, 3]),
        ingress_expiry: now().0 + 120_000_000_000,
        sender,
        canister_id: canister(1),
        method_name: method.to_owned(),
        arg: b"DIDL\x00\x00".to_vec(),
        sender_info: None,
    }
}

pub fn query(sender: Principal, method: &str) -> EnvelopeContent {
    EnvelopeContent::Query {
        nonce: None,
        ingress_expiry: now().0 + 120_000_000_000,
        sender,
        canister_id: canister(1),
        method_name: method.to_owned(),
        arg: b"DIDL\x00\x00".to_vec(),
        sender_info: None,
    }
}

pub fn read_state(sender: Principal, paths: &[&[&[u8]]]) -> EnvelopeContent {
    EnvelopeContent::ReadState {
        ingress_expiry: now().0 + 120_000_000_000,
        sender,
        paths: paths
            .iter()
            .map(|path| {
                path.iter().map(|label| ic_certification::Label::from_bytes(label)).collect()
            })
            .collect(),
    }
}

pub fn ed25519(seed: u8) -> ic_agent::identity::BasicIdentity {
    ic_agent::identity::BasicIdentity::from_raw_key(&[seed; 32])
}
