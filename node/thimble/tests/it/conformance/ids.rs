//! Chapter "Overview", section "Principals", and the ids that canisters get.

use candid::{Encode, Principal};
use ic_management_canister_types::ProvisionalCreateCanisterWithCyclesArgs;

use super::{fixture::*, harness::management, program::*};

async fn create_at(world: &World, specified_id: Principal) -> Outcome {
    let arguments = ProvisionalCreateCanisterWithCyclesArgs {
        specified_id: Some(specified_id),
        ..Default::default()
    };
    let call = world.agent.update(&management(), "provisional_create_canister_with_cycles");
    let call = call.with_effective_canister_id(specified_id);
    outcome(call.with_arg(Encode!(&arguments).unwrap()).call_and_wait().await)
}

#[test]
fn the_management_canister_is_the_empty_principal() {
    run(async |world| {
        let canister = world.canister().await;
        let empty = Principal::from_slice(&[]);
        assert_eq!(empty.to_text(), "aaaaa-aa");
        let call = Call::to(empty, "raw_rand").argument(Encode!().unwrap());
        let told = canister.update(program().call_must(call)).await.unwrap();
        assert!(told.starts_with(b"DIDL"));
    });
}

#[test]
fn the_id_of_an_opaque_canister_ends_with_1_and_is_no_two_canisters() {
    run(async |world| {
        let canisters: [Universal; 4] = world.canisters().await;
        for canister in canisters {
            let bytes = canister.id.as_slice();
            assert_eq!((bytes.len(), bytes.last()), (10, Some(&1)), "{}", canister.id);
        }
        let mut ids = canisters.map(|canister| canister.id).to_vec();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 4);
    });
}

#[test]
fn a_users_id_is_the_hash_of_the_public_key_with_2_behind_it() {
    run(async |world| {
        use ic_agent::identity::{BasicIdentity, Identity};
        use sha2::{Digest, Sha224};
        let canister = world.canister().await;
        let identity = BasicIdentity::from_raw_key(&[2; 32]);
        let hash = Sha224::digest(identity.public_key().unwrap());
        let expected = [&hash[..], &[2]].concat();
        let what = program().blob("msg_caller").reply();
        let told = canister.ask(&world.stranger, "query", what).await.unwrap();
        assert_eq!(told, expected);
    });
}

#[test]
fn the_anonymous_users_id_is_the_byte_4() {
    run(async |world| {
        let canister = world.canister().await;
        let what = program().blob("msg_caller").reply();
        let told = canister.call(&world.anonymous, "update", what).await.unwrap();
        assert_eq!(told, [4]);
    });
}

#[test]
fn a_canister_cannot_be_made_with_the_id_of_another() {
    run(async |world| {
        let canister = world.canister().await;
        create_at(world, canister.id).await.unwrap_err();
        assert_eq!(canister.update(reply(b"as before")).await.unwrap(), b"as before");
    });
}

// Promise: P9 - The id of a deleted canister is not used again.
#[test]
fn the_id_of_a_deleted_canister_is_not_used_again() {
    run(async |world| {
        let canister = world.canister().await;
        world.about(canister.id, "stop_canister").await.unwrap();
        world.about(canister.id, "delete_canister").await.unwrap();
        create_at(world, canister.id).await.unwrap_err();
        assert_eq!(code(canister.update(reply(b"")).await), 3);
    });
}

#[test]
fn a_wrong_checksum_in_a_textual_id_is_refused() {
    run(async |world| {
        let canister = world.canister().await;
        let mut text = canister.id.to_text().into_bytes();
        text[0] = if text[0] == b'a' { b'b' } else { b'a' };
        let text = String::from_utf8(text).unwrap();
        let signed = world.agent.query(&canister.id, "query").sign().unwrap();
        let url = format!("{}/api/v3/canister/{text}/query", world.url);
        let (status, _) = super::http::post(url, signed.signed_query).await;
        assert!((400..500).contains(&status), "{status}");
    });
}
