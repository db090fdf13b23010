//! `thimble keygen`, `thimble genesis ...`, `thimble join`: the ceremony's steps as commands. The
//! crate `genesis` defines the files and the checks; `keys` changes a data folder; here are files,
//! flags and texts for people.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, bail, ensure};
use clap::Subcommand;
use genesis::{
    DEALING_BYTES_MAX, GENESIS_BYTES_MAX, Genesis, NodeRecord, PLAN_BYTES_MAX, Plan,
    RECORD_BYTES_MAX, SignedDealing, VerifiedGenesis, faulty,
};
use nidkg::Engine;
use rand::rngs::OsRng;
use serde_json::json;
use time::OffsetDateTime;

use crate::keys::{
    self,
    files::{self, Readers},
};

/// Steps of the ceremony that concern all nodes.
#[derive(Subcommand)]
pub(crate) enum GenesisCommand {
    /// Combine the records of all nodes into a plan: the nodes, the number of signers, and the time
    /// at which the subnet begins.
    ///
    /// The same records and the same time give the same plan, whatever their order. Its hash is
    /// printed: all operators compare it before dealing.
    ///
    /// Example: thimble genesis plan --node a.json --node b.json --node c.json --node d.json --out
    /// plan.json
    Plan {
        /// A node's record, as `thimble keygen` wrote it; once for each node.
        #[arg(long = "node", value_name = "FILE", required = true)]
        nodes: Vec<PathBuf>,
        /// Time of the first block, in seconds since 1970. [default: now]
        #[arg(long, value_name = "SECONDS")]
        time: Option<u64>,
        /// Where to write the plan.
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
    /// Make this node's part of the key, encrypted to all nodes and signed by this one.
    ///
    /// The plan is checked first: this node must be in it with the keys and the address of its own
    /// record. A dealing that is there already is kept.
    ///
    /// Example: thimble genesis deal --data-dir /var/lib/thimble --plan plan.json --out
    /// dealing.json
    Deal {
        /// Folder of this node's keys.
        #[arg(long, value_name = "DIR", default_value = "thimble-data")]
        data_dir: PathBuf,
        /// The plan, as `thimble genesis plan` wrote it.
        #[arg(long, value_name = "FILE")]
        plan: PathBuf,
        /// Where to write the dealing.
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
    /// Combine the dealings: verifies every one of them and computes the subnet's public key from
    /// all of them.
    ///
    /// One dealing more than nodes that may be faulty is the least. All of them is better: the key
    /// is secret as long as one dealer was honest.
    ///
    /// Example: thimble genesis assemble --plan plan.json --dealing 1.json --dealing 2.json
    /// --dealing 3.json --dealing 4.json --out genesis.json
    Assemble {
        /// The plan, as `thimble genesis plan` wrote it.
        #[arg(long, value_name = "FILE")]
        plan: PathBuf,
        /// A node's dealing; once for each.
        #[arg(long = "dealing", value_name = "FILE", required = true)]
        dealings: Vec<PathBuf>,
        /// Where to write the genesis.
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
    /// Check a genesis from scratch and print what people compare: subnet id, root key, threshold,
    /// nodes, hashes.
    ///
    /// Checks each node's record with its proof of possession, each dealer's signature and proofs,
    /// and that the transcript is exactly what the dealings give.
    ///
    /// Example: thimble genesis verify genesis.json
    Verify {
        /// The genesis, as `thimble genesis assemble` wrote it.
        #[arg(value_name = "FILE")]
        genesis: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

impl GenesisCommand {
    pub(crate) fn run(self) -> Result<()> {
        match self {
            Self::Plan { nodes, time, out } => plan(&nodes, time, &out),
            Self::Deal { data_dir, plan, out } => deal(&data_dir, &plan, &out),
            Self::Assemble { plan, dealings, out } => assemble(&plan, &dealings, &out),
            Self::Verify { genesis, json } => verify(&genesis, json),
        }
    }
}

/// Runs `thimble keygen`: makes the node's keys and writes its record to `out` or standard output.
pub(crate) fn keygen(data: &Path, address: &str, out: Option<&Path>) -> Result<()> {
    let record = keys::keygen(data, address)?;
    match out {
        Some(out) => {
            files::write(out, record.to_json().as_bytes(), Readers::All)?;
            println!(
                "node {} at {}, its record is {}",
                record.node_id(),
                record.address(),
                out.display()
            );
        }
        None => print!("{}", record.to_json()),
    }
    Ok(())
}

/// Runs `thimble join`: verifies the genesis and takes this node's share out of it, if it has one.
pub(crate) fn join(data: &Path, genesis: &Path) -> Result<()> {
    let engine = keys::engine()?;
    let genesis = verified(genesis, &engine)?;
    let joined = keys::join(data, &genesis, &engine)?;
    let how = if joined.before { "had joined before" } else { "joined" };
    match joined.place {
        Some(place) => println!("{how}: node {} of the subnet {}", place.0, genesis.subnet_id()),
        None => {
            println!("{how}: the subnet {}", genesis.subnet_id());
            println!(
                "this node is not in its plan: it has no share of the key, and takes part once \
                 the members admit it (`thimble members change --add` with its record)"
            );
        }
    }
    println!("genesis hash {}", hex::encode(genesis.hash()));
    Ok(())
}

fn plan(nodes: &[PathBuf], time: Option<u64>, out: &Path) -> Result<()> {
    let record = |path: &PathBuf| files::read_as(path, RECORD_BYTES_MAX, NodeRecord::from_json);
    let records = nodes.iter().map(record).collect::<Result<Vec<_>>>()?;
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let plan = Plan::new(records, time.unwrap_or_else(now))?;
    files::write(out, plan.to_json().as_bytes(), Readers::All)?;
    print!("{}", plan_text(&plan));
    println!("written to {}; all operators compare the hash before dealing", out.display());
    Ok(())
}

fn deal(data: &Path, plan: &Path, out: &Path) -> Result<()> {
    let plan = files::read_as(plan, PLAN_BYTES_MAX, Plan::from_json)?;
    let node = keys::node_of_plan(data, &plan)?;
    let own = genesis::node_id(&node.verifying_key());
    if out.is_file() {
        let kept = SignedDealing::from_json(&files::read(out, DEALING_BYTES_MAX)?)
            .and_then(|dealing| dealing.check(&plan).map(|_| dealing));
        match kept {
            Ok(dealing) if dealing.dealer() == own => {
                println!("{} is this node's dealing for this plan already", out.display());
                return Ok(());
            }
            _ => bail!(
                "{} is there and is not this node's dealing for this plan: name another file, or \
                 remove it",
                out.display()
            ),
        }
    }
    let dealing = SignedDealing::create(&keys::engine()?, &plan, &node, &mut OsRng)?;
    files::write(out, dealing.to_json().as_bytes(), Readers::All)?;
    println!("node {own} dealt for the plan {}", hex::encode(plan.hash()));
    println!("written to {}", out.display());
    Ok(())
}

fn assemble(plan: &Path, dealings: &[PathBuf], out: &Path) -> Result<()> {
    let plan = files::read_as(plan, PLAN_BYTES_MAX, Plan::from_json)?;
    let mut read = Vec::new();
    for path in dealings {
        let dealing = files::read_as(path, DEALING_BYTES_MAX, SignedDealing::from_json)?;
        dealing.check(&plan).with_context(|| format!("in {}", path.display()))?;
        read.push(dealing);
    }
    let named = || {
        let files = dealings.iter().zip(&read);
        let files = files
            .map(|(path, dealing)| format!("{} is of node {}", path.display(), dealing.dealer()));
        files.collect::<Vec<_>>().join("; ")
    };
    let (genesis, verified) =
        Genesis::assemble(&keys::engine()?, plan, read.clone(), &mut OsRng)
            .with_context(|| format!("putting the dealings together ({})", named()))?;
    files::write(out, genesis.to_json().as_bytes(), Readers::All)?;
    print!("{}", genesis_text(&verified));
    println!(
        "written to {}; all operators verify it and compare the genesis hash before joining",
        out.display()
    );
    Ok(())
}

fn verify(path: &Path, json: bool) -> Result<()> {
    let genesis = verified(path, &keys::engine()?)?;
    if json {
        println!("{}", serde_json::to_string_pretty(&genesis_json(&genesis))?);
    } else {
        print!("{}", genesis_text(&genesis));
    }
    Ok(())
}

fn verified(path: &Path, engine: &Engine) -> Result<VerifiedGenesis> {
    files::read_as(path, GENESIS_BYTES_MAX, Genesis::from_json)?
        .verify(engine, &mut OsRng)
        .with_context(|| format!("verifying {}", path.display()))
}

fn plan_text(plan: &Plan) -> String {
    let count = plan.nodes().len();
    let mut text = format!(
        "plan hash    {}\nbegins       {}\nthreshold    {} of {count} nodes sign; {} may be faulty\n",
        hex::encode(plan.hash()),
        time_text(plan.time_seconds()),
        plan.threshold(),
        faulty(count)
    );
    for (index, node) in plan.nodes().iter().enumerate() {
        let _ = writeln!(text, "node {index:<7} {} at {}", node.node_id(), node.address());
    }
    text
}

fn genesis_text(genesis: &VerifiedGenesis) -> String {
    let dealers: Vec<_> = genesis.dealers().iter().map(|dealer| dealer.0.to_string()).collect();
    format!(
        "genesis hash {}\nsubnet       {}\nroot key     {}\ndealers      {} of {} ({})\n{}",
        hex::encode(genesis.hash()),
        genesis.subnet_id(),
        hex::encode(genesis.root_key_der()),
        dealers.len(),
        genesis.plan().nodes().len(),
        dealers.join(", "),
        plan_text(genesis.plan())
    )
}

fn genesis_json(genesis: &VerifiedGenesis) -> serde_json::Value {
    let plan = genesis.plan();
    let nodes = plan.nodes().iter().enumerate().map(|(index, node)| {
        json!({
            "index": index,
            "node_id": node.node_id().to_text(),
            "node_key": hex::encode(node.node_key().as_bytes()),
            "address": node.address(),
            "dealt": genesis.dealers().iter().any(|dealer| dealer.0 as usize == index),
        })
    });
    json!({
        "genesis_hash": hex::encode(genesis.hash()),
        "plan_hash": hex::encode(plan.hash()),
        "genesis_time_seconds": plan.time_seconds(),
        "subnet_id": genesis.subnet_id().to_text(),
        "root_key": hex::encode(genesis.root_key_der()),
        "threshold": plan.threshold(),
        "nodes": nodes.collect::<Vec<_>>(),
    })
}

/// In a form that a person can compare with a clock.
fn time_text(seconds: u64) -> String {
    let time = i64::try_from(seconds)
        .ok()
        .and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok());
    match time {
        Some(time) => format!("{} {} UTC ({seconds})", time.date(), clock(time)),
        None => format!("second {seconds}"),
    }
}

fn clock(time: OffsetDateTime) -> String {
    format!("{:02}:{:02}:{:02}", time.hour(), time.minute(), time.second())
}

/// A number of nodes and their flags, for `p2p.peers`: at most as many as a subnet has.
pub(crate) fn check_peers<'a>(
    peers: impl ExactSizeIterator<Item = (&'a String, &'a String)>,
) -> Result<()> {
    ensure!(
        peers.len() <= genesis::NODES_MAX,
        "{} peers; a subnet has at most {} nodes",
        peers.len(),
        genesis::NODES_MAX
    );
    for (node, address) in peers {
        let known =
            ic_principal::Principal::from_text(node).ok().filter(|id| id.to_text() == *node);
        ensure!(known.is_some(), "`{node}` is no node id, as `thimble keygen` prints it");
        genesis::check_address(address)
            .with_context(|| format!("the address of the peer {node}"))?;
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn times_are_for_people() {
        assert_eq!(time_text(1_700_000_000), "2023-11-14 22:13:20 UTC (1700000000)");
        assert_eq!(time_text(u64::MAX), format!("second {}", u64::MAX));
    }
}
