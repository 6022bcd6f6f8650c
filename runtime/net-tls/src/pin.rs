//! A check of the peer's certificate by its expected SHA-256, whatever its issuer and name are.

use std::sync::Arc;

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, ring, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

#[derive(Debug)]
struct PinnedVerifier {
    fingerprint: [u8; 32],
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for PinnedVerifier {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _signers: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match Sha256::digest(shown)[..].ct_eq(&self.fingerprint).into() {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _shown: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.3 alone is spoken here".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, shown, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Returns the configuration of a client that accepts this certificate alone.
pub(crate) fn pinned(fingerprint: [u8; 32]) -> Result<Arc<ClientConfig>, Error> {
    let provider = Arc::new(ring::default_provider());
    let verifier = Arc::new(PinnedVerifier {
        fingerprint,
        provider: provider.clone(),
    });
    let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&rustls::version::TLS13])?;
    let config = builder.dangerous().with_custom_certificate_verifier(verifier);
    Ok(Arc::new(config.with_no_client_auth()))
}
