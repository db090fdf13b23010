//! Information about a canister: status, metrics, history, metadata.

use candid::{Nat, Principal};
use ic_management_canister_types as ic;
use serde_bytes::ByteBuf;
use state::{
    BlockCounts, CanisterState, CanisterStatus, Change, ChangeDetails, ChangeOrigin, CyclesTotal,
    DeploymentMode, Reject, SubnetCall, Time, Visibility,
};

use super::snapshots::source as source_of_snapshot;
use super::types::{self, DefiniteSettings, StatusResult};
use super::{Dispatcher, MethodOutcome, MethodResult, encode};
use crate::core::Core;
use crate::reject::{self, refused};

fn log_visibility(visibility: &Visibility) -> ic::LogVisibility {
    match visibility {
        Visibility::Controllers => ic::LogVisibility::Controllers,
        Visibility::Public => ic::LogVisibility::Public,
        Visibility::AllowedViewers(viewers) => ic::LogVisibility::AllowedViewers(viewers.clone()),
    }
}

fn snapshot_visibility(visibility: &Visibility) -> ic::SnapshotVisibility {
    match visibility {
        Visibility::Controllers => ic::SnapshotVisibility::Controllers,
        Visibility::Public => ic::SnapshotVisibility::Public,
        Visibility::AllowedViewers(viewers) => {
            ic::SnapshotVisibility::AllowedViewers(viewers.clone())
        }
    }
}

pub(super) fn canister_status(core: &Core, canister: &CanisterState) -> Result<Vec<u8>, Reject> {
    let settings = &canister.settings;
    let usage = canister.memory_usage();
    let stopped = canister.status == CanisterStatus::Stopped;
    encode(&StatusResult {
        status: match canister.status {
            CanisterStatus::Running => ic::CanisterStatusType::Running,
            CanisterStatus::Stopping(_) => ic::CanisterStatusType::Stopping,
            CanisterStatus::Stopped => ic::CanisterStatusType::Stopped,
        },
        ready_for_migration: stopped
            && canister.queues.is_empty()
            && canister.calls.callbacks_open() == 0,
        version: canister.version,
        settings: DefiniteSettings {
            controllers: canister.controllers.clone(),
            compute_allocation: settings.compute_allocation.into(),
            memory_allocation: settings.memory_allocation.into(),
            freezing_threshold: settings.freezing_threshold.into(),
            reserved_cycles_limit: settings.reserved_cycles_limit.into(),
            minimum_incoming_canister_call_cycles: settings.minimum_incoming_call_cycles.into(),
            log_visibility: log_visibility(&settings.log_visibility),
            log_memory_limit: settings.log_memory_limit.into(),
            snapshot_visibility: snapshot_visibility(&settings.snapshot_visibility),
            status_visibility: log_visibility(&settings.status_visibility),
            wasm_memory_limit: settings.wasm_memory_limit.into(),
            wasm_memory_threshold: settings.wasm_memory_threshold.into(),
            environment_variables: settings
                .environment
                .iter()
                .map(|(name, value)| ic::EnvironmentVariable {
                    name: name.clone(),
                    value: value.clone(),
                })
                .collect(),
        },
        module_hash: canister.module().map(|module| ByteBuf::from(module.hash.0)),
        memory_size: usage.total().into(),
        memory_metrics: ic::MemoryMetrics {
            wasm_memory_size: usage.heap.into(),
            stable_memory_size: usage.stable.into(),
            global_memory_size: usage.globals.into(),
            wasm_binary_size: usage.module.into(),
            custom_sections_size: usage.custom_sections.into(),
            canister_history_size: usage.history.into(),
            wasm_chunk_store_size: usage.chunks.into(),
            snapshots_size: usage.snapshots.into(),
            log_memory_store_size: usage.log.into(),
        },
        cycles: canister.cycles.into(),
        reserved_cycles: canister.reserved_cycles.into(),
        idle_cycles_burned_per_day: core
            .costs_of(&canister.id)
            .idle_burn_per_day(canister.memory_taken(), settings.compute_allocation)
            .into(),
        query_stats: ic::QueryStats {
            num_calls_total: canister.query_totals.calls.into(),
            num_instructions_total: canister.query_totals.instructions.into(),
            request_payload_bytes_total: canister.query_totals.request_bytes.into(),
            response_payload_bytes_total: canister.query_totals.response_bytes.into(),
        },
    })
}

/// A total as a Candid number, which is unbounded.
fn nat(total: CyclesTotal) -> Nat {
    let (high, low) = total.parts();
    Nat::from(high) * (Nat::from(u128::MAX) + 1u8) + low
}

/// Candid reply of `canister_metrics`: cycles consumed so far, by purpose.
pub(super) fn canister_metrics(canister: &CanisterState) -> Result<Vec<u8>, Reject> {
    let spent = &canister.consumption;
    encode(&ic::CanisterMetricsResult {
        cycles_consumed: ic::CyclesConsumed {
            memory: nat(spent.memory),
            compute_allocation: nat(spent.compute_allocation),
            ingress_induction: nat(spent.ingress_induction),
            instructions: nat(spent.instructions),
            request_and_response_transmission: nat(spent.transmission),
            uninstall: nat(spent.uninstall),
            canister_creation: nat(spent.canister_creation),
            http_outcalls: nat(spent.http_outcalls),
            burned_cycles: nat(spent.burned),
        },
    })
}

fn change(change: &Change) -> types::Change {
    types::Change {
        timestamp_nanos: change.time.0,
        canister_version: change.version,
        origin: match &change.origin {
            ChangeOrigin::User(user_id) => {
                ic::ChangeOrigin::FromUser(ic::FromUserRecord { user_id: *user_id })
            }
            ChangeOrigin::Canister(canister_id, canister_version) => {
                ic::ChangeOrigin::FromCanister(ic::FromCanisterRecord {
                    canister_id: *canister_id,
                    canister_version: *canister_version,
                })
            }
        },
        details: match &change.details {
            ChangeDetails::Creation { controllers, environment_hash } => {
                ic::ChangeDetails::Creation(ic::CreationRecord {
                    controllers: controllers.clone(),
                    environment_variables_hash: environment_hash.map(|hash| hash.to_vec()),
                })
            }
            ChangeDetails::CodeUninstall => ic::ChangeDetails::CodeUninstall,
            ChangeDetails::CodeDeployment { mode, module_hash } => {
                ic::ChangeDetails::CodeDeployment(ic::CodeDeploymentRecord {
                    mode: match mode {
                        DeploymentMode::Install => ic::CodeDeploymentMode::Install,
                        DeploymentMode::Reinstall => ic::CodeDeploymentMode::Reinstall,
                        DeploymentMode::Upgrade => ic::CodeDeploymentMode::Upgrade,
                    },
                    module_hash: module_hash.0.to_vec(),
                })
            }
            ChangeDetails::LoadSnapshot {
                from,
                snapshot_id,
                canister_version,
                taken_at,
                source,
            } => ic::ChangeDetails::LoadSnapshot(ic::LoadSnapshotRecord {
                from_canister_id: *from,
                snapshot_id: snapshot_id.clone(),
                canister_version: *canister_version,
                taken_at_timestamp: taken_at.0,
                source: source_of_snapshot(*source),
            }),
            ChangeDetails::ControllersChange(controllers) => {
                ic::ChangeDetails::ControllersChange(ic::ControllersChangeRecord {
                    controllers: controllers.clone(),
                })
            }
        },
    }
}

impl Dispatcher<'_> {
    pub(super) fn canister_info(&mut self, call: &SubnetCall) -> MethodResult {
        let argument: ic::CanisterInfoArgs = self.decode(call)?;
        let canister = self.target(&argument.canister_id)?;
        let kept = canister.history.changes().len();
        let asked =
            usize::try_from(argument.num_requested_changes.unwrap_or(0)).unwrap_or(usize::MAX);
        let result = types::InfoResult {
            total_num_changes: canister.history.total(),
            recent_changes: canister
                .history
                .changes()
                .skip(kept.saturating_sub(asked))
                .map(change)
                .collect(),
            module_hash: canister.module().map(|module| ByteBuf::from(module.hash.0)),
            controllers: canister.controllers.clone(),
        };
        Ok(MethodOutcome::Reply(encode(&result)?))
    }

    pub(super) fn canister_metadata(&mut self, call: &SubnetCall) -> MethodResult {
        let argument: ic::CanisterMetadataArgs = self.decode(call)?;
        let caller = call.origin.caller();
        let canister = self.target(&argument.canister_id)?;
        if canister.module().is_none() {
            return refused!(rejected_message, "Canister {} contains no Wasm module.", canister.id);
        }
        let section = canister
            .metadata_section(&argument.name)
            .filter(|section| section.public || canister.is_controller(&caller))
            .ok_or_else(|| {
                reject::rejected_message(format!(
                    "Canister {} has no metadata section '{}' that {caller} may read.",
                    canister.id,
                    argument.name.escape_debug()
                ))
            })?;
        Ok(MethodOutcome::Reply(encode(&ic::CanisterMetadataResult {
            value: section.content.clone(),
        })?))
    }

    pub(super) fn subnet_info(&mut self, call: &SubnetCall) -> MethodResult {
        let argument: ic::SubnetInfoArgs = self.decode(call)?;
        self.is_own(argument.subnet_id)?;
        let result = ic::SubnetInfoResult {
            replica_version: format!("thimble-rules-{}", crate::RULES_VERSION),
            registry_version: 1,
        };
        Ok(MethodOutcome::Reply(encode(&result)?))
    }

    pub(super) fn node_metrics_history(&mut self, call: &SubnetCall) -> MethodResult {
        let argument: ic::NodeMetricsHistoryArgs = self.decode(call)?;
        self.is_own(argument.subnet_id)?;
        let metrics = |(node_id, counts): &(Principal, BlockCounts)| ic::NodeMetrics {
            node_id: *node_id,
            num_blocks_proposed_total: counts.proposed,
            num_block_failures_total: counts.failed,
        };
        let start = Time(argument.start_at_timestamp_nanos);
        let samples = self.state.subnet.node_metrics.since(start);
        let result: ic::NodeMetricsHistoryResult = samples
            .map(|sample| ic::NodeMetricsHistoryRecord {
                timestamp_nanos: sample.time.0,
                node_metrics: sample.nodes.iter().map(metrics).collect(),
            })
            .collect();
        Ok(MethodOutcome::Reply(encode(&result)?))
    }

    fn is_own(&self, subnet_id: Principal) -> Result<(), Reject> {
        if self.core.config.is_subnet(&subnet_id) {
            return Ok(());
        }
        let own = self.core.config.subnet.subnet_id;
        refused!(404, "Subnet {subnet_id} is not known here; this is {own}.")
    }
}
