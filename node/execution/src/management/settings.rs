//! Settings of canisters: reading them from Candid, checking them against limits and against each
//! other, putting them in force.
//!
//! Nothing is in force before everything was checked: a refused call changed nothing.

use candid::{Nat, Principal};
use ic_management_canister_types::{LogVisibility, SnapshotVisibility};
use sha2::{Digest, Sha256};
use state::{
    CanisterState, ChangeDetails, Cycles, Reject, ReplicatedState, Settings, SubnetCall, Visibility,
};

use super::types::{SettingsArgument, UpdateSettings};
use super::{Dispatcher, MethodOutcome, MethodResult, no_value};
use crate::core::Core;
use crate::machine::watch_memory;
use crate::reject::{self, refused};

pub(super) const VIEWERS_MAX: usize = 10;
pub(super) const ENVIRONMENT_VARIABLES_MAX: usize = 20;
const ENVIRONMENT_BYTES_MAX: usize = 128;
const WASM_MEMORY_LIMIT_MAX: u64 = 1 << 48;

/// A number of 128 bits. One that is larger may have millions of digits: it is neither copied nor
/// written out, which would take time that grows with their square.
fn small(value: &Nat) -> Option<u128> {
    u128::try_from(&value.0).ok()
}

/// An amount of provisional cycles: no balance holds more than the largest number.
pub(super) fn saturating_cycles(value: &Nat) -> Cycles {
    small(value).unwrap_or(Cycles::MAX)
}

/// An amount of cycles.
fn cycles(value: &Nat, what: &str) -> Result<Cycles, Reject> {
    small(value).ok_or_else(|| {
        reject::contract_violation(format!("{what} is over 2^128 - 1, which is the most."))
    })
}

fn number(value: &Nat, what: &str, max: u64) -> Result<u64, Reject> {
    match small(value) {
        Some(number) if number <= Cycles::from(max) => Ok(u64::try_from(number).unwrap_or(max)),
        Some(number) => {
            Err(reject::contract_violation(format!("{what} is {number}, the most is {max}.")))
        }
        None => {
            Err(reject::contract_violation(format!("{what} is over 2^128 - 1, the most is {max}.")))
        }
    }
}

fn viewers(visibility: LogVisibility, what: &str) -> Result<Visibility, Reject> {
    Ok(match visibility {
        LogVisibility::Controllers => Visibility::Controllers,
        LogVisibility::Public => Visibility::Public,
        LogVisibility::AllowedViewers(viewers) if viewers.len() <= VIEWERS_MAX => {
            Visibility::AllowedViewers(viewers)
        }
        LogVisibility::AllowedViewers(viewers) => {
            return refused!(
                invalid_payload,
                "{what} names {} viewers, the most is {VIEWERS_MAX}.",
                viewers.len()
            );
        }
    })
}

/// Settings as asked for: read and within their own bounds.
pub(super) struct RequestedSettings {
    pub(super) controllers: Option<Vec<Principal>>,
    /// The current ones with the changes asked for.
    pub(super) settings: Settings,
    names_environment: bool,
}

/// Reads settings; what is not named stays as in `current`.
#[expect(clippy::too_many_lines, reason = "a table, entry after entry")]
pub(super) fn read(
    core: &Core,
    argument: SettingsArgument,
    current: &Settings,
) -> Result<RequestedSettings, Reject> {
    let limits = core.limits();
    let mut settings = current.clone();
    let controllers = match argument.controllers {
        Some(mut controllers) => {
            // As they were named: repeating one makes no room for others.
            let max = limits.subnet.controllers_max;
            if controllers.len() as u64 > max {
                return refused!(
                    invalid_payload,
                    "{} controllers, the most is {max} (subnet.controllers_max).",
                    controllers.len()
                );
            }
            controllers.sort();
            controllers.dedup();
            Some(controllers)
        }
        None => None,
    };
    if let Some(value) = &argument.compute_allocation {
        settings.compute_allocation = number(value, "compute_allocation", 100)?;
    }
    if let Some(value) = &argument.memory_allocation {
        settings.memory_allocation = number(value, "memory_allocation", u64::MAX)?;
    }
    if let Some(value) = &argument.freezing_threshold {
        settings.freezing_threshold = number(value, "freezing_threshold", u64::MAX)?;
    }
    if let Some(value) = &argument.reserved_cycles_limit {
        settings.reserved_cycles_limit = cycles(value, "reserved_cycles_limit")?;
    }
    if let Some(value) = &argument.minimum_incoming_canister_call_cycles {
        settings.minimum_incoming_call_cycles =
            cycles(value, "minimum_incoming_canister_call_cycles")?;
    }
    if let Some(value) = argument.log_visibility {
        settings.log_visibility = viewers(value, "log_visibility")?;
    }
    if let Some(value) = argument.status_visibility {
        settings.status_visibility = viewers(value, "status_visibility")?;
    }
    if let Some(value) = argument.snapshot_visibility {
        let value = match value {
            SnapshotVisibility::Controllers => LogVisibility::Controllers,
            SnapshotVisibility::Public => LogVisibility::Public,
            SnapshotVisibility::AllowedViewers(viewers) => LogVisibility::AllowedViewers(viewers),
        };
        settings.snapshot_visibility = viewers(value, "snapshot_visibility")?;
    }
    if let Some(value) = &argument.log_memory_limit {
        settings.log_memory_limit =
            number(value, "log_memory_limit", limits.subnet.canister_log_bytes)?;
    }
    if let Some(value) = &argument.wasm_memory_limit {
        settings.wasm_memory_limit = number(value, "wasm_memory_limit", WASM_MEMORY_LIMIT_MAX)?;
    }
    if let Some(value) = &argument.wasm_memory_threshold {
        settings.wasm_memory_threshold =
            number(value, "wasm_memory_threshold", WASM_MEMORY_LIMIT_MAX)?;
    }
    let names_environment = argument.environment_variables.is_some();
    if let Some(variables) = argument.environment_variables {
        let mut variables: Vec<(String, String)> =
            variables.into_iter().map(|variable| (variable.name, variable.value)).collect();
        if variables.len() > ENVIRONMENT_VARIABLES_MAX {
            return refused!(
                invalid_payload,
                "{} environment variables, the most is {ENVIRONMENT_VARIABLES_MAX}.",
                variables.len()
            );
        }
        for (name, value) in &variables {
            if name.len() > ENVIRONMENT_BYTES_MAX || value.len() > ENVIRONMENT_BYTES_MAX {
                return refused!(
                    invalid_payload,
                    "An environment variable has a name of {} and a value of {} bytes, the most is \
                     {ENVIRONMENT_BYTES_MAX} each.",
                    name.len(),
                    value.len()
                );
            }
        }
        variables.sort();
        if variables
            .windows(2)
            .any(|pair| matches!(pair, [(first, _), (second, _)] if first == second))
        {
            return Err(reject::invalid_payload("Two environment variables have the same name."));
        }
        settings.environment = variables;
    }
    Ok(RequestedSettings { controllers, settings, names_environment })
}

impl RequestedSettings {
    /// Hash of the environment variables if there were any in the call, as the canister history
    /// shows it.
    pub(super) fn environment_hash(&self) -> Option<[u8; 32]> {
        self.names_environment.then(|| environment_hash(&self.settings.environment))
    }
}

/// Representation-independent hash of a map from names to values (interface specification, "hash of
/// map").
fn environment_hash(variables: &[(String, String)]) -> [u8; 32] {
    let hash = |text: &str| -> [u8; 32] { Sha256::digest(text.as_bytes()).into() };
    let mut pairs: Vec<[[u8; 32]; 2]> =
        variables.iter().map(|(name, value)| [hash(name), hash(value)]).collect();
    pairs.sort();
    Sha256::digest(pairs.as_flattened().as_flattened()).into()
}

/// Whether the subnet can promise what `next` asks beyond what `current` has (`None` for a new
/// canister).
pub(super) fn check_promises(
    core: &Core,
    state: &ReplicatedState,
    current: Option<&CanisterState>,
    next: &CanisterState,
) -> Result<(), Reject> {
    let (limits, totals) = (core.limits(), state.totals());
    let compute_before = current.map_or(0, |canister| canister.settings.compute_allocation);
    let compute = next.settings.compute_allocation;
    let promised = totals.compute_allocation.saturating_sub(compute_before);
    let capacity = limits.execution.allocatable_percent();
    if compute > compute_before && promised + compute > capacity {
        return refused!(
            subnet_oversubscribed,
            "A compute allocation of {compute} % cannot be promised: {promised} % of {capacity} % \
             are taken (execution.threads)."
        );
    }
    let taken_before = current.map_or(0, CanisterState::memory_taken);
    let taken = next.memory_taken();
    let others = totals.memory_taken.saturating_sub(taken_before);
    let capacity = limits.subnet.memory_capacity_bytes;
    if taken > taken_before && others.saturating_add(taken) > capacity {
        return refused!(
            subnet_oversubscribed,
            "{taken} bytes of memory cannot be promised: {others} of the subnet's {capacity} bytes \
             are taken (subnet.memory_capacity_bytes)."
        );
    }
    let metadata_before = current.map_or(0, CanisterState::metadata_bytes);
    let metadata = next.metadata_bytes();
    let others = totals.metadata_bytes.saturating_sub(metadata_before);
    let capacity = limits.subnet.canister_metadata_bytes;
    if metadata > metadata_before && others.saturating_add(metadata) > capacity {
        return refused!(
            subnet_oversubscribed,
            "The canister's settings would take {metadata} bytes in memory: {others} of the \
             subnet's {capacity} bytes are taken (subnet.canister_metadata_bytes)."
        );
    }
    let allocation_before = current.map_or(0, |canister| canister.settings.memory_allocation);
    let dearer = compute > compute_before || next.settings.memory_allocation > allocation_before;
    let needed = core.costs_of(&next.id).freezing_limit(next);
    if dearer && next.cycles < needed {
        let code = if compute > compute_before { 530 } else { 531 };
        return Err(reject::reject(
            code,
            format!(
                "Canister {} has {} cycles and would have to keep {needed} to last its freezing \
                 threshold with these settings; top it up.",
                next.id, next.cycles
            ),
        ));
    }
    Ok(())
}

impl Dispatcher<'_> {
    pub(super) fn update_settings(&mut self, call: &SubnetCall) -> MethodResult {
        let argument: UpdateSettings = self.decode(call)?;
        self.check_sender_version(call, argument.sender_canister_version)?;
        // Totals must know what earlier calls of this turn promised.
        self.state.refresh();
        let current = self.target(&argument.canister_id)?;
        let requested = read(self.core, argument.settings, &current.settings)?;
        let mut next = current.clone();
        next.settings.clone_from(&requested.settings);
        if let Some(controllers) = &requested.controllers {
            next.controllers.clone_from(controllers);
        }
        check_promises(self.core, self.state, Some(current), &next)?;
        next.version += 1;
        if let Some(controllers) = requested.controllers {
            let by = (call, argument.sender_canister_version);
            let details = ChangeDetails::ControllersChange(controllers);
            Self::add_change(&mut next, self.round.time, by, details);
        }
        next.log.trim(next.settings.log_memory_limit);
        watch_memory(self.core, &mut next);
        self.state.put(next);
        Ok(MethodOutcome::Reply(no_value()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_hash_does_not_depend_on_order() {
        let pair = |name: &str| (name.to_string(), "value".to_string());
        assert_eq!(
            environment_hash(&[pair("a"), pair("b")]),
            environment_hash(&[pair("b"), pair("a")])
        );
        assert_ne!(environment_hash(&[pair("a")]), environment_hash(&[pair("b")]));
    }
}
