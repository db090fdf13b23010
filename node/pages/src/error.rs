//! Errors. Each message names the file or limit, its value, and what to do.
//!
//! Every error leaves the store consistent: the call had no effect unless its documentation says
//! otherwise.

use std::{
    io,
    path::{Path, PathBuf},
};

use crate::{MemoryId, Run};

/// Why a call of the page store failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PagesError {
    /// The delta log has no room for another round. Take a checkpoint, fold, take another, and ask
    /// again.
    #[error(
        "the delta log holds {used_bytes} bytes and a round begins below {limit_bytes} \
         (pages.delta_capacity_bytes - pages.delta_reserve_bytes): execution has to wait for a \
         checkpoint and a fold"
    )]
    DeltaFull {
        /// `delta_capacity_bytes` without `delta_reserve_bytes`.
        limit_bytes: u64,
        /// Delta on disk now, or a page for each entry of the indexes, if that is more.
        used_bytes: u64,
    },
    /// No such memory, or it was removed.
    #[error("memory {} does not exist", .0.0)]
    UnknownMemory(MemoryId),
    /// The id is in use, or was removed and no checkpoint without it is durable yet.
    #[error("memory {} exists already, or its removal waits for a checkpoint", .0.0)]
    MemoryExists(MemoryId),
    /// An append target of this memory is still held by someone.
    #[error("an append target of memory {} is still out: commit it or drop it (and every clone of its file) first", .0.0)]
    Busy(MemoryId),
    /// A memory size that no file can have.
    #[error("memory {} cannot be {base_bytes} bytes long: it must be a multiple of 4096 below 2^63", .id.0)]
    BadSize {
        /// The memory whose size was asked for.
        id: MemoryId,
        /// Requested size.
        base_bytes: u64,
    },
    /// More pages than a file can hold.
    #[error("cannot reserve {pages} pages for memory {}: the segment would pass the largest file offset", .id.0)]
    BadReservation {
        /// The memory for which pages were asked.
        id: MemoryId,
        /// Requested number of pages.
        pages: u64,
    },
    /// The append target is not the one that is out for this memory.
    #[error("the append target of memory {} is not the one that was handed out last", .0.0)]
    ForeignTarget(MemoryId),
    /// A worker returned runs that it could not have written. Its message must not count.
    #[error("the worker returned a bad run {run:?} for memory {}: {fault}", .id.0)]
    BadRun {
        /// The memory that the worker ran on.
        id: MemoryId,
        /// The first bad one.
        run: Run,
        /// The fault.
        fault: RunFault,
    },
    /// The durable index cannot be right.
    #[error("the checkpoint's index of memory {} is damaged: {fault}; see docs/operating.md, \"When the disk was damaged\"", .id.0)]
    BadIndex {
        /// The memory whose index it is.
        id: MemoryId,
        /// The fault.
        fault: IndexFault,
    },
    /// A file that an index names is missing.
    #[error("{} is missing although the checkpoint names it; see docs/operating.md, \"When the disk was damaged\"", .path.display())]
    MissingFile {
        /// The base file or segment that should be there.
        path: PathBuf,
    },
    /// A file was deleted because an older version of its memory could not be kept for its reader.
    #[error("{} was folded while it was to be read; the newest state has its pages elsewhere", .path.display())]
    Gone {
        /// The file.
        path: PathBuf,
    },
    /// A file ends before the pages that an index names.
    #[error("{} is {found_bytes} bytes long and should be {expected_bytes}: it was truncated", .path.display())]
    ShortFile {
        /// The base file or segment that is too short.
        path: PathBuf,
        /// Bytes up to the end of the last page that the index names.
        expected_bytes: u64,
        /// Bytes that the file has.
        found_bytes: u64,
    },
    /// A read beyond the end of the memory, or of a length that is not a multiple of a page.
    #[error("{bytes} bytes from page {start_page} on are not whole pages within memory {} of {base_bytes} bytes", .id.0)]
    OutOfRange {
        /// The memory that was read.
        id: MemoryId,
        /// First page of the read, of 4 KiB.
        start_page: u64,
        /// Length of the read.
        bytes: u64,
        /// Length of the memory.
        base_bytes: u64,
    },
    /// ENOSPC or EDQUOT.
    #[error("cannot {action} {}: the disk or the quota is full ({source}); free disk space", .path.display())]
    DiskFull {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// EFBIG: the file system or RLIMIT_FSIZE does not allow a file of this length.
    #[error("cannot {action} {}: the file system or RLIMIT_FSIZE does not allow a file that long ({source})", .path.display())]
    FileTooLarge {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// EACCES, EPERM or EROFS.
    #[error("cannot {action} {}: not permitted or read-only ({source}); check the owner and mount options of the data folder", .path.display())]
    NotWritable {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// EMFILE or ENFILE.
    #[error("cannot {action} {}: too many open files ({source}); raise RLIMIT_NOFILE", .path.display())]
    TooManyOpenFiles {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// Any other failure of the file system.
    #[error("cannot {action} {}: {source}", .path.display())]
    Io {
        /// The failed operation.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// Another process has the directory open.
    #[error("{} is in use by another process", .dir.display())]
    Locked {
        /// The directory of the page store.
        dir: PathBuf,
    },
    /// A segment could not be made durable, so the kernel may have dropped pages that were never
    /// written. Restart from the last checkpoint.
    #[error(
        "an earlier sync of the delta log failed, pages since the last checkpoint may be lost: \
         free disk space and restart the node, it replays from that checkpoint"
    )]
    SyncLost,
    /// A newer checkpoint was begun after this one.
    #[error("this checkpoint was given up: a newer one was begun")]
    StaleTicket,
}

/// What is wrong with a run that a worker returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RunFault {
    /// A run of no page.
    #[error("it is empty")]
    Empty,
    /// A segment other than the target's.
    #[error("it names another segment")]
    OtherSegment,
    /// Starts before the end of the one before it.
    #[error("it is out of order or overlaps the run before it")]
    Disordered,
    /// Past the end of the memory.
    #[error("it reaches past the end of the memory")]
    PastMemory,
    /// Outside the reserved range of the segment.
    #[error("it is outside the reserved range of the segment")]
    OutsideTarget,
    /// Shares segment pages with another run.
    #[error("it shares pages of the segment with another run")]
    SharedPages,
    /// The segment file ends before it: the worker wrote less than it says.
    #[error("the segment file ends before it")]
    NotWritten,
}

/// What is wrong with a durable index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IndexFault {
    /// The memory is named twice.
    #[error("the memory is named twice")]
    Twice,
    /// The length of the base file is not a multiple of a page, or too large.
    #[error("its base length is impossible")]
    BadSize,
    /// A run is empty.
    #[error("a run is empty")]
    EmptyRun,
    /// Runs overlap or are not ordered.
    #[error("runs overlap or are not in order")]
    Disordered,
    /// Parts overlap, are not ordered, empty, or reach past the end of the memory or of any file.
    #[error("its parts of other base files are impossible")]
    BadParts,
    /// A borrowed segment is named twice, or is the memory's own.
    #[error("its borrowed segments are impossible")]
    BadBorrowed,
    /// A run reaches past the memory or past the largest file offset.
    #[error("a run reaches past the end of the memory or of any file")]
    PastEnd,
}

impl PagesError {
    /// Sorts what the system said into the kinds that a caller can act on.
    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        let path = path.to_path_buf();
        match source.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT) => Self::DiskFull { action, path, source },
            Some(libc::EFBIG) => Self::FileTooLarge { action, path, source },
            Some(libc::EACCES | libc::EPERM | libc::EROFS) => {
                Self::NotWritable { action, path, source }
            }
            Some(libc::EMFILE | libc::ENFILE) => Self::TooManyOpenFiles { action, path, source },
            _ => Self::Io { action, path, source },
        }
    }

    /// Whether the same call may succeed later in the same process, because what is in its way can
    /// be freed or mended from outside.
    pub fn can_heal(&self) -> bool {
        match self {
            Self::DeltaFull { .. }
            | Self::DiskFull { .. }
            | Self::FileTooLarge { .. }
            | Self::NotWritable { .. }
            | Self::TooManyOpenFiles { .. }
            | Self::Busy(_)
            | Self::Gone { .. }
            | Self::StaleTicket => true,
            // The folder is away: a file system that was unmounted can be mounted again.
            Self::Io { action: "create", source, .. }
                if source.kind() == io::ErrorKind::NotFound =>
            {
                true
            }
            Self::Io { source, .. } => lifecycle::can_heal(source),
            Self::UnknownMemory(_)
            | Self::MemoryExists(_)
            | Self::BadSize { .. }
            | Self::BadReservation { .. }
            | Self::ForeignTarget(_)
            | Self::BadRun { .. }
            | Self::BadIndex { .. }
            | Self::MissingFile { .. }
            | Self::ShortFile { .. }
            | Self::OutOfRange { .. }
            | Self::Locked { .. }
            | Self::SyncLost => false,
        }
    }

    /// Whether a worker is to blame: its message must fail, and the worker should be restarted.
    pub fn is_worker_fault(&self) -> bool {
        matches!(self, Self::BadRun { .. })
    }
}
