//! `thimble init`: a commented configuration file for a data folder, and a unit for systemd whose memory cap is the budget.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use limits::Limits;

use crate::{
    config::Config,
    keys::files::{self, Readers},
    node::descriptors_needed,
};

/// Open files that a unit is given at least: what other services are given, too.
const DESCRIPTORS_MIN: u64 = 65_536;

/// Writes `thimble.toml`, and with `systemd` also `thimble.service`, into the data folder. A file that is there and says something else stays.
pub(crate) fn run(config: &Config, systemd: bool) -> Result<()> {
    let data = &config.data_dir;
    fs::create_dir_all(data).with_context(|| format!("making the data folder {}", data.display()))?;
    let data = fs::canonicalize(data).with_context(|| format!("finding {}", data.display()))?;
    let file = data.join("thimble.toml");
    keep_or_write(&file, &toml(config, &data))?;
    println!("{}: start the node with: thimble run --config {}", file.display(), file.display());
    if systemd {
        let program = std::env::current_exe().context("finding this program's file")?;
        let owner = fs::metadata(&data).with_context(|| format!("looking at {}", data.display()))?;
        let unit = Unit { program, file, data: data.clone(), user: owner.uid(), group: owner.gid() };
        let path = data.join("thimble.service");
        keep_or_write(&path, &unit.text(&config.limits)?)?;
        println!(
            "{}: install it with: sudo cp {} /etc/systemd/system/ && sudo systemctl enable --now thimble",
            path.display(),
            path.display()
        );
    }
    Ok(())
}

fn keep_or_write(path: &Path, text: &str) -> Result<()> {
    if path.exists() {
        let there = files::read(path, 1 << 20)?;
        ensure!(
            there == text.as_bytes(),
            "{} is there and says something else: it stays; remove it to have it written again",
            path.display()
        );
        return Ok(());
    }
    files::write(path, text.as_bytes(), Readers::All)
}

/// A string of TOML.
fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

fn toml(config: &Config, data: &Path) -> String {
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
    format!(
        "# Configuration of a Thimble node. Flags stand above it; `thimble config --config FILE` prints all that follows from it.

# What all processes of the node may take together. Everything is sized from this number: `thimble limits --memory SIZE` shows how.
memory = {}

# The public HTTP interface. It has no TLS: keep it on loopback, or behind a proxy that has.
listen = \"{}\"

# Keys and state.
data_dir = {}

# error, warn, info, debug, or a filter like \"info,gateway=debug\".
log = {}

# How the nodes of a subnet of several reach each other; a subnet of one needs none of it.
[p2p]
# Where this node waits for its peers: the port of the address it was given to `thimble keygen` with.
{p2p}
# Peers that are reached elsewhere than the genesis says.
[p2p.peers]
{peers}
# What the subnet offers. The same on all its nodes.
[features]
# Whether everybody may make canisters and cycles out of nothing. Not set: true for a node alone, false in a subnet of several.
{provisional}
# A single limit is changed by its name, as `thimble limits` prints it; the table is checked again with the change.
# [limits.gateway]
# connections = 256
",
        quoted(&config.memory),
        config.listen,
        quoted(&data.to_string_lossy()),
        quoted(&config.log),
    )
}

/// What a unit file names.
struct Unit {
    program: PathBuf,
    file: PathBuf,
    data: PathBuf,
    user: u32,
    group: u32,
}

impl Unit {
    fn text(&self, limits: &Limits) -> Result<String> {
        let (program, file, data) = (escaped(&self.program)?, escaped(&self.file)?, escaped(&self.data)?);
        let descriptors = descriptors_needed(limits).max(DESCRIPTORS_MIN);
        // A private /tmp would hide what lies there.
        let private_tmp = if [&self.program, &self.data]
            .iter()
            .any(|path| path.starts_with("/tmp") || path.starts_with("/var/tmp"))
        {
            "no"
        } else {
            "yes"
        };
        Ok(format!(
            "[Unit]
Description=Thimble replica
Wants=network-online.target
After=network-online.target

[Service]
Type=exec
ExecStart={program} run --config {file}
User={}
Group={}
UMask=0077
Restart=always
RestartSec=2
# A clean stop finishes requests and makes a checkpoint. Only the node is told; its workers end with it.
KillMode=mixed
TimeoutStopSec=90

# The budget of the configuration file. Swap would let the group outgrow it.
MemoryMax={}
MemorySwapMax=0
# A worker that is killed for memory is replaced by the node.
OOMPolicy=continue
LimitNOFILE={descriptors}

# The node needs its data folder, the network and its own workers. (Not MemoryDenyWriteExecute: workers map compiled code.)
NoNewPrivileges=yes
CapabilityBoundingSet=
ProtectSystem=strict
ReadWritePaths={data}
ProtectHome=read-only
PrivateTmp={private_tmp}
PrivateDevices=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native

[Install]
WantedBy=multi-user.target
",
            self.user, self.group, limits.memory_budget_bytes
        ))
    }
}

/// A path as a unit takes it: what it would read as something else is refused rather than escaped.
fn escaped(path: &Path) -> Result<String> {
    let text = path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))?;
    let plain = |c: char| c.is_alphanumeric() || "/._-+@,=".contains(c);
    ensure!(
        text.chars().all(plain),
        "{text} has characters that a unit file reads as something else: use a path of letters, digits and /._-+@,="
    );
    Ok(text.to_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
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
    fn the_unit_is_capped_at_the_budget() {
        let unit = Unit {
            program: "/usr/bin/thimble".into(),
            file: "/var/lib/thimble/thimble.toml".into(),
            data: "/var/lib/thimble".into(),
            user: 1,
            group: 2,
        };
        let limits = Limits::nano().unwrap();
        let text = unit.text(&limits).unwrap();
        for line in [
            "MemoryMax=536870912",
            "MemorySwapMax=0",
            "LimitNOFILE=65536",
            "OOMPolicy=continue",
            "ExecStart=/usr/bin/thimble run --config /var/lib/thimble/thimble.toml",
            "ReadWritePaths=/var/lib/thimble",
            "PrivateTmp=yes",
            "User=1",
        ] {
            assert!(text.lines().any(|have| have == line), "{line} in\n{text}");
        }
        let huge = Limits::derive(16 << 30).unwrap();
        let descriptors = descriptors_needed(&huge);
        assert!(descriptors > DESCRIPTORS_MIN);
        assert!(unit.text(&huge).unwrap().contains(&format!("LimitNOFILE={descriptors}\n")));
        let odd = Unit { data: "/a b".into(), ..unit };
        assert!(odd.text(&limits).unwrap_err().to_string().contains("/a b"));
    }
}
