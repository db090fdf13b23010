//! Induction of a batch's ingress messages: duplicates, expiry, permissions, and the fee.
//!
//! The batch was agreed on; what it holds was not checked against the state by anyone whose word
//! counts. A call that was here before, or is too old or too far ahead, is passed over. Any other
//! gets a status, be it a rejection: the client finds out why.

use envelope::candid_wire::Cost;
use ic_principal::Principal;
use state::{
    CanisterId, CanisterStatus, Ingress, Origin, Reject, ReplicatedState, StateArc, SubnetCall,
    Time, state_heap,
};

use crate::core::Core;
use crate::management;
use crate::messaging::{MessageMemory, SMALL_MANAGEMENT_CALL_BYTES};
use crate::reject::{self, refused};

/// Takes in all calls of a batch, in order. Returns the instructions that reading their arguments
/// counts with in the round.
pub(crate) fn induct(core: &Core, state: &mut ReplicatedState, batch: &[Ingress]) -> u64 {
    let mut cost = Cost::default();
    if batch.is_empty() {
        return cost.instructions;
    }
    state.refresh();
    let mut memory = MessageMemory::from_state(state);
    for ingress in batch {
        let now = state.subnet.time;
        if !is_current(core, ingress, now) || state.history.get(&ingress.request_id).is_some() {
            continue;
        }
        let id = ingress.request_id;
        if let Err(error) = state.history.receive(ingress, now) {
            tracing::debug!(%error, "ingress message passed over");
            continue;
        }
        if let Err(reject) = accept(core, state, &mut memory, ingress, &mut cost) {
            state.history.finish(&id, Err(reject), now);
        }
    }
    cost.instructions
}

fn is_current(core: &Core, ingress: &Ingress, now: Time) -> bool {
    let limits = &core.limits().consensus;
    let ahead = (limits.ingress_expiry_seconds + limits.ingress_drift_seconds)
        .saturating_mul(1_000_000_000);
    ingress.ingress_expiry >= now && ingress.ingress_expiry.0 <= now.0.saturating_add(ahead)
}

fn accept(
    core: &Core,
    state: &mut ReplicatedState,
    memory: &mut MessageMemory,
    ingress: &Ingress,
    cost: &mut Cost,
) -> Result<(), Reject> {
    let limit = core.limits().subnet.message_payload_bytes;
    let bytes = (ingress.arg.len() + ingress.method_name.len()) as u64;
    if bytes > limit {
        return refused!(
            invalid_payload,
            "The message has {bytes} bytes of method name and argument, the most is {limit} \
             (subnet.message_payload_bytes)."
        );
    }
    let accounted_bytes = ingress.accounted_bytes();
    if ingress.canister_id == Principal::management_canister() {
        let named = management::named_canister(core, &ingress.method_name, &ingress.arg, cost)?;
        let target = named.and_then(|id| state.get(&id));
        management::check_ingress(core, ingress, target)?;
        if let Some(id) = named
            && management::is_charged(&ingress.method_name)
        {
            // Controllers must still be able to change the settings of a canister that is out of
            // cycles.
            let spares_frozen = ingress.method_name == "update_settings";
            charge(core, state, &id, ingress.accounted_bytes(), spares_frozen)?;
        }
        // However many calls wait for a canister, its controllers can stop it or inspect it.
        let is_large = accounted_bytes > SMALL_MANAGEMENT_CALL_BYTES;
        let shares = named.filter(|_| is_large).and_then(|id| state.get(&id));
        memory.take_ingress(core, accounted_bytes, shares)?;
        let ingress = in_state_heap(ingress);
        let call = SubnetCall {
            origin: Origin::Ingress {
                request_id: ingress.request_id,
                sender: ingress.sender,
                sender_info: ingress.sender_info,
            },
            sender_version: None,
            method_name: ingress.method_name,
            arg: ingress.arg,
            cycles: 0,
            released_by: None,
        };
        state_heap::within(|| state.subnet.calls.push_back(call));
        return Ok(());
    }
    let id = ingress.canister_id;
    let canister = state.get(&id).ok_or_else(|| reject::canister_not_found(&id))?;
    match canister.status {
        CanisterStatus::Running => {}
        CanisterStatus::Stopping(_) => return Err(reject::stopping(&id)),
        CanisterStatus::Stopped => return Err(reject::stopped(&id)),
    }
    memory.take_ingress(core, accounted_bytes, Some(canister))?;
    charge(core, state, &id, accounted_bytes, false)?;
    let number = state.number_message();
    if let Some(canister) = state.get_mut(&id) {
        canister.queues.push_ingress(number, StateArc::new(in_state_heap(ingress)));
    }
    Ok(())
}

/// The message that waits: the only copy of what the block brought, in the state's heap.
fn in_state_heap(ingress: &Ingress) -> Ingress {
    state_heap::within(|| ingress.clone())
}

/// Takes the induction fee.
fn charge(
    core: &Core,
    state: &mut ReplicatedState,
    id: &CanisterId,
    bytes: u64,
    spares_frozen: bool,
) -> Result<(), Reject> {
    let fee = core.costs_of(id).induction(bytes);
    let canister = state.get_mut(id).ok_or_else(|| reject::canister_not_found(id))?;
    if !spares_frozen {
        core.check_affordable(canister, fee, "taking in an ingress message")?;
    }
    let fee = fee.min(canister.cycles);
    canister.debit(fee);
    canister.consumption.ingress_induction += fee;
    Ok(())
}
