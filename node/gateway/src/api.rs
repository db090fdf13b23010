//! What the gateway needs of the node behind it.
//!
//! The binary implements [`Node`] over consensus and execution. The gateway calls it from its
//! blocking threads ([`Node::inspect`], [`Node::query`]) and from its async threads (everything
//! else, which must therefore return at once).

use std::sync::Arc;

use ic_principal::Principal;
use state::{
    CanisterId, CertifiedState, ErrorCode, Height, Ingress, QueryRequest, Reject, RequestId,
    SignedIngress, Status, Time, Validity,
};

use crate::report::Report;

/// Kind of a request, as far as [`Node::check_load`] needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// An update call.
    Call,
    /// A query call.
    Query,
}

/// Why the ingress pool did not take a message. The text is shown to the client and names the limit
/// and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A pool is full: 503, with this number of seconds until a retry.
    Full {
        /// Names the pool, its limit and its value.
        message: String,
        /// For the `Retry-After` header.
        retry_after_seconds: u64,
    },
    /// The message can never be accepted (too large, expired): 400.
    Invalid {
        /// Why the message can never be accepted.
        message: String,
    },
    /// The node takes no updates at the moment (disk full, shutting down): 503.
    Unavailable {
        /// Why the node takes no updates.
        message: String,
    },
}

/// Why the node does not say where its memory went. The text is shown to who asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeapProfileError {
    /// It was not started to know: 404.
    Off(String),
    /// It just said so, or does: 503.
    Busy(String),
    /// It could not: 500.
    Failed(String),
}

/// Whether the node is able to serve, for `/health` and the status endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// 200 or 503 on `/health`.
    pub healthy: bool,
    /// One word or phrase for the operator, on `/health`: `healthy`, `starting`, `recovering`,
    /// `disk full` ...
    pub status: String,
    /// The same for clients, as `replica_health_status`: without paths and commands.
    pub client_status: String,
    /// Newest height whose state is certified.
    pub certified_height: Height,
}

impl Health {
    /// A node that serves; with a fault, why it does not, for the operator and for clients.
    pub fn new(fault: Option<(String, String)>, certified_height: Height) -> Self {
        let healthy = fault.is_none();
        let (status, client_status) =
            fault.unwrap_or_else(|| ("healthy".to_owned(), "healthy".to_owned()));
        Self { healthy, status, client_status, certified_height }
    }
}

/// Facts of an update call for access rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestFacts {
    /// Who sent it.
    pub sender: Principal,
    /// Effective canister id (or subnet id) it was sent to.
    pub effective_canister_id: Principal,
    /// Whom it called.
    pub canister_id: CanisterId,
    /// Whether its status is replied, rejected or done.
    pub terminal: bool,
}

/// Outcome of an update call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Answered with these bytes.
    Replied(Vec<u8>),
    /// Rejected.
    Rejected(Reject),
    /// Answered, and the answer was dropped.
    Done,
}

/// A custom section of a canister's module, as far as it is public.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PublicMetadata {
    /// There is none of that name.
    Absent,
    /// There is one, and its content is private.
    Private,
    /// Its content.
    Public(Vec<u8>),
}

/// The newest certified state.
pub trait CertifiedView: Send + Sync {
    /// `/time` of the certificates.
    fn time(&self) -> Time;
    /// A CBOR certificate that reveals everything below the paths, or proves absence; `/time`
    /// always.
    fn certificate(&self, paths: &[Vec<Vec<u8>>]) -> Vec<u8>;
    /// The same behind what `head` returns, which is given the bytes of the certificate and leaves
    /// room for them.
    fn certificate_behind(
        &self,
        paths: &[Vec<Vec<u8>>],
        head: &dyn Fn(usize) -> Vec<u8>,
    ) -> Vec<u8> {
        let certificate = self.certificate(paths);
        let mut bytes = head(certificate.len());
        bytes.extend_from_slice(&certificate);
        bytes
    }
    /// Facts of an update call, if it is known.
    fn request(&self, id: &RequestId) -> Option<RequestFacts>;
    /// Whether `sender` may read the custom section `name`: anyone may unless it exists and is
    /// private, then controllers may.
    fn may_read_metadata(&self, canister_id: &CanisterId, name: &str, sender: &Principal) -> bool;
    /// Outcome of an update call; `None` while it is not answered.
    fn outcome(&self, id: &RequestId) -> Option<Outcome>;
    /// The custom section `name` of a canister's module.
    fn public_metadata(&self, canister_id: &CanisterId, name: &str) -> PublicMetadata;
}

impl CertifiedView for CertifiedState {
    fn time(&self) -> Time {
        CertifiedState::time(self)
    }

    fn certificate(&self, paths: &[Vec<Vec<u8>>]) -> Vec<u8> {
        CertifiedState::certificate(self, paths)
    }

    fn certificate_behind(
        &self,
        paths: &[Vec<Vec<u8>>],
        head: &dyn Fn(usize) -> Vec<u8>,
    ) -> Vec<u8> {
        CertifiedState::certificate_behind(self, paths, head)
    }

    fn request(&self, id: &RequestId) -> Option<RequestFacts> {
        CertifiedState::request(self, id).map(|entry| RequestFacts {
            sender: entry.sender,
            effective_canister_id: entry.effective_canister_id,
            canister_id: if entry.to_management {
                CanisterId::management_canister()
            } else {
                entry.effective_canister_id
            },
            terminal: entry.status.is_terminal(),
        })
    }

    fn may_read_metadata(&self, canister_id: &CanisterId, name: &str, sender: &Principal) -> bool {
        let Some(canister) = self.canister(canister_id) else { return true };
        canister.metadata_section(name).is_none_or(|section| section.public)
            || canister.is_controller(sender)
    }

    fn outcome(&self, id: &RequestId) -> Option<Outcome> {
        match &CertifiedState::request(self, id)?.status {
            Status::Replied(reply) => Some(Outcome::Replied(reply.clone())),
            Status::Rejected(reject) => Some(Outcome::Rejected(reject.clone())),
            Status::Done => Some(Outcome::Done),
            Status::Received | Status::Processing => None,
        }
    }

    fn public_metadata(&self, canister_id: &CanisterId, name: &str) -> PublicMetadata {
        match CertifiedState::metadata(self, canister_id, name) {
            None => PublicMetadata::Absent,
            Some(section) if section.public => PublicMetadata::Public(section.content.clone()),
            Some(_) => PublicMetadata::Private,
        }
    }
}

/// Error code of a query or a check of a call that waited for a query worker in vain: its client is
/// answered 429 or 503, to come back. No canister can cause it.
pub const NO_QUERY_WORKER: ErrorCode = ErrorCode(211);
/// Error code of a query that a limit on time ended.
pub const QUERY_OVERDUE: ErrorCode = ErrorCode(528);

/// The node behind the gateway.
pub trait Node: Send + Sync + 'static {
    /// Whether a request of this kind is taken at the moment, asked before its body is read. Must
    /// not block.
    fn check_load(&self, kind: RequestKind) -> Result<(), Refusal> {
        let _ = kind;
        Ok(())
    }
    /// Puts an authenticated call into the ingress pool, unless it is there or in the state
    /// already; `signed` is the same in canonical form, `validity` when it may be in a block. Must
    /// not block.
    fn submit(
        &self,
        ingress: Ingress,
        signed: SignedIngress,
        validity: Validity,
    ) -> Result<(), Refusal>;
    /// The non-replicated check of a call before it is submitted. May block.
    fn inspect(&self, ingress: &Ingress) -> Result<(), Reject>;
    /// The outcome of [`Self::inspect`] where no canister code has to run for it. `None` where it
    /// has to, or the node does not distinguish the two. Must not block.
    fn inspect_at_once(&self, ingress: &Ingress) -> Option<Result<(), Reject>> {
        let _ = ingress;
        None
    }
    /// The reply to a query, of at most `bytes_max` bytes, if the node has it from an earlier query
    /// and the state that it depends on is the same. Must not block.
    fn kept_reply(&self, query: &QueryRequest, bytes_max: usize) -> Option<Arc<[u8]>> {
        let _ = (query, bytes_max);
        None
    }
    /// Runs a query on the newest certified state. May block.
    fn query(&self, query: QueryRequest) -> Result<Vec<u8>, Reject>;
    /// The newest certified state; `None` until there is one.
    fn latest(&self) -> Option<Arc<dyn CertifiedView>>;
    /// This node's clock, for expiries and the timestamps of query signatures.
    fn now(&self) -> Time;
    /// The time by which calls are judged: that of the next block, where it is not the clock's.
    fn block_time(&self) -> Time {
        self.now()
    }
    /// Why calls with a valid expiry may be refused because of this node's clock, as clients read
    /// it.
    fn clock_fault(&self) -> Option<String> {
        None
    }
    /// Whether the node can serve.
    fn health(&self) -> Health;
    /// Whether the canister id is in a range of this subnet, whether or not such a canister exists.
    fn hosts(&self, canister_id: &CanisterId) -> bool;
    /// Content of `/status.json`. May block.
    fn report(&self) -> Report;
    /// Content of `/debug/heap`: memory by allocation site, compressed, in bounded memory. May
    /// block.
    fn heap_profile(&self) -> Result<Vec<u8>, HeapProfileError> {
        Err(HeapProfileError::Off("this node does not sample its allocations".to_owned()))
    }
}
