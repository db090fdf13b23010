//! Problems of a program's memory, with a text, and the setting to try: one small rule for each
//! fault, over [`Facts`].

use accounting::{MIB, format_size};
use serde::Serialize;

use super::{knobs, process_settings::ProcessSettings};

/// So long a program has to rest before it counts as idle.
pub(crate) const IDLE_SECONDS: f64 = 3.0;
/// A program below this share of one processor rests.
pub(crate) const IDLE_CPU_PERCENT: f64 = 5.0;
/// Differences below this are not worth a word.
const WORTH_BYTES: u64 = 24 * MIB;
/// Least number of values, and of seconds between them, from which growth is concluded.
const GROWTH_VALUES_MIN: usize = 8;
const GROWTH_SECONDS_MIN: f64 = 4.0;
/// Outside the heap, a program grows for a while after its start.
const GROWTH_OUTSIDE_SECONDS_MIN: f64 = 20.0;
/// Growth must last this long where the collector does not report live memory.
const GROWTH_BLIND_SECONDS_MIN: f64 = 60.0;
/// Share of a peak that must be returned for the memory to count as reduced.
const GIVEN_BACK_SHARE: f64 = 0.2;
/// A group this full is at its cap. Thousandths.
const NEAR_CAP_PER_MILLE: u64 = 900;

/// Input of the rules.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts<'a> {
    /// Name of the runtime, or of the allocator when there is none.
    pub(crate) runtime: &'static str,
    pub(crate) settings: ProcessSettings,
    /// How long the program has been idle; 0 when it works.
    pub(crate) idle_seconds: f64,
    pub(crate) anonymous_bytes: u64,
    /// Most so far, and the least before it.
    pub(crate) peak_bytes: u64,
    pub(crate) before_peak_bytes: u64,
    pub(crate) live_bytes: Option<u64>,
    pub(crate) heap_bytes: Option<u64>,
    /// Over time: live after major collections, anonymous memory, and anonymous memory outside the
    /// heap.
    pub(crate) lives: &'a [(f64, u64)],
    pub(crate) residents: &'a [(f64, u64)],
    pub(crate) outsides: &'a [(f64, u64)],
    pub(crate) threads_first: u64,
    pub(crate) threads: u64,
    /// Of the newest time: the collector's share of the program's CPU time, in per cent.
    pub(crate) collector_percent: Option<f64>,
    pub(crate) collector_percent_max: f64,
    /// Of the whole watch.
    pub(crate) pause_max_millis: f64,
    pub(crate) pauses_long: u64,
    pub(crate) pause_limit_millis: f64,
    /// Of the smallest group around it.
    pub(crate) cap_bytes: Option<u64>,
    pub(crate) group_bytes: u64,
    pub(crate) oom_kills: u64,
    pub(crate) swap_bytes: u64,
}

/// A setting to try.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub(crate) struct Knob {
    /// As it is written.
    pub(crate) setting: &'static str,
    pub(crate) why: &'static str,
}

/// Something that is wrong.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub(crate) struct Finding {
    /// A name for programs.
    pub(crate) name: &'static str,
    pub(crate) text: String,
    pub(crate) knobs: Vec<Knob>,
}

/// A rule: its name, what is wrong if it is, and the settings for that by the runtime.
type Rule = (&'static str, fn(&Facts<'_>) -> Option<String>, fn(&str) -> Vec<Knob>);

const RULES: [Rule; 10] = [
    ("killed", kills, knobs::smaller_heap),
    ("live_grows", live_grows, knobs::heap_profile),
    ("holds_garbage", holds_garbage, knobs::give_back),
    ("peak_kept", peak_kept, knobs::give_back),
    ("resident_grows", resident_grows, knobs::give_back),
    ("outside_grows", outside_grows, knobs::outside),
    ("collector_busy", collector_busy, knobs::larger_heap),
    ("long_pauses", pauses, knobs::shorter_pauses),
    ("near_cap", near_cap, knobs::smaller_heap),
    ("swap", swap, knobs::smaller_heap),
];

/// Everything that is wrong now, the worst first.
pub(crate) fn all(facts: &Facts<'_>) -> Vec<Finding> {
    let found = |&(name, rule, knobs): &Rule| {
        Some(Finding { name, text: rule(facts)?, knobs: knobs(facts.runtime) })
    };
    RULES.iter().filter_map(found).collect()
}

fn kills(facts: &Facts<'_>) -> Option<String> {
    (facts.oom_kills > 0).then(|| {
        format!(
            "The kernel killed {} of its group for lack of memory{} during the watch.",
            if facts.oom_kills == 1 {
                "a process".to_owned()
            } else {
                format!("{} processes", facts.oom_kills)
            },
            facts
                .cap_bytes
                .map(|cap| format!(" under its cap of {}", format_size(cap)))
                .unwrap_or_default()
        )
    })
}

/// Memory in use keeps growing over full collections.
fn live_grows(facts: &Facts<'_>) -> Option<String> {
    let (from, to, seconds) = growth(facts.lives, GROWTH_SECONDS_MIN)?;
    Some(format!(
        "Live memory grows: {} to {} within {seconds:.0} s, each time after the whole heap \
         was collected. That is data the program still refers to (a leak, or a cache without \
         a bound): no setting of the collector will help, the program has to let go.",
        format_size(from),
        format_size(to)
    ))
}

/// Idle, and much more memory is held than is live.
fn holds_garbage(facts: &Facts<'_>) -> Option<String> {
    let live = facts.live_bytes?;
    // These two have much memory outside their heap, so only the heap is judged.
    let own_heap = matches!(facts.runtime, "jvm" | "node");
    let held = facts.heap_bytes.filter(|_| own_heap).unwrap_or(facts.anonymous_bytes);
    // A copying collector needs twice what lives while it works.
    let expected = live.saturating_mul(2).max(live.saturating_add(WORTH_BYTES));
    (facts.idle_seconds >= IDLE_SECONDS && held > expected).then(|| {
        format!(
            "At rest for {:.0} s it holds {} for {} that live ({:.1} times): the rest is garbage \
             or free memory that its runtime keeps.{}",
            facts.idle_seconds,
            format_size(held),
            format_size(live),
            held as f64 / live.max(1) as f64,
            knobs::explain_settings(facts.runtime, &facts.settings)
        )
    })
}

/// A peak followed by idle time, without returned memory.
fn peak_kept(facts: &Facts<'_>) -> Option<String> {
    let rise = facts.peak_bytes.saturating_sub(facts.before_peak_bytes);
    let fallen = facts.peak_bytes.saturating_sub(facts.anonymous_bytes);
    let kept = (fallen as f64) < rise as f64 * GIVEN_BACK_SHARE;
    let is_it = facts.idle_seconds >= IDLE_SECONDS && rise > WORTH_BYTES && kept;
    // With live memory known, the other rules decide whether that is a problem.
    (is_it && facts.live_bytes.is_none()).then(|| {
        format!(
            "It grew from {} to {} while it worked, and after {:.0} s at rest {} of it is still \
             held. How much of it is live is not reported.{}",
            format_size(facts.before_peak_bytes),
            format_size(facts.peak_bytes),
            facts.idle_seconds,
            format_size(facts.anonymous_bytes),
            knobs::explain_settings(facts.runtime, &facts.settings)
        )
    })
}

/// Held memory keeps growing, and live memory is not reported.
fn resident_grows(facts: &Facts<'_>) -> Option<String> {
    if facts.live_bytes.is_some() {
        return None;
    }
    let (from, to, seconds) = growth(facts.residents, GROWTH_BLIND_SECONDS_MIN)?;
    Some(format!(
        "Anonymous memory grows: {} to {} within {seconds:.0} s and never came back. Whether \
         it is live data (a leak, which no setting cures) or memory that is kept, the \
         runtime's log would tell.",
        format_size(from),
        format_size(to)
    ))
}

/// The heap keeps its size, and memory outside it grows.
fn outside_grows(facts: &Facts<'_>) -> Option<String> {
    let (from, to, seconds) = growth(facts.outsides, GROWTH_OUTSIDE_SECONDS_MIN)?;
    let more_threads = facts.threads > facts.threads_first.saturating_mul(3) / 2 + 8;
    let threads = match more_threads {
        true => format!(" Threads went from {} to {}.", facts.threads_first, facts.threads),
        false => String::new(),
    };
    Some(format!(
        "Memory outside the collected heap grows: {} to {} within {seconds:.0} s. It is thread \
         stacks, buffers of libraries, or arenas of the C allocator.{threads}",
        format_size(from),
        format_size(to)
    ))
}

fn collector_busy(facts: &Facts<'_>) -> Option<String> {
    let share = facts.collector_percent.filter(|share| *share > facts.collector_percent_max)?;
    Some(format!(
        "The collector takes {share:.0} % of the program's CPU time; above {:.0} % it is \
         short of memory.",
        facts.collector_percent_max
    ))
}

fn pauses(facts: &Facts<'_>) -> Option<String> {
    (facts.pauses_long > 0).then(|| {
        format!(
            "The collector stopped the program for up to {:.0} ms; {} {} longer than {:.0} ms.",
            facts.pause_max_millis,
            facts.pauses_long,
            if facts.pauses_long == 1 { "pause was" } else { "pauses were" },
            facts.pause_limit_millis
        )
    })
}

fn near_cap(facts: &Facts<'_>) -> Option<String> {
    let cap = facts.cap_bytes.filter(|cap| *cap > 0)?;
    let full = facts.group_bytes / (cap / 1000).max(1) >= NEAR_CAP_PER_MILLE;
    full.then(|| {
        format!(
            "Its group holds {} of anonymous memory under a cap of {}: the kernel kills when it \
             reaches it.",
            format_size(facts.group_bytes),
            format_size(cap)
        )
    })
}

fn swap(facts: &Facts<'_>) -> Option<String> {
    (facts.swap_bytes > MIB).then(|| {
        format!(
            "{} of it is in swap. A collector touches all of its heap: each major collection \
             reads that back from disk.",
            format_size(facts.swap_bytes)
        )
    })
}

/// Whether the lows of four equal parts of the time rise each time, and by something: from, to,
/// seconds. Memory that grows at first and then stays constant does not count as growth.
fn growth(values: &[(f64, u64)], seconds_min: f64) -> Option<(u64, u64, f64)> {
    let (first, last) = (values.first()?.0, values.last()?.0);
    let seconds = last - first;
    if values.len() < GROWTH_VALUES_MIN || seconds < seconds_min {
        return None;
    }
    let mut lows = [u64::MAX; 4];
    for (at, bytes) in values {
        let quarter = (((at - first) / seconds * 4.0) as usize).min(3);
        lows[quarter] = lows[quarter].min(*bytes);
    }
    let [one, two, three, four] = lows;
    let rise = four.saturating_sub(one);
    let steady = one < two && two < three && three < four && four - three >= rise / 10;
    let enough = four != u64::MAX && rise >= WORTH_BYTES / 3 && rise >= one / 5;
    (steady && enough).then_some((one, four, seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(facts: &Facts<'_>) -> Vec<&'static str> {
        all(facts).iter().map(|finding| finding.name).collect()
    }

    fn rising(step: u64) -> Vec<(f64, u64)> {
        (0..16_u32).map(|at| (f64::from(at), 40 * MIB + u64::from(at) * step)).collect()
    }

    #[test]
    fn a_healthy_program_has_no_finding() {
        let facts = Facts {
            runtime: "go",
            idle_seconds: 60.0,
            anonymous_bytes: 100 * MIB,
            peak_bytes: 300 * MIB,
            before_peak_bytes: 50 * MIB,
            live_bytes: Some(80 * MIB),
            heap_bytes: Some(160 * MIB),
            collector_percent: Some(5.0),
            collector_percent_max: 20.0,
            pause_limit_millis: 100.0,
            cap_bytes: Some(1 << 30),
            group_bytes: 100 * MIB,
            ..Facts::default()
        };
        assert_eq!(names(&facts), [""; 0]);
        assert_eq!(names(&Facts::default()), [""; 0]);
    }

    #[test]
    fn an_idle_program_with_garbage_gets_the_knob_of_its_runtime() {
        for (runtime, knob) in [
            ("ghc", "+RTS -I0.3 -Iw60"),
            ("go", "GOMEMLIMIT"),
            ("jvm", "G1PeriodicGCInterval"),
            ("node", "--max-semi-space-size"),
            ("glibc", "MALLOC_ARENA_MAX"),
            ("jemalloc", "dirty_decay_ms"),
        ] {
            let mut facts = Facts {
                runtime,
                idle_seconds: IDLE_SECONDS,
                anonymous_bytes: 600 * MIB,
                heap_bytes: Some(500 * MIB),
                live_bytes: Some(170 * MIB),
                ..Facts::default()
            };
            let findings = all(&facts);
            assert_eq!(findings.len(), 1, "{runtime}");
            assert_eq!(findings[0].name, "holds_garbage");
            assert!(findings[0].knobs.iter().any(|it| it.setting.contains(knob)), "{runtime}");
            facts.idle_seconds = 0.0;
            assert_eq!(names(&facts), [""; 0]);
        }
    }

    #[test]
    fn the_heap_is_judged_where_a_runtime_has_much_besides() {
        let facts = Facts {
            runtime: "jvm",
            idle_seconds: 10.0,
            anonymous_bytes: 150 * MIB,
            heap_bytes: Some(20 * MIB),
            live_bytes: Some(10 * MIB),
            ..Facts::default()
        };
        assert_eq!(names(&facts), [""; 0]);
    }

    #[test]
    fn idle_collections_switched_off_are_named() {
        let facts = Facts {
            runtime: "ghc",
            settings: ProcessSettings::new(&["p", "+RTS", "-I0", "-A64m"], &[]),
            idle_seconds: 10.0,
            anonymous_bytes: 5900 * MIB,
            live_bytes: Some(1700 * MIB),
            ..Facts::default()
        };
        assert!(all(&facts)[0].text.contains("-I0"), "{:?}", all(&facts));
    }

    #[test]
    fn live_memory_that_grows_is_no_matter_of_settings() {
        let lives = rising(5 * MIB);
        let facts =
            Facts { runtime: "node", lives: &lives, live_bytes: Some(1), ..Facts::default() };
        let findings = all(&facts);
        assert_eq!(findings[0].name, "live_grows");
        assert!(findings[0].text.contains("no setting"));
    }

    #[test]
    fn what_grows_at_first_and_then_stays_does_not_grow() {
        let mut values = rising(5 * MIB);
        for value in &mut values[6..] {
            value.1 = 70 * MIB;
        }
        assert_eq!(growth(&values, 1.0), None);
        // Nor does what goes up and down, what grows by little, or what was seen too shortly.
        let mut values = rising(5 * MIB);
        values[13].1 = 1;
        assert_eq!(growth(&values, 1.0), None);
        assert_eq!(growth(&rising(MIB / 64), 1.0), None);
        assert_eq!(growth(&rising(5 * MIB), 100.0), None);
        assert_eq!(growth(&rising(5 * MIB)[..4], 1.0), None);
        assert_eq!(growth(&[], 1.0), None);
        assert_eq!(growth(&[(1.0, 1); 20], 0.0), None);
    }

    #[test]
    fn a_peak_that_never_came_back_is_named_where_nobody_tells_what_lives() {
        let mut facts = Facts {
            runtime: "glibc",
            idle_seconds: 5.0,
            anonymous_bytes: 290 * MIB,
            peak_bytes: 300 * MIB,
            before_peak_bytes: 50 * MIB,
            ..Facts::default()
        };
        assert_eq!(names(&facts), ["peak_kept"]);
        facts.anonymous_bytes = 100 * MIB;
        assert_eq!(names(&facts), [""; 0]);
    }

    #[test]
    fn growth_without_a_log_has_to_last() {
        let slow: Vec<_> =
            rising(5 * MIB).into_iter().map(|(at, bytes)| (at * 10.0, bytes)).collect();
        let mut facts = Facts { runtime: "glibc", residents: &slow, ..Facts::default() };
        assert_eq!(names(&facts), ["resident_grows"]);
        let fast = rising(5 * MIB);
        facts.residents = &fast;
        assert_eq!(names(&facts), [""; 0]);
    }

    #[test]
    fn growth_beside_the_heap_names_threads() {
        let outsides: Vec<_> =
            rising(8 * MIB).into_iter().map(|(at, bytes)| (at * 2.0, bytes)).collect();
        let facts = Facts {
            runtime: "jvm",
            outsides: &outsides,
            threads_first: 20,
            threads: 200,
            ..Facts::default()
        };
        let findings = all(&facts);
        assert_eq!(findings[0].name, "outside_grows");
        assert!(findings[0].text.contains("from 20 to 200"));
        assert!(findings[0].knobs.iter().any(|knob| knob.setting.contains("MALLOC_ARENA_MAX")));
    }

    #[test]
    fn a_busy_collector_and_long_pauses_are_named() {
        let facts = Facts {
            runtime: "ghc",
            collector_percent: Some(35.0),
            collector_percent_max: 20.0,
            pause_max_millis: 250.0,
            pauses_long: 3,
            pause_limit_millis: 100.0,
            ..Facts::default()
        };
        assert_eq!(names(&facts), ["collector_busy", "long_pauses"]);
    }

    #[test]
    fn a_full_group_kills_and_swap_are_named() {
        let facts = Facts {
            runtime: "jvm",
            cap_bytes: Some(100 * MIB),
            group_bytes: 95 * MIB,
            oom_kills: 1,
            swap_bytes: 5 * MIB,
            ..Facts::default()
        };
        assert_eq!(names(&facts), ["killed", "near_cap", "swap"]);
        assert_eq!(names(&Facts { cap_bytes: Some(0), ..Facts::default() }), [""; 0]);
    }
}
