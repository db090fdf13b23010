//! Chapter "HTTPS interface", section "Request: Query call", and the queries of the management
//! canister.

use candid::{Decode, Principal};
use ic_management_canister_types::{CanisterStatusResult, FetchCanisterLogsResult};

use testing::until_async;

use super::{
    fixture::*,
    harness::{self, management},
    program::*,
};

fn ints(program: Program, name: &str) -> Program {
    program.import(name).eight_bytes().append()
}

#[test]
fn what_a_query_changes_is_dropped() {
    run(async |world| {
        let canister = world.canister().await;
        let grow = program().import_of("stable64_grow", &[1]).drop_top();
        let what = grow.bytes(b"changed").keep().kept().reply();
        assert_eq!(canister.query(what.clone()).await.unwrap(), b"changed");
        assert_eq!(canister.composite(what.clone()).await.unwrap(), b"changed");
        assert_eq!(canister.replicated_query(what).await.unwrap(), b"changed");
        let state = program().kept().append();
        let state = ints(state, "stable64_size").import("msg_reply");
        assert_eq!(canister.query(state).await.unwrap(), [0; 8]);
    });
}

#[test]
fn a_query_sees_the_update_that_was_answered_before() {
    run(async |world| {
        let canister = world.canister().await;
        for round in 0..5u8 {
            canister.update(program().bytes(&[round]).keep().then(reply(b""))).await.unwrap();
            assert_eq!(canister.kept().await, [round]);
        }
    });
}

#[test]
fn an_update_method_cannot_be_queried() {
    run(async |world| {
        let canister = world.canister().await;
        assert_eq!(code(canister.ask(&world.agent, "update", reply(b"")).await), 5);
    });
}

#[test]
fn a_query_of_a_method_that_does_not_exist_is_an_error_of_the_canister() {
    run(async |world| {
        let canister = world.canister().await;
        assert_eq!(code(canister.ask(&world.agent, "no such", reply(b"")).await), 5);
    });
}

#[test]
fn a_query_of_an_empty_or_a_stopped_canister_is_an_error_of_the_canister() {
    run(async |world| {
        let empty = Universal { id: world.empty().await };
        assert_eq!(code(empty.query(reply(b"")).await), 5);
        let stopped = world.canister().await;
        world.about(stopped.id, "stop_canister").await.unwrap();
        assert_eq!(code(stopped.query(reply(b"")).await), 5);
    });
}

#[test]
fn a_query_that_runs_forever_is_stopped() {
    run(async |world| {
        let canister = world.canister().await;
        let forever = program().int(u64::MAX).repeat(program().int(1).drop_top());
        assert_eq!(code(canister.query(forever).await), 5);
    });
}

#[test]
fn the_answer_of_a_query_is_signed_by_a_node_of_the_subnet() {
    run(async |world| {
        let canister = world.canister().await;
        for what in [reply(b"answer"), reject("answer")] {
            // The agent looks up the node's key in the certified state, and verifies with it.
            let done = harness::query(&world.agent, canister.id, "query", what.encoded()).await;
            let told = outcome(done).unwrap_or_else(|reject| reject.text.into_bytes());
            assert_eq!(told, b"answer");
        }
    });
}

// Composite queries.

#[test]
fn a_composite_query_calls_queries_and_composite_queries() {
    run(async |world| {
        let [one, two, three] = world.canisters().await;
        let inner = Call::to(three.id, "query").doing(reply(b"from three"));
        let outer = Call::to(two.id, "composite").doing(program().call_must(inner));
        let told = one.composite(program().call_must(outer)).await.unwrap();
        assert_eq!(told, b"from three");
    });
}

#[test]
fn a_composite_query_cannot_call_update_methods() {
    run(async |world| {
        let [one, two] = world.canisters().await;
        let call = Call::to(two.id, "update").doing(reply(b""));
        assert_eq!(told_reject(one.composite(program().call_must(call)).await).0, 5);
    });
}

#[test]
fn the_caller_of_a_composite_querys_callee_is_the_canister() {
    run(async |world| {
        let [one, two] = world.canisters().await;
        let call = Call::to(two.id, "query").doing(program().blob("msg_caller").reply());
        let told = one.composite(program().call_must(call)).await.unwrap();
        assert_eq!(told, one.id.as_slice());
    });
}

#[test]
fn the_callbacks_of_a_composite_query_see_its_changes_and_all_are_dropped() {
    run(async |world| {
        let [one, two] = world.canisters().await;
        let second = Call::to(two.id, "query")
            .doing(reply(b""))
            .on_reply(program().keep_more(b"+second").kept().reply());
        let first = Call::to(two.id, "query")
            .doing(reply(b""))
            .on_reply(program().keep_more(b"+first").call_must(second));
        let what = program().bytes(b"method").keep().call_must(first);
        assert_eq!(one.composite(what).await.unwrap(), b"method+first+second");
        assert_eq!(one.kept().await, b"");
    });
}

#[test]
fn a_trap_in_a_callback_of_a_composite_query_rejects_it() {
    run(async |world| {
        let [one, two] = world.canisters().await;
        let call = Call::to(two.id, "query").doing(reply(b"")).on_reply(trap("here"));
        let refused = one.composite(program().call_must(call)).await.unwrap_err();
        assert_eq!(refused.code, 5);
        assert!(refused.text.contains("here"), "{}", refused.text);
    });
}

#[test]
fn a_reject_within_a_composite_query_reaches_the_reject_callback() {
    run(async |world| {
        let [one, two] = world.canisters().await;
        let call = Call::to(two.id, "query").doing(reject("no"));
        let told = told_reject(one.composite(program().call_must(call)).await);
        assert_eq!(told, (4, "no".to_owned()));
        let call = Call::to(two.id, "query").doing(trap("broken"));
        assert_eq!(told_reject(one.composite(program().call_must(call)).await).0, 5);
    });
}

#[test]
fn a_composite_query_that_calls_itself_forever_is_rejected() {
    run(async |world| {
        let canister = world.canister().await;
        let deeper = Call::to(canister.id, "composite").doing(program().kept().run());
        let what = program().bytes(&program().call_must(deeper).encoded()).keep();
        canister.update(what.then(reply(b""))).await.unwrap();
        let outcome = canister.composite(program().kept().run()).await;
        // One call of the chain is rejected; its caller gets that as a reply or a reject.
        let code = outcome.map_or_else(|reject| reject.code, |told| told_reject(Ok(told)).0);
        assert_eq!(code, 5);
    });
}

#[test]
fn a_call_of_a_composite_query_that_is_too_deep_is_rejected_to_its_caller() {
    run(async |world| {
        let canister = world.canister().await;
        let deeper = Call::to(canister.id, "composite")
            .doing(program().kept().run())
            .on_reject(reply(b"caught"));
        let what = program().bytes(&program().call_must(deeper).encoded()).keep();
        canister.update(what.then(reply(b""))).await.unwrap();
        assert_eq!(canister.composite(program().kept().run()).await.unwrap(), b"caught");
    });
}

#[test]
fn a_composite_query_without_an_answer_is_an_error_of_the_canister() {
    run(async |world| {
        let [one, two] = world.canisters().await;
        let call = Call::to(two.id, "query").doing(reply(b"")).on_reply(program());
        assert_eq!(code(one.composite(program().call_must(call)).await), 5);
    });
}

#[test]
fn only_the_root_of_a_composite_query_has_a_certificate_and_not_in_callbacks() {
    run(async |world| {
        let [one, two] = world.canisters().await;
        let present = || ints(program(), "data_certificate_present");
        let call = Call::to(two.id, "query").doing(present().import("msg_reply")).on_reply(
            program()
                .kept()
                .append()
                .blob("msg_arg_data")
                .append()
                .then(present())
                .import("msg_reply"),
        );
        let root = program().import("data_certificate_present").eight_bytes().keep();
        let told = one.composite(root.call_must(call)).await.unwrap();
        let told: Vec<_> = told.chunks(8).map(|part| part[0]).collect();
        assert_eq!(told, [1, 0, 0], "root, callee, callback");
    });
}

// The management canister.

async fn ask_management(agent: &ic_agent::Agent, canister: Principal, method: &str) -> Outcome {
    let call = agent.query(&management(), method).with_effective_canister_id(canister);
    outcome(call.with_arg(record(canister)).call().await)
}

#[test]
fn canister_status_may_be_queried_by_controllers_alone() {
    run(async |world| {
        let canister = world.canister().await;
        let told = ask_management(&world.agent, canister.id, "canister_status").await.unwrap();
        let told = Decode!(&told, CanisterStatusResult).unwrap();
        assert_eq!(told.settings.controllers, [world.agent.get_principal().unwrap()]);
        ask_management(&world.stranger, canister.id, "canister_status").await.unwrap_err();
    });
}

/// Calls, request and response bytes of queries.
async fn query_stats(world: &World, canister: Principal) -> [u64; 3] {
    let told = world.about(canister, "canister_status").await.unwrap();
    let stats = Decode!(&told, CanisterStatusResult).unwrap().query_stats;
    assert_eq!(stats.num_instructions_total > 0u8, stats.num_calls_total > 0u8, "{stats:?}");
    [stats.num_calls_total, stats.request_payload_bytes_total, stats.response_payload_bytes_total]
        .map(|figure| figure.0.try_into().unwrap())
}

// Promise: P9 - `query_stats` contain payload bytes, calls and instructions of every evaluated
//   query.
#[test]
fn query_stats_have_the_queries_that_were_evaluated_and_the_bytes_of_their_payloads() {
    run(async |world| {
        let [one, two] = world.canisters().await;
        let silent = world.canister().await;
        assert_eq!(query_stats(world, one.id).await, [0; 3]);
        let nested = reply(&[9; 30]);
        let compose = program().call_must(Call::to(two.id, "query").doing(nested.clone()));
        let trapped = trap("on purpose");
        let text = one.query(trapped.clone()).await.unwrap_err().text;
        assert!(text.contains("on purpose"), "{text}");
        let (long, refused) = (reply(&[7; 500]), reject("not now"));
        // The second may be answered with a reply that was kept.
        for _ in 0..2 {
            assert_eq!(one.query(long.clone()).await.unwrap(), [7; 500]);
        }
        one.query(refused.clone()).await.unwrap_err();
        assert_eq!(one.composite(compose.clone()).await.unwrap(), [9; 30]);
        // Not evaluated, and not a query.
        one.ask(&world.agent, "no such", reply(b"")).await.unwrap_err();
        one.update(reply(b"")).await.unwrap();
        silent.replicated_query(reply(b"")).await.unwrap();
        let asked = [trapped, long.clone(), long, refused, compose];
        let request: usize = asked.into_iter().map(|what| what.encoded().len()).sum();
        let response = text.len() + 2 * 500 + "not now".len() + 30;
        let expected = [5, request as u64, response as u64];
        until_async("the totals have every query", async || {
            query_stats(world, one.id).await[0] >= 5
        })
        .await;
        assert_eq!(query_stats(world, one.id).await, expected);
        let expected = [1, nested.encoded().len() as u64, 30];
        until_async("the totals have the call of the composite query", async || {
            query_stats(world, two.id).await[0] >= 1
        })
        .await;
        assert_eq!(query_stats(world, two.id).await, expected);
        assert_eq!(query_stats(world, silent.id).await, [0; 3]);
    });
}

#[test]
fn canister_status_may_be_asked_for_in_a_composite_query() {
    run(async |world| {
        let canister = world.canister().await;
        let call = Call::to(management(), "canister_status").argument(record(canister.id));
        let told = canister.composite(program().call_must(call)).await.unwrap();
        let told = Decode!(&told, CanisterStatusResult).unwrap();
        assert_eq!(told.settings.controllers, [world.agent.get_principal().unwrap()]);
    });
}

#[test]
fn a_composite_query_cannot_call_other_methods_of_the_management_canister() {
    run(async |world| {
        let canister = world.canister().await;
        for method in ["raw_rand", "stop_canister"] {
            let call = Call::to(management(), method).argument(record(canister.id));
            told_reject(canister.composite(program().call_must(call)).await);
        }
        assert_eq!(canister.update(reply(b"runs on")).await.unwrap(), b"runs on");
    });
}

#[test]
fn a_method_of_the_management_canister_that_is_no_query_cannot_be_queried() {
    run(async |world| {
        let canister = world.canister().await;
        ask_management(&world.agent, canister.id, "stop_canister").await.unwrap_err();
        assert_eq!(canister.update(reply(b"runs on")).await.unwrap(), b"runs on");
    });
}

#[test]
fn fetch_canister_logs_tells_controllers_what_was_printed_and_trapped() {
    run(async |world| {
        let canister = world.canister().await;
        let print = program().bytes(b"printed").split().import("debug_print").then(reply(b""));
        canister.update(print).await.unwrap();
        canister.update(trap("trapped")).await.unwrap_err();
        let method = "fetch_canister_logs";
        let told = ask_management(&world.agent, canister.id, method).await.unwrap();
        let records = Decode!(&told, FetchCanisterLogsResult).unwrap().canister_log_records;
        assert_eq!(records.len(), 2, "{records:?}");
        assert_eq!((records[0].idx, records[0].content.as_slice()), (0, b"printed".as_slice()));
        assert_eq!(records[1].idx, 1);
        let text = String::from_utf8_lossy(&records[1].content).into_owned();
        assert!(text.contains("trapped"), "{text}");
        ask_management(&world.stranger, canister.id, method).await.unwrap_err();
    });
}

#[test]
fn fetch_canister_logs_is_a_query_only() {
    run(async |world| {
        let canister = world.canister().await;
        world.about(canister.id, "fetch_canister_logs").await.unwrap_err();
        let call = Call::to(management(), "fetch_canister_logs").argument(record(canister.id));
        told_reject(canister.update(program().call_must(call)).await);
    });
}
