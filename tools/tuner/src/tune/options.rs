//! `thimble-lab tune`: what is asked on the command line.

use std::{ops::RangeInclusive, path::PathBuf, time::Duration};

use accounting::parse_size;
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use regex::Regex;

use crate::{
    knob::By,
    lateness::{Goal, number_and_unit},
    run::{Probe, Ready},
    search::Objective,
};

/// Least cap: less holds no process.
const MEMORY_BYTES_MIN: u64 = 4 * accounting::MIB;
/// Without --seconds: how long a program is measured, and which part of the budget a load may
/// take, and seconds at least.
const SECONDS: f64 = 10.0;
const LOAD_PART: f64 = 0.1;
const LOAD_SECONDS_MIN: f64 = 30.0;
/// Largest pattern, compiled.
const PATTERN_BYTES_MAX: usize = 1 << 20;

/// Command line of `thimble-lab tune`.
#[derive(Args)]
pub struct Options {
    /// Most memory the command may hold, page cache included (as `thimble-lab cap`). [default: the
    /// machine's]
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    pub(super) memory: Option<u64>,
    /// The deadline: p50, p90, p99 or max of what is asked or of its beats, or misses: 'p99<50ms',
    /// 'max<1s', 'misses<1'. [default: about that of the default settings, where lateness is
    /// measured]
    #[arg(long, value_name = "GOAL")]
    pub(super) lateness: Option<Goal>,
    /// What is to be made small.
    #[arg(long, value_name = "GOAL", value_enum, default_value_t)]
    pub(super) goal: Objective,
    /// Most time in all, confirmation included: 90s, 10m, 1h. A search begun again gets what is
    /// left.
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = time)]
    pub(super) budget: Duration,
    /// How long each run is measured once the command is ready; with --load, the most a load may
    /// take. [default: 10; with --load a tenth of the budget, 30 at least, and once it ended in
    /// some run, three times as long as there]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(super) seconds: Option<f64>,
    /// Work that is put on the command in each run, as for a shell; the run ends with it. Our own
    /// drivers need no path: 'hammer --url ...', 'stress --node ...'.
    #[arg(long, value_name = "COMMAND")]
    load: Option<String>,
    /// With --load: the run continues for --seconds, whenever the load ends.
    #[arg(long, requires = "load")]
    pub(super) past_load: bool,
    /// Ask this page at --rate, and note how late each answer is.
    #[arg(long, value_name = "URL", group = "question")]
    http: Option<String>,
    /// Connect to this address at --rate.
    #[arg(long, value_name = "HOST:PORT", group = "question")]
    tcp: Option<String>,
    /// Call a JSON-RPC method at --rate: address, method, and parameters as JSON.
    #[arg(long, num_args = 2..=3, value_names = ["URL", "METHOD", "PARAMETERS"], group = "question")]
    rpc: Vec<String>,
    /// Run this command of the shell at --rate; status 0 is an answer.
    #[arg(long, value_name = "COMMAND", group = "question")]
    probe: Option<String>,
    /// Questions per second.
    #[arg(long, value_name = "NUMBER", default_value_t = 20.0, value_parser = rate)]
    pub(super) rate: f64,
    /// Lines of the command that are beats (a regular expression): group 1 is how late the beat is
    /// in milliseconds; without a group, a beat is due every --beat-every.
    #[arg(long, value_name = "PATTERN", value_parser = pattern)]
    pub(super) beat: Option<Regex>,
    /// Time between two beats.
    #[arg(long, value_name = "TIME", requires = "beat", value_parser = time)]
    pub(super) beat_every: Option<Duration>,
    /// Lines of the command that report a missed deadline (a regular expression).
    #[arg(long, value_name = "PATTERN", value_parser = pattern)]
    pub(super) miss: Option<Regex>,
    /// When the command is ready: 'line:PATTERN', 'http:URL' or 'tcp:HOST:PORT'. [default: its
    /// first answer or beat]
    #[arg(long, value_name = "SIGN", value_parser = ready)]
    pub(super) ready: Option<Ready>,
    /// How long it may take to be ready.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = time)]
    pub(super) ready_within: Duration,
    /// Settings of this runtime: ghc, go, jvm, node, dotnet, glibc, jemalloc, mimalloc, thimble,
    /// thimble-relay; may be repeated. [default: as found by looking at the program]
    #[arg(long, value_name = "NAME")]
    pub(super) runtime: Vec<String>,
    /// Settings of a file of your own (docs/tuning.md has the form); may be repeated.
    #[arg(long, value_name = "FILE")]
    pub(super) knobs: Vec<PathBuf>,
    /// Leave this setting alone; may be repeated.
    #[arg(long, value_name = "KNOB", allow_hyphen_values = true)]
    pub(super) skip: Vec<String>,
    /// How settings get to the program where both is possible. [default: as arguments, to a script
    /// by variables]
    #[arg(long, value_enum)]
    pub(super) by: Option<By>,
    /// A run counts for nothing, and is repeated, when others took more of all processors.
    #[arg(long, value_name = "PERCENT", default_value = "10%", value_parser = percent)]
    pub(super) busy: f64,
    /// Folder of the search: it contains the measurements, and a restarted search continues from
    /// them. [default: tune-PROGRAM]
    #[arg(long, value_name = "DIR")]
    pub(super) state: Option<PathBuf>,
    /// Start over, regardless of the content of the folder.
    #[arg(long)]
    pub(super) fresh: bool,
    /// Write the report to this file as JSON; - is standard output.
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
    /// Only print which settings would be tried.
    #[arg(long)]
    pub(super) list: bool,
    /// Only run the command as it is, this number of times, and print its figures.
    #[arg(long, value_name = "RUNS", conflicts_with = "list", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(super) measure: Option<u16>,
    /// Print the reports of these files (--json) as one table, and nothing else.
    #[arg(long, value_name = "FILE", num_args = 1.., exclusive = true)]
    pub(super) table: Vec<PathBuf>,
    /// The command and its arguments. {port}, {port2}, {port3} and {folder} stand for free ports
    /// and a fresh folder of each run, here, in --load and in the requests.
    #[arg(last = true, required_unless_present = "table", value_name = "COMMAND")]
    pub(super) command: Vec<String>,
}

impl Options {
    pub(super) fn question(&self) -> Option<Probe> {
        match (&self.http, &self.tcp, self.rpc.as_slice(), &self.probe) {
            (Some(address), ..) => Some(Probe::Http(address.clone())),
            (_, Some(address), ..) => Some(Probe::Tcp(address.clone())),
            (_, _, [address, method, parameters @ ..], _) => {
                Some(Probe::Rpc(address.clone(), method.clone(), parameters.first().cloned()))
            }
            (.., Some(command)) => Some(Probe::Command(command.clone())),
            _ => None,
        }
    }

    pub(super) fn load(&self) -> Option<&str> {
        self.load.as_deref()
    }

    pub(super) fn phase(&self) -> Duration {
        let usual = if self.load.is_some() && !self.past_load {
            (self.budget.as_secs_f64() * LOAD_PART).max(LOAD_SECONDS_MIN)
        } else {
            SECONDS
        };
        Duration::from_secs_f64(self.seconds.unwrap_or(usual))
    }

    /// Rejects options that cannot be combined.
    pub(super) fn check(&self) -> Result<()> {
        let measured = self.question().is_some() || self.beat.is_some() || self.miss.is_some();
        if let Some(goal) = self.lateness
            && !measured
        {
            bail!(
                "nothing says how late the command is, so {goal} cannot be judged; use --http, \
                 --tcp, --rpc, --probe, --beat or --miss"
            );
        }
        // A question is wrong before the first run, not in it.
        if let Some(question) = self.question() {
            let names = crate::run::example_names();
            question.target(&names).context("what is to be asked")?;
        }
        Ok(())
    }
}

fn memory(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text).map_err(|error| error.to_string())?;
    if bytes < MEMORY_BYTES_MIN {
        return Err(format!(
            "{} holds no program; the least is 4 MiB",
            accounting::format_size(bytes)
        ));
    }
    Ok(bytes)
}

/// `90s`, `10m`, `1h`, `250ms`.
fn time(text: &str) -> Result<Duration, String> {
    let advice = || format!("`{text}` is no time; times are such as 250ms, 90s, 10m, 1h");
    let (number, unit) = number_and_unit(text).ok_or_else(advice)?;
    let scale = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(advice()),
    };
    let seconds = number * scale;
    if !(0.001..=30.0 * 86_400.0).contains(&seconds) {
        return Err(format!("`{text}`: from 1 ms to 30 days"));
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// `ending` is left out; `what` and `bounds` are for the error text.
fn number(
    text: &str,
    ending: &str,
    range: RangeInclusive<f64>,
    (what, bounds): (&str, &str),
) -> Result<f64, String> {
    let number: Result<f64, _> = text.strip_suffix(ending).unwrap_or(text).parse();
    let number = number.map_err(|_| format!("`{text}` is no {what}"))?;
    if range.contains(&number) { Ok(number) } else { Err(format!("`{text}`: from {bounds}")) }
}

fn seconds(text: &str) -> Result<f64, String> {
    number(text, "", 0.1..=86_400.0, ("number of seconds", "0.1 to 86400 seconds"))
}

fn rate(text: &str) -> Result<f64, String> {
    number(text, "", 0.01..=10_000.0, ("rate", "0.01 to 10000 per second"))
}

fn percent(text: &str) -> Result<f64, String> {
    number(text, "%", 0.0..=100.0, ("percentage", "0% to 100%"))
}

fn pattern(text: &str) -> Result<Regex, String> {
    let built = regex::RegexBuilder::new(text).size_limit(PATTERN_BYTES_MAX).build();
    built.map_err(|error| error.to_string())
}

fn ready(text: &str) -> Result<Ready, String> {
    match text.split_once(':') {
        Some(("line", text)) => Ok(Ready::Line(pattern(text)?)),
        Some(("tcp", address)) => Ok(Ready::Answer(Probe::Tcp(address.to_owned()))),
        // The scheme may be given once or twice: http:http://... and http://...
        Some(("http", rest)) => {
            let address =
                if rest.starts_with("http://") { rest.to_owned() } else { text.to_owned() };
            Ok(Ready::Answer(Probe::Http(address)))
        }
        _ => Err(format!("`{text}` is no sign; signs are line:PATTERN, http:URL, tcp:HOST:PORT")),
    }
}

/// The machine's memory.
pub(super) fn machine_bytes() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").context("reading /proc/meminfo")?;
    let kib =
        text.lines().find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next());
    let kib: u64 = kib.and_then(|kib| kib.parse().ok()).context("/proc/meminfo has no MemTotal")?;
    ensure!(kib > 0, "/proc/meminfo says that there is no memory");
    Ok(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_wrongly_is_refused_with_an_example() {
        assert_eq!(time("10m"), Ok(Duration::from_secs(600)));
        assert_eq!(time("250ms"), Ok(Duration::from_millis(250)));
        for (said, example) in [
            (time("10").unwrap_err(), "90s"),
            (time("0s").unwrap_err(), "1 ms"),
            (memory("1MiB").unwrap_err(), "4 MiB"),
            (seconds("0").unwrap_err(), "86400"),
            (rate("-1").unwrap_err(), "10000"),
            (percent("x").unwrap_err(), "percentage"),
            (ready("up").unwrap_err(), "line:PATTERN"),
            (pattern("(").unwrap_err(), "unclosed"),
        ] {
            assert!(said.contains(example), "{said}");
        }
        assert!(matches!(ready("http://127.0.0.1:1/x"), Ok(Ready::Answer(Probe::Http(address)))
            if address == "http://127.0.0.1:1/x"));
        assert!(matches!(ready("tcp:127.0.0.1:1"), Ok(Ready::Answer(Probe::Tcp(_)))));
        assert!(matches!(ready("line:^ready$"), Ok(Ready::Line(_))));
    }
}
