//! Overlays: one small qcow2 file per machine, over a base that all share.
//!
//! An overlay is not synced when it is made: it holds only data of the base, and the first flush of
//! its machine makes it durable together with the written data. A power cut before that can leave
//! an empty file, which is recreated. Its link in the cache is a symbolic link, which a journal
//! keeps whole or not at all, and is made before the overlay.

use std::{
    fs::{self, File},
    os::unix::{
        ffi::OsStrExt,
        fs::{FileExt, symlink},
    },
    path::{Path, PathBuf},
};

use nix::fcntl::{FcntlArg, fcntl};
use rustix::{
    fs::{CWD, RenameFlags, renameat_with},
    io::Errno,
};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::{
    Base, Cache, Error, Result,
    cache::{header, is_disk_of},
    files,
    id::BaseId,
    lock::{Lock, Mode},
    qcow2, qemu_img,
};

/// QEMU marks what it does with a file by locks on single bytes of it, from this one on.
const QEMU_LOCKS_BEGIN: i64 = 100;
const QEMU_LOCKS_LENGTH: i64 = 200;

/// How an overlay is to be.
#[derive(Clone, Copy, Debug, Default)]
pub struct OverlayOptions {
    /// Size of the disk, in bytes, where it is to be larger than the base; rounded up to 512. It
    /// never shrinks.
    pub grow: Option<u64>,
    /// Recreate it: the data of a machine in an earlier one is lost.
    pub fresh: bool,
}

/// How the overlay was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OverlayOrigin {
    /// There was none.
    New,
    /// It was there, with what its machine has written.
    Reused,
    /// It was there, and has a larger disk now.
    Grown,
    /// It replaces an earlier one.
    Afresh,
}

/// An overlay that is there.
#[derive(Clone, Debug, Serialize)]
pub struct Overlay {
    /// Its file, absolute; its format is qcow2.
    pub path: PathBuf,
    /// Its base.
    pub base: BaseId,
    /// Size of its disk in bytes.
    pub virtual_bytes: u64,
    /// How it was made.
    pub made: OverlayOrigin,
}

impl Cache {
    /// Makes or finds the overlay at `destination`, whose folder exists.
    ///
    /// # Errors
    ///
    /// [`Error::Unknown`] and [`Error::Damaged`] for the base; [`Error::Refused`] when there is
    /// another file at `destination`, or a machine runs on it that would lose it; [`Error::Tool`]
    /// when growing it fails.
    pub fn overlay(
        &self,
        id: &BaseId,
        destination: &Path,
        options: OverlayOptions,
    ) -> Result<Overlay> {
        let _base_lock = self.lock(id, Mode::Shared, "using it")?;
        let base = self.intact_base(id)?;
        let path = absolute(destination)?;
        if path.starts_with(self.folder()) {
            return Err(Error::refused(
                &path,
                "overlays do not belong into the cache; name a place outside of it",
            ));
        }
        let name = self.name_of(&path);
        let lock = self.lock_path(&format!("overlay-{name}"));
        let lock = Lock::take(&lock, Mode::Exclusive, "making the overlay", &self.settings)?;
        let done = self.overlay_locked(&base, &path, &name, options);
        lock.discard();
        if done.is_ok() {
            self.touch(id);
        }
        done
    }

    fn overlay_locked(
        &self,
        base: &Base,
        path: &Path,
        name: &str,
        options: OverlayOptions,
    ) -> Result<Overlay> {
        // The name belongs to this overlay alone and this process holds the lock, so the process
        // that made it was killed.
        let scratch = path.with_file_name(format!(".thimble-overlay.{name}"));
        cli::if_there(fs::remove_file(&scratch)).map_err(Error::io("removing", &scratch))?;
        let asked = options.grow.unwrap_or(0).min(u64::MAX - 511).next_multiple_of(512);
        let wanted = base.virtual_bytes.max(asked);
        let made = match self.existing(base, path, options.fresh)? {
            Existing::Ours(virtual_bytes) => {
                // The link may be missing: another cache, or restored from a copy.
                self.link(&base.id, path, name)?;
                let (made, virtual_bytes) = if virtual_bytes < wanted {
                    qemu_img::grow(path, wanted, &self.settings)?;
                    (OverlayOrigin::Grown, wanted)
                } else {
                    (OverlayOrigin::Reused, virtual_bytes)
                };
                return Ok(Overlay { path: path.to_owned(), base: base.id, virtual_bytes, made });
            }
            Existing::Replaceable => OverlayOrigin::Afresh,
            Existing::None => OverlayOrigin::New,
        };
        self.link(&base.id, path, name)?;
        let written = write(base, &scratch, wanted).and_then(|()| {
            place(&scratch, path, made == OverlayOrigin::New)
                .map_err(Error::io("renaming to", path))
        });
        if written.is_err() {
            let _ = fs::remove_file(&scratch);
        }
        written?;
        Ok(Overlay { path: path.to_owned(), base: base.id, virtual_bytes: wanted, made })
    }

    /// The file at the path of an overlay.
    fn existing(&self, base: &Base, path: &Path, fresh: bool) -> Result<Existing> {
        let found = cli::if_there(fs::symlink_metadata(path));
        let Some(metadata) = found.map_err(Error::io("looking at", path))? else {
            return Ok(Existing::None);
        };
        if metadata.is_file() && metadata.len() == 0 {
            // See the module: a cut of power.
            return Ok(Existing::Replaceable);
        }
        let refuse = |why: String| Err(Error::refused(path, why));
        let Some(header) = header(path)? else {
            return refuse(
                "there is something else than an overlay, which is left alone; name \
            another place or move it away"
                    .into(),
            );
        };
        let Some(backing) =
            header.backing.as_deref().map(|name| PathBuf::from(std::ffi::OsStr::from_bytes(name)))
        else {
            return refuse(
                "there is a qcow2 file that is no overlay, which is left alone; name \
            another place or move it away"
                    .into(),
            );
        };
        if fresh {
            if owner(&backing).is_none() {
                return refuse(format!(
                    "there is an overlay of {}, which is no base of a cache, so it is left alone",
                    backing.display()
                ));
            }
            if is_open_in_qemu(path)? {
                return refuse(
                    "a machine runs on this overlay; stop it before its disk is made anew".into(),
                );
            }
            return Ok(Existing::Replaceable);
        }
        if backing == base.path && header.backing_format.as_deref() == Some(base.format.as_bytes())
        {
            return Ok(Existing::Ours(header.virtual_bytes));
        }
        if is_disk_of(&backing, &base.id) {
            return refuse(moved(path, &backing, base));
        }
        refuse(format!(
            "this is an overlay of {}, and not of base {}; --fresh makes it anew, without what \
            its machine has written",
            backing.display(),
            base.id
        ))
    }

    /// Notes that an overlay needs a base.
    fn link(&self, id: &BaseId, path: &Path, name: &str) -> Result<()> {
        let links = self.links(id);
        files::make_folder(&links)?;
        let link = links.join(name);
        match symlink(path, &link) {
            // Its name is the hash of the path, so it is this one.
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                Err(Error::io("making", &link)(error))
            }
            _ => Ok(()),
        }
    }

    /// A name that no other path, and no other cache, gives to an overlay.
    fn name_of(&self, path: &Path) -> String {
        let mut hasher = Sha256::new();
        hasher.update(self.own_id.as_bytes());
        hasher.update([0]);
        hasher.update(path.as_os_str().as_bytes());
        hex::encode(&hasher.finalize()[..16])
    }
}

enum Existing {
    None,
    /// May be replaced.
    Replaceable,
    /// An overlay of this base, with a disk of this size.
    Ours(u64),
}

/// Of which base a backing file is, if of any.
fn owner(backing: &Path) -> Option<BaseId> {
    let id = backing.parent()?.file_name()?.to_str()?.parse().ok()?;
    is_disk_of(backing, &id).then_some(id)
}

/// The words for an overlay whose base is somewhere else now.
pub(crate) fn moved(path: &Path, backing: &Path, base: &Base) -> String {
    format!(
        "its base was moved from {} to {}; if no machine runs on it, this mends it: qemu-img \
        rebase -u -f qcow2 -F {} -b '{}' '{}'",
        backing.display(),
        base.path.display(),
        base.format,
        base.path.display(),
        path.display()
    )
}

fn absolute(destination: &Path) -> Result<PathBuf> {
    let name = destination
        .file_name()
        .ok_or_else(|| Error::refused(destination, "an overlay needs a file name"))?;
    let parent = match destination.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    Ok(fs::canonicalize(parent).map_err(Error::io("opening the folder", parent))?.join(name))
}

fn write(base: &Base, path: &Path, virtual_bytes: u64) -> Result<()> {
    let empty = qcow2::overlay(base.path.as_os_str().as_bytes(), base.format, virtual_bytes)
        .map_err(|why| Error::refused(path, why))?;
    let fail = Error::io("writing", path);
    let file = File::options().create_new(true).write(true).open(path).map_err(&fail)?;
    for (offset, bytes) in &empty.parts {
        file.write_all_at(bytes, *offset).map_err(&fail)?;
    }
    file.set_len(empty.length).map_err(&fail)
}

/// Gives a file its name; an existing file is not overwritten when it is `new`.
fn place(from: &Path, to: &Path, new: bool) -> std::io::Result<()> {
    let flags = if new { RenameFlags::NOREPLACE } else { RenameFlags::empty() };
    match renameat_with(CWD, from, CWD, to, flags) {
        // Network file systems have no such flag; a link does not overwrite either.
        Err(Errno::INVAL | Errno::NOSYS) if new => {
            fs::hard_link(from, to)?;
            fs::remove_file(from)
        }
        renamed => Ok(renamed?),
    }
}

/// Whether QEMU, or one of its tools, has a file open for writing.
fn is_open_in_qemu(path: &Path) -> Result<bool> {
    let file =
        File::options().read(true).write(true).open(path).map_err(Error::io("opening", path))?;
    let lock = nix::libc::flock {
        l_type: nix::libc::F_WRLCK as _,
        l_whence: nix::libc::SEEK_SET as _,
        l_start: QEMU_LOCKS_BEGIN,
        l_len: QEMU_LOCKS_LENGTH,
        l_pid: 0,
    };
    // Closing the file releases the lock. On a file system without such locks the result is
    // unknown.
    Ok(matches!(
        fcntl(&file, FcntlArg::F_OFD_SETLK(&lock)),
        Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EACCES)
    ))
}
