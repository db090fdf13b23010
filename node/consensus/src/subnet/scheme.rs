//! Signs and verifies votes, by [`vrf::Scheme`], and signs and verifies the part that is the same
//! in two votes of a round once: every vote carries a share of its round's seed.

use std::{collections::BTreeMap, sync::Arc};

use commonware_codec::Read;
use commonware_consensus::{
    simplex::{
        scheme::{Namespace, bls12381_threshold::vrf},
        types::{Finalization, Notarization, Subject},
    },
    types::Round,
};
use commonware_cryptography::{
    Digest,
    bls12381::primitives::{
        group::{G1, G2, Share},
        ops::{self, threshold},
        sharing::Sharing,
        variant::{MinSig, PartialSignature},
    },
    certificate::{
        self, AssemblyError, Attestation, Membership, Subject as _, Verification, Verifier,
    },
    ed25519::PublicKey,
};
use commonware_parallel::Strategy;
use commonware_utils::{N3f1, iter::NonEmpty, ordered::Set, sync::Mutex};
use rand_core::CryptoRng;

use crate::newest::insert_newest;

/// A round's randomness.
pub(super) type Seed = vrf::Seed<MinSig>;

pub(super) type Inner = vrf::Scheme<PublicKey, MinSig>;
type Signature = vrf::Signature<MinSig>;

/// Rounds whose seed and share of it are remembered. Votes come of the round that runs and the one
/// before.
const ROUNDS_KEPT: usize = 4;

/// Keys of one epoch, with the seeds of recent rounds. Copies share what they remember.
#[derive(Clone, Debug)]
pub(super) struct Scheme {
    inner: Inner,
    namespace: Arc<Namespace>,
    known: Arc<Mutex<SignatureCache>>,
}

#[derive(Debug, Default)]
struct SignatureCache {
    /// This node's shares of seeds.
    own: BTreeMap<Round, G1>,
    verified: BTreeMap<Round, G1>,
}

impl Scheme {
    fn new(namespace: &[u8], inner: Inner) -> Self {
        Self { inner, namespace: Arc::new(Namespace::new(namespace)), known: Arc::default() }
    }

    pub(super) fn into_inner(self) -> Inner {
        self.inner
    }

    /// Votes and verifies; `None` if the share is not of the key.
    pub(super) fn signer(
        namespace: &[u8],
        members: Set<PublicKey>,
        sharing: Sharing<MinSig>,
        share: Share,
    ) -> Option<Self> {
        Some(Self::new(namespace, Inner::signer(namespace, members, sharing, share)?))
    }

    /// Verifies votes and certificates.
    pub(super) fn verifier(
        namespace: &[u8],
        members: Set<PublicKey>,
        sharing: Sharing<MinSig>,
    ) -> Self {
        Self::new(namespace, Inner::verifier(namespace, members, sharing))
    }

    pub(super) fn certificate_verifier(namespace: &[u8], key: G2) -> Self {
        Self::new(namespace, Inner::certificate_verifier(namespace, key))
    }

    /// The members; a certificate's verifier knows none.
    pub(super) fn participants(&self) -> &Set<PublicKey> {
        self.inner.participants()
    }

    /// Whether `seed` is its round's.
    pub(super) fn is_seed(&self, seed: &Seed) -> bool {
        // Outside the lock, so that no other thread waits for it during the verification.
        let known = self.known.lock().verified.get(&seed.round).copied();
        known.map_or_else(|| seed.verify(&self.inner), |known| known == seed.signature)
    }

    /// The certificate of votes in a round whose seed is known, if they are valid.
    fn assemble_with<'a, D: Digest>(
        &self,
        seed: G1,
        subject: &Subject<'_, D>,
        votes: impl Iterator<Item = &'a Attestation<Self>>,
        strategy: &impl Strategy,
    ) -> Option<vrf::Certificate<MinSig>> {
        let partial = |vote: &Attestation<Self>| {
            let value = vote.signature.get()?.vote_signature;
            Some(PartialSignature::<MinSig> { index: vote.signer, value })
        };
        let partials = votes.map(partial).collect::<Option<Vec<_>>>()?;
        let vote = threshold::recover(self.inner.polynomial(), partials.iter(), strategy).ok()?;
        self.is_vote(subject, &vote)
            .then(|| Signature { vote_signature: vote, seed_signature: seed }.into())
    }

    /// Whether the subnet signed `subject`.
    fn is_vote<D: Digest>(&self, subject: &Subject<'_, D>, signature: &G1) -> bool {
        let namespace = subject.namespace(&self.namespace);
        let message = subject.message();
        ops::verify_message::<MinSig>(self.inner.identity(), namespace, &message, signature).is_ok()
    }
}

fn round_of<D: Digest>(subject: &Subject<'_, D>) -> Round {
    match subject {
        Subject::Notarize { proposal } | Subject::Finalize { proposal } => proposal.round,
        Subject::Nullify { round } => *round,
    }
}

fn to_inner(vote: Attestation<Scheme>) -> Attestation<Inner> {
    Attestation { signer: vote.signer, signature: vote.signature }
}

fn from_inner(vote: Attestation<Inner>) -> Attestation<Scheme> {
    Attestation { signer: vote.signer, signature: vote.signature }
}

impl Verifier for Scheme {
    type Subject<'a, D: Digest> = Subject<'a, D>;
    type Faults = N3f1;
    type PublicKey = PublicKey;
    type Certificate = vrf::Certificate<MinSig>;

    fn verify_certificate<R: CryptoRng, D: Digest>(
        &self,
        rng: &mut R,
        subject: Subject<'_, D>,
        certificate: &Self::Certificate,
        strategy: &impl Strategy,
    ) -> bool {
        let Some(signature) = certificate.get() else { return false };
        let round = round_of(&subject);
        let known = self.known.lock().verified.get(&round).copied();
        if let Some(seed) = known {
            return seed == signature.seed_signature
                && self.is_vote(&subject, &signature.vote_signature);
        }
        let valid = self.inner.verify_certificate(rng, subject, certificate, strategy);
        if valid {
            let verified = &mut self.known.lock().verified;
            insert_newest(verified, round, signature.seed_signature, ROUNDS_KEPT);
        }
        valid
    }

    fn verify_certificates<'a, R, D, I>(
        &self,
        rng: &mut R,
        certificates: NonEmpty<I>,
        strategy: &impl Strategy,
    ) -> bool
    where
        R: CryptoRng,
        D: Digest,
        I: Iterator<Item = (Subject<'a, D>, &'a Self::Certificate)>,
    {
        self.inner.verify_certificates(rng, certificates, strategy)
    }

    fn is_batchable() -> bool {
        Inner::is_batchable()
    }

    fn max_certificate_size(participants: u32) -> usize {
        Inner::max_certificate_size(participants)
    }

    fn certificate_codec_config(&self) -> <Self::Certificate as Read>::Cfg {}

    fn certificate_codec_config_unbounded() -> <Self::Certificate as Read>::Cfg {}
}

impl certificate::Scheme for Scheme {
    type Signature = Signature;

    fn me(&self) -> Option<Membership> {
        self.inner.me()
    }

    fn participants(&self) -> &Set<PublicKey> {
        self.inner.participants()
    }

    fn sign<D: Digest>(&self, subject: Subject<'_, D>) -> Option<Attestation<Self>> {
        let round = round_of(&subject);
        let known = self.known.lock().own.get(&round).copied();
        let Some(seed) = known else {
            let vote = from_inner(self.inner.sign(subject)?);
            let seed = vote.signature.get()?.seed_signature;
            insert_newest(&mut self.known.lock().own, round, seed, ROUNDS_KEPT);
            return Some(vote);
        };
        let share = self.inner.share()?;
        let (namespace, message) = (subject.namespace(&self.namespace), subject.message());
        let vote = threshold::sign_message::<MinSig>(share, namespace, &message).value;
        let signature = Signature { vote_signature: vote, seed_signature: seed };
        Some(Attestation { signer: share.index, signature: signature.into() })
    }

    fn verify_attestation<R: CryptoRng, D: Digest>(
        &self,
        rng: &mut R,
        subject: Subject<'_, D>,
        attestation: &Attestation<Self>,
        strategy: &impl Strategy,
    ) -> bool {
        self.inner.verify_attestation(rng, subject, &to_inner(attestation.clone()), strategy)
    }

    fn verify_attestations<R, D, I>(
        &self,
        rng: &mut R,
        subject: Subject<'_, D>,
        attestations: I,
        strategy: &impl Strategy,
    ) -> Verification<Self>
    where
        R: CryptoRng,
        D: Digest,
        I: IntoIterator<Item = Attestation<Self>>,
        I::IntoIter: Send,
    {
        let votes = attestations.into_iter().map(to_inner);
        let Verification { verified, invalid } =
            self.inner.verify_attestations(rng, subject, votes, strategy);
        Verification::new(verified.into_iter().map(from_inner).collect(), invalid)
    }

    fn optimistic_assemble<'a, R, D, I, J>(
        &self,
        rng: &mut R,
        subject: Subject<'_, D>,
        pending: I,
        verified: J,
        strategy: &impl Strategy,
    ) -> Result<Self::Certificate, Verification<Self>>
    where
        R: CryptoRng,
        D: Digest,
        I: IntoIterator<Item = Attestation<Self>>,
        I::IntoIter: ExactSizeIterator + Send,
        J: IntoIterator<Item = &'a Attestation<Self>>,
        J::IntoIter: Send,
    {
        let pending: Vec<_> = pending.into_iter().collect();
        let verified: Vec<_> = verified.into_iter().collect();
        let known = self.known.lock().verified.get(&round_of(&subject)).copied();
        // Parts verified before are not verified again.
        if let Some(seed) = known.filter(|_| !pending.is_empty()) {
            let votes = pending.iter().chain(verified.iter().copied());
            if let Some(certificate) = self.assemble_with(seed, &subject, votes, strategy) {
                return Ok(certificate);
            }
        }
        certificate::optimistic_assemble(self, rng, subject, pending, verified, strategy)
    }

    fn assemble<I>(
        &self,
        attestations: NonEmpty<I>,
        strategy: &impl Strategy,
    ) -> Result<Self::Certificate, AssemblyError>
    where
        I: Iterator<Item = Attestation<Self>> + Send,
    {
        let (first, rest) = attestations.into_parts();
        self.inner.assemble(NonEmpty::new(to_inner(first), rest.map(to_inner)), strategy)
    }

    fn is_attributable() -> bool {
        Inner::is_attributable()
    }
}

/// A certificate that was verified.
pub(super) trait HasSeed {
    fn seed(&self) -> Seed;
}

#[allow(clippy::expect_used)]
fn seed(round: Round, certificate: &vrf::Certificate<MinSig>) -> Seed {
    let signature = certificate.get().expect("a verified certificate decodes");
    Seed::new(round, signature.seed_signature)
}

impl<D: Digest> HasSeed for Notarization<Scheme, D> {
    fn seed(&self) -> Seed {
        seed(self.proposal.round, &self.certificate)
    }
}

impl<D: Digest> HasSeed for Finalization<Scheme, D> {
    fn seed(&self) -> Seed {
        seed(self.proposal.round, &self.certificate)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use commonware_consensus::{
        simplex::types::Proposal,
        types::{Epoch, View},
    };
    use commonware_cryptography::{Hasher as _, Sha256, Signer as _, ed25519, sha256};
    use commonware_parallel::Sequential;
    use commonware_utils::test_rng;
    use rand::{SeedableRng as _, rngs::StdRng};

    use super::*;
    use crate::subnet::key;

    type Subnet = Vec<Scheme>;

    fn subnet() -> Subnet {
        let mut rng = StdRng::seed_from_u64(7);
        let (committee, shares) = nidkg::deal(4, 3, &mut rng).unwrap();
        let members: Vec<_> = (0..4).map(ed25519::PrivateKey::from_seed).collect();
        let members = Set::from_iter_dedup(members.iter().map(|member| member.public_key()));
        shares
            .iter()
            .map(|share| key::scheme(b"subnet", &members, &committee, Some(share)).unwrap())
            .collect()
    }

    fn proposal(view: u64) -> Proposal<sha256::Digest> {
        let round = Round::new(Epoch::zero(), View::new(view));
        Proposal::new(round, View::new(view - 1), Sha256::hash(&[&view.to_be_bytes()]))
    }

    fn assembled(
        scheme: &Scheme,
        subject: Subject<'_, sha256::Digest>,
        votes: Vec<Attestation<Scheme>>,
    ) -> Result<vrf::Certificate<MinSig>, Verification<Scheme>> {
        let mut rng = test_rng();
        let none: [&Attestation<Scheme>; 0] = [];
        certificate::Scheme::optimistic_assemble(
            scheme,
            &mut rng,
            subject,
            votes,
            none,
            &Sequential,
        )
    }

    fn votes(subnet: &[Scheme], subject: Subject<'_, sha256::Digest>) -> Vec<Attestation<Scheme>> {
        subnet.iter().map(|scheme| certificate::Scheme::sign(scheme, subject).unwrap()).collect()
    }

    #[test]
    fn cached_signatures_do_not_change_votes_or_certificates() {
        let (subnet, fresh) = (subnet(), self::subnet());
        let proposal = proposal(5);
        let notarize = Subject::Notarize { proposal: &proposal };
        let finalize = Subject::Finalize { proposal: &proposal };
        let nullify = Subject::Nullify { round: proposal.round };
        let notarized =
            assembled(&subnet[0], notarize, votes(&subnet[..3], notarize)).ok().unwrap();
        assert!(subnet[0].known.lock().verified.contains_key(&proposal.round));
        for subject in [finalize, nullify] {
            // Signed with and without what was signed before.
            assert_eq!(votes(&subnet, subject), votes(&fresh, subject));
            let certificate =
                assembled(&subnet[0], subject, votes(&subnet[1..], subject)).ok().unwrap();
            let (own, other) = (certificate.get().unwrap(), notarized.get().unwrap());
            assert_eq!(own.seed_signature, other.seed_signature);
            for scheme in [&subnet[0], &fresh[1]] {
                let mut rng = test_rng();
                assert!(scheme.verify_certificate(&mut rng, subject, &certificate, &Sequential));
            }
        }
        let seed = Seed::new(proposal.round, notarized.get().unwrap().seed_signature);
        assert!(subnet[0].is_seed(&seed) && subnet[1].is_seed(&seed));
    }

    #[test]
    fn cached_signatures_accept_nothing_invalid() {
        let subnet = subnet();
        let proposal = proposal(5);
        let notarize = Subject::Notarize { proposal: &proposal };
        let finalize = Subject::Finalize { proposal: &proposal };
        let notarized = assembled(&subnet[0], notarize, votes(&subnet, notarize)).ok().unwrap();
        let certificate = assembled(&subnet[0], finalize, votes(&subnet, finalize)).ok().unwrap();
        let mut rng = test_rng();
        let mut verifies = |subject, signature: &Signature| {
            let certificate = signature.clone().into();
            subnet[0].verify_certificate(&mut rng, subject, &certificate, &Sequential)
        };
        let good = certificate.get().unwrap();
        assert!(verifies(finalize, good));
        assert!(!verifies(notarize, good), "a vote for another step");
        let wrong = Signature { seed_signature: good.vote_signature, ..good.clone() };
        assert!(!verifies(finalize, &wrong), "another seed");
        let wrong = Signature { vote_signature: good.seed_signature, ..good.clone() };
        assert!(!verifies(finalize, &wrong), "no vote");
        let seed = Seed::new(proposal.round, notarized.get().unwrap().vote_signature);
        assert!(!subnet[0].is_seed(&seed) && !subnet[1].is_seed(&seed));

        // A member whose vote is for something else, and one whose share of the seed is wrong.
        let mut votes = votes(&subnet, finalize);
        votes[1].signature = certificate::Scheme::sign(&subnet[1], notarize).unwrap().signature;
        let Verification { verified, invalid } =
            assembled(&subnet[0], finalize, votes.clone()).err().unwrap();
        assert_eq!((verified.len(), invalid), (3, vec![votes[1].signer]));
        let honest = votes[2].signature.get().unwrap().clone();
        votes[2].signature = Signature { seed_signature: honest.vote_signature, ..honest }.into();
        let Verification { invalid, .. } = assembled(&subnet[0], finalize, votes).err().unwrap();
        assert_eq!(invalid.len(), 2, "{invalid:?}");
    }

    #[test]
    fn cached_rounds_are_bounded() {
        let subnet = subnet();
        for view in 1..20 {
            let proposal = proposal(view);
            let subject = Subject::Nullify { round: proposal.round };
            assembled(&subnet[0], subject, votes(&subnet, subject)).ok().unwrap();
            assert!(subnet[0].known.lock().own.contains_key(&proposal.round));
        }
        let known = subnet[0].known.lock();
        assert_eq!((known.own.len(), known.verified.len()), (ROUNDS_KEPT, ROUNDS_KEPT));
    }
}
