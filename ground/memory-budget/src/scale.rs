//! Limits that depend on the memory size, as values at a few sizes.
//!
//! A program names its sizes once, in a [`Scale`]. A [`Row`] names a limit's value at each of them.
//! Between two sizes the value is interpolated linearly (or, for counts of threads, is that of the
//! smaller one); below the first and above the last it stays. Two things follow. All rows rise, so
//! more memory never means a smaller limit. And a sum of rows that fits the budget at two
//! neighbouring sizes fits it at every size between them, because both sides of the comparison are
//! linear; a maximum or a product of rows, which is convex, stays below that value too. So a sheet
//! adds up everywhere once it adds up at the anchors. A program's tests walk every MiB to be sure:
//! rounding, and lines of the sheet that are neither, are theirs.

use accounting::{KIB, MIB};

/// Bytes of a row are rounded down to a multiple of this: whole pages of every operating system.
pub const GRANULE_BYTES: u64 = 64 * KIB;

/// The sizes at which a program's rows name their values: the anchors, in MiB, rising.
#[derive(Clone, Copy, Debug)]
pub struct Scale<const ANCHORS: usize>([u64; ANCHORS]);

impl<const ANCHORS: usize> Scale<ANCHORS> {
    /// Sizes in MiB. A constant whose sizes do not rise does not compile.
    pub const fn new(anchors_mib: [u64; ANCHORS]) -> Self {
        assert!(ANCHORS > 0, "a scale has at least one size");
        let mut at = 1;
        while at < ANCHORS {
            assert!(anchors_mib[at - 1] < anchors_mib[at], "sizes must rise");
            at += 1;
        }
        assert!(anchors_mib[ANCHORS - 1] <= u64::MAX / MIB, "sizes are counted in bytes");
        Self(anchors_mib)
    }

    /// The anchors, in MiB.
    pub const fn anchors_mib(&self) -> [u64; ANCHORS] {
        self.0
    }

    /// Number of its sizes.
    pub const fn sizes(&self) -> usize {
        ANCHORS
    }

    /// A row of plain numbers, interpolated linearly. A constant whose values fall does not
    /// compile, here and below.
    pub const fn values(&self, values: [u64; ANCHORS]) -> Row<ANCHORS> {
        self.row(values, Between::Linear)
    }

    /// A row of plain numbers that change at the sizes only, as those of threads do.
    pub const fn steps(&self, values: [u64; ANCHORS]) -> Row<ANCHORS> {
        self.row(values, Between::Steps)
    }

    const fn row(&self, values: [u64; ANCHORS], between: Between) -> Row<ANCHORS> {
        let mut at = 1;
        while at < ANCHORS {
            assert!(values[at - 1] <= values[at], "a limit must not fall when memory grows");
            at += 1;
        }
        Row { anchors_mib: self.0, values, between }
    }

    /// A row of bytes, its values stated in MiB.
    pub const fn mib(&self, values: [u64; ANCHORS]) -> Row<ANCHORS> {
        self.row(multiples(values, MIB), Between::Granules)
    }

    /// A row of bytes, its values stated in MiB, that change at the sizes only.
    pub const fn mib_steps(&self, values: [u64; ANCHORS]) -> Row<ANCHORS> {
        self.row(multiples(values, MIB), Between::Steps)
    }

    /// A row of bytes, its values stated in granules of [`GRANULE_BYTES`].
    pub const fn granules(&self, values: [u64; ANCHORS]) -> Row<ANCHORS> {
        self.row(multiples(values, GRANULE_BYTES), Between::Granules)
    }

    /// A row of the same value at every size.
    pub const fn fixed(&self, value: u64) -> Row<ANCHORS> {
        self.values([value; ANCHORS])
    }

    /// A truth value that is false at every size.
    pub const fn off(&self) -> Row<ANCHORS> {
        self.fixed(0)
    }

    /// The values of another row.
    pub const fn like(&self, row: Row<ANCHORS>) -> Row<ANCHORS> {
        row
    }
}

const fn multiples<const ANCHORS: usize>(mut values: [u64; ANCHORS], unit: u64) -> [u64; ANCHORS] {
    let mut at = 0;
    while at < ANCHORS {
        values[at] *= unit;
        at += 1;
    }
    values
}

/// Values between two sizes.
#[derive(Clone, Copy, Debug)]
enum Between {
    /// Interpolated.
    Linear,
    /// Interpolated, in whole granules.
    Granules,
    /// That of the smaller size.
    Steps,
}

/// Values of one limit at the anchors of a [`Scale`].
#[derive(Clone, Copy, Debug)]
pub struct Row<const ANCHORS: usize> {
    anchors_mib: [u64; ANCHORS],
    values: [u64; ANCHORS],
    between: Between,
}

impl<const ANCHORS: usize> Row<ANCHORS> {
    /// Whether it is at least as large as `other`, of the same scale, at every anchor, and so
    /// everywhere. For assertions at compile time.
    pub const fn covers(&self, other: &Self) -> bool {
        let mut at = 0;
        while at < ANCHORS {
            assert!(self.anchors_mib[at] == other.anchors_mib[at], "rows of one scale");
            if self.values[at] < other.values[at] {
                return false;
            }
            at += 1;
        }
        true
    }

    /// The row with `less` taken off each value.
    pub const fn less(mut self, less: u64) -> Self {
        let mut at = 0;
        while at < ANCHORS {
            self.values[at] -= less;
            at += 1;
        }
        self
    }

    /// Its value at `memory_bytes`.
    pub fn value_at(&self, memory_bytes: u64) -> u64 {
        match self.between {
            Between::Linear => self.at(memory_bytes),
            Between::Granules => self.bytes_at(memory_bytes),
            Between::Steps => self.step_at(memory_bytes),
        }
    }

    /// Its value at `memory_bytes`, interpolated between the two anchors around it.
    pub fn at(&self, memory_bytes: u64) -> u64 {
        let low = self.anchor_below(memory_bytes);
        let (Some(&low_value), Some(&low_mib)) = (self.values.get(low), self.anchors_mib.get(low))
        else {
            return 0;
        };
        let (Some(&high_value), Some(&high_mib)) =
            (self.values.get(low + 1), self.anchors_mib.get(low + 1))
        else {
            return low_value;
        };
        let low_bytes = low_mib * MIB;
        let past = u128::from(memory_bytes.saturating_sub(low_bytes));
        let more =
            u128::from(high_value - low_value) * past / u128::from((high_mib - low_mib) * MIB);
        // At most `high_value`, because `memory_bytes` is below the upper anchor.
        low_value + more as u64
    }

    /// Its value at `memory_bytes` in whole granules.
    pub fn bytes_at(&self, memory_bytes: u64) -> u64 {
        let value = self.at(memory_bytes);
        value - value % GRANULE_BYTES
    }

    /// Its value at the largest anchor not above `memory_bytes`; at the first for less.
    pub fn step_at(&self, memory_bytes: u64) -> u64 {
        self.values.get(self.anchor_below(memory_bytes)).copied().unwrap_or(0)
    }

    /// Position of the largest anchor not above `memory_bytes`; the first for anything below it.
    fn anchor_below(&self, memory_bytes: u64) -> usize {
        self.anchors_mib.iter().rposition(|anchor| anchor * MIB <= memory_bytes).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCALE: Scale<7> = Scale::new([192, 256, 512, 1024, 2048, 4096, 16384]);
    const ROW: Row<7> = SCALE.mib([1, 1, 2, 4, 4, 8, 16]);

    #[test]
    fn anchors_are_met_exactly_and_lines_are_straight() {
        for (anchor, value) in SCALE.anchors_mib().iter().zip([1, 1, 2, 4, 4, 8, 16]) {
            assert_eq!(ROW.bytes_at(anchor * MIB), value * MIB);
        }
        assert_eq!(ROW.at(384 * MIB), 3 * MIB / 2);
        assert_eq!(ROW.at(768 * MIB), 3 * MIB);
        assert_eq!(ROW.step_at(768 * MIB), 2 * MIB);
    }

    #[test]
    fn outside_the_anchors_the_row_stays() {
        for memory in [0, 1, 191 * MIB] {
            assert_eq!((ROW.at(memory), ROW.step_at(memory)), (MIB, MIB));
        }
        for memory in [16384 * MIB, u64::MAX] {
            assert_eq!((ROW.at(memory), ROW.step_at(memory)), (16 * MIB, 16 * MIB));
        }
    }

    #[test]
    fn bytes_are_whole_granules() {
        for mib in 192..2048 {
            assert_eq!(ROW.bytes_at(mib * MIB) % GRANULE_BYTES, 0);
        }
    }

    #[test]
    fn one_row_covers_another_at_every_size_or_does_not() {
        assert!(ROW.covers(&SCALE.fixed(MIB)) && ROW.covers(&ROW));
        assert!(!ROW.covers(&SCALE.granules([16, 16, 32, 64, 65, 128, 256])));
    }

    #[test]
    fn a_scale_of_one_size_is_flat() {
        const ONE: Row<1> = Scale::new([8]).values([3]);
        assert_eq!((ONE.at(0), ONE.at(8 * MIB), ONE.step_at(u64::MAX)), (3, 3, 3));
    }
}
