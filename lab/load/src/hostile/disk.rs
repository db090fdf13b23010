//! A disk that fails: errors are injected into the system calls by which a running node writes and
//! syncs, for a while and again, through `strace`. A node may wait, refuse or end with an error
//! meanwhile; afterwards it must go on, and nothing acknowledged may be lost.

use std::{
    fs::File,
    os::unix::process::CommandExt as _,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::Result;
use cli::Child;
use rand::{Rng, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;
use tokio::time::{Instant, sleep, timeout};

use super::{
    Report, Run,
    cases::Id,
    life::{Life, Scene},
    net::START_WITHIN,
};

/// System calls that fail together: those that only files see, so that no pipe or socket does.
const CALLS: [&str; 6] = [
    "fsync,fdatasync,sync_file_range",
    "pwrite64,pwritev,pwritev2",
    "ftruncate,fallocate",
    "rename,renameat,renameat2,unlink,unlinkat",
    "fsync,fdatasync,pwrite64,fallocate,ftruncate",
    "copy_file_range,sendfile,mkdir,mkdirat",
];
const ERRORS: [&str; 3] = ["EIO", "ENOSPC", "EDQUOT"];
/// For updates to be acknowledged again once the disk does well.
const RECOVERS_WITHIN: Duration = Duration::from_secs(60);

/// Whether processes can be traced here.
fn can_trace() -> bool {
    let traced = Command::new("strace")
        .args(["-e", "trace=none", "true"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    traced.is_ok_and(|status| status.success())
}

/// Faults until the life ends; what was found.
pub(super) async fn attack(
    life: &Life,
    run: &Run,
    report: &mut Report,
    scene: &mut Scene,
    random: &mut ChaCha8Rng,
) -> Result<Option<(String, Vec<Id>)>> {
    if !can_trace() {
        let why = "a failing disk: strace cannot trace here; install it, and permit ptrace";
        if !report.not_run.iter().any(|one| one == why) {
            report.not_run.push(why.to_owned());
        }
        return Ok(None);
    }
    // How long something takes means nothing while the disk fails.
    scene.judge.set_patient(true);
    let found = |what: String| Ok(Some((what, vec![])));
    // What is written meanwhile, besides the counter: pages, a snapshot of them, modules.
    let writing = ["touch-pages", "snapshots"].map(Id::Known);
    let until = Instant::now() + life.lasts;
    let mut first = true;
    while first || Instant::now() < until {
        first = false;
        let _cases = scene.spawn_cases(run, &writing);
        let calls = *CALLS.choose(random).unwrap_or(&CALLS[0]);
        let error = *ERRORS.choose(random).unwrap_or(&ERRORS[0]);
        let when = match random.gen_range(0..3) {
            0 => format!("{}", random.gen_range(1..20)),
            1 => format!("{}+{}", random.gen_range(1..10), random.gen_range(2..6)),
            _ => "1+".to_owned(),
        };
        let pid = scene.members[0].pid()?;
        let log = File::create(run.folder.join("strace.log"))?;
        let mut strace = Command::new("strace");
        strace
            .args(["-f", "-qqq", "-o", "/dev/null", "-p", &pid.to_string(), "-e"])
            .arg(format!("trace={calls}"))
            .arg("-e")
            .arg(format!("inject={calls}:error={error}:when={when}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .process_group(0);
        run.say(&format!("disk: {error} of {calls} ({when})"));
        let mut tracer = Child::spawn(&mut strace, "strace")?;
        sleep(Duration::from_millis(random.gen_range(800..2_500))).await;
        report.disk_faults += 1;
        // A tracer that is asked to end lets the node go on.
        tracer.terminate();
        let _ = tracer.ended_within(Duration::from_secs(20)).await;
        drop(tracer);
        if let Some(finding) = scene.judge.finding() {
            return found(format!("after {error} of {calls} ({when}): {finding}"));
        }
        // Ending with an error is permitted; a start must follow.
        if scene.members[0].check().is_err() {
            run.say("disk: the node ended, and is started again");
            scene.members[0].kill();
            scene.members[0].start()?;
            let healthy = scene.members[0].healthy(&scene.http, START_WITHIN).await;
            if let Err(why) = healthy {
                return found(format!(
                    "the node did not start after {error} of {calls} ({when}): {why:#}"
                ));
            }
        }
        let settled = timeout(RECOVERS_WITHIN, scene.judge.settled()).await;
        if settled.is_err() {
            // It may have ended since.
            if scene.members[0].check().is_err() {
                continue;
            }
            return found(format!(
                "no update was acknowledged within {} s after {error} of {calls} ({when})",
                RECOVERS_WITHIN.as_secs()
            ));
        }
    }
    scene.judge.restart_clocks();
    scene.judge.set_patient(false);
    Ok(None)
}
