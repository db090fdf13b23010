//! From an uploaded module to an artefact a worker can map: look it up, or compile it.
//!
//! At most `sandbox.compile_threads` children run at once; further callers wait for a place, and
//! callers that want the same module share one compilation. Nothing is queued beyond the calling
//! threads, and a refusal is not remembered: installing an invalid module again costs an attempt
//! again. An artefact that vanished is compiled again from the module, which a [`ModuleSource`] has
//! kept; that changes how long a message takes and never its result.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use limits::{ModuleLimits, SandboxLimits};
use sha2::{Digest, Sha256};
use state::{ModuleHash, ModuleInfo};
use thiserror::Error;

use crate::cache::{ArtefactCache, CacheError};
use crate::compile::{Caps, Children, CompileError, Compiler, Priority};
use crate::{NotPrepared, UploadedModule, engine, lock};

/// Where uploaded modules are kept.
pub trait ModuleSource: Send + Sync {
    /// The module as uploaded; `None` if it is not there.
    fn module(&self, hash: &ModuleHash) -> Option<Box<dyn UploadedModule + '_>>;
}

/// Configuration of a preparer.
#[derive(Clone)]
pub struct PreparerConfig {
    /// The node's own binary, or one whose `arguments` lead to [`crate::compile_main`].
    pub exe: PathBuf,
    /// Arguments before the job: the hidden subcommand `sandbox-compile`.
    pub arguments: Vec<OsString>,
    /// Directory of artefacts; created, and closed to other users.
    pub cache_dir: PathBuf,
    /// Limits on modules. All nodes of a subnet have the same.
    pub module: ModuleLimits,
    /// Compile children at once, and what each may use; the cap of the cache.
    pub sandbox: SandboxLimits,
    /// For modules whose artefact is gone.
    pub source: Option<Arc<dyn ModuleSource>>,
}

/// A preparer cannot start, or an artefact cannot be had.
#[derive(Debug, Error)]
pub enum PrepareError {
    /// The engine does not run on this machine.
    #[error("the WebAssembly engine cannot be configured on this machine: {0}")]
    Engine(String),
    /// The artefact cache failed: its directory belongs to another user, or an I/O error.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// Neither artefact nor module.
    #[error("the compiled module {0:?} is not on disk, and neither is the module it was made from")]
    Missing(ModuleHash),
    /// Compiling it again failed.
    #[error("the compiled module {0:?} was lost and could not be made again: {1}")]
    Recompile(ModuleHash, String),
}

/// Compiles modules, each once. Shared by reference between threads.
pub struct Preparer {
    compiler: Compiler,
    cache: ArtefactCache,
    module: ModuleLimits,
    threads: u64,
    source: Option<Arc<dyn ModuleSource>>,
    running: Mutex<CompilationQueue>,
    slot_free: Condvar,
}

#[derive(Default)]
struct CompilationQueue {
    children: u64,
    /// Modules being compiled; as many as there are callers that wait.
    modules: BTreeMap<ModuleHash, Arc<SharedCompilation>>,
}

/// A compilation that several callers wait for.
struct SharedCompilation {
    priority: Priority,
    result: Mutex<Option<Result<ModuleInfo, NotPrepared>>>,
    done: Condvar,
}

impl Preparer {
    /// Opens the cache.
    pub fn open(config: PreparerConfig) -> Result<Self, PrepareError> {
        let version = version(&config.module)?;
        let cache = ArtefactCache::open(
            &config.cache_dir,
            &version,
            config.sandbox.compilation_cache_bytes,
        )?;
        Ok(Self {
            compiler: Compiler {
                exe: config.exe,
                arguments: config.arguments,
                module: config.module.clone(),
                caps: Caps::new(&config.sandbox),
                children: Children::default(),
            },
            cache,
            module: config.module,
            threads: config.sandbox.compile_threads.max(1),
            source: config.source,
            running: Mutex::new(CompilationQueue::default()),
            slot_free: Condvar::new(),
        })
    }

    /// Validates and compiles the module `uploaded`, whose SHA-256 is `hash`, unless that was done
    /// before. Blocks.
    pub fn prepare(
        &self,
        hash: &ModuleHash,
        uploaded: &dyn UploadedModule,
        priority: Priority,
    ) -> Result<ModuleInfo, NotPrepared> {
        // Too large to be worth writing; the same text as from the child.
        crate::module::check_uploaded_bytes(uploaded.bytes(), &self.module)
            .map_err(|error| CompileError::Refused(error.to_string()))?;
        if let Some(info) = self.cache.info(hash) {
            return Ok(info);
        }
        self.compile_once(hash, uploaded, priority)
    }

    /// The results of validation of a compiled module.
    pub fn info(&self, hash: &ModuleHash) -> Option<ModuleInfo> {
        self.cache.info(hash)
    }

    /// The artefact of a module that was prepared once, opened for reading, to be handed to a
    /// worker. Compiles it again if it was lost. Blocks.
    pub fn open_artefact(&self, hash: &ModuleHash) -> Result<File, PrepareError> {
        if let Some(file) = self.cache.artefact(hash)? {
            return Ok(file);
        }
        let source = self.source.as_ref().ok_or(PrepareError::Missing(*hash))?;
        let uploaded = source.module(hash).ok_or(PrepareError::Missing(*hash))?;
        self.compile_once(hash, uploaded.as_ref(), Priority::Round)
            .map_err(|error| PrepareError::Recompile(*hash, error.to_string()))?;
        self.cache.artefact(hash)?.ok_or(PrepareError::Missing(*hash))
    }

    /// The same without compiling: `None` if the artefact is not in the cache.
    pub(crate) fn cached_artefact(&self, hash: &ModuleHash) -> Result<Option<File>, PrepareError> {
        Ok(self.cache.artefact(hash)?)
    }

    /// Ends compilations ahead of rounds: a round needs their place.
    pub fn end_ahead(&self) {
        self.compiler.children.end_ahead();
    }

    /// Process ids of compilations that run, for accounting their memory.
    pub fn children(&self) -> Vec<u32> {
        self.compiler.children.pids()
    }

    /// An unnamed file on the file system of the cache, deleted when its last descriptor is closed.
    pub(crate) fn unnamed_file(&self) -> Result<File, PrepareError> {
        let file = self.cache.temporary()?.into_unnamed();
        Ok(file.map_err(|error| self.cache.failed(error))?)
    }

    /// Bytes and modules in the cache.
    pub fn cache_usage(&self) -> (u64, usize) {
        (self.cache.bytes(), self.cache.modules())
    }

    /// Whether the cache takes more artefacts without removing others.
    pub fn has_room(&self) -> bool {
        self.cache.has_room()
    }

    /// Compiles a module, or waits for another caller that does.
    fn compile_once(
        &self,
        hash: &ModuleHash,
        uploaded: &dyn UploadedModule,
        priority: Priority,
    ) -> Result<ModuleInfo, NotPrepared> {
        let mut running = lock(&self.running);
        while let Some(shared) = running.modules.get(hash).cloned() {
            drop(running);
            let result = shared.wait();
            // A compilation ahead of the round that failed did so under its own limits or because
            // it was ended.
            let own = shared.priority == Priority::Ahead && priority == Priority::Round;
            if !own || !matches!(result, Err(NotPrepared::Trouble(_))) {
                return result;
            }
            running = lock(&self.running);
        }
        let shared = Arc::new(SharedCompilation::new(priority));
        running.modules.insert(*hash, Arc::clone(&shared));
        while running.children >= self.threads {
            if priority == Priority::Round {
                self.end_ahead();
            }
            running = self.slot_free.wait(running).unwrap_or_else(PoisonError::into_inner);
        }
        running.children += 1;
        drop(running);
        // Ends the compilation for waiting callers even if this thread panics.
        let guard = CompilationGuard { preparer: self, hash: *hash, shared };
        // Someone may have finished between the look into the cache and here.
        let result = match self.cache.info(hash) {
            Some(info) => Ok(info),
            None => self.compile(hash, uploaded, priority),
        };
        guard.shared.set(result.clone());
        result
    }

    fn compile(
        &self,
        hash: &ModuleHash,
        uploaded: &dyn UploadedModule,
        priority: Priority,
    ) -> Result<ModuleInfo, NotPrepared> {
        // Its errors here: the disk is full or fails.
        let failed = |error| self.cache.failed(error);
        let input = self.cache.temporary()?;
        let mut copy = HashingWriter { file: input.file(), hasher: Sha256::new() };
        uploaded.write_to(&mut copy).map_err(failed)?;
        let found = ModuleHash(copy.hasher.finalize().into());
        if found != *hash {
            let what = format!("the module {hash:?} has the hash {found:?} where it is stored");
            return Err(failed(io::Error::other(what)).into());
        }
        let artefact = self.cache.temporary()?;
        let output = artefact.file().try_clone().map_err(failed)?;
        let input = input.into_unnamed().map_err(failed)?;
        let compiled = self.compiler.compile(input, output, priority)?;
        self.cache.insert(hash, artefact, &compiled.info)?;
        tracing::info!(
            module = ?hash,
            wasm_bytes = compiled.wasm_bytes,
            artefact_bytes = compiled.artefact_bytes,
            cpu_millis = compiled.cpu_millis,
            resident_bytes_max = compiled.resident_bytes_max,
            anonymous_bytes = compiled.anonymous_bytes,
            "compiled a module"
        );
        Ok(compiled.info)
    }
}

/// Writes to a file and hashes what it writes.
struct HashingWriter<'a> {
    file: &'a File,
    hasher: Sha256,
}

impl Write for HashingWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hasher.update(bytes.get(..written).unwrap_or_default());
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Ends a compilation when it is dropped: frees its place and wakes its waiters.
struct CompilationGuard<'a> {
    preparer: &'a Preparer,
    hash: ModuleHash,
    shared: Arc<SharedCompilation>,
}

impl Drop for CompilationGuard<'_> {
    fn drop(&mut self) {
        let mut running = lock(&self.preparer.running);
        running.modules.remove(&self.hash);
        running.children = running.children.saturating_sub(1);
        self.preparer.slot_free.notify_one();
        drop(running);
        self.shared.set(Err(NotPrepared::Trouble(
            "the compilation of the module was abandoned".to_owned(),
        )));
    }
}

impl SharedCompilation {
    fn new(priority: Priority) -> Self {
        Self { priority, result: Mutex::default(), done: Condvar::new() }
    }

    fn wait(&self) -> Result<ModuleInfo, NotPrepared> {
        let mut result = lock(&self.result);
        loop {
            match result.as_ref() {
                Some(result) => return result.clone(),
                None => result = self.done.wait(result).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// The first result stands.
    fn set(&self, value: Result<ModuleInfo, NotPrepared>) {
        lock(&self.result).get_or_insert(value);
        self.done.notify_all();
    }
}

/// Engine and limits: everything that an artefact, and whether there may be one, depends on in
/// addition to the module.
fn version(limits: &ModuleLimits) -> Result<String, PrepareError> {
    let engine = engine::version().map_err(|error| PrepareError::Engine(format!("{error:#}")))?;
    let limits =
        postcard::to_stdvec(limits).map_err(|error| PrepareError::Engine(error.to_string()))?;
    let digest = Sha256::digest(limits);
    Ok(format!("{engine}-{}", hex::encode(&digest[..4])))
}
