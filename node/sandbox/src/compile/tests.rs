#![allow(clippy::unwrap_used)]
use super::*;
use crate::module::testing::limits;

fn compiler() -> Compiler {
    Compiler {
        exe: PathBuf::from("/nonexistent/thimble"),
        arguments: Vec::new(),
        module: limits(),
        caps: Caps {
            memory_bytes: 1 << 28,
            room_bytes: 1 << 29,
            anonymous_bytes: 1 << 24,
            seconds: 30,
            artefact_bytes: 1 << 26,
        },
        children: Children::default(),
    }
}

fn signal(signal: i32) -> ExitStatus {
    ExitStatus::from_raw(signal)
}

#[test]
fn a_job_survives_the_command_line() {
    let job = Job { module: limits(), caps: compiler().caps, uploaded_bytes: 12_345 };
    let argument = job.to_argument().unwrap().into_string().unwrap();
    assert_eq!(Job::from_argument(&argument), Some(job));
    for broken in ["", "0", "zz", &argument[..argument.len() - 2], "é"] {
        assert_eq!(Job::from_argument(broken), None, "{broken}");
    }
}

#[test]
fn every_end_of_the_child_has_its_name_and_value() {
    let interpret =
        |status, output: &[u8]| compiler().caps.interpret_exit(status, output).unwrap_err();
    assert!(
        interpret(signal(libc::SIGXCPU), b"")
            .to_string()
            .contains("`sandbox.compile_seconds` of 30 s")
    );
    assert!(
        interpret(signal(libc::SIGXFSZ), b"")
            .to_string()
            .contains("`sandbox.compilation_cache_bytes` of 67108864 bytes")
    );
    assert!(
        interpret(signal(libc::SIGBUS), b"")
            .to_string()
            .contains("at most 536870912 bytes (twice `sandbox.compile_memory_bytes`)")
    );
    let memory = interpret(signal(libc::SIGABRT), b"memory allocation of 1048576 bytes failed\n");
    assert!(
        memory.to_string().contains("`sandbox.compile_memory_bytes` of 268435456 bytes"),
        "{memory}"
    );
    let panic = interpret(
        ExitStatus::from_raw(101 << 8),
        b"thread 'main' panicked at map.rs: unhandled out-of-memory error: out of memory",
    );
    assert!(matches!(panic, CompileError::OutOfMemory(_)), "{panic}");
    assert!(matches!(interpret(signal(libc::SIGKILL), b""), CompileError::Killed(libc::SIGKILL)));
    assert!(matches!(interpret(signal(libc::SIGSEGV), b""), CompileError::Crashed(_)));
    assert!(matches!(
        interpret(signal(libc::SIGABRT), b"thread panicked"),
        CompileError::Crashed(_)
    ));
    assert!(
        matches!(interpret(ExitStatus::from_raw(0), b""), CompileError::Crashed(_)),
        "no report"
    );
    let mut forged = REPORT_MAGIC.to_vec();
    forged.extend([0xff; 8]);
    assert!(
        matches!(interpret(ExitStatus::from_raw(0), &forged), CompileError::Crashed(_)),
        "an unreadable report"
    );
}

#[test]
fn only_an_invalid_module_is_refused_permanently() {
    for trouble in [
        CompileError::Killed(9),
        CompileError::OutOfTime(1),
        CompileError::OutOfMemory(1),
        CompileError::NoDisk(1),
        CompileError::TooLarge(1),
        CompileError::Crashed("it crashed".to_owned()),
        CompileError::Io(io::Error::other("no descriptors")),
    ] {
        let text = trouble.to_string();
        assert_eq!(NotPrepared::from(trouble), NotPrepared::Trouble(text));
    }
    let NotPrepared::Refused(reject) = CompileError::Refused("x".to_owned()).into() else {
        panic!()
    };
    assert_eq!(
        (reject.code, reject.error_code.to_string().as_str(), reject.message.as_str()),
        (RejectCode::CanisterError, "IC0505", "Canister's Wasm module is not valid: x")
    );
}

#[test]
fn a_binary_that_is_not_there_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let file = || File::create(dir.path().join("file")).unwrap();
    assert!(matches!(
        compiler().compile(file(), file(), Priority::Round),
        Err(CompileError::Io(_))
    ));
}
