//! The subcommands of `thimble-lab image` that work on the cache.
//!
//! [`Command`] is flattened into the lab's own enumeration, which has more of them. Must never
//! know: the implementation of the operations; it reads flags and prints.

use std::{
    env,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

use accounting::{format_size, parse_size};
use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use cli::StopSignals;
use serde::Serialize;

use crate::{
    AddResult, BaseId, Cache, Entry, Error, Keep, OverlayOptions, OverlayOrigin, Packing, Settings,
    State, Stop, bench,
};

/// More machines than one computer runs.
const OVERLAYS_MAX: usize = 4096;
const DIGITS_SHOWN: usize = 12;

/// Operations on the cache.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make a base of an image file; prints its id.
    ///
    /// The file is raw or qcow2, plain or packed by zstd, gzip or xz, alone or as the one file of a
    /// tar archive; its format is detected from its bytes, not its name. It is unpacked once, even
    /// if several processes add it at the same time, with holes as holes. An unchanged file that
    /// was added before is not read again. Killed at any moment, it leaves nothing that counts as a
    /// base.
    ///
    /// Example: thimble-lab image add disk.img.tar.zst
    Add(Add),
    /// Show the bases: size, form, last use, overlays.
    ///
    /// Example: thimble-lab image list --json
    List(Common),
    /// Make the disks of machines: qcow2 files that hold what each machine writes, over one shared
    /// base.
    ///
    /// One that is there is used again, as it is, unless --fresh; a disk never shrinks. The base
    /// may be given by its id, by at least six digits of it, or as an image file, which is added
    /// first. Prints the paths.
    ///
    /// Example: thimble-lab image overlay 3f2a9c vm1.qcow2 vm2.qcow2 --grow 20GiB
    Overlay(Overlays),
    /// Read bases through, and look whether every overlay finds its own; without BASE all of them.
    ///
    /// Exit status: 0 when all is well, 1 when something is wrong, with the overlays that it
    /// concerns.
    Verify(VerifyArgs),
    /// Remove bases; one that an overlay needs is not removed, and its overlays are named.
    Remove(RemoveArgs),
    /// Make room: remove the bases that no overlay needs, the longest unused first, and what killed
    /// processes left.
    ///
    /// Example: thimble-lab image collect --keep 20GiB
    ///
    /// Example: thimble-lab image collect --keep 14d --dry-run
    Collect(Collect),
    /// Measure every way to make the disks of some machines out of one image, in turns; a table
    /// with goals.
    ///
    /// Exit status: 0 when every goal is met, 1 when one is missed, 130 after Ctrl-C.
    Bench(bench::Options),
}

/// Options of all subcommands.
#[derive(Clone, Debug, Args)]
pub struct Common {
    /// Folder of the cache. Default: $THIMBLE_IMAGES, or thimble/images in $XDG_CACHE_HOME or
    /// ~/.cache.
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// Print one JSON document instead of text.
    #[arg(long)]
    json: bool,
    /// No progress on standard error.
    #[arg(long, short)]
    quiet: bool,
    /// The qemu-img to use; needed for qcow2 files, and for what is compressed or grown.
    #[arg(long, value_name = "PROGRAM", default_value = "qemu-img")]
    qemu_img: PathBuf,
}

/// Further options of subcommands that make a base.
#[derive(Clone, Debug, Args)]
struct Limits {
    /// Largest disk, as a machine sees it; what a file declares is not believed.
    #[arg(long, value_name = "SIZE", default_value = "64GiB", value_parser = parse_size)]
    limit: u64,
    /// Room that stays free on the cache's file system while a base is made.
    #[arg(long, value_name = "SIZE", default_value = "512MiB", value_parser = parse_size)]
    reserve: u64,
}

/// Arguments of `image add`.
#[derive(Debug, Args)]
pub struct Add {
    /// The image file: raw or qcow2, plain or packed.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Keep a raw disk, whatever the file is: fastest to read, largest.
    #[arg(long, conflicts_with = "compressed")]
    unpacked: bool,
    /// Keep a qcow2 file with clusters packed by zstd: smallest; slow to make, and machines unpack
    /// what they read.
    #[arg(long)]
    compressed: bool,
    /// Read the file even if it seems unchanged since it was last hashed.
    #[arg(long)]
    rehash: bool,
    #[command(flatten)]
    limits: Limits,
    #[command(flatten)]
    common: Common,
}

/// Arguments of `image overlay`.
#[derive(Debug, Args)]
pub struct Overlays {
    /// The base's id, at least six digits of it, or an image file.
    #[arg(value_name = "BASE")]
    base: String,
    /// Where the overlays are to be.
    #[arg(value_name = "DEST", required = true)]
    destinations: Vec<PathBuf>,
    /// A larger disk than the base has; a smaller size changes nothing.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    grow: Option<u64>,
    /// Recreate them: the data of machines in earlier ones is lost.
    #[arg(long)]
    fresh: bool,
    #[command(flatten)]
    limits: Limits,
    #[command(flatten)]
    common: Common,
}

/// Arguments of `image remove`.
#[derive(Debug, Args)]
pub struct RemoveArgs {
    /// Ids, or at least six digits of each.
    #[arg(value_name = "BASE", required = true)]
    bases: Vec<String>,
    #[command(flatten)]
    common: Common,
}

/// Arguments of `image verify`.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Ids, or at least six digits of each.
    #[arg(value_name = "BASE")]
    bases: Vec<String>,
    #[command(flatten)]
    common: Common,
}

/// Arguments of `image collect`.
#[derive(Debug, Args)]
pub struct Collect {
    /// How many bytes of bases stay (20GiB), or which age (36h, 14d, 8w) without use is too old.
    #[arg(long, value_name = "SIZE|AGE")]
    keep: Keep,
    /// Only print what would be removed.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    common: Common,
}

/// Runs a command; `subcommand` is the path of its parent on the command line of this program
/// (`["image"]` in the lab).
pub async fn run(command: Command, subcommand: &'static [&'static str]) -> Result<ExitCode> {
    stoppable(move |stop| dispatch(command, stop, subcommand)).await
}

/// Runs blocking work; Ctrl-C and SIGTERM ask it to stop, a second one ends the process.
pub async fn stoppable(
    work: impl FnOnce(&Stop) -> Result<ExitCode> + Send + 'static,
) -> Result<ExitCode> {
    let stop = Stop::default();
    let worker = {
        let stop = stop.clone();
        tokio::task::spawn_blocking(move || work(&stop))
    };
    tokio::pin!(worker);
    let mut signals = StopSignals::listen()?;
    let mut was_asked = false;
    let done = loop {
        tokio::select! {
            done = &mut worker => break done,
            _ = signals.next() => {}
        }
        if was_asked {
            // The next run removes the remains.
            std::process::exit(i32::from(cli::EXIT_INTERRUPTED));
        }
        was_asked = true;
        stop.request();
    };
    match done.context("the command's thread ended")? {
        Err(error) if matches!(error.downcast_ref(), Some(Error::Stopped)) => {
            eprintln!("image: stopped; nothing is left half done");
            Ok(cli::interrupted())
        }
        other => other,
    }
}

fn dispatch(command: Command, stop: &Stop, subcommand: &[&str]) -> Result<ExitCode> {
    match command {
        Command::Add(options) => add(&options, stop),
        Command::List(common) => list(&common, stop),
        Command::Overlay(options) => overlay(&options, stop),
        Command::Verify(options) => verify(&options, stop),
        Command::Remove(options) => remove(&options, stop),
        Command::Collect(options) => collect(&options, stop),
        Command::Bench(options) => bench::run(&options, stop, subcommand),
    }
}

fn open(common: &Common, limits: Option<&Limits>, stop: &Stop) -> Result<Cache> {
    let mut settings = Settings {
        qemu_img: common.qemu_img.clone(),
        talks: !common.quiet,
        stop: stop.clone(),
        ..Settings::default()
    };
    if let Some(limits) = limits {
        (settings.limit_bytes, settings.reserve_bytes) = (limits.limit, limits.reserve);
    }
    Ok(Cache::open(&cache_folder(common.cache.clone())?, settings)?)
}

/// Folder of the cache: the one `named`; else `$THIMBLE_IMAGES`, or `thimble/images` in the user's
/// folder of caches.
///
/// # Errors
///
/// When the environment names no folder at all.
pub fn cache_folder(named: Option<PathBuf>) -> Result<PathBuf> {
    let variable =
        |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    named
        .or_else(|| variable("THIMBLE_IMAGES"))
        .or_else(|| Some(variable("XDG_CACHE_HOME")?.join("thimble/images")))
        .or_else(|| Some(variable("HOME")?.join(".cache/thimble/images")))
        .context(
            "where is the cache to be? Neither THIMBLE_IMAGES nor HOME is set; name a folder with \
             --cache",
        )
}

fn print_json(document: &impl Serialize) -> Result<()> {
    println!("{}", serde_json::to_string_pretty(document)?);
    Ok(())
}

fn add(options: &Add, stop: &Stop) -> Result<ExitCode> {
    let cache = open(&options.common, Some(&options.limits), stop)?;
    let wanted = match (options.unpacked, options.compressed) {
        (true, _) => Packing::Unpacked,
        (_, true) => Packing::Compressed,
        _ => Packing::Best,
    };
    let began = Instant::now();
    let added = cache.add_with(&options.file, wanted, options.rehash)?;
    if options.common.json {
        print_json(&added)?;
    } else {
        println!("{}", added.base.id);
    }
    if !options.common.quiet {
        eprintln!("image: {}", added_words(&added, began.elapsed()));
    }
    Ok(ExitCode::SUCCESS)
}

fn added_words(added: &AddResult, took: Duration) -> String {
    let base = &added.base;
    let done = match (&added.healed, added.is_new) {
        (Some(users), _) => {
            format!("made again, as it was missing or damaged (needed by {} overlays)", users.len())
        }
        (None, true) => "added".to_owned(),
        (None, false) => "already there".to_owned(),
    };
    let packed = if base.layers.is_empty() {
        String::new()
    } else {
        format!(" in {}", base.layers.join(", "))
    };
    format!(
        "{done}: a disk of {} from a file of {}{packed} (1 : {:.1}), kept as {} in {}; {:.2} s",
        format_size(base.virtual_bytes),
        format_size(base.source_bytes),
        added.ratio,
        base.id.form.name(),
        format_size(added.disk_bytes),
        took.as_secs_f64()
    )
}

fn overlay(options: &Overlays, stop: &Stop) -> Result<ExitCode> {
    if options.destinations.len() > OVERLAYS_MAX {
        bail!("at most {OVERLAYS_MAX} overlays at once");
    }
    let cache = open(&options.common, Some(&options.limits), stop)?;
    let began = Instant::now();
    let id = match cache.find(&options.base) {
        Err(Error::Unknown { .. }) if Path::new(&options.base).is_file() => {
            let added = cache.add(Path::new(&options.base), Packing::Best)?;
            if !options.common.quiet {
                eprintln!("image: {}", added_words(&added, began.elapsed()));
            }
            added.base.id
        }
        found => found?,
    };
    let how = OverlayOptions { grow: options.grow, fresh: options.fresh };
    let mut made = Vec::new();
    for destination in &options.destinations {
        stop.check()?;
        let overlay = cache.overlay(&id, destination, how)?;
        if !options.common.json {
            println!("{}", overlay.path.display());
        }
        made.push(overlay);
    }
    if options.common.json {
        print_json(&made)?;
    }
    if !options.common.quiet {
        let count = |what| made.iter().filter(|overlay| overlay.made == what).count();
        let words: Vec<_> = [
            (OverlayOrigin::New, "made"),
            (OverlayOrigin::Afresh, "made anew"),
            (OverlayOrigin::Reused, "used again"),
            (OverlayOrigin::Grown, "grown"),
        ]
        .into_iter()
        .map(|(what, word)| (count(what), word))
        .filter(|(count, _)| *count > 0)
        .map(|(count, word)| format!("{count} {word}"))
        .collect();
        eprintln!("image: overlays: {}; {:.3} s", words.join(", "), began.elapsed().as_secs_f64());
    }
    Ok(ExitCode::SUCCESS)
}

fn list(common: &Common, stop: &Stop) -> Result<ExitCode> {
    let cache = open(common, None, stop)?;
    let entries = cache.list()?;
    if common.json {
        print_json(&entries)?;
        return Ok(ExitCode::SUCCESS);
    }
    if entries.is_empty() {
        println!("no bases in {}; `image add FILE` makes one", cache.folder().display());
        return Ok(ExitCode::SUCCESS);
    }
    println!(
        "{:<18} {:>10} {:>10}  {:<8} {:<9} {:>8}  from",
        "base", "disk", "takes", "state", "unused", "overlays"
    );
    for entry in &entries {
        println!("{}", line(entry));
        for overlay in &entry.overlays {
            println!("  {}", overlay.display());
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn line(entry: &Entry) -> String {
    let state = match entry.state {
        State::Whole => "whole",
        State::Touched => "touched",
        State::Changed => "changed",
        State::Missing => "MISSING",
    };
    format!(
        "{:<18} {:>10} {:>10}  {state:<8} {:<9} {:>8}  {}",
        short(&entry.id),
        entry.base.as_ref().map_or_else(|| "?".to_owned(), |base| format_size(base.virtual_bytes)),
        format_size(entry.disk_bytes),
        entry.unused_seconds.map_or_else(|| "?".to_owned(), age),
        entry.overlays.len(),
        entry
            .base
            .as_ref()
            .map_or_else(|| "?".to_owned(), |base| base.source.display().to_string()),
    )
}

/// The first digits of an id and its form, enough for a person.
fn short(id: &BaseId) -> String {
    let text = id.to_string();
    format!("{}..{}", text.get(..DIGITS_SHOWN).unwrap_or(&text), id.form.name())
}

fn age(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

fn verify(options: &VerifyArgs, stop: &Stop) -> Result<ExitCode> {
    let cache = open(&options.common, None, stop)?;
    let verified = match options.bases.is_empty() {
        true => cache.verify_all()?,
        false => {
            let ids =
                options.bases.iter().map(|text| cache.find(text)).collect::<Result<Vec<_>, _>>()?;
            ids.iter().map(|id| cache.verify(id)).collect::<Result<_, _>>()?
        }
    };
    if options.common.json {
        print_json(&verified)?;
    } else {
        for one in &verified {
            let well = if one.findings.is_empty() { "is whole" } else { "HAS FAULTS" };
            println!("{} {well}; {} overlays", short(&one.id), one.overlays.len());
            for finding in &one.findings {
                match &finding.overlay {
                    Some(overlay) => println!("  overlay {}: {}", overlay.display(), finding.why),
                    None => println!("  the base {}", finding.why),
                }
            }
        }
    }
    let good = verified.iter().all(|one| one.findings.is_empty());
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn remove(options: &RemoveArgs, stop: &Stop) -> Result<ExitCode> {
    let cache = open(&options.common, None, stop)?;
    let ids = options.bases.iter().map(|text| cache.find(text)).collect::<Result<Vec<_>, _>>()?;
    for id in &ids {
        cache.remove(id)?;
        if !options.common.json {
            println!("removed {id}");
        }
    }
    if options.common.json {
        print_json(&ids)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn collect(options: &Collect, stop: &Stop) -> Result<ExitCode> {
    let cache = open(&options.common, None, stop)?;
    let collected = cache.collect(options.keep, options.dry_run)?;
    if options.common.json {
        print_json(&collected)?;
        return Ok(ExitCode::SUCCESS);
    }
    let done = if options.dry_run { "would remove" } else { "removed" };
    for id in &collected.removed {
        println!("{done} {id}");
    }
    for id in &collected.in_use {
        println!("kept {id}: it is in use");
    }
    println!(
        "{done} {} bases of {} and {} remains of killed processes; {} stay",
        collected.removed.len(),
        format_size(collected.removed_bytes),
        collected.scratch,
        format_size(collected.left_bytes)
    );
    Ok(ExitCode::SUCCESS)
}
