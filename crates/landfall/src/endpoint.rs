//! A running server, spoken to over HTTP: what `publish`, `tail` and `top` share.
//!
//! Answers are bounded (I14), waits are bounded, and a refusal keeps the server's own code, text and next step.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use landfall_types::{Code, Coded, Kind, Retry, root_cause};

use crate::cli::ServerArgs;
use crate::config::codes;

/// The largest answer that is taken; the server bounds a read to 16 MiB.
const ANSWER_BYTES_MAX: usize = 64 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Above the longest time that the server holds an answer (a read's `wait`, a publish's commit).
const ANSWER_TIMEOUT: Duration = Duration::from_secs(90);

/// A server by its address.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    base: String,
    authorization: Option<HeaderValue>,
    client: Client<HttpConnector, Full<Bytes>>,
}

/// An answer of 200.
#[derive(Debug)]
pub(crate) struct Answer {
    /// Its headers.
    pub(crate) headers: HeaderMap,
    /// Its body.
    pub(crate) body: Bytes,
}

/// A request that got no answer of 200.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EndpointError {
    /// The address is no address.
    #[error("`{url}` is not the address of a server ({}): expected a form like http://127.0.0.1:7420", codes::SERVER)]
    Address {
        /// What was given.
        url: String,
    },
    /// Nobody answered.
    #[error(
        "no answer from {url} ({}): {cause}; is `landfall run` up, and is --server (LANDFALL_SERVER) right?",
        codes::SERVER
    )]
    Unreachable {
        /// The server.
        url: String,
        /// Why.
        cause: String,
        /// False: there was no connection, so nothing of the request can have arrived.
        may_have_arrived: bool,
    },
    /// The server refused.
    #[error("{url} answered {status}: {detail}")]
    Refused {
        /// The server.
        url: String,
        /// The status.
        status: StatusCode,
        /// The problem's text with its code.
        detail: String,
        /// The problem as the server gave it.
        problem: serde_json::Value,
    },
}

impl Coded for EndpointError {
    fn code(&self) -> Code {
        codes::SERVER
    }

    fn kind(&self) -> Kind {
        match self {
            EndpointError::Address { .. } => Kind::Invalid,
            EndpointError::Unreachable { .. } => Kind::Unavailable,
            EndpointError::Refused { status, .. } if status.is_client_error() => Kind::Invalid,
            EndpointError::Refused { .. } => Kind::Unavailable,
        }
    }

    fn retry(&self) -> Retry {
        match self.kind() {
            Kind::Unavailable => Retry::Later,
            _ => Retry::Never,
        }
    }
}

impl Endpoint {
    /// The server that a command names.
    pub(crate) fn new(args: &ServerArgs) -> Result<Self, EndpointError> {
        let wrong = || EndpointError::Address { url: args.server.clone() };
        let with_scheme =
            if args.server.contains("://") { args.server.clone() } else { format!("http://{}", args.server) };
        let uri: Uri = with_scheme.parse().map_err(|_| wrong())?;
        if uri.scheme_str() != Some("http") || uri.authority().is_none() {
            return Err(wrong());
        }
        let authorization = match &args.token {
            None => None,
            Some(token) => {
                let mut value = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| wrong())?;
                value.set_sensitive(true);
                Some(value)
            }
        };
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new()).build(connector);
        Ok(Endpoint { base: with_scheme.trim_end_matches('/').to_owned(), authorization, client })
    }

    /// Reads.
    pub(crate) async fn get(&self, path: &str) -> Result<Answer, EndpointError> {
        self.send(Method::GET, path, &[], Bytes::new()).await
    }

    /// Posts a body under its content type, with further headers.
    pub(crate) async fn post(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Result<Answer, EndpointError> {
        self.send(Method::POST, path, headers, body).await
    }

    /// `/v1/status` as JSON.
    pub(crate) async fn status(&self) -> anyhow::Result<serde_json::Value> {
        let answer = self.get("/v1/status").await?;
        Ok(serde_json::from_slice(&answer.body)?)
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Result<Answer, EndpointError> {
        let failed = |cause: String, may_have_arrived| EndpointError::Unreachable {
            url: self.base.clone(),
            cause,
            may_have_arrived,
        };
        let unreachable = |cause: String| failed(cause, true);
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.base));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(value) = &self.authorization {
            request = request.header(header::AUTHORIZATION, value);
        }
        let request = request.body(Full::new(body)).map_err(|error| failed(error.to_string(), false))?;
        let answering = async {
            let response = self.client.request(request).await;
            let response = response.map_err(|error| failed(root_cause(&error), !error.is_connect()))?;
            let (parts, body) = response.into_parts();
            let body =
                Limited::new(body, ANSWER_BYTES_MAX).collect().await.map_err(|error| unreachable(error.to_string()))?;
            Ok((parts, body.to_bytes()))
        };
        let (parts, body) = tokio::time::timeout(ANSWER_TIMEOUT, answering)
            .await
            .map_err(|_| unreachable(format!("nothing within {} s", ANSWER_TIMEOUT.as_secs())))??;
        if parts.status == StatusCode::OK {
            return Ok(Answer { headers: parts.headers, body });
        }
        let problem: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
        let text = |key: &str| problem.get(key).and_then(serde_json::Value::as_str).unwrap_or_default();
        let detail = format!("{} ({})", text("detail"), text("code"));
        Err(EndpointError::Refused { url: self.base.clone(), status: parts.status, detail, problem })
    }
}

/// A path segment with what would end it escaped.
pub(crate) fn escaped(segment: &str) -> String {
    let mut out = String::with_capacity(segment.len());
    for byte in segment.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}
