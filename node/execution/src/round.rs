//! One round: (state, batch) -> state.
//!
//! ```text
//! let time pass       statuses expire, storage is paid, deadlines and waits end, randomness is
//!                     handed out
//! answer              requests to servers outside get the batch's answers, or their time is over
//! induct              the batch's calls get a status and a place in a queue
//! advance             some paused messages get a slice each (see `slices`)
//! repeat              management calls, then one iteration over canisters with work (see
//!                     `scheduler`), then merging; the canisters first in every second round that
//!                     begins with management calls left from the one before
//! until               no work is left, or the round's instructions are used up, or what it may
//!                     write: delta, and what messages carry
//! settle              canisters go back into the map that is hashed and shared
//! ```
//!
//! Everything is a function of the state, the batch and the operators' verdicts. Threads only
//! compute what an iteration fixed beforehand, and what they return is merged in the order of
//! canister ids.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sha2::{Digest, Sha256};
use state::{
    Batch, CameMessages, CanisterId, CanisterState, Cycles, Fault, PausedMessage, Payload,
    Randomness, ReplicatedState, Time,
};

use crate::config::{FatalError, unwound};
use crate::core::{Core, RoundFacts};
use crate::induction;
use crate::lane_pool::LanePool;
use crate::management::{self, Dispatcher, STOP_TIMEOUT_SECONDS};
use crate::message::{CanisterRoundState, Effects};
use crate::messaging::{self, LazyMemory};
use crate::retry::ExecutionPoint;
use crate::scheduler::{self, IterationResult, LaneBudget, VIRTUAL_LANES};

/// Storage and allocations are paid this often.
const CHARGE_SECONDS: u64 = 600;
/// The round's own thread is the first of the execution threads.
const ROUND_THREAD: usize = 0;
/// Canisters that pay in one round; the others pay in the next ones, for the time until then.
const CHARGES_PER_ROUND: usize = 1_000;

/// Results of a round, in addition to the new state.
#[derive(Debug, Default)]
pub(crate) struct RoundWork {
    pub(crate) verdicts: Vec<Fault>,
    pub(crate) instructions: u64,
    /// Work of the same code (`sandbox::slices`): how long a replay takes.
    pub(crate) execution_work: u64,
    pub(crate) messages: u64,
    pub(crate) delta_bytes: u64,
    /// Messages that came and wait with records of their own.
    pub(crate) came: CameMessages,
    pub(crate) more: bool,
}

/// Bytes of payloads that should be in files and are not, beyond which they are written within the
/// round.
const LOOSE_PAYLOAD_BYTES: u64 = 4 << 20;

pub(crate) struct Round<'a> {
    core: &'a Arc<Core>,
    pool: &'a LanePool,
    state: &'a mut ReplicatedState,
    facts: Arc<RoundFacts>,
    round_states: BTreeMap<CanisterId, CanisterRoundState>,
    work: RoundWork,
    /// Instructions and overheads so far, those of paused messages up to half of a round.
    spent: u64,
    /// Delta so far, counted likewise.
    delta_spent: u64,
    /// Payloads of calls and answers so far, counted likewise: they are written as delta is, and
    /// stay in files until the round is over.
    payload_spent: u64,
    /// Management calls started so far.
    management_ordinal: u64,
    /// Canisters run before the management calls, once.
    canisters_first: bool,
    lanes_most: usize,
    /// No management call is started: paused messages wrote so much that an upgrade would find no
    /// room in the delta log.
    management_blocked: bool,
}

/// Executes `batch` on `state`.
pub(crate) fn run(
    core: &Arc<Core>,
    pool: &LanePool,
    state: &mut ReplicatedState,
    batch: &Batch,
    rejected: BTreeSet<Fault>,
) -> Result<RoundWork, FatalError> {
    assert!(batch.height > state.subnet.height, "heights grow");
    let time_before = state.subnet.time;
    state.subnet.record_awaited_root();
    state.subnet.height = batch.height;
    state.subnet.time = batch.time;
    if batch.time < time_before {
        state.set_timers_back(batch.time, time_before.0 - batch.time.0);
    }
    state.find_due_timers(batch.time);
    // Work left from the round before means that the round was used up. The side that was left
    // waiting comes first; if both were, the canisters do in every second round: neither side can
    // keep the other from running for longer than a round.
    state.refresh();
    let canisters_first = if state.subnet.calls.is_empty() {
        let waits = |id| state.get(id).is_some_and(|canister| !canister.queues.is_empty());
        state.with_work().iter().any(waits)
    } else {
        batch.height.0 % 2 == 1
    };
    let Batch { height, time, .. } = *batch;
    let facts = Arc::new(RoundFacts { height, time, rejected });
    let mut round = Round {
        core,
        pool,
        state,
        facts,
        round_states: BTreeMap::new(),
        work: RoundWork::default(),
        spent: 0,
        delta_spent: 0,
        payload_spent: 0,
        management_ordinal: 0,
        canisters_first,
        lanes_most: VIRTUAL_LANES,
        management_blocked: false,
    };
    if batch.time < time_before {
        round.expire_all_waits()?;
    }
    round.expire_and_charge(&batch.randomness)?;
    let effects = management::outcalls::answer(round.state, &batch.outcalls, batch.time);
    round.merge_one(effects)?;
    round.spent += induction::induct(core, round.state, &batch.ingress);
    round.state.refresh();
    let executed = round.advance().and_then(|()| round.execute());
    pool.roam();
    executed?;
    round.finish()
}

/// Canisters that paid until then have to pay now.
fn charged_before(now: Time) -> Time {
    Time(now.0.saturating_sub(CHARGE_SECONDS * 1_000_000_000))
}

/// Of seconds for which so much is owed, those that are paid for.
fn paid_seconds(seconds: u64, owed: Cycles, paid: Cycles) -> u64 {
    if paid >= owed {
        return seconds;
    }
    let paid = paid.saturating_mul(seconds.into()) / owed;
    u64::try_from(paid).unwrap_or(seconds).min(seconds)
}

impl Round<'_> {
    fn expire_and_charge(&mut self, randomness: &Randomness) -> Result<(), FatalError> {
        let now = self.facts.time;
        self.state.history.expire(now);
        self.deliver_randomness(randomness)?;
        self.charge(now)?;
        messaging::expire_calls(self.state, now);
        messaging::expire_ingress(self.state, now);
        let effects = messaging::expire_stops(self.state, now, STOP_TIMEOUT_SECONDS);
        self.merge_one(effects)
    }

    /// Block time was set back: what waits for a time that is far away now ends as if it had come.
    fn expire_all_waits(&mut self) -> Result<(), FatalError> {
        let latest = Time(u64::MAX);
        self.state.history.expire(latest);
        messaging::expire_calls(self.state, latest);
        let effects = messaging::expire_stops(self.state, latest, STOP_TIMEOUT_SECONDS);
        self.merge_one(effects)?;
        let effects = management::outcalls::answer(self.state, &[], latest);
        self.merge_one(effects)
    }

    /// Answers what waits for the batch's randomness, each round's calls with a value of their own.
    fn deliver_randomness(&mut self, randomness: &Randomness) -> Result<(), FatalError> {
        let mut effects = Effects::default();
        for (since, value) in self.state.subnet.take_answered(randomness) {
            management::outcalls::assign_members(self.core, self.state, since, &value);
            let waiters = self.state.subnet.take_waiters(since);
            for (number, waiter) in waiters.into_iter().enumerate() {
                let mut hasher = Sha256::new();
                hasher.update(b"\x08raw-rand");
                hasher.update(value);
                hasher.update((number as u64).to_be_bytes());
                let bytes = serde_bytes::ByteBuf::from(hasher.finalize().to_vec());
                let payload = match management::encode(&bytes) {
                    Ok(reply) => Payload::Reply(reply),
                    Err(reject) => Payload::Reject(reject),
                };
                let unclaimed = effects.answer(&waiter.origin, payload, waiter.cycles);
                self.state.subnet.consumption.uninstall += unclaimed;
            }
        }
        self.merge_one(effects)
    }

    /// Storage and allocations, for canisters that have not paid for a while.
    fn charge(&mut self, now: Time) -> Result<(), FatalError> {
        let mut effects = Effects::default();
        for id in self.state.due_charges(charged_before(now), CHARGES_PER_ROUND) {
            self.charge_canister(&id, now, &mut effects);
        }
        self.merge_one(effects)
    }

    /// The same for those of `ids` whose message is over: what they owe of the time when it was
    /// paused is taken before they begin another, which would be prepaid with it.
    fn charge_ended(&mut self, ids: &[CanisterId]) -> Result<(), FatalError> {
        let now = self.facts.time;
        let mut effects = Effects::default();
        for id in ids {
            let owes = |canister: &CanisterState| {
                canister.paused.is_none() && canister.charged_until <= charged_before(now)
            };
            if self.state.get(id).is_some_and(owes) {
                self.charge_canister(id, now, &mut effects);
            }
        }
        self.merge_one(effects)
    }

    /// Charges a canister the amount it owes. One that cannot pay loses its code; while a message
    /// of it is paused, which may return its prepayment, it owes the time that it did not pay for.
    fn charge_canister(&mut self, id: &CanisterId, now: Time, effects: &mut Effects) {
        let Some(canister) = self.state.get_mut(id) else { return };
        // Time that was set back is paid for already.
        let seconds = now.0.saturating_sub(canister.charged_until.0) / 1_000_000_000;
        let costs = self.core.costs_of(id);
        let memory = costs.storage(canister.memory_taken(), seconds);
        let compute = costs.compute(canister.settings.compute_allocation, seconds);
        let had_nothing = canister.cycles == 0 && canister.reserved_cycles == 0;
        let from_reserve = memory.min(canister.reserved_cycles);
        canister.reserved_cycles -= from_reserve;
        let from_balance = (memory - from_reserve).min(canister.cycles);
        canister.debit(from_balance);
        canister.consumption.memory += from_reserve + from_balance;
        let for_compute = compute.min(canister.cycles);
        canister.debit(for_compute);
        canister.consumption.compute_allocation += for_compute;
        let (owed, paid) = (memory + compute, from_reserve + from_balance + for_compute);
        let is_paused = canister.paused.is_some();
        let seconds = if is_paused { paid_seconds(seconds, owed, paid) } else { seconds };
        canister.charged_until = Time(canister.charged_until.0 + seconds * 1_000_000_000);
        let has_none = canister.cycles == 0 && canister.reserved_cycles == 0;
        let ran_out = has_none && !is_paused && !self.core.config.is_free(id);
        let has_something = canister.execution.is_some() || !canister.snapshots.is_empty();
        if ran_out && (!had_nothing || has_something) {
            management::run_out(self.core, canister, effects);
        }
    }

    /// Grants a slice to each of the paused messages that are resumed now.
    fn advance(&mut self) -> Result<(), FatalError> {
        if std::mem::take(&mut self.state.subnet.calls_first) {
            // Long messages do not delay the calls for more than one round.
            self.canisters_first = false;
            return Ok(());
        }
        let limits = self.core.limits();
        let most = usize::try_from(limits.execution.paused_executions).unwrap_or(usize::MAX);
        let ids = self.state.next_paused(most.min(VIRTUAL_LANES));
        if ids.is_empty() {
            return Ok(());
        }
        let installs = |id: &CanisterId| {
            let paused = self.state.get(id).and_then(|canister| canister.paused.as_ref());
            paused.is_some_and(PausedMessage::is_installation)
        };
        let (installations, mut messages): (Vec<_>, Vec<_>) =
            ids.iter().copied().partition(installs);
        for id in installations {
            if limits.has_room_for_upgrade(self.delta_spent) {
                let what = format!("the installation of canister {id}");
                self.serve("a slice of an installation", &what, |it| it.resume_install(&id))?;
            }
        }
        messages.truncate(usize::try_from(limits.paused_beside(self.delta_spent)).unwrap_or(0));
        let growable_bytes = self.growable_bytes();
        let jobs: Vec<_> = messages
            .iter()
            .filter_map(|id| self.state.take(id))
            .map(|canister| {
                let (core, facts) = (Arc::clone(self.core), Arc::clone(&self.facts));
                let unstarted = (canister, CanisterRoundState::default());
                move |worker: usize| {
                    scheduler::run_paused(&core, &facts, worker, unstarted, growable_bytes)
                }
            })
            .collect();
        let mut served: Vec<IterationResult> = Vec::with_capacity(jobs.len());
        for one in self.pool.run(jobs)? {
            served.push(one?);
        }
        assert_eq!(served.len(), messages.len(), "paused messages that were resumed");
        served.sort_by_key(|served| served.canister.id);
        let mut all = Vec::with_capacity(served.len());
        for IterationResult { canister, round_state, effects } in served {
            self.round_states.insert(canister.id, round_state);
            all.extend(effects);
            self.state.put(canister);
        }
        self.merge(all)?;
        self.finish_stops()?;
        self.charge_ended(&ids)?;
        // Half of the round is reserved for other messages, however long the slices were and
        // however much those that ended wrote. Their writes reduce the number of lanes: the delta
        // log's reserve has room for both together.
        self.lanes_most =
            usize::try_from(limits.lanes_beside(self.delta_spent)).unwrap_or(VIRTUAL_LANES);
        self.management_blocked = !limits.has_room_for_upgrade(self.delta_spent);
        self.spent = self.spent.min(limits.execution.instructions_per_round / 2);
        let half = limits.execution.heap_delta_bytes_per_round / 2;
        self.delta_spent = self.delta_spent.min(half);
        self.payload_spent = self.payload_spent.min(half - self.delta_spent);
        Ok(())
    }

    /// Serves a call of the management canister, or a slice of an installation: `running` as the
    /// watchdog shows it, `what` as a panic does.
    fn serve(
        &mut self,
        running: &str,
        what: &str,
        serve: impl FnOnce(&mut Dispatcher<'_>) -> Result<(), FatalError>,
    ) -> Result<(), FatalError> {
        let place = self.facts.place(CanisterId::management_canister(), self.management_ordinal);
        self.management_ordinal += 1;
        let mut dispatcher = Dispatcher {
            place: place.clone(),
            core: self.core,
            state: self.state,
            round: &self.facts,
            effects: Effects::default(),
        };
        self.core.running.begin(ROUND_THREAD, place.clone(), running);
        unwound(|| serve(&mut dispatcher))
            .map_err(|panic| FatalError::Panicked { place, what: format!("{what}: {panic}") })??;
        self.core.running.end(ROUND_THREAD);
        let effects = dispatcher.effects;
        // A call that waited for it to end has its turn before the canister begins a message, which
        // other calls need not wait for.
        self.merge_one(effects)?;
        self.finish_stops()
    }

    /// Bytes that the canisters of one lane may grow by. Unused lanes count too: so the promise
    /// made to a message when it begins still holds when it is resumed, whatever is resumed
    /// alongside it, if no other canister grows meanwhile.
    fn growable_bytes(&self) -> u64 {
        let capacity = self.core.limits().subnet.memory_capacity_bytes;
        capacity.saturating_sub(self.state.totals().memory_taken) / VIRTUAL_LANES as u64
    }

    fn execute(&mut self) -> Result<(), FatalError> {
        loop {
            let canisters_first = std::mem::take(&mut self.canisters_first);
            if !canisters_first {
                self.run_management_calls()?;
            }
            if self.is_used_up() {
                return Ok(());
            }
            let ids = scheduler::active(self.core, self.state, &self.round_states, &self.facts);
            if !ids.is_empty() {
                self.iterate(ids)?;
            } else if !canisters_first {
                return Ok(());
            }
        }
    }

    fn is_used_up(&self) -> bool {
        let limits = &self.core.limits().execution;
        self.spent >= limits.instructions_per_round
            || self.written() >= limits.heap_delta_bytes_per_round
    }

    /// Delta and payloads so far.
    fn written(&self) -> u64 {
        self.delta_spent.saturating_add(self.payload_spent)
    }

    /// Management calls, until none is left or the round is used up.
    fn run_management_calls(&mut self) -> Result<(), FatalError> {
        while !self.is_used_up() && !self.management_blocked {
            let Some(call) = self.state.subnet.calls.pop_front() else { return Ok(()) };
            // Processes that it starts, for a compilation for example, need not run on this
            // processor.
            self.pool.roam();
            if let Some(canister) = call.released_by.and_then(|id| self.state.get_mut(&id)) {
                debug_assert!(canister.released > 0, "{} waits for no call", canister.id);
                canister.released = canister.released.saturating_sub(1);
            }
            let what = format!(
                "management call {} of {}",
                call.method_name.escape_debug(),
                call.origin.caller()
            );
            self.serve(&what, &what, |it| it.serve(call))?;
        }
        Ok(())
    }

    fn iterate(&mut self, ids: Vec<CanisterId>) -> Result<(), FatalError> {
        debug_assert!(!self.is_used_up(), "{} instructions leave nothing to share", self.spent);
        let limits = self.core.limits();
        let order = ids.clone();
        let lanes = scheduler::lanes(ids, self.lanes_most);
        let count = lanes.len() as u64;
        let budget = LaneBudget {
            work: (limits.execution.instructions_per_round - self.spent).div_ceil(count),
            delta_bytes: (limits.execution.heap_delta_bytes_per_round - self.written())
                .div_ceil(count),
            growable_bytes: self.growable_bytes(),
        };
        let jobs: Vec<_> = lanes
            .into_iter()
            .map(|lane| {
                let canisters: Vec<_> = lane
                    .into_iter()
                    .filter_map(|id| {
                        Some((
                            self.state.take(&id)?,
                            self.round_states.get(&id).copied().unwrap_or_default(),
                        ))
                    })
                    .collect();
                let (core, facts) = (Arc::clone(self.core), Arc::clone(&self.facts));
                move |worker: usize| scheduler::run_lane(&core, &facts, worker, canisters, budget)
            })
            .collect();
        let mut served: Vec<IterationResult> = Vec::with_capacity(order.len());
        for lane in self.pool.run(jobs)? {
            served.extend(lane?);
        }
        assert_eq!(served.len(), order.len(), "canisters that came back from their lanes");
        served.sort_by_key(|served| served.canister.id);

        let mut all = Vec::with_capacity(served.len());
        let mut unserved = BTreeSet::new();
        for IterationResult { canister, round_state, effects } in served {
            self.round_states.insert(canister.id, round_state);
            match effects {
                Some(effects) => {
                    all.push(effects);
                    self.state.put(canister);
                }
                None => {
                    unserved.insert(canister.id);
                    self.state.put_back(canister);
                }
            }
        }
        // Canisters that were not served come first next time.
        self.state.subnet.served_last =
            order.into_iter().take_while(|id| !unserved.contains(id)).last();
        self.merge(all)?;
        self.finish_stops()?;
        Ok(())
    }

    fn merge_one(&mut self, effects: Effects) -> Result<(), FatalError> {
        self.merge(vec![effects])
    }

    fn merge(&mut self, mut all: Vec<Effects>) -> Result<(), FatalError> {
        self.state.refresh();
        messaging::release(self.state, &mut all);
        let mut memory = LazyMemory::for_merge(self.core, self.state, &all);
        for mut effects in all {
            self.work.instructions += effects.instructions;
            self.work.execution_work += effects.execution_work;
            self.work.messages += effects.messages;
            self.work.delta_bytes += effects.delta_bytes;
            self.delta_spent += effects.delta_bytes;
            self.payload_spent += effects.payload_bytes;
            self.work.verdicts.append(&mut effects.verdicts);
            self.spent += effects.work;
            messaging::merge(self.core, self.state, &mut memory, effects);
        }
        self.state.refresh();
        if self.state.totals().loose_payload_bytes > LOOSE_PAYLOAD_BYTES {
            self.store_payloads()?;
        }
        Ok(())
    }

    /// Puts large payloads of messages that wait into files.
    fn store_payloads(&mut self) -> Result<(), FatalError> {
        let place = ExecutionPoint { height: self.facts.height, message: None };
        let core = self.core;
        let write = |number: u64, parts: [&[u8]; 2]| {
            core.attempts(place.clone()).until(|| core.write_payload(number, parts))
        };
        self.state.store_payloads(write)
    }

    /// Stops the canisters that waited only for what just ended.
    fn finish_stops(&mut self) -> Result<(), FatalError> {
        let effects = messaging::finish_stops(self.state);
        self.merge_one(effects)
    }

    fn finish(mut self) -> Result<RoundWork, FatalError> {
        self.store_payloads()?;
        self.work.came = self.state.settle();
        if cfg!(debug_assertions) {
            // Hashes are checked once they are computed: `UncertifiedState::new`.
            self.state.check_sums();
        }
        // Calls that wait for randomness need no round before it is there: `RoundResult::awaited`.
        let waits = !self.state.subnet.calls.is_empty();
        // Messages that wait because the canister cannot pay for them must not cause further rounds
        // immediately.
        let queued = self
            .state
            .with_work()
            .iter()
            .any(|id| self.state.get(id).is_some_and(|canister| !canister.queues.is_empty()));
        let timers =
            self.state.due_timers().iter().any(|id| {
                !self.round_states.get(id).is_some_and(|round_state| round_state.timer_done)
            });
        let paused = self.state.paused().next().is_some();
        self.state.subnet.calls_first =
            self.management_blocked && !self.state.subnet.calls.is_empty();
        self.work.more = waits || queued || timers || paused;
        Ok(self.work)
    }
}
