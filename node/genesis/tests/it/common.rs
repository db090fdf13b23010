//! Nodes for the tests.
#![allow(dead_code)]

use std::{
    collections::BTreeMap,
    sync::{LazyLock, Mutex},
};

use ed25519_dalek::SigningKey;
use genesis::{NodeRecord, node_id};
use nidkg::{EncryptionSecretKey, Engine, EngineConfig, generate_key_pair};
use rand::SeedableRng;
use rand_chacha::ChaCha20Rng;

pub(crate) static ENGINE: LazyLock<Engine> = LazyLock::new(|| {
    Engine::new(EngineConfig::for_this_machine()).expect("threads can be started")
});

pub(crate) fn rng(seed: u64) -> ChaCha20Rng {
    ChaCha20Rng::seed_from_u64(seed)
}

pub(crate) struct Node {
    pub(crate) key: SigningKey,
    pub(crate) encryption: EncryptionSecretKey,
    pub(crate) record: NodeRecord,
}

pub(crate) fn node(number: u8) -> Node {
    let key = SigningKey::from_bytes(&[number; 32]);
    let owner = node_id(&key.verifying_key());
    let (public, encryption) = generate_key_pair(owner.as_slice(), &mut rng(u64::from(number)));
    let record = NodeRecord::new(&key, public, &format!("10.0.0.{number}:4000")).unwrap();
    Node { key, encryption, record }
}

/// The record of [`node`], made once.
pub(crate) fn record(number: u8) -> NodeRecord {
    static MADE: Mutex<BTreeMap<u8, NodeRecord>> = Mutex::new(BTreeMap::new());
    MADE.lock().unwrap().entry(number).or_insert_with(|| node(number).record).clone()
}
