//! Exact numbers with a fixed number of decimal places. A result that does not fit 128 bits ends the call. Each operation that rounds says
//! how.

use std::{
    fmt,
    iter::Sum,
    ops::{Add, AddAssign, Div, Mul, Neg, Sub, SubAssign},
    str::FromStr,
};

/// An exact number: `units / 10^SCALE`.
///
/// `+`, `-` and `*` by a whole number are exact. `*` and `/` by another decimal round to the nearest, a tie to the even neighbour (IEEE
/// 754's default). `times` and `divided_by` take the rounding as an argument.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Decimal<const SCALE: u8> {
    /// The value times 10 to the power of the scale.
    pub units: i128,
}

/// Which of the two neighbours a number between them becomes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rounding {
    /// The nearest; of two equally near ones the even one.
    #[default]
    HalfEven,
    /// The nearest; of two equally near ones that farther from zero, as merchants do.
    HalfUp,
    /// The one towards zero.
    Down,
    /// The one away from zero.
    Up,
    /// The smaller one.
    Floor,
    /// The greater one.
    Ceiling,
}

/// A result; one that has no room ends the call, at the line that asked for it.
#[inline]
#[track_caller]
fn fitting<const SCALE: u8>(units: Option<i128>) -> Decimal<SCALE> {
    match units {
        Some(units) => Decimal::from_units(units),
        None => too_large(),
    }
}

#[cold]
#[track_caller]
fn too_large() -> ! {
    panic!("a decimal beyond what 128 bits hold")
}

impl<const SCALE: u8> Decimal<SCALE> {
    /// Nothing.
    pub const ZERO: Self = Self { units: 0 };
    const ONE: i128 = 10_i128.pow(SCALE as u32);

    /// The decimal of `units` smallest units: `Decimal::<2>::from_units(1250)` is 12.50.
    pub const fn from_units(units: i128) -> Self {
        Self { units }
    }

    /// The whole number `value`.
    pub const fn from_whole(value: i64) -> Self {
        Self {
            units: value as i128 * Self::ONE,
        }
    }

    /// Returns the sum, or None if it does not fit.
    pub fn checked_add(self, other: Self) -> Option<Self> {
        self.units.checked_add(other.units).map(Self::from_units)
    }

    /// Returns the difference, or None if it does not fit.
    pub fn checked_sub(self, other: Self) -> Option<Self> {
        self.units.checked_sub(other.units).map(Self::from_units)
    }

    /// Times a whole number.
    pub fn checked_mul_whole(self, factor: i64) -> Option<Self> {
        self.units.checked_mul(factor as i128).map(Self::from_units)
    }

    /// The product, rounded as it is said: `price.times(rate, Rounding::HalfUp)`.
    ///
    /// # Panics
    /// When the result does not fit.
    #[track_caller]
    pub fn times<const OTHER: u8>(self, factor: Decimal<OTHER>, rounding: Rounding) -> Self {
        let units = mul_div(self.units, factor.units, Decimal::<OTHER>::ONE, rounding);
        fitting(units)
    }

    /// The quotient, rounded as it is said.
    ///
    /// # Panics
    /// When the divisor is zero, or the result does not fit.
    #[track_caller]
    pub fn divided_by<const OTHER: u8>(self, divisor: Decimal<OTHER>, rounding: Rounding) -> Self {
        if divisor.units == 0 {
            panic!("attempt to divide a decimal by zero");
        }
        let units = mul_div(self.units, Decimal::<OTHER>::ONE, divisor.units, rounding);
        fitting(units)
    }

    /// The nearest number of another scale: `total.round_to::<2>(Rounding::HalfEven)`.
    ///
    /// # Panics
    /// When the result does not fit.
    #[track_caller]
    pub fn round_to<const OTHER: u8>(self, rounding: Rounding) -> Decimal<OTHER> {
        let units = mul_div(self.units, Decimal::<OTHER>::ONE, Self::ONE, rounding);
        fitting(units)
    }

    /// The nearest whole number, of the same scale.
    #[track_caller]
    pub fn rounded(self, rounding: Rounding) -> Self {
        self.round_to::<0>(rounding).round_to(rounding)
    }

    /// The value without its sign.
    #[track_caller]
    pub fn abs(self) -> Self {
        fitting(self.units.checked_abs())
    }
}

/// `a * b / divisor`, of which the product may be wider than 128 bits. None when the result is.
fn mul_div(a: i128, b: i128, divisor: i128, rounding: Rounding) -> Option<i128> {
    let is_negative = (a < 0) ^ (b < 0) ^ (divisor < 0);
    let divisor = divisor.unsigned_abs();
    let (quotient, rest) = match a.unsigned_abs().checked_mul(b.unsigned_abs()) {
        Some(product) => (product / divisor, product % divisor),
        None => wide_div(wide_mul(a.unsigned_abs(), b.unsigned_abs()), divisor)?,
    };
    let is_up = rest > 0
        && goes_up(
            rounding,
            Division {
                quotient,
                rest,
                divisor,
            },
            is_negative,
        );
    let magnitude = quotient.checked_add(u128::from(is_up))?;
    match is_negative {
        false => i128::try_from(magnitude).ok(),
        true => 0_i128.checked_sub_unsigned(magnitude),
    }
}

/// A division of magnitudes that leaves a rest.
struct Division {
    quotient: u128,
    rest: u128,
    divisor: u128,
}

/// True if the quotient's magnitude is rounded up.
fn goes_up(rounding: Rounding, division: Division, is_negative: bool) -> bool {
    // `rest` is less than `divisor`, so the difference says which of the two neighbours is nearer.
    let (below, above) = (division.rest, division.divisor - division.rest);
    match rounding {
        Rounding::HalfEven => below > above || (below == above && division.quotient % 2 == 1),
        Rounding::HalfUp => below >= above,
        Rounding::Down => false,
        Rounding::Up => true,
        Rounding::Floor => is_negative,
        Rounding::Ceiling => !is_negative,
    }
}

/// A number of 256 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct U256 {
    high: u128,
    low: u128,
}

/// The whole product.
fn wide_mul(a: u128, b: u128) -> U256 {
    const LOW: u128 = u64::MAX as u128;
    let (a_high, a_low, b_high, b_low) = (a >> 64, a & LOW, b >> 64, b & LOW);
    let low = a_low * b_low;
    // Each fits: (2^64 - 1)^2 + 2 * (2^64 - 1) is 2^128 - 1.
    let middle = a_high * b_low + (low >> 64);
    let other = a_low * b_high + (middle & LOW);
    U256 {
        high: a_high * b_high + (middle >> 64) + (other >> 64),
        low: other << 64 | low & LOW,
    }
}

/// Quotient and rest, bit by bit; none if the quotient has more than 128 bits.
fn wide_div(number: U256, divisor: u128) -> Option<(u128, u128)> {
    let U256 { high, low } = number;
    if high >= divisor {
        return None;
    }
    let (mut quotient, mut rest) = (0, high);
    for bit in (0..128).rev() {
        let carries = rest >> 127 == 1;
        rest = rest << 1 | low >> bit & 1;
        if carries || rest >= divisor {
            rest = rest.wrapping_sub(divisor);
            quotient |= 1 << bit;
        }
    }
    Some((quotient, rest))
}

impl<const SCALE: u8> Add for Decimal<SCALE> {
    type Output = Self;
    #[track_caller]
    fn add(self, other: Self) -> Self {
        fitting(self.units.checked_add(other.units))
    }
}

impl<const SCALE: u8> Sub for Decimal<SCALE> {
    type Output = Self;
    #[track_caller]
    fn sub(self, other: Self) -> Self {
        fitting(self.units.checked_sub(other.units))
    }
}

impl<const SCALE: u8> Neg for Decimal<SCALE> {
    type Output = Self;
    #[track_caller]
    fn neg(self) -> Self {
        fitting(self.units.checked_neg())
    }
}

impl<const SCALE: u8> AddAssign for Decimal<SCALE> {
    #[track_caller]
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl<const SCALE: u8> SubAssign for Decimal<SCALE> {
    #[track_caller]
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}

impl<const SCALE: u8> Mul<i64> for Decimal<SCALE> {
    type Output = Self;
    #[track_caller]
    fn mul(self, factor: i64) -> Self {
        fitting(self.units.checked_mul(factor as i128))
    }
}

impl<const SCALE: u8, const OTHER: u8> Mul<Decimal<OTHER>> for Decimal<SCALE> {
    type Output = Self;
    #[track_caller]
    fn mul(self, factor: Decimal<OTHER>) -> Self {
        self.times(factor, Rounding::HalfEven)
    }
}

impl<const SCALE: u8, const OTHER: u8> Div<Decimal<OTHER>> for Decimal<SCALE> {
    type Output = Self;
    #[track_caller]
    fn div(self, divisor: Decimal<OTHER>) -> Self {
        self.divided_by(divisor, Rounding::HalfEven)
    }
}

impl<const SCALE: u8> Sum for Decimal<SCALE> {
    fn sum<I: Iterator<Item = Self>>(items: I) -> Self {
        items.fold(Self::ZERO, Add::add)
    }
}

impl<'a, const SCALE: u8> Sum<&'a Self> for Decimal<SCALE> {
    fn sum<I: Iterator<Item = &'a Self>>(items: I) -> Self {
        items.copied().sum()
    }
}

impl<const SCALE: u8> fmt::Display for Decimal<SCALE> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.units < 0 { "-" } else { "" };
        let (one, units) = (Self::ONE.unsigned_abs(), self.units.unsigned_abs());
        write!(f, "{sign}{}", units / one)?;
        if SCALE > 0 {
            write!(f, ".{:0width$}", units % one, width = SCALE as usize)?;
        }
        Ok(())
    }
}

/// The text is no decimal of this scale: digits, one point at most, no more places than the scale has, and it fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotADecimal {
    /// Digits after the point.
    pub scale: u8,
}

impl fmt::Display for NotADecimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no number of at most {} decimal places", self.scale)
    }
}

impl std::error::Error for NotADecimal {}

impl<const SCALE: u8> FromStr for Decimal<SCALE> {
    type Err = NotADecimal;

    /// `-12.5`, `3`, `.75`. Nothing is rounded: more places than the scale has are refused.
    fn from_str(text: &str) -> Result<Self, NotADecimal> {
        parse(text, SCALE as usize)
            .map(Self::from_units)
            .ok_or(NotADecimal { scale: SCALE })
    }
}

fn parse(text: &str, scale: usize) -> Option<i128> {
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let (whole, places) = digits.split_once('.').unwrap_or((digits, ""));
    let is_number = !(whole.is_empty() && places.is_empty()) && places.len() <= scale;
    let zeros = std::iter::repeat_n(b'0', scale.checked_sub(places.len()).filter(|_| is_number)?);
    let mut units = 0_i128;
    for byte in whole.bytes().chain(places.bytes()).chain(zeros) {
        let digit = byte.is_ascii_digit().then(|| i128::from(byte - b'0'))?;
        // Below zero there is one number more.
        units = units.checked_mul(10)?.checked_sub(digit)?;
    }
    match is_negative {
        true => Some(units),
        false => units.checked_neg(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Decimal<2> {
        text.parse().expect(text)
    }

    #[test]
    fn text_is_exact_both_ways() {
        for (text, units) in [
            ("0", 0),
            ("-0.01", -1),
            (".5", 50),
            ("12.", 1_200),
            ("+7.25", 725),
            ("-3", -300),
        ] {
            assert_eq!(of(text).units, units, "{text}");
        }
        for units in [i128::MIN, i128::MAX, -1, 99, 100] {
            let decimal = Decimal::<2>::from_units(units);
            assert_eq!(of(&decimal.to_string()), decimal);
        }
        for text in [
            "",
            ".",
            "-",
            "1.234",
            "1,5",
            "1e3",
            "--1",
            "0x1",
            " 1",
            "1700000000000000000000000000000000000000",
        ] {
            assert_eq!(text.parse::<Decimal<2>>(), Err(NotADecimal { scale: 2 }), "{text}");
        }
    }

    #[test]
    fn each_rounding_chooses_its_neighbour() {
        use Rounding::*;
        let all = [HalfEven, HalfUp, Down, Up, Floor, Ceiling];
        for (text, expected) in [
            ("2.5", [2, 3, 2, 3, 2, 3]),
            ("3.5", [4, 4, 3, 4, 3, 4]),
            ("-2.5", [-2, -3, -2, -3, -3, -2]),
            ("2.51", [3, 3, 2, 3, 2, 3]),
            ("-2.49", [-2, -2, -2, -3, -3, -2]),
            ("4", [4; 6]),
        ] {
            let rounded = all.map(|rounding| of(text).round_to::<0>(rounding).units);
            assert_eq!(rounded, expected, "{text}");
            assert_eq!(of(text).rounded(HalfUp), Decimal::from_whole(expected[1] as i64));
        }
    }

    #[test]
    fn products_and_quotients_round_as_they_say() {
        let rate: Decimal<4> = "0.0825".parse().expect("a rate");
        assert_eq!(of("19.99").times(rate, Rounding::HalfUp), of("1.65"));
        assert_eq!(of("19.99").times(rate, Rounding::Down), of("1.64"));
        assert_eq!(of("10.00") / of("3.00"), of("3.33"));
        assert_eq!(of("-10.00").divided_by(of("3"), Rounding::Floor), of("-3.34"));
        assert_eq!(of("0.05") * of("0.50"), of("0.02"), "a tie goes to the even one");
        assert_eq!(of("1.25") * 3, of("3.75"));
        assert_eq!([of("1.10"), of("2.20")].iter().sum::<Decimal<2>>(), of("3.30"));
        assert_eq!(-of("1.5") + of("1") - of("0.5"), of("-1"));
        assert_eq!(of("-1.5").abs(), of("1.5"));
    }

    #[test]
    fn products_wider_than_128_bits_are_right() {
        let large = Decimal::<18>::from_units(10_i128.pow(27) + 7);
        assert_eq!(large * large / large, large);
        let third = Decimal::<38>::from_units(10_i128.pow(38) / 3);
        assert_eq!(
            (third * third).units,
            11_111_111_111_111_111_111_111_111_111_111_111_111
        );
        assert_eq!(
            mul_div(i128::MIN, i128::MIN, i128::MIN, Rounding::Down),
            Some(i128::MIN)
        );
        assert_eq!(mul_div(i128::MAX, 2, 1, Rounding::Down), None);
        assert_eq!(mul_div(i128::MAX, i128::MAX, 3, Rounding::Down), None);
        for (a, b, divisor) in [(u128::MAX, 3, 7), (u128::MAX, u128::MAX, u128::MAX), (1 << 127, 5, 6)] {
            let (quotient, rest) = wide_div(wide_mul(a, b), divisor).expect("it fits");
            let U256 { high, low } = wide_mul(quotient, divisor);
            let (low, carry) = low.overflowing_add(rest);
            let high = high + u128::from(carry);
            assert_eq!(U256 { high, low }, wide_mul(a, b));
            assert!(rest < divisor);
        }
    }

    #[test]
    fn value_that_does_not_fit_ends_the_call() {
        let max = Decimal::<2>::from_units(i128::MAX);
        let beyond: [Box<dyn Fn() -> Decimal<2> + std::panic::UnwindSafe>; 6] = [
            Box::new(move || max + of("0.01")),
            Box::new(move || max * 2),
            Box::new(move || max * max),
            Box::new(move || max / of("0.01")),
            Box::new(|| of("1") / of("0")),
            Box::new(move || -Decimal::from_units(i128::MIN)),
        ];
        for compute in beyond {
            assert!(std::panic::catch_unwind(compute).is_err());
        }
    }
}
