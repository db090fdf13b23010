//! The page store: stories, models, crashes, power cuts and full disks.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;
mod copies;
mod crash;
mod disk;
mod model;
mod power_cut;
mod simulated_power_cut;
mod stories;
