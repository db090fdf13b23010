//! The certificate of a canister's certified data, which each query of the canister may read: the
//! newest one that was made is kept, for the queries of one canister that follow each other.
//!
//! Bound: one certificate of at most [`CERTIFICATE_BYTES`]: a hash for each doubling of the number
//! of canisters. A longer one is not kept. It is dropped when another canister or another state is
//! asked.

use std::sync::{Arc, Mutex, PoisonError};

use limits::CERTIFICATE_BYTES;
use state::{CanisterId, CertifiedState, Digest};

/// See the module.
#[derive(Default)]
pub(super) struct DataCertificate(Mutex<Option<CachedCertificate>>);

struct CachedCertificate {
    canister_id: CanisterId,
    /// Of the state; equal roots have equal paths.
    root: Digest,
    bytes: Arc<[u8]>,
}

impl DataCertificate {
    /// The certificate of `canister_id` in `state`.
    pub(super) fn get(&self, state: &CertifiedState, canister_id: CanisterId) -> Arc<[u8]> {
        let root = state.root();
        if let Some(kept) = &*self.0.lock().unwrap_or_else(PoisonError::into_inner)
            && (kept.canister_id, kept.root) == (canister_id, root)
        {
            return Arc::clone(&kept.bytes);
        }
        let bytes: Arc<[u8]> = state.certificate(&[path_of(&canister_id)]).into();
        if bytes.len() as u64 <= CERTIFICATE_BYTES {
            let kept = CachedCertificate { canister_id, root, bytes: Arc::clone(&bytes) };
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(kept);
        }
        bytes
    }
}

fn path_of(canister_id: &CanisterId) -> Vec<Vec<u8>> {
    vec![b"canister".to_vec(), canister_id.as_slice().to_vec(), b"certified_data".to_vec()]
}

#[cfg(test)]
mod tests {
    use state::{
        CanisterMap, CanisterState, Height, HistoryLimits, IngressHistory, Settings, SubnetInfo,
        SubnetMetrics, SubnetTree, SubnetType, Time, UncertifiedState,
    };

    use super::*;
    use crate::ExecutorConfig;

    fn state(certified_data: &[u8]) -> CertifiedState {
        let canister = |number| {
            let id = ExecutorConfig::canister_id(number);
            let canister = CanisterState::new(id, vec![], Settings::default(), 0, Time(1));
            Arc::new(CanisterState { certified_data: certified_data.to_vec(), ..canister })
        };
        let mut canisters: CanisterMap = (0..5).map(canister).collect();
        let limits = HistoryLimits { bytes_max: 1 << 20, unfinished_max: 1 };
        let tree = SubnetTree::new(SubnetInfo {
            subnet_id: ExecutorConfig::canister_id(9),
            public_key_der: vec![1; 133],
            subnet_type: SubnetType::Application,
            canister_ranges: vec![],
            nodes: vec![],
        });
        let state = UncertifiedState::new(
            Height(1),
            Time(1),
            Arc::new(tree),
            SubnetMetrics::default(),
            &mut canisters,
            &mut IngressHistory::new(limits),
            None,
        );
        state.certify(vec![0; 48])
    }

    #[test]
    fn certificate_is_of_the_state_and_canister_asked_for_whatever_is_kept() {
        let kept = DataCertificate::default();
        let (one, other) = (state(b"one"), state(b"other"));
        for (state, number) in [(&one, 1), (&one, 1), (&one, 2), (&other, 2), (&one, 2), (&one, 7)]
        {
            let id = ExecutorConfig::canister_id(number);
            assert_eq!(*kept.get(state, id), *state.certificate(&[path_of(&id)]));
        }
        let id = ExecutorConfig::canister_id(3);
        assert!(Arc::ptr_eq(&kept.get(&one, id), &kept.get(&one, id)), "made once");
    }
}
