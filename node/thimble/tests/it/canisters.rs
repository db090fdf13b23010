//! Real canisters of four languages, deployed and called as a developer would.

use candid::{CandidType, Decode, Encode, Nat, Principal};
use ic_management_canister_types::{
    CanisterIdRecord, CanisterInstallMode, CanisterSettings, CanisterStatusResult,
    CanisterStatusType, EnvironmentVariable, UpgradeFlags, WasmMemoryPersistence,
};
use serde::Deserialize;

use crate::harness::*;
use testing::until_async;

/// Either integer the samples count with.
fn number(reply: &[u8]) -> u64 {
    Decode!(reply, u64).unwrap_or_else(|_| u64::try_from(Decode!(reply, Nat).unwrap().0).unwrap())
}

fn none() -> Vec<u8> {
    Encode!().unwrap()
}

// Promise: P10 - A Motoko canister in 64 bit counts, upgrades and survives a restart.
#[tokio::test]
async fn a_motoko_counter_in_64_bit_counts_upgrades_and_comes_back_after_a_restart() {
    motoko("motoko-counter64.wasm", Some(WasmMemoryPersistence::Keep)).await;
}

// Promise: P10 - A Motoko canister in 32 bit counts, upgrades and survives a restart.
#[tokio::test]
async fn a_motoko_counter_in_32_bit_counts_upgrades_and_comes_back_after_a_restart() {
    motoko("motoko-counter32.wasm", None).await;
}

async fn motoko(name: &str, persistence: Option<WasmMemoryPersistence>) {
    let mut node = Node::start().await;
    let agent = node.agent(1).await;
    let counter = deploy(&agent, name).await;
    for expected in 1..=3 {
        assert_eq!(number(&update(&agent, counter, "inc", none()).await.unwrap()), expected);
    }
    assert_eq!(number(&query(&agent, counter, "get", none()).await.unwrap()), 3);
    let greeting = query(&agent, counter, "greet", Encode!(&"Thimble").unwrap()).await.unwrap();
    assert!(Decode!(&greeting, String).unwrap().contains("Thimble"));
    let who = update(&agent, counter, "whoami", none()).await.unwrap();
    assert_eq!(Decode!(&who, Principal).unwrap(), agent.get_principal().unwrap());

    // A trap leaves nothing behind.
    let (code, text, _) = rejected(update(&agent, counter, "boom", none()).await.unwrap_err());
    assert_eq!(code, 5, "{text}");
    assert_eq!(number(&query(&agent, counter, "get", none()).await.unwrap()), 3);

    // An upgrade keeps the state.
    let flags = persistence.map(|persistence| UpgradeFlags {
        skip_pre_upgrade: None,
        wasm_memory_persistence: Some(persistence),
    });
    let module = std::fs::read(fixture(name)).unwrap();
    install(&agent, counter, CanisterInstallMode::Upgrade(flags), module, none()).await.unwrap();
    assert_eq!(number(&query(&agent, counter, "get", none()).await.unwrap()), 3);

    // One canister calls another.
    let other = deploy(&agent, name).await;
    let called = update(&agent, other, "callInc", Encode!(&counter).unwrap()).await.unwrap();
    assert_eq!(number(&called), 4);

    node.restart().await;
    let agent = node.agent(1).await;
    assert_eq!(number(&query(&agent, counter, "get", none()).await.unwrap()), 4);
    node.kill();
    node.launch().await;
    let agent = node.agent(1).await;
    assert_eq!(number(&update(&agent, counter, "inc", none()).await.unwrap()), 5);
}

// Promise: P10 - A C canister replies raw bytes.
#[tokio::test]
async fn a_c_canister_replies_raw_bytes() {
    let node = Node::start().await;
    let agent = node.agent(1).await;
    let counter = deploy(&agent, "counter-c.wasm").await;
    for expected in 1..=3u64 {
        assert_eq!(update(&agent, counter, "inc", vec![]).await.unwrap(), expected.to_le_bytes());
    }
    assert_eq!(query(&agent, counter, "get", vec![]).await.unwrap(), 3u64.to_le_bytes());
}

// Promise: P10 - A TypeScript canister of 3.5 MB installs in chunks.
#[tokio::test]
async fn a_typescript_canister_of_three_and_a_half_megabytes_installs_in_chunks() {
    let mut node = Node::start().await;
    let agent = node.agent(1).await;
    let canister = create(&agent).await;
    let module = std::fs::read(fixture("azle-hello.wasm.gz")).unwrap();
    install_in_chunks(&agent, canister, &module).await.unwrap();
    let greeting = query(&agent, canister, "greet", Encode!(&"Thimble").unwrap()).await.unwrap();
    assert!(Decode!(&greeting, String).unwrap().contains("Thimble"));
    assert_eq!(number(&update(&agent, canister, "inc", none()).await.unwrap()), 1);
    node.restart().await;
    let agent = node.agent(1).await;
    assert_eq!(number(&update(&agent, canister, "inc", none()).await.unwrap()), 2);
}

#[tokio::test]
async fn a_heartbeat_beats() {
    let node = Node::start().await;
    let agent = node.agent(1).await;
    let beater = deploy(&agent, "beater-c.wasm").await;
    until_async("it beat twice", async || {
        number(&query(&agent, beater, "beats", none()).await.unwrap()) >= 2
    })
    .await;
}

// Promise: P10 - A Rust canister uses calls, timers, certified data and cycles.
#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one sequence of steps")]
async fn a_rust_canister_calls_times_certifies_and_pays() {
    let node = Node::start().await;
    let agent = node.agent(1).await;
    let bench = deploy(&agent, "workbench.wasm").await;
    let other = deploy(&agent, "workbench.wasm").await;
    let third = deploy(&agent, "workbench.wasm").await;

    // Calls: one hop, a chain around a ring, a fan-out, a composite query, best effort.
    assert_eq!(
        number(&update(&agent, bench, "call_inc", Encode!(&other).unwrap()).await.unwrap()),
        1
    );
    let ring = vec![bench, other, third];
    assert_eq!(
        number(&update(&agent, bench, "chain", Encode!(&ring, &9u32).unwrap()).await.unwrap()),
        9
    );
    #[derive(CandidType, Deserialize, Debug)]
    struct Fanout {
        first_failure: String,
        replied: u64,
        rejected: u64,
        refused: u64,
    }
    for method in ["fanout", "fanout_bounded"] {
        let reply = update(&agent, bench, method, Encode!(&vec![other, third], &10u32).unwrap())
            .await
            .unwrap();
        let report = Decode!(&reply, Fanout).unwrap();
        assert_eq!((report.replied, report.rejected, report.refused), (20, 0, 0), "{report:?}");
        assert_eq!(report.first_failure, "");
    }
    assert_eq!(
        number(&query(&agent, bench, "composite_get", Encode!(&other).unwrap()).await.unwrap()),
        21
    );

    // A callback that traps is cleaned up after, and leaves nothing.
    rejected(
        update(&agent, bench, "call_trap_cleanup", Encode!(&other).unwrap()).await.unwrap_err(),
    );
    #[derive(CandidType, Deserialize)]
    struct Cleanup {
        cleanups: u64,
        leaked: u64,
    }
    let report =
        Decode!(&query(&agent, bench, "cleanup_report", none()).await.unwrap(), Cleanup).unwrap();
    assert_eq!((report.cleanups, report.leaked), (1, 0));

    // Randomness, timers, certified data.
    let first =
        Decode!(&update(&agent, bench, "raw_rand_via_mgmt", none()).await.unwrap(), Vec<u8>)
            .unwrap();
    let second =
        Decode!(&update(&agent, bench, "raw_rand_via_mgmt", none()).await.unwrap(), Vec<u8>)
            .unwrap();
    assert_eq!(first.len(), 32);
    assert_ne!(first, second);
    update(&agent, bench, "start_timer", Encode!(&1_000_000u64).unwrap()).await.unwrap();
    until_async("the timer fires", async || {
        number(&query(&agent, bench, "timer_count", none()).await.unwrap()) > 0
    })
    .await;
    update(&agent, bench, "set_certified", Encode!(&b"certified".to_vec()).unwrap()).await.unwrap();
    let reply = query(&agent, bench, "get_certified", none()).await.unwrap();
    let (value, certificate) = Decode!(&reply, Vec<u8>, Option<Vec<u8>>).unwrap();
    assert_eq!(value, b"certified");
    let certificate: ic_certification::Certificate =
        serde_cbor_2::from_slice(&certificate.expect("queries have a data certificate")).unwrap();
    agent.verify(&certificate, bench).unwrap();
    let path = [b"canister".as_slice(), bench.as_slice(), b"certified_data"];
    assert_eq!(
        certificate.tree.lookup_path(path),
        ic_certification::LookupResult::Found(b"certified".as_slice())
    );

    // Cycles move, and what is not accepted comes back.
    let sent = Nat::from(1_000_000u64);
    let accepted =
        update(&agent, bench, "send_cycles", Encode!(&other, &sent).unwrap()).await.unwrap();
    assert_eq!(Decode!(&accepted, Nat).unwrap(), sent);
    let back = update(&agent, bench, "send_cycles_refunded", Encode!(&other, &sent).unwrap())
        .await
        .unwrap();
    assert_eq!(Decode!(&back, Nat).unwrap(), sent);

    // The System API's data about the environment.
    let (code, text, _) = rejected(
        update(&agent, bench, "reject_with", Encode!(&"no thanks").unwrap()).await.unwrap_err(),
    );
    assert_eq!(code, 4, "{text}");
    assert!(text.contains("no thanks"), "{text}");
    let key = Decode!(&update(&agent, bench, "root_key", none()).await.unwrap(), Vec<u8>).unwrap();
    assert_eq!(key, agent.read_root_key());
    let refused = update(&agent, bench, "forbidden", none()).await.unwrap_err();
    rejected(refused);
}

// Promise: P1 - A message that writes beyond its limit traps with the limit in the reject text.
#[tokio::test]
async fn writes_are_bounded_per_message_and_the_limit_is_named() {
    let node = Node::start().await;
    let agent = node.agent(1).await;
    let bench = deploy(&agent, "workbench.wasm").await;
    update(&agent, bench, "stable_grow", Encode!(&1024u64).unwrap()).await.unwrap();
    let mib = |mib: u64| mib << 20;
    let fill = |len: u64| Encode!(&0u64, &len, &7u8).unwrap();
    update(&agent, bench, "stable_fill", fill(mib(24))).await.unwrap();
    let sum =
        query(&agent, bench, "stable_read_sum", Encode!(&0u64, &mib(24)).unwrap()).await.unwrap();
    assert_eq!(number(&sum), 7 * mib(24));
    let (code, text, _) =
        rejected(update(&agent, bench, "stable_fill", fill(mib(48))).await.unwrap_err());
    assert_eq!(code, 5, "{text}");
    assert!(
        text.contains("32") && text.to_lowercase().contains("stable"),
        "the limit is named: {text}"
    );
    // Nothing of the failed write is seen.
    let sum =
        query(&agent, bench, "stable_read_sum", Encode!(&mib(24), &mib(8)).unwrap()).await.unwrap();
    assert_eq!(number(&sum), 0);

    update(&agent, bench, "heap_fill", Encode!(&mib(24), &3u8).unwrap()).await.unwrap();
    let sum =
        query(&agent, bench, "heap_read_sum", Encode!(&0u64, &mib(24)).unwrap()).await.unwrap();
    assert_eq!(number(&sum), 3 * mib(24));
    let (code, text, _) = rejected(
        update(&agent, bench, "heap_fill", Encode!(&mib(96), &3u8).unwrap()).await.unwrap_err(),
    );
    assert_eq!(code, 5, "{text}");
    assert!(text.contains("64 MiB") && text.contains("Wasm memory"), "the limit is named: {text}");
    assert_eq!(number(&update(&agent, bench, "inc", none()).await.unwrap()), 1);
}

#[tokio::test]
async fn an_infinite_loop_ends_at_the_instruction_limit_and_the_node_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let mut node = Node::start_in(data, "512MiB", Some(folder)).await;
    // A small limit makes the story short; its value is what the text must name.
    node.reconfigure(
        "[limits.execution]\ninstructions_per_slice = 100000000\ninstructions_per_message = 300000000\ninstructions_per_query = 200000000\n",
    )
    .await;
    let agent = node.agent(1).await;
    let bench = deploy(&agent, "workbench.wasm").await;
    let (code, text, _) =
        rejected(update(&agent, bench, "loop_forever", none()).await.unwrap_err());
    assert_eq!(code, 5, "{text}");
    assert!(text.replace([',', '_'], "").contains("300000000"), "the limit is named: {text}");
    let (_, text, _) =
        rejected(query(&agent, bench, "loop_forever_query", none()).await.unwrap_err());
    assert!(text.replace([',', '_'], "").contains("200000000"), "the limit is named: {text}");
    assert_eq!(number(&update(&agent, bench, "inc", none()).await.unwrap()), 1);
}

// Promise: P10 - ic-agent 0.49 creates, installs, calls, queries and deletes a canister.
#[tokio::test]
async fn a_canister_is_managed_through_its_life() {
    let node = Node::start().await;
    let agent = node.agent(1).await;
    let stranger = node.agent(2).await;
    let variables = vec![EnvironmentVariable { name: "COLOUR".into(), value: "green".into() }];
    let settings =
        CanisterSettings { environment_variables: Some(variables), ..Default::default() };
    let canister = create_with(&agent, Some(settings)).await.unwrap();
    let record = Encode!(&CanisterIdRecord { canister_id: canister }).unwrap();

    // Empty: no methods. Not a controller: no management.
    rejected(query(&agent, canister, "get", none()).await.unwrap_err());
    rejected(manage(&stranger, canister, "canister_status", record.clone()).await.unwrap_err());

    let module = std::fs::read(fixture("workbench.wasm")).unwrap();
    install(&agent, canister, CanisterInstallMode::Install, module.clone(), none()).await.unwrap();
    let again =
        install(&agent, canister, CanisterInstallMode::Install, module.clone(), none()).await;
    rejected(again.unwrap_err());
    let colour = query(&agent, canister, "env_var", Encode!(&"COLOUR").unwrap()).await.unwrap();
    assert_eq!(Decode!(&colour, Option<String>).unwrap().as_deref(), Some("green"));

    update(&agent, canister, "set_text", Encode!(&"kept").unwrap()).await.unwrap();
    install(&agent, canister, CanisterInstallMode::Upgrade(None), module.clone(), none())
        .await
        .unwrap();
    let text = query(&agent, canister, "get_text", none()).await.unwrap();
    assert_eq!(Decode!(&text, String).unwrap(), "kept");
    install(&agent, canister, CanisterInstallMode::Reinstall, module, none()).await.unwrap();
    let text = query(&agent, canister, "get_text", none()).await.unwrap();
    assert_eq!(Decode!(&text, String).unwrap(), "");

    let status = || async {
        let reply = manage(&agent, canister, "canister_status", record.clone()).await.unwrap();
        Decode!(&reply, CanisterStatusResult).unwrap()
    };
    assert!(matches!(status().await.status, CanisterStatusType::Running));
    assert!(status().await.module_hash.is_some());
    manage(&agent, canister, "stop_canister", record.clone()).await.unwrap();
    assert!(matches!(status().await.status, CanisterStatusType::Stopped));
    rejected(update(&agent, canister, "inc", none()).await.unwrap_err());
    manage(&agent, canister, "start_canister", record.clone()).await.unwrap();
    update(&agent, canister, "inc", none()).await.unwrap();
    manage(&agent, canister, "uninstall_code", record.clone()).await.unwrap();
    assert!(status().await.module_hash.is_none());
    manage(&agent, canister, "stop_canister", record.clone()).await.unwrap();
    manage(&agent, canister, "delete_canister", record.clone()).await.unwrap();
    rejected(manage(&agent, canister, "canister_status", record.clone()).await.unwrap_err());
}
