//! Certificates that a client accepts from a server.

use std::{error::Error, io, sync::Arc};

use reprise_pem::{certificates, private_key};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_name,
    },
    crypto::ring,
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::ParsedCertificate,
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
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| error.to_string())?;
    let builder = match is_encrypted {
        false => builder.with_root_certificates(RootCertStore::empty()),
        true => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Trust::of(ca_cert)?)),
    };
    let Some(ClientCertificate { chain, key }) = certificate else {
        return Ok(builder.with_no_client_auth());
    };
    let chain = certificates(chain).map_err(|what| format!("the client's certificate is not PEM: {what}"))?;
    let key = private_key(key).map_err(|what| format!("the client's key is not PEM: {what}"))?;
    let key = key.ok_or("the file has no key (-----BEGIN PRIVATE KEY-----)")?;
    let config = builder.with_client_auth_cert(chain, key);
    config.map_err(|error| format!("the client's certificate: {error}"))
}

fn own_roots(ca_cert: Option<&[u8]>) -> Result<Vec<CertificateDer<'static>>, String> {
    let Some(pem) = ca_cert else {
        return Ok(Vec::new());
    };
    match certificates(pem) {
        Ok(roots) if !roots.is_empty() => Ok(roots),
        Ok(_) => Err("the file of CA certificates has no certificate (-----BEGIN CERTIFICATE-----)".into()),
        Err(what) => Err(format!("the CA certificates are not PEM: {what}")),
    }
}

/// Trusted certificates: certificates that sign a server's, and certificates that the user names.
#[derive(Debug)]
struct Trust {
    signed: Arc<WebPkiServerVerifier>,
    /// The certificates that the user named.
    named: Vec<CertificateDer<'static>>,
}

impl Trust {
    fn of(ca_cert: Option<&[u8]>) -> Result<Self, String> {
        let (named, system) = (own_roots(ca_cert)?, rustls_native_certs::load_native_certs());
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(system.certs);
        for root in &named {
            roots
                .add(root.clone())
                .map_err(|error| format!("a CA certificate is not a certificate: {error}"))?;
        }
        if roots.is_empty() {
            return Err("this machine trusts no certificate: install the package ca-certificates, or name the certificate that signed the \
             server's".into());
        }
        let provider = Arc::new(ring::default_provider());
        let signed = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
        let signed = signed.map_err(|error| format!("the CA certificates: {error}"))?;
        Ok(Self { signed, named })
    }
}

/// The only thing that is wrong with a certificate is that it may also sign others: `openssl req -x509` makes such ones. The library
/// checks this after the certificate's period, and hands it on by its name alone.
fn signs_others(error: &rustls::Error) -> bool {
    const NAME: &str = "CaUsedAsEndEntity";
    match error {
        rustls::Error::InvalidCertificate(CertificateError::Other(other)) => other.0.to_string() == NAME,
        _ => false,
    }
}

impl ServerCertVerifier for Trust {
    /// Accepts a certificate that a trusted one signed, and a certificate that the user named itself, for its names.
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verified = self
            .signed
            .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verified {
            Err(error) if signs_others(&error) && self.named.iter().any(|named| named == end_entity) => {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.signed.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.signed.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.signed.supported_verify_schemes()
    }
}

/// True if the server's certificate ended the connection.
pub(crate) fn is_refused(error: &(dyn Error + 'static)) -> bool {
    let is_own = matches!(error.downcast_ref(), Some(rustls::Error::InvalidCertificate(_)));
    let carried = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    let carried = carried.map(|inner| inner as &(dyn Error + 'static));
    is_own || [carried, error.source()].into_iter().flatten().any(is_refused)
}
