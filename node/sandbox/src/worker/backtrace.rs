//! The backtrace of a trap: which functions of the canister were being called, innermost first.
//!
//! It is a part of what callers and logs get, so it is a function of the module and of what ran
//! (docs/internals/modules.md). No text of the engine is used. The form is the public network's: a
//! heading, one line for each frame, a line break behind each.
//!
//! The engine lists all frames, of which the innermost are used: 16 bytes each, of a stack of 4 MiB
//! whose frames have 32 at least. So the list takes 2 MiB at most, and half of that while it grows.
//! It is gone before the answer is encoded, whose room (`limits`, worker buffers) it takes: a
//! message that trapped has no reply.

use std::fmt::Write;

use wasmtime::{Error, WasmBacktrace};

/// The heading and the lines of the frames in `error`; empty without any name. `added_import` is
/// the index of the imported function that instrumentation added; defined functions follow it.
pub(super) fn backtrace(error: &Error, added_import: Option<u32>) -> String {
    let Some(trace) = error.downcast_ref::<WasmBacktrace>() else { return String::new() };
    let frames = trace.frames().iter().map(|frame| (frame.func_index(), frame.func_name()));
    lines(frames, added_import)
}

fn lines<'a>(
    frames: impl Iterator<Item = (u32, Option<&'a str>)>,
    added_import: Option<u32>,
) -> String {
    let mut text = String::from("Canister Backtrace:\n");
    let mut is_named = false;
    for (index, name) in frames {
        // Writing to a string does not fail.
        let _ = match name {
            // A function that instrumentation added.
            Some("") => Ok(()),
            Some(name) => {
                is_named = true;
                writeln!(text, "{name}")
            }
            None => {
                let is_behind = added_import.is_some_and(|added| index > added);
                let uploaded = if is_behind { index - 1 } else { index };
                writeln!(text, "unknown function at index {uploaded}")
            }
        };
    }
    if is_named { text } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_without_a_name_show_the_index_in_the_uploaded_module() {
        let frames = [(7, Some("inner")), (9, Some("")), (1, None), (5, None)];
        assert_eq!(
            lines(frames.into_iter(), Some(2)),
            "Canister Backtrace:\ninner\nunknown function at index 1\nunknown function at index 4\n"
        );
    }

    // Promise: P9 - A module without a name section has no backtrace.
    #[test]
    fn a_module_without_names_has_no_backtrace() {
        let frames = [(7, None), (9, None)];
        assert_eq!(lines(frames.into_iter(), None), "");
        assert_eq!(lines([].into_iter(), None), "");
    }

    #[test]
    fn the_bound_covers_the_longest_backtrace() {
        let name = "n".repeat(crate::module::NAME_BYTES_MAX);
        let frames = [(0, Some(name.as_str())); crate::engine::BACKTRACE_FRAMES_MAX];
        let longest = lines(frames.into_iter(), None);
        assert!(longest.len() <= crate::BACKTRACE_BYTES_MAX, "{}", longest.len());
    }
}
