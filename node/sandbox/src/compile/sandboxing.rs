//! How the compile child confines itself: resource limits, no new rights, and a system call filter
//! that leaves memory, the descriptors it has, and its end.

use std::error::Error;
use std::fs::File;
use std::io::{self, Read};

use seccompiler::{SeccompAction, SeccompCmpOp};

use super::Caps;
use crate::system_calls;

/// Private address space for each byte of anonymous memory.
const ADDRESS_SPACE: u64 = 6;
/// How far the child steps back behind the node for the processor.
const NICE: libc::c_int = 5;

/// The kernel's choice when memory runs out should be this child and not the node.
const OOM_SCORE_ADJ: &[u8] = b"1000";

/// Sets limits and gives up rights.
pub(super) fn limit(caps: &Caps) -> io::Result<()> {
    // Best effort: without it the kernel may choose another process.
    let _ = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJ);
    // Address space: the allocator's tables are large and mostly empty.
    let address_space = caps.anonymous_bytes.saturating_mul(ADDRESS_SPACE);
    set_limit(libc::RLIMIT_DATA, address_space, address_space)?;
    // The soft limit ends the process with a signal of its own; the hard one would be
    // indistinguishable from a kill.
    set_limit(libc::RLIMIT_CPU, caps.seconds, caps.seconds.saturating_add(1))?;
    set_limit(libc::RLIMIT_FSIZE, caps.artefact_bytes, caps.artefact_bytes)?;
    set_limit(libc::RLIMIT_CORE, 0, 0)?;
    // SAFETY: plain system calls without pointers.
    unsafe {
        // Nice is best effort too: it can only be refused where it is already lower.
        libc::setpriority(libc::PRIO_PROCESS, 0, NICE);
        check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))?;
        check(libc::prctl(libc::PR_SET_DUMPABLE, 0))?;
        check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
    }
    Ok(())
}

fn set_limit(resource: libc::__rlimit_resource_t, soft: u64, hard: u64) -> io::Result<()> {
    let limit = libc::rlimit { rlim_cur: soft, rlim_max: hard };
    // SAFETY: `limit` lives through the call.
    check(unsafe { libc::setrlimit(resource, &limit) })
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Reads this process's own consumption. Opened before the filter, which allows no opening.
pub(super) struct Meter(File);

impl Meter {
    /// Opens the kernel's account of this process.
    pub(super) fn open() -> io::Result<Self> {
        Ok(Self(File::open("/proc/self/status")?))
    }

    /// CPU milliseconds, most resident bytes so far, and anonymous bytes now. (`getrusage` would
    /// count what the parent had resident before it executed this program.)
    pub(super) fn read(mut self) -> io::Result<(u64, u64, u64)> {
        // SAFETY: an all-zero `rusage` is a valid value, and it lives through the call.
        let usage = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            libc::getrusage(libc::RUSAGE_SELF, &mut usage);
            usage
        };
        let millis = |time: libc::timeval| {
            time.tv_sec
                .unsigned_abs()
                .saturating_mul(1_000)
                .saturating_add(time.tv_usec.unsigned_abs() / 1_000)
        };
        let mut status = String::new();
        self.0.read_to_string(&mut status)?;
        let bytes = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok());
            kibibytes.unwrap_or(0_u64).saturating_mul(1_024)
        };
        Ok((
            millis(usage.ru_utime).saturating_add(millis(usage.ru_stime)),
            bytes("VmHWM:"),
            bytes("RssAnon:"),
        ))
    }
}

/// Installs the filter on all threads of the process (an allocator may have one of its own). A call
/// outside the list fails with `EPERM`; memory can never become executable, because the child
/// generates code but must not run any.
pub(super) fn filter() -> Result<(), Box<dyn Error + Send + Sync>> {
    let anything = [
        libc::SYS_read,
        libc::SYS_write,
        libc::SYS_lseek,
        libc::SYS_close,
        libc::SYS_fstat,
        libc::SYS_munmap,
        libc::SYS_mremap,
        libc::SYS_madvise,
        libc::SYS_brk,
        libc::SYS_futex,
        libc::SYS_sched_yield,
        libc::SYS_sched_getaffinity,
        libc::SYS_clock_gettime,
        libc::SYS_clock_nanosleep,
        libc::SYS_nanosleep,
        libc::SYS_getrandom,
        libc::SYS_getrusage,
        libc::SYS_getpid,
        libc::SYS_gettid,
        libc::SYS_sigaltstack,
        libc::SYS_rt_sigaction,
        libc::SYS_rt_sigprocmask,
        libc::SYS_rt_sigreturn,
        libc::SYS_restart_syscall,
        // A panic or a failed allocation ends the process by a signal to itself.
        libc::SYS_tgkill,
        libc::SYS_exit,
        libc::SYS_exit_group,
    ];
    let never_executable = [libc::SYS_mmap, libc::SYS_mprotect]
        .map(|call| (call, 2_u8, SeccompCmpOp::MaskedEq(libc::PROT_EXEC as u64), 0_u64));
    let refuse = SeccompAction::Errno(libc::EPERM as u32);
    system_calls::install(&anything, &never_executable, refuse)
}

/// Confines this process as a compile child is, then attempts what one must not be able to do.
/// Returns each attempt with the error number it ended with, 0 for one that succeeded.
pub(super) fn probe(caps: &Caps) -> Result<Vec<(&'static str, i32)>, Box<dyn Error + Send + Sync>> {
    limit(caps)?;
    filter()?;
    let path = c"/etc/passwd".as_ptr();
    let none = c"/nonexistent".as_ptr();
    let mut buffer = [0_u64; 64];
    let buffer = buffer.as_mut_ptr();
    let here = libc::AT_FDCWD;
    let mut results = Vec::new();
    let mut attempt = |what, result: libc::c_long| {
        let error =
            if result < 0 { io::Error::last_os_error().raw_os_error().unwrap_or(-1) } else { 0 };
        results.push((what, error));
    };
    // SAFETY: every pointer is to something that lives through the call and is as large as the call
    // writes. The calls are meant to fail; what one of them does when it succeeds harms no
    // other process.
    unsafe {
        attempt("open a file", libc::syscall(libc::SYS_openat, here, path, libc::O_RDONLY));
        attempt("stat a path", libc::syscall(libc::SYS_newfstatat, here, path, buffer, 0));
        attempt("statx a path", libc::syscall(libc::SYS_statx, here, path, 0, 0, buffer));
        attempt(
            "ask for access to a path",
            libc::syscall(libc::SYS_faccessat, here, path, libc::R_OK),
        );
        attempt("read a link", libc::syscall(libc::SYS_readlinkat, here, path, buffer, 512));
        attempt("remove a path", libc::syscall(libc::SYS_unlinkat, here, none, 0));
        attempt(
            "open a socket",
            libc::syscall(libc::SYS_socket, libc::AF_INET, libc::SOCK_STREAM, 0),
        );
        attempt("signal its parent", libc::syscall(libc::SYS_kill, libc::getppid(), 0));
        attempt("execute a program", libc::syscall(libc::SYS_execve, none, 0, 0));
        attempt(
            "raise a limit",
            libc::syscall(libc::SYS_prlimit64, 0, libc::RLIMIT_NOFILE, 0, buffer),
        );
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_EXEC, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        attempt(
            "map executable memory",
            libc::syscall(libc::SYS_mmap, 0, 4096, protection, flags, -1, 0),
        );
    }
    Ok(results)
}
