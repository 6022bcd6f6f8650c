//! Estimates the compiler's work for a module before it begins, because some shapes cost far more than their bytes.
//!
//! For one function: a jump back to a loop carries every local that the loop may have changed. Register allocation therefore works on jumps
//! times locals. A join of two paths does the same with the few locals that differ. If a block or a function has results, each jump carries
//! all of them, and each call makes new ones. For the module: the sum over all functions of the measured cost of each instruction, in units
//! of about a microsecond.

use wasmparser::{BlockType, FunctionBody, Operator};

use crate::{module::InvalidModule, price::is_sized};

/// Number of loops of one function at most: the compiler's own analysis grows with their square.
const LOOPS_MAX: u64 = 2_000;
/// Work of one function at most: about a second.
const FUNCTION_WORK_MAX: u64 = 400_000;
/// Units of a module at most: compilers, as programs with 3 MB of code, take a third of it.
const MODULE_UNITS_MAX: u64 = 15_000_000;
/// Units of a jump that carries a local, and of other values that are carried.
const HANDED_ON_UNITS: u64 = 3;
/// Units of a function, however short.
const FUNCTION_UNITS: u64 = 30;
/// Units of an instruction of one of many kinds.
const BULK_UNITS: u64 = 60;
const TABLE_CALL_UNITS: u64 = 90;
const LOOP_UNITS: u64 = 40;
const FLOAT_UNITS: u64 = 20;
const BRANCH_UNITS: u64 = 10;
const TARGET_UNITS: u64 = 8;
const CALL_UNITS: u64 = 8;
const SUM_UNITS: u64 = 5;
/// Size of a function, in bytes, from which each of its instructions costs four times as much as in a short one. Live ranges grow with it.
const LONG_FUNCTION_BYTES: u64 = 64 << 10;
/// Number of locals of all functions of a module, parameters included. Each takes the compiler some time and memory, used or not.
const MODULE_LOCALS_MAX: u64 = 2_000_000;
/// Number of joins that cost as much as one jump back.
const JOINS_PER_JUMP: u64 = 16;
/// Number of parameters or results of a block at most, and of results of a function: a jump of two bytes carries all of them.
pub(crate) const HANDED_ON_MAX: usize = 16;

/// The effort for the functions that were added.
#[derive(Default)]
pub(crate) struct Effort {
    units: u64,
    locals: u64,
}

/// Returns the units of an instruction beside its bytes.
fn units_of(operator: &Operator<'_>) -> u64 {
    use Operator::*;
    match operator {
        MemoryCopy { .. }
        | MemoryFill { .. }
        | MemoryInit { .. }
        | MemoryGrow { .. }
        | TableCopy { .. }
        | TableFill { .. }
        | TableInit { .. }
        | TableGrow { .. } => BULK_UNITS,
        CallIndirect { .. } => TABLE_CALL_UNITS,
        Loop { .. } => LOOP_UNITS,
        If { .. } | BrIf { .. } => BRANCH_UNITS,
        BrTable { targets } => TARGET_UNITS * (u64::from(targets.len()) + 1),
        Call { .. } => CALL_UNITS,
        I32Add | I32Sub | I64Add | I64Sub | I32DivS | I32DivU | I32RemS | I32RemU | I64DivS | I64DivU | I64RemS
        | I64RemU => SUM_UNITS,
        _ if is_float(operator) => FLOAT_UNITS,
        _ => 0,
    }
}

/// True if the result may be a NaN, which must be the same on every machine.
fn is_float(operator: &Operator<'_>) -> bool {
    use Operator::*;
    matches!(
        operator,
        F32Add
            | F32Sub
            | F32Mul
            | F32Div
            | F32Sqrt
            | F32Min
            | F32Max
            | F32Ceil
            | F32Floor
            | F32Trunc
            | F32Nearest
            | F32DemoteF64
            | F64Add
            | F64Sub
            | F64Mul
            | F64Div
            | F64Sqrt
            | F64Min
            | F64Max
            | F64Ceil
            | F64Floor
            | F64Trunc
            | F64Nearest
            | F64PromoteF32
            | F32x4Add
            | F32x4Sub
            | F32x4Mul
            | F32x4Div
            | F32x4Sqrt
            | F32x4Min
            | F32x4Max
            | F32x4Ceil
            | F32x4Floor
            | F32x4Trunc
            | F32x4Nearest
            | F32x4DemoteF64x2Zero
            | F64x2Add
            | F64x2Sub
            | F64x2Mul
            | F64x2Div
            | F64x2Sqrt
            | F64x2Min
            | F64x2Max
            | F64x2Ceil
            | F64x2Floor
            | F64x2Trunc
            | F64x2Nearest
            | F64x2PromoteLowF32x4
    )
}

/// The number of values that a type of functions or blocks takes and leaves.
#[derive(Clone, Copy, Default)]
pub(crate) struct Arity {
    pub params: usize,
    pub results: usize,
}

/// Facts about the module that the estimate of a function needs.
pub(crate) struct ModuleFacts<'m> {
    /// The arity of each type, by its number.
    pub types: &'m [Arity],
    /// The type of each function.
    pub functions: &'m [u32],
    /// Number of the host's functions, which come first. A call of one is paid for, which is a branch.
    pub imported_functions: u32,
    /// True if a function that would occupy the compiler is refused.
    pub is_bounded: bool,
}

impl ModuleFacts<'_> {
    /// Returns the number of values that a call of this type makes beyond the one of nearly every call.
    fn made_by_call(&self, ty: u32) -> u64 {
        let results = self.types.get(ty as usize).map_or(0, |arity| arity.results);
        results.saturating_sub(1) as u64
    }

    fn arity(&self, block: &BlockType) -> Result<Arity, InvalidModule> {
        let arity = match block {
            BlockType::Empty => Arity::default(),
            BlockType::Type(_) => Arity { params: 0, results: 1 },
            BlockType::FuncType(ty) => self.types.get(*ty as usize).copied().unwrap_or_default(),
        };
        match self.is_bounded && arity.params > HANDED_ON_MAX {
            true => Err(InvalidModule::new(format!(
                "block of {} parameters has more than {HANDED_ON_MAX}",
                arity.params
            ))),
            false => Ok(arity),
        }
    }
}

/// A block that has not ended yet.
struct EffortBlock {
    is_loop: bool,
    /// Number of values that each jump to it carries.
    handed: u64,
}

/// The control flow of one function.
#[derive(Default)]
struct Flow {
    open: Vec<EffortBlock>,
    loops: u64,
    /// Number of jumps to the head of a loop.
    back: u64,
    joins: u64,
    /// Number of values that jumps carry.
    handed: u64,
    /// The sum over all instructions.
    units: u64,
}

impl Flow {
    fn open(&mut self, is_loop: bool, arity: Arity) {
        let handed = if is_loop { arity.params } else { arity.results };
        // Its beginning and its end are paths, too.
        self.handed += (arity.params + arity.results) as u64;
        self.open.push(EffortBlock {
            is_loop,
            handed: handed as u64,
        });
    }

    fn jump(&mut self, depth: u32) {
        let target = self.open.len().checked_sub(depth as usize + 1);
        match target.and_then(|at| self.open.get(at)) {
            Some(block) => {
                self.handed += block.handed;
                match block.is_loop {
                    true => self.back += 1,
                    false => self.joins += 1,
                }
            }
            None => self.joins += 1,
        }
    }

    fn on(&mut self, operator: &Operator<'_>, around: &ModuleFacts<'_>) -> Result<(), InvalidModule> {
        self.units += units_of(operator);
        match operator {
            Operator::Loop { blockty } => {
                self.loops += 1;
                self.open(true, around.arity(blockty)?);
            }
            Operator::Block { blockty } => self.open(false, around.arity(blockty)?),
            Operator::If { blockty } => {
                self.joins += 1;
                self.open(false, around.arity(blockty)?);
            }
            Operator::End => {
                self.open.pop();
            }
            Operator::Call { function_index } => {
                if *function_index < around.imported_functions {
                    self.joins += 1; // a branch pays for it and for the code that follows (`rewrite`)
                }
                let ty = around.functions.get(*function_index as usize).copied();
                self.handed += ty.map_or(0, |ty| around.made_by_call(ty));
            }
            Operator::CallIndirect { type_index, .. } => {
                self.joins += 1;
                self.handed += around.made_by_call(*type_index);
            }
            operator if is_sized(operator) => self.joins += 1,
            Operator::Br { relative_depth } | Operator::BrIf { relative_depth } => {
                self.jump(*relative_depth);
            }
            Operator::BrTable { targets } => {
                for target in targets.targets() {
                    self.jump(target?);
                }
                self.jump(targets.default());
            }
            _ => {}
        }
        Ok(())
    }
}

impl Effort {
    /// Adds a function. It refuses the function, or the module with it, if compiling would take seconds. `on` sees each of its
    /// instructions. Returns the number of its locals, parameters included.
    pub fn add<'a>(
        &mut self,
        body: &FunctionBody<'a>,
        own: Arity,
        around: &ModuleFacts<'_>,
        mut on: impl FnMut(&Operator<'a>),
    ) -> Result<u64, InvalidModule> {
        let at = |reason: String| InvalidModule {
            offset: Some(body.range().start as u64),
            ..InvalidModule::new(reason)
        };
        let mut locals = own.params as u64;
        for declared in body.get_locals_reader()? {
            locals += u64::from(declared?.0);
        }
        let mut flow = Flow::default();
        flow.open(false, Arity { params: 0, ..own });
        for operator in body.get_operators_reader()? {
            let operator = operator?;
            flow.on(&operator, around).map_err(|refused| at(refused.reason))?;
            on(&operator);
        }
        if !around.is_bounded {
            return Ok(locals);
        }
        self.locals += locals;
        if self.locals > MODULE_LOCALS_MAX {
            return Err(at(format!(
                "module's functions have more than {MODULE_LOCALS_MAX} locals, which would hold the compiler for too long"
            )));
        }
        if flow.loops > LOOPS_MAX {
            let loops = flow.loops;
            return Err(at(format!("function of {loops} loops has more than {LOOPS_MAX}")));
        }
        let jumps = flow.loops + flow.back + flow.joins / JOINS_PER_JUMP;
        let work = jumps.saturating_mul(locals).saturating_add(flow.handed);
        if work > FUNCTION_WORK_MAX {
            let reason = format!(
                "function of {} jumps, {locals} locals and {} values handed on would hold the compiler for too long",
                flow.back + flow.joins,
                flow.handed
            );
            return Err(at(reason));
        }
        self.add_units(flow.units, work, body.range().len() as u64)
            .map_err(at)?;
        Ok(locals)
    }

    /// Adds the units of a function to its module.
    fn add_units(&mut self, instructions: u64, work: u64, bytes: u64) -> Result<(), String> {
        let times = 1024 + 3 * 1024 * bytes.min(LONG_FUNCTION_BYTES) / LONG_FUNCTION_BYTES;
        let own = (bytes + instructions) * times / 1024;
        self.units += FUNCTION_UNITS + own + work * HANDED_ON_UNITS;
        match self.units > MODULE_UNITS_MAX {
            false => Ok(()),
            true => Err(format!(
                "module's functions up to here come to {} units of work for the compiler, which would hold it for too long: \
                 {MODULE_UNITS_MAX} is the most. Jump tables, indirect calls, bulk operations and long functions cost most",
                self.units
            )),
        }
    }
}
