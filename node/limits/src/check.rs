//! The rules between limits.
//!
//! Most are of one shape ([`sheet::Rules`]): this limit must not be larger than that one, because
//! otherwise something cannot happen or cannot be bounded. That the budget sheet fits the budget is
//! checked for every program alike ([`sheet::check`]).

use budget::MIB;
use sheet::{GRANULE_BYTES, LimitValue, Rules, limit};

use crate::{
    CONNECTION_BYTES, HTTP_PIECE_BYTES, HTTP_REQUEST_BYTES, Limits, OUTCALL_CONTEXT_BYTES,
    OUTCALL_REQUEST_BYTES, OUTCALL_RESPONSE_BYTES, OutcallLimits,
    derive::{compile_need_bytes, compile_peak_bytes},
};

/// Kernel mappings of one process, as Linux ships.
const MAPPINGS_PER_PROCESS: u64 = 65_530;

impl Limits {
    /// Reports the rules that the table breaks.
    pub(crate) fn check_rules(&self, rules: &mut Rules) {
        self.check_subnet(rules);
        self.check_execution(rules);
        self.check_sandbox(rules);
        self.check_pages(rules);
        self.check_module(rules);
        self.check_consensus(rules);
        self.check_gateway(rules);
        self.check_http_gateway(rules);
        self.check_outcalls(rules);
        self.check_governor(rules);
        self.check_heap(rules);
    }

    fn check_heap(&self, rules: &mut Rules) {
        let half =
            LimitValue::size("process.node_base_bytes / 2", self.process.node_base_bytes / 2);
        self.heap.check(rules, limit!(self.gateway.responses_bytes), half);
    }

    fn check_governor(&self, rules: &mut Rules) {
        let levels = [
            limit!(self.governor.refuse_queries_percent),
            limit!(self.governor.refuse_calls_percent),
            limit!(self.governor.pause_execution_percent),
        ];
        let because =
            ["queries are refused before calls", "calls are refused before those accepted wait"];
        self.governor.hand_back.check(rules, levels, because);
    }

    fn check_subnet(&self, rules: &mut Rules) {
        let payload = limit!(self.subnet.message_payload_bytes);
        rules.at_least(payload, 1, "a message without room for an argument says nothing");
        rules.within(
            limit!(self.subnet.memory_threshold_bytes),
            limit!(self.subnet.memory_capacity_bytes),
            "usage cannot pass the capacity, so a threshold above it would never be met",
        );
        rules.within(
            payload,
            limit!(self.subnet.guaranteed_response_message_bytes),
            "one call must fit its own response",
        );
        rules.within(
            payload,
            limit!(self.subnet.best_effort_message_bytes),
            "one message must fit",
        );
        rules.within(payload, limit!(self.subnet.ingress_history_bytes), "one reply must fit");
        rules.within(
            limit!(self.subnet.chunk_bytes),
            limit!(self.subnet.chunk_store_bytes),
            "one chunk must fit",
        );
        rules.within(
            limit!(self.subnet.chunk_bytes),
            payload,
            "a chunk is uploaded in one message",
        );
        rules.within(
            limit!(self.subnet.canister_log_bytes),
            limit!(self.subnet.canister_metadata_bytes),
            "the log of one canister is part of its metadata",
        );
        for limit in [
            limit!(self.subnet.memory_capacity_bytes),
            limit!(self.subnet.canisters_max),
            limit!(self.subnet.guaranteed_response_calls),
            limit!(self.subnet.ingress_unfinished_max),
            limit!(self.subnet.callback_soft_limit),
            limit!(self.subnet.queue_slots),
            limit!(self.subnet.controllers_max),
        ] {
            rules.at_least(limit, 1, "with none, no canister could work");
        }
    }

    #[expect(clippy::too_many_lines, reason = "a table, entry after entry")]
    fn check_execution(&self, rules: &mut Rules) {
        rules.at_least(limit!(self.execution.threads), 1, "messages could never run");
        rules.at_most(limit!(self.execution.threads), 64, "each is a worker process");
        rules.at_least(limit!(self.execution.query_threads), 1, "queries could never run");
        rules.at_most(limit!(self.execution.query_threads), 64, "each is a worker process");
        rules.at_least(
            limit!(self.execution.query_threads_per_canister),
            1,
            "queries could never run",
        );
        rules.within(
            limit!(self.execution.query_threads_per_canister),
            limit!(self.execution.query_threads),
            "there are no more query threads",
        );
        for limit in [
            limit!(self.execution.query_wall_clock_seconds),
            limit!(self.execution.query_wait_seconds),
        ] {
            rules.at_least(limit, 1, "no query would be answered");
            rules.at_most(limit, 3_600, "clients give up long before");
        }
        rules.at_least(
            limit!(self.execution.paused_executions),
            1,
            "a message longer than a slice could never finish",
        );
        rules.within(
            LimitValue::number(
                "execution.paused_executions x execution.instructions_per_slice",
                self.execution
                    .paused_executions
                    .saturating_mul(self.execution.instructions_per_slice),
            ),
            LimitValue::number(
                "execution.instructions_per_round (or one slice)",
                self.execution.instructions_per_round.max(self.execution.instructions_per_slice),
            ),
            "long messages must not take all of a round",
        );
        rules.at_least(
            limit!(self.execution.composite_query_depth),
            1,
            "a composite query is itself one level",
        );
        rules.at_most(
            limit!(self.execution.composite_query_depth),
            64,
            "each level keeps an instance",
        );

        rules.at_least(limit!(self.execution.query_stats_period_rounds), 1, "a period has rounds");
        rules.at_most(
            limit!(self.execution.query_stats_canisters),
            5_000,
            "the first round of a period looks at all that members reported",
        );
        let message = limit!(self.execution.instructions_per_message);
        rules.at_least(limit!(self.execution.instructions_per_slice), 1, "nothing could run");
        rules.at_least(limit!(self.execution.instructions_per_inspect), 1, "nothing could run");
        rules.within(
            limit!(self.execution.instructions_per_slice),
            limit!(self.execution.instructions_per_round),
            "a round holds at least one slice",
        );
        rules.within(
            limit!(self.execution.instructions_per_slice),
            message,
            "a slice is a part of a message",
        );
        rules.within(
            limit!(self.execution.instructions_per_inspect),
            limit!(self.execution.instructions_per_query),
            "inspecting a call must stay cheaper than a query",
        );

        let round = limit!(self.execution.heap_delta_bytes_per_round);
        let heap = limit!(self.execution.heap_dirty_bytes_per_message);
        let stable = limit!(self.execution.stable_dirty_bytes_per_message);
        let heap_install = limit!(self.execution.heap_dirty_bytes_per_install);
        let stable_install = limit!(self.execution.stable_dirty_bytes_per_install);
        let install = limit!(self.execution.dirty_bytes_per_install);
        let fits = "a message must fit into a round";
        rules.within(heap, round, fits);
        rules.within(stable, round, fits);
        rules.within(
            limit!(self.execution.heap_delta_bytes_per_canister_round),
            round,
            "one canister cannot add more than all",
        );
        rules.at_least(
            limit!(self.execution.heap_delta_bytes_per_canister_round),
            1,
            "every canister would be held back for ever",
        );
        let as_much = "an install must be able to do what a message can";
        rules.within(heap, heap_install, as_much);
        rules.within(stable, stable_install, as_much);
        let together = "the sum cannot be below one of its parts";
        rules.within(heap_install, install, together);
        rules.within(stable_install, install, together);
        let writes = "writing a page is an access";
        rules.within(stable, limit!(self.execution.stable_accessed_bytes_per_message), writes);
        rules.within(
            stable_install,
            limit!(self.execution.stable_accessed_bytes_per_install),
            writes,
        );
        let heap_query = limit!(self.execution.heap_dirty_bytes_per_query);
        let stable_query = limit!(self.execution.stable_dirty_bytes_per_query);
        rules.within(heap_query, heap, "a query must also run as an update");
        rules.within(stable_query, stable, "a query must also run as an update");
        for limit in [heap, stable, heap_install, stable_install, heap_query] {
            rules.at_least(limit, GRANULE_BYTES, "an execution needs at least its stack");
        }
        for limit in [heap, stable, heap_install, stable_install, install, heap_query, stable_query]
        {
            rules.pages(limit, 4096);
        }
        let reserved = self
            .execution
            .response_callback_reservation_bytes
            .saturating_mul(self.execution.threads);
        rules.within(
            LimitValue::size(
                "execution.response_callback_reservation_bytes x execution.threads",
                reserved,
            ),
            limit!(self.subnet.memory_capacity_bytes),
            "nothing would be left to allocate",
        );
    }

    fn check_sandbox(&self, rules: &mut Rules) {
        rules.at_least(
            limit!(self.sandbox.canisters_max),
            self.execution.threads.saturating_add(self.execution.query_threads),
            "each worker maps one",
        );
        rules.within(
            limit!(self.sandbox.eviction_batch_bytes),
            limit!(self.sandbox.resident_floor_bytes),
            "a batch is a part of what is resident",
        );
        rules.at_least(
            limit!(self.sandbox.eviction_batch_bytes),
            MIB,
            "evicting less is not worth its system calls",
        );
        rules.at_most(limit!(self.sandbox.paused_workers), 64, "each is a process");
        rules.at_least(limit!(self.sandbox.compile_threads), 1, "nothing could be installed");
        rules.at_most(limit!(self.sandbox.compile_threads), 64, "each is a process");
        rules.at_least(limit!(self.sandbox.compile_seconds), 1, "nothing could be installed");
        rules.at_least(
            limit!(self.sandbox.compile_anonymous_bytes),
            4 * MIB,
            "the compiler's program and what its allocator keeps of its heap",
        );
        let dirtiest = self.message_dirty_bytes().max(self.install_dirty_bytes());
        let least = self
            .process
            .worker_base_bytes
            .saturating_add(self.process.program_bytes)
            .saturating_add(self.worker_buffer_bytes())
            .saturating_add(dirtiest);
        rules.at_least(
            limit!(self.sandbox.worker_anonymous_bytes),
            least,
            "a worker's program, base and buffers and the dirtiest execution allowed, or it would \
             be killed for doing what the limits allow",
        );
    }

    #[expect(clippy::too_many_lines, reason = "a table, entry after entry")]
    fn check_pages(&self, rules: &mut Rules) {
        let capacity = limit!(self.pages.delta_capacity_bytes);
        let reserve = limit!(self.pages.delta_reserve_bytes);
        let round = self.execution.heap_delta_bytes_per_round;
        rules.within(reserve, capacity, "a reserve is a part of the capacity");
        let open = LimitValue::size(
            "pages.delta_capacity_bytes - pages.delta_reserve_bytes",
            capacity.value().saturating_sub(reserve.value()),
        );
        rules.within(
            limit!(self.execution.heap_delta_bytes_per_round),
            open,
            "a round must fit outside the reserve",
        );
        rules.within(
            limit!(self.pages.checkpoint_delta_bytes),
            open,
            "a checkpoint must come before the log is full",
        );
        rules.within(
            limit!(self.pages.pinned_delta_bytes),
            open,
            "queries must give way before a round has to wait for room",
        );
        rules.at_least(
            reserve,
            round.saturating_add(self.delta_beyond_round_bytes()),
            "a started round writes its delta, and executions in flight then still finish \
             (execution.heap_delta_bytes_per_round + what messages may dirty on four lanes or two \
             phases of an upgrade, or half of it + what five messages may dirty)",
        );
        rules.at_least(
            limit!(self.pages.checkpoint_interval_rounds),
            1,
            "there would be no checkpoints",
        );
        rules.at_least(
            limit!(self.pages.manifest_interval_rounds),
            1,
            "there would be no checkpoints",
        );
        rules.at_least(
            limit!(self.pages.checkpoint_delta_bytes),
            MIB,
            "there would be nothing but checkpoints",
        );
        rules.at_least(
            limit!(self.pages.checkpoint_instructions),
            1_000_000_000,
            "there would be nothing but checkpoints",
        );
        rules.at_least(
            limit!(self.pages.manifest_lag_rounds),
            1,
            "the root of a manifest cannot be known in the round that it describes",
        );
        rules.at_least(
            limit!(self.pages.runs_per_memory),
            16,
            "memories would be folded after every message",
        );
        rules.at_most(
            limit!(self.pages.runs_per_memory),
            MAPPINGS_PER_PROCESS / 8,
            "each run is up to two of the 65,530 kernel mappings of a worker, and a canister has \
             two memories",
        );
        rules.at_least(
            limit!(self.pages.open_files),
            16,
            "every lane of execution writes two memories",
        );
        rules.at_least(limit!(self.pages.copy_threads), 1, "nothing could be folded");
        rules.at_most(limit!(self.pages.copy_threads), 64, "copying is bound by the disk");
        rules.at_least(
            limit!(self.pages.metadata_cache_bytes),
            MIB,
            "the metadata store keeps its own tables there",
        );
    }

    #[expect(clippy::too_many_lines, reason = "a table, entry after entry")]
    fn check_module(&self, rules: &mut Rules) {
        let uncompressed = limit!(self.module.wasm_uncompressed_bytes);
        rules.at_least(
            uncompressed,
            GRANULE_BYTES,
            "no module could be installed; give compilation a larger heap \
             (sandbox.compile_memory_bytes)",
        );
        let needed = compile_need_bytes(uncompressed.value());
        rules.within(
            LimitValue::size("20 MiB + 28 x module.wasm_uncompressed_bytes", needed),
            limit!(self.sandbox.compile_memory_bytes),
            "a module that is accepted must compile",
        );
        let peak = compile_peak_bytes(&self.module);
        rules.within(
            LimitValue::size(
                "4 MiB + 3 x module.wasm_uncompressed_bytes + 256 x (module.function_weight + module.weight)",
                peak,
            ),
            limit!(self.sandbox.compile_memory_bytes),
            "whether a module is accepted must never depend on how much memory compiling it \
             happens to take",
        );
        rules.within(
            limit!(self.module.wasm_bytes),
            uncompressed,
            "gzip never makes a module larger",
        );
        rules.within(
            limit!(self.module.code_section_bytes),
            uncompressed,
            "a section is a part of the module",
        );
        rules.within(
            limit!(self.module.function_bytes),
            LimitValue::size(
                "module.wasm_uncompressed_bytes (or 1 MiB)",
                uncompressed.value().max(MIB),
            ),
            "a function is a part of the module",
        );
        rules.within(
            limit!(self.module.custom_sections_bytes),
            limit!(self.subnet.wasm_custom_sections_bytes),
            "one module's sections must fit into what all modules may have",
        );
        rules.within(
            limit!(self.module.exported_functions),
            limit!(self.module.functions),
            "every exported method is a function",
        );
        for limit in [
            limit!(self.module.functions),
            limit!(self.module.function_bytes),
            limit!(self.module.function_weight),
            limit!(self.module.weight),
            limit!(self.module.globals),
            limit!(self.module.tables),
            limit!(self.module.exported_functions),
            limit!(self.module.exported_names_bytes),
        ] {
            rules.at_least(limit, 1, "no module could be installed");
        }
        rules.at_most(limit!(self.module.heap32_bytes), 4 << 30, "32 bits address no more");
        rules.at_most(
            limit!(self.module.heap64_bytes),
            1 << 44,
            "a worker's address space holds no more",
        );
        rules.at_most(
            limit!(self.module.stable_bytes),
            1 << 43,
            "a sparse file and a worker's address space hold no more",
        );
        for limit in [
            limit!(self.module.heap32_bytes),
            limit!(self.module.heap64_bytes),
            limit!(self.module.stable_bytes),
        ] {
            rules.pages(limit, 64 << 10);
        }
    }

    #[expect(clippy::too_many_lines, reason = "a table, entry after entry")]
    fn check_consensus(&self, rules: &mut Rules) {
        let payload = limit!(self.subnet.message_payload_bytes);
        let block = limit!(self.consensus.block_ingress_bytes);
        rules.within(payload, block, "the largest call must fit into a block");
        rules.within(
            payload,
            limit!(self.consensus.ingress_pool_bytes),
            "the largest call must fit into the pool",
        );
        rules.at_least(
            limit!(self.consensus.ingress_pool_messages),
            1,
            "no call could be accepted",
        );
        rules.at_least(
            limit!(self.consensus.block_ingress_messages),
            1,
            "no call could be executed",
        );
        rules.at_least(
            limit!(self.consensus.ingress_expiry_seconds),
            1,
            "every call would have expired",
        );
        rules.at_most(
            limit!(self.consensus.ingress_expiry_seconds),
            3600,
            "the history remembers every call until it expires",
        );
        rules.within(
            limit!(self.consensus.ingress_drift_seconds),
            limit!(self.consensus.ingress_expiry_seconds),
            "clocks that differ by more than a call lives agree on nothing",
        );
        rules.at_least(
            limit!(self.consensus.idle_round_millis),
            10,
            "an idle node would be busy making blocks",
        );
        rules.at_most(
            limit!(self.consensus.idle_round_millis),
            60_000,
            "certificates would look stale to clients",
        );
        rules.at_most(
            limit!(self.consensus.execution_lag_blocks),
            1_000,
            "blocks waiting for execution are held in memory",
        );
        rules.at_least(limit!(self.consensus.certificates_kept), 1, "nothing could be answered");
        rules.at_least(
            limit!(self.consensus.blocks_per_epoch),
            20,
            "handing the key on takes a block for each dealing",
        );
        rules.at_least(
            limit!(self.consensus.checkpoint_block_bytes),
            self.consensus.block_ingress_bytes,
            "every block would bring a checkpoint",
        );
        rules.at_least(
            limit!(self.consensus.retention_block_bytes),
            self.consensus.checkpoint_block_bytes.saturating_mul(2),
            "blocks are kept down to the older of two checkpoints (2 x \
             consensus.checkpoint_block_bytes)",
        );
        rules.at_least(
            limit!(self.consensus.sync_bytes_per_second),
            MIB,
            "a peer that catches up would give up a chunk before it was there",
        );
        rules.at_least(
            limit!(self.consensus.nidkg_tables_bytes),
            GRANULE_BYTES,
            "a share is opened with a table of that size",
        );
    }

    fn check_gateway(&self, rules: &mut Rules) {
        let payload = limit!(self.subnet.message_payload_bytes);
        let requests = limit!(self.gateway.requests_in_flight);
        rules.within(limit!(self.gateway.queries_in_flight), requests, "a query is a request");
        rules.within(
            limit!(self.gateway.sync_calls_waiting),
            requests,
            "a waiting call is a request in flight",
        );
        rules.within(
            limit!(self.gateway.body_bytes),
            limit!(self.gateway.bodies_bytes),
            "the largest body must fit",
        );
        rules.within(
            payload,
            limit!(self.gateway.body_bytes),
            "the largest argument must fit into a body",
        );
        rules.within(
            payload,
            limit!(self.gateway.responses_bytes),
            "the largest reply must fit into a response",
        );
        for limit in [
            limit!(self.gateway.connections),
            requests,
            limit!(self.gateway.queries_in_flight),
            limit!(self.gateway.sync_calls_waiting),
            limit!(self.gateway.read_state_paths),
            limit!(self.gateway.read_state_path_labels),
            limit!(self.gateway.nonce_bytes),
        ] {
            rules.at_least(limit, 1, "clients could not be served");
        }
        rules.at_least(
            limit!(self.gateway.read_timeout_millis),
            100,
            "honest clients on slow links would be cut off",
        );
        rules.at_most(
            limit!(self.gateway.read_timeout_millis),
            600_000,
            "slow clients would hold their connection for ever",
        );
        rules.within(
            limit!(self.gateway.sync_call_wait_millis),
            LimitValue::number(
                "consensus.ingress_expiry_seconds x 1000",
                self.consensus.ingress_expiry_seconds.saturating_mul(1000),
            ),
            "a call that has expired is not worth waiting for",
        );
    }
}

impl Limits {
    fn check_outcalls(&self, rules: &mut Rules) {
        if !self.outcalls.is_possible() {
            return;
        }
        rules.at_least(
            limit!(self.outcalls.bytes),
            OutcallLimits::request_bytes(
                OUTCALL_REQUEST_BYTES,
                OUTCALL_RESPONSE_BYTES,
                Some(OUTCALL_CONTEXT_BYTES),
            ),
            "one request with the largest response (set it to 0 to have no outcalls)",
        );
        rules.at_least(
            limit!(self.gateway.body_bytes),
            OUTCALL_RESPONSE_BYTES + (2 << 10),
            "an answer to an outcall is a call in a block",
        );
        rules.at_least(
            limit!(self.outcalls.open_bytes),
            OUTCALL_REQUEST_BYTES + 1_000,
            "the largest request",
        );
        for limit in [
            limit!(self.outcalls.open),
            limit!(self.outcalls.timeout_seconds),
            limit!(self.outcalls.in_flight),
            limit!(self.outcalls.request_millis),
        ] {
            rules.at_least(limit, 1, "no request could be made");
        }
        rules.at_most(limit!(self.outcalls.open), 5_000, "each round looks at all of them");
        rules.at_most(
            limit!(self.outcalls.timeout_seconds),
            300,
            "an answer is a call in a block, and calls expire",
        );
    }
}

impl Limits {
    fn check_http_gateway(&self, rules: &mut Rules) {
        if !self.http_gateway.is_possible() {
            return;
        }
        let reply = self.subnet.message_payload_bytes;
        rules.at_least(
            limit!(self.http_gateway.requests_bytes),
            self.http_gateway.least_bytes(reply),
            "one request with the largest body, asked about with the largest reply, and one long \
             response being written (set connections = 0 to have no gateway)",
        );
        for limit in [
            limit!(self.http_gateway.requests_in_flight),
            limit!(self.http_gateway.response_headers),
            limit!(self.http_gateway.response_header_bytes),
            limit!(self.http_gateway.response_chunks),
            limit!(self.http_gateway.verify_millis),
            limit!(self.http_gateway.stream_millis),
            limit!(self.http_gateway.update_wait_millis),
        ] {
            rules.at_least(limit, 1, "browsers could not be served");
        }
        rules.at_most(
            limit!(self.http_gateway.response_headers),
            1_024,
            "each is a line that a browser has to read",
        );
        rules.at_most(
            limit!(self.http_gateway.response_header_bytes),
            64 << 10,
            "what is verified of them fits into what a request holds (512 KiB)",
        );
        rules.at_most(
            limit!(self.http_gateway.response_chunks),
            HTTP_CHUNKS_MAX,
            "the hash of each, 32 bytes, is kept while the response is verified: half of the 512 KiB \
             that a request holds",
        );
        rules.at_most(
            limit!(self.http_gateway.stream_millis),
            86_400_000,
            "a response that never ends would hold its place forever",
        );
        for limit in
            [limit!(self.http_gateway.verify_millis), limit!(self.http_gateway.update_wait_millis)]
        {
            rules.at_most(limit, 600_000, "requests that end never would hold their places");
        }
        rules.within(
            limit!(self.http_gateway.body_bytes),
            limit!(self.gateway.body_bytes),
            "an update call with such a body must be a call that other clients could send",
        );
    }
}

/// Pieces whose hashes fit into half of a request's memory.
const HTTP_CHUNKS_MAX: u64 = HTTP_REQUEST_BYTES / 2 / HTTP_PIECE_BYTES;

const _: () = assert!(CONNECTION_BYTES >= 8 << 10, "HTTP parsers start with a buffer of 8 KiB");
