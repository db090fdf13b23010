//! Files that a program writes for its operator: a configuration file, a unit for systemd whose
//! memory cap is the budget, manual pages and shell completions. Addresses that an operator states,
//! and files that an operator names.
//!
//! Writing again is safe: a file with the same content stays as it is, and one with other content
//! is not touched ([`keep_or_write`]).
//!
//! It must never know the contents of a configuration file.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod address;
mod input;
mod manual;
mod unit;

use std::{
    fs::{self, File},
    io::Read,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};

pub use address::{ip_address, socket_address};
pub use input::{INPUT_BYTES_MAX, read_input, read_text};
pub use manual::write_manual;
pub use unit::{Unit, escaped};

/// A file larger than this was not written by this.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Paths of a service, and the user it runs as.
pub struct Installation {
    /// The program's file.
    pub program: PathBuf,
    /// Its configuration file.
    pub file: PathBuf,
    /// Its data folder.
    pub data: PathBuf,
    /// The owner of the data folder, and the group.
    pub user: u32,
    /// Group id of the data folder.
    pub group: u32,
}

/// Writes the configuration file `file` of the program called `name`, and with `unit` also
/// `name.service`, into the data folder, which is made if absent; prints what to do with them.
/// `text` is given the data folder.
pub fn init(
    name: &str,
    data: &Path,
    file: &str,
    text: impl FnOnce(&Path) -> String,
    unit: Option<Unit<'_>>,
) -> Result<()> {
    fs::create_dir_all(data)
        .with_context(|| format!("making the data folder {}", data.display()))?;
    let data = fs::canonicalize(data).with_context(|| format!("finding {}", data.display()))?;
    let file = data.join(file);
    keep_or_write(&file, &text(&data))?;
    println!("{}: start it with: {name} run --config {}", file.display(), file.display());
    let Some(unit) = unit else { return Ok(()) };
    let program = std::env::current_exe().context("finding this program's file")?;
    let owner = fs::metadata(&data).with_context(|| format!("looking at {}", data.display()))?;
    let path = data.join(format!("{name}.service"));
    let (user, group) = (owner.uid(), owner.gid());
    let text = unit.text(&Installation { program, file, data, user, group })?;
    keep_or_write(&path, &text)?;
    println!(
        "{}: install it with: sudo cp {} /etc/systemd/system/ && sudo systemctl enable --now \
         {name}",
        path.display(),
        path.display()
    );
    Ok(())
}

/// Writes a file that is not there, whole or not at all. An existing one must have the same
/// content.
pub fn keep_or_write(path: &Path, text: &str) -> Result<()> {
    if path.exists() {
        let mut there = Vec::new();
        File::open(path)
            .and_then(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut there))
            .with_context(|| format!("reading {}", path.display()))?;
        ensure!(
            there == text.as_bytes(),
            "{} is there and says something else: it stays; remove it to have it written again",
            path.display()
        );
        return Ok(());
    }
    disk::replace_file(path, text.as_bytes(), disk::Readers::All)
        .with_context(|| format!("writing {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_written_once_and_then_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.toml");
        keep_or_write(&path, "one\n").unwrap();
        keep_or_write(&path, "one\n").unwrap();
        let error = keep_or_write(&path, "two\n").unwrap_err().to_string();
        assert!(error.contains("a.toml is there and says something else"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "one\n");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing beside it");
    }
}
