//! A part of a file, mapped for reading: its pages belong to the file.

use std::{fs::File, io, os::fd::AsFd, ptr};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

pub(crate) struct MappedFile {
    address: *mut libc::c_void,
    len: usize,
}

impl MappedFile {
    /// Maps `bytes` bytes from `offset` on, where a page begins.
    ///
    /// # Safety
    /// Nothing writes to them, or shortens the file, while this lives.
    pub(crate) unsafe fn new(file: &File, offset: u64, bytes: u64) -> io::Result<Self> {
        let len = usize::try_from(bytes).map_err(io::Error::other)?;
        if len == 0 {
            return Ok(Self { address: ptr::null_mut(), len });
        }
        let (read, private) = (ProtFlags::READ, MapFlags::PRIVATE);
        // SAFETY: a new mapping at an address of the kernel's choosing.
        let address = unsafe { mmap(ptr::null_mut(), len, read, private, file.as_fd(), offset) }?;
        Ok(Self { address, len })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: mapped for reading with this length until drop, and unchanged, see `new`.
        unsafe { std::slice::from_raw_parts(self.address.cast(), self.len) }
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: the mapping is ours, and borrows of `bytes` have ended. It cannot fail for a
            // mapping that exists.
            let _ = unsafe { munmap(self.address, self.len) };
        }
    }
}
