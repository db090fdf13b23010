//! Limits of the node's processes at rest, of the kernel, and of sampling allocations.

use accounting::{MIB, format_size};
use memory_budget::{HeapLimits, LimitValue, Row, Rules, SheetLine, limit, lines, times, whole};

use crate::{
    Limits, SCALE, pool,
    sandbox::{RING_BYTES, RINGS_PER_WORKER},
};

// Processes. Constants that hold addresses are 1.1 MiB in each: of the base of a process as it was
// measured, they are a line of their own. A build with assertions, which is less optimised, has
// 1.7.
pub(crate) const RELEASE_PROGRAM_BYTES: u64 = 3 * MIB / 2;
const PROGRAM_BYTES: u64 = if cfg!(debug_assertions) { 2 * MIB } else { RELEASE_PROGRAM_BYTES };
// Frames were in buffers when the base of a worker was measured; they are in its rings.
const WORKER_BASE_BYTES: u64 = 4 * MIB - PROGRAM_BYTES - RINGS_PER_WORKER * RING_BYTES;

/// The idle node process with its constants.
const NODE_BASE: Row<9> = SCALE.mib([14, 14, 14, 15, 15, 24, 32, 56, 120]);

/// Bytes of a heap that one byte of the kernel's page tables maps, and the part of the kernel's
/// line that is there for them.
const HEAP_BYTES_PER_TABLE_BYTE: u64 = 512;
const KERNEL_TABLES_PART: u64 = 4;

memory_budget::limits! {
    SCALE;
    /// Memory of the process itself.
    #[serde(deny_unknown_fields)]
    pub struct ProcessLimits as process of Limits {
        /// Constants of the program that hold addresses, in each process.
        program_bytes: u64 = fixed(PROGRAM_BYTES), local, pays line("program"),
            reason "in each process the loader writes the constants that hold addresses; \
                    measured at start, with room for a larger program";
        /// Idle node process: runtime, stacks, allocator slack.
        node_base_bytes: u64 = like(NODE_BASE) less(PROGRAM_BYTES), local,
            pays line("node_process"),
            reason "runtime, stacks and allocator slack, measured at rest with room for \
                    fragmentation";
        /// One idle worker.
        worker_base_bytes: u64 = fixed(WORKER_BASE_BYTES), local,
            pays line("worker_processes", "paused_workers"),
            reason "engine and stack of one worker, measured at rest";
        /// Kernel memory charged to the group: page tables, sockets, dentries.
        kernel_bytes: u64 = mib([7, 7, 8, 10, 11, 20, 32, 64, 192]), local,
            pays line("kernel", "heap_tables"), reason "charged to the node's group by the kernel";
        /// Left unassigned on purpose, for page cache that must be resident (code being executed).
        page_cache_floor_bytes: u64 = mib([6, 6, 8, 10, 12, 32, 80, 192, 1024]), local,
            pays line("page_cache"),
            reason "without room for the code being executed, every step would read the disk";
    }
}

memory_budget::limits! {
    shared HeapLimits as heap of Limits =
        |memory| HeapLimits::with_profiler_bytes(NODE_BASE.value_at(memory) / 4);
    rules check_heap;
    {
        sample_bytes: local, pays none("an average between samples takes no room"),
            reason "with --heap-profile; 20 MiB that are alive are 160 samples";
        profiler_bytes: local, pays within("node_process"),
            reason "with --heap-profile; beyond it nothing new is sampled";
        answer_bytes: local, pays within("responses"),
            reason "with --heap-profile; a thousand call stacks are 30 kB";
    }
}

fn check_heap(limits: &Limits, rules: &mut Rules) {
    let half = LimitValue::size("process.node_base_bytes / 2", limits.process.node_base_bytes / 2);
    limits.heap.check(rules, limit!(limits.gateway.responses_bytes), half);
}

impl Limits {
    /// The idle processes.
    pub(crate) fn process_lines(&self) -> Vec<SheetLine> {
        let workers = self.execution.threads.saturating_add(self.execution.query_threads);
        let heap = self.state_heap_bytes();
        let tables = heap / HEAP_BYTES_PER_TABLE_BYTE;
        let of_kernel = self.process.kernel_bytes / KERNEL_TABLES_PART;
        let processes = workers.saturating_add(self.sandbox.paused_workers).saturating_add(1);
        lines![
            Pool(pool::PROGRAM, "thimble") = times(processes, self.process.program_bytes),
                "constants that hold addresses: the loader writes them in the node and in each \
                 worker";
            Fixed("node_process", "thimble") = whole(self.process.node_base_bytes),
                "the node at rest: runtime, stacks, allocator slack";
            Fixed("worker_processes", "sandbox") = times(workers, self.process.worker_base_bytes),
                "update and query workers at rest";
            Fixed("worker_rings", "sandbox") = times(workers, self.worker_ring_bytes()),
                "per worker the memory that it shares with the node: orders one way, reports the \
                 other";
            Fixed("worker_buffers", "sandbox") = times(workers, self.worker_buffer_bytes()),
                "per worker one argument, one answer and the tables of the instance";
            Fixed("kernel", "kernel") = whole(self.process.kernel_bytes),
                "page tables, sockets and directory entries charged to the node";
            Fixed("heap_tables", "kernel") =
                (tables.saturating_sub(of_kernel), format!("{} of heap", format_size(heap))),
                "page tables of the state's heap beyond what the line of the kernel has for them";
            Fixed("page_cache", "kernel") = whole(self.process.page_cache_floor_bytes),
                "code being executed must stay resident";
        ]
    }
}
