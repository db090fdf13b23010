//! HTTPS outcalls of an instance that goes by the machine's clock: real requests to servers.
//!
//! ```text
//! after a round: open requests -> the node's service (`outcalls`) -> answer -> the next round
//! ```
//!
//! The service is the one of a node, with its slots and turns, and reaches public addresses and
//! the networks that the user allows (`access`), by plain HTTP too. A request that a test answers
//! meanwhile has the first answer that comes.

use std::{
    collections::BTreeMap,
    sync::{Arc, mpsc::SyncSender},
};

use accounting::{Pool, Reservation};
use anyhow::Result;
use limits::OutcallLimits;
use outcalls::{AccessPolicy, Client, Service, Transform};
use state::{CanisterId, Height, Outcall, OutcallAnswer, OutcallId, StateArc};
use tokio::{runtime::Handle, task::JoinHandle};

use crate::{bounds::Bounds, instance::Command, outcalls::Answers, replica::Replica};

/// Makes requests for all instances of a server. Copies share what they have.
#[derive(Clone)]
pub(crate) struct OutcallClient {
    client: Client,
    limits: OutcallLimits,
    room: Pool,
}

impl OutcallClient {
    /// To the addresses that are allowed.
    pub(crate) fn new(bounds: &Bounds, allowed: AccessPolicy) -> Result<Self> {
        let client = Client::new(allowed).map_err(anyhow::Error::msg)?;
        Ok(Self { client, limits: bounds.limits.outcalls.clone(), room: bounds.outcalls.clone() })
    }

    /// Makes those of one instance, which `wake` wakes, from here on.
    pub(crate) fn begin(
        &self,
        runtime: &Handle,
        replica: &Replica,
        wake: SyncSender<Command>,
    ) -> LiveOutcalls {
        let answers = InstanceAnswerSink { answers: replica.shared.answers.clone(), wake };
        let queries = replica.views().queries;
        let transform = move |target: (CanisterId, Height), method: &str, arg: Vec<u8>| {
            queries.transform(target, method, arg)
        };
        let parts: (Arc<dyn Transform>, Arc<dyn outcalls::AnswerSink>) =
            (Arc::new(transform), Arc::new(answers));
        let bounds = (self.limits.clone(), self.room.clone());
        let service = Service::new(self.client.clone(), parts, bounds, replica.node_id());
        LiveOutcalls { task: runtime.spawn(service.clone().run()), service }
    }
}

/// Requests of one instance are made as long as it is there.
pub(crate) struct LiveOutcalls {
    service: Service,
    task: JoinHandle<()>,
}

impl LiveOutcalls {
    pub(crate) fn set_open(&self, open: &BTreeMap<OutcallId, StateArc<Outcall>>) {
        self.service.set_open(open);
    }
}

impl Drop for LiveOutcalls {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct InstanceAnswerSink {
    answers: Arc<Answers>,
    wake: SyncSender<Command>,
}

impl outcalls::AnswerSink for InstanceAnswerSink {
    fn answer(&self, answer: OutcallAnswer, held: Reservation) {
        self.answers.add(answer, held);
        // Where something waits already, the instance is awake.
        let _ = self.wake.try_send(Command::Wake);
    }

    fn make_room(&self, _: u64) {
        // Answers that wait here are to requests of this node: all of them are needed.
    }
}
