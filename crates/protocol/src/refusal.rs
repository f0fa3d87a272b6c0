//! Why a stream or a request ends, in a form for programs, and its way through `grpc-status-details-bin`.
//!
//! The server builds a [`Refusal`] and turns it into a status; the client reads it back, from our server with
//! everything in it, from any other peer with the little that a bare status tells. No payload byte is in it.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use landfall_types::{Coded, Kind, Retry};
use prost::Message;
use tonic::{Code as Grpc, Status};

use crate::code::{IngestCode, grpc_code};
use crate::wire::rpc;

/// The domain of our reasons.
pub const DOMAIN: &str = "landfall";

const ERROR_INFO: &str = "type.googleapis.com/google.rpc.ErrorInfo";
const RETRY_INFO: &str = "type.googleapis.com/google.rpc.RetryInfo";

/// What became of the records that a refusal is about (I3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RefusedOutcome {
    /// They are not in the log and will not be.
    #[default]
    NotStored,
    /// Not known yet; the reference asks.
    Unresolved,
}

impl RefusedOutcome {
    /// The word on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            RefusedOutcome::NotStored => "not_stored",
            RefusedOutcome::Unresolved => "unresolved",
        }
    }
}

/// A refusal with everything that a client can act on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The gRPC status.
    pub grpc: Grpc,
    /// For a human: thing, limit, value, next step.
    pub message: String,
    /// The code as text, like `LF-IN0011`; empty from a peer without our details.
    pub code: String,
    /// The code's name, like `RecordMalformed`; empty from a peer without any details.
    pub reason: String,
    /// Whether the same call may be made again; `None`: the peer did not say ([`foreign_retry`] judges).
    pub retry: Option<Retry>,
    /// What became of the records; `None`: the peer did not say.
    pub outcome: Option<RefusedOutcome>,
    /// The frame it is about.
    pub wire_offset: Option<i64>,
    /// The record inside the frame.
    pub record_index: Option<u32>,
    /// Asks for an unresolved outcome later.
    pub reference: Option<String>,
    /// The least delay before another attempt.
    pub retry_after: Option<Duration>,
}

impl Refusal {
    /// A refusal by the ingest server itself. Nothing was stored.
    pub fn new(code: IngestCode, message: impl Into<String>) -> Self {
        Refusal {
            grpc: grpc_code(code.code(), code.kind()),
            message: message.into(),
            code: code.code().to_string(),
            reason: code.name().to_owned(),
            retry: Some(code.retry()),
            outcome: Some(RefusedOutcome::NotStored),
            wire_offset: None,
            record_index: None,
            reference: None,
            retry_after: None,
        }
    }

    /// A refusal by a part below, under its own code. `name` is the code's name, as on its page.
    pub fn of(error: &dyn Coded, name: &str) -> Self {
        let outcome = match error.kind() {
            Kind::Unresolved => RefusedOutcome::Unresolved,
            _ => RefusedOutcome::NotStored,
        };
        Refusal {
            grpc: grpc_code(error.code(), error.kind()),
            message: error.to_string(),
            code: error.code().to_string(),
            reason: name.to_owned(),
            retry: Some(error.retry()),
            outcome: Some(outcome),
            wire_offset: None,
            record_index: None,
            reference: None,
            retry_after: None,
        }
    }

    /// Names the frame.
    #[must_use]
    pub fn at_frame(mut self, wire_offset: i64) -> Self {
        self.wire_offset = Some(wire_offset);
        self
    }

    /// Names the record inside the frame.
    #[must_use]
    pub fn at_record(mut self, index: u32) -> Self {
        self.record_index = Some(index);
        self
    }

    /// Tells the least delay before another attempt.
    #[must_use]
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.retry_after = Some(delay);
        self
    }

    /// Gives the reference of an unresolved outcome.
    #[must_use]
    pub fn with_reference(mut self, reference: impl Into<String>) -> Self {
        self.reference = Some(reference.into());
        self
    }

    /// The status with its details.
    pub fn to_status(&self) -> Status {
        let mut metadata = BTreeMap::new();
        let mut put = |key: &str, value: String| metadata.insert(key.to_owned(), value);
        put("code", self.code.clone());
        if let Some(retry) = self.retry {
            put("retry", retry_word(retry).to_owned());
        }
        if let Some(outcome) = self.outcome {
            put("outcome", outcome.as_str().to_owned());
        }
        if let Some(offset) = self.wire_offset {
            put("wire_offset", offset.to_string());
        }
        if let Some(index) = self.record_index {
            put("record_index", index.to_string());
        }
        if let Some(reference) = &self.reference {
            put("reference", reference.clone());
        }
        let info = rpc::ErrorInfo { reason: self.reason.clone(), domain: DOMAIN.to_owned(), metadata };
        let mut details = vec![any(ERROR_INFO, &info)];
        if let Some(delay) = self.retry_after {
            let seconds = i64::try_from(delay.as_secs()).unwrap_or(i64::MAX);
            let retry_delay = prost_types::Duration { seconds, nanos: delay.subsec_nanos().cast_signed() };
            details.push(any(RETRY_INFO, &rpc::RetryInfo { retry_delay: Some(retry_delay) }));
        }
        let encoded = rpc::Status { code: self.grpc as i32, message: self.message.clone(), details }.encode_to_vec();
        Status::with_details(self.grpc, self.message.clone(), Bytes::from(encoded))
    }

    /// Reads a status of any peer. Details that do not decode, or are of another domain, count as absent:
    /// they are outside input and the status code alone still says enough.
    pub fn from_status(status: &Status) -> Self {
        let mut refusal = Refusal {
            grpc: status.code(),
            message: status.message().to_owned(),
            code: String::new(),
            reason: String::new(),
            retry: None,
            outcome: None,
            wire_offset: None,
            record_index: None,
            reference: None,
            retry_after: None,
        };
        let Ok(decoded) = rpc::Status::decode(status.details()) else { return refusal };
        for detail in &decoded.details {
            if detail.type_url == ERROR_INFO {
                if let Ok(info) = rpc::ErrorInfo::decode(detail.value.as_slice()) {
                    refusal.take(info);
                }
            } else if detail.type_url == RETRY_INFO
                && let Ok(info) = rpc::RetryInfo::decode(detail.value.as_slice())
            {
                refusal.retry_after = info.retry_delay.and_then(|delay| Duration::try_from(delay).ok());
            }
        }
        refusal
    }

    fn take(&mut self, info: rpc::ErrorInfo) {
        self.reason = info.reason;
        if info.domain != DOMAIN {
            return;
        }
        let field = |key: &str| info.metadata.get(key).map(String::as_str);
        self.code = field("code").unwrap_or_default().to_owned();
        self.retry = field("retry").and_then(retry_of_word);
        self.outcome = field("outcome").and_then(|word| match word {
            "not_stored" => Some(RefusedOutcome::NotStored),
            "unresolved" => Some(RefusedOutcome::Unresolved),
            _ => None,
        });
        self.wire_offset = field("wire_offset").and_then(|text| text.parse().ok());
        self.record_index = field("record_index").and_then(|text| text.parse().ok());
        self.reference = field("reference").map(str::to_owned);
    }

    /// Whether another attempt makes sense: the peer's word, else the meaning of the bare status.
    pub fn retry(&self) -> Retry {
        self.retry.unwrap_or_else(|| foreign_retry(self.grpc))
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Status {
        refusal.to_status()
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.code.is_empty(), self.reason.is_empty()) {
            (false, _) => write!(f, "{} {}: {}", self.code, self.reason, self.message),
            (true, false) => write!(f, "{:?} ({}): {}", self.grpc, self.reason, self.message),
            (true, true) => write!(f, "{:?}: {}", self.grpc, self.message),
        }
    }
}

impl std::error::Error for Refusal {}

/// Whether another attempt makes sense after a bare status, when the stream was open or opening.
pub const fn foreign_retry(grpc: Grpc) -> Retry {
    match grpc {
        Grpc::InvalidArgument
        | Grpc::NotFound
        | Grpc::AlreadyExists
        | Grpc::FailedPrecondition
        | Grpc::OutOfRange
        | Grpc::Unimplemented
        | Grpc::DataLoss
        | Grpc::Unauthenticated
        | Grpc::PermissionDenied => Retry::Never,
        Grpc::Ok
        | Grpc::Cancelled
        | Grpc::Unknown
        | Grpc::DeadlineExceeded
        | Grpc::Aborted
        | Grpc::Unavailable
        | Grpc::ResourceExhausted
        | Grpc::Internal => Retry::Later,
    }
}

/// The word for a retry on the wire and in JSON.
pub const fn retry_word(retry: Retry) -> &'static str {
    match retry {
        Retry::Never => "never",
        Retry::Later => "later",
        Retry::Now => "now",
    }
}

fn retry_of_word(word: &str) -> Option<Retry> {
    match word {
        "never" => Some(Retry::Never),
        "later" => Some(Retry::Later),
        "now" => Some(Retry::Now),
        _ => None,
    }
}

fn any(type_url: &str, message: &impl Message) -> prost_types::Any {
    prost_types::Any { type_url: type_url.to_owned(), value: message.encode_to_vec() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Refusal {
        Refusal::new(IngestCode::RecordMalformed, "record 2 of frame 3 is not JSON")
            .at_frame(3)
            .at_record(2)
            .with_reference("abc")
            .retry_after(Duration::from_millis(1500))
    }

    /// Would catch a detail that is written under another name than it is read.
    #[test]
    fn a_refusal_survives_the_status() {
        assert_eq!(Refusal::from_status(&full().to_status()), full());
    }

    /// Would catch details of a stranger that are taken for ours, or garbage that fails the client.
    #[test]
    fn foreign_and_broken_details_count_as_absent() {
        let broken = Status::with_details(Grpc::Internal, "x", Bytes::from_static(&[0xff; 40]));
        assert_eq!(Refusal::from_status(&broken).retry(), Retry::Later);
        let info = rpc::ErrorInfo {
            reason: "OTHER".into(),
            domain: "example.com".into(),
            metadata: BTreeMap::from([("retry".to_owned(), "now".to_owned())]),
        };
        let details = rpc::Status { code: 3, message: String::new(), details: vec![any(ERROR_INFO, &info)] };
        let foreign = Status::with_details(Grpc::InvalidArgument, "no", Bytes::from(details.encode_to_vec()));
        let refusal = Refusal::from_status(&foreign);
        assert_eq!((refusal.retry, refusal.retry(), refusal.reason.as_str()), (None, Retry::Never, "OTHER"));
    }

    /// Would catch a status class that moved: each of the 17 codes has its place.
    #[test]
    fn status_table_is_complete() {
        let never = (0..17).map(Grpc::from_i32).filter(|code| foreign_retry(*code) == Retry::Never).count();
        assert_eq!(never, 9);
        assert_eq!(foreign_retry(Grpc::Ok), Retry::Later);
    }
}
