//! One configuration file, flags over it, defaults under it.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    str::FromStr,
};

use anyhow::{Context, Result, bail};
use ic_principal::Principal;
use ipnet::IpNet;
use limits::{Limits, LimitsError};
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use sha2::{Digest, Sha256};

use crate::{cli::Settings, disk_budget, genesis::check_peers, outcalls};

/// Where clients are served, if nothing else is stated.
const LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);
/// Where canisters are served to browsers, if nothing else is stated.
pub(crate) const HTTP_GATEWAY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8081);
/// Value that disables a listener.
const OFF: &str = "off";

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Config {
    pub(crate) memory: String,
    /// Disk budget of the node; none where it follows from the memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) disk: Option<String>,
    /// Whether the disk was stated by the operator, rather than found.
    #[serde(skip)]
    pub(crate) disk_is_stated: bool,
    pub(crate) listen: SocketAddr,
    /// Names under which operator pages are served.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) host_names: Vec<String>,
    /// Where nothing is stated, a node alone has one, if its address can be had.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) http_gateway: Option<HttpGateway>,
    pub(crate) data_dir: PathBuf,
    pub(crate) log: String,
    /// Whether allocations are sampled, for `thimble heap`.
    pub(crate) heap_profile: bool,
    pub(crate) p2p: P2p,
    pub(crate) features: Features,
    pub(crate) outcalls: OutcallSettings,
    pub(crate) limits: Limits,
}

/// Whether canisters are served to browsers, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) enum HttpGateway {
    Off,
    At(SocketAddr),
}

impl FromStr for HttpGateway {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == OFF {
            return Ok(Self::Off);
        }
        let no_address = |error| format!("`{text}` is neither ADDRESS:PORT nor `{OFF}`: {error}");
        setup::socket_address(text).map(Self::At).map_err(no_address)
    }
}

impl TryFrom<String> for HttpGateway {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<HttpGateway> for String {
    fn from(gateway: HttpGateway) -> Self {
        match gateway {
            HttpGateway::Off => OFF.to_owned(),
            HttpGateway::At(address) => address.to_string(),
        }
    }
}

/// Features of the subnet. All members must offer the same: the result of a batch would differ
/// otherwise.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Features {
    /// Enables the provisional methods (`provisional_*` of the management canister), which create
    /// canisters and mint cycles. Unset: see [`Self::provisional`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) provisional: Option<bool>,
    /// Whether canisters may ask servers outside (`http_request` of the management canister).
    #[serde(default)]
    pub(crate) outcalls: bool,
    /// Who may list, stop, start, uninstall and delete any canister and make canisters by ingress
    /// messages (interface specification, subnet admins). Where there are any, canisters are made
    /// free of charge.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) subnet_admins: Vec<Principal>,
}

/// How this node makes requests of canisters, where `features.outcalls` is on. Each node has its
/// own.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OutcallSettings {
    /// Plain HTTP too, which anybody on the way can read and change: for development.
    #[serde(default)]
    pub(crate) allow_http: bool,
    /// Networks that canisters may reach although they are not public, as `10.1.0.0/16`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) allow_networks: Vec<IpNet>,
    /// A PEM file of authorities that servers' certificates may come from, in addition to those
    /// built in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) extra_roots: Option<PathBuf>,
}

impl OutcallSettings {
    pub(crate) fn allowed(&self) -> Result<::outcalls::AccessPolicy> {
        let roots = match &self.extra_roots {
            Some(path) => {
                let named = || format!("outcalls.extra_roots names {}", path.display());
                let pem = setup::read_input(path).with_context(named)?;
                ::outcalls::certificates(&pem).map_err(anyhow::Error::msg).with_context(named)?
            }
            None => vec![],
        };
        let networks = self.allow_networks.clone();
        Ok(::outcalls::AccessPolicy {
            http: self.allow_http,
            networks,
            roots,
            setting: "allow_networks under [outcalls] of the configuration file",
            // Members agree on the text that a canister gets.
            advice: "",
        })
    }
}

const SUBNET_ADMINS_MAX: usize = 100;

impl Features {
    /// Whether `provisional_*` are on. Where nothing is set: on for a node that is alone in its
    /// subnet, and off where `several` agree.
    pub(crate) fn provisional(&self, several: bool) -> bool {
        self.provisional.unwrap_or(!several)
    }

    /// The same with everything set.
    pub(crate) fn settled(&self, several: bool) -> Self {
        Self { provisional: Some(self.provisional(several)), ..self.clone() }
    }

    /// As a number that members can compare: 0 where there are none.
    fn subnet_admins_digest(&self) -> u64 {
        if self.subnet_admins.is_empty() {
            return 0;
        }
        let admins: BTreeSet<&Principal> = self.subnet_admins.iter().collect();
        let mut digest = Sha256::new();
        for admin in admins {
            digest.update([admin.as_slice().len() as u8]);
            digest.update(admin.as_slice());
        }
        digest.finalize().first_chunk::<8>().map_or(0, |bytes| u64::from_be_bytes(*bytes))
    }
}

/// How nodes of a subnet reach each other.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct P2p {
    /// Where this node waits for its peers.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "address")]
    pub(crate) listen: Option<SocketAddr>,
    /// By node id, HOST:PORT: peers that are reached elsewhere than the genesis says.
    #[serde(default)]
    pub(crate) peers: BTreeMap<String, String>,
}

/// An address with a port; the name of a host is resolved.
fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SocketAddr>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    text.map(|text| setup::socket_address(&text).map_err(D::Error::custom)).transpose()
}

/// The file: every key optional, unknown keys refused.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    memory: Option<String>,
    preset: Option<String>,
    disk: Option<String>,
    #[serde(default, deserialize_with = "address")]
    listen: Option<SocketAddr>,
    host_names: Option<Vec<String>>,
    http_gateway: Option<HttpGateway>,
    data_dir: Option<PathBuf>,
    log: Option<String>,
    heap_profile: Option<bool>,
    #[serde(default)]
    p2p: P2p,
    #[serde(default)]
    features: Features,
    #[serde(default)]
    outcalls: OutcallSettings,
    /// Single limits changed: `[limits.gateway] connections = 100`.
    #[serde(default)]
    limits: toml::Table,
}

impl File {
    /// The file at this path; an empty one where none is named.
    fn read(path: Option<&Path>) -> Result<Self> {
        let Some(path) = path else { return Ok(Self::default()) };
        let named = || format!("reading the configuration file {}", path.display());
        let text = setup::read_text(path).with_context(named)?;
        toml::from_str(&text)
            .with_context(|| format!("in the configuration file {}", path.display()))
    }
}

/// An error about a budget, with what may be wrong about the size that was stated for it.
fn too_small(error: LimitsError, stated: Option<&str>) -> anyhow::Error {
    match stated.and_then(accounting::missing_unit) {
        Some(hint) => anyhow::anyhow!("{error}; {hint}"),
        None => error.into(),
    }
}

/// Checks that the limits fit each other, the memory, and the disk, of which `disk` was stated;
/// `stating` is the file that states limits.
fn check_limits(limits: &Limits, disk: Option<(u64, &str)>, stating: Option<&Path>) -> Result<()> {
    let checked = limits.check_disk().map_err(|error| match (error, disk) {
        // The table rounds what was stated.
        (LimitsError::DiskTooSmall { beside_bytes, smallest_bytes, .. }, Some((bytes, text))) => {
            let disk_bytes = bytes;
            let error = LimitsError::DiskTooSmall { disk_bytes, beside_bytes, smallest_bytes };
            too_small(error, Some(text))
        }
        (error, _) => error.into(),
    });
    let checked = checked.and_then(|()| Ok(limits.check()?));
    let Some(file) = stating else { return checked };
    checked.with_context(|| {
        format!("{} states limits, which do not follow --memory and --disk", file.display())
    })
}

/// Where a node with this configuration file, or with none, serves clients.
pub(crate) fn listen_address(path: Option<&Path>) -> Result<SocketAddr> {
    Ok(File::read(path)?.listen.unwrap_or(LISTEN))
}

impl Config {
    /// Reads the file if one is named, lays the flags over it, derives all limits and checks that
    /// they add up.
    pub(crate) fn load(settings: &Settings) -> Result<Self> {
        let file = File::read(settings.config.as_deref())?;
        // A size given on the command line overrides a preset in the file, and the other way round.
        let (memory, preset) = match (&settings.memory, &settings.preset) {
            (None, None) => (file.memory, file.preset),
            (memory, preset) => (memory.clone(), preset.clone()),
        };
        let mut limits = match (memory, preset) {
            (Some(_), Some(_)) => anyhow::bail!("state either memory or preset, not both"),
            (Some(size), None) => Limits::derive(accounting::parse_size(&size)?)
                .map_err(|error| too_small(error, Some(&size)))?,
            (None, Some(name)) => Limits::preset(&name)?,
            (None, None) => Limits::preset("nano")?,
        };
        let data_dir =
            settings.data_dir.clone().or(file.data_dir).unwrap_or_else(|| "thimble-data".into());
        let stated = settings.disk.clone().or(file.disk);
        let overrides = serde_json::to_value(&file.limits)?;
        let disk = match &stated {
            Some(size) => Some(accounting::parse_size(size)?),
            None => {
                let mut own = limits.clone();
                own.apply_overrides(&overrides)?;
                disk_budget::found(&data_dir, &own)?
            }
        };
        if let Some(bytes) = disk {
            limits.set_disk(bytes, disk_budget::states(&data_dir)?);
        }
        limits.apply_overrides(&overrides)?;
        let stating = settings.config.as_deref().filter(|_| !file.limits.is_empty());
        check_limits(&limits, disk.zip(stated.as_deref()), stating)?;
        let mut p2p = file.p2p;
        p2p.listen = settings.p2p_listen.or(p2p.listen);
        p2p.peers.extend(settings.p2p_peers.iter().cloned());
        check_peers(p2p.peers.iter())?;
        let admins = file.features.subnet_admins.len();
        if admins > SUBNET_ADMINS_MAX {
            bail!(
                "features.subnet_admins names {admins} principals, the most is {SUBNET_ADMINS_MAX}"
            );
        }
        let host_names = match settings.host_names.is_empty() {
            true => file.host_names.unwrap_or_default(),
            false => settings.host_names.clone(),
        };
        http_server::origin::check_names(&host_names).map_err(anyhow::Error::msg)?;
        let config = Self {
            memory: accounting::format_size(limits.memory_budget_bytes),
            disk: disk.map(|_| accounting::format_size(limits.disk_budget_bytes)),
            disk_is_stated: stated.is_some(),
            listen: settings.listen.or(file.listen).unwrap_or(LISTEN),
            host_names,
            http_gateway: settings.http_gateway.or(file.http_gateway),
            data_dir,
            log: settings.log.clone().or(file.log).unwrap_or_else(|| "info".into()),
            heap_profile: settings.heap_profile.or(file.heap_profile).unwrap_or(false),
            p2p,
            features: Features {
                provisional: settings.provisional.or(file.features.provisional),
                outcalls: settings.outcalls.unwrap_or(file.features.outcalls),
                ..file.features
            },
            outcalls: file.outcalls,
            limits,
        };
        outcalls::check_memory(&config)?;
        Ok(config)
    }

    /// Why queries that wait may be refused although workers become free.
    pub(crate) fn query_wait_warning(&self) -> Option<String> {
        let execution = &self.limits.execution;
        let (wait, wall_clock) = (execution.query_wait_seconds, execution.query_wall_clock_seconds);
        (wait <= wall_clock).then(|| {
            format!(
                "execution.query_wait_seconds = {wait} is not above \
                 execution.query_wall_clock_seconds = {wall_clock}: queries that wait for a worker \
                 may be refused before one query before them was ended"
            )
        })
    }

    /// Settings that all members of a subnet must share, by name: the result of a batch depends on
    /// them. The features must be settled.
    pub(crate) fn agreed(&self) -> Result<Vec<(String, u64)>> {
        let provisional = self.features.provisional.unwrap_or_default();
        let mut agreed = self.limits.agreed();
        agreed.push(("features.provisional".to_owned(), u64::from(provisional)));
        agreed.push(("features.outcalls".to_owned(), u64::from(self.features.outcalls)));
        let admins = self.features.subnet_admins_digest();
        agreed.push(("features.subnet_admins".to_owned(), admins));
        agreed.push(("execution.rules".to_owned(), u64::from(execution::RULES_VERSION)));
        agreed.extend(sandbox::engine::agreed()?);
        agreed.sort();
        Ok(agreed)
    }

    pub(crate) fn to_toml(&self) -> Result<String> {
        let mut value = serde_json::to_value(self)?;
        // The budgets are at the top already, in the form a person writes.
        if let Some(limits) = value.get_mut("limits").and_then(|limits| limits.as_object_mut()) {
            limits.remove("memory_budget_bytes");
            limits.remove("disk_budget_bytes");
            // Follows from the data folder: whether the node is one of several.
            if let Some(pages) = limits.get_mut("pages").and_then(|pages| pages.as_object_mut()) {
                pages.remove("states_on_disk");
            }
        }
        let mut text = toml::to_string_pretty(&value)?;
        if self.features.provisional.is_none() {
            text.push_str(
                "\n# features.provisional is not set: true for a node alone, false in a subnet of several.\n",
            );
        }
        Ok(text)
    }

    pub(crate) fn to_json(&self) -> Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;

    use super::*;

    fn load(text: &str, settings: Settings) -> Result<Config> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("thimble.toml");
        fs::write(&path, text).unwrap();
        Config::load(&Settings { config: Some(path), ..settings })
    }

    #[test]
    fn flags_stand_above_the_file_and_the_file_above_defaults() {
        let config = load(
            "memory = \"256MiB\"\nlog = \"warn\"\n[limits.gateway]\nconnections = 77\n",
            Settings { log: Some("debug".into()), ..Settings::default() },
        )
        .unwrap();
        assert_eq!(config.limits.memory_budget_bytes, 256 << 20);
        assert_eq!(config.limits.gateway.connections, 77);
        assert_eq!(config.log, "debug");
        assert_eq!(config.listen.port(), 8080);
        let bigger = load(
            "preset = \"micro\"\n",
            Settings { memory: Some("1GiB".into()), ..Settings::default() },
        )
        .unwrap();
        assert_eq!(bigger.limits.memory_budget_bytes, 1 << 30);
    }

    #[test]
    fn what_config_prints_is_a_configuration_file_that_gives_the_same() {
        let first = Config::load(&Settings::default()).unwrap();
        let again = load(&first.to_toml().unwrap(), Settings::default()).unwrap();
        assert_eq!(first.limits, again.limits);
        assert_eq!(first.to_toml().unwrap(), again.to_toml().unwrap());
    }

    // Promise: P15 - The configuration of a node is a regular file of at most 1 MiB.
    #[test]
    fn configuration_that_is_not_a_small_regular_file_is_refused() {
        let zero = Settings { config: Some("/dev/zero".into()), ..Settings::default() };
        let error = format!("{:#}", Config::load(&zero).unwrap_err());
        assert!(error.contains("/dev/zero is not a regular file"), "{error}");
        let error = load(&" ".repeat((1 << 20) + 1), Settings::default()).unwrap_err();
        let error = format!("{error:#}");
        assert!(error.contains("thimble.toml is larger than 1 MiB"), "{error}");
    }

    #[test]
    fn host_names_are_bounded_names_without_port() {
        let text = "host_names = [\"thimble\", \"ops.example.org\"]\n";
        let file = load(text, Settings::default()).unwrap();
        assert_eq!(file.host_names, ["thimble", "ops.example.org"]);
        let again = load(&file.to_toml().unwrap(), Settings::default()).unwrap();
        assert_eq!(again.host_names, file.host_names);
        let host_names = vec!["other".to_owned()];
        let flag = load(text, Settings { host_names, ..Settings::default() }).unwrap();
        assert_eq!(flag.host_names, ["other"]);
        for wrong in ["thimble:8080", "http://thimble", "*", ""] {
            let error = load(&format!("host_names = [\"{wrong}\"]\n"), Settings::default());
            assert!(format!("{:#}", error.unwrap_err()).contains("host_names"), "{wrong}");
        }
    }

    #[test]
    fn the_http_gateway_is_at_an_address_off_or_left_to_the_node() {
        let unset = load("", Settings::default()).unwrap();
        assert_eq!(unset.http_gateway, None);
        for (text, expected) in [
            ("off", HttpGateway::Off),
            ("127.0.0.1:9091", HttpGateway::At("127.0.0.1:9091".parse().unwrap())),
            ("[::1]:0", HttpGateway::At("[::1]:0".parse().unwrap())),
        ] {
            let file = format!("http_gateway = \"{text}\"\n");
            let set = load(&file, Settings::default()).unwrap();
            assert_eq!(set.http_gateway, Some(expected));
            assert!(set.to_toml().unwrap().contains(&file), "{}", set.to_toml().unwrap());
            let flag = Settings { http_gateway: Some(HttpGateway::Off), ..Settings::default() };
            assert_eq!(load(&file, flag).unwrap().http_gateway, Some(HttpGateway::Off));
        }
        let wrong = load("http_gateway = \"8081\"\n", Settings::default()).unwrap_err();
        assert!(format!("{wrong:#}").contains("neither ADDRESS:PORT nor `off`"), "{wrong:#}");
    }

    #[test]
    fn the_disk_is_stated_recorded_or_found() {
        let folder = tempfile::tempdir().unwrap();
        let data_dir = Some(folder.path().join("data"));
        let found = load("", Settings { data_dir: data_dir.clone(), ..Settings::default() });
        let found = found.unwrap();
        assert!(found.limits.disk_budget_bytes > 0 && !found.disk_is_stated);
        assert!(found.to_toml().unwrap().contains("\ndisk = "));
        let text = "disk = \"20GiB\"\n";
        let file = load(text, Settings { data_dir, ..Settings::default() }).unwrap();
        assert_eq!(file.limits.disk_budget_bytes, 20 << 30);
        assert!(file.limits.subnet.memory_capacity_bytes > 11 << 30);
        let flag = Settings { disk: Some("100GiB".into()), ..Settings::default() };
        let flag = load(text, flag).unwrap();
        assert_eq!((flag.limits.disk_budget_bytes, flag.disk_is_stated), (100 << 30, true));
        let own = "disk = \"20GiB\"\n[limits.subnet]\nmemory_capacity_bytes = \"1GiB\"\n";
        let own = load(own, Settings::default()).unwrap();
        assert_eq!(own.limits.subnet.memory_capacity_bytes, 1 << 30);
        let small = Settings { disk: Some("512MiB".into()), ..Settings::default() };
        let small = load("", small).unwrap_err().to_string();
        assert!(small.contains("512 MiB of disk is too little"), "{small}");
    }

    #[test]
    fn size_without_unit_is_refused_as_it_was_stated() {
        for (settings, what) in [
            (Settings { disk: Some("100".into()), ..Settings::default() }, "100 B of disk"),
            (Settings { memory: Some("100".into()), ..Settings::default() }, "100 B of memory"),
        ] {
            let error = format!("{:#}", load("", settings).unwrap_err());
            assert!(error.contains(&format!("{what} is too little")), "{error}");
            assert!(error.contains("`100` has no unit"), "{error}");
        }
    }

    #[test]
    fn limits_of_a_file_are_named_where_a_budget_does_not_fit_them() {
        let text = Config::load(&Settings::default()).unwrap().to_toml().unwrap();
        let smaller = Settings { memory: Some("256MiB".into()), ..Settings::default() };
        let error = format!("{:#}", load(&text, smaller).unwrap_err());
        assert!(error.contains("thimble.toml states limits"), "{error}");
        let small = Settings { disk: Some("512MiB".into()), ..Settings::default() };
        let error = format!("{:#}", load("", small).unwrap_err());
        assert!(!error.contains("states limits"), "{error}");
    }

    #[test]
    fn outcalls_without_memory_are_refused_by_every_command() {
        let settings = |memory: &str| Settings {
            memory: Some(memory.into()),
            outcalls: Some(true),
            ..Settings::default()
        };
        for memory in ["256MiB", "511MiB"] {
            let error = Config::load(&settings(memory)).unwrap_err().to_string();
            assert!(error.contains("needs 512 MiB") && error.contains("outcalls.bytes"), "{error}");
        }
        Config::load(&settings("512MiB")).unwrap();
    }

    #[test]
    fn wait_for_a_query_worker_is_longer_than_a_query() {
        let warning = |limits: &str| {
            let text = format!("[limits.execution]\n{limits}\n");
            load(&text, Settings::default()).unwrap().query_wait_warning()
        };
        assert_eq!(warning(""), None);
        assert_eq!(warning("query_wall_clock_seconds = 30\nquery_wait_seconds = 31"), None);
        let text = warning("query_wall_clock_seconds = 30").unwrap();
        assert!(text.contains("query_wait_seconds = 15"), "{text}");
    }

    // Promise: P8 - Features that change execution are settings that members compare.
    #[test]
    fn features_are_settings_with_a_default_of_their_own() {
        let unset = Config::load(&Settings::default()).unwrap();
        assert!(unset.features.provisional(false) && !unset.features.provisional(true));
        assert!(unset.to_toml().unwrap().contains("features.provisional is not set"));
        let text = "[features]\nprovisional = true\n";
        let set = load(text, Settings::default()).unwrap();
        assert!(set.features.provisional(true));
        assert!(set.agreed().unwrap().contains(&("features.provisional".to_owned(), 1)));
        // Members whose programs execute differently learn it when they meet.
        let rules = ("execution.rules".to_owned(), u64::from(execution::RULES_VERSION));
        assert!(set.agreed().unwrap().contains(&rules));
        assert_eq!(unset.features.settled(true).provisional, Some(false));
        let shown = set.to_toml().unwrap();
        assert!(shown.contains("[features]\noutcalls = false\nprovisional = true\n"), "{shown}");
        let flag =
            load(text, Settings { provisional: Some(false), ..Settings::default() }).unwrap();
        assert!(!flag.features.provisional(false));
        let unknown = load("[features]\nprovisonal = true\n", Settings::default()).unwrap_err();
        assert!(format!("{unknown:#}").contains("provisonal"), "{unknown:#}");
    }

    #[test]
    fn members_have_the_same_admins_in_any_order() {
        let admins = |list: &str| {
            let text = format!("[features]\nsubnet_admins = [{list}]\n");
            let config = load(&text, Settings::default()).unwrap();
            let again = load(&config.to_toml().unwrap(), Settings::default()).unwrap();
            assert_eq!(again.features.subnet_admins, config.features.subnet_admins);
            let name = "features.subnet_admins";
            config.agreed().unwrap().into_iter().find(|(agreed, _)| agreed == name).unwrap().1
        };
        let one = "\"rwlgt-iiaaa-aaaaa-aaaaa-cai\"";
        let other = "\"ryjl3-tyaaa-aaaaa-aaaba-cai\"";
        assert_eq!(admins(""), 0);
        assert_eq!(admins(&format!("{one}, {other}")), admins(&format!("{other}, {one}, {one}")));
        assert_ne!(admins(one), admins(other));
        let crowd = vec![one; 101].join(", ");
        let text = format!("[features]\nsubnet_admins = [{crowd}]\n");
        let refused = load(&text, Settings::default()).unwrap_err();
        assert!(format!("{refused:#}").contains("the most is 100"), "{refused:#}");
    }

    #[test]
    fn peers_of_flags_stand_above_those_of_the_file() {
        let (one, two) = ("aaaaa-aa", "2vxsx-fae");
        let text = format!(
            "[p2p]\nlisten = \"0.0.0.0:4000\"\n[p2p.peers]\n{one} = \"h:1\"\n{two} = \"h:2\"\n"
        );
        let flags = vec![(two.to_owned(), "h:3".to_owned())];
        let config = load(&text, Settings { p2p_peers: flags, ..Settings::default() }).unwrap();
        assert_eq!(config.p2p.listen, Some(SocketAddr::from(([0, 0, 0, 0], 4000))));
        assert_eq!((&config.p2p.peers[one][..], &config.p2p.peers[two][..]), ("h:1", "h:3"));
        assert_eq!(
            load(&config.to_toml().unwrap(), Settings::default()).unwrap().p2p.peers,
            config.p2p.peers
        );
        for (flag, words) in [(("x", "h:1"), "`x` is no node id"), ((one, "h"), "has no port")] {
            let p2p_peers = vec![(flag.0.to_owned(), flag.1.to_owned())];
            let error = Config::load(&Settings { p2p_peers, ..Settings::default() }).unwrap_err();
            assert!(format!("{error:#}").contains(words), "{error:#}");
        }
    }

    #[test]
    fn invalid_settings_are_refused_with_their_name() {
        let unknown = load("memroy = \"1GiB\"\n", Settings::default()).unwrap_err();
        assert!(format!("{unknown:#}").contains("memroy"), "{unknown:#}");
        let limit = load("[limits.gateway]\nconections = 1\n", Settings::default()).unwrap_err();
        assert!(format!("{limit:#}").contains("connections"), "{limit:#}");
        let small = load("memory = \"64MiB\"\n", Settings::default()).unwrap_err();
        assert!(format!("{small:#}").contains("64 MiB"), "{small:#}");
    }
}
