//! Operations of all drivers with `ic-agent`: connect, create, install, delete.

use std::{path::Path, time::Duration};

use anyhow::{Context, Result, bail};
use candid::{Decode, Encode, Principal};
use ic_agent::{Agent, agent::AgentBuilder, identity::BasicIdentity};
use ic_management_canister_types::{
    CanisterIdRecord, CanisterInstallMode, InstallCodeArgs, ProvisionalCreateCanisterWithCyclesArgs,
};
use tokio::time::Instant;

/// An identity made for this run.
pub fn identity() -> Result<BasicIdentity> {
    let mut seed = [0; 32];
    let mut filled = 0;
    while filled < seed.len() {
        filled +=
            rustix::rand::getrandom(&mut seed[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(BasicIdentity::from_raw_key(&seed))
}

/// Expiry of signed calls. A node remembers a call until then; a client that sends thousands of
/// calls a second should sign for a short time.
const EXPIRY: Duration = Duration::from_secs(60);

/// How long an agent waits for an answer: the default of the library.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(360);

/// HTTP clients for nodes. They ignore the proxy variables of the environment: a node on loopback
/// or in a private network cannot be reached by a proxy.
pub fn http() -> reqwest::ClientBuilder {
    reqwest::Client::builder().no_proxy()
}

/// An agent for the node at `url`, connected by [`http`].
pub fn agent(url: &str) -> Result<AgentBuilder> {
    let client = http().timeout(ANSWER_TIMEOUT).build()?;
    Ok(Agent::builder().with_url(url).with_http_client(client))
}

/// Connects, waiting up to `timeout` for the node to answer, and takes its root key (this is a
/// private network).
pub async fn connect(url: &str, timeout: Duration) -> Result<Agent> {
    connect_signing_for(EXPIRY, url, timeout).await
}

/// The same, with calls that are signed for `expiry`.
pub async fn connect_signing_for(expiry: Duration, url: &str, timeout: Duration) -> Result<Agent> {
    let agent = agent(url)?.with_identity(identity()?).with_ingress_expiry(expiry).build()?;
    wait_until_healthy(&agent, url, timeout).await?;
    Ok(agent)
}

/// Waits until the node reports that it is healthy, and takes its root key.
pub async fn wait_until_healthy(agent: &Agent, url: &str, timeout: Duration) -> Result<()> {
    let deadline = Instant::now() + timeout;
    loop {
        let status = agent.status().await;
        match status {
            Ok(status) if status.replica_health_status.as_deref() == Some("healthy") => break,
            _ if Instant::now() < deadline => tokio::time::sleep(Duration::from_millis(20)).await,
            Ok(status) => bail!("the node at {url} says it is {:?}", status.replica_health_status),
            Err(error) => return Err(error).context(format!("the node at {url} does not answer")),
        }
    }
    agent.fetch_root_key().await.context("reading the root key")?;
    Ok(())
}

/// Creates a canister and installs `module` (a file of at most 2 MB, the size one message carries).
pub async fn deploy(agent: &Agent, module: &Path) -> Result<Principal> {
    let wasm_module = std::fs::read(module)
        .with_context(|| format!("reading the module {}", module.display()))?;
    let canister = create(agent, None).await?;
    install(agent, canister, CanisterInstallMode::Install, wasm_module, Encode!()?)
        .await
        .with_context(|| format!("installing {}", module.display()))?;
    Ok(canister)
}

/// Creates a canister with `cycles` (the network's default without).
pub async fn create(agent: &Agent, cycles: Option<u64>) -> Result<Principal> {
    let arguments = ProvisionalCreateCanisterWithCyclesArgs {
        amount: cycles.map(candid::Nat::from),
        ..ProvisionalCreateCanisterWithCyclesArgs::default()
    };
    let management = Principal::management_canister();
    let created = agent
        .update(&management, "provisional_create_canister_with_cycles")
        .with_effective_canister_id(management)
        .with_arg(Encode!(&arguments)?)
        .call_and_wait()
        .await
        .context("creating a canister")?;
    Ok(Decode!(&created, CanisterIdRecord)?.canister_id)
}

/// Installs a module.
pub async fn install(
    agent: &Agent,
    canister: Principal,
    mode: CanisterInstallMode,
    wasm_module: Vec<u8>,
    arg: Vec<u8>,
) -> Result<()> {
    let arguments = InstallCodeArgs {
        mode,
        canister_id: canister,
        wasm_module,
        arg,
        sender_canister_version: None,
    };
    manage(agent, canister, "install_code", Encode!(&arguments)?).await.map(drop)
}

/// Stops and deletes a canister.
pub async fn delete(agent: &Agent, canister: Principal) -> Result<()> {
    let record = Encode!(&CanisterIdRecord { canister_id: canister })?;
    manage(agent, canister, "stop_canister", record.clone()).await?;
    manage(agent, canister, "delete_canister", record).await.map(drop)
}

/// The management canister's reply to a call about `canister`.
pub async fn manage(
    agent: &Agent,
    canister: Principal,
    method: &str,
    argument: Vec<u8>,
) -> Result<Vec<u8>> {
    agent
        .update(&Principal::management_canister(), method)
        .with_effective_canister_id(canister)
        .with_arg(argument)
        .call_and_wait()
        .await
        .with_context(|| format!("{method} of {canister}"))
}
