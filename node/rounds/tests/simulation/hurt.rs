//! Trouble of one machine: what a replica meets whose disk is full.

use std::{
    collections::BTreeMap,
    fmt, io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use consensus::{FinalisedBatch, StateOffer};
use execution::{FatalError, InstallError, Progress, RoundResult};
use rounds::{BeginError, DiskProbe, Installation, Offered, Replica, Room};
use state::{Batch, Fault, Height, StoreError};

use crate::probe::{Audit, Audited};

/// What is the matter with a machine; can change while the node runs.
#[derive(Default)]
pub(crate) struct Trouble {
    /// Nothing more can be written.
    disk_full: AtomicBool,
    /// Writes that were refused.
    pub(crate) refused: AtomicU64,
}

impl Trouble {
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

/// A replica on such a machine.
pub(crate) struct Hurt<R> {
    pub(crate) inner: R,
    pub(crate) trouble: Arc<Trouble>,
}

impl<R: Audited> Audited for Hurt<R> {
    fn audit(&self, finalised: &FinalisedBatch, result: &RoundResult) -> Audit {
        self.inner.audit(finalised, result)
    }

    fn executed(&self) -> BTreeMap<String, u32> {
        self.inner.executed()
    }
}

impl<R: Replica> Replica for Hurt<R> {
    type Installation = HurtInstallation<R::Installation>;

    fn height(&self) -> Height {
        self.inner.height()
    }

    fn execute(&mut self, batch: &Batch, recorded: &[Fault]) -> Result<RoundResult, FatalError> {
        self.inner.execute(batch, recorded)
    }

    fn certify(&mut self, height: Height, signature: Vec<u8>) -> Result<(), FatalError> {
        self.inner.certify(height, signature)
    }

    fn room(&self) -> Room {
        self.inner.room()
    }

    fn checkpoint_due(&self) -> bool {
        self.inner.checkpoint_due()
    }

    fn checkpoint_pressing(&self) -> bool {
        self.inner.checkpoint_pressing()
    }

    fn checkpoint(&mut self) -> Result<(), FatalError> {
        if self.trouble.is_full() {
            return Err(FatalError::Store(StoreError::DiskFull { path: "the store".into() }));
        }
        self.inner.checkpoint()
    }

    fn install(&self, folder: &Path, offer: &StateOffer) -> Result<Self::Installation, BeginError> {
        let inner = self.inner.install(folder, offer)?;
        Ok(HurtInstallation { inner, trouble: self.trouble.clone() })
    }
}

/// A state on its way to such a machine.
pub(crate) struct HurtInstallation<I> {
    inner: I,
    trouble: Arc<Trouble>,
}

impl<I> HurtInstallation<I> {
    fn room(&self) -> Result<(), InstallError> {
        if self.trouble.is_full() {
            Err(InstallError::DiskFull { path: "the new state".into() })
        } else {
            Ok(())
        }
    }
}

impl<I: Installation> Installation for HurtInstallation<I> {
    fn is_complete(&self) -> bool {
        self.inner.is_complete()
    }

    fn missing(&mut self, max: usize) -> Result<Vec<Vec<u8>>, InstallError> {
        self.inner.missing(max)
    }

    fn offer(&mut self, name: &[u8], bytes: &[u8]) -> Result<Offered, InstallError> {
        self.room()?;
        self.inner.offer(name, bytes)
    }

    fn progress(&self) -> Progress {
        self.inner.progress()
    }

    fn prepare(self) -> Result<(), InstallError> {
        self.room()?;
        self.inner.prepare()
    }
}

/// The disk of such a machine, asked how much is free.
pub(crate) struct Probed(pub(crate) Arc<Trouble>);

impl fmt::Display for Probed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the simulated disk")
    }
}

impl DiskProbe for Probed {
    fn free_bytes(&self) -> io::Result<u64> {
        Ok(if self.0.is_disk_full() { 0 } else { u64::MAX })
    }

    fn write(&self) -> io::Result<()> {
        if self.0.is_full() { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}
