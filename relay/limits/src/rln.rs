//! Limits of the verification of rate limit proofs (RLN).

use accounting::KIB;
use memory_budget::{SheetLine, lines, times, whole};

use crate::{Limits, SCALE, pool};

/// A message whose proof is being verified, in addition to its bytes, which are in `receiving`: its
/// task, its place in the queue, its proof.
pub const RLN_PENDING_BYTES: u64 = 4 * KIB;
/// A proof in a batch while it is verified: the lines of its Miller loop.
pub const RLN_PROOF_BYTES: u64 = 20 * KIB;
/// Disk for a nullifier: 32 bytes, in two epochs, in pages that are half full.
pub const RLN_NULLIFIER_BYTES: u64 = 128;
/// The verifier: tables of the verifying key, the constants of the hash, a page of the log, the
/// stack of its thread.
const VERIFIER_BYTES: u64 = 128 * KIB;

const _: () = {
    assert!(RLN_PROOF_BYTES > 90 * 3 * 64, "three numbers of 64 bytes for each of some 90 lines");
    assert!(rows::pending_messages.covers(&rows::batch_proofs), "a batch can be full");
};

memory_budget::limits! {
    SCALE;
    /// Limits of the verification of rate limit proofs, on a network that demands them.
    #[serde(deny_unknown_fields)]
    pub struct RlnLimits as rln of Limits {
        /// Messages whose proofs are being verified, or whose root is waited for. Beyond it streams
        /// of peers are not read, and clients get 429 after 5 s.
        pending_messages: u64 = values([48, 48, 64, 96, 128, 192, 256]), local,
            pays line("rln_pending"),
            bounds [
                at_least(2, "one waits for a root, one is verified"),
                at_most(4096, "the last of them would wait for seconds"),
            ],
            reason "4 KiB each; 48 wait for less than a tenth of a second";
        /// Proofs verified in one equation, if as many wait.
        batch_proofs: u64 = values([4, 4, 8, 8, 16, 16, 16]), local, pays line("rln_verifier"),
            bounds [
                at_least(1, "no proof would be verified"),
                at_most(64, "the first of them would wait for the last"),
            ],
            reason "20 KiB each; more than 16 together save little";
        /// How long a message waits for a root that is not known. Beyond it the message is ignored.
        root_wait_millis: u64 = fixed(3_000), local,
            bounds [at_most(20_000, "the message would be too old")],
            reason "the contract is asked every 2 s at most";
        /// Nullifiers of one epoch for which the log has room. From half as many more on pages of
        /// it are full, and their messages are ignored.
        nullifiers_per_epoch: u64 = fixed(262_144), local, pays line("rln_nullifiers"),
            bounds [
                at_least(1, "no message could be noted"),
                at_most(67_108_864, "each takes 128 bytes of disk"),
            ],
            reason "the contract of The Waku Network allows 160,000 messages in an epoch";
    }
}

impl Limits {
    /// The verifier and what waits for it.
    pub(crate) fn rln_lines(&self) -> Vec<SheetLine> {
        let batch = self.rln.batch_proofs.saturating_mul(RLN_PROOF_BYTES);
        lines![
            Pool(pool::RLN_PENDING, "relay") =
                times(self.rln.pending_messages, RLN_PENDING_BYTES),
                "messages whose rate limit proofs are being verified";
            Fixed("rln_verifier", "relay") = whole(VERIFIER_BYTES.saturating_add(batch)),
                "the verifying key, and proofs being verified";
            Disk("rln_nullifiers", "relay") =
                times(self.rln.nullifiers_per_epoch, RLN_NULLIFIER_BYTES),
                "nullifiers of two epochs; only where proofs are verified";
        ]
    }
}
