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

/// A reason to refuse updates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// As the operator reads it: in the log and on `/health`.
    pub text: String,
    /// As clients read it: without paths and commands of the operator.
    pub client_text: String,
}

/// Reasons to refuse updates, one per [`Cause`]. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Health(Arc<Mutex<BTreeMap<Cause, Reason>>>);

impl Health {
    /// Nothing is wrong.
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Cause, Reason>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses updates with `reason` until [`Self::withdraw`]. Whether it is another reason than
    /// before.
    pub fn refuse(&self, cause: Cause, reason: String) -> bool {
        self.refuse_with(cause, Reason { client_text: reason.clone(), text: reason })
    }

    /// The same where clients read another text than the operator.
    pub fn refuse_with(&self, cause: Cause, reason: Reason) -> bool {
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
    pub fn reason(&self) -> Option<Reason> {
        self.lock().values().next().cloned()
    }

    /// The same as the operator reads it.
    pub fn refusing(&self) -> Option<String> {
        self.reason().map(|reason| reason.text)
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

    #[test]
    fn clients_read_a_text_of_their_own_where_there_is_one() {
        let health = Health::new();
        health.refuse(Cause::Disk, "full".into());
        let client_text = |health: &Health| health.reason().map(|reason| reason.client_text);
        assert_eq!(client_text(&health).as_deref(), Some("full"));
        let reason = Reason { text: "waits: run this".into(), client_text: "waits".into() };
        assert!(health.refuse_with(Cause::Round, reason.clone()));
        assert!(!health.refuse_with(Cause::Round, reason.clone()));
        assert_eq!((health.refusing(), health.reason()), (Some(reason.text.clone()), Some(reason)));
    }
}
