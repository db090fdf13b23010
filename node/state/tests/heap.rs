//! All data that is kept from round to round is in the state's heap, however it was created; none
//! of it stays in the usual one.
#![allow(clippy::unwrap_used)]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    collections::BTreeMap,
    sync::{Mutex, Once},
};

use ic_principal::Principal;
use state::{
    CallRequest, Callback, CallbackId, CanisterId, CanisterState, CanisterStatus, Change,
    ChangeDetails, ChangeOrigin, HistoryLimits, Ingress, IngressHistory, Origin, ReplicatedState,
    RequestId, Settings, StateArc, StopWaiter, SubnetState, Time, Visibility, encode_record,
    state_heap::{self, StateHeap},
};

/// Counts what this thread allocates, and remembers which blocks came from the state's heap.
struct TwoHeaps;

thread_local! {
    static HEAP: Cell<i32> = const { Cell::new(0) };
    /// Live bytes of the usual heap and of the state's.
    static LIVE: [Cell<i64>; 2] = const { [Cell::new(0), Cell::new(0)] };
    /// Set while the set of blocks is worked on, which allocates too.
    static NOTING: Cell<bool> = const { Cell::new(false) };
}

/// Addresses of the blocks of the state's heap, with their bytes.
static BLOCKS: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

fn noted<R>(work: impl FnOnce(&mut BTreeMap<usize, usize>) -> R) -> R {
    NOTING.with(|noting| noting.set(true));
    let result = work(&mut BLOCKS.lock().unwrap());
    NOTING.with(|noting| noting.set(false));
    result
}

fn is_kept(byte: *const u8) -> bool {
    let at = byte.addr();
    noted(|blocks| {
        blocks.range(..=at).next_back().is_some_and(|(block, bytes)| at - block < *bytes)
    })
}

fn is_noting() -> bool {
    NOTING.try_with(Cell::get).unwrap_or(true)
}

fn count(heap: usize, bytes: i64) {
    let _ = LIVE.try_with(|live| live[heap].set(live[heap].get() + bytes));
}

// SAFETY: hands every request to the system allocator unchanged.
unsafe impl GlobalAlloc for TwoHeaps {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is passed on.
        let block = unsafe { System.alloc(layout) };
        if !is_noting() {
            let heap = HEAP.try_with(Cell::get).unwrap_or(0) as usize;
            count(heap, layout.size() as i64);
            if heap == 1 {
                noted(|blocks| blocks.insert(block.addr(), layout.size()));
            }
        }
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if !is_noting() {
            let heap = usize::from(noted(|blocks| blocks.remove(&block.addr()).is_some()));
            count(heap, -(layout.size() as i64));
        }
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: TwoHeaps = TwoHeaps;

fn live() -> [i64; 2] {
    LIVE.with(|live| [live[0].get(), live[1].get()])
}

fn canister(number: u64) -> CanisterId {
    let mut bytes = [1; 10];
    bytes[..8].copy_from_slice(&number.to_be_bytes());
    Principal::from_slice(&bytes)
}

fn call(number: u32) -> Ingress {
    Ingress {
        request_id: RequestId(state::tree::leaf_digest(&number.to_le_bytes())),
        sender: Principal::self_authenticating(number.to_le_bytes()),
        canister_id: canister(0),
        effective_canister_id: canister(0),
        method_name: "m".repeat(1000),
        arg: vec![7; 100],
        ingress_expiry: Time(1_000_000_000_000),
        sender_info: None,
    }
}

fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        state_heap::install(StateHeap {
            switch: |number| HEAP.with(|heap| heap.replace(number)),
            number: 1,
            holds: is_kept,
            ready: || Ok(()),
        });
    });
}

fn request(receiver: CanisterId, number: u64, deadline: Option<Time>) -> StateArc<CallRequest> {
    StateArc::new(CallRequest {
        sender: canister(1),
        sender_version: 1,
        receiver,
        callback: CallbackId(number),
        method_name: state_heap::move_text("n".repeat(1000)),
        arg: state_heap::move_bytes(vec![3; 1000]),
        cycles: 0,
        deadline,
    })
}

// Promise: P3 - Queued messages, call statuses and canister records are allocated in a heap on
//   disk.
#[test]
fn retained_state_is_allocated_in_the_state_heap() {
    install();
    let limits = HistoryLimits { bytes_max: 1 << 30, unfinished_max: 1 << 20 };
    let before = live();
    let mut state =
        ReplicatedState::new(SubnetState::default(), IngressHistory::new(limits), [], 2 << 20);
    const CANISTERS: u64 = 200;
    const CALLS: u32 = 2_000;
    for number in 0..CANISTERS {
        let controllers = vec![canister(number); 10];
        let settings = Settings::default();
        state.put(CanisterState::new(canister(number), controllers, settings, 0, Time(1)));
    }
    state.settle();
    for number in 0..CALLS {
        let now = Time(2);
        state.history.receive(&call(number), now).unwrap();
        state.history.processing(&call(number).request_id);
        state.history.finish(&call(number).request_id, Ok(vec![1; 500]), now);
        let receiver = canister(u64::from(number) % CANISTERS);
        let message = state.number_message();
        let queues = &mut state.get_mut(&receiver).unwrap().queues;
        queues.push_request(message, request(receiver, u64::from(number), None));
    }
    drop(state.history.take_finished());
    state.settle();
    state.history.seal();
    let [usual, kept] = live();
    let (usual, kept) = (usual - before[0], kept - before[1]);
    // The changes since the last checkpoint are a set of ids.
    assert!(usual < 32 << 10, "{usual} bytes in the usual heap, {kept} in the state's");
    assert!(kept > i64::from(CALLS) * (500 + 1000), "{kept} bytes in the state's heap");
    drop(state);
    assert!(live()[1] - before[1] < 1 << 10, "all of it goes back: {:?}", live());
}

/// Everything of a canister that a round can make grow, a little more in each round.
fn change(canister: &mut CanisterState, round: u64) {
    let context = canister.calls.open_context(Origin::System, 0);
    for call in 0..40 {
        canister.calls.open_callback(Callback {
            context,
            callee: self::canister(1_000 + 100 * round + call),
            on_reply: (1, 2),
            on_reject: (3, 4),
            on_cleanup: None,
            cycles_sent: 0,
            prepaid: 0,
            request_bytes: 0,
            deadline: Some(Time(round)),
            answered: false,
        });
    }
    canister.certified_data = vec![1; 32];
    canister.controllers.push(self::canister(round));
    canister.chunks.extend((0..40).map(|chunk| ([(40 * round + chunk) as u8; 32], 1)));
    canister.settings.environment.push((format!("name {round}"), "v".repeat(500)));
    canister.settings.log_visibility = Visibility::AllowedViewers(vec![canister.id; 20]);
    for _ in 0..20 {
        canister.log.push(Time(round), vec![2; 100], 1 << 20);
        canister.history.push(Change {
            time: Time(round),
            version: round,
            origin: ChangeOrigin::User(canister.id),
            details: ChangeDetails::CodeUninstall,
        });
    }
    canister.status = CanisterStatus::Stopping(vec![
        StopWaiter {
            origin: Origin::System,
            cycles: 0,
            deadline: Time(1)
        };
        20
    ]);
}

// Promise: P3 - A canister that grows is allocated in a heap on disk after each round.
#[test]
fn canister_that_grows_rests_in_the_state_heap() {
    install();
    let limits = HistoryLimits { bytes_max: 1 << 30, unfinished_max: 1 << 20 };
    let mut state =
        ReplicatedState::new(SubnetState::default(), IngressHistory::new(limits), [], 2 << 20);
    let id = canister(0);
    state.put(CanisterState::new(id, vec![], Settings::default(), 0, Time(1)));
    state.settle();
    let before = live();
    for round in 0..5 {
        let canister = state.get_mut(&id).unwrap();
        change(canister, round);
        let record = encode_record("it", canister).unwrap();
        state.settle();
        let at_rest = encode_record("it", state.get(&id).unwrap()).unwrap();
        assert!(record == at_rest, "the record changed where it rests, in round {round}");
        drop((record, at_rest));
        let usual = live()[0] - before[0];
        assert!(usual < 1 << 10, "{usual} bytes in the usual heap after round {round}");
    }
    let full = live();
    let canister = state.get_mut(&id).unwrap();
    let open: Vec<_> = canister.calls.callbacks().map(|(callback, _)| callback).collect();
    for callback in open {
        canister.calls.close_callback(callback);
    }
    canister.chunks.clear();
    (canister.status, canister.settings) = (CanisterStatus::Running, Settings::default());
    state.settle();
    let [usual, kept] = live();
    assert!(usual < full[0] + (1 << 10), "{} bytes in the usual heap", usual - full[0]);
    assert!(kept < full[1] - (32 << 10), "memory of what is empty goes back: {full:?}, {kept}");
}

// Promise: P3 - A loaded state is allocated in the heap on disk.
#[test]
fn loaded_state_is_allocated_in_the_state_heap() {
    const MESSAGES: u64 = 3_000;
    install();
    let id = canister(0);
    let mut stored = CanisterState::new(id, vec![], Settings::default(), 0, Time(1));
    for number in 0..MESSAGES {
        stored.queues.push_request(number, request(id, number, Some(Time(number))));
    }
    let record = encode_record("it", &stored).unwrap();
    let apart: BTreeMap<u64, Vec<u8>> = stored
        .queues
        .apart_from(0)
        .map(|(number, message)| (number, message.encode(number).unwrap()))
        .collect();
    assert!(apart.len() > 2_000, "{} have records of their own", apart.len());
    let before = live();
    let mut loaded: CanisterState = state_heap::within(|| postcard::from_bytes(&record)).unwrap();
    for (number, record) in &apart {
        loaded.queues.load_record(&id, *number, record).unwrap();
    }
    loaded.queues.finish_loading(MESSAGES, &id).unwrap();
    let [usual, kept] = live();
    let (usual, kept) = (usual - before[0], kept - before[1]);
    assert!(usual < 4 << 10, "{usual} bytes in the usual heap, {kept} in the state's");
    assert!(kept > MESSAGES as i64 * 2_000, "{kept} bytes in the state's heap");
    drop(loaded);
    assert!(live()[1] - before[1] < 1 << 10, "all of it goes back: {:?}", live());
}
