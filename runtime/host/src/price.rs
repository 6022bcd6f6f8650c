//! The cost of a guest's instructions, inserted between them: fuel, and the counters that represent the memory's size.
//!
//! Fuel is a global. It falls at the beginning of a function and at each turn of a loop, by one plus the weight of the longest path. The
//! weight counts one for each `UNIT_WEIGHT`. A short function therefore pays once, whichever path it takes. A light function without loops
//! is paid for by its callers. The part of a path behind the first `PREPAID_WEIGHT` is paid there, for as much again. A bulk operation
//! costs its bytes or items, before it begins. Below zero the guest asks for more.

use wasm_encoder::{BranchHint, Encode, Instruction};
use wasmparser::{FunctionBody, Operator};

use crate::{depth::Depths, module::InvalidModule, rewrite::REFUSED_TABLE};

/// Weight of instructions that one unit of fuel pays for.
const UNIT_WEIGHT: u32 = 64;
/// Weight that is paid in advance at most. A call that leaves early overpays by at most this weight.
const PREPAID_WEIGHT: u32 = 8 * UNIT_WEIGHT;
/// Weights of a memory access, which may miss the caches, of a division, and of a call of the host or through a table. Any other
/// instruction weighs one.
const ACCESS_WEIGHT: u32 = 2;
const DIVISION_WEIGHT: u32 = 8;
const HOST_CALL_WEIGHT: u32 = UNIT_WEIGHT;

/// Numbers of the globals and functions with which instructions are paid.
pub(crate) struct Meter {
    /// Global with the remaining fuel.
    pub fuel: u32,
    /// Global with the size of a bulk operation while it is paid for.
    pub size: u32,
    /// Function that asks the host for more.
    pub refuel: u32,
    /// False: nothing is charged.
    pub is_metered: bool,
    /// Global that replaces `memory.size`, and function that replaces `memory.grow`.
    pub pages: u32,
    pub grow: u32,
    /// Global that records the resource that the guest was refused.
    pub refused: u32,
}

/// A function's bytes as they run, and which of their jumps are almost never taken.
pub(crate) struct Paid {
    pub bytes: Vec<u8>,
    pub hints: Vec<BranchHint>,
}

/// The prices of a module's functions, and the places that pay them.
#[derive(Default)]
pub(crate) struct Prices {
    /// The prices of each function: at its beginning, and at the beginning of each of its loops.
    of_stretches: Vec<Vec<i64>>,
    weights: Weights,
}

/// The weight of a call of each function.
#[derive(Default)]
struct Weights {
    imported_functions: u32,
    /// The weight of each function that pays nothing at its beginning; otherwise none.
    unpaid: Vec<Option<u32>>,
}

impl Prices {
    /// Decides which functions pay. A light function outside of recursions is paid for by the functions that call it by its name. A call
    /// through a table weighs as much anyway.
    pub fn choose_payers(
        bodies: &[FunctionBody<'_>],
        depths: &Depths,
        imported_functions: u32,
    ) -> Result<Self, InvalidModule> {
        let mut prices = Self {
            of_stretches: vec![Vec::new(); bodies.len()],
            weights: Weights {
                imported_functions,
                unpaid: vec![None; bodies.len()],
            },
        };
        for &function in &depths.order {
            let ways = Ways::weigh(&bodies[function], &prices.weights)?;
            let is_unpaid = ways.is_light() && !depths.deep.contains_key(&function);
            let (longest, of_stretches) = (ways.longest, ways.prices);
            prices.weights.unpaid[function] = is_unpaid.then_some(longest);
            prices.of_stretches[function] = of_stretches;
        }
        Ok(prices)
    }
}

impl Weights {
    fn of_call(&self, function: u32) -> u32 {
        match function.checked_sub(self.imported_functions) {
            None => HOST_CALL_WEIGHT,
            Some(own) => 1 + self.unpaid.get(own as usize).copied().flatten().unwrap_or(0),
        }
    }
}

/// Weighs the paths through a function: the prices at its beginning, and at each turn of its loops.
struct Ways<'w> {
    weights: &'w Weights,
    /// Weight on the longest path since the last payment.
    count: u32,
    open: Vec<OpenBlock>,
    /// The open loops, and below them the function itself.
    stretches: Vec<Stretch>,
    /// The prices at the beginning of the function and of each loop, in order.
    prices: Vec<i64>,
    /// Weight of the function's longest path, once it has ended.
    longest: u32,
}

/// A block that has not ended yet.
#[derive(Default)]
struct OpenBlock {
    is_loop: bool,
    /// The count at its `if`, until its `else`.
    at_if: Option<u32>,
    /// The largest count of those paths to its end that were seen already.
    at_end: u32,
    /// Number of loops around it, itself included.
    loops: usize,
}

/// The instructions that are paid for at one place: the function, or a loop's turn, without the loops in it.
struct Stretch {
    /// Its place in `prices`.
    at: usize,
    longest: u32,
    /// The count of the surrounding stretch at its beginning.
    count_before: u32,
}

impl<'w> Ways<'w> {
    fn new(weights: &'w Weights) -> Self {
        let mut ways = Self {
            weights,
            count: 0,
            open: vec![OpenBlock::default()],
            stretches: Vec::new(),
            prices: Vec::new(),
            longest: 0,
        };
        ways.begin_stretch();
        ways
    }

    fn begin_stretch(&mut self) {
        self.stretches.push(Stretch {
            at: self.prices.len(),
            longest: 0,
            count_before: self.count,
        });
        self.prices.push(1);
        self.count = 0;
    }

    fn end_stretch(&mut self) {
        if let Some(stretch) = self.stretches.pop() {
            self.prices[stretch.at] = i64::from(1 + stretch.longest.min(PREPAID_WEIGHT) / UNIT_WEIGHT);
            self.count = stretch.count_before;
            self.longest = stretch.longest;
        }
    }

    fn open(&mut self, is_loop: bool, at_if: Option<u32>) {
        self.open.push(OpenBlock {
            is_loop,
            at_if,
            at_end: 0,
            loops: self.stretches.len() - 1,
        });
    }

    /// Records a jump to the block `depth` blocks out. A jump to a loop leads to where its turn is paid for. A jump out of a loop continues
    /// with the count of the path to the loop.
    fn jump(&mut self, depth: u32) {
        let Some(at) = self.open.len().checked_sub(depth as usize + 1) else {
            return;
        };
        let target = &mut self.open[at];
        if !target.is_loop {
            let left = self.stretches.get(target.loops + 1);
            target.at_end = target
                .at_end
                .max(left.map_or(self.count, |stretch| stretch.count_before));
        }
    }

    /// Takes an instruction. True if the instructions behind it are paid for anew, after it.
    fn take(&mut self, operator: &Operator<'_>) -> Result<bool, InvalidModule> {
        self.count += weight_of(operator, self.weights);
        if let Some(stretch) = self.stretches.last_mut() {
            stretch.longest = stretch.longest.max(self.count);
        }
        match operator {
            Operator::If { .. } => self.open(false, Some(self.count)),
            Operator::Block { .. } => self.open(false, None),
            Operator::Loop { .. } => {
                self.begin_stretch();
                self.open(true, None);
            }
            Operator::Else => {
                if let Some(block) = self.open.last_mut() {
                    block.at_end = block.at_end.max(self.count);
                    self.count = block.at_if.take().unwrap_or(self.count);
                }
            }
            Operator::End => {
                let block = self.open.pop().unwrap_or_default();
                match block.is_loop {
                    true => self.end_stretch(),
                    false => self.count = self.count.max(block.at_end).max(block.at_if.unwrap_or(0)),
                }
            }
            Operator::BrIf { relative_depth } => self.jump(*relative_depth),
            Operator::Br { relative_depth } => {
                self.jump(*relative_depth);
                self.count = 0; // no code runs from here to the block's end
            }
            Operator::BrTable { targets } => {
                for target in targets.targets() {
                    self.jump(target?);
                }
                self.jump(targets.default());
                self.count = 0;
            }
            Operator::Return | Operator::Unreachable => self.count = 0,
            _ => {}
        }
        // The price is paid after the instruction, never before. Before an `end`, only one of two paths would pay.
        let is_due = self.count >= PREPAID_WEIGHT;
        if is_due {
            self.count = 0;
        }
        Ok(is_due)
    }

    /// Weighs a whole function.
    fn weigh(body: &FunctionBody<'_>, weights: &'w Weights) -> Result<Self, InvalidModule> {
        let mut ways = Self::new(weights);
        let mut reader = body.get_operators_reader()?;
        while !reader.eof() {
            ways.take(&reader.read()?)?;
        }
        ways.end_stretch();
        Ok(ways)
    }

    /// True if the function has no loop and a low weight.
    fn is_light(&self) -> bool {
        self.prices.len() == 1 && self.longest <= UNIT_WEIGHT
    }
}

fn weight_of(operator: &Operator<'_>, weights: &Weights) -> u32 {
    use Operator::*;
    match operator {
        I32Load { .. }
        | I64Load { .. }
        | F32Load { .. }
        | F64Load { .. }
        | V128Load { .. }
        | I32Load8S { .. }
        | I32Load8U { .. }
        | I32Load16S { .. }
        | I32Load16U { .. }
        | I64Load8S { .. }
        | I64Load8U { .. }
        | I64Load16S { .. }
        | I64Load16U { .. }
        | I64Load32S { .. }
        | I64Load32U { .. }
        | I32Store { .. }
        | I64Store { .. }
        | F32Store { .. }
        | F64Store { .. }
        | V128Store { .. }
        | I32Store8 { .. }
        | I32Store16 { .. }
        | I64Store8 { .. }
        | I64Store16 { .. }
        | I64Store32 { .. } => ACCESS_WEIGHT,
        I32DivS | I32DivU | I32RemS | I32RemU | I64DivS | I64DivU | I64RemS | I64RemU | F32Div | F64Div | F32Sqrt
        | F64Sqrt | F32x4Div | F32x4Sqrt | F64x2Div | F64x2Sqrt => DIVISION_WEIGHT,
        CallIndirect { .. } => HOST_CALL_WEIGHT,
        Call { function_index } => weights.of_call(*function_index),
        _ => 1,
    }
}

/// The price at one place.
enum Price {
    Nothing,
    Fixed(i64),
    /// The `i32` on top of the stack.
    Size,
}

/// Returns true for an instruction whose work grows with the size on top of the stack.
pub(crate) fn is_sized(operator: &Operator<'_>) -> bool {
    matches!(
        operator,
        Operator::MemoryCopy { .. }
            | Operator::MemoryFill { .. }
            | Operator::MemoryInit { .. }
            | Operator::TableCopy { .. }
            | Operator::TableFill { .. }
            | Operator::TableInit { .. }
            | Operator::TableGrow { .. }
    )
}

/// Returns the price paid before an instruction, beside its weight.
fn price_of(operator: &Operator<'_>) -> Price {
    if is_sized(operator) {
        Price::Size
    } else {
        Price::Nothing
    }
}

impl Paid {
    /// Takes a price from the fuel, and asks for more if that is not enough.
    fn pay(&mut self, price: Price, meter: &Meter) {
        let (fuel, size) = (meter.fuel, meter.size);
        let mut push = |instruction: Instruction<'_>| instruction.encode(&mut self.bytes);
        match price {
            Price::Nothing => return,
            Price::Fixed(price) => {
                push(Instruction::GlobalGet(fuel));
                push(Instruction::I64Const(price));
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

impl Paid {
    /// Records whether a table was refused its growth. The answer is on the stack and stays there.
    fn record_refusal(&mut self, meter: &Meter) {
        for instruction in [
            Instruction::GlobalSet(meter.size),
            Instruction::GlobalGet(meter.size),
            Instruction::I32Const(-1),
            Instruction::I32Eq,
            Instruction::I32Const(REFUSED_TABLE.ilog2() as i32),
            Instruction::I32Shl,
            Instruction::GlobalSet(meter.refused),
            Instruction::GlobalGet(meter.size),
        ] {
            instruction.encode(&mut self.bytes);
        }
    }
}

/// Returns a function's bytes with the two memory instructions replaced and the costs inserted.
pub(crate) fn rewrite_body(
    (function, body): (usize, &FunctionBody<'_>),
    prices: &Prices,
    meter: &Meter,
) -> Result<Paid, InvalidModule> {
    let (bytes, origin) = (body.as_bytes(), body.range().start);
    let mut out = Paid {
        bytes: Vec::with_capacity(bytes.len() + bytes.len() / 4 + 32),
        hints: Vec::new(),
    };
    let mut ways = Ways::new(&prices.weights);
    let is_unpaid = prices.weights.unpaid[function].is_some();
    let mut prices = prices.of_stretches[function].iter().copied().skip(is_unpaid as usize);
    let mut reader = body.get_operators_reader()?;
    let mut copied = reader.original_position() - origin;
    out.bytes.extend_from_slice(&bytes[..copied]);
    if meter.is_metered {
        out.pay(prices.next().map_or(Price::Nothing, Price::Fixed), meter);
    }
    while !reader.eof() {
        let (operator, offset) = reader.read_with_offset()?;
        let (start, end) = (offset - origin, reader.original_position() - origin);
        let replacement = match operator {
            Operator::MemorySize { .. } => Some(Instruction::GlobalGet(meter.pages)),
            Operator::MemoryGrow { .. } => Some(Instruction::Call(meter.grow)),
            _ => None,
        };
        let (mut before, mut after) = (Price::Nothing, Price::Nothing);
        if meter.is_metered {
            before = price_of(&operator);
            let is_due = ways.take(&operator)? && !reader.eof();
            if matches!(operator, Operator::Loop { .. }) {
                after = prices.next().map_or(Price::Nothing, Price::Fixed);
            } else if is_due {
                after = Price::Fixed(i64::from(PREPAID_WEIGHT / UNIT_WEIGHT));
            }
        }
        let grows_table = matches!(operator, Operator::TableGrow { .. });
        if let (Price::Nothing, Price::Nothing, None, false) = (&before, &after, &replacement, grows_table) {
            continue;
        }
        out.bytes.extend_from_slice(&bytes[copied..start]);
        out.pay(before, meter);
        match replacement {
            Some(instruction) => instruction.encode(&mut out.bytes),
            None => out.bytes.extend_from_slice(&bytes[start..end]),
        }
        if grows_table {
            out.record_refusal(meter);
        }
        out.pay(after, meter);
        copied = end;
    }
    out.bytes.extend_from_slice(&bytes[copied..]);
    Ok(out)
}
