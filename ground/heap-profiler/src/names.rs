//! Names of functions: as people write them, whose they are, and which of a stack is the site.
//!
//! The function that called the allocator is rarely the relevant one: it is a vector's or a map's.
//! The **site** is the nearest one that is of no such crate, its **caller** the nearest one of the
//! program's own crates.

/// Crates whose functions allocate on behalf of their callers.
const PLUMBING: [&str; 11] = [
    "alloc",
    "core",
    "std",
    "hashbrown",
    "tikv_jemallocator",
    "tikv_jemalloc_sys",
    "__rustc",
    "compiler_builtins",
    "allocator_api2",
    "bytes",
    "smallvec",
];
/// How names of the allocator's functions begin, which are at the beginning of a stack.
const ALLOCATOR: [&str; 22] = [
    "_rjem_",
    "je_",
    "prof_",
    "imalloc",
    "do_rallocx",
    "malloc",
    "calloc",
    "realloc",
    "reallocarray",
    "rallocx",
    "mallocx",
    "xallocx",
    "aligned_alloc",
    "posix_memalign",
    "memalign",
    "valloc",
    "__rust_alloc",
    "__rust_realloc",
    "__rdl_alloc",
    "__rdl_realloc",
    "__rg_",
    "arena_",
];

/// Owner of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owner {
    /// The allocator's, or a wrapper of it.
    Allocator,
    /// A crate's that allocates for others.
    Plumbing,
    /// Another crate's, or a library's in another language.
    Library,
    /// One of the crates of the program itself ([`crate::Program::own`]).
    Own,
}

/// The name that people know, without the linker's.
pub(crate) fn readable(linker: &str) -> String {
    // A part that the compiler split off a function counts as that function.
    let linker = linker.find(".llvm.").map_or(linker, |at| &linker[..at]);
    match rustc_demangle::try_demangle(linker) {
        Ok(name) => format!("{name:#}"),
        Err(_) => {
            let parts = [".constprop", ".isra", ".part", ".cold"];
            let end = parts.iter().filter_map(|part| linker.find(part)).min();
            end.map_or(linker, |at| &linker[..at]).to_owned()
        }
    }
}

/// The crate of a function's name, empty for other languages.
pub(crate) fn crate_of(name: &str) -> &str {
    let name = trait_of_parameter(name).unwrap_or(name);
    let name = name.trim_start_matches(['<', '&', '*', '(', '[', ' ']);
    let name =
        ["mut ", "dyn ", "const "].iter().fold(name, |name, word| name.trim_start_matches(word));
    let name = name.trim_start_matches(['<', '&', '*', '(', '[', ' ']);
    let end = name
        .find(|letter: char| !(letter.is_alphanumeric() || letter == '_'))
        .unwrap_or(name.len());
    let (crate_name, rest) = name.split_at(end);
    // `__rustc[1234]::__rust_alloc`: with its hash, where two versions differ by it alone.
    let rest =
        rest.strip_prefix('[').and_then(|rest| rest.split_once(']')).map_or(rest, |(_, rest)| rest);
    if rest.starts_with("::") { crate_name } else { "" }
}

/// Owner of a function, in a program with these crates of its own.
pub(crate) fn owner(name: &str, own: &[&str]) -> Owner {
    match crate_of(name) {
        "" if ALLOCATOR.iter().any(|start| name.starts_with(start)) => Owner::Allocator,
        "" => Owner::Library,
        "__rustc" => Owner::Allocator,
        found if own.contains(&found) => Owner::Own,
        found if PLUMBING.contains(&found) => Owner::Plumbing,
        _ => Owner::Library,
    }
}

/// A name without the parts in `<...>`, `{{closure}}` and the hashes of crates.
pub(crate) fn short(name: &str) -> String {
    let name = self_type(name);
    let outside = |(_, letter, depth): &(usize, char, usize)| {
        *depth == 0 && !['<', '>', '[', ']'].contains(letter)
    };
    let mut out: String = with_depth(&name).filter(outside).map(|(_, letter, _)| letter).collect();
    while let Some(at) = out.find("::::") {
        out.replace_range(at..at + 2, "");
    }
    let out = out.replace("::{{closure}}", "").replace("::{closure#0}", "");
    let out = out.trim_end_matches("::").trim();
    if out.is_empty() { name.to_owned() } else { out.to_owned() }
}

/// The text after ` as ` when the type before it is a parameter:
/// `<T as library::Upgrade>::upgrade`.
fn trait_of_parameter(name: &str) -> Option<&str> {
    let (parameter, rest) = name.strip_prefix('<')?.split_once(" as ")?;
    parameter.chars().all(char::is_alphanumeric).then_some(rest)
}

/// Letters with their places, and how many brackets are open behind each.
fn with_depth(text: &str) -> impl Iterator<Item = (usize, char, usize)> {
    let (mut depth, mut before) = (0_usize, ' ');
    text.char_indices().map(move |(at, letter)| {
        match letter {
            '<' | '[' => depth += 1,
            // The arrow of a function's type is not a bracket.
            '>' if before == '-' => {}
            '>' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        before = letter;
        (at, letter, depth)
    })
}

/// `<store::Log as core::ops::Drop>::drop` is `store::Log::drop` to people.
fn self_type(name: &str) -> String {
    if !name.starts_with('<') {
        return name.to_owned();
    }
    let Some((end, _, _)) = with_depth(name).find(|(_, _, depth)| *depth == 0) else {
        return name.to_owned();
    };
    let (inner, rest) = (&name[1..end], &name[end + 1..]);
    let is_cut =
        |(at, _, depth): &(usize, char, usize)| *depth == 0 && inner[*at..].starts_with(" as ");
    let cut = with_depth(inner).find(is_cut).map_or(inner.len(), |(at, _, _)| at);
    if trait_of_parameter(name).is_some() {
        // Its own type has no information.
        return format!("{}{rest}", inner.get(cut + " as ".len()..).unwrap_or_default());
    }
    format!("{}{rest}", inner[..cut].trim_start_matches(['&', '*', '(']).trim_start_matches("mut "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whose_a_function_is() {
        let own = ["store", "thimble_relay"];
        for (name, expected) in [
            ("store::log::append", Owner::Own),
            ("<store::Log as core::ops::drop::Drop>::drop", Owner::Own),
            ("<&mut thimble_relay::Node as core::fmt::Debug>::fmt", Owner::Own),
            ("<alloc::vec::Vec<store::Row> as core::clone::Clone>::clone", Owner::Plumbing),
            ("hashbrown::raw::RawTable<T,A>::reserve_rehash", Owner::Plumbing),
            ("tokio::runtime::task::raw::poll", Owner::Library),
            ("sqlite3MemMalloc", Owner::Library),
            ("_rjem_je_prof_backtrace", Owner::Allocator),
            ("__rustc[5224e6b81cd82a8f]::__rust_alloc", Owner::Allocator),
            ("imalloc_no_sample", Owner::Allocator),
            ("storefront::open", Owner::Library),
            ("<T as store::Upgrade>::upgrade", Owner::Own),
            ("<T as core::any::Any>::type_id", Owner::Plumbing),
            ("<bytes::bytes_mut::BytesMut as bytes::BufMut>::put", Owner::Plumbing),
        ] {
            assert_eq!(owner(name, &own), expected, "{name}");
        }
    }

    #[test]
    fn mangled_names_are_demangled_without_suffixes() {
        assert_eq!(readable("_ZN5store3log6append17h0123456789abcdefE"), "store::log::append");
        assert_eq!(
            readable("_ZN5store3log6append17h0123456789abcdefE.llvm.123"),
            "store::log::append"
        );
        assert_eq!(readable("_RNvCs1234_7mycrate3foo"), "mycrate::foo");
        assert_eq!(readable("sqlite3Prepare.constprop.0"), "sqlite3Prepare");
    }

    #[test]
    fn short_names_leave_out_types() {
        for (name, expected) in [
            ("store::log::append", "store::log::append"),
            ("<store::Log<A, B> as core::ops::Drop>::drop", "store::Log::drop"),
            (
                "<store::Log<fn() -> u8> as core::ops::FnOnce<()>>::call_once",
                "store::Log::call_once",
            ),
            ("tokio::task::Core<T,S>::poll::{{closure}}", "tokio::task::Core::poll"),
            ("alloc::vec::Vec<T>::with_capacity", "alloc::vec::Vec::with_capacity"),
            ("std::panicking::catch_unwind::<(), fn() -> u8>", "std::panicking::catch_unwind"),
            ("<T as store::Upgrade>::upgrade", "store::Upgrade::upgrade"),
            ("<T as store::Upgrade<A>>::upgrade", "store::Upgrade::upgrade"),
            ("<a", "<a"),
            ("<<<>>>", "<<>>"),
            ("", ""),
        ] {
            assert_eq!(short(name), expected, "{name}");
        }
    }
}
