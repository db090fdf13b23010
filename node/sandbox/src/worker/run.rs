//! One message in one instance.
//!
//! Every message gets a new store and a new instance of its module over the canister's kept memory;
//! its mutable globals are put in before and read out after. So nothing of an instance outlives a
//! message, and a canister's table or passive segments cannot depend on which worker ran it before.
//!
//! An installation runs in three steps inside one message: the data segments are written, `(start)`
//! runs, then `canister_init` or `canister_post_upgrade`. A message that runs in slices has a stack
//! of its own; the engine yields to [`drive`] at a fixed interval of instructions.

use std::{
    pin::pin,
    sync::{Arc, Mutex},
    task::{Context as Polling, Poll, Waker},
};

use state::Global;
use wasmtime::{
    Engine, Extern, ExternType, Instance, InstancePre, Linker, Module, ModuleExport, Ref,
    ResourceLimiter, Store, Trap, TypedFunc, Val, WasmParams, unix::StoreExt,
};

use super::{AccessRefusal, HeapCell, Stable, backtrace::backtrace, pacer::Pacer};
use crate::{
    Entry, MessageLimits, SystemContext,
    module::{INIT_MEMORY, MEMORY, RUNTIME_MODULE, START, TABLE, global_export},
    system_api::{Context, Failure, Host, SideEffects},
};

/// Elements a table may have; `table.grow` fails beyond. Tables last no longer than a message.
const TABLE_ELEMENTS_MAX: usize = 1_000_000;

/// A module ready to be instantiated.
pub(crate) struct LoadedModule {
    instance: InstancePre<Host>,
    globals: Vec<ModuleExport>,
    /// Width of its addresses.
    pub(crate) memory64: bool,
    /// Whether it has a memory.
    pub(crate) has_memory: bool,
    /// For backtraces.
    added_import: Option<u32>,
    /// Messages whose pages are counted by faults from the beginning, because one was repeated.
    pub(crate) by_faults: u32,
}

impl LoadedModule {
    /// Links `module`; `linkers` for 32-bit and for 64-bit addresses.
    pub(crate) fn new(module: &Module, linkers: &[Linker<Host>; 2]) -> wasmtime::Result<Self> {
        let memory =
            module.exports().find(|export| export.name() == MEMORY).map(|export| export.ty());
        let memory64 = matches!(&memory, Some(ExternType::Memory(memory)) if memory.is_64());
        let mut globals = Vec::new();
        while let Some(global) = module.get_export_index(&global_export(globals.len())) {
            globals.push(global);
        }
        Ok(Self {
            instance: linkers[usize::from(memory64)].instantiate_pre(module)?,
            globals,
            memory64,
            has_memory: memory.is_some(),
            // Only functions are imported.
            added_import: module
                .imports()
                .position(|import| import.module() == RUNTIME_MODULE)
                .map(|index| index as u32),
            by_faults: 0,
        })
    }
}

/// Input of a message.
pub(crate) struct Message {
    pub(crate) entry: Entry,
    pub(crate) globals: Vec<Global>,
    pub(crate) context: SystemContext,
    pub(crate) limits: MessageLimits,
}

/// Result of a message.
pub(crate) struct RunOutput {
    pub(crate) instructions: u64,
    /// For slices and rounds.
    pub(crate) work: u64,
    /// Why it failed, if it did.
    pub(crate) failure: Option<Failure>,
    /// Mutable globals at the end; empty when it failed.
    pub(crate) globals: Vec<Global>,
    /// An update method was asked for and a query method of that name ran.
    pub(crate) query_for_update: bool,
    /// Everything else it did.
    pub(crate) effects: SideEffects,
    /// The result may depend on when its pages were counted: the message, to be run again on what
    /// was there before it with all pages counted by faults. The rest of this is to be ignored.
    pub(crate) repeat: Option<Box<Message>>,
}

/// Runs `message` over the heap that is in place in `heap`, if the module has one, and over
/// `stable`, which is returned with what it wrote.
pub(crate) fn run(
    engine: &Engine,
    module: &LoadedModule,
    message: Message,
    heap: &Arc<HeapCell>,
    stable: Arc<Mutex<Stable>>,
    pacer: Option<&Arc<Pacer>>,
) -> wasmtime::Result<(RunOutput, Arc<Mutex<Stable>>)> {
    let Message { entry, globals: globals_before, context, limits } = message;
    let mut host = Host::new(heap.clone(), stable, context, limits, &entry, module.memory64);
    host.pacer = pacer.cloned();
    host.outgoing = pacer.map(|pacer| pacer.outgoing()).unwrap_or_default();
    let mut store = Store::new(engine, host);
    store.set_fuel(limits.instructions)?;
    store.limiter(|host| host);
    if module.has_memory {
        let cell = heap.clone();
        // SAFETY: the handler is async-signal-safe: `fault` allocates nothing, takes no lock, and
        // calls nothing but `mprotect`, `ioctl` and copies. The kernel passes a valid `siginfo_t`
        // to a handler installed with `SA_SIGINFO`, as wasmtime's is.
        unsafe {
            store.set_signal_handler(move |signal, info, context| {
                signal == libc::SIGSEGV && cell.fault((*info).si_addr() as usize, is_write(context))
            });
        }
    }
    let mut query_for_update = false;
    let entering = enter(&mut store, module, &entry, &globals_before, &mut query_for_update);
    let result = drive(entering, pacer.map(AsRef::as_ref));
    if let Some(text) = pacer.and_then(|pacer| pacer.failed()) {
        return Err(wasmtime::Error::msg(text));
    }
    heap.count_noted();
    let left = store.get_fuel()?;
    let pages = if module.has_memory { heap.take_uncharged() } else { 0 };
    let instructions = (limits.instructions - left.min(limits.instructions)).saturating_add(pages);
    // No other node has to reproduce what runs without a pacer while the kernel notes writes.
    let is_uncertain = (heap.is_watched() || heap.owes()) && instructions >= limits.instructions;
    let repeats = pacer.is_some_and(|pacer| pacer.repeats() || is_uncertain);
    let (mut failure, globals) = match result {
        _ if repeats => (None, Vec::new()),
        Ok(instance) => (None, read_globals(&mut store, module, &instance)?),
        Err(error) => (Some(failure_of(error, &store, module.added_import)?), Vec::new()),
    };
    if instructions > limits.instructions && failure.is_none() {
        failure = Some(Failure::instructions(limits.instructions));
    }
    let instructions = instructions.min(limits.instructions);
    let work = pacer.map_or(instructions, |pacer| pacer.finish(instructions));
    let (stable, effects, context) = store.into_data().finish();
    let repeat =
        repeats.then(|| Box::new(Message { entry, globals: globals_before, context, limits }));
    let output =
        RunOutput { instructions, work, failure, globals, query_for_update, effects, repeat };
    Ok((output, stable))
}

/// Whether a fault is known to be one of writing. Where it is not known, a write to a page that was
/// not touched before faults twice, which counts the same.
///
/// # Safety
///
/// `context` is what the kernel passed to a handler of `SIGSEGV`.
#[cfg(target_arch = "x86_64")]
unsafe fn is_write(context: *const libc::c_void) -> bool {
    // A bit of the error code that the processor pushes.
    const WRITE: i64 = 1 << 1;
    // SAFETY: that is what the kernel passes.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    context.uc_mcontext.gregs[libc::REG_ERR as usize] & WRITE != 0
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn is_write(_context: *const libc::c_void) -> bool {
    false
}

/// Runs to the end, waiting with the pacer where the engine yields.
fn drive<T>(
    running: impl Future<Output = wasmtime::Result<T>>,
    pacer: Option<&Pacer>,
) -> wasmtime::Result<T> {
    let mut running = pin!(running);
    let mut polling = Polling::from_waker(Waker::noop());
    loop {
        match running.as_mut().poll(&mut polling) {
            Poll::Ready(result) => return result,
            Poll::Pending => match pacer {
                Some(pacer) => pacer.stepped().map_err(wasmtime::Error::msg)?,
                None => return Err(wasmtime::Error::msg("the engine yielded unasked")),
            },
        }
    }
}

async fn enter(
    store: &mut Store<Host>,
    module: &LoadedModule,
    entry: &Entry,
    globals: &[Global],
    query_for_update: &mut bool,
) -> wasmtime::Result<Instance> {
    let instance = module.instance.instantiate(&mut *store)?;
    store.data_mut().instantiated = true;
    write_globals(store, module, &instance, globals)?;
    if let Some(step) = store.data().pacer.as_ref().map(|pacer| pacer.step()) {
        // From here on code runs on a stack of its own.
        store.fuel_async_yield_interval(Some(step))?;
    }
    match entry {
        Entry::Init => {
            begin(store, &instance, true).await?;
            call_if_present(store, &instance, "canister_init").await?;
        }
        Entry::PostUpgrade { keep_heap } => {
            begin(store, &instance, !keep_heap).await?;
            call_if_present(store, &instance, "canister_post_upgrade").await?;
        }
        Entry::PreUpgrade => {
            call_if_present(store, &instance, "canister_pre_upgrade").await?;
        }
        Entry::Update(name) => {
            if !call_if_present(store, &instance, &format!("canister_update {name}")).await? {
                *query_for_update = true;
                let host = store.data_mut();
                host.mode = Context::ReplicatedQuery;
                host.enforce_wasm_memory_limit = false;
                if !call_if_present(store, &instance, &format!("canister_query {name}")).await? {
                    return Err(
                        Failure::method_not_found(&format!("update method '{name}'")).into()
                    );
                }
            }
        }
        Entry::Query(name) => {
            if !call_if_present(store, &instance, &format!("canister_query {name}")).await? {
                return Err(Failure::method_not_found(&format!("query method '{name}'")).into());
            }
        }
        Entry::CompositeQuery(name) => {
            let export = format!("canister_composite_query {name}");
            if !call_if_present(store, &instance, &export).await? {
                let what = format!("composite query method '{name}'");
                return Err(Failure::method_not_found(&what).into());
            }
        }
        Entry::Heartbeat => call_hook(store, &instance, "canister_heartbeat").await?,
        Entry::GlobalTimer => call_hook(store, &instance, "canister_global_timer").await?,
        Entry::OnLowWasmMemory => {
            call_hook(store, &instance, "canister_on_low_wasm_memory").await?
        }
        Entry::InspectMessage { .. } => {
            call_hook(store, &instance, "canister_inspect_message").await?
        }
        Entry::Callback { fun, env, .. } | Entry::Cleanup { fun, env, .. } => {
            call_back(store, module, &instance, *fun, *env).await?
        }
    }
    Ok(instance)
}

/// The first steps of an installation: data segments, `(start)`.
async fn begin(
    store: &mut Store<Host>,
    instance: &Instance,
    data_segments: bool,
) -> wasmtime::Result<()> {
    let mode = std::mem::replace(&mut store.data_mut().mode, Context::Start);
    if data_segments {
        call_if_present(store, instance, INIT_MEMORY).await?;
    }
    call_if_present(store, instance, START).await?;
    store.data_mut().mode = mode;
    Ok(())
}

async fn call_if_present(
    store: &mut Store<Host>,
    instance: &Instance,
    name: &str,
) -> wasmtime::Result<bool> {
    match instance.get_func(&mut *store, name) {
        Some(function) => {
            enter_function(&function.typed::<(), ()>(&*store)?, store, ()).await?;
            Ok(true)
        }
        None => Ok(false),
    }
}

async fn call_hook(
    store: &mut Store<Host>,
    instance: &Instance,
    name: &str,
) -> wasmtime::Result<()> {
    match call_if_present(store, instance, name).await? {
        true => Ok(()),
        false => Err(Failure::method_not_found(name).into()),
    }
}

/// Calls a function, on a stack of its own where the message runs in slices.
async fn enter_function<P: WasmParams + Sync>(
    function: &TypedFunc<P, ()>,
    store: &mut Store<Host>,
    arguments: P,
) -> wasmtime::Result<()> {
    match store.data().pacer {
        Some(_) => function.call_async(&mut *store, arguments).await,
        None => function.call(&mut *store, arguments),
    }
}

async fn call_back(
    store: &mut Store<Host>,
    module: &LoadedModule,
    instance: &Instance,
    fun: u64,
    env: u64,
) -> wasmtime::Result<()> {
    let missing =
        |what: &str| Failure::function_not_found(&format!("the callback at index {fun} {what}"));
    let table = instance.get_table(&mut *store, TABLE).ok_or_else(|| missing("needs a table"))?;
    let function = match table.get(&mut *store, fun) {
        Some(Ref::Func(Some(function))) => function,
        Some(_) => return Err(missing("is not a function").into()),
        None => return Err(missing("is outside the table").into()),
    };
    if module.memory64 {
        let function = function
            .typed::<u64, ()>(&*store)
            .map_err(|_| missing("is not of type (i64) -> ()"))?;
        enter_function(&function, store, env).await
    } else {
        let function = function
            .typed::<u32, ()>(&*store)
            .map_err(|_| missing("is not of type (i32) -> ()"))?;
        // What `call_new` took was 32 bits wide.
        enter_function(&function, store, env as u32).await
    }
}

/// Maps an error of the engine to the failure that the canister sees. The texts are fixed in this
/// table, because callers on all nodes must read the same text.
///
/// # Errors
/// If the error is not a trap of WebAssembly: the engine lacked a resource, which is a fault of
/// this machine and ends the worker.
fn failure_of(
    error: wasmtime::Error,
    store: &Store<Host>,
    added_import: Option<u32>,
) -> wasmtime::Result<Failure> {
    let host = store.data();
    if let Some(failure) = error.downcast_ref::<Failure>() {
        return Ok(failure.clone().with_backtrace(|| backtrace(&error, added_import)));
    }
    match host.heap.refused() {
        Some(AccessRefusal::Cap) => return Ok(host.heap_cap()),
        Some(AccessRefusal::Instructions) => {
            return Ok(Failure::instructions(host.limits.instructions));
        }
        None => {}
    }
    let failure = match error.downcast_ref::<Trap>() {
        Some(Trap::OutOfFuel) => Failure::instructions(host.limits.instructions),
        Some(Trap::StackOverflow) => Failure::trapped("stack overflow"),
        Some(Trap::MemoryOutOfBounds) => Failure::trapped("heap out of bounds"),
        Some(Trap::TableOutOfBounds) => Failure::trapped("table out of bounds"),
        Some(Trap::IndirectCallToNull) => Failure::trapped("call to an empty table element"),
        Some(Trap::BadSignature) => {
            Failure::contract("function invocation does not match its signature")
        }
        Some(Trap::IntegerOverflow) => Failure::trapped("integer overflow"),
        Some(Trap::IntegerDivisionByZero) => Failure::trapped("integer division by 0"),
        Some(Trap::BadConversionToInteger) => Failure::trapped("invalid conversion to integer"),
        Some(Trap::UnreachableCodeReached) => Failure::trapped("unreachable"),
        // Of features that no module may use.
        Some(_) => Failure::trapped("trap"),
        None => return Err(error),
    };
    Ok(failure.with_backtrace(|| backtrace(&error, added_import)))
}

fn write_globals(
    store: &mut Store<Host>,
    module: &LoadedModule,
    instance: &Instance,
    globals: &[Global],
) -> wasmtime::Result<()> {
    if globals.is_empty() {
        // A first instantiation, or a module without mutable globals.
        return Ok(());
    }
    if globals.len() != module.globals.len() {
        return Err(Failure::engine(&format!(
            "{} globals for a module with {}",
            globals.len(),
            module.globals.len()
        ))
        .into());
    }
    for (export, value) in module.globals.iter().zip(globals) {
        if let Some(Extern::Global(global)) = instance.get_module_export(&mut *store, export) {
            let value = match *value {
                Global::I32(value) => Val::I32(value),
                Global::I64(value) => Val::I64(value),
                Global::F32(bits) => Val::F32(bits),
                Global::F64(bits) => Val::F64(bits),
                Global::V128(bits) => Val::V128(bits.into()),
            };
            global.set(&mut *store, value)?;
        }
    }
    Ok(())
}

fn read_globals(
    store: &mut Store<Host>,
    module: &LoadedModule,
    instance: &Instance,
) -> wasmtime::Result<Vec<Global>> {
    let mut globals = Vec::with_capacity(module.globals.len());
    for export in &module.globals {
        if let Some(Extern::Global(global)) = instance.get_module_export(&mut *store, export) {
            globals.push(match global.get(&mut *store) {
                Val::I32(value) => Global::I32(value),
                Val::I64(value) => Global::I64(value),
                Val::F32(bits) => Global::F32(bits),
                Val::F64(bits) => Global::F64(bits),
                Val::V128(bits) => Global::V128(bits.as_u128()),
                _ => return Err(wasmtime::Error::msg("a mutable global of a reference type")),
            });
        }
    }
    Ok(globals)
}

impl ResourceLimiter for Host {
    fn memory_growing(
        &mut self,
        _current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let before = self.heap.size_bytes();
        let after = before.max(desired as u64);
        let may = self.heap_may_grow(before, after)?;
        if !may && !self.instantiated {
            return Err(self.heap_cannot_begin(before, after).into());
        }
        Ok(may)
    }

    fn memory_grow_failed(&mut self, _error: wasmtime::Error) -> wasmtime::Result<()> {
        self.heap_did_not_grow();
        Ok(())
    }

    fn table_growing(
        &mut self,
        _current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        Ok(desired <= TABLE_ELEMENTS_MAX)
    }
}
