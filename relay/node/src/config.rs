//! One configuration file, flags over it, defaults under it.

use std::{
    collections::{BTreeMap, HashSet},
    net::{IpAddr, SocketAddr},
    num::NonZeroU16,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use libp2p::{Multiaddr, multiaddr::Protocol};
use protocol::{
    ContentTopic, autoshard,
    node_list::ListLink,
    record::NodeRecord,
    signed::{ProtectedShard, ShardKey},
};
use relay_limits::Limits;
use router::Shard;
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};

use crate::{
    cli::Settings,
    client::{Remote, ServiceNodes},
    http::cors::AllowedOrigins,
    presets::{Network, Preset, UNNAMED, WAKU_CONTRACT},
    rln::{
        contract::{Contract, SERVERS_MAX, parse_address},
        keystore::{self, Membership},
        rpc::{RpcServer, RpcUrl},
    },
};

/// The Waku Network: its messages need proofs of a rate limit (RLN).
const THE_WAKU_NETWORK: u16 = 1;
/// UDP port of the discovery protocol, as other Waku nodes have it.
const DISCV5_PORT: u16 = 9000;
const DNS_PORT: u16 = 53;
/// Bootstrap nodes, node lists and DNS servers that may be named, of each.
const NAMED_MAX: usize = 64;

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Config {
    pub(crate) memory: String,
    pub(crate) data_dir: PathBuf,
    pub(crate) log: String,
    pub(crate) listen: Vec<Multiaddr>,
    pub(crate) announce: Vec<Multiaddr>,
    pub(crate) peers: Vec<Multiaddr>,
    pub(crate) http: SocketAddr,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) host_names: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) allow_origins: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) network: Option<Network>,
    pub(crate) cluster: u16,
    pub(crate) shards: Vec<u16>,
    pub(crate) shards_in_cluster: NonZeroU16,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) content_topics: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) protected_shards: Vec<String>,
    pub(crate) store: bool,
    pub(crate) store_sync: bool,
    pub(crate) store_resume: bool,
    pub(crate) relay: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lightpushnode: Option<Multiaddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) filternode: Option<Multiaddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) storenode: Option<Multiaddr>,
    pub(crate) heap_profile: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) discv5: Option<bool>,
    pub(crate) discv5_port: u16,
    pub(crate) discv5_bootstrap: Vec<String>,
    pub(crate) dns_discovery_urls: Vec<String>,
    pub(crate) dns_servers: Vec<SocketAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ask_peers: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) min_relay_peers: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) eth_rpc: Vec<RpcUrl>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rln_contract: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rln_chain_id: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rln_keystore: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rln_password_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tls_certificate: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tls_key: Option<PathBuf>,
    pub(crate) limits: Limits,
}

/// The file: every key optional, unknown keys refused.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    memory: Option<String>,
    data_dir: Option<PathBuf>,
    log: Option<String>,
    #[serde(default, deserialize_with = "listen_addresses")]
    listen: Option<Vec<Multiaddr>>,
    announce: Option<Vec<Multiaddr>>,
    peers: Option<Vec<Multiaddr>>,
    #[serde(default, deserialize_with = "address")]
    http: Option<SocketAddr>,
    host_names: Option<Vec<String>>,
    allow_origins: Option<Vec<String>>,
    network: Option<Network>,
    cluster: Option<u16>,
    shards: Option<Vec<u16>>,
    shards_in_cluster: Option<NonZeroU16>,
    content_topics: Option<Vec<String>>,
    protected_shards: Option<Vec<String>>,
    store: Option<bool>,
    store_sync: Option<bool>,
    store_resume: Option<bool>,
    relay: Option<bool>,
    lightpushnode: Option<Multiaddr>,
    filternode: Option<Multiaddr>,
    storenode: Option<Multiaddr>,
    discv5: Option<bool>,
    discv5_port: Option<u16>,
    discv5_bootstrap: Option<Vec<String>>,
    dns_discovery_urls: Option<Vec<String>>,
    dns_servers: Option<Vec<SocketAddr>>,
    ask_peers: Option<bool>,
    heap_profile: Option<bool>,
    min_relay_peers: Option<u64>,
    eth_rpc: Option<Vec<RpcUrl>>,
    rln_contract: Option<String>,
    rln_chain_id: Option<u64>,
    rln_keystore: Option<PathBuf>,
    rln_password_file: Option<PathBuf>,
    tls_certificate: Option<PathBuf>,
    tls_key: Option<PathBuf>,
    /// Single limits changed: `[limits.filter] receivers = 100`.
    #[serde(default)]
    limits: toml::Table,
}

impl Config {
    /// Reads the file if one is named, lays the flags over it, derives all limits and checks them.
    pub(crate) fn load(settings: &Settings) -> Result<Self> {
        let file = match &settings.config {
            Some(path) => read(path)?,
            None => File::default(),
        };
        let flags = settings.clone();
        let memory = flags.memory.or(file.memory).unwrap_or_else(|| "128MiB".into());
        let bytes = accounting::parse_size(&memory)
            .with_context(|| format!("memory = \"{memory}\" is not a size"))?;
        let network = flags.network.or(file.network);
        let preset = network.map_or(&UNNAMED, Network::preset);
        let size = flags.message_size.as_deref();
        let limits = limits(bytes, &file.limits, size, preset.message_bytes)?;
        let cluster = flags.cluster.or(file.cluster).unwrap_or(preset.cluster);
        let shards_in_cluster = flags.shards_in_cluster.or(file.shards_in_cluster);
        let shards_in_cluster = shards_in_cluster.unwrap_or(preset.shards_in_cluster);
        let shards = list(flags.shards, file.shards).unwrap_or_else(|| match preset.shards {
            [] => (0..shards_in_cluster.get()).collect(),
            shards => shards.to_vec(),
        });
        let listen = list(flags.listen, file.listen).unwrap_or_else(default_listen);
        let relay = flags.relay.or(file.relay).unwrap_or(true);
        let config = Self {
            memory,
            data_dir: flags.data_dir.or(file.data_dir).unwrap_or_else(|| "relay-data".into()),
            log: flags.log.or(file.log).unwrap_or_else(|| "info".into()),
            listen,
            announce: list(flags.announce, file.announce).unwrap_or_default(),
            peers: list(flags.peers, file.peers).map_or_else(|| addresses(preset), Ok)?,
            http: flags.http.or(file.http).unwrap_or_else(|| ([127, 0, 0, 1], 8645).into()),
            host_names: list(flags.host_names, file.host_names).unwrap_or_default(),
            allow_origins: list(flags.allow_origins, file.allow_origins).unwrap_or_default(),
            network,
            cluster,
            shards,
            shards_in_cluster,
            content_topics: list(flags.content_topics, file.content_topics).unwrap_or_default(),
            protected_shards: list(flags.protected_shards, file.protected_shards)
                .unwrap_or_default(),
            store: flags.store.or(file.store).unwrap_or(relay),
            store_sync: flags.store_sync.or(file.store_sync).unwrap_or(false),
            store_resume: flags.store_resume.or(file.store_resume).unwrap_or(false),
            relay,
            lightpushnode: flags.lightpushnode.or(file.lightpushnode),
            filternode: flags.filternode.or(file.filternode),
            storenode: flags.storenode.or(file.storenode),
            discv5: flags.discv5.or(file.discv5).or(preset.discv5),
            discv5_port: flags.discv5_port.or(file.discv5_port).unwrap_or(DISCV5_PORT),
            discv5_bootstrap: list(flags.discv5_bootstrap, file.discv5_bootstrap)
                .unwrap_or_else(|| texts(preset.discv5_bootstrap)),
            dns_discovery_urls: list(flags.dns_discovery_urls, file.dns_discovery_urls)
                .unwrap_or_else(|| texts(preset.dns_discovery_urls)),
            dns_servers: list(flags.dns_servers, file.dns_servers).unwrap_or_default(),
            ask_peers: flags.ask_peers.or(file.ask_peers),
            heap_profile: flags.heap_profile.or(file.heap_profile).unwrap_or(false),
            min_relay_peers: flags.min_relay_peers.or(file.min_relay_peers),
            eth_rpc: list(flags.eth_rpc, file.eth_rpc).unwrap_or_default(),
            rln_contract: flags.rln_contract.or(file.rln_contract),
            rln_chain_id: flags.rln_chain_id.or(file.rln_chain_id),
            rln_keystore: flags.rln_keystore.or(file.rln_keystore),
            rln_password_file: flags.rln_password_file.or(file.rln_password_file),
            tls_certificate: flags.tls_certificate.or(file.tls_certificate),
            tls_key: flags.tls_key.or(file.tls_key),
            limits,
        };
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<()> {
        self.check_network()?;
        self.check_rln()?;
        if self.shards_in_cluster.get() > router::SHARDS {
            bail!(
                "shards_in_cluster is {}, a cluster has at most {}",
                self.shards_in_cluster,
                router::SHARDS
            );
        }
        if let Some(shard) = self.shards.iter().find(|shard| **shard >= router::SHARDS) {
            bail!("there is no shard {shard}: a cluster has shards 0 to {}", router::SHARDS - 1);
        }
        if self.shards.is_empty() {
            bail!("shards names none: a relay serves at least one");
        }
        let most = self.limits.gossip.topics;
        if self.shards.len() as u64 > most {
            bail!("{} shards are named, gossip.topics allows {most}", self.shards.len());
        }
        self.check_content_topics()?;
        if self.listen.is_empty() {
            bail!("listen names no address");
        }
        http_server::origin::check_names(&self.host_names).map_err(anyhow::Error::msg)?;
        AllowedOrigins::new(&self.allow_origins).map_err(anyhow::Error::msg)?;
        if self.tls_certificate.is_some() != self.tls_key.is_some() {
            bail!("secure WebSocket needs both tls_certificate and tls_key");
        }
        for (name, count) in [
            ("protected_shards", self.protected_shards.len()),
            ("discv5_bootstrap", self.discv5_bootstrap.len()),
            ("dns_discovery_urls", self.dns_discovery_urls.len()),
            ("dns_servers", self.dns_servers.len()),
        ] {
            if count > NAMED_MAX {
                bail!("{name} names {count}, at most {NAMED_MAX} are taken");
            }
        }
        if !self.store && (self.store_sync || self.store_resume) {
            bail!("store_sync and store_resume fetch messages to keep, but store is false");
        }
        self.service_nodes()?;
        self.protected_shards()?;
        self.bootstrap_records()?;
        self.node_lists()?;
        Ok(())
    }

    /// A named network has its own cluster, and its own spread of content topics.
    fn check_network(&self) -> Result<()> {
        let Some(network) = self.network else { return Ok(()) };
        let name = network.name();
        let Preset { cluster, shards_in_cluster, .. } = network.preset();
        if self.cluster != *cluster {
            bail!("network {name} is cluster {cluster}, and cluster {} is stated", self.cluster);
        }
        if self.shards_in_cluster != *shards_in_cluster {
            bail!(
                "network {name} has shards_in_cluster {shards_in_cluster}, and {} is stated",
                self.shards_in_cluster
            );
        }
        Ok(())
    }

    /// Whether proofs of a rate limit can be checked where they are demanded.
    fn check_rln(&self) -> Result<()> {
        match self.contract()? {
            Some(contract) if self.eth_rpc.is_empty() => bail!(
                "cluster {} demands a proof of a rate limit (RLN) with each message, which is \
                 checked against the contract {contract}: state a JSON-RPC server of that chain \
                 (Ethereum) with --eth-rpc URL",
                self.cluster
            ),
            None if !self.eth_rpc.is_empty() => bail!(
                "eth_rpc is stated, and cluster {} has no membership contract: also state \
                 rln_contract and rln_chain_id",
                self.cluster
            ),
            _ => {}
        }
        if self.eth_rpc.len() > SERVERS_MAX {
            bail!("eth_rpc names {}, at most {SERVERS_MAX} are asked", self.eth_rpc.len());
        }
        for (place, url) in self.eth_rpc.iter().enumerate() {
            if self.eth_rpc[..place].contains(url) {
                bail!("eth_rpc names {url:?} twice: a server cannot be compared with itself");
            }
        }
        self.rpc_servers()?;
        if self.rln_keystore.is_some() != self.rln_password_file.is_some() {
            bail!("a keystore needs both rln_keystore and rln_password_file");
        }
        Ok(())
    }

    /// The contract with the members whose messages are valid, in a network that has one.
    pub(crate) fn contract(&self) -> Result<Option<Contract>> {
        let named = (self.cluster == THE_WAKU_NETWORK).then_some(WAKU_CONTRACT);
        let (Some(address), Some(chain_id)) = (&self.rln_contract, self.rln_chain_id) else {
            if self.rln_contract.is_some() || self.rln_chain_id.is_some() {
                bail!("another contract needs both rln_contract and rln_chain_id");
            }
            return Ok(named);
        };
        let address = parse_address(address).with_context(|| {
            format!("rln_contract `{address}` is not 0x and 40 hexadecimal digits")
        })?;
        Ok(Some(Contract { chain_id, address }))
    }

    /// Servers from which the roots of the contract are read.
    pub(crate) fn rpc_servers(&self) -> Result<Vec<RpcServer>> {
        let read = |(place, url): (usize, &RpcUrl)| {
            RpcServer::new(url).with_context(|| format!("eth_rpc, URL {}", place + 1))
        };
        self.eth_rpc.iter().enumerate().map(read).collect()
    }

    /// The operator's membership in the network's contract, if a keystore is configured.
    pub(crate) fn membership(&self, contract: Contract) -> Result<Option<Membership>> {
        let files = self.rln_keystore.as_ref().zip(self.rln_password_file.as_ref());
        files
            .map(|(keystore, password)| keystore::read_one(keystore, password, contract))
            .transpose()
    }

    /// All memberships in the keystore.
    pub(crate) fn memberships(&self) -> Result<Vec<Membership>> {
        let files = self.rln_keystore.as_ref().zip(self.rln_password_file.as_ref());
        let (keystore, password) = files.context("state rln_keystore and rln_password_file")?;
        keystore::read(keystore, password)
    }

    fn check_content_topics(&self) -> Result<()> {
        let mut shards: HashSet<u16> = self.shards.iter().copied().collect();
        for name in &self.content_topics {
            let topic =
                ContentTopic::parse(name).with_context(|| format!("content_topics `{name}`"))?;
            shards.insert(autoshard(&topic, self.shards_in_cluster));
        }
        let most = self.limits.gossip.topics;
        if shards.len() as u64 > most {
            bail!(
                "{} shards are named, with those of content_topics; gossip.topics allows {most}",
                shards.len()
            );
        }
        Ok(())
    }

    /// Settings of the node, in the types that use them.
    pub(crate) fn settings(&self) -> crate::settings::Settings {
        let settings = crate::settings::Settings::new(
            self.cluster,
            &self.shards,
            self.shards_in_cluster,
            self.store,
            self.least_relay_peers(),
            &self.limits,
        );
        crate::settings::Settings {
            relay: self.relay,
            // Checked when the configuration was loaded.
            service_nodes: self.service_nodes().unwrap_or_default(),
            store_sync: self.store_sync,
            store_resume: self.store_resume,
            ..settings
        }
    }

    /// The nodes whose services are used.
    fn service_nodes(&self) -> Result<ServiceNodes> {
        let read = |name: &str, address: &Option<Multiaddr>| {
            let remote = address.as_ref().map(Remote::at).transpose();
            remote.map_err(|error| anyhow::anyhow!("{name}: {error}"))
        };
        Ok(ServiceNodes {
            light_push: read("lightpushnode", &self.lightpushnode)?,
            filter: read("filternode", &self.filternode)?,
            store: read("storenode", &self.storenode)?,
        })
    }

    /// Peers to stay connected to: those named, and the nodes whose services are used.
    pub(crate) fn static_peers(&self) -> impl Iterator<Item = &Multiaddr> {
        let services = [&self.lightpushnode, &self.filternode, &self.storenode];
        self.peers.iter().chain(services.into_iter().flatten())
    }

    /// Relay peers without which light push is refused: as stated; else one where the node is to
    /// have any, and none for a node that is alone.
    pub(crate) fn least_relay_peers(&self) -> usize {
        if !self.relay {
            return 0;
        }
        let stated = self.min_relay_peers.map(crate::settings::count);
        stated.unwrap_or(usize::from(!self.peers.is_empty() || self.finds_peers()))
    }

    /// Whether the discovery protocol runs: as stated; else if it has bootstrap nodes.
    pub(crate) fn runs_discv5(&self) -> bool {
        self.discv5.unwrap_or(!self.discv5_bootstrap.is_empty())
    }

    /// Whether this node looks for peers that were not configured.
    pub(crate) fn finds_peers(&self) -> bool {
        self.runs_discv5() || !self.dns_discovery_urls.is_empty() || self.ask_peers == Some(true)
    }

    /// Whether peers are asked for further ones: as stated; else if peers are looked for at all.
    pub(crate) fn asks_peers(&self) -> bool {
        self.ask_peers.unwrap_or(self.finds_peers())
    }

    /// Keys of the shards whose messages must be signed. Errors: another form than `SHARD:KEY`, a
    /// shard that is there twice, or one that no cluster has.
    pub(crate) fn protected_shards(&self) -> Result<BTreeMap<Shard, ShardKey>> {
        let mut keys = BTreeMap::new();
        for text in &self.protected_shards {
            let ProtectedShard { shard, key } =
                text.parse::<ProtectedShard>().context("protected_shards")?;
            if shard >= router::SHARDS {
                bail!(
                    "protected_shards has shard {shard}: a cluster has 0 to {}",
                    router::SHARDS - 1
                );
            }
            if keys.insert(shard, key).is_some() {
                bail!("protected_shards has shard {shard} twice; a shard has one key");
            }
        }
        Ok(keys)
    }

    /// Records of the nodes at which discovery begins.
    pub(crate) fn bootstrap_records(&self) -> Result<Vec<NodeRecord>> {
        let read =
            |text: &String| text.parse().with_context(|| format!("discv5_bootstrap `{text}`"));
        self.discv5_bootstrap.iter().map(read).collect()
    }

    /// Lists of nodes in the DNS.
    pub(crate) fn node_lists(&self) -> Result<Vec<ListLink>> {
        let read =
            |text: &String| text.parse().with_context(|| format!("dns_discovery_urls `{text}`"));
        self.dns_discovery_urls.iter().map(read).collect()
    }

    pub(crate) fn to_toml(&self) -> Result<String> {
        let mut value = serde_json::to_value(self)?;
        if let Some(limits) = value.get_mut("limits").and_then(|limits| limits.as_object_mut()) {
            limits.remove("memory_budget_bytes");
        }
        Ok(toml::to_string(&toml::Value::try_from(value)?)?)
    }
}

fn texts(list: &[&str]) -> Vec<String> {
    list.iter().map(ToString::to_string).collect()
}

fn addresses(preset: &Preset) -> Result<Vec<Multiaddr>> {
    let read = |text: &&str| text.parse().with_context(|| format!("peer `{text}` of the network"));
    preset.peers.iter().map(read).collect()
}

/// The table of limits: derived from the memory size and the largest message, with the operator's
/// own values over it. `message_size` is that of a flag, `usual` that of the network.
fn limits(
    bytes: u64,
    stated: &toml::Table,
    message_size: Option<&str>,
    usual: Option<u64>,
) -> Result<Limits> {
    let mut stated = serde_json::to_value(stated)?;
    let groups = stated.as_object_mut();
    if (message_size.is_some() || usual.is_some())
        && let Some(groups) = groups
    {
        let messages = groups.entry("messages").or_insert_with(|| serde_json::json!({}));
        // Where it is not a table, that is the error.
        if let Some(messages) = messages.as_object_mut() {
            if let Some(size) = message_size {
                messages.insert("message_bytes".to_owned(), size.into());
            } else if let Some(usual) = usual {
                messages.entry("message_bytes").or_insert_with(|| usual.into());
            }
        }
    }
    let message_bytes = match &stated["messages"]["message_bytes"] {
        serde_json::Value::String(text) => accounting::parse_size(text).ok(),
        value => value.as_u64(),
    };
    // A value that is not a size is refused with its reason where it is laid over the table.
    let mut limits = match message_bytes {
        Some(size) => Limits::derive_with_messages(bytes, size)
            .with_context(|| format!("messages of {}", accounting::format_size(size)))?,
        None => Limits::derive(bytes)?,
    };
    limits.apply_overrides(&stated)?;
    limits.check()?;
    Ok(limits)
}

fn list<T>(flags: Vec<T>, file: Option<Vec<T>>) -> Option<Vec<T>> {
    if flags.is_empty() { file } else { Some(flags) }
}

/// A server of the DNS as an operator writes it: port 53 unless another is named.
pub(crate) fn dns_server(text: &str) -> Result<SocketAddr, String> {
    let with_port = text.parse::<SocketAddr>();
    with_port.or_else(|_| text.parse::<IpAddr>().map(|ip| (ip, DNS_PORT).into())).map_err(|_| {
        format!(
            "`{text}` is no IP address, alone or with a port (192.0.2.1, 192.0.2.1:53, \
             [2001:db8::1]:53)"
        )
    })
}

/// Where to wait for peers, as an operator writes it: a multiaddress, whose host name is resolved
/// now, or an address or host name with a port, for TCP.
pub(crate) fn listen_address(text: &str) -> Result<Multiaddr, String> {
    if !text.starts_with('/') {
        let address = setup::socket_address(text)?;
        return Ok(Multiaddr::from(address.ip()).with(Protocol::Tcp(address.port())));
    }
    let address: Multiaddr =
        text.parse().map_err(|error| format!("`{text}` is not a multiaddress: {error}"))?;
    let part = |part: Protocol<'_>| match part {
        Protocol::Dns(host) | Protocol::Dns4(host) | Protocol::Dns6(host) => {
            setup::ip_address(&host)
                .map(|ip| Multiaddr::from(ip).iter().next().map(Protocol::acquire))
        }
        other => Ok(Some(other.acquire())),
    };
    let parts: Vec<_> = address.iter().map(part).collect::<Result<_, _>>()?;
    Ok(parts.into_iter().flatten().collect())
}

fn listen_addresses<'de, D>(deserializer: D) -> Result<Option<Vec<Multiaddr>>, D::Error>
where
    D: Deserializer<'de>,
{
    let texts = Option::<Vec<String>>::deserialize(deserializer)?;
    let read = |texts: Vec<String>| texts.iter().map(|text| listen_address(text)).collect();
    texts.map(read).transpose().map_err(D::Error::custom)
}

/// An address with a port; the name of a host is resolved.
fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SocketAddr>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    text.map(|text| setup::socket_address(&text).map_err(D::Error::custom)).transpose()
}

fn default_listen() -> Vec<Multiaddr> {
    ["/ip4/0.0.0.0/tcp/60000", "/ip4/0.0.0.0/tcp/8000/ws"]
        .iter()
        .filter_map(|address| address.parse().ok())
        .collect()
}

fn read(path: &Path) -> Result<File> {
    let text = setup::read_text(path)?;
    toml::from_str(&text).with_context(|| format!("in {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Of a shard.
    const KEY: &str = "029c5fac802da41e07e6cdf51c3b9a6351ad5e65921527f2df5b7d59fd9b56ab02";

    // Promise: P24 - The configuration of a relay is a regular file of at most 1 MiB.
    #[test]
    fn configuration_that_is_not_a_small_regular_file_is_refused() {
        let load = |path: &Path| {
            let flags = Settings { config: Some(path.to_owned()), ..Settings::default() };
            format!("{:#}", Config::load(&flags).err().unwrap())
        };
        let error = load(Path::new("/dev/zero"));
        assert!(error.contains("/dev/zero is not a regular file"), "{error}");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("relay.toml");
        fs::write(&path, " ".repeat((1 << 20) + 1)).unwrap();
        let error = load(&path);
        assert!(error.contains("relay.toml is larger than 1 MiB"), "{error}");
    }

    #[test]
    fn the_printed_configuration_is_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("relay.toml");
        let flags = Settings { cluster: Some(16), shards: vec![1, 5], ..Settings::default() };
        let config = Config::load(&flags).unwrap();
        fs::write(&path, config.to_toml().unwrap()).unwrap();
        let again = Config::load(&Settings { config: Some(path), ..Settings::default() }).unwrap();
        assert_eq!(config.to_toml().unwrap(), again.to_toml().unwrap());
    }

    #[test]
    fn messages_may_have_the_size_of_the_network_where_memory_allows() {
        let with = |memory: &str, size: &str| {
            Config::load(&Settings {
                memory: Some(memory.into()),
                message_size: Some(size.into()),
                ..Settings::default()
            })
        };
        let error = |memory, size| format!("{:#}", with(memory, size).unwrap_err());
        for (memory, size) in [("128MiB", "1MiB"), ("64MiB", "150KiB"), ("64MiB", "2KiB")] {
            let config = with(memory, size).unwrap();
            let bytes = accounting::parse_size(size).unwrap();
            assert_eq!(config.limits.messages.message_bytes, bytes);
        }
        let small = error("64MiB", "1MiB");
        assert!(small.contains("messages of 1 MiB") && small.contains("smallest size"), "{small}");
        assert!(error("1GiB", "2MiB").contains("at most 1 MiB"));
        assert!(error("1GiB", "much").contains("messages.message_bytes"));
        // The file has it among the limits; a flag goes before it.
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("relay.toml");
        fs::write(&path, "[limits.messages]\nmessage_bytes = \"1MiB\"\n").unwrap();
        let file = Settings { config: Some(path), ..Settings::default() };
        assert_eq!(Config::load(&file).unwrap().limits.messages.message_bytes, 1 << 20);
        let flag = Settings { message_size: Some("64KiB".into()), ..file };
        let limits = Config::load(&flag).unwrap().limits;
        assert_eq!((limits.messages.message_bytes, limits.messages.frame_bytes), (65_536, 131_072));
    }

    #[test]
    fn content_topics_are_checked_and_their_shards_counted() {
        let named = |topics: &[&str], shards: &[u16]| {
            Config::load(&Settings {
                memory: Some("64MiB".into()),
                content_topics: topics.iter().map(|name| (*name).to_owned()).collect(),
                shards: shards.to_vec(),
                ..Settings::default()
            })
        };
        assert_eq!(named(&["/a/1/b/proto"], &[1]).unwrap().content_topics, ["/a/1/b/proto"]);
        let form = format!("{:#}", named(&["a"], &[1]).unwrap_err());
        assert!(form.contains("content_topics `a`"), "{form}");
        let all: Vec<u16> = (100..116).collect();
        assert!(named(&[], &all).is_ok());
        let many = format!("{:#}", named(&["/a/1/b/proto"], &all).unwrap_err());
        assert!(many.contains("17 shards") && many.contains("gossip.topics allows 16"), "{many}");
    }

    #[test]
    fn what_cannot_be_served_is_refused_with_the_reason() {
        let refused = |settings: Settings| format!("{:#}", Config::load(&settings).unwrap_err());
        let cluster = Settings { cluster: Some(1), ..Settings::default() };
        assert!(refused(cluster).contains("--eth-rpc URL"));
        let shard = Settings { shards: vec![1024], ..Settings::default() };
        assert!(refused(shard).contains("1023"));
        let memory = Settings { memory: Some("16MiB".into()), ..Settings::default() };
        assert!(refused(memory).contains("16 MiB"));
        for (texts, why) in [
            (vec!["7:02".to_owned()], "SHARD:KEY"),
            (vec![format!("1024:{KEY}")], "1023"),
            (vec![format!("7:{KEY}"), format!("7:{KEY}")], "twice"),
        ] {
            let refused = refused(Settings { protected_shards: texts, ..Settings::default() });
            assert!(refused.contains("protected_shards") && refused.contains(why), "{refused}");
        }
        let tls = Settings { tls_key: Some("key.pem".into()), ..Settings::default() };
        assert!(refused(tls).contains("tls_certificate"));
    }

    fn url(text: &str) -> RpcUrl {
        RpcUrl::from(text.to_owned())
    }

    #[test]
    fn named_network_sets_what_is_not_stated() {
        let memory = Some("512MiB".to_owned());
        let status = Settings { network: Some(Network::Status), memory, ..Settings::default() };
        let config = Config::load(&status).unwrap();
        assert_eq!((config.cluster, &*config.shards), (16, &[0, 32, 64][..]));
        assert_eq!(config.limits.messages.message_bytes, 1 << 20);
        assert_eq!((config.peers.len(), config.dns_discovery_urls.len()), (3, 1));
        assert!(config.runs_discv5() && config.contract().unwrap().is_none());
        let shard = Config::load(&Settings { shards: vec![32], ..status.clone() }).unwrap();
        assert_eq!(shard.shards, [32]);
        for changed in [
            Settings { cluster: Some(1), ..status.clone() },
            Settings { shards_in_cluster: NonZeroU16::new(8), ..status.clone() },
        ] {
            let error = format!("{:#}", Config::load(&changed).unwrap_err());
            assert!(error.starts_with("network status"), "{error}");
        }

        let eth_rpc = vec![url("https://rpc.example/0123456789abcdef")];
        let waku = Settings { network: Some(Network::Waku), eth_rpc, ..Settings::default() };
        let config = Config::load(&waku).unwrap();
        assert_eq!((config.cluster, config.shards.len()), (1, 8));
        assert_eq!(config.contract().unwrap(), Some(WAKU_CONTRACT));
        assert_eq!(config.bootstrap_records().unwrap().len(), 3);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("relay.toml");
        fs::write(&path, config.to_toml().unwrap()).unwrap();
        let again = Config::load(&Settings { config: Some(path), ..Settings::default() }).unwrap();
        assert_eq!(config.to_toml().unwrap(), again.to_toml().unwrap());
        // A file can say that there are none.
        let path = folder.path().join("none.toml");
        fs::write(&path, "dns_discovery_urls = []\ndiscv5_bootstrap = []\n").unwrap();
        let none = Config::load(&Settings { config: Some(path), ..waku }).unwrap();
        assert!(none.dns_discovery_urls.is_empty() && none.discv5_bootstrap.is_empty());
    }

    #[test]
    fn contract_and_servers_belong_together() {
        let refused = |settings: Settings| format!("{:#}", Config::load(&settings).unwrap_err());
        let rpc = |texts: &[&str]| texts.iter().map(|text| url(text)).collect::<Vec<_>>();
        let other = Settings {
            cluster: Some(2),
            rln_contract: Some(format!("0x{}", "Ab".repeat(20))),
            rln_chain_id: Some(1337),
            ..Settings::default()
        };
        assert!(refused(other.clone()).contains("--eth-rpc URL"));
        let eth_rpc = rpc(&["http://localhost:1/secretsecret"]);
        let with = Settings { eth_rpc: eth_rpc.clone(), ..other.clone() };
        let found = Config::load(&with).unwrap().contract().unwrap().unwrap();
        assert_eq!(found, Contract { chain_id: 1337, address: [0xab; 20] });
        let half = Settings { rln_chain_id: None, ..with.clone() };
        assert!(refused(half).contains("both rln_contract and rln_chain_id"));
        let none = Settings { eth_rpc, cluster: Some(2), ..Settings::default() };
        assert!(refused(none).contains("cluster 2 has no membership contract"));
        let address = Settings { rln_contract: Some("0x12".into()), ..with.clone() };
        assert!(refused(address).contains("rln_contract `0x12`"));
        for (urls, reason) in [
            (vec!["http://a.b/secretsecret"; 2], "twice"),
            (vec!["http://a.b/secretsecret", "ws://a.b/secretsecret"], "eth_rpc, URL 2"),
            (vec!["http://a", "http://b", "http://c", "http://d", "http://e"], "at most 4"),
        ] {
            let error = refused(Settings { eth_rpc: rpc(&urls), ..with.clone() });
            assert!(error.contains(reason) && !error.contains("secret"), "{error}");
        }
        let shown = format!("{with:?} {:?}", Config::load(&with).unwrap());
        assert!(!shown.contains("secret"), "{shown}");
        let keystore = Settings { rln_keystore: Some("keystore.json".into()), ..with };
        assert!(refused(keystore).contains("rln_password_file"));
    }

    #[test]
    fn a_node_alone_takes_messages_and_one_with_peers_waits_for_them() {
        let alone = Config::load(&Settings::default()).unwrap();
        assert_eq!(alone.least_relay_peers(), 0);
        let peer = "/ip4/127.0.0.1/tcp/60001".parse().unwrap();
        let with = Config::load(&Settings { peers: vec![peer], ..Settings::default() }).unwrap();
        assert_eq!(with.least_relay_peers(), 1);
    }

    #[test]
    fn discovery_is_off_until_it_is_told_where_to_begin() {
        let alone = Config::load(&Settings::default()).unwrap();
        assert!(!alone.runs_discv5() && !alone.asks_peers());
        let record = protocol::record::RecordContent::default().sign(&[3; 32]).unwrap().to_string();
        let flags = Settings { discv5_bootstrap: vec![record], ..Settings::default() };
        let begun = Config::load(&flags).unwrap();
        assert!(begun.runs_discv5() && begun.asks_peers());
        assert_eq!(begun.least_relay_peers(), 1);
        let off = Config::load(&Settings { discv5: Some(false), ..flags }).unwrap();
        assert!(!off.runs_discv5() && !off.asks_peers());
    }

    // Promise: P16 - Every listen address of the relay may be a host name.
    #[test]
    fn host_names_are_resolved_in_every_address_to_listen_at() {
        assert_eq!(
            listen_address("localhost:60000"),
            Ok("/ip4/127.0.0.1/tcp/60000".parse().unwrap())
        );
        let websocket = listen_address("/dns4/localhost/tcp/8000/ws");
        assert_eq!(websocket, Ok("/ip4/127.0.0.1/tcp/8000/ws".parse().unwrap()));
        assert!(listen_address("60000").unwrap_err().contains("`60000`"));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("relay.toml");
        fs::write(&path, "http = \"localhost:0\"\nlisten = [\"localhost:0\"]\n").unwrap();
        let config = Config::load(&Settings { config: Some(path), ..Settings::default() }).unwrap();
        assert!(config.http.ip().is_loopback() && config.http.port() == 0);
        assert_eq!(config.listen, ["/ip4/127.0.0.1/tcp/0".parse().unwrap()]);
    }

    #[test]
    fn a_client_has_no_store_of_its_own_and_names_its_nodes() {
        let peer = libp2p::PeerId::random();
        let address: Multiaddr = format!("/ip4/192.0.2.1/tcp/60000/p2p/{peer}").parse().unwrap();
        let flags = Settings {
            relay: Some(false),
            lightpushnode: Some(address.clone()),
            storenode: Some(address.clone()),
            ..Settings::default()
        };
        let config = Config::load(&flags).unwrap();
        assert!(!config.store && config.least_relay_peers() == 0);
        assert_eq!(config.static_peers().count(), 2);
        let settings = config.settings();
        assert_eq!(settings.service_nodes.light_push.unwrap().peer, peer);
        assert!(!settings.relay && settings.service_nodes.filter.is_none());
        let unnamed = Settings {
            filternode: Some("/ip4/192.0.2.1/tcp/60000".parse().unwrap()),
            ..Settings::default()
        };
        let refused = format!("{:#}", Config::load(&unnamed).unwrap_err());
        assert!(refused.contains("filternode") && refused.contains("/p2p/"), "{refused}");
        let kept_nowhere = Settings { store_resume: Some(true), ..flags };
        let refused = format!("{:#}", Config::load(&kept_nowhere).unwrap_err());
        assert!(refused.contains("store_resume"), "{refused}");
    }

    #[test]
    fn damaged_records_and_lists_are_refused_at_the_start() {
        let bootstrap =
            Settings { discv5_bootstrap: vec!["enr:-IS4".into()], ..Settings::default() };
        let refused = format!("{:#}", Config::load(&bootstrap).unwrap_err());
        assert!(refused.contains("discv5_bootstrap `enr:-IS4`"), "{refused}");
        let list = Settings {
            dns_discovery_urls: vec!["enrtree://KEY@a.org".into()],
            ..Settings::default()
        };
        let refused = format!("{:#}", Config::load(&list).unwrap_err());
        assert!(refused.contains("enrtree://KEY@DOMAIN"), "{refused}");
        assert_eq!(dns_server("192.0.2.1").unwrap().port(), 53);
        assert!(dns_server("example.org").unwrap_err().contains("example.org"));
    }
}
