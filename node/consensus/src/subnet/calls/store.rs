//! Calls that this node requested, and those it gathers.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use commonware_utils::sync::Mutex;
use state::{IngressId, SignedIngress, Validity};

/// Result of verifying a call: its id and when it is valid, or why no block may contain it.
pub(super) type Verdict = Result<(IngressId, Validity), String>;

/// A call whose bytes are those of the digest it was asked for by.
#[derive(Clone)]
pub(in crate::subnet) struct GatheredCall {
    pub(in crate::subnet) signed: SignedIngress,
    /// None until it is needed.
    pub(super) verdict: Option<Verdict>,
}

impl GatheredCall {
    /// Its signature was checked.
    pub(in crate::subnet) fn is_verified(&self) -> bool {
        self.verdict.is_some()
    }
}

#[derive(Default)]
pub(super) struct Store {
    pub(super) calls: BTreeMap<[u8; 32], GatheredCall>,
    pub(super) order: VecDeque<[u8; 32]>,
    bytes: u64,
    /// Asked for, with how many gather it and whether one of them votes; only these are taken.
    pub(super) wanted: BTreeMap<[u8; 32], GatherDemand>,
}

#[derive(Clone, Copy, Default)]
pub(super) struct GatherDemand {
    gathers: usize,
    pub(super) votes: bool,
}

impl Store {
    pub(super) fn put(
        &mut self,
        digest: [u8; 32],
        call: GatheredCall,
        bytes_max: u64,
        calls_max: usize,
    ) {
        self.bytes += call.signed.accounted_bytes();
        self.order.push_back(digest);
        if let Some(before) = self.calls.insert(digest, call) {
            self.bytes -= before.signed.accounted_bytes();
        }
        while (self.bytes > bytes_max || self.calls.len() > calls_max)
            && let Some(oldest) = self.order.pop_front()
        {
            self.remove(&oldest);
        }
        debug_assert!(
            self.bytes <= bytes_max && self.calls.len() <= calls_max,
            "{} calls of {} bytes are stored, {} in order",
            self.calls.len(),
            self.bytes,
            self.order.len()
        );
    }

    pub(super) fn remove(&mut self, digest: &[u8; 32]) {
        if let Some(call) = self.calls.remove(digest) {
            let bytes = call.signed.accounted_bytes();
            assert!(self.bytes >= bytes, "a call of {bytes} bytes of {} in all", self.bytes);
            self.bytes -= bytes;
        }
    }
}

/// Digests that one gathering wants, for as long as it lives.
pub(super) struct GatherGuard {
    pub(super) store: Arc<Mutex<Store>>,
    pub(super) digests: BTreeSet<[u8; 32]>,
    pub(super) votes: bool,
}

impl GatherGuard {
    /// False if more is wanted than there will be room for: it must wait for others to be gathered.
    pub(super) fn request(&mut self, digests: &[[u8; 32]], calls_max: usize) -> bool {
        let mut store = self.store.lock();
        let new: BTreeSet<_> =
            digests.iter().filter(|digest| !self.digests.contains(*digest)).collect();
        if store.wanted.len() + new.len() > calls_max {
            return false;
        }
        for digest in new {
            let wanted = store.wanted.entry(*digest).or_default();
            wanted.gathers += 1;
            wanted.votes |= self.votes;
            self.digests.insert(*digest);
        }
        debug_assert!(
            store.wanted.len() <= calls_max,
            "{} calls are wanted, the most is {calls_max}",
            store.wanted.len()
        );
        true
    }
}

impl Drop for GatherGuard {
    fn drop(&mut self) {
        let mut store = self.store.lock();
        for digest in &self.digests {
            debug_assert!(store.wanted.contains_key(digest), "a call is wanted no more");
            if let Some(wanted) = store.wanted.get_mut(digest) {
                debug_assert!(wanted.gathers > 0, "a call is wanted and nothing gathers it");
                wanted.gathers -= 1;
                if wanted.gathers == 0 {
                    store.wanted.remove(digest);
                }
            }
        }
    }
}
