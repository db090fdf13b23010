//! Types of canister memory on disk: the memory, the place of its pages, the runs a worker wrote.

use std::{
    fs::File,
    ops::{Deref, Range},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

use serde::{Deserialize, Serialize};

use crate::PageFile;

/// A page of the page index: the operating system's, 4 KiB.
pub const PAGE_BYTES: u64 = 4096;

/// One memory (a canister's heap or its stable memory, in one incarnation). Allocated from a
/// replicated counter, so the same on every node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MemoryId(pub u64);

/// Which file of a memory holds a run of delta pages. Grows by one at every checkpoint that seals
/// the file before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SegmentId(pub u64);

/// A base file. That of number 0 is the one its memory was created with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BaseId {
    /// The memory that made it.
    pub memory: MemoryId,
    /// Counts those that it made.
    pub number: u64,
}

impl BaseId {
    /// The one that a memory is created with.
    pub fn initial(memory: MemoryId) -> Self {
        Self { memory, number: 0 }
    }
}

/// `pages` pages of the memory from `start_page` on, which are in a base file other than the one
/// the memory was created with, at the same offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BaseRun {
    /// First page, in the memory and in the file.
    pub start_page: u64,
    /// Number of pages, at least 1.
    pub pages: u64,
    /// The file.
    pub base: BaseId,
}

/// A segment that runs name and that another memory wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BorrowedSegment {
    /// Its name in runs.
    pub segment: SegmentId,
    /// The memory that wrote it.
    pub owner: MemoryId,
    /// Its id in that memory.
    pub id: SegmentId,
}

/// `pages` pages of the memory from `start_page` on, stored in `segment` from `offset_page` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// First page within the memory.
    pub start_page: u64,
    /// Number of pages, at least 1.
    pub pages: u64,
    /// The delta segment that holds them.
    pub segment: SegmentId,
    /// First page within that segment.
    pub offset_page: u64,
}

/// One memory's index. Pages that neither a run nor a part names are in the base file that the
/// memory was created with, at offset = page number; a run shadows a part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryIndex {
    /// Delta: disjoint, ordered by `start_page`.
    pub runs: Vec<Run>,
    /// Disjoint, ordered by `start_page`.
    pub parts: Vec<BaseRun>,
    /// Ordered by `segment`.
    pub borrowed: Vec<BorrowedSegment>,
}

/// Pages of a layout that are in another base file than [`MemoryLayout::base`], at the same offset.
#[derive(Clone, Debug)]
pub struct BasePart {
    /// First page, in the memory and in the file.
    pub start_page: u64,
    /// Number of pages.
    pub pages: u64,
    /// The file.
    pub file: Arc<PageFile>,
}

/// One version of one memory, ready to be mapped: the base file, the parts of others that shadow
/// it, and the runs that shadow both. Cheap to clone; holding it keeps the files alive, open or
/// not, and keeps its pages from being overwritten.
#[derive(Clone, Debug)]
pub struct MemoryLayout {
    /// The memory that it is a version of.
    pub id: MemoryId,
    /// Rises by one at every commit. Equal versions have equal content.
    pub version: u64,
    /// Rises whenever the files behind a version change (fold). A mapping made from an older epoch
    /// is valid only as long as its layout is kept: pages of a base file that the newest layout
    /// does not reference any more are returned.
    pub epoch: u64,
    /// The base file: sparse, as long as the memory may ever grow, so that growth maps nothing
    /// new.
    pub base: Arc<PageFile>,
    /// Length of the base file in bytes.
    pub base_bytes: u64,
    /// Pages that are in base files shared with other memories: disjoint, ordered by `start_page`.
    pub parts: Arc<[BasePart]>,
    /// Files that the runs refer to.
    pub segments: Arc<[(SegmentId, Arc<PageFile>)]>,
    /// Disjoint, ordered by `start_page`.
    pub runs: Arc<[Run]>,
    /// Shared by the layouts of this version that name the same base pages; a fold waits until the
    /// pins of older versions are gone, or cuts them off.
    pub pin: Arc<Pin>,
}

impl MemoryLayout {
    /// Whether folding cut off this version: data that is read through it from now on, and data
    /// that was read lately, may be of newer versions.
    ///
    /// Readers of a layout that is not held ([`HeldLayout`]) check this after reading, before they
    /// use any of what was read.
    pub fn is_cut_off(&self) -> bool {
        self.pin.is_cut_off()
    }

    /// Whether a file of it is gone: the delta log was full, and as many files as may be were open
    /// without a name already.
    pub fn is_gone(&self) -> bool {
        self.base.is_gone()
            || self.parts.iter().any(|part| part.file.is_gone())
            || self.segments.iter().any(|(_, file)| file.is_gone())
    }

    /// The base files that hold these pages, in their order.
    pub(crate) fn bases(&self, pages: Range<u64>) -> impl Iterator<Item = (&PageFile, Range<u64>)> {
        let mut at = pages.start;
        let mut next = self.parts.partition_point(|part| part.start_page + part.pages <= at);
        std::iter::from_fn(move || {
            let part = self.parts.get(next);
            let start = at;
            let file = match part {
                _ if at >= pages.end => return None,
                Some(part) if part.start_page <= at => {
                    next += 1;
                    at = part.start_page + part.pages;
                    &part.file
                }
                Some(part) => {
                    at = part.start_page;
                    &self.base
                }
                None => {
                    at = pages.end;
                    &self.base
                }
            };
            at = at.min(pages.end);
            Some((file.as_ref(), start..at))
        })
    }
}

/// Marks a version that is being read.
#[derive(Debug, Default)]
pub struct Pin {
    /// Number of holders, which keep it from being cut off; [`CUT_OFF`] once it is.
    holders: AtomicU64,
}

/// No number of holders.
const CUT_OFF: u64 = u64::MAX;

impl Pin {
    pub(crate) fn is_cut_off(&self) -> bool {
        self.holders.load(SeqCst) == CUT_OFF
    }

    /// Whether a holder keeps it from being cut off.
    pub(crate) fn is_held(&self) -> bool {
        !matches!(self.holders.load(SeqCst), 0 | CUT_OFF)
    }

    /// Cuts the readers of this version off unless it is held. Returns whether they are cut off
    /// now.
    pub(crate) fn cut_off(&self) -> bool {
        matches!(self.holders.compare_exchange(0, CUT_OFF, SeqCst, SeqCst), Ok(_) | Err(CUT_OFF))
    }

    fn hold(&self) -> bool {
        let one_more = |holders: u64| holders.checked_add(1).filter(|more| *more < CUT_OFF);
        self.holders.fetch_update(SeqCst, SeqCst, one_more).is_ok()
    }
}

/// A layout that folding waits for without a time limit. For readers whose bytes cannot be checked
/// afterwards; the code that creates them bounds their number.
#[derive(Debug)]
pub struct HeldLayout(MemoryLayout);

impl HeldLayout {
    /// None when the layout was cut off already.
    pub fn new(layout: MemoryLayout) -> Option<Self> {
        if layout.pin.hold() { Some(Self(layout)) } else { None }
    }
}

impl Deref for HeldLayout {
    type Target = MemoryLayout;

    fn deref(&self) -> &MemoryLayout {
        &self.0
    }
}

impl Drop for HeldLayout {
    fn drop(&mut self) {
        let holders = self.0.pin.holders.fetch_sub(1, SeqCst);
        debug_assert!((1..CUT_OFF).contains(&holders), "a version is held by {holders}");
    }
}

/// Where the dirty pages of the next message of one memory go. Exclusive: one at a time per memory.
/// Dropping it without a commit gives the space back.
#[derive(Debug)]
pub struct AppendTarget {
    /// The memory whose dirty pages are appended.
    pub id: MemoryId,
    /// The open segment.
    pub segment: SegmentId,
    /// Its file, writable.
    pub file: Arc<File>,
    /// First free page of the segment.
    pub offset_page: u64,
    /// Pages that may be written from there.
    pub pages_max: u64,
    /// Pages of the segment before that which no version needs. A message that writes at most as
    /// many pages may put all of them there, and none at the end. Empty if there are none.
    pub free: Range<u64>,
}
