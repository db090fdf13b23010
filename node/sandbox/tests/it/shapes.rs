//! Modules made to hurt the compiler, each of a shape that costs it something else and of a size
//! that the caller chooses.
#![allow(clippy::unwrap_used, dead_code, missing_docs, unreachable_pub)]

use wasm_encoder::{
    BlockType, CodeSection, ConstExpr, DataCountSection, DataSection, ElementSection, Elements,
    EntityType, Function, FunctionSection, GlobalSection, GlobalType, ImportSection,
    Instruction as I, MemArg, MemorySection, MemoryType, Module, RefType, TableSection, TableType,
    TypeSection, ValType,
};

/// A family of modules.
pub struct Shape {
    /// The repeated construct.
    pub name: &'static str,
    /// The module of a size.
    pub make: fn(u32) -> Vec<u8>,
}

type Signature = (Vec<ValType>, Vec<ValType>);

/// A module in the making. Type 0 is `() -> ()`.
struct Parts {
    types: Vec<Signature>,
    imports: Vec<(&'static str, u32)>,
    functions: Vec<(u32, Function)>,
    elements: Vec<Vec<u32>>,
    /// Elements of a segment that is laid out before the module runs.
    laid_out: u32,
    data: Vec<Vec<u8>>,
    globals: u32,
    memory64: bool,
    table: u64,
}

impl Parts {
    fn new() -> Self {
        Self {
            types: vec![(vec![], vec![])],
            imports: vec![],
            functions: vec![],
            elements: vec![],
            laid_out: 0,
            data: vec![],
            globals: 1,
            memory64: false,
            table: 1,
        }
    }

    fn finish(self) -> Vec<u8> {
        let mut types = TypeSection::new();
        for (params, results) in &self.types {
            types.ty().function(params.iter().copied(), results.iter().copied());
        }
        let mut imports = ImportSection::new();
        for (name, ty) in &self.imports {
            imports.import("ic0", name, EntityType::Function(*ty));
        }
        let (mut functions, mut code) = (FunctionSection::new(), CodeSection::new());
        for (ty, function) in &self.functions {
            functions.function(*ty);
            code.function(function);
        }
        let mut tables = TableSection::new();
        tables.table(TableType {
            element_type: RefType::FUNCREF,
            minimum: self.table,
            maximum: None,
            table64: false,
            shared: false,
        });
        let mut memories = MemorySection::new();
        memories.memory(MemoryType {
            minimum: 1,
            maximum: None,
            memory64: self.memory64,
            shared: false,
            page_size_log2: None,
        });
        let mut globals = GlobalSection::new();
        for _ in 0..self.globals {
            globals.global(
                GlobalType { val_type: ValType::I32, mutable: true, shared: false },
                &ConstExpr::i32_const(0),
            );
        }
        let mut elements = ElementSection::new();
        for functions in &self.elements {
            elements.passive(Elements::Functions(functions.as_slice().into()));
        }
        if self.laid_out > 0 {
            let functions = vec![0; self.laid_out as usize];
            elements.active(None, &ConstExpr::i32_const(0), Elements::Functions(functions.into()));
        }
        let mut data = DataSection::new();
        for bytes in &self.data {
            data.active(0, &ConstExpr::i32_const(0), bytes.iter().copied());
        }
        let mut module = Module::new();
        module
            .section(&types)
            .section(&imports)
            .section(&functions)
            .section(&tables)
            .section(&memories);
        module.section(&globals).section(&elements);
        if !self.data.is_empty() {
            module.section(&DataCountSection { count: data.len() });
        }
        module.section(&code);
        if !self.data.is_empty() {
            module.section(&data);
        }
        module.finish()
    }
}

fn body(locals: &[(u32, ValType)], write: impl FnOnce(&mut Function)) -> Function {
    let mut function = Function::new(locals.iter().copied());
    write(&mut function);
    function.instruction(&I::End);
    function
}

fn one(function: Function) -> Vec<u8> {
    some([function])
}

fn some(functions: impl IntoIterator<Item = Function>) -> Vec<u8> {
    let mut parts = Parts::new();
    parts.functions = functions.into_iter().map(|function| (0, function)).collect();
    parts.finish()
}

/// One function with `n` times these instructions.
fn repeated(n: u32, operations: &[I<'_>]) -> Function {
    // Parameters of every type to operate on, none of them known to the compiler.
    body(&SCRATCH, |f| {
        for (local, (_, ty)) in SCRATCH.iter().enumerate() {
            let load = match ty {
                ValType::I32 => I::I32Load(arg(0)),
                ValType::I64 => I::I64Load(arg(0)),
                ValType::F32 => I::F32Load(arg(0)),
                ValType::F64 => I::F64Load(arg(0)),
                _ => I::V128Load(arg(0)),
            };
            f.instruction(&I::I32Const(8))
                .instruction(&load)
                .instruction(&I::LocalSet(local as u32));
        }
        for _ in 0..n {
            operations.iter().for_each(|operation| {
                f.instruction(operation);
            });
        }
        for (local, (_, ty)) in SCRATCH.iter().enumerate() {
            let store = match ty {
                ValType::I32 => I::I32Store(arg(0)),
                ValType::I64 => I::I64Store(arg(0)),
                ValType::F32 => I::F32Store(arg(0)),
                ValType::F64 => I::F64Store(arg(0)),
                _ => I::V128Store(arg(0)),
            };
            f.instruction(&I::I32Const(8))
                .instruction(&I::LocalGet(local as u32))
                .instruction(&store);
        }
    })
}

/// Locals of [`repeated`].
const SCRATCH: [(u32, ValType); 5] = [
    (1, ValType::I32),
    (1, ValType::I64),
    (1, ValType::F32),
    (1, ValType::F64),
    (1, ValType::V128),
];

fn arg(align: u32) -> MemArg {
    MemArg { offset: 0, align, memory_index: 0 }
}

/// `n` statements in functions of 50 each.
fn spread(n: u32, operations: &[I<'_>]) -> Vec<u8> {
    some((0..n.div_ceil(50)).map(|_| repeated(50, operations)))
}

fn binary(local: u32, operation: I<'static>) -> [I<'static>; 4] {
    [I::LocalGet(local), I::LocalGet(local), operation, I::LocalSet(local)]
}

fn unary(local: u32, operation: I<'static>) -> [I<'static>; 3] {
    [I::LocalGet(local), operation, I::LocalSet(local)]
}

/// A chain of the operation, one after the other, on one value.
macro_rules! straight {
    ($($name:literal $local:literal $operation:expr;)*) => {
        vec![$(Shape {
            name: $name,
            make: |n| one(body(&SCRATCH, |f| {
                f.instruction(&I::I32Const(8)).instruction(&[
                    I::I32Load(arg(0)), I::I64Load(arg(0)), I::F32Load(arg(0)), I::F64Load(arg(0)), I::V128Load(arg(0)),
                ][$local]);
                for _ in 0..n {
                    f.instruction(&$operation);
                }
                f.instruction(&I::LocalSet($local)).instruction(&I::I32Const(8)).instruction(&I::LocalGet($local));
                f.instruction(&[
                    I::I32Store(arg(0)), I::I64Store(arg(0)), I::F32Store(arg(0)), I::F64Store(arg(0)), I::V128Store(arg(0)),
                ][$local]);
            })),
        },)*]
    };
}

fn signature(n: u32, at: usize) -> Vec<ValType> {
    let words = [ValType::I32, ValType::I64, ValType::F32, ValType::F64];
    (0..at).map(|bit| words[(n >> (bit * 2) & 3) as usize]).collect()
}

fn wide_calls(n: u32, width: usize) -> Vec<u8> {
    let mut parts = Parts::new();
    parts.types.push((vec![ValType::I64; width], vec![ValType::I64; width]));
    parts.functions.push((
        1,
        body(&[], |f| {
            for local in 0..width {
                f.instruction(&I::LocalGet(local as u32));
            }
            for _ in 0..n {
                f.instruction(&I::Call(0));
            }
        }),
    ));
    parts.finish()
}

/// A long chain over many locals whose values all stay alive until the end.
fn pressure(locals: u32, ty: ValType) -> Function {
    let (load, mix, store): (I<'_>, I<'_>, I<'_>) = match ty {
        ValType::I64 => (I::I64Load(arg(3)), I::I64Xor, I::I64Store(arg(3))),
        _ => (I::V128Load(arg(4)), I::V128Xor, I::V128Store(arg(4))),
    };
    body(&[(locals, ty)], |f| {
        for local in 0..locals {
            f.instruction(&I::I32Const(local as i32))
                .instruction(&load)
                .instruction(&I::LocalSet(local));
        }
        for local in 1..locals {
            f.instruction(&I::LocalGet(local))
                .instruction(&I::LocalGet(local - 1))
                .instruction(&mix);
            f.instruction(&I::LocalSet(local));
        }
        for local in 0..locals {
            f.instruction(&I::I32Const(0)).instruction(&I::LocalGet(local)).instruction(&store);
        }
    })
}

/// Every block sets every local on one of two paths, so every block's end joins all of them.
fn joins(locals: u32, blocks: u32) -> Function {
    body(&[(locals, ValType::I32)], |f| {
        for block in 0..blocks {
            f.instruction(&I::GlobalGet(0)).instruction(&I::If(BlockType::Empty));
            for local in 0..locals {
                f.instruction(&I::I32Const(block as i32)).instruction(&I::LocalSet(local));
            }
            f.instruction(&I::End);
        }
        use_all(f, locals);
    })
}

fn use_all(f: &mut Function, locals: u32) {
    for local in 0..locals {
        f.instruction(&I::LocalGet(local)).instruction(&I::GlobalSet(0));
    }
}

fn set_all(f: &mut Function, locals: u32) {
    for local in 0..locals {
        f.instruction(&I::GlobalGet(0)).instruction(&I::LocalSet(local));
    }
}

/// Many locals that live over many small ifs.
fn live_over_ifs(locals: u32, blocks: u32) -> Function {
    body(&[(locals, ValType::I32)], |f| {
        set_all(f, locals);
        for _ in 0..blocks {
            f.instruction(&I::GlobalGet(0))
                .instruction(&I::If(BlockType::Empty))
                .instruction(&I::End);
        }
        use_all(f, locals);
    })
}

/// Many operands that live over many small ifs.
fn stack_over_ifs(values: u32, blocks: u32) -> Function {
    body(&[], |f| {
        for _ in 0..values {
            f.instruction(&I::GlobalGet(0));
        }
        for _ in 0..blocks {
            f.instruction(&I::GlobalGet(0))
                .instruction(&I::If(BlockType::Empty))
                .instruction(&I::End);
        }
        for _ in 0..values {
            f.instruction(&I::GlobalSet(0));
        }
    })
}

/// Locals that change in the innermost of loops within loops.
fn loops(locals: u32, depth: u32) -> Function {
    body(&[(locals, ValType::I32)], |f| {
        set_all(f, locals);
        for _ in 0..depth {
            f.instruction(&I::Loop(BlockType::Empty));
        }
        for local in 0..locals {
            f.instruction(&I::LocalGet(local)).instruction(&I::I32Const(1)).instruction(&I::I32Add);
            f.instruction(&I::LocalSet(local));
        }
        for level in 0..depth {
            f.instruction(&I::GlobalGet(0))
                .instruction(&I::BrIf((depth - level - 1).min(50)))
                .instruction(&I::End);
        }
        use_all(f, locals);
    })
}

/// Loops one after the other, each of which reads and changes every local.
fn loop_row(locals: u32, loops: u32) -> Function {
    body(&[(locals, ValType::I32)], |f| {
        set_all(f, locals);
        for _ in 0..loops {
            f.instruction(&I::Loop(BlockType::Empty));
            f.instruction(&I::GlobalGet(0)).instruction(&I::BrIf(0)).instruction(&I::End);
        }
        use_all(f, locals);
    })
}

/// A branch table to one block, with locals that differ on the way in.
fn table_with_locals(locals: u32, targets: u32) -> Function {
    body(&[(locals, ValType::I32)], |f| {
        set_all(f, locals);
        f.instruction(&I::Block(BlockType::Empty)).instruction(&I::Block(BlockType::Empty));
        f.instruction(&I::GlobalGet(0));
        f.instruction(&I::BrTable((0..targets).map(|n| n % 2).collect::<Vec<_>>().into(), 0));
        f.instruction(&I::End);
        set_all(f, locals);
        f.instruction(&I::End);
        use_all(f, locals);
    })
}

fn branch_table(targets: u32, depth: u32) -> Function {
    body(&[], |f| {
        for _ in 0..depth {
            f.instruction(&I::Block(BlockType::Empty));
        }
        f.instruction(&I::GlobalGet(0));
        f.instruction(&I::BrTable((0..targets).map(|n| n % depth).collect::<Vec<_>>().into(), 0));
        for _ in 0..depth {
            f.instruction(&I::End);
        }
    })
}

/// Conditional branches that carry many values.
fn wide_branches(values: u32, branches: u32) -> Vec<u8> {
    let mut parts = Parts::new();
    parts.types.push((vec![], vec![ValType::I32; values as usize]));
    parts.functions.push((
        0,
        body(&[], |f| {
            f.instruction(&I::Block(BlockType::FunctionType(1)));
            for _ in 0..values {
                f.instruction(&I::GlobalGet(0));
            }
            for _ in 0..branches {
                f.instruction(&I::GlobalGet(0)).instruction(&I::BrIf(0));
            }
            f.instruction(&I::End);
            for _ in 0..values {
                f.instruction(&I::GlobalSet(0));
            }
        }),
    ));
    parts.finish()
}

/// Blocks that take many values and hand them on.
fn wide_blocks(values: u32, blocks: u32, open: fn(BlockType) -> I<'static>) -> Vec<u8> {
    let mut parts = Parts::new();
    let all = vec![ValType::I32; values as usize];
    parts.types.push((all.clone(), all));
    parts.functions.push((
        0,
        body(&[], |f| {
            for _ in 0..values {
                f.instruction(&I::GlobalGet(0));
            }
            for _ in 0..blocks {
                if matches!(open(BlockType::Empty), I::If(_)) {
                    f.instruction(&I::GlobalGet(0));
                }
                f.instruction(&open(BlockType::FunctionType(1))).instruction(&I::End);
            }
            for _ in 0..values {
                f.instruction(&I::GlobalSet(0));
            }
        }),
    ));
    parts.finish()
}

fn nested(open: &I<'_>, depth: u32) -> Function {
    body(&[], |f| {
        for _ in 0..depth {
            if matches!(open, I::If(_)) {
                f.instruction(&I::GlobalGet(0));
            }
            f.instruction(open);
        }
        for _ in 0..depth {
            f.instruction(&I::End);
        }
    })
}

/// Nested blocks, each left by a branch from the middle.
fn left_by_branches(depth: u32) -> Function {
    body(&[], |f| {
        for _ in 0..depth {
            f.instruction(&I::Block(BlockType::Empty));
        }
        for level in 0..depth {
            f.instruction(&I::GlobalGet(0)).instruction(&I::BrIf(level));
        }
        for _ in 0..depth {
            f.instruction(&I::GlobalGet(0)).instruction(&I::GlobalSet(0)).instruction(&I::End);
        }
    })
}

fn memory64(n: u32, operations: &[I<'_>]) -> Vec<u8> {
    let mut parts = Parts::new();
    parts.memory64 = true;
    parts.functions.push((
        0,
        body(&[(1, ValType::I64)], |f| {
            for _ in 0..n {
                operations.iter().for_each(|operation| {
                    f.instruction(operation);
                });
            }
        }),
    ));
    parts.finish()
}

const CALL_INDIRECT: I<'static> = I::CallIndirect { type_index: 0, table_index: 0 };

/// All families of modules that the compile weights are checked against.
#[expect(clippy::too_many_lines, reason = "a table, entry after entry")]
pub fn all() -> Vec<Shape> {
    let mut shapes = straight! {
        "i32.clz chain" 0 I::I32Clz;
        "i32.ctz chain" 0 I::I32Ctz;
        "i32.eqz chain" 0 I::I32Eqz;
        "i32.extend8_s chain" 0 I::I32Extend8S;
        "i64.popcnt chain" 1 I::I64Popcnt;
        "f32.sqrt chain" 2 I::F32Sqrt;
        "f64.sqrt chain" 3 I::F64Sqrt;
        "f64.nearest chain" 3 I::F64Nearest;
        "f64.neg chain" 3 I::F64Neg;
        "i8x16.popcnt chain" 4 I::I8x16Popcnt;
        "i8x16.abs chain" 4 I::I8x16Abs;
        "i64x2.abs chain" 4 I::I64x2Abs;
        "f32x4.sqrt chain" 4 I::F32x4Sqrt;
        "f64x2.ceil chain" 4 I::F64x2Ceil;
        "i32x4.trunc_sat_f32x4_u chain" 4 I::I32x4TruncSatF32x4U;
        "i32x4.trunc_sat_f64x2_u_zero chain" 4 I::I32x4TruncSatF64x2UZero;
        "f32x4.convert_i32x4_u chain" 4 I::F32x4ConvertI32x4U;
        "i32.load chain" 0 I::I32Load(arg(0));
        "memory.grow chain" 0 I::MemoryGrow(0);
    };
    macro_rules! add {
        ($($name:literal $make:expr;)*) => {
            $(shapes.push(Shape { name: $name, make: $make });)*
        };
    }
    add! {
        "i32.add" |n| one(repeated(n, &binary(0, I::I32Add)));
        "i32.rotl" |n| one(repeated(n, &binary(0, I::I32Rotl)));
        "i64.mul" |n| one(repeated(n, &binary(1, I::I64Mul)));
        "i32.div_s" |n| one(repeated(n, &binary(0, I::I32DivS)));
        "i64.rem_s" |n| one(repeated(n, &binary(1, I::I64RemS)));
        "f32.add" |n| one(repeated(n, &binary(2, I::F32Add)));
        "f64.min" |n| one(repeated(n, &binary(3, I::F64Min)));
        "f64.copysign" |n| one(repeated(n, &binary(3, I::F64Copysign)));
        "i64.trunc_f64_u" |n| one(repeated(n, &[I::LocalGet(3), I::I64TruncF64U, I::LocalTee(1), I::F64ConvertI64U, I::LocalSet(3)]));
        "i32.trunc_f32_s" |n| one(repeated(n, &[I::LocalGet(2), I::I32TruncF32S, I::LocalTee(0), I::F32ConvertI32S, I::LocalSet(2)]));
        "i64.trunc_sat_f64_u" |n| one(repeated(n, &[I::LocalGet(3), I::I64TruncSatF64U, I::LocalTee(1), I::F64ConvertI64U, I::LocalSet(3)]));
        "v128.const" |n| one(body(&SCRATCH, |f| for i in 0..n {
            f.instruction(&I::I32Const(8)).instruction(&I::V128Const(i128::from(i) << 70 | i128::from(i) | 1 << 40)).instruction(&I::V128Store(arg(0)));
        }));
        "f64.const" |n| one(body(&SCRATCH, |f| for i in 0..n {
            f.instruction(&I::I32Const(8)).instruction(&I::F64Const((f64::from(i) + 0.1).into())).instruction(&I::F64Store(arg(0)));
        }));
        "i64.const" |n| one(body(&SCRATCH, |f| for i in 0..n {
            f.instruction(&I::I32Const(8)).instruction(&I::I64Const(i64::from(i) << 33 | 1)).instruction(&I::I64Store(arg(0)));
        }));
        "i8x16.shuffle" |n| one(repeated(n, &binary(4, I::I8x16Shuffle([0, 17, 2, 19, 4, 21, 6, 23, 8, 25, 10, 27, 12, 29, 14, 30]))));
        "i8x16.swizzle" |n| one(repeated(n, &binary(4, I::I8x16Swizzle)));
        "i64x2.mul" |n| one(repeated(n, &binary(4, I::I64x2Mul)));
        "f32x4.add" |n| one(repeated(n, &binary(4, I::F32x4Add)));
        "f32x4.min" |n| one(repeated(n, &binary(4, I::F32x4Min)));
        "f64x2.max" |n| one(repeated(n, &binary(4, I::F64x2Max)));
        "f32x4.div" |n| one(repeated(n, &binary(4, I::F32x4Div)));
        "i8x16.shl" |n| one(repeated(n, &[I::LocalGet(4), I::LocalGet(0), I::I8x16Shl, I::LocalSet(4)]));
        "i8x16.shr_s" |n| one(repeated(n, &[I::LocalGet(4), I::LocalGet(0), I::I8x16ShrS, I::LocalSet(4)]));
        "i64x2.shr_s" |n| one(repeated(n, &[I::LocalGet(4), I::LocalGet(0), I::I64x2ShrS, I::LocalSet(4)]));
        "select" |n| one(repeated(n, &[I::LocalGet(1), I::LocalGet(1), I::LocalGet(0), I::Select, I::LocalSet(1)]));
        "select of v128" |n| one(repeated(n, &[I::LocalGet(4), I::LocalGet(4), I::LocalGet(0), I::Select, I::LocalSet(4)]));
        "i32.store" |n| one(repeated(n, &[I::LocalGet(0), I::LocalGet(0), I::I32Store(arg(0))]));
        "i32.store8 at constants" |n| one(body(&[], |f| for i in 0..n {
            f.instruction(&I::I32Const(i as i32)).instruction(&I::GlobalGet(0)).instruction(&I::I32Store8(arg(0)));
        }));
        "loads far away" |n| one(repeated(n, &[I::LocalGet(0), I::I64Load(MemArg { offset: 0xffff_fff0, align: 0, memory_index: 0 }), I::LocalSet(1)]));
        "64-bit loads" |n| memory64(n, &[I::LocalGet(0), I::I64Load(arg(0)), I::LocalSet(0)]);
        "64-bit load chain" |n| memory64(n, &[I::LocalGet(0), I::I64Load(arg(0)), I::I64Load(arg(0)), I::I64Load(arg(0)), I::I64Load(arg(0)), I::I64Load(arg(0)), I::LocalSet(0)]);
        "64-bit stores far away" |n| memory64(n, &[I::LocalGet(0), I::LocalGet(0), I::I64Store(MemArg { offset: 0x7fff_fff0, align: 0, memory_index: 0 })]);
        "64-bit lane stores" |n| memory64(n, &[I::LocalGet(0), I::V128Const(7), I::V128Store8Lane { memarg: arg(0), lane: 3 }]);
        "globals" |n| one(repeated(n, &[I::GlobalGet(0), I::GlobalSet(0)]));
        "drop of a global" |n| one(repeated(n, &[I::GlobalGet(0), I::Drop]));
        "constants dropped" |n| one(repeated(n, &[I::I32Const(1), I::Drop]));
        "nops" |n| one(repeated(n, &[I::Nop]));
        "nops spread" |n| spread(n, &[I::Nop]);
        "i32.add spread" |n| spread(n, &binary(0, I::I32Add));
        "f32.add spread" |n| spread(n, &binary(2, I::F32Add));
        "f32x4.min spread" |n| spread(n, &binary(4, I::F32x4Min));
        "calls" |n| one(repeated(n, &[I::Call(0)]));
        "calls spread" |n| spread(n, &[I::Call(0)]);
        "indirect calls" |n| one(repeated(n, &[I::LocalGet(0), CALL_INDIRECT]));
        "indirect calls spread" |n| spread(n, &[I::LocalGet(0), CALL_INDIRECT]);
        "tail calls" |n| some((0..n).map(|_| body(&[], |f| { f.instruction(&I::ReturnCall(0)); })));
        "table.get" |n| one(repeated(n, &[I::LocalGet(0), I::TableGet(0), I::RefIsNull, I::LocalSet(0)]));
        "table.set" |n| one(repeated(n, &[I::LocalGet(0), I::LocalGet(0), I::TableGet(0), I::TableSet(0)]));
        "table.copy" |n| one(repeated(n, &[I::LocalGet(0), I::LocalGet(0), I::LocalGet(0), I::TableCopy { src_table: 0, dst_table: 0 }]));
        "table.fill" |n| one(repeated(n, &[I::LocalGet(0), I::RefNull(wasm_encoder::HeapType::FUNC), I::LocalGet(0), I::TableFill(0)]));
        "table.grow" |n| one(repeated(n, &[I::RefNull(wasm_encoder::HeapType::FUNC), I::LocalGet(0), I::TableGrow(0), I::LocalSet(0)]));
        "memory.copy" |n| one(repeated(n, &[I::LocalGet(0), I::LocalGet(0), I::LocalGet(0), I::MemoryCopy { src_mem: 0, dst_mem: 0 }]));
        "memory.fill" |n| one(repeated(n, &[I::LocalGet(0), I::LocalGet(0), I::LocalGet(0), I::MemoryFill(0)]));
        "memory.size" |n| one(repeated(n, &[I::MemorySize(0), I::Drop]));
        "operands" |n| one(body(&[], |f| {
            for _ in 0..n { f.instruction(&I::GlobalGet(0)); }
            for _ in 1..n { f.instruction(&I::I32Add); }
            f.instruction(&I::GlobalSet(0));
        }));
        "empty functions" |n| some((0..n).map(|_| body(&[], |_| {})));
        "functions in a table" |n| {
            let mut parts = Parts::new();
            parts.functions = (0..n).map(|_| (0, body(&[], |_| {}))).collect();
            parts.elements = vec![(0..n).collect()];
            parts.finish()
        };
        "functions of different types in a table" |n| {
            let mut parts = Parts::new();
            parts.types.extend((0..n).map(|n| (signature(n, 8), vec![])));
            parts.functions = (0..n).map(|n| (n + 1, body(&[], |_| {}))).collect();
            parts.elements = vec![(0..n).collect()];
            parts.finish()
        };
        "functions of many parameters in a table" |n| {
            let mut parts = Parts::new();
            parts.types.push((vec![ValType::I64; 200], vec![ValType::I64; 200]));
            parts.functions = (0..n).map(|_| (1, body(&[], |f| for local in 0..200 { f.instruction(&I::LocalGet(local)); }))).collect();
            parts.elements = vec![(0..n).collect()];
            parts.finish()
        };
        "functions of 1,000 parameters in a table" |n| {
            let mut parts = Parts::new();
            parts.types.push((vec![ValType::I64; 1_000], vec![]));
            parts.functions = (0..n).map(|_| (1, body(&[], |_| {}))).collect();
            parts.elements = vec![(0..n).collect()];
            parts.finish()
        };
        "functions of 1,000 parameters" |n| {
            let mut parts = Parts::new();
            parts.types.push((vec![ValType::I64; 1_000], vec![]));
            parts.functions = (0..n).map(|_| (1, body(&[], |_| {}))).collect();
            parts.finish()
        };
        "functions of 1,000 results" |n| {
            let mut parts = Parts::new();
            parts.types.push((vec![], vec![ValType::I64; 1_000]));
            parts.functions = (0..n).map(|_| (1, body(&[], |f| for _ in 0..1_000 { f.instruction(&I::I64Const(7)); }))).collect();
            parts.finish()
        };
        "types" |n| {
            let mut parts = Parts::new();
            parts.types.extend((0..n).map(|n| (signature(n, 14), vec![])));
            parts.finish()
        };
        "types of 1,000 parameters" |n| {
            let mut parts = Parts::new();
            parts.types.extend((0..n).map(|n| (signature(n, 8).into_iter().chain(vec![ValType::I64; 900]).collect(), vec![])));
            parts.finish()
        };
        "types called indirectly" |n| {
            let mut parts = Parts::new();
            parts.types.extend((0..n).map(|n| (signature(n, 8), vec![])));
            parts.functions.push((0, body(&[], |f| {
                for ty in 0..n {
                    for word in signature(ty, 8) {
                        f.instruction(&match word {
                            ValType::I32 => I::I32Const(0),
                            ValType::I64 => I::I64Const(0),
                            ValType::F32 => I::F32Const(0.0.into()),
                            _ => I::F64Const(0.0.into()),
                        });
                    }
                    f.instruction(&I::I32Const(0)).instruction(&I::CallIndirect { type_index: ty + 1, table_index: 0 });
                }
            })));
            parts.finish()
        };
        "imports" |n| {
            let mut parts = Parts::new();
            parts.imports = vec![("msg_reply", 0); n as usize];
            parts.finish()
        };
        "globals declared" |n| {
            let mut parts = Parts::new();
            parts.globals = n;
            parts.finish()
        };
        "elements" |n| {
            let mut parts = Parts::new();
            parts.functions.push((0, body(&[], |_| {})));
            parts.elements = vec![vec![0; n as usize]];
            parts.finish()
        };
        "elements laid out" |n| {
            let mut parts = Parts::new();
            parts.functions.push((0, body(&[], |_| {})));
            parts.table = n.into();
            parts.laid_out = n;
            parts.finish()
        };
        "element segments" |n| {
            let mut parts = Parts::new();
            parts.functions.push((0, body(&[], |_| {})));
            parts.elements = vec![vec![0]; n as usize];
            parts.finish()
        };
        "data segments" |n| {
            let mut parts = Parts::new();
            parts.data = vec![vec![7]; n as usize];
            parts.finish()
        };
        "data" |n| {
            let mut parts = Parts::new();
            parts.data = vec![(0..n).map(|n| (n % 251) as u8).collect()];
            parts.finish()
        };
        "locals declared" |n| one(body(&[(n, ValType::V128)], |_| {}));
        "locals declared everywhere" |n| some((0..n).map(|_| body(&[(10_000, ValType::V128)], |_| {})));
        "i64 locals alive" |n| one(pressure(n, ValType::I64));
        "v128 locals alive" |n| one(pressure(n, ValType::V128));
        "i64 locals alive everywhere" |n| some((0..n).map(|_| pressure(200, ValType::I64)));
        "1,000 locals joined" |n| one(joins(1_000, n));
        "100 locals joined" |n| one(joins(100, n));
        "10 locals joined" |n| one(joins(10, n));
        "100 locals over ifs" |n| one(live_over_ifs(100, n));
        "1,000 locals over ifs" |n| one(live_over_ifs(1_000, n));
        "locals over as many ifs" |n| one(live_over_ifs(n, n));
        "operands over as many ifs" |n| one(stack_over_ifs(n, n));
        "100 operands over ifs" |n| one(stack_over_ifs(100, n));
        "10 locals over ifs" |n| one(live_over_ifs(10, n));
        "locals in as many nested loops" |n| one(loops(n, n));
        "10 locals in nested loops" |n| one(loops(10, n));
        "100 locals in nested loops" |n| one(loops(100, n));
        "locals over as many loops" |n| one(loop_row(n, n));
        "10 locals over loops" |n| one(loop_row(10, n));
        "branch table" |n| one(branch_table(n, 2));
        "branch table to many" |n| one(branch_table(n, n));
        "branch tables" |n| some((0..n).map(|_| branch_table(100, 100)));
        "locals over a branch table" |n| one(table_with_locals(n, n));
        "100 locals over a branch table" |n| one(table_with_locals(100, n));
        "branches with values" |n| wide_branches(n, n);
        "branches with 10 values" |n| wide_branches(10, n);
        "blocks with values" |n| wide_blocks(n, n, I::Block);
        "ifs with values" |n| wide_blocks(n, n, I::If);
        "loops with values" |n| wide_blocks(n, n, I::Loop);
        "nested blocks" |n| one(nested(&I::Block(BlockType::Empty), n));
        "nested loops" |n| one(nested(&I::Loop(BlockType::Empty), n));
        "nested ifs" |n| one(nested(&I::If(BlockType::Empty), n));
        "blocks left by branches" |n| one(left_by_branches(n));
        "loops one after the other" |n| one(repeated(n, &[I::Loop(BlockType::Empty), I::End]));
        "ifs one after the other" |n| one(repeated(n, &[I::LocalGet(0), I::If(BlockType::Empty), I::End]));
        "calls with 10 parameters and results" |n| wide_calls(n, 10);
        "calls with 100 parameters and results" |n| wide_calls(n, 100);
        "calls with 1,000 parameters and results" |n| wide_calls(n, 1_000);
        "calls over locals" |n| one(body(&[(n, ValType::I64)], |f| {
            for local in 0..n { f.instruction(&I::I32Const(0)).instruction(&I::I64Load(arg(0))).instruction(&I::LocalSet(local)); }
            for _ in 0..n { f.instruction(&I::Call(0)); }
            for local in 0..n { f.instruction(&I::I32Const(0)).instruction(&I::LocalGet(local)).instruction(&I::I64Store(arg(0))); }
        }));
    }
    shapes
}

/// The largest module of a shape that is accepted, within a sixteenth, and its size; none if the
/// smallest is refused.
pub fn largest(shape: &Shape, limits: &limits::ModuleLimits) -> Option<(u32, Vec<u8>)> {
    let accepted = |n: u32| {
        let wasm = (shape.make)(n);
        let unpacked = sandbox::module::unpack(&wasm, limits).is_ok();
        (unpacked && sandbox::module::validate(&wasm, limits).is_ok()).then_some((n, wasm))
    };
    let mut best = accepted(1)?;
    while let Some(found) = accepted(best.0 * 4) {
        best = found;
        // A shape that no limit stops is as large as it gets.
        if best.0 > 1 << 24 {
            return Some(best);
        }
    }
    let mut refused = best.0 * 4;
    while refused - best.0 > best.0 / 16 + 1 {
        let middle = best.0 + (refused - best.0) / 2;
        match accepted(middle) {
            Some(found) => best = found,
            None => refused = middle,
        }
    }
    Some(best)
}
