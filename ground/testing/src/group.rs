//! A memory control group of a test's own, of whichever version rules memory here.

// A failed read or write of the group fails the test.
#![allow(clippy::unwrap_used)]

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

/// Gone when dropped; what lives in it must have ended, so make it before the node.
pub struct Group {
    directory: PathBuf,
    version_2: bool,
}

static NEXT: AtomicU32 = AtomicU32::new(0);

impl Group {
    /// `None` where none can be made, which was reported by [`crate::missing`].
    pub fn new() -> Option<Self> {
        let made = Self::make();
        if made.is_none() {
            crate::missing(
                "no memory control group can be made: run as root with a writable cgroup",
            );
        }
        made
    }

    fn make() -> Option<Self> {
        let own = accounting::cgroup::Cgroup::own().ok()??;
        let name =
            format!("thimble-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let version_2 = own.version() == accounting::cgroup::Version::V2;
        let parent = if version_2 {
            // A group with processes has no groups below it that count memory: a sibling it is.
            let parent = own.directory().parent()?;
            let _ = fs::write(parent.join("cgroup.subtree_control"), "+memory");
            parent
        } else {
            own.directory()
        };
        let group = Self { directory: parent.join(name), version_2 };
        fs::create_dir(&group.directory).ok()?;
        // Without this, anonymous memory would move to a swap and no process would be killed.
        let (file, value) =
            if version_2 { ("memory.swap.max", "0") } else { ("memory.swappiness", "0") };
        let _ = fs::write(group.directory.join(file), value);
        group.directory.join(group.cap_file()).exists().then_some(group)
    }

    fn cap_file(&self) -> &'static str {
        if self.version_2 { "memory.max" } else { "memory.limit_in_bytes" }
    }

    /// Directory of the group in its mounted hierarchy.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Limits the memory of its processes together from now on.
    pub fn cap(&self, bytes: u64) {
        fs::write(self.directory.join(self.cap_file()), bytes.to_string()).unwrap();
    }

    /// Moves a process in; what it has taken before stays where it was.
    pub fn add(&self, pid: u32) {
        fs::write(self.directory.join("cgroup.procs"), pid.to_string()).unwrap();
    }

    /// For a node that is to live in it, which a shell runs before it becomes the program.
    pub fn prelude(&self) -> String {
        format!("echo $$ > '{}'", self.directory.join("cgroup.procs").display())
    }

    /// Processes the kernel has killed in it for want of memory.
    pub fn kills(&self) -> u64 {
        let file = if self.version_2 { "memory.events" } else { "memory.oom_control" };
        self.field(file, "oom_kill")
    }

    /// Memory charged to it that the kernel cannot drop.
    pub fn held_bytes(&self) -> u64 {
        let (usage, file, shared) = if self.version_2 {
            ("memory.current", "file", "shmem")
        } else {
            ("memory.usage_in_bytes", "total_cache", "total_shmem")
        };
        let usage: u64 =
            fs::read_to_string(self.directory.join(usage)).unwrap().trim().parse().unwrap();
        usage.saturating_sub(self.field("memory.stat", file)) + self.field("memory.stat", shared)
    }

    fn field(&self, file: &str, name: &str) -> u64 {
        let text = fs::read_to_string(self.directory.join(file)).unwrap();
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("{name} in {file}:\n{text}")).trim().parse().unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Workers end a moment after their node.
        let deadline = Instant::now() + Duration::from_secs(10);
        while fs::remove_dir(&self.directory).is_err() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
