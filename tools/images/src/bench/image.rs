//! The image that is measured: an ext4 file system with real files, packed by zstd.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use accounting::format_size;
use anyhow::{Context, Result, bail, ensure};

use crate::Stop;

/// Fixed, so that the same files make the same image.
const IDENTITY: &str = "00000000-0000-4000-8000-000000000014";
const FAKE_TIME: &str = "1700000000";
/// Most files that a walk visits.
const FILES_MAX: usize = 500_000;
const DEPTH_MAX: usize = 40;

/// Makes the image, or finds the one that was made of the same folder in the same size.
pub(crate) fn make(folder: &Path, from: &Path, size: u64, stop: &Stop) -> Result<PathBuf> {
    let image = folder.join(format!("image-{size}.raw.zst"));
    if image.exists() {
        return Ok(image);
    }
    eprintln!("image: making an image of {} out of {}", format_size(size), from.display());
    let (staged, raw) = (folder.join("staged"), folder.join("image.raw"));
    let packed = folder.join("image.zst.new");
    let done = (|| {
        for old in [&raw, &packed] {
            let _ = fs::remove_file(old);
        }
        let _ = fs::remove_dir_all(&staged);
        // File systems need room of their own, and real disks are not full.
        let filled = stage(from, &staged, size / 3 * 2, stop)?;
        ensure!(
            filled >= size / 3,
            "{} has only {} of files; name another --from",
            from.display(),
            format_size(filled)
        );
        let file = fs::File::create(&raw)?;
        file.set_len(size)?;
        drop(file);
        tool(
            Command::new("mkfs.ext4")
                .args(["-q", "-F", "-U", IDENTITY, "-E"])
                .arg(format!("hash_seed={IDENTITY},lazy_itable_init=1"))
                .arg("-d")
                .args([&staged, &raw])
                .env("E2FSPROGS_FAKE_TIME", FAKE_TIME)
                .env("PATH", with_sbin()),
            "mkfs.ext4",
            "e2fsprogs",
        )?;
        stop.check()?;
        tool(
            Command::new("zstd").args(["-q", "-T0", "-f", "-o"]).args([&packed, &raw]),
            "zstd",
            "zstd",
        )?;
        fs::rename(&packed, &image)?;
        Ok(())
    })();
    let _ = fs::remove_dir_all(&staged);
    let _ = fs::remove_file(&raw);
    let _ = fs::remove_file(&packed);
    done.map(|()| image)
}

/// `mkfs.ext4` is not on the PATH of every user.
fn with_sbin() -> std::ffi::OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":/usr/sbin:/sbin");
    path
}

/// Runs a tool of the distribution.
pub(crate) fn tool(command: &mut Command, name: &str, package: &str) -> Result<()> {
    let output = command.stdin(Stdio::null()).stdout(Stdio::null()).output();
    let output =
        output.with_context(|| format!("starting {name}; it comes with the package {package}"))?;
    if !output.status.success() {
        bail!("{name}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// Links regular files of a folder, in the order of their names, up to a total of `bytes`.
fn stage(from: &Path, to: &Path, bytes: u64, stop: &Stop) -> Result<u64> {
    let mut staged = 0;
    let mut files = 0;
    let mut folders = vec![(from.to_owned(), 0)];
    fs::create_dir_all(to)?;
    while let Some((folder, depth)) = folders.pop() {
        stop.check()?;
        let mut names: Vec<_> = match fs::read_dir(&folder) {
            Ok(entries) => entries.filter_map(|entry| Some(entry.ok()?.path())).collect(),
            // Not ours to read, or gone.
            Err(_) => continue,
        };
        names.sort();
        for path in names {
            let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
            if metadata.is_dir() && depth < DEPTH_MAX {
                folders.push((path, depth + 1));
            } else if metadata.is_file() {
                files += 1;
                if staged + metadata.len() > bytes || files > FILES_MAX {
                    return Ok(staged);
                }
                let place = to.join(path.strip_prefix(from)?);
                if let Some(parent) = place.parent() {
                    fs::create_dir_all(parent)?;
                }
                // A copy where links are not permitted, or on another file system.
                if fs::hard_link(&path, &place).is_ok() || fs::copy(&path, &place).is_ok() {
                    staged += metadata.len();
                }
            }
        }
    }
    Ok(staged)
}
