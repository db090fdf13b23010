//! Installations from their first slice to their last (docs/internals/sandbox.md, "Long messages").
//!
//! An installation runs in slices as messages do ([`crate::slices`]). When it is paused, its inputs
//! are stored in its canister ([`state::PausedMessage`], without a call context). Its grant counts
//! the instructions of both executions together, so the end of a slice depends on the installation
//! alone, also where it passes from one execution to the other. While one is paused, others run for
//! one slice only: so no machine has to keep more than one, and one installation at a time uses the
//! subnet's free memory.
//!
//! Pages that the executions write are appended to files without a name ([`InstallTargets`]), which
//! are no part of any memory. They and the outcome of `canister_pre_upgrade` stay between two
//! slices ([`CachedInstallation`]); a machine that has lost them runs the installation from its
//! beginning up to the newest grant. Only after both executions ended successfully, memories are
//! created, and the pages are copied into them and become one version.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candid::Principal;
use pages::{AppendTarget, MemoryId, MemoryLayout, PAGE_BYTES, PageFile, SegmentId};
use sandbox::{Changes, Entry, Grant, MessageLimits, Outcome, Slice, SlicedName};
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;
use state::{
    CanisterId, CanisterState, Cycles, DeploymentMode, ExecutionState, Height, InstalledModule,
    Memory, Origin, PausedMessage, Reject, StateArc, SubnetCall, Time, WASM_PAGE_BYTES, state_heap,
};

use super::overlay::{mount_over, overlay, part};
use super::{CALL_INSTRUCTIONS, Dispatcher, MethodOutcome, MethodResult, Refusal, no_value};
use crate::config::FatalError;
use crate::machine::{ExecutionInput, ExecutionResult, Invocation, Machine, Targets};
use crate::reject::{self, refused};

/// Version of [`Record`].
const RECORD_VERSION: u8 = 2;

/// Numbers of memories and segments that belong to no memory of the store.
const SCRATCH: u64 = 1 << 63;

pub(crate) fn is_scratch(segment: SegmentId) -> bool {
    segment.0 & SCRATCH != 0
}

/// How the mode treats what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Plan {
    pub(super) deployment: DeploymentMode,
    pub(super) runs_pre_upgrade: bool,
    pub(super) keeps_heap: bool,
    pub(super) keeps_stable: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Record {
    /// The call, without its argument.
    pub(super) call: SubnetCall,
    pub(super) told_version: Option<u64>,
    pub(super) plan: Plan,
    pub(super) module: InstalledModule,
    /// Argument of the new code.
    #[serde(with = "serde_bytes")]
    pub(super) arg: Vec<u8>,
    pub(super) compile_cost: Cycles,
    /// The first of the executions.
    begun: ExecutionInput,
}

#[derive(Debug)]
pub(super) struct Installing {
    pub(super) id: CanisterId,
    pub(super) record: Record,
    /// Cycles taken from the balance for it.
    pub(super) prepaid: Cycles,
    since: Height,
    granted: u64,
    /// Of them, those that were counted in rounds before.
    pub(super) counted: u64,
    /// Memories that are not in the store, which workers may have mapped.
    fresh: Vec<MemoryId>,
}

/// Room for everything an installation may write, in files of its own. `heap` is of the memory that
/// the canister has afterwards.
#[derive(Debug)]
struct InstallTargets {
    heap: AppendTarget,
    stable: AppendTarget,
    /// For what `canister_pre_upgrade` does to a heap that is then thrown away.
    old_heap: Option<AppendTarget>,
    /// The memories that the new code begins with, where it does not keep the old ones.
    fresh_heap: Option<MemoryLayout>,
    fresh_stable: Option<MemoryLayout>,
}

/// State that this machine keeps of an installation between two slices.
#[derive(Debug)]
struct CachedInstallation {
    id: CanisterId,
    since: Height,
    room: Arc<InstallTargets>,
    /// The outcome of `canister_pre_upgrade`, if it is over.
    first: Option<Outcome>,
}

/// The installation that is paused, as far as this machine keeps it.
#[derive(Debug, Default)]
pub(crate) struct Installations {
    cached: Mutex<Option<CachedInstallation>>,
    numbers: AtomicU64,
}

/// Totals of the executions of an installation.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) instructions: u64,
    pub(super) work: u64,
    pub(super) log: Vec<ByteBuf>,
}

/// Both executions ended well.
struct CompletedInstallation {
    next: CanisterState,
    /// Of both executions.
    changes: Changes,
    room: Arc<InstallTargets>,
}

enum Step {
    Paused { instructions: u64, work: u64, wasm_pages: u64 },
    Ended(Result<Box<CompletedInstallation>, Refusal>, Tally),
}

impl Installations {
    fn lock(&self) -> MutexGuard<'_, Option<CachedInstallation>> {
        self.cached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what is kept of this canister's installation.
    fn take(&self, id: CanisterId) -> Option<CachedInstallation> {
        self.lock().take_if(|kept| kept.id == id)
    }

    fn number(&self) -> u64 {
        SCRATCH | self.numbers.fetch_add(1, Ordering::Relaxed)
    }
}

impl Installing {
    fn restore(id: CanisterId, paused: &PausedMessage) -> Result<Self, FatalError> {
        let unreadable = |reason: String| FatalError::Record {
            what: format!("the paused installation of canister {id}"),
            reason,
        };
        let record = match paused.record.split_first() {
            Some((&RECORD_VERSION, record)) => record,
            Some((version, _)) => return Err(unreadable(format!("it has version {version}"))),
            None => return Err(unreadable("it is empty".into())),
        };
        let record = postcard::from_bytes(record).map_err(|error| unreadable(error.to_string()))?;
        Ok(Self {
            id,
            record,
            prepaid: paused.prepaid,
            since: paused.since,
            granted: paused.granted,
            counted: paused.instructions,
            fresh: Vec::new(),
        })
    }

    fn name(&self, part: u8) -> SlicedName {
        SlicedName { since: self.since, canister_id: self.id, part }
    }
}

fn encode(record: &Record) -> Result<Vec<u8>, FatalError> {
    postcard::to_extend(record, vec![RECORD_VERSION]).map_err(|error| FatalError::Record {
        what: format!("the paused installation of canister {}", record.begun.context.canister_id),
        reason: error.to_string(),
    })
}

impl Dispatcher<'_> {
    /// Takes the prepayment and runs the first slice. `order` is the call without its argument.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn begin_install(
        &mut self,
        call: SubnetCall,
        (told_version, arg): (Option<u64>, Vec<u8>),
        plan: Plan,
        module: InstalledModule,
        (id, growable_bytes): (CanisterId, u64),
        (prepaid, compile_cost): (Cycles, Cycles),
    ) -> MethodResult {
        let canister = self.target_mut(&id)?;
        canister.debit(prepaid);
        let canister = canister.clone();
        let entry = if plan.runs_pre_upgrade { Entry::PreUpgrade } else { last_entry(plan) };
        let invocation = Invocation {
            caller: call.origin.caller(),
            growable_bytes,
            heap_limited: !plan.runs_pre_upgrade,
            ..Invocation::system(entry, self.core.install_limits())
        };
        let begun = self.machine().begin(&canister, invocation);
        let installing = Installing {
            id,
            record: Record { call, told_version, plan, module, arg, compile_cost, begun },
            prepaid,
            since: self.round.height,
            granted: self.slice(),
            counted: 0,
            fresh: Vec::new(),
        };
        self.run_install(installing, Vec::new())
    }

    /// Grants a slice to the paused installation of a canister and runs it.
    pub(crate) fn resume_install(&mut self, id: &CanisterId) -> Result<(), FatalError> {
        let Some(paused) = self.state.get_mut(id).and_then(|canister| canister.paused.take())
        else {
            return Ok(());
        };
        self.state.refresh();
        self.effects.work += CALL_INSTRUCTIONS;
        let mut installing = Installing::restore(*id, &paused)?;
        let call = installing.record.call.clone();
        if let Some(canister) = self.state.get(id) {
            let slots = self.core.limits().subnet.queue_slots;
            installing.record.begun.restore_canister_context(canister, slots);
        }
        installing.granted = installing.granted.saturating_add(self.slice());
        let handling = match self.verdict() {
            Some(verdict) => {
                self.effects.verdicts.push(verdict);
                let reject = reject::ruled_out(&Principal::management_canister());
                self.forget_install(&installing);
                let tally = Tally { instructions: installing.counted, ..Tally::default() };
                self.charge_failed(&installing, &tally).and(Err(reject.into()))
            }
            None => self.run_install(installing, paused.waiting.clone()),
        };
        let is_over = self.state.get(id).is_none_or(|canister| canister.paused.is_none());
        if is_over {
            self.state.subnet.installing = None;
            let next = self.state.subnet.long_installs.pop_front();
            state_heap::within(|| {
                if let Some(canister) = self.state.get_mut(id) {
                    // Of those that waited for something before, some may still do.
                    canister.released += paused.waiting.len() as u64;
                }
                let released = paused.waiting.into_iter().map(StateArc::take);
                let released = released.map(|call| SubnetCall { released_by: Some(*id), ..call });
                self.effects.management.extend(released);
                self.effects.management.extend(next);
            });
        }
        self.conclude(call, handling)
    }

    fn slice(&self) -> u64 {
        self.core.limits().execution.instructions_per_slice.max(1)
    }

    /// Work that was granted, and so counted, before this slice.
    pub(super) fn worked(&self, installing: &Installing) -> u64 {
        installing.granted.saturating_sub(self.slice())
    }

    fn machine(&self) -> Machine<'_> {
        Machine::new(self.core, self.round, 0, self.place.clone())
    }

    fn run_install(
        &mut self,
        mut installing: Installing,
        waiting: Vec<StateArc<SubnetCall>>,
    ) -> MethodResult {
        self.state.refresh();
        let canister = self.target(&installing.id)?.clone();
        match self.slice_of(&canister, &mut installing)? {
            Step::Paused { instructions, work, wasm_pages } => {
                let tally = Tally { instructions, work, log: Vec::new() };
                if self.is_installing_another(&installing) {
                    self.forget_install(&installing);
                    self.charge_failed(&installing, &tally)?;
                    return Ok(MethodOutcome::AwaitsTurn);
                }
                let before = wasm_pages_of(&canister);
                let module = &installing.record.module;
                let grown_bytes = wasm_pages
                    .saturating_sub(before)
                    .saturating_mul(WASM_PAGE_BYTES)
                    .saturating_add(module.bytes + module.custom_section_bytes());
                let usage = canister.memory_usage().total().saturating_add(grown_bytes);
                if let Err(reject) = self.check_room(&canister, usage) {
                    self.forget_install(&installing);
                    self.charge_failed(&installing, &tally)?;
                    return Err(reject.into());
                }
                self.count_slice(&installing, &tally, 0);
                self.pause_install(installing, instructions, grown_bytes, waiting)?;
                Ok(MethodOutcome::Waits)
            }
            Step::Ended(Ok(done), tally) => {
                let CompletedInstallation { mut next, changes, room } = *done;
                let lasting = self.check_end(&canister, &installing, &next, &changes, &tally);
                if let Err(reject) = lasting {
                    self.forget_install(&installing);
                    self.charge_failed(&installing, &tally)?;
                    return Err(reject.into());
                }
                let delta_bytes = self.commit_install(&mut next, &changes, &room)?;
                drop(room);
                self.count_slice(&installing, &tally, delta_bytes);
                self.forget_install(&installing);
                self.finish_install(&installing, &canister, next, &tally)?;
                Ok(MethodOutcome::Reply(no_value()))
            }
            Step::Ended(Err(refusal), tally) => {
                self.forget_install(&installing);
                self.charge_failed(&installing, &tally)?;
                Err(refusal)
            }
        }
    }

    fn is_installing_another(&self, installing: &Installing) -> bool {
        self.state.subnet.installing.is_some_and(|id| id != installing.id)
    }

    /// Stores an installation that is resumed in a later round.
    fn pause_install(
        &mut self,
        installing: Installing,
        instructions: u64,
        grown_bytes: u64,
        waiting: Vec<StateArc<SubnetCall>>,
    ) -> Result<(), Refusal> {
        let Installing { id, mut record, prepaid, since, granted, .. } = installing;
        record.begun = record.begun.without_canister_context();
        let message_bytes = record.call.accounted_bytes() + record.arg.len() as u64;
        let paused = PausedMessage {
            since,
            context: None,
            granted,
            instructions,
            prepaid,
            cycles: record.call.cycles,
            module: Some(record.module.hash),
            grown_bytes,
            message_bytes,
            is_guaranteed: matches!(record.call.origin, Origin::Canister { .. }),
            payload: None,
            record: StateArc::new(ByteBuf::from(state_heap::move_bytes(encode(&record)?))),
            waiting,
        };
        self.target_mut(&id)?.paused = Some(paused);
        self.state.subnet.installing = Some(id);
        Ok(())
    }

    /// Drops the state of an installation that is over; its module may be unused now. Its overlays
    /// were mounted, and those of the next one would look the same.
    fn forget_install(&self, installing: &Installing) {
        for part in [0, 1] {
            self.core.sandbox.abandon(&installing.name(part));
        }
        self.core.installations.take(installing.id);
        self.core.note_blobs_changed();
        let fresh = installing.fresh.iter().copied();
        let own = self.state.get(&installing.id).into_iter().flat_map(super::install::memories);
        self.core.sandbox.forget(&fresh.chain(own).collect::<Vec<_>>());
    }

    /// Whether the subnet has room for the canister when it uses so much.
    fn check_room(&self, canister: &CanisterState, usage: u64) -> Result<(), Reject> {
        let capacity = self.core.limits().subnet.memory_capacity_bytes;
        let others = self.state.totals().memory_taken.saturating_sub(canister.memory_taken());
        let needed = usage.max(canister.settings.memory_allocation);
        if others.saturating_add(needed) <= capacity {
            return Ok(());
        }
        refused!(
            subnet_oversubscribed,
            "After the installation canister {} would need {usage} bytes: {others} of the subnet's \
             {capacity} bytes are taken (subnet.memory_capacity_bytes).",
            canister.id
        )
    }

    fn check_end(
        &self,
        canister: &CanisterState,
        installing: &Installing,
        next: &CanisterState,
        changes: &Changes,
        tally: &Tally,
    ) -> Result<(), Reject> {
        let costs = self.core.costs_of(&installing.id);
        let cost = costs.execution(tally.instructions).min(installing.prepaid);
        self.check_lasting(next, changes, installing.prepaid - cost)?;
        if installing.counted == 0 && !installing.record.plan.runs_pre_upgrade {
            // There was room when it began, no other canister took any, and its growth was bounded
            // by it.
            return Ok(());
        }
        self.has_room_for(canister, &installing.record.module)?;
        let pages = changes.heap_wasm_pages + changes.stable_wasm_pages;
        let grown = pages.saturating_sub(wasm_pages_of(next)).saturating_mul(WASM_PAGE_BYTES);
        self.check_room(canister, next.memory_usage().total().saturating_add(grown))
    }

    /// Runs as much as is granted.
    fn slice_of(
        &self,
        canister: &CanisterState,
        installing: &mut Installing,
    ) -> Result<Step, FatalError> {
        let CachedInstallation { room, mut first, .. } =
            self.take_cached_or_reserve(canister, installing)?;
        installing.fresh = room.fresh().collect();
        let installing = &*installing;
        let record = &installing.record;
        let (plan, limits) = (record.plan, record.begun.limits);
        let keep = |first| self.cache_installation(installing, &room, first);
        let machine = self.machine();
        let mut tally = Tally::default();

        // The old code's last word.
        let mut begun = record.begun.clone();
        let mut changes: Option<Changes> = None;
        if plan.runs_pre_upgrade {
            let outcome = match first.take() {
                Some(outcome) => outcome,
                None => match self.run_pre_upgrade(canister, installing, &room)? {
                    Slice::Ended(outcome) => *outcome,
                    Slice::Paused(progress) => {
                        keep(None);
                        return Ok(paused(progress));
                    }
                },
            };
            let balance = outcome.changes.as_ref().map(|changes| changes.balance);
            let ran = machine.evaluate(canister, &begun, outcome.clone());
            match after(canister, ran, &mut tally) {
                Ok(all) => changes = Some(all),
                Err(refusal) => return Ok(Step::Ended(Err(refusal), tally)),
            }
            begun.context.balance = balance.unwrap_or(begun.context.balance);
            first = Some(outcome);
            if tally.work >= installing.granted && tally.instructions < limits.instructions {
                keep(first);
                let wasm_pages = changes
                    .as_ref()
                    .map_or(0, |all| all.heap_wasm_pages.saturating_add(all.stable_wasm_pages));
                let Tally { instructions, work, .. } = tally;
                return Ok(Step::Paused { instructions, work, wasm_pages });
            }
        }

        // The new code's first.
        let mut next = new_code(canister, record, &room);
        let (heap_used, stable_used) =
            changes.as_ref().map_or((0, 0), |first| carry_over(&mut next, first, &room, plan));
        self.set_new_code_context(&mut begun, &next, record, tally.instructions);
        let used = (heap_used, stable_used);
        let slice = self.run_new_code(&next, installing, &begun, &room, used, tally.work)?;
        let outcome = match slice {
            Slice::Ended(outcome) => *outcome,
            Slice::Paused(progress) => {
                keep(first);
                let so_far = sandbox::Progress {
                    instructions: progress.instructions.saturating_add(tally.instructions),
                    work: progress.work.saturating_add(tally.work),
                    ..progress
                };
                return Ok(paused(so_far));
            }
        };
        let ran = machine.evaluate(&next, &begun, outcome);
        let last = match after(canister, ran, &mut tally) {
            Ok(changes) => changes,
            Err(refusal) => return Ok(Step::Ended(Err(refusal), tally)),
        };
        next.cycles = last.balance;
        next.consumption.burned += last.cycles_burned;
        let changes = match &changes {
            Some(first) => merged(canister, &mut next, first, last, plan),
            None => last,
        };
        Ok(Step::Ended(Ok(Box::new(CompletedInstallation { next, changes, room })), tally))
    }

    /// Keeps the state of an installation until it is resumed, if this machine keeps any.
    fn cache_installation(
        &self,
        installing: &Installing,
        room: &Arc<InstallTargets>,
        first: Option<Outcome>,
    ) {
        let keeps_any = self.core.limits().installations_kept() > 0;
        if keeps_any && !self.is_installing_another(installing) {
            let Installing { id, since, .. } = *installing;
            let kept = CachedInstallation { id, since, room: Arc::clone(room), first };
            *self.core.installations.lock() = Some(kept);
        }
    }

    /// Runs as much of the old code's `canister_pre_upgrade` as is granted.
    fn run_pre_upgrade(
        &self,
        canister: &CanisterState,
        installing: &Installing,
        room: &InstallTargets,
    ) -> Result<Slice, FatalError> {
        let begun = &installing.record.begun;
        let heap = room.old_heap.as_ref().unwrap_or(&room.heap);
        let targets = Targets {
            heap: part(heap, 0, begun.limits.heap_dirty_bytes),
            stable: part(&room.stable, 0, begun.limits.stable_dirty_bytes),
        };
        let grant = Grant::new(installing.name(0), installing.granted, self.slice());
        self.machine().run(canister, begun.clone(), targets, &grant)
    }

    /// Runs as much of the new code's first execution as is granted, after `work` of the old code,
    /// which used the given numbers of pages of the room.
    fn run_new_code(
        &self,
        next: &CanisterState,
        installing: &Installing,
        begun: &ExecutionInput,
        room: &InstallTargets,
        (heap_used, stable_used): (u64, u64),
        work: u64,
    ) -> Result<Slice, FatalError> {
        let targets = Targets {
            heap: part(&room.heap, heap_used, begun.limits.heap_dirty_bytes),
            stable: part(&room.stable, stable_used, begun.limits.stable_dirty_bytes),
        };
        let until = installing.granted.saturating_sub(work).max(1);
        let grant = Grant::new(installing.name(1), until, self.slice());
        self.machine().run(next, begun.clone(), targets, &grant)
    }

    /// Sets the context of the new code's execution, after that of the old one.
    fn set_new_code_context(
        &self,
        begun: &mut ExecutionInput,
        next: &CanisterState,
        record: &Record,
        used: u64,
    ) {
        begun.entry = last_entry(record.plan);
        let left = begun.limits.instructions.saturating_sub(used).max(1);
        begun.limits = MessageLimits { instructions: left, ..begun.limits };
        let context = &mut begun.context;
        context.arg.clone_from(&record.arg);
        context.canister_version = next.version;
        context.global_timer = next.global_timer;
        context.freezing_threshold = self.core.costs_of(&next.id).freezing_limit(next);
        let limit = next.settings.wasm_memory_limit;
        context.wasm_memory_limit = (limit > 0).then_some(limit);
    }

    /// This machine's state of the installation, or room for it to begin again.
    fn take_cached_or_reserve(
        &self,
        canister: &CanisterState,
        installing: &Installing,
    ) -> Result<CachedInstallation, FatalError> {
        let kept = self.core.installations.take(installing.id);
        if let Some(kept) = kept.filter(|kept| kept.since == installing.since) {
            return Ok(kept);
        }
        if installing.granted > self.slice() {
            // Overlays that were mounted look like those that will be.
            let memories: Vec<_> = super::install::memories(canister).collect();
            self.core.sandbox.forget(&memories);
        }
        let room = self.reserve_targets(canister, &installing.record)?;
        Ok(CachedInstallation {
            id: installing.id,
            since: installing.since,
            room: Arc::new(room),
            first: None,
        })
    }

    /// Finds room for everything at once.
    fn reserve_targets(
        &self,
        canister: &CanisterState,
        record: &Record,
    ) -> Result<InstallTargets, FatalError> {
        let limits = &record.begun.limits;
        let pages = |bytes: u64| bytes.div_ceil(PAGE_BYTES);
        let twice = 1 + u64::from(record.plan.runs_pre_upgrade);
        let sizes = &self.core.limits().module;
        let is_memory64 = record.module.info.memory64;
        let heap_bytes = if is_memory64 { sizes.heap64_bytes } else { sizes.heap32_bytes };
        let old = canister.execution.as_ref();
        let kept_heap = old.filter(|_| record.plan.keeps_heap).map(|old| old.heap.id);
        let kept_stable = old.filter(|_| record.plan.keeps_stable).map(|old| old.stable.id);
        let fresh_heap = self.fresh(kept_heap, heap_bytes)?;
        let fresh_stable = self.fresh(kept_stable, sizes.stable_bytes)?;
        let id = |kept: Option<MemoryId>, fresh: &Option<MemoryLayout>| {
            kept.or(fresh.as_ref().map(|layout| layout.id)).unwrap_or(MemoryId(SCRATCH))
        };
        let old_heap = old.filter(|_| record.plan.runs_pre_upgrade && !record.plan.keeps_heap);
        Ok(InstallTargets {
            old_heap: old_heap
                .map(|old| self.target_of(old.heap.id, pages(limits.heap_dirty_bytes)))
                .transpose()?,
            heap: self
                .target_of(id(kept_heap, &fresh_heap), twice * pages(limits.heap_dirty_bytes))?,
            stable: self.target_of(
                id(kept_stable, &fresh_stable),
                twice * pages(limits.stable_dirty_bytes),
            )?,
            fresh_heap,
            fresh_stable,
        })
    }

    /// A memory of zeros that is not in the store, unless one is kept.
    fn fresh(
        &self,
        kept: Option<MemoryId>,
        base_bytes: u64,
    ) -> Result<Option<MemoryLayout>, FatalError> {
        if kept.is_some() {
            return Ok(None);
        }
        let id = MemoryId(self.core.installations.number());
        let base = Arc::new(PageFile::from_file(Arc::new(self.scratch(base_bytes)?)));
        Ok(Some(MemoryLayout {
            id,
            version: 0,
            epoch: 0,
            base,
            base_bytes,
            parts: Arc::default(),
            segments: Arc::default(),
            runs: Arc::default(),
            pin: Arc::default(),
        }))
    }

    /// A place to append pages to, of a memory that is not in the store.
    fn target_of(&self, id: MemoryId, pages_max: u64) -> Result<AppendTarget, FatalError> {
        Ok(AppendTarget {
            id,
            segment: SegmentId(self.core.installations.number()),
            file: Arc::new(self.scratch(0)?),
            offset_page: 0,
            pages_max,
            free: 0..0,
        })
    }

    fn scratch(&self, bytes: u64) -> Result<std::fs::File, FatalError> {
        self.core.attempts(self.place.clone()).until(|| {
            // Another name each time: what an attempt left behind must not be in the way of the
            // next.
            let id = MemoryId(self.core.installations.number());
            self.core.pages.scratch(id, bytes)
        })
    }

    /// Creates the memories that are new and copies the pages of both executions into all of them.
    /// Returns the bytes of delta.
    fn commit_install(
        &mut self,
        next: &mut CanisterState,
        changes: &Changes,
        room: &InstallTargets,
    ) -> Result<u64, FatalError> {
        let core = self.core;
        let mut attempts = core.attempts(self.place.clone());
        let Some(execution) = next.execution.as_mut() else { return Ok(0) };
        for (memory, fresh) in
            [(&mut execution.heap, &room.fresh_heap), (&mut execution.stable, &room.fresh_stable)]
        {
            let Some(fresh) = fresh else { continue };
            memory.id = MemoryId(self.state.subnet.next_memory);
            self.state.subnet.next_memory += 1;
            let create = || core.pages.create(memory.id, fresh.base_bytes);
            memory.layout = Some(attempts.until(create)?);
        }
        let (heap_id, stable_id) = (execution.heap.id, execution.stable.id);
        let mut copied = changes.clone();
        let mut copy = |id, from: &AppendTarget, runs: &mut Vec<pages::Run>| {
            let pages = runs.iter().map(|run| run.pages).sum::<u64>();
            let target = attempts.until(|| core.pages.reserve(id, pages.max(1)))?;
            *runs = attempts.until(|| core.pages.copy_pages(&target, &from.file, runs))?;
            Ok::<_, FatalError>(target)
        };
        let heap = copy(heap_id, &room.heap, &mut copied.heap_runs)?;
        let stable = copy(stable_id, &room.stable, &mut copied.stable_runs)?;
        self.machine().commit(next, &copied, Targets { heap, stable })
    }
}

impl InstallTargets {
    fn fresh(&self) -> impl Iterator<Item = MemoryId> + '_ {
        self.fresh_heap.iter().chain(&self.fresh_stable).map(|layout| layout.id)
    }
}

fn paused(progress: sandbox::Progress) -> Step {
    Step::Paused {
        instructions: progress.instructions,
        work: progress.work,
        wasm_pages: progress.heap_wasm_pages.saturating_add(progress.stable_wasm_pages),
    }
}

fn last_entry(plan: Plan) -> Entry {
    match plan.deployment {
        DeploymentMode::Upgrade => Entry::PostUpgrade { keep_heap: plan.keeps_heap },
        DeploymentMode::Install | DeploymentMode::Reinstall => Entry::Init,
    }
}

fn wasm_pages_of(canister: &CanisterState) -> u64 {
    let execution = canister.execution.as_ref();
    execution.map_or(0, |execution| execution.heap.wasm_pages + execution.stable.wasm_pages)
}

/// The canister with its new code and the memories that it starts with.
fn new_code(canister: &CanisterState, record: &Record, room: &InstallTargets) -> CanisterState {
    let mut next = canister.clone();
    let (old_heap, old_stable) = match next.execution.take() {
        Some(execution) => (Some(execution.heap), Some(execution.stable)),
        None => (None, None),
    };
    let memory = |old: Option<Memory>, fresh: &Option<MemoryLayout>, id| match fresh {
        Some(layout) => Memory { id: layout.id, wasm_pages: 0, layout: Some(layout.clone()) },
        None => old.unwrap_or(Memory { id, wasm_pages: 0, layout: None }),
    };
    next.execution = Some(ExecutionState {
        module: StateArc::new(record.module.clone()),
        globals: Vec::new(),
        heap: memory(old_heap, &room.fresh_heap, room.heap.id),
        stable: memory(old_stable, &room.fresh_stable, room.stable.id),
    });
    next.version += 1;
    next.global_timer = Time(0);
    if record.plan.deployment != DeploymentMode::Upgrade {
        next.certified_data.clear();
    }
    next
}

/// Takes note of an execution; its changes, if it ended well.
fn after(
    canister: &CanisterState,
    ran: ExecutionResult,
    tally: &mut Tally,
) -> Result<Changes, Refusal> {
    tally.instructions += ran.instructions;
    tally.work += ran.work;
    tally.log.extend(ran.log);
    match (ran.result, ran.changes) {
        (Err(reject), _) => Err(reject.into()),
        (Ok(_), Some(changes)) => Ok(changes),
        // An installation always has changes, or the worker's answer would not have been taken.
        (Ok(_), None) => Err(reject::did_not_reply(&canister.id).into()),
    }
}

/// Passes the results of the old code's last execution to the new code: its balance, its certified
/// data, and its pages as overlays. Returns how many pages of the room are used, of heap and stable
/// memory.
fn carry_over(
    next: &mut CanisterState,
    first: &Changes,
    room: &InstallTargets,
    plan: Plan,
) -> (u64, u64) {
    next.cycles = first.balance;
    next.consumption.burned += first.cycles_burned;
    if let Some(data) = &first.certified_data {
        next.certified_data = data.to_vec();
    }
    let Some(execution) = next.execution.as_mut() else { return (0, 0) };
    let (runs, wasm_pages) = (&first.stable_runs, first.stable_wasm_pages);
    let stable_used = mount_over(&mut execution.stable, &room.stable, runs, wasm_pages);
    if !plan.keeps_heap {
        return (0, stable_used);
    }
    let (runs, wasm_pages) = (&first.heap_runs, first.heap_wasm_pages);
    (mount_over(&mut execution.heap, &room.heap, runs, wasm_pages), stable_used)
}

/// The changes of both executions, which ended well: their pages become one version.
fn merged(
    canister: &CanisterState,
    next: &mut CanisterState,
    first: &Changes,
    mut last: Changes,
    plan: Plan,
) -> Changes {
    let old = canister.execution.as_ref();
    let Some(execution) = next.execution.as_mut() else { return last };
    execution.stable.layout = old.and_then(|old| old.stable.layout.clone());
    last.stable_runs = overlay(&first.stable_runs, &last.stable_runs);
    if plan.keeps_heap {
        execution.heap.layout = old.and_then(|old| old.heap.layout.clone());
        last.heap_runs = overlay(&first.heap_runs, &last.heap_runs);
    }
    last
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use state::{Hooks, ModuleHash, ModuleInfo, RequestId};

    use super::*;

    const PINNED: testing::formats::Pin = (2, "2feee7b2d46f310c19084f1bf64fe7c6");

    fn record(plan: Plan, origin: Origin) -> Record {
        let call = SubnetCall {
            origin,
            sender_version: Some(1),
            method_name: "install_code".into(),
            arg: Vec::new(),
            cycles: 2,
            released_by: Some(Principal::from_slice(&[3])),
        };
        let info = ModuleInfo {
            updates: vec!["u".into()],
            queries: vec!["q".into()],
            composite_queries: vec!["c".into()],
            hooks: Hooks { init: true, ..Hooks::default() },
            memory64: true,
            heap_initial_wasm_pages: 4,
            heap_maximum_wasm_pages: Some(5),
            custom_sections: Vec::new(),
            enhanced_orthogonal_persistence: true,
            globals: vec![state::ModuleGlobal { mutable: true, initial: state::Global::I32(11) }],
            compile_instructions: 5,
        };
        Record {
            call,
            told_version: Some(6),
            plan,
            module: InstalledModule::new(ModuleHash([7; 32]), 8, info),
            arg: vec![9],
            compile_cost: 10,
            begun: crate::slices::tests::begun(last_entry(plan)),
        }
    }

    #[test]
    fn what_is_written_down_has_the_bytes_of_its_format() {
        let plan = |deployment, runs_pre_upgrade, keeps_heap, keeps_stable| Plan {
            deployment,
            runs_pre_upgrade,
            keeps_heap,
            keeps_stable,
        };
        let user = Origin::Ingress {
            request_id: RequestId([11; 32]),
            sender: Principal::anonymous(),
            sender_info: None,
        };
        let canister = Origin::Canister {
            caller: Principal::from_slice(&[12]),
            callback: state::CallbackId(13),
            deadline: Some(Time(14)),
        };
        let all = [
            ("install", record(plan(DeploymentMode::Install, false, false, false), user.clone())),
            ("reinstall", record(plan(DeploymentMode::Reinstall, false, false, false), user)),
            ("upgrade", record(plan(DeploymentMode::Upgrade, true, true, true), canister)),
        ];
        let samples = all.map(|(name, record)| {
            let bytes = encode(&record).unwrap();
            assert_eq!(bytes[0], RECORD_VERSION);
            let back: Record = postcard::from_bytes(&bytes[1..]).unwrap();
            assert_eq!(encode(&back).unwrap(), bytes, "{name}");
            (name, bytes)
        });
        let version = RECORD_VERSION.into();
        testing::formats::check("paused installations", version, &samples, PINNED);
    }
}
