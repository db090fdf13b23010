//! Loading a snapshot: its canister's, or that of another canister of the same controller.
//!
//! The module is judged, and compiled where that is needed, as if it were installed, also that of a
//! snapshot that was taken: so nothing that validation found need be kept with a snapshot, and what
//! it costs is the same whether or not this machine has the artefact. No code runs.

use std::io;

use ic_management_canister_types as ic;
use sandbox::{StoredModule, module::HEAD_BYTES};
use state::{
    CanisterId, CanisterSnapshot, CanisterState, ChangeDetails, ExecutionState, Global,
    InstalledModule, LowMemoryHook, Memory, ModuleGlobal, ModuleHash, ModuleInfo, Reject,
    SnapshotMemory, SnapshotModule, SnapshotSource, StateArc, SubnetCall, WASM_PAGE_BYTES,
    parse_snapshot_id,
};

use super::super::install::{Code, memories, prepayment};
use super::super::{Dispatcher, MethodOutcome, MethodResult, no_value};
use super::{SNAPSHOT_INSTRUCTIONS, pay};
use crate::config::FatalError;
use crate::core::Core;
use crate::machine::is_memory_low;
use crate::reject::{self, refused};

impl Dispatcher<'_> {
    pub(in super::super) fn load_canister_snapshot(&mut self, call: &SubnetCall) -> MethodResult {
        let argument: ic::LoadCanisterSnapshotArgs = self.decode(call)?;
        self.check_sender_version(call, argument.sender_canister_version)?;
        self.state.refresh();
        let id = argument.canister_id;
        let canister = self.target(&id)?.clone();
        let (owner, snapshot) = self.snapshot_to_load(call, &canister, &argument.snapshot_id)?;
        check_sizes(self.core, &snapshot)?;
        self.check_copying(&snapshot)?;
        let copying = SNAPSHOT_INSTRUCTIONS.saturating_add(snapshot.bytes());
        self.affordable(&canister, copying, "loading a snapshot")?;

        let core = self.core;
        let bytes = snapshot.module.bytes();
        let head = self.head_of(&snapshot)?;
        let (_, compile_most) = prepayment(core, &canister.id, bytes, &head);
        // Before the whole module is validated.
        self.affordable(&canister, copying.saturating_add(compile_most), "loading a snapshot")?;
        let hash = self.module_of(&snapshot)?;
        let code =
            Code::Chunks(StoredModule { blobs: &core.blobs, parts: vec![hash.0], bytes }, hash);
        let (prepared, compiling) =
            self.prepare_and_count(&canister, &hash, code.uploaded(), (&head, compile_most))?;
        let mut next = canister.clone();
        let costs = core.costs_of(&canister.id);
        pay(&mut next, costs.execution(copying.saturating_add(compiling)));
        let planned = prepared.and_then(|info| {
            let module = InstalledModule::new(hash, bytes, info);
            next.execution = Some(loaded(core, &canister, &snapshot, module)?);
            next.chunks.clone_from(&snapshot.chunks);
            self.check_loading(&canister, &next)
        });
        if let Err(reject) = planned {
            return self.refuse_compiled(&id, costs.execution(compiling), reject);
        }
        core.note_prepared(hash);
        self.count(copying, 0);
        self.copy_memories(&mut next)?;
        self.finish_loading(call, &argument, (owner, &snapshot), &canister, next);
        Ok(MethodOutcome::Reply(no_value()))
    }

    /// A snapshot that the caller may load onto a canister, and whose it is.
    fn snapshot_to_load(
        &self,
        call: &SubnetCall,
        canister: &CanisterState,
        id: &[u8],
    ) -> Result<(CanisterId, CanisterSnapshot), Reject> {
        let not_found = || reject::snapshot_not_found(&canister.id, id);
        let (owner_id, number) = parse_snapshot_id(id).ok_or_else(not_found)?;
        let owner = self.state.get(&owner_id).ok_or_else(not_found)?;
        let snapshot = owner.snapshots.get(number).ok_or_else(not_found)?;
        let caller = call.origin.caller();
        if !owner.is_controller(&caller) {
            return refused!(
                rejected_message,
                "The snapshot is of canister {owner_id}, which {caller} does not control."
            );
        }
        Ok((owner_id, snapshot.clone()))
    }

    /// The beginning of a snapshot's module that determines whether it is packed.
    fn head_of(&self, snapshot: &CanisterSnapshot) -> Result<Vec<u8>, FatalError> {
        let core = self.core;
        let bytes = snapshot.module.bytes().min(HEAD_BYTES as u64);
        let mut head = vec![0; usize::try_from(bytes).unwrap_or(0)];
        core.attempts(self.place.clone()).until(|| match snapshot.module {
            SnapshotModule::Installed { hash, .. } => {
                core.blobs.read(&hash.0, 0, &mut head).map_err(FatalError::from)
            }
            SnapshotModule::Uploaded { memory, .. } => {
                let layout = core.pages.layout(memory)?;
                pages::read_bytes(&layout, 0, &mut head).map_err(FatalError::from)
            }
        })?;
        Ok(head)
    }

    /// The hash of a snapshot's module. One that was uploaded is put into the module store, where
    /// it stays if the snapshot is loaded.
    fn module_of(&self, snapshot: &CanisterSnapshot) -> Result<ModuleHash, FatalError> {
        let (memory, bytes) = match snapshot.module {
            SnapshotModule::Installed { hash, .. } => return Ok(hash),
            SnapshotModule::Uploaded { memory, bytes } => (memory, bytes),
        };
        let core = self.core;
        core.note_blobs_changed();
        core.attempts(self.place.clone()).until(|| {
            let layout = core.pages.layout(memory)?;
            let mut unread = None;
            let put = core.blobs.put_read(bytes, |offset, piece| {
                pages::read_bytes(&layout, offset, piece).map_err(|error| {
                    unread = Some(error);
                    io::Error::from(io::ErrorKind::Other)
                })
            });
            match unread {
                Some(error) => Err(FatalError::from(error)),
                None => Ok(ModuleHash(put?)),
            }
        })
    }

    /// Whether there is room for the canister with what was loaded onto it.
    fn check_loading(&self, canister: &CanisterState, next: &CanisterState) -> Result<(), Reject> {
        if let Some(module) = next.module() {
            self.has_room_for(canister, module)?;
        }
        self.check_keeping(canister, next)
    }

    /// Makes copies of the memories that the canister's execution names, which are a snapshot's:
    /// they are its own.
    fn copy_memories(&mut self, next: &mut CanisterState) -> Result<(), FatalError> {
        let sizes = &self.core.limits().module;
        let Some(execution) = next.execution.as_mut() else { return Ok(()) };
        let is_memory64 = execution.module.info.memory64;
        let heap_bytes = if is_memory64 { sizes.heap64_bytes } else { sizes.heap32_bytes };
        for (memory, base_bytes) in
            [(&mut execution.heap, heap_bytes), (&mut execution.stable, sizes.stable_bytes)]
        {
            let from = SnapshotMemory { id: memory.id, wasm_pages: memory.wasm_pages };
            let layout = self.copy(from, base_bytes)?;
            memory.id = layout.id;
            memory.layout = Some(layout);
        }
        Ok(())
    }

    fn finish_loading(
        &mut self,
        call: &SubnetCall,
        argument: &ic::LoadCanisterSnapshotArgs,
        (owner, snapshot): (CanisterId, &CanisterSnapshot),
        before: &CanisterState,
        mut next: CanisterState,
    ) {
        next.certified_data.clone_from(&snapshot.certified_data);
        if snapshot.source == SnapshotSource::Uploaded {
            next.global_timer = snapshot.global_timer.unwrap_or(next.global_timer);
            next.low_memory_hook = snapshot.low_memory_hook.unwrap_or(next.low_memory_hook);
        }
        next.version += 1;
        next.installed_at = Some(self.round.time);
        let details = ChangeDetails::LoadSnapshot {
            from: (owner != next.id).then_some(owner),
            snapshot_id: argument.snapshot_id.clone(),
            canister_version: snapshot.canister_version,
            taken_at: snapshot.taken_at,
            source: snapshot.source,
        };
        let by = (call, argument.sender_canister_version);
        Self::add_change(&mut next, self.round.time, by, details);
        let gone: Vec<_> = memories(before).collect();
        self.core.sandbox.forget(&gone);
        gone.iter().for_each(|memory| self.core.pages.remove(*memory));
        self.core.note_blobs_changed();
        self.state.put(next);
    }
}

/// The execution of a canister onto which the snapshot is loaded, with the snapshot's memories, if
/// snapshot, module and canister fit together.
fn loaded(
    core: &Core,
    canister: &CanisterState,
    snapshot: &CanisterSnapshot,
    module: InstalledModule,
) -> Result<ExecutionState, Reject> {
    let globals = mutable_globals(&module.info.globals, &snapshot.globals)?;
    check_heap(core, &module.info, snapshot)?;
    check_hook(core, canister, &module.info, snapshot)?;
    let memory = |memory: SnapshotMemory| Memory {
        id: memory.id,
        wasm_pages: memory.wasm_pages,
        layout: None,
    };
    Ok(ExecutionState {
        module: StateArc::new(module),
        globals,
        heap: memory(snapshot.heap),
        stable: memory(snapshot.stable),
    })
}

/// The values that a canister keeps, of a snapshot's globals, which must be as many as the module's
/// and of their types.
fn mutable_globals(of_module: &[ModuleGlobal], values: &[Global]) -> Result<Vec<Global>, Reject> {
    let fits = |(global, value): (&ModuleGlobal, &Global)| global.initial.is_like(value);
    if of_module.len() != values.len() || !of_module.iter().zip(values).all(fits) {
        return refused!(
            invalid_payload,
            "The snapshot has {} globals and its module {} that are exported or mutable: number \
             and types must be the same.",
            values.len(),
            of_module.len()
        );
    }
    let kept = of_module.iter().zip(values).filter(|(global, _)| global.mutable);
    Ok(kept.map(|(_, value)| *value).collect())
}

/// Checks the sizes of a snapshot against the limits as they are now.
fn check_sizes(core: &Core, snapshot: &CanisterSnapshot) -> Result<(), Reject> {
    let sizes = &core.limits().module;
    let (module, stable) = (snapshot.module.bytes(), snapshot.stable.bytes());
    for (what, found, most, limit) in [
        ("module", module, sizes.wasm_bytes, "module.wasm_bytes"),
        ("stable memory", stable, sizes.stable_bytes, "module.stable_bytes"),
    ] {
        if found > most {
            return refused!(
                invalid_payload,
                "The snapshot's {what} has {found} bytes, the most is {most} ({limit})."
            );
        }
    }
    Ok(())
}

fn check_heap(core: &Core, info: &ModuleInfo, snapshot: &CanisterSnapshot) -> Result<(), Reject> {
    let sizes = &core.limits().module;
    let (most, name) = if info.memory64 {
        (sizes.heap64_bytes, "module.heap64_bytes")
    } else {
        (sizes.heap32_bytes, "module.heap32_bytes")
    };
    let least = info.heap_initial_wasm_pages * WASM_PAGE_BYTES;
    let declared = info.heap_maximum_wasm_pages.map(|pages| pages.saturating_mul(WASM_PAGE_BYTES));
    let (most, name) = match declared {
        Some(declared) if declared < most => (declared, "the module's own maximum"),
        _ => (most, name),
    };
    let bytes = snapshot.heap.bytes();
    if (least..=most).contains(&bytes) {
        return Ok(());
    }
    refused!(
        invalid_payload,
        "The snapshot's Wasm memory has {bytes} bytes; that of its module begins with {least} and \
         has at most {most} ({name})."
    )
}

/// The hook's status in an upload must agree with the canister's settings and the heap.
fn check_hook(
    core: &Core,
    canister: &CanisterState,
    info: &ModuleInfo,
    snapshot: &CanisterSnapshot,
) -> Result<(), Reject> {
    let told = snapshot.low_memory_hook.filter(|_| snapshot.source == SnapshotSource::Uploaded);
    let Some(told) = told else { return Ok(()) };
    let is_low = is_memory_low(core, &canister.settings, info.memory64, snapshot.heap.bytes());
    if is_low == (told != LowMemoryHook::Idle) {
        return Ok(());
    }
    refused!(
        invalid_payload,
        "The snapshot says of the hook on_low_wasm_memory that its condition is {}, but with a \
         Wasm memory of {} bytes and the settings of canister {} it is {}.",
        if is_low { "not satisfied" } else { "satisfied" },
        snapshot.heap.bytes(),
        canister.id,
        if is_low { "satisfied" } else { "not satisfied" }
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn globals_must_fit_the_module_in_number_and_type() {
        let global = |mutable, initial| ModuleGlobal { mutable, initial };
        let module = [global(true, Global::I32(1)), global(false, Global::F64(2))];
        let fits = [Global::I32(-5), Global::F64(0)];
        assert_eq!(mutable_globals(&module, &fits).unwrap(), [Global::I32(-5)]);
        for wrong in [&fits[..1], &[Global::I64(1), Global::F64(2)], &[fits[0], fits[1], fits[1]]] {
            assert_eq!(mutable_globals(&module, wrong).unwrap_err().error_code.0, 408);
        }
    }
}
