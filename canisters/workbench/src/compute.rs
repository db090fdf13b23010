//! Instructions, traps, rejects, and the environment that the System API reports.

use candid::{CandidType, Nat, Principal};
use ic_cdk::{inspect_message, query, update};
use serde::Deserialize;
use serde_bytes::ByteBuf;
use std::hint::black_box;

/// Instructions spent between two reads of the counter.
const SPIN_ROUNDS: u64 = 4_096;

fn burn(instructions: u64) -> u64 {
    let mut value = 0x9E37_79B9_7F4A_7C15u64;
    while ic_cdk::api::instruction_counter() < instructions {
        for _ in 0..SPIN_ROUNDS {
            value = black_box(value).wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        }
    }
    black_box(value);
    ic_cdk::api::instruction_counter()
}

/// Executes at least this many instructions, counted by the replica; returns the count.
#[update]
fn spin(instructions: u64) -> u64 {
    burn(instructions)
}

#[query]
fn spin_query(instructions: u64) -> u64 {
    burn(instructions)
}

fn forever() {
    let mut value = 0u64;
    // The condition can only be false in a world where the optimiser knows what black_box hides.
    while black_box(value) != u64::MAX {
        value = black_box(value ^ 1);
    }
}

/// Never returns: the instruction limit ends it.
#[update]
fn loop_forever() {
    forever();
}

#[query]
fn loop_forever_query() {
    forever();
}

/// Traps after having changed the counter, which must not be seen.
#[update]
fn trap_with(message: String) {
    crate::state::with(|state| state.count += 1_000_000);
    ic_cdk::trap(message);
}

#[query]
fn trap_with_query(message: String) {
    ic_cdk::trap(message);
}

/// Rejects with this message: reject code 4.
#[update(manual_reply = true)]
fn reject_with(message: String) {
    ic_cdk::api::msg_reject(message);
}

#[query(manual_reply = true)]
fn reject_with_query(message: String) {
    ic_cdk::api::msg_reject(message);
}

/// Refuses the ingress method `forbidden` and nothing else.
#[inspect_message]
fn inspect() {
    if ic_cdk::api::msg_method_name() != "forbidden" {
        ic_cdk::api::accept_message();
    }
}

/// Can be reached by canisters, never by ingress.
#[update]
fn forbidden() -> String {
    "reached".into()
}

/// Replies its argument.
#[query]
fn echo(bytes: ByteBuf) -> ByteBuf {
    bytes
}

#[update]
fn echo_update(bytes: ByteBuf) -> ByteBuf {
    bytes
}

/// Replies `len` bytes of value 0x5A.
#[query]
fn reply_bytes(len: u32) -> ByteBuf {
    ByteBuf::from(vec![0x5A; len as usize])
}

/// Writes a line to the canister log.
#[update]
fn print(text: String) {
    ic_cdk::api::debug_print(text);
}

/// The time in nanoseconds since 1970.
#[query]
fn time() -> u64 {
    ic_cdk::api::time()
}

#[update]
fn time_update() -> u64 {
    ic_cdk::api::time()
}

/// Instructions executed so far by this message, by performance counter 0.
#[query]
fn performance_counter() -> u64 {
    ic_cdk::api::instruction_counter()
}

/// The canister version.
#[query]
fn version() -> u64 {
    ic_cdk::api::canister_version()
}

/// An environment variable of the canister settings.
#[query]
fn env_var(name: String) -> Option<String> {
    ic_cdk::api::env_var_name_exists(&name).then(|| ic_cdk::api::env_var_value(&name))
}

/// The names of all environment variables, in the replica's order.
#[query]
fn env_var_names() -> Vec<String> {
    (0..ic_cdk::api::env_var_count()).map(ic_cdk::api::env_var_name).collect()
}

/// The environment of this message, as the System API reports it.
#[derive(CandidType, Deserialize)]
pub struct Environment {
    pub caller: Principal,
    pub caller_is_controller: bool,
    pub canister: Principal,
    pub subnet: Principal,
    pub subnet_node_count: u32,
    /// 1 running, 2 stopping, 3 stopped.
    pub status: u32,
    pub canister_version: u64,
    pub time: u64,
    pub replicated: bool,
    /// Deadline of a best-effort call, none for ingress and guaranteed-response calls.
    pub deadline: Option<u64>,
    pub balance: Nat,
    pub liquid_balance: Nat,
    /// Cost of a call with an 11-byte method name and a 100-byte argument.
    pub call_cost: Nat,
    pub instructions: u64,
    pub call_context_instructions: u64,
}

fn read_environment() -> Environment {
    let caller = ic_cdk::api::msg_caller();
    Environment {
        caller,
        caller_is_controller: ic_cdk::api::is_controller(&caller),
        canister: ic_cdk::api::canister_self(),
        subnet: ic_cdk::api::subnet_self(),
        subnet_node_count: ic_cdk::api::subnet_self_node_count(),
        status: ic_cdk::api::canister_status().into(),
        canister_version: ic_cdk::api::canister_version(),
        time: ic_cdk::api::time(),
        replicated: ic_cdk::api::in_replicated_execution(),
        deadline: ic_cdk::api::msg_deadline().map(Into::into),
        balance: ic_cdk::api::canister_cycle_balance().into(),
        liquid_balance: ic_cdk::api::canister_liquid_cycle_balance().into(),
        call_cost: ic_cdk::api::cost_call(11, 100).into(),
        instructions: ic_cdk::api::instruction_counter(),
        call_context_instructions: ic_cdk::api::call_context_instruction_counter(),
    }
}

#[query]
fn environment() -> Environment {
    read_environment()
}

#[update]
fn environment_update() -> Environment {
    read_environment()
}

/// The root key, from inside; the System API offers it to replicated execution only.
#[update]
fn root_key() -> ByteBuf {
    ByteBuf::from(ic_cdk::api::root_key())
}
