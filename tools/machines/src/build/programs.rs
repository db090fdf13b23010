//! Programs, without their symbols, and the libraries they are linked with, where the loader finds
//! them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

use super::{tool, work_folder::WorkFolder};

/// Libraries of a program.
const LIBRARIES_MAX: usize = 64;
/// Everything in the image is as old as this: the same programs make the same disk.
const TIME: u64 = 1_000_000_000;

pub(super) struct Program {
    /// Path of a copy without symbols.
    pub(super) stripped: PathBuf,
    /// Where it is in the root.
    target: PathBuf,
    /// The loader and the libraries, where they are on this machine and in the root.
    pub(super) libraries: Vec<PathBuf>,
    pub(super) bytes: u64,
}

impl Program {
    pub(super) fn new(path: &Path, target: &str, work: &WorkFolder) -> Result<Self> {
        let name = path.file_name().context("a program has a name")?;
        let stripped = work.folder("programs")?.join(name);
        fs::copy(path, &stripped).with_context(|| format!("copying {}", path.display()))?;
        // Symbols are of use to debuggers and take nearly half of the file.
        tool(Command::new("strip").arg("--strip-all").arg(&stripped), "binutils")?;
        let bytes = fs::metadata(&stripped)?.len();
        Ok(Self { stripped, target: target.into(), libraries: libraries(path)?, bytes })
    }
}

/// The shared libraries that the loader would load.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let said = tool(Command::new("ldd").arg(program).env("LC_ALL", "C"), "libc-bin")
        .with_context(|| format!("looking for the libraries of {}", program.display()))?;
    parse(&said).with_context(|| format!("looking for the libraries of {}", program.display()))
}

/// Lines `name => /path (0x...)` and `/path (0x...)`; the kernel's own library has no path.
fn parse(said: &str) -> Result<Vec<PathBuf>> {
    let mut libraries = Vec::new();
    for line in said.lines().map(str::trim) {
        let path = line.split_once(" => ").map_or(line, |(_, path)| path);
        ensure!(path != "not found", "{line}");
        let path = path.rsplit_once(" (").map_or(path, |(path, _)| path);
        if path.starts_with('/') {
            ensure!(libraries.len() < LIBRARIES_MAX, "there are more than {LIBRARIES_MAX}");
            libraries.push(PathBuf::from(path));
        }
    }
    Ok(libraries)
}

/// Makes the tree of the root.
pub(super) fn tree(root: &Path, programs: &[Program], kernel: &str) -> Result<()> {
    for folder in ["dev", "proc", "sys", "run", "tmp", "state", "etc"] {
        fs::create_dir_all(root.join(folder))?;
    }
    let users = "root:x:0:0::/:/bin/false\nnode:x:1000:1000::/state:/bin/false\n";
    fs::write(root.join("etc/passwd"), users)?;
    fs::write(root.join("etc/group"), "root:x:0:\nnode:x:1000:\n")?;
    // A relay does not start without the address of a name server; there is none in the network of
    // a machine.
    fs::write(root.join("etc/resolv.conf"), "nameserver 127.0.0.1\n")?;
    fs::write(root.join("etc/hosts"), "127.0.0.1 localhost\n")?;
    // A disk is of one kernel: another one makes another base.
    fs::write(root.join("etc/thimble-image"), format!("kernel {kernel}\n"))?;
    for program in programs {
        put(&program.stripped, &program.target, root)?;
        for library in &program.libraries {
            put(library, library, root)?;
        }
    }
    settle(root)
}

fn put(from: &Path, target: &Path, root: &Path) -> Result<()> {
    let to = root.join(target.strip_prefix("/").unwrap_or(target));
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::copy(from, &to).with_context(|| format!("copying {}", from.display()))?;
    fs::set_permissions(&to, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    Ok(())
}

/// One time for all.
fn settle(folder: &Path) -> Result<()> {
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(TIME);
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            settle(&entry.path())?;
        } else {
            fs::OpenOptions::new().append(true).open(entry.path())?.set_modified(time)?;
        }
    }
    fs::File::open(folder)?.set_modified(time)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_taken_from_what_the_loader_says() {
        let said = "\tlinux-vdso.so.1 (0x00007f)\n\tlibc.so.6 => /lib/x/libc.so.6 (0x00007f)\n\t/lib64/ld.so.2 (0x7f)\n";
        assert_eq!(
            parse(said).unwrap(),
            [Path::new("/lib/x/libc.so.6"), Path::new("/lib64/ld.so.2")]
        );
        assert!(parse("\tlibx.so => not found\n").unwrap_err().to_string().contains("libx.so"));
        assert!(parse("\tstatically linked\n").unwrap().is_empty());
    }
}
