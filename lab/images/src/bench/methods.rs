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
use crate::{BaseId, Cache, OverlayOptions, Packing, Settings, Stop};

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

/// All of them.
pub(crate) const METHODS: &[Method] = &[
    Method {
        name: "unpack each, in sequence",
        before: None,
        work: |workspace, to| workspace.unpack_each(to, false),
    },
    Method {
        name: "unpack each, in parallel",
        before: None,
        work: |workspace, to| workspace.unpack_each(to, true),
    },
    Method {
        name: "unpack once + cp --reflink=auto, in parallel",
        before: None,
        work: |workspace, to| {
            workspace.unpack(&to.join("base"))?;
            workspace.every(true, &|index| {
                let mut cp = Command::new("cp");
                tool(
                    cp.args(["--reflink=auto", "--sparse=auto"])
                        .args([to.join("base"), disk(to, index)]),
                    "cp",
                    "coreutils",
                )
            })
        },
    },
    Method {
        name: "unpack once + qemu-img create each",
        before: None,
        work: |workspace, to| {
            workspace.unpack(&to.join("base"))?;
            workspace.every(false, &|index| create(&to.join("base"), "raw", &disk(to, index)))
        },
    },
    Method {
        name: "image add + overlays (synced)",
        before: None,
        work: |workspace, to| {
            let cache = workspace.cache(&to.join("cache"))?;
            let id = cache.add(&workspace.image, Packing::Best)?.base.id;
            workspace.overlays(&cache, &id, to)
        },
    },
    Method {
        name: BY_LIBRARY,
        before: Some(Packing::Best),
        work: |workspace, to| {
            let cache = workspace.cache(&workspace.warm)?;
            let id = cache.add(&workspace.image, Packing::Best)?.base.id;
            workspace.overlays(&cache, &id, to)
        },
    },
    Method { name: BY_COMMAND, before: Some(Packing::Best), work: Workspace::command },
    Method {
        name: "base cached + qemu-img create, in sequence",
        before: Some(Packing::Best),
        work: |workspace, to| {
            let base = workspace.cached(Packing::Best)?;
            workspace.every(false, &|index| create(&base.path, base.format, &disk(to, index)))
        },
    },
    Method {
        name: "base cached + qemu-img create, in parallel",
        before: Some(Packing::Best),
        work: |workspace, to| {
            let base = workspace.cached(Packing::Best)?;
            workspace.every(true, &|index| create(&base.path, base.format, &disk(to, index)))
        },
    },
    Method {
        name: "image add --compressed + overlays (synced)",
        before: None,
        work: |workspace, to| {
            let cache = workspace.cache(&to.join("cache"))?;
            let id = cache.add(&workspace.image, Packing::Compressed)?.base.id;
            workspace.overlays(&cache, &id, to)
        },
    },
    Method {
        name: "compressed base cached + overlays",
        before: Some(Packing::Compressed),
        work: |workspace, to| {
            let cache = workspace.cache(&workspace.compressed)?;
            let id = cache.add(&workspace.image, Packing::Compressed)?.base.id;
            workspace.overlays(&cache, &id, to)
        },
    },
    Method {
        name: "read a disk, raw base",
        before: Some(Packing::Best),
        work: |workspace, to| workspace.read(Packing::Best, to),
    },
    Method {
        name: "read a disk, compressed base",
        before: Some(Packing::Compressed),
        work: |workspace, to| workspace.read(Packing::Compressed, to),
    },
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

    fn cached(&self, wanted: Packing) -> Result<crate::Base> {
        let folder = if wanted == Packing::Compressed { &self.compressed } else { &self.warm };
        Ok(self.cache(folder)?.add(&self.image, wanted)?.base)
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

    fn overlays(&self, cache: &Cache, id: &BaseId, to: &Path) -> Result<()> {
        (0..self.machines).try_for_each(|index| {
            cache
                .overlay(id, &disk(to, index), OverlayOptions::default())
                .map(drop)
                .map_err(Into::into)
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
        let folder = if wanted == Packing::Compressed { &self.compressed } else { &self.warm };
        let cache = self.cache(folder)?;
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
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", folder.display()))
        }
        _ => Ok(()),
    }
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
