//! The child's side: confine itself, then touch the module.
//!
//! Order matters. Limits, the engine and the filter come first, while only trusted code has run;
//! after that the process can read, compute and write to the descriptors it has, and nothing else.
//! The module is mapped rather than read, so its pages belong to its file.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::FromRawFd;
use std::process::ExitCode;

use super::{CompiledModule, Failure, Job, REPORT_MAGIC, Report};
use super::{heap, sandboxing};
use crate::{engine, mapped_file::MappedFile, module};

/// Entry of the hidden subcommand; `arguments` follow its name. Never to be called in a process
/// that does anything else: it gives up rights for good.
pub fn compile_main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let job =
        arguments.into_iter().next().and_then(|argument| Job::from_argument(argument.to_str()?));
    let report: Report = match job {
        Some(job) => run(&job),
        None => {
            Err(Failure::Machine("its job is malformed; it is started by the node only".to_owned()))
        }
    };
    let Ok(report) = postcard::to_stdvec(&report) else { return ExitCode::FAILURE };
    let mut stderr = io::stderr().lock();
    match stderr.write_all(REPORT_MAGIC).and_then(|()| stderr.write_all(&report)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Entry of a test's subcommand: confines the process like a compile child, attempts what one must
/// not be able to do, and prints each attempt with the error number that it ended with, 0 for
/// success.
pub fn compile_probe_main() -> ExitCode {
    let caps = super::Caps {
        memory_bytes: 64 << 20,
        room_bytes: 64 << 20,
        anonymous_bytes: 64 << 20,
        seconds: 10,
        artefact_bytes: 1 << 20,
    };
    match sandboxing::probe(&caps) {
        Ok(results) => {
            results.iter().for_each(|(what, error)| println!("{what}: {error}"));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(job: &Job) -> Report {
    let failed =
        |what: &str, error: &dyn std::fmt::Display| Failure::Machine(format!("{what}: {error}"));
    sandboxing::limit(&job.caps).map_err(|error| failed("setting its limits", &error))?;
    // SAFETY: descriptors 0 and 1 are the files the parent put there, and nothing else in this
    // process uses them.
    let (uploaded, mut artefact) = unsafe { (File::from_raw_fd(0), File::from_raw_fd(1)) };
    heap::take_from(&uploaded, job.uploaded_bytes, job.caps.room_bytes)
        .map_err(|error| failed("mapping its heap", &error))?;
    let meter = sandboxing::Meter::open().map_err(|error| failed("opening its account", &error))?;
    let engine = engine::engine().map_err(|error| failed("configuring the engine", &error))?;
    sandboxing::filter().map_err(|error| failed("installing its filter", &error))?;

    // SAFETY: the parent unlinked the file before it handed it over and writes to it no more.
    let uploaded = unsafe { MappedFile::new(&uploaded, 0, job.uploaded_bytes) }
        .map_err(|error| failed("reading the module", &error))?;
    let processed = module::process(uploaded.bytes(), &job.module);
    let (wasm, info, wasm_bytes) =
        processed.map_err(|error| Failure::Refused(error.to_string()))?;
    let code = engine.precompile_module(&wasm).map_err(compile_failure)?;
    drop(wasm);
    artefact.write_all(&code).map_err(|error| failed("writing the artefact", &error))?;
    let (cpu_millis, resident_bytes_max, anonymous_bytes) =
        meter.read().map_err(|error| failed("reading its account", &error))?;
    Ok(CompiledModule {
        info,
        wasm_bytes,
        artefact_bytes: code.len() as u64,
        cpu_millis,
        resident_bytes_max,
        anonymous_bytes,
    })
}

/// How the engine says that a function exceeds what it can express, whatever the machine.
const ENGINE_LIMITS: [&str; 3] = [
    "Implementation limit exceeded",
    "Code for function is too large",
    "exceeds the implementation limit",
];

fn compile_failure(error: wasmtime::Error) -> Failure {
    let text = format!("{error:#}");
    let no_memory = error
        .downcast_ref::<io::Error>()
        .is_some_and(|error| error.kind() == io::ErrorKind::OutOfMemory);
    if no_memory || text.contains("out of memory") || text.contains("Cannot allocate memory") {
        Failure::OutOfMemory
    } else if ENGINE_LIMITS.iter().any(|limit| text.contains(limit)) {
        // The same for every node of this engine's version. The text is our own: the engine's names
        // things of its own making.
        Failure::Refused(
            "a function is beyond an implementation limit of the code generator".to_owned(),
        )
    } else {
        Failure::Machine(text)
    }
}
