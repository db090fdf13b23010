//! Collects the figures of a run once it is over: late messages of early phases count as well.
//!
//! Bounds: phases, clients and nodes of a run. Must never know: timeouts.

use std::{sync::Arc, sync::Mutex, time::Duration};

use memory_cap::machine;
use protocol::{light_push, store};

use crate::{
    clients::{Clients, delivered},
    drive::Start,
    node::NodeExit,
    options::Workload,
    plan::Phase,
    report::{
        After, Answers, Delivery, FORMAT, Latency, Lost, Memory, NodePhase, NodeReport,
        PhaseReport, Queries, Report, StoreSample,
    },
    session::IdentifyMessage,
    shared::RunContext,
    store_client::LookupOutcome,
    tally::{Bits, ReceiverTally, lock},
    watch::{NodeStats, WatchedNode},
};

#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeMoment {
    pub(crate) memory: Memory,
    pub(crate) gone: bool,
}

/// All nodes at one moment.
pub(crate) type Moment = Vec<NodeMoment>;

/// Figures that are only available while a phase runs. Nodes' figures are empty when nothing is
/// watched.
pub(crate) struct MeasuredPhase {
    /// How long it took if it ended before its time.
    pub(crate) cut_short: Option<f64>,
    /// Messages looked for in the store, and what came of it.
    pub(crate) store: Option<(usize, LookupOutcome)>,
    pub(crate) before: Vec<NodeStats>,
    pub(crate) seen: Vec<NodeStats>,
    /// By node, before and after.
    pub(crate) restarts: [Vec<u64>; 2],
    pub(crate) driver_cpu: Duration,
}

/// Everything about a run.
pub(crate) struct RunData<'a> {
    pub(crate) start: &'a Start<'a>,
    pub(crate) work: &'a Workload,
    pub(crate) shared: &'a RunContext,
    pub(crate) clients: &'a Clients,
    pub(crate) about: Vec<IdentifyMessage>,
    pub(crate) watched: Vec<WatchedNode>,
    pub(crate) measured: Vec<MeasuredPhase>,
    pub(crate) idle: Option<Moment>,
    pub(crate) after: Vec<(u64, Moment)>,
    /// Before a node was stopped.
    pub(crate) last: Option<Moment>,
    /// By node, whether a client was connected at that time.
    pub(crate) reached: Vec<bool>,
    /// Whether the node that this run started had ended by itself.
    pub(crate) ended_early: bool,
    pub(crate) end: Option<NodeExit>,
    pub(crate) connections_lost: Vec<Lost>,
}

pub(crate) fn build_report(run: RunData<'_>) -> Report {
    let nodes: Vec<NodeReport> = run
        .shared
        .target
        .addresses
        .iter()
        .enumerate()
        .map(|(index, _)| node_report(&run, index))
        .collect();
    let load = &run.work.load;
    let first = run.about.first();
    let lightpush = [light_push::PROTOCOL, light_push::PROTOCOL_V2]
        .into_iter()
        .find(|name| first.is_some_and(|about| about.speaks(name)));
    let store = run.about.get(run.shared.places.node_for_store_client());
    let mut report = Report {
        format: FORMAT,
        label: run.start.label.to_owned(),
        machine: machine::describe(),
        started: machine::now().0,
        load: load.clone(),
        light_push: lightpush.unwrap_or_default().to_owned(),
        serves_store: store.is_some_and(|about| about.speaks(store::PROTOCOL)),
        nodes,
        phases: Vec::new(),
        phases_asked: run.work.phases.len(),
        connections_lost: run.connections_lost.clone(),
        interrupted: run.start.stop.is_requested(),
        good: false,
        verdict: String::new(),
    };
    let RunData { measured, shared, clients, .. } = run;
    for (index, (phase, measured)) in run.work.phases.iter().zip(measured).enumerate() {
        report.phases.push(phase_report(shared, clients, index, phase, &measured));
    }
    report.set_verdict();
    report
}

fn node_report(run: &RunData<'_>, index: usize) -> NodeReport {
    let about = run.about.get(index).cloned().unwrap_or_default();
    let at = |moment: &Moment| moment.get(index).map(|node| node.memory);
    let watched = run.watched.get(index);
    let gone = run.last.as_ref().and_then(|last| last.get(index)).is_some_and(|node| node.gone);
    let seen: u64 = run
        .measured
        .iter()
        .filter_map(|phase| Some(phase.seen.get(index)?.oom_kills))
        .max()
        .unwrap_or(0);
    let left = watched.filter(|_| gone).and_then(|watched| watched.source.ended());
    let (ended, kills) = match (&run.end, left) {
        (Some(end), _) => (Some(end.how.clone()), end.oom_kills),
        (None, Some((how, kills))) => (Some(format!("by itself, {how}")), kills),
        (None, None) => (None, 0),
    };
    let restarts = run
        .end
        .as_ref()
        .map_or_else(|| watched.map_or(0, WatchedNode::restarts), |end| end.restarts);
    NodeReport {
        address: run
            .shared
            .target
            .addresses
            .get(index)
            .map(ToString::to_string)
            .unwrap_or_default(),
        agent: about.agent,
        cap_bytes: watched.map(|watched| watched.cap_bytes).filter(|bytes| *bytes > 0),
        idle: run.idle.as_ref().and_then(at),
        after: run
            .after
            .iter()
            .filter_map(|(seconds, moment)| Some(After { seconds: *seconds, memory: at(moment)? }))
            .collect(),
        died: gone || run.ended_early,
        reached_in_the_end: run.reached.get(index).copied().unwrap_or(false),
        ended,
        oom_kills: kills.max(seen),
        restarts,
    }
}

fn delivery(
    received: &ReceiverTally,
    node: usize,
    phase: usize,
    accepted: &[Bits],
) -> Option<Delivery> {
    let wanted: u64 = accepted.iter().map(Bits::count).sum();
    let delivered = delivered(received, phase, accepted);
    let phase = received.phase(phase)?;
    Some(Delivery {
        node,
        delivered,
        missing: wanted - delivered,
        unaccepted: phase.intact_count().saturating_sub(delivered),
        double: phase.double,
        late: phase.late,
        damaged: phase.damaged,
        delay: Latency::from_histogram(&phase.delay),
    })
}

fn phase_report(
    shared: &RunContext,
    clients: &Clients,
    index: usize,
    phase: &Phase,
    measured: &MeasuredPhase,
) -> PhaseReport {
    let (pushed, accepted) = clients.pushed(index);
    let deliveries = |all: &[Arc<Mutex<ReceiverTally>>], place: &dyn Fn(usize) -> usize| {
        all.iter()
            .enumerate()
            .filter_map(|(client, one)| delivery(&lock(one), place(client), index, &accepted))
            .collect()
    };
    let count = pushed.accepted_count;
    let each = |cpu: Duration| cpu.as_secs_f64() * 1000.0 / count.max(1) as f64;
    let queries = (shared.load.store_queries > 0.0).then(|| {
        let queried = lock(&clients.queried);
        queried.get(index).map(|queried| Queries {
            latency: Latency::from_histogram(&queried.latency),
            codes: queried.codes.iter().map(|(code, count)| (*code, *count)).collect(),
            entries: queried.entries,
            skipped: queried.skipped,
        })
    });
    let nodes = node_phases(measured);
    let cpu: Duration = nodes.iter().map(|node| Duration::from_secs_f64(node.cpu_seconds)).sum();
    PhaseReport {
        name: phase.name.clone(),
        payload_bytes: [phase.payload.min, phase.payload.max],
        asked_rate: phase.rate,
        seconds: measured
            .cut_short
            .unwrap_or_else(|| phase.seconds.max(pushed.last_answer_nanos as f64 / 1e9)),
        cut_short: measured.cut_short.is_some(),
        // A publisher that was not asked for it in the end has not counted what was due.
        due: pushed.due.max(pushed.sent),
        sent: pushed.sent,
        accepted: count,
        answers: pushed
            .answers
            .iter()
            .map(|answered| Answers {
                answer: answered.answer.to_string(),
                latency: Latency::from_histogram(&answered.latency),
                example: answered.example.clone(),
            })
            .collect(),
        lateness: Latency::from_histogram(&pushed.lateness),
        receivers: deliveries(&clients.receivers, &|client| {
            shared.places.node_for_receiver(client)
        }),
        relay_peers: deliveries(&clients.relay_peers, &|client| {
            shared.places.node_for_relay_peer(client)
        }),
        store: measured.store.map(|(looked, found)| StoreSample {
            looked: looked as u64,
            found: found.found as u64,
            unanswered: found.unanswered as u64,
        }),
        queries: queries.flatten(),
        cpu_millis_per_accepted: (!nodes.is_empty()).then(|| each(cpu)),
        nodes,
        driver_cpu_millis_per_accepted: each(measured.driver_cpu),
    }
}

fn node_phases(measured: &MeasuredPhase) -> Vec<NodePhase> {
    let MeasuredPhase { before, seen, restarts: [first, last], .. } = measured;
    seen.iter()
        .zip(before)
        .enumerate()
        .map(|(index, (seen, before))| {
            let restarts = |all: &Vec<u64>| all.get(index).copied().unwrap_or(0);
            NodePhase {
                peak: seen.peak,
                mean: seen.mean(),
                end: seen.now,
                cpu_seconds: seen.cpu.saturating_sub(before.cpu).as_secs_f64(),
                oom_kills: seen.oom_kills.saturating_sub(before.oom_kills),
                restarts: restarts(last).saturating_sub(restarts(first)),
            }
        })
        .collect()
}
