//! Memory and CPU time of processes, as the kernel counts them.
//!
//! Anonymous memory is what matters: the kernel cannot take it back without swap. File memory is
//! shared with the page cache and goes away under pressure.

use std::{fmt, path::PathBuf, time::Duration};

use crate::{
    cgroup::PROCESSES_MAX,
    read::{ReadError, field_kib, read_text},
};

/// Longest description of a process.
pub const ROLE_CHARS_MAX: usize = 48;

/// A process id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pid(pub u32);

impl Pid {
    /// The process that asks.
    pub fn own() -> Self {
        Self(std::process::id())
    }

    pub(crate) fn file(self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{name}", self.0))
    }
}

impl fmt::Display for Pid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Resident memory of one process, or the sum over several, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessMemory {
    /// Private memory that only swap could take back: heaps, stacks, written pages of private file
    /// mappings.
    pub anonymous_bytes: u64,
    /// File pages mapped. Pages shared by several processes count in each of them.
    pub file_bytes: u64,
    /// Shared anonymous memory (memfd, tmpfs, System V).
    pub shared_bytes: u64,
    /// Private memory in swap (`VmSwap`); 0 where the kernel does not report it. Not resident.
    pub swap_bytes: u64,
}

impl ProcessMemory {
    /// All that is resident.
    pub fn resident_bytes(&self) -> u64 {
        self.anonymous_bytes.saturating_add(self.file_bytes).saturating_add(self.shared_bytes)
    }

    /// The sum of both.
    pub fn plus(self, other: Self) -> Self {
        Self {
            anonymous_bytes: self.anonymous_bytes.saturating_add(other.anonymous_bytes),
            file_bytes: self.file_bytes.saturating_add(other.file_bytes),
            shared_bytes: self.shared_bytes.saturating_add(other.shared_bytes),
            swap_bytes: self.swap_bytes.saturating_add(other.swap_bytes),
        }
    }
}

/// Resident memory of one process.
pub fn memory(pid: Pid) -> Result<ProcessMemory, ReadError> {
    let path = pid.file("status");
    let text = read_text(&path)?;
    // A process that ended but was not waited for has a status without memory lines: it holds none.
    if is_dead(&text) {
        return Ok(ProcessMemory::default());
    }
    parse_status(&text).ok_or(ReadError::Missing { path, wanted: "RssAnon" })
}

/// Memory that the loader took before the program began: constants of its file that hold addresses.
/// They are written once, with the addresses of this process, and read-only from then on, so they
/// are as many in every process of the same program. Needs the right to trace the process.
pub fn relocated_bytes(pid: Pid) -> Result<u64, ReadError> {
    let path = pid.file("exe");
    let program = std::fs::read_link(&path).map_err(|source| ReadError::Io { path, source })?;
    let text = read_text(&pid.file("smaps"))?;
    Ok(parse_relocated(&text, &program.to_string_lossy()))
}

/// State of one process, as its line of `/proc/<pid>/stat` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// The process that started it, or the one that took it over.
    pub parent: Pid,
    /// Whether it has ended, and was not waited for.
    pub is_dead: bool,
    /// User and system CPU time in clock ticks, its ended threads included.
    pub ticks: u64,
    /// The part of `ticks` in user mode.
    pub user_ticks: u64,
    /// User CPU time of its children that ended and were waited for, and of theirs.
    pub ended_user_ticks: u64,
    /// The same in system mode.
    pub ended_system_ticks: u64,
    /// Number of its threads.
    pub threads: u64,
    /// When it was started, in clock ticks since boot: distinguishes it from a later process with
    /// the same id.
    pub started_ticks: u64,
}

/// State of one process.
pub fn stat(pid: Pid) -> Result<Stat, ReadError> {
    let path = pid.file("stat");
    parse_stat(&read_text(&path)?).ok_or(ReadError::Missing { path, wanted: "starttime" })
}

/// User and system CPU time of one process, its ended threads included.
pub fn cpu_time(pid: Pid) -> Result<Duration, ReadError> {
    Ok(ticks_to_duration(stat(pid)?.ticks))
}

/// When the process was started: [`Stat::started_ticks`].
pub fn started_ticks(pid: Pid) -> Result<u64, ReadError> {
    Ok(stat(pid)?.started_ticks)
}

/// A process and everything below it, at most [`PROCESSES_MAX`] of them, each parent before its
/// children. Processes that start or end meanwhile may be missing.
pub fn descendants(root: Pid) -> Vec<Pid> {
    let mut found = vec![root];
    let mut next = 0;
    while let Some(pid) = found.get(next).copied() {
        next += 1;
        // Any thread of a process may have started children.
        let tasks = std::fs::read_dir(pid.file("task")).into_iter().flatten().flatten();
        for task in tasks {
            let children = read_text(&task.path().join("children")).unwrap_or_default();
            let room = PROCESSES_MAX.saturating_sub(found.len());
            let children = children.split_ascii_whitespace().filter_map(|pid| pid.parse().ok());
            found.extend(children.map(Pid).take(room));
        }
    }
    found
}

/// Description of a process for display: the name of its program, and its first argument when that
/// is a word (a subcommand, as in `thimble run`). At most [`ROLE_CHARS_MAX`] characters.
pub fn role(pid: Pid) -> Result<String, ReadError> {
    let command = read_text(&pid.file("cmdline"))?;
    // A kernel thread, or a process that ended but was not waited for, has no command line.
    if command.is_empty() {
        return Ok(read_text(&pid.file("comm"))?.trim().chars().take(ROLE_CHARS_MAX).collect());
    }
    Ok(parse_role(&command))
}

/// Sum of [`cpu_time`] over processes. Those that have gone are left out; any other failure is
/// returned.
pub fn cpu_time_of(pids: impl IntoIterator<Item = Pid>) -> Result<Duration, ReadError> {
    let mut sum = Duration::ZERO;
    for pid in pids {
        match cpu_time(pid) {
            Ok(time) => sum = sum.saturating_add(time),
            Err(error) if error.is_gone() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(sum)
}

/// From the arguments, each ended by a zero byte.
fn parse_role(command: &str) -> String {
    let mut words = command.split('\0');
    let program = words.next().unwrap_or("").rsplit('/').next().unwrap_or("");
    let word = |word: &&str| {
        word.starts_with(|c: char| c.is_ascii_alphabetic())
            && word.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    };
    let role = match words.next().filter(word) {
        Some(subcommand) => format!("{program} {subcommand}"),
        None => program.to_owned(),
    };
    role.chars().take(ROLE_CHARS_MAX).collect()
}

fn is_dead(status: &str) -> bool {
    status.lines().any(|line| {
        line.strip_prefix("State:").is_some_and(|state| state.trim_start().starts_with(['Z', 'X']))
    })
}

fn parse_status(text: &str) -> Option<ProcessMemory> {
    Some(ProcessMemory {
        anonymous_bytes: field_kib(text, "RssAnon")?,
        file_bytes: field_kib(text, "RssFile")?,
        shared_bytes: field_kib(text, "RssShmem")?,
        swap_bytes: field_kib(text, "VmSwap").unwrap_or(0),
    })
}

/// Anonymous pages of mappings of `program` that can be read and nothing else.
fn parse_relocated(smaps: &str, program: &str) -> u64 {
    let mut within = false;
    let mut bytes = 0_u64;
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        match (words.next(), words.next()) {
            (Some("Anonymous:"), _) if within => {
                bytes = bytes.saturating_add(field_kib(line, "Anonymous").unwrap_or(0));
            }
            // A mapping begins: addresses, rights, offset, device, inode, and the file, whose name
            // may hold spaces.
            (Some(range), Some(rights)) if range.contains('-') => {
                within = rights == "r--p"
                    && line.strip_suffix(program).is_some_and(|rest| rest.ends_with(' '));
            }
            _ => {}
        }
    }
    bytes
}

/// The second field, the command, may hold spaces and parentheses: the last `)` ends it. The third
/// is the first one here.
fn parse_stat(text: &str) -> Option<Stat> {
    let (_, after_command) = text.rsplit_once(')')?;
    let fields: Vec<&str> = after_command.split_ascii_whitespace().take(20).collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some(Stat {
        parent: Pid(u32::try_from(number(1)?).ok()?),
        is_dead: matches!(*fields.first()?, "Z" | "X"),
        ticks: number(11)?.checked_add(number(12)?)?,
        user_ticks: number(11)?,
        ended_user_ticks: number(13)?,
        ended_system_ticks: number(14)?,
        threads: number(17)?,
        started_ticks: number(19)?,
    })
}

pub(crate) fn ticks_to_duration(ticks: u64) -> Duration {
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    Duration::from_secs(ticks / per_second)
        + Duration::from_nanos(ticks % per_second * 1_000_000_000 / per_second)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Name:\tthimble\nUmask:\t0022\nState:\tS (sleeping)\nTgid:\t19307\nVmPeak:\t  213060 kB\nVmRSS:\t    1736 kB\n\
        RssAnon:\t     112 kB\nRssFile:\t    1624 kB\nRssShmem:\t       4 kB\nVmData:\t     360 kB\nVmSwap:\t       8 kB\nThreads:\t1\n";

    #[test]
    fn a_status_is_read() {
        let memory = parse_status(STATUS).unwrap();
        assert_eq!(
            memory,
            ProcessMemory {
                anonymous_bytes: 112 << 10,
                file_bytes: 1624 << 10,
                shared_bytes: 4 << 10,
                swap_bytes: 8 << 10
            }
        );
        assert_eq!(memory.resident_bytes(), 1740 << 10);
    }

    #[test]
    fn a_status_without_memory_is_a_dead_process() {
        let dead = "Name:\tthimble\nState:\tZ (zombie)\nTgid:\t7\n";
        assert!(is_dead(dead) && !is_dead(STATUS));
        assert_eq!(parse_status(dead), None);
    }

    #[test]
    fn constants_that_hold_addresses_are_anonymous_and_read_only() {
        let smaps = "55d0-55d1 r--p 00000000 08:01 7   /opt/my node\nSize:  4 kB\nAnonymous:  0 kB\n\
            55d1-55d2 r-xp 00001000 08:01 7   /opt/my node\nAnonymous:  4 kB\n\
            55d2-55d3 r--p 00002000 08:01 7   /opt/my node\nAnonymous:  1104 kB\nAnonHugePages:  2048 kB\n\
            55d3-55d4 rw-p 00003000 08:01 7   /opt/my node\nAnonymous:  28 kB\n\
            7f00-7f01 r--p 00000000 08:01 8   /lib/opt/my node\nAnonymous:  16 kB\n\
            7f01-7f02 r--p 00000000 00:00 0\nAnonymous:  32 kB\n";
        assert_eq!(parse_relocated(smaps, "/opt/my node"), 1104 << 10);
        assert_eq!(parse_relocated("", "/opt/my node"), 0);
        // Of this very program there are some, and not many.
        let own = relocated_bytes(Pid::own()).unwrap();
        assert!((1..16 << 20).contains(&own), "{own}");
    }

    #[test]
    fn a_stat_is_read_behind_any_command_name() {
        let text = "19307 (a) R (b c) S 1 19307 19307 0 -1 4194304 1 2 3 4 250 50 7 8 20 0 9 0 \
                    100 3133440 419";
        let stat = parse_stat(text).unwrap();
        assert_eq!((stat.parent, stat.ticks), (Pid(1), 300));
        assert_eq!((stat.threads, stat.started_ticks), (9, 100));
        let ended = (stat.ended_user_ticks, stat.ended_system_ticks);
        assert_eq!((stat.user_ticks, ended), (250, (7, 8)));
        assert!(!stat.is_dead && parse_stat(&text.replace(") S ", ") Z ")).unwrap().is_dead);
        assert_eq!(parse_stat("1 (x) S 1 2"), None);
        assert_eq!(parse_stat(""), None);
    }

    #[test]
    fn a_role_is_the_program_and_its_subcommand() {
        for (command, role) in [
            ("/usr/bin/thimble\0run\0--memory\x00512MiB\0", "thimble run"),
            ("thimble\0sandbox-worker\x00123\0", "thimble sandbox-worker"),
            ("sh\0-c\0true\0", "sh"),
            ("sleep\x005\0", "sleep"),
            ("python3\0/opt/a b.py\0", "python3"),
            ("nginx: master process", "nginx: master process"),
            ("\0", ""),
        ] {
            assert_eq!(parse_role(command), role);
        }
        assert_eq!(parse_role(&"x".repeat(500)).len(), ROLE_CHARS_MAX);
    }

    #[test]
    fn the_own_process_can_be_read() {
        assert!(!role(Pid::own()).unwrap().is_empty());
        assert!(started_ticks(Pid::own()).unwrap() > 0);
        let own = memory(Pid::own()).unwrap();
        assert!(own.anonymous_bytes > 0 && own.file_bytes > 0);
        cpu_time(Pid::own()).unwrap();
    }

    #[test]
    fn a_sum_survives_processes_that_end() {
        let gone = Pid(u32::MAX);
        assert!(memory(gone).unwrap_err().is_gone());
        assert_eq!(cpu_time_of([gone]).unwrap(), Duration::ZERO);
        let before = cpu_time(Pid::own()).unwrap();
        assert!(cpu_time_of([Pid::own(), gone]).unwrap() >= before);
    }
}
