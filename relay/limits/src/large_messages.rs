//! Tables for networks whose messages are larger than those of the Waku network.
//!
//! Five pools hold whole messages: what was received and not read, frames, messages for the log,
//! bodies and answers of HTTP. Each has room for a few of the largest, whatever the memory size. So
//! the other rows have the values of a memory size that is as much smaller as these pools are
//! larger, and the sum fits.

use accounting::MIB;
use memory_budget::{LimitsError, Table};

use crate::{
    Limits, SCALE,
    messages::{MESSAGE_BYTES, MESSAGE_BYTES_MAX},
};

impl Limits {
    /// The table for a relay that may take `memory_bytes` in all (whole MiB of it) in a network
    /// with messages of up to `message_bytes`. A size that no network has is not refused here, but
    /// where it is laid over the table.
    ///
    /// # Errors
    /// Which line of the sheet does not fit, and the smallest memory size for such messages.
    pub fn derive_with_messages(
        memory_bytes: u64,
        message_bytes: u64,
    ) -> Result<Self, LimitsError> {
        if message_bytes <= MESSAGE_BYTES || message_bytes > MESSAGE_BYTES_MAX {
            return Self::derive(memory_bytes);
        }
        let memory_bytes = memory_bytes - memory_bytes % MIB;
        let sizes = (smallest_mib()..=memory_bytes / MIB).rev();
        let mut tables = sizes.map(|mib| table(mib, memory_bytes, message_bytes));
        if let Some(limits) = tables.find(|limits| limits.sheet().sum_bytes() <= memory_bytes) {
            limits.check()?;
            return Ok(limits);
        }
        let sheet = table(smallest_mib(), memory_bytes, message_bytes).sheet();
        let Some((line, left_bytes)) = sheet.first_that_does_not_fit() else {
            debug_assert!(false, "a table that fits was not found");
            return Self::derive(memory_bytes);
        };
        Err(LimitsError::TooSmall {
            memory_bytes,
            line: line.name,
            line_bytes: line.bytes,
            left_bytes,
            smallest_bytes: Self::smallest_bytes_with_messages(message_bytes),
        })
    }

    /// The smallest memory size for messages of up to `message_bytes`.
    pub fn smallest_bytes_with_messages(message_bytes: u64) -> u64 {
        table(smallest_mib(), 0, message_bytes).sheet().sum_bytes().next_multiple_of(MIB)
    }
}

/// The size below which no row falls.
fn smallest_mib() -> u64 {
    SCALE.anchors_mib()[0]
}

/// Rows of the size `mib` with larger messages, for a relay of `memory_bytes`.
fn table(mib: u64, memory_bytes: u64, message_bytes: u64) -> Limits {
    let mut limits = Limits::scaled(mib * MIB);
    limits.messages.message_bytes = message_bytes;
    limits.follow(|_| false);
    limits.memory_budget_bytes = memory_bytes;
    limits
}
