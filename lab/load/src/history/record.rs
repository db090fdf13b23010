//! The recorder: clients that work on a subnet and record their requests and the responses.
//!
//! Each client has one call or read at a time, at an endpoint of its choice, and pauses so that all
//! of them together do `rate` a second. The seed decides their actions, but not the times. Every
//! append takes the next page of a canister; all pages exist from the start, so a read of a page
//! that was never written is all zero.

use std::{
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use candid::Principal;
use cli::{Stop, lock};
use ic_agent::Identity;
use ic_management_canister_types::CanisterInstallMode;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::{task::JoinSet, time::Instant};

use super::{
    client::{self, Endpoint},
    lines::{Call, CallKind, ClientRead, FORMAT, Header, Line, Outcome, Writer, now_micros},
};
use demo::client as basics;

use crate::hammer::{
    pattern::{PAGE_BYTES, mix},
    protocol::{self, ReadReply, Route},
};

/// The module that the hammer uses.
const MODULE: &[u8] = include_bytes!("../../../../canisters/wasm/hammer-c.wasm");
/// Cycles of a new canister: no run is long enough to use them up.
const CYCLES: u64 = 1_000_000_000_000_000_000;
/// A read returns that many generations at most, and every page may have its own.
pub(super) const READ_PAGES: u64 = 64;
/// Calls from canister to canister of one chain.
const DEPTH: u64 = 2;
/// For what is in flight when the recording ends: a client gives up before.
const END_TIMEOUT: Duration = Duration::from_secs(40);

/// Parameters of a recording.
pub(super) struct Plan {
    pub(super) urls: Vec<String>,
    pub(super) clients: usize,
    pub(super) canisters: usize,
    pub(super) pages: u64,
    pub(super) rate: f64,
    pub(super) seed: u64,
    pub(super) seconds: Option<u64>,
}

struct RecordingContext {
    endpoints: Vec<Endpoint>,
    canisters: Vec<Principal>,
    ring: Vec<u8>,
    /// Of each canister, the next page that is not yet assigned.
    next_page: Vec<AtomicU64>,
    next_call: AtomicU64,
    plan: Plan,
    history: Mutex<Writer>,
    failed: Mutex<Option<anyhow::Error>>,
}

impl RecordingContext {
    fn write(&self, line: &Line) {
        if let Err(error) = lock(&self.history).write(line) {
            // A history with a hole proves nothing: the recording ends.
            lock(&self.failed).get_or_insert(error);
        }
    }

    fn has_failed(&self) -> bool {
        lock(&self.failed).is_some()
    }
}

/// Records until `stop`, or for the seconds asked for. `ready` is called once the clients work.
pub(super) async fn run(
    plan: Plan,
    out: &Path,
    identity: Arc<dyn Identity>,
    stop: &Stop,
    ready: impl FnOnce(),
) -> Result<u64> {
    let endpoints = client::connect(&plan.urls, identity).await?;
    let canisters = install(&endpoints, &plan).await?;
    let mut history = Writer::create(out)?;
    history.write(&Line::Header(Header {
        format: FORMAT,
        seed: plan.seed,
        endpoints: endpoints.iter().map(|endpoint| endpoint.url.clone()).collect(),
        canisters: canisters.iter().map(Principal::to_text).collect(),
        root_key: hex::encode(endpoints[0].agent.read_root_key()),
        clients: plan.clients,
        pages: plan.pages,
        started_micros: now_micros(),
    }))?;
    let shared = Arc::new(RecordingContext {
        ring: protocol::ring(&canisters),
        next_page: canisters.iter().map(|_| AtomicU64::new(0)).collect(),
        endpoints,
        canisters,
        next_call: AtomicU64::new(0),
        plan,
        history: Mutex::new(history),
        failed: Mutex::new(None),
    });
    let mut clients = JoinSet::new();
    let (end_tx, end) = Stop::new();
    for number in 0..shared.plan.clients {
        clients.spawn(run_client(shared.clone(), number, end.clone()));
    }
    ready();
    stop.requested_within(shared.plan.seconds).await;
    end_tx.send_replace(true);
    let all = async { while clients.join_next().await.is_some() {} };
    tokio::time::timeout(END_TIMEOUT, all).await.context("a client did not end")?;
    if let Some(error) = lock(&shared.failed).take() {
        return Err(error);
    }
    Ok(shared.next_call.load(Ordering::Relaxed))
}

/// Makes the canisters, and all pages of each.
async fn install(endpoints: &[Endpoint], plan: &Plan) -> Result<Vec<Principal>> {
    let agent = &endpoints[0].agent;
    let mut canisters = Vec::new();
    for index in 0..plan.canisters {
        let canister = Box::pin(basics::create(agent, Some(CYCLES))).await?;
        let seed = protocol::encode_words(&[mix(plan.seed ^ mix(index as u64 + 1))]);
        basics::install(agent, canister, CanisterInstallMode::Install, MODULE.to_vec(), seed)
            .await?;
        let argument = protocol::encode_words(&[plan.pages * PAGE_BYTES]);
        let reply = agent.update(&canister, "grow").with_arg(argument).call_and_wait().await?;
        let has = protocol::first_word(&reply).map_err(anyhow::Error::msg)?;
        ensure!(
            has >= plan.pages * PAGE_BYTES,
            "canister {canister} has {has} bytes of stable memory"
        );
        canisters.push(canister);
    }
    // A node that is a round behind does not know them yet.
    for endpoint in endpoints {
        let deadline = Instant::now() + Duration::from_secs(30);
        for canister in &canisters {
            while let Err(error) =
                endpoint.agent.query(canister, "info").with_arg(vec![]).call().await
            {
                if Instant::now() > deadline {
                    return Err(error)
                        .context(format!("{} does not know canister {canister}", endpoint.url));
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    Ok(canisters)
}

/// Runs one client until the end: calls and reads, each at a random endpoint and canister.
async fn run_client(shared: Arc<RecordingContext>, number: usize, end: Stop) {
    let mut random = ChaCha8Rng::seed_from_u64(shared.plan.seed ^ mix(number as u64 + 1));
    let pace = Duration::from_secs_f64(shared.plan.clients as f64 / shared.plan.rate);
    while !end.is_requested() && !shared.has_failed() {
        let begun = Instant::now();
        let endpoint = random.gen_range(0..shared.endpoints.len());
        let canister = random.gen_range(0..shared.canisters.len());
        match random.gen_range(0..100) {
            0..60 => append(&shared, number, endpoint, canister).await,
            60..75 => make_call(&shared, number, endpoint, canister, CallKind::Count).await,
            75..85 => {
                make_call(&shared, number, endpoint, canister, CallKind::Chain { depth: DEPTH })
                    .await
            }
            85..93 => read(&shared, number, endpoint, canister, true, &mut random).await,
            _ => read(&shared, number, endpoint, canister, false, &mut random).await,
        }
        let pause = pace.mul_f64(random.gen_range(0.5..1.5)).saturating_sub(begun.elapsed());
        tokio::time::sleep(pause).await;
    }
}

async fn append(shared: &RecordingContext, number: usize, endpoint: usize, canister: usize) {
    let page = shared.next_page[canister].fetch_add(1, Ordering::Relaxed);
    // Full: from now on this canister only counts.
    let work = if page < shared.plan.pages { CallKind::Append { page } } else { CallKind::Count };
    make_call(shared, number, endpoint, canister, work).await;
}

async fn make_call(
    shared: &RecordingContext,
    number: usize,
    endpoint: usize,
    canister: usize,
    work: CallKind,
) {
    let (method, argument) = match work {
        CallKind::Append { page } => {
            ("write", protocol::encode_words(&[page * PAGE_BYTES, PAGE_BYTES]))
        }
        CallKind::Count => ("inc", vec![]),
        CallKind::Chain { depth } => {
            let route = Route {
                hops_left: depth,
                hop: 0,
                member: canister as u64,
                ring: &shared.ring,
                timeout_seconds: 0,
                payload_bytes: 0,
            };
            ("chain", route.encode())
        }
    };
    let id = shared.next_call.fetch_add(1, Ordering::Relaxed);
    let sent_micros = now_micros();
    let mut done =
        client::call(&shared.endpoints, endpoint, shared.canisters[canister], method, argument)
            .await;
    let ended_micros = now_micros();
    if let Outcome::Acknowledged { value, .. } = &mut done.outcome {
        // A chain replies [calls, replies]; the others one word.
        let words = protocol::decode_words(&done.reply);
        let counted =
            if matches!(work, CallKind::Chain { .. }) { words.get(1) } else { words.first() };
        match counted {
            Some(counted) => *value = *counted,
            None => {
                let text = format!("the acknowledged reply has {} bytes", done.reply.len());
                done.outcome = Outcome::Wrong { text };
            }
        }
    }
    shared.write(&Line::Call(Call {
        id,
        client: number,
        canister,
        work,
        sent_micros,
        ended_micros,
        attempts: done.attempts,
        outcome: done.outcome,
    }));
}

async fn read(
    shared: &RecordingContext,
    number: usize,
    endpoint: usize,
    canister: usize,
    certified: bool,
    random: &mut ChaCha8Rng,
) {
    let pages = READ_PAGES.min(shared.plan.pages);
    // Somewhere near the end, where pages are being written.
    let end = shared.next_page[canister].load(Ordering::Relaxed).min(shared.plan.pages);
    let first = end.saturating_sub(random.gen_range(0..2 * pages)).min(shared.plan.pages - pages);
    let argument = protocol::encode_words(&[first * PAGE_BYTES, pages * PAGE_BYTES, 0]);
    let sent_micros = now_micros();
    let id = shared.canisters[canister];
    let (reply, endpoint) = match certified {
        true => {
            let done = client::call(&shared.endpoints, endpoint, id, "read_update", argument).await;
            match done.outcome {
                Outcome::Acknowledged { endpoint, .. } => (done.reply, endpoint),
                // A read without an answer has no information.
                _ => return,
            }
        }
        false => match query(&shared.endpoints[endpoint], id, "read", argument).await {
            Ok(reply) => (reply, endpoint),
            Err(_) => return,
        },
    };
    let ended_micros = now_micros();
    if let Ok(read) = ReadReply::decode(&reply) {
        shared.write(&Line::Read(ClientRead {
            client: number,
            endpoint,
            canister,
            certified,
            sent_micros,
            ended_micros,
            generation: read.generation,
            first,
            pages,
            runs: read.runs,
        }));
    }
}

/// A query whose node signature is verified.
pub(super) async fn query(
    endpoint: &Endpoint,
    canister: Principal,
    method: &str,
    argument: Vec<u8>,
) -> Result<Vec<u8>> {
    let asked = endpoint.agent.query(&canister, method).with_arg(argument).call_with_verification();
    Ok(tokio::time::timeout(Duration::from_secs(4), asked).await.context("no answer")??)
}
