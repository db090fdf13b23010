//! The methods that are measured, each a function that makes one disk per machine.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Command,
    thread,
};

use anyhow::{Context, Result, anyhow, bail};

use super::{Measurement, image::tool, measure};
use crate::{Cache, OverlayOptions, Packing, Settings, Stop};

/// A way to make the disks.
pub(crate) struct Method {
    pub(crate) name: &'static str,
    /// Which base is in the cache before it begins.
    before: Option<Packing>,
    work: fn(&Workspace, &Path) -> Result<()>,
}

const BY_LIBRARY: &str = "base cached + overlays";
const BY_COMMAND: &str = "base cached + overlays, by the command";

/// Whether the goal of a cached base holds for a method.
pub(crate) fn is_goal(name: &str) -> bool {
    [BY_LIBRARY, BY_COMMAND].contains(&name)
}

const fn method(
    name: &'static str,
    before: Option<Packing>,
    work: fn(&Workspace, &Path) -> Result<()>,
) -> Method {
    Method { name, before, work }
}

/// All of them.
pub(crate) const METHODS: &[Method] = &[
    method("unpack each, in sequence", None, |workspace, to| workspace.unpack_each(to, false)),
    method("unpack each, in parallel", None, |workspace, to| workspace.unpack_each(to, true)),
    method("unpack once + cp --reflink=auto, in parallel", None, |workspace, to| {
        let base = to.join("base");
        workspace.unpack(&base)?;
        workspace.every(true, &|index| {
            let mut cp = Command::new("cp");
            cp.args(["--reflink=auto", "--sparse=auto"]).args([&base, &disk(to, index)]);
            tool(&mut cp, "cp", "coreutils")
        })
    }),
    method("unpack once + qemu-img create each", None, |workspace, to| {
        let base = to.join("base");
        workspace.unpack(&base)?;
        workspace.every(false, &|index| create(&base, "raw", &disk(to, index)))
    }),
    method("image add + overlays (synced)", None, |workspace, to| {
        workspace.overlays(&to.join("cache"), Packing::Best, to)
    }),
    method(BY_LIBRARY, Some(Packing::Best), |workspace, to| {
        workspace.overlays(&workspace.warm, Packing::Best, to)
    }),
    method(BY_COMMAND, Some(Packing::Best), Workspace::command),
    method("base cached + qemu-img create, in sequence", Some(Packing::Best), |workspace, to| {
        workspace.create_each(to, false)
    }),
    method("base cached + qemu-img create, in parallel", Some(Packing::Best), |workspace, to| {
        workspace.create_each(to, true)
    }),
    method("image add --compressed + overlays (synced)", None, |workspace, to| {
        workspace.overlays(&to.join("cache"), Packing::Compressed, to)
    }),
    method("compressed base cached + overlays", Some(Packing::Compressed), |workspace, to| {
        workspace.overlays(&workspace.compressed, Packing::Compressed, to)
    }),
    method("read a disk, raw base", Some(Packing::Best), |workspace, to| {
        workspace.read(Packing::Best, to)
    }),
    method("read a disk, compressed base", Some(Packing::Compressed), |workspace, to| {
        workspace.read(Packing::Compressed, to)
    }),
];

/// Where it happens.
pub(crate) struct Workspace {
    image: PathBuf,
    /// Emptied before each method.
    work: PathBuf,
    /// Caches that have the base, raw and compressed.
    warm: PathBuf,
    compressed: PathBuf,
    machines: usize,
    program: Vec<String>,
    settings: Settings,
}

impl Workspace {
    pub(crate) fn new(
        folder: &Path,
        image: &Path,
        machines: usize,
        subcommand: &[&str],
        stop: &Stop,
    ) -> Result<Self> {
        let own = std::env::current_exe()?.into_os_string().into_string();
        let own =
            own.map_err(|path| anyhow!("the path of this program is no text: {}", path.display()))?;
        let workspace = Self {
            image: image.to_owned(),
            work: folder.join("work"),
            warm: folder.join("cache"),
            compressed: folder.join("cache-compressed"),
            machines,
            program: std::iter::once(own)
                .chain(subcommand.iter().map(|word| (*word).to_owned()))
                .collect(),
            settings: Settings { talks: true, stop: stop.clone(), ..Settings::default() },
        };
        workspace.clear()?;
        Ok(workspace)
    }

    /// Removes everything but the image.
    pub(crate) fn clear(&self) -> Result<()> {
        for folder in [&self.work, &self.warm, &self.compressed] {
            empty(folder)?;
        }
        Ok(())
    }

    /// How many bases the warm cache has.
    pub(crate) fn bases(&self) -> Result<usize> {
        Ok(self.cache(&self.warm)?.list()?.len())
    }

    /// Size of the disk in the image; 0 where no base was made.
    pub(crate) fn disk_bytes(&self) -> Result<u64> {
        let entries = self.cache(&self.warm)?.list()?;
        Ok(entries
            .iter()
            .filter_map(|entry| entry.base.as_ref())
            .map(|base| base.virtual_bytes)
            .max()
            .unwrap_or(0))
    }

    fn cache(&self, folder: &Path) -> Result<Cache> {
        Ok(Cache::open(folder, self.settings.clone())?)
    }

    fn cache_of(&self, wanted: Packing) -> &Path {
        if wanted == Packing::Compressed { &self.compressed } else { &self.warm }
    }

    fn cached(&self, wanted: Packing) -> Result<crate::Base> {
        Ok(self.cache(self.cache_of(wanted))?.add(&self.image, wanted)?.base)
    }

    pub(crate) fn measure(&self, method: &Method) -> Result<Measurement> {
        empty(&self.work)?;
        fs::create_dir_all(&self.work)?;
        let base = match method.before {
            Some(wanted) => on_disk(&self.cached(wanted)?.path)?,
            None => 0,
        };
        let measured = measure(
            || (method.work)(self, &self.work),
            || {
                let made = on_disk(&self.work)?;
                Ok((made, made + base))
            },
        );
        // A method that failed leaves no disks either.
        empty(&self.work)?;
        measured
    }

    /// For each machine, one after the other or all at once.
    fn every(&self, parallel: bool, work: &(dyn Fn(usize) -> Result<()> + Sync)) -> Result<()> {
        if !parallel {
            return (0..self.machines).try_for_each(|index| {
                self.settings.stop.check()?;
                work(index)
            });
        }
        thread::scope(|scope| {
            let threads: Vec<_> =
                (0..self.machines).map(|index| scope.spawn(move || work(index))).collect();
            threads
                .into_iter()
                .try_for_each(|thread| thread.join().unwrap_or_else(|_| bail!("a thread panicked")))
        })
    }

    fn unpack(&self, to: &Path) -> Result<()> {
        tool(
            Command::new("zstd").args(["-d", "-q", "--sparse", "-o"]).args([to, &self.image]),
            "zstd",
            "zstd",
        )
    }

    fn unpack_each(&self, to: &Path, parallel: bool) -> Result<()> {
        self.every(parallel, &|index| self.unpack(&disk(to, index)))
    }

    fn create_each(&self, to: &Path, parallel: bool) -> Result<()> {
        let base = self.cached(Packing::Best)?;
        self.every(parallel, &|index| create(&base.path, base.format, &disk(to, index)))
    }

    /// Adds the image to the cache in a folder, and makes the overlays.
    fn overlays(&self, cache: &Path, wanted: Packing, to: &Path) -> Result<()> {
        let cache = self.cache(cache)?;
        let id = cache.add(&self.image, wanted)?.base.id;
        (0..self.machines).try_for_each(|index| {
            cache.overlay(&id, &disk(to, index), OverlayOptions::default())?;
            Ok(())
        })
    }

    /// The disks by this program, as a shell would have them.
    fn command(&self, to: &Path) -> Result<()> {
        let (program, arguments) = self.program.split_first().context("no program")?;
        let mut command = Command::new(program);
        command
            .args(arguments)
            .args(["overlay", "--quiet", "--cache"])
            .arg(&self.warm)
            .arg(&self.image);
        command.args((0..self.machines).map(|index| disk(to, index)));
        tool(&mut command, "image overlay", "this program")
    }

    /// Reads all of a disk once through an overlay, as one machine that reads everything would.
    fn read(&self, wanted: Packing, to: &Path) -> Result<()> {
        let cache = self.cache(self.cache_of(wanted))?;
        let base = cache.add(&self.image, wanted)?.base;
        let disk = disk(to, 0);
        cache.overlay(&base.id, &disk, OverlayOptions::default())?;
        let mut convert = Command::new("qemu-img");
        convert.args(["convert", "-n", "-f", "qcow2"]).arg(&disk);
        convert
            .arg("--target-image-opts")
            .arg(format!("driver=null-co,size={}", base.virtual_bytes));
        tool(&mut convert, "qemu-img", "qemu-utils")
    }
}

fn disk(folder: &Path, index: usize) -> PathBuf {
    folder.join(format!("disk-{index}"))
}

fn create(base: &Path, format: &str, to: &Path) -> Result<()> {
    let mut create = Command::new("qemu-img");
    create.args(["create", "-q", "-f", "qcow2", "-F", format, "-b"]).args([base, to]);
    tool(&mut create, "qemu-img", "qemu-utils")
}

fn empty(folder: &Path) -> Result<()> {
    let removed = cli::if_there(fs::remove_dir_all(folder));
    removed.map(drop).with_context(|| format!("removing {}", folder.display()))
}

/// Size of a file or folder on the disk.
fn on_disk(path: &Path) -> Result<u64> {
    let metadata = fs::symlink_metadata(path)?;
    let mut bytes = metadata.blocks() * 512;
    if metadata.is_dir() {
        for entry in fs::read_dir(path)? {
            bytes += on_disk(&entry?.path())?;
        }
    }
    Ok(bytes)
}
