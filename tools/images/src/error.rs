//! Why something was not done. Every message names the file, what it lacks or the limit it met with
//! its value, and where there is something to do, what.

use std::{
    io,
    path::{Path, PathBuf},
};

use accounting::format_size;

use crate::id::BaseId;

/// Most overlays that a message names; the rest are counted.
const NAMED_MAX: usize = 8;

/// See the module.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused.
    #[error("{doing} {}: {source}", path.display())]
    Io {
        /// The operation, as in "opening".
        doing: &'static str,
        /// With which file or folder.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A file that is not taken for an image, or not with these options.
    #[error("{}: {why}", path.display())]
    Refused {
        /// The file or folder that is refused.
        path: PathBuf,
        /// The problem, and how to solve it.
        why: String,
    },
    /// A disk that is larger than [`crate::Settings::limit_bytes`].
    #[error(
        "{}: its disk is larger than the limit of {} (--limit); {} of the file were read by \
        then. A disk that is meant to be so large is taken with a higher limit",
        path.display(), format_size(*limit_bytes), format_size(*read_bytes)
    )]
    TooLarge {
        /// The image file.
        path: PathBuf,
        /// Most bytes that its disk may have.
        limit_bytes: u64,
        /// How much of the file made so much disk.
        read_bytes: u64,
    },
    /// The file system would have less room than [`crate::Settings::reserve_bytes`].
    #[error(
        "{}: {} are free and {} are kept free (--reserve); {} were needed so far, which are \
        given back. Free some room, for example with `image collect`, or name another folder \
        with --cache",
        folder.display(), format_size(*free_bytes), format_size(*reserve_bytes), format_size(*written_bytes)
    )]
    NoRoom {
        /// The folder that was written into.
        folder: PathBuf,
        /// Free bytes.
        free_bytes: u64,
        /// Bytes that must stay free.
        reserve_bytes: u64,
        /// Bytes that this work had written.
        written_bytes: u64,
    },
    /// A base that overlays need.
    #[error("base {id} is in use by {}; remove them first", named(users))]
    InUse {
        /// The base that was to be removed.
        id: BaseId,
        /// Paths of the overlays that need it.
        users: Vec<PathBuf>,
    },
    /// A base that is not what it was.
    #[error(
        "base {id} {why}{}. `image add` of the file it came from ({}) brings it back",
        needed(users),
        from.display()
    )]
    Damaged {
        /// The base that is missing or has changed.
        id: BaseId,
        /// The problem: "is missing", "has other content".
        why: String,
        /// The overlays that need it.
        users: Vec<PathBuf>,
        /// The file it was made from.
        from: PathBuf,
    },
    /// No base of this name.
    #[error("there is no base {text} in {}: `image list` shows which there are, `image add` adds \
    one", cache.display())]
    Unknown {
        /// The id, or the beginning of one, as it was given.
        text: String,
        /// Folder of the cache that was searched.
        cache: PathBuf,
    },
    /// qemu-img is not installed.
    #[error(
        "{} is not installed; it comes with the package qemu-utils (Debian, Ubuntu: apt-get \
        install qemu-utils), qemu-img (Fedora, Alpine) or qemu (Arch, Homebrew)",
        program.display()
    )]
    NoTool {
        /// The missing program.
        program: PathBuf,
    },
    /// qemu-img could not be run, failed, or gave an answer that cannot be read.
    #[error("{command}: {words}")]
    Tool {
        /// The command, shortened.
        command: String,
        /// Its error output, or how it ended.
        words: String,
    },
    /// [`crate::Stop`] asked to end.
    #[error("stopped")]
    Stopped,
}

impl Error {
    pub(crate) fn io<'a>(doing: &'static str, path: &'a Path) -> impl Fn(io::Error) -> Self + 'a {
        move |source| Self::Io { doing, path: path.to_owned(), source }
    }

    pub(crate) fn refused(path: &Path, why: impl Into<String>) -> Self {
        Self::Refused { path: path.to_owned(), why: why.into() }
    }
}

fn needed(users: &[PathBuf]) -> String {
    if users.is_empty() { String::new() } else { format!("; it is needed by {}", named(users)) }
}

/// "overlays a, b and 3 more"
pub(crate) fn named(paths: &[PathBuf]) -> String {
    let mut words =
        paths.iter().take(NAMED_MAX).map(|path| path.display().to_string()).collect::<Vec<_>>();
    if let Some(more) = paths.len().checked_sub(NAMED_MAX).filter(|more| *more > 0) {
        words.push(format!("{more} more"));
    }
    match words.split_last() {
        Some((last, [])) => format!("overlay {last}"),
        Some((last, rest)) => format!("overlays {} and {last}", rest.join(", ")),
        None => "no overlay".to_owned(),
    }
}
