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
    [
        Width {
            bytes: 16,
            ty: ValType::V128,
            load: I::V128Load(ANYWHERE),
            store: I::V128Store(ANYWHERE),
        },
        Width {
            bytes: 8,
            ty: ValType::I64,
            load: I::I64Load(ANYWHERE),
            store: I::I64Store(ANYWHERE),
        },
        Width {
            bytes: 4,
            ty: ValType::I32,
            load: I::I32Load(ANYWHERE),
            store: I::I32Store(ANYWHERE),
        },
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
                body.instruction(&I::LocalGet(DST)).instruction(&I::LocalGet(LEN));
                if address == ValType::I64 {
                    body.instruction(&I::I64ExtendI32U);
                }
                body.instruction(&I::Call(self.will_write));
                operate(&mut body, &I::MemoryInit { mem: 0, data_index });
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
            body.instruction(&I::LocalGet(SECOND))
                .instruction(&width.load)
                .instruction(&I::LocalSet(first));
            self.last(body, SECOND, width);
            body.instruction(&width.load).instruction(&I::LocalSet(last));
            body.instruction(&I::LocalGet(DST))
                .instruction(&I::LocalGet(first))
                .instruction(&width.store);
            self.last(body, DST, width);
            body.instruction(&I::LocalGet(last)).instruction(&width.store);
        });
        self.touch_source(&mut body, TEMPORARY + 2 * widths.len() as u32);
        self.report(&mut body);
        operate(&mut body, &I::MemoryCopy { src_mem: 0, dst_mem: 0 });
        body
    }

    /// Reads one byte in each Wasm page of the source, and the last one, in ascending order. Uses
    /// two locals from `at` on. A source that ends outside traps here or in the operation.
    fn touch_source(&self, body: &mut Function, at: u32) {
        let (address, left) = (at, at + 1);
        let [subtract, less] = self.arithmetic();
        let is_wide = self.address == ValType::I64;
        let add = if is_wide { I::I64Add } else { I::I32Add };
        let is_zero = if is_wide { I::I64Eqz } else { I::I32Eqz };
        let load = I::I32Load8U(ANYWHERE);
        body.instruction(&I::LocalGet(SECOND))
            .instruction(&I::LocalSet(address))
            .instruction(&I::LocalGet(LEN))
            .instruction(&I::LocalSet(left))
            .instruction(&I::Block(BlockType::Empty))
            .instruction(&I::LocalGet(left))
            .instruction(&is_zero)
            .instruction(&I::BrIf(0))
            .instruction(&I::Loop(BlockType::Empty));
        body.instruction(&I::LocalGet(address)).instruction(&load).instruction(&I::Drop);
        body.instruction(&self.constant(WASM_PAGE))
            .instruction(&I::LocalGet(left))
            .instruction(&less)
            .instruction(&I::If(BlockType::Empty));
        for (local, operation) in [(address, &add), (left, &subtract)] {
            body.instruction(&I::LocalGet(local))
                .instruction(&self.constant(WASM_PAGE))
                .instruction(operation)
                .instruction(&I::LocalSet(local));
        }
        body.instruction(&I::Br(1)).instruction(&I::End).instruction(&I::End);
        body.instruction(&I::LocalGet(address))
            .instruction(&I::LocalGet(left))
            .instruction(&add)
            .instruction(&self.constant(1))
            .instruction(&subtract)
            .instruction(&load)
            .instruction(&I::Drop)
            .instruction(&I::End);
    }

    fn fill(&self) -> Function {
        let mut body = Function::new([(1, ValType::V128)]);
        self.short(&mut body, |body, _, width| {
            body.instruction(&I::LocalGet(SECOND))
                .instruction(&I::I8x16Splat)
                .instruction(&I::LocalSet(TEMPORARY));
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
        operate(&mut body, &I::MemoryFill(0));
        body
    }

    /// Runs `write` with the width that fits and returns, if the range is short.
    fn short(&self, body: &mut Function, write: impl Fn(&mut Function, u32, &Width)) {
        let [subtract, less] = self.arithmetic();
        body.instruction(&I::LocalGet(LEN))
            .instruction(&self.constant(SHORT_MIN))
            .instruction(&subtract);
        body.instruction(&self.constant(SHORT_MAX - SHORT_MIN + 1))
            .instruction(&less)
            .instruction(&I::If(BlockType::Empty));
        let widths = widths();
        for (n, width) in widths.iter().enumerate() {
            // The narrowest is left for whatever the others did not take.
            let narrowest = n + 1 == widths.len();
            if !narrowest {
                body.instruction(&self.constant(width.bytes - 1))
                    .instruction(&I::LocalGet(LEN))
                    .instruction(&less)
                    .instruction(&I::If(BlockType::Empty));
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
        let [subtract, _] = self.arithmetic();
        let add = if self.address == ValType::I64 { I::I64Add } else { I::I32Add };
        body.instruction(&I::LocalGet(local))
            .instruction(&I::LocalGet(LEN))
            .instruction(&self.constant(width.bytes))
            .instruction(&subtract)
            .instruction(&add);
    }

    fn report(&self, body: &mut Function) {
        charge(body);
        body.instruction(&I::LocalGet(DST))
            .instruction(&I::LocalGet(LEN))
            .instruction(&I::Call(self.will_write));
    }

    /// Subtraction and unsigned "less than" of addresses.
    fn arithmetic(&self) -> [I<'static>; 2] {
        if self.address == ValType::I64 { [I::I64Sub, I::I64LtU] } else { [I::I32Sub, I::I32LtU] }
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
            body.instruction(&I::I32Const(0))
                .instruction(&I::I32Const(len))
                .instruction(&I::MemoryInit { mem: 0, data_index: segment.index });
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
fn operate(body: &mut Function, operation: &I<'_>) {
    body.instruction(&I::LocalGet(DST))
        .instruction(&I::LocalGet(SECOND))
        .instruction(&I::LocalGet(LEN))
        .instruction(operation)
        .instruction(&I::End);
}
