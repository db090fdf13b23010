//! The interface between execution and a worker. One request, one message: everything the System
//! API may return to the canister is in [`SystemContext`], everything the message did is in
//! [`Outcome`]. Nothing here depends on which worker ran it.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Instant;

use ic_principal::Principal;
use pages::{AppendTarget, MemoryLayout, Run};
use serde::{Deserialize, Serialize};
use state::{BlobHash, BlobStore, CanisterId, Cycles, ModuleHash, Reject, SenderInfo, Time};
pub use state::{CustomSection, Global, Hooks, ModuleInfo};
use thiserror::Error;

use crate::{Grant, Priority, Progress, Slice, SlicedName, engine, module};

/// Where execution enters the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Entry {
    /// First instantiation: data segments are written, then `(start)` runs, then `canister_init`,
    /// in one message. The memories handed in are empty.
    Init,
    /// Runs `canister_pre_upgrade` of the old module.
    PreUpgrade,
    /// Like `Init` but `canister_post_upgrade`. Unless `keep_heap`, the heap handed in is empty;
    /// with it (enhanced orthogonal persistence) data segments are not written again.
    PostUpgrade {
        /// `wasm_memory_persistence = keep`.
        keep_heap: bool,
    },
    /// `canister_update <name>`, or, when the module has no such method, `canister_query <name>`
    /// run as an update (changes other than cycles are then dropped).
    Update(String),
    /// `canister_query <name>`, changes are dropped.
    Query(String),
    /// `canister_composite_query <name>`, may call; changes to memory are kept for its callbacks
    /// (see `keep_token`).
    CompositeQuery(String),
    /// A callback: `fun` is an index into table 0, `env` its argument.
    Callback {
        /// Index of the function in table 0.
        fun: u64,
        /// The only argument of the function; its low 32 bits where addresses are 32-bit.
        env: u64,
        /// Whether the call was replied to or rejected.
        kind: CallbackKind,
    },
    /// A cleanup callback after a callback trapped.
    Cleanup {
        /// Index of the function in table 0.
        fun: u64,
        /// The only argument of the function; its low 32 bits where addresses are 32-bit.
        env: u64,
        /// Value of `ic0.msg_reject_code`: the code seen by the callback that trapped, 0 if it was
        /// a reply callback.
        reject_code: u32,
    },
    /// Runs `canister_heartbeat`, at most once per round.
    Heartbeat,
    /// Runs `canister_global_timer`, at most once per round.
    GlobalTimer,
    /// Runs `canister_on_low_wasm_memory`, when less than `wasm_memory_threshold` bytes of heap are
    /// left.
    OnLowWasmMemory,
    /// Runs `canister_inspect_message`; changes are dropped.
    InspectMessage {
        /// Method of the ingress message, which `ic0.msg_method_name_copy` returns.
        method_name: String,
    },
}

impl Entry {
    /// Whether the changes of an execution that ends well are kept for good.
    pub(crate) fn changes_state(&self, replicated: bool) -> bool {
        match self {
            Self::Init | Self::PostUpgrade { .. } | Self::PreUpgrade | Self::Update(_) => true,
            Self::Heartbeat | Self::GlobalTimer | Self::OnLowWasmMemory => true,
            Self::Callback { .. } | Self::Cleanup { .. } => replicated,
            Self::Query(_) | Self::CompositeQuery(_) | Self::InspectMessage { .. } => false,
        }
    }
}

/// Reply or reject callback.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CallbackKind {
    /// `SystemContext::arg` is the reply.
    Reply,
    /// The callee or the system rejected.
    Reject {
        /// Code of the specification.
        code: u32,
        /// Text of the reject, which `ic0.msg_reject_msg_copy` returns.
        message: String,
    },
}

/// The canister's side of running, as `ic0.canister_status` numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u32)]
pub enum RunState {
    /// Takes calls and responses.
    Running = 1,
    /// Takes responses only.
    Stopping = 2,
    /// Takes neither calls nor responses.
    Stopped = 3,
}

/// Cost parameters the System API needs (already scaled to the subnet).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CostTable {
    /// Per call: base fee of sending one request and receiving its response.
    pub call_base: Cycles,
    /// Per byte of request payload (method name and argument).
    pub call_per_byte: Cycles,
    /// Reserved for the largest response, per call (refunded to what was used): bytes x
    /// `call_per_byte`.
    pub response_reservation: Cycles,
    /// Reserved to execute the response callback (refunded to what was used).
    pub callback_execution_reservation: Cycles,
    /// Price of `create_canister`.
    pub create_canister: Cycles,
    /// HTTPS outcall: base, per request byte, per response byte.
    pub http_request: [Cycles; 3],
    /// Threshold ECDSA, Schnorr and vetKD, per signature or key.
    pub signing: [Cycles; 3],
}

impl CostTable {
    /// Amount that a call takes from the balance, reservations included.
    pub(crate) fn call(&self, method_name_bytes: u64, argument_bytes: u64) -> Cycles {
        let payload = Cycles::from(method_name_bytes).saturating_add(argument_bytes.into());
        self.call_base
            .saturating_add(self.call_per_byte.saturating_mul(payload))
            .saturating_add(self.response_reservation)
            .saturating_add(self.callback_execution_reservation)
    }

    /// Price of an outcall (`http_request`) with a request of `request_bytes` and a response of at
    /// most `response_bytes_max`. `ic0.cost_http_request` returns the same amount that is charged.
    pub fn outcall(&self, request_bytes: u64, response_bytes_max: u64) -> Cycles {
        let [base, per_request_byte, per_response_byte] = self.http_request;
        base.saturating_add(per_request_byte.saturating_mul(request_bytes.into()))
            .saturating_add(per_response_byte.saturating_mul(response_bytes_max.into()))
    }
}

/// Everything the System API may return to the canister about this message.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SystemContext {
    /// The running canister, which `ic0.canister_self_copy` returns.
    pub canister_id: CanisterId,
    /// The subnet of the canister, which `ic0.subnet_self_copy` returns.
    pub subnet_id: Principal,
    /// Number of nodes of the subnet, which `ic0.subnet_self_node_count` returns.
    pub subnet_nodes: u32,
    /// Public key of the subnet in DER, which `ic0.root_key_copy` returns.
    #[serde(with = "serde_bytes")]
    pub root_key: Vec<u8>,
    /// Value of `ic0.time`: the time of the batch, or of the certified state for a query.
    pub time: Time,
    /// Version of the canister, which `ic0.canister_version` returns.
    pub canister_version: u64,
    /// Value of `ic0.canister_status`, as a number.
    pub run_state: RunState,
    /// Principals for which `ic0.is_controller` returns 1.
    pub controllers: Vec<Principal>,
    /// Environment variables, ordered by name.
    pub env_vars: Vec<(String, String)>,
    /// Principal that `ic0.msg_caller_copy` returns; `aaaaa-aa` for heartbeats, timers and hooks.
    pub caller: Principal,
    /// Data and signer of `ic0.msg_caller_info_*`; `None` gives empty data and an empty signer.
    pub caller_info: Option<SenderInfo>,
    /// Data of `ic0.msg_arg_data_copy`: the argument of the call, or the reply to a callback.
    #[serde(with = "serde_bytes")]
    pub arg: Vec<u8>,
    /// `ic0.msg_deadline`; 0 without one.
    pub deadline: Time,
    /// Whether the call context was answered before this callback: reply and reject then trap.
    pub already_responded: bool,
    /// Cycles of the canister at the start, execution fees already prepaid.
    pub balance: Cycles,
    /// Cycles below which calls fail and cannot burn.
    pub freezing_threshold: Cycles,
    /// Cycles of the call that the canister may still accept (`ic0.msg_cycles_available`).
    pub cycles_available: Cycles,
    /// Cycles returned with the response, in callbacks (`ic0.msg_cycles_refunded`); 0 elsewhere.
    pub cycles_refunded: Cycles,
    /// Current global timer; 0 is off.
    pub global_timer: Time,
    /// Present for non-replicated queries of certified variables: the certificate for
    /// `certified_data`.
    pub data_certificate: Option<serde_bytes::ByteBuf>,
    /// Instructions spent earlier in this call context, for `ic0.performance_counter(1)`.
    pub context_instructions: u64,
    /// Whether state changes count (`ic0.in_replicated_execution`).
    pub replicated: bool,
    /// Bytes of memory the canister may still grow by (subnet capacity, memory allocation).
    pub growable_bytes: u64,
    /// `wasm_memory_limit` in bytes; growing the heap of an update beyond it traps. `None`: no
    /// limit.
    pub wasm_memory_limit: Option<u64>,
    /// Calls that may still be made (callback limit, queue space of the subnet).
    pub calls_max: u64,
    /// Slots left towards each callee with a queue already in use; others have `queue_slots`.
    pub queue_slots_left: BTreeMap<Principal, u64>,
    /// Slots of an unused queue.
    pub queue_slots: u64,
    /// Prices that calls are charged by and `ic0.cost_*` return.
    pub costs: CostTable,
    /// Largest payload of a call, reply or reject.
    pub payload_max_bytes: u64,
    /// Refuse guaranteed-response calls.
    pub reject_guaranteed_response_calls: bool,
}

/// Limits of one message. Copied from `limits` by execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageLimits {
    /// Instructions in all.
    pub instructions: u64,
    /// Stable bytes dirtied.
    pub stable_dirty_bytes: u64,
    /// Stable bytes accessed.
    pub stable_accessed_bytes: u64,
    /// Heap bytes dirtied.
    pub heap_dirty_bytes: u64,
    /// Largest heap in bytes, for 32-bit and 64-bit memories.
    pub heap_max_bytes: [u64; 2],
    /// Largest stable memory in bytes.
    pub stable_max_bytes: u64,
    /// `debug_print` and trap text kept, in bytes.
    pub log_max_bytes: u64,
}

/// A memory handed to a worker.
#[derive(Debug)]
pub struct Mount {
    /// The layout to map.
    pub layout: MemoryLayout,
    /// Size in Wasm pages (64 KiB).
    pub wasm_pages: u64,
    /// Where dirty pages go; `None` for executions whose changes are dropped.
    pub append: Option<AppendTarget>,
}

/// One message to run.
#[derive(Debug)]
pub struct Request {
    /// The module; compiled before ([`crate::Sandbox::prepare`]).
    pub module: ModuleHash,
    /// Where to enter.
    pub entry: Entry,
    /// Exported mutable globals as the last message left them; empty at first instantiation.
    pub globals: Vec<Global>,
    /// Heap. Absent when the module has no memory.
    pub heap: Mount,
    /// Stable memory, present for every module.
    pub stable: Mount,
    /// The data the canister may read.
    pub context: SystemContext,
    /// The limits of the message.
    pub limits: MessageLimits,
    /// For callbacks and cleanups of composite queries: the kept execution they continue (its
    /// globals and memories are used, those given here are ignored).
    pub keep_token: Option<u64>,
}

/// How a message ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Response {
    /// Neither replied nor rejected (yet).
    None,
    /// Data of `ic0.msg_reply`, at most `payload_max_bytes`.
    Reply(#[serde(with = "serde_bytes")] Vec<u8>),
    /// Text of `ic0.msg_reject`, at most `payload_max_bytes`.
    Reject(String),
}

/// A call made by `ic0.call_perform`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Canister to call, or `aaaaa-aa`; it need not exist.
    pub callee: Principal,
    /// Method to call, at most 20,000 bytes.
    pub method_name: String,
    /// Argument; together with the method name at most `payload_max_bytes`.
    #[serde(with = "serde_bytes")]
    pub arg: Vec<u8>,
    /// Attached cycles (already taken from the balance).
    pub cycles: Cycles,
    /// Reply callback: table index and argument.
    pub on_reply: (u64, u64),
    /// Reject callback: table index and argument.
    pub on_reject: (u64, u64),
    /// Cleanup callback: table index and argument; `None` without `ic0.call_on_cleanup`.
    pub on_cleanup: Option<(u64, u64)>,
    /// Seconds of a best-effort call; `None` for a guaranteed response.
    pub timeout_seconds: Option<u32>,
    /// Fees and reservations taken from the balance for this call, to be settled when the response
    /// comes.
    pub prepaid: Cycles,
}

/// Changes of a message that ended successfully.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Changes {
    /// Values of all mutable globals after the message, ordered by index.
    pub globals: Vec<Global>,
    /// Heap size in Wasm pages.
    pub heap_wasm_pages: u64,
    /// Stable size in Wasm pages.
    pub stable_wasm_pages: u64,
    /// Dirty heap pages, written to the append target.
    pub heap_runs: Vec<Run>,
    /// Dirty stable pages, written to the append target.
    pub stable_runs: Vec<Run>,
    /// Balance after accepting, burning and attaching (not counting execution fees).
    pub balance: Cycles,
    /// Cycles accepted from the call.
    pub cycles_accepted: Cycles,
    /// Cycles burned by `ic0.cycles_burn128`, already taken from `balance`.
    pub cycles_burned: Cycles,
    /// Calls, in the order performed.
    pub calls: Vec<Call>,
    /// Last value given to `ic0.certified_data_set`, at most 32 bytes; `None` leaves it as it is.
    pub certified_data: Option<serde_bytes::ByteBuf>,
    /// `ic0.global_timer_set`: `Some(0)` switches it off.
    pub global_timer: Option<Time>,
}

/// Why a message failed: becomes a reject of code `CanisterError` (or what `reject` says).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trap {
    /// Reject as the caller sees it, without the "Error from Canister" prefix that execution adds.
    pub reject: Reject,
    /// Which functions were being called: a heading and a line each, innermost first; at most
    /// [`BACKTRACE_BYTES_MAX`]. Execution adds it to the reject of a caller who may read the
    /// canister's log. Empty where the module names no functions.
    pub backtrace: String,
}

/// Bytes of a backtrace: the heading, and a line for each of 20 frames.
pub const BACKTRACE_BYTES_MAX: usize =
    32 + engine::BACKTRACE_FRAMES_MAX * (module::NAME_BYTES_MAX + 1);

/// A message has no outcome, for reasons of this machine: its worker was killed, hung, lied, could
/// not get memory or descriptors, or could not be started. Not a function of the request, so it
/// must never become a result; the same request may be handed in again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkerTrouble {
    /// The worker ended, hung or lied: the message may be why.
    #[error("{0}")]
    Worker(String),
    /// Something that the message has no part in: a file that cannot be opened now, a worker that
    /// cannot be started.
    #[error("{0}")]
    Machine(String),
    /// A file of a memory is missing or damaged; waiting does not mend it.
    #[error("{0}")]
    Damage(String),
}

/// Outcome of a message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Instructions used, System API work included.
    pub instructions: u64,
    /// Work for slices and rounds, see `crate::slices`; at least the instructions.
    pub work: u64,
    /// The response, or why there is none.
    pub result: Result<Response, Trap>,
    /// Changes to keep; present exactly when `result` is `Ok` and the entry keeps changes.
    pub changes: Option<Changes>,
    /// `ic0.accept_message` was called.
    pub accepted: bool,
    /// The time or the data certificate was read: the same message may have another outcome at
    /// another height.
    pub height_read: bool,
    /// `debug_print` lines and the trap text, bounded by `log_max_bytes`.
    pub log: Vec<serde_bytes::ByteBuf>,
    /// Calls of a composite query (whose other changes live in the worker until its callbacks
    /// ran).
    pub query_calls: Vec<Call>,
    /// Names a composite query kept alive in its worker; pass it back with its callbacks, and
    /// release it.
    pub keep_token: Option<u64>,
}

/// Result of an execution with a deadline.
#[derive(Clone, Debug, PartialEq)]
pub enum TimedOutcome {
    /// The message ended before the deadline.
    Ended(Box<Outcome>),
    /// The deadline passed; the worker and everything it kept are gone.
    Overdue,
    /// The artefact of the module has to be prepared first; nothing was executed.
    Unprepared,
}

/// Why a module is not ready to run.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NotPrepared {
    /// The module is refused for its own bytes, under the limits and the engine that the members of
    /// a subnet agree on. The same on every node and at every attempt.
    #[error("{}", .0.message)]
    Refused(Reject),
    /// This machine could not compile it now: memory, CPU time, disk, descriptors, a killed or
    /// crashed child. Says nothing about the module, and never becomes the result of a message:
    /// the caller tries again.
    #[error("{0}")]
    Trouble(String),
}

/// A module as it was uploaded, gzip or plain, wherever it is stored: it is written out in pieces,
/// so that it never has to be in memory as a whole.
pub trait UploadedModule {
    /// Its length.
    fn bytes(&self) -> u64;
    /// Writes all of it.
    ///
    /// # Errors
    /// Of `out`, or when the module cannot be read now.
    fn write_to(&self, out: &mut dyn Write) -> io::Result<()>;
}

impl UploadedModule for &[u8] {
    fn bytes(&self) -> u64 {
        self.len() as u64
    }

    fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(self)
    }
}

/// A module in a blob store, in one blob or in several.
pub struct StoredModule<'a> {
    /// Where.
    pub blobs: &'a BlobStore,
    /// The blobs that make it up, one after the other.
    pub parts: Vec<BlobHash>,
    /// Length of the module.
    pub bytes: u64,
}

impl UploadedModule for StoredModule<'_> {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
        let copied = self.blobs.copy(&self.parts, out)?;
        copied.ok_or_else(|| io::Error::other("a part of the module is not in the module store"))
    }
}

/// What execution needs of sandboxes; implemented by the pool of worker processes. Calls block the
/// calling thread.
pub trait Sandbox: Send + Sync {
    /// Validates and compiles the module `uploaded`, whose SHA-256 is `hash`, unless its artefact
    /// is on disk; in a short-lived capped child. What runs with [`Priority::Ahead`] is ended when
    /// a round needs its place ([`Self::end_ahead`]).
    fn prepare(
        &self,
        hash: &ModuleHash,
        uploaded: &dyn UploadedModule,
        priority: Priority,
    ) -> Result<ModuleInfo, NotPrepared>;
    /// Ends what runs with [`Priority::Ahead`]: a round needs its place.
    fn end_ahead(&self) {}
    /// Whether artefacts can be added without others being removed for them.
    fn has_artefact_room(&self) -> bool {
        false
    }
    /// Whether the artefact of a module is available, so that it need not be prepared.
    fn is_prepared(&self, module: &ModuleHash) -> bool;
    /// Runs one message on update worker `lane` (0-based; queries have lanes of their own, see
    /// [`Lane`]). Execution keeps the request: it commits or drops the append targets afterwards,
    /// and retries the same request after a fault. An honest worker could have produced the
    /// returned outcome: it was checked against the request.
    ///
    /// # Errors
    /// When there is no outcome. A partial execution of the message leaves no trace.
    fn execute(&self, lane: Lane, request: &Request) -> Result<Outcome, WorkerTrouble>;
    /// Runs one query, at most until `deadline`. Wall-clock time differs between nodes: never for
    /// a message whose outcome the subnet agrees on.
    ///
    /// # Errors
    /// As of [`Self::execute`].
    fn execute_until(
        &self,
        lane: Lane,
        request: &Request,
        deadline: Instant,
    ) -> Result<TimedOutcome, WorkerTrouble> {
        let _ = deadline;
        Ok(TimedOutcome::Ended(Box::new(self.execute(lane, request)?)))
    }
    /// Runs one message, or continues it, until it ends or has used its grant. The request is the
    /// same for each slice except for its layouts, which hold the same bytes, and its append
    /// targets. An implementation that keeps nothing of a paused message runs it from its
    /// beginning.
    ///
    /// # Errors
    /// As of [`Self::execute`]; the same request and grant may be handed in again.
    fn run_slice(
        &self,
        lane: Lane,
        request: &Request,
        grant: &Grant,
    ) -> Result<Slice, WorkerTrouble> {
        let outcome = self.execute(lane, request)?;
        let over = outcome.work <= grant.until;
        Ok(if over {
            Slice::Ended(Box::new(outcome))
        } else {
            Slice::Paused(Progress {
                instructions: grant.until,
                work: grant.until,
                heap_wasm_pages: request.heap.wasm_pages,
                stable_wasm_pages: request.stable.wasm_pages,
            })
        })
    }

    /// The machine lacks something: what is kept to save time alone is given up, bit by bit.
    fn free_memory(&self) {}

    /// A paused message will not be resumed: its data need not be kept.
    fn abandon(&self, _name: &SlicedName) {}
    /// Releases what `keep_token` keeps.
    fn release(&self, lane: Lane, keep_token: u64);
    /// The canister's code or memories are gone or replaced: drop mappings.
    fn forget(&self, memories: &[pages::MemoryId]);
}

/// A worker of the pool, which runs one message at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    /// Update worker of execution thread `n`.
    Update(usize),
    /// Query worker `n`.
    Query(usize),
}
