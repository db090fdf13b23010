//! The header of qcow2 files: read as untrusted, and written for overlays.
//!
//! A qcow2 file from outside may name another file as its backing file or as its data file; a
//! program that opens it would then read that file of the host, and expose it to the guest. So a
//! header is checked here before `qemu-img` or QEMU opens the file, and references to other files
//! are refused.
//!
//! Overlays are written here as well, and not by `qemu-img create`. An empty overlay is a header, a
//! table of one refcount block, that block and an empty L1 table: 256 KiB with 200 bytes in them,
//! of which 12 KiB take room (`qemu-img` fills 196 KiB). Eight take 2 ms, locks and links included,
//! where eight `qemu-img create` take 53 ms of CPU time and 60 to 170 ms on a busy machine with two
//! cores (`make bench-images`), and eight machines are to have theirs within 50 ms. Tests compare
//! the output of `qemu-img info`, `check` and `compare` for both, and let `qemu-io` write into
//! them.
//!
//! Format: QEMU's `docs/interop/qcow2.txt`. All numbers are big endian.
//!
//! Bounds: at most [`HEADER_BYTES_MAX`] of a file are read; a name in it has at most
//! [`NAME_BYTES_MAX`] bytes.

/// The first four bytes of a qcow2 file, `QFI\xfb`.
pub const MAGIC: [u8; 4] = *b"QFI\xfb";
/// The header and its extensions are in the first cluster, whose size is at most this.
pub const HEADER_BYTES_MAX: usize = 2 << 20;
/// The format's own limit for the name of a backing file.
pub const NAME_BYTES_MAX: usize = 1023;
/// Largest disk of an overlay: what one cluster of 64 KiB holds of the L1 table.
pub const OVERLAY_BYTES_MAX: u64 = (CLUSTER_BYTES / 8) * L1_ENTRY_COVERS;

/// Size of an overlay's clusters: what `qemu-img create` makes.
const CLUSTER_BYTES: u64 = 1 << CLUSTER_BITS;
const CLUSTER_BITS: u32 = 16;
/// An L1 entry names one cluster of entries of 8 bytes, each for one cluster.
const L1_ENTRY_COVERS: u64 = CLUSTER_BYTES / 8 * CLUSTER_BYTES;
const VERSION_3_HEADER_BYTES: u32 = 112;
/// Extensions before the end mark; qemu-img writes two or three.
const EXTENSIONS_MAX: usize = 32;

const EXTENSION_END: u32 = 0;
const EXTENSION_BACKING_FORMAT: u32 = 0xe279_2aca;
const EXTENSION_DATA_FILE: u32 = 0x4441_5441;

const INCOMPATIBLE_DIRTY: u64 = 1;
const INCOMPATIBLE_CORRUPT: u64 = 1 << 1;
const INCOMPATIBLE_DATA_FILE: u64 = 1 << 2;
const INCOMPATIBLE_COMPRESSION: u64 = 1 << 3;
const INCOMPATIBLE_EXTENDED_L2: u64 = 1 << 4;

/// The header of a qcow2 file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// 2 or 3.
    pub version: u32,
    /// Size of the disk in bytes.
    pub virtual_bytes: u64,
    /// Size of a cluster, 512 bytes to 2 MiB.
    pub cluster_bytes: u64,
    /// Its backing file, as written.
    pub backing: Option<Vec<u8>>,
    /// The format of that, as written.
    pub backing_format: Option<Vec<u8>>,
    /// Whether its data are in another file.
    pub has_data_file: bool,
    /// 0 for none.
    encryption: u32,
    incompatible: u64,
}

/// Reads big-endian numbers at offsets that may be out of bounds.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn range(&self, at: u64, count: u64) -> Option<&'a [u8]> {
        let begin = usize::try_from(at).ok()?;
        let end = usize::try_from(at.checked_add(count)?).ok()?;
        self.0.get(begin..end)
    }

    fn u32(&self, at: u64) -> Option<u32> {
        Some(u32::from_be_bytes(self.range(at, 4)?.try_into().ok()?))
    }

    fn u64(&self, at: u64) -> Option<u64> {
        Some(u64::from_be_bytes(self.range(at, 8)?.try_into().ok()?))
    }
}

/// Reads a header from the first [`HEADER_BYTES_MAX`] bytes of a file, or all of a shorter one.
pub fn read(bytes: &[u8]) -> Result<Header, String> {
    let bytes = Bytes(bytes.get(..HEADER_BYTES_MAX).unwrap_or(bytes));
    if bytes.range(0, 4) != Some(&MAGIC) {
        return Err("this is no qcow2 file".to_owned());
    }
    fields(&bytes)?.ok_or_else(|| "the qcow2 header is cut off or damaged".to_owned())
}

fn fields(bytes: &Bytes<'_>) -> Result<Option<Header>, String> {
    let Some(version) = bytes.u32(4) else { return Ok(None) };
    if !matches!(version, 2 | 3) {
        return Err(format!("a qcow2 file of version {version}; 2 and 3 are known"));
    }
    let read = || {
        let cluster_bits = bytes.u32(20)?;
        if !(9..=21).contains(&cluster_bits) {
            return None;
        }
        let (incompatible, header_bytes) = match version {
            3 => (bytes.u64(72)?, bytes.u32(100)?),
            _ => (0, 72),
        };
        // A version 3 header has 104 bytes at least, and fits into the first cluster.
        let first_cluster = 1_u64 << cluster_bits;
        if (version == 3 && header_bytes < 104) || u64::from(header_bytes) >= first_cluster {
            return None;
        }
        let backing = match (bytes.u64(8)?, bytes.u32(16)?) {
            (0, _) => None,
            (_, length) if length as usize > NAME_BYTES_MAX => return None,
            (at, length) => Some(bytes.range(at, length.into())?.to_vec()),
        };
        let mut header = Header {
            version,
            virtual_bytes: bytes.u64(24)?,
            cluster_bytes: first_cluster,
            backing,
            backing_format: None,
            has_data_file: incompatible & INCOMPATIBLE_DATA_FILE != 0,
            encryption: bytes.u32(32)?,
            incompatible,
        };
        let mut at = u64::from(header_bytes);
        for _ in 0..EXTENSIONS_MAX {
            let (kind, length) = (bytes.u32(at)?, u64::from(bytes.u32(at + 4)?));
            match kind {
                EXTENSION_END => return Some(header),
                EXTENSION_BACKING_FORMAT => {
                    header.backing_format =
                        Some(bytes.range(at + 8, length.min(NAME_BYTES_MAX as u64))?.to_vec());
                }
                EXTENSION_DATA_FILE => header.has_data_file = true,
                _ => {}
            }
            at += 8 + length.next_multiple_of(8);
            if at + 8 > first_cluster {
                return None;
            }
        }
        None
    };
    Ok(read())
}

impl Header {
    /// Whether the file can be a base: it references no other file, is not encrypted, and was
    /// closed cleanly.
    pub fn check_base(&self) -> Result<(), String> {
        let name = |bytes: &[u8]| -> String {
            String::from_utf8_lossy(bytes).chars().take(200).flat_map(char::escape_debug).collect()
        };
        if let Some(backing) = &self.backing {
            return Err(format!(
                "this qcow2 file is an overlay of {}, so it is only part of a disk; make it \
                whole with qemu-img convert -O qcow2 if you trust it",
                name(backing)
            ));
        }
        if self.has_data_file {
            return Err("the data of this qcow2 file lie in another file; make it whole with \
            qemu-img convert -O qcow2 if you trust it"
                .to_owned());
        }
        if self.encryption != 0 {
            return Err("this qcow2 file is encrypted".to_owned());
        }
        if self.incompatible & INCOMPATIBLE_CORRUPT != 0 {
            return Err("this qcow2 file is marked as damaged; see qemu-img check".to_owned());
        }
        if self.incompatible & INCOMPATIBLE_DIRTY != 0 {
            return Err(
                "this qcow2 file was not closed in order; see qemu-img check -r all".to_owned()
            );
        }
        let known = INCOMPATIBLE_COMPRESSION | INCOMPATIBLE_EXTENDED_L2;
        if self.incompatible & !known != 0 {
            return Err(format!(
                "this qcow2 file needs features that are not known here ({:#x})",
                self.incompatible & !known
            ));
        }
        if self.virtual_bytes == 0 || !self.virtual_bytes.is_multiple_of(512) {
            return Err(format!(
                "its disk has {} bytes, which is no multiple of 512 above zero",
                self.virtual_bytes
            ));
        }
        Ok(())
    }
}

/// An empty overlay, all of whose other bytes are zeros.
pub struct Empty {
    /// Length of the file.
    pub length: u64,
    /// Offsets and bytes.
    pub parts: [(u64, Vec<u8>); 3],
}

/// An empty overlay over `backing`, an absolute path, of the given format.
///
/// # Errors
///
/// A text, when the path of the base is too long, or the disk is larger than [`OVERLAY_BYTES_MAX`].
pub fn overlay(backing: &[u8], format: &str, virtual_bytes: u64) -> Result<Empty, String> {
    if backing.is_empty() || backing.len() > NAME_BYTES_MAX {
        return Err(format!(
            "the path of the base has {} bytes and qcow2 takes {NAME_BYTES_MAX}; use a cache \
            with a shorter path",
            backing.len()
        ));
    }
    if virtual_bytes > OVERLAY_BYTES_MAX {
        return Err(format!(
            "a disk of {} is more than the {} that overlays are made for",
            accounting::format_size(virtual_bytes),
            accounting::format_size(OVERLAY_BYTES_MAX)
        ));
    }
    let l1_entries = u32::try_from(virtual_bytes.div_ceil(L1_ENTRY_COVERS))
        .map_err(|_| "too large".to_owned())?;
    // Cluster 0: header; 1: refcount table; 2: refcount block; 3: L1 table.
    let clusters = 4_u64;
    let mut head = Vec::with_capacity(512 + backing.len());
    head.extend(MAGIC);
    head.extend(3_u32.to_be_bytes());
    let backing_at = head.len();
    head.extend([0; 8]);
    head.extend((backing.len() as u32).to_be_bytes());
    head.extend(CLUSTER_BITS.to_be_bytes());
    head.extend(virtual_bytes.to_be_bytes());
    head.extend(0_u32.to_be_bytes()); // encryption
    head.extend(l1_entries.to_be_bytes());
    head.extend((3 * CLUSTER_BYTES).to_be_bytes()); // L1 table
    head.extend(CLUSTER_BYTES.to_be_bytes()); // refcount table
    head.extend(1_u32.to_be_bytes()); // its clusters
    head.extend(0_u32.to_be_bytes()); // snapshots
    head.extend(0_u64.to_be_bytes()); // their table
    head.extend([0; 24]); // features: incompatible, compatible, autoclear
    head.extend(4_u32.to_be_bytes()); // refcounts of 16 bits
    head.extend(VERSION_3_HEADER_BYTES.to_be_bytes());
    head.extend([0; 8]); // compression: deflate; padding
    debug_assert_eq!(head.len(), VERSION_3_HEADER_BYTES as usize);
    head.extend(EXTENSION_BACKING_FORMAT.to_be_bytes());
    head.extend((format.len() as u32).to_be_bytes());
    head.extend(format.as_bytes());
    head.resize(head.len().next_multiple_of(8), 0);
    head.extend([0; 8]); // end of extensions
    let at = head.len() as u64;
    head.extend(backing);
    if let Some(field) = head.get_mut(backing_at..backing_at + 8) {
        field.copy_from_slice(&at.to_be_bytes());
    }
    debug_assert!(head.len() as u64 <= CLUSTER_BYTES);
    let refcounts = std::iter::repeat_n(1_u16.to_be_bytes(), clusters as usize).flatten().collect();
    Ok(Empty {
        length: clusters * CLUSTER_BYTES,
        parts: [
            (0, head),
            // The table names the one block, which counts one use of each cluster.
            (CLUSTER_BYTES, (2 * CLUSTER_BYTES).to_be_bytes().to_vec()),
            (2 * CLUSTER_BYTES, refcounts),
        ],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first cluster.
    fn cluster(empty: &Empty) -> Vec<u8> {
        let mut bytes = empty.parts[0].1.clone();
        bytes.resize(1 << 16, 0);
        bytes
    }

    #[test]
    fn an_overlay_reads_as_it_was_written() {
        let empty = overlay(b"/cache/disk.raw", "raw", 5 << 30).unwrap();
        assert_eq!(empty.length, 4 << 16);
        let header = read(&cluster(&empty)).unwrap();
        assert_eq!(header.backing.as_deref(), Some(&b"/cache/disk.raw"[..]));
        assert_eq!(header.backing_format.as_deref(), Some(&b"raw"[..]));
        assert_eq!((header.version, header.virtual_bytes), (3, 5 << 30));
        assert!(header.check_base().unwrap_err().contains("overlay of /cache/disk.raw"));
        assert!(overlay(&[b'a'; 1024], "raw", 512).err().unwrap().contains("1023"));
        assert!(overlay(b"a", "raw", OVERLAY_BYTES_MAX + 512).err().unwrap().contains("4 TiB"));
        assert!(overlay(b"a", "raw", OVERLAY_BYTES_MAX).is_ok());
    }

    #[test]
    fn every_header_that_is_cut_off_is_refused() {
        let bytes = cluster(&overlay(b"/cache/disk.raw", "raw", 5 << 30).unwrap());
        let whole = 136 + b"/cache/disk.raw".len();
        assert!(read(&bytes[..whole]).is_ok());
        for count in 0..whole {
            assert!(read(&bytes[..count]).is_err(), "{count} bytes");
        }
    }

    #[test]
    fn what_points_outside_or_is_unfit_is_refused_by_name() {
        // Offsets are of the format's description.
        let base = |at: usize, new: &[u8]| {
            let mut bytes = cluster(&overlay(b"x", "raw", 1 << 30).unwrap());
            bytes[8..20].fill(0);
            bytes[at..at + new.len()].copy_from_slice(new);
            read(&bytes).and_then(|header| header.check_base())
        };
        assert_eq!(base(0, b"Q"), Ok(()));
        for (at, bytes, word) in [
            (79, &[1][..], "closed in order"),
            (79, &[2], "marked as damaged"),
            (79, &[4], "another file"),
            (112, b"DATA", "another file"),
            (79, &[32], "not known here"),
            (72, &[128], "not known here"),
            (35, &[1], "encrypted"),
            (24, &[0, 0, 0, 0, 0, 0, 0, 1], "multiple of 512"),
            (7, &[4], "version 4"),
            (23, &[64], "damaged"),
            (116, &[255, 255, 255, 255], "damaged"),
            (100, &[255, 255, 255, 255], "damaged"),
            (100, &[0, 0, 0, 72], "damaged"),
        ] {
            let error = base(at, bytes).unwrap_err();
            assert!(error.contains(word), "{at}: {error}");
        }
    }
}
