//! The memory of a canister when a round is over: all of it in the state's heap.
//!
//! A round works on a copy of a canister that was allocated there as a whole
//! ([`crate::ReplicatedState::get_mut`]). Only collections that it replaced or that grew are
//! elsewhere afterwards. These are copied, and memory of those that are empty is returned; nothing
//! else is touched. Data behind shared pointers ([`crate::StateArc`]) is the responsibility of the
//! code that makes them.
//!
//! A field of a canister that is forgotten here does not compile. This module must not know what
//! the data means.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::{CanisterState, CanisterStatus, Settings, Visibility, state_heap};

/// Moves the elements to the state's heap, unless they are there.
pub(crate) fn rest_vec<T: Clone>(elements: &mut Vec<T>) {
    if elements.capacity() > 0 && !elements.first().is_some_and(state_heap::holds) {
        *elements = elements.as_slice().to_vec();
    }
}

/// The same of a queue.
pub(crate) fn rest_queue<T: Clone>(elements: &mut VecDeque<T>) {
    if elements.capacity() > 0 && !elements.front().is_some_and(state_heap::holds) {
        *elements = elements.iter().cloned().collect();
    }
}

/// The same of a map. Keys are in its nodes, of which each has one.
pub(crate) fn rest_map<K: Ord + Clone, V: Clone>(entries: &mut BTreeMap<K, V>) {
    if entries.is_empty() {
        // One that was emptied keeps a node.
        *entries = BTreeMap::new();
    } else if !entries.keys().all(state_heap::holds) {
        *entries = entries.clone();
    }
}

/// The same of a set.
pub(crate) fn rest_set<T: Ord + Clone>(entries: &mut BTreeSet<T>) {
    if entries.is_empty() {
        *entries = BTreeSet::new();
    } else if !entries.iter().all(state_heap::holds) {
        *entries = entries.clone();
    }
}

fn is_resting(text: &str) -> bool {
    text.as_bytes().first().is_none_or(state_heap::holds)
}

impl CanisterState {
    /// Moves to the state's heap what it owns and is elsewhere. Changes no value.
    pub(crate) fn rest(&mut self) {
        let _here = state_heap::enter();
        let Self {
            id: _,
            controllers,
            settings,
            status,
            chunks,
            history,
            snapshots,
            execution,
            certified_data,
            global_timer: _,
            low_memory_hook: _,
            version: _,
            created_at: _,
            installed_at: _,
            log,
            cycles: _,
            reserved_cycles: _,
            charged_until: _,
            consumption: _,
            query_totals: _,
            queues,
            calls,
            delta_debit: _,
            delta_height: _,
            paused,
            released: _,
            hook_turn: _,
        } = self;
        rest_vec(controllers);
        settings.rest();
        if let CanisterStatus::Stopping(_) = status {
            *status = status.clone();
        }
        rest_map(chunks);
        history.rest();
        snapshots.rest();
        if let Some(execution) = execution {
            // Layouts of its memories are shared pointers of the page store.
            rest_vec(&mut execution.globals);
        }
        rest_vec(certified_data);
        log.rest();
        queues.rest();
        calls.rest();
        if let Some(paused) = paused {
            rest_vec(&mut paused.waiting);
        }
    }
}

impl Settings {
    fn rest(&mut self) {
        let Self { log_visibility, snapshot_visibility, status_visibility, environment, .. } = self;
        for visibility in [log_visibility, snapshot_visibility, status_visibility] {
            if let Visibility::AllowedViewers(viewers) = visibility {
                rest_vec(viewers);
            }
        }
        if !environment.iter().all(|(name, value)| is_resting(name) && is_resting(value)) {
            *environment = environment.clone();
        }
        rest_vec(environment);
    }
}
