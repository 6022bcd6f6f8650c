//! Rewrites a checked module into the one that runs, and keeps all existing numbers:
//!
//! * The memory gets its largest size at once, and `memory.size` and `memory.grow` work on a counter. So growth costs nothing, is the same
//!   on every replica, and is undone with the other globals. Pages that were not grown yet read as zeros.
//! * Tables get a largest size, so that the answer of `table.grow` depends on the module alone.
//! * Each procedure gets a wrapper. It restores all mutable globals to their values after start-up, calls the procedure, and returns the
//!   remaining fuel beside its result.
//! * The start function, `_initialize` and the copying of the globals move into one export, called once per instance.
//! * Instructions are paid for with fuel (`price`), of which a call gets a slice at a time. When a slice is used up, a function of the
//!   host, which has a table of its own, says whether there is more.
//! * Functions that a recursion may pass through pay for their stack (`depth`).
//! * All other exports go, and all custom sections but the names. If only an export declared a function for references, a segment declares
//!   it.

use reprise_abi::{ARGS_BUFFER_EXPORT, DESCRIBE_EXPORT, RESULT_BUFFER_EXPORT};
use reprise_base::limits::{FUEL_SLICE, GUEST_TABLE_ELEMENTS_MAX};
use wasm_encoder::{
    BranchHints, CodeSection, ConstExpr, CustomSection, DataCountSection, Encode, ExportKind, ExportSection, Function,
    GlobalType, HeapType, Instruction, MemorySection, MemoryType, Module, RawSection, RefType, SectionId, TableSection,
    TableType, ValType,
};
use wasmparser::{BinaryReader, Name, NameSectionReader};

use crate::{
    depth::{self, Depths},
    inspect::{Items, MEMORY_EXPORT, ModuleParts},
    module::InvalidModule,
    price::{Meter, Prices, rewrite_body},
};

/// Export that starts an instance.
pub(crate) const START_EXPORT: &str = "reprise_start";
/// Export of the remaining fuel.
pub(crate) const FUEL_EXPORT: &str = "reprise_fuel";
/// Export of the remaining counted stack; below zero after an overflow.
pub(crate) const STACK_EXPORT: &str = "reprise_stack";
/// Export of the resource that the guest was refused last in this call: 0 for none, else `REFUSED_MEMORY` or `REFUSED_TABLE`.
pub(crate) const REFUSED_EXPORT: &str = "reprise_refused";
pub(crate) const REFUSED_MEMORY: i32 = 1;
pub(crate) const REFUSED_TABLE: i32 = 2;
/// Export of the global in which the guest's compiler keeps the end of its own stack, which is at the bottom of the memory.
pub(crate) const SHADOW_STACK_EXPORT: &str = "reprise_shadow_stack";
/// The name of that global in LLVM.
const SHADOW_STACK_NAME: &str = "__stack_pointer";
/// Export of the table whose only element is the host's function `(fuel left) -> (fuel)`, called when fuel is used up.
pub(crate) const ASK_EXPORT: &str = "reprise_ask";

/// The resources that a call may use up.
#[derive(Clone, Copy)]
pub(crate) struct Allowance {
    pub fuel_max: u64,
    pub stack_bytes: usize,
}

impl Allowance {
    /// Returns the fuel that a call has before it first asks for more.
    pub fn first_fuel(&self) -> u64 {
        self.fuel_max.min(FUEL_SLICE)
    }
}

/// Number of globals that each procedure's wrapper restores itself. More of them are restored in one place: all procedures times all
/// globals would make a module of millions of instructions.
const FEW_GLOBALS_MAX: usize = 8;

/// Numbers of the appended items.
struct AddedItems {
    /// Types `(i32) -> i32`, `() -> ()`, `(i32) -> (i32, i64)` and `(i64) -> i64`.
    type_call: u32,
    type_start: u32,
    type_entry: u32,
    type_ask: u32,
    start: u32,
    /// Function that restores the globals, for the wrappers of modules that have many.
    put_back: u32,
    first_wrapper: u32,
    /// First of the functions with the bodies of those that pay for stack.
    first_deep: u32,
    /// First of the globals that keep the values after start-up.
    first_kept: u32,
    /// Global with the stack that is left.
    stack: u32,
    /// The guest's own global with the end of its stack.
    shadow_stack: Option<u32>,
    /// Table with the function that is asked for fuel.
    ask: u32,
    /// The allowance. None: nothing is charged.
    allowance: Option<Allowance>,
    meter: Meter,
    depths: Depths,
}

impl AddedItems {
    fn new(found: &ModuleParts<'_>, allowance: Option<Allowance>) -> Self {
        let functions = found.imported_functions + found.functions.count;
        let first_kept = found.globals.count + 1;
        // These come behind the kept values of the guest's globals and of the counter of pages.
        let fuel = first_kept + found.mutable_globals.len() as u32 + 1;
        let first_wrapper = functions + 4;
        Self {
            type_call: found.types.count,
            type_start: found.types.count + 1,
            type_entry: found.types.count + 2,
            type_ask: found.types.count + 3,
            start: functions + 2,
            put_back: functions + 3,
            first_wrapper,
            first_deep: first_wrapper + found.entries.len() as u32,
            first_kept,
            stack: fuel + 2,
            shadow_stack: shadow_stack(found),
            ask: found.tables.len() as u32,
            allowance,
            meter: Meter {
                fuel,
                size: fuel + 1,
                refuel: functions + 1,
                is_metered: allowance.is_some(),
                pages: found.globals.count,
                grow: functions,
                refused: fuel + 3,
            },
            depths: match allowance {
                Some(_) => depth::find_depths(&found.shapes, found.imported_functions),
                None => Depths::default(),
            },
        }
    }
}

/// Returns the global that the module's names call the stack pointer. Only the text of a fault depends on it.
fn shadow_stack(found: &ModuleParts<'_>) -> Option<u32> {
    let names = NameSectionReader::new(BinaryReader::new(found.names?, 0));
    let globals = names.into_iter().find_map(|names| match names {
        Ok(Name::Global(globals)) => Some(globals),
        _ => None,
    });
    let named = globals?
        .into_iter()
        .flatten()
        .find(|global| global.name == SHADOW_STACK_NAME)?;
    let mut mutable = found.mutable_globals.iter();
    mutable
        .any(|global| *global == (named.index, wasmparser::ValType::I32))
        .then_some(named.index)
}

/// Returns the module that runs, and the number of the first function that is not the guest's.
pub(crate) fn rewrite(found: &ModuleParts<'_>, allowance: Option<Allowance>) -> Result<(Vec<u8>, u32), InvalidModule> {
    let added = AddedItems::new(found, allowance);
    let mut module = Module::new();
    section(&mut module, SectionId::Type, &types(found.types));
    copy(&mut module, SectionId::Import, found.imports);
    section(&mut module, SectionId::Function, &function_types(found, &added));
    module.section(&tables(found));
    module.section(&memory(found));
    section(&mut module, SectionId::Global, &globals(found, &added));
    module.section(&exports(found, &added));
    elements(&mut module, found);
    if let Some(count) = found.data_count {
        module.section(&DataCountSection { count });
    }
    let (code, hints) = code(found, &added)?;
    module.section(&hints);
    module.section(&code);
    copy(&mut module, SectionId::Data, found.data);
    if let Some(names) = found.names {
        module.section(&CustomSection {
            name: "name".into(),
            data: names.into(),
        });
    }
    Ok((module.finish(), added.meter.grow))
}

fn section(module: &mut Module, id: SectionId, data: &[u8]) {
    module.section(&RawSection { id: id.into(), data });
}

fn copy(module: &mut Module, id: SectionId, data: &[u8]) {
    if !data.is_empty() {
        section(module, id, data);
    }
}

/// Returns the element segments, and one that declares functions whose exports are removed. It comes last, so that no other segment changes
/// its number.
fn elements(module: &mut Module, found: &ModuleParts<'_>) {
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

/// Returns a section's items with room for more: the count, and the items as they are.
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
    let mut data = extended(items, 4);
    data.extend_from_slice(&[FUNCTION, 1, I32, 1, I32]);
    data.extend_from_slice(&[FUNCTION, 0, 0]);
    data.extend_from_slice(&[FUNCTION, 1, I32, 2, I32, I64]);
    data.extend_from_slice(&[FUNCTION, 1, I64, 1, I64]);
    data
}

fn function_types(found: &ModuleParts<'_>, added: &AddedItems) -> Vec<u8> {
    let deep = added.depths.deep.len();
    let mut data = extended(found.functions, (4 + found.entries.len() + deep) as u32);
    added.type_call.encode(&mut data);
    // The functions that ask for fuel, start, and put the globals back.
    (0..3).for_each(|_| added.type_start.encode(&mut data));
    for _ in &found.entries {
        added.type_entry.encode(&mut data);
    }
    for body in added.depths.deep.keys() {
        found.shapes[*body].ty.encode(&mut data);
    }
    data
}

/// Returns the number of elements that a table may have: those at its beginning, or as many as it declares, within the limit of all.
pub(crate) fn table_elements_max(&(initial, declared): &(u64, Option<u64>)) -> u64 {
    declared.unwrap_or(u64::MAX).min(GUEST_TABLE_ELEMENTS_MAX.max(initial))
}

/// Returns the guest's tables with a largest size each, and the table for the function that grants fuel.
fn tables(found: &ModuleParts<'_>) -> TableSection {
    let mut tables = TableSection::new();
    let table_type = |minimum, maximum| TableType {
        element_type: RefType::FUNCREF,
        table64: false,
        minimum,
        maximum: Some(maximum),
        shared: false,
    };
    for table in &found.tables {
        tables.table(table_type(table.0, table_elements_max(table)));
    }
    tables.table(table_type(1, 1));
    tables
}

fn memory(found: &ModuleParts<'_>) -> MemorySection {
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

fn globals(found: &ModuleParts<'_>, added: &AddedItems) -> Vec<u8> {
    let kept = found.mutable_globals.iter().map(|(_, ty)| *ty);
    let mut data = extended(found.globals, 6 + found.mutable_globals.len() as u32);
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
            // The accepted features have no other reference type.
            wasmparser::ValType::Ref(_) => (ValType::Ref(RefType::FUNCREF), ConstExpr::ref_null(HeapType::FUNC)),
        };
        push_global(&mut data, ty, &zero);
    }
    let fuel = added.allowance.map_or(0, |allowance| allowance.first_fuel() as i64);
    push_global(&mut data, ValType::I64, &ConstExpr::i64_const(fuel));
    push_global(&mut data, ValType::I32, &ConstExpr::i32_const(0));
    let stack = added.allowance.map_or(0, |allowance| allowance.stack_bytes as i32);
    push_global(&mut data, ValType::I32, &ConstExpr::i32_const(stack));
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

fn exports(found: &ModuleParts<'_>, added: &AddedItems) -> ExportSection {
    let mut exports = ExportSection::new();
    exports.export(MEMORY_EXPORT, ExportKind::Memory, 0);
    exports.export(START_EXPORT, ExportKind::Func, added.start);
    exports.export(FUEL_EXPORT, ExportKind::Global, added.meter.fuel);
    exports.export(STACK_EXPORT, ExportKind::Global, added.stack);
    exports.export(ASK_EXPORT, ExportKind::Table, added.ask);
    exports.export(REFUSED_EXPORT, ExportKind::Global, added.meter.refused);
    if let Some(global) = added.shadow_stack {
        exports.export(SHADOW_STACK_EXPORT, ExportKind::Global, global);
    }
    for (name, function) in [
        (DESCRIBE_EXPORT, found.describe),
        (ARGS_BUFFER_EXPORT, found.args_buffer),
        (RESULT_BUFFER_EXPORT, found.result_buffer),
    ] {
        if let Some(function) = function {
            exports.export(name, ExportKind::Func, function);
        }
    }
    for (position, (name, _)) in found.entries.iter().enumerate() {
        exports.export(name, ExportKind::Func, added.first_wrapper + position as u32);
    }
    exports
}

fn code(found: &ModuleParts<'_>, added: &AddedItems) -> Result<(CodeSection, BranchHints), InvalidModule> {
    let (mut code, mut hints) = (CodeSection::new(), BranchHints::new());
    let (mut deep, mut hint_lists) = (Vec::new(), Vec::new());
    let prices = Prices::choose_payers(&found.bodies, &added.depths, found.imported_functions)?;
    for (position, body) in found.bodies.iter().enumerate() {
        let paid = rewrite_body((position, body), &prices, &added.meter)?;
        let number = match added.depths.deep.get(&position) {
            None => {
                code.raw(&paid.bytes);
                found.imported_functions + position as u32
            }
            Some(price) => {
                let number = added.first_deep + deep.len() as u32;
                code.function(&deep_function(found, added, (position, number), *price));
                deep.push(paid.bytes);
                number
            }
        };
        hint_lists.push((number, paid.hints));
    }
    code.function(&grow_function(found, added));
    code.function(&refuel_function(added));
    code.function(&start_function(found, added));
    code.function(&put_back_function(found, added));
    for (_, function) in &found.entries {
        code.function(&wrapper(found, added, *function));
    }
    deep.iter().for_each(|body| _ = code.raw(body));
    hint_lists.sort_unstable_by_key(|(number, _)| *number);
    for (number, list) in hint_lists.into_iter().filter(|(_, list)| !list.is_empty()) {
        hints.function_hints(number, list);
    }
    Ok((code, hints))
}

/// Returns the function that replaces one that pays for stack. It takes the price, calls the body, and returns the price.
fn deep_function(found: &ModuleParts<'_>, added: &AddedItems, (position, body): (usize, u32), price: u32) -> Function {
    let (stack, price) = (added.stack, price as i32);
    let mut function = Function::new([]);
    for instruction in [
        Instruction::GlobalGet(stack),
        Instruction::I32Const(price),
        Instruction::I32Sub,
        Instruction::GlobalSet(stack),
        Instruction::GlobalGet(stack),
        Instruction::I32Const(0),
        Instruction::I32LtS,
        Instruction::If(wasm_encoder::BlockType::Empty),
        Instruction::Unreachable,
        Instruction::End,
    ] {
        function.instruction(&instruction);
    }
    for param in 0..found.shapes[position].params {
        function.instruction(&Instruction::LocalGet(param));
    }
    for instruction in [
        Instruction::Call(body),
        Instruction::GlobalGet(stack),
        Instruction::I32Const(price),
        Instruction::I32Add,
        Instruction::GlobalSet(stack),
        Instruction::End,
    ] {
        function.instruction(&instruction);
    }
    function
}

/// Returns the function that asks the host for fuel. The host returns the new amount or ends the guest.
fn refuel_function(added: &AddedItems) -> Function {
    let mut function = Function::new([]);
    for instruction in [
        Instruction::GlobalGet(added.meter.fuel),
        Instruction::I32Const(0),
        Instruction::CallIndirect {
            type_index: added.type_ask,
            table_index: added.ask,
        },
        Instruction::GlobalSet(added.meter.fuel),
        Instruction::End,
    ] {
        function.instruction(&instruction);
    }
    function
}

/// Returns every global that a call may change, with the global that keeps its value.
fn kept_globals(found: &ModuleParts<'_>, added: &AddedItems) -> impl Iterator<Item = (u32, u32)> {
    let own = found.mutable_globals.iter().map(|(number, _)| *number);
    own.chain([added.meter.pages]).zip(added.first_kept..)
}

/// Returns `memory.grow` on the counter: -1 if the largest size would be exceeded, otherwise the size before.
fn grow_function(found: &ModuleParts<'_>, added: &AddedItems) -> Function {
    let mut function = Function::new([]);
    for instruction in [
        Instruction::LocalGet(0),
        Instruction::I32Const(found.memory_pages.1 as i32),
        Instruction::GlobalGet(added.meter.pages),
        Instruction::I32Sub,
        Instruction::I32GtU,
        Instruction::If(wasm_encoder::BlockType::Empty),
        Instruction::I32Const(REFUSED_MEMORY),
        Instruction::GlobalSet(added.meter.refused),
        Instruction::I32Const(-1),
        Instruction::Return,
        Instruction::End,
        Instruction::GlobalGet(added.meter.pages),
        Instruction::GlobalGet(added.meter.pages),
        Instruction::LocalGet(0),
        Instruction::I32Add,
        Instruction::GlobalSet(added.meter.pages),
        Instruction::End,
    ] {
        function.instruction(&instruction);
    }
    function
}

fn start_function(found: &ModuleParts<'_>, added: &AddedItems) -> Function {
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

fn put_back(found: &ModuleParts<'_>, added: &AddedItems, function: &mut Function) {
    for (global, kept) in kept_globals(found, added) {
        function.instruction(&Instruction::GlobalGet(kept));
        function.instruction(&Instruction::GlobalSet(global));
    }
}

fn put_back_function(found: &ModuleParts<'_>, added: &AddedItems) -> Function {
    let mut function = Function::new([]);
    if !has_few_globals(found) {
        put_back(found, added, &mut function);
    }
    function.instruction(&Instruction::End);
    function
}

/// True for modules with few globals, which is what compilers make. Their wrappers restore the globals inline, which saves one call per
/// call.
fn has_few_globals(found: &ModuleParts<'_>) -> bool {
    found.mutable_globals.len() <= FEW_GLOBALS_MAX
}

fn wrapper(found: &ModuleParts<'_>, added: &AddedItems, procedure: u32) -> Function {
    let mut function = Function::new([]);
    match has_few_globals(found) {
        true => put_back(found, added, &mut function),
        false => {
            function.instruction(&Instruction::Call(added.put_back));
        }
    }
    function.instruction(&Instruction::I32Const(0));
    function.instruction(&Instruction::GlobalSet(added.meter.refused));
    if let Some(allowance) = added.allowance {
        function.instruction(&Instruction::I64Const(allowance.first_fuel() as i64));
        function.instruction(&Instruction::GlobalSet(added.meter.fuel));
        function.instruction(&Instruction::I32Const(allowance.stack_bytes as i32));
        function.instruction(&Instruction::GlobalSet(added.stack));
    }
    function.instruction(&Instruction::LocalGet(0));
    function.instruction(&Instruction::Call(procedure));
    function.instruction(&Instruction::GlobalGet(added.meter.fuel));
    function.instruction(&Instruction::End);
    function
}
