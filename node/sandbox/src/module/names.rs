//! Names of functions, for backtraces of traps, from a module's custom section `name`.
//!
//! A backtrace is a part of what callers and logs get, so it must be the same on every member: the
//! names are a function of the module's bytes, bounded here, and never those of another parser.
//!
//! - The first section `name` counts. One that is malformed anywhere gives no names at all.
//! - A name is demangled as Rust's where it is mangled so, cut to [`NAME_BYTES_MAX`], and control
//!   characters in it are replaced: each name is one line of a backtrace.
//! - Where a function is named twice the first name counts; an empty name is ignored.
//!
//! The version of `rustc-demangle` is pinned in the workspace. Changing it, or anything here,
//! changes what members answer: raise `INSTRUMENTATION_VERSION` in `engine.rs`.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use wasmparser::{BinaryReader, Name, NameSectionReader};

/// Name of the custom section.
pub(super) const SECTION: &str = "name";

/// Bytes of a function's name that are kept.
pub(crate) const NAME_BYTES_MAX: usize = 128;

/// Names of the first `functions` functions in the contents of a section `name`.
pub(super) fn function_names(section: BinaryReader<'_>, functions: u32) -> BTreeMap<u32, String> {
    read(section, functions).unwrap_or_default()
}

fn read(
    section: BinaryReader<'_>,
    functions: u32,
) -> Result<BTreeMap<u32, String>, wasmparser::BinaryReaderError> {
    let mut names = BTreeMap::new();
    for subsection in NameSectionReader::new(section) {
        let Name::Function(map) = subsection? else { continue };
        for naming in map {
            let naming = naming?;
            if naming.index < functions && !naming.name.is_empty() {
                names.entry(naming.index).or_insert_with(|| demangle_name(naming.name));
            }
        }
    }
    Ok(names)
}

/// A name as a backtrace shows it.
fn demangle_name(name: &str) -> String {
    let mut line = Line(String::new());
    // An error says that the line is full.
    let _ = match rustc_demangle::try_demangle(name) {
        // Without the hash of the symbol.
        Ok(demangled) => write!(line, "{demangled:#}"),
        Err(_) => line.write_str(name),
    };
    line.0
}

/// Text of one line, of at most [`NAME_BYTES_MAX`] bytes. Writing ends where it is full, so that
/// symbols which expand to much more cost no more.
struct Line(String);

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for letter in text.chars() {
            let letter = if letter.is_control() { char::REPLACEMENT_CHARACTER } else { letter };
            if self.0.len() + letter.len_utf8() > NAME_BYTES_MAX {
                return Err(fmt::Error);
            }
            self.0.push(letter);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use wasm_encoder::{NameMap, NameSection};

    use super::*;

    fn section(names: &[(u32, &str)]) -> Vec<u8> {
        let mut map = NameMap::new();
        for (index, name) in names {
            map.append(*index, name);
        }
        let mut section = NameSection::new();
        section.module("module");
        section.functions(&map);
        // The section begins with its id, its size and its own name.
        let mut bytes = Vec::new();
        wasm_encoder::Encode::encode(&section, &mut bytes);
        let at = bytes.windows(4).position(|window| window == b"name").unwrap_or_default() + 4;
        bytes.split_off(at)
    }

    fn names(bytes: &[u8], functions: u32) -> Vec<(u32, String)> {
        function_names(BinaryReader::new(bytes, 0), functions).into_iter().collect()
    }

    #[test]
    fn names_are_demangled_and_bounded_to_one_line_each() {
        let legacy = "_ZN4core9panicking9panic_fmt17h0123456789abcdefE";
        let long = "ä".repeat(100);
        let section =
            section(&[(0, legacy), (1, "_RNvC6_123foo3bar"), (2, &long), (3, "a\nb"), (4, "")]);
        assert_eq!(
            names(&section, 5),
            [
                (0, "core::panicking::panic_fmt".to_owned()),
                (1, "123foo::bar".to_owned()),
                (2, "ä".repeat(NAME_BYTES_MAX / 2)),
                (3, "a\u{fffd}b".to_owned()),
            ]
        );
    }

    #[test]
    fn functions_beyond_the_module_have_no_name() {
        assert_eq!(names(&section(&[(1, "in"), (2, "out")]), 2), [(1, "in".to_owned())]);
    }

    #[test]
    fn a_malformed_section_names_nothing() {
        let whole = section(&[(0, "a"), (1, "b")]);
        assert_eq!(names(&whole, 2).len(), 2);
        let cut = whole.get(..whole.len() - 1).unwrap_or_default();
        assert_eq!(names(cut, 2), []);
        assert_eq!(names(b"\xff\xff\xff", 2), []);
    }

    #[test]
    fn a_symbol_that_expands_without_end_is_cut() {
        // A tuple of back references, each of which doubles what the one before shows.
        let mut symbol = String::from("_RIC1a");
        symbol.push('T');
        for _ in 0..40 {
            symbol.push_str("TB5_B5_E");
        }
        symbol.push_str("EE");
        assert!(demangle_name(&symbol).len() <= NAME_BYTES_MAX);
    }
}
