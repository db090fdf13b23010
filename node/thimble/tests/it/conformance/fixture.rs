//! The node that all tests share, and canisters of it that wait to be used.

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    path::Path,
    process::Command,
    sync::LazyLock,
};

use candid::{Encode, Principal};
use ic_agent::{Agent, AgentError, identity::AnonymousIdentity};
use ic_management_canister_types::{CanisterInstallMode, CanisterSettings, EnvironmentVariable};
use tokio::{
    runtime::Runtime,
    sync::{Mutex, mpsc},
};

use super::{
    harness::{self, Node},
    kit::Authority,
    program::Program,
};

/// Number of canisters that are made at once, and number of ready ones that wait.
const MAKERS: usize = 8;
const WAITING: usize = 16;

pub(crate) struct World {
    pub(crate) url: String,
    /// Controls the canisters of [`canister`].
    pub(crate) agent: Agent,
    /// Controls nothing.
    pub(crate) stranger: Agent,
    pub(crate) anonymous: Agent,
    canisters: Mutex<mpsc::Receiver<Universal>>,
}

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
});

static WORLD: LazyLock<World> = LazyLock::new(|| RUNTIME.block_on(begin()));

static AUTHORITY: LazyLock<Authority> = LazyLock::new(Authority::new);

/// The authority of servers that the node trusts.
pub(crate) fn authority() -> &'static Authority {
    &AUTHORITY
}

/// Runs a test against the shared node.
pub(crate) fn run<T>(test: impl AsyncFnOnce(&'static World) -> T) -> T {
    RUNTIME.block_on(test(&WORLD))
}

/// Statics are never dropped, so the node must end with this process in another way: a separate
/// shell reads from a pipe that only this process holds open for writing, whichever way it ends,
/// then kills the node and removes its folder.
fn watched(folder: &Path) -> (String, File) {
    let pipe = folder.join("alive");
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success(), "mkfifo: {made}");
    let held = OpenOptions::new().read(true).write(true).open(&pipe).unwrap();
    let folder = folder.display();
    let prelude = format!(
        "node=$$; ( ( read -r nothing <'{folder}/alive' || kill -KILL $node; \
         rm -rf '{folder}' ) & )"
    );
    (prelude, held)
}

async fn begin() -> World {
    let folder = tempfile::tempdir().unwrap().keep();
    let (prelude, held) = watched(&folder);
    // As long as this process.
    std::mem::forget(held);
    let outcalls = authority().configuration(&folder);
    let config = format!(
        "{outcalls}[limits.outcalls]\nrequest_millis = 4000\n\
         [limits.execution]\nquery_stats_period_rounds = 5\n"
    );
    let node = Node::start_as_in(folder.join("data"), None, "1GiB", &config, &prelude).await;
    let agent = node.agent(1).await;
    let stranger = node.agent(2).await;
    let anonymous = node.agent_with(AnonymousIdentity).await;
    let (made, canisters) = mpsc::channel(WAITING);
    for _ in 0..MAKERS {
        let (made, agent) = (made.clone(), agent.clone());
        tokio::spawn(async move { while made.send(new_canister(&agent).await).await.is_ok() {} });
    }
    let url = node.url.clone();
    std::mem::forget(node);
    World { url, agent, stranger, anonymous, canisters: Mutex::new(canisters) }
}

/// The module of the universal canister.
pub(crate) fn module() -> Vec<u8> {
    std::fs::read(harness::fixture("universal-c.wasm")).unwrap()
}

/// Settings with the environment variable that [`super::imports::probe`] reads.
pub(crate) fn settings() -> CanisterSettings {
    let probe = EnvironmentVariable { name: "probe".into(), value: "value".into() };
    CanisterSettings { environment_variables: Some(vec![probe]), ..Default::default() }
}

async fn new_canister(agent: &Agent) -> Universal {
    let id = harness::create_with(agent, Some(settings())).await.unwrap();
    harness::install(agent, id, CanisterInstallMode::Install, module(), vec![]).await.unwrap();
    Universal { id }
}

impl World {
    /// A universal canister of the test's own, with 100 trillion cycles or more.
    pub(crate) async fn canister(&self) -> Universal {
        self.canisters.lock().await.recv().await.unwrap()
    }

    /// `N` such canisters.
    pub(crate) async fn canisters<const N: usize>(&self) -> [Universal; N] {
        let mut found = Vec::new();
        for _ in 0..N {
            found.push(self.canister().await);
        }
        found.try_into().ok().unwrap()
    }

    /// A canister without a module.
    pub(crate) async fn empty(&self) -> Principal {
        harness::create(&self.agent).await
    }

    /// A method of the management canister, by the controller of the canisters.
    pub(crate) async fn manage(
        &self,
        canister: Principal,
        method: &str,
        argument: Vec<u8>,
    ) -> Outcome {
        outcome(harness::manage(&self.agent, canister, method, argument).await)
    }

    /// A method about `canister` that takes nothing but its id.
    pub(crate) async fn about(&self, canister: Principal, method: &str) -> Outcome {
        self.manage(canister, method, record(canister)).await
    }

    pub(crate) async fn install(
        &self,
        canister: Principal,
        mode: CanisterInstallMode,
        module: Vec<u8>,
        argument: Vec<u8>,
    ) -> Outcome {
        outcome(
            harness::install(&self.agent, canister, mode, module, argument)
                .await
                .map(|()| Vec::new()),
        )
    }
}

/// A record with a canister's id.
pub(crate) fn record(canister_id: Principal) -> Vec<u8> {
    Encode!(&ic_management_canister_types::CanisterIdRecord { canister_id }).unwrap()
}

/// How a call was rejected.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Reject {
    pub(crate) code: u64,
    pub(crate) text: String,
    /// The implementation's own code, empty if there is none.
    pub(crate) error: String,
    /// Whether the subnet said so, and not one node before the call was taken.
    pub(crate) certified: bool,
}

pub(crate) type Outcome = Result<Vec<u8>, Reject>;

pub(crate) fn outcome(answer: Result<Vec<u8>, AgentError>) -> Outcome {
    answer.map_err(|error| {
        let certified = matches!(&error, AgentError::CertifiedReject { .. });
        let (code, text, error) = harness::rejected(error);
        Reject { code, text, error, certified }
    })
}

/// The reject code of what must have been rejected.
#[track_caller]
pub(crate) fn code(outcome: Outcome) -> u64 {
    outcome.map(|reply| String::from_utf8_lossy(&reply).into_owned()).unwrap_err().code
}

/// The integer in a reply of up to 16 bytes, least significant first.
#[track_caller]
pub(crate) fn number(outcome: Outcome) -> u128 {
    let mut bytes = outcome.unwrap();
    assert!(bytes.len() <= 16, "{bytes:?}");
    bytes.resize(16, 0);
    u128::from_le_bytes(bytes.try_into().unwrap())
}

/// Code and message that [`super::program::rejection`] wrote.
#[track_caller]
pub(crate) fn told_reject(outcome: Outcome) -> (u64, String) {
    let bytes = outcome.unwrap();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let rest = bytes.strip_prefix(b"rejected").unwrap_or_else(|| panic!("not rejected: {text}"));
    let (code, message) = rest.split_at(8);
    let code = u64::from_le_bytes(code.try_into().unwrap());
    (code, String::from_utf8(message.to_vec()).unwrap())
}

/// A canister that executes the program it is sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Universal {
    pub(crate) id: Principal,
}

impl Universal {
    /// Does it as an update call of the controller.
    pub(crate) async fn update(&self, what: Program) -> Outcome {
        self.call(&WORLD.agent, "update", what).await
    }

    /// The update call of a query method: a query in replicated mode.
    pub(crate) async fn replicated_query(&self, what: Program) -> Outcome {
        self.call(&WORLD.agent, "query", what).await
    }

    pub(crate) async fn query(&self, what: Program) -> Outcome {
        self.ask(&WORLD.agent, "query", what).await
    }

    pub(crate) async fn composite(&self, what: Program) -> Outcome {
        self.ask(&WORLD.agent, "composite", what).await
    }

    pub(crate) async fn call(&self, agent: &Agent, method: &str, what: Program) -> Outcome {
        outcome(harness::update(agent, self.id, method, what.encoded()).await)
    }

    pub(crate) async fn ask(&self, agent: &Agent, method: &str, what: Program) -> Outcome {
        outcome(harness::query(agent, self.id, method, what.encoded()).await)
    }

    /// Its kept bytes.
    pub(crate) async fn kept(&self) -> Vec<u8> {
        self.query(super::program::program().kept().reply()).await.unwrap()
    }

    /// Waits until it keeps `expected`.
    pub(crate) async fn keeps(&self, expected: &[u8]) {
        testing::until_async("the canister keeps what is expected", async || {
            self.kept().await == expected
        })
        .await;
    }
}

/// What runs side by side where each case needs a canister for itself.
const LANES: usize = 6;

/// Does `one` with each case, on a few canisters side by side.
pub(crate) async fn in_lanes<T: Clone>(
    world: &World,
    cases: &[T],
    one: impl AsyncFn(Universal, T),
) {
    let lanes = (0..LANES).map(|lane| {
        let (one, cases) = (&one, cases.iter().skip(lane).step_by(LANES));
        async move {
            let canister = world.canister().await;
            for case in cases {
                one(canister, case.clone()).await;
            }
        }
    });
    futures::future::join_all(lanes).await;
}

/// Several outcomes by name, for one message about all that differ.
#[derive(Default)]
pub(crate) struct Differences(BTreeMap<String, String>);

impl Differences {
    pub(crate) fn record(&mut self, name: impl Into<String>, what: impl std::fmt::Debug) {
        self.0.insert(name.into(), format!("{what:?}"));
    }

    #[track_caller]
    pub(crate) fn none(self) {
        assert!(self.0.is_empty(), "{:#?}", self.0);
    }
}
