#![allow(clippy::unwrap_used)]

use accounting::Pool;
use commonware_cryptography::Signer as _;
use commonware_p2p::simulated::{Link, Network, Oracle};
use commonware_runtime::{Quota, Runner as _, Spawner as _, Supervisor as _, deterministic};
use commonware_utils::{NZU32, NZUsize, Probability, sync::Mutex};
use ic_principal::Principal;
use limits::Limits;
use nidkg::{Committee, SecretShare, SignatureShare};
use rand::{SeedableRng as _, rngs::StdRng};
use state::{Payload, Time};

use super::*;
use crate::{
    IngressPool, OpenOutcall, TakenCall,
    certifier::CommitteeSchedule,
    subnet::{
        key,
        outcalls::{NodeIds, send_queue},
        peers::PeerScorer,
    },
};

type Context = deterministic::Context;

const MEMBERS: usize = 4;
const THRESHOLD: u32 = 3;
const UNTIL: Time = Time(1 << 50);

fn dealt(seed: u64) -> (Committee, Vec<SecretShare>) {
    nidkg::deal(MEMBERS as u32, THRESHOLD, &mut StdRng::seed_from_u64(seed)).unwrap()
}

fn answer(id: u64, reply: &str) -> OutcallAnswer {
    let payload = Payload::Reply(reply.as_bytes().to_vec());
    OutcallAnswer { id: OutcallId(id), until: UNTIL, payload }
}

fn keys() -> Vec<PublicKey> {
    let mut keys: Vec<_> = (1..=MEMBERS as u8)
        .map(|number| key::node_key(&[number; 32]).unwrap().public_key())
        .collect();
    keys.sort();
    keys
}

/// Of the member at this place; the same seed deals the same.
fn signers(seed: u64, place: usize) -> SigningCommittee {
    let members = keys().iter().map(|key| key.as_ref().try_into().unwrap()).collect();
    let (committee, mut shares) = dealt(seed);
    SigningCommittee { committee, share: Some(shares.remove(place)), members }
}

fn node_id(place: usize) -> Principal {
    Principal::from_slice(&[place as u8, 2])
}

/// Four members, each with a task.
struct Members {
    context: Context,
    oracle: Oracle<PublicKey, Context>,
    key: nidkg::PublicKey,
    outcalls: Vec<Arc<OutcallAnswers>>,
    pools: Vec<Arc<IngressPool>>,
    schedules: Vec<CommitteeSchedule>,
    rooms: Vec<Pool>,
    cut: Arc<Mutex<Vec<PublicKey>>>,
}

impl Members {
    async fn new(context: Context) -> Self {
        let config = commonware_p2p::simulated::Config {
            max_size: 4 << 20,
            max_peers_per_set: NZUsize!(MEMBERS),
            disconnect_on_block: true,
            tracked_peer_sets: NZUsize!(2),
        };
        let keys = keys();
        let (network, oracle) =
            Network::new_with_peers(context.child("network"), config, keys.clone()).await;
        network.start();
        let mut members = Self {
            context,
            oracle,
            key: dealt(1).0.public_key,
            outcalls: vec![],
            pools: vec![],
            schedules: vec![],
            rooms: vec![],
            cut: Arc::default(),
        };
        for (place, me) in keys.iter().enumerate() {
            let room = Pool::standalone("outcalls", 1 << 20);
            let outcalls = Arc::new(OutcallAnswers::new(room.clone()));
            let limits = Limits::derive(512 << 20).unwrap().consensus;
            let pool = Arc::new(IngressPool::new(&limits));
            let schedule = CommitteeSchedule::new(Height(1), signers(1, place));
            let quota = Quota::per_second(NZU32!(100_000));
            let ends = members.oracle.control(me.clone()).register(0, quota).await.unwrap();
            let all = keys.clone();
            let node_ids: NodeIds =
                Arc::new(move |member| all.iter().position(|key| key == member).map(node_id));
            let cut = members.cut.clone();
            let scorer = PeerScorer::new(Arc::new(move |peer| cut.lock().push(peer.clone())));
            let agreement = Agreement::new(Config {
                outcalls: outcalls.clone(),
                pool: pool.clone(),
                schedule: schedule.clone(),
                me: me.clone(),
                node_ids,
                sender: ends.0,
                scorer,
            });
            let task = members.context.child("member").with_attribute("place", place);
            task.spawn(move |context| agreement.run(context, ends.1));
            members.outcalls.push(outcalls);
            members.pools.push(pool);
            members.schedules.push(schedule);
            members.rooms.push(room);
        }
        members
    }

    async fn connect(&self) {
        for from in keys() {
            for to in keys().into_iter().filter(|to| *to != from) {
                let link = Link {
                    latency: Duration::from_millis(5),
                    jitter: Duration::ZERO,
                    success_rate: Probability::try_from(1.0).unwrap(),
                };
                self.oracle.add_link(from.clone(), to, link).await.unwrap();
            }
        }
    }

    /// Each has executed the block with these requests.
    fn open(&self, ids: &[u64], node: Option<Principal>) {
        let open: BTreeMap<_, _> = ids
            .iter()
            .map(|id| {
                (OutcallId(*id), OpenOutcall { until: UNTIL, node, reply_bytes_max: 1 << 20 })
            })
            .collect();
        let next = ids.iter().max().map_or(0, |id| id + 1);
        self.outcalls.iter().for_each(|it| it.set_open(OutcallId(next), open.clone()));
    }

    fn find(&self, place: usize, answer: OutcallAnswer) {
        let held = self.rooms[place].try_reserve(answer.payload.len()).unwrap();
        self.outcalls[place].answer(answer, held);
    }

    /// The verified answers in each pool.
    async fn agreed(&self) -> Vec<Vec<OutcallAnswer>> {
        self.context.sleep(Duration::from_secs(5)).await;
        let read = |call: TakenCall| {
            let (answer, signature) = OutcallAnswer::read(&call.signed).unwrap();
            let message = OutcallAnswer::message(&answer.digest());
            assert!(nidkg::verify(&self.key, &message, &signature));
            assert_eq!(call.id, answer.ingress_id());
            answer
        };
        let taken = self.pools.iter().map(|pool| pool.take(Time(0), 1 << 20, 100));
        taken.map(|calls| calls.into_iter().map(read).collect()).collect()
    }
}

fn run<F: Future<Output = ()>>(test: impl FnOnce(Members) -> F) {
    deterministic::Runner::timed(Duration::from_secs(600)).start(|context| async move {
        test(Members::new(context).await).await;
    });
}

// Promise: P12 - Three equal answers of four members are agreed on.
#[test]
fn three_equal_answers_of_four_are_signed() {
    run(|members| async move {
        members.connect().await;
        members.open(&[7, 8], None);
        for place in 0..3 {
            members.find(place, answer(7, "same"));
        }
        members.find(3, answer(7, "other"));
        let same = vec![answer(7, "same")];
        assert_eq!(members.agreed().await, [same.clone(), same.clone(), same, vec![]]);
        // An answer that is agreed on and taken holds no memory; the other waits until the request
        // is over.
        assert_eq!(members.rooms.iter().map(Pool::used_bytes).collect::<Vec<_>>(), [0, 0, 0, 5]);
        members.open(&[8], None);
        assert_eq!(members.rooms[3].used_bytes(), 0);
        assert!(members.cut.lock().is_empty());
    });
}

// Promise: P12 - Two and two answers are a divergence on all members.
#[test]
fn split_answers_sign_a_divergence() {
    run(|members| async move {
        members.connect().await;
        members.open(&[1], None);
        for place in 0..3 {
            members.find(place, answer(1, if place < 2 { "one" } else { "two" }));
        }
        // The fourth may make three of the two.
        assert_eq!(members.agreed().await, [const { vec![] }; MEMBERS]);
        members.find(3, answer(1, "two"));
        let none = vec![OutcallAnswer::no_consensus(OutcallId(1), UNTIL)];
        assert_eq!(members.agreed().await, vec![none; MEMBERS]);
    });
}

#[test]
fn answer_of_the_assigned_member_is_signed_by_all() {
    run(|members| async move {
        members.connect().await;
        members.open(&[1], Some(node_id(2)));
        members.find(2, answer(1, "alone"));
        assert_eq!(members.agreed().await, vec![vec![answer(1, "alone")]; MEMBERS]);
        assert!(members.cut.lock().is_empty());
    });
}

#[test]
fn answer_of_an_unassigned_member_is_ignored() {
    run(|members| async move {
        members.connect().await;
        members.open(&[1], Some(node_id(2)));
        members.find(1, answer(1, "not mine to say"));
        assert_eq!(members.agreed().await, [const { vec![] }; MEMBERS]);
    });
}

#[test]
fn shares_are_repeated_after_reconnect() {
    run(|members| async move {
        members.open(&[1], None);
        for place in 0..MEMBERS {
            members.find(place, answer(1, "same"));
        }
        assert_eq!(members.agreed().await, [const { vec![] }; MEMBERS]);
        members.connect().await;
        assert_eq!(members.agreed().await, vec![vec![answer(1, "same")]; MEMBERS]);
    });
}

#[test]
fn shares_for_unexecuted_requests_are_kept() {
    run(|members| async move {
        members.connect().await;
        let open = BTreeMap::from([(
            OutcallId(0),
            OpenOutcall { until: UNTIL, node: None, reply_bytes_max: 1 << 20 },
        )]);
        for place in 0..3 {
            members.outcalls[place].set_open(OutcallId(1), open.clone());
            members.find(place, answer(0, "same"));
        }
        assert_eq!(members.agreed().await[3], []);
        members.outcalls[3].set_open(OutcallId(1), open);
        members.find(3, answer(0, "same"));
        assert_eq!(members.agreed().await[3], [answer(0, "same")]);
    });
}

#[test]
fn another_committee_signs_anew() {
    run(|members| async move {
        members.open(&[1], None);
        members.find(0, answer(1, "same"));
        members.context.sleep(Duration::from_secs(2)).await;
        // The same key cannot be dealt again here, so what the new committee signs is of its own.
        for (place, schedule) in members.schedules.iter().enumerate() {
            schedule.begin(Height(100), signers(2, place));
        }
        members.connect().await;
        for place in 1..MEMBERS {
            members.find(place, answer(1, "same"));
        }
        members.context.sleep(Duration::from_secs(5)).await;
        for pool in &members.pools {
            let taken = pool.take(Time(0), 1 << 20, 100);
            let (answer, signature) = OutcallAnswer::read(&taken[0].signed).unwrap();
            let message = OutcallAnswer::message(&answer.digest());
            assert!(nidkg::verify(&dealt(2).0.public_key, &message, &signature));
        }
    });
}

// Promise: P18 - Invalid shares of outcalls produce neither an answer nor a divergence.
#[test]
fn false_shares_make_no_answer_and_no_divergence() {
    let dealt = dealt(1);
    let signers = signers(1, 0);
    let digest = answer(1, "same").digest();
    let share = |place: usize, of: &[u8; 32]| dealt.1[place].sign(&OutcallAnswer::message(of));
    let mut collected = CollectedShares::default();
    for place in 0..2 {
        collected.answers.insert(NodeIndex(place), (digest, share(place as usize, &digest)));
    }
    // It signed something else than it says.
    collected.answers.insert(NodeIndex(2), (digest, share(2, &[9; 32])));
    assert_eq!(collected.signed_answer(&signers), None);
    assert!(collected.refused.contains(&NodeIndex(2)) && collected.answers.len() == 2);
    collected.answers.insert(NodeIndex(3), (digest, share(3, &digest)));
    let (agreed, signature) = collected.signed_answer(&signers).unwrap();
    assert_eq!(agreed, digest);
    let message = OutcallAnswer::message(&digest);
    assert!(nidkg::verify(&dealt.0.public_key, &message, &signature));

    let mut split = CollectedShares::default();
    split.answers.insert(NodeIndex(0), (digest, share(0, &digest)));
    split.answers.insert(NodeIndex(1), (digest, share(1, &digest)));
    split.answers.insert(NodeIndex(2), ([1; 32], share(2, &[1; 32])));
    assert!(split.can_agree(&signers), "the fourth may say the same as the first two");
    split.answers.insert(NodeIndex(3), ([2; 32], share(3, &[3; 32])));
    assert!(!split.can_agree(&signers), "what it says counts for nothing");
    assert!(split.refused.contains(&NodeIndex(3)));
    let true_one = ([2; 32], share(3, &[2; 32]));
    let mut split = CollectedShares { refused: BTreeSet::new(), ..split };
    split.answers.insert(NodeIndex(3), true_one);
    assert!(!split.can_agree(&signers));
}

// Promise: P12 - Shares of answers are bounded per member.
#[test]
fn collected_shares_are_bounded() {
    run(|members| async move {
        let mut agreement = idle(&members).await;
        members.open(&[3], None);
        agreement.refresh(false);
        let share = SignatureShare([1; 48]);
        for id in 0..10_000 {
            for digest in 0..3 {
                let share = Share { id: OutcallId(id), digest: [digest; 32], share };
                agreement.add_share(NodeIndex(1), share);
            }
        }
        assert_eq!(agreement.collected.len() as u64, 1 + AHEAD);
        assert!(agreement.collected.values().all(|it| it.answers.len() <= 1));
    });
}

/// An agreement of the first member that nothing runs, and what it sends.
async fn idle(members: &Members) -> Agreement<impl Sender<PublicKey = PublicKey>> {
    let quota = Quota::per_second(NZU32!(100));
    let ends = members.oracle.control(keys()[0].clone()).register(1, quota).await.unwrap();
    let cut = members.cut.clone();
    let all = keys();
    Agreement::new(Config {
        outcalls: members.outcalls[0].clone(),
        pool: members.pools[0].clone(),
        schedule: members.schedules[0].clone(),
        me: keys()[0].clone(),
        node_ids: Arc::new(move |key| all.iter().position(|it| it == key).map(node_id)),
        sender: ends.0,
        scorer: PeerScorer::new(Arc::new(move |peer| cut.lock().push(peer.clone()))),
    })
}

#[test]
fn member_with_invalid_share_is_blocked_until_the_committee_changes() {
    run(|members| async move {
        let mut agreement = idle(&members).await;
        members.open(&[1, 2], None);
        members.find(0, answer(1, "same"));
        agreement.refresh(false);
        let digest = answer(1, "same").digest();
        let shares = dealt(1).1;
        let signs = |place: usize, of: &[u8; 32]| shares[place].sign(&OutcallAnswer::message(of));
        let share = |place, of| Share { id: OutcallId(1), digest, share: signs(place, of) };
        agreement.add_share(NodeIndex(1), share(1, &[9; 32]));
        agreement.add_share(NodeIndex(2), share(2, &digest));
        assert_eq!(*members.cut.lock(), [keys()[1].clone()]);
        let other = Share { id: OutcallId(2), digest, share: signs(1, &digest) };
        agreement.add_share(NodeIndex(1), other);
        assert!(agreement.collected.get(&OutcallId(2)).is_none_or(|it| it.answers.is_empty()));
        agreement.add_share(NodeIndex(3), share(3, &digest));
        assert_eq!(members.pools[0].take(Time(0), 1 << 20, 9).len(), 1);
    });
}

#[test]
fn late_own_answer_is_submitted_with_the_earlier_signature() {
    run(|members| async move {
        let mut agreement = idle(&members).await;
        members.open(&[1], None);
        agreement.refresh(false);
        let digest = answer(1, "same").digest();
        for (place, own) in dealt(1).1.iter().enumerate().skip(1) {
            let share = own.sign(&OutcallAnswer::message(&digest));
            let place = NodeIndex(u32::try_from(place).unwrap());
            agreement.add_share(place, Share { id: OutcallId(1), digest, share });
        }
        assert!(members.pools[0].take(Time(0), 1 << 20, 9).is_empty());
        members.find(0, answer(1, "same"));
        agreement.refresh(false);
        assert_eq!(members.pools[0].take(Time(0), 1 << 20, 9).len(), 1);
    });
}

#[test]
fn message_ref_encodes_like_message() {
    let answer = answer(1, "alone");
    let sent = postcard::to_stdvec(&MessageRef::Answer(&answer)).unwrap();
    let Ok(Message::Answer(read)) = postcard::from_bytes(&sent) else { panic!("something else") };
    assert_eq!(read, answer);
    let share = Share { id: OutcallId(1), digest: [2; 32], share: SignatureShare([3; 48]) };
    let shares = BoundedList(vec![share]);
    let sent =
        postcard::to_stdvec(&MessageRef::Shares { from: Height(4), shares: &shares }).unwrap();
    let Ok(Message::Shares { from, shares }) = postcard::from_bytes(&sent) else {
        panic!("something else")
    };
    assert_eq!((from, shares.0), (Height(4), vec![share]));
}

/// Runs the first member's agreement alone for this time, through a network that takes four
/// messages at once. Returns the messages that the second member receives.
async fn received_messages(
    members: &Members,
    outcalls: Arc<OutcallAnswers>,
    time: Duration,
) -> Vec<Message> {
    let quota = Quota::per_second(NZU32!(256)).allow_burst(NZU32!(4));
    let [first, second] = [0, 1].map(|place| members.oracle.control(keys()[place].clone()));
    let (sender, from_others) = first.register(1, quota).await.unwrap();
    let (_, mut receiver) = second.register(1, quota).await.unwrap();
    let limits = Limits::derive(512 << 20).unwrap().consensus;
    let mut agreement = Agreement::new(Config {
        outcalls,
        pool: Arc::new(IngressPool::new(&limits)),
        schedule: members.schedules[0].clone(),
        me: keys()[0].clone(),
        node_ids: Arc::new(|_| Some(node_id(0))),
        sender,
        scorer: PeerScorer::new(Arc::new(|_| {})),
    });
    agreement.refresh(false);
    let task = members.context.child("first");
    let task = task.spawn(move |context| agreement.run(context, from_others));
    let until = members.context.current() + time;
    let mut sent = Vec::new();
    loop {
        select! {
            message = receiver.recv() => {
                sent.push(postcard::from_bytes(message.unwrap().1.as_ref()).unwrap());
            },
            () = members.context.sleep_until(until) => break,
        }
    }
    task.abort();
    sent
}

/// Outcalls of the first member, which found the same answer to all these requests.
fn outcalls_with(ids: &[u64], node: Option<Principal>) -> Arc<OutcallAnswers> {
    let room = Pool::standalone("outcalls", 1 << 20);
    let outcalls = Arc::new(OutcallAnswers::new(room.clone()));
    let one = OpenOutcall { until: UNTIL, node, reply_bytes_max: 100 };
    let open = ids.iter().map(|id| (OutcallId(*id), one)).collect();
    outcalls.set_open(OutcallId(ids.len() as u64), open);
    for id in ids {
        outcalls.answer(answer(*id, "same"), room.try_reserve(4).unwrap());
    }
    outcalls
}

// Promise: P12 - Answers are sent at the speed of the network, in round-robin order.
#[test]
fn answers_are_sent_round_robin_at_network_speed() {
    run(|members| async move {
        members.connect().await;
        let ids: Vec<_> = (0..send_queue::ANSWERS_MAX + 10).collect();
        let outcalls = outcalls_with(&ids, Some(node_id(0)));
        let received = received_messages(&members, outcalls, Duration::from_millis(2_900)).await;
        let answers = received.into_iter().filter_map(|message| match message {
            Message::Answer(answer) => Some(answer.id.0),
            Message::Shares { .. } => None,
        });
        let expected = ids.iter().cycle().take(3 * send_queue::ANSWERS_MAX as usize);
        assert_eq!(answers.collect::<Vec<_>>(), expected.copied().collect::<Vec<_>>());
    });
}

#[test]
fn all_shares_are_repeated() {
    run(|members| async move {
        members.connect().await;
        let ids: Vec<_> = (0..1_300).collect();
        let received =
            received_messages(&members, outcalls_with(&ids, None), Duration::from_millis(1_900))
                .await;
        let mut times = BTreeMap::<u64, usize>::new();
        for message in received {
            let Message::Shares { shares, .. } = message else { panic!("an answer") };
            shares.0.iter().for_each(|share| *times.entry(share.id.0).or_default() += 1);
        }
        let twice = ids.iter().filter(|id| times.get(id) == Some(&2)).count();
        assert_eq!(twice, ids.len());
    });
}

// Promise: P12 - Members without room for an answer still sign the answers of others.
#[test]
fn an_answer_of_one_member_is_agreed_on_where_others_have_no_room_for_it() {
    run(|members| async move {
        members.connect().await;
        members.open(&[1], Some(node_id(2)));
        let full: Vec<_> =
            [0, 1, 3].map(|place| members.rooms[place].try_reserve(1 << 20).unwrap()).into();
        members.find(2, answer(1, "alone"));
        let agreed = members.agreed().await;
        assert_eq!(agreed.iter().map(Vec::len).collect::<Vec<_>>(), [0, 0, 1, 0]);
        drop(full);
    });
}
