//! The boundary between the server and its machine: which requests are served, and which folders,
//! networks and addresses a client may have an instance use.
//!
//! The server listens on the machine of a developer, who also visits web pages there. A browser
//! sends requests of any page to any address, so the operations of the protocol are closed to
//! pages: a foreign `Host` or `Origin` header is refused ([`http_server::origin`]), as is a request
//! that the browser marks as sent for another site (`Sec-Fetch-Site`). No answer of an operation
//! has a CORS header, and a body must be declared as JSON, which a page cannot do without asking
//! first.
//!
//! The endpoints of the interface specification (`/instances/<n>/api/`) are open to every page, as
//! on the public network: agents in browsers need that. A page can therefore call canisters of an
//! instance, and install its own where the instance makes progress by itself; so requests of live
//! instances reach public addresses only.

use std::{
    net::{IpAddr, SocketAddr},
    path::{Component, Path, PathBuf},
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::{Context, Result, bail, ensure};
use http_server::origin::{OriginError, OriginHeaders, check_origin};
use hyper::{Request, StatusCode};
use outcalls::AccessPolicy;

use crate::{cli::Cli, operations::Failure};

/// Environment variables with the values of the options of the same name.
const ALLOW_HOST: &str = "THIMBLE_POCKET_ALLOW_HOST";
const ALLOW_NETWORK: &str = "THIMBLE_POCKET_ALLOW_NETWORK";
const ALLOW_REMOTE_GATEWAYS: &str = "THIMBLE_POCKET_ALLOW_REMOTE_GATEWAYS";
const STATE_DIR_ROOT: &str = "THIMBLE_POCKET_STATE_DIR_ROOT";

pub(crate) struct Access {
    /// Names of the server in addition to `localhost`.
    hosts: Vec<String>,
    /// Address of the server, once it listens.
    listen: OnceLock<SocketAddr>,
    has_refused: AtomicBool,
    remote_gateways: bool,
    networks: Vec<String>,
    pub(crate) folders: Folders,
}

impl Access {
    /// From the command line and the environment.
    pub(crate) fn new(cli: &Cli) -> Result<Self> {
        let hosts = or_list(&cli.allow_host, ALLOW_HOST);
        if let Some(host) = hosts.iter().find(|host| host.contains([':', '/', '*'])) {
            bail!("--allow-host {host}: expected a name without scheme and port");
        }
        let remote_gateways = cli.allow_remote_gateways || is_set(ALLOW_REMOTE_GATEWAYS)?;
        let access = Self {
            hosts,
            listen: OnceLock::new(),
            has_refused: AtomicBool::new(false),
            remote_gateways,
            networks: or_list(&cli.allow_network, ALLOW_NETWORK),
            folders: Folders::new(cli)?,
        };
        access.outcalls()?;
        Ok(access)
    }

    pub(crate) fn set_listen(&self, address: SocketAddr) {
        // Set once, at the start.
        let _ = self.listen.set(address);
    }

    /// Networks that live instances may connect to.
    pub(crate) fn outcalls(&self) -> Result<AccessPolicy> {
        let parse = |text: &String| {
            let network = text.parse();
            network.with_context(|| {
                format!("--allow-network {text}: expected a network such as 127.0.0.0/8")
            })
        };
        let networks = self.networks.iter().map(parse).collect::<Result<_>>()?;
        Ok(AccessPolicy {
            http: true,
            networks,
            roots: vec![],
            setting: "--allow-network or THIMBLE_POCKET_ALLOW_NETWORK",
            advice: "; start the server with --allow-network NETWORK or \
                     THIMBLE_POCKET_ALLOW_NETWORK=NETWORK to allow it",
        })
    }

    /// Checks the address that an HTTP gateway is to listen at.
    pub(crate) fn check_gateway(&self, address: IpAddr) -> Result<()> {
        ensure!(
            self.remote_gateways || address.is_loopback(),
            "an HTTP gateway at {address} can be reached by other machines; start the server with \
             --allow-remote-gateways or {ALLOW_REMOTE_GATEWAYS}=1 to allow that"
        );
        Ok(())
    }

    /// Checks that a request does not come from another web page. Endpoints of the interface
    /// specification (`is_public`) are open to all pages, at the server's own names.
    pub(crate) fn check<B>(&self, request: &Request<B>, is_public: bool) -> Result<(), Failure> {
        let mut sent = OriginHeaders::with_links(request);
        if is_public {
            (sent.origin, sent.site) = (None, None);
        }
        let unknown = SocketAddr::from(([127, 0, 0, 1], 0));
        let listen = *self.listen.get().unwrap_or(&unknown);
        check_origin(sent, listen, &self.hosts, false).map_err(|error| self.refused(&error))
    }

    /// The log shows the first refusal: a page may send many requests.
    fn refused(&self, error: &OriginError) -> Failure {
        let reason = error.reason();
        let option = format!("--allow-host NAME or {ALLOW_HOST}");
        let message = error.message("this server", &option);
        if self.has_refused.swap(true, Ordering::Relaxed) {
            tracing::debug!(reason, "a request of another web page was refused");
        } else {
            tracing::warn!(reason, "requests of another web page are refused: {message}");
        }
        Failure { status: StatusCode::FORBIDDEN, message }
    }
}

fn or_list(given: &[String], variable: &str) -> Vec<String> {
    if !given.is_empty() {
        return given.to_vec();
    }
    let text = std::env::var(variable).unwrap_or_default();
    text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(Into::into).collect()
}

fn is_set(variable: &str) -> Result<bool> {
    match std::env::var(variable).as_deref() {
        Err(_) | Ok("" | "0" | "false") => Ok(false),
        Ok("1" | "true") => Ok(true),
        Ok(other) => bail!("{variable}={other}: expected 1 or 0"),
    }
}

/// Folders below which clients may keep instances.
pub(crate) struct Folders {
    /// Without symbolic links.
    roots: Vec<PathBuf>,
    /// The working directory at the start: clients name folders relative to it.
    current: PathBuf,
}

impl Folders {
    fn new(cli: &Cli) -> Result<Self> {
        let current = std::env::current_dir().context("finding the working directory")?;
        let variable = std::env::var_os(STATE_DIR_ROOT).unwrap_or_default();
        let named: Vec<_> = if cli.state_dir_root.is_empty() {
            std::env::split_paths(&variable).filter(|path| !path.as_os_str().is_empty()).collect()
        } else {
            cli.state_dir_root.clone()
        };
        let mut roots = Vec::new();
        for root in &named {
            let root = current.join(root);
            let real = root.canonicalize();
            roots.push(real.with_context(|| format!("--state-dir-root {}", root.display()))?);
        }
        if named.is_empty() {
            roots = default_roots(&current, &cli.parent_folder());
        }
        Ok(Self { roots, current })
    }

    #[cfg(test)]
    fn for_root(root: &Path) -> Self {
        let root = root.canonicalize().unwrap_or_else(|_| root.to_owned());
        Self { roots: vec![root.clone()], current: root }
    }

    /// The folder that a client named, without symbolic links. It may be missing.
    pub(crate) fn admit(&self, path: &Path) -> Result<PathBuf> {
        let admitted =
            self.resolve(path).with_context(|| format!("state_dir {}", path.display()))?;
        if self.roots.iter().any(|root| admitted.starts_with(root)) {
            return Ok(admitted);
        }
        let roots: Vec<_> = self.roots.iter().map(|root| root.display().to_string()).collect();
        bail!(
            "state_dir {} is outside the folders in which instances may be kept ({}); start the \
             server with --state-dir-root DIR (repeatable) or {STATE_DIR_ROOT}=DIR to allow DIR \
             instead of them",
            admitted.display(),
            roots.join(", ")
        )
    }

    /// Resolves links in the part of a path that exists.
    fn resolve(&self, path: &Path) -> Result<PathBuf> {
        let path = self.current.join(path);
        let mut existing = path.as_path();
        let real = loop {
            if let Some(real) = disk::if_there(existing.canonicalize())? {
                break real;
            }
            existing = existing.parent().context("no part of the path exists")?;
        };
        let missing = path.strip_prefix(existing)?;
        let is_plain = missing.components().all(|part| matches!(part, Component::Normal(_)));
        ensure!(is_plain, "the part of the path that does not exist has `..`");
        Ok(if missing.as_os_str().is_empty() { real } else { real.join(missing) })
    }
}

/// Where the published clients' users keep instances: the project, temporary folders, the home
/// folder. Clients start the server with fixed arguments, so this must do without an option.
fn default_roots(current: &Path, parent: &Path) -> Vec<PathBuf> {
    let repository = current.ancestors().find(|folder| folder.join(".git").exists());
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let candidates = [
        Some(current.to_owned()),
        repository.map(Path::to_owned),
        Some(std::env::temp_dir()),
        // States that could not be packed are left there.
        Some(parent.to_owned()),
        home,
    ];
    let mut roots: Vec<PathBuf> = candidates
        .into_iter()
        .flatten()
        .filter(|folder| folder.is_absolute())
        .filter_map(|folder| folder.canonicalize().ok())
        // A service without a folder of its own works in the root folder.
        .filter(|folder| folder.parent().is_some())
        .collect();
    roots.sort();
    roots.dedup();
    roots
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::symlink;

    use super::*;

    // Promise: P16 - Folders outside the allowed roots are refused, links resolved.
    #[test]
    fn folders_outside_the_roots_are_refused_however_they_are_named() {
        let [root, outside] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let folders = Folders::for_root(root.path());
        let [real, foreign] = [&root, &outside].map(|folder| folder.path().canonicalize().unwrap());
        std::fs::create_dir(real.join("inner")).unwrap();
        symlink(&foreign, real.join("out")).unwrap();
        symlink(real.join("inner"), real.join("in")).unwrap();
        symlink(foreign.join("missing"), real.join("dangling")).unwrap();
        for (named, admitted) in [
            ("", ""),
            (".", ""),
            ("inner", "inner"),
            ("in/new", "inner/new"),
            ("new/deep/er", "new/deep/er"),
            ("inner/../inner/x", "inner/x"),
        ] {
            let expected = if admitted.is_empty() { real.clone() } else { real.join(admitted) };
            assert_eq!(folders.admit(Path::new(named)).unwrap(), expected, "{named}");
            assert_eq!(folders.admit(&real.join(named)).unwrap(), expected, "{named}");
        }
        for named in ["..", "out", "out/new", "../other", "in/../../x", "/", "/etc/thimble"] {
            let error = format!("{:#}", folders.admit(Path::new(named)).unwrap_err());
            assert!(error.contains("--state-dir-root DIR"), "{named}: {error}");
            assert!(error.contains("to allow DIR instead of them"), "{named}: {error}");
        }
        assert!(folders.admit(&foreign).is_err());
        assert!(folders.admit(Path::new("new/../../x")).is_err());
        // Making the folder fails where the link leads nowhere.
        let dangling = folders.admit(Path::new("dangling")).unwrap();
        assert!(std::fs::create_dir_all(dangling).is_err());
        assert_eq!(std::fs::read_dir(foreign).unwrap().count(), 0);
    }
}
