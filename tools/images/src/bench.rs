//! `image bench`: every way to make the disks of some machines from one packed image, in
//! alternating turns in one run, so that other load on the machine affects all of them.
//!
//! The image is made without network: an ext4 file system with real files of this machine, packed
//! by zstd. Each method begins with an empty folder and a quiet disk; its own writes and the dirty
//! pages that the kernel had still to write are measured separately, because only our methods sync
//! their files.
//!
//! Bounds: the room for the largest method, one disk per machine, which is checked first.

mod image;
mod methods;

use std::{fs, path::PathBuf, process::ExitCode, time::Instant};

use accounting::{GIB, MIB, format_size, parse_size};
use anyhow::{Context, Result, ensure};
use clap::Args;
use compare::figure::{self, Figure, Figures};
use nix::sys::resource::{UsageWho, getrusage};
use serde::Serialize;

use self::methods::{METHODS, Workspace};
use crate::Stop;

/// Eight overlays from a base that is in the cache.
const GOAL_CACHED_SECONDS: f64 = 0.05;
const MACHINES_MAX: usize = 64;
const TURNS_MAX: usize = 100;
/// Room required in addition to one disk per machine.
const ROOM_BYTES: u64 = 4 * GIB;

/// Options of the bench.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// The image: a raw disk packed by zstd. Without it one is made of the files in --from.
    #[arg(long, value_name = "FILE")]
    image: Option<PathBuf>,
    /// Folder whose files an image is made of.
    #[arg(long, value_name = "DIR", default_value = "/usr")]
    from: PathBuf,
    /// Size of the disk that is made; two thirds of it are filled.
    #[arg(long, value_name = "SIZE", default_value = "1600MB", value_parser = parse_size)]
    size: u64,
    /// How many machines.
    #[arg(long, default_value_t = 8)]
    machines: usize,
    /// How often each method is measured; medians are shown.
    #[arg(long, default_value_t = 3)]
    turns: usize,
    /// Folder for the image and the disks; on the file system that is to be measured.
    #[arg(long, value_name = "DIR", default_value = "target/bench-images")]
    folder: PathBuf,
    /// Also write the figures to this file, - for standard output instead of the table.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Only methods with this in their name.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
}

/// One method once.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Measurement {
    /// Until the method was done.
    wall_seconds: f64,
    /// Of this process and its children.
    cpu_seconds: f64,
    /// Duration of the `sync` afterwards.
    sync_seconds: f64,
    /// Bytes that it wrote, as allocated on disk.
    made_bytes: u64,
    /// With the base that was there before.
    total_bytes: u64,
}

/// A method with the figures of each turn and their median.
#[derive(Clone, Debug, Serialize)]
struct Row {
    method: &'static str,
    turns: Vec<Measurement>,
    median: Measurement,
}

#[derive(Serialize)]
struct Report {
    format: u32,
    bench: &'static str,
    figures: Vec<Figure>,
    at: String,
    machine: String,
    load: String,
    folder: PathBuf,
    file_system: String,
    image: PathBuf,
    image_bytes: u64,
    disk_bytes: u64,
    machines: usize,
    rows: Vec<Row>,
    goals: Vec<Goal>,
}

#[derive(Serialize)]
struct Goal {
    name: &'static str,
    value: f64,
    goal: f64,
    is_met: bool,
}

/// Runs it. `subcommand` see [`crate::command::run`].
#[expect(clippy::too_many_lines, reason = "steps of one matter, each on what those before it left")]
pub(crate) fn run(options: &Options, stop: &Stop, subcommand: &[&str]) -> Result<ExitCode> {
    ensure!((1..=MACHINES_MAX).contains(&options.machines), "--machines: 1 to {MACHINES_MAX}");
    ensure!((1..=TURNS_MAX).contains(&options.turns), "--turns: 1 to {TURNS_MAX}");
    ensure!((64 * MIB..=64 * GIB).contains(&options.size), "--size: 64MiB to 64GiB");
    fs::create_dir_all(&options.folder)
        .with_context(|| format!("making {}", options.folder.display()))?;
    let folder = fs::canonicalize(&options.folder)?;
    let needed = options.size * (options.machines as u64 + 1) + ROOM_BYTES;
    let room = rustix::fs::statvfs(&folder)?;
    let free = room.f_bavail * room.f_frsize;
    ensure!(
        free >= needed,
        "{} has {} free and the largest method needs {}; name another --folder, fewer --machines \
        or a smaller --size",
        folder.display(),
        format_size(free),
        format_size(needed)
    );
    let image = match &options.image {
        Some(image) => {
            fs::canonicalize(image).with_context(|| format!("opening {}", image.display()))?
        }
        None => image::make(&folder, &options.from, options.size, stop)?,
    };
    let workspace = Workspace::new(&folder, &image, options.machines, subcommand, stop)?;
    let chosen: Vec<_> = METHODS
        .iter()
        .filter(|method| options.only.as_deref().is_none_or(|text| method.name.contains(text)))
        .collect();
    ensure!(!chosen.is_empty(), "--only: no method has this in its name");
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let mut rows: Vec<(_, Vec<Measurement>)> =
        chosen.iter().map(|method| (method.name, Vec::new())).collect();
    let mut unpacked = 0;
    for turn in 1..=options.turns {
        for (method, (_, turns)) in chosen.iter().zip(&mut rows) {
            stop.check()?;
            eprintln!("image: turn {turn}/{}: {}", options.turns, method.name);
            let measured = workspace.measure(method).with_context(|| method.name)?;
            turns.push(measured);
            unpacked = unpacked.max(workspace.bases()?);
        }
    }
    let disk_bytes = workspace.disk_bytes()?;
    workspace.clear()?;
    let rows: Vec<Row> = rows
        .into_iter()
        .map(|(method, turns)| Row { method, median: median(&turns), turns })
        .collect();
    let mut goals = vec![Goal {
        name: "bases in the cache after all turns",
        value: unpacked as f64,
        goal: 1.0,
        is_met: unpacked <= 1,
    }];
    goals.extend(rows.iter().filter(|row| methods::is_goal(row.method)).map(|row| Goal {
        name: row.method,
        value: row.median.wall_seconds,
        goal: GOAL_CACHED_SECONDS,
        is_met: row.median.wall_seconds <= GOAL_CACHED_SECONDS,
    }));
    let report = Report {
        at: cli::now().0,
        machine: compare::describe(),
        format: figure::FORMAT,
        bench: "bench-images",
        figures: figures(&rows),
        load: load.trim().to_owned(),
        file_system: file_system(&folder),
        folder,
        image_bytes: fs::metadata(&image)?.len(),
        disk_bytes,
        image,
        machines: options.machines,
        rows,
        goals,
    };
    let to_stdout = options.json.as_deref().is_some_and(|path| path.as_os_str() == "-");
    if to_stdout {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", text(&report));
        if let Some(path) = &options.json {
            Figures::write_document(&report, path)?;
        }
    }
    let good = report.goals.iter().all(|goal| goal.is_met);
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// CPU time so far, of this process and of children that ended.
fn cpu_seconds() -> Result<f64> {
    let mut total = 0.0;
    for who in [UsageWho::RUSAGE_SELF, UsageWho::RUSAGE_CHILDREN] {
        let usage = getrusage(who)?;
        for time in [usage.user_time(), usage.system_time()] {
            total += time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
        }
    }
    Ok(total)
}

/// Runs `work` and measures it; the caller states where its output is.
fn measure(
    work: impl FnOnce() -> Result<()>,
    made: impl Fn() -> Result<(u64, u64)>,
) -> Result<Measurement> {
    // Dirty pages of earlier work must not count for this method.
    rustix::fs::sync();
    let (cpu, began) = (cpu_seconds()?, Instant::now());
    work()?;
    let (wall_seconds, cpu_seconds) = (began.elapsed().as_secs_f64(), cpu_seconds()? - cpu);
    let began = Instant::now();
    rustix::fs::sync();
    let sync_seconds = began.elapsed().as_secs_f64();
    let (made_bytes, total_bytes) = made()?;
    Ok(Measurement { wall_seconds, cpu_seconds, sync_seconds, made_bytes, total_bytes })
}

fn median(turns: &[Measurement]) -> Measurement {
    let of = |value: fn(&Measurement) -> f64| {
        let mut values: Vec<f64> = turns.iter().map(value).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
    };
    Measurement {
        wall_seconds: of(|turn| turn.wall_seconds),
        cpu_seconds: of(|turn| turn.cpu_seconds),
        sync_seconds: of(|turn| turn.sync_seconds),
        made_bytes: of(|turn| turn.made_bytes as f64) as u64,
        total_bytes: of(|turn| turn.total_bytes as f64) as u64,
    }
}

/// Figures for `thimble-lab compare`: the medians.
fn figures(rows: &[Row]) -> Vec<Figure> {
    rows.iter()
        .flat_map(|row| {
            let (name, median) = (row.method, &row.median);
            [
                Figure::new(name, median.wall_seconds, "s"),
                Figure::new(&format!("{name}, CPU"), median.cpu_seconds, "s"),
                Figure::new(&format!("{name}, made"), median.made_bytes as f64, "bytes"),
            ]
        })
        .collect()
}

fn text(report: &Report) -> String {
    let mut text = format!(
        "{}\n{}, load {}, {} on {}\n{} machines, a disk of {} in a file of {}; medians of {} turns\n\n",
        report.at,
        report.machine,
        report.load,
        report.folder.display(),
        report.file_system,
        report.machines,
        format_size(report.disk_bytes),
        format_size(report.image_bytes),
        report.rows.first().map_or(0, |row| row.turns.len())
    );
    text.push_str(&format!(
        "{:<48} {:>9} {:>9} {:>9} {:>11} {:>11}\n",
        "method", "wall s", "CPU s", "+ sync s", "made", "in all"
    ));
    for row in &report.rows {
        let median = &row.median;
        text.push_str(&format!(
            "{:<48} {:>9.3} {:>9.3} {:>9.2} {:>11} {:>11}\n",
            row.method,
            median.wall_seconds,
            median.cpu_seconds,
            median.sync_seconds,
            format_size(median.made_bytes),
            format_size(median.total_bytes)
        ));
    }
    text.push('\n');
    for goal in &report.goals {
        let met = if goal.is_met { "met" } else { "MISSED" };
        text.push_str(&format!(
            "{met}: {}: {:.3}, goal at most {}\n",
            goal.name, goal.value, goal.goal
        ));
    }
    text
}

/// The type of the file system of a folder, from the kernel's table of mounts.
fn file_system(folder: &std::path::Path) -> String {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ').skip(1);
            Some((words.next()?, words.next()?))
        })
        .filter(|(workspace, _)| folder.starts_with(workspace))
        .max_by_key(|(workspace, _)| workspace.len())
        .map_or_else(|| "an unknown file system".to_owned(), |(_, kind)| kind.to_owned())
}
