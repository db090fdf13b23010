//! `thimble-relay init`: a commented configuration file for a data folder, and a unit for systemd
//! whose memory cap is the budget.

use std::path::{Path, PathBuf};

use anyhow::Result;
use libp2p::Multiaddr;
use relay_limits::Limits;
use setup::Unit;

use crate::config::Config;

/// Least number of open files of a unit: the default of other services.
const DESCRIPTORS_MIN: u64 = 65_536;

/// Writes `relay.toml`, and with `systemd` also `thimble-relay.service`, into the data folder. A
/// file that is there with other content stays.
pub(crate) fn run(config: &Config, systemd: bool) -> Result<()> {
    let text = |data: &Path| toml(config, data);
    let unit = systemd.then(|| unit(config));
    setup::init("thimble-relay", &config.data_dir, "relay.toml", text, unit)
}

fn value(value: impl Into<toml::Value>) -> String {
    value.into().to_string()
}

/// A line, or the same as a comment where nothing was stated.
fn line(name: &str, stated: Option<String>, example: &str) -> String {
    match stated {
        Some(value) => format!("{name} = {value}\n"),
        None => format!("# {name} = {example}\n"),
    }
}

fn texts<T: ToString>(list: &[T]) -> Option<String> {
    let list: Vec<toml::Value> = list.iter().map(|one| one.to_string().into()).collect();
    (!list.is_empty()).then(|| value(list))
}

fn path(path: &Option<PathBuf>) -> Option<String> {
    path.as_ref().map(|path| value(&*path.to_string_lossy()))
}

/// Lines about relay peers.
fn peers(config: &Config) -> String {
    let peers =
        line("peers", texts(&config.peers), "[\"/dns4/other.example.org/tcp/60000/p2p/...\"]");
    let least = config.min_relay_peers.map(|least| least.to_string());
    peers + &line("min_relay_peers", least, "1")
}

/// Lines about the nodes whose services are used.
fn service_nodes(config: &Config) -> String {
    let node = |name: &str, address: &Option<Multiaddr>| {
        let address = address.as_ref().map(|address| value(address.to_string()));
        line(name, address, "\"/dns4/other.example.org/tcp/60000/p2p/...\"")
    };
    node("lightpushnode", &config.lightpushnode)
        + &node("filternode", &config.filternode)
        + &node("storenode", &config.storenode)
}

/// Lines about secure WebSocket.
fn tls(config: &Config) -> String {
    let certificate = line("tls_certificate", path(&config.tls_certificate), "\"chain.pem\"");
    certificate + &line("tls_key", path(&config.tls_key), "\"key.pem\"")
}

/// Lines about proofs of a rate limit.
fn rln(config: &Config) -> String {
    let rpc: Vec<&str> = config.eth_rpc.iter().map(|url| url.secret_text()).collect();
    let rpc = line("eth_rpc", texts(&rpc), "[\"https://rpc.example.org/KEY\"]");
    let contract = config.rln_contract.as_deref().map(value);
    let contract = line("rln_contract", contract, "\"0x...\"");
    let chain = line("rln_chain_id", config.rln_chain_id.map(|id| id.to_string()), "59141");
    let keystore = line("rln_keystore", path(&config.rln_keystore), "\"keystore.json\"");
    let password = line("rln_password_file", path(&config.rln_password_file), "\"password\"");
    [rpc, contract, chain, keystore, password].concat()
}

fn toml(config: &Config, data: &Path) -> String {
    let shards: Vec<toml::Value> =
        config.shards.iter().map(|shard| i64::from(*shard).into()).collect();
    let announce =
        line("announce", texts(&config.announce), "[\"/dns4/relay.example.org/tcp/60000\"]");
    let (peers, service_nodes, tls) = (peers(config), service_nodes(config), tls(config));
    let network = config.network.map(|network| value(network.name()));
    let network = line("network", network, "\"waku\"");
    let rln = rln(config);
    let content_topics =
        line("content_topics", texts(&config.content_topics), "[\"/app/1/name/proto\"]");
    let messages = messages(config);
    format!(
        "# Configuration of a Thimble relay. Flags stand above it; `thimble-relay config --config \
         FILE`
# prints all that follows from it.

# What the relay may take. Everything is sized from this number: `thimble-relay limits --memory \
         SIZE`
# shows how.
memory = {memory}

# The key and the messages.
data_dir = {data}

# error, warn, info, debug, or a filter like \"info,store=debug\".
log = {log}

# The network: by name, or by its numbers. Peers of another cluster are not talked to.
{network}cluster = {cluster}
shards = {shards}
shards_in_cluster = {shards_in_cluster}
# Content topics that REST clients read from the start on; their shards are served too.
{content_topics}
# Where the relay waits for peers and clients, and where others reach it if elsewhere.
listen = {listen}
{announce}
# Relay peers to stay connected to; and with how many fewer connected light push is refused.
{peers}
# Proofs of a rate limit (RLN): servers of the chain, another contract than that of the network,
# and the operator's membership.
{rln}
# Whether the relay relays. If not, it is a client of other nodes, those named or connected ones.
relay = {relay}
{service_nodes}
# Whether messages are kept for store queries; whether the last hour of them is compared with peers,
# and what was missed is fetched from the store of another node.
store = {store}
store_sync = {store_sync}
store_resume = {store_resume}

# REST, metrics, health and the dashboard. No authentication: keep it on loopback.
http = \"{http}\"

# For secure WebSocket addresses (/wss).
{tls}
# A single limit is changed by its name, as `thimble-relay limits` prints it; the table is checked
# again with the change.
# [limits.filter]
# receivers = 500
{messages}",
        memory = value(&*config.memory),
        data = value(&*data.to_string_lossy()),
        log = value(&*config.log),
        cluster = config.cluster,
        shards = value(shards),
        shards_in_cluster = config.shards_in_cluster,
        listen = texts(&config.listen).unwrap_or_default(),
        relay = config.relay,
        store = config.store,
        store_sync = config.store_sync,
        store_resume = config.store_resume,
        http = config.http,
    )
}

/// The largest message where it is not that of the Waku network.
fn messages(config: &Config) -> String {
    let usual = Limits::derive(config.limits.memory_budget_bytes)
        .map_or(0, |limits| limits.messages.message_bytes);
    let bytes = config.limits.messages.message_bytes;
    if bytes == usual {
        return String::new();
    }
    format!("\n# The largest message of the network.\n[limits.messages]\nmessage_bytes = {bytes}\n")
}

fn unit(config: &Config) -> Unit<'static> {
    let limits = &config.limits;
    // Sockets, segments and indexes; twice as many for files being opened and closed.
    let segments = limits.store.retention_bytes / limits.store.segment_bytes.max(1);
    let descriptors = limits
        .connections
        .connections
        .saturating_add(limits.http.connections)
        .saturating_add(limits.store.index_connections.saturating_mul(3))
        .saturating_add(segments)
        .saturating_mul(2);
    Unit {
        description: "Thimble relay",
        memory_bytes: limits.memory_budget_bytes,
        descriptors: descriptors.max(DESCRIPTORS_MIN),
        stop: "# A clean stop finishes requests and closes the log.\nTimeoutStopSec=30\n",
        killed: "",
        needs: "# The relay needs its data folder and the network.\nMemoryDenyWriteExecute=yes\n",
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{cli::Settings, rln::rpc::RpcUrl};

    #[test]
    fn the_file_that_is_written_is_the_configuration_it_was_written_from() {
        let folder = tempfile::tempdir().unwrap();
        let data = fs::canonicalize(folder.path()).unwrap();
        let plain = Settings { data_dir: Some(data.clone()), ..Settings::default() };
        let stated = Settings {
            memory: Some("64MiB".into()),
            cluster: Some(16),
            shards: vec![1, 5],
            peers: vec!["/ip4/127.0.0.1/tcp/60001".parse().unwrap()],
            announce: vec!["/dns4/a.example.org/tcp/1".parse().unwrap()],
            min_relay_peers: Some(2),
            eth_rpc: vec![RpcUrl::from("https://rpc.example/a \"key\"".to_owned())],
            rln_contract: Some(format!("0x{}", "7".repeat(40))),
            rln_chain_id: Some(5),
            rln_keystore: Some("keystore.json".into()),
            rln_password_file: Some("password".into()),
            store: Some(false),
            relay: Some(false),
            storenode: Some(
                format!("/ip4/127.0.0.1/tcp/60002/p2p/{}", libp2p::PeerId::random())
                    .parse()
                    .unwrap(),
            ),
            tls_certificate: Some("a \"chain\".pem".into()),
            tls_key: Some("key.pem".into()),
            ..plain.clone()
        };
        let large = Settings {
            content_topics: vec!["/a/1/b/proto".into()],
            message_size: Some("1MiB".into()),
            ..plain.clone()
        };
        for settings in [plain, stated, large] {
            let config = Config::load(&settings).unwrap();
            run(&config, false).unwrap();
            run(&config, false).unwrap();
            let path = data.join("relay.toml");
            let file = Settings { config: Some(path.clone()), ..Settings::default() };
            assert_eq!(Config::load(&file).unwrap().to_toml().unwrap(), config.to_toml().unwrap());
            fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn the_unit_is_capped_at_the_budget() {
        let settings = Settings { memory: Some("64MiB".into()), ..Settings::default() };
        let config = Config::load(&settings).unwrap();
        let installation = setup::Installation {
            program: "/usr/bin/thimble-relay".into(),
            file: "/var/lib/relay/relay.toml".into(),
            data: "/var/lib/relay".into(),
            user: 1,
            group: 2,
        };
        let text = unit(&config).text(&installation).unwrap();
        for line in [
            "MemoryMax=67108864",
            "MemorySwapMax=0",
            "LimitNOFILE=65536",
            "ExecStart=/usr/bin/thimble-relay run --config /var/lib/relay/relay.toml",
            "ReadWritePaths=/var/lib/relay",
            "ProtectSystem=strict",
            "MemoryDenyWriteExecute=yes",
            "User=1",
        ] {
            assert!(text.lines().any(|have| have == line), "{line} in\n{text}");
        }
    }
}
