//! What a channel and the process are configured with, and the bounds of every number (C10, C113).
//!
//! Defaults are those of C10. [`ChannelOptions::validated`] checks each number against its bounds and against the
//! others, so that nothing behind it meets an impossible value. No configuration text is read here.

use std::time::Duration;

use landfall_types::{ByteSize, Durability};

pub use landfall_log::Codec;

/// How a channel behaves. The number of partitions is fixed when the channel is created; everything else applies
/// from the next start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelOptions {
    /// 1 to 1,024.
    pub partitions: u32,
    /// What an acknowledgement is worth (I1).
    pub durability: Durability,
    /// When whole segments are given up.
    pub retention: Retention,
    /// Whether a full queue makes a publisher wait or answers at once.
    pub admission: Admission,
    /// Compression of each unit, where it saves an eighth.
    pub codec: Codec,
    /// 1 MiB to 4 GiB, at least two turns and a batch.
    pub segment_bytes: ByteSize,
    /// Limits of records and batches.
    pub limits: Limits,
    /// The queue of each partition.
    pub queue: QueueLimits,
    /// One turn of a committer.
    pub turn: TurnLimits,
    /// The window in which idempotency keys are known.
    pub keys: KeyLimits,
    /// The newest records of each partition that are kept in memory.
    pub ring: RingLimits,
    /// The record type, where it is fixed by configuration.
    pub format: Option<RecordFormat>,
    /// How records are checked before they are published; done by ingest, kept here with its channel.
    pub validate: Validate,
    /// JSON pointer or field path of the record key, for publishers that name none.
    pub key_field: Option<String>,
    /// Which new schemas are taken.
    pub schema_policy: SchemaPolicy,
}

impl Default for ChannelOptions {
    fn default() -> Self {
        ChannelOptions {
            partitions: 1,
            durability: Durability::Fsync,
            retention: Retention::default(),
            admission: Admission::Wait,
            codec: Codec::None,
            segment_bytes: ByteSize::mib(64),
            limits: Limits::default(),
            queue: QueueLimits::default(),
            turn: TurnLimits::default(),
            keys: KeyLimits::default(),
            ring: RingLimits::default(),
            format: None,
            validate: Validate::default(),
            key_field: None,
            schema_policy: SchemaPolicy::default(),
        }
    }
}

/// When whole segments are given up, oldest first, never the active one (C85). Neither limit: everything is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// Segments whose last record is older go.
    pub max_age: Option<Duration>,
    /// The oldest segments go while a channel's partition takes more than its share of this.
    pub max_bytes: Option<ByteSize>,
    /// Whether nothing at or above the lowest floor of a consumer goes (C86).
    pub retain_consumers: bool,
    /// Consumers that hold the log even before they first attach, `pipeline:<id>` included.
    pub consumers: Vec<String>,
}

/// What a publisher meets when a queue is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Admission {
    /// It waits for room, first come first served, up to its deadline (I10).
    #[default]
    Wait,
    /// It is answered CH0020 at once.
    Reject,
}

/// Limits of what is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// One record, encoded: 1 KiB to 64 MiB.
    pub record_bytes: ByteSize,
    /// Records of a batch: 1 to 65,535.
    pub batch_records: u32,
    /// Encoded bytes of a batch: at least a record, at most 64 MiB.
    pub batch_bytes: ByteSize,
    /// Headers of a record: at most 256.
    pub headers: u32,
    /// Bytes of all headers of a record: at most 256 KiB.
    pub header_bytes: ByteSize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            record_bytes: ByteSize::mib(10),
            batch_records: 10_000,
            batch_bytes: ByteSize::mib(16),
            headers: 64,
            header_bytes: ByteSize::kib(16),
        }
    }
}

impl Limits {
    /// The limits of a channel for the dead letters of this one: 16 headers, 4 KiB of them and 64 KiB of record
    /// more, so that a letter always fits (E111).
    pub fn for_dead_letters(self) -> Limits {
        let more = |size: ByteSize, by: u64, most: u64| ByteSize(size.0.saturating_add(by).min(most));
        let record_bytes = more(self.record_bytes, 64 << 10, RECORD_BYTES.1);
        Limits {
            record_bytes,
            batch_bytes: ByteSize(self.batch_bytes.0.max(record_bytes.0)),
            headers: self.headers.saturating_add(16).min(HEADERS_MAX as u32),
            header_bytes: more(self.header_bytes, 4 << 10, HEADER_BYTES_MAX),
            batch_records: self.batch_records,
        }
    }
}

/// The queue of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// 64 to 1,048,576 units.
    pub items: u32,
    /// At least a batch, at most 1 GiB.
    pub bytes: ByteSize,
}

impl Default for QueueLimits {
    fn default() -> Self {
        QueueLimits { items: 8_192, bytes: ByteSize::mib(32) }
    }
}

/// How much one turn takes; always at least one unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TurnLimits {
    /// 1 to 65,535 records.
    pub records: u32,
    /// 64 KiB to 64 MiB.
    pub bytes: ByteSize,
}

impl Default for TurnLimits {
    fn default() -> Self {
        TurnLimits { records: 4_096, bytes: ByteSize::mib(4) }
    }
}

/// The window of idempotency keys, per partition (C46).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyLimits {
    /// 1 min to 30 d.
    pub window: Duration,
    /// 1,024 to 16,777,216.
    pub count: u32,
    /// 256 to 1,048,576.
    pub producers: u32,
}

impl Default for KeyLimits {
    fn default() -> Self {
        KeyLimits { window: Duration::from_secs(3_600), count: 262_144, producers: 65_536 }
    }
}

/// The tail ring of a partition (C55).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingLimits {
    /// At most so many records.
    pub records: u32,
    /// 64 KiB to 256 MiB.
    pub bytes: ByteSize,
}

impl Default for RingLimits {
    fn default() -> Self {
        RingLimits { records: 8_192, bytes: ByteSize::mib(4) }
    }
}

/// The type of a channel's records, for ingest (G11).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RecordFormat {
    /// Each record is one JSON text.
    Json,
    /// Each record is a protobuf message.
    Proto,
    /// Each record is a bare Avro datum.
    Avro,
    /// Any bytes.
    Any,
}

impl RecordFormat {
    /// The word used in configuration and in `channel.yaml`.
    pub const fn as_str(self) -> &'static str {
        match self {
            RecordFormat::Json => "json",
            RecordFormat::Proto => "proto",
            RecordFormat::Avro => "avro",
            RecordFormat::Any => "any",
        }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        [Self::Json, Self::Proto, Self::Avro, Self::Any].into_iter().find(|format| format.as_str() == text)
    }
}

/// How records are checked before they are published (G17).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Validate {
    /// Not at all.
    Off,
    /// Well formed in their type.
    #[default]
    Syntax,
    /// And against the channel's declared schema.
    Schema,
}

/// Which new schemas are taken (G12).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SchemaPolicy {
    /// Those that old and new readers can both read.
    #[default]
    Compatible,
    /// None but those known.
    Fixed,
    /// All.
    Any,
}

/// What all channels of a process share (C10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessOptions {
    /// Queued and claimed bytes of all partitions: 16 MiB to 64 GiB.
    pub queued_bytes: ByteSize,
    /// All tail rings: 1 MiB to 16 GiB.
    pub ring_bytes: ByteSize,
    /// Subscriptions: 1 to 65,536.
    pub subscriptions: u32,
    /// The credit of all subscriptions: 64 KiB each to 16 GiB.
    pub subscription_bytes: ByteSize,
    /// Threads that write and sync: 1 to 256.
    pub commit_threads: u32,
    /// Threads that read segments: 1 to 64.
    pub read_threads: u32,
    /// Free space below which publishes are refused; `None`: the larger of 1 GiB and 2 %. 64 MiB to 1 TiB.
    pub disk_reserve: Option<ByteSize>,
}

impl Default for ProcessOptions {
    fn default() -> Self {
        ProcessOptions {
            queued_bytes: ByteSize::mib(256),
            ring_bytes: ByteSize::mib(128),
            subscriptions: 4_096,
            subscription_bytes: ByteSize::mib(256),
            commit_threads: 16,
            read_threads: 4,
            disk_reserve: None,
        }
    }
}

const RECORD_BYTES: (u64, u64) = (1 << 10, 64 << 20);
/// The most headers a record can have, whatever the channel says.
pub(crate) const HEADERS_MAX: usize = 256;
/// The most bytes of headers a record can have, whatever the channel says.
pub(crate) const HEADER_BYTES_MAX: u64 = 256 << 10;
/// The longest header name.
pub(crate) const HEADER_NAME_BYTES_MAX: usize = 128;
/// The longest idempotency key.
pub(crate) const IDEMPOTENCY_KEY_BYTES_MAX: usize = 256;
/// The longest record key.
pub(crate) const RECORD_KEY_BYTES_MAX: usize = 64 << 10;
/// The longest name of a publisher.
pub(crate) const PUBLISHER_BYTES_MAX: usize = 128;
/// The longest tracestate.
pub(crate) const TRACE_STATE_BYTES_MAX: usize = 512;
/// The shortest and the longest deadline of a publish.
pub(crate) const DEADLINE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(300));
/// The deadline of a publish that names none.
pub(crate) const DEADLINE_DEFAULT: Duration = Duration::from_secs(10);
/// The most publishes that join one key in flight.
pub(crate) const JOINED_MAX: usize = 64;

/// A number is outside its bounds, or does not fit another one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{option}` is {value}: {expected}")]
pub struct OptionError {
    /// The key, as in configuration.
    pub option: &'static str,
    /// What was given.
    pub value: String,
    /// What is taken.
    pub expected: String,
}

fn check<T: PartialOrd + std::fmt::Display>(
    option: &'static str,
    value: T,
    low: T,
    high: T,
) -> Result<(), OptionError> {
    if value >= low && value <= high {
        return Ok(());
    }
    Err(OptionError { option, value: value.to_string(), expected: format!("expected {low} to {high}") })
}

fn check_duration(option: &'static str, value: Duration, low: Duration, high: Duration) -> Result<(), OptionError> {
    if value >= low && value <= high {
        return Ok(());
    }
    Err(OptionError { option, value: format!("{value:?}"), expected: format!("expected {low:?} to {high:?}") })
}

impl ChannelOptions {
    /// Checks every number against its bounds and against the others; the first that fails is named.
    pub fn validated(self) -> Result<ChannelOptions, OptionError> {
        let size = ByteSize;
        check("partitions", self.partitions, 1, 1_024)?;
        let limits = &self.limits;
        check("limits.record_bytes", limits.record_bytes, size(RECORD_BYTES.0), size(RECORD_BYTES.1))?;
        check("limits.batch_records", limits.batch_records, 1, 65_535)?;
        check("limits.batch_bytes", limits.batch_bytes, limits.record_bytes, ByteSize::mib(64))?;
        check("limits.headers", limits.headers, 0, HEADERS_MAX as u32)?;
        check("limits.header_bytes", limits.header_bytes, size(0), size(HEADER_BYTES_MAX))?;
        check("queue.items", self.queue.items, 64, 1_048_576)?;
        check("queue.bytes", self.queue.bytes, limits.batch_bytes, ByteSize::gib(1))?;
        check("turn.records", self.turn.records, 1, 65_535)?;
        check("turn.bytes", self.turn.bytes, ByteSize::kib(64), ByteSize::mib(64))?;
        check_duration("keys.window", self.keys.window, Duration::from_secs(60), Duration::from_secs(30 * 86_400))?;
        check("keys.count", self.keys.count, 1_024, 16_777_216)?;
        check("keys.producers", self.keys.producers, 256, 1_048_576)?;
        check("ring.records", self.ring.records, 1, 1_048_576)?;
        check("ring.bytes", self.ring.bytes, ByteSize::kib(64), ByteSize::mib(256))?;
        let least = size((2 * self.turn.bytes.0).max(limits.batch_bytes.0 + (64 << 10)).max(1 << 20));
        if self.segment_bytes < least || self.segment_bytes > ByteSize::gib(4) {
            return Err(OptionError {
                option: "segment_bytes",
                value: self.segment_bytes.to_string(),
                expected: format!("expected {least} (two turns, and a batch with 64KiB) to 4GiB"),
            });
        }
        if let Some(most) = self.retention.max_bytes {
            check("retention.max_bytes", most, self.segment_bytes, size(u64::MAX))?;
        }
        if let Some(age) = self.retention.max_age {
            check_duration("retention.max_age", age, Duration::from_secs(1), Duration::from_secs(100 * 366 * 86_400))?;
        }
        if self.durability == Durability::Memory && self.retention.max_bytes.is_none() {
            return Err(OptionError {
                option: "retention.max_bytes",
                value: "unset".into(),
                expected: "a channel of class memory needs it, since its records live in memory alone".into(),
            });
        }
        Ok(self)
    }
}

impl ProcessOptions {
    /// Checks every number against its bounds; the first that fails is named.
    pub fn validated(self) -> Result<ProcessOptions, OptionError> {
        check("queued_bytes", self.queued_bytes, ByteSize::mib(16), ByteSize::gib(64))?;
        check("ring_bytes", self.ring_bytes, ByteSize::mib(1), ByteSize::gib(16))?;
        check("subscriptions", self.subscriptions, 1, 65_536)?;
        let least = ByteSize::kib(64 * u64::from(self.subscriptions));
        check("subscription_bytes", self.subscription_bytes, least, ByteSize::gib(16))?;
        check("commit_threads", self.commit_threads, 1, 256)?;
        check("read_threads", self.read_threads, 1, 64)?;
        if let Some(reserve) = self.disk_reserve {
            check("disk_reserve", reserve, ByteSize::mib(64), ByteSize::gib(1_024))?;
        }
        Ok(self)
    }
}

/// The longest channel name.
pub(crate) const NAME_BYTES_MAX: usize = 200;

/// Checks a channel's name: `[A-Za-z0-9_][A-Za-z0-9_.-]*`, at most 200 bytes.
pub(crate) fn check_name(name: &str) -> Result<(), OptionError> {
    let first = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let legal = name.bytes().next().is_some_and(first)
        && name.bytes().all(|byte| first(byte) || byte == b'.' || byte == b'-')
        && name.len() <= NAME_BYTES_MAX;
    if legal {
        return Ok(());
    }
    Err(OptionError {
        option: "name",
        value: format!("`{}`", name.chars().take(64).collect::<String>()),
        expected: "expected a channel name: letters, digits, `_`, then also `.` and `-`, at most 200 bytes".into(),
    })
}
