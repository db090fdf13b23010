//! When a manifest is made, and when its root becomes part of the certified tree. Replicated: every
//! node counts the same rounds, delta and instructions and so computes the same heights.
//!
//! ```text
//! height H     enough happened since the manifest before: the state after H is given a manifest.
//!              `pending` is H.
//! H + lag, or the next such height if that comes first: the root of H enters the tree. `certified`
//! is (H, root).
//! ```
//!
//! The state after H holds `pending` and not its own root, so that the manifest of H is a function
//! of the state after H; it does hold the root before, so manifests form a chain.

use serde::{Deserialize, Serialize};

use super::LeafHash;
use crate::Height;

/// Work between two manifests; the first bound that is reached counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManifestPace {
    /// Rounds since the manifest before.
    pub rounds: u64,
    /// Bytes of delta written since then.
    pub delta_bytes: u64,
    /// Instructions executed since then.
    pub instructions: u64,
    /// Rounds after which a root enters the tree.
    pub lag_rounds: u64,
}

/// Cost of one round. The same on every node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundCost {
    /// Bytes of delta written.
    pub delta_bytes: u64,
    /// Instructions executed, over all messages.
    pub instructions: u64,
}

/// A root that has to be known now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entering(pub Height);

/// See the module. Part of the subnet's own record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestClock {
    rounds: u64,
    delta_bytes: u64,
    instructions: u64,
    pending: Option<Height>,
    certified: Option<(Height, LeafHash)>,
}

impl ManifestClock {
    /// Height whose manifest is being made, or made and not yet in the tree.
    pub fn pending(&self) -> Option<Height> {
        self.pending
    }

    /// The certified values: a height and the root of its manifest.
    pub fn certified(&self) -> Option<(Height, LeafHash)> {
        self.certified
    }

    /// Counts the round of this height. Returns the height whose root has to enter the tree with
    /// this round; [`ManifestClock::enter`] must follow, and in any case
    /// [`ManifestClock::close`].
    pub fn count(
        &mut self,
        height: Height,
        cost: RoundCost,
        pace: &ManifestPace,
    ) -> Option<Entering> {
        debug_assert!(
            self.pending < Some(height),
            "the round of {height:?} comes after {:?}, which is pending",
            self.pending
        );
        self.rounds += 1;
        self.delta_bytes = self.delta_bytes.saturating_add(cost.delta_bytes);
        self.instructions = self.instructions.saturating_add(cost.instructions);
        let pending = self.pending?;
        let lagged = height.0 >= pending.0.saturating_add(pace.lag_rounds.max(1));
        (lagged || self.is_due(pace)).then_some(Entering(pending))
    }

    /// The root of the pending height.
    pub fn enter(&mut self, entering: Entering, root: LeafHash) {
        debug_assert_eq!(self.pending, Some(entering.0), "the height whose root enters");
        debug_assert!(
            self.certified.is_none_or(|(height, _)| height < entering.0),
            "the root of {:?} enters after {:?}",
            entering.0,
            self.certified
        );
        self.pending = None;
        self.certified = Some((entering.0, root));
    }

    /// Ends the round of this height. True if the state after it is given a manifest.
    pub fn close(&mut self, height: Height, pace: &ManifestPace) -> bool {
        let due = self.is_due(pace);
        if due {
            debug_assert_eq!(self.pending, None, "a height whose root did not enter");
            let certified = self.certified;
            *self = Self { pending: Some(height), certified, ..Self::default() };
        }
        due
    }

    fn is_due(&self, pace: &ManifestPace) -> bool {
        self.rounds >= pace.rounds.max(1)
            || self.delta_bytes >= pace.delta_bytes
            || self.instructions >= pace.instructions
    }
}
