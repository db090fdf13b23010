//! Execution: (state, batch) -> state.
//!
//! [`Executor`] holds the replicated state of this node. It takes a batch of ingress messages, runs
//! canisters in worker processes, delivers their calls to each other within the round, and returns
//! the root of the certified tree. The same batches give the same roots on every node and in every
//! run, whatever the number of threads, and whether or not the node was restarted from a checkpoint
//! in between.
//!
//! | to change | start at |
//! |---|---|
//! | what happens in a round, and in which order | `round` |
//! | which canister runs when, and alongside which others | `scheduler` |
//! | what one message pays, may do and leads to | `message` |
//! | how a long message is paused and resumed | `slices` |
//! | how a worker's answer is checked and kept | `machine` |
//! | how calls and answers travel, and what bounds them | `messaging` |
//! | which users' calls are taken in | `induction` |
//! | what `aaaaa-aa` does | `management` |
//! | queries and the check before a call is taken in | `query` |
//! | how a round waits when this machine fails it | `retry` |
//! | prices and the freezing threshold | `cycles` |
//! | what is made durable, and when | `checkpoint` |
//! | what a server for tests does: several subnets in one state, changes between rounds | `placement`, `test_hooks` |
//! | which states get a manifest, for other nodes to fetch | `manifest`, and the crate `statesync` |
//!
//! Bounds: a round by instructions and delta (a slice that was started is finished), queues by
//! slots per pair of canisters, messages by two pools of bytes, callbacks per canister, unfinished
//! users' calls, canisters and their metadata; all from `limits`, and every refusal names the limit
//! that was reached.
//!
//! This crate must never know of networks, HTTP, blocks or keys; it has no clock (time comes with
//! batches), no randomness of its own, and reads files only through the stores it is given.

mod ahead;
mod checkpoint;
mod config;
mod core;
mod cycles;
mod executor;
mod induction;
mod lane_pool;
mod machine;
mod management;
mod manifest;
mod message;
mod messaging;
mod placement;
mod query;
mod query_cache;
mod query_stats;
mod reject;
mod retry;
mod round;
mod running;
mod scheduler;
mod slices;
mod test_hooks;

/// Counts changes in the results of batches. Members compare it when they connect, the rules next
/// to the block log record it, and `subnet_info` reports it in place of a version of the program:
/// two programs that execute alike may have different versions.
///
/// Raise it when the same batch may have another state, reply, reject (code or text), cost or
/// certified tree than with the program before: members with different results would split the
/// subnet. A rule by which modules are refused has a version of its own,
/// `sandbox::module::MODULE_RULES_VERSION`. An agreed limit is compared by its name and value, and
/// an answer to an outcall is in the batch: changes of these alone do not raise it.
pub const RULES_VERSION: u32 = 11;

pub use ahead::{Ahead, CompileAhead, ModulesAgain, ReadCall};
pub use config::{ExecutorConfig, FatalError, RoundResult};
pub use cycles::CostSchedule;
pub use executor::Executor;
pub use placement::Placement;
pub use query::{EndedQueries, QueryReply, QueryService};
pub use query_stats::QueryTally;
pub use retry::{
    ATTEMPTS_BEFORE_VERDICT, Closing, ExecutionPoint, LocalFault, Persistent, RetryPolicy,
};
pub use running::{RunningMessage, RunningMessages};
