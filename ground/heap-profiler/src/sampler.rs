//! In the node: sampling, its limits, and the answer to requests. The only file here that knows
//! that the allocator is jemalloc.
//!
//! Whether jemalloc samples at all is decided when a process starts, before `main` (`opt.prof`),
//! and so is whether it keeps totals (`opt.prof_accum`). So a node that is configured to sample
//! replaces itself by the same program with jemalloc's settings in its environment: the process id
//! stays. Other nodes have `opt.prof:false`, where every allocation tests one constant.
//!
//! Bounds: with totals jemalloc frees none of its records while the process lives, so they grow
//! with every new call stack and with every thread that ended. [`Sampler::tend`] compares them with
//! [`Settings::profiler_bytes`] and stops sampling when they exceed it; existing samples stay and
//! are still shown. In addition, each sampled allocation that is alive takes a slab of its own,
//! whose share of live memory is at most 16 KiB in `sample_bytes`. An answer is at most
//! `answer_bytes`; answers are made one at a time, at most one per second; the allocator's output
//! goes through a file in the data folder, line by line.

use std::{
    ffi::{CString, OsString},
    fs::{self, File},
    io::{BufReader, Write},
    os::unix::{ffi::OsStrExt, process::CommandExt},
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Mutex, TryLockError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use accounting::{KIB, MIB, format_size};
use anyhow::{Context, Result, anyhow, bail};
use flate2::{Compression, write::GzEncoder};
use tikv_jemalloc_ctl::{epoch, profiling, raw};

use crate::{
    document::{self, Head},
    program,
};

/// Time for an answer; a request that waits longer gets an error.
pub const ANSWER_TIME: Duration = Duration::from_secs(10);
/// Least time between two answers: each reads everything that was sampled.
const INTERVAL: Duration = Duration::from_secs(1);
/// The variable by which jemalloc takes settings at the start of a process.
const SETTINGS_VARIABLE: &str = "MALLOC_CONF";
/// Records for the restarted process why it restarted, so that it does not restart forever.
const STARTED_AGAIN_VARIABLE: &str = "THIMBLE_HEAP_PROFILE";
/// The allocator's output is read through a buffer of this size.
const BUFFER_BYTES: usize = 64 << 10;
/// Bounds of [`Settings::sample_bytes`].
const SAMPLE_BYTES: std::ops::RangeInclusive<u64> = 16 * KIB..=16 * MIB;

/// Bounds of the cost of sampling. The fields are limits of the program's table.
#[derive(Clone, Debug)]
pub struct Settings {
    /// One allocation is sampled for each such number of bytes allocated, on average. A power of
    /// two.
    pub sample_bytes: u64,
    /// The allocator's records may grow by so much; then sampling stops.
    pub profiler_bytes: u64,
    /// Largest answer in bytes, compressed; a profile that needs more is refused.
    pub answer_bytes: u64,
}

/// Why there is no answer. The text is shown to the client.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// Time cures it.
    #[error(
        "an answer is being made, or was made less than {} s ago; try again in a second",
        INTERVAL.as_secs()
    )]
    Busy,
    /// It cannot be made.
    #[error("{0}")]
    Failed(String),
}

/// Sampling, in a process that is configured for it.
pub struct Sampler {
    settings: Settings,
    /// Where the allocator writes.
    file: PathBuf,
    head: Head,
    /// The allocator's own memory when sampling began.
    own_bytes_before: u64,
    stopped: AtomicBool,
    /// When the previous answer was made. Locked while an answer is being made.
    answered: Mutex<Option<Instant>>,
}

/// The answer of a node that does not sample. `name` is the name of its program.
pub fn off(name: &str) -> String {
    format!(
        "this node does not sample its allocations; start it with `{name} run --heap-profile`, or \
         with `heap_profile = true` in its configuration file: where memory went is known from \
         then on"
    )
}

impl Sampler {
    /// Begins to sample, in this process if it was started for it; otherwise this process becomes
    /// one that is, by the same arguments, and this function does not return. To be called before
    /// there are threads or open files. `folder` is where the allocator may write. Errors: settings
    /// that cannot be, a program that cannot be started again.
    pub fn start(name: &str, folder: &Path, settings: Settings) -> Result<Self> {
        let sample = settings.sample_bytes;
        if !sample.is_power_of_two() || !SAMPLE_BYTES.contains(&sample) {
            bail!(
                "heap.sample_bytes is {sample}; it must be a power of two from {} to {}",
                format_size(*SAMPLE_BYTES.start()),
                format_size(*SAMPLE_BYTES.end())
            );
        }
        // SAFETY: the names end in zero, and are those of booleans.
        let accumulates = unsafe { raw::read::<bool>(b"opt.prof_accum\0") }.unwrap_or(false);
        if !(profiling::prof::read().unwrap_or(false) && accumulates) {
            start_again(sample)?;
        }
        // SAFETY: the name ends in zero, and is that of a size.
        let exponent = unsafe { raw::read::<usize>(b"prof.lg_sample\0") }
            .map_err(|error| anyhow!("the allocator does not say how it samples: {error}"))?;
        let (exe, build_id) = program::of_this_process()?;
        let own_bytes_before = own_bytes();
        // SAFETY: the name ends in zero, and is that of a boolean.
        unsafe { raw::write(b"prof.active\0", true) }
            .map_err(|error| anyhow!("the allocator does not begin to sample: {error}"))?;
        let head = Head {
            program: name.to_owned(),
            pid: std::process::id(),
            exe,
            build_id,
            started_millis: unix_millis(),
            sample_bytes: 1 << (exponent & 63),
            profiler_bytes_max: settings.profiler_bytes,
            ..Head::default()
        };
        let file = folder.join("heap-samples");
        Ok(Self {
            settings,
            file,
            head,
            own_bytes_before,
            stopped: AtomicBool::new(false),
            answered: Mutex::new(None),
        })
    }

    /// Stops sampling when its records reach their limit. To be called about once a second; takes
    /// some microseconds.
    pub fn tend(&self) {
        if self.stopped.load(Relaxed) || self.profiler_bytes() <= self.settings.profiler_bytes {
            return;
        }
        // SAFETY: the name ends in zero, and is that of a boolean.
        // It cannot fail in a process in which it was set before.
        let _ = unsafe { raw::write(b"prof.active\0", false) };
        self.stopped.store(true, Relaxed);
    }

    /// Largest answer, to be set aside before one is asked for.
    pub fn answer_bytes(&self) -> u64 {
        self.settings.answer_bytes
    }

    /// The samples, as a compressed [`document`]. Blocks for some milliseconds; the answer's memory
    /// is at most [`Settings::answer_bytes`] and a buffer's.
    pub fn answer(&self) -> Result<Vec<u8>, ProfileError> {
        let mut answered = match self.answered.try_lock() {
            Ok(answered) => answered,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(ProfileError::Busy),
        };
        if answered.is_some_and(|when| when.elapsed() < INTERVAL) {
            return Err(ProfileError::Busy);
        }
        let answer = self.dumped().and_then(|dump| self.document(dump));
        *answered = Some(Instant::now());
        answer.map_err(|error| ProfileError::Failed(format!("{error:#}")))
    }

    /// Makes the allocator write its samples; the file is already unlinked.
    fn dumped(&self) -> Result<File> {
        let path =
            CString::new(self.file.as_os_str().as_bytes()).context("the data folder's name")?;
        // SAFETY: the name ends in zero; the value is a string that ends in zero and outlives the
        // call.
        let written = unsafe { raw::write(b"prof.dump\0", path.as_ptr()) };
        let opened = File::open(&self.file);
        // A partial file may still be there.
        let _ = fs::remove_file(&self.file);
        let file = self.file.display();
        if written.is_err() {
            bail!("the allocator could not write {file}; is there room in the data folder?");
        }
        opened.with_context(|| format!("reading {file}"))
    }

    fn document(&self, dump: File) -> Result<Vec<u8>> {
        let head = Head {
            taken_millis: unix_millis(),
            profiler_bytes: self.profiler_bytes(),
            stopped: self.stopped.load(Relaxed),
            ..self.head.clone()
        };
        let most = usize::try_from(self.settings.answer_bytes).unwrap_or(usize::MAX);
        let mut packed =
            GzEncoder::new(BoundedWriter { bytes: Vec::new(), most }, Compression::fast());
        document::write(&head, &mut BufReader::with_capacity(BUFFER_BYTES, dump), &mut packed)?;
        let mut bytes = packed.finish()?.bytes;
        bytes.shrink_to_fit();
        Ok(bytes)
    }

    /// By how much the allocator's own records grew since sampling began.
    fn profiler_bytes(&self) -> u64 {
        own_bytes().saturating_sub(self.own_bytes_before)
    }
}

/// Memory that the allocator takes for its own records, of all arenas.
fn own_bytes() -> u64 {
    // Figures are of the moment of the last advance. A failure leaves the ones before.
    let _ = epoch::advance();
    // SAFETY: the name ends in zero, and is that of a size; 4096 stands for all arenas.
    unsafe { raw::read::<usize>(b"stats.arenas.4096.internal\0") }.map_or(0, |bytes| bytes as u64)
}

/// Becomes a process whose allocator can sample. Returns with the error alone.
fn start_again(sample_bytes: u64) -> Result<()> {
    if std::env::var_os(STARTED_AGAIN_VARIABLE).is_some() {
        bail!(
            "the allocator of this program cannot sample, although it was asked to: \
             {SETTINGS_VARIABLE}"
        );
    }
    let mut settings = std::env::var_os(SETTINGS_VARIABLE).unwrap_or_default();
    if !settings.is_empty() {
        settings.push(",");
    }
    // Not active until the program starts it: earlier allocations are not sites of the node's work.
    let exponent = sample_bytes.ilog2();
    settings.push(OsString::from(format!(
        "prof:true,prof_active:false,prof_accum:true,lg_prof_sample:{exponent}"
    )));
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_default();
    let program = std::env::current_exe().context("finding this program's file")?;
    let error = Command::new(&program)
        .arg0(name)
        .args(arguments)
        .env(SETTINGS_VARIABLE, settings)
        .env(STARTED_AGAIN_VARIABLE, "1")
        .exec();
    Err(error).with_context(|| format!("starting {} again, so that it samples", program.display()))
}

fn unix_millis() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Bytes, up to a limit.
struct BoundedWriter {
    bytes: Vec<u8>,
    most: usize,
}

impl Write for BoundedWriter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.most {
            return Err(std::io::Error::other(format!(
                "what was sampled takes more than heap.answer_bytes = {}; raise it, or start with \
                 a larger heap.sample_bytes",
                self.most
            )));
        }
        if self.bytes.len() + bytes.len() > self.bytes.capacity() {
            let larger =
                (self.bytes.capacity() * 2).max(BUFFER_BYTES).max(self.bytes.len() + bytes.len());
            self.bytes.reserve_exact(larger.min(self.most) - self.bytes.len());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Promise: P1 - A heap profile beyond its size limit is refused with the limit.
    #[test]
    fn an_answer_that_grows_too_large_names_the_limit() {
        let mut bounded = BoundedWriter { bytes: Vec::new(), most: 100_000 };
        bounded.write_all(&[0; 99_000]).unwrap();
        assert!(bounded.bytes.capacity() <= 100_000);
        let error = bounded.write_all(&[0; 2_000]).unwrap_err();
        assert!(error.to_string().contains("heap.answer_bytes = 100000"), "{error}");
    }

    #[test]
    fn intervals_that_the_allocator_would_round_are_refused() {
        for sample_bytes in [0, 100_000, 8 * KIB, 32 * MIB] {
            let settings = Settings { sample_bytes, profiler_bytes: MIB, answer_bytes: MIB };
            let Err(error) = Sampler::start("x", Path::new("."), settings) else {
                panic!("{sample_bytes} was taken")
            };
            assert!(error.to_string().contains("heap.sample_bytes"), "{error}");
        }
    }
}
