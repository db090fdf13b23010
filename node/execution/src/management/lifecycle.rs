//! Starting, stopping, emptying and deleting canisters.

use ic_management_canister_types::UninstallCodeArgs;
use state::{
    CanisterId, CanisterState, CanisterStatus, ChangeDetails, Payload, Reject, StopWaiter,
    SubnetCall, Time,
};

use super::snapshots::drop_snapshots;
use super::{Dispatcher, MethodOutcome, MethodResult, no_value};
use crate::config::ExecutorConfig;
use crate::core::Core;
use crate::message::Effects;
use crate::reject::{self, refused};

/// How long a `stop_canister` waits for open calls.
pub(crate) const STOP_TIMEOUT_SECONDS: u64 = 300;

impl Dispatcher<'_> {
    pub(super) fn start_canister(&mut self, call: &SubnetCall) -> MethodResult {
        let id = self.canister_in(call)?;
        let canister = self.state.get_mut(&id).ok_or_else(|| reject::canister_not_found(&id))?;
        let before = std::mem::replace(&mut canister.status, CanisterStatus::Running);
        canister.version += 1;
        if let CanisterStatus::Stopping(waiters) = before {
            for waiter in waiters {
                let cancelled = Payload::Reject(reject::stop_cancelled(&id));
                canister.consumption.uninstall +=
                    self.effects.answer(&waiter.origin, cancelled, waiter.cycles);
            }
        }
        Ok(MethodOutcome::Reply(no_value()))
    }

    pub(super) fn stop_canister(&mut self, call: &SubnetCall) -> MethodResult {
        let id = self.canister_in(call)?;
        let deadline = Time(self.round.time.0.saturating_add(STOP_TIMEOUT_SECONDS * 1_000_000_000));
        let canister = self.target_mut(&id)?;
        canister.version += 1;
        let waiter = StopWaiter { origin: call.origin.clone(), cycles: call.cycles, deadline };
        match &mut canister.status {
            CanisterStatus::Stopped => return Ok(MethodOutcome::Reply(no_value())),
            CanisterStatus::Stopping(waiters) => waiters.push(waiter),
            CanisterStatus::Running => canister.status = CanisterStatus::Stopping(vec![waiter]),
        }
        Ok(MethodOutcome::Waits)
    }

    pub(super) fn uninstall_code(&mut self, call: &SubnetCall) -> MethodResult {
        let argument: UninstallCodeArgs = self.decode(call)?;
        self.check_sender_version(call, argument.sender_canister_version)?;
        self.uninstall(call, &argument.canister_id, argument.sender_canister_version)?;
        Ok(MethodOutcome::Reply(no_value()))
    }

    /// Removes the code of a canister for a call.
    pub(super) fn uninstall(
        &mut self,
        call: &SubnetCall,
        id: &CanisterId,
        told_version: Option<u64>,
    ) -> Result<(), Reject> {
        let canister = self.state.get_mut(id).ok_or_else(|| reject::canister_not_found(id))?;
        uninstall(self.core, canister, &mut self.effects, &reject::uninstalled());
        let (by, details) = ((call, told_version), ChangeDetails::CodeUninstall);
        Self::add_change(canister, self.round.time, by, details);
        Ok(())
    }

    pub(super) fn delete_canister(&mut self, call: &SubnetCall) -> MethodResult {
        let id = self.canister_in(call)?;
        let canister = self.target(&id)?;
        if canister.status != CanisterStatus::Stopped {
            return refused!(510, "Canister {id} must be stopped before it is deleted.");
        }
        if call.origin.caller() == id {
            return refused!(512, "Canister {id} cannot delete itself.");
        }
        if !canister.queues.is_empty() || canister.calls.callbacks_open() > 0 {
            return refused!(
                203,
                "Canister {id} has messages in its queues and cannot be deleted now. Please retry \
                 after some time."
            );
        }
        self.retire(&id);
        let Some(mut canister) = self.state.remove(&id) else {
            return Err(reject::canister_not_found(&id).into());
        };
        drop_code(self.core, &mut canister);
        drop_snapshots(self.core, canister.snapshots.take_all());
        let subnet = &mut self.state.subnet;
        // Its cycles are gone for good; what it spent stays on the subnet's account.
        subnet.consumption.uninstall += canister.cycles;
        subnet.consumption.uninstall += canister.reserved_cycles;
        subnet.consumption.add(&canister.consumption);
        Ok(MethodOutcome::Reply(no_value()))
    }

    /// Remembers an id that the counter of fresh ids would give again, or has not passed yet.
    fn retire(&mut self, id: &CanisterId) {
        let given = self.core.config.first_canister..self.state.subnet.next_canister;
        if !ExecutorConfig::canister_number(id).is_some_and(|number| given.contains(&number)) {
            self.state.subnet.retired.insert(*id);
        }
    }
}

/// A canister ran out of cycles: its code goes, its snapshots, and what is known of its changes but
/// their number.
pub(crate) fn run_out(core: &Core, canister: &mut CanisterState, effects: &mut Effects) {
    let rejection = reject::ran_out(&canister.id);
    uninstall(core, canister, effects, &rejection);
    drop_snapshots(core, canister.snapshots.take_all());
    canister.history.clear();
    canister.settings.compute_allocation = 0;
    canister.settings.memory_allocation = 0;
}

/// Removes code, memories, chunks and open calls of a canister; answers all waiting callers. The
/// version rises.
fn uninstall(core: &Core, canister: &mut CanisterState, effects: &mut Effects, rejection: &Reject) {
    drop_code(core, canister);
    canister.chunks.clear();
    canister.certified_data.clear();
    canister.global_timer = Time(0);
    canister.installed_at = None;
    canister.log.clear();
    canister.version += 1;
    for context in canister.calls.delete_contexts() {
        let rejection = Payload::Reject(rejection.clone());
        canister.consumption.uninstall +=
            effects.answer(&context.origin, rejection, context.cycles_available);
    }
}

fn drop_code(core: &Core, canister: &mut CanisterState) {
    core.note_blobs_changed();
    if let Some(execution) = canister.execution.take() {
        let memories = [execution.heap.id, execution.stable.id];
        core.sandbox.forget(&memories);
        memories.iter().for_each(|memory| core.pages.remove(*memory));
    }
    canister.low_memory_hook = state::LowMemoryHook::Idle;
}
