//! The table as a whole: values at each size, that they add up everywhere, and rejected values.

use accounting::{GIB, MIB};
use proptest::prelude::*;
use serde_json::{Value, json};

use memory_budget::{Sheet, as_object, numbers};

use crate::*;

/// The smallest budget that is promised.
const SMALLEST_MIB: u64 = 96;

#[test]
fn nano_is_the_reference_profile_or_better() {
    let nano = Limits::preset("nano").unwrap();
    assert_eq!(nano.memory_budget_bytes, 512 * MIB);
    let SubnetLimits { memory_capacity_bytes, memory_threshold_bytes, .. } = nano.subnet;
    assert_eq!((memory_capacity_bytes, memory_threshold_bytes), (512 * MIB, 512 * MIB));
    let execution = &nano.execution;
    assert_eq!(execution.response_callback_reservation_bytes, 8 * MIB);
    assert_eq!(
        (execution.threads, execution.query_threads, execution.query_threads_per_canister),
        (2, 1, 1)
    );
    assert_eq!(nano.subnet.guaranteed_response_message_bytes, 160 * MIB);
    assert_eq!(nano.subnet.best_effort_message_bytes, 32 * MIB);
    assert!(!execution.reject_guaranteed_response_calls);
    assert_eq!(nano.subnet.ingress_history_bytes, 32 * MIB);
    assert_eq!(nano.subnet.wasm_custom_sections_bytes, 16 * MIB);
    assert_eq!(nano.subnet.callback_soft_limit, 4096);
    assert_eq!(execution.heap_delta_bytes_per_round, 64 * MIB);
    assert_eq!(execution.heap_delta_bytes_per_canister_round, 32 * MIB);
    assert_eq!(
        (execution.stable_dirty_bytes_per_message, execution.stable_dirty_bytes_per_install),
        (32 * MIB, 128 * MIB)
    );
    assert_eq!(
        (execution.stable_accessed_bytes_per_message, execution.stable_accessed_bytes_per_install),
        (32 * MIB, 128 * MIB)
    );
    assert_eq!(
        (execution.heap_dirty_bytes_per_message, execution.heap_dirty_bytes_per_install),
        (64 * MIB, 128 * MIB)
    );
    let sandbox = &nano.sandbox;
    assert_eq!((sandbox.canisters_max, sandbox.idle_seconds), (32, 120));
    assert_eq!((sandbox.resident_floor_bytes, sandbox.eviction_batch_bytes), (128 * MIB, 64 * MIB));
    assert_eq!((sandbox.compile_threads, nano.pages.copy_threads), (2, 2));
    assert_eq!(
        (execution.query_cache_bytes, sandbox.compilation_cache_bytes),
        (16 * MIB, 128 * MIB)
    );
    assert_eq!((execution.paused_executions, sandbox.paused_workers), (4, 4));
    // Better than the reference: the log is on disk, and its reserve covers what a started round
    // may still write (the reference's 32 of 96 MiB do not cover one install): half of its own 64
    // MiB, and 96 MiB of each of four messages that were paused and of one that began in addition.
    assert_eq!(
        (nano.pages.delta_capacity_bytes, nano.pages.delta_reserve_bytes),
        (576 * MIB, 512 * MIB)
    );
}

// Promise: P13 - A round with paused messages stays within the reserve of the delta log.
#[test]
fn whatever_paused_messages_wrote_a_round_stays_within_the_reserve() {
    for memory in [Limits::smallest_bytes(), 256 * MIB, 512 * MIB, 4 * GIB, 16 * GIB] {
        let limits = Limits::derive(memory).unwrap();
        let message = limits.message_dirty_bytes();
        let round = limits.execution.heap_delta_bytes_per_round;
        let upgrade = 2 * limits.install_dirty_bytes();
        assert!(limits.lanes_beside(0) == 4 && limits.has_room_for_upgrade(0));
        assert_eq!(limits.lanes_beside(4 * message), 1);
        assert_eq!(limits.paused_beside(0), 4);
        // Installations end before messages continue, each only if there is room for all it may
        // write.
        for installed in (0..=upgrade).step_by(4096) {
            let messages = limits.paused_beside(installed) * message;
            let paused = installed + messages;
            let counted = paused.min(round / 2);
            let begun = limits.lanes_beside(paused) * message;
            let begun =
                if limits.has_room_for_upgrade(paused) { begun.max(upgrade) } else { begun };
            let all = paused + (round - counted) + begun;
            assert!(all <= limits.pages.delta_reserve_bytes, "{memory}: {installed}");
        }
        for paused in (0..=4 * message).step_by(4096) {
            let counted = paused.min(round / 2);
            let begun = limits.lanes_beside(paused) * message;
            let begun =
                if limits.has_room_for_upgrade(paused) { begun.max(upgrade) } else { begun };
            let all = paused + (round - counted) + begun;
            assert!(all <= limits.pages.delta_reserve_bytes, "{memory}: {paused}");
        }
    }
}

#[test]
fn every_budget_installs_a_module_of_ten_megabytes() {
    for memory in [Limits::smallest_bytes(), 128 * MIB, 256 * MIB, 512 * MIB, 4 * GIB] {
        let limits = Limits::derive(memory).unwrap();
        assert!(limits.module.wasm_uncompressed_bytes >= 10_000_000, "{memory}");
        assert!(limits.module.wasm_bytes >= 10_000_000, "{memory}");
        let compilations = limits.sheet().line(pool::COMPILATIONS).unwrap().bytes;
        assert!(limits.sandbox.compile_anonymous_bytes <= compilations);
    }
    // The accepted sizes do not depend on the memory, up to where larger ones take more.
    let (smallest, nano) = (Limits::derive(Limits::smallest_bytes()).unwrap(), Limits::nano());
    assert_eq!(smallest.module.weight, nano.unwrap().module.weight);
}

#[test]
fn presets_are_derived_and_named() {
    for preset in PRESETS {
        assert_eq!(
            Limits::preset(preset.name).unwrap(),
            Limits::derive(preset.memory_bytes).unwrap()
        );
    }
    assert_eq!(Limits::small().unwrap().memory_budget_bytes, GIB);
    assert_eq!(Limits::micro().unwrap().memory_budget_bytes, 256 * MIB);
    let text = Limits::preset("namo").unwrap_err().to_string();
    for part in ["`nano`", "micro (256 MiB), nano (512 MiB), small (1 GiB)"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

// Promise: P1 - A budget below 96 MiB is refused with the line that does not fit and the smallest
//   budget.
#[test]
fn too_little_memory_names_the_line_and_the_smallest_size_which_works() {
    let error = Limits::derive(64 * MIB).unwrap_err();
    let LimitsError::TooSmall { line, smallest_bytes, .. } = error.clone() else {
        panic!("{error}")
    };
    assert_eq!(line, pool::EXECUTIONS);
    let text = error.to_string();
    assert!(
        text.contains("64 MiB")
            && text.contains("`executions`")
            && text.contains(&accounting::format_size(smallest_bytes)),
        "{text}"
    );
    assert!(smallest_bytes <= SMALLEST_MIB * MIB);
    Limits::derive(smallest_bytes).unwrap();
    assert!(Limits::derive(smallest_bytes - MIB).is_err());
    for tiny in [0, 1, MIB, smallest_bytes - 1] {
        assert!(matches!(Limits::derive(tiny), Err(LimitsError::TooSmall { .. })), "{tiny}");
    }
}

// Promise: P1 - The memory lines sum to at most `--memory` for every MiB from 96 MiB to 16 GiB.
#[test]
fn every_mib_adds_up_and_more_memory_never_means_less() {
    let mut before: Option<Limits> = None;
    for mib in SMALLEST_MIB..=16384 {
        let limits = Limits::derive(mib * MIB).unwrap_or_else(|error| panic!("{mib} MiB: {error}"));
        assert!(limits.sheet().sum_bytes() <= mib * MIB);
        if let Some(before) = before {
            for ((name, smaller), (_, larger)) in numbers(&before).into_iter().zip(numbers(&limits))
            {
                assert!(smaller <= larger, "{name} falls from {smaller} to {larger} at {mib} MiB");
            }
        }
        before = Some(limits);
    }
}

// Promise: P11 - Bodies and responses of browsers leave room for further requests.
#[test]
fn whatever_bodies_and_responses_of_browsers_hold_there_is_room_to_ask() {
    let reply = 2 * MIB;
    let mut checked = 0;
    for bytes in (8 * 1024..=256 * 1024_u64).step_by(64).map(|kib| kib << 10) {
        for body_bytes in [0, 1_000, MIB, 2 * MIB] {
            let mut limits = Limits::derive(192 * MIB).unwrap().http_gateway;
            (limits.requests_bytes, limits.body_bytes) = (bytes, body_bytes);
            if limits.least_bytes(reply) > bytes {
                continue;
            }
            let parts = limits.parts(reply);
            let streams = parts.streams * limits.stream_bytes();
            assert!(parts.bodies + streams + parts.rest <= bytes, "{parts:?}");
            assert!(parts.bodies >= body_bytes && parts.streams > 0, "{parts:?}");
            assert!(parts.large >= limits.response_bytes(reply), "{parts:?}");
            let asking = crate::HttpGatewayLimits::asking_bytes(body_bytes, reply);
            assert!(parts.small + parts.large + asking <= parts.rest, "{bytes} {parts:?}");
            checked += 1;
        }
    }
    assert!(checked > 10_000, "{checked}");
}

#[test]
fn sizes_beyond_the_last_anchor_keep_its_limits() {
    let last = Limits::derive(16 * GIB).unwrap();
    for memory in [17 * GIB, 1 << 40, u64::MAX] {
        let limits = Limits::derive(memory).unwrap();
        assert_eq!(numbers(&limits), numbers(&last));
    }
}

#[test]
fn a_ledger_is_made_of_the_sheet() {
    for preset in PRESETS {
        let limits = Limits::preset(preset.name).unwrap();
        let (sheet, ledger) = (limits.sheet(), limits.ledger().unwrap());
        for line in sheet.lines.iter().filter(|line| line.kind == LineKind::Pool) {
            assert_eq!(ledger.pool(line.name).unwrap().cap_bytes(), line.bytes);
        }
        let fixed: u64 = sheet
            .lines
            .iter()
            .filter(|line| line.kind == LineKind::Fixed)
            .map(|line| line.bytes)
            .sum();
        assert_eq!(ledger.budget_bytes(), limits.memory_budget_bytes - fixed);
    }
    let all = [
        pool::PROGRAM,
        pool::EXECUTIONS,
        pool::COMPILATIONS,
        pool::QUERIES,
        pool::QUERY_CACHE,
        pool::INGRESS_POOL,
        pool::BLOCKS,
        pool::REQUEST_BODIES,
        pool::RESPONSES,
        pool::CONNECTIONS,
        pool::HTTP_CONNECTIONS,
        pool::HTTP_REQUESTS,
        pool::OUTCALLS,
        pool::CERTIFICATES,
        pool::NIDKG_TABLES,
        pool::DELTA_INDEX,
    ];
    let ledger = Limits::nano().unwrap().ledger().unwrap();
    assert_eq!(ledger.snapshot().pools.len(), all.len());
    assert!(all.iter().all(|name| ledger.pool(name).is_some()));
}

// Promise: P1 - Executions, compilations and worker buffers that run at once fit the shared line.
#[test]
fn everything_that_runs_at_once_fits_the_shared_line() {
    for mib in (SMALLEST_MIB..16384).step_by(64) {
        let limits = Limits::derive(mib * MIB).unwrap();
        let pool = limits.ledger().unwrap().pool(pool::EXECUTIONS).unwrap();
        let messages: Vec<_> = (0..limits.execution.threads)
            .map(|_| pool.try_reserve(limits.message_dirty_bytes()).unwrap())
            .collect();
        drop(messages);
        let _ = pool.try_reserve(limits.install_dirty_bytes()).unwrap();
    }
}

#[test]
fn rows_and_sheet_say_the_same() {
    let nano = Limits::nano().unwrap();
    let mut shared = nano.clone();
    shared.set_disk(100 * GIB, 2);
    let smallest = Limits::derive(Limits::smallest_bytes()).unwrap();
    assert_eq!(memory_budget::omissions(&[smallest, nano, shared]), [""; 0]);
}

#[test]
fn record_without_any_one_limit_is_read_as_the_same_table() {
    let nano = Limits::nano().unwrap();
    let mut large = nano.clone();
    large.set_disk(100 * GIB, 1);
    for limits in [nano, large] {
        let record = serde_json::to_value(&limits).unwrap();
        for limit in <Limits as memory_budget::Table>::LIMITS.iter().copied().flatten() {
            let (group, field) = limit.name.split_once('.').unwrap();
            let mut older = record.clone();
            older[group].as_object_mut().unwrap().remove(field).unwrap();
            assert_eq!(Limits::from_record(&older).unwrap(), limits, "{}", limit.name);
        }
        for group in as_object(&limits).iter().filter(|(_, group)| group.is_object()) {
            let mut older = record.clone();
            older.as_object_mut().unwrap().remove(group.0).unwrap();
            assert_eq!(Limits::from_record(&older).unwrap(), limits, "{}", group.0);
        }
    }
}

#[test]
fn members_agree_on_what_affects_results() {
    let limits = Limits::nano().unwrap();
    let agreed = limits.agreed();
    assert!(agreed.is_sorted() && agreed.contains(&("execution.threads".to_owned(), 2)));
    assert!(agreed.contains(&("execution.reject_guaranteed_response_calls".to_owned(), 0)));
    // In the groups of replicated state and execution only what queries see is of one node alone.
    for limit in <Limits as memory_budget::Table>::LIMITS.iter().copied().flatten() {
        let group = limit.name.split('.').next().unwrap();
        let is_shared = ["subnet", "execution", "module"].contains(&group);
        assert!(limit.is_agreed || !is_shared || limit.name.contains("query"), "{}", limit.name);
        assert_eq!(limit.is_agreed, agreed.iter().any(|(name, _)| name == limit.name));
    }
}

/// Breaks one rule; returns the refusal.
fn broken(overrides: Value) -> String {
    let mut limits = Limits::nano().unwrap();
    limits.apply_overrides(&overrides).unwrap();
    limits.check().unwrap_err().to_string()
}

#[test]
fn contradictions_are_named_with_both_limits() {
    for (overrides, names) in [
        (json!({"execution": {"threads": 0}}), vec!["execution.threads", "at least 1"]),
        (
            json!({"execution": {"heap_delta_bytes_per_round": "32MiB", "heap_delta_bytes_per_canister_round": "32MiB"}, "pages": {"checkpoint_delta_bytes": "16MiB"}}),
            vec!["execution.heap_dirty_bytes_per_message", "execution.heap_delta_bytes_per_round"],
        ),
        (
            json!({"pages": {"delta_reserve_bytes": "600MiB", "delta_capacity_bytes": "580MiB"}}),
            vec!["pages.delta_reserve_bytes", "pages.delta_capacity_bytes"],
        ),
        (
            json!({"pages": {"delta_reserve_bytes": "32MiB"}}),
            vec!["pages.delta_reserve_bytes", "at least 512 MiB"],
        ),
        (
            json!({"pages": {"delta_capacity_bytes": "556MiB"}}),
            vec!["execution.heap_delta_bytes_per_round", "(44 MiB)"],
        ),
        (
            json!({"gateway": {"sync_calls_waiting": 300}}),
            vec!["gateway.sync_calls_waiting", "gateway.requests_in_flight"],
        ),
        (
            json!({"gateway": {"body_bytes": "9MiB"}}),
            vec!["gateway.body_bytes", "gateway.bodies_bytes"],
        ),
        (
            json!({"execution": {"heap_dirty_bytes_per_query": 6_000_001}}),
            vec!["execution.heap_dirty_bytes_per_query", "multiple of 4096"],
        ),
        (
            json!({"module": {"wasm_uncompressed_bytes": "20MiB"}}),
            vec!["module.wasm_uncompressed_bytes", "sandbox.compile_memory_bytes"],
        ),
        (
            json!({"consensus": {"ingress_expiry_seconds": 0}}),
            vec!["consensus.ingress_expiry_seconds", "consensus.ingress_drift_seconds"],
        ),
        (
            json!({"subnet": {"message_payload_bytes": "5MiB"}}),
            vec!["consensus.block_ingress_bytes", "gateway.body_bytes"],
        ),
        (
            json!({"sandbox": {"worker_anonymous_bytes": "100MiB"}}),
            vec!["sandbox.worker_anonymous_bytes"],
        ),
        (json!({"sandbox": {"ring_bytes": 4095}}), vec!["sandbox.ring_bytes", "at least 4 KiB"]),
    ] {
        let text = broken(overrides);
        assert!(names.iter().all(|name| text.contains(name)), "{names:?}: {text}");
    }
}

// Promise: P1 - An override that exceeds the budget is refused with the name of the line.
#[test]
fn a_sum_above_the_budget_names_the_line_that_was_raised() {
    let text = broken(json!({"gateway": {"bodies_bytes": "256MiB"}}));
    assert!(
        text.contains("`request_bodies` (256 MiB, 8 MiB by derivation)")
            && text.contains("512 MiB"),
        "{text}"
    );
    let mut limits = Limits::nano().unwrap();
    limits.memory_budget_bytes = 128 * MIB;
    let text = limits.check().unwrap_err().to_string();
    assert!(text.contains("128 MiB") && text.contains("line `"), "{text}");
}

#[test]
fn raising_one_line_is_possible_when_another_is_lowered() {
    let mut limits = Limits::nano().unwrap();
    let overrides = json!({
        "execution": {"heap_dirty_bytes_per_message": "48MiB"},
        "gateway": {"bodies_bytes": "16MiB", "responses_bytes": "16MiB"},
        "subnet": {"guaranteed_response_message_bytes": "40MiB"},
    });
    limits.apply_overrides(&overrides).unwrap();
    limits.check().unwrap();
    assert_eq!(limits.ledger().unwrap().pool(pool::REQUEST_BODIES).unwrap().cap_bytes(), 16 * MIB);
}

#[test]
fn an_unknown_limit_is_answered_with_the_nearest_of_all_groups() {
    let text = Limits::nano()
        .unwrap()
        .apply_overrides(&json!({"gateway": {"ingress_pool_bytes": 1}}))
        .unwrap_err()
        .to_string();
    assert!(text.contains("`ingress_pool_bytes` in `[limits.consensus]`"), "{text}");
    assert!(text.contains("`thimble limits`"), "{text}");
}

#[test]
fn consequences_follow_unless_they_are_stated() {
    let mut limits = Limits::nano().unwrap();
    let overrides = json!({
        "sandbox": {"compile_memory_bytes": "76MiB"},
        "subnet": {"memory_capacity_bytes": "2GiB"},
        "execution": {"reject_guaranteed_response_calls": true},
    });
    limits.apply_overrides(&overrides).unwrap();
    assert_eq!(limits.module.wasm_uncompressed_bytes, 2 * MIB);
    assert_eq!(limits.module.wasm_bytes, 2 * MIB);
    assert_eq!(limits.subnet.memory_threshold_bytes, 2048 * MIB);
    assert!(limits.execution.reject_guaranteed_response_calls);
    limits.check().unwrap();

    let mut limits = Limits::nano().unwrap();
    limits
        .apply_overrides(
            &json!({"subnet": {"memory_capacity_bytes": "2GiB", "memory_threshold_bytes": "1GiB"}}),
        )
        .unwrap();
    assert_eq!(limits.subnet.memory_threshold_bytes, 1024 * MIB);
}

#[test]
fn what_is_shown_is_a_configuration_file_that_changes_nothing() {
    for preset in PRESETS {
        let limits = Limits::preset(preset.name).unwrap();
        let text = limits.sheet().to_text(&limits);
        let start = text.find("[limits.").unwrap();
        let file: toml::Table = toml::from_str(&text[start..]).unwrap();
        let mut again = limits.clone();
        again.apply_overrides(&serde_json::to_value(&file["limits"]).unwrap()).unwrap();
        assert_eq!(again, limits);
        let mut table = as_object(&limits);
        table.remove("memory_budget_bytes");
        table.remove("disk_budget_bytes");
        again.apply_overrides(&Value::Object(table)).unwrap();
        assert_eq!(again, limits);
    }
    let nano = Limits::nano().unwrap();
    let text = nano.sheet().to_text(&nano);
    assert!(text.contains("larger of: messages 2 x 96 MiB, one install 192 MiB"), "{text}");
}

proptest! {
    /// Whatever an operator writes, the answer is a table that checks or an error, never a panic;
    /// and what checks makes a ledger.
    #[test]
    fn any_override_is_answered(mib in 0_u64..40_000, changes in proptest::collection::vec((0_usize..200, any::<u64>(), 0_u32..64), 0..6)) {
        let Ok(mut limits) = Limits::derive(mib * MIB) else { return Ok(()) };
        let paths: Vec<String> = numbers(&limits).into_iter().map(|(path, _)| path).collect();
        for (at, value, shift) in changes {
            let (group, field) = paths[at % paths.len()].split_once('.').unwrap();
            limits.apply_overrides(&json!({group: {field: value >> shift}})).unwrap();
        }
        if limits.check().is_ok() {
            limits.ledger().unwrap();
        }
        let _ = limits.sheet().to_text(&limits);
    }

    /// Sizes that are not whole MiB are rounded down.
    #[test]
    fn odd_sizes_round_down(bytes in SMALLEST_MIB * MIB..20 * GIB) {
        prop_assert_eq!(Limits::derive(bytes).unwrap(), Limits::derive(bytes - bytes % MIB).unwrap());
    }
}

// Promise: P4 - The disk lines sum to at most `--disk`, for every memory and every disk.
#[test]
fn a_disk_budget_adds_up_for_every_memory_and_leaves_the_rest_to_the_state() {
    for memory in [SMALLEST_MIB * MIB, 256 * MIB, 512 * MIB, GIB, 4 * GIB, 16 * GIB] {
        for states in [1, 2] {
            let plain = Limits::derive(memory).unwrap();
            let smallest = plain.smallest_disk_bytes(states);
            let mut before = plain.clone();
            before.set_disk(smallest, states);
            let mut disks = [smallest, 2 * smallest, 128 * GIB, 1 << 50, u64::MAX];
            disks.sort_unstable();
            for disk in disks {
                let mut limits = plain.clone();
                limits.set_disk(disk, states);
                limits.check().unwrap_or_else(|error| panic!("{memory} {disk}: {error}"));
                let sheet = limits.sheet();
                assert!(sheet.disk_sum_bytes() <= disk);
                // The only memory that the disk takes is the page tables of the heap on it.
                let without_tables =
                    |sheet: &Sheet| sheet.sum_bytes() - sheet.line("heap_tables").unwrap().bytes;
                assert_eq!(without_tables(&sheet), without_tables(&plain.sheet()), "memory stays");
                assert!(sheet.sum_bytes() <= memory);
                for ((name, less), (_, more)) in numbers(&before).into_iter().zip(numbers(&limits))
                {
                    assert!(less <= more, "{name} falls from {less} to {more} at {disk}");
                }
                let capacity = limits.subnet.memory_capacity_bytes;
                assert_eq!(capacity, limits.subnet.memory_threshold_bytes);
                let all = capacity == 256 * memory;
                assert!(all || sheet.disk_left_bytes() < 2 * states * MIB, "{disk}: nothing idles");
                before = limits;
            }
        }
    }
}

// Promise: P4 - 512 MiB of memory and 150 GiB of disk hold 100 GiB of state and 131,072 canisters.
#[test]
fn a_hundred_gib_of_state_fit_half_a_gib_of_memory() {
    let mut limits = Limits::nano().unwrap();
    let disk = limits.disk_bytes(1, 100 * GIB);
    println!("100 GiB of state need {}", accounting::format_size(disk));
    for memory in [256 * MIB, 512 * MIB] {
        let limits = Limits::derive(memory).unwrap();
        let smallest = limits.smallest_disk_bytes(1);
        println!("the smallest disk is {}", accounting::format_size(smallest));
    }
    assert!(disk <= 150 * GIB, "{disk}");
    limits.set_disk(disk, 1);
    assert!(limits.subnet.memory_capacity_bytes >= 100 * GIB);
    assert_eq!(limits.subnet.canisters_max, 131_072);
    assert_eq!(limits.sandbox.compilation_cache_bytes, 4 * GIB);
    assert_eq!(limits.consensus.retention_block_bytes, GIB);
}

// Promise: P4 - A disk budget that is too small is refused with the smallest that works.
#[test]
fn too_little_disk_names_what_lies_beside_the_state_and_the_smallest_that_works() {
    let mut limits = Limits::nano().unwrap();
    let smallest = limits.smallest_disk_bytes(1);
    limits.check_disk().unwrap();
    for too_little in [0, MIB, smallest - 1] {
        limits.set_disk(too_little, 1);
        let text = limits.check_disk().unwrap_err().to_string();
        assert!(text.contains(&accounting::format_size(smallest)), "{text}");
    }
    limits.set_disk(smallest, 1);
    limits.check_disk().unwrap();
    assert_eq!(limits.subnet.memory_capacity_bytes, 64 * MIB);
}

#[test]
fn what_was_set_by_hand_stays_when_the_disk_is_stated() {
    let mut limits = Limits::nano().unwrap();
    limits.apply_overrides(&json!({"subnet": {"memory_capacity_bytes": "1GiB"}})).unwrap();
    limits.set_disk(100 * GIB, 1);
    assert_ne!(limits.subnet.memory_capacity_bytes, 512 * MIB);
    limits.apply_overrides(&json!({"subnet": {"memory_capacity_bytes": "1GiB"}})).unwrap();
    assert_eq!(limits.subnet.memory_capacity_bytes, GIB);
    limits.check().unwrap();
    limits.apply_overrides(&json!({"subnet": {"memory_capacity_bytes": "200GiB"}})).unwrap();
    let text = limits.check().unwrap_err().to_string();
    assert!(text.contains("`canister_state` (200 GiB)") && text.contains("100 GiB"), "{text}");
}

// Promise: P3 - 512 MiB and 100 GiB of disk allow 10,000 open calls and keep 56 GiB for canisters.
#[test]
fn open_calls_follow_from_the_disk_and_leave_it_to_the_canisters() {
    let open = |limits: &Limits| {
        let subnet = &limits.subnet;
        // A call is accounted with its method's name and an overhead of 256 bytes.
        subnet.guaranteed_response_message_bytes / (subnet.message_payload_bytes + 512)
    };
    let mut limits = Limits::nano().unwrap();
    assert_eq!(open(&limits), 79, "without a disk they follow from the memory");
    assert_eq!(limits.subnet.guaranteed_response_calls, 320);
    for (disk, calls) in [(7, 79), (20, 79), (22, 255)] {
        limits.set_disk(disk * GIB, 1);
        limits.check().unwrap();
        assert_eq!(open(&limits), calls, "{disk} GiB");
    }
    limits.set_disk(20 * GIB, 1);
    let capacity = limits.subnet.memory_capacity_bytes;
    assert!(capacity >= 11 * GIB, "{capacity}");
    limits.set_disk(100 * GIB, 1);
    limits.check().unwrap();
    println!("{}", limits.sheet().to_text(&limits));
    assert!(open(&limits) >= 10_000, "{}", open(&limits));
    assert_eq!(limits.subnet.guaranteed_response_calls, 40_960);
    assert_eq!(limits.subnet.callback_soft_limit, 10_240, "of one canister or of many");
    assert_eq!(limits.checkpoint_messages(), 10_240);
    let capacity = limits.subnet.memory_capacity_bytes;
    assert!(capacity >= 56 * GIB, "{capacity}");
    let files = limits.sheet().line("message_files").unwrap().bytes;
    assert!(files > 25 * GIB && files < 26 * GIB, "{files}");
    // Messages since the newest checkpoint, those of one round and those that its lanes had begun,
    // without waiting messages.
    let beside_waiting = limits.pressing_message_bytes()
        + limits.execution.heap_delta_bytes_per_round
        + 4 * (crate::LANE_PAYLOAD_BYTES + 9 * limits.subnet.message_payload_bytes);
    let waiting = limits.subnet.guaranteed_response_message_bytes;
    assert_eq!(limits.pressing_message_bytes(), waiting / 4);
    assert!(files >= waiting + beside_waiting, "{files}");
    // Where a fetched state needs room in addition to the old one, they are fewer.
    let mut shared = limits.clone();
    shared.set_disk(100 * GIB, 2);
    shared.check().unwrap();
    assert_eq!(open(&shared), 3_412);
    // Two snapshots hold all of theirs, one a part; one state is there and one is fetched.
    let (files, all) = (
        shared.sheet().line("message_files").unwrap().bytes,
        shared.subnet.guaranteed_response_message_bytes,
    );
    assert!(shared.pinned_message_bytes() >= 2 * all + all / 4);
    assert!(files >= 4 * all + all / 2 && files < 32 * GIB, "{files}");
    assert_eq!(shared.pressing_message_bytes(), shared.late_checkpoint_message_bytes());
    println!("{}", shared.sheet().to_text(&shared));
    // The reference's number can be stated, and then frees its disk.
    let overrides = json!({"subnet": {"guaranteed_response_message_bytes": "64MiB"}});
    limits.apply_overrides(&overrides).unwrap();
    limits.check().unwrap();
    assert_eq!(limits.subnet.guaranteed_response_message_bytes, 64 * MIB);
    assert_eq!(limits.subnet.guaranteed_response_calls, 128);
    assert!(limits.subnet.memory_capacity_bytes > capacity + 28 * GIB);
    assert_eq!(limits.checkpoint_message_bytes(), 16 * MIB);
    assert_eq!(limits.late_checkpoint_message_bytes(), 64 * MIB);
    assert_eq!((limits.checkpoint_messages(), limits.late_checkpoint_messages()), (1_024, 10_000));
    assert_eq!(limits.leased_message_bytes(), 256 * MIB);
    for (memory, most) in [(256 * MIB, 76 * MIB), (4 * GIB, 160 * GIB), (16 * GIB, 256 * GIB)] {
        let mut limits = Limits::derive(memory).unwrap();
        limits.set_disk(1 << 50, 1);
        assert_eq!(limits.subnet.guaranteed_response_message_bytes, most);
    }
    limits.subnet.guaranteed_response_message_bytes = 2 * GIB;
    assert_eq!(limits.leased_message_bytes(), GIB / 2);
    assert_eq!(limits.late_checkpoint_message_bytes(), GIB / 2);
}

// Promise: P4 - The tables of the state's heap fit every memory with every disk.
#[test]
fn the_tables_of_the_heap_fit_every_memory_with_every_disk() {
    let disks = [(16 * GIB, 1), (40 * GIB, 2), (100 * GIB, 1), (4 << 40, 1), (1 << 50, 2)];
    let small = (SMALLEST_MIB..1024).step_by(4);
    for mib in small.chain((1024..=65_536).step_by(509)) {
        for (disk, states) in disks {
            let mut limits = Limits::derive(mib * MIB).unwrap();
            if disk < limits.smallest_disk_bytes(states) {
                continue;
            }
            limits.set_disk(disk, states);
            limits.check().unwrap_or_else(|error| panic!("{mib} MiB, {disk}: {error}"));
            let sheet = limits.sheet();
            assert!(sheet.sum_bytes() <= mib * MIB && sheet.disk_sum_bytes() <= disk);
        }
    }
}

#[test]
fn reference_page_of_limits_states_every_row() {
    let mut limits = Limits::nano().unwrap();
    limits.set_disk(100 * GIB, 1);
    // A build with assertions has larger constants; the page is that of a release.
    let process = &mut limits.process;
    let more = process.program_bytes - crate::process::RELEASE_PROGRAM_BYTES;
    process.program_bytes -= more;
    process.node_base_bytes += more;
    process.worker_base_bytes += more;
    testing::reference::check_page("limits.md", "thimble", &memory_budget::reference(&limits));
}
