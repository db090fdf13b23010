//! Keys of instances: made of a seed, because what they protect is a test.
//!
//! The same subnets have the same keys and ids in every instance, so that what a test wrote down of
//! one run holds in the next.

use anyhow::{Context, Result};
use ed25519_dalek::SigningKey;
use ic_principal::Principal;
use nidkg::{Committee, SecretShare, state_root_message};
use rand_chacha::{ChaCha20Rng, rand_core::SeedableRng};
use sha2::{Digest, Sha256};
use state::NodeInfo;

/// A seed of 32 bytes: hash of a purpose and what it is for.
pub(crate) fn seed(purpose: &str, of: &[&[u8]]) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update([purpose.len() as u8]);
    hash.update(purpose);
    for part in of {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

fn node_key(subnet_seed: &[u8; 32], number: u64) -> SigningKey {
    let number = number.to_be_bytes();
    // The first has the key that it had when it was alone.
    let of: &[&[u8]] = if number == [0; 8] { &[subnet_seed] } else { &[subnet_seed, &number] };
    SigningKey::from_bytes(&seed("thimble-pocket-node", of))
}

/// A node of a subnet by its number, as the state names it. The first one signs.
pub(crate) fn node_info(subnet_seed: &[u8; 32], number: u64) -> NodeInfo {
    let key = node_key(subnet_seed, number).verifying_key();
    NodeInfo { node_id: genesis::node_id(&key), public_key_der: genesis::node_key_der(&key) }
}

/// Signing keys of a subnet: one share, of its first node.
pub(crate) struct SubnetKeys {
    committee: Committee,
    share: SecretShare,
    pub(crate) node: SigningKey,
}

impl SubnetKeys {
    pub(crate) fn from_seed(subnet_seed: &[u8; 32]) -> Result<Self> {
        let mut random = ChaCha20Rng::from_seed(seed("thimble-pocket-subnet", &[subnet_seed]));
        let (committee, mut shares) = nidkg::deal(1, 1, &mut random)?;
        let share = shares.pop().context("a dealing for one node has one share")?;
        let node = node_key(subnet_seed, 0);
        Ok(Self { committee, share, node })
    }

    pub(crate) fn public_key_der(&self) -> Vec<u8> {
        nidkg::public_key_to_der(&self.committee.public_key)
    }

    /// The subnet is known by the hash of its key.
    pub(crate) fn subnet_id(&self) -> Principal {
        Principal::self_authenticating(self.public_key_der())
    }

    /// The node is known by the hash of its key.
    pub(crate) fn node_id(&self) -> Principal {
        genesis::node_id(&self.node.verifying_key())
    }

    pub(crate) fn sign(&self, root: &[u8; 32]) -> Result<Vec<u8>> {
        let share = self.share.sign(&state_root_message(root));
        let shares = [(self.share.index, share)].into();
        Ok(nidkg::combine(&self.committee, &shares)?.0.to_vec())
    }
}
