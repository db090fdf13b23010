//! Common parameters: sizes of the scheme, and points with unknown discrete logarithms.

use std::sync::LazyLock;

use crate::curve::{FixedBase, G1, G1Affine, G2, G2Affine};

/// Chunks of a share.
pub(crate) const CHUNKS: usize = 16;
/// Bits of a chunk.
pub(crate) const CHUNK_BITS: usize = 16;
/// Levels of the tree of epochs.
pub(crate) const LEVELS: usize = 32;
/// Repetitions in the proof of chunking (paper: `l`).
pub(crate) const REPETITIONS: usize = 32;
/// Bits of a challenge in the proof of chunking.
pub(crate) const CHALLENGE_BITS: usize = 8;

/// Receivers of a dealing: bounds every loop and every decoder of the crate.
pub const RECEIVERS_MAX: u32 = 128;

const _: () = assert!(CHUNKS * CHUNK_BITS >= 255, "the chunks hold a scalar");
const _: () = assert!(CHALLENGE_BITS * REPETITIONS >= 256, "a cheating dealer guesses 256 bits");
const _: () = assert!(
    response_bound(RECEIVERS_MAX as usize) < 1 << 62,
    "responses of the proof of chunking fit a machine word with their sign"
);

/// The largest honest sum of challenge times chunk (paper: `S`).
pub(crate) const fn sum_bound(receivers: usize) -> u64 {
    (receivers * CHUNKS) as u64 * ((1 << CHUNK_BITS) - 1) * ((1 << CHALLENGE_BITS) - 1)
}

/// Responses are in `0..response_bound` (paper: `Z`). Twice `repetitions * S`, so that a prover has
/// to draw its masks again in less than half of all cases.
pub(crate) const fn response_bound(receivers: usize) -> u64 {
    2 * REPETITIONS as u64 * sum_bound(receivers)
}

/// Points that are hashed into being, and tables of the bases that never change. Made at first use.
pub(crate) struct Parameters {
    /// `f_0`: the constant part of an identity.
    pub(crate) f0: G2Affine,
    /// `f_1 ..= f_32`: one per level of the tree.
    pub(crate) f: [G2Affine; LEVELS],
    /// The level below the leaves: the hash of the ciphertext.
    pub(crate) f_hash: G2Affine,
    /// Base of the second randomness.
    pub(crate) h: G2Affine,
    /// Second base of the commitments in the proof of chunking (paper: `y_0`).
    pub(crate) y0: G1Affine,
    pub(crate) g1_table: FixedBase<G1>,
    pub(crate) y0_table: FixedBase<G1>,
    pub(crate) g2_table: FixedBase<G2>,
    pub(crate) h_table: FixedBase<G2>,
}

static PARAMETERS: LazyLock<Parameters> = LazyLock::new(|| {
    let g2 = |name: &str| {
        G2::hash(name.as_bytes(), b"THIMBLE-NIDKG-V1-PARAMETERS_BLS12381G2_XMD:SHA-256_SSWU_RO_")
            .to_affine()
    };
    let y0 =
        G1::hash(b"y0", b"THIMBLE-NIDKG-V1-PARAMETERS_BLS12381G1_XMD:SHA-256_SSWU_RO_").to_affine();
    let h = g2("h");
    Parameters {
        f0: g2("f0"),
        f: std::array::from_fn(|level| g2(&format!("f{}", level + 1))),
        f_hash: g2("f-hash"),
        h,
        y0,
        g1_table: FixedBase::new(&G1Affine::generator()),
        y0_table: FixedBase::new(&y0),
        g2_table: FixedBase::new(&G2Affine::generator()),
        h_table: FixedBase::new(&h),
    }
});

impl Parameters {
    /// The one set there is.
    pub(crate) fn get() -> &'static Self {
        &PARAMETERS
    }

    /// Bytes that stay resident once made, in addition to the engine's tables.
    const BYTES: usize =
        size_of::<Self>() + 2 * FixedBase::<G1>::BYTES + 2 * FixedBase::<G2>::BYTES;
}

const _: () = assert!(Parameters::BYTES < 1 << 20, "what is not in the ledger is small");
