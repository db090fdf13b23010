//! A key that is reshared in every epoch, to the same members and to others; and every payload that
//! must not count.

use std::collections::BTreeMap;

use genesis::{
    MembershipChange, NODES_MAX, NodeRecord, PAYLOAD_BYTES_MAX, Payload, SUMMARY_BYTES_MAX,
    Summary, threshold,
};
use ic_principal::Principal;
use nidkg::{Committee, Epoch, NodeIndex, SecretShare, combine, verify};
use rand::Rng;

use crate::common::{ENGINE, Node, node, record, rng};

const MESSAGE: &[u8] = b"a message";

/// Nodes, of which some are members, and the summary they all have.
struct Subnet {
    nodes: BTreeMap<[u8; 32], Node>,
    summary: Summary,
    /// Of the members of this epoch.
    shares: Vec<SecretShare>,
}

fn records(nodes: &[Node]) -> Vec<NodeRecord> {
    let mut records: Vec<_> = nodes.iter().map(|node| node.record.clone()).collect();
    records.sort_by_key(|record| record.node_key().to_bytes());
    records
}

impl Subnet {
    /// The first `members` of `nodes` nodes hold the key.
    fn new(members: u8, nodes: u8) -> Self {
        let nodes: Vec<Node> = (1..=nodes).map(node).collect();
        let (committee, shares) =
            nidkg::deal(members.into(), threshold(members.into()), &mut rng(u64::from(members)))
                .unwrap();
        let summary = Summary::from_parts(records(&nodes[..members.into()]), committee).unwrap();
        let nodes =
            nodes.into_iter().map(|node| (node.record.node_key().to_bytes(), node)).collect();
        Self { nodes, summary, shares }
    }

    fn deal(&self, dealer: usize) -> Vec<u8> {
        let seed = self.summary.epoch() * 100 + dealer as u64;
        self.summary
            .deal(&ENGINE, NodeIndex(dealer as u32), &self.shares[dealer], &mut rng(seed))
            .unwrap()
    }

    /// Applies the payload in the block of `leader`: voters check it, then all members apply it.
    fn apply(&mut self, leader: usize, payload: &[u8]) -> bool {
        let leader = NodeIndex(leader as u32);
        let checked = self.summary.check(&ENGINE, leader, payload, &mut rng(1));
        let mut by_check = self.summary.clone();
        if let Ok(checked) = &checked {
            assert!(by_check.apply_checked(&ENGINE, payload, checked, &mut rng(4)));
            assert!(
                !by_check.apply_checked(&ENGINE, payload, checked, &mut rng(4)),
                "once is enough"
            );
        }
        let applied = self.summary.apply(&ENGINE, leader, payload, &mut rng(2));
        assert_eq!(checked.is_ok(), applied, "{:?}", checked.err());
        assert_eq!(by_check.to_bytes(), self.summary.to_bytes(), "checked before or not");
        applied
    }

    fn refusal(&self, leader: usize, payload: &[u8]) -> String {
        let leader = NodeIndex(leader as u32);
        let before = self.summary.to_bytes();
        let mut summary = self.summary.clone();
        assert!(!summary.apply(&ENGINE, leader, payload, &mut rng(2)));
        assert_eq!(summary.to_bytes(), before, "what is refused changes nothing");
        self.summary.check(&ENGINE, leader, payload, &mut rng(1)).err().unwrap().to_string()
    }

    /// Ends the epoch: each member opens its share and advances its key.
    fn close(&mut self) {
        let before = self.summary.key_epoch();
        self.summary.close_epoch();
        if self.summary.key_epoch() == before {
            return;
        }
        let (summary, nodes) = (&self.summary, &mut self.nodes);
        let open = |member: &NodeRecord| {
            let key = member.node_key().to_bytes();
            let place = summary.place_of(&key).unwrap();
            let own = nodes.get_mut(&key).unwrap();
            let share = summary.open_share(&ENGINE, place, &own.encryption).unwrap();
            let past = Epoch(summary.key_epoch().0 + 1);
            own.encryption.update_to(past, &mut rng(3)).unwrap();
            share
        };
        self.shares = summary.members().iter().map(open).collect();
    }

    /// A whole epoch in which these deal.
    fn epoch(&mut self, dealers: &[usize]) {
        for dealer in dealers {
            let payload = self.deal(*dealer);
            assert!(self.apply(*dealer, &payload));
        }
        self.close();
    }

    fn signature(&self, skipped: usize) -> [u8; 48] {
        signature(self.summary.committee(), &self.shares, skipped)
    }

    fn change(&self, add: &[u8], remove: &[u8], signers: &[usize]) -> MembershipChange {
        let add = add.iter().map(|number| record(*number)).collect();
        let remove = remove.iter().map(|number| record(*number).node_id()).collect();
        let key = self.summary.public_key();
        let mut change = MembershipChange::new(key, self.summary.changes(), add, remove).unwrap();
        for signer in signers {
            let member = self.summary.members()[*signer].node_key().to_bytes();
            change.sign(&self.nodes[&member].key).unwrap();
        }
        change
    }

    fn names(&self) -> Vec<Principal> {
        self.summary.members().iter().map(NodeRecord::node_id).collect()
    }
}

/// Of all but the first `skipped` shares.
fn signature(committee: &Committee, shares: &[SecretShare], skipped: usize) -> [u8; 48] {
    let signed: BTreeMap<_, _> = shares
        .iter()
        .skip(skipped)
        .map(|share| {
            let signed = share.sign(MESSAGE);
            committee.verify_share(share.index, MESSAGE, &signed).unwrap();
            (share.index, signed)
        })
        .collect();
    combine(committee, &signed).unwrap().0
}

// Promise: P20 - Four members reshare the key over three epochs with one public key.
#[test]
fn four_hand_the_key_on_over_three_epochs_and_sign_the_same_with_every_set_of_shares() {
    let mut subnet = Subnet::new(4, 4);
    let key = *subnet.summary.public_key();
    let first = subnet.signature(1);
    assert!(verify(&key, MESSAGE, &first));
    assert_eq!((subnet.summary.epoch(), subnet.summary.key_epoch()), (0, Epoch(0)));
    assert_eq!(subnet.summary.previous_key_epoch(), None);
    let error = subnet.summary.open_share(&ENGINE, NodeIndex(0), &node(1).encryption).unwrap_err();
    assert!(error.to_string().contains("those of the genesis"), "{error}");

    for (epoch, dealers) in [[0, 1, 2], [3, 1, 0], [2, 3, 1]].iter().enumerate() {
        let before = subnet.summary.committee().clone();
        assert_eq!(subnet.summary.dealings_missing(), 3);
        subnet.epoch(dealers);
        assert_eq!(subnet.summary.epoch(), epoch as u64 + 1);
        assert_eq!(subnet.summary.key_epoch(), Epoch(epoch as u32 + 1));
        assert_eq!(subnet.summary.previous_key_epoch(), Some(Epoch(epoch as u32)));
        assert_eq!(*subnet.summary.public_key(), key);
        assert_ne!(subnet.summary.committee().shares, before.shares);
        assert_eq!(subnet.signature(epoch % 2), first, "one key, one signature");
    }
}

#[test]
fn shares_of_two_epochs_do_not_fit_together() {
    let mut subnet = Subnet::new(4, 4);
    let old: Vec<_> = subnet.shares.iter().map(|share| share.sign(MESSAGE)).collect();
    subnet.epoch(&[0, 1, 2]);
    let new = subnet.summary.committee();
    assert!(new.verify_share(NodeIndex(0), MESSAGE, &old[0]).is_err());
    let mixed = [0, 1, 2].map(|index: u32| {
        let share = &subnet.shares[index as usize];
        (NodeIndex(index), if index == 0 { old[0] } else { share.sign(MESSAGE) })
    });
    let signature = combine(new, &mixed.into()).unwrap();
    assert!(!verify(subnet.summary.public_key(), MESSAGE, &signature.0));
}

#[test]
fn an_epoch_with_too_few_dealings_keeps_the_committee() {
    let mut subnet = Subnet::new(4, 4);
    let before = subnet.summary.committee().clone();
    subnet.epoch(&[3, 0]);
    assert_eq!((subnet.summary.epoch(), subnet.summary.key_epoch()), (1, Epoch(0)));
    assert_eq!((subnet.summary.dealings_missing(), subnet.summary.committee()), (3, &before));
    subnet.epoch(&[]);
    subnet.epoch(&[1, 2, 3]);
    assert_eq!((subnet.summary.epoch(), subnet.summary.key_epoch()), (3, Epoch(3)));
    assert_eq!(subnet.summary.previous_key_epoch(), Some(Epoch(0)));
    assert!(verify(&before.public_key, MESSAGE, &subnet.signature(1)));
}

// Promise: P20 - False, duplicate, late and surplus payloads change nothing.
#[test]
fn what_must_not_count_is_refused_and_changes_nothing() {
    let mut subnet = Subnet::new(4, 4);
    let [zero, one, two, three] = [0, 1, 2, 3].map(|dealer| subnet.deal(dealer));
    for (leader, payload, words) in [
        // Another dealer's: the proofs are bound to their dealer.
        (1, zero.clone(), "dealer 1 fails"),
        (4, zero.clone(), "member 4 is not one of the 4"),
        (0, vec![], "cut off"),
        (0, vec![9], "the kind is 9"),
        (0, vec![0], "the kind is 0"),
        (0, vec![1], "within the epoch"),
        (0, vec![1; 9], "cut off"),
        (0, zero[..zero.len() - 1].to_vec(), "cut off"),
        (0, [&zero[..], &[0]].concat(), "follow the end"),
        (0, vec![1; PAYLOAD_BYTES_MAX + 1], "at most 262144"),
    ] {
        let refusal = subnet.refusal(leader, &payload);
        assert!(refusal.contains(words), "{words}: {refusal}");
    }
    // Flipped anywhere, it fails in one way or another.
    let mut places = rng(5);
    for _ in 0..60 {
        let mut flipped = zero.clone();
        let place = places.gen_range(0..flipped.len());
        flipped[place] ^= 1 << places.gen_range(0..8);
        subnet.refusal(0, &flipped);
    }

    assert!(subnet.summary.wants_dealing(NodeIndex(0)));
    assert!(subnet.apply(0, &zero));
    assert!(
        !subnet.summary.wants_dealing(NodeIndex(0)) && subnet.summary.wants_dealing(NodeIndex(1))
    );
    assert!(!subnet.summary.wants_dealing(NodeIndex(4)));
    assert!(subnet.refusal(0, &zero).contains("has dealt in this epoch"));
    let again =
        subnet.summary.deal(&ENGINE, NodeIndex(0), &subnet.shares[0], &mut rng(1)).unwrap_err();
    assert!(again.to_string().contains("has dealt"), "{again}");
    assert!(subnet.apply(3, &three) && subnet.apply(1, &one));
    assert_eq!(subnet.summary.dealings_missing(), 0);
    assert!(!subnet.summary.wants_dealing(NodeIndex(2)));
    assert!(subnet.refusal(2, &two).contains("surplus"));
    subnet.close();

    // A check in an epoch is valid in that epoch only.
    let dealing = subnet.deal(1);
    let late = subnet.summary.check(&ENGINE, NodeIndex(1), &dealing, &mut rng(1)).ok().unwrap();
    let mut next = subnet.summary.clone();
    next.close_epoch();
    assert!(!next.apply_checked(&ENGINE, &dealing, &late, &mut rng(1)));

    // Of the epoch before, and of that epoch under the number of this one.
    assert!(
        subnet.refusal(2, &two).contains("is for epoch 1; dealings of this epoch are for epoch 2")
    );
    let mut renamed = two.clone();
    renamed[8] = 2;
    assert!(subnet.refusal(2, &renamed).contains("dealer 2 fails"));

    // Shares that are not in use.
    let old = Subnet::new(4, 4);
    let wrong =
        subnet.summary.deal(&ENGINE, NodeIndex(0), &old.shares[0], &mut rng(1)).unwrap_err();
    assert!(wrong.to_string().contains("is not that of key epoch 1"), "{wrong}");
    assert!(subnet.summary.deal(&ENGINE, NodeIndex(0), &subnet.shares[1], &mut rng(1)).is_err());
}

#[test]
fn the_first_in_the_chain_count_whatever_anybody_saw_first() {
    let mut one = Subnet::new(4, 4);
    let dealings: Vec<_> = (0..4).map(|dealer| one.deal(dealer)).collect();
    let mut others = [Subnet::new(4, 4), Subnet::new(4, 4)];
    for dealer in [2, 0, 3, 1] {
        one.summary.apply(&ENGINE, NodeIndex(dealer), &dealings[dealer as usize], &mut rng(1));
    }
    // The same order with other random numbers, with noise between, and with a restart after each.
    for (seed, other) in others.iter_mut().enumerate() {
        for dealer in [2, 2, 0, 3, 0, 1] {
            let mut random = rng(50 + seed as u64);
            other.summary.apply(
                &ENGINE,
                NodeIndex(dealer),
                &dealings[dealer as usize],
                &mut random,
            );
            if seed == 1 {
                other.summary = Summary::from_bytes(&other.summary.to_bytes()).unwrap();
            }
        }
        assert_eq!(other.summary.to_bytes(), one.summary.to_bytes());
    }
    // Another order of the same three gives the same result; other three do not.
    for (order, same) in [([3, 2, 0], true), ([1, 2, 0], false)] {
        let mut other = Subnet::new(4, 4).summary;
        for dealer in order {
            assert!(other.apply(
                &ENGINE,
                NodeIndex(dealer),
                &dealings[dealer as usize],
                &mut rng(1)
            ));
        }
        assert_eq!(other.to_bytes() == one.summary.to_bytes(), same);
    }
}

#[test]
fn bytes_come_back_as_they_were_and_nothing_else_is_taken_for_a_summary() {
    let mut subnet = Subnet::new(4, 5);
    let mut random = rng(9);
    let check = |summary: &Summary, random: &mut rand_chacha::ChaCha20Rng| {
        let bytes = summary.to_bytes();
        assert_eq!(Summary::from_bytes(&bytes).unwrap().to_bytes(), bytes);
        for length in (0..bytes.len()).step_by(bytes.len() / 40) {
            assert!(Summary::from_bytes(&bytes[..length]).is_err());
        }
        assert!(Summary::from_bytes(&[&bytes[..], &[0]].concat()).is_err());
        let mut accepted = 0;
        for _ in 0..120 {
            let mut flipped = bytes.clone();
            let place = random.gen_range(0..flipped.len());
            flipped[place] ^= 1 << random.gen_range(0..8);
            // Rows of ciphertexts stay bytes until they are opened: what is accepted has that one
            // encoding.
            if let Ok(read) = Summary::from_bytes(&flipped) {
                assert_eq!(read.to_bytes(), flipped);
                accepted += 1;
            }
        }
        assert!(accepted < 120, "most of it is checked or not at all");
    };
    check(&subnet.summary, &mut random);
    let dealing = subnet.deal(0);
    subnet.apply(0, &dealing);
    check(&subnet.summary, &mut random);
    let change = subnet.change(&[5], &[], &[0, 1, 2]);
    assert!(subnet.apply(3, &Summary::change(&change)));
    check(&subnet.summary, &mut random);
    for dealer in [1, 2] {
        let dealing = subnet.deal(dealer);
        subnet.apply(dealer, &dealing);
    }
    check(&subnet.summary, &mut random);
    subnet.close();
    check(&subnet.summary, &mut random);
    let first = subnet.deal(1);
    subnet.apply(1, &first);
    check(&subnet.summary, &mut random);

    let mut other = subnet.summary.to_bytes();
    other[0] = 2;
    let error = Summary::from_bytes(&other).err().unwrap().to_string();
    assert!(error.contains("the version is 2"), "{error}");
    let error = Summary::from_bytes(&vec![1; SUMMARY_BYTES_MAX + 1]).err().unwrap().to_string();
    assert!(error.contains("at most 16777216"), "{error}");
    // The last number there is does not end in a panic.
    let mut last = Subnet::new(4, 4).summary.to_bytes();
    last[1..17].fill(0xff);
    let mut last = Summary::from_bytes(&last).unwrap();
    assert!(!last.wants_dealing(NodeIndex(0)));
    last.close_epoch();
    assert_eq!(last.epoch(), u64::MAX);
}

#[test]
fn parts_of_two_summaries_are_not_mixed() {
    let mut one = Subnet::new(4, 4);
    one.epoch(&[0, 1, 2]);
    let mut other = Subnet::new(4, 4);
    other.epoch(&[]);
    other.epoch(&[1, 2, 3]);
    let (one, other) = (one.summary.to_bytes(), other.summary.to_bytes());
    // The header of one, the rest of the other: the key is from the future, or for another epoch.
    let mixed = [&one[..9], &other[9..]].concat();
    let error = Summary::from_bytes(&mixed).err().unwrap().to_string();
    assert!(error.contains("the epoch of the key is 2, outside 1..=1"), "{error}");
    let place = other.windows(5).position(|bytes| bytes == [1, 0, 0, 0, 2]).unwrap();
    let mut renamed = other.clone();
    renamed[place + 4] = 1;
    let error = Summary::from_bytes(&renamed).err().unwrap().to_string();
    assert!(error.contains("a transcript does not belong"), "{error}");
}

// Promise: P20 - The key stays constant while members join and leave.
#[test]
fn members_come_and_go_and_the_key_stays() {
    let mut subnet = Subnet::new(4, 6);
    let key = *subnet.summary.public_key();
    let (four, first) = (subnet.names(), subnet.signature(0));

    // Epoch 0: a fifth is admitted. Epoch 1: dealt to five. Epoch 2: five members.
    let change = subnet.change(&[5], &[], &[0, 2, 3]);
    assert!(subnet.apply(1, &Summary::change(&change)));
    assert_eq!(subnet.summary.next_members().len(), 4);
    assert_eq!(subnet.summary.accepted_members().unwrap().len(), 5);
    subnet.epoch(&[0, 1, 2]);
    assert_eq!((subnet.names(), subnet.summary.next_members().len()), (four, 5));
    assert_eq!(subnet.summary.changes(), 1);
    subnet.epoch(&[0, 1, 2]);
    assert_eq!((subnet.names().len(), subnet.summary.committee().threshold), (5, 4));
    assert_eq!(subnet.signature(1), first);

    // The first leaves, a sixth comes, while an epoch without enough dealings makes it take longer.
    let gone = record(1);
    let change = subnet.change(&[6], &[1], &[0, 1, 2, 3, 4]);
    assert!(subnet.apply(1, &Summary::change(&change)));
    subnet.close();
    subnet.epoch(&[0, 1, 2]);
    assert!(subnet.summary.place_of(&gone.node_key().to_bytes()).is_some(), "still a member");
    subnet.epoch(&[4, 3, 2, 0]);
    assert_eq!(subnet.summary.place_of(&gone.node_key().to_bytes()), None);
    assert!(subnet.names().contains(&record(6).node_id()));
    assert_eq!((subnet.signature(1), *subnet.summary.public_key()), (first, key));

    // Down to one, which signs alone.
    let change = subnet.change(&[], &[2, 3, 4, 5], &[0, 1, 2, 3]);
    assert!(subnet.apply(0, &Summary::change(&change)));
    subnet.close();
    subnet.epoch(&[0, 1, 2, 3]);
    assert_eq!((subnet.names(), subnet.signature(0)), (vec![record(6).node_id()], first));
    subnet.epoch(&[0]);
    assert_eq!(subnet.signature(0), first);
}

/// Blocks that were voted on need not become final: their payloads come again, perhaps in the next
/// epoch.
#[test]
fn a_change_that_was_checked_in_the_epoch_before_is_accepted_like_one_that_was_not() {
    let subnet = Subnet::new(4, 5);
    let payload = Summary::change(&subnet.change(&[5], &[], &[0, 1, 2]));
    let before = subnet.summary.check(&ENGINE, NodeIndex(1), &payload, &mut rng(1)).ok().unwrap();
    let (mut voted, mut leader) = (subnet.summary.clone(), subnet.summary.clone());
    for summary in [&mut voted, &mut leader] {
        summary.close_epoch();
    }
    assert!(leader.apply(&ENGINE, NodeIndex(1), &payload, &mut rng(1)));
    assert!(voted.apply_checked(&ENGINE, &payload, &before, &mut rng(1)));
    assert_eq!(voted.to_bytes(), leader.to_bytes());
}

#[test]
fn a_change_that_must_not_be_is_refused_and_says_why() {
    let mut subnet = Subnet::new(4, 4);
    let refusal =
        |subnet: &Subnet, change: &MembershipChange| subnet.refusal(0, &Summary::change(change));
    let all = [0, 1, 2, 3];
    for (add, remove, words) in [
        (&[][..], &[][..], "leaves the members as they are"),
        (&[1], &[], "is to be added and is a member"),
        (&[], &[9], "is to be removed and is no member"),
        (&[], &[1], "3 members after the change, 4 before"),
        (&[], &[1, 2], "2 members after the change"),
        (&[5, 6, 7, 8], &[1, 2, 3, 4], "no member stays"),
        (&[1], &[1], "leaves the members as they are"),
    ] {
        let refused = refusal(&subnet, &subnet.change(add, remove, &all));
        assert!(refused.contains(words), "{words}: {refused}");
    }
    let many: Vec<u8> = (5..=NODES_MAX as u8 + 1).collect();
    assert!(refusal(&subnet, &subnet.change(&many, &[], &all)).contains("65 members after"));
    assert!(subnet.summary.members_after(&subnet.change(&many[1..], &[], &all)).is_ok());

    // An address or an encryption key of another member.
    let key = *subnet.summary.public_key();
    let of = |record: NodeRecord| MembershipChange::new(&key, 0, vec![record], vec![]).unwrap();
    let five = node(5);
    let same = NodeRecord::new(&five.key, *five.record.encryption_key(), "10.0.0.2:4000").unwrap();
    assert!(refusal(&subnet, &of(same)).contains("the same address, 10.0.0.2:4000"));

    // Signatures: too few, of strangers, of another change.
    assert!(
        refusal(&subnet, &subnet.change(&[5], &[], &[0, 1]))
            .contains("2 members signed the change; 3")
    );
    let mut strange = subnet.change(&[5], &[], &all);
    strange.sign(&five.key).unwrap();
    assert!(refusal(&subnet, &strange).contains("is not a member"));
    let good = subnet.change(&[5], &[], &all);
    let mut file: serde_json::Value = serde_json::from_str(&good.to_json()).unwrap();
    file["add"][0] = serde_json::from_str(&record(6).to_json()).unwrap();
    let swapped = MembershipChange::from_json(file.to_string().as_bytes()).unwrap();
    assert!(refusal(&subnet, &swapped).contains("does not verify"));

    // Of another subnet, and out of turn.
    let elsewhere = Subnet::new(5, 5).change(&[6], &[], &[]);
    assert!(refusal(&subnet, &elsewhere).contains("is for the subnet with the key"));
    let early = MembershipChange::new(&key, 1, vec![five.record.clone()], vec![]).unwrap();
    assert!(
        refusal(&subnet, &early)
            .contains("has number 1; the next change of this subnet has number 0")
    );

    assert!(subnet.apply(2, &Summary::change(&good)));
    assert!(
        refusal(&subnet, &subnet.change(&[6], &[], &all)).contains("another change was accepted")
    );
    subnet.close();
    assert!(
        refusal(&subnet, &good)
            .contains("has number 0; the next change of this subnet has number 1")
    );
}

#[test]
fn a_member_that_lost_its_encryption_key_gets_a_new_record() {
    let mut subnet = Subnet::new(4, 4);
    let one = node(1);
    let (public, secret) = nidkg::generate_key_pair(one.record.node_id().as_slice(), &mut rng(77));
    let record = NodeRecord::new(&one.key, public, "10.1.0.1:4000").unwrap();
    let key = subnet.summary.public_key();
    let mut change =
        MembershipChange::new(key, 0, vec![record], vec![one.record.node_id()]).unwrap();
    for member in subnet.summary.members() {
        change.sign(&subnet.nodes[&member.node_key().to_bytes()].key).unwrap();
    }
    assert!(subnet.apply(0, &Summary::change(&change)));
    subnet.close();
    subnet.nodes.get_mut(&one.record.node_key().to_bytes()).unwrap().encryption = secret;
    subnet.epoch(&[0, 1, 2]);
    assert!(verify(subnet.summary.public_key(), MESSAGE, &subnet.signature(1)));
    assert!(subnet.summary.members().iter().any(|member| member.address() == "10.1.0.1:4000"));
}

#[test]
fn a_subnet_of_two_may_replace_a_node_and_grow_to_four() {
    let subnet = Subnet::new(2, 6);
    let after =
        |add: &[u8], remove: &[u8]| subnet.summary.members_after(&subnet.change(add, remove, &[]));
    assert_eq!(after(&[3], &[1]).unwrap().len(), 2);
    assert!(after(&[3], &[]).is_err());
    assert_eq!(after(&[3, 4], &[]).unwrap().len(), 4);
    assert_eq!(after(&[], &[1]).unwrap().len(), 1);
}

#[test]
fn files_of_changes_depend_on_what_they_say_only() {
    let subnet = Subnet::new(4, 4);
    let (one, other) =
        (subnet.change(&[6, 5], &[2, 1], &[2, 0]), subnet.change(&[5, 6], &[1, 2], &[0, 2, 0]));
    assert_eq!(one.to_json(), other.to_json());
    assert_eq!(one.hash(), other.hash());
    let read = MembershipChange::from_json(one.to_json().as_bytes()).unwrap();
    assert_eq!((read.to_json(), read.signers().count()), (one.to_json(), 2));
    let payload = Summary::change(&one);
    assert_eq!(Payload::from_bytes(&payload).ok().unwrap().to_bytes(), payload);
    for length in 0..payload.len() {
        assert!(Payload::from_bytes(&payload[..length]).is_err());
    }
    assert!(Payload::from_bytes(&[&payload[..], &[0]].concat()).is_err());

    type Change = fn(&mut serde_json::Value);
    let changes: [(Change, &str); 7] = [
        (|file| file["version"] = 2.into(), "version 2"),
        (|file| file["more"] = 1.into(), "unknown field"),
        (|file| file["add"].as_array_mut().unwrap().reverse(), "the added nodes"),
        (|file| file["remove"].as_array_mut().unwrap().reverse(), "the removed nodes"),
        (|file| file["remove"][1] = "aaaaa-aa".into(), "is no node id"),
        (|file| file["signatures"].as_array_mut().unwrap().reverse(), "the signatures"),
        (|file| file["signatures"][1] = file["signatures"][0].clone(), "the signatures"),
    ];
    for (change, words) in changes {
        let mut file: serde_json::Value = serde_json::from_str(&one.to_json()).unwrap();
        change(&mut file);
        let error =
            MembershipChange::from_json(file.to_string().as_bytes()).err().unwrap().to_string();
        assert!(error.contains(words), "{words}: {error}");
    }
}

#[test]
fn parts_that_do_not_fit_make_no_summary() {
    let nodes: Vec<Node> = (1..=4).map(node).collect();
    let committee = |nodes, threshold| nidkg::deal(nodes, threshold, &mut rng(4)).unwrap().0;
    let refused = |records: Vec<NodeRecord>, committee| {
        Summary::from_parts(records, committee).err().unwrap().to_string()
    };
    let sorted = records(&nodes);
    assert!(refused(sorted.clone(), committee(5, 4)).contains("do not belong together"));
    assert!(refused(sorted.clone(), committee(4, 2)).contains("do not belong together"));
    assert!(
        refused(sorted.iter().rev().cloned().collect(), committee(4, 3)).contains("rising order")
    );
    assert!(refused(vec![], committee(1, 1)).contains("0 nodes"));
    let mut other = committee(4, 3);
    other.shares.swap(0, 1);
    assert!(refused(sorted, other).contains("not those of one polynomial"));
}

#[test]
fn what_the_most_members_take_fits() {
    let mut subnet = Subnet::new(NODES_MAX as u8, NODES_MAX as u8);
    let payload = subnet.deal(7);
    assert!(payload.len() * 3 / 2 < PAYLOAD_BYTES_MAX, "{}", payload.len());
    assert!(subnet.apply(7, &payload));
    let bytes = subnet.summary.to_bytes().len();
    assert!(bytes < SUMMARY_BYTES_MAX / 43, "{bytes}");
    Summary::from_bytes(&subnet.summary.to_bytes()).unwrap();
}
