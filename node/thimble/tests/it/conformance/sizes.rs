//! Chapter "Sizes of messages": the largest argument, reply and call, and what one byte more gets.

use super::{
    fixture::*,
    http::{answer, call, identity, sealed, send},
    program::*,
};

/// Largest payload of a message (the public network's resource limits).
const LARGEST: u64 = 2 << 20;

/// Replies this number of zeros.
fn reply_of_size(bytes: u64) -> Program {
    program().int(bytes).room().reply()
}

/// A program of this many bytes that does nothing but answer.
fn padded(bytes: u64) -> Program {
    let around = program().bytes(b"").drop_top().then(reply(b"taken")).encoded().len() as u64;
    let padding = vec![0; usize::try_from(bytes - around).unwrap()];
    program().bytes(&padding).drop_top().then(reply(b"taken"))
}

#[test]
fn a_reply_has_at_most_2_mib() {
    run(async |world| {
        let canister = world.canister().await;
        let told = canister.update(reply_of_size(LARGEST)).await.unwrap();
        assert_eq!(told.len() as u64, LARGEST);
        assert_eq!(canister.query(reply_of_size(LARGEST)).await.unwrap().len() as u64, LARGEST);
        for refused in [
            canister.update(reply_of_size(LARGEST + 1)).await,
            canister.query(reply_of_size(LARGEST + 1)).await,
        ] {
            let refused = refused.unwrap_err();
            assert_eq!(refused.code, 5);
            assert!(refused.text.contains(&LARGEST.to_string()), "{}", refused.text);
        }
    });
}

#[test]
fn a_reply_is_the_sum_of_what_was_appended() {
    run(async |world| {
        let canister = world.canister().await;
        let half = || program().int(LARGEST / 2).room().append();
        let whole = half().then(half());
        let told = canister.update(whole.clone().import("msg_reply")).await.unwrap();
        assert_eq!(told.len() as u64, LARGEST);
        let more = whole.bytes(b"x").append().import("msg_reply");
        assert_eq!(code(canister.update(more).await), 5);
    });
}

#[test]
fn an_argument_of_a_user_has_at_most_2_mib_with_the_name_of_the_method() {
    run(async |world| {
        let canister = world.canister().await;
        let key = identity(1);
        let sender = ic_agent::Identity::sender(&key).unwrap();
        let name_bytes = "update".len() as u64;
        let content = call(sender, canister, &padded(LARGEST - name_bytes));
        let told = send(world, canister.id, 4, "call", &sealed(&key, content)).await;
        assert_eq!(answer(&told).status, "replied");
        for more in [1, 100_000] {
            let content = call(sender, canister, &padded(LARGEST - name_bytes + more));
            let (status, text) = send(world, canister.id, 4, "call", &sealed(&key, content)).await;
            let text = String::from_utf8_lossy(&text);
            assert_eq!(status, 413, "{text}");
            assert!(text.contains("message_payload_bytes") && text.contains(&LARGEST.to_string()));
        }
    });
}

#[test]
fn the_argument_of_a_call_has_at_most_2_mib() {
    run(async |world| {
        let [caller, callee] = world.canisters().await;
        let begun = || {
            let call = Call::to(callee.id, "query").on_reply(reply(b"answered"));
            program().begin(&call)
        };
        // Without a program in it that the callee could do: its empty answer shows that it came.
        let room = |bytes: u64| program().int(bytes).room().split().import("call_data_append");
        let rejected = |program: Program| program.import("call_perform").when(trap("not made"));
        let fits = LARGEST - "query".len() as u64;
        let outcome = caller.update(begun().then(rejected(room(fits)))).await;
        assert!(outcome.is_ok(), "{outcome:?}");
        let more = caller.update(begun().then(room(LARGEST + 1))).await.unwrap_err();
        assert_eq!(more.code, 5);
        assert!(more.text.contains(&LARGEST.to_string()), "{}", more.text);
        let twice = begun().then(room(LARGEST / 2 + 1)).then(room(LARGEST / 2));
        assert_eq!(code(caller.update(twice).await), 5);
    });
}

#[test]
fn a_longer_text_of_a_reject_is_cut_to_8_kib_and_one_beyond_2_mib_traps() {
    run(async |world| {
        let canister = world.canister().await;
        let rejecting = |bytes: u64| program().int(bytes).room().split().import("msg_reject");
        let told = canister.query(rejecting(100_000)).await.unwrap_err();
        assert_eq!((told.code, told.text.len()), (4, 8 << 10));
        let told = canister.query(rejecting(LARGEST + 1)).await.unwrap_err();
        assert_eq!(told.code, 5);
    });
}
