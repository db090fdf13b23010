//! Small heap state and how it survives an upgrade.
//!
//! Before an upgrade the state is written to the *last* pages of stable memory, because everything
//! below belongs to the callers of `stable_fill`. The last 16 bytes of stable memory are the
//! trailer: length of the state, then a magic number. The first upgrade grows stable memory by one
//! page for this; later ones reuse that page as long as stable memory has not grown in between.

use candid::{CandidType, Decode, Encode, Principal};
use ic_cdk::{post_upgrade, pre_upgrade, query, update};
use serde::Deserialize;
use serde_bytes::ByteBuf;
use std::cell::RefCell;

const PAGE_BYTES: u64 = 65_536;
const TRAILER_BYTES: u64 = 16;
/// ASCII "thimblWB": stable memory that does not end in it holds no saved state.
const TRAILER_MAGIC: u64 = u64::from_le_bytes(*b"thimblWB");

/// The state that survives an upgrade.
#[derive(CandidType, Deserialize, Default)]
pub struct State {
    /// Counted up by `inc` and `counter_inc`.
    pub count: u64,
    /// Set by `set_text`.
    pub text: String,
    /// How often a timer has fired.
    pub timer_count: u64,
    /// How often this canister has been upgraded.
    pub upgrades: u64,
    /// The value behind the certified data.
    pub certified: ByteBuf,
    /// How often the cleanup of a trapped callback ran.
    pub cleanups: u64,
    /// Set by a callback just before it traps; anything but zero means a trap was not rolled back.
    pub leaked: u64,
    /// How often `canister_on_low_wasm_memory` ran.
    pub low_memory_count: u64,
}

thread_local! {
    static STATE: RefCell<State> = RefCell::default();
}

/// Reads or changes the state; never held over an await.
pub fn with<R>(f: impl FnOnce(&mut State) -> R) -> R {
    STATE.with_borrow_mut(f)
}

/// The page count at the last save, if that save is still the end of stable memory.
fn saved_at_the_end() -> Option<u64> {
    let end = ic_cdk::api::stable_size() * PAGE_BYTES;
    if end == 0 {
        return None;
    }
    let mut trailer = [0u8; TRAILER_BYTES as usize];
    ic_cdk::api::stable_read(end - TRAILER_BYTES, &mut trailer);
    let (length, magic) = trailer.split_at(8);
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    (number(magic) == TRAILER_MAGIC).then(|| number(length))
}

#[pre_upgrade]
fn save() {
    let bytes = with(|state| Encode!(state)).expect("the state encodes");
    let length = bytes.len() as u64;
    let needed_pages = (length + TRAILER_BYTES).div_ceil(PAGE_BYTES);
    let reusable_pages = saved_at_the_end().map_or(0, |old| (old + TRAILER_BYTES).div_ceil(PAGE_BYTES));
    if needed_pages > reusable_pages && ic_cdk::api::stable_grow(needed_pages - reusable_pages) == u64::MAX {
        ic_cdk::trap("no stable memory left to save the state in");
    }
    let end = ic_cdk::api::stable_size() * PAGE_BYTES;
    ic_cdk::api::stable_write(end - TRAILER_BYTES - length, &bytes);
    ic_cdk::api::stable_write(end - TRAILER_BYTES, &length.to_le_bytes());
    ic_cdk::api::stable_write(end - 8, &TRAILER_MAGIC.to_le_bytes());
}

#[post_upgrade]
fn load() {
    let Some(length) = saved_at_the_end() else { return };
    let end = ic_cdk::api::stable_size() * PAGE_BYTES;
    let mut bytes = vec![0u8; length as usize];
    ic_cdk::api::stable_read(end - TRAILER_BYTES - length, &mut bytes);
    let mut saved = Decode!(&bytes, State).expect("the saved state decodes");
    saved.upgrades += 1;
    with(|state| *state = saved);
}

#[ic_cdk::on_low_wasm_memory]
fn low_memory() {
    with(|state| state.low_memory_count += 1);
}

/// Counts up by one and returns the new value.
#[update]
fn inc() -> u64 {
    with(|state| {
        state.count += 1;
        state.count
    })
}

/// Value of the counter.
#[query]
fn get() -> u64 {
    with(|state| state.count)
}

/// `inc` without Candid: ignores its argument, replies eight bytes, least significant first.
#[cfg(target_family = "wasm")]
#[unsafe(export_name = "canister_update counter_inc")]
extern "C" fn counter_inc() {
    ic_cdk::api::msg_reply(inc().to_le_bytes());
}

/// `get` without Candid.
#[cfg(target_family = "wasm")]
#[unsafe(export_name = "canister_query counter_get")]
extern "C" fn counter_get() {
    ic_cdk::api::msg_reply(get().to_le_bytes());
}

#[update]
fn whoami() -> Principal {
    ic_cdk::api::msg_caller()
}

#[query]
fn whoami_query() -> Principal {
    ic_cdk::api::msg_caller()
}

#[update]
fn set_text(text: String) {
    with(|state| state.text = text);
}

#[query]
fn get_text() -> String {
    with(|state| state.text.clone())
}

#[query]
fn upgrades() -> u64 {
    with(|state| state.upgrades)
}

#[query]
fn low_memory_count() -> u64 {
    with(|state| state.low_memory_count)
}

/// Keeps the value and certifies it: at most 32 bytes, the System API traps on more.
#[update]
fn set_certified(value: ByteBuf) {
    ic_cdk::api::certified_data_set(&value);
    with(|state| state.certified = value);
}

/// The value and, in a query, the certificate that covers it.
#[query]
fn get_certified() -> (ByteBuf, Option<ByteBuf>) {
    let certificate = ic_cdk::api::data_certificate().map(ByteBuf::from);
    (with(|state| state.certified.clone()), certificate)
}
