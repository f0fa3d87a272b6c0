//! The server's limits of ingest, with their defaults and bounds: keys under `server.ingest` (I6, I14).
//!
//! Every number that an outsider could make grow has its bound here. [`Limits::check`] compares each value
//! with its bounds and the values with each other, so that a contradiction is found before the first stream.

use std::time::Duration;

use landfall_types::ByteSize;

/// The server's limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Payload bytes of one call.
    pub max_call_bytes: ByteSize,
    /// Records of one call.
    pub max_call_records: u64,
    /// From accept to TLS, to the first byte, to the create.
    pub open_timeout: Duration,
    /// The publish deadline of a stream's frame.
    pub stream_deadline: Duration,
    /// How long an HTTP publish waits for its outcome.
    pub commit_wait: Duration,
    /// Bytes that one stream may have open; always at least one call.
    pub stream_unacked_bytes: ByteSize,
    /// Frames that one stream may have open.
    pub stream_unacked_calls: u64,
    /// Bytes held for all streams and requests before the channel's own budget holds them.
    pub memory: ByteSize,
    /// Streams of the process.
    pub max_streams: u64,
    /// Streams of one connection.
    pub max_streams_per_connection: u64,
    /// Connections.
    pub max_connections: u64,
    /// HTTP/2 window of one stream.
    pub stream_window: ByteSize,
    /// Windows of all open streams together.
    pub window_memory: ByteSize,
    /// Between PINGs.
    pub keepalive_interval: Duration,
    /// An unanswered PING ends the connection after this.
    pub keepalive_timeout: Duration,
    /// How long streams are still read after the close signal of a drain.
    pub drain_grace: Duration,
    /// A stream is asked to reconnect at this age; `None`: never.
    pub max_stream_age: Option<Duration>,
    /// Channels made by rule.
    pub max_auto_channels: u64,
    /// HTTP body as sent.
    pub max_body_bytes: ByteSize,
    /// HTTP body after decompression.
    pub max_decoded_body_bytes: ByteSize,
    /// Records of one HTTP request with a key of their own each.
    pub max_keyed_records: u64,
    /// HTTP tails open at a time.
    pub max_tails: u64,
}

/// Bytes of one schema.
pub const MAX_SCHEMA_BYTES: usize = 1 << 20;
/// Fields of one schema.
pub const MAX_SCHEMA_FIELDS: usize = 2_000;
/// Nesting of a JSON record.
pub const MAX_JSON_DEPTH: usize = 128;
/// Nesting of a protobuf or Avro record.
pub const MAX_BINARY_DEPTH: usize = 64;
/// Bytes of a table name.
pub const MAX_TABLE_NAME_BYTES: usize = 255;
/// Decompressed over sent, past the first MiB of an HTTP body.
pub const MAX_BODY_RATIO: u64 = 100;
/// Largest HTTP/2 window.
const MAX_WINDOW: u64 = (1 << 31) - 1;

impl Default for Limits {
    fn default() -> Self {
        Limits {
            max_call_bytes: ByteSize::mib(10),
            max_call_records: 100_000,
            open_timeout: Duration::from_secs(10),
            stream_deadline: Duration::from_secs(30),
            commit_wait: Duration::from_secs(30),
            stream_unacked_bytes: ByteSize::mib(16),
            stream_unacked_calls: 100_000,
            memory: ByteSize::mib(128),
            max_streams: 10_000,
            max_streams_per_connection: 64,
            max_connections: 4_096,
            stream_window: ByteSize::mib(1),
            window_memory: ByteSize::mib(1_280),
            keepalive_interval: Duration::from_secs(20),
            keepalive_timeout: Duration::from_secs(10),
            drain_grace: Duration::from_secs(10),
            max_stream_age: None,
            max_auto_channels: 100,
            max_body_bytes: ByteSize::mib(16),
            max_decoded_body_bytes: ByteSize::mib(64),
            max_keyed_records: 1_000,
            max_tails: 1_000,
        }
    }
}

/// A limit outside its bounds, or two that contradict each other.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`server.ingest.{key}` is {value}: {bound}")]
pub struct LimitError {
    /// The key under `server.ingest`.
    pub key: &'static str,
    /// Its value.
    pub value: String,
    /// What is allowed.
    pub bound: String,
}

impl Limits {
    /// The transport's message limit: a bound only, since the server's own check of a call answers first.
    pub fn transport_message_bytes(&self) -> usize {
        let bytes = self.max_call_bytes.get();
        usize::try_from(bytes + bytes / 2 + (64 << 10)).unwrap_or(usize::MAX)
    }

    /// The HTTP/2 window of a connection: one stream more than it may have, so that stalled streams leave
    /// a sibling its window.
    pub fn connection_window(&self) -> u32 {
        let streams = self.max_streams_per_connection.saturating_add(1);
        u32::try_from(streams.saturating_mul(self.stream_window.get()).min(MAX_WINDOW)).unwrap_or(u32::MAX)
    }

    /// Every value outside its bounds and every contradiction; empty when all is well.
    pub fn check(&self) -> Vec<LimitError> {
        let kib = |n: u64| n << 10;
        let mib = |n: u64| n << 20;
        let gib = |n: u64| n << 30;
        let secs = Duration::from_secs;
        let mut found = Found(Vec::new());
        found.size("max_call_bytes", self.max_call_bytes, kib(1), mib(64));
        found.count("max_call_records", self.max_call_records, 1, 1_000_000);
        found.time("open_timeout", self.open_timeout, Duration::from_millis(100), secs(60));
        found.time("stream_deadline", self.stream_deadline, secs(1), secs(300));
        found.time("commit_wait", self.commit_wait, secs(1), secs(300));
        found.size("stream_unacked_bytes", self.stream_unacked_bytes, kib(64), gib(1));
        found.count("stream_unacked_calls", self.stream_unacked_calls, 1, 1_000_000);
        found.size("memory", self.memory, self.max_call_bytes.get().saturating_mul(2), gib(64));
        found.count("max_streams", self.max_streams, 1, 1_000_000);
        found.count("max_streams_per_connection", self.max_streams_per_connection, 1, 32_766);
        found.count("max_connections", self.max_connections, 1, 1_000_000);
        found.size("stream_window", self.stream_window, kib(64), mib(16));
        found.size("window_memory", self.window_memory, mib(16), gib(64));
        found.time("keepalive_interval", self.keepalive_interval, secs(1), secs(600));
        found.time("keepalive_timeout", self.keepalive_timeout, secs(1), secs(600));
        found.time("drain_grace", self.drain_grace, Duration::ZERO, secs(3_600));
        if let Some(age) = self.max_stream_age {
            found.time("max_stream_age", age, secs(60), secs(7 * 86_400));
        }
        found.count("max_auto_channels", self.max_auto_channels, 0, 10_000);
        found.size("max_body_bytes", self.max_body_bytes, 1, gib(1));
        found.size("max_decoded_body_bytes", self.max_decoded_body_bytes, self.max_body_bytes.get(), gib(4));
        found.count("max_keyed_records", self.max_keyed_records, 1, 10_000);
        found.count("max_tails", self.max_tails, 0, 65_536);
        let window = self.stream_window.get().saturating_mul(self.max_streams_per_connection.saturating_add(1));
        if window > MAX_WINDOW {
            found.0.push(LimitError {
                key: "stream_window",
                value: self.stream_window.to_string(),
                bound: format!(
                    "times (max_streams_per_connection + 1 = {}) it must not exceed {MAX_WINDOW}, the largest HTTP/2 window",
                    self.max_streams_per_connection.saturating_add(1)
                ),
            });
        }
        found.0
    }
}

struct Found(Vec<LimitError>);

impl Found {
    fn size(&mut self, key: &'static str, value: ByteSize, min: u64, max: u64) {
        if !(min..=max).contains(&value.get()) {
            let bound = format!("expected {} to {}", ByteSize(min), ByteSize(max));
            self.0.push(LimitError { key, value: value.to_string(), bound });
        }
    }

    fn count(&mut self, key: &'static str, value: u64, min: u64, max: u64) {
        if !(min..=max).contains(&value) {
            self.0.push(LimitError { key, value: value.to_string(), bound: format!("expected {min} to {max}") });
        }
    }

    fn time(&mut self, key: &'static str, value: Duration, min: Duration, max: Duration) {
        if !(min..=max).contains(&value) {
            self.0.push(LimitError { key, value: format!("{value:?}"), bound: format!("expected {min:?} to {max:?}") });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch defaults that contradict each other.
    #[test]
    fn the_defaults_stand_their_own_check() {
        assert_eq!(Limits::default().check(), []);
        assert_eq!(Limits::default().transport_message_bytes(), 15 * (1 << 20) + (64 << 10));
        assert_eq!(Limits::default().connection_window(), 65 << 20);
    }

    /// Would catch a bound that names the wrong key, and a window product that overflows HTTP/2.
    #[test]
    fn each_limit_out_of_bounds_is_named() {
        let limits = Limits {
            max_call_bytes: ByteSize(10),
            max_streams_per_connection: 32_766,
            memory: ByteSize(1),
            ..Limits::default()
        };
        let keys: Vec<_> = limits.check().into_iter().map(|error| error.key).collect();
        assert_eq!(keys, ["max_call_bytes", "memory", "stream_window"]);
    }
}
