//! The command line: the options that PocketIC's clients pass, and those of this server.

use std::{io::Write as _, net::IpAddr, path::PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

/// Environment variable with the major version of the clients that the server is for.
const CLIENT: &str = "THIMBLE_POCKET_CLIENT";
/// Versions of the server that `--version` reports, by the major version of `pocket-ic` (Rust) that
/// takes them: a client refuses servers of another major version. The others do not ask.
const VERSIONS: [(u16, &str); 4] = [(13, "13.0.0"), (14, "14.0.0"), (15, "15.0.0"), (16, "16.1.0")];
const LATEST: u16 = 16;

/// Major version of the clients, which decides what they can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Client(u16);

impl Client {
    /// By the environment variable: clients start the server, and pass it theirs.
    fn from_variable(value: Option<&str>) -> Result<Self> {
        let Some(value) = value.filter(|value| !value.is_empty()) else { return Ok(Self(LATEST)) };
        let known = VERSIONS.iter().find(|(major, _)| value.parse() == Ok(*major));
        let majors = VERSIONS.map(|(major, _)| major.to_string()).join(", ");
        let known = known.with_context(|| format!("{CLIENT}={value}: expected one of {majors}"))?;
        Ok(Self(known.0))
    }

    #[cfg(test)]
    pub(crate) fn from_major(major: u16) -> Self {
        Self(major)
    }

    /// Whether the client has names for the error codes 211 and 542.
    pub(crate) fn knows_codes_of_16(self) -> bool {
        self.0 >= 16
    }

    /// The version of the server that it takes.
    fn server_version(self) -> &'static str {
        VERSIONS.iter().find(|(major, _)| *major == self.0).map_or("0.0.0", |(_, version)| *version)
    }
}

impl Default for Client {
    fn default() -> Self {
        Self(LATEST)
    }
}

/// Serves instances of the Internet Computer to tests. Clients of PocketIC start this program when
/// the environment variable POCKET_IC_BIN names it.
///
/// THIMBLE_POCKET_CLIENT=15 (or 14, 13) serves the Rust client of that major version.
#[derive(Clone, Debug, Parser)]
#[command(name = "pocket-ic-server")]
pub(crate) struct Cli {
    /// Address or host name to listen at.
    #[arg(long, short, default_value = "127.0.0.1", value_parser = setup::ip_address)]
    pub(crate) ip_addr: IpAddr,
    /// Port to listen at; 0 takes a free one.
    #[arg(long, short, default_value_t = 0)]
    pub(crate) port: u16,
    /// File that the port is written to. If another server has written it and runs, this one ends
    /// at once.
    #[arg(long)]
    pub(crate) port_file: Option<PathBuf>,
    /// Seconds without a request after which the server ends.
    #[arg(long, default_value_t = 60)]
    pub(crate) ttl: u64,
    /// Seconds after which the server ends whatever it does. There is no limit unless this is
    /// given.
    #[arg(long)]
    pub(crate) hard_ttl: Option<u64>,
    /// Which lines of the log are written, such as info or warn,execution=debug.
    #[arg(long, short, default_value = "warn")]
    pub(crate) log_levels: String,
    /// Memory that the server, its instances and their workers may take together; 1GiB unless this
    /// or the environment variable THIMBLE_POCKET_MEMORY says otherwise.
    #[arg(long)]
    pub(crate) memory: Option<String>,
    /// Folder below which a temporary one is made for the states of instances, blobs and compiled
    /// modules; the system's folder for temporary files unless this or the environment variable
    /// THIMBLE_POCKET_DIR says otherwise.
    #[arg(long)]
    pub(crate) work_dir: Option<PathBuf>,
    /// Name under which clients reach the server, such as that of a container. IP addresses and
    /// localhost are always accepted; requests for other names are refused, because a web page may
    /// have sent them. Repeatable. Also: THIMBLE_POCKET_ALLOW_HOST, names separated by commas.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) allow_host: Vec<String>,
    /// Network that HTTPS outcalls of live instances may reach although it is not public, such as
    /// 127.0.0.0/8. Repeatable. Also: THIMBLE_POCKET_ALLOW_NETWORK, networks separated by commas.
    #[arg(long, value_name = "NETWORK", value_delimiter = ',')]
    pub(crate) allow_network: Vec<String>,
    /// Let HTTP gateways listen at addresses that other machines reach. Also:
    /// THIMBLE_POCKET_ALLOW_REMOTE_GATEWAYS=1.
    #[arg(long)]
    pub(crate) allow_remote_gateways: bool,
    /// Folder below which clients may keep instances (state_dir), instead of the defaults: the
    /// working directory, the git repository that it is in, the home folder, and the folders for
    /// temporary files. Repeatable. Also: THIMBLE_POCKET_STATE_DIR_ROOT, folders separated by
    /// colons.
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir_root: Vec<PathBuf>,
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

/// Commands other than serving.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Command {
    /// Write the manual page and the completions for bash, zsh and fish below a folder.
    ///
    /// Example: sudo thimble-pocket manual --share /usr/local/share
    Manual {
        /// The folder: man/man1, bash-completion, zsh and fish are made in it.
        #[arg(long, value_name = "DIR", default_value = "share")]
        share: PathBuf,
    },
}

impl Cli {
    /// Reads the command line, and the version of the clients. Ends the program where only the
    /// help or the version is asked for, or an option is invalid.
    pub(crate) fn read() -> Result<(Self, Client)> {
        let client = Client::from_variable(std::env::var(CLIENT).ok().as_deref())?;
        let matches = Self::command().version(client.server_version()).get_matches();
        match Self::from_arg_matches(&matches) {
            Ok(cli) => Ok((cli, client)),
            Err(error) => bail!("{error}"),
        }
    }

    /// The folder in which the server makes its own.
    pub(crate) fn parent_folder(&self) -> PathBuf {
        let parent = self.work_dir.as_ref().map(|folder| folder.display().to_string());
        let parent = or_variable(parent, "THIMBLE_POCKET_DIR").map(PathBuf::from);
        parent.unwrap_or_else(std::env::temp_dir)
    }
}

impl Command {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let Self::Manual { share } = self;
        // Clients know the server by another name; who installs it calls it by that of the file.
        let command = Cli::command().name("thimble-pocket").bin_name("thimble-pocket");
        let command = command.version(Client::default().server_version());
        for file in setup::write_manual(command, share)? {
            writeln!(std::io::stdout(), "{}", file.display())?;
        }
        Ok(())
    }
}

/// The value of an option, of an environment variable if it was not given.
pub(crate) fn or_variable(given: Option<String>, variable: &str) -> Option<String> {
    given.or_else(|| std::env::var(variable).ok().filter(|value| !value.is_empty()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    // Promise: P10 - Each client version from 13 to 16 has its server version.
    #[test]
    fn each_client_version_has_its_server_version() {
        for (value, version, knows) in [
            (None, "16.1.0", true),
            (Some(""), "16.1.0", true),
            (Some("16"), "16.1.0", true),
            (Some("15"), "15.0.0", false),
            (Some("13"), "13.0.0", false),
        ] {
            let client = Client::from_variable(value).unwrap();
            assert_eq!((client.server_version(), client.knows_codes_of_16()), (version, knows));
        }
        for value in ["12", "17", "15.0.0", "x"] {
            let error = Client::from_variable(Some(value)).unwrap_err().to_string();
            assert!(error.contains("13, 14, 15, 16"), "{error}");
        }
    }
}
