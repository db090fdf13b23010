//! Follows a log while other processes write, truncate or replace it.
//!
//! Bounds: the part of an existing log that is read, the bytes read at a time, and the length of a
//! line. A log that grows faster than it is read loses its middle, which is counted.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, SeekFrom},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

use crate::gc::LINE_BYTES_MAX;

/// Most bytes read at a time, and most of a log that was there before.
const READ_BYTES_MAX: u64 = 8 << 20;
const PIECE_BYTES: usize = 64 << 10;

/// See the module.
#[derive(Debug)]
pub(crate) struct Tail {
    path: PathBuf,
    file: File,
    position: u64,
    /// The part read so far of an incomplete line.
    begun: Vec<u8>,
    /// The line under way is too long, or its beginning was not read.
    passing_over: bool,
    /// Bytes that were not read because the log grew too fast.
    pub(crate) skipped_bytes: u64,
    /// How often it was cut off or replaced.
    pub(crate) begun_anew: u64,
}

impl Tail {
    /// Errors: the file cannot be opened, or is not a regular file.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = open(path).with_context(|| format!("cannot read the log {}", path.display()))?;
        if !file.metadata()?.is_file() {
            bail!("the log {} is no regular file, so it cannot be followed", path.display());
        }
        Ok(Self {
            path: path.to_owned(),
            file,
            position: 0,
            begun: Vec::new(),
            passing_over: false,
            skipped_bytes: 0,
            begun_anew: 0,
        })
    }

    /// Hands over every line that is new.
    pub(crate) fn poll(&mut self, mut line: impl FnMut(&str)) -> io::Result<()> {
        let length = self.file.metadata()?.len();
        if length < self.position {
            self.begin_anew();
        }
        self.read(length, &mut line)?;
        // Another file in its place: the old one was read to its end just now.
        let place = fs::metadata(&self.path).ok();
        let own = self.file.metadata()?;
        if place.is_some_and(|place| {
            place.is_file() && (place.dev(), place.ino()) != (own.dev(), own.ino())
        }) {
            self.file = open(&self.path)?;
            self.begin_anew();
            let length = self.file.metadata()?.len();
            self.read(length, &mut line)?;
        }
        Ok(())
    }

    fn begin_anew(&mut self) {
        self.position = 0;
        self.begun.clear();
        self.passing_over = false;
        self.begun_anew += 1;
    }

    fn read(&mut self, length: u64, line: &mut impl FnMut(&str)) -> io::Result<()> {
        if length.saturating_sub(self.position) > READ_BYTES_MAX {
            let from = length - READ_BYTES_MAX;
            self.skipped_bytes = self.skipped_bytes.saturating_add(from - self.position);
            self.position = from;
            self.begun.clear();
            self.passing_over = true;
        }
        self.file.seek(SeekFrom::Start(self.position))?;
        let mut piece = vec![0; PIECE_BYTES];
        let mut left = READ_BYTES_MAX;
        while left > 0 {
            let count = match self.file.read(&mut piece) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            self.position += count as u64;
            left = left.saturating_sub(count as u64);
            self.push(&piece[..count], line);
        }
        Ok(())
    }

    fn push(&mut self, piece: &[u8], line: &mut impl FnMut(&str)) {
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            let is_whole = part.ends_with(b"\n");
            if !self.passing_over {
                self.begun.extend_from_slice(part);
            }
            if self.begun.len() > LINE_BYTES_MAX {
                // A log that was cut off while its writer kept its place begins with zeros.
                let zeros = self.begun.iter().take_while(|byte| **byte == 0).count();
                self.begun.drain(..zeros);
                if self.begun.len() > LINE_BYTES_MAX {
                    self.begun.clear();
                    self.passing_over = true;
                }
            }
            if is_whole {
                if !self.passing_over {
                    let text = String::from_utf8_lossy(&self.begun);
                    line(text.trim_start_matches('\0').trim_end());
                }
                self.begun.clear();
                self.passing_over = false;
            }
        }
    }
}

/// Without waiting for a writer, should it be a pipe.
fn open(path: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
    OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn lines(tail: &mut Tail) -> Vec<String> {
        let mut lines = Vec::new();
        tail.poll(|line| lines.push(line.to_owned())).unwrap();
        lines
    }

    #[test]
    fn a_line_is_handed_over_once_it_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut file = File::create(&path).unwrap();
        file.write_all(b"one\ntw").unwrap();
        let mut tail = Tail::open(&path).unwrap();
        assert_eq!(lines(&mut tail), ["one"]);
        file.write_all(b"o\r\n").unwrap();
        assert_eq!(lines(&mut tail), ["two"]);
        assert!(lines(&mut tail).is_empty());
    }

    #[test]
    fn a_log_that_is_cut_off_or_replaced_is_read_from_its_beginning() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut file = File::create(&path).unwrap();
        file.write_all(b"one, which is long\n").unwrap();
        let mut tail = Tail::open(&path).unwrap();
        assert_eq!(lines(&mut tail).len(), 1);
        // The writer keeps its place: the gap reads as zeros.
        file.set_len(0).unwrap();
        assert!(lines(&mut tail).is_empty());
        file.write_all(b"two\n").unwrap();
        assert_eq!(lines(&mut tail), ["two"]);
        file.write_all(b"last\n").unwrap();
        fs::rename(&path, folder.path().join("log.0")).unwrap();
        fs::write(&path, "three\n").unwrap();
        assert_eq!(lines(&mut tail), ["last", "three"]);
        assert_eq!(tail.begun_anew, 2);
    }

    #[test]
    fn long_lines_and_long_logs_stay_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut file = File::create(&path).unwrap();
        file.write_all(&vec![b'x'; 3 * PIECE_BYTES]).unwrap();
        let mut tail = Tail::open(&path).unwrap();
        assert!(lines(&mut tail).is_empty() && tail.begun.len() <= LINE_BYTES_MAX);
        file.write_all(b"\nnext\n\xff\xfe\n").unwrap();
        assert_eq!(lines(&mut tail), ["next", "\u{fffd}\u{fffd}"]);
        // A hole of a gigabyte, and a line behind it.
        file.set_len(1 << 30).unwrap();
        file.seek(SeekFrom::End(0)).unwrap();
        file.write_all(b"\nbehind\n").unwrap();
        assert_eq!(lines(&mut tail), ["behind"]);
        assert!(tail.skipped_bytes > 1 << 29);
    }

    #[test]
    fn what_cannot_be_followed_is_refused_in_words() {
        let folder = tempfile::tempdir().unwrap();
        let error = Tail::open(folder.path()).unwrap_err().to_string();
        assert!(error.contains("no regular file"), "{error}");
        let error = Tail::open(&folder.path().join("none")).unwrap_err().to_string();
        assert!(error.contains("cannot read the log"), "{error}");
    }
}
