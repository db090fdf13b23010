//! An instance as the gateway sees it, which serves the endpoints of the interface specification.

use std::sync::{
    Arc, PoisonError, RwLock,
    mpsc::{SyncSender, TrySendError},
};

use execution::Placement as _;
use gateway::{CertifiedView, Health, Node, Refusal, report::Report};
use state::{CanisterId, Height, Ingress, QueryRequest, Reject, SignedIngress, Time, Validity};

use crate::{
    instance::Command,
    replica::{InstanceContext, Views},
    server::Activity,
};

/// Seconds after which a client that was refused may ask again.
const RETRY_AFTER_SECONDS: u64 = 1;

pub(crate) struct InstanceNode {
    pub(crate) shared: InstanceContext,
    pub(crate) views: Views,
    /// Wakes the instance, which may be waiting for a call.
    pub(crate) commands: SyncSender<Command>,
    /// Why the instance ended.
    pub(crate) failure: Arc<RwLock<Option<String>>>,
    pub(crate) activity: Arc<Activity>,
}

impl InstanceNode {
    fn failure(&self) -> Option<String> {
        self.failure.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Node for InstanceNode {
    fn submit(&self, ingress: Ingress, _: SignedIngress, _: Validity) -> Result<(), Refusal> {
        if let Some(message) = self.failure() {
            return Err(Refusal::Unavailable { message });
        }
        if self
            .views
            .reader
            .latest()
            .is_some_and(|state| state.request(&ingress.request_id).is_some())
        {
            return Ok(());
        }
        match self.shared.waiting.add(ingress) {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(message) => {
                return Err(Refusal::Full { message, retry_after_seconds: RETRY_AFTER_SECONDS });
            }
        }
        match self.commands.try_send(Command::Wake) {
            // Where something waits already, the instance is awake.
            Ok(()) | Err(TrySendError::Full(_)) => Ok(()),
            Err(TrySendError::Disconnected(_)) => {
                Err(Refusal::Unavailable { message: "the instance was deleted".to_owned() })
            }
        }
    }

    fn inspect(&self, ingress: &Ingress) -> Result<(), Reject> {
        self.views.queries.inspect(ingress)
    }

    fn inspect_at_once(&self, ingress: &Ingress) -> Option<Result<(), Reject>> {
        self.views.queries.inspect_without_code(ingress)
    }

    fn query(&self, query: QueryRequest) -> Result<Vec<u8>, Reject> {
        self.activity.record_use();
        self.views.queries.query(query).map(|reply| reply.bytes)
    }

    fn latest(&self) -> Option<Arc<dyn CertifiedView>> {
        // Every request of the endpoints looks here first: one that came by an HTTP gateway keeps
        // the server alive as well.
        self.activity.record_use();
        self.views.reader.latest().map(|state| state as _)
    }

    fn now(&self) -> Time {
        self.shared.now()
    }

    fn health(&self) -> Health {
        let certified_height = self.views.reader.latest().map_or(Height(0), |state| state.height());
        Health::new(self.failure().map(|why| (why.clone(), why)), certified_height)
    }

    fn hosts(&self, canister_id: &CanisterId) -> bool {
        self.shared.subnets.subnet_of(canister_id).is_some()
    }

    fn report(&self) -> Report {
        // The routes of this server do not lead here.
        Report::default()
    }
}
