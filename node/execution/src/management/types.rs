//! Candid shapes that go beyond the published types: settings and status with every field of the
//! specification, and large blobs decoded as one piece.

use candid::{CandidType, Nat, Principal};
use ic_management_canister_types::{
    CanisterInstallMode, CanisterStatusType, CanisterTimer, ChangeDetails, ChangeOrigin, ChunkHash,
    EnvironmentVariable, LogVisibility, MemoryMetrics, OnLowWasmMemoryHookStatus, QueryStats,
    SnapshotDataOffset, SnapshotMetadataGlobal, SnapshotSource, SnapshotVisibility,
};
use serde::Deserialize;
use serde_bytes::ByteBuf;

/// Candid type `canister_settings` of the interface specification; an absent field changes nothing.
#[derive(CandidType, Deserialize, Clone, Debug, Default)]
pub(crate) struct SettingsArgument {
    pub(crate) controllers: Option<Vec<Principal>>,
    pub(crate) compute_allocation: Option<Nat>,
    pub(crate) memory_allocation: Option<Nat>,
    pub(crate) freezing_threshold: Option<Nat>,
    pub(crate) reserved_cycles_limit: Option<Nat>,
    pub(crate) minimum_incoming_canister_call_cycles: Option<Nat>,
    pub(crate) log_visibility: Option<LogVisibility>,
    pub(crate) log_memory_limit: Option<Nat>,
    pub(crate) snapshot_visibility: Option<SnapshotVisibility>,
    pub(crate) status_visibility: Option<LogVisibility>,
    pub(crate) wasm_memory_limit: Option<Nat>,
    pub(crate) wasm_memory_threshold: Option<Nat>,
    pub(crate) environment_variables: Option<Vec<EnvironmentVariable>>,
}

#[derive(CandidType, Deserialize, Debug, Default)]
pub(crate) struct CreateCanister {
    pub(crate) settings: Option<SettingsArgument>,
    pub(crate) sender_canister_version: Option<u64>,
}

#[derive(CandidType, Deserialize, Debug, Default)]
pub(crate) struct ProvisionalCreateCanister {
    pub(crate) amount: Option<Nat>,
    pub(crate) settings: Option<SettingsArgument>,
    pub(crate) specified_id: Option<Principal>,
    pub(crate) sender_canister_version: Option<u64>,
}

#[derive(CandidType, Deserialize, Debug)]
pub(crate) struct UpdateSettings {
    pub(crate) canister_id: Principal,
    pub(crate) settings: SettingsArgument,
    pub(crate) sender_canister_version: Option<u64>,
}

#[derive(CandidType, Deserialize, Debug)]
pub(crate) struct InstallCode {
    pub(crate) mode: CanisterInstallMode,
    pub(crate) canister_id: Principal,
    // Copies: candid checks that what comes is a blob only for these, and not for borrowed bytes.
    pub(crate) wasm_module: ByteBuf,
    pub(crate) arg: ByteBuf,
    pub(crate) sender_canister_version: Option<u64>,
}

/// Candid type `definite_canister_settings` of the interface specification: all settings in force.
#[derive(CandidType, Deserialize, Debug)]
pub(crate) struct DefiniteSettings {
    pub(crate) controllers: Vec<Principal>,
    pub(crate) compute_allocation: Nat,
    pub(crate) memory_allocation: Nat,
    pub(crate) freezing_threshold: Nat,
    pub(crate) reserved_cycles_limit: Nat,
    pub(crate) minimum_incoming_canister_call_cycles: Nat,
    pub(crate) log_visibility: LogVisibility,
    pub(crate) log_memory_limit: Nat,
    pub(crate) snapshot_visibility: SnapshotVisibility,
    pub(crate) status_visibility: LogVisibility,
    pub(crate) wasm_memory_limit: Nat,
    pub(crate) wasm_memory_threshold: Nat,
    pub(crate) environment_variables: Vec<EnvironmentVariable>,
}

/// Candid type `canister_status_result` of the interface specification.
#[derive(CandidType, Deserialize, Debug)]
pub(crate) struct StatusResult {
    pub(crate) status: CanisterStatusType,
    pub(crate) ready_for_migration: bool,
    pub(crate) version: u64,
    pub(crate) settings: DefiniteSettings,
    pub(crate) module_hash: Option<ByteBuf>,
    pub(crate) memory_size: Nat,
    pub(crate) memory_metrics: MemoryMetrics,
    pub(crate) cycles: Nat,
    pub(crate) reserved_cycles: Nat,
    pub(crate) idle_cycles_burned_per_day: Nat,
    pub(crate) query_stats: QueryStats,
}

/// Candid type `change` of the interface specification, where `details` is not an option.
#[derive(CandidType, Deserialize, Debug)]
pub(crate) struct Change {
    pub(crate) timestamp_nanos: u64,
    pub(crate) canister_version: u64,
    pub(crate) origin: ChangeOrigin,
    pub(crate) details: ChangeDetails,
}

/// Candid type `canister_info_result` of the interface specification.
#[derive(CandidType, Deserialize, Debug)]
pub(crate) struct InfoResult {
    pub(crate) total_num_changes: u64,
    pub(crate) recent_changes: Vec<Change>,
    pub(crate) module_hash: Option<ByteBuf>,
    pub(crate) controllers: Vec<Principal>,
}

/// Candid type `read_canister_snapshot_metadata_response`, in which nothing is an option that the
/// specification says is there.
#[derive(CandidType, Deserialize, Debug)]
pub(crate) struct SnapshotMetadata {
    pub(crate) source: SnapshotSource,
    pub(crate) taken_at_timestamp: u64,
    pub(crate) wasm_module_size: u64,
    pub(crate) globals: Vec<SnapshotMetadataGlobal>,
    pub(crate) wasm_memory_size: u64,
    pub(crate) stable_memory_size: u64,
    pub(crate) wasm_chunk_store: Vec<ChunkHash>,
    pub(crate) canister_version: u64,
    pub(crate) certified_data: ByteBuf,
    pub(crate) global_timer: Option<CanisterTimer>,
    pub(crate) on_low_wasm_memory_hook_status: Option<OnLowWasmMemoryHookStatus>,
}

#[derive(CandidType, Deserialize, Debug)]
pub(crate) struct UploadSnapshotMetadata {
    pub(crate) canister_id: Principal,
    pub(crate) replace_snapshot: Option<ByteBuf>,
    pub(crate) wasm_module_size: u64,
    pub(crate) globals: Vec<SnapshotMetadataGlobal>,
    pub(crate) wasm_memory_size: u64,
    pub(crate) stable_memory_size: u64,
    pub(crate) certified_data: ByteBuf,
    pub(crate) global_timer: Option<CanisterTimer>,
    pub(crate) on_low_wasm_memory_hook_status: Option<OnLowWasmMemoryHookStatus>,
}

#[derive(CandidType, Deserialize, Debug)]
pub(crate) struct UploadSnapshotData {
    pub(crate) canister_id: Principal,
    pub(crate) snapshot_id: ByteBuf,
    pub(crate) kind: SnapshotDataOffset,
    pub(crate) chunk: ByteBuf,
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use candid::{CandidType, Encode};
    use envelope::candid_wire::Cost;

    use super::*;
    use crate::management::decode;

    #[test]
    fn what_is_no_blob_is_no_module_and_no_argument() {
        #[derive(CandidType)]
        struct Call<W, A> {
            mode: CanisterInstallMode,
            canister_id: Principal,
            wasm_module: W,
            arg: A,
        }
        fn reads<W: CandidType, A: CandidType>(wasm_module: W, arg: A) -> bool {
            let mode = CanisterInstallMode::Install;
            let call = Call { mode, canister_id: Principal::anonymous(), wasm_module, arg };
            let limits = limits::Limits::derive(256 << 20).unwrap();
            decode::<InstallCode>(&limits, &Encode!(&call).unwrap(), &mut Cost::default()).is_ok()
        }
        assert!(reads(ByteBuf::from([1]), ByteBuf::new()));
        assert!(!reads("text", ByteBuf::new()));
        assert!(!reads(ByteBuf::from([1]), "text"));
        assert!(!reads(ByteBuf::from([1]), Vec::<u16>::from([7])));
        assert!(!reads(ByteBuf::from([1]), ()));
    }
}
