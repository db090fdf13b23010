//! Chapter "Canister interface", section "Cycles", and what the management canister does with them.

use candid::{CandidType, Decode, Encode, Nat, Principal};
use ic_management_canister_types::{
    CanisterMetricsResult, CanisterSettings, CyclesConsumed,
    ProvisionalCreateCanisterWithCyclesArgs, ProvisionalTopUpCanisterArgs, UpdateSettingsArgs,
};

use super::{
    fixture::*,
    harness::{create_for, management},
    management::status,
    program::*,
};

const MANY: u128 = 1_000_000_000_000;
const ABOVE_64_BIT: u128 = 1 << 65;

/// The amounts of a reply.
#[track_caller]
fn amounts(outcome: Outcome) -> Vec<u128> {
    let bytes = outcome.unwrap();
    bytes.chunks_exact(16).map(|part| u128::from_le_bytes(part.try_into().unwrap())).collect()
}

/// Appends the amount that the function writes to the reply.
fn append(program: Program, name: &str, arguments: &[u64]) -> Program {
    program.amount(name, arguments).append()
}

fn halves(amount: u128) -> [u64; 2] {
    [(amount >> 64) as u64, amount as u64]
}

/// Accepts up to so much and appends what it got to the reply.
fn accept(program: Program, amount: u128) -> Program {
    append(program, "msg_cycles_accept128", &halves(amount))
}

/// A universal canister with this number of cycles.
async fn with_cycles(world: &World, amount: u128) -> Universal {
    let id = create_for(&world.agent, amount).await;
    let mode = ic_management_canister_types::CanisterInstallMode::Install;
    world.install(id, mode, module(), vec![]).await.unwrap();
    Universal { id }
}

async fn balance(world: &World, canister: Principal) -> u128 {
    status(world, canister).await.cycles.0.try_into().unwrap()
}

#[test]
fn a_provisional_canister_has_the_cycles_that_were_asked_for() {
    run(async |world| {
        let arguments = ProvisionalCreateCanisterWithCyclesArgs {
            amount: Some(Nat::from(123 * MANY)),
            ..Default::default()
        };
        let arguments = Encode!(&arguments).unwrap();
        let method = "provisional_create_canister_with_cycles";
        let reply = world
            .agent
            .update(&management(), method)
            .with_effective_canister_id(management())
            .with_arg(arguments)
            .call_and_wait()
            .await
            .unwrap();
        let made = candid::decode_one::<ic_management_canister_types::CanisterIdRecord>(&reply);
        let has = balance(world, made.unwrap().canister_id).await;
        assert!(has <= 123 * MANY && has > 122 * MANY, "{has}");
    });
}

#[test]
fn provisional_top_up_adds_the_amount() {
    run(async |world| {
        let canister = world.canister().await;
        let before = balance(world, canister.id).await;
        let arguments = ProvisionalTopUpCanisterArgs {
            canister_id: canister.id,
            amount: Nat::from(1000 * MANY),
        };
        let arguments = Encode!(&arguments).unwrap();
        world.manage(canister.id, "provisional_top_up_canister", arguments).await.unwrap();
        let added = balance(world, canister.id).await - before;
        assert!(added > 999 * MANY && added <= 1000 * MANY, "{added}");
    });
}

#[test]
fn the_balance_that_a_canister_sees_is_at_most_that_of_its_status() {
    run(async |world| {
        let canister = world.canister().await;
        let all = balance(world, canister.id).await;
        let what = append(program(), "canister_cycle_balance128", &[]);
        let what = append(what, "canister_liquid_cycle_balance128", &[]).import("msg_reply");
        let told = amounts(canister.query(what).await);
        assert!(told[0] <= all && told[0] > all - MANY, "{told:?} of {all}");
        assert!(told[1] <= told[0] && told[1] > 0, "{told:?}");
    });
}

#[test]
fn the_balance_in_64_bit_is_that_in_128() {
    run(async |world| {
        let canister = world.canister().await;
        let what = program().import("canister_cycle_balance").reply_int();
        let narrow = number(canister.query(what).await);
        let what = program().amount("canister_cycle_balance128", &[]).reply();
        let wide = number(canister.query(what).await);
        // Between the two the canister may have paid for its memory.
        assert!(narrow.abs_diff(wide) < MANY / 1000, "{narrow} {wide}");
    });
}

#[test]
fn a_higher_freezing_threshold_leaves_less_liquid() {
    run(async |world| {
        let canister = world.canister().await;
        let liquid = || program().amount("canister_liquid_cycle_balance128", &[]).reply();
        let before = number(canister.query(liquid()).await);
        let settings = CanisterSettings {
            freezing_threshold: Some(Nat::from(2_592_000u64 * 100)),
            ..Default::default()
        };
        change(world, canister.id, settings).await;
        let after = number(canister.query(liquid()).await);
        assert!(after < before, "{after} {before}");
    });
}

async fn change(world: &World, canister_id: Principal, settings: CanisterSettings) {
    let arguments = UpdateSettingsArgs { canister_id, settings, sender_canister_version: None };
    let arguments = Encode!(&arguments).unwrap();
    world.manage(canister_id, "update_settings", arguments).await.unwrap();
}

// Cycles of a call.

#[test]
fn a_message_of_a_user_brings_no_cycles() {
    run(async |world| {
        let canister = world.canister().await;
        let what = append(program(), "msg_cycles_available128", &[]);
        let what = accept(what, MANY).import("msg_reply");
        assert_eq!(amounts(canister.update(what).await), [0, 0]);
    });
}

// Promise: P9 - Accepted cycles move to the callee, and the rest is refunded.
#[test]
fn a_callee_accepts_at_most_what_it_asks_for_and_the_rest_is_refunded() {
    run(async |world| {
        let [caller, callee] = world.canisters().await;
        let taking = append(program(), "msg_cycles_available128", &[]);
        let taking = append(accept(taking, 300), "msg_cycles_available128", &[]);
        let taking = accept(taking, 100).import("msg_reply");
        let replied = program().blob("msg_arg_data").append();
        let replied = append(replied, "msg_cycles_refunded128", &[]).import("msg_reply");
        let call = Call::to(callee.id, "update").doing(taking).cycles(1000).on_reply(replied);
        let told = amounts(caller.update(program().call_must(call)).await);
        assert_eq!(told, [1000, 300, 700, 100, 600]);
    });
}

#[test]
fn a_callee_accepts_no_more_than_there_is() {
    run(async |world| {
        let [caller, callee] = world.canisters().await;
        let taking = accept(accept(program(), u128::MAX), 1).import("msg_reply");
        let call = Call::to(callee.id, "update").doing(taking).cycles(1000);
        assert_eq!(amounts(caller.update(program().call_must(call)).await), [1000, 0]);
    });
}

#[test]
fn the_64_bit_functions_of_a_call_do_the_same() {
    run(async |world| {
        let [caller, callee] = world.canisters().await;
        let next = |program: Program, name: &str, arguments: &[u64]| {
            program.import_of(name, arguments).eight_bytes().append()
        };
        let taking = next(program(), "msg_cycles_available", &[]);
        let taking = next(taking, "msg_cycles_accept", &[300]);
        let taking = next(taking, "msg_cycles_available", &[]).import("msg_reply");
        let replied = program().blob("msg_arg_data").append();
        let replied = next(replied, "msg_cycles_refunded", &[]).import("msg_reply");
        let call = Call::to(callee.id, "update").doing(taking).on_reply(replied);
        let what = program().begin(&call).bytes(&call.argument).split().import("call_data_append");
        let what = what.import_of("call_cycles_add", &[600]).import_of("call_cycles_add", &[400]);
        let told = caller.update(what.import("call_perform").drop_top()).await.unwrap();
        let told: Vec<_> =
            told.chunks(8).map(|part| u64::from_le_bytes(part.try_into().unwrap())).collect();
        assert_eq!(told, [1000, 300, 700, 700]);
    });
}

#[test]
fn accepted_cycles_are_added_to_the_balance_at_once() {
    run(async |world| {
        let [caller, callee] = world.canisters().await;
        let taking = append(program(), "canister_cycle_balance128", &[]);
        let taking = accept(taking, MANY);
        let taking = append(taking, "canister_cycle_balance128", &[]).import("msg_reply");
        let call = Call::to(callee.id, "update").doing(taking).cycles(MANY);
        let told = amounts(caller.update(program().call_must(call)).await);
        assert_eq!(told[2], told[0] + MANY);
    });
}

#[test]
fn after_the_response_no_cycles_are_available() {
    run(async |world| {
        let [caller, callee] = world.canisters().await;
        let late = program().amount("msg_cycles_available128", &[]);
        let late = late.amount("msg_cycles_accept128", &halves(10)).concat().keep();
        let refund = program().amount("msg_cycles_refunded128", &[]).reply();
        for answer in [reply(b""), reject("")] {
            let call = Call::to(callee.id, "update")
                .doing(answer.then(late.clone()))
                .cycles(1000)
                .on_reply(refund.clone())
                .on_reject(refund.clone());
            assert_eq!(number(caller.update(program().call_must(call)).await), 1000);
            assert_eq!(callee.kept().await, [0; 32]);
        }
    });
}

#[test]
fn a_callee_that_traps_or_is_not_there_leaves_all_cycles() {
    run(async |world| {
        let [caller, callee] = world.canisters().await;
        let refund = program().amount("msg_cycles_refunded128", &[]).reply();
        let taking = accept(program(), 500).then(trap("after accepting"));
        let nobody = Principal::from_slice(&[0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 1, 1]);
        for call in [
            Call::to(callee.id, "update").doing(taking),
            Call::to(callee.id, "no such method"),
            Call::to(nobody, "update"),
            Call::to(management(), "no such method"),
        ] {
            let call = call.cycles(1000).on_reject(refund.clone());
            assert_eq!(number(caller.update(program().call_must(call)).await), 1000);
        }
    });
}

#[test]
fn cycles_may_be_accepted_in_a_callback_before_the_response() {
    run(async |world| {
        let [caller, callee, third] = world.canisters().await;
        let later = accept(program(), 400).import("msg_reply");
        let between = Call::to(third.id, "update").doing(reply(b"")).on_reply(later);
        let replied = program().blob("msg_arg_data").append();
        let replied = append(replied, "msg_cycles_refunded128", &[]).import("msg_reply");
        let call = Call::to(callee.id, "update")
            .doing(program().call_must(between))
            .cycles(1000)
            .on_reply(replied);
        assert_eq!(amounts(caller.update(program().call_must(call)).await), [400, 600]);
    });
}

#[test]
fn call_cycles_add_takes_from_the_balance_at_once_and_call_new_gives_back() {
    run(async |world| {
        let canister = world.canister().await;
        let call = Call::to(management(), "raw_rand");
        let balance = |program: Program| append(program, "canister_cycle_balance128", &[]);
        let what = balance(program().begin(&call));
        let what = balance(what.import_of("call_cycles_add128", &halves(MANY)));
        let what = balance(what.import_of("call_cycles_add", &[1000]));
        let what = balance(what.begin(&call)).import("msg_reply");
        let told = amounts(canister.update(what).await);
        assert_eq!(told[1], told[0] - MANY);
        assert_eq!(told[2], told[1] - 1000);
        assert_eq!(told[3], told[0]);
    });
}

#[test]
fn a_call_that_is_not_performed_gives_its_cycles_back() {
    run(async |world| {
        let canister = world.canister().await;
        let before = balance(world, canister.id).await;
        let what = program().begin(&Call::to(management(), "raw_rand"));
        let what = what.import_of("call_cycles_add128", &halves(50 * MANY)).then(reply(b""));
        canister.update(what).await.unwrap();
        let after = balance(world, canister.id).await;
        assert!(after > before - MANY, "{after} of {before}");
    });
}

#[test]
fn more_than_the_liquid_balance_cannot_be_added_to_a_call() {
    run(async |world| {
        let canister = world.canister().await;
        let begun = || program().begin(&Call::to(management(), "raw_rand"));
        let too_much = begun().import_of("call_cycles_add128", &[1 << 40, 0]).then(reply(b""));
        assert_eq!(code(canister.update(too_much).await), 5);
        let too_much = begun().import_of("call_cycles_add", &[u64::MAX]).then(reply(b""));
        assert_eq!(code(canister.update(too_much).await), 5);
    });
}

#[test]
fn call_perform_fails_with_2_when_the_canister_could_not_pay_for_it() {
    run(async |world| {
        let canister = world.canister().await;
        // All but a thousand of what is liquid: the call itself costs more.
        let balance = |program: Program| append(program, "canister_cycle_balance128", &[]);
        let what = balance(program());
        let liquid = |program: Program| {
            program
                .amount("canister_liquid_cycle_balance128", &[])
                .integer()
                .int(1000u64.wrapping_neg())
        };
        let what = liquid(what.begin(&Call::to(management(), "raw_rand"))).add();
        let what = what.import("call_cycles_add").import("call_perform");
        let what = balance(what.eight_bytes().bytes(&[0; 8]).concat().append()).import("msg_reply");
        let told = amounts(canister.update(what).await);
        assert_eq!(told[1], 2);
        assert_eq!(told[2], told[0], "the cycles came back");
    });
}

#[test]
fn the_64_bit_functions_trap_on_larger_amounts() {
    run(async |world| {
        let rich = with_cycles(world, 4 * ABOVE_64_BIT).await;
        let callee = world.canister().await;
        let what = program().import("canister_cycle_balance").reply_int();
        assert_eq!(code(rich.update(what).await), 5);
        // Available to the callee, and refunded to the caller.
        let asked = program().import("msg_cycles_available").reply_int();
        let call = Call::to(callee.id, "update").cycles(ABOVE_64_BIT);
        let told = told_reject(rich.update(program().call_must(call.clone().doing(asked))).await);
        assert_eq!(told.0, 5, "{}", told.1);
        let refund = program().import("msg_cycles_refunded").reply_int();
        let call = call.doing(reply(b"")).on_reply(refund);
        assert_eq!(code(rich.update(program().call_must(call)).await), 5);
        let wide = program().amount("msg_cycles_refunded128", &[]).reply();
        let call = Call::to(callee.id, "update").cycles(ABOVE_64_BIT).doing(reply(b""));
        let told = number(rich.update(program().call_must(call.on_reply(wide))).await);
        assert_eq!(told, ABOVE_64_BIT);
    });
}

// Burning, depositing, freezing.

#[test]
fn cycles_burn_burns_the_amount_and_says_so() {
    run(async |world| {
        let canister = world.canister().await;
        let what = append(program(), "canister_cycle_balance128", &[]);
        let what = append(what, "cycles_burn128", &halves(10 * MANY));
        let what = append(what, "canister_cycle_balance128", &[]).import("msg_reply");
        let told = amounts(canister.update(what).await);
        assert_eq!(told[1], 10 * MANY);
        assert_eq!(told[2], told[0] - 10 * MANY);
    });
}

#[test]
fn cycles_burn_burns_no_more_than_what_is_liquid() {
    run(async |world| {
        let canister = world.canister().await;
        let what = append(program(), "canister_liquid_cycle_balance128", &[]);
        let what = append(what, "cycles_burn128", &[u64::MAX, u64::MAX]);
        let what = append(what, "canister_liquid_cycle_balance128", &[]).import("msg_reply");
        let told = amounts(canister.update(what).await);
        assert_eq!(told[1], told[0]);
        assert_eq!(told[2], 0);
    });
}

#[test]
fn deposit_cycles_adds_the_cycles_of_the_call_to_the_canister_named() {
    run(async |world| {
        let [caller, other] = world.canisters().await;
        let before = balance(world, other.id).await;
        let refund = program().amount("msg_cycles_refunded128", &[]).reply();
        let call = Call::to(management(), "deposit_cycles")
            .argument(record(other.id))
            .cycles(20 * MANY)
            .on_reply(refund);
        assert_eq!(number(caller.update(program().call_must(call)).await), 0);
        let added = balance(world, other.id).await - before;
        assert!(added > 19 * MANY && added <= 20 * MANY, "{added}");
    });
}

#[test]
fn a_frozen_canister_rejects_calls_as_a_passing_error_until_it_is_thawed() {
    run(async |world| {
        let [canister, caller] = world.canisters().await;
        let freezing = |seconds: u64| CanisterSettings {
            freezing_threshold: Some(Nat::from(seconds)),
            ..Default::default()
        };
        change(world, canister.id, freezing(u64::MAX)).await;
        assert_eq!(code(canister.update(reply(b"")).await), 2);
        assert_eq!(code(canister.query(reply(b"")).await), 2);
        let call = Call::to(canister.id, "update").doing(reply(b""));
        assert_eq!(told_reject(caller.update(program().call_must(call)).await).0, 2);
        change(world, canister.id, freezing(0)).await;
        assert_eq!(canister.update(reply(b"thawed")).await.unwrap(), b"thawed");
    });
}

#[derive(CandidType)]
struct Minimum {
    minimum_incoming_canister_call_cycles: Option<Nat>,
}

#[derive(CandidType)]
struct ChangeMinimum {
    canister_id: Principal,
    settings: Minimum,
}

#[test]
fn a_call_with_less_than_the_callees_minimum_is_rejected_and_refunded() {
    run(async |world| {
        let [caller, callee] = world.canisters().await;
        let minimum_incoming_canister_call_cycles = Some(Nat::from(1000u32));
        let arguments = ChangeMinimum {
            canister_id: callee.id,
            settings: Minimum { minimum_incoming_canister_call_cycles },
        };
        let arguments = Encode!(&arguments).unwrap();
        world.manage(callee.id, "update_settings", arguments).await.unwrap();
        let call = |cycles| Call::to(callee.id, "update").doing(reply(b"served")).cycles(cycles);
        let refused = program().import("msg_reject_code").eight_bytes().bytes(&[0; 8]).concat();
        let refused = append(refused.append(), "msg_cycles_refunded128", &[]).import("msg_reply");
        let what = program().call_must(call(999).on_reject(refused));
        assert_eq!(amounts(caller.update(what).await), [5, 999]);
        assert_eq!(caller.update(program().call_must(call(1000))).await.unwrap(), b"served");
        // Neither users nor the canister itself need any.
        assert_eq!(callee.update(reply(b"served")).await.unwrap(), b"served");
        assert_eq!(callee.update(program().call_must(call(0))).await.unwrap(), b"served");
    });
}

#[test]
fn canister_metrics_tell_what_was_spent_on_what() {
    run(async |world| {
        let canister = world.canister().await;
        let spent = async || {
            let told = world.about(canister.id, "canister_metrics").await.unwrap();
            Decode!(&told, CanisterMetricsResult).unwrap().cycles_consumed
        };
        let before = spent().await;
        let burn = append(program(), "cycles_burn128", &halves(MANY)).import("msg_reply");
        assert_eq!(amounts(canister.update(burn).await), [MANY]);
        let call = Call::to(world.canister().await.id, "query").doing(reply(b""));
        canister.update(program().call_must(call)).await.unwrap();
        let after = spent().await;
        assert_eq!(after.burned_cycles, before.burned_cycles.clone() + MANY);
        assert!(after.instructions > before.instructions);
        assert!(after.ingress_induction > before.ingress_induction);
        let transmitted = |of: &CyclesConsumed| of.request_and_response_transmission.clone();
        assert!(transmitted(&after) > transmitted(&before));
        assert_eq!(after.uninstall, Nat::from(0u8));
    });
}
