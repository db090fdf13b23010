//! The replicated state as a round works on it: all canisters, the calls to the subnet itself, and
//! what the scheduler needs to find work.
//!
//! Canisters are kept in a persistent map that snapshots share ([`MerkleMap`]). The first change of
//! a round copies a canister out into the *hot* set; [`ReplicatedState::settle`] puts the hot ones
//! back at the end. Changes go through [`ReplicatedState::get_mut`] (or take the canister away and
//! put it back), and [`ReplicatedState::refresh`] then updates the indexes and totals for exactly
//! the canisters that were touched.
//!
//! The indexes (canisters with messages, with due timers, by their first deadline) are derived from
//! the canisters and never stored: after a restart they are built from the records. They cost a few
//! machine words per canister, and nothing per message. This module must not know what a message
//! does, nor when anything is stored.

use std::collections::{BTreeMap, BTreeSet, VecDeque, btree_map::Entry};
use std::sync::Arc;

use ic_principal::Principal;
use pages::{MemoryId, MemoryLayout};
use serde::{Deserialize, Serialize};

use crate::paused::PausedIndex;
use crate::{
    CanisterId, CanisterState, CanisterStatus, Consumption, Cycles, CyclesTotal, Height,
    IngressHistory, LowMemoryHook, MESSAGE_OVERHEAD_BYTES, ManifestClock, MerkleMap, ModuleHash,
    NodeMetrics, Origin, Outcalls, PausedMessage, QueryReports, RandomnessWaiter, StateArc,
    StoredPayload, SubnetKey, Time, WaitingMessage, state_heap,
};

/// A call to the management canister, waiting its turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubnetCall {
    /// The caller that waits for the answer.
    pub origin: Origin,
    /// Version of the calling canister.
    pub sender_version: Option<u64>,
    /// Method of the management canister.
    pub method_name: String,
    /// Candid argument, not decoded.
    #[serde(with = "serde_bytes")]
    pub arg: Vec<u8>,
    /// Cycles attached to the call.
    pub cycles: Cycles,
    /// The canister whose paused message it waited for, and which waits for it now.
    pub released_by: Option<CanisterId>,
}

impl SubnetCall {
    /// Bytes it takes in the queue.
    pub fn accounted_bytes(&self) -> u64 {
        (self.method_name.len() + self.arg.len()) as u64 + MESSAGE_OVERHEAD_BYTES
    }
}

/// State of the subnet that belongs to no canister; stored whole with every checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubnetState {
    /// Of the last batch executed.
    pub height: Height,
    /// Block time of that batch.
    pub time: Time,
    /// Number of the next canister that is given an id.
    pub next_canister: u64,
    /// Number of the next memory.
    pub next_memory: u64,
    /// Number of the next message that is queued with a canister.
    pub next_message: u64,
    /// Ids of deleted canisters that had been asked for by name: never given again.
    pub retired: BTreeSet<CanisterId>,
    /// Calls to the management canister.
    pub calls: VecDeque<SubnetCall>,
    /// Calls that wait for randomness, in the order of their rounds.
    pub randomness_waiters: VecDeque<RandomnessWaiter>,
    /// Roots of earlier states whose signatures are awaited, as something waits since their rounds.
    pub awaited_roots: BTreeMap<Height, [u8; 32]>,
    /// Requests to servers outside that canisters wait for.
    pub outcalls: Outcalls,
    /// Cycles spent by canisters that are gone, and lost on the way to them.
    pub consumption: Consumption,
    /// Cycles that came into being here.
    pub minted: CyclesTotal,
    /// Update messages executed since the subnet began.
    pub update_transactions: u64,
    /// The last canister that was served in its turn: the next iteration begins with the one
    /// behind it.
    pub served_last: Option<CanisterId>,
    /// The calls did not fit alongside the writes of paused messages: those wait for one round.
    pub calls_first: bool,
    /// The last canister whose paused message was resumed in its turn.
    pub paused_turn: Option<CanisterId>,
    /// The canister whose installation is paused: there is one at a time.
    pub installing: Option<CanisterId>,
    /// Installations that take longer than a slice and wait for that one to be over.
    pub long_installs: VecDeque<SubnetCall>,
    /// State root after the last batch.
    pub root: [u8; 32],
    /// When manifests are made, and which is certified.
    pub manifest: ManifestClock,
    /// Which nodes made the blocks.
    pub node_metrics: NodeMetrics,
    /// The committee that holds the subnet's key; `None` while it is the one of the ceremony.
    pub key: Option<SubnetKey>,
    /// Members' reports of queries that are not part of a canister's totals yet.
    pub query_reports: QueryReports,
}

/// Index entries of one canister.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Facts {
    has_work: bool,
    timer: Option<Time>,
    heartbeat: bool,
    deadline: Option<Time>,
    ingress_expiry: Option<Time>,
    stopping: bool,
    stop_deadline: Option<Time>,
    /// None while it has nothing to pay with and a message that may give something back.
    charged_until: Option<Time>,
    paused: Option<Height>,
    memories: Option<(MemoryId, MemoryId)>,
    module: Option<ModuleHash>,
    /// The module that a paused installation brings.
    next_module: Option<ModuleHash>,
    /// Whether it has chunks or snapshots, which name blobs.
    names_blobs: bool,
    /// Whether it has payloads that have no files yet.
    loose: bool,
    totals: Totals,
}

/// Declares [`Totals`]: each sum is added and taken off with all others.
macro_rules! totals {
    ($($(#[$doc:meta])* $sum:ident: $type:ty,)*) => {
        /// Sums over all canisters.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Totals {
            $($(#[$doc])* pub $sum: $type,)*
        }

        impl Totals {
            fn add(&mut self, other: &Self) {
                $(self.$sum += other.$sum;)*
            }

            fn remove(&mut self, other: &Self) {
                $(self.$sum -= other.$sum;)*
            }
        }
    };
}

totals! {
    /// Bytes counted against the subnet's capacity.
    memory_taken: u64,
    /// Bytes really used.
    memory_used: u64,
    /// Bytes of the metadata sections of all modules.
    custom_section_bytes: u64,
    /// Other metadata.
    metadata_bytes: u64,
    /// Guaranteed-response messages and the room kept for their responses.
    guaranteed_message_bytes: u64,
    /// Best-effort and users' messages.
    best_effort_message_bytes: u64,
    /// Of the former, canisters' calls of the management canister that wait for paused messages.
    waiting_call_bytes: u64,
    /// Calls with guaranteed responses that are open, answered or not, and paused messages of such
    /// calls: at most as many such messages wait.
    guaranteed_calls: u64,
    /// Bytes of messages with guaranteed responses that are in no file.
    guaranteed_here_bytes: u64,
    /// Of payloads in files.
    file_payload_bytes: u64,
    /// Of payloads that should be in files and are not yet.
    loose_payload_bytes: u64,
    /// Percent of cores promised.
    compute_allocation: u64,
    /// Cycles spent by the canisters there are.
    consumed: CyclesTotal,
}

/// Which records of messages apart the store has, by their numbers, which rise.
///
/// A message is stored once: what waits under a number below `saved_below` is in the store. A
/// checkpoint that failed may have become durable all the same, so what went is noted if it came
/// before the last one that was tried, and deleted whether or not it is there; what came is written
/// until a checkpoint is known to hold it.
#[derive(Debug)]
struct MessageRows {
    saved_below: u64,
    tried_below: u64,
    /// Went since, and may be in the store.
    gone: BTreeSet<u64>,
    /// Waiting messages with numbers below this one arrived before the last round ended.
    settled_below: u64,
}

impl MessageRows {
    /// The store has what waits under numbers below this one.
    fn saved(below: u64) -> Self {
        Self { saved_below: below, tried_below: below, gone: BTreeSet::new(), settled_below: below }
    }

    fn add_gone(&mut self, numbers: impl IntoIterator<Item = u64>) {
        debug_assert!(
            self.saved_below <= self.tried_below,
            "messages below {} are saved, and a checkpoint of those below {} was tried",
            self.saved_below,
            self.tried_below
        );
        let _here = state_heap::enter();
        self.gone.extend(numbers.into_iter().filter(|number| *number < self.tried_below));
    }
}

/// See the module.
#[derive(Debug)]
pub struct ReplicatedState {
    /// The subnet's own.
    pub subnet: SubnetState,
    /// Status of users' calls.
    pub history: IngressHistory,
    canisters: MerkleMap<Arc<CanisterState>>,
    hot: BTreeMap<CanisterId, CanisterState>,
    /// Taken away while hot.
    taken_hot: BTreeSet<CanisterId>,
    /// Changed since the indexes were last brought up to date.
    touched: BTreeSet<CanisterId>,
    /// Changed or removed since the last checkpoint.
    unsaved: BTreeSet<CanisterId>,
    rows: MessageRows,
    /// Payloads in files that went since [`ReplicatedState::take_gone_payloads`], with their bytes.
    gone_payloads: Vec<(u64, u64)>,
    response_bytes: u64,

    facts: BTreeMap<CanisterId, Facts>,
    totals: Totals,
    with_work: BTreeSet<CanisterId>,
    heartbeats: BTreeSet<CanisterId>,
    timers: BTreeSet<(Time, CanisterId)>,
    /// Canisters whose timer is at or before `looked_until`.
    due_timers: BTreeSet<CanisterId>,
    looked_until: Time,
    deadlines: BTreeSet<(Time, CanisterId)>,
    ingress_expiries: BTreeSet<(Time, CanisterId)>,
    stopping: BTreeSet<CanisterId>,
    stop_deadlines: BTreeSet<(Time, CanisterId)>,
    charges: BTreeSet<(Time, CanisterId)>,
    paused: PausedIndex,
    owners: BTreeMap<MemoryId, CanisterId>,
    /// Number of canisters that have each module.
    modules: BTreeMap<ModuleHash, u64>,
    blob_holders: BTreeSet<CanisterId>,
    /// With payloads that have no files yet.
    loose: BTreeSet<CanisterId>,
}

/// Messages that arrived and wait with records of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CameMessages {
    /// Their number.
    pub count: u64,
    /// Their bytes, those in files among them.
    pub bytes: u64,
}

impl SubnetState {
    /// Calls of the management canister that are not begun, but for those that wait for a paused
    /// message.
    pub fn waiting_calls(&self) -> impl Iterator<Item = &SubnetCall> {
        self.calls.iter().chain(&self.long_installs)
    }
}

impl ReplicatedState {
    /// A state of these parts. `response_bytes` is the room kept for each guaranteed response.
    pub fn new(
        subnet: SubnetState,
        history: IngressHistory,
        canisters: impl IntoIterator<Item = CanisterState>,
        response_bytes: u64,
    ) -> Self {
        let mut state = Self {
            rows: MessageRows::saved(subnet.next_message),
            subnet,
            history,
            canisters: MerkleMap::new(),
            hot: BTreeMap::new(),
            taken_hot: BTreeSet::new(),
            touched: BTreeSet::new(),
            unsaved: BTreeSet::new(),
            gone_payloads: Vec::new(),
            response_bytes,
            facts: BTreeMap::new(),
            totals: Totals::default(),
            with_work: BTreeSet::new(),
            heartbeats: BTreeSet::new(),
            timers: BTreeSet::new(),
            due_timers: BTreeSet::new(),
            looked_until: Time(0),
            deadlines: BTreeSet::new(),
            ingress_expiries: BTreeSet::new(),
            stopping: BTreeSet::new(),
            stop_deadlines: BTreeSet::new(),
            charges: BTreeSet::new(),
            paused: PausedIndex::default(),
            owners: BTreeMap::new(),
            modules: BTreeMap::new(),
            blob_holders: BTreeSet::new(),
            loose: BTreeSet::new(),
        };
        for canister in canisters {
            let _here = state_heap::enter();
            state.touched.insert(canister.id);
            state.canisters.insert(Arc::new(canister));
        }
        state.refresh();
        state
    }

    /// The canister with this id.
    pub fn get(&self, id: &CanisterId) -> Option<&CanisterState> {
        self.hot.get(id).or_else(|| self.canisters.get(id.as_slice()).map(AsRef::as_ref))
    }

    /// Whether there is such a canister.
    pub fn contains(&self, id: &CanisterId) -> bool {
        self.get(id).is_some()
    }

    /// A canister, to be changed.
    pub fn get_mut(&mut self, id: &CanisterId) -> Option<&mut CanisterState> {
        if !self.hot.contains_key(id) {
            let canister = self.canisters.get(id.as_slice())?;
            let _here = state_heap::enter();
            self.hot.insert(*id, canister.as_ref().clone());
        }
        debug_assert!(!self.taken_hot.contains(id), "{id} is taken away");
        self.touched.insert(*id);
        self.hot.get_mut(id)
    }

    /// Takes a canister out to work on it; it must be returned by [`Self::put`] before anything
    /// else happens.
    pub fn take(&mut self, id: &CanisterId) -> Option<CanisterState> {
        debug_assert!(!self.taken_hot.contains(id), "{id} is taken away already");
        match self.hot.remove(id) {
            Some(canister) => {
                self.taken_hot.insert(*id);
                Some(canister)
            }
            None => {
                let _here = state_heap::enter();
                self.canisters.get(id.as_slice()).map(|canister| canister.as_ref().clone())
            }
        }
    }

    /// Brings a canister in: a new one, or one that was taken away.
    pub fn put(&mut self, canister: CanisterState) {
        self.touched.insert(canister.id);
        self.taken_hot.remove(&canister.id);
        self.hot.insert(canister.id, canister);
    }

    /// Puts a canister back that was taken away and not changed.
    pub fn put_back(&mut self, canister: CanisterState) {
        // One that was hot before must stay so; one that rests in the map is as it was.
        if self.taken_hot.remove(&canister.id) {
            self.hot.insert(canister.id, canister);
        }
    }

    /// Removes a canister.
    pub fn remove(&mut self, id: &CanisterId) -> Option<CanisterState> {
        let _here = state_heap::enter();
        let hot = self.hot.remove(id);
        let resting = self.canisters.remove(id.as_slice());
        // Either may be the last to name the payload of a paused message.
        let paused = [hot.as_ref(), resting.as_deref()].map(paused_payload);
        let mut canister = hot.or_else(|| resting.map(Arc::unwrap_or_clone))?;
        let mut gone = canister.queues.take_gone();
        gone.extend(canister.queues.apart());
        self.rows.add_gone(gone.iter().map(|(number, _)| *number));
        let files = gone.into_iter().filter_map(|(number, bytes)| Some((number, bytes?)));
        let files: BTreeSet<_> = files.chain(paused.into_iter().flatten()).collect();
        self.gone_payloads.extend(files);
        self.touched.insert(*id);
        self.unsaved.insert(*id);
        Some(canister)
    }

    /// Number of canisters. Those created in this round count.
    pub fn len(&self) -> u64 {
        self.facts.len() as u64
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.facts.is_empty()
    }

    /// Ids of all canisters, in order.
    pub fn ids(&self) -> impl Iterator<Item = CanisterId> + '_ {
        self.facts.keys().copied()
    }

    /// All canisters, in order.
    pub fn canisters(&self) -> impl Iterator<Item = &CanisterState> + '_ {
        self.facts.keys().filter_map(|id| self.get(id))
    }

    /// Sums as of the last [`Self::refresh`].
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Canisters with messages waiting or the low-memory hook to run, and no paused message.
    pub fn with_work(&self) -> &BTreeSet<CanisterId> {
        &self.with_work
    }

    /// Running canisters with a heartbeat.
    pub fn heartbeats(&self) -> &BTreeSet<CanisterId> {
        &self.heartbeats
    }

    /// Looks which timers became due: a cost for each that did, once.
    pub fn find_due_timers(&mut self, now: Time) {
        let _here = state_heap::enter();
        let newly = self.timers.range(after(self.looked_until)..);
        let newly = newly.take_while(|(time, _)| *time <= now).map(|(_, id)| *id);
        self.due_timers.extend(newly);
        self.looked_until = self.looked_until.max(now);
        debug_assert!(
            self.due_timers.len() <= self.timers.len(),
            "{} of {} timers are due",
            self.due_timers.len(),
            self.timers.len()
        );
    }

    /// Sets every timer back by as much as block time was, to `now`.
    pub fn set_timers_back(&mut self, now: Time, nanos: u64) {
        let _here = state_heap::enter();
        let ids: Vec<CanisterId> = self
            .canisters()
            .filter(|canister| canister.global_timer.0 != 0)
            .map(|canister| canister.id)
            .collect();
        for id in ids {
            if let Some(canister) = self.get_mut(&id) {
                // Zero means none.
                canister.global_timer = Time(canister.global_timer.0.saturating_sub(nanos).max(1));
            }
        }
        self.looked_until = now;
        self.refresh();
    }

    /// Running canisters whose timer is due at the time that was looked for last.
    pub fn due_timers(&self) -> &BTreeSet<CanisterId> {
        &self.due_timers
    }

    /// When the next timer of a running canister is due after `now`.
    pub fn next_timer(&self, now: Time) -> Option<Time> {
        self.timers.range(after(now)..).next().map(|(time, _)| *time)
    }

    /// Canisters with unanswered best-effort calls whose deadline is before `now`.
    pub fn due_deadlines(&self, now: Time) -> Vec<CanisterId> {
        self.deadlines.iter().take_while(|(time, _)| *time < now).map(|(_, id)| *id).collect()
    }

    /// When the next deadline of a best-effort call passes.
    pub fn next_deadline(&self) -> Option<Time> {
        self.deadlines.first().map(|(time, _)| *time)
    }

    /// Canisters with ingress messages that waited too long before `now`.
    pub fn due_ingress(&self, now: Time) -> Vec<CanisterId> {
        let due = self.ingress_expiries.iter().take_while(|(time, _)| *time < now);
        due.map(|(_, id)| *id).collect()
    }

    /// Canisters that are stopping.
    pub fn stopping(&self) -> &BTreeSet<CanisterId> {
        &self.stopping
    }

    /// Stopping canisters that keep someone waiting too long.
    pub fn due_stops(&self, now: Time) -> Vec<CanisterId> {
        due(&self.stop_deadlines, now).collect()
    }

    /// Canisters that paid for storage no further than `until`: `most` of them, those first that
    /// paid longest ago.
    pub fn due_charges(&self, until: Time, most: usize) -> Vec<CanisterId> {
        due(&self.charges, until).take(most).collect()
    }

    /// Canisters with a paused message.
    pub fn paused(&self) -> impl Iterator<Item = CanisterId> + '_ {
        self.paused.ids()
    }

    /// Canisters whose paused message is resumed now, at most `most`: all but one of them are those
    /// whose message began first, and one is the next in the order of ids, so that no message waits
    /// for all that began before it. If only one may be resumed, the two rules alternate.
    pub fn next_paused(&mut self, most: usize) -> Vec<CanisterId> {
        let oldest = match most {
            0 => 0,
            1 => usize::from(self.subnet.height.0.is_multiple_of(2)),
            _ => most - 1,
        };
        let mut next: Vec<_> = self.paused.oldest(oldest).map(|(_, id)| id).collect();
        if oldest < most
            && let Some(id) = self.paused.behind(self.subnet.paused_turn, &next)
        {
            self.subnet.paused_turn = Some(id);
            debug_assert!(!next.contains(&id), "{id} is resumed twice");
            next.push(id);
        }
        debug_assert!(next.len() <= most, "{} are resumed, the most is {most}", next.len());
        next
    }

    /// Whether a canister has this module, or is getting it.
    pub fn has_module(&self, module: &ModuleHash) -> bool {
        self.modules.contains_key(module)
    }

    /// Modules that canisters have or are getting, each with how many.
    pub fn modules(&self) -> impl Iterator<Item = (&ModuleHash, u64)> {
        self.modules.iter().map(|(module, count)| (module, *count))
    }

    /// Canisters with chunks of modules or with snapshots.
    pub fn with_blobs(&self) -> impl Iterator<Item = &CanisterState> + '_ {
        self.blob_holders.iter().filter_map(|id| self.get(id))
    }

    /// Brings indexes and totals up to date for what was touched.
    pub fn refresh(&mut self) {
        if self.touched.is_empty() {
            return;
        }
        let touched = std::mem::take(&mut self.touched);
        let _here = state_heap::enter();
        for id in &touched {
            let old = self.facts.get(id).copied();
            let new =
                self.get(id).map(|canister| Facts::from_canister(canister, self.response_bytes));
            if old == new {
                continue;
            }
            if let Some(old) = old {
                self.totals.remove(&old.totals);
            }
            if let Some(new) = &new {
                self.totals.add(&new.totals);
            }
            let old = old.unwrap_or_default();
            let new_facts = new.unwrap_or_default();
            mark(&mut self.with_work, *id, new_facts.has_work);
            mark(&mut self.heartbeats, *id, new_facts.heartbeat);
            mark(&mut self.stopping, *id, new_facts.stopping);
            mark(&mut self.blob_holders, *id, new_facts.names_blobs);
            mark(&mut self.loose, *id, new_facts.loose);
            move_entry(&mut self.timers, *id, old.timer, new_facts.timer);
            let is_due = new_facts.timer.is_some_and(|time| time <= self.looked_until);
            mark(&mut self.due_timers, *id, is_due);
            move_entry(&mut self.deadlines, *id, old.deadline, new_facts.deadline);
            move_entry(
                &mut self.ingress_expiries,
                *id,
                old.ingress_expiry,
                new_facts.ingress_expiry,
            );
            move_entry(&mut self.stop_deadlines, *id, old.stop_deadline, new_facts.stop_deadline);
            move_entry(&mut self.charges, *id, old.charged_until, new_facts.charged_until);
            self.paused.change(*id, old.paused, new_facts.paused);
            let modules = |facts: &Facts| [facts.module, facts.next_module];
            if modules(&old) != modules(&new_facts) {
                for module in modules(&new_facts).into_iter().flatten() {
                    *self.modules.entry(module).or_default() += 1;
                }
                for module in modules(&old).into_iter().flatten() {
                    release(&mut self.modules, module);
                }
            }
            if old.memories != new_facts.memories {
                for memory in old.memories.iter().flat_map(|(heap, stable)| [heap, stable]) {
                    if self.owners.get(memory) == Some(id) {
                        self.owners.remove(memory);
                    }
                }
                for memory in new_facts.memories.iter().flat_map(|(heap, stable)| [heap, stable]) {
                    self.owners.insert(*memory, *id);
                }
            }
            match new {
                Some(new) => {
                    self.facts.insert(*id, new);
                }
                None => {
                    self.facts.remove(id);
                }
            }
        }
    }

    /// Writes payloads of waiting messages that are in the state's heap to files: `write` is given
    /// a message's number and the parts of its payload. Updates indexes and totals.
    ///
    /// # Errors
    /// Those of `write`, which decides when to stop.
    pub fn store_payloads<E>(
        &mut self,
        mut write: impl FnMut(u64, [&[u8]; 2]) -> Result<StateArc<StoredPayload>, E>,
    ) -> Result<(), E> {
        self.refresh();
        while let Some(id) = self.loose.first().copied() {
            let Some(canister) = self.get_mut(&id) else { break };
            canister.queues.store_payloads(&mut write)?;
            self.refresh();
        }
        Ok(())
    }

    /// Payloads in files, with their bytes, that no message of the state has any more since this
    /// was last asked.
    pub fn take_gone_payloads(&mut self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.gone_payloads)
    }

    /// All payloads in files. Visits every canister and message.
    pub fn payloads(&self) -> impl Iterator<Item = &StateArc<StoredPayload>> {
        self.canisters().flat_map(|canister| {
            let paused = canister.paused.as_ref().and_then(|paused| paused.payload.as_ref());
            canister.queues.payloads().chain(paused)
        })
    }

    /// Puts the hot canisters back. To be called at the end of a round, before the state is hashed
    /// and after [`Self::store_payloads`]. Returns what came since the last time and still waits.
    pub fn settle(&mut self) -> CameMessages {
        assert!(
            self.taken_hot.is_empty(),
            "{} canisters were taken away and not put back",
            self.taken_hot.len()
        );
        self.refresh();
        let _here = state_heap::enter();
        let mut came = CameMessages::default();
        for (id, mut canister) in std::mem::take(&mut self.hot) {
            self.unsaved.insert(id);
            let gone = canister.queues.take_gone();
            self.rows.add_gone(gone.iter().map(|(number, _)| *number));
            debug_assert_eq!(canister.queues.loose_bytes, 0, "payloads of {id} have no files");
            // A paused message has its payload as long as it is there.
            let before = paused_payload(self.canisters.get(id.as_slice()).map(AsRef::as_ref));
            let now = paused_payload(Some(&canister));
            let files = gone.into_iter().filter_map(|(number, bytes)| Some((number, bytes?)));
            self.gone_payloads.extend(files.chain(before).filter(|gone| Some(*gone) != now));
            // A paused message that arrived and began since is in no queue.
            if let Some((_, bytes)) =
                now.filter(|(number, _)| before != now && *number >= self.rows.settled_below)
            {
                came.count += 1;
                came.bytes += bytes;
            }
            for (_, message) in canister.queues.apart_from(self.rows.settled_below) {
                came.count += 1;
                came.bytes += message.accounted_bytes();
            }
            canister.rest();
            self.canisters.insert(Arc::new(canister));
        }
        debug_assert!(
            self.rows.settled_below <= self.subnet.next_message,
            "message {} follows those below {}",
            self.subnet.next_message,
            self.rows.settled_below
        );
        self.rows.settled_below = self.subnet.next_message;
        came
    }

    /// The map and the history, to be hashed and shared with a snapshot.
    pub fn parts_mut(&mut self) -> (&mut MerkleMap<Arc<CanisterState>>, &mut IngressHistory) {
        (&mut self.canisters, &mut self.history)
    }

    /// Canisters changed or removed since [`Self::mark_saved`], with the record to be stored or
    /// `None`. Only between rounds.
    pub fn unsaved(&self) -> impl Iterator<Item = (CanisterId, Option<&CanisterState>)> {
        debug_assert!(self.hot.is_empty(), "{} canisters are not settled", self.hot.len());
        self.unsaved.iter().map(|id| (*id, self.get(id)))
    }

    /// Records of messages apart that came or went since [`Self::mark_saved`], with the message or
    /// `None`. Only between rounds, after [`Self::begin_saving`].
    pub fn unsaved_messages(&self) -> impl Iterator<Item = (u64, Option<WaitingMessage<'_>>)> {
        let from = self.rows.saved_below;
        debug_assert!(
            from <= self.rows.tried_below,
            "messages from {from} on are saved below {}",
            self.rows.tried_below
        );
        let came = self
            .unsaved
            .iter()
            .filter_map(|id| self.get(id))
            .flat_map(move |canister| canister.queues.apart_from(from))
            .map(|(number, message)| (number, Some(message)));
        self.rows.gone.iter().map(|number| (*number, None)).chain(came)
    }

    /// A checkpoint is about to be written. Until one is known to be durable, the store may or may
    /// not have the unsaved changes, whatever the outcome of those begun before.
    pub fn begin_saving(&mut self) {
        self.rows.tried_below = self.subnet.next_message;
    }

    /// A checkpoint with everything that was unsaved is durable.
    pub fn mark_saved(&mut self) {
        debug_assert_eq!(
            self.rows.tried_below, self.subnet.next_message,
            "the next message at the checkpoint and now"
        );
        self.unsaved.clear();
        self.rows = MessageRows::saved(self.subnet.next_message);
    }

    /// The number of a message that is about to be queued.
    pub fn number_message(&mut self) -> u64 {
        let number = self.subnet.next_message;
        self.subnet.next_message += 1;
        number
    }

    /// Gives the resting canisters the layouts that `newest` knows for these memories. Content
    /// stays what it was: only files behind it moved, so the records need not be stored again.
    /// Only between rounds.
    pub fn renew_layouts(
        &mut self,
        memories: impl IntoIterator<Item = MemoryId>,
        mut newest: impl FnMut(MemoryId) -> Option<MemoryLayout>,
    ) {
        debug_assert!(self.hot.is_empty(), "{} canisters are not settled", self.hot.len());
        let _here = state_heap::enter();
        for memory in memories {
            let Some(owner) = self.owners.get(&memory) else { continue };
            let Some(layout) = newest(memory) else { continue };
            self.canisters.update(owner.as_slice(), |canister| {
                if let Some(execution) = &mut Arc::make_mut(canister).execution {
                    let slots = [&mut execution.heap, &mut execution.stable];
                    if let Some(slot) = slots.into_iter().find(|slot| slot.id == memory) {
                        slot.layout = Some(layout);
                    }
                }
            });
        }
    }

    /// Checks [`Self::check_sums`], and every kept hash with its values. Hashes the whole state, so
    /// tests call it.
    ///
    /// # Panics
    /// When an invariant does not hold.
    pub fn check(&self) {
        self.canisters.check();
        self.history.check();
        self.check_sums();
    }

    /// Checks the invariants between rounds: no cycles were created or lost, and every sum and
    /// index agrees with the canisters. Visits every canister, so tests and the simulation call it
    /// after every round, and a running node does not.
    ///
    /// # Panics
    /// When an invariant does not hold.
    pub fn check_sums(&self) {
        assert!(self.hot.is_empty() && self.taken_hot.is_empty(), "a canister is not put back");
        assert!(self.touched.is_empty(), "the indexes are not fresh");
        assert_eq!(self.canisters.len(), self.facts.len(), "canisters and their facts");
        self.subnet.outcalls.check();
        self.check_indexes();
        let mut totals = Totals::default();
        let mut modules: BTreeMap<ModuleHash, u64> = BTreeMap::new();
        for canister in self.canisters() {
            canister.check(self.subnet.next_message);
            self.check_memories(canister);
            let since = canister.paused.as_ref().map(|paused| paused.since);
            assert!(
                since <= Some(self.subnet.height),
                "{} is paused since {since:?}, after {:?}",
                canister.id,
                self.subnet.height
            );
            assert!(
                !self.subnet.retired.contains(&canister.id),
                "{} has an id that is never given again",
                canister.id
            );
            let facts = Facts::from_canister(canister, self.response_bytes);
            assert_eq!(self.facts.get(&canister.id), Some(&facts), "facts of {}", canister.id);
            totals.add(&facts.totals);
            for module in [facts.module, facts.next_module].into_iter().flatten() {
                *modules.entry(module).or_default() += 1;
            }
            assert_eq!(
                self.blob_holders.contains(&canister.id),
                facts.names_blobs,
                "who names blobs"
            );
        }
        assert_eq!(self.modules, modules, "canisters of each module");
        assert_eq!(self.totals, totals, "sums over all canisters");
        let timers = self.facts.values().filter(|facts| facts.timer.is_some()).count();
        assert_eq!(self.timers.len(), timers, "timers");
        let is_due = |facts: &&Facts| facts.timer.is_some_and(|time| time <= self.looked_until);
        let due = self.facts.values().filter(is_due).count();
        assert_eq!(self.due_timers.len(), due, "due timers");
        let is_paused = |facts: &&Facts| facts.paused.is_some();
        let paused = self.facts.values().filter(is_paused).count();
        assert_eq!(self.paused().count(), paused, "canisters with a paused message");
        let mut released: BTreeMap<CanisterId, u64> = BTreeMap::new();
        let installs = |canister: &&CanisterState| {
            canister.paused.as_ref().is_some_and(PausedMessage::is_installation)
        };
        let installing = self.canisters().find(installs).map(|canister| canister.id);
        assert_eq!(self.subnet.installing, installing, "the paused installation");
        assert!(installing.is_some() || self.subnet.long_installs.is_empty(), "others wait for it");
        let by = self.subnet.calls.iter().filter_map(|call| call.released_by);
        by.for_each(|id| *released.entry(id).or_default() += 1);
        for canister in self.canisters() {
            let calls = released.get(&canister.id).copied().unwrap_or_default();
            assert_eq!(canister.released, calls, "calls that {} waits for", canister.id);
        }
        let pay = self.facts.values().filter(|facts| facts.charged_until.is_some()).count();
        assert_eq!(self.charges.len(), pay, "canisters that pay for storage");
        assert_eq!(self.cycles_in_all(), self.subnet.minted, "cycles there are and were minted");
    }

    /// The part of [`Self::check`] that compares indexes with the facts that they are made of.
    fn check_indexes(&self) {
        let having = |has: fn(&Facts) -> bool| {
            self.facts.iter().filter(move |(_, facts)| has(facts)).map(|(id, _)| id)
        };
        assert!(self.with_work.iter().eq(having(|facts| facts.has_work)), "canisters with work");
        assert!(self.heartbeats.iter().eq(having(|facts| facts.heartbeat)), "heartbeats");
        assert!(self.stopping.iter().eq(having(|facts| facts.stopping)), "stopping canisters");
        assert!(self.loose.is_empty(), "{} canisters have loose payloads", self.loose.len());
        let deadlines = having(|facts| facts.deadline.is_some()).count();
        assert_eq!(self.deadlines.len(), deadlines, "deadlines of calls");
        let expiries = having(|facts| facts.ingress_expiry.is_some()).count();
        assert_eq!(self.ingress_expiries.len(), expiries, "expiries of ingress messages");
        let stops = having(|facts| facts.stop_deadline.is_some()).count();
        assert_eq!(self.stop_deadlines.len(), stops, "deadlines of stops");
        let with_code = having(|facts| facts.memories.is_some()).count();
        assert_eq!(self.owners.len(), 2 * with_code, "memories of {with_code} canisters");
        let rows = &self.rows;
        assert!(
            rows.settled_below <= self.subnet.next_message,
            "message {} is settled and has a number yet to be given",
            rows.settled_below
        );
        let gone = rows.gone.last().copied();
        assert!(gone < Some(rows.tried_below), "message {gone:?} went and was never stored");
    }

    /// The part of [`Self::check`] that concerns the memories of a canister with code.
    fn check_memories(&self, canister: &CanisterState) {
        let Some(execution) = &canister.execution else { return };
        for memory in [execution.heap.id, execution.stable.id] {
            assert!(
                memory.0 < self.subnet.next_memory,
                "memory {} of {} has a number yet to be given",
                memory.0,
                canister.id
            );
            assert_eq!(self.owners.get(&memory), Some(&canister.id), "owner of {}", memory.0);
        }
    }

    /// Cycles of everything there is: balances, cycles held by calls, in messages and set aside for
    /// responses, spent and lost. Equal to what was minted, always.
    pub fn cycles_in_all(&self) -> CyclesTotal {
        let mut total: CyclesTotal = self.canisters().map(CanisterState::cycles_held).sum();
        let calls = self.subnet.waiting_calls();
        total += calls.map(|call| call.cycles).sum::<CyclesTotal>();
        let waiters = self.subnet.randomness_waiters.iter();
        total += waiters.map(|waiter| waiter.cycles).sum::<CyclesTotal>();
        total += self.subnet.outcalls.cycles().sum::<CyclesTotal>();
        total + self.subnet.consumption.total()
    }
}

impl CanisterState {
    /// The part of [`ReplicatedState::check`] that concerns one canister.
    fn check(&self, next_message: u64) {
        self.queues.check(&self.id, next_message);
        self.calls.check(self.paused.as_ref().and_then(|paused| paused.context));
        self.check_records();
        let answered = self.calls.callbacks().filter(|(_, callback)| callback.answered).count();
        assert_eq!(self.queues.responses().count(), answered, "responses of {}", self.id);
        for response in self.queues.responses() {
            let callback = self.calls.callback(response.callback);
            assert!(
                callback.is_some_and(|callback| callback.answered),
                "{} has a response to a call it did not make",
                self.id
            );
        }
        if let Some(paused) = &self.paused {
            if let Some(context) = paused.context {
                assert!(self.execution.is_some(), "{} has a paused message and no code", self.id);
                let context = self.calls.context(context);
                assert!(context.is_some(), "{}: a paused message without a context", self.id);
            }
            assert_eq!(paused.context.is_none(), paused.module.is_some(), "of {}", self.id);
            assert!(paused.granted > 0, "{} has a message that did not begin", self.id);
        }
    }

    /// Bounds and order of its settings and records.
    fn check_records(&self) {
        self.log.check();
        self.history.check();
        self.snapshots.check();
        let (log, log_max) = (self.log.bytes(), self.settings.log_memory_limit);
        assert!(log <= log_max, "{} has {log} bytes of log, the most is {log_max}", self.id);
        let certified = self.certified_data.len();
        assert!(certified <= 32, "{} has {certified} bytes of certified data", self.id);
        let in_order = self.controllers.is_sorted_by(|one, next| one < next);
        assert!(in_order, "controllers of {} are out of order", self.id);
        let variables = &self.settings.environment;
        let in_order = variables.is_sorted_by(|(one, _), (next, _)| one < next);
        assert!(in_order, "environment variables of {} are out of order", self.id);
        let percent = self.settings.compute_allocation;
        assert!(percent <= 100, "{} has {percent} percent of a core", self.id);
    }

    /// Cycles it has, holds for others, set aside, and ever spent.
    pub fn cycles_held(&self) -> CyclesTotal {
        let mut total = CyclesTotal::from(self.cycles) + self.reserved_cycles;
        total +=
            self.calls.contexts().map(|(_, context)| context.cycles_available).sum::<CyclesTotal>();
        total += self.calls.callbacks().map(|(_, callback)| callback.prepaid).sum::<CyclesTotal>();
        total += self.queues.requests().map(|request| request.cycles).sum::<CyclesTotal>();
        total += self.queues.responses().map(|response| response.refund).sum::<CyclesTotal>();
        if let CanisterStatus::Stopping(waiters) = &self.status {
            total += waiters.iter().map(|waiter| waiter.cycles).sum::<CyclesTotal>();
        }
        if let Some(paused) = &self.paused {
            total += paused.cycles_held();
        }
        total + self.consumption.total()
    }
}

impl Facts {
    fn from_canister(canister: &CanisterState, response_bytes: u64) -> Self {
        let hooks = canister.module().map(|module| module.info.hooks).unwrap_or_default();
        let free = !canister.is_held();
        let running = free && canister.status == CanisterStatus::Running;
        let usage = canister.memory_usage();
        let (guaranteed, best_effort) = canister.message_memory(response_bytes);
        let paused = paused_payload(Some(canister)).map_or(0, |(_, bytes)| bytes);
        let is_guaranteed = canister.paused.as_ref().is_some_and(|paused| paused.is_guaranteed);
        let in_files =
            canister.queues.guaranteed_file_bytes + if is_guaranteed { paused } else { 0 };
        let reserved = canister.calls.reserved_responses * response_bytes;
        let low_memory =
            running && hooks.on_low_wasm_memory && canister.low_memory_hook == LowMemoryHook::Ready;
        let stop_deadline = match &canister.status {
            CanisterStatus::Stopping(waiters) => waiters.iter().map(|waiter| waiter.deadline).min(),
            _ => None,
        };
        Self {
            has_work: low_memory || (free && !canister.queues.is_empty()),
            timer: (running && hooks.global_timer && canister.global_timer.0 != 0)
                .then_some(canister.global_timer),
            heartbeat: running && hooks.heartbeat,
            deadline: canister.calls.next_deadline(),
            ingress_expiry: canister.queues.next_ingress_expiry(),
            stopping: matches!(canister.status, CanisterStatus::Stopping(_)),
            stop_deadline,
            charged_until: canister.can_be_charged().then_some(canister.charged_until),
            paused: canister.paused.as_ref().map(|paused| paused.since),
            memories: canister
                .execution
                .as_ref()
                .map(|execution| (execution.heap.id, execution.stable.id)),
            module: canister.module().map(|module| module.hash),
            next_module: canister.paused.as_ref().and_then(|paused| paused.module),
            names_blobs: !canister.chunks.is_empty() || !canister.snapshots.is_empty(),
            loose: canister.queues.loose_bytes > 0,
            totals: Totals {
                memory_taken: canister.memory_taken_with(&usage),
                memory_used: usage.total(),
                custom_section_bytes: usage.custom_sections,
                metadata_bytes: canister.metadata_bytes_with(&usage),
                guaranteed_message_bytes: guaranteed,
                best_effort_message_bytes: best_effort,
                waiting_call_bytes: canister
                    .paused
                    .as_ref()
                    .map_or(0, PausedMessage::waiting_call_bytes),
                guaranteed_calls: canister.guaranteed_calls(),
                guaranteed_here_bytes: guaranteed.saturating_sub(reserved + in_files),
                file_payload_bytes: canister.queues.file_bytes + paused,
                loose_payload_bytes: canister.queues.loose_bytes,
                compute_allocation: canister.settings.compute_allocation,
                consumed: canister.consumption.total(),
            },
        }
    }
}

/// Number and bytes of the payload of a canister's paused message, if it is in a file.
fn paused_payload(canister: Option<&CanisterState>) -> Option<(u64, u64)> {
    let payload = canister?.paused.as_ref()?.payload.as_ref()?;
    Some((payload.number, payload.bytes))
}

/// One holder less.
fn release(counts: &mut BTreeMap<ModuleHash, u64>, module: ModuleHash) {
    debug_assert!(counts.get(&module).is_some_and(|count| *count > 0), "{module:?} has no holder");
    if let Entry::Occupied(mut count) = counts.entry(module) {
        *count.get_mut() -= 1;
        if *count.get() == 0 {
            count.remove();
        }
    }
}

fn due(entries: &BTreeSet<(Time, CanisterId)>, now: Time) -> impl Iterator<Item = CanisterId> + '_ {
    entries.iter().take_while(move |(time, _)| *time <= now).map(|(_, id)| *id)
}

/// The first entry that can be later than `time`.
fn after(time: Time) -> (Time, CanisterId) {
    (Time(time.0.saturating_add(1)), Principal::from_slice(&[]))
}

fn mark(set: &mut BTreeSet<Principal>, id: CanisterId, present: bool) {
    if present {
        set.insert(id);
    } else {
        set.remove(&id);
    }
}

fn move_entry<T: Ord + Copy>(
    entries: &mut BTreeSet<(T, CanisterId)>,
    id: CanisterId,
    old: Option<T>,
    new: Option<T>,
) {
    if old != new
        && let Some(old) = old
    {
        let was_there = entries.remove(&(old, id));
        debug_assert!(was_there, "{id} had no entry in the index");
    }
    if let Some(new) = new {
        entries.insert((new, id));
    }
}
