//! Validates a module: WebAssembly validation, the canister rules of the interface specification
//! ("WebAssembly module requirements") and every limit of [`ModuleLimits`], in one pass over the
//! sections.
//!
//! Counts are checked against their limits before anything of that size is built, and each function
//! is validated when it is read, so memory stays in proportion to the module's bytes. The data that
//! instrumentation needs is gathered in the same pass as [`Shape`].

use std::collections::BTreeSet;

use limits::ModuleLimits;
use state::{Global, ModuleGlobal, WASM_PAGE_BYTES};
use wasmparser::{
    BlockType, CustomSectionReader, DataKind, Element, ElementItems, ElementKind, Export,
    ExternalKind, FuncType, FuncValidator, FuncValidatorAllocations, FunctionBody, Import,
    Operator, OperatorsReader, Parser, Payload, TypeRef, ValType, ValidPayload, Validator,
    ValidatorResources,
};

use super::entry::{ExportName, MethodKind, export_name};
use super::error::{ModuleError, ModuleLocation, limit, shorten_name, within};
use super::features;
use super::weight::{self, Weigher};
use crate::{CustomSection, Hooks, ModuleInfo, system_api::Ic0Function};

/// How errors name what has a limit and is counted in more than one place.
const FUNCTION: &str = "size of a function in bytes";
const CODE_SECTION: &str = "size of the code section in bytes";
const WEIGHT: &str = "compile weight of the module in units of 256 bytes";

/// Custom section of modules that ask for enhanced orthogonal persistence.
const ENHANCED_ORTHOGONAL_PERSISTENCE: &str = "enhanced-orthogonal-persistence";

/// Results of the validation of an accepted module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValidatedModule {
    /// For execution: methods, hooks, initial heap, metadata sections, price of compilation.
    pub info: ModuleInfo,
    /// For instrumentation: sizes of index spaces, and functions by their role.
    pub(super) shape: Shape,
}

/// Sizes of the index spaces, and what instrumentation treats specially.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Shape {
    /// Number of types.
    pub(super) types: u32,
    /// Imported functions; they come first among the functions.
    pub(super) imported_functions: u32,
    /// Functions with a body.
    pub(super) defined_functions: u32,
    /// Type of the memory, if the module has one.
    pub(super) memory: Option<wasmparser::MemoryType>,
    /// Smallest sizes of the tables, summed.
    pub(super) table_elements: u64,
    /// Number of tables.
    pub(super) tables: u32,
    /// Mutable globals, by index.
    pub(super) mutable_globals: Vec<u32>,
    /// Index of the `(start)` function.
    pub(super) start: Option<u32>,
    /// Entry points: name and function.
    pub(super) entries: Vec<(String, u32)>,
    /// Functions exported under names that mean nothing to the node.
    pub(super) other_exported_functions: Vec<u32>,
    /// For each data segment whether it is active.
    pub(super) data_active: Vec<bool>,
}

/// Validates `wasm`, an unpacked module.
pub fn validate(wasm: &[u8], limits: &ModuleLimits) -> Result<ValidatedModule, ModuleError> {
    let mut pass = Pass::new(limits);
    let mut parser = Parser::new(0);
    parser.set_features(features());
    let mut validator = Validator::new_with_features(features());
    let mut allocations_of_functions = FuncValidatorAllocations::default();
    let mut tracker = LocationTracker::default();
    for payload in parser.parse_all(wasm) {
        let payload = payload
            .map_err(|error| ModuleError::from(error).with_location(tracker.next_location()))?;
        tracker.advance(&payload, pass.shape.imported_functions);
        let mut check_payload = || -> Result<(), ModuleError> {
            pass.count(&payload)?;
            match validator.payload(&payload)? {
                ValidPayload::Func(function, body) => {
                    let allocations = std::mem::take(&mut allocations_of_functions);
                    let mut function = function.into_validator(allocations);
                    pass.function(&mut function, &body)?;
                    allocations_of_functions = function.into_allocations();
                }
                ValidPayload::Ok | ValidPayload::End(_) => {}
                ValidPayload::Parser(_) => return Err(ModuleError::NotWasm),
            }
            pass.gather(&payload)
        };
        check_payload().map_err(|error| error.with_location(tracker.location))?;
    }
    pass.finish(wasm.len() as u64)
}

/// Which part of a module is read.
struct LocationTracker {
    section: &'static str,
    location: ModuleLocation,
    /// Bodies of functions so far.
    bodies: u32,
}

impl Default for LocationTracker {
    fn default() -> Self {
        Self { section: "header", location: ModuleLocation::Section("header"), bodies: 0 }
    }
}

impl LocationTracker {
    fn advance(&mut self, payload: &Payload<'_>, imported_functions: u32) {
        if matches!(payload, Payload::CodeSectionEntry(_)) {
            self.location =
                ModuleLocation::Function(imported_functions.saturating_add(self.bodies));
            self.bodies = self.bodies.saturating_add(1);
            return;
        }
        self.section = match payload {
            Payload::TypeSection(_) => "type section",
            Payload::ImportSection(_) => "import section",
            Payload::FunctionSection(_) => "function section",
            Payload::TableSection(_) => "table section",
            Payload::MemorySection(_) => "memory section",
            Payload::GlobalSection(_) => "global section",
            Payload::ExportSection(_) => "export section",
            Payload::StartSection { .. } => "start section",
            Payload::ElementSection(_) => "element section",
            Payload::DataCountSection { .. } => "data count section",
            Payload::DataSection(_) => "data section",
            Payload::CodeSectionStart { .. } => "code section",
            Payload::CustomSection(_) => "custom section",
            Payload::Version { .. } => "header",
            Payload::End(_) => "last section",
            Payload::TagSection(_) => "tag section",
            _ => "unknown section",
        };
        self.location = ModuleLocation::Section(self.section);
    }

    fn next_location(&self) -> ModuleLocation {
        match self.location {
            // The body after the last that could be read.
            ModuleLocation::Function(function) => {
                ModuleLocation::Function(function.saturating_add(1))
            }
            _ => ModuleLocation::After(self.section),
        }
    }
}

/// State of the pass.
struct Pass<'a> {
    limits: &'a ModuleLimits,
    info: ModuleInfo,
    shape: Shape,
    /// Function types by type index.
    types: Vec<FuncType>,
    /// Imports and their types, judged once the memory is known: it comes after them.
    imports: Vec<(&'static Ic0Function, u32)>,
    /// Type of each function.
    functions: Vec<u32>,
    /// Parameters and results of all types.
    words: u64,
    segment_elements: u64,
    /// Smallest size of each table.
    table_sizes: Vec<u64>,
    weigher: Weigher,
    /// Weight of the module so far.
    weight: u64,
    /// Functions that the host or a table can reach without being called by name.
    reachable: Vec<bool>,
    /// All element segments so far can be laid out before the module runs.
    elements_laid_out: bool,
    methods: BTreeSet<String>,
    method_name_bytes: u64,
    sections: BTreeSet<String>,
    section_bytes: u64,
    /// All globals, by index: none are imported.
    globals: Vec<DeclaredGlobal>,
}

/// A global as the module declares it.
struct DeclaredGlobal {
    mutable: bool,
    exported: bool,
    /// None of a reference.
    initial: Option<Global>,
}

/// The value that a global begins with. Initialisers are constants: imported globals and extended
/// constant expressions are not among the features.
fn constant(global: &wasmparser::Global<'_>) -> Result<Option<Global>, ModuleError> {
    Ok(match global.init_expr.get_operators_reader().read()? {
        Operator::I32Const { value } => Some(Global::I32(value)),
        Operator::I64Const { value } => Some(Global::I64(value)),
        Operator::F32Const { value } => Some(Global::F32(value.bits())),
        Operator::F64Const { value } => Some(Global::F64(value.bits())),
        Operator::V128Const { value } => Some(Global::V128(value.i128() as u128)),
        _ => None,
    })
}

impl<'a> Pass<'a> {
    fn new(limits: &'a ModuleLimits) -> Self {
        Self {
            limits,
            info: ModuleInfo {
                updates: Vec::new(),
                queries: Vec::new(),
                composite_queries: Vec::new(),
                hooks: Hooks::default(),
                memory64: false,
                heap_initial_wasm_pages: 0,
                heap_maximum_wasm_pages: Some(0),
                custom_sections: Vec::new(),
                enhanced_orthogonal_persistence: false,
                globals: Vec::new(),
                compile_instructions: 0,
            },
            shape: Shape::default(),
            types: Vec::new(),
            imports: Vec::new(),
            functions: Vec::new(),
            words: 0,
            segment_elements: 0,
            table_sizes: Vec::new(),
            weigher: Weigher::default(),
            weight: 0,
            reachable: Vec::new(),
            elements_laid_out: true,
            methods: BTreeSet::new(),
            method_name_bytes: 0,
            sections: BTreeSet::new(),
            section_bytes: 0,
            globals: Vec::new(),
        }
    }

    /// Checks the counts that can be refused before the validator builds anything from them.
    fn count(&mut self, payload: &Payload<'_>) -> Result<(), ModuleError> {
        let limits = self.limits;
        let (what, limit, count) = match payload {
            // Every type that is of use belongs to a function, so their number has the same limit.
            Payload::TypeSection(section) => {
                ("number of types", limit!(limits.functions), section.count())
            }
            Payload::ImportSection(section) => {
                ("number of imports", limit!(limits.functions), section.count())
            }
            Payload::FunctionSection(section) => {
                ("number of functions", limit!(limits.functions), section.count())
            }
            Payload::GlobalSection(section) => {
                ("number of globals", limit!(limits.globals), section.count())
            }
            Payload::TableSection(section) => {
                ("number of tables", limit!(limits.tables), section.count())
            }
            Payload::ElementSection(section) => {
                ("number of element segments", limit!(limits.data_segments), section.count())
            }
            Payload::DataCountSection { count, .. } => {
                ("number of data segments", limit!(limits.data_segments), *count)
            }
            Payload::DataSection(section) => {
                ("number of data segments", limit!(limits.data_segments), section.count())
            }
            Payload::CodeSectionStart { size, .. } => {
                (CODE_SECTION, limit!(limits.code_section_bytes), *size)
            }
            Payload::CodeSectionEntry(body) => {
                return within(FUNCTION, limit!(limits.function_bytes), size(body));
            }
            _ => return Ok(()),
        };
        within(what, limit, count.into())
    }

    /// What is read from a section that the validator has accepted.
    #[expect(clippy::too_many_lines, reason = "a table, entry after entry")]
    fn gather(&mut self, payload: &Payload<'_>) -> Result<(), ModuleError> {
        let limits = self.limits;
        match payload {
            Payload::TypeSection(section) => {
                for ty in section.clone().into_iter_err_on_gc_types() {
                    let ty = ty?;
                    let words = (ty.params().len() + ty.results().len()) as u64;
                    self.words += words;
                    within(
                        "parameters and results of all types, divided by 16",
                        limit!(limits.functions),
                        self.words / 16,
                    )?;
                    self.add(weight::TYPE + words * weight::TYPE_WORD)?;
                    self.types.push(ty);
                }
                self.shape.types = section.count();
            }
            Payload::ImportSection(section) => {
                for import in section.clone().into_imports() {
                    self.import(import?)?;
                }
            }
            Payload::FunctionSection(section) => {
                for ty in section.clone() {
                    self.functions.push(ty?);
                }
                self.shape.defined_functions = section.count();
            }
            Payload::TableSection(section) => {
                for table in section.clone() {
                    let initial = table?.ty.initial;
                    self.table_sizes.push(initial);
                    self.shape.table_elements = self.shape.table_elements.saturating_add(initial);
                    within(
                        "initial elements of all tables",
                        limit!(limits.table_elements),
                        self.shape.table_elements,
                    )?;
                }
                self.shape.tables = section.count();
            }
            Payload::MemorySection(section) => {
                for memory in section.clone() {
                    let memory = memory?;
                    let (what, limit) = match memory.memory64 {
                        false => {
                            ("initial size of the memory in bytes", limit!(limits.heap32_bytes))
                        }
                        true => (
                            "initial size of the 64-bit memory in bytes",
                            limit!(limits.heap64_bytes),
                        ),
                    };
                    within(what, limit, memory.initial.saturating_mul(WASM_PAGE_BYTES))?;
                    self.info.memory64 = memory.memory64;
                    self.info.heap_initial_wasm_pages = memory.initial;
                    self.info.heap_maximum_wasm_pages = memory.maximum;
                    self.shape.memory = Some(memory);
                }
            }
            Payload::GlobalSection(section) => {
                for (index, global) in section.clone().into_iter().enumerate() {
                    let global = global?;
                    let ty = global.ty;
                    self.globals.push(DeclaredGlobal {
                        mutable: ty.mutable,
                        exported: false,
                        initial: constant(&global)?,
                    });
                    if ty.mutable {
                        let index = index as u32;
                        if matches!(ty.content_type, ValType::Ref(_)) {
                            return Err(ModuleError::ReferenceGlobal(index));
                        }
                        self.shape.mutable_globals.push(index);
                    }
                }
            }
            Payload::ExportSection(section) => {
                for export in section.clone() {
                    self.export(export?)?;
                }
            }
            Payload::StartSection { func, .. } => {
                self.info.hooks.start = true;
                self.shape.start = Some(*func);
            }
            Payload::ElementSection(section) => {
                for element in section.clone() {
                    self.segment_elements += self.elements(&element?)?;
                    within(
                        "elements of all element segments",
                        limit!(limits.table_elements),
                        self.segment_elements,
                    )?;
                }
            }
            Payload::DataSection(section) => {
                self.add(u64::from(section.count()) * weight::DATA_SEGMENT)?;
                for data in section.clone() {
                    self.shape.data_active.push(matches!(data?.kind, DataKind::Active { .. }));
                }
            }
            Payload::CustomSection(section) => self.custom_section(section)?,
            _ => {}
        }
        Ok(())
    }

    fn add(&mut self, units: u64) -> Result<(), ModuleError> {
        self.weight = self.weight.saturating_add(units);
        let limits = self.limits;
        within(WEIGHT, limit!(limits.weight), self.weight)
    }

    /// Counts a function that needs code through which the host, or a call through a table, enters
    /// it.
    fn reach(&mut self, function: u32) -> Result<(), ModuleError> {
        let functions = self.functions.len();
        if self.reachable.len() < functions {
            self.reachable.resize(functions, false);
        }
        match self.reachable.get_mut(function as usize) {
            Some(reachable) if !*reachable => *reachable = true,
            _ => return Ok(()),
        }
        self.add(weight::REACHABLE + self.signature_words(function) * weight::REACHABLE_WORD)
    }

    /// Parameters and results of a function.
    fn signature_words(&self, function: u32) -> u64 {
        self.functions.get(function as usize).map_or(0, |ty| self.type_words(*ty))
    }

    fn type_words(&self, ty: u32) -> u64 {
        self.types.get(ty as usize).map_or(0, |ty| (ty.params().len() + ty.results().len()) as u64)
    }

    /// Weighs an element segment: one that can be laid out beforehand is data, any other is code.
    /// Returns the number of its elements.
    fn elements(&mut self, element: &Element<'_>) -> Result<u64, ModuleError> {
        let count = u64::from(match &element.items {
            ElementItems::Functions(items) => items.count(),
            ElementItems::Expressions(_, items) => items.count(),
        });
        let within_table = match &element.kind {
            ElementKind::Active { table_index, offset_expr } => {
                let offset = match offset_expr.get_operators_reader().read()? {
                    Operator::I32Const { value } => u64::from(value as u32),
                    Operator::I64Const { value } => value as u64,
                    _ => u64::MAX,
                };
                let table = self.table_sizes.get(table_index.unwrap_or(0) as usize).copied();
                table.is_some_and(|size| offset.saturating_add(count) <= size)
            }
            _ => false,
        };
        self.elements_laid_out &=
            within_table && matches!(element.items, ElementItems::Functions(_));
        let each = if self.elements_laid_out { 1 } else { weight::ELEMENT };
        self.add(weight::ELEMENT_SEGMENT + count * each)?;
        match &element.items {
            ElementItems::Functions(items) => {
                for function in items.clone() {
                    self.reach(function?)?;
                }
            }
            ElementItems::Expressions(_, items) => {
                for expression in items.clone() {
                    for operator in expression?.get_operators_reader() {
                        if let Operator::RefFunc { function_index } = operator? {
                            self.reach(function_index)?;
                        }
                    }
                }
            }
        }
        Ok(count)
    }

    /// Validates a function and weighs it on the way.
    fn function(
        &mut self,
        validator: &mut FuncValidator<ValidatorResources>,
        body: &FunctionBody<'_>,
    ) -> Result<(), ModuleError> {
        let words = self.signature_words(validator.index());
        let mut reader = body.get_binary_reader();
        validator.read_locals(&mut reader)?;
        reader.set_features(features());
        let mut weigher = std::mem::take(&mut self.weigher);
        weigher.begin(words, validator.len_locals(), self.info.memory64);
        let mut operators = OperatorsReader::new(reader);
        while !operators.eof() {
            let offset = operators.original_position();
            let operator = operators.read()?;
            let operands = validator.operand_stack_height();
            validator.op(offset, &operator)?;
            let words = match operator {
                Operator::Call { function_index } | Operator::ReturnCall { function_index } => {
                    self.signature_words(function_index)
                }
                Operator::CallIndirect { type_index, .. }
                | Operator::ReturnCallIndirect { type_index, .. } => self.type_words(type_index),
                Operator::Block { blockty }
                | Operator::Loop { blockty }
                | Operator::If { blockty } => match blockty {
                    BlockType::Empty => 0,
                    BlockType::Type(_) => 1,
                    BlockType::FuncType(ty) => self.type_words(ty),
                },
                Operator::BrTable { ref targets }
                    if targets.len() > weight::BRANCH_TABLE_TARGETS_MAX =>
                {
                    return Err(ModuleError::BranchTable {
                        targets: targets.len(),
                        most: weight::BRANCH_TABLE_TARGETS_MAX,
                    });
                }
                _ => 0,
            };
            weigher.instruction(&operator, operands, words);
        }
        operators.finish()?;
        let (weight, kept) = (weigher.weight(), weigher.code_weight());
        self.weigher = weigher;
        let limits = self.limits;
        within(
            "compile weight of a function in units of 256 bytes",
            limit!(limits.function_weight),
            weight,
        )?;
        self.add(weight::KEPT_FUNCTION + words / weight::WORDS_PER_UNIT + kept)
    }

    fn import(&mut self, import: Import<'_>) -> Result<(), ModuleError> {
        let (TypeRef::Func(ty), "ic0") = (import.ty, import.module) else {
            return Err(ModuleError::Import {
                module: shorten_name(import.module),
                name: shorten_name(import.name),
            });
        };
        let Some(function) = Ic0Function::find(import.name) else {
            return Err(ModuleError::UnknownImport { name: shorten_name(import.name), width: 32 });
        };
        // Code by which the module calls it, in addition to the records of its name and type.
        self.add(weight::KEPT_FUNCTION)?;
        self.imports.push((function, ty));
        self.functions.push(ty);
        self.shape.imported_functions += 1;
        Ok(())
    }

    fn export(&mut self, export: Export<'_>) -> Result<(), ModuleError> {
        if export.kind == ExternalKind::Global
            && let Some(global) = self.globals.get_mut(export.index as usize)
        {
            global.exported = true;
        }
        if export.kind != ExternalKind::Func {
            return Ok(());
        }
        let limits = self.limits;
        self.reach(export.index)?;
        match export_name(export.name) {
            ExportName::Other => {
                self.shape.other_exported_functions.push(export.index);
                return Ok(());
            }
            ExportName::Reserved => {
                return Err(ModuleError::EntryUnknown(shorten_name(export.name)));
            }
            ExportName::Hook(set) => set(&mut self.info.hooks),
            ExportName::Method(kind, name) => {
                if !self.methods.insert(name.to_owned()) {
                    return Err(ModuleError::MethodTwice(shorten_name(name)));
                }
                self.method_name_bytes += name.len() as u64;
                within(
                    "number of exported methods",
                    limit!(limits.exported_functions),
                    self.methods.len() as u64,
                )?;
                within(
                    "length of all exported method names in bytes",
                    limit!(limits.exported_names_bytes),
                    self.method_name_bytes,
                )?;
                let list = match kind {
                    MethodKind::Update => &mut self.info.updates,
                    MethodKind::Query => &mut self.info.queries,
                    MethodKind::CompositeQuery => &mut self.info.composite_queries,
                };
                list.push(name.to_owned());
            }
        }
        let ty =
            self.functions.get(export.index as usize).and_then(|ty| self.types.get(*ty as usize));
        if ty.is_none_or(|ty| !ty.params().is_empty() || !ty.results().is_empty()) {
            return Err(ModuleError::EntryType(shorten_name(export.name)));
        }
        self.shape.entries.push((export.name.to_owned(), export.index));
        Ok(())
    }

    fn custom_section(&mut self, section: &CustomSectionReader<'_>) -> Result<(), ModuleError> {
        let Some(rest) = section.name().strip_prefix("icp:") else { return Ok(()) };
        let (public, name) = match (rest.strip_prefix("public "), rest.strip_prefix("private ")) {
            (Some(name), _) => (true, name),
            (None, Some(name)) => (false, name),
            (None, None) => return Err(ModuleError::SectionUnknown(shorten_name(section.name()))),
        };
        let limits = self.limits;
        if !self.sections.insert(name.to_owned()) {
            return Err(ModuleError::SectionTwice(shorten_name(name)));
        }
        self.section_bytes += (name.len() + section.data().len()) as u64;
        within(
            "number of metadata custom sections",
            limit!(limits.custom_sections),
            self.sections.len() as u64,
        )?;
        within(
            "names and contents of metadata custom sections in bytes",
            limit!(limits.custom_sections_bytes),
            self.section_bytes,
        )?;
        self.info.enhanced_orthogonal_persistence |=
            !public && name == ENHANCED_ORTHOGONAL_PERSISTENCE;
        self.info.custom_sections.push(CustomSection {
            public,
            name: name.to_owned(),
            content: section.data().to_vec(),
        });
        Ok(())
    }

    fn finish(mut self, wasm_bytes: u64) -> Result<ValidatedModule, ModuleError> {
        for (function, ty) in &self.imports {
            self.import_type(function, *ty)?;
        }
        let shown = |global: DeclaredGlobal| {
            let is_shown = global.mutable || global.exported;
            let initial = global.initial.filter(|_| is_shown)?;
            Some(ModuleGlobal { mutable: global.mutable, initial })
        };
        self.info.globals =
            std::mem::take(&mut self.globals).into_iter().filter_map(shown).collect();
        self.info.updates.sort_unstable();
        self.info.queries.sort_unstable();
        self.info.composite_queries.sort_unstable();
        self.info.custom_sections.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        self.info.compile_instructions = limits::compile_instructions(wasm_bytes, self.weight);
        Ok(ValidatedModule { info: self.info, shape: self.shape })
    }

    fn import_type(&self, function: &Ic0Function, ty: u32) -> Result<(), ModuleError> {
        let memory64 = self.info.memory64;
        let width = if memory64 { 64 } else { 32 };
        if memory64 && function.only32 {
            return Err(ModuleError::UnknownImport { name: function.name.to_owned(), width });
        }
        let (params, result) = function.val_types(memory64);
        let found = self.types.get(ty as usize);
        if found.is_some_and(|found| found.params() == params && found.results() == result) {
            return Ok(());
        }
        let found =
            found.map(|found| signature(found.params(), found.results())).unwrap_or_default();
        Err(ModuleError::ImportType {
            name: function.name.to_owned(),
            width,
            expected: signature(&params, &result),
            found: shorten_name(&found),
        })
    }
}

fn size(body: &FunctionBody<'_>) -> u64 {
    body.range().end.saturating_sub(body.range().start) as u64
}

/// `(i32, i64) -> (i32)`.
fn signature(params: &[ValType], results: &[ValType]) -> String {
    let list =
        |types: &[ValType]| types.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    format!("({}) -> ({})", list(params), list(results))
}

#[cfg(test)]
mod tests;
