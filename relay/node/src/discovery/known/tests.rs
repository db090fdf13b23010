//! Peers that a node dials, the times of dials, and the peers that are forgotten.

use std::collections::BTreeSet;

use super::*;

const BOUNDS: Bounds = Bounds {
    known: 20,
    statics: 3,
    outbound: 4,
    dials: 2,
    retry: Duration::from_secs(5),
    retry_max: Duration::from_secs(100),
};

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn known() -> KnownPeers {
    KnownPeers::new(BOUNDS, [1; 32])
}

/// A peer that is the same for the same number, and serves a shard.
fn candidate(number: u8, shard: u16) -> Candidate {
    let mut key = [number; 32];
    key[0] = 1;
    let key = libp2p::identity::ed25519::SecretKey::try_from_bytes(key).unwrap();
    let key = libp2p::identity::Keypair::from(libp2p::identity::ed25519::Keypair::from(key));
    let mut shards = Topics::default();
    shards.insert(shard);
    let peer = key.public().to_peer_id();
    Candidate {
        peer,
        sequence: 1,
        record: Bytes::copy_from_slice(&[number]),
        shareable: true,
        shards,
        relays: true,
        addresses: vec![format!("/ip4/203.0.113.{number}/tcp/1/p2p/{peer}").parse().unwrap()],
    }
}

fn none() -> Connections {
    Connections::default()
}

#[test]
fn static_peers_come_first_and_never_more_dials_than_allowed() {
    let mut peers = known();
    for number in 0..10 {
        assert!(peers.add(candidate(number, 1), Origin::Discv5, secs(0)));
    }
    for number in 1..=3 {
        assert!(peers.add_static(format!("/ip4/192.0.2.{number}/tcp/1").parse().unwrap()));
    }
    assert!(!peers.add_static("/ip4/192.0.2.4/tcp/1".parse().unwrap()), "beyond the bound");
    let targets = |dials: Vec<Dial>| dials.iter().map(|dial| dial.target).collect::<Vec<_>>();
    assert_eq!(targets(peers.dials(secs(1), &none())), [Target::Static(0), Target::Static(1)]);
    assert_eq!(targets(peers.dials(secs(2), &none())), []);
    peers.connected(PeerId::random(), Some(Target::Static(0)), secs(3));
    assert_eq!(targets(peers.dials(secs(3), &none())), [Target::Static(2)]);
    peers.failed(Target::Static(1), secs(4));
    peers.failed(Target::Static(2), secs(4));
    let next = targets(peers.dials(secs(4), &none()));
    assert!(
        next.len() == 2 && next.iter().all(|target| matches!(target, Target::Found(_))),
        "{next:?}"
    );
}

// Promise: P24 - A peer that fails is dialled after times that double.
#[test]
fn a_peer_that_cannot_be_reached_is_left_alone_for_longer_each_time() {
    for is_static in [true, false] {
        let mut peers = known();
        if is_static {
            peers.add_static("/ip4/192.0.2.1/tcp/1".parse().unwrap());
        } else {
            peers.add(candidate(1, 1), Origin::Dns, secs(0));
        }
        let (mut now, mut last, mut pauses) = (0, None, Vec::new());
        while pauses.len() < 8 {
            now += 1;
            for dial in peers.dials(secs(now), &none()) {
                pauses.extend(last.map(|last| now - last));
                last = Some(now);
                peers.failed(dial.target, secs(now));
            }
        }
        let most = if is_static { 60 } else { 100 };
        for (place, pause) in pauses.iter().enumerate() {
            let least = (5 << place).min(most);
            assert!((least..=least + least / 4 + 1).contains(pause), "{is_static} {pauses:?}");
        }
    }
}

#[test]
fn peers_are_dialled_until_there_are_enough() {
    let mut peers = known();
    for number in 0..20 {
        peers.add(candidate(number, 1), Origin::Discv5, secs(0));
    }
    let mut outbound = 0;
    for now in 1..100 {
        for dial in peers.dials(secs(now), &Connections { outbound, ..none() }) {
            outbound += 1;
            peers.connected(dial.peer.unwrap(), Some(dial.target), secs(now));
        }
    }
    assert_eq!(outbound, 4);
    assert_eq!(peers.counts().dials, 4);
    // One is lost: another takes its place.
    let lost = peers.found.values().find(|known| known.attempts.connected.is_some()).unwrap();
    let lost = lost.candidate.peer;
    peers.disconnected(lost, secs(300));
    let dials = peers.dials(secs(300), &Connections { outbound: 3, ..none() });
    assert_eq!(dials.len(), 1);
}

#[test]
fn shards_without_peers_come_first_and_are_served_beyond_the_target() {
    let mut peers = known();
    for number in 0..18 {
        peers.add(candidate(number, 1), Origin::Discv5, secs(0));
    }
    for number in 18..20 {
        peers.add(candidate(number, 7), Origin::Discv5, secs(0));
    }
    let mut short = Topics::default();
    short.insert(7);
    let seven: BTreeSet<PeerId> = (18..20).map(|number| candidate(number, 7).peer).collect();
    let dials = peers.dials(secs(1), &Connections { outbound: 4, short });
    assert_eq!(dials.iter().filter_map(|dial| dial.peer).collect::<BTreeSet<_>>(), seven);
    assert_eq!(peers.dials(secs(2), &Connections { outbound: 4, short }), []);
}

#[test]
fn those_that_turn_out_not_to_relay_do_not_take_all_connections() {
    let mut peers = known();
    for number in 0..20 {
        peers.add(candidate(number, 1), Origin::Discv5, secs(0));
    }
    for now in 1..200 {
        for dial in peers.dials(secs(now), &none()) {
            peers.connected(dial.peer.unwrap(), Some(dial.target), secs(now));
        }
    }
    assert_eq!(peers.counts().dials, 8, "twice the target");
}

#[test]
fn full_store_evicts_the_longest_failing_peer_never_a_connected_one() {
    let mut peers = known();
    for number in 0..20 {
        peers.add(candidate(number, 1), Origin::Discv5, secs(number.into()));
    }
    peers.connected(candidate(0, 1).peer, None, secs(20));
    peers.failed(Target::Found(candidate(9, 1).peer), secs(30));
    peers.failed(Target::Found(candidate(5, 1).peer), secs(31));
    peers.failed(Target::Found(candidate(9, 1).peer), secs(32));
    let gone = |peers: &KnownPeers| {
        (0..40)
            .filter(|number| !peers.found.contains_key(&candidate(*number, 1).peer))
            .collect::<Vec<u8>>()
    };
    for (new, left) in [(20, 9), (21, 5), (22, 1), (23, 2)] {
        assert!(peers.add(candidate(new, 1), Origin::Discv5, secs(40)));
        assert!(gone(&peers).contains(&left), "{left}: {:?}", gone(&peers));
        assert_eq!(peers.len(), 20);
    }
    assert!(!gone(&peers).contains(&0));
    for number in 0..40 {
        peers.connected(candidate(number, 1).peer, None, secs(50));
    }
    assert!(!peers.add(candidate(41, 1), Origin::Discv5, secs(60)), "all are connected");
}

#[test]
fn a_later_record_replaces_an_earlier_one() {
    let mut peers = known();
    let old = candidate(1, 1);
    peers.add(old.clone(), Origin::Discv5, secs(0));
    peers.dials(secs(0), &none());
    peers.failed(Target::Found(old.peer), secs(1));
    let moved = Candidate {
        sequence: 2,
        record: Bytes::from_static(b"later"),
        addresses: vec!["/ip4/203.0.113.99/tcp/2".parse().unwrap()],
        ..old.clone()
    };
    assert!(!peers.add(moved, Origin::Dns, secs(2)), "it is known");
    assert!(!peers.add(old, Origin::Dns, secs(2)));
    let dials = peers.dials(secs(2), &none());
    assert_eq!(dials[0].addresses[0].to_string(), "/ip4/203.0.113.99/tcp/2");
}

#[test]
fn peer_exchange_returns_reachable_peers_without_the_requester() {
    let mut peers = known();
    for number in 0..20 {
        let shareable = number != 3;
        peers.add(Candidate { shareable, ..candidate(number, 1) }, Origin::Discv5, secs(0));
    }
    peers.failed(Target::Found(candidate(5, 1).peer), secs(1));
    let asking = candidate(7, 1).peer;
    let all: BTreeSet<u8> = peers.records(&asking, 100).iter().map(|record| record[0]).collect();
    assert_eq!(all.len(), 17);
    assert!([3, 5, 7].iter().all(|left_out| !all.contains(left_out)));
    let (some, others) = (peers.records(&asking, 6), peers.records(&asking, 6));
    assert!(some.len() == 6 && others.len() == 6 && some != others);
}

#[test]
fn a_connection_that_was_short_counts_as_a_failure() {
    let mut peers = known();
    peers.add(candidate(1, 1), Origin::Discv5, secs(0));
    let dial = peers.dials(secs(0), &none()).remove(0);
    peers.connected(dial.peer.unwrap(), Some(dial.target), secs(1));
    peers.disconnected(dial.peer.unwrap(), secs(2));
    assert_eq!(peers.dials(secs(6), &none()), []);
    let dial = peers.dials(secs(9), &none()).remove(0);
    peers.connected(dial.peer.unwrap(), Some(dial.target), secs(9));
    peers.disconnected(dial.peer.unwrap(), secs(100));
    assert_eq!(peers.dials(secs(100), &none()).len(), 1, "it was up for long");
}

#[test]
fn inbound_peer_is_not_dialled_when_discovered() {
    let mut peers = known();
    let here = candidate(1, 1);
    peers.connected(here.peer, None, secs(0));
    peers.add(here.clone(), Origin::Discv5, secs(1));
    assert!(peers.add_static(here.addresses[0].clone()));
    assert_eq!(peers.dials(secs(2), &none()), []);
    peers.disconnected(here.peer, secs(100));
    let dials = peers.dials(secs(100), &none());
    assert_eq!(
        dials.iter().map(|dial| dial.target).collect::<Vec<_>>(),
        [Target::Static(0)],
        "once"
    );
}

#[test]
fn a_dial_without_an_outcome_ends() {
    let mut peers = known();
    peers.add(candidate(1, 1), Origin::Discv5, secs(0));
    assert_eq!(peers.dials(secs(0), &none()).len(), 1);
    assert_eq!(peers.dials(secs(119), &none()), []);
    assert_eq!(peers.dials(secs(120), &none()), []);
    assert_eq!(peers.counts().dials_failed, 1);
    assert_eq!(peers.dials(secs(130), &none()).len(), 1);
}

#[test]
fn more_are_wanted_while_there_is_nobody_to_dial() {
    let mut peers = known();
    assert!(peers.wants_more(secs(0), &none()));
    assert!(!peers.wants_more(secs(0), &Connections { outbound: 4, ..none() }));
    for number in 0..4 {
        peers.add(candidate(number, 1), Origin::Discv5, secs(0));
    }
    assert!(!peers.wants_more(secs(0), &none()));
}

// Promise: P24 - Known, dialled and connecting peers stay within their limits in random histories.
/// Whatever happens, in whatever order, the bounds hold.
#[test]
fn bounds_hold_over_long_histories() {
    let all: Vec<Candidate> =
        (0..60).map(|number| candidate(number, u16::from(number % 8))).collect();
    for seed in 0..20_u8 {
        let mut random = ChaCha8Rng::from_seed([seed; 32]);
        let mut peers = KnownPeers::new(BOUNDS, [seed; 32]);
        peers.add_static("/ip4/192.0.2.1/tcp/1".parse().unwrap());
        let stranger = PeerId::random();
        let mut dialling: Vec<Dial> = Vec::new();
        let mut connected: BTreeSet<PeerId> = BTreeSet::new();
        for now in 0..2000_u64 {
            for _ in 0..random.gen_range(0..4) {
                peers.add(all[random.gen_range(0..60)].clone(), Origin::Discv5, secs(now));
            }
            let outbound = connected.len();
            let mut short = Topics::default();
            short.insert(random.gen_range(0..8));
            for dial in peers.dials(secs(now), &Connections { outbound, short }) {
                assert!(dial.peer.is_none_or(|peer| !connected.contains(&peer)), "it is connected");
                assert!(
                    !dialling.iter().any(|other| other.target == dial.target),
                    "it is being dialled"
                );
                dialling.push(dial);
            }
            assert!(dialling.len() <= BOUNDS.dials && peers.len() <= BOUNDS.known);
            assert!(connected.len() <= 2 * BOUNDS.outbound + 1);
            dialling.retain(|dial| match random.gen_range(0..6) {
                0 => {
                    let peer = dial.peer.unwrap_or(stranger);
                    peers.connected(peer, Some(dial.target), secs(now));
                    connected.insert(peer);
                    false
                }
                1 => {
                    peers.failed(dial.target, secs(now));
                    false
                }
                _ => true,
            });
            let lost: Vec<PeerId> =
                connected.iter().filter(|_| random.gen_bool(0.02)).copied().collect();
            for peer in lost {
                connected.remove(&peer);
                peers.disconnected(peer, secs(now));
            }
        }
        assert!(peers.counts().dials > 100 && peers.counts().evicted > 10, "{:?}", peers.counts());
    }
}
