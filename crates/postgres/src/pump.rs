//! The pump: moves log records from a transport into the queue, and nothing else (P10).
//!
//! It waits for room, takes one frame, copies it into the open bundle, ships a full bundle, and flushes at the end of a
//! read. No decoding, SQL, disk or sink work: whatever the decoder waits for, the bytes keep moving until the queue is
//! full, and then they stay in the socket (P11). Feedback has a task of its own, so a parked pump starves nobody (P18,
//! P47). Keepalives become log records and travel in order.

use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures::poll;
use landfall_types::{Code, Coded, Kind, Retry, Timestamp};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::connect::{SILENT_PEER, page_of};
use crate::feedback::{DurableLsn, FeedbackEnd, FeedbackRules, FeedbackTask, StreamProgress};
use crate::log_record::{LogRecord, RecordKind};
use crate::meters::{ReadCounts, StreamMeters};
use crate::queue::{Need, QueueError, QueueingSink};
use crate::transport::{CloseCause, Frame, Transport};
use crate::{Lsn, Xid};

/// How long the feedback task may take to send its last message.
const LAST_FEEDBACK: Duration = Duration::from_secs(5);

/// Why a pump ended.
#[derive(Debug, thiserror::Error)]
pub enum PumpEnd {
    /// It was told to stop.
    #[error("the stream was stopped")]
    Stopped,
    /// The transport ended.
    #[error(transparent)]
    Closed(#[from] CloseCause),
    /// Nothing came, not even the answer that was asked for.
    #[error("the server sent nothing for {:.0?} while we were reading; connecting again (LF-PG0108)", .0)]
    Silent(Duration),
    /// The queue worker failed.
    #[error(transparent)]
    Queue(#[from] QueueError),
}

impl PumpEnd {
    /// Whether another connection may go on where this one ended.
    pub fn may_reconnect(&self) -> bool {
        matches!(self, PumpEnd::Closed(_) | PumpEnd::Silent(_))
    }
}

impl Coded for PumpEnd {
    fn code(&self) -> Code {
        match self {
            PumpEnd::Stopped => crate::connect::STREAM_ENDED,
            PumpEnd::Closed(cause) => cause.code(),
            PumpEnd::Silent(_) => SILENT_PEER,
            PumpEnd::Queue(error) => error.code(),
        }
    }

    fn kind(&self) -> Kind {
        page_of(self.code()).map_or(Kind::Unavailable, |page| page.kind)
    }

    fn retry(&self) -> Retry {
        page_of(self.code()).map_or(Retry::Later, |page| page.retry)
    }
}

/// What a pump works with besides transport and queue.
#[derive(Debug)]
pub struct PumpParts {
    /// Where the stream was started.
    pub from: Lsn,
    /// What may be confirmed.
    pub durable: Arc<DurableLsn>,
    /// When.
    pub rules: FeedbackRules,
    /// Metrics.
    pub meters: StreamMeters,
    /// Becomes true to stop; a dropped sender stops too.
    pub stop: watch::Receiver<bool>,
}

/// Pumps until the stream ends, the peer is silent, the queue fails, or it is told to stop; what was taken by then is
/// in the queue. The queue lives on: the next connection's records follow a `StreamStart`.
pub async fn pump<T: Transport>(mut transport: T, queue: &mut QueueingSink, parts: PumpParts) -> PumpEnd {
    let PumpParts { from, durable, rules, meters, mut stop } = parts;
    let progress = StreamProgress::new(from, transport.received_bytes());
    let Some(handle) = transport.feedback() else {
        return PumpEnd::Closed(CloseCause::Violation("a transport that has been pumped before".to_owned()));
    };
    let task = FeedbackTask { handle, rules, progress: Arc::clone(&progress), durable, meters: meters.clone() };
    let mut feedback = AbortOnDrop(tokio::spawn(task.run()));
    let mut pump = Pump { transport, queue, progress: Arc::clone(&progress), meters, counts: ReadCounts::default() };
    let ended = tokio::select! {
        ended = pump.run(from) => ended,
        ended = &mut feedback.0 => match ended {
            Ok(FeedbackEnd::Silent(silent)) => PumpEnd::Silent(silent),
            Ok(FeedbackEnd::Broken(error)) => PumpEnd::Closed(CloseCause::lost(error)),
            // It ends by itself for no other reason; a panic of it is a defect, told as a lost connection.
            Ok(FeedbackEnd::Stopped) | Err(_) => {
                PumpEnd::Closed(CloseCause::lost(std::io::Error::other("the feedback task ended")))
            }
        },
        _ = stop.wait_for(|is_stopped| *is_stopped) => PumpEnd::Stopped,
    };
    pump.meters.read(&mut pump.counts);
    // Bundles that are open go on their way, whatever ended the stream; a failure of the queue is the cause then.
    let ended = match pump.queue.flush() {
        Err(error) => PumpEnd::Queue(error),
        Ok(()) => ended,
    };
    if !feedback.0.is_finished() {
        progress.stop();
        let _ = tokio::time::timeout(LAST_FEEDBACK, &mut feedback.0).await;
    }
    ended
}

struct AbortOnDrop(JoinHandle<FeedbackEnd>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct Pump<'a, T> {
    transport: T,
    queue: &'a mut QueueingSink,
    progress: Arc<StreamProgress>,
    meters: StreamMeters,
    counts: ReadCounts,
}

impl<T: Transport> Pump<'_, T> {
    async fn run(&mut self, from: Lsn) -> PumpEnd {
        let Err(end) = self.pump(from).await;
        end
    }

    async fn pump(&mut self, from: Lsn) -> Result<std::convert::Infallible, PumpEnd> {
        let mut transaction = OpenTransaction::default();
        let start = LogRecord { lsn: from, end_lsn: from, kind: RecordKind::StreamStart, ..LogRecord::default() };
        let room = wait_for_room(self.queue, &self.progress, 0).await?;
        self.counts.add(start.kind, 0);
        self.queue.on_record(room, &start)?;
        loop {
            let announced = {
                let mut announced = pin!(self.transport.announced());
                match poll!(announced.as_mut()) {
                    Poll::Ready(announced) => announced,
                    Poll::Pending => {
                        // The end of a read: nothing is ready, so nothing is held back (P16).
                        self.queue.flush()?;
                        self.meters.read(&mut self.counts);
                        // A peer may be silent for long: the end of the worker is not to wait for its next word.
                        let queue = &mut *self.queue;
                        std::future::poll_fn(|cx| match queue.poll_failure(cx) {
                            Poll::Ready(error) => Poll::Ready(Err(error)),
                            Poll::Pending => announced.as_mut().poll(cx).map(Ok),
                        })
                        .await?
                    }
                }
            };
            if announced.is_end {
                if let Frame::Closed { cause } = self.transport.next().await {
                    return Err(cause.into());
                }
                continue;
            }
            if !announced.is_whole {
                self.queue.flush()?;
                self.meters.read(&mut self.counts);
            }
            let room = wait_for_room(self.queue, &self.progress, announced.bytes).await?;
            let record = match self.transport.next().await {
                Frame::Data { lsn, end_lsn, server_time, bytes } => {
                    let end_lsn = end_lsn.max(lsn);
                    self.progress.received(end_lsn);
                    transaction.message(bytes, LogRecord { lsn, end_lsn, sent_at: server_time, bytes, ..no_record() })
                }
                Frame::KeepAlive { wal_end, wants_reply, server_time } => {
                    self.progress.received(wal_end);
                    self.progress.server_end(wal_end);
                    if wants_reply {
                        self.progress.reply_wanted();
                    }
                    control(RecordKind::KeepAlive, wal_end, server_time)
                }
                Frame::Oversized { lsn, len, server_time, head } => {
                    self.progress.received(lsn);
                    let kind = RecordKind::Oversized { len };
                    let record = LogRecord { lsn, end_lsn: lsn, kind, sent_at: server_time, ..no_record() };
                    LogRecord { bytes: head, xid: transaction.xid, ..record }
                }
                Frame::TimelineEnd { next } => {
                    control(RecordKind::TimelineEnd { next }, Lsn::ZERO, Timestamp::default())
                }
                Frame::Closed { cause } => return Err(cause.into()),
            };
            self.counts.add(record.kind, record.bytes.len());
            self.queue.on_record(room, &record)?;
        }
    }
}

/// Room for a message, with the liveness clock standing while it is waited for (P48).
async fn wait_for_room(
    queue: &mut QueueingSink,
    progress: &StreamProgress,
    bytes: usize,
) -> Result<crate::queue::Room, QueueError> {
    let mut room = pin!(queue.room(Need::bytes(bytes)));
    match poll!(room.as_mut()) {
        Poll::Ready(room) => room,
        Poll::Pending => {
            progress.parked(true);
            let room = room.await;
            progress.parked(false);
            room
        }
    }
}

fn no_record() -> LogRecord<'static> {
    LogRecord::default()
}

fn control(kind: RecordKind, end: Lsn, sent_at: Timestamp) -> LogRecord<'static> {
    LogRecord { lsn: end, end_lsn: end, kind, sent_at, ..no_record() }
}

/// Which transaction messages belong to: told once, at its beginning, and needed with each for a trace (P33). This looks
/// at the first bytes only; it decodes nothing, and a message that is cut short leaves things as they are.
#[derive(Debug, Default)]
pub(crate) struct OpenTransaction {
    xid: Xid,
}

impl OpenTransaction {
    /// Gives the record its transaction.
    fn message<'a>(&mut self, bytes: &[u8], record: LogRecord<'a>) -> LogRecord<'a> {
        let xid_at = |at: usize| {
            let four = bytes.get(at..).and_then(|rest| rest.first_chunk::<4>());
            four.map(|four| Xid(u32::from_be_bytes(*four)))
        };
        let (own, after) = match bytes.first() {
            // Begin: final position, time, number.
            Some(b'B') => (xid_at(17), xid_at(17)),
            // Begin of a prepared one: two positions, time, number.
            Some(b'b') => (xid_at(25), xid_at(25)),
            // A piece of a streamed one begins.
            Some(b'S') => (xid_at(1), xid_at(1)),
            // Commit, prepare, the end of a piece: the last message of it.
            Some(b'C' | b'P' | b'E') => (None, Some(Xid::default())),
            // Commit and abort of a streamed one name it.
            Some(b'c' | b'A') => (xid_at(1), Some(Xid::default())),
            _ => (None, None),
        };
        let record = LogRecord { xid: own.unwrap_or(self.xid), ..record };
        if let Some(after) = after {
            self.xid = after;
        }
        record
    }
}

#[cfg(all(test, not(feature = "loom")))]
#[path = "pump_tests.rs"]
mod tests;
