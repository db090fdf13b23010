//! The distribution's kernel: which package, how it is had, what is taken out of it.
//!
//! A package (deb(5)) is an `ar` archive of three members; the third is the tar archive of files,
//! packed by xz or zstd. Of it only the kernel and its modules are unpacked.

use std::{
    collections::{BTreeSet, VecDeque},
    fs::{self, File},
    io::{self, BufReader, Read},
    path::{Component, Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};

use super::{modules, tool, work_folder::WorkFolder};

/// A kernel with all its modules has some 600 MiB.
const UNPACKED_BYTES_MAX: u64 = 4 << 30;
/// And some 10,000 files.
const ENTRIES_MAX: usize = 200_000;
/// Packages that are followed to find a kernel.
const PACKAGES_MAX: usize = 16;
/// The kernel for virtual machines, by distribution.
const PACKAGES: [(&str, &str); 2] =
    [("debian", "linux-image-cloud-amd64"), ("ubuntu", "linux-image-virtual")];
/// Advice where no package can be downloaded.
const BY_HAND: &str = "name the package of a kernel (.deb) with --kernel";

/// A kernel, unpacked.
pub(super) struct Kernel {
    /// Its version: `6.1.0-56-cloud-amd64`.
    pub(super) name: String,
    /// The kernel to start.
    pub(super) file: PathBuf,
    /// Where its modules are.
    pub(super) folder: PathBuf,
    /// Below that folder.
    pub(super) modules: Vec<PathBuf>,
    /// Paths of modules that need not be loaded, one a line.
    pub(super) built_in: String,
}

/// Names of files, for a person.
pub(super) fn names(paths: &[PathBuf]) -> String {
    let names = paths.iter().filter_map(|path| path.file_name()).map(|name| name.to_string_lossy());
    names.collect::<Vec<_>>().join(", ")
}

/// Downloads the distribution's kernel into `folder`, unless it is there.
pub(super) fn download(
    folder: &Path,
    work: &WorkFolder,
    say: &impl Fn(&str),
) -> Result<Vec<PathBuf>> {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let field = |key: &str| {
        let line = release.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        line.unwrap_or_default().trim_matches('"').to_owned()
    };
    let like = format!("{} {}", field("ID"), field("ID_LIKE"));
    let package = PACKAGES.iter().find(|(id, _)| like.split(' ').any(|word| word == *id));
    let Some((_, package)) = package else {
        bail!(
            "which package of this distribution ({}) is a kernel is not known; {BY_HAND}",
            field("ID")
        );
    };
    let packages = kernel_packages(package)?;
    fs::create_dir_all(folder)?;
    let mut paths = Vec::new();
    for package in packages {
        let (name, size) = file_of(&package)?;
        let path = folder.join(&name);
        if fs::metadata(&path).is_ok_and(|metadata| metadata.len() == size) {
            paths.push(path);
            continue;
        }
        say(&format!("downloading {package}, {:.1} MiB", size as f64 / 1_048_576.0));
        // Downloaded into a scratch folder and then renamed, so that a partial download is never
        // used.
        let scratch = work.folder("download")?;
        let mut command = apt("apt-get");
        command.args(["download", "-q", &package]).current_dir(&scratch);
        tool(&mut command, "apt").with_context(|| format!("downloading {package}; {BY_HAND}"))?;
        fs::rename(scratch.join(&name), &path)
            .with_context(|| format!("apt-get download made no {name}; {BY_HAND}"))?;
        paths.push(path);
    }
    Ok(paths)
}

fn apt(program: &str) -> Command {
    let mut command = Command::new(program);
    if rustix::process::geteuid().is_root() {
        // Else it warns that its own user cannot write here.
        command.args(["-o", "APT::Sandbox::User=root"]);
    }
    command.env("LC_ALL", "C");
    command
}

/// From a package that only names others: those with the kernel and its modules.
fn kernel_packages(package: &str) -> Result<Vec<String>> {
    let mut queue = VecDeque::from([package.to_owned()]);
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    while let Some(package) = queue.pop_front() {
        if !seen.insert(package.clone()) {
            continue;
        }
        ensure!(seen.len() <= PACKAGES_MAX, "{package} leads to more than {PACKAGES_MAX} packages");
        if is_kernel(&package) {
            found.push(package.clone());
        }
        let said = tool(
            apt("apt-cache").args(["depends", "--no-recommends", "--no-suggests", &package]),
            "apt",
        );
        let said = said.with_context(|| {
            format!(
                "looking for the package {package}; are there lists of packages (apt-get update)? \
                 Or {BY_HAND}"
            )
        })?;
        queue.extend(dependencies(&said));
    }
    ensure!(!found.is_empty(), "the package {package} names no kernel; {BY_HAND}");
    Ok(found)
}

/// Those of kernels and modules.
fn dependencies(said: &str) -> impl Iterator<Item = String> + '_ {
    said.lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .filter(|name| is_kernel(name))
        .map(str::to_owned)
}

/// `linux-image-6.1.0-56-cloud-amd64`, not `linux-image-cloud-amd64`.
fn is_kernel(package: &str) -> bool {
    ["linux-image-", "linux-modules-", "linux-image-unsigned-"].iter().any(|prefix| {
        package
            .strip_prefix(prefix)
            .is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
    })
}

/// The name and size of the file of a package.
fn file_of(package: &str) -> Result<(String, u64)> {
    let said = tool(apt("apt-get").args(["download", "--print-uris", "-qq", package]), "apt")
        .with_context(|| format!("looking for the file of {package}; {BY_HAND}"))?;
    let parse = || {
        let line = said.lines().find(|line| line.starts_with('\''))?;
        let mut words = line.rsplit('\'').next()?.split_whitespace();
        let (name, size) = (words.next()?, words.next()?.parse().ok()?);
        (!name.contains('/')).then(|| (name.to_owned(), size))
    };
    parse().with_context(|| format!("apt-get says nothing of the file of {package}; {BY_HAND}"))
}

/// Takes the kernel and its modules out of packages.
pub(super) fn unpack(packages: &[PathBuf], into: &Path, work: &WorkFolder) -> Result<Kernel> {
    for package in packages {
        unpack_one(package, into, work)
            .with_context(|| format!("reading {}", package.display()))?;
    }
    let boot = into.join("boot");
    let kernel = fs::read_dir(&boot).into_iter().flatten().flatten().find_map(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        Some((entry.path(), name.strip_prefix("vmlinuz-")?.to_owned()))
    });
    let (file, name) =
        kernel.with_context(|| format!("there is no kernel in {}; {BY_HAND}", names(packages)))?;
    let folder = ["lib/modules", "usr/lib/modules"]
        .iter()
        .map(|modules| into.join(modules).join(&name))
        .find(|folder| folder.is_dir())
        .with_context(|| format!("there are no modules of {name} in {}", names(packages)))?;
    let (modules, built_in) = modules::found(&folder)?;
    Ok(Kernel { name, file, folder, modules, built_in })
}

fn unpack_one(package: &Path, into: &Path, work: &WorkFolder) -> Result<()> {
    let mut file = BufReader::new(File::open(package)?);
    let data = data_member(&mut file)?;
    let mut archive = tar::Archive::new(data.take(UNPACKED_BYTES_MAX));
    for (count, entry) in archive.entries()?.enumerate() {
        ensure!(count < ENTRIES_MAX, "it has more than {ENTRIES_MAX} entries");
        work.check()?;
        let mut entry = entry?;
        let path: PathBuf =
            entry.path()?.components().filter(|part| *part != Component::CurDir).collect();
        if !is_wanted(&path) || !entry.header().entry_type().is_file() {
            continue;
        }
        let plain = path.components().all(|part| matches!(part, Component::Normal(_)));
        ensure!(plain, "it names {}, which climbs", path.display());
        let target = into.join(&path);
        if let Some(folder) = target.parent() {
            fs::create_dir_all(folder)?;
        }
        io::copy(&mut entry, &mut File::create(&target)?)?;
    }
    Ok(())
}

fn is_wanted(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let is_module = name == "modules.builtin" || name.contains(".ko");
    let modules = ["lib/modules", "usr/lib/modules"];
    (path.starts_with("boot") && name.starts_with("vmlinuz-"))
        || (is_module && modules.iter().any(|folder| path.starts_with(folder)))
}

/// The member of the package's `ar` archive that holds its files, unpacked.
fn data_member(file: &mut (impl Read + 'static)) -> Result<Box<dyn Read + '_>> {
    let mut magic = [0; 8];
    file.read_exact(&mut magic)?;
    ensure!(&magic == b"!<arch>\n", "it is no package (.deb)");
    loop {
        let mut header = [0; 60];
        file.read_exact(&mut header).context("it holds no data.tar")?;
        let text = |range: std::ops::Range<usize>| {
            String::from_utf8_lossy(&header[range]).trim().to_owned()
        };
        let name = text(0..16).trim_end_matches('/').to_owned();
        let size: u64 = text(48..58).parse().context("a member has no size")?;
        if let Some(kind) = name.strip_prefix("data.tar") {
            let data = file.take(size);
            return Ok(match kind {
                ".xz" => Box::new(liblzma::read::XzDecoder::new(data)),
                ".zst" => Box::new(zstd::Decoder::new(data)?),
                ".gz" => Box::new(flate2::read::GzDecoder::new(data)),
                "" => Box::new(data),
                other => bail!("its files are packed as {other}, which is not known"),
            });
        }
        let skipped = io::copy(&mut file.by_ref().take(size.next_multiple_of(2)), &mut io::sink())?;
        ensure!(skipped >= size, "it is cut off");
    }
}

#[cfg(test)]
mod tests {
    use images::Stop;

    use super::*;

    /// A package of one file.
    fn package(path: &Path, name: &str) {
        let mut tar = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_ustar();
        header.as_ustar_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_size(3);
        header.set_mode(0o644);
        header.set_cksum();
        tar.append(&header, &b"abc"[..]).unwrap();
        let data = zstd::encode_all(tar.into_inner().unwrap().as_slice(), 1).unwrap();
        let mut bytes = b"!<arch>\n".to_vec();
        for (name, content) in [("debian-binary", &b"2.0\n"[..]), ("data.tar.zst", &data)] {
            bytes.extend_from_slice(
                format!(
                    "{name:<16}{:<12}{:<6}{:<6}{:<8}{:<10}`\n",
                    0,
                    0,
                    0,
                    100_644,
                    content.len()
                )
                .as_bytes(),
            );
            bytes.extend_from_slice(content);
            if content.len() % 2 == 1 {
                bytes.push(b'\n');
            }
        }
        fs::write(path, bytes).unwrap();
    }

    fn unpacked(name: &str) -> Result<Kernel> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kernel.deb");
        package(&path, name);
        let work = WorkFolder::new(&folder.path().join("machines"), Stop::default()).unwrap();
        unpack(&[path], &work.folder("kernel").unwrap(), &work)
    }

    // Promise: P25 - A damaged kernel package, or one with paths outside, is refused.
    #[test]
    fn a_package_that_is_none_or_climbs_or_has_no_kernel_is_refused() {
        for (name, part) in [
            ("./usr/share/doc/x", "no kernel in kernel.deb"),
            ("./boot/vmlinuz-6.1", "no modules of 6.1"),
            ("./boot/../../vmlinuz-6.1", "climbs"),
        ] {
            let error = format!("{:#}", unpacked(name).err().unwrap());
            assert!(error.contains(part), "{name}: {error}");
        }
        let folder = tempfile::tempdir().unwrap();
        let (path, work) =
            (folder.path().join("x.deb"), WorkFolder::new(folder.path(), Stop::default()).unwrap());
        for bytes in [&b""[..], b"!<arch>\n", b"PK\x03\x04 something else altogether"] {
            fs::write(&path, bytes).unwrap();
            assert!(unpack(std::slice::from_ref(&path), folder.path(), &work).is_err());
        }
    }

    #[test]
    fn packages_are_followed_to_the_kernel() {
        let said = "linux-image-virtual\n  Depends: linux-image-6.8.0-31-generic\n  Depends: libc6\n |Depends: linux-image-generic\n";
        assert_eq!(dependencies(said).collect::<Vec<_>>(), ["linux-image-6.8.0-31-generic"]);
        assert!(
            is_kernel("linux-modules-6.8.0-31-generic") && !is_kernel("linux-image-cloud-amd64")
        );
    }
}
