//! The inferred schema of a pipeline: proposed from the first records, pinned in the state, never changed by itself
//! (E101).

use std::time::Instant;

use anyhow::Context;
use bytes::Bytes;
use landfall_channel::Channel;
use landfall_sql::{Schema, infer};
use landfall_state::{Change, StateHandle};
use landfall_types::{Offset, PartitionId};

use crate::config::{DecodeConfig, InferConfig, PipelineConfig};

/// Pinned schemas by pipeline id.
const TABLE: &str = "binary.pinned_schemas";
/// Records asked for at once.
const PAGE_RECORDS: u32 = 256;

/// The schema that an earlier start has pinned.
pub(super) fn pinned(state: &StateHandle, config: &PipelineConfig) -> anyhow::Result<Option<Schema>> {
    let Some(text) = state.read(TABLE, config.id.as_bytes())? else { return Ok(None) };
    let text = std::str::from_utf8(&text).context("the pinned schema is not text")?;
    let schema = Schema::from_json(text)
        .with_context(|| format!("the pinned schema of pipeline `{}` does not read back", config.id))?;
    Ok(Some(schema))
}

/// Waits for the first record, gathers what `infer` allows, proposes, and pins before anything is decoded by it.
pub(super) async fn infer_and_pin(
    channel: &Channel,
    state: &StateHandle,
    config: &PipelineConfig,
) -> anyhow::Result<Schema> {
    let limits = match &config.decode {
        DecodeConfig::Json(json) => json.infer.unwrap_or_default(),
        DecodeConfig::Raw => InferConfig::default(),
    };
    let samples = gather(channel, &limits).await?;
    let schema = infer(samples.iter().map(|payload| payload.as_ref()))?;
    let pin = Change::put(TABLE, config.id.clone().into_bytes(), schema.to_json().into_bytes());
    state.commit(vec![pin], state.owner()).await?;
    tracing::info!(pipeline = %config.name, records = samples.len(), schema = %schema.to_json(), "schema inferred and pinned");
    Ok(schema)
}

async fn gather(channel: &Channel, limits: &InferConfig) -> anyhow::Result<Vec<Bytes>> {
    let partitions: Vec<PartitionId> = (0..channel.partitions()).map(PartitionId).collect();
    let mut next: Vec<Offset> =
        partitions.iter().map(|partition| channel.log_start(*partition).unwrap_or(Offset::ZERO)).collect();
    // However long it takes: without records there is nothing to land either.
    let first =
        partitions.iter().zip(&next).map(|(partition, offset)| Box::pin(channel.wait_past(*partition, *offset)));
    futures::future::select_all(first).await;
    let until = Instant::now() + limits.within;
    let (mut samples, mut bytes) = (Vec::new(), 0u64);
    loop {
        let mut progressed = false;
        for (partition, offset) in partitions.iter().zip(&mut next) {
            if channel.tail(*partition).is_none_or(|tail| tail <= *offset) {
                continue;
            }
            let page = channel.read(*partition, *offset, PAGE_RECORDS, 1 << 20).await?;
            for delivered in page {
                *offset = Offset(delivered.offset.get() + 1);
                progressed = true;
                bytes += delivered.record.payload.len() as u64;
                samples.push(delivered.record.payload);
                if samples.len() >= limits.records || bytes >= limits.bytes.get() {
                    return Ok(samples);
                }
            }
        }
        if progressed {
            continue;
        }
        let more =
            partitions.iter().zip(&next).map(|(partition, offset)| Box::pin(channel.wait_past(*partition, *offset)));
        if tokio::time::timeout_at(until.into(), futures::future::select_all(more)).await.is_err() {
            return Ok(samples);
        }
    }
}
