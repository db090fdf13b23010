//! Certificates: shares of the signature on a state root, collected and combined per height.
//!
//! Shares of others are combined first and verified together, as the signature they make: one check
//! instead of one for each. Only if that fails is each share verified by itself, and those that are
//! false are dropped by name.
//!
//! A member is considered once per height: its first share counts, and one that turned out false,
//! or was of another root, is not verified again.
//!
//! Bounded: shares are kept for at most `heights_max` heights this node executed, and for as many
//! ahead of it; per height for at most the committee.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use commonware_utils::sync::Mutex;
use nidkg::{
    BlsError, Committee, NodeIndex, PublicKey, SecretShare, Signature, SignatureShare,
    state_root_message,
};
use state::Height;
use thiserror::Error;

use crate::newest::insert_newest;

/// The subnet's signature on the state root of a height.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// Of which state.
    pub height: Height,
    /// Root of the state after it.
    pub root: [u8; 32],
    /// BLS signature on the domain-separated root.
    pub signature: Signature,
}

/// Why nothing can be certified any more.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[expect(missing_docs, reason = "the texts say it")]
pub enum CertifyError {
    #[error(transparent)]
    Bls(#[from] BlsError),
    /// More nodes than can be faulty, or all of them together, signed another root.
    #[error(
        "this node's state root of height {height} is {} and the subnet's is {}: its state is \
         damaged, or it runs another version; stop it, remove its state and start it again, so \
         that it takes the subnet's",
        hex::encode(own),
        hex::encode(theirs)
    )]
    Diverged { height: u64, own: [u8; 32], theirs: [u8; 32] },
}

/// Who signs, with what this node signs.
pub struct SigningCommittee {
    /// All shares' public keys.
    pub committee: Committee,
    /// This node's; none if it follows the subnet without being a member.
    pub share: Option<SecretShare>,
    /// Ed25519 keys of the members, by place.
    pub members: Vec<[u8; 32]>,
}

impl SigningCommittee {
    fn check(&self) {
        let (shares, threshold) = (self.committee.shares.len(), self.committee.threshold as usize);
        debug_assert!((1..=shares).contains(&threshold), "{threshold} of {shares} shares sign");
        debug_assert!(
            self.members.is_empty() || self.members.len() == shares,
            "{} members have {shares} shares",
            self.members.len()
        );
        debug_assert!(
            self.share.as_ref().is_none_or(|own| (own.index.0 as usize) < shares),
            "this node's share is none of {shares}"
        );
    }
}

/// Committees that hold the subnet's key, by the height each begins to sign at. The key is one and
/// the same; a share of one committee is none of another. Copies share everything.
#[derive(Clone)]
pub struct CommitteeSchedule {
    /// The subnet's public key, the same in every epoch.
    public_key: PublicKey,
    known: Arc<Mutex<BTreeMap<Height, Arc<SigningCommittee>>>>,
}

/// Heights before the newest resharing may still wait for their certificate.
const COMMITTEES_KEPT: usize = 2;

impl CommitteeSchedule {
    /// Begins with `signers`, at height `from`.
    pub fn new(from: Height, signers: SigningCommittee) -> Self {
        signers.check();
        let public_key = signers.committee.public_key;
        Self {
            public_key,
            known: Arc::new(Mutex::new(BTreeMap::from([(from, Arc::new(signers))]))),
        }
    }

    /// From this height on another committee signs.
    pub(crate) fn begin(&self, from: Height, signers: SigningCommittee) {
        signers.check();
        let mut known = self.known.lock();
        debug_assert!(
            known.last_key_value().is_none_or(|(last, _)| *last <= from),
            "a committee begins at height {} and the newest after it",
            from.0
        );
        insert_newest(&mut known, from, Arc::new(signers), COMMITTEES_KEPT);
    }

    /// Who signs from the newest height on that another committee began at, and that height.
    pub(crate) fn newest(&self) -> Option<(Height, Arc<SigningCommittee>)> {
        self.known.lock().last_key_value().map(|(from, signers)| (*from, signers.clone()))
    }

    /// Who signs the state of `height`; none if that was before all that is known.
    pub(crate) fn at(&self, height: Height) -> Option<Arc<SigningCommittee>> {
        self.known.lock().range(..=height).next_back().map(|(_, signers)| signers.clone())
    }
}

/// Makes this node's shares, takes those of others, combines.
pub struct Certifier {
    schedule: CommitteeSchedule,
    heights_max: usize,
    /// Executed here, not certified.
    pending: BTreeMap<Height, Pending>,
    /// Shares for heights this node has not executed.
    early: BTreeMap<Height, Early>,
    /// Newest height signed here.
    signed: Height,
}

struct Pending {
    signers: Arc<SigningCommittee>,
    root: [u8; 32],
    shares: BTreeMap<NodeIndex, SignatureShare>,
    /// Who signed another root, with proof.
    dissent: BTreeSet<NodeIndex>,
    /// Whose share was false.
    refused: BTreeSet<NodeIndex>,
}

struct Early {
    /// The committee that was taken for the one of this height; at the end of an epoch it may turn
    /// out to be another.
    signers: Arc<SigningCommittee>,
    shares: BTreeMap<NodeIndex, ([u8; 32], SignatureShare)>,
}

/// Result of checking a certificate of another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateCheck {
    /// This node lacked it.
    New(Certificate),
    /// This node has it or one that covers it, or has not reached its height yet. It was not
    /// verified.
    Unneeded,
    /// The subnet did not sign it: the sender is faulty.
    Invalid,
}

impl Certifier {
    /// For a committee that stays: `share` belongs to it.
    pub fn new(committee: Committee, share: SecretShare, heights_max: usize) -> Self {
        Self::with_schedule(
            CommitteeSchedule::new(
                Height(0),
                SigningCommittee { committee, share: Some(share), members: vec![] },
            ),
            heights_max,
        )
    }

    /// For committees that follow each other.
    pub fn with_schedule(schedule: CommitteeSchedule, heights_max: usize) -> Self {
        Self {
            schedule,
            heights_max: heights_max.max(1),
            pending: BTreeMap::new(),
            early: BTreeMap::new(),
            signed: Height(0),
        }
    }

    pub(crate) fn schedule(&self) -> &CommitteeSchedule {
        &self.schedule
    }

    /// Signs `root` as the state of `height`; this node's share for the others, if it has one, and
    /// the certificate, if it is complete now. If this node knows of no committee at that
    /// height nothing comes of it: a later certificate will cover it.
    pub fn sign(
        &mut self,
        height: Height,
        root: [u8; 32],
    ) -> Result<(Option<SignatureShare>, Option<Certificate>), CertifyError> {
        let Some(signers) = self.schedule.at(height) else { return Ok((None, None)) };
        let own = signers.share.as_ref();
        let share = own.map(|own| (own.index, own.sign(&state_root_message(&root))));
        while self.pending.len() >= self.heights_max {
            self.pending.pop_first();
        }
        self.signed = self.signed.max(height);
        let shares = BTreeMap::from_iter(share);
        let members = signers.members.clone();
        let (dissent, refused) = (BTreeSet::new(), BTreeSet::new());
        self.pending.insert(height, Pending { signers, root, shares, dissent, refused });
        debug_assert!(
            self.pending.len() <= self.heights_max,
            "{} heights are pending, the most is {}",
            self.pending.len(),
            self.heights_max
        );
        // Places of another committee say nothing; who has them says it again.
        let early = self.early.remove(&height).filter(|early| early.signers.members == members);
        let early = early.map(|early| early.shares).unwrap_or_default();
        self.early = self.early.split_off(&height);
        let mut certificate = self.try_combine(height)?;
        for (from, (root, early)) in early {
            certificate = certificate.or(self.add_share(height, from, root, early)?);
        }
        Ok((share.map(|(_, share)| share), certificate))
    }

    /// Takes another node's share.
    pub fn add_share(
        &mut self,
        height: Height,
        from: NodeIndex,
        root: [u8; 32],
        share: SignatureShare,
    ) -> Result<Option<Certificate>, CertifyError> {
        if height > self.signed {
            if height.0 - self.signed.0 <= self.heights_max as u64
                && let Some(signers) =
                    self.schedule.at(height).filter(|signers| is_other_member(signers, from))
            {
                let early = self
                    .early
                    .entry(height)
                    .or_insert_with(|| Early { signers, shares: BTreeMap::new() });
                early.shares.entry(from).or_insert((root, share));
                debug_assert!(
                    self.early.len() <= self.heights_max,
                    "{} heights are early, the most is {}",
                    self.early.len(),
                    self.heights_max
                );
            }
            return Ok(None);
        }
        let Some(pending) = self.pending.get_mut(&height) else {
            return Ok(None);
        };
        if pending.refused.contains(&from) || pending.dissent.contains(&from) {
            return Ok(None);
        }
        if root == pending.root {
            if pending.shares.contains_key(&from) {
                return Ok(None);
            }
            pending.shares.insert(from, share);
            return self.try_combine(height);
        }
        let committee = &pending.signers.committee;
        if committee.verify_share(from, &state_root_message(&root), &share).is_ok() {
            pending.dissent.insert(from);
            let faulty_max = committee.shares.len() - committee.threshold as usize;
            if pending.dissent.len() > faulty_max {
                return Err(CertifyError::Diverged {
                    height: height.0,
                    own: pending.root,
                    theirs: root,
                });
            }
            tracing::warn!(
                height = height.0,
                node = from.0,
                "a node signed another state root: it is faulty, or this one is"
            );
        } else {
            pending.refused.insert(from);
        }
        Ok(None)
    }

    /// Takes a certificate that another node has, if this one lacks it.
    pub fn accept(&mut self, certificate: Certificate) -> Result<CertificateCheck, CertifyError> {
        let height = certificate.height;
        let Some(pending) = self.pending.get(&height) else {
            return Ok(CertificateCheck::Unneeded);
        };
        if !is_signature(&self.schedule.public_key, &certificate.root, &certificate.signature) {
            return Ok(CertificateCheck::Invalid);
        }
        if pending.root != certificate.root {
            return Err(CertifyError::Diverged {
                height: height.0,
                own: pending.root,
                theirs: certificate.root,
            });
        }
        self.drop_covered(height);
        Ok(CertificateCheck::New(certificate))
    }

    /// Heights whose certificate is not complete yet; at most `heights_max`.
    pub fn pending(&self) -> u64 {
        self.pending.len() as u64
    }

    /// A certificate covers what earlier states hold: they need none of their own.
    fn drop_covered(&mut self, height: Height) {
        self.pending = self.pending.split_off(&Height(height.0 + 1));
    }

    fn try_combine(&mut self, height: Height) -> Result<Option<Certificate>, CertifyError> {
        let Some(pending) = self.pending.get_mut(&height) else { return Ok(None) };
        let signers = pending.signers.clone();
        let root = pending.root;
        let combined =
            combine_shares(&signers, (height, &root), &mut pending.shares, &mut pending.refused)?;
        let Some(signature) = combined else { return Ok(None) };
        self.drop_covered(height);
        Ok(Some(Certificate { height, root, signature }))
    }
}

/// The subnet's signature on `root`, if enough of the shares are good. The signature that the
/// shares make is verified first, and single shares only when it is not the subnet's: false ones
/// are logged, dropped, and added to `refused`.
pub(crate) fn combine_shares(
    signers: &SigningCommittee,
    (height, root): (Height, &[u8; 32]),
    shares: &mut BTreeMap<NodeIndex, SignatureShare>,
    refused: &mut BTreeSet<NodeIndex>,
) -> Result<Option<Signature>, BlsError> {
    let SigningCommittee { committee, share: own, .. } = signers;
    let (threshold, own) = (committee.threshold as usize, own.as_ref().map(|own| own.index));
    if shares.len() < threshold {
        return Ok(None);
    }
    // A node's own share needs no verification: it just made it.
    let alone = shares.keys().all(|index| Some(*index) == own);
    if let Ok(signature) = nidkg::combine(committee, shares)
        && (alone || is_signature(&committee.public_key, root, &signature))
    {
        return Ok(Some(signature));
    }
    let message = state_root_message(root);
    shares.retain(|index, share| {
        let good = Some(*index) == own || committee.verify_share(*index, &message, share).is_ok();
        if !good {
            tracing::warn!(
                height = height.0,
                node = index.0,
                "a node sent a false share of the state root's signature"
            );
            refused.insert(*index);
        }
        good
    });
    if shares.len() < threshold {
        return Ok(None);
    }
    nidkg::combine(committee, shares).map(Some)
}

pub(crate) fn is_other_member(signers: &SigningCommittee, index: NodeIndex) -> bool {
    let own = signers.share.as_ref().map(|share| share.index);
    own != Some(index) && (index.0 as usize) < signers.committee.shares.len()
}

pub(crate) fn is_signature(key: &PublicKey, root: &[u8; 32], signature: &Signature) -> bool {
    nidkg::verify(key, &state_root_message(root), &signature.0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rand::{SeedableRng, rngs::StdRng};

    use super::*;

    fn four(seed: u64) -> (Committee, Vec<SecretShare>) {
        nidkg::deal(4, 3, &mut StdRng::seed_from_u64(seed)).unwrap()
    }

    #[test]
    fn one_node_certifies_at_once_and_clients_verify_it() {
        let (committee, mut shares) = nidkg::deal(1, 1, &mut StdRng::seed_from_u64(1)).unwrap();
        let key = committee.public_key;
        let mut certifier = Certifier::new(committee, shares.remove(0), 4);
        let certificate = certifier.sign(Height(3), [9; 32]).unwrap().1.unwrap();
        ic_verify_bls_signature::verify_bls_signature(
            &certificate.signature.0,
            &state_root_message(&[9; 32]),
            key.as_bytes(),
        )
        .unwrap();
    }

    // Promise: P17 - Four nodes certify a state with three shares.
    #[test]
    fn three_of_four_shares_certify_in_any_order() {
        let (committee, mut shares) = four(2);
        let others = shares.split_off(1);
        let (root, message) = ([5; 32], state_root_message(&[5; 32]));
        let mut certifier = Certifier::new(committee.clone(), shares.remove(0), 4);
        // Before this node executed the height.
        assert_eq!(
            certifier.add_share(Height(1), NodeIndex(1), root, others[0].sign(&message)),
            Ok(None)
        );
        assert_eq!(certifier.sign(Height(1), root).unwrap().1, None);
        let certificate = certifier
            .add_share(Height(1), NodeIndex(3), root, others[2].sign(&message))
            .unwrap()
            .unwrap();
        assert!(nidkg::verify(&committee.public_key, &message, &certificate.signature.0));
        // All of them before.
        for (index, share) in others.iter().enumerate() {
            let from = NodeIndex(index as u32 + 1);
            assert_eq!(certifier.add_share(Height(2), from, root, share.sign(&message)), Ok(None));
        }
        assert_eq!(certifier.sign(Height(2), root).unwrap().1.unwrap().height, Height(2));
    }

    // Promise: P18 - An invalid share of a state root does not count.
    #[test]
    fn invalid_share_is_ignored_and_valid_shares_still_certify() {
        let (committee, mut shares) = four(2);
        let others = shares.split_off(1);
        let (root, message) = ([5; 32], state_root_message(&[5; 32]));
        let mut certifier = Certifier::new(committee.clone(), shares.remove(0), 4);
        certifier.sign(Height(1), root).unwrap();
        // Node 1 sends node 2's share.
        assert_eq!(
            certifier.add_share(Height(1), NodeIndex(1), root, others[1].sign(&message)),
            Ok(None)
        );
        assert_eq!(
            certifier.add_share(Height(1), NodeIndex(2), root, others[1].sign(&message)),
            Ok(None)
        );
        // It is considered once per height: its further shares cost nothing.
        assert_eq!(
            certifier.add_share(Height(1), NodeIndex(1), root, others[0].sign(&message)),
            Ok(None)
        );
        assert_eq!(
            certifier.add_share(Height(1), NodeIndex(1), [6; 32], others[0].sign(&message)),
            Ok(None)
        );
        assert_eq!(certifier.pending[&Height(1)].refused, BTreeSet::from([NodeIndex(1)]));
        let certificate = certifier
            .add_share(Height(1), NodeIndex(3), root, others[2].sign(&message))
            .unwrap()
            .unwrap();
        assert!(nidkg::verify(&committee.public_key, &message, &certificate.signature.0));
    }

    #[test]
    fn minority_root_is_reported_as_divergence() {
        let (committee, mut shares) = four(4);
        let others = shares.split_off(1);
        let theirs = [6; 32];
        let sign = |index: usize| others[index - 1].sign(&state_root_message(&theirs));
        let mut certifier = Certifier::new(committee, shares.remove(0), 4);
        certifier.sign(Height(1), [5; 32]).unwrap();
        // One may be faulty; so says the same node twice. And one may make up another's dissent.
        assert_eq!(certifier.add_share(Height(1), NodeIndex(1), theirs, sign(1)), Ok(None));
        assert_eq!(certifier.add_share(Height(1), NodeIndex(1), theirs, sign(1)), Ok(None));
        assert_eq!(certifier.add_share(Height(1), NodeIndex(2), theirs, sign(1)), Ok(None));
        let diverged = certifier.add_share(Height(1), NodeIndex(3), theirs, sign(3)).unwrap_err();
        assert_eq!(diverged, CertifyError::Diverged { height: 1, own: [5; 32], theirs });
    }

    #[test]
    fn peer_certificate_is_accepted_only_with_a_valid_signature() {
        let (committee, mut shares) = four(5);
        let mut other = Certifier::new(committee.clone(), shares.remove(1), 4);
        let (root, message) = ([7; 32], state_root_message(&[7; 32]));
        other.sign(Height(4), root).unwrap();
        other.add_share(Height(4), NodeIndex(2), root, shares[1].sign(&message)).unwrap();
        let certificate = other
            .add_share(Height(4), NodeIndex(3), root, shares[2].sign(&message))
            .unwrap()
            .unwrap();
        let mut certifier = Certifier::new(committee, shares.remove(0), 4);
        assert_eq!(
            certifier.accept(certificate.clone()),
            Ok(CertificateCheck::Unneeded),
            "nothing is known of that height"
        );
        certifier.sign(Height(3), [1; 32]).unwrap();
        certifier.sign(Height(4), root).unwrap();
        let mut false_one = certificate.clone();
        false_one.root[0] ^= 1;
        assert_eq!(certifier.accept(false_one), Ok(CertificateCheck::Invalid));
        assert_eq!(certifier.accept(certificate.clone()), Ok(CertificateCheck::New(certificate)));
        assert_eq!(certifier.pending(), 0, "the height below is covered");
    }

    #[test]
    fn pending_heights_are_bounded() {
        let (committee, mut shares) = four(3);
        let other = shares.remove(1);
        let mut certifier = Certifier::new(committee, shares.remove(0), 2);
        for height in 1..100 {
            certifier.sign(Height(height), [1; 32]).unwrap();
            for ahead in 1..100 {
                let share = other.sign(&state_root_message(&[1; 32]));
                certifier.add_share(Height(height + ahead), NodeIndex(1), [1; 32], share).unwrap();
            }
            assert!(certifier.pending.len() <= 2);
            assert!(certifier.early.len() <= 2);
        }
    }

    #[test]
    fn shares_count_only_in_the_committee_of_their_height() {
        // The same key in other shares, as after a resharing, and a member less.
        let mut rng = StdRng::seed_from_u64(6);
        let (old, mut old_shares) = nidkg::deal(4, 3, &mut rng).unwrap();
        let (new, mut new_shares) = nidkg::deal(4, 3, &mut rng).unwrap();
        let signers = |committee: &Committee, share| SigningCommittee {
            committee: committee.clone(),
            share: Some(share),
            members: vec![],
        };
        let schedule = CommitteeSchedule::new(Height(5), signers(&old, old_shares.remove(0)));
        let mut certifier = Certifier::with_schedule(schedule.clone(), 8);
        assert_eq!(
            certifier.sign(Height(4), [1; 32]).unwrap(),
            (None, None),
            "before all that is known"
        );
        certifier.sign(Height(9), [9; 32]).unwrap();
        schedule.begin(Height(10), signers(&new, new_shares.remove(0)));
        certifier.sign(Height(10), [10; 32]).unwrap();
        let message = |root| state_root_message(&[root; 32]);
        let mut take = |height: u64, from: usize, share: &SecretShare| {
            let root = height as u8;
            certifier
                .add_share(
                    Height(height),
                    NodeIndex(from as u32),
                    [root; 32],
                    share.sign(&message(root)),
                )
                .unwrap()
        };
        assert_eq!(take(9, 1, &new_shares[0]), None);
        assert_eq!(take(9, 2, &old_shares[1]), None, "a share of the wrong committee");
        let certificate = take(9, 3, &old_shares[2]).unwrap();
        assert!(nidkg::verify(&old.public_key, &message(9), &certificate.signature.0));
        assert_eq!(take(10, 1, &new_shares[0]), None);
        let certificate = take(10, 3, &new_shares[2]).unwrap();
        assert!(nidkg::verify(&new.public_key, &message(10), &certificate.signature.0));
    }

    #[test]
    fn node_without_share_combines_shares_of_others() {
        let (committee, shares) = four(7);
        let signers =
            SigningCommittee { committee: committee.clone(), share: None, members: vec![] };
        let mut certifier = Certifier::with_schedule(CommitteeSchedule::new(Height(1), signers), 4);
        let (root, message) = ([5; 32], state_root_message(&[5; 32]));
        assert_eq!(
            certifier.add_share(Height(1), NodeIndex(0), root, shares[0].sign(&message)),
            Ok(None)
        );
        assert_eq!(certifier.sign(Height(1), root), Ok((None, None)));
        // A false one among them.
        assert_eq!(
            certifier.add_share(Height(1), NodeIndex(1), root, shares[0].sign(&message)),
            Ok(None)
        );
        assert_eq!(
            certifier.add_share(Height(1), NodeIndex(2), root, shares[2].sign(&message)),
            Ok(None)
        );
        let certificate = certifier
            .add_share(Height(1), NodeIndex(3), root, shares[3].sign(&message))
            .unwrap()
            .unwrap();
        assert!(nidkg::verify(&committee.public_key, &message, &certificate.signature.0));
    }
}
