//! The first process.
//!
//! It runs twice. In the first file system in memory it loads the kernel's modules for the disk,
//! takes that disk's first part as the root, read-only, and starts itself from there (`early`):
//! the memory of the first file system is free again. From the root it mounts what a node needs,
//! brings up the network, starts the node within what is left of the memory, and waits for its end
//! or for the power button (`late`).
//!
//! The node is its child and not the first process itself: the kernel panics when that one ends,
//! and a process has to remain that reaps, reports and powers off after a node was killed.
//!
//! After an error, which the console shows, the machine powers off: a machine that cannot run its
//! node is of no use, and one that hangs is worse.

mod button;
mod clock;
mod early;
mod late;
mod modules;
mod mounts;
mod network;
mod node;
mod report;

use std::{process::ExitCode, thread, time::Duration};

use anyhow::Result;
use rustix::system::{RebootCommand, reboot};

/// Where it is in the root.
pub const IN_ROOT: &str = "/sbin/thimble-guest";
/// Argument of the second start, from the root.
const LATE: &str = "late";
/// The kernel's modules in the first file system, in the order in which they are loaded, one path a
/// line.
pub const MODULES: &str = "/modules.list";
/// The root: first partition of the first disk.
const ROOT_DEVICE: &str = "/dev/vda1";
/// The node's data: the second partition.
const STATE_DEVICE: &str = "/dev/vda2";
/// The machine's configuration: the second disk.
const CONFIG_DEVICE: &str = "/dev/vdb";
/// Where the second serial port is.
const REPORT_DEVICE: &str = "/dev/ttyS1";
/// Whom the node runs as.
const NODE_USER: u32 = 1000;

/// Runs until the machine ends.
pub fn run() -> ExitCode {
    let is_late = std::env::args().nth(1).as_deref() == Some(LATE);
    let done = if is_late { late::run() } else { early::run() };
    let then = match done {
        Ok(then) => then,
        Err(error) => {
            print_line(&format!("cannot continue: {error:#}"));
            Shutdown::PowerOff
        }
    };
    let code = if is_late { late::end(then) } else { then.reboot() };
    if let Err(error) = code {
        print_line(&format!("cannot {}: {error:#}", then.label()));
    }
    // The kernel panics when this ends, and restarts the machine.
    thread::sleep(Duration::from_secs(5));
    ExitCode::FAILURE
}

/// How a machine ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shutdown {
    PowerOff,
    StartAnew,
}

impl Shutdown {
    fn label(self) -> &'static str {
        match self {
            Self::PowerOff => "power off",
            Self::StartAnew => "start anew",
        }
    }

    fn reboot(self) -> Result<()> {
        Ok(reboot(match self {
            Self::PowerOff => RebootCommand::PowerOff,
            Self::StartAnew => RebootCommand::Restart,
        })?)
    }
}

/// On the console, which is the log of the machine.
fn print_line(words: &str) {
    println!("machine: {words}");
}
