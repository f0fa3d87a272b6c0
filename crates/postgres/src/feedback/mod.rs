//! Feedback: what the server is told, and when (P42–P48).
//!
//! The rules are a synchronous core that takes time as an argument; the task around it holds the transport's way back,
//! reads what the pump and the controller wrote, and does nothing else, so that no full queue and no blocked sink can
//! stop it (P18, P47). Only the durable LSN is ever confirmed (I7): a number comes here after the checkpoint holds it
//! (P44). Each number has its own floor and never falls within one connection.

mod core;
mod keepalive;
mod task;

#[cfg(all(test, not(feature = "loom")))]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

pub(crate) use self::core::{FeedbackCore, FeedbackStep, Sight};
pub use keepalive::{KeepAliveAdvance, Pending};
pub use task::FeedbackEnd;
pub(crate) use task::FeedbackTask;

use crate::Lsn;

/// When feedback is sent and a peer is called silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedbackRules {
    /// At least this often.
    pub interval: Duration,
    /// With nothing received while reading for this long, the peer is gone; after a third of it, it is asked.
    pub liveness: Duration,
}

/// Between two messages that only say that the durable LSN moved.
pub const MOVED_INTERVAL: Duration = Duration::from_secs(1);

impl FeedbackRules {
    /// With the configured numbers, and more often if the server would lose patience: a third of its
    /// `wal_sender_timeout`. Zero there means that it never does, and changes nothing (P42).
    pub fn new(interval: Duration, liveness: Duration, wal_sender_timeout: Duration) -> Self {
        let third = wal_sender_timeout / 3;
        let interval = if third.is_zero() { interval } else { interval.min(third) };
        FeedbackRules { interval, liveness }
    }
}

impl Default for FeedbackRules {
    fn default() -> Self {
        FeedbackRules { interval: Duration::from_secs(10), liveness: Duration::from_secs(90) }
    }
}

/// The durable LSN: the end of what every sink has made durable and the stored checkpoint holds (P44).
///
/// The controller moves it, the feedback task of the connection of the day reads it; it outlives connections.
#[derive(Debug)]
pub struct DurableLsn {
    lsn: AtomicU64,
    moved: Notify,
    /// Touched once per message to the server.
    sent_at: parking_lot::Mutex<Option<Instant>>,
}

impl DurableLsn {
    /// Starts at the checkpoint's `through`.
    pub fn new(through: Lsn) -> Arc<Self> {
        Arc::new(DurableLsn {
            lsn: AtomicU64::new(through.0),
            moved: Notify::new(),
            sent_at: parking_lot::Mutex::new(None),
        })
    }

    /// The stored checkpoint holds everything before `through`. A smaller number than before changes nothing.
    pub fn advance(&self, through: Lsn) {
        if self.lsn.fetch_max(through.0, Ordering::AcqRel) < through.0 {
            self.moved.notify_one();
        }
    }

    /// Where it is.
    pub fn get(&self) -> Lsn {
        Lsn(self.lsn.load(Ordering::Acquire))
    }

    /// How long ago the server was last told anything.
    pub fn feedback_age(&self) -> Option<Duration> {
        let sent_at = *self.sent_at.lock();
        sent_at.map(|sent_at| tokio::time::Instant::now().into_std().saturating_duration_since(sent_at))
    }

    fn told(&self, now: Instant) {
        *self.sent_at.lock() = Some(now);
    }
}

/// What the pump of one connection shows its feedback task.
#[derive(Debug)]
pub(crate) struct StreamProgress {
    /// The end of the last frame taken.
    received: AtomicU64,
    /// The end of the server's log, as it last said.
    server_end: AtomicU64,
    /// Bytes that have come in; the transport counts them.
    bytes: Arc<AtomicU64>,
    is_parked: AtomicBool,
    wants_reply: AtomicBool,
    is_stopped: AtomicBool,
    wake: Notify,
}

impl StreamProgress {
    pub(crate) fn new(from: Lsn, bytes: Arc<AtomicU64>) -> Arc<Self> {
        Arc::new(StreamProgress {
            received: AtomicU64::new(from.0),
            server_end: AtomicU64::new(from.0),
            bytes,
            is_parked: AtomicBool::new(false),
            wants_reply: AtomicBool::new(false),
            is_stopped: AtomicBool::new(false),
            wake: Notify::new(),
        })
    }

    /// Pump, the only writer: a frame that ends here was taken.
    pub(crate) fn received(&self, end: Lsn) {
        if self.received.load(Ordering::Relaxed) < end.0 {
            self.received.store(end.0, Ordering::Release);
        }
    }

    /// Pump: the server said how far its log reaches.
    pub(crate) fn server_end(&self, end: Lsn) {
        self.server_end.fetch_max(end.0, Ordering::Relaxed);
    }

    /// Pump: a keepalive wants an answer.
    pub(crate) fn reply_wanted(&self) {
        self.wants_reply.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    /// Pump: whether it waits for room instead of reading.
    pub(crate) fn parked(&self, is_parked: bool) {
        self.is_parked.store(is_parked, Ordering::Release);
    }

    /// The stream is over: one last message.
    pub(crate) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    pub(crate) fn sight(&self, durable: &DurableLsn) -> Sight {
        Sight {
            received: Lsn(self.received.load(Ordering::Acquire)),
            durable: durable.get(),
            bytes: self.bytes.load(Ordering::Relaxed),
            is_reading: !self.is_parked.load(Ordering::Acquire),
        }
    }
}
