//! Modules made to hurt the compiler. Each is refused with a reason or compiled within the caps of a small
//! node, and whichever it is, this process is still there afterwards.
#![allow(clippy::unwrap_used)]

use std::io::{Seek, Write};
use std::path::PathBuf;

use limits::ModuleLimits;
use sandbox::{Caps, CompileError, Compiled, Compiler};
use wasm_encoder::{
    BlockType, CodeSection, ConstExpr, DataSection, ElementSection, Elements, ExportKind, ExportSection,
    Function, FunctionSection, GlobalSection, GlobalType, Instruction as I, MemorySection, MemoryType,
    Module, RefType, TableSection, TableType, TypeSection, ValType,
};

/// Caps of a node of 256 MiB.
const CAPS: Caps = Caps { memory_bytes: 56 << 20, seconds: 60, artefact_bytes: 24 << 20 };

/// Most a module may have on it.
const MODULE_BYTES: u64 = 1_300_000;

fn limits() -> ModuleLimits {
    ModuleLimits {
        wasm_bytes: MODULE_BYTES,
        wasm_uncompressed_bytes: MODULE_BYTES,
        code_section_bytes: MODULE_BYTES,
        functions: 50_000,
        function_bytes: 1 << 20,
        globals: 1_000,
        table_elements: 65_536,
        tables: 4,
        data_segments: 10_000,
        custom_sections: 16,
        custom_sections_bytes: 1 << 20,
        exported_functions: 1_000,
        exported_names_bytes: 20_000,
        heap32_bytes: 4 << 30,
        heap64_bytes: 6 << 30,
        stable_bytes: 8 << 30,
    }
}

fn compile(wasm: &[u8]) -> Result<Compiled, CompileError> {
    let mut uploaded = tempfile::tempfile().unwrap();
    uploaded.write_all(wasm).unwrap();
    uploaded.rewind().unwrap();
    let exe = PathBuf::from(env!("CARGO_BIN_EXE_sandbox-test-host"));
    let compiler = Compiler {
        exe,
        arguments: vec!["sandbox-compile".into()],
        module: limits(),
        caps: CAPS,
        children: sandbox::Children::default(),
    };
    compiler.compile(uploaded, tempfile::tempfile().unwrap())
}

/// A module of functions of one type, with a memory, a table and a mutable global.
fn module(params: &[ValType], results: &[ValType], functions: impl IntoIterator<Item = Function>) -> Vec<u8> {
    let (mut declared, mut code) = (FunctionSection::new(), CodeSection::new());
    for function in functions {
        declared.function(0);
        code.function(&function);
    }
    let mut types = TypeSection::new();
    types.ty().function(params.iter().copied(), results.iter().copied());
    let mut tables = TableSection::new();
    tables.table(TableType {
        element_type: RefType::FUNCREF,
        minimum: 1,
        maximum: None,
        table64: false,
        shared: false,
    });
    let mut memories = MemorySection::new();
    memories.memory(MemoryType {
        minimum: 1,
        maximum: None,
        memory64: false,
        shared: false,
        page_size_log2: None,
    });
    let mut globals = GlobalSection::new();
    globals.global(
        GlobalType { val_type: ValType::I32, mutable: true, shared: false },
        &ConstExpr::i32_const(0),
    );
    let mut module = Module::new();
    module
        .section(&types)
        .section(&declared)
        .section(&tables)
        .section(&memories)
        .section(&globals)
        .section(&code);
    module.finish()
}

fn body(locals: &[(u32, ValType)], write: impl FnOnce(&mut Function)) -> Function {
    let mut function = Function::new(locals.iter().copied());
    write(&mut function);
    function.instruction(&I::End);
    function
}

/// As many copies of `function` as fit into the code section.
fn filled(function: Function) -> Vec<u8> {
    let copies = ((limits().code_section_bytes as usize - 1_000) / (function.byte_len() + 4))
        .min(limits().functions as usize - 10);
    module(&[], &[], std::iter::repeat_n(function, copies))
}

fn nested(open: &I<'_>, depth: usize) -> Function {
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

/// A long chain over many locals whose values all stay alive until the end.
fn pressure(locals: u32, ty: ValType) -> Function {
    let (load, zero, mix, store): (I<'_>, I<'_>, I<'_>, I<'_>) = match ty {
        ValType::I64 => (I::I64Load(arg(3)), I::I32Const(0), I::I64Xor, I::I64Store(arg(3))),
        _ => (I::V128Load(arg(4)), I::I32Const(0), I::V128Xor, I::V128Store(arg(4))),
    };
    body(&[(locals, ty)], |f| {
        for local in 0..locals {
            f.instruction(&I::I32Const(local as i32)).instruction(&load).instruction(&I::LocalSet(local));
        }
        for local in 1..locals {
            f.instruction(&I::LocalGet(local))
                .instruction(&I::LocalGet(local - 1))
                .instruction(&mix)
                .instruction(&I::LocalSet(local));
        }
        for local in 0..locals {
            f.instruction(&zero).instruction(&I::LocalGet(local)).instruction(&store);
        }
    })
}

fn arg(align: u32) -> wasm_encoder::MemArg {
    wasm_encoder::MemArg { offset: 0, align, memory_index: 0 }
}

/// Every block sets every local on one of two paths, so every block's end joins all of them.
fn joins(locals: u32, blocks: usize) -> Function {
    body(&[(locals, ValType::I32)], |f| {
        for block in 0..blocks {
            f.instruction(&I::GlobalGet(0)).instruction(&I::If(BlockType::Empty));
            for local in 0..locals {
                f.instruction(&I::I32Const(block as i32)).instruction(&I::LocalSet(local));
            }
            f.instruction(&I::End);
        }
        for local in 0..locals {
            f.instruction(&I::LocalGet(local)).instruction(&I::GlobalSet(0));
        }
    })
}

/// Loops within loops, and all locals change in the innermost.
fn loops(locals: u32, depth: usize) -> Function {
    body(&[(locals, ValType::I32)], |f| {
        for _ in 0..depth {
            f.instruction(&I::Loop(BlockType::Empty));
        }
        for local in 0..locals {
            f.instruction(&I::LocalGet(local))
                .instruction(&I::I32Const(1))
                .instruction(&I::I32Add)
                .instruction(&I::LocalSet(local));
        }
        for level in 0..depth {
            f.instruction(&I::GlobalGet(0))
                .instruction(&I::BrIf((depth - level - 1).min(50) as u32))
                .instruction(&I::End);
        }
    })
}

fn br_tables(targets: usize, tables: usize) -> Function {
    body(&[], |f| {
        for _ in 0..tables {
            for _ in 0..100 {
                f.instruction(&I::Block(BlockType::Empty));
            }
            f.instruction(&I::GlobalGet(0));
            f.instruction(&I::BrTable((0..targets as u32).map(|n| n % 100).collect::<Vec<_>>().into(), 0));
            for _ in 0..100 {
                f.instruction(&I::End);
            }
        }
    })
}

fn with_data(memory64: bool, offset: ConstExpr) -> Vec<u8> {
    let mut memories = MemorySection::new();
    memories.memory(MemoryType { minimum: 1, maximum: None, memory64, shared: false, page_size_log2: None });
    let mut data = DataSection::new();
    data.active(0, &offset, *b"x");
    let mut module = Module::new();
    module.section(&memories).section(&data);
    module.finish()
}

fn with_table(minimum: u64, elements: u32) -> Vec<u8> {
    let mut types = TypeSection::new();
    types.ty().function([], []);
    let mut functions = FunctionSection::new();
    functions.function(0);
    let mut tables = TableSection::new();
    tables.table(TableType {
        element_type: RefType::FUNCREF,
        minimum,
        maximum: None,
        table64: false,
        shared: false,
    });
    let mut segments = ElementSection::new();
    segments.active(None, &ConstExpr::i32_const(0), Elements::Functions(vec![0; elements as usize].into()));
    let mut code = CodeSection::new();
    code.function(&body(&[], |_| {}));
    let mut module = Module::new();
    module.section(&types).section(&functions).section(&tables).section(&segments).section(&code);
    module.finish()
}

fn many_types() -> Vec<u8> {
    let mut types = TypeSection::new();
    let words = [ValType::I32, ValType::I64, ValType::F32, ValType::F64];
    for n in 0..49_999_usize {
        types.ty().function((0..14).map(|bit| words[n >> (bit * 2) & 3]), []);
    }
    let mut module = Module::new();
    module.section(&types);
    module.finish()
}

fn many_exports() -> Vec<u8> {
    let mut types = TypeSection::new();
    types.ty().function([], []);
    let (mut functions, mut code, mut exports) =
        (FunctionSection::new(), CodeSection::new(), ExportSection::new());
    functions.function(0);
    code.function(&body(&[], |_| {}));
    for n in 0..70_000 {
        exports.export(&format!("export {n}"), ExportKind::Func, 0);
    }
    let mut module = Module::new();
    module.section(&types).section(&functions).section(&exports).section(&code);
    module.finish()
}

fn suite() -> Vec<(&'static str, Vec<u8>)> {
    let one = |function: Function| module(&[], &[], [function]);
    let repeated = |n: usize, operations: &[I<'_>]| {
        filled(body(&[], |f| {
            for _ in 0..n {
                for operation in operations {
                    f.instruction(operation);
                }
            }
        }))
    };
    let global = I::GlobalGet(0);
    vec![
        ("one br_table of a million targets", one(br_tables(1_000_000, 1))),
        ("br_tables all over", filled(br_tables(1_000, 100))),
        ("340,000 blocks deep", one(nested(&I::Block(BlockType::Empty), 340_000))),
        ("10,000 blocks deep", one(nested(&I::Block(BlockType::Empty), 10_000))),
        ("10,000 loops deep", one(nested(&I::Loop(BlockType::Empty), 10_000))),
        ("10,000 ifs deep", one(nested(&I::If(BlockType::Empty), 10_000))),
        ("50,000 locals in each function", filled(body(&[(50_000, ValType::V128)], |_| {}))),
        ("50,000 locals in one function", one(body(&[(50_000, ValType::V128)], |_| {}))),
        ("30,000 i64 alive at once", one(pressure(30_000, ValType::I64))),
        ("20,000 v128 alive at once", one(pressure(20_000, ValType::V128))),
        ("1,000 i64 alive everywhere", filled(pressure(1_000, ValType::I64))),
        ("1,000 locals joined 150 times", one(joins(1_000, 150))),
        ("100 locals joined 1,500 times", one(joins(100, 1_500))),
        ("10,000 locals joined 15 times", one(joins(10_000, 15))),
        ("300 locals joined everywhere", filled(joins(300, 100))),
        ("5,000 locals in loops 5,000 deep", one(loops(5_000, 5_000))),
        ("20,000 locals in loops 100 deep", one(loops(20_000, 100))),
        ("100 locals in loops everywhere", filled(loops(100, 1_000))),
        ("49,980 empty functions", module(&[], &[], std::iter::repeat_n(body(&[], |_| {}), 49_980))),
        (
            "1,000 parameters and results at every call",
            module(
                &[ValType::I64; 1_000],
                &[ValType::I64; 1_000],
                (0..20).map(|_| {
                    body(&[], |f| {
                        for n in 0..1_000 {
                            f.instruction(&I::LocalGet(n));
                        }
                        for _ in 0..400 {
                            f.instruction(&I::Call(0));
                        }
                    })
                }),
            ),
        ),
        ("calls everywhere", repeated(2_000, &[I::Call(0)])),
        (
            "indirect calls everywhere",
            repeated(1_000, &[global.clone(), I::CallIndirect { type_index: 0, table_index: 0 }]),
        ),
        (
            "bulk operations everywhere",
            repeated(
                1_000,
                &[global.clone(), global.clone(), global.clone(), I::MemoryCopy { src_mem: 0, dst_mem: 0 }],
            ),
        ),
        (
            "table operations everywhere",
            repeated(
                1_000,
                &[
                    global.clone(),
                    global.clone(),
                    global.clone(),
                    I::TableCopy { src_table: 0, dst_table: 0 },
                ],
            ),
        ),
        (
            "divisions everywhere",
            repeated(1_000, &[global.clone(), global.clone(), I::I32RemS, I::GlobalSet(0)]),
        ),
        (
            "vectors everywhere",
            repeated(
                500,
                &[
                    I::I32Const(0),
                    I::I32Const(0),
                    I::V128Load(arg(4)),
                    I::I32x4TruncSatF32x4U,
                    I::I8x16Popcnt,
                    I::V128Store(arg(4)),
                ],
            ),
        ),
        (
            "one expression of 300,000 operands",
            one(body(&[], |f| {
                for _ in 0..300_000 {
                    f.instruction(&I::GlobalGet(0));
                }
                for _ in 0..299_999 {
                    f.instruction(&I::I32Add);
                }
                f.instruction(&I::GlobalSet(0));
            })),
        ),
        (
            "100,000 stores in one block",
            one(body(&[], |f| {
                for n in 0..100_000 {
                    f.instruction(&I::I32Const(n))
                        .instruction(&I::GlobalGet(0))
                        .instruction(&I::I32Store8(arg(0)));
                }
            })),
        ),
        ("a data segment at 1 GiB", with_data(false, ConstExpr::i32_const(1 << 30))),
        ("a data segment at 4 GiB - 1", with_data(false, ConstExpr::i32_const(-1))),
        ("a data segment at 2^64 - 1", with_data(true, ConstExpr::i64_const(-1))),
        ("a table of 65,536, all set", with_table(65_536, 65_536)),
        ("a table of a million", with_table(1_000_000, 1)),
        ("50,000 different types", many_types()),
        ("70,000 exports", many_exports()),
    ]
}

#[test]
fn a_compile_child_can_neither_look_up_nor_open_nor_start_anything() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_sandbox-test-host"))
        .arg("compile-probe")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), 11, "{text}");
    for line in text.lines() {
        // EPERM of the filter, nothing of what lies behind it.
        assert!(line.ends_with(": 1"), "{line}");
    }
}

#[test]
fn hostile_modules_are_refused_or_compiled_within_the_caps() {
    for (name, wasm) in suite() {
        match compile(&wasm) {
            Ok(compiled) => println!(
                "{name}: {} KiB -> {} KiB, {} ms of CPU, {} MiB resident at most",
                wasm.len() >> 10,
                compiled.artefact_bytes >> 10,
                compiled.cpu_millis,
                compiled.resident_bytes_max >> 20
            ),
            Err(error @ (CompileError::Crashed(_) | CompileError::Killed(_) | CompileError::Io(_))) => {
                panic!("{name}: {error}")
            }
            Err(error) => println!("{name}: {} KiB: {error}", wasm.len() >> 10),
        }
    }
}
