//! Why the queue ended, and what closing it found.

use std::sync::Arc;
use std::time::Duration;

use landfall_types::{Code, Coded, Kind, Retry};

use crate::Lsn;
use crate::connect::{QUEUE_STOPPED, page_of};
use crate::log_record::RecordSinkError;

/// The first failure of the queue worker; everyone who asks gets this one (P38).
#[derive(Clone, Debug, thiserror::Error)]
pub enum QueueError {
    /// The inner sink returned an error.
    #[error("decoding of log records stopped: {0} (LF-PG0119)")]
    Sink(#[source] Arc<dyn std::error::Error + Send + Sync>),
    /// The inner sink panicked.
    #[error("decoding of log records panicked at {location}: {text} (LF-PG0119)")]
    Panicked {
        /// What it said.
        text: String,
        /// File, line and column.
        location: String,
    },
    /// The worker is gone and left no failure: the runtime ended it.
    #[error("decoding of log records was ended from outside (LF-PG0119)")]
    Ended,
    /// A record is larger than the room that was asked for it: the caller's fault, and told as that.
    #[error("a log record of {bytes} bytes came for a room of {room} bytes (LF-PG0119)")]
    Room {
        /// The record's bytes.
        bytes: usize,
        /// What was asked for.
        room: usize,
    },
}

impl QueueError {
    pub(super) fn of_sink(error: RecordSinkError) -> Self {
        QueueError::Sink(Arc::from(error))
    }

    /// The inner sink's own error, to look into.
    pub fn cause(&self) -> Option<&(dyn std::error::Error + Send + Sync + 'static)> {
        match self {
            QueueError::Sink(error) => Some(error.as_ref()),
            _ => None,
        }
    }
}

impl Coded for QueueError {
    fn code(&self) -> Code {
        QUEUE_STOPPED
    }

    fn kind(&self) -> Kind {
        page_of(QUEUE_STOPPED).map_or(Kind::Internal, |page| page.kind)
    }

    fn retry(&self) -> Retry {
        page_of(QUEUE_STOPPED).map_or(Retry::Later, |page| page.retry)
    }
}

/// An orderly end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloseReport {
    /// Log records that the inner sink has taken, in all.
    pub processed: u64,
    /// The highest end among them.
    pub through: Lsn,
}

/// An end that was not orderly; what was not processed is named (I11).
#[derive(Clone, Debug, thiserror::Error)]
pub enum CloseError {
    /// The worker had failed, or `on_close` did.
    #[error(transparent)]
    Failed(#[from] QueueError),
    /// It took too long.
    #[error(
        "decoding did not finish within {after:?}: {records} log records up to {through} were not processed, the last one processed ends at {processed_through}; they are read again at the next start (LF-PG0119)"
    )]
    Deadline {
        /// The bound.
        after: Duration,
        /// How many were left.
        records: u64,
        /// The highest end that was processed.
        processed_through: Lsn,
        /// The highest end that had entered.
        through: Lsn,
    },
}
