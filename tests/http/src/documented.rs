//! Compares every answer to a test with the API's description.

use std::{path::PathBuf, sync::LazyLock};

use reqwest::Method;
use serde_json::Value;

static DESCRIPTION: LazyLock<Value> = LazyLock::new(|| {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../sdk/api/openapi.json");
    let text = std::fs::read_to_string(path).expect("the golden file");
    serde_json::from_str(&text).expect("JSON")
});

/// Returns whether a path of the description is the path of a request.
fn is_of(template: &str, path: &str) -> bool {
    let (mut parts, mut own) = (template.split('/'), path.split('/'));
    loop {
        match (parts.next(), own.next()) {
            (None, None) => return true,
            (Some(part), Some(own)) if part == own || part.starts_with('{') && !own.is_empty() => {}
            _ => return false,
        }
    }
}

/// Panics if an operation gave a status that its description lacks. Passes over requests that are no operation.
#[track_caller]
pub fn check(method: &Method, path: &str, status: u16) {
    let path = path.split('?').next().unwrap_or_default();
    let word = match *method {
        Method::HEAD => "get".to_owned(),
        _ => method.as_str().to_ascii_lowercase(),
    };
    let paths = DESCRIPTION["paths"].as_object().expect("paths");
    let known = paths
        .get_key_value(path)
        .or_else(|| paths.iter().find(|(template, _)| is_of(template, path)));
    let Some((template, item)) = known else { return };
    let Some(responses) = item.get(&word).map(|operation| &operation["responses"]) else {
        return;
    };
    assert!(
        responses.get(status.to_string()).is_some(),
        "{method} {template} answered {status}, which the description does not have"
    );
}
