//! What tests of several commands share.

use std::process::{Command, Output};

pub(crate) const LAB: &str = env!("CARGO_BIN_EXE_thimble-lab");

pub(crate) fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Whether memory-capped groups can be made here; reports why not.
pub(crate) fn groups() -> bool {
    let output =
        Command::new(LAB).args(["cap", "--memory", "64MiB", "--", "true"]).output().unwrap();
    if output.status.code() == Some(125) {
        testing::missing(text(&output));
    }
    output.status.success()
}
