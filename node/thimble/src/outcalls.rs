//! Requests of canisters to servers outside: the parts that make them and agree on them, put
//! together.

use std::sync::Arc;

use accounting::{Pool, Reservation};
use anyhow::{Context as _, Result, bail};
use consensus::{OpenOutcall, OutcallAnswers};
use execution::Executor;
use ic_principal::Principal;
use outcalls::{AnswerSink, Client, Service, Transform};
use state::{Askers, CanisterId, Height, OutcallAnswer, Outcalls};

use crate::config::Config;

/// Copies share everything.
#[derive(Clone)]
pub(crate) struct NodeOutcalls {
    pub(crate) service: Service,
    /// Brings the members to one answer.
    pub(crate) agreed: Arc<OutcallAnswers>,
}

/// Refuses outcalls in a budget without memory for them.
pub(crate) fn check_memory(config: &Config) -> Result<()> {
    if config.features.outcalls && !config.limits.outcalls.is_possible() {
        bail!(
            "features.outcalls is on, and there is no memory for outcalls in a budget of {} \
             (outcalls.bytes = 0): it needs 512 MiB, or limits of its own under [limits.outcalls]",
            config.memory
        );
    }
    Ok(())
}

/// None where the subnet makes no requests.
pub(crate) fn open(
    config: &Config,
    executor: &Executor,
    room: Pool,
    me: Principal,
) -> Result<Option<NodeOutcalls>> {
    if !config.features.outcalls {
        return Ok(None);
    }
    check_memory(config)?;
    let limits = &config.limits.outcalls;
    let client = Client::new(config.outcalls.allowed()?).map_err(anyhow::Error::msg);
    let client = client.context("the certificates of outcalls.extra_roots")?;
    let agreed = Arc::new(OutcallAnswers::new(room.clone()));
    let queries = executor.queries();
    let transform = move |target: (CanisterId, Height), method: &str, arg: Vec<u8>| {
        queries.transform(target, method, arg)
    };
    let parts: (Arc<dyn Transform>, Arc<dyn AnswerSink>) =
        (Arc::new(transform), Arc::new(ToAgreement(agreed.clone())));
    let service = Service::new(client, parts, (limits.clone(), room), me);
    Ok(Some(NodeOutcalls { service, agreed }))
}

/// Makes requests from here on, where the subnet makes any.
pub(crate) fn start(runtime: &tokio::runtime::Runtime, outcalls: Option<&NodeOutcalls>) {
    if let Some(outcalls) = outcalls {
        runtime.spawn(outcalls.service.clone().run());
    }
}

impl NodeOutcalls {
    pub(crate) fn set_open(&self, outcalls: &Outcalls) {
        let open = outcalls.open();
        let of_one = |outcall: &state::Outcall| OpenOutcall {
            until: outcall.until,
            node: match outcall.askers {
                Askers::One(node) => Some(node),
                Askers::All | Askers::Unassigned => None,
            },
            reply_bytes_max: outcall.reply_bytes_max(),
        };
        let all = open.iter().map(|(id, outcall)| (*id, of_one(outcall)));
        self.agreed.set_open(outcalls.next(), all.collect());
        self.service.set_open(open);
    }
}

struct ToAgreement(Arc<OutcallAnswers>);

impl AnswerSink for ToAgreement {
    fn answer(&self, answer: OutcallAnswer, held: Reservation) {
        self.0.answer(answer, held);
    }

    fn make_room(&self, bytes: u64) {
        self.0.make_room(bytes);
    }
}
