//! Calls to other canisters.
//!
//! Failures are returned as text and not as traps, except where a method exists to trap, so that a
//! driver can distinguish which call of many was refused and why.

use candid::{CandidType, Decode, Nat, Principal};
use futures_util::future::join_all;
use ic_cdk::call::{Call, Response};
use ic_cdk::{query, update};
use serde::Deserialize;
use serde_bytes::ByteBuf;

use crate::state;

/// A raw reply, or the text of the error.
#[derive(CandidType, Deserialize)]
pub enum CallResult {
    Ok(ByteBuf),
    Err(String),
}

impl<E: std::fmt::Display> From<Result<Response, E>> for CallResult {
    fn from(result: Result<Response, E>) -> Self {
        match result {
            Ok(response) => CallResult::Ok(ByteBuf::from(response.into_bytes())),
            Err(error) => CallResult::Err(error.to_string()),
        }
    }
}

/// Reads a count that another canister replied: nat64 here, nat from Motoko, eight raw bytes from
/// C.
fn count_of(reply: &[u8]) -> u64 {
    if let Ok(count) = Decode!(reply, u64) {
        return count;
    }
    if let Ok(count) = Decode!(reply, Nat) {
        return count.0.try_into().unwrap_or(u64::MAX);
    }
    match reply.try_into() {
        Ok(raw) => u64::from_le_bytes(raw),
        Err(_) => ic_cdk::trap("the reply is neither a nat, a nat64 nor eight bytes"),
    }
}

fn or_trap<T, E: std::fmt::Display>(result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| ic_cdk::trap(error.to_string()))
}

/// Calls `inc` on another canister and returns its new value.
#[update]
async fn call_inc(callee: Principal) -> u64 {
    count_of(&or_trap(Call::unbounded_wait(callee, "inc").await))
}

/// Hops `depth` times around the ring and returns the number of hops made: depth `d` goes to
/// `ring[d % len]`.
#[update]
async fn chain(ring: Vec<Principal>, depth: u32) -> u64 {
    if depth == 0 || ring.is_empty() {
        return 0;
    }
    let next = ring[depth as usize % ring.len()];
    let reply = Call::unbounded_wait(next, "chain").with_args(&(&ring, depth - 1)).await;
    or_trap(or_trap(reply).candid::<u64>()) + 1
}

/// Outcomes of the calls of one fan-out.
#[derive(CandidType, Deserialize, Default)]
pub struct FanoutReport {
    /// Calls that were answered.
    pub replied: u64,
    /// Calls that were rejected by the callee or the system.
    pub rejected: u64,
    /// Calls that were refused at the System API, before they left.
    pub refused: u64,
    /// The text of the first failure, empty without one.
    pub first_failure: String,
}

async fn fan(callees: Vec<Principal>, multiplier: u32, bounded: bool) -> FanoutReport {
    let calls = (0..multiplier).flat_map(|_| &callees).map(|&callee| {
        let call =
            if bounded { Call::bounded_wait(callee, "inc") } else { Call::unbounded_wait(callee, "inc") };
        call.into_future()
    });
    let mut report = FanoutReport::default();
    for result in join_all(calls).await {
        match result {
            Ok(_) => report.replied += 1,
            Err(error) => {
                match error {
                    ic_cdk::call::CallFailed::CallRejected(_) => report.rejected += 1,
                    _ => report.refused += 1,
                }
                if report.first_failure.is_empty() {
                    report.first_failure = error.to_string();
                }
            }
        }
    }
    report
}

/// Calls `inc` on every callee `multiplier` times, all at once, with guaranteed responses.
#[update]
async fn fanout(callees: Vec<Principal>, multiplier: u32) -> FanoutReport {
    fan(callees, multiplier, false).await
}

/// The same with best-effort responses.
#[update]
async fn fanout_bounded(callees: Vec<Principal>, multiplier: u32) -> FanoutReport {
    fan(callees, multiplier, true).await
}

/// A best-effort call of any method with raw arguments; the timeout is in seconds.
#[update]
async fn call_with_timeout(callee: Principal, method: String, args: ByteBuf, timeout_s: u32) -> CallResult {
    Call::bounded_wait(callee, &method).with_raw_args(&args).change_timeout(timeout_s).await.into()
}

/// A guaranteed-response call of any method with raw arguments and cycles.
#[update]
async fn call_raw(callee: Principal, method: String, args: ByteBuf, cycles: Nat) -> CallResult {
    Call::unbounded_wait(callee, &method).with_raw_args(&args).with_cycles(cycles_of(cycles)).await.into()
}

/// Sends `inc` and does not wait for the answer.
#[update]
fn call_oneway(callee: Principal) {
    or_trap(Call::bounded_wait(callee, "inc").oneway());
}

/// How the trapped callbacks of `call_trap_cleanup` ended.
#[derive(CandidType, Deserialize)]
pub struct CleanupReport {
    /// Cleanups that ran: one for each `call_trap_cleanup`.
    pub cleanups: u64,
    /// State that a trapped callback left behind: zero, always.
    pub leaked: u64,
}

/// Calls `inc` on another canister, changes the state in the callback and traps there; the cleanup
/// callback then records that it ran. The call is rejected with code 5.
#[update]
async fn call_trap_cleanup(callee: Principal) {
    struct Cleanup;
    impl Drop for Cleanup {
        fn drop(&mut self) {
            if ic_cdk::futures::is_recovering_from_trap() {
                state::with(|state| state.cleanups += 1);
            }
        }
    }
    let _cleanup = Cleanup;
    let _ = Call::unbounded_wait(callee, "inc").await;
    state::with(|state| state.leaked += 1);
    ic_cdk::trap("the callback traps after a state change");
}

#[query]
fn cleanup_report() -> CleanupReport {
    state::with(|state| CleanupReport { cleanups: state.cleanups, leaked: state.leaked })
}

/// Calls the query `get` of another canister from a query.
#[query(composite = true)]
async fn composite_get(callee: Principal) -> u64 {
    count_of(&or_trap(Call::bounded_wait(callee, "get").await))
}

/// 32 random bytes from the management canister.
#[update]
async fn raw_rand_via_mgmt() -> ByteBuf {
    let reply = Call::unbounded_wait(Principal::management_canister(), "raw_rand").await;
    or_trap(or_trap(reply).candid::<ByteBuf>())
}

fn cycles_of(amount: Nat) -> u128 {
    amount.0.try_into().unwrap_or_else(|_| ic_cdk::trap("more than 2^128 - 1 cycles"))
}

/// Accepts all cycles that came with the call and returns how many that were.
#[update]
fn accept_cycles() -> Nat {
    ic_cdk::api::msg_cycles_accept(ic_cdk::api::msg_cycles_available()).into()
}

/// Sends cycles to another workbench; returns the accepted amount.
#[update]
async fn send_cycles(callee: Principal, amount: Nat) -> Nat {
    let reply = Call::unbounded_wait(callee, "accept_cycles").with_cycles(cycles_of(amount)).await;
    or_trap(or_trap(reply).candid::<Nat>())
}

/// Sends cycles to a method that accepts none; returns the refund.
#[update]
async fn send_cycles_refunded(callee: Principal, amount: Nat) -> Nat {
    let _ = Call::unbounded_wait(callee, "inc").with_cycles(cycles_of(amount)).await;
    ic_cdk::api::msg_cycles_refunded().into()
}

#[query]
fn balance() -> Nat {
    ic_cdk::api::canister_cycle_balance().into()
}
