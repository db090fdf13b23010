//! CPU time that nodes spend on what a driver asks of them: read from the kernel for all processes
//! of a node, so that the driver itself, which may share the cores, is not in it.

use std::time::Duration;

use accounting::{
    cpu::{self, CpuTime},
    process::Pid,
};
use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::Value;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// CPU time of one node.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct NodeCpu {
    /// The node's own process.
    pub(crate) pid: u32,
    /// In user and system mode, all its processes together.
    pub(crate) cpu_seconds: f64,
    pub(crate) user_seconds: f64,
    pub(crate) system_seconds: f64,
}

/// CPU time of nodes for a stretch of work.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Cost {
    pub(crate) nodes: Vec<NodeCpu>,
    /// Blocks that were executed meanwhile; `None` if the node does not report its height.
    pub(crate) blocks: Option<u64>,
}

impl Cost {
    /// CPU time of all nodes for one of `operations`, in microseconds: the sum, and the parts in
    /// user and in system mode. `None` without operations.
    pub(crate) fn micros_per(&self, operations: f64) -> Option<[f64; 3]> {
        let parts: [fn(&NodeCpu) -> f64; 3] =
            [|cpu| cpu.cpu_seconds, |cpu| cpu.user_seconds, |cpu| cpu.system_seconds];
        let seconds = parts.map(|part| self.nodes.iter().map(part).sum::<f64>());
        (operations > 0.0).then(|| seconds.map(|seconds| seconds * 1e6 / operations))
    }
}

/// A reading before the work.
pub(crate) struct Meter {
    before: Vec<(Pid, CpuTime)>,
    url: String,
    height: Option<u64>,
}

impl Meter {
    /// Begins to measure nodes by their process ids; `url` is the endpoint of one of them.
    ///
    /// # Errors
    ///
    /// One of them does not run.
    pub(crate) async fn start(pids: &[u32], url: &str) -> Result<Self> {
        let url = url.trim_end_matches('/').to_owned();
        // The report costs the node something: it is asked for outside of the measured time.
        let height = height(&url).await;
        let mut before = Vec::new();
        for pid in pids.iter().copied().map(Pid) {
            before.push((pid, read(pid)?));
        }
        Ok(Self { before, url, height })
    }

    /// The cost since the start.
    ///
    /// # Errors
    ///
    /// One of the nodes does not run any more.
    pub(crate) async fn stop(self) -> Result<Cost> {
        let mut nodes = Vec::new();
        for (pid, before) in self.before {
            let spent = read(pid)?.since(before);
            let (user_seconds, system_seconds) = spent.split_seconds();
            let cpu_seconds = spent.total.as_secs_f64();
            nodes.push(NodeCpu { pid: pid.0, cpu_seconds, user_seconds, system_seconds });
        }
        let after = height(&self.url).await;
        let blocks = after.zip(self.height).and_then(|(after, before)| after.checked_sub(before));
        Ok(Cost { nodes, blocks })
    }
}

fn read(pid: Pid) -> Result<CpuTime> {
    cpu::tree(pid).with_context(|| format!("reading the CPU time of the node with pid {pid}"))
}

/// Height of the newest block that the node executed, as it reports itself.
pub(crate) async fn height(url: &str) -> Option<u64> {
    let http = demo::client::http().timeout(ANSWER_TIMEOUT).build().ok()?;
    let text = http.get(format!("{url}/status.json")).send().await.ok()?.text().await.ok()?;
    let report: Value = serde_json::from_str(&text).ok()?;
    report.pointer("/rounds/height").and_then(Value::as_u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_of_several_nodes_add_up() {
        let node = |cpu_seconds, user_seconds, system_seconds| NodeCpu {
            pid: 1,
            cpu_seconds,
            user_seconds,
            system_seconds,
        };
        let cost = Cost { nodes: vec![node(3.0, 2.0, 1.0), node(1.0, 0.5, 0.5)], blocks: None };
        assert_eq!(cost.micros_per(1_000.0), Some([4_000.0, 2_500.0, 1_500.0]));
        assert_eq!(cost.micros_per(0.0), None);
    }

    #[tokio::test]
    async fn a_node_that_does_not_run_is_an_error() {
        assert!(Meter::start(&[u32::MAX], "http://127.0.0.1:1").await.is_err());
        let meter = Meter::start(&[std::process::id()], "http://127.0.0.1:1/").await.unwrap();
        let cost = meter.stop().await.unwrap();
        assert!(cost.nodes[0].cpu_seconds >= 0.0 && cost.blocks.is_none());
    }
}
