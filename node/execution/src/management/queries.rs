//! Methods of the management canister that can be queried. They read one certified state and change
//! nothing.

use candid::Principal;
use envelope::candid_wire::Cost;
use ic_management_canister_types as ic;
use state::{CertifiedState, Reject, SharedCanister};

use super::argument::{decode, principal_in};
use super::{Access, check_access, encode, may_view, status};
use crate::core::Core;
use crate::reject::{self, refused};

/// Answers a query to `aaaaa-aa`.
pub(crate) fn query(
    core: &Core,
    state: &CertifiedState,
    caller: &Principal,
    method_name: &str,
    arg: &[u8],
) -> Result<Vec<u8>, Reject> {
    match method_name {
        "canister_status" => {
            let canister = target(core, state, arg)?;
            check_access(core, (Access::StatusViewers, method_name), &canister, caller)?;
            status::canister_status(core, &canister)
        }
        "canister_metrics" => {
            let canister = target(core, state, arg)?;
            check_access(core, (Access::ControllersAndAdmins, method_name), &canister, caller)?;
            status::canister_metrics(&canister)
        }
        "fetch_canister_logs" => fetch_canister_logs(core, state, caller, arg),
        "list_canisters" => list_canisters(core, state, caller),
        _ => Err(reject::unknown_management_query(method_name)),
    }
}

/// Whether the method can be queried and not called.
pub(crate) fn is_query(method_name: &str) -> bool {
    matches!(method_name, "fetch_canister_logs" | "list_canisters")
}

fn target(core: &Core, state: &CertifiedState, arg: &[u8]) -> Result<SharedCanister, Reject> {
    let id = principal_in(core.limits(), "canister_id", arg, &mut Cost::default())?;
    state.canister(&id).ok_or_else(|| reject::canister_not_found(&id))
}

fn fetch_canister_logs(
    core: &Core,
    state: &CertifiedState,
    caller: &Principal,
    arg: &[u8],
) -> Result<Vec<u8>, Reject> {
    let argument: ic::FetchCanisterLogsArgs = decode(core.limits(), arg, &mut Cost::default())?;
    let id = argument.canister_id;
    let canister = state.canister(&id).ok_or_else(|| reject::canister_not_found(&id))?;
    if !may_view(&canister.settings.log_visibility, &canister, caller) {
        return Err(reject::log_not_visible(caller));
    }
    let wanted = |record: &&state::LogRecord| match &argument.filter {
        None => true,
        Some(ic::CanisterLogFilter::ByIdx { start, end }) => {
            (*start..=*end).contains(&record.index)
        }
        Some(ic::CanisterLogFilter::ByTimestampNanos { start, end }) => {
            (*start..=*end).contains(&record.time.0)
        }
    };
    let canister_log_records = canister
        .log
        .records()
        .filter(wanted)
        .map(|record| ic::CanisterLogRecord {
            idx: record.index,
            timestamp_nanos: record.time.0,
            content: record.content.clone(),
        })
        .collect();
    encode(&ic::FetchCanisterLogsResult { canister_log_records })
}

fn list_canisters(
    core: &Core,
    state: &CertifiedState,
    caller: &Principal,
) -> Result<Vec<u8>, Reject> {
    if !core.config.subnet_admins.contains(caller) {
        return refused!(
            rejected_message,
            "Only subnet admins may list canisters; {caller} is none."
        );
    }
    let mut canisters: Vec<ic::CanisterIdRange> = Vec::new();
    let mut last_number = None;
    for canister in state.canisters().iter() {
        let number = crate::ExecutorConfig::canister_number(&canister.id);
        let follows = last_number
            .zip(number)
            .is_some_and(|(last, number): (u64, u64)| last.checked_add(1) == Some(number));
        match canisters.last_mut() {
            Some(range) if follows => range.end = canister.id,
            _ => canisters.push(ic::CanisterIdRange { start: canister.id, end: canister.id }),
        }
        last_number = number;
    }
    encode(&ic::ListCanistersResult { canisters })
}
