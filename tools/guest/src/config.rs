//! Configuration of a machine: a raw disk that holds a tar archive.
//!
//! ```text
//! machine.json     role, budget, addresses, arguments; always the first entry
//! data/... content of the node's data folder before its first start: keys, the genesis
//! ```
//!
//! A tape archive needs no file system, is read from front to back, and can be made with `tar`. The
//! data is unpacked once, onto a disk that has none yet.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    net::Ipv4Addr,
    path::{Component, Path},
};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

/// Version of the document.
pub const FORMAT: u32 = 1;
/// The document's name in the archive.
pub const NAME: &str = "machine.json";
/// The folder of what the data folder holds.
const DATA: &str = "data";
/// A hundred members and their addresses have 20 KiB.
const DOCUMENT_BYTES_MAX: u64 = 1 << 20;
/// Keys and a genesis have some hundred KiB.
pub const DATA_BYTES_MAX: u64 = 64 << 20;
/// Entries of the archive.
const ENTRIES_MAX: usize = 10_000;
/// Disks have whole sectors, and none is empty.
const SECTOR_BYTES: u64 = 64 << 10;

/// Which program a machine runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The program `thimble`.
    Node,
    /// The program `thimble-relay`.
    Relay,
}

impl Role {
    /// The program's name.
    pub fn program(self) -> &'static str {
        match self {
            Self::Node => "thimble",
            Self::Relay => "thimble-relay",
        }
    }
}

/// One network card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// Its hardware address, by which it is found: `52:54:00:12:34:56`.
    pub hardware: String,
    /// The machine's address on it.
    pub address: Ipv4Addr,
    /// Bits of the network's part of it.
    pub prefix: u8,
}

/// The document `machine.json`, which configures a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Version of the document, [`FORMAT`].
    pub format: u32,
    /// Name of the machine.
    pub name: String,
    /// Which program it runs.
    pub role: Role,
    /// Its memory, as its host gives it.
    pub machine_bytes: u64,
    /// The node's budget; without one, what is left of the machine's memory.
    pub memory_bytes: Option<u64>,
    /// The budget may be more than what is left.
    pub overcommit: bool,
    /// Behind `run --memory N --data-dir /state/data`.
    pub arguments: Vec<String>,
    /// Network cards that the machine brings up, with their addresses.
    pub interfaces: Vec<Interface>,
    /// Time between two samples of its memory.
    pub sample_millis: u64,
}

/// Writes the disk of a machine: the document, and the files below `data`, if there are any.
///
/// # Errors
///
/// A file that cannot be read or written, or more data than [`DATA_BYTES_MAX`].
pub fn write(machine: &Machine, data: Option<&Path>, path: &Path) -> Result<()> {
    let scratch = path.with_extension("new");
    let write = || -> Result<()> {
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true).truncate(true);
        // There are keys in it.
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut archive = tar::Builder::new(options.open(&scratch)?);
        archive.follow_symlinks(false);
        let document = serde_json::to_vec_pretty(machine)?;
        let mut header = tar::Header::new_ustar();
        header.set_size(document.len() as u64);
        header.set_mode(0o600);
        header.set_cksum();
        archive.append_data(&mut header, NAME, document.as_slice())?;
        if let Some(data) = data.filter(|data| data.is_dir()) {
            archive.append_dir_all(DATA, data)?;
        }
        let mut file = archive.into_inner()?;
        let length = file.metadata()?.len();
        ensure!(
            length <= DATA_BYTES_MAX,
            "it would have {length} bytes; at most {DATA_BYTES_MAX} are read"
        );
        file.set_len(length.next_multiple_of(SECTOR_BYTES))?;
        file.flush()?;
        fs::rename(&scratch, path)?;
        Ok(())
    };
    write().with_context(|| format!("writing the configuration disk {}", path.display()))
}

/// Reads the document.
///
/// # Errors
///
/// The disk does not have this format; the error describes the fault.
pub fn read(disk: impl Read) -> Result<Machine> {
    let mut archive = tar::Archive::new(disk.take(DATA_BYTES_MAX));
    let entry = archive.entries()?.next().context("the configuration disk is empty")?;
    let mut entry = entry.context("the configuration disk holds no tar archive")?;
    ensure!(
        entry.path()?.as_ref() == Path::new(NAME),
        "the first entry of the configuration disk is not {NAME}"
    );
    let size = entry.size();
    ensure!(
        size <= DOCUMENT_BYTES_MAX,
        "{NAME} has {size} bytes; at most {DOCUMENT_BYTES_MAX} are read"
    );
    let mut text = Vec::new();
    entry.read_to_end(&mut text)?;
    let machine: Machine =
        serde_json::from_slice(&text).with_context(|| format!("reading {NAME}"))?;
    ensure!(
        machine.format == FORMAT,
        "the format of {NAME} is {}; this image knows {FORMAT}",
        machine.format
    );
    Ok(machine)
}

/// Unpacks what the data folder is to hold into the folder `into`. It takes regular files and
/// folders only, below `into`.
///
/// # Errors
///
/// An entry of another kind, one that climbs, too many of them, or a disk without room.
pub fn unpack(disk: impl Read, into: &Path) -> Result<()> {
    let mut archive = tar::Archive::new(disk.take(DATA_BYTES_MAX));
    for (count, entry) in archive.entries()?.enumerate() {
        ensure!(count < ENTRIES_MAX, "the configuration disk has more than {ENTRIES_MAX} entries");
        let mut entry = entry?;
        let path = entry.path()?.into_owned();
        let Ok(below) = path.strip_prefix(DATA) else { continue };
        let plain = below.components().all(|part| matches!(part, Component::Normal(_)));
        ensure!(plain, "the configuration disk names {}, which climbs", path.display());
        let target = into.join(below);
        let mut unpack = || -> io::Result<bool> {
            match entry.header().entry_type() {
                tar::EntryType::Directory => fs::create_dir_all(&target)?,
                tar::EntryType::Regular => {
                    if let Some(folder) = target.parent() {
                        fs::create_dir_all(folder)?;
                    }
                    let mut file = File::create(&target)?;
                    io::copy(&mut entry, &mut file)?;
                    let mode = entry.header().mode()? & 0o700;
                    fs::set_permissions(
                        &target,
                        std::os::unix::fs::PermissionsExt::from_mode(mode),
                    )?;
                    file.sync_all()?;
                }
                _ => return Ok(false),
            }
            Ok(true)
        };
        let is_known = unpack().with_context(|| format!("unpacking {}", path.display()))?;
        let path = path.display();
        ensure!(is_known, "{path} on the configuration disk is neither a file nor a folder");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        Machine {
            format: FORMAT,
            name: "node-0".into(),
            role: Role::Node,
            machine_bytes: 256 << 20,
            memory_bytes: None,
            overcommit: false,
            arguments: vec!["--listen".into(), "10.0.2.15:8080".into()],
            interfaces: vec![Interface {
                hardware: "52:54:00:00:00:01".into(),
                address: Ipv4Addr::new(10, 0, 2, 15),
                prefix: 24,
            }],
            sample_millis: 500,
        }
    }

    #[test]
    fn a_machine_reads_what_its_host_wrote() {
        let folder = tempfile::tempdir().unwrap();
        let (data, disk) = (folder.path().join("data"), folder.path().join("config.img"));
        fs::create_dir_all(data.join("keys")).unwrap();
        fs::write(data.join("keys/node.key"), b"secret").unwrap();
        write(&machine(), Some(&data), &disk).unwrap();
        assert_eq!(fs::metadata(&disk).unwrap().len() % SECTOR_BYTES, 0);
        assert_eq!(
            std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&disk).unwrap().permissions())
                & 0o77,
            0
        );

        assert_eq!(read(File::open(&disk).unwrap()).unwrap(), machine());
        let into = folder.path().join("state");
        unpack(File::open(&disk).unwrap(), &into).unwrap();
        assert_eq!(fs::read(into.join("keys/node.key")).unwrap(), b"secret");
        assert!(!into.join(NAME).exists());
    }

    /// An archive of one entry behind the document.
    fn with(name: &str, kind: tar::EntryType) -> Vec<u8> {
        let document = serde_json::to_vec(&machine()).unwrap();
        let mut archive = Vec::new();
        for (name, kind, bytes) in
            [(NAME, tar::EntryType::Regular, document.as_slice()), (name, kind, b"x")]
        {
            let mut header = tar::Header::new_ustar();
            // By hand: the library would refuse to write such names.
            header.as_ustar_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_entry_type(kind);
            header.set_size(bytes.len() as u64);
            header.set_mode(0o600);
            header.set_cksum();
            archive.extend_from_slice(header.as_bytes());
            archive.extend_from_slice(bytes);
            archive.resize(archive.len().next_multiple_of(512), 0);
        }
        archive.resize(archive.len() + 1024, 0);
        archive
    }

    #[test]
    fn a_disk_that_climbs_or_links_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let into = folder.path().join("into");
        for (name, kind, part) in [
            ("data/../../out", tar::EntryType::Regular, "climbs"),
            ("data/link", tar::EntryType::Symlink, "neither a file nor a folder"),
            ("data/device", tar::EntryType::Block, "neither a file nor a folder"),
        ] {
            let error = unpack(with(name, kind).as_slice(), &into).unwrap_err();
            assert!(format!("{error:#}").contains(part), "{name}: {error:#}");
        }
        // Entries outside data/ are ignored.
        unpack(with("elsewhere/x", tar::EntryType::Regular).as_slice(), &into).unwrap();
        assert!(!into.join("elsewhere").exists() && !folder.path().join("out").exists());
    }

    #[test]
    fn a_disk_that_is_none_is_refused_in_words() {
        for (bytes, part) in [
            (vec![], "empty"),
            (vec![0; 4096], "empty"),
            (vec![0xa5; 4096], "tar archive"),
            (with("x", tar::EntryType::Regular)[512..].to_vec(), ""),
        ] {
            let error = format!("{:#}", read(bytes.as_slice()).unwrap_err());
            assert!(error.contains(part), "{error}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..4096)) {
            let _ = read(bytes.as_slice());
        }
    }
}
