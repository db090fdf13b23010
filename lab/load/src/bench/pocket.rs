//! `thimble-lab bench-pocket`: starts a server for tests, makes instances on it, and prints their
//! cost: start time, idle memory, and time of a call.
//!
//! The server is asked in the protocol of PocketIC's clients, over plain HTTP connections: what the
//! clients themselves take is not of the server.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use candid::Encode;
use clap::Args;
use cli::Child;
use demo::measure;
use ic_management_canister_types::{CanisterInstallMode, InstallCodeArgs};
use serde_json::{Value, json};

use super::{Table, median, scratch};
use crate::machine;

/// Command line of `thimble-lab bench-pocket`.
#[derive(Args)]
pub struct Options {
    /// The server's binary. [default: thimble-pocket in the folder of this program]
    #[arg(long, value_name = "FILE")]
    server: Option<PathBuf>,
    /// The server's memory budget.
    #[arg(long, default_value = "1GiB")]
    memory: String,
    /// Instances that are there at once.
    #[arg(long, default_value_t = 20)]
    instances: usize,
    /// Calls of each kind, in turns over the instances.
    #[arg(long, default_value_t = 400)]
    calls: usize,
    /// Folder with the canister modules.
    #[arg(long, default_value = "canisters/wasm")]
    canisters: PathBuf,
    /// Write the figures to this file, which thimble-lab compare reads; without a value, or for -,
    /// to standard output instead of the table.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
}

/// Most memory of an idle instance, its workers included.
const INSTANCE_BYTES_MAX: f64 = 12.0 * 1024.0 * 1024.0;
/// Longest that one may take to start.
const START_MILLIS_MAX: f64 = 50.0;
/// Time for the server to become idle.
const REST: Duration = Duration::from_secs(3);
const LOOK_EVERY: Duration = Duration::from_millis(1);
const STARTED_WITHIN: Duration = Duration::from_secs(30);
const STOPPED_WITHIN: Duration = Duration::from_secs(60);
/// The management canister; also the empty principal.
const MANAGEMENT: &[u8] = &[];
const ANONYMOUS: &[u8] = &[4];

struct Server {
    child: Child,
    http: reqwest::Client,
    url: String,
}

impl Server {
    async fn start(options: &Options, port_file: PathBuf) -> Result<(Self, Duration)> {
        let program = cli::program(options.server.as_deref(), "thimble-pocket", "server")?;
        let mut command = Command::new(&program);
        command.args(["--memory", &options.memory, "--ttl", "600", "--port-file"]);
        command.arg(&port_file).stdout(Stdio::null());
        let started = Instant::now();
        let child = Child::spawn(&mut command, &format!("{}", program.display()))?;
        let mut told = async || {
            let text = std::fs::read_to_string(&port_file).ok()?;
            Some((text.strip_suffix('\n')?.parse::<u16>().ok()?, started.elapsed()))
        };
        let mut child = child;
        let (port, took) = child.ready_polling_every(LOOK_EVERY, STARTED_WITHIN, &mut told).await?;
        let url = format!("http://127.0.0.1:{port}");
        Ok((Self { child, http: demo::client::http().build()?, url }, took))
    }

    async fn post(&self, path: &str, body: &Value) -> Result<Value> {
        let request = self.http.post(format!("{}{path}", self.url)).body(body.to_string());
        let request = request.header("content-type", "application/json");
        let response = request.send().await?;
        let status = response.status();
        let text = response.text().await?;
        ensure!(status.is_success(), "{path}: {status}: {text}");
        serde_json::from_str(&text).with_context(|| format!("{path}: {text}"))
    }

    /// Memory of all processes, and their number.
    fn held(&self) -> Result<(f64, usize)> {
        let processes = measure::processes(self.child.id())?;
        Ok((measure::totals(&processes).0 as f64, processes.len()))
    }
}

fn bytes(bytes: &[u8]) -> Value {
    json!(BASE64_STANDARD.encode(bytes))
}

fn call(canister: &Value, method: &str, payload: &[u8]) -> Value {
    json!({
        "sender": bytes(ANONYMOUS), "canister_id": canister, "effective_principal": "None",
        "method": method, "payload": bytes(payload),
    })
}

/// An instance with a counter in it.
struct Instance {
    number: u64,
    counter: Value,
}

impl Instance {
    async fn make(server: &Server) -> Result<(Self, Duration)> {
        let spec = json!({"state_config": "New", "instruction_config": "Production"});
        let config = json!({"subnet_config_set": {"application": [spec]}});
        let started = Instant::now();
        let made = server.post("/instances", &config).await?;
        let took = started.elapsed();
        let created = &made["Created"];
        let number = created["instance_id"].as_u64().context("an instance has a number")?;
        let first = &created["topology"]["default_effective_canister_id"]["canister_id"];
        Ok((Self { number, counter: first.clone() }, took))
    }

    async fn update(&self, server: &Server, call: &Value) -> Result<Value> {
        let at = format!("/instances/{}/update", self.number);
        let submitted = server.post(&format!("{at}/submit_ingress_message"), call).await?;
        let answer = server.post(&format!("{at}/await_ingress_message"), &submitted["Ok"]).await?;
        ensure!(answer.get("Ok").is_some(), "{submitted}: {answer}");
        Ok(answer)
    }

    async fn deploy(&self, server: &Server, wasm: &[u8]) -> Result<()> {
        #[derive(candid::CandidType)]
        struct Nothing {}
        let create = call(
            &bytes(MANAGEMENT),
            "provisional_create_canister_with_cycles",
            &Encode!(&Nothing {})?,
        );
        self.update(server, &create).await?;
        // The first id that an application subnet gives.
        let id = [0xff, 0xff, 0xff, 0xff, 0xff, 0xe0, 0, 0, 1, 1];
        ensure!(self.counter == bytes(&id), "the first canister has another id");
        let install = Encode!(&InstallCodeArgs {
            mode: CanisterInstallMode::Install,
            canister_id: candid::Principal::from_slice(&id),
            wasm_module: wasm.to_vec(),
            arg: vec![],
            sender_canister_version: None,
        })?;
        self.update(server, &call(&bytes(MANAGEMENT), "install_code", &install)).await?;
        Ok(())
    }

    async fn query(&self, server: &Server, call: &Value) -> Result<()> {
        let answer = server.post(&format!("/instances/{}/read/query", self.number), call).await?;
        ensure!(answer.get("Ok").is_some(), "{answer}");
        Ok(())
    }
}

/// Runs everything and prints the table.
pub async fn run(options: Options) -> Result<()> {
    let scratch = scratch("bench-pocket");
    std::fs::create_dir_all(&scratch)?;
    let mut table = Table::default();
    let outcome = measure_all(&options, scratch.join("port"), &mut table).await;
    let _ = std::fs::remove_dir_all(&scratch);
    let report = json!({
        "format": compare::figure::FORMAT, "bench": "bench-pocket", "machine": machine(),
        "memory": options.memory, "instances": options.instances, "calls": options.calls,
        "rows": table.rows, "figures": table.figures,
        "failed": outcome.as_ref().err().map(|error| format!("{error:#}")),
    });
    let server = format!("--memory {}", options.memory);
    outcome.and(table.publish(&report, options.json.as_deref(), &server))
}

async fn measure_all(options: &Options, port_file: PathBuf, table: &mut Table) -> Result<()> {
    let path = options.canisters.join("counter-c.wasm");
    let wasm = std::fs::read(&path).with_context(|| path.display().to_string())?;
    let (mut server, took) = Server::start(options, port_file).await?;
    let millis = |time: Duration| time.as_secs_f64() * 1_000.0;
    table.figure("server start", millis(took), "ms");
    table.row("start of the server", format!("{:.0} ms", millis(took)));
    tokio::time::sleep(REST).await;
    let (alone, _) = server.held()?;
    table.figure("server idle", alone, "bytes");
    table.row("server without instances, anonymous memory", measure::mib(alone as u64));

    let mut instances = Vec::new();
    let mut starts = Vec::new();
    for _ in 0..options.instances {
        let (instance, took) = Instance::make(&server).await?;
        instances.push(instance);
        starts.push(millis(took));
    }
    let (typical, longest) = (median(starts.clone()), starts.iter().copied().fold(0.0, f64::max));
    table.figure("instance start", typical, "ms");
    let value = format!("{typical:.1} ms, longest {longest:.1} ms");
    let met = typical < START_MILLIS_MAX;
    table.row(format!("start of one of {}", options.instances), value).goal("under 50 ms", met);
    rest(&server, (alone, options.instances), "instance, empty", table).await?;

    let started = Instant::now();
    for instance in &instances {
        instance.deploy(&server, &wasm).await?;
    }
    let each = millis(started.elapsed()) / instances.len() as f64;
    table.row("creating and installing a counter, each instance", format!("{each:.1} ms"));
    calls(&server, &instances, options.calls, table).await?;
    rest(&server, (alone, options.instances), "instance, with a counter", table).await?;

    for instance in &instances {
        let url = format!("{}/instances/{}", server.url, instance.number);
        server.http.delete(url).send().await?.error_for_status()?;
    }
    tokio::time::sleep(REST).await;
    let (after, processes) = server.held()?;
    table.figure("server after", after, "bytes");
    let value = format!("{} in {processes} processes", measure::mib(after as u64));
    table.row("server after all were deleted", value);
    server.child.stop_within(STOPPED_WITHIN).await?;
    Ok(())
}

/// Idle memory of one instance.
async fn rest(
    server: &Server,
    (alone, instances): (f64, usize),
    what: &str,
    table: &mut Table,
) -> Result<()> {
    tokio::time::sleep(REST).await;
    let (held, processes) = server.held()?;
    let each = (held - alone) / instances as f64;
    table.figure(what, each, "bytes");
    let value =
        format!("{} of {} in {processes}", measure::mib(each as u64), measure::mib(held as u64));
    let met = each < INSTANCE_BYTES_MAX;
    table.row(format!("{what}, at rest"), value).goal("under 12 MiB", met);
    Ok(())
}

async fn calls(
    server: &Server,
    instances: &[Instance],
    count: usize,
    table: &mut Table,
) -> Result<()> {
    let arg = Encode!()?;
    let mut updates = Vec::new();
    let mut queries = Vec::new();
    for instance in instances.iter().cycle().take(count) {
        let started = Instant::now();
        instance.update(server, &call(&instance.counter, "inc", &arg)).await?;
        updates.push(started.elapsed().as_secs_f64() * 1_000.0);
        let started = Instant::now();
        instance.query(server, &call(&instance.counter, "get", &arg)).await?;
        queries.push(started.elapsed().as_secs_f64() * 1_000.0);
    }
    for (what, figure, values) in
        [("update call, submitted and awaited", "update", updates), ("query", "query", queries)]
    {
        let typical = median(values);
        table.figure(figure, typical, "ms");
        table.row(format!("{what}, median"), format!("{typical:.2} ms"));
    }
    Ok(())
}
