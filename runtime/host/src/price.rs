//! What a guest's instructions cost, put between them: fuel, and the counters that stand for the memory's size.
//!
//! Fuel is a global. It goes down by one at the beginning of a function, at each turn of a loop, and before a call of the host
//! or through a table. A long run of other instructions costs one as well. A bulk operation costs its bytes or items, before it
//! begins. Below zero the guest asks for more. A loop's turn pays once; calls between the guest's own functions carry nothing.

use wasm_encoder::{BranchHint, Encode, Instruction};
use wasmparser::{FunctionBody, Operator};

use crate::module::InvalidModule;

/// Weight of instructions without fuel cost that may follow each other at most.
const FREE_WEIGHT_MAX: u32 = 64;
/// What an access to memory weighs, which may miss the caches, and a division; any other instruction weighs one.
const ACCESS_WEIGHT: u32 = 2;
const DIVISION_WEIGHT: u32 = 8;

/// Numbers of what instructions are paid with.
pub(crate) struct Meter {
    /// Global with the fuel that is left.
    pub fuel: u32,
    /// Global that holds the size of a bulk operation while it is paid for.
    pub size: u32,
    /// Function that asks the host for more.
    pub refuel: u32,
    /// False: nothing is charged.
    pub is_metered: bool,
    /// Functions below this one are the host's.
    pub imported_functions: u32,
    /// Global that stands for `memory.size`, and function that stands for `memory.grow`.
    pub pages: u32,
    pub grow: u32,
}

/// A function's bytes as they run, and which of their jumps are hardly ever taken.
pub(crate) struct Paid {
    pub bytes: Vec<u8>,
    pub hints: Vec<BranchHint>,
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
        self.count += weight_of(operator);
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

fn weight_of(operator: &Operator<'_>) -> u32 {
    use Operator::*;
    match operator {
        I32Load { .. } | I64Load { .. } | F32Load { .. } | F64Load { .. } | V128Load { .. } | I32Load8S { .. }
        | I32Load8U { .. } | I32Load16S { .. } | I32Load16U { .. } | I64Load8S { .. } | I64Load8U { .. }
        | I64Load16S { .. } | I64Load16U { .. } | I64Load32S { .. } | I64Load32U { .. } | I32Store { .. }
        | I64Store { .. } | F32Store { .. } | F64Store { .. } | V128Store { .. } | I32Store8 { .. }
        | I32Store16 { .. } | I64Store8 { .. } | I64Store16 { .. } | I64Store32 { .. } => ACCESS_WEIGHT,
        I32DivS | I32DivU | I32RemS | I32RemU | I64DivS | I64DivU | I64RemS | I64RemU | F32Div | F64Div | F32Sqrt
        | F64Sqrt | F32x4Div | F32x4Sqrt | F64x2Div | F64x2Sqrt => DIVISION_WEIGHT,
        _ => 1,
    }
}

/// What is paid for an instruction, before it.
enum Price {
    Nothing,
    One,
    /// As much as the `i32` on top of the stack says.
    Size,
}

fn price_of(operator: &Operator<'_>, meter: &Meter) -> Price {
    match operator {
        Operator::Call { function_index } if *function_index < meter.imported_functions => Price::One,
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

impl Paid {
    /// Takes a price from the fuel, and asks for more where that is not enough.
    fn pay(&mut self, price: Price, meter: &Meter) {
        let (fuel, size) = (meter.fuel, meter.size);
        let mut push = |instruction: Instruction<'_>| instruction.encode(&mut self.bytes);
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
        push(Instruction::I64Sub);
        push(Instruction::GlobalSet(fuel));
        push(Instruction::GlobalGet(fuel));
        push(Instruction::I64Const(0));
        push(Instruction::I64LtS);
        self.hints.push(BranchHint {
            branch_func_offset: self.bytes.len() as u32,
            branch_hint_value: 0,
        });
        let mut push = |instruction: Instruction<'_>| instruction.encode(&mut self.bytes);
        push(Instruction::If(wasm_encoder::BlockType::Empty));
        push(Instruction::Call(meter.refuel));
        push(Instruction::End);
        if matches!(price, Price::Size) {
            push(Instruction::GlobalGet(size));
        }
    }
}

/// A function's bytes with the two memory instructions replaced and the costs put in.
pub(crate) fn rewrite_body(body: &FunctionBody<'_>, meter: &Meter) -> Result<Paid, InvalidModule> {
    let (bytes, origin) = (body.as_bytes(), body.range().start);
    let mut out = Paid {
        bytes: Vec::with_capacity(bytes.len() + bytes.len() / 4 + 32),
        hints: Vec::new(),
    };
    let mut run = FreeRun::default();
    let mut reader = body.get_operators_reader()?;
    let mut copied = reader.original_position() - origin;
    out.bytes.extend_from_slice(&bytes[..copied]);
    if meter.is_metered {
        out.pay(Price::One, meter);
    }
    while !reader.eof() {
        let (operator, offset) = reader.read_with_offset()?;
        let (start, end) = (offset - origin, reader.original_position() - origin);
        run.on(&operator)?;
        let replacement = match operator {
            Operator::MemorySize { .. } => Some(Instruction::GlobalGet(meter.pages)),
            Operator::MemoryGrow { .. } => Some(Instruction::Call(meter.grow)),
            _ => None,
        };
        let (mut before, mut after) = (Price::Nothing, Price::Nothing);
        if meter.is_metered {
            before = price_of(&operator, meter);
            // A long run pays after the instruction, never before: before an `end` only one of two ways would.
            let is_due = run.count >= FREE_WEIGHT_MAX && !reader.eof();
            if is_due || matches!(operator, Operator::Loop { .. }) {
                after = Price::One;
                run.count = 0;
            }
        }
        if let (Price::Nothing, Price::Nothing, None) = (&before, &after, &replacement) {
            continue;
        }
        out.bytes.extend_from_slice(&bytes[copied..start]);
        out.pay(before, meter);
        match replacement {
            Some(instruction) => instruction.encode(&mut out.bytes),
            None => out.bytes.extend_from_slice(&bytes[start..end]),
        }
        out.pay(after, meter);
        copied = end;
    }
    out.bytes.extend_from_slice(&bytes[copied..]);
    Ok(out)
}
