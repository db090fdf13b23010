//! One configuration file, flags over it, defaults under it.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    num::NonZeroU16,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use libp2p::{Multiaddr, multiaddr::Protocol};
use protocol::{
    node_list::ListLink,
    record::NodeRecord,
    signed::{ProtectedShard, ShardKey},
};
use relay_limits::Limits;
use router::Shard;
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};

use crate::{cli::Settings, http::cors::AllowedOrigins};

/// The Waku Network: its messages need proofs of a rate limit, which are not verified here.
const THE_WAKU_NETWORK: u16 = 1;
/// UDP port of the discovery protocol, as other Waku nodes have it.
const DISCV5_PORT: u16 = 9000;
const DNS_PORT: u16 = 53;
/// Bootstrap nodes, node lists and DNS servers that may be named, of each.
const NAMED_MAX: usize = 64;
const SHARDS_IN_CLUSTER: NonZeroU16 = NonZeroU16::new(8).expect("not zero");

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
    pub(crate) cluster: u16,
    pub(crate) shards: Vec<u16>,
    pub(crate) shards_in_cluster: NonZeroU16,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) protected_shards: Vec<String>,
    pub(crate) store: bool,
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
    cluster: Option<u16>,
    shards: Option<Vec<u16>>,
    shards_in_cluster: Option<NonZeroU16>,
    protected_shards: Option<Vec<String>>,
    store: Option<bool>,
    discv5: Option<bool>,
    discv5_port: Option<u16>,
    discv5_bootstrap: Option<Vec<String>>,
    dns_discovery_urls: Option<Vec<String>>,
    dns_servers: Option<Vec<SocketAddr>>,
    ask_peers: Option<bool>,
    heap_profile: Option<bool>,
    min_relay_peers: Option<u64>,
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
        let mut limits = Limits::derive(bytes)?;
        limits.apply_overrides(&serde_json::to_value(&file.limits)?)?;
        limits.check()?;
        let cluster = flags.cluster.or(file.cluster).unwrap_or(0);
        let shards_in_cluster =
            flags.shards_in_cluster.or(file.shards_in_cluster).unwrap_or(SHARDS_IN_CLUSTER);
        let shards = list(flags.shards, file.shards)
            .unwrap_or_else(|| (0..shards_in_cluster.get()).collect());
        let listen = list(flags.listen, file.listen).unwrap_or_else(default_listen);
        let config = Self {
            memory,
            data_dir: flags.data_dir.or(file.data_dir).unwrap_or_else(|| "relay-data".into()),
            log: flags.log.or(file.log).unwrap_or_else(|| "info".into()),
            listen,
            announce: list(flags.announce, file.announce).unwrap_or_default(),
            peers: list(flags.peers, file.peers).unwrap_or_default(),
            http: flags.http.or(file.http).unwrap_or_else(|| ([127, 0, 0, 1], 8645).into()),
            host_names: list(flags.host_names, file.host_names).unwrap_or_default(),
            allow_origins: list(flags.allow_origins, file.allow_origins).unwrap_or_default(),
            cluster,
            shards,
            shards_in_cluster,
            protected_shards: list(flags.protected_shards, file.protected_shards)
                .unwrap_or_default(),
            store: flags.store.or(file.store).unwrap_or(true),
            discv5: flags.discv5.or(file.discv5),
            discv5_port: flags.discv5_port.or(file.discv5_port).unwrap_or(DISCV5_PORT),
            discv5_bootstrap: list(flags.discv5_bootstrap, file.discv5_bootstrap)
                .unwrap_or_default(),
            dns_discovery_urls: list(flags.dns_discovery_urls, file.dns_discovery_urls)
                .unwrap_or_default(),
            dns_servers: list(flags.dns_servers, file.dns_servers).unwrap_or_default(),
            ask_peers: flags.ask_peers.or(file.ask_peers),
            heap_profile: flags.heap_profile.or(file.heap_profile).unwrap_or(false),
            min_relay_peers: flags.min_relay_peers.or(file.min_relay_peers),
            tls_certificate: flags.tls_certificate.or(file.tls_certificate),
            tls_key: flags.tls_key.or(file.tls_key),
            limits,
        };
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<()> {
        if self.cluster == THE_WAKU_NETWORK {
            bail!(
                "cluster 1 is The Waku Network, whose messages carry zero-knowledge proofs of a \
                 rate limit (RLN): who may send is known only from a contract of an Ethereum \
                 chain, which this node does not ask, so that it would pass on what others drop; \
                 choose another cluster"
            );
        }
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
        self.protected_shards()?;
        self.bootstrap_records()?;
        self.node_lists()?;
        Ok(())
    }

    /// Settings of the node, in the types that use them.
    pub(crate) fn settings(&self) -> crate::settings::Settings {
        crate::settings::Settings::new(
            self.cluster,
            &self.shards,
            self.shards_in_cluster,
            self.store,
            self.least_relay_peers(),
            &self.limits,
        )
    }

    /// Relay peers without which light push is refused: as stated; else one where the node is to
    /// have any, and none for a node that is alone.
    pub(crate) fn least_relay_peers(&self) -> usize {
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
    fn what_cannot_be_served_is_refused_with_the_reason() {
        let refused = |settings: Settings| format!("{:#}", Config::load(&settings).unwrap_err());
        let cluster = Settings { cluster: Some(1), ..Settings::default() };
        assert!(refused(cluster).contains("RLN"));
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
