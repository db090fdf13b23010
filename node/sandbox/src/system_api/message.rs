//! The message itself: argument, caller, response, inspection.

use super::{Blob, Context, Failure, Host, TRAP_TEXT_BYTES};
use crate::Response;

impl Host {
    /// Any `*_copy` of a blob.
    pub(super) fn blob_copy(
        &mut self,
        blob: Blob,
        dst: u64,
        offset: u64,
        size: u64,
    ) -> Result<(), Failure> {
        self.check_present(blob)?;
        self.copy_out(blob, dst, offset, size)
    }

    /// Any `*_size` of a blob, in bytes.
    pub(super) fn blob_size(&mut self, blob: Blob) -> Result<u64, Failure> {
        self.check_present(blob)?;
        Ok(self.blob(blob).len() as u64)
    }

    /// The data certificate is the one blob that may be missing and depends on the height.
    fn check_present(&mut self, blob: Blob) -> Result<(), Failure> {
        if blob == Blob::DataCertificate {
            if self.context.data_certificate.is_none() {
                return Err(self.violation("there is no data certificate"));
            }
            self.height_read = true;
        }
        Ok(())
    }

    pub(super) fn msg_deadline(&self) -> u64 {
        match self.mode {
            // Calls to query methods have none, in replicated mode either.
            Context::ReplicatedQuery
            | Context::Query
            | Context::CompositeQuery
            | Context::CompositeReply
            | Context::CompositeReject => 0,
            _ => self.context.deadline.0,
        }
    }

    fn may_respond(&self) -> Result<(), Failure> {
        if self.context.already_responded || self.outgoing().response != Response::None {
            return Err(self.violation("the call is already replied to, or needs no reply"));
        }
        Ok(())
    }

    pub(super) fn msg_reply_data_append(&mut self, src: u64, size: u64) -> Result<(), Failure> {
        self.may_respond()?;
        let (have, limit) =
            (self.outgoing().reply_data.len() as u64, self.context.payload_max_bytes);
        if have.checked_add(size).is_none_or(|all| all > limit) {
            return Err(self.violation(format_args!(
                "a reply of {have} + {size} bytes, the limit is {limit} bytes"
            )));
        }
        let range = self.heap_range(src, size)?;
        self.outgoing().reply_data.extend_from_slice(self.heap.read(range));
        Ok(())
    }

    pub(super) fn msg_reply(&mut self) -> Result<(), Failure> {
        self.may_respond()?;
        let data = std::mem::take(&mut self.outgoing().reply_data);
        self.respond(Response::Reply(data));
        Ok(())
    }

    pub(super) fn msg_reject(&mut self, src: u64, size: u64) -> Result<(), Failure> {
        self.may_respond()?;
        let message = self.read_text(src, size, self.context.payload_max_bytes)?;
        self.respond(Response::Reject(message));
        Ok(())
    }

    fn respond(&mut self, response: Response) {
        let mut outgoing = self.outgoing();
        outgoing.reply_data = Vec::new();
        outgoing.response = response;
        drop(outgoing);
        self.cycles_available = 0;
    }

    pub(super) fn accept_message(&mut self) -> Result<(), Failure> {
        if self.accepted {
            return Err(self.violation("the message is accepted already"));
        }
        self.accepted = true;
        Ok(())
    }

    /// Never fails but for want of instructions.
    pub(super) fn debug_print(&mut self, src: u64, size: u64) -> Result<(), Failure> {
        let Some(room) = self.log.room() else { return Ok(()) };
        match src.checked_add(size).filter(|end| *end <= self.heap.size_bytes()) {
            Some(end) => {
                let end = end.min(src.saturating_add(room));
                self.charge(end - src)?;
                let heap = self.heap.clone();
                self.log.push(heap.read(src..end));
            }
            None => self.log.push(b"(debug_print of bytes outside the Wasm memory)"),
        }
        Ok(())
    }

    /// Always fails, which ends the message; the text is cut to 16 KiB and to valid UTF-8.
    pub(super) fn trap(&mut self, src: u64, size: u64) -> Result<(), Failure> {
        let bytes = self.read_heap(src, size.min(TRAP_TEXT_BYTES))?;
        let mut text = String::with_capacity(bytes.len());
        for chunk in bytes.utf8_chunks() {
            text.push_str(chunk.valid());
        }
        Err(Failure::called_trap(&text))
    }
}
