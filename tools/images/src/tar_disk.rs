//! The one disk in a tar archive, as a stream.
//!
//! Nothing is ever written under a name from the archive. Names, links and devices are refused all
//! the same: an archive that has them was not made to carry one disk, and the error comes before a
//! machine starts with the wrong one. The fields of a header are read by the `tar` crate; the walk
//! through the archive is this module's own, because it must read names and extensions of bounded
//! length only.
//!
//! Bounds: `ENTRIES_MAX` headers, `EXTENSION_BYTES_MAX` for the extensions of an entry,
//! `TRAILING_BYTES_MAX` of zeros after the end.

use std::{
    io::{self, Read},
    path::{Component, Path},
};

use tar::{EntryType, Header, PaxExtensions};

use crate::source::invalid;

const BLOCK_BYTES: usize = 512;
/// Headers, including folders and extensions.
const ENTRIES_MAX: usize = 4096;
/// A long name or a list of attributes.
const EXTENSION_BYTES_MAX: u64 = 64 << 10;
/// Archives are filled up to 10 KiB, on tapes to more.
const TRAILING_BYTES_MAX: u64 = 16 << 20;
/// Names in messages.
const SHOWN_CHARACTERS: usize = 120;

/// Whether a file that begins with these bytes is a tar archive: the checksum of its first header
/// is right.
pub fn is_header(bytes: &[u8]) -> bool {
    block(bytes).is_some_and(|block| checksum_is_right(&block))
}

fn block(bytes: &[u8]) -> Option<[u8; BLOCK_BYTES]> {
    bytes.get(..BLOCK_BYTES)?.try_into().ok()
}

fn checksum_is_right(block: &[u8; BLOCK_BYTES]) -> bool {
    // The checksum's own field (148 to 155) counts as spaces; the sum of all zeros is an empty
    // block's.
    let sum: u32 = block
        .iter()
        .enumerate()
        .map(|(at, byte)| if (148..156).contains(&at) { u32::from(b' ') } else { u32::from(*byte) })
        .sum();
    Header::from_byte_slice(block).cksum().is_ok_and(|stated| stated == sum)
}

/// Attributes of an entry from the headers before it.
#[derive(Default)]
struct EntryAttributes {
    name: Option<String>,
    size: Option<u64>,
}

/// Reads as the content of the one regular file; the end of the archive is checked before the end
/// of the file is returned.
pub struct DiskInTar<R> {
    reader: R,
    name: String,
    /// Bytes of the disk that are still to come.
    left: u64,
    /// Padding of its last block, in bytes.
    padding: u64,
    entries: usize,
    is_done: bool,
}

impl<R: Read> DiskInTar<R> {
    /// Reads up to the disk.
    ///
    /// # Errors
    ///
    /// Errors of the reader, and [`io::ErrorKind::InvalidData`] with a text when there is no
    /// regular file, or when an unsupported entry precedes it.
    pub fn open(reader: R) -> io::Result<Self> {
        let mut disk =
            Self { reader, name: String::new(), left: 0, padding: 0, entries: 0, is_done: false };
        match disk.next_file()? {
            Some((name, size)) => {
                disk.padding = padding(size);
                disk.left = size;
                disk.name = name;
                Ok(disk)
            }
            None => Err(invalid("the archive holds no regular file, and so no disk")),
        }
    }

    /// The next regular file, or `None` at the end of the archive.
    #[expect(
        clippy::too_many_lines,
        reason = "steps of one matter, each on what those before it left"
    )]
    fn next_file(&mut self) -> io::Result<Option<(String, u64)>> {
        let mut described = EntryAttributes::default();
        loop {
            let mut block = [0; BLOCK_BYTES];
            self.exactly(&mut block)?;
            if block.iter().all(|byte| *byte == 0) {
                self.rest_is_empty()?;
                return Ok(None);
            }
            self.entries += 1;
            if self.entries > ENTRIES_MAX {
                return Err(invalid(format!("the archive has more than {ENTRIES_MAX} entries")));
            }
            if !checksum_is_right(&block) {
                return Err(invalid("the archive is damaged: a header's checksum is wrong"));
            }
            let header = Header::from_byte_slice(&block);
            let size = header
                .entry_size()
                .map_err(|_| invalid("the archive is damaged: a size is no number"))?;
            let kind = header.entry_type();
            match kind {
                EntryType::GNULongName | EntryType::GNULongLink | EntryType::XHeader => {
                    let bytes = self.extension(size)?;
                    match kind {
                        EntryType::XHeader => described.read_pax(&bytes)?,
                        EntryType::GNULongName => {
                            let name = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
                            described.name = Some(String::from_utf8_lossy(name).into_owned());
                        }
                        _ => {}
                    }
                    continue;
                }
                EntryType::XGlobalHeader => {
                    // Comments, as git writes them; attributes of files are in the headers of the
                    // file.
                    EntryAttributes::default().read_pax(&self.extension(size)?)?;
                    continue;
                }
                _ => {}
            }
            let EntryAttributes { name, size: described_size } = std::mem::take(&mut described);
            let name =
                name.unwrap_or_else(|| String::from_utf8_lossy(&header.path_bytes()).into_owned());
            let size = described_size.unwrap_or(size);
            check_name(&name)?;
            // In old archives a folder is a file whose name ends in a slash.
            let is_folder = kind == EntryType::Directory || (kind.is_file() && name.ends_with('/'));
            if is_folder && size == 0 {
                continue;
            }
            if kind == EntryType::Regular || kind == EntryType::Continuous {
                if !is_folder {
                    return Ok(Some((name, size)));
                }
                return Err(invalid(format!(
                    "the archive is damaged: the folder {} has content",
                    shown(&name)
                )));
            }
            let what = match kind {
                EntryType::Symlink => "a symbolic link",
                EntryType::Link => "a hard link",
                EntryType::Char | EntryType::Block => "a device",
                EntryType::Fifo => "a FIFO",
                EntryType::GNUSparse => {
                    return Err(invalid(format!(
                        "{} is stored in the archive as a sparse file, which is not taken; pack \
                        it without --sparse (-S)",
                        shown(&name)
                    )));
                }
                _ => "an entry of an unknown kind",
            };
            return Err(invalid(format!(
                "{} in the archive is {what}; an archive of an image holds one regular file, the \
                 disk",
                shown(&name)
            )));
        }
    }

    fn exactly(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        self.reader.read_exact(buffer).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                invalid("the archive is cut off: it ends without its end mark")
            }
            _ => error,
        })
    }

    /// What describes the next entry.
    fn extension(&mut self, size: u64) -> io::Result<Vec<u8>> {
        if size > EXTENSION_BYTES_MAX {
            return Err(invalid(format!(
                "the archive describes an entry with {size} bytes; at most {EXTENSION_BYTES_MAX} \
                 are taken"
            )));
        }
        let padded = size + padding(size);
        let mut bytes = vec![0; padded as usize];
        self.exactly(&mut bytes)?;
        bytes.truncate(size as usize);
        Ok(bytes)
    }

    /// Reads up to the end of the file: what is packed is checked to its end, and nothing hides
    /// there.
    fn rest_is_empty(&mut self) -> io::Result<()> {
        let mut buffer = [0; 8192];
        let mut total = 0;
        loop {
            let count = match self.reader.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            total += count as u64;
            if buffer.iter().take(count).any(|byte| *byte != 0) {
                return Err(invalid("something follows the end of the archive"));
            }
            if total > TRAILING_BYTES_MAX {
                let limit = accounting::format_size(TRAILING_BYTES_MAX);
                return Err(invalid(format!(
                    "more than {limit} of zeros follow the end of the archive"
                )));
            }
        }
    }

    fn finish(&mut self) -> io::Result<()> {
        let mut padding = vec![0; self.padding as usize];
        self.exactly(&mut padding)?;
        match self.next_file()? {
            None => Ok(()),
            Some((second, _)) => Err(invalid(format!(
                "the archive holds more than one file, {} and {}; which is the disk? Pack that \
                 one alone",
                shown(&self.name),
                shown(&second)
            ))),
        }
    }
}

impl<R: Read> Read for DiskInTar<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.is_done || buffer.is_empty() {
            return Ok(0);
        }
        if self.left == 0 {
            self.is_done = true;
            self.finish()?;
            return Ok(0);
        }
        let most = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let count = self.reader.read(buffer.get_mut(..most).unwrap_or_default())?;
        if count == 0 {
            return Err(invalid(format!(
                "the archive is cut off: {} bytes of {} are missing",
                self.left,
                shown(&self.name)
            )));
        }
        self.left -= count as u64;
        Ok(count)
    }
}

impl EntryAttributes {
    fn read_pax(&mut self, bytes: &[u8]) -> io::Result<()> {
        for extension in PaxExtensions::new(bytes) {
            let damaged =
                || invalid("the archive is damaged: attributes of an entry cannot be read");
            let extension = extension.map_err(|_| damaged())?;
            let key = extension.key().map_err(|_| damaged())?;
            let value = || extension.value().map_err(|_| damaged());
            match key {
                "path" => self.name = Some(value()?.to_owned()),
                "size" => self.size = Some(value()?.parse().map_err(|_| damaged())?),
                _ if key.starts_with("GNU.sparse.") => {
                    return Err(invalid(
                        "a file is stored in the archive as a sparse file, which is not taken; \
                        pack it without --sparse (-S)",
                    ));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn padding(size: u64) -> u64 {
    let block = BLOCK_BYTES as u64;
    (block - size % block) % block
}

fn check_name(name: &str) -> io::Result<()> {
    let climbs = Path::new(name)
        .components()
        .any(|part| !matches!(part, Component::Normal(_) | Component::CurDir));
    if climbs {
        return Err(invalid(format!("the path {} in the archive leads out of it", shown(name))));
    }
    Ok(())
}

/// A name from outside in a message: no control characters, not endless.
fn shown(name: &str) -> String {
    name.chars().take(SHOWN_CHARACTERS).flat_map(char::escape_debug).collect()
}
