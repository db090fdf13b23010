//! Configuration of an executor, the result of a round, and the errors that stop an executor for
//! good.

use std::sync::Arc;

use ic_principal::Principal;
use limits::Limits;
use state::{
    AwaitedRoots, BlobError, CanisterId, Fault, PayloadError, RequestId, StoreError, SubnetInfo,
    Time,
};
use thiserror::Error;

use crate::placement::Placement;
use crate::retry::ExecutionPoint;

/// Everything about the subnet that execution depends on. But for `threads` the same on every node,
/// or their states differ.
#[derive(Clone, Debug)]
pub struct ExecutorConfig {
    /// Limits of the node; those that decide the outcome of a batch are the same on every node.
    pub limits: Arc<Limits>,
    /// Threads of this machine that execute messages, usually `execution.threads`. They do not
    /// affect the result of a batch.
    pub threads: u64,
    /// The subnet: its id, key, canister ranges and nodes.
    pub subnet: SubnetInfo,
    /// Public key of the subnet in DER, which `ic0.root_key_copy` returns.
    pub root_key_der: Vec<u8>,
    /// Number of the first canister whose id is not chosen by its creator. Ids are eight bytes of
    /// number, then `01 01`; they must be in the subnet's ranges.
    pub first_canister: u64,
    /// Whether the provisional methods (`provisional_*`, which create canisters and mint cycles)
    /// are enabled.
    pub provisional: bool,
    /// Whether canisters may make HTTPS outcalls (`http_request`).
    pub outcalls: bool,
    /// Principals with the rights of subnet admins (stop, start, uninstall, delete and inspect any
    /// canister).
    pub subnet_admins: Vec<Principal>,
    /// Which of several subnets a canister belongs to, where the state is that of several; a node
    /// has one.
    pub placement: Option<Arc<dyn Placement>>,
}

impl ExecutorConfig {
    /// Id of the canister of this number.
    pub fn canister_id(number: u64) -> CanisterId {
        let mut bytes = [1; 10];
        bytes[..8].copy_from_slice(&number.to_be_bytes());
        Principal::from_slice(&bytes)
    }

    /// Number of a canister whose id has the form that this subnet gives.
    pub fn canister_number(id: &CanisterId) -> Option<u64> {
        match id.as_slice() {
            [number @ .., 1, 1] => Some(u64::from_be_bytes(number.try_into().ok()?)),
            _ => None,
        }
    }

    /// Whether the subnet hosts this id.
    pub fn in_range(&self, id: &CanisterId) -> bool {
        self.subnet.canister_ranges.iter().any(|(first, last)| first <= id && id <= last)
    }
}

/// Result of a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoundResult {
    /// State root after it; what the subnet signs.
    pub root: [u8; 32],
    /// Users' calls that were answered.
    pub finished: Vec<RequestId>,
    /// Messages that were rejected because an operator decided so, to be recorded with the batch.
    pub verdicts: Vec<Fault>,
    /// Instructions that canister code used in the round, System API work included.
    pub instructions: u64,
    /// Canister messages executed in the round, plus management calls served.
    pub messages: u64,
    /// Work is left: the next round should come at once.
    pub more: bool,
    /// When a timer (or a deadline) is due next.
    pub next_timer: Option<Time>,
    /// States whose signatures answer calls that wait for randomness.
    pub awaited: AwaitedRoots,
    /// Some canister has a heartbeat: rounds are wanted even when nothing else happens.
    pub every_round: bool,
    /// The state after it is given a manifest: a checkpoint must be made before the next batch.
    pub manifest: bool,
}

/// The node cannot continue to execute. The state on disk is the one of the last checkpoint, and a
/// restart repeats later batches.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "the texts say what they are")]
pub enum FatalError {
    #[error(
        "batch {found} came where {expected} was due; the block log and the checkpoint do not fit \
         together"
    )]
    Height { found: u64, expected: u64 },
    #[error("the batch of height {height} has time {found} ns, not after {previous} ns")]
    Time { height: u64, found: u64, previous: u64 },
    #[error("canister memory: {0}")]
    Pages(#[from] pages::PagesError),
    #[error("metadata store: {0}")]
    Store(#[from] StoreError),
    #[error("module store: {0}")]
    Blobs(#[from] BlobError),
    #[error(transparent)]
    Payload(#[from] PayloadError),
    #[error("the state's heap finds no room on disk: {0}")]
    StateHeap(std::io::Error),
    #[error("ingress history: {0}")]
    History(#[from] state::HistoryError),
    #[error(
        "the stored record of {what} cannot be read ({reason}); see docs/operating.md, \"When the \
         disk was damaged\""
    )]
    Record { what: String, reason: String },
    #[error(
        "module {hash} of canister {canister_id} cannot be prepared: {reason}; see \
         docs/operating.md, \"When the disk was damaged\""
    )]
    Module { hash: String, canister_id: CanisterId, reason: String },
    #[error("the content of a stable memory cannot be taken: {0}")]
    StableContent(String),
    #[error("a certificate for height {found} came where {expected} was due")]
    CertificateHeight { found: u64, expected: u64 },
    #[error(
        "the state of height {0} must be checkpointed for its manifest before another batch is \
         executed"
    )]
    ManifestOwed(u64),
    #[error(transparent)]
    Manifest(#[from] statesync::ManifestError),
    /// The node is closing while the round waits for this machine. Not a defect: the round is
    /// executed again at the next start.
    #[error("the node is closing; the round is executed again at the next start")]
    Closing,
    /// A defect of the node that a message triggered.
    #[error(
        "{place} made the node panic ({what}); this is a defect of the node. Report it. To go on without this message, on every node of the subnet: thimble \
         reject --data-dir DIRECTORY {}", place.arguments()
    )]
    Panicked { place: ExecutionPoint, what: String },
    /// A defect of the node that no single message can be named for.
    #[error(
        "the batch of height {height} made the node panic ({what}); this is a defect of the node: \
         report it, with the block log"
    )]
    Defect { height: u64, what: String },
    #[error("execution threads: {0}")]
    Threads(String),
}

impl FatalError {
    /// Whether the same call may succeed later in the same process, because what is in its way can
    /// be freed or mended from outside. Everything else ends the node.
    pub fn can_heal(&self) -> bool {
        match self {
            Self::Pages(error) => error.can_heal(),
            Self::Store(error) => error.can_heal(),
            Self::Blobs(error) => error.can_heal(),
            Self::Payload(error) => error.can_heal(),
            Self::Manifest(error) => error.can_heal(),
            Self::StateHeap(_) => true,
            _ => false,
        }
    }
}

/// Runs `step` and catches a panic, as its text. State that the step modified must not be used
/// again.
pub(crate) fn unwound<T>(step: impl FnOnce() -> T) -> Result<T, String> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(step)).map_err(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied());
        text.unwrap_or("without a text").into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_numbers_belong_together() {
        let id = ExecutorConfig::canister_id(7);
        assert_eq!(ExecutorConfig::canister_number(&id), Some(7));
        assert_eq!(ExecutorConfig::canister_number(&Principal::anonymous()), None);
        assert_eq!(ExecutorConfig::canister_id(0).to_text(), "rwlgt-iiaaa-aaaaa-aaaaa-cai");
    }
}
