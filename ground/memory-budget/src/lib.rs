//! Tables of limits and their budget sheets: what the tables of all programs have in common.
//!
//! A program derives every limit it has from one number, the memory it may take. The path of the
//! number is the same in every program; the limits are its own:
//!
//! 1. The program's [`table!`] is a struct of groups of limits, each declared by [`limits!`]: one
//!    row says all there is to a limit. Limits that depend on the memory size have values at a few
//!    sizes ([`Scale`], [`Row`]). [`derive()`] makes the table of any size, [`preset`] that of a
//!    named one.
//! 2. [`apply_overrides`] applies the operator's own values by name, and recomputes the limits that
//!    are consequences of others. A program with its state on disk may have a second budget, for
//!    the disk ([`restate`]).
//! 3. [`Sheet::for_table`] lists the memory that all limits together take, line by line: the
//!    **budget sheet**, and the disk space they take. [`check`] refuses a table whose lines sum to
//!    more than the budget, or whose limits contradict one another ([`Rules`]), and names every
//!    limit concerned.
//! 4. [`Sheet::ledger`] makes the memory pools ([`accounting::Ledger`]) that hold the program to
//!    the sheet while it runs. [`Sheet::to_text`] and [`Sheet::to_json`] show it.
//!
//! Bounds: a table has a fixed number of fields and a sheet a fixed number of lines; texts of the
//! operator are quoted up to a fixed length.
//!
//! It must never know a limit of only one program, nor how limits are enforced. Limits that every
//! program has, and their rules, are here ([`HandBackLimits`]). It is arithmetic over numbers and
//! names; it reads no file, no clock and no machine. The same size gives the same table everywhere.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod declare;
mod error;
mod governor;
mod heap;
mod limit;
mod overrides;
mod reference;
mod render;
mod rules;
mod scale;
mod sheet;
mod table;

pub use error::{LimitsError, Violation, Violations, nearest};
pub use governor::{HandBackLimits, throttle_config};
pub use heap::HeapLimits;
pub use limit::{Follows, Group, Limit, LimitBound, Pays, Value, agreed, omissions};
pub use overrides::{apply_overrides, as_object, flatten, from_record, is_bytes, numbers, restate};
pub use reference::reference;
pub use rules::{LimitValue, Rules, check};
pub use scale::{GRANULE_BYTES, Row, Scale};
pub use sheet::{LineKind, Sheet, SheetLine, times, whole};
pub use table::{Preset, Table, derive, preset, smallest_bytes};

#[cfg(test)]
#[allow(dead_code, unreachable_pub, reason = "a table has the functions of every table")]
mod example;
