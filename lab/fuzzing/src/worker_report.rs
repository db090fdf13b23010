//! A worker's answer, from the frame on the socket to the pages that are taken from it: no input
//! causes a panic; accepted values are consistent, and the page store accepts or refuses the pages.
//!
//! An even first byte takes the rest as a frame. An odd one takes an honest outcome, changed: a
//! list of changes of three bytes, a place in the frame (two bytes) and the number added to the
//! byte there.

use std::sync::LazyLock;

use ic_principal::Principal;
use pages::{MemoryId, PageStore};
use sandbox::{
    Changes, CostTable, Entry, MessageLimits, Mount, Outcome, Request, Response, RunState,
    SystemContext,
    fuzz::{outcome_frame, worker_frame},
};
use state::{ModuleHash, Time};

const HEAP: MemoryId = MemoryId(1);
const STABLE: MemoryId = MemoryId(2);
const MIB: u64 = 1 << 20;
const BALANCE: u128 = 10_u128.pow(15);

struct Stage {
    store: PageStore,
    _folder: tempfile::TempDir,
}

static STAGE: LazyLock<Stage> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a folder");
    let limits = limits::Limits::nano().expect("the smallest node");
    let store =
        PageStore::open(folder.path().join("pages"), &limits.pages, []).expect("a page store");
    for memory in [HEAP, STABLE] {
        store.create(memory, 1 << 30).expect("a memory");
    }
    Stage { store, _folder: folder }
});

fn request(store: &PageStore) -> Request {
    let limits = MessageLimits {
        instructions: 1_000_000,
        stable_dirty_bytes: MIB,
        stable_accessed_bytes: MIB,
        heap_dirty_bytes: MIB,
        heap_max_bytes: [1 << 30, 1 << 30],
        stable_max_bytes: 1 << 30,
        log_max_bytes: 4096,
    };
    let mount = |id| Mount {
        layout: store.layout(id).expect("it was created"),
        wasm_pages: 4,
        append: Some(store.reserve(id, MIB / 4096).expect("room for a message")),
    };
    Request {
        module: ModuleHash([1; 32]),
        heap: mount(HEAP),
        stable: mount(STABLE),
        entry: Entry::Update("run".into()),
        globals: vec![],
        context: context(),
        limits,
        keep_token: None,
    }
}

fn context() -> SystemContext {
    SystemContext {
        canister_id: Principal::from_slice(&[0, 0, 0, 0, 0, 0, 0, 7, 1, 1]),
        subnet_id: Principal::from_slice(&[9; 29]),
        subnet_nodes: 4,
        root_key: vec![3; 133],
        time: Time(1_700_000_000_000_000_000),
        canister_version: 5,
        run_state: RunState::Running,
        controllers: vec![Principal::from_slice(&[4])],
        env_vars: vec![],
        caller: Principal::from_slice(&[4]),
        caller_info: None,
        arg: vec![],
        deadline: Time(0),
        already_responded: false,
        balance: BALANCE,
        freezing_threshold: 10_u128.pow(12),
        cycles_available: 1_000,
        cycles_refunded: 0,
        global_timer: Time(0),
        data_certificate: None,
        context_instructions: 0,
        replicated: true,
        growable_bytes: 16 * MIB,
        wasm_memory_limit: None,
        calls_max: 10,
        queue_slots_left: Default::default(),
        queue_slots: 10,
        costs: CostTable {
            call_base: 1_000,
            call_per_byte: 2,
            response_reservation: 3_000,
            callback_execution_reservation: 4_000,
            create_canister: 5_000_000_000_000,
            http_request: [10, 20, 30],
            signing: [100, 200, 300],
        },
        payload_max_bytes: 2 * MIB,
        reject_guaranteed_response_calls: false,
    }
}

/// The outcome of a message that wrote two pages and kept its cycles.
fn honest(request: &Request) -> Outcome {
    let run = |mount: &Mount| {
        let append = mount.append.as_ref().expect("an update appends");
        vec![pages::Run {
            start_page: 1,
            pages: 2,
            segment: append.segment,
            offset_page: append.offset_page,
        }]
    };
    let changes = Changes {
        globals: vec![],
        heap_wasm_pages: 4,
        stable_wasm_pages: 5,
        heap_runs: run(&request.heap),
        stable_runs: run(&request.stable),
        balance: BALANCE,
        cycles_accepted: 0,
        cycles_burned: 0,
        calls: vec![],
        certified_data: None,
        global_timer: None,
    };
    Outcome {
        instructions: 1_000,
        work: 1_000,
        result: Ok(Response::Reply(b"ok".to_vec())),
        changes: Some(changes),
        accepted: false,
        height_read: false,
        log: vec![],
        query_calls: vec![],
        keep_token: None,
    }
}

pub(crate) fn test_one_input(bytes: &[u8]) {
    let Some((choice, bytes)) = bytes.split_first() else { return };
    let store = &STAGE.store;
    let request = request(store);
    let mut frame = bytes.to_vec();
    if choice % 2 == 1 {
        let honest = honest(&request);
        frame = outcome_frame(&honest).expect("an outcome encodes");
        assert!(
            bytes.len() >= 3 || worker_frame(&frame, &request) == Some(honest),
            "it is believed"
        );
        for change in bytes.chunks_exact(3).take(64) {
            let place = usize::from(u16::from_be_bytes([change[0], change[1]])) % frame.len();
            frame[place] = frame[place].wrapping_add(change[2]);
        }
    }
    let Some(outcome) = worker_frame(&frame, &request) else { return };
    // Accepted: it encodes to the same bytes again, and no cycles are created. (Bytes are compared:
    // a global may be NaN.)
    let encoded = outcome_frame(&outcome).expect("what was decoded encodes");
    let again = worker_frame(&encoded, &request).expect("it was believed before");
    assert_eq!(outcome_frame(&again), Some(encoded));
    assert!(outcome.instructions <= request.limits.instructions);
    let Some(changes) = outcome.changes else { return };
    assert!(changes.balance <= BALANCE + request.context.cycles_available);
    for (mount, runs) in [(request.heap, changes.heap_runs), (request.stable, changes.stable_runs)]
    {
        let target = mount.append.expect("an update appends");
        // Accepted or refused; dropped targets release their space.
        let _ = store.commit(&target, &runs);
    }
    // Accepted pages are folded again, so that the log never fills.
    if store.needs_checkpoint() {
        let ticket = store.begin_checkpoint().expect("a checkpoint");
        ticket.sync().expect("a sync");
        store.finish_checkpoint(ticket);
        while !store.fold(1 << 30).expect("folding").is_idle() {}
    }
}
