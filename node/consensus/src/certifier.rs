//! Certificates: shares of the signature on a state root, collected and combined per height.
//!
//! Bounded: shares are kept for at most `heights_max` heights, and per height for at most the committee.

use std::collections::BTreeMap;

use nidkg::{BlsError, Committee, NodeIndex, SecretShare, Signature, SignatureShare, state_root_message};
use state::Height;

/// The subnet's signature on the state root of a height.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// Of which state.
    pub height: Height,
    /// Its root.
    pub root: [u8; 32],
    /// BLS signature on the domain-separated root.
    pub signature: Signature,
}

/// Makes this node's shares, takes those of others, combines.
pub struct Certifier {
    committee: Committee,
    share: SecretShare,
    heights_max: usize,
    pending: BTreeMap<Height, Pending>,
}

struct Pending {
    root: [u8; 32],
    shares: BTreeMap<NodeIndex, SignatureShare>,
}

impl Certifier {
    /// `share` belongs to `committee`.
    pub fn new(committee: Committee, share: SecretShare, heights_max: usize) -> Self {
        Self { committee, share, heights_max: heights_max.max(1), pending: BTreeMap::new() }
    }

    /// Signs `root` as the state of `height`; the certificate, if this share completes it.
    pub fn sign(&mut self, height: Height, root: [u8; 32]) -> Result<Option<Certificate>, BlsError> {
        let share = self.share.sign(&state_root_message(&root));
        while self.pending.len() >= self.heights_max {
            self.pending.pop_first();
        }
        // A node's own share needs no verification: it just made it.
        self.pending
            .entry(height)
            .or_insert_with(|| Pending { root, shares: BTreeMap::new() })
            .shares
            .insert(self.share.index, share);
        self.complete(height)
    }

    /// Takes another node's share; shares that do not verify are refused by name, shares for heights this node has not executed are not kept.
    pub fn take(
        &mut self,
        height: Height,
        from: NodeIndex,
        share: SignatureShare,
    ) -> Result<Option<Certificate>, BlsError> {
        let Some(pending) = self.pending.get_mut(&height) else {
            return Ok(None);
        };
        self.committee.verify_share(from, &state_root_message(&pending.root), &share)?;
        pending.shares.insert(from, share);
        self.complete(height)
    }

    /// Heights whose certificate is not complete yet; at most `heights_max`.
    pub fn pending(&self) -> u64 {
        self.pending.len() as u64
    }

    fn complete(&mut self, height: Height) -> Result<Option<Certificate>, BlsError> {
        let enough = self
            .pending
            .get(&height)
            .is_some_and(|pending| pending.shares.len() >= self.committee.threshold as usize);
        if !enough {
            return Ok(None);
        }
        let Some(pending) = self.pending.remove(&height) else {
            return Ok(None);
        };
        let signature = nidkg::combine(&self.committee, &pending.shares)?;
        Ok(Some(Certificate { height, root: pending.root, signature }))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rand::{SeedableRng, rngs::StdRng};

    use super::*;

    #[test]
    fn one_node_certifies_at_once_and_clients_verify_it() {
        let (committee, mut shares) = nidkg::deal(1, 1, &mut StdRng::seed_from_u64(1)).unwrap();
        let key = committee.public_key;
        let mut certifier = Certifier::new(committee, shares.remove(0), 4);
        let certificate = certifier.sign(Height(3), [9; 32]).unwrap().unwrap();
        ic_verify_bls_signature::verify_bls_signature(
            &certificate.signature.0,
            &state_root_message(&[9; 32]),
            key.as_bytes(),
        )
        .unwrap();
    }

    #[test]
    fn four_nodes_certify_with_three_shares_and_a_bad_share_does_not_count() {
        let (committee, mut shares) = nidkg::deal(4, 3, &mut StdRng::seed_from_u64(2)).unwrap();
        let others = shares.split_off(1);
        let message = state_root_message(&[5; 32]);
        let mut certifier = Certifier::new(committee.clone(), shares.remove(0), 4);
        assert_eq!(certifier.take(Height(1), NodeIndex(1), others[0].sign(&message)), Ok(None));
        assert_eq!(certifier.sign(Height(1), [5; 32]), Ok(None));
        assert!(certifier.take(Height(1), NodeIndex(1), others[1].sign(&message)).is_err());
        assert_eq!(certifier.take(Height(1), NodeIndex(2), others[1].sign(&message)), Ok(None));
        let certificate = certifier.take(Height(1), NodeIndex(3), others[2].sign(&message)).unwrap().unwrap();
        assert!(nidkg::verify(&committee.public_key, &message, &certificate.signature.0));
    }

    #[test]
    fn heights_that_never_complete_are_forgotten() {
        let (committee, mut shares) = nidkg::deal(4, 3, &mut StdRng::seed_from_u64(3)).unwrap();
        let mut certifier = Certifier::new(committee, shares.remove(0), 2);
        for height in 1..100 {
            certifier.sign(Height(height), [1; 32]).unwrap();
            assert!(certifier.pending.len() <= 2);
        }
    }
}
