//! From the root: the node within what is left of the memory, until it ends or the power button is
//! pressed.

use std::{
    fs::{self, File},
    path::Path,
    sync::OnceLock,
    thread,
    time::Duration,
};

use anyhow::{Context, Result};
use budget::format_size;
use rustix::system::sethostname;

use super::{
    CONFIG_DEVICE, Then, button, clock, mounts, network,
    node::{self, Node},
    report::{self, Port},
    say,
};
use crate::{
    config::{self, Machine},
    line::{Ended, Line, Started},
    sum::Sum,
};

/// Shortest time between two samples.
const SAMPLE_EVERY_MIN: Duration = Duration::from_millis(100);

static NODE: OnceLock<Node> = OnceLock::new();
static PORT: OnceLock<Port> = OnceLock::new();

pub(super) fn run() -> Result<Then> {
    let node = NODE.get_or_init(Node::default);
    let port = PORT.get_or_init(|| Port::open().unwrap_or_else(|error| fail(&error)));
    mounts::state()?;
    button::watch(|| node.stop());
    clock::follow()?;
    let machine =
        config::read(File::open(CONFIG_DEVICE).context("there is no configuration disk")?)?;
    let _ = sethostname(machine.name.as_bytes());
    network::up(&machine.interfaces)?;
    seed(Path::new(node::DATA))?;
    let (total_bytes, available_bytes) = report::total_and_available_bytes();
    let sum = Sum::of(machine.machine_bytes, total_bytes, available_bytes);
    say(&sum.words());
    let budget_bytes = match sum.budget(machine.memory_bytes, machine.overcommit) {
        Ok(budget_bytes) => budget_bytes,
        Err(why) => {
            say(&why);
            port.ended(Ended {
                how: why,
                was_asked: false,
                then: Then::PowerOff.words().to_owned(),
            });
            return Ok(Then::PowerOff);
        }
    };
    if budget_bytes > sum.left_bytes {
        say("the node may take more than is left: the kernel may kill it");
    }
    let (program, size) = (machine.role.program(), format_size(budget_bytes));
    say(&format!("{program} starts within {size}"));
    port.send(&Line::Started(Started {
        machine_bytes: sum.machine_bytes,
        kernel_bytes: sum.kernel_bytes(),
        left_bytes: sum.left_bytes,
        budget_bytes,
    }));
    start_samples(port, &machine)?;
    node.start(&machine, budget_bytes)?;
    let ended = node.wait()?;
    let was_asked = node.was_asked();
    // A node that exited with a status would do so again; one that was killed may recover after a
    // restart.
    let then = if was_asked || ended.said_so { Then::PowerOff } else { Then::StartAnew };
    say(&format!("{program} ended: {}; the machine will {}", ended.how, then.words()));
    port.ended(Ended { how: ended.how, was_asked, then: then.words().to_owned() });
    Ok(then)
}

/// Writes everything to the disk, and ends the machine.
pub(super) fn end(then: Then) -> Result<()> {
    mounts::end();
    then.reboot()
}

/// Without the port, only the console can show the error.
fn fail(error: &anyhow::Error) -> ! {
    say(&format!("cannot continue: {error:#}"));
    let _ = Then::PowerOff.reboot();
    std::process::exit(1)
}

fn start_samples(port: &'static Port, machine: &Machine) -> Result<()> {
    let interval = Duration::from_millis(machine.sample_millis).max(SAMPLE_EVERY_MIN);
    let machine_bytes = machine.machine_bytes;
    thread::Builder::new()
        .stack_size(256 << 10)
        .spawn(move || report::sample_for_ever(port, machine_bytes, interval))
        .context("starting the thread that samples")?;
    Ok(())
}

/// Fills the data folder from the configuration disk, once: if it is killed half-way, it is filled
/// again.
fn seed(data: &Path) -> Result<()> {
    if data.exists() {
        return Ok(());
    }
    let scratch = data.with_extension("new");
    if scratch.exists() {
        fs::remove_dir_all(&scratch)?;
    }
    fs::create_dir_all(&scratch)?;
    config::unpack(File::open(CONFIG_DEVICE)?, &scratch)?;
    node::own(&scratch)?;
    rustix::fs::sync();
    fs::rename(&scratch, data).context("putting the data folder into its place")?;
    rustix::fs::sync();
    Ok(())
}
