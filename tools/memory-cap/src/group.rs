//! A memory-capped process group: created, entered, read, and removed with its remaining processes.
//!
//! Three kinds, in the order in which they are tried:
//!
//! * **v2**: a version 2 control group, below or next to that of the caller, where its memory
//!   controller is available.
//! * **v1**: a version 1 control group below that of the caller, and a version 2 group for the same
//!   processes, without limits, for its pressure and CPU time.
//! * **systemd**: a scope, made by `systemd-run`, where the caller may not make groups but a
//!   service manager does.
//!
//! A kind counts as available only when a process of ours has run in it: permission to make a group
//! does not imply permission to enter it.
//!
//! The name of a group identifies its owner (namespace of process ids, process id, start time), so
//! that the next run can distinguish groups of killed runs from groups of active runs.

use std::{
    ffi::OsString,
    fmt, fs,
    io::{self, Write},
    os::unix::{fs::MetadataExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use accounting::{
    cgroup::{Cgroup, GroupPath, GroupPaths, Version},
    process::{self, Pid},
};
use clap::ValueEnum;

use super::signals;

/// Beginning of every group's name.
const NAME: &str = "thimble-cap";
/// How long what is left in a group may take to die after SIGKILL.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(10);
/// How long systemd may take to put a process into its scope.
const SCOPE_TIMEOUT: Duration = Duration::from_secs(20);
/// Groups within a group that are removed with it.
const DEPTH_MAX: usize = 16;

/// A kind of group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// A control group of version 2.
    V2,
    /// A control group of version 1.
    V1,
    /// A scope of systemd.
    Systemd,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::V2 => "v2",
            Kind::V1 => "v1",
            Kind::Systemd => "systemd",
        })
    }
}

/// Limits of a group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caps {
    pub(crate) memory_bytes: u64,
    pub(crate) swap_bytes: u64,
}

/// Why no group could be made.
#[derive(Debug, thiserror::Error)]
#[error("no memory-capped process group can be made here.{}\n{}", list(.0), advice())]
pub(crate) struct Impossible(Vec<(Kind, String)>);

fn list(reasons: &[(Kind, String)]) -> String {
    reasons.iter().map(|(kind, reason)| format!("\n  {kind}: {reason}")).collect()
}

fn advice() -> String {
    let mut advice = String::from("What helps: ");
    if rustix::process::geteuid().is_root() {
        advice.push_str(
            "in a container, make its control groups writable (docker run --privileged, or a \
             mount of /sys/fs/cgroup that is not read-only).",
        );
    } else {
        advice.push_str(
            "run it as root (sudo); or log in on a machine with systemd, whose user manager makes \
             scopes (systemctl --user status).",
        );
    }
    advice
}

/// A group. Dropped, it is removed as [`Group::remove`] does it.
pub(crate) struct Group {
    kind: Kind,
    caps: Caps,
    /// Directories that are ours, the one that rules memory first.
    directories: Vec<PathBuf>,
    /// Its control group for readings; for a scope, known once the command is in it.
    readings: Option<Cgroup>,
    /// Name of the scope.
    unit: String,
    removed: bool,
}

impl Group {
    /// Makes a group of the kind asked for, or the first that is possible.
    pub(crate) fn make(wanted: Option<Kind>, caps: Caps) -> Result<Self, Impossible> {
        let kinds =
            wanted.map_or_else(|| vec![Kind::V2, Kind::V1, Kind::Systemd], |kind| vec![kind]);
        let mut reasons = Vec::new();
        for kind in kinds {
            let made = match kind {
                Kind::V2 => Self::make_v2(caps),
                Kind::V1 => Self::make_v1(caps),
                Kind::Systemd => Self::make_scope(caps),
            };
            match made.and_then(|group| group.probe().map(|()| group)) {
                Ok(group) => return Ok(group),
                Err(reason) => reasons.push((kind, reason)),
            }
        }
        Err(Impossible(reasons))
    }

    fn new(kind: Kind, caps: Caps) -> Self {
        Self { kind, caps, directories: vec![], readings: None, unit: own_name(), removed: false }
    }

    fn make_v2(caps: Caps) -> Result<Self, String> {
        let own = GroupPaths::for_pid(Pid::own())
            .map_err(|error| error.to_string())?
            .unified
            .ok_or("no version 2 hierarchy is mounted")?;
        let has = |directory: &Path, file: &str| {
            fs::read_to_string(directory.join(file))
                .is_ok_and(|text| text.split_whitespace().any(|name| name == "memory"))
        };
        if !has(&own.directory, "cgroup.controllers") {
            let reason = if has(&own.mount, "cgroup.controllers") {
                format!("the memory controller is not handed down to {}", own.directory.display())
            } else {
                format!("the hierarchy at {} is without the memory controller", own.mount.display())
            };
            return Err(reason);
        }
        // Below our own group, if that can delegate the controller: a group with processes cannot,
        // except the root. Else next to it, in its parent.
        let mut parent = own.directory.clone();
        if !has(&parent, "cgroup.subtree_control")
            && fs::write(parent.join("cgroup.subtree_control"), "+memory").is_err()
        {
            parent = match own.directory.parent() {
                Some(above)
                    if own.directory != own.mount && has(above, "cgroup.subtree_control") =>
                {
                    above.to_owned()
                }
                _ => {
                    return Err(format!(
                        "{} has processes and so cannot hand the memory controller down, and \
                         there is no group above it in sight",
                        own.directory.display()
                    ));
                }
            };
        }
        remove_stale(&parent);
        let mut group = Self::new(Kind::V2, caps);
        let directory = group.add(&parent)?;
        write(&directory, "memory.max", caps.memory_bytes)?;
        // Not there when the kernel counts no swap.
        if directory.join("memory.swap.max").exists() {
            write(&directory, "memory.swap.max", caps.swap_bytes)?;
        }
        group.readings =
            Some(Cgroup::at(Version::V2, GroupPath { directory, mount: own.mount }, None));
        Ok(group)
    }

    fn make_v1(caps: Caps) -> Result<Self, String> {
        let places = GroupPaths::for_pid(Pid::own()).map_err(|error| error.to_string())?;
        let own = places
            .memory_v1
            .ok_or("no version 1 hierarchy with the memory controller is mounted")?;
        remove_stale(&own.directory);
        let mut group = Self::new(Kind::V1, caps);
        let directory = group.add(&own.directory)?;
        write(&directory, "memory.limit_in_bytes", caps.memory_bytes)?;
        // Memory and swap together; not there when the kernel counts no swap.
        if directory.join("memory.memsw.limit_in_bytes").exists() {
            write(
                &directory,
                "memory.memsw.limit_in_bytes",
                caps.memory_bytes.saturating_add(caps.swap_bytes),
            )?;
        } else if caps.swap_bytes == 0 {
            write(&directory, "memory.swappiness", 0)?;
        }
        // For pressure and CPU time only: without it those of the machine are reported, so a
        // failure is not fatal.
        let unified = places.unified.and_then(|place| {
            remove_stale(&place.directory);
            group.add(&place.directory).ok()
        });
        group.readings =
            Some(Cgroup::at(Version::V1, GroupPath { directory, mount: own.mount }, unified));
        Ok(group)
    }

    fn make_scope(caps: Caps) -> Result<Self, String> {
        find_program("systemd-run").ok_or("systemd-run is not installed")?;
        Ok(Self::new(Kind::Systemd, caps))
    }

    /// Makes our directory below `parent`.
    fn add(&mut self, parent: &Path) -> Result<PathBuf, String> {
        let directory = parent.join(&self.unit);
        fs::create_dir(&directory)
            .map_err(|error| format!("cannot make a group below {}: {error}", parent.display()))?;
        self.directories.push(directory.clone());
        Ok(directory)
    }

    /// Runs a process of ours in it that does nothing.
    fn probe(&self) -> Result<(), String> {
        let mut command = match self.kind {
            Kind::V1 | Kind::V2 => Command::new("/proc/self/exe"),
            Kind::Systemd => self.scope_command(&format!("{}-probe", self.unit), "true".into()),
        };
        if self.kind != Kind::Systemd {
            command.arg("--version");
            self.enter_before_exec(&mut command).map_err(|error| error.to_string())?;
        }
        let output = command
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("a process cannot be put into it: {error}"))?;
        if output.status.success() {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&output.stderr);
        let text = text
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty())
            .collect::<Vec<_>>()
            .join(" ");
        Err(format!(
            "a process put into it ended with {}: {}",
            output.status,
            text.chars().take(300).collect::<String>()
        ))
    }

    fn scope_command(&self, unit: &str, program: OsString) -> Command {
        let mut command = Command::new("systemd-run");
        if !rustix::process::geteuid().is_root() {
            command.arg("--user");
        }
        command.args(["--scope", "--quiet", "--collect", "--unit"]).arg(format!("{unit}.scope"));
        for property in [
            format!("MemoryMax={}", self.caps.memory_bytes),
            format!("MemorySwapMax={}", self.caps.swap_bytes),
            "MemoryAccounting=yes".to_owned(),
        ] {
            command.args(["-p", &property]);
        }
        command.arg("--").arg(program);
        command
    }

    /// The command, so that it runs in the group from its first instruction on.
    pub(crate) fn command(&self, argv: &[OsString]) -> io::Result<Command> {
        let (program, arguments) = argv.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = match self.kind {
            Kind::V1 | Kind::V2 => Command::new(program),
            Kind::Systemd => {
                // systemd-run would report a missing program with a text of its own.
                let found = find_program(program).ok_or(io::ErrorKind::NotFound)?;
                self.scope_command(&self.unit, found.into())
            }
        };
        command.args(arguments);
        self.enter_before_exec(&mut command)?;
        Ok(command)
    }

    fn enter_before_exec(&self, command: &mut Command) -> io::Result<()> {
        let mut doors = Vec::new();
        for directory in &self.directories {
            doors.push(fs::OpenOptions::new().write(true).open(directory.join("cgroup.procs"))?);
        }
        // SAFETY: between fork and exec only system calls are made (write, sigprocmask), nothing is
        // allocated and no lock is taken; the files were opened before and live in the
        // closure.
        unsafe {
            command.pre_exec(move || {
                for mut door in &doors {
                    // 0 is the process that writes.
                    door.write_all(b"0")?;
                }
                signals::unblock_all()
            });
        }
        Ok(())
    }

    /// To be called once the command runs: a scope is found by the process in it.
    pub(crate) fn entered(&mut self, pid: Pid) -> anyhow::Result<()> {
        let deadline = Instant::now() + SCOPE_TIMEOUT;
        while self.readings.is_none() {
            let group = Cgroup::for_pid(pid)?;
            if let Some(group) =
                group.filter(|group| group.directory().ends_with(format!("{}.scope", self.unit)))
            {
                self.readings = Some(group);
            } else if !PathBuf::from(format!("/proc/{pid}/exe")).exists() {
                anyhow::bail!(
                    "systemd-run ended before the command was in its scope; its message stands \
                     above"
                );
            } else if Instant::now() > deadline {
                anyhow::bail!(
                    "systemd-run did not put the command into its scope within {} s",
                    SCOPE_TIMEOUT.as_secs()
                );
            } else {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        Ok(())
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// Its readings; `None` until the command is in it.
    pub(crate) fn readings(&self) -> Option<&Cgroup> {
        self.readings.as_ref()
    }

    /// Kills every process in it.
    pub(crate) fn kill(&self) -> usize {
        self.readings.as_ref().map_or(0, kill_all)
    }

    /// Kills the remaining processes and removes it; returns the number of those processes.
    pub(crate) fn remove(mut self) -> Result<usize, String> {
        self.removed = true;
        let left = self.kill();
        match (&self.readings, self.kind) {
            // systemd removes a scope when it is empty.
            (Some(readings), Kind::Systemd) => empty(readings)?,
            _ => remove_all(&self.directories)?,
        }
        Ok(left)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.removed {
            self.kill();
            // There is no caller left to report to.
            let _ = remove_all(&self.directories);
        }
    }
}

/// Waits until nothing is left in the group.
fn empty(group: &Cgroup) -> Result<(), String> {
    let deadline = Instant::now() + REMOVAL_TIMEOUT;
    loop {
        // A group that has gone has no processes.
        let left = group.processes().unwrap_or_default();
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!(
                "{} processes in {} did not die within {} s",
                left.len(),
                group.directory().display(),
                REMOVAL_TIMEOUT.as_secs()
            ));
        }
        kill_all(group);
        reap();
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn remove_all(directories: &[PathBuf]) -> Result<(), String> {
    let deadline = Instant::now() + REMOVAL_TIMEOUT;
    for directory in directories {
        let place = GroupPath { directory: directory.clone(), mount: directory.clone() };
        empty(&Cgroup::at(Version::V2, place, None))?;
        while let Err(error) = remove_tree(directory, DEPTH_MAX) {
            // A process that has just died keeps its group busy for a moment.
            if Instant::now() > deadline {
                return Err(format!("cannot remove {}: {error}", directory.display()));
            }
            reap();
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    Ok(())
}

/// A group's directory cannot be emptied file by file: only the groups in it are removed, the
/// innermost first.
fn remove_tree(directory: &Path, depth: usize) -> io::Result<()> {
    if depth > 0
        && let Ok(entries) = fs::read_dir(directory)
    {
        for entry in
            entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        {
            remove_tree(&entry.path(), depth - 1)?;
        }
    }
    cli::if_there(fs::remove_dir(directory)).map(drop)
}

fn kill_all(group: &Cgroup) -> usize {
    let pids = group.processes().unwrap_or_default();
    pids.iter().for_each(|pid| cli::kill(pid.0));
    pids.len()
}

/// Reaps children without another owner: orphans of the group that were reparented to us.
fn reap() {
    while let Ok(Some(_)) = rustix::process::wait(rustix::process::WaitOptions::NOHANG) {}
}

fn pid_namespace() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino())
}

fn own_name() -> String {
    let started = process::started_ticks(Pid::own()).unwrap_or(0);
    format!("{NAME}-{}-{}-{started}", pid_namespace(), Pid::own())
}

/// Whether a group of this name belongs to a run that is over. This is only known for our own
/// namespace of process ids.
fn is_stale(name: &str) -> bool {
    let mut numbers = match name.strip_prefix(NAME).and_then(|rest| rest.strip_prefix('-')) {
        Some(rest) => rest.split('-').map(str::parse::<u64>),
        None => return false,
    };
    let (Some(Ok(namespace)), Some(Ok(pid)), Some(Ok(started)), None) =
        (numbers.next(), numbers.next(), numbers.next(), numbers.next())
    else {
        return false;
    };
    let Ok(pid) = u32::try_from(pid) else { return false };
    namespace == pid_namespace()
        && match process::started_ticks(Pid(pid)) {
            Ok(ticks) => ticks != started,
            Err(error) => error.is_gone(),
        }
}

/// Removes groups below `parent` whose run was killed, with what still runs in them.
fn remove_stale(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_name().to_str().is_some_and(is_stale))
    {
        let directory = entry.path();
        match remove_all(std::slice::from_ref(&directory)) {
            Ok(()) => eprintln!(
                "thimble-lab cap: removed {}, left by an earlier run that was killed",
                directory.display()
            ),
            Err(error) => eprintln!("thimble-lab cap: {error}"),
        }
    }
}

/// Where the shell would find it.
fn find_program(name: impl AsRef<Path>) -> Option<PathBuf> {
    let name = name.as_ref();
    if name.components().count() > 1 {
        return name.exists().then(|| name.to_owned());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

fn write(directory: &Path, file: &str, value: u64) -> Result<(), String> {
    let path = directory.join(file);
    fs::write(&path, value.to_string())
        .map_err(|error| format!("cannot set {} to {value}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_groups_of_runs_that_are_over_are_stale() {
        assert!(!is_stale(&own_name()), "we go on");
        let namespace = pid_namespace();
        let own = Pid::own();
        assert!(is_stale(&format!("{NAME}-{namespace}-{own}-1")), "an earlier process had our id");
        assert!(is_stale(&format!("{NAME}-{namespace}-4194999-77")), "no such process");
        assert!(!is_stale(&format!("{NAME}-{}-4194999-77", namespace + 1)), "of another namespace");
        for name in
            ["", NAME, "user.slice", "thimble-cap-1-2", "thimble-cap-1-2-3-4", "thimble-cap-1-x-3"]
        {
            assert!(!is_stale(name), "{name}");
        }
    }

    #[test]
    fn a_refusal_gives_every_reason_and_what_helps() {
        let reasons = vec![
            (Kind::V2, "no hierarchy".to_owned()),
            (Kind::Systemd, "not installed".to_owned()),
        ];
        let text = Impossible(reasons).to_string();
        for part in ["\n  v2: no hierarchy", "\n  systemd: not installed", "What helps: "] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn programs_are_found_as_a_shell_finds_them() {
        assert!(find_program("sh").is_some_and(|path| path.is_absolute()));
        assert_eq!(find_program("/bin/sh"), Some(PathBuf::from("/bin/sh")));
        assert_eq!(find_program("no-such-program-here"), None);
        assert_eq!(find_program("./no-such-program-here"), None);
    }
}
