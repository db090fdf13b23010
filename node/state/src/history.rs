//! Ingress history: the status of every call the subnet knows, from induction until its expiry has
//! passed.
//!
//! A call is `Received`, then `Processing`, then `Replied` or `Rejected`, and perhaps `Done` when
//! its response was dropped (interface specification, "Overview of canister calling"). Three rules
//! bound it:
//!
//! - Bytes: every entry is charged [`ENTRY_BYTES`] (its measured cost, see the tests) plus its
//!   response. When the sum exceeds the cap, the oldest responses are dropped: their calls stay as
//!   `Done`, so that they cannot be replayed, or leave if their expiry has passed. New calls are
//!   refused once entries alone, without responses, would fill more than seven eighths of the cap:
//!   the rest is always available for responses.
//! - Count: calls not yet answered.
//! - Time: an answered call leaves once its expiry has passed, and, while at most a quarter of the
//!   cap is taken, no earlier than [`RESPONSE_RETENTION_SECONDS`] after its response. Never before
//!   its expiry, and never while unanswered.
//!
//! The contents depend on the entries and the agreed time alone, to the second, and not on the
//! order in which entries arrived: ties are broken by request id. So a node that loaded a
//! checkpoint continues exactly like one that did not.
//!
//! There are no side indexes. The forks of the map know the earliest expiry, the earliest response
//! and the latest change below them, which is sufficient to find entries to expire, to drop or to
//! checkpoint in O(log n).
//!
//! Entries, forks and responses are allocated in the state's heap ([`crate::state_heap`]), so in a
//! node they are on disk, except for those used recently.
//!
//! A checkpoint saves the changes since the last one that was saved:
//! [`IngressHistory::begin_checkpoint`] takes a snapshot of them, and
//! [`IngressHistory::finish_checkpoint`] is called once it is durable. Until then the ids of the
//! calls that left are remembered, 32 bytes each: as many as blocks can bring in between two
//! checkpoints.

#[cfg(test)]
mod tests;

use std::{borrow::Cow, sync::Arc};

use ic_principal::Principal;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{
    CanisterId, Ingress, NotEncoded, Reject, RequestId, Time, encode_record, state_heap,
    store::Change,
    tree::{CertifiedValue, Digest, LabeledValue, MerkleMap, Subtree, Summary},
};

/// Cost of one entry in addition to its response: the entry, one fork, and the allocator's
/// rounding.
pub const ENTRY_BYTES: u64 = 288;
const _: () = assert!(size_of::<HistoryEntry>() as u64 <= ENTRY_BYTES, "an entry is charged for");

/// While at most the cap divided by this is taken, there is room.
const ROOMY_SHARE: u64 = 4;

/// How long a response is kept, if there is room, so that a client that polls finds it.
pub const RESPONSE_RETENTION_SECONDS: u32 = 300;

/// Bounds of an [`IngressHistory`].
#[derive(Clone, Copy, Debug)]
pub struct HistoryLimits {
    /// Entries and responses together (`limits.subnet.ingress_history_bytes`).
    pub bytes_max: u64,
    /// Calls not yet answered (`limits.subnet.ingress_unfinished_max`).
    pub unfinished_max: u64,
}

/// Why a call was not taken in, or a saved one not read.
#[derive(Debug, Error, PartialEq, Eq)]
#[expect(missing_docs, reason = "the texts say what they are")]
pub enum HistoryError {
    #[error("the call {0:?} is already known; its status can be read")]
    Known(RequestId),
    #[error(
        "{0} calls wait for their answer, the most this subnet takes \
         (subnet.ingress_unfinished_max); send the call again when some are answered"
    )]
    UnfinishedFull(u64),
    #[error(
        "the ingress history holds {used} bytes of entries and may hold {limit} (seven eighths of \
         subnet.ingress_history_bytes); send the call again when older ones expire"
    )]
    Full { used: u64, limit: u64 },
    #[error("the saved status of call {id:?} cannot be read: {reason}")]
    Record { id: RequestId, reason: String },
}

/// State of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Status {
    /// In the canister's queue.
    Received,
    /// Being executed, or waiting for calls it made.
    Processing,
    /// Answered with these bytes.
    Replied(#[serde(with = "serde_bytes")] Vec<u8>),
    /// Rejected with this code and message.
    Rejected(Reject),
    /// Answered, and the response dropped.
    Done,
}

impl Status {
    /// Text of the specification.
    pub fn name(&self) -> &'static str {
        match self {
            Status::Received => "received",
            Status::Processing => "processing",
            Status::Replied(_) => "replied",
            Status::Rejected(_) => "rejected",
            Status::Done => "done",
        }
    }

    /// Whether it will not change but to [`Status::Done`].
    pub fn is_terminal(&self) -> bool {
        matches!(self, Status::Replied(_) | Status::Rejected(_) | Status::Done)
    }

    fn response_bytes(&self) -> u64 {
        match self {
            Status::Replied(reply) => allocated(reply.len()),
            Status::Rejected(reject) => allocated(reject.message.len()),
            Status::Received | Status::Processing | Status::Done => 0,
        }
    }
}

/// Actual size of an allocation of `bytes` bytes: allocators have four sizes per power of two.
fn allocated(bytes: usize) -> u64 {
    let bytes = bytes as u64;
    bytes.next_multiple_of((bytes.next_power_of_two() / 8).max(16))
}

/// The record of one call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryEntry {
    /// Id of the call's request.
    pub id: RequestId,
    /// Its sender; only the sender may read its status.
    pub sender: Principal,
    /// From the URL; the status is read through the same.
    pub effective_canister_id: CanisterId,
    /// Whether it calls the management canister; if not, it calls the effective canister.
    pub to_management: bool,
    /// Until then it must be remembered.
    pub expiry: Time,
    /// Its state.
    pub status: Status,
    /// Agreed time of the response, in whole seconds; meaningless before.
    finished: u32,
    /// Number of the checkpoint interval in which it last changed; 0 for one that was loaded. This
    /// node's business only.
    #[serde(skip)]
    changed: u32,
}

/// Least expiry, least response time and latest change of the entries below a fork. Seconds;
/// `u32::MAX` is never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistorySummary {
    /// When the first answered call may leave.
    expires: u32,
    /// Time of the first response that could be dropped.
    finished: u32,
    /// Checkpoint interval of the last change.
    changed: u32,
}

const NEVER: u32 = u32::MAX;
const NANOS_PER_SECOND: u64 = 1_000_000_000;

impl Summary for HistorySummary {
    fn merge(self, other: Self) -> Self {
        HistorySummary {
            expires: self.expires.min(other.expires),
            finished: self.finished.min(other.finished),
            changed: self.changed.max(other.changed),
        }
    }

    fn with_part(self, before: Self, after: Self) -> Option<Self> {
        // The least of the whole is the part's if that is not above it, and stays if the part did
        // not have it. Otherwise the part had it and gave it up: the others have to be read.
        let least = |whole: u32, before: u32, after: u32| {
            if after <= whole { Some(after) } else { (before > whole).then_some(whole) }
        };
        let greatest = |whole: u32, before: u32, after: u32| {
            if after >= whole { Some(after) } else { (before < whole).then_some(whole) }
        };
        Some(HistorySummary {
            expires: least(self.expires, before.expires, after.expires)?,
            finished: least(self.finished, before.finished, after.finished)?,
            changed: greatest(self.changed, before.changed, after.changed)?,
        })
    }
}

/// The first whole second after `time`: a call whose expiry is the agreed time itself may still be
/// inducted.
fn seconds_after(time: Time) -> u32 {
    seconds_down(time).saturating_add(1).min(NEVER - 1)
}

/// The last whole second that is not after `time`.
fn seconds_down(time: Time) -> u32 {
    u32::try_from(time.0 / NANOS_PER_SECOND).unwrap_or(NEVER - 1).min(NEVER - 1)
}

impl CertifiedValue for Arc<HistoryEntry> {
    fn subtree(&self) -> Subtree<'_> {
        let label = |name: &'static str| Cow::Borrowed(name.as_bytes());
        let status = (label("status"), Subtree::leaf(self.status.name().as_bytes()));
        Subtree::Node(match &self.status {
            Status::Received | Status::Processing | Status::Done => vec![status],
            Status::Replied(reply) => vec![(label("reply"), Subtree::leaf(reply)), status],
            Status::Rejected(reject) => vec![
                (
                    label("error_code"),
                    Subtree::Leaf(Cow::Owned(reject.error_code.to_string().into_bytes())),
                ),
                (label("reject_code"), Subtree::nat(reject.code as u64)),
                (label("reject_message"), Subtree::leaf(reject.message.as_bytes())),
                status,
            ],
        })
    }
}

impl LabeledValue for Arc<HistoryEntry> {
    type Summary = HistorySummary;

    fn label(&self) -> &[u8] {
        &self.id.0
    }

    fn summary(&self) -> HistorySummary {
        let (expires, finished) = match &self.status {
            Status::Received | Status::Processing => (NEVER, NEVER),
            Status::Done => (seconds_after(self.expiry), NEVER),
            Status::Replied(_) | Status::Rejected(_) => {
                let finished = self.finished;
                let kept = finished.saturating_add(RESPONSE_RETENTION_SECONDS).min(NEVER - 1);
                (seconds_after(self.expiry).max(kept), finished)
            }
        };
        HistorySummary { expires, finished, changed: self.changed }
    }
}

/// The map of it, as snapshots hold it.
pub type HistoryMap = MerkleMap<Arc<HistoryEntry>>;

/// See the module.
#[derive(Debug)]
pub struct IngressHistory {
    map: HistoryMap,
    limits: HistoryLimits,
    response_bytes: u64,
    unfinished: u64,
    /// Calls answered since [`IngressHistory::take_finished`].
    finished: Vec<RequestId>,
    /// The current checkpoint interval; from 1.
    interval: u32,
    /// The last interval whose changes are durable.
    saved_interval: u32,
    /// Calls that left since the last saved checkpoint, in the order they left.
    removed: Vec<RequestId>,
}

impl IngressHistory {
    /// Nothing known yet.
    pub fn new(limits: HistoryLimits) -> Self {
        IngressHistory {
            map: HistoryMap::new(),
            limits,
            response_bytes: 0,
            unfinished: 0,
            finished: Vec::new(),
            interval: 1,
            saved_interval: 0,
            removed: Vec::new(),
        }
    }

    /// The history that was saved, entry by entry. Stops at the first record that cannot be read.
    pub fn load<E: From<HistoryError>>(
        limits: HistoryLimits,
        records: impl IntoIterator<Item = Result<(RequestId, Vec<u8>), E>>,
    ) -> Result<Self, E> {
        let mut history = IngressHistory::new(limits);
        for record in records {
            let (id, bytes) = record?;
            let _here = state_heap::enter();
            let entry = HistoryEntry::from_record(id, &bytes)?;
            history.response_bytes += entry.status.response_bytes();
            history.unfinished += u64::from(!entry.status.is_terminal());
            history.map.insert(Arc::new(entry));
        }
        Ok(history)
    }

    /// The entry of the call with this id, if it was received and not forgotten.
    pub fn get(&self, id: &RequestId) -> Option<&Arc<HistoryEntry>> {
        self.map.get(&id.0)
    }

    /// All calls, by id.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<HistoryEntry>> {
        self.map.iter()
    }

    /// Number of calls.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Whether no call is known.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Calls not yet answered.
    pub fn unfinished(&self) -> u64 {
        self.unfinished
    }

    /// Bytes charged for all entries and the responses kept.
    pub fn bytes(&self) -> u64 {
        self.map.len() as u64 * ENTRY_BYTES + self.response_bytes
    }

    /// Whether a call could be received now.
    pub fn room(&self) -> Result<(), HistoryError> {
        if self.unfinished >= self.limits.unfinished_max {
            return Err(HistoryError::UnfinishedFull(self.limits.unfinished_max));
        }
        let used = self.map.len() as u64 * ENTRY_BYTES;
        let limit = self.limits.bytes_max - self.limits.bytes_max / 8;
        if used + ENTRY_BYTES > limit {
            return Err(HistoryError::Full { used, limit });
        }
        Ok(())
    }

    /// Maximum number of calls that can be remembered at once.
    pub fn capacity_calls(&self) -> u64 {
        (self.limits.bytes_max - self.limits.bytes_max / 8) / ENTRY_BYTES
    }

    /// Number of further calls that could be remembered.
    pub fn free_calls(&self) -> u64 {
        self.capacity_calls().saturating_sub(self.map.len() as u64)
    }

    /// Number of calls that could be received now, one after the other, if none was answered or
    /// left meanwhile.
    pub fn room_calls(&self) -> u64 {
        self.free_calls().min(self.limits.unfinished_max.saturating_sub(self.unfinished))
    }

    /// Adds a call as `Received`. Its expiry was checked against the agreed time by the caller, who
    /// must not induct a call whose expiry has passed: such a call may have been here and left.
    pub fn receive(&mut self, ingress: &Ingress, now: Time) -> Result<(), HistoryError> {
        if self.map.contains(&ingress.request_id.0) {
            return Err(HistoryError::Known(ingress.request_id));
        }
        self.room()?;
        let _here = state_heap::enter();
        self.map.insert(Arc::new(HistoryEntry {
            id: ingress.request_id,
            sender: ingress.sender,
            effective_canister_id: ingress.effective_canister_id,
            to_management: ingress.canister_id == CanisterId::management_canister(),
            expiry: ingress.ingress_expiry,
            status: Status::Received,
            finished: 0,
            changed: self.interval,
        }));
        self.unfinished += 1;
        self.fit(now);
        debug_assert!(
            self.unfinished <= self.limits.unfinished_max,
            "{} calls are unanswered, the most is {}",
            self.unfinished,
            self.limits.unfinished_max
        );
        debug_assert!(
            self.bytes() <= self.limits.bytes_max,
            "{} bytes, the most is {}",
            self.bytes(),
            self.limits.bytes_max
        );
        Ok(())
    }

    /// A call starts to be executed. Does nothing to one that is unknown, or already further.
    pub fn processing(&mut self, id: &RequestId) {
        let interval = self.interval;
        let _here = state_heap::enter();
        if self.get(id).is_some_and(|entry| entry.status == Status::Received) {
            self.map.update(&id.0, |entry| {
                let entry = Arc::make_mut(entry);
                entry.status = Status::Processing;
                entry.changed = interval;
            });
        }
    }

    /// A call is answered. Does nothing, and returns false, if it is unknown or already answered.
    pub fn finish(&mut self, id: &RequestId, response: Result<Vec<u8>, Reject>, now: Time) -> bool {
        if self.get(id).is_none_or(|entry| entry.status.is_terminal()) {
            return false;
        }
        let _here = state_heap::enter();
        let status = match response {
            Ok(mut reply) => {
                reply.shrink_to_fit();
                Status::Replied(state_heap::move_bytes(reply))
            }
            Err(mut reject) => {
                reject.message.shrink_to_fit();
                Status::Rejected(Reject {
                    message: state_heap::move_text(reject.message),
                    ..reject
                })
            }
        };
        self.response_bytes += status.response_bytes();
        let interval = self.interval;
        let finished = seconds_down(now);
        self.map.update(&id.0, |shared| match Arc::get_mut(shared) {
            // Received since the last snapshot: changed in place.
            Some(entry) => {
                (entry.status, entry.finished, entry.changed) = (status, finished, interval);
            }
            // Not `make_mut`, which would copy what the answer replaces.
            None => {
                *shared =
                    Arc::new(HistoryEntry { status, finished, changed: interval, ..**shared });
            }
        });
        assert!(self.unfinished > 0, "a call is answered and none is unanswered");
        self.unfinished -= 1;
        self.finished.push(*id);
        self.fit(now);
        true
    }

    /// Lets answered calls leave whose time has come. Returns how many.
    pub fn expire(&mut self, now: Time) -> u64 {
        let _here = state_heap::enter();
        let now = seconds_down(now);
        let mut left = 0;
        // Oldest answers first. One whose call may still be sent again ends it: those behind it
        // were answered later.
        while self.bytes() > self.limits.bytes_max / ROOMY_SHARE
            && let Some(entry) = self.map.least(|summary| summary.finished)
            && entry.summary().finished != NEVER
            && seconds_after(entry.expiry) <= now
        {
            let id = entry.id;
            self.remove(&id);
            left += 1;
        }
        while self.map.summary().is_some_and(|all| all.expires <= now)
            && let Some(entry) = self.map.least(|summary| summary.expires)
        {
            let id = entry.id;
            self.remove(&id);
            left += 1;
        }
        left
    }

    /// The calls answered since the last time this was asked, in the order they were.
    pub fn take_finished(&mut self) -> Vec<RequestId> {
        std::mem::take(&mut self.finished)
    }

    /// Checks the map with its hashes, and the sums, against the entries. Visits and hashes every
    /// entry, so tests and the simulation call it, and a running node does not.
    ///
    /// # Panics
    /// When an invariant does not hold.
    pub fn check(&self) {
        self.map.check();
        let (mut response_bytes, mut unfinished) = (0, 0);
        for entry in self.iter() {
            response_bytes += entry.status.response_bytes();
            unfinished += u64::from(!entry.status.is_terminal());
        }
        assert_eq!(self.response_bytes, response_bytes, "bytes of all responses");
        assert_eq!(self.unfinished, unfinished, "calls not yet answered");
    }

    /// Computes the missing hashes and returns the root of the map.
    pub fn seal(&mut self) -> Digest {
        let _here = state_heap::enter();
        self.map.seal()
    }

    /// The entries as they are now, for nothing.
    pub fn snapshot(&self) -> HistoryMap {
        self.map.clone()
    }

    /// Changes since the last checkpoint that was saved. Later changes belong to the next.
    pub fn begin_checkpoint(&mut self) -> HistoryChanges {
        let _here = state_heap::enter();
        debug_assert!(
            self.saved_interval < self.interval,
            "interval {} is saved and {} is current",
            self.saved_interval,
            self.interval
        );
        let changes = HistoryChanges {
            map: self.map.clone(),
            after_interval: self.saved_interval,
            interval: self.interval,
            removed: self.removed.clone(),
        };
        self.interval += 1;
        changes
    }

    /// The changes are durable. Not called for a checkpoint that failed, so that the next one holds
    /// its changes too.
    pub fn finish_checkpoint(&mut self, changes: HistoryChanges) {
        assert!(
            (self.saved_interval + 1..self.interval).contains(&changes.interval),
            "interval {} is saved after {}, and {} is current",
            changes.interval,
            self.saved_interval,
            self.interval
        );
        debug_assert!(
            self.removed.starts_with(&changes.removed),
            "{} calls left, and {} of them are saved",
            self.removed.len(),
            changes.removed.len()
        );
        self.saved_interval = changes.interval;
        self.removed.drain(..changes.removed.len().min(self.removed.len()));
    }

    /// Lets responses go, oldest first, until what is left fits.
    fn fit(&mut self, now: Time) {
        while self.bytes() > self.limits.bytes_max {
            let Some(entry) = self.map.least(|summary| summary.finished) else { return };
            if entry.summary().finished == NEVER {
                debug_assert_eq!(self.response_bytes, 0, "bytes of no response");
                // Only entries without responses are left, and `receive` bounds those.
                return;
            }
            let (id, response_bytes) = (entry.id, entry.status.response_bytes());
            if seconds_after(entry.expiry) <= seconds_down(now) {
                self.remove(&id);
                continue;
            }
            assert!(
                self.response_bytes >= response_bytes,
                "a response of {response_bytes} bytes is dropped, all have {}",
                self.response_bytes
            );
            self.response_bytes -= response_bytes;
            let interval = self.interval;
            self.map.update(&id.0, |shared| {
                let status = Status::Done;
                *shared = Arc::new(HistoryEntry { status, changed: interval, ..**shared });
            });
        }
    }

    fn remove(&mut self, id: &RequestId) {
        if let Some(entry) = self.map.remove(&id.0) {
            assert!(entry.status.is_terminal(), "call {id:?} leaves unanswered");
            let bytes = entry.status.response_bytes();
            assert!(
                self.response_bytes >= bytes,
                "a response of {bytes} bytes leaves, all have {}",
                self.response_bytes
            );
            self.response_bytes -= bytes;
            self.removed.push(*id);
        }
    }
}

impl HistoryEntry {
    /// As a checkpoint keeps it.
    ///
    /// # Errors
    /// When there is something in it that cannot be written, which is a defect.
    pub fn to_record(&self) -> Result<Vec<u8>, NotEncoded> {
        encode_record(format_args!("call {:?}", self.id), self)
    }

    /// The entry a checkpoint kept.
    pub fn from_record(id: RequestId, bytes: &[u8]) -> Result<Self, HistoryError> {
        let wrong = |reason: String| HistoryError::Record { id, reason };
        let (entry, rest): (HistoryEntry, _) =
            postcard::take_from_bytes(bytes).map_err(|error| wrong(error.to_string()))?;
        if !rest.is_empty() {
            return Err(wrong(format!("{} bytes follow the entry", rest.len())));
        }
        if entry.id != id {
            return Err(wrong(format!("it is the status of {:?}", entry.id)));
        }
        Ok(entry)
    }
}

/// What a checkpoint has to save of the history. Holds a snapshot and encodes one entry at a time.
#[derive(Debug)]
pub struct HistoryChanges {
    map: HistoryMap,
    after_interval: u32,
    interval: u32,
    removed: Vec<RequestId>,
}

impl HistoryChanges {
    /// Entries to write, and `None` for those that left.
    pub fn iter(&self) -> impl Iterator<Item = Result<Change<RequestId>, NotEncoded>> + '_ {
        let after = self.after_interval;
        let left =
            self.removed.iter().filter(|id| !self.map.contains(&id.0)).map(|id| Ok((*id, None)));
        let changed = self.map.matching(move |summary| summary.changed > after);
        left.chain(changed.map(|entry| Ok((entry.id, Some(entry.to_record()?)))))
    }
}
