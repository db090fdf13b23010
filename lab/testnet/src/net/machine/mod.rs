//! Nodes that are virtual machines: their data in a net, and their configuration.
//!
//! A machine's keeper ([`keeper`]) takes the place of a process group's `thimble-lab cap`: it
//! starts QEMU, keeps the node's log and its series ([`report`]), and ends with it. The other verbs
//! act through the same files as for groups. Machines are connected by a switch ([`super::relay`]
//! runs it), on sockets in a folder of their own because their paths must be short.
//!
//! Unlike a process group, a machine gets its data once: the content of `node-N/data` is copied to
//! a disk that is read at the first start, and all state is on the machine's own disk from then on.

mod keeper;
mod report;

use std::{
    fs,
    io::ErrorKind,
    net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4},
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
    time::Duration,
};

use accounting::parse_size;
use anyhow::{Context, Result, bail, ensure};
use guest::config::{self, Interface, Role};
use machines::{
    image::{self, Image},
    qemu::{self, Qemu},
    qmp,
    switch::{Hardware, Port},
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

pub(crate) use self::keeper::run;
use super::{
    namespaces, relays,
    state::{Kind, Net, NetFolder},
};

/// How a group of this kind is called in info files and series.
pub(crate) const GROUP: &str = "machine";
/// Where the node in a machine serves HTTP.
const HTTP_PORT: u16 = 8080;
/// Where nodes in machines listen for each other.
pub(crate) const P2P_PORT: u16 = 4100;
/// Bits of the network between machines.
const PREFIX: u8 = 24;
/// QEMU answers within milliseconds, on a busy host within seconds.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The longest name of a socket: `s99`.
const SOCKET_NAME_BYTES: usize = 3;

/// Settings shared by the machines of a net.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Machines {
    /// The cache of the image's disk.
    pub(crate) cache: PathBuf,
    pub(crate) image: Image,
    pub(crate) qemu: Qemu,
    /// Size of each machine's disk.
    pub(crate) disk_bytes: u64,
    /// Nodes may be given a budget that their machine does not have.
    pub(crate) overcommit: bool,
    pub(crate) sockets: PathBuf,
}

pub(crate) struct MachineOptions<'a> {
    pub(crate) cache: Option<&'a Path>,
    pub(crate) disk_bytes: u64,
    pub(crate) overcommit: bool,
}

impl Machines {
    /// Finds the image and QEMU; reports notes about them through `say`.
    pub(crate) fn find(
        place: &NetFolder,
        id: &str,
        kind: Kind,
        binary: &Path,
        wanted: MachineOptions,
        mut say: impl FnMut(&str),
    ) -> Result<Self> {
        let MachineOptions { cache, disk_bytes, overcommit } = wanted;
        let named = cache.map(std::path::absolute).transpose()?;
        let cache = images::command::cache_folder(named)?;
        let (role, whose, flag) = match kind {
            Kind::Subnet => (Role::Node, "nodes", ""),
            Kind::Relays { .. } => (Role::Relay, "relays", " --relay"),
        };
        let image = image::newest(&cache, role)?.with_context(|| {
            format!(
                "no image for {whose} was built in {}; run: thimble-lab image build{flag}",
                cache.display()
            )
        })?;
        for file in [image.kernel_file(), image.initrd_file()] {
            ensure!(
                file.is_file(),
                "the image lacks {}; make it again with: thimble-lab image build{flag}",
                file.display()
            );
        }
        let own = Sha256::digest(
            fs::read(binary).with_context(|| format!("reading {}", binary.display()))?,
        );
        if hex::encode(own) != image.program_sha256 {
            say(&format!(
                "warning: the image holds another {} than {}; machines run the image's. To have \
                 this one in them: thimble-lab image build{flag}",
                role.program(),
                binary.display()
            ));
        }
        let qemu = Qemu::find(&image.kernel_file())?;
        say(&qemu.describe());
        Ok(Self { cache, image, qemu, disk_bytes, overcommit, sockets: sockets(place, id)? })
    }

    fn socket(&self, kind: char, index: usize) -> PathBuf {
        self.sockets.join(format!("{kind}{index}"))
    }

    /// Of the monitor that orders go to.
    pub(crate) fn monitor(&self, index: usize) -> PathBuf {
        self.socket('q', index)
    }

    fn port(&self, index: usize) -> Port {
        Port {
            hardware: Hardware::of_port(index),
            from_machine: self.socket('s', index),
            to_machine: self.socket('n', index),
        }
    }

    /// Makes the folder of the sockets, for us alone.
    pub(crate) fn make_sockets(&self) -> Result<()> {
        let folder = &self.sockets;
        match fs::DirBuilder::new().mode(0o700).create(folder) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => {
                return Err(error)
                    .with_context(|| format!("making the folder {}", folder.display()));
            }
        }
        let found = fs::symlink_metadata(folder)?;
        let ours = found.is_dir()
            && found.uid() == rustix::process::geteuid().as_raw()
            && found.mode() & 0o077 == 0;
        ensure!(ours, "{} is there and is not a folder of ours alone; remove it", folder.display());
        Ok(())
    }

    /// Removes the folder of the sockets; errors are ignored.
    pub(crate) fn remove_sockets(&self) {
        // Only what is ours by name: the folder may be a link that another user created.
        if fs::symlink_metadata(&self.sockets).is_ok_and(|found| found.is_dir()) {
            let _ = fs::remove_dir_all(&self.sockets);
        }
    }
}

/// Within the net's folder, unless that is too deep for the path of a socket.
fn sockets(place: &NetFolder, id: &str) -> Result<PathBuf> {
    let runtime =
        std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_dir());
    let elsewhere = format!("thimble-{}-{id}", rustix::process::geteuid().as_raw());
    let candidates = [
        place.file("sockets"),
        runtime.unwrap_or_else(|| "/tmp".into()).join(&elsewhere),
        Path::new("/tmp").join(&elsewhere),
    ];
    let fits = |path: &&PathBuf| {
        let room = qemu::SOCKET_PATH_BYTES_MAX - SOCKET_NAME_BYTES - 1;
        path.as_os_str().len() <= room
    };
    candidates.iter().find(fits).cloned().with_context(|| {
        format!(
            "no folder for sockets: their paths have at most {} bytes",
            qemu::SOCKET_PATH_BYTES_MAX
        )
    })
}

/// The machines of a net whose nodes are such.
pub(crate) fn machines_of(net: &Net) -> Result<&Machines> {
    net.machines.as_ref().context("the nodes of this net are no machines")
}

/// Refuses what does not fit into this host's memory. `to_start` are the sizes of machines that do
/// not run yet.
pub(crate) fn ensure_room(to_start: &[u64]) -> Result<()> {
    let available = fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
    });
    // If the kernel does not report it, no check is made.
    available.map_or(Ok(()), |available| room_in(to_start, available))
}

fn room_in(to_start: &[u64], available: u64) -> Result<()> {
    let machines = to_start.iter().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
    let overhead = qemu::OVERHEAD_BYTES.saturating_mul(to_start.len() as u64);
    let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
    if machines.saturating_add(overhead) > available {
        bail!(
            "{} machines do not fit into this host's memory: they have {} and QEMU takes {} more \
             for each, {} in all; {} are available. Start fewer or smaller ones",
            to_start.len(),
            mib(machines),
            mib(qemu::OVERHEAD_BYTES),
            mib(machines.saturating_add(overhead)),
            mib(available)
        );
    }
    Ok(())
}

/// The address of a node between machines.
pub(crate) fn p2p_address(index: usize) -> SocketAddr {
    SocketAddr::new(IpAddr::from(namespaces::address(0, index)), P2P_PORT)
}

/// The ports of the switch, one per machine.
pub(crate) fn ports(net: &Net) -> Result<Vec<Port>> {
    let machines = machines_of(net)?;
    Ok((0..net.nodes.len()).map(|index| machines.port(index)).collect())
}

/// Takes `--memory` out of a node's own arguments: it is the budget, which the machine gets by
/// other means.
fn split_memory(arguments: &[String]) -> Result<(Option<u64>, Vec<String>)> {
    let (mut memory, mut rest) = (None, Vec::new());
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let value = match word.strip_prefix("--memory") {
            Some("") => Some(words.next().context("--memory has no value")?.as_str()),
            Some(value) => value.strip_prefix('='),
            None => None,
        };
        match value {
            Some(value) => memory = Some(parse_size(value)?),
            None => rest.push(word.clone()),
        }
    }
    Ok((memory, rest))
}

/// Refuses arguments that cannot be passed to a machine.
pub(crate) fn check_arguments(arguments: &[String]) -> Result<()> {
    split_memory(arguments).map(|_| ())
}

/// Hardware address of the card towards the host.
fn host_hardware(index: usize) -> Hardware {
    let Hardware([a, b, c, _, e, f]) = Hardware::of_port(index);
    Hardware([a, b, c, 1, e, f])
}

fn machine_config(net: &Net, index: usize) -> Result<config::Machine> {
    let machines = machines_of(net)?;
    let node = net.node(index)?;
    let (memory_bytes, own) = split_memory(&node.arguments)?;
    let listen = SocketAddr::from((qemu::HOST_SIDE, HTTP_PORT));
    let mut arguments = match net.kind {
        Kind::Subnet => {
            let mut arguments = vec!["--listen".to_owned(), listen.to_string()];
            arguments.extend(net.peer_arguments(index)?);
            arguments
        }
        Kind::Relays { .. } => {
            // Both cards: clients of the host come over the one, relays over the other.
            let all = SocketAddr::from((Ipv4Addr::UNSPECIFIED, node.p2p.port()));
            relays::network_arguments(net, index, all, listen)?
        }
    };
    arguments.extend(own);
    let mut interfaces = vec![Interface {
        hardware: host_hardware(index).to_string(),
        address: qemu::HOST_SIDE,
        prefix: qemu::HOST_SIDE_PREFIX,
    }];
    if let (true, IpAddr::V4(address)) = (net.is_linked(), node.p2p.ip()) {
        interfaces.push(Interface {
            hardware: Hardware::of_port(index).to_string(),
            address,
            prefix: PREFIX,
        });
    }
    Ok(config::Machine {
        format: config::FORMAT,
        name: format!("node {index}"),
        role: machines.image.role,
        machine_bytes: node.memory_bytes,
        memory_bytes,
        overcommit: machines.overcommit,
        arguments,
        interfaces,
        sample_millis: net.sample_millis,
    })
}

/// Ports of this host's loopback that lead to the machine of a node.
fn forwarded_ports(net: &Net, index: usize) -> Result<Vec<(SocketAddrV4, u16)>> {
    let node = net.node(index)?;
    let mut forwards = Vec::new();
    if let SocketAddr::V4(http) = node.http {
        forwards.push((http, HTTP_PORT));
    }
    if let Some(SocketAddr::V4(clients)) = node.clients {
        forwards.push((clients, node.p2p.port()));
    }
    Ok(forwards)
}

/// Stops the time of a machine.
pub(crate) fn stop(net: &Net, index: usize) -> Result<()> {
    send_command(net, index, "stop")
}

pub(crate) fn resume(net: &Net, index: usize) -> Result<()> {
    send_command(net, index, "cont")
}

fn send_command(net: &Net, index: usize, command: &str) -> Result<()> {
    let monitor = machines_of(net)?.monitor(index);
    let mut client =
        qmp::Client::connect(&monitor, TIMEOUT).with_context(|| format!("node {index}"))?;
    client.execute(command).with_context(|| format!("node {index}"))?;
    Ok(())
}

/// The machine's own disk.
pub(crate) fn disk(place: &NetFolder, index: usize) -> PathBuf {
    place.node(index).join("disk.qcow2")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_among_the_arguments_is_the_nodes_not_the_machines() {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let split = |text: &str| split_memory(&words(text)).unwrap();
        assert_eq!(split("--log warn"), (None, words("--log warn")));
        assert_eq!(
            split("--log warn --memory 128MiB -v"),
            (Some(128 << 20), words("--log warn -v"))
        );
        assert_eq!(split("--memory=1GiB"), (Some(1 << 30), vec![]));
        assert_eq!(split("--memory-x 7"), (None, words("--memory-x 7")));
        assert!(
            split_memory(&words("--memory")).is_err()
                && split_memory(&words("--memory lots")).is_err()
        );
    }

    #[test]
    fn what_does_not_fit_into_the_host_is_refused_with_the_numbers() {
        assert!(room_in(&[256 << 20; 4], (4 * 336) << 20).is_ok());
        let refused = room_in(&[256 << 20; 4], 1 << 30).unwrap_err().to_string();
        for part in [
            "4 machines",
            "1024 MiB",
            "80 MiB more for each",
            "1344 MiB in all",
            "1024 MiB are available",
        ] {
            assert!(refused.contains(part), "{part}: {refused}");
        }
        assert!(room_in(&[u64::MAX, u64::MAX], u64::MAX - 1).is_err());
        assert!(room_in(&[], 0).is_ok());
    }

    #[test]
    fn sockets_lie_where_their_paths_are_short_enough() {
        let near = NetFolder::new(Path::new("/tmp/net")).unwrap();
        assert_eq!(sockets(&near, "abc").unwrap(), Path::new("/tmp/net/sockets"));
        let deep = NetFolder::new(&Path::new("/tmp").join("x".repeat(100))).unwrap();
        let elsewhere = sockets(&deep, "abc").unwrap();
        assert!(
            elsewhere.as_os_str().len() < 60
                && elsewhere
                    .ends_with(format!("thimble-{}-abc", rustix::process::geteuid().as_raw()))
        );
    }
}
