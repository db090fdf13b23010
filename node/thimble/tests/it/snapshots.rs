//! Snapshots of real canisters, which outlive a node that is killed.

use candid::{Decode, Encode, Nat, Principal};
use ic_agent::Agent;
use ic_management_canister_types::{
    CanisterIdRecord, LoadCanisterSnapshotArgs, Snapshot, TakeCanisterSnapshotArgs,
};

use crate::harness::*;

fn none() -> Vec<u8> {
    Encode!().unwrap()
}

async fn take(agent: &Agent, canister_id: Principal, uninstall_code: bool) -> Snapshot {
    let arguments = TakeCanisterSnapshotArgs {
        canister_id,
        replace_snapshot: None,
        uninstall_code: Some(uninstall_code),
        sender_canister_version: None,
    };
    let arguments = Encode!(&arguments).unwrap();
    let told = manage(agent, canister_id, "take_canister_snapshot", arguments).await.unwrap();
    Decode!(&told, Snapshot).unwrap()
}

async fn load(agent: &Agent, canister_id: Principal, snapshot_id: &[u8]) {
    let arguments = LoadCanisterSnapshotArgs {
        canister_id,
        snapshot_id: snapshot_id.to_vec(),
        sender_canister_version: None,
    };
    let arguments = Encode!(&arguments).unwrap();
    manage(agent, canister_id, "load_canister_snapshot", arguments).await.unwrap();
}

async fn counted(agent: &Agent, counter: Principal) -> u64 {
    let reply = query(agent, counter, "get", none()).await.unwrap();
    u64::try_from(Decode!(&reply, Nat).unwrap().0).unwrap()
}

// Promise: P5 - Canister snapshots survive kills and load with their data.
#[tokio::test]
async fn snapshots_of_a_motoko_canister_survive_kills_and_are_loaded() {
    for name in ["motoko-counter64.wasm", "motoko-counter32.wasm"] {
        let mut node = Node::start().await;
        let agent = node.agent(1).await;
        let counter = deploy(&agent, name).await;
        for _ in 0..3 {
            update(&agent, counter, "inc", none()).await.unwrap();
        }
        let three = take(&agent, counter, false).await;
        update(&agent, counter, "inc", none()).await.unwrap();
        node.kill();
        node.launch().await;
        let agent = node.agent(1).await;
        assert_eq!(counted(&agent, counter).await, 4);
        load(&agent, counter, &three.id).await;
        assert_eq!(counted(&agent, counter).await, 3);
        update(&agent, counter, "inc", none()).await.unwrap();

        let four = take(&agent, counter, true).await;
        assert!(query(&agent, counter, "get", none()).await.is_err(), "it is empty");
        node.restart().await;
        let agent = node.agent(1).await;
        load(&agent, counter, &four.id).await;
        node.kill();
        node.launch().await;
        let agent = node.agent(1).await;
        assert_eq!(counted(&agent, counter).await, 4);
        load(&agent, counter, &three.id).await;
        update(&agent, counter, "inc", none()).await.unwrap();
        assert_eq!(counted(&agent, counter).await, 4);
        let record = Encode!(&CanisterIdRecord { canister_id: counter }).unwrap();
        let listed = manage(&agent, counter, "list_canister_snapshots", record).await.unwrap();
        assert_eq!(Decode!(&listed, Vec<Snapshot>).unwrap(), [three, four]);
    }
}
