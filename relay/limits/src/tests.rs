//! The table as a whole: values at each size, that they add up everywhere, and rejected values.

use std::collections::BTreeSet;

use accounting::{GIB, KIB, MIB};
use memory_budget::numbers;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::*;

/// The most anonymous memory that a relay takes: all lines but the kernel's.
fn anonymous_bytes(limits: &Limits) -> u64 {
    let process = &limits.process;
    limits.sheet().sum_bytes() - process.kernel_bytes - process.page_cache_floor_bytes
}

// Promise: P24 - The smallest budget of a relay is 64 MiB, and less is refused by line.
#[test]
fn the_smallest_relay_takes_64_mib() {
    assert_eq!(Limits::smallest_bytes(), 64 * MIB);
    let tiny = Limits::derive(64 * MIB).unwrap();
    assert!(tiny.filter.receivers >= 32 && tiny.gossip.peers >= 3 * tiny.gossip.d_high);
    for bytes in [0, 1, MIB, 32 * MIB, 63 * MIB, 64 * MIB - 1] {
        let error = Limits::derive(bytes).unwrap_err();
        let LimitsError::TooSmall { line, smallest_bytes, .. } = error.clone() else {
            panic!("{error}")
        };
        assert_eq!(smallest_bytes, 64 * MIB);
        assert!(error.to_string().contains(&format!("`{line}`")), "{error}");
    }
    let error = Limits::derive(40 * MIB).unwrap_err().to_string();
    assert!(error.contains("`receiving`") && error.contains("64 MiB"), "{error}");
}

#[test]
fn presets_are_derived_and_named() {
    for preset in PRESETS {
        assert_eq!(
            Limits::preset(preset.name).unwrap(),
            Limits::derive(preset.memory_bytes).unwrap()
        );
    }
    let text = Limits::preset("tinny").unwrap_err().to_string();
    assert!(text.contains("`tiny`") && text.contains("micro (128 MiB)"), "{text}");
}

// Promise: P24 - The relay's lines sum to at most `--memory` for every MiB from 64 MiB to 4 GiB.
#[test]
fn every_mib_adds_up_and_more_memory_never_means_less() {
    let mut before: Option<Limits> = None;
    for mib in 64..=4096 {
        let limits = Limits::derive(mib * MIB).unwrap_or_else(|error| panic!("{mib} MiB: {error}"));
        assert!(limits.sheet().sum_bytes() <= mib * MIB);
        assert!(
            anonymous_bytes(&limits) * 100 <= mib * MIB * 80,
            "{mib} MiB: short before it is full"
        );
        if let Some(before) = before {
            for ((name, smaller), (_, larger)) in numbers(&before).into_iter().zip(numbers(&limits))
            {
                assert!(smaller <= larger, "{name} falls from {smaller} to {larger} at {mib} MiB");
            }
        }
        before = Some(limits);
    }
}

#[test]
fn sizes_beyond_the_last_anchor_keep_its_limits() {
    let last = Limits::derive(4 * GIB).unwrap();
    for memory in [5 * GIB, 1 << 40, u64::MAX] {
        assert_eq!(numbers(&Limits::derive(memory).unwrap()), numbers(&last));
    }
}

#[test]
fn what_the_protocols_and_clients_demand_holds_at_every_size() {
    for preset in PRESETS {
        let limits = Limits::preset(preset.name).unwrap();
        assert_eq!(limits.messages.message_bytes, 150 * KIB);
        assert_eq!(limits.messages.frame_bytes, 214 * KIB);
        assert_eq!(
            (limits.filter.topics_per_request, limits.filter.criteria_per_peer),
            (100, 1000)
        );
        assert_eq!((limits.filter.ping_seconds, limits.store.page_messages_max), (300, 100));
        let GossipLimits { d, d_low, d_high, d_out, d_lazy, history, history_gossip, .. } =
            limits.gossip;
        assert_eq!(
            (d, d_low, d_high, d_out, d_lazy, history, history_gossip),
            (6, 4, 8, 3, 6, 6, 3)
        );
        let GossipLimits { heartbeat_millis, fanout_seconds, seen_seconds, .. } = limits.gossip;
        assert_eq!((heartbeat_millis, fanout_seconds, seen_seconds), (1000, 60, 120));
        assert_eq!((limits.gossip.prune_backoff_seconds, limits.messages.clock_seconds), (60, 20));
    }
}

#[test]
fn a_flood_that_fills_every_pool_stays_under_96_mib_at_128() {
    let micro = Limits::preset("micro").unwrap();
    assert!(anonymous_bytes(&micro) < 96 * MIB);
    // The largest flow, 1,000 messages of 150 KiB a second, has room: fifty frames being read, and
    // fifty milliseconds for the writer.
    let frames = micro.messages.receiving_bytes / micro.messages.message_bytes;
    let millis = micro.messages.appending_bytes / micro.messages.message_bytes;
    assert!(frames >= 50 && millis >= 50, "{frames} {millis}");
    assert!(anonymous_bytes(&Limits::preset("tiny").unwrap()) < 48 * MIB);
}

// Promise: P24 - Messages of 1 MiB are taken from 72 MiB on; less is refused with the numbers.
#[test]
fn messages_of_a_mib_have_room_from_72_mib_on_and_less_is_refused_with_the_numbers() {
    let smallest = Limits::smallest_bytes_with_messages(MIB);
    assert!(smallest > 64 * MIB && smallest <= 72 * MIB, "{} MiB", smallest / MIB);
    for mib in smallest / MIB..=4200 {
        let limits = Limits::derive_with_messages(mib * MIB, MIB)
            .unwrap_or_else(|error| panic!("{mib} MiB: {error}"));
        assert!(limits.memory_budget_bytes == mib * MIB && limits.messages.message_bytes == MIB);
        // Four frames can be received and four messages appended at once; a message can be sent by
        // HTTP in text with escapes, and read.
        let messages = &limits.messages;
        assert!(messages.receiving_bytes >= 4 * messages.frame_bytes);
        assert!(messages.appending_bytes >= 4 * MIB);
        assert!(limits.connections.unread_bytes >= 4 * messages.frame_bytes);
        assert!(limits.connections.unread_bytes_per_connection >= messages.frame_bytes);
        assert!(limits.http.body_bytes >= MIB / 3 * 4 + MIB / 64);
        assert!(limits.http.bodies_bytes >= 2 * limits.http.body_bytes);
        assert!(limits.http.responses_bytes >= MIB + MIB / 3 * 4);
        limits.ledger().unwrap();
        // The same stated again, as in a configuration that was printed, changes nothing.
        let mut again = limits.clone();
        again.apply_overrides(&json!({"messages": {"message_bytes": "1MiB"}})).unwrap();
        assert_eq!(again, limits);
    }
    for bytes in [0, MIB, 63 * MIB, 64 * MIB, smallest - 1] {
        let error = Limits::derive_with_messages(bytes, MIB).unwrap_err();
        let LimitsError::TooSmall { smallest_bytes, .. } = error.clone() else { panic!("{error}") };
        assert_eq!(smallest_bytes, smallest, "{error}");
    }
    let usual = Limits::derive_with_messages(64 * MIB, 150 * KIB).unwrap();
    assert_eq!(usual, Limits::derive(64 * MIB).unwrap());
    assert_eq!(Limits::smallest_bytes_with_messages(150 * KIB), Limits::smallest_bytes());
    // What no network has is refused as any value out of its bounds.
    let mut more = Limits::derive_with_messages(u64::MAX, MIB + 1).unwrap();
    more.apply_overrides(&json!({"messages": {"message_bytes": MIB + 1}})).unwrap();
    assert!(more.check().unwrap_err().to_string().contains("messages.message_bytes"));
}

#[test]
fn a_store_that_keeps_little_needs_no_word_about_what_is_fetched_for_it() {
    let mut limits = Limits::preset("micro").unwrap();
    let store = json!({"store": {
        "retention_hours": 1, "retention_bytes": "32MiB", "segment_bytes": "4MiB",
    }});
    limits.apply_overrides(&store).unwrap();
    limits.check().unwrap();
    assert_eq!((limits.client.resume_hours, limits.sync.session_bytes), (1, 32 * MIB));
}

#[test]
fn a_ledger_is_made_of_the_sheet() {
    for preset in PRESETS {
        let limits = Limits::preset(preset.name).unwrap();
        let (sheet, ledger) = (limits.sheet(), limits.ledger().unwrap());
        let pools = sheet.lines.iter().filter(|line| line.kind == LineKind::Pool);
        let names: Vec<&str> = pools.clone().map(|line| line.name).collect();
        assert_eq!(names, pool::ALL);
        for line in pools {
            assert_eq!(ledger.pool(line.name).unwrap().cap_bytes(), line.bytes);
        }
        let names: BTreeSet<&str> = sheet.lines.iter().map(|line| line.name).collect();
        assert_eq!(names.len(), sheet.lines.len(), "no line twice");
    }
    let tiny = Limits::preset("tiny").unwrap().ledger().unwrap();
    let frame = tiny.pool(pool::RECEIVING).unwrap().try_reserve(214 * KIB).unwrap();
    assert_eq!(frame.bytes(), 214 * KIB);
}

#[test]
fn rows_and_sheet_say_the_same() {
    let tables = ["tiny", "micro", "medium"].map(|name| Limits::preset(name).unwrap());
    assert_eq!(memory_budget::omissions(&tables), [""; 0]);
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
    }
}

#[test]
fn consequences_follow_unless_they_are_stated() {
    let mut limits = Limits::preset("micro").unwrap();
    let overrides = json!({
        "connections": {"connections": 100},
        "messages": {"message_bytes": "64KiB"},
        "store": {"segment_bytes": "128MiB"},
    });
    limits.apply_overrides(&overrides).unwrap();
    assert_eq!(limits.connections.connections_per_address, 50);
    assert_eq!(limits.messages.frame_bytes, 128 * KIB);
    assert_eq!(limits.store.disk_reserve_bytes, 512 * MIB);
    limits.apply_overrides(&json!({"connections": {"connections_per_address": 5}})).unwrap();
    limits.apply_overrides(&json!({"connections": {"connections": 200}})).unwrap();
    assert_eq!(limits.connections.connections_per_address, 5, "what was stated is not forgotten");
}

#[test]
fn unknown_limits_are_answered_in_the_relays_name() {
    let mut limits = Limits::preset("micro").unwrap();
    let text =
        limits.apply_overrides(&json!({"gossip": {"seen_second": 1}})).unwrap_err().to_string();
    assert!(text.contains("`seen_seconds`") && text.contains("`thimble-relay limits`"), "{text}");
    let text = limits.apply_overrides(&json!({"connection": {}})).unwrap_err().to_string();
    assert!(text.contains("[limits.connections]") && text.contains("light_push"), "{text}");
}

#[test]
fn contradictions_are_named_with_both_limits() {
    for (overrides, names) in [
        (
            json!({"connections": {"unread_bytes_per_connection": "200KiB"}}),
            vec!["messages.frame_bytes", "connections.unread_bytes_per_connection", "200 KiB"],
        ),
        (
            json!({"connections": {"connections": 40}}),
            vec!["gossip.peers", "filter.receivers", "connections.connections"],
        ),
        (json!({"messages": {"message_bytes": "2MiB"}}), vec!["messages.message_bytes", "1 MiB"]),
        (
            json!({"messages": {"receiving_bytes": "128KiB"}}),
            vec!["messages.receiving_bytes", "largest frame"],
        ),
        (json!({"gossip": {"d": 3}}), vec!["gossip.d_low", "gossip.d"]),
        (json!({"gossip": {"d_out": 4}}), vec!["gossip.d_out + 1", "gossip.d_out x 2"]),
        (
            json!({"gossip": {"seen_seconds": 5}}),
            vec!["gossip.history x gossip.heartbeat_millis", "(5000)"],
        ),
        (
            json!({"gossip": {"queues_bytes": "64KiB"}}),
            vec!["gossip.queue_messages_per_peer x 64 B"],
        ),
        (
            json!({"filter": {"queues_bytes": "64KiB"}}),
            vec!["filter.queue_messages_per_receiver x 64 B", "(512 KiB)"],
        ),
        (
            json!({"filter": {"ping_seconds": 900}}),
            vec!["filter.ping_seconds", "connections.idle_seconds"],
        ),
        (
            json!({"store": {"query_threads": 4}}),
            vec!["store.query_threads + 1", "store.index_connections"],
        ),
        (json!({"store": {"retention_bytes": "64MiB"}}), vec!["store.segment_bytes x 4"]),
        (
            json!({"store": {"retention_bytes": "64GiB", "segment_bytes": "4GiB"}}),
            vec!["store.segment_bytes", "at most"],
        ),
        (
            json!({"store": {"page_messages_max": 101}}),
            vec!["store.page_messages_max", "at most 100"],
        ),
        (json!({"http": {"body_bytes": "128KiB"}}), vec!["base64", "http.body_bytes"]),
        (json!({"http": {"cache_bytes": "16KiB"}}), vec!["gossip.topics x", "http.cache_bytes"]),
        (
            json!({"governor": {"refuse_pushes_percent": 84}}),
            vec!["governor.refuse_queries_percent", "governor.refuse_pushes_percent"],
        ),
    ] {
        let mut limits = Limits::preset("micro").unwrap();
        limits.apply_overrides(&overrides).unwrap();
        let text = limits.check().unwrap_err().to_string();
        assert!(names.iter().all(|name| text.contains(name)), "{names:?}: {text}");
    }
}

#[test]
fn contradictions_between_limits_of_other_nodes_services_are_named() {
    for (overrides, names) in [
        (
            json!({"client": {"resume_hours": 49}}),
            vec!["client.resume_hours", "store.retention_hours"],
        ),
        (
            json!({"sync": {"jitter_seconds": 3601}}),
            vec!["sync.jitter_seconds", "sync.range_seconds"],
        ),
        (json!({"sync": {"answer_bytes": "9MiB"}}), vec!["sync.answer_bytes", "at most"]),
        (
            json!({"roots": {"refresh_seconds": 90}}),
            vec!["roots.refresh_seconds", "roots.stale_seconds"],
        ),
        (json!({"roots": {"response_bytes": "2MiB"}}), vec!["roots.response_bytes", "1 MiB"]),
    ] {
        let mut limits = Limits::preset("micro").unwrap();
        limits.apply_overrides(&overrides).unwrap();
        let text = limits.check().unwrap_err().to_string();
        assert!(names.iter().all(|name| text.contains(name)), "{names:?}: {text}");
    }
}

#[test]
fn a_sum_above_the_budget_names_the_line_that_was_raised() {
    let mut limits = Limits::preset("micro").unwrap();
    limits.apply_overrides(&json!({"filter": {"queues_bytes": "24MiB"}})).unwrap();
    let text = limits.check().unwrap_err().to_string();
    assert!(text.contains("`push_queues` (24 MiB, 4 MiB by derivation)"), "{text}");
    limits
        .apply_overrides(&json!({"connections": {"connections": 128, "unread_bytes": "1MiB"}}))
        .unwrap();
    limits
        .apply_overrides(
            &json!({"gossip": {"seen_entries": 16_384, "ihave_ids_per_heartbeat": 100}}),
        )
        .unwrap();
    limits.apply_overrides(&json!({"process": {"page_cache_floor_bytes": "10MiB"}})).unwrap();
    limits.check().unwrap();
    assert_eq!(limits.ledger().unwrap().pool(pool::PUSH_QUEUES).unwrap().cap_bytes(), 24 * MIB);
}

proptest! {
    /// Whatever an operator writes, the answer is a table that checks or an error, never a panic;
    /// and what checks makes a ledger.
    #[test]
    fn any_override_is_answered(
        mib in 0_u64..8_000,
        changes in proptest::collection::vec((0_usize..200, any::<u64>(), 0_u32..64), 0..6),
    ) {
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
        let Value::Object(_) = limits.sheet().to_json(&limits) else { panic!("an object") };
    }

    /// Sizes that are not whole MiB are rounded down.
    #[test]
    fn odd_sizes_round_down(bytes in 64 * MIB..6 * GIB) {
        prop_assert_eq!(Limits::derive(bytes).unwrap(), Limits::derive(bytes - bytes % MIB).unwrap());
    }
}

#[test]
fn reference_page_of_limits_states_every_row() {
    let limits = Limits::derive(512 * MIB).unwrap();
    testing::reference::check_page(
        "limits.md",
        "thimble-relay",
        &memory_budget::reference(&limits),
    );
}
