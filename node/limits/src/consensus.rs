//! Limits of blocks, the ingress pool and the block log.

use accounting::MIB;
use memory_budget::{GRANULE_BYTES, Rules, SheetLine, limit, lines, times, whole};

use crate::{Limits, SCALE, pool};

/// One certificate with its tree.
pub const CERTIFICATE_BYTES: u64 = 8 << 10;
/// Blocks that are kept without a disk budget.
const RETENTION_BLOCK_BYTES: u64 = 128 * MIB;
/// The part of a disk budget that blocks may take for members that were away, and the most.
const BLOCKS_PART: u64 = 64;
const BLOCKS_BYTES_MAX: u64 = 1 << 30;

const _: () = {
    assert!(
        rows::ingress_pool_bytes.covers(&rows::block_ingress_bytes),
        "a block's calls can wait"
    );
    assert!(rows::ingress_expiry_seconds.covers(&rows::ingress_drift_seconds));
    assert!(rows::checkpoint_block_bytes.covers(&rows::block_ingress_bytes));
    assert!(RETENTION_BLOCK_BYTES <= BLOCKS_BYTES_MAX);
};

memory_budget::limits! {
    SCALE;
    /// Limits on blocks and the pool.
    #[serde(deny_unknown_fields)]
    pub struct ConsensusLimits as consensus of Limits, rules check {
        /// Ingress messages waiting for a block, in bytes.
        ingress_pool_bytes: u64 = mib([3, 3, 3, 4, 8, 12, 24, 48, 96]), local,
            pays line("ingress_pool"),
            reason "held in memory; clients get a retry error when it is full";
        /// Ingress messages waiting for a block, counted.
        ingress_pool_messages: u64 =
            values([250, 250, 500, 1000, 2000, 4000, 8000, 16000, 32000]), local,
            bounds [at_least(1, "no call could be accepted")],
            reason "bounds the bookkeeping of very small calls";
        /// Ingress bytes of one block.
        block_ingress_bytes: u64 = mib([3, 3, 3, 3, 4, 4, 4, 4, 4]), agreed,
            pays line("blocks", "block_log", "message_files"),
            reason "the largest call and room for others";
        /// Ingress messages of one block.
        block_ingress_messages: u64 = fixed(1_000), agreed,
            bounds [at_least(1, "no call could be executed")],
            reason "bounds what one round has to induct";
        /// How far ahead an ingress message may expire.
        ingress_expiry_seconds: u64 = fixed(300), agreed,
            bounds [
                at_least(1, "every call would have expired"),
                at_most(3600, "the history remembers every call until it expires"),
            ],
            reason "clients sign up to five minutes ahead";
        /// Clock drift allowed on top of it.
        ingress_drift_seconds: u64 = fixed(60), agreed, reason "clocks of clients differ";
        /// With nothing to do, a block is made this often.
        idle_round_millis: u64 = fixed(1_000), local,
            bounds [
                at_least(10, "an idle node would be busy making blocks"),
                at_most(60_000, "certificates would look stale to clients"),
            ],
            reason "keeps certificates fresh on an idle node";
        /// Blocks finalised but not executed: beyond it no block is proposed.
        execution_lag_blocks: u64 = fixed(1), agreed, pays line("blocks"),
            bounds [at_most(1_000, "blocks waiting for execution are held in memory")],
            reason "blocks held in memory while execution lags; then no block is proposed";
        /// Certificates kept in memory.
        certificates_kept: u64 = fixed(64), local, pays line("certificates"),
            bounds [at_least(1, "nothing could be answered")],
            reason "for clients that ask for a height just passed";
        /// Blocks that one set of shares signs; then the subnet's key is reshared. The same for as
        /// long as the subnet lives.
        blocks_per_epoch: u64 = fixed(500), agreed,
            bounds [at_least(20, "handing the key on takes a block for each dealing")],
            reason "shares older than this are worth nothing to a thief; as on the Internet \
                    Computer; fixed for the life of a subnet";
        /// Ingress bytes in blocks since the last checkpoint that bring the next one early: bounds
        /// the block log and what a restart reads.
        checkpoint_block_bytes: u64 = fixed(64 * MIB), local, pays within("block_log"),
            reason "bounds the block log and what a restart reads again";
        /// Blocks kept below the newest checkpoint, for peers that were away.
        retention_rounds: u64 = fixed(1_000), local,
            reason "a peer that was away for a quarter of an hour executes what it missed; one \
                    that was away for longer fetches a state";
        /// Ingress bytes in blocks that are kept: when there are more, older blocks go sooner.
        retention_block_bytes: u64 =
            fixed(RETENTION_BLOCK_BYTES)
            follows_disk(|limits, least| least.max(blocks_bytes(limits))), local,
            pays line("block_log"),
            reason "on disk: two checkpoints' worth, or a 64th of the disk budget, at most 1 GiB";
        /// Bytes of its state a node sends peers that catch up, all together.
        sync_bytes_per_second: u64 = fixed(32 * MIB), local, pays none("a rate takes no room"),
            bounds [
                at_least(MIB, "a peer that catches up would give up a chunk before it was there"),
            ],
            reason "a third of a gigabit line: peers that catch up must not slow down agreement";
        /// Tables of key generation, and its working memory: with less room it is slower, never
        /// refused.
        // A subnet of three, of thirteen, of forty, and from 2 GiB on of the most there are, with
        // a table to search for a cheating dealer's chunk.
        nidkg_tables_bytes: u64 = granules([4, 4, 4, 16, 64, 64, 256, 512, 512]), local,
            pays line("nidkg_tables"),
            bounds [at_least(GRANULE_BYTES, "a share is opened with a table of that size")],
            reason "78 KiB for each node of the subnet; with less room making and handing on \
                    the key takes longer";
    }
}

/// The part of a disk budget that blocks get.
fn blocks_bytes(limits: &Limits) -> u64 {
    limits.disk_part_bytes(BLOCKS_PART).min(BLOCKS_BYTES_MAX)
}

fn check(limits: &Limits, rules: &mut Rules) {
    let payload = limit!(limits.subnet.message_payload_bytes);
    let block = limit!(limits.consensus.block_ingress_bytes);
    let pool = limit!(limits.consensus.ingress_pool_bytes);
    rules.within(payload, block, "the largest call must fit into a block");
    rules.within(payload, pool, "the largest call must fit into the pool");
    rules.bounds(limits, &["consensus.ingress_expiry_seconds"]);
    rules.within(
        limit!(limits.consensus.ingress_drift_seconds),
        limit!(limits.consensus.ingress_expiry_seconds),
        "clocks that differ by more than a call lives agree on nothing",
    );
    rules.at_least(
        limit!(limits.consensus.checkpoint_block_bytes),
        limits.consensus.block_ingress_bytes,
        "every block would bring a checkpoint",
    );
    rules.at_least(
        limit!(limits.consensus.retention_block_bytes),
        limits.consensus.checkpoint_block_bytes.saturating_mul(2),
        "blocks are kept down to the older of two checkpoints (2 x \
         consensus.checkpoint_block_bytes)",
    );
}

impl Limits {
    /// Calls and blocks on their way.
    pub(crate) fn ingress_lines(&self) -> Vec<SheetLine> {
        let blocks = self.consensus.execution_lag_blocks.saturating_add(1);
        lines![
            Pool(pool::INGRESS_POOL, "consensus") = whole(self.consensus.ingress_pool_bytes),
                "accepted calls that no block holds yet";
            Pool(pool::BLOCKS, "consensus") = times(blocks, self.consensus.block_ingress_bytes),
                "the block being executed and those waiting for it";
        ]
    }

    /// Certificates, and tables of keys.
    pub(crate) fn key_lines(&self) -> Vec<SheetLine> {
        lines![
            Pool(pool::CERTIFICATES, "consensus") =
                times(self.consensus.certificates_kept, CERTIFICATE_BYTES),
                "certificates of recent heights";
            Pool(pool::NIDKG_TABLES, "nidkg") = whole(self.consensus.nidkg_tables_bytes),
                "tables that make key generation fast, and what it works in";
        ]
    }

    /// Blocks that are kept, and the one that brings the next checkpoint.
    fn kept_block_bytes(&self) -> u64 {
        let consensus = &self.consensus;
        consensus.retention_block_bytes.saturating_add(consensus.block_ingress_bytes)
    }

    /// The block log, on disk.
    pub(crate) fn block_log_lines(&self) -> Vec<SheetLine> {
        lines![
            Disk("block_log", "consensus") =
                whole(self.kept_block_bytes()),
                "blocks since the last checkpoint, and in a subnet those that peers may still \
                 want; and the block that brings the next";
        ]
    }
}
