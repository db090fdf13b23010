//! Proofs of a rate limit (RLN): messages of a network that demands them are verified before they
//! are relayed, stored or pushed.
//!
//! ```text
//!  message, its arrival --> checks without a proof: epoch, application, root   validator
//!                                   | one of the pending places
//!                           queue to one thread                                worker
//!                                   | as many as wait, in one equation
//!                 hash of the signal | points | Groth16                        signal, groth16
//!                                   |
//!                           nullifiers of the epoch, on disk                   nullifiers
//!                                   |
//!                 accepted | rejected: its sender is scored | ignored
//! ```
//!
//! A message is rejected, which costs its sender score, only for what every node of the network
//! finds in it: no proof, a proof that is false, another epoch than its timestamp's, a second
//! message under one nullifier. What depends on this node, on its clock, its roots, its memory and
//! disk, makes it ignored.
//!
//! The roots are known from a contract alone: [`contract`] keeps the newest ones in [`roots`]; it
//! reads them by [`rpc`] from the servers that the operator names. [`keystore`] reads the
//! operator's own membership from the file of the reference implementation.
//!
//! Bounds: [`relay_limits::RlnLimits`], [`relay_limits::RootsLimits`]. It must never know
//! connections, streams, and how a message is stored.
//!
//! Source: vacp2p/rfc-index 17 (WAKU2-RLN-RELAY), 32 (RLN); logos-delivery 0.38 for byte orders,
//! the signal and the external nullifier.

pub(crate) mod contract;
mod groth16;
mod hash;
pub(crate) mod keystore;
mod nullifiers;
#[cfg(test)]
mod prover;
mod refusal;
pub(crate) mod roots;
mod roots_file;
pub(crate) mod rpc;
#[cfg(test)]
mod samples;
mod signal;
pub(crate) mod status;
#[cfg(test)]
mod tests;
mod validator;
mod worker;

pub(crate) use refusal::{Effect, ProofRefusal};
pub(crate) use validator::{Pending, Validator};

/// Seconds of an epoch of The Waku Network.
pub(crate) const EPOCH_SECONDS: u64 = 600;
