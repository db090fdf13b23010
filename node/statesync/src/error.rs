//! Why a manifest is not computed.

use state::{BlobError, StoreError};
use thiserror::Error;

/// Why a manifest could not be computed, or its root cannot be had.
#[derive(Debug, Error)]
pub enum ManifestError {
    /// Canister memory on disk cannot be read.
    #[error("canister memory: {0}")]
    Pages(#[from] pages::PagesError),
    /// The metadata store failed.
    #[error("metadata store: {0}")]
    Store(#[from] StoreError),
    /// A module or a chunk cannot be read.
    #[error("module store: {0}")]
    Blobs(#[from] BlobError),
    /// The store holds another height than the one to be hashed.
    #[error("the manifest of height {height} was to be computed and the store has height {found}")]
    OtherHeight {
        /// Height of the state to be hashed.
        height: u64,
        /// Height of the newest checkpoint; 0 without one.
        found: u64,
    },
    /// The thread that computes manifests could not be started or is gone.
    #[error("the manifest thread: {0}")]
    Thread(String),
    /// The computation failed for good, or was never begun.
    #[error(
        "the manifest of height {height} cannot be computed ({reason}); it is computed anew after \
         a restart; if that does not help, see docs/operating.md, \"When the disk was damaged\""
    )]
    Failed {
        /// Height of the state that the manifest is of.
        height: u64,
        /// Text of the error that ended the computation.
        reason: String,
    },
}

impl ManifestError {
    /// Whether this process is short of descriptors: they become available when others are closed.
    pub(crate) fn wants_descriptors(&self) -> bool {
        matches!(self, Self::Pages(pages::PagesError::TooManyOpenFiles { .. }))
    }

    /// Whether the same call may succeed later in the same process.
    pub fn can_heal(&self) -> bool {
        match self {
            Self::Pages(error) => error.can_heal(),
            Self::Store(error) => error.can_heal(),
            Self::Blobs(error) => error.can_heal(),
            Self::OtherHeight { .. } | Self::Thread(_) | Self::Failed { .. } => false,
        }
    }
}
