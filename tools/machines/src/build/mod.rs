//! `thimble-lab image build`: the smallest disk that starts a node.
//!
//! It has two partitions: the root, read-only, with the node's program, the first process and the
//! libraries of both; and the state, a file system that the machine itself makes as large as its
//! disk. The kernel is the distribution's own, out of its package; it is started directly, with a
//! first file system in memory that holds the modules for the disk, so there is no boot loader.
//!
//! The same programs and the same kernel make the same disk, byte for byte, and so the same base.

mod cpio;
mod disk;
mod modules;
mod package;
mod programs;
mod work_folder;

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Instant,
};

use accounting::format_size;
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use guest::{
    config::Role,
    init::{IN_ROOT, MODULES},
};
use images::{Cache, Packing, Settings, Stop};
use serde::Serialize;
use sha2::{Digest, Sha256};

use self::{cpio::Archive, package::Kernel, programs::Program, work_folder::WorkFolder};
use crate::image::{self, FORMAT, Image};

/// Modules that machines need in addition to the built-in ones.
const MODULES_WANTED: [&str; 6] =
    ["virtio_pci", "virtio_blk", "virtio_net", "virtio_rng", "button", "evdev"];
/// Kernel command line of every machine. It restarts one second after a panic; huge
/// pages are off, as they would use memory that no program requested.
const COMMAND_LINE: &str =
    "console=ttyS0 panic=1 loglevel=4 psi=1 transparent_hugepage=never random.trust_cpu=on audit=0";

/// `thimble-lab image build`
#[derive(Debug, Args)]
pub struct Options {
    /// For machines that run a relay (thimble-relay) instead of a node.
    #[arg(long)]
    relay: bool,
    /// The program. [default: thimble, or thimble-relay, in the folder of this one]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// The first process. [default: thimble-guest in the folder of this program]
    #[arg(long, value_name = "FILE")]
    guest: Option<PathBuf>,
    /// The kernel's package (.deb), and others that hold its modules. [default: downloaded by
    /// apt-get]
    #[arg(long, value_name = "FILE")]
    kernel: Vec<PathBuf>,
    /// Folder of the cache. Default: $THIMBLE_IMAGES, or thimble/images in $XDG_CACHE_HOME or
    /// ~/.cache.
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// Print one JSON document instead of text.
    #[arg(long)]
    json: bool,
    /// No progress on standard error.
    #[arg(long, short)]
    quiet: bool,
}

#[derive(Debug, Serialize)]
struct BuildReport {
    #[serde(flatten)]
    image: Image,
    is_new: bool,
    program_bytes: u64,
    root_bytes: u64,
    kernel_bytes: u64,
    initrd_bytes: u64,
    /// Bytes of the disk in the cache.
    base_bytes: u64,
    modules: usize,
    seconds: f64,
}

/// Builds the image; blocking.
///
/// # Errors
///
/// A missing program, with the package to install; a package without a kernel; a full disk.
pub fn run(options: &Options, stop: &Stop) -> Result<ExitCode> {
    let began = Instant::now();
    let say = |words: &str| {
        if !options.quiet {
            eprintln!("image: {words}");
        }
    };
    ensure!(
        cfg!(target_arch = "x86_64"),
        "images of machines are made for x86_64 only; this program was built for {}",
        std::env::consts::ARCH
    );
    let role = if options.relay { Role::Relay } else { Role::Node };
    let program = beside(options.program.as_deref(), role.program(), "--program")?;
    let guest = beside(options.guest.as_deref(), "thimble-guest", "--guest")?;
    let folder = images::command::cache_folder(options.cache.clone())?;
    let settings = Settings { talks: !options.quiet, stop: stop.clone(), ..Settings::default() };
    let cache = Cache::open(&folder, settings)?;
    let machines = image::folder(cache.folder());
    let work = WorkFolder::new(&machines, stop.clone())?;

    let packages = match options.kernel.is_empty() {
        true => package::download(&machines.join("packages"), &work, &say)?,
        false => options.kernel.clone(),
    };
    say(&format!("unpacking {}", package::names(&packages)));
    let kernel = package::unpack(&packages, &work.folder("kernel")?, &work)?;
    let modules = modules::in_order(&kernel, &MODULES_WANTED)?;
    let programs = [
        Program::new(&program, &format!("/bin/{}", role.program()), &work)?,
        Program::new(&guest, IN_ROOT, &work)?,
    ];

    say(&format!("making the disk for {}", role.program()));
    let root = work.folder("root")?;
    programs::tree(&root, &programs, &kernel.name)?;
    let raw = work.path("disk.raw");
    let root_bytes = disk::make(&raw, &root, &work)?;
    let initrd = initrd(&programs[1], &kernel, &modules)?;

    work.check()?;
    let added = cache.add(&raw, Packing::Unpacked)?;
    let id = added.base.id.to_string();
    let made = Image {
        format: FORMAT,
        role,
        folder: machines.join(&id),
        base: id,
        command_line: COMMAND_LINE.to_owned(),
        kernel: kernel.name.clone(),
        program_sha256: sha256(&program)?,
        disk_bytes: added.base.virtual_bytes,
    };
    let is_new = publish(&made, &kernel, &initrd, &work)?;
    tidy(&cache, &machines)?;
    let built = BuildReport {
        is_new,
        program_bytes: programs[0].bytes,
        root_bytes,
        kernel_bytes: fs::metadata(made.kernel_file())?.len(),
        initrd_bytes: fs::metadata(made.initrd_file())?.len(),
        base_bytes: added.disk_bytes,
        modules: modules.len(),
        seconds: began.elapsed().as_secs_f64(),
        image: made,
    };
    if options.json {
        println!("{}", serde_json::to_string_pretty(&built)?);
    } else {
        println!("{}", built.image.base);
    }
    say(&summary(&built));
    Ok(ExitCode::SUCCESS)
}

fn summary(built: &BuildReport) -> String {
    let image = &built.image;
    let word = if built.is_new { "made" } else { "already there" };
    format!(
        "{word}: a disk for {}, {} on this machine (root {}, of it {} the program), {}, kernel \
         {}, {} of first file system with {} modules; {:.1} s. Start it with: thimble-lab net up \
         --backend vm{}",
        image.role.program(),
        mib(built.base_bytes),
        mib(built.root_bytes),
        mib(built.program_bytes),
        image.kernel,
        mib(built.kernel_bytes),
        mib(built.initrd_bytes),
        built.modules,
        built.seconds,
        if image.role == Role::Relay { " --relay 2" } else { "" },
    )
}

fn mib(bytes: u64) -> String {
    match bytes >= 1 << 20 {
        true => format!("{:.1} MiB", bytes as f64 / (1 << 20) as f64),
        false => format_size(bytes),
    }
}

/// The named program, or the usual one in the folder of this program.
fn beside(named: Option<&Path>, usual: &str, flag: &str) -> Result<PathBuf> {
    let path = match named {
        Some(named) => std::path::absolute(named)?,
        None => std::env::current_exe().context("finding this program")?.with_file_name(usual),
    };
    ensure!(
        path.is_file(),
        "there is no {}; build it (make build) or name it with {flag}",
        path.display()
    );
    Ok(path)
}

/// SHA-256 of a file, in hexadecimal digits.
pub fn sha256(path: &Path) -> Result<String> {
    let read = || -> std::io::Result<String> {
        let mut hash = Sha256::new();
        std::io::copy(&mut fs::File::open(path)?, &mut hash)?;
        Ok(hex::encode(hash.finalize()))
    };
    read().with_context(|| format!("reading {}", path.display()))
}

/// The first file system: modules, the first process, its libraries.
fn initrd(guest: &Program, kernel: &Kernel, modules: &[PathBuf]) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    for folder in ["/dev", "/proc", "/sys", "/root"] {
        archive.folder(folder);
    }
    archive.file("/init", 0o755, fs::read(&guest.stripped)?);
    for library in &guest.libraries {
        archive.file(&library.to_string_lossy(), 0o755, fs::read(library)?);
    }
    let mut list = String::new();
    for module in modules {
        let name =
            module.file_name().context("a module has a name")?.to_string_lossy().into_owned();
        let name = format!("/modules/{}", modules::plain_name(&name));
        archive.file(&name, 0o644, modules::read(&kernel.folder.join(module))?);
        list.push_str(&format!("{name}\n"));
    }
    archive.file(MODULES, 0o644, list.into_bytes());
    zstd::encode_all(archive.finish().as_slice(), 12).context("packing the first file system")
}

/// Puts the image into its place, whole, and makes it the newest of its role; returns whether it is
/// new.
fn publish(made: &Image, kernel: &Kernel, initrd: &[u8], work: &WorkFolder) -> Result<bool> {
    let scratch = work.folder("image")?;
    fs::copy(&kernel.file, scratch.join("kernel"))?;
    fs::write(scratch.join("initrd"), initrd)?;
    let record = serde_json::to_vec_pretty(made)?;
    fs::write(scratch.join("image.json"), &record)?;
    work_folder::sync(&scratch)?;
    let is_new = !made.folder.exists();
    if !is_new {
        // The folder of an earlier build: machines that run have read it.
        fs::rename(&made.folder, work.path("before"))?;
    }
    fs::rename(&scratch, &made.folder)
        .with_context(|| format!("making {}", made.folder.display()))?;
    let newest = image::record(work.cache(), made.role);
    let file = work.path("newest.json");
    fs::write(&file, &record)?;
    fs::rename(&file, &newest).with_context(|| format!("writing {}", newest.display()))?;
    Ok(is_new)
}

/// Removes kernels whose base is gone.
fn tidy(cache: &Cache, machines: &Path) -> Result<()> {
    let bases: Vec<String> =
        cache.list()?.into_iter().filter_map(|entry| Some(entry.base?.id.to_string())).collect();
    for entry in fs::read_dir(machines)?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.path().join("image.json").exists() && !bases.contains(&name) {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

/// Runs a tool to its end; its output.
fn tool(command: &mut std::process::Command, package: &str) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = match command.stdin(std::process::Stdio::null()).output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            bail!("{name} is not installed (package {package})")
        }
        other => other.with_context(|| format!("running {name}"))?,
    };
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let said: String = said.trim().chars().take(1000).collect();
        bail!("{name} ended with {}: {said}", output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
