//! Host calls that name a row by its key: their answers, and the results of forged calls.
use crate::support::{MapOps, small_limits, with_section};
use reprise_host::{CompiledModule, Engine, FaultKind, Instance};

const DESCRIPTION: &str = r#"{"abi":1,"tables":[{"name":"t","columns":[
  {"name":"id","type":"i32"},{"name":"n","type":"i64"}],"primary_key":["id"],"placement":"replicated"}],
  "procedures":[{"name":"p","params":[],"returns":"bytes","partitioning":"all"}]}"#;

fn start(body: &str) -> Instance {
    let wat = format!(
        r#"(module
          (import "reprise1" "exists" (func $exists (param i32 i64) (result i32)))
          (import "reprise1" "add_by_key" (func $add (param i64 i64 i64 i64) (result i32)))
          (import "reprise1" "result_write" (func $result_write (param i64)))
          (func $check (param i32 i32) (if (i32.ne (local.get 0) (local.get 1)) (then unreachable)))
          (memory (export "memory") 1 1)
          (data (i32.const 0) "key1keyX")
          (func (export "reprise_call_p") (param i32) (result i32) {body} (i32.const 0)))"#
    );
    let wasm = wat::parse_str(&wat).unwrap_or_else(|error| panic!("{error}"));
    let wasm = with_section(wasm, "reprise.describe", DESCRIPTION.as_bytes());
    let module = CompiledModule::compile(&Engine::new(small_limits()), &wasm).unwrap();
    Instance::new(&module)
}

fn ops() -> MapOps {
    let mut ops = MapOps::default();
    ops.rows.insert(b"key1".to_vec(), vec![0; 12]);
    ops
}

#[test]
fn a_key_is_looked_for_and_its_row_added_to() {
    // `MapOps` answers the amount. Where eight bytes do not fit, none are written; nor for a key without a row.
    let mut instance = start(
        "(call $check (call $exists (i32.const 0) (i64.const 0x4_0000_0000)) (i32.const 1))
         (call $check (call $exists (i32.const 0) (i64.const 0x4_0000_0004)) (i32.const 0))
         (call $check (call $add (i64.const 0x1_0000_0000) (i64.const 0x4_0000_0000) (i64.const -7) (i64.const 0x8_0000_0100)) (i32.const 1))
         (call $check (call $add (i64.const 0x1_0000_0000) (i64.const 0x4_0000_0000) (i64.const 9) (i64.const 0x7_0000_0108)) (i32.const 1))
         (call $check (call $add (i64.const 0x1_0000_0000) (i64.const 0x4_0000_0004) (i64.const 9) (i64.const 0x8_0000_0110)) (i32.const 0))
         (call $check (call $add (i64.const 0x1_0000_0000) (i64.const 0x4_0000_0000) (i64.const 9) (i64.const 0)) (i32.const 1))
         (call $result_write (i64.const 0x18_0000_0100))",
    );
    let mut ops = ops();
    let outcome = instance.call(0, 0, &mut ops);
    assert!(outcome.kind.is_ok(), "{:?}", outcome.kind);
    assert_eq!(ops.result, [(-7_i64).to_le_bytes(), [0; 8], [0; 8]].concat());
}

#[test]
fn forged_columns_and_pointers_are_faults() {
    let column =
        "(drop (call $add (i64.const 0x1_0000_0000_0000) (i64.const 0x4_0000_0000) (i64.const 1) (i64.const 0)))";
    let fault = start(column).call(0, 0, &mut ops()).kind.unwrap_err();
    assert_eq!(fault.kind, FaultKind::Guest, "{fault}");
    for slice in ["0xffff_ffff_0000_0000", "0x0001_0001_0000_0000", "0x10_0000_fff8"] {
        for body in [
            format!("(drop (call $exists (i32.const 0) (i64.const {slice})))"),
            format!("(drop (call $add (i64.const 0) (i64.const {slice}) (i64.const 1) (i64.const 0)))"),
            format!("(drop (call $add (i64.const 0) (i64.const 0x4_0000_0000) (i64.const 1) (i64.const {slice})))"),
        ] {
            let fault = start(&body).call(0, 0, &mut ops()).kind.unwrap_err();
            assert_eq!(fault.kind, FaultKind::Trap, "{body}: {fault}");
        }
    }
}
