//! Programs that a test writes and runs.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Writes a program or a script to `path`, for everyone to read and run.
///
/// A child writes it: had this process the file open for writing, a child that another test starts
/// in that moment would hold it open too until it runs its own program, and the file could not be
/// run ("Text file busy").
///
/// # Panics
///
/// If it cannot be written.
#[track_caller]
pub fn executable(path: &Path, content: &[u8]) {
    let mut child = Command::new("sh")
        .args(["-c", r#"cat > "$0" && chmod 755 "$0""#])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .expect("sh starts");
    let sent = child.stdin.take().map(|mut input| input.write_all(content));
    let ended = child.wait().expect("sh ends");
    assert!(
        ended.success() && matches!(sent, Some(Ok(()))),
        "{} was not written: {sent:?}, {ended}",
        path.display()
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Many threads write and run programs at once; with `fs::write` some of them are busy.
    #[test]
    fn what_is_written_runs_while_other_threads_start_children() {
        let folder = tempfile::tempdir().expect("a folder");
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let folder = folder.path();
                scope.spawn(move || {
                    for run in 0..25 {
                        let path = folder.join(format!("{thread}-{run}"));
                        executable(&path, b"#!/bin/sh\nexit 7\n");
                        let ended = Command::new(&path).status().expect("it runs");
                        assert_eq!(ended.code(), Some(7));
                    }
                });
            }
        });
    }
}
