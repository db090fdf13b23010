//! `thimble-lab local`: a network for developing against. It consists of one node with small
//! canisters at the ids where tools look for those of the public network: cycles minting, cycles
//! ledger, ICP ledger (sources in `canisters/local`). With them, project tools create, pay for, and
//! delete canisters as they do elsewhere.
//!
//! Bounds: the node's own budget. The canisters bound their own data.
//!
//! Must never know: which tool is used; anything of a node except its command line and its public
//! interface.

mod amount;
mod install_record;
mod prepare;
mod progress;
mod services;

use std::{
    net::SocketAddr,
    os::unix::process::CommandExt as _,
    path::PathBuf,
    process::{Command, ExitCode, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use clap::Args;
use cli::{Child, Stop};
use ic_agent::identity::AnonymousIdentity;

use self::{
    amount::{parse_cycles, parse_icp},
    progress::Progress,
    services::{OpeningBalances, Service, ServiceSpec},
};

const HEALTHY_WITHIN: Duration = Duration::from_secs(120);
const STOPPED_WITHIN: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Command line of `thimble-lab local`.
#[derive(Args)]
pub struct Options {
    /// The node's binary [default: thimble, in the folder of this program]
    #[arg(long, value_name = "FILE")]
    node: Option<PathBuf>,
    /// The node's memory budget.
    #[arg(long, value_name = "SIZE", default_value = "512MiB")]
    memory: String,
    /// Address of the public HTTP interface, as 127.0.0.1:8080 or localhost:8080; port 0 takes a
    /// free one.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080", value_parser = setup::socket_address)]
    listen: SocketAddr,
    /// Where canisters are served to browsers; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8081", value_parser = setup::socket_address)]
    http_gateway: SocketAddr,
    /// Folder of the network's state, made at the first start. Delete it to start over.
    #[arg(long, value_name = "DIR", default_value = "thimble-local")]
    data_dir: PathBuf,
    /// Log level of the node: error, warn, info, debug, or a filter like `info,gateway=debug`.
    #[arg(long, value_name = "FILTER", default_value = "warn")]
    log: String,
    /// Install the canisters on the running network at this address, and exit. The network must
    /// have the provisional methods enabled (`--provisional true`).
    #[arg(long, conflicts_with_all = ["node", "memory", "listen", "http_gateway", "data_dir", "log"])]
    url: Option<String>,
    /// Cycles with which every principal begins; suffixes k, m, b, t.
    #[arg(long, value_name = "AMOUNT", default_value = "1000t", value_parser = parse_cycles)]
    cycles: u128,
    /// ICP with which every principal begins.
    #[arg(long, value_name = "AMOUNT", default_value = "1000000", value_parser = parse_icp)]
    icp: u64,
    /// Install a module of yours at an id below those that the network assigns, instead of one of
    /// the built-in canisters or in addition to them. ARGUMENT is a file with the encoded Candid
    /// argument of the installation (without it: no arguments); when the argument changed, the
    /// module is upgraded with it. Repeatable. An installed built-in canister can only be replaced
    /// by a Motoko module with enhanced orthogonal persistence; other modules need a new folder.
    #[arg(long = "service", value_name = "ID=MODULE[,ARGUMENT]")]
    services: Vec<ServiceSpec>,
}

/// Starts the network and leaves it running until SIGINT or SIGTERM.
pub async fn run(options: Options) -> Result<ExitCode> {
    let stop = Stop::by_signal(|| {})?;
    // Before there is a node that would have to be stopped.
    let users = options.services.iter().map(ServiceSpec::read).collect::<Result<Vec<_>>>()?;
    if let Some(url) = &options.url {
        prepare(&options, &users, url).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let listen = with_port(options.listen)?;
    let http_gateway = with_port(options.http_gateway)?;
    let mut node = spawn(&options, listen, http_gateway)?;
    let url = format!("http://{listen}");
    let begun = async {
        let started = healthy(&mut node, &url);
        Progress::on_stderr().step("starting the node", started, |()| "healthy".into()).await?;
        prepare(&options, &users, &url).await
    };
    let begun = stop.race(begun).await;
    match begun {
        Some(Ok(())) => {}
        Some(Err(error)) => return Err(stopped(node, error).await),
        None => {
            node.stop_within(STOPPED_WITHIN).await?;
            return Ok(cli::interrupted());
        }
    }
    println!("{}", project_network(&url, http_gateway));
    while stop.race(tokio::time::sleep(LOOK_EVERY)).await.is_some() {
        node.check()?;
    }
    let status = node.stop_within(STOPPED_WITHIN).await?;
    ensure!(status.success(), "the node ended with {status}");
    Ok(ExitCode::SUCCESS)
}

/// Stops the node in order, and returns the error that is the reason.
async fn stopped(mut node: Child, error: anyhow::Error) -> anyhow::Error {
    match node.stop_within(STOPPED_WITHIN).await {
        Ok(_) => error,
        Err(stop) => error.context(format!("stopping the node: {stop:#}")),
    }
}

/// What goes into a project's `icp.yaml`.
fn project_network(url: &str, http_gateway: SocketAddr) -> String {
    format!(
        "local: ready; Ctrl-C stops it. For icp.yaml:\n\nnetworks:\n  - name: local\n    mode: \
         connected\n    api-url: {url}\n    http-gateway-url: http://localhost:{}\n    root-key: \
         fetch\n",
        http_gateway.port()
    )
}

/// The address with a free port in place of port 0.
fn with_port(mut address: SocketAddr) -> Result<SocketAddr> {
    if address.port() == 0 {
        let [port] = cli::free_ports().context("finding a free port")?;
        address.set_port(port);
    }
    Ok(address)
}

fn spawn(options: &Options, listen: SocketAddr, http_gateway: SocketAddr) -> Result<Child> {
    let program = match &options.node {
        Some(program) => program.clone(),
        None => cli::this_program()?.with_file_name("thimble"),
    };
    let mut command = Command::new(&program);
    command
        .args(["run", "--memory", &options.memory, "--log", &options.log])
        .args(["--listen", &listen.to_string()])
        .args(["--http-gateway", &http_gateway.to_string()])
        .arg("--data-dir")
        .arg(&options.data_dir)
        .stdin(Stdio::null())
        // Out of reach of the terminal: a Ctrl-C is ours to pass on, once.
        .process_group(0);
    Child::spawn(&mut command, &program.display().to_string())
}

async fn healthy(node: &mut Child, url: &str) -> Result<()> {
    let http = demo::client::http().build()?;
    node.ready_within(HEALTHY_WITHIN, async || {
        let answer = http.get(format!("{url}/health")).send().await;
        answer.is_ok_and(|answer| answer.status().is_success()).then_some(())
    })
    .await
}

/// Puts the canisters there, or their newest modules into those that are.
async fn prepare(options: &Options, users: &[Service], url: &str) -> Result<()> {
    let agent = demo::client::agent(url)?.with_identity(AnonymousIdentity).build()?;
    demo::client::wait_until_healthy(&agent, url, HEALTHY_WITHIN).await?;
    let opening = OpeningBalances { cycles: options.cycles, icp_e8s: options.icp };
    let ours = services::ours(&agent.read_root_key(), &opening)?;
    let services = services::with_users(ours, users);
    let mut progress = Progress::on_stderr();
    for (number, service) in services.iter().enumerate() {
        let what = format!("[{}/{}] {} ({})", number + 1, services.len(), service.name, service.id);
        let done = prepare::service(&agent, service);
        let done = progress.step(&what, done, |done| (*done).to_owned()).await;
        let done = done.with_context(|| format!("the canister {} ({})", service.id, service.name));
        println!("local: {} {} ({})", service.id, done?, service.name);
    }
    println!(
        "local: every principal begins with {} cycles and {} ICP",
        amount::grouped(options.cycles),
        amount::grouped(amount::as_icp(options.icp).into())
    );
    Ok(())
}
