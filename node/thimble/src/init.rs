//! `thimble init`: a commented configuration file for a data folder, and a unit for systemd whose
//! memory cap is the budget.

use std::path::Path;

use anyhow::Result;
use limits::Limits;
use setup::Unit;

use crate::{
    config::{Config, HTTP_GATEWAY},
    node::descriptors_needed,
};

/// Open files that a unit is given at least: what other services are given, too.
const DESCRIPTORS_MIN: u64 = 65_536;

/// Writes `thimble.toml`, and with `systemd` also `thimble.service`, into the data folder. A file
/// that is there and says something else stays.
pub(crate) fn run(config: &Config, systemd: bool) -> Result<()> {
    let text = |data: &Path| toml(config, data);
    let unit = systemd.then(|| unit(&config.limits));
    setup::init("thimble", &config.data_dir, "thimble.toml", text, unit)
}

/// A string of TOML.
fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

/// The line of the HTTP gateway, which says nothing where nothing is set.
fn http_gateway(config: &Config) -> String {
    match config.http_gateway {
        Some(gateway) => format!("http_gateway = {}\n", quoted(&String::from(gateway))),
        None => format!("# http_gateway = \"{HTTP_GATEWAY}\"\n"),
    }
}

#[expect(clippy::too_many_lines, reason = "one text, from its first line to its last")]
fn toml(config: &Config, data: &Path) -> String {
    let http_gateway = http_gateway(config);
    let p2p = match config.p2p.listen {
        Some(listen) => format!("listen = \"{listen}\"\n"),
        None => "# listen = \"0.0.0.0:4000\"\n".to_owned(),
    };
    let peers: String = match config.p2p.peers.len() {
        0 => "# \"<node id>\" = \"10.0.0.2:4000\"\n".to_owned(),
        _ => config
            .p2p
            .peers
            .iter()
            .map(|(node, address)| format!("{} = {}\n", quoted(node), quoted(address)))
            .collect(),
    };
    let provisional = match config.features.provisional {
        Some(provisional) => format!("provisional = {provisional}\n"),
        None => "# provisional = true\n".to_owned(),
    };
    let outcalls = match config.features.outcalls {
        true => "outcalls = true\n",
        false => "# outcalls = true\n",
    };
    let host_names = match config.host_names.as_slice() {
        [] => "# host_names = [\"thimble\"]\n".to_owned(),
        names => format!("host_names = {}\n", toml::Value::from(names.to_vec())),
    };
    // What was found on this machine is recorded in the data folder, not here.
    let disk = match config.disk.as_deref().filter(|_| config.disk_is_stated) {
        Some(disk) => format!("disk = {}\n", quoted(disk)),
        None => "# disk = \"100GiB\"\n".to_owned(),
    };
    format!(
        "# Configuration of a Thimble node. Command-line flags override it; `thimble config --config \
         FILE` prints all that follows from it.

# What all processes of the node may take together. Everything is sized from this number: `thimble \
         limits --memory SIZE` shows how.
memory = {}

# What the node may keep on disk; the capacity for canisters follows from it. Not set: for a node \
         alone what is free at its first start; in a subnet of several, where it has to be the same \
         on all nodes, it follows from the memory.
{disk}
# The public HTTP interface. It has no TLS: keep it on loopback, or behind a proxy that has.
listen = \"{}\"

# Where canisters are served to browsers, as http://<canister id>.localhost:8081/, or \"off\". Not \
         set: on a node alone, if that address is free; off in a subnet of several, and below 192 \
         MiB of memory.
{http_gateway}
# Names, without port, under which browsers and monitoring reach the operator pages (/dashboard, \
         /status.json, /metrics, /debug/heap). IP addresses and localhost always work.
{host_names}
# Keys and state.
data_dir = {}

# error, warn, info, debug, or a filter like \"info,gateway=debug\".
log = {}

# Whether allocations are sampled, so that `thimble heap` says where memory went. Costs some \
         memory and time.
heap_profile = {}

# How the nodes of a subnet of several reach each other; a subnet of one needs none of it.
[p2p]
# Where this node waits for its peers: the port of the address it was given to `thimble keygen` \
         with.
{p2p}
# Peers that are reached elsewhere than the genesis says.
[p2p.peers]
{peers}
# What the subnet offers. The same on all its nodes.
[features]
# The provisional methods, by which every client creates canisters and mints cycles. Not set: true \
         for a node alone, false in a subnet of several.
{provisional}
# HTTPS outcalls: canisters send requests to servers outside. Needs 512 MiB of memory.
{outcalls}
# Which servers outcalls of this node reach in addition to public ones.
# [outcalls]
# allow_networks = [\"10.20.0.0/16\"]

# A single limit is changed by its name, as `thimble limits` prints it; the table is checked again \
         with the change. State only what you change: stated limits do not follow memory and disk.
# [limits.execution]
# query_wall_clock_seconds = 30
# query_wait_seconds = 45
",
        quoted(&config.memory),
        config.listen,
        quoted(&data.to_string_lossy()),
        quoted(&config.log),
        config.heap_profile,
    )
}

/// The unit of a node.
fn unit(limits: &Limits) -> Unit<'static> {
    Unit {
        description: "Thimble replica",
        memory_bytes: limits.memory_budget_bytes,
        descriptors: descriptors_needed(limits).max(DESCRIPTORS_MIN),
        stop: "# A clean stop finishes requests and makes a checkpoint. Only the node is told; \
               its workers end with it.
KillMode=mixed
TimeoutStopSec=90
# Status 3: a round or the last checkpoint did not end in time, which loses nothing.
SuccessExitStatus=3
",
        killed: "# A worker that is killed for memory is replaced by the node.
OOMPolicy=continue
",
        needs: "# The node needs its data folder, the network and its own workers. (Not \
                MemoryDenyWriteExecute: workers map compiled code.)
",
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;

    use super::*;
    use crate::cli::Settings;

    #[test]
    fn the_file_that_is_written_is_the_configuration_it_was_written_from() {
        let folder = tempfile::tempdir().unwrap();
        let data = fs::canonicalize(folder.path()).unwrap();
        let node = "aaaaa-aa";
        for settings in [
            Settings { data_dir: Some(data.clone()), ..Settings::default() },
            Settings {
                data_dir: Some(data.clone()),
                memory: Some("256MiB".into()),
                http_gateway: Some("off".parse().unwrap()),
                host_names: vec!["thimble".into(), "ops.example.org".into()],
                p2p_listen: Some(([0, 0, 0, 0], 4000).into()),
                p2p_peers: vec![(node.to_owned(), "h:1".to_owned())],
                ..Settings::default()
            },
        ] {
            let config = Config::load(&settings).unwrap();
            run(&config, false).unwrap();
            let path = data.join("thimble.toml");
            let file = Settings { config: Some(path.clone()), ..Settings::default() };
            assert_eq!(Config::load(&file).unwrap().to_toml().unwrap(), config.to_toml().unwrap());
            run(&config, false).unwrap();
            fs::write(&path, "log = \"warn\"\n").unwrap();
            let error = run(&config, false).unwrap_err().to_string();
            assert!(error.contains("says something else"), "{error}");
            fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn every_comment_with_a_setting_is_one_that_is_accepted() {
        let folder = tempfile::tempdir().unwrap();
        let data = fs::canonicalize(folder.path()).unwrap();
        let config = Config::load(&Settings::default()).unwrap();
        let is_setting = |line: &str| {
            let line = line.trim_start_matches("# ");
            line.starts_with('[')
                || line.split_once(" = ").is_some_and(|(name, _)| !name.contains(' '))
        };
        let text: String = toml(&config, &data)
            .lines()
            .map(|line| match line.strip_prefix("# ").filter(|_| is_setting(line)) {
                // An example of a node id.
                Some(setting) if setting.contains("<node id>") => "\n".to_owned(),
                Some(setting) => format!("{setting}\n"),
                None => format!("{line}\n"),
            })
            .collect();
        for setting in ["host_names", "outcalls = true", "query_wall_clock_seconds = 30"] {
            assert!(text.contains(setting), "no `{setting}` in {text}");
        }
        let path = data.join("thimble.toml");
        fs::write(&path, &text).unwrap();
        let file = Settings { config: Some(path), ..Settings::default() };
        let config = Config::load(&file).unwrap_or_else(|error| panic!("{error:#}\n{text}"));
        assert_eq!(config.limits.execution.query_wall_clock_seconds, 30);
        assert!(config.features.outcalls && !config.outcalls.allow_networks.is_empty());
    }

    #[test]
    fn the_unit_is_capped_at_the_budget() {
        let unit = |limits: &Limits, data: &str| {
            unit(limits).text(&setup::Installation {
                program: "/usr/bin/thimble".into(),
                file: "/var/lib/thimble/thimble.toml".into(),
                data: data.into(),
                user: 1,
                group: 2,
            })
        };
        let limits = Limits::nano().unwrap();
        let text = unit(&limits, "/var/lib/thimble").unwrap();
        for line in [
            "MemoryMax=536870912",
            "MemorySwapMax=0",
            "LimitNOFILE=65536",
            "OOMPolicy=continue",
            "SuccessExitStatus=3",
            "ExecStart=/usr/bin/thimble run --config /var/lib/thimble/thimble.toml",
            "ReadWritePaths=/var/lib/thimble",
            "PrivateTmp=yes",
            "User=1",
        ] {
            assert!(text.lines().any(|have| have == line), "{line} in\n{text}");
        }
        let mut huge = Limits::derive(16 << 30).unwrap();
        huge.gateway.connections = 100_000;
        let descriptors = descriptors_needed(&huge);
        assert!(descriptors > DESCRIPTORS_MIN);
        assert!(
            unit(&huge, "/var/lib/thimble")
                .unwrap()
                .contains(&format!("LimitNOFILE={descriptors}\n"))
        );
        assert!(unit(&limits, "/a b").unwrap_err().to_string().contains("/a b"));
    }
}
