//! Record files: an appended record is there after a crash, or was not acknowledged, or its absence
//! is noticed.
//!
//! A file is a header of [`HEADER_BYTES`], then records, each a head of [`HEAD_BYTES`] and its
//! payload (integers little-endian):
//!
//! ```text
//! header  magic [8] · kind [8] · version u32 · salt u64 · crc32 of these
//! record  length u32 · crc32 of the payload u32 · synced u64
//!         · crc32 of salt, offset of the head, and these · payload
//! ```
//!
//! `synced` is the offset up to which the file was known to be durable when the record was written.
//! The head's checksum covers the record's offset and the file's salt, a random number, so a record
//! of another file, of an earlier life of the file at another offset, or one that a client put into
//! a payload does not pass.
//!
//! # The rule for damage
//!
//! Reading ends at the first invalid record, at offset `B`. The rest of the file is then searched,
//! byte by byte, for valid records.
//!
//! - One whose `synced` is greater than `B` shows that `B` was durable when it was written: `B` was
//!   changed since. That is **damage**: [`RecordError::Damaged`], and the reader may continue after
//!   it ([`Reader::skip_damage`]).
//! - Otherwise everything from `B` on was written after the last sync that is known to have ended,
//!   and a power cut may have left any part of it: a **tear**. It is cut off; nothing in it was
//!   acknowledged, provided that the writer syncs before it acknowledges and appends something
//!   after the sync, such as an empty record ([`RecordFile::mark`]).
//!
//! So a changed bit is detected from the first append after its sync. The file by itself cannot
//! detect that its end is missing up to a record boundary; a writer that acknowledges records keeps
//! the newest acknowledged number elsewhere ([`crate::NumberFile`]) and compares.
//!
//! # A failed sync
//!
//! After it the state of everything written since the last success is unknown, and the operating
//! system may report a later sync as done though the pages were dropped. A [`RecordFile`] whose
//! sync failed accepts no further record ([`RecordError::SyncLost`]): the caller writes the records
//! it still needs to a new file.
//!
//! # Room ahead
//!
//! A file may be extended by zeros before its records get there ([`RecordFile::reserve_ahead`]), so
//! that a sync changes neither its length nor its blocks. Zeros are not a record: they read as a
//! tear, and are cut off. [`RecordFile::finish`] cuts them off when the file takes no more records.
//!
//! Bounds: a reader holds one record and a buffer of `BUFFER_BYTES`; searching takes as much.

use std::{
    io,
    path::{Path, PathBuf},
};

use thiserror::Error;

use crate::{Disk, DiskFile, Open, SharedDisk, if_there, read_full};

/// Bytes before the first record.
pub const HEADER_BYTES: u64 = 32;
/// Bytes of a record in addition to its payload.
pub const HEAD_BYTES: u64 = 20;
const BUFFER_BYTES: usize = 256 << 10;
const _: () = assert!(HEADER_BYTES == 8 + 8 + 4 + 8 + 4, "magic, name, version, salt, checksum");
const _: () = assert!(HEAD_BYTES == 4 + 4 + 8 + 4, "length, sum, synced, checksum");
const _: () = assert!(BUFFER_BYTES > 2 * HEAD_BYTES as usize, "a search passes over heads");
const MAGIC: &[u8; 8] = b"records\x01";

/// Kind of the records of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// Name that distinguishes this kind from others.
    pub name: [u8; 8],
    /// Of the payloads' encoding; files of another version are refused.
    pub version: u32,
    /// Largest payload; a longer one is damage.
    pub bytes_max: u32,
}

/// Why a record file cannot be read or written.
#[derive(Debug, Error)]
pub enum RecordError {
    /// An error of the operating system.
    #[error("{path}: {doing}: {source}")]
    Io {
        /// File or folder.
        path: PathBuf,
        /// The operation that failed.
        doing: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A durable record no longer passes its check.
    #[error("{path} is damaged at byte {offset}: {what}")]
    Damaged {
        /// Path of the damaged file.
        path: PathBuf,
        /// Of the record that does not check.
        offset: u64,
        /// Description of the damage.
        what: String,
    },
    /// Another version wrote it, or it is of another kind.
    #[error(
        "{path} holds {found}, and this version reads {wanted}; use the version of the node that \
         wrote it"
    )]
    Format {
        /// Path of the file that was refused.
        path: PathBuf,
        /// Kind and version in the file.
        found: String,
        /// Kind and version that were asked for.
        wanted: String,
    },
    /// The record does not fit.
    #[error("{path}: a record of {bytes} bytes is over the limit of {bytes_max}")]
    TooLarge {
        /// Path of the file that the record was for.
        path: PathBuf,
        /// Of the payload.
        bytes: usize,
        /// Most bytes of a payload of this kind ([`Kind::bytes_max`]).
        bytes_max: u32,
    },
    /// An earlier sync of this file failed.
    #[error("{path}: a sync failed, so nothing more is written to this file; a new one is begun")]
    SyncLost {
        /// Path of the file whose sync failed.
        path: PathBuf,
    },
}

impl RecordError {
    /// The disk refused this operation on a file.
    pub fn io(path: &Path, doing: &'static str, source: io::Error) -> Self {
        Self::Io { path: path.to_path_buf(), doing, source }
    }

    /// Trouble of the disk, which may heal; the same call may succeed later. Damage and foreign
    /// formats do not heal.
    pub fn can_heal(&self) -> bool {
        matches!(self, Self::Io { .. } | Self::SyncLost { .. })
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut field = [0; 4];
    field.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(field)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut field = [0; 8];
    field.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(field)
}

fn encode_header(kind: &Kind, salt: u64) -> [u8; HEADER_BYTES as usize] {
    let mut header = [0; HEADER_BYTES as usize];
    header[..8].copy_from_slice(MAGIC);
    header[8..16].copy_from_slice(&kind.name);
    header[16..20].copy_from_slice(&kind.version.to_le_bytes());
    header[20..28].copy_from_slice(&salt.to_le_bytes());
    let checksum = crc32fast::hash(&header[..28]);
    header[28..].copy_from_slice(&checksum.to_le_bytes());
    header
}

/// Fields of a record's head.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    /// Bytes of the payload.
    pub length: u32,
    /// Checksum of the payload.
    pub payload: u32,
    /// Up to where the file was known to be durable when the record was written.
    pub synced: u64,
}

impl Head {
    fn checksum(&self, salt: u64, offset: u64) -> u32 {
        let mut covered = [0; 32];
        covered[..8].copy_from_slice(&salt.to_le_bytes());
        covered[8..16].copy_from_slice(&offset.to_le_bytes());
        covered[16..20].copy_from_slice(&self.length.to_le_bytes());
        covered[20..24].copy_from_slice(&self.payload.to_le_bytes());
        covered[24..].copy_from_slice(&self.synced.to_le_bytes());
        crc32fast::hash(&covered)
    }

    /// Writes the head of a record at `offset` of a file with this salt: [`HEAD_BYTES`].
    pub fn encode(&self, salt: u64, offset: u64, into: &mut [u8]) {
        into[..4].copy_from_slice(&self.length.to_le_bytes());
        into[4..8].copy_from_slice(&self.payload.to_le_bytes());
        into[8..16].copy_from_slice(&self.synced.to_le_bytes());
        into[16..20].copy_from_slice(&self.checksum(salt, offset).to_le_bytes());
    }

    /// The head at the start of `bytes`, which are at least [`HEAD_BYTES`], if it checks and its
    /// payload ends within `left` bytes, head included.
    fn decode(
        bytes: &[u8],
        salt: u64,
        offset: u64,
        left: u64,
        bytes_max: u32,
    ) -> Result<Self, &'static str> {
        let head =
            Self { length: u32_at(bytes, 0), payload: u32_at(bytes, 4), synced: u64_at(bytes, 8) };
        if head.length > bytes_max || u64::from(head.length) + HEAD_BYTES > left {
            return Err("a record's length is not one that fits");
        }
        if head.checksum(salt, offset) != u32_at(bytes, 16) {
            return Err("the checksum of a record's head does not match");
        }
        Ok(head)
    }
}

/// A random number for a new file's header. Uniqueness is all that matters.
fn salt() -> io::Result<u64> {
    let mut bytes = [0; 8];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    if filled < bytes.len() {
        return Err(io::Error::other("the random number generator failed"));
    }
    Ok(u64::from_le_bytes(bytes))
}

/// How a file ended that was read to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// With a whole record, or with none.
    Whole,
    /// With a write that a crash cut short, at this offset.
    Torn(u64),
}

/// Reads a record file from its beginning. See the module for what ends it.
#[derive(Debug)]
pub struct Reader {
    path: PathBuf,
    file: Box<dyn DiskFile>,
    kind: Kind,
    salt: u64,
    /// Bytes that are looked at.
    length: u64,
    /// Of the next record.
    offset: u64,
    synced: u64,
    torn: bool,
    /// Where the next record that checks begins, after damage.
    resume: Option<u64>,
    buffer: Vec<u8>,
    /// Offset of `buffer` in the file.
    buffered: u64,
    payload: Vec<u8>,
}

impl Reader {
    /// Opens the file. `length` bounds how far it is read; none: to its end.
    ///
    /// # Errors
    /// [`RecordError::Damaged`] or [`RecordError::Format`] by the header.
    pub fn open(
        disk: &dyn Disk,
        path: &Path,
        kind: Kind,
        length: Option<u64>,
    ) -> Result<Self, RecordError> {
        let file = disk
            .open(path, Open::Read)
            .map_err(|source| RecordError::io(path, "opening", source))?;
        Self::from_file(file, path, kind, length)
    }

    fn from_file(
        file: Box<dyn DiskFile>,
        path: &Path,
        kind: Kind,
        length: Option<u64>,
    ) -> Result<Self, RecordError> {
        let read = |source| RecordError::io(path, "reading", source);
        let present = file.length().map_err(read)?;
        let mut reader = Self {
            path: path.to_path_buf(),
            file,
            kind,
            salt: 0,
            length: length.map_or(present, |length| length.min(present)),
            offset: 0,
            synced: 0,
            torn: false,
            resume: None,
            buffer: Vec::new(),
            buffered: 0,
            payload: Vec::new(),
        };
        reader.header()?;
        Ok(reader)
    }

    /// The header is synced before the first record is written: without one that checks there are
    /// no records, or there is damage.
    fn header(&mut self) -> Result<(), RecordError> {
        let header = self.bytes(0, HEADER_BYTES as usize)?.to_vec();
        let checks = header.len() == HEADER_BYTES as usize
            && crc32fast::hash(&header[..28]) == u32_at(&header, 28);
        if checks && header[..8] == *MAGIC {
            let (name, version) = (&header[8..16], u32_at(&header, 16));
            if name != self.kind.name || version != self.kind.version {
                let format_kind = |name: &[u8], version| {
                    format!(
                        "`{}` of version {version}",
                        String::from_utf8_lossy(name).trim_end_matches('\0')
                    )
                };
                return Err(RecordError::Format {
                    path: self.path.clone(),
                    found: format_kind(name, version),
                    wanted: format_kind(&self.kind.name, self.kind.version),
                });
            }
            self.salt = u64_at(&header, 20);
            self.offset = HEADER_BYTES;
            return Ok(());
        }
        if self.only_zeros_from(HEADER_BYTES)? {
            self.torn = true;
            return Ok(());
        }
        self.damaged(
            "its header does not check: it was changed, or another version of the node wrote it",
        )
    }

    fn damaged<T>(&self, what: impl Into<String>) -> Result<T, RecordError> {
        Err(RecordError::Damaged {
            path: self.path.clone(),
            offset: self.offset,
            what: what.into(),
        })
    }

    fn only_zeros_from(&mut self, mut offset: u64) -> Result<bool, RecordError> {
        while offset < self.length {
            let bytes = self.bytes(offset, BUFFER_BYTES)?;
            if bytes.is_empty() {
                break;
            }
            if bytes.iter().any(|byte| *byte != 0) {
                return Ok(false);
            }
            offset += bytes.len() as u64;
        }
        Ok(true)
    }

    /// At most `count` bytes at `offset`, fewer at the end.
    fn bytes(&mut self, offset: u64, count: usize) -> Result<&[u8], RecordError> {
        let left = usize::try_from(self.length.saturating_sub(offset)).unwrap_or(usize::MAX);
        let count = count.min(left);
        let held = offset >= self.buffered
            && offset + count as u64 <= self.buffered + self.buffer.len() as u64;
        if !held {
            let want = count.max(BUFFER_BYTES.min(left));
            self.buffer.resize(want, 0);
            let read = read_full(self.file.as_ref(), &mut self.buffer, offset)
                .map_err(|source| RecordError::io(&self.path, "reading", source))?;
            self.buffer.truncate(read);
            self.buffered = offset;
        }
        let start = (offset - self.buffered) as usize;
        let end = (start + count).min(self.buffer.len());
        Ok(&self.buffer[start..end])
    }

    /// The record at `offset`, if it checks; its payload is then in `payload`.
    fn record_at(&mut self, offset: u64) -> Result<Result<Head, &'static str>, RecordError> {
        let (salt, bytes_max, left) =
            (self.salt, self.kind.bytes_max, self.length.saturating_sub(offset));
        let head = self.bytes(offset, HEAD_BYTES as usize)?;
        if head.len() < HEAD_BYTES as usize {
            return Ok(Err("a record's head is cut short"));
        }
        let head = match Head::decode(head, salt, offset, left, bytes_max) {
            Ok(head) => head,
            Err(what) => return Ok(Err(what)),
        };
        let length = head.length as usize;
        let mut payload = std::mem::take(&mut self.payload);
        payload.clear();
        // A record larger than the buffer is read past it.
        if length > BUFFER_BYTES {
            payload.resize(length, 0);
            let read = read_full(self.file.as_ref(), &mut payload, offset + HEAD_BYTES)
                .map_err(|source| RecordError::io(&self.path, "reading", source))?;
            payload.truncate(read);
        } else {
            payload.extend_from_slice(self.bytes(offset + HEAD_BYTES, length)?);
        }
        self.payload = payload;
        if self.payload.len() != length || crc32fast::hash(&self.payload) != head.payload {
            return Ok(Err("the checksum of a record's payload does not match"));
        }
        Ok(Ok(head))
    }

    /// Offset and payload of the next record; `None` at the end, or at a tear.
    ///
    /// # Errors
    /// [`RecordError::Damaged`]; the reader stays there until [`Self::skip_damage`].
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<(u64, &[u8])>, RecordError> {
        if self.torn || self.offset >= self.length {
            return Ok(None);
        }
        let offset = self.offset;
        match self.record_at(offset)? {
            Ok(head) => {
                self.offset = offset + HEAD_BYTES + u64::from(head.length);
                debug_assert!(
                    self.offset <= self.length,
                    "a record ends at byte {} of {}",
                    self.offset,
                    self.length
                );
                self.synced = self.synced.max(head.synced);
                Ok(Some((offset, &self.payload)))
            }
            Err(what) => match self.search()? {
                None => {
                    self.torn = true;
                    self.payload.clear();
                    Ok(None)
                }
                Some(next) => {
                    self.resume = Some(next);
                    self.damaged(format!(
                        "{what}; it was valid once, and the next valid record is at byte {next}"
                    ))
                }
            },
        }
    }

    /// The first record behind `offset` that checks, if any of those behind it shows that `offset`
    /// had been durable.
    fn search(&mut self) -> Result<Option<u64>, RecordError> {
        let (salt, bytes_max, bad) = (self.salt, self.kind.bytes_max, self.offset);
        let (mut first, mut offset) = (None, bad + 1);
        while offset + HEAD_BYTES <= self.length {
            let length = self.length;
            let window = self.bytes(offset, BUFFER_BYTES)?;
            let heads = (window.len() + 1).saturating_sub(HEAD_BYTES as usize);
            let candidate = (0..heads).find(|position| {
                let at = offset + *position as u64;
                let head = &window[*position..];
                // Zeros are room that was reserved: no head is like that, as `synced` is at least
                // the header.
                head[..HEAD_BYTES as usize] != [0; HEAD_BYTES as usize]
                    && Head::decode(head, salt, at, length - at, bytes_max).is_ok()
            });
            let Some(position) = candidate else {
                offset += (window.len() as u64).saturating_sub(HEAD_BYTES - 1).max(1);
                continue;
            };
            offset += position as u64;
            match self.record_at(offset)? {
                Ok(head) => {
                    let first = *first.get_or_insert(offset);
                    if head.synced > bad {
                        return Ok(Some(first));
                    }
                    offset += HEAD_BYTES + u64::from(head.length);
                }
                Err(_) => offset += 1,
            }
        }
        Ok(None)
    }

    /// After [`RecordError::Damaged`] of [`Self::next`]: continues with the next valid record.
    pub fn skip_damage(&mut self) {
        if let Some(next) = self.resume.take() {
            debug_assert!(next > self.offset, "damage at {} goes to {next}", self.offset);
            self.offset = next;
        }
    }

    /// How the file ended, once [`Self::next`] returned `None`.
    pub fn end(&self) -> End {
        if self.torn { End::Torn(self.offset) } else { End::Whole }
    }

    /// End of the last record read.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The offset up to which the file was durable, by the records read.
    pub fn synced(&self) -> u64 {
        self.synced
    }
}

/// A record file that is appended to.
#[derive(Debug)]
pub struct RecordFile {
    path: PathBuf,
    file: Box<dyn DiskFile>,
    kind: Kind,
    salt: u64,
    /// Up to the last whole record.
    length: u64,
    /// Up to the last successful sync.
    synced: u64,
    sync_lost: bool,
    buffer: Vec<u8>,
    /// Bytes that are reserved at once, in front of the records; none: 0.
    ahead: u64,
    /// Up to where zeros were written.
    reserved: u64,
}

impl RecordFile {
    /// Begins a file at `path`, in place of one that is there: header and folder entry are durable
    /// on return.
    ///
    /// # Errors
    /// Those of the disk; a partial file is removed again.
    pub fn create(disk: &dyn Disk, path: &Path, kind: Kind) -> Result<Self, RecordError> {
        let begun = Self::write_new(disk, path, kind, &[]);
        if begun.is_err() {
            let _ = disk.remove(path);
        }
        let begun = begun?;
        sync_parent(disk, path)?;
        Ok(begun)
    }

    /// Makes a file at `path` with these records, in place of one that is there; whole or not at
    /// all, and durable on return.
    ///
    /// # Errors
    /// Those of the disk; the file before is kept then.
    pub fn replace(
        disk: &dyn Disk,
        path: &Path,
        kind: Kind,
        records: &[Vec<u8>],
    ) -> Result<Self, RecordError> {
        let scratch = path.with_extension("new");
        let mut file = Self::write_new(disk, &scratch, kind, records)?;
        disk.rename(&scratch, path).map_err(|source| RecordError::io(path, "renaming", source))?;
        sync_parent(disk, path)?;
        file.path = path.to_path_buf();
        Ok(file)
    }

    fn write_new(
        disk: &dyn Disk,
        path: &Path,
        kind: Kind,
        records: &[Vec<u8>],
    ) -> Result<Self, RecordError> {
        let failed = |source| RecordError::io(path, "creating", source);
        // A file that is there keeps its own pages, whatever became of them.
        if_there(disk.remove(path)).map_err(failed)?;
        let salt = salt().map_err(failed)?;
        let file = disk.open(path, Open::Truncate).map_err(failed)?;
        file.write_at(&encode_header(&kind, salt), 0).map_err(failed)?;
        let mut begun = Self {
            path: path.to_path_buf(),
            file,
            kind,
            salt,
            length: HEADER_BYTES,
            synced: 0,
            sync_lost: false,
            buffer: Vec::new(),
            ahead: 0,
            reserved: 0,
        };
        begun.file.sync_all().map_err(failed)?;
        begun.synced = begun.length;
        if !records.is_empty() {
            begun.append(records.iter().map(Vec::as_slice))?;
            begun.sync()?;
        }
        Ok(begun)
    }

    /// Continues with a file that `reader` has read to its end: a tear is cut off.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn resume(disk: &dyn Disk, reader: &Reader) -> Result<Self, RecordError> {
        let path = &reader.path;
        let failed = |source| RecordError::io(path, "cutting off a torn end", source);
        let file = disk
            .open(path, Open::Write)
            .map_err(|source| RecordError::io(path, "opening", source))?;
        if reader.offset < HEADER_BYTES {
            return Err(failed(io::Error::other("the file has no header: it is begun anew")));
        }
        if file.length().map_err(failed)? != reader.offset {
            file.set_len(reader.offset).map_err(failed)?;
        }
        // Records that the previous process wrote and did not sync are read from memory: they are
        // made durable before anything depends on them.
        file.sync_all().map_err(failed)?;
        Ok(Self {
            path: path.clone(),
            file,
            kind: reader.kind,
            salt: reader.salt,
            length: reader.offset,
            synced: reader.offset,
            sync_lost: false,
            buffer: Vec::new(),
            ahead: 0,
            reserved: 0,
        })
    }

    /// Appends records in one write; not durable before [`Self::sync`].
    ///
    /// # Errors
    /// When the disk fails: nothing was appended then, and the call may be repeated.
    /// [`RecordError::SyncLost`] after a failed sync.
    pub fn append<'a>(
        &mut self,
        payloads: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<(), RecordError> {
        if self.sync_lost {
            return Err(RecordError::SyncLost { path: self.path.clone() });
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        let encoded =
            payloads.into_iter().try_for_each(|payload| self.encode(payload, &mut buffer));
        let written = encoded.and_then(|()| {
            self.file.write_at(&buffer, self.length).map_err(|source| {
                // Whatever part reached the file must not be taken for a record later.
                let _ = self.file.set_len(self.length);
                RecordError::io(&self.path, "appending", source)
            })
        });
        match written {
            Ok(()) => {
                self.length += buffer.len() as u64;
                self.reserve();
            }
            Err(_) => self.reserved = 0,
        }
        debug_assert!(
            self.synced <= self.length,
            "{} of {} bytes are synced",
            self.synced,
            self.length
        );
        buffer.shrink_to(1 << 20);
        self.buffer = buffer;
        written
    }

    /// Writes zeros ahead of the records, if the last record passed those that were there. Without
    /// room on the disk there are none, and the next record extends the file by itself.
    fn reserve(&mut self) {
        if self.ahead == 0 || self.length <= self.reserved {
            return;
        }
        let end = (self.length + 1).next_multiple_of(self.ahead);
        let zeros = vec![0; (end - self.length) as usize];
        match self.file.write_at(&zeros, self.length) {
            Ok(()) => self.reserved = end,
            Err(_) => {
                let _ = self.file.set_len(self.length);
            }
        }
    }

    fn encode(&self, payload: &[u8], buffer: &mut Vec<u8>) -> Result<(), RecordError> {
        let bytes_max = self.kind.bytes_max;
        let fits = u32::try_from(payload.len()).ok().filter(|length| *length <= bytes_max);
        let Some(length) = fits else {
            return Err(RecordError::TooLarge {
                path: self.path.clone(),
                bytes: payload.len(),
                bytes_max,
            });
        };
        let offset = self.length + buffer.len() as u64;
        let head = Head { length, payload: crc32fast::hash(payload), synced: self.synced };
        let mut bytes = [0; HEAD_BYTES as usize];
        head.encode(self.salt, offset, &mut bytes);
        buffer.extend_from_slice(&bytes);
        buffer.extend_from_slice(payload);
        Ok(())
    }

    /// Makes everything appended durable.
    ///
    /// # Errors
    /// When the disk fails: see the module for the state of the file then.
    pub fn sync(&mut self) -> Result<(), RecordError> {
        if self.sync_lost {
            return Err(RecordError::SyncLost { path: self.path.clone() });
        }
        if let Err(source) = self.file.sync_data() {
            self.sync_lost = true;
            return Err(RecordError::io(&self.path, "syncing", source));
        }
        self.synced = self.length;
        Ok(())
    }

    /// Appends an empty record that is not synced: from here on a change of what was synced is
    /// noticed. A failure is harmless, as the next append does the same.
    pub fn mark(&mut self) {
        let _ = self.append([[].as_slice()]);
    }

    /// From here on zeros are written ahead of the records, up to the next multiple of `bytes` of
    /// the file: a sync of a record that fits there changes neither the length nor the blocks of
    /// the file. See the module.
    pub fn reserve_ahead(&mut self, bytes: u64) {
        self.ahead = bytes;
    }

    /// Cuts off what was reserved, and reserves nothing more. A sync makes it durable.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn cut_ahead(&mut self) -> Result<(), RecordError> {
        if self.reserved > self.length {
            self.file
                .set_len(self.length)
                .map_err(|source| RecordError::io(&self.path, "cutting off room", source))?;
        }
        (self.ahead, self.reserved) = (0, 0);
        Ok(())
    }

    /// Cuts off what was reserved and makes the file durable: it takes no more records.
    ///
    /// # Errors
    /// Those of [`Self::sync`].
    pub fn finish(&mut self) -> Result<(), RecordError> {
        self.cut_ahead()?;
        self.sync()
    }

    /// Another handle of the file made everything up to `length` durable.
    pub fn synced_to(&mut self, length: u64) {
        debug_assert!(length <= self.length, "{length} of {} bytes are synced", self.length);
        self.synced = self.synced.max(length);
    }

    /// A sync by another handle of the file failed: this file takes nothing more.
    pub fn lose_sync(&mut self) {
        self.sync_lost = true;
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes up to the end of the last record.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Bytes up to the end of the last record that is known to be durable.
    pub fn synced(&self) -> u64 {
        self.synced
    }

    /// A sync failed: this file takes nothing more.
    pub fn sync_lost(&self) -> bool {
        self.sync_lost
    }
}

/// A file with one record, for data that is written as a whole.
#[derive(Clone, Debug)]
pub struct RecordSlot {
    /// Disk that holds the file.
    pub disk: SharedDisk,
    /// Path of the file; none is there before the first [`Self::write`].
    pub path: PathBuf,
    /// Of the record.
    pub kind: Kind,
}

impl RecordSlot {
    /// The newest record; `None` if none was written.
    ///
    /// # Errors
    /// [`RecordError::Damaged`] when the record is invalid.
    pub fn read(&self) -> Result<Option<Vec<u8>>, RecordError> {
        let mut reader = match Reader::open(self.disk.as_ref(), &self.path, self.kind, None) {
            Err(RecordError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                return Ok(None);
            }
            opened => opened?,
        };
        let record = reader.next()?.map(|(_, payload)| payload.to_vec());
        match record {
            Some(record) => Ok(Some(record)),
            // The file got its name after its record was durable.
            None => reader.damaged("its one record does not check"),
        }
    }

    /// Replaces the content by `record`; entirely or not at all, and durable on return.
    ///
    /// # Errors
    /// Those of the disk; the old content is kept then.
    pub fn write(&self, record: &[u8]) -> Result<(), RecordError> {
        let disk = self.disk.as_ref();
        if let Some(folder) = self.path.parent() {
            disk.create_folder(folder)
                .map_err(|source| RecordError::io(folder, "creating the folder", source))?;
        }
        RecordFile::replace(disk, &self.path, self.kind, &[record.to_vec()]).map(drop)
    }
}

fn sync_parent(disk: &dyn Disk, path: &Path) -> Result<(), RecordError> {
    path.parent().map_or(Ok(()), |folder| {
        disk.sync_folder(folder)
            .map_err(|source| RecordError::io(folder, "syncing the folder", source))
    })
}

#[cfg(test)]
#[path = "records_tests.rs"]
mod tests;
