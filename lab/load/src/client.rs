//! What both drivers do with `ic-agent`: connect, deploy, and the raw sending of calls signed beforehand.

use std::{path::Path, time::Duration};

use anyhow::{Context, Result, bail};
use candid::{CandidType, Decode, Encode, Principal};
use ic_agent::{Agent, identity::BasicIdentity};
use ic_management_canister_types::{
    CanisterInstallMode, InstallCodeArgs, ProvisionalCreateCanisterWithCyclesArgs,
};
use serde::Deserialize;
use tokio::time::Instant;

/// An identity made for this run.
pub(crate) fn identity() -> Result<BasicIdentity> {
    let mut seed = [0; 32];
    let mut filled = 0;
    while filled < seed.len() {
        filled += rustix::rand::getrandom(&mut seed[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(BasicIdentity::from_raw_key(&seed))
}

/// Connects, waiting up to `patience` for the node to answer, and takes its root key (this is a private network).
pub(crate) async fn connect(url: &str, patience: Duration) -> Result<Agent> {
    let agent = Agent::builder()
        .with_url(url)
        .with_identity(identity()?)
        .with_ingress_expiry(Duration::from_secs(180))
        .build()?;
    let deadline = Instant::now() + patience;
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
    Ok(agent)
}

#[derive(CandidType, Deserialize)]
struct Created {
    canister_id: Principal,
}

/// Creates a canister and installs `module` (a file of at most 2 MB, the size one message carries).
pub(crate) async fn deploy(agent: &Agent, module: &Path) -> Result<Principal> {
    let management = Principal::management_canister();
    let arguments = ProvisionalCreateCanisterWithCyclesArgs::default();
    let created = agent
        .update(&management, "provisional_create_canister_with_cycles")
        .with_effective_canister_id(management)
        .with_arg(Encode!(&arguments)?)
        .call_and_wait()
        .await
        .context("creating a canister")?;
    let canister = Decode!(&created, Created)?.canister_id;
    let wasm_module =
        std::fs::read(module).with_context(|| format!("reading the module {}", module.display()))?;
    let install = InstallCodeArgs {
        mode: CanisterInstallMode::Install,
        canister_id: canister,
        wasm_module,
        arg: Encode!()?,
        sender_canister_version: None,
    };
    agent
        .update(&management, "install_code")
        .with_effective_canister_id(canister)
        .with_arg(Encode!(&install)?)
        .call_and_wait()
        .await
        .with_context(|| format!("installing {}", module.display()))?;
    Ok(canister)
}
