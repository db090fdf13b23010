//! Values that the tasks of one node publish to each other: only the newest counts.
//!
//! Each value has one owner, which alone can change it; all other tasks read
//! (`docs/internals/consensus-channels.md`). Data that must not be lost are sent as messages
//! instead (see [`super::engine`]).
//!
//! Everything here is bounded: certificates by a constant, blocks handed out by the lag that
//! execution may have, heard signatures by the number of members.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use commonware_actor::Feedback;
use commonware_consensus::{Reporter, simplex::types::Activity};
use commonware_utils::sync::{Mutex, Notify};
use nidkg::Signature;
use state::{AwaitedRoots, Height, IngressId};
use tokio::sync::watch;

use super::{block::Digest, key::Scheme};
use crate::{Certificate, Demand, SyncProgress};

/// Certificates kept for peers that ask and for blocks.
const CERTIFICATES_KEPT: usize = 16;
const _: () = assert!(CERTIFICATES_KEPT > state::AWAITED_MAX, "awaited ones are among those kept");

/// How far a node is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubnetProgress {
    /// Newest height known to be final.
    pub finalised: Height,
    /// Newest height executed here.
    pub executed: Height,
    /// Newest height certified here.
    pub certified: Height,
    /// Rounds given up without a block since the start.
    pub nullified: u64,
    /// Proofs seen that a node voted twice.
    pub equivocations: u64,
}

/// Progress and demand of the driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ExecutionProgress {
    pub(super) executed: Height,
    pub(super) demand: Demand,
    /// Blocks below are not kept for others.
    pub(super) floor: Height,
}

/// Blocks handed to the driver.
#[derive(Clone, Debug, Default)]
pub(super) struct DeliveryProgress {
    /// Newest height whose block and calls this node has.
    pub(super) height: Height,
    /// Calls of blocks that were handed out, by height; those at or below the executed height are
    /// dropped when the next block is handed out.
    calls: BTreeMap<Height, Vec<IngressId>>,
}

/// Signatures of the members.
#[derive(Clone, Debug, Default)]
pub(super) struct CertificationProgress {
    pub(super) certified: Height,
    /// Certificates of the newest states, and of states that execution waits for.
    certificates: BTreeMap<Height, Certificate>,
    /// Newest height each member was heard to sign, by place.
    pub(super) heard: Vec<Height>,
}

/// The readers' side of all values.
pub(super) struct ProgressReaders {
    /// Newest height that was in the block log when the node started.
    pub(super) logged: Height,
    pub(super) consensus: ConsensusProgress,
    pub(super) execution_rx: watch::Receiver<ExecutionProgress>,
    pub(super) delivery_rx: watch::Receiver<DeliveryProgress>,
    pub(super) certification_rx: watch::Receiver<CertificationProgress>,
    pub(super) state_sync_rx: watch::Receiver<Option<SyncProgress>>,
    /// There may be something to put into a block.
    pub(super) work_available: Arc<Notify>,
}

/// The side of the owners in the engine. Each is given to its owner when that is started.
pub(super) struct ProgressWriters {
    pub(super) delivery_tx: watch::Sender<DeliveryProgress>,
    pub(super) certification_tx: watch::Sender<CertificationProgress>,
    pub(super) state_sync_tx: watch::Sender<Option<SyncProgress>>,
}

impl ProgressReaders {
    /// `logged` is the newest height in the block log, `executed` that of the state execution
    /// resumes from.
    pub(super) fn new(
        executed: Height,
        logged: Height,
    ) -> (Arc<Self>, watch::Sender<ExecutionProgress>, ProgressWriters) {
        let (execution_tx, execution_rx) =
            watch::channel(ExecutionProgress { executed, ..ExecutionProgress::default() });
        let (delivery_tx, delivery_rx) =
            watch::channel(DeliveryProgress { height: logged, ..DeliveryProgress::default() });
        let (certification_tx, certification_rx) = watch::channel(CertificationProgress::default());
        let (state_sync_tx, state_sync_rx) = watch::channel(None);
        let published = Self {
            logged,
            consensus: ConsensusProgress::default(),
            execution_rx,
            delivery_rx,
            certification_rx,
            state_sync_rx,
            work_available: Arc::default(),
        };
        let writers = ProgressWriters { delivery_tx, certification_tx, state_sync_tx };
        (Arc::new(published), execution_tx, writers)
    }

    pub(super) fn progress(&self) -> SubnetProgress {
        SubnetProgress {
            executed: self.execution_rx.borrow().executed,
            certified: self.certification_rx.borrow().certified,
            ..*self.consensus.inner.lock()
        }
    }

    /// Calls of blocks that are final and not executed at `executed`: out of the pool, and not in
    /// the state.
    pub(super) fn add_unexecuted(&self, executed: Height, to: &mut BTreeSet<IngressId>) {
        let reached = self.delivery_rx.borrow();
        let above = reached.calls.range(Height(executed.0.saturating_add(1))..);
        to.extend(above.flat_map(|(_, calls)| calls));
    }

    /// The newest height that at least this number of members signed.
    pub(super) fn signed_by(&self, members: usize) -> Height {
        let mut heard = self.certification_rx.borrow().heard.clone();
        heard.sort_unstable_by(|a, b| b.cmp(a));
        heard.get(members.saturating_sub(1)).copied().unwrap_or_default()
    }
}

/// Waits until the owner of a value shows another; for ever once there is no owner, because then
/// the node is ending.
pub(super) async fn wait_for_change<T>(value_rx: &mut watch::Receiver<T>) {
    if value_rx.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

impl ExecutionProgress {
    /// Execution never goes back.
    pub(super) fn set_executed(&mut self, height: Height) {
        assert!(height >= self.executed, "{} was executed after {}", height.0, self.executed.0);
        self.executed = height;
    }
}

impl DeliveryProgress {
    /// A block was handed out while the executed height was `executed`.
    pub(super) fn add_block(&mut self, height: Height, calls: Vec<IngressId>, executed: Height) {
        self.calls = self.calls.split_off(&Height(executed.0.saturating_add(1)));
        self.calls.insert(height, calls);
        self.height = self.height.max(height);
    }
}

impl CertificationProgress {
    /// The member at this place signed the state of a height.
    pub(super) fn record_signature(&mut self, place: usize, height: Height) {
        if self.heard.len() <= place {
            self.heard.resize(place + 1, Height(0));
        }
        self.heard[place] = self.heard[place].max(height);
    }

    /// The certificate of this state, if it is kept.
    pub(super) fn certificate(&self, height: Height) -> Option<&Certificate> {
        self.certificates.get(&height)
    }

    /// The subnet's signature on this root, if it is kept.
    pub(super) fn signature(&self, root: &[u8; 32]) -> Option<Signature> {
        let mut certificates = self.certificates.values();
        certificates.find(|it| it.root == *root).map(|it| it.signature)
    }

    /// Keeps a verified certificate; drops the oldest that execution does not wait for.
    pub(super) fn add_certificate(&mut self, certificate: Certificate, awaited: &AwaitedRoots) {
        self.certificates.insert(certificate.height, certificate);
        while self.certificates.len() > CERTIFICATES_KEPT {
            let is_unneeded =
                |(_, certificate): &(&Height, &Certificate)| !awaited.contains(&certificate.root);
            let Some(oldest) =
                self.certificates.iter().find(is_unneeded).map(|(height, _)| *height)
            else {
                break;
            };
            self.certificates.remove(&oldest);
        }
    }
}

/// The engine's observations. Changed by [`Observer`] and by marshal's reports of final blocks.
#[derive(Default)]
pub(super) struct ConsensusProgress {
    /// Executed and certified heights are not in it.
    inner: Mutex<SubnetProgress>,
}

impl ConsensusProgress {
    /// Everything up to this height is final.
    pub(super) fn finalised_to(&self, height: Height) {
        let mut progress = self.inner.lock();
        progress.finalised = progress.finalised.max(height);
    }
}

/// Hears what the engine saw.
#[derive(Clone)]
pub(super) struct Observer(pub(super) Arc<ProgressReaders>);

impl Reporter for Observer {
    type Activity = Activity<Scheme, Digest>;

    fn report(&mut self, activity: Self::Activity) -> Feedback {
        let consensus = &self.0.consensus;
        match activity {
            Activity::Nullification(_) => consensus.inner.lock().nullified += 1,
            Activity::ConflictingNotarize(_)
            | Activity::ConflictingFinalize(_)
            | Activity::NullifyFinalize(_) => consensus.inner.lock().equivocations += 1,
            _ => {}
        }
        Feedback::Ok
    }
}
