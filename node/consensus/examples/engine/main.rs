//! The consensus engine alone: simplex and marshal as this crate uses them, with Ed25519 votes and
//! blocks of 200 bytes that mean nothing. The floor under the cost of a block of a subnet.
//!
//! `engine member` is one member, a process of its own; `thimble-lab bench-net --engine FILE`
//! starts four of them in the run that measures a subnet. Network, storage and timeouts are those
//! of the node. `engine signature` measures what certifying a state adds to each block: one
//! threshold signature, made and verified. Each prints one line of JSON.

mod member;
mod signature;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::Parser;

/// The consensus engine alone, as a floor to measure against.
#[derive(Parser)]
enum Options {
    /// Take part as one member, measure this process, and end.
    Member {
        /// Place of this member, from 0 on.
        #[arg(long)]
        place: usize,
        /// Port of each member on this machine, by place.
        #[arg(long, value_delimiter = ',')]
        ports: Vec<u16>,
        /// Folder for what this member stores.
        #[arg(long)]
        folder: PathBuf,
        /// Time from a block to the next one; 0 is as fast as possible.
        #[arg(long, default_value_t = 0)]
        pause_millis: u64,
        /// Seconds before the measurement.
        #[arg(long, default_value_t = 5)]
        warm_up: u64,
        /// Seconds of the measurement.
        #[arg(long, default_value_t = 10)]
        seconds: u64,
    },
    /// Measure a threshold signature of three of four members.
    Signature {
        /// How many are made.
        #[arg(long, default_value_t = 200)]
        count: u32,
    },
}

fn main() -> ExitCode {
    let measured = match Options::parse() {
        Options::Member { place, ports, folder, pause_millis, warm_up, seconds } => {
            member::run(member::Config {
                place,
                ports,
                folder,
                pause: Duration::from_millis(pause_millis),
                warm_up: Duration::from_secs(warm_up),
                measured: Duration::from_secs(seconds),
            })
        }
        Options::Signature { count } => signature::measure(count),
    };
    match measured {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(text) => {
            eprintln!("engine: {text}");
            ExitCode::FAILURE
        }
    }
}
