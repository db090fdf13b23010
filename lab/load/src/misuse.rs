//! `thimble-lab misuse`: clients that send adversarial traffic. `chaos` runs it in addition to its
//! recorder.
//!
//! Three of them work at once, each at endpoints of its choice:
//!
//! - one sends each call to every node in another envelope: the same signed content, and an
//!   unsigned field of another size for each node;
//! - one sends many queries at once to a single node, which run until they are out of instructions;
//! - one installs modules that were never seen before, so that a compilation is always running.
//!
//! The responses are checked: a call in several envelopes happens once at most, and a valid module
//! is never refused. Transport errors and expired calls are not checked: faults that are injected
//! meanwhile cause those.

use std::{
    collections::BTreeSet,
    process::ExitCode,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use candid::Principal;
use clap::Args;
use cli::{Stop, lock};
use ic_agent::{Agent, AgentError};
use ic_management_canister_types::CanisterInstallMode;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_cbor_2::Value;
use tokio::time::{Instant, sleep, timeout};
use wasm_encoder::{
    BlockType, CodeSection, ExportKind, ExportSection, Function, FunctionSection, Module,
    TypeSection, ValType,
};

use demo::client as basics;

use crate::hammer::protocol;

/// The module that counts.
const COUNTER: &[u8] = include_bytes!("../../../canisters/wasm/hammer-c.wasm");
/// Cycles of a new canister: no run is long enough to use them up.
const CYCLES: u64 = 1_000_000_000_000_000_000;
/// For nodes to serve, and for the canisters to be made.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// For the outcome of a call.
const OUTCOME_WITHIN: Duration = Duration::from_secs(20);
/// For one answer of one endpoint.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// For the last call, after everything is healed.
const LAST_WITHIN: Duration = Duration::from_secs(90);
/// Bytes of the unsigned field at one node or another.
const PADDING_BYTES: [usize; 4] = [0, 200, 150_000, 1_500_000];
/// Queries that one node is asked at once.
const BURST: usize = 6;
/// Functions of a module: some hundred milliseconds for the compiler.
const FUNCTIONS: u32 = 1_500;
/// Sentences about what must not be are kept up to this many.
const BROKEN_MAX: usize = 20;

/// Command line of `thimble-lab misuse`.
#[derive(Args)]
pub struct Options {
    /// A public endpoint; repeatable, for the nodes of one subnet.
    #[arg(long, value_name = "URL", required = true)]
    endpoint: Vec<String>,
    /// Of what the clients do.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// End after so long. [default: at Ctrl-C or SIGTERM]
    #[arg(long)]
    seconds: Option<u64>,
}

struct Node {
    url: String,
    agent: Agent,
}

struct MisuseRun {
    nodes: Vec<Node>,
    http: reqwest::Client,
    counter: Principal,
    spinner: Principal,
    target: Principal,
    counts: Counts,
    /// Count returned by each acknowledged call.
    acknowledged_counts: Mutex<BTreeSet<u64>>,
    broken: Mutex<Vec<String>>,
}

#[derive(Default)]
struct Counts {
    /// Calls sent in several envelopes, and those of them that were acknowledged.
    sent: AtomicU64,
    acknowledged: AtomicU64,
    queries: AtomicU64,
    /// Modules whose install was tried, and those that were installed.
    modules: AtomicU64,
    installed: AtomicU64,
}

impl MisuseRun {
    fn broken(&self, text: String) {
        let mut broken = lock(&self.broken);
        if broken.len() < BROKEN_MAX {
            println!("misuse: BROKEN: {text}");
            broken.push(text);
        }
    }

    /// A call of the counter was acknowledged with this reply.
    fn acknowledged(&self, reply: &[u8]) {
        let Ok(value) = protocol::first_word(reply) else {
            return self
                .broken(format!("an acknowledged call was answered with {} bytes", reply.len()));
        };
        self.counts.acknowledged.fetch_add(1, Relaxed);
        if !lock(&self.acknowledged_counts).insert(value) {
            self.broken(format!("two acknowledged calls both got the number {value}"));
        }
    }
}

/// Misuses the subnet until a stop is requested, then reports the result. Exit status 1 when a
/// check failed.
pub async fn run(options: Options) -> Result<ExitCode> {
    let asked = Stop::by_signal(|| {})?;
    let shared = prepare(&options.endpoint).await?;
    println!("misuse: at work");
    let of =
        |number: u64| ChaCha8Rng::seed_from_u64(options.seed.wrapping_mul(4).wrapping_add(number));
    let (stop_tx, stop) = Stop::new();
    tokio::join!(
        call_in_several_envelopes(&shared, of(1), &stop),
        ask_slowly(&shared, of(2), &stop),
        install_new_modules(&shared, of(3), &stop),
        async {
            asked.requested_within(options.seconds).await;
            stop_tx.send_replace(true);
        },
    );
    finish(&shared).await;
    let counts = &shared.counts;
    println!(
        "misuse: {} calls in several envelopes, {} acknowledged, each once; {} slow queries; {} \
         of {} new modules installed",
        counts.sent.load(Relaxed),
        counts.acknowledged.load(Relaxed),
        counts.queries.load(Relaxed),
        counts.installed.load(Relaxed),
        counts.modules.load(Relaxed),
    );
    let good = lock(&shared.broken).is_empty();
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn prepare(urls: &[String]) -> Result<MisuseRun> {
    let mut nodes = Vec::new();
    for url in urls {
        let agent = basics::connect(url, READY_WITHIN).await?;
        nodes.push(Node { url: url.trim_end_matches('/').to_owned(), agent });
    }
    let first = nodes.first().context("there is no endpoint")?.agent.clone();
    let create = async |module: Vec<u8>, arg: Vec<u8>| -> Result<Principal> {
        let canister = Box::pin(basics::create(&first, Some(CYCLES))).await?;
        basics::install(&first, canister, CanisterInstallMode::Install, module, arg).await?;
        Ok(canister)
    };
    let counter = create(COUNTER.to_vec(), protocol::encode_words(&[1])).await?;
    let spinner = create(spinning_module(), vec![]).await?;
    let target = create(new_module(0), vec![]).await?;
    Ok(MisuseRun {
        nodes,
        http: demo::client::http().timeout(ANSWER_WITHIN).build()?,
        counter,
        spinner,
        target,
        counts: Counts::default(),
        acknowledged_counts: Mutex::default(),
        broken: Mutex::default(),
    })
}

/// Waits between two pieces of work, unless it is time to stop; returns whether to continue.
async fn pause(stop: &Stop, millis: u64) -> bool {
    timeout(Duration::from_millis(millis), stop.requested()).await.is_err()
}

async fn call_in_several_envelopes(shared: &MisuseRun, mut random: ChaCha8Rng, stop: &Stop) {
    while pause(stop, random.gen_range(100..1500)).await {
        let signer = &shared.nodes[random.gen_range(0..shared.nodes.len())].agent;
        let Ok(signed) = signer.update(&shared.counter, "inc").with_arg(vec![]).sign() else {
            continue;
        };
        shared.counts.sent.fetch_add(1, Relaxed);
        let turn = random.gen_range(0..PADDING_BYTES.len());
        let mut posts = tokio::task::JoinSet::new();
        for (index, node) in shared.nodes.iter().enumerate() {
            let padding = PADDING_BYTES[(index + turn) % PADDING_BYTES.len()];
            let Ok(body) = padded(&signed.signed_update, padding) else { continue };
            let url = format!("{}/api/v2/canister/{}/call", node.url, shared.counter);
            let post =
                shared.http.post(url).header("content-type", "application/cbor").body(body).send();
            posts.spawn(post);
        }
        // Refusals and transport errors do not count; the outcome is that of a certificate.
        posts.join_all().await;
        let deadline = Instant::now() + OUTCOME_WITHIN;
        let mut at = random.gen_range(0..shared.nodes.len());
        while Instant::now() < deadline {
            at = (at + 1) % shared.nodes.len();
            let wait = shared.nodes[at].agent.wait(&signed.request_id, shared.counter);
            match timeout(ANSWER_WITHIN, wait).await {
                Ok(Ok((reply, _))) => {
                    shared.acknowledged(&reply);
                    break;
                }
                Ok(Err(AgentError::CertifiedReject { reject, .. })) => {
                    let text = &reject.reject_message;
                    shared.broken(format!("a call in several envelopes was rejected: {text}"));
                    break;
                }
                Ok(Err(_)) => sleep(Duration::from_millis(100)).await,
                Err(_) => {}
            }
        }
    }
}

/// An envelope with an unsigned field of `bytes` added; unchanged for 0.
fn padded(envelope: &[u8], bytes: usize) -> Result<Vec<u8>> {
    let Value::Map(mut fields) = serde_cbor_2::from_slice(envelope)? else {
        anyhow::bail!("an envelope is a map")
    };
    if bytes > 0 {
        fields.insert(Value::Text("padding".into()), Value::Bytes(vec![7; bytes]));
    }
    let mut body = vec![0xd9, 0xd9, 0xf7];
    body.extend(serde_cbor_2::to_vec(&Value::Map(fields))?);
    Ok(body)
}

async fn ask_slowly(shared: &MisuseRun, mut random: ChaCha8Rng, stop: &Stop) {
    while pause(stop, random.gen_range(500..6000)).await {
        let agent = &shared.nodes[random.gen_range(0..shared.nodes.len())].agent;
        let mut burst = tokio::task::JoinSet::new();
        for _ in 0..BURST {
            let (agent, spinner) = (agent.clone(), shared.spinner);
            // Each is another question: a reply that was kept answers none of them.
            let argument = random.r#gen::<u64>().to_le_bytes().to_vec();
            burst.spawn(async move {
                let ask = agent.query(&spinner, "spin").with_arg(argument).call();
                drop(timeout(OUTCOME_WITHIN, ask).await);
            });
        }
        shared.counts.queries.fetch_add(BURST as u64, Relaxed);
        burst.join_all().await;
    }
}

async fn install_new_modules(shared: &MisuseRun, mut random: ChaCha8Rng, stop: &Stop) {
    while pause(stop, random.gen_range(100..1000)).await {
        let agent = &shared.nodes[random.gen_range(0..shared.nodes.len())].agent;
        shared.counts.modules.fetch_add(1, Relaxed);
        let module = new_module(random.r#gen());
        let install =
            basics::install(agent, shared.target, CanisterInstallMode::Reinstall, module, vec![]);
        match timeout(OUTCOME_WITHIN, install).await {
            Ok(Ok(())) => drop(shared.counts.installed.fetch_add(1, Relaxed)),
            Ok(Err(error)) => {
                if let Some(AgentError::CertifiedReject { reject, .. }) = error.downcast_ref() {
                    let text = &reject.reject_message;
                    shared.broken(format!("a valid module was refused: {text}"));
                }
            }
            Err(_) => {}
        }
    }
}

/// One more call through every node: its reply is the number of calls that ever happened.
async fn finish(shared: &MisuseRun) {
    let deadline = Instant::now() + LAST_WITHIN;
    for node in &shared.nodes {
        loop {
            let call = node.agent.update(&shared.counter, "inc").with_arg(vec![]).call_and_wait();
            // However often it is tried here, each try may have happened.
            shared.counts.sent.fetch_add(1, Relaxed);
            match timeout(OUTCOME_WITHIN, call).await {
                Ok(Ok(reply)) => {
                    shared.acknowledged(&reply);
                    break;
                }
                _ if Instant::now() < deadline => sleep(Duration::from_millis(200)).await,
                _ => {
                    let within = LAST_WITHIN.as_secs();
                    shared.broken(format!(
                        "{} acknowledged nothing within {within} s of the end",
                        node.url
                    ));
                    break;
                }
            }
        }
    }
    let most = lock(&shared.acknowledged_counts).last().copied().unwrap_or(0);
    let (sent, acknowledged) =
        (shared.counts.sent.load(Relaxed), shared.counts.acknowledged.load(Relaxed));
    if most > sent || most < acknowledged {
        shared.broken(format!(
            "the counter is at {most}: {sent} calls were sent, {acknowledged} acknowledged"
        ));
    }
}

/// A module of one function type with these bodies.
fn module(parameters: &[ValType], exports: Option<ExportSection>, bodies: &[Function]) -> Vec<u8> {
    let (mut types, mut functions) = (TypeSection::new(), FunctionSection::new());
    types.ty().function(parameters.to_vec(), parameters.to_vec());
    let mut code = CodeSection::new();
    for body in bodies {
        functions.function(0);
        code.function(body);
    }
    let mut module = Module::new();
    module.section(&types).section(&functions);
    if let Some(exports) = exports {
        module.section(&exports);
    }
    module.section(&code);
    module.finish()
}

/// `canister_query spin` never ends by itself.
fn spinning_module() -> Vec<u8> {
    let mut exports = ExportSection::new();
    exports.export("canister_query spin", ExportKind::Func, 0);
    let mut body = Function::new([]);
    body.instructions().loop_(BlockType::Empty).br(0).end().end();
    module(&[], Some(exports), &[body])
}

/// A valid module that differs from that of every other number.
fn new_module(number: u32) -> Vec<u8> {
    let body = |index: u32| {
        // One byte of a signed constant, so that no bit of it means a sign.
        let digit = ((number >> (index % 5 * 6)) & 0x3f).into();
        // The argument times a constant, and that plus the argument.
        let mut body = Function::new([]);
        let mut code = body.instructions();
        code.local_get(0).i64_const(digit).i64_mul().local_get(0).i64_add().end();
        body
    };
    module(&[ValType::I64], None, &(0..FUNCTIONS).map(body).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn envelopes_differ_in_what_is_not_signed() {
        let mut fields = std::collections::BTreeMap::new();
        fields.insert(Value::Text("content".into()), Value::Bytes(vec![1, 2, 3]));
        let envelope = serde_cbor_2::to_vec(&Value::Map(fields.clone())).unwrap();
        for bytes in PADDING_BYTES {
            let body = padded(&envelope, bytes).unwrap();
            assert!(body.len() >= bytes && body.starts_with(&[0xd9, 0xd9, 0xf7]));
            let Value::Map(mut again) = serde_cbor_2::from_slice(&body).unwrap() else {
                panic!("a map")
            };
            assert_eq!(again.remove(&Value::Text("padding".into())).is_some(), bytes > 0);
            assert_eq!(again, fields);
        }
    }

    #[test]
    fn modules_are_all_different() {
        let modules: BTreeSet<_> = (0..64).chain([1 << 29]).map(new_module).collect();
        assert_eq!(modules.len(), 65);
        assert!(modules.iter().all(|module| module.starts_with(b"\0asm")));
    }
}
