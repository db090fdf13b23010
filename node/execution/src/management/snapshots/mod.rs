//! Snapshots of canisters: taking, listing and deleting them. [`load`] loads them, [`transfer`]
//! reads and uploads them.
//!
//! A snapshot is a part of its canister's record with memories of its own ([`state::Snapshot`]):
//! taking makes them copies of the canister's memories, loading makes new memories of the canister
//! copies of them. A copy shares its pages until either is written
//! ([`pages::PageStore::create_copy`]), so it takes neither time nor disk then. With
//! `uninstall_code` there is no copy: the snapshot takes the canister's memories over.
//!
//! The result of a call follows from state and argument alone, and every check that can refuse it
//! comes before anything is copied. A copy that fails is a fault of this machine, which tries
//! again. A snapshot is charged, and must fit in the subnet, by the bytes that it is accounted
//! with, as if it shared nothing: that number is the same on every member, unlike the sharing on
//! its disk.

mod load;
mod transfer;

pub(super) use transfer::source;

use ic_management_canister_types as ic;
use pages::MemoryId;
use serde::Deserialize;
use serde_bytes::ByteBuf;
use state::{
    CanisterId, CanisterSnapshot, CanisterState, Cycles, ExecutionState, Global, ModuleGlobal,
    Reject, SNAPSHOTS_MAX, SnapshotMemory, SnapshotModule, SnapshotSource, SubnetCall, Time,
    WASM_PAGE_BYTES, parse_snapshot_id, snapshot_id,
};

use super::settings::check_promises;
use super::{Dispatcher, MethodOutcome, MethodResult, encode, no_value};
use crate::config::FatalError;
use crate::core::Core;
use crate::reject::{self, refused};

/// Instructions that making or loading a snapshot costs in addition to its bytes.
const SNAPSHOT_INSTRUCTIONS: u64 = 2_000_000_000;
/// Instructions that reading or uploading a part of one costs in addition to its bytes.
const PART_INSTRUCTIONS: u64 = 5_000_000;

#[derive(candid::CandidType, Deserialize)]
struct SnapshotArgument {
    canister_id: CanisterId,
    snapshot_id: ByteBuf,
}

impl Dispatcher<'_> {
    pub(super) fn take_canister_snapshot(&mut self, call: &SubnetCall) -> MethodResult {
        let argument: ic::TakeCanisterSnapshotArgs = self.decode(call)?;
        self.check_sender_version(call, argument.sender_canister_version)?;
        self.state.refresh();
        let id = argument.canister_id;
        let canister = self.target(&id)?.clone();
        let replaced = self.replaced(&canister, argument.replace_snapshot.as_deref())?;
        let uninstalls = argument.uninstall_code.unwrap_or(false);
        let Some(execution) = &canister.execution else {
            return refused!(
                rejected_message,
                "Failed to create snapshot for empty canister {id}: it contains no Wasm module."
            );
        };
        let mut snapshot = taken(&canister, execution, self.round.time);
        let instructions = SNAPSHOT_INSTRUCTIONS.saturating_add(snapshot.bytes());
        let cost = self.affordable(&canister, instructions, "taking a snapshot")?;
        let mut planned = canister.clone();
        pay(&mut planned, cost);
        exchange(&mut planned, replaced, snapshot.clone());
        if uninstalls {
            planned.execution = None;
            planned.chunks.clear();
            planned.log.clear();
        }
        self.check_keeping(&canister, &planned)?;
        if !uninstalls {
            self.check_copying(&snapshot)?;
        }

        if uninstalls {
            // They go over to the snapshot as they are.
            self.core.sandbox.forget(&[execution.heap.id, execution.stable.id]);
        } else {
            snapshot.heap.id = self.copy(snapshot.heap, base_bytes(snapshot.heap))?.id;
            snapshot.stable.id = self.copy(snapshot.stable, base_bytes(snapshot.stable))?.id;
        }
        self.count(instructions, 0);
        let number = self.add_snapshot(&id, cost, replaced, snapshot.clone())?;
        if uninstalls {
            // Its memories are the snapshot's now.
            self.target_mut(&id)?.execution = None;
            self.uninstall(call, &id, argument.sender_canister_version)?;
        }
        Ok(MethodOutcome::Reply(encode(&shown(&id, number, &snapshot))?))
    }

    pub(super) fn list_canister_snapshots(&mut self, call: &SubnetCall) -> MethodResult {
        let id = self.canister_in(call)?;
        let snapshots = self.target(&id)?.snapshots.iter();
        let list: Vec<_> =
            snapshots.map(|(number, snapshot)| shown(&id, number, snapshot)).collect();
        Ok(MethodOutcome::Reply(encode(&list)?))
    }

    pub(super) fn delete_canister_snapshot(&mut self, call: &SubnetCall) -> MethodResult {
        let argument: SnapshotArgument = self.decode(call)?;
        let canister = self.target(&argument.canister_id)?;
        let (number, _) = self.snapshot_of(canister, &argument.snapshot_id)?;
        let gone = self.target_mut(&argument.canister_id)?.snapshots.remove(number);
        drop_snapshots(self.core, gone);
        Ok(MethodOutcome::Reply(no_value()))
    }

    /// The snapshot of a canister that has this id, and its number.
    fn snapshot_of<'c>(
        &self,
        canister: &'c CanisterState,
        id: &[u8],
    ) -> Result<(u64, &'c CanisterSnapshot), Reject> {
        let not_found = || reject::snapshot_not_found(&canister.id, id);
        let (owner, number) = parse_snapshot_id(id).ok_or_else(not_found)?;
        if owner == canister.id {
            let snapshot = canister.snapshots.get(number).ok_or_else(not_found)?;
            return Ok((number, snapshot));
        }
        if self.state.get(&owner).is_some_and(|other| other.snapshots.get(number).is_some()) {
            return refused!(
                rejected_message,
                "The snapshot {} does not belong to canister {}.",
                hex::encode(id),
                canister.id
            );
        }
        Err(not_found())
    }

    /// The number of the snapshot that a new one takes the place of; without one there must be room
    /// for one more.
    fn replaced(
        &self,
        canister: &CanisterState,
        named: Option<&[u8]>,
    ) -> Result<Option<u64>, Reject> {
        if let Some(named) = named {
            return Ok(Some(self.snapshot_of(canister, named)?.0));
        }
        if canister.snapshots.len() >= SNAPSHOTS_MAX {
            return refused!(
                rejected_message,
                "Canister {} has reached the maximum number of snapshots allowed: {SNAPSHOTS_MAX}. \
                 Delete one, or name one to replace (replace_snapshot).",
                canister.id
            );
        }
        Ok(None)
    }

    /// Price of these instructions, if the canister has that much above its freezing threshold.
    fn affordable(
        &self,
        canister: &CanisterState,
        instructions: u64,
        what: &str,
    ) -> Result<Cycles, Reject> {
        let cost = self.core.costs_of(&canister.id).execution(instructions);
        self.core.check_affordable(canister, cost, what)?;
        Ok(cost)
    }

    /// Whether the subnet has room for what the canister would be, and the canister cycles to last
    /// its freezing threshold then.
    fn check_keeping(&self, canister: &CanisterState, next: &CanisterState) -> Result<(), Reject> {
        check_promises(self.core, self.state, Some(canister), next)?;
        let (before, after) = (canister.memory_usage().total(), next.memory_usage().total());
        let needed = self.core.costs_of(&next.id).freezing_limit(next);
        if next.cycles < needed {
            let grown = after.saturating_sub(before);
            return Err(reject::memory_too_dear(&next.id, grown, next.cycles, needed));
        }
        Ok(())
    }

    /// Puts a snapshot into its canister's record, which pays for it. Its number.
    fn add_snapshot(
        &mut self,
        id: &CanisterId,
        cost: Cycles,
        replaced: Option<u64>,
        snapshot: CanisterSnapshot,
    ) -> Result<u64, Reject> {
        let core = self.core;
        let canister = self.target_mut(id)?;
        pay(canister, cost);
        let (number, gone) = exchange(canister, replaced, snapshot);
        drop_snapshots(core, gone);
        Ok(number)
    }

    /// Whether the subnet has room for a second copy of a snapshot's memories. Pages are hardly
    /// ever copied, but a memory that is in too many files is copied at once
    /// ([`pages::PageStore::create_copy`]), and the memory it replaces is on disk until the next
    /// checkpoint: a round should not wait for room that only a checkpoint frees. (Several such
    /// copies in one round are each checked alone, and then it may.) The files of a memory differ
    /// from member to member, so the check does not depend on them.
    fn check_copying(&self, snapshot: &CanisterSnapshot) -> Result<(), Reject> {
        let bytes = snapshot.heap.bytes().saturating_add(snapshot.stable.bytes());
        let taken = self.state.totals().memory_taken;
        let capacity = self.core.limits().subnet.memory_capacity_bytes;
        if taken.saturating_add(bytes) <= capacity {
            return Ok(());
        }
        refused!(
            subnet_oversubscribed,
            "{bytes} bytes of memory cannot be copied: {taken} of the subnet's {capacity} bytes \
             are taken (subnet.memory_capacity_bytes)."
        )
    }

    fn next_memory(&mut self) -> MemoryId {
        let id = MemoryId(self.state.subnet.next_memory);
        self.state.subnet.next_memory += 1;
        id
    }

    /// A new memory that may grow to `base_bytes` and begins as a copy of `from`.
    fn copy(
        &mut self,
        from: SnapshotMemory,
        base_bytes: u64,
    ) -> Result<pages::MemoryLayout, FatalError> {
        let id = self.next_memory();
        let pages = &self.core.pages;
        self.core.attempts(self.place.clone()).until(|| {
            let source = pages.layout(from.id)?;
            pages.create_copy(id, base_bytes, &source, from.bytes())
        })
    }
}

/// Length of the base of a memory that does not grow. It is never zero, so that mapping or sending
/// one needs no special case.
fn base_bytes(memory: SnapshotMemory) -> u64 {
    memory.bytes().max(WASM_PAGE_BYTES)
}

fn pay(canister: &mut CanisterState, cost: Cycles) {
    canister.debit(cost);
    canister.consumption.instructions += cost;
}

/// Adds a snapshot in the place of another. Its number, and the other.
fn exchange(
    canister: &mut CanisterState,
    replaced: Option<u64>,
    snapshot: CanisterSnapshot,
) -> (u64, Option<CanisterSnapshot>) {
    let gone = replaced.and_then(|number| canister.snapshots.remove(number));
    (canister.snapshots.add(snapshot), gone)
}

/// Contents of a snapshot of a canister; its memories are the canister's own.
fn taken(canister: &CanisterState, execution: &ExecutionState, now: Time) -> CanisterSnapshot {
    let module = &execution.module;
    let memory =
        |memory: &state::Memory| SnapshotMemory { id: memory.id, wasm_pages: memory.wasm_pages };
    CanisterSnapshot {
        source: SnapshotSource::Taken,
        taken_at: now,
        canister_version: canister.version,
        module: SnapshotModule::Installed { hash: module.hash, bytes: module.bytes },
        globals: all_globals(&module.info.globals, &execution.globals),
        heap: memory(&execution.heap),
        stable: memory(&execution.stable),
        chunks: canister.chunks.clone(),
        certified_data: canister.certified_data.clone(),
        global_timer: Some(canister.global_timer),
        low_memory_hook: Some(canister.low_memory_hook),
    }
}

/// Values of the globals of a module, of which the canister has those that are mutable.
fn all_globals(of_module: &[ModuleGlobal], mutable: &[Global]) -> Vec<Global> {
    let mut values = mutable.iter().copied();
    let value = |global: &ModuleGlobal| {
        let own = if global.mutable { values.next() } else { None };
        own.unwrap_or(global.initial)
    };
    of_module.iter().map(value).collect()
}

fn shown(id: &CanisterId, number: u64, snapshot: &CanisterSnapshot) -> ic::Snapshot {
    ic::Snapshot {
        id: snapshot_id(id, number),
        taken_at_timestamp: snapshot.taken_at.0,
        total_size: snapshot.bytes(),
    }
}

/// Drops the memories of removed snapshots; their blobs may be unused now.
pub(super) fn drop_snapshots(core: &Core, gone: impl IntoIterator<Item = CanisterSnapshot>) {
    for snapshot in gone {
        snapshot.memories().for_each(|memory| core.pages.remove(memory));
        core.note_blobs_changed();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globals_of_a_snapshot_are_those_of_the_module_with_the_canister_s_values() {
        let global = |mutable, value| ModuleGlobal { mutable, initial: Global::I32(value) };
        let module = [global(true, 1), global(false, 2), global(true, 3)];
        let values = [Global::I32(10), Global::I32(30)];
        assert_eq!(
            all_globals(&module, &values),
            [Global::I32(10), Global::I32(2), Global::I32(30)]
        );
    }
}
