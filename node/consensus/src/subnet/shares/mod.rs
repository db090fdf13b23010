//! State roots: every node signs the result of execution, sends its share to the others, and
//! combines the shares it receives.
//!
//! A node that misses shares (it was cut off, or all nodes stopped at once) repeats its own for the
//! newest height until that is certified, and any node that has the certificate answers with it.
//! Certificates need not come for every height: a later one covers what earlier states hold. Only
//! states that execution waits for are signed until their own signature is there ([`awaited`]).

mod actor;
mod awaited;
mod config;
mod ingress;

#[cfg(test)]
pub(super) use self::ingress::samples;
pub(super) use self::{
    actor::Roots,
    config::Config,
    ingress::{ExecutionResult, Message},
};
