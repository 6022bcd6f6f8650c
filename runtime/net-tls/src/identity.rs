//! The certificate and key of a server, from two files; they may be read anew.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use arc_swap::ArcSwap;
use reprise_pem::{certificates, private_key};
use rustls::{ServerConfig, crypto::ring};
use sha2::{Digest, Sha256};

use crate::validity::{Validity, of_chain};

/// No such file is longer.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Why files are no certificate and key.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// One of them can't be read.
    #[error("read {path}: {error}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of reading it.
        error: io::Error,
    },
    /// One of them holds something else.
    #[error("{path}: {what}")]
    Wrong {
        /// The file.
        path: PathBuf,
        /// The fault in it.
        what: String,
    },
    /// The certificate, or one that signs it, does not hold now.
    #[error("{certificate} {why}")]
    NotValid {
        /// The certificate's file.
        certificate: PathBuf,
        /// Which end of its period is missed.
        why: String,
    },
    /// Certificate and key do not belong together.
    #[error("{certificate} and {key}: {error}")]
    Pair {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// Why they do not.
        error: rustls::Error,
    },
}

/// Has the whole process use one implementation of the algorithms. A second call changes nothing.
pub fn use_ring() {
    let _ = ring::default_provider().install_default(); // an error means that a provider is installed already
}

struct ServedCertificate {
    http: Arc<ServerConfig>,
    frames: Arc<ServerConfig>,
    fingerprint: [u8; 32],
    /// Period of the certificate. None if it can't be read.
    validity: Option<Validity>,
}

/// A server's certificate and key. Open connections keep the ones with which they were made.
pub struct Identity {
    certificate: PathBuf,
    key: PathBuf,
    shown: ArcSwap<ServedCertificate>,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("certificate", &self.certificate)
            .finish_non_exhaustive()
    }
}

impl Identity {
    /// Reads PEM files: the server's certificate followed by its issuers' certificates, and its private key.
    pub fn read(certificate: &Path, key: &Path) -> Result<Self, IdentityError> {
        let shown = ArcSwap::from_pointee(load(certificate, key)?);
        Ok(Self {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            shown,
        })
    }

    /// Reads the files anew. True if the certificate is another one. If they are wrong, or the other certificate is not valid now, nothing
    /// changes.
    pub fn reload(&self) -> Result<bool, IdentityError> {
        let loaded = load(&self.certificate, &self.key)?;
        let is_other = loaded.fingerprint != self.fingerprint();
        let refusal = loaded.validity.and_then(|validity| validity.refusal());
        if let Some(why) = refusal.filter(|_| is_other) {
            return Err(IdentityError::NotValid {
                certificate: self.certificate.clone(),
                why,
            });
        }
        self.shown.store(Arc::new(loaded));
        Ok(is_other)
    }

    /// SHA-256 of the certificate.
    pub fn fingerprint(&self) -> [u8; 32] {
        self.shown.load().fingerprint
    }

    /// Returns the period in which the certificate and its issuers' certificates are valid. None if it can't be read.
    pub fn validity(&self) -> Option<Validity> {
        self.shown.load().validity
    }

    /// Returns the configuration for clients of HTTP/1.1.
    pub fn http(&self) -> Arc<ServerConfig> {
        self.shown.load().http.clone()
    }

    /// Returns the configuration for standbys: TLS 1.3 alone.
    pub(crate) fn frames(&self) -> Arc<ServerConfig> {
        self.shown.load().frames.clone()
    }
}

fn load(certificate: &Path, key: &Path) -> Result<ServedCertificate, IdentityError> {
    let wrong = |path: &Path, what: &str| IdentityError::Wrong {
        path: path.to_owned(),
        what: what.to_owned(),
    };
    let bad_pem = |path: &Path, what: String| wrong(path, &format!("is no PEM file: {what}"));
    let chain = certificates(&read(certificate)?).map_err(|what| bad_pem(certificate, what))?;
    let Some(first) = chain.first() else {
        return Err(wrong(certificate, "holds no certificate (-----BEGIN CERTIFICATE-----)"));
    };
    let fingerprint = Sha256::digest(first).into();
    let private = private_key(&read(key)?).map_err(|what| bad_pem(key, what))?;
    let private = private.ok_or_else(|| wrong(key, "holds no private key (-----BEGIN PRIVATE KEY-----)"))?;
    let config = |versions: &[&'static rustls::SupportedProtocolVersion], protocols: &[&[u8]]| {
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_protocol_versions(versions)?.with_no_client_auth();
        let mut config = builder.with_single_cert(chain.clone(), private.clone_key())?;
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        Ok(Arc::new(config))
    };
    let pair = |error| IdentityError::Pair {
        certificate: certificate.to_owned(),
        key: key.to_owned(),
        error,
    };
    Ok(ServedCertificate {
        http: config(rustls::ALL_VERSIONS, &[b"http/1.1"]).map_err(pair)?,
        frames: config(&[&rustls::version::TLS13], &[]).map_err(pair)?,
        fingerprint,
        validity: of_chain(&chain),
    })
}

fn read(path: &Path) -> Result<Vec<u8>, IdentityError> {
    let failed = |error| IdentityError::Read {
        path: path.to_owned(),
        error,
    };
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(file, FILE_BYTES_MAX), &mut bytes).map_err(failed)?;
    Ok(bytes)
}
