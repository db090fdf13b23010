//! The message itself: argument, caller, response, inspection.

use super::{Blob, Context, Failure, Host, TRAP_TEXT_BYTES};
use crate::Response;

impl Host {
    /// Any `*_copy` of a blob that is always there.
    pub(super) fn blob_copy(
        &mut self,
        function: &str,
        blob: BlobName,
        dst: u64,
        offset: u64,
        size: u64,
    ) -> Result<(), Failure> {
        let blob = self.named(function, blob)?;
        self.copy_out(function, blob, dst, offset, size)
    }

    /// Any `*_size` of such a blob, in bytes.
    pub(super) fn blob_size(&mut self, function: &str, blob: BlobName) -> Result<u64, Failure> {
        let blob = self.named(function, blob)?;
        Ok(self.blob(blob).len() as u64)
    }

    fn named(&mut self, function: &str, name: BlobName) -> Result<Blob, Failure> {
        Ok(match name {
            BlobName::Argument => Blob::Argument,
            BlobName::Caller => Blob::Caller,
            BlobName::CallerInfoData => Blob::CallerInfoData,
            BlobName::CallerInfoSigner => Blob::CallerInfoSigner,
            BlobName::RejectMessage => Blob::RejectMessage,
            BlobName::CanisterSelf => Blob::CanisterSelf,
            BlobName::SubnetSelf => Blob::SubnetSelf,
            BlobName::MethodName => Blob::MethodName,
            BlobName::RootKey => Blob::RootKey,
            BlobName::DataCertificate if self.context.data_certificate.is_some() => {
                self.height_read = true;
                Blob::DataCertificate
            }
            BlobName::DataCertificate => {
                return Err(Failure::contract(&format!(
                    "ic0.{function}: there is no data certificate"
                )));
            }
        })
    }

    pub(super) fn msg_reject_code(&self) -> u32 {
        self.reject_code
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

    fn may_respond(&self, function: &str) -> Result<(), Failure> {
        if self.context.already_responded || self.outgoing().response != Response::None {
            return Err(Failure::contract(&format!(
                "ic0.{function}: the call is already replied to, or needs no reply"
            )));
        }
        Ok(())
    }

    pub(super) fn msg_reply_data_append(&mut self, src: u64, size: u64) -> Result<(), Failure> {
        const FUNCTION: &str = "msg_reply_data_append";
        self.may_respond(FUNCTION)?;
        let (have, limit) =
            (self.outgoing().reply_data.len() as u64, self.context.payload_max_bytes);
        if have.checked_add(size).is_none_or(|all| all > limit) {
            return Err(Failure::contract(&format!(
                "ic0.{FUNCTION}: a reply of {have} + {size} bytes, the limit is {limit} bytes"
            )));
        }
        let range = self.heap_range(FUNCTION, src, size)?;
        self.outgoing().reply_data.extend_from_slice(self.heap.read(range));
        Ok(())
    }

    pub(super) fn msg_reply(&mut self) -> Result<(), Failure> {
        self.may_respond("msg_reply")?;
        let mut outgoing = self.outgoing();
        outgoing.response = Response::Reply(std::mem::take(&mut outgoing.reply_data));
        drop(outgoing);
        self.cycles_available = 0;
        Ok(())
    }

    pub(super) fn msg_reject(&mut self, src: u64, size: u64) -> Result<(), Failure> {
        self.may_respond("msg_reject")?;
        let message = self.read_text("msg_reject", src, size, self.context.payload_max_bytes)?;
        let mut outgoing = self.outgoing();
        outgoing.reply_data = Vec::new();
        outgoing.response = Response::Reject(message);
        drop(outgoing);
        self.cycles_available = 0;
        Ok(())
    }

    pub(super) fn accept_message(&mut self) -> Result<(), Failure> {
        if self.accepted {
            return Err(Failure::contract("ic0.accept_message: the message is accepted already"));
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

    /// The failure that ends the message; its text is cut to 16 KiB and to valid UTF-8.
    pub(super) fn trap(&mut self, src: u64, size: u64) -> Failure {
        let size = size.min(TRAP_TEXT_BYTES);
        match self.read_heap("trap", src, size) {
            Ok(bytes) => {
                let mut text = String::with_capacity(bytes.len());
                for chunk in bytes.utf8_chunks() {
                    text.push_str(chunk.valid());
                }
                Failure::called_trap(&text)
            }
            Err(failure) => failure,
        }
    }
}

/// Blobs with a `_size` and a `_copy` function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlobName {
    Argument,
    Caller,
    CallerInfoData,
    CallerInfoSigner,
    RejectMessage,
    CanisterSelf,
    SubnetSelf,
    MethodName,
    RootKey,
    DataCertificate,
}
