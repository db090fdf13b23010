//! Adding an image: its file becomes a base, once, even if several processes add it at the same
//! time.

use std::{
    fs::{self, File},
    io::{self, Read},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::Serialize;

use crate::{
    Base, Cache, Error, Result, State,
    cache::{disk_name, head},
    files::{self, Identity},
    hash_cache,
    id::{BaseId, Form},
    lock::Mode,
    progress::Progress,
    qcow2, qemu_img,
    record::Record,
    scratch::{self, Scratch},
    source,
    sparse::{self, Content},
};

/// In which form a base is kept.
///
/// A raw disk is kept raw: it is served at the speed of the file, and repacking it as qcow2 takes
/// four times the CPU time of unpacking it. A qcow2 file is kept as it is, packed or not: it serves
/// overlays without being unpacked at all. `make bench-images` prints the figures for this choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Packing {
    /// Raw when the disk is raw, the qcow2 file as it is when it is qcow2.
    #[default]
    Best,
    /// Raw, whatever it was: fastest to read, largest.
    Unpacked,
    /// A qcow2 file whose clusters are packed by zstd: smallest; slow to make, and every machine
    /// unpacks what it reads.
    Compressed,
}

/// Result of [`Cache::add`].
#[derive(Clone, Debug, Serialize)]
pub struct AddResult {
    /// The base that the file became.
    #[serde(flatten)]
    pub base: Base,
    /// Whether it was made now; otherwise it was there.
    pub is_new: bool,
    /// Whether it was there, but damaged or without its file, and was made again: these overlays
    /// need it.
    pub healed: Option<Vec<PathBuf>>,
    /// Whether the file's hash was known, so that it was not read for it.
    pub hash_was_known: bool,
    /// Size of the base on the disk, in bytes.
    pub disk_bytes: u64,
    /// Size of the disk for each byte of the file.
    pub ratio: f64,
}

/// The file that is added.
struct Source<'a> {
    path: &'a Path,
    identity: Identity,
    /// Whether a change since would show.
    was_settled: bool,
    key: [u8; 32],
    layers: Vec<String>,
    is_qcow2: bool,
}

impl Cache {
    /// Makes a base of an image file: raw or qcow2, plain or packed by zstd, gzip or xz, alone or
    /// as the one file of a tar archive. One that is there is found at the price of a `stat`.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] for a file that is not an image or refers to other files,
    /// [`Error::TooLarge`], [`Error::NoRoom`], [`Error::NoTool`] where `qemu-img` is needed (for
    /// qcow2 and for [`Packing::Compressed`]), [`Error::Stopped`]. None leaves anything in the
    /// cache.
    pub fn add(&self, path: &Path, wanted: Packing) -> Result<AddResult> {
        self.add_with(path, wanted, false)
    }

    /// [`Cache::add`]; with `rehash` the file is read also when it seems unchanged since it was
    /// last hashed.
    pub fn add_with(&self, path: &Path, wanted: Packing, rehash: bool) -> Result<AddResult> {
        let (mut file, metadata) = files::open_regular(path)?;
        if metadata.len() == 0 {
            return Err(Error::refused(path, "there is nothing in it"));
        }
        let identity = Identity::from_metadata(&metadata);
        let was_settled = identity.is_settled();
        let hashing = Progress::new("hashing", path, metadata.len(), &self.settings);
        let (key, was_read) = match rehash {
            true => (hash_cache::hash(&mut file, path, &hashing)?, true),
            false => self.hash_cache.hash(&mut file, path, &hashing)?,
        };
        drop(hashing);
        let layers = self.layers(&file, path, None)?;
        let source = Source {
            path,
            identity,
            was_settled,
            key,
            layers: layers.names.iter().map(|name| (*name).to_owned()).collect(),
            is_qcow2: layers.is_qcow2,
        };
        drop(layers);
        let form = match (wanted, source.is_qcow2) {
            (Packing::Best, true) => Form::Qcow2,
            (Packing::Best, false) | (Packing::Unpacked, _) => Form::Raw,
            (Packing::Compressed, _) => Form::Zstd,
        };
        let id = BaseId { key, form };
        let (is_new, healed) = match self.inspect(&id)? {
            // This check needs no lock: users of the base check again, under one.
            (Some(_), State::Whole) => (false, None),
            _ => self.add_locked(&id, &file, &source)?,
        };
        let base = self.base(&id)?;
        self.touch(&id);
        let disk_bytes =
            fs::metadata(&base.path).map_err(Error::io("looking at", &base.path))?.blocks() * 512;
        let ratio = base.virtual_bytes as f64 / metadata.len() as f64;
        Ok(AddResult { base, is_new, healed, hash_was_known: !was_read, disk_bytes, ratio })
    }

    /// Returns the base, and the overlays of a base that had to be made again.
    fn add_locked(
        &self,
        id: &BaseId,
        file: &File,
        source: &Source<'_>,
    ) -> Result<(bool, Option<Vec<PathBuf>>)> {
        let lock = self.lock(id, Mode::Exclusive, &format!("adding {}", source.path.display()))?;
        let done =
            scratch::tidy(&self.scratch(), id).and_then(|()| self.make_whole(id, file, source));
        if done.is_err() && !self.base_folder(id).exists() {
            lock.discard();
        }
        done
    }

    /// The caller has the exclusive lock.
    fn make_whole(
        &self,
        id: &BaseId,
        file: &File,
        source: &Source<'_>,
    ) -> Result<(bool, Option<Vec<PathBuf>>)> {
        let damaged = match self.intact_base(id) {
            // Another process added it while this one waited.
            Ok(_) => return Ok((false, None)),
            Err(Error::Unknown { .. }) => None,
            Err(Error::Damaged { users, .. }) => Some(users),
            Err(error) => return Err(error),
        };
        let scratch = Scratch::new(&self.scratch(), id)?;
        let (content, virtual_bytes) = self.make(id, file, source, scratch.path())?;
        self.check_unchanged(file, source)?;
        let disk = scratch.path().join(disk_name(id));
        let identity = seal(&disk)?;
        let record = Record {
            format: Record::FORMAT,
            id: *id,
            source: fs::canonicalize(source.path).unwrap_or_else(|_| source.path.to_owned()),
            source_bytes: source.identity.size,
            layers: source.layers.clone(),
            virtual_bytes,
            digest: content.digest,
            identity,
            added: cli::now().0,
        };
        record.save(scratch.path())?;
        files::sync_folder(scratch.path())?;
        let folder = self.base_folder(id);
        // Machines that have a damaged one open keep what they have.
        let _old = if folder.exists() {
            Some(Scratch::take_in(&self.scratch(), id, &folder)?)
        } else {
            None
        };
        scratch.rename(&folder)?;
        files::sync_folder(&self.bases())?;
        Ok((true, damaged))
    }

    /// Writes the base's file into a scratch folder; gives its content and the size of the disk.
    fn make(
        &self,
        id: &BaseId,
        file: &File,
        source: &Source<'_>,
        scratch: &Path,
    ) -> Result<(Content, u64)> {
        let disk = scratch.join(disk_name(id));
        match (id.form, source.is_qcow2) {
            (Form::Raw, false) => {
                let content = self.unpack(file, source, &disk)?;
                check_raw(source.path, content.bytes)?;
                Ok((content, content.bytes))
            }
            (Form::Qcow2, true) => {
                let content = self.unpack(file, source, &disk)?;
                let virtual_bytes = self.check_qcow2(source.path, &disk)?;
                Ok((content, virtual_bytes))
            }
            (Form::Qcow2, false) => Err(Error::refused(source.path, "this is no qcow2 file")),
            (Form::Raw, true) => {
                let packed = scratch.join("source");
                self.unpack(file, source, &packed)?;
                self.check_qcow2(source.path, &packed)?;
                self.convert((&packed, "qcow2"), (&disk, "raw"), &[], source)?;
                fs::remove_file(&packed).map_err(Error::io("removing", &packed))?;
                let content = self.digest(&disk, source)?;
                Ok((content, content.bytes))
            }
            (Form::Zstd, is_qcow2) => {
                let unpacked = scratch.join("source");
                let content = self.unpack(file, source, &unpacked)?;
                let format = if is_qcow2 {
                    self.check_qcow2(source.path, &unpacked)?;
                    "qcow2"
                } else {
                    check_raw(source.path, content.bytes)?;
                    "raw"
                };
                let options = ["-c", "-W", "-o", "compression_type=zstd"];
                self.convert((&unpacked, format), (&disk, "qcow2"), &options, source)?;
                fs::remove_file(&unpacked).map_err(Error::io("removing", &unpacked))?;
                let virtual_bytes = self.check_qcow2(source.path, &disk)?;
                Ok((self.digest(&disk, source)?, virtual_bytes))
            }
        }
    }

    /// The file with its layers taken off, read from its beginning.
    fn layers(
        &self,
        file: &File,
        path: &Path,
        progress: Option<Arc<Progress>>,
    ) -> Result<source::Layers> {
        let file = file.try_clone().map_err(Error::io("opening", path))?;
        let reader = OffsetReader { file, offset: 0, progress };
        source::open(reader).map_err(|error| source::read_error(path, error))
    }

    /// Writes the file without its layers.
    fn unpack(&self, file: &File, source: &Source<'_>, to: &Path) -> Result<Content> {
        let out = File::options()
            .create_new(true)
            .read(true)
            .write(true)
            .open(to)
            .map_err(Error::io("making", to))?;
        let doing = if source.layers.is_empty() { "copying" } else { "unpacking" };
        let progress =
            Arc::new(Progress::new(doing, source.path, source.identity.size, &self.settings));
        if source.layers.is_empty() {
            if source.identity.size <= self.settings.limit_bytes && sparse::share(file, &out) {
                return sparse::read(&out, to, &progress);
            }
            let from = sparse::From::File(file);
            return sparse::write(from, source.path, &out, to, &progress, &self.settings);
        }
        let mut layers = self.layers(file, source.path, Some(Arc::clone(&progress)))?;
        let from = sparse::From::Stream(&mut layers.disk);
        sparse::write(from, source.path, &out, to, &progress, &self.settings)
    }

    fn convert(
        &self,
        from: (&Path, &str),
        to: (&Path, &str),
        options: &[&str],
        source: &Source<'_>,
    ) -> Result<()> {
        let progress = Progress::new("converting", source.path, 0, &self.settings);
        let folder = File::open(self.folder()).map_err(Error::io("opening", self.folder()))?;
        let mut watch = || {
            let written_bytes = fs::metadata(to.0).map_or(0, |metadata| metadata.blocks() * 512);
            let free_bytes = sparse::free(&folder, self.folder())?;
            progress.made(written_bytes);
            if free_bytes >= self.settings.reserve_bytes {
                return Ok(());
            }
            let reserve_bytes = self.settings.reserve_bytes;
            Err(Error::NoRoom {
                folder: self.folder().to_owned(),
                free_bytes,
                reserve_bytes,
                written_bytes,
            })
        };
        qemu_img::convert(from, to, options, &mut watch, &self.settings)
    }

    fn digest(&self, path: &Path, source: &Source<'_>) -> Result<Content> {
        let (file, _) = files::open_regular(path)?;
        sparse::read(&file, path, &Progress::new("reading", source.path, 0, &self.settings))
    }

    /// Whether a qcow2 file that came from outside can be a base; its disk's size. `named` is what
    /// to call it.
    fn check_qcow2(&self, named: &Path, path: &Path) -> Result<u64> {
        let (file, _) = files::open_regular(path)?;
        let refuse = |why: String| Error::refused(named, why);
        // Before any other program reads it: this header determines what that program would open.
        let header = qcow2::read(&head(&file, path)?).map_err(refuse)?;
        header.check_base().map_err(refuse)?;
        if header.virtual_bytes > self.settings.limit_bytes {
            return Err(Error::TooLarge {
                path: named.to_owned(),
                limit_bytes: self.settings.limit_bytes,
                read_bytes: file.metadata().map_err(Error::io("looking at", path))?.len(),
            });
        }
        let rename = |error| match error {
            Error::Refused { why, .. } => Error::refused(named, why),
            Error::Tool { command, words } => {
                Error::Tool { command, words: format!("{}: {words}", named.display()) }
            }
            other => other,
        };
        let info = qemu_img::info(path, &self.settings).map_err(rename)?;
        if info.format != "qcow2" || info.encrypted || info.backing_filename.is_some() {
            return Err(refuse(
                "qemu-img finds something else in it than a qcow2 disk that stands for itself"
                    .into(),
            ));
        }
        if info.virtual_size != header.virtual_bytes {
            return Err(refuse(format!(
                "its header says {} bytes and qemu-img says {}",
                header.virtual_bytes, info.virtual_size
            )));
        }
        qemu_img::check(path, header.cluster_bytes, &self.settings).map_err(rename)?;
        Ok(header.virtual_bytes)
    }

    /// Whether what was unpacked is what was hashed.
    fn check_unchanged(&self, file: &File, source: &Source<'_>) -> Result<()> {
        let metadata = file.metadata().map_err(Error::io("looking at", source.path))?;
        if Identity::from_metadata(&metadata) == source.identity && source.was_settled {
            return Ok(());
        }
        let mut file = file.try_clone().map_err(Error::io("opening", source.path))?;
        let progress = Progress::new("hashing", source.path, metadata.len(), &self.settings);
        if hash_cache::hash(&mut file, source.path, &progress)? == source.key {
            return Ok(());
        }
        Err(Error::refused(
            source.path,
            "it was changed while it was read; add it when no program writes to it",
        ))
    }
}

fn check_raw(path: &Path, bytes: u64) -> Result<()> {
    match source::why_no_disk(bytes) {
        Some(why) => Err(Error::refused(path, why)),
        None => Ok(()),
    }
}

/// Makes a file read-only and durable.
fn seal(path: &Path) -> Result<Identity> {
    let file = File::open(path).map_err(Error::io("opening", path))?;
    file.set_permissions(fs::Permissions::from_mode(0o444))
        .map_err(Error::io("setting the mode of", path))?;
    file.sync_all().map_err(Error::io("syncing", path))?;
    Ok(Identity::from_metadata(&file.metadata().map_err(Error::io("looking at", path))?))
}

/// Reads a file by offset, whatever others do with the same opening of it, and counts.
struct OffsetReader {
    file: File,
    offset: u64,
    progress: Option<Arc<Progress>>,
}

impl Read for OffsetReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = std::os::unix::fs::FileExt::read_at(&self.file, buffer, self.offset)?;
        self.offset += count as u64;
        if let Some(progress) = &self.progress {
            progress.advance(count as u64, 0).map_err(io::Error::other)?;
        }
        Ok(count)
    }
}
