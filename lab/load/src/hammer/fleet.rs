//! The canisters under load, the connections to them, and the books that are kept of what they
//! acknowledged.
//!
//! For every page of memory the book has the newest generation that was acknowledged; for every
//! counter it has how many counts were acknowledged and how many are open: sent, and of unknown
//! outcome. A page or a counter below what was acknowledged has lost an update; a counter above the
//! sum of both has counted something twice.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow, bail};
use candid::Principal;
use cli::lock;
use ic_agent::{Agent, agent::AgentBuilder};
use ic_management_canister_types::CanisterInstallMode;

use super::{
    failure::{Class, Failure},
    options::Parameters,
    pattern::{HEAP_PAGES, PAGE_BYTES, mix},
    protocol::{self, Info, ReadReply, Route},
    stats::{Kind, Outcome},
    transport::{self, BackOff, Endpoint, Http, TRAFFIC, Traffic},
};
use demo::client;

/// The module, built from `canisters/hammer-c`.
const MODULE: &[u8] = include_bytes!("../../../../canisters/wasm/hammer-c.wasm");
/// Cycles of a new canister: a million trillions, so that a soak of days never runs out.
const CYCLES: u64 = 1_000_000_000_000_000_000;
/// One read in this many is summed up byte for byte here too; the canister checks every byte of
/// every read.
const WHOLE_READS: u64 = 8;
const HEALTHY_WITHIN: Duration = Duration::from_secs(15);
/// Tries to ask for `info` while the node is busy.
const INFO_TRIES: u32 = 30;
/// How long endpoints may differ about a canister without load.
const SAME_WITHIN: Duration = Duration::from_secs(30);

/// By which endpoint a read is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Query,
    Update,
}

/// A memory of a canister.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Stable,
    Heap,
}

/// Kind of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    Count,
    Burn { instructions: u64 },
    Grow { space: Space, bytes: u64 },
    Write { space: Space, offset: u64, bytes: u64 },
    Read { space: Space, offset: u64, bytes: u64, by: By },
    Chain { depth: u64 },
    Fan { fanout: u64, multiplier: u64 },
}

/// An operation on one canister, and how it is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub(crate) kind: Kind,
    pub(crate) canister: usize,
    pub(crate) action: Action,
    /// Signed by the agent and sent over plain HTTP, one reply in N verified.
    pub(crate) signed: bool,
}

impl Job {
    pub(crate) fn new(kind: Kind, canister: usize, action: Action) -> Self {
        Self { kind, canister, action, signed: false }
    }

    pub(crate) fn signed(self) -> Self {
        Self { signed: true, ..self }
    }
}

/// Counts acknowledged, and counts whose outcome is unknown.
#[derive(Default)]
struct Counts {
    acknowledged: AtomicU64,
    open: AtomicU64,
}

impl Counts {
    fn open(&self, count: u64) {
        self.open.fetch_add(count, Ordering::SeqCst);
    }

    /// Of `opened` counts `done` are acknowledged and `open` stay open; the others certainly did
    /// not happen.
    fn settle(&self, opened: u64, done: u64, open: u64) {
        self.acknowledged.fetch_add(done, Ordering::SeqCst);
        self.open.fetch_sub(opened.saturating_sub(open), Ordering::SeqCst);
    }

    /// Checks the count `counted` of the canister since the books were opened; the error describes
    /// the difference.
    fn check(&self, what: &str, counted: u64) -> Result<(), String> {
        let acknowledged = self.acknowledged.load(Ordering::SeqCst);
        let open = self.open.load(Ordering::SeqCst);
        if counted < acknowledged {
            return Err(format!(
                "{what} stand at {counted}, but {acknowledged} were acknowledged: {} acknowledged \
                 updates are lost",
                acknowledged - counted
            ));
        }
        if counted > acknowledged + open {
            return Err(format!(
                "{what} stand at {counted}, but only {acknowledged} were acknowledged and {open} \
                 are of unknown outcome: some ran twice"
            ));
        }
        Ok(())
    }

    /// Forgets what was acknowledged; what is open may still happen.
    fn reopen(&self) {
        self.acknowledged.store(0, Ordering::SeqCst);
    }
}

/// Per page the newest acknowledged generation.
#[derive(Default)]
struct Floors {
    stable: Vec<u64>,
    heap: Vec<u64>,
}

impl Floors {
    fn floors_of(&mut self, space: Space) -> &mut Vec<u64> {
        match space {
            Space::Stable => &mut self.stable,
            Space::Heap => &mut self.heap,
        }
    }

    fn raise(&mut self, space: Space, offset: u64, bytes: u64, generation: u64) {
        let (from, to) = ((offset / PAGE_BYTES) as usize, ((offset + bytes) / PAGE_BYTES) as usize);
        let floors = self.floors_of(space);
        if floors.len() < to {
            floors.resize(to, 0);
        }
        floors[from..to].iter_mut().for_each(|floor| *floor = generation.max(*floor));
    }

    fn read(&mut self, space: Space, offset: u64, bytes: u64) -> Vec<u64> {
        let (from, to) = ((offset / PAGE_BYTES) as usize, ((offset + bytes) / PAGE_BYTES) as usize);
        let floors = self.floors_of(space);
        (from..to).map(|page| floors.get(page).copied().unwrap_or_default()).collect()
    }
}

struct Canister {
    id: Principal,
    seed: AtomicU64,
    floors: Mutex<Floors>,
    counts: Counts,
    at_start: Mutex<Info>,
}

/// The canisters under load.
pub(crate) struct Fleet {
    endpoints: Vec<Endpoint>,
    canisters: Vec<Canister>,
    ring: Vec<u8>,
    hops: Counts,
    owned: bool,
    /// Name and version that the node reports.
    pub(crate) node: String,
    parameters: Parameters,
}

impl Fleet {
    /// Connects, and creates the canisters or finds the given ones.
    pub(crate) async fn open(parameters: &Parameters) -> Result<Self> {
        let in_flight = parameters.concurrency.max(parameters.outstanding);
        let http = |index: u64| -> Result<Http> {
            let client = client::http()
                .pool_max_idle_per_host(in_flight)
                .timeout(parameters.timeout())
                .build()?;
            Ok(Http { client, back_off: BackOff::new(mix(parameters.seed ^ (index + 1))) })
        };
        let identity = Arc::new(client::identity()?);
        let adjusted = |agent: AgentBuilder| {
            agent
                .with_max_concurrent_requests(in_flight + 8)
                // A node remembers a call until then; a client that sends thousands of calls a
                // second should sign for a short time.
                .with_ingress_expiry(Duration::from_secs(60))
                .with_max_polling_time(parameters.timeout())
        };
        let urls = &parameters.urls;
        let endpoints = transport::connect(urls, HEALTHY_WITHIN, identity, http, adjusted).await?;
        let agent = &endpoints[0].agent;
        let node = agent.status().await?.impl_version.unwrap_or_else(|| "unknown".into());
        let owned = parameters.given.is_empty();
        let mut ids = parameters.given.clone();
        if owned {
            for _ in 0..parameters.canister_count {
                let created = Box::pin(client::create(agent, Some(CYCLES))).await;
                match created {
                    Ok(id) => ids.push(id),
                    Err(error) => {
                        Self::delete(agent, &ids).await;
                        return Err(error);
                    }
                }
            }
        }
        let canisters = ids
            .iter()
            .map(|id| Canister {
                id: *id,
                seed: AtomicU64::new(0),
                floors: Mutex::default(),
                counts: Counts::default(),
                at_start: Mutex::default(),
            })
            .collect();
        Ok(Self {
            endpoints,
            canisters,
            ring: protocol::ring(&ids),
            hops: Counts::default(),
            owned,
            node,
            parameters: parameters.clone(),
        })
    }

    /// How many canisters there are.
    pub(crate) fn len(&self) -> usize {
        self.canisters.len()
    }

    /// Ids of the canisters as text, in the order of their indexes.
    pub(crate) fn ids(&self) -> Vec<String> {
        self.canisters.iter().map(|canister| canister.id.to_text()).collect()
    }

    /// Opens the books: owned canisters become empty, given ones are taken as they are.
    pub(crate) async fn reset(&self) -> Result<()> {
        let agent = &self.endpoints[0].agent;
        for (index, canister) in self.canisters.iter().enumerate() {
            if self.owned {
                let seed = mix(self.parameters.seed ^ mix(index as u64 + 1));
                let argument = protocol::encode_words(&[seed]);
                let mode = CanisterInstallMode::Reinstall;
                client::install(agent, canister.id, mode, MODULE.to_vec(), argument).await?;
                *lock(&canister.floors) = Floors::default();
            }
            // A node that is a round behind does not know the canister yet, or knows the one
            // before.
            if self.endpoints.len() > 1 {
                self.settle_one(index).await?;
            }
            let info = self.info(index).await?;
            canister.seed.store(info.seed, Ordering::SeqCst);
            canister.counts.reopen();
            *lock(&canister.at_start) = info;
        }
        self.hops.reopen();
        Ok(())
    }

    /// Deletes what was created.
    pub(crate) async fn close(&self) {
        if self.owned {
            let ids: Vec<Principal> = self.canisters.iter().map(|canister| canister.id).collect();
            Self::delete(&self.endpoints[0].agent, &ids).await;
        }
    }

    async fn delete(agent: &Agent, ids: &[Principal]) {
        for id in ids {
            if let Err(error) = client::delete(agent, *id).await {
                eprintln!("hammer: canister {id} is left on the node: {error:#}");
            }
        }
    }

    /// State that a canister reports, through the first endpoint.
    pub(crate) async fn info(&self, canister: usize) -> Result<Info> {
        self.info_at(0, canister).await
    }

    async fn info_at(&self, endpoint: usize, canister: usize) -> Result<Info> {
        let id = self.canisters[canister].id;
        let endpoint = &self.endpoints[endpoint];
        for _ in 0..INFO_TRIES {
            let asked = async {
                let reply = endpoint.agent.query(&id, "info").with_arg(Vec::new()).call().await;
                reply.map_err(|error| Failure::agent(&error, last_retry_after()))
            };
            match TRAFFIC.scope(Traffic::default(), asked).await {
                Ok(reply) => {
                    return Info::decode(&reply).map_err(|text| anyhow!("canister {id}: {text}"));
                }
                Err(Failure { retry_after: Some(told), .. }) => {
                    tokio::time::sleep(endpoint.http.back_off.wait(told)).await;
                }
                Err(failure) => {
                    bail!(
                        "asking canister {id} for its counters: {}: {}",
                        failure.class,
                        failure.text
                    )
                }
            }
        }
        bail!(
            "canister {id} could not be asked for its counters: the node refused {INFO_TRIES} times"
        )
    }

    /// Waits until all endpoints agree about every canister, which is immediate with one endpoint.
    /// Nothing may be in flight.
    pub(crate) async fn settle(&self) -> Result<()> {
        if self.endpoints.len() > 1 {
            for canister in 0..self.len() {
                self.settle_one(canister).await?;
            }
        }
        Ok(())
    }

    async fn settle_one(&self, canister: usize) -> Result<()> {
        let deadline = Instant::now() + SAME_WITHIN;
        loop {
            let mut said = Vec::new();
            for endpoint in 0..self.endpoints.len() {
                said.push(self.info_at(endpoint, canister).await);
            }
            let first = said.first().and_then(|info| info.as_ref().ok());
            if first.is_some() && said.iter().all(|info| info.as_ref().ok() == first) {
                return Ok(());
            }
            if Instant::now() > deadline {
                let said: Vec<String> = said
                    .iter()
                    .zip(&self.endpoints)
                    .map(|(info, endpoint)| match info {
                        Ok(info) => format!("{}: {info:?}", endpoint.url),
                        Err(error) => format!("{}: {error:#}", endpoint.url),
                    })
                    .collect();
                bail!(
                    "the endpoints do not agree on canister {} within {} s: {}",
                    self.canisters[canister].id,
                    SAME_WITHIN.as_secs(),
                    said.join("; ")
                );
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Compares the counters with the books; returns one text for each difference.
    pub(crate) async fn check_counters(&self) -> Vec<String> {
        if let Err(error) = self.settle().await {
            return vec![format!("acknowledged updates could not be verified: {error:#}")];
        }
        let mut wrong = Vec::new();
        let mut hops = 0;
        for (index, canister) in self.canisters.iter().enumerate() {
            match self.info(index).await {
                Ok(info) => {
                    let at_start = *lock(&canister.at_start);
                    hops += info.hops.saturating_sub(at_start.hops);
                    let what = format!("the counts of canister {}", canister.id);
                    let counted = info.count.saturating_sub(at_start.count);
                    wrong.extend(canister.counts.check(&what, counted).err());
                }
                Err(error) => {
                    wrong.push(format!("acknowledged updates could not be verified: {error:#}"));
                    return wrong;
                }
            }
        }
        wrong.extend(self.hops.check("the calls between canisters that arrived", hops).err());
        wrong
    }

    /// Runs one operation. It may be dropped at any point: what it counted stays open.
    pub(crate) async fn perform(&self, job: Job, index: u64) -> Outcome {
        let performed = async {
            let mut attempt = Attempt { fleet: self, job, index, outcome: Outcome::default() };
            let result = tokio::time::timeout(self.parameters.timeout(), attempt.run()).await;
            let mut outcome = attempt.outcome;
            outcome.failure = match result {
                Ok(result) => result.err(),
                Err(_) => {
                    let text = format!("no outcome within {} s", self.parameters.timeout_seconds);
                    Some(Failure::new(Class::Timeout, text))
                }
            };
            TRAFFIC.with(|traffic| {
                outcome.sent_bytes = traffic.sent_bytes.get();
                outcome.received_bytes = traffic.received_bytes.get();
                outcome.polls_refused = traffic.polls_refused.get();
            });
            outcome
        };
        TRAFFIC.scope(Traffic::default(), performed).await
    }
}

/// An operation under way; `index` chooses its endpoint.
struct Attempt<'a> {
    fleet: &'a Fleet,
    job: Job,
    index: u64,
    outcome: Outcome,
}

impl<'a> Attempt<'a> {
    fn canister(&self) -> &'a Canister {
        &self.fleet.canisters[self.job.canister]
    }

    fn endpoint(&self) -> &'a Endpoint {
        &self.fleet.endpoints[self.index as usize % self.fleet.endpoints.len()]
    }

    async fn run(&mut self) -> Result<(), Failure> {
        match self.job.action {
            Action::Count => {
                let argument = vec![0x5A; self.fleet.parameters.payload_bytes as usize];
                self.count("inc", argument).await
            }
            Action::Burn { instructions } => {
                self.count("burn", protocol::encode_words(&[instructions])).await
            }
            Action::Grow { space, bytes } => {
                let method = if space == Space::Heap { "heap_grow" } else { "grow" };
                let reply = self.update(method, protocol::encode_words(&[bytes])).await?;
                let has = protocol::first_word(&reply).map_err(unreadable)?;
                if has < bytes {
                    self.outcome.wrong =
                        Some(format!("growing to {bytes} bytes was acknowledged with {has} bytes"));
                }
                Ok(())
            }
            Action::Write { space, offset, bytes } => {
                let method = if space == Space::Heap { "heap_write" } else { "write" };
                let reply = self.update(method, protocol::encode_words(&[offset, bytes])).await?;
                let generation = protocol::first_word(&reply).map_err(unreadable)?;
                lock(&self.canister().floors).raise(space, offset, bytes, generation);
                self.outcome.touched_bytes = bytes;
                Ok(())
            }
            Action::Read { space, offset, bytes, by } => {
                self.read((space, by), (offset, bytes)).await
            }
            Action::Chain { depth } => self.chain(depth).await,
            Action::Fan { fanout, multiplier } => self.fan(fanout, multiplier).await,
        }
    }

    /// An update that adds one to the canister's counter.
    async fn count(&self, method: &str, argument: Vec<u8>) -> Result<(), Failure> {
        let counts = &self.canister().counts;
        counts.open(1);
        let reply = self.update(method, argument).await;
        match &reply {
            Ok(_) => counts.settle(1, 1, 0),
            Err(failure) if !failure.may_have_executed() => counts.settle(1, 0, 0),
            Err(_) => {}
        }
        protocol::first_word(&reply?).map_err(unreadable)?;
        Ok(())
    }

    /// A read whose reply is judged by what was written and acknowledged before.
    async fn read(
        &mut self,
        (space, by): (Space, By),
        (offset, bytes): (u64, u64),
    ) -> Result<(), Failure> {
        let (fleet, canister, index) = (self.fleet, self.canister(), self.index);
        let seed = canister.seed.load(Ordering::SeqCst);
        // With several endpoints a query may be answered by a node that is behind, unless all were
        // waited for.
        let held =
            by == By::Update || fleet.endpoints.len() == 1 || self.job.kind == Kind::VerifyRead;
        let floors = match held {
            true => lock(&canister.floors).read(space, offset, bytes),
            false => vec![0; (bytes / PAGE_BYTES) as usize],
        };
        let argument = protocol::encode_words(&[offset, bytes, mix(fleet.parameters.seed ^ index)]);
        let reply = match (space, by) {
            (Space::Stable, By::Query) => self.query("read", argument).await,
            (Space::Stable, By::Update) => self.update("read_update", argument).await,
            (Space::Heap, By::Query) => self.query("heap_read", argument).await,
            (Space::Heap, By::Update) => self.update("heap_read_update", argument).await,
        }?;
        let first = (offset / PAGE_BYTES) | if space == Space::Heap { HEAP_PAGES } else { 0 };
        let judged = ReadReply::decode(&reply).and_then(|reply| {
            reply.verify(seed, first, &floors, index.is_multiple_of(WHOLE_READS))
        });
        self.outcome.wrong = judged.err().map(|text| format!("canister {}: {text}", canister.id));
        self.outcome.touched_bytes = bytes;
        Ok(())
    }

    /// `depth` calls, each made by the callee of the one before.
    async fn chain(&mut self, depth: u64) -> Result<(), Failure> {
        let argument = self.route(depth, 0);
        self.fleet.hops.open(depth);
        let reply = self.update("chain", argument).await?;
        let words = protocol::decode_words(&reply);
        if words[..] != [depth, depth] {
            self.outcome.wrong =
                Some(format!("a chain of {depth} calls replied [calls, replies] = {words:?}"));
        }
        self.fleet.hops.settle(depth, depth, 0);
        self.outcome.hops = depth;
        Ok(())
    }

    /// `multiplier` calls to each of `fanout` canisters, all at once.
    async fn fan(&mut self, fanout: u64, multiplier: u64) -> Result<(), Failure> {
        let calls = fanout * multiplier;
        let argument = self.route(multiplier, fanout);
        self.fleet.hops.open(calls);
        let reply = self.update("fan", argument).await?;
        let words = protocol::decode_words(reply.get(..24).unwrap_or_default());
        let [replied, rejected, not_sent] = words[..] else {
            return Err(unreadable(format!("a fanout replied {} bytes", reply.len())));
        };
        if replied.saturating_add(rejected).saturating_add(not_sent) != calls {
            self.outcome.wrong = Some(format!(
                "of {calls} calls, {replied} replied, {rejected} rejected, {not_sent} not sent"
            ));
        }
        self.fleet.hops.settle(calls, replied, rejected.min(calls));
        self.outcome.hops = replied;
        let inner = &mut self.outcome.inner;
        if rejected > 0 {
            let text = String::from_utf8_lossy(&reply[24..]).into_owned();
            inner.push((Class::InnerCall("rejected"), rejected, text));
        }
        if not_sent > 0 {
            let text = "call_perform refused: a queue, the memory for messages or the cycles do \
                        not allow one more call";
            inner.push((Class::InnerCall("not sent"), not_sent, text.into()));
        }
        Ok(())
    }

    fn route(&self, hops_left: u64, hop: u64) -> Vec<u8> {
        let Parameters { best_effort_seconds, payload_bytes, .. } = self.fleet.parameters;
        Route {
            hops_left,
            hop,
            member: self.job.canister as u64,
            ring: &self.fleet.ring,
            timeout_seconds: best_effort_seconds,
            payload_bytes,
        }
        .encode()
    }

    async fn update(&self, method: &str, argument: Vec<u8>) -> Result<Vec<u8>, Failure> {
        let (endpoint, canister) = (self.endpoint(), self.canister().id);
        let every = self.fleet.parameters.verify_every;
        if self.job.signed && every != 1 {
            let verify = every > 0 && self.index.is_multiple_of(every);
            let call = (method, argument);
            return transport::update_signed(endpoint, canister, call, verify).await;
        }
        let call = endpoint.agent.update(&canister, method).with_arg(argument);
        let reply = call.call_and_wait().await;
        reply.map_err(|error| Failure::agent(&error, last_retry_after()))
    }

    async fn query(&self, method: &str, argument: Vec<u8>) -> Result<Vec<u8>, Failure> {
        let canister = self.canister().id;
        let query = self.endpoint().agent.query(&canister, method).with_arg(argument);
        let reply = query.call_with_verification().await;
        reply.map_err(|error| Failure::agent(&error, last_retry_after()))
    }
}

/// `Retry-After` of the last answer.
fn last_retry_after() -> Option<Duration> {
    TRAFFIC.try_with(|traffic| traffic.retry_after.get()).ok().flatten()
}

fn unreadable(text: String) -> Failure {
    Failure::new(Class::Protocol, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counter_check_detects_lost_and_repeated_updates() {
        let counts = Counts::default();
        for _ in 0..10 {
            counts.open(1);
            counts.settle(1, 1, 0);
        }
        counts.open(1);
        counts.settle(1, 0, 0);
        counts.open(2);
        for counted in 10..=12 {
            assert_eq!(counts.check("they", counted), Ok(()));
        }
        assert!(counts.check("they", 9).unwrap_err().contains("1 acknowledged updates are lost"));
        assert!(counts.check("they", 13).unwrap_err().contains("ran twice"));
        counts.reopen();
        assert_eq!(counts.check("they", 2), Ok(()), "what was open may still happen");
        assert!(counts.check("they", 3).is_err());
    }

    #[test]
    fn floors_only_rise() {
        let mut floors = Floors::default();
        floors.raise(Space::Stable, 4096, 8192, 5);
        floors.raise(Space::Stable, 8192, 8192, 3);
        assert_eq!(floors.read(Space::Stable, 0, 5 * 4096), [0, 5, 5, 3, 0]);
        assert_eq!(floors.read(Space::Heap, 0, 4096), [0]);
    }
}
