//! Cost of a round in the certified state (new calls, answers, the root, a certificate; canisters
//! that changed, with and without data that the tree shows) and of a checkpoint.
//!
//! Prints the parameters and, for each step, the median and the worst of the rounds: wall time, and
//! time on a processor, which a busy machine does not stretch. `cargo bench -p state [entries]`.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use ic_principal::Principal;
use state::{
    CanisterMap, CanisterState, CheckpointDelta, Height, HistoryLimits, Ingress, IngressHistory,
    ReplicatedState, RequestId, Settings, StateStore, SubnetInfo, SubnetMetrics, SubnetState,
    SubnetTree, SubnetType, Time, UncertifiedState, tree::leaf_digest,
};

const ROUNDS: u64 = 40;
const CALLS_PER_ROUND: u64 = 1_000;
const REPLY_BYTES: usize = 200;
const CANISTERS: u64 = 10_000;
const CANISTERS_PER_ROUND: u64 = 500;

fn request(number: u64) -> RequestId {
    RequestId(leaf_digest(&number.to_le_bytes()))
}

fn call(number: u64) -> Ingress {
    Ingress {
        request_id: request(number),
        sender: Principal::anonymous(),
        canister_id: Principal::from_slice(&[1, 1]),
        effective_canister_id: Principal::from_slice(&[1, 1]),
        method_name: "go".into(),
        arg: vec![],
        ingress_expiry: Time(u64::MAX),
        sender_info: None,
    }
}

/// Wall time and processor time since then.
struct Watch(Instant, Duration);

fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

impl Watch {
    fn start() -> Self {
        Watch(Instant::now(), processor_time())
    }

    fn elapsed(&self) -> [Duration; 2] {
        [self.0.elapsed(), processor_time() - self.1]
    }
}

fn report(name: &str, times: Vec<[Duration; 2]>) {
    print!("{name:<34}");
    for (at, kind) in ["wall", "processor"].into_iter().enumerate() {
        let mut times: Vec<_> = times.iter().map(|time| time[at].as_secs_f64() * 1e3).collect();
        times.sort_by(f64::total_cmp);
        if let (Some(median), Some(worst)) = (times.get(times.len() / 2), times.last()) {
            print!("   {kind}: median {median:>8.3} ms, worst {worst:>8.3} ms");
        }
    }
    println!();
}

fn canister(number: u64) -> Principal {
    let mut bytes = [1; 10];
    bytes[..8].copy_from_slice(&number.to_be_bytes());
    Principal::from_slice(&bytes)
}

/// From the first change of a canister to the root of the round.
fn canister_rounds(tree: &Arc<SubnetTree>) {
    let limits = HistoryLimits { bytes_max: 1 << 20, unfinished_max: 1 };
    let canisters = (0..CANISTERS).map(|number| {
        let controllers = vec![canister(number)];
        CanisterState::new(canister(number), controllers, Settings::default(), 0, Time(1))
    });
    let history = IngressHistory::new(limits);
    let mut state = ReplicatedState::new(SubnetState::default(), history, canisters, 2 << 20);
    state.parts_mut().0.seal();
    println!("{CANISTERS} canisters, {CANISTERS_PER_ROUND} changed per round");
    for (name, certifies) in [("change, settle, root", false), ("with certified data", true)] {
        let (mut times, mut held) = (vec![], None);
        for round in 0..ROUNDS {
            let start = Watch::start();
            for number in 0..CANISTERS_PER_ROUND {
                let number = (number * 19 + round) % CANISTERS;
                if let Some(canister) = state.get_mut(&canister(number)) {
                    canister.version += 1;
                    if certifies {
                        canister.certified_data = round.to_le_bytes().to_vec();
                    }
                }
            }
            state.settle();
            let (canisters, history) = state.parts_mut();
            held = Some(UncertifiedState::new(
                Height(round + 1),
                Time(round),
                Arc::clone(tree),
                SubnetMetrics::default(),
                canisters,
                history,
                None,
            ));
            times.push(start.elapsed());
        }
        drop(held);
        report(name, times);
    }
}

#[expect(clippy::too_many_lines, reason = "steps of one matter, each on what those before it left")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let entries: u64 =
        std::env::args().find_map(|argument| argument.parse().ok()).unwrap_or(50_000);
    println!(
        "{entries} calls known, {CALLS_PER_ROUND} new and answered per round, replies of \
         {REPLY_BYTES} bytes, {ROUNDS} rounds"
    );
    let mut history =
        IngressHistory::new(HistoryLimits { bytes_max: 1 << 32, unfinished_max: 1 << 32 });
    let mut canisters = CanisterMap::new();
    for number in 0..entries {
        history.receive(&call(number), Time(1))?;
        history.finish(&request(number), Ok(vec![0; REPLY_BYTES]), Time(2));
    }
    let subnet = Arc::new(SubnetTree::new(SubnetInfo {
        subnet_id: Principal::self_authenticating([1; 133]),
        public_key_der: vec![1; 133],
        subnet_type: SubnetType::Application,
        canister_ranges: vec![(Principal::from_slice(&[0; 10]), Principal::from_slice(&[255; 10]))],
        nodes: vec![],
    }));
    history.seal();
    let dir = std::env::temp_dir().join(format!("state-bench-{}", std::process::id()));
    let store = StateStore::open(&dir, 8 << 20)?;
    let (mut receive, mut answer, mut root, mut certify, mut checkpoint) =
        (vec![], vec![], vec![], vec![], vec![]);
    let mut held = None;
    let mut bytes = 0;
    for round in 0..ROUNDS {
        let numbers = entries + round * CALLS_PER_ROUND..entries + (round + 1) * CALLS_PER_ROUND;
        let start = Watch::start();
        for number in numbers.clone() {
            history.receive(&call(number), Time(round))?;
        }
        receive.push(start.elapsed());
        let start = Watch::start();
        for number in numbers.clone() {
            history.finish(&request(number), Ok(vec![1; REPLY_BYTES]), Time(round));
        }
        answer.push(start.elapsed());
        let start = Watch::start();
        let state = UncertifiedState::new(
            Height(round + 1),
            Time(round),
            subnet.clone(),
            SubnetMetrics::default(),
            &mut canisters,
            &mut history,
            None,
        );
        root.push(start.elapsed());
        let state = state.certify(vec![0; 48]);
        let start = Watch::start();
        bytes = state
            .certificate(&[vec![b"request_status".to_vec(), request(numbers.start).0.to_vec()]])
            .len();
        certify.push(start.elapsed());
        // The newest certified state is held by readers while the next round runs.
        held = Some(state);
        if round % 10 == 9 {
            let changes = history.begin_checkpoint();
            let start = Watch::start();
            store.write(CheckpointDelta {
                height: Height(round + 1),
                metadata: vec![],
                canisters: Box::new(std::iter::empty()),
                messages: Box::new(std::iter::empty()),
                history: Box::new(changes.iter()),
                memories: vec![],
                written: vec![],
            })?;
            checkpoint.push(start.elapsed());
            history.finish_checkpoint(changes);
        }
    }
    drop(held);
    canister_rounds(&subnet);
    report("receive", receive);
    report("answer", answer);
    report("root", root);
    report("certificate for one call", certify);
    report("checkpoint (first: all entries)", checkpoint);
    println!("certificate of one call: {bytes} bytes");
    let start = Watch::start();
    let loaded = store.load()?.ok_or("no checkpoint")?;
    let limits = HistoryLimits { bytes_max: 1 << 32, unfinished_max: 1 << 32 };
    let mut again = IngressHistory::load(limits, loaded.history()?)?;
    again.seal();
    report("load and root of all entries", vec![start.elapsed()]);
    drop(loaded);
    drop(store);
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}
