//! Media types: the format of a request's body, and that of its answer.

use std::cmp::Ordering;

use axum::http::{HeaderMap, HeaderValue, header};
use reprise_api::{CBOR_MEDIA_TYPE, CBOR_SEQUENCE_MEDIA_TYPE, NDJSON_MEDIA_TYPE, ProblemKind};
use reprise_codec::Format;

use crate::{pages::is_of_browser, refusal::Refusal};

/// Returns the format of a request's body. A program that does not say means JSON. A browser's page always says, and the types that it can
/// send to another site unasked (forms, plain text) are none of these.
pub fn format_of_body(headers: &HeaderMap) -> Result<Format, Refusal> {
    let mut types = headers.get_all(header::CONTENT_TYPE).iter();
    let format = match (types.next(), types.next()) {
        (None, _) if !is_of_browser(headers) => Some(Format::Json),
        (Some(value), None) => of_media_type(value),
        _ => None,
    };
    format.ok_or_else(|| {
        Refusal::new(
            ProblemKind::UnsupportedMediaType,
            "send a body as application/json, application/cbor, application/x-ndjson or application/cbor-seq, and name the type in the \
             header Content-Type; with curl: -H 'content-type: application/json'",
        )
    })
}

fn of_media_type(value: &HeaderValue) -> Option<Format> {
    let mut parts = value.to_str().ok()?.split(';').map(str::trim);
    let name = parts.next().unwrap_or_default();
    let is_utf8 = |parameter: &str| match parameter.split_once('=') {
        Some((name, charset)) if name.eq_ignore_ascii_case("charset") => {
            charset.trim_matches('"').eq_ignore_ascii_case("utf-8")
        }
        _ => true,
    };
    let is_one_of = |names: [&str; 2]| names.iter().any(|known| name.eq_ignore_ascii_case(known));
    if is_one_of([CBOR_MEDIA_TYPE, CBOR_SEQUENCE_MEDIA_TYPE]) {
        return Some(Format::Cbor);
    }
    (is_one_of(["application/json", NDJSON_MEDIA_TYPE]) && parts.all(is_utf8)).then_some(Format::Json)
}

/// Returns the format of the answer: the one that weighs most in `Accept`, else that of the body.
pub fn format_of_answer(headers: &HeaderMap, body: Format) -> Format {
    if !headers.contains_key(header::ACCEPT) {
        return body;
    }
    let json = MediaPreference::of(headers, &["application/json", NDJSON_MEDIA_TYPE]);
    let cbor = MediaPreference::of(headers, &[CBOR_MEDIA_TYPE, CBOR_SEQUENCE_MEDIA_TYPE]);
    match cbor.cmp(&json) {
        _ if cbor.is_none() => Format::Json,
        Ordering::Greater => Format::Cbor,
        Ordering::Less => Format::Json,
        Ordering::Equal => body,
    }
}

/// A client's preference for a media type, by its header `Accept` (RFC 9110, section 12.5.1). The weight in thousandths comes first, then
/// how exactly the client names the type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct MediaPreference {
    weight: u16,
    exactness: u8,
}

impl MediaPreference {
    /// Finds the liking for a type of one of these names. The most exact range of the header counts.
    pub fn of(headers: &HeaderMap, names: &[&str]) -> Self {
        let mut found = Self::default();
        for value in headers.get_all(header::ACCEPT) {
            for range in value.as_bytes().split(|byte| *byte == b',') {
                let mut parts = range.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
                let exactness = exactness_of(parts.next().unwrap_or_default(), names);
                let weight = parts.find_map(weight_of).unwrap_or(WEIGHT_MAX);
                let own = (exactness, weight);
                if exactness > 0 && own > (found.exactness, found.weight) {
                    (found.exactness, found.weight) = own;
                }
            }
        }
        found
    }

    /// True if the client refuses the type.
    pub fn is_none(self) -> bool {
        self.weight == 0
    }
}

/// The weight of a range that names none.
const WEIGHT_MAX: u16 = 1000;

/// Rank of a range: 3 names the media type, 2 its first part, 1 anything, 0 another type.
fn exactness_of(range: &[u8], names: &[&str]) -> u8 {
    let is_type = |name: &&str| {
        let ty = name.split('/').next().unwrap_or_default();
        range
            .strip_suffix(b"/*")
            .is_some_and(|own| own.eq_ignore_ascii_case(ty.as_bytes()))
    };
    match range {
        b"*/*" => 1,
        _ if names.iter().any(|name| range.eq_ignore_ascii_case(name.as_bytes())) => 3,
        _ if names.iter().any(is_type) => 2,
        _ => 0,
    }
}

/// The thousandths of `q=0.5`. None: it is another parameter. A malformed weight counts as zero.
fn weight_of(parameter: &[u8]) -> Option<u16> {
    let value = parameter
        .strip_prefix(b"q=")
        .or_else(|| parameter.strip_prefix(b"Q="))?;
    let (whole, fraction) = match value {
        [whole, b'.', fraction @ ..] if fraction.len() <= 3 => (*whole, fraction),
        [whole] => (*whole, &[][..]),
        _ => return Some(0),
    };
    if !matches!(whole, b'0' | b'1') || !fraction.iter().all(u8::is_ascii_digit) {
        return Some(0);
    }
    let digits = fraction.iter().chain(b"000").take(3);
    let thousandths = digits.fold(u16::from(whole - b'0'), |sum, digit| sum * 10 + u16::from(digit - b'0'));
    Some(thousandths.min(WEIGHT_MAX))
}

/// Refuses a body in a coding that the server does not decode. Otherwise it would misread the body.
pub fn check_codings(headers: &HeaderMap) -> Result<(), Refusal> {
    let is_plain =
        |value: &HeaderValue, known: &str| value.as_bytes().trim_ascii().eq_ignore_ascii_case(known.as_bytes());
    if !headers
        .get_all(header::CONTENT_ENCODING)
        .iter()
        .all(|value| is_plain(value, "identity"))
    {
        let detail = "the server decodes no Content-Encoding: send the body without it";
        return Err(Refusal::new(ProblemKind::UnsupportedMediaType, detail));
    }
    let mut transfers = headers.get_all(header::TRANSFER_ENCODING).iter();
    if !transfers.all(|value| is_plain(value, "chunked")) {
        let mut refusal =
            Refusal::malformed("the server reads no transfer coding but chunked; send the body without another");
        refusal.problem.status = 501;
        return Err(refusal);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepts(values: &[&str]) -> HeaderMap {
        let pairs = values
            .iter()
            .map(|value| (header::ACCEPT, value.parse().expect("a value")));
        let mut headers = HeaderMap::new();
        pairs.for_each(|(name, value)| _ = headers.append(name, value));
        headers
    }

    #[test]
    fn the_answer_has_the_format_that_weighs_most() {
        use Format::{Cbor, Json};
        let cases: &[(&[&str], Format, Format)] = &[
            (&[], Json, Cbor),
            (&["*/*"], Json, Cbor),
            (&["application/*"], Json, Cbor),
            (&["application/json"], Json, Json),
            (&["application/cbor"], Cbor, Cbor),
            (&["APPLICATION/CBOR"], Cbor, Cbor),
            (&["application/cbor-seq"], Cbor, Cbor),
            (&["application/json, application/cbor;q=0.1"], Json, Json),
            (&["application/cbor;q=0.1, application/json;q=0.9"], Json, Json),
            (&["application/json;q=0.25", "application/cbor;q=0.3"], Cbor, Cbor),
            (&["application/json, application/cbor"], Json, Cbor),
            (&["*/*;q=0.5, application/cbor;q=0"], Json, Json),
            (&["application/json;q=0, */*"], Cbor, Cbor),
            (&["application/cbor;q=0"], Json, Json),
            (&["application/cbor;q=0.000"], Json, Json),
            (&["text/html, application/cbor;q=0.9"], Cbor, Cbor),
            (&["text/html"], Json, Json),
            (&["application/json, */*"], Json, Json),
            (&["application/cbor, */*"], Cbor, Cbor),
            (&["application/cbor; q=1.0 ,application/json; q=1"], Json, Cbor),
            (&["application/cbor;q=high, application/json;q=0.1"], Json, Json),
        ];
        for (values, of_json, of_cbor) in cases {
            let headers = accepts(values);
            let found = [Json, Cbor].map(|body| format_of_answer(&headers, body));
            assert_eq!(found, [*of_json, *of_cbor], "{values:?}");
        }
    }

    #[test]
    fn a_body_in_another_coding_is_refused() {
        let status = |name, value: &str| {
            let headers = HeaderMap::from_iter([(name, value.parse().expect("a value"))]);
            check_codings(&headers).err().map(|refusal| refusal.problem.status)
        };
        for coding in ["gzip", "br", "identity, gzip", "x", ""] {
            assert_eq!(status(header::CONTENT_ENCODING, coding), Some(415), "{coding}");
        }
        for coding in ["gzip, chunked", "gzip", "identity", "chunked, chunked"] {
            assert_eq!(status(header::TRANSFER_ENCODING, coding), Some(501), "{coding}");
        }
        assert_eq!(status(header::CONTENT_ENCODING, "Identity"), None);
        assert_eq!(status(header::TRANSFER_ENCODING, "Chunked"), None);
        assert_eq!(
            check_codings(&HeaderMap::new())
                .err()
                .map(|refusal| refusal.problem.status),
            None
        );
    }
}
