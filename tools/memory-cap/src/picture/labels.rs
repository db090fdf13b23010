//! Placement of the labels of events: in lanes above the plot, next to the line that leads down to
//! the event, without overlap with other labels or their lines.
//!
//! Labels are placed by rank, so when there is no room left, less important events have no label.
//! The first go to the upper lanes: the lines of later labels are then below their texts and not
//! through them.

/// A label that wants a place.
#[derive(Clone, Debug)]
pub(crate) struct Label {
    /// Where its line is.
    pub(crate) x: f64,
    /// How wide its text is.
    pub(crate) width: f64,
    /// Smaller is placed first.
    pub(crate) rank: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LabelPosition {
    /// 0 is next to the plot.
    pub(crate) lane: usize,
    /// Left end of the text.
    pub(crate) left: f64,
    /// Right end of the text.
    pub(crate) right: f64,
    /// Whether the text is left of its line.
    pub(crate) before: bool,
}

/// Between a text and whatever is next to it.
const GAP: f64 = 4.0;

/// A place for each label between `left` and `right`, or none; in as few lanes as hold what
/// `lanes_max` lanes can hold.
pub(crate) fn place(
    labels: &[Label],
    lanes_max: usize,
    left: f64,
    right: f64,
) -> Vec<Option<LabelPosition>> {
    let held = |places: &[Option<LabelPosition>]| places.iter().flatten().count();
    let most = place_in(labels, lanes_max, left, right);
    (0..lanes_max)
        .map(|lanes| place_in(labels, lanes, left, right))
        .find(|places| held(places) >= held(&most))
        .unwrap_or(most)
}

fn place_in(labels: &[Label], lanes: usize, left: f64, right: f64) -> Vec<Option<LabelPosition>> {
    let mut order: Vec<usize> = (0..labels.len()).collect();
    order.sort_by(|a, b| {
        let key = |index: &usize| {
            labels.get(*index).map_or((u32::MAX, 0.0), |label| (label.rank, label.x))
        };
        let (a, b) = (key(a), key(b));
        a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
    });
    let mut placed: Vec<(f64, LabelPosition)> = Vec::new();
    let mut places = vec![None; labels.len()];
    for index in order {
        let Some(label) = labels.get(index) else { continue };
        let found = (0..lanes)
            .rev()
            .flat_map(|lane| [false, true].map(|before| candidate(label, lane, before)))
            .find(|place| {
                place.left >= left
                    && place.right <= right
                    && placed.iter().all(|(x, other)| !collide(label.x, place, *x, other))
            });
        if let Some(place) = found {
            placed.push((label.x, place));
        }
        if let Some(slot) = places.get_mut(index) {
            *slot = found;
        }
    }
    places
}

fn candidate(label: &Label, lane: usize, before: bool) -> LabelPosition {
    let left = if before { label.x - GAP - label.width } else { label.x + GAP };
    LabelPosition { lane, left, right: left + label.width, before }
}

fn collide(x: f64, place: &LabelPosition, other_x: f64, other: &LabelPosition) -> bool {
    let spans = |place: &LabelPosition, x: f64| place.left - GAP < x && x < place.right + GAP;
    // A line leads from its label through all lanes below.
    let crosses = |x: f64, upper: &LabelPosition, lower: &LabelPosition| {
        upper.lane >= lower.lane && spans(lower, x)
    };
    let overlap = place.lane == other.lane
        && place.left < other.right + 2.0 * GAP
        && other.left < place.right + 2.0 * GAP;
    overlap || crosses(x, place, other) || crosses(other_x, other, place)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stated independently of the code: no two texts overlap, and no line passes through a text of
    /// its own or a lower lane.
    fn assert_readable(labels: &[Label], places: &[Option<LabelPosition>]) {
        let placed: Vec<(&Label, LabelPosition)> = labels
            .iter()
            .zip(places)
            .filter_map(|(label, place)| Some((label, (*place)?)))
            .collect();
        for (i, (label, place)) in placed.iter().enumerate() {
            for (other_label, other) in placed.iter().skip(i + 1) {
                if place.lane == other.lane {
                    assert!(
                        place.right <= other.left || other.right <= place.left,
                        "{place:?} {other:?}"
                    );
                }
                for (x, upper, lower) in [(label.x, place, other), (other_label.x, other, place)] {
                    assert!(
                        upper.lane < lower.lane || x <= lower.left || x >= lower.right,
                        "the line at {x} runs through {lower:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn labels_never_overlap_and_the_telling_ones_come_first() {
        // A crowd, spread without order but always the same.
        let mut seed = 12_345_u64;
        let mut next = |below: u64| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for count in [1, 5, 40, 300] {
            let labels: Vec<Label> = (0..count)
                .map(|_| Label {
                    x: next(1000) as f64,
                    width: 20.0 + next(150) as f64,
                    rank: u32::try_from(next(4)).unwrap(),
                })
                .collect();
            let places = place(&labels, 4, 0.0, 1000.0);
            assert_readable(&labels, &places);
            assert!(
                places.iter().flatten().all(|place| place.left >= 0.0 && place.right <= 1000.0)
            );
            let most_telling = labels
                .iter()
                .zip(&places)
                .min_by(|(a, _), (b, _)| a.rank.cmp(&b.rank).then(a.x.total_cmp(&b.x)))
                .unwrap();
            assert!(most_telling.1.is_some(), "the first of the most important always has a place");
        }
    }

    #[test]
    fn a_label_at_the_right_edge_stands_before_its_line() {
        let labels = [Label { x: 990.0, width: 100.0, rank: 0 }];
        let place = place(&labels, 1, 0.0, 1000.0)[0].unwrap();
        assert!(place.before && place.right < 990.0);
    }

    #[test]
    fn neighbours_go_to_different_lanes() {
        let one = place(&[Label { x: 500.0, width: 100.0, rank: 0 }], 6, 0.0, 1000.0);
        assert_eq!(one[0].unwrap().lane, 0, "no lane stays empty");
        let labels = [10.0, 20.0, 30.0].map(|x| Label { x, width: 100.0, rank: 0 });
        let places = place(&labels, 3, 0.0, 1000.0);
        assert_readable(&labels, &places);
        assert_eq!(places.iter().flatten().count(), 3);
    }
}
