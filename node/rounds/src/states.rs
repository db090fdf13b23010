//! This node's state, shown to others, and what it counted, put into its blocks.

use std::{any::Any, sync::Arc};

use consensus::{CountedQueries, OfferedState, StateServer};
use execution::{Executor, QueryTally};
use state::{CertifiedReader, ChunkId, Height, ManifestClaim, QueryReport};
use statesync::SnapshotSource;

/// The snapshots of an executor, as consensus serves them.
pub struct States {
    snapshots: SnapshotSource,
    reader: CertifiedReader,
}

impl States {
    /// The states that `executor` serves.
    pub fn new(executor: &Executor) -> Self {
        Self { snapshots: executor.snapshots(), reader: executor.reader() }
    }
}

impl StateServer for States {
    fn offer(&self) -> Option<OfferedState> {
        let state = self.reader.latest()?;
        let (height, certificate) = state.manifest_certificate()?;
        let key = state.key_proof().cloned();
        // Given up early, or not shown again since a restart: then there is nothing to fetch.
        let is_served = self.snapshots.newest()?.0 == height;
        is_served.then_some(OfferedState { height, certificate, key })
    }

    fn oldest(&self) -> Option<Height> {
        self.snapshots.heights().into_iter().min()
    }

    fn chunk(&self, height: Height, name: &[u8]) -> Result<Vec<u8>, String> {
        let chunk = ChunkId::from_bytes(name).ok_or("that is no name of a chunk")?;
        self.snapshots.chunk(height, chunk).map_err(|error| error.to_string())
    }

    fn lease(&self, height: Height) -> Option<Box<dyn Any + Send>> {
        self.snapshots.lease(height).map(|lease| Box::new(lease) as _)
    }

    fn read_offer(&self, certificate: &[u8]) -> Option<ManifestClaim> {
        ManifestClaim::read(certificate)
    }
}

/// Queries that an executor counted, as blocks report them.
pub struct ExecutorQueries(pub Arc<QueryTally>);

impl CountedQueries for ExecutorQueries {
    fn report(&self, height: Height) -> Option<QueryReport> {
        self.0.report(height)
    }
}
