//! Reading snapshots out and uploading them: metadata first, then parts of the module and of the
//! memories, and chunks of the chunk store.
//!
//! A snapshot that is uploaded begins with zeros in all of its sizes, which count at once. Its
//! parts are pages of its memories like those that messages write; only its chunks are blobs. Every
//! offset and size is held against the sizes of the metadata before anything is read or written.

use ic_management_canister_types as ic;
use pages::{MemoryId, PAGE_BYTES};
use serde_bytes::ByteBuf;
use state::{
    BlobHash, CHUNK_ACCOUNTED_BYTES, CanisterId, CanisterSnapshot, Global, LowMemoryHook, Reject,
    SnapshotMemory, SnapshotModule, SnapshotSource, SubnetCall, Time, WASM_PAGE_BYTES, snapshot_id,
};

use super::super::types::{SnapshotMetadata, UploadSnapshotData, UploadSnapshotMetadata};
use super::super::{Dispatcher, MethodOutcome, MethodResult, Refusal, encode, no_value};
use super::{PART_INSTRUCTIONS, SNAPSHOT_INSTRUCTIONS, SnapshotArgument, base_bytes, pay};
use crate::config::FatalError;
use crate::core::Core;
use crate::reject::{self, refused};

/// Bytes that one call may read: they must fit into a reply.
const READ_BYTES_MAX: u64 = 2_000_000;
/// Bytes of a reply in addition to those that were read.
const REPLY_BESIDE_BYTES: u64 = 1024;
const CERTIFIED_BYTES_MAX: usize = 32;

enum DataLocation {
    /// In a memory; with their number.
    Memory(MemoryId, u64),
    /// In a blob; with their number.
    Blob(BlobHash, u64),
}

impl DataLocation {
    fn for_module(snapshot: &CanisterSnapshot) -> Self {
        match snapshot.module {
            SnapshotModule::Installed { hash, bytes } => Self::Blob(hash.0, bytes),
            SnapshotModule::Uploaded { memory, bytes } => Self::Memory(memory, bytes),
        }
    }

    fn for_memory(memory: SnapshotMemory) -> Self {
        Self::Memory(memory.id, memory.bytes())
    }

    fn bytes(&self) -> u64 {
        match self {
            Self::Memory(_, bytes) | Self::Blob(_, bytes) => *bytes,
        }
    }

    /// Checks that `bytes` bytes exist from `offset` on.
    fn check(&self, offset: u64, bytes: u64) -> Result<(), Reject> {
        if offset.checked_add(bytes).is_some_and(|end| end <= self.bytes()) {
            return Ok(());
        }
        refused!(
            invalid_payload,
            "{bytes} bytes from offset {offset} on are not within the {} bytes that the snapshot's \
             metadata says.",
            self.bytes()
        )
    }
}

impl Dispatcher<'_> {
    pub(in super::super) fn read_canister_snapshot_metadata(
        &mut self,
        call: &SubnetCall,
    ) -> MethodResult {
        let argument: SnapshotArgument = self.decode(call)?;
        let canister = self.target(&argument.canister_id)?;
        let (_, snapshot) = self.snapshot_of(canister, &argument.snapshot_id)?;
        Ok(MethodOutcome::Reply(encode(&metadata(snapshot))?))
    }

    pub(in super::super) fn read_canister_snapshot_data(
        &mut self,
        call: &SubnetCall,
    ) -> MethodResult {
        let argument: ic::ReadCanisterSnapshotDataArgs = self.decode(call)?;
        self.state.refresh();
        let canister = self.target(&argument.canister_id)?;
        let (_, snapshot) = self.snapshot_of(canister, &argument.snapshot_id)?;
        let (place, offset, size) = match &argument.kind {
            ic::SnapshotDataKind::WasmModule { offset, size } => {
                (DataLocation::for_module(snapshot), *offset, *size)
            }
            ic::SnapshotDataKind::WasmMemory { offset, size } => {
                (DataLocation::for_memory(snapshot.heap), *offset, *size)
            }
            ic::SnapshotDataKind::StableMemory { offset, size } => {
                (DataLocation::for_memory(snapshot.stable), *offset, *size)
            }
            ic::SnapshotDataKind::WasmChunk { hash } => {
                let (hash, bytes) = chunk_of(snapshot, hash)?;
                (DataLocation::Blob(hash, bytes), 0, bytes)
            }
        };
        place.check(offset, size)?;
        let payload_max = self.core.limits().subnet.message_payload_bytes;
        let most = READ_BYTES_MAX.min(payload_max.saturating_sub(REPLY_BESIDE_BYTES));
        if size > most {
            return refused!(
                invalid_payload,
                "A size of {size} bytes, the most that one call reads is {most}."
            );
        }
        // All of a blob is verified, however little of it is read.
        let looked_at = match &place {
            DataLocation::Blob(_, bytes) => *bytes,
            DataLocation::Memory(..) => size,
        };
        let instructions = PART_INSTRUCTIONS.saturating_add(looked_at);
        let cost = self.affordable(canister, instructions, "reading a snapshot")?;
        let chunk = self.read_from(&place, offset, size)?;
        self.count(instructions, 0);
        pay(self.target_mut(&argument.canister_id)?, cost);
        Ok(MethodOutcome::Reply(encode(&ic::ReadCanisterSnapshotDataResult { chunk })?))
    }

    fn read_from(
        &self,
        place: &DataLocation,
        offset: u64,
        size: u64,
    ) -> Result<Vec<u8>, FatalError> {
        let core = self.core;
        let mut bytes = vec![0; usize::try_from(size.min(READ_BYTES_MAX)).unwrap_or(0)];
        core.attempts(self.place.clone()).until(|| match place {
            DataLocation::Memory(id, _) => {
                let layout = core.pages.layout(*id)?;
                pages::read_bytes(&layout, offset, &mut bytes).map_err(FatalError::from)
            }
            // A file that was damaged must not become a result: all of it is verified.
            DataLocation::Blob(hash, _) => match core.blobs.digest(std::slice::from_ref(hash))? {
                Some(_) => core.blobs.read(hash, offset, &mut bytes).map_err(FatalError::from),
                None => Err(FatalError::Record {
                    what: "a module or a chunk of a snapshot".into(),
                    reason: "its bytes are not in the module store".into(),
                }),
            },
        })?;
        Ok(bytes)
    }

    pub(in super::super) fn upload_canister_snapshot_metadata(
        &mut self,
        call: &SubnetCall,
    ) -> MethodResult {
        let argument: UploadSnapshotMetadata = self.decode(call)?;
        self.state.refresh();
        let id = argument.canister_id;
        let canister = self.target(&id)?.clone();
        let replaced =
            self.replaced(&canister, argument.replace_snapshot.as_ref().map(|id| id.as_slice()))?;
        let mut snapshot = uploaded(self.core, &argument, canister.version, self.round.time)?;
        // Nothing is copied, however large it will be.
        let cost = self.affordable(&canister, SNAPSHOT_INSTRUCTIONS, "uploading a snapshot")?;
        let mut planned = canister.clone();
        pay(&mut planned, cost);
        super::exchange(&mut planned, replaced, snapshot.clone());
        self.check_keeping(&canister, &planned)?;

        let module_bytes = snapshot.module.bytes();
        let module_base = module_bytes.next_multiple_of(PAGE_BYTES).max(PAGE_BYTES);
        let memory = self.zeros(module_base)?;
        snapshot.module = SnapshotModule::Uploaded { memory, bytes: module_bytes };
        snapshot.heap.id = self.zeros(base_bytes(snapshot.heap))?;
        snapshot.stable.id = self.zeros(base_bytes(snapshot.stable))?;
        self.count(SNAPSHOT_INSTRUCTIONS, 0);
        let number = self.add_snapshot(&id, cost, replaced, snapshot)?;
        let snapshot_id = snapshot_id(&id, number);
        Ok(MethodOutcome::Reply(encode(&ic::UploadCanisterSnapshotMetadataResult { snapshot_id })?))
    }

    fn zeros(&mut self, base_bytes: u64) -> Result<MemoryId, FatalError> {
        let id = self.next_memory();
        let pages = &self.core.pages;
        self.core.attempts(self.place.clone()).until(|| pages.create(id, base_bytes))?;
        Ok(id)
    }

    pub(in super::super) fn upload_canister_snapshot_data(
        &mut self,
        call: &SubnetCall,
    ) -> MethodResult {
        let argument: UploadSnapshotData = self.decode(call)?;
        self.state.refresh();
        let canister = self.target(&argument.canister_id)?;
        let (number, snapshot) = self.snapshot_of(canister, &argument.snapshot_id)?;
        if snapshot.source != SnapshotSource::Uploaded {
            return refused!(
                409,
                "The snapshot was taken from canister {}: only one whose metadata was uploaded can \
                 be written to.",
                canister.id
            );
        }
        let (place, offset) = match argument.kind {
            ic::SnapshotDataOffset::WasmModule { offset } => {
                (DataLocation::for_module(snapshot), offset)
            }
            ic::SnapshotDataOffset::WasmMemory { offset } => {
                (DataLocation::for_memory(snapshot.heap), offset)
            }
            ic::SnapshotDataOffset::StableMemory { offset } => {
                (DataLocation::for_memory(snapshot.stable), offset)
            }
            ic::SnapshotDataOffset::WasmChunk => {
                return self.upload_snapshot_chunk(&argument.canister_id, number, &argument.chunk);
            }
        };
        let bytes = argument.chunk.len() as u64;
        place.check(offset, bytes)?;
        let instructions = PART_INSTRUCTIONS.saturating_add(bytes);
        let cost = self.affordable(canister, instructions, "uploading a part of a snapshot")?;
        let delta_bytes = self.write_to(&place, offset, &argument.chunk)?;
        self.count(instructions, delta_bytes);
        pay(self.target_mut(&argument.canister_id)?, cost);
        Ok(MethodOutcome::Reply(no_value()))
    }

    /// Writes bytes where there is a place for them. Returns the bytes of delta.
    fn write_to(&self, place: &DataLocation, offset: u64, chunk: &[u8]) -> Result<u64, FatalError> {
        let core = self.core;
        let DataLocation::Memory(id, _) = place else { return Ok(0) };
        core.attempts(self.place.clone()).until(|| core.pages.write_bytes(*id, offset, chunk))
    }

    fn upload_snapshot_chunk(
        &mut self,
        id: &CanisterId,
        number: u64,
        chunk: &[u8],
    ) -> MethodResult {
        let limits = &self.core.limits().subnet;
        let canister = self.target(id)?.clone();
        let Some(mut snapshot) = canister.snapshots.get(number).cloned() else {
            return Err(reject::snapshot_not_found(id, &snapshot_id(id, number)).into());
        };
        let bytes = chunk.len() as u64;
        if bytes > limits.chunk_bytes {
            return refused!(
                contract_violation,
                "The chunk has {bytes} bytes, the most is {} (subnet.chunk_bytes).",
                limits.chunk_bytes
            );
        }
        let hash = <[u8; 32]>::from(<sha2::Sha256 as sha2::Digest>::digest(chunk));
        snapshot.chunks.insert(hash, bytes);
        let used = snapshot.chunks.len() as u64 * CHUNK_ACCOUNTED_BYTES;
        if used > limits.chunk_store_bytes {
            return refused!(
                contract_violation,
                "The chunk store of the snapshot would count {used} bytes, the most is {} \
                 (subnet.chunk_store_bytes).",
                limits.chunk_store_bytes
            );
        }
        let instructions = PART_INSTRUCTIONS.saturating_add(bytes);
        let cost = self.affordable(&canister, instructions, "uploading a part of a snapshot")?;
        let mut next = canister.clone();
        pay(&mut next, cost);
        next.snapshots.replace(number, snapshot);
        self.check_keeping(&canister, &next)?;
        self.store_blob(chunk)?;
        self.count(instructions, 0);
        self.state.put(next);
        Ok(MethodOutcome::Reply(no_value()))
    }
}

/// The chunk of a snapshot's chunk store that has this hash, and its length.
fn chunk_of(snapshot: &CanisterSnapshot, hash: &[u8]) -> Result<(BlobHash, u64), Refusal> {
    let known = BlobHash::try_from(hash)
        .ok()
        .and_then(|hash| snapshot.chunks.get(&hash).map(|bytes| (hash, *bytes)));
    known.ok_or_else(|| {
        let shown = hex::encode(hash.get(..32).unwrap_or(hash));
        reject::invalid_payload(format!("Chunk {shown} is not in the snapshot's chunk store."))
            .into()
    })
}

fn metadata(snapshot: &CanisterSnapshot) -> SnapshotMetadata {
    let chunks = snapshot.chunks.keys().map(|hash| ic::ChunkHash { hash: hash.to_vec() });
    SnapshotMetadata {
        source: source(snapshot.source),
        taken_at_timestamp: snapshot.taken_at.0,
        wasm_module_size: snapshot.module.bytes(),
        globals: snapshot.globals.iter().map(shown_global).collect(),
        wasm_memory_size: snapshot.heap.bytes(),
        stable_memory_size: snapshot.stable.bytes(),
        wasm_chunk_store: chunks.collect(),
        canister_version: snapshot.canister_version,
        certified_data: ByteBuf::from(snapshot.certified_data.clone()),
        global_timer: snapshot.global_timer.map(|timer| match timer {
            Time(0) => ic::CanisterTimer::Inactive,
            Time(at) => ic::CanisterTimer::Active(at),
        }),
        on_low_wasm_memory_hook_status: snapshot.low_memory_hook.map(|hook| match hook {
            LowMemoryHook::Idle => ic::OnLowWasmMemoryHookStatus::ConditionNotSatisfied,
            LowMemoryHook::Ready => ic::OnLowWasmMemoryHookStatus::Ready,
            LowMemoryHook::Executed => ic::OnLowWasmMemoryHookStatus::Executed,
        }),
    }
}

/// Origin of a snapshot, as a type of the interface.
pub(in super::super) fn source(source: SnapshotSource) -> ic::SnapshotSource {
    match source {
        SnapshotSource::Taken => ic::SnapshotSource::TakenFromCanister(candid::Reserved),
        SnapshotSource::Uploaded => ic::SnapshotSource::MetadataUpload(candid::Reserved),
    }
}

fn shown_global(global: &Global) -> ic::SnapshotMetadataGlobal {
    match *global {
        Global::I32(value) => ic::SnapshotMetadataGlobal::I32(value),
        Global::I64(value) => ic::SnapshotMetadataGlobal::I64(value),
        Global::F32(bits) => ic::SnapshotMetadataGlobal::F32(f32::from_bits(bits)),
        Global::F64(bits) => ic::SnapshotMetadataGlobal::F64(f64::from_bits(bits)),
        Global::V128(value) => ic::SnapshotMetadataGlobal::V128(value.into()),
    }
}

fn told_global(global: &ic::SnapshotMetadataGlobal) -> Result<Global, Reject> {
    Ok(match global {
        ic::SnapshotMetadataGlobal::I32(value) => Global::I32(*value),
        ic::SnapshotMetadataGlobal::I64(value) => Global::I64(*value),
        ic::SnapshotMetadataGlobal::F32(value) => Global::F32(value.to_bits()),
        ic::SnapshotMetadataGlobal::F64(value) => Global::F64(value.to_bits()),
        ic::SnapshotMetadataGlobal::V128(value) => {
            let value = u128::try_from(&value.0).map_err(|_| {
                reject::contract_violation("A global of type v128 is over 2^128 - 1.")
            })?;
            Global::V128(value)
        }
    })
}

/// A snapshot of zeros with this metadata, if that is within the limits. It has no memories yet.
fn uploaded(
    core: &Core,
    argument: &UploadSnapshotMetadata,
    canister_version: u64,
    now: Time,
) -> Result<CanisterSnapshot, Reject> {
    let sizes = &core.limits().module;
    let within = |what: &str, found: u64, most: u64, limit: &str| {
        if found <= most {
            return Ok(());
        }
        Err(reject::contract_violation(format!("{what} is {found}, the most is {most} ({limit}).")))
    };
    let (module_bytes, globals) = (argument.wasm_module_size, argument.globals.len() as u64);
    within("wasm_module_size", module_bytes, sizes.wasm_bytes, "module.wasm_bytes")?;
    within("The number of globals", globals, sizes.globals, "module.globals")?;
    let heap_most = sizes.heap32_bytes.max(sizes.heap64_bytes);
    let heap = argument.wasm_memory_size;
    within("wasm_memory_size", heap, heap_most, "module.heap32_bytes, module.heap64_bytes")?;
    let stable = argument.stable_memory_size;
    within("stable_memory_size", stable, sizes.stable_bytes, "module.stable_bytes")?;
    let certified = argument.certified_data.len();
    if certified > CERTIFIED_BYTES_MAX {
        return refused!(
            contract_violation,
            "certified_data has {certified} bytes, the most is {CERTIFIED_BYTES_MAX}."
        );
    }
    let memory = |what: &str, bytes: u64| {
        if !bytes.is_multiple_of(WASM_PAGE_BYTES) {
            return Err(reject::contract_violation(format!(
                "{what} is {bytes}, which is no multiple of {WASM_PAGE_BYTES}, a Wasm page."
            )));
        }
        Ok(SnapshotMemory { id: MemoryId(0), wasm_pages: bytes / WASM_PAGE_BYTES })
    };
    Ok(CanisterSnapshot {
        source: SnapshotSource::Uploaded,
        taken_at: now,
        canister_version,
        module: SnapshotModule::Uploaded { memory: MemoryId(0), bytes: module_bytes },
        globals: argument.globals.iter().map(told_global).collect::<Result<_, _>>()?,
        heap: memory("wasm_memory_size", heap)?,
        stable: memory("stable_memory_size", stable)?,
        chunks: std::collections::BTreeMap::new(),
        certified_data: argument.certified_data.to_vec(),
        global_timer: argument.global_timer.as_ref().map(|timer| match timer {
            ic::CanisterTimer::Inactive => Time(0),
            ic::CanisterTimer::Active(at) => Time(*at),
        }),
        low_memory_hook: argument.on_low_wasm_memory_hook_status.as_ref().map(|hook| match hook {
            ic::OnLowWasmMemoryHookStatus::ConditionNotSatisfied => LowMemoryHook::Idle,
            ic::OnLowWasmMemoryHookStatus::Ready => LowMemoryHook::Ready,
            ic::OnLowWasmMemoryHookStatus::Executed => LowMemoryHook::Executed,
        }),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn bytes_lie_within_a_snapshot_or_are_refused() {
        let place = DataLocation::Blob([0; 32], 100);
        assert!(place.check(0, 100).is_ok() && place.check(100, 0).is_ok());
        for (offset, bytes) in [(0, 101), (101, 0), (u64::MAX, 1), (1, u64::MAX)] {
            assert_eq!(place.check(offset, bytes).unwrap_err().error_code.0, 408);
        }
    }

    #[test]
    fn globals_come_back_with_the_same_bits() {
        let signalling = f64::NAN.to_bits() ^ 1;
        for global in [
            Global::I32(-1),
            Global::I64(i64::MIN),
            Global::F32(0xffc0_0001),
            Global::F64(signalling),
            Global::V128(u128::MAX),
        ] {
            assert_eq!(told_global(&shown_global(&global)).unwrap(), global);
        }
        let large = ic::SnapshotMetadataGlobal::V128(candid::Nat::from(u128::MAX) + 1u8);
        assert_eq!(told_global(&large).unwrap_err().error_code.0, 504);
    }
}
