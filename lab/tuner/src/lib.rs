//! `thimble-lab tune` and `thimble-lab watch`: the settings of a program's runtime with which it
//! needs the least memory and keeps its own deadline, and what a running program does with its
//! memory.
//!
//! * [`recognise`]: which runtime a program has.
//! * [`gc`]: what garbage collectors say of themselves while they run.
//! * `knob`: settings that can be tried, and how they get to a program.
//! * `run`: one run under a setting, measured; `probe` and `lateness` say how late it was.
//! * `search`: which settings are tried, and when one is better; it knows nothing of processes.
//! * `journal`: what was measured, so that a search goes on where it stopped.
//! * [`tune`]: the command, its progress and its report.
//! * [`watch`]: a running program's memory and collections, and what is wrong with them.
//!
//! Bounds: every run, every list of settings and every log by the limits in the modules. Must never
//! know: what the program is for.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod gc;
mod journal;
mod knob;
mod lateness;
mod probe;
pub mod recognise;
mod run;
mod search;
pub mod tune;
pub mod watch;
