//! Which modules of the kernel are needed, in which order, and what is in them.
//!
//! The package holds no table of dependencies (the distribution makes one when it installs); each
//! module names its own, in a section of lines `key=value`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::Read,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};

use super::package::Kernel;

/// Modules have at most a few MiB.
const MODULE_BYTES_MAX: u64 = 64 << 20;
/// More than the disk and the network need.
const MODULES_MAX: usize = 64;

/// Paths below the kernel's folder, dependencies first. Built-in modules are omitted.
pub(super) fn in_order(kernel: &Kernel, wanted: &[&str]) -> Result<Vec<PathBuf>> {
    let by_name: BTreeMap<String, &PathBuf> =
        kernel.modules.iter().map(|path| (name_of(path), path)).collect();
    let built_in: BTreeSet<String> =
        kernel.built_in.lines().map(|line| name_of(Path::new(line))).collect();
    let mut search = Search { kernel, by_name, built_in, order: vec![], under_way: vec![] };
    for name in wanted {
        search.visit(name)?;
    }
    Ok(search.order)
}

struct Search<'a> {
    kernel: &'a Kernel,
    by_name: BTreeMap<String, &'a PathBuf>,
    built_in: BTreeSet<String>,
    order: Vec<PathBuf>,
    under_way: Vec<String>,
}

impl Search<'_> {
    fn visit(&mut self, name: &str) -> Result<()> {
        let Some(path) = self.by_name.get(name).copied() else {
            ensure!(
                self.built_in.contains(name),
                "the kernel {} has no module {name}, and has it not built in either",
                self.kernel.name
            );
            return Ok(());
        };
        if self.order.contains(path) {
            return Ok(());
        }
        ensure!(
            !self.under_way.iter().any(|other| other == name),
            "modules need each other: {}, {name}",
            self.under_way.join(", ")
        );
        ensure!(self.order.len() < MODULES_MAX, "more than {MODULES_MAX} modules are needed");
        self.under_way.push(name.to_owned());
        for needed in needs(&read(&self.kernel.folder.join(path))?) {
            self.visit(&needed)?;
        }
        self.under_way.pop();
        self.order.push(path.clone());
        Ok(())
    }
}

/// `kernel/drivers/net/virtio-net.ko.xz` is the module `virtio_net`.
fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy().replace('-', "_");
    name.split(".ko").next().unwrap_or_default().to_owned()
}

/// The name of a module's file once it is unpacked.
pub(super) fn plain_name(name: &str) -> String {
    format!("{}.ko", name.split(".ko").next().unwrap_or_default())
}

/// A module, unpacked.
pub(super) fn read(path: &Path) -> Result<Vec<u8>> {
    let read = || -> Result<Vec<u8>> {
        let file = File::open(path)?;
        let mut bytes = Vec::new();
        let kind = path.extension().unwrap_or_default().to_string_lossy().into_owned();
        let decoder: Box<dyn Read> = match kind.as_str() {
            "ko" => Box::new(file),
            "xz" => Box::new(liblzma::read::XzDecoder::new(file)),
            "zst" => Box::new(zstd::Decoder::new(file)?),
            "gz" => Box::new(flate2::read::GzDecoder::new(file)),
            other => bail!("it is packed as .{other}, which is not known"),
        };
        decoder.take(MODULE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
        ensure!(
            bytes.len() as u64 <= MODULE_BYTES_MAX,
            "it has more than {MODULE_BYTES_MAX} bytes"
        );
        Ok(bytes)
    };
    read().with_context(|| format!("reading the module {}", path.display()))
}

/// The modules that one needs: those it takes functions of, and those it asks for.
fn needs(module: &[u8]) -> Vec<String> {
    let values = |key: &'static [u8]| {
        module
            .split(|byte| *byte == 0)
            .filter_map(move |line| line.strip_prefix(key))
            .take(MODULES_MAX)
    };
    let names = |text: &[u8]| String::from_utf8_lossy(text).replace('-', "_");
    let mut needed = Vec::new();
    for value in values(b"depends=") {
        needed.extend(names(value).split(',').filter(|name| !name.is_empty()).map(str::to_owned));
    }
    needed
}

/// Files of a kernel's modules, and the list of what is built in.
pub(super) fn found(folder: &Path) -> Result<(Vec<PathBuf>, String)> {
    let mut modules = Vec::new();
    let mut built_in = String::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next)? {
            let entry = entry?;
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            if entry.file_type()?.is_dir() {
                folders.push(path);
            } else if name == "modules.builtin" {
                built_in = fs::read_to_string(&path)?;
            } else if name.contains(".ko") {
                modules.push(path.strip_prefix(folder)?.to_owned());
            }
        }
    }
    modules.sort();
    Ok((modules, built_in))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel of modules and what each needs.
    fn kernel(folder: &Path, modules: &[(&str, &str)], built_in: &str) -> Kernel {
        for (name, needs) in modules {
            let text = format!("\u{7f}ELF\0license=GPL\0depends={needs}\0name={name}\0");
            fs::write(folder.join(format!("{name}.ko")), text).unwrap();
        }
        let (modules, _) = found(folder).unwrap();
        Kernel {
            name: "test".into(),
            file: folder.join("vmlinuz"),
            folder: folder.to_owned(),
            modules,
            built_in: built_in.to_owned(),
        }
    }

    #[test]
    fn what_a_module_needs_comes_before_it_and_once() {
        let folder = tempfile::tempdir().unwrap();
        let kernel = kernel(
            folder.path(),
            &[
                ("virtio-net", "failover,virtio_ring"),
                ("virtio_ring", "virtio"),
                ("virtio", ""),
                ("failover", "virtio"),
            ],
            "kernel/drivers/acpi/button.ko\n",
        );
        let order = in_order(&kernel, &["virtio_net", "button", "virtio"]).unwrap();
        let names: Vec<String> = order.iter().map(|path| name_of(path)).collect();
        assert_eq!(names, ["virtio", "failover", "virtio_ring", "virtio_net"]);
        let error = in_order(&kernel, &["evdev"]).unwrap_err().to_string();
        assert!(error.contains("has no module evdev"), "{error}");
    }

    #[test]
    fn cyclic_dependency_is_rejected_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let kernel = kernel(folder.path(), &[("a", "b"), ("b", "a")], "");
        let error = in_order(&kernel, &["a"]).unwrap_err().to_string();
        assert!(error.contains("need each other: a, b, a"), "{error}");
    }

    #[test]
    fn packed_modules_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.ko.zst");
        fs::write(&path, zstd::encode_all(&b"depends=y\0"[..], 1).unwrap()).unwrap();
        assert_eq!(needs(&read(&path).unwrap()), ["y"]);
        assert_eq!(plain_name("x.ko.zst"), "x.ko");
        assert!(read(&folder.path().join("x.ko.rar")).is_err());
    }
}
