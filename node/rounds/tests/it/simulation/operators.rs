//! Operators in a history: changes of the members that all operators sign and some of the nodes
//! receive. A member gets another address, nodes join with nothing but their keys and the genesis,
//! members leave, or one member replaces another.
//!
//! A node that was away, or joins, asks the members that it knows of, and accepts a statement once
//! more of them make it than can be faulty. So three of the first four members stay in every
//! history; one of these may be faulty.

use std::sync::atomic::Ordering;

use genesis::MembershipChange;
use rand::{Rng, rngs::StdRng, seq::SliceRandom};

use crate::simulation::{NODES, net::Net};

/// Greatest number of members; they tolerate one that is faulty.
const MEMBERS_MAX: usize = 6;

/// Changes of the members.
#[derive(Default)]
pub(crate) struct Change {
    pub(crate) add: Vec<usize>,
    pub(crate) remove: Vec<usize>,
}

/// Hands a change to some of the nodes, as a rule when there is none that waits; where one does, it
/// is replaced, and may be in a block already.
pub(crate) async fn change_members(net: &mut Net, rng: &mut StdRng) {
    let number = net.summary().changes();
    let waits = |change: &MembershipChange| change.number() == number;
    if net.members.iter().any(|member| member.vault.change.lock().as_ref().is_some_and(waits))
        && rng.gen_bool(0.9)
    {
        return;
    }
    let change = draw_change(net, rng);
    let handed_to: Vec<_> = (0..rng.gen_range(1..3)).map(|_| rng.gen_range(0..NODES)).collect();
    propose(net, &change, &handed_to, rng).await;
}

fn draw_change(net: &Net, rng: &mut StdRng) -> Change {
    let summary = net.summary();
    // Those that hold the key next, to whom the change is made.
    let is_next = |place: &usize| {
        summary
            .next_members()
            .iter()
            .any(|next| next.node_key().to_bytes() == net.members[*place].vault.node_key)
    };
    let (members, others): (Vec<_>, Vec<_>) = (0..net.members.len()).partition(is_next);
    let may_leave: Vec<_> = members
        .iter()
        .copied()
        .filter(|place| *place >= NODES || *place == net.may_leave)
        .collect();
    let coming = others.choose(rng).copied();
    let going = may_leave.choose(rng).copied();
    match (rng.gen_range(0..4), coming, going) {
        (0, Some(coming), _) if members.len() < MEMBERS_MAX => {
            Change { add: vec![coming], remove: vec![] }
        }
        (1, _, Some(going)) if members.len() > NODES => Change { add: vec![], remove: vec![going] },
        (2, Some(coming), Some(going)) => Change { add: vec![coming], remove: vec![going] },
        _ => {
            let moved = *members.choose(rng).unwrap();
            Change { add: vec![moved], remove: vec![moved] }
        }
    }
}

/// Makes the change, has it signed by all members, hands it to these nodes, and starts those that
/// join.
pub(crate) async fn propose(net: &mut Net, change: &Change, handed_to: &[usize], rng: &mut StdRng) {
    let summary = net.summary();
    for place in &change.add {
        let member = &mut net.members[*place];
        let signer = ed25519_dalek::SigningKey::from_bytes(&member.secret);
        let address = format!("127.0.0.1:{}", 20_000 + rng.gen_range(0..6_000) * 6 + place);
        member.record =
            genesis::NodeRecord::new(&signer, *member.record.encryption_key(), &address).unwrap();
    }
    let records = change.add.iter().map(|place| net.members[*place].record.clone()).collect();
    let ids = change.remove.iter().map(|place| net.members[*place].record.node_id()).collect();
    let mut signed =
        MembershipChange::new(summary.public_key(), summary.changes(), records, ids).unwrap();
    for place in net.committee() {
        signed.sign(&ed25519_dalek::SigningKey::from_bytes(&net.members[place].secret)).unwrap();
    }
    for place in handed_to {
        *net.members[*place].vault.change.lock() = Some(signed.clone());
    }
    for place in &change.add {
        net.members[*place].is_wanted.store(true, Ordering::Relaxed);
        net.members[*place].admissions.fetch_add(1, Ordering::Relaxed);
        if !net.running.contains_key(place) {
            net.start(*place).await;
        }
    }
}
