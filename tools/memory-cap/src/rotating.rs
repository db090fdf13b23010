//! A file that grows up to half of what it may take; then it becomes `FILE.1`, in place of the
//! previous one, and a new file begins.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
};

/// See the module.
#[derive(Debug)]
pub struct Rotating {
    path: PathBuf,
    file: File,
    bytes: u64,
    /// Of both halves together.
    bytes_max: u64,
    /// A failure was reported.
    complained: bool,
}

impl Rotating {
    /// Begins the file; what it held is gone.
    pub fn create(path: &Path, bytes_max: u64) -> io::Result<Self> {
        Ok(Self::at(path, File::create(path)?, 0, bytes_max))
    }

    /// Continues an existing file.
    pub fn append(path: &Path, bytes_max: u64) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        let bytes = file.metadata()?.len();
        Ok(Self::at(path, file, bytes, bytes_max))
    }

    fn at(path: &Path, file: File, bytes: u64, bytes_max: u64) -> Self {
        Self { path: path.to_owned(), file, bytes, bytes_max, complained: false }
    }

    /// Its path; the older half is in `FILE.1`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether `more` bytes require a new file. An empty file accepts any number: a new one would
    /// not have more room.
    pub fn is_full_with(&self, more: usize) -> bool {
        self.bytes > 0 && self.bytes.saturating_add(more as u64) > self.bytes_max / 2
    }

    /// Puts what was written into `FILE.1`.
    pub fn begin_anew(&mut self) -> io::Result<()> {
        fs::rename(&self.path, older(&self.path))?;
        self.file = File::create(&self.path)?;
        self.bytes = 0;
        Ok(())
    }

    /// Writes without a buffer of our own: others read the file while it grows.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.bytes = self.bytes.saturating_add(bytes.len() as u64);
        Ok(())
    }

    /// Writes to a log, in a new file if this one is full. The first failure is printed, after
    /// `who`: what is logged must not wait or end for its log.
    pub fn log(&mut self, bytes: &[u8], who: &str) {
        let anew = if self.is_full_with(bytes.len()) { self.begin_anew() } else { Ok(()) };
        if let Err(error) = anew.and_then(|()| self.write(bytes))
            && !std::mem::replace(&mut self.complained, true)
        {
            eprintln!("{who}the log {} cannot be written: {error}", self.path.display());
        }
    }
}

/// Path of the older half.
pub fn older(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".1");
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotating_log_keeps_two_halves_and_appends_on_reopen() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        for round in 0..10_u8 {
            let mut log = Rotating::append(&path, 1000).unwrap();
            for _ in 0..10 {
                if log.is_full_with(100) {
                    log.begin_anew().unwrap();
                }
                log.write(&[b'0' + round; 100]).unwrap();
            }
        }
        let (new, old) = (fs::read(&path).unwrap(), fs::read(older(&path)).unwrap());
        assert!(new.len() <= 500 && old.len() <= 500, "{} {}", new.len(), old.len());
        assert_eq!((new.last(), new.len() + old.len()), (Some(&b'9'), 1000));
        assert_eq!(Rotating::create(&path, 1000).unwrap().bytes, 0);
    }
}
