//! The options of a client and of its streams, with their defaults and bounds (I6).
//!
//! All are checked together when a stream is opened; one out of bounds is an error with its name, its value
//! and the bound. No secret is shown.

use std::time::Duration;

use landfall_types::ByteSize;

use crate::call::RECORD_OVERHEAD;
use crate::error::IngestError;

/// What happens when a sub-stream is lost: no acknowledgement for the whole `recovery_budget`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnLoss {
    /// While another sub-stream is open it gets no new calls and is opened again at the slowest pace; its calls
    /// keep their ids and order.
    #[default]
    Replace,
    /// The stream is poisoned.
    Poison,
}

/// Compression of messages on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// None.
    #[default]
    None,
    /// gzip.
    Gzip,
    /// zstd.
    Zstd,
}

/// Options of connections.
#[derive(Clone, Debug)]
pub(crate) struct ConnectOptions {
    pub(crate) connect_timeout: Duration,
    pub(crate) keepalive_interval: Option<Duration>,
    pub(crate) keepalive_timeout: Duration,
    pub(crate) application: String,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        ConnectOptions {
            connect_timeout: Duration::from_secs(10),
            keepalive_interval: Some(Duration::from_secs(20)),
            keepalive_timeout: Duration::from_secs(10),
            application: String::new(),
        }
    }
}

/// Options of a stream.
#[derive(Clone, Debug)]
pub(crate) struct StreamOptions {
    pub(crate) max_in_flight_records: u64,
    pub(crate) max_in_flight_bytes: ByteSize,
    pub(crate) max_call_bytes: ByteSize,
    pub(crate) max_call_records: u64,
    pub(crate) capacity_wait: Duration,
    pub(crate) coalesce_records: u64,
    pub(crate) coalesce_bytes: ByteSize,
    pub(crate) coalesce_linger: Duration,
    pub(crate) compression: Compression,
    pub(crate) open_timeout: Duration,
    pub(crate) ack_timeout: Duration,
    pub(crate) flush_timeout: Duration,
    pub(crate) wait_timeout: Duration,
    pub(crate) close_timeout: Duration,
    pub(crate) recovery_budget: Duration,
    pub(crate) backoff_initial: Duration,
    pub(crate) backoff_max: Duration,
    pub(crate) pause_max: Option<Duration>,
    pub(crate) on_loss: OnLoss,
    pub(crate) connection_per_sub_stream: bool,
}

impl Default for StreamOptions {
    fn default() -> Self {
        let secs = Duration::from_secs;
        StreamOptions {
            max_in_flight_records: 1_000_000,
            max_in_flight_bytes: ByteSize::mib(64),
            max_call_bytes: ByteSize(10_420_224),
            max_call_records: 10_000,
            capacity_wait: secs(30),
            coalesce_records: 4_096,
            coalesce_bytes: ByteSize::kib(256),
            coalesce_linger: Duration::ZERO,
            compression: Compression::None,
            open_timeout: secs(15),
            ack_timeout: secs(60),
            flush_timeout: secs(120),
            wait_timeout: secs(120),
            close_timeout: secs(60),
            recovery_budget: secs(300),
            backoff_initial: Duration::from_millis(100),
            backoff_max: secs(10),
            pause_max: None,
            on_loss: OnLoss::Replace,
            connection_per_sub_stream: true,
        }
    }
}

impl ConnectOptions {
    pub(crate) fn check(&self) -> Result<(), IngestError> {
        let secs = Duration::from_secs;
        time("connect_timeout", self.connect_timeout, Duration::from_millis(100), secs(120))?;
        if let Some(interval) = self.keepalive_interval {
            time("keepalive_interval", interval, secs(1), secs(600))?;
        }
        time("keepalive_timeout", self.keepalive_timeout, secs(1), secs(600))?;
        if self.application.len() > 200 || !self.application.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
            return Err(invalid("application", &self.application, "expected up to 200 visible ASCII characters"));
        }
        Ok(())
    }
}

impl StreamOptions {
    pub(crate) fn check(&self) -> Result<(), IngestError> {
        let secs = Duration::from_secs;
        let millis = Duration::from_millis;
        let hour = secs(3_600);
        let day = secs(86_400);
        count("max_in_flight_records", self.max_in_flight_records, 1, 100_000_000)?;
        size("max_call_bytes", self.max_call_bytes, ByteSize::kib(1), ByteSize::mib(64))?;
        let half = (self.max_in_flight_records / 2).clamp(1, 65_535);
        if !(1..=half).contains(&self.max_call_records) {
            let bound = format!("expected 1 to {half} (at most 65535, and half of `max_in_flight_records`)");
            return Err(invalid("max_call_records", &self.max_call_records.to_string(), &bound));
        }
        // Half of the budget is common, so a call of that size always gets room in the end.
        let largest = self.max_call_bytes.get() + RECORD_OVERHEAD * self.max_call_records;
        size("max_in_flight_bytes", self.max_in_flight_bytes, ByteSize(largest * 2), ByteSize::gib(64))?;
        time("capacity_wait", self.capacity_wait, Duration::ZERO, hour)?;
        count("coalesce_records", self.coalesce_records, 1, self.max_call_records.clamp(1, 10_000))?;
        size("coalesce_bytes", self.coalesce_bytes, ByteSize(1), self.max_call_bytes)?;
        time("coalesce_linger", self.coalesce_linger, Duration::ZERO, millis(100))?;
        time("open_timeout", self.open_timeout, millis(100), secs(300))?;
        time("ack_timeout", self.ack_timeout, millis(100), hour)?;
        time("flush_timeout", self.flush_timeout, Duration::ZERO, day)?;
        time("wait_timeout", self.wait_timeout, Duration::ZERO, day)?;
        time("close_timeout", self.close_timeout, Duration::ZERO, day)?;
        time("recovery_budget", self.recovery_budget, Duration::ZERO, day)?;
        time("backoff_initial", self.backoff_initial, millis(1), secs(600))?;
        time("backoff_max", self.backoff_max, self.backoff_initial, secs(600))?;
        if let Some(pause) = self.pause_max {
            time("pause_max", pause, Duration::ZERO, hour)?;
        }
        Ok(())
    }
}

/// An option out of its bounds.
pub(crate) fn invalid(name: &'static str, value: &str, bound: &str) -> IngestError {
    IngestError::InvalidOption { name, value: value.into(), bound: bound.into() }
}

fn count(name: &'static str, value: u64, min: u64, max: u64) -> Result<(), IngestError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(invalid(name, &value.to_string(), &format!("expected {min} to {max}")))
}

fn size(name: &'static str, value: ByteSize, min: ByteSize, max: ByteSize) -> Result<(), IngestError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(invalid(name, &value.to_string(), &format!("expected {min} to {max}")))
}

fn time(name: &'static str, value: Duration, min: Duration, max: Duration) -> Result<(), IngestError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(invalid(name, &format!("{value:?}"), &format!("expected {min:?} to {max:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch defaults that contradict each other.
    #[test]
    fn the_defaults_stand_their_own_check() {
        StreamOptions::default().check().unwrap();
        ConnectOptions::default().check().unwrap();
    }

    /// Would catch a bound that is not enforced, or an error without name, value and bound.
    #[test]
    fn an_option_out_of_bounds_is_named_with_its_bound() {
        let options = StreamOptions { max_in_flight_bytes: ByteSize::mib(1), ..StreamOptions::default() };
        let text = options.check().unwrap_err().to_string();
        assert!(text.contains("max_in_flight_bytes") && text.contains("1MiB") && text.contains("64GiB"), "{text}");
        let options = StreamOptions { max_in_flight_records: 100, ..StreamOptions::default() };
        assert!(options.check().unwrap_err().to_string().contains("1 to 50"));
        let options = StreamOptions { backoff_max: Duration::from_millis(1), ..StreamOptions::default() };
        assert!(options.check().unwrap_err().to_string().contains("backoff_max"));
    }
}
