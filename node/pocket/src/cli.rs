//! The command line, as far as PocketIC's clients use it, and what they do not know of.

use std::{io::Write as _, net::IpAddr, path::PathBuf};

use clap::{CommandFactory as _, Parser, Subcommand};

/// The version that `--version` states: clients accept a range of versions of the server they are
/// made for. `pocket-ic` 16 (Rust) takes 16.0.0 and above, below 17; the others do not look.
pub(crate) const SERVER_VERSION: &str = "16.1.0";

/// Serves instances of the Internet Computer to tests. Clients of PocketIC start this program when
/// the environment variable POCKET_IC_BIN names it.
#[derive(Clone, Debug, Parser)]
#[command(name = "pocket-ic-server", version = SERVER_VERSION)]
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
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

/// What the program does instead of serving.
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

impl Command {
    /// Does it.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let Self::Manual { share } = self;
        // Clients know the server by another name; who installs it calls it by that of the file.
        let command = Cli::command().name("thimble-pocket").bin_name("thimble-pocket");
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
