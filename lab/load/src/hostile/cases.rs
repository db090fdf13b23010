//! The cases that are run against the nodes. A case is a function of the seed and its number, so
//! each can be reproduced alone; cases of the regression corpus have names and run first.

use std::{collections::BTreeMap, fmt, str::FromStr, time::Duration};

use anyhow::{Context, Result};
use candid::{Decode, Encode, Principal};
use demo::client as basics;
use ic_agent::{Agent, AgentError};
use ic_management_canister_types::{
    CanisterIdRecord, CanisterInstallMode, CanisterSettings, LoadCanisterSnapshotArgs,
    ProvisionalCreateCanisterWithCyclesArgs, Snapshot, TakeCanisterSnapshotArgs,
};
use rand::{Rng, SeedableRng, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;
use tokio::time::{sleep, timeout};

use super::{
    candid as hostile,
    candid::Value,
    forward,
    wasm::{self, Entry, Plan, Shape},
};

/// Time limit for a call of a case. A call that is still pending then is left to the judge.
const OUTCOME_WITHIN: Duration = Duration::from_secs(6);
/// For an installation: large modules are compiled.
const INSTALL_WITHIN: Duration = Duration::from_secs(20);
/// Cycles of a canister of a case.
const CYCLES: u64 = 1_000_000_000_000_000;
/// Cycles attached to calls of the management canister.
const ATTACHED: u64 = 1_000_000_000_000;
/// Time limit for calls of code that may run for long, and of calls on its canister.
const STEP_WITHIN: Duration = Duration::from_secs(3);
/// Time for timers and heartbeats to run.
const RUNS_FOR: Duration = Duration::from_millis(1_500);

/// Which case.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Id {
    /// A known one, by its name.
    Known(&'static str),
    /// One of the seed.
    Number(u64),
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(name) => f.write_str(name),
            Self::Number(number) => write!(f, "{number}"),
        }
    }
}

impl FromStr for Id {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(number) = text.parse() {
            return Ok(Self::Number(number));
        }
        let known = KNOWN.iter().find(|(name, _)| *name == text);
        known.map(|(name, _)| Self::Known(name)).ok_or_else(|| {
            let names: Vec<&str> = KNOWN.iter().map(|(name, _)| *name).collect();
            format!("`{text}` is no case: a number, or one of {}", names.join(", "))
        })
    }
}

/// The action of a case.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Bytes to a method of the management canister.
    Candid(Source),
    Module(Plan),
    /// Operations on a canister whose message is paused between two slices.
    Paused,
    /// Snapshots of a canister in any order, with uploads and loads.
    Snapshots,
    /// Requests to a server that does not keep to HTTP.
    Outcall,
}

#[derive(Clone, Copy, Debug)]
enum Source {
    Any,
    /// These bytes to that method, from a canister.
    Known(&'static str, fn() -> Vec<u8>),
}

/// Regression corpus: decoding, then metering, then one case of each other kind.
const KNOWN: [(&str, Kind); 14] = [
    ("vec-null", Kind::Candid(Source::Known("raw_rand", vec_null))),
    ("nested-opt", Kind::Candid(Source::Known("raw_rand", nested_opt))),
    ("nested-opt-deep", Kind::Candid(Source::Known("raw_rand", nested_opt_deep))),
    ("nested-opt-settings", Kind::Candid(Source::Known("update_settings", nested_opt))),
    ("environment", Kind::Candid(Source::Known("create_canister", environment))),
    ("types-doubling", Kind::Candid(Source::Known("raw_rand", doubling))),
    ("call-results", module(Shape::CallResults { functions: 250, values: 1_000 }, Entry::Update)),
    (
        "call-results-query",
        module(Shape::CallResults { functions: 250, values: 1_000 }, Entry::Query),
    ),
    ("live-locals", module(Shape::LiveLocals { locals: 4_000 }, Entry::Update)),
    ("loop-parameters", module(Shape::LoopParameters { values: 1_000 }, Entry::Timer)),
    ("stable-pages", once(Shape::StablePages { pages: 8_000 })),
    ("touch-pages", once(Shape::TouchPages { pages: 15_000 })),
    ("paused", Kind::Paused),
    ("snapshots", Kind::Snapshots),
];

const fn module(shape: Shape, entry: Entry) -> Kind {
    Kind::Module(Plan { shape, entry, repeats: u64::MAX })
}

const fn once(shape: Shape) -> Kind {
    Kind::Module(Plan { shape, entry: Entry::Update, repeats: 1 })
}

fn vec_null() -> Vec<u8> {
    hostile::message(&[hostile::zero_sized(1 << 60, -1)])
}

fn nested_opt() -> Vec<u8> {
    hostile::message(&[hostile::nested_opt(3_004)])
}

fn nested_opt_deep() -> Vec<u8> {
    hostile::message(&[hostile::nested_opt(9_000)])
}

/// As many empty environment variables as fit into a message.
fn environment() -> Vec<u8> {
    let variable = Value::record([("name", Value::text("")), ("value", Value::text(""))]);
    let settings = Value::record([(
        "environment_variables",
        Value::Opt(Box::new(Value::Vec(vec![variable; 900_000]))),
    )]);
    Value::record([("settings", Value::Opt(Box::new(settings)))]).encode()
}

fn doubling() -> Vec<u8> {
    let entry = hostile::Type::Entry;
    let table = (1..=40)
        .map(|at| hostile::Entry::Record(vec![(0, entry(at)), (1, entry(at))]))
        .chain([hostile::Entry::Record(vec![])])
        .collect();
    hostile::message(&[hostile::Payload { table, root: entry(0), value: vec![] }])
}

/// Known cases that run until they are out of instructions: too much for a short run.
const LONG: [&str; 3] = ["call-results", "live-locals", "loop-parameters"];

/// The known cases, in the order in which they run.
pub(super) fn known(short: bool) -> impl Iterator<Item = Id> {
    let names = KNOWN.iter().map(|(name, _)| *name);
    names.filter(move |name| !short || !LONG.contains(name)).map(Id::Known)
}

/// The environment of the cases.
#[derive(Clone)]
pub(super) struct Ground {
    pub(super) agents: Vec<Agent>,
    pub(super) user: Principal,
    pub(super) forwarder: Principal,
    /// The canister named in the arguments of Candid cases.
    pub(super) victim: Principal,
    /// Port of the server for outcalls.
    pub(super) server: u16,
}

/// The result of a case.
#[derive(Debug)]
pub(super) struct Outcome {
    /// Description for a reader.
    pub(super) what: String,
    /// `replied`, `rejected`, `refused` (by the gateway) or `open` (no outcome in time).
    pub(super) ended: &'static str,
    /// The first words of the answer.
    pub(super) answer: String,
}

/// Random numbers of a case.
fn random(seed: u64, id: &Id) -> ChaCha8Rng {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    random.set_stream(match id {
        Id::Known(name) => hostile::field(name).into(),
        Id::Number(number) => (1 << 40) + number,
    });
    random
}

fn kind(id: &Id, random: &mut ChaCha8Rng) -> Kind {
    if let Id::Known(name) = id
        && let Some((_, kind)) = KNOWN.iter().find(|(known, _)| known == name)
    {
        return *kind;
    }
    match random.gen_range(0..100) {
        0..55 => Kind::Candid(Source::Any),
        55..78 => Kind::Module(Plan::any(random)),
        78..88 => Kind::Paused,
        88..94 => Kind::Snapshots,
        _ => Kind::Outcall,
    }
}

/// The name under which a case is counted.
pub(super) fn family(seed: u64, id: &Id) -> &'static str {
    match kind(id, &mut random(seed, id)) {
        Kind::Candid(_) => "candid",
        Kind::Module(_) => "module",
        Kind::Paused => "paused",
        Kind::Snapshots => "snapshots",
        Kind::Outcall => "outcall",
    }
}

/// Description of a case, as far as it is known before the case runs.
pub(super) fn describe(seed: u64, id: &Id) -> String {
    match (id, kind(id, &mut random(seed, id))) {
        (Id::Known(name), _) => (*name).to_owned(),
        (Id::Number(number), Kind::Candid(_)) => format!("{number} (candid)"),
        (Id::Number(number), Kind::Module(plan)) => {
            format!("{number} ({:?} run by {:?} {} times)", plan.shape, plan.entry, plan.repeats)
        }
        (Id::Number(number), kind) => format!("{number} ({kind:?})").to_lowercase(),
    }
}

pub(super) async fn run(seed: u64, id: &Id, ground: &Ground) -> Outcome {
    let mut random = random(seed, id);
    let done = match kind(id, &mut random) {
        Kind::Candid(source) => return candid(source, ground, &mut random).await,
        Kind::Module(plan) => run_module(&plan, ground, &mut random).await,
        Kind::Paused => paused(ground, &mut random).await,
        Kind::Snapshots => snapshots(ground, &mut random).await,
        Kind::Outcall => return outcall(ground, &mut random).await,
    };
    done.unwrap_or_else(|error| Outcome {
        what: "a canister for the case".into(),
        ended: "refused",
        answer: format!("{error:#}"),
    })
}

fn ended(
    answer: Result<Result<Vec<u8>, AgentError>, tokio::time::error::Elapsed>,
) -> (&'static str, String) {
    match answer {
        Ok(Ok(reply)) => match reply.split_first() {
            // The forwarder reports its callee's reject.
            Some((&forward::REJECTED, rest)) if rest.len() >= 8 => {
                ("rejected", String::from_utf8_lossy(&rest[8..]).into_owned())
            }
            _ => ("replied", format!("{} bytes", reply.len())),
        },
        Ok(Err(
            AgentError::CertifiedReject { reject, .. }
            | AgentError::UncertifiedReject { reject, .. },
        )) => ("rejected", reject.reject_message),
        Ok(Err(error)) => ("refused", error.to_string()),
        Err(_) => ("open", String::new()),
    }
}

fn outcome(what: String, (ended, answer): (&'static str, String)) -> Outcome {
    Outcome { what, ended, answer: answer.chars().take(200).collect() }
}

#[derive(Clone, Copy, Debug)]
enum Channel {
    Ingress,
    Query,
    Canister,
}

async fn candid(source: Source, ground: &Ground, random: &mut ChaCha8Rng) -> Outcome {
    let (method, words, bytes, channel) = match source {
        Source::Known(method, bytes) => (method, String::new(), bytes(), Channel::Canister),
        Source::Any => {
            let method = hostile::METHODS[random.gen_range(0..hostile::METHODS.len())];
            let query = hostile::QUERIES.contains(&method) && random.gen_bool(0.4);
            let channel = match random.gen_range(0..10) {
                _ if query => Channel::Query,
                0..4 => Channel::Ingress,
                _ => Channel::Canister,
            };
            let (words, bytes) = any_message(method, ground, random);
            (method, words, bytes, channel)
        }
    };
    let what = format!("{method} by {channel:?}: {words}, {} bytes", bytes.len());
    let agent = &ground.agents[random.gen_range(0..ground.agents.len())];
    let management = Principal::management_canister();
    let answer = match channel {
        Channel::Ingress => {
            let call = agent
                .update(&management, method)
                .with_effective_canister_id(ground.victim)
                .with_arg(bytes);
            timeout(OUTCOME_WITHIN, call.call_and_wait()).await
        }
        Channel::Query => {
            let ask = agent
                .query(&management, method)
                .with_effective_canister_id(ground.victim)
                .with_arg(bytes);
            timeout(OUTCOME_WITHIN, ask.call()).await
        }
        Channel::Canister => {
            let program = forward::call(&management, method, &bytes, ATTACHED);
            let call = agent.update(&ground.forwarder, "update").with_arg(program);
            timeout(OUTCOME_WITHIN, call.call_and_wait()).await
        }
    };
    outcome(what, ended(answer))
}

fn any_message(method: &str, ground: &Ground, random: &mut ChaCha8Rng) -> (String, Vec<u8>) {
    if random.gen_bool(0.3) {
        return hostile::hostile(random);
    }
    let victim = ground.victim;
    let mut value = hostile::argument(method, victim.as_slice(), ground.user.as_slice(), random);
    let mut words = hostile::mutated(&mut value, random);
    let mut bytes = value.encode();
    if random.gen_bool(0.3) {
        words.push(hostile::mutated_bytes(&mut bytes, random));
    }
    (words.join(", "), bytes)
}

/// A new canister whose controllers are the user and the forwarder.
pub(super) async fn create(
    agent: &Agent,
    user: Principal,
    also: Option<Principal>,
) -> Result<Principal> {
    let controllers = [user].into_iter().chain(also).collect();
    let arguments = ProvisionalCreateCanisterWithCyclesArgs {
        amount: Some(CYCLES.into()),
        settings: Some(CanisterSettings {
            controllers: Some(controllers),
            ..CanisterSettings::default()
        }),
        ..ProvisionalCreateCanisterWithCyclesArgs::default()
    };
    let management = Principal::management_canister();
    let created = agent
        .update(&management, "provisional_create_canister_with_cycles")
        .with_effective_canister_id(management)
        .with_arg(Encode!(&arguments)?)
        .call_and_wait();
    let created = timeout(INSTALL_WITHIN, created).await.context("no canister in time")??;
    let record = Decode!(&created, CanisterIdRecord)?;
    Ok(record.canister_id)
}

/// A method of the management canister with a valid argument.
async fn manage(
    agent: &Agent,
    canister: Principal,
    method: &str,
    argument: Vec<u8>,
    within: Duration,
) -> (&'static str, Vec<u8>, String) {
    let call = agent
        .update(&Principal::management_canister(), method)
        .with_effective_canister_id(canister)
        .with_arg(argument);
    match timeout(within, call.call_and_wait()).await {
        Ok(Ok(reply)) => ("replied", reply, String::new()),
        other => {
            let (ended, text) = ended(other);
            (ended, vec![], text)
        }
    }
}

/// Removes a canister of a case in the background: these calls wait for paused messages.
fn remove(agent: &Agent, canister: Principal) {
    let Ok(record) = Encode!(&CanisterIdRecord { canister_id: canister }) else { return };
    let agent = agent.clone();
    // Bounded by the time limits of its three calls.
    tokio::spawn(async move {
        for method in ["uninstall_code", "stop_canister", "delete_canister"] {
            manage(&agent, canister, method, record.clone(), INSTALL_WITHIN).await;
        }
    });
}

async fn install(
    agent: &Agent,
    canister: Principal,
    mode: CanisterInstallMode,
    module: Vec<u8>,
) -> (&'static str, String) {
    let installed = basics::install(agent, canister, mode, module, vec![]);
    match timeout(INSTALL_WITHIN, installed).await {
        Ok(Ok(())) => ("replied", String::new()),
        Ok(Err(error)) => match error.downcast::<AgentError>() {
            Ok(error) => ended(Ok(Err(error))),
            Err(error) => ("refused", format!("{error:#}")),
        },
        Err(_) => ("open", String::new()),
    }
}

async fn run_module(plan: &Plan, ground: &Ground, random: &mut ChaCha8Rng) -> Result<Outcome> {
    let agent = &ground.agents[random.gen_range(0..ground.agents.len())];
    let canister = create(agent, ground.user, None).await?;
    let module = wasm::module(plan);
    let (Plan { shape, entry, repeats }, size) = (plan, module.len());
    let what = format!("{shape:?} run by {entry:?}, {repeats} times, {size} bytes");
    let mut result = install(agent, canister, CanisterInstallMode::Install, module).await;
    if result.0 == "replied" {
        match plan.entry {
            Entry::Update | Entry::Inspect => {
                let call = agent.update(&canister, "go").with_arg(vec![]);
                let second = agent.update(&canister, "go").with_arg(vec![1]);
                let both = async { tokio::join!(call.call_and_wait(), second.call_and_wait()).0 };
                result = ended(timeout(STEP_WITHIN, both).await);
            }
            Entry::Query => {
                // More at once than a node has query workers, at every node.
                let mut asked = tokio::task::JoinSet::new();
                for turn in 0..6_u8 {
                    let agent = ground.agents[usize::from(turn) % ground.agents.len()].clone();
                    asked.spawn(async move {
                        let ask = agent.query(&canister, "ask").with_arg(vec![turn]);
                        timeout(STEP_WITHIN, ask.call()).await
                    });
                }
                while let Some(Ok(answer)) = asked.join_next().await {
                    result = ended(answer);
                }
            }
            Entry::Heartbeat | Entry::Timer => sleep(RUNS_FOR).await,
            Entry::PreUpgrade | Entry::PostUpgrade => {
                let next = match plan.entry {
                    Entry::PreUpgrade => wasm::harmless(),
                    _ => wasm::module(plan),
                };
                result = install(agent, canister, CanisterInstallMode::Upgrade(None), next).await;
            }
            Entry::Init | Entry::Start => {}
        }
    }
    remove(agent, canister);
    Ok(outcome(what, result))
}

/// Management calls on a canister whose message takes several slices.
async fn paused(ground: &Ground, random: &mut ChaCha8Rng) -> Result<Outcome> {
    let agent = &ground.agents[random.gen_range(0..ground.agents.len())];
    let canister = create(agent, ground.user, None).await?;
    // Some slices long: a message without an end would hold up what comes after the case.
    let shapes = [
        (Shape::Arithmetic, 30_000_000),
        (Shape::TouchPages { pages: 500 }, 1_200_000),
        (Shape::StablePages { pages: 300 }, 200_000),
    ];
    let (shape, repeats) = shapes[random.gen_range(0..shapes.len())];
    let entry =
        *[Entry::Update, Entry::Timer, Entry::Heartbeat].choose(random).unwrap_or(&Entry::Update);
    let plan = Plan { shape, entry, repeats };
    let first = install(agent, canister, CanisterInstallMode::Install, wasm::module(&plan)).await;
    let mut calls = tokio::task::JoinSet::new();
    for turn in 0..2_u8 {
        let agent = agent.clone();
        calls.spawn(async move {
            let call = agent.update(&canister, "go").with_arg(vec![turn]);
            drop(timeout(OUTCOME_WITHIN * 2, call.call_and_wait()).await);
        });
    }
    sleep(Duration::from_millis(random.gen_range(100..1_200))).await;
    let record = Encode!(&CanisterIdRecord { canister_id: canister })?;
    let mut snapshots: Vec<Vec<u8>> = Vec::new();
    let mut words = vec![format!("{:?} by {:?}", plan.shape, plan.entry)];
    for _ in 0..random.gen_range(1..6) {
        let (name, ended) = match random.gen_range(0..9) {
            4 => ("snapshot", take(agent, canister, &mut snapshots).await),
            5 => ("load", load(agent, canister, &snapshots, random).await),
            6 => {
                let mode = CanisterInstallMode::Upgrade(None);
                ("upgrade", install(agent, canister, mode, wasm::harmless()).await.0)
            }
            7 => {
                let mode = CanisterInstallMode::Reinstall;
                ("reinstall", install(agent, canister, mode, wasm::module(&plan)).await.0)
            }
            step => {
                let (name, method) = match step {
                    0 => ("stop", "stop_canister"),
                    1 => ("start", "start_canister"),
                    2 => ("uninstall", "uninstall_code"),
                    3 => ("delete", "delete_canister"),
                    _ => ("status", "canister_status"),
                };
                (name, manage(agent, canister, method, record.clone(), STEP_WITHIN).await.0)
            }
        };
        words.push(format!("{name} {ended}"));
    }
    remove(agent, canister);
    calls.shutdown().await;
    Ok(outcome(words.join(", "), first))
}

async fn take(agent: &Agent, canister: Principal, snapshots: &mut Vec<Vec<u8>>) -> &'static str {
    let arguments = TakeCanisterSnapshotArgs {
        canister_id: canister,
        replace_snapshot: None,
        uninstall_code: None,
        sender_canister_version: None,
    };
    let Ok(argument) = Encode!(&arguments) else { return "refused" };
    let (ended, reply, _) =
        manage(agent, canister, "take_canister_snapshot", argument, STEP_WITHIN).await;
    if let Ok(snapshot) = Decode!(&reply, Snapshot) {
        snapshots.push(snapshot.id);
    }
    ended
}

async fn load(
    agent: &Agent,
    canister: Principal,
    snapshots: &[Vec<u8>],
    random: &mut ChaCha8Rng,
) -> &'static str {
    let snapshot_id = snapshots.choose(random).cloned().unwrap_or_else(|| vec![1; 18]);
    let arguments = LoadCanisterSnapshotArgs {
        canister_id: canister,
        snapshot_id,
        sender_canister_version: None,
    };
    let Ok(argument) = Encode!(&arguments) else { return "refused" };
    manage(agent, canister, "load_canister_snapshot", argument, STEP_WITHIN).await.0
}

/// Snapshots by their real ids: mutated reads, uploads, loads and deletions of them.
async fn snapshots(ground: &Ground, random: &mut ChaCha8Rng) -> Result<Outcome> {
    let agent = &ground.agents[random.gen_range(0..ground.agents.len())];
    let canister = create(agent, ground.user, None).await?;
    let plan = Plan {
        shape: Shape::TouchPages { pages: random.gen_range(1..2_000) },
        entry: Entry::Init,
        repeats: 1,
    };
    let mut result =
        install(agent, canister, CanisterInstallMode::Install, wasm::module(&plan)).await;
    let mut taken: Vec<Vec<u8>> = Vec::new();
    let mut words = Vec::new();
    for _ in 0..random.gen_range(3..10) {
        let methods = [
            "take_canister_snapshot",
            "load_canister_snapshot",
            "delete_canister_snapshot",
            "read_canister_snapshot_metadata",
            "read_canister_snapshot_data",
            "upload_canister_snapshot_metadata",
            "upload_canister_snapshot_data",
            "list_canister_snapshots",
        ];
        let method = methods[random.gen_range(0..methods.len())];
        let mut value =
            hostile::argument(method, canister.as_slice(), ground.user.as_slice(), random);
        if let (Value::Record(fields), Some(known)) = (&mut value, taken.choose(random)) {
            let id = hostile::field("snapshot_id");
            for (_, value) in fields.iter_mut().filter(|(name, _)| *name == id) {
                *value = Value::Blob(known.clone());
            }
        }
        if random.gen_bool(0.3) {
            hostile::mutated(&mut value, random);
        }
        let (ended, reply, text) =
            manage(agent, canister, method, value.encode(), OUTCOME_WITHIN).await;
        if let Ok(snapshot) = Decode!(&reply, Snapshot) {
            taken.push(snapshot.id);
        }
        words.push(format!("{method} {ended}"));
        result = (ended, text);
    }
    remove(agent, canister);
    Ok(outcome(words.join(", "), result))
}

/// A canister asks the hostile server.
async fn outcall(ground: &Ground, random: &mut ChaCha8Rng) -> Outcome {
    let manner = random.gen_range(0..super::server::MANNERS);
    let url = format!("http://127.0.0.1:{}/{manner}/{}", ground.server, random.r#gen::<u32>());
    let method = ["get", "post", "head"][random.gen_range(0..3)];
    let value = Value::record([
        ("url", Value::text(&url)),
        ("max_response_bytes", Value::Opt(Box::new(Value::Nat64(random.gen_range(0..200_000))))),
        ("headers", Value::Vec(vec![])),
        ("body", Value::Opt(Box::new(Value::Blob(vec![7; random.gen_range(0..2_000)])))),
        ("method", Value::Variant(hostile::field(method), Box::new(Value::Null))),
        ("is_replicated", Value::Opt(Box::new(Value::Bool(random.r#gen())))),
    ]);
    let management = Principal::management_canister();
    let program = forward::call(&management, "http_request", &value.encode(), ATTACHED);
    let agent = &ground.agents[random.gen_range(0..ground.agents.len())];
    let call = agent.update(&ground.forwarder, "update").with_arg(program);
    let answer = timeout(OUTCOME_WITHIN, call.call_and_wait()).await;
    outcome(format!("outcall by {method} of {url}"), ended(answer))
}

/// Number of cases per family and ending.
pub(super) type Tally = BTreeMap<&'static str, BTreeMap<&'static str, u64>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_cases_are_found_by_name_and_others_by_number() {
        for id in known(false) {
            assert_eq!(id.to_string().parse::<Id>().unwrap(), id);
        }
        assert_eq!("17".parse::<Id>().unwrap(), Id::Number(17));
        assert!("nothing".parse::<Id>().unwrap_err().contains("vec-null"));
    }

    #[test]
    fn every_family_comes_up_among_the_cases_of_a_seed() {
        let families: std::collections::BTreeSet<&str> =
            (0..200).map(|number| family(1, &Id::Number(number))).collect();
        assert_eq!(families.len(), 5);
    }
}
