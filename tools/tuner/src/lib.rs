//! `thimble-lab tune` and `thimble-lab watch`: search runtime settings for the smallest memory that
//! meets the latency goal, and watch the memory of a running program.
//!
//! * [`recognise`]: which runtime a program has.
//! * [`gc`]: reports of garbage collectors while they run.
//! * `knob`: settings that can be tried, and how they get to a program.
//! * `run`: one run under a setting, measured; `probe` and `lateness` measure its latency.
//! * `search`: which settings are tried, and when one is better; independent of processes.
//! * `journal`: the measurements, so that a search continues where it stopped.
//! * [`tune`]: the command, its progress and its report.
//! * [`watch`]: a running program's memory and collections, and problems found in them.
//!
//! Bounds: every run, every list of settings and every log by the limits in the modules. Must never
//! know: the purpose of the program.

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
