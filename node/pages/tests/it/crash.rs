//! `kill -9` at any moment: a child process writes a seeded history with checkpoints and folds and
//! is killed; the state reopened from its last durable index is exactly the history up to that
//! index. The next child continues from there.

use std::{
    io::{Read, Write},
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use pages::PAGE_BYTES;

use crate::common::*;

const DIR: &str = "PAGES_CRASH_DIR";
const SEED: u64 = 0x7417;
const KILLS: u64 = 60;
/// A checkpoint comes every 24 steps on the average.
const STEPS_MIN: usize = 40;

/// Not a test of its own: the body of the child. Returns at once when it is run as a test.
#[test]
fn child() {
    let Ok(dir) = std::env::var(DIR) else { return };
    let dir = Path::new(&dir);
    let index_file = IndexFile::new(dir);
    let (mut step, mut index) = index_file.load();
    let store = open(&dir.join("pages"), &index).unwrap();
    let mut model = history(SEED, step);
    assert_same(&store, &model);
    // Only the content must be the same in every run.
    let mut rng = Rng::new(u64::from(std::process::id()));
    loop {
        std::io::stderr().write_all(b".").unwrap();
        step += 1;
        let change = change(SEED, step, &model);
        change_model(&mut model, &change, step);
        change_store(&store, &change, step);
        match rng.below(24) {
            0 => {
                let ticket = store.begin_checkpoint().unwrap();
                ticket.sync().unwrap();
                merge(&mut index, &ticket.changed);
                index_file.store(step, &index);
                store.finish_checkpoint(ticket);
            }
            1..6 => {
                store.fold(rng.below(64) * PAGE_BYTES).unwrap();
            }
            6 => {
                let id = *model.keys().next().unwrap();
                let target = store.reserve(id, 8).unwrap();
                write(&target, &[(0, 8)], u64::MAX).unwrap();
            }
            _ => {}
        }
    }
}

// Promise: P5 - Canister memory survives `kill -9` at any moment.
#[test]
fn kill_9_at_any_moment_loses_nothing_that_a_durable_index_names() {
    let dir = tempfile::tempdir().unwrap();
    let index_file = IndexFile::new(dir.path());
    let mut rng = Rng::new(u64::from(std::process::id()));
    let mut advanced = 0;
    let mut last_step = 0;
    for kill in 0..KILLS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "crash::child", "--nocapture", "--test-threads=1"])
            .env(DIR, dir.path())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // Counted in steps, so that a slow machine comes as far as a fast one; then at any moment
        // within the next.
        let mut steps = vec![0; STEPS_MIN + rng.below(STEPS_MIN as u64) as usize];
        let mut said = child.stderr.take().unwrap();
        let reached = said.read_exact(&mut steps);
        std::thread::sleep(Duration::from_micros(rng.below(5_000)));
        let early = child.try_wait().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let mut rest = Vec::new();
        said.read_to_end(&mut rest).unwrap();
        assert!(
            early.is_none() && reached.is_ok(),
            "the child died by itself: {}{}",
            String::from_utf8_lossy(&steps),
            String::from_utf8_lossy(&rest)
        );

        let (step, index) = index_file.load();
        let store = open(&dir.path().join("pages"), &index).unwrap();
        assert_same(&store, &history(SEED, step));
        // Every other time, finish the folding that the crash interrupted; the loaded index must
        // stay valid.
        if kill % 2 == 0 {
            fold_all(&store);
            assert_same(&store, &history(SEED, step));
        }
        advanced += u64::from(step > last_step);
        last_step = step;
    }
    assert!(
        advanced > KILLS / 2,
        "the children got {last_step} steps far, but hardly ever to a checkpoint"
    );
}
