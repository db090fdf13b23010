//! The cache's folder: which bases there are, in which state, and who uses them.

use std::{
    fs::{self, File},
    io::Read,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::SystemTime,
};

use serde::Serialize;

use crate::{
    Base, Error, Result, Settings,
    files::{self, Identity},
    hash_cache::HashCache,
    id::{BaseId, PREFIX_DIGITS_MIN},
    lock::{Lock, Mode},
    progress::Progress,
    qcow2,
    record::Record,
    scratch, sparse,
};

/// First line of `CACHE/format`; the second is the cache's own random id.
const FORMAT: &str = "thimble images 1";
const FORMAT_BYTES_MAX: u64 = 4096;

/// A cache on disk. Any number of processes and threads may use one at once; so may several
/// machines, where the file system's `flock` is one for all of them.
#[derive(Debug)]
pub struct Cache {
    root: PathBuf,
    pub(crate) settings: Settings,
    pub(crate) hash_cache: HashCache,
    /// Identifies this cache in names outside of it.
    pub(crate) own_id: String,
}

/// How a base is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Unchanged since it was made, per size and times of its file.
    Whole,
    /// Its file has other times than it had; its content is compared at its next use.
    Touched,
    /// Its content is another one.
    Changed,
    /// Overlays need it, and it or its file is gone.
    Missing,
}

/// One line of [`Cache::list`].
#[derive(Clone, Debug, Serialize)]
pub struct Entry {
    /// Id of the base: SHA-256 of the file it was made from, and its form.
    pub id: BaseId,
    /// The base; `None` when it was removed.
    #[serde(flatten)]
    pub base: Option<Base>,
    /// How it is, without reading its content.
    pub state: State,
    /// Its size on the disk, in bytes.
    pub disk_bytes: u64,
    /// When it was last added or given an overlay.
    #[serde(skip)]
    pub used: Option<SystemTime>,
    /// Seconds since then.
    pub unused_seconds: Option<u64>,
    /// Its overlays, absolute.
    pub overlays: Vec<PathBuf>,
}

impl Cache {
    /// Opens a cache and makes its folder where there is none.
    ///
    /// # Errors
    ///
    /// When the folder cannot be made or written, or is of another version.
    pub fn open(folder: &Path, settings: Settings) -> Result<Self> {
        files::make_folder(folder)?;
        let root = fs::canonicalize(folder).map_err(Error::io("opening", folder))?;
        let format = root.join("format");
        if !format.exists() {
            let own = root.join(format!("format.{}", files::unique()));
            let written = fs::write(&own, format!("{FORMAT}\n{}\n", files::unique()));
            // Of two that do this at once one wins, and both read what it wrote.
            let linked = written.and_then(|()| match fs::hard_link(&own, &format) {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error),
                _ => Ok(()),
            });
            let _ = fs::remove_file(&own);
            linked.map_err(Error::io("writing", &format))?;
        }
        let text = files::read_small(&format, FORMAT_BYTES_MAX)?.unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let own_id = match text.lines().collect::<Vec<_>>()[..] {
            [FORMAT, id, ..] => id.to_owned(),
            _ => {
                return Err(Error::refused(
                    &format,
                    format!(
                        "this is no cache of this version (it should begin with {FORMAT:?}); \
                        name another folder with --cache"
                    ),
                ));
            }
        };
        for name in ["bases", "overlays", "locks", "scratch", "known"] {
            files::make_folder(&root.join(name))?;
        }
        let hash_cache = HashCache(root.join("known"));
        Ok(Self { root, settings, hash_cache, own_id })
    }

    /// Its folder, absolute.
    pub fn folder(&self) -> &Path {
        &self.root
    }

    pub(crate) fn bases(&self) -> PathBuf {
        self.root.join("bases")
    }

    pub(crate) fn base_folder(&self, id: &BaseId) -> PathBuf {
        self.bases().join(id.to_string())
    }

    pub(crate) fn disk_path(&self, id: &BaseId) -> PathBuf {
        self.base_folder(id).join(disk_name(id))
    }

    pub(crate) fn links(&self, id: &BaseId) -> PathBuf {
        self.root.join("overlays").join(id.to_string())
    }

    pub(crate) fn scratch(&self) -> PathBuf {
        self.root.join("scratch")
    }

    pub(crate) fn lock_path(&self, name: &str) -> PathBuf {
        self.root.join("locks").join(format!("{name}.lock"))
    }

    pub(crate) fn lock(&self, id: &BaseId, mode: Mode, doing: &str) -> Result<Lock> {
        Lock::take(&self.lock_path(&id.to_string()), mode, doing, &self.settings)
    }

    /// The base of this name: an id, or at least six digits of one.
    ///
    /// # Errors
    ///
    /// [`Error::Unknown`], or that several begin so.
    pub fn find(&self, text: &str) -> Result<BaseId> {
        let all = self.ids()?;
        let unknown = || Error::Unknown { text: text.to_owned(), cache: self.root.clone() };
        if text.len() < PREFIX_DIGITS_MIN {
            return Err(unknown());
        }
        let found: Vec<_> = all.into_iter().filter(|id| id.to_string().starts_with(text)).collect();
        match found[..] {
            [one] => Ok(one),
            [] => Err(unknown()),
            _ => {
                let names: Vec<_> = found.iter().map(BaseId::to_string).collect();
                let why = format!("several bases begin with {text}: {}", names.join(", "));
                Err(Error::refused(&self.root, why))
            }
        }
    }

    /// Every base that is there or that overlays need.
    pub(crate) fn ids(&self) -> Result<Vec<BaseId>> {
        let mut ids: Vec<BaseId> = Vec::new();
        for folder in [self.bases(), self.root.join("overlays")] {
            ids.extend(
                files::names(&folder)?.iter().filter_map(|name| name.parse::<BaseId>().ok()),
            );
        }
        ids.sort();
        ids.dedup();
        // An empty folder of links is a trace of a base that was removed.
        ids.retain(|id| {
            self.base_folder(id).exists() || !self.overlays(id).unwrap_or_default().is_empty()
        });
        Ok(ids)
    }

    /// The overlays of a base that exist, absolute, sorted.
    pub fn overlays(&self, id: &BaseId) -> Result<Vec<PathBuf>> {
        let links = self.links(id);
        let mut overlays = Vec::new();
        for name in files::names(&links)? {
            match fs::read_link(links.join(name)) {
                Ok(path) if self.needs(&path, id) => overlays.push(path),
                _ => {}
            }
        }
        overlays.sort();
        Ok(overlays)
    }

    /// Whether a file that was an overlay of a base still is: it may be gone, or be something else
    /// now.
    pub(crate) fn needs(&self, path: &Path, id: &BaseId) -> bool {
        match backing(path) {
            Backing::Is(backing) => is_disk_of(&backing, id),
            Backing::None => false,
            // Better one too many than a base removed under a machine.
            Backing::Unreadable => true,
        }
    }

    /// The record of a base, and the state of its file per size and times.
    pub(crate) fn inspect(&self, id: &BaseId) -> Result<(Option<Record>, State)> {
        let Some(record) = Record::load(&self.base_folder(id))?.filter(|record| record.id == *id)
        else {
            return Ok((None, State::Missing));
        };
        let state = match fs::symlink_metadata(self.disk_path(id)) {
            Ok(metadata) if !metadata.is_file() => State::Missing,
            Ok(metadata) if Identity::from_metadata(&metadata) == record.identity => State::Whole,
            Ok(_) => State::Touched,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => State::Missing,
            Err(error) => return Err(Error::io("looking at", &self.disk_path(id))(error)),
        };
        Ok((Some(record), state))
    }

    /// Compares the content of a base with what it was.
    pub(crate) fn read_through(&self, id: &BaseId, record: &Record) -> Result<State> {
        let path = self.disk_path(id);
        let (file, metadata) = files::open_regular(&path)?;
        let progress = Progress::new("verifying", &record.source, 0, &self.settings);
        if sparse::read(&file, &path, &progress)?.digest != record.digest {
            return Ok(State::Changed);
        }
        let identity = Identity::from_metadata(&metadata);
        if identity != record.identity {
            // Copied, moved, or its mode was set: the next use need not read it again. That it
            // cannot be written costs only this.
            let _ = Record { identity, ..record.clone() }.replace(&self.base_folder(id));
        }
        Ok(State::Whole)
    }

    /// A base that is whole, or [`Error::Damaged`] with the overlays that need it. The caller has
    /// its lock.
    pub(crate) fn intact_base(&self, id: &BaseId) -> Result<Base> {
        let (record, mut state) = self.inspect(id)?;
        let Some(record) = record else {
            let users = self.overlays(id)?;
            return Err(match users.is_empty() {
                true => Error::Unknown { text: id.to_string(), cache: self.root.clone() },
                false => Error::Damaged {
                    id: *id,
                    why: "is missing".into(),
                    users,
                    from: "its name is that file's SHA-256".into(),
                },
            });
        };
        if state == State::Touched {
            state = self.read_through(id, &record)?;
        }
        if state == State::Whole {
            return Ok(Base::new(record, self.disk_path(id)));
        }
        Err(Error::Damaged {
            id: *id,
            why: self.describe_fault(id, state),
            users: self.overlays(id)?,
            from: record.source,
        })
    }

    /// What is wrong with a base, as in "base X ...".
    pub(crate) fn describe_fault(&self, id: &BaseId, state: State) -> String {
        match state {
            State::Missing => {
                format!("is missing: {} was moved or deleted", self.disk_path(id).display())
            }
            _ => {
                format!(
                    "has other content than it had when it was added ({})",
                    self.disk_path(id).display()
                )
            }
        }
    }

    /// The base of this id.
    ///
    /// # Errors
    ///
    /// [`Error::Unknown`], [`Error::Damaged`].
    pub fn base(&self, id: &BaseId) -> Result<Base> {
        let _lock = self.lock(id, Mode::Shared, "using it")?;
        self.intact_base(id)
    }

    /// Every base that is there or that overlays need, sorted by id.
    pub fn list(&self) -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for id in self.ids()? {
            let (record, state) = self.inspect(&id)?;
            let metadata = fs::metadata(self.disk_path(&id)).ok();
            let used = fs::metadata(self.base_folder(&id).join("used"))
                .and_then(|used| used.modified())
                .ok();
            let entry = Entry {
                id,
                base: record.map(|record| Base::new(record, self.disk_path(&id))),
                state,
                disk_bytes: metadata.map_or(0, |metadata| metadata.blocks() * 512),
                used,
                unused_seconds: used.and_then(|used| used.elapsed().ok()).map(|age| age.as_secs()),
                overlays: self.overlays(&id)?,
            };
            // Removed in this moment.
            if entry.base.is_some() || !entry.overlays.is_empty() {
                entries.push(entry);
            }
        }
        Ok(entries)
    }

    /// Notes that a base is used.
    pub(crate) fn touch(&self, id: &BaseId) {
        // Only the order of `collect` is at stake.
        let path = self.base_folder(id).join("used");
        let _ = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .and_then(|file| file.set_modified(SystemTime::now()));
    }

    /// Removes a base.
    ///
    /// # Errors
    ///
    /// [`Error::InUse`] with its overlays, [`Error::Unknown`].
    pub fn remove(&self, id: &BaseId) -> Result<()> {
        let lock = self.lock(id, Mode::Exclusive, "removing the base")?;
        self.remove_locked(id, lock)
    }

    pub(crate) fn remove_locked(&self, id: &BaseId, lock: Lock) -> Result<()> {
        let users = self.overlays(id)?;
        if !users.is_empty() {
            return Err(Error::InUse { id: *id, users });
        }
        scratch::tidy(&self.scratch(), id)?;
        let folder = self.base_folder(id);
        let found = folder.exists();
        if found {
            let gone = scratch::Scratch::take_in(&self.scratch(), id, &folder)?;
            files::sync_folder(&self.bases())?;
            drop(gone);
        }
        // Links to overlays that are gone.
        let _ = fs::remove_dir_all(self.links(id));
        lock.discard();
        if found {
            Ok(())
        } else {
            Err(Error::Unknown { text: id.to_string(), cache: self.root.clone() })
        }
    }
}

/// The name of a base's file in its folder.
pub(crate) fn disk_name(id: &BaseId) -> String {
    format!("disk.{}", id.form.format())
}

/// The backing file of a disk.
pub(crate) enum Backing {
    Is(PathBuf),
    /// It is not an overlay, or no longer one.
    None,
    /// It cannot be known.
    Unreadable,
}

/// Which file is below an overlay.
pub(crate) fn backing(path: &Path) -> Backing {
    use std::os::unix::ffi::OsStringExt;
    match header(path) {
        Ok(Some(header)) => match header.backing {
            Some(name) => Backing::Is(PathBuf::from(std::ffi::OsString::from_vec(name))),
            None => Backing::None,
        },
        Ok(None) => Backing::None,
        Err(_) => Backing::Unreadable,
    }
}

/// The header of a file that is an overlay; `None` when it is missing or no qcow2 file.
pub(crate) fn header(path: &Path) -> Result<Option<qcow2::Header>> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_file() => {}
        Ok(_) => return Ok(None),
        Err(error)
            if matches!(
                error.kind(),
                std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
            ) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(Error::io("looking at", path)(error)),
    }
    let (file, _) = files::open_regular(path)?;
    Ok(qcow2::read(&head(&file, path)?).ok())
}

/// The first bytes of a file, as many as the header of a qcow2 file can need.
pub(crate) fn head(file: &File, path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut limited = file.take(HEAD_BYTES);
    limited.read_to_end(&mut bytes).map_err(Error::io("reading", path))?;
    // All files that qemu-img makes have names and extensions in this part; more is read only for
    // other files.
    if qcow2::read(&bytes).is_err() && bytes.len() as u64 == HEAD_BYTES {
        let mut rest = file.take(qcow2::HEADER_BYTES_MAX as u64 - HEAD_BYTES);
        rest.read_to_end(&mut bytes).map_err(Error::io("reading", path))?;
    }
    Ok(bytes)
}

const HEAD_BYTES: u64 = 4096;

/// Whether a path is that of a base, wherever its cache is or was.
pub(crate) fn is_disk_of(path: &Path, id: &BaseId) -> bool {
    path.ends_with(Path::new("bases").join(id.to_string()).join(disk_name(id)))
}
