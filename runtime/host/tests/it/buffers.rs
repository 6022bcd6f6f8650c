//! Arguments and results in the guest's own buffers: no host call, the same isolation, no trust in the guest's values.
use crate::support::{faulted, module, refusal, returned, run, start};
use reprise_host::{CompiledModule, Engine, FaultKind, GuestExit, Instance, Limits};

/// A module whose buffers lie at the packed slices. Procedures: 0 `echo` leaves bytes `0..n` of the arguments' buffer in the result's; `n`
/// is the arguments' length. 1 `read` does so with `args_read` and `result_write`. 2 `spill` writes to as many pages from page 4 on as the
/// arguments have bytes, then `probe`s. 3 `probe` answers 16 bytes of the arguments' buffer. 4 `forge` returns the number in its arguments.
/// 5 `aborts` aborts, then returns the number.
fn echo(args: &str, result: &str, more: &str) -> String {
    format!(
        r#"(module
      (import "reprise1" "args_read" (func $args_read (param i32)))
      (import "reprise1" "result_write" (func $result_write (param i64)))
      (import "reprise1" "abort" (func $abort (param i64 i64)))
      (memory (export "memory") 16 16)
      {more}
      (func $at (export "reprise_args_buffer") (result i64) {args})
      (func $out (export "reprise_result_buffer") (result i64) {result})
      (func (export "reprise_call_echo") (param i32) (result i32)
        (memory.copy (i32.wrap_i64 (call $out)) (i32.wrap_i64 (call $at)) (local.get 0))
        (i32.add (local.get 0) (i32.const 2)))
      (func (export "reprise_call_read") (param i32) (result i32)
        (call $args_read (i32.const 0))
        (call $result_write (i64.shl (i64.extend_i32_u (local.get 0)) (i64.const 32)))
        (i32.const 0))
      (func $probe (result i32)
        (call $result_write (i64.or (i64.and (call $at) (i64.const 0xffffffff)) (i64.const 0x10_0000_0000)))
        (i32.const 0))
      (func (export "reprise_call_spill") (param i32) (result i32)
        (local $page i32)
        (local.set $page (i32.add (local.get 0) (i32.const 3)))
        (loop $again
          (i64.store (i32.shl (local.get $page) (i32.const 12)) (i64.const -1))
          (local.set $page (i32.sub (local.get $page) (i32.const 1)))
          (br_if $again (i32.gt_u (local.get $page) (i32.const 3))))
        (call $probe))
      (func (export "reprise_call_probe") (param i32) (result i32) (call $probe))
      (func (export "reprise_call_forge") (param i32) (result i32) (i32.load (i32.wrap_i64 (call $at))))
      (func (export "reprise_call_aborts") (param i32) (result i32)
        (call $abort (i64.const 0) (i64.const 0))
        (i32.load (i32.wrap_i64 (call $at)))))"#
    )
}

const PROCEDURES: [&str; 6] = ["echo", "read", "spill", "probe", "forge", "aborts"];
/// 256 bytes at 8192, and 64 across the border of two pages at 12288.
const ARGS: &str = "(i64.const 0x100_0000_2000)";
const RESULT: &str = "(i64.const 0x40_0000_2fe0)";

#[test]
fn arguments_and_result_pass_without_host_calls() {
    let mut instance = start(&echo(ARGS, RESULT, ""), &PROCEDURES);
    for length in [0, 1, 20, 64] {
        let args: Vec<u8> = (1..=length).collect();
        assert_eq!(returned(&mut instance, 0, &args), args);
        assert_eq!(returned(&mut instance, 1, &args), args);
    }
    let long = vec![7; 257];
    assert_eq!(returned(&mut instance, 1, &long), long, "too long for it");
}

/// Arguments across two pages; 0 `echo` with the result in front of them.
#[test]
fn a_buffer_may_straddle_pages() {
    let mut instance = start(&echo(RESULT, ARGS, ""), &PROCEDURES);
    let args: Vec<u8> = (100..164).collect();
    for _ in 0..3 {
        assert_eq!(returned(&mut instance, 0, &args), args);
        assert_eq!(returned(&mut instance, 3, &[]), [0; 16]);
    }
}

#[test]
fn nothing_of_the_arguments_survives() {
    let data = r#"(data (i32.const 8192) "0123456789abcdef")"#;
    for (more, at_start) in [("", [0; 16]), (data, *b"0123456789abcdef")] {
        let mut instance = start(&echo(ARGS, RESULT, more), &PROCEDURES);
        for history in 0..40 {
            returned(&mut instance, history % 2, &[9; 64]);
            let (mut seen, args) = (at_start, [5; 3]);
            seen[..args.len()].copy_from_slice(&args);
            assert_eq!(returned(&mut instance, 3, &args), seen);
            assert_eq!(returned(&mut instance, 3, &[6; 300]), at_start, "do not fit");
            // More pages than the hot set holds: the memory stays open for some calls.
            seen[..16].fill(8);
            assert_eq!(returned(&mut instance, 2, &[8; 100]), seen);
        }
    }
}

#[test]
fn cooling_keeps_the_buffer_writable() {
    let mut instance = start(&echo(ARGS, RESULT, ""), &PROCEDURES);
    for call in 0..70_000u32 {
        let args = call.to_le_bytes();
        assert_eq!(returned(&mut instance, 0, &args), args);
    }
    // A set that is not cheap is cooled more often.
    for call in 0..10_000u32 {
        let args = [call as u8; 20];
        assert_eq!(returned(&mut instance, 2, &args), args[..16]);
    }
}

#[test]
fn fresh_instances_have_buffers_too() {
    let table = "(table 1 funcref) (func (table.set (i32.const 0) (ref.null func)))";
    let mut instance = start(&echo(ARGS, RESULT, table), &PROCEDURES);
    for _ in 0..3 {
        assert_eq!(returned(&mut instance, 0, b"some arguments"), b"some arguments");
        assert_eq!(returned(&mut instance, 3, &[]), [0; 16]);
    }
}

#[test]
fn buffers_that_can_not_be_are_refused() {
    for forged in [
        "(i64.const -1)",
        "(i64.const 0x1_0010_0000)",
        "(i64.const 0x1000_000f_f001)",
        "(i64.const 0xffff_ffff_0000_0000)",
        "(i64.const 0x0000_0001_ffff_ffff)",
    ] {
        for (args, result) in [(forged, RESULT), (ARGS, forged)] {
            let reason = refusal(&module(&echo(args, result, ""), &PROCEDURES)).reason;
            assert!(reason.contains("outside of the guest's memory"), "{forged}: {reason}");
        }
    }
    let long = "(i64.const 0x1001_0000_2000)";
    let trap = "(unreachable)";
    for (forged, told) in [(long, "buffer_bytes"), (trap, "unreachable")] {
        for (args, result) in [(forged, RESULT), (ARGS, forged)] {
            let reason = refusal(&module(&echo(args, result, ""), &PROCEDURES)).reason;
            assert!(reason.contains(told), "{forged}: {reason}");
        }
    }
    let typed = r#"(module (memory (export "memory") 1) (func (export "reprise_args_buffer") (result i32) (i32.const 0))
        (func (export "reprise_call_p") (param i32) (result i32) (i32.const 0)))"#;
    let reason = refusal(&module(typed, &["p"])).reason;
    assert!(reason.contains("expected () -> (i64)"), "{reason}");
}

#[test]
fn results_longer_than_their_buffer_are_faults() {
    let mut instance = start(&echo(ARGS, RESULT, ""), &PROCEDURES);
    for length in [65, 4096, 1 << 20, i32::MAX - 2] {
        let fault = faulted(&mut instance, 4, &(length + 2).to_le_bytes());
        assert_eq!(fault.trap.as_deref(), Some("out_of_bounds"), "{length}");
    }
    assert_eq!(returned(&mut instance, 4, &66i32.to_le_bytes()).len(), 64);
    for wrong in [-1, i32::MIN] {
        let fault = faulted(&mut instance, 4, &wrong.to_le_bytes());
        assert_eq!(fault.kind, FaultKind::Guest, "{wrong}");
    }
    for wrong in [0, 2, 3, 1000, -1] {
        let fault = faulted(&mut instance, 5, &i32::to_le_bytes(wrong));
        assert_eq!(fault.kind, FaultKind::Guest, "{wrong}");
    }
    let (outcome, _) = run(&mut instance, 5, &1i32.to_le_bytes());
    assert_eq!(outcome.kind, Ok(GuestExit::Aborted));
}

#[test]
fn a_buffer_of_no_bytes_is_none() {
    let mut instance = start(&echo("(i64.const 0)", "(i64.const 0)", ""), &PROCEDURES);
    assert_eq!(returned(&mut instance, 1, b"arguments"), b"arguments");
    assert_eq!(returned(&mut instance, 3, b"arguments"), [0; 16]);
    assert_eq!(faulted(&mut instance, 0, b"arguments").kind, FaultKind::Guest);
}

/// The SDK and the linker's arguments as `cargo xtask wasm` gives them.
#[test]
fn modules_of_the_sdk_have_buffers() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let wasm = std::fs::read(root.join("target/procedures/voter.wasm"));
    let wasm = wasm.expect("`cargo xtask wasm` builds it");
    let module = CompiledModule::compile(&Engine::new(Limits::default()), &wasm).unwrap();
    let procedures = &module.schema().procedures;
    let initialize = procedures.iter().position(|one| one.name == "initialize");
    let mut instance = Instance::new(&module);
    // One contestant, whose name is its length and its letters.
    for (args, asked) in [
        (b"\x01\x03Ada".to_vec(), 1),
        ([b"\x01\xbc\x05".as_slice(), &[b'a'; 700]].concat(), 2),
    ] {
        let (outcome, ops) = run(&mut instance, initialize.unwrap(), &args);
        assert_eq!(outcome.kind, Ok(GuestExit::Returned));
        assert_eq!(ops.args_asked.get(), asked, "once by the host alone");
        assert_eq!((ops.rows.len(), ops.result), (1, 1i64.to_le_bytes().to_vec()));
    }
}
