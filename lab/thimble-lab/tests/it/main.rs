//! The commands of the lab, as their users meet them.
#![expect(clippy::unwrap_used, reason = "a test")]

mod cap;
mod chaos;
mod compare;
mod hammer;
mod image;
mod local;
mod machines;
mod net;
mod package;
mod stress;
mod support;
mod watch;
