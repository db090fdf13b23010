//! The report of a search: the verdict, the frontier, the status of each knob, the failures, the
//! confidence, and the settings to paste.

use std::fmt::Write as _;

use accounting::format_size;
use compare::PairedEstimate;
use serde::Serialize;

use super::{
    Options,
    executor::{Executor, format_setting, mib},
    paste::Paste,
    selection::KnobSelection,
};
use crate::{
    knob::{Knob, Setting},
    run::{Measurement, Outcome},
    search::{BaselineComparison, End, KnobStatus, SearchResult, Trial},
};

const FORMAT: u32 = 1;
/// Settings that failed, listed at most.
const FAILED_MAX: usize = 40;
/// Settings near a goal that nothing meets, listed at most.
const NEAR_MAX: usize = 10;

/// The report, for machines; [`Report::text`] is the same for people.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    format: u32,
    command: Vec<String>,
    machine: String,
    runtimes: Vec<String>,
    cap_bytes: u64,
    /// Whether the cap was asked for, or is the machine's memory.
    is_capped: bool,
    goal: Option<String>,
    /// Whether the goal is the default's lateness.
    is_goal_of_default: bool,
    aim: String,
    pub(crate) verdict: Verdict,
    /// The verdict in a sentence or two.
    summary: String,
    default: Option<Row>,
    winner: Option<Row>,
    confirmation: Option<Confirmation>,
    frontier: Vec<Row>,
    knobs: Vec<KnobLine>,
    /// Settings that this version of the runtime does not have.
    absent: Vec<String>,
    failed: Vec<FailedSetting>,
    near: Vec<NearMiss>,
    runs: usize,
    discarded: usize,
    spent_seconds: f64,
    pub(crate) paste: Option<Paste>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    Better,
    DefaultIsBest,
    KilledEverywhere,
    GoalNotMet,
    Measured,
}

/// A setting and the medians over its runs.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    setting: Vec<(String, String)>,
    runs: usize,
    outcome: String,
    peak_bytes: f64,
    end_bytes: f64,
    live_bytes: Option<f64>,
    cpu_seconds: f64,
    collector_percent: Option<f64>,
    start_millis: Option<f64>,
    p50_millis: Option<f64>,
    p99_millis: Option<f64>,
    max_millis: Option<f64>,
    misses: Option<f64>,
}

#[derive(Clone, Debug, Serialize)]
struct Confirmation {
    turns: usize,
    memory_percent: Option<Interval>,
    cpu_percent: Option<Interval>,
    failed_before: Vec<Vec<(String, String)>>,
}

/// A change in percent: its middle, its 95 % interval, and the probability of as much by chance.
#[derive(Clone, Debug, Serialize)]
struct Interval {
    change: f64,
    from: f64,
    to: f64,
    p: Option<f64>,
}

#[derive(Clone, Debug, Serialize)]
struct KnobLine {
    name: String,
    fate: &'static str,
    words: String,
}

#[derive(Clone, Debug, Serialize)]
struct FailedSetting {
    setting: Vec<(String, String)>,
    outcome: &'static str,
    words: String,
}

#[derive(Clone, Debug, Serialize)]
struct NearMiss {
    setting: Vec<(String, String)>,
    value: f64,
}

impl Report {
    pub(super) fn new(
        found: &SearchResult,
        options: &Options,
        selection: &KnobSelection,
        executor: &Executor<'_>,
        cap_bytes: u64,
        paste: Option<Paste>,
    ) -> Self {
        let knobs = &selection.knobs;
        let named = |setting: &Setting| setting.names_and_values(knobs, found.peak_bytes);
        let row = |setting: &Setting| {
            found.table.trial(setting).map(|trial| Row::new(named(setting), trial))
        };
        let confirmed = match &found.end {
            End::Better(confirmed) => Some(confirmed),
            End::Default(confirmed) => confirmed.as_ref(),
            End::Killed { .. } | End::Late | End::Measured => None,
        };
        let winner = match &found.end {
            End::Better(confirmed) => row(&confirmed.setting),
            _ => None,
        };
        let verdict = match &found.end {
            End::Better(_) => Verdict::Better,
            End::Default(_) => Verdict::DefaultIsBest,
            End::Killed { .. } => Verdict::KilledEverywhere,
            End::Late => Verdict::GoalNotMet,
            End::Measured => Verdict::Measured,
        };
        let default = row(&Setting::default());
        let goal = found.judge.goal;
        Self {
            format: FORMAT,
            command: options.command.clone(),
            machine: compare::describe(),
            runtimes: selection.titles.clone(),
            absent: selection.absent.clone(),
            cap_bytes,
            is_capped: options.memory.is_some(),
            goal: goal.map(|goal| goal.to_string()),
            is_goal_of_default: found.goal_of_default.is_some(),
            aim: format!("{:?}", found.judge.objective).to_lowercase(),
            verdict,
            summary: summary(found, cap_bytes, default.as_ref(), confirmed, &named),
            confirmation: confirmed.map(|confirmed| Confirmation {
                turns: confirmed.turns,
                memory_percent: confirmed.memory.as_ref().map(Interval::from_estimate),
                cpu_percent: confirmed.cpu.as_ref().map(Interval::from_estimate),
                failed_before: confirmed.failed.iter().map(named).collect(),
            }),
            frontier: found.table.frontier(&found.judge).into_iter().filter_map(row).collect(),
            knobs: knobs.iter().zip(&found.statuses).map(KnobLine::new).collect(),
            failed: failed_settings(found, &named),
            near: near_misses(found, &named),
            default,
            winner,
            runs: executor.made,
            discarded: executor.discarded,
            spent_seconds: executor.spent().as_secs_f64(),
            paste,
        }
    }

    /// The report as text for a terminal.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        let cap = if self.is_capped { format_size(self.cap_bytes) } else { "no cap".to_owned() };
        let goal = match (&self.goal, self.is_goal_of_default) {
            (Some(goal), false) => format!("goal {goal}"),
            (Some(goal), true) => format!("goal {goal}, about that of the default"),
            (None, _) => "lateness not measured".to_owned(),
        };
        let _ = writeln!(text, "\n{}", self.summary);
        let mut parts = vec![self.command.join(" ")];
        if self.verdict == Verdict::Measured {
            parts.push(cap);
        } else {
            parts.extend([self.runtimes.join(", "), cap, goal, format!("least {}", self.aim)]);
        }
        let _ = writeln!(text, "\n{}", parts.join(" | "));
        let _ = writeln!(text, "{}", self.machine);
        self.write_table(&mut text);
        self.write_knobs(&mut text);
        self.write_failures(&mut text);
        self.write_confirmation(&mut text);
        if let Some(paste) = &self.paste {
            write_paste(&mut text, paste);
        }
        text
    }

    fn write_table(&self, text: &mut String) {
        let mut rows: Vec<(&str, &Row)> = Vec::new();
        rows.extend(self.default.iter().map(|row| ("default", row)));
        rows.extend(self.winner.iter().map(|row| ("found", row)));
        let known = |row: &Row| rows.iter().any(|(_, other)| other.setting == row.setting);
        let others: Vec<_> =
            self.frontier.iter().filter(|row| !known(row)).map(|row| ("", row)).collect();
        rows.extend(others);
        let _ = writeln!(
            text,
            "\n{:<8} {:>11} {:>11} {:>9} {:>9} {:>9} {:>9} {:>9} {:>4}  settings",
            "", "peak", "live", "CPU", "collector", "ready", "p50", "p99", "runs"
        );
        for (what, row) in rows {
            let _ = writeln!(text, "{}", row.line(what));
        }
        if self.frontier.len() > 1 {
            let _ = writeln!(
                text,
                "Rows without a name are the frontier: no setting that was tried has less memory \
                 and less CPU time than they have."
            );
        }
    }

    fn write_knobs(&self, text: &mut String) {
        let of = |fate: &str| -> Vec<&KnobLine> {
            self.knobs.iter().filter(|knob| knob.fate == fate).collect()
        };
        let names = |lines: &[&KnobLine]| {
            lines.iter().map(|line| line.name.as_str()).collect::<Vec<_>>().join(", ")
        };
        let _ = writeln!(text);
        for (fate, what) in [
            ("alive", "Changes something"),
            ("dead", "Does nothing here (the program overrides it, or it does not matter)"),
            ("untried", "Not tried, for want of time (--budget)"),
        ] {
            let lines = of(fate);
            if !lines.is_empty() {
                let _ = writeln!(text, "{what}: {}", names(&lines));
            }
        }
        if !self.absent.is_empty() {
            let _ =
                writeln!(text, "Not in this version of the runtime: {}", self.absent.join(", "));
        }
        for line in of("refused") {
            let _ = writeln!(text, "Refused: {}: {}", line.name, reason_lines(&line.words, 2));
        }
    }

    fn write_failures(&self, text: &mut String) {
        if !self.failed.is_empty() {
            let _ = writeln!(text, "\nWhat failed, and how:");
        }
        for failed in &self.failed {
            let _ = writeln!(
                text,
                "  {}: {}: {}",
                format_setting(&failed.setting),
                failed.outcome,
                reason_lines(&failed.words, 1)
            );
        }
        if !self.near.is_empty() {
            let goal = self.goal.as_deref().unwrap_or_default();
            let _ = writeln!(text, "\nHow close each setting was to {goal}:");
        }
        for near in &self.near {
            let _ = writeln!(text, "  {:>9.2}  {}", near.value, format_setting(&near.setting));
        }
    }

    fn write_confirmation(&self, text: &mut String) {
        let _ = write!(
            text,
            "\n{} runs in {:.0} min {:.0} s",
            self.runs,
            (self.spent_seconds / 60.0).floor(),
            self.spent_seconds % 60.0
        );
        if self.discarded > 0 {
            let _ = write!(text, ", {} not counted because the machine was busy", self.discarded);
        }
        let _ = writeln!(text, ".");
        let Some(confirmation) = &self.confirmation else { return };
        let _ = writeln!(text, "Confirmed in {} turns against the default:", confirmation.turns);
        for (what, interval) in
            [("memory", &confirmation.memory_percent), ("CPU time", &confirmation.cpu_percent)]
        {
            match interval {
                Some(interval) => {
                    let _ = writeln!(text, "  {what:<9} {}", interval.text());
                }
                None => {
                    let _ = writeln!(
                        text,
                        "  {what:<9} the default did not live, so there is no change to report"
                    );
                }
            }
        }
        for setting in &confirmation.failed_before {
            let _ = writeln!(text, "  did not hold: {}", format_setting(setting));
        }
    }
}

impl Row {
    fn new(setting: Vec<(String, String)>, trial: &Trial) -> Self {
        let late = |of: fn(&crate::lateness::Lateness) -> f64| {
            trial.median(|run| run.lateness.as_ref().map(of))
        };
        let worst = trial.runs.iter().find(|run| !run.outcome.lived()).or(trial.runs.first());
        Self {
            setting,
            runs: trial.runs.len(),
            outcome: worst.map_or(String::new(), |run| run.outcome.label().to_owned()),
            peak_bytes: trial.peak(),
            end_bytes: trial.median(|run| Some(run.end_bytes as f64)).unwrap_or(0.0),
            live_bytes: trial.median(|run| run.live_bytes.map(|bytes| bytes as f64)),
            cpu_seconds: trial.cpu(),
            collector_percent: trial.median(|run| run.collector_percent),
            start_millis: trial.median(|run| run.start_millis),
            p50_millis: late(|lateness| lateness.p50_millis),
            p99_millis: late(|lateness| lateness.p99_millis),
            max_millis: late(|lateness| lateness.max_millis),
            misses: late(|lateness| lateness.misses as f64),
        }
    }

    fn line(&self, what: &str) -> String {
        let or_dash =
            |value: Option<f64>, text: fn(f64) -> String| value.map_or("-".to_owned(), text);
        let settings = match self.outcome.as_str() {
            "lived" => format_setting(&self.setting),
            outcome => format!("{} ({outcome})", format_setting(&self.setting)),
        };
        format!(
            "{what:<8} {:>11} {:>11} {:>9} {:>9} {:>9} {:>9} {:>9} {:>4}  {settings}",
            mib(self.peak_bytes),
            or_dash(self.live_bytes, mib),
            format!("{:.2} s", self.cpu_seconds),
            or_dash(self.collector_percent, |percent| format!("{percent:.1} %")),
            or_dash(self.start_millis, |millis| format!("{millis:.0} ms")),
            or_dash(self.p50_millis, |millis| format!("{millis:.2} ms")),
            or_dash(self.p99_millis, |millis| format!("{millis:.2} ms")),
            self.runs,
        )
    }
}

impl Interval {
    fn from_estimate(paired: &PairedEstimate) -> Self {
        let percent = |log: f64| (log.exp() - 1.0) * 100.0;
        Self {
            change: percent(paired.mean),
            from: percent(paired.mean - paired.half_width),
            to: percent(paired.mean + paired.half_width),
            p: paired.p,
        }
    }

    fn text(&self) -> String {
        let p = match self.p {
            Some(p) => format!("p = {p:.3}"),
            None => "too few turns for a probability; the interval is that of a t distribution"
                .to_owned(),
        };
        format!("{:+.1} % (95 %: {:+.1} to {:+.1} %; {p})", self.change, self.from, self.to)
    }
}

impl KnobLine {
    fn new((knob, status): (&Knob, &KnobStatus)) -> Self {
        let (fate, words) = match status {
            KnobStatus::Alive => ("alive", String::new()),
            KnobStatus::Dead => ("dead", String::new()),
            KnobStatus::Refused(words) => ("refused", words.clone()),
            KnobStatus::Untried => ("untried", String::new()),
        };
        Self { name: knob.name.clone(), fate, words }
    }
}

fn summary(
    found: &SearchResult,
    cap_bytes: u64,
    default: Option<&Row>,
    confirmed: Option<&BaselineComparison>,
    named: &impl Fn(&Setting) -> Vec<(String, String)>,
) -> String {
    match &found.end {
        End::Better(confirmed) => {
            let settings = format_setting(&named(&confirmed.setting));
            let peak = found.table.trial(&confirmed.setting).map_or(0.0, Trial::peak);
            match (&confirmed.memory, &confirmed.cpu, default) {
                (Some(memory), Some(cpu), Some(default)) if default.outcome == "lived" => format!(
                    "Found: {settings}\n{} instead of {}: memory {:+.0} %, CPU time {:+.0} %.",
                    mib(peak),
                    mib(default.peak_bytes),
                    Interval::from_estimate(memory).change,
                    Interval::from_estimate(cpu).change
                ),
                _ => format!(
                    "Found: {settings}\nIt lives in {} with {} at most; the default does not: {}.",
                    format_size(cap_bytes),
                    mib(peak),
                    default.map_or("", |default| default.outcome.as_str())
                ),
            }
        }
        End::Default(None) if found.statuses.iter().all(|fate| *fate == KnobStatus::Untried) => {
            "Nothing but the default was run in the time there was (--budget).".to_owned()
        }
        End::Default(_) => {
            let mut text = "The default is as good as anything that was tried.".to_owned();
            if let Some(memory) = confirmed.and_then(|confirmed| confirmed.memory.as_ref()) {
                let change = Interval::from_estimate(memory);
                text.push_str(&format!(
                    " The best of the rest ({}) differs by {}, which is no more than chance.",
                    confirmed.map_or(String::new(), |confirmed| format_setting(&named(
                        &confirmed.setting
                    ))),
                    change.text()
                ));
            }
            text
        }
        End::Killed { lived_at: Some(lived), tried } => format!(
            "Nothing that was tried lives in {}. The smallest cap in which the default lived is \
             {} (it was killed in {}).",
            format_size(cap_bytes),
            format_size(*lived),
            tried.iter().map(|cap| format_size(*cap)).collect::<Vec<_>>().join(", ")
        ),
        End::Killed { lived_at: None, tried } => format!(
            "Nothing that was tried lives in {}, and the default lives in none of the caps that \
             were tried besides: {}.",
            format_size(cap_bytes),
            tried.iter().map(|cap| format_size(*cap)).collect::<Vec<_>>().join(", ")
        ),
        End::Measured => "The command as it is.".to_owned(),
        End::Late => format!(
            "Nothing that was tried meets the goal{}.",
            found.judge.goal.map_or(String::new(), |goal| format!(" {goal}"))
        ),
    }
}

fn failed_settings(
    found: &SearchResult,
    named: &impl Fn(&Setting) -> Vec<(String, String)>,
) -> Vec<FailedSetting> {
    let mut list = Vec::new();
    for (setting, trial) in &found.table.0 {
        let of = |outcome: &'static str, words: String| FailedSetting {
            setting: named(setting),
            outcome,
            words,
        };
        if let Some(run) = trial.runs.iter().find(|run| !run.outcome.lived()) {
            list.push(of(run.outcome.label(), run.outcome.detail().to_owned()));
        } else if let (None, Some(goal)) = (trial.score(&found.judge), found.judge.goal) {
            let lateness = |run: &Measurement| run.lateness.clone();
            let worst = trial
                .runs
                .iter()
                .filter_map(lateness)
                .max_by(|a, b| goal.statistic(a).total_cmp(&goal.statistic(b)));
            let words = worst.map_or(String::new(), |worst| {
                let mut words =
                    format!("{} {:.2}{}", goal.figure.name(), goal.statistic(&worst), goal.unit());
                if let Some(miss) = worst.miss {
                    words.push_str(&format!("; {} missed, the last: {miss}", worst.misses));
                }
                words
            });
            list.push(of("missed the goal", words));
        }
    }
    list.truncate(FAILED_MAX);
    list
}

/// Where nothing meets the goal: what came nearest.
fn near_misses(
    found: &SearchResult,
    named: &impl Fn(&Setting) -> Vec<(String, String)>,
) -> Vec<NearMiss> {
    let (End::Late, Some(goal)) = (&found.end, found.judge.goal) else { return Vec::new() };
    let mut list: Vec<NearMiss> = found
        .table
        .0
        .iter()
        .filter(|(_, trial)| trial.lived())
        .filter_map(|(setting, trial)| {
            let value = trial
                .median(|run| run.lateness.as_ref().map(|lateness| goal.statistic(lateness)))?;
            Some(NearMiss { setting: named(setting), value })
        })
        .collect();
    list.sort_by(|a, b| a.value.total_cmp(&b.value));
    list.truncate(NEAR_MAX);
    list
}

fn write_paste(text: &mut String, paste: &Paste) {
    let _ = writeln!(text, "\nWhat each does:");
    for why in &paste.why {
        let setting = format_setting(&[(why.knob.clone(), why.value.clone())]);
        let _ = writeln!(text, "  {setting}: {}", why.why);
    }
    if !paste.config.is_empty() {
        let _ = writeln!(text, "\ntuned.toml (or these lines in the configuration file there is):");
        for line in &paste.config {
            let _ = writeln!(text, "  {line}");
        }
    }
    let _ = writeln!(text, "\nCommand line:\n  {}", paste.command_line);
    if !paste.environment.is_empty() {
        let _ = writeln!(text, "\nEnvironment:");
        for (name, value) in &paste.environment {
            let _ = writeln!(text, "  {name}={}", super::paste::quoted(value));
        }
    }
    let _ = writeln!(text, "\nsystemd (systemctl edit UNIT):");
    for line in paste.systemd.lines() {
        let _ = writeln!(text, "  {line}");
    }
}

/// How it ended, and the lines that give a reason; the last one where none does.
fn reason_lines(words: &str, count: usize) -> String {
    const SIGNS: [&str; 10] = [
        "fatal",
        "error",
        "panic",
        "exception",
        "out of memory",
        "exhausted",
        "cannot",
        "invalid",
        "unrecognized",
        "not allowed",
    ];
    let mut lines = words.lines().map(str::trim).filter(|line| !line.is_empty());
    let how = lines.next().unwrap_or_default().to_owned();
    let rest: Vec<&str> = lines.collect();
    let tells = |line: &&&str| {
        let line = line.to_lowercase();
        SIGNS.iter().any(|sign| line.contains(sign))
    };
    let mut told: Vec<&str> = rest.iter().filter(tells).take(count).copied().collect();
    if told.is_empty() {
        told.extend(rest.last());
    }
    told.insert(0, &how);
    told.join(" / ")
}

/// Words of an outcome that ends the search before it began.
pub(crate) fn unusable(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Ended(words) => format!(
            "the command ended by itself before it was stopped: {words}\nIt must run until it is stopped, or complete its work and exit with success."
        ),
        Outcome::NeverReady(words) => format!(
            "the command was never ready: {words}\nSee --ready, --ready-within, --beat and what is asked."
        ),
        Outcome::LeftBehind(words) => format!("the command went into the background: {words}"),
        Outcome::LoadFailed(words) | Outcome::Stalled(words) => words.clone(),
        Outcome::OutOfMemory(words) => format!("the command was killed for memory {words}"),
        Outcome::Lived => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_lines_prefer_lines_with_error_words() {
        let node = "ended by SIGABRT after 0.3 s\n\n<--- Last few GCs --->\nFATAL ERROR: Reached heap limit Allocation failed\n 1: 0xb\n 2: 0xc";
        assert_eq!(
            reason_lines(node, 1),
            "ended by SIGABRT after 0.3 s / FATAL ERROR: Reached heap limit Allocation failed"
        );
        assert_eq!(reason_lines("exit 3 after 1 s\na\nb", 2), "exit 3 after 1 s / b");
        assert_eq!(reason_lines("", 2), "");
    }
}
