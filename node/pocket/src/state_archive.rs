//! Instances that are kept in a folder: one file, written when the instance is deleted and read
//! when an instance is made with that folder.
//!
//! The state of a running instance is in a temporary folder of the server. The kept file is a copy
//! of that folder, without the holes of sparse files: memories of canisters are files of hundreds
//! of gigabytes that hold a few pages, and clients copy the folder with programs that do not
//! preserve holes. The file is written under another name and renamed, so that the previous one
//! stays whole until then.
//!
//! ```text
//! magic, version, length of the description, description (JSON)
//! for each file: 1, length of the path, path, length of the file,
//!                for each piece: offset, length, bytes; then the end: all ones
//! 0, SHA-256 of all before
//! ```
//!
//! Numbers are eight bytes, little-endian. Lengths are checked before they are used, and the
//! content counts only once the hash is right.
//!
//! A state that cannot be packed is the only copy: it is left, as it is, in a folder next to the
//! server's ([`leave`]). A client that names that folder has it packed there first.

use std::{
    fs::{self, File},
    io::{self, BufReader, BufWriter, Read, Write},
    os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt},
    path::{Component, Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};
use rustix::{
    fs::{FlockOperation, SeekFrom, flock, seek},
    io::Errno,
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;

use crate::subnets::Plan;

const MAGIC: &[u8; 16] = b"thimble-pocket\0\0";
const VERSION: u64 = 1;
/// Name of the file in the folder that a client names.
const FILE: &str = "thimble-pocket.state";
/// Names of temporary files next to it: this prefix, and [`ASIDE_LETTERS`] letters and digits. The
/// user's files do not have such names.
const ASIDE: &str = ".thimble-pocket-writes-";
const ASIDE_LETTERS: usize = 12;
/// Contents of a folder of a state that could not be packed: its files, and its description.
const LEFT_STATE: &str = "thimble-pocket.unpacked";
const LEFT_DESCRIPTION: &str = "thimble-pocket.unpacked.json";
/// A file that the reference's server leaves in such a folder.
const OTHER: &str = "topology.json";

const DESCRIPTION_BYTES_MAX: u64 = 1 << 20;
const PATH_BYTES_MAX: u64 = 4096;
const END: u64 = u64::MAX;
const BUFFER_BYTES: usize = 256 << 10;
/// Longest piece: longer runs of data are several.
const PIECE_BYTES_MAX: u64 = 64 << 20;
const FILE_BYTES_MAX: u64 = 1 << 44;

/// Data of an instance in addition to its state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Description {
    /// Seed of the key that certifies the state.
    pub(crate) root_seed: [u8; 32],
    pub(crate) subnets: Vec<Plan>,
    /// The instance's time, in nanoseconds since 1970.
    pub(crate) time: u64,
}

/// Hashes what goes through it.
struct HashingStream<T> {
    inner: T,
    hash: Sha256,
}

impl<T> HashingStream<T> {
    fn new(inner: T) -> Self {
        Self { inner, hash: Sha256::new() }
    }
}

impl<W: Write> Write for HashingStream<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hash.update(bytes.get(..written).unwrap_or_default());
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<R: Read> Read for HashingStream<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.hash.update(buffer.get(..read).unwrap_or_default());
        Ok(read)
    }
}

impl<W: Write> HashingStream<W> {
    fn number(&mut self, number: u64) -> io::Result<()> {
        self.write_all(&number.to_le_bytes())
    }
}

impl<R: Read> HashingStream<R> {
    fn take_number(&mut self) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.read_exact(&mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn take_bytes(&mut self, most: u64, what: &str) -> Result<Vec<u8>> {
        let length = self.take_number()?;
        ensure!(length <= most, "{what} has {length} bytes, the most is {most}");
        let mut bytes = vec![0; length as usize];
        self.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

/// The folder that a client named, which no other instance has as long as this is there, of this
/// server or another one.
pub(crate) struct Folder {
    path: PathBuf,
    /// Open, and locked: a lock of the kernel's ends with its process.
    lock: File,
}

impl Folder {
    /// Takes the folder, which is made if it is missing, and tries whether it can be written into:
    /// who will keep an instance there is to know before it has one. A relative path is one of the
    /// server's working directory.
    ///
    /// # Errors
    /// When it is in use, something else is kept there, or the disk fails.
    pub(crate) fn take(path: &Path) -> Result<Self> {
        Self::take_named(path).with_context(|| format!("state_dir {}", path.display()))
    }

    fn take_named(path: &Path) -> Result<Self> {
        fs::create_dir_all(path)?;
        let path = path.canonicalize()?;
        let lock = File::open(&path)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                bail!("another instance uses it, which is to be deleted first")
            }
            Err(error) => return Err(io::Error::from(error)).context("locking it"),
        }
        let folder = Self { path, lock };
        folder.clear()?;
        folder.aside()?;
        folder.pack_left()?;
        ensure!(
            folder.is_kept()? || !folder.path.join(OTHER).try_exists()?,
            "it holds the state of another PocketIC server ({OTHER}), which this one cannot read"
        );
        Ok(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn is_kept(&self) -> Result<bool> {
        Ok(self.path.join(FILE).try_exists()?)
    }

    /// Removes what a server left that was killed while it packed.
    fn clear(&self) -> Result<()> {
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            if entry.file_name().to_str().is_some_and(is_aside) && entry.file_type()?.is_file() {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    /// Packs what was left here because it could not be packed before.
    fn pack_left(&self) -> Result<()> {
        let [state, described] = [LEFT_STATE, LEFT_DESCRIPTION].map(|name| self.path.join(name));
        if !state.try_exists()? || self.is_kept()? {
            return Ok(());
        }
        let text = fs::read(&described).with_context(|| described.display().to_string())?;
        let description = serde_json::from_slice(&text)?;
        self.pack(&state, &description)?;
        fs::remove_dir_all(state)?;
        Ok(fs::remove_file(described)?)
    }

    /// A file that is written aside. Removed unless it becomes what is kept.
    fn aside(&self) -> Result<NamedTempFile> {
        // A state is its owner's alone, as in the folder it is packed from.
        let permissions = fs::Permissions::from_mode(0o600);
        let mut builder = tempfile::Builder::new();
        builder.prefix(ASIDE).rand_bytes(ASIDE_LETTERS).permissions(permissions);
        Ok(builder.tempfile_in(&self.path)?)
    }

    /// Packs the files in `state` into the folder.
    ///
    /// # Errors
    /// When the disk fails; what was kept before is as it was.
    pub(crate) fn pack(&self, state: &Path, description: &Description) -> Result<()> {
        let packed = || -> Result<()> {
            let aside = self.aside()?;
            pack_into(state, aside.as_file(), description)?;
            aside.persist(self.path.join(FILE))?;
            Ok(self.lock.sync_all()?)
        };
        packed().with_context(|| format!("keeping the instance in {}", self.path.display()))
    }

    /// Unpacks what is kept there into `state`, an empty folder.
    ///
    /// # Errors
    /// When it is damaged, was written by another version, or the disk fails.
    pub(crate) fn unpack(&self, state: &Path) -> Result<Description> {
        let path = self.path.join(FILE);
        unpack_from(&path, state).with_context(|| format!("reading {}", path.display()))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A process that is being started may have the open file for a moment, and the lock with
        // it. If this fails, that is all that happens.
        let _ = flock(&self.lock, FlockOperation::Unlock);
    }
}

fn is_aside(name: &str) -> bool {
    name.strip_prefix(ASIDE).is_some_and(|rest| {
        rest.len() == ASIDE_LETTERS && rest.bytes().all(|byte| byte.is_ascii_alphanumeric())
    })
}

/// Leaves a state that could not be packed in a folder of its own in `parent`, on the same disk;
/// which one.
///
/// # Errors
/// When the disk fails. The state is where it was.
pub(crate) fn leave(state: &Path, description: &Description, parent: &Path) -> Result<PathBuf> {
    let folder = tempfile::Builder::new().prefix("thimble-pocket-left-").tempdir_in(parent)?;
    fs::rename(state, folder.path().join(LEFT_STATE))?;
    // From here on it is the only copy, whatever else fails.
    let folder = folder.keep();
    fs::write(folder.join(LEFT_DESCRIPTION), serde_json::to_vec(description)?)?;
    Ok(folder)
}

fn pack_into(state: &Path, file: &File, description: &Description) -> Result<()> {
    let mut out = HashingStream::new(BufWriter::with_capacity(BUFFER_BYTES, file));
    out.write_all(MAGIC)?;
    out.number(VERSION)?;
    let text = serde_json::to_vec(description)?;
    out.number(text.len() as u64)?;
    out.write_all(&text)?;
    let mut files = Vec::new();
    list(state, Path::new(""), &mut files)?;
    for path in files {
        pack_file(&mut out, state, &path)?;
    }
    out.number(0)?;
    let hash = out.hash.clone().finalize();
    out.write_all(&hash)?;
    let file = out.inner.into_inner().map_err(io::IntoInnerError::into_error)?;
    Ok(file.sync_all()?)
}

/// Files below a folder, by their paths within it.
fn list(root: &Path, within: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(root.join(within))? {
        let entry = entry?;
        let (path, kind) = (within.join(entry.file_name()), entry.file_type()?);
        if kind.is_dir() {
            list(root, &path, files)?;
        } else if kind.is_file() {
            files.push(path);
        }
    }
    Ok(())
}

fn pack_file(out: &mut HashingStream<impl Write>, root: &Path, path: &Path) -> Result<()> {
    let file = File::open(root.join(path))?;
    let end = file.metadata()?.len();
    let name = path.to_str().context("a name of a file is no UTF-8")?;
    out.number(1)?;
    out.number(name.len() as u64)?;
    out.write_all(name.as_bytes())?;
    out.number(end)?;
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut at = 0;
    while let Some((start, hole)) = data(&file, at, end)? {
        at = start;
        while at < hole {
            let piece = (hole - at).min(PIECE_BYTES_MAX);
            out.number(at)?;
            out.number(piece)?;
            let mut left = piece;
            while left > 0 {
                let part = buffer.get_mut(..left.min(BUFFER_BYTES as u64) as usize);
                let part = part.unwrap_or_default();
                file.read_exact_at(part, at)?;
                out.write_all(part)?;
                at += part.len() as u64;
                left -= part.len() as u64;
            }
        }
    }
    Ok(out.number(END)?)
}

/// The first run of data at or after `at`.
fn data(file: &File, at: u64, end: u64) -> Result<Option<(u64, u64)>> {
    if at >= end {
        return Ok(None);
    }
    let start = match seek(file, SeekFrom::Data(at)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        // A file system that does not report holes.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some((at, end))),
        Err(error) => return Err(io::Error::from(error).into()),
    };
    let hole = seek(file, SeekFrom::Hole(start)).map_err(io::Error::from)?;
    Ok((start < end).then_some((start, hole.min(end))))
}

fn unpack_from(path: &Path, state: &Path) -> Result<Description> {
    // A link would lead out of the folder that was admitted.
    let no_links = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
    let file = File::options().read(true).custom_flags(no_links).open(path)?;
    let mut from = HashingStream::new(BufReader::with_capacity(BUFFER_BYTES, file));
    let mut magic = [0; 16];
    from.read_exact(&mut magic)?;
    ensure!(magic == *MAGIC, "it is no kept instance");
    let version = from.take_number()?;
    ensure!(version == VERSION, "it has version {version}, this server reads {VERSION}");
    let text = from.take_bytes(DESCRIPTION_BYTES_MAX, "the description")?;
    let description = serde_json::from_slice(&text)?;
    loop {
        match from.take_number()? {
            0 => break,
            1 => unpack_file(&mut from, state)?,
            other => bail!("{other} stands where a file begins: it is damaged"),
        }
    }
    let hash = from.hash.clone().finalize();
    let mut stated = [0; 32];
    from.inner.read_exact(&mut stated)?;
    ensure!(hash[..] == stated, "its hash is not the one that stands in it: it is damaged");
    Ok(description)
}

fn unpack_file(from: &mut HashingStream<impl Read>, state: &Path) -> Result<()> {
    let name = String::from_utf8(from.take_bytes(PATH_BYTES_MAX, "the name of a file")?)?;
    let path = Path::new(&name);
    let is_within = path.components().all(|part| matches!(part, Component::Normal(_)));
    ensure!(is_within && !name.is_empty(), "{name:?} is no name of a file of a state");
    let path = state.join(path);
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    let file = File::create_new(&path).with_context(|| path.display().to_string())?;
    let end = from.take_number()?;
    ensure!(end <= FILE_BYTES_MAX, "{name} has {end} bytes, the most is {FILE_BYTES_MAX}");
    file.set_len(end)?;
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let mut at = from.take_number()?;
        if at == END {
            return Ok(());
        }
        let mut left = from.take_number()?;
        let fits = at.checked_add(left).is_some_and(|piece_end| piece_end <= end);
        ensure!(fits && left <= PIECE_BYTES_MAX, "a piece of {name} is outside of the file");
        while left > 0 {
            let part = buffer.get_mut(..left.min(BUFFER_BYTES as u64) as usize);
            let part = part.unwrap_or_default();
            from.read_exact(part)?;
            file.write_all_at(part, at)?;
            at += part.len() as u64;
            left -= part.len() as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::subnets::{Kind, plan, root_seed};

    fn description() -> Description {
        let subnets = plan(&[Kind::Nns, Kind::Application]).unwrap();
        Description { root_seed: root_seed(&subnets), subnets, time: 7 }
    }

    #[test]
    fn a_state_comes_back_with_its_holes() {
        let [state, kept, again] = [(); 3].map(|()| tempfile::tempdir().unwrap());
        fs::create_dir(state.path().join("pages")).unwrap();
        let sparse = File::create(state.path().join("pages/1.base")).unwrap();
        sparse.set_len(1 << 40).unwrap();
        sparse.write_all_at(b"far", (1 << 39) + 5).unwrap();
        fs::write(state.path().join("records"), vec![9; 300_000]).unwrap();
        let folder = Folder::take(&kept.path().join("made/if/missing")).unwrap();
        assert!(!folder.is_kept().unwrap());
        folder.pack(state.path(), &description()).unwrap();
        assert!(folder.is_kept().unwrap());
        assert!(fs::metadata(folder.path().join(FILE)).unwrap().len() < 400_000);
        assert_eq!(folder.unpack(again.path()).unwrap(), description());
        assert_eq!(fs::read(again.path().join("records")).unwrap(), vec![9; 300_000]);
        let sparse = File::open(again.path().join("pages/1.base")).unwrap();
        let metadata = sparse.metadata().unwrap();
        assert_eq!(metadata.len(), 1 << 40);
        assert!(metadata.blocks() * 512 < 1 << 20);
        let mut far = [0; 3];
        sparse.read_exact_at(&mut far, (1 << 39) + 5).unwrap();
        assert_eq!(&far, b"far");
    }

    #[test]
    fn damage_is_refused() {
        let [state, kept] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        fs::write(state.path().join("records"), b"content").unwrap();
        let folder = Folder::take(kept.path()).unwrap();
        folder.pack(state.path(), &description()).unwrap();
        let path = kept.path().join(FILE);
        let whole = fs::read(&path).unwrap();
        for place in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[place] ^= 1;
            fs::write(&path, &bytes).unwrap();
            assert!(folder.unpack(tempfile::tempdir().unwrap().path()).is_err(), "{place}");
            fs::write(&path, &whole[..place]).unwrap();
            assert!(folder.unpack(tempfile::tempdir().unwrap().path()).is_err(), "{place}");
        }
    }

    #[test]
    fn what_could_not_be_packed_is_packed_where_it_was_left() {
        let [parent, again] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let state = parent.path().join("state");
        fs::create_dir_all(state.join("pages")).unwrap();
        fs::write(state.join("pages/1.base"), b"content").unwrap();
        let left = leave(&state, &description(), parent.path()).unwrap();
        assert!(!state.exists());
        let folder = Folder::take(&left).unwrap();
        assert!(folder.is_kept().unwrap());
        assert_eq!(fs::read_dir(&left).unwrap().count(), 1);
        assert_eq!(folder.unpack(again.path()).unwrap(), description());
        assert_eq!(fs::read(again.path().join("pages/1.base")).unwrap(), b"content");
    }

    #[test]
    fn the_state_of_another_server_is_told_apart() {
        let kept = tempfile::tempdir().unwrap();
        fs::write(kept.path().join(OTHER), b"{}").unwrap();
        let error = format!("{:#}", Folder::take(kept.path()).err().unwrap());
        assert!(error.contains("another PocketIC server"), "{error}");
    }

    #[test]
    fn no_file_comes_to_lie_outside() {
        let [kept, state] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let folder = Folder::take(kept.path()).unwrap();
        for name in ["../x", "/x", "a/../../x", ""] {
            let mut out = HashingStream::new(Vec::new());
            out.write_all(MAGIC).unwrap();
            let text = serde_json::to_vec(&description()).unwrap();
            out.number(VERSION).unwrap();
            out.number(text.len() as u64).unwrap();
            out.write_all(&text).unwrap();
            out.number(1).unwrap();
            out.number(name.len() as u64).unwrap();
            out.write_all(name.as_bytes()).unwrap();
            fs::write(kept.path().join(FILE), &out.inner).unwrap();
            let error = format!("{:#}", folder.unpack(state.path()).unwrap_err());
            assert!(error.contains("is no name of a file"), "{error}");
        }
    }

    // Promise: P5 - Foreign files in the folder of an instance stay unchanged.
    #[test]
    fn a_folder_is_one_instances_and_left_as_it_was() {
        let kept = tempfile::tempdir().unwrap();
        let names = || fs::read_dir(kept.path()).unwrap().count();
        let aside = kept.path().join(format!("{ASIDE}abcDEF012345"));
        fs::write(&aside, b"of a server that was killed").unwrap();
        let users = ["thimble-pocket.state.bak", ".thimble-pocket-writes-abcDEF-12345"];
        users.iter().for_each(|name| fs::write(kept.path().join(name), b"mine").unwrap());
        let folder_of_users = kept.path().join(format!("{ASIDE}folderfolder"));
        fs::create_dir(&folder_of_users).unwrap();
        let folder = Folder::take(kept.path()).unwrap();
        assert_eq!((names(), aside.exists()), (3, false), "what is the user's stays");
        users.iter().for_each(|name| fs::remove_file(kept.path().join(name)).unwrap());
        fs::remove_dir(folder_of_users).unwrap();
        // By whichever path.
        let other = tempfile::tempdir().unwrap();
        let link = other.path().join("link");
        std::os::unix::fs::symlink(kept.path(), &link).unwrap();
        for path in [kept.path(), &link] {
            let error = format!("{:#}", Folder::take(path).err().unwrap());
            assert!(error.contains("another instance uses it"), "{error}");
        }
        // A failure leaves the previous file, and no other one.
        let state = tempfile::tempdir().unwrap();
        folder.pack(state.path(), &description()).unwrap();
        let missing = state.path().join("missing");
        assert!(folder.pack(&missing, &description()).is_err());
        assert!(folder.is_kept().unwrap() && names() == 1);
        drop(folder);
        Folder::take(&link).unwrap();
        // A file is not a folder.
        assert!(Folder::take(&kept.path().join(FILE)).is_err());
    }
}
