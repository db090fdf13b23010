//! Rewrites a validated module into the form the folder's documentation describes.
//!
//! Sections are built one by one in their order; bodies and expressions pass through wasm-encoder's
//! re-encoder, which asks here for every function index and instruction. Three index spaces change,
//! all at their ends but one:
//!
//! - types: those of the added functions follow the module's own;
//! - functions: `thimble.will_write` is the last import, so defined functions move up by one, and
//!   the added functions come after them;
//! - data segments: all become passive, and an empty one follows them. Instructions that named an
//!   active segment name the empty one instead, because instantiation would have dropped it: what
//!   traps there still traps.
//!
//! Bulk operations on memory become calls of added functions, see `bulk.rs`. An operation is one
//! instruction before and after, so control flow stays as it was.
//!
//! A `nop` of the module is left out; those of the new module are charges, see `charge.rs`.

use std::collections::BTreeMap;

use limits::ModuleLimits;
use state::WASM_PAGE_BYTES;
use wasm_encoder::reencode::{self, Reencode, utils};
use wasm_encoder::{
    CodeSection, DataCountSection, DataSection, ElementSection, Elements, Encode, EntityType,
    ExportKind, ExportSection, Function, FunctionSection, GlobalSection, ImportSection,
    Instruction, MemorySection, MemoryType, Module, NameMap, NameSection, TableSection,
    TypeSection, ValType,
};
use wasmparser::{DataKind, Operator, Parser, Payload};

use super::bulk::{ActiveSegment, Bulk, Guard};
use super::charge::{Signatures, charges};
use super::error::{ModuleError, ModuleLocation};
use super::names;
use super::validate::{Shape, ValidatedModule};
use super::{
    INIT_MEMORY, MEMORY, RUNTIME_MODULE, START, TABLE, WILL_WRITE, features, global_export,
};

/// Data segments that one added function applies, so that none of them grows long.
const SEGMENTS_PER_FUNCTION: usize = 256;

/// Rewrites `wasm`, of which `validated` was found.
///
/// # Errors
///
/// None for a module that [`super::validate`](fn@super::validate) accepted with the same limits.
pub fn instrument(
    wasm: &[u8],
    validated: &ValidatedModule,
    limits: &ModuleLimits,
) -> Result<Vec<u8>, ModuleError> {
    let shape = &validated.shape;
    let mut sections = Sections::default();
    let mut rewriter = Rewriter::new(shape);
    let mut parser = Parser::new(0);
    parser.set_features(features());
    for payload in parser.parse_all(wasm) {
        sections.take(&mut rewriter, shape, limits, payload?)?;
    }
    sections.finish(rewriter, shape)
}

/// The sections of the new module, in the making.
#[derive(Default)]
struct Sections {
    types: TypeSection,
    imports: ImportSection,
    functions: FunctionSection,
    tables: TableSection,
    memories: MemorySection,
    globals: GlobalSection,
    elements: ElementSection,
    code: CodeSection,
    data: DataSection,
    /// Offset and length of the segments that were active, by index.
    active: Vec<ActiveSegment>,
    /// Names of the module's functions, by their index in the module; of the first section that
    /// has any.
    names: Option<BTreeMap<u32, String>>,
}

impl Sections {
    fn take(
        &mut self,
        rewriter: &mut Rewriter<'_>,
        shape: &Shape,
        limits: &ModuleLimits,
        payload: Payload<'_>,
    ) -> Result<(), ModuleError> {
        match payload {
            Payload::TypeSection(section) => {
                rewriter.signatures.types(&section)?;
                rewriter.parse_type_section(&mut self.types, section).map_err(failed)?
            }
            Payload::ImportSection(section) => {
                rewriter.signatures.imports(&section)?;
                rewriter.parse_import_section(&mut self.imports, section).map_err(failed)?
            }
            Payload::FunctionSection(section) => {
                for ty in section.clone() {
                    rewriter.signatures.function(ty?);
                }
                rewriter.parse_function_section(&mut self.functions, section).map_err(failed)?
            }
            Payload::TableSection(section) => self.tables(rewriter, shape, limits, section)?,
            Payload::MemorySection(section) => {
                for memory in section {
                    self.memories
                        .memory(bounded(rewriter.memory_type(memory?).map_err(failed)?, limits));
                }
            }
            Payload::GlobalSection(section) => {
                rewriter.parse_global_section(&mut self.globals, section).map_err(failed)?
            }
            Payload::ElementSection(section) => {
                rewriter.parse_element_section(&mut self.elements, section).map_err(failed)?
            }
            Payload::CodeSectionEntry(body) => {
                rewriter.parse_function_body(&mut self.code, body).map_err(failed)?
            }
            Payload::DataSection(section) => {
                for (index, data) in section.into_iter().enumerate() {
                    let data = data?;
                    if let DataKind::Active { offset_expr, .. } = data.kind {
                        let operator = offset_expr.get_operators_reader().read()?;
                        let mut offset = Vec::new();
                        rewriter.instruction(operator).map_err(failed)?.encode(&mut offset);
                        self.active.push(ActiveSegment {
                            index: index as u32,
                            offset,
                            len: data.data.len() as u32,
                        });
                    }
                    self.data.passive(data.data.iter().copied());
                }
            }
            Payload::CustomSection(section)
                if section.name() == names::SECTION && self.names.is_none() =>
            {
                let functions = shape.imported_functions.saturating_add(shape.defined_functions);
                self.names = Some(names::function_names(section.data_reader(), functions));
            }
            // Exports are made anew, the start section and other custom sections are left out.
            _ => {}
        }
        Ok(())
    }

    /// Bounds how far tables grow: together they stay within the limit, the first ones are served
    /// first.
    fn tables(
        &mut self,
        rewriter: &mut Rewriter<'_>,
        shape: &Shape,
        limits: &ModuleLimits,
        section: wasmparser::TableSectionReader<'_>,
    ) -> Result<(), ModuleError> {
        let mut growth = limits.table_elements.saturating_sub(shape.table_elements);
        for table in section {
            let mut ty = rewriter.table_type(table?.ty).map_err(failed)?;
            let maximum = ty.maximum.unwrap_or(u64::MAX).min(ty.minimum.saturating_add(growth));
            // A 32-bit table has a 32-bit maximum.
            let maximum = if ty.table64 { maximum } else { maximum.min(u64::from(u32::MAX)) };
            growth = growth.saturating_sub(maximum.saturating_sub(ty.minimum));
            ty.maximum = Some(maximum);
            self.tables.table(ty);
        }
        Ok(())
    }

    fn finish(mut self, rewriter: Rewriter<'_>, shape: &Shape) -> Result<Vec<u8>, ModuleError> {
        let mut next = NextIndices {
            types: shape.types,
            functions: shape.imported_functions + rewriter.shift + shape.defined_functions,
        };
        let mut exports = ExportSection::new();
        for (name, function) in &shape.entries {
            exports.export(name, ExportKind::Func, rewriter.shifted_index(*function));
        }
        if let Some(function) = shape.start {
            exports.export(START, ExportKind::Func, rewriter.shifted_index(function));
        }
        for (n, global) in shape.mutable_globals.iter().enumerate() {
            exports.export(&global_export(n), ExportKind::Global, *global);
        }
        if shape.tables > 0 {
            exports.export(TABLE, ExportKind::Table, 0);
        }
        if let Some(memory) = shape.memory {
            let address = if memory.memory64 { ValType::I64 } else { ValType::I32 };
            exports.export(MEMORY, ExportKind::Memory, 0);
            let will_write = next.ty(&mut self.types, &[address, address]);
            self.imports.import(RUNTIME_MODULE, WILL_WRITE, EntityType::Function(will_write));
            let guard = Guard { address, will_write: shape.imported_functions };
            // In the order in which their indices were given out.
            for bulk in &rewriter.bulk {
                let (params, body) = guard.function(*bulk);
                let ty = next.ty(&mut self.types, &params);
                next.function(&mut self.functions, &mut self.code, ty, &body);
            }
            if !self.active.is_empty() {
                let ty = next.ty(&mut self.types, &[]);
                let mut all = Function::new([]);
                for segments in self.active.chunks(SEGMENTS_PER_FUNCTION) {
                    let part = next.function(
                        &mut self.functions,
                        &mut self.code,
                        ty,
                        &guard.apply(segments),
                    );
                    all.instruction(&Instruction::Call(part));
                }
                all.instruction(&Instruction::End);
                let init = next.function(&mut self.functions, &mut self.code, ty, &all);
                exports.export(INIT_MEMORY, ExportKind::Func, init);
            }
        }
        // An export declares a function for `ref.func`; what is no longer exported is declared
        // here.
        if !shape.other_exported_functions.is_empty() {
            let functions: Vec<u32> = shape
                .other_exported_functions
                .iter()
                .map(|function| rewriter.shifted_index(*function))
                .collect();
            self.elements.declared(Elements::Functions(functions.into()));
        }
        if !self.data.is_empty() {
            self.data.passive([]);
        }
        let names = self.names(&rewriter, next.functions);
        Ok(self.assemble(&exports, &names))
    }

    /// Names of the functions of the new module, which has `functions` functions.
    fn names(&self, rewriter: &Rewriter<'_>, functions: u32) -> NameMap {
        let mut map = NameMap::new();
        let Some(names) = self.names.as_ref().filter(|names| !names.is_empty()) else {
            return map;
        };
        for (function, name) in names {
            map.append(rewriter.shifted_index(*function), name);
        }
        let own =
            rewriter.shape.imported_functions + rewriter.shift + rewriter.shape.defined_functions;
        for added in own..functions {
            map.append(added, "");
        }
        map
    }

    fn assemble(self, exports: &ExportSection, names: &NameMap) -> Vec<u8> {
        let mut module = Module::new();
        module
            .section(&self.types)
            .section(&self.imports)
            .section(&self.functions)
            .section(&self.tables);
        module
            .section(&self.memories)
            .section(&self.globals)
            .section(exports)
            .section(&self.elements);
        if !self.data.is_empty() {
            module.section(&DataCountSection { count: self.data.len() });
        }
        module.section(&self.code).section(&self.data);
        if !names.is_empty() {
            let mut section = NameSection::new();
            section.functions(names);
            module.section(&section);
        }
        module.finish()
    }
}

/// Next free indices behind the module's own.
struct NextIndices {
    types: u32,
    functions: u32,
}

impl NextIndices {
    fn ty(&mut self, types: &mut TypeSection, params: &[ValType]) -> u32 {
        types.ty().function(params.iter().copied(), []);
        self.types += 1;
        self.types - 1
    }

    fn function(
        &mut self,
        functions: &mut FunctionSection,
        code: &mut CodeSection,
        ty: u32,
        body: &Function,
    ) -> u32 {
        functions.function(ty);
        code.function(body);
        self.functions += 1;
        self.functions - 1
    }
}

/// Maps indices and replaces instructions.
struct Rewriter<'a> {
    shape: &'a Shape,
    /// How far defined functions move up: 1 if `thimble.will_write` is imported.
    shift: u32,
    signatures: Signatures,
    /// Bulk operations that occur; the `n`th is the `n`th added function.
    bulk: Vec<Bulk>,
    /// Their places in `bulk`.
    places: BTreeMap<Bulk, u32>,
}

impl<'a> Rewriter<'a> {
    fn new(shape: &'a Shape) -> Self {
        Self {
            shape,
            shift: u32::from(shape.memory.is_some()),
            signatures: Signatures::default(),
            bulk: Vec::new(),
            places: BTreeMap::new(),
        }
    }

    fn shifted_index(&self, function: u32) -> u32 {
        if function < self.shape.imported_functions {
            function
        } else {
            function.saturating_add(self.shift)
        }
    }

    /// The segment itself if it was passive, the empty one behind all others if it was active.
    fn segment(&self, index: u32) -> u32 {
        match self.shape.data_active.get(index as usize) {
            Some(true) => self.shape.data_active.len() as u32,
            _ => index,
        }
    }

    /// Index of the function that stands for `bulk`.
    fn added(&mut self, bulk: Bulk) -> u32 {
        let next = self.bulk.len() as u32;
        let place = *self.places.entry(bulk).or_insert_with(|| {
            self.bulk.push(bulk);
            next
        });
        (self.shape.imported_functions + self.shift + self.shape.defined_functions)
            .saturating_add(place)
    }
}

impl Reencode for Rewriter<'_> {
    type Error = std::convert::Infallible;

    fn function_index(&mut self, function: u32) -> Result<u32, reencode::Error<Self::Error>> {
        Ok(self.shifted_index(function))
    }

    fn data_index(&mut self, data: u32) -> Result<u32, reencode::Error<Self::Error>> {
        Ok(self.segment(data))
    }

    fn parse_function_body(
        &mut self,
        code: &mut CodeSection,
        body: wasmparser::FunctionBody<'_>,
    ) -> Result<(), reencode::Error<Self::Error>> {
        let mut charges = charges(&body, &self.signatures)?.into_iter().peekable();
        let mut function = self.new_function_with_parsed_locals(&body)?;
        let mut reader = body.get_operators_reader()?;
        let mut at = 0;
        while !reader.eof() {
            while let Some(charge) = charges.next_if(|charge| charge.before == at) {
                for _ in 0..charge.nops {
                    function.instruction(&Instruction::Nop);
                }
            }
            match reader.read()? {
                Operator::Nop => {}
                operator => {
                    function.instruction(&self.instruction(operator)?);
                }
            }
            at += 1;
        }
        code.function(&function);
        Ok(())
    }

    fn instruction<'a>(
        &mut self,
        operator: Operator<'a>,
    ) -> Result<Instruction<'a>, reencode::Error<Self::Error>> {
        let bulk = match operator {
            Operator::MemoryCopy { .. } => Bulk::Copy,
            Operator::MemoryFill { .. } => Bulk::Fill,
            Operator::MemoryInit { data_index, .. } => Bulk::Init(self.segment(data_index)),
            other => return utils::instruction(self, other),
        };
        Ok(Instruction::Call(self.added(bulk)))
    }
}

/// Bounds how far a memory grows by its limit, so that no memory creator sees more.
fn bounded(mut memory: MemoryType, limits: &ModuleLimits) -> MemoryType {
    let limit =
        if memory.memory64 { limits.heap64_bytes } else { limits.heap32_bytes.min(1 << 32) };
    let pages = (limit / WASM_PAGE_BYTES).max(memory.minimum);
    memory.maximum = Some(memory.maximum.unwrap_or(u64::MAX).min(pages));
    memory
}

fn failed(_: reencode::Error<std::convert::Infallible>) -> ModuleError {
    ModuleError::Invalid(ModuleLocation::Module)
}

#[cfg(test)]
mod tests;
