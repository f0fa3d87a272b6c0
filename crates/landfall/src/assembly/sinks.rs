//! `pipelines.<name>.to` as sinks of the engine.

use std::sync::Arc;

use landfall_channel::{ChannelSink, ChannelSinkOptions, Channels};
use landfall_delta::{Compression, DeltaOptions, DeltaSink, Evolve, Timestamps};
use landfall_engine::contract::{PlanError, Sink};
use landfall_engine::{Backoff, PipelineOptions, RetryOptions, SinkOptions};
use landfall_files::{Compression as FilesCompression, FilesOptions, FilesSink, Format};
use landfall_types::ByteSize;

use crate::config::{
    Codec, DeltaConfig, FileFormat, FilesConfig, PipelineConfig, RetryConfig, SinkConfig, SinkKind, codes,
};

/// The sink, without side effects.
pub(super) fn build(config: &SinkConfig, channels: &Channels) -> Result<Arc<dyn Sink>, PlanError> {
    match &config.kind {
        SinkKind::Delta(delta) => Ok(Arc::new(DeltaSink::new(delta_options(delta))?)),
        SinkKind::Files(files) => Ok(Arc::new(FilesSink::new(files_options(files))?)),
        SinkKind::Channel(to) => {
            let channel = channels
                .get(&to.name)
                .ok_or_else(|| PlanError::new(codes::UNDEFINED, format!("the channel `{}` is not open", to.name)))?;
            let (payload_column, key_column) = (to.payload.clone(), to.key.clone());
            let options =
                ChannelSinkOptions { name: config.name.clone(), payload_column, key_column, changes_of: None };
            Ok(Arc::new(ChannelSink::new(channel, options)))
        }
    }
}

pub(super) fn delta_options(config: &DeltaConfig) -> DeltaOptions {
    let default = DeltaOptions::new(&config.path);
    DeltaOptions {
        create: config.create,
        partition_by: config.partition_by.clone(),
        properties: config.properties.iter().cloned().collect(),
        timestamps: if config.zoneless { Timestamps::Ntz } else { Timestamps::Utc },
        evolve: if config.add_columns == Some(true) { Evolve::AddColumns } else { Evolve::Fail },
        commit_every: config.commit_every.unwrap_or(default.commit_every),
        target_file_size: config.target_file_size.unwrap_or(default.target_file_size),
        row_group_bytes: config.row_group_bytes.unwrap_or(default.row_group_bytes),
        max_open_files: config.max_open_files.map_or(default.max_open_files, |n| n as usize),
        compression: match config.compression {
            None | Some(Codec::Zstd | Codec::Gzip) => default.compression,
            Some(Codec::Snappy) => Compression::Snappy,
            Some(Codec::None) => Compression::None,
        },
        commit_retries: config.commit_retries.unwrap_or(default.commit_retries),
        checkpoint_every: config.checkpoint_every.map_or(default.checkpoint_every, u64::from),
        hidden: config.hidden,
        ..default
    }
}

fn files_options(config: &FilesConfig) -> FilesOptions {
    let default = FilesOptions::new(&config.path);
    FilesOptions {
        format: match config.format {
            FileFormat::Ndjson => Format::Ndjson,
            FileFormat::Parquet => Format::Parquet,
        },
        compression: match config.compression {
            None => default.compression,
            Some(Codec::None) => FilesCompression::None,
            Some(Codec::Gzip) => FilesCompression::Gzip,
            Some(Codec::Snappy | Codec::Zstd) => FilesCompression::Zstd,
        },
        roll_max_bytes: config.roll_max_bytes.unwrap_or(default.roll_max_bytes),
        roll_every: config.roll_every.unwrap_or(default.roll_every),
        hidden: config.hidden,
        ..default
    }
}

/// A sink's numbers: the pipeline's, with the default of its kind where they are not set (E140).
pub(super) fn options(sink: &SinkConfig, pipeline: &PipelineConfig) -> SinkOptions {
    let default = SinkOptions::default();
    let (rows, bytes) = match sink.kind {
        SinkKind::Channel(_) => (10_000, ByteSize::mib(4)),
        SinkKind::Delta(_) | SinkKind::Files(_) => (default.batch_rows, default.batch_bytes),
    };
    SinkOptions {
        batch_rows: pipeline.batch_rows.unwrap_or(rows),
        batch_bytes: pipeline.batch_bytes.unwrap_or(bytes),
        batch_age: pipeline.batch_age.unwrap_or(default.batch_age),
        queue_max_chunks: pipeline.queue_max_chunks.unwrap_or(default.queue_max_chunks),
        queue_max_bytes: pipeline.queue_max_bytes,
        chunk_target_bytes: pipeline.chunk_target_bytes.unwrap_or(default.chunk_target_bytes),
        retry: retry(&pipeline.retry),
        ..default
    }
}

fn retry(config: &RetryConfig) -> RetryOptions {
    let default = RetryOptions::default();
    RetryOptions {
        backoff: Backoff {
            initial: config.initial.unwrap_or(default.backoff.initial),
            max: config.max.unwrap_or(default.backoff.max),
            multiplier: config.multiplier.unwrap_or(default.backoff.multiplier),
            jitter: config.jitter.unwrap_or(default.backoff.jitter),
        },
        max_elapsed: config.max_elapsed,
        attempt_timeout: config.attempt_timeout.unwrap_or(default.attempt_timeout),
    }
}

/// The pipeline's own numbers.
pub(super) fn pipeline_options(config: &PipelineConfig) -> PipelineOptions {
    use crate::config::{DecodeConfig, Policy};
    use landfall_engine::{OnError, OnErrors, OnTrimmed};
    let default = PipelineOptions::default();
    let policy = |policy: Policy| match policy {
        Policy::DeadLetter => OnError::DeadLetter,
        Policy::Skip => OnError::Skip,
        Policy::Fail => OnError::Fail,
    };
    PipelineOptions {
        threads: config.threads,
        poll_max_rows: config.poll_max_rows,
        poll_max_bytes: config.poll_max_bytes,
        on_error: OnErrors {
            decode: policy(config.on_error.decode),
            sql: policy(config.on_error.sql),
            sink: policy(config.on_error.sink),
        },
        max_bad_fraction: config.max_bad_fraction.unwrap_or(default.max_bad_fraction),
        max_bad_rows: config.max_bad_rows.unwrap_or(default.max_bad_rows),
        on_trimmed: if config.pass_trimmed { OnTrimmed::Continue } else { OnTrimmed::Stop },
        checkpoint_interval: config.checkpoint_interval.unwrap_or(default.checkpoint_interval),
        max_pending_batches: config.max_pending_batches as usize,
        max_pending_bytes: config.max_pending_bytes.unwrap_or(default.max_pending_bytes),
        stalled_after: config.stalled_after,
        idle_flush: config.idle_flush.unwrap_or(default.idle_flush),
        restart: Backoff {
            initial: config.restart_initial.unwrap_or(default.restart.initial),
            max: config.restart_max.unwrap_or(default.restart.max),
            ..default.restart
        },
        low_ratio: config.low_ratio.unwrap_or(default.low_ratio),
        decode_growth: match config.decode {
            DecodeConfig::Json(_) => 4,
            DecodeConfig::Raw => 1,
        },
    }
}
