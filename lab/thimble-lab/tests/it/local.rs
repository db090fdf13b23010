//! `thimble-lab local` as a developer meets it: the published project tool works on it as it is.
//! `tests/clients/setup.sh` installs the tool (as `make test` does).

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Output, Stdio},
};

use candid::{CandidType, Decode, Encode, Nat, Principal};
use ic_agent::{Agent, identity::BasicIdentity};
use ic_management_canister_types::{
    CanisterIdRecord, CanisterInstallMode, InstallCodeArgs,
    ProvisionalCreateCanisterWithCyclesArgs, UpgradeFlags, WasmMemoryPersistence,
};
use serde::Deserialize;
use serde_json::Value;
use testing::process::{Signal, send};

use crate::support::LAB;

/// Read by HTTP clients.
const PROXY_VARIABLES: [&str; 4] = ["http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY"];
const T: u128 = 1_000_000_000_000;
const CYCLES_FEE: u128 = 100_000_000;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn fixture(name: &str) -> PathBuf {
    repository().join("canisters/wasm").join(name)
}

/// A network that runs, and what it printed.
struct Network {
    child: Child,
    /// Kept open: the network must be able to print.
    _output: BufReader<ChildStdout>,
    printed: String,
    url: String,
}

impl Network {
    /// Starts it in `folder` and waits until it is ready.
    fn start(folder: &Path, options: &[&str]) -> Self {
        let data = folder.join("network");
        let mut child = Command::new(LAB)
            .args(["local", "--listen", "127.0.0.1:0", "--http-gateway", "127.0.0.1:0"])
            .arg("--data-dir")
            .arg(&data)
            .args(options)
            // A proxy is never asked for what is on loopback; nothing listens there.
            .envs(PROXY_VARIABLES.map(|name| (name, "http://127.0.0.1:9")))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut printed = String::new();
        while !printed.contains("root-key") {
            let read = output.read_line(&mut printed).unwrap();
            assert!(read > 0, "the network ended while it started:\n{printed}");
        }
        let url = printed.lines().find_map(|line| line.trim().strip_prefix("api-url: "));
        let url = url.unwrap().to_owned();
        Self { child, _output: output, printed, url }
    }

    /// The lines that it prints for `icp.yaml`.
    fn project_lines(&self) -> &str {
        &self.printed[self.printed.find("networks:").unwrap()..]
    }

    fn stop(mut self) {
        send(self.child.id(), Signal::TERM);
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // It stops its node, which would stay otherwise.
        if let Ok(None) = self.child.try_wait() {
            send(self.child.id(), Signal::TERM);
            let _ = self.child.wait();
        }
    }
}

/// The published tool, with a home of its own.
struct Tool {
    folder: tempfile::TempDir,
}

impl Tool {
    /// `None` if it is not published for this machine, which is reported.
    fn new() -> Option<Self> {
        if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
            testing::missing("the project tool comes from npm for Linux on x86-64 only");
            return None;
        }
        let tool = Self { folder: tempfile::tempdir().unwrap() };
        fs::create_dir_all(tool.project()).unwrap();
        fs::copy(fixture("motoko-counter64.wasm"), tool.project().join("counter.wasm")).unwrap();
        Some(tool)
    }

    fn project(&self) -> PathBuf {
        self.folder.path().join("project")
    }

    fn describe(&self, network: &Network) {
        let canister = "canisters:\n  - name: counter\n    build:\n      steps:\n        - type: \
                        pre-built\n          path: counter.wasm\n";
        let text = format!("{canister}{}", network.project_lines());
        fs::write(self.project().join("icp.yaml"), text).unwrap();
    }

    fn run(&self, words: &[&str]) -> Output {
        let program = repository()
            .join("tests/clients/local/node_modules/@icp-sdk/icp-cli-linux-x64/bin/icp");
        Command::new(&program)
            .args(words)
            .current_dir(self.project())
            .env("HOME", self.folder.path())
            .env("ICP_HOME", self.folder.path().join("home"))
            .env("ICP_TELEMETRY_DISABLED", "1")
            .stdin(Stdio::null())
            .output()
            .unwrap_or_else(|error| {
                panic!("{} cannot be started ({error}); `make test` installs it", program.display())
            })
    }

    /// Runs to a good end; gives what it printed. Words are separated by blanks.
    fn icp(&self, command: &str) -> String {
        self.with(&command.split_whitespace().collect::<Vec<_>>())
    }

    fn with(&self, words: &[&str]) -> String {
        let output = self.run(words);
        let said = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        println!("$ icp {}\n{said}", words.join(" "));
        assert!(output.status.success(), "icp {words:?}: {}\n{said}", output.status);
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, command: &str) -> Value {
        serde_json::from_str(&self.icp(command)).unwrap()
    }

    /// Output of the counter.
    fn count(&self, method: &str) -> String {
        self.with(&["canister", "call", "counter", method, "()"]).trim().to_owned()
    }

    /// Cycles of an identity on the ledger.
    fn balance(&self, identity: &str) -> u128 {
        let told = self.icp(&format!("cycles balance --quiet --identity {identity}"));
        told.chars().filter(char::is_ascii_digit).collect::<String>().parse().unwrap()
    }
}

// Promise: P10 - `icp` 1.5.0 deploys, calls, tops up, snapshots and deletes a canister, unmodified.
#[test]
fn the_project_tool_does_all_of_a_canisters_life() {
    let Some(tool) = Tool::new() else { return };
    let folder = tempfile::tempdir().unwrap();
    let network = Network::start(folder.path(), &[]);
    tool.describe(&network);
    assert_eq!(tool.balance("anonymous"), 1000 * T);
    tool.icp("deploy");
    assert_eq!(tool.count("inc"), "(1 : nat)");
    assert_eq!(tool.balance("anonymous"), 998 * T - CYCLES_FEE);
    let cycles = |tool: &Tool| {
        let told = tool.json("canister status counter --json")["cycles"].clone();
        let told = told.as_str().map_or_else(|| told.to_string(), str::to_owned);
        told.replace('_', "").parse::<u128>().unwrap()
    };
    let before = cycles(&tool);
    tool.icp("canister top-up counter --amount 5t");
    let after = cycles(&tool);
    assert!(after > before + 4 * T && after <= before + 5 * T, "{before}, then {after}");

    // A snapshot brings the counter back.
    tool.icp("canister stop counter");
    let taken = tool.json("canister snapshot create counter --json");
    let snapshot = taken["snapshot_id"].as_str().unwrap();
    assert!(tool.icp("canister snapshot list counter").contains(snapshot));
    tool.icp("canister start counter");
    assert_eq!(tool.count("inc"), "(2 : nat)");
    tool.icp("canister stop counter");
    tool.icp(&format!("canister snapshot restore counter {snapshot}"));
    tool.icp("canister start counter");
    assert_eq!(tool.count("get"), "(1 : nat)");
    let saved = folder.path().join("saved");
    tool.icp(&format!("canister snapshot download counter {snapshot} -o {}", saved.display()));
    tool.icp(&format!("canister snapshot delete counter {snapshot}"));
    tool.icp(&format!("canister snapshot upload counter -i {}", saved.display()));
    assert!(!tool.icp("canister snapshot list counter").contains(snapshot));

    tool.icp("canister settings update counter --freezing-threshold 1000000");
    assert!(tool.icp("canister settings show counter").contains("1_000_000"));
    tool.icp("deploy");
    assert_eq!(tool.count("get"), "(1 : nat)");

    // What the canister has comes back when it is deleted.
    let before = tool.balance("anonymous");
    tool.icp("canister delete counter");
    let recovered = tool.balance("anonymous") - before;
    assert!(recovered > 5 * T && recovered < 7 * T, "{recovered}");
    network.stop();
}

// Promise: P10 - Each identity pays with its own cycles and ICP on a local network.
#[test]
fn every_identity_pays_for_itself_in_cycles_and_icp() {
    let Some(tool) = Tool::new() else { return };
    let folder = tempfile::tempdir().unwrap();
    let network = Network::start(folder.path(), &["--cycles", "20t", "--icp", "50"]);
    tool.describe(&network);
    tool.icp("identity new someone --storage plaintext");
    tool.icp("identity new other --storage plaintext");
    tool.icp("deploy --identity someone");
    assert_eq!(tool.balance("someone"), 18 * T - CYCLES_FEE);
    assert_eq!(tool.balance("other"), 20 * T);
    let principal = tool.icp("identity principal --identity other");
    tool.icp(&format!("cycles transfer 3t {} --identity someone", principal.trim()));
    assert_eq!(tool.balance("other"), 23 * T);
    tool.icp("cycles mint --icp 10 --identity other");
    assert_eq!(tool.balance("other"), 63 * T - CYCLES_FEE);
    assert!(tool.icp("token icp balance --identity other").contains("39.99990000 ICP"));
    tool.icp(&format!("token icp transfer 2.5 {} --identity someone", principal.trim()));
    assert!(tool.icp("token icp balance --identity other").contains("42.49990000 ICP"));
    tool.icp("canister create --detached --with-icp 2 --identity other");
    let poor = ["canister", "create", "--detached", "--cycles", "100t", "--identity", "someone"];
    let refused = tool.run(&poor);
    assert!(!refused.status.success());
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("Insufficient cycles"), "{said}");

    // All of it is there after a restart.
    let balances = (tool.balance("someone"), tool.balance("other"));
    network.stop();
    let network = Network::start(folder.path(), &["--cycles", "20t", "--icp", "50"]);
    tool.describe(&network);
    assert_eq!((tool.balance("someone"), tool.balance("other")), balances);
    assert_eq!(tool.count("inc"), "(1 : nat)");
    tool.icp("deploy --identity someone");
    network.stop();
}

// Promise: P10 - @icp-sdk/canisters 3.6 works with the ledgers and verifies the conversion rate.
#[test]
fn the_clients_of_the_public_networks_canisters_work() {
    let folder = tempfile::tempdir().unwrap();
    let network = Network::start(folder.path(), &[]);
    let output = Command::new("node")
        .arg(repository().join("tests/clients/local/canisters.mjs"))
        .args(["--url", &network.url, "--fixtures"])
        .arg(repository().join("canisters/wasm"))
        .output()
        .unwrap_or_else(|error| panic!("node cannot be started ({error})"));
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}");
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
}

async fn agent(url: &str, seed: u8) -> Agent {
    let identity = BasicIdentity::from_raw_key(&[seed; 32]);
    let agent = Agent::builder().with_url(url).with_identity(identity).build().unwrap();
    agent.fetch_root_key().await.unwrap();
    agent
}

async fn manage(agent: &Agent, canister: Principal, method: &str, arg: Vec<u8>) -> Vec<u8> {
    agent
        .update(&Principal::management_canister(), method)
        .with_effective_canister_id(canister)
        .with_arg(arg)
        .call_and_wait()
        .await
        .unwrap()
}

async fn create(agent: &Agent) -> Principal {
    let argument = ProvisionalCreateCanisterWithCyclesArgs::default();
    let method = "provisional_create_canister_with_cycles";
    let management = Principal::management_canister();
    let made = manage(agent, management, method, Encode!(&argument).unwrap()).await;
    Decode!(&made, CanisterIdRecord).unwrap().canister_id
}

async fn install(
    agent: &Agent,
    canister: Principal,
    mode: CanisterInstallMode,
    wasm_module: Vec<u8>,
    arg: Vec<u8>,
) {
    let arguments = InstallCodeArgs {
        mode,
        canister_id: canister,
        wasm_module,
        arg,
        sender_canister_version: None,
    };
    manage(agent, canister, "install_code", Encode!(&arguments).unwrap()).await;
}

// Promise: P10 - A local network never replaces a user's module at a well-known id.
#[tokio::test]
async fn a_module_of_the_users_stands_at_a_well_known_id() {
    let folder = tempfile::tempdir().unwrap();
    let id = "um5iw-rqaaa-aaaaq-qaaba-cai";
    let counter = format!("{id}={}", fixture("motoko-counter64.wasm").display());
    let network = Network::start(folder.path(), &["--service", &counter]);
    let agent = agent(&network.url, 1).await;
    let canister = Principal::from_text(id).unwrap();
    let inc = async || {
        let reply = agent.update(&canister, "inc").with_arg(Encode!().unwrap());
        Decode!(&reply.call_and_wait().await.unwrap(), Nat).unwrap()
    };
    assert_eq!(inc().await, 1u8);
    // On a network that runs already; what it holds stays.
    let again = Command::new(LAB)
        .args(["local", "--url", &network.url, "--service", &counter])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&again.stdout);
    assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
    assert!(said.contains(&format!("{id} there already")), "{said}");
    assert_eq!(inc().await, 2u8);
    // Ours does not take its place.
    let local = |options: &[&str]| {
        let output =
            Command::new(LAB).args(["local", "--url", &network.url]).args(options).output();
        let output = output.unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        // Three steps, each with a line when it begins and one when it ends.
        let progress = said.lines().filter(|line| line.starts_with("local: [")).count();
        let others = said.lines().filter(|line| !line.starts_with("local: ["));
        let others = others.collect::<Vec<_>>().join("\n");
        assert!(!output.status.success() || progress == 6, "{said}");
        (output.status.success(), others)
    };
    let (is_done, said) = local(&[]);
    assert!(!is_done && said.contains(&format!("--service {id}=MODULE")), "{said}");
    assert_eq!(inc().await, 3u8);
    // An interrupted start leaves it stopped, or without a module.
    let everybody = Agent::builder().with_url(&network.url).build().unwrap();
    everybody.fetch_root_key().await.unwrap();
    let record = Encode!(&CanisterIdRecord { canister_id: canister }).unwrap();
    manage(&everybody, canister, "stop_canister", record.clone()).await;
    assert_eq!(local(&["--service", &counter]), (true, String::new()));
    assert_eq!(inc().await, 4u8);
    manage(&everybody, canister, "stop_canister", record.clone()).await;
    manage(&everybody, canister, "uninstall_code", record).await;
    assert_eq!(local(&["--service", &counter]), (true, String::new()));
    assert_eq!(inc().await, 1u8);
    // Where ours is, a module without its kind of memory cannot come.
    let minting = "rkp4c-7iaaa-aaaaa-aaaca-cai";
    let other = format!("{minting}={}", fixture("counter-c.wasm").display());
    let (is_done, said) = local(&["--service", &counter, "--service", &other]);
    assert!(!is_done && said.contains("--data-dir"), "{said}");
    network.stop();
}

// Promise: P10 - A start of a local network changes nothing whose module and argument are
//   unchanged.
#[tokio::test]
async fn a_start_leaves_what_did_not_change_alone() {
    let folder = tempfile::tempdir().unwrap();
    let id = "a4gq6-oaaaa-aaaab-qaa4q-cai";
    let argument = folder.path().join("argument");
    fs::write(&argument, Encode!(&1_u8).unwrap()).unwrap();
    let service = format!("{id}={},{}", fixture("hammer-c.wasm").display(), argument.display());
    let canister = Principal::from_text(id).unwrap();
    let inc = async |network: &Network| {
        let agent = agent(&network.url, 1).await;
        let reply = agent.update(&canister, "inc").call_and_wait().await.unwrap();
        u64::from_le_bytes(reply.try_into().unwrap())
    };
    let network = Network::start(folder.path(), &["--service", &service]);
    assert!(network.printed.contains(&format!("{id} installed")), "{}", network.printed);
    assert_eq!(inc(&network).await, 1);
    network.stop();
    // The module keeps its number on its heap, which an upgrade takes.
    let network = Network::start(folder.path(), &["--service", &service]);
    assert_eq!(network.printed.matches("there already").count(), 4, "{}", network.printed);
    assert_eq!(inc(&network).await, 2);
    network.stop();
    fs::write(&argument, Encode!(&2_u8).unwrap()).unwrap();
    let network = Network::start(folder.path(), &["--service", &service, "--icp", "7"]);
    for upgraded in [id, "ryjl3-tyaaa-aaaaa-aaaba-cai"] {
        assert!(network.printed.contains(&format!("{upgraded} upgraded")), "{}", network.printed);
    }
    assert_eq!(inc(&network).await, 1);
    network.stop();
}

#[derive(CandidType, Default)]
struct Creation {
    subnet_type: Option<String>,
}

#[derive(CandidType, Deserialize, Debug)]
enum CreationRefused {
    Refunded { create_error: String },
}

// Promise: P10 - Canisters create canisters with cycles of their calls on a local network.
#[tokio::test]
async fn canisters_pay_for_canisters_with_the_cycles_of_their_calls() {
    let folder = tempfile::tempdir().unwrap();
    let network = Network::start(folder.path(), &[]);
    let agent = agent(&network.url, 1).await;
    let payer = create(&agent).await;
    let module = fs::read(fixture("workbench.wasm")).unwrap();
    install(&agent, payer, CanisterInstallMode::Install, module, Encode!().unwrap()).await;
    let minting = Principal::from_text("rkp4c-7iaaa-aaaaa-aaaca-cai").unwrap();
    let pay = async |creation: Creation| {
        let argument = Encode!(&creation).unwrap();
        let cycles = Nat::from(3 * T);
        let arguments = Encode!(&minting, &"create_canister", &argument, &cycles).unwrap();
        let reply = agent.update(&payer, "call_raw").with_arg(arguments).call_and_wait().await;
        let reply = Decode!(&reply.unwrap(), Result<Vec<u8>, String>).unwrap().unwrap();
        Decode!(&reply, Result<Principal, CreationRefused>).unwrap()
    };
    let cycles_of = async |canister: Principal| {
        let record = Encode!(&CanisterIdRecord { canister_id: canister }).unwrap();
        let status = manage(&agent, canister, "canister_status", record).await;
        Decode!(&status, Cycles).unwrap().cycles
    };
    let before = cycles_of(payer).await;
    let made = pay(Creation::default()).await.unwrap();
    let controllers = agent.read_state_canister_controllers(made).await.unwrap();
    assert_eq!(controllers, [payer]);
    let after = cycles_of(payer).await;
    assert!(before.clone() - after.clone() >= 3 * T, "{before}, then {after}");
    // A failed creation is not charged.
    let creation = Creation { subnet_type: Some("fiduciary".into()) };
    let Err(CreationRefused::Refunded { create_error }) = pay(creation).await else { panic!() };
    assert!(create_error.contains("fiduciary"), "{create_error}");
    let left = cycles_of(payer).await;
    assert!(after.clone() - left.clone() < T, "{after}, then {left}");
    network.stop();
}

#[derive(CandidType, Deserialize)]
struct Cycles {
    cycles: Nat,
}

#[derive(CandidType)]
struct LedgerArgument {
    subnet: Principal,
    opening_balance: Nat,
    accounts_max: Option<Nat>,
}

#[derive(CandidType, Deserialize)]
struct Account {
    owner: Principal,
    subaccount: Option<Vec<u8>>,
}

#[derive(CandidType)]
struct TransferArgument {
    to: Account,
    amount: Nat,
}

#[derive(CandidType, Deserialize, Debug)]
enum Refusal {
    GenericError { message: String },
    InsufficientFunds { balance: Nat },
}

/// The cycles ledger as a canister among others, with room for a stated number of accounts.
struct Ledger {
    agent: Agent,
    id: Principal,
}

impl Ledger {
    async fn install(agent: Agent, upgraded: Option<Principal>, accounts_max: u8) -> Self {
        let id = match upgraded {
            Some(id) => id,
            None => create(&agent).await,
        };
        let argument = LedgerArgument {
            subnet: id,
            opening_balance: Nat::from(10 * T),
            accounts_max: Some(accounts_max.into()),
        };
        let keep = UpgradeFlags {
            skip_pre_upgrade: None,
            wasm_memory_persistence: Some(WasmMemoryPersistence::Keep),
        };
        let how = match upgraded {
            Some(_) => CanisterInstallMode::Upgrade(Some(keep)),
            None => CanisterInstallMode::Install,
        };
        let module = fs::read(fixture("local-cycles-ledger.wasm.gz")).unwrap();
        install(&agent, id, how, module, Encode!(&argument).unwrap()).await;
        Self { agent, id }
    }

    async fn transfer(&self, to: u8, amount: u128) -> Result<Nat, Refusal> {
        let to = Account { owner: Principal::from_slice(&[to]), subaccount: None };
        let argument = TransferArgument { to, amount: amount.into() };
        let call = self.agent.update(&self.id, "icrc1_transfer");
        let reply = call.with_arg(Encode!(&argument).unwrap()).call_and_wait().await.unwrap();
        Decode!(&reply, Result<Nat, Refusal>).unwrap()
    }

    async fn balance(&self, owner: Principal) -> Nat {
        let account = Account { owner, subaccount: None };
        let query = self.agent.query(&self.id, "icrc1_balance_of");
        let reply = query.with_arg(Encode!(&account).unwrap()).call().await.unwrap();
        Decode!(&reply, Nat).unwrap()
    }
}

// Promise: P10 - A local ledger refuses accounts beyond its limit, names the limit, and changes
//   nothing.
#[tokio::test]
async fn a_ledger_keeps_as_many_accounts_as_it_is_told_and_names_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let network = Network::start(folder.path(), &[]);
    let ledger = Ledger::install(agent(&network.url, 1).await, None, 3).await;
    let sender = ledger.agent.get_principal().unwrap();
    ledger.transfer(1, T).await.unwrap();
    ledger.transfer(2, T).await.unwrap();
    // It is full: existing accounts continue to work, a further one is refused and not charged.
    let before = ledger.balance(sender).await;
    match ledger.transfer(3, T).await.unwrap_err() {
        Refusal::GenericError { message } => assert!(message.contains("at most 3 accounts")),
        other => panic!("{other:?}"),
    }
    assert_eq!(ledger.balance(sender).await, before);
    ledger.transfer(1, T).await.unwrap();
    match ledger.transfer(1, 100 * T).await.unwrap_err() {
        Refusal::InsufficientFunds { balance } => {
            assert_eq!(balance, Nat::from(7 * T - 3 * CYCLES_FEE));
        }
        other => panic!("{other:?}"),
    }
    // Another account cannot begin either, though its opening balance is shown.
    let other = Ledger { agent: agent(&network.url, 2).await, id: ledger.id };
    assert!(matches!(other.transfer(1, T).await, Err(Refusal::GenericError { .. })));
    // An upgrade keeps the accounts and brings the new limit.
    let ledger = Ledger::install(ledger.agent, Some(ledger.id), 4).await;
    assert_eq!(ledger.balance(Principal::from_slice(&[1])).await, Nat::from(12 * T));
    ledger.transfer(3, T).await.unwrap();
    assert_eq!(ledger.balance(sender).await, Nat::from(6 * T - 4 * CYCLES_FEE));
    network.stop();
}
