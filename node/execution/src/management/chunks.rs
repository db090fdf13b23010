//! The chunk store: parts of modules too large for one message. The bytes are in the module store,
//! a canister has only their hashes.

use ic_management_canister_types::ChunkHash;
use serde::Deserialize;
use serde_bytes::ByteBuf;
use state::{CHUNK_ACCOUNTED_BYTES, SubnetCall};

use super::install::hash_instructions;
use super::settings::check_promises;
use super::{Dispatcher, MethodOutcome, MethodResult, encode, no_value};
use crate::reject::refused;

#[derive(candid::CandidType, Deserialize)]
struct UploadChunk {
    canister_id: candid::Principal,
    chunk: ByteBuf,
}

impl Dispatcher<'_> {
    pub(super) fn upload_chunk(&mut self, call: &SubnetCall) -> MethodResult {
        let argument: UploadChunk = self.decode(call)?;
        let limits = &self.core.limits().subnet;
        let bytes = argument.chunk.len() as u64;
        if bytes > limits.chunk_bytes {
            return refused!(
                contract_violation,
                "The chunk has {bytes} bytes, the most is {} (subnet.chunk_bytes).",
                limits.chunk_bytes
            );
        }
        self.effects.work += hash_instructions(bytes);
        self.state.refresh();
        let current = self.target(&argument.canister_id)?;
        let hash = <[u8; 32]>::from(<sha2::Sha256 as sha2::Digest>::digest(&argument.chunk));
        if !current.chunks.contains_key(&hash) {
            let used = current.chunks.len() as u64 * CHUNK_ACCOUNTED_BYTES;
            if used + CHUNK_ACCOUNTED_BYTES > limits.chunk_store_bytes {
                return refused!(
                    contract_violation,
                    "The chunk store of canister {} holds {} chunks, which count {used} bytes of \
                     {} (subnet.chunk_store_bytes); clear it.",
                    current.id,
                    current.chunks.len(),
                    limits.chunk_store_bytes
                );
            }
            let mut next = current.clone();
            next.chunks.insert(hash, bytes);
            check_promises(self.core, self.state, Some(current), &next)?;
            self.store_blob(&argument.chunk)?;
            self.state.put(next);
        }
        Ok(MethodOutcome::Reply(encode(&ChunkHash { hash: hash.to_vec() })?))
    }

    pub(super) fn stored_chunks(&mut self, call: &SubnetCall) -> MethodResult {
        let id = self.canister_in(call)?;
        let hashes: Vec<ChunkHash> =
            self.target(&id)?.chunks.keys().map(|hash| ChunkHash { hash: hash.to_vec() }).collect();
        Ok(MethodOutcome::Reply(encode(&hashes)?))
    }

    pub(super) fn clear_chunk_store(&mut self, call: &SubnetCall) -> MethodResult {
        let id = self.canister_in(call)?;
        // The bytes go once no checkpoint names them any more.
        self.core.note_blobs_changed();
        self.target_mut(&id)?.chunks.clear();
        Ok(MethodOutcome::Reply(no_value()))
    }
}
