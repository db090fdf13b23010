//! A process and its descendants, as the kernel lists them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    time::Duration,
};

use accounting::process::{self, Pid, ProcessMemory, Stat};

/// Most processes of the machine read in one sample.
const LISTED_MAX: usize = 32_768;
/// Most descendants watched; those behind are left out.
pub(crate) const WATCHED_MAX: usize = 512;

/// All of the tree at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tree {
    /// The process itself first.
    pub(crate) pids: Vec<Pid>,
    pub(crate) memory: ProcessMemory,
    pub(crate) threads: u64,
}

/// Takes trees, one after the other.
pub(crate) struct Reader {
    root: Pid,
    started_ticks: u64,
    ticks: BTreeMap<Pid, (u64, u64)>,
}

impl Reader {
    pub(crate) fn new(root: Pid, started_ticks: u64) -> Self {
        Self { root, started_ticks, ticks: BTreeMap::new() }
    }

    /// The tree now, and what CPU time it used since the last one; `None` when the process has
    /// ended.
    pub(crate) fn take(&mut self) -> Option<(Tree, Duration)> {
        let root = process::stat(self.root).ok()?;
        if root.is_dead || root.started_ticks != self.started_ticks {
            return None;
        }
        let stats = descendants(self.root, root);
        let mut tree = Tree::default();
        let mut ticks = BTreeMap::new();
        let mut used = 0_u64;
        for (pid, stat) in stats {
            // One that ended in between has no memory.
            let Ok(memory) = process::memory(pid) else { continue };
            tree.memory = tree.memory.plus(memory);
            tree.threads = tree.threads.saturating_add(stat.threads);
            tree.pids.push(pid);
            let before = self.ticks.get(&pid).filter(|(started, _)| *started == stat.started_ticks);
            // CPU time before a process was first seen belongs to a new child, or to the time
            // before the watch.
            let before = before.map_or(stat.ticks, |(_, ticks)| *ticks);
            used = used.saturating_add(stat.ticks.saturating_sub(before));
            ticks.insert(pid, (stat.started_ticks, stat.ticks));
        }
        self.ticks = ticks;
        let per_second = rustix::param::clock_ticks_per_second().max(1);
        let used = Duration::from_millis(
            used.saturating_mul(1000).checked_div(per_second).unwrap_or_default(),
        );
        (!tree.pids.is_empty()).then_some((tree, used))
    }
}

/// The tree below `root`, itself first, the nearest next.
fn descendants(root: Pid, of_root: Stat) -> Vec<(Pid, Stat)> {
    let mut children: BTreeMap<Pid, Vec<(Pid, Stat)>> = BTreeMap::new();
    for pid in listed() {
        if let Ok(stat) = process::stat(pid)
            && !stat.is_dead
        {
            children.entry(stat.parent).or_default().push((pid, stat));
        }
    }
    let mut found = vec![(root, of_root)];
    let mut seen = BTreeSet::from([root]);
    let mut at = 0;
    while let Some((pid, _)) = found.get(at).copied() {
        for (child, stat) in children.remove(&pid).unwrap_or_default() {
            if found.len() < WATCHED_MAX && seen.insert(child) {
                found.push((child, stat));
            }
        }
        at += 1;
    }
    found
}

fn listed() -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let names =
        entries.take(LISTED_MAX).filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    names.map(Pid).collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn children_of_children_belong_to_it_and_its_end_is_seen() {
        let mut child =
            Command::new("sh").args(["-c", "sh -c 'sleep 60; :' & wait; :"]).spawn().unwrap();
        let pid = Pid(child.id());
        let mut reader = Reader::new(pid, process::stat(pid).unwrap().started_ticks);
        let mut tree = reader.take().unwrap().0;
        for _ in 0..10_000 {
            if tree.pids.len() == 3 {
                break;
            }
            tree = reader.take().unwrap().0;
        }
        assert_eq!((tree.pids.len(), tree.pids[0]), (3, pid));
        assert!(tree.memory.anonymous_bytes > 0 && tree.threads == 3);
        for pid in tree.pids.iter().rev() {
            let _ = nix::sys::signal::kill(
                nix::unistd::Pid::from_raw(pid.0.cast_signed()),
                nix::sys::signal::Signal::SIGKILL,
            );
        }
        child.wait().unwrap();
        assert!(reader.take().is_none());
    }
}
