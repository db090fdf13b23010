//! Roots of the tree of members that are valid now.
//!
//! The reader of the contract replaces them; verification looks them up. Bounds: [`ROOTS_MAX`]
//! roots. A set without roots accepts no message. It must never know where roots come from.

use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};

/// The reference takes the last 50 roots as valid.
pub(crate) const ROOTS_MAX: usize = 64;
/// Age from which on roots are stale. The contract is asked at least every few seconds while
/// messages come, so several requests have failed by then.
const STALE: Duration = Duration::from_secs(60);

/// How current the roots are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RootsState {
    /// Replaced lately, with the time since then.
    Fresh(Duration),
    /// Not replaced for a while: members that registered since are not known.
    Stale(Duration),
    /// There are none: no message can be judged.
    Absent,
}

/// The valid roots, shared between their reader and verification.
#[derive(Debug)]
pub(crate) struct Roots {
    current: watch::Sender<Current>,
    wanted: Notify,
}

#[derive(Clone, Debug, Default)]
struct Current {
    /// Newest first.
    roots: Vec<[u8; 32]>,
    replaced: Option<Instant>,
}

impl Default for Roots {
    fn default() -> Self {
        Self { current: watch::Sender::new(Current::default()), wanted: Notify::new() }
    }
}

impl Roots {
    /// Whether a root, little-endian as in a proof, is valid now.
    pub(crate) fn contains(&self, root: &[u8; 32]) -> bool {
        self.current.borrow().roots.contains(root)
    }

    /// How current the roots are.
    pub(crate) fn state(&self) -> RootsState {
        self.state_at(Instant::now())
    }

    fn state_at(&self, now: Instant) -> RootsState {
        let current = self.current.borrow();
        let age = current.replaced.map(|at| now.saturating_duration_since(at));
        match age.filter(|_| !current.roots.is_empty()) {
            None => RootsState::Absent,
            Some(age) if age < STALE => RootsState::Fresh(age),
            Some(age) => RootsState::Stale(age),
        }
    }

    /// Replaces the roots by those that are valid now, newest first. Of more than [`ROOTS_MAX`] the
    /// oldest are left out.
    pub(crate) fn replace(&self, mut roots: Vec<[u8; 32]>) {
        roots.truncate(ROOTS_MAX);
        roots.shrink_to_fit();
        self.current.send_replace(Current { roots, replaced: Some(Instant::now()) });
    }

    /// Waits until a message names a root that is not known. For the one reader of the contract,
    /// which bounds how often it asks.
    pub(crate) async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// Waits until a root is valid, for at most `time`, and has the contract asked. Returns whether
    /// it is valid.
    pub(super) async fn wait_for(&self, root: &[u8; 32], time: Duration) -> bool {
        let mut current = self.current.subscribe();
        let found = async {
            loop {
                if current.borrow_and_update().roots.contains(root) {
                    return true;
                }
                self.wanted.notify_one();
                if current.changed().await.is_err() {
                    return false;
                }
            }
        };
        tokio::time::timeout(time, found).await.unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_root_is_valid_until_there_are_any_and_the_oldest_leave() {
        let roots = Roots::default();
        assert_eq!((roots.contains(&[0; 32]), roots.state()), (false, RootsState::Absent));
        roots.replace((0..100).map(|number| [number; 32]).collect());
        assert!(roots.contains(&[0; 32]) && roots.contains(&[63; 32]));
        assert!(!roots.contains(&[64; 32]));
        assert!(matches!(roots.state(), RootsState::Fresh(_)));
        let later = Instant::now() + STALE;
        assert!(matches!(roots.state_at(later), RootsState::Stale(age) if age >= STALE / 2));
        roots.replace(Vec::new());
        assert_eq!(roots.state(), RootsState::Absent);
    }

    #[tokio::test]
    async fn an_unknown_root_has_the_contract_asked_and_is_waited_for() {
        let roots = std::sync::Arc::new(Roots::default());
        let reader = roots.clone();
        let reading = tokio::spawn(async move {
            reader.wanted().await;
            reader.replace(vec![[1; 32]]);
            reader.wanted().await;
            reader.replace(vec![[2; 32], [1; 32]]);
        });
        assert!(roots.wait_for(&[2; 32], Duration::from_secs(60)).await);
        reading.await.unwrap();
        assert!(!roots.wait_for(&[3; 32], Duration::from_millis(1)).await);
    }
}
