//! Networks of routers: each is the real one, the wires between them are the test's.

use std::{collections::BTreeMap, time::Duration};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha20Rng;

use crate::{
    Config, MessageId, Offer, Outgoing, Peer, Refusal, Router, RouterUsage, ScoreConfig, Shard,
};

const TOPIC: Shard = 7;

/// Routers that are connected in pairs. Peer `n` of a router is router `n` of the network.
struct Network {
    routers: Vec<Router<MessageId>>,
    /// Deliveries of each router, with how often each message was offered to it.
    delivered: Vec<BTreeMap<MessageId, u32>>,
    now: Duration,
    /// Messages sent over wires.
    sent: u64,
    /// A router that sends nothing but keeps its connections, as a frozen process.
    frozen: Option<usize>,
}

impl Network {
    fn new(count: usize, config: &Config, links: impl Fn(usize, usize) -> bool) -> Self {
        let seed = |index: usize| [u8::try_from(index).unwrap(); 32];
        let mut routers: Vec<_> =
            (0..count).map(|index| Router::new(config.clone(), seed(index))).collect();
        for (at, router) in routers.iter_mut().enumerate() {
            for other in (0..count).filter(|other| *other != at) {
                if links(at.min(other), at.max(other)) {
                    let name = vec![u8::try_from(other).unwrap()];
                    // The lower dials.
                    assert!(router.connected(Peer(other as u64), name, None, at < other));
                }
            }
        }
        let delivered = vec![BTreeMap::new(); count];
        Self { routers, delivered, now: Duration::from_secs(1), sent: 0, frozen: None }
    }

    fn subscribe_all(&mut self) {
        let now = self.now;
        self.routers.iter_mut().for_each(|router| router.subscribe(TOPIC, now));
        self.settle();
    }

    /// Carries everything that waits, until nothing does.
    fn settle(&mut self) {
        let mut quiet = false;
        while !quiet {
            quiet = true;
            for from in 0..self.routers.len() {
                if Some(from) == self.frozen {
                    continue;
                }
                for to in 0..self.routers.len() {
                    while let Some(Some(outgoing)) = self.routers[from].next(Peer(to as u64)) {
                        quiet = false;
                        self.carry(from, to, outgoing);
                    }
                }
            }
        }
    }

    fn carry(&mut self, from: usize, to: usize, outgoing: Outgoing<MessageId>) {
        if Some(to) == self.frozen {
            return;
        }
        let (router, peer, now) = (&mut self.routers[to], Peer(from as u64), self.now);
        match outgoing {
            Outgoing::Message(shard, id) => {
                self.sent += 1;
                let offer = router.offer(peer, shard, id, 2048, now);
                *self.delivered[to].entry(id).or_default() += 1;
                if offer == Offer::New {
                    router.accept(peer, shard, id, id);
                }
            }
            Outgoing::Control(control) => {
                for (shard, subscribed) in control.subscriptions {
                    router.on_subscription(peer, shard, subscribed, now);
                }
                control.graft.into_iter().for_each(|shard| router.on_graft(peer, shard, now));
                for (shard, backoff) in control.prune {
                    router.on_prune(peer, shard, Some(backoff), now);
                }
                for (shard, ids) in control.ihave {
                    router.on_ihave(peer, shard, ids, now);
                }
                router.on_iwant(peer, control.iwant, now);
                router.on_idontwant(peer, control.idontwant);
            }
        }
    }

    fn beat(&mut self, times: usize) {
        for _ in 0..times {
            self.now += Duration::from_secs(1);
            let now = self.now;
            for (at, router) in self.routers.iter_mut().enumerate() {
                if Some(at) != self.frozen {
                    router.heartbeat(now);
                }
            }
            self.settle();
        }
    }

    fn publish(&mut self, at: usize, id: MessageId) -> usize {
        let now = self.now;
        self.delivered[at].insert(id, 1);
        let count = self.routers[at].publish(TOPIC, id, id, now);
        self.settle();
        count
    }

    fn have(&self, id: &MessageId) -> usize {
        self.delivered.iter().filter(|delivered| delivered.contains_key(id)).count()
    }
}

fn id(number: u64) -> MessageId {
    let mut id = [0; 32];
    id[..8].copy_from_slice(&number.to_le_bytes());
    MessageId(id)
}

fn all(_: usize, _: usize) -> bool {
    true
}

// Promise: P23 - Meshes stay within `d_low` and `d_high`.
#[test]
fn meshes_form_and_stay_in_their_range() {
    let config = Config::default();
    let mut network = Network::new(40, &config, all);
    network.subscribe_all();
    network.beat(30);
    for (at, router) in network.routers.iter().enumerate() {
        let mesh = router.mesh(TOPIC);
        assert!((config.d_low..=config.d_high).contains(&mesh.len()), "{at}: {mesh:?}");
    }
}

// Promise: P23 - A message reaches every peer of a sparse network.
#[test]
fn a_message_reaches_everybody_in_a_sparse_network() {
    // A ring in which each node knows the next five.
    let links = |low: usize, high: usize| high - low <= 5 || low + 50 - high <= 5;
    let mut network = Network::new(50, &Config::default(), links);
    network.subscribe_all();
    network.beat(5);
    for number in 0..20 {
        assert!(network.publish(usize::try_from(number).unwrap() * 2, id(number)) > 0);
        assert_eq!(network.have(&id(number)), 50, "message {number}");
    }
}

#[test]
fn a_message_is_not_sent_back_nor_many_times() {
    let mut network = Network::new(30, &Config { flood_publish: false, ..Config::default() }, all);
    network.subscribe_all();
    network.beat(5);
    let before = network.sent;
    for number in 0..100 {
        network.publish(3, id(number));
    }
    // Every link of the mesh at most once in one direction, on the whole.
    assert!(network.sent - before < 100 * 30 * 8, "{}", network.sent - before);
    assert!((0..100).all(|number| network.have(&id(number)) == 30));
}

#[test]
fn peer_outside_every_mesh_gets_messages_by_gossip() {
    let config = Config { flood_publish: false, ..Config::default() };
    let mut network = Network::new(20, &config, all);
    network.subscribe_all();
    network.beat(10);
    // Out of every mesh: it hears only of what is offered.
    let now = network.now;
    let lonely = 19;
    for other in 0..19 {
        network.routers[other].on_prune(Peer(19), TOPIC, None, now);
        network.routers[lonely].on_prune(Peer(other as u64), TOPIC, None, now);
    }
    for number in 0..30 {
        network.publish(usize::try_from(number).unwrap() % 19, id(number));
    }
    assert_eq!(network.delivered[lonely].len(), 0);
    network.beat(3);
    assert_eq!(network.delivered[lonely].len(), 30);
    assert!(network.routers.iter().map(|router| router.counters().fetched).sum::<u64>() >= 30);
}

#[test]
fn large_messages_are_announced_and_not_sent_to_who_has_them() {
    let config = Config { idontwant_bytes: 1024, flood_publish: false, ..Config::default() };
    let mut router: Router<()> = Router::new(config, [0; 32]);
    let now = Duration::from_secs(1);
    router.subscribe(TOPIC, now);
    for peer in 1..=3 {
        router.connected(Peer(peer), vec![peer as u8], None, true);
        router.on_subscription(Peer(peer), TOPIC, true, now);
        router.next(Peer(peer));
    }
    assert_eq!(router.offer(Peer(1), TOPIC, id(1), 1023, now), Offer::New);
    assert_eq!(router.next(Peer(2)), Some(None), "small ones are not announced");
    assert_eq!(router.offer(Peer(1), TOPIC, id(2), 1024, now), Offer::New);
    let Some(Some(Outgoing::Control(told))) = router.next(Peer(2)) else { panic!() };
    assert_eq!(told.idontwant, [id(2)]);
    // Peer 3 has it: before and after it is queued.
    router.on_idontwant(Peer(3), [id(2)]);
    router.next(Peer(3));
    assert_eq!(router.accept(Peer(1), TOPIC, id(2), ()), 2);
    assert_eq!(router.next(Peer(3)), Some(None));
    assert_eq!(router.next(Peer(2)), Some(Some(Outgoing::Message(TOPIC, ()))));
    assert_eq!(router.next(Peer(1)), Some(None), "nor to who brought it");
}

/// A router with peers 1 to `count`, all subscribed; their waiting messages were taken.
fn router_with(count: u64, config: Config) -> Router<u32> {
    let mut router = Router::new(config, [9; 32]);
    router.subscribe(TOPIC, Duration::ZERO);
    for peer in 1..=count {
        assert!(router.connected(Peer(peer), peer.to_be_bytes().to_vec(), None, peer % 2 == 0));
        router.on_subscription(Peer(peer), TOPIC, true, Duration::ZERO);
        while router.next(Peer(peer)).unwrap().is_some() {}
    }
    router
}

#[test]
fn a_peer_that_never_reads_costs_its_queue_and_no_more() {
    let mut router = router_with(1, Config { queue_messages: 10, ..Config::default() });
    for number in 0..1000 {
        router.publish(TOPIC, id(number), number as u32, Duration::from_secs(1));
    }
    assert_eq!(router.usage().waiting, 10);
    assert_eq!(router.counters().dropped, 990);
    let first = router.next(Peer(1)).unwrap().unwrap();
    assert_eq!(first, Outgoing::Message(TOPIC, 990), "the oldest left");
}

// Promise: P24 - Client messages wait while no peer of the mesh has room.
#[test]
fn there_is_room_while_one_peer_of_the_mesh_keeps_up() {
    let mut router = router_with(2, Config { queue_messages: 10, ..Config::default() });
    assert!(router.has_room(TOPIC) && router.has_room(TOPIC + 1));
    for number in 0..100 {
        router.publish(TOPIC, id(number), number as u32, Duration::from_secs(1));
        assert!(router.has_room(TOPIC), "the second reads");
        while router.next(Peer(2)).unwrap().is_some() {}
    }
    for number in 100..105 {
        router.publish(TOPIC, id(number), number as u32, Duration::from_secs(1));
    }
    assert!(!router.has_room(TOPIC) && router.has_room(TOPIC + 1));
    router.disconnected(Peer(1), Duration::from_secs(1));
    router.disconnected(Peer(2), Duration::from_secs(1));
    assert!(router.has_room(TOPIC), "there is no peer to wait for");
}

#[test]
fn grafting_too_early_is_refused_and_costs() {
    let mut router = router_with(3, Config::default());
    let now = Duration::from_secs(10);
    router.on_prune(Peer(1), TOPIC, Some(60), now);
    assert!(!router.mesh(TOPIC).contains(&Peer(1)));
    router.on_graft(Peer(1), TOPIC, now + Duration::from_secs(5));
    assert!(!router.mesh(TOPIC).contains(&Peer(1)));
    assert!(router.score(Peer(1), now).unwrap() < 0.0);
    let Some(Some(Outgoing::Control(told))) = router.next(Peer(1)) else { panic!() };
    assert_eq!(told.prune, [(TOPIC, 60)]);
    // Nor is it grafted by this side while it asked not to be.
    for beat in 1..=30 {
        router.heartbeat(now + Duration::from_secs(beat));
    }
    assert!(!router.mesh(TOPIC).contains(&Peer(1)));
}

#[test]
fn a_prune_for_a_thousand_years_ends_in_ten_minutes() {
    let mut router = router_with(1, Config::default());
    router.on_prune(Peer(1), TOPIC, Some(u64::MAX), Duration::from_secs(1));
    let mut beats = 0;
    while !router.mesh(TOPIC).contains(&Peer(1)) {
        beats += 1;
        assert!(beats < 610);
        router.heartbeat(Duration::from_secs(1 + beats));
    }
    assert!(beats >= 600);
}

#[test]
fn a_stranger_cannot_join_a_full_mesh_but_a_dialled_peer_can() {
    let mut router = router_with(20, Config::default());
    let now = Duration::from_secs(5);
    for peer in (1..=20).step_by(2) {
        router.on_graft(Peer(peer), TOPIC, now);
    }
    assert_eq!(router.mesh(TOPIC).len(), 8);
    let dialled = (2..=20).step_by(2).map(Peer).find(|peer| !router.mesh(TOPIC).contains(peer));
    router.on_graft(dialled.unwrap(), TOPIC, now);
    assert_eq!(router.mesh(TOPIC).len(), 9);
    assert!(router.counters().grafts_refused > 0);
    router.heartbeat(now);
    assert_eq!(router.mesh(TOPIC).len(), 6);
}

#[test]
fn a_flood_of_strangers_leaves_room_for_dialled_peers() {
    let mut router = router_with(40, Config::default());
    for beat in 0..100 {
        let now = Duration::from_secs(beat);
        (1..=40).step_by(2).for_each(|peer| router.on_graft(Peer(peer), TOPIC, now));
        router.heartbeat(now);
        if beat > 2 {
            let mesh = router.mesh(TOPIC);
            let dialled = mesh.iter().filter(|peer| peer.0 % 2 == 0).count();
            assert!(dialled >= 3, "beat {beat}: {mesh:?}");
        }
    }
}

// Promise: P24 - Broken gossip promises lower the score of a peer until it is ignored.
#[test]
fn promises_that_are_not_kept_cost_until_nobody_listens() {
    let mut router = router_with(2, Config::default());
    let mut now = Duration::from_secs(1);
    let mut number = 0;
    let mut heard = 0;
    for _ in 0..60 {
        now += Duration::from_secs(1);
        let ids: Vec<_> = (0..50).map(|more| id(number + more)).collect();
        number += 50;
        router.on_ihave(Peer(1), TOPIC, ids, now);
        if let Some(Some(Outgoing::Control(told))) = router.next(Peer(1)) {
            heard += usize::from(!told.iwant.is_empty());
        }
        router.heartbeat(now);
    }
    assert!(heard < 15, "it was asked {heard} times");
    assert!(router.counters().broken_promises > 0);
    assert!(router.score(Peer(1), now).unwrap() < -100.0);
    // A promise that another peer kept is not counted against any peer.
    let mut router = router_with(2, Config::default());
    router.on_ihave(Peer(1), TOPIC, [id(1)], now);
    assert_eq!(router.offer(Peer(2), TOPIC, id(1), 10, now), Offer::New);
    (0..10).for_each(|beat| router.heartbeat(now + Duration::from_secs(beat)));
    assert_eq!(router.counters().broken_promises, 0);
}

#[test]
fn promises_are_kept_by_what_this_node_does_not_read() {
    let now = Duration::from_secs(1);
    let mut router = router_with(2, Config::default());
    let beats = |router: &mut Router<_>, seconds: std::ops::Range<u64>| {
        seconds.for_each(|beat| router.heartbeat(now + Duration::from_secs(beat)));
        router.counters().broken_promises
    };
    // One that is ignored as it is, one in a frame that was skipped.
    router.on_ihave(Peer(1), TOPIC, [id(1)], now);
    router.delivered(Peer(1), &id(1));
    router.on_ihave(Peer(2), TOPIC, [id(2)], now);
    router.delivered_unread(Peer(2));
    assert_eq!((beats(&mut router, 0..10), router.counters().refused), (0, 2));
    // The first may come again, in another form.
    assert_eq!(router.offer(Peer(2), TOPIC, id(1), 10, now), Offer::New);

    // 22 s in which this node read nothing.
    let mut router = router_with(2, Config::default());
    router.on_ihave(Peer(1), TOPIC, [id(1)], now);
    router.extend_promises(Duration::from_secs(22));
    assert_eq!(beats(&mut router, 0..24), 0);
    assert_eq!(beats(&mut router, 24..30), 1, "it is still due");
}

#[test]
fn peer_whose_messages_are_ignored_keeps_its_score_and_place() {
    let mut router = router_with(3, Config::default());
    let now = Duration::from_secs(1);
    for number in 0..100 {
        assert_eq!(router.offer(Peer(1), TOPIC, id(number), 10, now), Offer::New, "{number}");
        router.ignore();
    }
    assert!(router.score(Peer(1), now).unwrap() >= 0.0);
    router.heartbeat(now);
    assert!(router.mesh(TOPIC).contains(&Peer(1)));
    assert_eq!((router.counters().rejected, router.counters().refused), (0, 100));
    assert_eq!(router.offer(Peer(2), TOPIC, id(7), 10, now), Offer::Duplicate);
}

#[test]
fn fetching_is_bounded() {
    let mut router = router_with(1, Config { queue_messages: 10_000, ..Config::default() });
    let now = Duration::from_secs(1);
    router.publish(TOPIC, id(1), 1, now);
    router.next(Peer(1));
    for _ in 0..100 {
        router.on_iwant(Peer(1), [id(1), id(2)], now);
    }
    assert_eq!(router.counters().fetched, 3);
}

#[test]
fn topics_of_a_peer_beyond_their_number_are_not_noted() {
    let mut router = router_with(1, Config { topics_per_peer: 3, ..Config::default() });
    let now = Duration::from_secs(1);
    let noted = |router: &Router<_>| router.peers(now)[0].topics.len();
    let before = noted(&router);
    (100..120).for_each(|shard| router.on_subscription(Peer(1), shard, true, now));
    assert_eq!((before, noted(&router)), (1, 3));
    router.subscribe(200, now);
    router.on_graft(Peer(1), 200, now);
    assert_eq!(noted(&router), 3, "nor by a graft");
    router.on_subscription(Peer(1), 100, false, now);
    router.on_subscription(Peer(1), 119, true, now);
    assert!(router.peers(now)[0].topics.contains(119), "a topic that is left makes room");
}

#[test]
fn offers_are_bounded_in_number_and_length() {
    let config = Config { ihave_ids: 100, ihave_messages: 10, ..Config::default() };
    let mut router = router_with(1, config);
    let now = Duration::from_secs(1);
    for more in 0..50 {
        router.on_ihave(Peer(1), TOPIC, (0..1000).map(|number| id(more * 1000 + number)), now);
    }
    let Some(Some(Outgoing::Control(told))) = router.next(Peer(1)) else { panic!() };
    assert_eq!(told.iwant.len(), 100);
    assert_eq!(router.next(Peer(1)), Some(None));
}

#[test]
fn peer_that_sends_invalid_messages_is_pruned_then_graylisted() {
    let mut router = router_with(3, Config::default());
    let now = Duration::from_secs(1);
    for number in 0..11 {
        assert_eq!(router.offer(Peer(1), TOPIC, id(number), 10, now), Offer::New, "{number}");
        router.reject(Peer(1));
    }
    let refused = Offer::Refused(Refusal::Graylisted);
    assert_eq!(router.offer(Peer(1), TOPIC, id(99), 10, now), refused);
    router.heartbeat(now);
    assert!(!router.mesh(TOPIC).contains(&Peer(1)));
    // Coming back under the same name does not help, for two minutes.
    router.disconnected(Peer(1), now);
    let name = 1_u64.to_be_bytes().to_vec();
    router.connected(Peer(11), name.clone(), None, false);
    assert_eq!(router.offer(Peer(11), TOPIC, id(99), 10, now), refused);
    router.disconnected(Peer(11), now);
    for beat in 0..240 {
        router.heartbeat(now + Duration::from_secs(beat));
    }
    router.connected(Peer(12), name, None, false);
    let later = now + Duration::from_secs(240);
    assert_eq!(router.offer(Peer(12), TOPIC, id(99), 10, later), Offer::New);
}

#[test]
fn what_could_not_be_kept_may_come_again() {
    let mut router = router_with(2, Config::default());
    let now = Duration::from_secs(1);
    assert_eq!(router.offer(Peer(1), TOPIC, id(1), 10, now), Offer::New);
    assert_eq!(router.offer(Peer(2), TOPIC, id(1), 10, now), Offer::Duplicate);
    router.forget(&id(1));
    assert_eq!(router.offer(Peer(2), TOPIC, id(1), 10, now), Offer::New);
    let other = Offer::Refused(Refusal::NotSubscribed);
    assert_eq!(router.offer(Peer(1), TOPIC + 1, id(3), 10, now), other);
}

#[test]
fn a_crowd_at_one_address_sinks_together() {
    let config = Config {
        score: ScoreConfig { colocation_threshold: 3, ..ScoreConfig::default() },
        ..Config::default()
    };
    let mut router: Router<()> = Router::new(config, [0; 32]);
    let now = Duration::from_secs(1);
    for peer in 0..10 {
        router.connected(Peer(peer), vec![peer as u8], Some(vec![10, 0, 0, 1]), false);
    }
    router.connected(Peer(10), vec![10], Some(vec![10, 0, 0, 2]), false);
    assert!(router.score(Peer(0), now).unwrap() < -1000.0);
    assert_eq!(router.score(Peer(10), now), Some(0.0));
    (1..10).for_each(|peer| router.disconnected(Peer(peer), now));
    assert_eq!(router.score(Peer(0), now), Some(0.0));
}

#[test]
fn there_are_no_more_peers_than_the_limit() {
    let mut router: Router<()> = Router::new(Config { peers: 2, ..Config::default() }, [0; 32]);
    assert!(router.connected(Peer(1), vec![1], None, true));
    assert!(router.connected(Peer(2), vec![2], None, true));
    assert!(!router.connected(Peer(3), vec![3], None, true));
    assert_eq!(router.next(Peer(3)), None);
    router.disconnected(Peer(1), Duration::ZERO);
    assert!(router.connected(Peer(3), vec![3], None, true));
}

#[test]
fn publishing_without_subscribing_goes_to_a_fanout_that_ends() {
    let config = Config { flood_publish: false, ..Config::default() };
    let mut router: Router<()> = Router::new(config, [0; 32]);
    for peer in 0..20 {
        router.connected(Peer(peer), vec![peer as u8], None, true);
        router.on_subscription(Peer(peer), TOPIC, true, Duration::ZERO);
    }
    assert_eq!(router.publish(TOPIC, id(1), (), Duration::from_secs(1)), 6);
    let fanout = router.fanout.get(&TOPIC).map(|(peers, _)| peers.clone()).unwrap();
    assert_eq!(router.publish(TOPIC, id(2), (), Duration::from_secs(30)), 6);
    assert_eq!(router.fanout.get(&TOPIC).map(|(peers, _)| peers.clone()), Some(fanout));
    router.heartbeat(Duration::from_secs(91));
    assert!(router.fanout.is_empty());
    assert_eq!(router.publish(TOPIC + 1, id(3), (), Duration::from_secs(92)), 0);
    assert_eq!(router.counters().without_peer, 1);
}

#[test]
fn a_frozen_peer_does_not_keep_a_message_from_the_others() {
    let mut network = Network::new(12, &Config::default(), all);
    network.subscribe_all();
    network.beat(5);
    network.frozen = Some(4);
    for number in 0..50 {
        network.publish(0, id(number));
        assert_eq!(network.have(&id(number)), 11);
        network.beat(1);
    }
}

#[test]
fn the_same_calls_give_the_same_network() {
    let run = || {
        let mut network = Network::new(25, &Config::default(), |low, high| (low + high) % 3 > 0);
        network.subscribe_all();
        for number in 0..40 {
            network.publish(usize::try_from(number).unwrap() % 25, id(number));
            network.beat(1);
        }
        (network.sent, network.routers.iter().map(|router| router.mesh(TOPIC)).collect::<Vec<_>>())
    };
    assert_eq!(run(), run());
}

// Promise: P24 - Every bound of the router holds for random input of peers.
/// For any input of peers in any order, bounds hold, and meshes are of peers that are there.
#[test]
fn nonsense_from_peers_keeps_every_bound() {
    let config = Config {
        peers: 10,
        queue_messages: 16,
        seen_entries: 300,
        history_entries: 50,
        ihave_ids: 40,
        idontwant_ids: 20,
        ..Config::default()
    };
    for seed in 0..30 {
        let mut random = ChaCha20Rng::seed_from_u64(seed);
        let mut router: Router<u64> = Router::new(config.clone(), [seed as u8; 32]);
        let mut now = Duration::ZERO;
        router.subscribe(1, now);
        for _ in 0..3000 {
            let peer = Peer(random.gen_range(0..15));
            let shard = random.gen_range(0..4) * 341;
            let ids: Vec<_> =
                (0..random.gen_range(0..60)).map(|_| id(random.gen_range(0..500))).collect();
            let one = id(random.gen_range(0..500));
            match random.gen_range(0..14) {
                0 => {
                    router.connected(peer, vec![peer.0 as u8], Some(vec![1]), random.r#gen());
                }
                1 => router.disconnected(peer, now),
                2 => router.on_subscription(peer, shard, random.r#gen(), now),
                3 => router.on_graft(peer, shard, now),
                4 => router.on_prune(peer, shard, Some(random.r#gen()), now),
                5 => router.on_ihave(peer, shard, ids, now),
                6 => router.on_iwant(peer, ids, now),
                7 => router.on_idontwant(peer, ids),
                8 | 9 => {
                    if router.offer(peer, shard, one, random.gen_range(0..3000), now) == Offer::New
                    {
                        match random.gen_range(0..3) {
                            0 => drop(router.accept(peer, shard, one, 1)),
                            1 => router.reject(peer),
                            _ => router.forget(&one),
                        }
                    }
                }
                10 => drop(router.publish(shard, one, 1, now)),
                11 => drop(router.next(peer)),
                12 if random.r#gen() => router.subscribe(shard, now),
                12 => router.unsubscribe(shard, now),
                _ => {
                    now += Duration::from_millis(random.gen_range(0..2000));
                    router.heartbeat(now);
                }
            }
            let RouterUsage { seen, history, waiting: queued, .. } = router.usage();
            assert!(seen <= 300 && history <= 50 && queued <= 160, "{seen} {history} {queued}");
            let views = router.peers(now);
            assert!(views.len() <= 10);
            for shard in router.meshes.keys().copied().collect::<Vec<_>>() {
                for member in router.mesh(shard) {
                    let view = views.iter().find(|view| view.peer == member).unwrap();
                    assert!(view.mesh.contains(&shard), "both sides of a mesh agree");
                }
            }
            for view in &views {
                assert!(view.mesh.iter().all(|shard| router.mesh(*shard).contains(&view.peer)));
            }
        }
    }
}

// Promise: P24 - A full router replaces bad and useless peers.
#[test]
fn a_full_router_gives_places_of_bad_and_useless_peers_to_others() {
    let config = Config { peers: 4, newcomer_heartbeats: 3, ..Config::default() };
    let mut router = Router::<MessageId>::new(config, [1; 32]);
    let mut now = Duration::from_secs(1);
    router.subscribe(TOPIC, now);
    for peer in 1..=4 {
        assert!(router.connected(Peer(peer), vec![peer as u8], None, peer == 1));
    }
    router.on_subscription(Peer(2), TOPIC, true, now);
    router.on_subscription(Peer(3), TOPIC + 1, true, now);
    router.on_subscription(Peer(4), TOPIC, true, now);
    assert!(!router.connected(Peer(5), vec![5], None, false));
    assert_eq!(router.gives_way(now), None, "a newcomer has a little time to subscribe");
    for _ in 0..3 {
        now += Duration::from_secs(1);
        router.heartbeat(now);
    }
    // One was dialled, two and four share a topic.
    assert_eq!(router.gives_way(now), Some(Peer(3)));
    router.misbehaved(Peer(2));
    (0..2).for_each(|_| router.misbehaved(Peer(1)));
    assert_eq!(router.gives_way(now), Some(Peer(1)), "the worst first");
    router.disconnected(Peer(1), now);
    assert_eq!(router.gives_way(now), None, "there is a place");
    assert!(router.connected(Peer(5), vec![5], None, false));
    assert_eq!(router.gives_way(now), Some(Peer(2)));
}

#[test]
fn a_peer_fetches_so_many_messages_between_heartbeats() {
    let config = Config { iwant_ids: 10, ..Config::default() };
    let mut router = Router::<MessageId>::new(config, [1; 32]);
    let now = Duration::from_secs(1);
    router.subscribe(TOPIC, now);
    let ids: Vec<MessageId> = (0..30).map(|number| MessageId([number; 32])).collect();
    for id in &ids {
        router.publish(TOPIC, *id, *id, now);
    }
    router.connected(Peer(1), vec![1], None, false);
    for _ in 0..5 {
        router.on_iwant(Peer(1), ids.iter().copied(), now);
        router.on_iwant(Peer(1), ids.iter().rev().copied(), now);
    }
    assert_eq!(router.counters().fetched, 10);
    router.heartbeat(now + Duration::from_secs(1));
    router.on_iwant(Peer(1), ids.iter().copied(), now + Duration::from_secs(1));
    assert_eq!(router.counters().fetched, 20);
}
