//! The pace of receivers, and whether publishers wait for slow ones.
//!
//! A receiver that reads is waited for, so that accepted messages reach it. But any subscriber of a
//! topic could slow its publishers down by reading slowly. So a receiver is waited for only while
//! it takes [`LIVE_MESSAGES`] a second, and only while it is sent at least the messages or the
//! bytes per second of [`Floor`]: publishers are never slowed down below that on its account.
//!
//! Counted by windows of a second: this one, and the share of the one before that is within a
//! second of now. It must never know queues, topics, peers.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use router::Shard;

/// A receiver with waiting messages that took fewer than these within two windows is not waited
/// for.
pub(crate) const LIVE_MESSAGES: u64 = 20;
const WINDOW: Duration = Duration::from_secs(1);

/// Rates below which publishers do not wait for a receiver.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Floor {
    pub(crate) messages_per_second: u64,
    pub(crate) bytes_per_second: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct WindowCounts {
    messages: u64,
    bytes: u64,
    taken: u64,
}

#[derive(Debug)]
pub(crate) struct Pace {
    window: Instant,
    this: WindowCounts,
    before: WindowCounts,
    /// Since when something waits for it.
    waiting_since: Option<Instant>,
}

impl Pace {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            window: now,
            this: WindowCounts::default(),
            before: WindowCounts::default(),
            waiting_since: None,
        }
    }

    fn advance_window(&mut self, now: Instant) {
        let age = now.saturating_duration_since(self.window);
        if age >= WINDOW {
            self.before = if age < WINDOW * 2 { self.this } else { WindowCounts::default() };
            self.this = WindowCounts::default();
            // Windows follow one another without gaps, or start over after a pause.
            self.window = if age < WINDOW * 2 { self.window + WINDOW } else { now };
        }
    }

    /// A message of `bytes` bytes was put into its queue.
    pub(crate) fn queued(&mut self, bytes: usize, now: Instant) {
        self.advance_window(now);
        self.this.messages += 1;
        self.this.bytes += bytes as u64;
        self.waiting_since.get_or_insert(now);
    }

    pub(crate) fn taken(&mut self, now: Instant) {
        self.advance_window(now);
        self.this.taken += 1;
    }

    pub(crate) fn emptied(&mut self) {
        self.waiting_since = None;
    }

    /// Whether publishers wait until its queue has room.
    pub(crate) fn is_waited_for(&mut self, floor: Floor, now: Instant) -> bool {
        self.advance_window(now);
        let fresh =
            self.waiting_since.is_none_or(|since| now.saturating_duration_since(since) < WINDOW);
        let live = fresh || self.this.taken + self.before.taken >= LIVE_MESSAGES;
        live && self.is_above(floor, now)
    }

    /// Whether it is sent as much as the floor states.
    pub(crate) fn is_above(&mut self, floor: Floor, now: Instant) -> bool {
        self.advance_window(now);
        let old =
            WINDOW.saturating_sub(now.saturating_duration_since(self.window)).as_millis() as u64;
        let rate =
            |this: u64, before: u64| this + before.saturating_mul(old) / WINDOW.as_millis() as u64;
        rate(self.this.messages, self.before.messages) >= floor.messages_per_second
            || rate(self.this.bytes, self.before.bytes) >= floor.bytes_per_second
    }
}

/// Paces of clients' messages, by shard.
#[derive(Debug)]
pub(crate) struct Paces {
    floor: Floor,
    /// At most as many as shards are served.
    shards: Mutex<BTreeMap<Shard, Pace>>,
}

impl Paces {
    pub(crate) fn new(floor: Floor) -> Self {
        Self { floor, shards: Mutex::default() }
    }

    /// A message of `bytes` bytes was passed to relay peers.
    pub(crate) fn published(&self, shard: Shard, bytes: usize) {
        let now = Instant::now();
        let mut shards = self.shards.lock().unwrap_or_else(PoisonError::into_inner);
        shards.entry(shard).or_insert_with(|| Pace::new(now)).queued(bytes, now);
    }

    /// Whether a shard may be slowed down.
    pub(crate) fn is_above_floor(&self, shard: Shard, now: Instant) -> bool {
        let mut shards = self.shards.lock().unwrap_or_else(PoisonError::into_inner);
        shards.get_mut(&shard).is_some_and(|pace| pace.is_above(self.floor, now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOOR: Floor = Floor { messages_per_second: 250, bytes_per_second: 8 << 20 };

    /// Publishers of messages of a size try `wanted` a second while the receiver takes `taking` a
    /// second and its queue is full; how many a second they get through over ten seconds.
    fn accepted(bytes: usize, wanted: u64, taking: u64) -> u64 {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        let mut accepted = 0;
        for milli in 0..10_000 {
            let now = start + Duration::from_millis(milli);
            let times = |rate: u64| (milli + 1) * rate / 1000 - milli * rate / 1000;
            (0..times(taking)).for_each(|_| pace.taken(now));
            for _ in 0..times(wanted) {
                if !pace.is_waited_for(FLOOR, now) {
                    pace.queued(bytes, now);
                    accepted += 1;
                }
            }
        }
        accepted / 10
    }

    // Promise: P24 - A slow receiver limits publishers to 250 messages or 8 MiB/s at the lowest.
    #[test]
    fn a_receiver_that_reads_slowly_does_not_slow_publishers_below_the_floor() {
        // Ten a second are not waited for at all, but for the first second.
        assert!(accepted(100, 4_000, 9) >= 3_500);
        for taking in [20, 100, 240] {
            let slowed = accepted(100, 4_000, taking);
            assert!((240..=300).contains(&slowed), "{taking}/s: {slowed}");
            assert_eq!(accepted(100, 200, taking), 200);
        }
        // 8 MiB are 60 messages of 140,000 bytes.
        let slowed = accepted(140_000, 1_000, 30);
        assert!((57..=75).contains(&slowed), "{slowed}");
    }

    #[test]
    fn a_receiver_is_waited_for_while_it_reads_and_much_is_sent() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        assert!(!pace.is_waited_for(FLOOR, start), "nothing was sent");
        (0..250).for_each(|_| pace.queued(1, start));
        assert!(pace.is_waited_for(FLOOR, start), "it had no time to read yet");
        let late = start + Duration::from_millis(1001);
        assert!(!pace.is_waited_for(FLOOR, late), "it took nothing within a second");
        (0..LIVE_MESSAGES).for_each(|_| pace.taken(late));
        (0..250).for_each(|_| pace.queued(1, late));
        assert!(pace.is_waited_for(FLOOR, late));
        pace.emptied();
        assert!(pace.is_waited_for(FLOOR, late));
        assert!(
            !pace.is_waited_for(FLOOR, late + Duration::from_secs(2)),
            "nothing was sent lately"
        );
    }
}
