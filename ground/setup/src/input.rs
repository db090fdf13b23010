//! Files that an operator names for a program to read: configuration, certificates.
//!
//! Bounds: [`INPUT_BYTES_MAX`]. Only regular files are opened: a FIFO would block without a
//! message, and a device may have no end.

use std::{
    fs::{self, File},
    io::Read as _,
    path::Path,
};

use anyhow::{Context, Result, bail, ensure};

/// A larger file is not one that an operator wrote.
pub const INPUT_BYTES_MAX: u64 = 1 << 20;

/// Reads a file of bytes.
///
/// # Errors
/// When it cannot be read, is not a regular file, or is larger than [`INPUT_BYTES_MAX`].
pub fn read_input(path: &Path) -> Result<Vec<u8>> {
    let shown = path.display();
    let reading = || format!("reading {shown}");
    let metadata = fs::metadata(path).with_context(reading)?;
    ensure!(metadata.is_file(), "{shown} is not a regular file");
    let mut bytes = Vec::new();
    let file = File::open(path).with_context(reading)?;
    // The size in the metadata may be out of date, and is 0 in some file systems of the kernel.
    file.take(INPUT_BYTES_MAX + 1).read_to_end(&mut bytes).with_context(reading)?;
    if bytes.len() as u64 > INPUT_BYTES_MAX {
        bail!("{shown} is larger than {} MiB", INPUT_BYTES_MAX >> 20);
    }
    Ok(bytes)
}

/// Reads a file of text.
///
/// # Errors
/// As [`read_input`], and when it is not UTF-8.
pub fn read_text(path: &Path) -> Result<String> {
    let bytes = read_input(path)?;
    String::from_utf8(bytes).with_context(|| format!("{} is not UTF-8 text", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    // Promise: P15 - A configuration file is a regular file of at most 1 MiB.
    #[test]
    fn only_regular_files_up_to_the_limit_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.toml");
        let refused = |path: &Path| format!("{:#}", read_text(path).unwrap_err());
        assert!(refused(&path).starts_with(&format!("reading {}", path.display())));
        let most = INPUT_BYTES_MAX as usize;
        fs::write(&path, vec![b' '; most]).unwrap();
        assert_eq!(read_text(&path).unwrap().len(), most);
        fs::write(&path, vec![b' '; most + 1]).unwrap();
        assert_eq!(refused(&path), format!("{} is larger than 1 MiB", path.display()));
        fs::write(&path, [0xff]).unwrap();
        assert!(refused(&path).contains("a.toml is not UTF-8 text"));
        assert_eq!(read_input(&path).unwrap(), [0xff]);

        let fifo = folder.path().join("fifo");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
        assert!(made.success());
        for path in [Path::new("/dev/zero"), fifo.as_path(), folder.path()] {
            assert_eq!(refused(path), format!("{} is not a regular file", path.display()));
        }
    }
}
