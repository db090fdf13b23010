//! Starts, stops and kills nodes, and speaks to them with `ic-agent`.

use std::{
    io::Read,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU16, Ordering},
    time::{Duration, Instant},
};

use candid::{CandidType, Decode, Encode, Nat, Principal};
use ic_agent::{Agent, AgentError, identity::BasicIdentity};
use ic_management_canister_types::{
    CanisterInstallMode, CanisterSettings, ChunkHash, ClearChunkStoreArgs, InstallChunkedCodeArgs,
    InstallCodeArgs, ProvisionalCreateCanisterWithCyclesArgs, UploadChunkArgs,
};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use testing::process::Signal;

/// One node process and its data folder.
pub(crate) struct Node {
    child: Option<Child>,
    pub(crate) url: String,
    pub(crate) data: PathBuf,
    folder: Option<tempfile::TempDir>,
    memory: String,
    config: Option<PathBuf>,
    log_filter: String,
    /// Shell commands that run in the node's process before it becomes the node: its limits, its
    /// process group.
    pub(crate) prelude: String,
    /// The program, if it is not the node's.
    pub(crate) program: &'static str,
    /// Address of the public HTTP interface.
    pub(crate) listen: String,
    /// More arguments for `thimble run`.
    pub(crate) arguments: Vec<String>,
}

/// Path of the committed sample canisters.
pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../canisters/wasm").join(name)
}

pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The node's program.
const PROGRAM: &str = env!("CARGO_BIN_EXE_thimble");

pub(crate) fn thimble() -> Command {
    Command::new(PROGRAM)
}

/// The node's program after `prelude`, in the same process.
pub(crate) fn thimble_after(prelude: &str) -> Command {
    after(prelude, PROGRAM)
}

fn after(prelude: &str, program: &str) -> Command {
    if prelude.is_empty() {
        return Command::new(program);
    }
    let mut shell = Command::new("sh");
    shell.args(["-ec", &format!("{prelude}\nexec \"$0\" \"$@\""), program]);
    shell
}

/// This number of addresses on this machine on which nothing listens. Their ports are outside the
/// range that the system assigns by itself: a port of that range, free now, may be taken by a
/// connection a moment later, or while its node is down.
pub(crate) fn free_addresses(count: usize) -> Vec<String> {
    const PORTS: std::ops::Range<u16> = 10_000..18_000;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Tests in other processes begin elsewhere: those that `scripts/test.py` runs at the same time
    // by their lane.
    let lane = std::env::var("THIMBLE_TEST_LANE").ok().and_then(|lane| lane.parse::<u32>().ok());
    let begin =
        lane.map_or_else(|| std::process::id().wrapping_mul(97), |lane| lane.wrapping_mul(600));
    std::iter::repeat_with(|| {
        let next = begin.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed).into());
        format!("127.0.0.1:{}", PORTS.start + (next % PORTS.len() as u32) as u16)
    })
    .filter(|address| TcpListener::bind(address).is_ok())
    .take(count)
    .collect()
}

/// How long a story waits for what must happen, on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(100);

impl Node {
    /// A node with an empty folder.
    pub(crate) async fn start() -> Self {
        Self::start_with("512MiB").await
    }

    pub(crate) async fn start_with(memory: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        Self::start_in(data, memory, Some(folder)).await
    }

    /// A node in a folder that the caller keeps.
    pub(crate) async fn start_in(
        data: PathBuf,
        memory: &str,
        folder: Option<tempfile::TempDir>,
    ) -> Self {
        Self::start_as_in(data, folder, memory, "", "").await
    }

    /// A node with an empty folder, this configuration file (none when empty), started after this
    /// prelude.
    pub(crate) async fn start_as(memory: &str, config: &str, prelude: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        Self::start_as_in(data, Some(folder), memory, config, prelude).await
    }

    /// The same in a folder that the caller keeps.
    pub(crate) async fn start_as_in(
        data: PathBuf,
        folder: Option<tempfile::TempDir>,
        memory: &str,
        config: &str,
        prelude: &str,
    ) -> Self {
        let config_file = (!config.is_empty()).then(|| data.with_extension("toml"));
        let mut node = Self::prepared(data, memory, Vec::new());
        node.folder = folder;
        node.config = config_file;
        node.prelude = prelude.into();
        if let Some(path) = &node.config {
            std::fs::write(path, config).unwrap();
        }
        node.launch().await;
        node
    }

    /// A node that is not started yet.
    pub(crate) fn prepared(data: PathBuf, memory: &str, arguments: Vec<String>) -> Self {
        Self {
            child: None,
            url: String::new(),
            folder: None,
            memory: memory.into(),
            config: None,
            data,
            log_filter: "info".into(),
            prelude: String::new(),
            program: PROGRAM,
            listen: "127.0.0.1:0".into(),
            arguments,
        }
    }

    /// Starts the process and waits until it is healthy.
    pub(crate) async fn launch(&mut self) {
        self.spawn();
        self.healthy().await;
    }

    /// Starts the process.
    pub(crate) fn spawn(&mut self) {
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.data.with_extension("log"))
            .unwrap();
        let address = self.data.with_extension("address");
        let _ = std::fs::remove_file(&address);
        let config = self.config.iter().flat_map(|path| ["--config".as_ref(), path.as_os_str()]);
        let child = after(&self.prelude, self.program)
            .args([
                "run",
                "--memory",
                &self.memory,
                "--listen",
                &self.listen,
                "--log",
                &self.log_filter,
            ])
            .args(config)
            .arg("--data-dir")
            .arg(&self.data)
            .arg("--address-file")
            .arg(&address)
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.child = Some(child);
    }

    /// Waits until it is healthy.
    pub(crate) async fn healthy(&mut self) {
        let address = self.data.with_extension("address");
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.as_mut().unwrap().try_wait().unwrap() {
                panic!("the node ended while starting: {status}\n{}", self.log());
            }
            if let Ok(text) = std::fs::read_to_string(&address)
                && text.ends_with('\n')
            {
                self.url = format!("http://{}", text.trim());
                if let Ok(response) = reqwest::get(format!("{}/health", self.url)).await
                    && response.status().is_success()
                {
                    return;
                }
            }
            let waited = begun.elapsed();
            assert!(
                waited < testing::TIMEOUT,
                "the node was not healthy within {:?}\n{}",
                testing::TIMEOUT,
                self.log()
            );
            tokio::time::sleep(testing::pause(waited)).await;
        }
    }

    pub(crate) fn log(&self) -> String {
        let mut text = String::new();
        if let Ok(mut file) = std::fs::File::open(self.data.with_extension("log")) {
            let _ = file.read_to_string(&mut text);
        }
        text
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    /// Process ids of the node's workers.
    pub(crate) fn workers(&self) -> Vec<u32> {
        let mut found = Vec::new();
        let Ok(tasks) = std::fs::read_dir(format!("/proc/{}/task", self.pid())) else {
            return found;
        };
        for task in tasks.flatten() {
            let children =
                std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
            found.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        }
        found
    }

    /// Everything `/metrics` says.
    pub(crate) async fn metrics(&self) -> String {
        reqwest::get(format!("{}/metrics", self.url)).await.unwrap().text().await.unwrap()
    }

    /// One figure of it, by its name and labels.
    pub(crate) async fn metric(&self, name: &str) -> u64 {
        figure(&self.metrics().await, name)
    }

    /// Anonymous memory of all processes of the node.
    pub(crate) async fn anonymous_bytes(&self) -> u64 {
        self.metric("thimble_memory_anonymous_bytes").await
    }

    /// Ends the process with SIGKILL and waits for it.
    pub(crate) fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// SIGTERM, and the exit code must be 0.
    pub(crate) fn stop(&mut self) {
        let mut child = self.child.take().unwrap();
        testing::process::send(child.id(), Signal::TERM);
        let status = child.wait().unwrap();
        assert!(status.success(), "the node did not stop cleanly: {status}\n{}", self.log());
    }

    pub(crate) async fn restart(&mut self) {
        self.stop();
        self.launch().await;
    }

    /// Restarts logging this much.
    pub(crate) async fn log_filter(&mut self, filter: &str) {
        self.log_filter = filter.into();
        self.restart().await;
    }

    /// The next start has this budget.
    pub(crate) fn memory(&mut self, memory: &str) {
        self.memory = memory.into();
    }

    /// Restarts with this configuration file.
    pub(crate) async fn reconfigure(&mut self, text: &str) {
        self.configure(text);
        self.restart().await;
    }

    /// The next start uses this configuration file.
    pub(crate) fn configure(&mut self, text: &str) {
        let path = self.data.with_extension("toml");
        std::fs::write(&path, text).unwrap();
        self.config = Some(path);
    }

    /// How it ended by itself; its log says why.
    pub(crate) async fn ended(&mut self) -> std::process::ExitStatus {
        let mut child = self.child.take().unwrap();
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                return status;
            }
            assert!(
                Instant::now() < deadline,
                "the node runs on after {PATIENCE:?}\n{}",
                self.log()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The status report, from `/status.json`.
    pub(crate) async fn status(&self) -> serde_json::Value {
        reqwest::get(format!("{}/status.json", self.url)).await.unwrap().json().await.unwrap()
    }

    /// The same of a node that may not answer, or have started again in place, perhaps on another
    /// port.
    pub(crate) async fn try_status(&mut self) -> Option<serde_json::Value> {
        let address = std::fs::read_to_string(self.data.with_extension("address")).ok()?;
        self.url = format!("http://{}", address.strip_suffix('\n')?);
        reqwest::get(format!("{}/status.json", self.url)).await.ok()?.json().await.ok()
    }

    /// An agent with a key of its own, made from `seed`.
    pub(crate) async fn agent(&self, seed: u8) -> Agent {
        self.agent_with(BasicIdentity::from_raw_key(&[seed; 32])).await
    }

    pub(crate) async fn agent_with(&self, identity: impl ic_agent::Identity + 'static) -> Agent {
        let agent = Agent::builder()
            .with_url(&self.url)
            .with_identity(identity)
            .with_ingress_expiry(Duration::from_secs(120))
            .build()
            .unwrap();
        agent.fetch_root_key().await.unwrap();
        agent
    }
}

/// The value of `name` in the text of `/metrics`.
pub(crate) fn figure(metrics: &str, name: &str) -> u64 {
    let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let value = line.unwrap_or_else(|| panic!("{name} in\n{metrics}"));
    value.trim().parse::<f64>().unwrap() as u64
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            eprintln!("--- the node's log\n{}", self.log());
        }
        drop(self.folder.take());
    }
}

pub(crate) fn management() -> Principal {
    Principal::management_canister()
}

#[derive(CandidType, Deserialize)]
struct CreatedCanister {
    canister_id: Principal,
}

/// A new canister of the agent's identity.
pub(crate) async fn create(agent: &Agent) -> Principal {
    create_with(agent, None).await.unwrap()
}

pub(crate) async fn create_with(
    agent: &Agent,
    settings: Option<CanisterSettings>,
) -> Result<Principal, AgentError> {
    provisional(agent, ProvisionalCreateCanisterWithCyclesArgs { settings, ..Default::default() })
        .await
}

/// A new canister with this number of cycles.
pub(crate) async fn create_for(agent: &Agent, amount: u128) -> Principal {
    let amount = Some(Nat::from(amount));
    provisional(agent, ProvisionalCreateCanisterWithCyclesArgs { amount, ..Default::default() })
        .await
        .unwrap()
}

async fn provisional(
    agent: &Agent,
    arguments: ProvisionalCreateCanisterWithCyclesArgs,
) -> Result<Principal, AgentError> {
    let reply = agent
        .update(&management(), "provisional_create_canister_with_cycles")
        .with_effective_canister_id(management())
        .with_arg(Encode!(&arguments).unwrap())
        .call_and_wait()
        .await?;
    Ok(Decode!(&reply, CreatedCanister).unwrap().canister_id)
}

/// A method of the management canister about `canister`.
pub(crate) async fn manage(
    agent: &Agent,
    canister: Principal,
    method: &str,
    arguments: Vec<u8>,
) -> Result<Vec<u8>, AgentError> {
    agent
        .update(&management(), method)
        .with_effective_canister_id(canister)
        .with_arg(arguments)
        .call_and_wait()
        .await
}

pub(crate) async fn install(
    agent: &Agent,
    canister: Principal,
    mode: CanisterInstallMode,
    wasm_module: Vec<u8>,
    arg: Vec<u8>,
) -> Result<(), AgentError> {
    let arguments = InstallCodeArgs {
        mode,
        canister_id: canister,
        wasm_module,
        arg,
        sender_canister_version: None,
    };
    manage(agent, canister, "install_code", Encode!(&arguments).unwrap()).await.map(drop)
}

/// The way for modules over 2 MB.
pub(crate) async fn install_in_chunks(
    agent: &Agent,
    canister: Principal,
    module: &[u8],
) -> Result<(), AgentError> {
    let clear = ClearChunkStoreArgs { canister_id: canister };
    manage(agent, canister, "clear_chunk_store", Encode!(&clear).unwrap()).await?;
    let mut hashes = Vec::new();
    for chunk in module.chunks(1 << 20) {
        let upload = UploadChunkArgs { canister_id: canister, chunk: chunk.to_vec() };
        manage(agent, canister, "upload_chunk", Encode!(&upload).unwrap()).await?;
        hashes.push(ChunkHash { hash: Sha256::digest(chunk).to_vec() });
    }
    let arguments = InstallChunkedCodeArgs {
        mode: CanisterInstallMode::Install,
        target_canister: canister,
        store_canister: None,
        chunk_hashes_list: hashes,
        wasm_module_hash: Sha256::digest(module).to_vec(),
        arg: Encode!().unwrap(),
        sender_canister_version: None,
    };
    manage(agent, canister, "install_chunked_code", Encode!(&arguments).unwrap()).await.map(drop)
}

/// Creates a canister and installs a sample module.
pub(crate) async fn deploy(agent: &Agent, name: &str) -> Principal {
    let canister = create(agent).await;
    let module = std::fs::read(fixture(name)).unwrap();
    install(agent, canister, CanisterInstallMode::Install, module, Encode!().unwrap())
        .await
        .unwrap();
    canister
}

pub(crate) async fn update(
    agent: &Agent,
    canister: Principal,
    method: &str,
    arg: Vec<u8>,
) -> Result<Vec<u8>, AgentError> {
    agent.update(&canister, method).with_arg(arg).call_and_wait().await
}

pub(crate) async fn query(
    agent: &Agent,
    canister: Principal,
    method: &str,
    arg: Vec<u8>,
) -> Result<Vec<u8>, AgentError> {
    let begun = Instant::now();
    loop {
        let call = agent.query(&canister, method).with_arg(arg.clone());
        match call.call_with_verification().await {
            Err(error) if is_compiling(&error) && begun.elapsed() < testing::TIMEOUT => {}
            answer => return answer,
        }
        tokio::time::sleep(testing::pause(begun.elapsed())).await;
    }
}

/// A busy machine may take longer to compile a module than a query may: its answer asks to repeat.
fn is_compiling(error: &AgentError) -> bool {
    matches!(error, AgentError::UncertifiedReject { reject, .. }
        if reject.error_code.as_deref() == Some("IC0208")
            && reject.reject_message.contains("the compilation continues"))
}

/// Reject code and text of a failed call, certified or not.
pub(crate) fn rejected(error: AgentError) -> (u64, String, String) {
    match error {
        AgentError::CertifiedReject { reject, .. }
        | AgentError::UncertifiedReject { reject, .. } => (
            reject.reject_code as u64,
            reject.reject_message,
            reject.error_code.unwrap_or_default(),
        ),
        other => panic!("not a reject: {other:?}"),
    }
}
