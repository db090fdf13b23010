//! Delivery records: which messages were accepted, and which of them reached a receiver.
//!
//! Bounds: one bit for each message, sender and receiver; a sequence number that was never issued
//! is damage and allocates nothing. Must never know: connections, payload bytes and the clock.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use hdrhistogram::Histogram;

pub(crate) use cli::lock;

use crate::payload::{Damage, Header};

/// Most messages of one sender in one phase; a bit of each is kept for each receiver.
pub(crate) const SEQUENCES_MAX: u64 = 1 << 27;
/// A message that takes longer counts as late.
pub(crate) const LATE_NANOS: u64 = 10_000_000_000;
/// Longest latency of a histogram, in microseconds.
const MICROS_MAX: u64 = 120_000_000;

/// Latencies in microseconds, up to two minutes, to two digits.
#[derive(Clone, Debug)]
pub(crate) struct Latencies(pub(crate) Histogram<u32>);

impl Default for Latencies {
    fn default() -> Self {
        // The bounds are constants for which this cannot fail.
        Self(Histogram::new_with_bounds(1, MICROS_MAX, 2).unwrap_or_else(|_| {
            unreachable!("1 to {MICROS_MAX} with two digits is a range of a histogram")
        }))
    }
}

impl Latencies {
    /// Records a latency; one above the maximum counts as the maximum.
    pub(crate) fn record(&mut self, nanos: u64) {
        self.0.saturating_record((nanos / 1000).clamp(1, MICROS_MAX));
    }
}

/// A set of sequence numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bits(Vec<u64>);

impl Bits {
    /// Adds a number below [`SEQUENCES_MAX`]; whether it is new.
    pub(crate) fn insert(&mut self, number: u64) -> bool {
        assert!(number < SEQUENCES_MAX, "checked where it was issued");
        let index = (number / 64) as usize;
        if index >= self.0.len() {
            self.0.resize(index + 1, 0);
        }
        let bit = 1 << (number % 64);
        let new = self.0[index] & bit == 0;
        self.0[index] |= bit;
        new
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// How many of these are in `other` too.
    pub(crate) fn count_in(&self, other: &Self) -> u64 {
        self.0.iter().zip(&other.0).map(|(a, b)| u64::from((a & b).count_ones())).sum()
    }
}

/// Sequence numbers of all senders in all phases.
#[derive(Debug)]
pub(crate) struct SequenceCounters {
    run: u64,
    senders: usize,
    /// By phase, then sender.
    next: Vec<AtomicU64>,
}

impl SequenceCounters {
    pub(crate) fn new(run: u64, phases: usize, senders: usize) -> Self {
        Self { run, senders, next: (0..phases * senders).map(|_| AtomicU64::new(0)).collect() }
    }

    /// The next sequence number; `None` when there are no more.
    pub(crate) fn issue(&self, phase: usize, sender: usize) -> Option<u64> {
        let next = self.next.get(phase * self.senders + sender)?;
        let number = next.load(Relaxed);
        // One sender issues its own numbers alone.
        next.store(number + 1, Relaxed);
        (number < SEQUENCES_MAX).then_some(number)
    }

    /// Whether a message with this header was ever sent.
    fn was_issued(&self, header: &Header) -> bool {
        let (phase, sender) = (usize::from(header.phase), usize::from(header.sender));
        header.run == self.run
            && sender < self.senders
            && self
                .next
                .get(phase * self.senders + sender)
                .is_some_and(|next| header.sequence < next.load(Relaxed))
    }
}

/// Messages of one phase that one receiver got.
#[derive(Debug, Default)]
pub(crate) struct PhaseTally {
    /// Sequence numbers that came whole, one set for each sender.
    intact: Vec<Bits>,
    /// Messages that came again.
    pub(crate) double: u64,
    /// Messages that came whole, but more than ten seconds after they were sent.
    pub(crate) late: u64,
    /// Messages whose payload is not what was sent.
    pub(crate) damaged: u64,
    /// From sending to receiving, of all that came whole for the first time.
    pub(crate) delay: Latencies,
}

/// Messages that one receiver got.
#[derive(Debug)]
pub(crate) struct ReceiverTally {
    phases: Vec<PhaseTally>,
}

impl ReceiverTally {
    pub(crate) fn new(phases: usize, senders: usize) -> Self {
        let intact = || vec![Bits::default(); senders];
        let phase = |_| PhaseTally { intact: intact(), ..PhaseTally::default() };
        Self { phases: (0..phases).map(phase).collect() }
    }

    /// Takes what came at `now`, nanoseconds since the start of the run, during phase `current`:
    /// the phase of damaged data is unknown.
    pub(crate) fn record_message(
        &mut self,
        issued: &SequenceCounters,
        came: Result<Header, Damage>,
        current: usize,
        now: u64,
    ) {
        let header = match came {
            Ok(header) if issued.was_issued(&header) => header,
            // Another run's message, on another topic of the same name: not ours to judge.
            Ok(header) if header.run != issued.run => return,
            Ok(_) | Err(_) => {
                if let Some(phase) = self.phases.get_mut(current) {
                    phase.damaged += 1;
                }
                return;
            }
        };
        let Some(phase) = self.phases.get_mut(usize::from(header.phase)) else { return };
        let Some(intact) = phase.intact.get_mut(usize::from(header.sender)) else { return };
        if !intact.insert(header.sequence) {
            phase.double += 1;
            return;
        }
        let delay = now.saturating_sub(header.sent_nanos);
        phase.delay.record(delay);
        if delay > LATE_NANOS {
            phase.late += 1;
        }
    }

    pub(crate) fn phase(&self, phase: usize) -> Option<&PhaseTally> {
        self.phases.get(phase)
    }
}

impl PhaseTally {
    /// How many came whole, each counted once.
    pub(crate) fn intact_count(&self) -> u64 {
        self.intact.iter().map(Bits::count).sum()
    }

    /// Number of messages acknowledged to `sender` that arrived whole.
    pub(crate) fn delivered(&self, sender: usize, accepted: &Bits) -> u64 {
        self.intact.get(sender).map_or(0, |intact| accepted.count_in(intact))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: u64 = 77;

    /// Two senders, of which each issued ten numbers in the first of two phases.
    fn issued() -> SequenceCounters {
        let issued = SequenceCounters::new(RUN, 2, 2);
        for number in 0..10 {
            assert_eq!(issued.issue(0, 0), Some(number));
            assert_eq!(issued.issue(0, 1), Some(number));
        }
        issued
    }

    fn message(sender: u16, sequence: u64, sent_nanos: u64) -> Result<Header, Damage> {
        Ok(Header { run: RUN, phase: 0, sender, sequence, sent_nanos })
    }

    #[test]
    fn repeated_message_counts_as_double() {
        let issued = issued();
        let mut received = ReceiverTally::new(2, 2);
        for sequence in [0, 1, 3, 1, 3, 3] {
            received.record_message(&issued, message(0, sequence, 5), 0, 10);
        }
        received.record_message(&issued, message(1, 3, 5), 0, 10);
        let phase = received.phase(0).unwrap();
        assert_eq!((phase.intact_count(), phase.double, phase.late, phase.damaged), (4, 3, 0, 0));
    }

    // Promise: P25 - A missing message was accepted and did not arrive.
    #[test]
    fn accepted_undelivered_message_is_missing() {
        let issued = issued();
        let mut received = ReceiverTally::new(2, 2);
        let mut accepted = Bits::default();
        assert!([0, 1, 2, 9].into_iter().all(|number| accepted.insert(number)));
        // 3 arrived although it was not acknowledged to its sender.
        for sequence in [0, 3, 9] {
            received.record_message(&issued, message(0, sequence, 5), 0, 10);
        }
        let phase = received.phase(0).unwrap();
        assert_eq!(accepted.count() - phase.delivered(0, &accepted), 2);
        assert_eq!(phase.delivered(1, &accepted), 0, "another sender's messages are not these");
    }

    // Promise: P25 - A message is late after 10 s.
    #[test]
    fn message_after_ten_seconds_is_late_and_intact() {
        let issued = issued();
        let mut received = ReceiverTally::new(2, 2);
        received.record_message(&issued, message(0, 0, 5), 0, 5 + LATE_NANOS);
        // It is of its own phase, whichever is under way by now.
        received.record_message(&issued, message(0, 1, 5), 1, 6 + LATE_NANOS);
        let phase = received.phase(0).unwrap();
        assert_eq!((phase.intact_count(), phase.late), (2, 1));
        assert_eq!(received.phase(1).unwrap().intact_count(), 0);
    }

    #[test]
    fn unissued_message_counts_as_damaged_without_allocation() {
        let issued = issued();
        let mut received = ReceiverTally::new(2, 2);
        received.record_message(&issued, message(0, 10, 5), 1, 10);
        received.record_message(&issued, message(2, 0, 5), 1, 10);
        received.record_message(&issued, message(0, u64::MAX, 5), 1, 10);
        received.record_message(&issued, Err(Damage::Checksum), 1, 10);
        // Of another run: nothing at all.
        let other = Header { run: 1, phase: 0, sender: 0, sequence: 0, sent_nanos: 0 };
        received.record_message(&issued, Ok(other), 1, 10);
        assert_eq!(
            (received.phase(0).unwrap().damaged, received.phase(1).unwrap().damaged),
            (0, 4)
        );
        assert_eq!(received.phase(0).unwrap().intact_count(), 0);
    }

    #[test]
    fn delay_out_of_range_is_clamped_and_recorded() {
        let mut delays = Latencies::default();
        delays.record(u64::MAX);
        delays.record(0);
        assert_eq!(delays.0.len(), 2);
    }
}
