//! Calls of blocks that are long in the log.

use std::collections::{BTreeMap, BTreeSet};

use commonware_cryptography::ed25519::PublicKey;
use state::{Height, SignedIngress};

use super::ingress::RequestedIngress;
use crate::{FinalisedBlock, LogError, block_log::Replay, subnet::deps::Log};

/// Positions in the log that are remembered for peers that ask height by height.
const OLD_PLACES: usize = 8;

/// Reads old blocks for peers that are behind. Each asks height by height, so the place in the log
/// is kept.
pub(super) struct OldBlockReader {
    log: Log,
    places: BTreeMap<PublicKey, (Height, Replay)>,
}

impl OldBlockReader {
    pub(super) fn new(log: Log) -> Self {
        Self { log, places: BTreeMap::new() }
    }

    pub(super) fn calls(
        &mut self,
        to: &PublicKey,
        height: Height,
        digests: &BTreeSet<[u8; 32]>,
    ) -> Vec<RequestedIngress> {
        let block = match self.block(to, height) {
            Ok(Some(block)) => block,
            Ok(None) => return Vec::new(),
            Err(error) => {
                tracing::debug!(%error, height = height.0, "an old block cannot be read for a peer");
                self.places.remove(to);
                return Vec::new();
            }
        };
        let given = |signed: SignedIngress| RequestedIngress { digest: signed.digest(), signed };
        block.ingress.into_iter().map(given).filter(|call| digests.contains(&call.digest)).collect()
    }

    fn block(
        &mut self,
        to: &PublicKey,
        height: Height,
    ) -> Result<Option<FinalisedBlock>, LogError> {
        let mut replay = match self.places.remove(to) {
            Some((next, replay)) if next == height => replay,
            _ => self.log.lock().read_from(Height(height.0.saturating_sub(1))),
        };
        let block = replay.next_block()?.map(|logged| logged.block);
        if self.places.len() >= OLD_PLACES {
            self.places.pop_first();
        }
        self.places.insert(to.clone(), (Height(height.0.saturating_add(1)), replay));
        debug_assert!(self.places.len() <= OLD_PLACES, "{} places are kept", self.places.len());
        Ok(block.filter(|block| block.height == height))
    }
}
