//! One unit out of a transport, and the trait of what takes them in order (P3).
//!
//! A [`LogRecord`] borrows its bytes: from the transport's buffer on the pump's side, from a bundle's arena behind the
//! queue. A [`RecordSink`] is called once per bundle through a pointer and once per record without one; nothing is
//! boxed per record. Fields of physical log records are here from the start, empty in a logical stream, so that a
//! second transport needs no second seam (P9). Nothing here decodes.

use std::task::{Context, Poll, ready};

use landfall_types::Timestamp;

use crate::queue::BundleView;
use crate::{Lsn, Xid};

/// What a log record is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RecordKind {
    /// One message of the output plugin, or one physical log record.
    #[default]
    Message,
    /// The server says how far its log reaches: `end_lsn`. It travels in order, so it cannot overtake data (P10).
    KeepAlive,
    /// A message over the limit: `bytes` is its beginning only (P5).
    Oversized {
        /// How many bytes the whole message has.
        len: u64,
    },
    /// A connection begins to deliver from `lsn` on. What was open in the one before is void and comes again (P50).
    StreamStart,
    /// The log goes on in another timeline.
    TimelineEnd {
        /// Which one.
        next: u32,
    },
}

impl RecordKind {
    /// The label of `pg_log_records_total`.
    pub const fn label(self) -> &'static str {
        match self {
            RecordKind::Message => "message",
            RecordKind::KeepAlive => "keepalive",
            RecordKind::Oversized { .. } => "oversized",
            RecordKind::StreamStart => "stream_start",
            RecordKind::TimelineEnd { .. } => "timeline_end",
        }
    }
}

/// How a physical log record ends its transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Boundary {
    /// It commits, at this time of the server.
    Commit(Timestamp),
    /// It rolls back.
    Abort,
    /// It is prepared.
    Prepare,
}

/// One log record with its bytes borrowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogRecord<'a> {
    /// Where it starts in the server's log, as the transport tells.
    pub lsn: Lsn,
    /// Where it ends.
    pub end_lsn: Lsn,
    /// The transaction that it belongs to; 0 for none.
    pub xid: Xid,
    /// Its sub-transaction; 0 for none or where only the message tells.
    pub subxid: Xid,
    /// What it is.
    pub kind: RecordKind,
    /// When the server sent it; 0 if it does not say.
    pub sent_at: Timestamp,
    /// The message, without any framing of the transport.
    pub bytes: &'a [u8],
    /// The format of the log page that it was read from; 0 in a logical stream.
    pub page_version: u16,
    /// The database that it is about; 0 in a logical stream, which has one.
    pub route: u32,
    /// How it ends its transaction; `None` in a logical stream, where a message tells.
    pub boundary: Option<Boundary>,
    /// Sub-transactions that are rolled back with it; empty in a logical stream.
    pub aborted: &'a [Xid],
    /// Whether it must wait until the catalog before it is known; false in a logical stream.
    pub is_deferred: bool,
}

/// Why a record sink gave up. Shared by everyone who asks, so that each of them reads the root cause (P38).
pub type RecordSinkError = Box<dyn std::error::Error + Send + Sync + 'static>;

/// Takes log records in order: the decoder. All calls come from one task, never two at once.
///
/// An error ends the queue: nothing is handed over after it (P26). Calls must not block the thread; to wait for room
/// downstream, be pending in [`poll_room`](RecordSink::poll_room). What is waited for there must not need more log
/// records of the same pump (P18).
pub trait RecordSink: Send {
    /// Takes the next log record. Synchronous: where it can be that there is no room, `poll_room` waits before it.
    fn on_record(&mut self, record: &LogRecord<'_>) -> Result<(), RecordSinkError>;

    /// Asked before each record: pending while there is no room for what it may bring about.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), RecordSinkError>> {
        let _ = cx;
        Poll::Ready(Ok(()))
    }

    /// All log records up to `lsn` have been handed over (P24): a position may move although nothing was committed.
    fn on_idle_advance(&mut self, lsn: Lsn) -> Result<(), RecordSinkError> {
        let _ = lsn;
        Ok(())
    }

    /// Called on a cadence, with and without traffic, and while `poll_room` is pending: work that depends on time (P25).
    fn on_idle(&mut self) -> Result<(), RecordSinkError> {
        Ok(())
    }

    /// The last call of an orderly end, once (P30): finish what is held open.
    fn on_close(&mut self) -> Result<(), RecordSinkError> {
        Ok(())
    }

    /// Takes a bundle, and is called again with the rest of it after it was pending. The body calls
    /// [`on_record`](RecordSink::on_record) for one record after the other; whoever replaces it must do the same in
    /// effect, and call [`BundleView::advance`] after each record.
    fn on_bundle(&mut self, cx: &mut Context<'_>, bundle: &mut BundleView<'_>) -> Poll<Result<(), RecordSinkError>> {
        hand_over(self, cx, bundle)
    }
}

/// One record of a bundle after the other, for who does something before or after them.
pub(crate) fn hand_over<S: RecordSink + ?Sized>(
    sink: &mut S,
    cx: &mut Context<'_>,
    bundle: &mut BundleView<'_>,
) -> Poll<Result<(), RecordSinkError>> {
    if bundle.is_traced() {
        return poll_traced(sink, cx, bundle);
    }
    while let Some(record) = bundle.current() {
        ready!(sink.poll_room(cx))?;
        sink.on_record(&record)?;
        bundle.advance();
    }
    Poll::Ready(Ok(()))
}

/// The loop with spans, apart from the one that has none to look for.
fn poll_traced<S: RecordSink + ?Sized>(
    sink: &mut S,
    cx: &mut Context<'_>,
    bundle: &mut BundleView<'_>,
) -> Poll<Result<(), RecordSinkError>> {
    while let Some(record) = bundle.current() {
        ready!(sink.poll_room(cx))?;
        bundle.span().in_scope(|| sink.on_record(&record))?;
        bundle.advance();
    }
    Poll::Ready(Ok(()))
}
