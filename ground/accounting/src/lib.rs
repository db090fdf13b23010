//! The memory ledger: caps of consumers, their use, and the figures of the operating system about
//! it.
//!
//! Three ideas, each in its own place:
//!
//! * **The ledger** ([`Ledger`], [`Pool`], [`Reservation`]). Every consumer of memory that grows
//!   with what the outside asks for has a named pool with a cap. Taking memory means taking a
//!   [`Reservation`] first; a full pool answers with [`PoolFull`], which names the pool, its cap,
//!   what is used and what was asked, and which the caller turns into its own answer (HTTP 503, a
//!   canister reject, a dropped peer). A ledger whose caps sum to more than the budget is refused
//!   when it is made, so the sum holds at run time without anyone watching it.
//! * **Readings** ([`process`], [`cpu`], [`cgroup`], [`pressure`]). Figures of the kernel:
//!   anonymous and file memory of processes and of the group, CPU time, kills for lack of memory,
//!   stalls. Parsers are pure functions over bounded text; files are read up to a fixed length.
//! * **The comparison** ([`unaccounted()`]) and the **governor** ([`Governor`]). Anonymous memory
//!   that no pool explains is itself a figure that tests and operators watch; the governor decides
//!   when freed memory is handed back, and the throttle ([`Throttle`]) how far work is held back.
//!
//! * **[`processor`]**: threads that take turns with a worker process stay on its processor.
//!
//! Bounds: the number of pools is fixed at start; a pool is a handful of atomics; a reading
//! allocates at most [`READ_BYTES_MAX`].
//!
//! It must never know the purpose of the pools. Names and caps are passed in (by `limits`), and
//! nothing here allocates, frees or evicts memory of other crates.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod cgroup;
pub mod cpu;
mod governor;
mod ledger;
pub mod pressure;
pub mod process;
pub mod processor;
mod read;
mod size;
mod throttle;
mod unaccounted;
mod wait;

pub use governor::{Governor, GovernorConfig, Moment, Trim};
pub use ledger::{
    Ledger, LedgerError, Observation, POOLS_MAX, Pool, PoolFull, PoolSnapshot, PoolSpec,
    Reservation, Snapshot,
};
pub use read::{READ_BYTES_MAX, ReadError};
pub use size::{GIB, KIB, MIB, SizeError, format_size, missing_unit, parse_size};
pub use throttle::{Level, Throttle, ThrottleConfig};
pub use unaccounted::unaccounted;
