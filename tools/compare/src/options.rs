//! Command line of `thimble-lab compare`.

use std::{ffi::OsString, path::PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Parser, ValueEnum};

const ERROR_MAX: f64 = 0.5;
/// Default of the part of verdicts that may be wrong.
pub(crate) const ERROR: f64 = 0.05;

/// Conditions for exit status 1 of `compare`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FailOn {
    /// Any test is slower.
    Slower,
    /// The whole is slower with a probability of more than 97.5 %.
    WholeSlower,
    /// Any test is slower or a lone outlier.
    Outlier,
    /// Any test is gone.
    Gone,
    /// Nothing is known of the noise of any test.
    Unknown,
}

/// Command line of `thimble-lab compare`.
#[derive(Args, Clone, Debug, Default)]
pub struct Options {
    /// Files or folders of earlier runs, one for each run: JUnit XML, JSON of this program (bench,
    /// bench-net, bench-relay, storm, stress, hammer, cap), target/criterion or
    /// target/criterion#NAME, hyperfine --export-json, go test -json, -v or -bench, pytest
    /// --durations=0 -vv, CSV (name,value).
    #[arg(value_name = "BASELINE", required_unless_present = "pair")]
    baseline: Vec<PathBuf>,
    /// Files or folders of runs of the change. Flags may come after them.
    #[arg(last = true, value_name = "CANDIDATE", required_unless_present = "pair")]
    candidate: Vec<OsString>,
    /// Where results go and how they are judged.
    #[command(flatten)]
    flags: Flags,
    /// Measuring by itself.
    #[command(flatten)]
    pub(crate) pair: crate::pair::Options,
}

#[derive(Args, Clone, Debug, Default)]
struct Flags {
    /// Write a page with pictures to this file; it needs no network.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write Markdown for a pull request to this file; - is standard output, instead of the table.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Write everything to this file; - is standard output, instead of the table
    /// (docs/compare.md).
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// End with status 1 on this; repeat for several.
    #[arg(long, value_name = "WHAT")]
    fail_on: Vec<FailOn>,
    /// More is better in tests whose name fits; * stands for anything. Repeat for several.
    #[arg(long, value_name = "PATTERN")]
    higher_is_better: Vec<String>,
    /// Less is better in tests whose name fits.
    #[arg(long, value_name = "PATTERN")]
    lower_is_better: Vec<String>,
    /// Part of the calls (faster, slower) that may be wrong. [default: 5%]
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    error: Option<f64>,
    /// Call no change that is smaller. [default: 0%]
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    least: Option<f64>,
    /// Show all tests, those within their noise too.
    #[arg(long)]
    all: bool,
}

/// Arguments after the files of the candidate.
#[derive(Parser)]
#[command(name = "compare", no_binary_name = true, disable_help_flag = true)]
struct After {
    files: Vec<PathBuf>,
    #[command(flatten)]
    flags: Flags,
}

/// Validated options.
#[derive(Clone, Debug)]
pub(crate) struct CompareSpec {
    pub(crate) baseline: Vec<PathBuf>,
    pub(crate) candidate: Vec<PathBuf>,
    pub(crate) html: Option<PathBuf>,
    pub(crate) markdown: Option<PathBuf>,
    pub(crate) json: Option<PathBuf>,
    pub(crate) fail_on: Vec<FailOn>,
    pub(crate) more: Vec<String>,
    pub(crate) less: Vec<String>,
    pub(crate) error: f64,
    pub(crate) least: f64,
    pub(crate) all: bool,
}

/// `5%` and `5` are 0.05.
pub(crate) fn percent(text: &str) -> Result<f64, String> {
    let number: f64 = text
        .trim()
        .trim_end_matches('%')
        .trim()
        .parse()
        .map_err(|_| format!("{text:?} is no percentage, such as 5%"))?;
    if number.is_finite() && (0.0..=100_000.0).contains(&number) {
        Ok(number / 100.0)
    } else {
        Err(format!("{text:?} must be between 0% and 100000%"))
    }
}

impl Options {
    /// Takes flags from behind the files of the candidate, and checks all.
    pub(crate) fn validate(&self) -> Result<CompareSpec> {
        // clap takes everything behind -- for files.
        let after = After::try_parse_from(&self.candidate)
            .map_err(|error| anyhow::anyhow!("behind --: {}", error.to_string().trim()))?;
        let (before, behind) = (self.flags.clone(), after.flags);
        let spec = CompareSpec {
            baseline: self.baseline.clone(),
            candidate: after.files,
            html: behind.html.or(before.html),
            markdown: behind.markdown.or(before.markdown),
            json: behind.json.or(before.json),
            fail_on: [before.fail_on, behind.fail_on].concat(),
            more: [before.higher_is_better, behind.higher_is_better].concat(),
            less: [before.lower_is_better, behind.lower_is_better].concat(),
            error: behind.error.or(before.error).unwrap_or(ERROR),
            least: behind.least.or(before.least).unwrap_or(0.0),
            all: before.all || behind.all,
        };
        ensure!(
            spec.error > 0.0 && spec.error <= ERROR_MAX,
            "--error: more than 0% and at most {}%",
            ERROR_MAX * 100.0
        );
        if self.pair.pair.is_empty() && spec.candidate.is_empty() {
            bail!("no candidate: write thimble-lab compare BASELINE... -- CANDIDATE");
        }
        Ok(spec)
    }
}

/// Whether a machine reads standard output.
pub(crate) fn is_stdout(path: Option<&PathBuf>) -> bool {
    path.is_some_and(|path| path.as_os_str() == "-")
}

/// Writes text to the file, or to standard output for `-`; it is made only if there is a path.
pub(crate) fn write(path: Option<&PathBuf>, text: impl FnOnce() -> Result<String>) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    let text = text()?;
    if is_stdout(Some(path)) {
        print!("{text}");
        return Ok(());
    }
    std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        options: Options,
    }

    fn parse_spec(arguments: &[&str]) -> Result<CompareSpec> {
        let all = ["x"].iter().chain(arguments);
        Cli::try_parse_from(all).map_err(|error| anyhow::anyhow!("{error}"))?.options.validate()
    }

    #[test]
    fn flags_may_stand_on_both_sides_of_the_candidate() {
        let one = parse_spec(&[
            "--all",
            "a",
            "b",
            "--",
            "c",
            "--html",
            "o.html",
            "d",
            "--fail-on",
            "slower",
        ]);
        let one = one.unwrap();
        assert_eq!(one.baseline, [PathBuf::from("a"), "b".into()]);
        assert_eq!(one.candidate, [PathBuf::from("c"), "d".into()]);
        assert_eq!(
            (one.html, one.fail_on, one.all),
            (Some("o.html".into()), vec![FailOn::Slower], true)
        );
    }

    #[test]
    fn invalid_options_are_rejected() {
        assert!(parse_spec(&["a"]).is_err());
        assert!(parse_spec(&["--", "c"]).is_err());
        assert!(
            parse_spec(&["a", "--", "--html", "x"])
                .unwrap_err()
                .to_string()
                .contains("no candidate")
        );
        assert!(parse_spec(&["a", "--", "c", "--htm", "x"]).is_err());
        assert!(parse_spec(&["a", "--error", "0", "--", "c"]).is_err());
        assert_eq!(percent("5%"), Ok(0.05));
        assert!(percent("-1").is_err() && percent("NaN").is_err() && percent("x").is_err());
    }
}
