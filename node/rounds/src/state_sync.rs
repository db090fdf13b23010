//! Taking over a state from peers: execution's side and consensus's, put together.

use std::{path::Path, time::Duration};

use consensus::{CHUNKS_WANTED_MAX, ChunkRequest, Consensus, StateOffer};
use lifecycle::{Cause, Health, Stop};
use statesync::Progress;

use crate::{
    backoff::Backoff,
    clock::Clock,
    error::RoundError,
    replica::{Installation, OfferOutcome, Replica},
};

/// Result of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The state is whole, durable and counts: the node must start again, without another
    /// checkpoint of the old one.
    Ready,
    /// No peer serves it any more. The chunks fetched so far are kept.
    Over,
    /// The node is closing.
    Closing,
}

/// Parts of the loop that state sync uses.
pub(crate) struct StateSyncDeps<'a, K> {
    pub(crate) clock: &'a K,
    pub(crate) stop: &'a Stop,
    pub(crate) health: &'a Health,
    pub(crate) folder: &'a Path,
}

impl<K: Clock> StateSyncDeps<'_, K> {
    /// Waits before a step that the disk refused is retried. Returns whether the node continues.
    async fn wait(&self, backoff: &mut Backoff, reason: String) -> bool {
        if self.health.refuse(Cause::StateSync, reason.clone()) {
            tracing::error!(%reason, "state sync waits until this is mended");
        }
        self.clock.sleep(backoff.next(), self.stop).await;
        !self.stop.is_closing()
    }
}

/// Installs a state while the old one is still served.
pub(crate) async fn sync_state<C: Consensus, R: Replica, K: Clock>(
    replica: &mut R,
    consensus: &mut C,
    offer: StateOffer,
    deps: &StateSyncDeps<'_, K>,
) -> Result<Outcome, RoundError> {
    let began = deps.clock.now();
    let mut backoff = Backoff::default();
    let outcome = loop {
        if deps.stop.is_closing() {
            break Outcome::Closing;
        }
        let attempt = attempt(&mut *replica, consensus, offer, deps).await;
        match attempt {
            Ok((outcome, progress)) => {
                if outcome == Outcome::Ready {
                    log_fetched_state(offer, progress, deps.clock.now().saturating_sub(began));
                }
                break outcome;
            }
            // The chunks fetched so far are kept, and the next attempt resumes from them.
            Err(error) if error.can_heal() => {
                if !deps.wait(&mut backoff, error.with_sources()).await {
                    break Outcome::Closing;
                }
            }
            Err(error) => return Err(error),
        }
    };
    deps.health.withdraw(Cause::StateSync);
    Ok(outcome)
}

fn log_fetched_state(offer: StateOffer, progress: Progress, took: Duration) {
    tracing::info!(
        height = offer.height.0,
        bytes = progress.bytes_total,
        reused = progress.bytes_reused,
        millis = took.as_millis() as u64,
        "a state was fetched from peers"
    );
}

async fn attempt<C: Consensus, R: Replica, K: Clock>(
    replica: &mut R,
    consensus: &mut C,
    offer: StateOffer,
    deps: &StateSyncDeps<'_, K>,
) -> Result<(Outcome, Progress), RoundError> {
    let mut installation =
        replica.install(deps.folder, &offer).map_err(RoundError::BeginStateSync)?;
    let mut want = ChunkRequest::default();
    while !installation.is_complete() {
        if deps.stop.is_closing() {
            return Ok((Outcome::Closing, installation.progress()));
        }
        want.chunks = installation.missing(CHUNKS_WANTED_MAX).map_err(RoundError::StateSync)?;
        // It checked some of the local data and has more to check.
        if want.chunks.is_empty() {
            continue;
        }
        let progress = installation.progress();
        (want.bytes_done, want.bytes_total) = (progress.bytes_done, progress.bytes_total);
        let fetched = consensus.fetch(std::mem::take(&mut want)).await?;
        if fetched.over {
            return Ok((Outcome::Over, progress));
        }
        for (source, name, bytes) in fetched.chunks {
            match installation.offer(&name, &bytes).map_err(RoundError::StateSync)? {
                OfferOutcome::Taken => {
                    deps.health.withdraw(Cause::StateSync);
                }
                OfferOutcome::False(reason) => {
                    tracing::warn!(%reason, "a false chunk");
                    want.faulty_sources.push(source);
                }
                OfferOutcome::NotWanted => {}
            }
        }
    }
    let progress = installation.progress();
    consensus.installed()?;
    installation.prepare().map_err(RoundError::StateSync)?;
    Ok((Outcome::Ready, progress))
}
