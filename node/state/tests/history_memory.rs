//! The charge for an ingress history entry is the memory it takes, measured at the allocator.
#![allow(clippy::unwrap_used)]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

use ic_principal::Principal;
use state::{HistoryLimits, Ingress, IngressHistory, RequestId, Time, history::ENTRY_BYTES};

/// Counts live bytes of each thread as the node's allocator would hand them out: four sizes per
/// power of two, at least 16.
///
/// By thread, because the thread that runs the tests allocates and frees at its own times.
struct Counting;

thread_local! {
    static LIVE: Cell<i64> = const { Cell::new(0) };
}

fn live() -> i64 {
    LIVE.with(Cell::get)
}

fn count(bytes: i64) {
    // In a thread that is ending there is no counter any more.
    let _ = LIVE.try_with(|live| live.set(live.get() + bytes));
}

fn handed_out(bytes: usize) -> i64 {
    let spacing = (bytes.next_power_of_two() / 8).max(16);
    bytes.next_multiple_of(spacing) as i64
}

// SAFETY: hands every request to the system allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(handed_out(layout.size()));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-handed_out(layout.size()));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn call(number: u32) -> Ingress {
    Ingress {
        request_id: RequestId(state::tree::leaf_digest(&number.to_le_bytes())),
        sender: Principal::self_authenticating(number.to_le_bytes()),
        canister_id: Principal::from_slice(&[1, 1]),
        effective_canister_id: Principal::from_slice(&[1, 1]),
        method_name: String::new(),
        arg: Vec::new(),
        ingress_expiry: Time(1_000_000_000),
        sender_info: None,
    }
}

#[test]
fn entries_take_what_they_are_charged() {
    const ENTRIES: u32 = 10_000;
    const REPLY: usize = 900;
    let limits = HistoryLimits { bytes_max: 1 << 30, unfinished_max: 1 << 20 };
    let before = live();
    let mut history = IngressHistory::new(limits);
    for number in 0..ENTRIES {
        history.receive(&call(number), Time(1)).unwrap();
    }
    history.seal();
    let received = live() - before;
    let charged = history.bytes() as i64;
    println!("{} bytes per entry, charged {ENTRY_BYTES}", received / i64::from(ENTRIES));
    assert!(received <= charged, "{received} bytes taken, {charged} charged");
    assert!(received * 10 >= charged * 9, "{received} bytes taken, {charged} charged: too careful");

    for number in 0..ENTRIES {
        history.finish(&call(number).request_id, Ok(vec![0; REPLY]), Time(2));
    }
    history.seal();
    drop(history.take_finished());
    let answered = live() - before;
    let charged = history.bytes() as i64;
    assert!(answered <= charged, "{answered} bytes taken, {charged} charged");
    assert!(answered * 10 >= charged * 9, "{answered} bytes taken, {charged} charged: too careful");

    drop(history);
    assert!(live() - before < 10_000, "all of it goes back");
}
