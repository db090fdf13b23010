//! Why each limit has the value it has, in one line. Shown by `thimble limits`; a test holds the
//! list complete.

pub(crate) const REASONS: &[(&str, &str)] = &[
    (
        "subnet.memory_capacity_bytes",
        "all canister state together, on disk: what the disk budget leaves, at most 256 bytes for \
         each byte of memory; without a disk budget it follows the memory",
    ),
    (
        "subnet.memory_threshold_bytes",
        "follows the capacity, so that storage never reserves cycles",
    ),
    ("subnet.canisters_max", "follows canister_metadata_bytes, 8 KiB each"),
    (
        "subnet.guaranteed_response_message_bytes",
        "held on disk; each call in progress reserves the largest response",
    ),
    (
        "subnet.guaranteed_response_calls",
        "follows guaranteed_response_message_bytes, one for each 512 KiB: what is known of a \
         message beside its payload lies in the state's heap and in the store",
    ),
    (
        "subnet.best_effort_message_bytes",
        "held on disk; best-effort calls, and client calls inducted and not yet started",
    ),
    (
        "subnet.ingress_history_bytes",
        "kept until calls expire, on disk; the oldest replies are dropped first when it is full",
    ),
    ("subnet.ingress_unfinished_max", "calls accepted and not yet answered"),
    ("subnet.wasm_custom_sections_bytes", "kept on disk, so that read_state can certify them"),
    (
        "subnet.canister_metadata_bytes",
        "kept on disk, of what was touched last in memory: settings, contexts, callbacks, logs",
    ),
    (
        "subnet.callback_soft_limit",
        "calls one canister may have open: as many with guaranteed responses as there is room for, \
         or what follows from the memory if that is more",
    ),
    ("subnet.queue_slots", "messages between two canisters in one direction"),
    ("subnet.message_payload_bytes", "as on the Internet Computer: 2 MiB"),
    ("subnet.controllers_max", "interface specification: 10"),
    ("subnet.chunk_store_bytes", "on disk, part of the capacity; 100 chunks"),
    ("subnet.chunk_bytes", "interface specification: 1 MiB"),
    ("subnet.canister_log_bytes", "the newest log records of one canister, part of its metadata"),
    (
        "execution.threads",
        "each is an update worker; (threads - 1) x 100 % can be allocated, or half of a single one",
    ),
    ("execution.query_threads", "each is a query worker with dirty memory of its own"),
    (
        "execution.query_threads_per_canister",
        "so that one canister's queries do not take all workers",
    ),
    (
        "execution.query_wall_clock_seconds",
        "several times what a query at its instruction limit takes; a query beyond it is ended, \
         with its worker",
    ),
    (
        "execution.query_wait_seconds",
        "longer than one query may run; what waits longer is answered 429 (calls 503) with \
         Retry-After",
    ),
    (
        "execution.response_callback_reservation_bytes",
        "of the subnet capacity per thread, so that callbacks can finish when it is full",
    ),
    ("execution.instructions_per_message", "as much as on the Internet Computer, in slices"),
    ("execution.instructions_per_install", "as much as on the Internet Computer, in slices"),
    ("execution.instructions_per_query", "a few seconds of a query worker"),
    (
        "execution.instructions_per_inspect",
        "runs before a call is accepted, so anybody can cause it",
    ),
    ("execution.instructions_per_round", "keeps rounds short, so that certificates stay fresh"),
    ("execution.instructions_per_slice", "a tenth of a second that others wait for"),
    ("execution.paused_executions", "half of a round at most is theirs"),
    ("execution.stable_dirty_bytes_per_message", "anonymous memory until the message ends"),
    (
        "execution.stable_dirty_bytes_per_install",
        "anonymous memory until the phase ends; an upgrade writes its heap there",
    ),
    (
        "execution.stable_accessed_bytes_per_message",
        "bounds what one message can make the disk read",
    ),
    (
        "execution.stable_accessed_bytes_per_install",
        "bounds what one upgrade can make the disk read",
    ),
    ("execution.heap_dirty_bytes_per_message", "anonymous memory until the message ends"),
    ("execution.heap_dirty_bytes_per_install", "anonymous memory until the phase ends"),
    (
        "execution.dirty_bytes_per_install",
        "heap and stable memory together; an install runs alone in the working memory",
    ),
    ("execution.heap_dirty_bytes_per_query", "anonymous memory until the query ends, then dropped"),
    (
        "execution.stable_dirty_bytes_per_query",
        "anonymous memory until the query ends, then dropped",
    ),
    (
        "execution.heap_delta_bytes_per_round",
        "what one round may add to the delta log and what its messages may carry, together, before \
         no further message starts",
    ),
    (
        "execution.heap_delta_bytes_per_canister_round",
        "a canister above it waits, so that one writer does not take the log",
    ),
    ("execution.composite_query_depth", "each level keeps an instance in the query worker"),
    ("execution.query_cache_bytes", "answers repeated queries without running them"),
    (
        "execution.query_stats_period_rounds",
        "as the public network: ten minutes where nothing runs",
    ),
    (
        "execution.query_stats_canisters",
        "of each member, in the state until the next period; queries of further canisters are not \
         counted in that period; 0: none are",
    ),
    (
        "execution.reject_guaranteed_response_calls",
        "an option for subnets that must not promise memory; off",
    ),
    ("sandbox.canisters_max", "address space and descriptors of mapped canisters"),
    ("sandbox.idle_seconds", "a mapping unused for this long is dropped"),
    ("sandbox.resident_floor_bytes", "below it dropping clean pages only costs reading them again"),
    ("sandbox.eviction_batch_bytes", "freed at once, so that eviction is rare"),
    (
        "sandbox.worker_anonymous_bytes",
        "follows the dirty limits; a worker above it has a fault and is restarted",
    ),
    ("sandbox.paused_workers", "each is a process with dirty memory of its own"),
    ("sandbox.compile_threads", "compilations at once; messages run at the same time"),
    (
        "sandbox.compile_memory_bytes",
        "heap of one compile child, in a file; measured need is 20 MiB and 28 times the module",
    ),
    (
        "sandbox.compile_anonymous_bytes",
        "of one compile child, beside its heap: the program, and what the allocator keeps of the \
         heap",
    ),
    (
        "sandbox.compile_seconds",
        "measured need of real modules is a second or two per MiB; four times what the worst \
         takes that is accepted",
    ),
    (
        "sandbox.compilation_cache_bytes",
        "on disk: a sixteenth of the disk budget, at most 4 GiB; what is evicted is compiled again \
         when it is needed",
    ),
    ("pages.delta_capacity_bytes", "on disk; follows the reserve and one round more"),
    (
        "pages.delta_reserve_bytes",
        "follows: one round and everything that may be in flight when it ends",
    ),
    (
        "pages.pinned_delta_bytes",
        "half of what is outside the reserve: folding has begun before a round must wait",
    ),
    (
        "pages.pin_seconds",
        "longer than almost any query takes; the log fills faster than one that takes more",
    ),
    (
        "pages.checkpoint_interval_rounds",
        "rounds come as fast as work does, a hundred a second and more: a checkpoint every few \
         seconds of work",
    ),
    (
        "pages.manifest_interval_rounds",
        "whoever fetches a state has few blocks to execute after it; in a subnet a round takes \
         tens of milliseconds at least",
    ),
    (
        "pages.checkpoint_delta_bytes",
        "bounds what a checkpoint has to sync and a crash has to write again",
    ),
    (
        "pages.checkpoint_instructions",
        "bounds what is executed again after a crash: about one long message",
    ),
    (
        "pages.manifest_lag_rounds",
        "time to hash what changed, on a thread of its own, before the manifest's root is in the \
         certified tree",
    ),
    (
        "pages.manifest_lease_rounds",
        "a snapshot holds up folding: a peer that takes longer goes on with the next one and \
         keeps what is still right",
    ),
    (
        "pages.runs_per_memory",
        "each run is up to two kernel mappings in a worker, which has 65,530",
    ),
    (
        "pages.open_files",
        "each holds some 1.5 KiB of the kernel's memory; a round that writes more memories closes \
         and opens them in turn",
    ),
    ("pages.copy_threads", "folding is bound by the disk, not by cores"),
    ("pages.metadata_cache_bytes", "the metadata store's own cache"),
    (
        "pages.states_on_disk",
        "2 in a subnet of several: a fetched state is stored alongside the old one",
    ),
    (
        "pages.disk_reserve_bytes",
        "follows the delta log and half a compile child's heap, so that what was accepted can be \
         written and compiled",
    ),
    ("module.wasm_bytes", "follows: a module as uploaded is held while it is compiled"),
    (
        "module.wasm_uncompressed_bytes",
        "follows compile_memory_bytes; never above the Internet Computer's 100 MiB",
    ),
    (
        "module.code_section_bytes",
        "as on the Internet Computer, where the module may be that large",
    ),
    ("module.functions", "interface specification: 50,000"),
    (
        "module.function_bytes",
        "interface specification: a part of the code section; see function_weight",
    ),
    (
        "module.function_weight",
        "follows compile_memory_bytes; working memory of code generation for one function, in \
         units of 256 bytes",
    ),
    (
        "module.weight",
        "follows compile_memory_bytes; what stays of all functions, types and tables until the \
         artefact is written, in units of 256 bytes",
    ),
    (
        "module.globals",
        "interface specification: 1,000; mutable ones are saved after every message",
    ),
    ("module.table_elements", "8 bytes each in every worker; more than all functions of a module"),
    ("module.tables", "languages use one"),
    ("module.data_segments", "each is applied at the first instantiation"),
    ("module.custom_sections", "interface specification: 16"),
    ("module.custom_sections_bytes", "interface specification: 1 MiB"),
    ("module.exported_functions", "interface specification: 1,000"),
    ("module.exported_names_bytes", "interface specification: 20,000"),
    ("module.heap32_bytes", "what 32 bits address; address space, not memory"),
    ("module.heap64_bytes", "as on the Internet Computer; address space, not memory"),
    ("module.stable_bytes", "as on the Internet Computer; a sparse file, not memory"),
    ("consensus.ingress_pool_bytes", "held in memory; clients get a retry error when it is full"),
    ("consensus.ingress_pool_messages", "bounds the bookkeeping of very small calls"),
    ("consensus.block_ingress_bytes", "the largest call and room for others"),
    ("consensus.block_ingress_messages", "bounds what one round has to induct"),
    ("consensus.ingress_expiry_seconds", "clients sign up to five minutes ahead"),
    ("consensus.ingress_drift_seconds", "clocks of clients differ"),
    ("consensus.idle_round_millis", "keeps certificates fresh on an idle node"),
    (
        "consensus.execution_lag_blocks",
        "blocks held in memory while execution lags; then no block is proposed",
    ),
    ("consensus.certificates_kept", "for clients that ask for a height just passed"),
    (
        "consensus.blocks_per_epoch",
        "shares older than this are worth nothing to a thief; as on the Internet Computer; fixed \
         for the life of a subnet",
    ),
    ("consensus.checkpoint_block_bytes", "bounds the block log and what a restart reads again"),
    (
        "consensus.retention_rounds",
        "a peer that was away for a quarter of an hour executes what it missed; one that was away \
         for longer fetches a state",
    ),
    (
        "consensus.retention_block_bytes",
        "on disk: two checkpoints' worth, or a 64th of the disk budget, at most 1 GiB",
    ),
    (
        "consensus.sync_bytes_per_second",
        "a third of a gigabit line: peers that catch up must not slow down agreement",
    ),
    (
        "consensus.nidkg_tables_bytes",
        "78 KiB for each node of the subnet; with less room making and handing on the key takes \
         longer",
    ),
    ("gateway.connections", "each has buffers of 16 KiB"),
    ("gateway.requests_in_flight", "more are answered 503 with Retry-After"),
    (
        "gateway.queries_in_flight",
        "waiting for or in a query worker; more are answered 429 with Retry-After",
    ),
    ("gateway.sync_calls_waiting", "each holds a request; more are answered 202 at once"),
    ("gateway.body_bytes", "the largest argument, and an envelope with all its delegations"),
    ("gateway.bodies_bytes", "held in memory until decoded and verified"),
    ("gateway.responses_bytes", "held in memory until written"),
    ("gateway.read_timeout_millis", "a client that sends slower loses its connection"),
    ("gateway.sync_call_wait_millis", "then 202, and the client polls"),
    ("gateway.read_state_paths", "interface specification: 1000"),
    ("gateway.read_state_path_labels", "interface specification: 127"),
    ("gateway.delegations", "interface specification: 20"),
    ("gateway.delegation_targets", "interface specification: 1000"),
    ("gateway.nonce_bytes", "interface specification: 32"),
    (
        "http_gateway.connections",
        "each has buffers for twice a response's head; 0 below 192 MiB, where there is no memory for \
         the gateway",
    ),
    ("http_gateway.requests_in_flight", "more are answered 503 with Retry-After"),
    (
        "http_gateway.requests_bytes",
        "a request waits in its turn until there is room to ask, then holds what it has; a quarter is \
         for bodies, half at most for responses being written",
    ),
    ("http_gateway.body_bytes", "the largest argument"),
    ("http_gateway.response_headers", "twice what asset canisters send"),
    (
        "http_gateway.response_header_bytes",
        "certificates and trees of large asset canisters have 8 KiB",
    ),
    ("http_gateway.response_chunks", "as the public network's gateway: some 2 GB"),
    (
        "http_gateway.verify_millis",
        "a streamed response is read once before it is sent; each further piece has as long",
    ),
    ("http_gateway.stream_millis", "who reads a long response slowly holds a place among few"),
    ("http_gateway.update_wait_millis", "then 504: the call may still be executed"),
    ("outcalls.open", "each is looked at in every round; further ones are rejected"),
    ("outcalls.open_bytes", "written with every checkpoint; two of the largest requests at least"),
    ("outcalls.timeout_seconds", "as the public network: then a request is rejected"),
    ("outcalls.in_flight", "further ones wait until others are over, or their time is"),
    (
        "outcalls.bytes",
        "a request waits until there is room for all that it may hold; 0 below 512 MiB, where there is \
         no memory for outcalls",
    ),
    ("outcalls.request_millis", "as the public network: a server has half of a request's time"),
    (
        "process.program_bytes",
        "in each process the loader writes the constants that hold addresses; measured at start, \
         with room for a larger program",
    ),
    (
        "process.node_base_bytes",
        "runtime, stacks and allocator slack, measured at rest with room for fragmentation",
    ),
    ("process.worker_base_bytes", "engine and stack of one worker, measured at rest"),
    ("process.kernel_bytes", "charged to the node's group by the kernel"),
    (
        "process.page_cache_floor_bytes",
        "without room for the code being executed, every step would read the disk",
    ),
    ("governor.idle_millis", "shorter, and every pause between two requests pays for page faults"),
    (
        "governor.interval_millis",
        "a hand-back costs a third of a millisecond; more often brings nothing more",
    ),
    (
        "governor.growth_percent",
        "an idle process keeps a tenth above what it uses; less is asked for again at once",
    ),
    ("governor.initial_bytes", "of each process; below it handing back only costs page faults"),
    ("governor.pressure_interval_millis", "pressure does not end within one hand-back"),
    (
        "governor.stalled_percent",
        "of the last 10 s, in the node's own group; page cache at the cap alone stays below",
    ),
    (
        "governor.short_percent",
        "of the budget; freed memory goes back at once, idle mappings are dropped",
    ),
    (
        "governor.refuse_queries_percent",
        "of the budget; a query is the cheapest to ask again: 429 with Retry-After",
    ),
    ("governor.refuse_calls_percent", "of the budget; new calls are answered 503 with Retry-After"),
    (
        "governor.pause_execution_percent",
        "of the budget; the next batch waits, up to 10 s, for memory to be given back",
    ),
    ("heap.sample_bytes", "with --heap-profile; 20 MiB that are alive are 160 samples"),
    ("heap.profiler_bytes", "with --heap-profile; beyond it nothing new is sampled"),
    ("heap.answer_bytes", "with --heap-profile; a thousand call stacks are 30 kB"),
];
