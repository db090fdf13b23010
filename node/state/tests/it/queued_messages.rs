//! Messages that wait in queues survive checkpoints, power cuts and checkpoints with an unknown
//! outcome, each exactly once and with its payload; and a checkpoint writes only those that arrived
//! since the last.

use std::{path::Path, sync::Arc};

use disk::{SharedDisk, SimulatedDisk};
use ic_principal::Principal;
use sha2::{Digest as _, Sha256};
use state::{
    CallRequest, CallResponse, CallbackId, CanisterId, CanisterState, CheckpointDelta, Height,
    HistoryLimits, Ingress, IngressHistory, Payload, PayloadError, PayloadStore, ReplicatedState,
    RequestId, Settings, StateArc, StateStore, StoreError, StoredPayload, SubnetState, Time,
    encode_record, manifest::LEAF_BYTES,
};

const CACHE: u64 = 1 << 20;
const CANISTERS: u64 = 4;

/// Numbers that look random and are the same in every run.
struct Dice(u64);

impl Dice {
    fn new(seed: u64, height: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ height.wrapping_mul(0xd1b5_4a32_d192_ed03))
    }

    fn roll(&mut self, sides: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

fn canister(number: u64) -> CanisterId {
    Principal::from_slice(&[number as u8, 1, 1])
}

fn new_canister(number: u64) -> CanisterState {
    CanisterState::new(canister(number), vec![], Settings::default(), 0, Time(1))
}

fn state_of(subnet: SubnetState, canisters: Vec<CanisterState>) -> ReplicatedState {
    let limits = HistoryLimits { bytes_max: 1 << 20, unfinished_max: 10 };
    ReplicatedState::new(subnet, IngressHistory::new(limits), canisters, 2 << 20)
}

fn start() -> ReplicatedState {
    state_of(SubnetState::default(), (0..CANISTERS).map(new_canister).collect())
}

fn request(receiver: u64, sender: u64, deadline: Option<Time>, bytes: usize) -> CallRequest {
    CallRequest {
        sender: canister(sender),
        sender_version: 1,
        receiver: canister(receiver),
        callback: CallbackId(bytes as u64),
        method_name: "m".into(),
        arg: vec![bytes as u8; bytes],
        cycles: 0,
        deadline,
    }
}

/// The record of a payload in the store of payloads, computed without a disk.
fn described(number: u64, parts: [&[u8]; 2]) -> StateArc<StoredPayload> {
    let (all, name_bytes) = (parts.concat(), parts[0].len() as u32);
    let leaves = all.chunks(LEAF_BYTES).map(|leaf| Sha256::digest(leaf).into()).collect();
    StateArc::new(StoredPayload { number, bytes: all.len() as u64, name_bytes, leaves })
}

/// One round without a disk.
fn play(state: &mut ReplicatedState, seed: u64) {
    play_on(state, seed, |number, parts| Ok::<_, ()>(described(number, parts))).unwrap();
}

/// One round whose payloads are in files.
fn play_with(
    state: &mut ReplicatedState,
    seed: u64,
    payloads: &PayloadStore,
) -> Result<(), PayloadError> {
    play_on(state, seed, |number, parts| payloads.write(number, parts))?;
    for (number, bytes) in state.take_gone_payloads() {
        payloads.release(number, bytes);
    }
    payloads.sweep(2);
    Ok(())
}

/// One round: messages of many sizes arrive at canisters, are taken and expire; sometimes a
/// canister is removed with all that waits for it.
fn play_on<E>(
    state: &mut ReplicatedState,
    seed: u64,
    write: impl FnMut(u64, [&[u8]; 2]) -> Result<StateArc<StoredPayload>, E>,
) -> Result<(), E> {
    state.subnet.height.0 += 1;
    let height = state.subnet.height.0;
    let mut dice = Dice::new(seed, height);
    for _ in 0..dice.roll(8) {
        let id = dice.roll(CANISTERS);
        let bytes = [100, 5_000, 9_000, 30_000][dice.roll(4) as usize] + dice.roll(100) as usize;
        let number = state.number_message();
        let queues = &mut state.get_mut(&canister(id)).unwrap().queues;
        match dice.roll(4) {
            0 => queues.push_response(
                number,
                StateArc::new(CallResponse {
                    originator: canister(id),
                    callback: CallbackId(number),
                    payload: Payload::Reply(vec![number as u8; bytes]),
                    refund: 0,
                    deadline: None,
                }),
            ),
            1 => queues.push_ingress(
                number,
                StateArc::new(Ingress {
                    request_id: RequestId([number as u8; 32]),
                    sender: Principal::anonymous(),
                    canister_id: canister(id),
                    effective_canister_id: canister(id),
                    method_name: "m".into(),
                    arg: vec![1; bytes],
                    ingress_expiry: Time(height + dice.roll(9)),
                    sender_info: None,
                }),
            ),
            other => {
                let deadline = (other == 2).then(|| Time(height + dice.roll(9)));
                let request = request(id, dice.roll(3), deadline, bytes);
                queues.push_request(number, StateArc::new(request));
            }
        }
    }
    for _ in 0..dice.roll(6) {
        let id = canister(dice.roll(CANISTERS));
        let mut taken = state.take(&id).unwrap();
        taken.queues.pop();
        if dice.roll(4) == 0 {
            taken.queues.remove_expired_requests(Time(height));
            taken.queues.remove_expired_ingress(Time(height));
        }
        state.put(taken);
    }
    if dice.roll(12) == 0 {
        let id = dice.roll(CANISTERS);
        state.remove(&canister(id)).unwrap();
        state.put(new_canister(id));
    }
    state.store_payloads(write)?;
    state.settle();
    Ok(())
}

/// All there is, in bytes.
fn picture(state: &ReplicatedState) -> Vec<Vec<u8>> {
    let mut all = vec![encode_record("the subnet", &state.subnet).unwrap()];
    for canister in state.canisters() {
        all.push(encode_record("a canister", canister).unwrap());
        for (number, message) in canister.queues.apart_from(0) {
            all.push(message.encode(number).unwrap());
        }
    }
    all
}

/// The state of a height, which no disk has seen.
fn expected(seed: u64, height: u64) -> ReplicatedState {
    let mut state = start();
    (0..height).for_each(|_| play(&mut state, seed));
    state
}

fn delta(state: &ReplicatedState) -> CheckpointDelta<'_> {
    CheckpointDelta {
        height: state.subnet.height,
        metadata: encode_record("the subnet", &state.subnet).unwrap(),
        canisters: Box::new(state.unsaved().map(|(id, canister)| {
            Ok((id, canister.map(|canister| encode_record("it", canister)).transpose()?))
        })),
        messages: Box::new(state.unsaved_messages().map(|(number, message)| {
            Ok((number, message.map(|message| message.encode(number)).transpose()?))
        })),
        history: Box::new(std::iter::empty()),
        memories: vec![],
        written: vec![],
    }
}

fn checkpoint(store: &StateStore, state: &mut ReplicatedState) -> Result<(), StoreError> {
    state.begin_saving();
    store.write(delta(state))?;
    state.mark_saved();
    Ok(())
}

/// The same with payloads in files.
fn checkpoint_with(
    store: &StateStore,
    payloads: &PayloadStore,
    state: &mut ReplicatedState,
) -> Result<(), String> {
    payloads.sync().map_err(|error| error.to_string())?;
    payloads.begin_saving(state.subnet.next_message);
    checkpoint(store, state).map_err(|error| error.to_string())?;
    payloads.saved();
    Ok(())
}

/// Every payload of the state is in its file, and after a start nothing else is in the folder.
fn check_payloads(payloads: &PayloadStore, state: &ReplicatedState, seed: u64) {
    let live: std::collections::BTreeMap<_, _> =
        state.payloads().map(|payload| (payload.number, payload.bytes)).collect();
    payloads
        .keep_only(&live, state.subnet.next_message)
        .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    for payload in state.payloads() {
        let content = payloads.read(payload).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let (name, rest) = content.split_at(payload.name_bytes as usize);
        assert_eq!(**payload, *described(payload.number, [name, rest]), "seed {seed}");
    }
}

fn load(store: &StateStore) -> Result<ReplicatedState, StoreError> {
    let Some(loaded) = store.load()? else {
        let mut state = start();
        // No store has them.
        for number in 0..CANISTERS {
            state.get_mut(&canister(number)).unwrap();
        }
        state.settle();
        return Ok(state);
    };
    let subnet: SubnetState = postcard::from_bytes(&loaded.metadata).unwrap();
    let mut messages = loaded.messages();
    let mut canisters = vec![];
    for record in loaded.canisters()? {
        let (id, record) = record?;
        let mut canister: CanisterState = postcard::from_bytes(&record).unwrap();
        for number in canister.queues.missing().collect::<Vec<_>>() {
            canister.queues.load_record(&id, number, &messages.take(number)?).unwrap();
        }
        canister.queues.finish_loading(subnet.next_message, &id).unwrap();
        canisters.push(canister);
    }
    messages.finish()?;
    Ok(state_of(subnet, canisters))
}

fn open(disk: &SharedDisk, root: &Path) -> Result<StateStore, StoreError> {
    StateStore::open_on(disk.clone(), &root.join("state"), CACHE)
}

fn open_payloads(disk: &SharedDisk, root: &Path) -> Result<PayloadStore, PayloadError> {
    PayloadStore::open_on(disk.clone(), &root.join("state").join("messages"))
}

/// Loads the newest checkpoint, which must be that of its height.
fn load_and_compare(store: &StateStore, seed: u64) -> ReplicatedState {
    let state = load(store).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    let expected = expected(seed, state.subnet.height.0);
    assert!(picture(&state) == picture(&expected), "seed {seed}, {:?}", state.subnet.height);
    state
}

// Promise: P6 - A power cut at any operation loses no queued message and restores none twice.
#[test]
fn a_power_cut_at_any_operation_loses_no_message_and_brings_none_back() {
    let mut durable = 0;
    for seed in 0..60 {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("disk");
        let simulated = SimulatedDisk::new(&root, seed).unwrap();
        let disk: SharedDisk = Arc::new(simulated.clone());
        let mut acknowledged = 0;
        for life in 0..3 {
            simulated.end_after(40 + (seed * 37 + life * 101) % 500, seed.is_multiple_of(2));
            if let (Ok(store), Ok(payloads)) = (open(&disk, &root), open_payloads(&disk, &root)) {
                let mut state = load_and_compare(&store, seed);
                check_payloads(&payloads, &state, seed);
                let mut dice = Dice::new(seed, 1_000 + life);
                // A failed checkpoint is tried again a few rounds later, until the disk ends.
                let mut failures = 0;
                while failures < 3 {
                    // A round that cannot write would wait; the disk has ended here.
                    if (0..=dice.roll(4)).any(|_| play_with(&mut state, seed, &payloads).is_err()) {
                        break;
                    }
                    if dice.roll(6) == 0 {
                        simulated.fail_syncs(1);
                    }
                    match checkpoint_with(&store, &payloads, &mut state) {
                        Ok(()) => acknowledged = state.subnet.height.0,
                        Err(_) => failures += 1,
                    }
                }
            }
            simulated.cut_power().unwrap();
            let store = open(&disk, &root).unwrap();
            let state = load_and_compare(&store, seed);
            check_payloads(&open_payloads(&disk, &root).unwrap(), &state, seed);
            let height = state.subnet.height.0;
            assert!(
                height >= acknowledged,
                "seed {seed}: {acknowledged} was durable, not {height}"
            );
            acknowledged = height;
            durable += height;
        }
    }
    assert!(durable > 600, "the cuts left hardly any round: {durable}");
}

// Promise: P6 - A checkpoint of unknown outcome keeps every queued message once.
#[test]
fn a_checkpoint_that_failed_may_or_may_not_have_been_written() {
    for seed in 0..60 {
        let folder = tempfile::tempdir().unwrap();
        let store = StateStore::open(folder.path(), CACHE).unwrap();
        let mut state = load_and_compare(&store, seed);
        let mut dice = Dice::new(seed, 77);
        for _ in 0..40 {
            (0..=dice.roll(3)).for_each(|_| play(&mut state, seed));
            match dice.roll(3) {
                0 => checkpoint(&store, &mut state).unwrap(),
                // Written, but not reported as finished.
                1 => {
                    state.begin_saving();
                    store.write(delta(&state)).unwrap();
                    drop(load_and_compare(&store, seed));
                }
                // Not written, after the writer had read all of it.
                _ => {
                    state.begin_saving();
                    delta(&state).messages.for_each(drop);
                }
            }
            if dice.roll(8) == 0 && store.load().unwrap().is_some() {
                state = load_and_compare(&store, seed);
            }
        }
        checkpoint(&store, &mut state).unwrap();
        load_and_compare(&store, seed);
    }
}

// Promise: P3 - A checkpoint writes only new messages, and a restart writes none.
#[test]
fn a_checkpoint_writes_the_messages_that_came_and_a_restart_none() {
    const MESSAGES: u64 = 1_000;
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("disk");
    let simulated = SimulatedDisk::new(&root, 1).unwrap();
    let disk: SharedDisk = Arc::new(simulated.clone());
    let store = open(&disk, &root).unwrap();
    let mut state = load(&store).unwrap();
    let push = |state: &mut ReplicatedState, count| {
        state.subnet.height.0 += 1;
        for _ in 0..count {
            let number = state.number_message();
            let request = StateArc::new(request(1, 2, None, 7_000));
            state.get_mut(&canister(1)).unwrap().queues.push_request(number, request);
        }
        state.store_payloads(|number, parts| Ok::<_, ()>(described(number, parts))).unwrap();
        state.settle();
    };
    // Operations of the disk and records of messages that the next checkpoint takes.
    let cost = |state: &mut ReplicatedState| {
        let (before, rows) = (simulated.operations(), state.unsaved_messages().count());
        checkpoint(&store, state).unwrap();
        (simulated.operations() - before, rows as u64)
    };
    push(&mut state, MESSAGES);
    let (all, rows) = cost(&mut state);
    // The others are part of the canister's record, and none is large enough for a file.
    let whole = MESSAGES - rows;
    assert!((30..40).contains(&whole), "{whole}");
    assert_eq!(state.payloads().count(), 0);
    push(&mut state, 1);
    let (one, rows) = cost(&mut state);
    assert_eq!(rows, 1);
    assert!(one * 20 < all, "{one} operations for one message, {all} for {MESSAGES}");
    let mut state = load(&store).unwrap();
    assert_eq!(state.get(&canister(1)).unwrap().queues.len(), MESSAGES + 1);
    push(&mut state, 0);
    assert_eq!(cost(&mut state).1, 0);
    // The record of the canister holds none of them.
    let record = store.load().unwrap().unwrap();
    let record = record.canisters().unwrap().map(Result::unwrap).find(|(id, _)| *id == canister(1));
    assert!(record.unwrap().1.len() < 16 * MESSAGES as usize + (256 << 10));
    // Taking one deletes its record, and no other.
    for _ in 0..=whole {
        state.get_mut(&canister(1)).unwrap().queues.pop().unwrap();
    }
    push(&mut state, 0);
    assert_eq!(cost(&mut state).1, 1);
}

#[test]
fn a_store_of_another_set_of_messages_is_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let store = StateStore::open(folder.path(), CACHE).unwrap();
    let mut state = load(&store).unwrap();
    let number = state.number_message();
    let large = StateArc::new(request(1, 2, None, 20_000));
    state.get_mut(&canister(1)).unwrap().queues.push_request(number, large);
    state.store_payloads(|number, parts| Ok::<_, ()>(described(number, parts))).unwrap();
    state.settle();
    checkpoint(&store, &mut state).unwrap();
    load(&store).unwrap();
    let with = |messages| CheckpointDelta {
        height: Height(0),
        metadata: encode_record("the subnet", &state.subnet).unwrap(),
        canisters: Box::new(std::iter::empty()),
        messages: Box::new(std::iter::once(Ok(messages))),
        history: Box::new(std::iter::empty()),
        memories: vec![],
        written: vec![],
    };
    store.write(with((99, Some(vec![1])))).unwrap();
    assert!(matches!(load(&store), Err(StoreError::Corrupt { .. })), "an orphaned message");
    store.write(with((99, None))).unwrap();
    load(&store).unwrap();
    store.write(with((number, None))).unwrap();
    assert!(matches!(load(&store), Err(StoreError::Corrupt { .. })), "a message is missing");
}
