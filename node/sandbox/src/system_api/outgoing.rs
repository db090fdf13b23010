//! The answer of a message and the calls it makes: its largest data except for pages, which a
//! paused message keeps in a file.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufWriter, Seek, SeekFrom, Write},
};

use ic_principal::Principal;
use serde::{Deserialize, Serialize};

use crate::{Call, Response, mapped_file::MappedFile};

/// Bytes written to the file at once.
const WRITE_BYTES: usize = 64 << 10;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Outgoing {
    pub(super) response: Response,
    #[serde(with = "serde_bytes")]
    pub(super) reply_data: Vec<u8>,
    pub(super) pending_call: Option<Call>,
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
        // SAFETY: the file is this message's own, and nothing writes to it meanwhile.
        let content = unsafe { MappedFile::new(file, offset, bytes) }?;
        postcard::from_bytes(content.bytes()).map_err(io::Error::other)
    }
}
