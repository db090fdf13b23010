//! Limits of the process at rest, of the kernel, and of sampling allocations.

use accounting::MIB;
use memory_budget::{HeapLimits, LimitValue, Row, Rules, SheetLine, limit, lines, whole};

use crate::{Limits, SCALE, pool};

/// The process at rest.
const BASE: Row<7> = SCALE.mib([12, 14, 16, 24, 40, 64, 192]);

memory_budget::limits! {
    SCALE;
    /// Memory of the process itself.
    #[serde(deny_unknown_fields)]
    pub struct ProcessLimits as process of Limits {
        /// The process without its pools: runtime, stacks, memory that the allocator keeps between
        /// uses.
        base_bytes: u64 = like(BASE), local, pays line("process"),
            reason "to be under 8 MiB at rest; the rest is what the allocator keeps in work";
        /// Constants of the program that hold addresses.
        program_bytes: u64 = fixed(MIB), local, pays line("program"),
            reason "vtables and tables of pointers of one program";
        /// Kernel memory charged to the group: page tables, sockets and their buffers, directory
        /// entries.
        kernel_bytes: u64 = mib([8, 10, 12, 24, 40, 80, 256]), local, pays line("kernel"),
            reason "a quarter of the peers not reading, at twice the socket buffer; page tables \
                    and threads";
        /// Left unassigned on purpose, for page cache that must be resident: code being executed,
        /// and pages of the log between writing and sending.
        page_cache_floor_bytes: u64 = mib([9, 16, 20, 36, 72, 144, 1024]), local,
            pays line("page_cache"),
            reason "6 MiB of code run hot; more keeps new messages from the disk";
    }
}

memory_budget::limits! {
    shared HeapLimits as heap of Limits =
        |memory| HeapLimits::with_profiler_bytes(BASE.value_at(memory) / 3);
    rules check_heap;
    {
        sample_bytes: local, pays none("an average between samples takes no room"),
            reason "with --heap-profile; 20 MiB that are alive are 160 samples";
        profiler_bytes: local, pays within("process"),
            reason "with --heap-profile; beyond it nothing new is sampled";
        answer_bytes: local, pays within("responses"),
            reason "with --heap-profile; a thousand call stacks are 30 kB";
    }
}

fn check_heap(limits: &Limits, rules: &mut Rules) {
    let half = LimitValue::size("process.base_bytes / 2", limits.process.base_bytes / 2);
    limits.heap.check(rules, limit!(limits.http.responses_bytes), half);
}

impl Limits {
    /// The process at rest.
    pub(crate) fn process_lines(&self) -> Vec<SheetLine> {
        let process = &self.process;
        lines![
            Pool(pool::PROGRAM, "relay") = whole(process.program_bytes),
                "constants that hold addresses: the loader writes them";
            Fixed("process", "relay") = whole(process.base_bytes),
                "the process at rest: runtime, stacks, allocator slack";
            Fixed("kernel", "kernel") = whole(process.kernel_bytes),
                "page tables, sockets and their buffers charged to the relay";
            Fixed("page_cache", "kernel") = whole(process.page_cache_floor_bytes),
                "code being executed, and messages between writing and sending";
        ]
    }
}
