//! The disk budget: how it is divided, and whether it is enough.

use accounting::MIB;
use memory_budget::LimitsError;

use crate::{Limits, subnet::STATE_LINE};

/// The least state that a disk budget must leave room for.
const CAPACITY_BYTES_MIN: u64 = 64 * MIB;

impl Limits {
    /// Gives the node `disk_bytes` (whole MiB of it) for everything on disk, with room for `states`
    /// states: two where a fetched state is stored alongside the old one. Compiled code, blocks and
    /// the capacity of the subnet follow from it, except limits that were set before.
    /// [`Self::check_disk`] checks whether it is enough.
    pub fn set_disk(&mut self, disk_bytes: u64, states: u64) {
        memory_budget::restate(self, |table| {
            // Whole MiB, and never 0, which would mean that none is stated.
            table.disk_budget_bytes = (disk_bytes - disk_bytes % MIB).max(1);
            table.pages.states_on_disk = states;
        });
    }

    /// Whether the disk budget, if one is stated, leaves enough for a state.
    ///
    /// # Errors
    /// [`LimitsError::DiskTooSmall`], with the size that works.
    pub fn check_disk(&self) -> Result<(), LimitsError> {
        let (disk_bytes, states) = (self.disk_budget_bytes, self.pages.states_on_disk);
        let smallest_bytes = self.smallest_disk_bytes(states);
        if disk_bytes == 0 || disk_bytes >= smallest_bytes {
            return Ok(());
        }
        let least = states.saturating_mul(self.least_capacity_bytes());
        let beside_bytes = smallest_bytes.saturating_sub(least);
        Err(LimitsError::DiskTooSmall { disk_bytes, beside_bytes, smallest_bytes })
    }

    /// The smallest disk for this table, with room for `states` states.
    pub fn smallest_disk_bytes(&self, states: u64) -> u64 {
        self.disk_bytes(states, self.least_capacity_bytes())
    }

    /// The smallest disk for `capacity_bytes`, with room for `states` states.
    pub fn disk_bytes(&self, states: u64, capacity_bytes: u64) -> u64 {
        let state = states.saturating_mul(capacity_bytes);
        // Compiled code and blocks take a small part of the disk, so that each step adds less than
        // the one before.
        let mut table = self.clone();
        let mut disk = MIB;
        loop {
            memory_budget::restate(&mut table, |table| {
                table.disk_budget_bytes = disk;
                table.pages.states_on_disk = states;
            });
            let needed = table.beside_state_bytes().saturating_add(state);
            if needed <= disk {
                return disk;
            }
            disk = needed.checked_next_multiple_of(MIB).unwrap_or(u64::MAX);
        }
    }

    /// The least capacity that a disk budget must leave: callbacks have their part of it.
    fn least_capacity_bytes(&self) -> u64 {
        let callbacks = self
            .execution
            .response_callback_reservation_bytes
            .saturating_mul(self.execution.threads);
        CAPACITY_BYTES_MIN.max(callbacks.saturating_mul(2))
    }

    /// Bytes on disk other than the state.
    pub(crate) fn beside_state_bytes(&self) -> u64 {
        let sheet = self.sheet();
        let state = sheet.line(STATE_LINE).map_or(0, |line| line.bytes);
        sheet.disk_sum_bytes().saturating_sub(state)
    }

    /// One `part`th of the disk budget, in whole MiB.
    pub(crate) fn disk_part_bytes(&self, part: u64) -> u64 {
        let bytes = self.disk_budget_bytes / part;
        bytes - bytes % MIB
    }
}
