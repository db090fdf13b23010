//! Unpacks a file that was given as an image: its layers of packing are removed one by one until a
//! disk is found. The bytes decide, not the name.
//!
//! Bounds: [`LAYERS_MAX`] layers; memory of each decoder ([`ZSTD_WINDOW_LOG_MAX`],
//! [`XZ_MEMORY_BYTES_MAX`]); the caller bounds the size of the output, and sizes that a layer
//! declares are never used.

use std::{
    io::{self, BufReader, Read},
    path::Path,
};

use crate::{qcow2, tar_disk};

/// Enough for a disk in an archive in a packed file, whose parts are packed once more.
const LAYERS_MAX: usize = 3;
/// 128 MiB, what `zstd --long` makes and `zstd -d` takes unasked.
const ZSTD_WINDOW_LOG_MAX: u32 = 27;
/// `xz -9` needs 65 MiB.
const XZ_MEMORY_BYTES_MAX: u64 = 256 << 20;
const BUFFER_BYTES: usize = 256 << 10;
/// Enough for every magic number below.
const PREFIX_BYTES: usize = 512;

/// A disk, and what it was packed in.
pub struct Layers {
    /// Gives the bytes of the disk's file; errors have [`io::ErrorKind::InvalidData`] and words
    /// for people where the content is at fault.
    pub disk: Box<dyn Read + Send>,
    /// Outermost first: `zstd`, `gzip`, `xz`, `tar`.
    pub names: Vec<&'static str>,
    /// Whether the disk's file is a qcow2 file; otherwise it is raw.
    pub is_qcow2: bool,
}

/// Format of a layer, detected from its first bytes.
enum Kind {
    Zstd,
    Gzip,
    Xz,
    Tar,
    Qcow2,
    Raw,
    /// A format that is not taken, and what to do.
    Other(&'static str),
}

/// Removes the layers.
///
/// # Errors
///
/// Errors of reading, and [`io::ErrorKind::InvalidData`] with a text when a layer is damaged, is
/// not supported, or exceeds the number of layers.
pub fn open(file: impl Read + Send + 'static) -> io::Result<Layers> {
    let mut reader: Box<dyn Read + Send> = Box::new(file);
    let mut names = Vec::new();
    loop {
        let mut prefix = Vec::with_capacity(PREFIX_BYTES);
        reader.by_ref().take(PREFIX_BYTES as u64).read_to_end(&mut prefix)?;
        let kind = kind(&prefix);
        let whole = io::Cursor::new(prefix).chain(reader);
        let name = match kind {
            Kind::Raw | Kind::Qcow2 => {
                let is_qcow2 = matches!(kind, Kind::Qcow2);
                return Ok(Layers { disk: Box::new(whole), names, is_qcow2 });
            }
            Kind::Other(why) => return Err(invalid(why)),
            _ if names.len() == LAYERS_MAX => {
                let names = names.join(", ");
                return Err(invalid(format!(
                    "packed more than {LAYERS_MAX} times ({names}, and more inside); unpack it \
                     first"
                )));
            }
            Kind::Zstd => "zstd",
            Kind::Gzip => "gzip",
            Kind::Xz => "xz",
            Kind::Tar => "tar",
        };
        names.push(name);
        let peeked = BufReader::with_capacity(BUFFER_BYTES, whole);
        reader = match kind {
            Kind::Zstd => {
                let mut decoder = zstd::stream::read::Decoder::with_buffer(peeked)?;
                decoder.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
                Box::new(LayerReader { inner: decoder, name })
            }
            Kind::Gzip => {
                Box::new(LayerReader { inner: flate2::bufread::MultiGzDecoder::new(peeked), name })
            }
            Kind::Xz => {
                let flags = liblzma::stream::CONCATENATED;
                let stream =
                    liblzma::stream::Stream::new_stream_decoder(XZ_MEMORY_BYTES_MAX, flags)?;
                Box::new(LayerReader {
                    inner: liblzma::bufread::XzDecoder::new_stream(peeked, stream),
                    name,
                })
            }
            _ => Box::new(tar_disk::DiskInTar::open(peeked)?),
        };
    }
}

fn kind(bytes: &[u8]) -> Kind {
    let starts = |magic: &[u8]| bytes.starts_with(magic);
    let skippable_zstd = bytes.first().is_some_and(|first| (0x50..=0x5f).contains(first))
        && bytes.get(1..4) == Some(&[0x2a, 0x4d, 0x18]);
    match () {
        () if starts(&[0x28, 0xb5, 0x2f, 0xfd]) || skippable_zstd => Kind::Zstd,
        () if starts(&[0x1f, 0x8b]) => Kind::Gzip,
        () if starts(&[0xfd, b'7', b'z', b'X', b'Z', 0]) => Kind::Xz,
        () if starts(&qcow2::MAGIC) => match bytes.get(4..8) {
            Some([0, 0, 0, 1]) => Kind::Other(
                "a disk of the old qcow format (version 1); convert it with qemu-img convert -O \
                 qcow2",
            ),
            _ => Kind::Qcow2,
        },
        () if tar_disk::is_header(bytes) => Kind::Tar,
        () if starts(b"BZh") => Kind::Other("packed by bzip2, which is not taken; unpack it first"),
        () if starts(&[0x04, 0x22, 0x4d, 0x18]) => {
            Kind::Other("packed by lz4, which is not taken; unpack it first")
        }
        () if starts(b"PK\x03\x04") || starts(b"7z\xbc\xaf\x27\x1c") => {
            Kind::Other("a zip or 7z archive, which is not taken; unpack it first")
        }
        () if starts(b"KDMV") || starts(b"# Disk DescriptorFile") => {
            Kind::Other("a VMDK disk; convert it with qemu-img convert -O qcow2")
        }
        () if starts(b"vhdxfile") || starts(b"conectix") => {
            Kind::Other("a VHD disk; convert it with qemu-img convert -O qcow2")
        }
        () if bytes.get(64..68) == Some(&[0x7f, 0x10, 0xda, 0xbe]) => {
            Kind::Other("a VDI disk; convert it with qemu-img convert -O qcow2")
        }
        () if starts(b"QED\0") => {
            Kind::Other("a QED disk; convert it with qemu-img convert -O qcow2")
        }
        () => Kind::Raw,
    }
}

/// A problem of a file's content, with a text of this crate.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refusal(String);

pub(crate) fn invalid(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, Refusal(why.into()))
}

/// Adds the layer to an error.
struct LayerReader<R> {
    inner: R,
    name: &'static str,
}

impl<R: Read> Read for LayerReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.inner.read(buffer).map_err(|error| match error.raw_os_error() {
            // The file cannot be read, which is not a fault of its content; nor is a request to
            // stop.
            Some(_) => error,
            None if error.kind() == io::ErrorKind::Interrupted => error,
            // An error of an outer layer, or of the reader of the file.
            None if error
                .get_ref()
                .is_some_and(|it| it.is::<crate::Error>() || it.is::<Refusal>()) =>
            {
                error
            }
            None => invalid(format!("its {} layer is damaged or cut off: {error}", self.name)),
        })
    }
}

/// What is wrong with a file that is to be a raw disk of this size, if anything.
pub(crate) fn why_no_disk(bytes: u64) -> Option<String> {
    if bytes == 0 {
        return Some("there is nothing in it".to_owned());
    }
    (!bytes.is_multiple_of(512)).then(|| {
        format!(
            "no disk: its {bytes} bytes are no multiple of 512; is it cut off, or something else?"
        )
    })
}

/// The words of an error of [`open`] or of reading a disk.
pub(crate) fn read_error(path: &Path, error: io::Error) -> crate::Error {
    if error.get_ref().is_some_and(|inner| inner.is::<crate::Error>()) {
        if let Some(Ok(inner)) = error.into_inner().map(|inner| inner.downcast::<crate::Error>()) {
            return *inner;
        }
        return crate::Error::Stopped;
    }
    match error.kind() {
        io::ErrorKind::InvalidData => crate::Error::refused(path, error.to_string()),
        _ => crate::Error::io("reading", path)(error),
    }
}
