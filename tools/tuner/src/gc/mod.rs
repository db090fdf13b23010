//! Reports of garbage collectors while they run: one [`Collection`] for each line (or group of
//! lines) of the log of a runtime.
//!
//! Logs are untrusted: a line longer than [`LINE_BYTES_MAX`] is skipped, numbers have to be finite,
//! not negative and below [`NUMBER_MAX`], and no reader holds more than a few collections.

mod ghc;
mod go;
mod jvm;
mod node;

use serde::Deserialize;

/// Longest line that is read. GHC's have some 100 bytes, those of a JVM some 200.
pub const LINE_BYTES_MAX: usize = 4096;
/// Largest number believed: a terabyte in MiB, a year in milliseconds and a petabyte in bytes are
/// below.
pub const NUMBER_MAX: f64 = 1e16;

const MIB: f64 = 1024.0 * 1024.0;

/// Whose log it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dialect {
    /// `+RTS -S` of GHC.
    Ghc,
    /// `GODEBUG=gctrace=1` of Go.
    Go,
    /// `-Xlog:gc*` of a JVM (unified logging).
    Jvm,
    /// `--trace-gc` of Node and V8.
    Node,
}

impl Dialect {
    /// Of the runtime with this name, as `recognise` gives it.
    pub fn of_runtime(name: &str) -> Option<Self> {
        match name {
            "ghc" => Some(Self::Ghc),
            "go" => Some(Self::Go),
            "jvm" => Some(Self::Jvm),
            "node" => Some(Self::Node),
            _ => None,
        }
    }
}

/// One collection, as its runtime reports it. A figure that a runtime does not report is `None`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Collection {
    /// When it ended, since the start of the program.
    pub seconds: Option<f64>,
    /// Whether it covered all of the heap.
    pub major: bool,
    /// How long the program stood still.
    pub pause_millis: f64,
    /// CPU time of the collection, over all threads, concurrent work included.
    pub cpu_millis: Option<f64>,
    /// Bytes still in use after it.
    pub live_bytes: Option<u64>,
    /// Bytes that the runtime holds for its heap after it. For Go this is the size to which the
    /// heap may grow before the next collection.
    pub heap_bytes: Option<u64>,
}

/// Reads a log line by line.
#[derive(Debug)]
pub struct Reader {
    dialect: Dialect,
    ghc: ghc::Reader,
    jvm: jvm::Reader,
}

impl Reader {
    /// A reader of a log from its first line on, or from any later line.
    pub fn new(dialect: Dialect) -> Self {
        Self { dialect, ghc: ghc::Reader::default(), jvm: jvm::Reader::default() }
    }

    /// The collection that this line completes; lines of other kinds complete none.
    pub fn line(&mut self, line: &str) -> Option<Collection> {
        if line.len() > LINE_BYTES_MAX {
            return None;
        }
        match self.dialect {
            Dialect::Ghc => self.ghc.line(line),
            Dialect::Go => go::line(line),
            Dialect::Jvm => self.jvm.line(line),
            Dialect::Node => node::line(line),
        }
    }
}

/// A number of a log.
fn number(text: &str) -> Option<f64> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let value: f64 = plain.then(|| text.parse().ok())??;
    (value <= NUMBER_MAX).then_some(value)
}

/// Converts a number of MiB to bytes.
fn mebibytes(text: &str) -> Option<u64> {
    bytes(number(text)? * MIB)
}

fn bytes(value: f64) -> Option<u64> {
    (value <= NUMBER_MAX).then_some(value as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_is_believed_that_is_none() {
        for text in
            ["", "-1", "nan", "inf", "1e3", "99999999999999999999", "1.2.3", "+1", "0x1", "."]
        {
            assert_eq!(number(text), None, "{text}");
        }
        assert_eq!(number("0.50"), Some(0.5));
        assert_eq!(mebibytes("99999999999999"), None);
    }

    // Promise: P25 - An endless line of a collector's log is skipped.
    #[test]
    fn a_line_without_end_is_passed_over() {
        let line = "gc 1 @0.001s 10%: 0.11+0.27+0.008 ms clock, 0.22+0.16/0/0+0.017 ms cpu, \
                    3->4->0 MB, 4 MB goal";
        assert!(Reader::new(Dialect::Go).line(line).is_some());
        let long = format!("{line}{}", " ".repeat(LINE_BYTES_MAX));
        assert_eq!(Reader::new(Dialect::Go).line(&long), None);
    }

    // Promise: P25 - Every prefix of a collector's log line is parsed safely.
    #[test]
    fn every_prefix_of_every_line_is_survived() {
        let lines = [
            "   932256      4344     46272   0.000  0.000    0.001    0.001    0    0  (Gen:  1)",
            "gc 1 @0.001s 10%: 0.11+0.27+0.008 ms clock, 0.22+0.16/0/0+0.017 ms cpu, 3->4->0 MB, \
             4 MB goal",
            "[0.158s][info][gc] GC(22) Pause Full (System.gc()) 25M->0M(61M) 1.883ms",
            "[0.139s][info][gc] GC(1) Garbage Collection (Allocation Stall) 64M(100%)->10M(16%)",
            "[14286:0x3c408c40]       30 ms: Scavenge 3.9 (4.0) -> 3.7 (5.0) MB, 5.87 / 0.00 ms ",
        ];
        for dialect in [Dialect::Ghc, Dialect::Go, Dialect::Jvm, Dialect::Node] {
            let mut reader = Reader::new(dialect);
            for line in lines {
                for end in 0..line.len() {
                    reader.line(&line[..end]);
                    reader.line(&line[end..]);
                }
            }
        }
    }
}
