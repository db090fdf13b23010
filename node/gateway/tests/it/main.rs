//! The gateway over a scripted node.
#![allow(clippy::unwrap_used, missing_docs)]

mod agent;
mod bounds;
mod browsers;
mod dashboard;
mod refusals;
mod support;
