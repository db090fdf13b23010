//! Disks as files with holes: a stream is written so that zeros take no room, a file is copied
//! without its holes, and the digest of a disk does not depend on where its holes are.
//!
//! The digest is BLAKE3 over every block of 64 KiB that is not all zeros, each preceded by its
//! number (64 bits, little endian), and the length of the file in the end. Computing it costs about
//! a third of SHA-256, and it is never compared with published digests.
//!
//! One thread reads (and so unpacks), another writes. Bounds: [`BUFFERS`] buffers of
//! [`BUFFER_BYTES`] between the two, the size limit and the room on the file system, which is
//! checked after every [`ROOM_EVERY_BYTES`] written.

use std::{
    fs::File,
    io::{self, Read},
    num::NonZeroU64,
    os::unix::fs::FileExt,
    path::Path,
    sync::mpsc::{Receiver, SyncSender, sync_channel},
};

use rustix::fs::{Advice, SeekFrom, fadvise, fstatvfs, ioctl_ficlone, seek};

use crate::{Error, Result, Settings, progress::Progress, source};

/// Digests are over blocks of this size; it divides [`BUFFER_BYTES`].
const BLOCK_BYTES: usize = 64 << 10;
/// Holes are of this size at least: blocks of file systems are not smaller.
const HOLE_BYTES: usize = 4 << 10;
const BUFFER_BYTES: usize = 1 << 20;
const BUFFERS: usize = 4;
const ROOM_EVERY_BYTES: u64 = 32 << 20;
const _: () =
    assert!(BUFFER_BYTES.is_multiple_of(BLOCK_BYTES) && BLOCK_BYTES.is_multiple_of(HOLE_BYTES));

/// A piece of a disk, at a multiple of [`BLOCK_BYTES`]; the bytes between two pieces are zeros.
struct Piece {
    offset: u64,
    bytes: Vec<u8>,
}

/// Size and digest of a file that was written or read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Content {
    /// Length of the file in bytes, holes included.
    pub(crate) bytes: u64,
    /// See the module.
    pub(crate) digest: [u8; 32],
}

/// Where the pieces come from.
pub(crate) enum From<'a> {
    /// A stream, to its end.
    Stream(&'a mut (dyn Read + Send)),
    /// A file, from its beginning; its holes are skipped.
    File(&'a File),
}

/// Writes a disk into an empty file.
///
/// # Errors
///
/// [`Error::TooLarge`], [`Error::NoRoom`], [`Error::Stopped`], and errors of reading (with the path
/// `named`) or writing.
pub(crate) fn write(
    from: From<'_>,
    named: &Path,
    to: &File,
    path: &Path,
    progress: &Progress,
    settings: &Settings,
) -> Result<Content> {
    let mut writer = Writer { to, path, settings, written: 0, room_at: 0, end: 0, begun: 0 };
    writer.room()?;
    let content = run(from, named, settings.limit_bytes, progress, |piece| writer.write(piece))?;
    to.set_len(content.bytes).map_err(|error| writer.fail(error))?;
    Ok(content)
}

pub(crate) fn read(file: &File, path: &Path, progress: &Progress) -> Result<Content> {
    run(From::File(file), path, u64::MAX, progress, |_| Ok(()))
}

/// Shares the blocks of a file with another one, where the file system can: Btrfs, XFS and others.
pub(crate) fn share(from: &File, to: &File) -> bool {
    ioctl_ficlone(to, from).is_ok()
}

fn run(
    from: From<'_>,
    named: &Path,
    limit: u64,
    progress: &Progress,
    mut write: impl FnMut(&Piece) -> Result<()>,
) -> Result<Content> {
    let (full, pieces) = sync_channel::<Piece>(BUFFERS);
    let (empty, buffers) = sync_channel::<Vec<u8>>(BUFFERS);
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || match from {
            From::Stream(stream) => read_stream(stream, limit, &full, &buffers),
            From::File(file) => read_file(file, limit, &full, &buffers),
        });
        let mut digest = blake3::Hasher::new();
        let mut done = Ok(());
        for piece in pieces {
            done = write(&piece);
            if done.is_ok() {
                for (at, block) in piece.bytes.chunks(BLOCK_BYTES).enumerate() {
                    if !is_zero(block) {
                        digest
                            .update(&(piece.offset / BLOCK_BYTES as u64 + at as u64).to_le_bytes());
                        digest.update(block);
                    }
                }
                done = progress.advance(0, piece.bytes.len() as u64);
            }
            if done.is_err() {
                // Leaving the loop closes the channel, which ends the reader.
                break;
            }
            // The reader may have ended.
            let _ = empty.try_send(piece.bytes);
        }
        // A reader that waits for a buffer makes one of its own, so it always ends.
        let read = reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        done?;
        match read {
            Ok(bytes) if bytes > limit => Err(Error::TooLarge {
                path: named.to_owned(),
                limit_bytes: limit,
                read_bytes: progress.read_bytes(),
            }),
            Ok(bytes) => {
                digest.update(&bytes.to_le_bytes());
                Ok(Content { bytes, digest: digest.finalize().into() })
            }
            Err(error) => Err(source::read_error(named, error)),
        }
    })
}

/// Gives the length; one byte more than the limit where it is longer.
fn read_stream(
    stream: &mut dyn Read,
    limit: u64,
    full: &SyncSender<Piece>,
    buffers: &Receiver<Vec<u8>>,
) -> io::Result<u64> {
    let mut offset = 0;
    loop {
        let mut bytes = buffers.try_recv().unwrap_or_default();
        bytes.resize(BUFFER_BYTES, 0);
        let mut filled = 0;
        while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match stream.read(rest) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let is_last = filled < BUFFER_BYTES;
        bytes.truncate(filled);
        let begin = offset;
        offset += filled as u64;
        if offset > limit {
            return Ok(offset);
        }
        if filled > 0 && full.send(Piece { offset: begin, bytes }).is_err() {
            return Ok(offset);
        }
        if is_last {
            return Ok(offset);
        }
    }
}

fn read_file(
    file: &File,
    limit: u64,
    full: &SyncSender<Piece>,
    buffers: &Receiver<Vec<u8>>,
) -> io::Result<u64> {
    let length = file.metadata()?.len();
    if length > limit {
        return Ok(length);
    }
    let mut at = 0;
    while at < length {
        let data = match seek(file, SeekFrom::Data(at)) {
            Ok(data) => data,
            // Nothing but a hole up to the end.
            Err(rustix::io::Errno::NXIO) => break,
            // A file system without holes.
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::OPNOTSUPP) => at,
            Err(error) => return Err(error.into()),
        };
        let offset = data - data % BLOCK_BYTES as u64;
        let count = (length - offset).min(BUFFER_BYTES as u64);
        let mut bytes = buffers.try_recv().unwrap_or_default();
        bytes.resize(count as usize, 0);
        file.read_exact_at(&mut bytes, offset)?;
        at = offset + count;
        if full.send(Piece { offset, bytes }).is_err() {
            break;
        }
    }
    Ok(length)
}

/// Bytes that may still be written on the file system of an open file.
pub(crate) fn free(file: &File, path: &Path) -> Result<u64> {
    let room = fstatvfs(file).map_err(|error| Error::io("looking at", path)(error.into()))?;
    Ok(room.f_bavail.saturating_mul(room.f_frsize))
}

struct Writer<'a> {
    to: &'a File,
    path: &'a Path,
    settings: &'a Settings,
    written: u64,
    /// Bytes written at the last check of the room.
    room_at: u64,
    /// Up to where the disk was made.
    end: u64,
    /// Up to where the kernel was asked to begin to write.
    begun: u64,
}

impl Writer<'_> {
    fn write(&mut self, piece: &Piece) -> Result<()> {
        let mut begin = None;
        let blocks = piece.bytes.chunks(HOLE_BYTES).map(is_zero).chain([true]);
        for (at, is_zero) in blocks.enumerate() {
            let at = (at * HOLE_BYTES).min(piece.bytes.len());
            match begin {
                None if !is_zero => begin = Some(at),
                Some(from) if is_zero => {
                    let bytes = piece.bytes.get(from..at).unwrap_or_default();
                    let written = self.to.write_all_at(bytes, piece.offset + from as u64);
                    written.map_err(|error| self.fail(error))?;
                    self.written += bytes.len() as u64;
                    begin = None;
                }
                _ => {}
            }
        }
        self.end = piece.offset + piece.bytes.len() as u64;
        if self.written - self.room_at >= ROOM_EVERY_BYTES {
            self.begin_to_sync();
            self.room()?;
        }
        Ok(())
    }

    /// Has the kernel begin to write what it was given, while more is unpacked: the sync in the end
    /// waits for all of it.
    fn begin_to_sync(&mut self) {
        // Pages that are dirty are queued for the disk by this and stay in memory. Only speed is at
        // stake.
        let length = NonZeroU64::new(self.end - self.begun);
        let _ = fadvise(self.to, self.begun, length, Advice::DontNeed);
        self.begun = self.end;
    }

    /// Whether there is room for more.
    fn room(&mut self) -> Result<()> {
        self.room_at = self.written;
        let free = self.free()?;
        if free < self.settings.reserve_bytes { Err(self.no_room(free)) } else { Ok(()) }
    }

    fn free(&self) -> Result<u64> {
        free(self.to, self.path)
    }

    fn no_room(&self, free_bytes: u64) -> Error {
        Error::NoRoom {
            folder: self.path.parent().unwrap_or(self.path).to_owned(),
            free_bytes,
            reserve_bytes: self.settings.reserve_bytes,
            written_bytes: self.written,
        }
    }

    fn fail(&self, error: io::Error) -> Error {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                self.no_room(self.free().unwrap_or(0))
            }
            _ => Error::io("writing", self.path)(error),
        }
    }
}

fn is_zero(block: &[u8]) -> bool {
    // One byte is zero and each equals the next: this is a memcmp, which stops early.
    match block.split_first() {
        Some((first, rest)) => *first == 0 && Some(rest) == block.get(..rest.len()),
        None => true,
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::MetadataExt};

    use proptest::prelude::*;

    use super::*;

    fn settings() -> Settings {
        Settings { talks: false, reserve_bytes: 0, ..Settings::default() }
    }

    fn write_to(path: &Path, from: From<'_>, settings: &Settings) -> Result<Content> {
        let file =
            File::options().create(true).truncate(true).write(true).read(true).open(path).unwrap();
        write(
            from,
            Path::new("source"),
            &file,
            path,
            &Progress::new("x", path, 0, settings),
            settings,
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        /// For every layout: stream and file yield the same bytes and the same digest, and a change
        /// of any byte changes the digest.
        #[test]
        fn what_is_written_is_what_was_read(
            length in 0_usize..3_000_000,
            parts in prop::collection::vec((0_usize..3_000_000, 1_usize..100_000), 0..6),
            flipped in 0_usize..3_000_000,
        ) {
            let mut bytes = vec![0; length];
            for (begin, count) in parts {
                let end = (begin + count).min(length);
                if let Some(part) = bytes.get_mut(begin.min(end)..end) {
                    part.fill(7);
                }
            }
            let folder = tempfile::tempdir().unwrap();
            let (one, two) = (folder.path().join("one"), folder.path().join("two"));
            let first = write_to(&one, From::Stream(&mut &*bytes), &settings()).unwrap();
            prop_assert_eq!(fs::read(&one).unwrap(), &*bytes);
            let file = File::open(&one).unwrap();
            let second = write_to(&two, From::File(&file), &settings()).unwrap();
            prop_assert_eq!(fs::read(&two).unwrap(), &*bytes);
            prop_assert_eq!(first, second);
            prop_assert_eq!(first.bytes, length as u64);
            // A file without holes is the same disk.
            let plain = folder.path().join("plain");
            fs::write(&plain, &bytes).unwrap();
            let progress = Progress::new("x", &plain, 0, &settings());
            prop_assert_eq!(read(&File::open(&plain).unwrap(), &plain, &progress).unwrap(), first);
            if let Some(byte) = bytes.get_mut(flipped) {
                *byte ^= 1;
                prop_assert_ne!(write_to(&two, From::Stream(&mut &*bytes), &settings()).unwrap(), first);
            }
        }
    }

    #[test]
    fn zeros_take_no_room() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        let mut bytes = vec![0_u8; 32 << 20];
        bytes[20 << 20] = 1;
        write_to(&path, From::Stream(&mut &*bytes), &settings()).unwrap();
        let metadata = fs::metadata(&path).unwrap();
        assert_eq!(metadata.len(), 32 << 20);
        assert!(metadata.blocks() * 512 <= 64 << 10, "{} bytes on disk", metadata.blocks() * 512);
    }

    #[test]
    fn no_more_than_the_limit_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        let settings = Settings { limit_bytes: 5 << 20, ..settings() };
        let exact =
            write_to(&path, From::Stream(&mut io::repeat(1).take(5 << 20)), &settings).unwrap();
        assert_eq!(exact.bytes, 5 << 20);
        let error = write_to(&path, From::Stream(&mut io::repeat(1)), &settings).unwrap_err();
        assert!(matches!(error, Error::TooLarge { limit_bytes: 5_242_880, .. }), "{error}");
        assert!(fs::metadata(&path).unwrap().len() <= 5 << 20);
        let room = Settings { reserve_bytes: u64::MAX, ..settings };
        let error = write_to(&path, From::Stream(&mut io::repeat(1)), &room).unwrap_err();
        assert!(error.to_string().contains("--reserve"), "{error}");
    }
}
