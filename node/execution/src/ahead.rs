//! Compilation ahead of rounds: a call that installs code waits outside of blocks until its module
//! is compiled, so that the round finds the artefact and is not delayed
//! (docs/internals/modules.md).
//!
//! A module is compiled here only if the round would compile it and be paid for it: the call is
//! checked against the newest certified state as the round will check it against its own, and will
//! be in a block, because it is valid for longer than it is held. A caller can have a module
//! compiled without paying only by making its call fail in the moment between the two, about once
//! for each installation that is paid for; compilations here run one at a time, and are ended when
//! a round needs their place. After a start the same is done for modules whose artefacts are gone.
//!
//! Decisions made here are not visible to other nodes and do not change the effect of a call.
//! Errors are left to the round.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use accounting::Pool;
use candid::Principal;
use envelope::candid_wire::Cost;
use ic_management_canister_types::{CanisterInstallMode, InstallChunkedCodeArgs};
use limits::Limits;
use sandbox::{NotPrepared, Priority, StoredModule, UploadedModule};
use state::{CanisterState, CertifiedReader, CertifiedState, Ingress, ModuleHash};

use crate::core::Core;
use crate::management::{
    self,
    install::{Code, check_mode, chunks, prepayment},
    types::InstallCode,
};

/// How long a call waits for the memory in which it is examined; then it is left to the round.
const PATIENCE: Duration = Duration::from_secs(30);

/// How often it is tried to compile a module again.
const ATTEMPTS_AGAIN: u8 = 3;

/// A call that waits, to be read as often as it is needed, so that its argument is not kept in
/// memory meanwhile.
pub type ReadCall<'a> = &'a dyn Fn() -> Result<Ingress, String>;

/// Result of compiling ahead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ahead {
    /// The module is compiled.
    Compiled,
    /// It was before.
    AtHand,
    /// The round will refuse the call, or has to look for itself.
    Left(String),
}

/// See the module.
#[derive(Clone)]
pub struct CompileAhead {
    core: Arc<Core>,
    reader: CertifiedReader,
    compilations: Pool,
}

/// Modules that canisters have and whose artefacts may be gone, each with the attempts made.
#[derive(Debug, Default)]
pub struct ModulesAgain(pub(crate) VecDeque<(ModuleHash, u8)>);

impl ModulesAgain {
    /// Whether nothing is left to do.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Location of the module of a call.
enum ModuleLocation {
    Argument,
    Chunks(Vec<state::BlobHash>),
}

impl CompileAhead {
    pub(crate) fn new(core: Arc<Core>, reader: CertifiedReader, compilations: Pool) -> Self {
        Self { core, reader, compilations }
    }

    /// Compiles the module that a call of `bytes` bytes installs, unless the round would not.
    /// Blocks until that is done.
    pub fn compile(&self, bytes: u64, read: ReadCall<'_>) -> Ahead {
        self.try_compile(bytes, read).unwrap_or_else(Ahead::Left)
    }

    /// Compiles the next of the modules whose artefacts are gone: not before this node has a
    /// certified state, nor at the cost of other artefacts.
    pub fn compile_again(&self, modules: &mut ModulesAgain) {
        if self.reader.latest().is_none() {
            return;
        }
        let sandbox = &self.core.sandbox;
        while let Some((module, attempts)) = modules.0.pop_front() {
            if sandbox.is_prepared(&module) {
                continue;
            }
            if !sandbox.has_artefact_room() {
                modules.0.clear();
                return;
            }
            if let Err(reason) = self.compile_stored(&module) {
                tracing::debug!(?module, %reason, "not compiled again");
                // A round may have needed the place.
                if attempts + 1 < ATTEMPTS_AGAIN {
                    modules.0.push_back((module, attempts + 1));
                }
            }
            return;
        }
    }

    fn compile_stored(&self, module: &ModuleHash) -> Result<(), String> {
        let core = &*self.core;
        let bytes = core.blobs.bytes(&module.0).map_err(|error| error.to_string())?;
        let bytes = bytes.ok_or("no canister has the module any more")?;
        let stored = StoredModule { blobs: &core.blobs, parts: vec![module.0], bytes };
        self.prepare(module, &stored)
    }

    fn prepare(&self, module: &ModuleHash, uploaded: &dyn UploadedModule) -> Result<(), String> {
        match self.core.sandbox.prepare(module, uploaded, Priority::Ahead) {
            Ok(_) => Ok(()),
            Err(NotPrepared::Refused(reject)) => Err(reject.message),
            Err(NotPrepared::Trouble(reason)) => Err(reason),
        }
    }

    fn try_compile(&self, bytes: u64, read: ReadCall<'_>) -> Result<Ahead, String> {
        let (hash, place, module_bytes) = {
            // The call and its module are in memory for a moment, where no compilation runs then.
            let room = bytes.saturating_mul(2).min(self.compilations.cap_bytes());
            let _room = self
                .compilations
                .reserve_within(room, PATIENCE)
                .map_err(|full| full.to_string())?;
            let state = self.reader.latest().ok_or("there is no certified state yet")?;
            self.check(&state, &read()?)?
        };
        let core = &*self.core;
        if core.sandbox.is_prepared(&hash) {
            return Ok(Ahead::AtHand);
        }
        let argument = Argument { limits: core.limits(), read, bytes: module_bytes };
        let uploaded: Box<dyn UploadedModule> = match place {
            ModuleLocation::Argument => Box::new(argument),
            ModuleLocation::Chunks(parts) => {
                Box::new(StoredModule { blobs: &core.blobs, parts, bytes: module_bytes })
            }
        };
        self.prepare(&hash, uploaded.as_ref()).map(|()| Ahead::Compiled)
    }

    fn check(
        &self,
        state: &CertifiedState,
        ingress: &Ingress,
    ) -> Result<(ModuleHash, ModuleLocation, u64), String> {
        let core = &*self.core;
        let words = |reject: state::Reject| reject.message;
        if ingress.canister_id != Principal::management_canister() {
            return Err("the call is to a canister".to_owned());
        }
        let canister =
            |id: &Principal| state.canister(id).ok_or_else(|| format!("there is no canister {id}"));
        let target = canister(&ingress.effective_canister_id)?;
        management::check_ingress(core, ingress, Some(&target)).map_err(words)?;
        // Outside of rounds, on a thread that does nothing else: what it takes is not counted.
        let mut cost = Cost::default();
        let whole;
        let (code, mode, place) = match ingress.method_name.as_str() {
            "install_code" => {
                let argument: InstallCode =
                    management::decode(core.limits(), &ingress.arg, &mut cost).map_err(words)?;
                let named = argument.canister_id;
                (named == target.id).then_some(()).ok_or("another canister is named")?;
                whole = argument.wasm_module;
                (Code::Whole(&whole), argument.mode, ModuleLocation::Argument)
            }
            "install_chunked_code" => {
                let argument: InstallChunkedCodeArgs =
                    management::decode(core.limits(), &ingress.arg, &mut cost).map_err(words)?;
                let named = argument.target_canister;
                (named == target.id).then_some(()).ok_or("another canister is named")?;
                let store = canister(&argument.store_canister.unwrap_or(named))?;
                (store.is_controller(&ingress.sender)).then_some(()).ok_or("no controller")?;
                let (parts, bytes) = chunks(&store, &argument.chunk_hashes_list).map_err(words)?;
                // Before anything is read and hashed.
                let stored = StoredModule { blobs: &core.blobs, parts: parts.clone(), bytes };
                let unknown = Code::Chunks(stored, ModuleHash([0; 32]));
                self.pays(&target, &argument.mode, &unknown)?;
                let found = core.blobs.digest(&parts).map_err(|error| error.to_string())?;
                let hash = found.filter(|hash| hash[..] == argument.wasm_module_hash[..]);
                let hash = ModuleHash(hash.ok_or("the chunks do not make up the module")?);
                let stored = StoredModule { blobs: &core.blobs, parts: parts.clone(), bytes };
                (Code::Chunks(stored, hash), argument.mode, ModuleLocation::Chunks(parts))
            }
            other => return Err(format!("{other} compiles nothing")),
        };
        self.pays(&target, &mode, &code)?;
        Ok((code.hash(), place, code.uploaded().bytes()))
    }

    fn pays(
        &self,
        target: &CanisterState,
        mode: &CanisterInstallMode,
        code: &Code<'_>,
    ) -> Result<(), String> {
        let core = &*self.core;
        let bytes = code.uploaded().bytes();
        if bytes > core.limits().module.wasm_bytes {
            return Err("the module is too large".to_owned());
        }
        check_mode(target, mode).map_err(|reject| reject.message)?;
        let head = code.head().map_err(|error| error.to_string())?;
        let (prepaid, _) = prepayment(core, &target.id, bytes, &head);
        let liquid = core.costs_of(&target.id).liquid(target);
        (liquid >= prepaid)
            .then_some(())
            .ok_or_else(|| format!("the canister has {liquid} of {prepaid} cycles"))
    }
}

/// A module in the argument of a call, which is read again when it is written out.
struct Argument<'a> {
    limits: &'a Limits,
    read: ReadCall<'a>,
    bytes: u64,
}

impl UploadedModule for Argument<'_> {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
        let ingress = (self.read)().map_err(io::Error::other)?;
        let argument: InstallCode =
            management::decode(self.limits, &ingress.arg, &mut Cost::default())
                .map_err(|reject| io::Error::other(reject.message))?;
        out.write_all(&argument.wasm_module)
    }
}
