//! One canister at its id: made if it is missing, with the module that it shall have, running.

use std::borrow::Cow;

use anyhow::{Context, Result, bail, ensure};
use candid::{Encode, Nat, Principal};
use demo::client;
use ic_agent::{Agent, AgentError};
use ic_management_canister_types::{
    CanisterIdRecord, CanisterInstallMode, ProvisionalCreateCanisterWithCyclesArgs, UpgradeFlags,
    WasmMemoryPersistence,
};
use sha2::{Digest, Sha256};

use crate::services::{Argument, Module, Service};

/// Cycles that a service begins with: what all accounts of the ledger together can spend, many
/// times over, and far from what a balance can hold.
const CYCLES: u128 = 1 << 110;
/// The largest module that fits a message with its argument.
const MODULE_MAX: usize = 1_900_000;
/// A `specified_id` that somebody has.
const TAKEN: &str = "IC0538";

/// Puts the service there; what was done, to be said of it.
pub(crate) async fn service(agent: &Agent, service: &Service) -> Result<&'static str> {
    let module = module(service)?;
    let argument = argument(service)?;
    if create(agent, service.id).await? {
        client::install(agent, service.id, CanisterInstallMode::Install, module.into(), argument)
            .await?;
        return Ok("installed");
    }
    let is_same = installed_hash(agent, service.id).await? == Some(Sha256::digest(&module).into());
    if is_same && matches!(service.argument, Argument::Nothing | Argument::File(_)) {
        return Ok("there already");
    }
    // What ours are told may have changed, though the module is the same.
    upgrade(agent, service.id, &module, &argument).await?;
    Ok(if is_same { "there already" } else { "upgraded" })
}

fn module(service: &Service) -> Result<Cow<'static, [u8]>> {
    match &service.module {
        Module::Ours(bytes) => Ok(Cow::Borrowed(*bytes)),
        Module::File(path) => {
            let bytes = std::fs::read(path)
                .with_context(|| format!("reading the module {}", path.display()))?;
            ensure!(
                bytes.len() <= MODULE_MAX,
                "{} has {} bytes, and one message carries {MODULE_MAX}; gzip it",
                path.display(),
                bytes.len()
            );
            Ok(Cow::Owned(bytes))
        }
    }
}

fn argument(service: &Service) -> Result<Vec<u8>> {
    match &service.argument {
        Argument::Ours(bytes) => Ok(bytes.clone()),
        Argument::Nothing => Ok(Encode!()?),
        Argument::File(path) => {
            std::fs::read(path).with_context(|| format!("reading the argument {}", path.display()))
        }
    }
}

/// Whether the canister was made; it is there otherwise. Everybody controls it: where everybody can
/// make cycles, there is nothing to protect.
async fn create(agent: &Agent, id: Principal) -> Result<bool> {
    let arguments = ProvisionalCreateCanisterWithCyclesArgs {
        amount: Some(Nat::from(CYCLES)),
        specified_id: Some(id),
        ..Default::default()
    };
    let created = agent
        .update(&Principal::management_canister(), "provisional_create_canister_with_cycles")
        .with_effective_canister_id(id)
        .with_arg(Encode!(&arguments)?)
        .call_and_wait()
        .await;
    match created {
        Ok(_) => Ok(true),
        Err(AgentError::CertifiedReject { reject, .. })
            if reject.error_code.as_deref() == Some(TAKEN) =>
        {
            Ok(false)
        }
        Err(error) => Err(error).context("creating it"),
    }
}

async fn installed_hash(agent: &Agent, id: Principal) -> Result<Option<[u8; 32]>> {
    match agent.read_state_canister_module_hash(id).await {
        Ok(hash) => Ok(hash.try_into().ok()),
        Err(AgentError::LookupPathAbsent(_)) => Ok(None),
        Err(error) => Err(error).context("reading its module's hash"),
    }
}

async fn upgrade(agent: &Agent, id: Principal, module: &[u8], argument: &[u8]) -> Result<()> {
    // No callback of the module before may run in the new one.
    manage(agent, id, "stop_canister").await?;
    // Motoko's modules of today keep their memory; others must not be asked to.
    let kept = UpgradeFlags {
        skip_pre_upgrade: None,
        wasm_memory_persistence: Some(WasmMemoryPersistence::Keep),
    };
    let modes = [CanisterInstallMode::Upgrade(Some(kept)), CanisterInstallMode::Upgrade(None)];
    let mut errors = Vec::new();
    for mode in modes {
        let (module, argument) = (module.to_vec(), argument.to_vec());
        match client::install(agent, id, mode, module, argument).await {
            Ok(()) => return manage(agent, id, "start_canister").await,
            Err(error) => errors.push(format!("{error:#}")),
        }
    }
    manage(agent, id, "start_canister").await?;
    bail!("upgrading it, with its memory kept and without: {}", errors.join("; "))
}

async fn manage(agent: &Agent, id: Principal, method: &str) -> Result<()> {
    agent
        .update(&Principal::management_canister(), method)
        .with_effective_canister_id(id)
        .with_arg(Encode!(&CanisterIdRecord { canister_id: id })?)
        .call_and_wait()
        .await
        .with_context(|| format!("{method} of {id}"))?;
    Ok(())
}
