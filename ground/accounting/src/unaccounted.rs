//! Memory that no pool explains.

/// Anonymous memory as the kernel counts it, compared with the ledger and the fixed costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnaccountedMemory {
    /// Anonymous memory of all processes of the node.
    pub anonymous_bytes: u64,
    /// Reserved in pools.
    pub ledger_bytes: u64,
    /// The difference. Positive: memory without a reservation (runtime, stacks, fragmentation, or a
    /// leak). Negative: reserved but not touched yet, or touched and swapped or returned.
    pub unaccounted_bytes: i64,
}

/// `anonymous - ledger`, saturating at the ends of `i64`.
pub fn unaccounted(anonymous_bytes: u64, ledger_bytes: u64) -> UnaccountedMemory {
    let difference = i128::from(anonymous_bytes) - i128::from(ledger_bytes);
    let unaccounted_bytes = difference.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64;
    UnaccountedMemory { anonymous_bytes, ledger_bytes, unaccounted_bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_difference_has_a_sign() {
        assert_eq!(unaccounted(10, 4).unaccounted_bytes, 6);
        assert_eq!(unaccounted(4, 10).unaccounted_bytes, -6);
        assert_eq!(unaccounted(u64::MAX, 0).unaccounted_bytes, i64::MAX);
        assert_eq!(unaccounted(0, u64::MAX).unaccounted_bytes, i64::MIN);
    }
}
