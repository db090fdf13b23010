//! `thimble members ...`: the holders of the subnet's key, and changes of them. The crate `genesis`
//! defines a change and its checks; here are files, flags and texts for people.
//!
//! A change that is complete waits in the data folder of the node that it was submitted to,
//! [`CHANGE`], until that node puts it into a block (`keystore`).

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use clap::Subcommand;
use genesis::{
    CHANGE_BYTES_MAX, ChangeError, MembershipChange, NodeRecord, RECORD_BYTES_MAX, Summary, faulty,
    threshold,
};
use ic_principal::Principal;
use serde_json::json;

use crate::keys::{
    self, CHANGE,
    files::{self, Readers},
};

/// Members and their changes.
#[derive(Subcommand)]
pub(crate) enum MembersCommand {
    /// Print who holds the subnet's key, as this node last wrote down: at the end of each epoch.
    ///
    /// Example: thimble members show --data-dir /var/lib/thimble
    Show {
        /// Folder of the node.
        #[arg(long, value_name = "DIR", default_value = "thimble-data")]
        data_dir: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Make a change of the members, for the members to sign: nodes to add, by their records, and
    /// nodes to remove.
    ///
    /// A node that is removed and added at once gets the new record: another address, or another
    /// encryption key when it lost the old one. After the change there must be one member, or 4
    /// to 64, or as many as before, and one old member at least.
    ///
    /// Example: thimble members change --data-dir /var/lib/thimble --add node5.json --remove
    /// 3xwgx-... --out change.json
    Change {
        /// Folder of a node of the subnet.
        #[arg(long, value_name = "DIR", default_value = "thimble-data")]
        data_dir: PathBuf,
        /// Record of a node to add, as `thimble keygen` wrote it; once for each.
        #[arg(long = "add", value_name = "FILE")]
        add: Vec<PathBuf>,
        /// Id of a member to remove; once for each.
        #[arg(long = "remove", value_name = "NODE_ID")]
        remove: Vec<String>,
        /// Where to write the change.
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
    /// Add this node's signature to a change, in its file. As many members must sign as sign for
    /// the subnet.
    ///
    /// Compare the hash it prints with the others before. Signing again changes nothing.
    ///
    /// Example: thimble members sign --data-dir /var/lib/thimble change.json
    Sign {
        /// Folder of a member.
        #[arg(long, value_name = "DIR", default_value = "thimble-data")]
        data_dir: PathBuf,
        /// The change, as `thimble members change` wrote it.
        #[arg(value_name = "FILE")]
        change: PathBuf,
    },
    /// Check a change, and print its result and its signatures.
    ///
    /// Example: thimble members verify --data-dir /var/lib/thimble change.json
    Verify {
        /// Folder of a node of the subnet.
        #[arg(long, value_name = "DIR", default_value = "thimble-data")]
        data_dir: PathBuf,
        /// The change, as `thimble members change` wrote it.
        #[arg(value_name = "FILE")]
        change: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Hand a change that has its signatures to this node, which puts it into a block when it leads
    /// one. One member is enough; it may be running.
    ///
    /// The members change at the end of the epoch after the one in which that block is, or later if
    /// the key is not reshared in it.
    ///
    /// Example: thimble members submit --data-dir /var/lib/thimble change.json
    Submit {
        /// Folder of a member.
        #[arg(long, value_name = "DIR", default_value = "thimble-data")]
        data_dir: PathBuf,
        /// The change, with the signatures of the members.
        #[arg(value_name = "FILE")]
        change: PathBuf,
    },
}

impl MembersCommand {
    pub(crate) fn run(self) -> Result<()> {
        match self {
            Self::Show { data_dir, json } => show(&data_dir, json),
            Self::Change { data_dir, add, remove, out } => change(&data_dir, &add, &remove, &out),
            Self::Sign { data_dir, change } => sign(&data_dir, &change),
            Self::Verify { data_dir, change, json } => verify(&data_dir, &change, json),
            Self::Submit { data_dir, change } => submit(&data_dir, &change),
        }
    }
}

fn show(data: &Path, json: bool) -> Result<()> {
    let (summary, own) = (summary(data)?, own_id(data)?);
    if json {
        println!("{}", serde_json::to_string_pretty(&summary_json(&summary, &own))?);
    } else {
        print!("{}", summary_text(&summary, &own));
    }
    Ok(())
}

fn change(data: &Path, add: &[PathBuf], remove: &[String], out: &Path) -> Result<()> {
    let summary = summary(data)?;
    let record = |path: &PathBuf| files::read_as(path, RECORD_BYTES_MAX, NodeRecord::from_json);
    let add = add.iter().map(record).collect::<Result<Vec<_>>>()?;
    let id = |text: &String| {
        let id = Principal::from_text(text).ok().filter(|id| id.to_text() == *text);
        id.ok_or_else(|| ChangeError::NodeId(text.clone()))
    };
    let remove = remove.iter().map(id).collect::<Result<Vec<_>, _>>()?;
    let change = MembershipChange::new(summary.public_key(), summary.changes(), add, remove)?;
    let text = change_text(&summary, &change)?;
    files::write(out, change.to_json().as_bytes(), Readers::All)?;
    print!("{text}");
    println!(
        "written to {}; members compare the hash and sign it with `thimble members sign`",
        out.display()
    );
    Ok(())
}

fn sign(data: &Path, path: &Path) -> Result<()> {
    let summary = summary(data)?;
    let node = keys::node_key(data)?;
    ensure!(
        summary.place_of(&node.verifying_key().to_bytes()).is_some(),
        "this node, {}, is no member: members sign changes",
        genesis::node_id(&node.verifying_key())
    );
    let mut change = read(path)?;
    let found = || format!("in {}", path.display());
    summary.members_after(&change).with_context(found)?;
    summary.signatures_of(&change).with_context(found)?;
    let before = change.clone();
    change.sign(&node)?;
    if change != before {
        files::write(path, change.to_json().as_bytes(), Readers::All)?;
    }
    print!("{}", change_text(&summary, &change)?);
    Ok(())
}

fn verify(data: &Path, path: &Path, json: bool) -> Result<()> {
    let summary = summary(data)?;
    let change = read(path)?;
    let checked = |change| -> Result<()> {
        if json {
            println!("{}", serde_json::to_string_pretty(&change_json(&summary, change)?)?);
        } else {
            print!("{}", change_text(&summary, change)?);
        }
        Ok(())
    };
    checked(&change).with_context(|| format!("in {}", path.display()))
}

fn submit(data: &Path, path: &Path) -> Result<()> {
    let summary = summary(data)?;
    let change = read(path)?;
    complete(&summary, &change).with_context(|| format!("in {}", path.display()))?;
    let out = data.join(CHANGE);
    files::write(&out, change.to_json().as_bytes(), Readers::Owner)?;
    print!("{}", change_text(&summary, &change)?);
    println!(
        "handed to the node as {}: it goes into the next block that this node leads",
        out.display()
    );
    Ok(())
}

/// Whether a voter would let it pass.
fn complete(summary: &Summary, change: &MembershipChange) -> Result<(), ChangeError> {
    summary.members_after(change)?;
    let (have, need) = summary.signatures_of(change)?;
    if have < need as usize {
        return Err(ChangeError::Unsigned { have, need });
    }
    Ok(())
}

fn read(path: &Path) -> Result<MembershipChange> {
    files::read_as(path, CHANGE_BYTES_MAX, MembershipChange::from_json)
}

fn summary(data: &Path) -> Result<Summary> {
    keys::read_summary(&data.join("keys"))
}

fn own_id(data: &Path) -> Result<Principal> {
    Ok(genesis::node_id(&keys::node_key(data)?.verifying_key()))
}

fn ids(nodes: &[NodeRecord]) -> BTreeSet<Principal> {
    nodes.iter().map(NodeRecord::node_id).collect()
}

fn summary_text(summary: &Summary, own: &Principal) -> String {
    let members = summary.members();
    let mut text = format!(
        "subnet       {}\nroot key     {}\nepoch        {}; the shares in use are of epoch {}\nthreshold    {} of {} members sign; {} may be faulty\nchanges      {} so far\n",
        summary.subnet_id(),
        hex::encode(nidkg::public_key_to_der(summary.public_key())),
        summary.epoch(),
        summary.key_epoch().0,
        summary.committee().threshold,
        members.len(),
        faulty(members.len()),
        summary.changes(),
    );
    let (now, next) = (ids(members), ids(summary.next_members()));
    let line = |text: &mut String, place: String, node: &NodeRecord, word: &str| {
        let this = if node.node_id() == *own { ", this node" } else { "" };
        // Writing to a text does not fail.
        let _ = writeln!(text, "{place:<4} {} {}{word}{this}", node.node_id(), node.address());
    };
    for (place, member) in members.iter().enumerate() {
        let leaves = if next.contains(&member.node_id()) { "" } else { ", leaves" };
        line(&mut text, place.to_string(), member, leaves);
    }
    for node in summary.next_members().iter().filter(|node| !now.contains(&node.node_id())) {
        line(&mut text, "-".to_owned(), node, ", comes");
    }
    if !now.contains(own) {
        text.push_str("this node is no member\n");
    }
    text
}

fn node_json(node: &NodeRecord) -> serde_json::Value {
    json!({
        "node_id": node.node_id().to_text(),
        "node_key": hex::encode(node.node_key().as_bytes()),
        "address": node.address(),
    })
}

fn summary_json(summary: &Summary, own: &Principal) -> serde_json::Value {
    let list = |nodes: &[NodeRecord]| nodes.iter().map(node_json).collect::<Vec<_>>();
    json!({
        "subnet_id": summary.subnet_id().to_text(),
        "root_key": hex::encode(nidkg::public_key_to_der(summary.public_key())),
        "epoch": summary.epoch(),
        "key_epoch": summary.key_epoch().0,
        "threshold": summary.committee().threshold,
        "changes": summary.changes(),
        "members": list(summary.members()),
        "next_members": list(summary.next_members()),
        "node_id": own.to_text(),
        "member": ids(summary.members()).contains(own),
    })
}

/// The result of the change. Fails when it cannot be made.
fn change_text(summary: &Summary, change: &MembershipChange) -> Result<String> {
    let after = summary.members_after(change)?;
    let (have, need) = summary.signatures_of(change)?;
    let before = ids(summary.next_members());
    let stay = after.iter().filter(|node| before.contains(&node.node_id())).count();
    let mut text =
        format!("change hash  {}\nnumber       {}\n", hex::encode(change.hash()), change.number());
    for node in change.added() {
        let _ = writeln!(text, "add          {} {}", node.node_id(), node.address());
    }
    for node in change.removed() {
        let _ = writeln!(text, "remove       {node}");
    }
    let _ = writeln!(
        text,
        "members      {} after it, {} before; {} must then run and agree, {} may be faulty",
        after.len(),
        before.len(),
        threshold(after.len()),
        faulty(after.len())
    );
    if stay < threshold(after.len()) as usize {
        let _ = writeln!(
            text,
            "             only {stay} of them are members already: at least {} of the new ones \
             must run when they take over, or the subnet stops until they do",
            threshold(after.len()) as usize - stay
        );
    }
    let _ = writeln!(text, "signatures   {have} of {need} needed");
    for signer in change.signers() {
        let _ = writeln!(text, "             {signer}");
    }
    Ok(text)
}

fn change_json(summary: &Summary, change: &MembershipChange) -> Result<serde_json::Value> {
    let after = summary.members_after(change)?;
    let (have, need) = summary.signatures_of(change)?;
    Ok(json!({
        "change_hash": hex::encode(change.hash()),
        "number": change.number(),
        "add": change.added().iter().map(node_json).collect::<Vec<_>>(),
        "remove": change.removed().iter().map(Principal::to_text).collect::<Vec<_>>(),
        "members_after": after.len(),
        "threshold_after": threshold(after.len()),
        "signers": change.signers().map(|id| id.to_text()).collect::<Vec<_>>(),
        "signatures": have,
        "signatures_needed": need,
        "complete": have >= need as usize,
    }))
}
