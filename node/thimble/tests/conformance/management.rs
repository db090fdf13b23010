//! Chapter "The IC management canister".

use candid::{Decode, Encode, Nat, Principal};
use ic_management_canister_types::CanisterStatusResult;

use crate::{fixture::*, program::*};

/// What the controller is told about a canister.
pub(crate) async fn status(world: &World, canister: Principal) -> CanisterStatusResult {
    let told = world.about(canister, "canister_status").await.unwrap();
    Decode!(&told, CanisterStatusResult).unwrap()
}
