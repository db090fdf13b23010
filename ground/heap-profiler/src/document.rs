//! The document: the samples, as addresses. One line of JSON ([`Head`]), then what matters of
//! jemalloc's dump in jemalloc's form (`heap_v2`), all of it compressed (gzip):
//!
//! ```text
//! {"version":1,"program":"thimble-relay","pid":4711, ...}
//! heap_v2/131072
//! @ 0x55d0c0de 0x55d0cafe ...       addresses, the allocation's first
//! t*: 3: 393216 [17: 2228224]       samples and bytes of it: alive [since sampling began]
//! ...
//! MAPPED_LIBRARIES:
//! 55d0c0000000-55d0c0aa0000 r-xp 003c6000 fe:00 12345 /usr/bin/thimble-relay
//! ```
//!
//! jemalloc also writes counts for each thread and maps of data, which are left out.
//!
//! Bounds: a line has at most [`LINE_BYTES_MAX`], a document [`DOCUMENT_BYTES_MAX`] and
//! [`STACKS_MAX`] stacks of [`FRAMES_MAX`] addresses, both when written and when read. A document
//! may come from an untrusted source: invalid input is refused with the number of its line.

use std::io::{self, BufRead, Read, Write};

use anyhow::{Context, Result, bail, ensure};
use flate2::read::GzDecoder;
use serde::{Deserialize, Serialize};

const VERSION: u32 = 1;
/// Longest line: a stack of [`FRAMES_MAX`] addresses, a path.
pub const LINE_BYTES_MAX: usize = 8 << 10;
/// Largest document, not compressed.
pub const DOCUMENT_BYTES_MAX: u64 = 32 << 20;
/// Most stacks of a document.
pub const STACKS_MAX: usize = 100_000;
/// Most addresses of a stack.
pub const FRAMES_MAX: usize = 256;
/// Most files that are mapped as code.
pub const MAPPINGS_MAX: usize = 256;

const STACKS: &str = "heap_v2/";
const MAPPINGS: &str = "MAPPED_LIBRARIES:";

/// A node's description of itself and of its samples.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// Version of the form; set when it is written.
    pub version: u32,
    /// Name of the program.
    pub program: String,
    /// Process id of the sampled program.
    pub pid: u32,
    /// Path of the program's executable file.
    pub exe: String,
    /// The file's build id, in hexadecimal digits; empty if it has none.
    pub build_id: String,
    /// When sampling began, in milliseconds since 1970.
    pub started_millis: u64,
    /// When this was taken.
    pub taken_millis: u64,
    /// Bytes allocated for each sample, on average.
    pub sample_bytes: u64,
    /// Growth of the allocator's records since sampling began.
    pub profiler_bytes: u64,
    /// Limit of that growth.
    pub profiler_bytes_max: u64,
    /// Whether sampling stopped because they did.
    pub stopped: bool,
}

/// Samples and their bytes, as jemalloc counts them: not extrapolated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Number of sampled allocations.
    pub samples: u64,
    /// Bytes of the sampled allocations.
    pub bytes: u64,
}

/// Samples of one stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stack {
    /// Return addresses, the allocation's first.
    pub addresses: Vec<u64>,
    /// Not freed yet.
    pub live: Count,
    /// All since sampling began.
    pub total: Count,
}

/// Code of a file in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First address of the mapping in the sampled process.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// Where in the file it begins.
    pub offset: u64,
    /// Path of the mapped file; empty for a mapping without one.
    pub path: String,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Document {
    /// The node, the time, the settings.
    pub head: Head,
    /// Samples by stack.
    pub stacks: Vec<Stack>,
    /// Code in memory.
    pub mappings: Vec<Mapping>,
}

/// Writes the document of a dump of jemalloc's. Errors: the dump cannot be read or is invalid, the
/// document cannot be written or would be too large.
pub(crate) fn write(head: &Head, dump: &mut impl BufRead, out: &mut impl Write) -> Result<()> {
    let head = Head { version: VERSION, ..head.clone() };
    let mut lines = Lines::new(dump, "the allocator's dump");
    serde_json::to_writer(&mut *out, &head)?;
    let first = lines.next()?.filter(|line| line.starts_with(STACKS)).map(str::to_owned);
    let first = first.context("what the allocator wrote begins otherwise than known")?;
    writeln!(out, "\n{first}")?;
    let (mut in_stack, mut in_mappings) = (false, false);
    while let Some(line) = lines.next()? {
        let kept = match line {
            MAPPINGS => {
                in_mappings = true;
                true
            }
            _ if in_mappings => line.split(' ').nth(1).is_some_and(|rights| rights.contains('x')),
            _ if line.starts_with('@') => {
                in_stack = true;
                true
            }
            // The ones before the first stack are sums.
            _ => in_stack && line.starts_with("t*:"),
        };
        if kept {
            writeln!(out, "{line}")?;
        }
    }
    ensure!(in_mappings, "what the allocator wrote ends early; is there room in the data folder?");
    Ok(())
}

/// Reads a compressed document. Errors: it is invalid, of another version, or larger than can be.
pub fn read(packed: impl Read) -> Result<Document> {
    parse(&mut io::BufReader::new(GzDecoder::new(packed)))
}

/// The same of one that is not compressed.
pub fn parse(text: &mut impl BufRead) -> Result<Document> {
    let mut lines = Lines::new(text, "the answer");
    let first = lines.next()?.context("it is empty")?;
    let head: Head =
        serde_json::from_str(first).context("its first line is none of a heap profile")?;
    ensure!(
        head.version == VERSION,
        "it is of version {}, this program reads version {VERSION}",
        head.version
    );
    ensure!(head.sample_bytes > 0, "it says that every 0 bytes were sampled");
    let stated: Option<u64> = lines
        .next()?
        .and_then(|line| line.strip_prefix(STACKS))
        .and_then(|number| number.parse().ok());
    ensure!(
        stated == Some(head.sample_bytes),
        "its second line is not {STACKS}{}: the interval of its first",
        head.sample_bytes
    );
    let mut document = Document { head, ..Document::default() };
    let mut whole = false;
    let mut addresses: Option<Vec<u64>> = None;
    while let Some(line) = lines.next()? {
        let understood = if line == MAPPINGS && addresses.is_none() {
            whole = true;
            Some(())
        } else if whole {
            mapping(line).map(|mapping| document.mappings.push(mapping))
        } else if let Some(stack) = addresses.take() {
            counts(line).map(|(live, total)| {
                document.stacks.push(Stack { addresses: stack, live, total });
            })
        } else {
            stack(line).map(|stack| addresses = Some(stack))
        };
        if understood.is_none() {
            let shown: String = lines.line().chars().take(80).collect();
            bail!("line {} cannot be understood: {shown}", lines.number);
        }
        ensure!(document.stacks.len() <= STACKS_MAX, "it has more than {STACKS_MAX} stacks");
        ensure!(document.mappings.len() <= MAPPINGS_MAX, "it maps more than {MAPPINGS_MAX} files");
    }
    ensure!(whole, "it ends early, at line {}", lines.number);
    Ok(document)
}

fn hexadecimal(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok()
}

/// `@ 0x1 0x2`.
fn stack(line: &str) -> Option<Vec<u64>> {
    let words = line.strip_prefix('@')?.split_ascii_whitespace();
    let addresses: Option<Vec<u64>> =
        words.take(FRAMES_MAX + 1).map(|word| hexadecimal(word.strip_prefix("0x")?)).collect();
    addresses.filter(|addresses| addresses.len() <= FRAMES_MAX)
}

/// `t*: 3: 393216 [17: 2228224]`.
fn counts(line: &str) -> Option<(Count, Count)> {
    let (live, total) = line.strip_prefix("t*: ")?.strip_suffix(']')?.split_once(" [")?;
    let count = |text: &str| {
        let (samples, bytes) = text.split_once(": ")?;
        Some(Count { samples: samples.parse().ok()?, bytes: bytes.parse().ok()? })
    };
    Some((count(live)?, count(total)?))
}

/// `55d0c0000000-55d0c0aa0000 r-xp 003c6000 fe:00 12345   /usr/bin/thimble-relay`.
fn mapping(line: &str) -> Option<Mapping> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let (_rights, rest) = rest.split_once(' ')?;
    let (offset, rest) = rest.split_once(' ')?;
    let (_device, rest) = rest.split_once(' ')?;
    // The number of a file without a name is the end of its line.
    let path = rest.split_once(' ').map_or("", |(_number, path)| path.trim_start());
    let (start, end) = (hexadecimal(start)?, hexadecimal(end)?);
    (start < end).then_some(Mapping {
        start,
        end,
        offset: hexadecimal(offset)?,
        path: path.to_owned(),
    })
}

/// Lines of bounded length, of bounded text.
struct Lines<'a, R> {
    text: io::Take<&'a mut R>,
    of: &'static str,
    line: Vec<u8>,
    number: u64,
}

impl<'a, R: BufRead> Lines<'a, R> {
    fn new(text: &'a mut R, of: &'static str) -> Self {
        Self { text: text.take(DOCUMENT_BYTES_MAX + 1), of, line: Vec::new(), number: 0 }
    }

    /// The next line without white space around it, `None` at the end.
    fn next(&mut self) -> Result<Option<&str>> {
        self.line.clear();
        let read =
            self.text.by_ref().take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut self.line);
        let (of, number) = (self.of, self.number + 1);
        let read = read.with_context(|| format!("{of} cannot be read at line {number}"))?;
        ensure!(
            self.text.limit() > 0,
            "{of} is larger than {DOCUMENT_BYTES_MAX} bytes, the most a heap profile has"
        );
        if read == 0 {
            return Ok(None);
        }
        ensure!(
            read <= LINE_BYTES_MAX,
            "line {number} of {of} is longer than {LINE_BYTES_MAX} bytes, the most one has"
        );
        ensure!(self.line.ends_with(b"\n"), "{of} ends in the middle of line {number}");
        self.number = number;
        Ok(Some(self.line()))
    }

    /// The line that was read last; a path may not be text.
    fn line(&self) -> &str {
        let whole = std::str::from_utf8(&self.line);
        whole
            .unwrap_or_else(|error| {
                std::str::from_utf8(&self.line[..error.valid_up_to()]).unwrap_or_default()
            })
            .trim()
    }
}

#[cfg(test)]
#[path = "document_tests.rs"]
mod tests;
