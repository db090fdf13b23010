//! Shared, unchanging context of execution: limits, prices, workers, and the stores of memories and
//! modules.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use limits::Limits;
use pages::PageStore;
use sandbox::{CostTable, MessageLimits, NotPrepared, Priority, Sandbox, StoredModule};
use state::{
    BlobError, BlobStore, CanisterId, CanisterState, Cycles, Fault, Height, ModuleHash,
    PayloadError, PayloadStore, Reject, StateArc, StoredPayload, Time,
};

use crate::config::{ExecutorConfig, FatalError};
use crate::cycles::CostSchedule;
use crate::management::Installations;
use crate::reject;
use crate::retry::{Attempts, ExecutionPoint, RetryPolicy};
use crate::running::RunningMessages;

pub(crate) struct Core {
    pub(crate) config: ExecutorConfig,
    costs: CostSchedule,
    cost_table: CostTable,
    /// Prices where canisters pay nothing.
    free: CostSchedule,
    free_table: CostTable,
    pub(crate) sandbox: Arc<dyn Sandbox>,
    pub(crate) pages: Arc<PageStore>,
    pub(crate) blobs: Arc<BlobStore>,
    /// The one that is paused, as far as this machine keeps it.
    pub(crate) installations: Installations,
    pub(crate) payloads: Arc<PayloadStore>,
    pub(crate) retry: Arc<dyn RetryPolicy>,
    pub(crate) running: RunningMessages,
    /// Modules whose artefact this process has ensured. At most one per canister.
    prepared: Mutex<BTreeSet<ModuleHash>>,
    /// Held by the thread that prepares a module whose artefact is gone.
    preparing: Mutex<()>,
    /// Whether a canister dropped a module or chunks since the module store was last swept.
    blobs_changed: AtomicBool,
    /// Nodes of the subnet, which prices depend on. Changes between rounds only.
    subnet_nodes: AtomicU32,
}

impl Core {
    pub(crate) fn new(
        config: ExecutorConfig,
        sandbox: Arc<dyn Sandbox>,
        pages: Arc<PageStore>,
        (blobs, payloads): (Arc<BlobStore>, Arc<PayloadStore>),
        retry: Arc<dyn RetryPolicy>,
    ) -> Self {
        let costs = CostSchedule::default();
        let cost_table = costs.table(&config.limits);
        let free = CostSchedule::free();
        let free_table = free.table(&config.limits);
        let subnet_nodes = u32::try_from(config.subnet.nodes.len()).unwrap_or(u32::MAX);
        let running = RunningMessages::new(usize::try_from(config.threads).unwrap_or(1));
        Self {
            config,
            costs,
            cost_table,
            free,
            free_table,
            sandbox,
            pages,
            blobs,
            payloads,
            retry,
            running,
            installations: Installations::default(),
            prepared: Mutex::default(),
            preparing: Mutex::default(),
            blobs_changed: AtomicBool::new(true),
            subnet_nodes: AtomicU32::new(subnet_nodes),
        }
    }

    pub(crate) fn subnet_nodes(&self) -> u32 {
        self.subnet_nodes.load(Ordering::Relaxed)
    }

    pub(crate) fn set_subnet_nodes(&self, nodes: usize) {
        self.subnet_nodes.store(u32::try_from(nodes).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    /// A step that is tried until it succeeds.
    pub(crate) fn attempts(&self, place: ExecutionPoint) -> Attempts<'_> {
        Attempts::new(&self.retry, &*self.sandbox, place)
    }

    /// Puts a payload into its file. If that fails, what may be removed goes at once: the round in
    /// which it would have gone is the one that waits for the room.
    pub(crate) fn write_payload(
        &self,
        number: u64,
        parts: [&[u8]; 2],
    ) -> Result<StateArc<StoredPayload>, PayloadError> {
        self.payloads.write(number, parts).inspect_err(|_| {
            self.payloads.sweep(usize::MAX);
        })
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.config.limits
    }

    pub(crate) fn costs_of(&self, id: &CanisterId) -> &CostSchedule {
        if self.config.is_free(id) { &self.free } else { &self.costs }
    }

    /// Prices that the System API reports to a canister of this id.
    pub(crate) fn cost_table_of(&self, id: &CanisterId) -> &CostTable {
        if self.config.is_free(id) { &self.free_table } else { &self.cost_table }
    }

    /// Whether a canister can prepay a task of the system.
    pub(crate) fn affords_task(&self, canister: &CanisterState) -> bool {
        let costs = self.costs_of(&canister.id);
        costs.liquid(canister) >= costs.execution(self.limits().execution.instructions_per_message)
    }

    /// Whether a canister has as many cycles above its freezing threshold as `what` needs.
    pub(crate) fn check_affordable(
        &self,
        canister: &CanisterState,
        needed: Cycles,
        what: &str,
    ) -> Result<(), Reject> {
        let liquid = self.costs_of(&canister.id).liquid(canister);
        if liquid < needed {
            return Err(reject::out_of_cycles(&canister.id, liquid, needed, what));
        }
        Ok(())
    }

    /// Notes that blobs may have become dead.
    pub(crate) fn note_blobs_changed(&self) {
        self.blobs_changed.store(true, Ordering::Relaxed);
    }

    /// Whether blobs may have become dead; asking clears it.
    pub(crate) fn take_blobs_changed(&self) -> bool {
        self.blobs_changed.swap(false, Ordering::Relaxed)
    }

    pub(crate) fn note_prepared(&self, module: ModuleHash) {
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner).insert(module);
    }

    /// Forgets modules that no canister has any more.
    pub(crate) fn retain_prepared(&self, live: impl Fn(&ModuleHash) -> bool) {
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner).retain(live);
    }

    /// Sees to it that the artefact of an installed module is there: after a restart the first
    /// message of a canister may find it gone from the cache.
    pub(crate) fn ensure_prepared(
        &self,
        module: ModuleHash,
        canister_id: &CanisterId,
    ) -> Result<(), EnsureError> {
        if self.was_prepared(&module) {
            return Ok(());
        }
        self.prepare_installed(module, canister_id)
    }

    /// Whether the artefact was there before; it may have been removed from the cache since.
    pub(crate) fn was_prepared(&self, module: &ModuleHash) -> bool {
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner).contains(module)
    }

    /// The same when the artefact may have been removed from the cache.
    pub(crate) fn prepare_installed(
        &self,
        module: ModuleHash,
        canister_id: &CanisterId,
    ) -> Result<(), EnsureError> {
        if self.sandbox.is_prepared(&module) {
            self.note_prepared(module);
            return Ok(());
        }
        // One module at a time is read and held here, however many threads lack one.
        let _turn = self.preparing.lock().unwrap_or_else(PoisonError::into_inner);
        let trouble = |error: BlobError| EnsureError::Trouble(error.to_string());
        let fatal = |reason: String| {
            EnsureError::Fatal(FatalError::Module {
                hash: format!("{module:?}"),
                canister_id: *canister_id,
                reason,
            })
        };
        let bytes = match self.blobs.digest(&[module.0]).and_then(|found| match found {
            Some(_) => self.blobs.bytes(&module.0),
            None => Ok(None),
        }) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return Err(fatal("its bytes are not in the module store".into())),
            // The bytes were read and do not have the hash: nothing is compiled from them.
            Err(BlobError::Corrupt { path }) => {
                let path = path.display();
                return Err(fatal(format!(
                    "the node's stored copy of the module is damaged, {path} does not have the \
                     hash in its name"
                )));
            }
            Err(error) if error.can_heal() => return Err(trouble(error)),
            Err(error) => return Err(fatal(error.to_string())),
        };
        let stored = StoredModule { blobs: &self.blobs, parts: vec![module.0], bytes };
        self.sandbox.prepare(&module, &stored, Priority::Round).map_err(|error| match error {
            // It was accepted when it was installed: the limits or the engine of this node changed.
            NotPrepared::Refused(reject) => fatal(reject.message),
            NotPrepared::Trouble(reason) => EnsureError::Trouble(reason),
        })?;
        self.note_prepared(module);
        Ok(())
    }

    /// Limits of an update, timer, heartbeat or callback.
    pub(crate) fn message_limits(&self) -> MessageLimits {
        let limits = self.limits();
        MessageLimits {
            instructions: limits.execution.instructions_per_message,
            stable_dirty_bytes: limits.execution.stable_dirty_bytes_per_message,
            stable_accessed_bytes: limits.execution.stable_accessed_bytes_per_message,
            heap_dirty_bytes: limits.execution.heap_dirty_bytes_per_message,
            heap_max_bytes: [limits.module.heap32_bytes, limits.module.heap64_bytes],
            stable_max_bytes: limits.module.stable_bytes,
            log_max_bytes: limits.subnet.canister_log_bytes,
        }
    }

    /// Limits of init and the upgrade hooks.
    pub(crate) fn install_limits(&self) -> MessageLimits {
        let execution = &self.limits().execution;
        MessageLimits {
            instructions: execution.instructions_per_install,
            stable_dirty_bytes: execution.stable_dirty_bytes_per_install,
            stable_accessed_bytes: execution.stable_accessed_bytes_per_install,
            heap_dirty_bytes: execution.heap_dirty_bytes_per_install,
            ..self.message_limits()
        }
    }

    pub(crate) fn query_limits(&self) -> MessageLimits {
        let limits = &self.limits().execution;
        MessageLimits {
            instructions: limits.instructions_per_query,
            heap_dirty_bytes: limits.heap_dirty_bytes_per_query,
            stable_dirty_bytes: limits.stable_dirty_bytes_per_query,
            ..self.message_limits()
        }
    }
}

/// Why a module is not ready.
#[derive(Debug)]
pub(crate) enum EnsureError {
    Fatal(FatalError),
    /// This machine's; another attempt may find it over.
    Trouble(String),
}

/// Data that is the same for every message of a round.
#[derive(Clone, Debug)]
pub(crate) struct RoundFacts {
    pub(crate) height: Height,
    pub(crate) time: Time,
    /// Messages that an operator ruled to be rejected in this round.
    pub(crate) rejected: BTreeSet<Fault>,
}

impl RoundFacts {
    /// The message that the canister executes as its `ordinal`th of the round.
    pub(crate) fn place(&self, canister_id: CanisterId, ordinal: u64) -> ExecutionPoint {
        ExecutionPoint { height: self.height, message: Some(Fault { canister_id, ordinal }) }
    }

    /// The operator's verdict on a message, if there is one.
    pub(crate) fn verdict(&self, canister_id: CanisterId, ordinal: u64) -> Option<Fault> {
        self.rejected.get(&Fault { canister_id, ordinal }).cloned()
    }
}
