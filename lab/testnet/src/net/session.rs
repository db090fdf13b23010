//! A net while one command changes it: nodes started, stopped, killed and paused, links cut and
//! slowed.
//!
//! Every node runs under `thimble-lab cap`, which is controlled from outside: it makes the group,
//! keeps the node's log and its series, and removes the group when the node has ended, in every
//! case. It is in a session of its own, so that neither the end of the command nor a Ctrl-C reaches
//! it.

use std::{
    fs::{self, File},
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use accounting::process::{self, Pid};
use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;

use super::{
    handle::Handle,
    links::Links,
    machine, namespaces, relay, relays,
    state::{Backend, Kind, LastCommand, Lock, Net, NetFolder, Network},
};
use memory_cap::info::Info;

/// Between SIGTERM and the end of a node: it makes a checkpoint.
const STOPPED_WITHIN: Duration = Duration::from_secs(60);
/// The same of a machine, whose processor may be emulated.
const MACHINE_STOPPED_WITHIN: Duration = Duration::from_secs(180);
/// Between SIGKILL and the end of what kept the node.
const KILLED_WITHIN: Duration = Duration::from_secs(20);
/// Timeout until a node that was just started can receive signals.
const KNOWN_WITHIN: Duration = Duration::from_secs(10);
/// Until the relay has followed an order.
const FOLLOWED_WITHIN: Duration = Duration::from_secs(10);
/// Most bytes of a node's log, and of its series.
const LOG_SIZE: &str = "32MiB";
const SERIES_SIZE: &str = "32MiB";

pub(crate) struct Session {
    pub(crate) place: NetFolder,
    pub(crate) net: Net,
    _lock: Lock,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    Running,
    Paused,
    /// It was never started.
    New,
    Stopped,
    Killed,
    /// It ended without a request.
    Ended(String),
}

impl Condition {
    /// Whether its processes are there.
    pub(crate) fn runs(&self) -> bool {
        matches!(self, Self::Running | Self::Paused)
    }

    pub(crate) fn description(&self) -> String {
        match self {
            Self::Running => "running".into(),
            Self::Paused => "paused".into(),
            Self::New => "not started".into(),
            Self::Stopped => "stopped".into(),
            Self::Killed => "killed".into(),
            Self::Ended(how) => format!("ended by itself: {how}"),
        }
    }
}

/// What a node of a net is doing.
pub(crate) fn condition(net: &Net, place: &NetFolder, index: usize) -> Condition {
    let node = &net.nodes[index];
    let alive = node.keeper.is_some_and(Handle::is_alive);
    match (alive, node.told) {
        (true, LastCommand::Pause) => Condition::Paused,
        (true, _) => Condition::Running,
        (false, LastCommand::Nothing) => Condition::New,
        (false, LastCommand::Stop) => Condition::Stopped,
        (false, LastCommand::Kill) => Condition::Killed,
        (false, LastCommand::Run | LastCommand::Pause) => {
            let ended = place.info(index).and_then(|info| info.ended);
            Condition::Ended(match ended {
                Some(ended) if ended.oom_kills > 0 => {
                    format!(
                        "{}, {} processes killed for lack of memory",
                        ended.how, ended.oom_kills
                    )
                }
                Some(ended) => ended.how,
                None => "what kept it was killed, or could not start it".into(),
            })
        }
    }
}

impl Session {
    /// Takes the lock of an existing net.
    pub(crate) fn open(place: NetFolder) -> Result<Self> {
        // Before the lock, which would make the folder.
        place.load()?;
        let lock = place.lock()?;
        Ok(Self { net: place.load()?, place, _lock: lock })
    }

    /// A net that is being made.
    pub(crate) fn new(place: NetFolder, net: Net, lock: Lock) -> Self {
        Self { place, net, _lock: lock }
    }

    pub(crate) fn save(&self) -> Result<()> {
        self.place.save(&self.net)
    }

    pub(crate) fn condition(&self, index: usize) -> Condition {
        condition(&self.net, &self.place, index)
    }

    fn record_command(&mut self, index: usize, told: LastCommand) -> Result<()> {
        self.net.nodes[index].told = told;
        self.save()
    }

    /// Starts a node that does not run; returns whether it was started.
    pub(crate) fn start(&mut self, index: usize) -> Result<bool> {
        self.net.node(index)?;
        match self.condition(index) {
            Condition::Running => return Ok(false),
            Condition::Paused => {
                self.resume(index)?;
                return Ok(false);
            }
            _ => {}
        }
        let place = &self.place;
        fs::create_dir_all(place.node(index))?;
        // The series of the previous run is kept in addition to the new one.
        let _ = fs::rename(place.series(index), place.series(index).with_extension("before.jsonl"));
        for stale in [memory_cap::older(&place.series(index)), place.info_file(index)] {
            let _ = fs::remove_file(stale);
        }
        let mut command = self.command(index)?;
        let keeper = spawn_apart(&mut command, &place.keeper_log(index))
            .with_context(|| format!("starting what keeps node {index}"))?;
        let node = &mut self.net.nodes[index];
        node.keeper = Some(keeper);
        node.starts += 1;
        self.record_command(index, LastCommand::Run)?;
        Ok(true)
    }

    /// The whole command that keeps a node.
    fn command(&self, index: usize) -> Result<Command> {
        let (net, place) = (&self.net, &self.place);
        let node = net.node(index)?;
        let memory = node.memory_bytes.to_string();
        let mut command = Command::new(cli::this_program()?);
        if net.backend == Backend::Vm {
            let index = index.to_string();
            command.args(["net", "machine", "--index", &index, "--dir"]).arg(place.dir());
            return Ok(command);
        }
        command
            .args(["cap", "--memory", &memory, "--name", &format!("node {index}")])
            .args(["--interval-millis", &net.sample_millis.to_string()])
            .arg("--json")
            .arg(place.series(index))
            .args(["--json-size", SERIES_SIZE, "--log-size", LOG_SIZE, "--log"])
            .arg(place.log(index))
            .arg("--info-file")
            .arg(place.info_file(index))
            .arg("--");
        if net.network == Network::Namespaces {
            // Not `ip netns exec`: that hides the control groups from the node, which reads its
            // own.
            command
                .arg("nsenter")
                .arg(format!("--net=/run/netns/{}", namespaces::name(net, index)));
        }
        command.arg(&net.binary);
        if let Kind::Relays { .. } = net.kind {
            command.args(relays::arguments(net, place, index)?);
        } else {
            let http = node.http.to_string();
            command.args(["run", "--memory", &memory, "--listen", &http, "--data-dir"]);
            command.arg(place.data(index)).args(net.peer_arguments(index)?);
        }
        command.args(&node.arguments);
        Ok(command)
    }

    /// Process and group of a node. Waits for a node that was just started.
    fn info(&self, index: usize) -> Result<Info> {
        let deadline = Instant::now() + KNOWN_WITHIN;
        loop {
            if let Some(info) = self.place.info(index) {
                return Ok(info);
            }
            if !self.condition(index).runs() || Instant::now() > deadline {
                let said = fs::read_to_string(self.place.keeper_log(index)).unwrap_or_default();
                bail!("node {index} was not started: {}", said.trim());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn wait_for_end(&self, index: usize, timeout: Duration) -> bool {
        self.net.nodes[index].keeper.is_none_or(|keeper| keeper.ends_within(timeout))
    }

    /// Asks nodes to stop, all at once, and waits until they have. Those that do not run are left
    /// as they are.
    pub(crate) fn stop(&mut self, indices: &[usize]) -> Result<()> {
        let mut asked = Vec::new();
        for &index in indices {
            self.net.node(index)?;
            let condition = self.condition(index);
            if !condition.runs() {
                continue;
            }
            if condition == Condition::Paused {
                self.resume(index)?;
            }
            self.record_command(index, LastCommand::Stop)?;
            if let Some(keeper) = self.net.nodes[index].keeper {
                keeper.signal(Signal::TERM)?;
                asked.push((index, keeper));
            }
        }
        for (index, keeper) in asked {
            let timeout = match self.net.backend {
                Backend::Process => STOPPED_WITHIN,
                Backend::Vm => MACHINE_STOPPED_WITHIN,
            };
            if self.wait_for_end(index, timeout) {
                continue;
            }
            eprintln!(
                "net: node {index} did not stop within {} s; it is killed",
                timeout.as_secs()
            );
            // The second one makes the keeper kill the group.
            keeper.signal(Signal::TERM)?;
            ensure!(
                self.wait_for_end(index, KILLED_WITHIN),
                "what keeps node {index} (process {}) does not end",
                keeper.pid
            );
        }
        Ok(())
    }

    /// kill -9 of the nodes' processes, at once; returns which of them ran.
    pub(crate) fn kill(&mut self, indices: &[usize]) -> Result<Vec<usize>> {
        let mut killed = Vec::new();
        for &index in indices {
            self.net.node(index)?;
            if self.condition(index).runs() {
                killed.push((index, self.process(index)?));
                // Before the signal: were we killed now, the net would rather think too little of
                // the node than wonder at its end.
                self.record_command(index, LastCommand::Kill)?;
            }
        }
        for (_, node) in &killed {
            node.signal(Signal::KILL)?;
        }
        for (index, _) in &killed {
            ensure!(
                self.wait_for_end(*index, KILLED_WITHIN),
                "node {index} was killed, but what keeps it does not end within {} s",
                KILLED_WITHIN.as_secs()
            );
        }
        Ok(killed.into_iter().map(|(index, _)| index).collect())
    }

    /// The node's own process.
    pub(crate) fn process(&self, index: usize) -> Result<Handle> {
        let info = self.info(index)?;
        Ok(Handle { pid: info.pid, started_ticks: info.started_ticks })
    }

    /// kill -9 of one of a node's workers; returns which. `None` when it has none at the moment.
    pub(crate) fn kill_worker(&self, index: usize, which: u64) -> Result<Option<String>> {
        self.kill_child(index, "sandbox-worker", which)
    }

    /// kill -9 of what compiles a module for a node at the moment, if anything does.
    pub(crate) fn kill_compiler(&self, index: usize) -> Result<Option<String>> {
        self.kill_child(index, "sandbox-compile", 0)
    }

    fn kill_child(&self, index: usize, of_role: &str, which: u64) -> Result<Option<String>> {
        if self.net.backend == Backend::Vm {
            // They are out of reach, inside the machine.
            return Ok(None);
        }
        let info = self.info(index)?;
        let workers: Vec<(Pid, String)> = info
            .cgroup()
            .processes()?
            .into_iter()
            .filter(|pid| pid.0 != info.pid)
            .filter_map(|pid| Some((pid, process::role(pid).ok()?)))
            .filter(|(_, role)| role.ends_with(of_role))
            .collect();
        let Some((pid, role)) = workers.get((which % workers.len().max(1) as u64) as usize) else {
            return Ok(None);
        };
        let killed = Handle::for_pid(pid.0)?.signal(Signal::KILL)?;
        Ok(killed.then(|| format!("{role}, process {pid}")))
    }

    /// Stops a node if it runs and starts it. `empty`: without its state, with its keys.
    pub(crate) fn restart(&mut self, index: usize, empty: bool) -> Result<()> {
        self.stop(&[index])?;
        if empty && self.net.backend == Backend::Vm {
            // The machine's disk is recreated; its initial data is still in the data folder.
            let disk = machine::disk(&self.place, index);
            cli::if_there(fs::remove_file(&disk))
                .with_context(|| format!("removing {}", disk.display()))?;
        } else if empty {
            let data = self.place.data(index);
            for entry in
                fs::read_dir(&data).with_context(|| format!("reading {}", data.display()))?
            {
                let entry = entry?;
                if entry.file_name() == "keys" || entry.file_name() == relays::KEY_FILE {
                    continue;
                }
                let path = entry.path();
                let removed = if entry.file_type()?.is_dir() {
                    fs::remove_dir_all(&path)
                } else {
                    fs::remove_file(&path)
                };
                removed.with_context(|| format!("removing {}", path.display()))?;
            }
        }
        self.start(index)?;
        Ok(())
    }

    /// Stops time for a node: SIGSTOP for all its processes. Returns whether it ran.
    pub(crate) fn pause(&mut self, index: usize) -> Result<bool> {
        self.net.node(index)?;
        match self.condition(index) {
            Condition::Paused => return Ok(false),
            Condition::Running => {}
            other => {
                bail!("node {index} is {}; only a running node can be paused", other.description())
            }
        }
        let info = self.info(index)?;
        if self.net.backend == Backend::Vm {
            machine::stop(&self.net, index)?;
            self.record_command(index, LastCommand::Pause)?;
            return Ok(true);
        }
        self.record_command(index, LastCommand::Pause)?;
        // The node first: from then on no process is added.
        self.process(index)?.signal(Signal::STOP)?;
        signal_group(&info, Signal::STOP)?;
        Ok(true)
    }

    /// Resumes it; returns whether it was paused.
    pub(crate) fn resume(&mut self, index: usize) -> Result<bool> {
        self.net.node(index)?;
        match self.condition(index) {
            Condition::Running => return Ok(false),
            Condition::Paused => {}
            other => {
                bail!("node {index} is {}; start it with: net restart {index}", other.description())
            }
        }
        match self.net.backend {
            Backend::Vm => machine::resume(&self.net, index)?,
            Backend::Process => signal_group(&self.info(index)?, Signal::CONT)?,
        }
        self.record_command(index, LastCommand::Run)?;
        Ok(true)
    }

    /// Makes the links as `change` wants them.
    pub(crate) fn change_links(&mut self, change: impl FnOnce(&mut Links)) -> Result<()> {
        let before = self.net.links.clone();
        change(&mut self.net.links);
        if self.net.links == before {
            return Ok(());
        }
        match self.net.network {
            Network::Direct => bail!(
                "the nodes of this net are connected directly, nothing is between them that could \
                 cut or slow a link; make one with --network proxies"
            ),
            Network::Namespaces => {
                if self.net.links.any_slow() && !self.net.netem {
                    bail!(
                        "this kernel cannot slow links (tc knows no netem: CONFIG_NET_SCH_NETEM); \
                         partitions work; for slow links make a net with --network proxies"
                    );
                }
                namespaces::apply(&self.net, &before)?;
            }
            Network::Machines if !self.net.is_linked() => {}
            Network::Proxies | Network::Machines => self.order_relay()?,
        }
        self.save()
    }

    /// Starts the missing parts of the network between the nodes.
    pub(crate) fn connect(&mut self) -> Result<()> {
        match self.net.network {
            Network::Direct => Ok(()),
            Network::Namespaces => {
                let fresh = namespaces::existing(&self.net).is_empty();
                namespaces::make(&self.net)?;
                if fresh { namespaces::apply(&self.net, &Links::default()) } else { Ok(()) }
            }
            Network::Proxies | Network::Machines => {
                if let Some(machines) = &self.net.machines {
                    machines.make_sockets()?;
                }
                if !self.net.is_linked() || self.net.relay.is_some_and(Handle::is_alive) {
                    return Ok(());
                }
                let _ = fs::remove_file(self.place.file("relay.json"));
                self.write_orders()?;
                let mut command = Command::new(cli::this_program()?);
                command.args(["net", "relay", "--dir"]).arg(self.place.dir());
                let relay = spawn_apart(&mut command, &self.place.file("relay.log"));
                self.net.relay = Some(relay.context("starting the relay")?);
                self.save()?;
                self.wait_for_relay()
            }
        }
    }

    fn write_orders(&mut self) -> Result<()> {
        self.net.generation += 1;
        self.place.write("links.json", &serde_json::to_vec(&relay::Orders::for_net(&self.net)?)?)
    }

    fn order_relay(&mut self) -> Result<()> {
        let relay = self.net.relay.filter(|relay| relay.is_alive());
        let relay =
            relay.context("the relay between the nodes does not run; `net up` starts it again")?;
        self.write_orders()?;
        relay.signal(Signal::HUP)?;
        self.wait_for_relay()
    }

    fn wait_for_relay(&self) -> Result<()> {
        let deadline = Instant::now() + FOLLOWED_WITHIN;
        while relay::applied_generation(&self.place) != Some(self.net.generation) {
            let alive = self.net.relay.is_some_and(Handle::is_alive);
            if !alive || Instant::now() > deadline {
                let said = fs::read_to_string(self.place.file("relay.log")).unwrap_or_default();
                bail!("the relay does not follow its orders: {}", said.trim());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Removes the network between the nodes.
    pub(crate) fn disconnect(&mut self) -> Result<()> {
        match self.net.network {
            Network::Direct => {}
            Network::Namespaces => namespaces::remove(&self.net),
            Network::Proxies | Network::Machines => {
                if let Some(relay) = self.net.relay.take() {
                    relay.signal(Signal::TERM)?;
                    let ended = relay.ends_within(FOLLOWED_WITHIN);
                    ensure!(ended, "the relay (process {}) does not end", relay.pid);
                }
                if let Some(machines) = &self.net.machines {
                    machines.remove_sockets();
                }
            }
        }
        self.save()
    }
}

/// Signals every process of a group, until it has none that did not get the signal.
fn signal_group(info: &Info, signal: Signal) -> Result<()> {
    let group = info.cgroup();
    let mut told = std::collections::BTreeSet::new();
    loop {
        let mut new = false;
        for pid in group.processes()? {
            let Ok(process) = Handle::for_pid(pid.0) else { continue };
            // No other process gets the signal: if the id is in the group now, so is the process.
            if told.insert(pid) && group.processes()?.contains(&pid) {
                new = true;
                let _ = process.signal(signal);
            }
        }
        if !new {
            return Ok(());
        }
    }
}

/// Starts a process that is detached from the terminal and from processes that wait for us; `log`
/// gets what it prints.
fn spawn_apart(command: &mut Command, log: &Path) -> Result<Handle> {
    let log = File::create(log)?;
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    // SAFETY: between fork and exec only the system call setsid is made.
    unsafe {
        command.pre_exec(|| rustix::process::setsid().map(|_| ()).map_err(std::io::Error::from));
    }
    Ok(Handle::for_pid(command.spawn()?.id())?)
}
