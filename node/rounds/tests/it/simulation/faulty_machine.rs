//! Faults of one machine: a replica with a full disk.
//!
//! A full disk refuses every write of a checkpoint or an installation of the real state, as a file
//! system does that copies on overwrite; the real code handles it. Writes that threads of the
//! executor make on their own (folding, manifests) are refused only during such a period, and
//! manifests never: a round waits for them in real time, during which nothing would ever free space
//! on the disk.

use std::{
    collections::BTreeMap,
    fmt, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use consensus::{FinalisedBatch, StateOffer};
use disk::SimulatedDisk;
use execution::{FatalError, RoundResult};
use rounds::{DiskProbe, HistoryCapacity, Installation, OfferOutcome, Replica, RoundError};
use state::{Batch, Fault, Height, StoreError};
use statesync::{InstallError, Progress};

use crate::simulation::probe::{Audit, AuditedReplica};

/// Faults of a machine; may change while the node runs.
#[derive(Default)]
pub(crate) struct MachineFaults {
    /// Nothing more can be written.
    disk_full: AtomicBool,
    /// Writes that were refused.
    pub(crate) refused: AtomicU64,
}

impl MachineFaults {
    pub(crate) fn fill_disk(&self, full: bool) {
        self.disk_full.store(full, Ordering::Relaxed);
    }

    pub(crate) fn is_disk_full(&self) -> bool {
        self.disk_full.load(Ordering::Relaxed)
    }

    /// Whether something that is to be written now is refused.
    pub(crate) fn is_full(&self) -> bool {
        let full = self.is_disk_full();
        self.refused.fetch_add(full.into(), Ordering::Relaxed);
        full
    }
}

/// The files of a real state.
#[derive(Clone)]
pub(crate) struct Files {
    pub(crate) disk: SimulatedDisk,
    pub(crate) folder: PathBuf,
}

impl Files {
    fn refused<T>(&self, work: impl FnOnce() -> T) -> T {
        self.disk.refuse_writes(Some(&self.folder));
        let result = work();
        self.disk.refuse_writes(None);
        result
    }
}

/// A replica on such a machine.
pub(crate) struct FaultyReplica<R> {
    pub(crate) inner: R,
    pub(crate) faults: Arc<MachineFaults>,
    /// Of a toy: none.
    pub(crate) files: Option<Files>,
}

impl<R: AuditedReplica> AuditedReplica for FaultyReplica<R> {
    fn audit(&self, finalised: &FinalisedBatch, result: &RoundResult) -> Audit {
        self.inner.audit(finalised, result)
    }

    fn executed(&self) -> BTreeMap<String, u32> {
        self.inner.executed()
    }

    fn is_hashing(&self) -> bool {
        self.inner.is_hashing()
    }
}

impl<R: AuditedReplica> Replica for FaultyReplica<R> {
    type Installation = FaultyInstallation<R::Installation>;

    fn height(&self) -> Height {
        self.inner.height()
    }

    fn execute(&mut self, batch: &Batch, recorded: &[Fault]) -> Result<RoundResult, FatalError> {
        self.inner.execute(batch, recorded)
    }

    fn certify(&mut self, height: Height, signature: Vec<u8>) -> Result<(), FatalError> {
        self.inner.certify(height, signature)
    }

    fn room(&self) -> HistoryCapacity {
        self.inner.room()
    }

    fn checkpoint_due(&self) -> bool {
        self.inner.checkpoint_due()
    }

    fn checkpoint_pressing(&self) -> bool {
        self.inner.checkpoint_pressing()
    }

    fn checkpoint(&mut self) -> Result<(), FatalError> {
        if !self.faults.is_full() {
            return self.inner.checkpoint();
        }
        match &self.files {
            Some(files) if !self.inner.is_hashing() => files.refused(|| self.inner.checkpoint()),
            _ => Err(FatalError::Store(StoreError::DiskFull("the store".into()))),
        }
    }

    fn install(&self, folder: &Path, offer: &StateOffer) -> Result<Self::Installation, RoundError> {
        let inner = self.inner.install(folder, offer)?;
        Ok(FaultyInstallation { inner, faults: self.faults.clone(), files: self.files.clone() })
    }
}

/// A state on its way to such a machine.
pub(crate) struct FaultyInstallation<I> {
    inner: I,
    faults: Arc<MachineFaults>,
    files: Option<Files>,
}

fn no_room() -> InstallError {
    InstallError::DiskFull { path: "the new state".into() }
}

impl<I: Installation> Installation for FaultyInstallation<I> {
    fn is_complete(&self) -> bool {
        self.inner.is_complete()
    }

    fn missing(&mut self, max: usize) -> Result<Vec<Vec<u8>>, InstallError> {
        self.inner.missing(max)
    }

    fn offer(&mut self, name: &[u8], bytes: &[u8]) -> Result<OfferOutcome, InstallError> {
        match &self.files {
            _ if !self.faults.is_full() => self.inner.offer(name, bytes),
            Some(files) => files.refused(|| self.inner.offer(name, bytes)),
            None => Err(no_room()),
        }
    }

    fn progress(&self) -> Progress {
        self.inner.progress()
    }

    fn prepare(self) -> Result<(), InstallError> {
        match &self.files {
            _ if !self.faults.is_full() => self.inner.prepare(),
            Some(files) => files.refused(|| self.inner.prepare()),
            None => Err(no_room()),
        }
    }
}

/// The disk of such a machine, asked how much is free.
pub(crate) struct FaultyDiskProbe(pub(crate) Arc<MachineFaults>);

impl fmt::Display for FaultyDiskProbe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the simulated disk")
    }
}

impl DiskProbe for FaultyDiskProbe {
    fn free_bytes(&self) -> io::Result<u64> {
        Ok(if self.0.is_disk_full() { 0 } else { u64::MAX })
    }

    fn write(&self) -> io::Result<()> {
        if self.0.is_full() { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}
