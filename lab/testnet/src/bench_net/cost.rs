//! CPU time of a member for a block, and the floor under it: the consensus engine alone, measured
//! on the same machine in the same run.
//!
//! Both are read from the kernel for all processes of a member, so the clients that share the cores
//! are in neither. The engine is a program of its own (`--engine`), started once for each of four
//! members. It agrees on blocks that mean nothing, with Ed25519 votes. What a node adds that no
//! engine has is one threshold signature a block, the certification of its state; the goal allows
//! for that and for nothing else.

use std::{
    fs::{self, File},
    path::Path,
    process::Command,
    time::Duration,
};

use accounting::{
    cpu::{self, CpuTime},
    process::Pid,
};
use anyhow::{Context, Result, ensure};
use cli::Child;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use super::{Bench, join};

/// Members of the engine alone.
const MEMBERS: usize = 4;
/// Before its measurement, for connections.
const WARM_UP_SECONDS: u64 = 5;
/// Its blocks a second in the slow run are those of an idle subnet.
const IDLE_PAUSE_MILLIS: u64 = 1_000;
/// It ends later than stated by at most this.
const PATIENCE: Duration = Duration::from_secs(60);

/// CPU time of one member, as programs report it.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct MemberCpu {
    cpu_seconds: f64,
    user_seconds: f64,
    system_seconds: f64,
}

impl From<CpuTime> for MemberCpu {
    fn from(time: CpuTime) -> Self {
        let (user_seconds, system_seconds) = time.split_seconds();
        Self { cpu_seconds: time.total.as_secs_f64(), user_seconds, system_seconds }
    }
}

/// A measured part of the hammer's report, as far as it concerns the nodes.
#[derive(Deserialize)]
struct NodeCost {
    nodes: Vec<MemberCpu>,
    blocks: Option<u64>,
}

/// Report of one member of the engine alone.
#[derive(Deserialize)]
struct EngineReport {
    blocks: u64,
    seconds: f64,
    latency_p50_millis: f64,
    #[serde(flatten)]
    cpu: MemberCpu,
}

/// Cost of a threshold signature.
#[derive(Deserialize)]
struct SignatureReport {
    micros: f64,
}

/// Most milliseconds a member may take for a block: the engine alone and one threshold signature.
#[derive(Clone, Copy, Debug)]
pub(super) struct Floor {
    /// At a block a second.
    pub(super) idle_millis: f64,
    /// As fast as possible.
    pub(super) busy_millis: f64,
}

impl Bench {
    /// CPU time of each node so far.
    pub(super) fn node_cpu(&self) -> Result<Vec<CpuTime>> {
        let read = |pid: u32| -> Result<CpuTime> { Ok(cpu::tree(Pid(pid))?) };
        self.pids()?.into_iter().map(read).collect()
    }

    fn pids(&self) -> Result<Vec<u32>> {
        let pid = |index: usize| -> Result<u32> {
            let info = self.place.info(index).with_context(|| format!("node {index} is gone"))?;
            Ok(info.pid)
        };
        (0..self.place.load()?.nodes.len()).map(pid).collect()
    }

    /// A row with the CPU time of each member for one of `blocks`, and figures of the mean; held
    /// against the floor, if it was measured.
    pub(super) fn block_cost(
        &mut self,
        what: &str,
        members: &[MemberCpu],
        blocks: u64,
        most_millis: Option<f64>,
    ) -> Result<()> {
        ensure!(blocks > 0 && !members.is_empty(), "no block was made: {what}");
        let millis = |seconds: f64| seconds * 1e3 / blocks as f64;
        let mean = |part: fn(&MemberCpu) -> f64| {
            millis(members.iter().map(part).sum::<f64>() / members.len() as f64)
        };
        let [all, user, system] = [
            mean(|one| one.cpu_seconds),
            mean(|one| one.user_seconds),
            mean(|one| one.system_seconds),
        ];
        let each = join(members, |one| format!("{:.1}", millis(one.cpu_seconds)));
        let name = format!("CPU per member and block, {what}");
        let row = self.row(&name, format!("{each} ms ({user:.1} + {system:.1})"));
        row.figure(&name, all, "ms").figure(&format!("{name}, user"), user, "ms").figure(
            &format!("{name}, system"),
            system,
            "ms",
        );
        if let Some(most) = most_millis {
            row.goal(format!("<= {most:.1} ms"), all <= most);
        }
        Ok(())
    }

    /// Chains of three guaranteed calls, one at a time: blocks with one chain in them.
    pub(super) async fn chain_blocks(&mut self) -> Result<()> {
        self.phase("blocks with one chain");
        let seconds = self.options.seconds.to_string();
        let flags = ["--mode", "calls", "--seconds", &seconds, "--concurrency", "1"];
        let report = self.measured("chain", &[&flags[..], &["--depth", "3"]].concat()).await?;
        let cost = node_cost(&report)?;
        let blocks = cost.blocks.context("the nodes do not report their heights")?;
        let most = self.floor.map(|floor| floor.busy_millis);
        self.block_cost("one chain of three", &cost.nodes, blocks, most)?;
        let chains = super::done(&report, "chain");
        ensure!(chains > 0, "no chain of calls was answered");
        let per_chain = blocks as f64 / chains as f64;
        self.row("blocks of a chain of three, alone", format!("{per_chain:.1}")).figure(
            "blocks of a chain of three, alone",
            per_chain,
            "blocks",
        );
        self.judge_hammer("chain", &report);
        Ok(())
    }

    /// Updates with 128 in flight: their rate, and what one costs all members together.
    pub(super) async fn updates(&mut self) -> Result<()> {
        self.phase("updates");
        let seconds = self.options.seconds.to_string();
        let flags = ["--mode", "throughput", "--seconds", &seconds, "--concurrency", "128"];
        let report = self.measured("updates", &flags).await?;
        let cost = node_cost(&report)?;
        let updates = super::done(&report, "count") as f64;
        let phase = super::measured_phase(&report).context("the hammer reports no updates")?;
        let took = phase.get("seconds").and_then(Value::as_f64).unwrap_or(f64::NAN);
        ensure!(updates > 0.0 && took > 0.0, "no update was answered");
        let spent: f64 = cost.nodes.iter().map(|node| node.cpu_seconds).sum();
        let micros = spent * 1e6 / updates;
        self.row("updates, 128 in flight", format!("{:.0}/s", updates / took)).figure(
            "updates, 128 in flight",
            updates / took,
            "/s",
        );
        self.row("CPU per update, all members", format!("{micros:.0} us")).figure(
            "CPU per update, all members",
            micros,
            "us",
        );
        self.judge_hammer("updates", &report);
        Ok(())
    }

    /// The hammer, with the CPU time of the nodes in its report.
    async fn measured(&mut self, name: &str, flags: &[&str]) -> Result<Value> {
        let pids: Vec<String> = self.pids()?.iter().map(u32::to_string).collect();
        let pids = pids.iter().flat_map(|pid| ["--pid", pid.as_str()]);
        let flags: Vec<&str> = flags.iter().copied().chain(pids).collect();
        let endpoints = self.endpoints()?;
        self.hammer(name, &endpoints, &flags).await
    }

    /// Measures the engine alone, if its program is named: at a block a second, then as fast as it
    /// can; and a threshold signature.
    pub(super) async fn engine(&mut self) -> Result<()> {
        let Some(program) = self.options.engine.clone() else { return Ok(()) };
        self.phase("the engine alone");
        let folder = self.folder.join("engine");
        let seconds = self.options.seconds;
        let idle = run(&program, &folder.join("idle"), IDLE_PAUSE_MILLIS, 2 * seconds).await?;
        let busy = run(&program, &folder.join("busy"), 0, seconds).await?;
        let mut command = Command::new(&program);
        command.arg("signature");
        let signature: SignatureReport = report(&mut command, &folder.join("signature")).await?;
        let signature_millis = signature.micros / 1e3;
        self.engine_row("1 block/s", &idle)?;
        self.engine_row("as fast as possible", &busy)?;
        let rate = mean(&busy, |one| one.blocks as f64 / one.seconds);
        let latency = mean(&busy, |one| one.latency_p50_millis);
        self.row("engine alone: blocks/s, latency p50", format!("{rate:.1}, {latency:.1} ms"))
            .figure("engine alone, blocks", rate, "/s")
            .figure("engine alone, block latency p50", latency, "ms");
        self.row("threshold signature made and verified", format!("{signature_millis:.1} ms"))
            .figure("threshold signature", signature_millis, "ms");
        self.floor = Some(Floor {
            idle_millis: millis_per_block(&idle)? + signature_millis,
            busy_millis: millis_per_block(&busy)? + signature_millis,
        });
        Ok(())
    }

    fn engine_row(&mut self, what: &str, members: &[EngineReport]) -> Result<()> {
        let millis = millis_per_block(members)?;
        let part = |part: fn(&EngineReport) -> f64| mean(members, part) * 1e3;
        let blocks = mean(members, |one| one.blocks as f64);
        let [user, system] = [part(|one| one.cpu.user_seconds), part(|one| one.cpu.system_seconds)]
            .map(|millis| millis / blocks);
        let name = format!("engine alone, Ed25519 votes, {what}: CPU per member and block");
        self.row(&name, format!("{millis:.1} ms ({user:.1} + {system:.1})")).figure(
            &format!("engine alone, CPU per member and block, {what}"),
            millis,
            "ms",
        );
        Ok(())
    }
}

fn mean(members: &[EngineReport], part: impl Fn(&EngineReport) -> f64) -> f64 {
    members.iter().map(part).sum::<f64>() / members.len() as f64
}

fn millis_per_block(members: &[EngineReport]) -> Result<f64> {
    let blocks = mean(members, |one| one.blocks as f64);
    ensure!(blocks > 0.0, "the engine alone made no block");
    Ok(mean(members, |one| one.cpu.cpu_seconds) * 1e3 / blocks)
}

/// The nodes' part of a hammer's report.
fn node_cost(report: &Value) -> Result<NodeCost> {
    let cost = super::measured_phase(report).and_then(|phase| phase.get("cost")).cloned();
    let cost = cost.context("the hammer did not read the CPU time of the nodes")?;
    serde_json::from_value(cost).context("reading the hammer's report")
}

/// Runs the engine on four members.
async fn run(
    program: &Path,
    folder: &Path,
    pause_millis: u64,
    seconds: u64,
) -> Result<Vec<EngineReport>> {
    let ports = cli::free_ports::<MEMBERS>()?.map(|port| port.to_string()).join(",");
    let members = (0..MEMBERS).map(|place| {
        let place_folder = folder.join(place.to_string());
        let mut command = Command::new(program);
        command.args(["member", "--place", &place.to_string(), "--ports", &ports, "--folder"]);
        command.arg(place_folder.join("data"));
        command.args(["--pause-millis", &pause_millis.to_string()]);
        command.args(["--warm-up", &WARM_UP_SECONDS.to_string()]);
        command.args(["--seconds", &seconds.to_string()]);
        start(&mut command, &place_folder)
    });
    let mut members = members.collect::<Result<Vec<_>>>()?;
    let timeout = Duration::from_secs(WARM_UP_SECONDS + seconds) + PATIENCE;
    let mut reports = Vec::new();
    for (place, member) in members.iter_mut().enumerate() {
        reports.push(ended(member, &folder.join(place.to_string()), timeout).await?);
    }
    Ok(reports)
}

/// Runs a command that ends by itself, and reads the line that it prints.
async fn report<T: DeserializeOwned>(command: &mut Command, folder: &Path) -> Result<T> {
    let mut child = start(command, folder)?;
    ended(&mut child, folder, PATIENCE).await
}

fn start(command: &mut Command, folder: &Path) -> Result<Child> {
    fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    let log = folder.join("log");
    cli::detach(command, &log)?.stdout(File::create(folder.join("report.json"))?);
    Ok(Child::spawn(command, "the engine alone")?.logging_to([log]))
}

async fn ended<T: DeserializeOwned>(
    child: &mut Child,
    folder: &Path,
    timeout: Duration,
) -> Result<T> {
    let status = child.ended_within(timeout).await?;
    ensure!(status.success(), "the engine alone ended with {status}: {}", child.log_tail());
    let path = folder.join("report.json");
    let text = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("reading {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engines_line_and_the_hammers_report_are_read() {
        let line = r#"{"blocks": 20, "seconds": 2.0, "cpu_seconds": 0.1, "user_seconds": 0.06,
            "system_seconds": 0.04, "latency_p50_millis": 21.5}"#;
        let members: Vec<EngineReport> =
            (0..4).map(|_| serde_json::from_str(line).unwrap()).collect();
        assert!((millis_per_block(&members).unwrap() - 5.0).abs() < 1e-9);
        assert!((mean(&members, |one| one.latency_p50_millis) - 21.5).abs() < 1e-9);

        let report = serde_json::json!({"modes": [{"phases": [
            {"preparation": true, "seconds": 9.0},
            {"preparation": false, "seconds": 2.0, "kinds": {"chain": {"done": 7}}, "cost": {
                "nodes": [{"pid": 4, "cpu_seconds": 1.5, "user_seconds": 1.0,
                           "system_seconds": 0.5}],
                "blocks": 30}},
        ]}]});
        let cost = node_cost(&report).unwrap();
        assert_eq!((cost.blocks, cost.nodes.len()), (Some(30), 1));
        assert_eq!(super::super::done(&report, "chain"), 7);
        assert!(node_cost(&serde_json::json!({"modes": []})).is_err());
    }
}
