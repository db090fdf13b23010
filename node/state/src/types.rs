//! The small words every floor of the node shares: heights, times, request ids, rejects, ingress
//! messages.

use std::fmt;

use bytes::Bytes;
use ic_principal::Principal;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::{AgreedRound, NodeInfo, OutcallAnswer, QueryReport, Randomness};

/// Number of a block, of the batch made from it, and of the state after it. Genesis is 0; the first
/// batch is 1.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Height(pub u64);

/// Nanoseconds since 1970-01-01, as agreed in blocks. Never a local clock inside execution.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Time(pub u64);

/// A canister's principal.
pub type CanisterId = Principal;

/// Amount of cycles.
pub type Cycles = u128;

/// Representation-independent hash of a call's content (interface specification, "Request ids").
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RequestId(pub [u8; 32]);

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// SHA-256 of a canister module exactly as it was uploaded (gzip included): what `canister_status`
/// calls the module hash.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ModuleHash(pub [u8; 32]);

impl fmt::Debug for ModuleHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Reject codes of the interface specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[repr(u32)]
pub enum RejectCode {
    /// Fatal system error, retry unlikely to be useful.
    SysFatal = 1,
    /// Transient system error, retry might be possible.
    SysTransient = 2,
    /// The destination does not exist.
    DestinationInvalid = 3,
    /// Explicit reject by the canister.
    CanisterReject = 4,
    /// Canister error: trap, no response, out of cycles.
    CanisterError = 5,
    /// Response unknown; the system stopped waiting for it.
    SysUnknown = 6,
}

/// A reject as a client or a calling canister sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reject {
    /// The specification's code.
    pub code: RejectCode,
    /// For a person; names the limit and its value where one was hit.
    pub message: String,
    /// The specification's error code, `IC0nnn`.
    pub error_code: ErrorCode,
}

/// `IC0nnn` of the specification, as its number (`ErrorCode(536)` is shown as `IC0536`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ErrorCode(pub u16);

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IC{:04}", self.0)
    }
}

/// Signer of the `sender_info` of a call (interface specification, "Request: Call").
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SenderInfo {
    /// Passed to the canister.
    #[serde(with = "serde_bytes")]
    pub info: Vec<u8>,
    /// The signing canister.
    pub signer: Principal,
}

/// A call whose envelope was authenticated by the gateway: what blocks carry and execution inducts.
/// `request_id` was recomputed from the content, never taken from outside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ingress {
    /// Identity of the request.
    pub request_id: RequestId,
    /// Signer of the call, or the anonymous principal.
    pub sender: Principal,
    /// Callee; `aaaaa-aa` is the management canister.
    pub canister_id: Principal,
    /// From the URL, checked against the content by the gateway.
    pub effective_canister_id: Principal,
    /// Name of the method called.
    pub method_name: String,
    /// Argument, not decoded.
    #[serde(with = "serde_bytes")]
    pub arg: Vec<u8>,
    /// After this the call must not start.
    pub ingress_expiry: Time,
    /// Verified sender information, if the call carried any.
    pub sender_info: Option<SenderInfo>,
}

impl Ingress {
    /// Bytes the message is accounted with in pools, blocks and histories.
    pub fn accounted_bytes(&self) -> u64 {
        let info = self.sender_info.as_ref().map_or(0, |info| info.info.len() + 30);
        (self.arg.len() + self.method_name.len() + info + 256) as u64
    }
}

/// A query whose sender was authenticated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryRequest {
    /// Sender that was authenticated; the anonymous principal for an unsigned query.
    pub sender: Principal,
    /// Callee; `aaaaa-aa` is the management canister.
    pub canister_id: Principal,
    /// Name of a query or composite query method, or of a query of the management canister.
    pub method_name: String,
    /// Argument of the method, as the sender encoded it.
    pub arg: Vec<u8>,
    /// Verified sender information, if the query carried any.
    pub sender_info: Option<SenderInfo>,
}

/// Names a call in blocks: commits to what is asked and to where it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct IngressId(pub [u8; 32]);

impl IngressId {
    /// The sender signed the request id; the effective canister id comes from the URL.
    pub fn new(request_id: &RequestId, effective_canister_id: &Principal) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"\x0fthimble-ingress");
        hash.update(request_id.0);
        hash.update(effective_canister_id.as_slice());
        Self(hash.finalize().into())
    }
}

/// A call as its sender signed it. The ingress pool, the wire and the block log hold it in this
/// form: it exists once, and any receiver can verify it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedIngress {
    /// From the URL.
    pub effective_canister_id: Principal,
    /// The envelope's CBOR as it came. Copies share their bytes.
    pub envelope: Bytes,
}

impl fmt::Debug for SignedIngress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SignedIngress({}, {} bytes)", self.effective_canister_id, self.envelope.len())
    }
}

/// Bytes a call is accounted with in pools and blocks beyond those of its envelope.
pub const INGRESS_OVERHEAD_BYTES: u64 = 128;

impl SignedIngress {
    /// Bytes the message is accounted with in pools and blocks.
    pub fn accounted_bytes(&self) -> u64 {
        self.envelope.len() as u64 + INGRESS_OVERHEAD_BYTES
    }

    /// SHA-256 over all of it. Two envelopes of one request id have different digests: a block
    /// names a call by its digest, so that there is one sequence of bytes to judge and execute.
    pub fn digest(&self) -> [u8; 32] {
        let effective = self.effective_canister_id.as_slice();
        let mut hash = Sha256::new();
        hash.update(b"\x14thimble-ingress-copy");
        hash.update([effective.len() as u8]);
        hash.update(effective);
        hash.update(&self.envelope);
        hash.finalize().into()
    }
}

/// Block times at which a signed call may be in a block, both ends included: not before its expiry
/// came within the ingress window, and until it, or the first of its delegations, expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Validity {
    /// First block time at which the call is valid.
    pub from: Time,
    /// Last block time at which the call is valid.
    pub until: Time,
}

impl Validity {
    /// Whether a block of this time may hold the call.
    pub fn holds(&self, time: Time) -> bool {
        self.from <= time && time <= self.until
    }
}

/// Valid from the beginning.
impl From<Time> for Validity {
    fn from(until: Time) -> Self {
        Self { from: Time(0), until }
    }
}

/// Input of execution from consensus: everything a round may depend on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// Height of the block it came from.
    pub height: Height,
    /// Agreed time; strictly greater than the batch before it.
    pub time: Time,
    /// Agreed randomness for calls of earlier rounds.
    pub randomness: Randomness,
    /// In the order they are to be inducted.
    pub ingress: Vec<Ingress>,
    /// Results of requests to external servers.
    pub outcalls: Vec<OutcallAnswer>,
    /// The committee of the subnet's key from here on, if the block changed it.
    pub key: Option<SubnetKey>,
    /// The round that the block was made in; `None` for a node alone.
    pub agreed: Option<AgreedRound>,
    /// Queries that the block's maker counted, in few blocks.
    pub queries: Option<Box<QueryReport>>,
}

/// The committee that holds the subnet's key. Kept with the state for nodes that fetch the state;
/// execution reads the nodes only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubnetKey {
    /// The key's state in consensus: its committee, and the progress of the next one.
    #[serde(with = "serde_bytes")]
    pub summary: Vec<u8>,
    /// The block that the rounds of this epoch begin from.
    pub boundary: [u8; 32],
    /// Keys that sign votes of this epoch and of the one before, as consensus encodes them.
    #[serde(with = "serde_bytes")]
    pub voters: Vec<u8>,
    /// The subnet's nodes.
    pub nodes: Vec<NodeInfo>,
}

impl SubnetKey {
    /// Hash of all of it; the nodes follow from the summary.
    pub fn digest(&self) -> [u8; 32] {
        Self::digest_of(&self.voters, &self.rest_digest())
    }

    /// Hash of all but the voters: with it and them, [`SubnetKey::digest_of`] shows the voters.
    pub fn rest_digest(&self) -> [u8; 32] {
        let mut hasher = Sha256::new();
        hasher.update(b"\x16thimble-subnet-summary");
        hasher.update(self.boundary);
        hasher.update(&self.summary);
        hasher.finalize().into()
    }

    /// [`SubnetKey::digest`] of its two parts.
    pub fn digest_of(voters: &[u8], rest: &[u8; 32]) -> [u8; 32] {
        let mut hasher = Sha256::new();
        hasher.update(b"\x12thimble-subnet-key");
        hasher.update(rest);
        hasher.update(voters);
        hasher.finalize().into()
    }
}

/// A message that operators decided to reject, because it ends every worker that runs it, or the
/// node itself. Recorded with the batch, so that executing the batch again gives the same state.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Fault {
    /// The canister that takes the message up.
    pub canister_id: CanisterId,
    /// Index of the message among those that this canister executes in the round, from 0; for the
    /// management canister, among the calls that it serves.
    pub ordinal: u64,
}
