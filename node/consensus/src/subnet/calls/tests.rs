#![allow(clippy::unwrap_used)]

use std::future::Future;

use commonware_cryptography::Signer as _;
use commonware_p2p::simulated::{self, Link, Network};
use commonware_runtime::{Quota, Runner as _, Supervisor as _, deterministic};
use commonware_utils::{NZU32, NZUsize, Probability};
use envelope::Envelopes;
use ic_principal::Principal;
use limits::ConsensusLimits;
use state::{Ingress, IngressId, RequestId};

use super::*;
use crate::{
    BlockLog, IngressPool, SystemClock,
    subnet::{BlobLog, block::NameBounds, journal::Journal, key, peers::PeerScorer},
};

type Context = deterministic::Context;
type Out = simulated::Sender<PublicKey, Context>;
type In = simulated::Receiver<PublicKey>;

const BOUNDS: NameBounds = NameBounds { calls: 100, bytes: 10_000, call_bytes: 20_000 };

/// An envelope is whether its signature holds, the number of its request, and any bytes.
struct Envelope;

impl Envelopes for Envelope {
    fn read(&self, signed: &SignedIngress) -> Result<Ingress, String> {
        let [_, number, ..] = signed.envelope[..] else { return Err("no envelope".into()) };
        Ok(Ingress {
            request_id: RequestId([number; 32]),
            sender: Principal::anonymous(),
            canister_id: Principal::management_canister(),
            effective_canister_id: signed.effective_canister_id,
            method_name: "m".into(),
            arg: vec![],
            ingress_expiry: Time(u64::MAX),
            sender_info: None,
        })
    }

    fn verify(&self, signed: &SignedIngress) -> Result<(IngressId, Validity), String> {
        let claimed = self.claim(signed)?;
        if signed.envelope[0] == 1 {
            Ok(claimed)
        } else {
            Err("its signature does not hold".into())
        }
    }

    fn claim(&self, signed: &SignedIngress) -> Result<(IngressId, Validity), String> {
        let Ingress { request_id, effective_canister_id, .. } = self.read(signed)?;
        let id = IngressId::new(&request_id, &effective_canister_id);
        Ok((id, Validity { from: Time(0), until: Time(u64::MAX) }))
    }
}

fn envelope(holds: bool, number: u8, bytes: usize) -> SignedIngress {
    let head = [u8::from(holds), number];
    SignedIngress {
        effective_canister_id: Principal::management_canister(),
        envelope: [&head[..], &vec![0; bytes - 2]].concat().into(),
    }
}

fn name(signed: &SignedIngress) -> CallName {
    let ingress = Envelope.read(signed).unwrap();
    CallName::for_envelope(
        IngressId::new(&ingress.request_id, &ingress.effective_canister_id),
        signed,
    )
}

fn limits() -> ConsensusLimits {
    limits::Limits::derive(512 << 20).unwrap().consensus
}

/// This node, what it cut off, and the ends of two peers.
struct CallsFixture {
    context: Context,
    calls: Calls<Out>,
    pool: Arc<IngressPool>,
    cut: Arc<Mutex<Vec<PublicKey>>>,
    me: PublicKey,
    peers: Vec<(PublicKey, Out, In)>,
    _folder: tempfile::TempDir,
}

fn bench<F: Future<Output = ()>>(test: impl FnOnce(CallsFixture) -> F) {
    deterministic::Runner::timed(Duration::from_secs(600)).start(|context| async move {
        let mut keys: Vec<_> =
            (1..=3).map(|number| key::node_key(&[number; 32]).unwrap().public_key()).collect();
        let config = simulated::Config {
            max_size: 1 << 20,
            max_peers_per_set: NZUsize!(3),
            disconnect_on_block: true,
            tracked_peer_sets: NZUsize!(2),
        };
        let (network, oracle) =
            Network::new_with_peers(context.child("network"), config, keys.clone()).await;
        network.start();
        let mut ends = Vec::new();
        for key in &keys {
            let quota = Quota::per_second(NZU32!(100_000));
            ends.push(oracle.control(key.clone()).register(0, quota).await.unwrap());
            for other in keys.iter().filter(|other| *other != key) {
                let link = Link {
                    latency: Duration::from_millis(1),
                    jitter: Duration::ZERO,
                    success_rate: Probability::try_from(1.0).unwrap(),
                };
                oracle.add_link(key.clone(), other.clone(), link).await.unwrap();
            }
        }
        let folder = tempfile::tempdir().unwrap();
        let pool = Arc::new(IngressPool::new(&limits()));
        pool.share_among(3, || ());
        let cut = Arc::new(Mutex::new(Vec::new()));
        let scorer = PeerScorer::new({
            let cut = cut.clone();
            Arc::new(move |peer: &PublicKey| cut.lock().push(peer.clone()))
        });
        let blobs = BlobLog::open(disk::RealDisk::shared(), folder.path()).unwrap();
        let journal = Journal::open(blobs, 1 << 20).unwrap();
        let log = Arc::new(Mutex::new(BlockLog::open(folder.path(), 1 << 20).unwrap()));
        let (sender, receiver) = ends.remove(0);
        let calls = Calls::new(Config {
            pool: pool.clone(),
            envelopes: Arc::new(Envelope),
            clock: Arc::new(SystemClock),
            journal: Arc::new(journal),
            bounds: BOUNDS,
            scorer,
            sender,
        });
        let members = keys.clone();
        let places: PeerNumbers =
            Arc::new(move |peer| members.iter().position(|member| member == peer));
        start(&context, &calls, places, &log, receiver);
        let me = keys.remove(0);
        let peers = keys.into_iter().zip(ends).map(|(key, (out, into))| (key, out, into)).collect();
        test(CallsFixture { context, calls, pool, cut, me, peers, _folder: folder }).await;
    });
}

impl CallsFixture {
    fn send_from(&mut self, peer: usize, message: &Message) {
        let bytes = postcard::to_stdvec(message).unwrap();
        self.peers[peer].1.send(Recipients::One(self.me.clone()), bytes, false);
    }

    async fn receive_at(&mut self, peer: usize) -> Message {
        let (_, message) = self.peers[peer].2.recv().await.unwrap();
        postcard::from_bytes(message.as_ref()).unwrap()
    }

    /// Until everything under way was processed.
    async fn settle(&self) {
        self.context.sleep(Duration::from_millis(50)).await;
    }
}

fn give(digest: [u8; 32], signed: &SignedIngress) -> Message {
    Message::Response(BoundedList(vec![RequestedIngress { digest, signed: signed.clone() }]))
}

// Promise: P18 - A peer that sends a wrong envelope is blocked, and another peer supplies it.
#[test]
fn peer_with_wrong_envelope_is_blocked_and_another_is_asked() {
    bench(|mut bench| async move {
        let (named, other) = (envelope(true, 7, 300), envelope(true, 7, 40));
        let wanted = name(&named);
        // A client sent this node another envelope of the same request.
        bench.pool.submit(wanted.id, Time(u64::MAX), other.clone()).unwrap();
        let gathering =
            bench.context.child("gather").spawn({
                let (calls, first) = (bench.calls.clone(), bench.peers[0].0.clone());
                move |context| async move {
                    calls.gather(&context, &[wanted], None, Some(&first)).await
                }
            });
        let Message::Request { height: None, names } = bench.receive_at(0).await else {
            panic!("no request")
        };
        assert_eq!(names.0, [wanted]);
        bench.send_from(0, &give(wanted.digest, &other));
        bench.settle().await;
        assert_eq!(
            *bench.cut.lock(),
            [bench.peers[0].0.clone()],
            "it stated a digest and sent other bytes"
        );
        // Then all peers are asked.
        let Message::Request { .. } = bench.receive_at(1).await else { panic!("no request") };
        bench.send_from(1, &give(wanted.digest, &named));
        let gathered = gathering.await.unwrap();
        assert_eq!(gathered[0].signed, named);
        bench.calls.journal_calls(&[wanted], gathered, (Height(1), Time(5))).unwrap();
        assert_eq!(bench.cut.lock().len(), 1);
    });
}

#[test]
fn block_with_unsigned_call_or_wrong_length_or_id_is_invalid() {
    bench(|bench| async move {
        let keep = |name: CallName, signed: &SignedIngress| {
            let gathered = GatheredCall { signed: signed.clone(), verdict: None };
            match bench.calls.journal_calls(&[name], vec![gathered], (Height(1), Time(5))) {
                Err(VerdictError::Invalid(reason)) => reason,
                other => panic!("{other:?}"),
            }
        };
        let (good, unsigned) = (envelope(true, 7, 300), envelope(false, 7, 300));
        assert!(keep(name(&unsigned), &unsigned).contains("signature"));
        assert!(
            keep(CallName { bytes: 299, ..name(&good) }, &good).contains("300 bytes where 299")
        );
        assert!(
            keep(CallName { id: IngressId([9; 32]), ..name(&good) }, &good)
                .contains("its id names")
        );
    });
}

#[test]
fn unrequested_envelopes_are_dropped() {
    bench(|mut bench| async move {
        let (wanted, unwanted) = (envelope(true, 1, 300), envelope(true, 2, 300));
        let gathering = bench.context.child("gather").spawn({
            let (calls, name) = (bench.calls.clone(), name(&wanted));
            move |context| async move { calls.gather(&context, &[name], None, None).await }
        });
        let Message::Request { .. } = bench.receive_at(0).await else { panic!("no request") };
        bench.send_from(0, &give(name(&unwanted).digest, &unwanted));
        bench.settle().await;
        let sizes = |bench: &CallsFixture| {
            let store = bench.calls.store.lock();
            (store.wanted.len(), store.calls.len())
        };
        assert_eq!(sizes(&bench), (1, 0));
        // The engine gives the round up.
        gathering.abort();
        bench.settle().await;
        assert_eq!(sizes(&bench), (0, 0));
        bench.send_from(0, &give(name(&wanted).digest, &wanted));
        bench.settle().await;
        assert_eq!(sizes(&bench), (0, 0));
        assert_eq!(*bench.cut.lock(), []);
        // The calls were not requested, and the peer keeps sending them.
        for _ in 0..2_000 {
            bench.send_from(0, &give(name(&unwanted).digest, &unwanted));
        }
        bench.settle().await;
        assert!(bench.cut.lock().contains(&bench.peers[0].0));
    });
}

// Promise: P18 - Requested envelopes are bounded.
#[test]
fn requested_digests_are_bounded() {
    bench(|bench| async move {
        let mut guard =
            GatherGuard { store: bench.calls.store.clone(), digests: BTreeSet::new(), votes: true };
        let digest = |number: u64| {
            let mut digest = [0; 32];
            digest[..8].copy_from_slice(&number.to_be_bytes());
            digest
        };
        let digests: Vec<_> = (0..400).map(digest).collect();
        assert!(guard.request(&digests, bench.calls.store_calls_max()));
        assert!(guard.request(&digests, bench.calls.store_calls_max()), "the same again");
        assert!(!guard.request(&[[1; 32]], bench.calls.store_calls_max()));
        drop(guard);
        assert!(bench.calls.store.lock().wanted.is_empty());
    });
}

// Promise: P18 - Ingress offers are counted before their signatures are verified.
#[test]
fn announcements_are_metered_before_verification_and_invalid_ones_block_the_sender() {
    bench(|mut bench| async move {
        let offer = |calls: Vec<SignedIngress>| Message::Announce(BoundedList(calls));
        bench.send_from(
            0,
            &offer(vec![envelope(true, 1, 100), envelope(true, 1, 100), envelope(true, 2, 100)]),
        );
        bench.settle().await;
        assert_eq!(bench.pool.status().messages, 2);
        bench.send_from(1, &offer(vec![envelope(false, 3, 100), envelope(true, 4, 100)]));
        bench.settle().await;
        assert_eq!(
            (bench.pool.status().messages, bench.cut.lock().clone()),
            (2, vec![bench.peers[1].0.clone()])
        );
        // Eight blocks' worth of calls at once is what a peer gets; what it sends beyond is not
        // looked at.
        for number in 0..40 {
            bench.send_from(0, &offer((0..50).map(|_| envelope(true, 5 + number, 100)).collect()));
        }
        bench.settle().await;
        assert!((10..40).contains(&bench.pool.status().messages), "{:?}", bench.pool.status());
        assert_eq!(bench.cut.lock().len(), 1, "too much of a good thing, for a moment");
    });
}

// Promise: P18 - A message that does not decode counts against its sender.
#[test]
fn a_message_that_does_not_decode_is_its_senders_fault() {
    bench(|mut bench| async move {
        let me = bench.me.clone();
        bench.peers[0].1.send(Recipients::One(me), vec![9, 9, 9], false);
        bench.settle().await;
        assert_eq!(*bench.cut.lock(), [bench.peers[0].0.clone()]);
    });
}

#[test]
fn requests_are_deduplicated_and_rate_limited() {
    bench(|mut bench| async move {
        let call = envelope(true, 1, 5_000);
        bench.pool.submit(name(&call).id, Time(u64::MAX), call.clone()).unwrap();
        let want =
            Message::Request { height: None, names: BoundedList(vec![name(&call); WANT_MAX]) };
        bench.send_from(0, &want);
        let Message::Response(given) = bench.receive_at(0).await else { panic!("no answer") };
        assert_eq!(given.0.len(), 1, "duplicates within a message count once");
        for _ in 0..1_000 {
            bench.send_from(0, &want);
        }
        bench.context.sleep(Duration::from_secs(5)).await;
        assert!(bench.cut.lock().contains(&bench.peers[0].0), "who floods is cut off");
        let answered =
            std::iter::from_fn(|| futures::FutureExt::now_or_never(bench.peers[0].2.recv()));
        assert!(answered.count() < 500);
    });
}
