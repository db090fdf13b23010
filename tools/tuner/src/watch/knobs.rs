//! Which setting of which runtime does what.

use super::{findings::Knob, process_settings::ProcessSettings};

/// A setting a line: the wish it is for, the runtime or allocator, the setting, and what it does.
const TABLE: &str = include_str!("knobs.tsv");

fn settings(wish: &str, runtime: &str) -> Vec<Knob> {
    let knob = |line: &'static str| {
        let mut columns = line.split('\t');
        let is_meant = columns.next()? == wish && columns.next()? == runtime;
        is_meant.then_some(Knob { setting: columns.next()?, why: columns.next()? })
    };
    TABLE.lines().filter_map(knob).collect()
}

fn or_else(knobs: Vec<Knob>, others: impl FnOnce() -> Vec<Knob>) -> Vec<Knob> {
    if knobs.is_empty() { others() } else { knobs }
}

/// Settings to hold less memory when idle.
pub(crate) fn give_back(runtime: &str) -> Vec<Knob> {
    or_else(settings("give_back", runtime), || settings("give_back", "glibc"))
}

/// A sentence on the process's settings that explains it; begins with a space.
pub(crate) fn explain_settings(runtime: &str, settings: &ProcessSettings) -> String {
    let words = settings.runtime_flags(runtime);
    let has = |test: fn(&str) -> bool| words.iter().copied().find(|word| test(word));
    match runtime {
        // The threaded runtime collects when idle unless a flag disables that.
        "ghc" => has(|word| matches!(word, "-I0" | "-I0.0"))
            .map(|word| format!(" It was started with {word}: idle collections are switched off.")),
        "go" => settings
            .variable("GOGC")
            .filter(|value| *value == "off" || value.parse().is_ok_and(|value: u32| value > 100))
            .map(|value| format!(" It was started with GOGC={value}."))
            .or_else(|| {
                let off =
                    settings.variable("GODEBUG")?.split(',').any(|word| word == "madvdontneed=0");
                off.then(|| {
                    " It was started with GODEBUG=madvdontneed=0: free memory stays until the \
                     kernel is short of it."
                        .to_owned()
                })
            }),
        "jvm" => has(|word| word.starts_with("-Xms") || word == "-XX:+AlwaysPreTouch")
            .map(|word| format!(" It was started with {word}.")),
        _ => None,
    }
    .unwrap_or_default()
}

/// It has to live with less.
pub(crate) fn smaller_heap(runtime: &str) -> Vec<Knob> {
    or_else(settings("smaller", runtime), || give_back(runtime))
}

/// The collector should work less.
pub(crate) fn larger_heap(runtime: &str) -> Vec<Knob> {
    settings("larger", runtime)
}

/// Pauses should be shorter.
pub(crate) fn shorter_pauses(runtime: &str) -> Vec<Knob> {
    settings("pauses", runtime)
}

/// Settings to reduce memory outside the heap.
pub(crate) fn outside(runtime: &str) -> Vec<Knob> {
    [settings("outside", runtime), settings("give_back", "glibc")].concat()
}

/// What holds the data.
pub(crate) fn heap_profile(runtime: &str) -> Vec<Knob> {
    settings("profile", runtime)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recognise::{ALLOCATORS, RUNTIMES};

    #[test]
    fn every_line_of_the_table_is_of_a_known_runtime() {
        for line in TABLE.lines() {
            let columns: Vec<&str> = line.split('\t').collect();
            let [_, runtime, _, _] = columns[..] else { panic!("{line}") };
            assert!(RUNTIMES.contains(&runtime) || ALLOCATORS.contains(&runtime), "{line}");
        }
        assert_eq!(give_back("").len(), 2);
        assert_eq!(smaller_heap("jemalloc").len(), 2);
        assert_eq!(outside("jvm").len(), 5);
    }
}
