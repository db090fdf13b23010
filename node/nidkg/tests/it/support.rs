//! A set of nodes with their encryption keys, and the steps they take together.

use std::collections::BTreeMap;

use accounting::Pool;
use nidkg::{
    Committee, Dealing, DealingError, EncryptionPublicKey, EncryptionSecretKey, Engine,
    EngineConfig, Epoch, NodeIndex, SecretShare, Session, Source, Transcript, VerifiedDealing,
    combine, create_dealing, create_transcript, generate_key_pair, verify, verify_dealings,
};
use rand::SeedableRng;
use rand_chacha::ChaCha20Rng;

pub(crate) fn rng(seed: u64) -> ChaCha20Rng {
    ChaCha20Rng::seed_from_u64(seed)
}

pub(crate) fn engine() -> Engine {
    let mut config = EngineConfig::for_this_machine();
    config.tables = Pool::standalone("tables", 32 << 20);
    Engine::new(config).unwrap()
}

pub(crate) fn high_threshold(nodes: u32) -> u32 {
    nodes - (nodes - 1) / 3
}

pub(crate) fn faulty(nodes: u32) -> u32 {
    (nodes - 1) / 3
}

/// Nodes that receive shares.
pub(crate) struct Nodes {
    pub(crate) public: Vec<EncryptionPublicKey>,
    pub(crate) secret: Vec<EncryptionSecretKey>,
}

impl Nodes {
    pub(crate) fn new(count: u32, rng: &mut ChaCha20Rng) -> Self {
        let (public, secret) =
            (0..count).map(|index| generate_key_pair(&index.to_be_bytes(), rng)).unzip();
        Self { public, secret }
    }

    pub(crate) fn session(&self, id: u8, epoch: u32, threshold: u32, source: Source) -> Session {
        Session::new([id; 32], Epoch(epoch), threshold, self.public.clone(), source).unwrap()
    }

    pub(crate) fn fresh(&self, id: u8, epoch: u32) -> Session {
        let count = self.public.len() as u32;
        let source = Source::Fresh { dealers: count, dealings: faulty(count) + 1 };
        self.session(id, epoch, high_threshold(count), source)
    }

    pub(crate) fn load(
        &self,
        engine: &Engine,
        session: &Session,
        transcript: &Transcript,
    ) -> Vec<SecretShare> {
        let nodes = self.secret.iter().enumerate();
        nodes
            .map(|(index, key)| {
                transcript.load(engine, session, NodeIndex(index as u32), key).unwrap()
            })
            .collect()
    }
}

/// Dealings of the first `count` dealers of a fresh session.
pub(crate) fn deal(
    engine: &Engine,
    session: &Session,
    count: u32,
    rng: &mut ChaCha20Rng,
) -> Vec<(NodeIndex, Dealing)> {
    (0..count)
        .map(NodeIndex)
        .map(|dealer| (dealer, create_dealing(engine, session, dealer, None, rng).unwrap()))
        .collect()
}

pub(crate) fn reshare(
    engine: &Engine,
    session: &Session,
    shares: &[SecretShare],
    rng: &mut ChaCha20Rng,
) -> Vec<(NodeIndex, Dealing)> {
    let one = |share: &SecretShare, rng: &mut ChaCha20Rng| {
        (share.index, create_dealing(engine, session, share.index, Some(share), rng).unwrap())
    };
    shares.iter().map(|share| one(share, rng)).collect()
}

pub(crate) fn verified(
    engine: &Engine,
    session: &Session,
    dealings: Vec<(NodeIndex, Dealing)>,
    rng: &mut ChaCha20Rng,
) -> Vec<VerifiedDealing> {
    let results: Result<_, DealingError> =
        verify_dealings(engine, session, dealings, rng).into_iter().collect();
    results.unwrap()
}

/// The whole of a fresh key generation.
pub(crate) fn generate(
    engine: &Engine,
    nodes: &Nodes,
    session: &Session,
    rng: &mut ChaCha20Rng,
) -> (Transcript, Vec<SecretShare>) {
    let dealings = deal(engine, session, session.dealings_needed(), rng);
    let dealings = verified(engine, session, dealings, rng);
    let transcript = create_transcript(engine, session, &dealings).unwrap();
    let shares = nodes.load(engine, session, &transcript);
    (transcript, shares)
}

/// Signs with the last `threshold` shares, checks every share, and checks the signature with the
/// published verifier.
pub(crate) fn sign_and_verify(committee: &Committee, shares: &[SecretShare]) {
    let message = nidkg::state_root_message(&[7; 32]);
    let used = &shares[shares.len() - committee.threshold as usize..];
    let signed: BTreeMap<_, _> =
        used.iter().map(|share| (share.index, share.sign(&message))).collect();
    for (index, share) in &signed {
        committee.verify_share(*index, &message, share).unwrap();
    }
    let signature = combine(committee, &signed).unwrap();
    assert!(verify(&committee.public_key, &message, &signature.0));
    ic_verify_bls_signature::verify_bls_signature(
        &signature.0,
        &message,
        committee.public_key.as_bytes(),
    )
    .unwrap();
}
