//! Rewrites a judged module into the one that runs, without renumbering anything that was there:
//!
//! * The memory gets its largest size at once, and `memory.size` and `memory.grow` work on a counter, so that growth costs
//!   nothing, is the same on every replica, and is undone with the other globals. Pages not grown yet read as zeros.
//! * Each procedure gets a wrapper that puts all mutable globals back to their values after start-up, then calls it.
//! * Start function, `_initialize` and the copying of the globals move into one export, called once per instance.
//! * A `nop`, which costs fuel, is put into long runs of instructions that cost none.
//! * All other exports and custom sections but the names go.

use reprise_abi::{ARGS_BUFFER_EXPORT, CALL_EXPORT_PREFIX, DESCRIBE_EXPORT, RESULT_BUFFER_EXPORT};
use wasm_encoder::{
    CodeSection, ConstExpr, CustomSection, DataCountSection, Encode, ExportKind, ExportSection,
    Function, GlobalType, HeapType, Instruction, MemorySection, MemoryType, Module, RawSection,
    RefType, SectionId, ValType,
};
use wasmparser::{FunctionBody, Operator};

use crate::{
    inspect::{Inspected, Items, MEMORY_EXPORT},
    module::InvalidModule,
};

/// Export that starts an instance.
pub(crate) const START_EXPORT: &str = "reprise_start";
/// Instructions without fuel cost that may follow each other at most.
const FREE_INSTRUCTIONS_MAX: u32 = 256;
const NOP: u8 = 0x01;

/// Numbers of what is appended.
struct Added {
    /// Types `(i32) -> i32` and `() -> ()`.
    type_call: u32,
    type_start: u32,
    /// Function that stands for `memory.grow`.
    grow: u32,
    start: u32,
    first_wrapper: u32,
    /// Global that stands for `memory.size`.
    pages: u32,
    /// First of the globals that keep the values after start-up.
    first_kept: u32,
}

/// Returns the module that runs, and the number of the first function that is not the guest's.
pub(crate) fn rewrite(found: &Inspected<'_>) -> Result<(Vec<u8>, u32), InvalidModule> {
    let functions = found.imported_functions + found.functions.count;
    let added = Added {
        type_call: found.types.count,
        type_start: found.types.count + 1,
        grow: functions,
        start: functions + 1,
        first_wrapper: functions + 2,
        pages: found.globals.count,
        first_kept: found.globals.count + 1,
    };
    let mut module = Module::new();
    section(&mut module, SectionId::Type, &types(found.types));
    copy(&mut module, SectionId::Import, found.imports);
    section(
        &mut module,
        SectionId::Function,
        &function_types(found, &added),
    );
    copy(&mut module, SectionId::Table, found.tables);
    module.section(&memory(found));
    section(&mut module, SectionId::Global, &globals(found));
    module.section(&exports(found, &added));
    copy(&mut module, SectionId::Element, found.elements);
    if let Some(count) = found.data_count {
        module.section(&DataCountSection { count });
    }
    module.section(&code(found, &added)?);
    copy(&mut module, SectionId::Data, found.data);
    if let Some(names) = found.names {
        module.section(&CustomSection {
            name: "name".into(),
            data: names.into(),
        });
    }
    Ok((module.finish(), functions))
}

fn section(module: &mut Module, id: SectionId, data: &[u8]) {
    module.section(&RawSection {
        id: id.into(),
        data,
    });
}

fn copy(module: &mut Module, id: SectionId, data: &[u8]) {
    if !data.is_empty() {
        section(module, id, data);
    }
}

/// A section's items with room for more: the count, and the items as they are.
fn extended(items: Items<'_>, added: u32) -> Vec<u8> {
    let mut data = Vec::with_capacity(items.bytes.len() + 64);
    (items.count + added).encode(&mut data);
    data.extend_from_slice(items.bytes);
    data
}

fn types(items: Items<'_>) -> Vec<u8> {
    const FUNCTION: u8 = 0x60;
    const I32: u8 = 0x7f;
    let mut data = extended(items, 2);
    data.extend_from_slice(&[FUNCTION, 1, I32, 1, I32]);
    data.extend_from_slice(&[FUNCTION, 0, 0]);
    data
}

fn function_types(found: &Inspected<'_>, added: &Added) -> Vec<u8> {
    let mut data = extended(found.functions, 2 + found.procedures.len() as u32);
    added.type_call.encode(&mut data);
    added.type_start.encode(&mut data);
    for _ in &found.procedures {
        added.type_call.encode(&mut data);
    }
    data
}

fn memory(found: &Inspected<'_>) -> MemorySection {
    let mut memories = MemorySection::new();
    memories.memory(MemoryType {
        minimum: found.memory_pages.1,
        maximum: Some(found.memory_pages.1),
        memory64: false,
        shared: false,
        page_size_log2: None,
    });
    memories
}

fn globals(found: &Inspected<'_>) -> Vec<u8> {
    let kept = found.mutable_globals.iter().map(|(_, ty)| *ty);
    let mut data = extended(found.globals, 2 + found.mutable_globals.len() as u32);
    push_global(
        &mut data,
        ValType::I32,
        &ConstExpr::i32_const(found.memory_pages.0 as i32),
    );
    for ty in kept.chain([wasmparser::ValType::I32]) {
        let (ty, zero) = match ty {
            wasmparser::ValType::I32 => (ValType::I32, ConstExpr::i32_const(0)),
            wasmparser::ValType::I64 => (ValType::I64, ConstExpr::i64_const(0)),
            wasmparser::ValType::F32 => (ValType::F32, ConstExpr::f32_const(0.0.into())),
            wasmparser::ValType::F64 => (ValType::F64, ConstExpr::f64_const(0.0.into())),
            wasmparser::ValType::V128 => (ValType::V128, ConstExpr::v128_const(0)),
            // The accepted features know no other reference type.
            wasmparser::ValType::Ref(_) => (
                ValType::Ref(RefType::FUNCREF),
                ConstExpr::ref_null(HeapType::FUNC),
            ),
        };
        push_global(&mut data, ty, &zero);
    }
    data
}

fn push_global(data: &mut Vec<u8>, val_type: ValType, value: &ConstExpr) {
    GlobalType {
        val_type,
        mutable: true,
        shared: false,
    }
    .encode(data);
    value.encode(data);
}

fn exports(found: &Inspected<'_>, added: &Added) -> ExportSection {
    let mut exports = ExportSection::new();
    exports.export(MEMORY_EXPORT, ExportKind::Memory, 0);
    exports.export(START_EXPORT, ExportKind::Func, added.start);
    for (name, function) in [
        (DESCRIBE_EXPORT, found.describe),
        (ARGS_BUFFER_EXPORT, found.args_buffer),
        (RESULT_BUFFER_EXPORT, found.result_buffer),
    ] {
        if let Some(function) = function {
            exports.export(name, ExportKind::Func, function);
        }
    }
    for (position, (name, _)) in found.procedures.iter().enumerate() {
        let name = format!("{CALL_EXPORT_PREFIX}{name}");
        exports.export(
            &name,
            ExportKind::Func,
            added.first_wrapper + position as u32,
        );
    }
    exports
}

fn code(found: &Inspected<'_>, added: &Added) -> Result<CodeSection, InvalidModule> {
    let mut code = CodeSection::new();
    for body in &found.bodies {
        code.raw(&rewrite_body(body, added)?);
    }
    code.function(&grow_function(found, added));
    code.function(&start_function(found, added));
    for (_, function) in &found.procedures {
        code.function(&wrapper(found, added, *function));
    }
    Ok(code)
}

/// Every global that a call may change, with the global that keeps its value.
fn kept_globals(found: &Inspected<'_>, added: &Added) -> impl Iterator<Item = (u32, u32)> {
    let own = found.mutable_globals.iter().map(|(number, _)| *number);
    own.chain([added.pages]).zip(added.first_kept..)
}

/// `memory.grow` on the counter: -1 where the largest size would be passed, else the size before.
fn grow_function(found: &Inspected<'_>, added: &Added) -> Function {
    let mut function = Function::new([]);
    for instruction in [
        Instruction::LocalGet(0),
        Instruction::I32Const(found.memory_pages.1 as i32),
        Instruction::GlobalGet(added.pages),
        Instruction::I32Sub,
        Instruction::I32GtU,
        Instruction::If(wasm_encoder::BlockType::Empty),
        Instruction::I32Const(-1),
        Instruction::Return,
        Instruction::End,
        Instruction::GlobalGet(added.pages),
        Instruction::GlobalGet(added.pages),
        Instruction::LocalGet(0),
        Instruction::I32Add,
        Instruction::GlobalSet(added.pages),
        Instruction::End,
    ] {
        function.instruction(&instruction);
    }
    function
}

fn start_function(found: &Inspected<'_>, added: &Added) -> Function {
    let mut function = Function::new([]);
    for start in found.start.iter().chain(&found.initialize) {
        function.instruction(&Instruction::Call(*start));
    }
    for (global, kept) in kept_globals(found, added) {
        function.instruction(&Instruction::GlobalGet(global));
        function.instruction(&Instruction::GlobalSet(kept));
    }
    function.instruction(&Instruction::End);
    function
}

fn wrapper(found: &Inspected<'_>, added: &Added, procedure: u32) -> Function {
    let mut function = Function::new([]);
    for (global, kept) in kept_globals(found, added) {
        function.instruction(&Instruction::GlobalGet(kept));
        function.instruction(&Instruction::GlobalSet(global));
    }
    function.instruction(&Instruction::LocalGet(0));
    function.instruction(&Instruction::Call(procedure));
    function.instruction(&Instruction::End);
    function
}

/// Counts the instructions since the last one that costs fuel, on the longest way that leads here.
#[derive(Default)]
struct FreeRun {
    count: u32,
    /// Per open block: the count at its `if`, and at the end of its first branch.
    open: Vec<(Option<u32>, u32)>,
}

impl FreeRun {
    fn on(&mut self, operator: &Operator<'_>) {
        self.count += 1;
        match operator {
            Operator::If { .. } => self.open.push((Some(self.count), 0)),
            Operator::Block { .. } | Operator::Loop { .. } => self.open.push((None, 0)),
            Operator::Else => {
                if let Some((at_if, first_branch)) = self.open.last_mut() {
                    *first_branch = self.count;
                    self.count = at_if.take().unwrap_or(self.count);
                }
            }
            Operator::End => {
                let (at_if, first_branch) = self.open.pop().unwrap_or_default();
                self.count = self.count.max(first_branch).max(at_if.unwrap_or(0));
            }
            Operator::Br { .. }
            | Operator::BrIf { .. }
            | Operator::BrTable { .. }
            | Operator::Call { .. }
            | Operator::CallIndirect { .. }
            | Operator::Nop => self.count = 0,
            _ => {}
        }
    }
}

/// A function's bytes with the two memory instructions replaced and the costs put in.
fn rewrite_body(body: &FunctionBody<'_>, added: &Added) -> Result<Vec<u8>, InvalidModule> {
    let (bytes, origin) = (body.as_bytes(), body.range().start);
    let mut out = Vec::with_capacity(bytes.len() + bytes.len() / 128 + 8);
    let mut copied = 0;
    let mut run = FreeRun::default();
    let mut reader = body.get_operators_reader()?;
    while !reader.eof() {
        let (operator, offset) = reader.read_with_offset()?;
        let (start, end) = (offset - origin, reader.original_position() - origin);
        run.on(&operator);
        let replacement = match operator {
            Operator::MemorySize { .. } => Some(Instruction::GlobalGet(added.pages)),
            Operator::MemoryGrow { .. } => Some(Instruction::Call(added.grow)),
            _ => None,
        };
        // After the instruction, never before: before an `end` the cost would fall on one of two ways only.
        let costs = run.count >= FREE_INSTRUCTIONS_MAX && !reader.eof();
        if !costs && replacement.is_none() {
            continue;
        }
        out.extend_from_slice(&bytes[copied..start]);
        match replacement {
            Some(instruction) => instruction.encode(&mut out),
            None => out.extend_from_slice(&bytes[start..end]),
        }
        if costs {
            out.push(NOP);
            run.count = 0;
        }
        copied = end;
    }
    out.extend_from_slice(&bytes[copied..]);
    Ok(out)
}
