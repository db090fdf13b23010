//! What is shown of the roots: on `/status.json`, `/health` and `/metrics`.

use serde::{Deserialize, Serialize};

use super::keystore::Membership;

/// How far the roots can be relied on. From `Stale` on messages of members that registered lately
/// cannot be checked; those of older members can.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Step {
    /// A server confirmed them within `roots.stale_seconds`.
    Current,
    /// Servers report different roots, and none has a majority; or one answers alone, with new
    /// ones.
    Disagreeing,
    /// No server answered for longer than that.
    Stale,
    /// No server answered since the start: they are those of the last run.
    Restored,
    /// None is known: no message can be checked.
    None,
}

impl Step {
    /// In metrics; larger is worse.
    pub(crate) fn number(self) -> u64 {
        self as u64
    }
}

/// The roots of the membership tree, and the servers they come from.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RootsReport {
    pub(crate) step: Step,
    /// Why they are not current; empty when they are.
    pub(crate) detail: String,
    pub(crate) contract: String,
    /// Roots that are valid.
    pub(crate) roots: usize,
    pub(crate) refreshes: u64,
    /// Since a server last confirmed them.
    pub(crate) age_seconds: Option<f64>,
    pub(crate) servers: Vec<ServerReport>,
    /// This operator's own, if a keystore is configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) membership: Option<Membership>,
}

/// One RPC server, named without the secrets of its URL.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ServerReport {
    pub(crate) server: String,
    pub(crate) answers: u64,
    pub(crate) failures: u64,
    /// Most others report other roots.
    pub(crate) disagrees: bool,
    /// Why the last call failed, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}
