//! Records about a canister: its log, its history of changes, and its spending by purpose.
//!
//! Log and history are short lists whose oldest entries go first; their entries are shared with
//! snapshots. Nothing here knows why something happened.

use std::collections::VecDeque;

use ic_principal::Principal;
use serde::{Deserialize, Serialize};

use crate::resting::rest_queue;
use crate::{CanisterId, CyclesTotal, ModuleHash, StateArc, Time, state_heap};

/// Bytes a line of a log takes at least when lines are counted, so that empty lines have a bound,
/// too.
const LINE_BYTES_MIN: u64 = 16;
/// Changes kept in a canister's history.
pub const CHANGES_KEPT: usize = 20;

/// One line of a canister's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogRecord {
    /// Number of the line, from 0, over the canister's life (`fetch_canister_logs`).
    pub index: u64,
    /// Block time of the message that wrote it.
    pub time: Time,
    /// The bytes of `ic0.debug_print`, or the text of a trap.
    #[serde(with = "serde_bytes")]
    pub content: Vec<u8>,
}

/// Log of a canister; oldest lines go first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CanisterLog {
    records: VecDeque<StateArc<LogRecord>>,
    next_index: u64,
    bytes: u64,
}

impl CanisterLog {
    /// Moves to the state's heap what is elsewhere.
    pub(crate) fn rest(&mut self) {
        rest_queue(&mut self.records);
    }

    /// Lines, oldest first.
    pub fn records(&self) -> impl Iterator<Item = &LogRecord> {
        self.records.iter().map(|record| &**record)
    }

    /// Bytes of the lines.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds a line, cut to `bytes_max`, and drops the oldest ones until all fit: `bytes_max` bytes,
    /// and one line for every `LINE_BYTES_MIN` of them.
    pub fn push(&mut self, time: Time, mut content: Vec<u8>, bytes_max: u64) {
        content.truncate(usize::try_from(bytes_max).unwrap_or(usize::MAX));
        self.bytes += content.len() as u64;
        let content = state_heap::move_bytes(content);
        self.records.push_back(StateArc::new(LogRecord { index: self.next_index, time, content }));
        self.next_index += 1;
        self.trim(bytes_max);
    }

    /// Drops the oldest lines until the rest fits.
    pub fn trim(&mut self, bytes_max: u64) {
        while (self.bytes > bytes_max || self.records.len() as u64 > bytes_max / LINE_BYTES_MIN)
            && let Some(oldest) = self.records.pop_front()
        {
            let bytes = oldest.content.len() as u64;
            assert!(self.bytes >= bytes, "a line of {bytes} bytes, all have {}", self.bytes);
            self.bytes -= bytes;
        }
        debug_assert!(self.bytes <= bytes_max, "{} bytes, the most is {bytes_max}", self.bytes);
    }

    /// Checks the sum of the bytes and the numbers of the lines. Visits every line.
    ///
    /// # Panics
    /// When an invariant does not hold.
    pub(crate) fn check(&self) {
        let bytes = self.records().map(|record| record.content.len() as u64).sum::<u64>();
        assert_eq!(self.bytes, bytes, "bytes of the lines of a log");
        let first = self.next_index.saturating_sub(self.records.len() as u64);
        let indexes = self.records().map(|record| record.index);
        assert!(indexes.eq(first..self.next_index), "lines of a log are not the newest");
    }

    /// Drops all lines; numbering continues.
    pub fn clear(&mut self) {
        self.records.clear();
        self.bytes = 0;
    }
}

/// Origin of a change of a canister.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChangeOrigin {
    /// A user, by its principal.
    User(Principal),
    /// A canister, and its version if it said so.
    Canister(CanisterId, Option<u64>),
}

/// How code came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeploymentMode {
    /// Into an empty canister.
    Install,
    /// In place of what was there.
    Reinstall,
    /// Keeping stable memory.
    Upgrade,
}

/// Origin of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SnapshotSource {
    /// Taken of its canister.
    Taken,
    /// Uploaded, metadata first.
    Uploaded,
}

/// Effect of a change on the canister.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChangeDetails {
    /// The canister was created.
    Creation {
        /// Controllers it was created with.
        controllers: Vec<Principal>,
        /// Hash of the environment variables, when there were any.
        environment_hash: Option<[u8; 32]>,
    },
    /// Its code went.
    CodeUninstall,
    /// Code was installed.
    CodeDeployment {
        /// How the state before was treated.
        mode: DeploymentMode,
        /// SHA-256 of the module as uploaded.
        module_hash: ModuleHash,
    },
    /// The controllers were replaced by these.
    ControllersChange(Vec<Principal>),
    /// A snapshot was loaded.
    LoadSnapshot {
        /// Canister of the snapshot, if that is another one.
        from: Option<CanisterId>,
        /// Id of the snapshot, as the interface shows it.
        #[serde(with = "serde_bytes")]
        snapshot_id: Vec<u8>,
        /// Version of its canister when it was taken.
        canister_version: u64,
        /// When that was.
        taken_at: Time,
        /// The origin of the snapshot.
        source: SnapshotSource,
    },
}

/// One entry of a canister's history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Block time of the change.
    pub time: Time,
    /// Version after it.
    pub version: u64,
    /// The caller of the management canister.
    pub origin: ChangeOrigin,
    /// The change.
    pub details: ChangeDetails,
}

impl Change {
    fn accounted_bytes(&self) -> u64 {
        const PRINCIPAL: usize = 30;
        let details = match &self.details {
            ChangeDetails::Creation { controllers, .. }
            | ChangeDetails::ControllersChange(controllers) => PRINCIPAL * controllers.len(),
            ChangeDetails::LoadSnapshot { snapshot_id, .. } => PRINCIPAL + snapshot_id.len(),
            _ => 0,
        };
        96 + details as u64
    }
}

/// History of a canister: the newest [`CHANGES_KEPT`] changes and how many there were.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "ChangeRecord")]
pub struct ChangeHistory {
    changes: VecDeque<StateArc<Change>>,
    total: u64,
    /// Derived: the sum over the changes. Messages ask for it several times each.
    #[serde(skip)]
    bytes: u64,
}

#[derive(Deserialize)]
struct ChangeRecord {
    changes: VecDeque<StateArc<Change>>,
    total: u64,
}

impl From<ChangeRecord> for ChangeHistory {
    fn from(ChangeRecord { changes, total }: ChangeRecord) -> Self {
        let bytes = sum_of(&changes);
        Self { changes, total, bytes }
    }
}

fn sum_of(changes: &VecDeque<StateArc<Change>>) -> u64 {
    changes.iter().map(|change| change.accounted_bytes()).sum()
}

impl ChangeHistory {
    /// Moves to the state's heap what is elsewhere.
    pub(crate) fn rest(&mut self) {
        rest_queue(&mut self.changes);
    }

    /// Changes kept, oldest first.
    pub fn changes(&self) -> impl DoubleEndedIterator<Item = &Change> + ExactSizeIterator {
        self.changes.iter().map(|change| &**change)
    }

    /// Number of changes since the canister was created, those no longer kept included.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Adds a change.
    pub fn push(&mut self, change: Change) {
        self.total += 1;
        self.bytes += change.accounted_bytes();
        self.changes.push_back(StateArc::new(change));
        while self.changes.len() > CHANGES_KEPT
            && let Some(oldest) = self.changes.pop_front()
        {
            self.bytes -= oldest.accounted_bytes();
        }
    }

    /// Checks the bound and the number of changes.
    ///
    /// # Panics
    /// When an invariant does not hold.
    pub(crate) fn check(&self) {
        let kept = self.changes.len();
        assert!(kept <= CHANGES_KEPT, "{kept} changes are kept");
        assert!(kept as u64 <= self.total, "{kept} changes are kept of {}", self.total);
        assert_eq!(self.bytes, sum_of(&self.changes), "bytes of the changes kept");
        let versions = self.changes().map(|change| change.version);
        assert!(versions.is_sorted(), "the versions of changes do not rise");
    }

    /// Forgets the changes, not their number.
    pub fn clear(&mut self) {
        self.changes.clear();
        self.bytes = 0;
    }

    /// Bytes it is accounted with.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Cycles a canister spent, by purpose (`canister_metrics`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Consumption {
    /// For bytes stored and allocated.
    pub memory: CyclesTotal,
    /// For the compute allocation.
    pub compute_allocation: CyclesTotal,
    /// For taking ingress messages in.
    pub ingress_induction: CyclesTotal,
    /// For executing instructions.
    pub instructions: CyclesTotal,
    /// Calls and their responses.
    pub transmission: CyclesTotal,
    /// Lost when the canister was deleted or its code fell to lack of cycles.
    pub uninstall: CyclesTotal,
    /// For creating canisters.
    pub canister_creation: CyclesTotal,
    /// For requests to servers outside.
    pub http_outcalls: CyclesTotal,
    /// `ic0.cycles_burn128`, and what came back to a balance that was full.
    pub burned: CyclesTotal,
}

impl Consumption {
    /// Sum over all purposes.
    pub fn total(&self) -> CyclesTotal {
        self.memory
            + self.compute_allocation
            + self.ingress_induction
            + self.instructions
            + self.transmission
            + self.uninstall
            + self.canister_creation
            + self.http_outcalls
            + self.burned
    }

    /// Adds another account to this one.
    pub fn add(&mut self, other: &Self) {
        self.memory += other.memory;
        self.compute_allocation += other.compute_allocation;
        self.ingress_induction += other.ingress_induction;
        self.instructions += other.instructions;
        self.transmission += other.transmission;
        self.uninstall += other.uninstall;
        self.canister_creation += other.canister_creation;
        self.http_outcalls += other.http_outcalls;
        self.burned += other.burned;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_log_keeps_the_newest_lines() {
        let mut log = CanisterLog::default();
        for number in 0..10u8 {
            log.push(Time(1), vec![number; 100], 250);
        }
        assert_eq!(log.records().map(|record| record.index).collect::<Vec<_>>(), [8, 9]);
        log.push(Time(1), vec![0; 1000], 250);
        assert_eq!(log.bytes(), 250);
        log.clear();
        log.push(Time(1), vec![], 250);
        assert_eq!(log.records().next().unwrap().index, 11);
    }

    #[test]
    fn lines_without_a_byte_are_bounded_too() {
        let mut log = CanisterLog::default();
        for _ in 0..10_000 {
            log.push(Time(1), vec![], 4096);
        }
        assert_eq!(log.records().count(), 256);
        // A canister that keeps no log keeps none, however much it prints.
        for _ in 0..10_000 {
            log.push(Time(1), vec![7; 100], 0);
        }
        assert_eq!((log.records().count(), log.bytes()), (0, 0));
        log.push(Time(1), vec![], 4096);
        assert_eq!(log.records().next().unwrap().index, 20_000);
    }

    #[test]
    fn the_history_keeps_twenty_changes_and_counts_all() {
        let mut history = ChangeHistory::default();
        for version in 0..30 {
            history.push(Change {
                time: Time(1),
                version,
                origin: ChangeOrigin::User(Principal::anonymous()),
                details: ChangeDetails::CodeUninstall,
            });
        }
        assert_eq!(history.changes().len(), CHANGES_KEPT);
        assert_eq!(history.changes().next().unwrap().version, 10);
        assert_eq!(history.total(), 30);
    }
}
