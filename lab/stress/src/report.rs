//! What came of a run: figures, for machines and for people.
//!
//! What bounds it: phases, receivers and answers of a run. What it must never know: how they were
//! measured.

use budget::MIB;
use serde::Serialize;

/// Version of the JSON.
pub const FORMAT: u32 = 1;

/// A run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// [`FORMAT`].
    pub format: u32,
    /// What the node is called in tables.
    pub label: String,
    /// Processor, memory, kernel.
    pub machine: String,
    /// In UTC.
    pub started: String,
    /// Where the node was reached.
    pub node: String,
    /// What it calls itself.
    pub agent: String,
    /// The light push protocol that was used.
    pub light_push: String,
    /// Whether it serves store queries of version 3.
    pub serves_store: bool,
    /// The cap on its memory, if this run set one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cap_bytes: Option<u64>,
    /// Publishers, receivers, relay peers.
    pub clients: [usize; 3],
    /// In order.
    pub phases: Vec<PhaseReport>,
    /// Of the node, before the first phase.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle: Option<Memory>,
    /// Of the node, so many seconds after the last phase.
    pub after: Vec<After>,
    /// Connections that ended before the run did, and were made again.
    pub connections_lost: Vec<Lost>,
    /// Whether the node was gone before it was stopped.
    pub node_died: bool,
    /// How it ended, if this run started it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_ended: Option<String>,
    /// Processes of the node killed for lack of memory, where a cap counts them.
    pub oom_kills: u64,
    /// Processes of the node that took another's place, where a cap counts them.
    pub restarts: u64,
    /// Whether nothing accepted was lost and the node lived.
    pub good: bool,
    /// The same in a sentence.
    pub verdict: String,
}

/// Connections of one kind of clients that ended.
#[derive(Clone, Debug, Serialize)]
pub struct Lost {
    /// Whose.
    pub who: String,
    /// How many.
    pub count: u64,
    /// Why one of them did.
    pub example: String,
}

/// Memory at one moment.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Memory {
    /// What only swap could take back.
    pub anonymous_bytes: u64,
    /// Page cache of a capped group, else mapped file pages.
    pub file_bytes: u64,
}

/// Memory some time after the last phase.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct After {
    /// Seconds since the last phase ended.
    pub seconds: u64,
    /// Then.
    pub memory: Memory,
}

/// A latency's distribution.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Latency {
    /// How many.
    pub count: u64,
    /// Median, milliseconds.
    pub p50_millis: f64,
    /// Exceeded by one in a hundred.
    pub p99_millis: f64,
    /// Longest.
    pub max_millis: f64,
}

impl Latency {
    pub(crate) fn of(histogram: &hdrhistogram::Histogram<u32>) -> Self {
        let millis = |micros: u64| if histogram.is_empty() { 0.0 } else { micros as f64 / 1000.0 };
        Self {
            count: histogram.len(),
            p50_millis: millis(histogram.value_at_quantile(0.5)),
            p99_millis: millis(histogram.value_at_quantile(0.99)),
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
    /// What one of them said.
    pub example: String,
}

/// What reached a receiver or a relay peer.
#[derive(Clone, Debug, Serialize)]
pub struct Delivery {
    /// Accepted messages that came whole.
    pub delivered: u64,
    /// Accepted messages that did not come whole.
    pub missing: u64,
    /// Messages that came whole although their publisher was not told that they are accepted.
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

/// Store queries beside the load.
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

/// A phase.
#[derive(Clone, Debug, Serialize)]
pub struct PhaseReport {
    /// Its name in the plan.
    pub name: String,
    /// Bytes of payloads, least and most.
    pub payload_bytes: [usize; 2],
    /// Messages per second that were asked for; none: as fast as the node answers.
    pub asked_rate: Option<f64>,
    /// From its begin to the last answer.
    pub seconds: f64,
    /// Messages that were due.
    pub due: u64,
    /// Messages that were sent.
    pub sent: u64,
    /// Messages that were answered with 200.
    pub accepted: u64,
    /// All answers.
    pub answers: Vec<Answers>,
    /// From when a message was due to when it was sent.
    pub lateness: Latency,
    /// By receiver.
    pub receivers: Vec<Delivery>,
    /// By relay peer.
    pub relay_peers: Vec<Delivery>,
    /// Accepted messages that were looked for in the store, and those that were found.
    pub store_sample: Option<[usize; 2]>,
    /// If there were any.
    pub queries: Option<Queries>,
    /// Most in any sample of the phase, until its last message was received or given up.
    pub peak: Option<Memory>,
    /// When it had ended.
    pub end: Option<Memory>,
    /// Of the node, for each accepted message, until the last was received or given up.
    pub cpu_millis_per_accepted: Option<f64>,
    /// Of the driver.
    pub driver_cpu_millis_per_accepted: f64,
}

/// How a figure is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A number of messages.
    Count,
    /// Per second.
    Rate,
    /// Milliseconds.
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
    /// What it is, with its unit.
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

    /// Every figure, in the order of the table.
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
            add(&format!("push {answer}, p99 ms"), latency.p99_millis, Unit::Millis);
            add(&format!("push {answer}, max ms"), latency.max_millis, Unit::Millis);
        }
        for (what, deliveries) in [("receiver", &self.receivers), ("relay peer", &self.relay_peers)] {
            for (index, delivery) in deliveries.iter().enumerate() {
                let who = format!("{what} {}", index + 1);
                add(
                    &format!("{who}, % of accepted"),
                    percent(delivery.delivered, self.accepted),
                    Unit::Percent,
                );
                for (name, count) in [
                    ("whole", delivery.delivered),
                    ("double", delivery.double),
                    ("late", delivery.late),
                    ("missing", delivery.missing),
                    ("damaged", delivery.damaged),
                ] {
                    add(&format!("{who}, {name}"), count as f64, Unit::Count);
                }
                add(&format!("{who}, delay p50 ms"), delivery.delay.p50_millis, Unit::Millis);
                add(&format!("{who}, delay p99 ms"), delivery.delay.p99_millis, Unit::Millis);
            }
        }
        if let Some([looked, found]) = self.store_sample {
            add("store, % of sample found", percent(found as u64, looked as u64), Unit::Percent);
            add("store, sample", looked as f64, Unit::Count);
        }
        if let Some(queries) = &self.queries {
            add("store queries", queries.latency.count as f64, Unit::Count);
            add("store queries, p50 ms", queries.latency.p50_millis, Unit::Millis);
            add("store queries, p99 ms", queries.latency.p99_millis, Unit::Millis);
            let bad = queries.codes.iter().filter(|(code, _)| *code != 200).map(|(_, count)| count);
            add("store queries, not answered 200", bad.sum::<u64>() as f64, Unit::Count);
            add("store queries, skipped", queries.skipped as f64, Unit::Count);
        }
        for (when, memory) in [("peak", self.peak), ("end", self.end)] {
            if let Some(memory) = memory {
                add(&format!("anonymous memory, {when} MiB"), memory.anonymous_bytes as f64, Unit::Mib);
                add(&format!("file memory, {when} MiB"), memory.file_bytes as f64, Unit::Mib);
            }
        }
        if let Some(millis) = self.cpu_millis_per_accepted {
            add("node, CPU ms/message", millis, Unit::Millis);
        }
        add("driver, CPU ms/message", self.driver_cpu_millis_per_accepted, Unit::Millis);
        figures
    }
}

impl Report {
    /// Judges: at most `lost_percent_max` of what was accepted in a phase may be missing at a
    /// receiver, and the node must live.
    pub fn judge(&mut self, lost_percent_max: f64) {
        let accepted: u64 = self.phases.iter().map(|phase| phase.accepted).sum();
        let lost: u64 = self.phases.iter().map(PhaseReport::lost).sum();
        let too_many =
            |phase: &PhaseReport| phase.lost() as f64 > phase.accepted as f64 * lost_percent_max / 100.0;
        let kills = match self.oom_kills {
            0 => String::new(),
            kills => format!(", {kills} OOM kills"),
        };
        (self.good, self.verdict) = if self.node_died || self.oom_kills > 0 {
            let ended = self.node_ended.as_deref().unwrap_or("it is gone");
            (
                false,
                format!(
                    "BAD: the node died under the load ({ended}{kills}); {accepted} messages were accepted, and one receiver misses up to {lost} of them"
                ),
            )
        } else if accepted == 0 {
            (false, "BAD: the node accepted nothing".to_owned())
        } else if self.phases.iter().any(too_many) {
            (
                false,
                format!(
                    "BAD: of {accepted} accepted messages one receiver misses up to {lost} ({} % arrived)",
                    Unit::Percent.text(percent(accepted - lost.min(accepted), accepted))
                ),
            )
        } else if self.clients[1] == 0 {
            (
                true,
                format!(
                    "GOOD: {accepted} messages were accepted and the node lived; without receivers nothing says whether they were delivered"
                ),
            )
        } else if lost > 0 {
            (
                true,
                format!(
                    "GOOD: of {accepted} accepted messages every receiver got all but at most {lost}, within the {lost_percent_max} % that may be lost"
                ),
            )
        } else {
            (
                true,
                format!("GOOD: all {accepted} accepted messages reached every receiver, and the node lived"),
            )
        };
    }

    /// The table, and what does not fit into it.
    pub fn text(&self) -> String {
        let heads: Vec<String> = self.phases.iter().map(|phase| phase.name.clone()).collect();
        let columns: Vec<Vec<(String, String)>> = self
            .phases
            .iter()
            .map(|phase| {
                let cell = |figure: Figure| (figure.name, figure.unit.text(figure.value));
                phase.figures().into_iter().map(cell).collect()
            })
            .collect();
        let mut text = format!(
            "\n{}: {} at {}, {} publishers by {}, {} receivers, {} relay peers\nmachine: {}\n\n",
            self.label,
            self.agent,
            self.node,
            self.clients[0],
            self.light_push,
            self.clients[1],
            self.clients[2],
            self.machine
        );
        text.push_str(&table(&heads, &columns));
        for phase in &self.phases {
            for answers in phase.answers.iter().filter(|answers| answers.answer != "200") {
                let Answers { answer, example, latency } = answers;
                text += &format!("\n{}: {} x {answer}, such as: {example}", phase.name, latency.count);
            }
        }
        let memory = |memory: Memory| {
            let mib = |bytes: u64| Unit::Mib.text(bytes as f64);
            format!("anonymous {} MiB, file {} MiB", mib(memory.anonymous_bytes), mib(memory.file_bytes))
        };
        if let Some(idle) = self.idle {
            text += &format!("\nmemory before: {}", memory(idle));
        }
        for after in &self.after {
            text += &format!("\nmemory {} s after: {}", after.seconds, memory(after.memory));
        }
        if let Some(ended) = &self.node_ended {
            text += &format!(
                "\nthe node's end: {ended}; OOM kills {}, restarts {}",
                self.oom_kills, self.restarts
            );
        }
        for Lost { who, count, example } in &self.connections_lost {
            text += &format!("\n{count} connections of {who} ended and were made again, such as: {example}");
        }
        if !self.serves_store {
            text.push_str("\nthe node serves no store queries of version 3: none were made");
        }
        text + &format!("\n{}\n", self.verdict)
    }
}

/// Columns of named cells side by side, each name once, in the order in which names first come.
pub(crate) fn table(heads: &[String], columns: &[Vec<(String, String)>]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for column in columns {
        let mut after = 0;
        for (name, _) in column {
            match names.iter().position(|known| known == name) {
                Some(place) => after = place + 1,
                None => {
                    names.insert(after, name);
                    after += 1;
                }
            }
        }
    }
    let letters = |text: &str| text.chars().count();
    let first = names.iter().map(|name| letters(name)).max().unwrap_or(0);
    let widths: Vec<usize> = heads
        .iter()
        .zip(columns)
        .map(|(head, column)| {
            column.iter().map(|(_, cell)| letters(cell)).chain([letters(head)]).max().unwrap_or(0) + 2
        })
        .collect();
    let mut text = " ".repeat(first);
    heads.iter().zip(&widths).for_each(|(head, width)| text += &format!("{head:>width$}"));
    text.push('\n');
    for name in names {
        text += &format!("{name:<first$}");
        for (column, width) in columns.iter().zip(&widths) {
            let cell = column.iter().find(|(known, _)| known == name).map_or("", |(_, cell)| cell);
            text += &format!("{cell:>width$}");
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivery(delivered: u64, missing: u64) -> Delivery {
        let delay = Latency::default();
        Delivery { delivered, missing, unaccepted: 0, double: 0, late: 0, damaged: 0, delay }
    }

    fn report(accepted: u64, missing: u64) -> Report {
        Report {
            format: FORMAT,
            label: "node".into(),
            machine: String::new(),
            started: String::new(),
            node: String::new(),
            agent: String::new(),
            light_push: String::new(),
            serves_store: true,
            cap_bytes: None,
            clients: [1, 2, 0],
            phases: vec![PhaseReport {
                name: "small".into(),
                payload_bytes: [500, 1000],
                asked_rate: Some(10.0),
                seconds: 2.0,
                due: accepted,
                sent: accepted,
                accepted,
                answers: vec![],
                lateness: Latency::default(),
                receivers: vec![delivery(accepted, 0), delivery(accepted - missing, missing)],
                relay_peers: vec![],
                store_sample: None,
                queries: None,
                peak: None,
                end: None,
                cpu_millis_per_accepted: None,
                driver_cpu_millis_per_accepted: 0.1,
            }],
            idle: None,
            after: vec![],
            connections_lost: vec![],
            node_died: false,
            node_ended: None,
            oom_kills: 0,
            restarts: 0,
            good: false,
            verdict: String::new(),
        }
    }

    #[test]
    fn one_lost_message_at_one_receiver_is_bad_and_a_death_is_worse() {
        let verdict = |mut report: Report, most: f64| {
            report.judge(most);
            (report.good, report.verdict)
        };
        assert!(verdict(report(1000, 0), 0.0).0);
        let (good, text) = verdict(report(1000, 1), 0.0);
        assert!(!good && text.contains("99.90 % arrived"), "{text}");
        assert!(verdict(report(1000, 1), 0.1).0);
        assert!(!verdict(report(1000, 2), 0.1).0);
        assert!(!verdict(report(0, 0), 0.0).0, "nothing accepted proves nothing");
        let mut dead = report(1000, 0);
        dead.node_died = true;
        assert!(verdict(dead, 0.0).1.contains("died"));
        let mut killed = report(1000, 0);
        killed.oom_kills = 2;
        assert!(verdict(killed, 0.0).1.contains("2 OOM kills"));
    }

    #[test]
    fn a_percentage_is_never_rounded_up_to_all() {
        assert_eq!(Unit::Percent.text(99.9999), "99.99");
        assert_eq!(Unit::Percent.text(100.0), "100");
        assert_eq!(Unit::Percent.text(percent(0, 0)), "100");
    }

    #[test]
    fn columns_with_different_rows_stand_side_by_side() {
        let cell = |name: &str, cell: &str| (name.to_owned(), cell.to_owned());
        let columns =
            [vec![cell("a", "1"), cell("c", "3")], vec![cell("a", "10"), cell("b", "20"), cell("c", "30")]];
        let text = table(&["x".into(), "y".into()], &columns);
        assert_eq!(text, "   x   y\na  1  10\nb     20\nc  3  30\n");
    }

    #[test]
    fn the_table_has_the_figures_and_the_verdict() {
        let mut report = report(20, 1);
        report.judge(0.0);
        let text = report.text();
        for part in ["reached, messages/s", "10.0", "receiver 2, missing", "95.00", "BAD"] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }
}
