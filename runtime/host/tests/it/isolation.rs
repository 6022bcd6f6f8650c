//! No guest state survives a call: memory, globals, tables, segments; after traps too.
use crate::support::{MapOps, faulted, returned, run, start};

/// Procedures: 0 `dirty` writes ones over `args[0..4]` pages from page `args[4..8]`. 1 does the same and then traps. 2 `probe` answers 1
/// byte: 1 if all memory up to page `args[0..4]` is as at the start. 3 fills pages by host calls.
const MEMORY: &str = r#"(module
  (import "reprise1" "args_read" (func $args_read (param i32)))
  (import "reprise1" "result_write" (func $result_write (param i64)))
  (import "wasi_snapshot_preview1" "random_get" (func $random_get (param i32 i32) (result i32)))
  (memory (export "memory") 1024)
  (data (i32.const 4096) "some data in page one")
  (data (i32.const 400000) "and more far away")
  (func $dirty
    (local $at i32) (local $end i32)
    (call $args_read (i32.const 0))
    (local.set $at (i32.shl (i32.load (i32.const 4)) (i32.const 12)))
    (local.set $end (i32.add (local.get $at) (i32.shl (i32.load (i32.const 0)) (i32.const 12))))
    (loop $again
      (i64.store (local.get $at) (i64.const -1))
      (i64.store offset=4088 (local.get $at) (i64.const -1))
      (local.set $at (i32.add (local.get $at) (i32.const 4096)))
      (br_if $again (i32.lt_u (local.get $at) (local.get $end)))))
  (func (export "reprise_call_dirty") (param i32) (result i32) (call $dirty) (i32.const 0))
  (func (export "reprise_call_dirty_trap") (param i32) (result i32) (call $dirty) (unreachable))
  (func (export "reprise_call_probe") (param i32) (result i32)
    (local $at i32) (local $end i32) (local $sum i64)
    (call $args_read (i32.const 8))
    (local.set $end (i32.shl (i32.load (i32.const 8)) (i32.const 12)))
    (i64.store (i32.const 8) (i64.const 0))
    (loop $again
      (local.set $sum (i64.add (i64.mul (local.get $sum) (i64.const 31))
        (i64.add (i64.load (local.get $at)) (i64.load offset=4088 (local.get $at)))))
      (local.set $at (i32.add (local.get $at) (i32.const 4096)))
      (br_if $again (i32.lt_u (local.get $at) (local.get $end))))
    (i64.store (i32.const 0) (local.get $sum))
    (call $result_write (i64.const 0x8_0000_0000))
    (i32.const 0))
  (func (export "reprise_call_host_fill") (param i32) (result i32)
    (call $args_read (i32.const 0))
    (drop (call $random_get
      (i32.shl (i32.load (i32.const 4)) (i32.const 12))
      (i32.shl (i32.load (i32.const 0)) (i32.const 12))))
    (i32.const 0))
)"#;

const PROCEDURES: [&str; 4] = ["dirty", "dirty_trap", "probe", "host_fill"];
/// All that the histories below touch.
const PAGES: u32 = 1_300;

fn span(pages: u32, first: u32) -> [u8; 8] {
    (u64::from(pages) | u64::from(first) << 32).to_le_bytes()
}

#[test]
fn memory_is_as_at_the_start_after_any_number_of_dirty_pages() {
    let mut instance = start(MEMORY, &PROCEDURES);
    let clean = returned(&mut instance, 2, &PAGES.to_le_bytes());
    for pages in [1, 2, 4, 15, 16, 17, 63, 64, 65, 66, 100, 1_000, 3, 1] {
        for first in [0, 1, 97, 200] {
            for procedure in [0, 1, 3] {
                let (outcome, _) = run(&mut instance, procedure, &span(pages, first));
                assert_eq!(outcome.kind.is_err(), procedure == 1, "{pages} {first} {procedure}");
                let now = returned(&mut instance, 2, &PAGES.to_le_bytes());
                assert_eq!(now, clean, "{pages} pages from {first} by {procedure}");
            }
        }
    }
}

#[test]
fn memory_is_as_at_the_start_over_long_random_histories() {
    for seed in 0..4 {
        let mut random = reprise_abi::random::TxnRandom::new([9, 9], seed);
        let mut instance = start(MEMORY, &PROCEDURES);
        let clean = returned(&mut instance, 2, &PAGES.to_le_bytes());
        for step in 0..2_000 {
            let draw = random.next_u64();
            let pages = match draw % 64 {
                0 => 1 + (draw >> 8) as u32 % 300,
                1..8 => 1 + (draw >> 8) as u32 % 40,
                _ => 1 + (draw >> 8) as u32 % 3,
            };
            let first = (draw >> 32) as u32 % 300;
            run(&mut instance, (draw >> 60) as usize & 1, &span(pages, first));
            if step % 16 == 0 {
                let now = returned(&mut instance, 2, &PAGES.to_le_bytes());
                assert_eq!(now, clean, "reproduce: seed {seed}, step {step}");
            }
        }
    }
}

#[test]
fn a_large_hot_set_is_cooled_and_still_isolated() {
    let mut instance = start(MEMORY, &PROCEDURES);
    let clean = returned(&mut instance, 2, &400u32.to_le_bytes());
    run(&mut instance, 0, &span(40, 300));
    for _ in 0..9_000 {
        run(&mut instance, 0, &span(1, 310));
    }
    assert_eq!(returned(&mut instance, 2, &400u32.to_le_bytes()), clean);
}

/// Answers how often it was called since the start, by every kind of state that a module has.
fn counts_its_calls(state: &str, count: &str) -> Vec<u8> {
    let text = format!(
        r#"(module
          (import "reprise1" "result_write" (func $result_write (param i64)))
          (memory (export "memory") 1 10)
          {state}
          (func (export "reprise_call_count") (param i32) (result i32)
            (i32.store (i32.const 0) {count})
            (call $result_write (i64.const 0x4_0000_0000))
            (i32.const 0))
        )"#
    );
    let mut instance = start(&text, &["count"]);
    let first = returned(&mut instance, 0, &[]);
    for _ in 0..5 {
        assert_eq!(returned(&mut instance, 0, &[]), first, "{state}");
    }
    first
}

#[test]
fn globals_of_every_type_are_reset() {
    let first = counts_its_calls(
        r#"(global $a (mut i32) (i32.const 5)) (global $b (mut i64) (i64.const 6))
           (global $c (mut f32) (f32.const 7)) (global $d (mut f64) (f64.const 8))
           (global $e (mut v128) (v128.const i32x4 9 0 0 0)) (global $f (mut funcref) (ref.null func))
           (elem declare func $bump)
           (func $bump (result i32)
             (global.set $a (i32.add (global.get $a) (i32.const 1)))
             (global.set $b (i64.add (global.get $b) (i64.const 1)))
             (global.set $c (f32.add (global.get $c) (f32.const 1)))
             (global.set $d (f64.add (global.get $d) (f64.const 1)))
             (global.set $e (i32x4.add (global.get $e) (v128.const i32x4 1 0 0 0)))
             (i32.add (i32.add (i32.add (global.get $a) (i32.wrap_i64 (global.get $b)))
               (i32.add (i32.trunc_f32_s (global.get $c)) (i32.trunc_f64_s (global.get $d))))
               (i32.add (i32x4.extract_lane 0 (global.get $e))
                 (i32.mul (i32.const 1000) (ref.is_null (global.get $f)))))
             (global.set $f (ref.func $bump)))"#,
        "(call $bump)",
    );
    assert_eq!(first, 1040u32.to_le_bytes());
}

#[test]
fn exported_globals_and_start_functions_keep_their_values() {
    let first = counts_its_calls(
        r#"(global $a (export "a") (mut i32) (i32.const 5))
           (func $start (global.set $a (i32.const 70)) (i32.store (i32.const 8) (i32.const 300)))
           (start $start)
           (func (export "_initialize") (global.set $a (i32.add (global.get $a) (i32.const 7))))
           (func $bump (result i32)
             (global.set $a (i32.add (global.get $a) (i32.const 1)))
             (i32.store (i32.const 8) (i32.add (i32.load (i32.const 8)) (i32.const 1000)))
             (i32.add (i32.load (i32.const 8)) (global.get $a)))"#,
        "(call $bump)",
    );
    assert_eq!(first, 1378u32.to_le_bytes());
}

#[test]
fn memory_growth_is_undone() {
    let first = counts_its_calls(
        r#"(func $grow (result i32)
             (drop (memory.grow (i32.const 2)))
             (i32.store (i32.const 150000) (i32.add (i32.load (i32.const 150000)) (i32.const 100)))
             (i32.add (i32.load (i32.const 150000)) (memory.size)))"#,
        "(call $grow)",
    );
    assert_eq!(first, 103u32.to_le_bytes());
}

#[test]
fn memory_grows_to_its_own_maximum_and_not_beyond() {
    let first = counts_its_calls(
        r#"(func $grow (result i32)
             (if (i32.ne (memory.grow (i32.const 9)) (i32.const 1)) (then unreachable))
             (if (i32.ne (memory.grow (i32.const 1)) (i32.const -1)) (then unreachable))
             (if (i32.ne (memory.grow (i32.const -1)) (i32.const -1)) (then unreachable))
             (if (i32.ne (memory.grow (i32.const 0)) (i32.const 10)) (then unreachable))
             (memory.size))"#,
        "(call $grow)",
    );
    assert_eq!(first, 10u32.to_le_bytes());
}

#[test]
fn tables_and_dropped_segments_take_a_fresh_instance() {
    let first = counts_its_calls(
        r#"(table $t 2 20 funcref) (elem declare func $bump)
           (data $d "\07")
           (func $bump (result i32)
             (local $seen i32)
             (local.set $seen (i32.add (i32.mul (i32.const 100) (table.size $t)) (ref.is_null (table.get $t (i32.const 0)))))
             (memory.init $d (i32.const 16) (i32.const 0) (i32.const 1))
             (data.drop $d)
             (table.set $t (i32.const 0) (ref.func $bump))
             (drop (table.grow $t (ref.null func) (i32.const 3)))
             (i32.add (local.get $seen) (i32.load8_u (i32.const 16))))"#,
        "(call $bump)",
    );
    assert_eq!(first, 208u32.to_le_bytes());
}

#[test]
fn a_panic_in_the_transaction_passes_through_and_leaves_the_instance_usable() {
    let mut instance = start(
        r#"(module
          (import "reprise1" "log" (func $log (param i32 i64)))
          (import "reprise1" "result_write" (func $result_write (param i64)))
          (memory (export "memory") 1)
          (func (export "reprise_call_log") (param i32) (result i32)
            (i32.store (i32.const 0) (i32.add (i32.load (i32.const 0)) (i32.const 1)))
            (call $log (i32.const 1) (i64.const 0))
            (call $result_write (i64.const 0x4_0000_0000))
            (i32.const 0)))"#,
        &["log"],
    );
    for _ in 0..3 {
        let mut ops = MapOps {
            on_log: Some(Box::new(|| panic!("asked to panic"))),
            ..MapOps::default()
        };
        let call = std::panic::AssertUnwindSafe(|| instance.call(0, 0, &mut ops));
        assert!(std::panic::catch_unwind(call).is_err());
        assert_eq!(returned(&mut instance, 0, &[]), 1u32.to_le_bytes());
    }
}

#[test]
fn writes_that_straddle_pages_and_bulk_writes_are_undone() {
    let mut instance = start(
        r#"(module
          (import "reprise1" "result_write" (func $result_write (param i64)))
          (memory (export "memory") 4 4)
          (data (i32.const 8190) "abcd")
          (func (export "reprise_call_straddle") (param i32) (result i32)
            (call $result_write (i64.const 0x0002_0000_0000_1000))
            (i64.store (i32.const 8188) (i64.const -1))
            (memory.fill (i32.const 20000) (i32.const 255) (i32.const 90000))
            (memory.copy (i32.const 4096) (i32.const 20000) (i32.const 10000))
            (i32.const 0))
          (func (export "reprise_call_out") (param i32) (result i32)
            (i64.store (i32.const 100) (i64.const -1))
            (memory.fill (i32.const 200000) (i32.const 255) (i32.const 90000))
            (i32.const 0)))"#,
        &["straddle", "out"],
    );
    let first = returned(&mut instance, 0, &[]);
    assert_eq!(first.len(), 0x20000);
    for _ in 0..3 {
        assert_eq!(faulted(&mut instance, 1, &[]).trap.as_deref(), Some("out_of_bounds"));
        assert!(returned(&mut instance, 0, &[]) == first);
    }
}
