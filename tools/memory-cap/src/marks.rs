//! The mark file: other programs append lines to it, and each becomes an event at the time at which
//! it was noticed.

use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

/// Longest mark; the rest of a longer line is dropped.
const MARK_CHARS_MAX: usize = 120;
/// Most bytes read at once: a program that appends faster is read in the next sample.
const CHUNK_BYTES_MAX: u64 = 64 << 10;

/// Where in the file we are.
pub(crate) struct Marks {
    path: PathBuf,
    /// Bytes that were read as whole lines.
    offset: u64,
}

impl Marks {
    /// Existing content of the file is from an earlier run.
    pub(crate) fn at_end(path: &Path) -> Self {
        let offset = std::fs::metadata(path).map_or(0, |file| file.len());
        Self { path: path.to_owned(), offset }
    }

    /// The lines appended since; none while the file is not there.
    pub(crate) fn new_lines(&mut self) -> Vec<String> {
        let Ok(mut file) = File::open(&self.path) else { return vec![] };
        let length = file.metadata().map_or(0, |file| file.len());
        if length < self.offset {
            // The file was truncated.
            self.offset = 0;
        }
        let mut bytes = Vec::new();
        let read = file
            .seek(SeekFrom::Start(self.offset))
            .and_then(|_| file.take(CHUNK_BYTES_MAX).read_to_end(&mut bytes));
        if read.is_err() {
            return vec![];
        }
        let whole = match bytes.iter().rposition(|byte| *byte == b'\n') {
            Some(last) => last + 1,
            // A line longer than a chunk is not a mark, and must not block later ones.
            None if bytes.len() as u64 == CHUNK_BYTES_MAX => bytes.len(),
            None => return vec![],
        };
        self.offset += whole as u64;
        String::from_utf8_lossy(&bytes[..whole])
            .lines()
            .map(|line| {
                line.trim()
                    .chars()
                    .filter(|c| !c.is_control())
                    .take(MARK_CHARS_MAX)
                    .collect::<String>()
            })
            .filter(|line| !line.is_empty())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::OpenOptions, io::Write};

    use super::*;

    #[test]
    fn only_whole_new_lines_are_marks() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("marks");
        let mut marks = Marks::at_end(&path);
        assert!(marks.new_lines().is_empty(), "no file yet");
        let append = |text: &str| {
            OpenOptions::new()
                .create(true)
                .append(true)
                .open(&path)
                .unwrap()
                .write_all(text.as_bytes())
                .unwrap()
        };
        append("idle\nsto");
        assert_eq!(marks.new_lines(), ["idle"]);
        assert!(marks.new_lines().is_empty());
        append("rm: hybrid\n\n  cool-down\x07 \n");
        assert_eq!(marks.new_lines(), ["storm: hybrid", "cool-down"]);
        assert!(Marks::at_end(&path).new_lines().is_empty(), "an earlier run's marks are not ours");
        std::fs::write(&path, "anew\n").unwrap();
        assert_eq!(marks.new_lines(), ["anew"]);
    }

    #[test]
    fn a_line_without_end_does_not_hold_up_the_others() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("marks");
        let mut marks = Marks::at_end(&path);
        std::fs::write(&path, format!("{}\nafter\n", "x".repeat(100_000))).unwrap();
        let lines: Vec<String> = (0..4).flat_map(|_| marks.new_lines()).collect();
        assert_eq!(lines.last().map(String::as_str), Some("after"));
        assert!(lines.iter().all(|line| line.len() <= MARK_CHARS_MAX));
    }
}
