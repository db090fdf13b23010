//! The argument with which a canister's module was installed: its hash is kept in an environment
//! variable of the canister. So it is available wherever the canister is, to every later run.

use anyhow::{Context, Result};
use candid::{Decode, Encode, Principal};
use demo::client::manage;
use ic_agent::Agent;
use ic_management_canister_types::{
    CanisterIdRecord, CanisterSettings, CanisterStatusResult, EnvironmentVariable,
    UpdateSettingsArgs,
};
use sha2::{Digest, Sha256};

/// Of the environment variable.
const NAME: &str = "thimble:local:argument";

pub(crate) fn name_of(argument: &[u8]) -> String {
    hex::encode(Sha256::digest(argument))
}

/// The name of the last argument passed to the canister, if known.
pub(crate) async fn read(agent: &Agent, id: Principal) -> Result<Option<String>> {
    let variables = variables(agent, id).await?;
    let recorded = variables.into_iter().find(|variable| variable.name == NAME);
    Ok(recorded.map(|variable| variable.value))
}

/// Records this argument in the canister's environment variables, and keeps its other variables.
pub(crate) async fn write(agent: &Agent, id: Principal, argument: &[u8]) -> Result<()> {
    let mut variables = variables(agent, id).await?;
    variables.retain(|variable| variable.name != NAME);
    variables.push(EnvironmentVariable { name: NAME.into(), value: name_of(argument) });
    let settings =
        CanisterSettings { environment_variables: Some(variables), ..Default::default() };
    let arguments = UpdateSettingsArgs { canister_id: id, settings, sender_canister_version: None };
    manage(agent, id, "update_settings", Encode!(&arguments)?).await?;
    Ok(())
}

async fn variables(agent: &Agent, id: Principal) -> Result<Vec<EnvironmentVariable>> {
    let record = Encode!(&CanisterIdRecord { canister_id: id })?;
    let status = manage(agent, id, "canister_status", record).await?;
    let status = Decode!(&status, CanisterStatusResult).context("reading its settings")?;
    Ok(status.settings.environment_variables)
}
