//! The memory control group this process lives in, of version 1 or 2.
//!
//! Which version rules memory is detected, not configured: `/proc/self/cgroup` gives the place of
//! the process in each hierarchy, `/proc/self/mountinfo` where the hierarchies are mounted. A
//! machine may mount both (hybrid); then memory belongs to version 1 when a version 1 hierarchy
//! carries the memory controller, and the version 2 group of the same process still provides its
//! pressure. A process in the root group of version 2, or without any mounted hierarchy, has no
//! group: its readings are those of the machine, and there is no limit.
//!
//! A limit may be set on any ancestor. Version 1 reports the smallest itself; for version 2 the
//! ancestors are asked one by one, at most [`ANCESTORS_MAX`] of them.
//!
//! Groups made by other programs can be read too: [`Cgroup::at`] opens a group at a known path,
//! [`Cgroup::for_pid`] that of another process.

use std::{
    path::{Component, Path, PathBuf},
    time::Duration,
};

use crate::{
    pressure::{self, Pressure},
    process::Pid,
    read::{ReadError, field, read_text},
};

/// Most ancestors asked for their limit; deeper trees do not exist outside of mistakes.
pub const ANCESTORS_MAX: usize = 64;
/// Most groups below a group that are asked for their processes.
pub const DESCENDANTS_MAX: usize = 256;
/// Most processes of a group that are listed.
pub const PROCESSES_MAX: usize = 4096;

/// Version 1 expresses "no limit" by a number near 2^63, rounded to its page size.
const UNLIMITED_V1_MIN: u64 = 1 << 62;

/// Which interface the group speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// `memory.limit_in_bytes` and friends.
    V1,
    /// `memory.max` and friends.
    V2,
}

/// A memory control group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroup {
    version: Version,
    /// Directory of the group.
    directory: PathBuf,
    /// Where its hierarchy is mounted: the search for limits ends there.
    mount: PathBuf,
    /// The version 2 group of the same process, for its pressure.
    unified: Option<PathBuf>,
}

/// Memory of the group, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CgroupMemory {
    /// The smallest limit of the group and its ancestors; `None` without one.
    pub limit_bytes: Option<u64>,
    /// Everything charged, page cache included. At the limit this is normal.
    pub usage_bytes: u64,
    /// Anonymous memory, with that of the groups below.
    pub anonymous_bytes: u64,
    /// Page cache, with that of the groups below. Includes shared memory and tmpfs, which cannot
    /// be dropped.
    pub file_bytes: u64,
    /// The part of `file_bytes` that is shared memory and tmpfs.
    pub shared_bytes: u64,
    /// Kernel memory charged to the group, where the kernel reports it (version 2 from Linux 5.18,
    /// version 1 with kernel accounting).
    pub kernel_bytes: Option<u64>,
    /// Swap used, where it is counted for the group.
    pub swap_bytes: Option<u64>,
    /// Page faults that had to read from disk, since the group was made.
    pub major_faults: u64,
    /// Processes killed for lack of memory since the group was made.
    pub oom_kills: u64,
}

/// A group in one hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupPath {
    /// Directory of the group.
    pub directory: PathBuf,
    /// Where its hierarchy is mounted.
    pub mount: PathBuf,
}

/// The groups of a process in the hierarchies that matter for memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupPaths {
    /// In the version 1 hierarchy that carries the memory controller, if one does.
    pub memory_v1: Option<GroupPath>,
    /// In the version 2 hierarchy, whether or not that has the memory controller.
    pub unified: Option<GroupPath>,
}

impl GroupPaths {
    /// The places of `pid`; both are `None` on a kernel without control groups.
    pub fn for_pid(pid: Pid) -> Result<Self, ReadError> {
        let membership = match read_text(&pid.file("cgroup")) {
            Ok(text) => text,
            // A kernel without control groups; or the process has gone, and its places with it.
            Err(error) if error.is_gone() => return Ok(Self::default()),
            Err(error) => return Err(error),
        };
        let mounts = read_text(Path::new("/proc/self/mountinfo"))?;
        Ok(Self::detect(&membership, &mounts, &Path::exists))
    }

    /// Decides from the texts of `/proc/<pid>/cgroup` and `/proc/self/mountinfo`.
    fn detect(membership: &str, mounts: &str, exists: &dyn Fn(&Path) -> bool) -> Self {
        let mounts: Vec<Mount> = mounts.lines().filter_map(Mount::parse).collect();
        let place = |mount: &Mount, path| GroupPath {
            directory: mount.locate(path, exists),
            mount: mount.point.clone(),
        };
        // The unified hierarchy is line `0::/path`.
        let unified =
            membership.lines().find_map(|line| line.strip_prefix("0::")).and_then(|path| {
                let mount = mounts.iter().find(|mount| mount.kind == "cgroup2")?;
                Some(place(mount, path))
            });
        let memory_v1 = membership.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            if !controllers.split(',').any(|name| name == "memory") {
                return None;
            }
            let mount = mounts.iter().find(|mount| {
                mount.kind == "cgroup" && mount.options.split(',').any(|option| option == "memory")
            })?;
            Some(place(mount, path))
        });
        Self { memory_v1, unified }
    }
}

impl Cgroup {
    /// The group of this process; `None` when no group limits or counts its memory.
    pub fn own() -> Result<Option<Self>, ReadError> {
        Self::for_pid(Pid::own())
    }

    /// The group of another process; `None` as for [`Cgroup::own`], or when the process has gone.
    pub fn for_pid(pid: Pid) -> Result<Option<Self>, ReadError> {
        Ok(Self::choose(GroupPaths::for_pid(pid)?, &Path::exists))
    }

    /// A group at a known path. `unified` is the version 2 group of the same processes when
    /// `version` is 1: it provides their pressure and CPU time.
    pub fn at(version: Version, place: GroupPath, unified: Option<PathBuf>) -> Self {
        let unified = match version {
            Version::V1 => unified,
            Version::V2 => Some(place.directory.clone()),
        };
        Self { version, directory: place.directory, mount: place.mount, unified }
    }

    /// Which interface it speaks.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Directory of the group in its mounted hierarchy.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Reads the group's current memory.
    pub fn memory(&self) -> Result<CgroupMemory, ReadError> {
        match self.version {
            Version::V1 => self.memory_v1(),
            Version::V2 => self.memory_v2(),
        }
    }

    /// Stalls for memory: of the version 2 group if it reports them, else of the machine, else
    /// `None`.
    pub fn pressure(&self) -> Option<Pressure> {
        self.unified
            .as_ref()
            .and_then(|group| pressure::read(&group.join("memory.pressure")))
            .or_else(pressure::machine_memory)
    }

    /// The most that was ever charged at once, between readings too; `None` on kernels that do not
    /// report it (version 2 before Linux 5.19).
    pub fn peak_bytes(&self) -> Option<u64> {
        match self.version {
            Version::V1 => self.number("memory.max_usage_in_bytes").ok(),
            Version::V2 => self.number("memory.peak").ok(),
        }
    }

    /// CPU time of all processes that were ever in the group, ended ones included; `None` without a
    /// version 2 group.
    pub fn cpu_time(&self) -> Option<Duration> {
        let text = read_text(&self.unified.as_ref()?.join("cpu.stat")).ok()?;
        field(&text, "usage_usec").map(Duration::from_micros)
    }

    /// Whether [`Cgroup::pressure`] speaks of this group, not of the whole machine.
    pub fn tells_pressure(&self) -> bool {
        self.unified
            .as_ref()
            .is_some_and(|group| pressure::read(&group.join("memory.pressure")).is_some())
    }

    /// The processes in the group and in groups below it, in order of their ids: at most
    /// [`PROCESSES_MAX`] from [`DESCENDANTS_MAX`] groups.
    pub fn processes(&self) -> Result<Vec<Pid>, ReadError> {
        let mut pids = Vec::new();
        let mut groups = vec![self.directory.clone()];
        let mut asked = 0;
        while let Some(group) = groups.pop() {
            asked += 1;
            match read_text(&group.join("cgroup.procs")) {
                Ok(text) => {
                    let room = PROCESSES_MAX - pids.len();
                    pids.extend(
                        text.lines().filter_map(|line| line.parse().ok()).map(Pid).take(room),
                    );
                }
                // A group below may go at any time.
                Err(error) if error.is_gone() && group != self.directory => {}
                Err(error) => return Err(error),
            }
            let below = std::fs::read_dir(&group).into_iter().flatten().flatten();
            let room = DESCENDANTS_MAX.saturating_sub(asked + groups.len());
            groups.extend(
                below
                    .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
                    .map(|entry| entry.path())
                    .take(room),
            );
        }
        pids.sort_unstable();
        pids.dedup();
        Ok(pids)
    }

    /// Decides which of the places rules memory.
    fn choose(places: GroupPaths, exists: &dyn Fn(&Path) -> bool) -> Option<Self> {
        if let Some(place) = places.memory_v1 {
            return Some(Self::at(Version::V1, place, places.unified.map(|place| place.directory)));
        }
        // The root group has no `memory.current`, nor has a group whose parent does not hand the
        // controller down.
        let place =
            places.unified.filter(|place| exists(&place.directory.join("memory.current")))?;
        Some(Self::at(Version::V2, place, None))
    }

    #[cfg(test)]
    fn detect(membership: &str, mounts: &str, exists: &dyn Fn(&Path) -> bool) -> Option<Self> {
        Self::choose(GroupPaths::detect(membership, mounts, exists), exists)
    }

    fn memory_v1(&self) -> Result<CgroupMemory, ReadError> {
        let (stat_path, stat) = self.text("memory.stat")?;
        let wanted = |key: &'static str| {
            field(&stat, key).ok_or(ReadError::Missing { path: stat_path.clone(), wanted: key })
        };
        let limit = wanted("hierarchical_memory_limit")?;
        let file_bytes = wanted("total_cache")?;
        // Older kernels do not count kills in version 1; the file is then without the line.
        let (_, oom) = self.text("memory.oom_control")?;
        Ok(CgroupMemory {
            limit_bytes: (limit < UNLIMITED_V1_MIN).then_some(limit),
            usage_bytes: self.number("memory.usage_in_bytes")?,
            anonymous_bytes: wanted("total_rss")?,
            file_bytes,
            shared_bytes: field(&stat, "total_shmem").unwrap_or(0),
            kernel_bytes: self.number("memory.kmem.usage_in_bytes").ok(),
            swap_bytes: field(&stat, "total_swap"),
            major_faults: field(&stat, "total_pgmajfault").unwrap_or(0),
            oom_kills: field(&oom, "oom_kill").unwrap_or(0),
        })
    }

    fn memory_v2(&self) -> Result<CgroupMemory, ReadError> {
        let (stat_path, stat) = self.text("memory.stat")?;
        let wanted = |key: &'static str| {
            field(&stat, key).ok_or(ReadError::Missing { path: stat_path.clone(), wanted: key })
        };
        let (_, events) = self.text("memory.events")?;
        Ok(CgroupMemory {
            limit_bytes: self.limit_v2()?,
            usage_bytes: self.number("memory.current")?,
            anonymous_bytes: wanted("anon")?,
            file_bytes: wanted("file")?,
            shared_bytes: field(&stat, "shmem").unwrap_or(0),
            kernel_bytes: field(&stat, "kernel"),
            swap_bytes: self.number("memory.swap.current").ok(),
            major_faults: field(&stat, "pgmajfault").unwrap_or(0),
            oom_kills: field(&events, "oom_kill").unwrap_or(0),
        })
    }

    fn limit_v2(&self) -> Result<Option<u64>, ReadError> {
        let mut smallest = None;
        for group in self
            .directory
            .ancestors()
            .take(ANCESTORS_MAX)
            .take_while(|group| group.starts_with(&self.mount))
        {
            let path = group.join("memory.max");
            match read_text(&path) {
                // `max` is not a number: no limit here.
                Ok(text) => {
                    smallest = smallest.into_iter().chain(text.trim().parse::<u64>().ok()).min()
                }
                // The root group has none.
                Err(error) if error.is_gone() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(smallest)
    }

    fn text(&self, name: &str) -> Result<(PathBuf, String), ReadError> {
        let path = self.directory.join(name);
        let text = read_text(&path)?;
        Ok((path, text))
    }

    fn number(&self, name: &'static str) -> Result<u64, ReadError> {
        let (path, text) = self.text(name)?;
        text.trim().parse().map_err(|_| ReadError::Missing { path, wanted: name })
    }
}

/// One line of the mount table that concerns control groups.
#[derive(Debug, PartialEq, Eq)]
struct Mount<'a> {
    /// Which directory of the hierarchy is mounted.
    root: PathBuf,
    /// Where in the file system `root` is mounted.
    point: PathBuf,
    /// `cgroup` or `cgroup2`.
    kind: &'a str,
    /// Options of the hierarchy: its controllers, in version 1.
    options: &'a str,
}

impl<'a> Mount<'a> {
    /// `36 35 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory`: the
    /// fields before the dash vary in number.
    fn parse(line: &'a str) -> Option<Self> {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(3);
        let (root, point) = (unescape(before.next()?), unescape(before.next()?));
        let mut after = after.split(' ');
        let kind = after.next()?;
        let options = after.nth(1).unwrap_or("");
        matches!(kind, "cgroup" | "cgroup2").then_some(Self { root, point, kind, options })
    }

    /// The directory of group `path` under this mount. In a container the group's path and the
    /// mounted part of the hierarchy may not match (the path is seen from outside, or leads out
    /// of the namespace by `..`); what is mounted is then the group itself.
    fn locate(&self, path: &str, exists: &dyn Fn(&Path) -> bool) -> PathBuf {
        let path = Path::new(path);
        let climbs = path.components().any(|part| part == Component::ParentDir);
        let inside = path
            .strip_prefix(&self.root)
            .ok()
            .filter(|_| !climbs)
            .map(|inside| self.point.join(inside));
        inside.filter(|directory| exists(directory)).unwrap_or_else(|| self.point.clone())
    }
}

/// The mount table writes space, tab, newline and backslash as three octal digits behind a
/// backslash.
fn unescape(text: &str) -> PathBuf {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\\') {
        plain.push_str(before);
        match after
            .get(..3)
            .and_then(|digits| u8::from_str_radix(digits, 8).ok())
            .filter(u8::is_ascii)
        {
            Some(byte) => {
                plain.push(char::from(byte));
                rest = after.get(3..).unwrap_or("");
            }
            None => {
                plain.push('\\');
                rest = after;
            }
        }
    }
    plain.push_str(rest);
    PathBuf::from(plain)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const HYBRID_MEMBERSHIP: &str =
        "9:name=systemd:/\n8:pids:/\n4:memory:/jobs/build-7\n1:cpu,cpuacct:/\n0::/jobs/build-7\n";
    const HYBRID_MOUNTS: &str = "23 28 0:21 / /sys rw,nosuid - sysfs sysfs rw\n\
        31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n\
        32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n\
        35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:12 master:3 - cgroup cgroup rw,memory\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
    const PURE_MOUNTS: &str = "30 23 0:27 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

    const STAT_V1: &str = "cache 10063872\nrss 13225984\nrss_huge 0\nshmem 8933376\nhierarchical_memory_limit 536870912\n\
        hierarchical_memsw_limit 9223372036854771712\ntotal_cache 77135544\ntotal_rss 24195072\ntotal_rss_huge 0\ntotal_shmem 8933376\ntotal_swap 12288\ntotal_pgmajfault 17\n";
    const STAT_V2: &str = "anon 31457280\nfile 104857600\nkernel 9437184\nkernel_stack 1048576\nshmem 4096\nfile_mapped 1\nanon_thp 0\n";

    fn everything(_: &Path) -> bool {
        true
    }

    #[test]
    fn a_hybrid_machine_counts_memory_in_version_1_and_pressure_in_version_2() {
        let group = Cgroup::detect(HYBRID_MEMBERSHIP, HYBRID_MOUNTS, &everything).unwrap();
        assert_eq!(group.version(), Version::V1);
        assert_eq!(group.directory(), Path::new("/sys/fs/cgroup/memory/jobs/build-7"));
        assert_eq!(
            group.unified.as_deref(),
            Some(Path::new("/sys/fs/cgroup/unified/jobs/build-7"))
        );
    }

    #[test]
    fn a_pure_version_2_machine_is_found() {
        let group =
            Cgroup::detect("0::/system.slice/thimble.service\n", PURE_MOUNTS, &everything).unwrap();
        assert_eq!(
            (group.version(), group.directory()),
            (Version::V2, Path::new("/sys/fs/cgroup/system.slice/thimble.service"))
        );
    }

    #[test]
    fn the_root_group_of_version_2_is_none() {
        let only_directories = |path: &Path| !path.ends_with("memory.current");
        assert_eq!(Cgroup::detect("0::/\n", PURE_MOUNTS, &only_directories), None);
        assert_eq!(Cgroup::detect("", "", &everything), None);
        assert_eq!(
            Cgroup::detect("garbage\n::\n1:memory\n", "garbage - \n - cgroup\n", &everything),
            None
        );
    }

    #[test]
    fn in_a_container_the_mount_is_the_group() {
        // Version 1: the container's part of the hierarchy is what is mounted.
        let mounts = "36 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        let group = Cgroup::detect("4:memory:/docker/abc\n", mounts, &everything).unwrap();
        assert_eq!(group.directory(), Path::new("/sys/fs/cgroup/memory"));
        let below = Cgroup::detect("4:memory:/docker/abc/inner\n", mounts, &everything).unwrap();
        assert_eq!(below.directory(), Path::new("/sys/fs/cgroup/memory/inner"));
        // Seen from outside, or from another branch of the namespace.
        for path in ["/elsewhere", "/../other", "/docker/abc/../../x"] {
            let group = Cgroup::detect(&format!("4:memory:{path}\n"), mounts, &everything).unwrap();
            assert_eq!(group.directory(), Path::new("/sys/fs/cgroup/memory"), "{path}");
        }
        // The path does not exist under the mount.
        let missing = |path: &Path| path == Path::new("/sys/fs/cgroup/memory");
        let group = Cgroup::detect(HYBRID_MEMBERSHIP, HYBRID_MOUNTS, &missing).unwrap();
        assert_eq!(group.directory(), Path::new("/sys/fs/cgroup/memory"));
    }

    #[test]
    fn mount_points_may_hold_spaces() {
        let mount =
            Mount::parse(r"36 31 0:32 / /odd\040place\134x rw - cgroup cgroup rw,memory").unwrap();
        assert_eq!(mount.point, Path::new(r"/odd place\x"));
        assert_eq!(unescape(r"a\9z\"), Path::new(r"a\9z\"));
    }

    fn group(version: Version, files: &[(&str, &str)]) -> (tempfile::TempDir, Cgroup) {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("parent/child");
        fs::create_dir_all(&directory).unwrap();
        for (name, text) in files {
            fs::write(root.path().join("parent").join(name), text).unwrap();
        }
        let group = Cgroup {
            version,
            unified: Some(directory.clone()),
            directory,
            mount: root.path().to_owned(),
        };
        (root, group)
    }

    #[test]
    fn version_1_is_read() {
        let (_root, group) = group(
            Version::V1,
            &[
                ("child/memory.stat", STAT_V1),
                ("child/memory.usage_in_bytes", "104857600\n"),
                ("child/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"),
                ("child/memory.kmem.usage_in_bytes", "4096\n"),
            ],
        );
        let memory = group.memory().unwrap();
        let expected = CgroupMemory {
            limit_bytes: Some(536_870_912),
            usage_bytes: 104_857_600,
            anonymous_bytes: 24_195_072,
            file_bytes: 77_135_544,
            shared_bytes: 8_933_376,
            kernel_bytes: Some(4096),
            swap_bytes: Some(12_288),
            major_faults: 17,
            oom_kills: 3,
        };
        assert_eq!(memory, expected);
    }

    #[test]
    fn version_1_without_limit_or_kill_counter_is_read() {
        let stat = STAT_V1.replace(
            "hierarchical_memory_limit 536870912",
            "hierarchical_memory_limit 9223372036854771712",
        );
        let files = [
            ("child/memory.stat", &*stat),
            ("child/memory.usage_in_bytes", "1"),
            ("child/memory.oom_control", "under_oom 0\n"),
        ];
        let (_root, group) = group(Version::V1, &files);
        let memory = group.memory().unwrap();
        assert_eq!((memory.limit_bytes, memory.oom_kills, memory.kernel_bytes), (None, 0, None));
    }

    #[test]
    fn version_2_is_read_with_the_smallest_limit_above_it() {
        let pressure = "some avg10=1.00 avg60=0.00 avg300=0.00 total=5\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";
        let (_root, group) = group(
            Version::V2,
            &[
                ("memory.max", "268435456\n"),
                ("child/memory.max", "max\n"),
                ("child/memory.current", "145752064\n"),
                ("child/memory.stat", STAT_V2),
                (
                    "child/memory.events",
                    "low 0\nhigh 0\nmax 7\noom 1\noom_kill 1\noom_group_kill 0\n",
                ),
                ("child/memory.pressure", pressure),
            ],
        );
        let expected = CgroupMemory {
            limit_bytes: Some(268_435_456),
            usage_bytes: 145_752_064,
            anonymous_bytes: 31_457_280,
            file_bytes: 104_857_600,
            shared_bytes: 4096,
            kernel_bytes: Some(9_437_184),
            swap_bytes: None,
            major_faults: 0,
            oom_kills: 1,
        };
        assert_eq!(group.memory().unwrap(), expected);
        assert_eq!(group.pressure().unwrap().some.avg10_hundredths, 100);
        assert!(group.tells_pressure());
    }

    #[test]
    fn processes_of_a_group_are_those_of_the_groups_below_too() {
        let (_root, group) = group(
            Version::V2,
            &[
                ("child/cgroup.procs", "30\n4\n"),
                ("child/cpu.stat", "usage_usec 2500000\nuser_usec 1\n"),
                ("child/memory.peak", "77\n"),
            ],
        );
        let below = group.directory().join("a/b");
        fs::create_dir_all(&below).unwrap();
        fs::write(below.join("cgroup.procs"), "7\nnonsense\n").unwrap();
        assert_eq!(group.processes().unwrap(), [Pid(4), Pid(7), Pid(30)]);
        assert_eq!(group.cpu_time(), Some(Duration::from_millis(2500)));
        assert_eq!(group.peak_bytes(), Some(77));
        fs::remove_file(group.directory().join("cgroup.procs")).unwrap();
        assert!(
            group.processes().unwrap_err().is_gone(),
            "a missing group is distinguished from an empty one"
        );
    }

    #[test]
    fn a_file_that_does_not_say_it_is_an_error_that_names_the_field() {
        let (_root, group) = group(
            Version::V2,
            &[
                ("child/memory.stat", "anon 1\n"),
                ("child/memory.events", ""),
                ("child/memory.current", "1"),
            ],
        );
        let text = group.memory().unwrap_err().to_string();
        assert!(text.contains("`file`") && text.contains("memory.stat"), "{text}");
    }

    #[test]
    fn this_machine_can_be_read_whatever_it_runs() {
        if let Some(group) = Cgroup::own().unwrap() {
            assert!(group.memory().unwrap().usage_bytes > 0);
            let _ = group.pressure();
        }
    }
}
