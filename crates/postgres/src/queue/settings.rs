//! The queue's settings and their bounds (P15, P17, P25).

use std::time::Duration;

use super::arena::{Arena, Need};

/// `queue` of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueSettings {
    /// A bundle ships at this many log records.
    pub batch_records: usize,
    /// A bundle ships at this many bytes of messages.
    pub batch_bytes: usize,
    /// No more log records than this are held, in all.
    pub max_records: u64,
    /// No more memory than this is held, in all, but for a single record that is larger.
    pub max_bytes: u64,
    /// How often work that depends on time is called.
    pub idle_interval: Duration,
}

impl Default for QueueSettings {
    fn default() -> Self {
        QueueSettings {
            batch_records: 512,
            batch_bytes: 1 << 20,
            max_records: 131_072,
            max_bytes: 64 << 20,
            idle_interval: Duration::from_millis(50),
        }
    }
}

/// A setting out of its bounds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("queue.{key} is {value}; it may be {bounds} (LF-PG0116)")]
pub struct QueueSettingsError {
    /// The key.
    pub key: &'static str,
    /// The value.
    pub value: String,
    /// What is allowed.
    pub bounds: String,
}

const KIB: usize = 1 << 10;
const MIB: u64 = 1 << 20;

impl QueueSettings {
    /// Refuses values out of bounds, and values that do not fit each other.
    pub fn check(&self) -> Result<(), QueueSettingsError> {
        let refuse =
            |key, value: String, bounds: &str| Err(QueueSettingsError { key, value, bounds: bounds.to_owned() });
        if !(1..=65_536).contains(&self.batch_records) {
            return refuse("batch_records", self.batch_records.to_string(), "1 to 65536");
        }
        if !(4 * KIB..=16 * KIB * KIB).contains(&self.batch_bytes) {
            return refuse("batch_bytes", format!("{}B", self.batch_bytes), "4KiB to 16MiB");
        }
        let two = 2 * self.batch_records as u64;
        if self.max_records < two {
            let bounds = format!("from {two} on: two bundles of batch_records");
            return refuse("max_records", self.max_records.to_string(), &bounds);
        }
        if !(MIB..=8 * KIB as u64 * MIB).contains(&self.max_bytes) {
            return refuse("max_bytes", format!("{}B", self.max_bytes), "1MiB to 8GiB");
        }
        let two = 2 * self.batch_bytes as u64;
        if self.max_bytes < two {
            let bounds = format!("from {two}B on: two bundles of batch_bytes");
            return refuse("max_bytes", format!("{}B", self.max_bytes), &bounds);
        }
        if !(Duration::from_millis(1)..=Duration::from_secs(10)).contains(&self.idle_interval) {
            return refuse("idle_interval", format!("{:?}", self.idle_interval), "1ms to 10s");
        }
        Ok(())
    }

    /// What the constructor makes of it: no zero that would stop the queue.
    pub(super) fn raised(self) -> Self {
        QueueSettings {
            batch_records: self.batch_records.max(1),
            batch_bytes: self.batch_bytes.max(1),
            max_records: self.max_records.max(1),
            max_bytes: self.max_bytes.max(1),
            idle_interval: self.idle_interval.max(Duration::from_millis(1)),
        }
    }

    /// The largest arena that is kept for reuse: that of a full bundle, grown by doubling.
    pub(super) fn spare_cost_max(&self) -> u64 {
        let full = Arena::shape_for_exactly(Need::bytes(self.batch_bytes)).cost();
        let entries = Arena::shape_for_exactly(Need::default()).cost().saturating_mul(self.batch_records as u64);
        full.saturating_add(entries).saturating_mul(2)
    }

    /// The most memory that the queue ever holds while no single message is larger than `max_bytes`: for the sum that
    /// `check` prints.
    pub fn memory_max(&self) -> u64 {
        self.max_bytes.saturating_add(self.spare_cost_max().min(self.max_bytes).saturating_mul(4))
    }
}
