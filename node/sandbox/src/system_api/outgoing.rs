//! The answer of a message and the calls it makes: its largest data except for pages, which a
//! paused message keeps in a file.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufWriter, Seek, SeekFrom, Write},
    os::fd::AsFd,
};

use ic_principal::Principal;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use serde::{Deserialize, Serialize};

use super::calls::PendingCall;
use crate::{Call, Response};

/// Bytes written to the file at once.
const WRITE_BYTES: usize = 64 << 10;

/// See the module.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Outgoing {
    pub(super) response: Response,
    #[serde(with = "serde_bytes")]
    pub(super) reply_data: Vec<u8>,
    pub(super) pending_call: Option<PendingCall>,
    pub(super) calls: Vec<Call>,
    /// Bytes that the calls count as.
    pub(super) bytes: u64,
    /// Places in the queues to other canisters that the calls take.
    pub(super) slots_taken: BTreeMap<Principal, u64>,
}

impl Default for Outgoing {
    fn default() -> Self {
        Self {
            response: Response::None,
            reply_data: Vec::new(),
            pending_call: None,
            calls: Vec::new(),
            bytes: 0,
            slots_taken: BTreeMap::new(),
        }
    }
}

impl Outgoing {
    /// Writes everything to `file` at `offset` and frees it. Returns the number of bytes in the
    /// file.
    pub(crate) fn write_to_file(&mut self, mut file: &File, offset: u64) -> io::Result<u64> {
        file.seek(SeekFrom::Start(offset))?;
        let writer = BufWriter::with_capacity(WRITE_BYTES, file);
        postcard::to_io(self, writer).map_err(io::Error::other)?.flush()?;
        *self = Self::default();
        Ok(file.stream_position()? - offset)
    }

    /// Reads what [`Self::write_to_file`] wrote. Only the result takes memory of its own.
    pub(crate) fn read_from_file(file: &File, offset: u64, bytes: u64) -> io::Result<Self> {
        let length = usize::try_from(bytes).map_err(io::Error::other)?;
        // SAFETY: a fresh mapping at an address of the kernel's choosing.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ,
                MapFlags::PRIVATE,
                file.as_fd(),
                offset,
            )?
        };
        // SAFETY: just mapped, so long, and the file is this message's own.
        let content = unsafe { std::slice::from_raw_parts(start.cast::<u8>(), length) };
        let outgoing = postcard::from_bytes(content).map_err(io::Error::other);
        // SAFETY: nothing refers to it any more: what was read owns its bytes.
        unsafe { munmap(start, length)? };
        outgoing
    }
}
