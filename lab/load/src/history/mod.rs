//! `thimble-lab history`: records the client-visible responses of a subnet under faults, and checks
//! them for consistency violations.
//!
//! Three steps, each usable alone: *record* works on the subnet and writes every call with its
//! outcome; *finish* reads the state of every node, once everything is healed; *check* reads only
//! the file. `lines` is the format of the file, `check` has the rules.

mod check;
mod client;
mod finish;
mod lines;
mod record;

use std::{path::PathBuf, process::ExitCode, sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};
use cli::Stop;

use self::record::{Plan, READ_PAGES};
use demo::client as basics;

use crate::endpoints;

/// More pages than 4 GiB of stable memory has.
const PAGES_MAX: u64 = 1 << 20;

/// Command line of `thimble-lab history`.
#[derive(Args)]
pub struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Work on a subnet and write down every call with what came of it, until Ctrl-C.
    ///
    /// Clients append to registers, count, make canisters call each other, and read, each at one
    /// endpoint after the other until one answers. Calls are signed once; only a
    /// verified certificate is an acknowledgement. Prints a line when they work.
    Record {
        /// File that the history is written to.
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
        /// The folder of a net (thimble-lab net): all its nodes' endpoints. Without a value
        /// `thimble-net`, where `net up` puts one.
        #[arg(
            long,
            value_name = "DIR",
            required_unless_present = "endpoint",
            num_args = 0..=1,
            default_missing_value = "thimble-net"
        )]
        net: Option<PathBuf>,
        /// A public endpoint; repeatable, for the nodes of one subnet.
        #[arg(long, value_name = "URL", conflicts_with = "net")]
        endpoint: Vec<String>,
        /// Clients, each with one call at a time.
        #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1000))]
        clients: u16,
        /// Canisters that are made and called.
        #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=16))]
        canisters: u8,
        /// Pages of 4 KiB of each canister, one for each append; when they are used up, clients
        /// count instead.
        #[arg(long, default_value_t = 8192)]
        pages: u64,
        /// Calls and reads a second, of all clients together, at most.
        #[arg(long, default_value_t = 60.0)]
        rate: f64,
        /// Of what clients do.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// End after so long.
        #[arg(long)]
        seconds: Option<u64>,
    },
    /// Append to a history what every node holds now. To be run when every node is healed.
    Finish {
        /// File with the history.
        history: PathBuf,
        /// Seconds from now within which an update through every endpoint must be acknowledged.
        #[arg(long, default_value_t = 60)]
        progress_within: u64,
    },
    /// Check a history for consistency violations: nothing lost, nothing twice, in an order that
    /// agrees with time, the same on every node.
    ///
    /// Exit status: 0 when it is consistent, 1 when it is not or is incomplete.
    Check {
        /// File with the history.
        history: PathBuf,
        /// Print the verdict as JSON.
        #[arg(long)]
        json: bool,
    },
}

/// Does one step.
pub async fn run(options: Options) -> Result<ExitCode> {
    match options.command {
        Command::Record { out, net, endpoint, clients, canisters, pages, rate, seed, seconds } => {
            ensure!(
                rate > 0.0 && rate <= 10_000.0,
                "--rate is above 0 and at most 10000, not {rate}"
            );
            ensure!((1..=PAGES_MAX).contains(&pages), "--pages is 1 to {PAGES_MAX}, not {pages}");
            let plan = Plan {
                urls: match net {
                    Some(dir) => endpoints::net_endpoints(&dir)?,
                    None => endpoint,
                },
                clients: clients.into(),
                canisters: canisters.into(),
                pages: pages.next_multiple_of(READ_PAGES),
                rate,
                seed,
                seconds,
            };
            let stop = Stop::by_signal(|| {})?;
            let ready = || println!("history: recording into {}", out.display());
            let calls =
                record::run(plan, &out, Arc::new(basics::identity()?), &stop, ready).await?;
            println!("history: {calls} calls recorded");
            Ok(ExitCode::SUCCESS)
        }
        Command::Finish { history, progress_within } => {
            let limit = Duration::from_secs(progress_within);
            finish::run(&history, Arc::new(basics::identity()?), limit)
                .await
                .context("what the nodes hold in the end could not be learnt")?;
            println!("history: what every node holds is in {}", history.display());
            Ok(ExitCode::SUCCESS)
        }
        Command::Check { history, json } => {
            let (lines, unreadable) = lines::read(&history)?;
            let verdict = check::check(&lines, unreadable);
            match json {
                true => println!("{}", serde_json::to_string_pretty(&verdict)?),
                false => print!("{}", verdict.text()),
            }
            Ok(if verdict.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
    }
}
