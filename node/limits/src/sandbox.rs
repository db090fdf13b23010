//! Limits of worker processes and compilation.

use accounting::{KIB, MIB};
use memory_budget::{Rules, SheetLine, limit, lines, times, whole};

use crate::{Limits, SCALE, STACK_BYTES, execution::PAYLOADS_PER_MESSAGE, pages::PAGE_BYTES, pool};

/// Memory outside the heap, which is in a file: constants of the program that hold addresses, and
/// the allocator's own records. Measured: 1 to 2.8 MiB, and the program's constants.
const COMPILE_ANONYMOUS_BYTES: u64 = 4 * MIB;
/// Compiled code may take one `COMPILED_PART`th of a disk budget, and at most `COMPILED_BYTES_MAX`,
/// beyond which more is of no use: with 1 MB each, code of four thousand modules.
const COMPILED_PART: u64 = 16;
const COMPILED_BYTES_MAX: u64 = 4 << 30;
/// A worker's record of a page that a message wrote: its place in up to five lists.
const DIRTY_PAGE_BYTES: u64 = 80;
/// An additional record for a page of stable memory that a message touched far from all others: a
/// piece of three sets of bits each.
const LONE_PAGE_BYTES: u64 = 3 * 144;
/// Extents of a paused message may take one `SPILL_BESIDE_PART`th of its file in addition.
const SPILL_BESIDE_PART: u64 = 64;
/// A call without its payload, in a file.
const CALL_BYTES: u64 = 512;
/// One element of a table of an instance.
const TABLE_ELEMENT_BYTES: u64 = 8;
/// One of the two rings of a worker: most arguments and replies pass in one piece.
pub(crate) const RING_BYTES: u64 = 128 * KIB;
/// Rings of a worker: one for each direction.
pub(crate) const RINGS_PER_WORKER: u64 = 2;

const _: () = assert!(rows::resident_floor_bytes.covers(&rows::eviction_batch_bytes));
const _: () = assert!(rows::compile_memory_bytes.covers(&rows::compile_anonymous_bytes));
const _: () = assert!(DIRTY_PAGE_BYTES < LONE_PAGE_BYTES, "pages in a row share their records");

memory_budget::limits! {
    SCALE;
    /// Limits on workers and compilation.
    #[serde(deny_unknown_fields)]
    pub struct SandboxLimits as sandbox of Limits, rules check {
        /// Canisters whose memories stay mapped over all workers.
        canisters_max: u64 = values([4, 4, 8, 16, 32, 64, 128, 256, 1024]), local,
            reason "address space and descriptors of mapped canisters";
        /// Seconds without a message after which a canister's mapping is dropped.
        idle_seconds: u64 = fixed(120), local, reason "a mapping unused for this long is dropped";
        /// Resident bytes under which idle mappings are kept.
        resident_floor_bytes: u64 = mib([24, 24, 48, 64, 128, 256, 512, 1024, 4096]), local,
            pays line("mapped_state"),
            reason "below it dropping clean pages only costs reading them again";
        /// Resident bytes freed per eviction.
        eviction_batch_bytes: u64 = mib([12, 12, 24, 32, 64, 128, 256, 512, 1024]), local,
            pays within("mapped_state"),
            bounds [at_least(MIB, "evicting less is not worth its system calls")],
            reason "freed at once, so that eviction is rare";
        /// Address space (RLIMIT_AS-independent) of anonymous memory one worker may hold before it
        /// is restarted.
        worker_anonymous_bytes: u64 = follows(|limits| limits.largest_worker_bytes()), agreed,
            pays none("the sum of lines of one worker"),
            reason "follows the dirty limits; a worker above it has a fault and is restarted";
        /// Memory that the node and one worker share, for each direction: one ring with its header.
        /// A longer frame goes through it in pieces.
        ring_bytes: u64 = fixed(RING_BYTES), local,
            pays line("worker_rings", "paused_workers"),
            bounds [
                at_least(4 * KIB, "a page"),
                at_most(16 * MIB, "no frame is so long, and each worker has two"),
            ],
            reason "most arguments and replies pass in one piece; only what a frame touches is \
                    resident";
        /// Paused messages that a worker of their own keeps between rounds; any other runs again
        /// from its beginning. May be 0.
        // The smallest nodes have no memory for one worker more.
        paused_workers: u64 = steps([0, 1, 1, 2, 4, 4, 4, 4, 4]), local,
            pays line("program", "paused_workers", "paused_messages", "installations"),
            bounds [at_most(64, "each is a process")],
            reason "each is a process with dirty memory of its own";
        /// Compilations at once.
        compile_threads: u64 = steps([1, 1, 1, 1, 2, 2, 2, 2, 2]), local,
            pays line("compilations", "compile_heaps"),
            bounds [at_least(1, "nothing could be installed"), at_most(64, "each is a process")],
            reason "compilations at once; messages run at the same time";
        /// Heap of one compile child, in a file that the kernel can write back.
        compile_memory_bytes: u64 = mib([384, 384, 384, 384, 384, 384, 736, 1400, 2824]), local,
            pays line("compile_heaps"),
            reason "heap of one compile child, in a file; measured need is 20 MiB and 28 times \
                    the module";
        /// Anonymous memory of one compile child, reserved for it; four times that in address space
        /// (RLIMIT_DATA).
        compile_anonymous_bytes: u64 = fixed(COMPILE_ANONYMOUS_BYTES), local,
            pays line("compilations"),
            bounds [
                at_least(4 * MIB, "the compiler's program and what its allocator keeps of its \
                                   heap"),
            ],
            reason "of one compile child, beside its heap: the program, and what the allocator \
                    keeps of the heap";
        /// CPU seconds of one compile child (RLIMIT_CPU).
        compile_seconds: u64 = steps([300, 300, 300, 300, 300, 300, 600, 600, 600]), local,
            bounds [at_least(1, "nothing could be installed")],
            reason "measured need of real modules is a second or two per MiB; four times what \
                    the worst takes that is accepted";
        /// Compiled artefacts kept on disk.
        compilation_cache_bytes: u64 =
            mib([128, 128, 128, 128, 128, 128, 256, 512, 2048])
            follows_disk(|limits, least| least.max(compiled_bytes(limits))), local,
            pays line("compiled_modules"),
            reason "on disk: a sixteenth of the disk budget, at most 4 GiB; what is evicted is \
                    compiled again when it is needed";
    }
}

impl SandboxLimits {
    /// Room in the file of a compile child's heap. Twice the heap: what a growing buffer leaves
    /// behind is too small for its next size, and nothing is released before the child ends.
    pub fn compile_room_bytes(&self) -> u64 {
        self.compile_memory_bytes.saturating_mul(2)
    }
}

/// The part of a disk budget that compiled code gets.
fn compiled_bytes(limits: &Limits) -> u64 {
    limits.disk_part_bytes(COMPILED_PART).min(COMPILED_BYTES_MAX)
}

fn check(limits: &Limits, rules: &mut Rules) {
    rules.at_least(
        limit!(limits.sandbox.canisters_max),
        limits.execution.threads.saturating_add(limits.execution.query_threads),
        "each worker maps one",
    );
    rules.within(
        limit!(limits.sandbox.eviction_batch_bytes),
        limit!(limits.sandbox.resident_floor_bytes),
        "a batch is a part of what is resident",
    );
    rules.at_least(
        limit!(limits.sandbox.worker_anonymous_bytes),
        limits.largest_worker_bytes(),
        "a worker's program, base and buffers and the dirtiest execution allowed, or it would be \
         killed for doing what the limits allow",
    );
}

impl Limits {
    /// The program, base and buffers of a worker and the dirtiest execution. One that holds more
    /// has a fault. Rings count as by default: the value is agreed, and their size is not.
    fn largest_worker_bytes(&self) -> u64 {
        self.process
            .worker_base_bytes
            .saturating_add(self.process.program_bytes)
            .saturating_add(RINGS_PER_WORKER * RING_BYTES)
            .saturating_add(self.worker_buffer_bytes())
            .saturating_add(self.message_dirty_bytes().max(self.install_dirty_bytes()))
    }

    /// Memory of one worker in addition to its base and its dirty pages: an argument, an answer,
    /// and the tables of the instance.
    pub(crate) fn worker_buffer_bytes(&self) -> u64 {
        let tables = self.module.table_elements.saturating_mul(TABLE_ELEMENT_BYTES);
        self.subnet.message_payload_bytes.saturating_mul(2).saturating_add(tables)
    }

    /// Memory that a worker shares with the node.
    pub(crate) fn worker_ring_bytes(&self) -> u64 {
        self.sandbox.ring_bytes.saturating_mul(RINGS_PER_WORKER)
    }

    /// Memory of a worker that keeps a paused message, whose pages, calls and answer are in a file.
    fn paused_worker_bytes(&self) -> u64 {
        self.process
            .worker_base_bytes
            .saturating_add(self.worker_ring_bytes())
            .saturating_add(self.worker_buffer_bytes())
            .saturating_add(STACK_BYTES)
            .saturating_add(self.paused_index_bytes())
    }

    /// A worker's record of the pages that a paused message wrote.
    fn paused_index_bytes(&self) -> u64 {
        let stable_pages = self.execution.stable_accessed_bytes_per_message / PAGE_BYTES;
        (self.paused_page_bytes() / PAGE_BYTES)
            .saturating_mul(DIRTY_PAGE_BYTES)
            .saturating_add(stable_pages.saturating_mul(LONE_PAGE_BYTES))
    }

    /// The most that a paused message or installation writes to pages.
    fn paused_page_bytes(&self) -> u64 {
        self.message_dirty_bytes().max(self.install_dirty_bytes())
    }

    /// Disk that paused messages may take together: pages that they wrote, their calls with the one
    /// that each is making, and their answers. Installations write more;
    /// [`Self::installations_kept`] of them are kept.
    pub fn paused_spill_bytes(&self) -> u64 {
        let payloads = self.subnet.message_payload_bytes.saturating_mul(PAYLOADS_PER_MESSAGE + 1);
        let calls = self.subnet.callback_soft_limit.saturating_mul(CALL_BYTES);
        let message = self.message_dirty_bytes().saturating_add(payloads).saturating_add(calls);
        let more = self.install_dirty_bytes().saturating_sub(self.message_dirty_bytes());
        let bytes = self
            .sandbox
            .paused_workers
            .saturating_mul(message)
            .saturating_add(self.installations_kept().saturating_mul(more));
        bytes.saturating_add(bytes / SPILL_BESIDE_PART)
    }

    /// Number of paused installations whose writes a machine keeps: there is one at a time.
    pub fn installations_kept(&self) -> u64 {
        self.sandbox.paused_workers.min(1)
    }

    /// Anonymous memory that such a worker may hold.
    pub fn paused_anonymous_bytes(&self) -> u64 {
        self.paused_worker_bytes().saturating_add(self.process.program_bytes)
    }

    /// Workers with paused messages, and compilations.
    pub(crate) fn worker_lines(&self) -> Vec<SheetLine> {
        lines![
            Fixed("paused_workers", "sandbox") =
                times(self.sandbox.paused_workers, self.paused_worker_bytes()),
                "workers that keep a message between two of its slices, with its stack and their \
                 rings; the pages it wrote and its calls lie in a file";
            Pool(pool::COMPILATIONS, "sandbox") =
                times(self.sandbox.compile_threads, self.sandbox.compile_anonymous_bytes),
                "compile children without their heaps, which are on disk; messages run meanwhile";
        ]
    }

    /// Mapped pages.
    pub(crate) fn mapped_lines(&self) -> Vec<SheetLine> {
        lines![
            File("mapped_state", "sandbox") = whole(self.sandbox.resident_floor_bytes),
                "clean pages of idle canisters left mapped; the kernel takes them when it needs \
                 them";
        ]
    }

    /// Compiled code, on disk.
    pub(crate) fn compiled_lines(&self) -> Vec<SheetLine> {
        lines![
            Disk("compiled_modules", "sandbox") = whole(self.sandbox.compilation_cache_bytes),
                "compiled artefacts, mapped when they run";
        ]
    }

    /// Temporary unlinked files on disk.
    pub(crate) fn work_lines(&self) -> Vec<SheetLine> {
        // Of the one that is paused, what the first phase wrote; of one that runs, both.
        let kept = self.installations_kept().saturating_add(2);
        lines![
            Disk("compile_heaps", "sandbox") =
                times(self.sandbox.compile_threads, self.sandbox.compile_memory_bytes),
                "what compile children work in, gone with them; their files are sparse, and a \
                 module that is accepted fills five sixths of one at most";
            Disk("paused_messages", "sandbox") =
                (self.paused_spill_bytes(), format!("{} places", self.sandbox.paused_workers)),
                "pages that paused messages wrote, their calls and answers, in files that are \
                 gone with their workers";
            Disk("installations", "execution") = times(kept, self.install_dirty_bytes()),
                "pages that installations wrote, until all of it ended well: both phases of the \
                 one that runs, and the first of those that are paused";
        ]
    }
}
