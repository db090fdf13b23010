//! Nanoseconds of processor time per counted instruction, of every kind of work a canister can ask
//! for, relative to `i64.add` in the same run.
//!
//! `cargo run --release -p sandbox --example metering -- [--json FILE] [--only TEXT] [--runs N]`.
//! Each case is a canister that does one kind of work in a loop, in a real worker process; its time
//! is what the kernel says the worker ran, so other programs disturb it little. Every run of a case
//! stands next to one of `i64.add`; a case's figure is the median over its runs. The example is its
//! own worker. It ends with an error if a case takes more than [`RATIO_MAX`] times as long as
//! `i64.add` for what is counted.
//!
//! Left out is what depends on the machine and not on the message: caches of the processor that
//! miss, and the disk (see docs/internals/metering.md).
#![allow(clippy::unwrap_used)]

mod api;
mod code;
mod touches;
#[path = "../../tests/it/world.rs"]
#[allow(dead_code)]
mod world;

use std::{fmt::Write as _, process::ExitCode};

use sandbox::{CallbackKind, Entry, Lane, Response, Sandbox};
use world::{Canister, World};

/// Highest ratio to `i64.add` that a case may have.
const RATIO_MAX: f64 = 10.0;

/// Processor time that one run of a case is to take, in nanoseconds.
const RUN_NANOS: f64 = 6_000_000.0;

/// How a canister is entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryKind {
    Update,
    Query,
    Reject,
    Inspect,
}

/// One kind of work.
pub(crate) struct Case {
    pub(crate) group: &'static str,
    pub(crate) name: String,
    /// The module. Its function `run` takes the number of times.
    pub(crate) module: String,
    pub(crate) entry_kind: EntryKind,
    /// Most times that one message may do it.
    pub(crate) times_max: u32,
    /// Each run has a canister of its own, whose memory is untouched.
    pub(crate) is_fresh: bool,
    /// Instructions that a round counts in addition to the message's.
    pub(crate) overhead: u64,
}

impl Case {
    pub(crate) fn new(group: &'static str, name: impl Into<String>, module: String) -> Self {
        let (entry_kind, times_max, is_fresh) = (EntryKind::Update, u32::MAX, false);
        Self { group, name: name.into(), module, entry_kind, times_max, is_fresh, overhead: 0 }
    }
}

/// A module that does `body` again and again. `parts` are its fields: types, globals, functions.
pub(crate) fn module(parts: &str, locals: &str, setup: &str, body: &str, after: &str) -> String {
    let memory = if parts.contains("(memory") { "" } else { "(memory 16)" };
    format!(
        "(module {parts} {memory}
        (func $run (param $n i32) {locals} {setup}
            (loop $again {body}
                (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
            {after})"
    )
}

/// The entry points of a case: by argument, or by the environment of a callback.
fn complete(case: &Case) -> String {
    let argument = "(call $times_copy (i32.const 65520) (i32.const 0) (i32.const 4))
        (call $run (i32.load (i32.const 65520)))";
    let import = "(import \"ic0\" \"msg_arg_data_copy\" (func $times_copy (param i32 i32 i32)))";
    let entry = match case.entry_kind {
        EntryKind::Update => "canister_update run",
        EntryKind::Query => "canister_query run",
        EntryKind::Inspect => "canister_inspect_message",
        EntryKind::Reject => {
            return format!(
                "{} (table $callbacks 1 funcref) (elem (table $callbacks) (i32.const 0) func \
                 $run))",
                case.module
            );
        }
    };
    let module = case.module.replacen("(module", &format!("(module {import}"), 1);
    format!("{module} (func (export \"{entry}\") {argument}))")
}

/// Nanoseconds that the threads of all workers ran so far.
fn worker_nanos(world: &World) -> u64 {
    let mut nanos = 0;
    for pid in world.pool.pids() {
        let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { continue };
        for task in tasks.flatten() {
            let text = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
            nanos += text.split(' ').next().and_then(|text| text.parse().ok()).unwrap_or(0_u64);
        }
    }
    nanos
}

/// A case with its canister.
struct Bench<'a> {
    world: &'a World,
    case: &'a Case,
    canister: Canister,
    times: u32,
}

impl<'a> Bench<'a> {
    fn new(world: &'a World, case: &'a Case) -> Self {
        let canister = world.install(&complete(case));
        let mut bench = Self { world, case, canister, times: case.times_max.min(20) };
        bench.run();
        // The greatest number of times is that of the pages to be touched.
        if case.is_fresh {
            bench.times = case.times_max;
            return bench;
        }
        loop {
            let (nanos, _) = bench.run();
            let factor = (RUN_NANOS / nanos.max(1.0)).min(1_000.0);
            if factor < 1.5 || bench.times == case.times_max {
                return bench;
            }
            let times = f64::from(bench.times) * factor;
            bench.times = (times as u32).clamp(1, case.times_max);
        }
    }

    /// Nanoseconds and instructions of one run.
    fn run(&mut self) -> (f64, f64) {
        if self.case.is_fresh {
            self.canister = self.world.install(&complete(self.case));
        }
        let arg = self.times.to_le_bytes().to_vec();
        let callback = |kind| Entry::Callback { kind, fun: 0, env: self.times.into() };
        let entry = match self.case.entry_kind {
            EntryKind::Update => Entry::Update("run".into()),
            EntryKind::Query => Entry::Query("run".into()),
            EntryKind::Inspect => Entry::InspectMessage { method_name: "run".into() },
            EntryKind::Reject => {
                callback(CallbackKind::Reject { code: 4, message: "rejected".into() })
            }
        };
        let mut request = self.world.request(&self.canister, entry);
        request.context.arg = arg;
        request.context.payload_max_bytes = 8 << 20;
        request.context.cycles_available = 1 << 60;
        request.context.caller_info =
            Some(state::SenderInfo { info: vec![7; 100], signer: self.canister_id() });
        request.context.data_certificate = Some(vec![7; 500].into());
        request.limits.instructions = 100_000_000_000;
        request.limits.heap_dirty_bytes = 256 << 20;
        request.limits.stable_dirty_bytes = 256 << 20;
        request.limits.stable_accessed_bytes = 256 << 20;
        let lane = if request.context.replicated { Lane::Update(0) } else { Lane::Query(0) };
        let before = worker_nanos(self.world);
        let outcome = self.world.pool.execute(lane, &request).unwrap();
        let nanos = worker_nanos(self.world) - before;
        match outcome.result {
            Ok(Response::None) => {}
            other => panic!("{}: {other:?}", self.case.name),
        }
        if request.context.replicated {
            let mut canister = self.canister.clone();
            self.world.commit(&mut canister, request, &outcome);
            self.canister.balance = canister.balance;
            if !self.case.is_fresh {
                self.canister = canister;
            }
        }
        (nanos as f64, (outcome.instructions + self.case.overhead) as f64)
    }

    fn canister_id(&self) -> ic_principal::Principal {
        ic_principal::Principal::from_slice(&[9; 10])
    }
}

struct Options {
    json: Option<String>,
    only: Option<String>,
    runs: usize,
}

/// Measurements of a case.
struct Figure<'a> {
    case: &'a Case,
    per_instruction: f64,
    ratio: f64,
    counted: f64,
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn measure<'a>(world: &World, cases: &'a [Case], runs: usize) -> (f64, Vec<Figure<'a>>) {
    let add = code::reference();
    let mut reference = Bench::new(world, &add);
    let mut all = Vec::new();
    let mut figures = Vec::new();
    for case in cases {
        let mut bench = Bench::new(world, case);
        let (mut nanos, mut ratios, mut counted) = (Vec::new(), Vec::new(), 0.0);
        for _ in 0..runs {
            let (time, count) = reference.run();
            let unit = time / count;
            let (time, count) = bench.run();
            all.push(unit);
            nanos.push(time / count);
            ratios.push(time / count / unit);
            counted = count / f64::from(bench.times);
        }
        let (per_instruction, ratio) = (median(nanos), median(ratios));
        figures.push(Figure { case, per_instruction, ratio, counted });
        eprint!("\r{} of {} {:<60}", figures.len(), cases.len(), case.name);
        // Outside the measured time.
        world.fold();
    }
    eprintln!();
    (median(all), figures)
}

fn options(first: Option<String>) -> Options {
    let mut options = Options { json: None, only: None, runs: 5 };
    let mut arguments = first.into_iter().chain(std::env::args().skip(2));
    while let Some(name) = arguments.next() {
        let value = arguments.next().unwrap_or_else(|| panic!("{name} needs a value"));
        match name.as_str() {
            "--json" => options.json = Some(value),
            "--only" => options.only = Some(value),
            "--runs" => options.runs = value.parse().unwrap(),
            _ => panic!("unknown option {name}"),
        }
    }
    options
}

fn machine() -> String {
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = cpus.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let count = std::thread::available_parallelism().map_or(0, usize::from);
    format!("{count} x {}, load {}", name.trim_start_matches(['\t', ' ', ':']), load.trim())
}

fn json(reference: f64, figures: &[Figure<'_>], runs: usize) -> String {
    let mut text = format!(
        "{{\"machine\": {:?}, \"runs\": {runs}, \"i64_add_ns\": {reference:.4}, \"cases\": [",
        machine()
    );
    for (n, figure) in figures.iter().enumerate() {
        let comma = if n == 0 { "" } else { "," };
        write!(
            text,
            "{comma}\n{{\"group\": {:?}, \"name\": {:?}, \"ns_per_instruction\": {:.4}, \
             \"ratio\": {:.3}, \"counted\": {:.1}}}",
            figure.case.group,
            figure.case.name,
            figure.per_instruction,
            figure.ratio,
            figure.counted
        )
        .unwrap();
    }
    text + "\n]}\n"
}

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let first = arguments.next();
    match first.as_deref().and_then(|name| name.to_str()) {
        Some("sandbox-compile") => return sandbox::compile_main(arguments),
        Some("sandbox-worker") => return sandbox::worker_main(arguments),
        _ => {}
    }
    let options = options(first.map(|name| name.to_string_lossy().into_owned()));
    let mut cases: Vec<Case> =
        code::cases().into_iter().chain(touches::cases()).chain(api::cases()).collect();
    if let Some(only) = &options.only {
        cases.retain(|case| format!("{}: {}", case.group, case.name).contains(only.as_str()));
    }
    let world = World::new(std::env::current_exe().unwrap());
    let (reference, mut figures) = measure(&world, &cases, options.runs);
    figures.sort_by(|one, other| other.ratio.total_cmp(&one.ratio));
    println!("{}", machine());
    println!("{} runs of each case, i64.add {reference:.3} ns per instruction", options.runs);
    println!("{:<14} {:<52} {:>10} {:>10} {:>8}", "group", "case", "counted", "ns", "ratio");
    for figure in &figures {
        println!(
            "{:<14} {:<52} {:>10.1} {:>10.3} {:>8.2}",
            figure.case.group,
            figure.case.name,
            figure.counted,
            figure.per_instruction,
            figure.ratio
        );
    }
    if let Some(path) = &options.json {
        std::fs::write(path, json(reference, &figures, options.runs)).unwrap();
    }
    let worst = figures.first().map_or(0.0, |figure| figure.ratio);
    println!("worst ratio {worst:.2}, at most {RATIO_MAX}");
    if worst > RATIO_MAX { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
