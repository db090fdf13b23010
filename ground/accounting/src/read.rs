//! Reading a small file of the kernel, never more than a fixed number of bytes of it.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

/// Most bytes read of any file here. The largest in practice, a mount table of a machine full of
/// containers, stays far below.
pub const READ_BYTES_MAX: u64 = 1 << 20;

/// Why a reading is not there.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file could not be read. For a process: it has gone.
    #[error("cannot read {path}: {source}")]
    Io {
        /// Path of the file that could not be read.
        path: PathBuf,
        /// Error of opening or reading it.
        source: io::Error,
    },
    /// The file is longer than anything this reads.
    #[error(
        "{path} is longer than {READ_BYTES_MAX} bytes, the most that is read of a file of the \
         kernel; it is not the file it should be"
    )]
    TooLong {
        /// Path of the file that is longer than [`READ_BYTES_MAX`].
        path: PathBuf,
    },
    /// The file does not have the expected format.
    #[error(
        "{path} does not hold `{wanted}`; the kernel may be older than this node expects (Linux \
         4.14), or the file is not the kernel's"
    )]
    Missing {
        /// Path of the file that lacks the field.
        path: PathBuf,
        /// The field looked for.
        wanted: &'static str,
    },
}

impl ReadError {
    /// Whether the file, and so the process or controller behind it, is not there (any more).
    pub fn is_gone(&self) -> bool {
        // A process that ends between open and read answers ESRCH.
        const ESRCH: i32 = 3;
        matches!(self, ReadError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound || source.raw_os_error() == Some(ESRCH))
    }
}

/// The text of `path`; bytes that are not UTF-8 (a mount point may have any name) are replaced, not
/// refused.
pub(crate) fn read_text(path: &Path) -> Result<String, ReadError> {
    let failed = |source| ReadError::Io { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    File::open(path)
        .map_err(failed)?
        .take(READ_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if bytes.len() as u64 > READ_BYTES_MAX {
        return Err(ReadError::TooLong { path: path.to_owned() });
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Value of the first line `<key> <number>` (with or without a colon after the key).
pub(crate) fn field(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let rest = line.strip_prefix(key)?;
        let rest = rest.strip_prefix(':').unwrap_or(rest);
        // `RssAnon` must not match `RssAnonHuge`.
        if !rest.starts_with([' ', '\t']) {
            return None;
        }
        rest.split_ascii_whitespace().next()?.parse().ok()
    })
}

/// Like [`field`] for the kernel's `kB` fields, in bytes.
pub(crate) fn field_kib(text: &str, key: &str) -> Option<u64> {
    field(text, key)?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_end_is_refused() {
        let error = read_text(Path::new("/dev/zero")).unwrap_err();
        assert!(matches!(error, ReadError::TooLong { .. }), "{error}");
    }

    #[test]
    fn missing_file_is_reported_as_gone() {
        assert!(read_text(Path::new("/proc/4194999/status")).unwrap_err().is_gone());
    }

    #[test]
    fn a_key_is_not_its_longer_sibling() {
        let text = "Pss_Anon:  7 kB\nPss:   5 kB\nrss_huge 3\nrss 2\n";
        assert_eq!(field_kib(text, "Pss"), Some(5120));
        assert_eq!(field(text, "rss"), Some(2));
        assert_eq!(field(text, "absent"), None);
        assert_eq!(field("key:\tx", "key"), None);
    }
}
