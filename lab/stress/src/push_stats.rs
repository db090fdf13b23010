//! Requests of a publisher in one phase, and their answers.
//!
//! Bounds: [`ANSWERS_MAX`] kinds of answers, the stated number of hashes for the store. Must never
//! know: connections.

use std::fmt;

use protocol::MessageHash;

use crate::{
    settings::STORE_SAMPLE_MAX,
    tally::{Bits, Latencies},
};

/// Kinds of answers that are counted separately; further codes count as [`Answer::Other`].
const ANSWERS_MAX: usize = 16;
/// Longest example of a refusal, in letters.
const EXAMPLE_CHARS_MAX: usize = 160;

/// How a push ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Answer {
    /// The node's code. Version 2 of light push has none: its success is 200.
    Code(u32),
    /// Refused by version 2.
    RefusedV2,
    /// No answer in time.
    Timeout,
    /// The stream or the connection ended before an answer.
    Broken,
    /// A code that is one too many.
    Other,
}

impl Answer {
    pub(crate) const ACCEPTED: Self = Self::Code(200);
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => code.fmt(f),
            Self::RefusedV2 => f.write_str("refused"),
            Self::Timeout => f.write_str("no answer"),
            Self::Broken => f.write_str("broken off"),
            Self::Other => f.write_str("other codes"),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct AnswerStats {
    pub(crate) answer: Answer,
    /// From opening the stream to the answer.
    pub(crate) latency: Latencies,
    /// Text of one of them.
    pub(crate) example: String,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct PushStats {
    /// Messages that were due.
    pub(crate) due: u64,
    /// Messages that were sent.
    pub(crate) sent: u64,
    pub(crate) answers: Vec<AnswerStats>,
    /// From when a message was due to when it was sent.
    pub(crate) lateness: Latencies,
    pub(crate) accepted: Bits,
    pub(crate) accepted_count: u64,
    /// When the last answer came, nanoseconds since the phase began.
    pub(crate) last_answer_nanos: u64,
    /// Accepted messages to look for in the store, and their indexes in the sample.
    sample: Vec<Option<MessageHash>>,
}

impl PushStats {
    /// Where in the sample the message with this number goes, if it goes into it: every message has
    /// the same chance, however many come.
    pub(crate) fn sample_index(sequence: u64, random: u64, sample: usize) -> Option<usize> {
        let place = if sequence < sample as u64 { sequence } else { random % (sequence + 1) };
        usize::try_from(place).ok().filter(|place| *place < sample)
    }

    pub(crate) fn record_accepted(&mut self, sequence: u64, sampled: Option<(usize, MessageHash)>) {
        if self.accepted.insert(sequence) {
            self.accepted_count += 1;
        }
        if let Some((place, hash)) = sampled.filter(|(place, _)| *place < STORE_SAMPLE_MAX) {
            if self.sample.len() <= place {
                self.sample.resize(place + 1, None);
            }
            self.sample[place] = Some(hash);
        }
    }

    pub(crate) fn record_answer(&mut self, answer: Answer, nanos: u64, example: &str) {
        let known = self.answers.iter().position(|answered| answered.answer == answer);
        let answer = if known.is_none() && self.answers.len() >= ANSWERS_MAX {
            Answer::Other
        } else {
            answer
        };
        let index =
            known.or_else(|| self.answers.iter().position(|answered| answered.answer == answer));
        let index = index.unwrap_or_else(|| {
            let (latency, example) = (Latencies::default(), String::new());
            self.answers.push(AnswerStats { answer, latency, example });
            self.answers.len() - 1
        });
        if let Some(answered) = self.answers.get_mut(index) {
            answered.latency.record(nanos);
            if answered.example.is_empty() {
                answered.example =
                    example.chars().filter(|c| !c.is_control()).take(EXAMPLE_CHARS_MAX).collect();
            }
        }
    }

    /// Hashes of accepted messages.
    pub(crate) fn sample(&self) -> impl Iterator<Item = MessageHash> {
        self.sample.iter().copied().flatten()
    }

    /// Adds what another publisher counted, but for what is kept by publisher.
    pub(crate) fn add(&mut self, other: &Self) {
        self.due += other.due;
        self.sent += other.sent;
        self.accepted_count += other.accepted_count;
        self.last_answer_nanos = self.last_answer_nanos.max(other.last_answer_nanos);
        // All histograms have the same bounds.
        let _ = self.lateness.0.add(&other.lateness.0);
        for theirs in &other.answers {
            match self.answers.iter_mut().find(|ours| ours.answer == theirs.answer) {
                Some(ours) => drop(ours.latency.0.add(&theirs.latency.0)),
                None => self.answers.push(theirs.clone()),
            }
        }
        self.answers.sort_by_key(|answered| answered.answer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_counted_by_code_with_one_example() {
        let mut pushed = PushStats::default();
        pushed.record_answer(Answer::ACCEPTED, 1_000_000, "");
        pushed.record_answer(Answer::Code(429), 2_000_000, "rate of this peer: 10/s\n");
        pushed.record_answer(Answer::Code(429), 3_000_000, "another");
        let mut sum = PushStats::default();
        sum.add(&pushed);
        sum.add(&pushed);
        let counts: Vec<_> = sum.answers.iter().map(|a| (a.answer, a.latency.0.len())).collect();
        assert_eq!(counts, [(Answer::Code(200), 2), (Answer::Code(429), 4)]);
        assert_eq!(sum.answers[1].example, "rate of this peer: 10/s");
    }

    #[test]
    fn distinct_answer_codes_are_bounded() {
        let mut pushed = PushStats::default();
        (0..1000).for_each(|code| pushed.record_answer(Answer::Code(code), 1, ""));
        assert_eq!(pushed.answers.len(), ANSWERS_MAX + 1);
        assert_eq!(pushed.answers.iter().map(|a| a.latency.0.len()).sum::<u64>(), 1000);
    }

    const SAMPLE: usize = 50;

    #[test]
    fn the_sample_is_bounded_and_holds_accepted_messages_only() {
        let mut pushed = PushStats::default();
        for sequence in 0..10_000_u64 {
            let random = sequence.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20;
            let place = PushStats::sample_index(sequence, random, SAMPLE);
            if sequence % 2 == 0 {
                pushed.record_accepted(sequence, place.map(|place| (place, MessageHash([0; 32]))));
            }
        }
        assert_eq!(pushed.accepted_count, 5000);
        assert!((1..=SAMPLE).contains(&pushed.sample().count()));
    }
}
