//! The first process of a virtual machine that runs one node (the binary `thimble-guest`), and the
//! protocol between the machine and its host.
//!
//! * [`config`]: configuration of a machine: a raw disk that holds a tar archive.
//! * [`line`]: reports of a machine: JSON lines on its second serial port.
//! * [`init`]: the first process itself.
//! * [`sum`]: how much of a machine's memory its node gets.
//!
//! The host's side, which makes images and starts machines, is the crate `machines`. Must never
//! know: how a machine is started; anything of a node except that it is a program with `--memory`
//! and `--data-dir`.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod config;
pub mod init;
pub mod line;
pub mod sum;
