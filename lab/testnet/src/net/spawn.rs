//! `thimble-lab net up` and `net down` as children, for commands that start a net and work on it.

use std::{
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Result, ensure};
use cli::Child;

/// For a net to start; key generation is the longest part.
const UP_TIMEOUT: Duration = Duration::from_secs(240);

/// How many nodes there are to be, and the memory of each as `--memory` takes it.
pub(crate) struct Size<'a> {
    pub(crate) nodes: usize,
    pub(crate) memory: &'a str,
}

/// `program net --dir FOLDER`, to which a subcommand is to be added. Out of reach of the terminal:
/// a Ctrl-C is its owner's to act on, once.
pub fn command(program: &Path, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(["net", "--dir"]).arg(folder).stdin(Stdio::null()).process_group(0);
    command
}

/// Starts a net of replicas; ends when all nodes serve. `words` are further arguments of `net up`.
///
/// # Errors
///
/// `net up` fails, which has printed why, or does not end within 240 s.
pub(crate) async fn up(
    program: &Path,
    folder: &Path,
    size: Size<'_>,
    node: Option<&Path>,
    words: &[&str],
) -> Result<()> {
    let mut command = command(program, folder);
    command.args(["up", "--nodes", &size.nodes.to_string(), "--memory", size.memory]);
    command.args(words);
    if let Some(node) = node {
        command.arg("--node").arg(node);
    }
    let status = Child::spawn(&mut command, "net up")?.ended_within(UP_TIMEOUT).await?;
    ensure!(status.success(), "the net did not start");
    Ok(())
}
