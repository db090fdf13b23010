//! The rules of a comparison that need no store and no stream.

use protocol::sync::SyncId;

/// Parts into which a range is cut whose fingerprints differ; as the reference has it.
pub(super) const PARTS: i64 = 8;
/// Ids of a range that are sent themselves, at most; as the reference has it.
pub(super) const IDS_PER_SET: usize = 100;
/// Fingerprints in an answer. The reference answers each with 33 kB at most.
pub(super) const FINGERPRINTS_MAX: usize = 15;
const _: () =
    assert!(FINGERPRINTS_MAX * 8 * (IDS_PER_SET * 42 + 64) < protocol::sync::FRAME_BYTES_MAX);

/// Ends of the parts of a range, the last of which is the range's; none if its time is too short.
/// A part begins with the first id of the moment at which the one before it ends.
pub(super) fn parts(from: SyncId, to: SyncId) -> Option<Vec<SyncId>> {
    let span = to.time_ns.checked_sub(from.time_ns).filter(|span| *span >= PARTS)?;
    let mut ends: Vec<SyncId> =
        (1..PARTS).map(|part| SyncId::at(from.time_ns + span / PARTS * part)).collect();
    ends.push(to);
    Some(ends)
}

/// Two sets of ids in order, walked together.
#[derive(Debug)]
pub(super) struct Difference<I: Iterator<Item = SyncId>> {
    theirs: std::iter::Peekable<I>,
}

impl<I: Iterator<Item = SyncId>> Difference<I> {
    pub(super) fn new(theirs: I) -> Self {
        Self { theirs: theirs.peekable() }
    }

    /// Whether they lack one of ours. Ours come in order.
    pub(super) fn is_lacked(&mut self, ours: SyncId) -> bool {
        while self.theirs.next_if(|theirs| *theirs < ours).is_some() {}
        self.theirs.next_if_eq(&ours).is_none()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_range_is_cut_into_parts_that_cover_it() {
        let (from, to) = (SyncId::at(100), SyncId { time_ns: 200, hash: [1; 32] });
        let ends = parts(from, to).unwrap();
        assert_eq!((ends.len(), ends.last()), (8, Some(&to)));
        assert!(ends.is_sorted() && ends[0] == SyncId::at(112));
        assert_eq!(parts(SyncId::at(1), SyncId::at(8)), None);
        assert_eq!(parts(SyncId::at(9), SyncId::at(8)), None);
        assert!(parts(SyncId::at(0), SyncId::at(i64::MAX)).is_some());
    }

    proptest! {
        #[test]
        fn what_they_lack_is_the_difference_of_sets(
            ours in prop::collection::btree_set(0_i64..60, 0..40),
            theirs in prop::collection::btree_set(0_i64..60, 0..40),
        ) {
            let lacked: BTreeSet<i64> = {
                let mut difference = Difference::new(theirs.iter().map(|time| SyncId::at(*time)));
                let ours = ours.iter().copied();
                ours.filter(|time| difference.is_lacked(SyncId::at(*time))).collect()
            };
            prop_assert_eq!(lacked, ours.difference(&theirs).copied().collect());
        }
    }
}
