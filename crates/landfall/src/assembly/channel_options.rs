//! `channels` of the configuration as the channel crate's options; dead-letter channels beside their sources.

use std::collections::BTreeMap;

use landfall_channel::{Admission, ChannelOptions, Codec, ProcessOptions, RecordFormat, SchemaPolicy, Validate};
use landfall_types::{ByteSize, Durability};

use crate::config::{ChannelConfig, ChannelFormat, Config, PayloadCheck, ProcessConfig, SchemaChange};

/// Every channel of the configuration, and the dead-letter channel of every pipeline that has none of its own there.
pub(super) fn all(config: &Config) -> Vec<(String, ChannelOptions)> {
    let mut channels: BTreeMap<String, ChannelOptions> =
        config.channels.iter().map(|channel| (channel.name.clone(), options(channel))).collect();
    for pipeline in &config.pipelines {
        let source = pipeline.source_channel().and_then(|name| channels.get(name)).cloned().unwrap_or_default();
        channels.entry(pipeline.dead_letter_channel()).or_insert_with(|| for_dead_letters(&source));
    }
    channels.into_iter().collect()
}

/// A letter always fits, is always synced, and its bytes are nobody's to judge again.
fn for_dead_letters(source: &ChannelOptions) -> ChannelOptions {
    let limits = source.limits.for_dead_letters();
    let default = ChannelOptions::default();
    let batch = limits.batch_bytes;
    ChannelOptions {
        limits,
        queue: landfall_channel::QueueLimits { bytes: default.queue.bytes.max(batch), ..default.queue },
        segment_bytes: default.segment_bytes.max(ByteSize(batch.get().saturating_add(64 << 10))),
        format: Some(RecordFormat::Any),
        validate: Validate::Off,
        durability: Durability::Fsync,
        ..default
    }
}

fn options(config: &ChannelConfig) -> ChannelOptions {
    let mut options = ChannelOptions::default();
    fn set<T: Copy>(target: &mut T, value: Option<T>) {
        if let Some(value) = value {
            *target = value;
        }
    }
    set(&mut options.partitions, config.partitions);
    set(&mut options.durability, config.durability);
    options.retention.max_age = config.retention.max_age;
    options.retention.max_bytes = config.retention.max_bytes;
    options.retention.retain_consumers = config.retention.retain_consumers;
    options.retention.consumers.clone_from(&config.retention.consumers);
    set(
        &mut options.admission,
        config.reject_when_full.map(|reject| if reject { Admission::Reject } else { Admission::Wait }),
    );
    set(
        &mut options.codec,
        config.codec.map(|codec| match codec {
            "lz4" => Codec::Lz4,
            "zstd" => Codec::Zstd,
            _ => Codec::None,
        }),
    );
    set(&mut options.segment_bytes, config.segment_bytes);
    set(&mut options.limits.record_bytes, config.record_bytes);
    set(&mut options.limits.batch_records, config.batch_records);
    set(&mut options.limits.batch_bytes, config.batch_bytes);
    set(&mut options.limits.headers, config.headers);
    set(&mut options.limits.header_bytes, config.header_bytes);
    set(&mut options.queue.items, config.queue_items);
    set(&mut options.queue.bytes, config.queue_bytes);
    set(&mut options.turn.records, config.turn_records);
    set(&mut options.turn.bytes, config.turn_bytes);
    set(&mut options.keys.window, config.key_window);
    set(&mut options.keys.count, config.key_count);
    set(&mut options.keys.producers, config.key_producers);
    set(&mut options.ring.records, config.ring_records);
    set(&mut options.ring.bytes, config.ring_bytes);
    options.format = config.format.map(|format| match format {
        ChannelFormat::Json => RecordFormat::Json,
        ChannelFormat::Proto => RecordFormat::Proto,
        ChannelFormat::Avro => RecordFormat::Avro,
        ChannelFormat::Any => RecordFormat::Any,
    });
    set(
        &mut options.validate,
        config.validate.map(|validate| match validate {
            PayloadCheck::Off => Validate::Off,
            PayloadCheck::Syntax => Validate::Syntax,
            PayloadCheck::Schema => Validate::Schema,
        }),
    );
    set(
        &mut options.schema_policy,
        config.schema_policy.map(|policy| match policy {
            SchemaChange::Compatible => SchemaPolicy::Compatible,
            SchemaChange::Fixed => SchemaPolicy::Fixed,
            SchemaChange::Any => SchemaPolicy::Any,
        }),
    );
    options.key_field.clone_from(&config.key_field);
    options
}

/// What all channels share. A budget that is not set stays below a sixteenth of the process's memory (E95).
pub(super) fn process(config: &ProcessConfig, memory_limit: ByteSize) -> ProcessOptions {
    let default = ProcessOptions::default();
    let sixteenth = ByteSize(memory_limit.get() / 16);
    let budget =
        |set: Option<ByteSize>, default: ByteSize, least: ByteSize| set.unwrap_or(default.min(sixteenth).max(least));
    let subscriptions = config.subscriptions.unwrap_or(default.subscriptions);
    // The credit of all must hold the least credit of each.
    let credit_least = ByteSize(u64::from(subscriptions).saturating_mul(64 << 10));
    ProcessOptions {
        queued_bytes: budget(config.queued_bytes, default.queued_bytes, ByteSize::mib(16)),
        ring_bytes: budget(config.ring_bytes, default.ring_bytes, ByteSize::mib(1)),
        subscriptions,
        subscription_bytes: budget(config.subscription_bytes, default.subscription_bytes, credit_least),
        commit_threads: config.commit_threads.and_then(|n| u32::try_from(n).ok()).unwrap_or(default.commit_threads),
        read_threads: config.read_threads.and_then(|n| u32::try_from(n).ok()).unwrap_or(default.read_threads),
        disk_reserve: config.disk_reserve,
    }
}
