//! A sandbox without WebAssembly: "modules" are encoded [`Spec`]s, and the argument of a call is
//! the program it runs. The data of a canister is in its heap, written as real pages through real
//! append targets, so that versions, checkpoints and restarts are exercised as with real code.
//!
//! Deterministic: the outcome depends on the request alone.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};

use ic_principal::Principal;
use pages::{MemoryId, MemoryLayout, PAGE_BYTES, Run, read_pages};
use sandbox::{
    Call, CallbackKind, Changes, CustomSection, Entry, Hooks, Lane, ModuleInfo, Mount, NotPrepared,
    Outcome, Priority, Request, Response, Sandbox, Trap, UploadedModule, WorkerTrouble,
};
use serde::{Deserialize, Serialize};
use state::{Cycles, ErrorCode, Global, ModuleGlobal, ModuleHash, Reject, RejectCode, Time};

/// Something a program does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// Replies with these bytes.
    Reply(Vec<u8>),
    /// Replies with the argument of the callback (the answer to the call).
    ReplyArgument,
    /// Replies with the code and text of the reject.
    ReplyReject,
    /// Replies with everything noted so far.
    ReplyNotes,
    /// Replies with the balance, as text.
    ReplyBalance,
    /// Replies with the data certificate, or nothing.
    ReplyCertificate,
    /// Rejects the call with this text.
    Reject(String),
    /// Traps with this text and error code `IC0503`, as `ic0.trap` does.
    Trap(String),
    /// Kills the worker, as often as the sandbox is configured to.
    Die,
    /// Makes the node panic.
    Panic,
    /// Meets the thread that waits at the sandbox's gate, twice.
    Pause,
    /// Remembers these bytes in the heap.
    Note(Vec<u8>),
    /// Remembers the answer to the call.
    NoteArgument,
    /// Remembers code and text of the reject.
    NoteReject,
    /// Makes a call; notes `call refused` where the call limit, the queue or the balance forbids
    /// it.
    Call(Box<CallOp>),
    /// Takes cycles from the call.
    Accept(Cycles),
    /// Burns this many cycles, or as many as the freezing threshold leaves.
    Burn(Cycles),
    /// Adds this many instructions to those the message used.
    Spend(u64),
    /// Dirties this many stable pages.
    Dirty(u64),
    /// Writes stable pages, by the first page and their number; the seed determines the content, 0
    /// writes zeros.
    Write(u64, u64, u64),
    /// Grows stable memory by this many Wasm pages.
    Grow(u64),
    /// Sets the timer.
    Timer(u64),
    /// Sets certified data.
    Certify(Vec<u8>),
    /// Appends these bytes as a line to the log of the message.
    Print(Vec<u8>),
}

/// A call and what follows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallOp {
    pub callee: Principal,
    pub method: String,
    pub arg: Vec<u8>,
    pub cycles: Cycles,
    pub timeout: Option<u32>,
    pub on_reply: Vec<Op>,
    pub on_reject: Vec<Op>,
    pub on_cleanup: Vec<Op>,
}

impl CallOp {
    pub fn new(callee: Principal, program: &[Op]) -> Self {
        Self {
            callee,
            method: "run".into(),
            arg: encode(program),
            cycles: 0,
            timeout: None,
            on_reply: vec![Op::ReplyArgument],
            on_reject: vec![Op::ReplyReject],
            on_cleanup: vec![],
        }
    }

    pub fn op(self) -> Op {
        Op::Call(Box::new(self))
    }
}

/// A program as an argument.
pub fn encode(program: &[Op]) -> Vec<u8> {
    postcard::to_stdvec(program).unwrap()
}

/// A module: the programs of its entry points, and what preparing it reports.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Spec {
    pub name: String,
    pub init: Vec<Op>,
    pub pre_upgrade: Option<Vec<Op>>,
    pub post_upgrade: Vec<Op>,
    pub heartbeat: Option<Vec<Op>>,
    pub timer: Option<Vec<Op>>,
    pub low_memory: Option<Vec<Op>>,
    pub inspect: Option<bool>,
    pub persistent: bool,
    /// Instructions that compiling it counts.
    pub compile_instructions: u64,
    pub sections: Vec<(bool, String, Vec<u8>)>,
}

const MAGIC: &[u8] = b"\0asm";

impl Spec {
    pub fn wasm(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(postcard::to_stdvec(self).unwrap());
        bytes
    }

    fn read(wasm: &[u8]) -> Option<Self> {
        postcard::from_bytes(wasm.strip_prefix(MAGIC)?).ok()
    }
}

/// Operations after a reply, after a reject, and after a trap in either.
type Callbacks = (Vec<Op>, Vec<Op>, Vec<Op>);

/// Data of a canister in its heap.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Heap {
    notes: Vec<Vec<u8>>,
    callbacks: BTreeMap<u64, Callbacks>,
    next: u64,
}

pub struct ScriptSandbox {
    specs: Mutex<BTreeMap<[u8; 32], Spec>>,
    kept: Mutex<BTreeMap<u64, Heap>>,
    next_token: AtomicU64,
    /// Times a worker still dies.
    pub deaths: AtomicU64,
    /// Times a compilation still lacks resources.
    pub compile_failures: AtomicU64,
    pub executions: AtomicU64,
    /// Modules that were to be prepared.
    pub preparations: AtomicU64,
    /// Where [`Op::Pause`] waits.
    pub gate: Arc<Barrier>,
}

impl Default for ScriptSandbox {
    fn default() -> Self {
        Self {
            specs: Mutex::default(),
            kept: Mutex::default(),
            next_token: AtomicU64::default(),
            deaths: AtomicU64::default(),
            compile_failures: AtomicU64::default(),
            executions: AtomicU64::default(),
            preparations: AtomicU64::default(),
            gate: Arc::new(Barrier::new(2)),
        }
    }
}

impl Sandbox for ScriptSandbox {
    /// Whatever is installed was prepared; asking again costs nothing.
    fn is_prepared(&self, _: &state::ModuleHash) -> bool {
        false
    }

    fn prepare(
        &self,
        hash: &ModuleHash,
        uploaded: &dyn UploadedModule,
        _: Priority,
    ) -> Result<ModuleInfo, NotPrepared> {
        self.preparations.fetch_add(1, Ordering::Relaxed);
        if take_one(&self.compile_failures) {
            return Err(NotPrepared::Trouble("killed".into()));
        }
        let mut wasm = Vec::new();
        uploaded.write_to(&mut wasm).map_err(|error| NotPrepared::Trouble(error.to_string()))?;
        assert_eq!(<[u8; 32]>::from(<sha2::Sha256 as sha2::Digest>::digest(&wasm)), hash.0);
        let spec = Spec::read(&wasm).ok_or_else(|| {
            NotPrepared::Refused(Reject {
                code: RejectCode::CanisterError,
                message: "not a module".into(),
                error_code: ErrorCode(505),
            })
        })?;
        let info = ModuleInfo {
            updates: vec!["run".into()],
            queries: vec!["look".into()],
            composite_queries: vec!["compose".into()],
            hooks: Hooks {
                start: false,
                init: true,
                pre_upgrade: spec.pre_upgrade.is_some(),
                post_upgrade: true,
                inspect_message: spec.inspect.is_some(),
                heartbeat: spec.heartbeat.is_some(),
                global_timer: spec.timer.is_some(),
                on_low_wasm_memory: spec.low_memory.is_some(),
            },
            memory64: false,
            heap_initial_wasm_pages: 1,
            heap_maximum_wasm_pages: None,
            custom_sections: spec
                .sections
                .iter()
                .map(|(public, name, content)| CustomSection {
                    public: *public,
                    name: name.clone(),
                    content: content.clone(),
                })
                .collect(),
            enhanced_orthogonal_persistence: spec.persistent,
            globals: vec![ModuleGlobal { mutable: true, initial: Global::I64(0) }],
            compile_instructions: spec.compile_instructions.max(1_000),
        };
        self.specs.lock().unwrap().insert(hash.0, spec);
        Ok(info)
    }

    fn execute(&self, _lane: Lane, request: &Request) -> Result<Outcome, WorkerTrouble> {
        self.executions.fetch_add(1, Ordering::Relaxed);
        let spec =
            self.specs.lock().unwrap().get(&request.module.0).cloned().expect("prepared before");
        let fresh = matches!(request.entry, Entry::Init | Entry::PostUpgrade { keep_heap: false });
        let heap = match request.keep_token {
            Some(token) => self.kept.lock().unwrap().get(&token).cloned().expect("kept"),
            None if fresh => Heap::default(),
            None => load(&request.heap),
        };
        let mut run = Running::new(request, heap);
        let program = run.program(&spec);
        let ended = run.all(&program, self);
        if run.died {
            return Err(WorkerTrouble::Worker("the worker is gone: killed".into()));
        }
        Ok(match ended {
            Ok(()) => run.finish(self),
            Err(trap) => Outcome {
                instructions: run.instructions,
                work: run.instructions,
                result: Err(trap),
                changes: None,
                accepted: false,
                height_read: true,
                log: run.log,
                query_calls: Vec::new(),
                keep_token: None,
            },
        })
    }

    fn release(&self, _lane: Lane, keep_token: u64) {
        self.kept.lock().unwrap().remove(&keep_token);
    }

    fn forget(&self, _memories: &[MemoryId]) {}
}

impl ScriptSandbox {
    pub fn kept(&self) -> usize {
        self.kept.lock().unwrap().len()
    }
}

fn take_one(counter: &AtomicU64) -> bool {
    counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
}

fn load(mount: &Mount) -> Heap {
    if mount.wasm_pages == 0 { Heap::default() } else { read(&mount.layout) }
}

/// What a canister noted, from its heap (which it must have written once).
pub fn notes(heap: &MemoryLayout) -> Vec<Vec<u8>> {
    read(heap).notes
}

fn read(layout: &MemoryLayout) -> Heap {
    let mut page = vec![0; PAGE_BYTES as usize];
    read_pages(layout, 0, &mut page).unwrap();
    let length = u64::from_le_bytes(page[..8].try_into().unwrap()) as usize;
    if length == 0 {
        return Heap::default();
    }
    let mut bytes = vec![0; (length + 8).next_multiple_of(PAGE_BYTES as usize)];
    read_pages(layout, 0, &mut bytes).unwrap();
    postcard::from_bytes(&bytes[8..8 + length]).unwrap()
}

struct Running<'a> {
    request: &'a Request,
    heap: Heap,
    heap_before: Heap,
    instructions: u64,
    balance: Cycles,
    accepted: Cycles,
    burned: Cycles,
    calls: Vec<Call>,
    response: Response,
    certified: Option<Vec<u8>>,
    timer: Option<Time>,
    stable_pages: u64,
    dirty: u64,
    /// Pages written one by one, and with what.
    written: BTreeMap<u64, u64>,
    log: Vec<serde_bytes::ByteBuf>,
    slots: BTreeMap<Principal, u64>,
    died: bool,
}

impl<'a> Running<'a> {
    fn new(request: &'a Request, heap: Heap) -> Self {
        Self {
            request,
            heap_before: heap.clone(),
            heap,
            instructions: 1_000,
            balance: request.context.balance,
            accepted: 0,
            burned: 0,
            calls: Vec::new(),
            response: Response::None,
            certified: None,
            timer: None,
            stable_pages: request.stable.wasm_pages,
            dirty: 0,
            written: BTreeMap::new(),
            log: Vec::new(),
            slots: request.context.queue_slots_left.clone(),
            died: false,
        }
    }

    fn program(&mut self, spec: &Spec) -> Vec<Op> {
        match &self.request.entry {
            Entry::Init => spec.init.clone(),
            Entry::PreUpgrade => spec.pre_upgrade.clone().unwrap_or_default(),
            Entry::PostUpgrade { .. } => spec.post_upgrade.clone(),
            Entry::Heartbeat => spec.heartbeat.clone().unwrap_or_default(),
            Entry::GlobalTimer => spec.timer.clone().unwrap_or_default(),
            Entry::OnLowWasmMemory => spec.low_memory.clone().unwrap_or_default(),
            Entry::InspectMessage { .. } => vec![],
            Entry::Update(_) | Entry::Query(_) | Entry::CompositeQuery(_) => {
                postcard::from_bytes(&self.request.context.arg)
                    .unwrap_or_else(|_| vec![Op::Trap("bad program".into())])
            }
            Entry::Callback { fun, kind, .. } => {
                let (reply, reject, cleanup) = self.heap.callbacks.remove(fun).unwrap_or_default();
                // Kept for the cleanup, which runs if this traps; it runs on the state of before.
                let _ = cleanup;
                match kind {
                    CallbackKind::Reply => reply,
                    CallbackKind::Reject { .. } => reject,
                }
            }
            Entry::Cleanup { fun, .. } => self.heap.callbacks.remove(fun).unwrap_or_default().2,
        }
    }

    fn trap(&self, code: u16, message: impl Into<String>) -> Trap {
        let reject = Reject {
            code: RejectCode::CanisterError,
            message: message.into(),
            error_code: ErrorCode(code),
        };
        Trap { reject, backtrace: String::new() }
    }

    fn all(&mut self, program: &[Op], sandbox: &ScriptSandbox) -> Result<(), Trap> {
        for op in program {
            self.instructions += 100;
            if self.instructions > self.request.limits.instructions {
                self.instructions = self.request.limits.instructions;
                return Err(self.trap(522, "too many instructions"));
            }
            self.one(op, sandbox)?;
        }
        Ok(())
    }

    fn respond(&mut self, response: Response) -> Result<(), Trap> {
        if self.request.context.already_responded || self.response != Response::None {
            return Err(self.trap(504, "responded already"));
        }
        self.response = response;
        Ok(())
    }

    fn reject_text(&self) -> Vec<u8> {
        match &self.request.entry {
            Entry::Callback { kind: CallbackKind::Reject { code, message }, .. } => {
                format!("{code}: {message}").into_bytes()
            }
            _ => b"no reject".to_vec(),
        }
    }

    #[expect(clippy::too_many_lines, reason = "one story, in order")]
    fn one(&mut self, op: &Op, sandbox: &ScriptSandbox) -> Result<(), Trap> {
        let context = &self.request.context;
        match op {
            Op::Reply(bytes) => self.respond(Response::Reply(bytes.clone()))?,
            Op::ReplyArgument => self.respond(Response::Reply(context.arg.clone()))?,
            Op::ReplyReject => self.respond(Response::Reply(self.reject_text()))?,
            Op::ReplyNotes => {
                let notes = postcard::to_stdvec(&self.heap.notes).unwrap();
                self.respond(Response::Reply(notes))?;
            }
            Op::ReplyBalance => {
                self.respond(Response::Reply(self.balance.to_string().into_bytes()))?
            }
            Op::ReplyCertificate => {
                let certificate = context
                    .data_certificate
                    .as_ref()
                    .map(|bytes| bytes.to_vec())
                    .unwrap_or_default();
                self.respond(Response::Reply(certificate))?;
            }
            Op::Reject(message) => self.respond(Response::Reject(message.clone()))?,
            Op::Trap(message) => {
                self.log.push(serde_bytes::ByteBuf::from(format!("trap: {message}")));
                return Err(self.trap(503, message.clone()));
            }
            Op::Die => {
                if take_one(&sandbox.deaths) {
                    self.died = true;
                    return Err(self.trap(521, "died"));
                }
            }
            Op::Panic => panic!("on purpose"),
            Op::Pause => {
                sandbox.gate.wait();
                sandbox.gate.wait();
            }
            Op::Note(bytes) => self.heap.notes.push(bytes.clone()),
            Op::NoteArgument => self.heap.notes.push(context.arg.clone()),
            Op::NoteReject => self.heap.notes.push(self.reject_text()),
            Op::Call(call) => self.call(call),
            Op::Accept(amount) => {
                let amount = (*amount)
                    .min(context.cycles_available - self.accepted)
                    .min(Cycles::MAX - self.balance);
                self.accepted += amount;
                self.balance += amount;
            }
            Op::Burn(amount) => {
                let liquid = self.balance.saturating_sub(context.freezing_threshold);
                let amount = (*amount).min(liquid).min(Cycles::MAX - self.burned);
                self.burned += amount;
                self.balance -= amount;
            }
            Op::Spend(instructions) => self.instructions += instructions,
            Op::Dirty(pages) => {
                self.dirty += pages;
                if self.dirty * PAGE_BYTES > self.request.limits.stable_dirty_bytes {
                    return Err(self.trap(
                        524,
                        format!("dirtied more than {}", self.request.limits.stable_dirty_bytes),
                    ));
                }
                if self.dirty * PAGE_BYTES > self.stable_pages * 65536 {
                    return Err(self.trap(502, "out of bounds"));
                }
            }
            Op::Write(start, pages, seed) => {
                for page in *start..start + pages {
                    self.written.insert(page, *seed);
                }
                if self.written.len() as u64 * PAGE_BYTES > self.request.limits.stable_dirty_bytes {
                    return Err(self.trap(524, "dirtied too much"));
                }
                if (start + pages) * PAGE_BYTES > self.stable_pages * 65536 {
                    return Err(self.trap(502, "out of bounds"));
                }
            }
            Op::Grow(pages) => {
                if pages * 65536 > context.growable_bytes {
                    return Err(self.trap(507, "out of memory"));
                }
                self.stable_pages += pages;
            }
            Op::Timer(time) => self.timer = Some(Time(*time)),
            Op::Certify(bytes) => self.certified = Some(bytes.clone()),
            Op::Print(bytes) => self.log.push(serde_bytes::ByteBuf::from(bytes.clone())),
        }
        Ok(())
    }

    fn call(&mut self, call: &CallOp) {
        let context = &self.request.context;
        let payload = (call.method.len() + call.arg.len()) as u64;
        let costs = &context.costs;
        let composite =
            matches!(self.request.entry, Entry::CompositeQuery(_)) || !context.replicated;
        let prepaid = if composite {
            0
        } else {
            costs.call_base
                + costs.call_per_byte * Cycles::from(payload)
                + costs.response_reservation
                + costs.callback_execution_reservation
        };
        let liquid = self.balance.saturating_sub(context.freezing_threshold);
        let slots = self.slots.entry(call.callee).or_insert(context.queue_slots);
        if self.calls.len() as u64 >= context.calls_max
            || *slots == 0
            || liquid < call.cycles.saturating_add(prepaid)
        {
            self.heap.notes.push(b"call refused".to_vec());
            return;
        }
        *slots -= 1;
        self.balance -= prepaid + call.cycles;
        let id = self.heap.next;
        self.heap.next += 1;
        self.heap
            .callbacks
            .insert(id, (call.on_reply.clone(), call.on_reject.clone(), call.on_cleanup.clone()));
        self.calls.push(Call {
            callee: call.callee,
            method_name: call.method.clone(),
            arg: call.arg.clone(),
            cycles: call.cycles,
            on_reply: (id, 0),
            on_reject: (id, 0),
            on_cleanup: (!call.on_cleanup.is_empty()).then_some((id, 0)),
            timeout_seconds: call.timeout,
            prepaid,
        });
    }

    #[expect(clippy::too_many_lines, reason = "one story, in order")]
    fn finish(self, sandbox: &ScriptSandbox) -> Outcome {
        let mut outcome = Outcome {
            instructions: self.instructions,
            work: self.instructions,
            result: Ok(self.response),
            changes: None,
            accepted: false,
            height_read: true,
            log: self.log,
            query_calls: Vec::new(),
            keep_token: None,
        };
        if let Entry::InspectMessage { method_name } = &self.request.entry {
            outcome.accepted = method_name != "secret";
            return outcome;
        }
        if !self.request.context.replicated {
            if outcome.result == Ok(Response::None)
                && (!self.calls.is_empty() || self.request.keep_token.is_some())
            {
                let token = self
                    .request
                    .keep_token
                    .unwrap_or_else(|| sandbox.next_token.fetch_add(1, Ordering::Relaxed));
                sandbox.kept.lock().unwrap().insert(token, self.heap);
                outcome.keep_token = Some(token);
                outcome.query_calls = self.calls;
            }
            return outcome;
        }
        let mut changes = Changes {
            globals: vec![Global::I64(self.heap.next as i64)],
            heap_wasm_pages: self.request.heap.wasm_pages.max(1),
            stable_wasm_pages: self.stable_pages,
            heap_runs: Vec::new(),
            stable_runs: Vec::new(),
            balance: self.balance,
            cycles_accepted: self.accepted,
            cycles_burned: self.burned,
            calls: self.calls,
            certified_data: self.certified.map(serde_bytes::ByteBuf::from),
            global_timer: self.timer,
        };
        let fresh =
            matches!(self.request.entry, Entry::Init | Entry::PostUpgrade { keep_heap: false });
        if let Some(target) =
            self.request.heap.append.as_ref().filter(|_| fresh || self.heap != self.heap_before)
        {
            let content = postcard::to_stdvec(&self.heap).unwrap();
            let mut bytes = (content.len() as u64).to_le_bytes().to_vec();
            bytes.extend(content);
            bytes.resize(bytes.len().next_multiple_of(PAGE_BYTES as usize), 0);
            let pages = bytes.len() as u64 / PAGE_BYTES;
            assert!(pages <= target.pages_max);
            changes.heap_wasm_pages = changes.heap_wasm_pages.max(pages.div_ceil(16));
            target.file.write_all_at(&bytes, target.offset_page * PAGE_BYTES).unwrap();
            changes.heap_runs.push(Run {
                start_page: 0,
                pages,
                segment: target.segment,
                offset_page: target.offset_page,
            });
        }
        if let Some(target) = self.request.stable.append.as_ref().filter(|_| self.dirty > 0) {
            assert!(self.dirty <= target.pages_max);
            let page = vec![self.dirty as u8; PAGE_BYTES as usize];
            for number in 0..self.dirty {
                target
                    .file
                    .write_all_at(&page, (target.offset_page + number) * PAGE_BYTES)
                    .unwrap();
            }
            changes.stable_runs.push(Run {
                start_page: 0,
                pages: self.dirty,
                segment: target.segment,
                offset_page: target.offset_page,
            });
        }
        if let Some(target) = self
            .request
            .stable
            .append
            .as_ref()
            .filter(|_| self.dirty == 0 && !self.written.is_empty())
        {
            for (offset, (page, seed)) in (target.offset_page..).zip(&self.written) {
                target.file.write_all_at(&page_of(*page, *seed), offset * PAGE_BYTES).unwrap();
                match changes.stable_runs.last_mut() {
                    Some(run) if run.start_page + run.pages == *page => run.pages += 1,
                    _ => changes.stable_runs.push(Run {
                        start_page: *page,
                        pages: 1,
                        segment: target.segment,
                        offset_page: offset,
                    }),
                }
            }
        }
        outcome.changes = Some(changes);
        outcome
    }
}

/// Content of a page that was written with a seed.
pub fn page_of(page: u64, seed: u64) -> Vec<u8> {
    if seed == 0 {
        return vec![0; PAGE_BYTES as usize];
    }
    let mut word =
        seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ page.wrapping_mul(0xd1b5_4a32_d192_ed03) | 1;
    let mut bytes = Vec::with_capacity(PAGE_BYTES as usize);
    while bytes.len() < PAGE_BYTES as usize {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes
}
