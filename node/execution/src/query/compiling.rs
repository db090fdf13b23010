//! Compilations for queries: on a thread of their own, so that a query waits for one no longer than
//! it may run.
//!
//! One thread at most. The compilation continues when its query has given up, and a later query
//! finds the artefact.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use state::{CanisterId, ModuleHash};

use crate::core::{Core, EnsureError};

#[derive(Default)]
pub(super) struct Compilations {
    state: Mutex<State>,
    done: Condvar,
}

#[derive(Default)]
struct State {
    running: Option<ModuleHash>,
    /// Result of the last one.
    last: Option<(ModuleHash, Result<(), Failure>)>,
}

/// Why a module is not ready.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    /// The deadline of the query passed.
    Overdue,
    /// This machine could not compile it now.
    Trouble(String),
    /// The node's data or configuration is at fault.
    Fatal(String),
}

impl Compilations {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Compiles a module whose artefact is not in the cache, and waits for it until `deadline`.
    pub(super) fn compile(
        self: &Arc<Self>,
        core: &Arc<Core>,
        (module, canister_id): (ModuleHash, CanisterId),
        deadline: Instant,
    ) -> Result<(), Failure> {
        let mut state = self.lock();
        let mut is_awaited = false;
        loop {
            if is_awaited
                && state.running != Some(module)
                && let Some((_, result)) = state.last.as_ref().filter(|(last, _)| *last == module)
            {
                return result.clone();
            }
            if core.sandbox.is_prepared(&module) {
                core.note_prepared(module);
                return Ok(());
            }
            if state.running.is_none() {
                self.start(&mut state, core, module, canister_id)?;
            }
            is_awaited = state.running == Some(module);
            let now = Instant::now();
            if now >= deadline {
                return Err(Failure::Overdue);
            }
            state = self
                .done
                .wait_timeout(state, deadline - now)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    fn start(
        self: &Arc<Self>,
        state: &mut State,
        core: &Arc<Core>,
        module: ModuleHash,
        canister_id: CanisterId,
    ) -> Result<(), Failure> {
        let (compilations, core) = (Arc::clone(self), Arc::clone(core));
        let compile = move || {
            let guard = CompilationGuard { compilations };
            let result = core.prepare_installed(module, &canister_id);
            let result = result.map_err(|error| match error {
                EnsureError::Trouble(reason) => Failure::Trouble(reason),
                EnsureError::Fatal(error) => Failure::Fatal(error.to_string()),
            });
            guard.compilations.lock().last = Some((module, result));
        };
        state.running = Some(module);
        state.last = None;
        let thread = std::thread::Builder::new().name("query-compile".into());
        thread.spawn(compile).map(drop).map_err(|error| {
            state.running = None;
            Failure::Trouble(format!("a thread cannot be started: {error}"))
        })
    }
}

/// Ends the running compilation of a thread, also when it panics.
struct CompilationGuard {
    compilations: Arc<Compilations>,
}

impl Drop for CompilationGuard {
    fn drop(&mut self) {
        self.compilations.lock().running = None;
        self.compilations.done.notify_all();
    }
}
