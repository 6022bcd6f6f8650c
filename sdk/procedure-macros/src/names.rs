//! Names: from Rust's to the database's, and the check that they are allowed.

use proc_macro2::Span;
use syn::{Error, Ident, Result};

/// The identifier as text, without `r#`.
pub fn text_of(ident: &Ident) -> String {
    let text = ident.to_string();
    text.strip_prefix("r#").map(str::to_owned).unwrap_or(text)
}

/// The text of a doc comment, without the space that follows each `///`.
pub fn docs_of(attributes: &[syn::Attribute]) -> String {
    let lines = attributes.iter().filter_map(|attribute| match &attribute.meta {
        syn::Meta::NameValue(meta) if meta.path.is_ident("doc") => match &meta.value {
            syn::Expr::Lit(syn::ExprLit {
                lit: syn::Lit::Str(line),
                ..
            }) => Some(line.value()),
            _ => None,
        },
        _ => None,
    });
    let lines: Vec<_> = lines
        .map(|line| line.strip_prefix(' ').unwrap_or(&line).to_owned())
        .collect();
    lines.join("\n").trim().to_owned()
}

/// `OverLimit` becomes `over_limit`, `HTTPCode` becomes `http_code`.
pub fn snake_case(name: &str) -> String {
    let chars: Vec<char> = name.chars().collect();
    let mut out = String::new();
    for (i, c) in chars.iter().enumerate() {
        let starts_word = c.is_uppercase()
            && i > 0
            && (!chars[i - 1].is_uppercase() || chars.get(i + 1).is_some_and(|next| next.is_lowercase()));
        if starts_word && !out.ends_with('_') {
            out.push('_');
        }
        out.extend(c.to_lowercase());
    }
    out
}

/// Refuses names that a description can't hold.
pub fn checked(name: String, span: Span) -> Result<String> {
    let valid = name.len() <= 63
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    if valid {
        return Ok(name);
    }
    Err(Error::new(
        span,
        format!("`{name}` is not a valid name: it must match [a-z][a-z0-9_]{{0,62}}"),
    ))
}

/// The checked text of an identifier.
pub fn name_of(ident: &Ident) -> Result<String> {
    checked(text_of(ident), ident.span())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_snake_case() {
        for (rust, ours) in [
            ("OverLimit", "over_limit"),
            ("Vote", "vote"),
            ("HTTPCode", "http_code"),
            ("V2Row", "v2_row"),
            ("already_snake", "already_snake"),
        ] {
            assert_eq!(snake_case(rust), ours);
        }
    }

    #[test]
    fn other_names_are_refused() {
        for name in ["", "1a", "_a", "é", "A", &"a".repeat(64)] {
            assert!(checked(name.into(), Span::call_site()).is_err(), "{name}");
        }
    }
}
