//! The functions that stand for bulk operations on memory.
//!
//! Such an operation writes inside the engine, where a write to a page beyond the cap could not be
//! refused. So each is replaced by a call of a function with the same operands, which reports the
//! range to `thimble.will_write` first and then performs the operation.
//!
//! Most copies of real programs are short strings, for which the report would cost more than the
//! copy. From [`SHORT_MIN`] to [`SHORT_MAX`] bytes the function uses ordinary loads and stores
//! instead, which need no report because they are counted like any other store: two accesses of the
//! largest width that fits, one from the beginning and one to the end, overlapping in the middle,
//! both loads before both stores so that overlapping ranges come out right.
//!
//! Bounds: the first access covers at least half the range from its beginning, so the address of
//! the second, at most `width - 1` further, cannot wrap around; it traps exactly when the range
//! ends outside. A trapping operation may have written its first half, which is not observable,
//! since a trap discards the message.
//!
//! The source of a longer copy is read once in each Wasm page, in ascending order, before the
//! engine copies: first touches of pages are charged, several at once where a message touched many
//! places, and the order in which the machine's own copy routine reads depends on its processor.

use wasm_encoder::{BlockType, Function, Instruction as I, MemArg, ValType};

use super::charge::{NOP, REPORT};

/// Shortest and longest ranges that are written with ordinary stores.
const SHORT_MIN: i32 = 4;
const SHORT_MAX: i32 = 31;

/// Bytes of a Wasm page.
const WASM_PAGE: i32 = state::WASM_PAGE_BYTES as i32;

/// Operands of every bulk operation, by local.
const DST: u32 = 0;
const SECOND: u32 = 1;
const LEN: u32 = 2;
/// First local behind the operands.
const TEMPORARY: u32 = 3;

/// A bulk operation that writes to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Bulk {
    /// `memory.copy` within the one memory.
    Copy,
    /// `memory.fill` of the one memory.
    Fill,
    /// `memory.init` from this data segment.
    Init(u32),
}

/// A data segment that instantiation would apply.
pub(super) struct ActiveSegment {
    /// Index among the data segments.
    pub(super) index: u32,
    /// The instruction of the offset expression, encoded.
    pub(super) offset: Vec<u8>,
    /// Length in bytes.
    pub(super) len: u32,
}

/// Generates the functions.
pub(super) struct Guard {
    /// Address type of the memory.
    pub(super) address: ValType,
    /// Index of `thimble.will_write`.
    pub(super) will_write: u32,
}

/// The accesses of one width.
struct Width {
    bytes: i32,
    ty: ValType,
    load: I<'static>,
    store: I<'static>,
}

/// Nothing is known about the alignment, and nothing needs to be.
const ANYWHERE: MemArg = MemArg { offset: 0, align: 0, memory_index: 0 };

/// From wide to narrow; each is good for ranges from its size to just under twice that.
fn widths() -> [Width; 3] {
    let width = |bytes, ty, load, store| Width { bytes, ty, load, store };
    [
        width(16, ValType::V128, I::V128Load(ANYWHERE), I::V128Store(ANYWHERE)),
        width(8, ValType::I64, I::I64Load(ANYWHERE), I::I64Store(ANYWHERE)),
        width(4, ValType::I32, I::I32Load(ANYWHERE), I::I32Store(ANYWHERE)),
    ]
}

impl Guard {
    /// Parameters and body of the function that stands for `bulk`.
    pub(super) fn function(&self, bulk: Bulk) -> (Vec<ValType>, Function) {
        let address = self.address;
        match bulk {
            Bulk::Copy => (vec![address, address, address], self.copy()),
            Bulk::Fill => (vec![address, ValType::I32, address], self.fill()),
            Bulk::Init(data_index) => {
                let mut body = Function::new([]);
                charge(&mut body);
                emit(&mut body, [I::LocalGet(DST), I::LocalGet(LEN)]);
                if address == ValType::I64 {
                    body.instruction(&I::I64ExtendI32U);
                }
                body.instruction(&I::Call(self.will_write));
                operate(&mut body, I::MemoryInit { mem: 0, data_index });
                (vec![address, ValType::I32, ValType::I32], body)
            }
        }
    }

    fn copy(&self) -> Function {
        let widths = widths();
        // A pair of temporaries for each width.
        let mut temporaries: Vec<_> = widths.iter().map(|width| (2, width.ty)).collect();
        temporaries.push((2, self.address));
        let mut body = Function::new(temporaries);
        self.short(&mut body, |body, n, width| {
            let (first, last) = (TEMPORARY + 2 * n, TEMPORARY + 2 * n + 1);
            emit(body, [I::LocalGet(SECOND), width.load.clone(), I::LocalSet(first)]);
            self.last(body, SECOND, width);
            emit(body, [width.load.clone(), I::LocalSet(last)]);
            emit(body, [I::LocalGet(DST), I::LocalGet(first), width.store.clone()]);
            self.last(body, DST, width);
            emit(body, [I::LocalGet(last), width.store.clone()]);
        });
        self.touch_source(&mut body, TEMPORARY + 2 * widths.len() as u32);
        self.report(&mut body);
        operate(&mut body, I::MemoryCopy { src_mem: 0, dst_mem: 0 });
        body
    }

    /// Reads one byte in each Wasm page of the source, and the last one, in ascending order. Uses
    /// two locals from `at` on. A source that ends outside traps here or in the operation.
    fn touch_source(&self, body: &mut Function, at: u32) {
        let (address, left) = (at, at + 1);
        let [add, subtract, less] = self.arithmetic();
        let is_zero = if self.address == ValType::I64 { I::I64Eqz } else { I::I32Eqz };
        let load = I::I32Load8U(ANYWHERE);
        emit(body, [I::LocalGet(SECOND), I::LocalSet(address)]);
        emit(body, [I::LocalGet(LEN), I::LocalSet(left)]);
        emit(body, [I::Block(BlockType::Empty), I::LocalGet(left), is_zero, I::BrIf(0)]);
        body.instruction(&I::Loop(BlockType::Empty));
        emit(body, [I::LocalGet(address), load.clone(), I::Drop]);
        emit(body, [self.constant(WASM_PAGE), I::LocalGet(left), less, I::If(BlockType::Empty)]);
        for (local, operation) in [(address, &add), (left, &subtract)] {
            emit(body, [I::LocalGet(local), self.constant(WASM_PAGE), operation.clone()]);
            body.instruction(&I::LocalSet(local));
        }
        emit(body, [I::Br(1), I::End, I::End]);
        emit(body, [I::LocalGet(address), I::LocalGet(left), add, self.constant(1), subtract]);
        emit(body, [load, I::Drop, I::End]);
    }

    fn fill(&self) -> Function {
        let mut body = Function::new([(1, ValType::V128)]);
        self.short(&mut body, |body, _, width| {
            emit(body, [I::LocalGet(SECOND), I::I8x16Splat, I::LocalSet(TEMPORARY)]);
            let value = |body: &mut Function| {
                body.instruction(&I::LocalGet(TEMPORARY));
                match width.ty {
                    ValType::I64 => body.instruction(&I::I64x2ExtractLane(0)),
                    ValType::I32 => body.instruction(&I::I32x4ExtractLane(0)),
                    _ => body,
                };
            };
            body.instruction(&I::LocalGet(DST));
            value(body);
            body.instruction(&width.store);
            self.last(body, DST, width);
            value(body);
            body.instruction(&width.store);
        });
        self.report(&mut body);
        operate(&mut body, I::MemoryFill(0));
        body
    }

    /// Runs `write` with the width that fits and returns, if the range is short.
    fn short(&self, body: &mut Function, write: impl Fn(&mut Function, u32, &Width)) {
        let [_, subtract, less] = self.arithmetic();
        emit(body, [I::LocalGet(LEN), self.constant(SHORT_MIN), subtract]);
        emit(body, [self.constant(SHORT_MAX - SHORT_MIN + 1), less.clone()]);
        body.instruction(&I::If(BlockType::Empty));
        let widths = widths();
        for (n, width) in widths.iter().enumerate() {
            // The narrowest is left for whatever the others did not take.
            let narrowest = n + 1 == widths.len();
            if !narrowest {
                emit(body, [self.constant(width.bytes - 1), I::LocalGet(LEN), less.clone()]);
                body.instruction(&I::If(BlockType::Empty));
            }
            write(body, n as u32, width);
            body.instruction(&I::Return);
            if !narrowest {
                body.instruction(&I::End);
            }
        }
        body.instruction(&I::End);
    }

    /// Pushes the address of the last access to the range that begins at `local`.
    fn last(&self, body: &mut Function, local: u32, width: &Width) {
        let [add, subtract, _] = self.arithmetic();
        let bytes = self.constant(width.bytes);
        emit(body, [I::LocalGet(local), I::LocalGet(LEN), bytes, subtract, add]);
    }

    fn report(&self, body: &mut Function) {
        charge(body);
        emit(body, [I::LocalGet(DST), I::LocalGet(LEN), I::Call(self.will_write)]);
    }

    /// Addition, subtraction and unsigned "less than" of addresses.
    fn arithmetic(&self) -> [I<'static>; 3] {
        match self.address {
            ValType::I64 => [I::I64Add, I::I64Sub, I::I64LtU],
            _ => [I::I32Add, I::I32Sub, I::I32LtU],
        }
    }

    fn constant(&self, value: i32) -> I<'static> {
        if self.address == ValType::I64 { I::I64Const(value.into()) } else { I::I32Const(value) }
    }

    /// The body that applies `segments`, reporting each.
    pub(super) fn apply(&self, segments: &[ActiveSegment]) -> Function {
        let mut body = Function::new([]);
        for segment in segments {
            let len = segment.len as i32;
            body.raw(segment.offset.iter().copied()).instruction(&match self.address {
                ValType::I64 => I::I64Const(segment.len.into()),
                _ => I::I32Const(len),
            });
            body.instruction(&I::Call(self.will_write)).raw(segment.offset.iter().copied());
            let apply = I::MemoryInit { mem: 0, data_index: segment.index };
            emit(&mut body, [I::I32Const(0), I::I32Const(len), apply]);
        }
        body.instruction(&I::End);
        body
    }
}

/// Charges for the report.
fn charge(body: &mut Function) {
    for _ in 0..REPORT / NOP {
        body.instruction(&I::Nop);
    }
}

/// The operation itself, with its operands, as the end of the body.
fn operate(body: &mut Function, operation: I<'_>) {
    emit(body, [I::LocalGet(DST), I::LocalGet(SECOND), I::LocalGet(LEN), operation, I::End]);
}

fn emit<const N: usize>(body: &mut Function, instructions: [I<'_>; N]) {
    for instruction in &instructions {
        body.instruction(instruction);
    }
}
