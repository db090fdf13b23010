//! Sites by bytes: for a terminal, and as JSON.

use std::{cmp::Reverse, collections::BTreeMap, fmt::Write};

use dashboard::text::{short, signed};
use serde::Serialize;

use crate::{
    command::{By, Program},
    names,
    profile::{Amount, Profile},
};

/// A site, and its allocations. Bytes and objects are estimates; live ones are negative where the
/// profile is of the changes between two moments and more was freed than allocated.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Site {
    /// The nearest function that allocates for itself.
    pub(crate) site: String,
    /// The nearest function of the program's own that had it allocate, if it is another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) caller: Option<String>,
    #[serde(flatten)]
    pub(crate) amount: Amount,
}

/// Cost of sampling to the node.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Cost {
    /// The allocator's records of stacks, as grown since sampling began.
    pub(crate) profiler_bytes: u64,
    /// At which sampling stops.
    pub(crate) profiler_bytes_max: u64,
    /// The most that live samples take beyond their requested bytes.
    pub(crate) slab_bytes: u64,
    /// Whether sampling stopped.
    pub(crate) stopped: bool,
}

/// Everything that is shown, in the form for machines.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) program: String,
    pub(crate) pid: u32,
    pub(crate) build_id: String,
    pub(crate) since_millis: u64,
    pub(crate) taken_millis: u64,
    pub(crate) sample_bytes: u64,
    #[serde(flatten)]
    pub(crate) amount: Amount,
    pub(crate) stacks: usize,
    pub(crate) cost: Cost,
    /// Sites beyond those listed.
    pub(crate) sites_left_out: usize,
    pub(crate) sites: Vec<Site>,
    #[serde(skip)]
    between: bool,
}

/// Each sampled allocation that is smaller takes this many bytes of its own.
const SLAB_BYTES: i64 = 16 << 10;

/// Sums up by site; the largest first.
pub(crate) fn report(profile: &Profile, by: By, top: usize) -> Report {
    let short: Vec<String> = profile.frames.iter().map(|frame| names::short(&frame.name)).collect();
    let mut sums: BTreeMap<(&str, Option<&str>), Amount> = BTreeMap::new();
    let mut slab_bytes = 0_i64;
    for stack in &profile.stacks {
        let Some(site) = profile.site(stack) else { continue };
        let site = short[site].as_str();
        let caller = profile.caller(stack).map(|caller| short[caller].as_str());
        let amount = &stack.amount;
        sums.entry((site, caller.filter(|caller| *caller != site))).or_default().add(amount);
        let size = amount.live_bytes.checked_div(amount.live_objects).unwrap_or(SLAB_BYTES);
        let more = SLAB_BYTES.saturating_sub(size).clamp(0, SLAB_BYTES);
        slab_bytes = slab_bytes.saturating_add(amount.live_samples.max(0).saturating_mul(more));
    }
    let mut sites: Vec<Site> = sums
        .into_iter()
        .map(|((site, caller), amount)| Site {
            site: site.to_owned(),
            caller: caller.map(str::to_owned),
            amount,
        })
        .collect();
    match by {
        // Between two moments freed memory is as much of a change as allocated memory.
        By::Live if profile.between => sites.sort_by_key(|Site { amount, .. }| {
            Reverse((amount.live_bytes.unsigned_abs(), amount.total_bytes))
        }),
        By::Live => sites
            .sort_by_key(|Site { amount, .. }| Reverse((amount.live_bytes, amount.total_bytes))),
        By::Total => sites
            .sort_by_key(|Site { amount, .. }| Reverse((amount.total_bytes, amount.live_bytes))),
    }
    let sites_left_out = sites.len().saturating_sub(top);
    sites.truncate(top);
    let head = &profile.head;
    Report {
        program: head.program.clone(),
        pid: head.pid,
        build_id: head.build_id.clone(),
        since_millis: profile.since_millis,
        taken_millis: head.taken_millis,
        sample_bytes: head.sample_bytes,
        amount: profile.sum,
        stacks: profile.stacks.len(),
        cost: Cost {
            profiler_bytes: head.profiler_bytes,
            profiler_bytes_max: head.profiler_bytes_max,
            slab_bytes: u64::try_from(slab_bytes).unwrap_or_default(),
            stopped: head.stopped,
        },
        sites_left_out,
        sites,
        between: profile.between,
    }
}

/// A part of a sum in percent; empty where the sum is zero.
pub(crate) fn share(part: i64, sum: i64) -> String {
    if sum <= 0 || part < 0 {
        return String::from("-");
    }
    format!("{:.1} %", part as f64 * 100.0 / sum as f64)
}

/// `2 m 5 s`.
pub(crate) fn duration(millis: u64) -> String {
    let seconds = millis / 1000;
    match seconds {
        0..60 => format!("{}.{} s", seconds, millis % 1000 / 100),
        60..3600 => format!("{} m {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} m", seconds / 3600, seconds % 3600 / 60),
    }
}

/// Decimal digits in groups of three, separated by commas: `1,234`.
fn grouped(value: i64) -> String {
    let digits = value.unsigned_abs().to_string();
    let mut out = String::from(if value < 0 { "-" } else { "" });
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

impl Report {
    /// Title of the report, in one sentence.
    pub(crate) fn title(&self) -> String {
        let time = duration(self.taken_millis.saturating_sub(self.since_millis));
        if self.between {
            format!(
                "{} allocated within {time}, live bytes changed by {}",
                signed(self.amount.total_bytes),
                signed(self.amount.live_bytes)
            )
        } else {
            format!(
                "{} live, {} allocated since sampling began {time} before",
                signed(self.amount.live_bytes),
                signed(self.amount.total_bytes)
            )
        }
    }

    pub(crate) fn text(&self, program: &Program) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(out, "{}, process {}: {}", self.program, self.pid, self.title());
        let _ = writeln!(
            out,
            "sampled     one allocation in {}: {} live samples, {} in all, {} call stacks; n \
             samples are known to 1 in the root of n",
            short(self.sample_bytes),
            grouped(self.amount.live_samples),
            grouped(self.amount.total_samples),
            self.stacks
        );
        let _ = writeln!(
            out,
            "cost        {} of {} for records of call stacks; up to {} as each sample has its own slab",
            short(self.cost.profiler_bytes),
            short(self.cost.profiler_bytes_max),
            short(self.cost.slab_bytes)
        );
        if self.cost.stopped {
            let _ = writeln!(
                out,
                "stopped     nothing new is sampled: the records reached heap.profiler_bytes; \
                 what was counted still falls when it is freed. Start {} again to go on",
                program.name
            );
        }
        let live = if self.between { "live +/-" } else { "live" };
        let _ = writeln!(
            out,
            "\n{live:>10} {:>7} {:>11} {:>11} {:>7} {:>9}  site",
            "share", "objects", "total", "share", "samples"
        );
        for site in &self.sites {
            let amount = &site.amount;
            let _ = writeln!(
                out,
                "{:>10} {:>7} {:>11} {:>11} {:>7} {:>9}  {}",
                signed(amount.live_bytes),
                share(amount.live_bytes, self.amount.live_bytes),
                grouped(amount.live_objects),
                signed(amount.total_bytes),
                share(amount.total_bytes, self.amount.total_bytes),
                grouped(amount.total_samples),
                site.site
            );
            if let Some(caller) = &site.caller {
                let _ = writeln!(out, "{:61} for {caller}", "");
            }
        }
        if self.sites_left_out > 0 {
            let _ = writeln!(out, "\nfurther sites: {}; --top shows them", self.sites_left_out);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{PROGRAM, profile};

    #[test]
    fn sites_are_summed_up_and_the_largest_is_first() {
        let report = report(&profile(), By::Live, 2);
        let shown: Vec<_> =
            report.sites.iter().map(|site| (&site.site[..], site.caller.as_deref())).collect();
        assert_eq!(shown, [("library::Buffer::grow", Some("own::read")), ("own::index", None)]);
        assert_eq!(report.sites[0].amount.live_bytes, 3 << 20);
        assert_eq!(report.sites_left_out, 1);
        let text = report.text(&PROGRAM);
        for words in
            ["60.0 %", "for own::read", "further sites: 1", "3.0 MiB", "process 7", "4 call stacks"]
        {
            assert!(text.contains(words), "{words} is missing in\n{text}");
        }
        let width = text.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(width <= 140, "{text}");
    }

    #[test]
    fn between_two_moments_the_largest_change_is_first() {
        let mut between = profile();
        between.between = true;
        between.stacks[2].amount.live_bytes = -(9 << 20);
        let report = report(&between, By::Live, 1);
        assert_eq!(
            (&report.sites[0].site[..], report.sites[0].amount.live_bytes),
            ("own::index", -(9 << 20))
        );
        assert!(report.text(&PROGRAM).contains("live +/-"));
    }

    #[test]
    fn by_total_other_sites_are_first() {
        let report = report(&profile(), By::Total, 10);
        assert_eq!(report.sites[0].site, "own::answer");
        assert_eq!((report.sites[0].amount.live_bytes, report.sites_left_out), (0, 0));
    }

    #[test]
    fn a_profile_that_stopped_says_so() {
        let mut stopped = profile();
        stopped.head.stopped = true;
        assert!(report(&stopped, By::Live, 1).text(&PROGRAM).contains("heap.profiler_bytes"));
        let mut empty = profile();
        empty.stacks.clear();
        empty.sum = Amount::default();
        assert!(report(&empty, By::Live, 1).text(&PROGRAM).contains("0 B live"));
    }

    #[test]
    fn figures_are_short() {
        assert_eq!((grouped(1_234_567), grouped(-12)), ("1,234,567".into(), "-12".into()));
        assert_eq!(
            (share(1, 3), share(1, 0), share(-1, 5)),
            ("33.3 %".into(), "-".into(), "-".into())
        );
        assert_eq!((duration(1_230), duration(125_000)), ("1.2 s".into(), "2 m 5 s".into()));
    }
}
