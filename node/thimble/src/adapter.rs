//! The node as the gateway sees it: the ingress pool for calls, the query service for queries, the newest certified state for everything that is read.

use std::sync::Arc;

use consensus::{IngressPool, PoolRefusal, SystemClock, WallClock};
use execution::QueryService;
use gateway::{CertifiedView, Health, Node, QueryRequest, Refusal, Submitted};
use ic_principal::Principal;
use state::{CanisterId, CertifiedReader, Height, Ingress, Reject, Time};

/// Seconds a client is asked to wait when the ingress pool is full: a few rounds empty it.
const RETRY_AFTER_SECONDS: u64 = 1;

/// See the module.
pub(crate) struct Adapter {
    pub(crate) pool: Arc<IngressPool>,
    pub(crate) queries: QueryService,
    pub(crate) reader: CertifiedReader,
    /// Canister ids of this subnet, first and last of each range.
    pub(crate) ranges: Vec<(Principal, Principal)>,
    /// Below this height the node is still executing again what it had certified before.
    pub(crate) recovered_at: Height,
}

impl Node for Adapter {
    fn submit(&self, ingress: Ingress) -> Result<Submitted, Refusal> {
        // A call the state knows already is not ordered a second time; its certificate can be had at once.
        if self.reader.latest().is_some_and(|state| state.request(&ingress.request_id).is_some()) {
            return Ok(Submitted::Duplicate);
        }
        match self.pool.submit(ingress) {
            Ok(consensus::Submitted::New) => Ok(Submitted::Accepted),
            Ok(consensus::Submitted::Already) => Ok(Submitted::Duplicate),
            Err(refusal @ PoolRefusal::Closed(_)) => {
                Err(Refusal::Unavailable { message: refusal.to_string() })
            }
            Err(refusal) => {
                Err(Refusal::Full { message: refusal.to_string(), retry_after_seconds: RETRY_AFTER_SECONDS })
            }
        }
    }

    fn inspect(&self, ingress: &Ingress) -> Result<(), Reject> {
        self.queries.inspect(ingress)
    }

    fn query(&self, query: &QueryRequest) -> Result<Vec<u8>, Reject> {
        self.queries
            .query(&execution::QueryRequest {
                sender: query.sender,
                canister_id: query.canister_id,
                method_name: query.method_name.clone(),
                arg: query.arg.clone(),
                sender_info: query.sender_info.clone(),
            })
            .map(|reply| reply.bytes)
    }

    fn latest(&self) -> Option<Arc<dyn CertifiedView>> {
        self.reader.latest().map(|state| state as _)
    }

    fn now(&self) -> Time {
        SystemClock.now()
    }

    fn health(&self) -> Health {
        let certified_height = self.reader.latest().map_or(Height(0), |state| state.height());
        let refusing = self.pool.refusing();
        let (healthy, status) = match refusing {
            Some(reason) => (false, reason),
            None if certified_height == Height(0) => (false, "starting".to_owned()),
            None if certified_height < self.recovered_at => (false, "recovering".to_owned()),
            None => (true, "healthy".to_owned()),
        };
        Health { healthy, status, certified_height }
    }

    fn hosts(&self, canister_id: &CanisterId) -> bool {
        self.ranges.iter().any(|(first, last)| first <= canister_id && canister_id <= last)
    }

    fn report(&self) -> gateway::report::Report {
        gateway::report::Report {
            version: env!("CARGO_PKG_VERSION").into(),
            healthy: self.health().healthy,
            status: self.health().status,
            ..Default::default()
        }
    }
}
