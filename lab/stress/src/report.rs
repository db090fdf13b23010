//! Result of a run: figures, for machines and for people.
//!
//! Bounds: phases, receivers and answers of a run. Must never know: how the figures were measured.

use accounting::MIB;
use serde::Serialize;

use crate::{settings::Load, table::table, tally::Latencies};

/// Version of the JSON (docs/stress.md).
pub const FORMAT: u32 = 2;

/// The figures of a whole run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Version of the document, [`FORMAT`].
    pub format: u32,
    /// Name of the node in tables.
    pub label: String,
    /// Processor, memory, kernel.
    pub machine: String,
    /// When the run began, in UTC: `2026-11-21T03:04:05Z`.
    pub started: String,
    /// Clients, limits, the network's numbers.
    pub(crate) load: Load,
    /// The light push protocol that was used.
    pub light_push: String,
    /// Whether the node that was asked serves store queries of version 3.
    pub serves_store: bool,
    /// In the order in which they were named.
    pub nodes: Vec<NodeReport>,
    /// In order; those that were begun.
    pub phases: Vec<PhaseReport>,
    /// How many there were to be.
    pub phases_asked: usize,
    /// Connections that ended before the run did, and were made again.
    pub connections_lost: Vec<Lost>,
    /// Whether the run was stopped before its end.
    pub interrupted: bool,
    /// Whether nothing accepted was lost and the nodes lived.
    pub good: bool,
    /// The same in a sentence.
    pub verdict: String,
}

/// A node over the whole run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct NodeReport {
    /// Where it was reached.
    pub address: String,
    /// Agent string that it reports.
    pub agent: String,
    /// The cap on its memory, where this program knows of one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cap_bytes: Option<u64>,
    /// Before the first phase; none where nothing is known of its process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle: Option<Memory>,
    /// Memory at given times after the last phase.
    pub after: Vec<After>,
    /// Whether its process ended before it was stopped.
    pub died: bool,
    /// Whether a client was connected to it in the end.
    pub reached_in_the_end: bool,
    /// How it ended, if this run started it or its cap reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    /// Processes killed for lack of memory, where a cap counts them.
    pub oom_kills: u64,
    /// Processes that took another's place, where a cap counts them.
    pub restarts: u64,
}

/// Connections of one kind of clients that ended.
#[derive(Clone, Debug, Serialize)]
pub struct Lost {
    /// The kind of clients: publishers, receivers, relay peers or the store client.
    pub who: String,
    /// Connections that ended before the run did.
    pub count: u64,
    /// Why one of them did.
    pub example: String,
}

/// Memory at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Anonymous memory: only swap could reclaim it.
    pub anonymous_bytes: u64,
    /// Page cache of a capped group, else mapped file pages.
    pub file_bytes: u64,
}

/// Memory some time after the last phase.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct After {
    /// Seconds since the last phase ended.
    pub seconds: u64,
    /// Memory of the node at that moment.
    pub memory: Memory,
}

/// A latency's distribution.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Latency {
    /// Number of values that were measured.
    pub count: u64,
    /// The median, in milliseconds.
    pub p50_millis: f64,
    /// Exceeded by one in ten.
    pub p90_millis: f64,
    /// Exceeded by one in a hundred.
    pub p99_millis: f64,
    /// Exceeded by one in a thousand.
    pub p999_millis: f64,
    /// The longest latency, in milliseconds.
    pub max_millis: f64,
}

impl Latency {
    pub(crate) fn from_histogram(Latencies(histogram): &Latencies) -> Self {
        let millis = |micros: u64| if histogram.is_empty() { 0.0 } else { micros as f64 / 1000.0 };
        Self {
            count: histogram.len(),
            p50_millis: millis(histogram.value_at_quantile(0.5)),
            p90_millis: millis(histogram.value_at_quantile(0.9)),
            p99_millis: millis(histogram.value_at_quantile(0.99)),
            p999_millis: millis(histogram.value_at_quantile(0.999)),
            max_millis: millis(histogram.max()),
        }
    }
}

/// Pushes with the same answer.
#[derive(Clone, Debug, Serialize)]
pub struct Answers {
    /// Its code, or what there was instead.
    pub answer: String,
    /// From opening the stream to the answer.
    pub latency: Latency,
    /// Text of one of them.
    pub example: String,
}

/// Messages that reached a receiver or a relay peer.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Delivery {
    /// Index of the node it is connected to.
    pub node: usize,
    /// Accepted messages that came whole.
    pub delivered: u64,
    /// Accepted messages that did not come whole.
    pub missing: u64,
    /// Messages that arrived whole although they were not acknowledged to their publisher.
    pub unaccepted: u64,
    /// Messages that came again.
    pub double: u64,
    /// Messages that came after more than ten seconds.
    pub late: u64,
    /// Messages that came otherwise than they were sent.
    pub damaged: u64,
    /// From sending to receiving.
    pub delay: Latency,
}

/// Accepted messages that were looked for in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct StoreSample {
    /// Accepted messages that were looked for.
    pub looked: u64,
    /// Those that were found.
    pub found: u64,
    /// Messages whose query got no answer: it is unknown whether they are stored.
    pub unanswered: u64,
}

impl StoreSample {
    /// Looked for, answered for, and not there.
    pub fn missing(&self) -> u64 {
        self.looked.saturating_sub(self.found + self.unanswered)
    }
}

/// A node in one phase, until the phase's last message was received or given up.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct NodePhase {
    /// Most in any sample.
    pub peak: Memory,
    /// Over all samples.
    pub mean: Memory,
    /// In the last sample.
    pub end: Memory,
    /// CPU time it took.
    pub cpu_seconds: f64,
    /// Processes killed for lack of memory.
    pub oom_kills: u64,
    /// Processes that took another's place.
    pub restarts: u64,
}

/// Store queries during the load.
#[derive(Clone, Debug, Serialize)]
pub struct Queries {
    /// From asking to the last byte.
    pub latency: Latency,
    /// Code and count; 0 is no answer.
    pub codes: Vec<(u32, u64)>,
    /// Messages in the answers.
    pub entries: u64,
    /// Not asked: too many were in flight.
    pub skipped: u64,
}

/// The figures of one phase.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PhaseReport {
    /// Its name in the plan.
    pub name: String,
    /// Bytes of payloads, least and most.
    pub payload_bytes: [usize; 2],
    /// Messages per second that were asked for; none: as fast as the node answers.
    pub asked_rate: Option<f64>,
    /// From its begin to the last answer.
    pub seconds: f64,
    /// Whether it ended early: no node was reachable, or a stop was requested.
    pub cut_short: bool,
    /// Messages that were due.
    pub due: u64,
    /// Messages that were sent.
    pub sent: u64,
    /// Messages that were answered with 200.
    pub accepted: u64,
    /// Answers to the pushes, grouped by what was answered.
    pub answers: Vec<Answers>,
    /// From when a message was due to when it was sent.
    pub lateness: Latency,
    /// Deliveries to each receiver.
    pub receivers: Vec<Delivery>,
    /// By relay peer.
    pub relay_peers: Vec<Delivery>,
    /// Of the accepted ones, a sample; none where no node has a store or nothing was accepted.
    pub store: Option<StoreSample>,
    /// If there were any.
    pub queries: Option<Queries>,
    /// By node; empty where nothing is known of their processes.
    pub nodes: Vec<NodePhase>,
    /// Of all nodes, for each accepted message, until the last was received or given up.
    pub cpu_millis_per_accepted: Option<f64>,
    /// Of the driver.
    pub driver_cpu_millis_per_accepted: f64,
}

/// How a figure is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A number of messages.
    Count,
    /// A number of messages or other events per second.
    Rate,
    /// A time in milliseconds.
    Millis,
    /// Of a hundred.
    Percent,
    /// Bytes, written in MiB.
    Mib,
}

impl Unit {
    pub(crate) fn text(self, value: f64) -> String {
        match self {
            Self::Count => format!("{value:.0}"),
            Self::Rate => format!("{value:.1}"),
            Self::Millis if value < 10.0 => format!("{value:.2}"),
            Self::Millis => format!("{value:.0}"),
            Self::Percent if value == 100.0 => "100".into(),
            // Rounded down: 99.996 is not 100.
            Self::Percent => format!("{:.2}", (value * 100.0).floor() / 100.0),
            Self::Mib => format!("{:.1}", value / MIB as f64),
        }
    }
}

/// One figure of a phase.
#[derive(Clone, Debug)]
pub struct Figure {
    /// Its name, with the unit.
    pub name: String,
    /// In that unit, but bytes for MiB.
    pub value: f64,
    /// How it is written.
    pub unit: Unit,
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 100.0 } else { part as f64 * 100.0 / whole as f64 }
}

impl PhaseReport {
    /// Accepted messages per second.
    pub fn reached_rate(&self) -> f64 {
        if self.seconds > 0.0 { self.accepted as f64 / self.seconds } else { 0.0 }
    }

    /// Most accepted messages that one receiver did not get.
    pub fn lost(&self) -> u64 {
        self.receivers.iter().map(|delivery| delivery.missing).max().unwrap_or(0)
    }

    /// Whether clients work at several nodes.
    fn several(&self) -> bool {
        let nodes = self.receivers.iter().chain(&self.relay_peers).map(|delivery| delivery.node);
        self.nodes.len() > 1 || nodes.max() > Some(0)
    }

    /// Every figure, in the order of the table.
    #[expect(clippy::too_many_lines, reason = "a table, entry after entry")]
    pub fn figures(&self) -> Vec<Figure> {
        let mut figures = Vec::new();
        let mut add = |name: &str, value: f64, unit: Unit| {
            figures.push(Figure { name: name.to_owned(), value, unit });
        };
        if let Some(rate) = self.asked_rate {
            add("asked, messages/s", rate, Unit::Rate);
        }
        add("reached, messages/s", self.reached_rate(), Unit::Rate);
        add("sent", self.sent as f64, Unit::Count);
        if self.asked_rate.is_some() {
            add("due and not sent", self.due.saturating_sub(self.sent) as f64, Unit::Count);
            add("sent late by, p99 ms", self.lateness.p99_millis, Unit::Millis);
            add("sent late by, max ms", self.lateness.max_millis, Unit::Millis);
        }
        for answers in &self.answers {
            let Answers { answer, latency, .. } = answers;
            add(&format!("push {answer}, count"), latency.count as f64, Unit::Count);
            add(&format!("push {answer}, p50 ms"), latency.p50_millis, Unit::Millis);
            add(&format!("push {answer}, p90 ms"), latency.p90_millis, Unit::Millis);
            add(&format!("push {answer}, p99 ms"), latency.p99_millis, Unit::Millis);
            add(&format!("push {answer}, max ms"), latency.max_millis, Unit::Millis);
        }
        for (what, deliveries) in [("receiver", &self.receivers), ("relay peer", &self.relay_peers)]
        {
            for (index, delivery) in deliveries.iter().enumerate() {
                let at = if self.several() {
                    format!(" at node {}", delivery.node)
                } else {
                    String::new()
                };
                let who = format!("{what} {}{at}", index + 1);
                let share = percent(delivery.delivered, self.accepted);
                add(&format!("{who}, % of accepted"), share, Unit::Percent);
                for (name, count) in [
                    ("whole", delivery.delivered),
                    ("missing", delivery.missing),
                    ("double", delivery.double),
                    ("late", delivery.late),
                    ("damaged", delivery.damaged),
                    ("whole, not accepted", delivery.unaccepted),
                ] {
                    add(&format!("{who}, {name}"), count as f64, Unit::Count);
                }
                add(&format!("{who}, delay p50 ms"), delivery.delay.p50_millis, Unit::Millis);
                add(&format!("{who}, delay p99 ms"), delivery.delay.p99_millis, Unit::Millis);
            }
        }
        if let Some(store) = self.store {
            add("store, % of sample found", percent(store.found, store.looked), Unit::Percent);
            add("store, sample", store.looked as f64, Unit::Count);
            add("store, missing", store.missing() as f64, Unit::Count);
            add("store, not answered", store.unanswered as f64, Unit::Count);
        }
        if let Some(queries) = &self.queries {
            add("store queries", queries.latency.count as f64, Unit::Count);
            add("store queries, p50 ms", queries.latency.p50_millis, Unit::Millis);
            add("store queries, p99 ms", queries.latency.p99_millis, Unit::Millis);
            let bad = queries.codes.iter().filter(|(code, _)| *code != 200).map(|(_, count)| count);
            add("store queries, not answered 200", bad.sum::<u64>() as f64, Unit::Count);
            add("store queries, skipped", queries.skipped as f64, Unit::Count);
        }
        for (index, node) in self.nodes.iter().enumerate() {
            let who = if self.nodes.len() > 1 { format!("node {index}, ") } else { String::new() };
            let moments = [("peak", node.peak), ("mean", node.mean), ("end", node.end)];
            // With several nodes the peaks are enough for a table.
            let shown = if self.nodes.len() > 1 { &moments[..1] } else { &moments[..] };
            for (when, memory) in shown {
                let bytes = memory.anonymous_bytes as f64;
                add(&format!("{who}anonymous memory, {when} MiB"), bytes, Unit::Mib);
            }
            add(&format!("{who}file memory, peak MiB"), node.peak.file_bytes as f64, Unit::Mib);
            add(&format!("{who}OOM kills"), node.oom_kills as f64, Unit::Count);
            add(&format!("{who}restarts"), node.restarts as f64, Unit::Count);
        }
        if let Some(millis) = self.cpu_millis_per_accepted {
            let who = if self.nodes.len() > 1 { "all nodes" } else { "node" };
            add(&format!("{who}, CPU ms/message"), millis, Unit::Millis);
        }
        add("driver, CPU ms/message", self.driver_cpu_millis_per_accepted, Unit::Millis);
        figures
    }
}

impl NodeReport {
    /// Every figure, in the order of the table.
    fn figures(&self) -> Vec<Figure> {
        let mut figures = Vec::new();
        let mut add =
            |name: String, value: f64, unit: Unit| figures.push(Figure { name, value, unit });
        if let Some(idle) = self.idle {
            add("anonymous memory before, MiB".into(), idle.anonymous_bytes as f64, Unit::Mib);
        }
        for After { seconds, memory } in &self.after {
            let name = |what: &str| format!("{what} memory {seconds} s after, MiB");
            add(name("anonymous"), memory.anonymous_bytes as f64, Unit::Mib);
            add(name("file"), memory.file_bytes as f64, Unit::Mib);
        }
        for (name, value) in [
            ("died", u64::from(self.died)),
            ("OOM kills", self.oom_kills),
            ("restarts", self.restarts),
        ] {
            add(name.into(), value as f64, Unit::Count);
        }
        figures
    }
}

impl Report {
    /// Judges: at most `lost_percent_max` of what was accepted in a phase may be missing at
    /// a receiver, or in what the store was asked for, and the nodes must live and be reached.
    pub fn set_verdict(&mut self) {
        let most = self.load.lost_percent_max;
        let accepted: u64 = self.phases.iter().map(|phase| phase.accepted).sum();
        let sent: u64 = self.phases.iter().map(|phase| phase.sent).sum();
        let lost: u64 = self.phases.iter().map(PhaseReport::lost).sum();
        let over = |missing: u64, whole: u64| missing as f64 > whole as f64 * most / 100.0;
        let lost_too_many = self.phases.iter().any(|phase| over(phase.lost(), phase.accepted));
        let store = self.phases.iter().filter_map(|phase| phase.store);
        let not_stored: u64 = store.clone().map(|store| store.missing()).sum();
        let stored_too_few = store.clone().any(|store| over(store.missing(), store.looked));
        let of_sent = if accepted == sent { String::new() } else { format!(" of {sent} sent") };
        let cut = self.phases.iter().any(|phase| phase.cut_short) || self.interrupted;
        let (begun, asked) = (self.phases.len(), self.phases_asked);
        let whole_run = match cut {
            true => format!(" (the run ended early, in phase {begun} of {asked})"),
            false => String::new(),
        };
        let (good, text) = if let Some(fault) = self.fault() {
            let text = format!(
                "{fault}; {accepted} messages{of_sent} were accepted, and one receiver misses up \
                 to {lost} of them"
            );
            (false, text)
        } else if accepted == 0 {
            (false, format!("no message was accepted{of_sent}"))
        } else if lost_too_many {
            let arrived = Unit::Percent.text(percent(accepted - lost.min(accepted), accepted));
            let text = format!(
                "of {accepted} accepted messages one receiver misses up to {lost} ({arrived} % \
                 arrived)"
            );
            (false, text)
        } else if stored_too_few {
            let looked: u64 = store.map(|store| store.looked).sum();
            let text = format!(
                "of {looked} accepted messages that were looked for in the store, {not_stored} \
                 are not there"
            );
            (false, text)
        } else if self.load.receivers == 0 {
            let text = format!(
                "{accepted} messages{of_sent} were accepted; without receivers nothing says \
                 whether they were delivered"
            );
            (true, text)
        } else if lost > 0 {
            let text = format!(
                "of {accepted} accepted messages{of_sent} every receiver got all but at most \
                 {lost}, within the {most} % that may be lost"
            );
            (true, text)
        } else {
            (true, format!("all {accepted} accepted messages{of_sent} reached every receiver"))
        };
        self.good = good;
        self.verdict = format!("{}: {text}{whole_run}", if good { "GOOD" } else { "BAD" });
    }

    /// What happened to a node that must not happen.
    fn fault(&self) -> Option<String> {
        let several = self.nodes.len() > 1;
        let who =
            |index: usize| if several { format!("node {index}") } else { "the node".to_owned() };
        let faults: Vec<String> = self
            .nodes
            .iter()
            .enumerate()
            .filter_map(|(index, node)| {
                let how = node.ended.as_deref().map_or_else(String::new, |how| format!(" ({how})"));
                match (node.died, node.oom_kills) {
                    (true, 0) => Some(format!("{} died under the load{how}", who(index))),
                    (true, kills) => {
                        Some(format!("{} died under the load{how}, {kills} OOM kills", who(index)))
                    }
                    (false, kills) if kills > 0 => {
                        Some(format!("{}: {kills} OOM kills", who(index)))
                    }
                    _ => None,
                }
            })
            .collect();
        // A node that no client works at is not connected to either.
        if faults.is_empty() && !self.nodes.iter().any(|node| node.reached_in_the_end) {
            return Some("in the end no client was connected any more".into());
        }
        (!faults.is_empty()).then(|| faults.join("; "))
    }

    /// Figures of the whole run, by node.
    pub fn figures(&self) -> Vec<Vec<Figure>> {
        self.nodes.iter().map(NodeReport::figures).collect()
    }

    /// The parameters in one line.
    pub fn load_text(&self) -> String {
        let Load { publishers, receivers, relay_peers, store_queries, outstanding, .. } =
            &self.load;
        let flood = match self.phases.iter().any(|phase| phase.asked_rate.is_none()) {
            true => format!(" ({outstanding} requests in flight each, where there is no rate)"),
            false => String::new(),
        };
        format!(
            "{publishers} publishers{flood}, {receivers} receivers by filter, {relay_peers} relay \
             peers, {store_queries} store queries/s"
        )
    }

    /// The table, and what does not fit into it.
    pub fn text(&self) -> String {
        let heads: Vec<String> = self.phases.iter().map(|phase| phase.name.clone()).collect();
        let cells = |figures: Vec<Figure>| {
            figures
                .into_iter()
                .map(|figure| (figure.name, figure.unit.text(figure.value)))
                .collect()
        };
        let columns: Vec<Vec<(String, String)>> =
            self.phases.iter().map(|phase| cells(phase.figures())).collect();
        let mut text = "\n".to_owned();
        for (index, node) in self.nodes.iter().enumerate() {
            let who =
                if self.nodes.len() > 1 { format!("node {index}") } else { self.label.clone() };
            let cap = node.cap_bytes.map_or_else(String::new, |bytes| {
                format!(", capped at {}", accounting::format_size(bytes))
            });
            text += &format!("{who}: {} at {}{cap}\n", node.agent, node.address);
        }
        text += &format!(
            "load: {}; {}\nmachine: {}\n\n",
            self.load_text(),
            self.light_push,
            self.machine
        );
        text += &table(&heads, &columns);
        for phase in &self.phases {
            for answers in phase.answers.iter().filter(|answers| answers.answer != "200") {
                let Answers { answer, example, latency } = answers;
                text +=
                    &format!("\n{}: {} x {answer}, such as: {example}", phase.name, latency.count);
            }
        }
        let heads: Vec<String> = match self.nodes.len() {
            1 => vec![String::new()],
            count => (0..count).map(|index| format!("node {index}")).collect(),
        };
        let columns: Vec<Vec<(String, String)>> = self.figures().into_iter().map(cells).collect();
        text += &format!("\n\nwhole run\n{}", table(&heads, &columns));
        for (index, node) in self.nodes.iter().enumerate() {
            if let Some(ended) = &node.ended {
                let who =
                    if self.nodes.len() > 1 { format!("node {index}") } else { "the node".into() };
                text += &format!("\nend of {who}: {ended}");
            }
        }
        for Lost { who, count, example } in &self.connections_lost {
            text += &format!(
                "\n{count} connections of {who} ended and were made again, such as: {example}"
            );
        }
        if !self.serves_store {
            text.push_str("\nstore: the node serves no queries of version 3, so none were made");
        }
        text + &format!("\n{}\n", self.verdict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;

    fn delivery(delivered: u64, missing: u64) -> Delivery {
        Delivery { delivered, missing, ..Delivery::default() }
    }

    fn report(accepted: u64, missing: u64) -> Report {
        Report {
            format: FORMAT,
            label: "node".into(),
            machine: String::new(),
            started: String::new(),
            load: Settings { relay_peers: Some(0), ..Settings::default() }.load().unwrap(),
            light_push: String::new(),
            serves_store: true,
            nodes: vec![NodeReport { reached_in_the_end: true, ..NodeReport::default() }],
            phases: vec![PhaseReport {
                name: "small".into(),
                payload_bytes: [500, 1000],
                asked_rate: Some(10.0),
                seconds: 2.0,
                due: accepted,
                sent: accepted,
                accepted,
                receivers: vec![delivery(accepted, 0), delivery(accepted - missing, missing)],
                driver_cpu_millis_per_accepted: 0.1,
                ..PhaseReport::default()
            }],
            phases_asked: 1,
            connections_lost: vec![],
            interrupted: false,
            good: false,
            verdict: String::new(),
        }
    }

    #[test]
    fn one_lost_message_at_one_receiver_is_bad_and_a_death_is_worse() {
        let verdict = |mut report: Report, most: f64| {
            report.load.lost_percent_max = most;
            report.set_verdict();
            (report.good, report.verdict)
        };
        assert!(verdict(report(1000, 0), 0.0).0);
        let (good, text) = verdict(report(1000, 1), 0.0);
        assert!(!good && text.contains("99.90 % arrived"), "{text}");
        assert!(verdict(report(1000, 1), 0.1).0);
        assert!(!verdict(report(1000, 2), 0.1).0);
        assert!(!verdict(report(0, 0), 0.0).0, "nothing accepted proves nothing");
        let mut dead = report(1000, 0);
        dead.nodes[0].died = true;
        assert!(verdict(dead, 0.0).1.contains("died"));
        let mut killed = report(1000, 0);
        killed.nodes[0].oom_kills = 2;
        assert!(verdict(killed, 0.0).1.contains("2 OOM kills"));
        let mut silent = report(1000, 0);
        silent.nodes[0].reached_in_the_end = false;
        assert!(verdict(silent, 0.0).1.contains("no client was connected"));
        let mut forgetful = report(1000, 0);
        forgetful.phases[0].store = Some(StoreSample { looked: 100, found: 98, unanswered: 1 });
        assert!(verdict(forgetful.clone(), 0.0).1.contains("1 are not there"));
        assert!(verdict(forgetful, 1.0).0);
        let mut stopped = report(1000, 0);
        stopped.interrupted = true;
        stopped.phases_asked = 4;
        assert!(verdict(stopped, 0.0).1.contains("ended early, in phase 1 of 4"));
    }

    #[test]
    fn a_percentage_is_never_rounded_up_to_all() {
        assert_eq!(Unit::Percent.text(99.9999), "99.99");
        assert_eq!(Unit::Percent.text(100.0), "100");
        assert_eq!(Unit::Percent.text(percent(0, 0)), "100");
    }

    #[test]
    fn the_table_has_the_figures_and_the_verdict() {
        let mut report = report(20, 1);
        report.set_verdict();
        let text = report.text();
        for part in ["reached, messages/s", "10.0", "receiver 2, missing", "95.00", "BAD"] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }
}
