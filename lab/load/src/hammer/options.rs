//! The command line, and the parameters that follow from it.

use std::{path::PathBuf, time::Duration};

use candid::Principal;
use clap::{Args, ValueEnum};
use serde::Serialize;

use super::{pattern::PAGE_BYTES, protocol::RING_MAX};
use crate::endpoints;

const MIB: u64 = 1 << 20;
/// Each has its own connections and is asked for its report.
const ENDPOINTS_MAX: usize = 128;

/// The load on the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Small updates that count.
    Throughput,
    /// Updates that burn --instructions each.
    Compute,
    /// Updates that write --write-size of stable memory at rotating offsets, then a read of
    /// everything written.
    Dirty,
    /// Stable memory grows by --write-size per update up to --grow-to per canister; then the same
    /// pages are rewritten.
    Growth,
    /// Single writes around the limits, whose outcomes are known; exit code 1 when one is not met.
    Probe,
    /// Stable reads of --read-size over all of --fill, by query and by update, and one read of
    /// twice the size.
    Read,
    /// Heap writes of 24, 48 and 96 MiB once, a storm of --write-size heap writes, heap reads of
    /// --read-size.
    Heap,
    /// Reads of --read-size in a large heap region that is filled in steps, by query and by update.
    Heapread,
    /// Chains of --depth calls around the ring of canisters.
    Calls,
    /// One message that makes --fanout times --multiplier calls at once.
    Fanout,
    /// At once: stable reads by query, stable writes by update, chains of three calls.
    Hybrid,
    /// Hybrid for long, with an intensity that varies in a seeded pattern.
    Soak,
    /// Every mode in turn.
    All,
}

impl Mode {
    /// Modes that run when no `--mode` is given.
    pub(crate) const DEFAULT: [Self; 4] =
        [Self::Throughput, Self::Compute, Self::Dirty, Self::Growth];
    const EVERY: [Self; 12] = [
        Self::Probe,
        Self::Throughput,
        Self::Compute,
        Self::Dirty,
        Self::Growth,
        Self::Read,
        Self::Heap,
        Self::Heapread,
        Self::Calls,
        Self::Fanout,
        Self::Hybrid,
        Self::Soak,
    ];

    pub(crate) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

/// `thimble-lab hammer`
///
/// Puts load on a node through its public endpoint with the published client, checks every byte
/// that is returned, and reports the cost.
///
/// Exit codes: 0 all is well (errors of the node included, unless --strict), 1 a verification
/// failed or a probe's expectation was not met, 2 the command line cannot be followed, 130 after
/// Ctrl-C, which prints what there is.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// A public endpoint of a node; repeatable, for the nodes of one subnet.
    ///
    /// Operations go to the endpoints in turn, and every certificate is verified with the one root
    /// key; endpoints with different ones are refused. With several, a query may see an older state
    /// than the last acknowledged update, so under load queries are not checked against the newest
    /// acknowledged write; at the end every endpoint is.
    ///
    /// Default: http://127.0.0.1:8080. Example: --endpoint http://10.0.0.1:8080 --endpoint
    /// http://10.0.0.2:8080
    #[arg(
        long,
        visible_alias = "endpoint",
        default_value = "http://127.0.0.1:8080",
        hide_default_value = true
    )]
    pub url: Vec<String>,
    /// The folder of a net (thimble-lab net): all its nodes' endpoints. Without a value
    /// `thimble-net`, where `net up` puts one.
    ///
    /// Example: --net thimble-net
    #[arg(long, value_name = "DIR", conflicts_with = "url", num_args = 0..=1, default_missing_value = "thimble-net")]
    pub net: Option<PathBuf>,
    /// What to do; repeatable, in that order.
    ///
    /// Default: throughput, compute, dirty, growth. `all` is every mode in turn. Example: --mode
    /// calls --mode fanout
    #[arg(long, value_enum)]
    pub mode: Vec<Mode>,
    /// Canisters to work with, which hold the hammer module already.
    ///
    /// They are used as they are: not reinstalled between modes and not deleted.
    ///
    /// Default: --canister-count new ones. Example: --canisters
    /// rrkah-fqaaa-aaaaa-aaaaq-cai,ryjl3-tyaaa-aaaaa-aaaba-cai
    #[arg(long, value_delimiter = ',', conflicts_with = "canister_count")]
    pub canisters: Vec<Principal>,
    /// How many canisters to create; each mode starts with them empty, and they are deleted at the
    /// end.
    ///
    /// Default: 3. Example: --canister-count 8
    #[arg(long, default_value_t = 3, hide_default_value = true)]
    pub canister_count: usize,
    /// Leave the created canisters on the node and print their ids for --canisters.
    #[arg(long)]
    pub keep: bool,
    /// Operations in flight (closed loop: the next one starts when one ends).
    ///
    /// Default: 8. Example: --concurrency 32
    #[arg(long, default_value_t = 8, hide_default_value = true)]
    pub concurrency: usize,
    /// Seconds per mode, and per part of a mode that has several.
    ///
    /// Time to fill memory before a mode is not counted. Default: 10; 14400 for soak alone.
    /// Example: --seconds 60
    #[arg(long, conflicts_with = "operations")]
    pub seconds: Option<f64>,
    /// End a mode after this many operations instead.
    ///
    /// Example: --operations 1000
    #[arg(long)]
    pub operations: Option<u64>,
    /// Open loop: start this many operations per second, at fixed times, whatever the node does.
    ///
    /// Latency is measured from the time an operation was due, so a slow node cannot hide it. At
    /// most --outstanding are in flight; an operation that finds no room at its time is not
    /// started, and counted as such.
    ///
    /// Default: closed loop. Example: --rate 200
    #[arg(long)]
    pub rate: Option<f64>,
    /// The most operations in flight with --rate.
    ///
    /// Default: 256. Example: --outstanding 1000
    #[arg(long, default_value_t = 256, hide_default_value = true)]
    pub outstanding: usize,
    /// Instructions of one update in mode compute.
    ///
    /// Default: 100000000. Example: --instructions 2000000000
    #[arg(long, default_value_t = 100_000_000, hide_default_value = true)]
    pub instructions: u64,
    /// Calls in one chain.
    ///
    /// A call with a guaranteed response reserves memory for the largest response (2 MiB) from
    /// when it is made until it is answered, and in a chain the calls are nested:
    /// --concurrency times --depth of them are open at once. Deeper chains want --best-effort.
    ///
    /// Default: 3. Example: --depth 50 --best-effort 30
    #[arg(long, default_value_t = 3, hide_default_value = true)]
    pub depth: u64,
    /// Canisters that one fanout message calls at once (the ring is gone round as often as it
    /// takes).
    ///
    /// Default: 8. Example: --fanout 32
    #[arg(long, default_value_t = 8, hide_default_value = true)]
    pub fanout: u64,
    /// Calls to each of them.
    ///
    /// Default: 2. Example: --multiplier 4
    #[arg(long, default_value_t = 2, hide_default_value = true)]
    pub multiplier: u64,
    /// Make calls between canisters with best-effort responses and this deadline in seconds,
    /// instead of guaranteed responses.
    ///
    /// Default: guaranteed. Example: --best-effort 10
    #[arg(long)]
    pub best_effort: Option<u32>,
    /// Bytes added to the argument of counter updates and of calls between canisters.
    ///
    /// Default: 0. Example: --payload 100KiB
    #[arg(long, value_parser = accounting::parse_size, default_value = "0", hide_default_value = true)]
    pub payload: u64,
    /// Bytes that one write dirties, in whole pages of 4 KiB.
    ///
    /// Default: 8MiB times --scale. Example: --write-size 2MiB
    #[arg(long, value_parser = accounting::parse_size)]
    pub write_size: Option<u64>,
    /// Bytes that one read reads, in whole pages of 4 KiB.
    ///
    /// Default: 24MiB of stable memory, 40MiB of heap in mode heap, 96MiB in heapread, each times
    /// --scale. Example: --read-size 8MiB
    #[arg(long, value_parser = accounting::parse_size)]
    pub read_size: Option<u64>,
    /// Bytes of each canister's memory that writes rotate over and reads cycle through.
    ///
    /// Default: 128MiB of stable memory, 48MiB of heap in mode heap, 96MiB in heapread, each times
    /// --scale. Example: --fill 64MiB
    #[arg(long, value_parser = accounting::parse_size)]
    pub fill: Option<u64>,
    /// Bytes of one write while memory is filled before it is read.
    ///
    /// Default: 24MiB times --scale. Example: --fill-step 8MiB
    #[arg(long, value_parser = accounting::parse_size)]
    pub fill_step: Option<u64>,
    /// Size to which each canister's stable memory grows in mode growth.
    ///
    /// Default: 64MiB times --scale. Example: --grow-to 1GiB
    #[arg(long, value_parser = accounting::parse_size)]
    pub grow_to: Option<u64>,
    /// Multiplies all default sizes, those of the probes included.
    ///
    /// The defaults suit a node with a budget of 512 MiB; at 256 MiB the limits per message are
    /// half of that or less, and the node's reject texts name them.
    ///
    /// Default: 1. Example: --scale 0.5
    #[arg(long, default_value_t = 1.0, hide_default_value = true)]
    pub scale: f64,
    /// Process id of a node on this machine; repeatable. The report then has, for each measured
    /// part, the CPU time of the node's processes and the blocks that were executed.
    ///
    /// Example: --pid 4711
    #[arg(long)]
    pub pid: Vec<u32>,
    /// Seed of everything random: the content of memory, the samples compared, the jitter of
    /// back-offs, the pattern of soak.
    ///
    /// Default: 1. Example: --seed 42
    #[arg(long, default_value_t = 1, hide_default_value = true)]
    pub seed: u64,
    /// Verify the certificate of every Nth reply in the modes throughput and calls; 0 verifies
    /// none.
    ///
    /// Verifying one costs the client about 3 ms of CPU. In those two modes calls are signed by
    /// the published client, sent over plain HTTP, and the reply is taken out of the
    /// certificate, whose signature is verified once in N. Every other mode uses the published
    /// client as it is, with full verification of certificates and of query signatures.
    /// `--verify-every 1` does so in all modes.
    ///
    /// Default: 64. Example: --verify-every 1
    #[arg(long, default_value_t = 64, hide_default_value = true)]
    pub verify_every: u64,
    /// Seconds after which an operation's outcome is unknown.
    ///
    /// Default: 60. Example: --timeout 10
    #[arg(long, default_value_t = 60.0, hide_default_value = true)]
    pub timeout: f64,
    /// Seconds of one intensity in mode soak.
    ///
    /// Default: 30. Example: --soak-period 300
    #[arg(long, default_value_t = 30.0, hide_default_value = true)]
    pub soak_period: f64,
    /// Fail (exit code 1) on any error of the node, not only on wrong bytes. Refusals with
    /// Retry-After are not errors.
    #[arg(long)]
    pub strict: bool,
    /// Write everything as JSON to this file; `-` is standard output, and the table is then left
    /// out.
    ///
    /// Example: --json storm.json
    #[arg(long)]
    pub json: Option<String>,
    /// Print no progress lines.
    #[arg(long)]
    pub no_progress: bool,
}

/// The command line cannot be followed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(pub(crate) String);

/// The options with every default filled in.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Parameters {
    pub(crate) urls: Vec<String>,
    /// Processes of nodes whose CPU time is read.
    pub(crate) pids: Vec<u32>,
    /// Whether the nodes behind the endpoints are asked for their memory and height.
    pub(crate) watch_nodes: bool,
    pub(crate) modes: Vec<Mode>,
    pub(crate) canisters: Vec<String>,
    #[serde(skip)]
    pub(crate) given: Vec<Principal>,
    pub(crate) canister_count: usize,
    pub(crate) concurrency: usize,
    pub(crate) seconds: f64,
    pub(crate) operations: Option<u64>,
    pub(crate) rate: Option<f64>,
    pub(crate) outstanding: usize,
    pub(crate) instructions: u64,
    pub(crate) depth: u64,
    pub(crate) fanout: u64,
    pub(crate) multiplier: u64,
    pub(crate) best_effort_seconds: u64,
    pub(crate) payload_bytes: u64,
    pub(crate) write_bytes: u64,
    pub(crate) read_bytes: u64,
    pub(crate) heap_read_bytes: u64,
    pub(crate) heapread_read_bytes: u64,
    pub(crate) fill_bytes: u64,
    pub(crate) heap_fill_bytes: u64,
    pub(crate) heapread_fill_bytes: u64,
    pub(crate) fill_step_bytes: u64,
    pub(crate) grow_to_bytes: u64,
    /// 24, 48 and 96 MiB, scaled.
    pub(crate) probe_bytes: [u64; 3],
    pub(crate) seed: u64,
    pub(crate) verify_every: u64,
    pub(crate) timeout_seconds: f64,
    pub(crate) soak_period_seconds: f64,
    pub(crate) strict: bool,
}

impl Parameters {
    #[expect(clippy::too_many_lines, reason = "a table, entry after entry")]
    pub(crate) fn from_options(options: &Options) -> Result<Self, Usage> {
        let usage = |text: String| Err(Usage(text));
        for (flag, value) in [
            ("--scale", Some(options.scale)),
            ("--timeout", Some(options.timeout)),
            ("--soak-period", Some(options.soak_period)),
            ("--seconds", options.seconds),
            ("--rate", options.rate),
        ] {
            if value.is_some_and(|value| !value.is_finite() || value <= 0.0 || value > 1e7) {
                return usage(format!("{flag} must be above 0 and at most 10000000"));
            }
        }
        for (flag, value, least, most) in [
            ("--concurrency", options.concurrency as u64, 1, 4096),
            ("--outstanding", options.outstanding as u64, 1, 65_536),
            ("--canister-count", options.canister_count as u64, 1, RING_MAX as u64),
            ("--depth", options.depth, 1, 100_000),
            ("--fanout", options.fanout, 1, 10_000),
            ("--multiplier", options.multiplier, 1, 10_000),
            ("--payload", options.payload, 0, 2 * MIB),
        ] {
            if !(least..=most).contains(&value) {
                return usage(format!("{flag} is {value}; it must be between {least} and {most}"));
            }
        }
        if options.canisters.len() > RING_MAX {
            return usage(format!(
                "--canisters names {} canisters; at most {RING_MAX}",
                options.canisters.len()
            ));
        }
        let urls = match &options.net {
            Some(dir) => {
                endpoints::net_endpoints(dir).map_err(|error| Usage(format!("--net: {error:#}")))?
            }
            None => options.url.clone(),
        };
        if urls.len() > ENDPOINTS_MAX {
            return usage(format!("{} endpoints; at most {ENDPOINTS_MAX}", urls.len()));
        }
        for url in &urls {
            match reqwest::Url::parse(url) {
                Ok(parsed) if ["http", "https"].contains(&parsed.scheme()) => {}
                Ok(_) => return usage(format!("--url {url} is not an http or https address")),
                Err(error) => return usage(format!("--url {url}: {error}")),
            }
        }
        let scaled = |bytes: u64| pages((bytes as f64 * options.scale) as u64);
        let size = |flag: Option<u64>, default: u64| flag.map_or_else(|| scaled(default), pages);
        let modes: Vec<Mode> = match &options.mode[..] {
            [] => Mode::DEFAULT.to_vec(),
            modes => modes
                .iter()
                .flat_map(
                    |mode| if *mode == Mode::All { Mode::EVERY.to_vec() } else { vec![*mode] },
                )
                .collect(),
        };
        let soak_alone = modes == [Mode::Soak];
        let fill_bytes = size(options.fill, 128 * MIB);
        let count = if options.canisters.is_empty() {
            options.canister_count
        } else {
            options.canisters.len()
        };
        let parameters = Self {
            watch_nodes: options.net.is_some() || urls.len() > 1,
            pids: options.pid.clone(),
            urls,
            modes,
            canisters: options.canisters.iter().map(Principal::to_text).collect(),
            given: options.canisters.clone(),
            canister_count: count,
            concurrency: options.concurrency,
            seconds: options.seconds.unwrap_or(if soak_alone { 14_400.0 } else { 10.0 }),
            operations: options.operations,
            rate: options.rate,
            outstanding: options.outstanding,
            instructions: options.instructions,
            depth: options.depth,
            fanout: options.fanout,
            multiplier: options.multiplier,
            best_effort_seconds: u64::from(options.best_effort.unwrap_or(0)),
            payload_bytes: options.payload,
            write_bytes: size(options.write_size, 8 * MIB),
            read_bytes: size(options.read_size, 24 * MIB),
            heap_read_bytes: size(options.read_size, 40 * MIB),
            heapread_read_bytes: size(options.read_size, 96 * MIB),
            fill_bytes,
            heap_fill_bytes: size(options.fill, 48 * MIB),
            heapread_fill_bytes: size(options.fill, 96 * MIB),
            fill_step_bytes: size(options.fill_step, 24 * MIB),
            grow_to_bytes: size(options.grow_to, 64 * MIB),
            probe_bytes: [scaled(24 * MIB), scaled(48 * MIB), scaled(96 * MIB)],
            seed: options.seed,
            verify_every: options.verify_every,
            timeout_seconds: options.timeout,
            soak_period_seconds: options.soak_period,
            strict: options.strict,
        };
        for (what, bytes, of, whole) in [
            ("--write-size", parameters.write_bytes, "--fill", fill_bytes),
            ("--write-size", parameters.write_bytes, "--grow-to", parameters.grow_to_bytes),
        ] {
            if bytes > whole {
                return usage(format!(
                    "{what} is {bytes} bytes, which is more than {of}, {whole} bytes"
                ));
            }
        }
        if fill_bytes > 1 << 40 || parameters.grow_to_bytes > 1 << 40 {
            return usage("--fill and --grow-to are at most 1 TiB".into());
        }
        Ok(parameters)
    }

    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_secs_f64(self.timeout_seconds)
    }
}

/// Whole pages, at least one.
fn pages(bytes: u64) -> u64 {
    (bytes / PAGE_BYTES).max(1) * PAGE_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        options: Options,
    }

    fn parameters(line: &str) -> Result<Parameters, String> {
        let words = std::iter::once("hammer").chain(line.split_whitespace());
        let cli = Cli::try_parse_from(words).map_err(|error| error.to_string())?;
        Parameters::from_options(&cli.options).map_err(|error| error.to_string())
    }

    #[test]
    fn scale_multiplies_defaults_and_nothing_else() {
        let plain = parameters("").unwrap();
        assert_eq!(plain.modes, Mode::DEFAULT);
        assert_eq!(
            (plain.write_bytes, plain.read_bytes, plain.fill_bytes),
            (8 * MIB, 24 * MIB, 128 * MIB)
        );
        let half = parameters("--scale 0.5 --read-size 20MiB").unwrap();
        assert_eq!(
            (half.write_bytes, half.read_bytes, half.fill_bytes),
            (4 * MIB, 20 * MIB, 64 * MIB)
        );
        assert_eq!(half.probe_bytes, [12 * MIB, 24 * MIB, 48 * MIB]);
        assert_eq!(parameters("--scale 0.5 --write-size 5000").unwrap().write_bytes, 4096);
    }

    #[test]
    fn a_net_without_a_name_is_where_nets_are_put() {
        let net = |words: &[&str]| {
            Cli::try_parse_from([&["hammer"], words].concat()).unwrap().options.net
        };
        assert_eq!(net(&["--net", "--mode", "hybrid"]), Some(PathBuf::from("thimble-net")));
        assert_eq!(net(&["--net", "other"]), Some(PathBuf::from("other")));
        assert_eq!(net(&[]), None);
    }

    #[test]
    fn invalid_options_are_rejected_with_a_reason() {
        for (line, said) in [
            ("--concurrency 0", "--concurrency is 0"),
            ("--scale nan", "--scale must be"),
            ("--rate 0", "--rate must be"),
            ("--canister-count 65", "between 1 and 64"),
            ("--url nowhere", "--url nowhere"),
            ("--url ftp://x", "not an http"),
            ("--write-size 256MiB", "more than --fill"),
            ("--write-size lots", "is not a size"),
            ("--mode nothing", "invalid value"),
            ("--seconds 1 --operations 1", "cannot be used with"),
            ("--net x --endpoint http://localhost", "cannot be used with"),
            ("--net /no/such/folder", "there is no net in /no/such/folder"),
        ] {
            let text = parameters(line).unwrap_err();
            assert!(text.contains(said), "{line}: {text}");
        }
    }

    #[test]
    fn endpoints_are_named_or_those_of_a_net() {
        let plain = parameters("").unwrap();
        assert_eq!((plain.urls.len(), plain.watch_nodes), (1, false));
        let two = parameters("--endpoint http://a:1 --url http://b:2").unwrap();
        assert_eq!(
            (two.urls, two.watch_nodes),
            (vec!["http://a:1".into(), "http://b:2".into()], true)
        );
        let folder = std::env::temp_dir().join(format!("hammer-net-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("net.json"), r#"{"nodes": [{"http": "127.0.0.1:5", "x": 1}]}"#)
            .unwrap();
        let net = parameters(&format!("--net {}", folder.display()));
        std::fs::remove_dir_all(&folder).unwrap();
        let net = net.unwrap();
        assert_eq!((net.urls, net.watch_nodes), (vec!["http://127.0.0.1:5".into()], true));
    }

    #[test]
    fn all_is_every_mode_and_soak_alone_is_long() {
        let all = parameters("--mode all").unwrap();
        assert_eq!(all.modes.len(), 12);
        assert_eq!(all.seconds, 10.0);
        assert_eq!(parameters("--mode soak").unwrap().seconds, 14_400.0);
    }
}
