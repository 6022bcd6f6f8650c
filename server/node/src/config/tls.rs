//! The certificate that this server shows, and whether it shows one.

use std::sync::Arc;

use anyhow::Context;
use reprise_net_tls::Identity;

use super::setting::settings;
use crate::output::{VerbFailure, usage};

settings! {
    /// The certificate that this server shows.
    TlsSettings from TlsArgs under "TLS" {
        /// PEM file with this server's certificate, followed by its chain. Clients and standbys then connect with TLS. It needs tls-key
        /// [default: none]
        tls_cert: std::path::PathBuf {
            env: "REPRISE_TLS_CERT",
            takes: "FILE",
            marks: [where_said],
        }
        /// PEM file with the private key of the certificate. On SIGHUP the server reads both files again [default: none]
        tls_key: std::path::PathBuf {
            env: "REPRISE_TLS_KEY",
            takes: "FILE",
            marks: [where_said],
        }
    }
}

impl TlsSettings {
    /// Both or none.
    pub fn check(&self) -> Result<(), VerbFailure> {
        match (&self.tls_cert.value, &self.tls_key.value) {
            (Some(_), None) => Err(usage("tls-cert needs tls-key, the certificate's private key")),
            (None, Some(_)) => Err(usage("tls-key needs tls-cert, the key's certificate")),
            _ => Ok(()),
        }
    }

    /// Returns the certificate that the server shows; none without one.
    pub fn identity(&self) -> Result<Option<Arc<Identity>>, VerbFailure> {
        match (&self.tls_cert.value, &self.tls_key.value) {
            (Some(certificate), Some(key)) => {
                let read = Identity::read(certificate, key).context("TLS")?;
                Ok(Some(Arc::new(read)))
            }
            _ => Ok(None),
        }
    }
}
