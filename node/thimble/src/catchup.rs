//! Taking over a state from peers, and showing this node's to them: execution's side and consensus's, put together.

use std::{
    any::Any,
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use consensus::{CHUNKS_WANTED_MAX, Consensus, ConsensusError, IngressPool, StateOffer, StateServer, Want};
use execution::{Executor, InstallError, OfferError, SnapshotSource, StateInstaller};
use limits::Limits;
use state::{CertifiedReader, ChunkId, Height, ManifestClaim};

/// How long to wait before a step that the disk refused is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// This node's state, for others.
pub(crate) struct States {
    pub(crate) snapshots: SnapshotSource,
    pub(crate) reader: CertifiedReader,
}

impl StateServer for States {
    fn offer(&self) -> Option<(Height, Vec<u8>)> {
        let (height, certificate) = self.reader.latest()?.manifest_certificate()?;
        // Given up early, or not shown again since a restart: then there is nothing to fetch.
        (self.snapshots.newest()?.0 == height).then_some((height, certificate))
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

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The state is whole, durable and counts: the node must start again, without another checkpoint of the old one.
    Ready,
    /// Nobody shows it any more. What was fetched is kept.
    Over,
    /// The node is closing.
    Closing,
}

/// Takes a state over while the old one goes on being shown. `refuse` hears what is wrong with the disk.
pub(crate) fn take_over(
    executor: &Executor,
    consensus: &mut impl Consensus,
    offer: StateOffer,
    data_dir: &std::path::Path,
    limits: &Arc<Limits>,
    pool: &IngressPool,
    refuse: impl Fn(String),
) -> Result<Outcome> {
    let began = Instant::now();
    let trouble = |error: InstallError| -> Result<()> {
        // A certified state that this version cannot read or hold is for a person to mend; so is a disk that fails.
        if !error.is_disk_full() {
            return Err(error).context("taking over a state from peers");
        }
        refuse(error.to_string());
        pool.wait(RETRY_AFTER);
        Ok(())
    };
    let mut installer = loop {
        if pool.closing() {
            return Ok(Outcome::Closing);
        }
        let local = executor.local_state()?;
        match StateInstaller::begin(data_dir, offer.height, offer.root, limits.clone(), local) {
            Ok(installer) => break installer,
            Err(error) => trouble(error)?,
        }
    };
    let mut want = Want::default();
    while !installer.is_complete() {
        if pool.closing() {
            return Ok(Outcome::Closing);
        }
        let missing = match installer.missing(CHUNKS_WANTED_MAX) {
            Ok(missing) => missing,
            Err(error) => {
                trouble(error)?;
                continue;
            }
        };
        // It looked through what is here and goes on looking.
        if missing.is_empty() {
            continue;
        }
        let names: BTreeMap<_, _> = missing.iter().map(|chunk| (chunk.to_bytes(), *chunk)).collect();
        let progress = installer.progress();
        want.chunks = missing.iter().map(ChunkId::to_bytes).collect();
        (want.bytes_done, want.bytes_total) = (progress.bytes_done, progress.bytes_total);
        let fetched = consensus.fetch(std::mem::take(&mut want))?;
        if fetched.over {
            return Ok(Outcome::Over);
        }
        for (source, name, bytes) in fetched.chunks {
            let Some(chunk) = names.get(&name) else { continue };
            match installer.offer(*chunk, &bytes) {
                Err(OfferError::Rejected(rejected)) => {
                    if OfferError::Rejected(rejected.clone()).is_peer_fault() {
                        tracing::warn!(%rejected, "a false chunk");
                        want.liars.push(source);
                    }
                }
                Err(OfferError::Install(error)) => trouble(error)?,
                Ok(()) => {}
            }
        }
    }
    let progress = installer.progress();
    loop {
        match consensus.adopt() {
            Ok(()) => break,
            Err(error @ ConsensusError::Floor { .. }) if !pool.closing() => {
                refuse(error.to_string());
                pool.wait(RETRY_AFTER);
            }
            Err(error) => bail!(error),
        }
    }
    // What was fetched is kept when this fails, and the next start goes on from it.
    installer.prepare().context("making the state that was taken over durable")?;
    tracing::info!(
        height = offer.height.0,
        bytes = progress.bytes_total,
        reused = progress.bytes_reused,
        millis = began.elapsed().as_millis() as u64,
        "a state was taken over from peers"
    );
    Ok(Outcome::Ready)
}
