//! Modules against metering and the limits of compilation.
//!
//! A module has a shape (code that may cost more than is charged) and an entry point that runs it:
//! update, query, inspect_message, heartbeat, timer, or a step of the installation.

use clap::ValueEnum;
use rand::{Rng, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;
use wasm_encoder::{
    BlockType, CodeSection, ConstExpr, DataCountSection, DataSection, ElementSection, Elements,
    EntityType, ExportKind, ExportSection, Function, FunctionSection, GlobalSection, GlobalType,
    HeapType, ImportSection, MemArg, MemorySection, MemoryType, Module, RefType, StartSection,
    TableSection, TableType, TypeSection, ValType,
};

/// The entry point that runs the shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Entry {
    Update,
    Query,
    Inspect,
    Heartbeat,
    Timer,
    Init,
    Start,
    PreUpgrade,
    PostUpgrade,
}

/// The repeated code; fields are counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Arithmetic,
    Division,
    Floats,
    Select,
    // A chain of functions, each returning the values of the next.
    CallResults { functions: u32, values: u32 },
    // Functions, each of which passes its parameters on.
    CallParameters { functions: u32, values: u32 },
    // Locals that are alive across a loop and at a join within it.
    LiveLocals { locals: u32 },
    // A loop that carries values.
    LoopParameters { values: u32 },
    // A block that returns values.
    BlockResults { values: u32 },
    DeepBlocks { depth: u32 },
    BranchTable { targets: u32 },
    ManyFunctions { functions: u32 },
    HugeFunction { operations: u32 },
    DataSegments { segments: u32, bytes: u32 },
    TouchPages { pages: u32 },
    Fill { bytes: u32 },
    Copy { bytes: u32 },
    Grow { pages: u32 },
    TableOperations { elements: u32 },
    References { functions: u32 },
    IndirectCalls { elements: u32 },
    StablePages { pages: u32 },
    StableBulk { bytes: u32 },
    Prints { bytes: u32 },
    Certify,
    Globals { globals: u32 },
    Recursion { locals: u32 },
    Trap,
}

impl Shape {
    pub(super) fn any(random: &mut ChaCha8Rng) -> Self {
        let of = |random: &mut ChaCha8Rng, counts: &[u32]| {
            let most = *counts.choose(random).unwrap_or(&1);
            random.gen_range(most / 2..=most).max(1)
        };
        let values = |random: &mut ChaCha8Rng| of(random, &[4, 50, 400, 1_000]);
        let all = [
            Self::Arithmetic,
            Self::Division,
            Self::Floats,
            Self::Select,
            Self::CallResults { functions: of(random, &[10, 250]), values: values(random) },
            Self::CallParameters { functions: of(random, &[10, 250]), values: values(random) },
            Self::LiveLocals { locals: of(random, &[100, 4_000, 20_000, 49_000]) },
            Self::LoopParameters { values: values(random) },
            Self::BlockResults { values: values(random) },
            Self::DeepBlocks { depth: of(random, &[100, 5_000, 60_000]) },
            Self::BranchTable { targets: of(random, &[100, 10_000, 300_000]) },
            Self::ManyFunctions { functions: of(random, &[100, 10_000, 49_000]) },
            Self::HugeFunction { operations: of(random, &[1_000, 50_000, 150_000]) },
            Self::DataSegments {
                segments: of(random, &[10, 10_000, 100_000]),
                bytes: of(random, &[1, 8]),
            },
            Self::TouchPages { pages: of(random, &[100, 4_000, 60_000]) },
            Self::Fill { bytes: of(random, &[1, 1_000, 1 << 20, 1 << 28]) },
            Self::Copy { bytes: of(random, &[1, 1_000, 1 << 20, 1 << 28]) },
            Self::Grow { pages: of(random, &[1, 100, 65_536]) },
            Self::TableOperations { elements: of(random, &[1, 1_000, 60_000]) },
            Self::References { functions: of(random, &[10, 1_000]) },
            Self::IndirectCalls { elements: of(random, &[10, 1_000]) },
            Self::StablePages { pages: of(random, &[100, 4_000, 100_000]) },
            Self::StableBulk { bytes: of(random, &[1, 4_096, 1 << 20, 1 << 24]) },
            Self::Prints { bytes: of(random, &[1, 1_000, 1 << 20]) },
            Self::Certify,
            Self::Globals { globals: of(random, &[10, 300, 1_000]) },
            Self::Recursion { locals: of(random, &[1, 100, 10_000]) },
            Self::Trap,
        ];
        all[random.gen_range(0..all.len())]
    }
}

/// A module to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) shape: Shape,
    pub(super) entry: Entry,
    /// How often the shape is run in one message.
    pub(super) repeats: u64,
}

impl Plan {
    pub(super) fn any(random: &mut ChaCha8Rng) -> Self {
        let repeats = *[1, 1, 100, 10_000, 10_000_000, u64::MAX].choose(random).unwrap_or(&1);
        let (shape, entries) = (Shape::any(random), Entry::value_variants());
        Self { shape, entry: entries[random.gen_range(0..entries.len())], repeats }
    }
}

/// Imported functions, in this order; their types by number.
const IMPORTS: [(&str, u32); 9] = [
    ("msg_reply", NOTHING),
    ("accept_message", NOTHING),
    ("global_timer_set", 2),
    ("stable64_grow", 2),
    ("stable64_read", 3),
    ("stable64_write", 3),
    ("debug_print", 1),
    ("certified_data_set", 1),
    ("stable64_size", 4),
];
const NOTHING: u32 = 0;
const MSG_REPLY: u32 = 0;
const ACCEPT: u32 = 1;
const TIMER_SET: u32 = 2;
const STABLE_GROW: u32 = 3;
const STABLE_READ: u32 = 4;
const STABLE_WRITE: u32 = 5;
const PRINT: u32 = 6;
const CERTIFY: u32 = 7;
const STABLE_SIZE: u32 = 8;
/// The type with as many parameters as the shape has values, or results; and both.
const PARAMETERS: u32 = 5;
const RESULTS: u32 = 6;
const BOTH: u32 = 7;
/// The function that repeats the shape; the entry points follow, then what the shape needs.
const WORK: u32 = IMPORTS.len() as u32;
const HELPERS: u32 = WORK + 8;

/// Locals of [`WORK`].
const LEFT: u32 = 0;
const SCRATCH: u32 = 1;

fn at(offset: u64) -> MemArg {
    MemArg { offset, align: 0, memory_index: 0 }
}

/// Code and sections of a shape.
struct Parts {
    code: Function,
    helpers: Vec<(u32, Function)>,
    values: u32,
    memory: MemoryType,
    table: u64,
    globals: u32,
    segments: (u32, u32),
    elements: Vec<u32>,
}

/// A function that passes what it has on to the next.
fn chain(functions: u32, values: u32, parameters: bool) -> Vec<(u32, Function)> {
    let kind = if parameters { PARAMETERS } else { RESULTS };
    let one = |index: u32| {
        let mut function = Function::new([]);
        let mut code = function.instructions();
        let last = index + 1 == functions;
        if parameters && !last {
            for value in 0..values {
                code.local_get(value);
            }
        }
        if !last {
            code.call(HELPERS + index + 1);
        } else if !parameters {
            for value in 0..values {
                code.i64_const(value.into());
            }
        }
        code.end();
        (kind, function)
    };
    (0..functions).map(one).collect()
}

fn drops(code: &mut wasm_encoder::InstructionSink<'_>, values: u32) {
    for _ in 0..values {
        code.drop();
    }
}

#[expect(clippy::too_many_lines, reason = "one entry for each shape")]
fn parts(plan: &Plan) -> Parts {
    let (minimum, maximum) = (1, None);
    let memory =
        MemoryType { minimum, maximum, memory64: false, shared: false, page_size_log2: None };
    let mut parts = Parts {
        code: Function::new([(2, ValType::I64)]),
        helpers: vec![],
        values: 1,
        memory,
        table: 0,
        globals: 0,
        segments: (0, 0),
        elements: vec![],
    };
    let pages = |bytes: u32| u64::from(bytes) / 65_536 + 1;
    let mut code = parts.code.instructions();
    // The number of turns, then the loop.
    code.i64_const(plan.repeats as i64).local_set(LEFT).loop_(BlockType::Empty);
    match plan.shape {
        Shape::Arithmetic => {
            for _ in 0..50 {
                code.local_get(SCRATCH).i64_const(3).i64_add().local_set(SCRATCH);
            }
        }
        Shape::Division => {
            for _ in 0..50 {
                code.local_get(SCRATCH).i64_const(7).i64_rem_u().i64_const(3).i64_div_s();
                code.local_set(SCRATCH);
            }
        }
        Shape::Floats => {
            for _ in 0..50 {
                code.local_get(SCRATCH).f64_convert_i64_u().f64_sqrt().f64_nearest();
                code.i64_trunc_sat_f64_u().local_set(SCRATCH);
            }
        }
        Shape::Select => {
            for _ in 0..50 {
                code.local_get(SCRATCH).local_get(LEFT).local_get(LEFT).i32_wrap_i64().select();
                code.local_set(SCRATCH);
            }
        }
        Shape::CallResults { functions, values } => {
            parts.values = values;
            parts.helpers = chain(functions, values, false);
            code.call(HELPERS);
            drops(&mut code, values);
        }
        Shape::CallParameters { functions, values } => {
            parts.values = values;
            parts.helpers = chain(functions, values, true);
            for value in 0..values {
                code.i64_const(value.into());
            }
            code.call(HELPERS);
        }
        Shape::LiveLocals { locals } => {
            let mut function = Function::new([(locals + 1, ValType::I64)]);
            let mut inner = function.instructions();
            inner.i64_const(1_000).local_set(0).loop_(BlockType::Empty);
            // Seldom, all of them change: at the join each is one of two values.
            inner.local_get(0).i64_const(1_000).i64_eq().if_(BlockType::Empty);
            for local in 1..=locals {
                inner.local_get(0).i64_const(local.into()).i64_add().local_set(local);
            }
            inner.end();
            inner.local_get(0).i64_const(1).i64_sub().local_tee(0).i64_eqz().i32_eqz().br_if(0);
            inner.end().i64_const(0);
            for local in 1..=locals {
                inner.local_get(local).i64_add();
            }
            inner.drop().end();
            parts.helpers.push((NOTHING, function));
            code.call(HELPERS);
        }
        Shape::LoopParameters { values } => {
            parts.values = values;
            let mut function = Function::new([(1, ValType::I64)]);
            let mut inner = function.instructions();
            inner.i64_const(100).local_set(0);
            for value in 0..values {
                inner.i64_const(value.into());
            }
            inner.loop_(BlockType::FunctionType(BOTH));
            inner.local_get(0).i64_const(1).i64_sub().local_tee(0).i64_eqz().i32_eqz().br_if(0);
            inner.end();
            drops(&mut inner, values);
            inner.end();
            parts.helpers.push((NOTHING, function));
            code.call(HELPERS);
        }
        Shape::BlockResults { values } => {
            parts.values = values;
            code.block(BlockType::FunctionType(RESULTS));
            for value in 0..values {
                code.i64_const(value.into());
            }
            code.local_get(SCRATCH).i32_wrap_i64().br_if(0).end();
            drops(&mut code, values);
        }
        Shape::DeepBlocks { depth } => {
            for _ in 0..depth {
                code.block(BlockType::Empty);
            }
            code.local_get(SCRATCH).i64_eqz().br_if(depth - 1);
            for _ in 0..depth {
                code.end();
            }
        }
        Shape::BranchTable { targets } => {
            code.block(BlockType::Empty).block(BlockType::Empty);
            code.local_get(LEFT).i32_wrap_i64();
            code.br_table((0..targets).map(|target| target % 2), 0).end().end();
        }
        Shape::ManyFunctions { functions } => {
            for _ in 0..functions {
                let mut function = Function::new([]);
                function.instructions().end();
                parts.helpers.push((NOTHING, function));
            }
            code.call(HELPERS + functions - 1);
        }
        Shape::HugeFunction { operations } => {
            for operation in 0..operations {
                code.local_get(SCRATCH).i64_const(operation.into()).i64_add().local_set(SCRATCH);
            }
        }
        Shape::DataSegments { segments, bytes } => {
            parts.segments = (segments, bytes);
            parts.memory.minimum = pages(segments.saturating_mul(bytes));
            code.nop();
        }
        Shape::TouchPages { pages: count } => {
            parts.memory.minimum = pages(count * 4_096);
            code.i64_const(i64::from(count) * 4_096).local_set(SCRATCH).loop_(BlockType::Empty);
            code.local_get(SCRATCH).i32_wrap_i64().i32_const(1).i32_store8(at(0));
            code.local_get(SCRATCH).i64_const(4_096).i64_sub().local_tee(SCRATCH);
            code.i64_eqz().i32_eqz().br_if(0).end();
        }
        Shape::Fill { bytes } => {
            parts.memory.minimum = pages(bytes);
            code.i32_const(0).i32_const(7).i32_const(bytes as i32).memory_fill(0);
        }
        Shape::Copy { bytes } => {
            parts.memory.minimum = pages(bytes) + 1;
            code.i32_const(1).i32_const(0).i32_const(bytes as i32).memory_copy(0, 0);
        }
        Shape::Grow { pages } => {
            code.i32_const(pages as i32).memory_grow(0).drop();
        }
        Shape::TableOperations { elements } => {
            parts.table = u64::from(elements);
            let count = elements as i32;
            code.i32_const(0).ref_null(HeapType::FUNC).i32_const(count).table_fill(0);
            code.i32_const(0).i32_const(0).i32_const(count).table_copy(0, 0);
            code.ref_null(HeapType::FUNC).i32_const(count).table_grow(0).drop();
        }
        Shape::References { functions } => {
            parts.table = u64::from(functions);
            parts.elements = vec![WORK; functions as usize];
            for _ in 0..100 {
                code.ref_func(WORK).drop();
            }
        }
        Shape::IndirectCalls { elements } => {
            let mut function = Function::new([]);
            function.instructions().end();
            parts.helpers.push((NOTHING, function));
            parts.table = u64::from(elements);
            parts.elements = vec![HELPERS; elements as usize];
            for turn in 0..50_u32 {
                code.i32_const((turn % elements) as i32).call_indirect(0, NOTHING);
            }
        }
        Shape::StablePages { pages: count } => {
            grow_stable(&mut code, u64::from(count) * 4_096);
            code.i64_const(i64::from(count) * 4_096).local_set(SCRATCH).loop_(BlockType::Empty);
            code.local_get(SCRATCH).i64_const(4_096).i64_sub().local_set(SCRATCH);
            code.i64_const(0).local_get(SCRATCH).i64_const(1).call(STABLE_READ);
            code.local_get(SCRATCH).i64_eqz().i32_eqz().br_if(0).end();
        }
        Shape::StableBulk { bytes } => {
            parts.memory.minimum = pages(bytes);
            grow_stable(&mut code, bytes.into());
            code.i64_const(0).i64_const(0).i64_const(bytes.into()).call(STABLE_WRITE);
            code.i64_const(0).i64_const(0).i64_const(bytes.into()).call(STABLE_READ);
        }
        Shape::Prints { bytes } => {
            parts.memory.minimum = pages(bytes);
            code.i32_const(0).i32_const(bytes as i32).call(PRINT);
        }
        Shape::Certify => {
            code.i32_const(0).i32_const(32).call(CERTIFY);
        }
        Shape::Globals { globals } => {
            parts.globals = globals;
            for global in 0..globals {
                code.global_get(global).i64_const(1).i64_add().global_set(global);
            }
        }
        Shape::Recursion { locals } => {
            let mut function = Function::new([(locals, ValType::I64)]);
            let mut inner = function.instructions();
            inner.call(HELPERS);
            for local in 0..locals {
                inner.local_get(local).drop();
            }
            inner.end();
            parts.helpers.push((NOTHING, function));
            code.call(HELPERS);
        }
        Shape::Trap => {
            code.unreachable();
        }
    }
    code.local_get(LEFT).i64_const(1).i64_sub().local_tee(LEFT).i64_eqz().i32_eqz().br_if(0);
    code.end().end();
    parts
}

/// Stable memory of that size at least, once.
fn grow_stable(code: &mut wasm_encoder::InstructionSink<'_>, bytes: u64) {
    code.call(STABLE_SIZE).i64_eqz().if_(BlockType::Empty);
    code.i64_const((bytes / 65_536 + 1) as i64).call(STABLE_GROW).drop().end();
}

/// The functions between [`WORK`] and [`HELPERS`], with what they are exported as.
fn entries(plan: &Plan) -> Vec<(&'static str, Function)> {
    let one = |runs: bool, then: &[u32], timer: bool| {
        let mut function = Function::new([]);
        let mut code = function.instructions();
        if timer {
            code.i64_const(1).call(TIMER_SET).drop();
        }
        if runs {
            code.call(WORK);
        }
        for import in then {
            code.call(*import);
        }
        code.end();
        function
    };
    let is = |entry: Entry| plan.entry == entry;
    vec![
        // Where something else runs the shape, a call has to be answered at once.
        ("canister_update go", one(is(Entry::Update), &[MSG_REPLY], false)),
        ("canister_query ask", one(is(Entry::Query), &[MSG_REPLY], false)),
        ("canister_inspect_message", one(is(Entry::Inspect), &[ACCEPT], false)),
        ("canister_heartbeat", one(is(Entry::Heartbeat), &[], false)),
        ("canister_global_timer", one(is(Entry::Timer), &[], true)),
        ("canister_init", one(is(Entry::Init), &[], is(Entry::Timer))),
        ("canister_pre_upgrade", one(is(Entry::PreUpgrade), &[], false)),
    ]
}

/// The module's bytes.
#[expect(clippy::too_many_lines, reason = "one section after the other")]
pub(super) fn module(plan: &Plan) -> Vec<u8> {
    let parts = parts(plan);
    let many = |count: u32| vec![ValType::I64; count as usize];
    let mut types = TypeSection::new();
    types.ty().function([], []);
    types.ty().function([ValType::I32; 2], []);
    types.ty().function([ValType::I64], [ValType::I64]);
    types.ty().function([ValType::I64; 3], []);
    types.ty().function([], [ValType::I64]);
    types.ty().function(many(parts.values), []);
    types.ty().function([], many(parts.values));
    types.ty().function(many(parts.values), many(parts.values));
    let mut imports = ImportSection::new();
    for (name, kind) in IMPORTS {
        imports.import("ic0", name, EntityType::Function(kind));
    }
    let (mut functions, mut code, mut exports) =
        (FunctionSection::new(), CodeSection::new(), ExportSection::new());
    functions.function(NOTHING);
    code.function(&parts.code);
    for (index, (name, function)) in entries(plan).into_iter().enumerate() {
        functions.function(NOTHING);
        code.function(&function);
        let wanted = match name {
            // These run by themselves, in every round.
            "canister_heartbeat" => plan.entry == Entry::Heartbeat,
            "canister_inspect_message" => plan.entry == Entry::Inspect,
            _ => true,
        };
        if wanted {
            exports.export(name, ExportKind::Func, WORK + 1 + index as u32);
        }
    }
    if plan.entry == Entry::PostUpgrade {
        exports.export("canister_post_upgrade", ExportKind::Func, WORK);
    }
    for (kind, function) in &parts.helpers {
        functions.function(*kind);
        code.function(function);
    }
    let mut tables = TableSection::new();
    tables.table(TableType {
        element_type: RefType::FUNCREF,
        table64: false,
        minimum: parts.table,
        maximum: None,
        shared: false,
    });
    let mut memories = MemorySection::new();
    memories.memory(parts.memory);
    let mut globals = GlobalSection::new();
    for _ in 0..parts.globals {
        let kind = GlobalType { val_type: ValType::I64, mutable: true, shared: false };
        globals.global(kind, &ConstExpr::i64_const(0));
    }
    let mut elements = ElementSection::new();
    if !parts.elements.is_empty() {
        let all = Elements::Functions(parts.elements.as_slice().into());
        elements.active(None, &ConstExpr::i32_const(0), all);
    }
    let (segments, bytes) = parts.segments;
    let mut data = DataSection::new();
    for segment in 0..segments {
        let offset = ConstExpr::i32_const((segment * bytes) as i32);
        data.active(0, &offset, vec![7; bytes as usize]);
    }
    let mut module = Module::new();
    module.section(&types).section(&imports).section(&functions).section(&tables);
    module.section(&memories).section(&globals).section(&exports);
    if plan.entry == Entry::Start {
        module.section(&StartSection { function_index: WORK });
    }
    module.section(&elements);
    module.section(&DataCountSection { count: segments }).section(&code).section(&data);
    module.finish()
}

/// A module that does no harm: what replaces a hostile one.
pub(super) fn harmless() -> Vec<u8> {
    module(&Plan { shape: Shape::Arithmetic, entry: Entry::Update, repeats: 1 })
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn the_seed_decides_every_module_and_every_shape_comes_up() {
        let make = |seed| {
            let mut random = ChaCha8Rng::seed_from_u64(seed);
            let plans: Vec<Plan> = (0..400).map(|_| Plan::any(&mut random)).collect();
            plans
        };
        let plans = make(1);
        assert_eq!(plans, make(1));
        assert_ne!(plans, make(2));
        for entry in Entry::value_variants() {
            assert!(plans.iter().any(|plan| plan.entry == *entry), "{entry:?}");
        }
        let shapes: std::collections::BTreeSet<String> = plans
            .iter()
            .map(|plan| format!("{:?}", plan.shape).split(' ').next().unwrap().to_owned())
            .collect();
        assert_eq!(shapes.len(), 28, "{shapes:?}");
    }

    #[test]
    fn modules_are_small_enough_for_one_message() {
        let mut random = ChaCha8Rng::seed_from_u64(9);
        for _ in 0..60 {
            let plan = Plan::any(&mut random);
            let bytes = module(&plan);
            assert!(bytes.starts_with(b"\0asm") && bytes.len() < 2_000_000, "{plan:?}");
        }
    }
}
