//! Figures: the output of benches for comparison, and the result of every reader of files.
//!
//! Bounds: names by [`NAME_BYTES_MAX`]. Must never know: files, statistics.

use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// Longest name of a test; of a longer one this is kept, with the length it had.
pub const NAME_BYTES_MAX: usize = 1024;
/// Bytes that are kept of the name of an unknown unit.
const UNIT_BYTES_MAX: usize = 32;
/// Version of the document of figures.
pub const FORMAT: u32 = 1;

/// Which values are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Times, memory, losses.
    Less,
    /// Rates, shares delivered.
    More,
}

/// Unit of a value, after conversion to the base unit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unit {
    /// A time, in seconds.
    Seconds,
    /// Memory, file sizes.
    Bytes,
    /// Something per second.
    PerSecond,
    /// Parts of a hundred.
    Percent,
    /// Anything else, as its file calls it; may be empty.
    Other(String),
}

impl Unit {
    /// The unit and the factor to it, from what a file calls it: `ms` is seconds and 0.001.
    pub fn parse(text: &str) -> (Self, f64) {
        let text = text.trim();
        match text {
            "s" | "sec" | "secs" | "second" | "seconds" => (Self::Seconds, 1.0),
            "ms" | "millis" | "milliseconds" => (Self::Seconds, 1e-3),
            "us" | "µs" | "μs" | "micros" | "microseconds" => (Self::Seconds, 1e-6),
            "ns" | "nanos" | "nanoseconds" => (Self::Seconds, 1e-9),
            "min" | "minutes" => (Self::Seconds, 60.0),
            "B" | "bytes" => (Self::Bytes, 1.0),
            "KiB" => (Self::Bytes, 1024.0),
            "MiB" => (Self::Bytes, 1_048_576.0),
            "GiB" => (Self::Bytes, 1_073_741_824.0),
            "kB" | "KB" => (Self::Bytes, 1e3),
            "MB" => (Self::Bytes, 1e6),
            "GB" => (Self::Bytes, 1e9),
            "/s" | "1/s" | "per second" | "ops/s" => (Self::PerSecond, 1.0),
            "%" | "percent" => (Self::Percent, 1.0),
            other => (Self::Other(shortened(other, UNIT_BYTES_MAX)), 1.0),
        }
    }

    /// As it is written in a document of figures.
    pub fn name(&self) -> &str {
        match self {
            Self::Seconds => "s",
            Self::Bytes => "bytes",
            Self::PerSecond => "/s",
            Self::Percent => "%",
            Self::Other(text) => text,
        }
    }
}

/// A named value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// Of the test; the same in every run.
    pub name: String,
    /// In the unit.
    pub value: f64,
    /// `s`, `ms`, `us`, `ns`, `bytes`, `MiB`, `/s`, `%`, or anything else.
    #[serde(default)]
    pub unit: String,
    /// Which values are better; by the unit and the name when it is not stated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub better: Option<Better>,
}

impl Figure {
    /// A figure whose unit determines which values are better.
    pub fn new(name: &str, value: f64, unit: &str) -> Self {
        Self { name: name.to_owned(), value, unit: unit.to_owned(), better: None }
    }
}

/// A document of figures, which any bench can write.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// Version of the document, [`FORMAT`].
    pub format: u32,
    /// The bench that wrote it.
    pub bench: String,
    /// The machine of the measurement.
    pub machine: String,
    /// All of them.
    pub figures: Vec<Figure>,
}

impl Figures {
    /// Writes the document, whole or not at all. Errors: those of the file system.
    pub fn write(&self, path: &Path) -> Result<()> {
        Self::write_document(self, path)
    }

    /// The same, of a document with more in it.
    pub fn write_document(document: &impl Serialize, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(document)? + "\n";
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)
                .with_context(|| format!("making the folder {}", folder.display()))?;
        }
        disk::replace_file(path, text.as_bytes(), disk::Readers::All)
            .with_context(|| format!("writing {}", path.display()))
    }
}

/// Which values are better where a file does not state it: by unit, then by words in the name.
pub fn by_name(name: &str, unit: &Unit) -> Better {
    match unit {
        Unit::Seconds | Unit::Bytes => return Better::Less,
        Unit::PerSecond => return Better::More,
        Unit::Other(unit) if unit.ends_with("/s") || unit.ends_with("/sec") => return Better::More,
        Unit::Percent | Unit::Other(_) => {}
    }
    const MORE: [&str; 12] = [
        "/s",
        "/sec",
        "per second",
        "per_second",
        "throughput",
        "ops",
        "qps",
        "rps",
        "rate",
        "bandwidth",
        "delivered",
        "hits",
    ];
    let name = name.to_lowercase();
    let is_word = |word: &str| {
        name.match_indices(word).any(|(at, _)| {
            let before = name.get(..at).and_then(|text| text.chars().next_back());
            let after = name.get(at + word.len()..).and_then(|text| text.chars().next());
            let breaks = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric());
            (word.starts_with('/') || breaks(before)) && breaks(after)
        })
    };
    if MORE.iter().any(|word| is_word(word)) { Better::More } else { Better::Less }
}

/// The text, or as much of it as fits, with the length it had.
pub(crate) fn shortened(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    let kept = text.get(..text.floor_char_boundary(bytes_max)).unwrap_or_default();
    format!("{kept}... ({} bytes)", text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_better_when_more_and_times_when_less() {
        let other = |text: &str| Unit::parse(text).0;
        assert_eq!(by_name("update p50", &Unit::Seconds), Better::Less);
        assert_eq!(by_name("updates/s", &other("")), Better::More);
        assert_eq!(by_name("query throughput", &other("")), Better::More);
        assert_eq!(by_name("stops", &other("")), Better::Less, "a word inside another is none");
        assert_eq!(by_name("x", &other("MB/s")), Better::More);
        assert_eq!(by_name("errors", &Unit::Percent), Better::Less);
    }

    #[test]
    fn units_are_converted() {
        assert_eq!(Unit::parse("ms"), (Unit::Seconds, 1e-3));
        assert_eq!(Unit::parse("MiB"), (Unit::Bytes, 1_048_576.0));
        assert_eq!(
            Unit::parse(&"x".repeat(500)).0.name().len(),
            UNIT_BYTES_MAX + "... (500 bytes)".len()
        );
    }
}
