//! Confinement of a worker: the barrier between a canister that escaped the engine and the machine.
//!
//! [`prepare`] runs first: die with the parent, no privileges, no core dumps, no ptrace, no
//! environment, no descriptors but the socket and two for [`watch`], few descriptors, a stack large
//! enough for the engine's limit for canisters. [`confine`] runs once all allocations that need
//! more permissions are done: from then on a system call that is not on the list kills the process.
//! The list holds what execution needs (memory, the rings, receiving descriptors, the append files,
//! signals) and nothing that names a file, sends over the socket, makes a socket or a process.
//!
//! Some calls are narrowed by argument: `futex` only waits and wakes, `fcntl` only duplicates
//! descriptors, `tgkill` only reaches the own process, `ioctl` only makes the requests of
//! [`watch`], `statx` and `newfstatat` only take the flag that asks about a descriptor. A filter
//! cannot see the path behind that flag, so the one thing an escaped canister can still learn of
//! the file system is whether a path exists and its metadata.

use std::{io, os::fd::AsRawFd};

use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use seccompiler::{SeccompAction, SeccompCmpOp};

use super::{
    protocol::Probe,
    watch::{self, Watcher},
};
use crate::{
    engine::{HOST_STACK_BYTES, WASM_STACK_BYTES},
    system_calls,
};

/// Descriptors a worker may hold: one append file for each memory it ran an update of lately, and
/// those of one order.
const DESCRIPTORS_MAX: u64 = 4096;

/// When memory runs out the kernel should choose a worker (or a compile child) and not the node:
/// what runs in a worker is tried again, the node takes everything with it. The most there is: with
/// half of it a node whose code was mapped went first in a group of 25 MiB.
const OOM_SCORE_ADJ: &[u8] = b"1000";

/// Start-up, before anything is allocated. `parent` is the pool's process. Returns how the kernel
/// notes written pages, if it can and that pays.
pub(super) fn prepare(parent: u32) -> io::Result<Option<Watcher>> {
    // Best effort: without it the kernel may choose the node. Later the file belongs to another
    // user.
    let _ = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJ);
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // The parent may have died before it could be asked for.
    let actual = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get() as u32);
    if actual != parent {
        return Err(io::Error::other(format!("the parent process is {actual}, not {parent}")));
    }
    rustix::thread::set_no_new_privs(true)?;
    close_descriptors()?;
    // Before the process is closed to itself: a process that may not be dumped cannot open its page
    // map unless it is privileged.
    let watcher = Watcher::open();
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
    let limit = |resource, value: u64| {
        setrlimit(resource, Rlimit { current: Some(value), maximum: Some(value) })
    };
    limit(Resource::Core, 0)?;
    limit(
        Resource::Nofile,
        getrlimit(Resource::Nofile).maximum.unwrap_or(DESCRIPTORS_MAX).min(DESCRIPTORS_MAX),
    )?;
    let stack_bytes = (WASM_STACK_BYTES + 2 * HOST_STACK_BYTES) as u64;
    let stack = getrlimit(Resource::Stack);
    if stack.current.is_some_and(|current| current < stack_bytes) {
        // The main thread's stack grows on demand up to the limit at that time.
        setrlimit(Resource::Stack, Rlimit { current: Some(stack_bytes), maximum: stack.maximum })
            .map_err(|error| {
            io::Error::other(format!(
                "a stack of {stack_bytes} bytes is needed, the limit is {:?}: {error}",
                stack.maximum
            ))
        })?;
    }
    Ok(watcher)
}

/// Leaves the socket (descriptor 0) alone open; 1 and 2 lead to nowhere, so that no file received
/// later can take their place.
fn close_descriptors() -> io::Result<()> {
    let nowhere = std::fs::OpenOptions::new().write(true).open("/dev/null")?;
    for standard in [libc::STDOUT_FILENO, libc::STDERR_FILENO] {
        // SAFETY: duplicates an open descriptor over a standard stream, which nothing holds.
        if unsafe { libc::dup2(nowhere.as_raw_fd(), standard) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    drop(nowhere);
    // SAFETY: closes descriptors that nothing in this process knows of.
    if unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, 0_u32) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Installs the filter, on every thread there is.
pub(super) fn confine() -> io::Result<()> {
    let allowed = [
        // Memory: mapping files and code, protecting pages, the allocator.
        libc::SYS_mmap,
        libc::SYS_munmap,
        libc::SYS_mprotect,
        libc::SYS_madvise,
        libc::SYS_mremap,
        libc::SYS_brk,
        // Files: received over the socket, read and written.
        libc::SYS_recvmsg,
        libc::SYS_read,
        libc::SYS_write,
        libc::SYS_writev,
        libc::SYS_pread64,
        libc::SYS_pwrite64,
        libc::SYS_pwritev,
        libc::SYS_pwritev2,
        libc::SYS_fstat,
        libc::SYS_lseek,
        libc::SYS_close,
        // Signals: faults, and aborting.
        libc::SYS_rt_sigreturn,
        libc::SYS_rt_sigaction,
        libc::SYS_rt_sigprocmask,
        libc::SYS_sigaltstack,
        libc::SYS_restart_syscall,
        libc::SYS_sched_yield,
        libc::SYS_getrandom,
        libc::SYS_clock_gettime,
        libc::SYS_clock_nanosleep,
        libc::SYS_nanosleep,
        libc::SYS_getpid,
        libc::SYS_gettid,
        libc::SYS_sched_getaffinity,
        // Publishing code on machines that need it.
        libc::SYS_membarrier,
        libc::SYS_exit,
        libc::SYS_exit_group,
    ];
    let is = |call: i64, argument: u8, value: u64| (call, argument, SeccompCmpOp::Eq, value);
    let futex = |operation: i32| is(libc::SYS_futex, 1, operation as u64);
    let private = libc::FUTEX_PRIVATE_FLAG;
    let wait_bitset = libc::FUTEX_WAIT_BITSET | private;
    let ioctl = |request: u32| is(libc::SYS_ioctl, 1, u64::from(request));
    let [register, protect, scan] = watch::REQUESTS.map(ioctl);
    let narrowed = [
        // Noting which pages are written: of its own memory alone.
        register,
        protect,
        scan,
        // The rings: waiting for the pool, and waking it.
        futex(libc::FUTEX_WAIT),
        futex(libc::FUTEX_WAKE),
        // Locks of the allocator and the standard library. Nothing that has owners or moves
        // waiters.
        futex(libc::FUTEX_WAIT | private),
        futex(libc::FUTEX_WAKE | private),
        futex(wait_bitset),
        futex(wait_bitset | libc::FUTEX_CLOCK_REALTIME),
        // Size and kind of a file by its descriptor.
        is(libc::SYS_statx, 2, libc::AT_EMPTY_PATH as u64),
        is(libc::SYS_newfstatat, 3, libc::AT_EMPTY_PATH as u64),
        // Duplicating a descriptor, and asking for its flags.
        is(libc::SYS_fcntl, 1, libc::F_DUPFD_CLOEXEC as u64),
        is(libc::SYS_fcntl, 1, libc::F_GETFD as u64),
        // Aborting.
        is(libc::SYS_tgkill, 0, u64::from(std::process::id())),
    ];
    system_calls::install(&allowed, &narrowed, SeccompAction::KillProcess).map_err(io::Error::other)
}

/// Tries something forbidden. Returns only from a process that is not confined.
pub(super) fn attempt(probe: Probe) {
    match probe {
        Probe::Open => drop(std::fs::File::open("/proc/self/status")),
        Probe::Socket => drop(std::net::UdpSocket::bind("127.0.0.1:0")),
        Probe::Exec => drop(std::process::Command::new("/bin/true").status()),
        // SAFETY: a bare fork; a child, should there be one, ends at once.
        Probe::Fork => unsafe {
            if libc::fork() == 0 {
                libc::_exit(0);
            }
        },
        // SAFETY: asks to be traced, no memory is involved.
        Probe::Ptrace => unsafe {
            libc::ptrace(libc::PTRACE_TRACEME);
        },
        Probe::Ioctl => {
            let mut unread: libc::c_int = 0;
            let unread: *mut libc::c_int = &mut unread;
            // SAFETY: the request writes one number, which there is room for.
            unsafe {
                libc::ioctl(libc::STDIN_FILENO, libc::FIONREAD, unread);
            }
        }
        Probe::Lie | Probe::Hang | Probe::RefuseGrowth | Probe::CountByFaults => {}
    }
}
