//! Blobs that clients upload before an operation names them: files, by the hash of their bytes.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read, Write},
    path::PathBuf,
    sync::{Mutex, PoisonError},
};

use flate2::read::GzDecoder;
use sha2::{Digest, Sha256};

use crate::bounds::{BLOB_BYTES, BLOBS_BYTES, BLOBS_MAX};

pub(crate) struct Blobs {
    folder: PathBuf,
    known: Mutex<BlobIndex>,
}

#[derive(Default)]
struct BlobIndex {
    blobs: BTreeMap<[u8; 32], Blob>,
    /// Their ids in the order in which they came.
    by_age: BTreeMap<u64, [u8; 32]>,
    next: u64,
    /// Of all, those that are being written included.
    bytes: u64,
}

#[derive(Clone, Copy)]
struct Blob {
    is_compressed: bool,
    /// Its length as it came.
    bytes: u64,
    /// Its place in the order in which they came.
    age: u64,
}

impl BlobIndex {
    fn forget(&mut self, id: &[u8; 32]) {
        if let Some(blob) = self.blobs.remove(id) {
            self.by_age.remove(&blob.age);
            self.bytes -= blob.bytes;
        }
    }
}

/// A blob that is being written.
pub(crate) struct Incoming<'a> {
    blobs: &'a Blobs,
    file: tempfile::NamedTempFile,
    hash: Sha256,
    bytes: u64,
    is_compressed: bool,
    is_kept: bool,
}

impl Blobs {
    /// In a folder, which is made.
    pub(crate) fn in_folder(folder: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&folder)?;
        Ok(Self { folder, known: Mutex::default() })
    }

    fn path(&self, id: &[u8; 32]) -> PathBuf {
        self.folder.join(hex::encode(id))
    }

    fn take_room(&self, bytes: u64) -> Result<(), String> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        // The oldest is removed: the server cannot know when a client no longer needs one.
        while known.bytes.saturating_add(bytes) > BLOBS_BYTES || known.blobs.len() >= BLOBS_MAX {
            if let Some(oldest) = known.by_age.first_key_value().map(|(_, id)| *id) {
                disk::if_there(fs::remove_file(self.path(&oldest)))
                    .map_err(|error| error.to_string())?;
                known.forget(&oldest);
                continue;
            }
            return Err(format!(
                "the blobs of the server take {} bytes in {} blobs, the most are blobs_bytes = \
                 {BLOBS_BYTES} and blobs = {BLOBS_MAX}",
                known.bytes,
                known.blobs.len()
            ));
        }
        known.bytes += bytes;
        Ok(())
    }

    fn release_room(&self, bytes: u64) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).bytes -= bytes;
    }

    pub(crate) fn begin(&self, is_compressed: bool) -> io::Result<Incoming<'_>> {
        let file = tempfile::NamedTempFile::new_in(&self.folder)?;
        let hash = Sha256::new_with_prefix([u8::from(is_compressed)]);
        Ok(Incoming { blobs: self, file, hash, bytes: 0, is_compressed, is_kept: false })
    }

    /// The bytes of a blob, unpacked; none if it is not known.
    pub(crate) fn open(&self, id: &[u8]) -> io::Result<Option<Box<dyn Read>>> {
        let Ok(id) = <[u8; 32]>::try_from(id) else { return Ok(None) };
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(blob) = known.blobs.get(&id).copied() else { return Ok(None) };
        let file = File::open(self.path(&id))?;
        Ok(Some(if blob.is_compressed { Box::new(GzDecoder::new(file)) } else { Box::new(file) }))
    }

    /// A blob as it came, and whether it is compressed.
    pub(crate) fn raw(&self, id: &[u8]) -> io::Result<Option<(PathBuf, bool)>> {
        let Ok(id) = <[u8; 32]>::try_from(id) else { return Ok(None) };
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(known.blobs.get(&id).map(|blob| (self.path(&id), blob.is_compressed)))
    }

    /// Folder of the blobs.
    #[cfg(test)]
    fn folder(&self) -> &std::path::Path {
        &self.folder
    }
}

impl Incoming<'_> {
    /// More of it.
    ///
    /// # Errors
    /// When there is no room, naming the limit, or the disk fails.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), String> {
        let length = bytes.len() as u64;
        if self.bytes + length > BLOB_BYTES {
            return Err(format!("a blob has more bytes than the limit blob_bytes = {BLOB_BYTES}"));
        }
        self.blobs.take_room(length)?;
        self.bytes += length;
        self.hash.update(bytes);
        self.file.write_all(bytes).map_err(|error| error.to_string())
    }

    /// All of it was written; its id.
    pub(crate) fn finish(mut self) -> Result<[u8; 32], String> {
        let id: [u8; 32] = self.hash.clone().finalize().into();
        let path = self.blobs.path(&id);
        let mut known = self.blobs.known.lock().unwrap_or_else(PoisonError::into_inner);
        fs::rename(self.file.path(), &path).map_err(|error| error.to_string())?;
        known.forget(&id);
        let age = known.next;
        known.next += 1;
        let blob = Blob { is_compressed: self.is_compressed, bytes: self.bytes, age };
        known.blobs.insert(id, blob);
        known.by_age.insert(age, id);
        self.is_kept = true;
        Ok(id)
    }
}

impl Drop for Incoming<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            self.blobs.release_room(self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use flate2::{Compression, write::GzEncoder};

    use super::*;

    #[test]
    fn a_blob_is_read_as_it_was_before_it_was_packed() {
        let folder = tempfile::tempdir().unwrap();
        let blobs = Blobs::in_folder(folder.path().join("blobs")).unwrap();
        let content = vec![7; 100_000];
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        packed.write_all(&content).unwrap();
        let packed = packed.finish().unwrap();
        for (bytes, is_compressed) in [(&content, false), (&packed, true), (&content, false)] {
            let mut incoming = blobs.begin(is_compressed).unwrap();
            bytes.chunks(3_000).for_each(|part| incoming.write(part).unwrap());
            let id = incoming.finish().unwrap();
            let mut read = Vec::new();
            blobs.open(&id).unwrap().unwrap().read_to_end(&mut read).unwrap();
            assert!(read == content);
        }
        let sum = (content.len() + packed.len()) as u64;
        assert_eq!(blobs.known.lock().unwrap().bytes, sum, "the same blob counts once");
        let mut left = blobs.begin(false).unwrap();
        left.write(&content).unwrap();
        drop(left);
        assert_eq!(blobs.known.lock().unwrap().bytes, sum);
        assert_eq!(fs::read_dir(blobs.folder()).unwrap().count(), 2);
        assert!(blobs.open(&[1; 32]).unwrap().is_none());
    }

    #[test]
    fn more_than_there_is_room_for_is_refused_with_the_limit() {
        let folder = tempfile::tempdir().unwrap();
        let blobs = Blobs::in_folder(folder.path().to_owned()).unwrap();
        let ids = [1, 2].map(|content| {
            let mut incoming = blobs.begin(false).unwrap();
            incoming.write(&[content; 10]).unwrap();
            incoming.finish().unwrap()
        });
        // The oldest makes room, and no more than needed do; also where something took its file.
        fs::remove_file(blobs.path(&ids[0])).unwrap();
        blobs.known.lock().unwrap().bytes = BLOBS_BYTES;
        let mut incoming = blobs.begin(false).unwrap();
        incoming.write(&[3; 10]).unwrap();
        assert!(blobs.open(&ids[0]).unwrap().is_none() && blobs.open(&ids[1]).unwrap().is_some());
        assert_eq!(blobs.known.lock().unwrap().bytes, BLOBS_BYTES);
        // Others that are being written take all of it.
        incoming.write(&[3; 10]).unwrap();
        let mut incoming = blobs.begin(false).unwrap();
        assert!(incoming.write(&[0]).unwrap_err().contains("blobs_bytes"));
    }
}
