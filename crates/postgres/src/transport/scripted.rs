//! Transports for tests: the server's bytes, and a transport that yields what the test puts in.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use landfall_types::Timestamp;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::{Announced, CloseCause, FeedbackHandle, Frame, StatusUpdate, Transport};
use crate::Lsn;

/// A copy message of the server.
fn copy(body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![b'd'];
    bytes.extend_from_slice(&u32::try_from(body.len() + 4).unwrap().to_be_bytes());
    bytes.extend_from_slice(body);
    bytes
}

/// A data message as it is on the wire.
pub(crate) fn data(lsn: u64, payload: &[u8]) -> Vec<u8> {
    let mut body = vec![b'w'];
    for number in [lsn, lsn, 0] {
        body.extend_from_slice(&number.to_be_bytes());
    }
    body.extend_from_slice(payload);
    copy(&body)
}

/// A keepalive as it is on the wire.
pub(crate) fn keepalive(wal_end: u64, wants_reply: bool) -> Vec<u8> {
    let mut body = vec![b'k'];
    for number in [wal_end, 0] {
        body.extend_from_slice(&number.to_be_bytes());
    }
    body.push(u8::from(wants_reply));
    copy(&body)
}

/// Any other message.
pub(crate) fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = copy(body);
    bytes[0] = tag;
    bytes
}

/// An ErrorResponse.
pub(crate) fn error(severity: &str, sqlstate: &str, text: &str) -> Vec<u8> {
    message(b'E', format!("S{severity}\0V{severity}\0C{sqlstate}\0M{text}\0\0").as_bytes())
}

/// A frame that owns its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Owned {
    Data(u64, Vec<u8>),
    KeepAlive(u64, bool),
    Oversized(u64, u64, Vec<u8>),
    Closed(String),
}

impl Owned {
    pub(crate) fn of(frame: &Frame<'_>) -> Self {
        match frame {
            Frame::Data { lsn, bytes, .. } => Owned::Data(lsn.0, bytes.to_vec()),
            Frame::KeepAlive { wal_end, wants_reply, .. } => Owned::KeepAlive(wal_end.0, *wants_reply),
            Frame::Oversized { lsn, len, head, .. } => Owned::Oversized(lsn.0, *len, head.to_vec()),
            Frame::TimelineEnd { next } => Owned::Closed(format!("timeline {next}")),
            Frame::Closed { cause } => Owned::Closed(cause.to_string()),
        }
    }
}

/// Yields what comes through a channel, and ends when its other side is dropped.
#[derive(Debug)]
pub(crate) struct ScriptedTransport {
    frames: mpsc::UnboundedReceiver<Owned>,
    front: Option<Owned>,
    told: Told,
    received: Arc<AtomicU64>,
}

/// What the peer was told, with when.
#[derive(Clone, Debug, Default)]
pub(crate) struct Told(Arc<Mutex<Vec<(StatusUpdate, tokio::time::Instant)>>>, Arc<Mutex<bool>>);

impl Told {
    pub(crate) fn all(&self) -> Vec<StatusUpdate> {
        self.0.lock().iter().map(|(status, _)| *status).collect()
    }

    pub(crate) fn times(&self) -> Vec<tokio::time::Instant> {
        self.0.lock().iter().map(|(_, at)| *at).collect()
    }

    pub(crate) fn is_finished(&self) -> bool {
        *self.1.lock()
    }
}

impl ScriptedTransport {
    pub(crate) fn new() -> (Self, mpsc::UnboundedSender<Owned>, Told) {
        let (send, frames) = mpsc::unbounded_channel();
        let told = Told::default();
        let transport = ScriptedTransport { frames, front: None, told: told.clone(), received: Arc::default() };
        (transport, send, told)
    }
}

impl Transport for ScriptedTransport {
    type Feedback = Told;

    async fn announced(&mut self) -> Announced {
        if self.front.is_none() {
            self.front = Some(self.frames.recv().await.unwrap_or(Owned::Closed("gone".to_owned())));
            self.received.fetch_add(1, Ordering::Relaxed);
        }
        let bytes = match &self.front {
            Some(Owned::Data(_, bytes) | Owned::Oversized(_, _, bytes)) => bytes.len(),
            _ => 0,
        };
        Announced { bytes, is_whole: true, is_end: matches!(self.front, Some(Owned::Closed(_))) }
    }

    async fn next(&mut self) -> Frame<'_> {
        self.announced().await;
        let server_time = Timestamp::default();
        if matches!(self.front, Some(Owned::Closed(_))) {
            return Frame::Closed { cause: CloseCause::Ended };
        }
        // The bytes have to outlive the frame: they stay here until the next call.
        let front = self.front.take();
        match front {
            Some(Owned::Data(lsn, bytes)) => {
                let (lsn, bytes) = (Lsn(lsn), bytes.leak());
                Frame::Data { lsn, end_lsn: lsn, server_time, bytes }
            }
            Some(Owned::KeepAlive(wal_end, wants_reply)) => {
                Frame::KeepAlive { wal_end: Lsn(wal_end), wants_reply, server_time }
            }
            Some(Owned::Oversized(lsn, len, head)) => {
                Frame::Oversized { lsn: Lsn(lsn), len, server_time, head: head.leak() }
            }
            Some(Owned::Closed(_)) | None => Frame::Closed { cause: CloseCause::Ended },
        }
    }

    fn feedback(&mut self) -> Option<Told> {
        Some(self.told.clone())
    }

    fn received_bytes(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.received)
    }
}

impl FeedbackHandle for Told {
    async fn send(&mut self, status: StatusUpdate) -> io::Result<()> {
        self.0.lock().push((status, tokio::time::Instant::now()));
        Ok(())
    }

    async fn finish(&mut self) -> io::Result<()> {
        *self.1.lock() = true;
        Ok(())
    }
}
