//! Shares of the members on one request.

use std::collections::{BTreeMap, BTreeSet};

use nidkg::{NodeIndex, SignatureShare};
use state::OutcallAnswer;

use crate::certifier::SigningCommittee;

#[derive(Default)]
pub(super) struct CollectedShares {
    /// On answers, one of each member.
    pub(super) answers: BTreeMap<NodeIndex, ([u8; 32], SignatureShare)>,
    /// That there is no agreement, one of each member.
    pub(super) divergence: BTreeMap<NodeIndex, SignatureShare>,
    /// Whose share turned out false; nothing of them counts.
    pub(super) refused: BTreeSet<NodeIndex>,
    /// Whose share on an answer was verified.
    pub(super) verified: BTreeSet<NodeIndex>,
    /// The answer that the subnet signed, and its signature. It is in the pool once this node knows
    /// the answer itself.
    pub(super) signed: Option<([u8; 32], [u8; 48])>,
    /// Something that the subnet signed is or was in the pool.
    pub(super) submitted: bool,
}

impl CollectedShares {
    pub(super) fn is_signed_by(&self, place: NodeIndex) -> bool {
        self.answers.contains_key(&place) || self.divergence.contains_key(&place)
    }

    /// Moves shares on the divergence that arrived before this node knew its digest.
    pub(super) fn reclassify_divergence(&mut self, divergence: &OutcallAnswer) {
        let digest = divergence.digest();
        let moved: Vec<_> = self.answers.iter().filter(|(_, it)| it.0 == digest).collect();
        let moved: Vec<_> = moved.into_iter().map(|(place, it)| (*place, it.1)).collect();
        for (place, share) in moved {
            self.answers.remove(&place);
            self.divergence.entry(place).or_insert(share);
        }
    }

    pub(super) fn refuse(&mut self, places: &[NodeIndex]) {
        for place in places {
            self.answers.remove(place);
            self.divergence.remove(place);
            self.refused.insert(*place);
        }
    }

    fn counts(&self) -> BTreeMap<[u8; 32], usize> {
        let mut counts = BTreeMap::new();
        for (digest, _) in self.answers.values() {
            *counts.entry(*digest).or_default() += 1;
        }
        counts
    }

    /// The answer that enough members signed, with the subnet's signature.
    pub(super) fn signed_answer(
        &mut self,
        signers: &SigningCommittee,
    ) -> Option<([u8; 32], [u8; 48])> {
        let threshold = signers.committee.threshold as usize;
        loop {
            let counts = self.counts();
            let (digest, _) = counts.into_iter().find(|(_, count)| *count >= threshold)?;
            let of_it = self.answers.iter().filter(|(_, it)| it.0 == digest);
            let shares = of_it.map(|(place, it)| (*place, it.1)).collect();
            match combine_shares(signers, &OutcallAnswer::message(&digest), &shares) {
                Ok(signature) => return Some((digest, signature)),
                Err(false_ones) if false_ones.is_empty() => return None,
                Err(false_ones) => self.refuse(&false_ones),
            }
        }
    }

    /// Whether enough members may still sign the same answer, whatever the unheard members say.
    /// Before it returns false, every share is verified.
    pub(super) fn can_agree(&mut self, signers: &SigningCommittee) -> bool {
        let (members, threshold) =
            (signers.committee.shares.len(), signers.committee.threshold as usize);
        let possible = |collected: &Self| {
            let most = collected.counts().into_values().max().unwrap_or_default();
            let heard = collected.answers.len() + collected.refused.len();
            most + members.saturating_sub(heard) >= threshold
        };
        if possible(self) {
            return true;
        }
        let unverified: Vec<_> =
            self.answers.iter().filter(|(place, _)| !self.verified.contains(place)).collect();
        let is_false = |(place, it): &(&NodeIndex, &([u8; 32], SignatureShare))| {
            let message = OutcallAnswer::message(&it.0);
            signers.committee.verify_share(**place, &message, &it.1).is_err()
        };
        let false_ones: Vec<_> =
            unverified.into_iter().filter(is_false).map(|(place, _)| *place).collect();
        self.refuse(&false_ones);
        self.verified = self.answers.keys().copied().collect();
        possible(self)
    }
}

/// The subnet's signature out of shares, or whose share is false.
pub(super) fn combine_shares(
    signers: &SigningCommittee,
    message: &[u8],
    shares: &BTreeMap<NodeIndex, SignatureShare>,
) -> Result<[u8; 48], Vec<NodeIndex>> {
    // Verified together first: one check in place of one for each.
    if let Ok(signature) = nidkg::combine(&signers.committee, shares)
        && nidkg::verify(&signers.committee.public_key, message, &signature.0)
    {
        return Ok(signature.0);
    }
    let is_false = |(place, share): &(&NodeIndex, &SignatureShare)| {
        signers.committee.verify_share(**place, message, share).is_err()
    };
    Err(shares.iter().filter(is_false).map(|(place, _)| *place).collect())
}
