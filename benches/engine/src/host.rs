//! The cost of the sandbox: calls, isolation by dirty pages, host calls, the fallback, faults, uploads.

use std::{error::Error, hint::black_box};

use anyhow::{Context, ensure};
use reprise_abi::{HostOps, IndexTarget, LogLevel, OpError, RowHandle, RowTaker, ScanBatch, ScanRequest};
use reprise_host::{CompiledModule, Engine, Instance, Limits};

use crate::{
    Args,
    measure::{Timing, header, line, time},
};

/// Calls in the guest's loop, where a host call is timed.
const LOOP_CALLS: u32 = 1_000;

/// The least transaction: arguments, a result, one row.
struct LeastOps {
    args: [u8; 16],
    result: Vec<u8>,
    row: [u8; 100],
}

impl HostOps for LeastOps {
    fn args(&self) -> &[u8] {
        &self.args
    }
    fn set_result(&mut self, bytes: &[u8]) -> Result<(), OpError> {
        self.result.clear();
        self.result.extend_from_slice(bytes);
        Ok(())
    }
    fn get(&mut self, _: IndexTarget, _: &[u8]) -> Result<Option<(RowHandle, &[u8])>, OpError> {
        Ok(Some((0, &self.row)))
    }
    fn row(&mut self, _: RowHandle) -> Result<&[u8], OpError> {
        Ok(&self.row)
    }
    fn insert(&mut self, _: u16, _: &[u8]) -> Result<RowHandle, OpError> {
        Ok(0)
    }
    fn update(&mut self, _: RowHandle, _: &[u8]) -> Result<(), OpError> {
        Ok(())
    }
    fn delete(&mut self, _: RowHandle) -> Result<(), OpError> {
        Ok(())
    }
    fn add(&mut self, _: RowHandle, _: u16, delta: i64) -> Result<i64, OpError> {
        Ok(delta)
    }
    fn scan(&mut self, _: &ScanRequest<'_>, _: &mut RowTaker<'_>) -> Result<ScanBatch, OpError> {
        Ok(ScanBatch { cursor: 0, rows: 0 })
    }
    fn scan_next(&mut self, _: u32, _: &mut RowTaker<'_>) -> Result<ScanBatch, OpError> {
        Ok(ScanBatch { cursor: 0, rows: 0 })
    }
    fn count(&mut self, _: &ScanRequest<'_>) -> Result<u64, OpError> {
        Ok(0)
    }
    fn savepoint(&mut self) -> Result<u32, OpError> {
        Ok(0)
    }
    fn rollback_to(&mut self, _: u32) -> Result<(), OpError> {
        Ok(())
    }
    fn now_us(&self) -> i64 {
        0
    }
    fn txn_id(&self) -> u64 {
        0
    }
    fn random_u64(&mut self) -> u64 {
        0
    }
    fn log(&mut self, _: LogLevel, _: &str) -> Result<(), OpError> {
        Ok(())
    }
    fn abort(&mut self, _: &str, _: &str) {}
}

/// Wraps a procedure body, and puts the description beside it.
fn module(body: &str, extra: &str) -> anyhow::Result<Vec<u8>> {
    let json = r#"{"abi":1,"tables":[],"procedures":[{"name":"p","params":[],"partitioning":"all"}]}"#;
    let text = format!(
        r#"(module
          (import "reprise1" "args_read" (func $args_read (param i32)))
          (import "reprise1" "result_write" (func $result_write (param i64)))
          (import "reprise1" "now" (func $now (result i64)))
          (import "wasi_snapshot_preview1" "sched_yield" (func $yield (result i32)))
          (import "reprise1" "get" (func $get (param i32 i64 i64) (result i64)))
          (import "reprise1" "abort" (func $abort (param i64 i64)))
          (memory (export "memory") 17)
          (global $stack (mut i32) (i32.const 65536))
          (data (i32.const 0) "constants of the guest")
          {extra}
          (func (export "reprise_call_p") (param i32) (result i32) (local $n i32)
            {body}
            (i32.const 0))
          (@custom "reprise.describe" "{}"))"#,
        json.replace('"', "\\22")
    );
    wat::parse_str(&text).context("parse benchmark module")
}

fn instance(engine: &Engine, body: &str, extra: &str) -> anyhow::Result<Instance> {
    let compiled = CompiledModule::compile(engine, &module(body, extra)?)?;
    Ok(Instance::new(&compiled))
}

fn time_calls(engine: &Engine, body: &str, extra: &str, per_run: u32, good: bool) -> anyhow::Result<Timing> {
    let mut instance = instance(engine, body, extra)?;
    let mut ops = LeastOps {
        args: [7; 16],
        result: Vec::new(),
        row: [1; 100],
    };
    let outcome = instance.call(0, ops.args.len(), &mut ops);
    ensure!(outcome.kind.is_ok() == good, "benchmark ends with {:?}", outcome.kind);
    Ok(time(per_run, || {
        black_box(instance.call(0, 16, black_box(&mut ops)).fuel_used);
    }))
}

/// Arguments in, result out, and one word written to each of `pages` further pages.
fn dirty_pages(pages: u32) -> String {
    let writes = (0..pages).map(|page| format!("(i32.store (i32.const {}) (i32.const 1))", (page + 2) * 4096));
    writes.collect()
}

const EXCHANGE: &str = "(call $args_read (i32.const 4096)) (call $result_write (i64.const 0x8_0000_1000))";

pub fn run(_: Args) -> Result<(), Box<dyn Error>> {
    let engine = Engine::new(Limits::default());
    let time_one = |body: &str| time_calls(&engine, body, "", 1, true);
    header("calls");
    line("procedure that does nothing, no page dirty", time_one("")?);
    line("arguments in, result out, 1 page dirty", time_one(EXCHANGE)?);
    for pages in [3, 15] {
        let body = format!("{EXCHANGE}{}", dirty_pages(pages));
        line(
            &format!("arguments in, result out, {} pages dirty", pages + 1),
            time_one(&body)?,
        );
    }
    let quiet = time_one("")?.least;
    for pages in [1, 4, 16, 64] {
        let timing = time_one(&dirty_pages(pages))?;
        let isolation = Timing {
            least: timing.least - quiet,
            median: timing.median - quiet,
        };
        line(&format!("isolation alone, {pages} pages dirty"), isolation);
    }
    line("100 pages dirty (memory opened)", time_one(&dirty_pages(100))?);
    println!();
    run_host_calls(&engine)?;
    println!();
    run_rare(&engine)?;
    Ok(())
}

fn run_host_calls(engine: &Engine) -> anyhow::Result<()> {
    header("host calls, in a loop of the guest");
    for (name, call) in [
        ("empty loop", ""),
        ("sched_yield, which does nothing", "(drop (call $yield))"),
        ("now", "(drop (call $now))"),
        (
            "get, 8-byte key, 100-byte row",
            "(drop (call $get (i32.const 0) (i64.const 0x8_0000_0000) (i64.const 0x80_0000_1000)))",
        ),
    ] {
        let body = format!(
            "(loop $l {call} (br_if $l (i32.lt_u (local.tee $n (i32.add (local.get $n) (i32.const 1))) (i32.const {LOOP_CALLS}))))"
        );
        line(name, time_calls(engine, &body, "", LOOP_CALLS, true)?);
    }
    Ok(())
}

fn run_rare(engine: &Engine) -> anyhow::Result<()> {
    header("rare ways");
    let table = "(table $t 1 funcref) (func $touch (table.set $t (i32.const 0) (ref.null func)))";
    line(
        "fresh instance for each call",
        time_calls(engine, EXCHANGE, table, 1, true)?,
    );
    line("trap: unreachable", time_calls(engine, "unreachable", "", 1, false)?);
    line(
        "fault: pointer out of range in a host call",
        time_calls(engine, "(call $args_read (i32.const -1))", "", 1, false)?,
    );
    let work: String = (0..60)
        .map(|n| {
            format!(
                "(func (param i32 i64 f64) (result i64) (local i64)
                   (loop $l
                     (local.set 3 (i64.add (local.get 3) (i64.load offset={n} (local.get 0))))
                     (if (i64.gt_s (local.get 3) (local.get 1))
                       (then (i64.store offset=8 (local.get 0) (i64.mul (local.get 3) (i64.const {n}))))
                       (else (f64.store offset=16 (local.get 0) (f64.mul (local.get 2) (f64.const {n})))))
                     (i32.store8 offset=24 (local.get 0) (i32.xor (i32.load8_u (local.get 0)) (i32.const {n})))
                     (memory.copy (i32.const 4096) (local.get 0) (i32.and (local.get 0) (i32.const 63)))
                     (local.set 0 (i32.add (local.get 0) (i32.shl (i32.rotl (local.get 0) (i32.const {n})) (i32.const 3))))
                     (i64.store offset=40 (local.get 0) (i64.div_u (local.get 3) (i64.or (local.get 1) (i64.const 1))))
                     (i64.store offset=48 (local.get 0) (i64.popcnt (i64.xor (local.get 3) (i64.load (local.get 0)))))
                     (br_if $l (i32.lt_u (local.get 0) (i32.const {}))))
                   (call $result_write (local.get 3)) (local.get 3))",
                1000 + n
            )
        })
        .collect();
    let wasm = module(EXCHANGE, &work)?;
    let timing = time(1, || {
        let compiled = CompiledModule::compile(engine, black_box(&wasm));
        assert!(compiled.is_ok(), "upload failed");
    });
    line(&format!("upload of {} bytes, compiled and started", wasm.len()), timing);
    let compiled = CompiledModule::compile(engine, &wasm)?;
    let mut ops = LeastOps {
        args: [7; 16],
        result: Vec::new(),
        row: [1; 100],
    };
    let first_call = || drop(black_box(Instance::new(&compiled).call(0, 16, &mut ops)));
    line("first call of a further instance of it", time(1, first_call));
    Ok(())
}
