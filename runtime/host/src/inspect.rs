//! Checks an uploaded module before any part of it runs. It must be valid wasm of the accepted features, with imports that exist, one
//! memory of its own, and sizes within bounds. The check also collects the facts that `rewrite` needs.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use reprise_abi::{
    ARGS_BUFFER_EXPORT, CALL_EXPORT_PREFIX, DESCRIBE_EXPORT, DESCRIBE_SECTION, ON_DEPLOY_EXPORT, RESULT_BUFFER_EXPORT,
};
use reprise_base::limits::PROCEDURES_MAX;
use wasmparser::{
    BinaryReaderError, ConstExpr, DataKind, ElementItems, ElementSectionReader, Export, ExternalKind, FromReader,
    FuncValidatorAllocations, FunctionBody, Import, Imports, Operator, OperatorsReader, Parser, Payload,
    SectionLimited, TypeRef, TypeSectionReader, ValType, ValidPayload, Validator,
};

use crate::{
    calls::{find_import, imports},
    depth::{self, FunctionShape},
    effort::{Arity, Effort, HANDED_ON_MAX, ModuleFacts},
    engine::Limits,
    features::{features, untaken_feature},
    module::InvalidModule,
};

/// True for exports that the host enters for a call.
fn is_entry(export: &str) -> bool {
    export == ON_DEPLOY_EXPORT || export.starts_with(CALL_EXPORT_PREFIX)
}

/// Export under which toolchains offer their start-up function.
const INITIALIZE_EXPORT: &str = "_initialize";
pub(crate) const MEMORY_EXPORT: &str = "memory";
pub(crate) const WASM_PAGE_BYTES: u64 = 65_536;

/// Bounds of a module beyond wasm's own, so that one upload can't occupy the compiler or the address space for long.
const FUNCTIONS_MAX: usize = 50_000;
/// Number of function types at most, because each gets code, used or not. The second bound is that of their parameters and results
/// together.
const TYPES_MAX: u32 = 5_000;
const TYPE_VALUES_MAX: usize = 50_000;
const FUNCTION_BYTES_MAX: usize = 256 << 10;
const EXPORTS_MAX: u32 = 10_000;
const MUTABLE_GLOBALS_MAX: usize = 1_000;
const TABLE_ELEMENTS_MAX: u64 = 1 << 17;

/// The bounds that apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Strictness {
    /// All bounds.
    Upload,
    /// Only the bounds that confine guests: a module that was accepted earlier may be larger than today's limits allow.
    Known,
}

/// A section that `rewrite` extends: its items as they are, and their number.
#[derive(Clone, Copy, Default)]
pub(crate) struct Items<'a> {
    pub count: u32,
    pub bytes: &'a [u8],
}

/// The contents of a module.
#[derive(Default)]
pub(crate) struct ModuleParts<'a> {
    pub types: Items<'a>,
    pub imports: &'a [u8],
    pub functions: Items<'a>,
    /// Number of elements of each table at the start, and its declared maximum.
    pub tables: Vec<(u64, Option<u64>)>,
    pub globals: Items<'a>,
    pub elements: Items<'a>,
    pub data_count: Option<u32>,
    pub data: &'a [u8],
    pub names: Option<&'a [u8]>,
    pub bodies: Vec<FunctionBody<'a>>,
    /// Shapes of the functions in `bodies`.
    pub shapes: Vec<FunctionShape>,
    pub imported_functions: u32,
    /// Number and type of each mutable global.
    pub mutable_globals: Vec<(u32, ValType)>,
    /// Size in wasm pages, at the start and at most.
    pub memory_pages: (u64, u64),
    pub memory_exported: bool,
    pub start: Option<u32>,
    pub initialize: Option<u32>,
    pub describe: Option<u32>,
    pub args_buffer: Option<u32>,
    pub result_buffer: Option<u32>,
    /// Name and function of each export by which the module is entered: `reprise_call_NAME`, `reprise_on_deploy`.
    pub entries: Vec<(&'a str, u32)>,
    /// Names of exported functions, for backtraces of modules without a name section.
    pub exported_names: Vec<(u32, &'a str)>,
    pub description: Option<(&'a [u8], u64)>,
    /// Bytes of memory that active data segments fill.
    pub data_ranges: Vec<(u32, u32)>,
    /// True if the module changes state that the hot set does not restore (tables, dropped segments).
    pub needs_fresh_instance: bool,
    /// Exported functions that code refers to by `ref.func`. An export is one way to declare them for that.
    pub referred_exports: BTreeSet<u32>,
    referred: BTreeSet<u32>,
    function_types: Vec<u32>,
    signatures: Vec<String>,
    arities: Vec<Arity>,
    /// Functions that segments and globals refer to, so that they may be in a table.
    taken: Vec<u32>,
    /// For each type, the number of its signature among the different ones.
    signature_numbers: Vec<u32>,
    /// The greatest number of operands that each body holds at once, and whether there are vectors among them.
    operands: Vec<(u64, bool)>,
    global_values: Vec<Option<u32>>,
    table_elements: u64,
    effort: Effort,
    /// True if a module that would occupy the compiler for long is refused.
    is_upload: bool,
}

/// The first bytes of each module in the binary format.
const MAGIC: &[u8] = b"\0asm";

fn invalid(reason: impl Into<String>, offset: usize) -> InvalidModule {
    InvalidModule {
        offset: Some(offset as u64),
        ..InvalidModule::new(reason)
    }
}

impl From<BinaryReaderError> for InvalidModule {
    fn from(error: BinaryReaderError) -> Self {
        // The validator explains some mistakes over several lines; a reason is one line.
        let line = error.message().lines().next().unwrap_or_default();
        match untaken_feature(line) {
            Some(reason) => invalid(reason, error.offset()),
            None => invalid(line.trim_end_matches([':', ' ']), error.offset()),
        }
    }
}

/// Validates `wasm` and collects its parts.
pub(crate) fn inspect<'a>(wasm: &'a [u8], limits: &Limits, mode: Strictness) -> Result<ModuleParts<'a>, InvalidModule> {
    let max = limits.module_bytes_max;
    if wasm.len() > max && mode == Strictness::Upload {
        return Err(InvalidModule::new(format!(
            "module of {} bytes is longer than {max}",
            wasm.len()
        )));
    }
    if !wasm.starts_with(MAGIC) {
        let reason = "not WebAssembly, which begins with the bytes 00 61 73 6d: upload the .wasm file that `reprise build` makes";
        return Err(invalid(reason, 0));
    }
    let mut found = ModuleParts {
        is_upload: mode == Strictness::Upload,
        operands: validate(wasm)?,
        ..ModuleParts::default()
    };
    for payload in Parser::new(0).parse_all(wasm) {
        found.take(wasm, payload?, limits)?;
    }
    found.finish()?;
    Ok(found)
}

/// Validates a whole module. Returns how many operands each function holds at once, and whether there are vectors among them.
fn validate(wasm: &[u8]) -> Result<Vec<(u64, bool)>, InvalidModule> {
    let mut validator = Validator::new_with_features(features());
    let (mut memory, mut operands) = (FuncValidatorAllocations::default(), Vec::new());
    for payload in Parser::new(0).parse_all(wasm) {
        let ValidPayload::Func(function, body) = validator.payload(&payload?)? else {
            continue;
        };
        let mut function = function.into_validator(memory);
        let mut reader = body.get_binary_reader();
        function.read_locals(&mut reader)?;
        let (mut operators, mut most, mut has_vectors) = (OperatorsReader::new(reader), 0, false);
        while !operators.eof() {
            let (operator, offset) = operators.read_with_offset()?;
            function.op(offset, &operator)?;
            most = most.max(function.operand_stack_height());
            has_vectors |= function.get_operand_type(0) == Some(Some(ValType::V128));
        }
        operators.finish()?;
        operands.push((most.into(), has_vectors));
        memory = function.into_allocations();
    }
    Ok(operands)
}

/// Returns the items of a section, without their count.
fn items<'a, T: FromReader<'a>>(wasm: &'a [u8], section: &SectionLimited<'a, T>) -> Items<'a> {
    Items {
        count: section.count(),
        bytes: &wasm[section.original_position()..section.range().end],
    }
}

impl<'a> ModuleParts<'a> {
    fn take(&mut self, wasm: &'a [u8], payload: Payload<'a>, limits: &Limits) -> Result<(), InvalidModule> {
        let whole = |range: Range<usize>| &wasm[range];
        match payload {
            Payload::TypeSection(section) => {
                self.types = items(wasm, &section);
                self.take_types(section)?;
            }
            Payload::ImportSection(section) => {
                self.imports = whole(section.range());
                self.take_imports(section)?;
            }
            Payload::FunctionSection(section) => {
                if self.is_upload && section.count() as usize > FUNCTIONS_MAX {
                    return Err(invalid("too many functions", section.range().start));
                }
                self.functions = items(wasm, &section);
                for ty in section {
                    self.function_types.push(ty?);
                }
            }
            Payload::TableSection(section) => self.take_tables(section)?,
            Payload::MemorySection(section) => self.take_memory(section, limits)?,
            Payload::GlobalSection(section) => {
                self.globals = items(wasm, &section);
                self.take_globals(section)?;
            }
            Payload::ExportSection(section) => self.take_exports(section)?,
            Payload::StartSection { func, .. } => self.start = Some(func),
            Payload::ElementSection(section) => {
                self.elements = items(wasm, &section);
                self.take_elements(section)?;
            }
            Payload::DataCountSection { count, .. } => self.data_count = Some(count),
            Payload::DataSection(section) => {
                self.data = whole(section.range());
                self.take_data(section)?;
            }
            Payload::CodeSectionEntry(body) => self.take_body(body)?,
            Payload::CustomSection(section) if section.name() == DESCRIBE_SECTION => {
                let offset = section.data_offset();
                if self.description.replace((section.data(), offset as u64)).is_some() {
                    return Err(invalid(format!("second section {DESCRIBE_SECTION}"), offset));
                }
            }
            Payload::CustomSection(section) if section.name() == "name" => {
                self.names = Some(section.data());
            }
            _ => {}
        }
        Ok(())
    }

    fn take_types(&mut self, section: TypeSectionReader<'a>) -> Result<(), InvalidModule> {
        let (offset, mut known) = (section.range().start, BTreeMap::new());
        if self.is_upload && section.count() > TYPES_MAX {
            return Err(invalid(
                format!("{} types of functions are more than {TYPES_MAX}", section.count()),
                offset,
            ));
        }
        let mut values = 0;
        for ty in section.into_iter_err_on_gc_types() {
            let ty = ty?;
            let (params, results) = (ty.params().len(), ty.results().len());
            if self.is_upload && results > HANDED_ON_MAX {
                return Err(invalid(
                    format!("type of {results} results has more than {HANDED_ON_MAX}"),
                    offset,
                ));
            }
            values += params + results;
            if self.is_upload && values > TYPE_VALUES_MAX {
                return Err(invalid(
                    format!("types of functions have more than {TYPE_VALUES_MAX} parameters and results"),
                    offset,
                ));
            }
            let signature = signature(ty.params(), ty.results());
            let new = known.len() as u32;
            self.signature_numbers
                .push(*known.entry(signature.clone()).or_insert(new));
            self.signatures.push(signature);
            self.arities.push(Arity { params, results });
        }
        Ok(())
    }

    fn take_imports(&mut self, section: SectionLimited<'a, Imports<'a>>) -> Result<(), InvalidModule> {
        for group in section {
            let Imports::Single(offset, import) = group? else {
                return Err(InvalidModule::new("compact imports are not accepted"));
            };
            self.take_import(offset, &import)?;
        }
        Ok(())
    }

    fn take_import(&mut self, offset: usize, import: &Import<'a>) -> Result<(), InvalidModule> {
        let (module, name) = (import.module, import.name);
        let what = match import.ty {
            TypeRef::Func(ty) => {
                let Some(known) = find_import(module, name) else {
                    return Err(invalid(unknown_import(module, name), offset));
                };
                let found = self.signature_of_type(ty);
                if found != known.signature {
                    return Err(invalid(
                        format!(
                            "import {module}.{name} has type {}, expected {}",
                            readable(found),
                            readable(known.signature)
                        ),
                        offset,
                    ));
                }
                self.imported_functions += 1;
                self.function_types.push(ty);
                return Ok(());
            }
            TypeRef::Memory(_) => "memory",
            TypeRef::Global(_) => "global",
            TypeRef::Table(_) => "table",
            TypeRef::Tag(_) | TypeRef::FuncExact(_) => "item",
        };
        Err(invalid(
            format!("import {module}.{name}: an imported {what} is not accepted"),
            offset,
        ))
    }

    fn signature_of_type(&self, ty: u32) -> &str {
        self.signatures.get(ty as usize).map_or("?", String::as_str)
    }

    fn signature_of_function(&self, function: u32) -> &str {
        self.function_types
            .get(function as usize)
            .map_or("?", |ty| self.signature_of_type(*ty))
    }

    fn take_tables(&mut self, section: SectionLimited<'a, wasmparser::Table<'a>>) -> Result<(), InvalidModule> {
        let offset = section.range().start;
        for table in section {
            let ty = table?.ty;
            self.table_elements = self.table_elements.saturating_add(ty.initial);
            self.tables.push((ty.initial, ty.maximum));
        }
        if self.table_elements > TABLE_ELEMENTS_MAX {
            return Err(invalid(
                format!("tables of more than {TABLE_ELEMENTS_MAX} elements"),
                offset,
            ));
        }
        Ok(())
    }

    fn take_elements(&mut self, section: ElementSectionReader<'a>) -> Result<(), InvalidModule> {
        for element in section {
            match element?.items {
                ElementItems::Functions(functions) => {
                    for function in functions {
                        self.taken.push(function?);
                    }
                }
                ElementItems::Expressions(_, expressions) => {
                    for expression in expressions {
                        self.take_references(&expression?)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Records the functions that a constant expression refers to.
    fn take_references(&mut self, expression: &ConstExpr<'a>) -> Result<(), InvalidModule> {
        for operator in expression.get_operators_reader() {
            if let Operator::RefFunc { function_index } = operator? {
                self.taken.push(function_index);
            }
        }
        Ok(())
    }

    fn take_memory(
        &mut self,
        section: SectionLimited<'a, wasmparser::MemoryType>,
        limits: &Limits,
    ) -> Result<(), InvalidModule> {
        let offset = section.range().start;
        let pages_max = limits.guest_memory_bytes_max as u64 / WASM_PAGE_BYTES;
        for memory in section {
            let memory = memory?;
            if memory.initial > pages_max {
                return Err(invalid(
                    format!(
                        "memory of {} pages is larger than the limit of {pages_max}",
                        memory.initial
                    ),
                    offset,
                ));
            }
            let max = memory.maximum.unwrap_or(pages_max).min(pages_max);
            self.memory_pages = (memory.initial, max);
        }
        Ok(())
    }

    fn take_globals(&mut self, section: SectionLimited<'a, wasmparser::Global<'a>>) -> Result<(), InvalidModule> {
        let offset = section.range().start;
        for (number, global) in section.into_iter().enumerate() {
            let global = global?;
            let value = self.evaluate(&global.init_expr)?;
            self.take_references(&global.init_expr)?;
            self.global_values.push(value.filter(|_| !global.ty.mutable));
            if global.ty.mutable {
                self.mutable_globals.push((number as u32, global.ty.content_type));
            }
        }
        if self.is_upload && self.mutable_globals.len() > MUTABLE_GLOBALS_MAX {
            return Err(invalid(
                format!("more than {MUTABLE_GLOBALS_MAX} mutable globals"),
                offset,
            ));
        }
        Ok(())
    }

    fn take_exports(&mut self, section: SectionLimited<'a, Export<'a>>) -> Result<(), InvalidModule> {
        if self.is_upload && section.count() > EXPORTS_MAX {
            return Err(invalid(
                format!("module of {} exports has more than {EXPORTS_MAX}", section.count()),
                section.range().start,
            ));
        }
        for export in section.into_iter_with_offsets() {
            let (offset, export) = export?;
            match export.kind {
                ExternalKind::Func => self.take_function_export(offset, export.name, export.index)?,
                ExternalKind::Memory if export.name == MEMORY_EXPORT => self.memory_exported = true,
                _ if is_entry(export.name) => {
                    return Err(invalid(format!("export {} is not a function", export.name), offset));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn take_function_export(&mut self, offset: usize, name: &'a str, function: u32) -> Result<(), InvalidModule> {
        self.exported_names.push((function, name));
        let (slot, expected) = match name {
            INITIALIZE_EXPORT => (Some(&mut self.initialize), ">"),
            DESCRIBE_EXPORT => (Some(&mut self.describe), ">I"),
            ARGS_BUFFER_EXPORT => (Some(&mut self.args_buffer), ">I"),
            RESULT_BUFFER_EXPORT => (Some(&mut self.result_buffer), ">I"),
            _ if is_entry(name) => (None, "i>i"),
            _ => return Ok(()),
        };
        if self.is_upload && slot.is_none() && self.entries.len() > PROCEDURES_MAX {
            return Err(invalid(
                format!("more than {PROCEDURES_MAX} procedures are exported"),
                offset,
            ));
        }
        match slot {
            Some(slot) => *slot = Some(function),
            None => self.entries.push((name, function)),
        }
        let found = self.signature_of_function(function);
        if found != expected {
            return Err(invalid(
                format!(
                    "export {name} has type {}, expected {}",
                    readable(found),
                    readable(expected)
                ),
                offset,
            ));
        }
        Ok(())
    }

    fn take_data(&mut self, section: SectionLimited<'a, wasmparser::Data<'a>>) -> Result<(), InvalidModule> {
        let memory_bytes = self.memory_pages.0 * WASM_PAGE_BYTES;
        for data in section {
            let data = data?;
            let DataKind::Active { offset_expr, .. } = &data.kind else {
                continue;
            };
            let start = self
                .evaluate(offset_expr)?
                .ok_or_else(|| invalid("data segment at an offset that is no constant", data.range.start))?;
            let end = u64::from(start) + data.data.len() as u64;
            if end > memory_bytes {
                return Err(invalid("data segment outside of the memory", data.range.start));
            }
            self.data_ranges.push((start, end as u32));
        }
        Ok(())
    }

    /// Returns the value of a constant expression of type i32.
    fn evaluate(&self, expression: &ConstExpr<'a>) -> Result<Option<u32>, InvalidModule> {
        let mut stack: Vec<Option<u32>> = Vec::new();
        for operator in expression.get_operators_reader() {
            let binary = match operator? {
                Operator::I32Const { value } => {
                    stack.push(Some(value as u32));
                    continue;
                }
                Operator::GlobalGet { global_index } => {
                    stack.push(self.global_values.get(global_index as usize).copied().flatten());
                    continue;
                }
                Operator::End => continue,
                Operator::I32Add => u32::wrapping_add,
                Operator::I32Sub => u32::wrapping_sub,
                Operator::I32Mul => u32::wrapping_mul,
                _ => {
                    stack.push(None); // a value of another type is never an offset
                    continue;
                }
            };
            let (right, left) = (stack.pop().flatten(), stack.pop().flatten());
            stack.push(left.zip(right).map(|(left, right)| binary(left, right)));
        }
        Ok(stack.pop().flatten())
    }

    fn take_body(&mut self, body: FunctionBody<'a>) -> Result<(), InvalidModule> {
        let range = body.range();
        if self.is_upload && range.len() > FUNCTION_BYTES_MAX {
            return Err(invalid(
                format!("function of {} bytes is longer than {FUNCTION_BYTES_MAX}", range.len()),
                range.start,
            ));
        }
        let function = self.imported_functions + self.bodies.len() as u32;
        let ty = self.function_types[function as usize];
        let own = self.arities.get(ty as usize).copied().unwrap_or_default();
        let around = ModuleFacts {
            types: &self.arities,
            functions: &self.function_types,
            imported_functions: self.imported_functions,
            is_bounded: self.is_upload,
        };
        let mut shape = FunctionShape {
            ty,
            signature: self.signature_numbers[ty as usize],
            params: own.params as u32,
            ..FunctionShape::default()
        };
        let (mut changes_more, mut instructions, referred) = (false, 0, &mut self.referred);
        let numbers = &self.signature_numbers;
        let locals = self.effort.add(&body, own, &around, |operator| {
            instructions += 1;
            match operator {
                Operator::Call { function_index } => shape.calls.push(*function_index),
                Operator::CallIndirect { type_index, .. } => shape.calls_through.push(numbers[*type_index as usize]),
                Operator::RefFunc { function_index } => _ = referred.insert(*function_index),
                Operator::TableSet { .. }
                | Operator::TableGrow { .. }
                | Operator::TableFill { .. }
                | Operator::TableCopy { .. }
                | Operator::TableInit { .. }
                | Operator::ElemDrop { .. }
                | Operator::DataDrop { .. } => changes_more = true,
                _ => {}
            }
        })?;
        // A vector takes two words. Few functions have any, and the estimate of a frame may be too large.
        let (operands, has_vectors) = self.operands.get(self.bodies.len()).copied().unwrap_or_default();
        let words_each = 1 + u64::from(has_vectors);
        let values = (locals + own.results as u64) * words_each;
        shape.frame_bytes = depth::frame_bytes(values, operands * words_each, instructions);
        for list in [&mut shape.calls, &mut shape.calls_through] {
            list.sort_unstable();
            list.dedup();
        }
        self.needs_fresh_instance |= changes_more;
        self.shapes.push(shape);
        self.bodies.push(body);
        Ok(())
    }

    fn finish(&mut self) -> Result<(), InvalidModule> {
        let exported = self.exported_names.iter().map(|(function, _)| *function);
        self.referred_exports = exported.filter(|function| self.referred.contains(function)).collect();
        for taken in self.taken.iter().chain(&self.referred) {
            let own = taken.checked_sub(self.imported_functions);
            if let Some(shape) = own.and_then(|at| self.shapes.get_mut(at as usize)) {
                shape.is_taken = true;
            }
        }
        if !self.memory_exported {
            return Err(InvalidModule::new(format!(
                "module does not export its {MEMORY_EXPORT}"
            )));
        }
        for function in self.start.iter().chain(&self.initialize) {
            if *function < self.imported_functions {
                return Err(InvalidModule::new("start function is an import"));
            }
        }
        Ok(())
    }
}

fn unknown_import(module: &str, name: &str) -> String {
    let known = imports().any(|import| import.module == module);
    let hint = if known { "" } else { " (no such import module)" };
    format!("unknown import {module}.{name}{hint}")
}

/// Returns the signature text of `calls::Import`.
fn signature(params: &[ValType], results: &[ValType]) -> String {
    let letter = |ty: &ValType| match ty {
        ValType::I32 => 'i',
        ValType::I64 => 'I',
        ValType::F32 => 'f',
        ValType::F64 => 'F',
        ValType::V128 => 'v',
        ValType::Ref(_) => 'r',
    };
    let mut text: String = params.iter().map(letter).collect();
    text.push('>');
    text.extend(results.iter().map(letter));
    text
}

/// Returns `ii>I` as `(i32, i32) -> i64`.
fn readable(signature: &str) -> String {
    let (params, results) = signature.split_once('>').unwrap_or((signature, ""));
    let list = |text: &str| {
        let names: Vec<_> = text
            .chars()
            .map(|c| match c {
                'i' => "i32",
                'I' => "i64",
                'f' => "f32",
                'F' => "f64",
                'v' => "v128",
                _ => "ref",
            })
            .collect();
        names.join(", ")
    };
    format!("({}) -> ({})", list(params), list(results))
}
