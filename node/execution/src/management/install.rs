//! Installing, reinstalling and upgrading code.
//!
//! An installation is atomic: it takes effect as a whole or leaves only its costs and its log lines
//! behind. It has up to two executions, the old code's `canister_pre_upgrade` and the new code's
//! `(start)` with `canister_init` or `canister_post_upgrade`. No page that either of them writes is
//! in a memory before both have ended successfully: the pages of the first are mounted for the
//! second as an overlay that no other execution ever sees, and then the pages of both are copied
//! and committed as one version. [`super::installing`] runs them, in slices and over rounds; this
//! module contains the steps before and after.

use ic_management_canister_types::{
    CanisterInstallMode, ChunkHash, InstallChunkedCodeArgs, WasmMemoryPersistence,
};
use pages::MemoryId;
use sandbox::module::HEAD_BYTES;
use sandbox::{Changes, NotPrepared, Priority, StoredModule, UploadedModule};
use sha2::{Digest, Sha256};
use state::{
    BlobError, BlobHash, CanisterId, CanisterState, ChangeDetails, Cycles, DeploymentMode,
    InstalledModule, ModuleHash, ModuleInfo, Reject, SubnetCall,
};

use super::installing::{Installing, Plan, Record, Tally};
use super::types::InstallCode;
use super::{Dispatcher, MethodResult, Refusal};
use crate::config::FatalError;
use crate::core::Core;
use crate::machine::watch_memory;
use crate::reject::{self, refused};

/// Instructions that hashing a byte counts with in a round, with SHA-256 and without support for it
/// in the processor.
const HASH_INSTRUCTIONS_PER_BYTE: u64 = 4;

/// Instructions that hashing this many bytes counts in a round.
pub(super) const fn hash_instructions(bytes: u64) -> u64 {
    bytes.saturating_mul(HASH_INSTRUCTIONS_PER_BYTE)
}

/// Chunks that may make up one module.
pub(super) const CHUNKS_MAX: usize = 100;

/// An installation: the code, its argument and its target.
struct Order<'a> {
    id: CanisterId,
    mode: CanisterInstallMode,
    code: Code<'a>,
    arg: &'a [u8],
    told_version: Option<u64>,
}

/// A module that is to be installed, by its location.
pub(crate) enum Code<'a> {
    /// In the call's argument.
    Whole(&'a [u8]),
    /// In the module store.
    Chunks(StoredModule<'a>, ModuleHash),
}

impl Code<'_> {
    /// Its SHA-256, which was checked if it came in chunks.
    pub(crate) fn hash(&self) -> ModuleHash {
        match self {
            Self::Whole(wasm) => ModuleHash(Sha256::digest(wasm).into()),
            Self::Chunks(_, hash) => *hash,
        }
    }

    pub(crate) fn uploaded(&self) -> &dyn UploadedModule {
        match self {
            Self::Whole(wasm) => wasm,
            Self::Chunks(stored, _) => stored,
        }
    }

    /// The beginning of the module that determines whether it is packed.
    pub(crate) fn head(&self) -> Result<Vec<u8>, BlobError> {
        match self {
            Self::Whole(wasm) => Ok(wasm.iter().take(HEAD_BYTES).copied().collect()),
            Self::Chunks(stored, _) => {
                let mut head = Vec::with_capacity(HEAD_BYTES);
                for part in &stored.parts {
                    let left = (HEAD_BYTES - head.len()) as u64;
                    let bytes = stored.blobs.bytes(part)?.unwrap_or(0).min(left);
                    let mut piece = vec![0; usize::try_from(bytes).unwrap_or(0)];
                    stored.blobs.read(part, 0, &mut piece)?;
                    head.append(&mut piece);
                    if head.len() == HEAD_BYTES {
                        break;
                    }
                }
                Ok(head)
            }
        }
    }
}

/// The blobs of the chunks that a call names, if the canister that stores them has them all, and
/// their length together.
pub(crate) fn chunks(
    store: &CanisterState,
    hashes: &[ChunkHash],
) -> Result<(Vec<BlobHash>, u64), Reject> {
    if hashes.len() > CHUNKS_MAX {
        return refused!(contract_violation, "{} chunks, the most is {CHUNKS_MAX}.", hashes.len());
    }
    let mut parts = Vec::with_capacity(hashes.len());
    let mut bytes = 0u64;
    for hash in hashes {
        let known = <BlobHash>::try_from(hash.hash.as_slice())
            .ok()
            .and_then(|name| store.chunks.get(&name).map(|bytes| (name, *bytes)));
        let Some((name, chunk_bytes)) = known else {
            let name = hex::encode(hash.hash.get(..32).unwrap_or(&hash.hash));
            return refused!(
                contract_violation,
                "Chunk {name} is not in the chunk store of canister {}.",
                store.id
            );
        };
        parts.push(name);
        bytes += chunk_bytes;
    }
    Ok((parts, bytes))
}

impl Dispatcher<'_> {
    pub(super) fn install_code(&mut self, call: &SubnetCall) -> MethodResult {
        let argument: InstallCode = self.decode(call)?;
        self.check_sender_version(call, argument.sender_canister_version)?;
        let order = Order {
            id: argument.canister_id,
            mode: argument.mode,
            code: Code::Whole(&argument.wasm_module),
            arg: &argument.arg,
            told_version: argument.sender_canister_version,
        };
        self.install(call, &order)
    }

    pub(super) fn install_chunked_code(&mut self, call: &SubnetCall) -> MethodResult {
        let argument: InstallChunkedCodeArgs = self.decode(call)?;
        self.check_sender_version(call, argument.sender_canister_version)?;
        let caller = call.origin.caller();
        let store_id = argument.store_canister.unwrap_or(argument.target_canister);
        let store = self.target(&store_id)?;
        if !store.is_controller(&caller) && caller != store_id {
            return Err(reject::invalid_controller(&store_id, &call.method_name).into());
        }
        let (parts, bytes) = chunks(store, &argument.chunk_hashes_list)?;
        let limit = self.core.limits().module.wasm_bytes;
        if bytes > limit {
            return Err(reject::module_too_large(bytes, limit).into());
        }
        // Charged in any case: a wrong hash costs the caller nothing to state.
        self.effects.work += hash_instructions(bytes);
        let core = self.core;
        let found = core.attempts(self.place.clone()).until(|| core.blobs.digest(&parts))?;
        let found = found.ok_or_else(|| FatalError::Record {
            what: format!("a chunk of canister {store_id}"),
            reason: "its bytes are not in the module store".into(),
        })?;
        if found[..] != argument.wasm_module_hash[..] {
            return Err(reject::contract_violation(
                "The chunks do not make up a module with the hash in wasm_module_hash.",
            )
            .into());
        }
        let order = Order {
            id: argument.target_canister,
            mode: argument.mode,
            code: Code::Chunks(
                StoredModule { blobs: &core.blobs, parts, bytes },
                ModuleHash(found),
            ),
            arg: &argument.arg,
            told_version: argument.sender_canister_version,
        };
        self.install(call, &order)
    }

    /// Whether the subnet keeps what is known of one more `module`, in place of the canister's own.
    pub(super) fn has_room_for(
        &self,
        canister: &CanisterState,
        module: &InstalledModule,
    ) -> Result<(), Reject> {
        let (limits, totals) = (&self.core.limits().subnet, self.state.totals());
        let sections_before = canister.module().map_or(0, InstalledModule::custom_section_bytes);
        let sections =
            totals.custom_section_bytes - sections_before + module.custom_section_bytes();
        if sections > limits.wasm_custom_sections_bytes {
            return refused!(
                subnet_oversubscribed,
                "Metadata sections of all modules would take {sections} bytes of the subnet's {} \
                 (subnet.wasm_custom_sections_bytes).",
                limits.wasm_custom_sections_bytes
            );
        }
        let (before, after) =
            (canister.module().map_or(0, InstalledModule::metadata_bytes), module.metadata_bytes());
        let metadata = totals.metadata_bytes.saturating_sub(before).saturating_add(after);
        if after > before && metadata > limits.canister_metadata_bytes {
            return refused!(
                subnet_oversubscribed,
                "The names of the module's methods and its globals take {after} bytes, and what is \
                 known of all canisters would take {metadata} of the subnet's {} \
                 (subnet.canister_metadata_bytes).",
                limits.canister_metadata_bytes
            );
        }
        Ok(())
    }

    fn install(&mut self, call: &SubnetCall, order: &Order<'_>) -> MethodResult {
        let core = self.core;
        let limits = core.limits();
        self.state.refresh();
        let canister = self.target(&order.id)?.clone();
        let wasm_bytes = order.code.uploaded().bytes();
        if wasm_bytes > limits.module.wasm_bytes {
            return Err(reject::module_too_large(wasm_bytes, limits.module.wasm_bytes).into());
        }
        check_mode(&canister, &order.mode)?;

        // Nothing is unpacked, hashed or compiled for a canister that cannot pay the maximum price
        // of it.
        let head = core.attempts(self.place.clone()).until(|| order.code.head())?;
        let (prepaid, compile_most) = prepayment(core, &order.id, wasm_bytes, &head);
        let costs = core.costs_of(&order.id);
        core.check_affordable(&canister, prepaid, "prepaying the installation of code")?;
        let hash = order.code.hash();
        let (prepared, compile_instructions) =
            self.prepare_and_count(&canister, &hash, order.code.uploaded(), (&head, compile_most))?;
        let compile_cost = costs.execution(compile_instructions);
        let planned = prepared.and_then(|info| Ok((plan(&canister, &order.mode, &info)?, info)));
        let (plan, info) = match planned {
            Ok(planned) => planned,
            Err(reject) => return self.refuse_compiled(&order.id, compile_cost, reject),
        };
        core.note_prepared(hash);
        let module = InstalledModule::new(hash, wasm_bytes, info);
        if let Err(reject) = self.has_room_for(&canister, &module) {
            return self.refuse_compiled(&order.id, compile_cost, reject);
        }

        let usage = usage_with(&canister, &module, plan);
        let capacity = limits.subnet.memory_capacity_bytes;
        let others = self.state.totals().memory_taken.saturating_sub(canister.memory_taken());
        let Some(growable_bytes) = capacity.saturating_sub(others).checked_sub(usage) else {
            let reject = reject::subnet_oversubscribed(format!(
                "The code needs {usage} bytes: {others} of the subnet's {capacity} bytes are taken \
                 (subnet.memory_capacity_bytes)."
            ));
            return self.refuse_compiled(&order.id, compile_cost, reject);
        };
        self.store_code(&order.code)?;
        let (origin, method_name) = (call.origin.clone(), call.method_name.clone());
        let call = SubnetCall { origin, method_name, arg: Vec::new(), ..*call };
        let given = (order.told_version, order.arg.to_vec());
        let (target, costs) = ((order.id, growable_bytes), (prepaid, compile_cost));
        self.begin_install(call, given, plan, module, target, costs)
    }

    /// What ran of an installation that failed is paid for, and what it logged stays.
    pub(super) fn charge_failed(
        &mut self,
        installing: &Installing,
        tally: &Tally,
    ) -> Result<(), Refusal> {
        let time = self.round.time;
        let cost = self.cost(installing, tally);
        let canister = self.target_mut(&installing.id)?;
        canister.credit(installing.prepaid - cost);
        canister.consumption.instructions += cost;
        let log_bytes_max = canister.settings.log_memory_limit;
        for line in &tally.log {
            canister.log.push(time, line.to_vec(), log_bytes_max);
        }
        self.count_slice(installing, tally, 0);
        Ok(())
    }

    /// The part of the prepayment that an installation used.
    fn cost(&self, installing: &Installing, tally: &Tally) -> Cycles {
        let execution = self.core.costs_of(&installing.id).execution(tally.instructions);
        (execution + installing.record.compile_cost).min(installing.prepaid)
    }

    /// Refuses an installation of which nothing ran, but whose module was compiled or at least
    /// judged: that is paid for.
    pub(super) fn refuse_compiled(
        &mut self,
        id: &CanisterId,
        cost: Cycles,
        reject: Reject,
    ) -> MethodResult {
        let canister = self.target_mut(id)?;
        canister.debit(cost);
        canister.consumption.instructions += cost;
        Err(reject.into())
    }

    /// Validates and compiles a module that begins with `head`, and counts what that took: by the
    /// module and not by what this machine did for it, which may have had the artefact.
    pub(super) fn prepare_and_count(
        &mut self,
        canister: &CanisterState,
        hash: &ModuleHash,
        uploaded: &dyn UploadedModule,
        (head, compile_most): (&[u8], u64),
    ) -> Result<(Result<ModuleInfo, Reject>, u64), Refusal> {
        let prepared = self.prepare(canister, hash, uploaded)?;
        let sizes = &self.core.limits().module;
        let instructions = match &prepared {
            Ok(info) => info.compile_instructions.min(compile_most),
            Err(_) => limits::validate_instructions(sandbox::module::unpacked_bytes_max(
                uploaded.bytes(),
                head,
                sizes,
            )),
        };
        self.effects.work += instructions;
        Ok((prepared, instructions))
    }

    /// Validates and compiles, however often this machine fails at it. The inner result is the
    /// module's, the same on every node.
    fn prepare(
        &mut self,
        canister: &CanisterState,
        hash: &ModuleHash,
        uploaded: &dyn UploadedModule,
    ) -> Result<Result<ModuleInfo, Reject>, Refusal> {
        let mut attempts = self.core.attempts(self.place.clone()).of_a_message();
        loop {
            match self.core.sandbox.prepare(hash, uploaded, Priority::Round) {
                Ok(info) => return Ok(Ok(info)),
                Err(NotPrepared::Trouble(what)) => attempts.wait(what)?,
                Err(NotPrepared::Refused(reject)) => {
                    return Ok(Err(reject::from_canister(&canister.id, reject)));
                }
            }
        }
    }

    /// Keeps the module in the module store.
    fn store_code(&self, code: &Code<'_>) -> Result<(), FatalError> {
        match code {
            Code::Whole(wasm) => self.store_blob(wasm),
            Code::Chunks(stored, hash) => {
                let blobs = &self.core.blobs;
                let attempts = &mut self.core.attempts(self.place.clone());
                let joined = attempts.until(|| blobs.join(&stored.parts, &hash.0))?;
                self.core.note_blobs_changed();
                joined.ok_or_else(|| FatalError::Record {
                    what: "a chunk of a module".into(),
                    reason: "its bytes are not in the module store".into(),
                })
            }
        }
    }

    /// What the canister would keep after the installation must last its freezing threshold.
    pub(super) fn check_lasting(
        &self,
        next: &CanisterState,
        changes: &Changes,
        refund: Cycles,
    ) -> Result<(), Reject> {
        let grown = next.execution.as_ref().map_or(0, |execution| {
            changes.heap_wasm_pages + changes.stable_wasm_pages
                - execution.heap.wasm_pages
                - execution.stable.wasm_pages
        });
        let bytes = next.memory_usage().total() + grown * state::WASM_PAGE_BYTES;
        let needed = self.core.costs_of(&next.id).freezing_limit_with(next, bytes);
        let balance = next.cycles.saturating_add(refund);
        if balance >= needed {
            return Ok(());
        }
        refused!(
            532,
            "Error from Canister {}: after the installation it would have {balance} cycles and \
             must keep {needed} to last its freezing threshold; top it up.",
            next.id
        )
    }

    /// The installation ended well and is committed in `next`.
    pub(super) fn finish_install(
        &mut self,
        installing: &Installing,
        before: &CanisterState,
        mut next: CanisterState,
        tally: &Tally,
    ) -> Result<(), Refusal> {
        let core = self.core;
        let time = self.round.time;
        let Record { call, plan, told_version, module, .. } = &installing.record;
        let module_hash = module.hash;
        let cost = self.cost(installing, tally);
        next.credit(installing.prepaid - cost);
        next.consumption.instructions += cost;
        next.installed_at = Some(time);
        if plan.deployment == DeploymentMode::Reinstall {
            next.log.clear();
        }
        let log_bytes_max = next.settings.log_memory_limit;
        tally.log.iter().for_each(|line| next.log.push(time, line.to_vec(), log_bytes_max));
        let details = ChangeDetails::CodeDeployment { mode: plan.deployment, module_hash };
        Self::add_change(&mut next, time, (call, *told_version), details);
        watch_memory(core, &mut next);
        let kept: Vec<MemoryId> = memories(&next).collect();
        let gone: Vec<MemoryId> =
            memories(before).filter(|memory| !kept.contains(memory)).collect();
        gone.iter().for_each(|memory| core.pages.remove(*memory));
        // Mappings of what is gone, and of overlays that never were a version.
        core.sandbox.forget(&memories(before).collect::<Vec<_>>());
        self.state.put(next);
        Ok(())
    }

    pub(super) fn count(&mut self, instructions: u64, delta_bytes: u64) {
        self.effects.executed(instructions, instructions);
        self.effects.delta_bytes += delta_bytes;
    }

    pub(super) fn count_slice(&mut self, installing: &Installing, tally: &Tally, delta_bytes: u64) {
        let instructions = tally.instructions.saturating_sub(installing.counted);
        self.effects.executed(instructions, tally.work.saturating_sub(self.worked(installing)));
        self.effects.delta_bytes += delta_bytes;
    }
}

pub(super) fn memories(canister: &CanisterState) -> impl Iterator<Item = MemoryId> + '_ {
    canister.execution.iter().flat_map(|execution| [execution.heap.id, execution.stable.id])
}

/// Bytes that the canister uses when its new code begins.
fn usage_with(canister: &CanisterState, module: &InstalledModule, plan: Plan) -> u64 {
    let usage = canister.memory_usage();
    let heap = if plan.keeps_heap { usage.heap } else { 0 };
    let stable = if plan.keeps_stable { usage.stable } else { 0 };
    let kept = heap + stable + usage.history + usage.chunks + usage.log + usage.snapshots;
    kept + module.bytes + module.custom_section_bytes()
}

/// Cycles that a canister needs for the installation of a module of `bytes` bytes that begins with
/// `head`, and the maximum of its instructions that compiling may take.
pub(crate) fn prepayment(core: &Core, id: &CanisterId, bytes: u64, head: &[u8]) -> (Cycles, u64) {
    let module = &core.limits().module;
    let unpacked_max = sandbox::module::unpacked_bytes_max(bytes, head, module);
    let compile_most = module.compile_instructions_max(unpacked_max);
    let costs = core.costs_of(id);
    let execution = costs.execution(core.install_limits().instructions);
    (execution + costs.execution(compile_most), compile_most)
}

pub(crate) fn check_mode(
    canister: &CanisterState,
    mode: &CanisterInstallMode,
) -> Result<(), Reject> {
    match mode {
        CanisterInstallMode::Install if canister.execution.is_some() => {
            Err(reject::not_empty(&canister.id))
        }
        CanisterInstallMode::Upgrade(_) if canister.execution.is_none() => {
            Err(reject::no_module(&canister.id))
        }
        _ => Ok(()),
    }
}

fn plan(
    canister: &CanisterState,
    mode: &CanisterInstallMode,
    info: &ModuleInfo,
) -> Result<Plan, Reject> {
    let CanisterInstallMode::Upgrade(flags) = mode else {
        let deployment = if matches!(mode, CanisterInstallMode::Install) {
            DeploymentMode::Install
        } else {
            DeploymentMode::Reinstall
        };
        return Ok(Plan {
            deployment,
            runs_pre_upgrade: false,
            keeps_heap: false,
            keeps_stable: false,
        });
    };
    let old = canister.module().ok_or_else(|| reject::no_module(&canister.id))?;
    let persistence = flags.as_ref().and_then(|flags| flags.wasm_memory_persistence);
    let skip = flags.as_ref().and_then(|flags| flags.skip_pre_upgrade).unwrap_or(false);
    let keeps_heap = persistence == Some(WasmMemoryPersistence::Keep);
    let refuse = |what: &str| {
        Err(reject::reject(504, format!("Error from Canister {}: {what}", canister.id)))
    };
    if old.info.enhanced_orthogonal_persistence && persistence.is_none() {
        return refuse(
            "Missing upgrade option: the installed module uses enhanced orthogonal persistence, \
             so the upgrade must say what becomes of its heap (wasm_memory_persistence keep or \
             replace).",
        );
    }
    if keeps_heap && !info.enhanced_orthogonal_persistence {
        return refuse(
            "Invalid upgrade option: wasm_memory_persistence keep needs a new module with \
             enhanced orthogonal persistence.",
        );
    }
    if keeps_heap && old.info.memory64 != info.memory64 {
        return refuse(
            "Invalid upgrade option: a heap cannot be kept between a 32-bit and a 64-bit module.",
        );
    }
    Ok(Plan {
        deployment: DeploymentMode::Upgrade,
        runs_pre_upgrade: old.info.hooks.pre_upgrade && !skip,
        keeps_heap,
        keeps_stable: true,
    })
}
