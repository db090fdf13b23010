//! A program's file: which build it is, and the names of its functions. Read piece by piece: its
//! build id takes a few pages of a file of any size, which a node can afford; its symbol table some
//! megabytes, which only the command reads.

use std::{
    fs::File,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use object::{
    Endianness, ReadCache, ReadRef,
    elf::{FileHeader64, NT_GNU_BUILD_ID, PT_LOAD, SHT_SYMTAB, STT_FUNC},
    read::elf::{FileHeader, ProgramHeader, SectionHeader, Sym},
};

const FUNCTIONS_MAX: usize = 4 << 20;
/// Longest name of a function, as the linker has it; a longer one is cut.
const NAME_BYTES_MAX: usize = 16 << 10;

type Header = FileHeader64<Endianness>;

/// The file of this process, even if it was replaced since, and its build id in hexadecimal digits.
pub(crate) fn of_this_process() -> Result<(String, String)> {
    let own = Path::new("/proc/self/exe");
    let name = std::fs::read_link(own).context("finding this program's file")?;
    let cache = ReadCache::new(File::open(own).context("opening this program's file")?);
    let build_id = build_id(&cache).context("reading this program's file")?;
    Ok((name.to_string_lossy().into_owned(), build_id))
}

fn build_id<'data, R: ReadRef<'data>>(data: R) -> Result<String> {
    let header = Header::parse(data)?;
    let endian = header.endian()?;
    for segment in header.program_headers(endian, data)? {
        let Some(mut notes) = segment.notes(endian, data)? else { continue };
        while let Some(note) = notes.next()? {
            if note.name() == b"GNU" && note.n_type(endian) == NT_GNU_BUILD_ID {
                return Ok(hex::encode(note.desc()));
            }
        }
    }
    Ok(String::new())
}

/// A function: where it is in memory if the program is at 0.
#[derive(Debug)]
struct Function {
    start: u64,
    bytes: u64,
    name: String,
}

#[derive(Debug)]
struct Segment {
    offset: u64,
    bytes: u64,
    address: u64,
}

#[derive(Debug)]
pub(crate) struct Symbols {
    pub(crate) build_id: String,
    /// In order of their addresses.
    functions: Vec<Function>,
    segments: Vec<Segment>,
}

impl Symbols {
    /// Reads them from a file, and the names of one that was stripped from the file that packages
    /// put them into. Errors: it cannot be read, is not a program of 64 bits, is damaged.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let mut symbols = Self::of_file(path)?;
        if symbols.functions.is_empty() {
            let own = |other: &Self| other.build_id == symbols.build_id;
            let split = split_off(path).into_iter().filter(|path| path.exists());
            if let Some(other) = split.filter_map(|path| Self::of_file(&path).ok()).find(own) {
                symbols.functions = other.functions;
            }
        }
        Ok(symbols)
    }

    fn of_file(path: &Path) -> Result<Self> {
        let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
        Self::parse(&ReadCache::new(file))
            .with_context(|| format!("{} cannot be read as a program", path.display()))
    }

    fn parse<'data, R: ReadRef<'data>>(data: R) -> Result<Self> {
        let header = Header::parse(data)?;
        let endian = header.endian()?;
        let segments = header
            .program_headers(endian, data)?
            .iter()
            .filter(|segment| segment.p_type(endian) == PT_LOAD)
            .map(|segment| Segment {
                offset: segment.p_offset(endian),
                bytes: segment.p_filesz(endian),
                address: segment.p_vaddr(endian),
            })
            .collect();
        let sections = header.sections(endian, data)?;
        let table = sections.symbols(endian, data, SHT_SYMTAB)?;
        ensure!(table.len() <= FUNCTIONS_MAX, "it has more than {FUNCTIONS_MAX} symbols");
        // All names at once: read one by one, long ones would be taken for damaged.
        let names = if table.is_empty() {
            &[][..]
        } else {
            sections.section(table.string_section())?.data(endian, data)?
        };
        let mut functions = Vec::new();
        for symbol in table.iter() {
            if symbol.st_type() != STT_FUNC || symbol.st_value(endian) == 0 {
                continue;
            }
            let name =
                names.get(symbol.st_name(endian) as usize..).context("a name is not in it")?;
            let end = name.iter().take(NAME_BYTES_MAX).position(|byte| *byte == 0);
            let name = &name[..end.unwrap_or(name.len().min(NAME_BYTES_MAX))];
            functions.push(Function {
                start: symbol.st_value(endian),
                bytes: symbol.st_size(endian),
                name: String::from_utf8_lossy(name).into_owned(),
            });
        }
        functions.sort_by_key(|function| function.start);
        Ok(Self { build_id: build_id(data)?, functions, segments })
    }

    /// Where a byte of the file is in memory if the program is at 0.
    pub(crate) fn address(&self, offset: u64) -> Option<u64> {
        let within = |segment: &&Segment| {
            offset.checked_sub(segment.offset).is_some_and(|inside| inside < segment.bytes)
        };
        let segment = self.segments.iter().find(within)?;
        segment.address.checked_add(offset - segment.offset)
    }

    /// The linker's name of the function that an address is in, and the function's first address.
    pub(crate) fn function(&self, address: u64) -> Option<(&str, u64)> {
        let behind = self.functions.partition_point(|function| function.start <= address);
        let function = self.functions.get(behind.checked_sub(1)?)?;
        // Assembler functions have no size: they reach to the next.
        let inside = function.bytes == 0 || address - function.start < function.bytes;
        inside.then_some((&function.name, function.start))
    }
}

/// Where the symbols of a stripped program are looked for: in the program's folder, and where
/// debuggers look.
fn split_off(path: &Path) -> [PathBuf; 2] {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".debug");
    let below =
        Path::new(&beside).strip_prefix("/").map_or_else(|_| PathBuf::new(), Path::to_path_buf);
    [PathBuf::from(&beside), Path::new("/usr/lib/debug").join(below)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_program_knows_its_own_functions() {
        let (name, build_id) = of_this_process().unwrap();
        let symbols = Symbols::read(Path::new(&name)).unwrap();
        assert_eq!(symbols.build_id, build_id);
        let address = of_this_process as *const () as u64;
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let at = maps.lines().find_map(|line| {
            let (range, rest) = line.split_once(' ')?;
            let (start, end) = range.split_once('-')?;
            let number = |text| u64::from_str_radix(text, 16).unwrap();
            let inside = (number(start)..number(end)).contains(&address);
            inside.then(|| address - number(start) + number(rest.split(' ').nth(1).unwrap()))
        });
        let (name, _) = symbols.function(symbols.address(at.unwrap()).unwrap()).unwrap();
        assert!(name.contains("of_this_process"), "{name}");
    }

    #[test]
    fn files_that_are_no_programs_are_refused_and_damaged_ones_end_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        for bytes in [&b""[..], b"#!/bin/sh\n", &[0; 4096]] {
            std::fs::write(&path, bytes).unwrap();
            let error = format!("{:#}", Symbols::read(&path).unwrap_err());
            assert!(error.contains("cannot be read as a program"), "{error}");
        }
        // Every byte of the head of a real one, changed.
        let own = std::fs::read("/proc/self/exe").unwrap();
        let mut head = own[..own.len().min(4096)].to_vec();
        for at in 0..1024 {
            head[at] ^= 0x55;
            let _ = Symbols::parse(&head[..]);
            head[at] ^= 0x55;
        }
    }
}
