//! Errors that end the round loop.

use consensus::ConsensusError;
use execution::FatalError;
use statesync::InstallError;
use thiserror::Error;

/// The node cannot continue. The source holds the reason.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "the texts say it")]
pub enum RoundError {
    #[error("executing batch {height}")]
    Execute { height: u64, source: FatalError },
    #[error("showing the state of height {height}")]
    Certify { height: u64, source: FatalError },
    #[error("the checkpoint of height {height} cannot be made, and waiting would not mend it")]
    Checkpoint { height: u64, source: FatalError },
    #[error(transparent)]
    Consensus(#[from] ConsensusError),
    #[error("state sync")]
    LocalState(#[source] FatalError),
    #[error("state sync")]
    StateSync(#[source] InstallError),
}

impl RoundError {
    /// Whether the same step may succeed later in the same process.
    pub(crate) fn can_heal(&self) -> bool {
        match self {
            Self::Execute { .. } | Self::Certify { .. } => false,
            Self::Checkpoint { source, .. } => source.can_heal(),
            Self::Consensus(error) => error.can_heal(),
            Self::LocalState(error) => error.can_heal(),
            Self::StateSync(error) => error.can_heal(),
        }
    }

    /// The text of this error and of its sources.
    pub fn with_sources(&self) -> String {
        let mut text = self.to_string();
        let mut source = std::error::Error::source(self);
        while let Some(error) = source {
            // A transparent error shows its source's text as its own.
            let reason = error.to_string();
            if !text.ends_with(&reason) {
                text = format!("{text}: {reason}");
            }
            source = error.source();
        }
        text
    }
}
