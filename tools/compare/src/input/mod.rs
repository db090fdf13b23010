//! Files of measurements, whatever tool wrote them, as readings: name, value, unit.
//!
//! The content decides the format, not the name. Files come from outside: declared sizes are not
//! trusted, and everything is counted before it is kept. An unreadable file is refused with its
//! apparent format.
//!
//! Bounds: [`FILE_BYTES_MAX`], [`READINGS_MAX`], depths in the parsers. Must never know: what is
//! compared with what.

pub(crate) mod criterion;
pub(crate) mod golang;
pub(crate) mod hyperfine;
pub(crate) mod junit;
pub(crate) mod lab;
pub(crate) mod pytest;
pub(crate) mod table;

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

use serde_json::Value;
use thiserror::Error;

use crate::figure::{Better, NAME_BYTES_MAX, Unit, shortened};

/// Most bytes of a file; of a longer series, only the header and the end are read.
pub const FILE_BYTES_MAX: u64 = 64 << 20;
/// Most values of one run.
pub const READINGS_MAX: usize = 200_000;
/// Of a long series, the end that has the summary.
const TAIL_BYTES: u64 = 1 << 20;

/// Why a file is not read. Each text states what to do.
#[derive(Debug, Error)]
pub enum InputError {
    /// The file system refuses.
    #[error("{path}: {error}")]
    Io {
        /// The file or folder as it was named.
        path: String,
        /// The error of the operating system.
        error: std::io::Error,
    },
    /// A file of more than [`FILE_BYTES_MAX`] bytes that is not a series of samples.
    #[error("{path}: {bytes} bytes; at most {FILE_BYTES_MAX} are read. Keep the summary only")]
    TooLong {
        /// The file as it was named.
        path: String,
        /// Bytes that it has; of a pipe, those that were read.
        bytes: u64,
    },
    /// Nothing in it that is understood.
    #[error("{path} looks like {looks}. {READS}")]
    Unknown {
        /// The file as it was named.
        path: String,
        /// A description of the content.
        looks: String,
    },
    /// Known, and damaged.
    #[error("{path} looks like {looks}, but {fault}")]
    Damaged {
        /// The file or folder as it was named.
        path: String,
        /// Name of the kind that was recognised ([`Kind::name`]).
        looks: &'static str,
        /// A description of the fault in the content.
        fault: String,
    },
}

const READS: &str = "Read are: JUnit XML, JSON of thimble-lab, Criterion's folders, JSON of hyperfine, \
    go test -json, -v and -bench, pytest --durations=0, CSV (name,value)";

/// A value of a test in one run.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// Of the test.
    pub name: String,
    /// In the base unit; none where the test has no value: it failed or was skipped.
    pub value: Option<f64>,
    /// The base unit.
    pub unit: Unit,
    /// `None` where the file does not state it.
    pub better: Option<Better>,
}

/// Result of a parser.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Readings {
    /// In the order of the file; a name may come several times.
    pub list: Vec<Reading>,
    /// Tests that failed.
    pub failed: usize,
    /// Tests that were skipped.
    pub skipped: usize,
    /// Invalid values, such as NaN.
    pub unusable: usize,
    /// A description of the first of them.
    pub unusable_first: Option<String>,
}

impl Readings {
    /// Keeps a value. Errors: there are too many.
    pub(crate) fn add(
        &mut self,
        name: &str,
        value: f64,
        unit: &str,
        better: Option<Better>,
    ) -> Result<(), String> {
        let (unit, factor) = Unit::parse(unit);
        let usable = value.is_finite() && (value * factor).is_finite();
        if !usable {
            self.unusable += 1;
            let name = shortened(name, 80);
            self.unusable_first.get_or_insert_with(|| format!("{name} is {value}"));
        }
        self.push(Reading {
            name: shortened(name.trim(), NAME_BYTES_MAX),
            value: usable.then_some(value * factor),
            unit,
            better,
        })
    }

    /// Keeps a value where there is one.
    pub(crate) fn add_some(
        &mut self,
        name: &str,
        value: Option<f64>,
        unit: &str,
    ) -> Result<(), String> {
        value.map_or(Ok(()), |value| self.add(name, value, unit, None))
    }

    /// Keeps the name of a test that has no time.
    pub(crate) fn add_without_time(&mut self, name: &str) -> Result<(), String> {
        let name = shortened(name.trim(), NAME_BYTES_MAX);
        self.push(Reading { name, value: None, unit: Unit::Seconds, better: None })
    }

    /// Keeps the name of a test that failed or, if it did not, was skipped: its time does not
    /// count.
    pub(crate) fn add_incomplete(&mut self, name: &str, has_failed: bool) -> Result<(), String> {
        *(if has_failed { &mut self.failed } else { &mut self.skipped }) += 1;
        self.add_without_time(name)
    }

    fn push(&mut self, reading: Reading) -> Result<(), String> {
        if self.list.len() >= READINGS_MAX {
            return Err(format!("it has more than {READINGS_MAX} values; split it"));
        }
        self.list.push(reading);
        Ok(())
    }
}

/// What kind of file it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Reports of test runners.
    JUnit,
    /// Reports and series that `thimble-lab` writes.
    Lab,
    /// A folder of Criterion, or one estimate of it.
    Criterion,
    /// The report of `hyperfine --export-json`.
    Hyperfine,
    /// Tests and benchmarks of Go.
    Go,
    /// The list of slowest durations.
    Pytest,
    /// Name and value.
    Csv,
}

impl Kind {
    /// Name of the kind, as messages and reports show it.
    pub fn name(self) -> &'static str {
        match self {
            Self::JUnit => "JUnit XML",
            Self::Lab => "JSON of thimble-lab",
            Self::Criterion => "Criterion",
            Self::Hyperfine => "JSON of hyperfine",
            Self::Go => "Go's test output",
            Self::Pytest => "pytest's durations",
            Self::Csv => "CSV",
        }
    }
}

/// A file or folder, read.
#[derive(Clone, Debug)]
pub struct Run {
    /// The path as given.
    pub path: PathBuf,
    /// Its format.
    pub kind: Kind,
    /// Its content.
    pub readings: Readings,
}

/// Reads a file, or a folder that a bench or Criterion wrote. Errors state the apparent format.
pub fn read(path: &Path) -> Result<Run, InputError> {
    let shown = path.display().to_string();
    let (folder, baseline) = criterion::split(path);
    let is_folder = std::fs::metadata(&folder).is_ok_and(|is| is.is_dir());
    let (kind, readings) = if is_folder {
        // A folder of a storm or a bench of a subnet has one file that sums it up.
        match lab::SUMMARIES.iter().map(|name| folder.join(name)).find(|file| file.is_file()) {
            Some(file) => return read(&file).map(|run| Run { path: path.to_owned(), ..run }),
            None => (Kind::Criterion, criterion::read_folder(&folder, &baseline)),
        }
    } else {
        let bytes = load(path, &shown)?;
        let (kind, readings) = parse(&bytes).map_err(|looks| match looks {
            Looks::Unknown(looks) => InputError::Unknown { path: shown.clone(), looks },
            Looks::Damaged(kind, fault) => {
                InputError::Damaged { path: shown.clone(), looks: kind.name(), fault }
            }
        })?;
        (kind, Ok(readings))
    };
    let damaged = |fault| InputError::Damaged { path: shown.clone(), looks: kind.name(), fault };
    let readings = readings.map_err(damaged)?;
    if readings.list.is_empty() {
        return Err(damaged("it has no measurement in it".into()));
    }
    Ok(Run { path: path.to_owned(), kind, readings })
}

fn load(path: &Path, shown: &str) -> Result<Vec<u8>, InputError> {
    let io = |error| InputError::Io { path: shown.to_owned(), error };
    let file = File::open(path).map_err(io)?;
    let length = file.metadata().map_err(io)?.len();
    let mut bytes = Vec::new();
    // A pipe has no length, a file may grow: what counts is what is read.
    (&file).take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 <= FILE_BYTES_MAX {
        return Ok(bytes);
    }
    // A series of samples may be long; only its summary is wanted.
    if !lab::is_series(&bytes) {
        return Err(InputError::TooLong {
            path: shown.to_owned(),
            bytes: length.max(bytes.len() as u64),
        });
    }
    let line = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(0);
    bytes.truncate(line + 1);
    use std::os::unix::fs::FileExt;
    let mut tail = vec![0; TAIL_BYTES as usize];
    let start = length.saturating_sub(TAIL_BYTES);
    let got = file.read_at(&mut tail, start).map_err(io)?;
    tail.truncate(got);
    // The first line of it is a part of one.
    let whole = tail.iter().position(|byte| *byte == b'\n').map_or(&[][..], |at| &tail[at + 1..]);
    bytes.extend_from_slice(whole);
    Ok(bytes)
}

/// Description of bytes that cannot be parsed.
#[derive(Debug, PartialEq)]
pub enum Looks {
    /// No kind that is known.
    Unknown(String),
    /// That kind, with a fault.
    Damaged(Kind, String),
}

/// Recognises and reads the content of a file.
pub fn parse(bytes: &[u8]) -> Result<(Kind, Readings), Looks> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    if let Some(looks) = binary(bytes) {
        return Err(Looks::Unknown(looks));
    }
    let text = String::from_utf8_lossy(bytes);
    let text = text.as_ref();
    let start = text.trim_start();
    let as_kind = |kind: Kind, read: Result<Readings, String>| match read {
        Ok(readings) => Ok((kind, readings)),
        Err(fault) => Err(Looks::Damaged(kind, fault)),
    };
    if start.is_empty() {
        return Err(Looks::Unknown("an empty file".into()));
    }
    if start.starts_with('<') {
        return match junit::root(start) {
            Ok(root) if root == "testsuites" || root == "testsuite" => {
                as_kind(Kind::JUnit, junit::read(start))
            }
            Ok(root) => {
                Err(Looks::Unknown(format!("XML of another kind (<{}>)", shortened(&root, 40))))
            }
            Err(fault) => Err(Looks::Unknown(format!("damaged XML ({fault})"))),
        };
    }
    if start.starts_with(['{', '[']) {
        return json(start, as_kind);
    }
    if golang::is_text(text) {
        return as_kind(Kind::Go, golang::read_text(text));
    }
    if pytest::is_text(text) {
        return as_kind(Kind::Pytest, pytest::read(text));
    }
    match table::read(text) {
        Ok(readings) => Ok((Kind::Csv, readings)),
        Err(table::Fault::NoTable) => Err(Looks::Unknown(format!(
            "text of no kind that is known, beginning with {:?}",
            shortened(start.lines().next().unwrap_or_default().trim(), 60)
        ))),
        Err(table::Fault::Damaged(fault)) => Err(Looks::Damaged(Kind::Csv, fault)),
    }
}

fn json(
    text: &str,
    as_kind: impl Fn(Kind, Result<Readings, String>) -> Result<(Kind, Readings), Looks>,
) -> Result<(Kind, Readings), Looks> {
    // JSON in lines: a value for each.
    let first = text.lines().next().unwrap_or_default();
    if let Ok(value) = serde_json::from_str::<Value>(first) {
        if lab::is_series_header(&value) {
            return as_kind(Kind::Lab, lab::read_series(text));
        }
        if golang::is_event(&value) {
            return as_kind(Kind::Go, golang::read_events(text));
        }
    }
    // serde_json goes 128 levels deep and no further.
    let value: Value = serde_json::from_str(text).map_err(|error| {
        Looks::Unknown(format!("damaged JSON ({error}); was its writer cut short?"))
    })?;
    if hyperfine::is_report(&value) {
        return as_kind(Kind::Hyperfine, hyperfine::read(&value));
    }
    if criterion::is_estimates(&value) {
        return as_kind(Kind::Criterion, criterion::read_estimates(&value));
    }
    if lab::is_report(&value) {
        return as_kind(Kind::Lab, lab::read(&value));
    }
    let what = match &value {
        Value::Object(fields) => {
            let names: Vec<String> =
                fields.keys().take(5).map(|name| shortened(name, 24)).collect();
            format!("JSON of another kind (an object with {})", names.join(", "))
        }
        Value::Array(items) => format!("JSON of another kind (a list of {})", items.len()),
        _ => "JSON of another kind".to_owned(),
    };
    Err(Looks::Unknown(what))
}

/// Describes content that is not text, by its first bytes.
fn binary(bytes: &[u8]) -> Option<String> {
    const MAGIC: [(&[u8], &str); 11] = [
        (b"\x1f\x8b", "a gzip archive; unpack it first"),
        (b"\x28\xb5\x2f\xfd", "a zstd archive; unpack it first"),
        (b"\xfd7zXZ", "an xz archive; unpack it first"),
        (b"BZh", "a bzip2 archive; unpack it first"),
        (b"PK\x03\x04", "a zip archive; unpack it first"),
        (b"\x7fELF", "a program"),
        (b"\x89PNG", "a picture (PNG)"),
        (b"%PDF", "a PDF document"),
        (b"\xff\xfe", "text in UTF-16; convert it to UTF-8"),
        (b"\xfe\xff", "text in UTF-16; convert it to UTF-8"),
        (b"SQLite format 3", "an SQLite database"),
    ];
    let magic = MAGIC.iter().find(|(magic, _)| bytes.starts_with(magic));
    if let Some((_, what)) = magic {
        return Some((*what).to_owned());
    }
    bytes.iter().take(4096).any(|byte| *byte == 0).then(|| "a binary file".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looks(bytes: &[u8]) -> String {
        match parse(bytes).unwrap_err() {
            Looks::Unknown(words) => words,
            Looks::Damaged(kind, fault) => format!("{}: {fault}", kind.name()),
        }
    }

    #[test]
    fn what_is_not_read_is_recognised() {
        for (bytes, words) in [
            (&b""[..], "an empty file"),
            (b"  \n ", "an empty file"),
            (b"\x1f\x8b\x08", "gzip"),
            (b"\x7fELF\x02", "a program"),
            (b"abc\0def", "a binary file"),
            (b"\xff\xfe<\0", "UTF-16"),
            (b"<html><body/></html>", "XML of another kind (<html>)"),
            (b"{\"a\": 1, \"b\": 2}", "an object with a, b"),
            (b"[1, 2]", "a list of 2"),
            (b"{\"results\": [", "damaged JSON"),
            (b"hello\nworld\n", "text of no kind that is known, beginning with \"hello\""),
        ] {
            let said = looks(bytes);
            assert!(said.contains(words), "{said:?} instead of {words:?}");
        }
        let deep = [vec![b'['; 100_000], vec![b']'; 100_000]].concat();
        assert!(looks(&deep).contains("recursion limit"), "{}", looks(&deep));
    }

    #[test]
    fn values_that_are_none_are_counted_and_named() {
        let (kind, readings) = parse(b"name,value\na,NaN\nb,inf\nc,1e308\nd,-1\ne,0\n").unwrap();
        assert_eq!((kind, readings.unusable), (Kind::Csv, 2));
        assert_eq!(readings.unusable_first.as_deref(), Some("a is NaN"));
        assert_eq!(readings.list.iter().filter(|reading| reading.value.is_some()).count(), 3);
    }
}
