//! How much of a machine's memory its node gets.
//!
//! A budget that a node promises to keep is of its processes; what the kernel takes for itself comes before it.
//! So the kernel is asked, when everything but the node runs, what can still be had. From that a reserve is kept
//! for what the kernel takes as the node works; the rest is the node's budget.

use budget::{MIB, format_size};

/// Kept for the kernel: buffers of the disk and the network, page tables, slab. A node's own table of limits
/// plans some for its sockets and files besides.
pub const RESERVE_BYTES: u64 = 6 * MIB;
/// And one part in so many of what is left, for tables that grow with it.
const RESERVE_SHARE: u64 = 64;

/// A machine's memory, divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sum {
    /// What the host gave the machine.
    pub machine_bytes: u64,
    /// What the kernel says can be had.
    pub available_bytes: u64,
    /// What stays the kernel's.
    pub reserve_bytes: u64,
    /// What is left for the node: whole MiB.
    pub left_bytes: u64,
}

impl Sum {
    /// Of a machine of `machine_bytes` whose kernel has `available_bytes` to give.
    pub fn of(machine_bytes: u64, available_bytes: u64) -> Self {
        let reserve_bytes = RESERVE_BYTES + available_bytes / RESERVE_SHARE;
        let left_bytes = available_bytes.saturating_sub(reserve_bytes) / MIB * MIB;
        Self { machine_bytes, available_bytes, reserve_bytes, left_bytes }
    }

    /// What the kernel has taken.
    pub fn kernel_bytes(&self) -> u64 {
        self.machine_bytes.saturating_sub(self.available_bytes)
    }

    /// The node's budget: what is left, or what is `stated` if it fits.
    ///
    /// # Errors
    ///
    /// The sum in words, when the stated budget does not fit and `overcommit` was not asked for.
    pub fn budget(&self, stated: Option<u64>, overcommit: bool) -> Result<u64, String> {
        match stated {
            None => Ok(self.left_bytes),
            Some(stated) if stated <= self.left_bytes || overcommit => Ok(stated),
            Some(stated) => Err(format!(
                "a node of {} does not fit into this machine: {}; give the machine {} more, or the node less",
                format_size(stated),
                self.words(),
                format_size((stated - self.left_bytes).next_multiple_of(MIB)),
            )),
        }
    }

    /// `of 256 MiB the kernel has taken 57 MiB and keeps 9 MiB for its work, 190 MiB are left`.
    pub fn words(&self) -> String {
        let mib = |bytes: u64| format!("{:.0} MiB", bytes as f64 / MIB as f64);
        format!(
            "of {} the kernel has taken {} and keeps {} for its work, {} are left",
            format_size(self.machine_bytes),
            mib(self.kernel_bytes()),
            mib(self.reserve_bytes),
            mib(self.left_bytes)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_gets_what_is_left_and_no_more() {
        let sum = Sum::of(256 * MIB, 200 * MIB);
        assert_eq!(sum.kernel_bytes(), 56 * MIB);
        assert!(sum.left_bytes + sum.reserve_bytes <= sum.available_bytes);
        assert_eq!(sum.budget(None, false), Ok(190 * MIB));
        assert_eq!(sum.budget(Some(190 * MIB), false), Ok(190 * MIB));
        let refused = sum.budget(Some(192 * MIB), false).unwrap_err();
        for part in ["192 MiB does not fit", "of 256 MiB", "taken 56 MiB", "190 MiB are left", "2 MiB more"] {
            assert!(refused.contains(part), "{part}: {refused}");
        }
        assert_eq!(sum.budget(Some(192 * MIB), true), Ok(192 * MIB), "who asks for it may promise too much");
        assert_eq!(Sum::of(64 * MIB, 3 * MIB).budget(None, false), Ok(0));
    }
}
