//! Signatures on states that execution waits for, where the usual certification did not give them.
//!
//! Usually a state is certified within a moment of its execution. It is not when a later state was
//! certified before it, when members restarted behind it, or when its committee is gone. A call
//! that waits for the signature on exactly that state would wait for ever: so the members that miss
//! it repeat their shares until they have it. Its root is then known from the state itself, and
//! the committee that runs signs it: the key of all committees is one, and its signature on a root
//! is the same.
//!
//! Bounded: states by [`state::AWAITED_MAX`], shares of each by the committee.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use nidkg::{BlsError, NodeIndex, Signature, SignatureShare, state_root_message};
use state::{AwaitedRoot, AwaitedRoots, Height};

use crate::certifier::{SigningCommittee, combine_shares, is_other_member};

/// A committee, with the first height that it signs.
pub(super) type DatedCommittee = (Height, Arc<SigningCommittee>);

/// See the module.
#[derive(Default)]
pub(super) struct AwaitedStates {
    committee: Option<DatedCommittee>,
    collected: BTreeMap<Height, CollectedShares>,
}

struct CollectedShares {
    root: [u8; 32],
    shares: BTreeMap<NodeIndex, SignatureShare>,
    refused: BTreeSet<NodeIndex>,
}

impl AwaitedStates {
    /// Collects for these states under this committee, and for no others. Returns this node's
    /// shares of those that were missing before already: most signatures come in the usual way
    /// first.
    pub(super) fn refresh(
        &mut self,
        missing: &AwaitedRoots,
        committee: Option<DatedCommittee>,
    ) -> Vec<(AwaitedRoot, SignatureShare)> {
        let begins = |committee: &Option<DatedCommittee>| committee.as_ref().map(|(from, _)| *from);
        if begins(&self.committee) != begins(&committee) {
            // A share of one committee is none of another.
            self.collected.clear();
            self.committee = committee;
        }
        self.collected.retain(|_, collected| missing.contains(&collected.root));
        let own = self.committee.as_ref().and_then(|(_, signers)| signers.share.as_ref());
        let mut shares = Vec::new();
        for AwaitedRoot { height, root } in missing.iter() {
            let Some(collected) = self.collected.get_mut(&height) else {
                let (shares, refused) = (BTreeMap::new(), BTreeSet::new());
                self.collected.insert(height, CollectedShares { root, shares, refused });
                continue;
            };
            let Some(own) = own else { continue };
            let sign = || own.sign(&state_root_message(&root));
            let share = *collected.shares.entry(own.index).or_insert_with(sign);
            shares.push((AwaitedRoot { height, root }, share));
        }
        shares
    }

    /// First height of the committee that signs.
    pub(super) fn committee(&self) -> Option<Height> {
        self.committee.as_ref().map(|(from, _)| *from)
    }

    /// Whether the signature on this state is collected.
    pub(super) fn wants(&self, height: Height, root: &[u8; 32]) -> bool {
        self.collected.get(&height).is_some_and(|collected| collected.root == *root)
    }

    /// Takes the share of a member, by its node key, of the committee that begins at `committee`.
    /// The signature, if it is complete.
    pub(super) fn add_share(
        &mut self,
        (committee, member): (Height, &[u8]),
        AwaitedRoot { height, root }: AwaitedRoot,
        share: SignatureShare,
    ) -> Result<Option<Signature>, BlsError> {
        let Some((_, signers)) = self.committee.as_ref().filter(|(from, _)| *from == committee)
        else {
            return Ok(None);
        };
        let place = signers.members.iter().position(|key| key[..] == *member);
        let Some(from) = place.and_then(|place| u32::try_from(place).ok()).map(NodeIndex) else {
            return Ok(None);
        };
        let Some(collected) = self.collected.get_mut(&height).filter(|it| it.root == root) else {
            return Ok(None);
        };
        // One share of a member is considered.
        if !is_other_member(signers, from)
            || collected.refused.contains(&from)
            || collected.shares.contains_key(&from)
        {
            return Ok(None);
        }
        collected.shares.insert(from, share);
        self.combine(height)
    }

    /// The signature on the state of this height, if its shares are complete: it is not collected
    /// any more then.
    pub(super) fn combine(&mut self, height: Height) -> Result<Option<Signature>, BlsError> {
        let Some((_, signers)) = &self.committee else { return Ok(None) };
        let Some(collected) = self.collected.get_mut(&height) else { return Ok(None) };
        let CollectedShares { root, shares, refused } = collected;
        let signature = combine_shares(signers, (height, root), shares, refused)?;
        if signature.is_some() {
            self.collected.remove(&height);
        }
        Ok(signature)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use nidkg::SecretShare;
    use rand::{SeedableRng as _, rngs::StdRng};

    use super::*;
    use crate::certifier::is_signature;

    const STATE: AwaitedRoot = AwaitedRoot { height: Height(5), root: [5; 32] };

    fn key_of(member: u32) -> [u8; 32] {
        [member as u8; 32]
    }

    /// The committees of four members that each of them knows, beginning at `from`.
    fn committees(from: u64, seed: u64) -> Vec<DatedCommittee> {
        let (committee, shares) = nidkg::deal(4, 3, &mut StdRng::seed_from_u64(seed)).unwrap();
        let signers = |share: SecretShare| SigningCommittee {
            committee: committee.clone(),
            share: Some(share),
            members: (0..4).map(key_of).collect(),
        };
        shares.into_iter().map(|share| (Height(from), Arc::new(signers(share)))).collect()
    }

    fn awaited() -> AwaitedRoots {
        [STATE].into_iter().collect()
    }

    // Promise: P9 - A signature that a call waits for is made although a later state was certified.
    #[test]
    fn repeated_shares_make_the_signature() {
        let committees = committees(1, 3);
        let key = committees[0].1.committee.public_key;
        let mut members: Vec<_> = committees.iter().map(|_| AwaitedStates::default()).collect();
        let mut refresh = |member: usize| {
            let committee = Some(committees[member].clone());
            members[member].refresh(&awaited(), committee)
        };
        assert!(refresh(1).is_empty(), "it may still come in the usual way");
        let mut signed = |member: usize| [refresh(member), refresh(member)].concat()[0].1;
        let shares = [signed(1), signed(2), signed(3)];
        assert!(refresh(0).is_empty());
        let node = &mut members[0];
        assert!(node.wants(STATE.height, &STATE.root) && !node.wants(STATE.height, &[6; 32]));
        let mut add = |member: u32, committee: u64, share| {
            node.add_share((Height(committee), &key_of(member)[..]), STATE, share).unwrap()
        };
        let [one, two, three] = shares;
        assert_eq!(add(1, 1, one), None);
        // Of another committee, of no member, and one that is false.
        assert_eq!(add(2, 501, two), None);
        assert_eq!(add(9, 1, two), None);
        assert_eq!(add(3, 1, two), None);
        assert_eq!(add(2, 1, two), None, "three shares, of which one is false");
        assert_eq!(add(3, 1, three), None, "a member is considered once");
        // With this node's own they are enough.
        assert_eq!(node.combine(STATE.height).unwrap(), None);
        assert_eq!(node.refresh(&awaited(), Some(committees[0].clone())).len(), 1);
        let signature = node.combine(STATE.height).unwrap().unwrap();
        assert!(is_signature(&key, &STATE.root, &signature));
        assert!(!node.wants(STATE.height, &STATE.root));
    }

    #[test]
    fn shares_of_another_committee_and_of_answered_states_are_dropped() {
        let (first, next) = (committees(1, 3).remove(0), committees(501, 4).remove(0));
        let mut states = AwaitedStates::default();
        for _ in 0..2 {
            states.refresh(&awaited(), Some(first.clone()));
        }
        assert_eq!(states.committee(), Some(Height(1)));
        assert!(states.refresh(&awaited(), Some(next.clone())).is_empty());
        assert_eq!(states.committee(), Some(Height(501)));
        assert_eq!(states.refresh(&awaited(), Some(next.clone())).len(), 1);
        states.refresh(&AwaitedRoots::default(), Some(next));
        assert!(!states.wants(STATE.height, &STATE.root));
    }
}
