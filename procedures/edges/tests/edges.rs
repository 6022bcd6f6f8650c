//! The edges natively; `tests/http` asks the same of wasm.
#![allow(clippy::unwrap_used)]

use edges::{MODULE, Narrowed};
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
fn what_does_not_fit_ends_the_call() {
    assert_eq!(call("add", (i64::MAX, 1_i64)), Err::<i64, _>("panicked: attempt to add with overflow".into()));
    assert_eq!(call("multiply", (1 << 20, 1 << 11)), Err::<i32, _>("panicked: attempt to multiply with overflow".into()));
    assert_eq!(call("sum", (vec![i64::MIN, -1],)), Err::<i64, _>("panicked: attempt to add with overflow".into()));
    assert_eq!(call("divide", (i64::MIN, -1_i64)), Err::<i64, _>("panicked: attempt to divide with overflow".into()));
    assert_eq!(call("divide", (1_i64, 0_i64)), Err::<i64, _>("panicked: attempt to divide by zero".into()));
    assert_eq!(call("shift", (1_u64, 64_u32)), Err::<u64, _>("panicked: attempt to shift left with overflow".into()));
}

#[test]
fn what_fits_is_right() {
    assert_eq!(call("add", (i64::MAX - 1, 1_i64)), Ok(i64::MAX));
    assert_eq!(call("divide", (-7_i64, 2_i64)), Ok(-3_i64));
    assert_eq!(call("shift", (3_u64, 63_u32)), Ok(1_u64 << 63));
}

#[test]
fn floats_become_the_nearest_integers() {
    let far = Narrowed { i8: i8::MAX, u16: u16::MAX, i32: i32::MAX, i64: i64::MAX, u64: u64::MAX };
    assert_eq!(call("narrow", (1e300,)), Ok(far));
    let low = Narrowed { i8: i8::MIN, u16: 0, i32: i32::MIN, i64: i64::MIN, u64: 0 };
    assert_eq!(call("narrow", (-1e300,)), Ok(low));
    let cut = Narrowed { i8: -2, u16: 0, i32: -2, i64: -2, u64: 0 };
    assert_eq!(call("narrow", (-2.9,)), Ok(cut));
    let nothing = Narrowed { i8: 0, u16: 0, i32: 0, i64: 0, u64: 0 };
    assert_eq!(call("narrow_nothing", (0.0,)), Ok(nothing));
}

#[test]
fn a_panic_tells_its_message() {
    assert_eq!(call("give_up", ("enough",)), Err::<i64, _>("panicked: gave up: enough".into()));
}
