//! Messages with proofs through the validator, and through a node.

use std::{
    path::Path,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use bytes::Bytes;
use disk::RealDisk;
use libp2p::identity::Keypair;
use protocol::{WakuMessage, gossip::message_id};
use relay_limits::{Limits, RlnLimits};
use router::Peer;

use super::{Effect, ProofRefusal, Validator, prover::Member, roots::Roots, samples};
use crate::{
    cli::Settings,
    config::Config,
    ingest::{ReceivedMessage, RejectReason},
    node::Node,
};

fn limits() -> RlnLimits {
    Limits::preset("tiny").unwrap().rln
}

fn validator(folder: &Path, limits: &RlnLimits) -> (Validator, Arc<Roots>) {
    let roots = Arc::new(Roots::default());
    let epoch_seconds = super::EPOCH_SECONDS;
    let opened = Validator::open(epoch_seconds, roots.clone(), limits, &RealDisk, folder).unwrap();
    (opened, roots)
}

/// A validator that knows the root of the samples.
fn with_root(folder: &Path) -> Validator {
    let (validator, roots) = validator(folder, &limits());
    roots.replace(vec![samples::proofs()[0].merkle_root]);
    validator
}

/// Judges a message that arrives when it was sent.
async fn judge(validator: &Validator, message: &WakuMessage) -> Result<(), ProofRefusal> {
    let pending = validator.admit().await.unwrap();
    let arrived_ns = message.timestamp.unwrap_or_default();
    validator.judge(&pending, message, &message_id(&message.encode()), arrived_ns).await
}

#[tokio::test]
async fn messages_of_the_published_prover_are_valid_and_a_second_one_is_spam() {
    let folder = tempfile::tempdir().unwrap();
    let validator = with_root(folder.path());
    let messages = samples::messages();
    let [first, second, third, fourth, next_epoch] = &messages[..] else { panic!("five") };
    for message in [first, third, fourth, next_epoch, first] {
        assert_eq!(judge(&validator, message).await, Ok(()));
    }
    assert_eq!(judge(&validator, second).await, Err(ProofRefusal::Spam));
    // A signal that comes again in other bytes is not another message.
    let again = WakuMessage { meta: Some(Bytes::from_static(b"new")), ..first.clone() };
    assert_eq!(judge(&validator, &again).await, Err(ProofRefusal::Repeated));
    // Neither is forgotten when the node starts again.
    drop(validator);
    let validator = with_root(folder.path());
    assert_eq!(judge(&validator, second).await, Err(ProofRefusal::Spam));
    assert_eq!(judge(&validator, first).await, Ok(()));
}

#[tokio::test]
async fn messages_judged_at_once_are_judged_as_one_by_one() {
    let folder = tempfile::tempdir().unwrap();
    let validator = with_root(folder.path());
    let messages = samples::messages();
    let judged = futures::future::join_all(messages.iter().map(|one| judge(&validator, one))).await;
    let spam = judged.iter().filter(|one| **one == Err(ProofRefusal::Spam)).count();
    let valid = judged.iter().filter(|one| one.is_ok()).count();
    assert_eq!((spam, valid), (1, 4), "{judged:?}");
    assert!(judged[..2].contains(&Err(ProofRefusal::Spam)), "of one nullifier");
    assert_eq!(validator.counters.valid.load(Relaxed), 4);
    assert_eq!(validator.pending(), 0);
}

#[tokio::test]
async fn each_fault_has_its_refusal() {
    let folder = tempfile::tempdir().unwrap();
    let validator = with_root(folder.path());
    let message = samples::messages().swap_remove(0);
    let proof = samples::proof(&message);
    let changed = |change: &dyn Fn(&mut protocol::RateLimitProof)| {
        let mut proof = proof.clone();
        change(&mut proof);
        WakuMessage { rate_limit_proof: Some(proof.encode().into()), ..message.clone() }
    };
    let other_bytes =
        |bytes: Option<Bytes>| WakuMessage { rate_limit_proof: bytes, ..message.clone() };
    for (faulty, refusal, effect) in [
        (other_bytes(None), ProofRefusal::Absent, Effect::Reject),
        (other_bytes(Some(Bytes::new())), ProofRefusal::Absent, Effect::Reject),
        (other_bytes(Some(Bytes::from_static(&[0xff]))), ProofRefusal::Damaged, Effect::Reject),
        (other_bytes(Some(Bytes::from_static(&[0, 1]))), ProofRefusal::Disputed, Effect::Ignore),
        (
            WakuMessage { timestamp: None, ..message.clone() },
            ProofRefusal::NoTimestamp,
            Effect::Reject,
        ),
        (changed(&|proof| proof.epoch[0] ^= 1), ProofRefusal::Epoch, Effect::Reject),
        (changed(&|proof| proof.epoch[31] = 1), ProofRefusal::Epoch, Effect::Reject),
        (changed(&|proof| proof.rln_identifier[0] ^= 1), ProofRefusal::Application, Effect::Ignore),
        (changed(&|proof| proof.share_y[0] ^= 1), ProofRefusal::False, Effect::Reject),
        (changed(&|proof| proof.share_x[0] ^= 1), ProofRefusal::False, Effect::Reject),
        (changed(&|proof| proof.nullifier[0] ^= 1), ProofRefusal::False, Effect::Reject),
        (changed(&|proof| proof.proof[100] ^= 1), ProofRefusal::False, Effect::Reject),
        (
            WakuMessage { payload: Bytes::from_static(b"other"), ..message.clone() },
            ProofRefusal::False,
            Effect::Reject,
        ),
    ] {
        assert_eq!(judge(&validator, &faulty).await, Err(refusal.clone()));
        assert_eq!(refusal.effect(), effect, "{refusal}");
    }
    assert_eq!(judge(&validator, &message).await, Ok(()), "no fault was noted as its nullifier");
}

#[tokio::test]
async fn a_timestamp_may_be_twenty_seconds_off_the_clock_at_arrival() {
    let folder = tempfile::tempdir().unwrap();
    let validator = with_root(folder.path());
    let message = samples::messages().swap_remove(0);
    let id = message_id(&message.encode());
    let pending = validator.admit().await.unwrap();
    let at = message.timestamp.unwrap();
    for (off, is_taken) in [(20_999, true), (-20_999, true), (21_000, false), (-21_000, false)] {
        let judged = validator.judge(&pending, &message, &id, at + off * 1_000_000).await;
        assert_eq!(judged.is_ok(), is_taken, "{off} ms: {judged:?}");
    }
}

#[tokio::test]
async fn without_roots_nothing_is_judged_and_an_unknown_root_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let limits = RlnLimits { root_wait_millis: 20_000, ..limits() };
    let (validator, roots) = validator(folder.path(), &limits);
    let message = samples::messages().swap_remove(0);
    assert_eq!(judge(&validator, &message).await, Err(ProofRefusal::NoRoots));
    roots.replace(vec![[1; 32]]);
    let reading = async {
        roots.wanted().await;
        roots.replace(vec![samples::proofs()[0].merkle_root, [1; 32]]);
    };
    let (judged, ()) = tokio::join!(judge(&validator, &message), reading);
    assert_eq!(judged, Ok(()));
    // It stays unknown: it is not held against the peer that knows it.
    let folder = tempfile::tempdir().unwrap();
    let limits = RlnLimits { root_wait_millis: 1, ..limits };
    let (validator, roots) = self::validator(folder.path(), &limits);
    roots.replace(vec![[1; 32]]);
    assert_eq!(judge(&validator, &message).await, Err(ProofRefusal::Root));
    assert_eq!(ProofRefusal::Root.effect(), Effect::Forget);
}

#[tokio::test]
async fn when_all_places_are_taken_clients_are_refused_and_places_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let limits = RlnLimits { pending_messages: 2, ..limits() };
    let (validator, _) = validator(folder.path(), &limits);
    let taken = [validator.admit().await.unwrap(), validator.admit().await.unwrap()];
    assert_eq!(validator.pending(), 2);
    let refused = validator.admit_within(Duration::from_millis(1)).await.unwrap_err();
    assert_eq!(refused, ProofRefusal::Busy(2));
    drop(taken);
    assert_eq!(validator.pending(), 0);
    validator.admit_within(samples::LONG).await.unwrap();
}

fn now_ns() -> i64 {
    (memory::unix_millis() * 1_000_000) as i64
}

/// A node that verifies proofs, in this process, and the root that it takes as valid.
fn node(folder: &Path, root: [u8; 32]) -> Arc<Node> {
    let settings = Settings { data_dir: Some(folder.to_owned()), ..Settings::default() };
    let config = Config::load(&settings).unwrap();
    let (validator, roots) = validator(&folder.join("rln"), &config.limits.rln);
    roots.replace(vec![root]);
    let own = Keypair::generate_ed25519().public().to_peer_id();
    Node::open(&config, None, own, [7; 32], None, Some(validator)).unwrap()
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + samples::LONG;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A member sends, by a client and by a peer, and exceeds its limit. The published prover makes the
/// proofs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_takes_valid_messages_and_scores_the_peer_that_brings_spam() {
    let member = Member::new();
    let folder = tempfile::tempdir().unwrap();
    let node = node(folder.path(), member.root);
    // All of one epoch.
    let at = now_ns();
    let message = |payload: &'static str, number| {
        let payload = Bytes::from_static(payload.as_bytes());
        let mut message = WakuMessage::new("/thimble/1/rln/proto", payload);
        message.timestamp = Some(at);
        member.attach(&mut message, number);
        message
    };
    let publish = async |message: &WakuMessage| {
        let bytes = Bytes::from(message.encode());
        let held = node.pools.receiving.try_reserve(bytes.len() as u64).unwrap();
        let received = ReceivedMessage { bytes, held, arrived: Instant::now() };
        node.publish(0, message.clone(), received).await
    };
    let bring = async |peer, message: &WakuMessage| {
        let bytes = Bytes::from(message.encode());
        let held = node.pools.receiving.try_reserve(bytes.len() as u64).unwrap();
        let received = ReceivedMessage { bytes, held, arrived: Instant::now() };
        node.relay(peer, 0, received).await;
    };
    for peer in [1, 2] {
        assert!(node.router().connected(Peer(peer), vec![peer as u8], None, true));
    }
    let score = |peer| node.router().score(Peer(peer), node.now()).unwrap();

    // A client's message, the same again, and one without a proof.
    let first = message("first", 0);
    assert!(!publish(&first).await.unwrap().known);
    assert!(publish(&first).await.unwrap().known);
    let without = WakuMessage { rate_limit_proof: None, ..first.clone() };
    let refused = publish(&without).await.unwrap_err();
    assert!(matches!(refused, RejectReason::Proof(ProofRefusal::Absent)), "{refused}");

    // A peer's message is taken, a second one under the nullifier of a client's message is not.
    bring(Peer(1), &message("second", 1)).await;
    until("the message is taken", || node.counters.relay_messages.load(Relaxed) == 1).await;
    assert!(score(1) > 0.0);
    bring(Peer(2), &message("third", 0)).await;
    let refused = || -> u64 { node.counters.relay_refused.each().map(|(_, count)| count).sum() };
    until("the spam is refused", || refused() == 1).await;
    assert!(score(2) < 0.0 && score(1) > 0.0);
    until("both messages are kept", || node.store.status().messages == 2).await;
    assert_eq!(node.counters.relay_messages.load(Relaxed), 1);
}
