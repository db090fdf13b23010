//! The operator's view of a running program: the parts of a status report that every program has,
//! the page that draws the report, and asking a program for it on the command line.
//!
//! A program's `/status.json` is an object with the parts of `report` and sections of its own;
//! the page ([`page`]) shows the sections that the report has. [`ask`] fetches the report, [`text`]
//! prints the common parts of it for people.
//!
//! Bounds: a report has at most [`HISTORY_MAX`] samples and [`EVENTS_MAX`] events, and a fetched
//! report at most [`ask::REPORT_BYTES_MAX`] bytes.
//!
//! It must never know the source of the figures.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod ask;
pub mod page;
mod report;
pub mod text;

pub use report::{
    Allocator, EVENTS_MAX, Event, Group, HISTORY_MAX, Memory, Pool, Process, Throttling, pools,
};
