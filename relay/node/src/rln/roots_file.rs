//! The roots on disk, so that a relay that starts while no RPC server answers can check messages of
//! older members.
//!
//! One record in a record file ([`disk::records`], which has its version and checksums), integers
//! little-endian:
//!
//! ```text
//! chain id u64 · address of the contract [20] · root [32] ...   newest first, at most 50
//! ```
//!
//! A file of another contract, of another version, or one that is damaged is ignored and replaced.

use std::path::Path;

use disk::{
    SharedDisk,
    records::{Kind, RecordError, RecordSlot},
};

use super::contract::{Contract, ROOTS_MAX, Root};

const HEAD_BYTES: usize = 8 + 20;
const BYTES_MAX: u32 = (HEAD_BYTES + ROOTS_MAX * 32) as u32;
const KIND: Kind = Kind { name: *b"rlnroots", version: 1, bytes_max: BYTES_MAX };
const NAME: &str = "rln-roots";

/// The file of one contract's roots in a data folder.
#[derive(Debug)]
pub(super) struct RootsFile {
    slot: RecordSlot,
    contract: Contract,
}

impl RootsFile {
    pub(super) fn new(disk: SharedDisk, folder: &Path, contract: Contract) -> Self {
        Self { slot: RecordSlot { disk, path: folder.join(NAME), kind: KIND }, contract }
    }

    /// The roots of this contract, newest first; none if there is no readable file of it.
    pub(super) fn read(&self) -> Vec<Root> {
        match self.slot.read() {
            Ok(None) => Vec::new(),
            Ok(Some(record)) => decode(&record, self.contract).unwrap_or_else(|| {
                tracing::warn!(
                    path = %self.slot.path.display(),
                    "the roots on disk are not of this contract, and are not used"
                );
                Vec::new()
            }),
            Err(error) => {
                tracing::warn!(%error, "the roots on disk cannot be read, and are not used");
                Vec::new()
            }
        }
    }

    /// Durable on return.
    pub(super) fn write(&self, roots: &[Root]) -> Result<(), RecordError> {
        self.slot.write(&encode(self.contract, roots))
    }
}

fn encode(contract: Contract, roots: &[Root]) -> Vec<u8> {
    let mut record = Vec::with_capacity(HEAD_BYTES + roots.len() * 32);
    record.extend_from_slice(&contract.chain_id.to_le_bytes());
    record.extend_from_slice(&contract.address);
    record.extend_from_slice(roots.as_flattened());
    record
}

/// `None` for roots of another contract, and for bytes that [`encode`] does not write.
fn decode(record: &[u8], contract: Contract) -> Option<Vec<Root>> {
    let (head, roots) = record.split_at_checked(HEAD_BYTES)?;
    let (roots, rest) = roots.as_chunks::<32>();
    let is_whole = rest.is_empty() && roots.len() <= ROOTS_MAX;
    (is_whole && head == encode(contract, &[])).then(|| roots.to_vec())
}

#[cfg(test)]
mod tests {
    use disk::RealDisk;
    use proptest::prelude::*;

    use super::*;

    const CONTRACT: Contract = Contract { chain_id: 59_141, address: [7; 20] };

    #[test]
    fn roots_are_read_back_for_the_same_contract_only() {
        let folder = tempfile::tempdir().unwrap();
        let file = |contract| RootsFile::new(RealDisk::shared(), folder.path(), contract);
        assert_eq!(file(CONTRACT).read(), [[0; 32]; 0]);
        let roots: Vec<Root> = (0..ROOTS_MAX as u8).map(|one| [one; 32]).collect();
        file(CONTRACT).write(&roots).unwrap();
        assert_eq!(file(CONTRACT).read(), roots);
        for other in
            [Contract { chain_id: 1, ..CONTRACT }, Contract { address: [8; 20], ..CONTRACT }]
        {
            assert_eq!(file(other).read(), [[0; 32]; 0]);
        }
    }

    #[test]
    fn damaged_file_is_ignored_and_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let file = RootsFile::new(RealDisk::shared(), folder.path(), CONTRACT);
        file.write(&[[1; 32], [2; 32]]).unwrap();
        let whole = std::fs::read(folder.path().join(NAME)).unwrap();
        let mut changed = whole.clone();
        *changed.last_mut().unwrap() ^= 1;
        for bytes in [&[][..], &whole[..40], &whole[..whole.len() - 1], &changed, &[9; 5_000]] {
            std::fs::write(folder.path().join(NAME), bytes).unwrap();
            assert_eq!(file.read(), [[0; 32]; 0]);
            file.write(&[[3; 32]]).unwrap();
            assert_eq!(file.read(), [[3; 32]]);
        }
    }

    #[test]
    fn bytes_of_the_record_are_pinned() {
        let samples = [("roots", encode(CONTRACT, &[[1; 32], [2; 32]]))];
        testing::formats::check("the roots on disk", KIND.version.into(), &samples, PINNED);
    }

    const PINNED: testing::formats::Pin = (1, "6d1db22e01b361a4a5e613bb36958a3e");

    proptest! {
        #[test]
        fn any_record_is_read_or_refused(record in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Some(roots) = decode(&record, CONTRACT) {
                prop_assert_eq!(encode(CONTRACT, &roots), record);
            }
        }
    }
}
