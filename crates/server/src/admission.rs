//! How many connections and HTTP/2 streams there may be, and the flow-control windows they are given (G19).
//!
//! A connection gets its stream window at accept: the configured one, or 64 KiB once half of `window_memory` is
//! out. Each HTTP/2 stream is charged that window until it ends, so what peers can make the transport buffer is
//! bounded by one number (I6, I14). Counters only; nothing waits here.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use landfall_protocol::Limits;
use tokio::sync::Notify;

/// The window of connections that come when half of the memory for windows is out.
const SMALL_WINDOW: u64 = 64 << 10;

/// The counts of the process.
#[derive(Debug)]
pub(crate) struct Admission {
    limits: Limits,
    connections: AtomicU64,
    streams: AtomicU64,
    window_bytes: AtomicU64,
}

/// One connection's place, given back on drop.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    admission: Arc<Admission>,
    window: u64,
    streams: AtomicU64,
    /// Told when its last stream has ended.
    idle: Notify,
}

/// One HTTP/2 stream's place, given back on drop.
#[derive(Debug)]
pub(crate) struct StreamPermit {
    connection: Arc<ConnectionPermit>,
}

/// The limit that leaves no place for another stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`server.ingest.{key}` ({limit}) is reached: close streams, or raise it")]
pub(crate) struct Full {
    key: &'static str,
    limit: u64,
}

/// Adds `n` to a counter that stays at most `limit`.
fn take(counter: &AtomicU64, n: u64, limit: u64) -> bool {
    counter
        .fetch_update(Ordering::AcqRel, Ordering::Acquire, |held| held.checked_add(n).filter(|sum| *sum <= limit))
        .is_ok()
}

impl Admission {
    pub(crate) fn new(limits: &Limits) -> Arc<Self> {
        Arc::new(Admission {
            limits: limits.clone(),
            connections: AtomicU64::new(0),
            streams: AtomicU64::new(0),
            window_bytes: AtomicU64::new(0),
        })
    }

    /// A place for a connection; `None`: the limit is reached and it is to be closed.
    pub(crate) fn connect(self: &Arc<Self>) -> Option<Arc<ConnectionPermit>> {
        if !take(&self.connections, 1, self.limits.max_connections) {
            return None;
        }
        let out = self.window_bytes.load(Ordering::Acquire);
        let window = self.limits.stream_window.get();
        let window = if out > self.limits.window_memory.get() / 2 { window.min(SMALL_WINDOW) } else { window };
        let (streams, idle) = (AtomicU64::new(0), Notify::new());
        Some(Arc::new(ConnectionPermit { admission: Arc::clone(self), window, streams, idle }))
    }
}

impl ConnectionPermit {
    /// The window of each of its streams.
    pub(crate) fn stream_window(&self) -> u32 {
        u32::try_from(self.window).unwrap_or(u32::MAX >> 1)
    }

    /// The window of the connection: one stream more than it may have, so that stalled streams leave a sibling
    /// its window. The product is checked at start.
    pub(crate) fn connection_window(&self) -> u32 {
        let window = self.window.saturating_mul(u64::from(self.streams_admitted()));
        u32::try_from(window.min((1 << 31) - 1)).unwrap_or(u32::MAX >> 1)
    }

    /// One stream more than the limit, so that its refusal can be told.
    pub(crate) fn streams_admitted(&self) -> u32 {
        u32::try_from(self.admission.limits.max_streams_per_connection.saturating_add(1)).unwrap_or(u32::MAX)
    }

    /// Waits until none of its HTTP/2 streams is open.
    pub(crate) async fn idle(&self) {
        loop {
            let told = self.idle.notified();
            tokio::pin!(told);
            // Enabled before the look, so that an end in between is not missed.
            told.as_mut().enable();
            if self.streams.load(Ordering::Acquire) == 0 {
                return;
            }
            told.await;
        }
    }

    /// A place for one more HTTP/2 stream.
    pub(crate) fn open_stream(self: &Arc<Self>) -> Result<StreamPermit, Full> {
        let limits = &self.admission.limits;
        let per_connection = limits.max_streams_per_connection;
        if !take(&self.streams, 1, per_connection) {
            return Err(Full { key: "max_streams_per_connection", limit: per_connection });
        }
        if !take(&self.admission.streams, 1, limits.max_streams) {
            self.streams.fetch_sub(1, Ordering::AcqRel);
            return Err(Full { key: "max_streams", limit: limits.max_streams });
        }
        if !take(&self.admission.window_bytes, self.window, limits.window_memory.get()) {
            self.streams.fetch_sub(1, Ordering::AcqRel);
            self.admission.streams.fetch_sub(1, Ordering::AcqRel);
            return Err(Full { key: "window_memory", limit: limits.window_memory.get() });
        }
        Ok(StreamPermit { connection: Arc::clone(self) })
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.admission.connections.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let connection = &self.connection;
        if connection.streams.fetch_sub(1, Ordering::AcqRel) == 1 {
            connection.idle.notify_waiters();
        }
        connection.admission.streams.fetch_sub(1, Ordering::AcqRel);
        connection.admission.window_bytes.fetch_sub(connection.window, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use landfall_types::ByteSize;

    use super::*;

    /// Would catch a place that is not given back, and a refusal that names the wrong limit.
    #[test]
    fn places_are_counted_and_given_back() {
        let limits = Limits {
            max_connections: 2,
            max_streams: 3,
            max_streams_per_connection: 2,
            stream_window: ByteSize::mib(1),
            window_memory: ByteSize::mib(16),
            ..Limits::default()
        };
        let admission = Admission::new(&limits);
        let (a, b) = (admission.connect().unwrap(), admission.connect().unwrap());
        assert!(admission.connect().is_none());
        let first = a.open_stream().unwrap();
        let second = a.open_stream().unwrap();
        assert_eq!(a.open_stream().unwrap_err().key, "max_streams_per_connection");
        let third = b.open_stream().unwrap();
        assert_eq!(b.open_stream().unwrap_err().key, "max_streams");
        drop((first, second, third));
        assert_eq!(admission.streams.load(Ordering::SeqCst), 0);
        assert_eq!(admission.window_bytes.load(Ordering::SeqCst), 0);
        drop((a, b));
        assert!(admission.connect().is_some());
    }

    /// Would catch windows that add up to more than their memory, and late connections left without any.
    #[test]
    fn windows_shrink_when_half_of_their_memory_is_out() {
        let limits = Limits {
            max_streams_per_connection: 100,
            stream_window: ByteSize::mib(1),
            window_memory: ByteSize::mib(16),
            ..Limits::default()
        };
        let admission = Admission::new(&limits);
        let a = admission.connect().unwrap();
        let held: Vec<_> = (0..16).map(|_| a.open_stream().unwrap()).collect();
        assert_eq!(a.open_stream().unwrap_err().key, "window_memory");
        let late = admission.connect().unwrap();
        assert_eq!(late.stream_window(), 64 << 10);
        assert_eq!(late.connection_window(), 101 * (64 << 10));
        drop(held);
    }
}
