//! The period in which a certificate holds, read from its DER form (RFC 5280, section 4.1.2.5).

use std::time::{SystemTime, UNIX_EPOCH};

use rustls::pki_types::CertificateDer;

const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const DAY_S: i64 = 86_400;

/// The period in which all certificates of a chain hold, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// The latest beginning.
    pub from_s: i64,
    /// The earliest end.
    pub until_s: i64,
}

impl Validity {
    /// Returns why the chain does not hold now, in words; None if it does.
    pub fn refusal(&self) -> Option<String> {
        self.refusal_at(now_s())
    }

    /// Returns how long the chain holds from now on; below zero after its end.
    pub fn left_s(&self) -> i64 {
        self.until_s - now_s()
    }

    fn refusal_at(&self, now_s: i64) -> Option<String> {
        if now_s < self.from_s {
            return Some(format!("is not valid yet: it begins in {}", span(self.from_s - now_s)));
        }
        (now_s > self.until_s).then(|| format!("is expired: it ended {} ago", span(now_s - self.until_s)))
    }
}

fn now_s() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs() as i64)
}

fn span(seconds: i64) -> String {
    match seconds {
        0..3_600 => format!("{} min", seconds / 60),
        3_600..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / DAY_S),
    }
}

/// Reads the period of a chain. None if one of its certificates has none that can be read.
pub(crate) fn of_chain(chain: &[CertificateDer<'_>]) -> Option<Validity> {
    let all: Option<Vec<_>> = chain.iter().map(|certificate| read(certificate)).collect();
    all?.into_iter().reduce(|one, other| Validity {
        from_s: one.from_s.max(other.from_s),
        until_s: one.until_s.min(other.until_s),
    })
}

/// An element of DER: its tag, its content, and the bytes behind it.
struct Element<'a> {
    tag: u8,
    content: &'a [u8],
    rest: &'a [u8],
}

fn element(bytes: &[u8]) -> Option<Element<'_>> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x84 => {
            let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            let length = digits.iter().fold(0, |sum, digit| sum << 8 | usize::from(*digit));
            (length, rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some(Element { tag, content, rest })
}

fn read(certificate: &[u8]) -> Option<Validity> {
    let to_be_signed = element(element(certificate)?.content)?;
    let mut next = element(to_be_signed.content)?;
    if next.tag == VERSION {
        next = element(next.rest)?;
    }
    // The fields from the serial number over the algorithm and the issuer to the period are skipped.
    for _ in 0..3 {
        next = element(next.rest)?;
    }
    let from = element(next.content)?;
    let until = element(from.rest)?;
    Some(Validity {
        from_s: time(&from)?,
        until_s: time(&until)?,
    })
}

/// Reads `YYMMDDHHMMSSZ` or `YYYYMMDDHHMMSSZ`.
fn time(element: &Element<'_>) -> Option<i64> {
    let text = std::str::from_utf8(element.content).ok()?.strip_suffix('Z')?;
    if !text.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let (year, rest) = match (element.tag, text.len()) {
        (UTC_TIME, 12) => {
            let (year, rest) = text.split_at(2);
            let year: i64 = year.parse().ok()?;
            (year + if year < 50 { 2_000 } else { 1_900 }, rest)
        }
        (GENERALIZED_TIME, 14) => {
            let (year, rest) = text.split_at(4);
            (year.parse().ok()?, rest)
        }
        _ => return None,
    };
    let part = |at: usize| rest.get(at..at + 2)?.parse::<i64>().ok();
    let seconds = part(4)? * 3_600 + part(6)? * 60 + part(8)?;
    Some(days(year, part(0)?, part(2)?) * DAY_S + seconds)
}

/// Returns the days from 1970 to a date of the Gregorian calendar, whose year begins in March here.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(tag: u8, text: &str) -> Option<i64> {
        time(&Element {
            tag,
            content: text.as_bytes(),
            rest: &[],
        })
    }

    #[test]
    fn both_forms_of_a_time_are_read_and_others_are_not() {
        for (tag, text, expected) in [
            (UTC_TIME, "700101000000Z", Some(0)),
            (UTC_TIME, "000229120000Z", Some(951_825_600)),
            (UTC_TIME, "491231235959Z", Some(2_524_607_999)),
            (UTC_TIME, "500101000000Z", Some(-631_152_000)),
            (GENERALIZED_TIME, "20500101000000Z", Some(2_524_608_000)),
            (GENERALIZED_TIME, "99991231235959Z", Some(253_402_300_799)),
            (UTC_TIME, "20500101000000Z", None),
            (UTC_TIME, "7001010000Z", None),
            (UTC_TIME, "70010100000+Z", None),
            (GENERALIZED_TIME, "205001010000\u{e9}Z", None),
        ] {
            assert_eq!(seconds(tag, text), expected, "{text}");
        }
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let valid = [
            &[0x30, 0x82, 0x01][..],
            &[0x30, 0x84, 0xff, 0xff, 0xff, 0xff],
            &[0x30, 0x80],
        ];
        for bytes in valid.into_iter().chain([&[][..], &[0x30], &[0x30, 0x02, 0x30, 0x00]]) {
            assert_eq!(read(bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn refusal_tells_which_end_is_missed_and_by_how_much() {
        let validity = Validity {
            from_s: 10 * DAY_S,
            until_s: 20 * DAY_S,
        };
        let refusal = |now_s| validity.refusal_at(now_s).unwrap_or_default();
        assert_eq!(refusal(9 * DAY_S + 3_600), "is not valid yet: it begins in 23 h");
        assert_eq!(
            (refusal(10 * DAY_S), refusal(20 * DAY_S)),
            (String::new(), String::new())
        );
        assert_eq!(refusal(20 * DAY_S + 61), "is expired: it ended 1 min ago");
        assert_eq!(refusal(50 * DAY_S), "is expired: it ended 30 days ago");
    }
}
