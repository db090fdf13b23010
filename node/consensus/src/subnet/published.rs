//! Values that the tasks of one node publish to each other: only the newest counts.
//!
//! Each value has one owner, which alone can change it; all other tasks read. Data that must not be
//! lost are sent as messages instead (see [`super::engine`]).
//!
//! | value | owner | readers |
//! |---|---|---|
//! | [`Agreed`]: rounds, seeds, finalizations | the receiver of the engine's and marshal's reports | proposals, votes, status |
//! | [`Driven`]: executed height, demand, floor | the driver, [`super::Subnet`] | proposals, votes, delivery, state sync, status |
//! | [`Reached`]: blocks handed out | the delivery of finalised blocks | proposals, state sync |
//! | [`Signed`]: certified height, whom this node heard | the task of state roots | state sync, status |
//! | state sync's progress | the task of state sync | status |
//!
//! Everything here is bounded: seeds and finalizations by constants, blocks handed out by the lag
//! that execution may have, heard signatures by the number of members.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use commonware_actor::Feedback;
use commonware_consensus::{Reporter, simplex::types::Activity, types::Round};
use commonware_utils::sync::{Mutex, Notify};
use state::{Height, IngressId};
use tokio::sync::watch;

use super::{
    block::{Digest, Opening},
    scheme::{Scheme, Seed, Seeded as _},
};
use crate::{Demand, SyncProgress};

/// Seeds remembered, one per round.
const SEEDS_KEPT: usize = 64;
/// Finalizations remembered: the next epoch begins with the newest.
const FINALIZATIONS_KEPT: usize = 16;

/// How far a node is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
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
pub(super) struct Driven {
    /// Newest height executed here.
    pub(super) executed: Height,
    /// Work that execution has left.
    pub(super) demand: Demand,
    /// Blocks below are not kept for others.
    pub(super) floor: Height,
}

/// Blocks handed to the driver.
#[derive(Clone, Debug, Default)]
pub(super) struct Reached {
    /// Newest height whose block and calls this node has.
    pub(super) height: Height,
    /// Calls of blocks that were handed out, by height; those at or below the executed height are
    /// dropped when the next block is handed out.
    calls: BTreeMap<Height, Vec<IngressId>>,
}

/// Signatures of the members.
#[derive(Clone, Debug, Default)]
pub(super) struct Signed {
    /// Newest height certified here.
    pub(super) certified: Height,
    /// Newest height each member was heard to sign, by place.
    pub(super) heard: Vec<Height>,
}

/// The readers' side of all values.
pub(super) struct Published {
    /// Newest height that was in the block log when the node started.
    pub(super) logged: Height,
    pub(super) agreed: Agreed,
    pub(super) driven: watch::Receiver<Driven>,
    pub(super) reached: watch::Receiver<Reached>,
    pub(super) signed: watch::Receiver<Signed>,
    pub(super) state_sync: watch::Receiver<Option<SyncProgress>>,
    /// There may be something to put into a block.
    pub(super) work: Arc<Notify>,
}

/// The owners' side. Each is given to its owner when that is started.
pub(super) struct Owned {
    pub(super) driven: watch::Sender<Driven>,
    pub(super) reached: watch::Sender<Reached>,
    pub(super) signed: watch::Sender<Signed>,
    pub(super) state_sync: watch::Sender<Option<SyncProgress>>,
}

impl Published {
    /// `logged` is the newest height in the block log, `executed` that of the state execution
    /// resumes from.
    pub(super) fn new(executed: Height, logged: Height) -> (Arc<Self>, Owned) {
        let (driven, drivens) = watch::channel(Driven { executed, ..Driven::default() });
        let (reached, reacheds) = watch::channel(Reached { height: logged, ..Reached::default() });
        let (signed, signeds) = watch::channel(Signed::default());
        let (state_sync, state_syncs) = watch::channel(None);
        let published = Self {
            logged,
            agreed: Agreed::default(),
            driven: drivens,
            reached: reacheds,
            signed: signeds,
            state_sync: state_syncs,
            work: Arc::default(),
        };
        (Arc::new(published), Owned { driven, reached, signed, state_sync })
    }

    pub(super) fn progress(&self) -> Progress {
        Progress {
            executed: self.driven.borrow().executed,
            certified: self.signed.borrow().certified,
            ..self.agreed.inner.lock().progress
        }
    }

    /// Calls of blocks that are final and not executed at `executed`: out of the pool, and not in
    /// the state.
    pub(super) fn add_unexecuted(&self, executed: Height, to: &mut BTreeSet<IngressId>) {
        let reached = self.reached.borrow();
        let above = reached.calls.range(Height(executed.0.saturating_add(1))..);
        to.extend(above.flat_map(|(_, calls)| calls));
    }

    /// The newest height that at least this number of members signed.
    pub(super) fn heard_by(&self, members: usize) -> Height {
        let mut heard = self.signed.borrow().heard.clone();
        heard.sort_unstable_by(|a, b| b.cmp(a));
        heard.get(members.saturating_sub(1)).copied().unwrap_or_default()
    }
}

/// Waits until the driver shows something else; for ever once there is none, because then the node
/// is ending.
pub(super) async fn changed(driven: &mut watch::Receiver<Driven>) {
    if driven.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

impl Driven {
    /// Execution never goes back.
    pub(super) fn executed(&mut self, height: Height) {
        assert!(height >= self.executed, "{} was executed after {}", height.0, self.executed.0);
        self.executed = height;
    }
}

impl Reached {
    /// A block was handed out while the executed height was `executed`.
    pub(super) fn delivered(&mut self, height: Height, calls: Vec<IngressId>, executed: Height) {
        self.calls = self.calls.split_off(&Height(executed.0.saturating_add(1)));
        self.calls.insert(height, calls);
        self.height = self.height.max(height);
    }
}

impl Signed {
    /// The member at this place signed the state of a height.
    pub(super) fn hear(&mut self, place: usize, height: Height) {
        if self.heard.len() <= place {
            self.heard.resize(place + 1, Height(0));
        }
        self.heard[place] = self.heard[place].max(height);
    }
}

/// The engine's observations. Changed by [`Observer`], by marshal's reports of final blocks, and by
/// the loop over epochs where it begins above a finalization.
#[derive(Default)]
pub(super) struct Agreed {
    inner: Mutex<Seen>,
    /// A seed or a finalization came.
    came: Notify,
}

#[derive(Default)]
struct Seen {
    /// Executed and certified heights are not in it.
    progress: Progress,
    seeds: BTreeMap<Round, Seed>,
    finalizations: BTreeMap<Round, Opening>,
}

impl Agreed {
    /// Ready when the next seed or finalization comes. To be enabled before the last look.
    pub(super) fn came(&self) -> tokio::sync::futures::Notified<'_> {
        self.came.notified()
    }

    pub(super) fn seed(&self, round: Round) -> Option<Seed> {
        self.inner.lock().seeds.get(&round).cloned()
    }

    /// The finalization of this block, the one of the earliest round if there are several.
    pub(super) fn opening(&self, block: &Digest) -> Option<Opening> {
        let inner = self.inner.lock();
        let mut known = inner
            .finalizations
            .values()
            .filter(|finalization| finalization.proposal.payload == *block);
        let first = known.next().cloned()?;
        // The number of choices of a leader that wants to bias the epoch's first block.
        tracing::debug!(
            rounds = known.count() + 1,
            "an epoch begins: rounds its last block was finalised in"
        );
        Some(first)
    }

    /// Everything up to this height is final.
    pub(super) fn finalised_to(&self, height: Height) {
        let mut inner = self.inner.lock();
        inner.progress.finalised = inner.progress.finalised.max(height);
    }

    pub(super) fn finalised(&self, finalization: Opening) {
        {
            let mut inner = self.inner.lock();
            inner.remember(finalization.seed());
            inner.finalizations.insert(finalization.proposal.round, finalization);
            while inner.finalizations.len() > FINALIZATIONS_KEPT {
                inner.finalizations.pop_first();
            }
        }
        self.came.notify_waiters();
    }

    fn remember(&self, seed: Seed) {
        self.inner.lock().remember(seed);
        self.came.notify_waiters();
    }
}

impl Seen {
    fn remember(&mut self, seed: Seed) {
        self.seeds.insert(seed.round, seed);
        while self.seeds.len() > SEEDS_KEPT {
            self.seeds.pop_first();
        }
    }
}

/// Hears what the engine saw.
#[derive(Clone)]
pub(super) struct Observer(pub(super) Arc<Published>);

impl Reporter for Observer {
    type Activity = Activity<Scheme, Digest>;

    fn report(&mut self, activity: Self::Activity) -> Feedback {
        let agreed = &self.0.agreed;
        match activity {
            Activity::Notarization(notarization) | Activity::Certification(notarization) => {
                agreed.remember(notarization.seed());
            }
            Activity::Finalization(finalization) => agreed.finalised(finalization),
            Activity::Nullification(_) => agreed.inner.lock().progress.nullified += 1,
            Activity::ConflictingNotarize(_)
            | Activity::ConflictingFinalize(_)
            | Activity::NullifyFinalize(_) => agreed.inner.lock().progress.equivocations += 1,
            _ => {}
        }
        Feedback::Ok
    }
}
