//! The edges natively; `tests/http` asks the same of wasm.
#![allow(clippy::unwrap_used)]

use edges::{Light, MODULE, Narrowed, Shows, set_light};
use reprise_procedure::{
    testkit::{TestDb, TestError},
    value::{Args, Decode},
};

fn call<R: for<'a> Decode<'a>>(procedure: &str, args: impl Args) -> Result<R, String> {
    TestDb::new(&MODULE).call(procedure, args).map_err(|error| match error {
        TestError::Fault(reason) => reason,
        TestError::Aborted(abort) => panic!("{abort}"),
    })
}

#[test]
fn value_that_does_not_fit_ends_the_call() {
    assert_eq!(
        call("add", (i64::MAX, 1_i64)),
        Err::<i64, _>("panicked: attempt to add with overflow".into())
    );
    assert_eq!(
        call("multiply", (1 << 20, 1 << 11)),
        Err::<i32, _>("panicked: attempt to multiply with overflow".into())
    );
    assert_eq!(
        call("sum", (vec![i64::MIN, -1],)),
        Err::<i64, _>("panicked: attempt to add with overflow".into())
    );
    assert_eq!(
        call("divide", (i64::MIN, -1_i64)),
        Err::<i64, _>("panicked: attempt to divide with overflow".into())
    );
    assert_eq!(
        call("divide", (1_i64, 0_i64)),
        Err::<i64, _>("panicked: attempt to divide by zero".into())
    );
    assert_eq!(
        call("shift", (1_u64, 64_u32)),
        Err::<u64, _>("panicked: attempt to shift left with overflow".into())
    );
}

#[test]
fn value_that_fits_is_right() {
    assert_eq!(call("add", (i64::MAX - 1, 1_i64)), Ok(i64::MAX));
    assert_eq!(call("divide", (-7_i64, 2_i64)), Ok(-3_i64));
    assert_eq!(call("shift", (3_u64, 63_u32)), Ok(1_u64 << 63));
}

#[test]
fn floats_become_the_nearest_integers() {
    let far = Narrowed {
        i8: i8::MAX,
        u16: u16::MAX,
        i32: i32::MAX,
        i64: i64::MAX,
        u64: u64::MAX,
    };
    assert_eq!(call("narrow", (1e300,)), Ok(far));
    let low = Narrowed {
        i8: i8::MIN,
        u16: 0,
        i32: i32::MIN,
        i64: i64::MIN,
        u64: 0,
    };
    assert_eq!(call("narrow", (-1e300,)), Ok(low));
    let cut = Narrowed {
        i8: -2,
        u16: 0,
        i32: -2,
        i64: -2,
        u64: 0,
    };
    assert_eq!(call("narrow", (-2.9,)), Ok(cut));
    let nothing = Narrowed {
        i8: 0,
        u16: 0,
        i32: 0,
        i64: 0,
        u64: 0,
    };
    assert_eq!(call("narrow_nothing", (0.0,)), Ok(nothing));
}

#[test]
fn a_panic_tells_its_message() {
    assert_eq!(
        call("give_up", ("enough",)),
        Err::<i64, _>("panicked: gave up: enough".into())
    );
}

#[test]
fn an_enum_is_a_column_and_part_of_keys() {
    let mut db = TestDb::new(&MODULE);
    assert_eq!(set_light::call(&mut db, 1, Shows::Green), Ok(None));
    assert_eq!(set_light::call(&mut db, 1, Shows::Red), Ok(Some(Shows::Green)));
    set_light::call(&mut db, 2, Shows::RedAndAmber).unwrap();
    let lights = db.run(|tx| {
        Ok(Light::scan_by_shows(tx)
            .prefix((Shows::Red,))
            .into_iter()
            .map(|row| row.into_inner())
            .collect::<Vec<_>>())
    });
    let expected = Light {
        id: 1,
        shows: Shows::Red,
        before: Some(Shows::Green),
        at_night: Shows::Green,
    };
    assert_eq!(lights, Ok(vec![expected]));
    let schema = db.schema();
    let columns = &schema.tables[0].columns;
    assert_eq!(columns[1].variants, ["green", "red_and_amber", "red"]);
    assert_eq!(
        (
            columns[2].variants.len(),
            columns[2].nullable,
            columns[3].default.as_deref()
        ),
        (3, true, Some(&[2][..]))
    );
    assert_eq!(
        schema.table_docs,
        ["A light, placed by its id.\n\nEach shows one thing at a time."]
    );
    assert_eq!(
        schema.procedures[0].docs,
        "Sets what a light shows; answers what it showed before."
    );
}
