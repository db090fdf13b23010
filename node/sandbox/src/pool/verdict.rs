//! Whether an honest worker could have produced an outcome. This is the only check of it.
//!
//! A worker runs hostile code and may have been taken over, so nothing it reports is accepted
//! without a check against the request where one is possible. The check takes time in proportion to
//! the outcome (times a logarithm for calls), which no message is charged for. The content of the
//! canister's own pages and replies cannot be checked here, but is the canister's choice anyway.
//! [`pages::PageStore`] checks runs once more against its index.

use std::collections::BTreeMap;

use ic_principal::Principal;
use pages::{PAGE_BYTES, Run};
use state::{CyclesTotal, WASM_PAGE_BYTES};

use crate::{
    BACKTRACE_BYTES_MAX, Call, Changes, Entry, Global, Grant, Mount, Outcome, Progress, Request,
    Response, slices::WORK_PER_INSTRUCTION_MAX,
};

/// Longest reject text of a trap.
const TRAP_TEXT_BYTES: usize = 64 << 10;

/// Longest method name.
const METHOD_NAME_BYTES: usize = 20_000;

/// Bytes an outcome may take on the wire, for a request.
pub(crate) fn outcome_bytes_max(request: &Request) -> usize {
    // A run is at most four numbers of ten bytes, a global 18 bytes, a call has some hundred bytes
    // in addition to its payload.
    let pages = (request.limits.heap_dirty_bytes + request.limits.stable_dirty_bytes) / PAGE_BYTES;
    let runs = pages.saturating_mul(40);
    let payloads = request.context.payload_max_bytes.saturating_mul(9);
    let calls = request.context.calls_max.min(100_000).saturating_mul(512);
    let log = request.limits.log_max_bytes.saturating_mul(2);
    usize::try_from([runs, payloads, calls, log, 1 << 20].into_iter().fold(0, u64::saturating_add))
        .unwrap_or(usize::MAX)
}

/// Checks `outcome` against `request`; the error says what is impossible about it.
pub(crate) fn check(
    request: &Request,
    outcome: &Outcome,
    globals_max: usize,
    keep_as: Option<u64>,
) -> Result<(), String> {
    let limits = &request.limits;
    let context = &request.context;
    ensure(outcome.instructions <= limits.instructions, "more instructions than granted")?;
    check_work(outcome.instructions, outcome.work)?;
    let log_bytes: u64 = outcome.log.iter().map(|line| line.len() as u64).sum();
    ensure(log_bytes <= limits.log_max_bytes, "a log beyond its bound")?;
    ensure(outcome.log.len() as u64 <= limits.log_max_bytes / 16 + 1, "more log lines than fit")?;
    ensure(
        !outcome.accepted || matches!(request.entry, Entry::InspectMessage { .. }),
        "a message accepted outside inspection",
    )?;
    match &outcome.result {
        Err(trap) => {
            ensure(trap.reject.message.len() <= TRAP_TEXT_BYTES, "a trap text beyond its bound")?;
            ensure(trap.backtrace.len() <= BACKTRACE_BYTES_MAX, "a backtrace beyond its bound")?;
            ensure(
                outcome.changes.is_none() && outcome.query_calls.is_empty(),
                "changes of a message that failed",
            )?;
        }
        Ok(response) => {
            let bytes = match response {
                Response::None => 0,
                Response::Reply(bytes) => bytes.len(),
                Response::Reject(message) => message.len(),
            };
            ensure(
                bytes as u64 <= context.payload_max_bytes,
                "a response beyond the largest payload",
            )?;
            ensure(
                *response == Response::None
                    || (!context.already_responded && may_respond(&request.entry)),
                "a response nobody waits for",
            )?;
            let keeps = request.entry.changes_state(context.replicated);
            ensure(outcome.changes.is_some() == keeps, "changes of a query, or none of an update")?;
        }
    }
    let token = request.keep_token.or(keep_as);
    ensure(
        outcome.keep_token.is_none() || outcome.keep_token == token,
        "a kept execution that was not asked for",
    )?;
    ensure(
        outcome.query_calls.is_empty() || outcome.keep_token.is_some(),
        "calls of a query that is not kept",
    )?;
    for call in &outcome.query_calls {
        ensure(call.cycles == 0 && call.prepaid == 0, "cycles in a call of a query")?;
    }
    calls(request, &outcome.query_calls)?;
    match &outcome.changes {
        Some(changes) => check_changes(request, changes, globals_max),
        None => Ok(()),
    }
}

/// Checks that a message may be paused, and there.
pub(crate) fn check_paused(
    request: &Request,
    grant: Option<&Grant>,
    progress: &Progress,
) -> Result<(), String> {
    let grant = grant.ok_or("a pause of a message that runs to its end")?;
    ensure(
        progress.work >= grant.until && progress.instructions < request.limits.instructions,
        "a pause before its time, or beyond the message's instructions",
    )?;
    check_work(progress.instructions, progress.work)?;
    check_growth(request, progress.heap_wasm_pages, progress.stable_wasm_pages).map(|_| ())
}

/// Checks that an instruction counts as much work as one may.
fn check_work(instructions: u64, work: u64) -> Result<(), String> {
    let most = instructions.saturating_mul(WORK_PER_INSTRUCTION_MAX);
    ensure((instructions..=most).contains(&work), "less work than instructions, or too much")
}

/// Bytes that heap and stable memory grew by, which must be what was granted at most.
fn check_growth(
    request: &Request,
    heap_wasm_pages: u64,
    stable_wasm_pages: u64,
) -> Result<(u64, u64), String> {
    let heap_max = request.limits.heap_max_bytes[0].max(request.limits.heap_max_bytes[1]);
    let heap = grown(&request.heap, heap_wasm_pages, heap_max)?;
    let stable = grown(&request.stable, stable_wasm_pages, request.limits.stable_max_bytes)?;
    ensure(
        heap.checked_add(stable).is_some_and(|bytes| bytes <= request.context.growable_bytes),
        "more growth than granted",
    )?;
    Ok((heap, stable))
}

fn check_changes(request: &Request, changes: &Changes, globals_max: usize) -> Result<(), String> {
    let context = &request.context;
    let same_type = |(one, other): (&Global, &Global)| {
        std::mem::discriminant(one) == std::mem::discriminant(other)
    };
    ensure(changes.globals.len() <= globals_max, "more globals than a module may have")?;
    if !request.globals.is_empty() {
        ensure(changes.globals.len() == request.globals.len(), "another number of globals")?;
        ensure(
            request.globals.iter().zip(&changes.globals).all(same_type),
            "globals of other types",
        )?;
    }

    let (heap_growth, stable_growth) =
        check_growth(request, changes.heap_wasm_pages, changes.stable_wasm_pages)?;
    runs(
        &request.heap,
        &changes.heap_runs,
        changes.heap_wasm_pages,
        request.limits.heap_dirty_bytes,
    )?;
    runs(
        &request.stable,
        &changes.stable_runs,
        changes.stable_wasm_pages,
        request.limits.stable_dirty_bytes,
    )?;

    calls(request, &changes.calls)?;
    // One message may take in and send on more than one amount holds: these sums are wider.
    let mut spent = CyclesTotal::from(changes.cycles_burned);
    for call in &changes.calls {
        let prepaid = context.costs.call(call.method_name.len() as u64, call.arg.len() as u64);
        ensure(call.prepaid == prepaid, "a call at another price")?;
        spent += call.cycles;
        spent += prepaid;
    }
    ensure(
        changes.cycles_accepted <= context.cycles_available,
        "more cycles accepted than offered",
    )?;
    let had = CyclesTotal::from(context.balance) + changes.cycles_accepted;
    ensure(had == spent + changes.balance, "cycles that do not add up")?;
    ensure(
        spent == CyclesTotal::ZERO || changes.balance >= context.freezing_threshold,
        "cycles spent that keep the canister from being frozen",
    )?;
    ensure(
        changes.certified_data.as_ref().is_none_or(|data| data.len() <= 32),
        "certified data beyond 32 bytes",
    )?;
    // Without a place to append to, only cycles are kept.
    let is_kept = request.heap.append.is_some() || request.stable.append.is_some();
    ensure(
        is_kept
            || (changes.calls.is_empty()
                && changes.certified_data.is_none()
                && changes.global_timer.is_none()
                && changes.globals == request.globals
                && heap_growth == 0
                && stable_growth == 0),
        "changes of a query that was called as an update",
    )
}

fn calls(request: &Request, calls: &[Call]) -> Result<(), String> {
    let context = &request.context;
    ensure(calls.len() as u64 <= context.calls_max, "more calls than granted")?;
    let may_call = !matches!(
        request.entry,
        Entry::Init | Entry::PreUpgrade | Entry::PostUpgrade { .. } | Entry::InspectMessage { .. }
    );
    ensure(calls.is_empty() || may_call, "calls from where none can be made")?;
    let mut slots_taken: BTreeMap<Principal, u64> = BTreeMap::new();
    for call in calls {
        let taken = slots_taken.entry(call.callee).or_default();
        *taken += 1;
        let slots = context.queue_slots_left.get(&call.callee).unwrap_or(&context.queue_slots);
        ensure(*taken <= *slots, "more calls than the queue has slots")?;
        ensure(call.method_name.len() <= METHOD_NAME_BYTES, "a method name beyond its bound")?;
        ensure(
            (call.method_name.len() + call.arg.len()) as u64 <= context.payload_max_bytes,
            "a call beyond the largest payload",
        )?;
        ensure(
            !context.reject_guaranteed_response_calls
                || !context.replicated
                || call.timeout_seconds.is_some(),
            "a guaranteed-response call",
        )?;
    }
    Ok(())
}

fn grown(mount: &Mount, wasm_pages: u64, max_bytes: u64) -> Result<u64, String> {
    let growth = wasm_pages
        .checked_sub(mount.wasm_pages)
        .and_then(|pages| pages.checked_mul(WASM_PAGE_BYTES))
        .ok_or("a memory that shrank")?;
    let bytes = wasm_pages.checked_mul(WASM_PAGE_BYTES).ok_or("a memory beyond all bounds")?;
    ensure(
        growth == 0 || bytes <= max_bytes.min(mount.layout.base_bytes),
        "a memory beyond its limit",
    )?;
    Ok(growth)
}

fn runs(mount: &Mount, runs: &[Run], wasm_pages: u64, dirty_max: u64) -> Result<(), String> {
    if runs.is_empty() {
        return Ok(());
    }
    let target = mount.append.as_ref().ok_or("pages without a place to append them")?;
    let end_of_memory = wasm_pages * (WASM_PAGE_BYTES / PAGE_BYTES);
    // All of them where pages may be written again, or all of them at the end.
    let first = runs.first().map_or(target.offset_page, |run| run.offset_page);
    let (start_offset, pages_max) = match first < target.offset_page {
        true => (target.free.start, target.free.end - target.free.start),
        false => (target.offset_page, target.pages_max),
    };
    let mut next_page = 0;
    let mut next_offset = start_offset;
    for run in runs {
        let end = run
            .start_page
            .checked_add(run.pages)
            .filter(|end| run.pages > 0 && *end <= end_of_memory)
            .ok_or("pages outside the memory")?;
        ensure(
            run.segment == target.segment
                && run.start_page >= next_page
                && run.offset_page == next_offset,
            "pages out of order",
        )?;
        next_page = end;
        next_offset = next_offset.checked_add(run.pages).ok_or("pages beyond all bounds")?;
    }
    let pages = next_offset - start_offset;
    ensure(
        pages <= pages_max && pages <= dirty_max.div_ceil(PAGE_BYTES),
        "more pages than may be dirty",
    )
}

fn may_respond(entry: &Entry) -> bool {
    matches!(
        entry,
        Entry::Update(_) | Entry::Query(_) | Entry::CompositeQuery(_) | Entry::Callback { .. }
    )
}

fn ensure(possible: bool, what: &str) -> Result<(), String> {
    if possible { Ok(()) } else { Err(what.to_owned()) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use ic_principal::Principal;
    use pages::{AppendTarget, MemoryId, MemoryLayout, PageFile, SegmentId};
    use serde_bytes::ByteBuf;
    use state::{ErrorCode, ModuleHash, Reject, RejectCode, Time};

    use super::*;
    use crate::{CallbackKind, CostTable, MessageLimits, RunState, SystemContext, Trap};

    fn mount(id: u64) -> Mount {
        let file = Arc::new(std::fs::File::open("/dev/null").unwrap());
        let layout = MemoryLayout {
            id: MemoryId(id),
            version: 1,
            epoch: 0,
            base: Arc::new(PageFile::from_file(file.clone())),
            base_bytes: 1 << 30,
            parts: Arc::default(),
            segments: Arc::new([]),
            runs: Arc::new([]),
            pin: Arc::default(),
        };
        let append = AppendTarget {
            id: layout.id,
            segment: SegmentId(3),
            file,
            offset_page: 10,
            pages_max: 100,
            free: 4..7,
        };
        Mount { layout, wasm_pages: 2, append: Some(append) }
    }

    fn request() -> Request {
        Request {
            module: ModuleHash([0; 32]),
            entry: Entry::Update("m".into()),
            globals: vec![Global::I32(1)],
            heap: mount(1),
            stable: mount(2),
            context: SystemContext {
                canister_id: Principal::anonymous(),
                subnet_id: Principal::anonymous(),
                subnet_nodes: 1,
                root_key: Vec::new(),
                time: Time(1),
                canister_version: 1,
                run_state: RunState::Running,
                controllers: Vec::new(),
                env_vars: Vec::new(),
                caller: Principal::anonymous(),
                caller_info: None,
                arg: Vec::new(),
                deadline: Time(0),
                already_responded: false,
                balance: 1_000_000,
                freezing_threshold: 900_000,
                cycles_available: 50,
                cycles_refunded: 0,
                global_timer: Time(0),
                data_certificate: None,
                context_instructions: 0,
                replicated: true,
                growable_bytes: 4 * WASM_PAGE_BYTES,
                wasm_memory_limit: None,
                calls_max: 2,
                queue_slots_left: BTreeMap::new(),
                queue_slots: 10,
                costs: CostTable {
                    call_base: 100,
                    call_per_byte: 1,
                    response_reservation: 10,
                    callback_execution_reservation: 20,
                    create_canister: 0,
                    http_request: [0; 3],
                    signing: [0; 3],
                },
                payload_max_bytes: 1000,
                reject_guaranteed_response_calls: false,
            },
            limits: MessageLimits {
                instructions: 1000,
                stable_dirty_bytes: 10 * PAGE_BYTES,
                stable_accessed_bytes: 10 * PAGE_BYTES,
                heap_dirty_bytes: 10 * PAGE_BYTES,
                heap_max_bytes: [4 * WASM_PAGE_BYTES; 2],
                stable_max_bytes: 5 * WASM_PAGE_BYTES,
                log_max_bytes: 100,
            },
            keep_token: None,
        }
    }

    fn call() -> Call {
        Call {
            callee: Principal::anonymous(),
            method_name: "m".into(),
            arg: vec![0; 4],
            cycles: 7,
            on_reply: (0, 0),
            on_reject: (0, 0),
            on_cleanup: None,
            timeout_seconds: None,
            prepaid: 135,
        }
    }

    fn run(start_page: u64, pages: u64, offset_page: u64) -> Run {
        Run { start_page, pages, segment: SegmentId(3), offset_page }
    }

    fn honest() -> Outcome {
        Outcome {
            instructions: 10,
            work: 80,
            result: Ok(Response::Reply(vec![1])),
            changes: Some(Changes {
                globals: vec![Global::I32(2)],
                heap_wasm_pages: 3,
                stable_wasm_pages: 5,
                heap_runs: vec![run(0, 2, 10), run(40, 8, 12)],
                stable_runs: vec![run(79, 1, 10)],
                balance: 1_000_000 + 50 - 142 - 5,
                cycles_accepted: 50,
                cycles_burned: 5,
                calls: vec![call()],
                certified_data: Some(ByteBuf::from([0; 32])),
                global_timer: None,
            }),
            accepted: false,
            height_read: false,
            log: vec![ByteBuf::from([0; 50])],
            query_calls: Vec::new(),
            keep_token: None,
        }
    }

    #[test]
    fn an_honest_outcome_passes() {
        assert_eq!(check(&request(), &honest(), 10, None), Ok(()));
    }

    #[test]
    fn pages_are_all_where_they_may_be_written_again_or_all_at_the_end() {
        let with = |heap_runs: Vec<Run>| {
            let mut outcome = honest();
            if let Some(changes) = &mut outcome.changes {
                changes.heap_runs = heap_runs;
            }
            check(&request(), &outcome, 10, None)
        };
        assert_eq!(with(vec![run(0, 2, 4), run(40, 1, 6)]), Ok(()));
        assert_eq!(with(vec![run(0, 1, 4)]), Ok(()));
        for wrong in [
            vec![run(0, 2, 4), run(40, 2, 6)],
            vec![run(0, 2, 4), run(40, 1, 10)],
            vec![run(0, 2, 10), run(40, 1, 4)],
            vec![run(0, 1, 5)],
            vec![run(0, 1, 3)],
            vec![run(0, 1, 9)],
        ] {
            assert!(with(wrong.clone()).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn verdict_rejects_every_tampered_change() {
        type Tampering = fn(&mut Changes);
        let lies: &[(&str, Tampering)] = &[
            ("cycles made", |changes| changes.balance += 1),
            ("cycles lost", |changes| changes.balance -= 1),
            ("cycles taken", |changes| {
                changes.cycles_accepted += 1;
                changes.balance += 1;
            }),
            ("cycles overflow", |changes| changes.calls[0].cycles = u128::MAX),
            ("a free call", |changes| {
                changes.calls[0].prepaid = 0;
                changes.balance += 135;
            }),
            ("frozen by spending", |changes| {
                changes.cycles_burned += 200_000;
                changes.balance -= 200_000;
            }),
            ("too many calls", |changes| changes.calls = vec![call(); 3]),
            ("a large call", |changes| changes.calls[0].arg = vec![0; 1000]),
            ("a long name", |changes| changes.calls[0].method_name = "n".repeat(20_001)),
            ("no globals", |changes| changes.globals.clear()),
            ("other globals", |changes| changes.globals = vec![Global::I64(2)]),
            ("a smaller heap", |changes| changes.heap_wasm_pages = 1),
            ("a larger heap", |changes| changes.heap_wasm_pages = 5),
            ("stable beyond its limit", |changes| changes.stable_wasm_pages = 6),
            ("growth beyond what was granted", |changes| changes.heap_wasm_pages = 4),
            ("growth beyond counting", |changes| changes.heap_wasm_pages = u64::MAX),
            ("pages beyond the memory", |changes| changes.heap_runs[1] = run(41, 8, 12)),
            ("pages beyond counting", |changes| changes.heap_runs[1] = run(u64::MAX, 2, 12)),
            ("no pages", |changes| changes.heap_runs[1].pages = 0),
            ("pages twice", |changes| changes.heap_runs[1] = run(1, 8, 12)),
            ("a gap in the segment", |changes| changes.heap_runs[1] = run(40, 8, 13)),
            ("another segment", |changes| changes.heap_runs[1].segment = SegmentId(4)),
            ("pages before the target", |changes| changes.stable_runs = vec![run(79, 1, 9)]),
            ("pages beyond the cap", |changes| changes.stable_runs = vec![run(0, 11, 10)]),
            ("certified data", |changes| changes.certified_data = Some(ByteBuf::from([0; 33]))),
        ];
        for (what, lie) in lies {
            let mut outcome = honest();
            lie(outcome.changes.as_mut().unwrap());
            assert!(check(&request(), &outcome, 10, None).is_err(), "{what}");
        }
    }

    #[test]
    fn slots_of_queues_are_counted_per_callee() {
        let callee = |number: u32| Principal::from_slice(&number.to_be_bytes());
        let mut request = request();
        request.context.calls_max = 4096;
        request.context.queue_slots = 2;
        request.context.queue_slots_left.insert(callee(7), 1);
        request.context.balance = 1_000_000_000;
        let outcome = |callees: &[u32]| {
            let call = |number: &u32| Call { callee: callee(*number), ..call() };
            let mut outcome = honest();
            let changes = outcome.changes.as_mut().unwrap();
            changes.calls = callees.iter().map(call).collect();
            changes.balance = 1_000_000_000 + 50 - 142 * callees.len() as u128 - 5;
            outcome
        };
        let all: Vec<u32> = (0..4096).collect();
        assert_eq!(check(&request, &outcome(&all), 10, None), Ok(()));
        assert_eq!(check(&request, &outcome(&[8, 7, 8]), 10, None), Ok(()));
        assert!(check(&request, &outcome(&[8, 8, 8]), 10, None).unwrap_err().contains("slots"));
        assert!(check(&request, &outcome(&[7, 8, 7]), 10, None).unwrap_err().contains("slots"));
    }

    #[test]
    fn a_query_called_as_an_update_keeps_nothing_but_cycles() {
        let mut request = request();
        (request.heap.append, request.stable.append) = (None, None);
        let kept = |change: fn(&mut Changes)| {
            let mut outcome = honest();
            let changes = outcome.changes.as_mut().unwrap();
            changes.globals = vec![Global::I32(1)];
            (changes.heap_wasm_pages, changes.stable_wasm_pages) = (2, 2);
            (changes.heap_runs, changes.stable_runs) = (Vec::new(), Vec::new());
            (changes.calls, changes.certified_data) = (Vec::new(), None);
            changes.balance = 1_000_000 + 50 - 5;
            change(changes);
            outcome
        };
        assert_eq!(check(&request, &kept(|_| {}), 10, None), Ok(()));
        type Tampering = fn(&mut Changes);
        let lies: [(&str, Tampering); 6] = [
            ("a call", |changes| {
                changes.calls = vec![call()];
                changes.balance -= 142;
            }),
            ("certified data", |changes| changes.certified_data = Some(ByteBuf::new())),
            ("a timer", |changes| changes.global_timer = Some(Time(1))),
            ("globals", |changes| changes.globals = vec![Global::I32(2)]),
            ("a larger memory", |changes| changes.heap_wasm_pages = 3),
            ("pages", |changes| changes.heap_runs = vec![run(0, 1, 10)]),
        ];
        for (what, lie) in lies {
            assert!(check(&request, &kept(lie), 10, None).is_err(), "{what}");
        }
    }

    // Promise: P13 - A worker that pauses before its grant is used is killed.
    #[test]
    fn a_pause_comes_when_the_grant_is_used_and_not_before() {
        let name = crate::SlicedName {
            since: state::Height(1),
            canister_id: Principal::anonymous(),
            part: 0,
        };
        let grant = Grant::new(name, 400, 100);
        let paused = |instructions, heap_wasm_pages, stable_wasm_pages| Progress {
            instructions,
            work: instructions,
            heap_wasm_pages,
            stable_wasm_pages,
        };
        assert_eq!(check_paused(&request(), Some(&grant), &paused(400, 3, 5)), Ok(()));
        assert_eq!(check_paused(&request(), Some(&grant), &paused(999, 2, 2)), Ok(()));
        let wide = Progress { instructions: 50, ..paused(400, 2, 2) };
        assert_eq!(check_paused(&request(), Some(&grant), &wide), Ok(()));
        let lies = [
            ("too early", paused(399, 2, 2)),
            ("beyond the message", paused(1_000, 2, 2)),
            ("too much work", Progress { instructions: 19, ..paused(400, 2, 2) }),
            ("too little work", Progress { work: 400, ..paused(500, 2, 2) }),
            ("a smaller heap", paused(400, 1, 2)),
            ("more growth than granted", paused(400, 4, 5)),
            ("growth beyond counting", paused(400, u64::MAX, 2)),
        ];
        for (what, lie) in lies {
            assert!(check_paused(&request(), Some(&grant), &lie).is_err(), "{what}");
        }
        assert!(check_paused(&request(), None, &paused(400, 2, 2)).is_err(), "not in slices");
    }

    #[test]
    fn verdict_rejects_every_other_tampered_outcome() {
        let trap = |bytes| Trap {
            reject: Reject {
                code: RejectCode::CanisterError,
                message: "x".repeat(bytes),
                error_code: ErrorCode(502),
            },
            backtrace: String::new(),
        };
        let traced = |bytes| Trap { backtrace: "x".repeat(bytes), ..trap(10) };
        let failed = |trap| Outcome { changes: None, result: Err(trap), ..honest() };
        assert_eq!(check(&request(), &failed(trap(10)), 10, None), Ok(()));
        let longest = failed(traced(BACKTRACE_BYTES_MAX));
        assert_eq!(check(&request(), &longest, 10, None), Ok(()));
        let lies: Vec<(&str, Outcome)> = vec![
            ("instructions", Outcome { instructions: 1001, work: 1001, ..honest() }),
            ("little work", Outcome { work: 9, ..honest() }),
            ("much work", Outcome { work: 201, ..honest() }),
            ("a long log", Outcome { log: vec![ByteBuf::from([0; 101])], ..honest() }),
            ("many lines", Outcome { log: vec![ByteBuf::new(); 100], ..honest() }),
            ("accepted", Outcome { accepted: true, ..honest() }),
            ("a long reply", Outcome { result: Ok(Response::Reply(vec![0; 1001])), ..honest() }),
            (
                "a long reject",
                Outcome { result: Ok(Response::Reject("x".repeat(1001))), ..honest() },
            ),
            ("no changes", Outcome { changes: None, ..honest() }),
            ("changes of a failure", Outcome { result: Err(trap(10)), ..honest() }),
            ("a long trap", failed(trap(TRAP_TEXT_BYTES + 1))),
            ("a long backtrace", failed(traced(BACKTRACE_BYTES_MAX + 1))),
            ("kept", Outcome { keep_token: Some(1), ..honest() }),
            ("query calls", Outcome { query_calls: vec![call()], ..honest() }),
        ];
        for (what, outcome) in lies {
            assert!(check(&request(), &outcome, 10, None).is_err(), "{what}");
        }
        let mut answered = request();
        answered.context.already_responded = true;
        assert!(check(&answered, &honest(), 10, None).is_err(), "an answer to an answered call");
        let mut timer = request();
        timer.entry = Entry::GlobalTimer;
        assert!(check(&timer, &honest(), 10, None).is_err(), "an answer of a timer");
        let mut query = request();
        query.entry = Entry::Callback { fun: 0, env: 0, kind: CallbackKind::Reply };
        query.context.replicated = false;
        assert!(check(&query, &honest(), 10, None).is_err(), "changes of a query");
        assert!(
            check(&request(), &honest(), 0, None).is_err(),
            "more globals than a module may have"
        );
    }
}
