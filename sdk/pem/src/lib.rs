//! Certificates and private keys as PEM, with mistakes in words.
//! Owns: nothing.
//! Does not: read files, check a certificate's validity, know a connection.
//! Invariants: an error says what is wrong in text, and never shows a key.
//! Called by: `net-tls` (a server's own), `client` (trusted certificates, and its own).
#![forbid(unsafe_code)]
#![deny(missing_docs)]

use rustls::pki_types::{
    CertificateDer, PrivateKeyDer,
    pem::{self, PemObject},
};

/// The certificates of a text, in its order; there may be none.
///
/// # Errors
/// Says why the text is no PEM.
pub fn certificates(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    read.map_err(|error| words(&error))
}

/// Returns the first private key of a text. None if it holds none.
///
/// # Errors
/// Says why the text is no PEM.
pub fn private_key(text: &[u8]) -> Result<Option<PrivateKeyDer<'static>>, String> {
    match PrivateKeyDer::from_pem_slice(text) {
        Ok(key) => Ok(Some(key)),
        Err(pem::Error::NoItemsFound) => Ok(None),
        Err(error) => Err(words(&error)),
    }
}

/// A mistake in words: the library shows lines of text as numbers.
fn words(error: &pem::Error) -> String {
    let text = |line: &[u8]| String::from_utf8_lossy(line).trim_end().escape_debug().to_string();
    match error {
        pem::Error::MissingSectionEnd { end_marker } => {
            format!("the line `-----END {}-----` is missing", text(end_marker))
        }
        pem::Error::IllegalSectionStart { line } => format!("`{}` begins no section", text(line)),
        pem::Error::Base64Decode(what) => format!("a section is not base64 ({what})"),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_said_in_words() {
        assert!(certificates(b"nothing").is_ok_and(|found| found.is_empty()));
        assert!(private_key(b"nothing").is_ok_and(|found| found.is_none()));
        let open = b"-----BEGIN CERTIFICATE-----\nAAAA\n";
        assert_eq!(
            certificates(open),
            Err("the line `-----END CERTIFICATE-----` is missing".to_owned())
        );
        let bad = b"-----BEGIN PRIVATE KEY-----\n!\n-----END PRIVATE KEY-----\n";
        assert!(private_key(bad).is_err_and(|what| what.starts_with("a section is not base64")));
    }
}
