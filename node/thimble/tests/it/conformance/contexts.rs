//! Chapter "Canister interface", section "Overview of imports": from where each function may be
//! called. One test per context, each of all functions; the expectation is the table in
//! [`super::imports`].
//!
//! Two contexts are not here. Nothing that the cleanup callback of a composite query does can be
//! seen from outside, and the universal canister has no method that a transform could be.

use std::cell::RefCell;

use candid::{Decode, Encode};
use ic_management_canister_types::{
    CanisterIdRecord, CanisterInstallMode, FetchCanisterLogsResult, UpdateSettingsArgs,
};

use super::{
    fixture::*,
    harness::{self, management},
    imports::{TABLE, permitted, probe},
    program::*,
};

/// All functions but `trap`, which does the same wherever it is called.
fn functions() -> Vec<&'static str> {
    TABLE.iter().map(|row| row.0).filter(|name| *name != "trap").collect()
}

fn allowed(context: &str) -> Vec<&'static str> {
    functions().into_iter().filter(|name| permitted(name, context)).collect()
}

fn forbidden(context: &str) -> Vec<&'static str> {
    functions().into_iter().filter(|name| !permitted(name, context)).collect()
}

/// Uses all functions that may be called in `context`, one after the other.
fn all_allowed(context: &str) -> Program {
    allowed(context).into_iter().fold(program(), |all, name| all.then(probe(name)))
}

/// The probe, and a reply unless it was one itself.
fn answering(name: &str) -> Program {
    match name {
        "msg_reply" | "msg_reject" => probe(name),
        _ => probe(name).then(reply(b"")),
    }
}

/// Tries each function alone, in a message that is answered.
async fn each(context: &str, ask: impl AsyncFn(&'static str) -> Outcome) {
    let all = functions().into_iter().map(|name| {
        let ask = &ask;
        async move { (name, ask(name).await) }
    });
    let mut differ = Differences::default();
    for (name, outcome) in futures::future::join_all(all).await {
        let trapped = matches!(&outcome, Err(reject) if reject.code == 5);
        if trapped == permitted(name, context) {
            differ.record(name, outcome);
        }
    }
    differ.none();
}

// Promise: P9 - An update method may call the System API functions that the specification allows.
#[test]
fn update_method_may_call_listed_functions_only() {
    run(async |world| {
        let canister = world.canister().await;
        each("U", async |name| canister.update(answering(name)).await).await;
    });
}

#[test]
fn query_method_in_replicated_mode_may_call_listed_functions_only() {
    run(async |world| {
        let canister = world.canister().await;
        each("RQ", async |name| canister.replicated_query(answering(name)).await).await;
    });
}

#[test]
fn query_method_in_non_replicated_mode_may_call_listed_functions_only() {
    run(async |world| {
        let canister = world.canister().await;
        each("NRQ", async |name| canister.query(answering(name)).await).await;
    });
}

#[test]
fn composite_query_method_may_call_listed_functions_only() {
    run(async |world| {
        let canister = world.canister().await;
        each("CQ", async |name| canister.composite(answering(name)).await).await;
    });
}

#[test]
fn reply_callback_may_call_listed_functions_only() {
    run(async |world| {
        let canister = world.canister().await;
        each("Ry", async |name| {
            let call = Call::to(canister.id, "update").doing(reply(b""));
            canister.update(program().call_must(call.on_reply(answering(name)))).await
        })
        .await;
    });
}

#[test]
fn reject_callback_may_call_listed_functions_only() {
    run(async |world| {
        let canister = world.canister().await;
        each("Rt", async |name| {
            let call = Call::to(canister.id, "update").doing(reject("no"));
            canister.update(program().call_must(call.on_reject(answering(name)))).await
        })
        .await;
    });
}

#[test]
fn reply_callback_of_a_composite_query_may_call_listed_functions_only() {
    run(async |world| {
        let canister = world.canister().await;
        each("CRy", async |name| {
            let call = Call::to(canister.id, "query").doing(reply(b""));
            canister.composite(program().call_must(call.on_reply(answering(name)))).await
        })
        .await;
    });
}

#[test]
fn reject_callback_of_a_composite_query_may_call_listed_functions_only() {
    run(async |world| {
        let canister = world.canister().await;
        each("CRt", async |name| {
            let call = Call::to(canister.id, "query").doing(reject("no"));
            canister.composite(program().call_must(call.on_reject(answering(name)))).await
        })
        .await;
    });
}

#[test]
fn cleanup_callback_may_call_listed_functions_only() {
    run(async |world| {
        let canister = world.canister().await;
        // Each cleanup that does not trap appends its function's place to what is kept.
        let all = functions().into_iter().enumerate().map(async |(place, name)| {
            let passed = probe(name).keep_more(&[u8::try_from(place).unwrap()]);
            let call = Call::to(canister.id, "update")
                .doing(reply(b""))
                .on_reply(trap("so that the cleanup runs"))
                .on_cleanup(passed);
            assert_eq!(code(canister.update(program().call_must(call)).await), 5, "{name}");
        });
        futures::future::join_all(all).await;
        let mut passed = canister.kept().await;
        passed.sort_unstable();
        let passed: Vec<_> = passed.into_iter().map(|place| functions()[place as usize]).collect();
        assert_eq!(passed, allowed("C"));
    });
}

#[test]
fn inspect_message_may_call_listed_functions_only() {
    run(async |world| {
        let canister = world.canister().await;
        // It does what the argument says, and accepts.
        let is_accept = probe("accept_message").encoded();
        let rest = program().blob("msg_arg_data").bytes(&is_accept).equal().int(0).equal();
        let inspect = program().blob("msg_arg_data").run();
        let inspect = inspect.then(rest.when(program().import("accept_message")));
        let set = program().hook(Hook::InspectMessage, inspect).then(reply(b""));
        canister.update(set).await.unwrap();
        let mut differ = Differences::default();
        let all =
            functions().into_iter().map(async |name| (name, canister.update(probe(name)).await));
        for (name, done) in futures::future::join_all(all).await {
            // An accepted message fails later, as the update method that it is, with a certified
            // reject.
            let accepted = done.as_ref().map_or_else(|reject| reject.certified, |_| true);
            if accepted != permitted(name, "F") {
                differ.record(name, done);
            }
        }
        differ.none();
    });
}

/// Installs with each probe as argument; whether that works is what is asked.
async fn installing(world: &World, context: &str, mode: CanisterInstallMode) {
    let canister = world.canister().await;
    let all = all_allowed(context).encoded();
    world.install(canister.id, mode, module(), all).await.unwrap();
    let differ = RefCell::new(Differences::default());
    in_lanes(world, &forbidden(context), async |canister, name| {
        let done = world.install(canister.id, mode, module(), probe(name).encoded()).await;
        if !matches!(&done, Err(reject) if reject.code == 5) {
            differ.borrow_mut().record(name, done);
        }
    })
    .await;
    differ.into_inner().none();
}

#[test]
fn init_may_call_listed_functions_only() {
    run(async |world| installing(world, "I", CanisterInstallMode::Reinstall).await);
}

#[test]
fn post_upgrade_may_call_listed_functions_only() {
    run(async |world| installing(world, "I", CanisterInstallMode::Upgrade(None)).await);
}

#[test]
fn pre_upgrade_may_call_listed_functions_only() {
    run(async |world| {
        let set = |what: Program| program().hook(Hook::PreUpgrade, what).then(reply(b""));
        let mode = CanisterInstallMode::Upgrade(None);
        let canister = world.canister().await;
        canister.update(set(all_allowed("G"))).await.unwrap();
        world.install(canister.id, mode, module(), vec![]).await.unwrap();
        let differ = RefCell::new(Differences::default());
        in_lanes(world, &forbidden("G"), async |canister, name| {
            canister.update(set(probe(name))).await.unwrap();
            let done = world.install(canister.id, mode, module(), vec![]).await;
            if !matches!(&done, Err(reject) if reject.code == 5) {
                differ.borrow_mut().record(name, done);
            }
        })
        .await;
        differ.into_inner().none();
    });
}

/// How many records the canister's log has had: a task that traps leaves one.
async fn logged(world: &World, canister: Universal) -> u64 {
    let argument = Encode!(&CanisterIdRecord { canister_id: canister.id }).unwrap();
    let reply = world
        .agent
        .query(&management(), "fetch_canister_logs")
        .with_effective_canister_id(canister.id)
        .with_arg(argument)
        .call()
        .await
        .unwrap();
    let records = Decode!(&reply, FetchCanisterLogsResult).unwrap().canister_log_records;
    records.last().map_or(0, |record| record.idx + 1)
}

async fn logs_more(world: &World, canister: Universal, before: u64, name: &str) {
    testing::until_async(&format!("the task that uses {name} traps"), async || {
        logged(world, canister).await > before
    })
    .await;
}

#[test]
fn global_timer_may_call_listed_functions_only() {
    run(async |world| {
        let set = |what: Program| {
            let set = program().hook(Hook::GlobalTimer, what.bytes(b"passed").keep());
            set.import_of("global_timer_set", &[1]).drop_top().then(reply(b""))
        };
        let canister = world.canister().await;
        canister.update(set(all_allowed("T"))).await.unwrap();
        canister.keeps(b"passed").await;
        in_lanes(world, &forbidden("T"), async |canister, name| {
            let before = logged(world, canister).await;
            canister.update(set(probe(name))).await.unwrap();
            logs_more(world, canister, before, name).await;
            assert_eq!(canister.kept().await, b"", "{name}");
        })
        .await;
    });
}

/// What of the forbidden is tried in the other two tasks.
const SAMPLE: [&str; 3] = ["msg_reply", "msg_arg_data_size", "msg_caller_info_data_size"];

#[test]
fn heartbeat_may_call_listed_functions_only() {
    run(async |world| {
        let heart = || std::fs::read(harness::fixture("universal-c-heartbeat.wasm")).unwrap();
        let set = |what: Program| program().hook(Hook::Heartbeat, what.bytes(b"passed").keep());
        let canister = world.canister().await;
        let mode = CanisterInstallMode::Reinstall;
        let once = program().kept().bytes(b"passed").equal().int(0).equal();
        let all = once.when(all_allowed("T"));
        world.install(canister.id, mode, heart(), set(all).encoded()).await.unwrap();
        canister.keeps(b"passed").await;
        world.about(canister.id, "stop_canister").await.unwrap();
        for name in SAMPLE {
            let canister = world.canister().await;
            let argument = set(probe(name)).encoded();
            world.install(canister.id, mode, heart(), argument).await.unwrap();
            logs_more(world, canister, 0, name).await;
            assert_eq!(canister.kept().await, b"", "{name}");
            world.about(canister.id, "stop_canister").await.unwrap();
        }
    });
}

#[test]
fn on_low_wasm_memory_hook_may_call_listed_functions_only() {
    run(async |world| {
        let mut cases = vec![("all", all_allowed("T"))];
        cases.extend(SAMPLE.map(|name| (name, probe(name))));
        for (name, what) in cases {
            let canister = world.canister().await;
            let mut settings = settings();
            settings.wasm_memory_limit = Some((100u64 << 16).into());
            settings.wasm_memory_threshold = Some((70u64 << 16).into());
            let arguments = UpdateSettingsArgs {
                canister_id: canister.id,
                settings,
                sender_canister_version: None,
            };
            let arguments = Encode!(&arguments).unwrap();
            world.manage(canister.id, "update_settings", arguments).await.unwrap();
            let set = program().hook(Hook::LowMemory, what.bytes(b"passed").keep());
            let set = set.int(30).heap_grow().drop_top().then(reply(b""));
            canister.update(set).await.unwrap();
            if name == "all" {
                canister.keeps(b"passed").await;
            } else {
                logs_more(world, canister, 0, name).await;
                assert_eq!(canister.kept().await, b"", "{name}");
            }
        }
    });
}

/// A module whose start function does that with these functions, with zeros for arguments.
fn starting(names: &[&str]) -> Vec<u8> {
    let kind = |letter: char| if letter == 'l' { "i64" } else { "i32" };
    let (mut imports, mut calls) = (String::new(), String::new());
    for name in names {
        let (_, parameters, result, _) = TABLE[usize::from(super::imports::number(name))];
        let types: Vec<_> = parameters.chars().map(kind).collect();
        let result_type = result.chars().map(kind).map(|kind| format!("(result {kind})"));
        let result_type: String = result_type.collect();
        imports += &format!(
            "(import \"ic0\" \"{name}\" (func ${name} (param {}) {result_type}))\n",
            types.join(" ")
        );
        for kind in types {
            calls += &format!("({kind}.const 0)");
        }
        calls += &format!("(call ${name})");
        if !result.is_empty() {
            calls += "(drop)";
        }
        calls.push('\n');
    }
    let text = format!("(module {imports} (memory 1) (func $start {calls}) (start $start))");
    wat::parse_str(text).unwrap()
}

#[test]
fn start_function_may_call_listed_functions_only() {
    run(async |world| {
        let mode = CanisterInstallMode::Reinstall;
        let canister = world.canister().await;
        world.install(canister.id, mode, starting(&allowed("s")), vec![]).await.unwrap();
        let differ = RefCell::new(Differences::default());
        in_lanes(world, &forbidden("s"), async |canister, name| {
            let done = world.install(canister.id, mode, starting(&[name]), vec![]).await;
            if !matches!(&done, Err(reject) if reject.code == 5) {
                differ.borrow_mut().record(name, done);
            }
        })
        .await;
        differ.into_inner().none();
    });
}

#[test]
fn trap_traps_in_every_context_with_an_answer() {
    run(async |world| {
        let canister = world.canister().await;
        let text = "from everywhere";
        let from = |method: &str, callee: Program| {
            let call = Call::to(canister.id, method).doing(callee);
            program().call_must(call.on_reply(trap(text)).on_reject(trap(text)))
        };
        for done in [
            canister.update(trap(text)).await,
            canister.replicated_query(trap(text)).await,
            canister.query(trap(text)).await,
            canister.composite(trap(text)).await,
            canister.update(from("update", reply(b""))).await,
            canister.update(from("update", reject(""))).await,
            canister.composite(from("query", reply(b""))).await,
            canister.composite(from("query", reject(""))).await,
        ] {
            let refused = done.unwrap_err();
            assert_eq!(refused.code, 5);
            assert!(refused.text.contains(text), "{}", refused.text);
        }
    });
}
