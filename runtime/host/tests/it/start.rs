//! Start functions, descriptions and buffers run in the time of a call or of a deployment, and what instances keep is counted.
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use crate::support::{MapOps, compile, description, faulted, module, returned, run};
use reprise_base::{
    MemoryKind, MemoryLedger,
    limits::{COMPILE_BYTES_EACH, FUEL_SLICE, MEMORY_MAX_LIMIT},
};
use reprise_env::Clock;
use reprise_host::{CompiledModule, Engine, FaultKind, Instance, Limits, StartTime};

const P: &str = r#"(func (export "reprise_call_p") (param i32) (result i32) (i32.const 0))"#;

/// A loop of this many turns.
fn turns(count: u64) -> String {
    format!(
        "(local $n i64) (loop $l (local.set $n (i64.add (local.get $n) (i64.const 1)))
           (br_if $l (i64.lt_u (local.get $n) (i64.const {count}))))"
    )
}

/// Modules in which guest code beside the procedures takes this many turns: a start function, an initializer, a buffer's export. Each is
/// restored after a call, or made anew for it.
fn slow_starts(count: u64) -> Vec<String> {
    let work = turns(count);
    let starts = [
        format!("(func $s {work}) (start $s)"),
        format!(r#"(func (export "_initialize") {work})"#),
        format!(r#"(func (export "reprise_args_buffer") (result i64) {work} (i64.const 0))"#),
        format!(r#"(func (export "reprise_result_buffer") (result i64) {work} (i64.const 0))"#),
    ];
    let fresh = "(func (table.set (i32.const 0) (ref.null func)))";
    let of = |start: &String| {
        ["", fresh]
            .map(|kind| format!(r#"(module (memory (export "memory") 1 1) (table 1 funcref) {P} {start} {kind})"#))
    };
    starts.iter().flat_map(of).collect()
}

#[test]
fn start_runs_in_the_first_call_that_may_be_cancelled() {
    for wat in slow_starts(100_000) {
        let mut instance = Instance::new(&compile(&wat, &["p"]));
        let mut ops = MapOps {
            end_at: Some(3),
            ..MapOps::default()
        };
        let fault = instance.call(0, 0, &mut ops).kind.expect_err("its start was ended");
        assert_eq!(fault.kind, FaultKind::Ended(reprise_abi::EndReason::Cancelled), "{wat}");
        assert_eq!(ops.asked, 3, "the start alone asked: {wat}");
        let (outcome, ops) = run(&mut instance, 0, &[]);
        assert!(
            outcome.kind.is_ok() && ops.asked > 3,
            "the next call starts anew: {wat}"
        );
    }
}

#[test]
fn start_has_the_fuel_of_every_module_whatever_its_call_declares() {
    for wat in slow_starts(100_000) {
        let mut instance = Instance::new(&compile(&wat, &["p"]));
        let mut ops = MapOps {
            fuel_max: Some(FUEL_SLICE),
            ..MapOps::default()
        };
        let outcome = instance.call(0, 0, &mut ops);
        assert!(outcome.kind.is_ok(), "{wat}: {:?}", outcome.kind);
        assert!(outcome.fuel_used < FUEL_SLICE, "a start is no part of its call's fuel");
    }
}

/// Each reading is a second later.
struct Seconds(AtomicU64);

impl Clock for Seconds {
    fn now_us(&self) -> i64 {
        0
    }
    fn monotonic_ns(&self) -> u64 {
        self.0.fetch_add(1_000_000_000, Ordering::Relaxed)
    }
}

#[test]
fn deployment_ends_what_does_not_start_or_describe_itself_in_time() {
    let engine = Engine::new(Limits::default());
    let endless = u64::MAX;
    let mut wasms: Vec<_> = slow_starts(endless).iter().map(|wat| module(wat, &["p"])).collect();
    let text = description(&["p"]);
    let described = |work: &str| {
        let wat = format!(
            r#"(module (memory (export "memory") 1 1) (data (i32.const 1000) "{}") {P}
              (func (export "reprise_describe") (result i64) {work} (i64.const {})))"#,
            text.replace('"', "\\22"),
            (text.len() as u64) << 32 | 1000
        );
        wat::parse_str(&wat).unwrap()
    };
    wasms.push(described(&turns(endless)));
    for wasm in &wasms {
        let clock = Arc::new(Seconds(AtomicU64::new(7)));
        let refused = CompiledModule::compile_within(&engine, wasm, &StartTime::within(clock.clone(), 5));
        let refused = refused.map(drop).expect_err("it takes for ever");
        assert!(refused.reason.contains("deploy-time-max-s of 5 reached"), "{refused}");
        assert!(
            clock.0.load(Ordering::Relaxed) < 10_000_000_000,
            "asked no more often than it has seconds"
        );
    }
    // Fuel alone ends the start without a limit, and the start of a module that was taken once.
    let short = described(&turns(100_000));
    let clock = Arc::new(Seconds(AtomicU64::new(7)));
    assert!(CompiledModule::compile_within(&engine, &short, &StartTime::within(clock, 0)).is_ok());
    assert!(CompiledModule::compile_again(&engine, &short).is_ok());
}

#[test]
fn compilation_of_a_known_module_is_counted_and_never_refused() {
    let wasm = module(&format!(r#"(module (memory (export "memory") 1 1) {P})"#), &["p"]);
    let memory = MemoryLedger::new(1);
    memory.enforce();
    let engine = Engine::new(Limits::default());
    engine.count_in(&memory);
    assert!(CompiledModule::compile_again(&engine, &wasm).is_ok());
    let modules = memory.kind(MemoryKind::Modules);
    let peak = wasm.len() as u64 * COMPILE_BYTES_EACH;
    assert_eq!((modules.used(), modules.peak()), (0, peak));
}

#[test]
fn module_that_was_taken_once_does_not_start_before_its_first_call() {
    let endless = module(&slow_starts(u64::MAX)[0], &["p"]);
    let compiled = CompiledModule::compile_again(&Engine::new(Limits::default()), &endless);
    let compiled = compiled.unwrap_or_else(|e| panic!("{e}"));
    let mut ops = MapOps {
        end_at: Some(1),
        ..MapOps::default()
    };
    let fault = Instance::new(&compiled).call(0, 0, &mut ops).kind.expect_err("ended");
    assert_eq!(fault.kind, FaultKind::Ended(reprise_abi::EndReason::Cancelled));
}

/// Its start fills this many bytes of 64 MiB.
fn filled_wasm(bytes: usize) -> Vec<u8> {
    let wat = format!(
        r#"(module (memory (export "memory") 1024 1024) {P}
          (func $s (memory.fill (i32.const 0) (i32.const 90) (i32.const {bytes}))) (start $s))"#
    );
    module(&wat, &["p"])
}

fn filled(bytes: usize) -> CompiledModule {
    let engine = Engine::new(Limits::default());
    CompiledModule::compile(&engine, &filled_wasm(bytes)).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn deployment_counts_its_instance_and_is_refused_when_that_passes_the_limit_of_memory() {
    let wasm = filled_wasm(60 << 20);
    // The memory and its copy.
    for (max_bytes, fits) in [(100 << 20, false), (130 << 20, true)] {
        let memory = MemoryLedger::new(max_bytes);
        memory.enforce();
        let engine = Engine::new(Limits::default());
        engine.count_in(&memory);
        let compiled = CompiledModule::compile(&engine, &wasm).map(drop);
        assert_eq!(compiled.is_ok(), fits, "{compiled:?}");
        if let Err(refused) = compiled {
            let expected = format!("its memory passes the limit of {max_bytes} bytes");
            assert!(refused.lacks_room && refused.reason.contains(&expected), "{refused}");
        }
        let guests = memory.kind(MemoryKind::Guests);
        assert!(guests.peak() >= 60 << 20, "{}", guests.peak());
        assert_eq!(memory.used(), 0, "the instance is gone");
    }
}

#[test]
fn known_module_that_describes_itself_is_counted_and_never_refused() {
    let text = description(&["p"]);
    let wat = format!(
        r#"(module (memory (export "memory") 1 1) (data (i32.const 1000) "{}") {P}
          (func (export "reprise_describe") (result i64) (i64.const {})))"#,
        text.replace('"', "\\22"),
        (text.len() as u64) << 32 | 1000
    );
    let wasm = wat::parse_str(&wat).unwrap();
    let without_room = || {
        let memory = MemoryLedger::new(1);
        memory.enforce();
        let engine = Engine::new(Limits::default());
        engine.count_in(&memory);
        (memory, engine)
    };
    let (memory, engine) = without_room();
    assert!(
        CompiledModule::compile(&engine, &wasm).is_err(),
        "an upload has no room"
    );
    assert_eq!(memory.peak(), 0, "nothing started");
    let (memory, engine) = without_room();
    assert!(CompiledModule::compile_again(&engine, &wasm).is_ok());
    assert!(memory.kind(MemoryKind::Guests).peak() > 0);
    assert_eq!(memory.used(), 0);
}

fn counted(module: &CompiledModule, memory: &Arc<MemoryLedger>) -> Instance {
    let mut instance = Instance::new(module);
    instance.count_in(memory);
    instance
}

#[test]
fn instance_is_kept_where_its_memory_and_the_copy_have_room_and_serves_one_call_else() {
    let memory = MemoryLedger::new(256 << 20);
    memory.enforce();
    let (small, large) = (filled(1 << 20), filled(60 << 20));
    let mut kept = counted(&small, &memory);
    assert!(kept.wanted_bytes() > 2 << 20);
    returned(&mut kept, 0, &[]);
    let held = memory.used();
    assert!((2 << 20..3 << 20).contains(&held), "the memory and its copy: {held}");
    assert_eq!(kept.wanted_bytes(), 0);
    let mut once: Vec<_> = (0..8).map(|_| counted(&large, &memory)).collect();
    for instance in &mut once {
        returned(instance, 0, &[]);
        assert_eq!(memory.used(), held, "it went with its call");
        assert!(instance.wanted_bytes() > 120 << 20);
    }
    assert!(memory.peak() > 60 << 20, "it was counted while its call ran");
    drop(kept);
    assert_eq!(memory.used(), 0);
}

#[test]
fn call_is_refused_where_its_instance_passes_the_limit_of_memory_and_a_replay_is_not() {
    let memory = MemoryLedger::new(64 << 20);
    memory.enforce();
    let module = filled(60 << 20);
    let rows = memory.kind(MemoryKind::Rows).take(20 << 20);
    let mut instance = counted(&module, &memory);
    let fault = faulted(&mut instance, 0, &[]);
    assert_eq!((fault.limit, fault.max), (Some(MEMORY_MAX_LIMIT), 64 << 20));
    assert_eq!(memory.used(), 20 << 20, "what was refused is held nowhere");
    let mut ops = MapOps {
        is_replay: true,
        ..MapOps::default()
    };
    assert!(instance.call(0, 0, &mut ops).kind.is_ok(), "it was committed once");
    drop(rows);
    assert!(run(&mut instance, 0, &[]).0.kind.is_ok());
    assert_eq!(memory.used(), 0);
}

/// A module whose call fills memory beyond its start: this many bytes of 64 MiB from the beginning on. Then the call asks the host. Its
/// instance is kept, or, if it drops a segment, fresh for each call.
fn filling(bytes: usize, is_fresh: bool) -> CompiledModule {
    let drops = if is_fresh { "(data.drop $d)" } else { "" };
    let wat = format!(
        r#"(module (import "reprise1" "log" (func $log (param i32 i64)))
          (memory (export "memory") 1024 1024) (data $d "x")
          (func (export "reprise_call_small") (param i32) (result i32) {drops} (i32.const 0))
          (func (export "reprise_call_fill") (param i32) (result i32)
            (memory.fill (i32.const 0) (i32.const 90) (i32.const {bytes}))
            (call $log (i32.const 2) (i64.const 0x1_0000_0000))
            (i32.const 0)))"#
    );
    let engine = Engine::new(Limits::default());
    CompiledModule::compile(&engine, &module(&wat, &["small", "fill"])).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn memory_that_a_call_fills_is_counted_while_it_runs() {
    const FILLED: u64 = 40 << 20;
    for (is_fresh, limit) in [(false, 2 << 30), (true, 2 << 30), (false, 100 << 10)] {
        // The last one has no room to keep an instance.
        let memory = MemoryLedger::new(limit);
        let mut instance = counted(&filling(FILLED as usize, is_fresh), &memory);
        returned(&mut instance, 0, &[]);
        let before = memory.used();
        assert!(before < 1 << 20, "{before}");
        let seen = Arc::new(AtomicU64::new(0));
        let mut ops = MapOps {
            on_log: Some({
                let (seen, memory) = (seen.clone(), memory.clone());
                Box::new(move || seen.store(memory.used(), Ordering::Relaxed))
            }),
            ..MapOps::default()
        };
        assert!(instance.call(1, 0, &mut ops).kind.is_ok());
        let seen = seen.load(Ordering::Relaxed);
        assert!((FILLED..FILLED + (2 << 20)).contains(&seen), "fresh {is_fresh}: {seen}");
        // The memory that a kept instance holds open goes after some calls, and each call finds the start's data.
        for _ in 0..200 {
            returned(&mut instance, 0, &[]);
        }
        assert!(memory.used() <= before + (1 << 20), "{}", memory.used());
        drop(instance);
        assert_eq!(memory.used(), 0);
    }
}
