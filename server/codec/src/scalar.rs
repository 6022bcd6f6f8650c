//! Text forms of the scalars that JSON has no form for.

use base64::{
    Engine,
    alphabet::STANDARD,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};

const US_PER_DAY: i64 = 86_400_000_000;
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);
const HEX: &[u8; 16] = b"0123456789abcdef";

/// Lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    let mut text = Vec::with_capacity(bytes.len() * 2);
    push_hex(&mut text, bytes);
    String::from_utf8(text).expect("hexadecimal digits")
}

fn push_hex(out: &mut Vec<u8>, bytes: &[u8]) {
    for byte in bytes {
        out.push(HEX[(byte >> 4) as usize]);
        out.push(HEX[(byte & 15) as usize]);
    }
}

/// Appends the bytes in base64, padded.
pub fn push_base64(out: &mut Vec<u8>, bytes: &[u8]) {
    let start = out.len();
    out.resize(start + bytes.len().div_ceil(3) * 4, 0);
    let written = BASE64.encode_slice(bytes, &mut out[start..]).expect("sized for it");
    out.truncate(start + written);
}

/// Returns the bytes behind a base64 text, padded or not. None: the text is no such text.
pub fn parse_base64(text: &str) -> Option<Vec<u8>> {
    BASE64.decode(text).ok()
}

/// Appends the UUID hyphenated, in lower case.
pub fn push_uuid(out: &mut Vec<u8>, uuid: &[u8; 16]) {
    let mut at = 0;
    for (group, length) in [4, 2, 2, 2, 6].into_iter().enumerate() {
        if group > 0 {
            out.push(b'-');
        }
        push_hex(out, &uuid[at..at + length]);
        at += length;
    }
}

/// The UUID of a hyphenated text or of 32 digits; none for any other.
pub fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let bytes = text.as_bytes();
    let is_hyphenated = bytes.len() == 36 && [8, 13, 18, 23].iter().all(|at| bytes[*at] == b'-');
    if !is_hyphenated && bytes.len() != 32 {
        return None;
    }
    let mut uuid = [0; 16];
    let mut nibbles = 0;
    for (at, byte) in bytes.iter().enumerate() {
        if is_hyphenated && [8, 13, 18, 23].contains(&at) {
            continue;
        }
        let digit = (*byte as char).to_digit(16)? as u8;
        uuid[nibbles / 2] |= digit << (4 - 4 * (nibbles % 2));
        nibbles += 1;
    }
    Some(uuid)
}

/// `value / 10^scale` with exactly `scale` digits after the point.
pub fn push_decimal(out: &mut Vec<u8>, value: i128, scale: u8) {
    let digits = value.unsigned_abs().to_string();
    let scale = scale as usize;
    if value < 0 {
        out.push(b'-');
    }
    if digits.len() > scale {
        out.extend_from_slice(&digits.as_bytes()[..digits.len() - scale]);
    } else {
        out.push(b'0');
    }
    if scale > 0 {
        out.push(b'.');
        out.resize(out.len() + scale.saturating_sub(digits.len()), b'0');
        out.extend_from_slice(&digits.as_bytes()[digits.len().saturating_sub(scale)..]);
    }
}

/// A decimal in the form of `push_decimal`.
pub fn decimal(value: i128, scale: u8) -> String {
    let mut text = Vec::new();
    push_decimal(&mut text, value, scale);
    String::from_utf8(text).expect("digits")
}

/// A decimal number (digits, point, exponent), if it fits `scale` and an `i128` without loss.
pub fn parse_decimal(text: &str, scale: u8) -> Option<i128> {
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i16>().ok()? as i32),
        None => (text, 0),
    };
    let (is_negative, mantissa) = match mantissa.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, mantissa),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, "0"));
    if whole.is_empty() || fraction.is_empty() {
        return None;
    }
    let fraction = fraction.trim_end_matches('0');
    let mut shift = scale as i32 + exponent - i32::try_from(fraction.len()).ok()?;
    let mut value = 0i128; // the value is negative, because i128 reaches one further there
    for byte in whole.bytes().chain(fraction.bytes()) {
        let digit = (byte as char).to_digit(10)? as i128;
        value = value.checked_mul(10)?.checked_sub(digit)?;
    }
    while shift > 0 && value != 0 {
        value = value.checked_mul(10)?;
        shift -= 1;
    }
    while shift < 0 && value != 0 {
        if value % 10 != 0 {
            return None;
        }
        value /= 10;
        shift += 1;
    }
    if is_negative { Some(value) } else { value.checked_neg() }
}

/// RFC 3339 in UTC with microseconds.
pub fn rfc3339(unix_us: i64) -> String {
    let mut text = Vec::with_capacity(32);
    push_timestamp(&mut text, unix_us);
    String::from_utf8(text).expect("ASCII")
}

/// Appends a timestamp in the form of `rfc3339`.
pub fn push_timestamp(out: &mut Vec<u8>, unix_us: i64) {
    let (year, month, day) = civil_of_day(unix_us.div_euclid(US_PER_DAY));
    if (0..=9999).contains(&year) {
        push_padded(out, year as u64, 4);
    } else {
        out.push(if year < 0 { b'-' } else { b'+' });
        push_padded(out, year.unsigned_abs(), 6);
    }
    let us = unix_us.rem_euclid(US_PER_DAY) as u64;
    let seconds = us / 1_000_000;
    let parts = [
        (b'-', month as u64, 2),
        (b'-', day as u64, 2),
        (b'T', seconds / 3600, 2),
        (b':', seconds / 60 % 60, 2),
        (b':', seconds % 60, 2),
        (b'.', us % 1_000_000, 6),
    ];
    for (before, value, width) in parts {
        out.push(before);
        push_padded(out, value, width);
    }
    out.push(b'Z');
}

fn push_padded(out: &mut Vec<u8>, value: u64, width: u32) {
    for place in (0..width).rev() {
        out.push(b'0' + (value / 10u64.pow(place) % 10) as u8);
    }
}

/// Year, month, day of a day counted from 1970-01-01 (Hinnant, "chrono-compatible low-level date algorithms").
fn civil_of_day(day: i64) -> (i64, u32, u32) {
    let shifted = day + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_shifted = (5 * day_of_year + 2) / 153;
    let day = (day_of_year - (153 * month_shifted + 2) / 5 + 1) as u32;
    let month = if month_shifted < 10 {
        month_shifted + 3
    } else {
        month_shifted - 9
    } as u32;
    (year_of_era + era * 400 + (month <= 2) as i64, month, day)
}

fn day_of_civil(year: i64, month: u32, day: u32) -> i64 {
    let year = year - (month <= 2) as i64;
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let month_shifted = if month > 2 { month - 3 } else { month + 9 } as i64;
    let day_of_year = (153 * month_shifted + 2) / 5 + day as i64 - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// RFC 3339, also with a signed year of six digits; None for anything finer than a microsecond.
pub fn parse_timestamp(text: &str) -> Option<i64> {
    let mut rest = text.as_bytes();
    let year = match rest.first()? {
        sign @ (b'+' | b'-') => {
            rest = &rest[1..];
            let year = take_number(&mut rest, 6)?;
            if *sign == b'-' { -year } else { year }
        }
        _ => take_number(&mut rest, 4)?,
    };
    let month = take_after(&mut rest, b"-", 2)?;
    let day = take_after(&mut rest, b"-", 2)?;
    let hour = take_after(&mut rest, b"Tt ", 2)?;
    let minute = take_after(&mut rest, b":", 2)?;
    let second = take_after(&mut rest, b":", 2)?;
    let us = take_fraction(&mut rest)?;
    let offset_minutes = take_offset(&mut rest)?;
    if !(1..=12).contains(&month) || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let day_number = day_of_civil(year, month as u32, day as u32);
    if civil_of_day(day_number) != (year, month as u32, day as u32) {
        return None;
    }
    let seconds = (hour * 60 + minute - offset_minutes) * 60 + second;
    let total = day_number as i128 * US_PER_DAY as i128 + seconds as i128 * 1_000_000 + us as i128;
    i64::try_from(total).ok()
}

fn take_number(rest: &mut &[u8], digits: usize) -> Option<i64> {
    let (number, after) = rest.split_at_checked(digits)?;
    *rest = after;
    number.iter().try_fold(0, |value, byte| {
        byte.is_ascii_digit().then(|| value * 10 + (byte - b'0') as i64)
    })
}

fn take_after(rest: &mut &[u8], before: &[u8], digits: usize) -> Option<i64> {
    let (first, after) = rest.split_first()?;
    *rest = after;
    if before.contains(first) {
        take_number(rest, digits)
    } else {
        None
    }
}

fn take_fraction(rest: &mut &[u8]) -> Option<i64> {
    let Some(after) = rest.strip_prefix(b".") else {
        return Some(0);
    };
    let digits = after.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (fraction, after) = after.split_at(digits);
    *rest = after;
    let (kept, finer) = fraction.split_at(digits.min(6));
    if digits == 0 || finer.iter().any(|byte| *byte != b'0') {
        return None;
    }
    let value = kept.iter().fold(0, |value, byte| value * 10 + (byte - b'0') as i64);
    Some(value * 10i64.pow(6 - kept.len() as u32))
}

fn take_offset(rest: &mut &[u8]) -> Option<i64> {
    let (sign, after) = rest.split_first()?;
    *rest = after;
    let minutes = match sign {
        b'Z' | b'z' => 0,
        b'+' | b'-' => {
            let hours = take_number(rest, 2)?;
            let minutes = take_after(rest, b":", 2)?;
            if hours > 23 || minutes > 59 {
                return None;
            }
            let total = hours * 60 + minutes;
            if *sign == b'-' { -total } else { total }
        }
        _ => return None,
    };
    rest.is_empty().then_some(minutes)
}
