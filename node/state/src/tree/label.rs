//! Labels as strings of bits, in an order that is the lexicographic order of their bytes.
//!
//! Each byte becomes nine bits: a 1 that says "there is another byte", then its eight bits from the
//! highest down. After the last byte come zeros for ever. So "ab" and "abc" differ first in the bit
//! that says whether a third byte exists, the shorter one has the 0 and sorts first, and any two
//! different labels differ in some bit.

/// Longest label a map takes: bit numbers must fit `u16`. Labels of the certified tree are
/// principals and hashes.
pub const LABEL_BYTES_MAX: usize = 7_000;

const BITS_PER_BYTE: usize = 9;
const _: () = assert!((LABEL_BYTES_MAX + 1) * BITS_PER_BYTE <= u16::MAX as usize);

/// Bit number `index` of a label.
pub fn bit(label: &[u8], index: u16) -> bool {
    let index = usize::from(index);
    match (label.get(index / BITS_PER_BYTE), index % BITS_PER_BYTE) {
        (None, _) => false,
        (Some(_), 0) => true,
        (Some(byte), within) => (byte >> (8 - within)) & 1 == 1,
    }
}

/// The first bit in which two labels differ; `None` if they are equal.
pub fn first_difference(left: &[u8], right: &[u8]) -> Option<u16> {
    let index = match left.iter().zip(right).position(|(a, b)| a != b) {
        Some(at) => at * BITS_PER_BYTE + 1 + (left[at] ^ right[at]).leading_zeros() as usize,
        None if left.len() == right.len() => return None,
        None => left.len().min(right.len()) * BITS_PER_BYTE,
    };
    debug_assert!(
        index >= usize::from(u16::MAX) || bit(left, index as u16) != bit(right, index as u16),
        "two labels agree in bit {index}"
    );
    // Labels longer than the limit never enter a map; for short lists of children the bit only has
    // to be the same for every reader, and two labels that agree on 7,000 bytes would still be
    // ordered by `split_point`'s clamp.
    Some(u16::try_from(index).unwrap_or(u16::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_prefix_sorts_first() {
        let bit_number = first_difference(b"ab", b"abc");
        assert_eq!(bit_number, Some(18));
        assert!(!bit(b"ab", 18));
        assert!(bit(b"abc", 18));
    }

    proptest! {
        #[test]
        fn the_first_differing_bit_orders_like_bytes(a in prop::collection::vec(0u8..4, 0..5), b in prop::collection::vec(0u8..4, 0..5)) {
            match first_difference(&a, &b) {
                None => prop_assert_eq!(&a, &b),
                Some(at) => {
                    prop_assert_eq!(a < b, bit(&b, at));
                    prop_assert_ne!(bit(&a, at), bit(&b, at));
                    prop_assert!((0..at).all(|before| bit(&a, before) == bit(&b, before)));
                }
            }
        }
    }
}
