//! The child's side: confine itself, then touch the module.
//!
//! Order matters. Limits, the engine and the filter come first, while only trusted code has run; after that the process can read, compute and write to the
//! descriptors it has, and nothing else. The module is mapped rather than read, so its pages belong to its file.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::FromRawFd;
use std::process::ExitCode;
use std::ptr;

use wasmtime::Engine;

use super::sandboxing;
use super::{Compiled, Job, REPORT_MAGIC, Report};
use crate::{engine, module};

/// Entry of the hidden subcommand; `arguments` follow its name. Never to be called in a process that does anything else: it gives up rights for good.
pub fn compile_main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let job = arguments.into_iter().next().and_then(|argument| Job::from_argument(argument.to_str()?));
    let report = match job {
        Some(job) => run(&job),
        None => Report::Failed("the job of the compiler process is malformed; it is started by the node only".to_owned()),
    };
    let Ok(report) = postcard::to_stdvec(&report) else { return ExitCode::FAILURE };
    let mut stderr = io::stderr().lock();
    match stderr.write_all(REPORT_MAGIC).and_then(|()| stderr.write_all(&report)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn run(job: &Job) -> Report {
    if let Err(error) = sandboxing::limit(&job.caps) {
        return Report::Failed(format!("limits of the compiler process: {error}"));
    }
    let engine = match engine::engine() {
        Ok(engine) => engine,
        Err(error) => return Report::Failed(format!("configuration of the engine: {error:#}")),
    };
    // SAFETY: descriptors 0 and 1 are the files the parent put there, and nothing else in this process uses them.
    let (uploaded, artefact) = unsafe { (File::from_raw_fd(0), File::from_raw_fd(1)) };
    if let Err(error) = sandboxing::filter() {
        return Report::Failed(format!("system call filter of the compiler process: {error}"));
    }
    compile(job, &engine, &uploaded, artefact).unwrap_or_else(|report| report)
}

fn compile(job: &Job, engine: &Engine, uploaded: &File, mut artefact: File) -> Result<Report, Report> {
    let failed = |what: &str, error: io::Error| Report::Failed(format!("{what}: {error}"));
    let uploaded = Mapping::new(uploaded).map_err(|error| failed("reading the module", error))?;
    let (wasm, info, wasm_bytes) = module::process(uploaded.bytes(), &job.module).map_err(|error| Report::Refused(error.to_string()))?;
    let code = engine.precompile_module(&wasm).map_err(compile_error)?;
    drop(wasm);
    artefact.write_all(&code).map_err(|error| failed("writing the artefact", error))?;
    let (cpu_millis, resident_bytes_max) = sandboxing::usage();
    Ok(Report::Done(Compiled { info, wasm_bytes, artefact_bytes: code.len() as u64, cpu_millis, resident_bytes_max }))
}

fn compile_error(error: wasmtime::Error) -> Report {
    let text = format!("{error:#}");
    let no_memory = error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::OutOfMemory);
    if no_memory || text.contains("out of memory") || text.contains("Cannot allocate memory") { Report::OutOfMemory } else { Report::Failed(text) }
}

/// A file mapped for reading.
struct Mapping {
    address: *mut libc::c_void,
    len: usize,
}

impl Mapping {
    fn new(file: &File) -> io::Result<Self> {
        let len = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        if len == 0 {
            return Ok(Self { address: ptr::null_mut(), len });
        }
        // SAFETY: a new mapping of our choosing, which conflicts with nothing.
        let address = unsafe { rustix::mm::mmap(ptr::null_mut(), len, rustix::mm::ProtFlags::READ, rustix::mm::MapFlags::PRIVATE, file, 0) }?;
        Ok(Self { address, len })
    }

    fn bytes(&self) -> &[u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: mapped for reading with this length until drop; the parent unlinked the file before it handed it over and writes to it no more.
        unsafe { std::slice::from_raw_parts(self.address.cast(), self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: the mapping is ours, and borrows of `bytes` have ended. It cannot fail for a mapping that exists.
            let _ = unsafe { rustix::mm::munmap(self.address, self.len) };
        }
    }
}
