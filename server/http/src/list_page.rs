//! Pages of lists that lie in memory. Their items are written one by one, so that a page ends where its text is long enough.

use axum::{
    body::Body,
    http::{HeaderValue, header},
    response::Response,
};
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;

use crate::{
    limits::{LIST_LIMIT_MAX, LIST_PAGE_TEXT_BYTES_MAX},
    refusal::Refusal,
};

/// Query of a list: the part that the client asks for.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ListParams {
    /// Items at most, 1 to 1000; 1000 unless given. A page ends after 4 MiB of text, too.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
    /// `next_cursor` of the page before.
    pub cursor: Option<String>,
}

impl ListParams {
    /// Items of a page at most.
    pub fn limit(&self) -> Result<usize, Refusal> {
        let limit = self.limit.unwrap_or(LIST_LIMIT_MAX);
        match (1..=LIST_LIMIT_MAX).contains(&limit) {
            true => Ok(limit),
            false => Err(Refusal::malformed(format!(
                "limit must be a number from 1 to {LIST_LIMIT_MAX}"
            ))),
        }
    }
}

/// Refusal of a cursor that no page of the list returned.
pub fn bad_cursor() -> Refusal {
    Refusal::malformed("no page returned this cursor; begin again without it")
}

/// Writes the object of a page: a member `name` with the items of the first keys, and `next_cursor`, the key of the item behind them.
pub fn page<K: ToString, T: Serialize>(
    name: &str,
    limit: usize,
    keys: impl Iterator<Item = K>,
    item: impl Fn(K) -> T,
) -> Vec<u8> {
    let mut out = format!("{{\"{name}\":[").into_bytes();
    let mut next = None;
    for (at, key) in keys.enumerate() {
        if at == limit || out.len() > LIST_PAGE_TEXT_BYTES_MAX {
            next = Some(key.to_string());
            break;
        }
        if at > 0 {
            out.push(b',');
        }
        serde_json::to_writer(&mut out, &item(key)).expect("memory takes every item");
    }
    out.extend_from_slice(b"],\"next_cursor\":");
    serde_json::to_writer(&mut out, &next).expect("memory takes every cursor");
    out.push(b'}');
    out
}

/// The answer with a document of JSON.
pub fn json_answer(text: impl Into<Body>) -> Response {
    let mut response = Response::new(text.into());
    let media_type = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, media_type);
    response
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(limit: usize, from: usize, item_bytes: usize) -> Value {
        let text = page("items", limit, from..9, |key| {
            format!("{key}{}", "x".repeat(item_bytes))
        });
        serde_json::from_slice(&text).expect("JSON")
    }

    #[test]
    fn a_page_ends_by_its_limit_and_by_its_bytes() {
        assert_eq!(read(3, 0, 0), json!({"items": ["0", "1", "2"], "next_cursor": "3"}));
        assert_eq!(read(9, 7, 0), json!({"items": ["7", "8"], "next_cursor": null}));
        assert_eq!(read(2, 7, 0)["next_cursor"], Value::Null);
        assert_eq!(read(2, 9, 0), json!({"items": [], "next_cursor": null}));
        let long = read(9, 0, LIST_PAGE_TEXT_BYTES_MAX / 3);
        assert_eq!(
            (long["items"].as_array().map(Vec::len), &long["next_cursor"]),
            (Some(3), &json!("3"))
        );
        let one = read(9, 8, LIST_PAGE_TEXT_BYTES_MAX * 2);
        assert_eq!(
            one["items"].as_array().map(Vec::len),
            Some(1),
            "a page has one item at least"
        );
    }

    #[test]
    fn a_limit_is_within_its_bounds() {
        let limit = |limit| ListParams { limit, cursor: None }.limit().ok();
        assert_eq!(
            [limit(None), limit(Some(1)), limit(Some(1000))],
            [Some(1000), Some(1), Some(1000)]
        );
        assert_eq!([limit(Some(0)), limit(Some(1001))], [None, None]);
    }
}
