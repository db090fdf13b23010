//! One canister at its id: made if it is missing, with the module that it shall have, running.

use anyhow::{Context, Result, bail, ensure};
use candid::{Encode, Nat, Principal};
use demo::client;
use ic_agent::{Agent, AgentError};
use ic_management_canister_types::{
    CanisterIdRecord, CanisterInstallMode, ProvisionalCreateCanisterWithCyclesArgs, UpgradeFlags,
    WasmMemoryPersistence,
};
use sha2::{Digest, Sha256};

use crate::services::{Module, Service};

/// Cycles that a service begins with: what all accounts of the ledger together can spend, many
/// times over, and far from what a balance can hold.
const CYCLES: u128 = 1 << 110;
/// A `specified_id` that somebody has.
const TAKEN: &str = "IC0538";
/// Metadata that our modules have and no other.
const OURS: &str = "thimble:local";

/// What is to be done with a canister.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// It has no module.
    Install,
    /// It has this module, and is told nothing that may have changed.
    Nothing,
    /// Another module, or another argument perhaps.
    Upgrade,
    /// The module that is there is the user's, and ours must not take its place.
    Refuse,
}

/// `installed` is the hash of the module that is there, if there is one.
fn step(service: &Service, installed: Option<[u8; 32]>, is_ours: bool) -> Step {
    let Some(installed) = installed else { return Step::Install };
    let is_same = installed == hash(service);
    match &service.module {
        Module::Ours(_) if !is_same && !is_ours => Step::Refuse,
        _ if is_same && service.argument.is_none() => Step::Nothing,
        _ => Step::Upgrade,
    }
}

fn hash(service: &Service) -> [u8; 32] {
    Sha256::digest(service.module.bytes()).into()
}

/// Puts the service there, running; what was done, to be said of it.
pub(crate) async fn service(agent: &Agent, service: &Service) -> Result<&'static str> {
    let id = service.id;
    let is_new = create(agent, id).await?;
    let installed = if is_new { None } else { installed_hash(agent, id).await? };
    let is_ours = installed.is_some() && is_ours(agent, id).await?;
    let done = match step(service, installed, is_ours) {
        Step::Install => {
            let module = service.module.bytes().to_vec();
            let mode = CanisterInstallMode::Install;
            client::install(agent, id, mode, module, argument(service)?).await?;
            "installed"
        }
        Step::Nothing => "there already",
        Step::Upgrade => {
            upgrade(agent, service, is_ours).await?;
            // What it is told may have changed, though the module is the same.
            if installed == Some(hash(service)) { "there already" } else { "upgraded" }
        }
        Step::Refuse => bail!(
            "the module that is there is not one of this program's, which does not replace it: \
             name it with --service {id}=MODULE, or begin with a new folder (--data-dir)"
        ),
    };
    // Whoever was interrupted while it upgraded left it stopped.
    if !is_new {
        manage(agent, id, "start_canister").await?;
    }
    Ok(done)
}

fn argument(service: &Service) -> Result<Vec<u8>> {
    match &service.argument {
        Some(argument) => Ok(argument.clone()),
        None => Ok(Encode!()?),
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

/// Whether the module that is there is one of ours, of whichever version.
async fn is_ours(agent: &Agent, id: Principal) -> Result<bool> {
    match agent.read_state_canister_metadata(id, OURS).await {
        Ok(_) => Ok(true),
        Err(AgentError::LookupPathAbsent(_)) => Ok(false),
        Err(error) => Err(error).with_context(|| format!("reading its metadata {OURS}")),
    }
}

/// Upgrades it. It stays stopped: who calls this starts it.
async fn upgrade(agent: &Agent, service: &Service, was_ours: bool) -> Result<()> {
    let id = service.id;
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
        let (module, argument) = (service.module.bytes().to_vec(), argument(service)?);
        match client::install(agent, id, mode, module, argument).await {
            Ok(()) => return Ok(()),
            Err(error) => errors.push(format!("{error:#}")),
        }
    }
    // What was there goes on.
    if let Err(error) = manage(agent, id, "start_canister").await {
        errors.push(format!("{error:#}"));
    }
    let errors = errors.join("; ");
    ensure!(
        !was_ours || matches!(service.module, Module::Ours(_)),
        "the module that is there is one of this program's: only a module with enhanced orthogonal \
         persistence (Motoko's) can take its place; for another one begin with a new folder \
         (--data-dir). Upgrading it, with its memory kept and without: {errors}"
    );
    bail!("upgrading it, with its memory kept and without: {errors}")
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

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use crate::services::{OpeningBalances, ours};

    fn users(argument: Option<Vec<u8>>) -> Service {
        let module = Module::Users(b"module".to_vec());
        Service { id: Principal::anonymous(), name: "mine".into(), module, argument }
    }

    #[test]
    fn ours_never_takes_the_place_of_a_users_module() {
        let opening = OpeningBalances { cycles: 1, icp_e8s: 1 };
        for ours in ours(&[1; 133], &opening).unwrap() {
            let same = Some(hash(&ours));
            assert_eq!(step(&ours, None, false), Step::Install);
            assert_eq!(step(&ours, Some([1; 32]), false), Step::Refuse);
            assert_eq!(step(&ours, Some([1; 32]), true), Step::Upgrade, "an older one of ours");
            assert_eq!(step(&ours, same, true), Step::Upgrade, "with the balances of today");
        }
    }

    #[test]
    fn a_users_module_is_put_there_when_it_or_its_argument_may_have_changed() {
        let (plain, told) = (users(None), users(Some(vec![1])));
        let same = Some(hash(&plain));
        for service in [&plain, &told] {
            assert_eq!(step(service, None, false), Step::Install);
            for is_ours in [false, true] {
                assert_eq!(step(service, Some([1; 32]), is_ours), Step::Upgrade);
            }
        }
        assert_eq!(step(&plain, same, false), Step::Nothing);
        assert_eq!(step(&told, same, false), Step::Upgrade);
    }
}
