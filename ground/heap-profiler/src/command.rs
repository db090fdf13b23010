//! `thimble heap`, `thimble-relay heap`: asks a running node for its samples, names the functions,
//! and shows or writes it. All of it happens in this process: the node sends addresses.

use std::{
    fs::{self, File},
    io::{Cursor, Read},
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use dashboard::ask::{Query, fetch};

use crate::{
    document::{self, Document},
    flame, pprof,
    profile::Profile,
    program::Symbols,
    sampler::ANSWER_TIME,
    table,
};

/// A larger compressed document is invalid.
const PACKED_BYTES_MAX: usize = 32 << 20;
/// The node answers within [`ANSWER_TIME`], with the profile or an error.
const TIMEOUT: Duration = Duration::from_secs(ANSWER_TIME.as_secs() + 5);
const SAMPLES: Query<'_> = Query {
    path: "/debug/heap",
    what: "profile",
    flag: "the address",
    timeout: TIMEOUT,
    bytes_max: PACKED_BYTES_MAX,
};

/// The program whose command this is.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// How it is called.
    pub name: &'static str,
    /// Crates whose functions are its own.
    pub own: &'static [&'static str],
}

/// Which bytes decide the order, and the widths of the picture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum By {
    /// Bytes not freed yet: current memory use.
    #[default]
    Live,
    /// All that was allocated, freed or not: where work is.
    Total,
}

/// Flags of the command, in addition to the node's address.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Number of allocation sites to show.
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    pub top: usize,
    /// Quantity that decides the order of sites and the widths in the picture.
    #[arg(long, value_name = "BYTES", value_enum, default_value_t)]
    pub by: By,
    /// Only changes since this profile of the same process was saved.
    #[arg(long, value_name = "FILE")]
    pub since: Option<PathBuf>,
    /// Write the profile as the node sent it, to compare with later (--since), or to inspect again
    /// (--from).
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
    /// Look at a saved profile instead of a running node.
    #[arg(long, value_name = "FILE")]
    pub from: Option<PathBuf>,
    /// Write a profile for `go tool pprof` and everything else that reads its form.
    #[arg(long, value_name = "FILE")]
    pub pprof: Option<PathBuf>,
    /// Write a flame graph: callers above their callees, each as wide as its share of the bytes.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// The program that the node runs, for the names of its functions. [default: this program]
    #[arg(long, value_name = "FILE")]
    pub program: Option<PathBuf>,
    /// Print the report as JSON.
    #[arg(long)]
    pub json: bool,
}

/// Runs the command. `address` is asked for only if a node is.
pub fn run(
    program: &Program,
    address: impl FnOnce() -> Result<SocketAddr>,
    options: &Options,
) -> Result<()> {
    let (packed, source) = match &options.from {
        Some(path) => (contents(path)?, path.display().to_string()),
        None => {
            let address = address()?;
            (fetch(address, SAMPLES)?.to_vec(), address.to_string())
        }
    };
    let document = parsed(&packed, &source)?;
    let before = match &options.since {
        Some(path) => Some(parsed(&contents(path)?, &path.display().to_string())?),
        None => None,
    };
    if let Some(path) = &options.save {
        save(path, &packed)?;
    }
    let file = match &options.program {
        Some(path) => path.clone(),
        None => std::env::current_exe().context("finding this program's file")?,
    };
    let profile = Profile::new(document, before, &Symbols::read(&file)?, &file, program)?;
    if let Some(path) = &options.pprof {
        save(path, &pprof::encode(&profile)?)?;
    }
    if let Some(path) = &options.svg {
        save(path, flame::draw(&profile, options.by).as_bytes())?;
    }
    let report = table::report(&profile, options.by, options.top);
    if options.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", report.text(program));
    }
    Ok(())
}

fn save(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(path, bytes).with_context(|| format!("writing {}", path.display()))
}

fn contents(path: &Path) -> Result<Vec<u8>> {
    let reading = || format!("reading {}", path.display());
    let mut bytes = Vec::new();
    let file = File::open(path).with_context(reading)?;
    file.take(PACKED_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).with_context(reading)?;
    if bytes.len() > PACKED_BYTES_MAX {
        bail!(
            "{} is larger than {PACKED_BYTES_MAX} bytes, the most a heap profile has",
            path.display()
        );
    }
    Ok(bytes)
}

fn parsed(packed: &[u8], source: &str) -> Result<Document> {
    document::read(Cursor::new(packed))
        .with_context(|| format!("what {source} holds is no heap profile of this version"))
}
