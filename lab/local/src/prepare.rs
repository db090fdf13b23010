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

use crate::{
    install_record,
    services::{Module, Service},
};

/// Cycles that a service begins with: what all accounts of the ledger together can spend, many
/// times over, and far from what a balance can hold.
const CYCLES: u128 = 1 << 110;
/// Error code of a `specified_id` that is already in use.
const TAKEN: &str = "IC0538";
/// Metadata that our modules have and no other.
const OURS: &str = "thimble:local";

/// The step that a canister needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// It has no module.
    Install,
    /// It has this module, installed with the same argument.
    Nothing,
    /// Another module, or another argument.
    Upgrade,
    /// The module that is there is the user's, and ours must not take its place.
    Refuse,
}

/// The canister at the id, as installed.
#[derive(Clone, Copy, Default)]
struct InstalledState<'a> {
    /// The hash of the module, if there is one.
    installed: Option<[u8; 32]>,
    is_ours: bool,
    /// The name of the last argument passed to it, if known.
    argument_name: Option<&'a str>,
}

/// Chooses the step. An upgrade erases the memory of a module that keeps its data on the heap, and
/// may fail for a module that gets its installation argument again. So an unchanged module of the
/// user is upgraded only if its argument changed.
fn step(service: &Service, argument: &[u8], state: InstalledState) -> Step {
    let Some(installed) = state.installed else { return Step::Install };
    let is_same = installed == hash(service);
    let is_same_argument = state.argument_name == Some(install_record::name_of(argument).as_str());
    match &service.module {
        Module::Ours(_) if !is_same && !state.is_ours => Step::Refuse,
        _ if !is_same => Step::Upgrade,
        Module::Ours(_) if !is_same_argument => Step::Upgrade,
        Module::Users(_)
            if state.argument_name.is_some() && service.argument.is_some() && !is_same_argument =>
        {
            Step::Upgrade
        }
        _ => Step::Nothing,
    }
}

fn hash(service: &Service) -> [u8; 32] {
    Sha256::digest(service.module.bytes()).into()
}

/// Installs the service and starts it; returns a text for the action taken.
pub(crate) async fn service(agent: &Agent, service: &Service) -> Result<&'static str> {
    let id = service.id;
    let is_new = create(agent, id).await?;
    let installed = if is_new { None } else { installed_hash(agent, id).await? };
    let is_ours = installed.is_some() && is_ours(agent, id).await?;
    let argument_name = if is_new { None } else { install_record::read(agent, id).await? };
    let argument = argument(service)?;
    let state = InstalledState { installed, is_ours, argument_name: argument_name.as_deref() };
    let done = match step(service, &argument, state) {
        Step::Install => {
            // First: it counts with a module alone, and a module is not without it.
            install_record::write(agent, id, &argument).await?;
            let module = service.module.bytes().to_vec();
            client::install(agent, id, CanisterInstallMode::Install, module, argument).await?;
            "installed"
        }
        Step::Nothing => "there already",
        Step::Upgrade => {
            upgrade(agent, service, &argument, is_ours).await?;
            install_record::write(agent, id, &argument).await?;
            "upgraded"
        }
        Step::Refuse => bail!(
            "the module that is there is not one of this program's, which does not replace it: \
             name it with --service {id}=MODULE, or begin with a new folder (--data-dir)"
        ),
    };
    // An interrupted upgrade leaves the canister stopped.
    if !is_new {
        switch(agent, id, "start_canister").await?;
    }
    Ok(done)
}

fn argument(service: &Service) -> Result<Vec<u8>> {
    match &service.argument {
        Some(argument) => Ok(argument.clone()),
        None => Ok(Encode!()?),
    }
}

/// Creates the canister; false if it exists already. Every principal controls it: on a network
/// where every principal can mint cycles, there is nothing to protect.
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

/// Upgrades it. It stays stopped: the caller starts it.
async fn upgrade(agent: &Agent, service: &Service, argument: &[u8], was_ours: bool) -> Result<()> {
    let id = service.id;
    // No callback of the module before may run in the new one.
    switch(agent, id, "stop_canister").await?;
    // Motoko's modules of today keep their memory; others must not be asked to.
    let kept = UpgradeFlags {
        skip_pre_upgrade: None,
        wasm_memory_persistence: Some(WasmMemoryPersistence::Keep),
    };
    let modes = [CanisterInstallMode::Upgrade(Some(kept)), CanisterInstallMode::Upgrade(None)];
    let mut errors = Vec::new();
    for mode in modes {
        let (module, argument) = (service.module.bytes().to_vec(), argument.to_vec());
        match client::install(agent, id, mode, module, argument).await {
            Ok(()) => return Ok(()),
            Err(error) => errors.push(format!("{error:#}")),
        }
    }
    // The previous module continues to run.
    if let Err(error) = switch(agent, id, "start_canister").await {
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

async fn switch(agent: &Agent, id: Principal, method: &str) -> Result<()> {
    client::manage(agent, id, method, Encode!(&CanisterIdRecord { canister_id: id })?).await?;
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

    fn step_for(
        service: &Service,
        installed: Option<[u8; 32]>,
        is_ours: bool,
        installed_with: &[u8],
    ) -> Step {
        let name = install_record::name_of(installed_with);
        let state = InstalledState { installed, is_ours, argument_name: Some(&name) };
        step(service, &argument(service).unwrap(), state)
    }

    fn step_for_unknown_argument(service: &Service, installed: Option<[u8; 32]>) -> Step {
        let state = InstalledState { installed, is_ours: true, argument_name: None };
        step(service, &argument(service).unwrap(), state)
    }

    #[test]
    fn ours_never_takes_the_place_of_a_users_module() {
        let opening = OpeningBalances { cycles: 1, icp_e8s: 1 };
        for ours in ours(&[1; 133], &opening).unwrap() {
            let (same, told) = (Some(hash(&ours)), ours.argument.clone().unwrap());
            assert_eq!(step_for(&ours, None, false, &told), Step::Install);
            assert_eq!(step_for(&ours, Some([1; 32]), false, &told), Step::Refuse);
            assert_eq!(step_for(&ours, Some([1; 32]), true, &told), Step::Upgrade, "an older one");
            assert_eq!(step_for(&ours, same, true, &told), Step::Nothing);
            assert_eq!(step_for(&ours, same, true, b"other"), Step::Upgrade, "other balances");
            assert_eq!(step_for_unknown_argument(&ours, same), Step::Upgrade);
        }
    }

    #[test]
    fn a_users_module_is_put_there_when_it_or_its_argument_changed() {
        let (plain, told) = (users(None), users(Some(vec![1])));
        let nothing = argument(&plain).unwrap();
        let same = Some(hash(&plain));
        for service in [&plain, &told] {
            assert_eq!(step_for(service, None, false, b"x"), Step::Install);
            for is_ours in [false, true] {
                let told = argument(service).unwrap();
                assert_eq!(step_for(service, Some([1; 32]), is_ours, &told), Step::Upgrade);
            }
            assert_eq!(step_for_unknown_argument(service, same), Step::Nothing);
        }
        assert_eq!(step_for(&plain, same, false, &nothing), Step::Nothing);
        assert_eq!(step_for(&plain, same, false, &[1]), Step::Nothing, "no argument is stated");
        assert_eq!(step_for(&told, same, false, &[1]), Step::Nothing);
        assert_eq!(step_for(&told, same, false, &[2]), Step::Upgrade);
        assert_eq!(step_for(&told, same, false, &nothing), Step::Upgrade);
    }
}
