//! What a client shows to be let in. Secrets never appear in `Debug`, logs or errors.

use std::fmt;
use std::sync::Arc;

use tonic::metadata::{Ascii, MetadataMap, MetadataValue};

use crate::error::IngestError;
use crate::options::invalid;

/// Credentials of a client.
#[derive(Clone, Default)]
pub struct Credentials(Source);

#[derive(Clone, Default)]
enum Source {
    #[default]
    None,
    Bearer(Arc<str>),
    Provider(Arc<dyn Fn() -> String + Send + Sync>),
}

impl Credentials {
    /// None: for a server on loopback without tokens.
    pub fn none() -> Self {
        Credentials(Source::None)
    }

    /// A bearer token that stays as it is.
    pub fn bearer(token: impl Into<String>) -> Self {
        Credentials(Source::Bearer(token.into().into()))
    }

    /// A source of bearer tokens, asked before every connection attempt. It must not block for long: it is
    /// called on the runtime's threads.
    pub fn bearer_from(source: impl Fn() -> String + Send + Sync + 'static) -> Self {
        Credentials(Source::Provider(Arc::new(source)))
    }

    /// Whether another attempt may bring another token.
    pub(crate) fn can_refresh(&self) -> bool {
        matches!(self.0, Source::Provider(_))
    }

    pub(crate) fn apply(&self, metadata: &mut MetadataMap) -> Result<(), IngestError> {
        let token = match &self.0 {
            Source::None => return Ok(()),
            Source::Bearer(token) => format!("Bearer {token}"),
            Source::Provider(source) => format!("Bearer {}", source()),
        };
        let mut value: MetadataValue<Ascii> = token
            .parse()
            .map_err(|_| invalid("credentials", "(secret)", "a bearer token is visible ASCII characters"))?;
        value.set_sensitive(true);
        metadata.insert(landfall_protocol::header::AUTHORIZATION, value);
        Ok(())
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Source::None => "Credentials(none)",
            Source::Bearer(_) => "Credentials(bearer, redacted)",
            Source::Provider(_) => "Credentials(provider)",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch a token in a log line, in `Debug` or in an error.
    #[test]
    fn no_secret_in_debug_or_errors() {
        let credentials = Credentials::bearer("s3cret\n");
        let error = credentials.apply(&mut MetadataMap::new()).unwrap_err();
        assert!(!format!("{credentials:?} {error} {error:?}").contains("s3cret"));
        let mut metadata = MetadataMap::new();
        Credentials::bearer("s3cret").apply(&mut metadata).unwrap();
        assert!(metadata.get("authorization").unwrap().is_sensitive());
        assert!(!format!("{metadata:?}").contains("s3cret"));
    }
}
