//! The first process of a virtual machine that runs one node (the binary `thimble-guest`), and what
//! it and its host tell each other.
//!
//! * [`config`]: what a machine is told: a raw disk that holds a tar archive.
//! * [`line`]: what it tells: JSON lines on its second serial port.
//! * [`init`]: the first process itself.
//! * [`sum`]: how much of a machine's memory its node gets.
//!
//! The host's side, which makes images and starts machines, is the crate `machines`. What this must
//! never know: how a machine is started, and what a node is beyond a program with `--memory` and
//! `--data-dir`.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod config;
pub mod init;
pub mod line;
pub mod sum;
