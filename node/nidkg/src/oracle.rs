//! The random oracle of the proofs: SHA-256 over labelled, length-prefixed fields under a domain,
//! and streams expanded from its output.
//!
//! Every field is preceded by its label and both lengths, so two different sequences of fields are
//! two different byte strings.

use rand::RngCore;
use rand_chacha::{ChaCha20Rng, rand_core::SeedableRng};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::curve::{G1Affine, G2Affine, Scalar};

/// Collects the inputs of a challenge.
#[derive(Clone)]
pub(crate) struct Oracle(Sha256);

impl Oracle {
    /// `domain` names the use; its version changes when the fields do.
    pub(crate) fn new(domain: &str) -> Self {
        Self(Sha256::new()).bytes("domain", domain.as_bytes())
    }

    pub(crate) fn bytes(mut self, label: &str, bytes: &[u8]) -> Self {
        self.0.update((label.len() as u64).to_be_bytes());
        self.0.update(label);
        self.0.update((bytes.len() as u64).to_be_bytes());
        self.0.update(bytes);
        self
    }

    pub(crate) fn number(self, label: &str, number: u64) -> Self {
        self.bytes(label, &number.to_be_bytes())
    }

    pub(crate) fn g1(self, label: &str, points: &[G1Affine]) -> Self {
        let bytes: Vec<u8> = points.iter().flat_map(|point| point.to_compressed()).collect();
        self.bytes(label, &bytes)
    }

    pub(crate) fn g2(self, label: &str, points: &[G2Affine]) -> Self {
        let bytes: Vec<u8> = points.iter().flat_map(|point| point.to_compressed()).collect();
        self.bytes(label, &bytes)
    }

    pub(crate) fn digest(self) -> [u8; 32] {
        self.0.finalize().into()
    }

    /// As many bytes as wanted: ChaCha20 keyed by the digest.
    pub(crate) fn stream(self) -> ChaCha20Rng {
        ChaCha20Rng::from_seed(self.digest())
    }

    pub(crate) fn scalar(self) -> Scalar {
        *Scalar::random(&mut self.stream())
    }
}

/// A stream of its own for one item of parallel work, drawn in order so that the result does not
/// depend on scheduling.
pub(crate) fn seeded(rng: &mut impl RngCore) -> ChaCha20Rng {
    let mut seed = Zeroizing::new([0; 32]);
    rng.fill_bytes(&mut *seed);
    ChaCha20Rng::from_seed(*seed)
}
