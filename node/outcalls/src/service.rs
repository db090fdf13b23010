//! Schedules this node's open requests: canisters in turn, the oldest request of each first, as
//! many as there are slots and memory for.
//!
//! No canister has more than a quarter of the slots, nor of the memory while others wait, but one
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

use accounting::{Pool, Reservation};
use ic_management_canister_types::HttpRequestResult;
use ic_principal::Principal;
use limits::OutcallLimits;
use state::{
    CanisterId, Height, NotTransformed, Outcall, OutcallAnswer, OutcallId, OutcallTransform,
    Reject, StateArc,
};
use tokio::{
    sync::Notify,
    task::{JoinHandle, spawn_blocking},
    time::sleep,
};

use crate::{
    Client,
    client::Error,
    reply::{self, ResponseStep},
    semaphore::CanisterSemaphore,
};

/// Pause between the first two attempts after a shortage of this machine; doubled after each
/// further one.
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// And no longer.
const RETRY_DELAY_MAX: Duration = Duration::from_secs(8);
/// Tries of a transform in which workers ended. Then this node has no answer.
const DEATHS_MAX: u32 = 2;
/// A canister may take one `SHARE_DENOMINATOR`th of the slots, and of the memory.
const SHARE_DENOMINATOR: u64 = 4;
/// Between two attempts to reserve memory, while requests wait for it.
const ROOM_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Transforms that run or wait for a query worker: each holds a thread.
const TRANSFORMS_MAX: usize = 2;

/// Runs query methods of canisters.
pub trait Transform: Send + Sync {
    /// Calls this method of the canister with `arg`, on behalf of the management canister, in a
    /// state of this height or later. Blocks.
    fn transform(
        &self,
        target: (CanisterId, Height),
        method_name: &str,
        arg: Vec<u8>,
    ) -> Result<Vec<u8>, NotTransformed>;
}

impl<F> Transform for F
where
    F: Fn((CanisterId, Height), &str, Vec<u8>) -> Result<Vec<u8>, NotTransformed> + Send + Sync,
{
    fn transform(
        &self,
        target: (CanisterId, Height),
        method_name: &str,
        arg: Vec<u8>,
    ) -> Result<Vec<u8>, NotTransformed> {
        self(target, method_name, arg)
    }
}

/// Takes this node's answer, with the memory that it holds.
pub trait AnswerSink: Send + Sync {
    /// See the trait.
    fn answer(&self, answer: OutcallAnswer, held: Reservation);

    /// A request needs `bytes` bytes of memory that are not free: releases memory that can be
    /// released.
    fn make_room(&self, bytes: u64);
}

type Open = BTreeMap<OutcallId, StateArc<Outcall>>;

/// See the module. Copies share everything.
#[derive(Clone)]
pub struct Service(Arc<Inner>);

struct Inner {
    // Interfaces.
    client: Client,
    transform: Arc<dyn Transform>,
    answers: Arc<dyn AnswerSink>,
    room: Pool,
    // Configuration.
    limits: OutcallLimits,
    me: Principal,
    // State.
    open: Mutex<Arc<Open>>,
    running: AtomicU64,
    transform_permits: CanisterSemaphore,
    work_available: Notify,
}

/// A started request, until it is no longer open.
struct ActiveRequest {
    caller: CanisterId,
    task: JoinHandle<()>,
    /// Memory that it holds; its answer takes it over at the end.
    bytes: Arc<AtomicU64>,
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Started requests, and the canister of the last one.
#[derive(Default)]
struct ActiveRequests {
    requests: BTreeMap<OutcallId, ActiveRequest>,
    last: Option<CanisterId>,
}

/// A canister's use of slots and memory.
#[derive(Clone, Copy, Default)]
struct CanisterUsage {
    slots: u64,
    bytes: u64,
}

impl Service {
    /// A service of the node `me`, whose requests hold memory of `room`.
    pub fn new(
        client: Client,
        (transform, answers): (Arc<dyn Transform>, Arc<dyn AnswerSink>),
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
            transform_permits: CanisterSemaphore::new(TRANSFORMS_MAX),
            work_available: Notify::new(),
        }))
    }

    /// These requests are open now: others are given up.
    pub fn set_open(&self, open: &Open) {
        let mut known = self.0.open.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = |(id, outcall): (&OutcallId, &StateArc<Outcall>)| (*id, outcall.askers);
        if known.iter().map(shared).eq(open.iter().map(shared)) {
            return;
        }
        *known = Arc::new(open.clone());
        drop(known);
        self.0.work_available.notify_one();
    }

    /// Requests that are being made.
    pub fn running(&self) -> u64 {
        self.0.running.load(Relaxed)
    }

    /// Makes requests, until the task is aborted; then those under way are given up.
    pub async fn run(self) {
        let mut active = ActiveRequests::default();
        loop {
            let open = self.0.open.lock().unwrap_or_else(PoisonError::into_inner).clone();
            active.requests.retain(|id, _| open.contains_key(id));
            if self.start_requests(&open, &mut active) {
                self.0.work_available.notified().await;
            } else {
                tokio::select! {
                    () = self.0.work_available.notified() => {},
                    () = sleep(ROOM_POLL_INTERVAL) => {},
                }
            }
        }
    }

    /// Starts requests that have room. Returns whether none waits.
    fn start_requests(&self, open: &Open, active: &mut ActiveRequests) -> bool {
        let mut waiting: BTreeMap<CanisterId, VecDeque<OutcallId>> = BTreeMap::new();
        for (id, outcall) in open {
            let is_mine = outcall.askers.contains(&self.0.me);
            if is_mine && !active.requests.contains_key(id) {
                waiting.entry(outcall.caller()).or_default().push_back(*id);
            }
        }
        let mut usages = active.usages();
        while let Some(caller) = self.next_caller(&waiting, &usages, active.last) {
            if self.0.running.load(Relaxed) >= self.0.limits.in_flight {
                return false;
            }
            let Some(ids) = waiting.get_mut(&caller) else { break };
            let Some((id, outcall)) = ids.front().and_then(|id| open.get_key_value(id)) else {
                break;
            };
            let usage = usages.entry(caller).or_default();
            let bytes = bytes_held(outcall).min(self.0.room.cap_bytes());
            // Those behind it wait too, or a large one would never find room.
            let Some(held) = self.room(bytes) else { return false };
            (usage.slots, usage.bytes) = (usage.slots + 1, usage.bytes + bytes);
            let holds = Arc::new(AtomicU64::new(bytes));
            let slot = RequestSlot::acquire(self.0.clone(), holds.clone());
            let (id, outcall) = (*id, outcall.clone());
            let task = tokio::spawn(async move { slot.run(id, &outcall, held).await });
            active.requests.insert(id, ActiveRequest { caller, task, bytes: holds });
            active.last = Some(caller);
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
        usages: &BTreeMap<CanisterId, CanisterUsage>,
        last: Option<CanisterId>,
    ) -> Option<CanisterId> {
        let (slots_max, bytes_max) = (
            (self.0.limits.in_flight / SHARE_DENOMINATOR).max(1),
            self.0.room.cap_bytes() / SHARE_DENOMINATOR,
        );
        let others_wait = waiting.len() > 1;
        let may_begin = |caller: &&CanisterId| {
            let usage = usages.get(*caller).copied().unwrap_or_default();
            let has_room = !others_wait || usage.bytes < bytes_max;
            usage.slots < slots_max && has_room
        };
        let is_behind = |caller: &&CanisterId| last.is_none_or(|last| **caller > last);
        let behind = waiting.keys().filter(is_behind).find(may_begin);
        behind.or_else(|| waiting.keys().find(may_begin)).copied()
    }
}

impl ActiveRequests {
    fn usages(&self) -> BTreeMap<CanisterId, CanisterUsage> {
        let mut usages: BTreeMap<_, CanisterUsage> = BTreeMap::new();
        for ActiveRequest { caller, task, bytes } in self.requests.values() {
            let usage = usages.entry(*caller).or_default();
            usage.slots += u64::from(!task.is_finished());
            usage.bytes += bytes.load(Relaxed);
        }
        usages
    }
}

/// The most memory that a request holds until it is answered.
fn bytes_held(outcall: &Outcall) -> u64 {
    let context = outcall.transform.as_ref().map(|transform| transform.context.len() as u64);
    OutcallLimits::request_bytes(outcall.body.len() as u64, outcall.response_bytes_max(), context)
}

/// The slot of a request that is being made, released when it is dropped.
struct RequestSlot {
    inner: Arc<Inner>,
    bytes: Arc<AtomicU64>,
}

/// Waits longer each time.
struct Backoff(Duration);

impl Backoff {
    async fn wait(&mut self) {
        sleep(self.0).await;
        self.0 = (2 * self.0).min(RETRY_DELAY_MAX);
    }
}

impl RequestSlot {
    fn acquire(inner: Arc<Inner>, bytes: Arc<AtomicU64>) -> Self {
        inner.running.fetch_add(1, Relaxed);
        Self { inner, bytes }
    }

    async fn run(&self, id: OutcallId, outcall: &StateArc<Outcall>, mut held: Reservation) {
        let time = Duration::from_millis(self.inner.limits.request_millis);
        let mut backoff = Backoff(RETRY_DELAY);
        let response = loop {
            match self.inner.client.send_request(outcall, time).await {
                Ok(response) => break Ok(response),
                Err(Error::Failed(failure)) => break Err(failure),
                Err(Error::Trouble(error)) => {
                    tracing::warn!(
                        request = id.0,
                        %error,
                        "an outcall is made again: this machine lacks something"
                    );
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
                tracing::info!(
                    request = id.0,
                    canister = %outcall.caller(),
                    %failure,
                    "an outcall failed"
                );
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
        let (transform, arg) = match reply::next_step(outcall, response) {
            Ok(ResponseStep::Reply(bytes)) => return Some(Ok(bytes)),
            Ok(ResponseStep::Transform(transform, arg)) => (transform, arg),
            Err(reject) => return Some(Err(reject)),
        };
        let reply = self.transform(id, outcall, transform, arg, held).await?;
        Some(reply.and_then(|reply| reply::transformed(outcall, reply)))
    }

    /// Applies the canister's own method.
    async fn transform(
        &self,
        id: OutcallId,
        outcall: &Outcall,
        transform: &OutcallTransform,
        arg: Vec<u8>,
        held: &mut Reservation,
    ) -> Option<Result<Vec<u8>, Reject>> {
        let (mut backoff, mut deaths) = (Backoff(RETRY_DELAY), 0);
        let (canister_id, since) = (outcall.caller(), outcall.height);
        loop {
            let permit = self.inner.transform_permits.acquire(canister_id).await;
            let (runs, name, arg) =
                (self.inner.transform.clone(), transform.method_name.clone(), arg.clone());
            // A request that is given up meanwhile keeps its memory and its permit until the thread
            // is back.
            let kept = held.split(held.bytes());
            let ran = spawn_blocking(move || {
                let run = || runs.transform((canister_id, since), &name, arg);
                let result = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| {
                    Err(NotTransformed::Died("a defect of the node; see its log".into()))
                });
                drop(permit);
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
                tracing::warn!(
                    request = id.0,
                    %canister_id,
                    what,
                    "this node has no answer to an outcall"
                );
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

impl Drop for RequestSlot {
    fn drop(&mut self) {
        self.inner.running.fetch_sub(1, Relaxed);
        self.inner.work_available.notify_one();
    }
}

#[cfg(test)]
#[path = "service_tests.rs"]
mod tests;
