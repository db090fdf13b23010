//! Creation of canisters, paid or provisional.

use ic_management_canister_types::CanisterIdRecord;
use state::{CanisterId, CanisterState, ChangeDetails, Cycles, Reject, Settings, SubnetCall};

use super::settings::{self, RequestedSettings, check_promises, read};
use super::types::{CreateCanister, ProvisionalCreateCanister, SettingsArgument};
use super::{Dispatcher, MethodOutcome, MethodResult, encode};
use crate::config::ExecutorConfig;
use crate::cycles::DEFAULT_PROVISIONAL_BALANCE;
use crate::reject::{self, refused};

/// Ids of deleted canisters that are remembered because they had been asked for by name.
const RETIRED_MAX: usize = 65_536;

impl Dispatcher<'_> {
    pub(super) fn create_canister(&mut self, call: &SubnetCall) -> MethodResult {
        let argument: CreateCanister = if call.arg == super::no_value() {
            CreateCanister::default()
        } else {
            self.decode(call)?
        };
        self.check_sender_version(call, argument.sender_canister_version)?;
        let requested = self.settings_of_new(argument.settings)?;
        // Subnets with admins make canisters free of charge (interface specification,
        // `create_canister`).
        let fee = if self.core.config.subnet_admins.is_empty() {
            self.core.costs_of(&call.origin.caller()).create_canister
        } else {
            0
        };
        if call.cycles < fee {
            return refused!(
                403,
                "Creating a canister requires a fee of {fee} that is deducted from the canister's \
                 initial balance but only {} cycles were received with the create_canister \
                 request.",
                call.cycles
            );
        }
        let id = self.fresh_id(call)?;
        let mut canister = self.new_canister(
            call,
            id,
            requested,
            call.cycles - fee,
            argument.sender_canister_version,
        )?;
        canister.consumption.canister_creation += fee;
        self.add_canister(canister, true)?;
        Ok(MethodOutcome::ReplyWithRefund(encode(&CanisterIdRecord { canister_id: id })?, 0))
    }

    pub(super) fn provisional_create_canister_with_cycles(
        &mut self,
        call: &SubnetCall,
    ) -> MethodResult {
        let argument: ProvisionalCreateCanister = self.decode(call)?;
        self.check_sender_version(call, argument.sender_canister_version)?;
        let amount = match &argument.amount {
            Some(amount) => settings::saturating_cycles(amount),
            None => DEFAULT_PROVISIONAL_BALANCE,
        };
        let requested = self.settings_of_new(argument.settings)?;
        let is_fresh = argument.specified_id.is_none();
        let id = match argument.specified_id {
            Some(id) => self.specified_id(id)?,
            None => self.fresh_id(call)?,
        };
        let canister =
            self.new_canister(call, id, requested, amount, argument.sender_canister_version)?;
        self.add_canister(canister, is_fresh)?;
        self.state.subnet.minted += amount;
        Ok(MethodOutcome::Reply(encode(&CanisterIdRecord { canister_id: id })?))
    }

    /// Settings of a canister that is to be made, read before anything is paid or given out.
    fn settings_of_new(
        &self,
        settings: Option<SettingsArgument>,
    ) -> Result<RequestedSettings, Reject> {
        let limit = self.core.limits().subnet.canister_log_bytes;
        let defaults = Settings {
            log_memory_limit: Settings::default().log_memory_limit.min(limit),
            ..Settings::default()
        };
        read(self.core, settings.unwrap_or_default(), &defaults)
    }

    fn new_canister(
        &mut self,
        call: &SubnetCall,
        id: CanisterId,
        requested: RequestedSettings,
        cycles: Cycles,
        told_version: Option<u64>,
    ) -> Result<CanisterState, Reject> {
        self.state.refresh();
        let limits = &self.core.limits().subnet;
        if self.state.len() >= limits.canisters_max {
            return Err(reject::too_many_canisters(limits.canisters_max));
        }
        let environment_hash = requested.environment_hash();
        let settings = requested.settings.clone();
        let controllers = requested.controllers.unwrap_or_else(|| vec![call.origin.caller()]);
        let mut canister =
            CanisterState::new(id, controllers.clone(), settings, cycles, self.round.time);
        let details = ChangeDetails::Creation { controllers, environment_hash };
        Self::add_change(&mut canister, self.round.time, (call, told_version), details);
        canister.delta_height = self.round.height.0;
        Ok(canister)
    }

    /// `is_fresh` says that it asked for no id.
    fn add_canister(&mut self, canister: CanisterState, is_fresh: bool) -> Result<(), Reject> {
        check_promises(self.core, self.state, None, &canister)?;
        let subnet = &mut self.state.subnet;
        if is_fresh {
            subnet.next_canister = subnet.next_canister.saturating_add(1);
        }
        self.state.put(canister);
        self.state.refresh();
        Ok(())
    }

    /// The next id that was never in use; it is consumed once a canister is created with it. Ids
    /// requested by name are below all of these.
    fn fresh_id(&self, call: &SubnetCall) -> Result<CanisterId, Reject> {
        let config = &self.core.config;
        let id = config.fresh_id(&call.origin, self.state.subnet.next_canister);
        id.filter(|id| config.in_range(id))
            .ok_or_else(|| reject::reject(102, "The subnet's canister ranges hold no further id."))
    }

    fn specified_id(&self, id: CanisterId) -> Result<CanisterId, Reject> {
        if !self.core.config.in_range(&id) {
            return refused!(405, "Canister id {id} lies outside the subnet's canister ranges.");
        }
        let number = ExecutorConfig::canister_number(&id).ok_or_else(|| {
            reject::invalid_payload(format!("{id} does not have the form of a canister id."))
        })?;
        if self.state.contains(&id) {
            return Err(reject::already_installed(&id));
        }
        if number >= self.core.config.first_canister {
            return refused!(
                invalid_payload,
                "Canister id {id} is one of those that the subnet gives to canisters that ask for \
                 none."
            );
        }
        if self.state.subnet.retired.contains(&id) {
            return refused!(
                538,
                "Canister id {id} was used before, and no id is given out twice."
            );
        }
        if self.state.subnet.retired.len() >= RETIRED_MAX {
            return refused!(
                subnet_oversubscribed,
                "{RETIRED_MAX} deleted canisters had ids of their own choosing, the most that are \
                 remembered; create the canister without specified_id."
            );
        }
        Ok(id)
    }
}
