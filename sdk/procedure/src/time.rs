//! Points in time and the time between them, in microseconds. A sum that does not fit ends the call.

use std::{
    fmt,
    ops::{Add, AddAssign, Mul, Neg, Sub, SubAssign},
    str::FromStr,
};

const US_PER_SECOND: i64 = 1_000_000;
const US_PER_DAY: i64 = 86_400 * US_PER_SECOND;
/// Days from 0000-03-01, with which a year of the calculation begins, to 1970-01-01.
const DAYS_TO_1970: i64 = 719_468;
/// Days of 400 years.
const DAYS_PER_ERA: i64 = 146_097;

/// Microseconds since 1970-01-01T00:00:00Z. As text RFC 3339, such as `2026-03-01T18:00:00.5Z`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub i64);

/// Time between two points, in microseconds. It is below zero if the later one is subtracted from the earlier one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Duration(i64);

/// A time; one that has no room ends the call, at the line that asked for it.
#[inline]
#[track_caller]
fn fitting(us: Option<i64>) -> i64 {
    match us {
        Some(us) => us,
        None => too_far(),
    }
}

#[cold]
#[track_caller]
fn too_far() -> ! {
    panic!("time beyond what 64 bits of microseconds hold")
}

impl Duration {
    /// No time.
    pub const ZERO: Self = Self(0);

    /// # Panics
    /// Beyond 292,000 years, as the other constructors.
    #[track_caller]
    pub fn from_days(days: i64) -> Self {
        Self::of(days, US_PER_DAY)
    }

    /// A duration in hours.
    #[track_caller]
    pub fn from_hours(hours: i64) -> Self {
        Self::of(hours, 3_600 * US_PER_SECOND)
    }

    /// A duration in minutes.
    #[track_caller]
    pub fn from_mins(minutes: i64) -> Self {
        Self::of(minutes, 60 * US_PER_SECOND)
    }

    /// A duration in seconds.
    #[track_caller]
    pub fn from_secs(seconds: i64) -> Self {
        Self::of(seconds, US_PER_SECOND)
    }

    /// A duration in milliseconds.
    #[track_caller]
    pub fn from_millis(milliseconds: i64) -> Self {
        Self::of(milliseconds, 1_000)
    }

    /// A duration in microseconds.
    pub const fn from_micros(microseconds: i64) -> Self {
        Self(microseconds)
    }

    #[track_caller]
    fn of(count: i64, unit_us: i64) -> Self {
        Self(fitting(count.checked_mul(unit_us)))
    }

    /// Returns the time in microseconds.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// Whole milliseconds, cut towards zero.
    pub const fn as_millis(self) -> i64 {
        self.0 / 1_000
    }

    /// Whole seconds, cut towards zero.
    pub const fn as_secs(self) -> i64 {
        self.0 / US_PER_SECOND
    }

    /// Whole days of 24 hours, cut towards zero.
    pub const fn as_days(self) -> i64 {
        self.0 / US_PER_DAY
    }
}

impl Timestamp {
    /// The beginning of its day, in UTC.
    #[track_caller]
    pub fn start_of_day(self) -> Self {
        Self(fitting(self.0.div_euclid(US_PER_DAY).checked_mul(US_PER_DAY)))
    }

    /// Returns the point of a date and a time of day in UTC. None: there is no such point.
    pub fn from_utc(date: (i64, u8, u8), time: (u8, u8, u8)) -> Option<Self> {
        let ((year, month, day), (hour, minute, second)) = (date, time);
        let days = days_of(year, month, day)?;
        if hour > 23 || minute > 59 || second > 59 {
            return None;
        }
        let seconds = i64::from(hour) * 3_600 + i64::from(minute) * 60 + i64::from(second);
        let us = days.checked_mul(US_PER_DAY)?.checked_add(seconds * US_PER_SECOND)?;
        Some(Self(us))
    }

    /// Year, month and day in UTC.
    pub fn date(self) -> (i64, u8, u8) {
        date_of(self.0.div_euclid(US_PER_DAY))
    }

    /// Hour, minute and second in UTC.
    pub fn time_of_day(self) -> (u8, u8, u8) {
        let second = self.0.rem_euclid(US_PER_DAY) / US_PER_SECOND;
        ((second / 3_600) as u8, (second / 60 % 60) as u8, (second % 60) as u8)
    }
}

/// Days since 1970-01-01 of a date of the Gregorian calendar, from the algorithm of H. Hinnant, "chrono-compatible low-level date
/// algorithms": years begin with March, so that the leap day is the last one.
fn days_of(year: i64, month: u8, day: u8) -> Option<i64> {
    if !(-300_000..=300_000).contains(&year) || !(1..=12).contains(&month) || day == 0 || day > days_in(year, month) {
        return None;
    }
    let (month, day) = (i64::from(month), i64::from(day));
    let year = year - i64::from(month <= 2);
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    Some(era * DAYS_PER_ERA + day_of_era - DAYS_TO_1970)
}

fn date_of(days: i64) -> (i64, u8, u8) {
    let days = days + DAYS_TO_1970;
    let (era, day_of_era) = (days.div_euclid(DAYS_PER_ERA), days.rem_euclid(DAYS_PER_ERA));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    (year_of_era + era * 400 + i64::from(month <= 2), month as u8, day as u8)
}

fn days_in(year: i64, month: u8) -> u8 {
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        4 | 6 | 9 | 11 => 30,
        2 => 28 + u8::from(is_leap),
        _ => 31,
    }
}

impl Add<Duration> for Timestamp {
    type Output = Self;
    #[track_caller]
    fn add(self, time: Duration) -> Self {
        Self(fitting(self.0.checked_add(time.0)))
    }
}

impl Sub<Duration> for Timestamp {
    type Output = Self;
    #[track_caller]
    fn sub(self, time: Duration) -> Self {
        Self(fitting(self.0.checked_sub(time.0)))
    }
}

impl Sub for Timestamp {
    type Output = Duration;
    #[track_caller]
    fn sub(self, earlier: Self) -> Duration {
        Duration(fitting(self.0.checked_sub(earlier.0)))
    }
}

impl AddAssign<Duration> for Timestamp {
    #[track_caller]
    fn add_assign(&mut self, time: Duration) {
        *self = *self + time;
    }
}

impl SubAssign<Duration> for Timestamp {
    #[track_caller]
    fn sub_assign(&mut self, time: Duration) {
        *self = *self - time;
    }
}

impl Add for Duration {
    type Output = Self;
    #[track_caller]
    fn add(self, other: Self) -> Self {
        Self(fitting(self.0.checked_add(other.0)))
    }
}

impl Sub for Duration {
    type Output = Self;
    #[track_caller]
    fn sub(self, other: Self) -> Self {
        Self(fitting(self.0.checked_sub(other.0)))
    }
}

impl Neg for Duration {
    type Output = Self;
    #[track_caller]
    fn neg(self) -> Self {
        Self(fitting(self.0.checked_neg()))
    }
}

impl Mul<i64> for Duration {
    type Output = Self;
    #[track_caller]
    fn mul(self, times: i64) -> Self {
        Self::of(self.0, times)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ((year, month, day), (hour, minute, second)) = (self.date(), self.time_of_day());
        let sign = if year < 0 { "-" } else { "" };
        let year = year.unsigned_abs();
        write!(
            f,
            "{sign}{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}"
        )?;
        match self.0.rem_euclid(US_PER_SECOND) {
            0 => f.write_str("Z"),
            us => {
                let digits = format!("{us:06}");
                write!(f, ".{}Z", digits.trim_end_matches('0'))
            }
        }
    }
}

/// The text is no point in time as RFC 3339 writes it, in years 0 to 9999.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotATime;

impl fmt::Display for NotATime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no time such as 2026-03-01T18:00:00Z")
    }
}

impl std::error::Error for NotATime {}

impl FromStr for Timestamp {
    type Err = NotATime;

    /// `2026-03-01T18:00:00Z`, with up to six digits of a second's fraction, and an offset such as `+01:00` in place of `Z`.
    fn from_str(text: &str) -> Result<Self, NotATime> {
        parse(text.as_bytes()).ok_or(NotATime)
    }
}

fn parse(text: &[u8]) -> Option<Timestamp> {
    let (date_time, rest) = text.split_at_checked(19)?;
    let is_at = |at: usize, mark: u8| date_time.get(at) == Some(&mark);
    let has_marks =
        is_at(4, b'-') && is_at(7, b'-') && (is_at(10, b'T') || is_at(10, b' ')) && is_at(13, b':') && is_at(16, b':');
    let two = |at: usize| Some(number(date_time.get(at..at + 2)?)? as u8);
    let date = (number(date_time.get(..4)?)?, two(5)?, two(8)?);
    let whole = Timestamp::from_utc(date, (two(11)?, two(14)?, two(17)?)).filter(|_| has_marks)?;
    let (us, zone) = match rest.split_first() {
        Some((b'.', fraction)) => {
            let digits = fraction.iter().take_while(|byte| byte.is_ascii_digit()).count();
            let (digits, zone) = fraction.split_at_checked(digits)?;
            let missing = 6_usize.checked_sub(digits.len())?;
            (number(digits)? * 10_i64.pow(missing as u32), zone)
        }
        _ => (0, rest),
    };
    let offset_us = match zone {
        b"Z" => 0,
        [sign @ (b'+' | b'-'), hours @ .., b':', tens, ones] if hours.len() == 2 => {
            let (hours, minutes) = (number(hours)?, number(&[*tens, *ones])?);
            let us = (hours * 60 + minutes) * 60 * US_PER_SECOND;
            (hours < 24 && minutes < 60).then_some(if *sign == b'+' { us } else { -us })?
        }
        _ => return None,
    };
    whole.0.checked_add(us)?.checked_sub(offset_us).map(Timestamp)
}

/// Digits alone, few enough.
fn number(digits: &[u8]) -> Option<i64> {
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(digits).ok().filter(|_| is_number)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().expect(text)
    }

    #[test]
    fn text_and_points_are_each_other() {
        for (text, us) in [
            ("1970-01-01T00:00:00Z", 0),
            ("1969-12-31T23:59:59.999999Z", -1),
            ("2000-02-29T12:30:45.5Z", 951_827_445_500_000),
            ("2024-01-01T00:00:00Z", crate::testkit::START_US),
            ("0000-01-01T00:00:00Z", -62_167_219_200_000_000),
            ("9999-12-31T23:59:59.000001Z", 253_402_300_799_000_001),
        ] {
            assert_eq!(at(text), Timestamp(us), "{text}");
            assert_eq!(Timestamp(us).to_string(), text);
        }
        assert_eq!(at("2026-03-01T19:00:00+01:00"), at("2026-03-01T18:00:00Z"));
        assert_eq!(at("2026-03-01 18:00:00.250-00:30"), at("2026-03-01T18:30:00.25Z"));
        for us in [i64::MIN, i64::MAX] {
            assert!(Timestamp(us).to_string().len() > 20);
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "2026-03-01",
            "2026-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-00-01T00:00:00Z",
            "2026-01-01T24:00:00Z",
            "2026-01-01T00:60:00Z",
            "2026-01-01T00:00:60Z",
            "2026-01-01T00:00:00",
            "2026-01-01T00:00:00z",
            "2026-01-01T00:00:00.Z",
            "2026-01-01T00:00:00.1234567Z",
            "2026-01-01T00:00:00+1:00",
            "2026-01-01T00:00:00+24:00",
            "+026-01-01T00:00:00Z",
            "2026/01/01T00:00:00Z",
            "2026-01-01T00:00:00ZZ",
            "2026-01-01T00:00:0éZ",
        ] {
            assert_eq!(text.parse::<Timestamp>(), Err(NotATime), "{text}");
        }
    }

    #[test]
    fn every_day_has_its_date() {
        let mut date = (1999, 12, 31);
        for days in 10_956..(10_957 + 400 * 366) {
            assert_eq!(date_of(days), date);
            assert_eq!(days_of(date.0, date.1, date.2), Some(days));
            date = match date {
                (year, 12, 31) => (year + 1, 1, 1),
                (year, month, day) if day == days_in(year, month) => (year, month + 1, 1),
                (year, month, day) => (year, month, day + 1),
            };
        }
    }

    #[test]
    fn times_add_up() {
        let noon = at("2026-03-01T12:00:00Z");
        assert_eq!(noon + Duration::from_hours(36), at("2026-03-03T00:00:00Z"));
        assert_eq!(noon - Duration::from_days(1), at("2026-02-28T12:00:00Z"));
        assert_eq!((noon + Duration::from_mins(90)) - noon, Duration::from_secs(5_400));
        assert_eq!((noon - (noon + Duration::from_millis(1))).as_micros(), -1_000);
        assert_eq!(noon.start_of_day(), at("2026-03-01T00:00:00Z"));
        assert_eq!(Timestamp(-1).start_of_day(), at("1969-12-31T00:00:00Z"));
        assert_eq!((Duration::from_secs(3) * -2).as_millis(), -6_000);
        assert_eq!(noon.time_of_day(), (12, 0, 0));
        let mut later = noon;
        later += Duration::from_secs(61);
        later -= Duration::from_secs(1);
        assert_eq!(later.to_string(), "2026-03-01T12:01:00Z");
    }

    #[test]
    fn value_that_does_not_fit_ends_the_call() {
        let beyond: [fn() -> i64; 5] = [
            || Duration::from_days(i64::MAX).as_micros(),
            || (Timestamp(i64::MAX) + Duration::from_micros(1)).0,
            || (Timestamp(i64::MIN) - Timestamp(1)).as_micros(),
            || (-Duration::from_micros(i64::MIN)).as_micros(),
            || Timestamp(i64::MIN).start_of_day().0,
        ];
        for compute in beyond {
            assert!(std::panic::catch_unwind(compute).is_err());
        }
    }
}
