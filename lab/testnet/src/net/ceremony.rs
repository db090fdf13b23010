//! The ceremony that makes one subnet of independent nodes: every node makes its keys, any party
//! plans, every node deals, any party assembles the dealings, every node joins. All of it is done
//! by the node's own binary, as operators of different machines would do it; this only carries the
//! files.
//!
//! Each step is repeated without harm: keys that are there stay, a genesis that is there is joined
//! again.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::state::{Net, NetFolder};

/// A record has a few hundred bytes.
const RECORD_BYTES_MAX: u64 = 1 << 20;

/// Makes the nodes of `net` one subnet and records their ids. Reports its progress through `say`.
pub(crate) fn perform(net: &mut Net, place: &NetFolder, mut say: impl FnMut(&str)) -> Result<()> {
    let folder = place.file("ceremony");
    fs::create_dir_all(&folder)
        .with_context(|| format!("making the folder {}", folder.display()))?;
    let genesis = folder.join("genesis.json");
    let file = |name: &str, index: usize| folder.join(format!("{name}-{index}.json"));
    let tool = Tool(&net.binary);
    let done = genesis.exists();

    if !done {
        say("ceremony: every node makes its keys");
    }
    let mut ids = Vec::new();
    for node in &net.nodes {
        let (data, record) = (place.data(node.index), file("node", node.index));
        if !done {
            fs::create_dir_all(&data)?;
            let address = PathBuf::from(node.p2p.to_string());
            tool.run(
                &["keygen"],
                &[("--data-dir", &data), ("--address", &address), ("--out", &record)],
            )?;
        }
        ids.push(node_id(&record)?);
    }
    if !done {
        let plan = folder.join("plan.json");
        let records: Vec<PathBuf> = net.nodes.iter().map(|node| file("node", node.index)).collect();
        let mut flags: Vec<Flag> =
            records.iter().map(|record| ("--node", record.as_path())).collect();
        flags.push(("--out", &plan));
        tool.run(&["genesis", "plan"], &flags)?;
        say("ceremony: every node deals its share of the subnet's key");
        let mut dealings = Vec::new();
        for node in &net.nodes {
            let (data, dealing) = (place.data(node.index), file("dealing", node.index));
            tool.run(
                &["genesis", "deal"],
                &[("--data-dir", &data), ("--plan", &plan), ("--out", &dealing)],
            )?;
            dealings.push(dealing);
        }
        // Under another name until it is complete: its presence means that the ceremony is over.
        let scratch = folder.join("genesis-new.json");
        let mut flags: Vec<Flag> =
            dealings.iter().map(|dealing| ("--dealing", dealing.as_path())).collect();
        flags.extend([("--plan", plan.as_path()), ("--out", scratch.as_path())]);
        tool.run(&["genesis", "assemble"], &flags)?;
        tool.run(&["genesis", "verify", &scratch.to_string_lossy()], &[])?;
        fs::rename(&scratch, &genesis)?;
        say("ceremony: the genesis is verified; every node joins");
    }
    for node in &net.nodes {
        tool.run(&["join"], &[("--data-dir", &place.data(node.index)), ("--genesis", &genesis)])?;
    }
    for (node, id) in net.nodes.iter_mut().zip(ids) {
        node.node_id = Some(id);
    }
    Ok(())
}

/// The id in a node's public record.
fn node_id(record: &Path) -> Result<String> {
    let read = || -> Result<String> {
        let size = fs::metadata(record)?.len();
        anyhow::ensure!(size <= RECORD_BYTES_MAX, "it has {size} bytes");
        let value: Value = serde_json::from_slice(&fs::read(record)?)?;
        Ok(value.get("node_id").and_then(Value::as_str).context("it has no `node_id`")?.to_owned())
    };
    read().with_context(|| format!("reading the node's record {}", record.display()))
}

/// A flag whose value is a path, or can be written as one.
type Flag<'a> = (&'a str, &'a Path);

/// The node's binary.
struct Tool<'a>(&'a Path);

impl Tool<'_> {
    fn run(&self, words: &[&str], flags: &[Flag]) -> Result<()> {
        let mut command = Command::new(self.0);
        command.args(words).stdin(Stdio::null());
        for (flag, value) in flags {
            command.arg(flag).arg(value);
        }
        let output = command.output().with_context(|| format!("running {}", self.0.display()))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        if said.contains("unrecognized subcommand") {
            bail!(
                "{} knows no `{}`: it cannot make a subnet of several nodes; build a newer one, \
                 or start --nodes 1",
                self.0.display(),
                words.join(" ")
            );
        }
        let flags: Vec<String> =
            flags.iter().map(|(flag, value)| format!("{flag} {}", value.display())).collect();
        bail!(
            "`{} {} {}` ended with {}: {said}",
            self.0.display(),
            words.join(" "),
            flags.join(" "),
            output.status
        )
    }
}
