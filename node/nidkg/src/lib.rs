//! Threshold BLS signatures of the subnet key, over BLS12-381.
//!
//! A subnet of `n` nodes holds one key that no node knows. Each node owns a share; any `t` valid shares of a signature on the same message combine into
//! the one signature that verifies under the subnet's public key, and clients see nothing but that signature. A subnet of one node is the case
//! `n = t = 1` of the same code: deal, sign a share, verify it, combine, verify.
//!
//! Shape of the values, as the interface specification has them ("Certificate": signatures in G1, public keys in G2, ciphersuite
//! `BLS_SIG_BLS12381G1_XMD:SHA-256_SSWU_RO_NUL_`): a public key is 96 bytes compressed and 133 bytes as DER, a signature 48 bytes compressed.
//!
//! The key is dealt by whoever calls [`deal`]: one node may deal for itself. Several nodes must not trust a dealer; for them the dealing is replaced by a
//! non-interactive distributed one, and everything below it (shares, combination, verification) stays.
//!
//! This crate does no I/O, has no clock and takes its randomness from the caller. Secrets are wiped when dropped and never printed.

mod chunking;
mod cipher;
mod curve;
mod dealing;
mod der;
mod encoding;
mod engine;
mod fold;
mod forward;
mod logarithm;
mod oracle;
mod parameters;
mod session;
mod sharing;
#[cfg(test)]
mod tampering;
mod threshold;
mod transcript;

pub use dealing::{
    Check, Dealing, DealingError, VerifiedDealing, create_dealing, verify_dealing, verify_dealings,
};
pub use der::{DER_PREFIX, public_key_from_der, public_key_to_der};
pub use encoding::DecodeError;
pub use engine::{Engine, EngineConfig, EngineError, TABLE_BYTES_MAX, share_of_cores};
pub use forward::{EncryptionPublicKey, EncryptionSecretKey, Epoch, KeyError, generate_key_pair};
pub use parameters::RECEIVERS_MAX;
pub use session::{Session, SessionError, Source};
pub use threshold::{
    BlsError, Committee, NodeIndex, PublicKey, SecretShare, Signature, SignatureShare, combine, deal, verify,
};
pub use transcript::{Transcript, TranscriptError, create_transcript, create_transcript_from_all};

/// Domain separator of a certificate's root hash: one length byte, then the text.
pub const STATE_ROOT_DOMAIN: &[u8] = b"\x0Dic-state-root";

/// The message a subnet signs to certify a state: domain separator, then the root hash.
pub fn state_root_message(root: &[u8; 32]) -> Vec<u8> {
    [STATE_ROOT_DOMAIN, root].concat()
}
