//! Handling of tests that lack a requirement on this machine: they fail where everything is
//! required, and otherwise report on standard error that they were not run. And common helpers of
//! tests: control groups of their own ([`group`]), disks that can be full ([`SmallDisk`]), waiting
//! for what must happen ([`until`]), signals to processes ([`process`]), programs that a test
//! writes and runs ([`executable()`]), programs whose wall clock is moved ([`WallClock`]), pinned
//! bytes ([`formats`]), pages of reference ([`mod@reference`]). A dependency of tests only.
//!
//! A test that returns early passes, and libtest hides what a passing test prints. So a gate that
//! runs without the right to mount, for example, would be green and have checked nothing. Every
//! early return of a test goes through [`missing`].

mod disk;
mod executable;
pub mod formats;
pub mod group;
pub mod process;
pub mod reference;
mod wait;
mod wall_clock;

use std::io::Write;

pub use disk::SmallDisk;
pub use executable::executable;
pub use wait::{TIMEOUT, eventually, pause, until, until_async};
pub use wall_clock::WallClock;

/// Environment variables that demand that every test runs; set to anything but "", "0" or "false".
/// The gate sets the first; hosted runners set the second.
pub const REQUIRE_ALL: [&str; 2] = ["THIMBLE_REQUIRE_ALL", "CI"];

/// The calling test cannot run on this machine: `what` names what is missing, and what to install
/// or permit. The caller returns afterwards.
///
/// # Panics
///
/// If one of [`REQUIRE_ALL`] demands that every test runs.
#[track_caller]
pub fn missing(what: impl std::fmt::Display) {
    let value = |name: &&str| std::env::var(name).unwrap_or_default();
    let line = report(
        &what.to_string(),
        std::thread::current().name(),
        REQUIRE_ALL.iter().find(|name| is_demand(&value(name))),
    );
    match line {
        Err(line) => panic!("{line}"),
        // Not `eprintln!`, which libtest captures and drops for tests that pass.
        Ok(line) => drop(writeln!(std::io::stderr(), "{line}")),
    }
}

fn is_demand(value: &str) -> bool {
    !matches!(value, "" | "0" | "false")
}

/// The message, as an error where every test is demanded by the variable `demanded`.
fn report(what: &str, test: Option<&str>, demanded: Option<&&str>) -> Result<String, String> {
    let test = test.unwrap_or("a test");
    match demanded {
        Some(name) => {
            Err(format!("{test} cannot run here, and {name} demands that every test runs: {what}"))
        }
        None => Ok(format!("NOT RUN: {test}: {what}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_precondition_fails_where_every_test_is_demanded() {
        assert!(["1", "true", "yes"].into_iter().all(is_demand));
        assert!(!["", "0", "false"].into_iter().any(is_demand));
        let failed = report("no loop device: run as root", Some("power"), Some(&"CI"));
        let line = failed.expect_err("demanded");
        assert!(
            line.contains("power") && line.contains("CI") && line.contains("run as root"),
            "{line}"
        );
        let line = report("no loop device", Some("power"), None).expect("not demanded");
        assert!(line.starts_with("NOT RUN: power: no loop device"), "{line}");
    }
}
