//! What a guest may spend, and what it is told when it spends more.
#![allow(clippy::unwrap_used)]

mod support;

use reprise_host::FaultKind;
use support::{faulted, run, start};

fn procedure(locals_and_body: &str) -> String {
    format!(
        r#"(module
          (import "reprise1" "now" (func $now (result i64)))
          (memory (export "memory") 1)
          (table 1 funcref)
          (func $recurse (param i32) (result i32) (call $recurse (i32.add (local.get 0) (i32.const 1))))
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
        assert_eq!(
            (fault.kind, fault.limit),
            (FaultKind::Limit, Some(limit)),
            "{body}"
        );
        assert!(fault.max > 0);
        used.push(outcome.fuel_used);
    }
    assert!(used.iter().all(|fuel| *fuel == used[0]), "{used:?}");
}

#[test]
fn endless_loops_run_out_of_fuel() {
    check_limit("(loop $l (br $l)) (i32.const 0)", "fuel");
    check_limit("(loop $l (br_if $l (i32.const 1))) (i32.const 0)", "fuel");
    check_limit(
        "(loop $l (br_table $l $l (i32.const 1))) (i32.const 0)",
        "fuel",
    );
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
    // A loop of 100,000 additions per turn: the price must follow the work, not the turns, also where the run is cut by
    // empty branches that are never taken.
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
        let least = 100 * 25_000 * 3 / 257;
        assert!(
            outcome.fuel_used >= least,
            "{} < {least}",
            outcome.fuel_used
        );
    }
}

#[test]
fn traps_have_names_and_backtraces() {
    for (body, name) in [
        ("unreachable", "unreachable"),
        ("(i32.load (i32.const -4))", "out_of_bounds"),
        (
            "(i32.div_u (i32.const 1) (local.get 0))",
            "integer_divide_by_zero",
        ),
        (
            "(i32.div_s (i32.const 0x80000000) (i32.sub (local.get 0) (i32.const 1)))",
            "integer_overflow",
        ),
        (
            "(i32.trunc_f64_s (f64.const nan))",
            "invalid_conversion_to_integer",
        ),
        (
            "(call_indirect (result i32) (i32.const 0))",
            "uninitialized_element",
        ),
        (
            "(call_indirect (result i32) (i32.const 9))",
            "undefined_element",
        ),
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
            assert_eq!(
                (fault.kind, fault.trap.as_deref()),
                (FaultKind::Trap, Some(name))
            );
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
    assert_eq!(outcome.kind, Ok(reprise_host::CallEnd::Aborted));
    assert_eq!(ops.abort, Some(("code".to_owned(), "message".to_owned())));
    assert_eq!(
        run(&mut instance, 0, &[0, 0]).0.kind,
        Ok(reprise_host::CallEnd::Returned)
    );
    for wrong in [[0, 1], [1, 0], [2, 0], [2, 1], [255, 0]] {
        assert_eq!(
            faulted(&mut instance, 0, &wrong).kind,
            FaultKind::Guest,
            "{wrong:?}"
        );
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
    assert!(
        first[0] == first[2] && first[0] >= 1000 && first[0] < 1100,
        "{first:?}"
    );
}
