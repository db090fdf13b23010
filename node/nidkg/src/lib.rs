//! The subnet's key: made by its nodes without a dealer to trust, used by threshold BLS signatures,
//! reshared to other nodes. Over BLS12-381. docs/nidkg-security.md has assumptions, parameters and
//! departures from the paper (Groth, ePrint 2021/339).
//!
//! A subnet of `n` nodes holds one key that no node knows. Each node owns a share; any `t` valid
//! shares of a signature on the same message combine into the one signature that verifies under the
//! subnet's public key. A subnet of one node is the case `n = t = 1` of the same code.
//!
//! A public key is 96 bytes compressed and 133 bytes as DER, a signature 48 bytes compressed, as
//! the interface specification has them (signatures in G1, public keys in G2, ciphersuite
//! `BLS_SIG_BLS12381G1_XMD:SHA-256_SSWU_RO_NUL_`).
//!
//! # Making a key
//!
//! One node may deal for itself ([`deal`]). Several make their key together, without interaction:
//!
//! 1. Every node has an encryption key pair with a proof of possession ([`generate_key_pair`]). Its
//!    secret key moves forward through [`Epoch`]s, and ciphertexts of an epoch it has left stay
//!    closed to anyone who steals the key.
//! 2. All agree on a [`Session`]: who receives, the threshold, the epoch, and whether the key is
//!    new or that of an older committee.
//! 3. Dealers deal ([`create_dealing`]): each a random polynomial, or one through its share of the
//!    old key; in public its coefficients in G2, encrypted to each receiver its share, in 16 chunks
//!    of 16 bits, and the proofs that the chunks are small and are those shares.
//! 4. All nodes verify ([`verify_dealings`]); a refusal names the dealer and the check.
//! 5. From enough verified dealings all nodes make the same [`Transcript`] ([`create_transcript`]),
//!    which has the public keys of the new committee.
//! 6. Each receiver loads its share from it ([`Transcript::load`]).
//!
//! Heavy steps run in an [`Engine`]. Signing, verification and combination of signatures run on
//! the thread that calls them and never wait for it.
//!
//! Code map: `curve` is arithmetic, all unsafe code is there; `forward` the tree of epochs;
//! `cipher` chunked encryption; `chunking` and `sharing` the two proofs; `fold` their verification
//! as few sums; `dealing` and `transcript` the protocol; `threshold` the signatures, `polynomial` a
//! committee's coefficients.
//!
//! # Bounds
//!
//! [`RECEIVERS_MAX`] receivers and dealers; a decoder allocates nothing before the bytes for it are
//! there; tables stay within [`EngineConfig::tables`].
//!
//! This crate does no I/O (but for lowering its threads' priority), has no clock and takes its
//! randomness from the caller. Secrets are wiped when dropped and never printed.

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
mod polynomial;
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
    BlsError, Committee, NodeIndex, PublicKey, SecretShare, Signature, SignatureShare, combine,
    deal, verify, verify_all,
};
pub use transcript::{Transcript, TranscriptError, create_transcript, create_transcript_from_all};

/// Domain separator of a certificate's root hash: one length byte, then the text.
pub const STATE_ROOT_DOMAIN: &[u8] = b"\x0Dic-state-root";

/// The message a subnet signs to certify a state: domain separator, then the root hash.
pub fn state_root_message(root: &[u8; 32]) -> Vec<u8> {
    [STATE_ROOT_DOMAIN, root].concat()
}
