//! Memory that no pool explains.

/// Anonymous memory of all processes of the node less what is reserved in pools, saturating at the
/// ends of `i64`. Positive: memory without a reservation (runtime, stacks, fragmentation, or a
/// leak). Negative: reserved but not touched yet, or touched and swapped or returned.
pub fn unaccounted(anonymous_bytes: u64, ledger_bytes: u64) -> i64 {
    let difference = i128::from(anonymous_bytes) - i128::from(ledger_bytes);
    difference.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_difference_has_a_sign() {
        assert_eq!(unaccounted(10, 4), 6);
        assert_eq!(unaccounted(4, 10), -6);
        assert_eq!(unaccounted(u64::MAX, 0), i64::MAX);
        assert_eq!(unaccounted(0, u64::MAX), i64::MIN);
    }
}
