//! One run: starts the node if asked, connects the clients, runs the phases, gathers the figures.
//!
//! Bounds: every wait has an end. Must never know: how a client speaks to a node.

use std::{
    io::IsTerminal,
    path::Path,
    sync::{Arc, Mutex, atomic::Ordering::Relaxed},
    time::Duration,
};

use accounting::process::{self, Pid};
use anyhow::{Context, Result, bail};
use libp2p::Multiaddr;
use memory_cap::picture;
use protocol::store;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep, sleep_until, timeout},
};

use crate::{
    Stop,
    clients::Clients,
    gather::{MeasuredPhase, Moment, NodeMoment, RunData, build_report},
    net::Members,
    node::Node,
    options::Workload,
    plan::Phase,
    publisher::Order,
    report::Report,
    shared::RunContext,
    store_client::{LookupOutcome, StoreLookup},
    tally::{ReceiverTally, lock},
    target::Target,
    watch::{Source, Watch, WatchedNode},
};

/// Before the first phase, so that meshes have formed and the node idles.
const SETTLE: Duration = Duration::from_secs(2);
/// Between two looks whether everything has arrived.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Between two looks whether the nodes are still there.
const NODES_EVERY: Duration = Duration::from_millis(500);
/// Between two lines of progress, at a terminal and elsewhere.
const PROGRESS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(10)];
/// From an order to the begin of its phase: all publishers have it by then.
const AHEAD: Duration = Duration::from_millis(20);
/// After a phase's last answer is due, until publishers are given up.
const SLACK: Duration = Duration::from_secs(10);
/// The answer to a look into the store.
const STORE_TIME: Duration = Duration::from_secs(60);

/// Settings that differ between the runs of one invocation.
pub(crate) struct Start<'a> {
    pub(crate) label: &'a str,
    /// Named by the user, and their processes.
    pub(crate) nodes: &'a [Multiaddr],
    pub(crate) pids: &'a [u32],
    /// Until all clients must be connected.
    pub(crate) timeout: Duration,
    pub(crate) command: Option<&'a str>,
    pub(crate) picture: Option<&'a Path>,
    pub(crate) memory: Option<u64>,
    pub(crate) members: Option<&'a Members>,
    pub(crate) stop: &'a Stop,
}

/// Runs all phases against one node or network. Errors: a node cannot be started or reached; nodes
/// that die later are a result.
#[expect(clippy::too_many_lines, reason = "steps of one matter, each on what those before it left")]
pub(crate) async fn run(work: &Workload, start: &Start<'_>) -> Result<Report> {
    let Workload { load, phases } = work;
    let folder = tempfile::tempdir().context("making a folder for the node's files")?;
    let [port] = cli::free_ports()?;
    let mut node = match start.command {
        Some(command) => Some(Node::start(command, start.memory, folder.path(), port)?),
        None => None,
    };
    let (addresses, watched) = nodes(start, node.as_mut(), port).await?;
    let series = folder.path().join("series.jsonl");
    let name = match watched.len() {
        0 | 1 => format!("stress of {}", start.label),
        count => format!("stress of {}, {count} nodes together,", start.label),
    };
    let watch = match watched.is_empty() {
        true => None,
        false => Some(Watch::start(watched, &name, start.command, series)?),
    };
    let target = Target::new(addresses, load)?;
    let shared = RunContext::new(target, load.clone(), phases.len());
    let mut clients = Clients::start(&shared, phases.len());
    let ready = {
        let ended = || node.as_mut().is_some_and(Node::has_ended);
        let ready = clients.all_ready(&shared, start.timeout, ended);
        start.stop.race(ready).await
    };
    let about = match ready {
        Some(Ok(about)) => about,
        Some(Err(error)) => match &node {
            Some(node) => bail!("{error:#}\nwhat the node said:\n{}", node.log_tail()),
            None => return Err(error),
        },
        None => bail!("stopped before all clients were connected: nothing was measured"),
    };
    start.stop.race(sleep(SETTLE)).await;
    let idle = watch.as_ref().map(moment);

    let serves_store = store_is_served(&shared, &about);
    let driver = Driver {
        start,
        work,
        shared: &shared,
        clients: &clients,
        watch: watch.as_ref(),
        serves_store,
    };
    let mut measured = Vec::new();
    for (index, phase) in phases.iter().enumerate() {
        if driver.all_gone() || start.stop.is_requested() {
            break;
        }
        measured.push(driver.phase(index, phase).await?);
    }
    let after = match measured.len() == phases.len() {
        true => driver.after().await,
        false => Vec::new(),
    };
    // Asked before anything is stopped on purpose.
    let last = watch.as_ref().map(moment);
    let reached =
        (0..shared.target.addresses.len()).map(|node| shared.places.is_reached(node)).collect();
    let ended_early = node.as_mut().is_some_and(Node::has_ended);
    let connections_lost = shared.connections_lost();
    // The end of the node from here on does not count as an event of the load.
    clients.stop().await;
    // The picture ends with the load; that the node is stopped after it is not news.
    let mut watched = Vec::new();
    if let Some(watch) = watch {
        watched.clone_from(&watch.nodes);
        let series = watch.finish();
        if let Some(path) = start.picture {
            picture::draw(&series, path).with_context(|| format!("drawing {}", path.display()))?;
        }
    }
    let end = match node {
        Some(node) => Some(node.stop().await?),
        None => None,
    };
    Ok(build_report(RunData {
        start,
        work,
        shared: &shared,
        clients: &clients,
        about,
        watched,
        measured,
        idle,
        after,
        last,
        reached,
        ended_early,
        end,
        connections_lost,
    }))
}

/// Where the nodes are, and what is watched of them.
async fn nodes(
    start: &Start<'_>,
    node: Option<&mut Node>,
    port: u16,
) -> Result<(Vec<Multiaddr>, Vec<WatchedNode>)> {
    if let Some(node) = node {
        let address = match start.nodes.first() {
            Some(address) => address.clone(),
            None => format!("/ip4/127.0.0.1/tcp/{port}").parse()?,
        };
        let watched = WatchedNode {
            label: start.label.to_owned(),
            source: node.source().await?,
            cap_bytes: start.memory.unwrap_or(0),
            series: node.series(),
        };
        return Ok((vec![address], vec![watched]));
    }
    if let Some(members) = start.members {
        return Ok((members.addresses.clone(), members.watched.clone()));
    }
    let of = |(index, pid): (usize, &u32)| WatchedNode {
        label: format!("node {index}"),
        source: Source::Process(Pid(*pid)),
        cap_bytes: 0,
        series: None,
    };
    Ok((start.nodes.to_vec(), start.pids.iter().enumerate().map(of).collect()))
}

/// Whether the node that the store client works at has a store.
fn store_is_served(shared: &RunContext, about: &[crate::session::IdentifyMessage]) -> bool {
    about
        .get(shared.places.node_for_store_client())
        .is_some_and(|about| about.speaks(store::PROTOCOL))
}

fn moment(watch: &Watch) -> Moment {
    let of = |seen: &crate::watch::NodeStats| NodeMoment { memory: seen.now, gone: seen.gone };
    watch.node_stats().iter().map(of).collect()
}

/// State of a phase.
struct Driver<'a> {
    start: &'a Start<'a>,
    work: &'a Workload,
    shared: &'a RunContext,
    clients: &'a Clients,
    watch: Option<&'a Watch>,
    serves_store: bool,
}

impl Driver<'_> {
    /// Whether no node is left to work on: none runs, as far as that is known, or none accepts
    /// connections.
    fn all_gone(&self) -> bool {
        self.watch.is_some_and(Watch::all_gone) || self.shared.places.all_gone()
    }

    async fn phase(&self, index: usize, phase: &Phase) -> Result<MeasuredPhase> {
        let Self { shared, clients, watch, .. } = self;
        let (label, phases) = (self.start.label, self.work.phases.len());
        shared.phase.store(index, Relaxed);
        if let Some(watch) = watch {
            watch.begin_phase(&phase.name);
        }
        let before = watch.map(Watch::node_stats);
        let restarts =
            || watch.map(|watch| watch.nodes.iter().map(WatchedNode::restarts).collect());
        let restarts_before = restarts();
        let driver_before = own_cpu();
        let begin = Instant::now() + AHEAD;
        let (done_tx, mut done_rx) = mpsc::channel(clients.order_txs.len());
        for order_tx in &clients.order_txs {
            let order =
                Order { phase: index, plan: phase.clone(), begin, done_tx: done_tx.clone() };
            order_tx.send(order).await.ok().context("a publisher has ended")?;
        }
        drop(done_tx);
        clients.query_phase_tx.send_replace(Some(index));
        let head = format!("stress: {label}: phase {}/{phases}, {}", index + 1, phase.name);
        eprintln!("{head}: begins");
        let progress = PROGRESS[usize::from(!std::io::stderr().is_terminal())];
        let deadline = begin + phase.length() + self.work.load.answer_time() + SLACK;
        let (mut done, mut cut_short) = (0, None);
        let mut last_progress = Instant::now();
        while done < clients.order_txs.len() && Instant::now() < deadline {
            if self.all_gone() || self.start.stop.is_requested() {
                cut_short = Some(begin.elapsed().as_secs_f64().min(phase.seconds));
                break;
            }
            match timeout(NODES_EVERY, self.start.stop.race(done_rx.recv())).await {
                Ok(Some(Some(()))) => done += 1,
                Ok(Some(None)) => break,
                Ok(None) | Err(_) => {}
            }
            if last_progress.elapsed() >= progress {
                last_progress = Instant::now();
                self.progress(&head, index, phase, begin);
            }
        }
        clients.query_phase_tx.send_replace(None);
        self.drain(index).await;
        let driver_cpu = own_cpu().saturating_sub(driver_before);
        let seen = watch.map(Watch::node_stats);
        let restarts_after = restarts();
        // Nodes that are gone would be waited for in vain.
        let should_query = self.serves_store && !self.all_gone() && !self.start.stop.is_requested();
        let store = if should_query { self.query_store(index).await } else { None };
        self.progress(&format!("{head}: over"), index, phase, begin);
        Ok(MeasuredPhase {
            cut_short,
            store,
            before: before.unwrap_or_default(),
            seen: seen.unwrap_or_default(),
            restarts: [restarts_before, restarts_after].map(Option::unwrap_or_default),
            driver_cpu,
        })
    }

    /// Waits until all that was accepted has arrived, as long as it may take.
    async fn drain(&self, index: usize) {
        let (_, accepted) = self.clients.pushed(index);
        let deadline = Instant::now() + self.work.load.drain_time();
        while !self.clients.all_arrived(index, &accepted) && Instant::now() < deadline {
            if self.all_gone() || self.start.stop.race(sleep(LOOK_EVERY)).await.is_none() {
                break;
            }
        }
    }

    /// Memory at the moments after the load.
    async fn after(&self) -> Vec<(u64, Moment)> {
        let ended = Instant::now();
        let mut after = Vec::new();
        let Some(watch) = self.watch else { return after };
        watch.mark("end of the load");
        for seconds in &self.work.load.after {
            if self.all_gone() {
                break;
            }
            if *seconds > 0 {
                eprintln!(
                    "stress: {}: memory {seconds} s after the load is waited for",
                    self.start.label
                );
            }
            let until = ended + Duration::from_secs(*seconds);
            if self.start.stop.race(sleep_until(until)).await.is_none() {
                break;
            }
            after.push((*seconds, moment(watch)));
        }
        after
    }

    fn progress(&self, head: &str, index: usize, phase: &Phase, begin: Instant) {
        let clients = self.clients;
        let (pushed, _) = clients.pushed(index);
        let received = |all: &[Arc<Mutex<ReceiverTally>>]| {
            let count = |received: &Arc<Mutex<ReceiverTally>>| {
                lock(received).phase(index).map_or(0, |phase| phase.intact_count())
            };
            let counts: Vec<u64> = all.iter().map(count).collect();
            match (counts.iter().min(), counts.iter().max()) {
                (Some(least), Some(most)) if least < most => format!("{least} to {most}"),
                (Some(all), _) => all.to_string(),
                (None, _) => "-".into(),
            }
        };
        let memory = self.watch.map_or_else(String::new, |watch| {
            let bytes: u64 = watch.node_stats().iter().map(|seen| seen.now.anonymous_bytes).sum();
            format!(", {:.1} MiB anonymous", bytes as f64 / accounting::MIB as f64)
        });
        let seconds = begin.elapsed().as_secs_f64().min(phase.seconds);
        eprintln!(
            "{head}: {seconds:.0} of {} s, sent {}, accepted {}, each receiver has {}, each relay \
             peer {}{memory}",
            phase.seconds,
            pushed.sent,
            clients.accepted_count(index),
            received(&clients.receivers),
            received(&clients.relay_peers),
        );
    }

    /// Looks for a sample of what was accepted in the store; how many were looked for, and what
    /// came of it. Nothing when there is nothing to look for.
    async fn query_store(&self, index: usize) -> Option<(usize, LookupOutcome)> {
        let hashes: Vec<_> = self
            .clients
            .pushed
            .iter()
            .flat_map(|pushed| {
                let pushed = lock(pushed);
                pushed.get(index).map(|pushed| pushed.sample().collect::<Vec<_>>())
            })
            .flatten()
            .collect();
        let looked = hashes.len();
        if looked == 0 {
            return None;
        }
        let (reply_tx, reply_rx) = oneshot::channel();
        let looking = async {
            self.clients.lookup_tx.send(StoreLookup { hashes, reply_tx }).await.ok()?;
            reply_rx.await.ok()
        };
        let found = self.start.stop.race(timeout(STORE_TIME, looking)).await?;
        Some((
            looked,
            found.ok().flatten().unwrap_or(LookupOutcome { found: 0, unanswered: looked }),
        ))
    }
}

/// CPU time of this process.
fn own_cpu() -> Duration {
    process::cpu_time(Pid::own()).unwrap_or_default()
}
