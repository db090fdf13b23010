//! The kernel's modules, in the order that the image's builder found.

use std::{
    fs::{self, File},
    path::Path,
};

use anyhow::{Context, Result};
use rustix::{io::Errno, system::finit_module};

use super::MODULES;

pub(super) fn load() -> Result<()> {
    let list = fs::read_to_string(MODULES).with_context(|| format!("reading {MODULES}"))?;
    for path in list.lines().filter(|line| !line.is_empty()) {
        let file = File::open(Path::new(path)).with_context(|| format!("opening {path}"))?;
        match finit_module(&file, c"", 0) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error).with_context(|| format!("loading the module {path}")),
        }
    }
    Ok(())
}
