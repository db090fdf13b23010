//! Proofs of a rate limit (RLN): what is known of the membership contract, and who this operator is
//! in it.
//!
//! A message of a network with RLN carries a zero-knowledge proof against the root of a Merkle tree
//! of all members. The roots are known from a contract alone: [`contract`] keeps the newest ones in
//! [`roots`], which it reads by [`rpc`] from the servers that the operator names. [`keystore`]
//! reads the operator's own membership from the file of the reference implementation.
//!
//! It must never know connections, streams and how a message is stored.

pub(crate) mod contract;
pub(crate) mod keystore;
pub(crate) mod roots;
mod roots_file;
pub(crate) mod rpc;
pub(crate) mod status;
