//! Rewrites a judged module into the one that runs, without renumbering anything that was there:
//!
//! * The memory gets its largest size at once, and `memory.size` and `memory.grow` work on a counter, so that growth costs
//!   nothing, is the same on every replica, and is undone with the other globals. Pages not grown yet read as zeros.
//! * Each procedure gets a wrapper that puts all mutable globals back to their values after start-up, then calls it, and
//!   returns the fuel that is left beside its result.
//! * Start function, `_initialize` and the copying of the globals move into one export, called once per instance.
//! * Fuel is a global that goes down by one at the beginning of a function, at each turn of a loop, before a call of the host or
//!   through a table and after a long run of other instructions, and by the bytes or items of a bulk operation before
//!   it. Below zero the guest traps. So a loop's turn pays once, and calls between the guest's own functions carry nothing.
//! * All other exports and custom sections but the names go. A function that code takes a reference to, and that an export alone
//!   declared for that, is declared by a segment.

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
/// Export of the fuel that is left; below zero once it was spent.
pub(crate) const FUEL_EXPORT: &str = "reprise_fuel";
/// Instructions without fuel cost that may follow each other at most.
const FREE_INSTRUCTIONS_MAX: u32 = 256;

/// Globals that each procedure's wrapper puts back itself; more of them are put back in one place, for all procedures times all
/// globals would be a module of millions of instructions.
const FEW_GLOBALS_MAX: usize = 8;

/// Numbers of what is appended.
struct Added {
    /// Types `(i32) -> i32`, `() -> ()` and `(i32) -> (i32, i64)`.
    type_call: u32,
    type_start: u32,
    type_entry: u32,
    /// Function that stands for `memory.grow`.
    grow: u32,
    start: u32,
    /// Function that puts the globals back, for the wrappers of modules that have many.
    put_back: u32,
    first_wrapper: u32,
    /// Global that stands for `memory.size`.
    pages: u32,
    /// First of the globals that keep the values after start-up.
    first_kept: u32,
    /// Global with the fuel that is left.
    fuel: u32,
    /// Global that holds the size of a bulk operation while it is paid for.
    size: u32,
    /// What a call may burn. None: nothing is charged.
    fuel_max: Option<i64>,
    /// Functions below this one are the host's.
    imported_functions: u32,
}

/// Returns the module that runs, and the number of the first function that is not the guest's.
///
/// `fuel_max` is what a call may burn; without it nothing is charged.
pub(crate) fn rewrite(
    found: &Inspected<'_>,
    fuel_max: Option<u64>,
) -> Result<(Vec<u8>, u32), InvalidModule> {
    let functions = found.imported_functions + found.functions.count;
    let first_kept = found.globals.count + 1;
    // Behind the kept values of the guest's globals and of the counter of pages.
    let fuel = first_kept + found.mutable_globals.len() as u32 + 1;
    let added = Added {
        type_call: found.types.count,
        type_start: found.types.count + 1,
        type_entry: found.types.count + 2,
        grow: functions,
        start: functions + 1,
        put_back: functions + 2,
        first_wrapper: functions + 3,
        pages: found.globals.count,
        first_kept,
        fuel,
        size: fuel + 1,
        fuel_max: fuel_max.map(|fuel| i64::try_from(fuel).unwrap_or(i64::MAX)),
        imported_functions: found.imported_functions,
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
    section(&mut module, SectionId::Global, &globals(found, &added));
    module.section(&exports(found, &added));
    elements(&mut module, found);
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

/// The element segments, and one that declares functions whose exports go. It comes last, so that no other changes its number.
fn elements(module: &mut Module, found: &Inspected<'_>) {
    const DECLARED_FUNCTIONS: [u8; 2] = [3, 0];
    let declared = &found.referred_exports;
    if declared.is_empty() && found.elements.count == 0 {
        return;
    }
    let mut data = extended(found.elements, !declared.is_empty() as u32);
    if !declared.is_empty() {
        data.extend_from_slice(&DECLARED_FUNCTIONS);
        (declared.len() as u32).encode(&mut data);
        declared.iter().for_each(|function| function.encode(&mut data));
    }
    section(module, SectionId::Element, &data);
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
    const I64: u8 = 0x7e;
    let mut data = extended(items, 3);
    data.extend_from_slice(&[FUNCTION, 1, I32, 1, I32]);
    data.extend_from_slice(&[FUNCTION, 0, 0]);
    data.extend_from_slice(&[FUNCTION, 1, I32, 2, I32, I64]);
    data
}

fn function_types(found: &Inspected<'_>, added: &Added) -> Vec<u8> {
    let mut data = extended(found.functions, 3 + found.procedures.len() as u32);
    added.type_call.encode(&mut data);
    added.type_start.encode(&mut data);
    added.type_start.encode(&mut data);
    for _ in &found.procedures {
        added.type_entry.encode(&mut data);
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

fn globals(found: &Inspected<'_>, added: &Added) -> Vec<u8> {
    let kept = found.mutable_globals.iter().map(|(_, ty)| *ty);
    let mut data = extended(found.globals, 4 + found.mutable_globals.len() as u32);
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
    let fuel = ConstExpr::i64_const(added.fuel_max.unwrap_or(0));
    push_global(&mut data, ValType::I64, &fuel);
    push_global(&mut data, ValType::I32, &ConstExpr::i32_const(0));
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
    exports.export(FUEL_EXPORT, ExportKind::Global, added.fuel);
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
    code.function(&put_back_function(found, added));
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

fn put_back(found: &Inspected<'_>, added: &Added, function: &mut Function) {
    for (global, kept) in kept_globals(found, added) {
        function.instruction(&Instruction::GlobalGet(kept));
        function.instruction(&Instruction::GlobalSet(global));
    }
}

fn put_back_function(found: &Inspected<'_>, added: &Added) -> Function {
    let mut function = Function::new([]);
    if !has_few_globals(found) {
        put_back(found, added, &mut function);
    }
    function.instruction(&Instruction::End);
    function
}

/// What compilers of programs make: the wrappers put the globals back themselves, which saves a call of a call.
fn has_few_globals(found: &Inspected<'_>) -> bool {
    found.mutable_globals.len() <= FEW_GLOBALS_MAX
}

fn wrapper(found: &Inspected<'_>, added: &Added, procedure: u32) -> Function {
    let mut function = Function::new([]);
    match has_few_globals(found) {
        true => put_back(found, added, &mut function),
        false => {
            function.instruction(&Instruction::Call(added.put_back));
        }
    }
    if let Some(fuel) = added.fuel_max {
        function.instruction(&Instruction::I64Const(fuel));
        function.instruction(&Instruction::GlobalSet(added.fuel));
    }
    function.instruction(&Instruction::LocalGet(0));
    function.instruction(&Instruction::Call(procedure));
    function.instruction(&Instruction::GlobalGet(added.fuel));
    function.instruction(&Instruction::End);
    function
}

/// Counts the instructions since the last that was paid for, on the longest way that leads here.
#[derive(Default)]
struct FreeRun {
    count: u32,
    open: Vec<OpenBlock>,
}

/// A block that is not ended yet.
#[derive(Default)]
struct OpenBlock {
    is_loop: bool,
    /// The count at its `if`, while there is no `else`.
    at_if: Option<u32>,
    /// The largest count of those ways that lead to its end and were seen already.
    at_end: u32,
}

impl FreeRun {
    /// Notes a jump to the block `depth` blocks out. One to a loop leads to where its turn is paid for.
    fn jump(&mut self, depth: u32) {
        let at = self.open.len().checked_sub(depth as usize + 1);
        if let Some(target) = at.and_then(|at| self.open.get_mut(at))
            && !target.is_loop
        {
            target.at_end = target.at_end.max(self.count);
        }
    }

    fn on(&mut self, operator: &Operator<'_>) -> Result<(), InvalidModule> {
        self.count += 1;
        match operator {
            Operator::If { .. } => self.open.push(OpenBlock {
                at_if: Some(self.count),
                ..OpenBlock::default()
            }),
            Operator::Block { .. } => self.open.push(OpenBlock::default()),
            Operator::Loop { .. } => {
                self.open.push(OpenBlock {
                    is_loop: true,
                    ..OpenBlock::default()
                });
                self.count = 0;
            }
            Operator::Else => {
                if let Some(block) = self.open.last_mut() {
                    block.at_end = block.at_end.max(self.count);
                    self.count = block.at_if.take().unwrap_or(self.count);
                }
            }
            Operator::End => {
                let block = self.open.pop().unwrap_or_default();
                self.count = self.count.max(block.at_end).max(block.at_if.unwrap_or(0));
            }
            Operator::BrIf { relative_depth } => self.jump(*relative_depth),
            Operator::Br { relative_depth } => {
                self.jump(*relative_depth);
                self.count = 0; // nothing runs from here to the block's end
            }
            Operator::BrTable { targets } => {
                for target in targets.targets() {
                    self.jump(target?);
                }
                self.jump(targets.default());
                self.count = 0;
            }
            // A call is paid for here or where the function begins.
            Operator::Call { .. }
            | Operator::CallIndirect { .. }
            | Operator::Return
            | Operator::Unreachable => self.count = 0,
            _ => {}
        }
        Ok(())
    }
}

/// What is paid for an instruction, before it.
enum Price {
    Nothing,
    One,
    /// As much as the `i32` on top of the stack says.
    Size,
}

fn price_of(operator: &Operator<'_>, added: &Added) -> Price {
    match operator {
        Operator::Call { function_index } if *function_index < added.imported_functions => {
            Price::One
        }
        Operator::CallIndirect { .. } => Price::One,
        Operator::MemoryCopy { .. }
        | Operator::MemoryFill { .. }
        | Operator::MemoryInit { .. }
        | Operator::TableCopy { .. }
        | Operator::TableFill { .. }
        | Operator::TableInit { .. }
        | Operator::TableGrow { .. } => Price::Size,
        _ => Price::Nothing,
    }
}

/// Takes a price from the fuel, and traps where that is not enough.
fn pay(price: Price, added: &Added, out: &mut Vec<u8>) {
    let (fuel, size) = (added.fuel, added.size);
    let mut push = |instruction: Instruction<'_>| instruction.encode(out);
    match price {
        Price::Nothing => return,
        Price::One => {
            push(Instruction::GlobalGet(fuel));
            push(Instruction::I64Const(1));
        }
        Price::Size => {
            push(Instruction::GlobalSet(size));
            push(Instruction::GlobalGet(fuel));
            push(Instruction::GlobalGet(size));
            push(Instruction::I64ExtendI32U);
        }
    }
    let is_size = matches!(price, Price::Size);
    for instruction in [
        Instruction::I64Sub,
        Instruction::GlobalSet(fuel),
        Instruction::GlobalGet(fuel),
        Instruction::I64Const(0),
        Instruction::I64LtS,
        Instruction::If(wasm_encoder::BlockType::Empty),
        Instruction::Unreachable,
        Instruction::End,
    ] {
        push(instruction);
    }
    if is_size {
        push(Instruction::GlobalGet(size));
    }
}

/// A function's bytes with the two memory instructions replaced and the costs put in.
fn rewrite_body(body: &FunctionBody<'_>, added: &Added) -> Result<Vec<u8>, InvalidModule> {
    let is_metered = added.fuel_max.is_some();
    let (bytes, origin) = (body.as_bytes(), body.range().start);
    let mut out = Vec::with_capacity(bytes.len() + bytes.len() / 4 + 32);
    let mut run = FreeRun::default();
    let mut reader = body.get_operators_reader()?;
    let mut copied = reader.original_position() - origin;
    out.extend_from_slice(&bytes[..copied]);
    if is_metered {
        pay(Price::One, added, &mut out);
    }
    while !reader.eof() {
        let (operator, offset) = reader.read_with_offset()?;
        let (start, end) = (offset - origin, reader.original_position() - origin);
        run.on(&operator)?;
        let replacement = match operator {
            Operator::MemorySize { .. } => Some(Instruction::GlobalGet(added.pages)),
            Operator::MemoryGrow { .. } => Some(Instruction::Call(added.grow)),
            _ => None,
        };
        let (mut before, mut after) = (Price::Nothing, Price::Nothing);
        if is_metered {
            before = price_of(&operator, added);
            // A long run pays after the instruction, never before: before an `end` only one of two ways would.
            let is_due = run.count >= FREE_INSTRUCTIONS_MAX && !reader.eof();
            if is_due || matches!(operator, Operator::Loop { .. }) {
                after = Price::One;
                run.count = 0;
            }
        }
        if let (Price::Nothing, Price::Nothing, None) = (&before, &after, &replacement) {
            continue;
        }
        out.extend_from_slice(&bytes[copied..start]);
        pay(before, added, &mut out);
        match replacement {
            Some(instruction) => instruction.encode(&mut out),
            None => out.extend_from_slice(&bytes[start..end]),
        }
        pay(after, added, &mut out);
        copied = end;
    }
    out.extend_from_slice(&bytes[copied..]);
    Ok(out)
}
