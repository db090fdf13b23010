//! The machine in one line, and how busy it is: a figure is reported with the machine it was
//! measured on.

use std::fs;

pub use cli::{now, timestamp};
pub use compare::describe;

/// Tasks that ran or wanted to, averaged over a minute.
pub fn load() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
}
