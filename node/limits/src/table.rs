//! The table itself: every limit of the node, in groups that are each declared in a file.
//!
//! Units are in the names: `_bytes`, `_pages` (64 KiB Wasm pages), `_seconds`, `_millis`,
//! `_rounds`, `_instructions`. Every other crate takes the group it needs by reference and never
//! invents a limit of its own.

use accounting::MIB;
use memory_budget::{HeapLimits, LimitsError, Preset, Scale, SheetLine};

use crate::{
    ConsensusLimits, ExecutionLimits, GatewayLimits, GovernorLimits, HttpGatewayLimits,
    ModuleLimits, OutcallLimits, PagesLimits, ProcessLimits, SandboxLimits, SubnetLimits,
};

/// Memory sizes in MiB at which every row names its value; [`memory_budget::Row`] defines the
/// values between them.
///
/// How the sizes are used: up to 192 MiB half and more goes to processes and buffers that cannot
/// shrink, and a canister gets what is left. At 512 MiB half is working memory. From 4 GiB on,
/// limits grow slower than memory: the rest is page cache, which is where the state of canisters
/// lives.
pub(crate) const SCALE: Scale<9> = Scale::new([96, 121, 192, 256, 512, 1024, 2048, 4096, 16384]);

/// All presets. They are derived like any other size; tests pin their values.
pub const PRESETS: [Preset; 3] = [
    Preset { name: "micro", memory_bytes: 256 * MIB },
    Preset { name: "nano", memory_bytes: 512 * MIB },
    Preset { name: "small", memory_bytes: 1024 * MIB },
];

memory_budget::table! {
    /// All limits of one node. Built by [`crate::Limits::derive`] or a preset, checked by
    /// [`crate::Limits::check`].
    pub struct Limits {
        program "thimble", presets PRESETS, lines Limits::sheet_lines;
        budgets {
            /// The most memory the node's processes may take together, stated by the operator.
            memory_budget_bytes,
            /// The most that the node may keep on disk ([`Self::set_disk`]). 0 if not stated: the
            /// size on disk then follows from the memory.
            disk_budget_bytes,
        }
        groups {
            /// Limits of one subnet.
            subnet: SubnetLimits,
            /// Limits of one message and one round.
            execution: ExecutionLimits,
            /// Worker processes and compilation.
            sandbox: SandboxLimits,
            /// Delta log and checkpoints.
            pages: PagesLimits,
            /// Sizes and counts of one canister module.
            module: ModuleLimits,
            /// Blocks, the ingress pool and the block log.
            consensus: ConsensusLimits,
            /// The public HTTP interface.
            gateway: GatewayLimits,
            /// The HTTP gateway, which serves canisters to browsers.
            http_gateway: HttpGatewayLimits,
            /// Requests of canisters to servers outside.
            outcalls: OutcallLimits,
            /// Reserve for the process itself.
            process: ProcessLimits,
            /// When freed memory goes back to the operating system, and when work is held back.
            governor: GovernorLimits,
            /// Cost of sampling allocations, in a node that does (`--heap-profile`).
            heap: HeapLimits,
        }
    }
}

impl Limits {
    /// 512 MiB: the size the node is made for.
    pub fn nano() -> Result<Self, LimitsError> {
        Self::preset("nano")
    }

    /// The preset `small`: the table of a node with 1 GiB of memory.
    pub fn small() -> Result<Self, LimitsError> {
        Self::preset("small")
    }

    /// The preset `micro`: the table of a node with 256 MiB of memory.
    pub fn micro() -> Result<Self, LimitsError> {
        Self::preset("micro")
    }

    /// Limits that all nodes of a subnet must have alike, because the result of a batch depends on
    /// them, or because they bound messages between nodes: by name and in the order of names.
    pub fn agreed(&self) -> Vec<(String, u64)> {
        memory_budget::agreed(self)
    }

    /// The lines of both sheets, in the order in which the node needs them.
    ///
    /// One line is shared. Update messages, an install and a compilation all take memory that lives
    /// for one execution, and never all at once: each reserves its worst case from the pool
    /// `executions` before it starts and waits while that does not fit. The line is the largest of
    /// the three.
    fn sheet_lines(&self) -> Vec<SheetLine> {
        [
            self.process_lines(),
            self.execution_lines(),
            self.worker_lines(),
            self.query_lines(),
            self.ingress_lines(),
            self.gateway_lines(),
            self.http_gateway_lines(),
            self.outcall_lines(),
            self.index_lines(),
            self.key_lines(),
            self.query_cache_lines(),
            self.mapped_lines(),
            self.heap_lines(),
            self.delta_lines(),
            self.block_log_lines(),
            self.payload_lines(),
            self.record_lines(),
            self.compiled_lines(),
            self.state_lines(),
            self.work_lines(),
        ]
        .concat()
    }
}
