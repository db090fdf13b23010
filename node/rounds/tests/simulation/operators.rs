//! What operators do in a history: a member gets another address, by a change of the members that all of them sign and some of the nodes are handed.

use genesis::{MembershipChange, NodeRecord, Summary};
use rand::{Rng, rngs::StdRng, seq::SliceRandom};

use crate::{NODES, net::Net};

/// Hands a change to some of the nodes, as a rule when there is none that waits; where one does, it is replaced, and may be in a block already.
pub(crate) fn move_a_member(net: &Net, rng: &mut StdRng) {
    let newest = net.found.lock().newest_key.as_ref().map(|key| Summary::from_bytes(&key.summary).unwrap());
    let summary = newest.as_ref().unwrap_or(&net.genesis);
    let waits = |change: &MembershipChange| change.number() == summary.changes();
    if net.members.iter().any(|member| member.vault.change.lock().as_ref().is_some_and(waits))
        && rng.gen_bool(0.9)
    {
        return;
    }
    let signers: Vec<_> =
        net.members.iter().map(|member| ed25519_dalek::SigningKey::from_bytes(&member.secret)).collect();
    let moved = signers.choose(rng).unwrap();
    let node_key = moved.verifying_key().to_bytes();
    let place = summary.place_of(&node_key).unwrap();
    let encryption = *summary.members()[place.0 as usize].encryption_key();
    let address = format!("127.0.0.1:{}", rng.gen_range(20_000..60_000));
    let record = NodeRecord::new(moved, encryption, &address).unwrap();
    let (number, id) = (summary.changes(), record.node_id());
    let mut change = MembershipChange::new(summary.public_key(), number, vec![record], vec![id]).unwrap();
    signers.iter().for_each(|signer| change.sign(signer).unwrap());
    for _ in 0..rng.gen_range(1..3) {
        *net.members[rng.gen_range(0..NODES)].vault.change.lock() = Some(change.clone());
    }
}
