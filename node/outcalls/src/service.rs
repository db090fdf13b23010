//! Which request is made when: those that are open and this node's to make, as many as there are places
//! and memory for, of each canister in turn its oldest.
//!
//! No canister has more than a quarter of the places, nor of the memory while others wait, but one
//! request in any case.

use std::{
    collections::{BTreeMap, VecDeque},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use budget::{Pool, Reservation};
use ic_management_canister_types::HttpRequestResult;
use ic_principal::Principal;
use limits::OutcallLimits;
use state::{
    CanisterId, Height, Outcall, OutcallAnswer, OutcallId, OutcallTransform, Reject, Shared,
};
use tokio::{
    sync::Notify,
    task::{JoinHandle, spawn_blocking},
    time::sleep,
};

use crate::{
    Client,
    client::Error,
    reply::{self, Handed},
    turns::Turns,
};

/// Pause between the first two attempts after a shortage of this machine; doubled after each
/// further one.
const AGAIN: Duration = Duration::from_millis(500);
/// And no longer.
const AGAIN_MOST: Duration = Duration::from_secs(8);
/// Tries of a transform in which workers ended. Then this node has no answer.
const DEATHS_MAX: u32 = 2;
/// A canister may take one `PARTS`th of the places, and of the memory.
const PARTS: u64 = 4;
/// Between two looks for room, while requests wait for some.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Transforms that run or wait for a query worker: each holds a thread.
const TRANSFORMS_MAX: usize = 2;

/// Why a response was not transformed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotTransformed {
    /// The canister's reject, which is an answer.
    Reject(Reject),
    /// This machine's failure, which is not an answer.
    Trouble(String),
    /// The same, and query workers ended with it.
    Died(String),
}

/// Runs query methods of canisters.
pub trait Transform: Send + Sync {
    /// Calls this method of the canister with `arg`, on behalf of the management canister, in a
    /// state of this height or later. Blocks.
    ///
    /// # Errors
    /// See [`NotTransformed`].
    fn transform(
        &self,
        asked: (CanisterId, Height),
        method_name: &str,
        arg: &[u8],
    ) -> Result<Vec<u8>, NotTransformed>;
}

/// Takes this node's answer, with the memory that it holds.
pub trait Answers: Send + Sync {
    /// See the trait.
    fn answer(&self, answer: OutcallAnswer, held: Reservation);

    /// A request needs `bytes` bytes of memory that are not free: releases memory that can be
    /// released.
    fn make_room(&self, bytes: u64);
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
    transforms: Turns,
    news: Notify,
}

/// A started request, until it is no longer open.
struct Begun {
    caller: CanisterId,
    task: JoinHandle<()>,
    /// Memory that it holds; its answer takes it over at the end.
    bytes: Arc<AtomicU64>,
}

impl Drop for Begun {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Started requests, and the canister of the last one.
#[derive(Default)]
struct Begins {
    begun: BTreeMap<OutcallId, Begun>,
    last: Option<CanisterId>,
}

/// A canister's use of places and memory.
#[derive(Clone, Copy, Default)]
struct Part {
    places: u64,
    bytes: u64,
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
            transforms: Turns::new(TRANSFORMS_MAX),
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

    /// Makes requests, until the task is aborted; then those under way are given up.
    pub async fn run(self) {
        let mut begins = Begins::default();
        loop {
            let open = self.0.open.lock().unwrap_or_else(PoisonError::into_inner).clone();
            begins.begun.retain(|id, _| open.contains_key(id));
            if self.begin(&open, &mut begins) {
                self.0.news.notified().await;
            } else {
                tokio::select! {
                    () = self.0.news.notified() => {},
                    () = sleep(LOOK_AGAIN) => {},
                }
            }
        }
    }

    /// Starts requests that have room. Returns whether none waits.
    fn begin(&self, open: &Open, begins: &mut Begins) -> bool {
        let mut waiting: BTreeMap<CanisterId, VecDeque<OutcallId>> = BTreeMap::new();
        for (id, outcall) in open {
            let is_mine = outcall.node.is_none_or(|node| node == self.0.me);
            if is_mine && !begins.begun.contains_key(id) {
                waiting.entry(outcall.caller()).or_default().push_back(*id);
            }
        }
        let mut parts = begins.parts();
        while let Some(caller) = self.next_caller(&waiting, &parts, begins.last) {
            if self.0.running.load(Relaxed) >= self.0.limits.in_flight {
                return false;
            }
            let Some(ids) = waiting.get_mut(&caller) else { break };
            let Some((id, outcall)) = ids.front().and_then(|id| open.get_key_value(id)) else {
                break;
            };
            let part = parts.entry(caller).or_default();
            let bytes = bytes_held(outcall).min(self.0.room.cap_bytes());
            // Those behind it wait too, or a large one would never find room.
            let Some(held) = self.room(bytes) else { return false };
            (part.places, part.bytes) = (part.places + 1, part.bytes + bytes);
            let holds = Arc::new(AtomicU64::new(bytes));
            let place = Place::take(self.0.clone(), holds.clone());
            let (id, outcall) = (*id, outcall.clone());
            let task = tokio::spawn(async move { place.make(id, &outcall, held).await });
            begins.begun.insert(id, Begun { caller, task, bytes: holds });
            begins.last = Some(caller);
            ids.pop_front();
            if ids.is_empty() {
                waiting.remove(&caller);
            }
        }
        waiting.is_empty()
    }

    fn room(&self, bytes: u64) -> Option<Reservation> {
        if self.0.room.free_bytes() < bytes {
            self.0.answers.make_room(bytes);
        }
        self.0.room.try_reserve(bytes).ok()
    }

    /// The next canister: the one after the last, of those that wait and are below their share.
    fn next_caller(
        &self,
        waiting: &BTreeMap<CanisterId, VecDeque<OutcallId>>,
        parts: &BTreeMap<CanisterId, Part>,
        last: Option<CanisterId>,
    ) -> Option<CanisterId> {
        let (places_max, bytes_max) =
            ((self.0.limits.in_flight / PARTS).max(1), self.0.room.cap_bytes() / PARTS);
        let others_wait = waiting.len() > 1;
        let may_begin = |caller: &&CanisterId| {
            let part = parts.get(*caller).copied().unwrap_or_default();
            let has_room = !others_wait || part.bytes < bytes_max;
            part.places < places_max && has_room
        };
        let is_behind = |caller: &&CanisterId| last.is_none_or(|last| **caller > last);
        let behind = waiting.keys().filter(is_behind).find(may_begin);
        behind.or_else(|| waiting.keys().find(may_begin)).copied()
    }
}

impl Begins {
    fn parts(&self) -> BTreeMap<CanisterId, Part> {
        let mut parts: BTreeMap<_, Part> = BTreeMap::new();
        for Begun { caller, task, bytes } in self.begun.values() {
            let part = parts.entry(*caller).or_default();
            part.places += u64::from(!task.is_finished());
            part.bytes += bytes.load(Relaxed);
        }
        parts
    }
}

/// The most memory that a request holds until it is answered.
fn bytes_held(outcall: &Outcall) -> u64 {
    let context = outcall.transform.as_ref().map(|transform| transform.context.len() as u64);
    OutcallLimits::request_bytes(outcall.body.len() as u64, outcall.response_bytes_max(), context)
}

/// One of the requests that are made at once.
struct Place {
    inner: Arc<Inner>,
    bytes: Arc<AtomicU64>,
}

/// Waits longer each time.
struct Backoff(Duration);

impl Backoff {
    async fn wait(&mut self) {
        sleep(self.0).await;
        self.0 = (2 * self.0).min(AGAIN_MOST);
    }
}

impl Place {
    fn take(inner: Arc<Inner>, bytes: Arc<AtomicU64>) -> Self {
        inner.running.fetch_add(1, Relaxed);
        Self { inner, bytes }
    }

    async fn make(&self, id: OutcallId, outcall: &Shared<Outcall>, mut held: Reservation) {
        let time = Duration::from_millis(self.inner.limits.request_millis);
        let mut backoff = Backoff(AGAIN);
        let response = loop {
            match self.inner.client.ask(outcall, time).await {
                Ok(response) => break Ok(response),
                Err(Error::Failed(failure)) => break Err(failure),
                Err(Error::Trouble(error)) => {
                    tracing::warn!(request = id.0, %error, "an outcall is made again: this machine lacks something");
                    backoff.wait().await;
                }
            }
        };
        let payload = match response {
            Ok(response) => match self.finish(id, outcall, response, &mut held).await {
                Some(result) => reply::payload(result),
                None => {
                    self.bytes.store(0, Relaxed);
                    return;
                }
            },
            Err(failure) => {
                tracing::info!(request = id.0, canister = %outcall.caller(), %failure, "an outcall failed");
                reply::payload(Err(failure.reject()))
            }
        };
        let bytes = payload.len().min(held.bytes());
        held.shrink(held.bytes() - bytes);
        self.bytes.store(bytes, Relaxed);
        self.inner.answers.answer(OutcallAnswer { id, until: outcall.until, payload }, held);
    }

    /// The canister's answer for a response. `None`: this machine cannot determine it.
    async fn finish(
        &self,
        id: OutcallId,
        outcall: &Outcall,
        response: HttpRequestResult,
        held: &mut Reservation,
    ) -> Option<Result<Vec<u8>, Reject>> {
        let (transform, arg) = match reply::handed(outcall, response) {
            Ok(Handed::Reply(bytes)) => return Some(Ok(bytes)),
            Ok(Handed::Transform(transform, arg)) => (transform, arg),
            Err(reject) => return Some(Err(reject)),
        };
        let reply = self.transform(id, outcall, transform, arg.into(), held).await?;
        Some(reply.and_then(|reply| reply::transformed(outcall, reply)))
    }

    /// Applies the canister's own method.
    async fn transform(
        &self,
        id: OutcallId,
        outcall: &Outcall,
        transform: &OutcallTransform,
        arg: Arc<[u8]>,
        held: &mut Reservation,
    ) -> Option<Result<Vec<u8>, Reject>> {
        let (mut backoff, mut deaths) = (Backoff(AGAIN), 0);
        let (canister_id, since) = (outcall.caller(), outcall.height);
        loop {
            let turn = self.inner.transforms.take(canister_id).await;
            let (runs, name, arg) =
                (self.inner.transform.clone(), transform.method_name.clone(), arg.clone());
            // A request that is given up meanwhile has its memory and its turn until the thread is back.
            let kept = held.split(held.bytes());
            let ran = spawn_blocking(move || {
                let run = || runs.transform((canister_id, since), &name, &arg);
                let result = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| {
                    Err(NotTransformed::Died("a defect of the node; see its log".into()))
                });
                drop(turn);
                (result, kept)
            });
            let what = match ran.await {
                Ok((result, kept)) => {
                    if let Some(kept) = kept {
                        let _ = held.merge(kept);
                    }
                    match result {
                        Ok(reply) => return Some(Ok(reply)),
                        Err(NotTransformed::Reject(reject)) => return Some(Err(reject)),
                        Err(NotTransformed::Trouble(what)) => what,
                        Err(NotTransformed::Died(what)) => {
                            deaths += 1;
                            what
                        }
                    }
                }
                Err(error) => error.to_string(),
            };
            if deaths >= DEATHS_MAX {
                tracing::warn!(request = id.0, %canister_id, what, "this node has no answer to an outcall");
                return None;
            }
            tracing::warn!(
                request = id.0,
                what,
                "the transform of an outcall runs again: this machine lacks something"
            );
            backoff.wait().await;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.inner.running.fetch_sub(1, Relaxed);
        self.inner.news.notify_one();
    }
}

#[cfg(test)]
#[path = "service_tests.rs"]
mod tests;
