//! Whether an outcome is one an honest worker could give.
//!
//! A worker runs hostile code and may have been taken over, so nothing it says is believed that can be checked against the request: cycles must add up to the last one, memories
//! may only grow within what was granted, runs must lie in the append target, and every collection is within the bound the System API keeps. What cannot be checked here is the
//! content of the canister's own pages and replies, which are the canister's to choose anyway. [`pages::PageStore`] checks runs once more against its index.

use pages::{PAGE_BYTES, Run};

use crate::{Call, Changes, Entry, Global, Mount, Outcome, Request, Response};

const WASM_PAGE_BYTES: u64 = 64 << 10;

/// Longest reject text of a trap.
const TRAP_TEXT_BYTES: usize = 64 << 10;

/// Longest method name.
const METHOD_NAME_BYTES: usize = 20_000;

/// Bytes an outcome may take on the wire, for a request.
pub(super) fn outcome_bytes_max(request: &Request) -> usize {
    // A run is at most four numbers of ten bytes, a global 18 bytes, a call has some hundred bytes besides its payload.
    let pages = (request.limits.heap_dirty_bytes + request.limits.stable_dirty_bytes) / PAGE_BYTES;
    let runs = pages.saturating_mul(40);
    let payloads = request.context.payload_max_bytes.saturating_mul(9);
    let calls = request.context.calls_max.min(100_000).saturating_mul(512);
    let log = request.limits.log_max_bytes.saturating_mul(2);
    usize::try_from([runs, payloads, calls, log, 1 << 20].into_iter().fold(0, u64::saturating_add)).unwrap_or(usize::MAX)
}

/// Checks `outcome` against `request`; the error says what is impossible about it.
pub(super) fn check(request: &Request, outcome: &Outcome, globals_max: usize, keep_as: Option<u64>) -> Result<(), String> {
    let limits = &request.limits;
    let context = &request.context;
    ensure(outcome.instructions <= limits.instructions, "more instructions than granted")?;
    let log_bytes: u64 = outcome.log.iter().map(|line| line.len() as u64).sum();
    ensure(log_bytes <= limits.log_max_bytes, "a log beyond its bound")?;
    ensure(outcome.log.len() as u64 <= limits.log_max_bytes / 16 + 1, "more log lines than fit")?;
    ensure(!outcome.accepted || matches!(request.entry, Entry::InspectMessage { .. }), "a message accepted outside inspection")?;
    match &outcome.result {
        Err(trap) => {
            ensure(!trap.worker_died && trap.reject.message.len() <= TRAP_TEXT_BYTES, "a trap no canister can cause")?;
            ensure(outcome.changes.is_none() && outcome.query_calls.is_empty(), "changes of a message that failed")?;
        }
        Ok(response) => {
            let bytes = match response {
                Response::None => 0,
                Response::Reply(bytes) => bytes.len(),
                Response::Reject(message) => message.len(),
            };
            ensure(bytes as u64 <= context.payload_max_bytes, "a response beyond the largest payload")?;
            ensure(*response == Response::None || (!context.already_responded && may_respond(&request.entry)), "a response nobody waits for")?;
            let keeps = changes_state(&request.entry, context.replicated);
            ensure(outcome.changes.is_some() == keeps, "changes of a query, or none of an update")?;
        }
    }
    let token = request.keep_token.or(keep_as);
    ensure(outcome.keep_token.is_none() || outcome.keep_token == token, "a kept execution that was not asked for")?;
    ensure(outcome.query_calls.is_empty() || outcome.keep_token.is_some(), "calls of a query that is not kept")?;
    for call in &outcome.query_calls {
        ensure(call.cycles == 0 && call.prepaid == 0, "cycles in a call of a query")?;
    }
    calls(request, &outcome.query_calls)?;
    match &outcome.changes {
        Some(changes) => check_changes(request, changes, globals_max),
        None => Ok(()),
    }
}

fn check_changes(request: &Request, changes: &Changes, globals_max: usize) -> Result<(), String> {
    let context = &request.context;
    let same_type = |(one, other): (&Global, &Global)| std::mem::discriminant(one) == std::mem::discriminant(other);
    ensure(changes.globals.len() <= globals_max, "more globals than a module may have")?;
    if !request.globals.is_empty() {
        ensure(changes.globals.len() == request.globals.len(), "another number of globals")?;
        ensure(request.globals.iter().zip(&changes.globals).all(same_type), "globals of other types")?;
    }

    let heap_max = request.limits.heap_max_bytes[0].max(request.limits.heap_max_bytes[1]);
    let heap_growth = grown(&request.heap, changes.heap_wasm_pages, heap_max)?;
    let stable_growth = grown(&request.stable, changes.stable_wasm_pages, request.limits.stable_max_bytes)?;
    ensure(heap_growth.checked_add(stable_growth).is_some_and(|bytes| bytes <= context.growable_bytes), "more growth than granted")?;
    runs(&request.heap, &changes.heap_runs, changes.heap_wasm_pages, request.limits.heap_dirty_bytes)?;
    runs(&request.stable, &changes.stable_runs, changes.stable_wasm_pages, request.limits.stable_dirty_bytes)?;

    calls(request, &changes.calls)?;
    let mut spent = changes.cycles_burned;
    for call in &changes.calls {
        let payload = u128::from((call.method_name.len() + call.arg.len()) as u64);
        let costs = &context.costs;
        let prepaid = costs
            .call_base
            .saturating_add(costs.call_per_byte.saturating_mul(payload))
            .saturating_add(costs.response_reservation)
            .saturating_add(costs.callback_execution_reservation);
        ensure(call.prepaid == prepaid, "a call at another price")?;
        spent = spent.checked_add(call.cycles).and_then(|spent| spent.checked_add(prepaid)).ok_or("cycles beyond all bounds")?;
    }
    ensure(changes.cycles_accepted <= context.cycles_available, "more cycles accepted than offered")?;
    let had = context.balance.checked_add(changes.cycles_accepted);
    ensure(had.is_some() && had == changes.balance.checked_add(spent), "cycles that do not add up")?;
    ensure(spent == 0 || changes.balance >= context.freezing_threshold, "cycles spent that keep the canister from being frozen")?;
    ensure(changes.certified_data.as_ref().is_none_or(|data| data.len() <= 32), "certified data beyond 32 bytes")
}

fn calls(request: &Request, calls: &[Call]) -> Result<(), String> {
    let context = &request.context;
    ensure(calls.len() as u64 <= context.calls_max, "more calls than granted")?;
    for call in calls {
        ensure(call.method_name.len() <= METHOD_NAME_BYTES, "a method name beyond its bound")?;
        ensure((call.method_name.len() + call.arg.len()) as u64 <= context.payload_max_bytes, "a call beyond the largest payload")?;
        ensure(!context.reject_guaranteed_response_calls || !context.replicated || call.timeout_seconds.is_some(), "a guaranteed-response call")?;
    }
    Ok(())
}

fn grown(mount: &Mount, wasm_pages: u64, max_bytes: u64) -> Result<u64, String> {
    let growth = wasm_pages.checked_sub(mount.wasm_pages).and_then(|pages| pages.checked_mul(WASM_PAGE_BYTES)).ok_or("a memory that shrank")?;
    let bytes = wasm_pages.checked_mul(WASM_PAGE_BYTES).ok_or("a memory beyond all bounds")?;
    ensure(growth == 0 || bytes <= max_bytes.min(mount.layout.base_bytes), "a memory beyond its limit")?;
    Ok(growth)
}

fn runs(mount: &Mount, runs: &[Run], wasm_pages: u64, dirty_max: u64) -> Result<(), String> {
    if runs.is_empty() {
        return Ok(());
    }
    let target = mount.append.as_ref().ok_or("pages without a place to append them")?;
    let end_of_memory = wasm_pages * (WASM_PAGE_BYTES / PAGE_BYTES);
    let mut next_page = 0;
    let mut next_offset = target.offset_page;
    for run in runs {
        let end = run.start_page.checked_add(run.pages).filter(|end| run.pages > 0 && *end <= end_of_memory).ok_or("pages outside the memory")?;
        ensure(run.segment == target.segment && run.start_page >= next_page && run.offset_page == next_offset, "pages out of order")?;
        next_page = end;
        next_offset = next_offset.checked_add(run.pages).ok_or("pages beyond all bounds")?;
    }
    let pages = next_offset - target.offset_page;
    ensure(pages <= target.pages_max && pages <= dirty_max.div_ceil(PAGE_BYTES), "more pages than may be dirty")
}

fn may_respond(entry: &Entry) -> bool {
    matches!(entry, Entry::Update(_) | Entry::Query(_) | Entry::CompositeQuery(_) | Entry::Callback { .. })
}

/// Whether an entry that ends well has changes.
fn changes_state(entry: &Entry, replicated: bool) -> bool {
    match entry {
        Entry::Query(_) | Entry::CompositeQuery(_) | Entry::InspectMessage { .. } => false,
        Entry::Callback { .. } | Entry::Cleanup { .. } => replicated,
        _ => true,
    }
}

fn ensure(possible: bool, what: &str) -> Result<(), String> {
    if possible { Ok(()) } else { Err(what.to_owned()) }
}
