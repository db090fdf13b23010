//! The roots that are valid now. One writer ([`super::contract`]), many readers.
//!
//! Bounds: [`super::contract::ROOTS_MAX`] roots of 32 bytes; a lookup compares with each.

use std::{
    sync::{PoisonError, RwLock},
    time::Instant,
};

/// How many roots are valid, and when they were last replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RootsState {
    pub(crate) count: usize,
    pub(crate) replaced: Option<Instant>,
}

/// Valid roots, as field elements in 32 bytes, little-endian: as proofs in messages have them.
#[derive(Debug, Default)]
pub(crate) struct Roots(RwLock<(Vec<[u8; 32]>, Option<Instant>)>);

impl Roots {
    /// Whether a proof against this root may be valid.
    #[allow(dead_code, reason = "verification calls it")]
    pub(crate) fn contains(&self, root: &[u8; 32]) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).0.contains(root)
    }

    /// The number of valid roots and their age.
    #[allow(dead_code, reason = "verification calls it")]
    pub(crate) fn state(&self) -> RootsState {
        let held = self.0.read().unwrap_or_else(PoisonError::into_inner);
        RootsState { count: held.0.len(), replaced: held.1 }
    }

    /// Replaces all roots, newest first.
    pub(crate) fn replace(&self, roots: Vec<[u8; 32]>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = (roots, Some(Instant::now()));
    }
}
