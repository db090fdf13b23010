//! Delivery: hands finalised blocks to the driver, one after the other, each once its calls are
//! there, and enters the epochs that they begin.
//!
//! A block whose calls are in the journal is durable without the block log, which is synced only
//! every few blocks ([`crate::block_log`]). Until the log is durable up to it, the block is not
//! acknowledged, so that marshal hands it out again after a crash, and its calls stay in the
//! journal. The last block of an epoch, and one whose calls are not in the journal, are synced at
//! once.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use commonware_consensus::{Heightable as _, types::Height as EngineHeight};
use commonware_cryptography::{Digested, Digestible as _, ed25519::PublicKey};
use commonware_p2p::Sender;
use commonware_runtime::{Clock, Spawner};
use commonware_utils::{Acknowledgement as _, acknowledgement::Exact, channel::mpsc};
use futures::{SinkExt as _, channel::oneshot};
use rand_core::CryptoRng;
use state::{AgreedRound, Height, OutcallAnswer, Time};
use tokio::sync::watch;

use super::{
    super::{
        DeliveredBlock, Input, StartError,
        block::{Block, Digest},
        calls::Calls,
        deps::Deps,
        published::DeliveryProgress,
    },
    Mailbox, Peering,
};
use crate::FinalisedBlock;

/// Between two tries to take up a share.
const RETRY: Duration = Duration::from_secs(5);

pub(super) struct Delivery<S> {
    pub(super) deps: Arc<Deps>,
    pub(super) delivery_tx: watch::Sender<DeliveryProgress>,
    pub(super) calls: Calls<S>,
    pub(super) input_tx: futures::channel::mpsc::Sender<Input>,
    pub(super) marshal: Mailbox,
    /// Marshal keeps no blocks below.
    pub(super) pruned: Height,
    pub(super) peering: Peering,
    /// Blocks that are not durable in the block log, at most [`super::UNACKNOWLEDGED_MAX`].
    pub(super) unacknowledged: VecDeque<PendingBlock>,
}

/// A block that was handed out.
pub(super) struct PendingBlock {
    height: EngineHeight,
    digest: Digest,
    time: Time,
    ack: Exact,
}

impl<S: Sender<PublicKey = PublicKey>> Delivery<S> {
    /// Ends when the driver does. Sends the durable blocks to `durable_tx`.
    pub(super) async fn run<E: Clock + Spawner + CryptoRng>(
        mut self,
        context: E,
        mut deliveries_rx: mpsc::Receiver<(Digested<Block>, Exact)>,
        durable_tx: mpsc::Sender<(EngineHeight, Digest)>,
    ) {
        while let Some((block, ack)) = deliveries_rx.recv().await {
            self.unacknowledged.push_back(PendingBlock {
                height: block.height(),
                digest: block.digest(),
                time: block.inner().time,
                ack,
            });
            let Some(durable) = self.deliver(&context, block.inner()).await else {
                // Not to be taken for a defect: the node is ending.
                self.unacknowledged.drain(..).for_each(|block| std::mem::forget(block.ack));
                return;
            };
            self.acknowledge(durable, &durable_tx).await;
        }
    }

    /// The block log is durable up to this height.
    async fn acknowledge(
        &mut self,
        durable: Height,
        durable_tx: &mpsc::Sender<(EngineHeight, Digest)>,
    ) {
        let count = self.unacknowledged.partition_point(|block| block.height.get() <= durable.0);
        let Some(time) = count.checked_sub(1).map(|last| self.unacknowledged[last].time) else {
            return;
        };
        let acknowledged: Vec<_> = self.unacknowledged.drain(..count).collect();
        if let Err(error) = self.deps.journal.drop_through(durable, time) {
            tracing::warn!(%error, "the journal of calls voted for cannot be shortened");
        }
        for PendingBlock { height, digest, ack, .. } in acknowledged {
            ack.acknowledge();
            // The loop over epochs may be gone; that ends this task too.
            let _ = durable_tx.send((height, digest)).await;
        }
        let floor = self.deps.published.execution_rx.borrow().floor;
        if floor > self.pruned {
            self.marshal.prune(EngineHeight::new(floor.0));
            self.pruned = floor;
        }
    }

    /// Returns when the block is in the block log: the height up to which that is durable.
    async fn deliver<E: Clock + Spawner + CryptoRng>(
        &mut self,
        context: &E,
        block: &Block,
    ) -> Option<Height> {
        let height = Height(block.height.get());
        let logged = self.deps.published.logged;
        if height <= logged {
            // Durable before a restart.
            return Some(logged);
        }
        let calls = self.calls.gather(context, &block.ingress, Some(height), None).await;
        let ingress: Vec<_> = calls.into_iter().map(|call| call.signed).collect();
        let of_users = ingress.iter().filter(|signed| !OutcallAnswer::is_in(signed)).count() as u64;
        let epoch = self.deps.resharing.summary().epoch();
        let key = self.deps.resharing.apply(context, block).await.ok()?;
        let ends_epoch = self.deps.resharing.summary().epoch() != epoch;
        let names = block.ingress.iter().map(|name| name.id).collect();
        let executed = self.deps.published.execution_rx.borrow().executed;
        self.delivery_tx.send_modify(|progress| progress.add_block(height, names, executed));
        let is_held = !ends_epoch && self.deps.journal.holds_durably(&block.ingress, height);
        let (logged_tx, logged_rx) = oneshot::channel();
        let block_of_calls = FinalisedBlock {
            height,
            time: block.time,
            randomness: block.randomness(),
            ingress,
            key,
            agreed: Some(AgreedRound {
                epoch: block.round.epoch().get(),
                view: block.round.view().get(),
            }),
            queries: block.queries.clone().map(|report| Box::new(report.0)),
        };
        let delivered = DeliveredBlock { block: block_of_calls, is_held, logged_tx };
        self.input_tx.send(Input::Block(delivered)).await.ok()?;
        let durable = logged_rx.await.ok()?;
        if !block.ingress.is_empty() {
            self.deps.pool.remove(&block.ingress, of_users);
            self.calls.drop_delivered(&block.ingress);
        }
        // Before anybody executes the next block.
        if ends_epoch && !self.enter(context, height).await {
            let _ = self.input_tx.send(Input::Left(height)).await;
            return None;
        }
        Some(durable)
    }

    /// Takes part in the epoch that begins, if this node does.
    async fn enter(&mut self, context: &(impl Clock + Spawner), last: Height) -> bool {
        let member = self.deps.schedule.at(last).is_some_and(|signers| signers.share.is_some());
        let summary = self.deps.resharing.summary();
        let entered = loop {
            let resharing = self.deps.resharing.clone();
            let entered = context
                .child("enter")
                .shared(true)
                .spawn(move |_| async move { resharing.enter() });
            match entered.await {
                Ok(Ok(entered)) => break entered,
                // The disk may be full, and get room again.
                Ok(Err(error @ StartError::Share(_))) => {
                    tracing::error!(%error, epoch = summary.epoch(), "this node waits at the beginning of an epoch");
                    context.sleep(RETRY).await;
                }
                Ok(Err(error)) => {
                    tracing::error!(%error, epoch = summary.epoch(), "this node cannot take part in the epoch that begins");
                    return false;
                }
                // The node is ending.
                Err(_) => return false,
            }
        };
        if !self.deps.resharing.is_current_or_next_member() && member {
            tracing::info!(
                epoch = summary.epoch(),
                "this node is no longer a member of the subnet"
            );
            return false;
        }
        let change = match (member, entered.signers.share.is_some()) {
            (false, true) => Some("this node is a member of the subnet from here on"),
            (true, false) => Some("this node follows this epoch without a vote"),
            _ => None,
        };
        if let Some(change) = change {
            tracing::info!(epoch = summary.epoch(), "{change}");
        }
        tracing::info!(
            epoch = summary.epoch(),
            members = summary.members().len(),
            "a new epoch: the committee that holds the subnet's key{}",
            if u64::from(summary.key_epoch().0) == summary.epoch() {
                " has new shares"
            } else {
                " stays"
            }
        );
        self.deps.schemes.insert(entered.epoch, entered.scheme);
        self.deps.schedule.begin(entered.from, entered.signers);
        self.deps.pool.set_node_count(summary.members().len());
        (self.peering)(&summary);
        true
    }
}
