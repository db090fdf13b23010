//! Errors of the operating system, classified by whether waiting helps.

use std::io::{Error, ErrorKind};

/// Whether the same call may succeed later in the same process: after disk, memory or descriptors
/// are freed, a quota is raised, permissions are repaired or the file system is mounted for writing
/// again.
///
/// A device that reports errors (EIO) does not count: after a failed sync the system may treat
/// unwritten pages as written, so a later success would prove nothing.
pub fn can_heal(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::StorageFull
            | ErrorKind::QuotaExceeded
            | ErrorKind::FileTooLarge
            | ErrorKind::PermissionDenied
            | ErrorKind::ReadOnlyFilesystem
            | ErrorKind::OutOfMemory
            | ErrorKind::ResourceBusy
            | ErrorKind::Interrupted
            | ErrorKind::WouldBlock
            | ErrorKind::TimedOut
    ) || matches!(error.raw_os_error(), Some(EMFILE | ENFILE | ENOBUFS))
}

// They have no kind of their own. Numbers of Linux on x86 and ARM.
/// Too many open files in the system.
const ENFILE: i32 = 23;
/// Too many open files in the process.
const EMFILE: i32 = 24;
/// No room for buffers.
const ENOBUFS: i32 = 105;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_person_can_free_heals_and_what_is_lost_does_not() {
        // ENOMEM, EACCES, ENFILE, EMFILE, EFBIG, ENOSPC, EROFS, EDQUOT
        for number in [12, 13, 23, 24, 27, 28, 30, 122] {
            let error = Error::from_raw_os_error(number);
            assert!(can_heal(&error), "{error}");
        }
        // ENOENT, EIO, EBADF, ENODEV, EINVAL, ESTALE
        for number in [2, 5, 9, 19, 22, 116] {
            let error = Error::from_raw_os_error(number);
            assert!(!can_heal(&error), "{error}");
        }
        assert!(!can_heal(&Error::new(ErrorKind::InvalidData, "a checksum does not fit")));
    }
}
