//! Which request is made when: those that are open and this node's to make, oldest first, as many as
//! there are places and memory for.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use budget::{Pool, Reservation};
use ic_management_canister_types::{HttpRequestResult, TransformArgs};
use ic_principal::Principal;
use limits::OutcallLimits;
use state::{
    CanisterId, Outcall, OutcallAnswer, OutcallId, OutcallTransform, Payload, Reject, RejectCode,
    Shared,
};
use tokio::{
    sync::{Notify, Semaphore},
    task::{JoinHandle, spawn_blocking},
    time::sleep,
};

use crate::{Client, Failure, client::Error};

/// Between two tries of what this machine lacked.
const AGAIN: Duration = Duration::from_millis(500);
/// Between two looks for room, while requests wait for some.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Transforms that run or wait for a query worker: each holds a thread.
const TRANSFORMS_MAX: usize = 2;

/// Why a response was not transformed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotTransformed {
    /// The canister's, which is an answer.
    Reject(Reject),
    /// This machine's, which is none.
    Trouble(String),
}

/// Runs query methods of canisters.
pub trait Transform: Send + Sync {
    /// What the method of this canister makes of `arg`, asked by the management canister. Blocks.
    ///
    /// # Errors
    /// See [`NotTransformed`].
    fn transform(
        &self,
        canister_id: CanisterId,
        method_name: &str,
        arg: &[u8],
    ) -> Result<Vec<u8>, NotTransformed>;
}

/// Takes what this node found out, with the memory that it holds.
pub trait Answers: Send + Sync {
    /// See the trait.
    fn answer(&self, answer: OutcallAnswer, held: Reservation);
}

type Open = BTreeMap<OutcallId, Shared<Outcall>>;

/// See the module. Copies share everything.
#[derive(Clone)]
pub struct Service(Arc<Inner>);

struct Inner {
    // Interfaces.
    client: Client,
    transform: Arc<dyn Transform>,
    answers: Arc<dyn Answers>,
    room: Pool,
    // Configuration.
    limits: OutcallLimits,
    me: Principal,
    // State.
    open: Mutex<Arc<Open>>,
    running: AtomicU64,
    transforms: Semaphore,
    news: Notify,
}

impl Service {
    /// A service of the node `me`, whose requests hold memory of `room`.
    pub fn new(
        client: Client,
        (transform, answers): (Arc<dyn Transform>, Arc<dyn Answers>),
        (limits, room): (OutcallLimits, Pool),
        me: Principal,
    ) -> Self {
        Self(Arc::new(Inner {
            client,
            transform,
            answers,
            room,
            limits,
            me,
            open: Mutex::default(),
            running: AtomicU64::new(0),
            transforms: Semaphore::new(TRANSFORMS_MAX),
            news: Notify::new(),
        }))
    }

    /// These requests are open now: others are given up.
    pub fn set_open(&self, open: &Open) {
        let mut known = self.0.open.lock().unwrap_or_else(PoisonError::into_inner);
        if known.keys().eq(open.keys()) {
            return;
        }
        *known = Arc::new(open.clone());
        drop(known);
        self.0.news.notify_one();
    }

    /// Requests that are being made.
    pub fn running(&self) -> u64 {
        self.0.running.load(Relaxed)
    }

    /// Makes requests, until the task is aborted.
    pub async fn run(self) {
        let mut begun: BTreeMap<OutcallId, JoinHandle<()>> = BTreeMap::new();
        loop {
            let open = self.0.open.lock().unwrap_or_else(PoisonError::into_inner).clone();
            begun.retain(|id, task| {
                let stays = open.contains_key(id);
                if !stays {
                    task.abort();
                }
                stays
            });
            if self.begin(&open, &mut begun) {
                self.0.news.notified().await;
            } else {
                tokio::select! {
                    () = self.0.news.notified() => {},
                    () = sleep(LOOK_AGAIN) => {},
                }
            }
        }
    }

    /// Begins what there is room for. Whether nothing waits.
    fn begin(&self, open: &Open, begun: &mut BTreeMap<OutcallId, JoinHandle<()>>) -> bool {
        for (id, outcall) in open {
            let is_mine = outcall.node.is_none_or(|node| node == self.0.me);
            if begun.contains_key(id) || !is_mine {
                continue;
            }
            if self.0.running.load(Relaxed) >= self.0.limits.in_flight {
                return false;
            }
            let bytes = bytes_held(outcall).min(self.0.room.cap_bytes());
            // Those behind it wait too, or a large one would never find room.
            let Ok(held) = self.0.room.try_reserve(bytes) else { return false };
            let place = Place::take(self.0.clone());
            let (id, outcall) = (*id, outcall.clone());
            begun.insert(id, tokio::spawn(async move { place.make(id, &outcall, held).await }));
        }
        true
    }
}

/// What a request may hold until it is answered.
fn bytes_held(outcall: &Outcall) -> u64 {
    let context = outcall.transform.as_ref().map(|transform| transform.context.len() as u64);
    OutcallLimits::request_bytes(outcall.body.len() as u64, outcall.response_bytes_max, context)
}

/// One of the requests that are made at once.
struct Place(Arc<Inner>);

impl Place {
    fn take(inner: Arc<Inner>) -> Self {
        inner.running.fetch_add(1, Relaxed);
        Self(inner)
    }

    async fn make(&self, id: OutcallId, outcall: &Shared<Outcall>, mut held: Reservation) {
        let time = Duration::from_millis(self.0.limits.request_millis);
        let response = loop {
            match self.0.client.ask(outcall, time).await {
                Ok(response) => break Ok(response),
                Err(Error::Failed(failure)) => break Err(failure),
                Err(Error::Trouble(error)) => {
                    tracing::warn!(request = id.0, %error, "an outcall is made again: this machine lacks something");
                    sleep(AGAIN).await;
                }
            }
        };
        let payload = match response {
            Ok(response) => match self.finish(id, outcall, response, &mut held).await {
                Ok(bytes) => Payload::Reply(bytes),
                Err(reject) => Payload::Reject(reject),
            },
            Err(failure) => {
                tracing::info!(request = id.0, canister = %outcall.caller(), %failure, "an outcall failed");
                Payload::Reject(failure.reject())
            }
        };
        let bytes = payload.len().min(held.bytes());
        held.shrink(held.bytes() - bytes);
        self.0.answers.answer(OutcallAnswer { id, until: outcall.until, payload }, held);
    }

    /// What the canister gets of a response.
    async fn finish(
        &self,
        id: OutcallId,
        outcall: &Outcall,
        response: HttpRequestResult,
        held: &mut Reservation,
    ) -> Result<Vec<u8>, Reject> {
        let Some(transform) = &outcall.transform else {
            return encode(&response);
        };
        let context = transform.context.clone();
        let arg = encode(&TransformArgs { response, context })?;
        let reply = self.transform(id, outcall.caller(), transform, arg.into(), held).await?;
        if reply.len() as u64 > outcall.response_bytes_max {
            return Err(Failure::Transformed(outcall.response_bytes_max).reject());
        }
        Ok(reply)
    }

    /// What the canister's own method makes of it.
    async fn transform(
        &self,
        id: OutcallId,
        canister_id: CanisterId,
        transform: &OutcallTransform,
        arg: Arc<[u8]>,
        held: &mut Reservation,
    ) -> Result<Vec<u8>, Reject> {
        loop {
            // It is never closed.
            let Ok(_turn) = self.0.transforms.acquire().await else { std::future::pending().await };
            let (runs, name, arg) =
                (self.0.transform.clone(), transform.method_name.clone(), arg.clone());
            // A request that is given up meanwhile has its memory until the thread is back.
            let kept = held.split(held.bytes());
            let ran =
                spawn_blocking(move || (runs.transform(canister_id, &name, &arg), kept)).await;
            let what = match ran {
                Ok((result, kept)) => {
                    if let Some(kept) = kept {
                        let _ = held.merge(kept);
                    }
                    match result {
                        Ok(reply) => return Ok(reply),
                        Err(NotTransformed::Reject(reject)) => return Err(reject),
                        Err(NotTransformed::Trouble(what)) => what,
                    }
                }
                Err(error) => error.to_string(),
            };
            tracing::warn!(
                request = id.0,
                what,
                "the transform of an outcall runs again: this machine lacks something"
            );
            sleep(AGAIN).await;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Relaxed);
        self.0.news.notify_one();
    }
}

fn encode<T: candid::CandidType>(value: &T) -> Result<Vec<u8>, Reject> {
    candid::encode_one(value).map_err(|error| {
        OutcallAnswer::reject(
            RejectCode::SysFatal,
            format!("The response has no encoding: {error}"),
        )
    })
}
