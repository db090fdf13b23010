//! Selection of the canisters that run next, and of those that run alongside.
//!
//! A round is a series of iterations. An iteration takes canisters that have work, in the order of
//! their ids but beginning behind the last one that was served before, and spreads them over
//! [`VIRTUAL_LANES`] lanes (fewer if paused messages that ended wrote much). Each lane has an equal
//! part of the rest of the round's budgets and serves its canisters one after the other. Lanes
//! belong to the state machine, not to the machine: their number follows from the state, whatever
//! the number of threads, so that the outcome of a round does not depend on the number of cores.
//!
//! A canister always prefers the same lane (so that its memories stay mapped in one worker), and
//! yields to an emptier one.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use limits::LANE_PAYLOAD_BYTES;
use state::{CanisterId, CanisterState, ReplicatedState, Time};

use crate::config::{FatalError, unwound};
use crate::core::{Core, RoundFacts};
use crate::message::{CanisterRoundState, Effects, MessageExecutor, Step};

pub(crate) const VIRTUAL_LANES: usize = limits::VIRTUAL_LANES as usize;
const CANISTERS_PER_ITERATION: usize = 256;
/// Messages a canister may execute in one iteration.
const MESSAGES_PER_TURN: u64 = 64;

#[derive(Clone, Copy, Debug)]
pub(crate) struct LaneBudget {
    /// Instructions and overheads.
    pub(crate) work: u64,
    /// Bytes of delta pages (4 KiB each) after which the lane starts no further message.
    pub(crate) delta_bytes: u64,
    pub(crate) growable_bytes: u64,
}

pub(crate) struct IterationResult {
    pub(crate) canister: CanisterState,
    pub(crate) round_state: CanisterRoundState,
    /// `None`: its lane's budget was used up before its turn.
    pub(crate) effects: Option<Effects>,
}

/// Delta a canister still owes at `height`, of what it wrote beyond its rate.
pub(crate) fn delta_debit(canister: &CanisterState, height: u64, per_round: u64) -> u64 {
    canister
        .delta_debit
        .saturating_sub(height.saturating_sub(canister.delta_height).saturating_mul(per_round))
}

/// Whether a canister has something to do that it may do in this round.
pub(crate) fn is_active(
    core: &Core,
    state: &ReplicatedState,
    id: &CanisterId,
    round_state: CanisterRoundState,
    round: &RoundFacts,
) -> bool {
    let Some(canister) = state.get(id) else { return false };
    if round_state.paused || canister.is_held() {
        return false;
    }
    let per_round = core.limits().execution.heap_delta_bytes_per_canister_round;
    if delta_debit(canister, round.height.0, per_round) >= per_round {
        return false;
    }
    let heartbeat = !round_state.heartbeat_done && state.heartbeats().contains(id);
    let timer = !round_state.timer_done && timer_due(canister, round.time);
    // A canister that has work but no message has a hook to run, if it can pay for it.
    let work = state.with_work().contains(id)
        && (!canister.queues.is_empty() || core.affords_task(canister));
    heartbeat || timer || work
}

fn timer_due(canister: &CanisterState, now: Time) -> bool {
    canister.global_timer.0 != 0
        && canister.global_timer <= now
        && canister.status == state::CanisterStatus::Running
        && canister.module().is_some_and(|module| module.info.hooks.global_timer)
}

/// Canisters to serve, in order.
pub(crate) fn active(
    core: &Core,
    state: &ReplicatedState,
    round_states: &BTreeMap<CanisterId, CanisterRoundState>,
    round: &RoundFacts,
) -> Vec<CanisterId> {
    // There may be as many as there are canisters; only as many are visited as it takes to find
    // those that are served.
    let sets = [state.with_work(), state.due_timers(), state.heartbeats()];
    let last = state.subnet.served_last;
    let behind = last.map_or(Bound::Unbounded, Bound::Excluded);
    let first = union(sets, (behind, Bound::Unbounded));
    let then = last.map(|last| union(sets, (Bound::Unbounded, Bound::Included(last))));
    let round_state = |id: &CanisterId| round_states.get(id).copied().unwrap_or_default();
    first
        .chain(then.into_iter().flatten())
        .filter(|id| is_active(core, state, id, round_state(id), round))
        .take(CANISTERS_PER_ITERATION)
        .collect()
}

/// Members of any of the sets within bounds, in order.
fn union<const SETS: usize>(
    sets: [&BTreeSet<CanisterId>; SETS],
    bounds: (Bound<CanisterId>, Bound<CanisterId>),
) -> impl Iterator<Item = CanisterId> + '_ {
    let mut parts = sets.map(|set| set.range(bounds).copied().peekable());
    std::iter::from_fn(move || {
        let next = parts.iter_mut().filter_map(|part| part.peek().copied()).min()?;
        for part in &mut parts {
            part.next_if_eq(&next);
        }
        Some(next)
    })
}

/// Spreads canisters over at most `most` lanes.
pub(crate) fn lanes(ids: Vec<CanisterId>, most: usize) -> Vec<Vec<CanisterId>> {
    let count = ids.len().min(most).max(1);
    let (all, fair) = (ids.len(), ids.len().div_ceil(count));
    let mut lanes: Vec<Vec<CanisterId>> = vec![Vec::new(); count];
    for id in ids {
        let preferred = preferred_lane(&id) % count;
        let emptiest =
            (0..count).min_by_key(|lane| lanes.get(*lane).map_or(0, Vec::len)).unwrap_or(0);
        let lane = if lanes.get(preferred).is_some_and(|lane| lane.len() < fair) {
            preferred
        } else {
            emptiest
        };
        if let Some(lane) = lanes.get_mut(lane) {
            lane.push(id);
        }
    }
    debug_assert_eq!(lanes.iter().map(Vec::len).sum::<usize>(), all, "canisters in lanes");
    debug_assert!(lanes.iter().all(|lane| lane.len() <= fair), "a lane of more than {fair}");
    lanes
}

fn preferred_lane(id: &CanisterId) -> usize {
    id.as_slice().iter().fold(0usize, |sum, byte| sum.wrapping_add(usize::from(*byte)))
}

/// Serves the canisters of one lane on one thread.
pub(crate) fn run_lane(
    core: &Arc<Core>,
    round: &Arc<RoundFacts>,
    worker: usize,
    canisters: Vec<(CanisterState, CanisterRoundState)>,
    budget: LaneBudget,
) -> Result<Vec<IterationResult>, FatalError> {
    let limits = core.limits();
    let per_round = limits.execution.heap_delta_bytes_per_canister_round;
    let slice = limits.execution.instructions_per_slice.max(1);
    let mut served = Vec::with_capacity(canisters.len());
    let (mut work, mut delta_bytes, mut growable_bytes) = (0u64, 0u64, budget.growable_bytes);
    let mut payload_bytes = 0;
    for (mut canister, mut round_state) in canisters {
        let is_used_up = work >= budget.work || delta_bytes >= budget.delta_bytes;
        if is_used_up || payload_bytes >= LANE_PAYLOAD_BYTES {
            served.push(IterationResult { canister, round_state, effects: None });
            continue;
        }
        canister.delta_debit = delta_debit(&canister, round.height.0, per_round);
        canister.delta_height = round.height.0;
        let mut executor = MessageExecutor::new(core, round, worker, growable_bytes);
        let mut progressed = false;
        for _ in 0..MESSAGES_PER_TURN {
            let (id, ordinal) = (canister.id, round_state.ordinal);
            let step = unwound(|| executor.step(&mut canister, &mut round_state))
                .map_err(|what| FatalError::Panicked { place: round.place(id, ordinal), what })??;
            progressed |= step == Step::Done;
            let used = &executor.effects;
            let over = work + used.work >= budget.work
                || delta_bytes + used.delta_bytes >= budget.delta_bytes
                || payload_bytes + used.payload_bytes >= LANE_PAYLOAD_BYTES;
            if canister.delta_debit >= per_round {
                round_state.paused = true;
            }
            let ends = round_state.paused || canister.paused.is_some();
            if step != Step::Done || ends || over || used.work >= slice {
                break;
            }
        }
        // Nothing it could do now becomes possible by asking again in the same round.
        round_state.paused |= !progressed;
        growable_bytes = executor.growable_bytes;
        work += executor.effects.work;
        delta_bytes += executor.effects.delta_bytes;
        payload_bytes += executor.effects.payload_bytes;
        served.push(IterationResult { canister, round_state, effects: Some(executor.effects) });
    }
    Ok(served)
}

/// Grants a slice to the paused message of a canister.
pub(crate) fn run_paused(
    core: &Arc<Core>,
    round: &Arc<RoundFacts>,
    worker: usize,
    (mut canister, mut round_state): (CanisterState, CanisterRoundState),
    growable_bytes: u64,
) -> Result<IterationResult, FatalError> {
    let per_round = core.limits().execution.heap_delta_bytes_per_canister_round;
    canister.delta_debit = delta_debit(&canister, round.height.0, per_round);
    canister.delta_height = round.height.0;
    let mut executor = MessageExecutor::new(core, round, worker, growable_bytes);
    let place = round.place(canister.id, round_state.ordinal);
    core.running.begin(worker, place.clone(), "a slice of a paused message");
    unwound(|| executor.resume(&mut canister, &mut round_state))
        .map_err(|what| FatalError::Panicked { place, what })??;
    core.running.end(worker);
    Ok(IterationResult { canister, round_state, effects: Some(executor.effects) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ExecutorConfig;

    #[test]
    fn lanes_are_even_and_depend_on_ids_alone() {
        let ids: Vec<_> = (0..10).map(ExecutorConfig::canister_id).collect();
        let spread = lanes(ids.clone(), VIRTUAL_LANES);
        assert_eq!(spread.len(), VIRTUAL_LANES);
        assert!(spread.iter().all(|lane| lane.len() <= 3));
        assert_eq!(spread.iter().map(Vec::len).sum::<usize>(), 10);
        assert_eq!(spread, lanes(ids.clone(), VIRTUAL_LANES));
        assert_eq!(lanes(ids, 1).len(), 1);
    }

    #[test]
    fn a_union_goes_on_behind_a_place_and_names_each_once() {
        let id = ExecutorConfig::canister_id;
        let sets: [BTreeSet<_>; 3] =
            [[1, 4, 6], [2, 4, 9], [4, 6, 7]].map(|set| set.map(id).into());
        let sets = sets.each_ref();
        let all: Vec<_> = union(sets, (Bound::Unbounded, Bound::Unbounded)).collect();
        assert_eq!(all, [1, 2, 4, 6, 7, 9].map(id));
        let behind: Vec<_> = union(sets, (Bound::Excluded(id(4)), Bound::Unbounded)).collect();
        assert_eq!(behind, [6, 7, 9].map(id));
        let before: Vec<_> = union(sets, (Bound::Unbounded, Bound::Included(id(4)))).collect();
        assert_eq!(before, [1, 2, 4].map(id));
    }

    #[test]
    fn a_lone_canister_has_the_iteration_for_itself() {
        assert_eq!(lanes(vec![ExecutorConfig::canister_id(3)], VIRTUAL_LANES).len(), 1);
        assert_eq!(lanes(vec![], VIRTUAL_LANES).len(), 1);
    }
}
