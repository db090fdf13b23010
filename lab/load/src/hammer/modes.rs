//! The modes: their phases, the operations of each phase, the checks at the end.

use std::{sync::Arc, time::Duration};

use serde::Serialize;

use super::{
    fleet::{Action, By, Fleet, Job, Space},
    options::{Mode, Parameters},
    pattern::{PAGE_BYTES, mix},
    schedule::{Limit, Order, Runner, Shape, Source, grace_is_over},
    stats::{Kind, KindStats, Phase, Wrong},
};

/// Expected outcome of a single operation around a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ProbeExpectation {
    Success,
    /// A reject whose text names the limit and its value.
    NamedLimit,
    /// Either; the outcome is what is asked for.
    Anything,
}

/// A single operation around a limit.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Probe {
    pub(crate) name: String,
    pub(crate) expected: ProbeExpectation,
    pub(crate) met: bool,
    pub(crate) milliseconds: f64,
    /// The class of the failure and its whole text; none is success.
    pub(crate) failure: Option<(String, String)>,
}

/// Everything that one mode did.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ModeReport {
    pub(crate) mode: Mode,
    pub(crate) phases: Vec<Phase>,
    pub(crate) probes: Vec<Probe>,
    /// Calls between canisters that were made and answered, per second; modes calls and fanout.
    pub(crate) inter_canister_messages_per_second: Option<f64>,
    /// Why the mode did not do all it does.
    pub(crate) incomplete: Option<String>,
    /// Counters compared with what was acknowledged, at the end.
    pub(crate) counters: Wrong,
}

impl ModeReport {
    fn new(mode: Mode) -> Self {
        Self {
            mode,
            phases: Vec::new(),
            probes: Vec::new(),
            inter_canister_messages_per_second: None,
            incomplete: None,
            counters: Wrong::default(),
        }
    }

    pub(crate) fn wrong(&self) -> u64 {
        self.counters.count + self.phases.iter().map(Phase::wrong).sum::<u64>()
    }

    pub(crate) fn unmet(&self) -> u64 {
        self.probes.iter().filter(|probe| !probe.met).count() as u64
    }

    pub(crate) fn errors(&self) -> u64 {
        self.phases.iter().map(Phase::errors).sum::<u64>() + u64::from(self.incomplete.is_some())
    }
}

/// Pieces of at most `size` bytes that cover `bytes`.
#[derive(Clone, Copy, Debug)]
struct Pieces {
    bytes: u64,
    size: u64,
}

impl Pieces {
    fn count(self) -> u64 {
        self.bytes.div_ceil(self.size)
    }

    /// Offset and size of a piece, round and round.
    fn at(self, index: u64) -> (u64, u64) {
        let offset = index % self.count() * self.size;
        (offset, self.size.min(self.bytes - offset))
    }
}

/// State shared by the runs of all modes.
pub(crate) struct Modes<'a> {
    pub(crate) parameters: &'a Parameters,
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) runner: Runner,
}

/// A mode ended early; the text is the reason.
type Step = Result<(), String>;

impl Modes<'_> {
    /// Runs one mode from empty canisters to the comparison of the counters.
    pub(crate) async fn run(&self, mode: Mode) -> ModeReport {
        let mut report = ModeReport::new(mode);
        let opened = tokio::select! {
            opened = self.fleet.reset() => opened.map_err(|error| format!("the canisters could not be made ready: {error:#}")),
            () = self.runner.stop.requested() => Err("stopped".into()),
        };
        if let Err(text) = opened {
            report.incomplete = Some(text);
            return report;
        }
        report.incomplete = self.work(mode, &mut report).await.err();
        let checked = tokio::select! {
            checked = self.fleet.check_counters() => checked,
            () = grace_is_over(&self.runner.stop, Duration::from_secs(5)) => {
                report.incomplete.get_or_insert_with(|| "stopped before the counters were compared".into());
                Vec::new()
            }
        };
        checked.iter().for_each(|text| report.counters.add(text));
        report
    }

    async fn work(&self, mode: Mode, report: &mut ModeReport) -> Step {
        let p = self.parameters;
        let n = self.fleet.len() as u64;
        let on = move |index: u64| (index % n) as usize;
        match mode {
            Mode::Throughput => {
                let count =
                    move |index, _| Job::new(Kind::Count, on(index), Action::Count).signed();
                self.phase(report, "updates", Arc::new(count)).await;
            }
            Mode::Compute => {
                let action = Action::Burn { instructions: p.instructions };
                let burn = move |index, _| Job::new(Kind::Compute, on(index), action);
                self.phase(report, "updates", Arc::new(burn)).await;
            }
            Mode::Dirty => {
                self.grow(report, Space::Stable, p.fill_bytes).await?;
                let pieces = Pieces { bytes: p.fill_bytes, size: p.write_bytes };
                let write = move |index: u64, _| {
                    write_job(Kind::Write, on(index), Space::Stable, pieces.at(index / n))
                };
                self.phase(report, "writes", Arc::new(write)).await;
                self.read_back(report, Space::Stable, p.fill_bytes).await;
            }
            Mode::Growth => {
                let pieces = Pieces { bytes: p.grow_to_bytes, size: p.write_bytes };
                let write = move |index: u64, _| {
                    let turn = index / n;
                    let kind = if turn < pieces.count() { Kind::Grow } else { Kind::Rewrite };
                    write_job(kind, on(index), Space::Stable, pieces.at(turn))
                };
                self.phase(report, "growth", Arc::new(write)).await;
                self.read_back(report, Space::Stable, p.grow_to_bytes).await;
            }
            Mode::Probe => self.probes(report).await,
            Mode::Read => {
                self.fill(report, Space::Stable, p.fill_bytes).await?;
                self.read_probes(report).await;
                let pieces = Pieces { bytes: p.fill_bytes, size: p.read_bytes };
                self.phase(report, "reads", reads(n, Space::Stable, pieces)).await;
            }
            Mode::Heap => self.heap(report).await?,
            Mode::Heapread => {
                self.fill(report, Space::Heap, p.heapread_fill_bytes).await?;
                let pieces = Pieces { bytes: p.heapread_fill_bytes, size: p.heapread_read_bytes };
                self.phase(report, "reads", reads(n, Space::Heap, pieces)).await;
            }
            Mode::Calls => {
                let action = Action::Chain { depth: p.depth };
                let chain = move |index, _| Job::new(Kind::Chain, on(index), action).signed();
                self.phase(report, "chains", Arc::new(chain)).await;
                report.inter_canister_messages_per_second = rate_of_calls(report);
            }
            Mode::Fanout => {
                let action = Action::Fan { fanout: p.fanout, multiplier: p.multiplier };
                let fan = move |index, _| Job::new(Kind::Fan, on(index), action);
                self.phase(report, "fanout", Arc::new(fan)).await;
                report.inter_canister_messages_per_second = rate_of_calls(report);
            }
            Mode::Hybrid | Mode::Soak => {
                self.fill(report, Space::Stable, p.fill_bytes).await?;
                let name = if mode == Mode::Soak { "soak" } else { "hybrid" };
                self.phase(report, name, self.hybrid(mode)).await;
                self.read_back(report, Space::Stable, p.fill_bytes).await;
            }
            Mode::All => {}
        }
        Ok(())
    }

    /// The measured part of a mode.
    async fn phase(&self, report: &mut ModeReport, name: &str, source: Source) {
        let p = self.parameters;
        let shape = (report.mode == Mode::Soak).then(|| Shape {
            seed: p.seed,
            period: Duration::from_secs_f64(p.soak_period_seconds),
        });
        let limit =
            p.operations.map_or(Limit::Time(Duration::from_secs_f64(p.seconds)), Limit::Operations);
        let order = Order { shape, preparation: false, ..preparation(report, name, limit) };
        report.phases.push(self.runner.run(order, source).await);
    }

    /// A fixed number of operations that a mode needs before or after what it measures. The error
    /// is the first failure's text.
    async fn prepare(
        &self,
        report: &mut ModeReport,
        name: &str,
        operations: u64,
        source: Source,
    ) -> Step {
        let order = preparation(report, name, Limit::Operations(operations));
        let phase = self.runner.run(order, source).await;
        let failed = |stats: &KindStats| {
            let (class, counted) = stats.errors.0.iter().next()?;
            Some(format!("{name} failed {} times; {class}: {}", stats.errors.total(), counted.text))
        };
        let given_up: u64 = phase.kinds.values().map(|kind| kind.given_up).sum();
        let failure = phase.kinds.values().find_map(failed);
        report.phases.push(phase);
        match failure {
            Some(text) => Err(text),
            None if self.runner.stop.is_requested() => Err("stopped".into()),
            None if given_up > 0 => {
                Err(format!("{name}: the node refused {given_up} operations to the end"))
            }
            None => Ok(()),
        }
    }

    /// Grows every canister in one message.
    async fn grow(&self, report: &mut ModeReport, space: Space, bytes: u64) -> Step {
        let grow =
            move |index, _| Job::new(Kind::Grow, index as usize, Action::Grow { space, bytes });
        self.prepare(report, "growing", self.fleet.len() as u64, Arc::new(grow)).await
    }

    /// Writes all of `bytes` in every canister, in steps.
    async fn fill(&self, report: &mut ModeReport, space: Space, bytes: u64) -> Step {
        let n = self.fleet.len() as u64;
        let pieces = Pieces { bytes, size: self.parameters.fill_step_bytes };
        let kind = if space == Space::Heap { Kind::HeapFill } else { Kind::Fill };
        let fill =
            move |index: u64, _| write_job(kind, (index % n) as usize, space, pieces.at(index / n));
        self.prepare(report, "filling", pieces.count() * n, Arc::new(fill)).await
    }

    /// Reads everything that was written once more, by query, and holds it against what was
    /// acknowledged.
    async fn read_back(&self, report: &mut ModeReport, space: Space, bytes: u64) {
        const NOT_READ: &str = "what was written could not be read back";
        if let Err(error) = self.fleet.settle().await {
            report.incomplete = Some(format!("{NOT_READ}: {error:#}"));
            return;
        }
        let n = self.fleet.len();
        let p = self.parameters;
        let size = if space == Space::Heap { p.heap_read_bytes } else { p.read_bytes };
        let mut jobs = Vec::new();
        for canister in 0..n {
            let Ok(info) = self.fleet.info(canister).await else {
                report.incomplete = Some(format!("{NOT_READ}: a canister does not answer"));
                return;
            };
            let has = if space == Space::Heap { info.heap_bytes } else { info.stable_bytes };
            let bytes = bytes.min(has / PAGE_BYTES * PAGE_BYTES);
            if bytes > 0 {
                let pieces = Pieces { bytes, size };
                jobs.extend((0..pieces.count()).map(|index| {
                    read_job(Kind::VerifyRead, canister, (space, By::Query), pieces.at(index))
                }));
            }
        }
        if jobs.is_empty() || self.runner.stop.is_requested() {
            return;
        }
        let count = jobs.len() as u64;
        let source: Source = Arc::new(move |index, _| jobs[index as usize]);
        if let Err(text) = self.prepare(report, "reading back", count, source).await {
            report.incomplete = Some(text);
        }
    }

    fn hybrid(&self, mode: Mode) -> Source {
        let p = self.parameters;
        let n = self.fleet.len() as u64;
        let reads = Pieces { bytes: p.fill_bytes, size: p.read_bytes };
        let writes = Pieces { bytes: p.fill_bytes, size: p.write_bytes };
        let (space, depth) = (Space::Stable, p.depth);
        // Each sort gets a third of what is in flight, or of what is started when there are no
        // workers to divide.
        let by_worker = mode == Mode::Hybrid && p.rate.is_none() && p.concurrency >= 3;
        let seed = p.seed;
        Arc::new(move |index: u64, worker| {
            let canister = (index % n) as usize;
            let sort = match (by_worker, mode) {
                (true, _) => worker as u64 % 3,
                (false, Mode::Soak) => mix(seed ^ mix(index)) % 3,
                (false, _) => index % 3,
            };
            match sort {
                0 => read_job(Kind::ReadQuery, canister, (space, By::Query), reads.at(index / n)),
                1 => write_job(Kind::Write, canister, space, writes.at(index / n)),
                _ => Job::new(Kind::Chain, canister, Action::Chain { depth }),
            }
        })
    }

    async fn heap(&self, report: &mut ModeReport) -> Step {
        let p = self.parameters;
        let n = self.fleet.len() as u64;
        let most = p.probe_bytes[2];
        let any = ProbeExpectation::Anything;
        let grow = grow_job(Space::Heap, most);
        self.probe(report, "grow the heap in one message", any, grow).await;
        for bytes in p.probe_bytes {
            let name = format!("write {} of heap in one message", accounting::format_size(bytes));
            let write = write_job(Kind::HeapWrite, 0, Space::Heap, (0, bytes));
            self.probe(report, &name, any, write).await;
        }
        self.fill(report, Space::Heap, p.heap_fill_bytes).await?;
        let pieces = Pieces { bytes: p.heap_fill_bytes, size: p.write_bytes };
        let storm = move |index: u64, _| {
            write_job(Kind::HeapWrite, (index % n) as usize, Space::Heap, pieces.at(index / n))
        };
        self.phase(report, "writes", Arc::new(storm)).await;
        let pieces = Pieces { bytes: p.heap_fill_bytes, size: p.heap_read_bytes };
        self.phase(report, "reads", reads(n, Space::Heap, pieces)).await;
        Ok(())
    }

    /// Runs one operation on the first canister.
    async fn probe(
        &self,
        report: &mut ModeReport,
        name: &str,
        expected: ProbeExpectation,
        job: Job,
    ) {
        if self.runner.stop.is_requested() {
            return;
        }
        let order = preparation(report, name, Limit::Operations(1));
        let phase = self.runner.run(order, Arc::new(move |_, _| job)).await;
        let stats = phase.kinds.values().next().cloned().unwrap_or_default();
        let first = stats.errors.0.iter().next();
        let failure = first.map(|(class, counted)| (class.clone(), counted.text.clone()));
        stats.verification_failures.texts.iter().for_each(|text| report.counters.add(text));
        report.probes.push(Probe {
            name: name.into(),
            expected,
            met: is_met(expected, failure.as_ref()),
            milliseconds: phase.seconds * 1e3,
            failure,
        });
    }

    async fn probes(&self, report: &mut ModeReport) {
        use ProbeExpectation::{NamedLimit, Success};
        let [small, medium, large] = self.parameters.probe_bytes;
        let [s, m, l, above] = [small, medium, large, medium - small].map(accounting::format_size);
        let (stable, heap) = (Space::Stable, Space::Heap);
        let write = |bytes| write_job(Kind::Write, 0, stable, (0, bytes));
        let read = |range| read_job(Kind::ReadQuery, 0, (stable, By::Query), range);
        for (name, expected, job) in [
            (
                format!("grow stable memory to {m}, touching nothing"),
                Success,
                grow_job(stable, medium),
            ),
            (format!("write {s} of stable memory"), Success, write(small)),
            (format!("write {m} of stable memory"), NamedLimit, write(medium)),
            (format!("grow the heap by {l}, touching nothing"), Success, grow_job(heap, large)),
            (
                format!("write {l} of heap"),
                NamedLimit,
                write_job(Kind::HeapWrite, 0, heap, (0, large)),
            ),
            (
                "a small update: the node is alive".into(),
                Success,
                Job::new(Kind::Count, 0, Action::Count),
            ),
            (
                format!("read {s} of stable memory back: the writes that trapped left nothing"),
                Success,
                read((0, small)),
            ),
            (format!("read the {above} above it"), Success, read((small, medium - small))),
        ] {
            self.probe(report, &name, expected, job).await;
        }
    }

    async fn read_probes(&self, report: &mut ModeReport) {
        let bytes = (self.parameters.read_bytes * 2).min(self.parameters.fill_bytes);
        for (by, kind, name) in
            [(By::Query, Kind::ReadQuery, "query"), (By::Update, Kind::ReadUpdate, "update")]
        {
            let name =
                format!("read {} of stable memory by {name}", accounting::format_size(bytes));
            let read = read_job(kind, 0, (Space::Stable, by), (0, bytes));
            self.probe(report, &name, ProbeExpectation::Anything, read).await;
        }
    }
}

fn preparation(report: &ModeReport, name: &str, limit: Limit) -> Order {
    let mode = report.mode.name();
    Order { mode, name: name.into(), limit, shape: None, preparation: true }
}

fn grow_job(space: Space, bytes: u64) -> Job {
    Job::new(Kind::Grow, 0, Action::Grow { space, bytes })
}

/// A write of `bytes` from `offset` on.
fn write_job(kind: Kind, canister: usize, space: Space, (offset, bytes): (u64, u64)) -> Job {
    Job::new(kind, canister, Action::Write { space, offset, bytes })
}

fn read_job(
    kind: Kind,
    canister: usize,
    (space, by): (Space, By),
    (offset, bytes): (u64, u64),
) -> Job {
    Job::new(kind, canister, Action::Read { space, offset, bytes, by })
}

/// Reads by query and by update in turn, over all canisters and the whole range.
fn reads(n: u64, space: Space, pieces: Pieces) -> Source {
    Arc::new(move |index: u64, _| {
        let turn = index / n;
        let (by, kind) = match (turn % 2, space) {
            (0, Space::Stable) => (By::Query, Kind::ReadQuery),
            (0, Space::Heap) => (By::Query, Kind::HeapReadQuery),
            (_, Space::Stable) => (By::Update, Kind::ReadUpdate),
            (_, Space::Heap) => (By::Update, Kind::HeapReadUpdate),
        };
        read_job(kind, (index % n) as usize, (space, by), pieces.at(turn / 2))
    })
}

fn rate_of_calls(report: &ModeReport) -> Option<f64> {
    let phase = report.phases.last().filter(|phase| phase.seconds > 0.0)?;
    Some(phase.kinds.values().map(|kind| kind.hops).sum::<u64>() as f64 / phase.seconds)
}

/// Whether an outcome is the expected one.
fn is_met(expected: ProbeExpectation, failure: Option<&(String, String)>) -> bool {
    match (expected, failure) {
        (ProbeExpectation::Anything, _) | (ProbeExpectation::Success, None) => true,
        (ProbeExpectation::NamedLimit, Some((class, text))) => {
            class.starts_with("reject")
                && text.to_lowercase().contains("limit")
                && text.contains(|c: char| c.is_ascii_digit())
        }
        (ProbeExpectation::Success, Some(_)) | (ProbeExpectation::NamedLimit, None) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_the_range_and_go_round() {
        let pieces = Pieces { bytes: 128, size: 24 };
        let once: Vec<(u64, u64)> = (0..pieces.count()).map(|index| pieces.at(index)).collect();
        assert_eq!(once, [(0, 24), (24, 24), (48, 24), (72, 24), (96, 24), (120, 8)]);
        assert_eq!(pieces.at(6), (0, 24));
        assert_eq!(Pieces { bytes: 8, size: 24 }.at(5), (0, 8));
    }

    #[test]
    fn reads_reach_every_canister_and_piece_by_both_ways() {
        let source = reads(2, Space::Stable, Pieces { bytes: 16, size: 8 });
        let mut seen = std::collections::BTreeSet::new();
        for index in 0..8 {
            let job = source(index, 0);
            let Action::Read { offset, by, .. } = job.action else { panic!("a read") };
            seen.insert((job.canister, offset, by == By::Query));
        }
        assert_eq!(seen.len(), 8);
    }

    #[test]
    fn a_limit_must_be_named_with_its_value() {
        use ProbeExpectation::{Anything, NamedLimit, Success};
        let trap = |class: &str, text: &str| Some((class.to_owned(), text.to_owned()));
        let met = |expected, failure: Option<(String, String)>| is_met(expected, failure.as_ref());
        assert!(met(NamedLimit, trap("reject 5 IC0524", "the limit is 32768 KB")));
        assert!(!met(NamedLimit, trap("reject 5 IC0502", "the limit was met")));
        assert!(!met(NamedLimit, trap("reject 5 IC0502", "error 17")));
        assert!(!met(NamedLimit, trap("http 503", "limit 17")));
        assert!(!met(NamedLimit, None));
        assert!(!met(Success, trap("timeout", "limit 17")));
        assert!(met(Success, None) && met(Anything, trap("timeout", "")));
    }
}
