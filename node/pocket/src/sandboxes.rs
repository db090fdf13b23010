//! Worker processes of instances: two for each, with one cache of compiled modules for all.
//!
//! A module that many tests install is compiled once, for the first that needs it. Workers are not
//! shared: their mappings of a canister are named by numbers that each instance counts for itself.

use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use anyhow::{Context, Result};
use sandbox::{
    BudgetedSandbox, HeapFigures, ModuleSource, Pool, Preparer, PreparerConfig, SandboxConfig,
    StoredModule, UploadedModule,
};
use state::{BlobStore, ModuleHash};

use crate::bounds::Bounds;

/// Resources shared by all instances.
pub(crate) struct Sandboxes {
    config: SandboxConfig,
    preparer: Arc<Preparer>,
    stores: Arc<Stores>,
}

/// Module stores of the instances there are.
#[derive(Default)]
struct Stores(Mutex<Vec<Weak<BlobStore>>>);

/// A module in one of them.
struct InstanceModule {
    store: Arc<BlobStore>,
    hash: ModuleHash,
    bytes: u64,
}

impl UploadedModule for InstanceModule {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn write_to(&self, out: &mut dyn std::io::Write) -> std::io::Result<()> {
        let parts = vec![self.hash.0];
        StoredModule { blobs: &self.store, parts, bytes: self.bytes }.write_to(out)
    }
}

impl ModuleSource for Stores {
    fn module(&self, hash: &ModuleHash) -> Option<Box<dyn UploadedModule + '_>> {
        let stores: Vec<_> = {
            let stores = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            stores.iter().filter_map(Weak::upgrade).collect()
        };
        stores.into_iter().find_map(|store| {
            let bytes = store.bytes(&hash.0).ok().flatten()?;
            Some(Box::new(InstanceModule { store, hash: *hash, bytes }) as _)
        })
    }
}

impl Sandboxes {
    pub(crate) fn open(folder: &Path, bounds: &Bounds) -> Result<Self> {
        let limits = &bounds.limits;
        let stores = Arc::new(Stores::default());
        let source: Arc<dyn ModuleSource> = stores.clone();
        let config = SandboxConfig {
            exe: std::env::current_exe().context("finding this program's file")?,
            cache_dir: folder.to_owned(),
            update_workers: 1,
            query_workers: 1,
            module: limits.module.clone(),
            sandbox: limits.sandbox.clone(),
            paused_spill_bytes: limits.paused_spill_bytes(),
            paused_anonymous_bytes: limits.paused_anonymous_bytes(),
            source: Some(source.clone()),
            probes: false,
        };
        let preparer = Preparer::open(PreparerConfig {
            exe: config.exe.clone(),
            arguments: vec!["sandbox-compile".into()],
            cache_dir: config.cache_dir.clone(),
            module: config.module.clone(),
            sandbox: config.sandbox.clone(),
            source: Some(source),
        })?;
        Ok(Self { config, preparer: Arc::new(preparer), stores })
    }

    /// Starts the workers of an instance whose modules are in `store`.
    pub(crate) fn for_instance(
        &self,
        store: &Arc<BlobStore>,
        bounds: &Bounds,
    ) -> Result<(Arc<Pool>, BudgetedSandbox)> {
        {
            let mut stores = self.stores.0.lock().unwrap_or_else(PoisonError::into_inner);
            stores.retain(|store| store.strong_count() > 0);
            stores.push(Arc::downgrade(store));
        }
        let pool = Arc::new(Pool::with_preparer(self.config.clone(), self.preparer.clone())?);
        let budgeted = BudgetedSandbox::new(pool.clone(), bounds.work()?, &bounds.limits);
        Ok((pool, budgeted))
    }
}

pub(crate) fn heap(trim: bool) -> HeapFigures {
    let heap = memory::allocator::heap(trim);
    HeapFigures {
        live_bytes: heap.live_bytes,
        resident_bytes: heap.resident_bytes,
        returned_bytes: heap.returned_bytes,
    }
}
