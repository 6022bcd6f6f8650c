//! The sample module `edges`: numbers at the end of their range, and programs that give up. Each has the same result natively and in wasm.
//! Owns: the table `lights`, of which a column is an enum; procedures of one operation each, and `recurse`, `fill`, `give_up`.
//! Does not: read rows.
//! Invariants: a value that does not fit its number ends the call; a float becomes the nearest integer that there is.
//! Called by: its own tests natively, the HTTP tests in wasm.
#![deny(unsafe_code)]

use reprise_procedure::prelude::*;

/// Returns the sum, and ends the call if it does not fit.
#[procedure(any_partition, read_only)]
pub fn add(_tx: &Txn, a: i64, b: i64) -> i64 {
    a + b
}

/// The product in 32 bits.
#[procedure(any_partition, read_only)]
pub fn multiply(_tx: &Txn, a: i32, b: i32) -> i32 {
    a * b
}

/// The sum of a list.
#[procedure(any_partition, read_only)]
pub fn sum(_tx: &Txn, items: Vec<i64>) -> i64 {
    items.iter().sum()
}

/// The quotient, cut towards zero.
#[procedure(any_partition, read_only)]
pub fn divide(_tx: &Txn, a: i64, b: i64) -> i64 {
    a / b
}

/// Shifted to the left; by 64 bits or more ends the call.
#[procedure(any_partition, read_only)]
pub fn shift(_tx: &Txn, a: u64, by: u32) -> u64 {
    a << by
}

/// One operation on decimals: its number, its operands, and the rounding of a result without room after the point.
#[derive(Clone, Copy, Debug, PartialEq, ProcedureStruct)]
pub struct DecimalStep {
    pub what: u8,
    pub a: Decimal<2>,
    pub b: Decimal<5>,
    pub whole: i64,
    pub rounding: u8,
}

/// The results of operations on decimals, one after the other. What has no room ends the call, as a division by nothing does.
#[procedure(any_partition, read_only)]
pub fn decimals(_tx: &Txn, steps: Vec<DecimalStep>) -> Vec<Decimal<9>> {
    steps.into_iter().map(decimal).collect()
}

fn decimal(step: DecimalStep) -> Decimal<9> {
    let DecimalStep { what, a, b, whole, .. } = step;
    let rounding = match step.rounding % 6 {
        0 => Rounding::HalfEven,
        1 => Rounding::HalfUp,
        2 => Rounding::Down,
        3 => Rounding::Up,
        4 => Rounding::Floor,
        _ => Rounding::Ceiling,
    };
    match what % 10 {
        0 => (a + a).round_to(rounding),
        1 => (b - b * 2).round_to(rounding),
        2 => (a * whole).round_to(rounding),
        3 => a.times(b, rounding).round_to(rounding),
        4 => b.times(a, rounding).round_to(rounding),
        5 => a.divided_by(b, rounding).round_to(rounding),
        6 => (b / a).round_to(rounding),
        7 => b.round_to::<1>(rounding).round_to(rounding),
        8 => [a, -a.abs(), a.rounded(rounding)]
            .iter()
            .sum::<Decimal<2>>()
            .round_to(rounding),
        // The way is to text and back.
        _ => b.to_string().parse().unwrap_or(Decimal::ZERO),
    }
}

/// The answer of `narrow`.
#[derive(Clone, Copy, Debug, PartialEq, ProcedureStruct)]
pub struct Narrowed {
    pub i8: i8,
    pub u16: u16,
    pub i32: i32,
    pub i64: i64,
    pub u64: u64,
}

/// A float as integers: cut towards zero, and the nearest one that there is beyond the ends.
#[procedure(any_partition, read_only)]
pub fn narrow(_tx: &Txn, value: f64) -> Narrowed {
    Narrowed {
        i8: value as i8,
        u16: value as u16,
        i32: value as i32,
        i64: value as i64,
        u64: value as u64,
    }
}

/// The integers of a float that is no number.
#[procedure(any_partition, read_only)]
pub fn narrow_nothing(tx: &Txn, zero: f64) -> Narrowed {
    let unknown = 0.0 / zero;
    narrow(tx, unknown)
}

/// Gives up with the caller's words.
#[procedure(any_partition, read_only)]
pub fn give_up(_tx: &Txn, reason: &str) -> i64 {
    panic!("gave up: {reason}")
}

/// Calls itself, with some bytes in its frame each time.
#[procedure(any_partition, read_only)]
pub fn recurse(_tx: &Txn, depth: u32) -> u64 {
    deeper(depth, &mut [0; 256])
}

#[inline(never)]
fn deeper(depth: u32, above: &mut [u64; 256]) -> u64 {
    let mut own = *above;
    own[depth as usize % 256] += 1;
    match depth {
        0 => own.iter().sum(),
        _ => deeper(depth - 1, &mut own) + own[0],
    }
}

/// Takes this many bytes of memory.
#[procedure(any_partition, read_only)]
pub fn fill(_tx: &Txn, bytes: u32) -> u64 {
    let filled = vec![1_u8; bytes as usize];
    filled.iter().map(|byte| u64::from(*byte)).sum()
}

/// The state of a light.
#[derive(Clone, Copy, Debug, PartialEq, ColumnEnum, ProcedureEnum)]
pub enum Shows {
    Green,
    RedAndAmber,
    Red,
}

/// A light, placed by its id.
///
/// Each shows one thing at a time.
#[table(name = "lights", primary_key(id), index(shows, shows, id), partition_by = id)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Light {
    pub id: i64,
    pub shows: Shows,
    pub before: Option<Shows>,
    #[column(default = Shows::Red)]
    pub at_night: Shows,
}

/// Sets what a light shows; answers what it showed before.
#[procedure(partition_by(id))]
pub fn set_light(tx: &Txn, id: i64, shows: Shows) -> Result<Option<Shows>, Abort> {
    let before = Light::get(tx, id).map(|light| light.shows);
    let is_there = Light::update(tx, id, |light| {
        light.before = Some(light.shows);
        light.shows = shows;
    })?;
    if !is_there {
        Light::insert(
            tx,
            &Light {
                id,
                shows,
                before: None,
                at_night: Shows::Green,
            },
        )?;
    }
    Ok(before)
}

reprise_procedure::module! {
    tables: [Light],
    procedures: [set_light, add, multiply, sum, divide, shift, decimals, narrow, narrow_nothing, give_up, recurse, fill],
}
