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
#[expect(missing_docs, reason = "the text of an error describes it and its fields")]
pub enum PagesError {
    /// The delta log has no room for another round. Take a checkpoint, fold, take another, and ask
    /// again.
    #[error(
        "the delta log holds {used_bytes} bytes and a round begins below {limit_bytes} \
         (pages.delta_capacity_bytes - pages.delta_reserve_bytes): execution has to wait for a \
         checkpoint and a fold"
    )]
    DeltaFull { limit_bytes: u64, used_bytes: u64 },
    #[error("memory {} does not exist", .0.0)]
    UnknownMemory(MemoryId),
    /// The id is in use, or was removed and no checkpoint without it is durable yet.
    #[error("memory {} exists already, or its removal waits for a checkpoint", .0.0)]
    MemoryExists(MemoryId),
    #[error("an append target of memory {} is still out: commit it or drop it (and every clone of its file) first", .0.0)]
    Busy(MemoryId),
    #[error("memory {} cannot be {base_bytes} bytes long: it must be a multiple of 4096 below 2^63", .id.0)]
    BadSize { id: MemoryId, base_bytes: u64 },
    #[error("cannot reserve {pages} pages for memory {}: the segment would pass the largest file offset", .id.0)]
    BadReservation { id: MemoryId, pages: u64 },
    #[error("the append target of memory {} is not the one that was handed out last", .0.0)]
    ForeignTarget(MemoryId),
    /// A worker returned runs that it could not have written. Its message must not count.
    #[error("the worker returned a bad run {run:?} for memory {}: {fault}", .id.0)]
    BadRun { id: MemoryId, run: Run, fault: RunFault },
    #[error("the checkpoint's index of memory {} is damaged: {fault}; see docs/operating.md, \"When the disk was damaged\"", .id.0)]
    BadIndex { id: MemoryId, fault: IndexFault },
    #[error("{} is missing although the checkpoint names it; see docs/operating.md, \"When the disk was damaged\"", .path.display())]
    MissingFile { path: PathBuf },
    /// A file was deleted because an older version of its memory could not be kept for its reader.
    #[error("{} was folded while it was to be read; the newest state has its pages elsewhere", .path.display())]
    Gone { path: PathBuf },
    #[error("{} is {found_bytes} bytes long and should be {expected_bytes}: it was truncated", .path.display())]
    ShortFile { path: PathBuf, expected_bytes: u64, found_bytes: u64 },
    /// A read beyond the end of the memory, or of a length that is not a multiple of a page.
    #[error("{bytes} bytes from page {start_page} on are not whole pages within memory {} of {base_bytes} bytes", .id.0)]
    OutOfRange { id: MemoryId, start_page: u64, bytes: u64, base_bytes: u64 },
    /// ENOSPC or EDQUOT.
    #[error("cannot {action} {}: the disk or the quota is full ({source}); free disk space", .path.display())]
    DiskFull { action: &'static str, path: PathBuf, source: io::Error },
    /// EFBIG: the file system or RLIMIT_FSIZE does not allow a file of this length.
    #[error("cannot {action} {}: the file system or RLIMIT_FSIZE does not allow a file that long ({source})", .path.display())]
    FileTooLarge { action: &'static str, path: PathBuf, source: io::Error },
    /// EACCES, EPERM or EROFS.
    #[error("cannot {action} {}: not permitted or read-only ({source}); check the owner and mount options of the data folder", .path.display())]
    NotWritable { action: &'static str, path: PathBuf, source: io::Error },
    /// EMFILE or ENFILE.
    #[error("cannot {action} {}: too many open files ({source}); raise RLIMIT_NOFILE", .path.display())]
    TooManyOpenFiles { action: &'static str, path: PathBuf, source: io::Error },
    /// Any other failure of the file system.
    #[error("cannot {action} {}: {source}", .path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("{} is in use by another process", .dir.display())]
    Locked { dir: PathBuf },
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
#[expect(missing_docs, reason = "the text of an error describes it and its fields")]
pub enum RunFault {
    #[error("it is empty")]
    Empty,
    #[error("it names another segment")]
    OtherSegment,
    #[error("it is out of order or overlaps the run before it")]
    Disordered,
    #[error("it reaches past the end of the memory")]
    PastMemory,
    #[error("it is outside the reserved range of the segment")]
    OutsideTarget,
    #[error("it shares pages of the segment with another run")]
    SharedPages,
    #[error("the segment file ends before it")]
    NotWritten,
}

/// What is wrong with a durable index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the text of an error describes it and its fields")]
pub enum IndexFault {
    #[error("the memory is named twice")]
    Twice,
    #[error("its base length is impossible")]
    BadSize,
    #[error("a run is empty")]
    EmptyRun,
    #[error("runs overlap or are not in order")]
    Disordered,
    #[error("its parts of other base files are impossible")]
    BadParts,
    #[error("its borrowed segments are impossible")]
    BadBorrowed,
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
