//! Why a message is not taken because of its proof, and what follows from it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use thiserror::Error;

/// What happens to a message that is not taken, and to the peer that brought it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Every node finds it invalid: the peer is scored.
    Reject,
    /// It is not passed on.
    Ignore,
    /// The same, and it may come again: this node could not judge it now.
    Forget,
}

/// Why a message is not taken.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum ProofRefusal {
    #[error("the message has no proof of its rate limit; attach one made with a membership")]
    Absent,
    #[error("RLN validation failed: the proof cannot be read")]
    Damaged,
    #[error("RLN validation failed: the proof has bytes that some nodes read and others do not")]
    Disputed,
    #[error("RLN validation failed: the message has no timestamp, from which its epoch follows")]
    NoTimestamp,
    #[error(
        "RLN validation failed: the timestamp is {seconds} s off this node's clock, the limit is \
         {most} s"
    )]
    Clock { seconds: u64, most: u64 },
    #[error("RLN validation failed: the proof is of another epoch than the timestamp")]
    Epoch,
    #[error("RLN validation failed: the proof is of another application")]
    Application,
    #[error("RLN validation failed: the proof's root is not among those that are valid now")]
    Root,
    #[error("RLN validation failed: the proof is false")]
    False,
    #[error(
        "RLN validation failed: another message was sent under the same nullifier; the rate \
             limit of the membership is exceeded"
    )]
    Spam,
    #[error("RLN validation failed: the same signal came with other bytes")]
    Repeated,
    #[error("no root of the membership contract is known; try again later")]
    NoRoots,
    #[error("{0} messages wait for the verification of their proofs; try again")]
    Busy(usize),
    #[error("the nullifier cannot be noted: {0}")]
    Log(String),
}

impl ProofRefusal {
    /// What follows.
    pub(crate) fn effect(&self) -> Effect {
        match self {
            Self::Absent
            | Self::Damaged
            | Self::NoTimestamp
            | Self::Epoch
            | Self::False
            | Self::Spam => Effect::Reject,
            Self::Disputed | Self::Clock { .. } | Self::Application | Self::Repeated => {
                Effect::Ignore
            }
            Self::Root | Self::NoRoots | Self::Busy(_) | Self::Log(_) => Effect::Forget,
        }
    }

    fn place(&self) -> usize {
        match self {
            Self::Absent => 0,
            Self::Damaged | Self::Disputed => 1,
            Self::NoTimestamp | Self::Clock { .. } => 2,
            Self::Epoch => 3,
            Self::Application => 4,
            Self::Root => 5,
            Self::False => 6,
            Self::Spam => 7,
            Self::Repeated => 8,
            Self::NoRoots => 9,
            Self::Busy(_) => 10,
            Self::Log(_) => 11,
        }
    }
}

/// Names of refusals in metrics, those of the reference node where they mean the same.
const NAMES: [&str; 12] = [
    "no_proof",
    "proof_extraction",
    "invalid_timestamp",
    "timestamp_mismatch",
    "invalid_identifier",
    "invalid_root",
    "invalid_proof",
    "spam",
    "repeated",
    "no_roots",
    "busy",
    "nullifier_log",
];

/// Messages and proofs since the start.
#[derive(Debug, Default)]
pub(crate) struct ProofCounters {
    pub(crate) valid: AtomicU64,
    refused: [AtomicU64; NAMES.len()],
    /// Proofs whose equation was computed.
    pub(crate) verified: AtomicU64,
    /// Equations computed for one or several proofs at a time.
    pub(crate) batches: AtomicU64,
}

impl ProofCounters {
    pub(super) fn count(&self, judged: &Result<(), ProofRefusal>) {
        let counter = match judged {
            Ok(()) => &self.valid,
            Err(refusal) => &self.refused[refusal.place()],
        };
        counter.fetch_add(1, Relaxed);
    }

    /// Messages that were not taken, by the names of the reasons.
    pub(crate) fn refused(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        NAMES.into_iter().zip(self.refused.iter().map(|count| count.load(Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_counts_under_its_own_name() {
        let refusals = [
            ProofRefusal::Absent,
            ProofRefusal::Damaged,
            ProofRefusal::NoTimestamp,
            ProofRefusal::Epoch,
            ProofRefusal::Application,
            ProofRefusal::Root,
            ProofRefusal::False,
            ProofRefusal::Spam,
            ProofRefusal::Repeated,
            ProofRefusal::NoRoots,
            ProofRefusal::Busy(3),
            ProofRefusal::Log("full".into()),
        ];
        let counters = ProofCounters::default();
        for refusal in refusals {
            counters.count(&Err(refusal));
        }
        counters.count(&Ok(()));
        assert!(counters.refused().all(|(_, count)| count == 1));
        assert_eq!(counters.valid.load(Relaxed), 1);
    }

    /// An honest neighbour passes on what its node takes: what this node cannot judge, or judges by
    /// its own clock, is not the neighbour's fault.
    #[test]
    fn nothing_that_depends_on_this_node_is_held_against_a_peer() {
        for refusal in [
            ProofRefusal::Disputed,
            ProofRefusal::Clock { seconds: 30, most: 20 },
            ProofRefusal::Root,
            ProofRefusal::NoRoots,
            ProofRefusal::Busy(1),
            ProofRefusal::Log("full".into()),
        ] {
            assert_ne!(refusal.effect(), Effect::Reject, "{refusal}");
        }
    }
}
