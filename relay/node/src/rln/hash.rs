//! Hashes of the rate limit: from bytes to the field, and Poseidon over two numbers of it.
//!
//! Bounds: the constants of Poseidon are computed once, 6 KiB. It must never know what is hashed.
//!
//! Source: vacp2p/rfc-index 32 (RLN); Poseidon, <https://eprint.iacr.org/2019/458>, with the
//! parameters of the reference: width 3, 8 full and 57 partial rounds, exponent 5, constants by the
//! Grain LFSR of the paper's appendix F.

use std::sync::LazyLock;

use ark_bn254::Fr;
use ark_ff::{BigInt, Field, PrimeField, Zero};
use protocol::rate_limit_proof::FIELD_BYTES;
use sha3::{Digest, Keccak256};

const WIDTH: usize = 3;
const FULL_ROUNDS: usize = 8;
const PARTIAL_ROUNDS: usize = 57;
const ROUNDS: usize = FULL_ROUNDS + PARTIAL_ROUNDS;
/// Bits of a number of the field.
const FIELD_BITS: usize = 254;

/// Keccak-256 of the parts one after the other, as a number of the field: little-endian, modulo its
/// order.
pub(super) fn to_field(parts: &[&[u8]]) -> Fr {
    let mut hasher = Keccak256::new();
    parts.iter().for_each(|part| hasher.update(part));
    let digest: [u8; FIELD_BYTES] = hasher.finalize().into();
    Fr::from_le_bytes_mod_order(&digest)
}

/// The hash of two numbers.
pub(super) fn poseidon(left: Fr, right: Fr) -> Fr {
    let constants = &*CONSTANTS;
    let mut state = [Fr::zero(), left, right];
    for (round, added) in constants.added.iter().enumerate() {
        for (value, constant) in state.iter_mut().zip(added) {
            *value += constant;
        }
        let is_full = !(FULL_ROUNDS / 2..FULL_ROUNDS / 2 + PARTIAL_ROUNDS).contains(&round);
        let raised = if is_full { WIDTH } else { 1 };
        for value in &mut state[..raised] {
            let fourth = value.square().square();
            *value *= fourth;
        }
        state = constants.mixed.map(|row| row.iter().zip(&state).map(|(a, b)| *a * b).sum());
    }
    state[0]
}

struct Constants {
    /// Added before each round.
    added: [[Fr; WIDTH]; ROUNDS],
    /// By which the state is multiplied after each round.
    mixed: [[Fr; WIDTH]; WIDTH],
}

static CONSTANTS: LazyLock<Constants> = LazyLock::new(|| {
    let mut grain = Grain::new();
    let mut added = [[Fr::zero(); WIDTH]; ROUNDS];
    added.as_flattened_mut().iter_mut().for_each(|constant| *constant = grain.below_order());
    let xs: [Fr; WIDTH] = std::array::from_fn(|_| grain.modulo_order());
    let ys: [Fr; WIDTH] = std::array::from_fn(|_| grain.modulo_order());
    // A Cauchy matrix. No sum is zero for these parameters; a test compares a hash.
    let mixed = xs.map(|x| ys.map(|y| (x + y).inverse().unwrap_or_default()));
    Constants { added, mixed }
});

/// The generator of the constants: a shift register of 80 bits.
struct Grain {
    bits: [bool; 80],
    head: usize,
}

impl Grain {
    fn new() -> Self {
        let mut bits = [true; 80];
        // A prime field, raised to a power that is positive; then sizes, each in its bits.
        let fields = [(1, 2), (0, 4), (FIELD_BITS, 12), (WIDTH, 12)];
        let mut place = 0;
        for (value, width) in fields.into_iter().chain([(FULL_ROUNDS, 10), (PARTIAL_ROUNDS, 10)]) {
            for bit in (0..width).rev() {
                bits[place] = (value >> bit) & 1 == 1;
                place += 1;
            }
        }
        let mut grain = Self { bits, head: 0 };
        for _ in 0..160 {
            grain.step();
        }
        grain
    }

    fn step(&mut self) -> bool {
        let taps = [0, 13, 23, 38, 51, 62];
        let bit = taps.iter().fold(false, |bit, tap| bit ^ self.bits[(self.head + tap) % 80]);
        self.bits[self.head] = bit;
        self.head = (self.head + 1) % 80;
        bit
    }

    /// Of each two bits the second, if the first is set.
    fn bit(&mut self) -> bool {
        loop {
            let (is_taken, bit) = (self.step(), self.step());
            if is_taken {
                return bit;
            }
        }
    }

    /// The next number of as many bits as the order has, most significant bit first.
    fn number(&mut self) -> [u64; 4] {
        let mut limbs = [0; 4];
        for place in (0..FIELD_BITS).rev() {
            limbs[place / 64] |= u64::from(self.bit()) << (place % 64);
        }
        limbs
    }

    /// The next number that is below the order.
    fn below_order(&mut self) -> Fr {
        loop {
            if let Some(number) = Fr::from_bigint(BigInt(self.number())) {
                return number;
            }
        }
    }

    /// The next number, modulo the order.
    fn modulo_order(&mut self) -> Fr {
        let bytes: Vec<u8> = self.number().iter().flat_map(|limb| limb.to_le_bytes()).collect();
        Fr::from_le_bytes_mod_order(&bytes)
    }
}

#[cfg(test)]
mod tests {
    use ark_ff::MontFp;

    use super::*;

    #[test]
    fn poseidon_of_one_and_two_is_that_of_circomlib() {
        let expected: Fr =
            MontFp!("7853200120776062878684798364095072458815029376092732009249414926327459813530");
        assert_eq!(poseidon(Fr::from(1_u64), Fr::from(2_u64)), expected);
    }

    #[test]
    fn keccak_of_nothing_is_read_little_endian_modulo_the_order() {
        let digest =
            hex::decode("c5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470")
                .unwrap();
        let expected = digest.iter().rev().fold(Fr::zero(), |number, byte| {
            number * Fr::from(256_u64) + Fr::from(u64::from(*byte))
        });
        assert_eq!(to_field(&[]), expected);
        assert_eq!(to_field(&[b"ab", b"", b"c"]), to_field(&[b"abc"]));
    }
}
