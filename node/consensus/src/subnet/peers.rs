//! Limits on the work that one peer may cause, and the treatment of peers that exceed them.
//!
//! Every kind of work that a message can cause has a [`Meter`]: a rate per second and peer, with a
//! burst. Work beyond it is not done. Honest members stay well below, since the same constants
//! bound what they send, and work that is not done for them is made up by other ways. A peer that
//! continues anyway, and one that sends a message that no honest member can send, is cut off: the
//! network drops the connection and accepts none from it for [`BLOCKED`].
//!
//! Bounded: a meter remembers [`PEERS_MAX`] peers.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use commonware_cryptography::ed25519::PublicKey;
use commonware_p2p::Blocker;
use commonware_utils::sync::Mutex;

/// A peer that was cut off may connect again after this time: long enough that whatever it costs
/// per connection is nothing, short enough that a node that was repaired is soon back.
pub(super) const BLOCKED: Duration = Duration::from_secs(300);
/// Members of two epochs, and those who are to be members.
const PEERS_MAX: usize = 4 * genesis::NODES_MAX;
/// Refusals of work after which a peer is cut off, if they come faster than they are forgotten.
const STRIKES_MAX: i64 = 256;
/// Refusals forgotten per second: more than an honest node that asks again and again brings about.
const STRIKES_PER_SECOND: u64 = 16;

/// Grants are limited to this number of bursts.
const GRANTED_BURSTS: u64 = 4;

/// How much of something a peer may cause.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    pub(super) per_second: u64,
    /// At once, after a while without any. A single amount may be larger.
    pub(super) burst: u64,
}

#[derive(Clone, Copy)]
struct Bucket {
    /// Amount left; negative after an amount that was larger than that.
    level: i64,
    at: SystemTime,
}

/// Amounts that each peer has left at a rate.
pub(super) struct Meter {
    rate: Rate,
    peers: BTreeMap<PublicKey, Bucket>,
}

impl Meter {
    pub(super) fn new(rate: Rate) -> Self {
        Self { rate, peers: BTreeMap::new() }
    }

    fn bucket(&mut self, peer: &PublicKey, now: SystemTime) -> &mut Bucket {
        if self.peers.len() >= PEERS_MAX && !self.peers.contains_key(peer) {
            self.peers.pop_first();
        }
        let Rate { per_second, burst } = self.rate;
        let burst = i64::try_from(burst).unwrap_or(i64::MAX);
        let bucket = self.peers.entry(peer.clone()).or_insert(Bucket { level: burst, at: now });
        let since = now.duration_since(bucket.at).unwrap_or_default();
        let gained = since.as_nanos().saturating_mul(u128::from(per_second)) / 1_000_000_000;
        if gained > 0 {
            let gained = i64::try_from(gained).unwrap_or(i64::MAX);
            // Grants above the burst remain.
            bucket.level = bucket.level.saturating_add(gained).min(burst.max(bucket.level));
            bucket.at = now;
        }
        bucket
    }

    /// Takes `amount`, if the peer has anything left.
    pub(super) fn spend(&mut self, peer: &PublicKey, amount: u64, now: SystemTime) -> bool {
        let bucket = self.bucket(peer, now);
        if bucket.level <= 0 {
            return false;
        }
        bucket.level = bucket.level.saturating_sub(i64::try_from(amount).unwrap_or(i64::MAX));
        true
    }

    /// Raises the amount that the peer may cause by `amount`, because this node requested it; up to
    /// a few bursts, so that a peer that never answers cannot save up.
    pub(super) fn grant(&mut self, peer: &PublicKey, amount: u64, now: SystemTime) {
        let most =
            i64::try_from(self.rate.burst.saturating_mul(GRANTED_BURSTS)).unwrap_or(i64::MAX);
        let bucket = self.bucket(peer, now);
        let granted = bucket.level.saturating_add(i64::try_from(amount).unwrap_or(i64::MAX));
        bucket.level = granted.min(most.max(bucket.level));
    }
}

pub(super) type BlockPeer = Arc<dyn Fn(&PublicKey) + Send + Sync>;

/// Cuts off by the network's own means.
pub(super) fn block_with<B: Blocker<PublicKey = PublicKey>>(blocker: B) -> BlockPeer {
    let blocker = Mutex::new(blocker);
    Arc::new(move |peer| {
        let _ = blocker.lock().block(peer.clone());
    })
}

/// Judges peers. Copies share everything.
#[derive(Clone)]
pub(super) struct PeerScorer {
    block: BlockPeer,
    strikes: Arc<Mutex<Meter>>,
}

impl PeerScorer {
    pub(super) fn new(block: BlockPeer) -> Self {
        let rate = Rate { per_second: STRIKES_PER_SECOND, burst: STRIKES_MAX as u64 };
        Self { block, strikes: Arc::new(Mutex::new(Meter::new(rate))) }
    }

    /// The peer sent what no honest member can send.
    pub(super) fn report_fault(&self, peer: &PublicKey, what: &str) {
        tracing::warn!(%peer, what, seconds = BLOCKED.as_secs(), "a peer is at fault and is cut off for a while");
        (self.block)(peer);
    }

    /// Work was not done for the peer because it caused too much of it. A peer that continues is
    /// cut off.
    pub(super) fn report_excess(&self, peer: &PublicKey, what: &str, now: SystemTime) {
        if !self.strikes.lock().spend(peer, 1, now) {
            tracing::warn!(%peer, what, seconds = BLOCKED.as_secs(), "a peer floods this node and is cut off for a while");
            (self.block)(peer);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use commonware_cryptography::Signer as _;

    use super::*;

    fn peer(number: u8) -> PublicKey {
        super::super::key::node_key(&[number; 32]).unwrap().public_key()
    }

    fn at(millis: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(millis)
    }

    #[test]
    fn a_peer_gets_its_burst_then_its_rate_and_others_are_not_touched() {
        let mut meter = Meter::new(Rate { per_second: 10, burst: 20 });
        let taken = |meter: &mut Meter, number, now| {
            (0..100).filter(|_| meter.spend(&peer(number), 1, at(now))).count()
        };
        assert_eq!(taken(&mut meter, 1, 0), 20);
        assert_eq!(taken(&mut meter, 1, 1_000), 10);
        assert_eq!(taken(&mut meter, 2, 1_000), 20);
        assert_eq!(taken(&mut meter, 1, 60_000), 20);
        // Looked at more often than anything is gained, it gains all the same.
        assert_eq!((60_000..61_000).filter(|now| meter.spend(&peer(1), 1, at(*now))).count(), 9);
    }

    #[test]
    fn one_large_amount_is_paid_for_afterwards() {
        let mut meter = Meter::new(Rate { per_second: 10, burst: 20 });
        assert!(meter.spend(&peer(1), 120, at(0)));
        assert!(!meter.spend(&peer(1), 1, at(9_000)));
        assert!(meter.spend(&peer(1), 1, at(10_100)));
        meter.grant(&peer(1), 1_000, at(10_100));
        assert!(
            meter.spend(&peer(1), 79, at(12_000)),
            "no more than four bursts, which time does not take away"
        );
        assert!(meter.spend(&peer(1), 1, at(12_000)));
        assert!(!meter.spend(&peer(1), 1, at(12_000)));
    }

    #[test]
    fn metered_peers_are_bounded() {
        let mut meter = Meter::new(Rate { per_second: 10, burst: 20 });
        for number in 0..=255 {
            meter.spend(&peer(number), 1, at(0));
            assert!(meter.peers.len() <= PEERS_MAX);
        }
    }

    // Promise: P18 - A peer that floods is blocked, and occasional requests are served.
    #[test]
    fn flooding_peer_is_blocked_and_occasional_requests_are_not() {
        let cut = Arc::new(Mutex::new(Vec::new()));
        let scorer = PeerScorer::new({
            let cut = cut.clone();
            Arc::new(move |peer: &PublicKey| cut.lock().push(peer.clone()))
        });
        for millis in (0..600_000).step_by(100) {
            scorer.report_excess(&peer(1), "requests", at(millis));
        }
        assert_eq!(*cut.lock(), []);
        for millis in 0..300 {
            scorer.report_excess(&peer(2), "requests", at(millis));
        }
        assert!(!cut.lock().is_empty() && cut.lock().iter().all(|who| *who == peer(2)));
    }
}
