//! Dependencies of the agreement on answers.

use std::sync::Arc;

use commonware_cryptography::ed25519::PublicKey;
use ic_principal::Principal;

use crate::{IngressPool, OutcallAnswers, certifier::CommitteeSchedule, subnet::peers::PeerScorer};

/// The id of a member among those of the epoch that runs.
pub(in crate::subnet) type NodeIds = Arc<dyn Fn(&PublicKey) -> Option<Principal> + Send + Sync>;

pub(in crate::subnet) struct Config<S> {
    pub(in crate::subnet) outcalls: Arc<OutcallAnswers>,
    /// Where answers wait that the subnet signed.
    pub(in crate::subnet) pool: Arc<IngressPool>,
    pub(in crate::subnet) schedule: CommitteeSchedule,
    pub(in crate::subnet) me: PublicKey,
    pub(in crate::subnet) node_ids: NodeIds,
    pub(in crate::subnet) sender: S,
    pub(in crate::subnet) scorer: PeerScorer,
}
