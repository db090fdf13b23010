//! The required leaves: an index over the manifest's body, which stays on disk, and two bits per
//! leaf.

use std::fs::File;
use std::io::BufReader;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use limits::Limits;
use state::ChunkId;
use state::manifest::{Body, LEAF_BYTES, LeafHash, ManifestError, ObjectId, stream_leaf_bytes};

use super::{InstallError, blob_bytes_max};

/// Bytes of a row of the body.
const ROW_BYTES: usize = 36;

#[derive(Clone, Copy, Debug)]
pub(super) struct PlannedObject {
    pub(super) id: ObjectId,
    pub(super) length: u64,
    /// How many leaves are listed.
    pub(super) leaves: u32,
    rows_at: u64,
    /// Number of its first leaf among all leaves.
    pub(super) first: u64,
}

impl PlannedObject {
    /// Bytes of a leaf in the progress.
    pub(super) fn leaf_bytes(&self, index: u32) -> u64 {
        stream_leaf_bytes(self.length, index).unwrap_or(LEAF_BYTES) as u64
    }
}

#[derive(Default)]
struct Bits(Vec<u64>);

impl Bits {
    fn new(count: u64) -> Self {
        Self(vec![0; usize::try_from(count.div_ceil(64)).unwrap_or(0)])
    }

    fn get(&self, at: u64) -> bool {
        self.0.get((at / 64) as usize).is_some_and(|word| word >> (at % 64) & 1 == 1)
    }

    fn set(&mut self, at: u64, value: bool) {
        if let Some(word) = self.0.get_mut((at / 64) as usize) {
            *word = *word & !(1 << (at % 64)) | u64::from(value) << (at % 64);
        }
    }

    /// The first set bit from `from` on.
    fn next(&self, from: u64) -> Option<u64> {
        let mut word = (from / 64) as usize;
        let mut bits = self.0.get(word)? & (u64::MAX << (from % 64));
        while bits == 0 {
            word += 1;
            bits = *self.0.get(word)?;
        }
        Some(word as u64 * 64 + u64::from(bits.trailing_zeros()))
    }
}

pub(super) struct Plan {
    body: File,
    path: PathBuf,
    pub(super) objects: Vec<PlannedObject>,
    pub(super) leaves: u64,
    pub(super) bytes_total: u64,
    present: u64,
    /// Leaves that were checked and are missing.
    wanted: Bits,
    /// None is wanted before this one.
    first_wanted: u64,
}

impl Plan {
    /// Reads the body, which has the certified hash, and checks it against this node's limits.
    pub(super) fn read(
        (body, path): (File, PathBuf),
        body_bytes: u64,
        limits: &Limits,
    ) -> Result<Self, InstallError> {
        let memory_max = limits
            .module
            .heap32_bytes
            .max(limits.module.heap64_bytes)
            .max(limits.module.stable_bytes);
        let reader = body.try_clone().map_err(InstallError::io("open", &path))?;
        let mut rows = Body::new(BufReader::new(reader), body_bytes);
        let (mut objects, mut leaves, mut bytes_total) = (Vec::new(), 0u64, 0u64);
        while let Some(object) = rows.object()? {
            let (what, limit, bytes) = match object.id {
                ObjectId::Records => ("records", i64::MAX as u64, object.length),
                ObjectId::Memory(_) => {
                    ("a memory", memory_max, u64::from(object.leaves) * LEAF_BYTES as u64)
                }
                ObjectId::Blob(_) => ("a blob", blob_bytes_max(limits), object.length),
                ObjectId::Payload(_) => {
                    ("a message", limits.subnet.message_payload_bytes, object.length)
                }
            };
            if object.length > limit {
                return Err(InstallError::Limit { what, bytes: object.length, limit });
            }
            objects.push(PlannedObject {
                id: object.id,
                length: object.length,
                leaves: object.leaves,
                rows_at: object.rows_at,
                first: leaves,
            });
            leaves += u64::from(object.leaves);
            bytes_total += bytes;
        }
        Ok(Self {
            body,
            path,
            objects,
            leaves,
            bytes_total,
            present: 0,
            wanted: Bits::new(leaves),
            first_wanted: 0,
        })
    }

    pub(super) fn object(&self, number: usize) -> Option<PlannedObject> {
        self.objects.get(number).copied()
    }

    pub(super) fn has(&self, id: ObjectId) -> bool {
        self.objects.binary_search_by_key(&id, |planned| planned.id).is_ok()
    }

    pub(super) fn missing(&self) -> u64 {
        debug_assert!(
            self.present <= self.leaves,
            "{} of {} leaves are there",
            self.present,
            self.leaves
        );
        self.leaves - self.present
    }

    /// A row of an object: index and hash of the leaf.
    pub(super) fn row(
        &self,
        planned: &PlannedObject,
        row: u32,
    ) -> Result<(u32, LeafHash), InstallError> {
        let mut bytes = [0; ROW_BYTES];
        let at = planned.rows_at + u64::from(row) * ROW_BYTES as u64;
        self.body.read_exact_at(&mut bytes, at).map_err(InstallError::io("read", &self.path))?;
        let (index, hash) = bytes.split_first_chunk::<4>().ok_or(ManifestError::CutOff)?;
        Ok((u32::from_be_bytes(*index), hash.try_into().map_err(|_| ManifestError::CutOff)?))
    }

    /// The object, the number among all leaves, and the hash of a leaf; `None` if it is not listed.
    pub(super) fn find(
        &self,
        id: ObjectId,
        index: u32,
    ) -> Result<Option<(PlannedObject, u64, LeafHash)>, InstallError> {
        let found = self.objects.binary_search_by_key(&id, |planned| planned.id);
        let Some(planned) = found.ok().and_then(|number| self.object(number)) else {
            return Ok(None);
        };
        // Rows rise, so row `n` is of leaf `n` or a later one.
        let (mut low, mut high) = (0, planned.leaves.min(index.saturating_add(1)));
        while low < high {
            let middle = low + (high - low) / 2;
            let (found, hash) = self.row(&planned, middle)?;
            match found.cmp(&index) {
                std::cmp::Ordering::Equal => {
                    return Ok(Some((planned, planned.first + u64::from(middle), hash)));
                }
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        Ok(None)
    }

    pub(super) fn mark_missing(&mut self, ordinal: u64) {
        self.wanted.set(ordinal, true);
        self.first_wanted = self.first_wanted.min(ordinal);
    }

    pub(super) fn is_wanted(&self, ordinal: u64) -> bool {
        self.wanted.get(ordinal)
    }

    pub(super) fn mark_present(&mut self, ordinal: u64) {
        self.wanted.set(ordinal, false);
        self.present += 1;
    }

    /// The first leaves that were checked and are missing.
    pub(super) fn missing_chunks(&mut self, max: usize) -> Result<Vec<ChunkId>, InstallError> {
        let mut chunks = Vec::new();
        let mut from = self.first_wanted;
        while chunks.len() < max
            && let Some(ordinal) = self.wanted.next(from)
        {
            if chunks.is_empty() {
                self.first_wanted = ordinal;
            }
            let number = self.objects.partition_point(|planned| planned.first <= ordinal);
            let planned = number.checked_sub(1).and_then(|number| self.object(number));
            let Some(planned) = planned else { break };
            let (index, _) = self.row(&planned, (ordinal - planned.first) as u32)?;
            chunks.push(ChunkId::Leaf(planned.id, index));
            from = ordinal + 1;
        }
        if chunks.is_empty() {
            self.first_wanted = self.leaves;
        }
        Ok(chunks)
    }
}
