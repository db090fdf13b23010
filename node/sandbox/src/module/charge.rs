//! Charges for work that an instruction's own price does not cover (docs/internals/metering.md).
//!
//! Where values are moved, the time depends on how many they are. So instrumentation adds charges:
//!
//! - a **call** (direct, indirect, in tail position) is charged [`CALL_WORD`] for each parameter
//!   and result of the callee beyond [`CALL_WORDS_FREE`], before it;
//! - a **meeting point** (the end of an `if`, the end of a block that something branches to, the
//!   beginning of each turn of a loop) is charged [`MEETING_WORD`] for each value beyond
//!   [`MEETING_WORDS_FREE`]: the results of the block or the parameters of the loop, and the locals
//!   that are alive there and assigned within the block or loop. The charge is placed behind the
//!   point, so it is paid whichever branch leads there;
//! - instructions whose price is more than the engine's table can hold ([`flat`]).
//!
//! A charge is a number of `nop` instructions, which generate no code, each with the price [`NOP`].
//! Those of the module itself are left out.
//!
//! A local is alive at a point if its value may be read after it. That is computed for the locals
//! that a function assigns, with one bit for each local and stretch of straight code; the weight of
//! a function (`weight.rs`) bounds their product. Small functions, which assign no more than
//! [`MEETING_WORDS_FREE`] locals, need none of it.

use wasmparser::{
    BlockType, Error, FunctionBody, ImportSectionReader, Operator, TypeRef, TypeSectionReader,
};

/// Units that a `nop` costs.
pub(crate) const NOP: u64 = 8;

/// Units of a call of the runtime before a bulk operation on memory (`bulk.rs`).
pub(super) const REPORT: u64 = 160;

/// Units of each parameter and result of a call beyond the free ones: it is written and read once
/// or twice on either side, in a part of the stack that others may have to bring into the cache.
const CALL_WORD: u64 = 6;

/// Parameters and results of a call that its own price covers: they travel in registers.
const CALL_WORDS_FREE: u64 = 8;

/// Units of each value at a meeting point beyond the free ones.
const MEETING_WORD: u64 = 1;

/// Values at a meeting point that cost nothing: about as many as there are registers.
const MEETING_WORDS_FREE: u64 = 16;

/// Passes after which liveness that still changes is taken to be everywhere. Only loops within
/// loops need many.
const PASSES_MAX: usize = 64;

/// Price of an instruction beyond what the engine's table, whose entries are bytes, holds.
fn flat(operator: &Operator<'_>) -> u64 {
    match operator {
        Operator::MemoryGrow { .. } => 200,
        // A table is moved when it grows.
        Operator::TableGrow { .. } => 1_000,
        _ => 0,
    }
}

/// Parameters and results of functions and types: enough to price calls and blocks.
#[derive(Default)]
pub(super) struct Signatures {
    /// Parameters and results by type.
    types: Vec<(u32, u32)>,
    /// Types by function.
    functions: Vec<u32>,
}

impl Signatures {
    pub(super) fn types(&mut self, section: &TypeSectionReader<'_>) -> Result<(), Error> {
        for ty in section.clone().into_iter_err_on_gc_types() {
            let ty = ty?;
            self.types.push((ty.params().len() as u32, ty.results().len() as u32));
        }
        Ok(())
    }

    pub(super) fn imports(&mut self, section: &ImportSectionReader<'_>) -> Result<(), Error> {
        for import in section.clone().into_imports() {
            if let TypeRef::Func(ty) = import?.ty {
                self.functions.push(ty);
            }
        }
        Ok(())
    }

    pub(super) fn function(&mut self, ty: u32) {
        self.functions.push(ty);
    }

    fn of_type(&self, ty: u32) -> (u64, u64) {
        let (params, results) = self.types.get(ty as usize).copied().unwrap_or_default();
        (params.into(), results.into())
    }

    /// Parameters and results of what is called.
    fn called(&self, operator: &Operator<'_>) -> u64 {
        let ty = match operator {
            Operator::Call { function_index } | Operator::ReturnCall { function_index } => {
                self.functions.get(*function_index as usize).copied()
            }
            Operator::CallIndirect { type_index, .. }
            | Operator::ReturnCallIndirect { type_index, .. } => Some(*type_index),
            _ => None,
        };
        ty.map_or(0, |ty| {
            let (params, results) = self.of_type(ty);
            params + results
        })
    }

    /// Parameters and results of a block.
    fn block(&self, ty: BlockType) -> (u64, u64) {
        match ty {
            BlockType::Empty => (0, 0),
            BlockType::Type(_) => (0, 1),
            BlockType::FuncType(ty) => self.of_type(ty),
        }
    }
}

/// A charge: a number of `nop`s before the instruction of this index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Charge {
    pub(super) before: u32,
    pub(super) nops: u64,
}

/// The charges of a function, in the order of its instructions.
pub(super) fn charges(
    body: &FunctionBody<'_>,
    signatures: &Signatures,
) -> Result<Vec<Charge>, Error> {
    let locals = assigned_locals(body)?;
    let mut flow = Flow::new(signatures, locals);
    let mut reader = body.get_operators_reader()?;
    let mut at = 0;
    while !reader.eof() {
        flow.take(at, &reader.read()?);
        at += 1;
    }
    Ok(flow.finish())
}

/// For each local its number among those that the function assigns, and how many these are. Empty
/// when they are so few that no meeting point is charged for them.
fn assigned_locals(body: &FunctionBody<'_>) -> Result<(Vec<Option<u32>>, u32), Error> {
    let (mut numbers, mut count) = (Vec::new(), 0);
    let mut reader = body.get_operators_reader()?;
    while !reader.eof() {
        if let Operator::LocalSet { local_index } | Operator::LocalTee { local_index } =
            reader.read()?
        {
            let local = local_index as usize;
            if numbers.len() <= local {
                numbers.resize(local + 1, None);
            }
            if let Some(number @ None) = numbers.get_mut(local) {
                *number = Some(count);
                count += 1;
            }
        }
    }
    Ok(if u64::from(count) > MEETING_WORDS_FREE { (numbers, count) } else { (Vec::new(), 0) })
}

/// Sets of locals, one after the other, each of `words` words.
#[derive(Default)]
struct Sets {
    words: usize,
    bits: Vec<u64>,
}

impl Sets {
    fn push(&mut self) {
        self.bits.resize(self.bits.len() + self.words, 0);
    }

    fn get(&self, set: usize) -> &[u64] {
        self.bits.get(set * self.words..(set + 1) * self.words).unwrap_or_default()
    }

    fn get_mut(&mut self, set: usize) -> &mut [u64] {
        self.bits.get_mut(set * self.words..(set + 1) * self.words).unwrap_or_default()
    }

    fn has(&self, set: usize, local: u32) -> bool {
        let word = self.get(set).get((local / 64) as usize);
        word.is_some_and(|word| word & (1 << (local % 64)) != 0)
    }

    fn add(&mut self, set: usize, local: u32) {
        if let Some(word) = self.get_mut(set).get_mut((local / 64) as usize) {
            *word |= 1 << (local % 64);
        }
    }
}

/// A block, loop or `if` that is open.
struct Frame {
    /// The stretch that a branch to it leads to.
    label: usize,
    /// The stretch of the `else` that has not begun.
    otherwise: Option<usize>,
    is_loop: bool,
    /// Something branches to its end, or its two ways meet there.
    meets: bool,
    /// Values that the meeting point moves in addition to locals.
    values: u64,
    /// Instruction before which a loop is charged.
    begins: u32,
    /// Locals assigned within.
    assigned: Vec<u64>,
}

/// A meeting point, to be charged when liveness is known.
struct Meeting {
    before: u32,
    stretch: usize,
    values: u64,
    assigned: Vec<u64>,
}

/// The control flow of a function: stretches of straight code and the ways between them.
struct Flow<'a> {
    signatures: &'a Signatures,
    numbers: Vec<Option<u32>>,
    /// Words of a set of locals.
    words: usize,
    /// By stretch: locals read before they are assigned; at the end, those alive at its beginning.
    alive: Sets,
    /// By stretch: locals assigned.
    assigned: Sets,
    /// By stretch: where it leads.
    next: Vec<Vec<usize>>,
    /// Stretches in the order of their code.
    order: Vec<usize>,
    now: usize,
    /// The one stretch that stands for all code that follows an unconditional branch: nothing leads
    /// to it, so nothing is recorded of it, and code made of such branches takes no memory.
    unreachable: usize,
    frames: Vec<Frame>,
    meetings: Vec<Meeting>,
    charges: Vec<Charge>,
}

impl<'a> Flow<'a> {
    fn new(signatures: &'a Signatures, (numbers, count): (Vec<Option<u32>>, u32)) -> Self {
        let words = (count as usize).div_ceil(64);
        let sets = || Sets { words, bits: Vec::new() };
        let mut flow = Self {
            signatures,
            numbers,
            words,
            alive: sets(),
            assigned: sets(),
            next: Vec::new(),
            order: Vec::new(),
            now: 0,
            unreachable: 0,
            frames: Vec::new(),
            meetings: Vec::new(),
            charges: Vec::new(),
        };
        let end = flow.stretch();
        flow.open(end, (0, 0), 0);
        flow.unreachable = flow.stretch();
        let entry = flow.stretch();
        flow.enter(entry);
        flow
    }

    fn stretch(&mut self) -> usize {
        self.alive.push();
        self.assigned.push();
        self.next.push(Vec::new());
        self.next.len() - 1
    }

    fn enter(&mut self, stretch: usize) {
        self.now = stretch;
        self.order.push(stretch);
    }

    /// A way from here to `stretch`.
    fn lead(&mut self, stretch: usize) {
        if self.now != self.unreachable
            && let Some(next) = self.next.get_mut(self.now)
            && next.last() != Some(&stretch)
        {
            next.push(stretch);
        }
    }

    /// Begins the following part, which is reached from here alone, or not at all.
    fn part(&mut self, is_reached: bool) {
        if !is_reached {
            self.now = self.unreachable;
            return;
        }
        let stretch = self.stretch();
        self.lead(stretch);
        self.enter(stretch);
    }

    fn open(&mut self, label: usize, (params, results): (u64, u64), at: u32) {
        self.frames.push(Frame {
            label,
            otherwise: None,
            is_loop: false,
            meets: false,
            values: params.max(results),
            begins: at + 1,
            assigned: vec![0; self.words],
        });
    }

    fn branch(&mut self, depth: u32) {
        let frame = self.frames.len().checked_sub(depth as usize + 1);
        let Some(frame) = frame.and_then(|at| self.frames.get_mut(at)) else { return };
        frame.meets = true;
        let label = frame.label;
        self.lead(label);
    }

    fn charge(&mut self, before: u32, units: u64) {
        if units >= NOP {
            self.charges.push(Charge { before, nops: units / NOP });
        }
    }

    fn read_local(&mut self, index: u32) {
        if let Some(Some(local)) = self.numbers.get(index as usize).copied()
            && self.now != self.unreachable
            && !self.assigned.has(self.now, local)
        {
            self.alive.add(self.now, local);
        }
    }

    fn assign_local(&mut self, index: u32) {
        let Some(Some(local)) = self.numbers.get(index as usize).copied() else { return };
        if self.now != self.unreachable {
            self.assigned.add(self.now, local);
        }
        if let Some(frame) = self.frames.last_mut()
            && let Some(word) = frame.assigned.get_mut((local / 64) as usize)
        {
            *word |= 1 << (local % 64);
        }
    }

    fn take(&mut self, at: u32, operator: &Operator<'_>) {
        let words = self.signatures.called(operator);
        let call = words.saturating_sub(CALL_WORDS_FREE).saturating_mul(CALL_WORD);
        self.charge(at, call.saturating_add(flat(operator)));
        match operator {
            Operator::LocalGet { local_index } => self.read_local(*local_index),
            Operator::LocalSet { local_index } | Operator::LocalTee { local_index } => {
                self.assign_local(*local_index);
            }
            Operator::Block { blockty } => {
                let (_, results) = self.signatures.block(*blockty);
                let end = self.stretch();
                self.open(end, (0, results), at);
            }
            Operator::Loop { blockty } => {
                let (params, _) = self.signatures.block(*blockty);
                self.part(true);
                self.open(self.now, (params, 0), at);
                if let Some(frame) = self.frames.last_mut() {
                    frame.is_loop = true;
                }
            }
            Operator::If { blockty } => {
                let words = self.signatures.block(*blockty);
                let (end, otherwise) = (self.stretch(), self.stretch());
                self.lead(otherwise);
                self.part(true);
                self.open(end, words, at);
                if let Some(frame) = self.frames.last_mut() {
                    (frame.otherwise, frame.meets) = (Some(otherwise), true);
                }
            }
            Operator::Else => {
                let frame = self.frames.last_mut();
                let Some((label, Some(otherwise))) =
                    frame.map(|frame| (frame.label, frame.otherwise.take()))
                else {
                    return;
                };
                self.lead(label);
                self.enter(otherwise);
            }
            Operator::End => self.end(at),
            Operator::Br { relative_depth } => {
                self.branch(*relative_depth);
                self.part(false);
            }
            Operator::BrIf { relative_depth } => {
                self.branch(*relative_depth);
                self.part(true);
            }
            Operator::BrTable { targets } => {
                let mut depths: Vec<u32> = targets.targets().flatten().collect();
                depths.push(targets.default());
                depths.sort_unstable();
                depths.dedup();
                depths.into_iter().for_each(|depth| self.branch(depth));
                self.part(false);
            }
            Operator::Return
            | Operator::Unreachable
            | Operator::ReturnCall { .. }
            | Operator::ReturnCallIndirect { .. } => self.part(false),
            _ => {}
        }
    }

    fn end(&mut self, at: u32) {
        let Some(frame) = self.frames.pop() else { return };
        if let Some(outer) = self.frames.last_mut() {
            outer.assigned.iter_mut().zip(&frame.assigned).for_each(|(all, more)| *all |= more);
        } else {
            // The end of the function: its caller is charged for the results.
            return;
        }
        let Frame { label, otherwise, is_loop, meets, values, begins, assigned } = frame;
        if !is_loop {
            self.lead(label);
            if let Some(otherwise) = otherwise {
                self.enter(otherwise);
                self.lead(label);
            }
            self.enter(label);
        }
        if meets {
            let before = if is_loop { begins } else { at + 1 };
            self.meetings.push(Meeting { before, stretch: label, values, assigned });
        }
    }

    /// Computes which locals are alive where stretches begin. Returns whether the computation
    /// reached a fixed point.
    fn settle(&mut self) -> bool {
        if self.words == 0 {
            return true;
        }
        let mut after = vec![0_u64; self.words];
        for _ in 0..PASSES_MAX {
            let mut changed = false;
            for stretch in self.order.iter().rev().copied() {
                after.fill(0);
                for next in self.next.get(stretch).into_iter().flatten() {
                    let alive = self.alive.get(*next);
                    after.iter_mut().zip(alive).for_each(|(all, more)| *all |= more);
                }
                let assigned = self.assigned.get(stretch);
                after.iter_mut().zip(assigned).for_each(|(all, less)| *all &= !less);
                for (alive, after) in self.alive.get_mut(stretch).iter_mut().zip(&after) {
                    changed |= after & !*alive != 0;
                    *alive |= after;
                }
            }
            if !changed {
                return true;
            }
        }
        false
    }

    fn finish(mut self) -> Vec<Charge> {
        let is_known = self.settle();
        for meeting in std::mem::take(&mut self.meetings) {
            let alive = self.alive.get(meeting.stretch);
            let locals: u32 = if is_known {
                let both = meeting.assigned.iter().zip(alive).map(|(one, other)| one & other);
                both.map(u64::count_ones).sum()
            } else {
                meeting.assigned.iter().map(|word| word.count_ones()).sum()
            };
            let values = meeting.values.saturating_add(locals.into());
            let units = values.saturating_sub(MEETING_WORDS_FREE).saturating_mul(MEETING_WORD);
            self.charge(meeting.before, units);
        }
        self.charges.sort_by_key(|charge| charge.before);
        self.charges
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fmt::Write;

    use wasmparser::{Parser, Payload};

    use super::*;

    /// Units charged in the first function of a module.
    fn charged(wat: &str) -> Vec<(u32, u64)> {
        let wasm = wat::parse_str(wat).unwrap();
        let mut signatures = Signatures::default();
        for payload in Parser::new(0).parse_all(&wasm) {
            match payload.unwrap() {
                Payload::TypeSection(section) => signatures.types(&section).unwrap(),
                Payload::ImportSection(section) => signatures.imports(&section).unwrap(),
                Payload::FunctionSection(section) => {
                    section.into_iter().for_each(|ty| signatures.function(ty.unwrap()))
                }
                Payload::CodeSectionEntry(body) => {
                    let charges = charges(&body, &signatures).unwrap();
                    return charges.iter().map(|one| (one.before, one.nops * NOP)).collect();
                }
                _ => {}
            }
        }
        panic!("no function")
    }

    fn total(wat: &str) -> u64 {
        charged(wat).iter().map(|(_, units)| units).sum()
    }

    fn i64_types(count: u64) -> String {
        "i64 ".repeat(count as usize)
    }

    // Promise: P14 - Parameters and results of calls are charged.
    #[test]
    fn calls_are_charged_for_parameters_and_results() {
        let call = |results: u64, instruction: &str| {
            let drops = "drop ".repeat(results as usize);
            total(&format!(
                "(module (type $t (func (result {all}))) (table 1 funcref) \
                 (func {instruction} {drops}) (func (type $t) unreachable))",
                all = i64_types(results)
            ))
        };
        for instruction in ["call 1", "i32.const 0 call_indirect (type $t)"] {
            assert_eq!(call(CALL_WORDS_FREE, instruction), 0);
            assert_eq!(
                call(1_000, instruction),
                (1_000 - CALL_WORDS_FREE) * CALL_WORD / NOP * NOP,
                "{instruction}"
            );
        }
        let tail = |instruction: &str| {
            total(&format!(
                "(module (type $t (func (result {all}))) (table 1 funcref) \
                 (func (type $t) {instruction}) (func (type $t) unreachable))",
                all = i64_types(100)
            ))
        };
        assert!(tail("return_call 1") >= 92 * CALL_WORD / NOP * NOP);
        assert!(tail("i32.const 0 return_call_indirect (type $t)") >= 92 * CALL_WORD / NOP * NOP);
    }

    #[test]
    fn code_after_unconditional_branches_takes_no_memory_per_branch() {
        let locals = "(local i64) ".repeat(1_000);
        let sets: String = (0..1_000).map(|n| format!("i64.const 0 local.set {n} ")).collect();
        let module =
            |branch: &str| format!("(module (func {locals} {sets} {}))", branch.repeat(10_000));
        for branch in ["unreachable ", "return "] {
            let wasm = wat::parse_str(module(branch)).unwrap();
            for payload in Parser::new(0).parse_all(&wasm) {
                let Payload::CodeSectionEntry(body) = payload.unwrap() else { continue };
                let signatures = Signatures::default();
                let mut flow = Flow::new(&signatures, assigned_locals(&body).unwrap());
                let mut reader = body.get_operators_reader().unwrap();
                while !reader.eof() {
                    flow.take(0, &reader.read().unwrap());
                }
                assert_eq!(flow.words, 16);
                assert!(flow.next.len() < 10, "{branch}: {} stretches", flow.next.len());
            }
        }
    }

    // Promise: P14 - Values are charged where control flow joins.
    #[test]
    fn values_of_blocks_are_charged_where_ways_meet() {
        let count = 100;
        let module = |body: String| {
            format!(
                "(module (type $t (func (result {all}))) \
                 (type $same (func (param {all}) (result {all}))) \
                 (func (local $c i32) {body}))",
                all = i64_types(count)
            )
        };
        let (values, drops) = ("i64.const 0 ".repeat(100), "drop ".repeat(100));
        let meeting = (count - MEETING_WORDS_FREE) * MEETING_WORD / NOP * NOP;
        let branched = format!("block (type $t) {values} local.get $c br_if 0 end {drops}");
        assert_eq!(total(&module(branched)), meeting);
        let straight = format!("block (type $t) {values} end {drops}");
        assert_eq!(total(&module(straight)), 0, "nothing meets");
        let both = format!("local.get $c if (type $t) {values} else {values} end {drops}");
        assert_eq!(total(&module(both)), meeting);
        let one = format!("{values} local.get $c if (type $same) end {drops}");
        assert_eq!(total(&module(one)), meeting);
        let again = format!("{values} loop (type $same) local.get $c br_if 0 end {drops}");
        assert_eq!(total(&module(again)), meeting);
    }

    /// A function with `locals` locals, of which a loop may assign `assigned`, and `read` are read
    /// afterwards.
    fn looping(locals: u32, assigned: u32, read: u32) -> String {
        let mut body = String::from("loop global.get 0 if ");
        for local in 0..assigned {
            write!(body, "i32.const 1 local.set {local} ").unwrap();
        }
        body += "end global.get 0 br_if 0 end ";
        for local in 0..read {
            write!(body, "local.get {local} drop ").unwrap();
        }
        format!(
            "(module (global (mut i32) (i32.const 0)) (func (local {}) {body}))",
            "i32 ".repeat(locals as usize)
        )
    }

    #[test]
    fn locals_are_charged_where_they_are_alive_and_differ() {
        let meeting = |words: u64| (words - MEETING_WORDS_FREE) * MEETING_WORD / NOP * NOP;
        // At the end of the `if` and at the beginning of each turn.
        assert_eq!(total(&looping(4_000, 4_000, 4_000)), 2 * meeting(4_000));
        assert_eq!(total(&looping(4_000, 4_000, 1_000)), 2 * meeting(1_000), "dead ones are not");
        assert_eq!(total(&looping(4_000, 500, 4_000)), 2 * meeting(500), "nor are equal ones");
        assert_eq!(total(&looping(16, 16, 16)), 0, "few cost nothing");
    }

    #[test]
    fn a_local_that_is_assigned_before_it_is_read_is_not_alive() {
        let mut body = String::from("loop ");
        for local in 0..100 {
            write!(body, "i32.const 1 local.set {local} ").unwrap();
        }
        for local in 0..100 {
            write!(body, "local.get {local} drop ").unwrap();
        }
        body += "br 0 end";
        let locals = "i32 ".repeat(100);
        assert_eq!(total(&format!("(module (func (local {locals}) {body}))")), 0);
    }

    #[test]
    fn liveness_passes_through_loops_within_loops() {
        let mut body = "loop ".repeat(10);
        for local in 0..100 {
            write!(body, "local.get {local} i32.const 1 i32.add local.set {local} ").unwrap();
        }
        body += &"global.get 0 br_if 0 end ".repeat(10);
        let locals = "i32 ".repeat(100);
        let module = |body: &str| {
            format!("(module (global (mut i32) (i32.const 0)) (func (local {locals}) {body}))")
        };
        let one = (100 - MEETING_WORDS_FREE) * MEETING_WORD / NOP * NOP;
        assert_eq!(total(&module(&body)), 10 * one);
    }
}
