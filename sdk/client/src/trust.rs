//! Whose certificates a client takes for a server's.

use std::{error::Error, io, sync::Arc};

use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

/// A certificate and its key, as PEM, for a server that asks for one.
#[derive(Clone, Copy)]
pub struct ClientCertificate<'a> {
    /// The certificate, followed by the certificates that sign it.
    pub chain: &'a [u8],
    /// The private key.
    pub key: &'a [u8],
}

/// The TLS configuration of a client. Without `is_encrypted` it reads none of the system's certificates.
/// Err: why `ca_cert` (PEM), the certificate or the system's certificates are not usable.
pub fn tls_config(
    is_encrypted: bool,
    ca_cert: Option<&[u8]>,
    certificate: Option<ClientCertificate<'_>>,
) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    if is_encrypted {
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
    let builder = builder.with_root_certificates(roots);
    let Some(ClientCertificate { chain, key }) = certificate else {
        return Ok(builder.with_no_client_auth());
    };
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(chain).collect();
    let chain = chain.map_err(|error| format!("the client's certificate is no PEM: {error}"))?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| format!("the client's key is no PEM: {error}"))?;
    let config = builder.with_client_auth_cert(chain, key);
    config.map_err(|error| format!("the client's certificate: {error}"))
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
