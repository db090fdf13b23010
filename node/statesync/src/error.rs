//! Why a manifest is not computed.

use state::{BlobError, StoreError};
use thiserror::Error;

/// Why a manifest could not be computed, or its root cannot be had.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "the texts say it")]
pub enum ManifestError {
    #[error("canister memory: {0}")]
    Pages(#[from] pages::PagesError),
    #[error("metadata store: {0}")]
    Store(#[from] StoreError),
    #[error("module store: {0}")]
    Blobs(#[from] BlobError),
    #[error("the manifest of height {height} was to be computed and the store has height {found}")]
    OtherHeight { height: u64, found: u64 },
    #[error("the manifest thread: {0}")]
    Thread(String),
    /// The computation failed for good, or was never begun.
    #[error(
        "the manifest of height {height} cannot be computed ({reason}); it is computed anew after \
         a restart; if that does not help, see docs/operating.md, \"When the disk was damaged\""
    )]
    Failed { height: u64, reason: String },
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
