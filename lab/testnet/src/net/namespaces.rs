//! A network made by the kernel: every node in a namespace of its own, one end of a veth pair in it
//! as `eth0`, the other on a bridge that this machine is on, too.
//!
//! A *cut* link: the sender's namespace gets a permanent neighbour entry that gives the receiver an
//! unused hardware address. Packets leave and reach no host, on existing and on new connections, as
//! with a pulled cable. (A route that refuses would make `connect` fail at once, unlike a cut.)
//! This machine's own way to the nodes is not touched, so their HTTP endpoints stay reachable.
//!
//! A *slow* link: a class per receiver at the sender's `eth0`, with netem in it, and a filter by
//! address. It needs a kernel with netem; without it, the request returns an error.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result, ensure};

use super::{
    links::{Link, Links},
    state::Net,
};

/// A hardware address of the local kind that no interface has.
const NOBODY: &str = "02:00:00:00:00:01";
/// Networks for measurements between devices (RFC 2544): 198.18.x.0/24.
const NETWORK: [u8; 2] = [198, 18];
/// This machine's own address on the bridge.
const HOST: u8 = 254;

/// Why it cannot be done here; `None` when it can.
pub(crate) fn unavailable() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("network namespaces need root".into());
    }
    for tool in ["ip", "tc", "nsenter"] {
        if Command::new(tool).arg("-V").output().is_err() {
            return Some(format!("`{tool}` is not installed (packages iproute2 and util-linux)"));
        }
    }
    let probe = format!("thimble-probe-{}", std::process::id());
    let made = ip(&format!("netns add {probe}"));
    let _ = ip(&format!("netns del {probe}"));
    made.err().map(|error| format!("{error:#}"))
}

/// Whether the kernel can slow links.
pub(crate) fn has_netem() -> bool {
    let probe = format!("thimble-probe-{}", std::process::id());
    let tried = ip(&format!("netns add {probe}"))
        .and_then(|()| ip(&format!("netns exec {probe} tc qdisc add dev lo root netem delay 1ms")));
    let _ = ip(&format!("netns del {probe}"));
    tried.is_ok()
}

/// The third byte of the addresses: the first from the net's own on that no interface of this
/// machine uses.
pub(crate) fn free_block(id: &str) -> Result<u8> {
    let wanted = u8::from_str_radix(id.get(..2).unwrap_or("0"), 16).unwrap_or(0);
    let used =
        Command::new("ip").args(["-o", "-4", "addr"]).output().context("running ip addr")?.stdout;
    let used = String::from_utf8_lossy(&used).into_owned();
    (0..=u8::MAX)
        .map(|step| wanted.wrapping_add(step))
        .find(|block| !used.contains(&format!(" {}.{}.{block}.", NETWORK[0], NETWORK[1])))
        .context("every network 198.18.x.0/24 is in use on this machine")
}

pub(crate) fn address(block: u8, node: usize) -> [u8; 4] {
    [NETWORK[0], NETWORK[1], block, node as u8 + 1]
}

fn text(address: [u8; 4]) -> String {
    address.map(|byte| byte.to_string()).join(".")
}

pub(crate) fn name(net: &Net, node: usize) -> String {
    format!("thimble-{}-{node}", net.id)
}

/// Names of interfaces have at most 15 characters.
fn bridge(net: &Net) -> String {
    format!("th{}", net.id)
}

fn veth(net: &Net, node: usize) -> String {
    format!("th{}-{node}", net.id)
}

/// Makes what is missing of it.
pub(crate) fn make(net: &Net) -> Result<()> {
    let bridge = bridge(net);
    if !exists(&bridge) {
        ip(&format!("link add {bridge} type bridge"))?;
        let own = text([NETWORK[0], NETWORK[1], net.address_block, HOST]);
        ip(&format!("addr add {own}/24 dev {bridge}"))?;
        ip(&format!("link set {bridge} up"))?;
    }
    for node in 0..net.nodes.len() {
        let (name, veth) = (name(net, node), veth(net, node));
        if !Path::new("/run/netns").join(&name).exists() {
            ip(&format!("netns add {name}"))?;
            ip(&format!("-n {name} link set lo up"))?;
        }
        if !exists(&veth) {
            ip(&format!("link add {veth} type veth peer name eth0 netns {name}"))?;
            ip(&format!("link set {veth} master {bridge} up"))?;
            let own = text(address(net.address_block, node));
            ip(&format!("-n {name} addr add {own}/24 dev eth0"))?;
            ip(&format!("-n {name} link set eth0 up"))?;
        }
    }
    Ok(())
}

fn exists(interface: &str) -> bool {
    Path::new("/sys/class/net").join(interface).exists()
}

/// Makes the links as they are wanted.
pub(crate) fn apply(net: &Net, before: &Links) -> Result<()> {
    let nodes = net.nodes.len();
    for from in 0..nodes {
        for to in (0..nodes).filter(|to| *to != from) {
            if let Some(command) = cut_command(net, (from, to), before) {
                ip(&command)?;
            }
        }
        let slow =
            |links: &Links| (0..nodes).map(|to| links.quality((from, to))).collect::<Vec<_>>();
        if slow(before) != slow(&net.links) {
            let name = name(net, from);
            // Not there when nothing was slow.
            let _ = tool("tc", &format!("-n {name} qdisc del dev eth0 root"));
            for command in slow_commands(net, from) {
                tool("tc", &command)?;
            }
        }
    }
    Ok(())
}

/// Arguments of `ip` that change one link's cut.
fn cut_command(net: &Net, (from, to): Link, before: &Links) -> Option<String> {
    let (name, receiver) = (name(net, from), text(address(net.address_block, to)));
    let change = match (before.is_cut((from, to)), net.links.is_cut((from, to))) {
        (false, true) => format!("replace {receiver} lladdr {NOBODY} nud permanent"),
        (true, false) => format!("del {receiver}"),
        _ => return None,
    };
    Some(format!("-n {name} neigh {change} dev eth0"))
}

/// What a node's slow links take, as arguments of `tc`; nothing when none is slow.
fn slow_commands(net: &Net, from: usize) -> Vec<String> {
    let name = name(net, from);
    let slow: Vec<(usize, super::links::Quality)> = (0..net.nodes.len())
        .filter(|to| *to != from)
        .map(|to| (to, net.links.quality((from, to))))
        .filter(|(_, quality)| !quality.is_good())
        .collect();
    if slow.is_empty() {
        return vec![];
    }
    // Traffic that no filter matches is not affected.
    let mut commands = vec![format!("-n {name} qdisc add dev eth0 root handle 1: htb")];
    for (to, quality) in slow {
        let (class, receiver) = (to + 1, text(address(net.address_block, to)));
        commands.push(format!(
            "-n {name} class add dev eth0 parent 1: classid 1:{class:x} htb rate 10gbit"
        ));
        commands.push(format!(
            "-n {name} qdisc add dev eth0 parent 1:{class:x} netem delay {}us loss {}% limit 10000",
            quality.latency_micros,
            quality.loss * 100.0
        ));
        commands.push(format!(
            "-n {name} filter add dev eth0 parent 1: protocol ip u32 match ip dst {receiver}/32 \
             flowid 1:{class:x}"
        ));
    }
    commands
}

pub(crate) fn remove(net: &Net) {
    for node in 0..net.nodes.len() {
        let name = name(net, node);
        // The pair goes with its end in the namespace.
        if Path::new("/run/netns").join(&name).exists() {
            let _ = ip(&format!("netns del {name}"));
        }
        delete(&veth(net, node));
    }
    delete(&bridge(net));
}

fn delete(interface: &str) {
    if exists(interface) {
        let _ = ip(&format!("link del {interface}"));
    }
}

fn ip(arguments: &str) -> Result<()> {
    tool("ip", arguments)
}

/// Runs `name` with arguments that have no spaces in them.
fn tool(name: &str, arguments: &str) -> Result<()> {
    let output = Command::new(name).args(arguments.split(' ')).output();
    let output = output.with_context(|| format!("running {name}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.trim().lines().next().unwrap_or("it said nothing");
    ensure!(output.status.success(), "`{name} {arguments}` failed: {said}");
    Ok(())
}

/// The namespaces that exist, for tests and for what is left behind.
pub(crate) fn existing(net: &Net) -> Vec<String> {
    let prefix = format!("thimble-{}-", net.id);
    let entries = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with(&prefix))
        .collect()
}
