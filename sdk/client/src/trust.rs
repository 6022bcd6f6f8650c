//! Whose certificates a client takes for a server's.

use std::{error::Error, io, sync::Arc};

use reqwest::Url;
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject},
};

/// What a connection needs to be encrypted. Without `https` nothing of the system is read.
/// Err: why `ca_cert` (PEM) or the system's certificates are of no use.
pub(crate) fn config(url: &Url, ca_cert: Option<&[u8]>) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    if url.scheme() == "https" {
        let (own, system) = (own_roots(ca_cert)?, rustls_native_certs::load_native_certs());
        roots.add_parsable_certificates(system.certs);
        for root in own {
            roots
                .add(root)
                .map_err(|error| format!("a certificate to trust in is none: {error}"))?;
        }
        if roots.is_empty() {
            return Err("no certificate is trusted here: install the system's (ca-certificates), or name the one that signed the server's".into());
        }
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| error.to_string())?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

fn own_roots(ca_cert: Option<&[u8]>) -> Result<Vec<CertificateDer<'static>>, String> {
    let Some(pem) = ca_cert else {
        return Ok(Vec::new());
    };
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match read {
        Ok(roots) if !roots.is_empty() => Ok(roots),
        Ok(_) => Err("the certificates to trust in are none (-----BEGIN CERTIFICATE-----)".into()),
        Err(error) => Err(format!("the certificates to trust in are no PEM: {error}")),
    }
}

/// True where it was the server's certificate that ended the connection.
pub(crate) fn is_refused(error: &(dyn Error + 'static)) -> bool {
    let is_own = matches!(error.downcast_ref(), Some(rustls::Error::InvalidCertificate(_)));
    let carried = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    let carried = carried.map(|inner| inner as &(dyn Error + 'static));
    is_own || [carried, error.source()].into_iter().flatten().any(is_refused)
}
