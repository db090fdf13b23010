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
//! Bounds: [`relay_limits::RlnLimits`]. It must never know connections, streams, and how a message
//! is stored.
//!
//! Source: vacp2p/rfc-index 17 (WAKU2-RLN-RELAY), 32 (RLN); logos-delivery 0.38 for byte orders,
//! the signal and the external nullifier.

mod groth16;
mod hash;
mod nullifiers;
#[cfg(test)]
mod prover;
mod refusal;
pub(crate) mod roots;
#[cfg(test)]
mod samples;
mod signal;
#[cfg(test)]
mod tests;
mod validator;
mod worker;

pub(crate) use refusal::{Effect, ProofRefusal};
pub(crate) use roots::{Roots, RootsState};
pub(crate) use validator::{Pending, Validator};
