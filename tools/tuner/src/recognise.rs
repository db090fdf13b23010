//! Detects the runtime and the allocator of a program: from its file, or from the mappings of a
//! running process.
//!
//! A file is recognised by the libraries it asks for, the names of its sections, and the names of
//! environment variables and the prefixes of messages that runtimes carry as C strings, which
//! stripping a program leaves in. Nothing is run.
//!
//! Bounds: sections, strings, libraries, bytes searched and scripts followed, by the constants
//! below. A malformed file is not recognised.

use std::{
    collections::BTreeSet,
    env,
    fs::File,
    io::Read,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::LazyLock,
};

use accounting::process::Pid;
use object::{
    LittleEndian, ReadCache,
    elf::{DT_NEEDED, FileHeader64, SHT_DYNAMIC},
    read::elf::{FileHeader, SectionHeader},
};
use regex::bytes::Regex;

/// Names of runtimes, in the order in which they are found.
pub const RUNTIMES: [&str; 5] = ["ghc", "go", "jvm", "node", "dotnet"];
/// Names of allocators, in the order in which they are found.
pub const ALLOCATORS: [&str; 3] = ["jemalloc", "mimalloc", "glibc"];

/// Most sections of a file; linkers of large programs make some dozens.
const SECTIONS_MAX: u16 = 4096;
/// Most bytes of the dynamic section.
const DYNAMIC_BYTES_MAX: u64 = 64 << 10;
/// Most bytes of constants searched. Node, the largest runtime, has some 40 MiB of them.
const SEARCHED_BYTES_MAX: u64 = 96 << 20;
const PIECE_BYTES: usize = 1 << 20;
/// Longer than anything searched for.
const OVERLAP_BYTES: usize = 64;
/// Most bytes of the list of mappings; the rest is not read.
const MAPPINGS_BYTES_MAX: u64 = 8 << 20;
/// Longest first line of a script; the kernel reads 256.
const SCRIPT_LINE_BYTES_MAX: u64 = 512;
/// Most interpreters followed; the kernel follows four.
const SCRIPTS_MAX: usize = 4;

/// The recognised runtime and allocator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recognition {
    /// Names out of [`RUNTIMES`] and [`ALLOCATORS`]: a runtime first, its allocator behind.
    pub runtimes: Vec<&'static str>,
}

impl Recognition {
    /// The runtime with a collector, when there is one.
    pub fn collected_runtime(&self) -> Option<&'static str> {
        self.runtimes.iter().copied().find(|name| RUNTIMES.contains(name))
    }

    /// Whether `name` was recognised.
    pub fn has(&self, name: &str) -> bool {
        self.runtimes.contains(&name)
    }

    fn from_marks(marks: &BTreeSet<&'static str>) -> Self {
        let mut runtimes: Vec<_> =
            RUNTIMES.into_iter().chain(ALLOCATORS).filter(|name| marks.contains(name)).collect();
        // An allocator of the program replaces that of the C library.
        if marks.contains("jemalloc") || marks.contains("mimalloc") {
            runtimes.retain(|name| *name != "glibc");
        }
        Self { runtimes }
    }
}

/// The runtime of the file `path`. Scripts are followed to their interpreter.
pub fn program(path: &Path) -> Recognition {
    let mut path = path.to_owned();
    for _ in 0..=SCRIPTS_MAX {
        let Ok(file) = File::open(&path) else { return Recognition::default() };
        match interpreter(&file) {
            Some(next) => path = next,
            None => {
                let name = std::fs::canonicalize(&path).unwrap_or_else(|_| path.clone());
                let mut marks = BTreeSet::new();
                mark_name(&name, &mut marks);
                mark_file(&file, &mut marks);
                return Recognition::from_marks(&marks);
            }
        }
    }
    Recognition::default()
}

/// The runtime of the process `pid`. Empty when it has ended or may not be read.
pub fn process(pid: Pid) -> Recognition {
    let mut marks = BTreeSet::new();
    let exe = PathBuf::from(format!("/proc/{pid}/exe"));
    if let Ok(name) = std::fs::read_link(&exe) {
        let name = name.to_string_lossy();
        mark_name(Path::new(name.trim_end_matches(" (deleted)")), &mut marks);
    }
    if let Ok(file) = File::open(exe) {
        mark_file(&file, &mut marks);
    }
    if let Ok(file) = File::open(format!("/proc/{pid}/maps")) {
        let mut bytes = Vec::new();
        // Bytes read before an error are used.
        let _ = file.take(MAPPINGS_BYTES_MAX).read_to_end(&mut bytes);
        for line in String::from_utf8_lossy(&bytes).lines() {
            if let Some((_, name)) = line.rsplit_once('/') {
                mark_library(name, &mut marks);
            }
        }
    }
    Recognition::from_marks(&marks)
}

/// The interpreter after `#!`, looked up in `PATH` when it is `env` with a name.
fn interpreter(file: &File) -> Option<PathBuf> {
    let mut bytes = [0; SCRIPT_LINE_BYTES_MAX as usize];
    let length = file.read_at(&mut bytes, 0).ok()?;
    let text = String::from_utf8_lossy(bytes.get(..length)?.strip_prefix(b"#!")?).into_owned();
    let mut words = text.lines().next()?.split_ascii_whitespace();
    let first = Path::new(words.next()?);
    if first.file_name()? != "env" {
        return Some(first.to_owned());
    }
    let name = words.find(|word| !word.starts_with('-') && !word.contains('='))?;
    on_path(name)
}

/// Where the shell would find a program.
pub(crate) fn on_path(name: &str) -> Option<PathBuf> {
    let folders = env::var_os("PATH")?;
    env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| path.is_file())
}

fn mark_name(path: &Path, marks: &mut BTreeSet<&'static str>) {
    match path.file_name().and_then(|name| name.to_str()) {
        Some("node" | "nodejs") => marks.insert("node"),
        Some("java") => marks.insert("jvm"),
        Some("dotnet") => marks.insert("dotnet"),
        _ => return,
    };
}

/// By the name of a library, without its folder.
fn mark_library(name: &str, marks: &mut BTreeSet<&'static str>) {
    const LIBRARIES: [(&str, &str); 10] = [
        ("libHSrts", "ghc"),
        ("libjvm.so", "jvm"),
        ("libjli.so", "jvm"),
        ("libnode.so", "node"),
        ("libcoreclr.so", "dotnet"),
        ("libhostfxr.so", "dotnet"),
        ("libjemalloc.so", "jemalloc"),
        ("libmimalloc", "mimalloc"),
        ("libc.so.6", "glibc"),
        ("libc-2.", "glibc"),
    ];
    for (start, mark) in LIBRARIES {
        if name.starts_with(start) {
            marks.insert(mark);
        }
    }
}

fn mark_file(file: &File, marks: &mut BTreeSet<&'static str>) {
    let (sections, libraries) = sections(file).unwrap_or_default();
    for section in &sections {
        // Linkers cut the names of Go's sections in no format; a plug-in of Go has them too.
        if section.name == ".go.buildinfo" || section.name == ".gopclntab" {
            marks.insert("go");
        }
    }
    for name in libraries {
        mark_library(&name, marks);
    }
    let is_dynamic = sections.iter().any(|section| section.name == ".interp");
    let mut left = SEARCHED_BYTES_MAX;
    let constants = sections.iter().filter(|section| section.name.starts_with(".rodata"));
    let ranges: Vec<_> = match sections.is_empty() {
        // A file without a table of sections is searched as a whole, if it is a program at all.
        true if is_elf(file) => vec![(0, SEARCHED_BYTES_MAX)],
        true => Vec::new(),
        false => constants.map(|section| (section.offset, section.bytes)).collect(),
    };
    for (offset, bytes) in ranges {
        search(file, offset, bytes.min(left), is_dynamic, marks);
        left = left.saturating_sub(bytes);
    }
}

/// Marks that are constants of a runtime. Each begins a C string: the words in this program do not,
/// so it does not find itself.
static CONSTANTS: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let words = "GHCRTS|GLIBC_TUNABLES|NODE_OPTIONS|libhostfxr\\.so|<jemalloc>: |mimalloc: ";
    Regex::new(&format!(r"(?-u)\x00({words})")).ok()
});

fn search(
    file: &File,
    offset: u64,
    bytes: u64,
    is_dynamic: bool,
    marks: &mut BTreeSet<&'static str>,
) {
    let Some(constants) = &*CONSTANTS else { return };
    let mut piece = vec![0; PIECE_BYTES + OVERLAP_BYTES];
    let mut at = 0;
    while at < bytes {
        let want = usize::try_from(bytes - at).unwrap_or(usize::MAX).min(piece.len());
        let length = match file.read_at(&mut piece[..want], offset.saturating_add(at)) {
            Ok(0) | Err(_) => return,
            Ok(length) => length,
        };
        let text = &piece[..length];
        for found in constants.captures_iter(text) {
            let Some(word) = found.get(1) else { continue };
            let is_whole = text.get(word.end()) == Some(&0);
            match word.as_bytes() {
                b"GHCRTS" if is_whole => marks.insert("ghc"),
                b"NODE_OPTIONS" if is_whole => marks.insert("node"),
                b"libhostfxr.so" if is_whole => marks.insert("dotnet"),
                // Only a program that carries its C library has this itself.
                b"GLIBC_TUNABLES" if is_whole && !is_dynamic => marks.insert("glibc"),
                b"<jemalloc>: " => marks.insert("jemalloc"),
                b"mimalloc: " => marks.insert("mimalloc"),
                _ => continue,
            };
        }
        at += (length.saturating_sub(OVERLAP_BYTES).max(1)) as u64;
    }
}

/// One section of an ELF file.
struct Section {
    name: String,
    offset: u64,
    bytes: u64,
}

fn is_elf(file: &File) -> bool {
    let mut magic = [0; 4];
    file.read_exact_at(&mut magic, 0).is_ok() && &magic == b"\x7fELF"
}

/// Sections of a 64-bit little-endian ELF file, and the libraries that it asks for.
fn sections(file: &File) -> Option<(Vec<Section>, Vec<String>)> {
    let data = &ReadCache::new(file);
    let header = FileHeader64::<LittleEndian>::parse(data).ok()?;
    let endian = header.endian().ok()?;
    if !(1..=SECTIONS_MAX).contains(&header.e_shnum(endian)) {
        return None;
    }
    let table = header.sections(endian, data).ok()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let sections = table.iter().map(|section| Section {
        name: text(table.section_name(endian, section).unwrap_or_default()),
        offset: section.sh_offset(endian),
        bytes: section.sh_size(endian),
    });
    let dynamic = table.iter().find(|section| section.sh_type(endian) == SHT_DYNAMIC);
    let is_small = dynamic.is_some_and(|section| section.sh_size(endian) <= DYNAMIC_BYTES_MAX);
    let mut libraries = Vec::new();
    if is_small && let Ok(dynamic) = table.dynamic_table(endian, data) {
        let needed = dynamic.iter().filter(|entry| entry.tag == DT_NEEDED);
        libraries.extend(needed.filter_map(|entry| Some(text(dynamic.string(entry).ok()?))));
    }
    Some((sections.collect(), libraries))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    /// Put together here, or this program would be taken for one of GHC's.
    fn constant() -> Vec<u8> {
        [&[0], "GHCRTS".as_bytes(), &[0]].concat()
    }

    #[test]
    fn a_script_is_followed_to_its_interpreter_and_never_for_ever() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("script");
        fs::write(&script, "#!/bin/sh\necho\n").unwrap();
        assert_eq!(program(&script).runtimes, ["glibc"]);
        fs::write(&script, "#!/usr/bin/env -S sh -e\necho\n").unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(program(&script).runtimes, ["glibc"]);
        fs::write(&script, format!("#!{}\n", script.display())).unwrap();
        assert_eq!(program(&script), Recognition::default());
    }

    #[test]
    fn what_is_no_program_has_no_runtime() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        let constant = constant();
        for bytes in
            [&b""[..], b"\x7fELF", b"\x7fELF\x02\x01", &[0x7f; 4096], b"#!", b"#! \n", &constant]
        {
            fs::write(&file, bytes).unwrap();
            assert_eq!(program(&file), Recognition::default(), "{bytes:?}");
        }
        // A table of sections beyond the end of the file, and one that is too long.
        let mut header = [0xff; 64];
        header[..6].copy_from_slice(b"\x7fELF\x02\x01");
        fs::write(&file, header).unwrap();
        assert_eq!(program(&file), Recognition::default());
        header[58..64].copy_from_slice(&[64, 0, 16, 0, 1, 0]);
        fs::write(&file, header).unwrap();
        assert_eq!(program(&file), Recognition::default());
        assert_eq!(program(Path::new("/nowhere/at/all")), Recognition::default());
        assert_eq!(program(folder.path()), Recognition::default());
    }

    #[test]
    fn constants_are_found_across_pieces() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        let mut bytes = vec![b'x'; PIECE_BYTES + 4096];
        bytes[..4].copy_from_slice(b"\x7fELF");
        for at in [PIECE_BYTES - 3, PIECE_BYTES + OVERLAP_BYTES - 4] {
            let mut bytes = bytes.clone();
            bytes[at..at + 8].copy_from_slice(&constant());
            fs::write(&file, &bytes).unwrap();
            assert_eq!(program(&file).runtimes, ["ghc"], "{at}");
        }
    }

    #[test]
    fn an_allocator_of_its_own_stands_in_for_that_of_the_c_library() {
        let mut marks = BTreeSet::new();
        for library in ["libc.so.6", "libjemalloc.so.2", "libjvm.so", "libz.so.1", "libcurl.so"] {
            mark_library(library, &mut marks);
        }
        let found = Recognition::from_marks(&marks);
        assert_eq!(found.runtimes, ["jvm", "jemalloc"]);
        assert_eq!(found.collected_runtime(), Some("jvm"));
        assert!(found.has("jemalloc") && !found.has("glibc"));
    }

    #[test]
    fn this_process_is_recognised_and_one_that_is_gone_is_not() {
        let found = process(Pid::own());
        assert_eq!(found.collected_runtime(), None, "{found:?}");
        assert!(!found.runtimes.is_empty());
        assert_eq!(process(Pid(4_194_999)), Recognition::default());
    }

    #[test]
    fn programs_of_the_field_are_recognised_where_they_are_installed() {
        for (path, runtime) in
            [("/usr/bin/node", "node"), ("/usr/bin/java", "jvm"), ("/usr/local/go/bin/go", "go")]
        {
            let path = Path::new(path);
            if path.exists() {
                assert_eq!(program(path).collected_runtime(), Some(runtime), "{}", path.display());
            }
        }
        assert_eq!(program(Path::new("/bin/sh")).runtimes, ["glibc"]);
    }
}
