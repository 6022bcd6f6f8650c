//! Modules that lie: pointers, sections, imports, garbage.
use crate::support::{MapOps, compile, description, faulted, module, refusal, run, small_limits, start, with_section};
use reprise_abi::random::TxnRandom;
use reprise_host::{CompiledModule, Engine, FaultKind, Instance};

const OUT: i32 = i32::MAX;
/// A slice that begins in the memory and ends outside, and one that lies outside.
const SLICES: [u64; 4] = [
    0xffff_ffff_0000_0000,
    0x0000_0001_ffff_ffff,
    0x0001_0001_0000_0000,
    0x10_0000_fff8,
];

/// Every way to name memory out of range in a host call: parameter types, results, arguments with `$` for the slice.
fn pointer_cases() -> Vec<(&'static str, &'static str, String)> {
    let mut cases = vec![
        ("args_read", "i32>", format!("(i32.const {OUT})")),
        ("scan", "i32 i64>i64", format!("(i32.const {OUT}) (i64.const 0)")),
        ("scan", "i32 i64>i64", "(i32.const 65520) (i64.const 0)".to_owned()),
        ("count", "i32>i64", format!("(i32.const {OUT})")),
        ("count", "i32>i64", "(i32.const 64)".to_owned()),
        ("count", "i32>i64", "(i32.const 96)".to_owned()),
        (
            "multi_get",
            "i32 i64 i32 i64>i64",
            "(i32.const 0) (i64.const 0x4_0000_0080) (i32.const 1) (i64.const 0)".to_owned(),
        ),
        (
            "multi_insert",
            "i32 i64 i32>i64",
            "(i32.const 0) (i64.const 0x4_0000_0080) (i32.const 1)".to_owned(),
        ),
    ];
    for slice in SLICES {
        let s = format!("(i64.const {slice})");
        cases.extend([
            ("result_write", "i64>", s.clone()),
            ("get", "i32 i64 i64>i64", format!("(i32.const 0) {s} (i64.const 0)")),
            ("get", "i32 i64 i64>i64", format!("(i32.const 0) (i64.const 0) {s}")),
            (
                "multi_get",
                "i32 i64 i32 i64>i64",
                format!("(i32.const 0) {s} (i32.const 1) (i64.const 0)"),
            ),
            (
                "multi_get",
                "i32 i64 i32 i64>i64",
                format!("(i32.const 0) (i64.const 0) (i32.const 0) {s}"),
            ),
            (
                "multi_insert",
                "i32 i64 i32>i64",
                format!("(i32.const 0) {s} (i32.const 1)"),
            ),
            ("row_read", "i32 i64>i32", format!("(i32.const 0) {s}")),
            ("insert", "i32 i64>i64", format!("(i32.const 0) {s}")),
            ("update", "i32 i64>i64", format!("(i32.const 0) {s}")),
            ("scan", "i32 i64>i64", format!("(i32.const 0) {s}")),
            ("scan_next", "i32 i64>i64", format!("(i32.const 0) {s}")),
            ("log", "i32 i64>", format!("(i32.const 0) {s}")),
            ("abort", "i64 i64>", format!("{s} (i64.const 0)")),
            ("abort", "i64 i64>", format!("(i64.const 0) {s}")),
        ]);
    }
    cases
}

#[test]
fn pointers_out_of_range_are_faults_in_every_host_call() {
    for (name, signature, arguments) in pointer_cases() {
        let (params, result) = signature.split_once('>').unwrap();
        let (result, drop) = match result {
            "" => (String::new(), ""),
            ty => (format!("(result {ty})"), "drop"),
        };
        let wat = format!(
            r#"(module
              (import "reprise1" "{name}" (func $f (param {params}) {result}))
              (memory (export "memory") 1 1)
              (data (i32.const 64) "\00\00\00\00\00\00\00\00\00\00\00\00\ff\ff\ff\7f\01\00\00\00")
              (data (i32.const 96) "\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\00\ff\ff\00\00\ff\00\00\00")
              (data (i32.const 128) "\ff\ff\ff\ff")
              (func (export "reprise_call_p") (param i32) (result i32) {arguments} call $f {drop} (i32.const 0)))"#
        );
        let mut instance = start(&wat, &["p"]);
        for _ in 0..2 {
            let fault = faulted(&mut instance, 0, b"some arguments");
            assert_eq!(
                fault.trap.as_deref(),
                Some("out_of_bounds"),
                "{name} {arguments}: {fault}"
            );
            assert!(fault.message.starts_with(name), "{fault}");
            assert_eq!(fault.backtrace, ["reprise_call_p"]);
        }
    }
}

/// Calls of WASI: the name, the types, and arguments out of range.
const WASI_OUT_OF_RANGE: &str = "random_get => i32 i32 => (i32.const 65530) (i32.const 100)
random_get => i32 i32 => (i32.const 0) (i32.const -1)
clock_time_get => i32 i64 i32 => (i32.const 0) (i64.const 0) (i32.const 65529)
clock_res_get => i32 i32 => (i32.const 0) (i32.const -1)
fd_write => i32 i32 i32 i32 => (i32.const 1) (i32.const -8) (i32.const 1) (i32.const 0)
fd_write => i32 i32 i32 i32 => (i32.const 1) (i32.const 0) (i32.const 1) (i32.const -2)
fd_fdstat_get => i32 i32 => (i32.const 1) (i32.const 65520)
args_sizes_get => i32 i32 => (i32.const 0) (i32.const 65534)
environ_sizes_get => i32 i32 => (i32.const -1) (i32.const 0)
poll_oneoff => i32 i32 i32 i32 => (i32.const 65500) (i32.const 0) (i32.const 1) (i32.const 0)
poll_oneoff => i32 i32 i32 i32 => (i32.const 0) (i32.const -9) (i32.const 1) (i32.const 0)";

#[test]
fn wasi_pointers_out_of_range_are_faults() {
    for line in WASI_OUT_OF_RANGE.lines() {
        let [name, params, arguments] = line.split(" => ").collect::<Vec<_>>().try_into().expect("three fields");
        let wat = format!(
            r#"(module
              (import "wasi_snapshot_preview1" "{name}" (func $f (param {params}) (result i32)))
              (memory (export "memory") 1 1)
              (func (export "reprise_call_p") (param i32) (result i32) (drop (call $f {arguments})) (i32.const 0)))"#
        );
        let fault = faulted(&mut start(&wat, &["p"]), 0, &[]);
        assert_eq!(fault.trap.as_deref(), Some("out_of_bounds"), "{name}: {fault}");
    }
}

/// Host calls with their types, and what calls them with a mistake.
const MISTAKES: &str = "log (param i32 i64) => (call $f (i32.const 9) (i64.const 0))
insert (param i32 i64) (result i64) => (drop (call $f (i32.const 70000) (i64.const 0)))
add (param i32 i32 i64) (result i64) => (drop (call $f (i32.const 0) (i32.const -1) (i64.const 0)))
delete (param i32) => (call $f (i32.const 0))
count (param i32) (result i64) => (i32.store (i32.const 4) (i32.const 16)) (drop (call $f (i32.const 0)))
multi_get (param i32 i64 i32 i64) (result i64) => (drop (call $f (i32.const 0) (i64.const 0x4_0000_0000) (i32.const 2) (i64.const 0)))
multi_insert (param i32 i64 i32) (result i64) => (drop (call $f (i32.const 0) (i64.const 0x7_0000_0000) (i32.const 2)))
abort (param i64 i64) => (i32.store (i32.const 0) (i32.const -1)) (call $f (i64.const 0x1_0000_0000) (i64.const 0))";

#[test]
fn mistakes_in_host_calls_are_faults_of_the_guest() {
    for line in MISTAKES.lines() {
        let (import, call) = line.split_once(" => ").expect("two fields");
        let (name, signature) = import.split_once(' ').expect("a name");
        let wat = format!(
            r#"(module (import "reprise1" "{name}" (func $f {signature})) (memory (export "memory") 1)
              (func (export "reprise_call_p") (param i32) (result i32) {call} (i32.const 0)))"#
        );
        let fault = faulted(&mut start(&wat, &["p"]), 0, &[]);
        assert_eq!(fault.kind, FaultKind::Guest, "{call}: {fault}");
    }
}

/// Host calls with their types, what calls them past a limit, and its name.
const LIMITS: &str = "result_write => i64 => (call $f (i64.const 0x0080_0000_0000_0000)) => result_bytes
rollback_to => i32 => (call $f (i32.const 3)) => savepoints
count => i32) (result i64 => (i32.store (i32.const 16) (i32.const 2000)) (drop (call $f (i32.const 0))) => key_bytes
log => i32 i64 => (call $f (i32.const 1) (i64.const 0x0001_0001_0000_0000)) => log_bytes
abort => i64 i64 => (call $f (i64.const 0x0000_0081_0000_0000) (i64.const 0)) => abort_code_bytes
abort => i64 i64 => (call $f (i64.const 0) (i64.const 0x0000_1001_0000_0000)) => abort_message_bytes
result_write => i64 => (loop $l (call $f (i64.const 0x0040_0000_0000_0000)) (br $l)) => host_call_bytes";

#[test]
fn limits_in_host_calls_are_named() {
    for line in LIMITS.lines() {
        let [name, params, call, limit] = line.split(" => ").collect::<Vec<_>>().try_into().expect("four fields");
        let wat = format!(
            r#"(module (import "reprise1" "{name}" (func $f (param {params})))
              (memory (export "memory") 200)
              (func (export "reprise_call_p") (param i32) (result i32) {call} (i32.const 0)))"#
        );
        let fault = faulted(&mut start(&wat, &["p"]), 0, &[]);
        assert_eq!((fault.kind, fault.limit), (FaultKind::Limit, Some(limit)), "{fault}");
    }
    let mut instance = start(
        r#"(module (memory (export "memory") 1) (func (export "reprise_call_p") (param i32) (result i32) (i32.const 0)))"#,
        &["p"],
    );
    let outcome = instance.call(0, 2 << 20, &mut MapOps::default());
    assert_eq!(outcome.kind.unwrap_err().limit, Some("args_bytes"));
}

#[test]
fn many_rows_cross_in_one_call() {
    let wat = r#"(module
      (import "reprise1" "multi_insert" (func $multi_insert (param i32 i64 i32) (result i64)))
      (import "reprise1" "get" (func $get (param i32 i64 i64) (result i64)))
      (memory (export "memory") 1)
      (data (i32.const 0) "\05\00\00\00keyA1\06\00\00\00keyB22\05\00\00\00keyA3\04\00\00\00keyC")
      (func $check (param i64 i64) (if (i64.ne (local.get 0) (local.get 1)) (then unreachable)))
      (func (export "reprise_call_p") (param i32) (result i32)
        (call $check (call $multi_insert (i32.const 0) (i64.const 0) (i32.const 0)) (i64.const 0xffff_ffff))
        (call $check (call $multi_insert (i32.const 0) (i64.const 0x13_0000_0000) (i32.const 2)) (i64.const 0))
        ;; The third row's key is taken, so the fourth is not reached.
        (call $check (call $multi_insert (i32.const 0) (i64.const 0x11_0000_0013) (i32.const 2)) (i64.const -2))
        (call $check (call $get (i32.const 0) (i64.const 0x4_0000_000d) (i64.const 0)) (i64.const 0x2_0000_0006))
        (call $check (call $get (i32.const 0) (i64.const 0x4_0000_0020) (i64.const 0)) (i64.const -1))
        (i32.const 0)))"#;
    let (outcome, _) = run(&mut start(wat, &["p"]), 0, &[]);
    assert!(outcome.kind.is_ok(), "{:?}", outcome.kind);
}

#[test]
fn rows_cross_the_wall_both_ways() {
    let wat = r#"(module
      (import "reprise1" "insert" (func $insert (param i32 i64) (result i64)))
      (import "reprise1" "get" (func $get (param i32 i64 i64) (result i64)))
      (import "reprise1" "multi_get" (func $multi_get (param i32 i64 i32 i64) (result i64)))
      (import "reprise1" "scan" (func $scan (param i32 i64) (result i64)))
      (import "reprise1" "result_write" (func $result_write (param i64)))
      (memory (export "memory") 1)
      (data (i32.const 0) "keyAvalue one" "keyBtwo")
      (data (i32.const 64) "\04\00\00\00keyA\04\00\00\00keyX\04\00\00\00keyB")
      (func $check (param i64 i64) (if (i64.ne (local.get 0) (local.get 1)) (then unreachable)))
      (func (export "reprise_call_p") (param i32) (result i32)
        (call $check (call $insert (i32.const 0) (i64.const 0xd_0000_0000)) (i64.const 0))
        (call $check (call $insert (i32.const 0) (i64.const 0xd_0000_0000)) (i64.const -2))
        (call $check (call $insert (i32.const 0) (i64.const 0x7_0000_000d)) (i64.const 1))
        (call $check (call $get (i32.const 0) (i64.const 0x4_0000_0000) (i64.const 0x20_0000_0100)) (i64.const 0x2_0000_000d))
        (call $check (call $get (i32.const 0) (i64.const 0x4_0000_0000) (i64.const 0x4_0000_0200)) (i64.const 0x3_0000_000d))
        (call $check (i64.load (i32.const 0x200)) (i64.const 0))
        (call $check (call $get (i32.const 0) (i64.const 0x4_0000_0001) (i64.const 0)) (i64.const -1))
        (call $check (call $multi_get (i32.const 0) (i64.const 0x18_0000_0040) (i32.const 3) (i64.const 0x40_0000_0300)) (i64.const 44))
        (call $check (call $multi_get (i32.const 0) (i64.const 0x18_0000_0040) (i32.const 3) (i64.const 0x2b_0000_0400)) (i64.const -44))
        (call $check (call $scan (i32.const 0x700) (i64.const 0x100_0000_0500)) (i64.const 36))
        (call $check (call $scan (i32.const 0x700) (i64.const 0x16_0000_0600)) (i64.const 0x1_0000_0015))
        (call $result_write (i64.const 0x2c_0000_0300))
        (i32.const 0)))"#;
    let (outcome, ops) = run(&mut start(wat, &["p"]), 0, &[]);
    assert!(outcome.kind.is_ok(), "{:?}", outcome.kind);
    let mut expected = Vec::new();
    for (handle, row) in [(4u32, &b"keyAvalue one"[..]), (u32::MAX, b""), (5, b"keyBtwo")] {
        expected.extend_from_slice(&handle.to_le_bytes());
        expected.extend_from_slice(&(row.len() as u32).to_le_bytes());
        expected.extend_from_slice(row);
    }
    assert_eq!(ops.result, expected);
}

#[test]
fn wasi_shows_the_transaction() {
    let wat = r#"(module
      (import "wasi_snapshot_preview1" "clock_time_get" (func $clock (param i32 i64 i32) (result i32)))
      (import "wasi_snapshot_preview1" "random_get" (func $random (param i32 i32) (result i32)))
      (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
      (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
      (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))
      (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
      (import "reprise1" "result_write" (func $result_write (param i64)))
      (memory (export "memory") 1)
      (data (i32.const 256) "hello world\n")
      (data (i32.const 512) "\00\01\00\00\06\00\00\00\06\01\00\00\06\00\00\00")
      (func (export "_initialize") (drop (call $clock (i32.const 0) (i64.const 0) (i32.const 64))))
      (func $ok (param i32) (if (local.get 0) (then unreachable)))
      (func (export "reprise_call_p") (param i32) (result i32)
        (call $ok (call $clock (i32.const 0) (i64.const 0) (i32.const 0)))
        (call $ok (call $random (i32.const 8) (i32.const 12)))
        (call $ok (call $write (i32.const 1) (i32.const 512) (i32.const 2) (i32.const 20)))
        (call $ok (call $poll (i32.const 1024) (i32.const 2048) (i32.const 1) (i32.const 24)))
        (i32.store (i32.const 28) (call $read (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)))
        (call $result_write (i64.const 0x48_0000_0000))
        (i32.const 0))
      (func (export "reprise_call_exit") (param i32) (result i32) (call $exit (i32.const 3)) (i32.const 0)))"#;
    let mut instance = start(wat, &["p", "exit"]);
    let (outcome, ops) = run(&mut instance, 0, &[]);
    assert!(outcome.kind.is_ok(), "{:?}", outcome.kind);
    let mut stream = TxnRandom::new([1, 2], 3);
    let mut expected = 1_800_000_000_000_000_000i64.to_le_bytes().to_vec();
    expected.extend_from_slice(&stream.next_u64().to_le_bytes());
    expected.extend_from_slice(&stream.next_u64().to_le_bytes()[..4]);
    for number in [12u32, 1, 8] {
        expected.extend_from_slice(&number.to_le_bytes());
    }
    assert_eq!(ops.result[..32], expected);
    assert_eq!(ops.result[64..], 1_704_067_200_000_000_000i64.to_le_bytes());
    assert_eq!(ops.log, [(reprise_abi::LogLevel::Info, "hello world".to_owned())]);
    let fault = faulted(&mut instance, 1, &[]);
    assert_eq!(fault.trap.as_deref(), Some("exit"));
}

/// The text of a refusal, for modules from text.
fn reason(wat: &str) -> String {
    let refused = refusal(&module(wat, &["p"]));
    let has_place = if refused.offset.is_some() { "@" } else { "" };
    format!("{has_place}{}", refused.reason)
}

const P: &str = r#"(func (export "reprise_call_p") (param i32) (result i32) (i32.const 0))"#;

/// Modules, and what refuses each: `$M` stands for a memory, `$P` for the procedure.
const REFUSED: &str = r#"(import "env" "steal" (func)) $M $P => @unknown import env.steal (no such import module)
(import "reprise1" "steal" (func)) $M $P => @unknown import reprise1.steal
(import "reprise1" "now" (func (result i32))) $M $P => @import reprise1.now has type () -> (i32), expected () -> (i64)
(import "env" "g" (global (mut i32))) $M $P => @import env.g: an imported global is not accepted
(import "env" "m" (memory 1)) $P => @import env.m: an imported memory is not accepted
(import "env" "t" (table 1 funcref)) $M $P => @import env.t: an imported table is not accepted
$P => module does not export its memory
(memory 1) $P => module does not export its memory
(memory (export "memory") 1025) $P => @memory of 1025 pages is larger than the limit of 1024
$M (table 200000 funcref) $P => @tables of more than 131072 elements
$M (func (export "reprise_call_p") (param i64) (result i32) (i32.const 0)) => @export reprise_call_p has type (i64) -> (i32), expected (i32) -> (i32)
$M (global (export "reprise_call_p") i32 (i32.const 0)) => @export reprise_call_p is not a function
$M $P (func (export "reprise_call_q") (param i32) (result i32) (i32.const 0)) => reprise_call_q is exported, but procedure q is not described
$M => procedure p is described, but reprise_call_p is not exported
$M $P (data (i32.const 65535) "ab") => @data segment outside of the memory
$M $P (data (i32.sub (i32.const 0) (i32.const 1)) "a") => @data segment outside of the memory
$M $P (func $s unreachable) (start $s) => start module: wasm `unreachable` instruction executed in s
$M $P (func (export "_initialize") (loop (br 0))) => start module: all fuel consumed by WebAssembly in _initialize
(import "reprise1" "txn_id" (func $f (result i64))) $M $P (func $s (drop (call $f))) (start $s) => start module: txn_id: not available while the module starts or describes itself in s
$M $P (func (export "_initialize") (param i32)) => @export _initialize has type (i32) -> (), expected () -> ()
$M $P (table 1 funcref) (elem (i32.const 5) 0) => instantiate module: wasm trap: undefined element: out of bounds table access"#;

#[test]
fn modules_are_refused_with_a_reason() {
    let memory = r#"(memory (export "memory") 1)"#;
    for line in REFUSED.lines() {
        let (wat, expected) = line.split_once(" => ").expect("two fields");
        let wat = wat.replace("$M", memory).replace("$P", P);
        assert_eq!(reason(&format!("(module {wat})")), expected);
    }
    let refused = refusal(&module(
        &format!(r#"(module (import "env" "steal" (func)) {memory} {P})"#),
        &["p"],
    ));
    assert_eq!(
        refused.offset,
        Some(22),
        "header 8, type section 11, head of the import section 3"
    );
}

#[test]
fn functions_that_would_hold_the_compiler_are_refused_before_it_begins() {
    let memory = r#"(memory (export "memory") 1)"#;
    let function = |locals: usize, inner: &str| format!("(func {} {inner})", "(local i32)".repeat(locals));
    let jumps = |count: usize| "(br_if 0 (local.get 0))".repeat(count);
    let jumpy = |locals, count| function(locals, &format!("(loop {})", jumps(count)));
    let joins = "(if (local.get 0) (then (local.set 1 (local.get 2))))".repeat(6_500);
    let cases = [
        (
            jumpy(100, 4_000),
            "function of 4000 jumps, 100 locals and 0 values handed on would hold the compiler",
        ),
        (function(1_000, &joins), "function of 6500 jumps, 1000 locals and"),
        (
            function(1, &"(loop)".repeat(2_001)),
            "function of 2001 loops has more than 2000",
        ),
        (function(1, &"(nop)".repeat(300_000)), "is longer than 262144"),
        (
            jumpy(100, 3_000).repeat(20),
            "units of work for the compiler, which would hold it for too long",
        ),
    ];
    for (functions, expected) in cases {
        let text = reason(&format!("(module {memory} {P} {functions})"));
        assert!(text.starts_with('@') && text.contains(expected), "{text}");
    }
    // Neither many functions nor one long one is refused for being so.
    for functions in [jumpy(20, 100).repeat(1_000), function(5, &"(nop)".repeat(200_000))] {
        start(&format!("(module {memory} {P} {functions})"), &["p"]);
    }
}

#[test]
fn bombs_of_few_bytes_are_refused_before_the_compiler_begins() {
    let memory = r#"(memory (export "memory") 1)"#;
    let values = |ty: &str, count: usize| format!(" {ty}").repeat(count);
    // Jumps of two bytes that hand on everything, from a block, to a loop, and out of the function.
    let results = |count, jumps: usize| {
        format!(
            "(func (block (result{}) {} {} unreachable) {})",
            values("i32", count),
            "i32.const 0 ".repeat(count),
            "i32.const 0 br_if 0 ".repeat(jumps),
            "drop ".repeat(count)
        )
    };
    let looped = |count| {
        let params = values("i32", count);
        format!(
            "(func {} (loop (param{params}) {}))",
            "i32.const 0 ".repeat(count),
            "drop ".repeat(count)
        )
    };
    let chain = format!(
        "(type $t (func (param{0}) (result{0}))) (func $f (type $t) {1}) (func {2} {3} unreachable)",
        values("i64", 16),
        (0..16).map(|n| format!("local.get {n} ")).collect::<String>(),
        "i64.const 0 ".repeat(16),
        "call $f ".repeat(60_000)
    );
    let many = |count: usize, body: &str| {
        let each = |n| format!(r#"(export "{}{n}" (func $p))"#, body);
        (0..count).map(each).collect::<String>()
    };
    let paid = format!(
        r#"(import "wasi_snapshot_preview1" "sched_yield" (func $y (result i32)))
           {memory} {P} (func {} {})"#,
        "(local i64)".repeat(1_000),
        "(drop (call $y))".repeat(60_000)
    );
    let own = |functions: &str| format!("{memory} {P} {functions}");
    let locals = format!("(func {})", "(local i32)".repeat(1_000)).repeat(2_001);
    let types = |count, params| format!("(type (func (param{})))", values("i32", params)).repeat(count);
    for (text, expected) in [
        (own(&locals), "functions have more than 2000000 locals"),
        (own(&types(5_001, 13)), "types of functions are more than 5000"),
        (
            own(&types(60, 900)),
            "types of functions have more than 50000 parameters and results",
        ),
        (own(&results(1_000, 60_000)), "type of 1000 results has more than 16"),
        (own(&results(16, 60_000)), "values handed on would hold the compiler"),
        (own(&looped(17)), "block of 17 parameters has more than 16"),
        (own(&chain), "values handed on would hold the compiler"),
        (paid, "function of 60000 jumps, 1000 locals"),
        (
            own(&format!(
                "(func $p (param i32) (result i32) (i32.const 0)) {}",
                many(1_200, "reprise_call_x")
            )),
            "more than 1024 procedures are exported",
        ),
        (
            own(&format!(
                "(func $p (param i32) (result i32) (i32.const 0)) {}",
                many(12_000, "x")
            )),
            "module of 12002 exports has more than 10000",
        ),
    ] {
        let refused = reason(&format!("(module {text})"));
        assert!(refused.starts_with('@') && refused.contains(expected), "{refused}");
    }
}

#[test]
fn many_functions_of_dear_instructions_are_refused_before_the_compiler_begins() {
    let head = r#"(memory (export "memory") 1 1) (table 1 funcref)"#;
    let targets: String = (0..100).map(|n| format!("{} ", n % 3)).collect();
    // Each with how often a function has it, and how many such functions are too many.
    let dear = [
        (
            format!("(block (block (block (br_table {targets} (local.get 0)))))"),
            500,
            12,
        ),
        (
            "(memory.fill (i32.const 0) (i32.const 0) (i32.const 0))".to_owned(),
            7_000,
            10,
        ),
        (
            "(memory.copy (i32.const 0) (i32.const 0) (i32.const 0))".to_owned(),
            6_000,
            12,
        ),
        (
            "(call_indirect (param i32) (local.get 0) (local.get 0))".to_owned(),
            8_000,
            8,
        ),
        (
            "(local.set 0 (i32.trunc_sat_f64_s (f64.add (f64.const 1) (f64.const 2))))".to_owned(),
            2_600,
            40,
        ),
        ("(loop)".to_owned(), 1_900, 160),
    ];
    for (instruction, times, functions) in dear {
        let text = |times: usize, functions: usize| {
            let function = format!("(func (param i32) {})", instruction.repeat(times));
            format!("(module {head} {P} {})", function.repeat(functions))
        };
        let refused = reason(&text(times, functions));
        assert!(
            refused.contains("units of work for the compiler") && refused.contains("15000000 is the most"),
            "{instruction}: {refused}"
        );
        start(&text(100, 1), &["p"]);
    }
}

#[test]
fn undescribed_procedures_are_refused_before_the_compiler_begins() {
    // Compiled, these functions would take seconds: the test's time limit, not an assertion, tells.
    let function = format!("(func {})", "(drop (i32.popcnt (i32.const 1)))".repeat(20_000));
    let text = format!(
        r#"(module (memory (export "memory") 1) {P} (export "reprise_call_q" (func 0)) {})"#,
        function.repeat(40)
    );
    let begun = std::time::Instant::now();
    assert_eq!(
        reason(&text),
        "reprise_call_q is exported, but procedure q is not described"
    );
    assert!(begun.elapsed().as_secs() < 60);
}

#[test]
fn globals_of_many_procedures_are_put_back_in_one_place() {
    let globals = "(global (mut i64) (i64.const 7))".repeat(1_000);
    let names: Vec<_> = (0..1_024).map(|n| format!("p{n}")).collect();
    let procedures: String = names
        .iter()
        .map(|name| format!(r#"(export "reprise_call_{name}" (func $p))"#))
        .collect();
    let text = format!(
        r#"(module
          (import "reprise1" "result_write" (func $result_write (param i64)))
          (memory (export "memory") 1) {globals}
          (func $p (param i32) (result i32)
            (i64.store (i32.const 0) (global.get 999))
            (global.set 999 (i64.const 8))
            (global.set 0 (i64.const 9))
            (call $result_write (i64.const 0x8_0000_0000))
            (i32.const 0))
          {procedures})"#
    );
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let mut instance = start(&text, &names);
    for procedure in [0, 1, 1_023, 0] {
        let (outcome, ops) = run(&mut instance, procedure, &[]);
        assert!(outcome.kind.is_ok(), "{:?}", outcome.kind);
        assert_eq!(ops.result, 7i64.to_le_bytes());
    }
}

#[test]
fn a_reference_to_a_function_that_only_an_export_declares_stays_valid() {
    for export in ["helper", "reprise_call_p"] {
        let text = format!(
            r#"(module (memory (export "memory") 1) (table $t 1 funcref)
              (type $f (func (param i32) (result i32)))
              (elem declare)
              (func $own (export "{export}") (param i32) (result i32) (i32.const 0))
              (func (export "reprise_call_q") (param i32) (result i32)
                (table.set $t (i32.const 0) (ref.func $own))
                (call_indirect $t (type $f) (i32.const 0) (i32.const 0))))"#
        );
        let names: &[&str] = if export == "helper" { &["q"] } else { &["p", "q"] };
        let mut instance = start(&text.replace("(elem declare)", ""), names);
        let (outcome, _) = run(&mut instance, names.len() - 1, &[]);
        assert!(outcome.kind.is_ok(), "{:?}", outcome.kind);
    }
}

#[test]
fn a_reason_is_one_line() {
    let mut wasm = module(&format!(r#"(module (memory (export "memory") 1) {P})"#), &["p"]);
    for cut in 0..wasm.len() {
        let refused = refusal(&wasm[..cut]);
        assert!(!refused.to_string().contains('\n'), "{refused}");
    }
    wasm[..8].copy_from_slice(b"PK\x03\x04\0\0\0\0");
    for other in [&wasm[..], b"", b"\0as", b"fn main() {}\n"] {
        let text = refusal(other).to_string();
        assert!(!text.contains('\n') && text.starts_with("not WebAssembly"), "{text}");
    }
}

#[test]
fn features_that_are_not_accepted_are_refused_by_validation() {
    let memory = r#"(memory (export "memory") 1)"#;
    for (wat, what) in [
        (format!(r#"(memory (export "memory") 1 1 shared) {P}"#), "shared memory"),
        (
            format!(r#"(memory (export "memory") i64 1) {P}"#),
            "a module of 64 bits",
        ),
        (format!("{memory} (memory 1) {P}"), "memories"),
        (format!("{memory} {P} (func $t (return_call $t))"), "tail calls"),
        (format!("{memory} {P} (tag)"), "exceptions"),
        (format!("{memory} {P} (type (struct))"), ""),
        (format!("{memory} {P} (global externref (ref.null extern))"), ""),
        (
            format!("{memory} {P} (func (param v128) (result v128) (i32x4.relaxed_trunc_f32x4_s (local.get 0)))"),
            "relaxed SIMD",
        ),
        (
            format!("{memory} {P} (func (result i32) (i32.atomic.load (i32.const 0)))"),
            "threads or atomics",
        ),
    ] {
        let text = reason(&format!("(module {wat})"));
        assert!(text.starts_with('@') && text.contains(what), "{wat}: {text}");
        assert!(!text.contains("enable"), "no feature can be enabled here: {text}");
    }
    let component = refusal(&wat::parse_str("(component)").unwrap());
    assert!(
        component.offset.is_some() && component.reason.contains("build a core module"),
        "{component}"
    );
    assert!(refusal(b"").offset.is_some());
    assert!(refusal(b"<!doctype html>").offset.is_some());
    assert!(refusal(&vec![0; 64 << 20]).reason.contains("longer than"));
}

const REAL: &str = r#"(module
  (import "reprise1" "args_read" (func $args_read (param i32)))
  (import "reprise1" "insert" (func $insert (param i32 i64) (result i64)))
  (memory (export "memory") 2)
  (table 4 funcref) (elem (i32.const 0) $f $f)
  (global $g (mut i32) (i32.const 7)) (global i64 (i64.const 9))
  (data (i32.const 32) "constant data") (data "passive")
  (func $f (param i32) (result i32) (global.set $g (local.get 0)) (i32.add (global.get $g) (i32.const 1)))
  (func (export "reprise_call_p") (param i32) (result i32)
    (call $args_read (i32.const 0))
    (drop (call $insert (i32.const 0) (i64.const 0x8_0000_0000)))
    (if (i32.eq (call_indirect (param i32) (result i32) (i32.const 3) (i32.const 0)) (i32.const 4)) (then nop) (else unreachable))
    (loop $l (br_if $l (i32.lt_u (memory.grow (i32.const 1)) (i32.const 5))))
    (i32.const 0)))"#;

#[test]
fn damaged_modules_never_panic() {
    let engine = Engine::new(reprise_host::Limits {
        fuel_max: 10_000,
        ..small_limits()
    });
    let good = module(REAL, &["p"]);
    assert!(CompiledModule::compile(&engine, &good).is_ok());
    for length in 0..good.len() {
        assert!(
            CompiledModule::compile(&engine, &good[..length]).is_err(),
            "cut at {length}"
        );
    }
    let mut random = TxnRandom::new([5, 5], 5);
    let mut taken = 0;
    for round in 0..4_000 {
        let mut bad = good.clone();
        for _ in 0..1 + random.next_u64() % 3 {
            let at = random.next_u64() as usize % bad.len();
            match random.next_u64() % 3 {
                0 => bad[at] ^= 1 << (random.next_u64() % 8),
                1 => bad[at] = random.next_u64() as u8,
                _ => drop(bad.remove(at)),
            }
        }
        if let Ok(compiled) = CompiledModule::compile(&engine, &bad) {
            taken += 1;
            let mut instance = Instance::new(&compiled);
            for procedure in 0..compiled.schema().procedures.len() {
                run(&mut instance, procedure, b"argument");
            }
        }
        let _ = round;
    }
    assert!(taken > 100, "{taken}: the loop should reach the runtime too");
    for length in [0, 1, 7, 8, 9, 100, 10_000] {
        let garbage: Vec<u8> = (0..length).map(|_| random.next_u64() as u8).collect();
        assert!(CompiledModule::compile(&engine, &garbage).is_err());
        let mut headed = b"\0asm\x01\0\0\0".to_vec();
        headed.extend_from_slice(&garbage);
        assert!(CompiledModule::compile(&engine, &headed).is_err());
    }
}

#[test]
fn descriptions_by_export_are_taken_and_forged_ones_refused() {
    let by_export = |describe: &str| {
        let text = description(&["p"]).replace('"', "\\22");
        let wat = format!(
            r#"(module (import "reprise1" "txn_id" (func $id (result i64))) (memory (export "memory") 1 1)
              (data (i32.const 1000) "{text}") {P}
              (func (export "reprise_describe") (result i64) {describe}))"#
        );
        let engine = Engine::new(small_limits());
        CompiledModule::compile(&engine, &wat::parse_str(&wat).unwrap())
    };
    let length = description(&["p"]).len() as u64;
    let packed = |length: u64| format!("(i64.const {})", length << 32 | 1000);
    let module = by_export(&packed(length)).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(module.schema().procedures[0].name, "p");
    for (describe, expected) in [
        (packed(length - 1), "not JSON"),
        (packed(length + 1), "not JSON"),
        (packed(0), "not JSON"),
        (packed(70_000), "lies outside of the memory"),
        (packed(u64::from(u32::MAX)), "longer than"),
        ("unreachable".to_owned(), "unreachable"),
        ("(loop (br 0)) unreachable".to_owned(), "all fuel consumed"),
        ("(call $id)".to_owned(), "not available"),
    ] {
        let refused = by_export(&describe).map(|_| ()).unwrap_err();
        assert!(refused.reason.contains(expected), "{describe}: {refused}");
        assert!(refused.reason.contains("reprise_describe"), "{refused}");
    }
}

#[test]
fn a_module_without_description_and_one_with_two_are_refused() {
    let wasm = wat::parse_str(format!(r#"(module (memory (export "memory") 1) {P})"#)).unwrap();
    assert!(refusal(&wasm).reason.contains("neither a section"));
    let text = description(&["p"]);
    let twice = with_section(
        with_section(wasm, "reprise.describe", text.as_bytes()),
        "reprise.describe",
        text.as_bytes(),
    );
    assert!(refusal(&twice).reason.contains("second section"));
}

#[test]
fn a_module_with_an_empty_memory_runs_and_every_pointer_is_out_of_range() {
    let wat = format!(
        r#"(module (import "reprise1" "args_read" (func $args_read (param i32)))
          (memory (export "memory") 0 0) {P}
          (func (export "reprise_call_q") (param i32) (result i32) (call $args_read (i32.const 0)) (i32.const 0))
          (func (export "reprise_call_r") (param i32) (result i32) (i32.load (i32.const 0))))"#
    );
    let mut instance = start(&wat, &["p", "q", "r"]);
    assert!(run(&mut instance, 0, &[]).0.kind.is_ok());
    assert!(run(&mut instance, 1, &[]).0.kind.is_ok());
    assert_eq!(faulted(&mut instance, 1, b"a").trap.as_deref(), Some("out_of_bounds"));
    assert_eq!(faulted(&mut instance, 2, &[]).trap.as_deref(), Some("out_of_bounds"));
}

#[test]
fn the_hash_is_that_of_the_uploaded_bytes() {
    let wasm = module(REAL, &["p"]);
    let text: String = compile(REAL, &["p"])
        .hash()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let engine = Engine::new(small_limits());
    let again = CompiledModule::compile(&engine, &wasm)
        .map(|module| module.hash())
        .unwrap_or_default();
    let again: String = again.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(text, again);
    assert_eq!(text.len(), 64);
}
