//! Why updates are refused.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Parts of the node that can have a reason. Of several, the first of this list is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// The node is shutting down.
    Stopping,
    /// A round waits for this machine.
    Round,
    /// No block is made without the machine's random source.
    Randomness,
    /// A checkpoint cannot be made.
    Checkpoint,
    /// The block log accepts no writes.
    Log,
    /// The records of votes and blocks for agreement cannot be stored.
    Agreement,
    /// A state that is fetched cannot be written.
    StateSync,
    /// Less of the disk is free than the reserve.
    Disk,
    /// A round or a checkpoint has not ended for too long, for none of the reasons above.
    Stalled,
}

/// Reasons to refuse updates, one per [`Cause`]. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Health(Arc<Mutex<BTreeMap<Cause, String>>>);

impl Health {
    /// Nothing is wrong.
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Cause, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses updates with `reason` until [`Self::withdraw`]. Whether it is another reason than
    /// before.
    pub fn refuse(&self, cause: Cause, reason: String) -> bool {
        let mut reasons = self.lock();
        let is_new = reasons.get(&cause) != Some(&reason);
        reasons.insert(cause, reason);
        is_new
    }

    /// Withdraws the cause's reason. Returns whether it had one.
    pub fn withdraw(&self, cause: Cause) -> bool {
        self.lock().remove(&cause).is_some()
    }

    /// Whether the cause has a reason.
    pub fn has(&self, cause: Cause) -> bool {
        self.lock().contains_key(&cause)
    }

    /// Why updates are refused, if they are.
    pub fn refusing(&self) -> Option<String> {
        self.lock().values().next().cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_withdraws_its_own_reason_only() {
        let health = Health::new();
        assert_eq!(health.refusing(), None);
        assert!(health.refuse(Cause::Disk, "full".into()));
        assert!(!health.refuse(Cause::Disk, "full".into()));
        assert!(health.refuse(Cause::Round, "waits".into()));
        assert_eq!(health.refusing().as_deref(), Some("waits"));
        assert!(health.withdraw(Cause::Round) && !health.withdraw(Cause::Round));
        assert_eq!(health.refusing().as_deref(), Some("full"));
        assert!(health.has(Cause::Disk) && health.withdraw(Cause::Disk));
        assert_eq!(health.refusing(), None);
    }
}
