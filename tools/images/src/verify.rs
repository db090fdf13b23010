//! Looking whether bases are what they were, and whether overlays find them.

use std::path::PathBuf;

use serde::Serialize;

use crate::{
    Base, Cache, Result, State,
    cache::{Backing, backing},
    id::BaseId,
    lock::Mode,
    overlay::moved,
};

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The overlay, or nothing when it is the base itself.
    pub overlay: Option<PathBuf>,
    /// The reason, and how to repair it.
    pub why: String,
}

/// Result of the verification of one base.
#[derive(Clone, Debug, Serialize)]
pub struct VerifyResult {
    /// The base that was read.
    pub id: BaseId,
    /// How it is; its content was read.
    pub state: State,
    /// Paths of its overlays.
    pub overlays: Vec<PathBuf>,
    /// Empty when all is well.
    pub findings: Vec<Finding>,
}

impl Cache {
    /// Reads all of a base and the headers of its overlays.
    ///
    /// # Errors
    ///
    /// When something cannot be read; what is wrong with the base or its overlays is in the answer.
    pub fn verify(&self, id: &BaseId) -> Result<VerifyResult> {
        let _lock = self.lock(id, Mode::Shared, "verifying")?;
        let overlays = self.overlays(id)?;
        let (record, state) = self.inspect(id)?;
        let (state, base) = match record {
            Some(record) if state != State::Missing => {
                (self.read_through(id, &record)?, Some(Base::new(record, self.disk_path(id))))
            }
            Some(record) => (state, Some(Base::new(record, self.disk_path(id)))),
            None => (State::Missing, None),
        };
        let mut findings = Vec::new();
        if state != State::Whole {
            let from = base.as_ref().map_or_else(
                || "the file with this SHA-256".to_owned(),
                |base| base.source.display().to_string(),
            );
            let why =
                format!("{}; `image add` of {from} brings it back", self.describe_fault(id, state));
            findings.push(Finding { overlay: None, why });
        }
        for overlay in &overlays {
            let why = match (backing(overlay), &base) {
                _ if state == State::Missing => "its base is missing".to_owned(),
                _ if state == State::Changed => {
                    "its base has other content now than when it was made".to_owned()
                }
                (Backing::Is(backing), Some(base)) if backing != base.path => {
                    moved(overlay, &backing, base)
                }
                (Backing::Unreadable, _) => "it cannot be read".to_owned(),
                _ => continue,
            };
            findings.push(Finding { overlay: Some(overlay.clone()), why });
        }
        Ok(VerifyResult { id: *id, state, overlays, findings })
    }

    /// [`Cache::verify`] of every base that is there or needed.
    pub fn verify_all(&self) -> Result<Vec<VerifyResult>> {
        self.ids()?.iter().map(|id| self.verify(id)).collect()
    }
}
