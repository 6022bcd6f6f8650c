//! Rows as comma-separated values (RFC 4180): a line of names, then a line a row. Null is an empty field, an empty text is `""`.

use serde_json::Value;

/// Appends one line.
fn push_line<'v>(fields: impl Iterator<Item = &'v Value>, out: &mut Vec<u8>) {
    for (at, field) in fields.enumerate() {
        if at > 0 {
            out.push(b',');
        }
        match field {
            Value::Null => {}
            Value::String(text) => push_text(text, out),
            other => out.extend_from_slice(other.to_string().as_bytes()),
        }
    }
    out.extend_from_slice(b"\r\n");
}

fn push_text(text: &str, out: &mut Vec<u8>) {
    let is_plain = !text.is_empty() && !text.bytes().any(|byte| matches!(byte, b'"' | b',' | b'\r' | b'\n'));
    if is_plain {
        return out.extend_from_slice(text.as_bytes());
    }
    out.push(b'"');
    out.extend_from_slice(text.replace('"', "\"\"").as_bytes());
    out.push(b'"');
}

/// The names of the columns, and each row's values in their order. `rows` are objects of these members.
pub fn write<'r>(names: &[&str], rows: impl Iterator<Item = &'r str>) -> Result<Vec<u8>, serde_json::Error> {
    let mut out = Vec::new();
    let heads: Vec<_> = names.iter().map(|name| Value::from(*name)).collect();
    push_line(heads.iter(), &mut out);
    for row in rows {
        let members: serde_json::Map<String, Value> = serde_json::from_str(row)?;
        push_line(
            names.iter().map(|name| members.get(*name).unwrap_or(&Value::Null)),
            &mut out,
        );
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_quoted_where_they_must_be() {
        let rows = [
            r#"{"a":"1","b":"x,\"y\""}"#,
            r#"{"a":null,"b":""}"#,
            r#"{"a":2.5,"b":"two\nlines"}"#,
        ];
        let text = write(&["a", "b"], rows.into_iter()).expect("objects");
        let text = String::from_utf8(text).expect("UTF-8");
        assert_eq!(text, "a,b\r\n1,\"x,\"\"y\"\"\"\r\n,\"\"\r\n2.5,\"two\nlines\"\r\n");
    }
}
