//! `application/problem+json`: a refusal as HTTP tells it (G41).

use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use http::{HeaderValue, StatusCode, header};
use landfall_protocol::{IngestCode, Refusal, RefusedOutcome, http_status, retry_word};
use landfall_types::{Code, Coded, Kind, Retry};
use serde_json::{Map, Value, json};

use crate::refusal;

/// A refusal with its HTTP status.
#[derive(Debug, Clone)]
pub(crate) struct Problem {
    status: StatusCode,
    refusal: Refusal,
    limit: Option<u64>,
    /// The range that a read cannot give: first offset, and the one after the last.
    range: Option<(u64, u64)>,
}

impl Problem {
    /// A problem of a part below.
    pub(crate) fn of(error: &dyn Coded) -> Self {
        Problem {
            status: http_status(error.code(), error.kind()),
            refusal: refusal::of(error),
            limit: None,
            range: None,
        }
    }

    /// A problem under a code of another part, where no error value of that part exists.
    pub(crate) fn coded(code: Code, kind: Kind, retry: Retry, text: String) -> Self {
        Self::named(code, refusal::name_of(code).to_owned(), kind, retry, text)
    }

    /// The same, under a code whose page is not known here.
    pub(crate) fn named(code: Code, name: String, kind: Kind, retry: Retry, text: String) -> Self {
        let outcome = (kind == Kind::Unresolved).then_some(RefusedOutcome::Unresolved);
        let refusal = Refusal {
            code: code.to_string(),
            reason: name,
            retry: Some(retry),
            outcome,
            ..Refusal::new(IngestCode::BodySyntax, text)
        };
        Problem { status: http_status(code, kind), refusal, limit: None, range: None }
    }

    pub(crate) fn with_status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    /// The same code in other words.
    pub(crate) fn with_text(mut self, text: impl Into<String>) -> Self {
        self.refusal.message = text.into();
        self
    }

    pub(crate) fn with_limit(mut self, limit: u64) -> Self {
        self.limit = Some(limit);
        self
    }

    pub(crate) fn with_range(mut self, from: u64, to: u64) -> Self {
        self.range = Some((from, to));
        self
    }

    pub(crate) fn with_reference(mut self, reference: String) -> Self {
        self.refusal.reference = Some(reference);
        self
    }

    pub(crate) fn at_record(mut self, index: u32) -> Self {
        self.refusal.record_index = Some(index);
        self
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    pub(crate) fn response(self) -> Response {
        self.response_with(Map::new())
    }

    /// The response, with more members beside the standard ones.
    pub(crate) fn response_with(self, more: Map<String, Value>) -> Response {
        let Problem { status, refusal, limit, range } = self;
        let mut members = Map::new();
        let mut put = |name: &str, value: Value| members.insert(name.to_owned(), value);
        put("type", json!(format!("urn:landfall:error:{}", refusal.code)));
        put("title", json!(refusal.reason));
        put("status", json!(status.as_u16()));
        put("detail", json!(refusal.message));
        put("code", json!(refusal.code));
        put("retry", json!(retry_word(refusal.retry())));
        put("outcome", json!(refusal.outcome.unwrap_or_default().as_str()));
        if let Some(index) = refusal.record_index {
            put("record_index", json!(index));
        }
        if let Some(reference) = &refusal.reference {
            put("reference", json!(reference));
        }
        let mut retry_after = refusal.retry_after;
        if retry_after.is_none() && matches!(status.as_u16(), 429 | 503) && refusal.retry() != Retry::Never {
            retry_after = Some(RETRY_AFTER);
        }
        if let Some(delay) = retry_after {
            put("retry_after_ms", json!(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX)));
        }
        if let Some(limit) = limit {
            put("limit", json!(limit));
        }
        if let Some((from, to)) = range {
            put("range", json!({"from": from, "to": to}));
        }
        members.extend(more);
        let mut response = Response::new(Body::from(Value::Object(members).to_string()));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(delay) = retry_after {
            // Whole seconds, and never 0: that would be read as "at once".
            let seconds = delay.as_secs() + u64::from(delay.subsec_nanos() > 0);
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds.max(1)));
        }
        response
    }

    pub(crate) fn is_unresolved(&self) -> bool {
        self.refusal.outcome == Some(RefusedOutcome::Unresolved)
    }
}

/// What an answer that may be asked again says when the cause names no delay.
const RETRY_AFTER: Duration = Duration::from_secs(1);

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let code = IngestCode::all().find(|code| code.code().to_string() == refusal.code);
        let status = code.map_or(StatusCode::INTERNAL_SERVER_ERROR, |code| http_status(code.code(), code.kind()));
        Problem { status, refusal, limit: None, range: None }
    }
}
