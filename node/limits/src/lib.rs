//! Every limit of the node in one typed table, derived from one number: how much memory the machine
//! gives.
//!
//! The path of the number:
//!
//! 1. [`Limits::derive`] turns a memory size into a whole table. Every limit is one row
//!    ([`memory_budget::limits!`]) in the file of its group: its values at a few sizes,
//!    interpolated in between, or what it follows from (how large a module may be, given what
//!    compiling it may take); its bounds, its reason, its lines of the sheet. [`Limits::preset`]
//!    names three sizes.
//! 2. [`Limits::apply_overrides`] lays the operator's own values over it, by name, and lets the
//!    consequences follow.
//! 3. [`Limits::sheet`] lists the memory that the table takes, line by line: the **budget sheet**.
//!    [`Limits::check`] refuses a table whose lines sum to more than the budget, or whose limits
//!    contradict one another, and names every limit concerned.
//! 4. [`Limits::ledger`] makes the memory pools ([`accounting::Ledger`]) that hold the node to the
//!    sheet while it runs.
//!
//! Bounds: the table has a fixed number of fields, the sheet a fixed number of lines; nothing here
//! is kept per message or per canister.
//!
//! It must never know how any limit is enforced. It is arithmetic over numbers and names; it reads
//! no file, no clock and no machine. The same size gives the same table on every node.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod consensus;
mod disk;
mod execution;
mod gateway;
mod governor;
mod http_gateway;
mod module;
mod outcalls;
mod pages;
pub mod pool;
mod process;
mod sandbox;
mod subnet;
mod table;

pub use consensus::{CERTIFICATE_BYTES, ConsensusLimits};
pub use execution::{ExecutionLimits, LANE_PAYLOAD_BYTES, STACK_BYTES, VIRTUAL_LANES};
pub use gateway::{CONNECTION_BYTES, GatewayLimits, SIGNED_ANSWER_BYTES};
pub use governor::GovernorLimits;
pub use http_gateway::{
    HTTP_LINE_BYTES, HTTP_PIECE_BYTES, HTTP_REPLY_BESIDE_BYTES, HTTP_REQUEST_BYTES,
    HTTP_SMALL_BYTES, HTTP_STREAM_BODY_BYTES, HTTP_STREAM_BYTES, HttpGatewayLimits, HttpParts,
};
pub use memory_budget::{
    HeapLimits, LimitsError, LineKind, Preset, Sheet, SheetLine, Violation, Violations,
};
pub use module::{ModuleLimits, compile_instructions, validate_instructions};
pub use outcalls::{
    OUTCALL_BESIDE_BYTES, OUTCALL_CONTEXT_BYTES, OUTCALL_REQUEST_BYTES, OUTCALL_RESPONSE_BYTES,
    OutcallLimits,
};
pub use pages::{PagesLimits, delta_index_bytes};
pub use process::ProcessLimits;
pub use sandbox::SandboxLimits;
pub use subnet::{
    HEAP_LINES, MESSAGE_FILES_LINE, SMALL_MANAGEMENT_CALLS_BYTES, STATE_HEAP_LINE, SubnetLimits,
};
pub(crate) use table::SCALE;
pub use table::{Limits, PRESETS};

#[cfg(test)]
mod tests;
