//! From the root: the node within what is left of the memory, until it ends or the power button is
//! pressed.

use std::{
    fs::{self, File},
    path::Path,
    sync::OnceLock,
    thread,
    time::Duration,
};

use accounting::format_size;
use anyhow::{Context, Result};
use rustix::system::sethostname;

use super::{
    CONFIG_DEVICE, Shutdown, button, clock, mounts, network,
    node::{self, Node},
    print_line,
    report::{self, Port},
};
use crate::{
    config::{self, Machine},
    line::{EndReport, Line, StartReport},
    sum::Sum,
};

/// Shortest time between two samples.
const SAMPLE_EVERY_MIN: Duration = Duration::from_millis(100);

static NODE: OnceLock<Node> = OnceLock::new();
static PORT: OnceLock<Port> = OnceLock::new();

pub(super) fn run() -> Result<Shutdown> {
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
    let sum = Sum::new(machine.machine_bytes, total_bytes, available_bytes);
    print_line(&sum.describe());
    let budget_bytes = match sum.budget(machine.memory_bytes, machine.overcommit) {
        Ok(budget_bytes) => budget_bytes,
        Err(why) => {
            print_line(&why);
            port.ended(EndReport {
                how: why,
                was_asked: false,
                then: Shutdown::PowerOff.label().to_owned(),
            });
            return Ok(Shutdown::PowerOff);
        }
    };
    if budget_bytes > sum.left_bytes {
        print_line("the node may take more than is left: the kernel may kill it");
    }
    let (program, size) = (machine.role.program(), format_size(budget_bytes));
    print_line(&format!("{program} starts within {size}"));
    port.send(&Line::Started(StartReport {
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
    let then =
        if was_asked || ended.ended_by_itself { Shutdown::PowerOff } else { Shutdown::StartAnew };
    print_line(&format!("{program} ended: {}; the machine will {}", ended.how, then.label()));
    port.ended(EndReport { how: ended.how, was_asked, then: then.label().to_owned() });
    Ok(then)
}

/// Writes everything to the disk, and ends the machine.
pub(super) fn end(then: Shutdown) -> Result<()> {
    mounts::end();
    then.reboot()
}

/// Without the port, only the console can show the error.
fn fail(error: &anyhow::Error) -> ! {
    print_line(&format!("cannot continue: {error:#}"));
    let _ = Shutdown::PowerOff.reboot();
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
