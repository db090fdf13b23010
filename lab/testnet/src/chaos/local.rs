//! Trouble of one machine, made for real: a disk that is full, descriptors that run out.
//!
//! A node of a net that chaos made itself has its data folder on a file system of its own, an ext4
//! in a file (so that its pages are page cache, which the node's group can free; a tmpfs would
//! count as the node's memory). It fills up by a file that takes all there is.

use std::{
    fs::{self, File, OpenOptions},
    io,
    path::PathBuf,
    process::Command,
};

use anyhow::{Context, Result, ensure};
use rustix::{
    fs::{FallocateFlags, fallocate},
    io::Errno,
    process::{Pid, Resource, Rlimit, prlimit},
};
use serde::{Deserialize, Serialize};

use crate::net::{handle::Handle, state::NetFolder};

/// Of the file system of one node. The file is sparse: it takes what the node writes.
const DISK_BYTES: u64 = 4 << 30;

/// The file systems of a net's nodes; unmounted when dropped, whose nodes must have ended by then.
#[derive(Default)]
pub(super) struct Disks(Vec<PathBuf>);

impl Disks {
    /// Makes and mounts one for each node of a net that is not there yet. The error names what is
    /// missing.
    pub(super) fn make(place: &NetFolder, nodes: usize) -> Result<Self> {
        let mut disks = Self::default();
        for index in 0..nodes {
            let (image, data) = (place.node(index).join("disk.ext4"), place.data(index));
            fs::create_dir_all(&data)
                .with_context(|| format!("making the folder {}", data.display()))?;
            File::create(&image)?.set_len(DISK_BYTES)?;
            // No blocks kept for root: the node may be root, and its disk is to be full for it.
            tool(Command::new("mkfs.ext4").args(["-q", "-m", "0"]).arg(&image))?;
            tool(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&data))?;
            disks.0.push(data.clone());
            fs::remove_dir(data.join("lost+found"))?;
        }
        Ok(disks)
    }

    /// Whether there are any.
    pub(super) fn exist(&self) -> bool {
        !self.0.is_empty()
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        for at in &self.0 {
            let _ = Command::new("umount").arg("-l").arg(at).output();
        }
    }
}

fn tool(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("running {name}"))?;
    ensure!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

fn filler(place: &NetFolder, node: usize) -> PathBuf {
    place.data(node).join("filler")
}

/// Takes all that is left of a node's disk. To be repeated: the node frees room when it folds.
pub(super) fn fill(place: &NetFolder, node: usize) -> Result<()> {
    let path = filler(place, node);
    let file = match OpenOptions::new().create(true).append(true).open(&path) {
        Ok(file) => file,
        // As full as can be.
        Err(error) if error.kind() == io::ErrorKind::StorageFull => return Ok(()),
        Err(error) => return Err(error).with_context(|| format!("opening {}", path.display())),
    };
    let mut length = file.metadata()?.len();
    for piece in [64 << 20, 1 << 20, 4 << 10] {
        loop {
            match fallocate(&file, FallocateFlags::empty(), length, piece) {
                Ok(()) => length += piece,
                Err(Errno::NOSPC) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error).context("filling a node's disk"),
            }
        }
    }
    Ok(())
}

/// Gives it back.
pub(super) fn empty(place: &NetFolder, node: usize) -> Result<()> {
    cli::if_there(fs::remove_file(filler(place, node))).map(drop).context("emptying a node's disk")
}

/// Previous descriptor limit of a node's process, in a file, so that Ctrl-C can restore it.
#[derive(Serialize, Deserialize)]
struct SavedLimit {
    #[serde(flatten)]
    process: Handle,
    soft: Option<u64>,
    hard: Option<u64>,
}

fn limit_file(place: &NetFolder, node: usize) -> PathBuf {
    place.node(node).join("descriptors.json")
}

/// From now on the node's process can open as many files and sockets as it closes.
pub(super) fn exhaust(place: &NetFolder, node: usize, process: Handle) -> Result<()> {
    let open = fs::read_dir(format!("/proc/{}/fd", process.pid))?.count() as u64;
    let now = limit(process.pid)?;
    let before = SavedLimit { process, soft: now.current, hard: now.maximum };
    fs::write(limit_file(place, node), serde_json::to_vec(&before)?)?;
    set(process.pid, Rlimit { current: Some(open), maximum: now.maximum })
}

/// Restores the previous limit, if it was lowered and the process is still the same.
pub(super) fn replenish(place: &NetFolder, node: usize) -> Result<()> {
    let path = limit_file(place, node);
    let Ok(text) = fs::read(&path) else { return Ok(()) };
    let SavedLimit { process, soft, hard } = serde_json::from_slice(&text)?;
    if process.is_alive() {
        set(process.pid, Rlimit { current: soft, maximum: hard })?;
    }
    fs::remove_file(&path).context("forgetting a node's limit")
}

/// The limit on descriptors of a process. Reading it is setting nothing.
fn limit(pid: u32) -> Result<Rlimit> {
    let text = fs::read_to_string(format!("/proc/{pid}/limits"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("Max open files"));
    let mut words = line.context("no limit on open files is reported")?.split_whitespace();
    let mut word = || words.next().and_then(|word| word.parse().ok());
    Ok(Rlimit { current: word(), maximum: word() })
}

fn set(pid: u32, limit: Rlimit) -> Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).context("a process id")?;
    match prlimit(Some(pid), Resource::Nofile, limit) {
        // It ended meanwhile, and its limit with it.
        Ok(_) | Err(Errno::SRCH) => Ok(()),
        Err(error) => Err(error).context("limiting the files a node may open"),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_descriptors_gets_them_back() {
        let folder = tempfile::tempdir().unwrap();
        let place = NetFolder::new(folder.path()).unwrap();
        fs::create_dir_all(place.node(0)).unwrap();
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let process = Handle::for_pid(child.id()).unwrap();
        let before = limit(child.id()).unwrap();
        exhaust(&place, 0, process).unwrap();
        let during = limit(child.id()).unwrap();
        assert!(during.current.unwrap() < 10 && during.maximum == before.maximum, "{during:?}");
        replenish(&place, 0).unwrap();
        assert_eq!(limit(child.id()).unwrap(), before);
        // Nothing was noted any more, and a process that ended needs nothing.
        replenish(&place, 0).unwrap();
        exhaust(&place, 0, process).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        replenish(&place, 0).unwrap();
    }
}
