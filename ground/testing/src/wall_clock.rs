//! A program whose wall clock a test moves.
//!
//! A library that is preloaded into it (`wall_clock.c`) adds seconds that are in a file. Other
//! clocks of the program are the machine's.

#![allow(clippy::unwrap_used)]

use std::{
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    process::Command,
};

/// Moves the wall clock of programs that are started after [`WallClock::prelude`].
pub struct WallClock {
    file: PathBuf,
    library: PathBuf,
    _folder: tempfile::TempDir,
}

impl WallClock {
    /// One that is ahead by these seconds.
    ///
    /// # Panics
    ///
    /// If the library cannot be built. A C compiler is needed to build the programs, too.
    pub fn new(ahead_seconds: i64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (file, library) = (folder.path().join("ahead"), folder.path().join("clock.so"));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/wall_clock.c");
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
        let built = Command::new(compiler)
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .args([&library, &source])
            .status()
            .unwrap();
        assert!(built.success());
        std::fs::write(&file, ahead_seconds.to_ne_bytes()).unwrap();
        Self { file, library, _folder: folder }
    }

    /// For a program that is to have it, which a shell runs before it becomes the program.
    pub fn prelude(&self) -> String {
        format!(
            "export WALL_CLOCK_AHEAD='{}' LD_PRELOAD='{}'",
            self.file.display(),
            self.library.display()
        )
    }

    /// Sets the clock of programs that may run.
    ///
    /// # Panics
    ///
    /// If the file cannot be written.
    pub fn set(&self, ahead_seconds: i64) {
        let file = std::fs::OpenOptions::new().write(true).open(&self.file).unwrap();
        file.write_all_at(&ahead_seconds.to_ne_bytes(), 0).unwrap();
    }
}
