//! Limits on a guest's resources, and the errors for guests that exceed them.
use crate::support;
use crate::support::{MapOps, faulted, run, start};
use reprise_base::limits::{FUEL_SLICE, PANIC_TEXT_BYTES_MAX};
use reprise_host::FaultKind;

fn procedure(locals_and_body: &str) -> String {
    format!(
        r#"(module
          (import "reprise1" "now" (func $now (result i64)))
          (memory (export "memory") 1)
          (table 1 funcref)
          (func $recurse (param i32) (result i32) (call $recurse (i32.add (local.get 0) (i32.const 1))))
          (func $recurse_wide (param i32) (result i32)
            (if (local.get 0) (then
              (drop (call $recurse_wide (i32.sub (local.get 0) (i32.const 1))))
              (drop (call $recurse_wide (i32.sub (local.get 0) (i32.const 1))))))
            (i32.const 0))
          (func (export "reprise_call_p") (param i32) (result i32) {locals_and_body}))"#
    )
}

#[track_caller]
fn check_limit(body: &str, limit: &str) {
    let mut instance = start(&procedure(body), &["p"]);
    let mut used = Vec::new();
    for _ in 0..3 {
        let (outcome, _) = run(&mut instance, 0, &[]);
        let fault = outcome.kind.expect_err("must reach the limit");
        assert_eq!((fault.kind, fault.limit), (FaultKind::Limit, Some(limit)), "{body}");
        assert!(fault.max > 0);
        used.push(outcome.fuel_used);
    }
    assert!(used.iter().all(|fuel| *fuel == used[0]), "{used:?}");
}

#[test]
fn endless_loops_run_out_of_fuel() {
    check_limit("(loop $l (br $l)) (i32.const 0)", "fuel");
    check_limit("(loop $l (br_if $l (i32.const 1))) (i32.const 0)", "fuel");
    check_limit("(loop $l (br_table $l $l (i32.const 1))) (i32.const 0)", "fuel");
    check_limit("(loop $l (drop (call $now)) (br $l)) (i32.const 0)", "fuel");
    check_limit(
        "(loop $l (drop (memory.grow (i32.const 1))) (br $l)) (i32.const 0)",
        "fuel",
    );
    check_limit(
        "(loop $l (memory.fill (i32.const 0) (i32.const 1) (i32.const 65536)) (br $l)) (i32.const 0)",
        "fuel",
    );
}

#[test]
fn endless_recursion_runs_out_of_stack() {
    check_limit("(call $recurse (i32.const 0))", "stack_bytes");
}

#[test]
fn long_runs_of_free_instructions_cost_fuel() {
    // A loop of 100,000 additions per turn. The price must follow the work, not the turns, even if empty branches that are never taken cut
    // the run.
    for filler in [
        "(local.set 0 (i32.add (local.get 0) (i32.const 1)))",
        "(if (i32.const 0) (then))",
    ] {
        let body = format!(
            "(local $turns i32) (loop $l {} (local.set $turns (i32.add (local.get $turns) (i32.const 1)))
               (br_if $l (i32.lt_u (local.get $turns) (i32.const 100)))) (i32.const 0)",
            filler.repeat(25_000)
        );
        let mut instance = start(&procedure(&body), &["p"]);
        let (outcome, _) = run(&mut instance, 0, &[]);
        assert!(outcome.kind.is_ok());
        let least = 100 * 25_000 * 3 / 64;
        assert!(outcome.fuel_used >= least, "{} < {least}", outcome.fuel_used);
    }
}

#[test]
fn traps_have_names_and_backtraces() {
    for (body, name) in [
        ("unreachable", "unreachable"),
        ("(i32.load (i32.const -4))", "out_of_bounds"),
        ("(i32.div_u (i32.const 1) (local.get 0))", "integer_divide_by_zero"),
        (
            "(i32.div_s (i32.const 0x80000000) (i32.sub (local.get 0) (i32.const 1)))",
            "integer_overflow",
        ),
        ("(i32.trunc_f64_s (f64.const nan))", "invalid_conversion_to_integer"),
        ("(call_indirect (result i32) (i32.const 0))", "uninitialized_element"),
        ("(call_indirect (result i32) (i32.const 9))", "undefined_element"),
    ] {
        let wat = format!(
            r#"(module (memory (export "memory") 1 1) (table 1 funcref)
              (func $inner_one (param i32) (result i32) {body})
              (func $_ZN5guest5outer17h0123456789abcdefE (param i32) (result i32) (call $inner_one (local.get 0)))
              (func (export "reprise_call_p") (param i32) (result i32)
                (call $_ZN5guest5outer17h0123456789abcdefE (local.get 0))))"#
        );
        let mut instance = start(&wat, &["p"]);
        for _ in 0..2 {
            let fault = faulted(&mut instance, 0, &[]);
            assert_eq!((fault.kind, fault.trap.as_deref()), (FaultKind::Trap, Some(name)));
            assert_eq!(fault.backtrace[..2], ["inner_one", "guest::outer"]);
            assert_eq!(fault.backtrace.len(), 3, "{:?}", fault.backtrace);
        }
    }
}

#[test]
fn a_guest_without_names_shows_its_exports() {
    let wat = r#"(module (memory (export "memory") 1 1)
      (func (export "reprise_call_p") (param i32) (result i32) (call 1 (local.get 0)))
      (func (param i32) (result i32) unreachable))"#;
    let fault = faulted(&mut start(wat, &["p"]), 0, &[]);
    assert_eq!(fault.backtrace, ["function 1", "reprise_call_p"]);
}

#[test]
fn return_codes_must_agree_with_abort() {
    let wat = r#"(module
      (import "reprise1" "args_read" (func $args_read (param i32)))
      (import "reprise1" "abort" (func $abort (param i64 i64)))
      (memory (export "memory") 1 1)
      (data (i32.const 16) "code" "message")
      (func (export "reprise_call_p") (param i32) (result i32)
        (call $args_read (i32.const 0))
        (if (i32.load8_u (i32.const 1))
          (then (call $abort (i64.const 0x4_0000_0010) (i64.const 0x7_0000_0014))))
        (i32.load8_u (i32.const 0))))"#;
    let mut instance = start(wat, &["p"]);
    let (outcome, ops) = run(&mut instance, 0, &[1, 1]);
    assert_eq!(outcome.kind, Ok(reprise_host::GuestExit::Aborted));
    assert_eq!(ops.abort, Some(("code".to_owned(), "message".to_owned())));
    assert_eq!(
        run(&mut instance, 0, &[0, 0]).0.kind,
        Ok(reprise_host::GuestExit::Returned)
    );
    for wrong in [[0, 1], [1, 0], [2, 0], [2, 1], [255, 0]] {
        assert_eq!(faulted(&mut instance, 0, &wrong).kind, FaultKind::Guest, "{wrong:?}");
    }
}

#[test]
fn the_same_call_burns_the_same_fuel_on_every_instance() {
    let body = "(local $n i32)
      (loop $l (local.set $n (i32.add (local.get $n) (i32.const 1)))
        (br_if $l (i32.lt_u (local.get $n) (i32.const 1000)))) (i32.const 0)";
    let burn = || {
        let mut instance = start(&procedure(body), &["p"]);
        [0; 3].map(|_| run(&mut instance, 0, &[]).0.fuel_used)
    };
    let (first, second) = (burn(), burn());
    assert_eq!(first, second);
    assert!(first[0] == first[2] && first[0] >= 1000 && first[0] < 1100, "{first:?}");
}

/// Runs with a transaction that is asked between slices, and ends the call at the given question.
fn run_until(body: &str, question: usize) -> (reprise_host::CallOutcome, MapOps) {
    let mut instance = start(&procedure(body), &["p"]);
    let mut ops = MapOps {
        end_at: Some(question),
        ..MapOps::default()
    };
    let outcome = instance.call(0, 0, &mut ops);
    (outcome, ops)
}

#[test]
fn a_guest_asks_between_slices_and_may_be_ended_there() {
    let endless = "(loop $l (br $l)) (i32.const 0)";
    let filling = "(loop $l (memory.fill (i32.const 0) (i32.const 1) (i32.const 65536)) (br $l)) (i32.const 0)";
    for body in [endless, filling, "(call $recurse_wide (i32.const 40))"] {
        for question in [1, 7] {
            let (outcome, ops) = run_until(body, question);
            let fault = outcome.kind.expect_err("it was ended");
            assert_eq!(
                fault.kind,
                FaultKind::Ended(reprise_abi::EndReason::Cancelled),
                "{body}"
            );
            assert_eq!(ops.asked, question, "{body}");
            assert!(outcome.fuel_used >= question as u64 * FUEL_SLICE, "{body}");
        }
    }
    let (short, ops) = run_until("(i32.const 0)", 1);
    assert!(short.kind.is_ok() && ops.asked == 0, "a short call asks nobody");
}

#[test]
fn a_procedure_may_declare_more_fuel_or_less_than_every_transaction_has() {
    let body = |turns: u64| {
        format!(
            "(local $n i64) (loop $l (local.set $n (i64.add (local.get $n) (i64.const 1)))
               (br_if $l (i64.lt_u (local.get $n) (i64.const {turns})))) (i32.const 0)"
        )
    };
    let all_have = support::small_limits().fuel_max;
    let run = |turns: u64, fuel_max: u64| {
        let mut instance = start(&procedure(&body(turns)), &["p"]);
        let mut ops = MapOps {
            fuel_max: Some(fuel_max),
            ..MapOps::default()
        };
        instance.call(0, 0, &mut ops).kind
    };
    assert!(run(2 * all_have, 3 * all_have).is_ok());
    let fault = run(4 * all_have, 3 * all_have).expect_err("too much");
    assert_eq!((fault.limit, fault.max), (Some("fuel"), 3 * all_have));
    let fault = run(2 * FUEL_SLICE, FUEL_SLICE).expect_err("less than all have");
    assert_eq!((fault.limit, fault.max), (Some("fuel"), FUEL_SLICE));
}

#[test]
fn a_replay_may_take_more_than_the_limit_and_less_than_for_ever() {
    let body = |turns: u64| {
        format!(
            "(local $n i64) (loop $l (local.set $n (i64.add (local.get $n) (i64.const 1)))
               (br_if $l (i64.lt_u (local.get $n) (i64.const {turns})))) (i32.const 0)"
        )
    };
    let fuel_max = support::small_limits().fuel_max;
    let run = |turns: u64, is_replay: bool| {
        let mut instance = start(&procedure(&body(turns)), &["p"]);
        let mut ops = MapOps {
            is_replay,
            ..MapOps::default()
        };
        instance.call(0, 0, &mut ops).kind
    };
    let ended = |kind: Result<_, Box<reprise_host::Fault>>| kind.expect_err("too much").limit;
    assert!(run(fuel_max - 10, false).is_ok());
    assert_eq!(ended(run(2 * fuel_max, false)), Some("fuel"));
    assert!(run(2 * fuel_max, true).is_ok());
    assert_eq!(ended(run(101 * fuel_max, true)), Some("fuel"));
}

#[test]
fn a_fresh_instance_starts_within_the_time_of_its_call() {
    let wat = r#"(module
      (memory (export "memory") 1 1) (table 1 funcref) (global $n (mut i64) (i64.const 0))
      (func (export "_initialize")
        (loop $l (global.set $n (i64.add (global.get $n) (i64.const 1)))
          (br_if $l (i64.lt_u (global.get $n) (i64.const 100000)))))
      (func (export "reprise_call_p") (param i32) (result i32)
        (table.set (i32.const 0) (ref.null func)) (i32.const 0)))"#;
    let mut instance = start(wat, &["p"]);
    assert!(run(&mut instance, 0, &[]).0.kind.is_ok());
    let mut ops = MapOps {
        end_at: Some(3),
        ..MapOps::default()
    };
    let fault = instance.call(0, 0, &mut ops).kind.expect_err("its start was ended");
    assert_eq!(fault.kind, FaultKind::Ended(reprise_abi::EndReason::Cancelled));
    assert!(run(&mut instance, 0, &[]).0.kind.is_ok(), "the next call starts anew");
}

#[test]
fn tables_grow_to_a_bound_of_the_modules_own() {
    // The bound is the largest size that the module declares, such as 4. Otherwise it is 16,384, or the size at the beginning.
    for (table, grown) in [("1 4", 4), ("1", 16_384), ("20000", 20_000)] {
        let wat = format!(
            r#"(module (memory (export "memory") 1 1) (table $t {table} funcref)
              (func (export "reprise_call_p") (param i32) (result i32)
                (loop $l (br_if $l (i32.ne (table.grow $t (ref.null func) (i32.const 1)) (i32.const -1))))
                (if (i32.ne (table.size $t) (i32.const {grown})) (then unreachable))
                (i32.const 0)))"#
        );
        let mut instance = start(&wat, &["p"]);
        for _ in 0..2 {
            assert!(run(&mut instance, 0, &[]).0.kind.is_ok(), "{table}");
        }
    }
}

#[test]
fn memory_and_tables_that_are_used_up_are_told_by_their_limits() {
    let cases = [
        ("", "(drop (memory.grow (i32.const 9)))", None),
        (
            "",
            "(drop (memory.grow (i32.const 1000)))",
            Some(("memory_bytes", 2 << 16)),
        ),
        (
            "(table $t 1 4 funcref)",
            "(drop (table.grow $t (ref.null func) (i32.const 3)))",
            None,
        ),
        (
            "(table $t 1 4 funcref)",
            "(drop (table.grow $t (ref.null func) (i32.const 4)))",
            Some(("table_elements", 4)),
        ),
        // A growth that was refused at first and then granted did not end the call.
        (
            "(table $t 1 4 funcref)",
            "(drop (table.grow $t (ref.null func) (i32.const 4))) (drop (table.grow $t (ref.null func) (i32.const 1)))",
            None,
        ),
    ];
    for (table, body, limit) in cases {
        let memory = if limit.is_some_and(|(name, _)| name == "memory_bytes") {
            "1 2"
        } else {
            "1 20"
        };
        let wat = format!(
            r#"(module (memory (export "memory") {memory}) {table}
              (func (export "reprise_call_refused") (param i32) (result i32) {body} unreachable)
              (func (export "reprise_call_plain") (param i32) (result i32) unreachable))"#
        );
        let mut instance = start(&wat, &["refused", "plain"]);
        for _ in 0..2 {
            let fault = faulted(&mut instance, 0, &[]);
            assert_eq!(fault.limit.map(|name| (name, fault.max)), limit, "{body}: {fault}");
            let fault = faulted(&mut instance, 1, &[]);
            assert_eq!(
                (fault.limit, fault.trap.as_deref()),
                (None, Some("unreachable")),
                "a call knows nothing of the one before"
            );
        }
    }
}

#[test]
fn a_stack_in_memory_that_overflows_is_told_as_that() {
    let wat = r#"(module (memory (export "memory") 1 1)
      (global $__stack_pointer (mut i32) (i32.const 4096))
      (func $deeper (param i32) (result i32)
        (global.set $__stack_pointer (i32.sub (global.get $__stack_pointer) (i32.const 1000)))
        (i32.store (global.get $__stack_pointer) (local.get 0))
        (call $deeper (local.get 0)))
      (func (export "reprise_call_deep") (param i32) (result i32) (call $deeper (i32.const 0)))
      (func (export "reprise_call_wild") (param i32) (result i32) (i32.load (i32.const -4))))"#;
    let mut instance = start(wat, &["deep", "wild"]);
    for _ in 0..2 {
        let fault = faulted(&mut instance, 0, &[]);
        assert_eq!(
            (fault.limit, fault.max, fault.trap.as_deref()),
            (Some("stack_bytes"), 4096, Some("stack_overflow"))
        );
        let fault = faulted(&mut instance, 1, &[]);
        assert_eq!((fault.limit, fault.trap.as_deref()), (None, Some("out_of_bounds")));
    }
}

#[test]
fn a_panic_ends_the_call_with_the_guests_words() {
    let wat = r#"(module
      (import "reprise1" "panic" (func $panic (param i64)))
      (memory (export "memory") 1 1)
      (data (i32.const 16) "too bad\ff")
      (func $core::panicking::panic_fmt (call $panic (i64.const 0x8_0000_0010)))
      (func $mistake (call $core::panicking::panic_fmt))
      (func (export "reprise_call_p") (param i32) (result i32) (call $mistake) (i32.const 0))
      (func (export "reprise_call_long") (param i32) (result i32) (call $panic (i64.const 0xffff_0000_0001)) (i32.const 0))
      (func (export "reprise_call_outside") (param i32) (result i32) (call $panic (i64.const 0xffff_0000_0002)) (i32.const 0)))"#;
    let mut instance = start(wat, &["p", "long", "outside"]);
    let (outcome, ops) = run(&mut instance, 0, &[]);
    let fault = outcome.kind.expect_err("it panics");
    assert_eq!((fault.kind, fault.trap.as_deref()), (FaultKind::Trap, Some("panic")));
    assert_eq!(fault.message, "too bad\u{fffd}");
    assert_eq!(fault.backtrace, ["mistake", "reprise_call_p"]);
    assert_eq!(ops.log, [(reprise_abi::LogLevel::Error, fault.message.clone())]);
    assert_eq!(
        faulted(&mut instance, 1, &[]).message.len(),
        PANIC_TEXT_BYTES_MAX + 2,
        "the one byte that is no text is replaced"
    );
    assert_eq!(faulted(&mut instance, 2, &[]).trap.as_deref(), Some("out_of_bounds"));
}

/// How deep a recursion gets before it ends.
fn depth_of(locals: usize) -> u64 {
    let wat = format!(
        r#"(module (memory (export "memory") 1 1)
          (func $deeper (param i32) (result i32) {}
            (i32.store (i32.const 0) (local.get 0))
            (call $log (local.get 0))
            (call $deeper (i32.add (local.get 0) (i32.const 1))))
          (func $log (param i32))
          (func (export "reprise_call_p") (param i32) (result i32) (call $deeper (i32.const 0))))"#,
        "(local v128)".repeat(locals)
    );
    let mut instance = start(&wat, &["p"]);
    let (outcome, _) = run(&mut instance, 0, &[]);
    let fault = outcome.kind.expect_err("it has no end");
    assert_eq!(fault.limit, Some("stack_bytes"));
    assert_eq!(fault.trap.as_deref(), Some("stack_overflow"));
    outcome.fuel_used
}

#[test]
fn recursion_ends_at_a_depth_that_the_module_alone_decides() {
    let (small, large) = (depth_of(0), depth_of(40));
    assert!(small > 1_000, "{small}");
    assert!(large < small / 2, "frames are counted: {large} of {small}");
    assert_eq!(depth_of(0), small);
}

#[test]
fn recursion_through_a_table_and_among_several_is_counted() {
    for body in [
        "(func $a (type $f) (call_indirect (type $f) (local.get 0) (i32.const 0))) (elem (i32.const 0) $a)",
        "(func $b (type $f) (call $a (local.get 0))) (func $a (type $f) (call $b (local.get 0)))",
    ] {
        let wat = format!(
            r#"(module (type $f (func (param i32) (result i32))) (memory (export "memory") 1 1) (table 1 funcref) {body}
              (func (export "reprise_call_p") (param i32) (result i32) (call $a (i32.const 0))))"#
        );
        let mut instance = start(&wat, &["p"]);
        for _ in 0..3 {
            let fault = faulted(&mut instance, 0, &[]);
            assert_eq!(fault.limit, Some("stack_bytes"), "{body}");
            assert!(
                fault.backtrace.len() > 1 && fault.backtrace[0].len() <= 2,
                "{:?}",
                fault.backtrace
            );
        }
    }
}

#[test]
fn host_calls_ask_by_the_bytes_that_they_read() {
    let calls = [
        "(drop (call $exists (i32.const 0) (i64.const 0x10000_00000000)))",
        "(drop (call $poll (i32.const 0) (i32.const 0) (i32.const 1000) (i32.const 65000)))",
        "(drop (call $write (i32.const 1) (i32.const 0) (i32.const 1000) (i32.const 65000)))",
    ];
    for call in calls {
        let wat = format!(
            r#"(module
              (import "reprise1" "exists" (func $exists (param i32 i64) (result i32)))
              (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))
              (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
              (memory (export "memory") 2 2)
              (func (export "reprise_call_p") (param i32) (result i32)
                (loop $l {call} (br $l)) (i32.const 0)))"#
        );
        let mut instance = start(&wat, &["p"]);
        let mut ops = MapOps {
            end_at: Some(1),
            ..MapOps::default()
        };
        let outcome = instance.call(0, 0, &mut ops);
        let fault = outcome.kind.expect_err("it was ended");
        assert_eq!(
            fault.kind,
            FaultKind::Ended(reprise_abi::EndReason::Cancelled),
            "{call}"
        );
        assert!(outcome.fuel_used < FUEL_SLICE, "asked by bytes, not by fuel: {call}");
    }
}
