//! `thimble-lab`: the tools that put work on a node and measure what it does with it. The node's
//! binary carries none of this.
//!
//! Each subcommand is a crate's or a module's own; this file only names them.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Work for a node, and what it cost.
#[derive(Parser)]
#[command(name = "thimble-lab", version, about, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Deploy a sample canister with a published client, call it, verify what comes back, show the
    /// node's memory.
    Demo(demo::Options),
    /// Start a node in a scratch folder and measure it: start, idle, latency, rates, large writes,
    /// memory.
    Bench(load::bench::Options),
    /// Measure what a node does with more than fits its memory: state, canisters, calls that it has
    /// to remember, modules; a table with goals.
    ///
    /// Each part has a node of its own in a scratch folder. The defaults take some ten minutes and
    /// 5 GiB of disk.
    ///
    /// Example: thimble-lab cap --memory 512MiB -- thimble-lab bench-state --memory 480MiB --state
    /// 20GiB
    BenchState(load::bench::state::Options),
    /// Start a server for tests, make instances on it, and measure them: start, idle memory, calls;
    /// prints a table with goals.
    BenchPocket(load::bench::pocket::Options),
    /// Put every sort of load on a running node, check every byte that comes back, report latencies
    /// and errors.
    Hammer(Box<load::hammer::Options>),
    /// Run any command in a memory-capped process group and report its memory use.
    ///
    /// The summary goes to standard error, every sample to the --json file, a plot of all of it to
    /// the --picture.
    ///
    /// Exit status: that of the command, or 128 and its number when a signal ended it. 137 when the
    /// command ended well but the kernel killed a process of the group for lack of memory. 125 when
    /// no group can be made or another error occurs in this program, 126 when the command cannot be
    /// run, 127 when there is no such command.
    ///
    /// Ctrl-C at a terminal reaches the command directly; SIGINT, SIGTERM, SIGHUP and SIGQUIT sent
    /// to this program are passed on to it. Its clean end is waited for; a second signal kills
    /// the whole group. Processes of the group that outlive the command are killed.
    ///
    /// Example: thimble-lab cap --memory 512MiB --json run.jsonl --picture run.svg -- thimble run
    /// --memory 512MiB
    Cap(memory_cap::Options),
    /// Run a node under a memory cap, storm it with the hammer, and judge what its memory did.
    ///
    /// Exit status: 0 when every verdict is good, 1 when one is not, 130 after Ctrl-C.
    ///
    /// Example: thimble-lab storm --memory 512MiB --mode hybrid --seconds 120
    Storm(testnet::storm::Options),
    /// Start a net and measure it: memory and CPU of idle nodes, latency, messages between
    /// canisters, a storm, state sync; a table with goals, and one picture.
    ///
    /// Exit status: 0 when every goal is met, 1 when one is missed, 130 after Ctrl-C.
    BenchNet(Box<testnet::bench_net::Options>),
    /// Inject random faults into a net under client load, heal them, and check that no acknowledged
    /// update is lost.
    ///
    /// Nodes are killed, paused, partitioned, left without disk space or without descriptors; links
    /// are slowed, workers and compilations killed. At most as many nodes are faulty at once as the
    /// subnet tolerates (f of 3f + 1), but at times all are killed at the same moment.
    ///
    /// `thimble-lab misuse` runs in addition to the clients that keep a history: the same call to
    /// each node in another envelope, slow queries at single nodes, a stream of new modules. Full
    /// disks need root, mkfs.ext4 and loop devices; without them a message says so, and the other
    /// faults are used.
    ///
    /// Checks: no acknowledged update is missing on any node or ran twice, order agrees with time,
    /// roots agree, no valid module was refused, every node continues without a restart of its own,
    /// and updates pass through every node in the end. The number of faults of each kind is
    /// printed.
    ///
    /// Exit status: 0 when all checks pass, 1 when one fails, 130 after Ctrl-C. The seed decides
    /// which faults come and what clients do, not when exactly.
    ///
    /// Example: thimble-lab chaos --duration 300 --seed 7
    Chaos(testnet::chaos::Options),
    /// Record client-visible responses and check them for consistency violations.
    History(load::history::Options),
    /// Send adversarial traffic to a subnet: one call in several envelopes, slow queries, a stream
    /// of new modules.
    ///
    /// `chaos` runs it in addition to its clients. Exit status 1 when a call happened twice, a
    /// valid module was refused, or no call was acknowledged in the end.
    Misuse(load::misuse::Options),
    /// Attack nodes of different builds with seeded hostile input and faults, and verify that no
    /// input stops a node or changes a result.
    ///
    /// The command starts the nodes itself: one alone, or a subnet of four, in a new folder for
    /// each life. Builds (--node, repeatable) are used in turn; stacks and thread counts differ.
    /// Cases are hostile Candid for every method of the management canister, sent by clients and
    /// canisters; modules against metering and compile limits, run by every entry point; management
    /// calls on canisters with paused messages; snapshots; outcalls to a server that violates HTTP.
    /// Nodes and workers are killed between cases, members join and leave, and in some lives
    /// strace injects disk errors. All cases follow from the seed; the regression corpus runs
    /// first.
    ///
    /// Findings: a node that exits by itself; an update or query of an idle canister without an
    /// answer in time; a round over 10 s; anonymous memory above the budget; a lost update;
    /// different roots of one height on two members, or in a replay with another build, stack or
    /// thread count; a failed start with another budget. Each is printed with its seed, cases, the
    /// command that reproduces it, and the folder with logs and data (docs/hostile.md).
    ///
    /// Exit status: 0 when nothing is found, 1 when something is, 130 after Ctrl-C.
    ///
    /// Example: thimble-lab hostile --node target/release/thimble --seconds 600
    ///
    /// Example: thimble-lab hostile --seed 7 --case vec-null --on alone
    Hostile(Box<load::hostile::Options>),
    /// Put load on any Waku node, given its multiaddress, and report deliveries and the resources
    /// used.
    ///
    /// Publishers push by light push (version 3, or 2), receivers get by filter, relay peers by
    /// gossip; every message carries its sender, number, time and checksum. The table has, for each
    /// phase, the rate, latencies by answer code, deliveries (whole, double, late, damaged,
    /// missing), the messages in the store, and the node's memory and CPU. Several nodes of one
    /// network are loaded with repeated --node, with --net, or with --relays, which starts them
    /// (docs/stress.md).
    ///
    /// Exit status: 0 when no accepted message was lost to a receiver or the store and the nodes
    /// survived, 1 otherwise. Ctrl-C ends the load, prints what was measured so far and exits with
    /// 130; a second one ends everything at once.
    ///
    /// Example: thimble-lab stress --node /ip4/127.0.0.1/tcp/60000 --pid 4711 --case baseline
    /// --phase 60 --after 60,180 --picture run.svg
    ///
    /// Example: thimble-lab stress --case flood --memory 256MiB --command 'thimble-relay run
    /// --memory 128MiB --listen /ip4/127.0.0.1/tcp/{port} --http 127.0.0.1:0 --data-dir
    /// {folder}/data'
    ///
    /// Example: thimble-lab stress --relays 8 --memory 128MiB --case baseline --picture net.svg
    Stress(Box<stress::Options>),
    /// Measure the relay against its goals, in alternating turns with another Waku node; prints a
    /// table with the goals.
    ///
    /// Exit status: 0 when every goal is met, 1 when one is missed or was not measured, 130 after
    /// Ctrl-C (with what was measured so far).
    ///
    /// Example: thimble-lab bench-relay --phase 10 --reference 'go-waku=target/waku/peer service
    /// -cluster 0 -shards 0 -tcp-port {port} -store {folder}'
    BenchRelay(stress::bench::Options),
    /// Report which differences between earlier runs and runs of a change are real, test by test.
    ///
    /// Each test is judged against its own spread over the baseline runs, moderated by the spreads
    /// of all tests; the verdicts (faster, slower, within its noise, lone outlier worth a re-run,
    /// unknown, new, gone) are corrected for the number of tests. Three baseline runs are enough
    /// for verdicts; one is not, which is then reported (docs/compare.md has the method and its
    /// error rates).
    ///
    /// With --pair it measures two commands itself, in alternating turns.
    ///
    /// Exit status: 0, 1 when --fail-on applies, 2 when a file cannot be read or a command fails,
    /// 130 after Ctrl-C (with what was measured so far).
    ///
    /// Example: thimble-lab compare base1.xml base2.xml base3.xml -- change.xml --html out.html
    ///
    /// Example: thimble-lab compare --pair 'old/sort big.txt' 'new/sort big.txt' --tell 2%
    #[command(
        override_usage = "thimble-lab compare [OPTIONS] <BASELINE>... -- <CANDIDATE>... [OPTIONS]\n       \
        thimble-lab compare --pair <BASELINE> <CANDIDATE> [OPTIONS]"
    )]
    Compare(Box<compare::Options>),
    /// Find the settings of a program's runtime with the smallest memory that meets the latency
    /// goal.
    ///
    /// Runs the command again and again under `cap`, with other settings of its runtime each time:
    /// of GHC, Go, a JVM, Node, .NET, or the allocator, detected from the program, or of a file of
    /// your own (--knobs). First each setting is tried alone, and settings without effect are
    /// dropped; then the promising ones together; in the end the best is confirmed against the
    /// default, in turns. A run in which other processes used the processors is discarded. The
    /// report has the frontier of memory and CPU time, the failed settings with the kind of
    /// failure, and the settings to paste (docs/tuning.md).
    ///
    /// Latency is measured from outside (--http, --tcp, --rpc, --probe, at --rate) or read from the
    /// command's output (--beat, --miss); --load puts load on it. Ctrl-C ends the current run; the
    /// same command continues where it stopped.
    ///
    /// Exit status: 0 when something better was found or the default is best, 1 when no setting
    /// survives under the cap or meets the goal, 2 when the command cannot be run, 3 when the
    /// machine is too busy to judge on, 130 after Ctrl-C.
    ///
    /// Example: thimble-lab tune --memory 100MiB --budget 5m --http http://127.0.0.1:{port}/ --rate
    /// 100
    /// --lateness 'p99<50ms' -- node server.js --port {port}
    ///
    /// Example: thimble-lab tune --beat 'late ([0-9.]+) ms' --lateness 'p99<20ms' -- ./leader
    /// --live-mb 200
    Tune(Box<tuner::tune::Options>),
    /// Watch the memory of a running program, and report problems and settings to try.
    ///
    /// Live, held, resident and returned memory of the process and its descendants; collections and
    /// pauses as its runtime reports them (GHC -S, Go gctrace, a JVM's unified log, Node
    /// --trace-gc), read from the log file of the process, or from --log. It changes nothing in the
    /// process. A page is served at the address that is printed; the summary with the findings
    /// comes at the end.
    ///
    /// Exit status: 0 when the process or the watch ended (Ctrl-C, --for), 1 when there is no such
    /// process or it may not be read.
    ///
    /// Example: thimble-lab watch --pid 4711 --for 60
    Watch(tuner::watch::Options),
    /// Disks for virtual machines: a cache of base images and copy-on-write overlays of them.
    Image {
        #[command(subcommand)]
        command: Image,
    },
    /// Start a network to develop against: a node with the canisters that project tools expect.
    ///
    /// Cycles minting, cycles ledger and ICP ledger are at the ids of the public network, and every
    /// principal, the anonymous one too, begins with cycles and ICP; so `icp deploy` and similar
    /// commands work unchanged (docs/local.md). The state stays in the data folder.
    ///
    /// It runs until Ctrl-C. Exit status: 0 when the node stopped cleanly, 1 otherwise, 130 after
    /// Ctrl-C while it starts.
    ///
    /// Example: thimble-lab local --data-dir my-network --listen 127.0.0.1:4943
    Local(Box<local::Options>),
    /// Several nodes on this machine, each under its own memory cap: start them as a subnet, kill,
    /// partition and inspect them.
    Net(testnet::net::Options),
    /// Write the manual pages and the completions for bash, zsh and fish below a folder.
    ///
    /// Example: sudo thimble-lab manual --share /usr/local/share
    Manual {
        /// The folder: man/man1, bash-completion, zsh and fish are made in it.
        #[arg(long, value_name = "DIR", default_value = "share")]
        share: std::path::PathBuf,
    },
}

#[derive(Subcommand)]
enum Image {
    #[command(flatten)]
    Cache(images::command::Command),
    /// Make the smallest disk that starts a node, from the distribution's kernel package and our
    /// programs; prints its base.
    ///
    /// The node's program, the first process and the libraries of both make a read-only root; the
    /// node writes into a second partition, which is as large as a machine's disk. The kernel is
    /// started directly, without a boot loader. Missing programs are reported with the package to
    /// install: binutils, e2fsprogs, and for the kernel's package apt-get with its lists, or
    /// --kernel. It needs no root.
    ///
    /// Example: thimble-lab image build && thimble-lab net up --backend vm --nodes 4 --memory
    /// 256MiB
    Build(machines::build::Options),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        // Before any thread is started: it reads signals, which threads would take from it.
        Command::Cap(options) => memory_cap::run(options),
        Command::Manual { share } => {
            match setup::write_manual(<Cli as clap::CommandFactory>::command(), &share) {
                Ok(files) => {
                    files.iter().for_each(|file| println!("{}", file.display()));
                    ExitCode::SUCCESS
                }
                Err(error) => {
                    eprintln!("thimble-lab: {error:#}");
                    ExitCode::FAILURE
                }
            }
        }
        Command::Demo(options) => {
            with_runtime(async { demo::run(options).await.map(|()| ExitCode::SUCCESS) })
        }
        Command::Bench(options) => {
            with_runtime(async { load::bench::run(options).await.map(|()| ExitCode::SUCCESS) })
        }
        Command::BenchState(options) => with_runtime(async {
            load::bench::state::run(options).await.map(|()| ExitCode::SUCCESS)
        }),
        Command::BenchPocket(options) => with_runtime(async {
            load::bench::pocket::run(options).await.map(|()| ExitCode::SUCCESS)
        }),
        Command::Hammer(options) => with_runtime(load::hammer::run(*options)),
        Command::Storm(options) => with_runtime(testnet::storm::run(options)),
        Command::History(options) => with_runtime(load::history::run(options)),
        Command::Misuse(options) => with_runtime(load::misuse::run(options)),
        Command::Hostile(options) => with_runtime(load::hostile::run(*options)),
        Command::BenchNet(options) => with_runtime(testnet::bench_net::run(*options)),
        Command::Chaos(options) => with_runtime(testnet::chaos::run(options)),
        Command::Stress(options) => with_runtime(stress::run(*options)),
        Command::BenchRelay(options) => with_runtime(stress::bench::run(options)),
        Command::Compare(options) => with_runtime(compare::run(*options)),
        Command::Image { command: Image::Cache(command) } => {
            with_runtime(images::command::run(command, &["image"]))
        }
        Command::Image { command: Image::Build(options) } => {
            with_runtime(images::command::stoppable(move |stop| {
                machines::build::run(&options, stop)
            }))
        }
        Command::Watch(options) => with_runtime(tuner::watch::run(options)),
        Command::Tune(options) => with_runtime(tuner::tune::run(*options)),
        Command::Local(options) => with_runtime(local::run(*options)),
        Command::Net(options) => with_runtime(testnet::net::run(options)),
    }
}

fn with_runtime(work: impl Future<Output = anyhow::Result<ExitCode>>) -> ExitCode {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let done = match runtime {
        Ok(runtime) => runtime.block_on(work),
        Err(error) => Err(error.into()),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("thimble-lab: {error:#}");
            ExitCode::FAILURE
        }
    }
}
