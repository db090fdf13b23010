//! The command line, as far as PocketIC's clients use it, and what they do not know of.

use std::{net::IpAddr, path::PathBuf};

use clap::Parser;

/// The version that `--version` states: clients accept a range of versions of the server they are
/// made for. `pocket-ic` 16 (Rust) takes 16.0.0 and above, below 17; the others do not look.
pub(crate) const SERVER_VERSION: &str = "16.1.0";

/// Serves instances of the Internet Computer to tests. Clients of PocketIC start this program when
/// the environment variable POCKET_IC_BIN names it.
#[derive(Clone, Debug, Parser)]
#[command(name = "pocket-ic-server", version = SERVER_VERSION)]
pub(crate) struct Cli {
    /// Address to listen at.
    #[arg(long, short, default_value = "127.0.0.1")]
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
}

/// The value of an option, of an environment variable if it was not given.
pub(crate) fn or_variable(given: Option<String>, variable: &str) -> Option<String> {
    given.or_else(|| std::env::var(variable).ok().filter(|value| !value.is_empty()))
}
