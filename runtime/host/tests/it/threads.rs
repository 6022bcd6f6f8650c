//! Many modules and instances on several threads at once: faults of one never touch another.
use crate::support::{MapOps, module, small_limits};
use reprise_host::{CompiledModule, Engine, GuestExit, Instance};

const MODULES: usize = 24;
const THREADS: usize = 4;
const ROUNDS: usize = 60;

/// A module that checks that its memory and global are fresh, dirties pages of its own, and answers its number.
fn numbered(number: usize) -> String {
    let step = 4096 * (1 + number % 5);
    let end = if number.is_multiple_of(7) { 600_000 } else { 60_000 };
    format!(
        r#"(module
          (import "reprise1" "args_read" (func $args_read (param i32)))
          (import "reprise1" "result_write" (func $result_write (param i64)))
          (memory (export "memory") 16)
          (global $g (mut i32) (i32.const {number}))
          (data (i32.const 4000) "\07\07\07\07\07\07\07\07")
          (func (export "reprise_call_p") (param i32) (result i32)
            (local $at i32)
            (local.set $at (i32.const 8192))
            (loop $again
              (if (i64.ne (i64.load (local.get $at)) (i64.const 0)) (then unreachable))
              (i64.store (local.get $at) (i64.const -1))
              (local.set $at (i32.add (local.get $at) (i32.const {step})))
              (br_if $again (i32.lt_u (local.get $at) (i32.const {end}))))
            (if (i64.ne (i64.load (i32.const 4000)) (i64.const 0x0707070707070707)) (then unreachable))
            (i64.store (i32.const 4000) (i64.const 1))
            (call $args_read (i32.const 0))
            (i32.store (i32.const 4) (global.get $g))
            (global.set $g (i32.const -1))
            (call $result_write (i64.const 0x8_0000_0000))
            (if (i32.eq (i32.and (i32.load (i32.const 0)) (i32.const 7)) (i32.const 5))
              (then (drop (i32.div_u (i32.const 1) (i32.const 0)))))
            (i32.const 0)))"#
    )
}

#[test]
fn instances_on_several_threads_do_not_disturb_each_other() {
    let engine = Engine::new(small_limits());
    let compiled: Vec<CompiledModule> = (0..MODULES)
        .map(|number| {
            CompiledModule::compile(&engine, &module(&numbered(number), &["p"])).unwrap_or_else(|e| panic!("{e}"))
        })
        .collect();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let compiled = &compiled;
            scope.spawn(move || {
                let mut instances: Vec<Instance> = compiled.iter().map(Instance::new).collect();
                for round in 0..ROUNDS {
                    for (number, instance) in instances.iter_mut().enumerate() {
                        let args = ((round + thread) as u32).to_le_bytes();
                        let mut ops = MapOps::with_args(&args);
                        let outcome = instance.call(0, 4, &mut ops);
                        if (round + thread) & 7 == 5 {
                            let fault = outcome.kind.unwrap_err();
                            assert_eq!(fault.trap.as_deref(), Some("integer_divide_by_zero"));
                        } else {
                            assert_eq!(outcome.kind, Ok(GuestExit::Returned), "{number} {round}");
                            assert_eq!(ops.result[4..], (number as u32).to_le_bytes());
                        }
                    }
                    if round % 20 == 19 {
                        let number = round % MODULES;
                        instances[number] = Instance::new(&compiled[number]);
                    }
                }
            });
        }
    });
}

#[test]
fn an_instance_may_move_to_another_thread_between_calls() {
    let engine = Engine::new(small_limits());
    let compiled = CompiledModule::compile(&engine, &module(&numbered(3), &["p"])).unwrap_or_else(|e| panic!("{e}"));
    let mut instance = Instance::new(&compiled);
    for _ in 0..4 {
        instance = std::thread::spawn(move || {
            let outcome = instance.call(0, 4, &mut MapOps::with_args(&[0; 4]));
            assert_eq!(outcome.kind, Ok(GuestExit::Returned));
            instance
        })
        .join()
        .unwrap();
    }
}

#[test]
fn a_call_inside_of_a_host_call_leaves_the_outer_one_watched() {
    let engine = Engine::new(small_limits());
    let compile = |wat: &str| CompiledModule::compile(&engine, &module(wat, &["p"])).unwrap_or_else(|e| panic!("{e}"));
    let mut inner = Instance::new(&compile(&numbered(4)));
    let outer = r#"(module
      (import "reprise1" "log" (func $log (param i32 i64)))
      (memory (export "memory") 4)
      (func $dirty (param i32)
        (loop $again
          (if (i64.ne (i64.load (local.get 0)) (i64.const 0)) (then unreachable))
          (i64.store (local.get 0) (i64.const -1))
          (local.set 0 (i32.add (local.get 0) (i32.const 8192)))
          (br_if $again (i32.lt_u (local.get 0) (i32.const 200000)))))
      (func (export "reprise_call_p") (param i32) (result i32)
        (call $dirty (i32.const 0))
        (call $log (i32.const 1) (i64.const 0))
        (call $dirty (i32.const 4096))
        (i32.const 0)))"#;
    let mut outer = Instance::new(&compile(outer));
    let called = std::rc::Rc::new(std::cell::Cell::new(0));
    let counter = called.clone();
    let mut ops = MapOps {
        on_log: Some(Box::new(move || {
            let mut ops = MapOps::with_args(&[0; 4]);
            assert_eq!(inner.call(0, 4, &mut ops).kind, Ok(GuestExit::Returned));
            counter.set(counter.get() + 1);
        })),
        ..MapOps::default()
    };
    for _ in 0..5 {
        assert_eq!(outer.call(0, 0, &mut ops).kind, Ok(GuestExit::Returned));
    }
    assert_eq!(called.get(), 5);
}
