//! Taking over a state from peers: execution's side and consensus's, put together.

use consensus::{CHUNKS_WANTED_MAX, ChunkRequest, StateOffer};
use lifecycle::Cause;
use statesync::Progress;

use crate::{
    Driver, Observer,
    backoff::Backoff,
    clock::Clock,
    disk::DiskProbe,
    error::RoundError,
    replica::{Installation, OfferOutcome, Replica},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The state is whole, durable and counts: the node must start again, without another
    /// checkpoint of the old one.
    Ready,
    /// No peer serves it any more. The chunks fetched so far are kept.
    Over,
    Closing,
}

impl<R: Replica, K: Clock, D: DiskProbe, O: Observer<R>> Driver<R, K, D, O> {
    /// Installs a state. Nothing is executed meanwhile. States certified before are still served,
    /// and so are queries.
    pub(crate) async fn sync_state(&mut self, offer: StateOffer) -> Result<Outcome, RoundError> {
        let began = self.clock.now();
        let mut backoff = Backoff::default();
        let outcome = loop {
            if self.stop.is_closing() {
                break Outcome::Closing;
            }
            match self.try_sync_state(offer).await {
                Ok((outcome, progress)) => {
                    if outcome == Outcome::Ready {
                        tracing::info!(
                            height = offer.height.0,
                            bytes = progress.bytes_total,
                            reused = progress.bytes_reused,
                            millis = self.clock.now().saturating_sub(began).as_millis() as u64,
                            "a state was fetched from peers"
                        );
                    }
                    break outcome;
                }
                // The chunks fetched so far are kept, and the next attempt resumes from them.
                Err(error) if error.can_heal() => {
                    let reason = error.with_sources();
                    if self.health.refuse(Cause::StateSync, reason.clone()) {
                        tracing::error!(%reason, "state sync waits until this is mended");
                    }
                    self.clock.sleep(backoff.next(), &self.stop).await;
                }
                Err(error) => return Err(error),
            }
        };
        self.health.withdraw(Cause::StateSync);
        Ok(outcome)
    }

    async fn try_sync_state(
        &mut self,
        offer: StateOffer,
    ) -> Result<(Outcome, Progress), RoundError> {
        let mut installation = self.replica.install(&self.settings.folder, &offer)?;
        let mut want = ChunkRequest::default();
        while !installation.is_complete() {
            if self.stop.is_closing() {
                return Ok((Outcome::Closing, installation.progress()));
            }
            want.chunks = installation.missing(CHUNKS_WANTED_MAX).map_err(RoundError::StateSync)?;
            // It checked some of the local data and has more to check.
            if want.chunks.is_empty() {
                continue;
            }
            let progress = installation.progress();
            (want.bytes_done, want.bytes_total) = (progress.bytes_done, progress.bytes_total);
            let fetched = self.consensus.fetch(std::mem::take(&mut want)).await?;
            if fetched.over {
                return Ok((Outcome::Over, progress));
            }
            for (source, name, bytes) in fetched.chunks {
                match installation.offer(&name, &bytes).map_err(RoundError::StateSync)? {
                    OfferOutcome::Taken => {
                        self.health.withdraw(Cause::StateSync);
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
        self.consensus.installed()?;
        installation.prepare().map_err(RoundError::StateSync)?;
        Ok((Outcome::Ready, progress))
    }
}
