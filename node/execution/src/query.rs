//! Queries, and the check of users' calls before they are taken in: executions on the newest
//! certified state that leave no trace (docs/internals/query-path.md).
//!
//! A query holds one query worker ([`lanes`]) for as long as it runs, nested calls of a composite
//! query included: its worker keeps the execution alive between its calls, this module evaluates
//! each call and hands the answer to the kept execution. Depth, instructions over all calls, and
//! wall-clock time are bounded. Nothing here is deterministic, and nothing of it enters replicated
//! state, but for counts that members report ([`crate::query_stats`]).

mod compiling;
mod data_certificate;
mod lanes;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use accounting::Pool;
use envelope::candid_wire::Cost;
use ic_principal::Principal;
use sandbox::{
    Call, CallbackKind, Entry, Lane, MessageLimits, Mount, Outcome, Request, Response,
    TimedOutcome, WorkerTrouble,
};
use state::{
    CanisterId, CanisterState, CanisterStatus, CertifiedReader, CertifiedState, Height, Ingress,
    Memory, ModuleHash, NotTransformed, QueryCounts, QueryRequest, Reject, SharedCanister, Time,
};

use self::compiling::{Compilations, Failure};
use self::data_certificate::DataCertificate;
use self::lanes::{Lanes, Permit};
use crate::core::Core;
use crate::machine::{Invocation, system_context};
use crate::management;
use crate::message::check_callable;
use crate::query_cache::{Key, QueryCache};
use crate::query_stats::QueryTally;
use crate::reject::{self, refused};

/// Times that one execution finds its artefact removed from the cache.
const COMPILATIONS_MAX: u32 = 3;

/// Result of a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryReply {
    /// Bytes that the canister replied with; encoded in Candid by the management canister.
    pub bytes: Vec<u8>,
    /// Height of the state it was answered from.
    pub height: Height,
    /// Time of that state.
    pub time: Time,
    /// Instructions it took, those of its calls included.
    pub instructions: u64,
}

/// Answers queries; clones share their workers. Calls block.
#[derive(Clone)]
pub struct QueryService {
    core: Arc<Core>,
    reader: CertifiedReader,
    lanes: Arc<Lanes>,
    compilations: Arc<Compilations>,
    data_certificate: Arc<DataCertificate>,
    counters: Arc<Counters>,
    cache: Option<Arc<QueryCache>>,
    /// Counts queries. `None`: they are not reported.
    tally: Option<Arc<QueryTally>>,
}

/// Queries, checks of calls and transforms that a limit on time ended, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndedQueries {
    /// By `execution.query_wall_clock_seconds`.
    pub wall_clock: u64,
    /// By `execution.query_wait_seconds`, while they waited for a worker here.
    pub wait: u64,
}

/// Least time between two lines of the log about queries that the limit on their time ended.
const ENDED_LOG_EVERY: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Counters {
    wall_clock: AtomicU64,
    wait: AtomicU64,
    /// When one that `wall_clock` counts was logged.
    logged: Mutex<Option<Instant>>,
}

/// One query under way.
struct Session<'a> {
    core: &'a Arc<Core>,
    compilations: &'a Arc<Compilations>,
    data_certificate: &'a DataCertificate,
    state: &'a CertifiedState,
    lane: usize,
    root: CanisterId,
    instructions: u64,
    /// Of them, those of methods whose evaluation is over, counted for their canisters.
    counted: u64,
    /// None: what it evaluates is not counted.
    tally: Option<&'a QueryTally>,
    deadline: Instant,
    overdue: bool,
    /// Whether another height would see the same: nothing of this one was read, and no other
    /// canister was called.
    repeatable: bool,
    /// Whether workers died of a message, or with it.
    died: bool,
}

impl QueryService {
    pub(crate) fn new(core: Arc<Core>, reader: CertifiedReader) -> Self {
        let limits = &core.limits().execution;
        let lanes = Arc::new(Lanes::new(
            limits.query_threads,
            limits.query_threads_per_canister,
            Duration::from_secs(limits.query_wait_seconds),
        ));
        Self {
            core,
            reader,
            lanes,
            compilations: Arc::default(),
            data_certificate: Arc::default(),
            counters: Arc::default(),
            cache: None,
            tally: None,
        }
    }

    /// Queries that a limit on time ended.
    pub fn ended(&self) -> EndedQueries {
        EndedQueries {
            wall_clock: self.counters.wall_clock.load(Relaxed),
            wait: self.counters.wait.load(Relaxed),
        }
    }

    fn acquire(&self, canister_id: CanisterId) -> Result<Permit<'_>, Reject> {
        self.lanes.acquire(canister_id).inspect_err(|_| {
            self.counters.wait.fetch_add(1, Relaxed);
        })
    }

    /// Begins a query of `root` on the worker of `permit`: from now on its time counts.
    fn begin<'a>(
        &'a self,
        state: &'a CertifiedState,
        permit: &Permit<'_>,
        root: CanisterId,
    ) -> Session<'a> {
        let seconds = self.core.limits().execution.query_wall_clock_seconds;
        Session {
            core: &self.core,
            compilations: &self.compilations,
            data_certificate: &self.data_certificate,
            state,
            lane: permit.lane,
            root,
            instructions: 0,
            counted: 0,
            tally: None,
            deadline: Instant::now() + Duration::from_secs(seconds),
            overdue: false,
            repeatable: true,
            died: false,
        }
    }

    fn record_deadline(&self, session: &Session<'_>) {
        if !session.overdue {
            return;
        }
        let ended = self.counters.wall_clock.fetch_add(1, Relaxed) + 1;
        let mut logged = self.counters.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.is_none_or(|at| at.elapsed() >= ENDED_LOG_EVERY) {
            *logged = Some(Instant::now());
            tracing::warn!(
                canister = %session.root,
                query_wall_clock_seconds = session.seconds_max(),
                ended_since_start = ended,
                "a query, a check of a call or a transform ran longer than \
                 execution.query_wall_clock_seconds and was ended"
            );
        }
    }

    pub(crate) fn count_in(&mut self, tally: Arc<QueryTally>) {
        self.tally = Some(tally);
    }

    /// Keeps replies, as many as `pool` has room for.
    pub(crate) fn cache_in(&mut self, pool: Pool) {
        self.cache = Some(Arc::new(QueryCache::new(pool)));
    }

    /// Queries answered with a kept reply, and queries that ran.
    pub fn cache_figures(&self) -> (u64, u64) {
        self.cache.as_ref().map_or((0, 0), |cache| cache.figures())
    }

    /// Forgets all kept replies, when memory is short.
    pub fn clear_cache(&self) {
        if let Some(cache) = &self.cache {
            cache.clear();
        }
    }

    /// Answers a query from the newest certified state.
    ///
    /// # Errors
    /// The reject for the client: the canister's, or the reason why it could not be called.
    pub fn query(&self, request: QueryRequest) -> Result<QueryReply, Reject> {
        let state = self.reader.latest().ok_or_else(reject::no_certified_state)?;
        let (height, time) = (state.height(), state.time());
        if request.canister_id == Principal::management_canister() {
            let bytes = management::queries::query(
                &self.core,
                &state,
                &request.sender,
                &request.method_name,
                &request.arg,
            )?;
            return Ok(QueryReply { bytes, height, time, instructions: 0 });
        }
        let asked_before = self.keyed(&state, &request);
        if let Some((cache, key, canister)) = &asked_before
            && let Some((reply, instructions)) = cache.get(key, canister)
        {
            self.count_kept(&request, &reply, instructions);
            return Ok(QueryReply { bytes: reply.to_vec(), height, time, instructions: 0 });
        }
        let permit = self.acquire(request.canister_id)?;
        let mut session = self.begin(&state, &permit, request.canister_id);
        session.tally = self.tally.as_deref();
        let result = session.evaluate(request, 0);
        self.record_deadline(&session);
        let bytes = result?;
        if let Some((cache, key, canister)) = &asked_before
            && session.repeatable
        {
            cache.put(*key, canister, (&bytes, session.instructions));
        }
        Ok(QueryReply { bytes, height, time, instructions: session.instructions })
    }

    /// The kept reply to a query, of at most `bytes_max` bytes, from the newest certified state.
    /// Does not block; takes the time of a hash of the argument. On `None`, [`Self::query`]
    /// answers.
    pub fn kept_reply(&self, request: &QueryRequest, bytes_max: usize) -> Option<Arc<[u8]>> {
        let state = self.reader.latest()?;
        let (cache, key, canister) = self.keyed(&state, request)?;
        let (reply, instructions) = cache.get_short(&key, &canister, bytes_max)?;
        self.count_kept(request, &reply, instructions);
        Some(reply)
    }

    /// Where the reply to a query is kept: under which key, and for which state of the canister.
    /// Whether the canister may still be asked is part of its state.
    fn keyed(
        &self,
        state: &CertifiedState,
        request: &QueryRequest,
    ) -> Option<(&QueryCache, Key, SharedCanister)> {
        let cache = self.cache.as_deref()?;
        let canister = state.canister(&request.canister_id)?;
        Some((cache, QueryCache::key(request)?, canister))
    }

    /// Whether a reply was kept is this node's affair: it counts as if it had run.
    fn count_kept(&self, request: &QueryRequest, reply: &[u8], instructions: u64) {
        let Some(tally) = &self.tally else { return };
        let counts = QueryCounts {
            calls: 1,
            instructions,
            request_bytes: request.arg.len() as u64,
            response_bytes: reply.len() as u64,
        };
        tally.count(&request.canister_id, &counts);
    }

    /// Runs a canister's query method on `arg`, called by the management canister: the transform of
    /// a response to an outcall. Composite queries are not allowed. A state before the height
    /// `since` does not have the canister as it was when it made the request.
    pub fn transform(
        &self,
        (canister_id, since): (CanisterId, Height),
        method_name: &str,
        arg: Vec<u8>,
    ) -> Result<Vec<u8>, NotTransformed> {
        let mut died = false;
        let transformed = || {
            let state = self.reader.latest().filter(|state| state.height() >= since);
            let state = state.ok_or_else(reject::no_certified_state)?;
            let canister = state.canister(&canister_id);
            let canister = canister.ok_or_else(|| reject::canister_not_found(&canister_id))?;
            let (_, composite) = find_method(&canister, method_name)?;
            if composite {
                return Err(reject::no_method(&canister_id, "query", method_name));
            }
            let permit = self.acquire(canister_id)?;
            let mut session = self.begin(&state, &permit, canister_id);
            let request = QueryRequest {
                sender: Principal::management_canister(),
                sender_info: None,
                canister_id,
                method_name: method_name.to_owned(),
                arg,
            };
            let result = session.evaluate(request, 0);
            self.record_deadline(&session);
            died = session.died;
            result
        };
        let result = transformed();
        result.map_err(|reject| match reject.error_code.0 {
            _ if died => NotTransformed::Died(reject.message),
            // No worker came free, one died, or the node is not ready: see `reject`.
            208 | 211 => NotTransformed::Trouble(reject.message),
            _ => NotTransformed::Reject(reject),
        })
    }

    /// Whether this node would accept an ingress message: the canister exists, runs, can pay, and
    /// its `canister_inspect_message` (if it has one) accepts. For management methods, whether the
    /// sender may call them.
    ///
    /// # Errors
    /// The reject for the client.
    pub fn inspect(&self, ingress: &Ingress) -> Result<(), Reject> {
        let state = self.reader.latest().ok_or_else(reject::no_certified_state)?;
        match self.check_ingress(&state, ingress)? {
            Some(canister) => self.run_inspection(&state, &canister, ingress),
            None => Ok(()),
        }
    }

    /// The outcome of [`Self::inspect`] where no canister code has to run for it: does not block,
    /// and decodes the argument of a management call. `None` where a canister decides.
    pub fn inspect_without_code(&self, ingress: &Ingress) -> Option<Result<(), Reject>> {
        let Some(state) = self.reader.latest() else {
            return Some(Err(reject::no_certified_state()));
        };
        match self.check_ingress(&state, ingress) {
            Ok(Some(_)) => None,
            Ok(None) => Some(Ok(())),
            Err(reject) => Some(Err(reject)),
        }
    }

    /// The checks of a call by what is known of its callee. Returns the canister if it inspects
    /// calls itself.
    fn check_ingress(
        &self,
        state: &CertifiedState,
        ingress: &Ingress,
    ) -> Result<Option<SharedCanister>, Reject> {
        let core = &*self.core;
        if core.pages.is_disk_low().unwrap_or(false) {
            return refused!(
                queue_full,
                "The node's disk has less than {} bytes left (pages.disk_reserve_bytes): updates \
                 are refused until there is space.",
                core.limits().pages.disk_reserve_bytes
            );
        }
        if ingress.canister_id == Principal::management_canister() {
            let (name, arg) = (&ingress.method_name, &ingress.arg);
            let named = management::named_canister(core, name, arg, &mut Cost::default())?;
            let target = named.and_then(|id| state.canister(&id));
            management::check_ingress(core, ingress, target.as_deref())?;
            let charged = management::is_charged(&ingress.method_name)
                && ingress.method_name != "update_settings";
            if let Some(target) = target.filter(|_| charged) {
                affordable(core, &target, ingress)?;
            }
            return Ok(None);
        }
        let id = ingress.canister_id;
        let canister = state.canister(&id).ok_or_else(|| reject::canister_not_found(&id))?;
        check_callable(core, &canister)?;
        affordable(core, &canister, ingress)?;
        let inspects = canister.module().is_some_and(|module| module.info.hooks.inspect_message);
        Ok(inspects.then_some(canister))
    }

    /// Runs `canister_inspect_message`.
    fn run_inspection(
        &self,
        state: &CertifiedState,
        canister: &SharedCanister,
        ingress: &Ingress,
    ) -> Result<(), Reject> {
        let (core, id) = (&*self.core, canister.id);
        let permit = self.acquire(id)?;
        let mut session = self.begin(state, &permit, id);
        let limits = MessageLimits {
            instructions: core.limits().execution.instructions_per_inspect,
            ..core.query_limits()
        };
        let invocation = Invocation {
            caller: ingress.sender,
            caller_info: ingress.sender_info.clone(),
            arg: ingress.arg.clone(),
            // Its growth is dropped with everything else it does, as with a query.
            growable_bytes: core.limits().subnet.memory_capacity_bytes,
            keeps_changes: false,
            ..Invocation::system(
                Entry::InspectMessage { method_name: ingress.method_name.clone() },
                limits,
            )
        };
        let executed = session.execute(canister, invocation, None, None);
        self.record_deadline(&session);
        let outcome = executed?;
        match outcome.result {
            Err(trap) => Err(reject::of_trap(canister, &ingress.sender, trap)),
            Ok(_) if outcome.accepted => Ok(()),
            Ok(_) => Err(reject::not_accepted(&id)),
        }
    }
}

fn affordable(core: &Core, canister: &CanisterState, ingress: &Ingress) -> Result<(), Reject> {
    let fee = core.costs_of(&canister.id).induction(ingress.accounted_bytes());
    core.check_affordable(canister, fee, "taking in an ingress message")
}

impl Session<'_> {
    /// Evaluates a query or composite query and the calls it makes, and counts each for its
    /// canister. A query that began no execution does not count: the method does not exist, the
    /// canister is stopped or cannot pay, this machine has a fault.
    fn evaluate(&mut self, request: QueryRequest, depth: u64) -> Result<Vec<u8>, Reject> {
        let (id, request_bytes) = (request.canister_id, request.arg.len() as u64);
        let (before, counted) = (self.instructions, self.counted);
        let mut began = false;
        let result = self.evaluate_method(request, depth, &mut began);
        let all = self.instructions - before;
        // Those of methods that it called were counted for their canisters.
        let own = all - (self.counted - counted);
        self.counted = counted + all;
        if let Some(tally) = self.tally.filter(|_| began) {
            let response_bytes = match &result {
                Ok(bytes) => bytes.len(),
                Err(reject) => reject.message.len(),
            } as u64;
            let counts = QueryCounts { calls: 1, instructions: own, request_bytes, response_bytes };
            tally.count(&id, &counts);
        }
        result
    }

    fn evaluate_method(
        &mut self,
        request: QueryRequest,
        depth: u64,
        began: &mut bool,
    ) -> Result<Vec<u8>, Reject> {
        let id = request.canister_id;
        let canister = self.state.canister(&id).ok_or_else(|| reject::canister_not_found(&id))?;
        if canister.status == CanisterStatus::Stopped {
            return Err(reject::stopped_for_queries(&id));
        }
        check_callable(self.core, &canister)?;
        let (entry, composite) = find_method(&canister, &request.method_name)?;
        self.repeatable &= !composite;
        // Only the canister that was asked can show what is certified of it, and only before it
        // calls anyone.
        let certificate = (id == self.root && depth == 0)
            .then(|| self.data_certificate.get(self.state, id).to_vec());
        let callback_base = Invocation {
            caller: request.sender,
            caller_info: request.sender_info,
            already_responded: false,
            keeps_changes: false,
            growable_bytes: self.core.limits().subnet.memory_capacity_bytes,
            ..Invocation::system(entry, self.core.query_limits())
        };
        let invocation = Invocation { arg: request.arg, ..callback_base.clone() };
        let outcome = self.execute(&canister, invocation, certificate, None)?;
        *began = true;
        let token = outcome.keep_token;
        let result = if composite {
            self.drive(&canister, callback_base, outcome, depth)
        } else {
            respond(&canister, &callback_base.caller, outcome)
                .unwrap_or_else(|| Err(reject::did_not_reply(&id)))
        };
        if let Some(token) = token {
            self.core.sandbox.release(Lane::Query(self.lane), token);
        }
        result
    }

    /// Answers the calls of a composite query one after the other until it responds.
    fn drive(
        &mut self,
        canister: &SharedCanister,
        base: Invocation,
        mut outcome: Outcome,
        depth: u64,
    ) -> Result<Vec<u8>, Reject> {
        let token = outcome.keep_token;
        let mut spent = outcome.instructions;
        let mut calls: VecDeque<Call> = std::mem::take(&mut outcome.query_calls).into();
        if let Some(response) = respond(canister, &base.caller, outcome) {
            return response;
        }
        while let Some(mut call) = calls.pop_front() {
            self.check_bounds()?;
            let answer = self.answer(canister, &mut call, depth)?;
            let reject_code = answer.as_ref().err().map_or(0, |reject| reject.code as u32);
            let (kind, (fun, env), arg) = match answer {
                Ok(bytes) => (CallbackKind::Reply, call.on_reply, bytes),
                Err(reject) => (
                    CallbackKind::Reject { code: reject.code as u32, message: reject.message },
                    call.on_reject,
                    Vec::new(),
                ),
            };
            let invocation = Invocation {
                entry: Entry::Callback { fun, env, kind },
                arg,
                cycles_refunded: call.cycles,
                context_instructions: spent,
                ..base.clone()
            };
            let mut outcome = self.execute(canister, invocation, None, token)?;
            spent += outcome.instructions;
            if outcome.result.is_err()
                && let Some((fun, env)) = call.on_cleanup
            {
                let entry = Entry::Cleanup { fun, env, reject_code };
                let cleanup = Invocation { entry, context_instructions: spent, ..base.clone() };
                // Whatever it does, the query has failed.
                let _ = self.execute(canister, cleanup, None, token);
            }
            let further = std::mem::take(&mut outcome.query_calls);
            if let Some(response) = respond(canister, &base.caller, outcome) {
                return response;
            }
            further.into_iter().rev().for_each(|call| calls.push_front(call));
        }
        Err(reject::did_not_reply(&canister.id))
    }

    /// Answer to a call of a composite query, whose name and argument it takes; the outer error
    /// ends the whole query.
    fn answer(
        &mut self,
        canister: &SharedCanister,
        call: &mut Call,
        depth: u64,
    ) -> Result<Result<Vec<u8>, Reject>, Reject> {
        if call.callee == Principal::management_canister()
            || self.core.config.is_subnet(&call.callee)
        {
            return Ok(management::queries::query(
                self.core,
                self.state,
                &canister.id,
                &call.method_name,
                &call.arg,
            ));
        }
        let depth_max = self.core.limits().execution.composite_query_depth;
        if depth + 1 > depth_max {
            return refused!(
                525,
                "Calls of the composite query are nested deeper than {depth_max} \
                 (execution.composite_query_depth)."
            );
        }
        let request = QueryRequest {
            sender: canister.id,
            sender_info: None,
            canister_id: call.callee,
            method_name: std::mem::take(&mut call.method_name),
            arg: std::mem::take(&mut call.arg),
        };
        let answer = self.evaluate(request, depth + 1);
        // A bound of the whole query was reached below: no caller in the chain may continue. The
        // nesting depth is a bound of the single call: its caller gets the error.
        match answer {
            Err(reject) if matches!(reject.error_code.0, 526 | 528) => Err(reject),
            answer => Ok(answer),
        }
    }

    fn check_bounds(&mut self) -> Result<(), Reject> {
        let limit = self.core.limits().execution.instructions_per_query;
        if self.instructions >= limit {
            return refused!(
                526,
                "Query of canister {} used {} instructions with all its calls, the most is {limit} \
                 (execution.instructions_per_query).",
                self.root,
                self.instructions
            );
        }
        if Instant::now() >= self.deadline {
            return Err(self.ended_by_deadline());
        }
        Ok(())
    }

    fn ended_by_deadline(&mut self) -> Reject {
        self.overdue = true;
        // Whether it would have an outcome on a faster machine is not known.
        self.died = true;
        reject::query_overdue(&self.root, self.seconds_max())
    }

    fn seconds_max(&self) -> u64 {
        self.core.limits().execution.query_wall_clock_seconds
    }

    /// Compiles a module whose artefact is gone, within the time of the query.
    fn compile(&mut self, module: ModuleHash, canister_id: CanisterId) -> Result<(), Reject> {
        let compiled = self.compilations.compile(self.core, (module, canister_id), self.deadline);
        compiled.map_err(|failure| match failure {
            Failure::Overdue => {
                self.overdue = true;
                reject::query_compiled_too_long(&canister_id, self.seconds_max())
            }
            Failure::Trouble(reason) => {
                let what = "a module of a canister cannot be compiled";
                tracing::warn!(canister = %canister_id, reason, "{what}");
                reject::not_compiled(&canister_id, &reason)
            }
            Failure::Fatal(error) => {
                tracing::error!(%error, "query cannot run");
                reject::node_cannot_execute(&canister_id, &error)
            }
        })
    }

    /// One attempt at an execution. The inner error is a fault of this machine, the outer one ends
    /// the query.
    fn attempt(
        &mut self,
        request: &Request,
        canister_id: CanisterId,
    ) -> Result<Result<Outcome, WorkerTrouble>, Reject> {
        for _ in 0..COMPILATIONS_MAX {
            if Instant::now() >= self.deadline {
                return Err(self.ended_by_deadline());
            }
            let lane = Lane::Query(self.lane);
            match self.core.sandbox.execute_until(lane, request, self.deadline) {
                Ok(TimedOutcome::Ended(outcome)) => return Ok(Ok(*outcome)),
                Ok(TimedOutcome::Overdue) => return Err(self.ended_by_deadline()),
                Ok(TimedOutcome::Unprepared) => self.compile(request.module, canister_id)?,
                Err(trouble) => return Ok(Err(trouble)),
            }
        }
        let reason = "its artefact is removed from the cache again and again".to_owned();
        Err(reject::not_compiled(&canister_id, &reason))
    }

    /// Runs code without keeping anything.
    #[expect(
        clippy::too_many_lines,
        reason = "steps of one matter, each on what those before it left"
    )]
    fn execute(
        &mut self,
        canister: &SharedCanister,
        mut invocation: Invocation,
        certificate: Option<Vec<u8>>,
        keep_token: Option<u64>,
    ) -> Result<Outcome, Reject> {
        let Some(execution) = &canister.execution else {
            return Err(reject::no_module(&canister.id));
        };
        if !self.core.was_prepared(&execution.module.hash) {
            self.compile(execution.module.hash, canister.id)?;
        }
        let left = self
            .core
            .limits()
            .execution
            .instructions_per_query
            .saturating_sub(self.instructions)
            .max(1);
        invocation.limits.instructions = invocation.limits.instructions.min(left);
        let limits = invocation.limits;
        let mount = |memory: &Memory| -> Result<Mount, Reject> {
            let layout = match &memory.layout {
                Some(layout) => layout.clone(),
                None => {
                    self.core.pages.layout(memory.id).map_err(|_| reject::no_certified_state())?
                }
            };
            Ok(Mount { layout, wasm_pages: memory.wasm_pages, append: None })
        };
        let request = Request {
            module: execution.module.hash,
            entry: invocation.entry.clone(),
            globals: execution.globals.clone(),
            heap: mount(&execution.heap)?,
            stable: mount(&execution.stable)?,
            context: system_context(
                self.core,
                canister,
                invocation,
                self.state.time(),
                false,
                certificate,
            ),
            limits,
            keep_token,
        };
        // What it reads may be overwritten while it runs, when folding could not wait for it
        // (`PageStore::fold_over_readers`).
        let cut_off = || request.heap.layout.is_cut_off() || request.stable.layout.is_cut_off();
        let gone = || request.heap.layout.is_gone() || request.stable.layout.is_gone();
        let given_up = || reject::query_cut_off(&canister.id, self.core.limits().pages.pin_seconds);
        if cut_off() {
            return Err(given_up());
        }
        let mut attempts = 1;
        let mut executed = self.attempt(&request, canister.id)?;
        if let Err(trouble) = &executed
            && request.keep_token.is_none()
            && !cut_off()
            && !gone()
        {
            // As a rule the worker was killed from outside. A message that kills every worker gets
            // no third.
            tracing::warn!(canister = %canister.id, %trouble, "query has no outcome and is executed again");
            attempts += 1;
            executed = self.attempt(&request, canister.id)?;
        }
        if cut_off() || (executed.is_err() && gone()) {
            // Whatever the result, a trap included.
            if let Some(token) = executed.ok().and_then(|outcome| outcome.keep_token) {
                self.core.sandbox.release(Lane::Query(self.lane), token);
            }
            return Err(given_up());
        }
        self.died |= executed.is_err();
        let outcome = executed.map_err(|trouble| {
            tracing::warn!(canister = %canister.id, %trouble, "query has no outcome");
            reject::query_worker_died(&canister.id, attempts, &trouble.to_string())
        })?;
        self.repeatable &= !outcome.height_read;
        self.instructions =
            self.instructions.saturating_add(outcome.instructions.min(limits.instructions));
        Ok(outcome)
    }
}

fn respond(
    canister: &CanisterState,
    caller: &Principal,
    outcome: Outcome,
) -> Option<Result<Vec<u8>, Reject>> {
    match outcome.result {
        Ok(Response::None) => None,
        Ok(Response::Reply(bytes)) => Some(Ok(bytes)),
        Ok(Response::Reject(message)) => Some(Err(reject::rejected_message(message))),
        Err(trap) => Some(Err(reject::of_trap(canister, caller, trap))),
    }
}

fn find_method(canister: &CanisterState, name: &str) -> Result<(Entry, bool), Reject> {
    let Some(module) = canister.module() else { return Err(reject::no_module(&canister.id)) };
    let listed = |methods: &[String]| methods.iter().any(|method| method == name);
    if listed(&module.info.queries) {
        Ok((Entry::Query(name.to_string()), false))
    } else if listed(&module.info.composite_queries) {
        Ok((Entry::CompositeQuery(name.to_string()), true))
    } else {
        Err(reject::no_method(&canister.id, "query", name))
    }
}
