//! The weight of a function for the compiler (docs/internals/modules.md): a sum over its
//! instructions of what the code generator was measured to need for them, in **units of 256 bytes**
//! of working memory, rounded up to the worst of a class. `module.function_weight` bounds one
//! function, whose working memory is freed before the next one's turn; `module.weight` bounds all
//! of them, whose code and tables are kept until the artefact is written.
//!
//! A weight is a function of the module's bytes, so every node computes the same weight.
//! `tests/it/hostile.rs` shows, shape by shape, that a module within both limits compiles within
//! half of the child's memory.
//!
//! - An instruction weighs what [`Weigher::instruction`] says.
//! - A function weighs [`FUNCTION`] for its own tables and the code that enters it, and [`WORD`]
//!   for each parameter and result; so does each of its calls for the callee's; it leaves
//!   [`KEPT_FUNCTION`] behind. A local weighs 1.
//! - An **edge** is a way from one straight run of code to another. The code generator keeps
//!   account, for each, of what is alive: an edge weighs [`EDGE`] and one more for every
//!   [`VALUES_PER_UNIT`] locals that the function uses and operands that are on the stack.

use wasmparser::Operator as O;

/// Units of a function as such, while its code is generated: its symbol and its tables.
pub(super) const FUNCTION: u64 = 21;

/// Units that a function, imported ones included, leaves behind until the artefact is written. An
/// empty function was measured to leave 24, in a file that the kernel can write back. Fewer are
/// counted, so that 50,000 functions, the maximum of a module, are accepted in every budget: 14 x
/// 50,000 is less than the smallest `module.weight`. The uncounted rest is at most 10 x 50,000
/// units, 122 MiB, which the file has room for: it is twice `sandbox.compile_memory_bytes`. Their
/// anonymous memory is 1.9 MiB of the 4 MiB of `sandbox.compile_anonymous_bytes`, the program's
/// constants apart.
pub(super) const KEPT_FUNCTION: u64 = 14;

/// Units of a function that the host or a table can reach: code in between for each direction.
pub(super) const REACHABLE: u64 = 40;

/// Units of a type, which has code to call the host by, and of each of its parameters and results.
pub(super) const TYPE: u64 = 28;
/// Units of each parameter and result of a type, see [`TYPE`].
pub(super) const TYPE_WORD: u64 = 4;

/// Units of an element of a segment that is not laid out before the module runs but written by
/// code.
pub(super) const ELEMENT: u64 = 16;

/// Units of an element segment, and of a data segment.
pub(super) const ELEMENT_SEGMENT: u64 = 32;
/// Units of a data segment.
pub(super) const DATA_SEGMENT: u64 = 16;

/// So much weight of functions, whose working memory is freed, leaves one unit behind: their code.
pub(super) const INSTRUCTIONS_PER_UNIT: u64 = 64;

/// A target of a branch table has code of its own for each value that is alive; this many of these
/// leave one unit.
const TABLE_VALUES_PER_UNIT: u64 = 24;

/// Parameters and results of functions, in addition to their calls, that weigh one unit.
pub(super) const WORDS_PER_UNIT: u64 = 4;

/// Units of each parameter and result of a function that the host or a table can reach.
pub(super) const REACHABLE_WORD: u64 = 4;

/// Units of a parameter or result of a function or call.
pub(super) const WORD: u64 = 6;

/// Units of an edge by itself.
const EDGE: u64 = 8;

/// Values alive at an edge that weigh one unit.
const VALUES_PER_UNIT: u64 = 4;

/// Targets one branch table may have; the code generator takes hardly more.
pub(super) const BRANCH_TABLE_TARGETS_MAX: u32 = 65_000;

/// Weighs one function at a time. Memory: four bytes for each local of the largest function.
#[derive(Default)]
pub(super) struct Weigher {
    /// The function in which a local was used last, by local.
    used_in: Vec<u32>,
    function: u32,
    /// Locals used so far in this function.
    used: u64,
    /// Units that do not depend on what is alive.
    units: u64,
    edges: u64,
    /// Sum over the edges of the operands on the stack.
    operands: u64,
    /// Calls through a table: what checks them is kept with the code.
    indirect_calls: u64,
    /// Targets of branch tables, and the operands at them, summed.
    targets: u64,
    target_operands: u64,
    /// The instruction before was a constant: a shift by it is cheap.
    after_constant: bool,
    memory64: bool,
}

impl Weigher {
    /// Begins a function with `words` parameters and results, and `locals` locals, parameters among
    /// them.
    pub(super) fn begin(&mut self, words: u64, locals: u32, memory64: bool) {
        let mut used_in = std::mem::take(&mut self.used_in);
        if used_in.len() < locals as usize {
            used_in.resize(locals as usize, 0);
        }
        let words = words.saturating_mul(WORD);
        *self = Self {
            used_in,
            function: self.function.wrapping_add(1),
            units: FUNCTION.saturating_add(words).saturating_add(locals.into()),
            edges: 1,
            memory64,
            ..Self::default()
        };
    }

    /// Adds an instruction before which `operands` are on the stack. `words` are the parameters and
    /// results of the function it calls or the block it opens.
    #[expect(clippy::too_many_lines, reason = "a table, entry after entry")]
    pub(super) fn instruction(&mut self, operator: &O<'_>, operands: u32, words: u64) {
        let memory = if self.memory64 { 24 } else { 8 };
        let shift = if self.after_constant { 6 } else { 36 };
        let (units, edges) = match operator {
            O::LocalGet { local_index } => {
                self.local(*local_index);
                (1, 0)
            }
            // Where two ways meet of which one set it, its value is chosen.
            O::LocalSet { local_index } | O::LocalTee { local_index } => {
                self.local(*local_index);
                (8, 0)
            }
            O::Nop | O::Drop | O::I32Const { .. } | O::I64Const { .. } => (1, 0),
            O::Unreachable | O::Return => (2, 0),
            O::F32Const { .. } | O::F64Const { .. } | O::RefNull { .. } => (4, 0),
            O::V128Const { .. } => (8, 0),
            O::Block { .. } => (2 + words.saturating_mul(WORD), 1),
            O::End | O::Else | O::Br { .. } => (2, 1),
            O::If { .. } => (20 + words.saturating_mul(WORD), 2),
            O::BrIf { .. } => (20, 2),
            // Fuel is checked at the beginning of every turn.
            O::Loop { .. } => (32 + words.saturating_mul(WORD), 24),
            O::BrTable { targets } => {
                let targets = u64::from(targets.len()).saturating_add(1);
                self.targets = self.targets.saturating_add(targets);
                self.target_operands =
                    self.target_operands.saturating_add(targets.saturating_mul(operands.into()));
                (targets.saturating_add(8), targets)
            }
            O::Call { .. } => (20_u64.saturating_add(words.saturating_mul(WORD)), 1),
            O::ReturnCall { .. } => (40_u64.saturating_add(words.saturating_mul(WORD)), 1),
            O::CallIndirect { .. } | O::ReturnCallIndirect { .. } => {
                self.indirect_calls = self.indirect_calls.saturating_add(1);
                (60_u64.saturating_add(words.saturating_mul(WORD)), 5)
            }
            O::GlobalGet { .. }
            | O::GlobalSet { .. }
            | O::MemorySize { .. }
            | O::TableSize { .. } => (8, 0),
            O::Select | O::TypedSelect { .. } => (16, 0),
            O::I32Load { .. }
            | O::I64Load { .. }
            | O::F32Load { .. }
            | O::F64Load { .. }
            | O::I32Load8S { .. }
            | O::I32Load8U { .. }
            | O::I32Load16S { .. }
            | O::I32Load16U { .. }
            | O::I64Load8S { .. }
            | O::I64Load8U { .. }
            | O::I64Load16S { .. }
            | O::I64Load16U { .. }
            | O::I64Load32S { .. }
            | O::I64Load32U { .. }
            | O::I32Store { .. }
            | O::I64Store { .. }
            | O::F32Store { .. }
            | O::F64Store { .. }
            | O::I32Store8 { .. }
            | O::I32Store16 { .. }
            | O::I64Store8 { .. }
            | O::I64Store16 { .. }
            | O::I64Store32 { .. }
            | O::V128Load { .. }
            | O::V128Store { .. } => (memory, 0),
            O::I32Eqz | O::I32Eq | O::I32Ne | O::I32LtS | O::I32LtU | O::I32GtS | O::I32GtU => {
                (6, 0)
            }
            O::I32LeS | O::I32LeU | O::I32GeS | O::I32GeU => (6, 0),
            O::I64Eqz | O::I64Eq | O::I64Ne | O::I64LtS | O::I64LtU | O::I64GtS | O::I64GtU => {
                (6, 0)
            }
            O::I64LeS | O::I64LeU | O::I64GeS | O::I64GeU => (6, 0),
            O::I32Add | O::I32Sub | O::I32And | O::I32Or | O::I32Xor => (6, 0),
            O::I64Add | O::I64Sub | O::I64And | O::I64Or | O::I64Xor => (6, 0),
            O::I32WrapI64 | O::I64ExtendI32S | O::I64ExtendI32U => (6, 0),
            O::I32Extend8S | O::I32Extend16S => (6, 0),
            O::I64Extend8S | O::I64Extend16S | O::I64Extend32S => (6, 0),
            O::I32ReinterpretF32
            | O::I64ReinterpretF64
            | O::F32ReinterpretI32
            | O::F64ReinterpretI64 => (6, 0),
            O::I32Shl | O::I32ShrS | O::I32ShrU | O::I32Rotl | O::I32Rotr => (shift, 0),
            O::I64Shl | O::I64ShrS | O::I64ShrU | O::I64Rotl | O::I64Rotr => (shift, 0),
            O::I32Mul | O::I64Mul => (12, 0),
            O::I32DivS | O::I32DivU | O::I32RemS | O::I32RemU => (20, 0),
            O::I64DivS | O::I64DivU | O::I64RemS | O::I64RemU => (20, 0),
            O::I32Clz | O::I32Ctz | O::I32Popcnt | O::I64Clz | O::I64Ctz | O::I64Popcnt => (20, 0),
            O::F32Eq | O::F32Ne | O::F32Lt | O::F32Gt | O::F32Le | O::F32Ge => (12, 0),
            O::F64Eq | O::F64Ne | O::F64Lt | O::F64Gt | O::F64Le | O::F64Ge => (12, 0),
            O::F32Abs | O::F32Neg | O::F64Abs | O::F64Neg => (12, 0),
            // A copy within a table becomes two loops with a barrier for what is overwritten.
            O::TableCopy { .. } | O::TableInit { .. } | O::TableFill { .. } => (320, 10),
            O::TableGet { .. } | O::TableSet { .. } => (80, 6),
            O::TableGrow { .. } => (200, 6),
            O::RefFunc { .. } | O::MemoryGrow { .. } | O::ElemDrop { .. } | O::DataDrop { .. } => {
                (80, 1)
            }
            O::MemoryCopy { .. } | O::MemoryFill { .. } | O::MemoryInit { .. } => (40, 1),
            // Arithmetic of floats, whose results are made canonical, conversions, and vectors: the
            // worst of them.
            _ => (64, 0),
        };
        self.units = self.units.saturating_add(units);
        self.edges = self.edges.saturating_add(edges);
        self.operands = self.operands.saturating_add(edges.saturating_mul(operands.into()));
        self.after_constant = matches!(operator, O::I32Const { .. } | O::I64Const { .. });
    }

    fn local(&mut self, local: u32) {
        if let Some(used_in) = self.used_in.get_mut(local as usize)
            && *used_in != self.function
        {
            *used_in = self.function;
            self.used = self.used.saturating_add(1);
        }
    }

    /// Weight that remains of the function's code once it is generated.
    pub(super) fn code_weight(&self) -> u64 {
        let alive = self.targets.saturating_mul(self.used).saturating_add(self.target_operands);
        (self.weight() / INSTRUCTIONS_PER_UNIT)
            .saturating_add(alive / TABLE_VALUES_PER_UNIT)
            .saturating_add(self.indirect_calls)
    }

    /// The weight of what was added since `begin`.
    pub(super) fn weight(&self) -> u64 {
        let alive = self.edges.saturating_mul(self.used).saturating_add(self.operands);
        self.units
            .saturating_add(self.edges.saturating_mul(EDGE))
            .saturating_add(alive / VALUES_PER_UNIT)
    }
}
