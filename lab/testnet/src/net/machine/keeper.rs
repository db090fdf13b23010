//! The keeper of one machine: it makes the disks, runs QEMU as its child, and records its output.
//! It is between the net and the machine like `thimble-lab cap` between the net and a process
//! group, and is controlled the same way: SIGTERM asks the machine to end, a second one ends it.
//!
//! A machine that is reset again and again without ever starting its node is stopped after
//! [`RESETS_MAX`] resets: its kernel panics, and will panic again.

use std::{
    fs, io,
    os::{fd::OwnedFd, unix::net::UnixStream as StdUnixStream},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use accounting::process::{self, Pid};
use anyhow::{Context, Result};
use cli::StopSignals;
use guest::{config, line};
use images::{Cache, OverlayOptions, Settings};
use machines::{
    console::{Console, harmless},
    lines::Lines,
    qemu::{self, Ends, Machine, Nic},
    qmp::{self, Message},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixStream, unix::pipe},
    process::Child,
    time::Instant,
};

use super::{
    super::state::{Net, NetFolder},
    GROUP, disk, forwarded_ports, host_hardware, machine_config, machines_of, report,
    report::Report,
};
use memory_cap::{Rotating, info::Info, machine, series::What};

/// Most bytes of a machine's log, and of its series.
const LOG_BYTES_MAX: u64 = 32 << 20;
const SERIES_BYTES_MAX: u64 = 32 << 20;
/// Resets in a row without a node.
const RESETS_MAX: u64 = 5;
/// A line that was begun is written after so long without more of it.
const LINE_TIMEOUT: Duration = Duration::from_secs(1);
/// A kernel that has no ear for the button yet is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(2);
/// A machine that runs no node has nothing to save.
const WITHOUT_NODE: Duration = Duration::from_secs(15);
/// After QEMU's end, for what it has left in the pipes.
const REST_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes kept of QEMU's standard error.
const SAID_BYTES_MAX: usize = 4096;
const PIECE_BYTES: usize = 16 << 10;

/// Keeps the machine of node `index` until it has ended.
pub(crate) async fn run(place: NetFolder, index: usize) -> Result<()> {
    // Before anything is started, so that a request to end is received from now on.
    let mut signals = StopSignals::listen()?;
    let net = place.load()?;
    let started = start(&net, &place, index)?;
    let mut keeper = started.0;
    let streams = started.1;
    let how = keeper.until_end(streams, &mut signals).await?;
    keeper.finish(&place, index, how);
    Ok(())
}

/// Our ends of what the machine talks through.
struct Streams {
    console: pipe::Receiver,
    reports: pipe::Receiver,
    monitor: UnixStream,
    said: tokio::process::ChildStderr,
}

struct Keeper {
    child: Child,
    info: Info,
    report: Report,
    log: Rotating,
    /// When we were asked to end, and when we last asked the machine.
    stop_requested: Option<(Instant, Instant)>,
    /// Why we ended it ourselves.
    ended_by_us: Option<String>,
    qemu_said: Vec<u8>,
}

#[expect(clippy::too_many_lines, reason = "steps of one matter, each on what those before it left")]
fn start(net: &Net, place: &NetFolder, index: usize) -> Result<(Keeper, Streams)> {
    let machines = machines_of(net)?;
    let node = net.node(index)?;
    let folder = place.node(index);
    let cache = Cache::open(&machines.cache, Settings { talks: false, ..Settings::default() })?;
    let base =
        cache.find(&machines.image.base).context("finding the base of the machine's disk")?;
    let disk = cache.overlay(
        &base,
        &disk(place, index),
        OverlayOptions { grow: Some(machines.disk_bytes), fresh: false },
    )?;
    let config = folder.join("config.img");
    config::write(&machine_config(net, index)?, Some(&place.data(index)), &config)?;

    let port = machines.port(index);
    let card_hardware = port.hardware.to_string();
    let forwards = forwarded_ports(net, index)?;
    let monitor = machines.monitor(index);
    // Left by a machine that was killed.
    for stale in [&monitor, &port.to_machine] {
        cli::if_there(fs::remove_file(stale))
            .with_context(|| format!("removing {}", stale.display()))?;
    }
    let (console, console_end) = io::pipe()?;
    let (reports, reports_end) = io::pipe()?;
    let (ours, theirs) = StdUnixStream::pair()?;
    let ends = Ends {
        console: console_end.into(),
        reports: reports_end.into(),
        monitor: OwnedFd::from(theirs),
    };
    let hardware = host_hardware(index).to_string();
    let machine = Machine {
        memory_bytes: node.memory_bytes,
        kernel: &machines.image.kernel_file(),
        initrd: &machines.image.initrd_file(),
        command_line: &machines.image.command_line,
        disk: &disk.path,
        config: &config,
        forwards: &forwards,
        host_hardware: &hardware,
        nic: net.is_linked().then_some(Nic {
            hardware: &card_hardware,
            receives: &port.to_machine,
            sends: &port.from_machine,
        }),
        monitor: &monitor,
    };
    let mut command = qemu::command(&machines.qemu, &machine, &ends)?;
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<String> = words.map(|word| word.to_string_lossy().into_owned()).collect();
    let header = report::header(
        format!("node {index}"),
        words.clone(),
        node.memory_bytes,
        net.sample_millis,
    );
    let log = place.log(index);
    let log = Rotating::append(&log, LOG_BYTES_MAX)
        .with_context(|| format!("opening the log {}", log.display()))?;
    let mut report = Report::begin(&place.series(index), SERIES_BYTES_MAX, header)?;
    let mut child = tokio::process::Command::from(command)
        .spawn()
        .with_context(|| format!("starting {}", machines.qemu.program.display()))?;
    // Our descriptors of the machine's ends would keep them open after it ended.
    drop(ends);
    let pid = child.id().context("QEMU ended at once")?;
    let info = Info {
        pid,
        started_ticks: process::started_ticks(Pid(pid))?,
        group: GROUP.to_owned(),
        directory: Default::default(),
        ended: None,
    };
    info.write(Some(&place.info_file(index)));
    report.event(What::Mark, format!("QEMU is process {pid}"));
    ours.set_nonblocking(true)?;
    let streams = Streams {
        console: pipe::Receiver::from_owned_fd(console.into())?,
        reports: pipe::Receiver::from_owned_fd(reports.into())?,
        monitor: UnixStream::from_std(ours)?,
        said: child.stderr.take().context("QEMU's standard error is a pipe")?,
    };
    let keeper = Keeper {
        child,
        info,
        report,
        log,
        stop_requested: None,
        ended_by_us: None,
        qemu_said: Vec::new(),
    };
    Ok((keeper, streams))
}

impl Keeper {
    /// Reads the machine's output until QEMU has ended; returns how.
    async fn until_end(
        &mut self,
        mut streams: Streams,
        signals: &mut StopSignals,
    ) -> Result<ExitStatus> {
        let mut console = Console::default();
        let mut reports = Lines::new(line::LINE_BYTES_MAX);
        let mut messages = Lines::new(qmp::LINE_BYTES_MAX);
        let mut pieces =
            [vec![0; PIECE_BYTES], vec![0; PIECE_BYTES], vec![0; PIECE_BYTES], vec![0; 1024]];
        let [a, b, c, d] = &mut pieces;
        // A stream that has ended is not read again.
        let (mut has_console, mut has_reports, mut has_monitor, mut has_said) =
            (true, true, true, true);
        let mut ended: Option<(ExitStatus, Instant)> = None;
        let mut line_begun: Option<Instant> = None;
        loop {
            line_begun = console.is_within_line().then(|| line_begun.unwrap_or_else(Instant::now));
            if line_begun.is_some_and(|begun| begun.elapsed() >= LINE_TIMEOUT) {
                console.flush(|line| log_line(&mut self.log, line));
                line_begun = None;
            }
            self.repeat_powerdown(&mut streams.monitor).await;
            let left = ended.map(|(_, at)| at + REST_TIMEOUT);
            if let Some((status, at)) = ended
                && (!(has_console || has_reports || has_monitor || has_said)
                    || at.elapsed() >= REST_TIMEOUT)
            {
                if console.is_within_line() {
                    console.flush(|line| log_line(&mut self.log, line));
                }
                return Ok(status);
            }
            let mut wake = left.unwrap_or_else(|| Instant::now() + ASK_AGAIN);
            if let Some(begun) = line_begun {
                wake = wake.min(begun + LINE_TIMEOUT);
            }
            tokio::select! {
                read = streams.console.read(a), if has_console => match read {
                    Ok(length) if length > 0 => console.push(&a[..length], |line| log_line(&mut self.log, line)),
                    _ => has_console = false,
                },
                read = streams.reports.read(b), if has_reports => match read {
                    Ok(length) if length > 0 => reports.push(&b[..length], |line| self.report.line(line)),
                    _ => has_reports = false,
                },
                read = streams.monitor.read(c), if has_monitor => match read {
                    Ok(length) if length > 0 => {
                        let mut parsed = Vec::new();
                        messages.push(&c[..length], |line| parsed.extend(qmp::parse(line)));
                        for message in parsed {
                            self.handle_message(message, &mut streams.monitor).await;
                        }
                    }
                    _ => has_monitor = false,
                },
                read = streams.said.read(d), if has_said => match read {
                    Ok(length) if length > 0 => {
                        eprint!("{}", harmless(&d[..length]).replace("\\n", "\n"));
                        self.qemu_said.extend_from_slice(&d[..length]);
                        let over = self.qemu_said.len().saturating_sub(SAID_BYTES_MAX);
                        self.qemu_said.drain(..over);
                    }
                    _ => has_said = false,
                },
                _ = signals.next() => self.handle_stop_signal(&mut streams.monitor).await,
                status = self.child.wait(), if ended.is_none() => {
                    ended = Some((status?, Instant::now()));
                }
                () = tokio::time::sleep_until(wake) => {}
            }
        }
    }

    async fn handle_message(&mut self, message: Message, monitor: &mut UnixStream) {
        match message {
            Message::Greeting => send(monitor, "qmp_capabilities").await,
            Message::Event { name, data } => {
                let by_guest =
                    data.get("guest").and_then(serde_json::Value::as_bool).unwrap_or(false);
                if name == "RESET" && by_guest {
                    self.report.reset();
                    let resets = self.report.resets;
                    let text = format!("-- the machine was reset, for the {resets}. time");
                    log_line(&mut self.log, &text);
                    if self.report.resets_without_node > RESETS_MAX && self.ended_by_us.is_none() {
                        self.ended_by_us = Some(format!(
                            "the machine was reset {} times without starting its node, and was \
                             stopped; its log says why",
                            self.report.resets_without_node
                        ));
                        self.kill();
                    }
                }
                if name == "GUEST_PANICKED" {
                    self.report.event(What::Mark, "the guest's kernel panicked".to_owned());
                }
            }
            Message::Error(words) => eprintln!("QEMU says: {words}"),
            Message::Return(_) => {}
        }
    }

    /// Handles SIGTERM: the first one asks the machine to end, a second one kills it.
    async fn handle_stop_signal(&mut self, monitor: &mut UnixStream) {
        if self.stop_requested.is_some() {
            self.report.event(What::Signal, "asked again: the machine is killed".to_owned());
            self.kill();
            return;
        }
        self.report.event(What::Signal, "asked to stop".to_owned());
        self.stop_requested = Some((Instant::now(), Instant::now()));
        send(monitor, "system_powerdown").await;
    }

    /// A press of the button before the node ran may have been lost.
    async fn repeat_powerdown(&mut self, monitor: &mut UnixStream) {
        let Some((since, last)) = self.stop_requested else { return };
        if self.report.has_node() || self.report.ended.is_some() {
            return;
        }
        if since.elapsed() > WITHOUT_NODE {
            if self.ended_by_us.is_none() {
                self.ended_by_us = Some(
                    "the machine ran no node and did not end by itself; it was stopped".into(),
                );
                self.kill();
            }
        } else if last.elapsed() >= ASK_AGAIN {
            self.stop_requested = Some((since, Instant::now()));
            send(monitor, "system_powerdown").await;
        }
    }

    fn kill(&mut self) {
        // It may have ended in this moment.
        let _ = self.child.start_kill();
    }

    fn finish(mut self, place: &NetFolder, index: usize, status: ExitStatus) {
        let how = exit_description(
            status,
            self.ended_by_us.take(),
            self.report.ended.as_ref(),
            &self.qemu_said,
        );
        log_line(&mut self.log, &format!("-- {how}"));
        let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX);
        self.info.ended = Some(self.report.finish(how, code));
        self.info.write(Some(&place.info_file(index)));
    }
}

/// Description of how a machine ended.
fn exit_description(
    status: ExitStatus,
    ended_by_us: Option<String>,
    node: Option<&line::EndReport>,
    qemu_said: &[u8],
) -> String {
    use std::os::unix::process::ExitStatusExt;
    if let Some(why) = ended_by_us {
        return why;
    }
    if let Some(number) = status.signal() {
        let name = nix::sys::signal::Signal::try_from(number)
            .map_or_else(|_| format!("signal {number}"), |signal| signal.to_string());
        return format!("QEMU was ended by {name}");
    }
    if status.success() {
        return match node {
            Some(ended) => format!("the node ended: {}; machine powered off", ended.how),
            None => "machine powered off".to_owned(),
        };
    }
    let said = harmless(qemu_said).replace("\\n", "\n");
    let last = said.trim().lines().last().unwrap_or("it does not say why").to_owned();
    format!("QEMU ended: exit {}: {last}", status.code().unwrap_or(-1))
}

async fn send(monitor: &mut UnixStream, command: &str) {
    // QEMU may have ended in this moment; that is heard elsewhere.
    let _ = monitor.write_all(qmp::command(command).as_bytes()).await;
}

/// A line of the machine's console, with its time.
fn log_line(log: &mut Rotating, text: &str) {
    log.log(format!("{} {text}\n", machine::timestamp()).as_bytes(), "");
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn exit_description_prefers_the_nodes_report() {
        let node =
            line::EndReport { how: "exit 1".into(), was_asked: false, then: "power off".into() };
        let of = |raw, why: Option<&str>, node: Option<&line::EndReport>| {
            exit_description(
                ExitStatus::from_raw(raw),
                why.map(str::to_owned),
                node,
                b"qemu: a\nqemu: no room\n",
            )
        };
        assert_eq!(of(0, None, Some(&node)), "the node ended: exit 1; machine powered off");
        assert_eq!(of(0, None, None), "machine powered off");
        assert_eq!(of(9, None, Some(&node)), "QEMU was ended by SIGKILL");
        assert_eq!(of(1 << 8, None, None), "QEMU ended: exit 1: qemu: no room");
        assert_eq!(of(9, Some("enough"), None), "enough");
    }
}
