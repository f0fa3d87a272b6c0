//! `channels`: the keys of C113 with the bounds of C10.

use std::time::Duration;

use landfall_types::{ByteSize, Durability};

use super::finding::{Finding, codes};
use super::section::Section;
use super::text::{Mark, excerpt};

/// One entry of `channels`. What is unset takes the channel's own default.
#[derive(Clone, Debug)]
pub(crate) struct ChannelConfig {
    /// Its name.
    pub(crate) name: String,
    /// Where it stands.
    pub(crate) mark: Mark,
    /// `partitions`.
    pub(crate) partitions: Option<u32>,
    /// `durability`.
    pub(crate) durability: Option<Durability>,
    /// `retention`.
    pub(crate) retention: RetentionConfig,
    /// `admission`: true where a full queue refuses at once.
    pub(crate) reject_when_full: Option<bool>,
    /// `codec`.
    pub(crate) codec: Option<&'static str>,
    /// `segment_bytes`.
    pub(crate) segment_bytes: Option<ByteSize>,
    /// `limits.record_bytes`.
    pub(crate) record_bytes: Option<ByteSize>,
    /// `limits.batch_records`.
    pub(crate) batch_records: Option<u32>,
    /// `limits.batch_bytes`.
    pub(crate) batch_bytes: Option<ByteSize>,
    /// `limits.headers`.
    pub(crate) headers: Option<u32>,
    /// `limits.header_bytes`.
    pub(crate) header_bytes: Option<ByteSize>,
    /// `queue.items`.
    pub(crate) queue_items: Option<u32>,
    /// `queue.bytes`.
    pub(crate) queue_bytes: Option<ByteSize>,
    /// `turn.records`.
    pub(crate) turn_records: Option<u32>,
    /// `turn.bytes`.
    pub(crate) turn_bytes: Option<ByteSize>,
    /// `keys.window`.
    pub(crate) key_window: Option<Duration>,
    /// `keys.count`.
    pub(crate) key_count: Option<u32>,
    /// `keys.producers`.
    pub(crate) key_producers: Option<u32>,
    /// `ring.records`.
    pub(crate) ring_records: Option<u32>,
    /// `ring.bytes`.
    pub(crate) ring_bytes: Option<ByteSize>,
    /// `format`.
    pub(crate) format: Option<ChannelFormat>,
    /// `validate`.
    pub(crate) validate: Option<PayloadCheck>,
    /// `key_field`.
    pub(crate) key_field: Option<String>,
    /// `schema_policy`.
    pub(crate) schema_policy: Option<SchemaChange>,
}

/// `retention`.
#[derive(Clone, Debug, Default)]
pub(crate) struct RetentionConfig {
    /// `max_age`.
    pub(crate) max_age: Option<Duration>,
    /// `max_bytes`.
    pub(crate) max_bytes: Option<ByteSize>,
    /// `retain: consumers`.
    pub(crate) retain_consumers: bool,
    /// `consumers`.
    pub(crate) consumers: Vec<String>,
}

/// `format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChannelFormat {
    /// JSON texts.
    Json,
    /// Protobuf messages.
    Proto,
    /// Avro datums.
    Avro,
    /// Anything.
    Any,
}

/// `schema_policy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SchemaChange {
    /// What old and new readers can both read.
    Compatible,
    /// Known ones only.
    Fixed,
    /// All.
    Any,
}

/// `validate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PayloadCheck {
    /// No look at payloads.
    Off,
    /// Well-formed.
    Syntax,
    /// By the stream's schema.
    Schema,
}

pub(super) fn read_all(top: &Section<'_>) -> Vec<ChannelConfig> {
    let Some(section) = top.section("channels") else { return Vec::new() };
    let mut channels: Vec<ChannelConfig> = Vec::new();
    for (key, node) in section.entries() {
        if let Err(why) = name_is_fit(&key.name) {
            section.findings().push(Finding::error(codes::WRONG_TYPE, Some(key.mark), why));
            continue;
        }
        if let Some(twin) = channels.iter().find(|other| other.name.eq_ignore_ascii_case(&key.name)) {
            let text = format!("channels `{}` and `{}` differ in case only", twin.name, key.name);
            section.findings().push(
                Finding::error(codes::CONTRADICTION, Some(key.mark), text)
                    .help("a channel is a directory, and some file systems ignore case: rename one"),
            );
            continue;
        }
        if let Some(channel) = Section::of(format!("channels.{}", key.name), node, section.findings()) {
            channels.push(read_one(channel, &key.name, key.mark));
        }
    }
    channels
}

fn name_is_fit(name: &str) -> Result<(), String> {
    const NAME_BYTES_MAX: usize = 200;
    let shown = excerpt(name);
    if name.len() > NAME_BYTES_MAX {
        return Err(format!("the channel name `{shown}` has {} B; at most {NAME_BYTES_MAX} B are taken", name.len()));
    }
    let first = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if !first || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-')) {
        return Err(format!(
            "the channel name `{shown}` is not of letters, digits, `_`, `.` and `-`, beginning with a letter, digit or `_`"
        ));
    }
    if name.starts_with("_dead_letters.") {
        return Err(format!("the channel name `{shown}` begins with `_dead_letters.`, which belongs to pipelines"));
    }
    Ok(())
}

fn read_one(section: Section<'_>, name: &str, mark: Mark) -> ChannelConfig {
    let minutes = |n: u64| Duration::from_secs(n * 60);
    let days = |n: u64| Duration::from_secs(n * 86_400);
    let mut config = ChannelConfig {
        name: name.to_owned(),
        mark,
        partitions: section.count32("partitions", 1..=1024, "partitions"),
        durability: section.choice(
            "durability",
            &[("fsync", Durability::Fsync), ("written", Durability::Written), ("memory", Durability::Memory)],
        ),
        retention: RetentionConfig::default(),
        reject_when_full: section.choice("admission", &[("wait", false), ("reject", true)]),
        codec: section.choice("codec", &[("none", "none"), ("lz4", "lz4"), ("zstd", "zstd")]),
        segment_bytes: section.size("segment_bytes", ByteSize::mib(1)..=ByteSize::gib(4)),
        record_bytes: None,
        batch_records: None,
        batch_bytes: None,
        headers: None,
        header_bytes: None,
        queue_items: None,
        queue_bytes: None,
        turn_records: None,
        turn_bytes: None,
        key_window: None,
        key_count: None,
        key_producers: None,
        ring_records: None,
        ring_bytes: None,
        format: section.choice(
            "format",
            &[
                ("json", ChannelFormat::Json),
                ("proto", ChannelFormat::Proto),
                ("avro", ChannelFormat::Avro),
                ("any", ChannelFormat::Any),
            ],
        ),
        validate: section.choice(
            "validate",
            &[("off", PayloadCheck::Off), ("syntax", PayloadCheck::Syntax), ("schema", PayloadCheck::Schema)],
        ),
        key_field: section.text("key_field").map(str::to_owned),
        schema_policy: section.choice(
            "schema_policy",
            &[("compatible", SchemaChange::Compatible), ("fixed", SchemaChange::Fixed), ("any", SchemaChange::Any)],
        ),
    };
    if let Some(retention) = section.section("retention") {
        config.retention = RetentionConfig {
            max_age: retention.duration("max_age", minutes(1)..=days(3650)),
            max_bytes: retention.size("max_bytes", ByteSize::mib(1)..=ByteSize::gib(1 << 20)),
            retain_consumers: retention.choice("retain", &[("consumers", true)]).unwrap_or(false),
            consumers: retention
                .texts("consumers")
                .unwrap_or_default()
                .into_iter()
                .map(|(consumer, _)| consumer)
                .collect(),
        };
        retention.finish();
    }
    if let Some(limits) = section.section("limits") {
        config.record_bytes = limits.size("record_bytes", ByteSize::kib(1)..=ByteSize::mib(64));
        config.batch_records = limits.count32("batch_records", 1..=65_535, "records");
        config.batch_bytes = limits.size("batch_bytes", ByteSize::kib(1)..=ByteSize::mib(64));
        config.headers = limits.count32("headers", 0..=256, "headers");
        config.header_bytes = limits.size("header_bytes", ByteSize(0)..=ByteSize::kib(256));
        limits.finish();
    }
    if let Some(queue) = section.section("queue") {
        config.queue_items = queue.count32("items", 64..=1_048_576, "records");
        config.queue_bytes = queue.size("bytes", ByteSize::kib(1)..=ByteSize::gib(1));
        queue.finish();
    }
    if let Some(turn) = section.section("turn") {
        config.turn_records = turn.count32("records", 1..=65_535, "records");
        config.turn_bytes = turn.size("bytes", ByteSize::kib(64)..=ByteSize::mib(64));
        turn.finish();
    }
    if let Some(keys) = section.section("keys") {
        config.key_window = keys.duration("window", minutes(1)..=days(30));
        config.key_count = keys.count32("count", 1_024..=16_777_216, "keys");
        config.key_producers = keys.count32("producers", 256..=1_048_576, "producers");
        keys.finish();
    }
    if let Some(ring) = section.section("ring") {
        config.ring_records = ring.count32("records", 1..=1_048_576, "records");
        config.ring_bytes = ring.size("bytes", ByteSize::kib(64)..=ByteSize::mib(256));
        ring.finish();
    }
    section.finish();
    config
}
