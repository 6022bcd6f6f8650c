//! How much work a function makes for the compiler, estimated before it begins: some shapes cost it far more than their
//! bytes. A jump back to a loop hands on every local that the loop may have changed, so jumps times locals is what register
//! allocation works on; a join of two ways does the same with the few that differ.

use wasmparser::{FunctionBody, Operator};

use crate::module::InvalidModule;

/// Loops of one function at most: the compiler's own analysis grows with their square.
const LOOPS_MAX: u64 = 2_000;
/// Work of one function at most: about a second.
const FUNCTION_WORK_MAX: u64 = 400_000;
/// From here on a function counts against its module: compilers of programs make few such functions, and none near the bound.
const HEAVY_WORK: u64 = 20_000;
/// Work of a module's heavy functions at most.
const MODULE_WORK_MAX: u64 = 1_200_000;
/// Joins that cost as much as one jump back.
const JOINS_PER_JUMP: u64 = 16;

/// What the functions of a module came to so far.
#[derive(Default)]
pub(crate) struct Effort {
    heavy_work: u64,
}

/// One function's control flow.
#[derive(Default)]
struct Flow {
    /// Per open block: is it a loop?
    open: Vec<bool>,
    loops: u64,
    /// Jumps to the head of a loop.
    back: u64,
    joins: u64,
}

impl Flow {
    fn jump(&mut self, depth: u32) {
        let target = self.open.len().checked_sub(depth as usize + 1);
        match target.and_then(|at| self.open.get(at)) {
            Some(true) => self.back += 1,
            _ => self.joins += 1,
        }
    }

    fn on(&mut self, operator: &Operator<'_>) -> Result<(), InvalidModule> {
        match operator {
            Operator::Loop { .. } => {
                self.loops += 1;
                self.open.push(true);
            }
            Operator::Block { .. } => self.open.push(false),
            Operator::If { .. } => {
                self.joins += 1;
                self.open.push(false);
            }
            Operator::End => {
                self.open.pop();
            }
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
    /// Adds a function; refuses it, or the module with it, when compiling would take seconds. `on` sees each of its
    /// instructions.
    pub fn add<'a>(
        &mut self,
        body: &FunctionBody<'a>,
        params: usize,
        mut on: impl FnMut(&Operator<'a>),
    ) -> Result<(), InvalidModule> {
        let at = |reason: String| InvalidModule {
            reason,
            offset: Some(body.range().start as u64),
        };
        let mut locals = params as u64;
        for declared in body.get_locals_reader()? {
            locals += u64::from(declared?.0);
        }
        let mut flow = Flow::default();
        for operator in body.get_operators_reader()? {
            let operator = operator?;
            flow.on(&operator)?;
            on(&operator);
        }
        if flow.loops > LOOPS_MAX {
            let loops = flow.loops;
            return Err(at(format!(
                "function of {loops} loops has more than {LOOPS_MAX}"
            )));
        }
        let jumps = flow.loops + flow.back + flow.joins / JOINS_PER_JUMP;
        let work = jumps.saturating_mul(locals);
        if work > FUNCTION_WORK_MAX {
            let reason = format!(
                "function of {} jumps and {locals} locals would hold the compiler for too long",
                flow.back + flow.joins
            );
            return Err(at(reason));
        }
        if work > HEAVY_WORK {
            self.heavy_work += work;
        }
        if self.heavy_work > MODULE_WORK_MAX {
            let reason =
                "module's functions of many jumps and locals would hold the compiler for too long";
            return Err(at(reason.to_owned()));
        }
        Ok(())
    }
}
