//! Installs that are dear to compile: who cannot pay causes no compilation.

use candid::{Decode, Encode, Nat};
use ic_management_canister_types::{
    CanisterIdRecord, CanisterInstallMode, ProvisionalCreateCanisterWithCyclesArgs,
};

use crate::harness::*;

/// A module whose one function is nearly as heavy as is accepted; each number makes another.
fn heavy(number: usize) -> Vec<u8> {
    let statement = "(local.set 0 (i32.rotl (local.get 0) (local.get 0)))";
    let body = statement.repeat(5_000);
    wat::parse_str(format!("(module (func (param i32) {body}) (global i32 (i32.const {number})))"))
        .unwrap()
}

#[tokio::test]
async fn an_install_that_cannot_be_paid_compiles_nothing() {
    let node = Node::start().await;
    let agent = node.agent(1).await;
    let arguments = ProvisionalCreateCanisterWithCyclesArgs {
        amount: Some(Nat::from(50_000_000_000_u64)),
        ..Default::default()
    };
    let reply = agent
        .update(&management(), "provisional_create_canister_with_cycles")
        .with_effective_canister_id(management())
        .with_arg(Encode!(&arguments).unwrap())
        .call_and_wait()
        .await
        .unwrap();
    let poor = Decode!(&reply, CanisterIdRecord).unwrap().canister_id;
    let artefacts = || std::fs::read_dir(node.data.join("artifacts")).unwrap().count();
    let before = artefacts();
    let empty = Encode!().unwrap();
    let error = install(&agent, poor, CanisterInstallMode::Install, heavy(0), empty.clone())
        .await
        .unwrap_err();
    let (code, text, _) = rejected(error);
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("prepaying the installation of code needs"), "{text}");
    assert_eq!(artefacts(), before, "nothing was compiled");
    // The same module is compiled for one that can pay.
    let rich = create(&agent).await;
    install(&agent, rich, CanisterInstallMode::Install, heavy(0), empty).await.unwrap();
    assert_eq!(artefacts(), before + 2, "an artefact and what validation found");
}
