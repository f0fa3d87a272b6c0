//! What can go wrong for a user of the client, each with a stable code, a kind and a retry.
//!
//! Errors are cheap to clone: a stream's first cause is kept and handed to everybody who asks (sources
//! stay chained behind `Arc`). No message holds a payload or a secret.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use landfall_protocol::{Refusal, foreign_retry};
use landfall_types::{ByteSize, Code, Coded, Kind, Retry};

use crate::call::PreparedBatch;
use crate::id::{IdRange, MessageId};

/// How much is in flight: admitted and not acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Records.
    pub records: u64,
    /// Payload bytes and 64 for each record.
    pub bytes: u64,
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} records, {}", self.records, ByteSize(self.bytes))
    }
}

/// A record cannot become part of a call. Costs no room and no offset.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PrepareError {
    /// The record is not of the stream's form.
    #[error("record {index} is not valid: {reason}")]
    InvalidRecord {
        /// The record's place in its call.
        index: usize,
        /// What is wrong with it.
        reason: Arc<str>,
    },
    /// The call is above a limit.
    #[error("the call has {size} {unit}, the limit `{option}` is {limit}: split it")]
    CallTooLarge {
        /// What is counted.
        unit: &'static str,
        /// How much it has.
        size: u64,
        /// How much it may have.
        limit: u64,
        /// The option that sets the limit.
        option: &'static str,
    },
}

/// What can go wrong on a stream.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IngestError {
    /// The record or call was never admitted.
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    /// No room right now; only from the call that never waits.
    #[error(
        "no room: {in_flight} in flight of {limits}; wait, or raise `max_in_flight_records` or `max_in_flight_bytes`"
    )]
    Full {
        /// What is in flight.
        in_flight: Load,
        /// The budget.
        limits: Load,
    },
    /// No room came within `capacity_wait`. Nothing else is affected.
    #[error(
        "no room within {waited:?}: {in_flight} in flight of {limits}; the peer acknowledges too slowly for this load"
    )]
    CapacityTimeout {
        /// How long it waited.
        waited: Duration,
        /// What is in flight.
        in_flight: Load,
        /// The budget.
        limits: Load,
    },
    /// The handle is closed or closing.
    #[error("the stream is closed: open a new one")]
    Closed,
    /// The stream has ended for good.
    #[error("the stream has failed: {cause}")]
    Failed {
        /// The first cause.
        cause: Arc<IngestError>,
    },
    /// The multiplexed stream has ended for good.
    #[error("the stream is poisoned by sub-stream {sub_stream}: {cause}")]
    Poisoned {
        /// The first cause.
        cause: Arc<IngestError>,
        /// The sub-stream that it came from.
        sub_stream: u16,
    },
    /// The peer refused a call for good.
    #[error("calls {ids} were refused: {refusal}")]
    Refused {
        /// The calls of the refused frame; if the peer named none, all that were sent and not acknowledged.
        ids: IdRange,
        /// The record inside the frame, where the peer names it.
        record_index: Option<u32>,
        /// The peer's answer.
        refusal: Arc<Refusal>,
    },
    /// The peer ended or refused the stream.
    #[error("sub-stream {sub_stream}: {refusal}")]
    Status {
        /// The peer's answer.
        refusal: Arc<Refusal>,
        /// The sub-stream.
        sub_stream: u16,
    },
    /// No connection.
    #[error("cannot connect to {endpoint} after {elapsed:?}: {source}")]
    Connect {
        /// Where to.
        endpoint: Arc<str>,
        /// How long it took.
        elapsed: Duration,
        /// Why.
        source: Arc<dyn Error + Send + Sync>,
    },
    /// The peer did not open the stream in time.
    #[error("{endpoint} did not open the stream within {elapsed:?} (waited for {phase})")]
    OpenTimeout {
        /// Where to.
        endpoint: Arc<str>,
        /// What was waited for.
        phase: &'static str,
        /// How long.
        elapsed: Duration,
    },
    /// The connection, or the peer's side of the stream, ended.
    #[error("the connection of sub-stream {sub_stream} was lost: {detail}")]
    ConnectionLost {
        /// The sub-stream.
        sub_stream: u16,
        /// What was seen.
        detail: Arc<str>,
    },
    /// The oldest sent call was not acknowledged in time.
    #[error("call {oldest} was not acknowledged for {age:?}, the limit is `ack_timeout`")]
    AckTimeout {
        /// The call.
        oldest: MessageId,
        /// Since it was sent.
        age: Duration,
    },
    /// Recovery gave up.
    #[error("gave up after {attempts} attempts and {without_progress:?} without progress: {cause}")]
    Lost {
        /// How many attempts.
        attempts: u32,
        /// How long without an acknowledgement.
        without_progress: Duration,
        /// What the last attempt ended with.
        cause: Arc<IngestError>,
    },
    /// The peer broke the protocol.
    #[error("sub-stream {sub_stream}: the peer broke the protocol: {what}")]
    ProtocolViolation {
        /// The sub-stream.
        sub_stream: u16,
        /// What it did, with the values.
        what: Arc<str>,
    },
    /// Not all was acknowledged in time. The stream goes on.
    #[error("flush ended after {waited:?} with {unacked} calls not acknowledged; the oldest is {oldest}")]
    FlushTimeout {
        /// How long it waited.
        waited: Duration,
        /// How many calls.
        unacked: u64,
        /// The oldest.
        oldest: MessageId,
    },
    /// The call was not acknowledged in time. The stream goes on.
    #[error("call {id} was not acknowledged within {waited:?}")]
    WaitTimeout {
        /// The call.
        id: MessageId,
        /// How long it waited.
        waited: Duration,
    },
    /// Closing took too long; the rest is to be had from `take_unacked`.
    #[error("closing ended after {waited:?} with {unacked} calls not acknowledged: fetch them with `take_unacked`")]
    CloseTimeout {
        /// How long it waited.
        waited: Duration,
        /// How many calls.
        unacked: u64,
    },
    /// This stream never gave out the id.
    #[error("id {id} was never given out by this stream")]
    UnknownId {
        /// The id.
        id: MessageId,
    },
    /// The operation needs another state.
    #[error("`{operation}` needs {needs}; the stream is {state}")]
    InvalidState {
        /// What was called.
        operation: &'static str,
        /// What it needs.
        needs: &'static str,
        /// What the state is.
        state: &'static str,
    },
    /// An option is out of its bounds.
    #[error("option `{name}` is `{value}`: {bound}")]
    InvalidOption {
        /// The option.
        name: &'static str,
        /// Its value; never that of a secret.
        value: Arc<str>,
        /// What is allowed.
        bound: Arc<str>,
    },
}

/// A call that was not admitted, with the call itself.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Rejected {
    /// Why.
    #[source]
    pub error: IngestError,
    /// The call, to be tried again; `None` only where it could not be prepared.
    pub call: Option<PreparedBatch>,
}

impl From<PrepareError> for Rejected {
    fn from(error: PrepareError) -> Self {
        Rejected { error: error.into(), call: None }
    }
}

impl IngestError {
    /// The first cause, where this error only says that the stream has ended.
    pub fn first_cause(&self) -> &IngestError {
        match self {
            IngestError::Failed { cause } | IngestError::Poisoned { cause, .. } => cause.first_cause(),
            other => other,
        }
    }
}

const fn code(number: u16) -> Code {
    Code::new("IN", number)
}

/// The peer's code; an area that this version does not know counts as a status without details.
fn peer_code(refusal: &Refusal) -> Code {
    const AREAS: [&str; 10] = ["CH", "IN", "EN", "DC", "SQ", "DT", "FI", "PG", "CK", "KF"];
    let parsed = || {
        let text = refusal.code.strip_prefix("LF-")?;
        let (area, number) = text.split_at_checked(2)?;
        let area = AREAS.into_iter().find(|known| *known == area)?;
        Some(Code::new(area, number.parse().ok()?))
    };
    parsed().unwrap_or(code(110))
}

fn peer_kind(refusal: &Refusal) -> Kind {
    match refusal.retry.unwrap_or_else(|| foreign_retry(refusal.grpc)) {
        Retry::Never => Kind::Invalid,
        Retry::Later | Retry::Now => Kind::Unavailable,
    }
}

impl Coded for PrepareError {
    fn code(&self) -> Code {
        match self {
            PrepareError::InvalidRecord { .. } => code(101),
            PrepareError::CallTooLarge { .. } => code(102),
        }
    }
    fn kind(&self) -> Kind {
        Kind::Invalid
    }
    fn retry(&self) -> Retry {
        Retry::Never
    }
}

impl Coded for IngestError {
    fn code(&self) -> Code {
        match self {
            IngestError::Prepare(error) => error.code(),
            IngestError::Full { .. } => code(103),
            IngestError::CapacityTimeout { .. } => code(104),
            IngestError::Closed => code(105),
            IngestError::Failed { cause } | IngestError::Poisoned { cause, .. } => cause.code(),
            IngestError::Refused { refusal, .. } | IngestError::Status { refusal, .. } => peer_code(refusal),
            IngestError::Connect { .. } => code(120),
            IngestError::OpenTimeout { .. } => code(122),
            IngestError::ConnectionLost { .. } => code(124),
            IngestError::AckTimeout { .. } => code(125),
            IngestError::Lost { .. } => code(126),
            IngestError::ProtocolViolation { .. } => code(127),
            IngestError::FlushTimeout { .. } => code(130),
            IngestError::WaitTimeout { .. } => code(131),
            IngestError::CloseTimeout { .. } => code(132),
            IngestError::UnknownId { .. } => code(140),
            IngestError::InvalidState { .. } => code(141),
            IngestError::InvalidOption { .. } => code(142),
        }
    }

    fn kind(&self) -> Kind {
        match self {
            IngestError::Prepare(error) => error.kind(),
            IngestError::Failed { cause } | IngestError::Poisoned { cause, .. } => cause.kind(),
            IngestError::Refused { refusal, .. } | IngestError::Status { refusal, .. } => peer_kind(refusal),
            IngestError::Closed | IngestError::CloseTimeout { .. } => Kind::Closed,
            IngestError::ProtocolViolation { .. } => Kind::Internal,
            IngestError::UnknownId { .. } | IngestError::InvalidState { .. } | IngestError::InvalidOption { .. } => {
                Kind::Invalid
            }
            IngestError::Full { .. }
            | IngestError::CapacityTimeout { .. }
            | IngestError::Connect { .. }
            | IngestError::OpenTimeout { .. }
            | IngestError::ConnectionLost { .. }
            | IngestError::AckTimeout { .. }
            | IngestError::Lost { .. }
            | IngestError::FlushTimeout { .. }
            | IngestError::WaitTimeout { .. } => Kind::Unavailable,
        }
    }

    fn retry(&self) -> Retry {
        match self {
            IngestError::Prepare(error) => error.retry(),
            IngestError::Failed { cause } | IngestError::Poisoned { cause, .. } => cause.retry(),
            IngestError::Refused { refusal, .. } | IngestError::Status { refusal, .. } => refusal.retry(),
            IngestError::Full { .. }
            | IngestError::CapacityTimeout { .. }
            | IngestError::Connect { .. }
            | IngestError::OpenTimeout { .. }
            | IngestError::ConnectionLost { .. }
            | IngestError::AckTimeout { .. }
            | IngestError::Lost { .. } => Retry::Later,
            IngestError::FlushTimeout { .. } | IngestError::WaitTimeout { .. } => Retry::Now,
            IngestError::Closed
            | IngestError::ProtocolViolation { .. }
            | IngestError::CloseTimeout { .. }
            | IngestError::UnknownId { .. }
            | IngestError::InvalidState { .. }
            | IngestError::InvalidOption { .. } => Retry::Never,
        }
    }
}
