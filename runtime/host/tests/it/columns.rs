//! Host calls that move some columns: the bytes that they hand out, and the results of forged calls.
use crate::support::{MapOps, small_limits, with_section};
use reprise_abi::{ColumnSet, Field, RowLayout, ScalarType};
use reprise_host::{CompiledModule, Engine, FaultKind, Instance};

const DESCRIPTION: &str = r#"{"abi":1,"tables":[{"name":"t","columns":[
  {"name":"id","type":"i32"},{"name":"n","type":"i64"},{"name":"flag","type":"i16"}],"primary_key":["id"],"placement":"replicated"}],
  "procedures":[{"name":"p","params":[],"returns":"bytes","partitioning":"all"}]}"#;

const IMPORTS: &str = r#"
  (import "reprise1" "get_columns" (func $get (param i32 i64 i64 i64) (result i64)))
  (import "reprise1" "multi_get_columns" (func $multi_get (param i32 i64 i64 i64) (result i64)))
  (import "reprise1" "multi_get_slots" (func $slots (param i64 i64 i64 i64) (result i64)))
  (import "reprise1" "row_read_columns" (func $row_read (param i32 i32 i64 i64) (result i32)))
  (import "reprise1" "scan_columns" (func $scan (param i32 i64 i64) (result i64)))
  (import "reprise1" "scan_next_columns" (func $scan_next (param i32 i32 i64 i64) (result i64)))
  (import "reprise1" "patch" (func $patch (param i32 i64 i64 i64) (result i64)))
  (import "reprise1" "result_write" (func $result_write (param i64)))
  (func $check (param i64 i64) (if (i64.ne (local.get 0) (local.get 1)) (then unreachable)))
  (memory (export "memory") 1 1)"#;

fn start(body: &str) -> Instance {
    start_with("", body)
}

/// Starts a module with further parts.
fn start_with(parts: &str, body: &str) -> Instance {
    let wat = format!(
        r#"(module {IMPORTS} {parts} (data (i32.const 0) "key1") (data (i32.const 64) "\04\00\00\00key1\04\00\00\00keyX")
          (func (export "reprise_call_p") (param i32) (result i32) {body} (i32.const 0)))"#
    );
    let wasm = wat::parse_str(&wat).unwrap_or_else(|error| panic!("{error}"));
    let wasm = with_section(wasm, "reprise.describe", DESCRIPTION.as_bytes());
    let module = CompiledModule::compile(&Engine::new(small_limits()), &wasm).unwrap();
    Instance::new(&module)
}

fn row() -> MapOps {
    let mut ops = MapOps::default();
    let row = [&7_i32.to_le_bytes()[..], &(-5_i64).to_le_bytes(), &3_i16.to_le_bytes()].concat();
    ops.rows.insert(b"key1".to_vec(), row);
    ops
}

#[test]
fn chosen_columns_cross_the_wall() {
    let mut instance = start(
        "(call $check (call $get (i32.const 0) (i64.const 0x4_0000_0000) (i64.const 5) (i64.const 0x6_0000_0100)) (i64.const 6))
         (call $check (call $get (i32.const 0) (i64.const 0x4_0000_0001) (i64.const 5) (i64.const 0)) (i64.const -1))
         (call $check (call $multi_get (i32.const 0) (i64.const 0x10_0000_0040) (i64.const 2) (i64.const 0x20_0000_0106)) (i64.const 24))
         (call $check (call $multi_get (i32.const 0) (i64.const 0x10_0000_0040) (i64.const 2) (i64.const 0x17_0000_0200)) (i64.const -24))
         (call $check (i64.extend_i32_s (call $row_read (i32.const 0) (i32.const 0) (i64.const 4) (i64.const 0x2_0000_011e))) (i64.const 2))
         (call $check (call $scan (i32.const 0x700) (i64.const 6) (i64.const 0x12_0000_0120)) (i64.const 0x12))
         (i64.store (i32.const 0x300) (i64.const 0x1_0000_0000))
         (i64.store (i32.const 0x310) (i64.const 9))
         (i64.store (i32.const 0x318) (i64.const 11))
         (call $check (call $patch (i32.const 0) (i64.const 0x8_0000_0300) (i64.const 2) (i64.const 0x10_0000_0310)) (i64.const 0))
         (call $result_write (i64.const 0x32_0000_0100))",
    );
    let mut ops = row();
    let outcome = instance.call(0, 0, &mut ops);
    assert!(outcome.kind.is_ok(), "{:?}", outcome.kind);
    let mut expected = Vec::new();
    expected.extend_from_slice(&7_i32.to_le_bytes());
    expected.extend_from_slice(&3_i16.to_le_bytes());
    expected.extend_from_slice(&(1_u64 | 8 << 32).to_le_bytes());
    expected.extend_from_slice(&(-5_i64).to_le_bytes());
    expected.extend_from_slice(&u32::MAX.to_le_bytes());
    expected.extend_from_slice(&0_u32.to_le_bytes());
    expected.extend_from_slice(&3_i16.to_le_bytes());
    expected.extend_from_slice(&(10_u64 << 32).to_le_bytes());
    expected.extend_from_slice(&(-5_i64).to_le_bytes());
    expected.extend_from_slice(&3_i16.to_le_bytes());
    assert_eq!(ops.result, expected);
    let patches = [(0, 9_i64), (1, 11)].map(|(handle, n)| (handle, ColumnSet(2), n.to_le_bytes().to_vec()));
    assert_eq!(ops.patches, patches);
}

/// A module that drops a segment has a fresh instance for each call.
#[test]
fn chosen_columns_cross_the_wall_of_a_fresh_instance() {
    let mut instance = start_with(
        r#"(data $dropped "\07")"#,
        "(data.drop $dropped)
         (call $check (call $get (i32.const 0) (i64.const 0x4_0000_0000) (i64.const 5) (i64.const 0x6_0000_0100)) (i64.const 6))
         (call $check (call $multi_get (i32.const 0) (i64.const 0x10_0000_0040) (i64.const 2) (i64.const 0x20_0000_0120)) (i64.const 24))
         (call $check (call $scan (i32.const 0x700) (i64.const 6) (i64.const 0x12_0000_0140)) (i64.const 0x12))
         (call $result_write (i64.const 0x6_0000_0100))",
    );
    for _ in 0..2 {
        let mut ops = row();
        let outcome = instance.call(0, 0, &mut ops);
        assert!(outcome.kind.is_ok(), "{:?}", outcome.kind);
        assert_eq!(ops.result, [&7_i32.to_le_bytes()[..], &3_i16.to_le_bytes()].concat());
    }
}

/// A retiring table has the number behind the module's own table, and other columns.
#[test]
fn chosen_columns_of_a_retiring_table_cross_the_wall() {
    let own = r#"{"name":"t","columns":[{"name":"id","type":"i32"}],"primary_key":["id"],"placement":"replicated"}"#;
    let before = own.replace("[{", r#"[{"name":"n","type":"i64","nullable":true},{"#);
    let description = format!(r#"{{"abi":1,"tables":[{own}],"procedures":[],"on_deploy":true,"retiring":[{before}]}}"#);
    let wat = format!(
        r#"(module {IMPORTS} (data (i32.const 0) "key1")
          (func (export "reprise_on_deploy") (param i32) (result i32)
            (call $check (call $get (i32.const 0x10000) (i64.const 0x4_0000_0000) (i64.const 2) (i64.const 0x4_0000_0100)) (i64.const 4))
            (call $result_write (i64.const 0x4_0000_0100))
            (i32.const 0)))"#
    );
    let wasm = wat::parse_str(&wat).unwrap_or_else(|error| panic!("{error}"));
    let wasm = with_section(wasm, "reprise.describe", description.as_bytes());
    let module = CompiledModule::compile(&Engine::new(small_limits()), &wasm).unwrap();
    let migration = module.schema().migration();
    let layout = RowLayout::from_types([(ScalarType::I64, true), (ScalarType::I32, false)].into_iter());
    let (mut ops, stored) = (MapOps::default(), layout.build(&[Field::Int(-5), Field::Int(7)]));
    ops.rows.insert(b"key1".to_vec(), stored);
    let outcome = Instance::new(&module).call(migration, 0, &mut ops);
    assert!(outcome.kind.is_ok(), "{:?}", outcome.kind);
    assert_eq!(ops.result, 7_i32.to_le_bytes());
}

/// Two keys of four bytes, of which the second does not exist, and slots of 16 and of 12 bytes. Then the keys lie where their rows go.
#[test]
fn slots_are_filled_and_may_lie_over_their_keys() {
    let mut instance = start(
        "(i64.store (i32.const 0x400) (i64.load (i32.const 0x44)))
         (i32.store (i32.const 0x404) (i32.load (i32.const 0x4c)))
         (call $check (call $slots (i64.const 0x2_0000_0000) (i64.const 0x8_0000_0400) (i64.const 4) (i64.const 0x20_0000_0100)) (i64.const 0))
         (call $check (call $slots (i64.const 0x2_0000_0000) (i64.const 0x8_0000_0400) (i64.const 5) (i64.const 0x1c_0000_0120)) (i64.const 0))
         (call $check (call $slots (i64.const 0x1_0000_0000) (i64.const 0x4_0000_0400) (i64.const 2) (i64.const 0x14_0000_03f8)) (i64.const 0))
         (call $check (call $slots (i64.const 0x0_0000_0000) (i64.const 0x0_0000_0000) (i64.const 2) (i64.const 0)) (i64.const 0))
         (call $check (i64.load offset=8 (i32.const 0x3f8)) (i64.const -5))
         (call $result_write (i64.const 0x3c_0000_0100))",
    );
    let mut ops = row();
    let outcome = instance.call(0, 0, &mut ops);
    assert!(outcome.kind.is_ok(), "{:?}", outcome.kind);
    let header = |handle: u32, bytes: u64| (u64::from(handle) | bytes << 32).to_le_bytes();
    let (seven, three) = (7_i32.to_le_bytes(), 3_i16.to_le_bytes());
    let expected = [
        &header(0, 2)[..],
        &three,
        &[0; 6],
        &header(u32::MAX, 0),
        &[0; 8],
        &header(1, 6),
        &seven,
        &three,
        &header(u32::MAX, 0),
        &[0; 6],
    ];
    assert_eq!(ops.result, expected.concat());
}

#[test]
fn forged_columns_tables_handles_and_pointers_are_faults() {
    let guest = [
        // No column, and one that is not there.
        "(drop (call $get (i32.const 0) (i64.const 0x4_0000_0000) (i64.const 0) (i64.const 0)))",
        "(drop (call $get (i32.const 0) (i64.const 0x4_0000_0000) (i64.const 8) (i64.const 0)))",
        "(drop (call $multi_get (i32.const 0) (i64.const 0) (i64.const -1) (i64.const 0)))",
        "(drop (call $scan (i32.const 0x700) (i64.const 16) (i64.const 0)))",
        "(drop (call $patch (i32.const 0) (i64.const 0) (i64.const 0) (i64.const 0)))",
        // No such table.
        "(drop (call $get (i32.const 0x10000) (i64.const 0x4_0000_0000) (i64.const 1) (i64.const 0)))",
        "(drop (call $row_read (i32.const 0) (i32.const 1) (i64.const 1) (i64.const 0)))",
        "(drop (call $row_read (i32.const 0) (i32.const 70000) (i64.const 1) (i64.const 0)))",
        // A handle and a cursor that were never given out.
        "(drop (call $row_read (i32.const 0) (i32.const 0) (i64.const 1) (i64.const 0)))",
        "(drop (call $scan_next (i32.const 1) (i32.const 0) (i64.const 1) (i64.const 0)))",
        "(drop (call $patch (i32.const 0) (i64.const 0x4_0000_0300) (i64.const 2) (i64.const 0x8_0000_0310)))",
        // Values too few, too many; half a handle; a key cut off.
        "(drop (call $get (i32.const 0) (i64.const 0x4_0000_0000) (i64.const 1) (i64.const 0)))
         (drop (call $patch (i32.const 0) (i64.const 0x4_0000_0300) (i64.const 2) (i64.const 0x7_0000_0310)))",
        "(drop (call $get (i32.const 0) (i64.const 0x4_0000_0000) (i64.const 1) (i64.const 0)))
         (drop (call $patch (i32.const 0) (i64.const 0x4_0000_0300) (i64.const 2) (i64.const 0x9_0000_0310)))",
        "(drop (call $patch (i32.const 0) (i64.const 0x3_0000_0300) (i64.const 2) (i64.const 0)))",
        "(drop (call $multi_get (i32.const 0) (i64.const 0x7_0000_0040) (i64.const 2) (i64.const 0)))",
        // Keys and slots of more than one length, of no bytes, too short for the columns; no such table, no column.
        "(drop (call $slots (i64.const 0x2_0000_0000) (i64.const 0x7_0000_0040) (i64.const 4) (i64.const 0x20_0000_0100)))",
        "(drop (call $slots (i64.const 0x2_0000_0000) (i64.const 0x8_0000_0040) (i64.const 4) (i64.const 0x21_0000_0100)))",
        "(drop (call $slots (i64.const 0x2_0000_0000) (i64.const 0) (i64.const 4) (i64.const 0x20_0000_0100)))",
        "(drop (call $slots (i64.const 0x2_0000_0000) (i64.const 0x8_0000_0040) (i64.const 2) (i64.const 0x1e_0000_0100)))",
        "(drop (call $slots (i64.const 0xffff_ffff_0000_0000) (i64.const 0x8_0000_0040) (i64.const 2) (i64.const 0x20_0000_0100)))",
        "(drop (call $slots (i64.const 0x2_0001_0000) (i64.const 0x8_0000_0040) (i64.const 1) (i64.const 0x20_0000_0100)))",
        "(drop (call $slots (i64.const 0x2_0000_0000) (i64.const 0x8_0000_0040) (i64.const 8) (i64.const 0x20_0000_0100)))",
    ];
    for body in guest {
        let fault = start(body).call(0, 0, &mut row()).kind.unwrap_err();
        assert_eq!(fault.kind, FaultKind::Guest, "{body}: {fault}");
    }
    for slice in ["0xffff_ffff_0000_0000", "0x0001_0001_0000_0000", "0x10_0000_fff8"] {
        for body in [
            format!("(drop (call $get (i32.const 0) (i64.const {slice}) (i64.const 1) (i64.const 0)))"),
            format!("(drop (call $get (i32.const 0) (i64.const 0) (i64.const 1) (i64.const {slice})))"),
            format!("(drop (call $multi_get (i32.const 0) (i64.const {slice}) (i64.const 1) (i64.const 0)))"),
            format!("(drop (call $multi_get (i32.const 0) (i64.const 0) (i64.const 1) (i64.const {slice})))"),
            format!(
                "(drop (call $slots (i64.const 0x1_0000_0000) (i64.const {slice}) (i64.const 1) (i64.const 0x20_0000_0100)))"
            ),
            format!(
                "(drop (call $slots (i64.const 0x1_0000_0000) (i64.const 0x4_0000_0000) (i64.const 1) (i64.const {slice})))"
            ),
            format!("(drop (call $row_read (i32.const 0) (i32.const 0) (i64.const 1) (i64.const {slice})))"),
            format!("(drop (call $scan (i32.const 0) (i64.const 1) (i64.const {slice})))"),
            format!("(drop (call $scan_next (i32.const 0) (i32.const 0) (i64.const 1) (i64.const {slice})))"),
            format!("(drop (call $patch (i32.const 0) (i64.const {slice}) (i64.const 1) (i64.const 0)))"),
            format!("(drop (call $patch (i32.const 0) (i64.const 0) (i64.const 1) (i64.const {slice})))"),
        ] {
            let fault = start(&body).call(0, 0, &mut row()).kind.unwrap_err();
            assert_eq!(fault.trap.as_deref(), Some("out_of_bounds"), "{body}: {fault}");
        }
    }
}
