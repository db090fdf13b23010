//! Pages that are written but not committed yet, laid over a memory for one more execution.
//!
//! An installation may run two executions before it is known whether either counts. The pages of
//! the first are in an append target; here they become a layout that the second can mount, the rest
//! of the target becomes the second one's, and in the end the runs of both become one list. Runs
//! from workers were checked before they are used here.

use std::sync::Arc;

use pages::{AppendTarget, MemoryLayout, PAGE_BYTES, PageFile, Run};
use state::Memory;

/// A part of a target: `pages_max` beyond its first `skip` pages. The whole stays the one that
/// counts.
pub(super) fn part(target: &AppendTarget, skip: u64, bytes_max: u64) -> AppendTarget {
    AppendTarget {
        id: target.id,
        segment: target.segment,
        file: Arc::clone(&target.file),
        offset_page: target.offset_page + skip,
        pages_max: bytes_max.div_ceil(PAGE_BYTES).min(target.pages_max.saturating_sub(skip)),
        free: 0..0,
    }
}

/// Mounts what an execution wrote over a memory, as a version that is never seen again. Returns how
/// many pages of the target are used.
pub(super) fn mount_over(
    memory: &mut Memory,
    target: &AppendTarget,
    runs: &[Run],
    wasm_pages: u64,
) -> u64 {
    /// Set in the versions of overlays, which no commit ever reaches.
    const OVERLAY: u64 = 1 << 63;
    memory.wasm_pages = wasm_pages;
    if let Some(layout) = memory.layout.as_mut().filter(|_| !runs.is_empty()) {
        let mut segments: Vec<_> = layout.segments.to_vec();
        if !segments.iter().any(|(segment, _)| *segment == target.segment) {
            let file = Arc::new(PageFile::from_file(Arc::clone(&target.file)));
            segments.push((target.segment, file));
        }
        *layout = MemoryLayout {
            version: layout.version | OVERLAY,
            runs: overlay(&layout.runs, runs).into(),
            segments: segments.into(),
            ..layout.clone()
        };
    }
    runs.iter().map(|run| run.offset_page + run.pages - target.offset_page).max().unwrap_or(0)
}

/// Runs of `below` where `above` has none, and those of `above`. Both ordered and disjoint, as is
/// the result.
pub(super) fn overlay(below: &[Run], above: &[Run]) -> Vec<Run> {
    let mut result: Vec<Run> = above.to_vec();
    let mut hiding = above.iter().peekable();
    for run in below {
        let (mut start, end) = (run.start_page, run.start_page + run.pages);
        let cut = |from: u64, to: u64| Run {
            start_page: from,
            pages: to - from,
            offset_page: run.offset_page + (from - run.start_page),
            ..*run
        };
        while hiding.peek().is_some_and(|hide| hide.start_page + hide.pages <= start) {
            hiding.next();
        }
        for hide in hiding.clone() {
            if hide.start_page >= end {
                break;
            }
            if hide.start_page > start {
                result.push(cut(start, hide.start_page));
            }
            start = start.max(hide.start_page + hide.pages);
        }
        if start < end {
            result.push(cut(start, end));
        }
    }
    result.sort_by_key(|run| run.start_page);
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use pages::SegmentId;
    use proptest::prelude::*;

    fn run(start_page: u64, pages: u64, offset_page: u64) -> Run {
        Run { start_page, pages, segment: SegmentId(1), offset_page }
    }

    #[test]
    fn later_pages_hide_earlier_ones() {
        let below = [run(0, 10, 100), run(20, 5, 110)];
        let above = [run(2, 3, 200), run(8, 14, 203)];
        assert_eq!(
            overlay(&below, &above),
            [run(0, 2, 100), run(2, 3, 200), run(5, 3, 105), run(8, 14, 203), run(22, 3, 112)]
        );
        assert_eq!(overlay(&below, &[]), below);
        assert_eq!(overlay(&[], &above), above);
    }

    fn runs(base: u64) -> impl Strategy<Value = Vec<Run>> {
        prop::collection::vec((0u64..5, 1u64..5), 0..8).prop_map(move |gaps| {
            let (mut page, mut offset) = (0, base);
            gaps.into_iter()
                .map(|(gap, pages)| {
                    let run = run(page + gap, pages, offset);
                    page += gap + pages;
                    offset += pages;
                    run
                })
                .collect()
        })
    }

    proptest! {
        #[test]
        fn every_page_comes_from_the_newest_run(below in runs(1_000), above in runs(2_000)) {
            let lookup = |runs: &[Run], page: u64| {
                runs.iter()
                    .find(|run| (run.start_page..run.start_page + run.pages).contains(&page))
                    .map(|run| run.offset_page + page - run.start_page)
            };
            let merged = overlay(&below, &above);
            for page in 0..100 {
                prop_assert_eq!(lookup(&merged, page), lookup(&above, page).or_else(|| lookup(&below, page)));
            }
            prop_assert!(merged.windows(2).all(|pair| pair[0].start_page + pair[0].pages <= pair[1].start_page));
        }
    }
}
