//! The database's file on a [`Disk`].

use std::{io, path::Path};

use disk::{Disk, DiskFile, Open};
use redb::StorageBackend;

/// Hands on what the database asks of its file.
#[derive(Debug)]
pub(super) struct Backend(Box<dyn DiskFile>);

impl Backend {
    pub(super) fn open(disk: &dyn Disk, path: &Path) -> io::Result<Self> {
        disk.open(path, Open::Create).map(Self)
    }
}

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        self.0.length()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < out.len() {
            match self.0.read_at(&mut out[done..], offset + done as u64)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => done += read,
            }
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_at(data, offset)
    }
}
