//! The program, where it is not the first process of a machine.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::process::Command;

#[test]
fn it_runs_in_no_shell() {
    let output = Command::new(env!("CARGO_BIN_EXE_thimble-guest")).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("thimble-lab image build"), "{said}");
}
