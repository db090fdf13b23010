//! The demo of `make run`: an unmodified published client deploys a real canister, calls it,
//! verifies every answer, and finds the canister's state again after a restart of the node.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use candid::{Decode, Encode, Nat, Principal};
use clap::Args;
use ic_agent::{Agent, AgentError, agent::RejectCode};

pub mod client;
pub mod measure;

/// A node that serves answers by then.
const ANSWERS_WITHIN: Duration = Duration::from_secs(30);
const ASK_EVERY: Duration = Duration::from_millis(500);

/// `thimble-demo`, `thimble-lab demo`
#[derive(Args)]
pub struct Options {
    /// The node's public endpoint.
    #[arg(long, default_value = "http://127.0.0.1:8080")]
    url: String,
    /// The module to deploy: any canister with `inc : () -> (nat)` and `get : () -> (nat) query`.
    #[arg(long, default_value = "canisters/wasm/motoko-counter64.wasm")]
    canister: PathBuf,
    /// How long the node may take to become healthy.
    #[arg(long, default_value_t = 60)]
    wait_seconds: u64,
    /// Process id of the node, to show its memory.
    #[arg(long)]
    node_pid: Option<u32>,
    /// File that remembers the canister for the next run.
    #[arg(long)]
    remember: Option<PathBuf>,
}

/// Runs the story.
pub async fn run(options: Options) -> Result<()> {
    let agent = client::connect(&options.url, Duration::from_secs(options.wait_seconds)).await?;
    println!(
        "demo: connected to {} with ic-agent; root key {}",
        options.url,
        short(&agent.read_root_key())
    );
    let canister = match remembered(&agent, options.remember.as_deref()).await? {
        Some(canister) => canister,
        None => {
            let canister = client::deploy(&agent, &options.canister).await?;
            println!("demo: deployed {} as {canister}", options.canister.display());
            if let Some(file) = &options.remember {
                std::fs::write(file, canister.to_text())
                    .with_context(|| format!("writing {}", file.display()))?;
            }
            canister
        }
    };

    let started = Instant::now();
    let (reply, certificate) =
        agent.update(&canister, "inc").with_arg(Encode!()?).call().and_wait().await?;
    let counted = Decode!(&reply, Nat)?;
    let took = started.elapsed();
    println!("demo: update inc() -> {counted} in {:.1} ms, with a certificate", millis(took));
    // The agent verified it on arrival; verifying it here once more shows what was checked, and
    // that it fails when a bit is wrong.
    agent.verify(&certificate, canister).context("the certificate of the reply does not verify")?;
    let mut forged = certificate.clone();
    if let Some(byte) = forged.signature.first_mut() {
        *byte ^= 1;
    }
    anyhow::ensure!(
        agent.verify(&forged, canister).is_err(),
        "a forged certificate was taken for a true one"
    );
    println!(
        "demo: verified: BLS signature of the subnet on the state root, root recomputed from the \
         reply"
    );

    let started = Instant::now();
    let reply = agent.query(&canister, "get").with_arg(Encode!()?).call_with_verification().await?;
    let got = Decode!(&reply, Nat)?;
    anyhow::ensure!(got == counted, "the query says {got}, the update said {counted}");
    println!(
        "demo: query get() -> {got} in {:.1} ms, node signature verified",
        millis(started.elapsed())
    );

    if let Some(pid) = options.node_pid {
        let processes = measure::processes(pid)?;
        let (anonymous, _) = measure::totals(&processes);
        let parts: Vec<String> = processes
            .iter()
            .map(|process| format!("{} {}", process.role, measure::mib(process.anonymous_bytes)))
            .collect();
        println!(
            "demo: memory: {} anonymous in {} processes ({})",
            measure::mib(anonymous),
            processes.len(),
            parts.join(", ")
        );
    }
    Ok(())
}

/// The canister of an earlier run; `None` when there was none, or the node reports that it does not
/// exist. A node that was just started may be too busy to answer at once, which must not deploy
/// another one.
async fn remembered(agent: &Agent, file: Option<&Path>) -> Result<Option<Principal>> {
    let text = file.and_then(|file| std::fs::read_to_string(file).ok()).unwrap_or_default();
    let Ok(canister) = Principal::from_text(text.trim()) else { return Ok(None) };
    let began = Instant::now();
    loop {
        let error = match agent.query(&canister, "get").with_arg(Encode!()?).call().await {
            Ok(reply) => {
                let count = Decode!(&reply, Nat)?;
                println!(
                    "demo: found the canister {canister} of an earlier run; its counter stands at \
                     {count}"
                );
                return Ok(Some(canister));
            }
            Err(AgentError::UncertifiedReject { reject, .. })
                if reject.reject_code == RejectCode::DestinationInvalid =>
            {
                return Ok(None);
            }
            Err(error) => error,
        };
        if began.elapsed() > ANSWERS_WITHIN {
            return Err(error)
                .with_context(|| format!("asking the canister {canister} of an earlier run"));
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
}

fn short(bytes: &[u8]) -> String {
    let text = hex::encode(bytes);
    format!("...{}", &text[text.len().saturating_sub(16)..])
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
