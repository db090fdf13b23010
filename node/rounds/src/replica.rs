//! Interface of execution that the round loop uses.

use std::{collections::BTreeMap, path::Path};

use consensus::StateOffer;
use execution::{Executor, FatalError, RoundResult};
use state::{Batch, ChunkId, Fault, Height};
use statesync::{InstallError, OfferError, Progress, StateInstaller};

use crate::RoundError;

/// Calls of users that the state remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryCapacity {
    /// Calls it could take in beyond those it holds, of any size.
    pub calls: u64,
    /// Of them, calls of the size that its capacity is counted in.
    pub free: u64,
    /// Calls it can hold in all.
    pub capacity: u64,
}

/// The replicated state of a node and what moves it on. See [`execution::Executor`], which is one.
pub trait Replica: Send {
    /// A state that is being fetched from peers.
    type Installation: Installation;

    /// Height of the state.
    fn height(&self) -> Height;

    /// Executes the next batch. `rejected` are the messages of it that operators ruled to be
    /// rejected.
    ///
    /// # Errors
    /// If the node cannot continue, or closes while the round waits for this machine
    /// ([`FatalError::Closing`]).
    fn execute(&mut self, batch: &Batch, rejected: &[Fault]) -> Result<RoundResult, FatalError>;

    /// Shows the state of a height, signed by the subnet.
    fn certify(&mut self, height: Height, signature: Vec<u8>) -> Result<(), FatalError>;

    /// Room for calls of users.
    fn room(&self) -> HistoryCapacity;

    /// A checkpoint should be made before the next batch.
    fn checkpoint_due(&self) -> bool;

    /// A checkpoint must be made before the next batch.
    fn checkpoint_pressing(&self) -> bool;

    /// Makes the state durable. Does nothing when it is already.
    ///
    /// # Errors
    /// When the disk fails; the checkpoint before is intact then, and the call may be repeated if
    /// the error can heal.
    fn checkpoint(&mut self) -> Result<(), FatalError>;

    /// Begins to fetch a state into the node's own folder, alongside the present state.
    fn install(&self, folder: &Path, offer: &StateOffer) -> Result<Self::Installation, RoundError>;
}

/// Result of offering a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OfferOutcome {
    /// It is kept.
    Taken,
    /// It does not match the certified root: the sender is faulty. Holds the reason.
    False(String),
    /// It was not asked for, or is there already.
    NotWanted,
}

/// See [`statesync::StateInstaller`], which is one.
pub trait Installation: Send {
    /// Every chunk is there.
    fn is_complete(&self) -> bool;

    /// Names of up to `max` chunks to fetch next. May give none although some are missing.
    ///
    /// # Errors
    /// When the disk fails; the call may be repeated if the error can heal.
    fn missing(&mut self, max: usize) -> Result<Vec<Vec<u8>>, InstallError>;

    /// Takes a chunk that [`Self::missing`] named.
    ///
    /// # Errors
    /// When it cannot be written; then it is as if it had not been offered.
    fn offer(&mut self, name: &[u8], bytes: &[u8]) -> Result<OfferOutcome, InstallError>;

    /// How far it is.
    fn progress(&self) -> Progress;

    /// Makes the state durable, so that the next start puts it in place.
    ///
    /// # Errors
    /// When the disk fails; what was fetched is kept.
    fn prepare(self) -> Result<(), InstallError>;
}

impl Replica for Executor {
    type Installation = Installer;

    fn height(&self) -> Height {
        self.height()
    }

    fn execute(&mut self, batch: &Batch, rejected: &[Fault]) -> Result<RoundResult, FatalError> {
        self.execute(batch, rejected)
    }

    fn certify(&mut self, height: Height, signature: Vec<u8>) -> Result<(), FatalError> {
        self.certify(height, signature).map(drop)
    }

    fn room(&self) -> HistoryCapacity {
        let history = &self.state().history;
        HistoryCapacity {
            calls: history.room_calls(),
            free: history.free_calls(),
            capacity: history.capacity_calls(),
        }
    }

    fn checkpoint_due(&self) -> bool {
        self.checkpoint_due()
    }

    fn checkpoint_pressing(&self) -> bool {
        self.checkpoint_pressing()
    }

    fn checkpoint(&mut self) -> Result<(), FatalError> {
        self.checkpoint()
    }

    fn install(&self, folder: &Path, offer: &StateOffer) -> Result<Installer, RoundError> {
        let local = self.local_state().map_err(RoundError::LocalState)?;
        let limits = self.config().limits.clone();
        let (height, root) = (offer.height, offer.root);
        let inner = StateInstaller::begin_on(self.disk(), folder, height, root, limits, local)
            .map_err(RoundError::StateSync)?;
        Ok(Installer { inner, names: BTreeMap::new() })
    }
}

/// A [`StateInstaller`] and the names of the chunks it asked for last.
pub struct Installer {
    inner: StateInstaller,
    names: BTreeMap<Vec<u8>, ChunkId>,
}

impl Installation for Installer {
    fn is_complete(&self) -> bool {
        self.inner.is_complete()
    }

    fn missing(&mut self, max: usize) -> Result<Vec<Vec<u8>>, InstallError> {
        let missing = self.inner.missing(max)?;
        let names: Vec<_> = missing.iter().map(ChunkId::to_bytes).collect();
        self.names = names.iter().cloned().zip(missing).collect();
        Ok(names)
    }

    fn offer(&mut self, name: &[u8], bytes: &[u8]) -> Result<OfferOutcome, InstallError> {
        let Some(chunk) = self.names.get(name) else { return Ok(OfferOutcome::NotWanted) };
        match self.inner.offer(*chunk, bytes) {
            Ok(()) => Ok(OfferOutcome::Taken),
            Err(OfferError::Install(error)) => Err(error),
            Err(error @ OfferError::Wrong(_)) => Ok(OfferOutcome::False(error.to_string())),
            Err(OfferError::NotWanted(_)) => Ok(OfferOutcome::NotWanted),
        }
    }

    fn progress(&self) -> Progress {
        self.inner.progress()
    }

    fn prepare(self) -> Result<(), InstallError> {
        self.inner.prepare().map(drop)
    }
}
