//! Transports: where log records come from (P2).
//!
//! A transport yields frames and never acknowledges anything by itself, a keepalive included; feedback has a handle of
//! its own that works while nobody reads. A frame is announced before it is in memory, so that room for it can be held
//! first and a full queue leaves the bytes in the socket (P11). All waiting here is cancel-safe.

mod commands;
mod copy_frames;
mod copy_out;
mod frames;
mod gather;
mod login;
mod replication;
mod session;
mod stream;
mod wire;

#[cfg(all(test, not(feature = "loom")))]
mod frames_tests;
#[cfg(all(test, not(feature = "loom")))]
pub(crate) mod scripted;
#[cfg(all(test, not(feature = "loom")))]
mod tests;

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use landfall_types::{Code, Coded, Kind, Retry, Timestamp};

use crate::Lsn;
use crate::code;
use crate::connect::{PROTOCOL, STREAM_ENDED, ServerError, page_of};

pub use commands::{CreateSlot, ServerVersion, SnapshotUse, StreamOptions, TimelineSwitch};
pub(crate) use copy_frames::{CopyFault, CopyPiece, READ_AHEAD as COPY_READ_AHEAD};
pub(crate) use copy_out::CopyConnection;
pub use replication::{CreatedSlot, ReplicationConnection, SystemIdentity};
pub use stream::{ReplicationFeedback, ReplicationTransport};

/// What comes next, before it is in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announced {
    /// How many bytes of a message it brings into memory.
    pub bytes: usize,
    /// Whether taking it needs no more reading.
    pub is_whole: bool,
    /// Whether it is the end: it needs no room.
    pub is_end: bool,
}

/// One unit out of a transport.
#[derive(Debug)]
pub enum Frame<'a> {
    /// A message.
    Data {
        /// Where it starts in the server's log.
        lsn: Lsn,
        /// Where it ends, as the server tells: in a logical stream the same.
        end_lsn: Lsn,
        /// When it was sent.
        server_time: Timestamp,
        /// The message.
        bytes: &'a [u8],
    },
    /// The server lives, and its log reaches so far.
    KeepAlive {
        /// The end of the log that the server has looked through for us.
        wal_end: Lsn,
        /// Whether it wants to hear from us at once.
        wants_reply: bool,
        /// When it was sent.
        server_time: Timestamp,
    },
    /// A message over the limit; the rest of it is thrown away as it comes.
    Oversized {
        /// Where it starts.
        lsn: Lsn,
        /// How many bytes it has.
        len: u64,
        /// When it was sent.
        server_time: Timestamp,
        /// Its first bytes.
        head: &'a [u8],
    },
    /// The log goes on in another timeline; physical streams only.
    TimelineEnd {
        /// Which one.
        next: u32,
    },
    /// Nothing more comes; asked again, it says so again.
    Closed {
        /// Why.
        cause: CloseCause,
    },
}

/// Why a transport has ended.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CloseCause {
    /// The server ended it with an error.
    #[error("the server ended the stream: {0} (LF-PG0118)")]
    Server(#[source] Box<ServerError>),
    /// The server ended it in order, as at its shutdown.
    #[error("the server ended the stream, as it does at its shutdown (LF-PG0118)")]
    Ended,
    /// The connection broke.
    #[error("the replication connection broke: {0} (LF-PG0107)")]
    Lost(#[source] Arc<io::Error>),
    /// What came is not of the protocol.
    #[error("the replication stream is damaged: {0} (LF-PG0117)")]
    Violation(String),
}

impl CloseCause {
    pub(crate) fn lost(error: io::Error) -> Self {
        CloseCause::Lost(Arc::new(error))
    }
}

impl Coded for CloseCause {
    fn code(&self) -> Code {
        match self {
            CloseCause::Server(_) | CloseCause::Ended => STREAM_ENDED,
            CloseCause::Lost(_) => code::CONNECTION_LOST,
            CloseCause::Violation(_) => PROTOCOL,
        }
    }

    fn kind(&self) -> Kind {
        page_of(self.code()).map_or(Kind::Unavailable, |page| page.kind)
    }

    fn retry(&self) -> Retry {
        page_of(self.code()).map_or(Retry::Later, |page| page.retry)
    }
}

/// What we tell the server (P43).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatusUpdate {
    /// The end of the last frame taken. Frees nothing on the server.
    pub write: Lsn,
    /// What is durable for good: the server forgets what lies before it.
    pub flush: Lsn,
    /// The same as `flush`.
    pub apply: Lsn,
    /// Whether the server shall answer at once.
    pub wants_reply: bool,
}

/// The way back to the server. Works while nobody reads from the transport.
pub trait FeedbackHandle: Send + 'static {
    /// Sends a status update. Cancel-safe: what is half sent is finished by the next call.
    fn send(&mut self, status: StatusUpdate) -> impl Future<Output = io::Result<()>> + Send;

    /// Says that we are done; nothing is sent after it.
    fn finish(&mut self) -> impl Future<Output = io::Result<()>> + Send;
}

/// See the module.
pub trait Transport: Send + 'static {
    /// Its way back.
    type Feedback: FeedbackHandle;

    /// Waits until it is known what comes next. Cancel-safe, and the same answer until the frame is taken.
    fn announced(&mut self) -> impl Future<Output = Announced> + Send;

    /// The frame that was announced. Cancel-safe: nothing is lost if the future is dropped.
    fn next(&mut self) -> impl Future<Output = Frame<'_>> + Send;

    /// The way back; the first call gets it.
    fn feedback(&mut self) -> Option<Self::Feedback>;

    /// How many bytes have come in so far: a large message on its way is no silence (P48).
    fn received_bytes(&self) -> Arc<AtomicU64>;
}
