//! One canister: its identity (controllers, settings, code), its holdings (cycles, memories,
//! globals) and its messages (queues, calls).
//!
//! A canister is a plain value: it is copied when a round first changes it, while snapshots of
//! earlier heights keep the value they were made from. So everything large in it is shared
//! ([`StateArc`], `Arc`) or on disk ([`Memory`]). It must not know how it is executed, scheduled or
//! stored.

use std::collections::BTreeMap;
use std::sync::Arc;

use ic_principal::Principal;
use pages::{MemoryId, MemoryLayout};
use serde::{Deserialize, Serialize};

use crate::certified::metadata_digest;
use crate::tree::Digest;
use crate::{
    CallTable, CanisterId, CanisterLog, CanisterSnapshots, ChangeHistory, Consumption,
    CustomSection, Cycles, Global, InputQueues, MESSAGE_OVERHEAD_BYTES, ModuleGlobal, ModuleHash,
    ModuleInfo, Origin, PausedMessage, QueryTotals, StateArc, Time, state_heap,
};

/// Bytes of a Wasm page.
pub const WASM_PAGE_BYTES: u64 = 65536;
/// Bytes accounted for one chunk, whatever its size.
pub const CHUNK_ACCOUNTED_BYTES: u64 = 1 << 20;

/// Principals that may read some data of a canister, in addition to its controllers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Visibility {
    /// Controllers only.
    #[default]
    Controllers,
    /// All callers, anonymous ones included.
    Public,
    /// Controllers and these principals.
    AllowedViewers(Vec<Principal>),
}

/// Settings that controllers decide (interface specification, `canister_settings`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Percent of one core.
    pub compute_allocation: u64,
    /// Bytes set aside.
    pub memory_allocation: u64,
    /// Seconds of idle burn the balance must cover.
    pub freezing_threshold: u64,
    /// Most cycles that may be reserved.
    pub reserved_cycles_limit: Cycles,
    /// Fewest cycles a call of another canister must bring.
    pub minimum_incoming_call_cycles: Cycles,
    /// Readers of the log.
    pub log_visibility: Visibility,
    /// Readers of snapshots.
    pub snapshot_visibility: Visibility,
    /// Readers of the status.
    pub status_visibility: Visibility,
    /// Bytes of log kept.
    pub log_memory_limit: u64,
    /// Largest heap of updates in bytes; 0 means none.
    pub wasm_memory_limit: u64,
    /// Heap bytes left below which the low-memory hook runs.
    pub wasm_memory_threshold: u64,
    /// Environment variables, ordered by name.
    pub environment: Vec<(String, String)>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            compute_allocation: 0,
            memory_allocation: 0,
            freezing_threshold: 2_592_000,
            reserved_cycles_limit: 5_000_000_000_000,
            minimum_incoming_call_cycles: 0,
            log_visibility: Visibility::Controllers,
            snapshot_visibility: Visibility::Controllers,
            status_visibility: Visibility::Controllers,
            log_memory_limit: 4096,
            wasm_memory_limit: 0,
            wasm_memory_threshold: 0,
            environment: Vec::new(),
        }
    }
}

/// A `stop_canister` that waits for open calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopWaiter {
    /// The caller that waits for the response to `stop_canister`.
    pub origin: Origin,
    /// Cycles to return.
    pub cycles: Cycles,
    /// When the caller gets a timeout error.
    pub deadline: Time,
}

/// Running, stopping or stopped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum CanisterStatus {
    /// Takes every message.
    #[default]
    Running,
    /// Takes responses only.
    Stopping(Vec<StopWaiter>),
    /// Takes no message.
    Stopped,
}

/// Code as installed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstalledModule {
    /// Hash of the upload; names the blob and the compiled artefact.
    pub hash: ModuleHash,
    /// Bytes of the upload.
    pub bytes: u64,
    /// The results of validation.
    pub info: ModuleInfo,
    /// Digest of the metadata sections as the certified tree shows them.
    pub metadata_digest: Digest,
}

/// Bytes of memory that the name of a method takes in addition to its own.
const METHOD_BYTES: u64 = 48;

impl InstalledModule {
    /// Code that was validated.
    pub fn new(hash: ModuleHash, bytes: u64, info: ModuleInfo) -> Self {
        let metadata_digest = metadata_digest(&info.custom_sections);
        let info =
            if state_heap::is_installed() { state_heap::within(|| info.clone()) } else { info };
        Self { hash, bytes, info, metadata_digest }
    }

    /// Bytes of its metadata sections.
    pub fn custom_section_bytes(&self) -> u64 {
        self.info
            .custom_sections
            .iter()
            .map(|section| (section.name.len() + section.content.len()) as u64)
            .sum()
    }

    /// Bytes of memory that its record takes: the names of its methods, and its globals.
    pub fn metadata_bytes(&self) -> u64 {
        let info = &self.info;
        let names = info.updates.iter().chain(&info.queries).chain(&info.composite_queries);
        let methods: u64 = names.map(|name| METHOD_BYTES + name.len() as u64).sum();
        methods + (size_of::<ModuleGlobal>() * info.globals.len()) as u64
    }
}

/// Heap or stable memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Memory {
    /// Name of the memory in the page store.
    pub id: MemoryId,
    /// Size in Wasm pages.
    pub wasm_pages: u64,
    /// The version this state means. Not stored: after a restart it is what the checkpoint's index
    /// gives.
    #[serde(skip)]
    pub layout: Option<MemoryLayout>,
}

impl Memory {
    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.wasm_pages * WASM_PAGE_BYTES
    }
}

/// Code and memories of a canister that is not empty.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ExecutionState {
    /// The module, shared by every version of this state.
    pub module: StateArc<InstalledModule>,
    /// Mutable globals as the last message left them.
    pub globals: Vec<Global>,
    /// The Wasm heap.
    pub heap: Memory,
    /// The stable memory.
    pub stable: Memory,
}

/// State of the low-memory hook.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum LowMemoryHook {
    /// Enough memory is left.
    #[default]
    Idle,
    /// To be run before any other message but responses.
    Ready,
    /// Ran; memory is still low.
    Executed,
}

/// The hooks of a canister that are deferred, because one of them took longer than a slice:
/// heartbeat, timer and messages have their turns then, so that none keeps the others from running.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum HookTurn {
    /// None: they go before messages.
    #[default]
    Any,
    /// The heartbeat, for the timer and for messages.
    Timer,
    /// Heartbeat and timer, for messages.
    Message,
}

/// Everything replicated that belongs to one canister.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CanisterState {
    /// The canister's id; it never changes.
    pub id: CanisterId,

    // Set by controllers.
    /// Controllers in ascending order, without repetition.
    pub controllers: Vec<Principal>,
    /// Settings of `update_settings`, except for the controllers.
    pub settings: Settings,
    /// Running, stopping, stopped.
    pub status: CanisterStatus,
    /// Chunks uploaded: hash and size.
    pub chunks: BTreeMap<[u8; 32], u64>,
    /// The newest changes of code and controllers, and how many there were.
    pub history: ChangeHistory,
    /// Snapshots that were taken of it, or uploaded.
    pub snapshots: CanisterSnapshots,

    // Code and data.
    /// Absent: the canister is empty.
    pub execution: Option<ExecutionState>,
    /// `ic0.certified_data_set`; at most 32 bytes.
    #[serde(with = "serde_bytes")]
    pub certified_data: Vec<u8>,
    /// Global timer; 0 is off.
    pub global_timer: Time,
    /// The low-memory hook.
    pub low_memory_hook: LowMemoryHook,
    /// Value of `ic0.canister_version`; rises with every change.
    pub version: u64,
    /// When it was created.
    pub created_at: Time,
    /// When code was installed last.
    pub installed_at: Option<Time>,
    /// Lines that the canister printed and reasons for its traps, newest lines.
    pub log: CanisterLog,

    // Cycles.
    /// Cycles that the canister can spend.
    pub cycles: Cycles,
    /// Reserved for storage above the subnet's threshold.
    pub reserved_cycles: Cycles,
    /// Until when storage and allocation are paid.
    pub charged_until: Time,
    /// Cycles that were spent.
    pub consumption: Consumption,
    /// Totals of its queries.
    pub query_totals: QueryTotals,

    // Messages.
    /// Messages that wait for it.
    pub queues: InputQueues,
    /// Calls that it has to answer and calls that it waits for.
    pub calls: CallTable,
    /// Delta beyond what its rate allowed so far; it waits while this is not below one round's
    /// share.
    pub delta_debit: u64,
    /// Height at which `delta_debit` was last lowered.
    pub delta_height: u64,
    /// A message that has begun and is not over; nothing else runs until then.
    pub paused: Option<PausedMessage>,
    /// Calls of the management canister that waited for a message which is over, and were not
    /// served since: until they are, no other message begins.
    pub released: u64,
    /// Hooks that are deferred until others had their turn.
    pub hook_turn: HookTurn,
}

impl CanisterState {
    /// An empty, running canister.
    pub fn new(
        id: CanisterId,
        controllers: Vec<Principal>,
        settings: Settings,
        cycles: Cycles,
        now: Time,
    ) -> Self {
        Self {
            id,
            controllers,
            settings,
            status: CanisterStatus::Running,
            chunks: BTreeMap::new(),
            history: ChangeHistory::default(),
            snapshots: CanisterSnapshots::default(),
            execution: None,
            certified_data: Vec::new(),
            global_timer: Time(0),
            low_memory_hook: LowMemoryHook::Idle,
            version: 0,
            created_at: now,
            installed_at: None,
            log: CanisterLog::default(),
            cycles,
            reserved_cycles: 0,
            charged_until: now,
            consumption: Consumption::default(),
            query_totals: QueryTotals::default(),
            queues: InputQueues::default(),
            calls: CallTable::default(),
            delta_debit: 0,
            delta_height: 0,
            paused: None,
            released: 0,
            hook_turn: HookTurn::Any,
        }
    }

    /// Whether storage and allocation can be charged now. A canister without cycles whose message
    /// is paused owes them until the message is over and its unused prepayment was returned.
    pub(crate) fn can_be_charged(&self) -> bool {
        self.paused.is_none() || self.cycles > 0
    }

    /// Whether none of its messages may begin now.
    pub fn is_held(&self) -> bool {
        self.paused.is_some() || self.released > 0
    }

    /// Whether `principal` controls it.
    pub fn is_controller(&self, principal: &Principal) -> bool {
        self.controllers.contains(principal)
    }

    /// Code, unless it is empty.
    pub fn module(&self) -> Option<&InstalledModule> {
        self.execution.as_ref().map(|execution| &*execution.module)
    }

    /// One of its metadata sections.
    pub fn metadata_section(&self, name: &str) -> Option<&CustomSection> {
        self.module()?.info.custom_sections.iter().find(|section| section.name == name)
    }

    /// Bytes of state by component; their sum is what storage is charged for and what counts
    /// against the subnet's capacity.
    pub fn memory_usage(&self) -> MemoryUsage {
        let execution = self.execution.as_ref();
        MemoryUsage {
            heap: execution.map_or(0, |execution| execution.heap.bytes()),
            stable: execution.map_or(0, |execution| execution.stable.bytes()),
            globals: execution.map_or(0, |execution| execution.globals.len() as u64 * 8),
            module: execution.map_or(0, |execution| execution.module.bytes),
            custom_sections: execution
                .map_or(0, |execution| execution.module.custom_section_bytes()),
            history: self.history.bytes(),
            chunks: self.chunks.len() as u64 * CHUNK_ACCOUNTED_BYTES,
            log: self.log.bytes(),
            snapshots: self.snapshots.bytes(),
        }
    }

    /// Blobs that its chunk store and its snapshots name.
    pub fn chunks_and_snapshots(&self) -> impl Iterator<Item = [u8; 32]> + '_ {
        let snapshots = self.snapshots.iter().flat_map(|(_, snapshot)| snapshot.blobs());
        self.chunks.keys().copied().chain(snapshots)
    }

    /// Bytes that count against the subnet's capacity: the memory used, or the allocation if that
    /// is more. Growth by a paused message counts as used already.
    pub fn memory_taken(&self) -> u64 {
        self.memory_taken_with(&self.memory_usage())
    }

    pub(crate) fn memory_taken_with(&self, usage: &MemoryUsage) -> u64 {
        let grown = self.paused.as_ref().map_or(0, |paused| paused.grown_bytes);
        (usage.total() + grown).max(self.settings.memory_allocation)
    }

    /// Message memory: bytes of guaranteed-response messages with the room reserved for their
    /// responses; and bytes of everything without a guarantee: best-effort messages, a little for
    /// each waiting best-effort call, and ingress messages.
    pub fn message_memory(&self, response_bytes: u64) -> (u64, u64) {
        let (guaranteed, other) =
            self.paused.as_ref().map_or((0, 0), PausedMessage::message_memory);
        (
            self.queues.guaranteed_bytes
                + self.calls.reserved_responses * response_bytes
                + guaranteed,
            self.queues.best_effort_bytes
                + self.queues.ingress_bytes
                + self.calls.unanswered_best_effort() * MESSAGE_OVERHEAD_BYTES
                + other,
        )
    }

    /// Of the second: users' messages that wait, its paused message, and users' calls of the
    /// management canister that wait for that.
    pub fn user_message_bytes(&self) -> u64 {
        let paused = self.paused.as_ref().map_or(0, |paused| paused.message_memory().1);
        self.queues.ingress_bytes + paused
    }

    /// Calls with guaranteed responses that it has open, answered or not, and its paused message if
    /// that is one.
    pub fn guaranteed_calls(&self) -> u64 {
        let paused = self.paused.as_ref().is_some_and(|paused| paused.is_guaranteed);
        self.calls.guaranteed_open + u64::from(paused)
    }

    /// Estimate of what the record takes in memory in addition to code, memories and messages. A
    /// paused message counts with its own bytes only: its record takes a kilobyte or two, and long
    /// messages of one canister must not cause the installs of others to be refused.
    pub fn metadata_bytes(&self) -> u64 {
        self.metadata_bytes_with(&self.memory_usage())
    }

    pub(crate) fn metadata_bytes_with(&self, usage: &MemoryUsage) -> u64 {
        let environment: usize =
            self.settings.environment.iter().map(|(name, value)| name.len() + value.len()).sum();
        1024 + 30 * self.controllers.len() as u64
            + environment as u64
            + self.module().map_or(0, InstalledModule::metadata_bytes)
            // A value takes as much memory as the widest.
            + 4 * usage.globals
            + usage.history
            + usage.log
            + 48 * self.chunks.len() as u64
            + self.snapshots.metadata_bytes()
            + 256 * self.calls.callbacks_open()
    }
}

/// Bytes of a canister by what they are of; see [`CanisterState::memory_usage`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "bytes of what they are named by")]
pub struct MemoryUsage {
    pub heap: u64,
    pub stable: u64,
    pub globals: u64,
    pub module: u64,
    pub custom_sections: u64,
    pub history: u64,
    pub chunks: u64,
    pub log: u64,
    pub snapshots: u64,
}

impl MemoryUsage {
    /// Sum of all parts, bytes.
    pub fn total(&self) -> u64 {
        self.heap
            + self.stable
            + self.globals
            + self.module
            + self.custom_sections
            + self.history
            + self.chunks
            + self.log
            + self.snapshots
    }
}

/// A canister as the maps hold it.
pub type SharedCanister = Arc<CanisterState>;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{
        CallRequest, CallResponse, Callback, CallbackId, Change, ChangeDetails, ChangeOrigin,
        Hooks, Payload, QueryCounts, QueryReport,
    };
    use crate::{CanisterSnapshot, SnapshotMemory, SnapshotModule, SnapshotSource};

    #[test]
    fn a_record_comes_back_as_it_was_stored() {
        let canister = CanisterState::new(
            Principal::from_slice(&[1, 1]),
            vec![],
            Settings::default(),
            5,
            Time(3),
        );
        let bytes = postcard::to_stdvec(&canister).unwrap();
        let back: CanisterState = postcard::from_bytes(&bytes).unwrap();
        assert_eq!(postcard::to_stdvec(&back).unwrap(), bytes);
    }

    fn snapshot(source: SnapshotSource) -> CanisterSnapshot {
        let memory = |id, wasm_pages| SnapshotMemory { id: MemoryId(id), wasm_pages };
        CanisterSnapshot {
            source,
            taken_at: Time(46),
            canister_version: 47,
            module: match source {
                SnapshotSource::Uploaded => {
                    SnapshotModule::Uploaded { memory: MemoryId(48), bytes: 49 }
                }
                SnapshotSource::Taken => {
                    SnapshotModule::Installed { hash: ModuleHash([59; 32]), bytes: 60 }
                }
            },
            globals: vec![Global::F64(50)],
            heap: memory(51, 52),
            stable: memory(53, 54),
            chunks: [([55; 32], 56)].into(),
            certified_data: vec![57],
            global_timer: Some(Time(58)),
            low_memory_hook: Some(LowMemoryHook::Executed),
        }
    }

    const PINNED: testing::formats::Pin = (11, "cbbe170d21baba1fd0fdabaea178fe5e");
    /// Version of the manifest, with the records that its root depends on.
    const UNDER_THE_ROOT: testing::formats::Pin = (7, "cbbe170d21baba1fd0fdabaea178fe5e");

    /// Everything that a record of a canister can have, in values that are not defaults.
    #[expect(clippy::too_many_lines, reason = "one story, in order")]
    fn full() -> CanisterState {
        let (own, other) = (Principal::from_slice(&[1, 1]), Principal::from_slice(&[2, 1]));
        let settings = Settings {
            compute_allocation: 1,
            memory_allocation: 2,
            log_visibility: Visibility::Public,
            status_visibility: Visibility::AllowedViewers(vec![other]),
            environment: vec![("name".into(), "value".into())],
            ..Settings::default()
        };
        let mut canister = CanisterState::new(own, vec![other], settings, 1 << 100, Time(3));
        let deadline = Some(Time(9));
        let origin = Origin::Canister { caller: other, callback: CallbackId(4), deadline };
        let context = canister.calls.open_context(origin.clone(), 70);
        let callback = |deadline| Callback {
            context,
            callee: other,
            on_reply: (1, 2),
            on_reject: (3, 4),
            on_cleanup: Some((5, 6)),
            cycles_sent: 7,
            prepaid: 8,
            request_bytes: 9,
            deadline,
            answered: false,
        };
        let answered = canister.calls.open_callback(callback(None));
        canister.calls.open_callback(callback(deadline));
        assert!(canister.calls.mark_answered(answered));
        canister.queues.push_response(
            7,
            StateArc::new(CallResponse {
                originator: own,
                callback: answered,
                payload: Payload::Reply(vec![1, 2]),
                refund: 3,
                deadline: None,
            }),
        );
        canister.queues.push_request(
            8,
            StateArc::new(CallRequest {
                sender: other,
                sender_version: 1,
                receiver: own,
                callback: CallbackId(5),
                method_name: "method".into(),
                arg: vec![3],
                cycles: 4,
                deadline,
            }),
        );
        canister.snapshots.add(snapshot(SnapshotSource::Uploaded));
        canister.snapshots.add(snapshot(SnapshotSource::Taken));
        canister.log.push(Time(5), b"line".to_vec(), 1_000);
        canister.history.push(Change {
            time: Time(6),
            version: 7,
            origin: ChangeOrigin::Canister(other, Some(8)),
            details: ChangeDetails::ControllersChange(vec![own, other]),
        });
        canister.history.push(Change {
            time: Time(61),
            version: 62,
            origin: ChangeOrigin::User(other),
            details: ChangeDetails::LoadSnapshot {
                from: Some(other),
                snapshot_id: vec![63],
                canister_version: 64,
                taken_at: Time(65),
                source: SnapshotSource::Taken,
            },
        });
        canister.status =
            CanisterStatus::Stopping(vec![StopWaiter { origin, cycles: 5, deadline: Time(10) }]);
        let info = ModuleInfo {
            updates: vec!["update".into()],
            queries: vec!["query".into()],
            composite_queries: vec!["both".into()],
            hooks: Hooks { heartbeat: true, ..Hooks::default() },
            memory64: true,
            heap_initial_wasm_pages: 11,
            heap_maximum_wasm_pages: Some(12),
            custom_sections: vec![CustomSection {
                public: true,
                name: "candid:service".into(),
                content: vec![12],
            }],
            enhanced_orthogonal_persistence: true,
            globals: vec![ModuleGlobal { mutable: true, initial: Global::I64(45) }],
            compile_instructions: 13,
        };
        let memory = |id, wasm_pages| Memory { id: MemoryId(id), wasm_pages, layout: None };
        canister.execution = Some(ExecutionState {
            module: StateArc::new(InstalledModule::new(ModuleHash([14; 32]), 15, info)),
            globals: vec![Global::I32(16), Global::V128(17)],
            heap: memory(18, 19),
            stable: memory(20, 21),
        });
        canister.paused = Some(PausedMessage {
            since: crate::Height(22),
            context: Some(context),
            granted: 23,
            instructions: 24,
            prepaid: 25,
            cycles: 38,
            module: Some(ModuleHash([39; 32])),
            grown_bytes: 26,
            message_bytes: 27,
            is_guaranteed: true,
            payload: Some(StateArc::new(crate::StoredPayload {
                number: 34,
                bytes: 35,
                name_bytes: 36,
                leaves: vec![[37; 32]],
            })),
            record: StateArc::new(vec![28, 29].into()),
            waiting: vec![StateArc::new(crate::SubnetCall {
                origin: Origin::System,
                sender_version: Some(30),
                method_name: "method".into(),
                arg: vec![31],
                cycles: 32,
                released_by: Some(other),
            })],
        });
        canister.released = 33;
        canister.query_totals =
            QueryTotals { calls: 66, instructions: 67, request_bytes: 68, response_bytes: 1 << 70 };
        canister.hook_turn = HookTurn::Message;
        canister
    }

    fn memory_index() -> pages::MemoryIndex {
        let (segment, memory) = (pages::SegmentId(1), MemoryId(2));
        pages::MemoryIndex {
            runs: vec![pages::Run { start_page: 3, pages: 4, segment, offset_page: 5 }],
            parts: vec![pages::BaseRun {
                start_page: 6,
                pages: 7,
                base: pages::BaseId { memory, number: 8 },
            }],
            borrowed: vec![pages::BorrowedSegment {
                segment,
                owner: memory,
                id: pages::SegmentId(9),
            }],
        }
    }

    fn outcalls() -> crate::Outcalls {
        let mut outcalls = crate::Outcalls::default();
        outcalls.add(crate::Outcall {
            origin: Origin::System,
            cycles: 12,
            url: "url".into(),
            method: crate::OutcallMethod::Patch,
            headers: vec![("name".into(), "value".into())],
            body: vec![13],
            response_bytes_asked: Some(14),
            transform: Some(crate::OutcallTransform {
                method_name: "method".into(),
                context: vec![15],
            }),
            until: Time(16),
            askers: crate::Askers::One(Principal::from_slice(&[17])),
            height: crate::Height(18),
        });
        outcalls
    }

    // Promise: P8 - Records of the store keep the bytes of their version.
    #[test]
    fn records_have_the_bytes_of_their_format() {
        let outcalls = outcalls();
        let mut query_reports = crate::QueryReports::default();
        let node = Principal::from_slice(&[19]);
        query_reports.begin(20, &[node]);
        let counts =
            QueryCounts { calls: 21, instructions: 22, request_bytes: 23, response_bytes: 24 };
        let report = QueryReport { node, canisters: vec![(Principal::from_slice(&[25]), counts)] };
        // Reported, held and due.
        for period in 21..23 {
            query_reports.take(&report, &[node], 1);
            query_reports.begin(period, &[node]);
        }
        query_reports.take(&report, &[node], 1);
        let subnet = crate::SubnetState {
            height: crate::Height(1),
            time: Time(2),
            next_canister: 3,
            retired: [Principal::from_slice(&[4])].into(),
            root: [5; 32],
            served_last: Some(Principal::from_slice(&[6])),
            calls_first: true,
            paused_turn: Some(Principal::from_slice(&[7])),
            installing: Some(Principal::from_slice(&[8])),
            long_installs: [crate::SubnetCall {
                origin: Origin::System,
                sender_version: Some(9),
                method_name: "install_code".into(),
                arg: vec![10],
                cycles: 11,
                released_by: None,
            }]
            .into(),
            outcalls,
            query_reports,
            randomness_waiters: [crate::RandomnessWaiter {
                origin: Origin::System,
                cycles: 26,
                height: crate::Height(27),
            }]
            .into(),
            awaited_roots: [(crate::Height(27), [28; 32])].into(),
            key: Some(crate::SubnetKey {
                summary: vec![29],
                boundary: [30; 32],
                voters: vec![31],
                nodes: vec![],
            }),
            ..crate::SubnetState::default()
        };
        let samples = [
            ("canister", postcard::to_stdvec(&full()).unwrap()),
            ("subnet", postcard::to_stdvec(&subnet).unwrap()),
            ("memory", postcard::to_stdvec(&(memory_index(), 1_u64 << 20)).unwrap()),
        ];
        let version = crate::store::FORMAT.into();
        testing::formats::check("records of the store", version, &samples, PINNED);
        let version = crate::manifest::VERSION.into();
        let format = "the manifest, whose root depends on records of the store";
        testing::formats::check_hash(format, version, PINNED.1, UNDER_THE_ROOT);
        full().queues.check(&Principal::from_slice(&[1, 1]), 10);
        full().calls.check(None);
    }
}
