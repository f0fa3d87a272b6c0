//! Encryption of a connection: what is asked for, and the rustls client that does it.
//!
//! `require` encrypts and asks nobody who the server is, as `sslmode=require` does; `verify_full` also checks the
//! certificate's chain and name. Client certificates and channel binding are not carried. A self-signed certificate that
//! is marked as an authority (`CA:TRUE`) is refused as a server's own, which `libpq` would take.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use serde::{Deserialize, Serialize};

use super::ConnectError;

/// Whether a connection is encrypted, and what is checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TlsMode {
    /// Never encrypted.
    Disable,
    /// Encrypted if the server can; nothing is checked.
    #[default]
    Prefer,
    /// Encrypted or not at all; nothing is checked.
    Require,
    /// Encrypted, and the server's certificate is valid for its name.
    VerifyFull,
}

/// `tls: { mode, ca }` of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsOptions {
    /// What is asked for.
    #[serde(default)]
    pub mode: TlsMode,
    /// A file of PEM certificates that are trusted instead of the machine's own; with `verify_full` only.
    #[serde(default)]
    pub ca: Option<PathBuf>,
}

impl TlsOptions {
    /// Refuses a `ca` that no mode would look at: it would look like a check that is not made.
    pub(crate) fn check(&self) -> Result<(), ConnectError> {
        match (&self.ca, self.mode) {
            (Some(_), TlsMode::Disable | TlsMode::Prefer | TlsMode::Require) => {
                Err(ConnectError::Unsupported { option: "tls.ca", hint: "set tls.mode to verify_full with it" })
            }
            _ => Ok(()),
        }
    }

    /// The client's configuration.
    pub(super) fn client(&self) -> Result<Arc<ClientConfig>, ConnectError> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|source| ConnectError::TlsSetup { source })?;
        let config = match self.mode {
            TlsMode::VerifyFull => builder.with_root_certificates(self.roots()?).with_no_client_auth(),
            TlsMode::Disable | TlsMode::Prefer | TlsMode::Require => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(AnyCertificate { provider }))
                .with_no_client_auth(),
        };
        Ok(Arc::new(config))
    }

    fn roots(&self) -> Result<RootCertStore, ConnectError> {
        let mut roots = RootCertStore::empty();
        match &self.ca {
            Some(file) => {
                let unreadable = |reason: String| ConnectError::CaFile { file: file.clone(), reason };
                let certificates =
                    CertificateDer::pem_file_iter(file).map_err(|error| unreadable(error.to_string()))?;
                for certificate in certificates {
                    let certificate = certificate.map_err(|error| unreadable(error.to_string()))?;
                    roots.add(certificate).map_err(|error| unreadable(error.to_string()))?;
                }
                if roots.is_empty() {
                    return Err(unreadable("it has no certificate".to_owned()));
                }
            }
            None => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
                if roots.is_empty() {
                    return Err(ConnectError::NoRoots);
                }
            }
        }
        Ok(roots)
    }
}

/// What to do about a handshake that failed over the server's certificate.
pub(super) fn next_step(error: &io::Error) -> &'static str {
    let Some(rustls::Error::InvalidCertificate(refusal)) = error.get_ref().and_then(|cause| cause.downcast_ref())
    else {
        return "";
    };
    match refusal {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "; name in `tls.ca` the certificate of the authority that signed the server's"
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "; name the host in the url as its certificate does"
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => "; the server needs a new certificate",
        // The library has no name of its own for it.
        other if format!("{other:?}").contains("CaUsedAsEndEntity") => {
            "; the server shows the certificate of an authority (CA:TRUE) as its own: give it one with \
             `basicConstraints=CA:FALSE`, and name that one, or the authority that signs it, in `tls.ca`"
        }
        _ => "",
    }
}

/// Takes any certificate; signatures are checked all the same, so the peer at least owns the key that it shows.
#[derive(Debug)]
struct AnyCertificate {
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
