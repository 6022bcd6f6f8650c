//! The paged engine against ours, and part by part.

mod figures;
mod locks;
mod logs;
mod pages;
mod rows;
mod trees;

use reprise_bench_looking_glass::{
    engine::{Engine, Room},
    txn::{TxnEnd, Worker},
    work::{Call, Calls, Scale},
};

/// An engine with the tables of `tpcc`, empty.
fn engine<const P: u32>(frames: usize, group: u32) -> Engine<P> {
    Engine::create(&tpcc::MODULE.schema(), Room { frames, group }).expect("an engine")
}

fn tiny() -> Calls {
    Calls::draw(Scale::TINY).expect("the module has its procedures")
}

fn run<const P: u32>(worker: &mut Worker<'_, P>, call: &Call) -> TxnEnd {
    worker.run(&tpcc::MODULE, call.procedure, call.txn_id, &call.args)
}

/// Numbers that look random, the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}
