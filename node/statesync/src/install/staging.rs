//! The files of an installation under way. See the module above for their names. Nothing here knows
//! what is missing.

use std::fs::{self, File};
use std::io::BufReader;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use disk::{Disk, DiskFile, Lock, Open, SharedDisk, if_there};
use pages::{MemoryId, StagedMemory, retain_staged, sync_dir};
use state::BlobStore;
use state::manifest::{Header, ObjectId, PIECE_BYTES, piece_hash};
use state::payloads::{parse_name, payload_path};
use state::store::RowReader;

use super::plan::Plan;
use super::swap::{COMPLETE, OLD, STAGING};
use super::{InstallError, MESSAGES};

/// Longest header that is read: that of a body of as many pieces as there may be.
const HEADER_BYTES_MAX: u64 = 1 << 20;

/// The records or a blob, under way.
pub(super) struct StagedStream {
    disk: SharedDisk,
    file: File,
    path: PathBuf,
}

impl StagedStream {
    pub(super) fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), InstallError> {
        self.file.read_exact_at(buffer, offset).map_err(InstallError::io("read", &self.path))
    }

    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), InstallError> {
        self.on_disk().write_at(bytes, offset).map_err(InstallError::io("write", &self.path))
    }

    fn on_disk(&self) -> Box<dyn DiskFile + '_> {
        self.disk.raw(&self.path, &self.file)
    }
}

/// See the module. Locked against another installation while it lives.
pub(super) struct Staging {
    disk: SharedDisk,
    dir: PathBuf,
    blobs: BlobStore,
    /// The folder of payloads, open since before they were written.
    messages: File,
    _lock: Lock,
}

impl Staging {
    /// Opens the staging directory, creating it if need be.
    pub(super) fn open(disk: SharedDisk, data_dir: &Path) -> Result<Self, InstallError> {
        let dir = data_dir.join(STAGING);
        if dir.join(COMPLETE).exists() {
            // An installation before this one was not ended: its state counts already.
            super::complete_install_on(disk.as_ref(), data_dir)?;
        }
        let state = dir.join("state");
        for dir in [dir.clone(), dir.join("pages"), state.join("blobs"), state.join(MESSAGES)] {
            disk.create_folder(&dir).map_err(InstallError::io("create", &dir))?;
        }
        for name in OLD {
            remove_dir(disk.as_ref(), &dir.join(name))?;
        }
        let lock = File::open(&dir).map_err(InstallError::io("open", &dir))?;
        let lock = Lock::take(lock).map_err(InstallError::io("lock", &dir))?;
        let Some(lock) = lock else { return Err(InstallError::InUse { path: dir }) };
        let blobs = BlobStore::open_on(disk.clone(), &dir.join("state").join("blobs"), u64::MAX)?;
        let messages = dir.join("state").join(MESSAGES);
        let messages = File::open(&messages).map_err(InstallError::io("open", &messages))?;
        Ok(Self { disk, dir, blobs, messages, _lock: lock })
    }

    pub(super) fn state_dir(&self) -> PathBuf {
        self.dir.join("state")
    }

    fn messages_dir(&self) -> PathBuf {
        self.state_dir().join(MESSAGES)
    }

    fn pages_dir(&self) -> PathBuf {
        self.dir.join("pages")
    }

    /// The header that is there, right or not.
    pub(super) fn header(&self) -> Result<Option<Vec<u8>>, InstallError> {
        let path = self.dir.join("header");
        match if_there(fs::metadata(&path)).map_err(InstallError::io("read", &path))? {
            Some(found) if found.len() <= HEADER_BYTES_MAX => {
                fs::read(&path).map(Some).map_err(InstallError::io("read", &path))
            }
            _ => Ok(None),
        }
    }

    /// Keeps a header, and makes room for its body.
    pub(super) fn put_header(&self, bytes: &[u8], body_bytes: u64) -> Result<(), InstallError> {
        let path = self.dir.join("header");
        self.disk
            .open(&path, Open::Truncate)
            .and_then(|file| file.write_at(bytes, 0))
            .map_err(InstallError::io("write", &path))?;
        let (body, path) = self.body()?;
        self.disk.raw(&path, &body).set_len(body_bytes).map_err(InstallError::io("extend", &path))
    }

    pub(super) fn body(&self) -> Result<(File, PathBuf), InstallError> {
        let path = self.dir.join("body");
        let file = self.open_or_create(&path)?;
        Ok((file, path))
    }

    pub(super) fn put_piece(&self, index: u32, bytes: &[u8]) -> Result<(), InstallError> {
        let (file, path) = self.body()?;
        self.disk
            .raw(&path, &file)
            .write_at(bytes, u64::from(index) * PIECE_BYTES as u64)
            .map_err(InstallError::io("write", &path))
    }

    pub(super) fn piece(&self, header: &Header, index: u32) -> Result<Vec<u8>, InstallError> {
        let (file, path) = self.body()?;
        let mut piece = vec![0; header.piece_bytes(index).unwrap_or(0)];
        file.read_exact_at(&mut piece, u64::from(index) * PIECE_BYTES as u64)
            .map_err(InstallError::io("read", &path))?;
        Ok(piece)
    }

    pub(super) fn pieces_there(&self, header: &Header) -> Result<Vec<bool>, InstallError> {
        let there = (0u32..).zip(&header.pieces);
        there.map(|(index, hash)| Ok(piece_hash(&self.piece(header, index)?) == *hash)).collect()
    }

    /// A memory's file, and whether it was there.
    pub(super) fn memory(
        &self,
        id: MemoryId,
        length: u64,
    ) -> Result<(StagedMemory, bool), InstallError> {
        Ok(StagedMemory::open(self.disk.clone(), &self.pages_dir(), id, length)?)
    }

    /// The file of the records or of a blob, and whether it was there.
    pub(super) fn stream(
        &self,
        id: ObjectId,
        length: u64,
    ) -> Result<(StagedStream, bool), InstallError> {
        let path = match &id {
            ObjectId::Blob(hash) => self.blobs.path(hash),
            ObjectId::Payload(number) => payload_path(&self.messages_dir(), *number),
            _ => self.dir.join("records"),
        };
        let file = self.open_or_create(&path)?;
        let found = file.metadata().map_err(InstallError::io("inspect", &path))?.len();
        let stream = StagedStream { disk: self.disk.clone(), file, path };
        if found != length {
            stream.on_disk().set_len(length).map_err(InstallError::io("extend", &stream.path))?;
        }
        Ok((stream, found > 0))
    }

    /// Removes everything that the plan does not name: files of an installation of another height.
    pub(super) fn retain(&self, plan: &Plan) -> Result<(), InstallError> {
        retain_staged(self.disk.as_ref(), &self.pages_dir(), |id| plan.has(ObjectId::Memory(id)))?;
        self.blobs.retain(|hash| plan.has(ObjectId::Blob(*hash)))?;
        let dir = self.messages_dir();
        let failed = InstallError::io("list", &dir);
        for entry in fs::read_dir(&dir).map_err(&failed)? {
            let name = entry.map_err(&failed)?.file_name();
            let number = name.to_str().and_then(parse_name);
            if number.is_none_or(|number| !plan.has(ObjectId::Payload(number))) {
                let path = dir.join(name);
                self.disk.remove(&path).map_err(InstallError::io("remove", &path))?;
            }
        }
        Ok(())
    }

    pub(super) fn records(&self, plan: &Plan) -> Result<RowReader<BufReader<File>>, InstallError> {
        let length = plan.object(0).map_or(0, |planned| planned.length);
        let (stream, _) = self.stream(ObjectId::Records, length)?;
        Ok(RowReader::new(BufReader::with_capacity(PIECE_BYTES, stream.file), length))
    }

    /// Makes every file that will count durable, and their names.
    pub(super) fn sync(&self, plan: &Plan) -> Result<(), InstallError> {
        // All are written at once before the first is waited for.
        for planned in &plan.objects {
            if let ObjectId::Memory(id) = planned.id {
                self.memory(id, planned.length)?.0.start_writeback();
            }
        }
        for planned in &plan.objects {
            match planned.id {
                ObjectId::Records | ObjectId::Payload(_) => {}
                ObjectId::Memory(id) => self.memory(id, planned.length)?.0.sync()?,
                ObjectId::Blob(_) => {
                    let (stream, _) = self.stream(planned.id, planned.length)?;
                    stream.on_disk().sync_all().map_err(InstallError::io("sync", &stream.path))?;
                }
            }
        }
        self.sync_payloads(plan)?;
        let (state, blobs) = (self.state_dir(), self.state_dir().join("blobs"));
        for dir in [self.pages_dir(), blobs, state, self.dir.clone()] {
            sync_dir(self.disk.as_ref(), &dir)?;
        }
        Ok(())
    }

    /// There may be very many.
    fn sync_payloads(&self, plan: &Plan) -> Result<(), InstallError> {
        let dir = self.messages_dir();
        let numbers = plan.objects.iter().filter_map(|planned| match planned.id {
            ObjectId::Payload(number) => Some(number),
            _ => None,
        });
        let files: Vec<_> = numbers.map(|number| payload_path(&dir, number)).collect();
        self.disk.sync_files(&dir, &self.messages, &files).map_err(InstallError::io("sync", &dir))
    }

    /// Records, durably, that the new state is valid.
    pub(super) fn complete(&self) -> Result<(), InstallError> {
        let path = self.dir.join(COMPLETE);
        self.disk
            .open(&path, Open::Truncate)
            .and_then(|file| file.sync_all())
            .map_err(InstallError::io("create", &path))?;
        sync_dir(self.disk.as_ref(), &self.dir)?;
        // The folder itself was made since the data folder was last synced.
        self.dir.parent().map_or(Ok(()), |data_dir| Ok(sync_dir(self.disk.as_ref(), data_dir)?))
    }

    fn open_or_create(&self, path: &Path) -> Result<File, InstallError> {
        self.disk.open_raw(path, Open::Create).map_err(InstallError::io("open", path))
    }
}

/// Removes a directory and its contents; a missing one counts as removed.
pub(super) fn remove_dir(disk: &dyn Disk, path: &Path) -> Result<(), InstallError> {
    if_there(disk.remove_folder(path)).map(drop).map_err(InstallError::io("remove", path))
}
