//! The pool's view of a worker's mappings, and the minimum it must send to update them.
//!
//! A [`View`] of a memory is the run list the worker last mapped, plus the runs it appended and
//! mapped itself since; [`View::plan`] compares that with the layout of the next message. Versions
//! are not consulted: a version that was thrown away may come again with other content. The
//! comparison is of the place of every page.
//!
//! A view keeps no pin, because a worker reads only while a message runs, whose request holds the
//! layout.

use std::{collections::VecDeque, sync::Arc, time::Instant};

use pages::{MemoryLayout, Run, SegmentId};

/// A worker's mapping of one memory.
#[derive(Debug)]
pub(super) struct View {
    epoch: u64,
    runs: Arc<[Run]>,
    /// Appended by the worker itself after `runs` were mapped, ordered.
    own: Vec<Run>,
    /// The segment whose file it has for appending.
    pub(super) append: Option<SegmentId>,
    /// When the last message over this memory was sent to the worker.
    pub(super) used: Instant,
}

/// Data to send.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// Nothing: the mapping equals the layout.
    Current,
    /// These runs, to go over what is mapped.
    Runs(Vec<Run>),
    /// Base and all runs.
    Fresh,
}

impl View {
    /// The view after `layout` was mapped.
    pub(super) fn new(layout: &MemoryLayout, now: Instant) -> Self {
        Self {
            epoch: layout.epoch,
            runs: layout.runs.clone(),
            own: Vec::new(),
            append: None,
            used: now,
        }
    }

    /// How to get from here to `layout`.
    pub(super) fn plan(&self, layout: &MemoryLayout) -> Plan {
        if self.epoch != layout.epoch {
            return Plan::Fresh;
        }
        if self.own.is_empty() && Arc::ptr_eq(&self.runs, &layout.runs) {
            return Plan::Current;
        }
        if !self.own.iter().all(|run| holds(&layout.runs, run)) || !covers(&layout.runs, &self.runs)
        {
            return Plan::Fresh;
        }
        let new: Vec<Run> = layout
            .runs
            .iter()
            .filter(|run| !holds(&self.runs, run) && !holds(&self.own, run))
            .copied()
            .collect();
        if new.is_empty() { Plan::Current } else { Plan::Runs(new) }
    }

    /// The worker did what [`Self::plan`] said.
    pub(super) fn planned(&mut self, layout: &MemoryLayout, now: Instant) {
        self.runs = layout.runs.clone();
        self.own.clear();
        self.used = now;
    }

    /// The worker appended and mapped `runs`.
    pub(super) fn appended(&mut self, runs: &[Run]) {
        self.own = runs.to_vec();
    }
}

/// The run among `runs`, ordered and disjoint, that may contain `page`.
fn at(runs: &[Run], page: u64) -> Option<&Run> {
    let after = runs.partition_point(|run| run.start_page <= page);
    after
        .checked_sub(1)
        .and_then(|index| runs.get(index))
        .filter(|run| page - run.start_page < run.pages)
}

/// Whether every page of `run` is where a run of `runs` says.
fn holds(runs: &[Run], run: &Run) -> bool {
    at(runs, run.start_page).is_some_and(|holder| {
        let skipped = run.start_page - holder.start_page;
        holder.segment == run.segment
            && holder.offset_page + skipped == run.offset_page
            && skipped + run.pages <= holder.pages
    })
}

/// Whether every page of `old` is a page of `new`, at any place.
fn covers(new: &[Run], old: &[Run]) -> bool {
    let mut rest: VecDeque<(u64, u64)> = VecDeque::new();
    let mut candidates = new.iter().peekable();
    for run in old {
        rest.push_back((run.start_page, run.start_page + run.pages));
        while let Some((start, end)) = rest.pop_front() {
            while candidates
                .next_if(|candidate| candidate.start_page + candidate.pages <= start)
                .is_some()
            {}
            match candidates.peek() {
                Some(candidate) if candidate.start_page <= start => {
                    let covered = candidate.start_page + candidate.pages;
                    if covered < end {
                        rest.push_back((covered, end));
                    }
                }
                _ => return false,
            }
        }
    }
    true
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use pages::{MemoryId, PageFile};
    use proptest::prelude::*;

    use super::*;

    fn layout(epoch: u64, runs: &[Run]) -> MemoryLayout {
        let base = Arc::new(std::fs::File::open("/dev/null").unwrap());
        MemoryLayout {
            id: MemoryId(1),
            version: 0,
            epoch,
            base: Arc::new(PageFile::from_file(base)),
            base_bytes: 0,
            parts: Arc::default(),
            segments: Arc::new([]),
            runs: runs.into(),
            pin: Arc::default(),
        }
    }

    fn run(start_page: u64, pages: u64, segment: u64, offset_page: u64) -> Run {
        Run { start_page, pages, segment: SegmentId(segment), offset_page }
    }

    #[test]
    fn own_runs_that_were_committed_need_nothing() {
        let old = layout(0, &[run(10, 4, 1, 0)]);
        let mut view = View::new(&old, Instant::now());
        assert_eq!(view.plan(&old), Plan::Current);
        view.appended(&[run(11, 1, 1, 4)]);
        let new = layout(0, &[run(10, 1, 1, 0), run(11, 1, 1, 4), run(12, 2, 1, 2)]);
        assert_eq!(view.plan(&new), Plan::Current);
        view.planned(&new, Instant::now());
        assert_eq!(view.plan(&new), Plan::Current);
    }

    #[test]
    fn own_runs_that_were_thrown_away_map_afresh() {
        let old = layout(0, &[]);
        let mut view = View::new(&old, Instant::now());
        view.appended(&[run(5, 1, 1, 100), run(7, 1, 1, 101)]);
        assert_eq!(view.plan(&old), Plan::Fresh);
        // Another lane used the space that was given back: one run is the same, the other is not.
        assert_eq!(view.plan(&layout(0, &[run(5, 1, 1, 100), run(8, 1, 1, 101)])), Plan::Fresh);
        // A superset brings what is new.
        assert_eq!(
            view.plan(&layout(0, &[run(5, 1, 1, 100), run(7, 1, 1, 101), run(9, 1, 1, 102)])),
            Plan::Runs(vec![run(9, 1, 1, 102)])
        );
    }

    #[test]
    fn folded_files_map_afresh() {
        let old = layout(0, &[run(1, 2, 1, 0)]);
        let view = View::new(&old, Instant::now());
        assert_eq!(view.plan(&layout(1, &[run(1, 2, 1, 0)])), Plan::Fresh);
        assert_eq!(
            view.plan(&layout(0, &[run(1, 1, 1, 0)])),
            Plan::Fresh,
            "a page fell back to the base"
        );
    }

    /// Place of each page.
    fn places(runs: &[Run]) -> std::collections::BTreeMap<u64, (u64, u64)> {
        runs.iter()
            .flat_map(|run| {
                (0..run.pages)
                    .map(move |n| (run.start_page + n, (run.segment.0, run.offset_page + n)))
            })
            .collect()
    }

    fn runs_of(places: &std::collections::BTreeMap<u64, (u64, u64)>) -> Vec<Run> {
        places.iter().map(|(page, (segment, offset))| run(*page, 1, *segment, *offset)).collect()
    }

    proptest! {
        #[test]
        fn a_plan_leads_to_the_layout(
            before in prop::collection::btree_map(0_u64..30, (0_u64..2, 0_u64..40), 0..20),
            own in prop::collection::btree_map(0_u64..30, (2_u64..3, 0_u64..40), 0..6),
            after in prop::collection::btree_map(0_u64..30, (0_u64..3, 0_u64..40), 0..25),
            committed in any::<bool>(),
        ) {
            let mut view = View::new(&layout(0, &runs_of(&before)), Instant::now());
            view.appended(&runs_of(&own));
            let mut mapped = before.clone();
            mapped.extend(own.clone());
            let mut wanted = after;
            if committed {
                let mut all = mapped.clone();
                all.extend(wanted);
                wanted = all;
            }
            let new = layout(0, &runs_of(&wanted));
            match view.plan(&new) {
                Plan::Fresh => {}
                Plan::Current => prop_assert_eq!(mapped, wanted),
                Plan::Runs(runs) => {
                    mapped.extend(places(&runs));
                    prop_assert_eq!(mapped, wanted);
                }
            }
        }
    }
}
