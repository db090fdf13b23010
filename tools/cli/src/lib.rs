//! Code shared by the commands of the lab: programs that they start ([`Child`]), requests to stop
//! ([`StopSignals`], [`Stop`]), tables for people.
//!
//! Must never know: what any of these programs does.

mod child;
mod stop;

use std::{
    io,
    net::TcpListener,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU16, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use rustix::time::{ClockId, clock_gettime};

pub use self::{
    child::{Child, OnDrop, detach, kill, terminate, written_address},
    stop::{Stop, until_done},
};
pub use lifecycle::StopSignals;

/// Exit status of a command that was asked to stop: 128 and the number of SIGINT.
pub const EXIT_INTERRUPTED: u8 = 130;

/// The same as what `main` returns.
pub fn interrupted() -> ExitCode {
    ExitCode::from(EXIT_INTERRUPTED)
}

/// This program's file.
///
/// # Errors
///
/// The operating system does not know it.
pub fn this_program() -> Result<PathBuf> {
    std::env::current_exe().context("finding this program")
}

/// The `what` program that the flag `--what` names, else the one called `usual` in the folder of
/// this program.
///
/// # Errors
///
/// There is no such file.
pub fn program(named: Option<&Path>, usual: &str, what: &str) -> Result<PathBuf> {
    let program = match named {
        Some(named) => named.to_owned(),
        None => this_program()?.with_file_name(usual),
    };
    ensure!(
        program.is_file(),
        "there is no {what} at {}; build it (make build) or name it with --{what}",
        program.display()
    );
    Ok(program)
}

/// The monotonic clock of the machine, the same in every process.
pub fn monotonic() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// `2026-11-21T03:04:05Z`, and the form without punctuation for names of folders,
/// `20261121-030405`.
pub fn now() -> (String, String) {
    let time = timestamp();
    let seconds = time.split('.').next().unwrap_or_default();
    (format!("{seconds}Z"), seconds.replace(['-', ':'], "").replace('T', "-"))
}

/// The time in UTC, such as `2026-11-23T04:05:06.789Z`.
pub fn timestamp() -> String {
    let now = time::OffsetDateTime::now_utc();
    let (year, month, day) = (now.year(), u8::from(now.month()), now.day());
    let (hour, minute, second) = (now.hour(), now.minute(), now.second());
    let millis = now.millisecond();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// What an operation on a file gave; `None` where the file is not there.
///
/// # Errors
///
/// Every other failure of the operation.
pub fn if_there<T>(done: io::Result<T>) -> io::Result<Option<T>> {
    match done {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// A lock whose holder cannot have left anything half done.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A column of a table for people: its head, its width in characters (text stands at the left where
/// it is negative), and the cell of a row.
pub type Column<R> = (&'static str, isize, fn(&R) -> String);

/// The line above a table.
pub fn table_head<R>(columns: &[Column<R>]) -> String {
    columns.iter().map(|(head, width, _)| padded(head, *width)).chain(["\n".into()]).collect()
}

/// The line of one row.
pub fn table_row<R>(columns: &[Column<R>], row: &R) -> String {
    let cells = columns.iter().map(|(_, width, cell)| padded(&cell(row), *width));
    cells.chain(["\n".into()]).collect()
}

fn padded(text: &str, width: isize) -> String {
    let chars = width.unsigned_abs();
    if width < 0 { format!("{text:<chars$}") } else { format!("{text:>chars$}") }
}

/// `COUNT` different free ports of this machine, below those of `thimble-lab net` and those that
/// the system gives to outgoing connections. Another program may take one before the caller binds
/// it.
///
/// # Errors
///
/// None is left.
pub fn free_ports<const COUNT: usize>() -> io::Result<[u16; COUNT]> {
    const FIRST: u16 = 10_000;
    const PORTS: u32 = 8_000;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let begin = std::process::id().wrapping_mul(61);
    let mut found = [0; COUNT];
    for port in &mut found {
        let free = (0..PORTS).find_map(|_| {
            let next = begin.wrapping_add(NEXT.fetch_add(1, Relaxed).into()) % PORTS;
            let port = FIRST + next as u16;
            TcpListener::bind(("127.0.0.1", port)).ok().map(|_| port)
        });
        *port = free.ok_or(io::ErrorKind::AddrInUse)?;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    #[test]
    #[expect(clippy::unwrap_used, reason = "a test")]
    fn free_ports_are_different_and_free() {
        let mut ports = super::free_ports::<64>().unwrap();
        for port in ports {
            drop(std::net::TcpListener::bind(("127.0.0.1", port)).unwrap());
        }
        ports.sort_unstable();
        assert!(ports.windows(2).all(|pair| pair[0] < pair[1]), "{ports:?}");
    }
}
