//! How much of a machine's memory its node gets.
//!
//! The budget of a node covers its processes only; the kernel's own memory comes first. A kernel
//! reports the memory that remains once it has loaded itself (`MemTotal`). It takes a part of that
//! for its drivers and tables; the rest is the node's.
//!
//! Members of a subnet agree on limits that follow from their budgets, so machines of one size must
//! compute the same budget. The free memory at a moment differs from start to start; `MemTotal`
//! does not. So the budget follows from `MemTotal`, in whole steps, and the free memory is only
//! checked.

use accounting::{MIB, format_size};

/// Memory that a kernel takes once it has loaded itself: drivers, reserved memory, slab, page
/// tables. Measured: 20 to 25 MiB on machines of 128 MiB to 1 GiB, when the node starts.
const KERNEL_BYTES: u64 = 24 * MIB;
/// The kernel also takes this fraction (1/64), for tables that grow with the machine.
const KERNEL_SHARE: u64 = 64;
/// Budgets are whole multiples: what a kernel begins with differs by some KiB between versions.
const STEP_BYTES: u64 = 4 * MIB;

/// A machine's memory, divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sum {
    /// Memory that the host gave the machine.
    pub machine_bytes: u64,
    /// Memory that remains for the node.
    pub left_bytes: u64,
}

impl Sum {
    /// Of a machine of `machine_bytes` whose kernel began with `total_bytes` and has
    /// `available_bytes` to give.
    pub fn new(machine_bytes: u64, total_bytes: u64, available_bytes: u64) -> Self {
        let kernel = KERNEL_BYTES + total_bytes / KERNEL_SHARE;
        let left_bytes =
            total_bytes.saturating_sub(kernel).min(available_bytes) / STEP_BYTES * STEP_BYTES;
        Self { machine_bytes, left_bytes }
    }

    /// Memory that the kernel keeps.
    pub fn kernel_bytes(&self) -> u64 {
        self.machine_bytes.saturating_sub(self.left_bytes)
    }

    /// The node's budget: the remaining memory, or the `stated` budget if it fits.
    ///
    /// # Errors
    ///
    /// A text with the calculation, when the stated budget does not fit and `overcommit` is false.
    pub fn budget(&self, stated: Option<u64>, overcommit: bool) -> Result<u64, String> {
        match stated {
            None => Ok(self.left_bytes),
            Some(stated) if stated <= self.left_bytes || overcommit => Ok(stated),
            Some(stated) => Err(format!(
                "a node of {} does not fit into this machine: {}; give the machine {} more, or \
                 the node less",
                format_size(stated),
                self.describe(),
                format_size((stated - self.left_bytes).next_multiple_of(MIB)),
            )),
        }
    }

    /// `of 256 MiB the kernel keeps 68 MiB, 188 MiB are left`.
    pub fn describe(&self) -> String {
        let mib = |bytes: u64| format!("{:.0} MiB", bytes as f64 / MIB as f64);
        format!(
            "of {} the kernel keeps {}, {} are left",
            format_size(self.machine_bytes),
            mib(self.kernel_bytes()),
            mib(self.left_bytes)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Promise: P25 - The node in a machine gets the memory that its kernel leaves.
    #[test]
    fn a_node_gets_what_is_left_and_no_more() {
        let sum = Sum::new(256 * MIB, 217 * MIB, 193 * MIB);
        assert_eq!((sum.left_bytes, sum.kernel_bytes()), (188 * MIB, 68 * MIB));
        assert_eq!(sum.budget(None, false), Ok(188 * MIB));
        assert_eq!(sum.budget(Some(188 * MIB), false), Ok(188 * MIB));
        let refused = sum.budget(Some(192 * MIB), false).unwrap_err();
        for part in
            ["192 MiB does not fit", "of 256 MiB", "keeps 68 MiB", "188 MiB are left", "4 MiB more"]
        {
            assert!(refused.contains(part), "{part}: {refused}");
        }
        assert_eq!(
            sum.budget(Some(192 * MIB), true),
            Ok(192 * MIB),
            "who asks for it may promise too much"
        );
    }

    // Promise: P25 - Machines of one size have one budget.
    #[test]
    fn machines_of_one_size_come_to_one_budget() {
        let left: Vec<u64> = [190, 193, 205]
            .iter()
            .map(|free| Sum::new(256 * MIB, 217 * MIB + free, free * MIB).left_bytes)
            .collect();
        assert_eq!(left, [188 * MIB; 3]);
        // Unless there is less to be had than was thought.
        assert_eq!(Sum::new(256 * MIB, 217 * MIB, 101 * MIB).left_bytes, 100 * MIB);
        assert_eq!(Sum::new(32 * MIB, 9 * MIB, 3 * MIB).left_bytes, 0);
    }
}
